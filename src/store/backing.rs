//! Where a tier below memory meets the store: what a client asks for when memory has nothing, and what a master has written
//! down before it answers that something is gone. A store without a tier pays one branch on a miss. Values that are in memory
//! never come here.

use super::copy::Pieces;
use crate::base::error::Result;

/// A live entry of the disk's index, as it was when it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskEntry {
    /// Bytes of the value.
    pub bytes: u64,
    /// Which entry it is.
    pub index: u64,
    /// Its first word: another one says that the entry has ended, or is another value's.
    pub word: u64,
}

/// The disk as a client reads it, by itself, without asking the master.
pub trait DiskReader: Send + Sync {
    /// The entry of a key, if the disk has its value.
    fn probe(&self, namespace: u32, key: &[u8]) -> Result<Option<DiskEntry>>;

    /// Reads from byte `offset` of the value of an entry into `to`, whose bytes are within the value. False if the entry has
    /// ended meanwhile: then what is in `to` means nothing, and the key is looked for again.
    fn read(&self, entry: &DiskEntry, key: &[u8], offset: u64, to: &Pieces<'_>) -> Result<bool>;
}

/// Something that must not come back from the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The value that a key had was removed or replaced.
    Object {
        /// Hash of the key.
        key_hash: u64,
        /// Epoch of the value.
        epoch: u64,
    },
    /// Everything before this generation of a namespace was.
    Namespace {
        /// Its number.
        id: u32,
        /// Its generation from now on.
        generation: u32,
    },
}

