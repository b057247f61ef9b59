//! What the tests share: the real program on free ports with a directory of its own, a gRPC client, and a node that speaks frames.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(unsafe_code, reason = "a signal is sent to a process")]

use nanomc::cluster::types::{Media, Name, NodeId, ObjectKey, Position, PutId, incarnation_of};
use nanomc::cluster::wire::{self, Frame, HEAD, Head, Message, News};
use nanomc_master::proto::v1::{self, master_service_client::MasterServiceClient};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// Long enough for a machine that is busy with something else.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The program with these arguments, in an environment that says nothing about it.
pub fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nanomc-master"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("NMC_MASTER_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// Exit code, stdout and stderr of a run that ends by itself.
pub fn output(args: &[&str]) -> (i32, String, String) {
    let output = program(args).output().expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// A master that runs; it is killed at the end of the test.
pub struct Running {
    pub child: Child,
    _stdout: BufReader<ChildStdout>,
    /// What it said when it was ready.
    pub lines: Vec<String>,
    /// Where gRPC and frames come in.
    pub address: String,
    /// Where HTTP comes in.
    pub http: String,
}

impl Running {
    /// Starts one on free ports, and waits until it is ready.
    pub fn start(args: &[&str]) -> Self {
        Self::start_with(&[&["--port", "0", "--metrics_port", "0"], args].concat())
    }

    /// The same, where these say.
    pub fn start_with(args: &[&str]) -> Self {
        let mut child =
            program(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("its stdout"));
        let (mut lines, mut http) = (Vec::new(), None);
        while http.is_none() {
            let mut line = String::new();
            if stdout.read_line(&mut line).expect("a line") == 0 {
                panic!("it ended: {:?} after {lines:?}", child.wait());
            }
            let line = line.trim_end().to_owned();
            http = line.strip_prefix("Metrics and admin page on http://").map(|at| at.trim_end_matches('/').to_owned());
            lines.push(line);
        }
        let at = |what: &str| lines.iter().find_map(|line| line.strip_prefix(what));
        let address =
            at("Master service listening on ").or_else(|| at("Framed connections on ")).expect("where it listens");
        Self { child, _stdout: stdout, address: address.to_owned(), lines, http: http.expect("where HTTP is") }
    }

    pub async fn client(&self) -> MasterServiceClient<Channel> {
        let channel = Channel::from_shared(format!("http://{}", self.address)).expect("an address");
        MasterServiceClient::new(channel.connect().await.expect("it listens"))
    }

    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        // SAFETY: a signal for a child that was not waited for yet.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Waits until it ends, and gives its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("its state") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end");
    }

    /// Asks for something by HTTP, with a token: status line and headers, and the body.
    pub fn get_with(&self, method: &str, path: &str, token: Option<&str>) -> (String, String) {
        let mut stream = TcpStream::connect(&self.http).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}\r\n").expect("it is sent");
        let mut all = String::new();
        stream.read_to_string(&mut all).expect("an answer");
        let (head, body) = all.split_once("\r\n\r\n").expect("head and body");
        (head.to_owned(), body.to_owned())
    }

    /// The body of what is there.
    pub fn get(&self, path: &str) -> String {
        let (head, body) = self.get_with("GET", path, None);
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}\n{body}");
        body
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // What it said is of interest only then.
        if std::thread::panicking()
            && let Some(mut stderr) = self.child.stderr.take()
        {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            eprintln!("{} said:\n{text}", self.address);
        }
    }
}

/// A node with one segment and no store: it says what a test wants it to.
pub struct Node {
    stream: TcpStream,
    pub name: String,
    pub incarnation: u64,
    pub term: u64,
    next: u64,
    facts: u64,
    requests: u64,
    /// Of the last answer to a ping.
    changed: u64,
}

impl Node {
    /// Joins, and reports that it has nothing.
    pub fn join(address: &str, name: &str, token: Option<&str>) -> Self {
        let (mut node, welcome) = Self::come(address, name, token, None);
        // What was to be dropped before it came is nothing.
        node.report(wire::Applied { position: welcome.head });
        node.report(wire::SnapshotEnd { facts: 0 });
        node
    }

