//! How large a rank's kernels are, and when kernels behind them may be placed. Blocks that wait for peers must be resident
//! together, with those of the other ranks on the device: otherwise those that are placed wait for ever for those that are not.

use super::Ep;
use super::call_group::Pending;
use crate::base::error::Result;
use crate::cuda::GivenStream;
use crate::ep::calls::{BOTH, Call, CallKind, RECV};
use crate::ep::gpu::{Early, Gpu, PACK_THREADS, SPREAD_ONE, SPREAD_TWO, StepLaunch};
use std::sync::atomic::Ordering::Relaxed;

/// Threads of a dispatching block: 7 warps that move rows and one that tells what they are for. A row of 7168 bf16 elements
/// is 14 pieces of a warp, so a block has a token in two turns.
const DISPATCH_THREADS: u32 = 256;
const COMBINE_THREADS: u32 = 448;
/// Of a combine that waits beside kernels of other ranks. It may have few blocks, and each has a multiprocessor for itself: what
/// is free beside them is whole multiprocessors, which products of experts often need.
const WIDE_COMBINE_THREADS: u32 = 896;
const SCATTER_THREADS: u32 = 448;
/// Blocks that share the rows of an expert in a pack, a power of two. Where other ranks pack beside it, so many that all have room at
/// once: what a block does before its first row would be done twice, one after the other.
const PACK_SHARE: u32 = 4;
const PACK_SHARE_BESIDE: u32 = 2;
/// How large a rank's kernels are.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Grid {
    /// Blocks of a scatter.
    scatter: u32,
    /// Blocks of a combine that waits beside kernels of other ranks.
    combine: u32,
    /// Ranks of the group that use this device.
    sharing: usize,
    /// Steps of a rank, of as many buffer sets, whose combines can wait at once.
    steps: usize,
    /// Shared memory that a dispatch asks for where it is placed early.
    spread: u32,
}

impl Ep {
    /// Counts the ranks that share the device. Fails if their blocks cannot be resident at once. Only after all have met: before,
    /// a rank's device may not be known here. What else runs on the device, such as another group, cannot be known at all.
    pub(super) fn fit_grid(&self, gpu: &Gpu, ranks: &[u32]) -> Result<Grid> {
        let uuid = gpu.device.uuid();
        let sharing = ranks.iter().filter(|rank| self.member.device_uuid(**rank) == uuid).count();
        let sharing = u32::try_from(sharing.max(1)).unwrap_or(1);
        let (blocks, sm_count) = (self.shape.blocks, gpu.device.facts().sm_count.unsigned_abs());
        let dispatch = gpu.resident_blocks(CallKind::Dispatch, DISPATCH_THREADS)?;
        let resident = gpu.resident_blocks(CallKind::Combine, COMBINE_THREADS)?.min(dispatch);
        // Kernels that are placed early take room too.
        let most = if self.early && sharing > 1 { resident / sharing / 2 } else { resident / sharing };
        // All blocks of a combine wait, those of ranks that are done with their experts for ranks that are not: so many
        // multiprocessors stay free for what these have to run before. With several buffer sets two steps of a rank may wait.
        let at_once = self.shape.sets.clamp(1, 2);
        let combine = blocks.min(sm_count / sharing / at_once).max(1);
        // A wide combine leaves no room on its multiprocessor. The last rank dispatches on those that the others have not taken.
        let free = sm_count.saturating_sub((sharing - 1) * combine * at_once);
        let most = most.min(dispatch / sm_count.max(1) * free);
        if blocks > most {
            crate::bail!(
                NMC_ERR_LIMIT,
                "{blocks} blocks of each of the {sharing} ranks on device {} cannot be resident at once; {most} can (set blocks)",
                gpu.device.ordinal()
            );
        }
        // As many blocks on each multiprocessor as it takes for all ranks. The last rank's fit those that are free: there are
        // `sm_count / sharing` at least.
        let spread = match (gpu.device.facts().cc_major, (blocks * sharing).div_ceil(sm_count.max(1))) {
            (9 | 10, 0 | 1) => SPREAD_ONE,
            (9 | 10, 2) => SPREAD_TWO,
            _ => 0,
        };
        Ok(Grid {
            spread,
            scatter: (2 * sm_count / sharing).max(1),
            combine,
            sharing: sharing as usize,
            steps: (sm_count / (sharing * combine)).max(1) as usize,
        })
    }

