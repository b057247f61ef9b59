//! The service over gRPC (`proto/nanomc/master/v1/master.proto`): every call is put to the directory as the framed message that a
//! client would have sent, or as a look at it, and answered with what came back. The service has no state of its own.

pub mod convert;

use crate::directory::{Coming, Directory};
use crate::proto::v1::master_service_server::MasterService;
use crate::proto::v1::{self, ListedKey};
use nanomc::base::error::Error;
use nanomc::base::status::{
    NMC_ERR_NOT_FOUND, NMC_ERR_STALE, NMC_ERR_UNAVAILABLE, NMC_IN_PROGRESS, NMC_OK, nmc_status_t,
};
use nanomc::cluster::directory::{Figures, Gate, Master, ReplicaView, Wanted};
use nanomc::cluster::types::{Millis, Name, NodeId, ObjectKey, PutId, incarnation_of};
use nanomc::cluster::wire::{self, Listed, MAX_KEYS, Message, Replica};
use nanomc::layout::store::ON_DISK;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

/// What the directory refuses is an error of the library; what never reaches it is a status of gRPC.
type Result<T, E = Error> = std::result::Result<T, E>;

/// Most objects of one batch.
const MAX_BATCH: usize = 4096;
/// Most keys of one page.
const MAX_PAGE: usize = 1000;
/// How long a client waits if it does not say, and at most.
const PATIENCE_MS: (u32, u32) = (10_000, 60_000);

/// See the module.
#[derive(Clone)]
pub struct Grpc {
    directory: Directory,
}

impl Grpc {
    /// The service of a directory.
    #[must_use]
    pub fn new(directory: Directory) -> Self {
        Self { directory }
    }
}

/// How long the client waits: gRPC's own header, digits and a unit.
fn time_left_ms(metadata: &MetadataMap) -> u32 {
    let (default, most) = PATIENCE_MS;
    let parse = |text: &str| {
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
        let ms = match unit {
            "H" => number * 3_600_000,
            "M" => number * 60_000,
            "S" => number * 1000,
            "m" => number,
            "u" => number / 1000,
            "n" => number / 1_000_000,
            _ => return None,
        };
        u32::try_from(ms.min(most.into())).ok()
    };
    metadata.get("grpc-timeout").and_then(|value| value.to_str().ok()).and_then(parse).unwrap_or(default)
}

/// What a standby answers: who leads, if that is known.
fn elsewhere(leader: &str) -> Status {
    if leader.is_empty() {
        return Status::unavailable("this master does not lead, and does not know who does");
    }
    let mut status = Status::unavailable(format!("this master does not lead, {leader} does"));
    if let Ok(leader) = leader.parse() {
        status.metadata_mut().insert("nanomc-leader", leader);
    }
    status
}

fn strange(message: &Message) -> Status {
    Status::internal(format!("the directory answered {}", message.name()))
}

/// What came of something that is answered by a status.
fn outcome(message: Message) -> Result<(nmc_status_t, u64, String), Status> {
    match message {
        Message::Answer(answer) => Ok((answer.status, answer.count, answer.text)),
        Message::Redirect(redirect) => Err(elsewhere(&redirect.leader)),
        Message::Rejoin(_) => Ok((NMC_ERR_STALE, 0, "the node is no member in this incarnation".into())),
        other => Err(strange(&other)),
    }
}

/// A look finds a master that leads, or an answer for whoever looked.
fn leading(master: &Master, now: Millis) -> Result<Figures, Status> {
    match (master.figures(now), master.follows()) {
        (Some(figures), _) => Ok(figures),
        (None, Some((_, leader))) => Err(elsewhere(leader)),
        (None, None) => Err(Status::unavailable("this master may have lost its lease")),
    }
}

/// Answers that can say no.
trait Refused {
    fn refused(error: Error) -> Self;
}

