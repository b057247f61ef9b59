//! The baselines of the cluster: bytes over one TCP connection with blocking reads and writes, and nothing else. A request has
//! 64 bytes that say how many more come with it, how many are wanted, and at which place of the server's memory, which is
//! shared memory like the heap of a store.

use crate::args::Failure;
use crate::sys::Mapping;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

/// Bytes that a request has at least.
pub const HEAD: usize = 64;
/// What the server reads at once, so that a small request takes one read.
const EARLY: usize = 8 << 10;

/// Bytes of a request and of its answer.
#[derive(Debug, Clone, Copy)]
pub struct Trip {
    /// There.
    pub request: usize,
    /// And back.
    pub answer: usize,
}

fn head(more: usize, answer: usize, at: usize) -> [u8; HEAD] {
    let mut bytes = [0; HEAD];
    for (to, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([more, answer, at]) {
        *to = (number as u64).to_le_bytes();
    }
    bytes
}

/// Serves whoever connects, one after the other, on a thread of its own; the port.
pub fn start(memory_bytes: usize) -> Result<u16, Failure> {
    let os = |e| Failure::os("a plain server", &e);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(os)?;
    let port = listener.local_addr().map_err(os)?.port();
    let serve_all = move || -> std::io::Result<()> {
        let mut memory = Mapping::shared(memory_bytes)?;
        memory.bytes_mut().fill(1);
        loop {
            // One that ends in the middle of something is its client's to report.
            let _ = serve(listener.accept()?.0, memory.bytes_mut());
        }
    };
    std::thread::Builder::new().name("nmc-plain".into()).spawn(serve_all).map_err(os)?;
    Ok(port)
}

fn serve(mut stream: TcpStream, memory: &mut [u8]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut early = [0; EARLY];
    loop {
        let mut have = 0;
        while have < HEAD {
            match stream.read(&mut early[have..])? {
                0 => return Ok(()),
                n => have += n,
            }
        }
        let (words, came) = (early.as_chunks::<8>().0, have - HEAD);
        let number = |at: usize| usize::try_from(u64::from_le_bytes(words[at])).unwrap_or(usize::MAX);
        let (more, answer, at) = (number(0), number(1), number(2));
        let place = memory.get_mut(at..).filter(|place| came <= more && more.max(answer) <= place.len());
        let place = place.ok_or(std::io::ErrorKind::InvalidData)?;
        place[..came].copy_from_slice(&early[HEAD..have]);
        stream.read_exact(&mut place[came..more])?;
        stream.write_all(&place[..answer])?;
    }
}

/// A connection to a plain server.
pub struct Line {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Line {
    /// Connects to one on this machine.
    pub fn connect(port: u16) -> Result<Self, Failure> {
        let connect = || {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let stream = connect().map_err(|e| Failure::os("connecting to a plain server", &e))?;
        Ok(Self { stream, buffer: vec![0; 64 << 10] })
    }

    /// A request and its answer, each in one piece.
    pub fn trip(&mut self, trip: Trip) -> Result<(), Failure> {
        let request = trip.request.max(HEAD);
        let (there, back) = self.buffer.split_at_mut(request);
        there[..HEAD].copy_from_slice(&head(request - HEAD, trip.answer, 0));
        let done = self.stream.write_all(there).and_then(|()| self.stream.read_exact(&mut back[..trip.answer]));
        done.map_err(failed)
    }

    /// Reads what is at a place of the server's memory.
    pub fn get(&mut self, at: usize, to: &mut [u8]) -> Result<(), Failure> {
        let asked = self.stream.write_all(&head(0, to.len(), at));
        asked.and_then(|()| self.stream.read_exact(to)).map_err(failed)
    }

    /// Writes to a place of the server's memory, and waits until it is there.
    pub fn put(&mut self, at: usize, from: &[u8]) -> Result<(), Failure> {
        let sent = self.stream.write_all(&head(from.len(), HEAD, at)).and_then(|()| self.stream.write_all(from));
        sent.and_then(|()| self.stream.read_exact(&mut [0; HEAD])).map_err(failed)
    }
}

fn failed(cause: std::io::Error) -> Failure {
    Failure::os("talking to a plain server", &cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_at_a_place_is_read_from_there() -> Result<(), String> {
        let told = |failure: Failure| failure.message;
        let mut line = start(1 << 20).and_then(Line::connect).map_err(told)?;
        // Less than comes in one read, and more. A trip leaves its bytes at the beginning.
        for bytes in [3, EARLY * 5] {
            let value: Vec<u8> = (0..=255).cycle().take(bytes).collect();
            let mut to = vec![0; bytes];
            line.put(4096, &value).map_err(told)?;
            line.trip(Trip { request: 200, answer: 100 }).map_err(told)?;
            line.get(4096, &mut to).map_err(told)?;
            assert_eq!(to, value);
        }
        assert!(line.get(1 << 20, &mut [0; 1]).is_err(), "there is no such place");
        Ok(())
    }
}
