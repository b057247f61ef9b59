//! Large values in parts on different nodes.

use super::common::{Directory, eventually, get, put, slice, slice_mut, value};
use super::over::Over;
use super::{completion, node};
use nanomc::base::status::*;
use nanomc::cluster::facade::{Cluster, Config, Item, PutOptions};
use nanomc::cluster::net::Address;
use nanomc::cluster::submit::Sum;
use nanomc::cluster::types::ObjectKey;
use nanomc::store::Store;
use nanomc::store::copy::Slice;
use nanomc::store::types::{Look, Retain};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A client whose values of more than 256 KiB are put in parts.
fn striping(directory: &Directory) -> Cluster {
    Cluster::open(Config { stripe: 256 << 10, ..directory.config() }).unwrap()
}

/// Bytes that stores have in use.
fn in_use(nodes: &[(Cluster, Store, String)]) -> Vec<u64> {
    nodes.iter().map(|(_, store, _)| store.heap_usage(0).0).collect()
}

#[test]
fn a_large_value_is_in_parts_on_all_nodes_and_is_read_and_removed_as_one() {
    let directory = Directory::new();
    let nodes: Vec<_> = (0..3).map(|_| node(&directory, 200)).collect();
    let (writer, reader) = (striping(&directory), directory.client());
    for (round, bytes) in [(256 << 10) + 1, 1 << 20, (3 << 20) + 5].into_iter().enumerate() {
        let value = value(round, bytes);
        put(&writer, "k", &value, 1).unwrap();
        if round > 0 {
            assert!(in_use(&nodes).iter().all(|used| *used > 0), "parts are everywhere: {:?}", in_use(&nodes));
        }
        for cluster in nodes.iter().map(|(cluster, ..)| cluster).chain([&writer, &reader]) {
            assert_eq!(get(cluster, "k", bytes + 10).unwrap(), value);
            assert_eq!(get(cluster, "k", bytes).unwrap(), value, "from where it was found before");
            assert_eq!(get(cluster, "k", bytes - 1), Err(NMC_ERR_TOO_SMALL));
        }
        // Programs that look into the stores see neither stub nor part.
        for (_, store, _) in &nodes {
            assert!(!store.exists(b"k").unwrap());
            let (mut into, mut size) = (vec![0u8; bytes], 0);
            let slices = [slice_mut(&mut into)];
            let read = store.read(b"k", 0, &nanomc::store::copy::Pieces::Slices(&slices), |total| {
                size = total;
                Ok(true)
            });
            assert!(matches!(read.unwrap(), Look::Missing) && size == 0);
            into.clear();
        }
        let listed = reader.query(&[b"k"]).unwrap().remove(0);
        assert_eq!(
            (listed.replicas.len(), listed.replicas[0].length),
            (1, bytes as u64),
            "of the value, not of the stub"
        );
        assert_eq!(reader.exists(&[b"k", b"l"]).unwrap(), [true, false]);
        assert_eq!(reader.keys(b"", 0).unwrap().0, [ObjectKey::new(b"", b"k").unwrap()], "parts are no keys");
        assert_eq!(put(&writer, "k", b"another", 1), Err(NMC_ERR_EXISTS));
        // Into pieces of memory that end elsewhere than parts do.
        let mut into = vec![0u8; bytes];
        let (first, second) = into.split_at_mut(bytes / 3);
        let item = Item { key: b"k", slices: &[slice_mut(first), slice_mut(second)], far: false };
        assert!(reader.get(&[item]).unwrap().remove(0).result.is_ok() && into == value);
        match round {
            2 => assert_eq!(reader.remove_all(false, true).unwrap(), NMC_OK),
            _ => assert_eq!(reader.remove(b"k", true).unwrap(), NMC_OK),
        }
        for cluster in nodes.iter().map(|(cluster, ..)| cluster).chain([&writer, &reader]) {
            assert_eq!(get(cluster, "k", bytes), Err(NMC_ERR_NOT_FOUND));
        }
        eventually("the parts go too", || in_use(&nodes) == [0, 0, 0]);
    }
    assert!(Cluster::open(Config { space: b"\xffp".to_vec(), ..directory.config() }).is_err());
}

