//! The steps of a transfer, at each of which a test can hold it, do something to it, or make it fail there. Without a
//! watcher a step is one load.

use crate::base::error::Result;
use std::sync::OnceLock;

/// Where a transfer is. Parts are those of one job: blocks, or layers of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Its blocks are held; nobody can ask for it yet. In the thread that asked.
    Held,
    /// A thread of the link can take it, and may have. In the thread that asked.
    Queued,
    /// A part was taken, and nothing of it is done.
    Taken(usize),
    /// What the job comes after is over.
    Waited(usize),
    /// The part is copied, and does not count yet.
    Copied(usize),
    /// The part counts.
    Counted(usize),
    /// No part is left or in work.
    Ending,
    /// The sequence knows what came.
    Landed,
    /// The blocks are no longer held; nobody knows yet that it is over.
    Released,
}

/// Is told the number of the transfer and the step. An error makes the part fail in which the step lies; at other steps it
/// means nothing.
pub type Watcher = Box<dyn Fn(u64, Step) -> Result<()> + Send + Sync>;

/// Who watches the steps of a link, if anybody.
#[derive(Default)]
pub(super) struct Steps(OnceLock<Watcher>);

impl Steps {
    /// False if somebody watches already.
    pub fn watch(&self, watcher: Watcher) -> bool {
        self.0.set(watcher).is_ok()
    }

    /// Transfer `number` comes to a step that lies in a part.
    #[inline]
    pub fn part(&self, number: u64, step: Step) -> Result<()> {
        self.0.get().map_or(Ok(()), |watcher| watcher(number, step))
    }

    /// Transfer `number` comes to a step.
    #[inline]
    pub fn reach(&self, number: u64, step: Step) {
        let _means_nothing = self.part(number, step);
    }
}