macro_rules! refused {
    ($($answer:ident),* $(,)?) => {$(
        impl Refused for v1::$answer {
            #[allow(clippy::needless_update, reason = "some answers have no other field")]
            fn refused(error: Error) -> Self {
                Self { status_code: error.status, message: error.message, ..Default::default() }
            }
        }
    )*};
}
refused!(
    AddReplicaResponse,
    BatchEvictDiskReplicaResponse,
    BatchExistsResponse,
    BatchGetReplicaListResponse,
    BatchQueryResponse,
    ExistsResponse,
    GetReplicaListResponse,
    ListKeysResponse,
    MountSegmentResponse,
    NotifyOffloadSuccessResponse,
    PutEndResponse,
    PutRevokeResponse,
    PutStartResponse,
    QueryKeyResponse,
    RemoveAllResponse,
    RemoveResponse,
);

/// The value, or an answer that says why there is none.
macro_rules! or_refuse {
    ($value:expr) => {
        match $value {
            Ok(value) => value,
            Err(error) => return Ok(Response::new(Refused::refused(error))),
        }
    };
}

fn check_batch(len: usize) -> Result<(), Status> {
    if len > MAX_BATCH {
        return Err(Status::out_of_range(format!("a batch of {len} is asked for; {MAX_BATCH} are possible")));
    }
    Ok(())
}

/// The last request of a batch that was begun: on its way, or refused.
type Begun = Result<Coming>;

