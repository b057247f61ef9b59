//! The plans that a client has open: what it may store to, and publish.

use crate::base::error::Result;
use crate::base::memory;
use crate::store::types::Opened;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};

/// Names of plans are random already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    fn write_u64(&mut self, name: u64) {
        self.0 = name;
    }
}

/// A plan, and what it was asked for: the header says it too, but others can reach that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The plan.
    pub plan: Opened,
    /// Hash of the key.
    pub key_hash: u64,
    /// Bytes of the value.
    pub bytes: u64,
    /// What stands for its metadata in the checksums.
    pub metadata: u64,
    /// Where the program was told to store them, see `Shape::trace`; 0 if it was not told.
    pub trace: u64,
}

/// The plans that a client has open, by their names.
#[derive(Default)]
pub struct Plans {
    open: Mutex<HashMap<u64, Terms, BuildHasherDefault<AsItIs>>>,
    /// The next one needs memory.
    full: AtomicBool,
}

impl Plans {
    /// Makes sure, as long as no other thread is faster, that `n` plans can be noted: before the master is asked for them.
    #[inline]
    pub fn make_room(&self, n: usize) -> Result<()> {
        if n <= 1 && !self.full.load(Ordering::Relaxed) {
            return Ok(());
        }
        memory::reserve_map(&mut self.open.lock(), n)?;
        self.full.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Notes a plan, and what it was asked for; false if there is no memory for it, and it has to be given up.
    pub fn add(&self, terms: Terms) -> bool {
        let mut open = self.open.lock();
        let room = open.try_reserve(1).is_ok();
        if room {
            open.insert(terms.plan.plan_id, terms);
        }
        if open.len() == open.capacity() {
            self.full.store(true, Ordering::Relaxed);
        }
        room
    }

    /// Forgets a plan; true if it was there.
    pub fn remove(&self, plan_id: u64) -> bool {
        self.open.lock().remove(&plan_id).is_some()
    }

    /// The plan of this name.
    #[must_use]
    pub fn get(&self, plan_id: u64) -> Option<Opened> {
        self.terms(plan_id).map(|terms| terms.plan)
    }

    /// The same with what it was asked for.
    #[must_use]
    pub fn terms(&self, plan_id: u64) -> Option<Terms> {
        self.open.lock().get(&plan_id).copied()
    }

    /// Notes where the program was told to store the value.
    pub fn set_trace(&self, plan_id: u64, trace: u64) {
        if let Some(terms) = self.open.lock().get_mut(&plan_id) {
            terms.trace = trace;
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// Forgets the plans for which `over` says so.
    pub fn sweep(&self, over: impl Fn(&Opened) -> bool) {
        self.open.lock().retain(|_, terms| !over(&terms.plan));
    }

    /// Epochs of all plans.
    pub fn epochs(&self) -> Result<Vec<u64>> {
        memory::collect(self.open.lock().values().map(|terms| terms.plan.epoch))
    }
}