    /// Joins, with how far it has applied the drop log before.
    pub fn come(address: &str, name: &str, token: Option<&str>, since: Option<Position>) -> (Self, wire::Welcome) {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let name = name.to_owned();
        let mut node = Self { stream, name, incarnation: 77, term: 0, next: 0, facts: 0, requests: 0, changed: 0 };
        if let Some(token) = token {
            node.send(0, wire::Hello { token: token.into() });
        }
        let segment = wire::SegmentInfo {
            number: 3,
            name: format!("{}/ram", node.name),
            media: Media::Ram,
            capacity: 1 << 30,
            used: 4096,
            near: -1,
        };
        let join = wire::Join {
            name: node.name.clone(),
            incarnation: node.incarnation,
            store: 1,
            since,
            tier: 0,
            apart: None,
            left: false,
            endpoint: "127.0.0.1:1".into(),
            host: "here".into(),
            headers: 1000,
            slots: 100,
            sent_at: 1,
            segments: vec![segment],
        };
        let Message::Welcome(welcome) = node.ask(join) else { panic!("it is not welcome") };
        (node.term, node.next) = (welcome.term, welcome.next);
        (node, welcome)
    }

    /// What it is told to drop next.
    pub fn drops(&mut self) -> wire::Drops {
        loop {
            if let Message::Drops(drops) = self.receive().message
                && !drops.entries.is_empty()
            {
                return drops;
            }
        }
    }

    /// Waits until it is asked to compare a checksum.
    pub fn verify(&mut self) -> wire::Verify {
        loop {
            if let Message::Verify(verify) = self.receive().message {
                return verify;
            }
        }
    }

    /// Says what came of that; which index and fact, if it was published.
    pub fn verified(&mut self, put: PutId, status: i32, done: Option<(u32, u64)>) {
        let (term, incarnation, node) = (self.term, self.incarnation, NodeId::of(&self.name));
        let done = done.map(|(index, fact)| {
            let name = Name { node, incarnation: incarnation_of(incarnation), index, epoch: 1 };
            wire::Done { name, fact }
        });
        self.send(0, wire::Verified { term, node, incarnation, put, status, done });
    }

    fn send(&mut self, request: u64, message: impl Into<Message>) {
        let mut bytes = Vec::new();
        Frame { request, time_left_ms: 1000, message: message.into() }.encode(&mut bytes).expect("a frame");
        self.stream.write_all(&bytes).expect("it is sent");
    }

    /// The next frame that comes.
    pub fn receive(&mut self) -> Frame {
        let mut head = [0; HEAD];
        self.stream.read_exact(&mut head).expect("a head");
        let head = Head::decode(&head).expect("a head");
        let mut message = vec![0; head.len as usize];
        self.stream.read_exact(&mut message).expect("a message");
        Frame::decode(&head, &message).expect("a message")
    }

    /// Asks, and passes over what comes before the answer.
    pub fn ask(&mut self, message: impl Into<Message>) -> Message {
        self.requests += 1;
        self.send(self.requests, message);
        loop {
            let frame = self.receive();
            if frame.request == self.requests {
                return frame.message;
            }
        }
    }

    pub fn report(&mut self, news: impl Into<News>) {
        let (term, incarnation, number) = (self.term, self.incarnation, self.next);
        let node = NodeId::of(&self.name);
        let report = wire::Report { term, node, incarnation, number, sent_at: 1, news: news.into() };
        let Message::Ack(ack) = self.ask(report) else { panic!("it is not acknowledged") };
        assert_eq!(ack.next, number + 1);
        self.next += 1;
    }

    /// Says that an object lives at an index, and gives the number of that fact.
    pub fn publish(&mut self, index: u32, key: &str, put: u64, length: u64) -> u64 {
        self.publish_as(index, ObjectKey::new(b"", key.as_bytes()).expect("a key"), put, length)
    }

    /// The same of any object.
    pub fn publish_as(&mut self, index: u32, key: ObjectKey, put: u64, length: u64) -> u64 {
        let fact = wire::Published { index, epoch: 1, key, put: PutId(put), length, segment: 3 };
        self.facts += 1;
        self.report(wire::Facts { first: self.facts, facts: vec![fact.into()] });
        self.facts
    }