    /// The scope of fences: that of the device if all ranks use this one and are in this process, or the program wants it so. `made`
    /// ranks are made by one call.
    pub(super) fn scope(&self, made: usize) -> u32 {
        let world = self.shape.world as usize;
        let one_process = self.member.is_local() || made == world;
        u32::from(
            self.gpu.is_some() && one_device_is_enough(self.grid.sharing, world, one_process, self.shape.device_scope),
        )
    }

    /// How a call is launched together with the others in `calls`, one a rank.
    pub(super) fn step_launch(&self, call: &Call, calls: &[Pending]) -> StepLaunch {
        let n = calls.len();
        let (blocks, threads) = match call.kind {
            CallKind::Dispatch if call.args.halves == RECV => (1, DISPATCH_THREADS),
            CallKind::Dispatch => (self.shape.blocks, DISPATCH_THREADS),
            CallKind::Combine if n >= self.grid.sharing => (self.shape.blocks, COMBINE_THREADS),
            CallKind::Combine => (self.grid.combine, WIDE_COMBINE_THREADS),
            CallKind::Scatter => (self.grid.scatter, SCATTER_THREADS),
            CallKind::Pack if n >= self.grid.sharing => (PACK_SHARE, PACK_THREADS),
            CallKind::Pack => (PACK_SHARE_BESIDE, PACK_THREADS),
        };
        let early = if self.is_alone(call, calls) { Early::Alone } else { self.early(n) };
        StepLaunch { kind: call.kind, blocks, threads, early, spread: self.grid.spread }
    }

    /// Whether a launch is for all ranks of the group, so that the order of the stream is all that they need: whole steps of one layer,
    /// without rows that must be copied first, and no kernels of the program that count on flags.
    fn is_alone(&self, call: &Call, calls: &[Pending]) -> bool {
        let whole = match call.kind {
            CallKind::Dispatch => call.args.halves == BOTH,
            CallKind::Combine => call.args.halves == BOTH && calls.iter().all(|p| p.call.args.x.is_none()),
            CallKind::Pack | CallKind::Scatter => true,
        };
        let same = |p: &Pending| p.call.layer == call.layer && !p.ep.own_kernels.load(Relaxed);
        whole && calls.len() == self.shape.world as usize && calls.iter().all(same)
    }

    /// When kernels after those of a launch for `n` ranks may be placed. A kernel that waits for a dispatch must not take the
    /// room of a dispatch that is to come; with all ranks of the device in the launch there is none to come.
    fn early(&self, n: usize) -> Early {
        match self.gpu.as_ref().map_or(0, |gpu| gpu.device.facts().cc_major) {
            9.. if n >= self.grid.sharing => Early::Always,
            9.. if self.early => Early::Sharing,
            _ => Early::Never,
        }
    }

    /// Fails if this combine can wait beside steps of other buffer sets, and there is no room for all of them. With all ranks of
    /// the group in the launch it cannot be kept from ending, once it is placed.
    pub(super) fn check_room(&self, call: &Call, stream: GivenStream, n: usize) -> Result<()> {
        if self.shape.sets == 1 || !matches!(call.kind, CallKind::Dispatch | CallKind::Combine) {
            return Ok(());
        }
        let streams = self.streams.lock().in_turn((call.layer % self.shape.sets) as usize, stream.raw() as usize);
        if streams > self.grid.steps && call.kind == CallKind::Combine && n < self.shape.world as usize {
            crate::bail!(
                NMC_ERR_LIMIT,
                "steps of buffer sets are on {streams} streams; combines of {} steps of each of the {} ranks on device {} can wait at once \
                 (use fewer streams or set fewer blocks)",
                self.grid.steps,
                self.grid.sharing,
                self.gpu.as_ref().map_or(-1, |gpu| gpu.device.ordinal())
            );
        }
        Ok(())
    }
}

/// Whether fences of a device's scope order what all ranks of a group store: `sharing` of the `world` are on this device.
fn one_device_is_enough(sharing: usize, world: usize, one_process: bool, wanted: bool) -> bool {
    sharing == world && (one_process || wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_are_of_the_system_unless_all_ranks_are_on_a_device_and_in_a_process_or_it_was_asked_for() {
        for (one_process, wanted) in [(false, false), (false, true), (true, false), (true, true)] {
            assert_eq!(one_device_is_enough(8, 8, one_process, wanted), one_process || wanted);
            assert!(!one_device_is_enough(4, 8, one_process, wanted), "others are on another device");
        }
    }
}
