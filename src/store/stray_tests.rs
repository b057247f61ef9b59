//! Stray stores: every word of the shared slabs is overwritten in turn with every kind of nonsense, and then everything
//! is called. Calls may fail and objects may be lost, but nothing panics, no address is outside the heaps, no page is
//! given to two objects or lost, and with checksums nobody reads other bytes.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may")]

use crate::base::Deadline;
use crate::base::error::Result;
use crate::base::random::Random;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_INTERNAL, NMC_ERR_PEER_LOST, NMC_ERR_STALE, NMC_ERR_UNAVAILABLE};
use crate::layout::store::{ObjectHeader, Params};
use crate::store::client::Store;
use crate::store::copy::{Pieces, Slice};
use crate::store::map::Map;
use crate::store::master::Master;
use crate::store::master::evict::{LIMBO, QUARANTINE};
use crate::store::serve::{MasterSlot, check_generation};
use crate::store::test_store::{PAGE, PAGES, config, put, world};
use crate::store::types::{ClientInfo, Keep, Look, OpenRequest, Opened, PutOptions, Role};
use crate::store::wire::Hello;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i % 251).unwrap().wrapping_add(seed)).collect()
}

/// The metadata of an object: none for most.
fn said_of<'a>(key: &[u8], value: &'a [u8]) -> &'a [u8] {
    if key.len() > 2 { &value[..value.len().min(45)] } else { &[] }
}

/// A store with an object of each shape.
struct Bed {
    store: Store,
    objects: Vec<(Vec<u8>, Vec<u8>)>,
    plan: Opened,
}

impl Bed {
    fn new(checksums: bool) -> Self {
        let store = Store::embedded(&world(), &config(checksums)).unwrap();
        let mut bed = Self { store, objects: Vec::new(), plan: Opened { index: 0, epoch: 0, plan_id: 0 } };
        let filler = |i: u8| vec![b'f', i];
        for i in 0..u8::try_from(PAGES).unwrap() {
            bed.put(filler(i), bytes(PAGE, i), 0);
        }
        for i in [1, 3, 5] {
            bed.store.remove(&filler(i)).unwrap();
            bed.objects.retain(|(key, _)| *key != filler(i));
        }
        // Three runs, and a key that its header has no room for.
        bed.put(vec![b'l'; 60], bytes(3 * PAGE - 7, 77), 0);
        bed.put(b"one".to_vec(), bytes(3000, 78), 1);
        bed.put(b"none".to_vec(), Vec::new(), 1);
        bed.plan = bed.store.open_for_write(b"open", 5000, &options(1)).unwrap().0;
        bed
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>, rank: u32) {
        let options = PutOptions { metadata: said_of(&key, &value), ..options(rank) };
        put(&self.store, &key, &value, &options).unwrap();
        self.objects.push((key, value));
    }

    fn index_of(&self, key: &[u8]) -> u32 {
        match self.store.state(key).unwrap() {
            Look::Ready((index, _)) | Look::Writing(index, _) => index,
            Look::Missing => panic!("{key:?} is missing"),
        }
    }

    fn header(&self, index: u32) -> &[AtomicU64] {
        let at = self.store.client.map.layout().header_offset(index);
        self.store.client.map.control().region().slice(at, size_of::<ObjectHeader>() / 8).unwrap()
    }

    fn control(&self) -> &[AtomicU64] {
        let slab = self.store.client.map.control();
        slab.region().slice(0, slab.bytes() / 8).unwrap()
    }

    fn words(&self) -> &[AtomicU64] {
        let slab = self.store.client.map.words();
        slab.region().slice(0, slab.bytes() / 8).unwrap()
    }

