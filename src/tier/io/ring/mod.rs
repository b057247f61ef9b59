//! Many transfers at once, through io_uring: a pool of rings, each used by one thread at a time and made when it is first
//! needed. Where there can be none (a filter, `io_uring_disabled`, a limit, a forked child), plain system calls do the same.
//! A call returns when none of its transfers is under way any more, whatever happened.

mod sys;

pub use sys::{Read, Readers};
pub(super) use sys::{Rings, Stopped, read_some};

use super::BLOCK;

/// Long reads are split into requests of this size: from here on the disk is as fast as with larger ones, and the first part
/// of a value is there when half of it is.
const REQUEST: usize = 512 << 10;
/// The kernel moves no more than 2 GiB by one call.
const LONGEST: usize = 1 << 30;
/// A piece that is smaller joins the one that follows it in the file.
const SMALL: usize = 64 << 10;
/// No request that was joined is larger: a MiB and a head,
const JOINED: usize = (1 << 20) + SMALL;
/// or has more pieces.
const PIECES: usize = 64;
/// More requests than this are never in flight for one call.
const DEEPEST: u32 = 1024;

/// From so many bytes on, threads of the kernel may hand the requests of a call over: it takes tens of µs to wake one up.
const LONG_FLIGHT: usize = if cfg!(test) { 512 << 10 } else { 3 << 20 };
/// Bytes that they are given at a time.
const HANDED_OVER: usize = if cfg!(test) { 300 << 10 } else { 2 << 20 };
/// Of so many long calls one looks whether that is good for something.
const LOOKED_AT: u32 = if cfg!(test) { 16 } else { 256 };

/// Whether a piece begins in the file where another ends.
fn follows(before: &Read, this: &Read) -> bool {
    this.fd == before.fd && before.offset.checked_add(before.bytes.into()) == Some(this.offset)
}

/// How many pieces from the first on are one request: those that follow each other in the file, as long as they are small.
fn joined(pieces: &[Read]) -> usize {
    let mut bytes = 0;
    let joins = |i: usize, bytes: usize| {
        let size = pieces[i].bytes as usize;
        follows(&pieces[i - 1], &pieces[i]) && size.min(bytes) < SMALL && size + bytes <= JOINED
    };
    (0..pieces.len().min(PIECES))
        .take_while(|i| {
            let one = *i == 0 || joins(*i, bytes);
            bytes += pieces[*i].bytes as usize;
            one
        })
        .count()
}

/// Where a transfer goes on that ended early: direct I/O can start at a block only.
fn go_on_from(done: usize) -> usize {
    done / BLOCK * BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(all: &[(i32, u64, u32)]) -> Vec<Read> {
        all.iter().map(|(fd, offset, bytes)| Read { fd: *fd, address: 0, bytes: *bytes, offset: *offset }).collect()
    }

    #[test]
    fn small_pieces_that_follow_each_other_are_one_request() {
        let large = u32::try_from(2 * SMALL).unwrap_or(0);
        for (all, want) in [
            (vec![(3, 0, 4096)], 1),
            (vec![(3, 0, 4096), (3, 4096, large), (3, 4096 + u64::from(large), large)], 2), // a head joins its value
            (vec![(3, 0, large), (3, u64::from(large), large)], 1),
            (vec![(3, 0, large), (3, u64::from(large), 4096)], 2), // so does a tail
            (vec![(3, 0, 4096), (4, 4096, 4096)], 1),              // another file
            (vec![(3, 0, 4096), (3, 8192, 4096)], 1),              // a gap
            (vec![(3, 0, 4096), (3, 4096, u32::MAX)], 1),          // too large
        ] {
            assert_eq!(joined(&pieces(&all)), want, "{all:?}");
        }
        let many: Vec<_> = (0..200).map(|i| (3, i * 4096, 4096)).collect();
        assert_eq!(joined(&pieces(&many)), PIECES);
    }
}
