//! Proves the paths between all ranks on the machine at hand: every rank writes a pattern into every heap,
//! publishes it with a system-scope release, waits for what the others publish, and compares every byte. On CUDA
//! heaps all of it is done by kernels.

use super::World;
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_PEER_LOST, NMC_ERR_TIMEOUT};
use crate::cuda::{DeviceTable, PatternVerify, PatternWrite, Stream, VERIFY_RESULT_WORDS};
use crate::layout::CACHE_LINE;
use crate::layout::device::pattern_u64 as pattern;
use crate::mem::HeapKind;
use std::sync::atomic::Ordering;

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
        // Nobody may publish the new value before everyone has stopped looking for an older one.
        let stamp = seed | 1;
        self.word(self.rank(), 0)?;
        for source in 0..size {
            self.word(self.rank(), source)?.0.store(0, Ordering::Release);
        }
        self.barrier(deadline)?;
        let outcome = if self.params().heap_kind == HeapKind::Cuda.code() {
            self.selftest_cuda(bytes, stamp, deadline)
        } else {
            self.selftest_host(bytes, stamp, deadline)
        };
        // Also after a failure, so that the others are not left waiting.
        let met = self.barrier(deadline);
        outcome.and(met)
    }

    fn selftest_host(&self, bytes: u64, stamp: u64, deadline: &Deadline) -> Result<()> {
        let (size, own) = (self.params().world_size, self.rank());
        for target in 0..size {
            let at = self.ptr(target, u64::from(own) * bytes, bytes)?;
            super::sys::fill_words(at, bytes, |i| pattern(stamp, own, target, i));
            self.word(target, own)?.0.store(stamp, Ordering::Release);
        }
        for source in 0..size {
            let word = self.word(own, source)?.0;
            while word.load(Ordering::Acquire) != stamp {
                if let Some(state) = self.shared.lost(source) {
                    return Err(Error::new(NMC_ERR_PEER_LOST, format!("self-test: rank {source} is {state:?}")));
                }
                if deadline.passed() {
                    return Err(Error::new(NMC_ERR_TIMEOUT, format!("self-test: rank {source} published nothing")));
                }
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
            let at = self.ptr(own, u64::from(source) * bytes, bytes)?;
            if let Some(index) = super::sys::first_bad_word(at, bytes, |i| pattern(stamp, source, own, i)) {
                return Err(corrupt(source, own, index * 8));
            }
        }
        Ok(())
    }

    fn selftest_cuda(&self, bytes: u64, stamp: u64, deadline: &Deadline) -> Result<()> {
        let device = self.device()?;
        let size = self.params().world_size;
        // Words and heaps are addressed by device rank inside kernels.
        let own = self.peer(self.rank())?.device_rank;
        let flags = (0..size)
            .map(|device_rank| Ok(self.word(self.rank_of_device_rank(device_rank)?, own)?.1))
            .collect::<Result<Vec<u64>>>()?;
        // Every resource is made before the first kernel that waits: making them waits for the device.
        let stream = Stream::new(device)?;
        let flag_table = DeviceTable::new(device, &flags)?;
        let result = DeviceTable::new(device, &[0; VERIFY_RESULT_WORDS])?;
        let kernels = device.kernels()?;
        kernels.world_pattern_write(
            stream.raw(),
            &PatternWrite {
                device_bases: self.base_tables().1,
                n_ranks: size,
                my_rank: own,
                offset: 0,
                bytes,
                seed: stamp,
                flag_words: flag_table.ptr(),
                flag_value: stamp,
            },
        )?;
        // Ranks of one process share hardware queues: no kernel may wait before all writers are enqueued.
        self.barrier(deadline)?;
        kernels.world_pattern_verify(
            stream.raw(),
            &PatternVerify {
                heap_base: self.shared.own_device_base(),
                n_ranks: size,
                my_rank: own,
                offset: 0,
                bytes,
                seed: stamp,
                flags: self.word(self.rank(), 0)?.1,
                flag_stride_bytes: CACHE_LINE as u64,
                expected: stamp,
                timeout_ns: u64::try_from(deadline.left().as_nanos()).unwrap_or(u64::MAX),
                out: result.ptr(),
            },
        )?;
        stream.synchronize()?;
        let [mismatches, first_bad, timed_out, ..] = result.read()?[..] else {
            crate::bail!(NMC_ERR_INTERNAL, "the self-test's result is incomplete");
        };
        match (timed_out, mismatches) {
            (0, 0) => Ok(()),
            (0, _) => Err(corrupt(u32::try_from(first_bad / bytes).unwrap_or(u32::MAX), own, first_bad % bytes)),
            (source, _) => {
                let source = source - 1;
                Err(Error::new(NMC_ERR_TIMEOUT, format!("self-test: device rank {source} published nothing")))
            }
        }
    }
}

fn corrupt(source: u32, target: u32, offset: u64) -> Error {
    Error::new(
        NMC_ERR_CORRUPT,
        format!("self-test: what rank {source} wrote into the heap of rank {target} is wrong at offset {offset}"),
    )
}
