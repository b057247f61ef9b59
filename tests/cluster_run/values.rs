//! Values of all sizes, alone and in batches, put and read by clients, by nodes and by programs that have a store of their own.

use super::common::{Directory, eventually, get, put, slice, slice_mut, value};
use super::node;
use nanomc::base::status::*;
use nanomc::cluster::facade::{Item, PutOptions};
use nanomc::store;
use nanomc::store::copy::Slice;

#[test]
fn what_one_client_puts_another_gets_whatever_its_size() {
    let directory = Directory::new();
    let nodes: Vec<_> = (0..2).map(|_| node(&directory, 400)).collect();
    let (writer, reader) = (directory.client(), directory.client());
    for (i, bytes) in [0, 1, 1000, 65_536, 65_537, 1 << 20, 9 << 20].into_iter().enumerate() {
        let (key, value) = (format!("k{i}"), value(i, bytes));
        put(&writer, &key, &value, 1).unwrap();
        assert_eq!(get(&reader, &key, bytes + 10).unwrap(), value, "{bytes} bytes");
        // Again, from where it was found before; and from the nodes themselves.
        assert_eq!(get(&reader, &key, bytes).unwrap(), value);
        for (cluster, ..) in &nodes {
            assert_eq!(get(cluster, &key, bytes).unwrap(), value);
            assert_eq!(get(cluster, &key, bytes + 100).unwrap(), value);
        }
        if bytes > 0 {
            assert_eq!(get(&reader, &key, bytes - 1), Err(NMC_ERR_TOO_SMALL));
        }
    }
    assert_eq!(get(&reader, "none", 10), Err(NMC_ERR_NOT_FOUND));
    assert_eq!(reader.exists(&[b"k1", b"none", b"k6"]).unwrap(), [true, false, true]);
    assert_eq!(reader.segments().unwrap().len(), 2);
}

#[test]
fn replicas_are_on_different_nodes_and_reads_go_on_when_one_is_gone() {
    let directory = Directory::new();
    let mut nodes: Vec<_> = (0..3).map(|_| node(&directory, 64)).collect();
    let other = directory.client();
    let value = value(1, 300_000);
    put(&other, "k", &value, 2).unwrap();
    let listed = other.query(&[b"k"]).unwrap().remove(0);
    assert_eq!(listed.replicas.len(), 2);
    assert_ne!(listed.replicas[0].name.node, listed.replicas[1].name.node);
    assert_eq!(get(&other, "k", value.len()).unwrap(), value);
    // The first owner goes without a word.
    let gone = &listed.replicas[0].endpoint;
    let at = nodes.iter().position(|(_, _, name)| gone.ends_with(name.rsplit(':').next().unwrap())).unwrap();
    drop(nodes.remove(at));
    for _ in 0..4 {
        assert_eq!(get(&other, "k", value.len()).unwrap(), value);
    }
    // More copies than there are nodes: as many as there are.
    put(&other, "many", &value, 3).unwrap();
}

#[test]
fn a_key_is_put_once_and_after_a_remove_again() {
    let directory = Directory::new();
    let nodes = [node(&directory, 16)];
    let other = directory.client();
    put(&other, "k", b"first", 1).unwrap();
    assert_eq!(put(&other, "k", b"second", 1), Err(NMC_ERR_EXISTS));
    assert_eq!(get(&other, "k", 10).unwrap(), b"first");
    assert_eq!(other.remove(b"k", true).unwrap(), NMC_OK);
    assert_eq!(get(&other, "k", 10), Err(NMC_ERR_NOT_FOUND));
    assert_eq!(get(&nodes[0].0, "k", 10), Err(NMC_ERR_NOT_FOUND), "the store has dropped it");
    assert_eq!(other.remove(b"k", true).map_err(|e| e.status), Err(NMC_ERR_NOT_FOUND));
    put(&other, "k", b"third", 1).unwrap();
    assert_eq!(get(&other, "k", 10).unwrap(), b"third");
    put(&other, "l", b"l", 1).unwrap();
    assert_eq!(other.remove_all(false, true).unwrap(), NMC_OK);
    assert_eq!(other.exists(&[b"k", b"l"]).unwrap(), [false, false]);
}

#[test]
fn a_remembered_size_is_not_that_of_the_next_value() {
    let directory = Directory::new();
    let _nodes = [node(&directory, 64)];
    let (reader, other) = (directory.client(), directory.client());
    let large = value(1, 200_000);
    put(&other, "k", &large, 1).unwrap();
    assert_eq!(get(&reader, "k", large.len()).unwrap(), large);
    assert_eq!(get(&reader, "k", 100), Err(NMC_ERR_TOO_SMALL));
    assert_eq!(other.remove(b"k", true).unwrap(), NMC_OK);
    assert_eq!(get(&reader, "k", 100), Err(NMC_ERR_NOT_FOUND));
    put(&other, "k", &large, 1).unwrap();
    assert_eq!(get(&reader, "k", large.len()).unwrap(), large);
    assert_eq!(other.remove(b"k", true).unwrap(), NMC_OK);
    put(&other, "k", b"small", 1).unwrap();
    assert_eq!(get(&reader, "k", 100).unwrap(), b"small");
}