    /// Everything that a program can call, with the keys that are there, one that is new, and the plan.
    fn call_everything(&self, checked: bool, what: &str) {
        let store = &self.store;
        for (key, value) in &self.objects {
            let _ = store.exists(key);
            let _ = store.touch(key);
            if let Ok(Look::Ready(place)) = store.location(key) {
                assert!(place.owner_rank < 2 && place.offset <= PAGES * PAGE as u64, "{what}: {place:?}");
            }
            if let Ok(Look::Ready((pin, place))) = store.pin(key) {
                let room = PAGES * PAGE as u64;
                if place.n_extents == 1 {
                    assert!(place.offset + place.bytes_total <= room, "{what}: {place:?}");
                }
                if let Ok(extents) = store.view_extents(pin) {
                    assert!(extents.runs.iter().all(|(at, bytes)| at + bytes <= room), "{what}: {extents:?}");
                    assert!(extents.runs.iter().map(|(_, bytes)| bytes).sum::<u64>() >= extents.bytes_total);
                }
                let _ = store.progress(pin.index, pin.epoch);
                let said = store.view_metadata(pin);
                if let Ok(Look::Ready(found)) = said {
                    assert!(!checked || *found == *said_of(key, value), "{what}: other metadata of {key:?}");
                }
                let _ = store.verify(pin);
                let _ = store.unpin(pin);
            }
            if let Ok(Look::Ready((pin, ..))) = store.pin_partial(key, 1) {
                let _ = store.unpin(pin);
            }
            match get(store, key) {
                Ok(Look::Ready(found)) => {
                    assert!(!checked || found == *value, "{what}: other bytes of {key:?}");
                }
                Err(error) => {
                    assert!([NMC_ERR_CORRUPT, NMC_ERR_PEER_LOST].contains(&error.status), "{what}: {error}");
                }
                Ok(_) => {}
            }
            let mut part = [0u8; 100];
            let slices = [Slice::of_test_mut(&mut part)];
            let fits = |total: u64| Ok(total >= 200);
            if let Ok(Look::Ready(total)) = store.read(key, 100, &Pieces::Slices(&slices), fits)
                && total >= 200
            {
                assert!(!checked || part[..] == value[100..200], "{what}: other bytes of {key:?}");
            }
        }
        let _ = store.match_prefix(self.objects.iter().map(|(key, _)| Ok(&key[..])));
        let mut cursor = 0;
        while let Ok(Some(found)) = store.next(cursor) {
            cursor = found.cursor;
        }
        let _ = (store.stats().unwrap(), store.prometheus().unwrap(), store.dump(40).unwrap());
        let _ = store.publish_pages(&self.plan, 1);
        if store.commit(&self.plan).is_err() {
            let _ = store.abort(&self.plan);
        }
        for (key, value) in &self.objects {
            let _ = store.retain(key, Keep::DEFAULT);
            let _ = put(store, key, value, &PutOptions { replace: true, ..options(1) });
        }
        let _ = put(store, b"new", &bytes(PAGE, 5), &options(0));
        let _ = get(store, b"new");
        for (key, _) in self.objects.iter().take(4) {
            let _ = store.remove(key);
        }
        let _ = store.remove_by_prefix(b"l");
    }

    /// Takes a master away from nobody: another one takes over, and what it finds can be read.
    fn take_over(&self, checked: bool, what: &str) -> Master {
        let master = Master::take_over(Arc::clone(&self.store.client.map)).expect(what);
        for (key, value) in &self.objects {
            if let Ok(Look::Ready(found)) = get(&self.store, key) {
                assert!(!checked || found == *value, "{what}: other bytes of {key:?} after a takeover");
            }
        }
        master
    }
}

fn options(rank: u32) -> PutOptions<'static> {
    PutOptions { rank: Some(rank), ..PutOptions::DEFAULT }
}

fn get(store: &Store, key: &[u8]) -> Result<Look<Vec<u8>>> {
    let mut value = Vec::new();
    let look = store.read_whole(key, |bytes| {
        assert!(bytes <= PAGES * PAGE as u64, "a value of {bytes} bytes");
        value.resize(usize::try_from(bytes).unwrap(), 0);
        Ok(Some(Slice::of_test_mut(&mut value)))
    })?;
    Ok(match look {
        Look::Ready(_) => Look::Ready(value),
        Look::Writing(index, epoch) => Look::Writing(index, epoch),
        Look::Missing => Look::Missing,
    })
}

