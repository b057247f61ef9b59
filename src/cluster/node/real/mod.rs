//! The node's store behind its agent: [`Storage`] over [`Store`], by a client of its own. Where the bytes of a plan or of a held value
//! are in this process is said by `places`, so that the loop around the agent receives and sends them in place; where the heaps are a device's, in host
//! memory that stands in for them; and while they take nothing, what is on disk in host memory beside them. Used by one thread.
//!
//! A segment is a rank of the store's world, with its number; the one behind them is the tier, if there is one. What a drop could not do is not forgotten: the position in the drop
//! log is not kept then, so that the entries come again.

mod places;

use super::bounce::{self, Bounce, Bounces, For};
use super::promoter::Promoter;
use super::staged::{Room, Staged, Value};
use super::storage::{Hold, Memory as _, Part, Pinned, Plan, Storage, Tail, Wanted};
use crate::base::crc::Combine;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_CANCELLED, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND, NMC_ERR_PEER_LOST, NMC_ERR_STALE,
    NMC_ERR_UNAVAILABLE, NMC_NOT_READY,
};
use crate::cluster::net::ByNumber;
use crate::cluster::types::{Media, ObjectKey, Position, PutId};
use crate::cluster::wire::{Extent, Fact, Metadata, Published, Region, Retired, SegmentInfo};
use crate::layout::store::{self as layout, MAX_NAMESPACES, ON_DISK};
use crate::mem::HeapKind;
use crate::store::Store;
use crate::store::agent::FromDisk;
use crate::store::copy::Pieces;
use crate::store::types::{Extents, Keep, Location, Look, Opened, Pin, PutOptions, Retain};
use crate::store::watch::{self, Described};
use places::landed;
use std::time::{Duration, Instant};

/// Headers that one part of a snapshot looks at, at most.
const LOOKED_AT: u32 = 1 << 14;
/// How often it is looked whether programs have published something of which the store's master has not told yet.
const LOOK: Duration = Duration::from_millis(2);
/// Where the priority is in the code of how an object is kept; the class is below it.
const PRIORITY_SHIFT: u32 = 2;

/// How an object is kept, as the wire has it. A retention without a class that ends has no end.
#[must_use]
pub fn retain_code(retain: Retain, priority: u32) -> u32 {
    retain.code() | priority << PRIORITY_SHIFT
}

fn keep_of(code: u32) -> Result<Keep> {
    match Retain::from_code(code & 3) {
        Some(retain) if code < 4 << PRIORITY_SHIFT => Ok(Keep { retain, priority: code >> PRIORITY_SHIFT, ttl_ms: 0 }),
        _ => crate::bail!(NMC_ERR_INVALID_ARG, "{code} is no retain class and priority"),
    }
}

/// Whoever asked is to try elsewhere, or later.
fn unavailable(error: Error) -> Error {
    Error { status: NMC_ERR_UNAVAILABLE, ..error }
}

fn unheld(pin: u64) -> Error {
    Error::new(NMC_ERR_NOT_FOUND, format!("nothing is held as {pin}"))
}

/// There is room in a moment, unlike in a heap that is full: whoever puts is to come again by itself.
fn soon(error: Error) -> Error {
    let status = if error.status == NMC_ERR_BUSY { NMC_NOT_READY } else { error.status };
    Error { status, ..error }
}

/// See the module.
pub struct NodeStore {
    /// Ends before the store does.
    promoter: Promoter,
    store: Store,
    /// By number, those that were used: they stay as long as the store lives.
    spaces: Vec<Option<Space>>,
    plans: ByNumber<Plan, Opened>,
    /// Those that are to be on disk before they are answered, and those of them that are being written.
    for_disk: ByNumber<Plan, Option<Writing>>,
    pins: ByNumber<u64, Held>,
    next_pin: u64,
    /// Makes the checksum of a value of those of its pages, where there are some.
    sums: Vec<Combine>,
    /// Stand in for the heaps, if the CPU does not reach those.
    pub(super) bounces: Option<Bounces>,
    /// Plans on a GPU whose bytes others write there, and which.
    written_by_others: ByNumber<Plan, u32>,
    /// The disk that the store had when it was said what there is.
    disk: Known,
    /// Memory that others write to, as they were told of it.
    regions: Vec<Region>,
    /// A drop since the last position has failed.
    trouble: Option<Error>,
    /// When programs were last looked after, and what the bell that they ring had counted.
    looked: Option<(Instant, u32)>,
}

