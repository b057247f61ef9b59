//! etcd elects one of several masters and keeps what must outlive it. The term of a leader is the create revision of the election
//! key, which lives as long as the leader's lease. Whatever a leader writes is a transaction that succeeds only while that key
//! is its own; and it answers nobody after (last keep-alive sent) + lease − [`MARGIN_MS`], by a clock that goes on in sleep.

mod client;
mod words;

use crate::options::{Etcd as Options, Failure};
use crate::print;
use crate::proto::etcd::request_op::Request as Op;
use crate::proto::etcd::response_op::Response as OpResponse;
use crate::proto::etcd::{DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest};
use crate::serve::{Over, until_over};
use client::Client;
use nanomc::base::id::random_u64;
use nanomc::cluster::directory::{Change, Elected, Event, Member};
use nanomc::cluster::net::now_ms;
use nanomc::cluster::run::master::Handle;
use nanomc::cluster::types::{Millis, Position, Term, counted, terms_of};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};
use words::{
    Batch, MAX_OPS, changed, created, drop_name, drop_position, entry_in, entry_out, fitting, holds, op, position_in,
    position_out,
};

/// A leader stops answering so long before its lease can be over.
const MARGIN_MS: Millis = 500;
/// Entries that are read at a time: they fit a message of gRPC.
const PAGE: i64 = 1000;

/// How long the directory may take to hear what it was told.
const LOOK: Duration = Duration::from_secs(10);

/// A master that leads, or would.
pub struct Candidate {
    etcd: Client,
    prefix: String,
    lease_s: u32,
    advertised: String,
    /// What the directory was told last about who leads.
    told: Option<(Term, String)>,
    /// The random number of this cluster, as etcd has it, and what its terms have above their count.
    cluster: Vec<u8>,
    terms: Term,
    /// A lease under which this master leads no more, and of which etcd has not heard that.
    left: Option<i64>,
    /// The revision of what was written down last, if that is known: not after one of which nobody knows whether it was.
    last: Option<i64>,
}

/// A lease of this master.
#[derive(Debug, Clone, Copy)]
struct Lease {
    id: i64,
    /// When to renew it.
    due: Millis,
    /// Until when this master may count on it.
    until: Millis,
}

