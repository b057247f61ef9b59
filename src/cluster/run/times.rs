//! How long the calls of framed clients take at a master: from when one was read until its answer is queued. One thread counts, and reads the clock no
//! more often than it does anyway; anybody may look.

use crate::base::memory;
use crate::base::status::{
    NMC_ERR_INTERNAL, NMC_ERR_NO_MEMORY, NMC_ERR_PROTOCOL, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE,
};
use crate::cluster::types::{Millis, Peer};
use crate::cluster::wire::{Frame, Message};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Upper ends of the histogram, in µs; there is one more without an end.
pub const BUCKETS_US: [u64; 7] = [100, 300, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
/// A call that takes so long is remembered.
pub const SLOW: Duration = Duration::from_millis(100);
/// So many are.
pub const MAX_SLOW: usize = 32;

/// What clients ask a master for.
pub const CALLS: [&str; 9] =
    ["PutStart", "PutEnd", "PutRevoke", "Find", "Remove", "RemoveAll", "ListSegments", "Drain", "ListKeys"];
/// Calls that wait for others, and are not forgotten meanwhile. What would be more is not timed.
const MAX_OPEN: usize = 4096;
/// How long an answer is waited for, of which nobody has said that.
const PATIENCE_NS: u64 = 60_000_000_000;

/// The place of a message in [`CALLS`].
fn place_of(message: &Message) -> Option<usize> {
    Some(match message {
        Message::PutStart(_) => 0,
        Message::PutEnd(_) => 1,
        Message::PutRevoke(_) => 2,
        Message::Find(_) => 3,
        Message::Remove(_) => 4,
        Message::RemoveAll(_) => 5,
        Message::ListSegments(_) => 6,
        Message::Drain(_) => 7,
        Message::ListKeys(_) => 8,
        _ => return None,
    })
}

/// Whether an answer says that nothing was done, whatever was asked for.
fn has_failed(answer: &Message) -> bool {
    match answer {
        Message::Answer(answer) => matches!(
            answer.status,
            NMC_ERR_UNAVAILABLE | NMC_ERR_TIMEOUT | NMC_ERR_NO_MEMORY | NMC_ERR_PROTOCOL | NMC_ERR_INTERNAL
        ),
        Message::Redirect(_) => true,
        _ => false,
    }
}

/// Calls of one kind.
#[derive(Debug, Default)]
pub struct Count {
    /// Those that nobody has answered in time, or that this master could not do.
    pub failed: AtomicU64,
    /// Time of all of them, in µs.
    pub total_us: AtomicU64,
    /// All of them, by their time.
    pub buckets: [AtomicU64; BUCKETS_US.len() + 1],
}

/// A call that took long.
#[derive(Debug, Clone)]
pub struct Slow {
    /// Which.
    pub method: &'static str,
    /// How long.
    pub ms: u64,
    /// When it ended, in ms since 1970.
    pub at_ms: u64,
}

impl Slow {
    /// One that has just ended.
    #[must_use]
    pub fn now(method: &'static str, time: Duration) -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { method, ms: ms(time), at_ms: ms(now) }
    }

    /// Puts it behind others, of which as many are kept as may be.
    pub fn remember(self, others: &mut VecDeque<Slow>) {
        others.push_back(self);
        if others.len() > MAX_SLOW {
            others.pop_front();
        }
    }
}

/// What was counted.
#[derive(Debug, Default)]
pub struct Times {
    counts: [Count; CALLS.len()],
    slow: Mutex<VecDeque<Slow>>,
}

/// One more, or so many. Only one thread does that.
fn add(to: &AtomicU64, n: u64) {
    to.store(to.load(Relaxed).wrapping_add(n), Relaxed);
}

impl Times {
    /// Calls by their names.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, &Count)> {
        CALLS.into_iter().zip(&self.counts)
    }

    /// What took long lately, the last first.
    #[must_use]
    pub fn slow(&self) -> Vec<Slow> {
        self.slow.lock().iter().rev().cloned().collect()
    }

    fn record(&self, place: usize, ns: u64, failed: bool) {
        let (Some(count), Some(name)) = (self.counts.get(place), CALLS.get(place)) else { return };
        let us = ns / 1000;
        add(&count.total_us, us);
        let bucket = BUCKETS_US.iter().position(|end| us <= *end).unwrap_or(BUCKETS_US.len());
        if let Some(bucket) = count.buckets.get(bucket) {
            add(bucket, 1);
        }
        if failed {
            add(&count.failed, 1);
        }
        let time = Duration::from_nanos(ns);
        if time >= SLOW {
            Slow::now(name, time).remember(&mut self.slow.lock());
        }
    }
}

