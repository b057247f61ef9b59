//! Memory that the CPU does not reach: heaps of nodes, and what programs put from and read into. Host memory counts as that here, where there is no GPU.

use super::common::{Directory, a_store, eventually, get, put, slice, slice_mut, store_on, value};
use super::over::Over;
use super::{completion, node, node_by_way, store_value};
use nanomc::base::status::*;
use nanomc::cluster::facade::{Cluster, Config, Item, PutOptions};
use nanomc::cluster::submit::Sum;
use nanomc::cluster::types::Media;
use nanomc::cluster::wire::Replicate;
use nanomc::mem::HeapKind;
use nanomc::store::Store;
use nanomc::store::copy::Slice;
use nanomc::store::types::Look;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A client whose nodes have so many bytes of host memory in the place of their heaps, as if those were a device's.
fn bouncing(directory: &Directory, most: u64, keep: bool) -> Cluster {
    Cluster::open(Config { bounce: Some(most), keep, ..directory.config() }).unwrap()
}

/// How a value is to be put: on segments of these media, in the order of [`Media::ALL`].
fn on_media(media: [u32; 3]) -> PutOptions {
    let copies = media.iter().sum();
    let replicate = Replicate { copies, media: media.to_vec(), ..PutOptions::default().replicate };
    PutOptions { replicate, ..PutOptions::default() }
}

/// What a node by way of host memory has to do right: values of all sizes, one that is too large, replaced ones, removed ones, copies beside other
/// nodes, copies that are kept, what its own programs put and read, and a drain. `of` makes its store.
fn is_a_node(most: u64, of: impl Fn(u32) -> Store) {
    let directory = Directory::new();
    let (vram, store) = (bouncing(&directory, most, true), of(400));
    let name = vram.mount(&store, None, false).unwrap();
    let (writer, reader) = (directory.client(), directory.client());
    assert_eq!(writer.segments().unwrap()[0].info.media, Media::Vram);
    let here = |key: &str, bytes: usize| {
        let mut into = vec![0u8; bytes];
        let slice = slice_mut(&mut into);
        assert_eq!(store.get(key.as_bytes(), slice).unwrap(), Look::Ready(bytes as u64), "{key}");
        into
    };
    for (i, bytes) in [0, 1, 1000, 65_536, 65_537, 1 << 20, 9 << 20].into_iter().enumerate() {
        let (key, value, other) = (format!("k{i}"), value(i, bytes), value(i + 50, bytes));
        put(&writer, &key, &value, 1).unwrap();
        assert_eq!(here(&key, bytes), value, "{bytes} bytes, by its own programs");
        for cluster in [&reader, &reader, &vram] {
            assert_eq!(get(cluster, &key, bytes + 10).unwrap(), value, "{bytes} bytes");
        }
        assert_eq!(put(&writer, &key, &other, 1), Err(NMC_ERR_EXISTS));
        assert_eq!(reader.remove(key.as_bytes(), true).unwrap(), NMC_OK);
        assert_eq!(get(&reader, &key, bytes), Err(NMC_ERR_NOT_FOUND));
        put(&writer, &key, &other, 1).unwrap();
        assert_eq!((get(&reader, &key, bytes).unwrap(), here(&key, bytes)), (other.clone(), other));
    }
    // What its own program puts.
    store_value(&store, b"own");
    vram.sync().unwrap();
    assert_eq!(get(&reader, "own", 100).unwrap(), here("own", get(&reader, "own", 100).unwrap().len()));
    // Beside a node in RAM: a copy on each, and each is read when the other is gone.
    let (ram, ram_store, ram_name) = node(&directory, 400);
    let both = value(9, 3_000_001);
    let put_as = |key: &str, options: &PutOptions| {
        let slices = [slice(&both)];
        writer.put(&[Item { key: key.as_bytes(), slices: &slices, far: false }], options).unwrap().remove(0)
    };
    put_as("both", &on_media([1, 1, 0])).unwrap();
    let listed = writer.query(&[b"both"]).unwrap().remove(0);
    let mut media: Vec<_> = listed.replicas.iter().map(|replica| replica.media).collect();
    media.sort();
    assert_eq!(media, [Media::Vram, Media::Ram]);
    // What is read elsewhere is kept here.
    put_as("kept", &on_media([0, 1, 0])).unwrap();
    assert!(!store.exists(b"kept").unwrap());
    assert_eq!(get(&vram, "kept", both.len()).unwrap(), both);
    eventually("a copy is kept", || store.exists(b"kept").unwrap());
    assert_eq!(here("kept", both.len()), both);
    ram.unmount(&ram_name).unwrap();
    drop(ram_store);
    for key in ["both", "kept"] {
        assert_eq!(get(&directory.client(), key, both.len()).unwrap(), both, "{key}");
    }
    // All that is only there goes elsewhere.
    let (_second, _to, _) = node(&directory, 400);
    eventually("nothing is left", || writer.drain(&name, Duration::ZERO).unwrap().status == NMC_OK);
    vram.unmount(&name).unwrap();
    assert_eq!(get(&directory.client(), "both", both.len()).unwrap(), both);
    assert_eq!(get(&directory.client(), "k6", 9 << 20).unwrap(), value(56, 9 << 20));
}