/// A value that somebody reads.
enum Held {
    /// In the store's memory.
    Pinned(Pin),
    /// Beside it.
    Staged(Staged),
}

/// A value that is published and is being written to disk.
struct Writing {
    opened: Opened,
    space: u32,
    key: Vec<u8>,
    ticket: u64,
    /// What is held is evicted last.
    pin: Option<Pin>,
}

/// What is known of the disk below a store.
struct Known {
    /// How often it had come or gone.
    changes: u64,
    name: u64,
    slots: u32,
}

impl Known {
    /// In this order: if the disk comes or goes meanwhile that is found out.
    fn of(store: &Store, limit: Duration) -> Result<Self> {
        let (changes, name) = (store.disk_changes(), store.disk_id());
        Ok(Self { changes, name, slots: store.adopt_disk(limit)? })
    }
}

/// A namespace, and a handle for its keys.
struct Space {
    name: Vec<u8>,
    store: Store,
}

impl NodeStore {
    /// The agent's own way into the store of which `program` is a handle. It keeps the program's client open until it is dropped.
    pub fn new(program: &Store) -> Result<Self> {
        Self::within(program, Duration::MAX)
    }

    /// The same, if the store's master answers in this time.
    pub fn within(program: &Store, limit: Duration) -> Result<Self> {
        let begun = Instant::now();
        let store = program.for_agent(limit)?;
        let spaces = memory::vec_with(MAX_NAMESPACES, |_| None)?;
        let disk = Known::of(&store, limit.saturating_sub(begun.elapsed()))?;
        let (plans, for_disk, pins) = (ByNumber::default(), ByNumber::default(), ByNumber::default());
        let (next_pin, regions, trouble, looked) = (1, Vec::new(), None, None);
        let params = store.client().params();
        let sums = memory::vec_with((params.checksums != 0).into(), |_| Combine::new(params.page_bytes.into()))?;
        let promoter = Promoter::default();
        let on_host = store.client().member().heap_kind() == HeapKind::Host;
        let bounces = (!on_host).then(|| Bounces::new(bounce::MOST));
        Ok(Self {
            promoter,
            store,
            spaces,
            plans,
            for_disk,
            pins,
            next_pin,
            sums,
            bounces,
            written_by_others: ByNumber::default(),
            disk,
            regions,
            trouble,
            looked,
        })
    }

    /// Whatever the heaps are, they count as a device's: bytes go by way of host memory, and so many at a time.
    #[must_use]
    pub fn by_way_of_host(mut self, most: u64) -> Self {
        self.bounces = Some(Bounces::new(most));
        self
    }

    /// Bytes of host memory that stand in for the heaps at the moment: of what is put, and of what is read.
    #[must_use]
    pub fn bounced(&self) -> (u64, u64) {
        self.bounces.as_ref().map_or((0, 0), |bounces| (bounces.plans.used(), bounces.pins.used()))
    }

    /// So many bytes of what is on disk may be beside the heaps, while these take nothing.
    #[must_use]
    pub fn staging_at_most(mut self, most: u64) -> Self {
        self.promoter = Promoter::with(Room::new(most));
        self
    }

    /// Bytes of what is on disk that are beside the heaps at the moment.
    #[must_use]
    pub fn staged(&self) -> u64 {
        self.promoter.staged()
    }

    /// The store, through the agent's client.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Headers that the store has.
    #[must_use]
    pub fn headers(&self) -> u32 {
        self.store.client().params().max_objects
    }