impl Grpc {
    fn begin(&self, time_left_ms: u32, message: Result<impl Into<Message>>) -> Begun {
        message.map(|message| self.directory.begin(time_left_ms, message))
    }

    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Master, Millis) -> T + Send + 'static,
    ) -> Result<T, Status> {
        self.directory.look(look).await.ok_or_else(|| Status::unavailable("the master is ending"))
    }

    /// What came of each of them, in their order. All were begun before the first is waited for.
    async fn outcomes<T: Refused>(
        begun: Vec<Begun>,
        make: impl Fn(nmc_status_t, u64, String) -> T,
    ) -> Result<Vec<T>, Status> {
        let mut answers = Vec::with_capacity(begun.len());
        for one in begun {
            answers.push(match one {
                Err(error) => T::refused(error),
                Ok(coming) => {
                    let (status, count, text) = outcome(Directory::end(coming).await)?;
                    make(status, count, text)
                }
            });
        }
        Ok(answers)
    }

    async fn find(&self, time_left_ms: u32, keys: &[ObjectKey], missed: &[Name]) -> Result<Vec<Listed>, Status> {
        let ask = |keys: &[ObjectKey]| {
            let find = wire::Find { keys: keys.to_vec(), missed: missed.to_vec() };
            self.directory.begin(time_left_ms, find)
        };
        let begun: Vec<Coming> = keys.chunks(MAX_KEYS).map(ask).collect();
        let mut list = Vec::with_capacity(keys.len());
        for (coming, keys) in begun.into_iter().zip(keys.chunks(MAX_KEYS)) {
            match Directory::end(coming).await {
                Message::Found(found) if found.keys.len() == keys.len() => list.extend(found.keys),
                Message::Answer(answer) => {
                    list.extend(keys.iter().map(|_| Listed { status: answer.status, replicas: Vec::new() }));
                }
                Message::Redirect(redirect) => return Err(elsewhere(&redirect.leader)),
                other => return Err(strange(&other)),
            }
        }
        Ok(list)
    }

    async fn replica_lists(
        &self,
        time_left_ms: u32,
        keys: Vec<ObjectKey>,
        missed: &[Name],
    ) -> Result<Vec<v1::GetReplicaListResponse>, Status> {
        let found = self.find(time_left_ms, &keys, missed).await?;
        // Framed clients need no segments, so what they are sent names none.
        let views = self.look(move |master, now| keys.iter().map(|key| master.replicas(key, now)).collect::<Vec<_>>());
        let views = views.await?;
        let answer = |(listed, views): (Listed, Result<Vec<ReplicaView>>)| {
            let views = views.unwrap_or_default();
            let with_segment =
                |replica: &Replica| convert::listed(replica, views.iter().find(|view| view.name == Some(replica.name)));
            let replica_list = listed.replicas.iter().map(with_segment).collect();
            v1::GetReplicaListResponse { status_code: listed.status, replica_list, message: String::new() }
        };
        Ok(found.into_iter().zip(views).map(answer).collect())
    }

    async fn places(&self, length: u64, message: Message) -> Result<v1::PutStartResponse, Status> {
        let places = match message {
            Message::PutPlaces(places) => places,
            other => {
                let (status, _, text) = outcome(other)?;
                return Ok(v1::PutStartResponse { status_code: status, message: text, ..Default::default() });
            }
        };
        let wanted: Vec<_> = places.places.iter().map(|place| (place.node, place.segment)).collect();
        let name_all = move |master: &Master, now| {
            let name = |(node, number): (_, _)| master.segment_name(node, number, now).unwrap_or_default();
            wanted.into_iter().map(name).collect::<Vec<String>>()
        };
        let names = self.look(name_all).await?;
        let replicas = places.places.iter().zip(names);
        Ok(v1::PutStartResponse {
            status_code: places.status,
            replica_list: replicas.map(|(at, name)| convert::place(at, places.put, length, name)).collect(),
            put_id: places.put.0,
            term: places.term,
            // Each place has its own: for clients that do not know that.
            after: places.places.iter().map(|place| place.after).max().map(convert::position),
            replica_num: places.copies,
            message: String::new(),
        })
    }

    fn begin_end(&self, time_left_ms: u32, end: v1::PutEndRequest) -> Result<Begun, Status> {
        Ok(self.begin(time_left_ms, convert::put_end(end)))
    }

    fn begin_remove(&self, time_left_ms: u32, remove: v1::RemoveRequest) -> Begun {
        let message = ObjectKey::new(&remove.space, &remove.key).and_then(|key| {
            let call = if remove.call_id == 0 { nanomc::base::id::random_u64()? } else { remove.call_id };
            Ok(wire::Remove { key, wait: !remove.no_wait, call })
        });
        self.begin(time_left_ms, message)
    }

    fn begin_revoke(&self, time_left_ms: u32, revoke: v1::PutRevokeRequest) -> Begun {
        let message = ObjectKey::new(&revoke.space, &revoke.key);
        self.begin(time_left_ms, message.map(|key| wire::PutRevoke { put: PutId(revoke.put_id), key }))
    }

    async fn query(&self, keys: Vec<ObjectKey>) -> Result<Vec<v1::QueryKeyResponse>, Status> {
        let looked = self.look(move |master, now| {
            let settled = leading(master, now)?.settled;
            let all = keys.iter().map(|key| master.replicas(key, now)).collect::<Vec<_>>();
            Ok::<_, Status>((settled, all))
        });
        let (settled, all) = looked.await??;
        let answer = |views: Result<Vec<ReplicaView>>| {
            let views = match views {
                Ok(views) => views,
                Err(error) => return v1::QueryKeyResponse::refused(error),
            };
            let status_code = match (views.is_empty(), settled) {
                (false, _) => NMC_OK,
                (true, true) => NMC_ERR_NOT_FOUND,
                (true, false) => NMC_ERR_UNAVAILABLE,
            };
            let replica_list = views.into_iter().map(convert::viewed).collect();
            v1::QueryKeyResponse { status_code, replica_list, message: String::new() }
        };
        Ok(all.into_iter().map(answer).collect())
    }
}

fn keys_of(space: &[u8], keys: &[Vec<u8>]) -> Result<Vec<ObjectKey>> {
    keys.iter().map(|key| ObjectKey::new(space, key)).collect()
}

fn exists(status: nmc_status_t) -> v1::ExistsResponse {
    let status_code = if status == NMC_ERR_NOT_FOUND { NMC_OK } else { status };
    v1::ExistsResponse { status_code, exists: status == NMC_OK, message: String::new() }
}