/// Calls that nobody waits for, with memory that counts as a device's: what stands in for it is copied when a turn of a batch begins, or when it has ended.
#[test]
fn memory_of_a_device_is_put_from_and_read_into_by_calls_that_nobody_waits_for() {
    const LARGE: usize = 20 << 20;
    let directory = Directory::new();
    let (_owner, _store, _) = node(&directory, 2000);
    let patience = Duration::from_secs(60);
    let far = Cluster::open(Config { bounce: Some(64 << 20), patience, ..directory.config() }).unwrap();
    let mut values: Vec<Vec<u8>> = (0..5).map(|seed| value(seed, LARGE + seed)).collect();
    let wanted = values.clone();
    let keys: Vec<String> = (0..6).map(|n| format!("k{n}")).collect();
    let slices: Vec<[Slice; 2]> = values
        .iter()
        .map(|value| {
            let (a, b) = value.split_at(LARGE / 3);
            [slice(a), slice(b)]
        })
        .collect();
    let items: Vec<Item<'_>> =
        keys.iter().zip(&slices).map(|(key, slices)| Item::new(key.as_bytes(), slices)).collect();
    let numbers: Vec<usize> = (0..items.len()).collect();
    far.submit_put(1, &items, &numbers, &PutOptions::default(), Sum::new(None)).unwrap();
    // What is put first was copied by now; what comes later is not.
    values[0].fill(0);
    assert_eq!(completion(&far), NMC_OK);
    let reader = directory.client();
    for (key, wanted) in keys.iter().zip(&wanted) {
        assert!(get(&reader, key, LARGE + 10).unwrap() == *wanted, "{key}");
    }
    // Into room to spare, and one that is missing.
    let mut rooms: Vec<Vec<u8>> = keys.iter().map(|_| vec![0xee; LARGE + 100]).collect();
    let slices: Vec<[Slice; 2]> = rooms
        .iter_mut()
        .map(|room| {
            let (a, b) = room.split_at_mut(LARGE / 2);
            [slice_mut(a), slice_mut(b)]
        })
        .collect();
    let items: Vec<Item<'_>> =
        keys.iter().zip(&slices).map(|(key, slices)| Item::new(key.as_bytes(), slices)).collect();
    let told = Arc::new(Mutex::new(vec![(0, 0); keys.len()]));
    let telling = Arc::clone(&told);
    let tell = move |item: usize, bytes, status| telling.lock().unwrap()[item] = (bytes, status);
    let numbers: Vec<usize> = (0..items.len()).collect();
    far.submit_get(2, &items, &numbers, Sum::new(Some(Box::new(tell)))).unwrap();
    assert_eq!(completion(&far), NMC_ERR_NOT_FOUND);
    for (n, room) in rooms.iter().enumerate() {
        let (bytes, status) = told.lock().unwrap()[n];
        let size = wanted.get(n).map_or(0, Vec::len);
        assert_eq!((bytes, status), (size as u64, if n < 5 { NMC_OK } else { NMC_ERR_NOT_FOUND }));
        assert!(wanted.get(n).is_none_or(|wanted| room[..size] == wanted[..]), "{n}");
        assert!(room[size..].iter().all(|byte| *byte == 0xee), "{n}");
    }
    // Where it does not fit nothing is written; where it was cancelled, nothing or all.
    let mut room = vec![0xee; LARGE - 1];
    far.submit_get(3, &[Item::new(b"k0", &[slice_mut(&mut room)])], &[0], Sum::new(None)).unwrap();
    assert_eq!(completion(&far), NMC_ERR_TOO_SMALL);
    assert!(room.iter().all(|byte| *byte == 0xee));
    for round in 0..10u64 {
        let mut room = vec![0xee; LARGE];
        far.submit_get(4, &[Item::new(b"k0", &[slice_mut(&mut room)])], &[0], Sum::new(None)).unwrap();
        far.completions(0, Duration::from_millis(round), |_| ());
        far.cancel_submitted(4).unwrap();
        let then = room.clone();
        completion(&far);
        assert!(room == then && (room == wanted[0] || room.iter().all(|byte| *byte == 0xee)), "{round}");
    }
}

