//! The bytes of a connection, as they are or encrypted. Nothing waits.

use super::secure::{self, MOST_WAITING};
use super::sys::{self, Moved, Span};
use crate::base::error::Error;
use crate::rpc::ParentOnly;
use rustls::Connection;
use std::io::{BufRead as _, ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Bytes of a value after which others have their turn.
const MOST_AT_ONCE: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub struct Channel {
    socket: ParentOnly,
    /// What encrypts, if something does.
    tls: Option<Box<Connection>>,
    /// Why it has ended, where that is known.
    why: Option<Error>,
    /// Whether there was no more than what came last.
    dry: bool,
    /// Bytes that the socket has taken.
    gone: u64,
}

impl Channel {
    /// Over a socket that does not block.
    #[must_use]
    pub fn new(socket: OwnedFd, mut tls: Option<Box<Connection>>) -> Self {
        if let Some(tls) = &mut tls {
            tls.set_buffer_limit(Some(MOST_WAITING));
        }
        // A child that lives on must not keep the connection of a process that has died.
        Self { socket: ParentOnly::new(socket), tls, why: None, dry: false, gone: 0 }
    }

    /// Whether its bytes are encrypted.
    pub(super) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether both ends do not know yet whom they speak with.
    pub(super) fn is_beginning(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Why it has ended, once.
    pub(super) fn why(&mut self) -> Option<Error> {
        self.why.take()
    }

    /// Whether something is to be sent that was taken from others already, or belongs to TLS itself.
    pub(super) fn has_waiting(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Bytes that the socket has taken, as they are on the way.
    pub(super) fn gone(&self) -> u64 {
        self.gone
    }

    /// Bytes that wait in it, at most.
    pub(super) fn waiting(&self) -> usize {
        if self.has_waiting() { MOST_WAITING } else { 0 }
    }

    /// Whether the socket tells of all that comes after the bytes that were received last, so many where there was room for as many.
    pub(super) fn is_dry(&self, received: usize, room: usize) -> bool {
        if self.tls.is_some() { self.dry } else { received < room }
    }

    /// Sends what waits. False if the connection has ended.
    pub(super) fn push(&mut self) -> bool {
        let Some(tls) = &mut self.tls else { return true };
        let mut socket = Socket(self.socket.as_fd());
        while tls.wants_write() {
            match tls.write_tls(&mut socket) {
                Ok(0) => return false,
                Ok(n) => self.gone += n as u64,
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Sends what these hold, in their order.
    pub(super) fn send(&mut self, spans: impl Iterator<Item = Span>) -> Moved {
        // What waits already makes room as it goes.
        if !self.push() {
            return Moved::Ended;
        }
        let Some(tls) = &mut self.tls else {
            let sent = sys::send(self.socket.as_fd(), spans);
            if let Moved::Bytes(n) = sent {
                self.gone += n as u64;
            }
            return sent;
        };
        // TLS would keep it, and send it whenever a handshake ends, also if nobody wants that any more.
        if tls.is_handshaking() {
            return Moved::Later;
        }
        let n = sys::read_all(spans, |list| tls.writer().write_vectored(list)).unwrap_or(0);
        match (self.push(), n) {
            (false, _) => Moved::Ended,
            (true, 0) => Moved::Later,
            (true, n) => Moved::Bytes(n),
        }
    }

    /// Receives so many bytes at most, behind what a buffer holds and up to its capacity.
    pub(super) fn receive(&mut self, to: &mut Vec<u8>, most: usize) -> Moved {
        if self.tls.is_none() {
            return sys::receive(self.socket.as_fd(), to, most);
        }
        let most = most.min(to.capacity() - to.len());
        self.pull(most, |bytes| to.extend_from_slice(bytes))
    }

    /// Receives into spans, in their order.
    pub(super) fn receive_into(&mut self, to: &[Span]) -> Moved {
        if self.tls.is_none() {
            return sys::receive_into(self.socket.as_fd(), to);
        }
        let mut spans = to.iter().copied();
        let mut into = spans.next();
        self.pull(to.iter().map(Span::len).sum::<usize>().min(MOST_AT_ONCE), |mut bytes| {
            while let Some(span) = into.filter(|_| !bytes.is_empty()) {
                let step = bytes.len().min(span.len());
                span.store(&bytes[..step]);
                bytes = &bytes[step..];
                into = if step < span.len() { Some(span.behind(step)) } else { spans.next() };
            }
        })
    }

    /// Gives so many bytes at most to `store`.
    fn pull(&mut self, most: usize, mut store: impl FnMut(&[u8])) -> Moved {
        self.dry = true;
        let Some(tls) = &mut self.tls else { return Moved::Ended };
        let mut socket = Socket(self.socket.as_fd());
        let mut n = 0;
        let end = loop {
            let mut reader = tls.reader();
            match reader.fill_buf() {
                Ok([]) => break Moved::Ended,
                Ok(bytes) => {
                    let step = bytes.len().min(most - n);
                    store(&bytes[..step]);
                    reader.consume(step);
                    n += step;
                    if n == most {
                        self.dry = false;
                        break Moved::Later;
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break Moved::Ended,
            }
            match tls.read_tls(&mut socket) {
                Ok(0) => break Moved::Ended,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Moved::Later,
                Err(_) => break Moved::Ended,
            }
            let begins = tls.is_handshaking();
            if let Err(error) = tls.process_new_packets() {
                self.why = secure::why(&error, begins);
                break Moved::Ended;
            }
        };
        // A handshake goes on with what is received; what it has to say of its end, too. Whether that is taken shows when more is sent.
        let _ = self.push();
        match n {
            0 => end,
            // An end is told the next time.
            n => Moved::Bytes(n),
        }
    }

    /// Nothing more is sent: the other end reads what was, and ends it.
    pub(super) fn shut_sending(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            self.push();
        }
        sys::shut_sending(&self.socket);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// What TLS reads from and writes to.
struct Socket<'a>(BorrowedFd<'a>);

fn io(moved: Moved) -> std::io::Result<usize> {
    match moved {
        Moved::Bytes(n) => Ok(n),
        Moved::Later => Err(ErrorKind::WouldBlock.into()),
        Moved::Ended => Ok(0),
    }
}

impl Read for Socket<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        io(sys::receive_into(self.0, &[sys::writing(to)]))
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        io(sys::send(self.0, std::iter::once(sys::reading(bytes))))
    }

    fn write_vectored(&mut self, list: &[IoSlice<'_>]) -> std::io::Result<usize> {
        io(sys::send(self.0, list.iter().map(|bytes| sys::reading(bytes))))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
