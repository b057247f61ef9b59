//! Emptying a segment, until nothing is left or for as long as one waits, and giving that up.

use super::Cluster;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::status::{
    NMC_ERR_NOT_FOUND, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE, NMC_IN_PROGRESS, NMC_OK, nmc_status_t,
};
use crate::cluster::client::{Call, Outcome};
use crate::cluster::wire::{Drain, Message};
use std::time::{Duration, Instant};

/// How long whoever waits for a drain lets the leader work before it asks again: first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));
/// The last question has this time, if the caller's is over.
const LAST: Duration = Duration::from_secs(1);
/// A new leader may not know a segment for so long that there was with the former one.
const UNKNOWN: Duration = Duration::from_secs(10);

/// How far a drain is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drained {
    /// OK if nothing is left, else `NMC_IN_PROGRESS`.
    pub status: nmc_status_t,
    /// Objects that are left, as far as that is known.
    pub left: u64,
    /// What is left, in words; empty if nothing is.
    pub what: String,
}

impl Drained {
    fn of(segment: &str, outcome: &Outcome) -> Self {
        let named = match outcome.reply.as_deref() {
            Some(Message::Answer(answer)) => answer.text.as_str(),
            _ => "",
        };
        let what = match (outcome.status, outcome.count) {
            (NMC_IN_PROGRESS, 0) => format!(
                "segment \"{segment}\" is being emptied: what it has is being looked at, or a put that had begun has not ended"
            ),
            (NMC_IN_PROGRESS, 1) => {
                format!("segment \"{segment}\" is being emptied: 1 object is nowhere else yet: {named}")
            }
            (NMC_IN_PROGRESS, left) => {
                format!("segment \"{segment}\" is being emptied: {left} objects are nowhere else yet: {named}")
            }
            _ => String::new(),
        };
        Self { status: outcome.status, left: outcome.count, what }
    }
}

impl Cluster {
    /// A segment takes nothing more, its own node's values neither, and what is only there is copied elsewhere. Waits so long until nothing is left
    /// to copy, also while another master takes the lead; says how far it has come.
    pub fn drain(&self, segment: &str, limit: Duration) -> Result<Drained> {
        let (until, mut pause) = (Deadline::after(limit), PAUSES.0);
        let (mut patience, mut known) = (self.config.patience, None::<Instant>);
        loop {
            let ask = Drain { segment: segment.to_string(), cancel: false };
            let call = Call::Ask(Box::new(ask.into()));
            let told = self.ask_within(call, self.scope(&Deadline::after(patience)));
            let goes_on = |status| match status {
                NMC_ERR_NOT_FOUND => known.is_some_and(|known| known.elapsed() < UNKNOWN),
                // Somebody may lead a moment later.
                _ => matches!(status, NMC_ERR_UNAVAILABLE | NMC_ERR_TIMEOUT),
            };
            match told.map(|outcome| Drained::of(segment, &outcome)) {
                Err(error) if until.passed() || !goes_on(error.status) => return Err(error),
                Ok(drained) if until.passed() || drained.status == NMC_OK => return Ok(drained),
                Ok(_) => known = Some(Instant::now()),
                Err(_) => {}
            }
            // A client that is being closed ends the next question.
            std::thread::sleep(pause.min(until.left()));
            pause = (pause * 2).min(PAUSES.1);
            patience = self.config.patience.min(until.left().max(LAST));
        }
    }

    /// It is not to be emptied any more, and takes values again.
    pub fn undrain(&self, segment: &str) -> Result<()> {
        let drain = Drain { segment: segment.to_string(), cancel: true };
        self.ask(Call::Ask(Box::new(drain.into()))).map(drop)
    }
}
