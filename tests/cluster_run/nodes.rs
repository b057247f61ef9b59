//! Nodes that come and go, keep what they have read, and are drained.

use super::common::{Directory, a_store, eventually, get, put, slice, value};
use super::node;
use nanomc::base::status::*;
use nanomc::cluster::facade::{Cluster, Config, Item, PutOptions};
use nanomc::cluster::net::Address;
use nanomc::store;
use nanomc::store::types::{Look, Retain};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::Duration;

/// No port of the machine is open: who may enter the folder may take part.
#[test]
fn masters_and_nodes_listen_at_sockets_of_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| format!("unix:{}", dir.path().join(name).display());
    let directory = Directory::at(&Address::literal(&path("master")).unwrap(), 1, "", vec![]);
    let config = || Config { host: path("nodes"), ..directory.config() };
    let files = || std::fs::read_dir(dir.path().join("nodes")).unwrap().map(|file| file.unwrap().file_name());
    let sockets = || files().filter(|name| name.to_str().unwrap().ends_with(".sock")).count();
    let (first, second, other) =
        (Cluster::open(config()).unwrap(), Cluster::open(config()).unwrap(), Cluster::open(config()).unwrap());
    let (store, another) = (a_store(64), a_store(64));
    first.mount(&store, Some("shelf"), false).unwrap();
    let name = second.mount(&another, None, false).unwrap();
    assert!(name.starts_with(dir.path().to_str().unwrap()), "{name}");
    assert_eq!(std::fs::metadata(dir.path().join("nodes")).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(sockets(), 2);
    for (n, bytes) in [0, 1, 1000, 100_000, 2 << 20].into_iter().enumerate() {
        let (key, value) = (format!("k{n}"), value(n, bytes));
        put(&other, &key, &value, 2).unwrap();
        for cluster in [&other, &first, &second, &directory.client()] {
            assert_eq!(get(cluster, &key, bytes).unwrap(), value, "{bytes}");
        }
    }
    let segments = other.segments().unwrap();
    assert!(segments.len() == 2 && segments.iter().all(|segment| other.is_here(segment)));
    // The name is held by one, as everywhere.
    let hasty = Cluster::open(Config { patience: Duration::from_millis(500), ..config() }).unwrap();
    let taken = hasty.mount(&a_store(8), Some("shelf"), false).unwrap_err();
    assert!(taken.status == NMC_ERR_UNAVAILABLE && taken.message.contains("is a node on"), "{}", taken.message);
    first.unmount("shelf").unwrap();
    assert_eq!(sockets(), 1);
    // What a process leaves that was killed is in nobody's way.
    let left = dir.path().join("nodes").join(format!("{:016x}.sock", xxhash_rust::xxh3::xxh3_64(b"shelf")));
    drop(UnixListener::bind(&left).unwrap());
    assert!(left.exists());
    first.mount(&store, Some("shelf"), false).unwrap();
    assert_eq!(sockets(), 2);
    assert_eq!(get(&other, "k2", 1000).unwrap(), value(2, 1000));
    drop((first, second, hasty));
    assert_eq!(files().count(), 0);
    // Where there is no folder, and none can be made; where no name of a socket has room; and where others could not come.
    let status = |config| {
        Cluster::open(config).and_then(|cluster| cluster.mount(&a_store(8), None, false)).err().map(|e| e.status)
    };
    assert_eq!(status(Config { host: path("none/nodes"), ..config() }), Some(NMC_ERR_OS));
    assert_eq!(
        status(Config { host: path(&"n".repeat(80 - dir.path().as_os_str().len())), ..config() }),
        Some(NMC_ERR_INVALID_ARG)
    );
    assert_eq!(status(Config { host: "unix:nodes".into(), ..config() }), Some(NMC_ERR_INVALID_ARG));
    let far = Config { masters: vec!["192.0.2.1:1".into()], token: "t".into(), ..config() };
    assert_eq!(status(far), Some(NMC_ERR_INVALID_ARG));
}

