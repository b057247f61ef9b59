//! Several masters and a real etcd: who leads, what outlives a leader, and what a leader does that etcd does not hear of. Where
//! there is no etcd on the PATH these tests say so and are passed over.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may")]
#![allow(unsafe_code, reason = "a signal is sent to a process")]

mod common;

use common::{Certificates, Node, PATIENCE, Running, eventually, remove_from_who_is_away};
use nanomc::cluster::types::Position;
use nanomc::cluster::wire::{Applied, Dropped};
use nanomc_master::proto::etcd::{RangeRequest, kv_client::KvClient};
use nanomc_master::proto::v1::{self, ping_response::MemberState};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use tonic::{Code, Status};

const OK: i32 = 0;

/// An etcd of one member; it is killed at the end of the test.
struct Etcd {
    child: Child,
    url: String,
    dir: tempfile::TempDir,
    command: Command,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Etcd {
    /// None if there is none to be started.
    fn start(certificates: Option<&Certificates>) -> Option<Self> {
        let found = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if found.is_err() {
            eprintln!("skipped: there is no etcd on the PATH (Debian: apt-get install etcd-server)");
            return None;
        }
        let scheme = if certificates.is_some() { "https" } else { "http" };
        // Somebody else may take a port that was free a moment ago.
        for _ in 0..5 {
            let dir = tempfile::tempdir().unwrap();
            let (port, peers) = (free_port(), format!("http://127.0.0.1:{}", free_port()));
            let url = format!("{scheme}://127.0.0.1:{port}");
            let mut command = Command::new("etcd");
            command.args(["--data-dir", dir.path().to_str().unwrap(), "--name", "e"]);
            command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
            command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
            command.args(["--initial-cluster", &format!("e={peers}")]);
            if let Some(files) = certificates {
                command.args(["--cert-file", &files.path("server.pem"), "--key-file", &files.path("server.key")]);
                command.args(["--client-cert-auth", "--trusted-ca-file", &files.path("ca.pem")]);
            }
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let start = Instant::now();
            while start.elapsed() < PATIENCE && child.try_wait().unwrap().is_none() {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return Some(Self { child, url, dir, command });
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("etcd does not start");
    }

    /// It is killed, loses all that it had, and is started again as before.
    fn lose_everything(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        std::fs::remove_dir_all(self.dir.path()).unwrap();
        self.child = self.command.spawn().unwrap();
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a signal for a child that was not waited for yet.
        assert_eq!(unsafe { libc::kill(i32::try_from(self.child.id()).unwrap(), signal) }, 0);
    }

    /// How many transactions have changed something so far.
    async fn revision(&self) -> i64 {
        let channel = Channel::from_shared(self.url.clone()).unwrap().connect().await.unwrap();
        let range = RangeRequest { key: b"/test/leader".to_vec(), ..Default::default() };
        KvClient::new(channel).range(range).await.unwrap().into_inner().header.unwrap().revision
    }

    fn master(&self, args: &[&str]) -> Running {
        let mut all = vec!["--etcd", &self.url, "--etcd_lease", "4", "--etcd_prefix", "/test"];
        all.extend(args);
        Running::start(&all)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn ping(master: &Running, node: &str) -> Result<v1::PingResponse, Status> {
    let request = v1::PingRequest { node_name: node.into() };
    master.client().await.ping(request).await.map(tonic::Response::into_inner)
}

/// Waits until a master leads, and gives its term.
async fn leads(master: &Running) -> u64 {
    let start = Instant::now();
    loop {
        match ping(master, "").await {
            Ok(answer) => return answer.term,
            Err(status) => assert!(start.elapsed() < PATIENCE, "it does not lead: {status}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn one_master_leads_the_others_name_it_and_the_next_takes_over() {
    let Some(etcd) = Etcd::start(None) else { return };
    let mut first = etcd.master(&[]);
    let term = leads(&first).await;
    let second = etcd.master(&[]);
    eventually("it knows who leads", || async {
        let status = ping(&second, "").await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        status.metadata().get("nanomc-leader").is_some_and(|leader| *leader == *first.address)
    })
    .await;
    assert!(second.get("/health").contains("standby"));
    let node = Node::join(&first.address, "n1", None);
    assert_eq!(node.term, term);
    // It has to be noticed: nobody gives the office back.
    first.signal(libc::SIGKILL);
    first.wait();
    let next = leads(&second).await;
    assert!(next > term, "{next} after {term}");
    assert_eq!(ping(&second, "n1").await.unwrap().member(), MemberState::Silent, "members outlive a leader");

    // One that ends in order gives the office back.
    let third = etcd.master(&[]);
    let mut second = second;
    second.signal(libc::SIGTERM);
    assert_eq!(second.wait(), Some(0));
    assert!(leads(&third).await > next);
}

#[tokio::test]
async fn a_leader_that_etcd_does_not_hear_of_stops_answering() {
    let Some(etcd) = Etcd::start(None) else { return };
    let master = etcd.master(&[]);
    leads(&master).await;
    etcd.signal(libc::SIGSTOP);
    eventually("it does not answer", || async { ping(&master, "").await.is_err() }).await;
    let request = v1::ExistsRequest { key: b"k".to_vec(), ..Default::default() };
    let exists = master.client().await.exists(request).await;
    assert!(exists.map_or(true, |answer| answer.into_inner().status_code < 0));
    etcd.signal(libc::SIGCONT);
    leads(&master).await;
}

/// A way to etcd on which connections can die without a word, as when a cable is pulled; later ones live. It can be slow, too.
struct Way {
    url: String,
    /// How often it was cut; a connection lives while that is what it was when it began.
    cuts: Arc<AtomicUsize>,
    /// What a byte takes, in µs.
    pace: Arc<AtomicU64>,
}

impl Way {
    fn to(etcd: &Etcd) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (cuts, to) = (Arc::new(AtomicUsize::new(0)), etcd.url.trim_start_matches("http://").to_owned());
        let pace = Arc::new(AtomicU64::new(0));
        let (seen, asked) = (Arc::clone(&cuts), Arc::clone(&pace));
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(&to).unwrap());
                let pairs = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
                for (mut from, mut to) in pairs {
                    let (cuts, begun, pace) = (Arc::clone(&seen), seen.load(Relaxed), Arc::clone(&asked));
                    std::thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(n @ 1..) = from.read(&mut bytes) {
                            while cuts.load(Relaxed) != begun {
                                std::thread::park();
                            }
                            std::thread::sleep(Duration::from_micros(pace.load(Relaxed) * n as u64));
                            if to.write_all(&bytes[..n]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(std::net::Shutdown::Write);
                    });
                }
            }
        });
        Self { url, cuts, pace }
    }
}

#[tokio::test]
async fn a_connection_to_etcd_that_has_died_without_a_word_is_replaced() {
    let Some(etcd) = Etcd::start(None) else { return };
    let way = Way::to(&etcd);
    let master = Running::start(&["--etcd", &way.url, "--etcd_lease", "2", "--etcd_prefix", "/test"]);
    let term = leads(&master).await;
    way.cuts.fetch_add(1, Relaxed);
    // It may lead in its term as long as its lease lives, and must go on after that, in any term.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(leads(&master).await >= term);
}

/// Nodes that have seen the terms of the former one would wait for them to come again, or take the new ones for those.
#[tokio::test]
async fn an_etcd_that_has_lost_its_data_is_of_another_cluster() {
    let Some(mut etcd) = Etcd::start(None) else { return };
    let of = |term: u64| term >> 40;
    let mut first = etcd.master(&[]);
    let before = leads(&first).await;
    first.signal(libc::SIGTERM);
    first.wait();
    let mut second = etcd.master(&[]);
    let same = leads(&second).await;
    assert!(of(same) == of(before) && same > before, "{before:x} {same:x}");
    second.signal(libc::SIGKILL);
    second.wait();
    etcd.lose_everything();
    let third = etcd.master(&[]);
    let after = leads(&third).await;
    assert_ne!(of(after), of(before), "{before:x} {after:x}");
}

#[tokio::test]
async fn what_was_removed_is_dropped_by_who_was_away_under_the_next_leader() {
    let Some(etcd) = Etcd::start(None) else { return };
    let mut first = etcd.master(&[]);
    leads(&first).await;
    let (since, put_id, removed) = remove_from_who_is_away(&first).await;
    // It is written down what the node has to drop.
    assert_eq!(removed, OK);
    first.signal(libc::SIGKILL);
    first.wait();
    let second = etcd.master(&[]);
    leads(&second).await;
    let (mut node, welcome) = Node::come(&second.address, "n1", None, Some(since));
    assert!(!welcome.fresh, "the log reaches back to where it was");
    let drops = node.drops();
    let Dropped::Replica(replica) = &drops.entries[0].what else { panic!("{drops:?}") };
    assert_eq!((replica.index, replica.epoch, replica.put.0, replica.key.key()), (9, 1, put_id, &b"k"[..]));
}

/// Keys that a node has, and what removes them.
fn fill(node: &mut Node, count: usize) -> impl Iterator<Item = v1::RemoveRequest> {
    // Long, so that they are not written down at once where the way to etcd is slow.
    let key = |n: usize| format!("{n:0200}");
    for (n, index) in (0..count).zip(0..) {
        node.publish(index, &key(n), 1000 + u64::from(index), 5);
    }
    (0..count).map(move |n| v1::RemoveRequest { key: key(n).into_bytes(), ..Default::default() })
}

async fn remove(master: &Running, removes: Vec<v1::RemoveRequest>) -> Vec<i32> {
    let mut request = tonic::Request::new(v1::BatchRemoveRequest { removes });
    request.set_timeout(PATIENCE);
    let answers = master.client().await.batch_remove(request).await.unwrap().into_inner().answers;
    answers.iter().map(|answer| answer.status_code).collect()
}

async fn is_away(master: &Running, node: &str) {
    eventually("it is away", || async { ping(master, node).await.unwrap().member() == MemberState::Away }).await;
}

/// What is to be written down while something is goes into one transaction, in its order, and each remove has its answer.
#[tokio::test]
async fn removes_of_who_is_away_are_written_down_together() {
    const COUNT: usize = 300;
    let Some(etcd) = Etcd::start(None) else { return };
    let mut first = etcd.master(&["--etcd_lease", "60"]);
    leads(&first).await;
    let mut node = Node::join(&first.address, "n1", None);
    let since = Position { term: node.term, number: 0 };
    let removes: Vec<_> = fill(&mut node, COUNT).collect();
    node.leave();
    is_away(&first, "n1").await;
    let before = etcd.revision().await;
    etcd.signal(libc::SIGSTOP);
    let all = remove(&first, removes.clone());
    let go_on = async {
        let waiting = format!("\"removes_waiting\":{COUNT}");
        eventually("all wait", || async { first.get("/admin/status").contains(&waiting) }).await;
        etcd.signal(libc::SIGCONT);
    };
    let (answers, ()) = tokio::join!(all, go_on);
    assert_eq!(answers, [OK; COUNT]);
    let transactions = etcd.revision().await - before;
    assert!(transactions <= 10, "{transactions} transactions");
    // The next leader has all of them, as they were removed.
    first.signal(libc::SIGTERM);
    first.wait();
    let second = etcd.master(&[]);
    leads(&second).await;
    let (mut node, welcome) = Node::come(&second.address, "n1", None, Some(since));
    assert!(!welcome.fresh);
    let mut dropped = Vec::new();
    while dropped.len() < COUNT {
        let drops = node.drops();
        for entry in drops.entries {
            let Dropped::Replica(replica) = entry.what else { panic!("{entry:?}") };
            dropped.push(replica.key.key().to_vec());
        }
        node.report(Applied { position: drops.through });
    }
    assert!(dropped.iter().eq(removes.iter().map(|remove| &remove.key)));
}

/// A leader renews its lease between the transactions of what it writes down: all together take longer than the lease.
#[tokio::test]
async fn who_has_much_to_write_down_goes_on_leading() {
    let Some(etcd) = Etcd::start(None) else { return };
    let way = Way::to(&etcd);
    let master = Running::start(&["--etcd", &way.url, "--etcd_lease", "8", "--etcd_prefix", "/test"]);
    let term = leads(&master).await;
    let mut node = Node::join(&master.address, "n1", None);
    let mut removes: Vec<_> =
        fill(&mut node, 990).map(|remove| v1::RemoveRequest { no_wait: true, ..remove }).collect();
    let last = removes.pop().map(|remove| v1::RemoveRequest { no_wait: false, ..remove }).unwrap();
    assert_eq!(remove(&master, removes).await, [OK; 989]);
    way.pace.store(33, Relaxed);
    let begun = Instant::now();
    // All of that has to be written down now.
    node.leave();
    is_away(&master, "n1").await;
    assert_eq!(remove(&master, vec![last]).await, [OK]);
    assert!(begun.elapsed() > Duration::from_secs(8), "the way was not slow");
    assert_eq!(leads(&master).await, term);
}

#[tokio::test]
async fn etcd_is_spoken_to_with_certificates() {
    let files = Certificates::make();
    let Some(etcd) = Etcd::start(Some(&files)) else { return };
    let paths = ["ca.pem", "client.pem", "client.key"].map(|name| files.path(name));
    let master = etcd.master(&["--etcd_ca", &paths[0], "--etcd_cert", &paths[1], "--etcd_key", &paths[2]]);
    leads(&master).await;
}