#[test]
fn copies_of_a_large_value_are_read_when_a_node_is_away_and_without_copies_it_is_not_found() {
    let directory = Directory::new();
    let mut nodes: Vec<_> = (0..4).map(|_| node(&directory, 200)).collect();
    let (writer, reader) = (striping(&directory), directory.client());
    let value = value(1, 2 << 20);
    put(&writer, "twice", &value, 2).unwrap();
    put(&writer, "once", &value, 1).unwrap();
    assert_eq!(get(&reader, "once", value.len()).unwrap(), value);
    let of_last = {
        let segments = reader.segments().unwrap();
        let node = segments.iter().find(|segment| segment.info.name == nodes[3].2).unwrap().node;
        reader.query(&[b"once"]).unwrap()[0].replicas[0].name.node == node
    };
    // It ends and says so: away at once.
    drop(nodes.pop());
    for _ in 0..3 {
        assert_eq!(get(&reader, "twice", value.len()).unwrap(), value);
    }
    eventually("it is not found", || get(&reader, "once", value.len()) == Err(NMC_ERR_NOT_FOUND));
    // One of its owners may come back.
    assert!(matches!(reader.remove(b"twice", true), Ok(NMC_OK | NMC_IN_PROGRESS)));
    put(&writer, "once", &value, 1).unwrap();
    assert_eq!(get(&reader, "once", value.len()).unwrap(), value);
    // What says where the former one is may be on the node that is away, and come back with it.
    let expected = if of_last { NMC_IN_PROGRESS } else { NMC_OK };
    assert_eq!(reader.remove(b"once", true).unwrap(), expected);
    eventually("what was left of the former one goes too", || in_use(&nodes) == [0, 0, 0]);
}

/// Parts go where there is room; if there is none for all of them the put says so, and nothing of it stays.
#[test]
fn a_large_value_is_there_when_its_put_has_returned_or_the_put_fails_and_leaves_nothing() {
    let directory = Directory::new();
    let nodes = [node(&directory, 16), node(&directory, 400)];
    let (writer, reader) = (striping(&directory), directory.client());
    let large = value(1, 12 << 20);
    for round in 0..3 {
        put(&writer, "k", &large, 1).unwrap();
        assert_eq!(get(&reader, "k", large.len()).unwrap(), large, "{round}");
        assert_eq!(reader.remove(b"k", true).unwrap(), NMC_OK);
        eventually("the parts go too", || in_use(&nodes) == [0, 0]);
    }
    // More than there is, however it is kept.
    let huge = value(2, 40 << 20);
    for retain in [Retain::None, Retain::Hard] {
        for round in 0..3 {
            let options = PutOptions { retain: retain.code(), ..PutOptions::default() };
            let key = format!("huge{round}");
            let item = Item { key: key.as_bytes(), slices: &[slice(&huge)], far: false };
            let status = writer.put(&[item], &options).unwrap().remove(0).map_err(|error| error.status);
            assert!(matches!(status, Err(NMC_ERR_NO_SPACE | NMC_ERR_BUSY)), "{retain:?}, {round}: {status:?}");
        }
        let began = Instant::now();
        eventually("nothing of it stays", || in_use(&nodes) == [0, 0]);
        assert!(began.elapsed() < Duration::from_secs(25), "before the master gives a put up");
        put(&writer, "k", &large, 1).unwrap();
        assert_eq!(get(&reader, "k", large.len()).unwrap(), large);
        assert_eq!(reader.remove(b"k", true).unwrap(), NMC_OK);
        eventually("the parts go too", || in_use(&nodes) == [0, 0]);
    }
}

