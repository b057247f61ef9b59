//! Connections to the masters of a list, made when something is to be said.

use super::is_of_process;
use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::net::{Address, Net};
use crate::cluster::types::{Millis, Peer};

/// After so long a master is tried again that could not be reached.
const RETRY_MS: Millis = 100;

struct Remote {
    address: Address,
    peer: Option<Peer>,
    retry_at: Millis,
    /// It has said last that it does not talk to this process: for want of the token, or of a common version.
    refuses: bool,
}

/// See the module.
pub(super) struct Masters(Vec<Remote>);

impl Masters {
    pub(super) fn new(addresses: &[Address]) -> Result<Self> {
        let remote = |address: &Address| Remote { address: address.clone(), peer: None, retry_at: 0, refuses: false };
        memory::collect(addresses.iter().map(remote)).map(Self)
    }

    /// The connection to one of them, which may only begin to be one; none if it could not be reached a moment ago. An error if this process can
    /// make none.
    pub(super) fn link(&mut self, at: usize, net: &mut Net, now: Millis) -> Result<Option<Peer>> {
        let Some(remote) = self.0.get_mut(at) else { return Ok(None) };
        if remote.peer.is_none() && now >= remote.retry_at {
            match net.connect(&remote.address) {
                Err(error) if is_of_process(&error) => return Err(error),
                connected => (remote.peer, remote.retry_at) = (connected.ok(), now + RETRY_MS),
            }
        }
        Ok(remote.peer)
    }

    /// All connections.
    pub(super) fn links(&self) -> Vec<Peer> {
        self.0.iter().filter_map(|remote| remote.peer).collect()
    }

    /// Which master somebody is.
    pub(super) fn which(&self, peer: Peer) -> Option<usize> {
        self.0.iter().position(|remote| remote.peer == Some(peer))
    }

    /// A connection has ended.
    pub(super) fn closed(&mut self, peer: Peer) {
        if let Some(at) = self.which(peer) {
            self.0[at].peer = None;
        }
    }

    /// A connection was ended here: the next may be made at once.
    pub(super) fn given_up(&mut self, peer: Peer) {
        if let Some(at) = self.which(peer) {
            (self.0[at].peer, self.0[at].retry_at) = (None, 0);
        }
    }

    /// A master says something: whether it refuses to talk. Gives whether all of them do.
    pub(super) fn refuses(&mut self, at: usize, refuses: bool) -> bool {
        if let Some(remote) = self.0.get_mut(at) {
            remote.refuses = refuses;
        }
        refuses && self.0.iter().all(|remote| remote.refuses)
    }
}
