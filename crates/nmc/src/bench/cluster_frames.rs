//! The cluster's protocol over a plain socket: what a program says to a master, and how long the messages of a put and a get are,
//! which is what the bare trips are as long as.

use super::cluster_plain::Trip;
use super::library::c_api::NMC_OK;
use super::store_library::Item;
use crate::args::Failure;
use nanomc::cluster::types::{Media, Name, NodeId, ObjectKey, Position, PutId};
use nanomc::cluster::wire::{
    Answer, Done, Fetch, Fetched, Find, Found, Frame, HEAD, Head, Listed, Message, Metadata, Place, Put, PutDone,
    PutEnd, PutPlaces, PutStart, Replica, Replicate,
};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// How long a frame says that its answer is waited for.
const PATIENCE_MS: u32 = 60_000;

/// A key of no namespace.
pub fn key(item: Item<'_>) -> Result<ObjectKey, Failure> {
    Ok(ObjectKey::new(b"", item.bytes())?)
}

/// The bytes of a request.
pub fn request(message: impl Into<Message>) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    Frame { request: 1, time_left_ms: PATIENCE_MS, message: message.into() }.encode(&mut bytes)?;
    Ok(bytes)
}

/// Lets a put of so many bytes begin.
pub fn put_start(key: ObjectKey, length: u64) -> PutStart {
    let config = Replicate { copies: 1, media: Vec::new(), fixed: Vec::new(), near: String::new() };
    PutStart { key, length, slices: vec![length], config, striped: false }
}

/// A connection to a master.
pub struct Frames {
    stream: TcpStream,
    /// Of this many bytes the first have come.
    buffer: Vec<u8>,
    have: usize,
}

impl Frames {
    /// Connects.
    pub fn connect(address: &str) -> Result<Self, Failure> {
        let connect = || {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let stream = connect().map_err(|e| Failure::os(format!("connecting to {address}"), &e))?;
        Ok(Self { stream, buffer: vec![0; 1 << 20], have: 0 })
    }

    /// Sends requests and waits for as many answers. They are looked at with [`Frames::answers`].
    pub fn ask(&mut self, requests: &[u8], count: usize) -> Result<(), Failure> {
        let failed = |e| Failure::os("talking to a master", &e);
        self.stream.write_all(requests).map_err(failed)?;
        self.have = 0;
        let (mut seen, mut end) = (0, 0);
        while seen < count {
            match self.stream.read(&mut self.buffer[self.have..]).map_err(failed)? {
                0 => return Err(Failure::new("a master has hung up")),
                n => self.have += n,
            }
            while let Some(next) = self.next(end)?.filter(|next| *next <= self.have) {
                (seen, end) = (seen + 1, next);
            }
        }
        Ok(())
    }

    /// Where the frame ends that begins here, if its head has come.
    fn next(&self, at: usize) -> Result<Option<usize>, Failure> {
        let Some(head) = self.buffer[at..self.have].first_chunk::<HEAD>() else { return Ok(None) };
        Ok(Some(at + HEAD + Head::decode(head)?.len as usize))
    }

    /// The bytes that came last.
    pub fn came(&self) -> usize {
        self.have
    }

    /// What was answered last.
    pub fn answers(&self) -> Result<Vec<Message>, Failure> {
        let (mut messages, mut at) = (Vec::new(), 0);
        while let Some(end) = self.next(at)?.filter(|end| *end <= self.have) {
            let head = self.buffer[at..].first_chunk::<HEAD>().ok_or_else(|| Failure::new("half of a frame"))?;
            messages.push(Frame::decode(&Head::decode(head)?, &self.buffer[at + HEAD..end])?.message);
            at = end;
        }
        Ok(messages)
    }

    /// Where keys are, as the master lists them.
    pub fn find(&mut self, keys: Vec<ObjectKey>) -> Result<Vec<Listed>, Failure> {
        self.ask(&request(Find { keys, missed: Vec::new() })?, 1)?;
        match self.answers()?.pop() {
            Some(Message::Found(found)) => Ok(found.keys),
            // It does not lead yet.
            _ => Ok(Vec::new()),
        }
    }
}

/// How long the messages are of a get and of a put of a value.
pub struct Trips {
    /// Where one key is.
    pub find: Trip,
    /// The value.
    pub fetch: Trip,
    /// Where a value may go.
    pub start: Trip,
    /// The value.
    pub put: Trip,
    /// It is there.
    pub end: Trip,
}

fn trip(there: impl Into<Message>, back: impl Into<Message>) -> Result<Trip, Failure> {
    let (there, back) = (there.into(), back.into());
    let value = |message: &Message| usize::try_from(message.value()).unwrap_or(0);
    let (more, answer) = (value(&there), value(&back));
    Ok(Trip { request: request(there)?.len() + more, answer: request(back)?.len() + answer })
}

impl Trips {
    /// Those of a value of so many bytes under this key, which one node has.
    pub fn of(key: &ObjectKey, length: u64) -> Result<Self, Failure> {
        let (term, put, status, retain, segment, incarnation) = (1, PutId(1), NMC_OK, 0, 0, 1);
        let (key, media, endpoint) = (|| key.clone(), Media::Ram, || String::from("127.0.0.1:12345"));
        let (metadata, after, node) = (|| Metadata(Vec::new()), Position::default(), NodeId(1));
        let name = Name { node, incarnation, index: 1, epoch: 1 };
        let done = Done { name, fact: 1 };
        let replica = Replica { name, put, length, media, endpoint: endpoint() };
        let listed = Listed { status, replicas: vec![replica] };
        let place = Place { node, incarnation, segment, media, endpoint: endpoint(), after, exact: false };
        let (offset, into, mover) = (0, Vec::new(), 0);
        let fetch =
            Fetch { name, key: key(), put, offset, length, into, mover, expire_ms: 0, stub: false, verify: false };
        Ok(Self {
            find: trip(Find { keys: vec![key()], missed: Vec::new() }, Found { term, keys: vec![listed] })?,
            fetch: trip(
                fetch,
                Fetched { status, put, length, follows: length, sum: None, retain: 0, metadata: metadata() },
            )?,
            start: trip(put_start(key(), length), PutPlaces { status, term, put, copies: 1, places: vec![place] })?,
            put: trip(
                Put {
                    put,
                    term,
                    incarnation,
                    after,
                    segment,
                    key: key(),
                    length,
                    retain,
                    metadata: metadata(),
                    hold: false,
                    exact: false,
                },
                PutDone { status, done: Some(done.clone()) },
            )?,
            end: trip(
                PutEnd { put, key: key(), done: vec![done], tried: Vec::new(), crc: None },
                Answer::new(term, status, ""),
            )?,
        })
    }
}
