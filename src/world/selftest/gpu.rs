//! The self-test on CUDA heaps: a kernel writes and publishes, another one waits and compares.
#![allow(unsafe_code, reason = "kernels are launched with addresses")]

use super::{Run, World, corrupt};
use crate::base::Deadline;
use crate::base::error::Result;
use crate::cuda::{DeviceTable, PatternVerify, PatternWrite, Stream, VERIFY_RESULT_WORDS};
use crate::layout::CACHE_LINE;
use std::time::Duration;

/// What a self-test keeps on the device.
pub(super) struct OnDevice {
    stream: Stream,
    flags: DeviceTable,
    result: DeviceTable,
    /// Own device rank.
    own: u32,
}

impl World {
    pub(super) fn send_from_device(&self, run: &Run) -> Result<OnDevice> {
        let device = self.device()?;
        let size = self.params().world_size;
        // Words and heaps are addressed by device rank inside kernels.
        let own = self.peer(self.rank())?.device_rank;
        let flags = (0..size)
            .map(|device_rank| Ok(self.word(self.rank_of_device_rank(device_rank)?, own)?.1))
            .collect::<Result<Vec<u64>>>()?;
        // Every resource is made before the first kernel that waits: making them waits for the device.
        let on_device = OnDevice {
            stream: Stream::new(device)?,
            flags: DeviceTable::new(device, &flags)?,
            result: DeviceTable::new(device, &[0; VERIFY_RESULT_WORDS])?,
            own,
        };
        let write = PatternWrite {
            device_bases: self.base_tables().1,
            n_ranks: size,
            my_rank: own,
            offset: 0,
            bytes: run.bytes,
            seed: run.seed,
            flag_words: on_device.flags.ptr(),
            flag_value: run.flag,
        };
        let kernels = device.kernels()?;
        // SAFETY: the tables go with what is returned, and to free one waits for the device; heaps and words are mapped as long as the world.
        // The areas of all ranks together fit a heap (`selftest`), which the program lets the self-test overwrite.
        unsafe { kernels.world_pattern_write(on_device.stream.raw(), &write) }?;
        Ok(on_device)
    }

    pub(super) fn receive_on_device(&self, on: &OnDevice, run: &Run, deadline: &Deadline) -> Result<()> {
        let device = self.device()?;
        loop {
            // The kernel waits in short turns, so that a cancelled or lost world is noticed between them.
            let turn = deadline.left().min(Duration::from_millis(250));
            let verify = PatternVerify {
                heap_base: self.shared().own_device_base(),
                n_ranks: self.params().world_size,
                my_rank: on.own,
                offset: 0,
                bytes: run.bytes,
                seed: run.seed,
                flags: self.word(self.rank(), 0)?.1,
                flag_stride_bytes: CACHE_LINE as u64,
                expected: run.flag,
                timeout_ns: u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX),
                out: on.result.ptr(),
            };
            let kernels = device.kernels()?;
            // SAFETY: as above; the stream is waited for at once.
            unsafe { kernels.world_pattern_verify(on.stream.raw(), &verify) }?;
            on.stream.synchronize()?;
            let [mismatches, first_bad, timed_out, ..] = on.result.read()?[..] else {
                crate::bail!(NMC_ERR_INTERNAL, "the self-test's result is incomplete");
            };
            match (timed_out, mismatches) {
                (0, 0) => return Ok(()),
                (0, _) => {
                    let source = u32::try_from(first_bad / run.bytes).unwrap_or(u32::MAX);
                    return Err(corrupt(source, on.own, first_bad % run.bytes));
                }
                (source, _) => {
                    let source = u32::try_from(source - 1).unwrap_or(u32::MAX);
                    self.still_waiting(self.rank_of_device_rank(source)?, deadline)?;
                }
            }
        }
    }
}