    /// Slots of its tier.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.disk.slots
    }

    /// Fails if the tier of the store was opened or closed since it was said what there is: others would not know its slots.
    pub fn check_tier(&self) -> Result<()> {
        if self.has_changed() {
            crate::bail!(NMC_ERR_STALE, "the tier of the store was opened or closed; the node has to begin anew");
        }
        Ok(())
    }

    /// Number of the tier among the segments.
    pub fn tier_segment(&self) -> u32 {
        self.store.client().params().world_size
    }

    /// What the node offers: the heap of each rank, and the tier. `name` makes the names, which no other segment in the cluster may have.
    pub fn segments(&self, name: impl Fn(u32) -> String) -> Result<Vec<SegmentInfo>> {
        let params = self.store.client().params();
        let media = if self.bounces.is_none() { Media::Ram } else { Media::Vram };
        let ranks = (0..params.world_size).map(|number| (number, media, self.usage(number), params.heap_bytes));
        let ranks = ranks.map(|(number, media, used, all)| (number, media, used, all, self.near(number)));
        let tier = self.store.disk_usage().filter(|_| self.slots() > 0);
        let tier = tier.map(|(used, all)| (self.tier_segment(), Media::Ssd, used, all, None));
        memory::collect(ranks.chain(tier).map(|(number, media, used, capacity, near)| SegmentInfo {
            number,
            name: name(number),
            media,
            capacity,
            used,
            near: near.and_then(|near| i32::try_from(near).ok()).unwrap_or(-1),
        }))
    }

    /// Bytes in use of a rank's heap, as others are to see it: all of them if nothing can lie there.
    fn usage(&self, rank: u32) -> u64 {
        let all = self.store.client().params().heap_bytes;
        if self.store.client().may_store_on(rank) { self.store.heap_usage(rank).0 } else { all }
    }

    /// What was just published is held, and the tier hears of it.
    fn begin_to_write(&mut self, opened: Opened) -> Result<Writing> {
        let (space, key) = (self.store.namespace_of(opened.index), self.store.key_of(opened.index));
        let Some(Space { store, .. }) = self.space(space) else {
            crate::bail!(NMC_ERR_STALE, "what was published is of no namespace");
        };
        // By a handle of its namespace: what has to be on disk is looked for there.
        let pin = store.pin_named(opened.index, opened.epoch, &key)?.map(|(pin, _)| pin);
        let begun = store.begin_to_write(&key);
        match begun {
            Ok(ticket) => Ok(Writing { opened, space, key, ticket, pin }),
            Err(error) => {
                let _ = pin.map(|pin| self.store.unpin(pin));
                Err(error)
            }
        }
    }

    /// Why something is not on disk. Of a put whose tier was closed meanwhile, or is another one by now, nothing is wrong: it begins again.
    fn without_tier(&self, error: Error) -> Error {
        let closed = error.status == NMC_ERR_CANCELLED || self.has_changed();
        if closed { Error::new(NMC_ERR_STALE, error.message) } else { error }
    }

    /// It is on disk, or is not to be.
    fn end_writing(&mut self, plan: Plan) -> Option<Writing> {
        let writing = self.for_disk.remove(&plan)??;
        if let Some(pin) = writing.pin {
            let _ = self.store.unpin(pin);
        }
        Some(writing)
    }

    pub(super) fn opened(&self, plan: Plan) -> Result<&Opened> {
        let given_up = || Error::new(NMC_ERR_STALE, format!("plan {plan:?} is not open any more"));
        self.plans.get(&plan).ok_or_else(given_up)
    }

    /// The namespace with this number, if there is one.
    fn space(&mut self, id: u32) -> Option<&Space> {
        let place = self.spaces.get_mut(id as usize)?;
        if place.is_none() {
            let name = self.store.namespace_name(id)?;
            *place = Some(Space { name, store: self.store.in_namespace(id) });
        }
        place.as_ref()
    }

    /// The namespace with this name, if there is one.
    fn find_space(&mut self, name: &[u8]) -> Option<&Space> {
        let known = self.spaces.iter().position(|space| space.as_ref().is_some_and(|space| space.name == name));
        let id = known.and_then(|id| u32::try_from(id).ok()).or_else(|| self.store.find_namespace(name))?;
        self.space(id)
    }

    /// The same, made if need be.
    fn make_space(&mut self, name: &[u8]) -> Result<&Space> {
        if self.find_space(name).is_none() {
            self.store.namespace(name, None)?;
        }
        let none = || Error::new(NMC_ERR_NOT_FOUND, format!("there is no namespace {}", name.escape_ascii()));
        self.find_space(name).ok_or_else(none)
    }

    fn published(&mut self, index: u32, found: &Described) -> Result<Option<Published>> {
        let Described { epoch, namespace, ref key, put, bytes, owner_rank } = *found;
        let Some(space) = self.space(namespace) else { return Ok(None) };
        let key = ObjectKey::new(&space.name, key)?;
        Ok(Some(Published { index, epoch, key, put: PutId(put), length: bytes, segment: owner_rank }))
    }

    /// What is at an index: of a header, or of a slot.
    fn described(&self, index: u32) -> Result<Option<Described>> {
        match index & ON_DISK {
            0 => Ok(self.store.described(index)),
            _ => self.store.described_on_disk(index & !ON_DISK),
        }
    }

    /// A fact as others are told it. One for one, since they are numbered: what is over by now is told as that, which comes again.
    fn told(&mut self, fact: layout::Fact) -> Result<Fact> {
        Ok(match fact {
            layout::Fact::Published { index, epoch } => {
                let found = self.described(index)?.filter(|found| found.epoch == epoch);
                let published = found.map_or(Ok(None), |found| self.published(index, &found))?;
                published.map_or(Retired { index, epoch }.into(), Into::into)
            }
            layout::Fact::Retired { index, epoch } => Retired { index, epoch }.into(),
            // Each of the objects is told of when its header is free. No epoch is 0, so that this says nothing.
            layout::Fact::Flushed { .. } => Retired { index: 0, epoch: 0 }.into(),
        })
    }

    /// Every so often: what programs have published is told of, and a master that nobody else looks after does what it must.
    fn look_after(&mut self) {
        if self.looked.is_some_and(|(when, _)| when.elapsed() < LOOK) {
            return;
        }
        self.store.tend();
        let rung = self.store.publications();
        let news = self.looked.is_none_or(|(_, before)| before != rung);
        self.looked = Some((Instant::now(), rung));
        if news && self.store.notice().is_err() {
            // The master is away: asked again the next time.
            self.looked = Some((Instant::now(), rung.wrapping_sub(1)));
        }
    }

    fn note(&mut self, dropped: Result<()>) {
        if let Err(error) = dropped {
            self.trouble = Some(error.context("dropping what the cluster has removed"));
        }
    }
}