/// What is stored instead of `was`.
fn nonsense(was: u64) -> [u64; 12] {
    let (low, high) = (was & 0xffff_ffff, was & !0xffff_ffff);
    [
        0,
        1,
        u64::MAX,
        was ^ 1,
        was ^ 1 << 32,
        was ^ 1 << 63,
        high,
        low,
        high | 0xffff_ffff,
        low | 0xffff_ffff << 32,
        high | 0x7fff_ffff,
        0x9E37_79B9_7F4A_7C15 ^ was.rotate_left(17),
    ]
}

#[test]
fn every_field_of_every_header_may_hold_nonsense() {
    for checked in [true, false] {
        for key in [&[b'l'; 60][..], b"one", b"none", b"open", b"f\0"] {
            for word in 0..size_of::<ObjectHeader>() / 8 {
                // Without checksums there is less to see.
                for kind in (0..12).step_by(if checked { 1 } else { 5 }) {
                    let bed = Bed::new(checked);
                    let header = bed.header(bed.index_of(key));
                    let was = header[word].load(Relaxed);
                    let planted = nonsense(was)[kind];
                    let what = format!("{} word {word}: {was:x} -> {planted:x}", key.escape_ascii());
                    header[word].store(planted, SeqCst);
                    bed.call_everything(checked, &what);
                    // The master knows what it gave: all of it comes back.
                    for rank in 0..2 {
                        bed.store.evict_until_below(rank, 0).unwrap();
                        assert_eq!(bed.store.rank_stats(rank).unwrap().bytes_used, 0, "{what}, rank {rank}");
                    }
                    put(&bed.store, b"again", &bytes(PAGE, 9), &options(0)).expect(&what);
                    drop(bed);

                    let bed = Bed::new(checked);
                    bed.header(bed.index_of(key))[word].store(planted, SeqCst);
                    drop(bed.take_over(checked, &what));
                }
            }
        }
    }
}

#[test]
fn every_other_word_of_both_slabs_may_hold_nonsense() {
    let (control, words, whole) = {
        let bed = Bed::new(true);
        let whole: Vec<u64> = bed.control().iter().chain(bed.words()).map(|word| word.load(Relaxed)).collect();
        (bed.control().len(), bed.words().len(), whole)
    };
    let mut random = Random(1);
    for (at, was) in whole.into_iter().enumerate() {
        // Most of it is empty: a few of those will do.
        if was == 0 && !random.one_in(64) {
            continue;
        }
        // All ones, nothing, and one of the others.
        let other = random.below(12);
        let kinds: &[usize] = if was == 0 { &[2] } else { &[0, 2, other] };
        for &kind in kinds {
            let planted = nonsense(was)[kind];
            let what = format!("word {at} of {control} + {words}: {was:x} -> {planted:x}");
            let bed = Bed::new(true);
            let word = if at < control { &bed.control()[at] } else { &bed.words()[at - control] };
            word.store(planted, SeqCst);
            bed.call_everything(true, &what);
            let bed = Bed::new(true);
            let word = if at < control { &bed.control()[at] } else { &bed.words()[at - control] };
            word.store(planted, SeqCst);
            drop(bed.take_over(true, &what));
        }
    }
}

/// Control: what a reader would do that believes the header.
#[test]
fn control_what_a_header_says_leads_out_of_the_heap() {
    let (mut outside, mut seen, mut refused) = (0, 0, 0);
    let page = PAGE as u64;
    for word in 0..size_of::<ObjectHeader>() / 8 {
        for kind in 0..12 {
            let bed = Bed::new(false);
            let index = bed.index_of(b"one");
            let words = bed.header(index);
            words[word].store(nonsense(words[word].load(Relaxed))[kind], SeqCst);
            let view = bed.store.client.view();
            let header = view.object(index).unwrap();
            // The first extent is the 12th word.
            let first = words[12].load(Relaxed) >> 32;
            let end = u128::from(first) * u128::from(header.page_bytes.load(Relaxed))
                + u128::from(header.bytes_total.load(Relaxed));
            let leads_out = end > u128::from(PAGES * page) || header.owner_rank.load(Relaxed) >= 2;
            seen += 1;
            outside += u32::from(leads_out);
            refused += u32::from(view.shape(header).is_none());
            if leads_out && view.shape(header).is_some() {
                // Only the field that nobody reads.
                assert_eq!(word, 9, "page_bytes and n_pages");
            }
        }
    }
    assert!(
        outside >= 10 && refused >= outside - 3 && refused < seen,
        "{outside} outside, {refused} refused of {seen}"
    );
}

