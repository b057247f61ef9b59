//! Values that come back from the disk into memory: into pages of a hidden plan, which the master shows if the entry still lives
//! that they were read from. A value that is removed or replaced meanwhile is not shown, so that it cannot come back by this.

use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::{NMC_ERR_EXISTS, NMC_ERR_NOT_FOUND};
use crate::layout::store::{FLAG_CHECKSUM, FLAG_HIDDEN, FLAG_RETURNS, FLAG_SPARES};
use crate::store::client::{Interrupt, Store};
use crate::store::copy::Cursor;
use crate::store::disk::{DiskAccess, DiskEntry, DiskInfo, DiskRead, Target};
use crate::store::read::LOOKS;
use crate::store::types::{
    Keep, Look, OpenRequest, Opened, Presence, ReadFrom, Retain, check_key, namespace_word, no_plan, not_found,
};
use crate::store::wire::Request;
use crate::sync::object;
use std::sync::atomic::Ordering::Relaxed;

/// Values that are under way at a time: their plans are open, and cannot be evicted.
const TOGETHER: usize = 16;

/// A value on its way into memory.
struct Coming {
    number: usize,
    found: DiskEntry,
    plan: Opened,
}

impl Store {
    /// Brings the values of keys back into memory, into the heap of `rank`; `result` hears by number what came of each. Well if
    /// it is in memory when this returns, whoever brought it; false if it is being written there.
    pub fn promote(&self, keys: &[&[u8]], rank: u32, result: impl FnMut(usize, Result<bool>)) {
        self.promote_with(0, keys, rank, result);
    }

    /// The same, as far as nothing has to go for them that only memory has: nobody of the store has asked for them.
    pub fn promote_gently(&self, keys: &[&[u8]], rank: u32, result: impl FnMut(usize, Result<bool>)) {
        self.promote_with(FLAG_SPARES, keys, rank, result);
    }

    fn promote_with(&self, flags: u32, keys: &[&[u8]], rank: u32, mut result: impl FnMut(usize, Result<bool>)) {
        let interrupt = self.interrupt();
        for (at, part) in keys.chunks(TOGETHER).enumerate() {
            if let Err(error) = interrupt.check().and_then(|()| interrupt.check_answers()) {
                (0..part.len()).for_each(|number| result(at * TOGETHER + number, Err(error.clone())));
                continue;
            }
            // At first all; then those that were not found though they are there: they have moved, or their plan was given up.
            let mut left = [true; TOGETHER];
            for look in 1..=LOOKS {
                let mut some: [&[u8]; TOGETHER] = [&[]; TOGETHER];
                let (mut numbers, mut count) = ([0; TOGETHER], 0);
                for (number, key) in part.iter().enumerate().filter(|(number, _)| left[*number]) {
                    (some[count], numbers[count]) = (key, number);
                    count += 1;
                }
                left = [false; TOGETHER];
                let mut silent = [true; TOGETHER];
                let mut tell = |number: usize, told: Result<bool>| {
                    silent[number] = false;
                    let number = numbers[number];
                    let missing = matches!(&told, Err(error) if error.status == NMC_ERR_NOT_FOUND);
                    if missing && look < LOOKS && self.is_somewhere(part[number]) {
                        left[number] = true;
                    } else {
                        result(at * TOGETHER + number, told);
                    }
                };
                let promoted = self.promote_some(&some[..count], (rank, flags), &interrupt, &mut tell);
                if let Err(error) = promoted {
                    // Those that nothing was said about.
                    let those = (0..count).filter(|number| silent[*number]);
                    those.for_each(|number| result(at * TOGETHER + numbers[number], Err(error.clone())));
                }
                if !left.contains(&true) {
                    break;
                }
            }
        }
    }

    fn is_somewhere(&self, key: &[u8]) -> bool {
        self.presence(key).is_ok_and(|presence| presence != Presence::Absent)
    }