/// Not a test of its own: a process of [`what_nodes_leave_in_a_folder_that_were_killed_goes`].
#[test]
fn listens_in_a_folder() {
    let Ok(args) = std::env::var("NMC_NODE_IN_A_FOLDER") else { return };
    let (master, host) = args.split_once(',').unwrap();
    let client =
        Cluster::open(Config { masters: vec![master.into()], host: host.into(), ..Config::default() }).unwrap();
    client.mount(&a_store(8), None, true).unwrap();
    // Until it is killed, or nobody is there any more who could.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn what_nodes_leave_in_a_folder_that_were_killed_goes() {
    let dir = tempfile::tempdir().unwrap();
    let directory = Directory::new();
    let host = format!("unix:{}", dir.path().display());
    let sockets = || {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".sock")).count()
    };
    let process = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "nodes::listens_in_a_folder", "--nocapture", "--test-threads=1"]);
        command.env("NMC_NODE_IN_A_FOLDER", format!("{},{host}", directory.address));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let members = |n| {
        let client = directory.client();
        eventually("all are members", || client.segments().unwrap().iter().filter(|s| s.state == 0).count() == n);
    };
    let (mut first, mut second) = (process(), process());
    members(2);
    assert_eq!(sockets(), 2);
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(sockets(), 2, "nobody has looked");
    let client = Cluster::open(Config { host: host.clone(), ..directory.config() }).unwrap();
    client.mount(&a_store(8), None, true).unwrap();
    assert_eq!(sockets(), 2, "that of the one that lives, and the new one");
    put(&client, "k", b"value", 2).unwrap();
    assert_eq!(client.query(&[b"k"]).unwrap()[0].replicas.len(), 2, "the one that lives can be reached");
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn a_node_ends_and_comes_back_and_a_name_is_held_by_one() {
    let directory = Directory::new();
    let (cluster, store) = (directory.client(), a_store(16));
    let name = cluster.mount(&store, Some("shelf"), false).unwrap();
    assert_eq!(name, "shelf");
    assert_eq!(cluster.mount(&store, Some("shelf"), false).map_err(|e| e.status), Err(NMC_ERR_EXISTS));
    // The store is a node, whatever another one would be called.
    let again = directory.client().mount(&store, Some("another"), false).unwrap_err();
    assert_eq!(again.status, NMC_ERR_EXISTS);
    assert!(again.message.contains("is a node already"), "{again:?}");
    // Nor does another process of the machine take the name while this one lives.
    let hasty = Cluster::open(Config { patience: Duration::from_millis(500), ..directory.config() }).unwrap();
    let taken = hasty.mount(&a_store(8), Some("shelf"), false).unwrap_err();
    assert_eq!(taken.status, NMC_ERR_UNAVAILABLE);
    assert!(taken.message.contains("\"shelf\" is a node on"), "{}", taken.message);
    let other = directory.client();
    put(&other, "k", b"value", 1).unwrap();
    cluster.unmount("shelf").unwrap();
    assert_eq!(cluster.unmount("shelf").map_err(|e| e.status), Err(NMC_ERR_NOT_FOUND));
    assert!(get(&other, "k", 10).is_err());
    // The store is as it was, and so is what it has.
    cluster.mount(&store, Some("shelf"), false).unwrap();
    assert_eq!(get(&other, "k", 10).unwrap(), b"value");
}

#[test]
fn a_store_that_left_with_nothing_keeps_what_its_programs_put_before_it_comes_again() {
    let directory = Directory::new();
    let (cluster, store, other) = (directory.client(), a_store(16), directory.client());
    let put_here = |key: &str| {
        let slices = [slice(b"value")];
        let options = store::types::PutOptions::DEFAULT;
        store.put(key.as_bytes(), &nanomc::store::copy::Pieces::Slices(&slices), &options).unwrap();
    };
    for (round, name) in ["shelf", "shelf", "rack"].into_iter().enumerate() {
        cluster.mount(&store, Some(name), false).unwrap();
        cluster.unmount(name).unwrap();
        put_here(&format!("k{round}"));
        cluster.mount(&store, Some(name), false).unwrap();
        let key = format!("k{round}");
        assert_eq!(get(&other, &key, 10).unwrap(), b"value");
        // The log goes on, so that where the store was is behind its end.
        assert_eq!(other.remove(key.as_bytes(), true).unwrap(), NMC_OK);
        eventually("it is empty", || store.heap_usage(0).0 == 0);
        cluster.unmount(name).unwrap();
    }
}

