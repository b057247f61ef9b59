//! Gets of others: the value is held from before its bytes leave until the last has left, or until no more of them can leave. What has
//! left and is not known to have arrived may arrive at any time: only whoever asked can end that, so it is told (TIMEOUT).

use super::storage::{Hold, Pinned, Plan};
use super::{Action, Agent, Storage};
use crate::base::error::Result;
use crate::base::queue::Queue;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_CORRUPT, NMC_ERR_CUDA, NMC_ERR_NOT_FOUND, NMC_ERR_PROTOCOL, NMC_ERR_TIMEOUT,
    NMC_ERR_UNAVAILABLE, NMC_ERR_UNSUPPORTED, NMC_OK, nmc_status_t,
};
use crate::base::{log, memory};
use crate::cluster::types::{Millis, ObjectKey, Peer, PutId, slow_ms};
use crate::cluster::wire::{Answer, CancelFetch, Expire, Fetch, Fetched, Frame, Metadata};

/// Peers of which it is remembered what they asked for.
const MAX_PEERS: usize = 1 << 16;

/// Values that are on their way to one peer.
const MAX_SERVED: usize = 256;

/// How long a value may be on its way on a stream, besides what it takes at the slowest pace at which anybody waits for one.
const STREAM_MS: Millis = 60_000;

/// Values that come from the disk for all of them.
const MAX_COMING: usize = 4096;

/// A value that comes from the disk, for somebody who has asked for it.
#[derive(Debug)]
pub(super) struct Coming {
    number: u64,
    to: Peer,
    request: u64,
    fetch: Fetch,
    /// Whoever asked does not wait longer.
    until: Millis,
}

/// A value that is on its way.
#[derive(Debug)]
pub(super) struct Serving {
    to: Peer,
    request: u64,
    /// Its answer is sent when the bytes are there; none if the bytes follow the answer.
    answer: Option<Fetched>,
    /// After this it has taken too long.
    until: Millis,
    /// The mover by which it goes.
    mover: u64,
    /// Who wants to know when nothing is under way any more.
    cancelled: Option<(Peer, u64)>,
    /// It goes so long after it has left whole.
    expires: Option<(ObjectKey, PutId, u32)>,
}

impl Serving {
    /// Whether bytes that somebody else moves take too long.
    pub(super) fn is_late(&self, now: Millis) -> bool {
        self.answer.is_some() && now >= self.until
    }

    /// The same of bytes on a stream.
    fn is_slow(&self, now: Millis) -> bool {
        self.answer.is_none() && now >= self.until
    }
}

fn refused(status: nmc_status_t) -> Fetched {
    Fetched { status, put: PutId(0), length: 0, follows: 0, sum: None, retain: 0, metadata: Metadata::default() }
}

/// The answer if a value cannot be held: nothing of it is under way.
fn unheld(status: nmc_status_t) -> Fetched {
    refused(if matches!(status, NMC_ERR_TIMEOUT | NMC_ERR_CUDA) { NMC_ERR_UNAVAILABLE } else { status })
}

impl<S: Storage> Agent<S> {
    pub(super) fn fetch(
        &mut self,
        from: Peer,
        request: u64,
        time_left: Millis,
        fetch: Fetch,
        now: Millis,
        to: &mut Queue<Action>,
    ) -> Result<()> {
        let reply = |fetched| Action::Send(from, Frame::answering(request, fetched));
        let serving = self.serving.values().map(|serving| (serving.to, serving.request));
        let coming = self.coming.iter().map(|coming| (coming.to, coming.request));
        let mut of_peer = serving.chain(coming).filter(|(peer, _)| *peer == from);
        if of_peer.clone().any(|(_, of)| of == request) {
            return Ok(());
        }
        if of_peer.nth(MAX_SERVED).is_some() {
            // Whoever does not take what it asked for holds no more of the store's pins.
            to.push(reply(refused(NMC_ERR_BUSY)));
            return Ok(());
        }
        if !fetch.into.is_empty() && !self.is_next_push(from, request) {
            to.push(reply(refused(NMC_ERR_TIMEOUT)));
            return Ok(());
        }
        if (fetch.name.node, fetch.name.incarnation) != self.identity() {
            to.push(reply(refused(NMC_ERR_NOT_FOUND)));
            return Ok(());
        }
        if !self.serves(now) {
            to.push(reply(refused(NMC_ERR_UNAVAILABLE)));
            return Ok(());
        }
        memory::reserve(&mut self.coming, 1)?;
        let plan = Plan { index: fetch.name.index, epoch: fetch.name.epoch };
        let pinned = match fetch.stub {
            true => self.storage.pin(plan, &fetch.key.stub(), fetch.put),
            false => self.storage.pin(plan, &fetch.key, fetch.put),
        };
        match pinned {
            Ok(Hold::Held(pinned)) => self.serve((from, request, time_left), fetch, pinned, now, to),
            Ok(Hold::Coming(number)) if self.coming.len() >= MAX_COMING => {
                self.storage.forget(number);
                to.push(reply(refused(NMC_ERR_BUSY)));
            }
            Ok(Hold::Coming(number)) => {
                let until = now + if time_left > 0 { time_left } else { self.config.doubt_ms };
                self.coming.push(Coming { number, to: from, request, fetch, until });
            }
            Err(error) => to.push(reply(unheld(error.status))),
        }
        Ok(())
    }

