//! Write plans of the program: asked for, stored to by whoever has them, and published. Only the first step asks the master.

use super::publish::{Planned, Publication, stale};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::point::reach;
use crate::layout::store::{FLAG_CHECKSUM, FLAG_CONTIGUOUS, FLAG_HIDDEN, Shape, View};
use crate::store::client::{Interrupt, Op, Store};
use crate::store::copy::{Cursor, Pieces};
use crate::store::sys;
use crate::store::types::{
    Extents, Location, OpenRequest, Opened, PutOptions, check_key, corrupt, no_plan, placed, shaped,
};
use crate::sync::object;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

impl Store {
    pub(super) fn request<'k>(
        &self,
        key: &'k [u8],
        bytes: u64,
        options: &PutOptions<'k>,
        among: u64,
    ) -> OpenRequest<'k> {
        let contiguous = if options.contiguous { FLAG_CONTIGUOUS } else { 0 };
        let hidden = if options.replace { FLAG_HIDDEN } else { 0 };
        let flags = contiguous | hidden | FLAG_CHECKSUM;
        let PutOptions { rank, keep, metadata, .. } = *options;
        OpenRequest { key, namespace: self.namespace, bytes, rank, among, flags, keep, metadata, put: 0 }
    }

    /// For item `at` of a batch.
    pub(super) fn request_of<'k>(
        &self,
        at: usize,
        (key, bytes): (&'k [u8], u64),
        options: &PutOptions<'k>,
        among: u64,
    ) -> OpenRequest<'k> {
        OpenRequest { metadata: options.metadata_of(at), ..self.request(key, bytes, options, among) }
    }

    /// Asks for a plan and leaves storing the pages to the program.
    pub fn open_for_write(&self, key: &[u8], bytes: u64, options: &PutOptions<'_>) -> Result<(Opened, Location)> {
        self.open_put(0, key, bytes, options)
    }

    /// The same for a put with this name, see [`OpenRequest::put`].
    pub(in crate::store) fn open_put(
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

    /// Stores the pages of an open plan: all of the value is in these pieces. Whatever memory is on either side.
    pub fn write_plan(&self, plan: &Opened, pieces: &Pieces<'_>) -> Result<()> {
        // The pages must be those that it was made with.
        let bytes = self.plan_extents(plan)?.bytes_total;
        if pieces.bytes()? != bytes {
            crate::bail!(NMC_ERR_INVALID_ARG, "the plan is for {bytes} bytes");
        }
        let view = self.client.view();
        let planned = self.planned(view, plan)?;
        let mut cursor = Cursor::new(self, view, planned.header, &planned.shape, 0)?;
        self.client.move_bytes(&mut cursor, pieces, bytes, true, || Ok(()))
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
    pub(in crate::store) fn commit_in_memory(&self, plan: &Opened, interrupt: &Interrupt<'_>) -> Result<bool> {
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
}
