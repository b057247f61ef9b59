//! Calls go out: those of one kind, one for each rank, in one launch, or one after the other on the CPU with all sends before the
//! first wait. A call out of turn keeps all of them back.

use super::Ep;
use super::call_group::Pending;
use crate::base::error::Result;
use crate::cuda;
use crate::ep::calls::{CallArgs, CallKind, RECV, SEND};
use crate::ep::cpu::{self, HostRank};
use crate::ep::gpu::Gpu;
use crate::layout::ep::RankDesc;

/// Runs calls of one kind; `ranks` has room for them.
pub(super) fn run(calls: &[Pending], ranks: &mut Vec<(RankDesc, CallArgs)>) -> Result<()> {
    let Some(first) = calls.first() else { return Ok(()) };
    for p in calls {
        if let Some(gpu) = &p.ep.gpu
            && p.ep.order.known()
            && cuda::may_be_captured(&gpu.device, p.stream)
        {
            p.ep.order.forget();
        }
        p.ep.order.check(&p.call)?;
    }
    match &first.ep.gpu {
        None => run_on_host(first.call.kind, first.call.args.halves, calls)?,
        Some(gpu) => launch(gpu, first, calls, ranks)?,
    }
    calls.iter().for_each(|p| p.ep.order.done(&p.call));
    Ok(())
}

fn launch(gpu: &Gpu, first: &Pending, calls: &[Pending], ranks: &mut Vec<(RankDesc, CallArgs)>) -> Result<()> {
    for p in calls {
        p.ep.check_room(&p.call, p.stream, calls.len())?;
    }
    ranks.clear();
    ranks.extend(calls.iter().map(|p| (p.ep.desc_for(p.call.layer), p.call.args)));
    gpu.launch(first.stream, first.ep.step_launch(&first.call, calls), ranks)
}

fn run_on_host(kind: CallKind, halves: u32, calls: &[Pending]) -> Result<()> {
    let each = |step: &dyn Fn(&Ep, &HostRank<'_>, &CallArgs) -> cpu::Outcome| {
        for p in calls {
            let rank = p.ep.host_rank(p.call.layer);
            step(&p.ep, &rank, &p.call.args).map_err(|cpu::Failed| p.ep.failure())?;
        }
        Ok(())
    };
    match kind {
        CallKind::Dispatch => {
            if halves & SEND != 0 {
                each(&|ep, h, c| cpu::send_dispatch(h, c, &ep.scratch))?;
            }
            if halves & RECV != 0 {
                each(&|ep, h, _| cpu::recv_dispatch(h, &|n| ep.lost(n)))?;
            }
            Ok(())
        }
        CallKind::Combine => {
            if halves & SEND != 0 {
                each(&|_, h, c| cpu::send_combine(h, c))?;
            }
            if halves & RECV != 0 {
                each(&|ep, h, c| cpu::recv_combine(h, c, &|n| ep.lost(n), &ep.scratch))?;
            }
            Ok(())
        }
        CallKind::Pack => each(&|ep, h, c| cpu::pack(h, c, &ep.scratch)),
        CallKind::Scatter => each(&|ep, h, c| cpu::scatter(h, c, &ep.scratch)),
    }
}