    /// What has come from the disk is served, like what is in memory.
    pub(super) fn serve_come(&mut self, now: Millis, to: &mut Queue<Action>) {
        let mut at = 0;
        while let Some(coming) = self.coming.get(at) {
            let number = coming.number;
            let came = match self.storage.came(number) {
                // Whoever asked does not wait any more.
                Ok(None) if now >= coming.until => Err(NMC_ERR_UNAVAILABLE),
                Ok(None) => {
                    at += 1;
                    continue;
                }
                Ok(Some(pinned)) => Ok(pinned),
                Err(error) => Err(error.status),
            };
            let Coming { to: from, request, fetch, until, .. } = self.coming.swap_remove(at);
            let reply = |status| Action::Send(from, Frame::answering(request, unheld(status)));
            match came {
                // Somebody may have been told that it is removed, or the node has begun another life.
                Ok(pinned) if !self.serves(now) || fetch.name.incarnation != self.config.incarnation => {
                    self.storage.unpin(pinned.pin);
                    to.push(reply(NMC_ERR_UNAVAILABLE));
                }
                Ok(pinned) => self.serve((from, request, until.saturating_sub(now)), fetch, pinned, now, to),
                Err(status) => {
                    self.storage.forget(number);
                    to.push(reply(status));
                }
            }
        }
    }

    /// A connection has ended: nobody waits for what comes for it.
    pub(super) fn forget_coming(&mut self, peer: Peer) {
        let Self { coming, storage, .. } = self;
        coming.extract_if(.., |coming| coming.to == peer).for_each(|coming| storage.forget(coming.number));
    }

    fn serve(
        &mut self,
        (from, request, time_left): (Peer, u64, Millis),
        fetch: Fetch,
        pinned: Pinned,
        now: Millis,
        to: &mut Queue<Action>,
    ) {
        let reply = |fetched| Action::Send(from, Frame::answering(request, fetched));
        if fetch.put != PutId(0) && fetch.put != pinned.put {
            // The key has another value by now, which nobody has asked for.
            self.storage.unpin(pinned.pin);
            return to.push(reply(refused(NMC_ERR_NOT_FOUND)));
        }
        if fetch.offset > pinned.length {
            self.storage.unpin(pinned.pin);
            return to.push(reply(refused(NMC_ERR_PROTOCOL)));
        }
        let bytes = fetch.length.min(pinned.length - fetch.offset);
        let pushed = !fetch.into.is_empty();
        let sum = match self.prepare(&pinned, &fetch, bytes) {
            Ok(sum) => sum,
            Err(error) => {
                self.storage.unpin(pinned.pin);
                if error.status == NMC_ERR_CORRUPT {
                    log::emit(log::WARN, || format!("cluster: {:?} is damaged: {}", fetch.key, error.message));
                }
                return to.push(reply(unheld(error.status)));
            }
        };
        let fetched = Fetched {
            status: NMC_OK,
            put: pinned.put,
            length: pinned.length,
            follows: if pushed { 0 } else { bytes },
            sum,
            retain: pinned.retain,
            metadata: pinned.metadata,
        };
        let (pin, offset) = (pinned.pin, fetch.offset);
        let answer = pushed.then(|| fetched.clone());
        let expires = (fetch.expire_ms > 0).then_some((fetch.key, fetched.put, fetch.expire_ms));
        // 16 MiB a second, besides; on a stream as long as whoever asked says, which sees how fast it comes.
        let most = STREAM_MS + slow_ms(bytes);
        let more = match (pushed, time_left) {
            (true, _) => bytes >> 14,
            (false, 0) => most,
            (false, time_left) => time_left.min(most),
        };
        let until = now + self.config.doubt_ms + more;
        let mover = self.mover;
        self.serving.insert(pin, Serving { to: from, request, answer, until, mover, cancelled: None, expires });
        to.push(if pushed {
            Action::Push { to: from, pin, offset, length: bytes, into: fetch.into, mover: fetch.mover }
        } else {
            Action::SendValue { to: from, frame: Frame::answering(request, fetched), pin, offset }
        });
    }

    /// So many bytes of what is held are about to leave. Gives the checksum of all of it, by which whoever asked sees whether they are right; of a part nobody
    /// else can see that.
    fn prepare(&mut self, pinned: &Pinned, fetch: &Fetch, bytes: u64) -> Result<Option<u32>> {
        if bytes == 0 {
            return Ok(None);
        }
        let whole = bytes == pinned.length;
        if fetch.verify || !whole {
            self.storage.verify(pinned.pin, fetch.offset, bytes)?;
        }
        if fetch.into.is_empty() {
            self.storage.ready(pinned.pin, fetch.offset, bytes)?;
        }
        if whole { self.storage.sum(pinned.pin) } else { Ok(None) }
    }

