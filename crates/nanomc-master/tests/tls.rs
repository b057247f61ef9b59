//! A cluster whose connections are encrypted: a real master, nodes and clients with certificates, and those who have none, or others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

#[path = "../../../tests/common/cluster.rs"]
mod cluster;
mod common;

use cluster::{a_store, slice};
use common::{Certificates, PATIENCE, Running};
use nanomc::base::status::{NMC_ERR_INVALID_ARG, NMC_ERR_PERMISSION, nmc_status_t};
use nanomc::cluster::facade::{Cluster, Config, Item, PutOptions};
use nanomc::cluster::net::secure::Files;
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn files(of: &Certificates, name: &str) -> Files {
    let path = |name: &str| of.path(name).into();
    Files { cert: path(&format!("{name}.pem")), key: path(&format!("{name}.key")), ca: path("ca.pem") }
}

fn client(master: &str, tls: Option<Files>, stripe: u64) -> Cluster {
    let patience = Duration::from_secs(30);
    Cluster::open(Config { masters: vec![master.into()], tls, stripe, patience, ..Config::default() }).unwrap()
}

fn value(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| u8::try_from((i * 31 + i / 251) % 256).unwrap()).collect()
}

fn put(cluster: &Cluster, key: &str, bytes: &[u8]) -> Result<(), nmc_status_t> {
    let item = Item { key: key.as_bytes(), slices: &[slice(bytes)], far: false };
    let put = cluster.put(&[item], &PutOptions::default()).unwrap().remove(0);
    put.map_err(|error| error.status)
}

fn try_read(cluster: &Cluster, key: &str, bytes: usize) -> Result<Vec<u8>, nmc_status_t> {
    let room = vec![0u8; bytes];
    let got = cluster.get(&[Item { key: key.as_bytes(), slices: &[slice(&room)], far: false }]).unwrap().remove(0);
    got.result.map_err(|error| error.status)?;
    assert_eq!(got.bytes, bytes as u64);
    Ok(room)
}

fn read(cluster: &Cluster, key: &str, bytes: usize) -> Vec<u8> {
    try_read(cluster, key, bytes).unwrap()
}

#[test]
fn values_go_encrypted_between_those_who_have_certificates_and_to_nobody_else() {
    let (ours, theirs, dir) = (Certificates::make(), Certificates::make(), tempfile::tempdir().unwrap());
    let paths = ["server.pem", "server.key", "ca.pem"].map(|name| ours.path(name));
    let socket = format!("unix:{}", dir.path().join("frames").display());
    let state = dir.path().join("state").display().to_string();
    let (listen, args) = (format!("127.0.0.1:0,{socket}"), ["--tls_cert", "--tls_key", "--tls_ca"]);
    let mut all = vec!["--state", &state, "--listen", &listen];
    args.iter().zip(&paths).for_each(|(name, path)| all.extend([*name, path]));
    let master = Running::start(&all);
    let other = master.lines.iter().find_map(|line| line.strip_prefix("Framed connections on 127.")).unwrap();
    let other = format!("127.{other}");

    // One comes by the port that gRPC has too, one by the other, one by a socket of this machine; they read from each other's nodes.
    let members: Vec<_> = [&master.address, &other, &socket]
        .map(|at| {
            let (cluster, store) = (client(at, Some(files(&ours, "client")), 256 << 10), a_store(1024));
            cluster.mount(&store, None, false).unwrap();
            (cluster, store)
        })
        .into();
    for bytes in [1, 1000, 70_000, 1 << 20, 9 << 20] {
        let (from, key) = (value(bytes), format!("k{bytes}"));
        put(&members[0].0, &key, &from).unwrap();
        members.iter().for_each(|(cluster, _)| assert!(read(cluster, &key, bytes) == from, "{key}"));
    }
    for (number, (cluster, _)) in members.iter().enumerate() {
        (0..20).for_each(|n| put(cluster, &format!("{number}.{n}"), &value(5_000 + n)).unwrap());
    }
    for number in 0..members.len() {
        (0..20).for_each(|n| assert!(read(&members[1].0, &format!("{number}.{n}"), 5_000 + n) == value(5_000 + n)));
    }

    // A certificate that somebody else has signed, and none.
    for tls in [Some(Files { ca: ours.path("ca.pem").into(), ..files(&theirs, "client") }), None] {
        for at in [&master.address, &other] {
            assert_eq!(put(&client(at, tls.clone(), 0), "x", b"x"), Err(NMC_ERR_PERMISSION), "{tls:?} at {at}");
        }
    }
    // A master that somebody else has signed.
    let deceived = client(&master.address, Some(files(&theirs, "client")), 0);
    assert_eq!(put(&deceived, "x", b"x"), Err(NMC_ERR_PERMISSION));
    assert!(!members[0].0.exists(&[b"x"]).unwrap()[0]);

    // A node that speaks no TLS, which came by the socket: it is not the time that is missing.
    let (plain, store) = (client(&socket, None, 0), a_store(1024));
    plain.mount(&store, None, false).unwrap();
    put(&plain, "plain", b"on its own node, since no other takes it").unwrap();
    let patience = Duration::from_secs(3);
    let config = |at: &str| Config {
        masters: vec![at.to_owned()],
        tls: Some(files(&ours, "client")),
        patience,
        ..Config::default()
    };
    let reader = Cluster::open(config(&master.address)).unwrap();
    let got = reader.get(&[Item { key: b"plain", slices: &[slice(&[0u8; 64])], far: false }]).unwrap().remove(0);
    assert_eq!(got.result.map_err(|error| error.status), Err(NMC_ERR_PERMISSION));
    drop(plain);

    // Files that are none.
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (zeros, sealed) = (PathBuf::from("/dev/zero"), dir.path().join("sealed"));
    let sealed_key = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGj\n-----END ENCRYPTED PRIVATE KEY-----\n";
    std::fs::write(&sealed, sealed_key).unwrap();
    let long = dir.path().join("long");
    std::fs::write(&long, vec![b'\n'; 2 << 20]).unwrap();
    for (tls, why) in [
        (Files { cert: pipe, ..files(&ours, "client") }, "no regular file"),
        (Files { ca: zeros, ..files(&ours, "client") }, "no regular file"),
        (Files { ca: long, ..files(&ours, "client") }, "more than 1048576 bytes"),
        (Files { key: sealed, ..files(&ours, "client") }, "encrypted"),
    ] {
        let error = Cluster::open(Config { tls: Some(tls), ..config(&master.address) }).err().unwrap();
        assert!(error.status == NMC_ERR_INVALID_ARG && error.message.contains(why), "{error}");
    }
    for wrong in ["nothing.pem", "ca.pem"] {
        let tls = Some(Files { key: ours.path(wrong).into(), ..files(&ours, "client") });
        let config = Config { masters: vec![master.address.clone()], tls, ..Config::default() };
        let error = Cluster::open(config).err().unwrap();
        assert_eq!(error.status, NMC_ERR_INVALID_ARG);
        assert!(error.message.contains("can not be used for TLS"), "{}", error.message);
    }
}