    /// Fails for all that nothing was told about.
    fn promote_some(
        &self,
        keys: &[&[u8]],
        place: (u32, u32),
        interrupt: &Interrupt<'_>,
        tell: &mut impl FnMut(usize, Result<bool>),
    ) -> Result<()> {
        let Some(disk) = self.disk_for_call_until(interrupt)? else {
            for (number, key) in keys.iter().enumerate() {
                tell(number, self.in_memory(key).and_then(|there| there.ok_or_else(|| not_found(key))));
            }
            return Ok(());
        };
        let mut wanted: Vec<(usize, DiskEntry)> = memory::with_capacity(keys.len())?;
        for (number, key) in keys.iter().enumerate() {
            match self.find_on_disk(&disk, key) {
                Ok(Err(there)) => tell(number, Ok(there)),
                Ok(Ok(entry)) => wanted.push((number, entry)),
                Err(error) => tell(number, Err(error)),
            }
        }
        let coming = self.open_for(&disk, keys, place, &wanted, interrupt, tell)?;
        self.bring(&disk, keys, &coming, interrupt, tell);
        Ok(())
    }

    /// Whether memory has a value: false if it is being written; `None` if it has not.
    fn in_memory(&self, key: &[u8]) -> Result<Option<bool>> {
        check_key(key)?;
        Ok(match self.look(self.client.view(), key)? {
            Look::Ready(_) => Some(true),
            Look::Writing(..) => Some(false),
            Look::Missing => None,
        })
    }

    /// Where a value is on disk, or what memory has of it.
    fn find_on_disk(&self, disk: &DiskAccess, key: &[u8]) -> Result<std::result::Result<DiskEntry, bool>> {
        if let Some(there) = self.in_memory(key)? {
            return Ok(Err(there));
        }
        if let Some(entry) = disk.map.probe(self.namespace, key)? {
            return Ok(Ok(entry));
        }
        // It may have come into memory, and ended on disk, between the two looks.
        self.in_memory(key)?.map(Err).ok_or_else(|| not_found(key))
    }

    /// Opens a plan for each of these values. Fails as a whole if nothing was opened.
    fn open_for(
        &self,
        disk: &DiskAccess,
        keys: &[&[u8]],
        (rank, flags): (u32, u32),
        wanted: &[(usize, DiskEntry)],
        interrupt: &Interrupt<'_>,
        tell: &mut impl FnMut(usize, Result<bool>),
    ) -> Result<Vec<Coming>> {
        let entries: Vec<(DiskEntry, &[u8])> =
            memory::collect(wanted.iter().map(|(number, found)| (*found, keys[*number])))?;
        let infos = disk.reader.infos(&disk.map, &entries)?;
        let mut known = memory::with_capacity(wanted.len())?;
        for ((number, found), info) in wanted.iter().zip(infos) {
            let bytes = found.entry.bytes;
            match info {
                Ok(Some(info)) => known.push((*number, *found, info)),
                Ok(None) => tell(*number, Err(not_found(keys[*number]))),
                Err(error) => {
                    let judged = self.judge(disk, found, bytes, Err(error));
                    tell(*number, judged.and_then(|_| Err(not_found(keys[*number]))));
                }
            }
        }
        let requests = memory::collect(known.iter().map(|(number, found, info)| OpenRequest {
            key: keys[*number],
            namespace: self.namespace,
            bytes: found.entry.bytes,
            rank: Some(rank),
            among: 0,
            flags: FLAG_HIDDEN | FLAG_CHECKSUM | FLAG_RETURNS | flags,
            keep: keep_of(info),
            metadata: &info.metadata,
            put: 0,
        }))?;
        let mut coming = memory::with_capacity(known.len())?;
        let mut opened = Vec::new();
        self.open_plans(&requests, interrupt, &mut opened)?;
        drop(requests);
        for ((number, found, _), opened) in known.into_iter().zip(opened) {
            match opened {
                Ok(plan) => coming.push(Coming { number, found, plan }),
                Err(error) => tell(number, Err(error)),
            }
        }
        Ok(coming)
    }

