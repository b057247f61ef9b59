//! Launches of the kernel that copies blocks of a KV cache (kernels/kv.cu). A launch only enqueues, can be captured, and has
//! the block numbers in it. `kv` calls this.

use core::ffi::c_void;

use super::kernels::{Kernels, arg};
use crate::bail;
use crate::base::error::Result;

/// Blocks that one launch copies: what fits the parameters of a launch, 4 KiB, beside the rest.
const LISTED: usize = 488;
/// Accesses of a thread that are under way at once. NMC_KV_DEPTH in kernels/kv.cu.
const DEPTH: u64 = 4;
const THREADS: u32 = 256;
/// Blocks of the grid for each multiprocessor: as many as fit at once, so that all have an equal share.
const BLOCKS_PER_SM: u32 = 5;

/// Where the pieces of numbered blocks lie. NmcKvPlace in kernels/kv.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvPlace {
    /// Address of the first piece of block 0.
    pub base: u64,
    /// Distance between blocks.
    pub block: u64,
    /// Distances between pieces along three axes, the outermost first.
    pub step: [u64; 3],
}

/// A copy of equal pieces from blocks to blocks. The numbers are the caller's to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvCopy {
    /// Where to read.
    pub from: KvPlace,
    /// Where to write; nothing that is read.
    pub to: KvPlace,
    /// Bytes of a piece.
    pub bytes: u64,
    /// Pieces along the three axes.
    pub counts: [u64; 3],
}

impl KvCopy {
    /// The widest access that fits all pieces.
    fn width(&self) -> u64 {
        let places = [&self.from, &self.to];
        let all = places.iter().fold(self.bytes, |all, place| {
            // A distance along an axis of one piece is never gone.
            let steps = place.step.iter().zip(&self.counts).filter(|(_, count)| **count > 1);
            steps.fold(all | place.base | place.block, |all, (step, _)| all | step)
        });
        1 << all.trailing_zeros().min(4)
    }
}

/// NmcKvCopy in kernels/kv.cu.
#[repr(C)]
struct Words {
    from: KvPlace,
    to: KvPlace,
    bytes: u64,
    middle: u32,
    inner: u32,
    pieces: u32,
    parts: u32,
    n: u32,
    width: u32,
}

/// NmcKvList in kernels/kv.cu.
#[repr(C)]
struct List([[u32; 2]; LISTED]);

const _: () = assert!(size_of::<Words>() + size_of::<List>() <= 4096, "more than the parameters of a launch");

/// How a copy is cut for the kernel: parts of a piece, and blocks of a launch.
fn cut(pieces: u64, bytes: u64, width: u64) -> Result<(u32, u32, usize)> {
    let parts = bytes.div_ceil(32 * DEPTH * width);
    // The kernel counts parts in 32 bits; half of that leaves room for the warps that look beyond the end.
    let most = pieces.checked_mul(parts).map_or(0, |all| (1 << 31) / all.max(1));
    match (u32::try_from(pieces), u32::try_from(parts), usize::try_from(most)) {
        (Ok(pieces), Ok(parts), Ok(most)) if most > 0 => Ok((pieces, parts, most.min(LISTED))),
        _ => bail!(NMC_ERR_LIMIT, "a block of {pieces} pieces of {bytes} bytes is more than a launch can count"),
    }
}

#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "a stream is a handle that only the driver looks into")]
impl Kernels<'_> {
    /// Copies blocks from and to the numbers in `pairs`, in as many launches as needed. Enqueues only.
    pub fn kv_copy(&self, stream: *mut c_void, copy: &KvCopy, pairs: impl Iterator<Item = [u32; 2]>) -> Result<()> {
        let width = copy.width();
        let (pieces, parts, most) = cut(copy.counts.iter().product(), copy.bytes, width)?;
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let (middle, inner) = (count(copy.counts[1]), count(copy.counts[2]));
        let &KvCopy { from, to, bytes, .. } = copy;
        let mut words = Words { from, to, bytes, middle, inner, pieces, parts, n: 0, width: count(width) };
        let mut list = List([[0; 2]; LISTED]);
        let mut pairs = pairs.peekable();
        while pairs.peek().is_some() {
            words.n = 0;
            for (place, pair) in list.0.iter_mut().take(most).zip(&mut pairs) {
                *place = pair;
                words.n += 1;
            }
            self.kv_launch(stream, &words, &list)?;
        }
        Ok(())
    }

    fn kv_launch(&self, stream: *mut c_void, words: &Words, list: &List) -> Result<()> {
        let warps = words.n * words.pieces * words.parts;
        let most = u32::try_from(self.device.facts().sm_count).unwrap_or(1).max(1) * BLOCKS_PER_SM;
        let blocks = warps.div_ceil(THREADS / 32).clamp(1, most);
        let mut arguments = [arg(words), arg(list)];
        // SAFETY: order and types are those of nmc_k_kv_copy in kernels/kv.cu; `Words` is NmcKvCopy and `List` NmcKvList.
        unsafe { self.launch_2d(self.loaded.kv_copy, (blocks, 1), THREADS, stream, &mut arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: KvPlace = KvPlace { base: 1 << 20, block: 4096, step: [64, 32, 16] };
    const COPY: KvCopy = KvCopy { from: PLACE, to: PLACE, bytes: 16, counts: [2, 2, 2] };

    #[test]
    fn the_access_is_the_widest_that_every_piece_allows() {
        assert_eq!(COPY.width(), 16);
        assert_eq!(KvCopy { bytes: 24, ..COPY }.width(), 8);
        assert_eq!(KvCopy { from: KvPlace { base: (1 << 20) + 2, ..PLACE }, ..COPY }.width(), 2);
        assert_eq!(KvCopy { to: KvPlace { block: 4097, ..PLACE }, ..COPY }.width(), 1);
        let odd = KvPlace { step: [3, 32, 16], ..PLACE };
        assert_eq!(KvCopy { from: odd, ..COPY }.width(), 1);
        assert_eq!(KvCopy { from: odd, counts: [1, 2, 2], ..COPY }.width(), 16, "a step that is never gone");
    }

    #[test]
    fn parts_are_counted_in_32_bits_or_refused() {
        assert_eq!(cut(64, 32 << 10, 16).unwrap(), (64, 16, LISTED));
        assert_eq!(cut(1, 100, 1).unwrap(), (1, 1, LISTED));
        let (pieces, parts, most) = cut(1 << 20, 1 << 20, 16).unwrap();
        assert_eq!((u64::from(pieces) * u64::from(parts) * most as u64, most), (1 << 31, 4));
        assert!(cut(1 << 32, 16, 16).is_err());
        assert!(cut(1, 1 << 40, 1).is_err());
        assert!(cut(u64::MAX, u64::MAX, 16).is_err());
    }
}
