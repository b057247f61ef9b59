//! The service over gRPC with a directory behind it, and whoever asks it something: requests as bytes, a number and a length in front of each.
//! And the same directory over HTTP, where a request is its path and query.

use http::{StatusCode, Uri};
use hyper::body::Body as _;
use nanomc::cluster::directory::{Config, Elected, Event, Master, Member};
use nanomc::cluster::net::Limits;
use nanomc::cluster::run::master::{Handle, Service};
use nanomc::cluster::types::{Media, NodeId, Position, incarnation_of};
use nanomc::cluster::wire::{self, Facts, Join, Message, News, Report, SegmentInfo, SnapshotEnd};
use nanomc_master::auth::Token;
use nanomc_master::directory::Directory;
use nanomc_master::grpc::Grpc;
use nanomc_master::http::Admin;
use nanomc_master::proto::v1::{self, master_service_server::MasterService as _};
use prost::Message as _;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::runtime::Runtime;
use tonic::{Code, Request, Response, Status};

/// Requests of one input.
const MOST: usize = 16;
/// The node that there is, and the secret of its life.
pub const NODE: &str = "n0";
pub const SECRET: u64 = 3;
const TERM: u64 = 5;
/// Ids of puts below this stand for those that have begun.
const KNOWN: u64 = 8;

/// See the module.
pub struct Asked {
    handle: Handle,
    service: Grpc,
    admin: Admin,
    runtime: Runtime,
    puts: Vec<u64>,
}

impl Asked {
    pub fn new() -> Self {
        // Whoever waits for a node does not wait long.
        let config = Config { settle_ms: 0, resend_ms: 3, durable: true, ..Config::default() };
        let (sender, changes) = mpsc::channel();
        let record = Box::new(move |number, _| sender.send(number).unwrap_or_default());
        let (_, handle) =
            Service::start(Master::new(config), Vec::new(), Limits::default(), record).expect("a directory");
        let writer = handle.clone();
        std::thread::spawn(move || changes.iter().for_each(|number| writer.tell(Event::Recorded(number, true))));
        let service = Grpc::new(Directory::new(handle.clone()));
        let admin = Admin::new(Directory::new(handle.clone()), Token::new(None), Arc::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let mut asked = Self { handle, service, admin, runtime, puts: Vec::new() };
        asked.begin();
        asked
    }

    fn call(&self, message: impl Into<Message>) -> Message {
        let (sender, answer) = mpsc::channel();
        self.handle.call(10_000, message, Box::new(move |answer| sender.send(answer).unwrap_or_default()));
        answer.recv_timeout(Duration::from_secs(60)).expect("the directory answers")
    }

    fn report(&self, number: u64, news: impl Into<News>) {
        let (node, incarnation) = (NodeId::of(NODE), SECRET);
        let report = Report { term: TERM, node, incarnation, number, sent_at: 2, news: news.into() };
        assert!(matches!(self.call(report), Message::Ack(_)));
    }

    /// A directory that leads anew, with one node that has one object.
    fn begin(&mut self) {
        self.puts.clear();
        let members = vec![Member { name: NODE.into(), since: Position::default() }];
        let (until, floor) = (u64::MAX / 2, Position::default());
        self.handle.tell(Event::Elected(Elected { term: TERM, until, members, log: Vec::new(), floor }));
        let segment =
            SegmentInfo { number: 0, name: "n0/ram".into(), media: Media::Ram, capacity: 1 << 20, used: 0, near: -1 };
        let join = Join {
            name: NODE.into(),
            incarnation: SECRET,
            store: 1,
            since: None,
            tier: 0,
            apart: None,
            left: false,
            endpoint: "h:1".into(),
            host: "h".into(),
            headers: 64,
            slots: 64,
            sent_at: 1,
            segments: vec![segment],
        };
        let Message::Welcome(welcome) = self.call(join) else { panic!("the node is welcome") };
        self.report(welcome.next, wire::Applied { position: welcome.head });
        self.report(welcome.next + 1, SnapshotEnd { facts: 0 });
        let key = nanomc::cluster::types::ObjectKey::new(b"kv", b"there").expect("a key");
        let put = nanomc::cluster::types::PutId::local(9);
        let fact = wire::Published { index: 1, epoch: 1, key, put, length: 10, segment: 0 };
        self.report(welcome.next + 2, Facts { first: 1, facts: vec![fact.into()] });
    }

    /// All requests of an input, each to a method that its number names.
    pub fn run(&mut self, mut data: &[u8], mut ask: impl FnMut(&mut Self, u8, &[u8])) {
        self.begin();
        for _ in 0..MOST {
            let Some((&[kind, low, high], rest)) = data.split_first_chunk::<3>() else { break };
            let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
            let (request, rest) = rest.split_at(length);
            data = rest;
            ask(self, kind, request);
        }
        let looked = self.runtime.block_on(Directory::new(self.handle.clone()).look(|master, _| master.leads()));
        assert_eq!(looked, Some(Some(TERM)), "the directory goes on");
    }

    /// What HTTP answers to `target`, unless it is none: then the server refuses it by itself.
    pub fn look(&self, target: &[u8]) -> Option<StatusCode> {
        let request = http::Request::get(Uri::try_from(target).ok()?).body(()).ok()?;
        let answer = self.runtime.block_on(self.admin.answer(&request));
        assert!(answer.body().size_hint().exact() > Some(0), "{answer:?}");
        Some(answer.status())
    }

    fn known(&self, put: &mut u64) {
        if *put < KNOWN {
            *put = usize::try_from(*put).ok().and_then(|n| self.puts.get(n)).copied().unwrap_or(*put);
        }
    }
}

fn asking<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("grpc-timeout", "2m".parse().expect("a header"));
    request
}

