//! The serving side: one thread that accepts, listens and never waits for anybody. Whoever says nothing, says nonsense or
//! reads nothing is dropped; strangers are refused; a bug that a message meets ends its connection and nothing else. What
//! messages mean is up to a [`Handler`].

use super::packet::Service;
use super::sys::{Event, own_uid, poll};
use super::transport::{Link, Listener, MAX_PACKET, Packet, Sent};
use crate::base::error::{Error, Result};
use crate::base::{log, memory};
use crate::sync::service_thread;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A connection that has not said who it is by then is closed.
const SILENCE: Duration = Duration::from_secs(5);
/// A connection that has had no room for what it is owed by then is closed.
const SLOWNESS: Duration = Duration::from_secs(10);
/// How often connections are looked at that have said nothing, or do not read.
const SWEEP: Duration = Duration::from_millis(500);
/// How long a thread that is out of descriptors waits before it accepts again.
const PAUSE: Duration = Duration::from_millis(20);

/// Names a connection for as long as the server lives.
pub type Id = u64;

/// What a server does with messages. All calls come from its thread.
pub trait Handler {
    /// What is known of a connection that has said who it is.
    type Peer;
    /// Who is spoken to.
    const SERVICE: Service;
    /// Most connections at a time.
    const MAX_CONNECTIONS: usize;

    /// A message came. With an error the sender is told why, and its connection is closed.
    fn received(
        &mut self,
        connections: &mut Connections<Self::Peer>,
        from: Id,
        packet: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<()>;

    /// A connection has ended that the handler has not closed itself; `peer` is `None` if it never said who it was.
    fn closed(&mut self, peer: Option<Self::Peer>, why: &str);

    /// Adds the descriptors, beside the connections, for which `tick` is to be called.
    fn watched<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        let _ = fds;
    }

    /// Comes after the messages of each round; `woken` if a descriptor of `watched` is ready. Returns how long the thread may
    /// sleep.
    fn tick(&mut self, connections: &mut Connections<Self::Peer>, woken: bool) -> Duration;
}