/// A call that has no answer yet.
#[derive(Debug, Clone, Copy)]
struct Open {
    place: usize,
    begun: u64,
    /// Nobody waits for it any longer.
    until: u64,
}

/// Who counts. It is told the time whenever the thread looks at a clock: what was handled before that ended then.
pub(super) struct Timer {
    times: Arc<Times>,
    now: u64,
    /// What is being handled, and whether it was answered with a failure, if it was answered.
    current: Option<(Peer, u64, Open, Option<bool>)>,
    /// What waits for something else.
    open: HashMap<(Peer, u64), Open>,
}

impl Timer {
    /// For these counts.
    pub(super) fn new(times: Arc<Times>) -> Self {
        Self { times, now: 0, current: None, open: HashMap::new() }
    }

    /// It is this late, in ns.
    pub(super) fn tick(&mut self, now: u64) {
        self.now = now;
        let Some((peer, request, open, answered)) = self.current.take() else { return };
        if let Some(failed) = answered {
            self.record(open, failed);
        } else if self.open.len() < MAX_OPEN && memory::reserve_map(&mut self.open, 1).is_ok() {
            self.open.insert((peer, request), open);
        }
    }

    /// Somebody has said this, just now.
    pub(super) fn begins(&mut self, peer: Peer, frame: &Frame) {
        if let Some(place) = place_of(&frame.message).filter(|_| frame.request != 0) {
            let patience = match frame.time_left_ms {
                0 => PATIENCE_NS,
                ms => Millis::from(ms) * 1_000_000,
            };
            let open = Open { place, begun: self.now, until: self.now + patience };
            self.current = Some((peer, frame.request, open, None));
        }
    }

    /// Somebody is told this.
    pub(super) fn answers(&mut self, peer: Peer, frame: &Frame) {
        if let Some((to, request, _, failed)) = &mut self.current
            && (*to, *request) == (peer, frame.request)
        {
            *failed = Some(has_failed(&frame.message));
        } else if !self.open.is_empty()
            && let Some(open) = self.open.remove(&(peer, frame.request))
        {
            self.record(open, has_failed(&frame.message));
        }
    }

    /// Nobody waits there any more.
    pub(super) fn closed(&mut self, peer: Peer) {
        self.end(|of, _| of == peer);
    }

    /// Calls of which nobody waits for the answer any longer have failed.
    pub(super) fn end_late(&mut self) {
        let now = self.now;
        self.end(|_, open| open.until <= now);
    }

    fn end(&mut self, which: impl Fn(Peer, &Open) -> bool) {
        if self.open.is_empty() {
            return;
        }
        let mut open = std::mem::take(&mut self.open);
        open.extract_if(|(peer, _), open| which(*peer, open)).for_each(|(_, open)| self.record(open, true));
        self.open = open;
    }

