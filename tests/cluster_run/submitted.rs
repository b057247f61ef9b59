//! Calls that end early, and calls that nobody waits for.
#![allow(unsafe_code, reason = "a test that says where bytes lie")]

use super::common::{Directory, a_store, eventually, get, put, slice, slice_mut, value};
use super::{completion, node};
use nanomc::base::deadline::Deadline;
use nanomc::base::status::*;
use nanomc::cluster::client as core;
use nanomc::cluster::facade::{Cluster, Config, Item, PutOptions};
use nanomc::cluster::net::{Address, Limits, Span};
use nanomc::cluster::run::client as run;
use nanomc::cluster::submit::Sum;
use nanomc::cluster::types::ObjectKey;
use nanomc::cluster::wire::Replicate;
use nanomc::store::copy::Slice;
use nanomc::store::peers::{Ask, PeerRead, Peers};
use nanomc::store::types::Look;
use nanomc::store::{self, Store};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn what_waits_ends_when_it_is_cancelled() {
    let directory = Directory::new();
    let (cluster, _store, _) = node(&directory, 16);
    let mut directory = directory;
    directory.stop();
    std::thread::scope(|scope| {
        let waiting = [
            scope.spawn(|| cluster.sync().map_err(|e| e.status)),
            scope.spawn(|| put(&cluster, "k", b"v", 1)),
            scope.spawn(|| cluster.remove(b"k", true).map(drop).map_err(|e| e.status)),
        ];
        std::thread::sleep(Duration::from_millis(100));
        cluster.cancel();
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap(), Err(NMC_ERR_CANCELLED));
        }
    });
    assert_eq!(get(&cluster, "k", 1), Err(NMC_ERR_CANCELLED));
}

