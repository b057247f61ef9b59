//! What a transfer waits for before it touches blocks: work of the program on a device.

use crate::base::error::Result;
use crate::cuda::{Device, GivenEvent, GivenStream, Mark, PointerKind, pointer_kind};
use crate::kv::place::arena::Arena;
use std::sync::Arc;

/// What a job waits for before it touches the blocks.
#[derive(Debug, Clone, Copy)]
pub enum After {
    /// Nothing: the memory is the host's, and the program has written it.
    Nothing,
    /// What was on a stream when the job was asked for.
    Stream(GivenStream),
    /// An event, which stays until the job is over.
    Event(GivenEvent),
}

/// The same for one job, checked.
pub enum Wait {
    Nothing,
    Mark(Mark),
    Event(Arc<Device>, GivenEvent),
}

impl Wait {
    /// Memory of a device needs something to wait for.
    pub fn new(after: After, device: Option<&Arc<Device>>, arena: &Arena) -> Result<Self> {
        if let (Some(device), After::Nothing) = (device, after) {
            for memory in arena.groups().iter().filter_map(|group| group.memory()) {
                let kind = pointer_kind(device, memory.base())?;
                if !matches!(kind, PointerKind::Host | PointerKind::RegisteredHost) {
                    crate::bail!(
                        NMC_ERR_INVALID_ARG,
                        "the cache lies in {kind}: say which stream or event the transfer comes after"
                    );
                }
            }
        }
        Ok(match (after, device) {
            (After::Nothing, _) => Self::Nothing,
            (After::Stream(stream), Some(device)) => Self::Mark(Mark::on(device, stream)?),
            (After::Event(event), Some(device)) => Self::Event(Arc::clone(device), event),
            (_, None) => crate::bail!(NMC_ERR_UNSUPPORTED, "the store's world was joined without a CUDA device"),
        })
    }

    /// Blocks until it is over.
    pub fn wait(&self) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Mark(mark) => mark.wait(),
            Self::Event(device, event) => event.wait(device),
        }
    }
}