impl Candidate {
    /// A master that others call `advertised`. Nobody is spoken to yet.
    pub fn new(options: &Options, advertised: String) -> Result<Self, Failure> {
        let (prefix, lease_s) = (options.prefix.clone(), options.lease_s);
        Ok(Self {
            etcd: Client::new(options)?,
            prefix,
            lease_s,
            advertised,
            told: None,
            cluster: Vec::new(),
            terms: 0,
            left: None,
            last: None,
        })
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.prefix).into_bytes()
    }

    /// How long a standby waits before it looks again.
    fn pause(&self) -> Duration {
        Duration::from_millis(u64::from(self.lease_s) * 100)
    }

    /// Leads whenever nobody else does, until it is over.
    pub async fn run(mut self, mut changes: super::Changes, handle: Handle, mut over: Over) {
        let mut silent = false;
        loop {
            let campaign = async {
                let campaigned = self.campaign(&handle).await;
                if !matches!(campaigned, Ok(Some(_))) {
                    sleep(self.pause()).await;
                }
                campaigned
            };
            let campaigned = tokio::select! {
                campaigned = campaign => campaigned,
                () = until_over(&mut over) => return,
            };
            match campaigned {
                Ok(Some((term, lease))) => {
                    silent = false;
                    let lost = self.lead(term, lease, &mut changes, &handle, over.clone()).await;
                    self.depose(term + 1, "", &handle);
                    self.give_back(lease.id).await;
                    if changes.is_closed() {
                        // The directory has ended, in order: there is nobody to tell.
                        return;
                    }
                    print::warn(&format!("term {} is over: {lost}", counted(term)));
                    Self::forget_changes(&mut changes, &handle).await;
                }
                Ok(None) => silent = false,
                Err(status) if !silent => {
                    silent = true;
                    print::warn(&format!("etcd does not answer: {}", describe(&status)));
                }
                Err(_) => {}
            }
        }
    }

    /// Tells the directory who leads, if that is news.
    fn depose(&mut self, term: Term, leader: &str, handle: &Handle) {
        if self.told.as_ref().is_none_or(|(told, by)| (*told, by.as_str()) != (term, leader)) {
            self.told = Some((term, leader.to_owned()));
            handle.tell(Event::Deposed(term, leader.to_owned()));
        }
    }

    /// What was to be written down in a term that is over must not be written down in the next, nor answered there: the numbers
    /// begin again.
    async fn forget_changes(changes: &mut super::Changes, handle: &Handle) {
        // By now the directory has heard that it does not lead, and wants nothing more written down.
        Self::look(handle).await;
        while changes.try_recv().is_ok() {}
    }

    /// The term in which the directory leads, after it has heard everything that it was told.
    async fn look(handle: &Handle) -> Option<Term> {
        let (sender, receiver) = oneshot::channel();
        handle.look(Box::new(move |master, _| _ = sender.send(master.leads())));
        // If the directory ends just now nobody looks.
        timeout(LOOK, receiver).await.ok()?.ok()?
    }

    /// Ends a lease. If etcd does not hear this it is told again when it is back: it counts a lease from then on anew, and nobody
    /// could lead for so long.
    async fn give_back(&mut self, id: i64) {
        let ended = self.etcd.revoke(id).await;
        self.left = ended.is_err_and(|status| status.code() != Code::NotFound).then_some(id);
    }

    /// Tries to become the leader: its term, or who leads instead.
    async fn campaign(&mut self, handle: &Handle) -> Result<Option<(Term, Lease)>, Status> {
        if let Some(id) = self.left {
            self.give_back(id).await;
        }
        let key = self.key("leader");
        let held = self.etcd.range(RangeRequest { key: key.clone(), ..Default::default() }).await?;
        self.know_cluster().await?;
        if let Some(held) = held.kvs.first() {
            self.follow(held, handle);
            return Ok(None);
        }
        let lease = self.grant().await?;
        let put = PutRequest { key: key.clone(), value: self.advertised.clone().into_bytes(), lease: lease.id };
        let vacant = created(&key, 0);
        let look = Op::RequestRange(RangeRequest { key, ..Default::default() });
        let txn = TxnRequest { compare: vec![vacant], success: vec![op(Op::RequestPut(put))], failure: vec![op(look)] };
        let answer = match self.etcd.txn(txn).await {
            Ok(answer) => answer,
            Err(status) => {
                // It may have been done all the same. Then the key ends with the lease.
                self.give_back(lease.id).await;
                return Err(status);
            }
        };
        if answer.succeeded {
            let revision = answer.header.map_or(0, |header| header.revision);
            return Ok(Some((self.term(revision), lease)));
        }
        let _ = self.etcd.revoke(lease.id).await;
        let first = answer.responses.into_iter().next().and_then(|response| response.response);
        if let Some(OpResponse::ResponseRange(range)) = first
            && let Some(held) = range.kvs.first()
        {
            self.follow(held, handle);
        }
        Ok(None)
    }

    /// Finds out which cluster this is, or names it. An etcd that has lost its data counts its revisions from the beginning, and calls itself what
    /// it did before if it is configured as before: only what is written there says that it is another.
    async fn know_cluster(&mut self) -> Result<(), Status> {
        let key = self.key("cluster");
        let look = RangeRequest { key: key.clone(), ..Default::default() };
        let mut found = self.etcd.range(look.clone()).await?.kvs.into_iter().next();
        if found.is_none() {
            let random = random_u64().map_err(|error| Status::internal(error.message))?;
            let put = PutRequest { key: key.clone(), value: format!("{random:016x}").into_bytes(), lease: 0 };
            let (compare, success) = (vec![created(&key, 0)], vec![op(Op::RequestPut(put))]);
            // Whoever was first, it is asked who.
            self.etcd.txn(TxnRequest { compare, success, failure: Vec::new() }).await?;
            found = self.etcd.range(look).await?.kvs.into_iter().next();
        }
        let value = found.ok_or_else(|| Status::unavailable("the number of the cluster is not there"))?.value;
        let number = std::str::from_utf8(&value).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        let damaged = || Status::data_loss(format!("{} is no number", String::from_utf8_lossy(&key)));
        (self.terms, self.cluster) = (terms_of(number.ok_or_else(damaged)?), value);
        Ok(())
    }

    fn term(&self, revision: i64) -> Term {
        self.terms | counted(Term::try_from(revision).unwrap_or(0))
    }

    fn follow(&mut self, held: &KeyValue, handle: &Handle) {
        let term = self.term(held.create_revision);
        self.depose(term, &String::from_utf8_lossy(&held.value), handle);
    }

    fn lease(&self, id: i64, sent: Millis, ttl_s: i64) -> Lease {
        let ttl = Millis::try_from(ttl_s).unwrap_or(0) * 1000;
        Lease { id, due: sent + ttl / 3, until: (sent + ttl).saturating_sub(MARGIN_MS) }
    }

    async fn grant(&self) -> Result<Lease, Status> {
        let sent = now_ms();
        let granted = self.etcd.grant(self.lease_s.into()).await?;
        Ok(self.lease(granted.0, sent, granted.1))
    }

    /// Renews the lease if it is time for that.
    async fn keep_alive(&self, lease: &mut Lease) -> Result<bool, Status> {
        let sent = now_ms();
        if sent < lease.due {
            return Ok(false);
        }
        let ttl = self.etcd.keep_alive(lease.id).await?;
        if ttl <= 0 {
            return Err(Status::not_found("the lease has ended"));
        }
        *lease = self.lease(lease.id, sent, ttl);
        Ok(true)
    }

    /// Leads until the lease is lost or it is over, and says why.
    async fn lead(
        &mut self,
        term: Term,
        mut lease: Lease,
        changes: &mut super::Changes,
        handle: &Handle,
        mut over: Over,
    ) -> String {
        let elected = match self.load(term, &mut lease).await {
            Ok(elected) => elected,
            Err(status) => return format!("what is written down can not be read: {}", describe(&status)),
        };
        (self.told, self.last) = (None, None);
        handle.tell(Event::Elected(elected));
        if Self::look(handle).await != Some(term) {
            return "the directory could not begin".into();
        }
        let mut taken = None;
        loop {
            let wait = Duration::from_millis(lease.due.saturating_sub(now_ms()));
            // Renewing comes first: whoever has much to write down must not lose its lease over it.
            tokio::select! {
                biased;
                () = until_over(&mut over) => return "the master is ending".into(),
                () = sleep(wait) => if let Err(status) = self.renew(&mut lease, handle).await {
                    return describe(&status);
                },
                batch = self.next(changes, &mut taken) => {
                    let Some(batch) = batch else { return "the directory has ended".into() };
                    let written = self.record(term, batch.operations, &mut lease, handle).await;
                    for number in batch.numbers {
                        handle.tell(Event::Recorded(number, matches!(written, Ok(true))));
                    }
                    match written {
                        Ok(true) => {}
                        Ok(false) => return "somebody else was elected".into(),
                        Err(status) => print::warn(&format!("etcd has not written something down: {}", describe(&status))),
                    }
                }
            }
        }
    }

    /// Renews the lease if it is time for that, and says so. Fails when it is lost; after anything else it is tried again.
    async fn renew(&self, lease: &mut Lease, handle: &Handle) -> Result<(), Status> {
        match self.keep_alive(lease).await {
            Ok(true) => handle.tell(Event::Lease(lease.until)),
            Ok(false) => {}
            Err(status) if status.code() == Code::NotFound || now_ms() >= lease.until + MARGIN_MS => {
                return Err(status);
            }
            Err(_) => lease.due = now_ms() + u64::from(self.lease_s) * 1000 / 20,
        }
        Ok(())
    }

    /// What is to be written down next: a list, and those behind it that have come by now and fit into the same transaction. The
    /// first that does not is `taken` the next time. Waits for the first of them only, before it takes anything.
    async fn next(&self, changes: &mut super::Changes, taken: &mut Option<Batch>) -> Option<Batch> {
        let one = |(number, list)| Batch { numbers: vec![number], operations: self.operations(list) };
        let mut batch = match taken.take() {
            Some(batch) => batch,
            None => one(changes.recv().await?),
        };
        while batch.operations.len() < MAX_OPS
            && let Ok(change) = changes.try_recv()
        {
            let more = one(change);
            if !batch.takes(&more) {
                *taken = Some(more);
                break;
            }
            batch.numbers.extend(more.numbers);
            batch.operations.extend(more.operations);
        }
        Some(batch)
    }

    /// Writes changes down if this master still leads; false if it does not. Changes too long for one transaction are told as
    /// not written unless all of them are, and written again: their parts say nothing that is not so.
    async fn record(
        &mut self,
        term: Term,
        operations: Vec<RequestOp>,
        lease: &mut Lease,
        handle: &Handle,
    ) -> Result<bool, Status> {
        let term = i64::try_from(counted(term)).unwrap_or(i64::MAX);
        let mut rest = operations.as_slice();
        while !rest.is_empty() {
            let (part, more) = rest.split_at(fitting(rest).min(rest.len()));
            rest = more;
            // There may be so many that the lease would end meanwhile.
            self.renew(lease, handle).await?;
            let last = match self.last.take() {
                Some(last) => last,
                None => self.revisions("written").await?.1,
            };
            let answer = self.etcd.txn(self.following(term, last, part)).await?;
            if !answer.succeeded {
                if self.revisions("leader").await?.0 != term {
                    return Ok(false);
                }
                return Err(Status::aborted("one that was given up was written down meanwhile"));
            }
            self.last = answer.header.map(|header| header.revision);
        }
        Ok(true)
    }

    /// A transaction that takes place while this master leads, and right after the one that left the revision `last`. One that was
    /// sent and never answered does not follow any that was sent later.
    fn following(&self, term: i64, last: i64, operations: &[RequestOp]) -> TxnRequest {
        let (key, value) = (self.key("written"), Vec::new());
        let same = holds(&self.key("cluster"), &self.cluster);
        let compare = vec![created(&self.key("leader"), term), same, changed(&key, last)];
        let mut success = operations.to_vec();
        success.push(op(Op::RequestPut(PutRequest { key, value, lease: 0 })));
        TxnRequest { compare, success, failure: Vec::new() }
    }

    /// Where something was created, and changed for the last time; zeros if it is not there.
    async fn revisions(&self, name: &str) -> Result<(i64, i64), Status> {
        let found = self.etcd.range(RangeRequest { key: self.key(name), ..Default::default() }).await?;
        Ok(found.kvs.first().map_or((0, 0), |kv| (kv.create_revision, kv.mod_revision)))
    }

    fn operations(&self, list: Vec<Change>) -> Vec<RequestOp> {
        let mut operations = Vec::new();
        let put = |name: &str, value: Vec<u8>| op(Op::RequestPut(PutRequest { key: self.key(name), value, lease: 0 }));
        let delete =
            |key: Vec<u8>, range_end: Vec<u8>| op(Op::RequestDeleteRange(DeleteRangeRequest { key, range_end }));
        for change in list {
            match change {
                Change::Member(member) => {
                    operations.push(put(&format!("member/{}", member.name), position_out(member.since)))
                }
                Change::Gone(name) => operations.push(delete(self.key(&format!("member/{name}")), Vec::new())),
                Change::Drop(entry) => operations.push(put(&drop_name(entry.position), entry_out(&entry))),
                Change::Forget(first, floor) => {
                    let end = first.map_or_else(|| "drop0".into(), drop_name);
                    operations.push(delete(self.key("drop/"), self.key(&end)));
                    operations.push(put("floor", position_out(floor)));
                }
            }
        }
        operations
    }

    /// All that is written down.
    async fn load(&self, term: Term, lease: &mut Lease) -> Result<Elected, Status> {
        let damaged = |what: &str, key: &[u8]| {
            Status::data_loss(format!("{what} under {} is not understood", String::from_utf8_lossy(key)))
        };
        let floor = self.etcd.range(RangeRequest { key: self.key("floor"), ..Default::default() }).await?;
        let floor = match floor.kvs.first() {
            None => Position::default(),
            Some(kv) => position_in(&kv.value).ok_or_else(|| damaged("a position", &kv.key))?,
        };
        let start = self.key("member/");
        let mut members = Vec::new();
        for kv in self.all("member/", "member0", lease).await? {
            let since = position_in(&kv.value).ok_or_else(|| damaged("a position", &kv.key))?;
            let name = kv.key.strip_prefix(start.as_slice()).and_then(|name| std::str::from_utf8(name).ok());
            members.push(Member { name: name.ok_or_else(|| damaged("a name", &kv.key))?.to_owned(), since });
        }
        let start = self.key("drop/");
        let mut log = Vec::new();
        for kv in self.all("drop/", "drop0", lease).await? {
            let position = kv.key.strip_prefix(start.as_slice()).and_then(drop_position);
            let entry = position.and_then(|position| entry_in(position, &kv.value));
            log.push(entry.ok_or_else(|| damaged("an entry of the drop log", &kv.key))?);
        }
        Ok(Elected { term, until: lease.until, members, log, floor })
    }

    /// Everything from one name to another, page by page.
    async fn all(&self, from: &str, to: &str, lease: &mut Lease) -> Result<Vec<KeyValue>, Status> {
        let (mut key, range_end) = (self.key(from), self.key(to));
        let mut list = Vec::new();
        loop {
            self.keep_alive(lease).await?;
            let page =
                self.etcd.range(RangeRequest { key: key.clone(), range_end: range_end.clone(), limit: PAGE }).await?;
            let more = page.more;
            list.extend(page.kvs);
            match list.last() {
                Some(last) if more => {
                    key = last.key.clone();
                    // The first key behind it.
                    key.push(0);
                }
                _ => return Ok(list),
            }
        }
    }
}

