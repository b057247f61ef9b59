//! Calls of the master through a handle of the program: one plan or many, waiting for room if the program wants that,
//! removals, questions. A call that waits for a master in another process ends early when it is cancelled, or its handle or
//! its rank ends.

use super::client::Way;
use super::handle::Store;
use super::plans::Terms;
use super::wait::{Interrupt, Patience};
use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_LIMIT, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND, NMC_ERR_PROTOCOL, NMC_ERR_STALE,
};
use crate::layout::store::Seal;
use crate::store::master::Master;
use crate::store::types::{OpenRequest, Opened, PutOptions, no_plan};
use crate::store::wire::{Item, MAX_ITEMS, MAX_PACKET, Request, get_text, item_bytes};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

impl Store {
    fn send(&self, request: &Request<'_>, interrupt: &Interrupt<'_>) -> Result<Vec<Item>> {
        match &self.client.way {
            Way::Direct { host, .. } => Ok(host.serve(self.client.id, request)),
            Way::Remote(remote) => remote.call(request, interrupt, |_| ()),
        }
    }

    /// A call without which whoever makes it gets on as well: it waits for `limit` at most.
    pub(in crate::store) fn call_soon(&self, request: &Request<'_>, limit: Duration) -> Result<[u64; 3]> {
        let items = match &self.client.way {
            Way::Direct { host, .. } => host.serve(self.client.id, request),
            Way::Remote(remote) => remote.call_soon(limit, request, &self.interrupt())?,
        };
        items.into_iter().next().map_or(Ok([0; 3]), Item::result)
    }

    /// One call, and its whole answer.
    pub(in crate::store) fn ask(&self, request: &Request<'_>, interrupt: &Interrupt<'_>) -> Result<Item> {
        let items = self.send(request, interrupt)?;
        match items.into_iter().next() {
            Some(item) => Ok(item),
            None => Err(Error::new(NMC_ERR_PROTOCOL, "the store's master sent an empty answer")),
        }
    }

    /// One call with one result.
    pub(in crate::store) fn call(&self, request: &Request<'_>) -> Result<[u64; 3]> {
        self.call_until(request, &self.interrupt())
    }

    /// The same as one of several calls, of which the first made `interrupt`.
    pub(in crate::store) fn call_until(&self, request: &Request<'_>, interrupt: &Interrupt<'_>) -> Result<[u64; 3]> {
        self.ask(request, interrupt)?.result()
    }

    /// A call that gives a text.
    pub(in crate::store) fn call_text(&self, request: &Request<'_>) -> Result<String> {
        let item = self.ask(request, &self.interrupt())?;
        if item.status == 0 {
            return get_text(&item.text);
        }
        item.result().map(|_| String::new())
    }

    /// Asks for one plan, and notes it.
    pub(super) fn open_plan(&self, request: &OpenRequest<'_>, interrupt: &Interrupt<'_>) -> Result<Opened> {
        match &self.client.way {
            Way::Direct { host, .. } => {
                self.client.plans.make_room(1)?;
                let plan = host.with(|master: &mut Master| master.open(self.client.number, request))?;
                self.note(plan, request)
            }
            Way::Remote(_) => {
                let mut opened = Vec::new();
                self.open_plans(std::slice::from_ref(request), interrupt, &mut opened)?;
                opened.pop().unwrap_or_else(|| Err(Error::new(NMC_ERR_PROTOCOL, "an empty answer")))
            }
        }
    }

    fn terms(&self, plan: Opened, request: &OpenRequest<'_>) -> Terms {
        let OpenRequest { key, namespace, bytes, metadata, .. } = *request;
        let key_hash = self.client.map.hash_of(key, namespace);
        Terms { plan, key_hash, bytes, metadata: Seal::sum(metadata), trace: 0 }
    }

    /// Notes a plan, or gives it up if there is no memory for that.
    fn note(&self, plan: Opened, request: &OpenRequest<'_>) -> Result<Opened> {
        if self.client.plans.add(self.terms(plan, request)) {
            return Ok(plan);
        }
        Err(self.unnoted(&plan))
    }

    /// There was no memory to note a plan: it is given up.
    #[cold]
    fn unnoted(&self, plan: &Opened) -> Error {
        let _ = self.abandon(plan);
        memory::refused::<Terms>(self.client.plans.len() + 1)
    }

