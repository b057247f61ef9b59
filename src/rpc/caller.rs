//! The calling side: connects to a server of the same user, waits for its messages, and calls it with a deadline. Whatever
//! the server does, the caller returns by its own time.

use super::packet::Service;
use super::sys::own_uid;
use super::transport::{Link, Packet, Sent};
use crate::base::Deadline;
use crate::base::error::Result;
use std::os::fd::OwnedFd;
use std::path::Path;

pub use super::transport::{Answer, LinkEnd};

/// Connects to the service at `path` and makes sure that it runs as the same user; `None` when nobody serves.
pub fn connect(path: &Path, service: &Service) -> Result<Option<Link>> {
    let Some(link) = Link::connect(path)? else { return Ok(None) };
    let (theirs, ours) = (link.peer_uid()?, own_uid());
    if theirs != ours {
        crate::bail!(
            NMC_ERR_PERMISSION,
            "{} at {} runs as user {theirs}, this process as user {ours}",
            service.name,
            path.display()
        );
    }
    Ok(Some(link))
}

/// The next packet on a connection, and its descriptors. `wait` sleeps until there may be one, and tells whether to go on;
/// `None` if it does not, or the connection has ended.
pub fn next(
    link: &mut Link,
    buffer: &mut [u8],
    mut wait: impl FnMut(&Link) -> bool,
) -> Result<Option<(usize, Vec<OwnedFd>)>> {
    loop {
        match link.receive(buffer)? {
            Packet::Data(len, fds) => return Ok(Some((len, fds))),
            Packet::End => return Ok(None),
            Packet::Empty if wait(link) => {}
            Packet::Empty => return Ok(None),
        }
    }
}

/// Sends a call and waits for the answer, which has no descriptors, until `deadline` or until `go_on`, which is asked now and
/// then, fails. The fast way: nothing is allocated.
pub fn call(
    link: &mut Link,
    packet: &[u8],
    buffer: &mut [u8],
    deadline: &Deadline,
    go_on: impl Fn() -> Result<()>,
) -> Result<Answer> {
    match link.send(packet, &[])? {
        Sent::Yes => link.await_answer(buffer, deadline, go_on),
        Sent::Full | Sent::Closed => Ok(Answer::End),
    }
}
