//! Many calls of one batch, as many together as may be under way.

use super::{Cluster, Item, Scope};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_TIMEOUT;
use crate::cluster::client::Outcome;
use crate::cluster::run::client::Task;
use crate::cluster::submit::{TOGETHER, TOGETHER_BYTES};

impl Cluster {
    /// Makes calls, some together; `tell` says what came of each. Others are made with the first of them, and nobody hears of those.
    pub(super) fn batch<R>(
        &self,
        items: &[Item<'_>],
        tasks: Vec<Result<Task>>,
        mut others: Vec<Task>,
        scope: Scope<'_>,
        size: impl Fn(&Task) -> u64,
        tell: impl Fn(&Item<'_>, &Outcome) -> Result<R>,
    ) -> Result<Vec<Result<R>>> {
        let mut results = memory::with_capacity(tasks.len())?;
        let (mut together, mut numbers, mut bytes) = (Vec::new(), Vec::new(), 0u64);
        let asks = !others.is_empty();
        let mut flush = |together: &mut Vec<Task>, numbers: &mut Vec<usize>, results: &mut Vec<Result<R>>| {
            let room = memory::reserve(together, others.len());
            together.extend(others.drain(..).filter(|_| room.is_ok()));
            together.iter_mut().for_each(|task: &mut Task| task.patience = scope.deadline.left());
            let outcomes = self.calls.service.call_unless(std::mem::take(together), scope.stop);
            for (number, at) in numbers.drain(..).enumerate() {
                if let (Some(item), Some(place)) = (items.get(at), results.get_mut(at)) {
                    *place = match &outcomes {
                        Ok(outcomes) => outcomes.get(number).map_or_else(nothing, |outcome| tell(item, outcome)),
                        Err(error) => Err(Error::new(error.status, error.message.clone())),
                    };
                }
            }
        };
        for (at, task) in tasks.into_iter().enumerate() {
            match task {
                Err(error) => results.push(Err(error)),
                Ok(task) => {
                    let more = size(&task);
                    if together.len() >= TOGETHER || bytes > 0 && bytes + more > TOGETHER_BYTES {
                        flush(&mut together, &mut numbers, &mut results);
                        bytes = 0;
                    }
                    bytes += more;
                    // Without memory for one, the others go on.
                    let room = memory::reserve(&mut together, 1).and_then(|()| memory::push(&mut numbers, at));
                    results.push(room.and_then(|()| {
                        together.push(task);
                        nothing()
                    }));
                }
            }
        }
        if asks || !together.is_empty() {
            flush(&mut together, &mut numbers, &mut results);
        }
        Ok(results)
    }
}

/// What a call has come to of which nobody says anything.
pub(super) fn nothing<R>() -> Result<R> {
    Err(Error::new(NMC_ERR_TIMEOUT, "nothing came of the call"))
}
