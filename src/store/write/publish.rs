//! What lies between the last byte of a value and its readers: checksums, the publish word, and the master for a replacement.

use crate::base::error::{Error, Result};
use crate::base::point::reach;
use crate::base::status::{
    NMC_ERR_CANCELLED, NMC_ERR_NO_MEMORY, NMC_ERR_NOT_FOUND, NMC_ERR_STALE, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE,
};
use crate::layout::store::{Fate, ObjectHeader, PublishWords, Seal, Shape, View};
use crate::store::client::{Interrupt, Store, Terms};
use crate::store::copy::Pieces;
use crate::store::types::{Opened, corrupt, namespace_word, no_plan, shaped};
use crate::store::wire::Request;
use crate::sync::object;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// What a publication has behind it and ahead.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Publication {
    /// Of a put, which is not repeated.
    Once,
    /// Of a commit, which may be.
    Repeatable,
    /// The program has published by itself: the header may be another object's by now, and nothing is stored into its words.
    Done,
}

#[cold]
pub(super) fn stale(what: &str) -> Error {
    Error::new(
        NMC_ERR_STALE,
        format!(
            "{what} took longer than the watchdog allows, the key was removed meanwhile, or its rank has other memory now"
        ),
    )
}

/// What a writer needs of an open plan.
pub(super) struct Planned<'v> {
    index: u32,
    pub header: &'v ObjectHeader,
    pub shape: Shape,
    pub words: &'v PublishWords,
    seal: Seal,
    /// Where the program was told to store, or 0.
    told: u64,
}

impl Store {
    /// Publishes a plan whose pages are stored.
    pub(super) fn publish(
        &self,
        view: &View<'_>,
        plan: &Opened,
        replace: bool,
        how: Publication,
        interrupt: &Interrupt<'_>,
    ) -> Result<()> {
        let (Some(header), Some(words)) = (view.object(plan.index), view.publish(plan.index)) else {
            return Err(no_plan(plan.plan_id));
        };
        reach("writer.before_publish");
        let lives = if how == Publication::Done {
            object::still(&header.control, plan.epoch)
        } else {
            object::commit(&header.control, &words.published, plan.epoch)
        };
        // A namespace that was flushed meanwhile has forgotten the object, though its header may still be live.
        let word = header.namespace.load(Relaxed);
        if !lives || word != namespace_word(view, word & 0xff) {
            return self.publish_in_vain(view, plan, interrupt);
        }
        if replace {
            reach("writer.before_reveal");
        }
        if replace && let Err(error) = self.call_until(&Request::Reveal(*plan, None), interrupt) {
            // The plan stays open if the master may not have heard of it and the commit can be repeated.
            let unheard = [NMC_ERR_UNAVAILABLE, NMC_ERR_TIMEOUT, NMC_ERR_CANCELLED, NMC_ERR_NO_MEMORY];
            if error.status == NMC_ERR_NOT_FOUND {
                // It has given the plan up, or shown it when it was asked before, and somebody has taken it.
                return self.publish_in_vain(view, plan, interrupt);
            }
            if how == Publication::Once || !unheard.contains(&error.status) {
                self.client.plans.remove(plan.plan_id);
                self.repeat_plans(&error);
            }
            return Err(error);
        }
        self.client.plans.remove(plan.plan_id);
        self.client.ring();
        Ok(())
    }

    /// The object of a plan is not there any more: well if a consumer has it.
    #[cold]
    pub(super) fn publish_in_vain(&self, view: &View<'_>, plan: &Opened, interrupt: &Interrupt<'_>) -> Result<()> {
        let told = view.fate(plan.epoch).and_then(|word| Fate::of(word.load(Acquire), plan.epoch));
        if told == Some(Fate::Taken) {
            self.client.plans.remove(plan.plan_id);
            return Ok(());
        }
        // The master may not know that nothing of us stores any more. It knows whether somebody has the value by now.
        match self.abandon_until(plan, interrupt) {
            Ok(true) => Ok(()),
            _ => Err(stale("the write")),
        }
    }

