//! Writing: ask for a plan, store the pages, publish. Only the first step asks the master.

use super::Store;
use super::copy::{Cursor, Pieces};
use super::counters::Op;
use super::master::{Keep, OpenRequest, Opened, check_key, corrupt, namespace_word};
use super::plans::Terms;
use super::read::{Extents, Location, Look, placed, shaped};
use super::sys;
use super::wait::Interrupt;
use super::wire::{MAX_ITEMS, Request};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::point::reach;
use crate::base::status::{
    NMC_ERR_CANCELLED, NMC_ERR_NO_MEMORY, NMC_ERR_NOT_FOUND, NMC_ERR_STALE, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE,
};
use crate::layout::store::{
    FLAG_CHECKSUM, FLAG_CONTIGUOUS, FLAG_HIDDEN, Fate, ObjectHeader, PublishWords, Seal, Shape, View,
};
use crate::sync::object;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// How long a call that finds no room waits for some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// As long as calls wait for the master.
    CallTimeout,
    /// So long.
    For(Duration),
}

/// How a value is to be stored.
#[derive(Debug, Clone, Copy)]
pub struct PutOptions<'a> {
    /// Rank whose heap is to hold it; by hash if not given.
    pub rank: Option<u32>,
    /// If that one has no room, any other may hold it.
    pub any_rank: bool,
    /// What to do when there is no room.
    pub wait: Wait,
    /// In one run of pages.
    pub contiguous: bool,
    /// In the place of an object with the same key, if there is one.
    pub replace: bool,
    /// How it is kept.
    pub keep: Keep,
    /// What is said about it, up to `MAX_METADATA` bytes.
    pub metadata: &'a [u8],
    /// The same for each object of a batch; `metadata` for those behind its end.
    pub metadata_each: &'a [&'a [u8]],
}

impl PutOptions<'static> {
    /// Nothing special.
    pub const DEFAULT: PutOptions<'static> = PutOptions {
        rank: None,
        any_rank: false,
        wait: Wait::No,
        contiguous: false,
        replace: false,
        keep: Keep::DEFAULT,
        metadata: &[],
        metadata_each: &[],
    };
}

impl<'a> PutOptions<'a> {
    /// The metadata of object `at` of a batch.
    fn metadata_of(&self, at: usize) -> &'a [u8] {
        self.metadata_each.get(at).copied().unwrap_or(self.metadata)
    }
}

/// What a publication has behind it and ahead.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Publication {
    /// Of a put, which is not repeated.
    Once,
    /// Of a commit, which may be.
    Repeatable,
    /// The program has published by itself: the header may be another object's by now, and nothing is stored into its words.
    Done,
}

#[cold]
fn stale(what: &str) -> Error {
    Error::new(NMC_ERR_STALE, format!("{what} took longer than the watchdog allows, or the key was removed meanwhile"))
}