    /// Whether a request to write is newer than all that its peer made or cancelled: one that comes late, or again, would write
    /// to memory that is somebody else's by now.
    fn is_next_push(&mut self, from: Peer, request: u64) -> bool {
        let highest = self.pushes.entry(from).or_default();
        let next = request > *highest;
        *highest = request.max(*highest);
        while self.pushes.len() > MAX_PEERS {
            // The oldest connection.
            self.pushes.pop_first();
        }
        next
    }

    /// Ends connections on which a value is not taken in time: as long as it is on its way it cannot be evicted.
    pub(super) fn end_slow_streams(&mut self, now: Millis, to: &mut Queue<Action>) {
        for serving in self.serving.values_mut().filter(|serving| serving.is_slow(now)) {
            serving.until = Millis::MAX;
            to.push(Action::Close(serving.to));
        }
    }

    /// The last byte of a value has left, and arrived if it was pushed; or no more will leave.
    pub(super) fn sent(&mut self, pin: u64, whole: bool, now: Millis, to: &mut Queue<Action>) {
        self.served(pin, if whole { NMC_OK } else { NMC_ERR_TIMEOUT }, now, to);
    }

    /// Not a byte of a value that was to be pushed has left.
    pub(super) fn unsent(&mut self, pin: u64, now: Millis, to: &mut Queue<Action>) {
        self.served(pin, NMC_ERR_UNSUPPORTED, now, to);
    }

    fn served(&mut self, pin: u64, status: nmc_status_t, now: Millis, to: &mut Queue<Action>) {
        let Some(serving) = self.serving.remove(&pin) else { return };
        self.storage.unpin(pin);
        if let Some((key, put, after_ms)) = serving.expires.filter(|_| status == NMC_OK) {
            self.was_read(key, put, after_ms, now, to);
        }
        if let Some(answer) = serving.answer {
            let answer = if status == NMC_OK { answer } else { refused(status) };
            to.push(Action::Send(serving.to, Frame::answering(serving.request, answer)));
        }
        tell(serving.cancelled, status, to);
    }

    /// A put was read that is to go so long after that: the leader hears of it, once in that time.
    pub(super) fn was_read(&mut self, key: ObjectKey, put: PutId, after_ms: u32, now: Millis, to: &mut Queue<Action>) {
        if self.told.is_new(put, now, after_ms.into()) {
            let frame = Frame::telling(Expire { key, put, after_ms });
            to.push(Action::Master(self.leaders.current(), frame));
        }
    }

    /// Whoever asked for a value wants no byte of it any more.
    pub(super) fn cancel_fetch(
        &mut self,
        from: Peer,
        request: u64,
        cancel: &CancelFetch,
        to: &mut Queue<Action>,
    ) -> Result<()> {
        let which = cancel.request;
        if let Some(at) = self.coming.iter().position(|coming| (coming.to, coming.request) == (from, which)) {
            // Not a byte of it is under way.
            let coming = self.coming.swap_remove(at);
            self.storage.forget(coming.number);
            to.push(Action::Send(from, Frame::answering(which, unheld(NMC_ERR_UNAVAILABLE))));
            tell(Some((from, request)), NMC_OK, to);
            return Ok(());
        }
        let never_came = self.is_next_push(from, which) && cancel.incarnation == self.config.incarnation;
        let found = self.serving.iter_mut().find(|(_, serving)| (serving.to, serving.request) == (from, which));
        match found {
            Some((pin, serving)) => {
                serving.cancelled = Some((from, request));
                to.push(Action::CancelPush(*pin));
            }
            // Of what was ended before, or was asked of a former life, bytes may be under way.
            None => tell(Some((from, request)), if never_came { NMC_OK } else { NMC_ERR_TIMEOUT }, to),
        }
        Ok(())
    }

    /// The mover was renewed: what was being pushed before is not any more.
    pub(super) fn pushes_ended(&mut self, number: u64, to: &mut Queue<Action>) {
        let Self { serving, storage, .. } = self;
        serving.retain(|pin, serving| {
            if serving.answer.is_none() || serving.mover >= number {
                return true;
            }
            storage.unpin(*pin);
            to.push(Action::Send(serving.to, Frame::answering(serving.request, refused(NMC_ERR_TIMEOUT))));
            tell(serving.cancelled, NMC_ERR_TIMEOUT, to);
            false
        });
    }
}

/// No byte more leaves: TIMEOUT says that some may still arrive.
fn tell(who: Option<(Peer, u64)>, status: nmc_status_t, to: &mut Queue<Action>) {
    if let Some((peer, request)) = who {
        let status = if status == NMC_ERR_TIMEOUT { status } else { NMC_OK };
        to.push(Action::Send(peer, Frame::answering(request, Answer::new(0, status, ""))));
    }
}