#[test]
fn a_master_that_takes_over_quarantines_what_it_does_not_understand() {
    for pinned in [false, true] {
        let bed = Bed::new(true);
        let index = bed.index_of(b"one");
        let pin = match bed.store.pin(b"one").unwrap() {
            Look::Ready((pin, _)) if pinned => Some(pin),
            Look::Ready((pin, _)) => {
                bed.store.unpin(pin).unwrap();
                None
            }
            _ => panic!(),
        };
        // Its runs of pages are unknown now.
        bed.header(index)[12].store(u64::MAX, SeqCst);
        let mut master = bed.take_over(true, "takeover");
        assert!(master.take_news().iter().any(|(_, line)| line.contains("1 headers made no sense")));
        assert!(matches!(get(&bed.store, b"one").unwrap(), Look::Missing));
        let (key, value) = &bed.objects[0];
        assert_eq!(get(&bed.store, key).unwrap(), Look::Ready(value.clone()));
        let request = OpenRequest {
            key: b"after",
            namespace: 0,
            bytes: PAGE as u64,
            rank: Some(1),
            among: 0,
            flags: 0,
            keep: Keep::DEFAULT,
            metadata: &[],
            put: 0,
        };
        let opened = master.open(0, &request);
        if let Some(pin) = pin {
            // The reader is still in pages that nobody knows: none may be given to another.
            assert_eq!(opened.unwrap_err().status, crate::base::status::NMC_ERR_BUSY);
            bed.store.unpin(pin).unwrap();
            std::thread::sleep(Duration::from_millis(5));
            master.tend().unwrap();
            let waiting = master.waiting(LIMBO) + master.waiting(QUARANTINE);
            assert_eq!(waiting, 0);
            std::thread::sleep(Duration::from_millis(5));
            master.tend().unwrap();
            master.open(0, &request).unwrap();
        } else {
            opened.unwrap();
        }
    }
}

#[test]
fn two_headers_that_claim_one_page_both_go() {
    let bed = Bed::new(true);
    let (a, b) = (bed.index_of(b"f\0"), bed.index_of(b"f\x02"));
    bed.header(a)[12].store(bed.header(b)[12].load(Relaxed), SeqCst);
    drop(bed.take_over(true, "takeover"));
    for (key, value) in &bed.objects {
        let gone = key == b"f\0" || key == b"f\x02";
        let found = get(&bed.store, key).unwrap();
        assert_eq!(found, if gone { Look::Missing } else { Look::Ready(value.clone()) }, "{key:?}");
    }
}

#[test]
fn a_page_of_another_object_is_not_taken_for_the_own_though_its_checksum_is_right() {
    let bed = Bed::new(true);
    let (a, b) = (bed.index_of(b"f\0"), bed.index_of(b"f\x02"));
    bed.header(a)[12].store(bed.header(b)[12].load(Relaxed), SeqCst);
    assert_eq!(get(&bed.store, b"f\0").unwrap_err().status, NMC_ERR_CORRUPT);
    assert!(matches!(get(&bed.store, b"f\x02").unwrap(), Look::Ready(_)));
    // An empty value is one, too, and has no page whose checksum could be wrong.
    let bed = Bed::new(true);
    let words = bed.header(bed.index_of(b"f\0"));
    words[8].store(0, SeqCst);
    words[9].store(PAGE as u64, SeqCst);
    words[10].store(0, SeqCst);
    words[11].store(words[11].load(Relaxed) >> 32 << 32, SeqCst);
    assert_eq!(get(&bed.store, b"f\0").unwrap_err().status, NMC_ERR_CORRUPT);
    // Control: without checksums nothing says so.
    let bed = Bed::new(false);
    let (a, b) = (bed.index_of(b"f\0"), bed.index_of(b"f\x02"));
    bed.header(a)[12].store(bed.header(b)[12].load(Relaxed), SeqCst);
    assert_eq!(get(&bed.store, b"f\0").unwrap(), Look::Ready(bytes(PAGE, 2)));
}

