//! Removing many at once over gRPC: values of a node with a store of its own, in several namespaces.

use super::stores::{a_store, slice};
use super::{INVALID_ARG, NOT_FOUND, OK, Own, start};
use nanomc::cluster::facade::{Cluster, Config, Item, PutOptions};
use nanomc::store::Store;
use nanomc_master::proto::v1::{self, master_service_client::MasterServiceClient};
use std::time::Duration;
use tonic::Code;
use tonic::transport::Channel;

const SPACES: [&str; 3] = ["", "a", "b"];

/// A master, a node, and a client for each namespace.
struct Bed {
    clients: [Cluster; 3],
    _store: Store,
    own: Own,
}

impl Bed {
    fn new() -> Self {
        let own = start(&["--settle_ms", "0"]);
        let config = |space: &str| Config {
            masters: vec![own.master.address.clone()],
            space: space.as_bytes().to_vec(),
            patience: Duration::from_secs(20),
            ..Config::default()
        };
        let clients = SPACES.map(|space| Cluster::open(config(space)).unwrap());
        let store = a_store(64);
        clients[0].mount(&store, Some("n"), false).unwrap();
        Self { clients, _store: store, own }
    }

    /// Puts three values into each namespace.
    fn fill(&self) {
        for client in &self.clients {
            ["x", "y", "z"].iter().for_each(|key| put(client, key));
        }
    }

    /// Of which namespaces there is something, as the leader says and as it can be read.
    fn left(&self) -> Vec<&'static str> {
        let has = |at: &usize| {
            let found = self.clients[*at].exists(&[b"x", b"y", b"z"]).unwrap();
            assert!(found.iter().all(|one| *one == found[0]), "all of a namespace, or nothing: {found:?}");
            assert_eq!(read(&self.clients[*at], "y"), found[0]);
            found[0]
        };
        (0..SPACES.len()).filter(has).map(|at| SPACES[at]).collect()
    }
}

fn put(client: &Cluster, key: &str) {
    let slices = [slice(b"value")];
    client.put(&[Item::new(key.as_bytes(), &slices)], &PutOptions::default()).unwrap().remove(0).unwrap();
}

fn read(client: &Cluster, key: &str) -> bool {
    let into = [0u8; 5];
    let got = client.get(&[Item::new(key.as_bytes(), &[slice(&into)])]).unwrap().remove(0);
    match got.result {
        Ok(()) => into == *b"value",
        Err(error) if error.status == NOT_FOUND => false,
        Err(error) => panic!("{error:?}"),
    }
}

async fn remove_all(client: &mut MasterServiceClient<Channel>, space: Option<&str>) -> i32 {
    remove_all_as(client, space, 0).await
}

async fn remove_all_as(client: &mut MasterServiceClient<Channel>, space: Option<&str>, call_id: u64) -> i32 {
    let space = space.map(|space| space.as_bytes().to_vec());
    client.remove_all(v1::RemoveAllRequest { space, no_wait: false, call_id }).await.unwrap().into_inner().status_code
}

#[tokio::test]
async fn all_of_a_namespace_goes_or_all_of_all() {
    let bed = Bed::new();
    let mut client = bed.own.master.client().await;
    bed.fill();
    assert_eq!(bed.left(), SPACES);
    assert_eq!(remove_all(&mut client, Some("a")).await, OK);
    assert_eq!(bed.left(), ["", "b"]);
    // The namespace without a name is one, and not all of them.
    assert_eq!(remove_all(&mut client, Some("")).await, OK);
    assert_eq!(bed.left(), ["b"]);
    ["x", "y", "z"].iter().for_each(|key| put(&bed.clients[1], key));
    assert_eq!(bed.left(), ["a", "b"]);
    assert_eq!(remove_all(&mut client, None).await, OK);
    assert!(bed.left().is_empty());
    // Where there is nothing nothing goes, and what no namespace can be called is said.
    assert_eq!(remove_all(&mut client, None).await, OK);
    assert_eq!(remove_all(&mut client, Some("none")).await, OK);
    assert_eq!(remove_all(&mut client, Some(&"n".repeat(65))).await, INVALID_ARG);
    // A call that comes again takes nothing that was put since.
    bed.fill();
    assert_eq!(remove_all_as(&mut client, None, 77).await, OK);
    assert!(bed.left().is_empty());
    bed.fill();
    assert_eq!(remove_all_as(&mut client, None, 77).await, OK);
    assert_eq!(bed.left(), SPACES);
    // Without waiting for the owners it is out of every lookup when it returns.
    let request = v1::RemoveAllRequest { space: None, no_wait: true, call_id: 0 };
    assert_eq!(client.remove_all(request).await.unwrap().into_inner().status_code, OK);
    for cluster in &bed.clients[1..] {
        assert_eq!(cluster.exists(&[b"x", b"y", b"z"]).unwrap(), [false; 3]);
    }
}

#[tokio::test]
async fn a_batch_of_removes_is_answered_each_in_its_order() {
    let bed = Bed::new();
    let mut client = bed.own.master.client().await;
    bed.fill();
    let remove = |space: &str, key: &str, call_id: u64| v1::RemoveRequest {
        key: key.as_bytes().to_vec(),
        space: space.as_bytes().to_vec(),
        no_wait: false,
        call_id,
    };
    let removes = vec![
        remove("", "x", 0),
        remove("", "none", 0),
        remove("a", "y", 0),
        remove("", "", 0),
        remove("none", "x", 0),
        remove("b", "z", 5),
    ];
    let answers = client.batch_remove(v1::BatchRemoveRequest { removes }).await.unwrap().into_inner().answers;
    let came: Vec<_> = answers.iter().map(|answer| (answer.status_code, answer.removed)).collect();
    assert_eq!(came, [(OK, 1), (NOT_FOUND, 0), (OK, 1), (INVALID_ARG, 0), (NOT_FOUND, 0), (OK, 1)]);
    // Those and no others, for lookups and for who reads.
    let keys: [&[u8]; 3] = [b"x", b"y", b"z"];
    let found = bed.clients.each_ref().map(|cluster| cluster.exists(&keys).unwrap());
    assert_eq!(found, [[false, true, true], [true, false, true], [true, true, false]]);
    let gone = [read(&bed.clients[0], "x"), read(&bed.clients[1], "y"), read(&bed.clients[2], "z")];
    assert_eq!(gone, [false; 3]);
    // A call that comes again takes nothing that was put since; another one does.
    put(&bed.clients[2], "z");
    for (call_id, left) in [(5, true), (6, false)] {
        let removes = vec![remove("b", "z", call_id)];
        let answers = client.batch_remove(v1::BatchRemoveRequest { removes }).await.unwrap().into_inner().answers;
        assert_eq!((answers[0].status_code, read(&bed.clients[2], "z")), (OK, left), "{call_id}");
    }
    let none = client.batch_remove(v1::BatchRemoveRequest { removes: vec![] }).await.unwrap().into_inner();
    assert!(none.status_code == OK && none.answers.is_empty());
    let removes = vec![remove("", "y", 0); 4097];
    let many = client.batch_remove(v1::BatchRemoveRequest { removes }).await;
    assert_eq!(many.unwrap_err().code(), Code::OutOfRange);
    assert!(read(&bed.clients[0], "y"), "nothing of it was done");
}
