//! The program as those meet it who start it and call it: real processes, real connections. No timing is asserted.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod common;
#[path = "master/removes.rs"]
mod removes;
#[path = "../../../tests/common/cluster.rs"]
mod stores;
#[path = "master/watching.rs"]
mod watching;

use common::{Certificates, Node, PATIENCE, Running, eventually, output, remove_from_who_is_away};
use nanomc::cluster::facade::{Cluster, Config};
use nanomc::cluster::types::{NodeId, ObjectKey, PutId, counted, incarnation_of};
use nanomc::cluster::wire::{self, Applied, DropEntry, Dropped, Message};
use nanomc_master::proto::v1::{self, ping_response::MemberState, replica_info::ReplicaStatus};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tonic::Code;

const OK: i32 = 0;
const IN_PROGRESS: i32 = 2;
const INVALID_ARG: i32 = -1;
const UNAVAILABLE: i32 = -13;
const NOT_FOUND: i32 = -20;
const CORRUPT: i32 = -22;
const STALE: i32 = -23;

/// A master with a state directory of its own.
struct Own {
    master: Running,
    dir: tempfile::TempDir,
}

fn start(args: &[&str]) -> Own {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut all = vec!["--state", state.to_str().unwrap()];
    all.extend(args);
    Own { master: Running::start(&all), dir }
}

fn secret_file(dir: &Path, text: &str) -> String {
    let path = dir.join("token");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn it_starts_with_the_lines_of_the_seed_and_ends_in_order() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut own = start(&["--max_threads", "2"]);
        let (ip, port) = own.master.address.rsplit_once(':').unwrap();
        assert!(ip == "127.0.0.1" && port != "0");
        let expected = [
            "Starting Mooncake Master Service".to_owned(),
            format!("Port: {port}"),
            "Max threads: 2".to_owned(),
            format!("Master service listening on {}", own.master.address),
        ];
        assert_eq!(own.master.lines[..4], expected);
        // Whoever is connected and says nothing holds nobody up.
        let _idle = TcpStream::connect(&own.master.address).unwrap();
        own.master.signal(signal);
        assert_eq!(own.master.wait(), Some(0));
    }
}

#[test]
fn help_and_version_are_told_and_mistakes_are_named() {
    let (code, help, _) = output(&["--help"]);
    assert_eq!(code, 0);
    for part in [
        "--port N",
        "--max_threads N",
        "--strategy NAME",
        "--seed N",
        "--metrics_port N",
        "--etcd LIST",
        "NMC_MASTER_PORT",
    ] {
        assert!(help.contains(part), "{part}");
    }
    let (code, version, _) = output(&["--version"]);
    assert_eq!((code, version.as_str()), (0, concat!("nanomc-master ", env!("CARGO_PKG_VERSION"), "\n")));
    for (args, part) in [
        (vec!["--prot", "1"], "there is no option --prot"),
        (vec!["--host", "0.0.0.0"], "is not loopback"),
        (vec!["--strategy", "best"], "random, least-loaded and topology"),
    ] {
        let (code, out, error) = output(&args);
        assert!(code == 2 && out.is_empty() && error.starts_with("nanomc-master: ") && error.contains(part), "{error}");
    }
}

#[test]
fn a_port_or_a_state_directory_that_is_taken_is_named_with_who_has_it() {
    let own = start(&[]);
    let state = own.dir.path().join("state");
    let (code, _, error) = output(&["--port", "0", "--metrics_port", "0", "--state", state.to_str().unwrap()]);
    assert!(code == 1 && error.contains(&format!("pid {}", own.master.child.id())), "{error}");
    let other = own.dir.path().join("other");
    let port = own.master.address.rsplit(':').next().unwrap();
    let (code, _, error) = output(&["--port", port, "--metrics_port", "0", "--state", other.to_str().unwrap()]);
    assert!(code == 1 && error.contains(&own.master.address) && error.contains("--port"), "{error}");
}

