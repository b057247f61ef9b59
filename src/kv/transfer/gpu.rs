//! Launches of the kernel that copies blocks of a KV cache (kernels/kv.cu). A launch only enqueues, can be captured, and has
//! the block numbers in it.
#![allow(unsafe_code, reason = "a kernel is launched with arguments that the compiler does not check")]

use super::located::{Copy, Placed};
use crate::bail;
use crate::base::error::Result;
use crate::cuda::GivenStream;
use crate::cuda::{Kernels, arg};

/// Blocks that one launch copies: what fits the parameters of a launch, 4 KiB, beside the rest.
const LISTED: usize = 488;
/// Accesses of a thread that are under way at once. NMC_KV_DEPTH in kernels/kv.cu.
const DEPTH: u64 = 4;
const THREADS: u32 = 256;
/// Blocks of the grid for each multiprocessor: as many as fit at once, so that all have an equal share.
const BLOCKS_PER_SM: u32 = 5;

/// Where the pieces of numbered blocks lie. NmcKvPlace in kernels/kv.cu.
#[repr(C)]
struct Place {
    base: u64,
    block: u64,
    step: [u64; 3],
}

impl From<&Placed> for Place {
    fn from(&Placed { base, block, step, .. }: &Placed) -> Self {
        Self { base, block, step }
    }
}

/// The widest access that fits all pieces.
fn width(copy: &Copy) -> u64 {
    let all = [copy.from(), copy.to()].iter().fold(0, |all, placed| {
        // A distance along an axis of one piece is never gone.
        let steps = placed.step.iter().zip(&placed.counts).filter(|(_, count)| **count > 1);
        steps.fold(all | placed.bytes | placed.base | placed.block, |all, (step, _)| all | step)
    });
    1 << all.trailing_zeros().min(4)
}

/// NmcKvCopy in kernels/kv.cu.
#[repr(C)]
struct Words {
    from: Place,
    to: Place,
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

/// Copies blocks from and to the numbers in `pairs`, in as many launches as needed. Enqueues only.
///
/// # Safety
/// `stream` is one of the device's, or NULL, and the device reaches the regions of both sides until the launches or their last replay have
/// run.
pub unsafe fn copy(
    kernels: &Kernels<'_>,
    copy: &Copy,
    pairs: impl Iterator<Item = [u32; 2]>,
    stream: GivenStream,
) -> Result<()> {
    let width = width(copy);
    let Placed { bytes, counts, .. } = *copy.from();
    let (pieces, parts, most) = cut(counts.iter().product(), bytes, width)?;
    let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let (from, to, middle, inner) = (copy.from().into(), copy.to().into(), count(counts[1]), count(counts[2]));
    let mut words = Words { from, to, bytes, middle, inner, pieces, parts, n: 0, width: count(width) };
    let mut list = List([[0; 2]; LISTED]);
    let mut pairs = pairs.peekable();
    while pairs.peek().is_some() {
        words.n = 0;
        for (place, pair) in list.0.iter_mut().take(most).zip(&mut pairs) {
            copy.check(pair)?;
            *place = pair;
            words.n += 1;
        }
        // SAFETY: by contract; the blocks are there, as `check` says.
        unsafe { launch(kernels, stream, &words, &list) }?;
    }
    Ok(())
}

/// # Safety
/// As [`copy`], and both sides have the blocks of the list.
unsafe fn launch(kernels: &Kernels<'_>, stream: GivenStream, words: &Words, list: &List) -> Result<()> {
    let warps = words.n * words.pieces * words.parts;
    let most = u32::try_from(kernels.device.facts().sm_count).unwrap_or(1).max(1) * BLOCKS_PER_SM;
    let blocks = warps.div_ceil(THREADS / 32).clamp(1, most);
    let mut arguments = [arg(words), arg(list)];
    // SAFETY: order and types are those of nmc_k_kv_copy in kernels/kv.cu; `Words` is NmcKvCopy and `List` NmcKvList. What
    // the kernel reads and writes lies in regions, for which their makers vouch; the caller does for the stream.
    unsafe { kernels.launch_2d(kernels.loaded.kv_copy, (blocks, 1), THREADS, stream.raw(), &mut arguments) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]
    use super::*;

    const PLACED: Placed =
        Placed { base: 1 << 20, block: 4096, step: [64, 32, 16], blocks: 8, bytes: 16, counts: [2, 2, 2] };

    fn width_of(from: Placed, to: Placed) -> u64 {
        width(&Copy::new(from, to).unwrap())
    }

    #[test]
    fn the_access_is_the_widest_that_every_piece_allows() {
        assert_eq!(width_of(PLACED, PLACED), 16);
        let other = Placed { bytes: 24, ..PLACED };
        assert_eq!(width_of(other, other), 8);
        assert_eq!(width_of(Placed { base: (1 << 20) + 2, ..PLACED }, PLACED), 2);
        assert_eq!(width_of(PLACED, Placed { block: 4097, ..PLACED }), 1);
        let odd = Placed { step: [3, 32, 16], ..PLACED };
        assert_eq!(width_of(odd, PLACED), 1);
        let one = |placed| Placed { counts: [1, 2, 2], ..placed };
        assert_eq!(width_of(one(odd), one(PLACED)), 16, "a step that is never gone");
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
