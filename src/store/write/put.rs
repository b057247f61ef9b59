//! Puts: plans that are filled from the program's memory and published in one call.

use super::publish::Publication;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::point::reach;
use crate::store::client::{Interrupt, Op, Store};
use crate::store::copy::{Cursor, Pieces};
use crate::store::sys;
use crate::store::types::{Opened, PutOptions, check_key};
use crate::store::wire::MAX_ITEMS;
use std::sync::atomic::Ordering::Relaxed;

impl Store {
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
}
