//! How a group fares: the error that ended it, the end of it, and what was counted.

use super::Ep;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_CANCELLED, NMC_ERR_INVALID_ARG, NMC_ERR_LIMIT, NMC_ERR_MISMATCH, NMC_ERR_PEER_LOST};
use crate::ep::cpu::fail_with;
use crate::ep::status::{OFF_OVERFLOW, OFF_REQUEST};
use crate::layout::ep::{Fault, OFF_ABORT};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The number of tokens in an error word; see [`Fault::word`]. A kernel tells 24 bits of it, so that a negative one looks large.
fn told_tokens(high: u64, low: u64) -> String {
    match (high, low) {
        (0, 0x80_0000..) => String::from("fewer than 0, or more than 8388607"),
        (0x80.., _) => format!("{}", (high << 24 | low).cast_signed() - (1 << 32)),
        _ => format!("{}", high << 24 | low),
    }
}

/// What a group has counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// Tokens that this rank sent to each expert of the group.
    pub(crate) expert_load: Vec<u64>,
    /// Nanoseconds waited for each rank.
    pub(crate) waited_ns: Vec<u64>,
    /// Rows that did not fit the grouped layout.
    pub(crate) overflow_rows: u64,
}

impl Ep {
    fn name(&self, number: u64) -> String {
        let rank = usize::try_from(number).ok().and_then(|n| self.ranks.get(n));
        rank.map_or_else(|| String::from("a rank"), |(rank, _)| format!("rank {rank}"))
    }

    fn describe(&self, error: u64) -> Error {
        let (by, about) = (error >> 8 & 0xff, error >> 16 & 0xff);
        let (layer, value) = (error >> 24 & 0xffff, error >> 40);
        let here = by == u64::from(self.desc.rank);
        let found = if here { String::new() } else { format!("{} reports: ", self.name(by)) };
        let (status, text) = match Fault::of(error) {
            Some(Fault::Timeout) => {
                let ms = self.desc.deadline_ns / 1_000_000;
                (NMC_ERR_PEER_LOST, format!("layer {layer}: {} did not come within {ms} ms", self.name(about)))
            }
            Some(Fault::Lost) => (NMC_ERR_PEER_LOST, format!("layer {layer}: {} has died", self.name(about))),
            Some(Fault::Layer) => {
                (NMC_ERR_MISMATCH, format!("{} is at layer {value} where layer {layer} was expected", self.name(about)))
            }
            Some(Fault::Tokens) => {
                let tokens = told_tokens(by ^ about, value);
                (
                    NMC_ERR_LIMIT,
                    format!("layer {layer}: {tokens} tokens are not between 0 and t_cap {}", self.shape.t_cap),
                )
            }
            Some(Fault::Expert) => (
                NMC_ERR_INVALID_ARG,
                format!("layer {layer}: topk_idx of token {value} is neither -1 nor below {}", self.shape.experts),
            ),
            Some(Fault::Aborted) | None => (NMC_ERR_CANCELLED, String::from("the group was aborted")),
        };
        Error::new(status, format!("{found}{text}; the group is over, destroy it"))
    }

    /// The error that ended the group, as far as the host knows.
    fn ended(&self) -> Option<Error> {
        let mut ended = self.status.ended.lock();
        if ended.is_none() {
            let mut error = self.status.words().word(0).load(Acquire);
            if error == 0 && self.gpu.is_none() {
                error = self.own_region().word(OFF_ABORT).load(Acquire);
            }
            if error != 0 {
                *ended = Some(self.describe(error));
            }
        }
        ended.clone()
    }

    /// The error after a failed step.
    pub(super) fn failure(&self) -> Error {
        self.ended().unwrap_or_else(|| self.describe(0))
    }

    /// Fails if the group is over.
    pub(super) fn usable(&self) -> Result<()> {
        self.ended().map_or(Ok(()), Err)
    }

    /// Whether everything is well: the error that ended the group; a rank that died (the group ends then, and kernels that
    /// wait for it return); rows that did not fit since the last call.
    pub(crate) fn check(&self) -> Result<()> {
        self.usable()?;
        let own = self.desc.rank;
        for number in (0..self.shape.world).filter(|n| *n != own) {
            if self.lost(number) {
                self.end(Fault::Lost.word(own, number, 0, 0));
                return Err(self.failure());
            }
        }
        self.usable()
    }

    /// Ends the group with an error word: peers are told, and steps that wait return. A group that is known to be over is left
    /// alone: peers have been told, and may have another one in this memory by now.
    fn end(&self, error: u64) {
        if self.ended().is_some() {
            return;
        }
        self.status.ended.lock().get_or_insert_with(|| self.describe(error));
        self.request(error);
        match &self.gpu {
            None => drop(fail_with(&self.host_rank(0), error)),
            // If no kernel of this rank waits, nobody looks at the request. A device that cannot do this leaves the others to
            // their deadline; there is nobody to tell.
            Some(gpu) => (0..self.desc.world).for_each(|number| {
                let _ = self.store_urgently(&gpu.device, number, OFF_ABORT, error);
            }),
        }
    }

    /// Asks the steps of this rank to end the group with an error word.
    fn request(&self, error: u64) {
        self.status.words().word(OFF_REQUEST).store(error, Release);
    }

    fn aborted(&self) -> u64 {
        Fault::Aborted.word(self.desc.rank, self.desc.rank, 0, 0)
    }

    /// Ends the group for all ranks, without waiting.
    pub(crate) fn abort(&self) {
        self.end(self.aborted());
    }

    /// Ends waiting steps of this rank, whose handle is being destroyed.
    pub(crate) fn abort_own(&self) {
        if self.gpu.is_none() {
            self.request(self.aborted());
        }
    }

    /// What was counted so far. Does not wait for streams.
    pub(crate) fn counts(&self) -> Result<Counts> {
        let experts = self.shape.experts as usize;
        let world = self.shape.world as usize;
        let begin = self.shape.off_waited();
        let n = usize::try_from((self.shape.off_load() - begin) / 8).unwrap_or(0) + experts;
        let mut words = memory::zeroed::<u64>(n)?;
        match &self.gpu {
            None => {
                let counted = self.own_region();
                words.iter_mut().zip(0u64..).for_each(|(w, i)| *w = counted.word(begin + 8 * i).load(Relaxed));
            }
            Some(gpu) => self.read_own(&gpu.device, begin, &mut words)?,
        }
        let load = memory::copy(&words[n - experts..])?;
        words.truncate(world);
        let overflow = |e: u32| self.status.words().word(OFF_OVERFLOW + 8 * u64::from(e)).load(Relaxed);
        Ok(Counts { expert_load: load, waited_ns: words, overflow_rows: (0..self.shape.n_local()).map(overflow).sum() })
    }
}

impl Drop for Ep {
    fn drop(&mut self) {
        // Kernels that use the status page end before it does; none waits longer than the deadline.
        if let Some(gpu) = &self.gpu {
            let _ = gpu.device.synchronize();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_tokens_is_told_as_it_was_given() {
        for tokens in [9i32, 0x7f_ffff, 0x100_0009, i32::MAX, -1, -2, i32::MIN] {
            let word = Fault::Tokens.word(5, 5, 3, tokens.cast_unsigned());
            assert_eq!(told_tokens((word >> 8 ^ word >> 16) & 0xff, word >> 40), tokens.to_string());
        }
        // As a kernel tells it.
        assert_eq!(told_tokens(0, 9), "9");
        assert_eq!(told_tokens(0, 0xff_ffff), "fewer than 0, or more than 8388607");
    }
}