impl NodeStore {
    /// Lets go of what was found by its key if the tier was opened or closed: it may have been removed while it was on that disk alone.
    fn check_brought(&self, held: Pin) -> Result<()> {
        self.check_tier().map_err(unavailable).inspect_err(|_| _ = self.store.unpin(held))
    }

    fn held(&self, pin: u64) -> Result<&Held> {
        self.pins.get(&pin).ok_or_else(|| unheld(pin))
    }

    /// Gives a name to what is beside memory; there is room for it.
    fn lend(&mut self, mut staged: Staged) -> Pinned {
        let FromDisk { put, bytes: length, class: (class, priority), ref mut metadata } = staged.about;
        let metadata = Metadata(std::mem::take(metadata));
        let (pin, put, retain) = (self.next_pin, PutId(put), retain_code(class, priority));
        self.next_pin += 1;
        self.pins.insert(pin, Held::Staged(staged));
        Pinned { pin, put, length, retain, metadata }
    }

    /// Gives a name to what is held; there is room for it.
    fn hold(&mut self, (held, location): (Pin, Location)) -> Result<Pinned> {
        let said = self.store.view_metadata(held).and_then(|said| match said {
            Look::Ready(said) => memory::copy(&said),
            _ => crate::bail!(NMC_ERR_NOT_FOUND, "what is held is not complete"),
        });
        let metadata = Metadata(said.inspect_err(|_| _ = self.store.unpin(held))?);
        let (class, priority) = self.store.class_of(held);
        let retain = retain_code(class, priority);
        let (pin, put) = (self.next_pin, PutId(self.store.put_of(held)));
        self.next_pin += 1;
        self.pins.insert(pin, Held::Pinned(held));
        Ok(Pinned { pin, put, length: location.bytes_total, retain, metadata })
    }
}

