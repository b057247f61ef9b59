//! How packets travel: a [`Listener`] gives [`Link`]s, and a link takes and gives whole packets without waiting. What is below
//! is a Unix packet socket; a stream, over TCP say, would be a second kind of link that puts packets together itself, and
//! carries no descriptors. Nobody outside of this folder would notice.

mod sys;

use super::sys::ParentOnly;
use crate::base::Deadline;
use crate::base::error::Result;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Largest packet that is sent or accepted.
pub const MAX_PACKET: usize = 64 << 10;
/// Most descriptors in one packet: the kernel's own limit.
pub const MAX_FDS: usize = 253;

/// What a try to receive gave.
#[derive(Debug)]
pub enum Packet {
    /// The length of the packet in the buffer, and the descriptors that came with it.
    Data(usize, Vec<OwnedFd>),
    /// Nothing there yet.
    Empty,
    /// The other end is closed.
    End,
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way.
    Yes,
    /// There is no room at the moment: the other end has not read, or too many descriptors are in flight.
    Full,
    /// The other end has closed.
    Closed,
}

/// What a caller got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The length of the answer in the buffer.
    Packet(usize),
    /// Nothing came in time.
    Late,
    /// The other end is closed.
    End,
}

/// Where connections arrive.
#[derive(Debug)]
pub struct Listener(ParentOnly);

impl Listener {
    /// Listens at `path`, where nothing may be.
    pub fn bind(path: &Path) -> Result<Self> {
        sys::listen(path).map(Self)
    }

    /// Takes a waiting connection; `None` when there is none.
    pub fn accept(&self) -> Result<Option<Link>> {
        Ok(sys::accept(self.0.as_fd())?.map(|fd| Link(ParentOnly::new(fd))))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection. Dropping it ends it for the other side too, whoever else has a copy of the descriptor.
#[derive(Debug)]
pub struct Link(ParentOnly);

impl Link {
    /// Connects to the listener at `path`; `None` when nobody is there (yet).
    pub fn connect(path: &Path) -> Result<Option<Self>> {
        Ok(sys::connect(path)?.map(|fd| Self(ParentOnly::new(fd))))
    }

    /// User id of the process at the other end, as the kernel recorded it.
    pub fn peer_uid(&self) -> Result<u32> {
        sys::peer_uid(self.as_fd())
    }

    /// Sends one packet with descriptors, without waiting.
    pub fn send(&mut self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Sent> {
        if packet.len() > MAX_PACKET || fds.len() > MAX_FDS {
            crate::bail!(NMC_ERR_INTERNAL, "a packet of {} bytes and {} descriptors", packet.len(), fds.len());
        }
        if fds.is_empty() { sys::send_plain(self.as_fd(), packet) } else { sys::send(self.as_fd(), packet, fds) }
    }

    /// Receives one packet into `buffer`, without waiting. Descriptors that come with a bad packet are closed.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Packet> {
        sys::receive(self.as_fd(), buffer)
    }

    /// Receives an answer that has no descriptors, waiting until `deadline` or until `go_on` fails.
    pub(super) fn await_answer(
        &mut self,
        buffer: &mut [u8],
        deadline: &Deadline,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<Answer> {
        // How often `go_on` is asked.
        const LOOK: Duration = Duration::from_millis(20);
        // For how long a caller looks for an answer again and again, letting others run in between, before it sleeps. An
        // answer takes about 15 us, of which waking the sleeper would be a third.
        const EAGER: Duration = Duration::from_micros(30);
        let eager_until = Instant::now() + EAGER;
        loop {
            match sys::receive_plain(self.as_fd(), buffer)? {
                Answer::Late if deadline.passed() => return Ok(Answer::Late),
                Answer::Late if Instant::now() < eager_until => std::thread::yield_now(),
                Answer::Late => {
                    go_on()?;
                    sys::wait(self.as_fd(), deadline.left().min(LOOK));
                }
                done => return Ok(done),
            }
        }
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        sys::has_ended(self.as_fd())
    }

    /// A way to wait for the end of the connection while others use it.
    #[must_use]
    pub fn end(&self) -> Option<LinkEnd> {
        self.as_fd().try_clone_to_owned().ok().map(LinkEnd)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        sys::shut_down(self.0.as_fd());
    }
}

/// The end of a connection, to be waited for.
#[derive(Debug)]
pub struct LinkEnd(OwnedFd);

impl LinkEnd {
    /// Waits until the connection has ended; false if `nudge` became readable or `limit` passed first.
    #[must_use]
    pub fn wait(&self, nudge: BorrowedFd<'_>, limit: Duration) -> bool {
        sys::wait_for_end(self.0.as_fd(), nudge, limit)
    }
}