/// What went wrong, for people: gRPC's own message is empty at times.
fn describe(status: &Status) -> String {
    if status.message().is_empty() { format!("{:?}", status.code()) } else { status.message().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nanomc::cluster::directory::{Config, Entry, Master, Recorded, Target};
    use nanomc::cluster::net::Limits;
    use nanomc::cluster::run::master::Service;
    use nanomc::cluster::types::NodeId;
    use nanomc::cluster::wire::DropSpace;
    use std::path::Path;

    /// It is killed when the test ends, however.
    struct Killed(std::process::Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill().and_then(|()| self.0.wait());
        }
    }

    /// An etcd of one member, and where it listens; None if there is none to be started.
    fn etcd(dir: &Path) -> Option<(Killed, String)> {
        use std::net::{TcpListener, TcpStream};
        use std::process::{Command, Stdio};
        let free = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
        for attempt in 0..5 {
            let (client, peers) = (free(), format!("http://{}", free()));
            let url = format!("http://{client}");
            let mut command = Command::new("etcd");
            command.arg("--data-dir").arg(dir.join(attempt.to_string())).args([
                "--name",
                "e",
                "--initial-cluster",
                &format!("e={peers}"),
            ]);
            command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
            command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            let Ok(child) = child else {
                eprintln!("skipped: there is no etcd on the PATH (Debian: apt-get install etcd-server)");
                return None;
            };
            let mut child = Killed(child);
            // Somebody else may take a port that was free a moment ago: then it ends.
            while child.0.try_wait().unwrap().is_none() {
                if TcpStream::connect(client).is_ok() {
                    return Some((child, url));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        panic!("etcd does not start");
    }

    fn options(url: String) -> Options {
        let (endpoints, prefix) = (vec![url], "/t".to_owned());
        Options { endpoints, prefix, lease_s: 9, ca: None, identity: None, user: None }
    }

    /// A directory to speak to: what it wants written down goes nowhere.
    fn directory() -> (Service, Handle) {
        let config = Config { durable: true, ..Config::default() };
        Service::start(Master::new(config), Vec::new(), Limits::default(), Box::new(|_, _| ())).unwrap()
    }

    fn member(name: &str, number: u64) -> Change {
        Change::Member(Member { name: name.into(), since: Position { term: 1, number } })
    }

    fn drops(number: u64) -> Change {
        let what = DropSpace { space: None }.into();
        let targets = vec![Target { node: NodeId(5), excused: false }];
        Change::Drop(Entry { position: Position { term: 1, number }, what, targets, call: 0, recorded: Recorded::Yes })
    }

    /// A master that leads, in its term, and its lease.
    async fn leading(url: String) -> (Candidate, Term, Lease) {
        let mut master = Candidate::new(&options(url), String::new()).unwrap();
        let (_service, handle) = directory();
        let begun = std::time::Instant::now();
        loop {
            if let Ok(Some((term, lease))) = master.campaign(&handle).await {
                handle.stop();
                return (master, term, lease);
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "etcd does not answer");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// A transaction that was sent and given up arrived after a later one, and what it said counted. Control: the same one as it was.
    #[tokio::test]
    async fn what_was_given_up_is_not_written_down_after_what_came_later() {
        let dir = tempfile::tempdir().unwrap();
        let Some((_killed, url)) = etcd(dir.path()) else { return };
        let (mut master, term, mut lease) = leading(url).await;
        let (_service, handle) = directory();
        let created = master.revisions("leader").await.unwrap().0;
        assert_eq!(i64::try_from(counted(term)).unwrap(), created);
        let one = |master: &Candidate, number| master.operations(vec![member("n", number)]);
        let first = one(&master, 1);
        assert!(master.record(term, first, &mut lease, &handle).await.unwrap());
        let late = master.following(created, master.last.unwrap(), &one(&master, 2));
        let third = one(&master, 3);
        assert!(master.record(term, third, &mut lease, &handle).await.unwrap());
        assert!(!master.etcd.txn(late.clone()).await.unwrap().succeeded);
        let unguarded = TxnRequest { compare: late.compare[..2].to_vec(), ..late };
        assert!(master.etcd.txn(unguarded).await.unwrap().succeeded);
        // Somebody else's: what is not known is looked for.
        let (fourth, fifth, sixth) = (one(&master, 4), one(&master, 5), one(&master, 6));
        assert_eq!(master.record(term, fourth, &mut lease, &handle).await.unwrap_err().code(), Code::Aborted);
        assert!(master.record(term, fifth, &mut lease, &handle).await.unwrap());
        let late = master.record(term + 1, sixth, &mut lease, &handle).await;
        assert!(!late.unwrap(), "who does not lead writes nothing");
        handle.stop();
    }

    /// Lists that have come go into one transaction as far as etcd takes them together, in their order, and none is left out.
    #[tokio::test]
    async fn lists_that_have_come_are_written_down_together() {
        let dir = tempfile::tempdir().unwrap();
        let Some((_killed, url)) = etcd(dir.path()) else { return };
        let (mut master, term, mut lease) = leading(url).await;
        let (_service, handle) = directory();
        let (sender, mut changes) = tokio::sync::mpsc::unbounded_channel();
        let floor = Position { term: 1, number: 9 };
        let long = (1..=MAX_OPS as u64 + 1).map(|number| drops(1000 + number)).collect();
        let lists = [
            vec![drops(1)],
            vec![member("a", 1)],
            vec![drops(2), drops(3)],
            // The same key once more, and one that goes with what is deleted.
            vec![member("a", 2)],
            vec![drops(10)],
            vec![Change::Forget(Some(Position { term: 1, number: 10 }), floor)],
            vec![Change::Gone("a".into())],
            vec![member("a", 3)],
            long,
            vec![drops(2000)],
        ];
        let together: [&[u64]; 7] = [&[0, 1, 2], &[3, 4], &[5], &[6], &[7], &[8], &[9]];
        let fill = || (0..).zip(lists.clone()).for_each(|change| sender.send(change).unwrap());
        fill();
        let mut taken = None;
        for numbers in together {
            let batch = master.next(&mut changes, &mut taken).await.unwrap();
            assert_eq!(batch.numbers, numbers);
            lease.due = 0;
            assert!(master.record(term, batch.operations, &mut lease, &handle).await.unwrap(), "{numbers:?}");
            assert!(lease.due > 0, "it is renewed when it is time for that");
        }
        assert!(taken.is_none());
        let read = master.load(term, &mut lease).await.unwrap();
        assert_eq!(
            (read.floor, read.members),
            (floor, vec![Member { name: "a".into(), since: Position { term: 1, number: 3 } }])
        );
        let numbers: Vec<_> = read.log.iter().map(|entry| entry.position.number).collect();
        assert!(numbers.into_iter().eq([10].into_iter().chain(1001..=1000 + MAX_OPS as u64 + 1).chain([2000])));
        // Controls: etcd takes no key twice, and none that is deleted there.
        let forget = Change::Forget(Some(Position { term: 1, number: 10 }), floor);
        for list in [vec![member("a", 1), member("a", 2)], vec![drops(5), forget]] {
            let operations = master.operations(list);
            let refused = master.record(term, operations, &mut lease, &handle).await;
            assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
        }
        // Lists that are long for the many who have to drop something: together they are more than etcd takes.
        let targets = vec![Target { node: NodeId(5), excused: false }; 100_000];
        let long = |number| match drops(number) {
            Change::Drop(entry) => Change::Drop(Entry { targets: targets.clone(), ..entry }),
            other => other,
        };
        (0..2).for_each(|number| sender.send((20 + number, vec![long(3000 + number)])).unwrap());
        for number in 20..22 {
            let batch = master.next(&mut changes, &mut taken).await.unwrap();
            assert_eq!(batch.numbers, [number]);
            let operations = batch.operations.iter().cycle().take(3).cloned().collect::<Vec<_>>();
            assert_eq!(fitting(&operations), 1);
            assert!(master.record(term, operations, &mut lease, &handle).await.unwrap());
        }
        // What is refused is refused for all of them.
        fill();
        let batch = master.next(&mut changes, &mut taken).await.unwrap();
        assert_eq!(batch.numbers, together[0]);
        assert!(!master.record(term + 1, batch.operations, &mut lease, &handle).await.unwrap());
        drop(sender);
        while master.next(&mut changes, &mut taken).await.is_some() {}
        assert!(taken.is_none() && changes.is_closed());
        handle.stop();
    }
}