impl Storage for NodeStore {
    fn open(&mut self, wanted: &Wanted<'_>) -> Result<Plan> {
        let Wanted { put, key, length, segment, exact, retain, metadata, is_copy } = *wanted;
        memory::reserve_map(&mut self.plans, 1)?;
        let keep = keep_of(retain)?;
        let on_disk = segment == self.tier_segment() && self.slots() > 0;
        let rank = Some(segment).filter(|_| !on_disk);
        let for_disk = on_disk || !is_copy && self.slots() > 0 && self.store.writes_through()?;
        let options =
            PutOptions { rank, any_rank: !exact || on_disk, keep, metadata: &metadata.0, ..PutOptions::DEFAULT };
        memory::reserve_map(&mut self.for_disk, 1)?;
        // Before there is a plan: others may have to go for that. What has no room in any case is the store's to refuse.
        let fits = length <= self.store.client().params().heap_bytes;
        let bounces = self.bounces.as_mut().filter(|_| fits);
        let wanted = if is_copy { For::Copy } else { For::Caller };
        let bounce = bounces.map(|bounces| bounces.plans.make(0, length, wanted)).transpose().map_err(soon)?;
        let space = self.make_space(key.space())?;
        let opened = space.store.open_clustered(put.0, key.key(), length, &options);
        let (opened, _) = opened.map_err(|error| match error.status {
            // Of a rank that nobody has taken, or that lends its memory: others have room.
            NMC_ERR_PEER_LOST => Error::new(NMC_ERR_NO_SPACE, error.message),
            _ => error,
        })?;
        let plan = Plan { index: opened.index, epoch: opened.epoch };
        self.plans.insert(plan, opened);
        if let (Some(bounces), Some(bounce)) = (&mut self.bounces, bounce) {
            bounces.plans.keep(plan, bounce);
        }
        if for_disk {
            self.for_disk.insert(plan, None);
        }
        Ok(plan)
    }

    fn extents(&mut self, plan: Plan) -> Result<Vec<Extent>> {
        let Extents { owner_rank, bytes_total: mut left, runs } = self.store.plan_extents(self.opened(plan)?)?;
        let known = self.regions.iter().find(|region| region.number == owner_rank);
        if known.is_none() || known.cloned() != self.region(owner_rank).ok() {
            crate::bail!(NMC_ERR_UNSUPPORTED, "others do not know the memory of rank {owner_rank}");
        }
        let device = known.and_then(|region| region.device);
        memory::reserve_map(&mut self.written_by_others, 1)?;
        self.written_by_others.extend(device.map(|device| (plan, device)));
        if let Some(bounces) = &mut self.bounces {
            bounces.plans.end(plan);
        }
        let first = self.store.client().params().heap_offset;
        memory::collect(runs.into_iter().map(|(offset, bytes)| {
            let length = bytes.min(left);
            left -= length;
            Extent { region: owner_rank, offset: offset - first, length }
        }))
    }

    fn checksum(&self, plan: Plan) -> Result<u32> {
        let opened = self.opened(plan)?;
        match &self.bounces {
            None => self.store.plan_checksum(opened),
            Some(bounces) => bounces.plans.get(plan).map(Bounce::sum).ok_or_else(landed),
        }
    }

