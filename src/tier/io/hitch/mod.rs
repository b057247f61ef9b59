//! What the system may make of a request: less than it was asked for, or nothing at all. A test chooses one, counted on its
//! thread; elsewhere nothing of this is there.

#[cfg(test)]
mod sys;

use std::io;

/// Who makes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A plain system call.
    Call,
    /// A ring.
    Ring,
}

/// What happens to a request, if anything does.
#[derive(Default)]
pub struct Met {
    #[cfg(test)]
    says: Option<Result<usize, i32>>,
}

#[cfg(not(test))]
mod here {
    use super::{By, Met, io};

    pub fn request(_: By, _: &mut [libc::iovec]) -> Met {
        Met::default()
    }

    pub fn call(call: impl FnOnce() -> io::Result<i32>) -> io::Result<i32> {
        call()
    }

    pub fn is_full() -> bool {
        false
    }

    pub fn enter(enter: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        enter()
    }

    impl Met {
        pub fn moved(&self, moved: io::Result<usize>) -> io::Result<usize> {
            moved
        }

        pub fn result(&self, result: i32) -> i32 {
            result
        }
    }
}

#[cfg(test)]
mod here {
    use super::{By, Met, io};
    use crate::tier::io::BLOCK;
    use std::cell::Cell;

    /// What a test chooses.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Hitch {
        /// A request, or any other call, ends with this error and has moved nothing.
        Fails(i32),
        /// A request moves so many bytes less, but one block at least.
        Short(usize),
        /// The same, and it says that it moved all: as if whoever asked did not look.
        Unseen(usize),
        /// There is no room for a request in the queue of a ring.
        Full,
        /// A ring does not hand over what is in its queue.
        Enter(i32),
    }

    #[derive(Clone, Copy)]
    struct Chosen {
        hitch: Hitch,
        /// So many pass by first, and so many are met then.
        before: u64,
        times: u64,
        met: u64,
    }

    thread_local! {
        static CHOSEN: Cell<Option<Chosen>> = const { Cell::new(None) };
    }

    /// Runs `body`; of all that may meet this hitch on this thread, `times` do, after the first `before`. Gives how many did.
    pub fn with<R>(hitch: Hitch, before: u64, times: u64, body: impl FnOnce() -> R) -> (R, u64) {
        CHOSEN.set(Some(Chosen { hitch, before, times, met: 0 }));
        let done = body();
        (done, CHOSEN.take().map_or(0, |chosen| chosen.met))
    }

    fn is_met(may: impl FnOnce(Hitch) -> bool) -> Option<Hitch> {
        let mut chosen = CHOSEN.get().filter(|chosen| may(chosen.hitch))?;
        let met = chosen.before == 0 && chosen.met < chosen.times;
        (chosen.before, chosen.met) = (chosen.before.saturating_sub(1), chosen.met + u64::from(met));
        CHOSEN.set(Some(chosen));
        met.then_some(chosen.hitch)
    }

    pub fn request(by: By, list: &mut [libc::iovec]) -> Met {
        let total: usize = list.iter().map(|piece| piece.iov_len).sum();
        let may = |hitch| match hitch {
            // A call that may wait is never told to come again.
            Hitch::Fails(code) => by == By::Ring || code == libc::EINTR,
            Hitch::Short(_) | Hitch::Unseen(_) => total > BLOCK,
            Hitch::Full | Hitch::Enter(_) => false,
        };
        let Some(hitch) = is_met(may) else { return Met::default() };
        let (left, says) = match hitch {
            Hitch::Short(less) => ((total.saturating_sub(less)).max(BLOCK), None),
            Hitch::Unseen(less) => ((total.saturating_sub(less)).max(BLOCK), Some(Ok(total))),
            Hitch::Fails(code) | Hitch::Enter(code) => (0, Some(Err(code))),
            Hitch::Full => return Met::default(),
        };
        let mut room = left;
        for piece in list {
            piece.iov_len = piece.iov_len.min(room);
            room -= piece.iov_len;
        }
        Met { says }
    }

    pub fn call(call: impl FnOnce() -> io::Result<i32>) -> io::Result<i32> {
        match is_met(|hitch| hitch == Hitch::Fails(libc::EINTR)) {
            Some(_) => Err(io::ErrorKind::Interrupted.into()),
            None => call(),
        }
    }

    pub fn is_full() -> bool {
        is_met(|hitch| hitch == Hitch::Full).is_some()
    }

    pub fn enter(enter: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        match is_met(|hitch| matches!(hitch, Hitch::Enter(_))) {
            Some(Hitch::Enter(code)) => Err(io::Error::from_raw_os_error(code)),
            _ => enter(),
        }
    }

    impl Met {
        pub fn moved(&self, moved: io::Result<usize>) -> io::Result<usize> {
            self.says.map_or(moved, |says| says.map_err(io::Error::from_raw_os_error))
        }

        pub fn result(&self, result: i32) -> i32 {
            let code = |says: Result<usize, i32>| says.map_or_else(|code| -code, |all| i32::try_from(all).unwrap_or(0));
            self.says.map_or(result, code)
        }
    }
}

#[cfg(test)]
pub use here::{Hitch, with};
/// Points of the code: a request is about to be made of this memory; any other call; a place in a queue; what hands it over.
pub use here::{call, enter, is_full, request};

#[cfg(test)]
mod tests;