#[test]
fn certificates_are_exchanged_while_everybody_runs() {
    let (files_in_use, former, next) = (Certificates::make(), Certificates::make(), Certificates::make());
    let all = ["server.pem", "server.key", "client.pem", "client.key", "ca.pem"];
    all.iter().for_each(|name| former.replace(name, &files_in_use));
    let dir = tempfile::tempdir().unwrap();
    let paths = ["server.pem", "server.key", "ca.pem"].map(|name| files_in_use.path(name));
    let state = dir.path().join("state").display().to_string();
    let master =
        Running::start(&["--state", &state, "--tls_cert", &paths[0], "--tls_key", &paths[1], "--tls_ca", &paths[2]]);
    let newcomer = |of: &Certificates| client(&master.address, Some(files(of, "client")), 0);
    let (old, store) = (newcomer(&files_in_use), a_store(1024));
    old.mount(&store, None, false).unwrap();
    let bytes = value(100_000);
    put(&old, "k", &bytes).unwrap();
    assert_eq!(try_read(&newcomer(&next), "k", bytes.len()), Err(NMC_ERR_PERMISSION));

    // With a key that does not belong to the certificate, what was read before goes on being used.
    ["server.key", "client.key"].iter().for_each(|name| files_in_use.replace(name, &next));
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(2_500) {
        assert!(read(&newcomer(&former), "k", bytes.len()) == bytes);
    }

    // The rest: from now on the others are believed, by the master and by the node.
    all.iter().for_each(|name| files_in_use.replace(name, &next));
    let since = Instant::now();
    while try_read(&newcomer(&next), "k", bytes.len()) != Ok(bytes.clone()) {
        assert!(since.elapsed() < PATIENCE, "the new ones are not used");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(try_read(&newcomer(&former), "k", bytes.len()), Err(NMC_ERR_PERMISSION));

    // Who was there before goes on, also with those who came later.
    let (later, its_store) = (newcomer(&next), a_store(1024));
    later.mount(&its_store, None, false).unwrap();
    let keys: Vec<String> = (0..20).map(|n| format!("on either node {n}")).collect();
    keys.iter().for_each(|key| put(&later, key, &bytes).unwrap());
    keys.iter().for_each(|key| assert!(read(&old, key, bytes.len()) == bytes, "{key}"));
    assert!(read(&old, "k", bytes.len()) == bytes);
}
