//! How ranks come together to make a group. Each shows a fresh number and what it wants, and answers the numbers of the
//! others (it *agrees*); when all have answered its own and want the same, it prepares its memory and shows a number made of
//! all those numbers (it is *ready*), and goes on when all show the same one and have said that they saw it.
//!
//! Who learns of a difference tells all others, in the place of its answer, also those who come a little later, and stays until
//! all have told it. Two ranks tell each other's numbers, so that a difference ends exactly one attempt of each: who is still
//! leaving its last attempt when others are told of the next difference is waited for, and told when it comes again. Then they
//! may come again at once, with other numbers; who is ready with an old one goes back and agrees anew.
//!
//! Nobody takes an old group's words for a new one's, since numbers are never shown by two attempts. If one rank goes on,
//! all do: it has seen that all were ready with the same numbers, and one of them goes back only for a number that is
//! another, from a rank that has not answered it; who goes on has answered all.

use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_MISMATCH, NMC_ERR_PEER_LOST, NMC_ERR_TIMEOUT};
use crate::base::{Deadline, id};
use crate::layout::world::EpMeeting;
use crate::world::{Membership, RankState};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use std::time::Duration;

/// Fields that fit a meeting, with their names. The first one that differs is reported.
pub(super) type Fields = Vec<(&'static str, u64)>;
/// Name of the field with the members; most others follow from it.
pub(super) const MEMBERS: &str = "members";

const NAP: Duration = Duration::from_micros(200);
/// How long a rank that knows of a difference stays at most, so that the others learn of it, too.
const STAY: Duration = Duration::from_secs(1);

/// Low bits of a number: what whoever shows it is doing.
const DOING: u64 = 3;
const AGREES: u64 = 1;
const READY: u64 = 2;
/// In the place of an answer: there is a difference; see [`Told`].
const DIFFERS: u64 = 3;

/// A field of a rank that is not what others want.
#[derive(Clone, Copy)]
struct Odd {
    rank: u32,
    field: usize,
}

/// A difference that a rank was told of, and by which attempt of the other. As a word: the upper half of the number of whom it
/// tells, the tag of the number of who tells, whose field it is, which one, and [`DIFFERS`].
#[derive(Clone, Copy)]
struct Told {
    odd: Odd,
    by: u64,
}

impl Told {
    fn word(self, whom: u64) -> u64 {
        let (rank, field) = (u64::from(self.odd.rank & 0xff), self.odd.field as u64 & 0x3f);
        whom >> 32 << 32 | self.by << 16 | rank << 8 | field << 2 | DIFFERS
    }

    /// What whoever shows `number` was told with `word`, if it was.
    fn of(word: u64, number: u64) -> Option<Self> {
        #[allow(clippy::cast_possible_truncation, reason = "8 and 6 bits")]
        let odd = Odd { rank: (word >> 8 & 0xff) as u32, field: (word >> 2 & 0x3f) as usize };
        (does(word, DIFFERS) && word >> 32 == number >> 32).then_some(Self { odd, by: word >> 16 & 0xffff })
    }
}

/// What tells the attempts of a rank apart. The next one has the same in one of 65,536 cases; then a rank may have to try again.
fn tag(number: u64) -> u64 {
    number >> 48
}

fn does(number: u64, what: u64) -> bool {
    number & DOING == what
}

/// Meets the other `members` for several ranks of this process at once. `prepare` runs between agreeing and being ready, again
/// if it has to agree anew. Fails with the first field that differs, with a rank that has died, or with one that did not come
/// by `deadline`.
pub(super) fn meet(
    own: &[&Membership],
    members: &[u32],
    fields: &Fields,
    deadline: &Deadline,
    mut prepare: impl FnMut() -> Result<()>,
) -> Result<()> {
    let Some(first) = own.first() else { return Ok(()) };
    let mut meeting =
        Meeting { own, first, members, fields, numbers: Vec::new(), known: vec![0; members.len()], deadline };
    meeting.begin()?;
    let met = loop {
        match meeting.agree().and_then(|()| prepare()).and_then(|()| meeting.ready()) {
            Ok(true) => break Ok(()),
            Ok(false) => {}
            Err(error) => break Err(error),
        }
    };
    // What is left there is not to be taken for somebody who waits.
    met.inspect_err(|_| meeting.show_all(0))
}

struct Meeting<'a> {
    own: &'a [&'a Membership],
    first: &'a Membership,
    members: &'a [u32],
    fields: &'a Fields,
    /// What each of the own ranks shows while it agrees.
    numbers: Vec<u64>,
    /// What each member showed when it agreed and was answered, or 0.
    known: Vec<u64>,
    deadline: &'a Deadline,
}

