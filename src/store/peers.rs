//! Where a cluster meets the store: what a handle asks others for when neither memory nor disk has a key.

use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::store::copy::Slice;

/// A value that is to be read from elsewhere.
#[derive(Debug)]
pub struct PeerRead<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Host memory that it goes to, one after the other. What is larger is not read.
    pub to: &'a [Slice],
    /// Bytes of the value, also of one that did not fit; `None` if nobody has it.
    pub outcome: Result<Option<u64>>,
}

/// Others that may have what this store does not. Whoever asks them several times for one call of a program has one time for all of that.
pub trait Peers: Send + Sync {
    /// When a call that begins now is to be over.
    fn begin(&self) -> Result<Deadline>;

    /// Reads values, all of them together.
    fn read(&self, ask: &Ask<'_>, reads: &mut [PeerRead<'_>]);

    /// Whether somebody has each of these keys.
    fn find(&self, ask: &Ask<'_>, keys: &[&[u8]]) -> Result<Vec<bool>>;

    /// What was said about a value when it was put; `None` if nobody has it.
    fn metadata(&self, ask: &Ask<'_>, key: &[u8]) -> Result<Option<Vec<u8>>>;
}

/// How peers are asked.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// Name of the namespace of the keys.
    pub space: &'a [u8],
    /// It is over then.
    pub until: &'a Deadline,
    /// Or soon after this says so.
    pub stop: &'a dyn Fn() -> bool,
}