    /// Reads values into their plans, all of them together, and has them shown.
    fn bring(
        &self,
        disk: &DiskAccess,
        keys: &[&[u8]],
        coming: &[Coming],
        interrupt: &Interrupt<'_>,
        tell: &mut impl FnMut(usize, Result<bool>),
    ) {
        let (read, refused) = match self.read_to_pages(disk, keys, coming) {
            Ok(read) => (read, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let refused = || refused.clone().unwrap_or_else(|| memory::refused::<Coming>(1));
        let mut read = read.into_iter();
        for come in coming {
            let (key, bytes) = (keys[come.number], come.found.entry.bytes);
            let outcome = read.next().unwrap_or_else(|| Err(refused()));
            let shown = match self.judge(disk, &come.found, bytes, outcome) {
                Ok(true) => self.show_promoted(disk, &come.plan, &come.found, interrupt),
                Ok(false) => Err(not_found(key)),
                Err(error) => Err(error),
            };
            if shown.is_err() {
                let _ = self.abandon_until(&come.plan, interrupt);
            }
            let told = match shown {
                // Whoever was faster has the same.
                Err(error) if error.status == NMC_ERR_EXISTS => Ok(true),
                shown => shown.map(|()| true),
            };
            tell(come.number, told);
        }
    }

    /// Reads values, all of them together, and copies them to their pages. Never straight into these: the kernel may end what a killed
    /// process began to read after the process itself, and the pages are another's by then.
    fn read_to_pages(&self, disk: &DiskAccess, keys: &[&[u8]], coming: &[Coming]) -> Result<Vec<Result<bool>>> {
        let mut takers = memory::collect(coming.iter().map(|come| {
            |at: u64, bytes: &[u8]| {
                let view = self.client.view();
                let planned = self.planned(view, &come.plan)?;
                let mut cursor = Cursor::new(self, view, planned.header, &planned.shape, at)?;
                self.client.move_in(&mut cursor, bytes)
            }
        }))?;
        let reads = coming.iter().zip(&mut takers).map(|(come, taker)| DiskRead {
            entry: come.found,
            key: keys[come.number],
            offset: 0,
            bytes: come.found.entry.bytes,
            to: Target::Take(taker),
            outcome: Ok(false),
        });
        let mut reads = memory::collect(reads)?;
        disk.reader.read(&disk.map, &mut reads);
        memory::collect(reads.into_iter().map(|read| read.outcome))
    }

    /// The pages of a plan have what an entry leads to: has the master show it, if that is still so.
    fn show_promoted(
        &self,
        disk: &DiskAccess,
        plan: &Opened,
        found: &DiskEntry,
        interrupt: &Interrupt<'_>,
    ) -> Result<()> {
        let view = self.client.view();
        let planned = self.planned(view, plan)?;
        self.store_sums(view, &planned, None)?;
        let word = planned.header.namespace.load(Relaxed);
        let lives = object::commit(&planned.header.control, &planned.words.published, plan.epoch);
        if !lives || word != namespace_word(view, word & 0xff) {
            return Err(no_plan(plan.plan_id));
        }
        let read_from = ReadFrom { disk: disk.map.id(), entry: found.index, word: found.word };
        self.call_until(&Request::Reveal(*plan, Some(read_from)), interrupt)?;
        self.client.plans.remove(plan.plan_id);
        self.client.ring();
        Ok(())
    }
}

/// How a value is kept when it comes back: as its writer said, but for a time that is over or not known any more.
pub(in crate::store) fn keep_of(info: &DiskInfo) -> Keep {
    let (retain, priority) = info.class;
    let retain = Retain::from_code(retain.into()).filter(|retain| *retain != Retain::Soft);
    Keep { retain: retain.unwrap_or(Retain::None), priority: priority.into(), ttl_ms: 0 }
}