    fn commit(&mut self, plan: Plan) -> Result<Option<u64>> {
        let opened = *self.opened(plan)?;
        let stored = self.land(plan, &opened);
        match stored.and_then(|()| self.store.commit_and_tell(&opened)) {
            Ok(_) if self.for_disk.contains_key(&plan) => {
                let writing = self.begin_to_write(opened).map_err(|error| self.without_tier(error))?;
                self.for_disk.insert(plan, Some(writing));
                self.plans.remove(&plan);
                Ok(None)
            }
            Ok(fact) => {
                self.plans.remove(&plan);
                Ok(Some(fact))
            }
            Err(error) if error.status == NMC_ERR_NOT_FOUND => Err(Error::new(NMC_ERR_STALE, error.message)),
            Err(error) => Err(error),
        }
    }

    fn written(&mut self, plan: Plan) -> Result<Option<u64>> {
        let Some(Some(writing)) = self.for_disk.get(&plan) else {
            crate::bail!(NMC_ERR_STALE, "{plan:?} is not being written to disk");
        };
        let (space, put, ticket) = (writing.space, writing.opened.plan_id, writing.ticket);
        let key = memory::copy(&writing.key)?;
        let Some(space) = self.space(space) else { crate::bail!(NMC_ERR_STALE, "{plan:?} is of no namespace") };
        if !space.store.is_written(&key, put, ticket).map_err(|error| self.without_tier(error))? {
            return Ok(None);
        }
        let fact = self.store.notice()?;
        self.end_writing(plan);
        Ok(Some(fact))
    }

    fn abandon(&mut self, plan: Plan) {
        if let Some(bounces) = &mut self.bounces {
            bounces.plans.end(plan);
        }
        self.written_by_others.remove(&plan);
        if let Some(writing) = self.end_writing(plan) {
            let _ = self.store.give_up(&writing.opened);
        }
        if let Some(opened) = self.plans.remove(&plan) {
            // If the master does not hear of it now it hears of it when it is back.
            let _ = self.store.give_up(&opened);
        }
    }

    fn doubt(&mut self, plan: Plan) -> u64 {
        let Ok(opened) = self.opened(plan) else { return 0 };
        // While the master is away the plan is open, and its pages are out of use as well.
        let bytes = || self.store.plan_extents(opened).map_or(0, |extents| extents.bytes_total);
        self.store.doubt(opened).unwrap_or_else(|_| bytes())
    }

    fn pin(&mut self, plan: Plan, key: &ObjectKey, put: PutId) -> Result<Hold> {
        memory::reserve_map(&mut self.pins, 1)?;
        let missing = || Error::new(NMC_ERR_NOT_FOUND, format!("there is no {key:?} at {plan:?}"));
        let space = self.find_space(key.space()).ok_or_else(missing)?;
        let store = space.store.share();
        if plan.index & ON_DISK == 0
            && let Some(held) = store.pin_named(plan.index, plan.epoch, key.key())?
        {
            return self.hold(held).map(Hold::Held);
        }
        // If it has gone to a disk or come from there, others need not know that yet: they compare the put. Nor if that disk has come and gone.
        if (self.slots() > 0 || put != PutId(0))
            && let Look::Ready(held) = store.pin(key.key())?
        {
            self.check_brought(held.0)?;
            return self.hold(held).map(Hold::Held);
        }
        self.check_tier().map_err(unavailable)?;
        if self.slots() == 0 || !store.is_on_disk(key.key())? {
            return Err(missing());
        }
        self.promoter.bring(store, key.key()).map(Hold::Coming)
    }