fn answered<T: prost::Message>(answer: Result<Response<T>, Status>) -> Option<T> {
    match answer {
        Ok(answer) => {
            let answer = answer.into_inner();
            assert_eq!(answer.encode_to_vec().len(), answer.encoded_len());
            Some(answer)
        }
        Err(status) => {
            assert_ne!(status.code(), Code::Internal, "{status}");
            None
        }
    }
}

/// Requests by number, what is made of one before it is asked, and what is learned from its answer.
macro_rules! methods {
    ($($number:literal => $method:ident($request:ident $(, $informed:expr)?) $(-> $learn:expr)?;)*) => {
        /// How many methods there are.
        pub const METHODS: u8 = [$($number),*].len() as u8;

        /// A request with this number and these bytes; what is none is left out, as the server would refuse it.
        pub fn ask(asked: &mut Asked, kind: u8, bytes: &[u8]) {
            match kind % METHODS {
                $($number => {
                    #[allow(unused_mut, reason = "some are changed")]
                    let Ok(mut request) = v1::$request::decode(bytes) else { return };
                    $({
                        let informed: fn(&Asked, &mut v1::$request) = $informed;
                        informed(asked, &mut request);
                    })?
                    let answer = answered(asked.runtime.block_on(asked.service.$method(asking(request))));
                    let _ = &answer;
                    $(if let Some(answer) = answer {
                        #[allow(clippy::redundant_closure_call, reason = "it is an argument of a macro")]
                        asked.puts.extend(($learn)(answer));
                    })?
                })*
                _ => {}
            }
        }

        /// An example of each, with its number.
        pub fn example(kind: u8, request: impl prost::Message, to: &mut Vec<u8>) {
            let length = u16::try_from(request.encoded_len()).expect("an example is short").to_le_bytes();
            to.extend([kind, length[0], length[1]]);
            to.extend(request.encode_to_vec());
        }
    };
}

methods! {
    0 => get_replica_list(GetReplicaListRequest);
    1 => batch_get_replica_list(BatchGetReplicaListRequest);
    2 => exists(ExistsRequest);
    3 => batch_exists(BatchExistsRequest);
    4 => put_start(PutStartRequest) -> |answer: v1::PutStartResponse| Some(answer.put_id);
    5 => batch_put_start(BatchPutStartRequest)
        -> |answer: v1::BatchPutStartResponse| answer.answers.into_iter().map(|answer| answer.put_id);
    6 => put_end(PutEndRequest, |asked, request| asked.known(&mut request.put_id));
    7 => batch_put_end(BatchPutEndRequest, |asked, request| {
        request.puts.iter_mut().for_each(|put| asked.known(&mut put.put_id));
    });
    8 => put_revoke(PutRevokeRequest, |asked, request| asked.known(&mut request.put_id));
    9 => batch_put_revoke(BatchPutRevokeRequest, |asked, request| {
        request.puts.iter_mut().for_each(|put| asked.known(&mut put.put_id));
    });
    10 => add_replica(AddReplicaRequest, |asked, request| asked.known(&mut request.put_id));
    11 => remove(RemoveRequest);
    12 => batch_remove(BatchRemoveRequest);
    13 => remove_all(RemoveAllRequest);
    14 => query_key(QueryKeyRequest);
    15 => batch_query(BatchQueryRequest);
    16 => list_keys(ListKeysRequest);
    17 => mount_segment(MountSegmentRequest);
    18 => unmount_segment(UnmountSegmentRequest);
    19 => list_segments(ListSegmentsRequest);
    20 => drain(DrainRequest);
    21 => ping(PingRequest);
    22 => offload_object_heartbeat(OffloadObjectHeartbeatRequest);
    23 => notify_offload_success(NotifyOffloadSuccessRequest);
    24 => batch_evict_disk_replica(BatchEvictDiskReplicaRequest);
}