#[cold]
pub(super) fn no_plan(plan_id: u64) -> Error {
    Error::new(NMC_ERR_NOT_FOUND, format!("there is no open write plan {plan_id:x} of this client"))
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
    /// The ranks that may hold what is put with these options, besides the one that it is put on.
    #[inline]
    pub(super) fn among(&self, options: &PutOptions<'_>) -> u64 {
        if options.any_rank { self.client.ranks_to_store_on() } else { 0 }
    }

    fn request<'k>(&self, key: &'k [u8], bytes: u64, options: &PutOptions<'k>, among: u64) -> OpenRequest<'k> {
        let contiguous = if options.contiguous { FLAG_CONTIGUOUS } else { 0 };
        let hidden = if options.replace { FLAG_HIDDEN } else { 0 };
        let flags = contiguous | hidden | FLAG_CHECKSUM;
        let PutOptions { rank, keep, metadata, .. } = *options;
        OpenRequest { key, namespace: self.namespace, bytes, rank, among, flags, keep, metadata, put: 0 }
    }

    /// For item `at` of a batch.
    fn request_of<'k>(
        &self,
        at: usize,
        (key, bytes): (&'k [u8], u64),
        options: &PutOptions<'k>,
        among: u64,
    ) -> OpenRequest<'k> {
        OpenRequest { metadata: options.metadata_of(at), ..self.request(key, bytes, options, among) }
    }

    /// Stores a value.
    pub fn put(&self, key: &[u8], pieces: &Pieces<'_>, options: &PutOptions<'_>) -> Result<()> {
        check_key(key)?;
        let counters = &self.client.counters;
        let started = counters.is_sample(Op::Put).then(sys::now_ns);
        let bytes = pieces.bytes()?;
        let plan = self.open_one(&self.request(key, bytes, options, self.among(options)), options)?;
        counters.plan(1);
        if let Some(started) = started {
            counters.timed_plan(sys::now_ns() - started);
        }
        let interrupt = self.interrupt();
        self.fill(&plan, pieces, bytes, options.replace, &interrupt)?;
        counters.put(bytes);
        if let Some(started) = started {
            counters.timed_put(sys::now_ns() - started);
        }
        self.wait_for_disk(&[(key, plan.epoch)], &interrupt)
    }

    /// Stores many values, asking the master for as many plans at once as possible.
    /// Fails as a whole only before anything is stored.
    pub fn put_many(&self, items: &[(&[u8], Pieces<'_>)], options: &PutOptions<'_>) -> Result<Vec<Result<()>>> {
        let check = |(key, pieces): &(&[u8], Pieces<'_>)| check_key(key).and_then(|()| pieces.bytes()).map(|_| ());
        let mut results: Vec<Result<()>> = memory::collect(items.iter().map(check))?;
        let mut good = memory::with_capacity(items.len())?;
        good.extend((0..items.len()).filter(|i| results[*i].is_ok()));
        let most = good.len().min(MAX_ITEMS);
        let (mut requests, mut opened) = (memory::with_capacity(most)?, memory::with_capacity(most)?);
        let request =
            |i: usize, among: u64| self.request_of(i, (items[i].0, items[i].1.bytes().unwrap_or(0)), options, among);
        let counters = &self.client.counters;
        let patience = self.patience(options.wait);
        // For those that may have to wait for a disk.
        let with_disk = self.client.view().header().disk.load(Relaxed) != 0;
        let epochs = std::cell::RefCell::new(memory::vec_of(if with_disk { items.len() } else { 0 }, 0u64)?);
        let fill = |i: usize, plan: Opened| {
            let bytes = items[i].1.bytes()?;
            if let Some(place) = epochs.borrow_mut().get_mut(i) {
                *place = plan.epoch;
            }
            let begun = counters.is_sample(Op::Put).then(sys::now_ns);
            self.fill(&plan, &items[i].1, bytes, options.replace, &patience.interrupt)?;
            counters.put(bytes);
            if let Some(begun) = begun {
                counters.timed_put(sys::now_ns() - begun);
            }
            Ok(())
        };
        // A few at a time: what is open cannot be evicted, and waits for the watchdog while the others are filled.
        for part in good.chunks(MAX_ITEMS) {
            let asked = sys::now_ns();
            requests.clear();
            let among = self.among(options);
            requests.extend(part.iter().map(|i| request(*i, among)));
            let asking = patience.interrupt.check();
            if let Err(error) = asking.and_then(|()| self.open_plans(&requests, &patience.interrupt, &mut opened)) {
                part.iter().for_each(|i| results[*i] = Err(error.clone()));
                continue;
            }
            counters.plan(part.len() as u64);
            counters.timed_plan(sys::now_ns() - asked);
            for (i, opened) in part.iter().zip(opened.drain(..)) {
                results[*i] = opened.and_then(|plan| fill(*i, plan));
            }
            // What was stored so far can be evicted for the rest. Without memory to wait, those stay without room.
            let _ = self.open_rest(&patience, part.iter().copied(), &mut results, options, request, fill);
        }
        self.wait_for_those(items, &epochs.into_inner(), &mut results);
        Ok(results)
    }

    /// Those that were stored wait for the disk, together. One that does not come there has failed.
    fn wait_for_those(&self, items: &[(&[u8], Pieces<'_>)], epochs: &[u64], results: &mut [Result<()>]) {
        if epochs.is_empty() {
            return;
        }
        let are_stored = || results.iter().enumerate().filter(|(_, result)| result.is_ok()).map(|(number, _)| number);
        let listed = memory::collect::<usize>(are_stored()).and_then(|numbers| {
            let values = memory::collect(numbers.iter().map(|number| (items[*number].0, epochs[*number])))?;
            Ok((numbers, values))
        });
        match listed {
            Ok((numbers, values)) => self.wait_for_disk_each(&values, &self.interrupt(), |number, became| {
                results[numbers[number]] = became;
            }),
            Err(error) => {
                results.iter_mut().filter(|result| result.is_ok()).for_each(|result| *result = Err(error.clone()));
            }
        }
    }

    /// Stores the pages of a plan and publishes it. On failure the plan is given up.
    fn fill(
        &self,
        plan: &Opened,
        pieces: &Pieces<'_>,
        bytes: u64,
        replace: bool,
        interrupt: &Interrupt<'_>,
    ) -> Result<()> {
        let view = self.client.view();
        reach("writer.opened");
        let stored = (|| -> Result<()> {
            let planned = self.planned(view, plan)?;
            let mut cursor = Cursor::new(self, view, planned.header, &planned.shape, 0)?;
            self.client.move_bytes(&mut cursor, pieces, bytes, true, || Ok(()))?;
            // Of what the program has, not of what lies in the heap by now. The CPU may not reach it if there is a device.
            let source = if self.client.member.device().is_none() { Some(pieces) } else { None };
            self.store_sums(view, &planned, source)
        })();
        if let Err(error) = stored {
            let _ = self.abandon_until(plan, interrupt);
            return Err(error);
        }
        self.publish(view, plan, replace, Publication::Once, interrupt)
    }

    /// Publishes a plan whose pages are stored.
    fn publish(
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
    fn publish_in_vain(&self, view: &View<'_>, plan: &Opened, interrupt: &Interrupt<'_>) -> Result<()> {
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
    pub(super) fn check_unended(&self, plan: &Opened) -> Result<()> {
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

    /// Asks for a plan and leaves storing the pages to the program.
    pub fn open_for_write(&self, key: &[u8], bytes: u64, options: &PutOptions<'_>) -> Result<(Opened, Location)> {
        self.open_put(0, key, bytes, options)
    }

    /// The same for a put with this name, see [`OpenRequest::put`].
    pub(super) fn open_put(
        &self,
        put: u64,
        key: &[u8],
        bytes: u64,
        options: &PutOptions<'_>,
    ) -> Result<(Opened, Location)> {
        check_key(key)?;
        let counters = &self.client.counters;
        let started = counters.is_sample(Op::Plan).then(sys::now_ns);
        let request = OpenRequest { put, ..self.request(key, bytes, options, self.among(options)) };
        let plan = self.open_one(&request, options)?;
        counters.plan(1);
        if let Some(started) = started {
            counters.timed_plan(sys::now_ns() - started);
        }
        self.locate(&plan)
    }

    /// Asks for many plans. Fails as a whole only before anything is opened.
    #[allow(clippy::type_complexity, reason = "one result for each")]
    pub fn open_many(
        &self,
        items: &[(&[u8], u64)],
        options: &PutOptions<'_>,
    ) -> Result<Vec<Result<(Opened, Location)>>> {
        let mut results: Vec<Result<(Opened, Location)>> = memory::with_capacity(items.len())?;
        let bad = |key: &[u8]| check_key(key).err();
        let mut requests: Vec<OpenRequest<'_>> = memory::with_capacity(items.len())?;
        let good = (0..items.len()).filter(|i| bad(items[*i].0).is_none());
        let request = |i: usize, among: u64| self.request_of(i, items[i], options, among);
        let among = self.among(options);
        requests.extend(good.map(|i| request(i, among)));
        let mut opened = memory::with_capacity(requests.len())?;
        let patience = self.patience(options.wait);
        self.open_plans(&requests, &patience.interrupt, &mut opened)?;
        let mut opened = opened.into_iter();
        for (key, _) in items {
            results.push(match bad(key) {
                Some(error) => Err(error),
                None => opened.next().unwrap_or_else(|| Err(no_plan(0))).and_then(|plan| self.locate(&plan)),
            });
        }
        let take = |_, plan| self.locate(&plan);
        let _ = self.open_rest(&patience, 0..items.len(), &mut results, options, request, take);
        Ok(results)
    }

    fn locate(&self, plan: &Opened) -> Result<(Opened, Location)> {
        let view = self.client.view();
        let found = self.planned(view, plan).and_then(|Planned { header, shape, .. }| {
            let trace =
                view.runs(header, &shape).try_fold(shape.trace(), |trace, run| Some(Shape::traced(trace, run?)));
            self.client.plans.set_trace(plan.plan_id, trace.ok_or_else(|| corrupt(plan.index))?);
            Ok(placed(view, plan.index, plan.epoch, header, &shape))
        });
        if found.is_err() {
            let _ = self.abandon(plan);
        }
        found.map(|place| (*plan, place))
    }

    /// The runs of pages of a plan, which must be those that it was made with.
    pub fn plan_extents(&self, plan: &Opened) -> Result<Extents> {
        self.check_plan(plan)?;
        let (extents, trace) = self.traced_extents(plan.index)?;
        match self.client.plans.terms(plan.plan_id) {
            Some(terms) if terms.trace != 0 && terms.trace != trace => Err(corrupt(plan.index)),
            _ => Ok(extents),
        }
    }

    /// Whether the plan is open, or what became of it: true if it is committed already.
    fn check_open(&self, view: &View<'_>, plan: &Opened) -> Result<bool> {
        match self.client.plans.get(plan.plan_id) {
            Some(known) if known == *plan => Ok(false),
            Some(_) => Err(no_plan(plan.plan_id)),
            None => {
                let (Some(header), Some(words)) = (view.object(plan.index), view.publish(plan.index)) else {
                    return Err(no_plan(plan.plan_id));
                };
                let committed = header.plan_id.load(Relaxed) == plan.plan_id
                    && header.flags.load(Relaxed) & FLAG_HIDDEN == 0
                    && words.published.load(Acquire) == plan.epoch
                    && object::still(&header.control, plan.epoch);
                if committed { Ok(true) } else { Err(no_plan(plan.plan_id)) }
            }
        }
    }

    /// Refuses a plan that is not open.
    pub fn check_plan(&self, plan: &Opened) -> Result<()> {
        self.check_open(self.client.view(), plan).map(|_| ())
    }

    /// All pages of the plan are stored: publishes it. Idempotent while the object lives.
    pub fn commit(&self, plan: &Opened) -> Result<()> {
        self.commit_until(plan, &self.interrupt())
    }

    /// The same for several, one after the other: when the master has not answered for one of them, the others do not wait for it.
    pub fn committing(&self) -> impl Fn(&Opened) -> Result<()> + '_ {
        let interrupt = self.interrupt();
        move |plan| self.commit_until(plan, &interrupt)
    }

    fn commit_until(&self, plan: &Opened, interrupt: &Interrupt<'_>) -> Result<()> {
        let view = self.client.view();
        // While the header is certainly its own.
        let with_disk = view.header().disk.load(Relaxed) != 0 && self.check_open(view, plan).is_ok();
        let key = view.object(plan.index).filter(|_| with_disk).map(|header| view.key_of(header));
        match (self.commit_in_memory(plan, interrupt)?, key) {
            (true, Some(key)) => self.wait_for_disk(&[(&key, plan.epoch)], interrupt),
            _ => Ok(()),
        }
    }

    /// The same, without waiting for a disk. False if it is certain that the object has gone since.
    pub(super) fn commit_in_memory(&self, plan: &Opened, interrupt: &Interrupt<'_>) -> Result<bool> {
        let view = self.client.view();
        let committed = self.check_open(view, plan)?;
        let (Some(header), Some(words)) = (view.object(plan.index), view.publish(plan.index)) else {
            return Err(no_plan(plan.plan_id));
        };
        if committed {
            // If the header is another object's by now, nobody waits for this one.
            return Ok(object::still(&header.control, plan.epoch));
        }
        let hidden = header.flags.load(Relaxed) & FLAG_HIDDEN != 0;
        // In this order: a publish word that a later object has overwritten shows in the control word too.
        let done = words.published.load(Acquire) == plan.epoch;
        if object::epoch(header.control.load(Acquire)) != plan.epoch {
            // The program published it itself, it is gone, and the header is another object's. Or the header was overwritten:
            // then the master still waits for its writer.
            return self.publish_in_vain(view, plan, interrupt).map(|()| false);
        }
        if done {
            self.store_sums_of_published(view, plan)?;
        } else {
            // Until it is published neither its header nor its pages are anybody else's.
            self.store_sums(view, &self.planned(view, plan)?, None)?;
        }
        let how = if done { Publication::Done } else { Publication::Repeatable };
        self.publish(view, plan, hidden, how, interrupt)?;
        Ok(true)
    }

    /// The program has published the plan itself: its pages are ours only while they are pinned.
    fn store_sums_of_published(&self, view: &View<'_>, plan: &Opened) -> Result<()> {
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

    /// The first `pages` pages of the plan are stored: readers may begin with them.
    pub fn publish_pages(&self, plan: &Opened, pages: u64) -> Result<()> {
        let view = self.client.view();
        if self.check_open(view, plan)? {
            return Ok(());
        }
        let (Some(header), Some(words)) = (view.object(plan.index), view.publish(plan.index)) else {
            return Err(no_plan(plan.plan_id));
        };
        // In this order, as in `commit`.
        if words.published.load(Acquire) == plan.epoch {
            return Ok(());
        }
        if object::epoch(header.control.load(Acquire)) != plan.epoch {
            return Err(stale("the write"));
        }
        let all = u64::from(shaped(view, plan.index)?.1.n_pages);
        let now = words.progress.load(Relaxed);
        if pages > all || pages < now {
            crate::bail!(NMC_ERR_INVALID_ARG, "{pages} pages are not between {now}, which are ready, and all {all}");
        }
        words.progress.store(pages, Release);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if !object::still(&header.control, plan.epoch) {
            return Err(stale("the write"));
        }
        self.client.ring();
        Ok(())
    }

    /// Gives a plan up. Nothing of the program stores for it any more.
    pub fn abort(&self, plan: &Opened) -> Result<()> {
        let view = self.client.view();
        let committed = self.check_open(view, plan)?;
        let (header, words) = (view.object(plan.index), view.publish(plan.index));
        let hidden = header.is_some_and(|header| header.flags.load(Relaxed) & FLAG_HIDDEN != 0);
        // A replacement that the master has not heard of yet can still be given up.
        if committed || (!hidden && words.is_some_and(|words| object::finished(&words.published, plan.epoch))) {
            crate::bail!(NMC_ERR_INVALID_ARG, "plan {:x} is committed; remove the object instead", plan.plan_id);
        }
        reach("writer.before_abort");
        self.abandon(plan).map(|_| ())
    }

    /// What became of a key: for callers that need to know whether it is being written.
    pub fn state(&self, key: &[u8]) -> Result<Look<(u32, u64)>> {
        self.look(self.client.view(), key)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]
mod tests {
    use super::super::config::Config;
    use super::super::strays::{self, world};
    use super::*;
    use crate::layout::store::Fate;

    fn store() -> Store {
        let config = Config { page_bytes: 4096, max_objects: Some(1), key_bytes: Some(4096), ..Config::default() };
        Store::embedded(&world(), &config).unwrap()
    }

    fn on_rank_0() -> PutOptions<'static> {
        PutOptions { rank: Some(0), ..PutOptions::DEFAULT }
    }

    /// Stores a small value whatever is there; there is one header, so it gets that of its predecessor.
    fn put(store: &Store, key: &[u8]) {
        strays::put(store, key, &[7; 8], &on_rank_0()).unwrap();
    }

    /// Opens a plan and publishes it as a kernel does: nobody else hears of it.
    fn published_by_itself(store: &Store) -> Opened {
        let (plan, _) = store.open_for_write(b"k", 8, &on_rank_0()).unwrap();
        object::publish(&store.client.view().publish(plan.index).unwrap().published, plan.epoch);
        plan
    }

    /// A value that was consumed before its writer looked was stored, also when its header is another object's by then. One
    /// that was removed was not.
    #[test]
    fn a_write_whose_value_was_consumed_has_succeeded() {
        for consumed in [true, false] {
            let store = store();
            let plan = published_by_itself(&store);
            if consumed {
                let Look::Ready((pin, _)) = store.consume(b"k").unwrap() else { panic!("it was published") };
                store.unpin(pin).unwrap();
            } else {
                store.remove(b"k").unwrap();
            }
            put(&store, b"other");
            let told = store.client.view().fate(plan.epoch).unwrap().load(Relaxed);
            assert_eq!(Fate::of(told, plan.epoch), consumed.then_some(Fate::Taken));
            let committed = store.commit(&plan);
            assert_eq!(committed.map_err(|error| error.status), if consumed { Ok(()) } else { Err(NMC_ERR_STALE) });
            assert_eq!(store.client.plans.len(), 0);
        }
    }

    /// A plan that the master has ended leads nobody to pages that are another object's by now.
    #[test]
    fn nothing_is_stored_for_a_plan_that_has_ended() {
        let store = store();
        let (plan, _) = store.open_for_write(b"k", 8, &on_rank_0()).unwrap();
        let terms = store.client.plans.terms(plan.plan_id).unwrap();
        store.abort(&plan).unwrap();
        assert!(store.client.plans.add(terms), "as if it were still open");
        let status = |store: &Store| store.planned(store.client.view(), &plan).err().map(|error| error.status);
        assert_eq!(status(&store), Some(NMC_ERR_STALE), "its pages are free");
        put(&store, b"other");
        assert_eq!(status(&store), Some(NMC_ERR_STALE), "its pages are another's");
    }

    /// A master that does not know a replacement any more has given it up, also if its header looks as it did.
    #[test]
    fn a_replacement_that_the_master_has_given_up_is_stale() {
        let store = store();
        let (plan, _) = store.open_for_write(b"k", 8, &PutOptions { replace: true, ..on_rank_0() }).unwrap();
        let unknown = Opened { plan_id: plan.plan_id ^ 1, ..plan };
        let published = store.publish(store.client.view(), &unknown, true, Publication::Once, &store.interrupt());
        assert_eq!(published.map_err(|error| error.status), Err(NMC_ERR_STALE));
        store
            .publish(store.client.view(), &plan, true, Publication::Once, &store.interrupt())
            .expect("control: this one is known");
    }

    /// Of several calls that share a wait: one that waited in vain ends the others, one that found no connection does not.
    #[test]
    fn only_a_call_that_has_waited_in_vain_ends_the_others() {
        let store = store();
        let interrupt = store.interrupt();
        let ended = |status| interrupt.note::<()>(Err(Error::new(status, "no answer"))).map_err(|error| error.status);
        for status in [NMC_ERR_UNAVAILABLE, NMC_ERR_NOT_FOUND] {
            assert_eq!(ended(status), Err(status));
            interrupt.check_answers().unwrap();
        }
        assert_eq!(ended(NMC_ERR_TIMEOUT), Err(NMC_ERR_TIMEOUT));
        assert_eq!(interrupt.check_answers().unwrap_err().status, NMC_ERR_TIMEOUT);
    }

    /// Whoever cancels after a call has begun ends it, also if it did not wait yet.
    #[test]
    fn a_call_that_was_cancelled_before_it_waits_does_not_wait() {
        let store = store();
        // What is being written is not evicted: there is no room.
        store.open_for_write(b"there", 8, &on_rank_0()).unwrap();
        let long = PutOptions { wait: Wait::For(Duration::from_secs(3600)), ..on_rank_0() };
        let patience = store.patience(long.wait);
        store.cancel();
        let mut results = [Err::<Opened, _>(Error::new(crate::base::status::NMC_ERR_BUSY, "no room"))];
        let request = |_, among| store.request(b"k", 8, &long, among);
        store.open_rest(&patience, 0..1, &mut results, &long, request, |_, plan| Ok(plan)).unwrap();
        let [result] = results;
        assert_eq!(result.map_err(|error| error.status), Err(NMC_ERR_CANCELLED));
    }
}
