//! A server with the smallest handler: it gives back what it hears, meets a bug when told to, and notes who went.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use super::packet::{Cursor, Field as _, REFUSAL, Refusal, Service};
use super::server::Id;
use super::*;
use crate::base::Deadline;
use crate::base::error::Result;
use crate::base::status::{NMC_ERR_LIMIT, NMC_ERR_PROTOCOL};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const ECHO: Service = Service { magic: 7, name: "the echo" };
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Echo {
    gone: Arc<AtomicUsize>,
}

impl Handler for Echo {
    type Peer = ();
    const SERVICE: Service = ECHO;
    const MAX_CONNECTIONS: usize = 4;

    fn received(&mut self, all: &mut Connections<()>, from: Id, packet: &[u8], _: Vec<OwnedFd>) -> Result<()> {
        match ECHO.kind(&mut Cursor::new(packet))? {
            1 => {
                all.introduce(from, ());
                all.get_mut(from).map_or(Ok(Sent::Closed), |c| c.send(packet, &[])).map(drop)
            }
            2 => panic!("a bug, for a test"),
            other => crate::bail!(NMC_ERR_PROTOCOL, "kind {other}"),
        }
    }

    fn closed(&mut self, _: Option<()>, _: &str) {
        self.gone.fetch_add(1, Ordering::SeqCst);
    }

    fn tick(&mut self, _: &mut Connections<()>, _: bool) -> Duration {
        Duration::from_millis(20)
    }
}

fn serve(dir: &Path) -> (Server, Arc<AtomicUsize>) {
    let echo = Echo::default();
    let gone = Arc::clone(&echo.gone);
    (Server::start(c"nmc-test", None, Listener::bind(&dir.join("sock")).unwrap(), echo).unwrap(), gone)
}

fn connect(dir: &Path) -> Link {
    loop {
        // A full backlog reads as nobody.
        if let Some(link) = caller::connect(&dir.join("sock"), &ECHO).unwrap() {
            return link;
        }
        std::thread::yield_now();
    }
}

fn packet(kind: u32) -> Vec<u8> {
    let mut packet = Vec::new();
    ECHO.begin(&mut packet);
    kind.put(&mut packet);
    packet
}

fn call(link: &mut Link, kind: u32) -> caller::Answer {
    let mut buffer = vec![0; MAX_PACKET];
    let answer = caller::call(link, &packet(kind), &mut buffer, &Deadline::after(PATIENCE), || Ok(())).unwrap();
    if let caller::Answer::Packet(len) = answer {
        assert_eq!(buffer[..len], packet(kind));
    }
    answer
}

/// The refusal that comes next, and after which the connection ends.
fn refusal(link: &mut Link) -> Refusal {
    let mut buffer = vec![0; MAX_PACKET];
    let wait = |link: &Link| !poll(&[link.as_fd()], PATIENCE).is_empty();
    let (len, _) = caller::next(link, &mut buffer, wait).unwrap().unwrap();
    let mut from = Cursor::new(&buffer[..len]);
    assert_eq!(ECHO.kind(&mut from).unwrap(), REFUSAL);
    let refusal = Refusal::get(&mut from).unwrap();
    assert!(caller::next(link, &mut buffer, wait).unwrap().is_none(), "then it is closed");
    refusal
}

#[test]
fn nonsense_is_refused_with_the_reason_and_others_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _) = serve(dir.path());
    let mut good = connect(dir.path());
    for nonsense in [b"x".to_vec(), b"somebody else's".to_vec(), packet(3)] {
        let mut bad = connect(dir.path());
        assert_eq!(bad.send(&nonsense, &[]), Ok(Sent::Yes));
        assert_eq!(refusal(&mut bad).status, NMC_ERR_PROTOCOL);
        assert!(matches!(call(&mut good, 1), caller::Answer::Packet(_)));
    }
}

#[test]
fn a_message_that_meets_a_bug_ends_its_own_connection_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, gone) = serve(dir.path());
    let (mut good, mut bad) = (connect(dir.path()), connect(dir.path()));
    assert!(matches!(call(&mut good, 1), caller::Answer::Packet(_)));
    assert_eq!(call(&mut bad, 2), caller::Answer::End);
    assert!(matches!(call(&mut good, 1), caller::Answer::Packet(_)));
    assert_eq!(gone.load(Ordering::SeqCst), 1);
}

#[test]
fn silent_connections_make_way_and_those_that_spoke_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _) = serve(dir.path());
    let silent: Vec<Link> = (0..Echo::MAX_CONNECTIONS).map(|_| connect(dir.path())).collect();
    let mut known: Vec<Link> = (0..Echo::MAX_CONNECTIONS).map(|_| connect(dir.path())).collect();
    for link in &mut known {
        assert!(matches!(call(link, 1), caller::Answer::Packet(_)));
    }
    assert!(silent.iter().all(Link::has_ended));
    let mut late = connect(dir.path());
    assert_eq!(refusal(&mut late).status, NMC_ERR_LIMIT);
    assert!(known.iter_mut().all(|link| matches!(call(link, 1), caller::Answer::Packet(_))), "control");
}

#[test]
fn who_does_not_read_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _) = serve(dir.path());
    let (mut good, mut deaf) = (connect(dir.path()), connect(dir.path()));
    for _ in 0..2000 {
        let _ = deaf.send(&packet(1), &[]);
    }
    assert!(matches!(call(&mut good, 1), caller::Answer::Packet(_)));
}

#[test]
fn connections_end_with_their_server() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(dir.path());
    let mut link = connect(dir.path());
    assert!(matches!(call(&mut link, 1), caller::Answer::Packet(_)));
    drop(server);
    assert_eq!(call(&mut link, 1), caller::Answer::End);
}

#[test]
fn a_call_that_is_not_answered_returns_by_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let listener = Listener::bind(&dir.path().join("sock")).unwrap();
    let mut link = connect(dir.path());
    let deadline = Deadline::after(Duration::from_millis(5));
    let answer = caller::call(&mut link, &packet(1), &mut [0; 64], &deadline, || Ok(())).unwrap();
    assert_eq!(answer, caller::Answer::Late);
    let stop = || Err(crate::base::Error::new(crate::base::status::NMC_ERR_CANCELLED, "stop"));
    let stopped = caller::call(&mut link, &packet(1), &mut [0; 64], &Deadline::after(PATIENCE), stop);
    assert_eq!(stopped.unwrap_err().message, "stop");
    drop(listener);
}
