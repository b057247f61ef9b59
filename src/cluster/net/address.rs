//! Where somebody listens: `host:port`, or `unix:/path`. What comes from a peer must be a number already, because names are looked up
//! by waiting.

use super::path::Claim;
use super::sys;
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_INVALID_ARG;
use crate::rpc::ParentOnly;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;

/// What the text of a path on this machine begins with.
pub const UNIX: &str = "unix:";

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// On a network.
    Tcp(SocketAddr),
    /// On this machine.
    Unix(PathBuf),
}

impl Address {
    /// From a text that must not make anybody wait: an IP address and a port, or a path.
    pub fn literal(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix(UNIX) {
            if path.is_empty() || path.len() > 100 {
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "\"{text}\" has a path of {} bytes; 1 to 100 are possible",
                    path.len()
                );
            }
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        match text.strip_prefix("tcp://").unwrap_or(text).parse() {
            Ok(address) => Ok(Self::Tcp(address)),
            Err(_) => crate::bail!(NMC_ERR_INVALID_ARG, "\"{text}\" is no IP address with a port, nor unix:PATH"),
        }
    }

    /// The same, or a name and a port: it is looked up, which may take a while.
    pub fn resolve(text: &str, default_port: Option<u16>) -> Result<Self> {
        if let Ok(address) = Self::literal(text) {
            return Ok(address);
        }
        let name = text.strip_prefix("tcp://").unwrap_or(text);
        let with_port = match default_port {
            Some(port) if !name.contains(':') => format!("{name}:{port}"),
            _ => name.to_string(),
        };
        let found = with_port.to_socket_addrs().ok().and_then(|mut all| all.next());
        found.map(Self::Tcp).ok_or_else(|| {
            Error::new(NMC_ERR_INVALID_ARG, format!("\"{text}\" is no HOST:PORT that can be found, nor unix:PATH"))
        })
    }

    /// Whether nobody on another machine can get there.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Begins to connect.
    pub(super) fn connect(&self) -> Result<OwnedFd> {
        match self {
            Self::Tcp(address) => {
                let stream = TcpStream::from(sys::connect_tcp(address)?);
                // Where nobody listens, at a port of those that the system gives to whoever connects, it may give this one: then a
                // socket is connected to itself, and nobody can listen there for as long as it is.
                if stream.local_addr().is_ok_and(|own| own == *address) {
                    crate::bail!(NMC_ERR_UNAVAILABLE, "nobody listens at {address}");
                }
                Ok(stream.into())
            }
            Self::Unix(path) => sys::connect_unix(path).map_err(|e| Error::os("connect", &e).context(path.display())),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// Somebody who can be connected to.
#[derive(Debug)]
pub struct Listener {
    /// Of a path: it is removed at the end, first.
    _claim: Option<Claim>,
    /// A child that lives on must not keep the port of a process that has died.
    socket: ParentOnly,
    /// Where it listens.
    at: Address,
}

impl Listener {
    /// Listens there. Port 0 is any free one.
    pub fn bind(address: &Address) -> Result<Self> {
        let failed = |e: std::io::Error| Error::os("bind", &e).context(address);
        let (claim, socket, at) = match address {
            Address::Tcp(at) => {
                let listener = TcpListener::bind(at).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let at = listener.local_addr().map_err(|e| Error::os("getsockname", &e))?;
                (None, OwnedFd::from(listener), Address::Tcp(at))
            }
            Address::Unix(path) => {
                let (claim, listener) = Claim::listen(path)?;
                listener.set_nonblocking(true).map_err(failed)?;
                (Some(claim), OwnedFd::from(listener), address.clone())
            }
        };
        sys::let_many_wait(&socket);
        Ok(Self { _claim: claim, socket: ParentOnly::new(socket), at })
    }

    /// Where it listens.
    pub fn address(&self) -> Result<Address> {
        Ok(self.at.clone())
    }

    /// Whether whoever connects may be on another machine.
    pub(super) fn is_tcp(&self) -> bool {
        matches!(self.at, Address::Tcp(_))
    }

    /// The next who has connected, if there is one; an error if nobody can at the moment.
    pub(super) fn accept(&self) -> std::io::Result<Option<OwnedFd>> {
        match sys::accept(&self.socket) {
            Ok(socket) => Ok(Some(socket)),
            // Whoever has gone before it was accepted is of no interest.
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_number_with_a_port_or_a_path() {
        assert!(Address::literal("127.0.0.1:80").unwrap().is_local());
        assert!(!Address::literal("tcp://10.0.0.1:80").unwrap().is_local());
        assert!(Address::literal("unix:/tmp/x").unwrap().is_local());
        for bad in ["", "localhost:80", "127.0.0.1", "unix:", ":80", "127.0.0.1:99999"] {
            assert!(Address::literal(bad).is_err(), "{bad}");
        }
        assert!(Address::resolve("localhost", Some(50051)).unwrap().is_local());
        assert!(Address::resolve("localhost", None).is_err());
    }

    /// A process that is stopped takes nobody.
    #[test]
    fn who_connects_to_a_path_where_many_wait_does_not_wait() {
        let dir = tempfile::tempdir().unwrap();
        let at = Address::Unix(dir.path().join("socket"));
        let listener = Listener::bind(&at).unwrap();
        // As if only a few could.
        sys::let_wait(&listener, 1);
        let mut waiting = Vec::new();
        let full = loop {
            match at.connect() {
                Ok(socket) => waiting.push(socket),
                Err(error) => break error,
            }
        };
        assert!(waiting.len() < 10, "{}", waiting.len());
        assert!(full.message.contains("socket"), "{full}");
        // One is taken: the next can.
        assert!(listener.accept().unwrap().is_some());
        drop(at.connect().unwrap());
        drop(listener);
        assert!(at.connect().is_err());
    }

    #[test]
    fn nobody_is_connected_to_itself() {
        // One of the ports that who connects is given, which are the even ones first.
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let mut ends = range.split_whitespace().map(|end| end.parse::<u16>().unwrap());
        let (first, last) = (ends.next().unwrap(), ends.next().unwrap());
        let even = (first..last).map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let free = even.filter(|at| at.port() % 2 == 0).find(|at| TcpListener::bind(at).is_ok()).unwrap();
        let tries = 2 * usize::from(last - first);
        for _ in 0..tries {
            if let Ok(socket) = Address::Tcp(free).connect() {
                assert_ne!(TcpStream::from(socket).local_addr().unwrap(), free);
            }
        }
        // That it would be, in as many tries.
        let own = |socket: TcpStream| socket.local_addr().is_ok_and(|own| own == free);
        let itself = (0..tries).any(|_| TcpStream::connect(free).is_ok_and(own));
        if !itself {
            eprintln!("this system connected nobody to itself in {tries} tries: the test says nothing here");
        }
    }
}