#[tokio::test]
async fn a_term_is_never_used_twice_and_members_outlive_the_master() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let args = ["--state", state.to_str().unwrap()];
    let mut first = Running::start(&args);
    let node = Node::join(&first.address, "n1", None);
    assert_eq!(counted(node.term), 1);
    // As hard as it gets.
    first.signal(libc::SIGKILL);
    first.wait();
    let second = Running::start(&args);
    let request = v1::PingRequest { node_name: "n1".into() };
    let ping = second.client().await.ping(request).await.unwrap().into_inner();
    assert_eq!((counted(ping.term), ping.member()), (2, MemberState::Silent));
    // It may still come with what it has.
    let request = v1::ExistsRequest { key: b"k".to_vec(), ..Default::default() };
    assert_eq!(second.client().await.exists(request).await.unwrap().into_inner().status_code, UNAVAILABLE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_lives_its_whole_life_over_grpc() {
    let own = start(&[]);
    let mut client = own.master.client().await;
    // Frames and gRPC come in at the same port.
    let mut node = Node::join(&own.master.address, "n1", None);
    let ping = client.ping(v1::PingRequest { node_name: "n1".into() }).await.unwrap().into_inner();
    assert_eq!(
        (ping.status_code, counted(ping.term), ping.member(), ping.incarnation),
        (OK, 1, MemberState::Active, incarnation_of(77))
    );
    eventually("it settles", || {
        let mut client = client.clone();
        async move { client.ping(v1::PingRequest::default()).await.unwrap().into_inner().settled }
    })
    .await;

    let key = b"k".to_vec();
    let start =
        v1::PutStartRequest { key: key.clone(), value_length: 100, slice_lengths: vec![60, 40], ..Default::default() };
    let mut short = start.clone();
    short.slice_lengths = vec![60];
    assert_eq!(client.put_start(short).await.unwrap().into_inner().status_code, INVALID_ARG);
    let begun = client.put_start(start).await.unwrap().into_inner();
    assert_eq!((begun.status_code, counted(begun.term), begun.replica_num, begun.replica_list.len()), (OK, 1, 1, 1));
    let place = &begun.replica_list[0];
    assert_eq!((place.status(), place.put_id), (ReplicaStatus::Initialized, begun.put_id));
    let handle = &place.handles[0];
    assert_eq!((handle.segment_name.as_str(), handle.segment, handle.size), ("n1/ram", 3, 100));

    // Its owner has it; nobody may read it.
    let fact = node.publish(5, "k", begun.put_id, 100);
    let query = v1::QueryKeyRequest { key: key.clone(), ..Default::default() };
    let seen = client.query_key(query.clone()).await.unwrap().into_inner();
    assert_eq!((seen.status_code, seen.replica_list[0].status()), (OK, ReplicaStatus::Processing));
    let exists = v1::ExistsRequest { key: key.clone(), ..Default::default() };
    assert!(!client.exists(exists.clone()).await.unwrap().into_inner().exists);

    let name = v1::ReplicaName { node: handle.node, incarnation: incarnation_of(77), index: 5, epoch: 1 };
    let done = vec![v1::PutDone { name: Some(name), fact }];
    let end = v1::PutEndRequest { key: key.clone(), put_id: begun.put_id, done, ..Default::default() };
    let mut forged = end.clone();
    forged.put_id ^= 1;
    assert_eq!(client.put_end(forged).await.unwrap().into_inner().status_code, STALE);
    let ended = client.put_end(end.clone()).await.unwrap().into_inner();
    assert_eq!((ended.status_code, ended.replicas), (OK, 1));
    assert_eq!(client.put_end(end).await.unwrap().into_inner().status_code, OK, "a repeat is answered like the first");

    let get = v1::GetReplicaListRequest { key: key.clone(), ..Default::default() };
    let found = client.get_replica_list(get.clone()).await.unwrap().into_inner();
    assert_eq!((found.status_code, found.replica_list.len()), (OK, 1));
    let replica = &found.replica_list[0];
    assert_eq!((replica.status(), replica.length, replica.name), (ReplicaStatus::Complete, 100, Some(name)));
    assert_eq!(replica.handles[0].segment_name, "n1/ram");
    let missed = v1::GetReplicaListRequest { missed: vec![name], ..get.clone() };
    assert_eq!(client.get_replica_list(missed).await.unwrap().into_inner().status_code, NOT_FOUND);
    let metrics = own.master.get("/metrics");
    for part in
        ["nanomc_master_lookups_total{result=\"ram\"} 1\n", "nanomc_master_lookups_total{result=\"missing\"} 2\n"]
    {
        assert!(metrics.contains(part), "{metrics}");
    }
    let keys = client.list_keys(v1::ListKeysRequest::default()).await.unwrap().into_inner();
    assert_eq!((keys.keys.len(), keys.keys[0].key.as_slice(), keys.next), (1, &b"k"[..], 0));

    let remove = v1::RemoveRequest { key: key.clone(), ..Default::default() };
    let mut other = client.clone();
    let removing = tokio::spawn(async move { other.remove(remove).await.unwrap().into_inner() });
    node.drop_next();
    let removed = removing.await.unwrap();
    assert_eq!((removed.status_code, removed.removed), (OK, 1));
    assert_eq!(client.get_replica_list(get).await.unwrap().into_inner().status_code, NOT_FOUND);
    assert_eq!(client.query_key(query).await.unwrap().into_inner().status_code, NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_striped_value_has_a_handle_for_each_part_and_its_own_length() {
    let own = start(&[]);
    let mut client = own.master.client().await;
    let mut nodes = [Node::join(&own.master.address, "n1", None), Node::join(&own.master.address, "n2", None)];
    // It was put before this master came.
    let whole = PutId::striped(9, 5);
    let part = |number| ObjectKey::part(whole, number).unwrap();
    nodes[0].publish_as(4, part(0), PutId::clustered(9, 6).0, 60);
    nodes[1].publish_as(4, part(1), PutId::clustered(9, 7).0, 40);
    nodes[0].publish(5, "k", whole.0, 2);
    let query = v1::QueryKeyRequest { key: b"k".to_vec(), ..Default::default() };
    let get = v1::GetReplicaListRequest { key: b"k".to_vec(), ..Default::default() };
    eventually("it is listed", || {
        let (mut client, get) = (client.clone(), get.clone());
        async move { client.get_replica_list(get).await.unwrap().into_inner().status_code == OK }
    })
    .await;
    let found = client.get_replica_list(get).await.unwrap().into_inner().replica_list;
    let seen = client.query_key(query).await.unwrap().into_inner().replica_list;
    for replica in [&found[0], &seen[0]] {
        let handles: Vec<_> = replica.handles.iter().map(|h| (h.segment_name.as_str(), h.size)).collect();
        assert_eq!((replica.length, handles), (100, vec![("n1/ram", 60), ("n2/ram", 40)]));
        assert_eq!((replica.status(), replica.put_id), (ReplicaStatus::Complete, whole.0));
    }
    let keys = client.list_keys(v1::ListKeysRequest::default()).await.unwrap().into_inner().keys;
    assert_eq!(keys.iter().map(|key| key.key.as_slice()).collect::<Vec<_>>(), [b"k"], "parts are no keys");
    // Its parts go after it.
    let remove = v1::RemoveRequest { key: b"k".to_vec(), ..Default::default() };
    let mut other = client.clone();
    let removing = tokio::spawn(async move { other.remove(remove).await.unwrap().into_inner() });
    nodes[0].drop_next();
    assert_eq!(removing.await.unwrap().status_code, OK);
    nodes[0].drop_next();
    nodes[1].drop_next();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_ends_with_a_checksum_is_compared_by_its_owner_first() {
    let own = start(&["--settle_ms", "0"]);
    let client = own.master.client().await;
    let mut node = Node::join(&own.master.address, "n1", None);
    // What the owner says, and what becomes of the put.
    for (index, (said, expected)) in
        (1u32..).zip([(OK, OK), (CORRUPT, CORRUPT), (STALE, STALE), (INVALID_ARG, INVALID_ARG)])
    {
        let key = format!("k{index}");
        let start = v1::PutStartRequest { key: key.clone().into_bytes(), value_length: 9, ..Default::default() };
        let begun = client.clone().put_start(start).await.unwrap().into_inner();
        let of = begun.replica_list[0].handles[0].node;
        let name = v1::ReplicaName { node: of, incarnation: incarnation_of(77), index, epoch: 1 };
        let done = vec![v1::PutDone { name: Some(name), fact: 0 }];
        let (key, put_id, crc32c) = (key.into_bytes(), begun.put_id, Some(0xabcd));
        let end = v1::PutEndRequest { key: key.clone(), put_id, done, crc32c, ..Default::default() };
        let mut other = client.clone();
        let ending = tokio::spawn(async move { other.put_end(end).await.unwrap().into_inner() });
        let verify = node.verify();
        assert_eq!((verify.put, verify.crc, verify.incarnation), (PutId(put_id), 0xabcd, incarnation_of(77)));
        let exists = v1::ExistsRequest { key, ..Default::default() };
        assert!(!client.clone().exists(exists.clone()).await.unwrap().into_inner().exists, "nobody has compared it");
        let fact = if said == OK { node.publish(index, &format!("k{index}"), put_id, 9) } else { 0 };
        node.verified(PutId(put_id), said, (said == OK).then_some((index, fact)));
        let ended = ending.await.unwrap();
        assert_eq!((ended.status_code, ended.replicas), (expected, u64::from(said == OK)), "{}", ended.message);
        assert_eq!(client.clone().exists(exists).await.unwrap().into_inner().exists, said == OK);
    }
}

/// What one owner has still to drop keeps no other owner from taking a put: that one was never told of the place in the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_place_of_a_put_has_its_own_position() {
    let own = start(&["--settle_ms", "0"]);
    let mut client = own.master.client().await;
    let mut nodes = ["n1", "n2"].map(|name| Node::join(&own.master.address, name, None));
    // Of a node that tells anew what it has nobody knows whether it has a key.
    nodes[0].report(wire::Range { from: 0, to: 16, live: vec![] });
    let remove = v1::RemoveRequest { key: b"other".to_vec(), no_wait: true, ..Default::default() };
    assert_eq!(client.remove(remove).await.unwrap().into_inner().status_code, OK);
    let config = Some(v1::ReplicateConfig { replica_num: 2, ..Default::default() });
    let start = v1::PutStartRequest { key: b"k".to_vec(), value_length: 5, config, ..Default::default() };
    let begun = client.put_start(start).await.unwrap().into_inner();
    assert_eq!((begun.status_code, begun.replica_list.len()), (OK, 2), "{}", begun.message);
    let after = |name: &str| {
        let handles = begun.replica_list.iter().map(|place| &place.handles[0]);
        handles.into_iter().find(|handle| handle.node == NodeId::of(name).0).unwrap().after
    };
    let last = v1::Position { term: nodes[0].term, number: 1 };
    assert_eq!((after("n1"), after("n2")), (Some(last), Some(v1::Position::default())));
    assert_eq!(begun.after, Some(last), "the furthest, for who does not know better");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_answer_each_in_order() {
    let own = start(&["--settle_ms", "0"]);
    let mut client = own.master.client().await;
    let mut node = Node::join(&own.master.address, "n1", None);
    let puts = (0..300).map(|n| v1::PutStartRequest {
        // One of them is refused, and nobody else is.
        key: if n == 7 { Vec::new() } else { format!("k{n}").into_bytes() },
        value_length: n,
        ..Default::default()
    });
    let request = v1::BatchPutStartRequest { puts: puts.collect() };
    let begun = client.batch_put_start(request).await.unwrap().into_inner().answers;
    assert_eq!(begun.len(), 300);
    let mut ends = Vec::new();
    for (n, answer) in (0u32..).zip(&begun) {
        assert_eq!(answer.status_code, if n == 7 { INVALID_ARG } else { OK }, "{n}: {}", answer.message);
        if n % 2 == 0 {
            let fact = node.publish(n, &format!("k{n}"), answer.put_id, n.into());
            let node = answer.replica_list[0].handles[0].node;
            let name = Some(v1::ReplicaName { node, incarnation: incarnation_of(77), index: n, epoch: 1 });
            let done = vec![v1::PutDone { name, fact }];
            let (key, put_id) = (format!("k{n}").into_bytes(), answer.put_id);
            ends.push(v1::PutEndRequest { key, put_id, done, ..Default::default() });
        }
    }
    let ended = client.batch_put_end(v1::BatchPutEndRequest { puts: ends }).await.unwrap().into_inner().answers;
    assert!(ended.len() == 150 && ended.iter().all(|answer| answer.status_code == OK));
    // More than one message of the directory's own protocol.
    let keys: Vec<_> = (0..300).map(|n| format!("k{n}").into_bytes()).collect();
    let request = v1::BatchExistsRequest { keys: keys.clone(), ..Default::default() };
    let exist = client.batch_exists(request).await.unwrap().into_inner().answers;
    let expected: Vec<_> = (0..300).map(|n| n % 2 == 0).collect();
    assert_eq!(exist.iter().map(|answer| answer.exists).collect::<Vec<_>>(), expected);
    let request = v1::BatchGetReplicaListRequest { keys: keys.clone(), ..Default::default() };
    let lists = client.batch_get_replica_list(request).await.unwrap().into_inner().answers;
    assert!(
        (0u64..)
            .zip(&lists)
            .all(|(n, list)| list.replica_list.first().map_or(n % 2 == 1, |replica| replica.length == n))
    );
    let request = v1::BatchQueryRequest { keys, ..Default::default() };
    assert_eq!(client.batch_query(request).await.unwrap().into_inner().answers.len(), 300);

    // Page by page everything is listed once.
    let (mut cursor, mut listed) = (0, Vec::new());
    loop {
        let request = v1::ListKeysRequest { cursor, limit: 40, prefix: b"k".to_vec(), ..Default::default() };
        let page = client.list_keys(request).await.unwrap().into_inner();
        assert!(page.keys.len() <= 40);
        listed.extend(page.keys.into_iter().map(|key| key.key));
        cursor = page.next;
        if cursor == 0 {
            break;
        }
    }
    listed.sort();
    listed.dedup();
    assert_eq!(listed.len(), 150);

    let revoke = v1::PutRevokeRequest { key: b"k1".to_vec(), put_id: begun[1].put_id, ..Default::default() };
    let request = v1::BatchPutRevokeRequest { puts: vec![revoke.clone(), revoke] };
    let mut other = client.clone();
    let revoking = tokio::spawn(async move { other.batch_put_revoke(request).await.unwrap().into_inner().answers });
    // Nobody knows whether the owner has begun to take it: it has to say that it will not.
    let drops = node.drops();
    assert!(
        matches!(&drops.entries[..], [DropEntry { what: Dropped::Replica(of), .. }] if of.put.0 == begun[1].put_id)
    );
    node.report(Applied { position: drops.through });
    let revoked = revoking.await.unwrap();
    assert_eq!(revoked.iter().map(|answer| answer.status_code).collect::<Vec<_>>(), [OK, STALE]);
    let request = v1::BatchExistsRequest { keys: vec![b"k".to_vec(); 4097], ..Default::default() };
    assert_eq!(client.batch_exists(request).await.unwrap_err().code(), Code::OutOfRange);
}

/// The control of `what_was_removed_is_dropped_by_who_was_away_under_the_next_leader`.
#[tokio::test]
async fn without_etcd_a_remove_from_who_is_away_is_in_progress() {
    let own = start(&[]);
    assert_eq!(remove_from_who_is_away(&own.master).await.2, IN_PROGRESS);
}

#[tokio::test]
async fn segments_are_mounted_and_unmounted_by_their_node_alone() {
    let own = start(&[]);
    let mut client = own.master.client().await;
    let mut node = Node::join(&own.master.address, "n1", None);
    let mount = v1::MountSegmentRequest {
        size: 1 << 20,
        segment_name: "more".into(),
        media: v1::MediaType::Vram.into(),
        node_name: "n1".into(),
        secret: 77,
        number: 4,
        near: 0,
    };
    let forged = v1::MountSegmentRequest { secret: 78, ..mount.clone() };
    assert_eq!(client.mount_segment(forged).await.unwrap().into_inner().status_code, STALE);
    assert_eq!(client.mount_segment(mount).await.unwrap().into_inner().status_code, OK);
    let segments = client.list_segments(v1::ListSegmentsRequest::default()).await.unwrap().into_inner();
    let names: Vec<_> =
        segments.segments.iter().map(|segment| (segment.segment_name.as_str(), segment.media())).collect();
    assert_eq!(names, [("n1/ram", v1::MediaType::Ram), ("more", v1::MediaType::Vram)]);
    // The node is told things where it was told before.
    assert!(matches!(node.ping(), Message::Ack(_)));
    let unmount = v1::UnmountSegmentRequest { segment_name: "more".into(), node_name: "n2".into(), secret: 77 };
    assert_eq!(client.unmount_segment(unmount.clone()).await.unwrap().into_inner().status_code, STALE);
    let unmount = v1::UnmountSegmentRequest { node_name: "n1".into(), ..unmount };
    assert_eq!(client.unmount_segment(unmount.clone()).await.unwrap().into_inner().status_code, OK);
    assert_eq!(client.unmount_segment(unmount).await.unwrap().into_inner().status_code, NOT_FOUND);
    let drain = v1::DrainRequest { segment_name: "n1/ram".into(), cancel: false };
    assert_eq!(client.drain(drain.clone()).await.unwrap().into_inner().status_code, IN_PROGRESS);
    for _ in 0..2 {
        // It hears of it, and says that it is done.
        assert!(matches!(node.ping(), Message::Ack(ack) if ack.closed == [3]));
    }
    eventually("it is empty", || {
        let (mut client, drain) = (client.clone(), drain.clone());
        async move { client.drain(drain).await.unwrap().into_inner().status_code == OK }
    })
    .await;
    let start = v1::PutStartRequest { key: b"k".to_vec(), ..Default::default() };
    assert!(client.put_start(start.clone()).await.unwrap().into_inner().status_code < 0, "it takes nothing more");
    let undrain = v1::DrainRequest { cancel: true, ..drain };
    assert_eq!(client.drain(undrain).await.unwrap().into_inner().status_code, OK);
    assert_eq!(client.put_start(start).await.unwrap().into_inner().status_code, OK, "it does again");
}

#[tokio::test]
async fn what_a_node_wishes_is_done_by_its_own_stream() {
    let own = start(&[]);
    let mut client = own.master.client().await;
    let listed = |key: &str| v1::ListedKey { space: Vec::new(), key: key.as_bytes().to_vec() };
    let heartbeat = v1::OffloadObjectHeartbeatRequest { node_name: "n2".into(), secret: 77, ..Default::default() };
    let add = v1::AddReplicaRequest {
        key: b"k".to_vec(),
        put_id: 9,
        node_name: "n2".into(),
        secret: 77,
        ..Default::default()
    };
    let told =
        v1::NotifyOffloadSuccessRequest { node_name: "n2".into(), secret: 77, objects: vec![listed("a"), listed("b")] };
    let evict = v1::BatchEvictDiskReplicaRequest {
        node_name: "n2".into(),
        secret: 77,
        objects: vec![listed("a"), listed("b")],
    };
    // Of nobody, and with the wrong secret.
    assert_eq!(client.offload_object_heartbeat(heartbeat.clone()).await.unwrap().into_inner().status_code, STALE);
    assert_eq!(client.add_replica(add.clone()).await.unwrap().into_inner().status_code, STALE);
    assert_eq!(client.notify_offload_success(told.clone()).await.unwrap().into_inner().status_code, STALE);
    assert_eq!(client.batch_evict_disk_replica(evict.clone()).await.unwrap().into_inner().status_code, STALE);
    let mut first = Node::join(&own.master.address, "n1", None);
    let mut second = Node::join(&own.master.address, "n2", None);
    let forged = v1::AddReplicaRequest { secret: 78, ..add.clone() };
    assert_eq!(client.add_replica(forged).await.unwrap().into_inner().status_code, STALE);
    let heartbeat = client.offload_object_heartbeat(heartbeat).await.unwrap().into_inner();
    assert_eq!((heartbeat.status_code, heartbeat.objects.len()), (OK, 0));

    // A copy: only of what may be read, and once.
    assert_eq!(client.add_replica(add.clone()).await.unwrap().into_inner().status_code, NOT_FOUND);
    first.publish(5, "k", 9, 100);
    assert_eq!(client.add_replica(add.clone()).await.unwrap().into_inner().status_code, OK);
    let copy = loop {
        if let nanomc::cluster::wire::Message::CopyThis(copy) = second.receive().message {
            break copy;
        }
    };
    assert_eq!((copy.from.put.0, copy.from.length), (9, 100));
    second.publish(6, "k", 9, 100);
    assert_eq!(client.add_replica(add).await.unwrap().into_inner().status_code, -10);

    // What is on disk: told of by facts, and gone all or none.
    const SLOT: u32 = 1 << 31;
    assert_eq!(client.notify_offload_success(told.clone()).await.unwrap().into_inner().status_code, IN_PROGRESS);
    second.publish(SLOT | 1, "a", 21, 10);
    assert_eq!(client.notify_offload_success(told.clone()).await.unwrap().into_inner().status_code, IN_PROGRESS);
    let missing = client.batch_evict_disk_replica(evict.clone()).await.unwrap().into_inner();
    assert_eq!(missing.status_code, NOT_FOUND, "{}", missing.message);
    let exists = |key: &str| v1::ExistsRequest { key: key.as_bytes().to_vec(), ..Default::default() };
    assert!(client.exists(exists("a")).await.unwrap().into_inner().exists, "nothing happened");
    second.publish(SLOT | 2, "b", 22, 10);
    assert_eq!(client.notify_offload_success(told).await.unwrap().into_inner().status_code, OK);
    let evicted = tokio::spawn({
        let mut client = client.clone();
        async move { client.batch_evict_disk_replica(evict).await.unwrap().into_inner().status_code }
    });
    tokio::task::spawn_blocking(move || second.drop_next()).await.unwrap();
    assert_eq!(evicted.await.unwrap(), OK);
    assert!(!client.exists(exists("a")).await.unwrap().into_inner().exists);
    assert!(!client.exists(exists("b")).await.unwrap().into_inner().exists);
}

#[tokio::test]
async fn without_the_token_nobody_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let token = "0123456789abcdef";
    let file = secret_file(dir.path(), token);
    let own = start(&["--token_file", &file]);
    let mut client = own.master.client().await;
    assert_eq!(client.ping(v1::PingRequest::default()).await.unwrap_err().code(), Code::Unauthenticated);
    let mut request = tonic::Request::new(v1::PingRequest::default());
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    assert_eq!(client.ping(request).await.unwrap().into_inner().status_code, OK);
    for path in ["/metrics", "/admin/status", "/admin/members"] {
        assert!(own.master.get_with("GET", path, None).0.starts_with("HTTP/1.1 401 "), "{path}");
        assert!(own.master.get_with("GET", path, Some(token)).0.starts_with("HTTP/1.1 200 "), "{path}");
    }
    assert!(own.master.get("/health").contains("\"leader\""));
    assert_eq!(Node::join(&own.master.address, "n1", Some(token)).term % 0x1000, 1);
    let refused = std::panic::catch_unwind(|| Node::join(&own.master.address, "n2", None));
    assert!(refused.is_err(), "frames need it as well");
}

/// Whether the other end ends a connection on which these bytes were sent, some time.
fn is_ended(address: &str, bytes: &[u8]) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    let ended = stream.read_to_end(&mut Vec::new());
    // Reset counts as well.
    ended.is_ok() || ended.is_err_and(|e| e.kind() != std::io::ErrorKind::WouldBlock)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_nothing_that_it_may_say_does_not_stay() {
    let dir = tempfile::tempdir().unwrap();
    let token = "0123456789abcdef";
    let file = secret_file(dir.path(), token);
    let own = start(&["--token_file", &file]);
    let mut client = own.master.client().await;
    let ping = || {
        let mut request = tonic::Request::new(v1::PingRequest::default());
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        request
    };
    assert_eq!(client.ping(ping()).await.unwrap().into_inner().status_code, OK);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // Silence, half a word, and a handshake without a request.
    let said = [vec![], b"P".to_vec(), preface[..20].to_vec(), [&preface[..], &settings].concat()];
    let address = &own.master.address;
    let ended: Vec<bool> = std::thread::scope(|scope| {
        let all: Vec<_> = said.iter().map(|bytes| scope.spawn(move || is_ended(address, bytes))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(ended, [true; 4]);
    // Who has been let in has stayed, on the same connection.
    let connections = || {
        let metrics = own.master.get_with("GET", "/metrics", Some(token)).1;
        let line = metrics.lines().find_map(|line| line.strip_prefix("nanomc_master_grpc_connections "));
        line.map(str::to_owned)
    };
    // A connection is counted a moment longer than its other end sees it.
    eventually("one connection is left", || std::future::ready(connections().as_deref() == Some("1"))).await;
    assert_eq!(client.ping(ping()).await.unwrap().into_inner().status_code, OK);
}

#[tokio::test]
async fn with_certificates_only_those_are_served_who_have_one() {
    use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
    let files = Certificates::make();
    let paths = ["server.pem", "server.key", "ca.pem"].map(|name| files.path(name));
    let own = start(&["--tls_cert", &paths[0], "--tls_key", &paths[1], "--tls_ca", &paths[2]]);
    let ca =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(files.read("ca.pem"))).domain_name("localhost");
    let identity = |of: &Certificates| Identity::from_pem(of.read("client.pem"), of.read("client.key"));
    let known = ca.clone().identity(identity(&files));
    let ping = |tls: Option<ClientTlsConfig>| {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = Channel::from_shared(format!("{scheme}://{}", own.master.address)).unwrap();
        async move {
            let endpoint = tls.map_or(Ok(endpoint.clone()), |tls| endpoint.tls_config(tls)).unwrap();
            // Without a certificate the handshake, or the first call, fails.
            let channel = endpoint.connect().await.ok()?;
            v1::master_service_client::MasterServiceClient::new(channel).ping(v1::PingRequest::default()).await.ok()
        }
    };
    assert_eq!(ping(Some(known.clone())).await.unwrap().into_inner().status_code, OK);
    assert!(ping(Some(ca)).await.is_none());
    assert!(ping(None).await.is_none());

    // Others take the place of all of them while it runs.
    let next = Certificates::make();
    let ca = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(next.read("ca.pem"))).domain_name("localhost");
    let later = ca.identity(identity(&next));
    assert!(ping(Some(later.clone())).await.is_none());
    ["server.pem", "server.key", "ca.pem"].iter().for_each(|name| files.replace(name, &next));
    eventually("the new ones are used", || async { ping(Some(later.clone())).await.is_some() }).await;
    assert!(ping(Some(known)).await.is_none());

    let wrong = own.dir.path().join("wrong.pem");
    std::fs::write(&wrong, "nothing").unwrap();
    let (code, _, error) = output(&["--port", "0", "--tls_cert", wrong.to_str().unwrap(), "--tls_key", &paths[1]]);
    assert!(code == 1 && error.contains("wrong.pem can not be used for TLS"), "{error}");
}

#[tokio::test]
async fn metrics_are_what_prometheus_reads() {
    let own = start(&[]);
    let mut client = own.master.client().await;
    let mut node = Node::join(&own.master.address, "n\"1\\\n", None);
    node.ping();
    client.ping(v1::PingRequest::default()).await.unwrap();
    let many = v1::BatchExistsRequest { keys: vec![b"k".to_vec(); 5000], ..Default::default() };
    client.batch_exists(many).await.unwrap_err();
    let text = own.master.get("/metrics");
    let mut values = std::collections::BTreeMap::new();
    let mut families = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(families.insert(rest.split(' ').next().unwrap().to_owned()), "{line}: twice");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        let family = name.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| family.strip_suffix(end)).unwrap_or(family);
        assert!(families.contains(family), "{line} has no type");
        assert!(name.find('{').is_none_or(|_| name.ends_with("\"}")), "{line}");
        assert!(values.insert(name.to_owned(), value).is_none(), "{line}: twice");
    }
    let expected = [
        ("nanomc_master_leader", 1.0),
        ("nanomc_master_term", 1.0),
        ("nanomc_master_members{state=\"active\"}", 1.0),
        (
            "nanomc_master_segment_used_bytes{segment=\"n\\\"1\\\\\\n/ram\",node=\"n\\\"1\\\\\\n\",media=\"ram\"}",
            8192.0,
        ),
        ("nanomc_master_grpc_call_seconds_count{method=\"Ping\"}", 1.0),
        ("nanomc_master_grpc_call_seconds_bucket{method=\"Ping\",le=\"+Inf\"}", 1.0),
        ("nanomc_master_grpc_failures_total{method=\"BatchExists\"}", 1.0),
    ];
    for (name, value) in expected {
        assert_eq!(values.get(name), Some(&value), "{name} in\n{text}");
    }
}

#[tokio::test]
async fn people_see_segments_members_and_keys() {
    let own = start(&[]);
    let mut client = own.master.client().await;
    let mut node = Node::join(&own.master.address, "n1", None);
    let start = v1::PutStartRequest { key: b"a b".to_vec(), value_length: 9, ..Default::default() };
    let put = client.put_start(start).await.unwrap().into_inner().put_id;
    node.publish(1, "a b", put, 9);
    let parts = [
        ("/health", "\"role\":\"leader\""),
        ("/admin/status", "\"term\":1"),
        ("/admin/members", "\"name\":\"n1\",\"id\":"),
        (
            "/admin/segments",
            "{\"name\":\"n1/ram\",\"node\":\"n1\",\"state\":\"active\",\"media\":\"ram\",\"capacity\":1073741824,\"used\":4096}",
        ),
        ("/admin/key?key=a%20b", "\"state\":\"processing\",\"reachable\":true,\"segment\":\"n1/ram\""),
        ("/admin/keys", "{\"keys\":[],\"next\":0}"),
        ("/admin/slow", "["),
        ("/", "<title>nanomc master</title>"),
    ];
    for (path, part) in parts {
        let body = own.master.get(path);
        assert!(body.contains(part), "{path}: {body}");
    }
    assert!(own.master.get_with("GET", "/nowhere", None).0.starts_with("HTTP/1.1 404 "));
    assert!(own.master.get_with("GET", "/admin/key", None).0.starts_with("HTTP/1.1 400 "));
    for bad in ["/admin/keys?cursor=x", "/admin/keys?prefix=%f", "/admin/keys?space=%zz", "/admin/key?key=a&space=%"] {
        assert!(own.master.get_with("GET", bad, None).0.starts_with("HTTP/1.1 400 "), "{bad}");
    }
    assert!(own.master.get_with("POST", "/admin/status", None).0.starts_with("HTTP/1.1 405 "));
    let page = own.master.get("/");
    let head = own.master.get_with("GET", "/", None).0;
    assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
    assert!(!page.contains("http://") && !page.contains("https://"), "it works offline");
}

#[test]
fn http_requests_that_never_end_keep_nobody_away() {
    let own = start(&[]);
    let mut halves = Vec::new();
    for _ in 0..300 {
        let mut half = TcpStream::connect(&own.master.http).unwrap();
        let _ = half.write_all(b"GET /hea");
        halves.push(half);
        if halves.len() % 50 == 0 {
            assert!(!own.master.get("/health").is_empty());
        }
    }
}

#[tokio::test]
async fn whoever_sends_rubbish_disturbs_nobody() {
    let own = start(&[]);
    let mut chance = nanomc::cluster::types::Chance::new(7);
    let mut open = Vec::new();
    for round in 0..200 {
        let mut stream = TcpStream::connect(&own.master.address).unwrap();
        let mut bytes: Vec<u8> = (0..chance.below(2000)).map(|_| u8::try_from(chance.below(256)).unwrap()).collect();
        match round % 4 {
            // As if it were a frame, or HTTP/2.
            0 => bytes.splice(0..0, *b"NMC\x05").for_each(drop),
            1 => bytes.splice(0..0, *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").for_each(drop),
            _ => {}
        }
        let _ = stream.write_all(&bytes);
        if round % 2 == 0 {
            open.push(stream);
        } else {
            let _ = stream.shutdown(std::net::Shutdown::Write);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
    let mut client = own.master.client().await;
    assert_eq!(client.ping(v1::PingRequest::default()).await.unwrap().into_inner().status_code, OK);
    assert_eq!(Node::join(&own.master.address, "n1", None).term % 0x1000, 1);
}

/// A frame of HTTP/2.
fn http2(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The connection ended with GOAWAY (too_many_resets), and other calls with it.
#[test]
fn many_calls_whose_deadlines_pass_together_end_no_connection() {
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    let own = start(&[]);
    let mut stream = TcpStream::connect(&own.master.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // POST, http, a path; the header is complete, the request is not.
    let path = b"/nanomc.master.v1.MasterService/Ping";
    let block = [&[0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()], &path[..]].concat();
    let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    said.extend(http2(SETTINGS, 0, 0, &[]));
    for number in (1..2 * 200).step_by(2) {
        said.extend(http2(HEADERS, 4, number, &block));
        said.extend(http2(RST_STREAM, 0, number, &8u32.to_be_bytes()));
    }
    said.extend(http2(PING, 0, 0, &[7; 8]));
    stream.write_all(&said).unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).unwrap();
        assert_ne!(head[3], GOAWAY, "{}", String::from_utf8_lossy(&payload));
        if head[3] == PING && payload == [7; 8] {
            return;
        }
    }
}

#[test]
fn frames_come_in_on_a_unix_socket_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master.sock");
    let listen = format!("unix:{}", path.display());
    let mut own = start(&["--listen", &listen]);
    assert!(own.master.lines.contains(&format!("Framed connections on {listen}")));
    std::os::unix::net::UnixStream::connect(&path).unwrap();
    own.master.signal(libc::SIGTERM);
    assert_eq!(own.master.wait(), Some(0));
    assert!(!path.exists(), "it leaves nothing behind");
}

/// Nothing of it, nor of the nodes, listens at a port where values come in.
#[test]
fn a_cluster_of_one_machine_needs_no_port() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (listen, nodes) = (format!("unix:{}", path("master.sock")), format!("unix:{}", path("nodes")));
    let state = path("state");
    let args = ["--port", "off", "--listen", &listen, "--metrics_port", "0", "--state", &state, "--settle_ms", "0"];
    let mut master = Running::start_with(&args);
    assert_eq!(master.address, listen);
    assert!(!master.lines.iter().any(|line| line.starts_with("Port") || line.contains("listening on")));
    let config = || Config { host: nodes.clone(), masters: vec![listen.clone()], ..Config::default() };
    let (owner, reader) = (Cluster::open(config()).unwrap(), Cluster::open(config()).unwrap());
    owner.mount(&stores::a_store(64), None, true).unwrap();
    stores::put(&reader, "k", &[7; 300_000], 1).unwrap();
    assert_eq!(stores::get(&reader, "k", 300_000).unwrap(), [7; 300_000]);
    let pid = master.child.id();
    let ports = listening_ports(pid);
    assert_eq!(ports.len(), 1, "HTTP alone: {ports:?}");
    assert!(reader.query(&[b"k"]).unwrap()[0].replicas[0].endpoint.starts_with("unix:"));
    drop((owner, reader));
    master.signal(libc::SIGTERM);
    assert_eq!(master.wait(), Some(0));
}

/// Ports at which a process listens.
fn listening_ports(pid: u32) -> Vec<String> {
    let of_process: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()?.to_str().map(str::to_owned))
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap() + &std::fs::read_to_string("/proc/net/tcp6").unwrap();
    let listens = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(3) == Some(&"0A"));
    listens
        .filter(|words| of_process.contains(&format!("socket:[{}]", words[9])))
        .map(|words| words[1].to_owned())
        .collect()
}