#[test]
fn puts_of_large_values_that_are_under_way_when_a_client_is_closed_leave_nothing() {
    let directory = Directory::new();
    let nodes = [node(&directory, 400), node(&directory, 400)];
    let large = value(1, 3 << 20);
    let began = Instant::now();
    for _ in 0..6 {
        let writer = striping(&directory);
        let keys: Vec<String> = (0..4).map(|n| format!("k{n}")).collect();
        let slices = [slice(&large)];
        let items: Vec<Item<'_>> =
            keys.iter().map(|key| Item { key: key.as_bytes(), slices: &slices, far: false }).collect();
        std::thread::scope(|scope| {
            let putting = scope.spawn(|| writer.put(&items, &PutOptions::default()));
            std::thread::sleep(Duration::from_millis(3));
            writer.cancel();
            let _ = putting.join().unwrap();
        });
        drop(writer);
    }
    let reader = directory.client();
    assert!(matches!(reader.remove_all(false, true), Ok(NMC_OK)));
    eventually("nothing stays", || in_use(&nodes) == [0, 0]);
    assert!(began.elapsed() < Duration::from_secs(25), "before the master gives a put up");
}

#[test]
fn a_large_value_that_is_replaced_while_it_is_read_is_one_or_the_other() {
    let directory = Directory::new();
    let _nodes: Vec<_> = (0..3).map(|_| node(&directory, 400)).collect();
    let (writer, reader) = (striping(&directory), directory.client());
    let values: Vec<Vec<u8>> = (0..6).map(|seed| value(seed * 31, (1 << 20) + seed * 100_000)).collect();
    let over = AtomicBool::new(false);
    let read = std::thread::scope(|scope| {
        let end = Over(&over);
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (reader, values, over) = (&reader, &values, &over);
                scope.spawn(move || {
                    let mut read = 0;
                    while !over.load(SeqCst) {
                        match get(reader, "k", 2 << 20) {
                            Ok(got) => {
                                assert!(values.contains(&got), "{} bytes are of no value", got.len());
                                read += 1;
                            }
                            Err(status) => assert_eq!(status, NMC_ERR_NOT_FOUND),
                        }
                    }
                    read
                })
            })
            .collect();
        for round in 0..60 {
            put(&writer, "k", &values[round % values.len()], 1).unwrap();
            std::thread::sleep(Duration::from_millis(5));
            writer.remove(b"k", round % 2 == 0).unwrap();
        }
        drop(end);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum::<u32>()
    });
    assert!(read > 10, "{read} were read");
}

#[test]
fn a_new_master_is_told_of_large_values_and_their_parts() {
    let mut first = Directory::new();
    let address = Address::literal(&first.address).unwrap();
    let nodes: Vec<_> = (0..2).map(|_| node(&first, 200)).collect();
    let other = striping(&first);
    let value = value(5, 1 << 20);
    put(&other, "k", &value, 1).unwrap();
    first.stop();
    let members = first.members.lock().unwrap().clone();
    let second = Directory::at(&address, 2, "", members);
    let fresh = second.client();
    eventually("it is told", || get(&fresh, "k", value.len()).as_deref() == Ok(&value[..]));
    assert_eq!(fresh.query(&[b"k"]).unwrap()[0].replicas[0].length, value.len() as u64);
    eventually("it is removed", || fresh.remove(b"k", true).is_ok_and(|status| status == NMC_OK));
    eventually("the parts go too", || in_use(&nodes) == [0, 0]);
}