/// The disk as the master writes it.
pub trait DiskOwner: Send + Sync {
    /// Writes marks down. Called without the master's lock, before the call that made them is answered; if it fails, so does
    /// that call, and what it removed stays removed in memory.
    fn append(&self, marks: &[Mark]) -> Result<()>;
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::super::Store;
    use super::super::config::Config;
    use super::super::copy::Slice;
    use super::super::master::{ClientId, ClientInfo, Keep, OpenRequest};
    use super::super::master_slot::MasterSlot;
    use super::super::read::{Look, Presence, Sums};
    use super::super::strays::world;
    use super::super::wire::Request;
    use super::super::write::PutOptions;
    use super::*;
    use crate::base::error::Error;
    use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_NOT_FOUND, NMC_ERR_OS, NMC_OK};
    use crate::layout::store::FLAG_HIDDEN;
    use parking_lot::Mutex;
    use std::sync::atomic::Ordering::Release;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::sync::{Arc, Weak};

    fn config() -> Config {
        Config { page_bytes: 4096, max_objects: Some(64), ..Config::default() }
    }

    fn embedded() -> Store {
        Store::embedded(&world(), &config()).unwrap()
    }

    // ---- the client's side -------------------------------------------------------------------------------------------

    /// A disk that has the key "disk", and counts what it is asked.
    #[derive(Default)]
    struct Reader {
        probes: AtomicU64,
        reads: AtomicU64,
        /// So many reads find that their entry has ended.
        ended: AtomicU64,
        /// Then the key is in memory again.
        returns_to: Mutex<Weak<super::super::Client>>,
    }

    const VALUE: &[u8] = b"what lies on disk";

    impl DiskReader for Reader {
        fn probe(&self, namespace: u32, key: &[u8]) -> Result<Option<DiskEntry>> {
            self.probes.fetch_add(1, SeqCst);
            let there = namespace == 0 && key == b"disk";
            Ok(there.then_some(DiskEntry { bytes: VALUE.len() as u64, index: 3, word: 4 }))
        }

        fn read(&self, entry: &DiskEntry, key: &[u8], offset: u64, to: &Pieces<'_>) -> Result<bool> {
            assert_eq!((*entry, key), (DiskEntry { bytes: VALUE.len() as u64, index: 3, word: 4 }, &b"disk"[..]));
            self.reads.fetch_add(1, SeqCst);
            if self.ended.load(SeqCst) > 0 {
                self.ended.fetch_sub(1, SeqCst);
                if let Some(client) = self.returns_to.lock().upgrade() {
                    put(&Store::of(client, 0), b"disk", b"in memory again..");
                }
                return Ok(false);
            }
            let mut rest = &VALUE[usize::try_from(offset).unwrap()..];
            to.each(|address, bytes| {
                let (now, later) = rest.split_at(usize::try_from(bytes).unwrap());
                rest = later;
                super::super::copy::tests::copy_to(now, address);
                Ok(())
            })?;
            Ok(true)
        }
    }

    fn with_disk() -> (Store, Arc<Reader>) {
        let (mut store, reader) = (embedded(), Arc::new(Reader::default()));
        let disk = Arc::clone(&reader) as Arc<dyn DiskReader>;
        Arc::get_mut(&mut store.client).unwrap().disk = Some(disk);
        (store, reader)
    }

    fn put(store: &Store, key: &[u8], value: &[u8]) {
        let slices = [Slice { address: value.as_ptr() as u64, bytes: value.len() as u64 }];
        store.put(key, &Pieces::Slices(&slices), &PutOptions::DEFAULT).unwrap();
    }

    fn slice(buffer: &mut [u8]) -> Slice {
        Slice { address: buffer.as_mut_ptr() as u64, bytes: buffer.len() as u64 }
    }

    #[test]
    fn what_memory_misses_is_read_from_disk() {
        let (store, reader) = with_disk();
        let mut buffer = [0; 32];
        assert_eq!(store.get(b"disk", slice(&mut buffer)).unwrap(), Look::Ready(17));
        assert_eq!(&buffer[..17], VALUE);
        assert_eq!(store.get(b"disk", slice(&mut [])).unwrap(), Look::Ready(17), "the size alone");
        assert_eq!((reader.probes.load(SeqCst), reader.reads.load(SeqCst)), (2, 1));
        let mut whole = [0; 17];
        assert_eq!(store.get_into(b"disk", &Pieces::Slices(&[slice(&mut whole)])).unwrap(), Look::Ready(17));
        let (mut a, mut b) = ([0; 3], [0; 4]);
        let parts = [slice(&mut a), slice(&mut b)];
        assert_eq!(store.get_part(b"disk", 5, &Pieces::Slices(&parts)).unwrap(), Look::Ready(17));
        assert_eq!((&whole[..], &a[..], &b[..]), (VALUE, &VALUE[5..8], &VALUE[8..12]));
        assert!(store.get_into(b"disk", &Pieces::Slices(&parts)).is_err(), "another size");
        assert!(store.get_part(b"disk", 11, &Pieces::Slices(&parts)).is_err(), "behind the end");
        assert_eq!(store.get_into(b"none", &Pieces::Slices(&parts)).unwrap(), Look::Missing);
    }

    #[test]
    fn questions_count_what_is_on_disk_and_pins_do_not() {
        let (store, reader) = with_disk();
        put(&store, b"memory", b"m");
        assert_eq!(store.presence(b"disk").unwrap(), Presence::OnDisk);
        assert!(store.exists(b"disk").unwrap());
        assert_eq!(store.presence(b"none").unwrap(), Presence::Absent);
        let keys: [&[u8]; 4] = [b"memory", b"disk", b"none", b"disk"];
        let mut seen = Vec::new();
        store
            .look_many(keys.iter().map(|key| Ok(*key)), |presence| {
                seen.push(presence);
                true
            })
            .unwrap();
        assert_eq!(seen, [Presence::Ready, Presence::OnDisk, Presence::Absent, Presence::OnDisk]);
        assert_eq!(store.match_prefix(keys.iter().map(|key| Ok(*key))).unwrap(), 2);
        assert_eq!(store.pin(b"disk").unwrap(), Look::Missing);
        assert_eq!(store.location(b"disk").unwrap(), Look::Missing);
        assert_eq!(reader.reads.load(SeqCst), 0);
    }

    /// The control: what is in memory, or being written, never asks the disk.
    #[test]
    fn nothing_that_memory_has_asks_the_disk() {
        let (store, reader) = with_disk();
        put(&store, b"disk", b"m");
        let (plan, _) = store.open_for_write(b"open", 1, &PutOptions::DEFAULT).unwrap();
        let mut byte = [0; 1];
        assert_eq!(store.get(b"disk", slice(&mut byte)).unwrap(), Look::Ready(1));
        assert_eq!(store.get_into(b"disk", &Pieces::Slices(&[slice(&mut byte)])).unwrap(), Look::Ready(1));
        assert!(matches!(store.get(b"open", slice(&mut byte)).unwrap(), Look::Writing(..)));
        assert_eq!(store.match_prefix([&b"disk"[..], b"open"].iter().map(|key| Ok(*key))).unwrap(), 1);
        assert_eq!(reader.probes.load(SeqCst), 0);
        store.abort(&plan).unwrap();
    }

    #[test]
    fn an_entry_that_ends_during_a_read_is_looked_for_again_in_memory_too() {
        let (store, reader) = with_disk();
        reader.ended.store(2, SeqCst);
        let mut buffer = [0; 17];
        assert_eq!(store.get(b"disk", slice(&mut buffer)).unwrap(), Look::Ready(17));
        assert_eq!((&buffer[..], reader.reads.load(SeqCst)), (VALUE, 3));
        reader.ended.store(u64::MAX, SeqCst);
        assert_eq!(store.get(b"disk", slice(&mut buffer)).unwrap_err().status, NMC_ERR_BUSY);
        *reader.returns_to.lock() = Arc::downgrade(&store.client);
        let pieces = [slice(&mut buffer)];
        let read = store.read_with(b"disk", 0, &Pieces::Slices(&pieces), Sums::Touched, |bytes| Ok(bytes == 17));
        assert_eq!(read.unwrap(), Look::Ready(17));
        assert_eq!(&buffer, b"in memory again..");
    }

    // ---- the master's side -------------------------------------------------------------------------------------------

    /// Notes the marks that come, and whether the master could be called meanwhile.
    #[derive(Default)]
    struct Owner {
        marks: Mutex<Vec<Mark>>,
        slot: Mutex<Weak<MasterSlot>>,
        fails: AtomicU64,
    }

    impl DiskOwner for Owner {
        fn append(&self, marks: &[Mark]) -> Result<()> {
            // Would hang if the master's lock were held.
            if let Some(slot) = self.slot.lock().upgrade() {
                slot.with(|_| Ok(()))?;
            }
            self.marks.lock().extend_from_slice(marks);
            if self.fails.load(SeqCst) != 0 {
                return Err(Error::new(NMC_ERR_OS, "the disk is full"));
            }
            Ok(())
        }
    }

    struct Bed {
        owner: Arc<Owner>,
        slot: Arc<MasterSlot>,
        client: ClientId,
    }

    impl Bed {
        fn new(disk: bool) -> Self {
            let owner = Arc::new(Owner::default());
            let mut slot = MasterSlot::new(None);
            slot.disk = disk.then(|| Arc::clone(&owner) as Arc<dyn DiskOwner>);
            let slot = Arc::new(slot);
            *owner.slot.lock() = Arc::downgrade(&slot);
            let params = config().params(1, 16 * 4096).unwrap();
            let info = ClientInfo { pid: 1, start_time: 1, rank: 0, rank_generation: 1 };
            let (client, _) = slot.attach(7, &info, [(1, 1)], &params, 0).unwrap();
            Self { owner, slot, client }
        }

        fn call(&self, request: &Request<'_>) -> Vec<i32> {
            self.slot.serve(self.client, request).iter().map(|item| item.status).collect()
        }

        /// Stores an object; gives what a mark would say of it.
        fn put(&self, key: &[u8], flags: u32) -> Mark {
            let keep = Keep::DEFAULT;
            let request =
                OpenRequest { key, namespace: 0, bytes: 4096, rank: None, among: 0, flags, keep, metadata: &[] };
            let items = self.slot.serve(self.client, &Request::Open(vec![request]));
            let [index, epoch, plan_id] = items[0].clone().result().unwrap();
            let plan = super::super::master::Opened { index: u32::try_from(index).unwrap(), epoch, plan_id };
            let key_hash = self.slot.with(|master| {
                let map = Arc::clone(master.map());
                map.view().publish(plan.index).unwrap().published.store(epoch, Release);
                Ok(map.hash_of(key, 0))
            });
            if flags & FLAG_HIDDEN != 0 {
                assert_eq!(self.call(&Request::Reveal(plan)), [NMC_OK]);
            }
            Mark::Object { key_hash: key_hash.unwrap(), epoch }
        }

        fn marks(&self) -> Vec<Mark> {
            std::mem::take(&mut self.owner.marks.lock())
        }
    }

    /// And without the master's lock, which the owner takes.
    #[test]
    fn what_is_removed_replaced_or_flushed_is_marked_before_the_answer() {
        let bed = Bed::new(true);
        let [a, b, c, d, e] = [&b"a"[..], b"b", b"c1", b"c2", b"e"].map(|key| bed.put(key, 0));
        assert_eq!(bed.marks(), [], "an object that comes marks nothing");
        assert_eq!(bed.call(&Request::Remove(0, vec![b"a", b"none"])), [NMC_OK, NMC_ERR_NOT_FOUND]);
        assert_eq!(bed.marks(), [a]);
        bed.put(b"b", FLAG_HIDDEN);
        assert_eq!(bed.marks(), [b], "the value that was replaced, not the new one");
        assert_eq!(bed.call(&Request::RemoveMatching(0, b"c", 0)), [NMC_OK]);
        let mut marks = bed.marks();
        marks.sort_by_key(|mark| *mark != c);
        assert_eq!(marks, [c, d]);
        let Mark::Object { epoch, .. } = e else { return };
        let index = (0..64).find(|index| bed.call(&Request::Take(*index, epoch)) == [NMC_OK]);
        assert!(index.is_some());
        assert_eq!(bed.marks(), [e]);
        assert_eq!(bed.call(&Request::Flush(0)), [NMC_OK]);
        assert_eq!(bed.marks(), [Mark::Namespace { id: 0, generation: 1 }]);
    }

    #[test]
    fn what_is_evicted_is_not_marked() {
        let bed = Bed::new(true);
        (0..40u8).for_each(|i| _ = bed.put(&[i], 0));
        assert_eq!(bed.call(&Request::Evict(0, 0)), [NMC_OK]);
        assert_eq!(bed.marks(), []);
    }

    #[test]
    fn a_mark_that_cannot_be_written_fails_the_call_and_the_object_stays_hidden() {
        let bed = Bed::new(true);
        bed.put(b"a", 0);
        bed.owner.fails.store(1, SeqCst);
        assert_eq!(bed.call(&Request::Remove(0, vec![b"a"])), [NMC_ERR_OS]);
        bed.owner.fails.store(0, SeqCst);
        assert_eq!(bed.call(&Request::Remove(0, vec![b"a"])), [NMC_ERR_NOT_FOUND]);
    }

    /// The control: without a disk nothing is noted anywhere.
    #[test]
    fn a_store_without_a_disk_keeps_no_marks() {
        let bed = Bed::new(false);
        bed.put(b"a", 0);
        assert_eq!(bed.call(&Request::Remove(0, vec![b"a"])), [NMC_OK]);
        assert_eq!(bed.marks(), []);
        assert_eq!(bed.slot.with(|master| Ok(master.take_marks().capacity())), Ok(0));
    }
}
