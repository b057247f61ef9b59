//! Proves the paths between all ranks on the machine at hand: every rank writes a pattern into every heap,
//! publishes it with a system-scope release, waits for what the others publish, and compares every byte. On CUDA
//! heaps all of it is done by kernels.

mod gpu;
mod sys;

use super::world::World;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_PEER_LOST, NMC_ERR_TIMEOUT};
use crate::layout::device::pattern_u64 as pattern;
use crate::mem::HeapKind;
use gpu::OnDevice;
use std::sync::atomic::Ordering;
use std::time::Duration;
use sys::Words;

/// Most bytes that a rank writes into each heap.
const MOST: u64 = 1 << 20;

impl World {
    /// Collective. Overwrites the heaps up to `world_size` MiB and the first `world_size` words of every rank.
    pub fn selftest(&self, seed: u64, deadline: &Deadline) -> Result<()> {
        let size = self.params().world_size;
        if self.params().words_per_rank < size {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "the self-test needs {size} words per rank, the world has {}",
                self.params().words_per_rank
            );
        }
        let bytes = (self.params().heap_bytes / u64::from(size)).min(MOST) & !15;
        if bytes == 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "the self-test needs heaps of at least {} bytes", 16 * size);
        }
        self.shared().check_present()?;
        for source in 0..size {
            self.word(self.rank(), source)?.0.store(0, Ordering::Release);
        }
        // A self-test that failed may have left ranks at different barriers. They meet again where the count, which all
        // share, is a multiple of four. It only grows, so as a flag it tells this run from every earlier one.
        let flag = loop {
            self.barrier(deadline)?;
            let count = *self.presence.passed.lock();
            if count.is_multiple_of(4) {
                break count;
            }
        };
        let run = Run { bytes, flag, seed: pattern(seed, 0, 0, flag) };
        // Every rank passes the same barriers, whatever happens to it in between, so that nobody is left behind. Ranks of
        // one process share hardware queues: the first sees to it that no kernel waits before all writers are enqueued.
        let sent = self.send(&run);
        self.barrier(deadline)?;
        let checked = sent.and_then(|kept| self.receive(kept, &run, deadline));
        let met = self.barrier(deadline);
        checked.and(met)
    }

    /// Writes into every heap and publishes. Returns what the check on a device needs.
    fn send(&self, run: &Run) -> Result<Option<OnDevice>> {
        if self.params().heap_kind == HeapKind::Cuda.code() {
            return self.send_from_device(run).map(Some);
        }
        let own = self.rank();
        for target in 0..self.params().world_size {
            let words = Words { rank: target, offset: u64::from(own) * run.bytes, bytes: run.bytes };
            sys::fill_words(self, words, |i| pattern(run.seed, own, target, i))?;
            self.word(target, own)?.0.store(run.flag, Ordering::Release);
        }
        Ok(None)
    }

    /// Waits for what the others publish and compares it.
    fn receive(&self, device: Option<OnDevice>, run: &Run, deadline: &Deadline) -> Result<()> {
        if let Some(device) = device {
            return self.receive_on_device(&device, run, deadline);
        }
        let own = self.rank();
        for source in 0..self.params().world_size {
            let word = self.word(own, source)?.0;
            while word.load(Ordering::Acquire) != run.flag {
                self.still_waiting(source, deadline)?;
                std::thread::sleep(Duration::from_micros(50));
            }
            let words = Words { rank: own, offset: u64::from(source) * run.bytes, bytes: run.bytes };
            if let Some(index) = sys::first_bad_word(self, words, |i| pattern(run.seed, source, own, i))? {
                return Err(corrupt(source, own, index * 8));
            }
        }
        Ok(())
    }

    /// Fails if there is no point in waiting for `source` any longer.
    fn still_waiting(&self, source: u32, deadline: &Deadline) -> Result<()> {
        self.shared().check_present()?;
        if let Some(state) = self.shared().lost(source) {
            return Err(Error::new(NMC_ERR_PEER_LOST, format!("self-test: rank {source} is {state:?}")));
        }
        if deadline.passed() {
            return Err(Error::new(NMC_ERR_TIMEOUT, format!("self-test: rank {source} published nothing")));
        }
        Ok(())
    }
}

/// What all ranks agree on in one self-test.
struct Run {
    /// Bytes that each rank writes into each heap.
    bytes: u64,
    /// What is published when they are written; grows from run to run, since kernels wait for "at least".
    flag: u64,
    seed: u64,
}

fn corrupt(source: u32, target: u32, offset: u64) -> Error {
    Error::new(
        NMC_ERR_CORRUPT,
        format!("self-test: what rank {source} wrote into the heap of rank {target} is wrong at offset {offset}"),
    )
}