    /// Waits until it is told to drop something, drops it, and says so.
    pub fn drop_next(&mut self) {
        let drops = self.drops();
        for entry in drops.entries {
            let wire::Dropped::Replica(replica) = entry.what else { panic!("{entry:?}") };
            self.facts += 1;
            let fact = wire::Retired { index: replica.index, epoch: replica.epoch };
            self.report(wire::Facts { first: self.facts, facts: vec![fact.into()] });
        }
        self.report(wire::Applied { position: drops.through });
    }

    /// Says that it goes.
    pub fn leave(&mut self) {
        let (node, incarnation) = (NodeId::of(&self.name), self.incarnation);
        self.send(0, wire::Leave { node, incarnation, empty: false });
    }

    /// Says that it lives.
    pub fn ping(&mut self) -> Message {
        let (term, incarnation, node) = (self.term, self.incarnation, NodeId::of(&self.name));
        let (position, used, closed) = (Position::default(), vec![8192], vec![3]);
        let changed = self.changed;
        let answer =
            self.ask(wire::Ping { term, node, incarnation, sent_at: 1, position, used, closed, newest: 0, changed });
        if let Message::Ack(ack) = &answer {
            self.changed = ack.changed;
        }
        answer
    }
}

/// A node puts an object, goes, and the object is removed: how far the node has applied the drop log, the put, and what came of
/// the remove.
pub async fn remove_from_who_is_away(master: &Running) -> (Position, u64, i32) {
    let mut client = master.client().await;
    let mut node = Node::join(&master.address, "n1", None);
    let start = v1::PutStartRequest { key: b"k".to_vec(), value_length: 5, ..Default::default() };
    let begun = client.put_start(start).await.expect("an answer").into_inner();
    let fact = node.publish(9, "k", begun.put_id, 5);
    let name = v1::ReplicaName { node: NodeId::of("n1").0, incarnation: incarnation_of(77), index: 9, epoch: 1 };
    let done = vec![v1::PutDone { name: Some(name), fact }];
    let end = v1::PutEndRequest { key: b"k".to_vec(), put_id: begun.put_id, done, ..Default::default() };
    assert_eq!(client.put_end(end).await.expect("an answer").into_inner().status_code, 0);
    node.leave();
    eventually("it is away", || {
        let mut client = client.clone();
        async move {
            let ping = client.ping(v1::PingRequest { node_name: "n1".into() }).await.expect("an answer").into_inner();
            ping.member() == v1::ping_response::MemberState::Away
        }
    })
    .await;
    let remove = v1::RemoveRequest { key: b"k".to_vec(), ..Default::default() };
    let removed = client.remove(remove).await.expect("an answer").into_inner();
    (Position { term: node.term, number: 0 }, begun.put_id, removed.status_code)
}

/// Certificates for a test: who signs them, and two that are signed.
pub struct Certificates {
    dir: tempfile::TempDir,
}

impl Certificates {
    /// `ca.pem`, and `server.pem` and `client.pem` with their keys.
    pub fn make() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).expect("it is written");
        let mut params = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("a key");
        write("ca.pem", params.self_signed(&key).expect("a certificate").pem());
        let issuer = rcgen::Issuer::new(params, key);
        for name in ["server", "client"] {
            let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
            let mut params = rcgen::CertificateParams::new(names).expect("parameters");
            params.extended_key_usages =
                vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
            let key = rcgen::KeyPair::generate().expect("a key");
            write(&format!("{name}.pem"), params.signed_by(&key, &issuer).expect("a certificate").pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
        Self { dir }
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("a path").to_owned()
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("a file")
    }

    /// Takes the place of a file of others, at once, as those do who renew certificates.
    pub fn replace(&self, name: &str, of: &Self) {
        let new = self.path("new");
        std::fs::write(&new, of.read(name)).expect("it is written");
        std::fs::rename(new, self.path(name)).expect("it takes its place");
    }
}

/// Waits until something is so.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "{what}: not in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
