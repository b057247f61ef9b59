//! Masters that are new, that have lost what they knew, that do not answer, and that let nobody in.

use super::common::{Directory, a_store, eventually, get, put, value};
use super::node;
use nanomc::base::status::*;
use nanomc::cluster::facade::{Cluster, Config};
use nanomc::cluster::net::Address;
use nanomc::cluster::types::terms_of;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

#[test]
fn a_new_master_is_told_by_the_nodes_what_there_is() {
    let mut first = Directory::new();
    let address = Address::literal(&first.address).unwrap();
    let (cluster, _store, _) = node(&first, 64);
    let other = first.client();
    let value = value(5, 10_000);
    for i in 0..50 {
        put(&other, &format!("k{i}"), &value, 1).unwrap();
    }
    first.stop();
    // What is known where it is needs no master.
    assert_eq!(get(&cluster, "k7", value.len()).unwrap(), value);
    let _second = Directory::at(&address, 2, "", first.members.lock().unwrap().clone());
    let fresh = first.client();
    for i in 0..50 {
        assert_eq!(get(&fresh, &format!("k{i}"), value.len()).unwrap(), value);
    }
    put(&fresh, "new", &value, 1).unwrap();
    assert_eq!(fresh.remove(b"k3", true).unwrap(), NMC_OK);
    assert_eq!(get(&other, "k3", value.len()), Err(NMC_ERR_NOT_FOUND));
}

#[test]
fn segments_of_nodes_that_live_are_there_under_a_new_master_from_the_first_answer_on() {
    let mut directory = Directory::new();
    let address = Address::literal(&directory.address).unwrap();
    let (cluster, _store, name) = node(&directory, 64);
    put(&cluster, "k", &value(5, 10_000), 1).unwrap();
    for term in 2..6 {
        directory.stop();
        let members = directory.members.lock().unwrap().clone();
        directory = Directory::at(&address, term, "", members);
        let fresh = directory.client();
        match term {
            2 => assert_eq!(fresh.segments().unwrap().len(), 1),
            3 => assert_eq!(fresh.drain(&name, Duration::ZERO).unwrap().status, NMC_IN_PROGRESS),
            4 => fresh.undrain(&name).unwrap(),
            _ => {
                let why = fresh.drain("another", Duration::ZERO).unwrap_err();
                assert_eq!(why.status, NMC_ERR_NOT_FOUND, "{why:?}");
            }
        }
    }
}

/// A master whose state is lost leads another cluster, whose terms may be below those of the former. Nodes and clients that live on come to it.
#[test]
fn nodes_and_clients_come_to_a_master_that_has_lost_its_state() {
    let mut directory = Directory::at(&Address::literal("127.0.0.1:0").unwrap(), terms_of(9) + 3, "", vec![]);
    let address = Address::literal(&directory.address).unwrap();
    let (_cluster, _store, _) = node(&directory, 64);
    let client = directory.client();
    let value = value(5, 10_000);
    put(&client, "before", &value, 1).unwrap();
    for cluster in [4, 12, 2] {
        directory.stop();
        let config = directory.config();
        directory = Directory::at(&address, terms_of(cluster) + 1, "", vec![]);
        let key = format!("k{cluster}");
        eventually("it is put", || put(&client, &key, &value, 1).is_ok());
        assert_eq!(get(&client, &key, value.len()).unwrap(), value);
        assert_eq!(get(&Cluster::open(config).unwrap(), &key, value.len()).unwrap(), value);
        // Nobody knows what of the former one was removed since.
        assert_eq!(get(&client, "before", value.len()), Err(NMC_ERR_NOT_FOUND));
        put(&client, "before", &value, 1).unwrap();
    }
}

#[test]
fn every_call_ends_when_nobody_answers() {
    let mut directory = Directory::new();
    let quick = |directory: &Directory| {
        Cluster::open(Config { patience: Duration::from_millis(300), ..directory.config() }).unwrap()
    };
    let other = quick(&directory);
    directory.stop();
    let began = Instant::now();
    assert!(matches!(put(&other, "k", b"v", 1), Err(NMC_ERR_UNAVAILABLE | NMC_ERR_TIMEOUT)));
    assert!(matches!(get(&other, "k", 1), Err(NMC_ERR_UNAVAILABLE | NMC_ERR_TIMEOUT)));
    assert!(other.remove(b"k", true).is_err());
    assert!(other.exists(&[b"k"]).is_err());
    assert!(other.mount(&a_store(8), None, false).is_err());
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn without_the_token_nobody_takes_part() {
    let directory = Directory::at(&Address::literal("127.0.0.1:0").unwrap(), 1, "secret", vec![]);
    let with = |token: &str| {
        let patience = Duration::from_secs(20);
        Cluster::open(Config { token: token.into(), patience, ..directory.config() }).unwrap()
    };
    let (good, store) = (with("secret"), a_store(16));
    good.mount(&store, None, false).unwrap();
    put(&good, "k", b"v", 1).unwrap();
    assert_eq!(get(&with("secret"), "k", 1).unwrap(), b"v");
    for token in ["", "wrong"] {
        let without = with(token);
        // Also when it asks a second time, and the former connection has just been ended.
        for _ in 0..2 {
            assert_eq!(get(&without, "k", 1), Err(NMC_ERR_PERMISSION));
        }
        assert_eq!(put(&without, "k", b"v", 1), Err(NMC_ERR_PERMISSION));
        assert_eq!(without.mount(&a_store(8), None, false).map_err(|e| e.status), Err(NMC_ERR_PERMISSION));
    }
    let far = Config { host: "192.0.2.1".into(), ..directory.config() };
    assert_eq!(Cluster::open(far).map(|_| ()).map_err(|e| e.status), Err(NMC_ERR_PERMISSION));
}

#[test]
fn a_master_of_another_version_is_no_master_that_does_not_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let old = std::thread::spawn(move || {
        // Whatever is asked, the answer is one of a version that was.
        while let Ok((mut socket, _)) = listener.accept() {
            let mut asked = [0; 32];
            if socket.read_exact(&mut asked).is_err() {
                return; // whoever says nothing ends this
            }
            let mut answer = asked;
            answer[3] = 1;
            let _ = socket.write_all(&answer);
        }
    });
    let client = Cluster::open(Config {
        masters: vec![address.clone()],
        host: "127.0.0.1".into(),
        patience: Duration::from_secs(60),
        ..Config::default()
    });
    let client = client.unwrap();
    for _ in 0..2 {
        assert_eq!(get(&client, "k", 1), Err(NMC_ERR_VERSION));
    }
    let why = client.mount(&a_store(8), None, false).unwrap_err();
    assert_eq!(why.status, NMC_ERR_VERSION);
    assert!(why.message.contains("version 1"), "{why:?}");
    drop(client);
    drop(TcpStream::connect(address).unwrap());
    old.join().unwrap();
}