fn ended(status_code: nmc_status_t, replicas: u64, message: String) -> v1::PutEndResponse {
    v1::PutEndResponse { status_code, replicas, message }
}

fn revoked(status_code: nmc_status_t, _: u64, message: String) -> v1::PutRevokeResponse {
    v1::PutRevokeResponse { status_code, message }
}

fn removed(status_code: nmc_status_t, removed: u64, message: String) -> v1::RemoveResponse {
    v1::RemoveResponse { status_code, removed, message }
}

/// The only one of a list of one.
fn only<T>(list: Vec<T>) -> Result<T, Status> {
    list.into_iter().next().ok_or_else(|| Status::internal("a call has no answer"))
}

type Answered<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl MasterService for Grpc {
    async fn get_replica_list(
        &self,
        request: Request<v1::GetReplicaListRequest>,
    ) -> Answered<v1::GetReplicaListResponse> {
        let time_left = time_left_ms(request.metadata());
        let request = request.into_inner();
        let key = or_refuse!(ObjectKey::new(&request.space, &request.key));
        let missed = or_refuse!(convert::missed(&request.missed));
        only(self.replica_lists(time_left, vec![key], &missed).await?).map(Response::new)
    }

    async fn batch_get_replica_list(
        &self,
        request: Request<v1::BatchGetReplicaListRequest>,
    ) -> Answered<v1::BatchGetReplicaListResponse> {
        let time_left = time_left_ms(request.metadata());
        let request = request.into_inner();
        check_batch(request.keys.len())?;
        let keys = or_refuse!(keys_of(&request.space, &request.keys));
        let answers = self.replica_lists(time_left, keys, &[]).await?;
        Ok(Response::new(v1::BatchGetReplicaListResponse { answers, ..Default::default() }))
    }

    async fn exists(&self, request: Request<v1::ExistsRequest>) -> Answered<v1::ExistsResponse> {
        let time_left = time_left_ms(request.metadata());
        let request = request.into_inner();
        let key = or_refuse!(ObjectKey::new(&request.space, &request.key));
        let listed = only(self.find(time_left, &[key], &[]).await?)?;
        Ok(Response::new(exists(listed.status)))
    }

    async fn batch_exists(&self, request: Request<v1::BatchExistsRequest>) -> Answered<v1::BatchExistsResponse> {
        let time_left = time_left_ms(request.metadata());
        let request = request.into_inner();
        check_batch(request.keys.len())?;
        let keys = or_refuse!(keys_of(&request.space, &request.keys));
        let found = self.find(time_left, &keys, &[]).await?;
        let answers = found.iter().map(|listed| exists(listed.status)).collect();
        Ok(Response::new(v1::BatchExistsResponse { answers, ..Default::default() }))
    }

    async fn put_start(&self, request: Request<v1::PutStartRequest>) -> Answered<v1::PutStartResponse> {
        let time_left = time_left_ms(request.metadata());
        let start = or_refuse!(convert::put_start(request.into_inner()));
        let length = start.length;
        let answer = Directory::end(self.directory.begin(time_left, start)).await;
        self.places(length, answer).await.map(Response::new)
    }

    async fn batch_put_start(&self, request: Request<v1::BatchPutStartRequest>) -> Answered<v1::BatchPutStartResponse> {
        let time_left = time_left_ms(request.metadata());
        let puts = request.into_inner().puts;
        check_batch(puts.len())?;
        let begin = |start: v1::PutStartRequest| (start.value_length, self.begin(time_left, convert::put_start(start)));
        let begun: Vec<_> = puts.into_iter().map(begin).collect();
        let mut answers = Vec::with_capacity(begun.len());
        for (length, one) in begun {
            answers.push(match one {
                Err(error) => v1::PutStartResponse::refused(error),
                Ok(coming) => self.places(length, Directory::end(coming).await).await?,
            });
        }
        Ok(Response::new(v1::BatchPutStartResponse { answers, ..Default::default() }))
    }

    async fn put_end(&self, request: Request<v1::PutEndRequest>) -> Answered<v1::PutEndResponse> {
        let time_left = time_left_ms(request.metadata());
        let begun = self.begin_end(time_left, request.into_inner())?;
        only(Self::outcomes(vec![begun], ended).await?).map(Response::new)
    }

    async fn batch_put_end(&self, request: Request<v1::BatchPutEndRequest>) -> Answered<v1::BatchPutEndResponse> {
        let time_left = time_left_ms(request.metadata());
        let puts = request.into_inner().puts;
        check_batch(puts.len())?;
        let begun = puts.into_iter().map(|end| self.begin_end(time_left, end)).collect::<Result<_, _>>()?;
        let answers = Self::outcomes(begun, ended).await?;
        Ok(Response::new(v1::BatchPutEndResponse { answers, ..Default::default() }))
    }

    async fn put_revoke(&self, request: Request<v1::PutRevokeRequest>) -> Answered<v1::PutRevokeResponse> {
        let time_left = time_left_ms(request.metadata());
        let begun = self.begin_revoke(time_left, request.into_inner());
        only(Self::outcomes(vec![begun], revoked).await?).map(Response::new)
    }

    async fn batch_put_revoke(
        &self,
        request: Request<v1::BatchPutRevokeRequest>,
    ) -> Answered<v1::BatchPutRevokeResponse> {
        let time_left = time_left_ms(request.metadata());
        let puts = request.into_inner().puts;
        check_batch(puts.len())?;
        let begun = puts.into_iter().map(|revoke| self.begin_revoke(time_left, revoke)).collect();
        let answers = Self::outcomes(begun, revoked).await?;
        Ok(Response::new(v1::BatchPutRevokeResponse { answers, ..Default::default() }))
    }

    async fn add_replica(&self, request: Request<v1::AddReplicaRequest>) -> Answered<v1::AddReplicaResponse> {
        let time_left = time_left_ms(request.metadata());
        let request = request.into_inner();
        let key = or_refuse!(ObjectKey::new(&request.space, &request.key));
        let (node, incarnation) = (NodeId::of(&request.node_name), request.secret);
        let add = wire::AddReplica { node, incarnation, key, put: PutId(request.put_id) };
        let (status_code, _, message) = outcome(Directory::end(self.directory.begin(time_left, add)).await)?;
        Ok(Response::new(v1::AddReplicaResponse { status_code, message }))
    }

    async fn remove(&self, request: Request<v1::RemoveRequest>) -> Answered<v1::RemoveResponse> {
        let time_left = time_left_ms(request.metadata());
        let begun = self.begin_remove(time_left, request.into_inner());
        only(Self::outcomes(vec![begun], removed).await?).map(Response::new)
    }

    async fn batch_remove(&self, request: Request<v1::BatchRemoveRequest>) -> Answered<v1::BatchRemoveResponse> {
        let time_left = time_left_ms(request.metadata());
        let removes = request.into_inner().removes;
        check_batch(removes.len())?;
        let begun = removes.into_iter().map(|remove| self.begin_remove(time_left, remove)).collect();
        let answers = Self::outcomes(begun, removed).await?;
        Ok(Response::new(v1::BatchRemoveResponse { answers, ..Default::default() }))
    }

    async fn remove_all(&self, request: Request<v1::RemoveAllRequest>) -> Answered<v1::RemoveAllResponse> {
        let time_left = time_left_ms(request.metadata());
        let remove = request.into_inner();
        if let Some(space) = &remove.space {
            // Checked as the namespace of any key would be.
            or_refuse!(ObjectKey::new(space, b"-"));
        }
        let call = if remove.call_id == 0 { or_refuse!(nanomc::base::id::random_u64()) } else { remove.call_id };
        let message = wire::RemoveAll { space: remove.space.map(wire::Space), wait: !remove.no_wait, call };
        let (status_code, _, message) = outcome(Directory::end(self.directory.begin(time_left, message)).await)?;
        Ok(Response::new(v1::RemoveAllResponse { status_code, message }))
    }

    async fn query_key(&self, request: Request<v1::QueryKeyRequest>) -> Answered<v1::QueryKeyResponse> {
        let request = request.into_inner();
        let key = or_refuse!(ObjectKey::new(&request.space, &request.key));
        only(self.query(vec![key]).await?).map(Response::new)
    }

    async fn batch_query(&self, request: Request<v1::BatchQueryRequest>) -> Answered<v1::BatchQueryResponse> {
        let request = request.into_inner();
        check_batch(request.keys.len())?;
        let keys = or_refuse!(keys_of(&request.space, &request.keys));
        let answers = self.query(keys).await?;
        Ok(Response::new(v1::BatchQueryResponse { answers, ..Default::default() }))
    }

    async fn list_keys(&self, request: Request<v1::ListKeysRequest>) -> Answered<v1::ListKeysResponse> {
        let request = request.into_inner();
        let limit = match request.limit as usize {
            0 => MAX_PAGE,
            limit => limit.min(MAX_PAGE),
        };
        let looked = self.look(move |master, now| {
            leading(master, now)?;
            let wanted = Wanted { space: request.space.as_deref(), prefix: &request.prefix, limit };
            Ok::<_, Status>(master.keys(request.cursor, wanted, now))
        });
        let (keys, next) = or_refuse!(looked.await??);
        let keys = keys.iter().map(|key| ListedKey { space: key.space().to_vec(), key: key.key().to_vec() }).collect();
        Ok(Response::new(v1::ListKeysResponse { status_code: NMC_OK, keys, next, message: String::new() }))
    }

    async fn mount_segment(&self, request: Request<v1::MountSegmentRequest>) -> Answered<v1::MountSegmentResponse> {
        let time_left = time_left_ms(request.metadata());
        let message = or_refuse!(convert::mount(request.into_inner()));
        let (status_code, _, message) = outcome(Directory::end(self.directory.begin(time_left, message)).await)?;
        Ok(Response::new(v1::MountSegmentResponse { status_code, message }))
    }

    async fn unmount_segment(
        &self,
        request: Request<v1::UnmountSegmentRequest>,
    ) -> Answered<v1::UnmountSegmentResponse> {
        let time_left = time_left_ms(request.metadata());
        let message = convert::unmount(request.into_inner());
        let (status_code, _, message) = outcome(Directory::end(self.directory.begin(time_left, message)).await)?;
        Ok(Response::new(v1::UnmountSegmentResponse { status_code, message }))
    }

    async fn list_segments(&self, request: Request<v1::ListSegmentsRequest>) -> Answered<v1::ListSegmentsResponse> {
        let time_left = time_left_ms(request.metadata());
        let message = wire::ListSegments { cursor: request.into_inner().cursor };
        match Directory::end(self.directory.begin(time_left, message)).await {
            Message::Segments(list) => {
                let segments = list.list.into_iter().map(convert::segment).collect();
                let (status_code, next) = (NMC_OK, list.next);
                Ok(Response::new(v1::ListSegmentsResponse { status_code, segments, next, message: String::new() }))
            }
            other => {
                let (status_code, _, message) = outcome(other)?;
                Ok(Response::new(v1::ListSegmentsResponse { status_code, message, ..Default::default() }))
            }
        }
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Answered<v1::DrainResponse> {
        let time_left = time_left_ms(request.metadata());
        let request = request.into_inner();
        let message = wire::Drain { segment: request.segment_name, cancel: request.cancel };
        let (status_code, left, message) = outcome(Directory::end(self.directory.begin(time_left, message)).await)?;
        Ok(Response::new(v1::DrainResponse { status_code, left, message }))
    }

    async fn ping(&self, request: Request<v1::PingRequest>) -> Answered<v1::PingResponse> {
        let node = request.into_inner().node_name;
        let look = move |master: &Master, now| leading(master, now).map(|figures| (figures, master.member(&node, now)));
        let (figures, member) = self.look(look).await??;
        Ok(Response::new(v1::PingResponse {
            status_code: NMC_OK,
            term: figures.term,
            settled: figures.settled,
            member: convert::member_state(member.as_ref()).into(),
            incarnation: member.map_or(0, |member| member.incarnation),
            message: String::new(),
        }))
    }

    async fn offload_object_heartbeat(
        &self,
        request: Request<v1::OffloadObjectHeartbeatRequest>,
    ) -> Answered<v1::OffloadObjectHeartbeatResponse> {
        let request = request.into_inner();
        let look = move |master: &Master, now| {
            leading(master, now)?;
            let member = master.member(&request.node_name, now);
            Ok::<_, Status>(member.is_some_and(|member| member.incarnation == incarnation_of(request.secret)))
        };
        let (status_code, message) = match self.look(look).await?? {
            true => (NMC_OK, String::new()),
            false => (NMC_ERR_STALE, "the node is no member in this incarnation".into()),
        };
        Ok(Response::new(v1::OffloadObjectHeartbeatResponse { status_code, message, objects: Vec::new() }))
    }

    async fn notify_offload_success(
        &self,
        request: Request<v1::NotifyOffloadSuccessRequest>,
    ) -> Answered<v1::NotifyOffloadSuccessResponse> {
        let request = request.into_inner();
        check_batch(request.objects.len())?;
        let keys = or_refuse!(listed_keys(&request.objects));
        let owner = (NodeId::of(&request.node_name), incarnation_of(request.secret));
        let look = move |master: &Master, now| {
            leading(master, now)?;
            let known = master.member(&request.node_name, now).is_some_and(|member| member.incarnation == owner.1);
            let on_disk = |view: &ReplicaView| {
                let listed = view.owner == owner && view.gate == Gate::Open;
                listed && view.name.is_some_and(|name| name.index & ON_DISK != 0)
            };
            let is_there = |key: &ObjectKey| master.replicas(key, now).is_ok_and(|views| views.iter().any(on_disk));
            Ok::<_, Status>((known, keys.iter().filter(|key| !is_there(key)).count()))
        };
        let (status_code, message) = match self.look(look).await?? {
            (false, _) => (NMC_ERR_STALE, "the node is no member in this incarnation".into()),
            (true, 0) => (NMC_OK, String::new()),
            (true, n) => (NMC_IN_PROGRESS, format!("the node's stream has not told yet of {n} of them")),
        };
        Ok(Response::new(v1::NotifyOffloadSuccessResponse { status_code, message }))
    }

    async fn batch_evict_disk_replica(
        &self,
        request: Request<v1::BatchEvictDiskReplicaRequest>,
    ) -> Answered<v1::BatchEvictDiskReplicaResponse> {
        let time_left = time_left_ms(request.metadata());
        let request = request.into_inner();
        check_batch(request.objects.len())?;
        let keys = or_refuse!(listed_keys(&request.objects));
        let (node, incarnation) = (NodeId::of(&request.node_name), request.secret);
        let evict = wire::EvictDisk { node, incarnation, keys };
        let (status_code, _, message) = outcome(Directory::end(self.directory.begin(time_left, evict)).await)?;
        Ok(Response::new(v1::BatchEvictDiskReplicaResponse { status_code, message }))
    }
}

fn listed_keys(objects: &[ListedKey]) -> Result<Vec<ObjectKey>> {
    objects.iter().map(|object| ObjectKey::new(&object.space, &object.key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_is_the_clients_within_limits() {
        let ms = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            time_left_ms(&metadata)
        };
        assert_eq!((ms("250m"), ms("2S"), ms("1500u"), ms("1n"), ms("1M")), (250, 2000, 1, 0, 60_000));
        assert_eq!(
            (ms("99999999H"), ms("3"), ms("m"), ms("-1S"), ms("123456789S")),
            (60_000, 10_000, 10_000, 10_000, 10_000)
        );
        assert_eq!(time_left_ms(&MetadataMap::new()), 10_000);
    }
}