    fn record(&self, open: Open, failed: bool) {
        self.times.record(open.place, self.now.saturating_sub(open.begun), failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::status::{NMC_ERR_NOT_FOUND, NMC_OK};
    use crate::cluster::types::{NodeId, ObjectKey};
    use crate::cluster::wire::{Answer, Drain, Find, Leave, ListSegments, Redirect, Remove};

    const MS: u64 = 1_000_000;

    fn says(request: u64, message: impl Into<Message>) -> Frame {
        Frame { request, time_left_ms: 5000, message: message.into() }
    }

    fn remove() -> Remove {
        Remove { key: ObjectKey::new(b"", b"k").unwrap(), wait: true, call: 1 }
    }

    fn answer(request: u64, status: i32) -> Frame {
        Frame::answering(request, Answer::new(1, status, ""))
    }

    /// How many of a kind there were, how many failed, and their time in ms.
    fn counted(times: &Times, name: &str) -> (u64, u64, u64) {
        let (_, count) = times.counts().find(|(of, _)| *of == name).unwrap();
        let all = count.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum();
        (all, count.failed.load(Relaxed), count.total_us.load(Relaxed) / 1000)
    }

    #[test]
    fn calls_have_the_names_of_their_messages() {
        let find = Find { keys: vec![], missed: vec![] };
        let drain = Drain { segment: String::new(), cancel: false };
        for message in [find.into(), remove().into(), drain.into(), Message::from(ListSegments { cursor: 0 })] {
            assert_eq!(CALLS[place_of(&message).unwrap()], message.name());
        }
        assert_eq!(place_of(&Leave { node: NodeId(1), incarnation: 1, empty: true }.into()), None);
    }

    #[test]
    fn a_call_takes_until_it_is_answered_at_once_or_later() {
        let times = Arc::new(Times::default());
        let mut timer = Timer::new(Arc::clone(&times));
        let (a, b) = (Peer(1), Peer(2));
        timer.tick(MS);
        // At once: until the next look at the clock.
        timer.begins(a, &says(7, Find { keys: vec![], missed: vec![] }));
        timer.answers(a, &answer(7, NMC_OK));
        timer.tick(3 * MS);
        assert_eq!(counted(&times, "Find"), (1, 0, 2));
        // Later, and of two with the same number the right one.
        timer.begins(a, &says(8, remove()));
        timer.tick(4 * MS);
        timer.begins(b, &says(8, remove()));
        timer.tick(200 * MS);
        timer.answers(b, &answer(8, NMC_ERR_NOT_FOUND));
        assert_eq!(counted(&times, "Remove"), (1, 0, 196));
        timer.tick(203 * MS);
        timer.answers(a, &answer(8, NMC_ERR_UNAVAILABLE));
        assert_eq!((counted(&times, "Remove"), timer.open.len()), ((2, 1, 396), 0));
        let slow: Vec<_> = times.slow().iter().map(|slow| (slow.method, slow.ms)).collect();
        assert_eq!(slow, [("Remove", 200), ("Remove", 196)]);
        // What is told unasked, and what nobody asks for, is no call.
        timer.begins(a, &says(0, remove()));
        timer.answers(a, &answer(0, NMC_OK));
        timer.answers(a, &answer(99, NMC_OK));
        timer.tick(204 * MS);
        assert_eq!((counted(&times, "Remove").0, timer.open.len()), (2, 0));
    }

    #[test]
    fn what_has_no_answer_in_time_has_failed_and_is_forgotten() {
        let times = Arc::new(Times::default());
        let mut timer = Timer::new(Arc::clone(&times));
        for request in 1..=10_000 {
            timer.begins(Peer(request % 2), &says(request, remove()));
            timer.tick(MS);
        }
        assert_eq!(timer.open.len(), MAX_OPEN);
        timer.closed(Peer(0));
        assert_eq!((timer.open.len(), counted(&times, "Remove").1), (MAX_OPEN / 2, 2048));
        timer.end_late();
        assert_eq!(timer.open.len(), MAX_OPEN / 2);
        timer.tick(5001 * MS);
        timer.end_late();
        assert_eq!((timer.open.len(), counted(&times, "Remove").1), (0, MAX_OPEN as u64));
        assert_eq!(times.slow().len(), MAX_SLOW);
        timer.begins(Peer(1), &says(1, remove()));
        timer.answers(Peer(1), &Frame::answering(1, Redirect { term: 1, leader: String::new() }));
        timer.tick(5002 * MS);
        assert_eq!(counted(&times, "Remove").1, MAX_OPEN as u64 + 1, "another one leads");
    }
}