/// What clients and nodes ask that do not lie.
pub fn examples() -> Vec<Vec<u8>> {
    let (space, key, other) = (b"kv".to_vec(), b"there".to_vec(), b"other".to_vec());
    let keys = vec![key.clone(), other.clone()];
    let name = v1::ReplicaName { node: NodeId::of(NODE).0, incarnation: incarnation_of(SECRET), index: 1, epoch: 1 };
    let start = v1::PutStartRequest {
        space: space.clone(),
        key: other.clone(),
        value_length: 10,
        config: Some(v1::ReplicateConfig {
            replica_num: 1,
            media_replica_num: vec![v1::MediaReplicas { media: 1, replica_num: 1 }],
            locations: vec![v1::Location { segment_name: "n0/ram".into(), media: Some(1) }],
            near_host: "h".into(),
        }),
        slice_lengths: vec![4, 6],
    };
    let end = v1::PutEndRequest {
        space: space.clone(),
        key: other.clone(),
        put_id: 0,
        done: vec![v1::PutDone { name: Some(name), fact: 2 }],
        tried: vec![1],
        crc32c: Some(7),
    };
    let revoke = v1::PutRevokeRequest { space: space.clone(), key: other.clone(), put_id: 0 };
    let remove = v1::RemoveRequest { space: space.clone(), key: key.clone(), no_wait: true, call_id: 7 };
    let objects = vec![v1::ListedKey { space: space.clone(), key: key.clone() }];
    let node_name = || NODE.to_owned();
    let mount = v1::MountSegmentRequest {
        segment_name: "more".into(),
        size: 100,
        media: 1,
        node_name: node_name(),
        secret: SECRET,
        number: 2,
        near: -1,
    };
    let mut examples = vec![Vec::new(); 6];
    let to = &mut examples[0];
    let missed = vec![name];
    example(0, v1::GetReplicaListRequest { space: space.clone(), key: key.clone(), missed }, to);
    example(1, v1::BatchGetReplicaListRequest { space: space.clone(), keys: keys.clone() }, to);
    example(2, v1::ExistsRequest { space: space.clone(), key: key.clone() }, to);
    example(3, v1::BatchExistsRequest { space: space.clone(), keys: keys.clone() }, to);
    let to = &mut examples[1];
    example(4, start.clone(), to);
    example(6, end.clone(), to);
    example(8, revoke.clone(), to);
    let to = &mut examples[2];
    example(5, v1::BatchPutStartRequest { puts: vec![start.clone(), start] }, to);
    example(7, v1::BatchPutEndRequest { puts: vec![end.clone(), end] }, to);
    example(9, v1::BatchPutRevokeRequest { puts: vec![revoke.clone(), revoke] }, to);
    let to = &mut examples[3];
    let (put_id, secret) = (9, SECRET);
    let add = v1::AddReplicaRequest { space: space.clone(), key: key.clone(), put_id, node_name: node_name(), secret };
    example(10, add, to);
    example(14, v1::QueryKeyRequest { space: space.clone(), key: key.clone() }, to);
    example(15, v1::BatchQueryRequest { space: space.clone(), keys }, to);
    example(11, remove.clone(), to);
    example(12, v1::BatchRemoveRequest { removes: vec![remove] }, to);
    let to = &mut examples[4];
    let (cursor, limit) = (0, 10);
    example(16, v1::ListKeysRequest { space: Some(space.clone()), prefix: b"t".to_vec(), cursor, limit }, to);
    example(13, v1::RemoveAllRequest { space: Some(space), no_wait: true, call_id: 8 }, to);
    example(17, mount, to);
    example(19, v1::ListSegmentsRequest { cursor: 0 }, to);
    example(20, v1::DrainRequest { segment_name: "more".into(), cancel: false }, to);
    example(18, v1::UnmountSegmentRequest { segment_name: "more".into(), node_name: node_name(), secret }, to);
    let to = &mut examples[5];
    example(21, v1::PingRequest { node_name: node_name() }, to);
    let enable_offloading = true;
    example(22, v1::OffloadObjectHeartbeatRequest { node_name: node_name(), secret, enable_offloading }, to);
    example(23, v1::NotifyOffloadSuccessRequest { node_name: node_name(), secret, objects: objects.clone() }, to);
    example(24, v1::BatchEvictDiskReplicaRequest { node_name: node_name(), secret, objects }, to);
    examples
}

/// What the page asks, and people.
pub fn targets() -> Vec<Vec<u8>> {
    let targets = [
        "/",
        "/health",
        "/metrics",
        "/admin/status",
        "/admin/members",
        "/admin/segments",
        "/admin/key?space=kv&key=there",
        "/admin/key?key=%00%ff+x",
        "/admin/keys?cursor=0&space=kv&prefix=t",
        "/admin/keys?cursor=4294967295",
        "/admin/slow",
    ];
    targets.map(|target| target.as_bytes().to_vec()).to_vec()
}