impl Meeting<'_> {
    fn words(&self, rank: u32) -> Option<&EpMeeting> {
        self.first.ep_meeting(rank)
    }

    fn is_own(&self, rank: u32) -> bool {
        self.own.iter().any(|member| member.rank() == rank)
    }

    /// Number of each member that is not of this process, in the list of members.
    fn peers(&self) -> impl Iterator<Item = (usize, u32)> {
        self.members.iter().copied().enumerate().filter(|(_, rank)| !self.is_own(*rank))
    }

    fn shown(&self, rank: u32) -> u64 {
        self.words(rank).map_or(0, |words| words.nonce.value.load(Acquire))
    }

    fn show(&self, rank: u32, number: u64) {
        if let Some(words) = self.words(rank) {
            words.nonce.value.store(number, Release);
        }
    }

    fn show_numbers(&self) {
        self.own.iter().zip(&self.numbers).for_each(|(member, number)| self.show(member.rank(), *number));
    }

    fn show_all(&self, number: u64) {
        self.own.iter().for_each(|member| self.show(member.rank(), number));
    }

    /// Where `of` sees what `by` answers.
    fn place(&self, of: u32, by: u32) -> Option<&AtomicU64> {
        self.words(of)?.seen.get(by as usize)
    }

    /// Tells `peer` that all own ranks have seen `number` of it. Who was told of a difference is not to be answered any more.
    fn answer(&self, peer: u32, number: u64) {
        for place in self.own.iter().filter_map(|member| self.place(peer, member.rank())) {
            if Told::of(place.load(Relaxed), number).is_none() {
                place.store(number, Release);
            }
        }
    }

    /// What `peer` has told each own rank, in this attempt, of a difference.
    fn told_by(&self, peer: u32) -> impl Iterator<Item = Option<Told>> {
        let place = move |member: &Membership| self.place(member.rank(), peer).map_or(0, |place| place.load(Acquire));
        self.own.iter().zip(&self.numbers).map(move |(member, number)| Told::of(place(member), *number))
    }

    /// Tells `peer`, which shows or showed `number`. What an earlier attempt of this process has told it there stays.
    fn tell(&self, odd: Odd, peer: u32, number: u64) {
        for (member, own) in self.own.iter().zip(&self.numbers) {
            let Some(place) = self.place(peer, member.rank()) else { continue };
            if number != 0 && Told::of(place.load(Relaxed), number).is_none() {
                place.store(Told { odd, by: tag(*own) }.word(number), Release);
            }
        }
    }

    /// Fails if somebody has told of a difference.
    fn check_told(&mut self) -> Result<()> {
        let told = self.peers().find_map(|(_, peer)| self.told_by(peer).flatten().next().map(|told| (told.odd, peer)));
        let Some((odd, by)) = told else { return Ok(()) };
        let (odd, error) = self.explain(odd, by);
        Err(self.differ(odd, error))
    }

    /// Whether `peer` has answered each own rank, of which `number` tells what it shows.
    fn has_answered(&self, peer: u32, number: impl Fn(usize) -> u64) -> bool {
        self.own
            .iter()
            .enumerate()
            .all(|(i, member)| self.place(member.rank(), peer).is_some_and(|place| place.load(Acquire) == number(i)))
    }

    fn begin(&mut self) -> Result<()> {
        for member in self.own {
            let number = id::random_u64()? & !DOING | AGREES;
            if let Some(mine) = member.ep_meeting(member.rank()) {
                // Nobody takes the new fields for those of the old number.
                mine.nonce.value.store(0, Relaxed);
                fence(Release);
                for (place, (_, value)) in mine.fields.iter().zip(self.fields) {
                    place.store(*value, Relaxed);
                }
            }
            self.numbers.push(number);
            if let Some(at) = self.members.iter().position(|rank| *rank == member.rank()) {
                self.known[at] = number;
            }
        }
        Ok(())
    }

    /// Returns when all want the same and know it of each other.
    fn agree(&mut self) -> Result<()> {
        self.show_numbers();
        loop {
            self.check_told()?;
            let mut missing = None;
            for (at, peer) in self.peers().collect::<Vec<_>>() {
                // In this order: who has answered has shown its own number before, so that it gets its answer now at
                // the latest.
                let answered = self.has_answered(peer, |i| self.numbers[i]);
                let shown = self.shown(peer);
                if does(shown, AGREES) {
                    self.answer(peer, shown);
                    self.known[at] = shown;
                }
                // Before it has answered, its words may be those of an old group.
                match if answered { self.difference(peer, shown) } else { Same::Unsure } {
                    Same::No(field) => {
                        let (odd, error) = self.explain(Odd { rank: peer, field }, peer);
                        return Err(self.differ(odd, error));
                    }
                    Same::Yes if self.known[at] != 0 => {}
                    Same::Yes | Same::Unsure => missing = Some(peer),
                }
            }
            let Some(peer) = missing else { return Ok(()) };
            self.wait_for(peer)?;
        }
    }

    /// Returns when all are ready, or false if somebody has begun anew.
    fn ready(&mut self) -> Result<bool> {
        let bytes: Vec<u8> = self.known.iter().flat_map(|number| number.to_le_bytes()).collect();
        let number = xxhash_rust::xxh64::xxh64(&bytes, 0) & !DOING | READY;
        self.show_all(number);
        loop {
            self.check_told()?;
            let mut missing = None;
            for (at, peer) in self.peers().collect::<Vec<_>>() {
                let answered = self.has_answered(peer, |_| number);
                let shown = self.shown(peer);
                if shown == number {
                    self.answer(peer, number);
                }
                if answered {
                    continue;
                }
                if does(shown, AGREES) && shown != self.known[at] {
                    return Ok(false);
                }
                missing = Some(peer);
            }
            let Some(peer) = missing else { return Ok(true) };
            self.wait_for(peer)?;
        }
    }

    /// Sleeps a little, unless there is no point in waiting for `peer`.
    fn wait_for(&self, peer: u32) -> Result<()> {
        self.own.iter().try_for_each(|member| member.check_present())?;
        let (state, _) = self.first.holder(peer);
        // A rank that has not come to the world yet, or comes back, may still appear.
        if matches!(state, RankState::Dying | RankState::Left) {
            return Err(Error::new(NMC_ERR_PEER_LOST, format!("rank {peer} is {state:?} and cannot be in a group")));
        }
        if self.deadline.passed() {
            return Err(Error::new(
                NMC_ERR_TIMEOUT,
                format!("rank {peer} did not come to make the group in time; all members make it together"),
            ));
        }
        std::thread::sleep(NAP);
        Ok(())
    }

    /// The first field in which `peer`, which shows `shown`, differs from this process.
    fn difference(&self, peer: u32, shown: u64) -> Same {
        let Some(theirs) = self.words(peer) else { return Same::Unsure };
        let differs = theirs
            .fields
            .iter()
            .zip(self.fields)
            .enumerate()
            .find_map(|(field, (place, (_, value)))| (place.load(Relaxed) != *value).then_some(Same::No(field)));
        fence(Acquire);
        // It may have begun anew meanwhile.
        if self.shown(peer) == shown && shown != 0 { differs.unwrap_or(Same::Yes) } else { Same::Unsure }
    }

    /// Which field of which rank is another than here, and the error that says so. Rank `by` found it, and may itself be that
    /// rank, seen from here.
    fn explain(&self, odd: Odd, by: u32) -> (Odd, Error) {
        let (name, mine) = self.fields.get(odd.field).copied().unwrap_or(("a field", 0));
        let value = |rank: u32| Some((rank, self.words(rank)?.fields.get(odd.field)?.load(Relaxed)));
        let other = [odd.rank, by].into_iter().filter_map(value).find(|(_, value)| *value != mine);
        let (rank, what) = match other {
            Some((rank, value)) => {
                (rank, format!("{name} is {} here and {} on rank {rank}", shown_as(name, mine), shown_as(name, value)))
            }
            // It has come again meanwhile, with what the others want.
            None => {
                let mine = shown_as(name, mine);
                (odd.rank, format!("{name} is {mine} here and was another on rank {}, as rank {by} found", odd.rank))
            }
        };
        (Odd { rank, ..odd }, Error::new(NMC_ERR_MISMATCH, what + "; all ranks of a group must agree"))
    }

    /// Tells all others of a difference, as far as they come within a while, and gives `error` back when they have told
    /// this process as well.
    fn differ(&mut self, odd: Odd, error: Error) -> Error {
        self.show_numbers();
        let peers: Vec<(usize, u32)> = self.peers().collect();
        let until = Deadline::after(STAY);
        loop {
            let mut all_know = true;
            for (at, peer) in peers.iter().copied() {
                // In this order: who has left its attempt, and shows another, has told before.
                let shown = self.shown(peer);
                let by = self.told_by(peer).reduce(|all, told| all.and(told)).flatten().map(|told| told.by);
                // The attempt that told is the one to be told, and stays until it is; before, whichever is there.
                let told_us = |number: u64| number != 0 && by == Some(tag(number));
                if does(shown, AGREES) && (by.is_none() || told_us(shown)) {
                    self.known[at] = shown;
                }
                self.tell(odd, peer, self.known[at]);
                all_know &= told_us(self.known[at]);
            }
            if all_know || until.passed() || self.deadline.passed() {
                return error;
            }
            std::thread::sleep(NAP);
        }
    }
}

/// A value as the program wrote it: ranks are bits.
fn shown_as(name: &str, value: u64) -> String {
    if name == MEMBERS { format!("{value:#x}") } else { value.to_string() }
}

enum Same {
    Yes,
    /// The field.
    No(usize),
    /// Its words are changing.
    Unsure,
}