/// A running server. Dropping it stops the thread; the handler is dropped with it, before the connections end.
pub struct Server {
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `listener` in a thread of its own.
    pub fn start<H: Handler<Peer: Send> + Send + 'static>(
        name: &'static CStr,
        cpu: Option<u32>,
        listener: Listener,
        handler: H,
    ) -> Result<Self> {
        let stop = Arc::new(Event::new()?);
        let stopped = Arc::clone(&stop);
        // Before the thread: it must be able to hear whatever happens.
        let (buffer, ids) = (memory::zeroed(MAX_PACKET)?, memory::with_capacity(H::MAX_CONNECTIONS)?);
        let connections = Connections { open: BTreeMap::new(), next_id: 1 };
        let next_sweep = Instant::now() + SWEEP;
        let mut serving = Serving { handler, listener, connections, buffer, ids, hearing: None, next_sweep };
        let thread = service_thread::spawn(name, cpu, move || {
            service_thread::persist(H::SERVICE.name, || serving.serve(&stopped));
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A connection as its server knows it.
pub struct Connection<P> {
    link: Link,
    since: Instant,
    /// There has been no room for what it is owed since then.
    full_since: Option<Instant>,
    peer: Option<P>,
}

impl<P> Connection<P> {
    /// Who it is, if it has said so.
    pub fn peer(&self) -> Option<&P> {
        self.peer.as_ref()
    }

    /// Who it is, to be changed.
    pub fn peer_mut(&mut self) -> Option<&mut P> {
        self.peer.as_mut()
    }

    /// Who it was: the caller says at once who it is now.
    pub fn take_peer(&mut self) -> Option<P> {
        self.peer.take()
    }

    /// Notes who is at the other end.
    pub fn introduce(&mut self, peer: P) {
        self.peer = Some(peer);
    }

    /// Sends what it must get. If there never is room, the connection is closed after a while.
    pub fn send(&mut self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Sent> {
        let sent = self.link.send(packet, fds);
        match sent {
            Ok(Sent::Yes) => self.full_since = None,
            Ok(Sent::Full) => self.lacks_room(),
            _ => {}
        }
        sent
    }

    /// Sends news: who has no room for it does without. Whether it went out.
    pub fn mention(&mut self, packet: &[u8]) -> bool {
        matches!(self.link.send(packet, &[]), Ok(Sent::Yes))
    }

    /// Notes that what it must get could not be sent.
    pub fn lacks_room(&mut self) {
        self.full_since.get_or_insert_with(Instant::now);
    }

    /// It is owed nothing any more.
    pub fn owed_nothing(&mut self) {
        self.full_since = None;
    }

    /// For how long there has been no room for what it is owed.
    pub fn full_for(&self) -> Option<Duration> {
        self.full_since.map(|since| since.elapsed())
    }
}

/// The connections of a server.
pub struct Connections<P> {
    open: BTreeMap<Id, Connection<P>>,
    next_id: Id,
}

impl<P> Connections<P> {
    /// A connection that is open.
    pub fn get_mut(&mut self, id: Id) -> Option<&mut Connection<P>> {
        self.open.get_mut(&id)
    }

    /// Who is at the other end of a connection, if it has said so.
    pub fn peer(&self, id: Id) -> Option<&P> {
        self.open.get(&id)?.peer()
    }

    /// Who is there, to be changed.
    pub fn peer_mut(&mut self, id: Id) -> Option<&mut P> {
        self.open.get_mut(&id)?.peer_mut()
    }

    /// Notes who is at the other end of a connection.
    pub fn introduce(&mut self, id: Id, peer: P) {
        if let Some(connection) = self.open.get_mut(&id) {
            connection.introduce(peer);
        }
    }

    /// All who have said who they are.
    pub fn peers(&self) -> impl Iterator<Item = (Id, &P)> {
        self.open.iter().filter_map(|(id, c)| Some((*id, c.peer()?)))
    }

    /// All who have said who they are, to be changed.
    pub fn peers_mut(&mut self) -> impl Iterator<Item = &mut P> {
        self.open.values_mut().filter_map(Connection::peer_mut)
    }

    /// All connections.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Id, &mut Connection<P>)> {
        self.open.iter_mut().map(|(id, c)| (*id, c))
    }

    /// Ends a connection, and gives who was there.
    pub fn close(&mut self, id: Id) -> Option<P> {
        self.open.remove(&id)?.peer
    }

    /// Ends the connections of all for whom `who` holds.
    pub fn close_all(&mut self, who: impl Fn(&P) -> bool) {
        self.open.retain(|_, c| !c.peer().is_some_and(&who));
    }
}

struct Serving<H: Handler> {
    /// First: it may hold the lock of the place, which is given back before the connections end.
    handler: H,
    listener: Listener,
    connections: Connections<H::Peer>,
    buffer: Vec<u8>,
    /// Connections, in the order in which they are polled.
    ids: Vec<Id>,
    /// The connection that is being heard: if that ends by a bug, so does the connection.
    hearing: Option<Id>,
    next_sweep: Instant,
}

impl<H: Handler> Serving<H> {
    fn serve(&mut self, stop: &Event) {
        if let Some(id) = self.hearing.take() {
            self.end(id, "what it said met a bug");
        }
        let mut limit = Duration::ZERO;
        loop {
            let (ready, polled) = self.wait(stop, limit);
            let is_ready = |at: usize| ready.get(at).copied().unwrap_or(false);
            if is_ready(0) {
                return;
            }
            for at in 0..polled {
                if is_ready(2 + at) {
                    self.hearing = Some(self.ids[at]);
                    self.hear(self.ids[at]);
                    self.hearing = None;
                }
            }
            if is_ready(1) {
                self.accept();
            }
            if Instant::now() >= self.next_sweep {
                self.sweep();
                self.next_sweep = Instant::now() + SWEEP;
            }
            let woken = ready.get(2 + polled..).is_some_and(|watched| watched.contains(&true));
            limit = self.handler.tick(&mut self.connections, woken).min(SWEEP);
        }
    }

    /// Sleeps until something happens; gives what is ready: the stop, the listener, the connections (and how many they are), and
    /// what the handler watches.
    fn wait(&mut self, stop: &Event, limit: Duration) -> (Vec<bool>, usize) {
        self.ids.clear();
        self.ids.extend(self.connections.open.keys());
        let mut fds: Vec<BorrowedFd<'_>> = Vec::with_capacity(2 + 3 * self.ids.len());
        fds.extend([stop.as_fd(), self.listener.as_fd()]);
        fds.extend(self.connections.open.values().map(|c| c.link.as_fd()));
        self.handler.watched(&mut fds);
        (poll(&fds, limit), self.ids.len())
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(Some(mut link)) => {
                if let Err(error) = check_peer::<H>(&link).and_then(|()| self.make_room()) {
                    log::emit(log::WARN, || format!("{}: refused a connection: {error}", H::SERVICE.name));
                    let _ = link.send(&H::SERVICE.refusal(&error), &[]);
                    return;
                }
                let connection = Connection { link, since: Instant::now(), full_since: None, peer: None };
                self.connections.open.insert(self.connections.next_id, connection);
                self.connections.next_id += 1;
            }
            Ok(None) => {}
            Err(error) => {
                // Out of descriptors: the connection stays in the queue; do not spin on it.
                log::emit(log::ERROR, || format!("{}: {error}", H::SERVICE.name));
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Whoever says nothing does not keep others out.
    fn make_room(&mut self) -> Result<()> {
        let (open, most) = (&self.connections.open, H::MAX_CONNECTIONS);
        if open.len() < most {
            return Ok(());
        }
        match open.iter().find(|(_, c)| c.peer.is_none()).map(|(id, _)| *id) {
            Some(oldest) => self.end(oldest, "others need its place"),
            None => crate::bail!(NMC_ERR_LIMIT, "{} already has {most} connections", H::SERVICE.name),
        }
        Ok(())
    }

    /// Drops who says nothing, and who does not read.
    fn sweep(&mut self) {
        let verdict = |c: &Connection<H::Peer>| match c.peer {
            None if c.since.elapsed() > SILENCE => Some("it said nothing"),
            _ if c.full_for().is_some_and(|time| time > SLOWNESS) => Some("it does not read"),
            _ => None,
        };
        let dead = memory::collect(self.connections.open.iter().filter_map(|(id, c)| Some((*id, verdict(c)?))));
        // Without memory they are dropped when it is looked at the next time.
        for (id, why) in dead.unwrap_or_default() {
            self.end(id, why);
        }
    }

    fn hear(&mut self, id: Id) {
        let Some(connection) = self.connections.open.get_mut(&id) else { return };
        let heard = match connection.link.receive(&mut self.buffer) {
            Ok(Packet::Empty) => return,
            Ok(Packet::End) => return self.end(id, "it closed"),
            Ok(Packet::Data(len, fds)) => self.handler.received(&mut self.connections, id, &self.buffer[..len], fds),
            Err(error) => Err(error),
        };
        if let Err(error) = heard {
            self.refuse(id, &error);
        }
    }

    fn refuse(&mut self, id: Id, error: &Error) {
        log::emit(log::INFO, || format!("{}: refused a peer: {error}", H::SERVICE.name));
        if let Some(connection) = self.connections.open.get_mut(&id) {
            connection.mention(&H::SERVICE.refusal(error));
        }
        self.end(id, &error.message);
    }

    fn end(&mut self, id: Id, why: &str) {
        if let Some(connection) = self.connections.open.remove(&id) {
            self.handler.closed(connection.peer, why);
        }
    }
}

fn check_peer<H: Handler>(link: &Link) -> Result<()> {
    let (theirs, ours) = (link.peer_uid()?, own_uid());
    if theirs != ours {
        crate::bail!(NMC_ERR_PERMISSION, "{} is of user {ours}, the peer of user {theirs}", H::SERVICE.name);
    }
    Ok(())
}