    /// Asks for many plans, in as few calls as possible; the results come into `results`. Fails as a whole only
    /// before anything is opened.
    pub(in crate::store) fn open_plans(
        &self,
        requests: &[OpenRequest<'_>],
        interrupt: &Interrupt<'_>,
        results: &mut Vec<Result<Opened>>,
    ) -> Result<()> {
        results.clear();
        memory::reserve(results, requests.len())?;
        self.client.plans.make_room(requests.len())?;
        match &self.client.way {
            Way::Direct { host, .. } => {
                for part in requests.chunks(MAX_ITEMS) {
                    let from = results.len();
                    let opened = host.with(|master| {
                        results.extend(part.iter().map(|request| master.open(self.client.number, request)));
                        Ok(())
                    });
                    if let Err(error) = opened {
                        results.truncate(from);
                        results.extend(part.iter().map(|_| Err(error.clone())));
                    }
                }
                for (result, request) in results.iter_mut().zip(requests) {
                    if let Ok(plan) = *result
                        && let Err(error) = self.note(plan, request)
                    {
                        *result = Err(error);
                    }
                }
            }
            Way::Remote(remote) => {
                for part in parts(requests, |request| request.key.len() + request.metadata.len()) {
                    let noted = std::cell::Cell::new(true);
                    let answer = memory::copy(part).and_then(|copy| {
                        remote.call(&Request::Open(copy), interrupt, |items| {
                            for (item, request) in items.iter().zip(part) {
                                let Some(plan) = plan_of(item) else { continue };
                                noted.set(self.client.plans.add(self.terms(plan, request)) && noted.get());
                            }
                        })
                    });
                    let from = results.len();
                    collect(results, answer, part.len(), |item| {
                        let plan = plan_of(&item);
                        item.result().and(plan.ok_or_else(|| Error::new(NMC_ERR_PROTOCOL, "a plan makes no sense")))
                    });
                    if !noted.get() {
                        // Not noted later: a master that did not see it in our list has given it up by now.
                        for result in &mut results[from..] {
                            if let Ok(plan) = *result
                                && self.client.plans.get(plan.plan_id).is_none()
                            {
                                *result = Err(self.unnoted(&plan));
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a call has failed for want of room that may still come: the value fits an empty heap, and the quota.
    fn is_short(&self, bytes: u64, error: &Error) -> bool {
        let p = self.client.params();
        let quota = || {
            let namespace = self.client.view().namespace(self.namespace);
            namespace.map(|ns| ns.quota_bytes.load(Relaxed)).filter(|quota| *quota != 0).unwrap_or(u64::MAX)
        };
        match error.status {
            NMC_ERR_BUSY | NMC_ERR_LIMIT => true,
            NMC_ERR_NO_SPACE => match bytes.checked_next_multiple_of(p.page_bytes.into()) {
                Some(paged) => paged <= p.heap_bytes && paged <= quota(),
                None => false,
            },
            _ => false,
        }
    }

    /// The ranks that may hold what is put with these options, besides the one that it is put on.
    #[inline]
    pub(in crate::store) fn among(&self, options: &PutOptions<'_>) -> u64 {
        if options.any_rank { self.client.ranks_to_store_on() } else { 0 }
    }

    /// Asks for a plan, and waits for room as the options say.
    #[inline]
    pub(in crate::store) fn open_one(&self, request: &OpenRequest<'_>, options: &PutOptions<'_>) -> Result<Opened> {
        let Patience { deadline, interrupt } = self.patience(options.wait);
        let opened = self.open_plan(request, &interrupt);
        match (&opened, &deadline) {
            (Err(error), Some(deadline)) if self.is_short(request.bytes, error) => {
                self.open_later(request, options, deadline, &interrupt)
            }
            _ => opened,
        }
    }

    #[cold]
    fn open_later(
        &self,
        request: &OpenRequest<'_>,
        options: &PutOptions<'_>,
        deadline: &Deadline,
        interrupt: &Interrupt<'_>,
    ) -> Result<Opened> {
        let is_short = |opened: &Result<Opened>| matches!(opened, Err(error) if self.is_short(request.bytes, error));
        let mut opened = Err(no_plan(0));
        self.wait_for_room(deadline, interrupt, || {
            // Ranks come and go while it waits.
            opened = self.open_plan(&OpenRequest { among: self.among(options), ..*request }, interrupt);
            Ok(is_short(&opened).into())
        })?;
        if is_short(&opened) { opened.map_err(not_in_time) } else { opened }
    }

    /// Asks again for the plans of those of `which` items that found no room, if the call waits for that, until there is some or
    /// time is over. `request` makes one, for a value that may lie on these ranks; `take`
    /// is given each plan, and says what becomes of its item.
    pub(in crate::store) fn open_rest<'k, T>(
        &self,
        patience: &Patience<'_>,
        which: impl Iterator<Item = usize>,
        results: &mut [Result<T>],
        options: &PutOptions<'_>,
        request: impl Fn(usize, u64) -> OpenRequest<'k>,
        mut take: impl FnMut(usize, Opened) -> Result<T>,
    ) -> Result<()> {
        let is_short = |results: &[Result<T>], i: usize| {
            results
                .get(i)
                .and_then(|result| result.as_ref().err())
                .is_some_and(|e| self.is_short(request(i, 0).bytes, e))
        };
        let Patience { deadline: Some(deadline), interrupt } = patience else { return Ok(()) };
        let mut short: Vec<usize> = memory::collect(which.filter(|i| is_short(results, *i)))?;
        if short.is_empty() {
            return Ok(());
        }
        let most = short.len().min(MAX_ITEMS);
        let (mut requests, mut opened) = (memory::with_capacity(most)?, memory::with_capacity(most)?);
        let waited = self.wait_for_room(deadline, interrupt, || {
            let among = self.among(options);
            for part in short.chunks(MAX_ITEMS) {
                requests.clear();
                requests.extend(part.iter().map(|i| request(*i, among)));
                if let Err(error) = self.open_plans(&requests, interrupt, &mut opened) {
                    part.iter().for_each(|i| results[*i] = Err(error.clone()));
                    continue;
                }
                for (i, opened) in part.iter().zip(opened.drain(..)) {
                    results[*i] = opened.and_then(|plan| take(*i, plan));
                }
            }
            short.retain(|i| is_short(results, *i));
            Ok(short.len())
        });
        for i in short {
            let late = std::mem::replace(&mut results[i], Err(no_plan(0)));
            results[i] = waited.clone().and_then(|()| late.map_err(not_in_time));
        }
        Ok(())
    }

    /// Removes many objects. Fails as a whole only before anything is removed.
    pub(in crate::store) fn remove_keys(&self, keys: &[&[u8]]) -> Result<Vec<Result<()>>> {
        let mut results = memory::with_capacity(keys.len())?;
        let interrupt = self.interrupt();
        for part in parts(keys, |key| key.len()) {
            let answer =
                memory::copy(part).and_then(|part| self.send(&Request::Remove(self.namespace, part), &interrupt));
            collect(&mut results, answer, part.len(), |item| item.result().map(|_| ()));
        }
        Ok(results)
    }

    /// Gives a plan up: nothing of this process stores for it any more. Gives whether a consumer has taken the object.
    pub(in crate::store) fn abandon(&self, plan: &Opened) -> Result<bool> {
        self.abandon_until(plan, &self.interrupt())
    }

    /// The same as one of several calls, of which the first made `interrupt`.
    pub(in crate::store) fn abandon_until(&self, plan: &Opened, interrupt: &Interrupt<'_>) -> Result<bool> {
        self.client.plans.remove(plan.plan_id);
        match self.call_until(&Request::Abandon(*plan), interrupt) {
            Ok([taken, ..]) => Ok(taken != 0),
            // It was not in the list of plans that a new connection began with: the master has ended it already.
            Err(error) if error.status == NMC_ERR_NOT_FOUND => Ok(false),
            Err(error) => {
                self.repeat_plans(&error);
                Err(error)
            }
        }
    }

    /// A call that ends a plan has failed, and the plan is not ours any more: if the master may not have heard of it, it is
    /// given the list of those that are.
    pub(in crate::store) fn repeat_plans(&self, error: &Error) {
        if let Way::Remote(remote) = &self.client.way
            && ![NMC_ERR_STALE, NMC_ERR_NOT_FOUND].contains(&error.status)
        {
            remote.renew();
        }
    }
}

#[cold]
fn not_in_time(error: Error) -> Error {
    Error::new(error.status, format!("{}; no room came in the time to wait for it", error.message))
}

fn plan_of(item: &Item) -> Option<Opened> {
    let [index, epoch, plan_id] = item.values;
    (item.status == 0 && plan_id != 0).then_some(Opened { index: u32::try_from(index).ok()?, epoch, plan_id })
}

/// Cuts a list into parts that fit a packet.
fn parts<T>(items: &[T], texts: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |item: &&T| {
            bytes += item_bytes(texts(item));
            bytes <= MAX_PACKET - 64
        };
        let n = rest.iter().take(MAX_ITEMS).take_while(fits).count().max(1);
        let (part, others) = rest.split_at_checked(n)?;
        rest = others;
        Some(part)
    })
}

/// One result for each of `wanted` items, whatever the answer.
fn collect<T>(results: &mut Vec<Result<T>>, answer: Result<Vec<Item>>, wanted: usize, one: impl Fn(Item) -> Result<T>) {
    match answer {
        Ok(items) if items.len() == wanted => results.extend(items.into_iter().map(one)),
        Ok(items) => {
            let text = format!("the store's master gave {} answers to {wanted} questions", items.len());
            let error = items.into_iter().next().and_then(|item| item.result().err());
            let error = error.unwrap_or_else(|| Error::new(NMC_ERR_PROTOCOL, text));
            results.extend((0..wanted).map(|_| Err(error.clone())));
        }
        Err(error) => results.extend((0..wanted).map(|_| Err(error.clone()))),
    }
}