#[test]
fn large_values_are_submitted_and_cancelled_like_others() {
    let directory = Directory::new();
    let nodes: Vec<_> = (0..2).map(|_| node(&directory, 400)).collect();
    let other = striping(&directory);
    let values: Vec<Vec<u8>> = (0..4).map(|seed| value(seed, 900_000 + seed)).collect();
    let keys = ["a", "b", "c", "d"];
    let slices: Vec<[Slice; 1]> = values.iter().map(|value| [slice(value)]).collect();
    let items: Vec<Item<'_>> =
        keys.iter().zip(&slices).map(|(key, slices)| Item { key: key.as_bytes(), slices, far: false }).collect();
    let numbers: Vec<usize> = (0..items.len()).collect();
    other.submit_put(1, &items, &numbers, &PutOptions::default(), Sum::new(None)).unwrap();
    assert_eq!(completion(&other), NMC_OK);
    let mut into: Vec<Vec<u8>> = values.iter().map(|value| vec![0; value.len()]).collect();
    let slices: Vec<[Slice; 1]> = into.iter_mut().map(|value| [slice_mut(value)]).collect();
    let items: Vec<Item<'_>> =
        keys.iter().zip(&slices).map(|(key, slices)| Item { key: key.as_bytes(), slices, far: false }).collect();
    other.submit_get(2, &items, &numbers, Sum::new(None)).unwrap();
    assert_eq!(completion(&other), NMC_OK);
    assert_eq!(into, values);
    assert_eq!(other.remove_all(false, true).unwrap(), NMC_OK);
    eventually("the parts go too", || in_use(&nodes) == [0, 0]);
    // Cancelled at any moment, a put leaves nothing, or all of the value.
    for round in 0..20u64 {
        let key = format!("cancelled {round}");
        let item = Item { key: key.as_bytes(), slices: &[slice(&values[0])], far: false };
        other.submit_put(3, &[item], &[0], &PutOptions::default(), Sum::new(None)).unwrap();
        let until = Instant::now() + Duration::from_micros(round * 700);
        while Instant::now() < until {
            other.completions(0, Duration::ZERO, |_| ());
        }
        other.cancel_submitted(3).unwrap();
        let status = completion(&other);
        assert!(status == NMC_OK || status == NMC_ERR_CANCELLED, "{status}");
        match get(&other, &key, values[0].len()) {
            Ok(got) => assert_eq!(got, values[0]),
            Err(got) => assert!(got == NMC_ERR_NOT_FOUND && status != NMC_OK, "{got}, and the put gave {status}"),
        }
        let _ = other.remove(key.as_bytes(), true);
    }
    eventually("nothing is left", || in_use(&nodes) == [0, 0]);
}

#[test]
fn a_large_value_that_was_read_goes_with_its_parts() {
    let directory = Directory::new();
    let nodes: Vec<_> = (0..2).map(|_| node(&directory, 200)).collect();
    let other = striping(&directory);
    let reader = Cluster::open(Config { expire_ms: 300, ..directory.config() }).unwrap();
    let value = value(2, 1 << 20);
    put(&other, "k", &value, 2).unwrap();
    assert_eq!(get(&other, "k", value.len()).unwrap(), value);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(get(&reader, "k", value.len()).unwrap(), value, "only who wants that makes it go");
    eventually("it goes", || get(&other, "k", value.len()) == Err(NMC_ERR_NOT_FOUND));
    eventually("the parts go too", || in_use(&nodes) == [0, 0]);
}

#[test]
fn a_large_value_is_read_after_a_node_with_some_of_it_was_drained() {
    let directory = Directory::new();
    let nodes: Vec<_> = (0..3).map(|_| node(&directory, 200)).collect();
    let (writer, reader) = (striping(&directory), directory.client());
    let value = value(3, 2 << 20);
    put(&writer, "k", &value, 1).unwrap();
    let (cluster, _, name) = &nodes[1];
    eventually("it is drained", || reader.drain(name, Duration::ZERO).unwrap().status == NMC_OK);
    cluster.unmount(name).unwrap();
    for _ in 0..3 {
        assert_eq!(get(&reader, "k", value.len()).unwrap(), value);
    }
    assert_eq!(reader.query(&[b"k"]).unwrap()[0].replicas[0].length, value.len() as u64);
}

/// All that there was went for a value for which there was not enough room in any case.
#[test]
fn nothing_goes_for_a_value_that_cannot_be_there() {
    let directory = Directory::new();
    let nodes: Vec<_> = (0..2).map(|_| node(&directory, 64)).collect();
    let writer = striping(&directory);
    let key = |n: usize| format!("k{n}");
    (0..20).for_each(|n| put(&writer, &key(n), &value(n, 200_000), 1).unwrap());
    let big = value(7, 10 << 20);
    let item = Item { key: b"big", slices: &[slice(&big)], far: false };
    let why = writer.put(&[item], &PutOptions::default()).unwrap().remove(0).unwrap_err();
    assert_eq!(why.status, NMC_ERR_NO_SPACE);
    assert!(why.message.contains("bytes in all"), "{why:?}");
    for n in 0..20 {
        assert_eq!(get(&writer, &key(n), 200_000).unwrap(), value(n, 200_000));
    }
    // Control: there is room for one that is a little smaller than both nodes.
    put(&writer, "fits", &value(8, 6 << 20), 1).unwrap();
    drop(nodes);
}
