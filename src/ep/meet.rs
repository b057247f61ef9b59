//! How ranks come together to make a group. Each shows a fresh number and what it wants, and answers the numbers of the
//! others; it goes on when all have answered its own. Nobody takes an old group's words for a new one's, since numbers
//! are never shown twice.

use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_MISMATCH, NMC_ERR_PEER_LOST, NMC_ERR_TIMEOUT};
use crate::base::{Deadline, id};
use crate::world::{Membership, RankState};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// Fields that fit a meeting, with their names.
pub type Fields = Vec<(&'static str, u64)>;

const NAP: Duration = Duration::from_micros(200);
/// How long a rank that found a difference stays, so that those who come a little later learn of it, too.
const STAY: Duration = Duration::from_secs(1);

/// Low bits of a number: the round of the meeting it was shown in.
const ROUND: u64 = 3;
/// The round in which fields are compared. Nobody leaves it for another group before all have come to the next one; who
/// has answered in the last round may be somewhere else already, with other fields.
const FIRST: u64 = 1;

/// Meets the other `members` in `round`, 1 to 3, for several ranks of this process at once. Fails with the first field that
/// differs, with a rank that has died, or with one that did not come by `deadline`.
pub fn meet(own: &[&Membership], members: &[u32], fields: &Fields, round: u64, deadline: &Deadline) -> Result<()> {
    let mut nonces = Vec::with_capacity(own.len());
    for member in own {
        let nonce = id::random_u64()? & !ROUND | round;
        if let Some(mine) = member.ep_meeting(member.rank()) {
            for (place, (_, value)) in mine.fields.iter().zip(fields) {
                place.store(*value, Relaxed);
            }
            mine.nonce.value.store(nonce, Release);
        }
        nonces.push(nonce);
    }
    let mut differs: Option<(Error, Deadline)> = None;
    loop {
        let mut missing = None;
        for (member, nonce) in own.iter().zip(&nonces) {
            for peer in members.iter().filter(|peer| **peer != member.rank()) {
                match answered(member, *nonce, *peer, fields) {
                    Ok(true) => {}
                    Ok(false) => missing = Some((*member, *peer)),
                    Err(error) if differs.is_none() => differs = Some((error, Deadline::after(STAY))),
                    Err(_) => {}
                }
            }
        }
        let stays =
            differs.as_ref().is_some_and(|(_, until)| missing.is_some() && !until.passed() && !deadline.passed());
        if let Some((error, _)) = differs.take_if(|_| !stays) {
            return Err(error);
        }
        let Some((member, peer)) = missing else { return Ok(()) };
        member.check_present()?;
        let (state, _) = member.holder(peer);
        // A rank that has not come to the world yet, or comes back, may still appear.
        if matches!(state, RankState::Dying | RankState::Left) {
            return Err(Error::new(NMC_ERR_PEER_LOST, format!("rank {peer} is {state:?} and cannot be in a group")));
        }
        if deadline.passed() {
            return Err(Error::new(
                NMC_ERR_TIMEOUT,
                format!("rank {peer} did not come to make the group in time; all members make it together"),
            ));
        }
        std::thread::sleep(NAP);
    }
}

/// Answers `peer`, and tells whether it has answered `nonce`.
fn answered(member: &Membership, nonce: u64, peer: u32, fields: &Fields) -> Result<bool> {
    let (Some(mine), Some(theirs)) = (member.ep_meeting(member.rank()), member.ep_meeting(peer)) else {
        return Ok(false);
    };
    let place = |from: u32| from as usize % crate::layout::MAX_RANKS;
    // In this order: who has answered has shown its own number before, so that it gets its answer now at the latest.
    let has_answered = mine.seen[place(peer)].load(Acquire) == nonce;
    let shown = theirs.nonce.value.load(Acquire);
    // Who is in the next round already has had the answer of this one; who is still in the last one must not take an
    // answer from here for one of this round.
    if shown & ROUND == nonce & ROUND {
        theirs.seen[place(member.rank())].store(shown, Release);
    }
    if has_answered && nonce & ROUND == FIRST {
        for (place, (name, value)) in theirs.fields.iter().zip(fields) {
            let other = place.load(Relaxed);
            if other != *value {
                return Err(Error::new(
                    NMC_ERR_MISMATCH,
                    format!("{name} is {value} here and {other} on rank {peer}; all ranks of a group must agree"),
                ));
            }
        }
    }
    Ok(has_answered)
}