    fn came(&mut self, coming: u64) -> Result<Option<Pinned>> {
        match self.promoter.came(coming) {
            None => Ok(None),
            Some(Ok(Some(Value::Held(held, location)))) => {
                memory::reserve_map(&mut self.pins, 1).inspect_err(|_| _ = self.store.unpin(held))?;
                self.check_brought(held)?;
                self.hold((held, location)).map(Some)
            }
            Some(Ok(Some(Value::Staged(staged)))) => {
                memory::reserve_map(&mut self.pins, 1)?;
                self.check_tier().map_err(unavailable)?;
                Ok(Some(self.lend(staged)))
            }
            Some(Ok(None)) => crate::bail!(NMC_ERR_NOT_FOUND, "what was on disk is not there any more"),
            Some(Err(error)) => Err(error),
        }
    }

    fn forget(&mut self, coming: u64) {
        if let Some(Ok(Some(Value::Held(held, _)))) = self.promoter.forget(coming) {
            let _ = self.store.unpin(held);
        }
    }

    fn ready(&mut self, pin: u64, offset: u64, bytes: u64) -> Result<()> {
        if self.bounces.is_none() || bytes == 0 {
            return Ok(());
        }
        let &Held::Pinned(held) = self.held(pin)? else { return Ok(()) };
        let Some(bounces) = &mut self.bounces else { return Ok(()) };
        let bounce = bounces.pins.make(offset, bytes, For::Caller)?;
        self.store.read_view(held, offset, &Pieces::Slices(&[bounce.slice()]))?;
        bounces.pins.keep(pin, bounce);
        Ok(())
    }

    fn sum(&mut self, pin: u64) -> Result<Option<u32>> {
        let Some(pages) = self.sums.first() else { return Ok(None) };
        match self.held(pin)? {
            Held::Pinned(held) => self.store.sealed_sum(*held, pages),
            Held::Staged(staged) => Ok(staged.sum),
        }
    }

    fn verify(&mut self, pin: u64, offset: u64, bytes: u64) -> Result<()> {
        if self.sums.is_empty() {
            return Ok(());
        }
        match self.held(pin)? {
            Held::Pinned(held) => self.store.verify_part(*held, offset..offset.saturating_add(bytes)).map(drop),
            // It was verified when it came from the disk.
            Held::Staged(_) => Ok(()),
        }
    }

    fn unpin(&mut self, pin: u64) {
        if let Some(bounces) = &mut self.bounces {
            bounces.pins.end(pin);
        }
        if let Some(Held::Pinned(held)) = self.pins.remove(&pin) {
            let _ = self.store.unpin(held);
        }
    }

    fn drop_named(&mut self, plan: Plan, key: &ObjectKey) {
        if plan.index & ON_DISK != 0 {
            let Some(space) = self.find_space(key.space()) else { return };
            let is = space.store.is_on_disk_as(plan.index & !ON_DISK, plan.epoch, key.key());
            let dropped = is.and_then(|is| if is { space.store.drop_named(plan.index, plan.epoch) } else { Ok(()) });
            return self.note(dropped);
        }
        let found = self.store.described(plan.index).filter(|found| found.epoch == plan.epoch);
        let Some(found) = found.filter(|found| found.key == key.key()) else { return };
        if self.space(found.namespace).is_some_and(|space| space.name == key.space()) {
            let dropped = self.store.drop_named(plan.index, plan.epoch);
            self.note(dropped);
        }
    }

    fn drop_put(&mut self, key: &ObjectKey, put: PutId) {
        let dropped = self.find_space(key.space()).map(|space| space.store.drop_key(key.key(), Some(put.0)));
        self.note(dropped.unwrap_or(Ok(())));
    }

    fn drop_key(&mut self, key: &ObjectKey) {
        let dropped = self.find_space(key.space()).map(|space| space.store.drop_key(key.key(), None));
        self.note(dropped.unwrap_or(Ok(())));
    }

