//! A rank's presence in its world. The program's handle and everything that was made from it (stores, KV caches in the
//! heap, expert-parallel groups) hold it together; only when the last of them is gone does the rank leave and can be given
//! to another process. So nobody ever reads or writes for a rank that somebody else has.

use super::master::Master;
use super::service;
use super::shared::{Shared, departed};
use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::status::NMC_ERR_BUSY;
use crate::cuda::HostRegistration;
use crate::layout::world::Farewell;
use crate::rpc::Link;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// See the module.
pub struct Presence {
    /// Dropped before the memory that it registers.
    pub(super) words_registration: Option<Arc<HostRegistration>>,
    pub(super) shared: Arc<Shared>,
    /// Writing end of the life pipe; `None` in a local world and when it has been closed.
    life: Mutex<Option<OwnedFd>>,
    /// Barriers that this rank has passed.
    pub(super) passed: Mutex<u64>,
    thread: Mutex<Option<JoinHandle<()>>>,
    master: Mutex<Option<Master>>,
    holders: Mutex<Holders>,
}

/// What was made from a rank and is still there.
#[derive(Default)]
struct Holders {
    /// How many there are of each kind.
    kinds: BTreeMap<&'static str, usize>,
    /// The rank is leaving or has left: nothing can be made from it.
    leaving: bool,
}

impl Presence {
    /// Begins with the thread that serves the rank, if it has a connection to a master.
    pub fn begin(
        shared: Shared,
        words_registration: Option<Arc<HostRegistration>>,
        life: Option<OwnedFd>,
        service: Option<(Link, Option<u32>)>,
        master: Option<Master>,
    ) -> Result<Self> {
        let shared = Arc::new(shared);
        let passed = shared.resume_barriers()?;
        let thread = service.map(|(link, cpu)| service::start(Arc::clone(&shared), link, cpu)).transpose()?;
        Ok(Self {
            shared,
            words_registration,
            life: Mutex::new(life),
            passed: Mutex::new(passed),
            thread: Mutex::new(thread),
            master: Mutex::new(master),
            holders: Mutex::default(),
        })
    }

    /// Something of kind `what` is made from the rank.
    pub fn enter(&self, what: &'static str) -> Result<()> {
        let mut holders = self.holders.lock();
        if holders.leaving {
            return Err(departed());
        }
        *holders.kinds.entry(what).or_default() += 1;
        Ok(())
    }

    /// A copy of what has entered already.
    pub fn enter_again(&self, what: &'static str) {
        *self.holders.lock().kinds.entry(what).or_default() += 1;
    }

    /// What has entered is gone.
    pub fn exit(&self, what: &'static str) {
        if let Some(n) = self.holders.lock().kinds.get_mut(what) {
            *n = n.saturating_sub(1);
        }
    }

    fn kinds(holders: &Holders) -> Vec<&'static str> {
        holders.kinds.iter().filter(|(_, n)| **n > 0).map(|(what, _)| *what).collect()
    }

    /// Kinds of what was made from the rank and is still there.
    pub fn held_by(&self) -> Vec<&'static str> {
        Self::kinds(&self.holders.lock())
    }

    /// Leaves in order: waits for this process's GPU work, then tells the others. Idempotent. Refuses while something that
    /// was made from the rank is there: it could go on reading and storing for whoever takes the rank.
    pub fn finalize(&self) -> Result<()> {
        if self.shared.departed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut holders = self.holders.lock();
        let kinds = Self::kinds(&holders);
        if !kinds.is_empty() {
            let text = format!("rank {} cannot leave: destroy its {} first", self.shared.rank, kinds.join(" and its "));
            return Err(Error::new(NMC_ERR_BUSY, text));
        }
        holders.leaving = true;
        drop(holders);
        if let Some(device) = &self.shared.device
            && let Err(error) = device.synchronize()
        {
            self.holders.lock().leaving = false;
            return Err(error);
        }
        self.depart(Farewell::Left);
        Ok(())
    }

    /// Breaks off at once: others see the rank as dying until the last of its holders is gone.
    pub fn abort(&self) {
        self.shared.cancel();
        self.holders.lock().leaving = true;
        self.depart(Farewell::Aborted);
    }

    fn depart(&self, how: Farewell) {
        if !self.shared.departed.swap(true, Ordering::SeqCst) {
            if how == Farewell::Left {
                // A thread at a barrier gives up soon; it must not arrive for whoever takes the rank.
                self.shared.ring();
                drop(self.passed.lock());
            }
            if how == Farewell::Left
                && let Some(locks) = &self.shared.locks
            {
                // Before the word: whoever takes the rank locks its byte.
                locks.release();
            }
            self.shared.words().say_farewell(self.shared.rank, self.shared.generation, how);
            if how == Farewell::Left {
                // The order matters: who sees the end of the pipe finds the word.
                self.life.lock().take();
            }
            self.shared.ring();
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Err(error) = self.finalize() {
            log::emit(log::WARN, || format!("world: leaving: {error}"));
            self.depart(Farewell::Aborted);
        }
        self.shared.stop.signal();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        if let Some(locks) = &self.shared.locks {
            locks.release();
        }
        let hosted = self.master.lock().take();
        if hosted.is_none() && self.shared.control.is_some() {
            // A master that has ended left the directory to its ranks. The last to leave cleans up, if nobody serves.
            self.shared.place.sweep();
        }
        drop(hosted);
        self.life.lock().take();
        let (words, rank, generation) = (self.shared.words(), self.shared.rank, self.shared.generation);
        if self.shared.control.is_none() && words.farewell(rank, generation) == Farewell::Aborted {
            // Nobody watches the ranks of a local world: that an aborted one has ended is said.
            words.say_farewell(rank, generation, Farewell::Ended);
        }
    }
}
