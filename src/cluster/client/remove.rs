//! Removing, from the client's side: ask until somebody answers.

use super::{Cx, Outcome, Pause, Reply};
use crate::base::status::{NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE};
use crate::cluster::types::{Millis, ObjectKey};
use crate::cluster::wire::{Message, Remove, RemoveAll, Space};

enum What {
    Key(Remove),
    All(RemoveAll),
}

/// See the module.
pub(super) struct Removing {
    what: What,
    deadline: Millis,
    pause: Pause,
}

impl Removing {
    pub(super) fn key(key: ObjectKey, wait: bool, call: u64, deadline: Millis) -> Self {
        Self { what: What::Key(Remove { key, wait, call }), deadline, pause: Pause::default() }
    }

    pub(super) fn all(space: Option<Space>, wait: bool, call: u64, deadline: Millis) -> Self {
        Self { what: What::All(RemoveAll { space, wait, call }), deadline, pause: Pause::default() }
    }

    pub(super) fn wake(&self) -> Millis {
        self.pause.until.unwrap_or(self.deadline).min(self.deadline)
    }

    pub(super) fn begin(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        match &self.what {
            What::Key(remove) => {
                cx.shared.cache.forget(&remove.key);
                cx.ask_master_long(self.deadline, remove.clone());
            }
            What::All(all) => cx.ask_master_long(self.deadline, all.clone()),
        }
        None
    }

    pub(super) fn reply(&mut self, reply: Reply, cx: &mut Cx<'_>) -> Option<Outcome> {
        match reply {
            Reply::Message(Message::Answer(answer)) if answer.status != NMC_ERR_UNAVAILABLE => {
                return Some(Outcome { count: answer.count, ..Outcome::of(answer.status) });
            }
            _ if cx.now >= self.deadline => return Some(Outcome::of(NMC_ERR_TIMEOUT)),
            _ => self.pause.begin(cx.now),
        }
        None
    }

    pub(super) fn tick(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        if cx.now >= self.deadline {
            return Some(Outcome::of(NMC_ERR_TIMEOUT));
        }
        if self.pause.over(cx.now) {
            return self.begin(cx);
        }
        None
    }
}

impl Cx<'_> {
    /// Asks for something that waits for others: the leader has the answer only when they have.
    fn ask_master_long(&mut self, deadline: Millis, message: impl Into<Message>) {
        let until = deadline.min(self.now + 4 * self.shared.config.master_ms);
        let request = self.request(0, until, true);
        let time_left_ms = u32::try_from(deadline.saturating_sub(self.now)).unwrap_or(u32::MAX);
        let frame = super::Frame { request, time_left_ms, message: message.into() };
        self.to.push(super::Action::Master(self.shared.leaders.current(), frame));
    }
}