    /// Refuses a plan whose pages may be another object's by now.
    pub(in crate::store) fn check_unended(&self, plan: &Opened) -> Result<()> {
        let control = self.client.view().object(plan.index).map_or(0, |header| header.control.load(Acquire));
        if object::epoch(control) != plan.epoch || object::state(control) == object::RESERVED {
            return Err(stale("the write"));
        }
        Ok(())
    }

    /// What a writer needs of an open plan. The header must be what the plan was made for: its writer stores into no
    /// more pages than it asked for.
    pub(super) fn planned<'v>(&self, view: &View<'v>, plan: &Opened) -> Result<Planned<'v>> {
        let Some(Terms { key_hash, bytes, metadata, trace: told, .. }) = self.client.plans.terms(plan.plan_id) else {
            return Err(no_plan(plan.plan_id));
        };
        let index = plan.index;
        let (header, shape) = shaped(view, index)?;
        self.check_unended(plan)?;
        match view.publish(index) {
            Some(words) if shape.bytes_total == bytes => {
                let seal = Seal { key_hash, epoch: plan.epoch, metadata };
                Ok(Planned { index, header, shape, words, seal, told })
            }
            _ => Err(corrupt(index)),
        }
    }

    /// Stores the checksums of a value: of `source`, which was copied into it, or of what is in its pages.
    pub(super) fn store_sums(&self, view: &View<'_>, planned: &Planned<'_>, source: Option<&Pieces<'_>>) -> Result<()> {
        let Planned { index, header, ref shape, words, seal, told } = *planned;
        if self.client.params().checksums == 0 {
            return Ok(());
        }
        let page = u64::from(self.client.params().page_bytes);
        let mut trace = shape.trace();
        let runs = view.runs(header, shape).map_while(|run| run).inspect(|run| trace = Shape::traced(trace, *run));
        let pages = runs.flat_map(|(first, count)| first..first + count).zip(0u64..);
        let mut summed = 0;
        let in_page = |at: u64| page.min(shape.bytes_total - at * page);
        let mut store = |heap_page: u32, found: u32| {
            if let Some(sum) = view.sum(shape.owner_rank, heap_page) {
                sum.store(found, Release);
                summed += 1;
            }
        };
        match source {
            None => {
                for (heap_page, at) in pages {
                    let (seed, bytes) = (seal.page_seed(at), in_page(at));
                    store(heap_page, self.client.page_sum(shape.owner_rank, heap_page.into(), seed, bytes)?);
                }
            }
            Some(pieces) => {
                let full = std::cell::Cell::new(0);
                let cuts = pages.map(|(heap_page, at)| {
                    full.set(heap_page);
                    (seal.page_seed(at), in_page(at))
                });
                if !pieces.sums(cuts, |sum| store(full.get(), sum))? {
                    return Err(corrupt(index));
                }
            }
        }
        // Other pages than those that the program was told to store into hold something else.
        if summed != shape.n_pages || (told != 0 && told != trace) {
            return Err(corrupt(index));
        }
        words.progress.store(seal.word(shape.bytes_total), Release);
        Ok(())
    }

    /// The program has published the plan itself: its pages are ours only while they are pinned.
    pub(super) fn store_sums_of_published(&self, view: &View<'_>, plan: &Opened) -> Result<()> {
        if self.client.params().checksums == 0 {
            return Ok(());
        }
        let slot = self.client.take_slot(view)?;
        let stored = match (self.slot_word(view, slot), view.object(plan.index), view.publish(plan.index)) {
            (Some(word), Some(header), Some(words)) => {
                let value = object::pin_word(plan.index, plan.epoch);
                let pinned = object::pin(word, value, &header.control, &words.published, plan.epoch);
                let planned = if pinned { self.planned(view, plan).map(Some) } else { Ok(None) };
                planned.and_then(|planned| match planned {
                    Some(planned) => self.store_sums(view, &planned, None),
                    None => Ok(()),
                })
            }
            _ => Ok(()),
        };
        self.release_pin(view, slot);
        stored
    }
}
