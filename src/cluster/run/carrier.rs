//! What a client has so that somebody else can move its bytes: a mover, memory that its program has registered, and room for values of calls whose
//! memory is not.

use crate::base::error::Result;
use crate::base::memory;
use crate::base::queue::Queue;
use crate::cluster::net::{Net, Ready, Span, WAKE};
use crate::cluster::nixl::room::Room;
use crate::cluster::nixl::sys::Medium;
use crate::cluster::nixl::{Current, Mover, News, Settings};
use crate::cluster::wire::Extent;
use crate::rpc::Event;
use parking_lot::Mutex;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Bytes for values of calls whose memory is not registered; they take memory when they are used.
const ROOM: usize = 64 << 20;
/// The region that they are.
const OWN: u32 = 0;
/// Pieces of a call's memory: more would make its messages too long.
const MOST_PIECES: usize = 1024;

/// What the mover has told and nobody has looked at.
struct Inbox {
    news: Mutex<Queue<News>>,
    wake: Event,
}

/// See the module.
pub(super) struct Carrier {
    /// Ends before the memory does that others write to.
    pub mover: Arc<Mover>,
    inbox: Arc<Inbox>,
    room: Room,
    regions: Vec<(u32, Span)>,
    next: u32,
}

impl Carrier {
    /// One that wakes whoever waits for these connections.
    pub(super) fn new(settings: Settings, net: &Net) -> Result<Self> {
        let inbox = Arc::new(Inbox { news: Mutex::default(), wake: Event::new()? });
        let own = Arc::clone(&inbox);
        let mover = Mover::start(settings, move |news| {
            own.news.lock().push(news);
            own.wake.signal();
        })?;
        net.poller().add(&inbox.wake.as_fd(), WAKE, false)?;
        let room = Room::new(ROOM)?;
        mover.register(OWN, room.span(), Medium::Host)?;
        Ok(Self { mover: Arc::new(mover), inbox, room, regions: Vec::new(), next: OWN + 1 })
    }

    /// What the mover has told.
    pub(super) fn take(&self, ready: &[Ready]) -> Queue<News> {
        if ready.iter().any(|ready| ready.number == WAKE) {
            self.inbox.wake.drain();
        }
        std::mem::take(&mut *self.inbox.news.lock())
    }

    /// How the mover is reached now.
    pub(super) fn current(&self) -> Option<Arc<Current>> {
        self.mover.current()
    }

    /// A number for memory that is going to be registered.
    pub(super) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// Memory was registered under a number.
    pub(super) fn add(&mut self, number: u32, memory: Span) -> Result<()> {
        memory::push(&mut self.regions, (number, memory))
    }

    /// Memory that begins there is not used any more; gives its number.
    pub(super) fn remove(&mut self, first: usize) -> Option<u32> {
        let at = self.regions.iter().position(|(_, span)| span.first() == first)?;
        Some(self.regions.swap_remove(at).0)
    }

    /// Whether all of these are in registered memory.
    pub(super) fn has(&self, spans: &[Span]) -> bool {
        let held = |span: &Span| span.is_empty() || self.regions.iter().any(|(_, region)| region.holds(span));
        spans.len() <= MOST_PIECES && spans.iter().all(held)
    }

    /// Memory of a call as others are told of it, if all of it is registered.
    pub(super) fn extents(&self, spans: &[Span]) -> Option<Vec<Extent>> {
        if !self.has(spans) {
            return None;
        }
        let named = spans.iter().filter_map(|span| {
            let (number, region) = self.regions.iter().find(|(_, region)| region.holds(span))?;
            Some(Extent { region: *number, offset: (span.first() - region.first()) as u64, length: span.len() as u64 })
        });
        memory::collect(named).ok()
    }

    /// Room for so many bytes, and how others are told of it.
    pub(super) fn borrow(&mut self, bytes: u64) -> Option<(Borrowed, Extent)> {
        let (first, span) = self.room.take(usize::try_from(bytes).ok()?)?;
        Some((Borrowed { first, span }, Extent { region: OWN, offset: first as u64, length: bytes }))
    }

    /// It is not used any more.
    pub(super) fn give_back(&mut self, borrowed: &Borrowed) {
        self.room.give_back(borrowed.first);
    }
}

/// Room for a value.
pub(super) struct Borrowed {
    first: usize,
    /// Where it is.
    pub span: Span,
}