#[test]
fn a_full_index_is_built_anew() {
    let bed = Bed::new(true);
    let view = bed.store.client.view();
    for table in view.index().tables {
        table.iter().for_each(|bucket| bucket.store(u64::MAX, SeqCst));
    }
    assert!(matches!(get(&bed.store, b"one").unwrap(), Look::Missing));
    put(&bed.store, b"x", b"", &options(1)).unwrap();
    assert_eq!(get(&bed.store, b"x").unwrap(), Look::Ready(Vec::new()));
    assert_eq!(get(&bed.store, b"one").unwrap(), Look::Ready(bytes(3000, 78)));
}

#[test]
fn a_master_goes_on_after_a_bug_in_a_call() {
    let params: Params = config(false).params(2, PAGES * PAGE as u64).unwrap();
    let host = MasterSlot::new(None);
    let info = ClientInfo { pid: 1, start_time: 1, rank: 0, rank_generation: 1, role: Role::Program };
    let (client, map) = host.attach(1, &info, [(1, 1), (1, 2)], &params, 0).unwrap();
    let request = |key: &'static [u8]| OpenRequest {
        key,
        namespace: 0,
        bytes: 10,
        rank: Some(0),
        among: 0,
        flags: 0,
        keep: Keep::DEFAULT,
        metadata: &[],
        put: 0,
    };
    let plan = host.with(|master| master.open(client.number, &request(b"a"))).unwrap();
    let failed = host.with(|master| -> Result<()> {
        master.open(client.number, &request(b"b"))?;
        panic!("a bug, for a test")
    });
    assert_eq!(failed.unwrap_err().status, NMC_ERR_INTERNAL);
    assert!(host.with(|master| Ok(master.is_attached(client) && master.info_of(client) == info)).unwrap());
    host.with(|master| master.abandon(client.number, &plan)).unwrap();
    host.with(|master| master.remove(0, b"b")).unwrap();
    host.with(|master| master.open(client.number, &request(b"c"))).unwrap();
    drop(map);
}

#[test]
fn a_client_that_makes_up_its_generation_is_not_believed() {
    let world = crate::world::World::local(&world()).unwrap().swap_remove(0);
    let member = world.membership("test").unwrap();
    let known = member.generation();
    let host = MasterSlot::new(Some(member.clone()));
    let hello = |world_id: u64, rank_generation: u64| Hello {
        world_id,
        store_id: 0,
        holds: false,
        client: u32::MAX,
        client_generation: 0,
        pid: 1,
        start_time: 1,
        rank: 0,
        rank_generation,
        role: 0,
        drain_ms: 0,
        heaps: Vec::new(),
        seed: Vec::new(),
        params: Vec::new(),
        kept_all: true,
        kept: Vec::new(),
    };
    check_generation(&host, &hello(member.world_id(), known)).unwrap();
    for made_up in [known + 1, u64::MAX] {
        let refused = check_generation(&host, &hello(member.world_id(), made_up)).unwrap_err();
        assert_eq!(refused.status, NMC_ERR_UNAVAILABLE);
    }
    if let Some(former) = known.checked_sub(1) {
        assert_eq!(check_generation(&host, &hello(member.world_id(), former)).unwrap_err().status, NMC_ERR_STALE);
    }
    // Control: who is believed ends the clients of everyone before it.
    let params: Params = config(false).params(2, PAGES * PAGE as u64).unwrap();
    let info = ClientInfo { pid: 1, start_time: 1, rank: 0, rank_generation: known, role: Role::Program };
    let (client, _) = host.attach(member.world_id(), &info, [(1, 1), (1, 2)], &params, 0).unwrap();
    let liar = ClientInfo { rank_generation: u64::MAX, pid: 2, ..info };
    host.attach(member.world_id(), &liar, [(1, 1), (1, 2)], &params, 0).unwrap();
    assert!(!host.with(|master| Ok(master.is_attached(client))).unwrap());
}

