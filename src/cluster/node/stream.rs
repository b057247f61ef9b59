//! The node's one ordered stream to the leader. Reports are numbered, a few are under way, and all that are not acknowledged
//! are sent again. The ring of facts is what is sent from: if it has overwritten something, a snapshot takes its place.

use super::storage::{Storage, Tail};
use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::types::{Millis, ObjectKey, Position, PutId};
use crate::cluster::wire::{Applied, Fact, Facts, News, Published, ROOM, Range, Retired, SnapshotEnd, Withdraw};
use std::collections::VecDeque;

/// Reports under way.
const WINDOW: usize = 8;
/// Facts of one report, if they are short.
const FACTS: usize = 256;
/// Objects of one part of a snapshot, however long their keys are.
const OBJECTS: usize = 48;

/// See the module.
#[derive(Debug)]
pub struct Stream {
    /// Number of the first report that is not acknowledged.
    first: u64,
    reports: VecDeque<News>,
    /// How many of them were sent since the last time that all were to be sent again.
    sent: usize,
    sent_at: Millis,
    /// Facts up to this one are in reports.
    facts: u64,
    /// The next index of a snapshot. Facts since its beginning are told between its parts, so that the ring need not hold all of them until its end.
    snapshot: Option<u32>,
    /// A snapshot ends with this fact: what has moved behind its back is told by then.
    ends: Option<u64>,
    /// A snapshot is needed.
    wanted: bool,
    /// The drop log was applied this far when the newest fact was this one; to be told.
    applied: Option<(Position, u64)>,
    /// Announcements and their withdrawals, to be told.
    notes: VecDeque<News>,
}

impl Stream {
    /// A stream from this number on, that begins with where the node is in the drop log, and a snapshot.
    #[must_use]
    pub fn new(first: u64) -> Self {
        Self {
            first,
            reports: VecDeque::new(),
            sent: 0,
            sent_at: 0,
            facts: 0,
            snapshot: None,
            ends: None,
            wanted: true,
            applied: None,
            notes: VecDeque::new(),
        }
    }

    /// The drop log was applied, and the newest fact is this one.
    pub fn applied(&mut self, position: Position, newest: u64) {
        self.applied = Some((position, newest));
    }

    /// Something else is to be told.
    pub fn note(&mut self, news: impl Into<News>) -> Result<()> {
        memory::reserve_queue(&mut self.notes, 1)?;
        self.notes.push_back(news.into());
        Ok(())
    }

    /// A copy that was announced is not to come. If its announcement waits to be told, nobody hears of either.
    pub fn withdraw(&mut self, key: ObjectKey, put: PutId) -> Result<()> {
        let unsaid = |news: &News| matches!(news, News::Announce(said) if said.put == put && said.key == key);
        if let Some(at) = self.notes.iter().rposition(unsaid) {
            self.notes.remove(at);
            return Ok(());
        }
        self.note(Withdraw { key, put })
    }

    /// The leader waits for the report with this number. Gives whether that changed anything.
    pub fn acknowledged(&mut self, next: u64) -> bool {
        let mut changed = false;
        while self.first < next && self.reports.pop_front().is_some() {
            self.first += 1;
            self.sent = self.sent.saturating_sub(1);
            changed = true;
        }
        changed
    }

    /// Whether the leader has all that was to be told.
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        self.applied.is_none() && self.reports.is_empty()
    }

    /// Number of the first report that is not acknowledged.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// All that is under way is sent again.
    pub fn again(&mut self) {
        self.sent = 0;
    }

    /// What is to be sent now: reports with their numbers. Unless `all` may be told only how far the drop log was applied is.
    pub fn next(
        &mut self,
        storage: &mut impl Storage,
        all: bool,
        now: Millis,
        resend_ms: Millis,
        mut send: impl FnMut(u64, &News),
    ) -> Result<()> {
        let filled = self.fill(storage, all);
        if self.sent > 0 && now >= self.sent_at + resend_ms {
            self.sent = 0;
        }
        for (number, news) in (self.first..).zip(&self.reports).skip(self.sent) {
            send(number, news);
            self.sent += 1;
            self.sent_at = now;
        }
        filled
    }

    fn fill(&mut self, storage: &mut impl Storage, all: bool) -> Result<()> {
        while self.reports.len() < WINDOW {
            memory::reserve_queue(&mut self.reports, 1)?;
            // A snapshot that has not begun will not show what was dropped.
            let told = |(_, newest): &(Position, u64)| self.wanted || self.snapshot.is_none() && self.facts >= *newest;
            if let Some((position, _)) = self.applied.filter(told) {
                self.applied = None;
                self.reports.push_back(Applied { position }.into());
            } else if !all {
                return Ok(());
            } else if self.wanted {
                self.wanted = false;
                (self.snapshot, self.ends, self.facts) = (Some(0), None, storage.newest());
            } else if let Some(snapshot) = self.snapshot {
                let mut part = storage.part(snapshot, OBJECTS)?;
                name_all(&mut part.live)?;
                self.reports.push_back(Range { from: part.from, to: part.to, live: part.live }.into());
                self.snapshot = part.next;
                if part.next.is_none() {
                    self.ends = Some(storage.newest());
                }
                // It may be one more than there should be under way.
                memory::reserve_queue(&mut self.reports, 1)?;
                self.tell_facts(storage)?;
            } else if self.ends.is_some_and(|newest| self.facts >= newest) {
                self.ends = None;
                self.reports.push_back(SnapshotEnd { facts: self.facts }.into());
            } else if !self.tell_facts(storage)? {
                match self.notes.pop_front() {
                    Some(note) => self.reports.push_back(note),
                    None => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// Tells some facts, or that it takes a snapshot. Gives whether there was something to tell; there is room for a report.
    fn tell_facts(&mut self, storage: &mut impl Storage) -> Result<bool> {
        match storage.facts(self.facts, FACTS)? {
            Tail::Overwritten => self.wanted = true,
            Tail::Facts(mut facts) if !facts.is_empty() => {
                facts.truncate(fitting(&facts));
                facts.iter_mut().try_for_each(name)?;
                let first = self.facts + 1;
                self.facts += facts.len() as u64;
                self.reports.push_back(Facts { first, facts }.into());
            }
            Tail::Facts(_) => return Ok(false),
        }
        Ok(true)
    }
}

/// What a node has, as others call it. What nobody calls anything is as if it were not there: it has the id of a striped put, from
/// before there were any, and is no stub.
fn name_all(live: &mut Vec<Published>) -> Result<()> {
    let mut named = memory::with_capacity(live.len())?;
    for published in live.drain(..) {
        if let Some(key) = published.key.outer(published.put)? {
            named.push(Published { key, ..published });
        }
    }
    *live = named;
    Ok(())
}

/// The same of a fact.
fn name(fact: &mut Fact) -> Result<()> {
    let Fact::Published(published) = fact else { return Ok(()) };
    match published.key.outer(published.put)? {
        Some(key) => published.key = key,
        None => *fact = Retired { index: published.index, epoch: published.epoch }.into(),
    }
    Ok(())
}

/// How many of these facts one report has room for.
fn fitting(facts: &[Fact]) -> usize {
    let mut bytes = 0;
    let size = |fact: &Fact| match fact {
        Fact::Published(Published { key, .. }) => 48 + key.as_bytes().len(),
        Fact::Retired(_) => 16,
    };
    facts
        .iter()
        .take_while(|fact| {
            bytes += size(fact);
            bytes <= ROOM
        })
        .count()
}