    fn drop_space(&mut self, space: Option<&[u8]>) {
        if let Some(name) = space {
            let dropped = self.find_space(name).map(|space| space.store.remove_all());
            return self.note(dropped.unwrap_or(Ok(())));
        }
        for id in 0..u32::try_from(MAX_NAMESPACES).unwrap_or(0) {
            let dropped = self.space(id).map(|space| space.store.remove_all());
            self.note(dropped.unwrap_or(Ok(())));
        }
    }

    fn newest(&self) -> u64 {
        // With what programs have published before, of which nobody has told yet.
        self.store.notice().unwrap_or_else(|_| self.store.newest_fact())
    }

    fn notice(&self) -> Result<u64> {
        self.store.notice()
    }

    fn facts(&mut self, behind: u64, most: usize) -> Result<Tail> {
        self.check_tier()?;
        self.look_after();
        match self.store.facts(behind, most)? {
            watch::Tail::Overwritten => Ok(Tail::Overwritten),
            watch::Tail::Facts(facts) => {
                let mut told = memory::with_capacity(facts.len())?;
                for fact in facts {
                    told.push(self.told(fact)?);
                }
                // What a tier that was just closed has is not over.
                self.check_tier()?;
                Ok(Tail::Facts(told))
            }
        }
    }

    fn part(&mut self, from: u32, most: usize) -> Result<Part> {
        self.check_tier()?;
        let (slots, headers) = (self.slots(), self.headers());
        let (all, behind) = match from & ON_DISK {
            0 => (headers, Some(ON_DISK).filter(|_| slots > 0)),
            _ => (ON_DISK | slots, None),
        };
        let end = from.saturating_add(LOOKED_AT).min(all);
        let (mut to, mut live) = (from, memory::with_capacity(most)?);
        while to < end && live.len() < most {
            if let Some(found) = self.described(to)? {
                live.extend(self.published(to, &found)?);
            }
            to += 1;
        }
        self.check_tier()?;
        Ok(Part { from, to, live, next: if to < all { Some(to) } else { behind } })
    }

    fn position(&self) -> Option<Position> {
        self.store.position().map(|(term, number)| Position { term, number })
    }

    fn tier(&self) -> u64 {
        if self.slots() > 0 { self.store.tier_name() } else { 0 }
    }

    fn apart(&self) -> Option<Position> {
        self.store.apart().map(|(term, number)| Position { term, number })
    }

    fn has_left(&self) -> bool {
        self.store.has_left()
    }

    fn drop_apart(&mut self) -> Result<()> {
        self.check_tier()?;
        for entry in 0..self.slots() {
            let Some(found) = self.store.described_on_disk(entry)? else { continue };
            if let Some(space) = self.space(found.namespace) {
                space.store.drop_apart(entry, &found)?;
            }
        }
        Ok(())
    }

    fn set_position(&mut self, position: Position) -> Result<()> {
        match self.trouble.take() {
            Some(error) => Err(error),
            None => self.store.set_position((position.term, position.number), self.disk.changes),
        }
    }

    fn used(&self) -> Vec<u64> {
        let ranks = (0..self.tier_segment()).map(|rank| self.usage(rank));
        let tier = self.store.disk_usage().filter(|_| self.slots() > 0);
        ranks.chain(tier.map(|(used, _)| used)).collect()
    }

    fn has_bytes(&self) -> bool {
        let on_disk = self.store.disk_usage().filter(|_| self.slots() > 0).is_some_and(|(used, _)| used > 0);
        on_disk || (0..self.tier_segment()).any(|rank| self.store.heap_usage(rank).0 > 0)
    }

    fn close(&mut self, segment: u32, closed: bool) -> Result<()> {
        // What the tier takes comes from the ranks: it is not closed itself.
        let is_tier = segment == self.tier_segment() && self.slots() > 0;
        if is_tier { Ok(()) } else { self.store.close_rank(segment, closed) }
    }

    fn is_quiet(&mut self, segment: u32) -> bool {
        // What programs have published by themselves counts as being written until the master has taken note of it.
        self.store.notice().is_ok() && (segment >= self.tier_segment() || self.store.writing_on(segment) == 0)
    }
}