#[test]
fn the_header_of_a_store_that_is_partly_overwritten_is_put_right() {
    let params: Params = config(false).params(2, PAGES * PAGE as u64).unwrap();
    let map = Map::create(&params, &Deadline::after(Duration::from_secs(60))).unwrap();
    let fds = || map.client_fds().unwrap();
    let words: &[AtomicU64] = map.control().region().slice(0, 20).unwrap();
    for at in [0, 1, 2, 4, 9] {
        words[at].store(u64::MAX, SeqCst);
    }
    let (control, of_words) = fds();
    assert!(Map::open(&params, map.store_id(), control, of_words).is_err());
    let (control, of_words) = fds();
    let adopted = Map::adopt(&params, map.store_id(), map.seed(), control, of_words).unwrap();
    assert_eq!((adopted.store_id(), adopted.view().header().params()), (map.store_id(), Some(params)));
    let (control, of_words) = fds();
    Map::open(&params, map.store_id(), control, of_words).unwrap();
    words[..20].iter().for_each(|word| word.store(7, SeqCst));
    let (control, of_words) = fds();
    assert!(Map::adopt(&params, map.store_id(), map.seed(), control, of_words).is_err());
}

/// What a new master does not count as used it would give to the next object.
#[test]
fn a_new_master_gives_nobody_the_room_of_metadata() {
    let bed = Bed::new(true);
    let mut master = bed.take_over(true, "takeover");
    let metadata = [0xee; 256];
    for i in 0..6u8 {
        let (key, bytes, keep) = ([b'n', i], 0, Keep::DEFAULT);
        let request = OpenRequest {
            key: &key,
            namespace: 0,
            bytes,
            rank: Some(1),
            among: 0,
            flags: 0,
            keep,
            metadata: &metadata,
            put: 0,
        };
        master.open(0, &request).unwrap();
    }
    for (key, value) in &bed.objects {
        let Look::Ready(found) = bed.store.metadata(key).unwrap() else { panic!("{key:?} is gone") };
        assert_eq!(*found, *said_of(key, value));
    }
}

/// The control: without checksums nobody knows what the writer said.
#[test]
fn metadata_that_was_overwritten_is_not_given_for_the_writers() {
    for checksums in [true, false] {
        let bed = Bed::new(checksums);
        let (key, value) = bed.objects.iter().find(|(key, _)| key == b"one").unwrap();
        let header = bed.store.client.view().object(bed.index_of(key)).unwrap();
        let said = bed.store.metadata(key);
        assert!(matches!(said, Ok(Look::Ready(found)) if *found == *said_of(key, value)));
        let words = bed.store.client.view().key_words(header.key_unit.load(Relaxed), 6).unwrap();
        for word in words {
            let was = word.fetch_xor(1 << 5, SeqCst);
            match bed.store.metadata(key) {
                Ok(Look::Ready(found)) => assert!(!checksums && *found != *said_of(key, value)),
                other => assert!(checksums && other.unwrap_err().status == NMC_ERR_CORRUPT),
            }
            assert_eq!(get(&bed.store, key).is_err(), checksums, "it is one object with its value");
            word.store(was, SeqCst);
        }
        // That it is shorter, or not there at all, is no less wrong.
        let was = header.flags.load(Relaxed);
        for flags in [was & 0xffff, was - (1 << 16)] {
            header.flags.store(flags, SeqCst);
            assert_eq!(bed.store.metadata(key).is_err(), checksums);
        }
        header.flags.store(was, SeqCst);
        assert!(bed.store.metadata(key).is_ok());
    }
}