#[test]
fn what_a_program_puts_into_its_own_store_others_find_and_what_is_evicted_they_do_not() {
    let directory = Directory::new();
    let (cluster, store, _) = node(&directory, 16);
    let other = directory.client();
    let value = value(3, 100_000);
    let put_here = |key: &[u8]| {
        let slices = [slice(&value)];
        store.put(key, &nanomc::store::copy::Pieces::Slices(&slices), &store::types::PutOptions::DEFAULT)
    };
    put_here(b"mine").unwrap();
    cluster.sync().unwrap();
    assert_eq!(get(&other, "mine", value.len()).unwrap(), value);
    // Others push it out, as soon as nobody reads it any more.
    let mut more = 0;
    eventually("it is evicted", || {
        put_here(format!("more{more}").as_bytes()).unwrap();
        more += 1;
        !store.exists(b"mine").unwrap()
    });
    cluster.sync().unwrap();
    assert_eq!(get(&other, "mine", value.len()), Err(NMC_ERR_NOT_FOUND));
    let last = format!("more{}", more - 1);
    assert_eq!(get(&other, &last, value.len()).unwrap(), value);
    store.remove(last.as_bytes()).unwrap();
    eventually("it is told", || get(&other, &last, value.len()) == Err(NMC_ERR_NOT_FOUND));
}

#[test]
fn batches_are_put_and_read_together() {
    let directory = Directory::new();
    let _nodes = [node(&directory, 3000), node(&directory, 3000)];
    let other = directory.client();
    let keys: Vec<String> = (0..1000).map(|i| format!("key {i}")).collect();
    let values: Vec<Vec<u8>> = (0..1000).map(|i| value(i, 100 + i)).collect();
    let slices: Vec<[Slice; 1]> = values.iter().map(|value| [slice(value)]).collect();
    let items: Vec<Item<'_>> =
        keys.iter().zip(&slices).map(|(key, slices)| Item { key: key.as_bytes(), slices, far: false }).collect();
    let put = other.put(&items, &PutOptions::default()).unwrap();
    assert!(put.iter().all(Result::is_ok), "{:?}", put.iter().find(|result| result.is_err()));
    let again = other.put(&items[..3], &PutOptions::default()).unwrap();
    assert!(again.iter().all(|result| result.as_ref().is_err_and(|e| e.status == NMC_ERR_EXISTS)));
    let mut into: Vec<Vec<u8>> = values.iter().map(|value| vec![0; value.len()]).collect();
    let slices: Vec<[Slice; 1]> = into.iter_mut().map(|value| [slice_mut(value)]).collect();
    let mut items: Vec<Item<'_>> =
        keys.iter().zip(&slices).map(|(key, slices)| Item { key: key.as_bytes(), slices, far: false }).collect();
    items[500].key = b"not there";
    let got = other.get(&items).unwrap();
    for (i, got) in got.iter().enumerate() {
        match i {
            500 => assert_eq!(got.result.as_ref().unwrap_err().status, NMC_ERR_NOT_FOUND),
            _ => assert_eq!((got.bytes, &into[i]), (values[i].len() as u64, &values[i])),
        }
    }
}

#[test]
fn many_threads_of_one_client_call_at_once() {
    let directory = Directory::new();
    let _nodes = [node(&directory, 600), node(&directory, 600)];
    let other = directory.client();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let other = &other;
            scope.spawn(move || {
                for i in 0..40 {
                    let bytes = if i % 8 == 0 { 200_000 } else { 3_000 };
                    let (key, value) = (format!("{thread} {i}"), value(thread * 100 + i, bytes));
                    put(other, &key, &value, 1).unwrap();
                    assert_eq!(get(other, &key, bytes).unwrap(), value);
                    if i % 3 == 0 {
                        assert_eq!(other.remove(key.as_bytes(), true).unwrap(), NMC_OK);
                        assert_eq!(get(other, &key, bytes), Err(NMC_ERR_NOT_FOUND));
                    }
                }
            });
        }
    });
}

#[test]
fn what_does_not_fit_one_message_or_one_buffer_goes_in_parts() {
    let directory = Directory::new();
    let _nodes = [node(&directory, 600)];
    let other = directory.client();
    // As many values as are under way at once, each as large as those that share a connection.
    let value = value(4, 64 << 10);
    let (long, slices) = ("k".repeat(900), [slice(&value)]);
    let keys: Vec<String> = (0..256).map(|i| format!("{long}{i}")).collect();
    let items: Vec<Item<'_>> =
        keys.iter().map(|key| Item { key: key.as_bytes(), slices: &slices, far: false }).collect();
    let put = other.put(&items, &PutOptions::default()).unwrap();
    assert!(put.iter().all(Result::is_ok), "{:?}", put.iter().find(|put| put.is_err()));
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    assert!(other.exists(&keys).unwrap().iter().all(|there| *there));
    let mut into = vec![0u8; 256 * value.len()];
    let slices: Vec<[Slice; 1]> = into.chunks_mut(value.len()).map(|part| [slice_mut(part)]).collect();
    let items: Vec<Item<'_>> = keys.iter().zip(&slices).map(|(key, slices)| Item { key, slices, far: false }).collect();
    for _ in 0..2 {
        let got = other.get(&items).unwrap();
        assert!(got.iter().all(|got| got.result.is_ok()), "{:?}", got.iter().find(|got| got.result.is_err()));
        assert!(into.chunks(value.len()).all(|part| part == value));
    }
    // A value of many pieces.
    let pieces: Vec<Slice> = value.chunks(6).map(slice).collect();
    let item = Item { key: b"pieces", slices: &pieces, far: false };
    other.put(&[item], &PutOptions::default()).unwrap().remove(0).unwrap();
    assert_eq!(get(&other, "pieces", value.len()).unwrap(), value);
}
