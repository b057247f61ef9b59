//! Servers and their callers: one packet format, one loop that serves, one way to call. The masters of a world and of its
//! store are [`Handler`]s; they say what a message means, and never wait for anybody. How packets travel is known to
//! `transport` alone: today a Unix socket between processes of one user, which carries descriptors too.

pub mod caller;
pub mod packet;
pub mod server;
mod sys;
mod transport;

pub use server::{Connection, Connections, Handler, Server};
pub use sys::{Event, ParentOnly, drain, own_uid, owned, poll, ready};
pub use transport::{Link, Listener, MAX_FDS, MAX_PACKET, Packet, Sent};

#[cfg(test)]
mod tests;