#[test]
fn what_is_read_is_kept_where_that_is_wanted_and_outlives_its_first_owner() {
    let directory = Directory::new();
    let (first, store, name) = node(&directory, 64);
    let keeping = Cluster::open(Config { keep: true, ..directory.config() }).unwrap();
    let (value, other) = (value(2, 200_000), directory.client());
    put(&other, "k", &value, 1).unwrap();
    let second = a_store(64);
    keeping.mount(&second, None, false).unwrap();
    assert_eq!(get(&keeping, "k", value.len()).unwrap(), value);
    eventually("a copy is kept", || other.query(&[b"k"]).unwrap()[0].replicas.len() == 2);
    first.unmount(&name).unwrap();
    drop(store);
    assert_eq!(get(&directory.client(), "k", value.len()).unwrap(), value);
    // A remove takes the copy too. That who has left may still have it is told.
    assert_eq!(other.remove(b"k", true).unwrap(), NMC_IN_PROGRESS);
    eventually("it is dropped", || !second.exists(b"k").unwrap());
}

#[test]
fn what_is_read_is_kept_on_the_first_node() {
    let directory = Directory::new();
    let (_first, _store, _) = node(&directory, 64);
    let keeping = Cluster::open(Config { keep: true, ..directory.config() }).unwrap();
    put(&directory.client(), "k", b"value", 1).unwrap();
    let stores = [a_store(64), a_store(64)];
    for (store, name) in stores.iter().zip(["a", "b"]) {
        keeping.mount(store, Some(name), false).unwrap();
    }
    assert_eq!(get(&keeping, "k", 10).unwrap(), b"value");
    eventually("a copy is kept", || stores.iter().any(|store| store.exists(b"k").unwrap()));
    assert_eq!(stores.map(|store| store.exists(b"k").unwrap()), [true, false]);
}

#[test]
fn draining_a_segment_copies_what_is_only_there_with_all_that_was_said_about_it() {
    let directory = Directory::new();
    let (first, store, name) = node(&directory, 64);
    let other = directory.client();
    let options = PutOptions { metadata: b"said".to_vec(), retain: 1 | 2 << 2, ..PutOptions::default() };
    let values: Vec<Vec<u8>> = (0..10).map(|i| value(i, 1000 * i)).collect();
    for (i, value) in values.iter().enumerate() {
        let (key, slices) = (format!("k{i}"), [slice(value)]);
        other.put(&[Item { key: key.as_bytes(), slices: &slices, far: false }], &options).unwrap().remove(0).unwrap();
    }
    let (_second, to, _) = node(&directory, 64);
    eventually("nothing is left", || other.drain(&name, Duration::ZERO).unwrap().status == NMC_OK);
    first.unmount(&name).unwrap();
    drop(store);
    for (i, value) in values.iter().enumerate() {
        let key = format!("k{i}");
        assert_eq!(&get(&directory.client(), &key, value.len()).unwrap(), value);
        let Look::Ready((pin, _)) = to.pin(key.as_bytes()).unwrap() else { panic!("{key} is not there") };
        let Look::Ready(said) = to.view_metadata(pin).unwrap() else { panic!("{key} says nothing") };
        assert_eq!((&*said, to.class_of(pin)), (&b"said"[..], (Retain::Soft, 2)));
        to.unpin(pin).unwrap();
    }
}

#[test]
fn a_segment_whose_drain_was_given_up_takes_what_others_put_at_once() {
    let directory = Directory::new();
    let (_first, _store, name) = node(&directory, 64);
    let other = directory.client();
    for round in 0..3 {
        eventually("it is drained", || other.drain(&name, Duration::ZERO).unwrap().status == NMC_OK);
        let key = format!("k{round}");
        assert_eq!(put(&other, &key, b"value", 1), Err(NMC_ERR_NO_SPACE));
        other.undrain(&name).unwrap();
        assert_eq!(put(&other, &key, b"value", 1), Ok(()));
        assert_eq!(other.remove(key.as_bytes(), true).unwrap(), NMC_OK);
    }
}

/// A remove of what an unmounted node had was IN_PROGRESS for some tens of milliseconds.
#[test]
fn what_a_node_had_that_was_unmounted_is_in_nobodys_way() {
    let directory = Directory::new();
    let (client, stays) = (directory.client(), node(&directory, 64));
    for round in 0..20 {
        let (goes, store, key) = (directory.client(), a_store(16), format!("k{round}"));
        goes.mount(&store, Some("goes"), true).unwrap();
        put(&client, &key, &[7; 1000], 2).unwrap();
        if round % 2 == 0 {
            goes.unmount("goes").unwrap();
        } else {
            drop(goes);
        }
        assert_eq!(client.remove(key.as_bytes(), true).unwrap(), NMC_OK);
    }
    drop(stays);
}