#[test]
fn what_was_cancelled_does_not_happen_later() {
    let mut first = Directory::new();
    let address = Address::literal(&first.address).unwrap();
    let (_cluster, _store, _) = node(&first, 64);
    let other = first.client();
    put(&other, "k", b"first", 1).unwrap();
    first.stop();
    submit_remove(&other, b"k").unwrap();
    other.completions(1, Duration::from_millis(200), |_| panic!("nobody has answered"));
    assert_eq!(other.cancel_submitted(1).unwrap(), 1);
    let mut ended = Vec::new();
    other.completions(1, Duration::ZERO, |completion| ended.push(completion.status));
    assert_eq!(ended, [NMC_ERR_CANCELLED]);
    let _second = Directory::at(&address, 2, "", first.members.lock().unwrap().clone());
    // What was removed by nobody is there, for as long as such a call could have gone on.
    for _ in 0..150 {
        assert_eq!(get(&other, "k", 10).unwrap(), b"first");
        assert_eq!(first.client().query(&[b"k"]).unwrap()[0].status, NMC_OK);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A connection that is only being made has sent nothing, and neither does it later.
#[test]
fn what_was_cancelled_before_it_was_sent_is_never_sent() {
    let directory = Directory::new();
    let (_cluster, _store, _) = node(&directory, 64);
    let (other, hasty) = (directory.client(), directory.client());
    put(&other, "k", b"first", 1).unwrap();
    submit_remove(&hasty, b"k").unwrap();
    assert_eq!(hasty.cancel_submitted(1).unwrap(), 1);
    assert_eq!(completion(&hasty), NMC_ERR_CANCELLED);
    for _ in 0..20 {
        assert_eq!(hasty.exists(&[b"something else"]).unwrap(), [false]);
        assert_eq!(other.query(&[b"k"]).unwrap()[0].status, NMC_OK);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_remove_that_nobody_waits_for_takes_what_the_own_node_was_just_given() {
    let directory = Directory::new();
    let (cluster, store, _) = node(&directory, 64);
    let (far, far_store, _) = node(&directory, 64);
    let put_here = |store: &Store, key: &str| {
        let slices = [slice(b"value")];
        store
            .put(key.as_bytes(), &nanomc::store::copy::Pieces::Slices(&slices), &store::types::PutOptions::DEFAULT)
            .unwrap();
    };
    for i in 0..20 {
        // It is elsewhere too, or only here.
        for elsewhere in [true, false] {
            let key = format!("{i} {elsewhere}");
            if elsewhere {
                put_here(&far_store, &key);
                far.sync().unwrap();
            }
            put_here(&store, &key);
            submit_remove(&cluster, key.as_bytes()).unwrap();
            assert_eq!(completion(&cluster), NMC_OK);
            cluster.sync().unwrap();
            assert_eq!(far.query(&[key.as_bytes()]).unwrap()[0].status, NMC_ERR_NOT_FOUND);
            assert!(!store.exists(key.as_bytes()).unwrap());
        }
    }
}

/// A node's thread has its node to look after.
#[test]
fn what_follows_when_the_own_node_was_told_of_is_done_by_whoever_drives() {
    let directory = Directory::new();
    let (cluster, store, _) = node(&directory, 64);
    let _far = node(&directory, 64);
    let value = value(3, 1000);
    let at_far =
        PutOptions { replicate: Replicate { copies: 2, ..PutOptions::default().replicate }, ..PutOptions::default() };
    let item = Item { key: b"far", slices: &[slice(&value)], far: false };
    cluster.put(&[item], &at_far).unwrap().remove(0).unwrap();
    store.remove(b"far").unwrap();
    // From now on it is known where the other copy is.
    eventually("it is read", || get(&cluster, "far", value.len()).is_ok());
    let threads = Arc::new(Mutex::new(Vec::new()));
    for round in 0..5 {
        let told = Arc::clone(&threads);
        let tell = move |_, _, status| {
            assert_eq!(status, NMC_OK);
            told.lock().unwrap().push(std::thread::current().id());
        };
        let mut into = vec![0u8; value.len()];
        let item = Item { key: b"far", slices: &[slice_mut(&mut into)], far: false };
        cluster.submit_get(2, &[item], &[0], Sum::new(Some(Box::new(tell)))).unwrap();
        // The answer comes meanwhile, and nobody looks.
        std::thread::sleep(Duration::from_millis(50));
        let (key, slices) = (format!("k{round}"), [slice(b"value")]);
        let options = store::types::PutOptions::DEFAULT;
        store.put(key.as_bytes(), &nanomc::store::copy::Pieces::Slices(&slices), &options).unwrap();
        submit_remove(&cluster, key.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let mut ended = Vec::new();
        eventually("both end", || {
            cluster
                .completions(2, Duration::from_secs(1), |completion| ended.push((completion.token, completion.status)));
            ended.len() == 2
        });
        ended.sort_unstable();
        assert_eq!(ended, [(1, NMC_OK), (2, NMC_OK)]);
        assert_eq!(into, value);
        assert!(!store.exists(key.as_bytes()).unwrap());
    }
    let here = std::thread::current().id();
    assert!(threads.lock().unwrap().iter().all(|thread| *thread == here));
}

#[test]
fn a_remove_that_waits_for_the_own_node_ends_when_it_is_cancelled_or_late_or_the_node_ends() {
    let mut directory = Directory::new();
    let (cluster, store) = (directory.client(), a_store(16));
    let hasty = Cluster::open(Config { patience: Duration::from_millis(800), ..directory.config() }).unwrap();
    let hasty_store = a_store(16);
    cluster.mount(&store, Some("a"), false).unwrap();
    hasty.mount(&hasty_store, Some("b"), false).unwrap();
    directory.stop();
    for store in [&store, &hasty_store] {
        let slices = [slice(b"value")];
        store.put(b"k", &nanomc::store::copy::Pieces::Slices(&slices), &store::types::PutOptions::DEFAULT).unwrap();
    }
    submit_remove(&cluster, b"k").unwrap();
    assert_eq!(cluster.cancel_submitted(1).unwrap(), 1);
    assert_eq!(completion(&cluster), NMC_ERR_CANCELLED);
    submit_remove(&hasty, b"k").unwrap();
    assert!(matches!(completion(&hasty), NMC_ERR_TIMEOUT | NMC_ERR_UNAVAILABLE));
    submit_remove(&cluster, b"k").unwrap();
    cluster.unmount("a").unwrap();
    assert!(matches!(completion(&cluster), NMC_ERR_CANCELLED | NMC_ERR_UNAVAILABLE));
}

#[test]
fn cancelling_returns_when_nobody_uses_the_memory_of_what_was_cancelled() {
    let directory = Directory::new();
    let _node = node(&directory, 16);
    let other = Cluster::open(Config { thread: true, ..directory.config() }).unwrap();
    let (told, comes) = channel();
    let returned = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&returned);
    let mut sent = false;
    // Whatever is told here is written to memory of the program, by the thread of the client.
    let tell = move |_, _, _| {
        if !std::mem::replace(&mut sent, true) {
            told.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(300));
        }
        assert!(!seen.load(SeqCst), "the program has its memory back");
    };
    let keys: Vec<String> = (0..300).map(|i| format!("k{i}")).collect();
    let items: Vec<Item<'_>> = keys.iter().map(|key| Item { key: key.as_bytes(), slices: &[], far: false }).collect();
    let numbers: Vec<usize> = (0..items.len()).collect();
    other.submit_put(1, &items, &numbers, &PutOptions::default(), Sum::new(Some(Box::new(tell)))).unwrap();
    comes.recv().unwrap();
    assert_eq!(other.cancel_submitted(1).unwrap(), 1);
    returned.store(true, SeqCst);
    let mut ended = Vec::new();
    other.completions(1, Duration::ZERO, |completion| ended.push((completion.token, completion.status)));
    assert_eq!(ended, [(1, NMC_ERR_CANCELLED)], "its completion is queued");
}

#[test]
fn without_a_master_a_batch_reads_what_is_where_it_was() {
    let mut directory = Directory::new();
    let _node = node(&directory, 64);
    let other = Cluster::open(Config { patience: Duration::from_secs(2), ..directory.config() }).unwrap();
    let values: Vec<Vec<u8>> = (0..6).map(|i| value(i, 1000 + i)).collect();
    for (i, value) in values.iter().enumerate() {
        put(&directory.client(), &format!("k{i}"), value, 1).unwrap();
        if i > 0 {
            assert_eq!(&get(&other, &format!("k{i}"), 2000).unwrap(), value);
        }
    }
    directory.stop();
    let unknown = |status: i32| matches!(status, NMC_ERR_UNAVAILABLE | NMC_ERR_TIMEOUT);
    // All of them are known, and all but the first.
    for first in [1, 0] {
        let keys: Vec<String> = (first..6).map(|i| format!("k{i}")).collect();
        let mut into = vec![0u8; 6 * 2000];
        let slices: Vec<[Slice; 1]> = into.chunks_mut(2000).map(|part| [slice_mut(part)]).collect();
        let items: Vec<Item<'_>> =
            keys.iter().zip(&slices).map(|(key, slices)| Item { key: key.as_bytes(), slices, far: false }).collect();
        let right = |at: usize| into[2000 * at..].starts_with(&values[first + at]);
        for (at, got) in other.get(&items).unwrap().into_iter().enumerate() {
            match first + at {
                0 => assert!(got.result.is_err_and(|error| unknown(error.status))),
                _ => assert!(got.result.is_ok() && right(at), "item {at} from {first} on"),
            }
        }
        let told = Arc::new(Mutex::new(vec![NMC_IN_PROGRESS; items.len()]));
        let statuses = Arc::clone(&told);
        let tell = move |item: usize, _, status| statuses.lock().unwrap()[item] = status;
        let numbers: Vec<usize> = (0..items.len()).collect();
        other.submit_get(1, &items, &numbers, Sum::new(Some(Box::new(tell)))).unwrap();
        let status = completion(&other);
        assert!(if first == 0 { unknown(status) } else { status == NMC_OK });
        for (at, status) in told.lock().unwrap().iter().enumerate() {
            assert!(if first + at == 0 { unknown(*status) } else { *status == NMC_OK && right(at) });
        }
    }
}

fn submit_remove(client: &Cluster, key: &[u8]) -> nanomc::base::error::Result<()> {
    client.submit_remove(1, &[key], &[0], true, Sum::new(None))
}

/// Somebody who has one value of 1,000 bytes, under "far", and is never asked for more than one time.
#[derive(Default)]
struct OneFarValue {
    begun: AtomicUsize,
    asked: AtomicUsize,
}

impl Peers for OneFarValue {
    fn begin(&self) -> nanomc::base::error::Result<Deadline> {
        self.begun.fetch_add(1, SeqCst);
        Ok(Deadline::after(Duration::from_secs(5)))
    }

    fn read(&self, _: &Ask<'_>, reads: &mut [PeerRead<'_>]) {
        self.asked.fetch_add(1, SeqCst);
        for read in reads.iter_mut().filter(|read| read.key == b"far") {
            read.outcome = Ok(Some(1000));
        }
    }

    fn find(&self, _: &Ask<'_>, keys: &[&[u8]]) -> nanomc::base::error::Result<Vec<bool>> {
        self.asked.fetch_add(1, SeqCst);
        Ok(keys.iter().map(|key| *key == b"far").collect())
    }

    fn metadata(&self, _: &Ask<'_>, key: &[u8]) -> nanomc::base::error::Result<Option<Vec<u8>>> {
        self.asked.fetch_add(1, SeqCst);
        Ok((key == b"far").then(|| b"said".to_vec()))
    }
}

#[test]
fn a_read_that_goes_on_has_one_time_however_often_others_are_asked() {
    let peers = Arc::new(OneFarValue::default());
    let far = a_store(8).with_peers(Arc::clone(&peers) as Arc<dyn Peers>);
    let counts = || (peers.begun.swap(0, SeqCst), peers.asked.swap(0, SeqCst));
    let mut into = [0u8; 100];
    let slices = [slice_mut(&mut into)];
    for (offset, asked) in [(0, 3), (500, 2)] {
        let read = far.read(b"far", offset, &nanomc::store::copy::Pieces::Slices(&slices), |_| Ok(true)).unwrap();
        assert!(matches!(read, Look::Ready(1000)));
        assert_eq!(counts(), (1, asked), "the size, and then the value");
    }
    let mut seen = 0;
    let keys = std::iter::repeat_n(&b"far"[..], 600).map(Ok);
    far.look_many_anywhere(keys, |_| {
        seen += 1;
        true
    })
    .unwrap();
    assert_eq!((seen, counts()), (600, (1, 3)));
    far.presence_anywhere(b"far").unwrap();
    assert_eq!(counts(), (1, 1));
    let said = |metadata: &[u8]| {
        assert_eq!(metadata, b"said");
        Ok(())
    };
    assert_eq!(far.tell_metadata(b"far", said).unwrap(), Look::Ready(()));
    assert_eq!((far.tell_metadata(b"none", said).unwrap(), counts()), (Look::Missing, (2, 2)));
}

#[test]
fn calls_that_nobody_waits_for_are_told_when_they_have_ended() {
    let directory = Directory::new();
    let _nodes = [node(&directory, 200)];
    let (other, value) = (directory.client(), value(6, 100_000));
    for i in 0..20 {
        put(&other, &format!("k{i}"), &value, 1).unwrap();
    }
    let address = directory.address.clone();
    let core = core::Config {
        masters: vec![address.clone()],
        host: String::new(),
        master_ms: 1_000,
        owner_ms: 1_000,
        cache: 100,
        read_order: core::ReadOrder::Near,
        pushed: false,
        pushed_from: 0,
        seed: 5,
    };
    let service = run::Service::new(core, &[Address::literal(&address).unwrap()], Limits::default()).unwrap();
    let get = |i: usize, into: &[u8]| {
        let key = ObjectKey::new(b"", format!("k{i}").as_bytes()).unwrap();
        let call = core::Call::Get(core::GetCall::new(key, into.len() as u64));
        run::Task {
            call,
            // SAFETY: the buffers stay until all calls are over; no two have the same.
            spans: vec![unsafe { Span::new(into.as_ptr() as usize, into.len()) }],
            far: false,
            patience: Duration::from_secs(20),
        }
    };
    let into = vec![0u8; 40 * value.len()];
    let parts: Vec<&[u8]> = into.chunks(value.len()).collect();
    let (teller, told) = channel();
    service.start_thread().unwrap();
    for i in 0..20 {
        let teller = teller.clone();
        let tasks = vec![get(i, parts[2 * i])];
        service.spawn(tasks, 1, Box::new(move |outcomes| teller.send(outcomes).unwrap())).unwrap();
        // Somebody who waits goes on beside them.
        assert_eq!(service.call(vec![get(i, parts[2 * i + 1])]).unwrap()[0].status, NMC_OK);
    }
    for outcomes in told.iter().take(20) {
        assert_eq!((outcomes.len(), outcomes[0].status, outcomes[0].count), (1, NMC_OK, value.len() as u64));
    }
    assert!(parts.iter().all(|part| *part == value));
}