#[test]
fn what_the_own_node_has_is_in_memory_of_a_device_when_its_get_was_submitted() {
    let directory = Directory::new();
    let (own, _store, _) = node_by_way(&directory, 200, Some(64 << 20));
    let wanted = value(1, 3 << 20);
    put(&own, "k", &wanted, 1).unwrap();
    let mut room = vec![0xee; (3 << 20) + 5];
    own.submit_get(1, &[Item::new(b"k", &[slice_mut(&mut room)])], &[0], Sum::new(None)).unwrap();
    assert!(room[..wanted.len()] == wanted[..] && room[wanted.len()..].iter().all(|byte| *byte == 0xee));
    assert_eq!(completion(&own), NMC_OK);
}

#[test]
fn a_node_whose_heap_others_do_not_reach_serves_by_way_of_host_memory() {
    is_a_node(64 << 20, a_store);
}

#[test]
fn a_store_whose_heaps_are_on_a_gpu_is_a_node() {
    match store_on(HeapKind::Cuda, 1) {
        Ok(_) => is_a_node(64 << 20, |pages| store_on(HeapKind::Cuda, pages).unwrap()),
        Err(error) => eprintln!("skipped: {}", error.message),
    }
}

/// Whoever reads while there is no room tries again by itself; whoever puts is told so. What ends early leaves none of that room taken.
#[test]
fn host_memory_for_a_heap_is_bounded_and_comes_back_whatever_ends() {
    let directory = Directory::new();
    let (most, bytes) = (512 << 10, 200_000);
    let (vram, store) = (bouncing(&directory, most, false), a_store(400));
    vram.mount(&store, None, false).unwrap();
    let busy = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (directory, busy) = (&directory, &busy);
            scope.spawn(move || {
                let client = directory.client();
                for i in 0..8 {
                    let (key, value) = (format!("{thread}/{i}"), value(thread * 8 + i, bytes + i));
                    eventually("there is room", || match put(&client, &key, &value, 1) {
                        Ok(()) => true,
                        Err(NMC_ERR_BUSY) => {
                            busy.fetch_add(1, SeqCst);
                            false
                        }
                        Err(status) => panic!("{status}"),
                    });
                    for _ in 0..3 {
                        assert_eq!(get(&client, &key, value.len()).unwrap(), value);
                    }
                }
            });
        }
    });
    eprintln!("{} puts were refused", busy.load(SeqCst));
    // Puts and gets that are ended while their bytes come and leave: at any time, since it depends on the machine how long they take.
    let large = value(3, 6 << 20);
    let longest = Instant::now();
    put(&directory.client(), "whole", &large, 1).unwrap();
    let longest = longest.elapsed();
    for round in 0..24 {
        let client = directory.client();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = put(&client, &format!("ended/{round}"), &large, 1);
                let _ = get(&client, "whole", large.len());
            });
            std::thread::sleep(longest * round / 12);
            client.cancel();
        });
    }
    // A value that is larger than all of it needs all of it: nothing of what has ended is in its way.
    let client = directory.client();
    eventually("nothing is left of what has ended", || put(&client, "large", &large, 1).is_ok());
    assert_eq!(get(&client, "large", large.len()).unwrap(), large);
}

/// A node that ends while bytes come and leave takes its memory with it, and whoever had to do with it is told.
#[test]
fn a_node_with_host_memory_for_its_heap_ends_while_it_is_used() {
    let directory = Directory::new();
    let store = a_store(400);
    let (over, whole) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for thread in 0..3 {
            let (directory, over, whole) = (&directory, &over, &whole);
            scope.spawn(move || {
                let client =
                    Cluster::open(Config { patience: Duration::from_millis(500), ..directory.config() }).unwrap();
                let mut i = 0;
                while !over.load(SeqCst) {
                    i += 1;
                    let (key, value) = (format!("{thread}/{i}"), value(i, 700_000 + i));
                    if put(&client, &key, &value, 1).is_ok()
                        && let Ok(got) = get(&client, &key, value.len())
                    {
                        assert!(got == value, "{key}");
                        whole.fetch_add(1, SeqCst);
                    }
                    let _ = client.remove(key.as_bytes(), false);
                }
            });
        }
        for round in 0..12 {
            let vram = bouncing(&directory, 4 << 20, false);
            let before = whole.load(SeqCst);
            vram.mount(&store, Some("vram"), false).unwrap();
            eventually("something was read", || whole.load(SeqCst) > before);
            std::thread::sleep(Duration::from_millis(7 * round));
        }
    });
}
