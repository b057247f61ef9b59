//! What the leader alone answers: removes, lookups, segments. It is asked until somebody does.

use super::cx::{Cx, Pause, Reply};
use super::words::Outcome;
use crate::base::status::{NMC_ERR_NOT_FOUND, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE, NMC_OK, nmc_status_t};
use crate::cluster::types::{Millis, Term, cluster_of};
use crate::cluster::wire::Message;

/// See the module.
pub(super) struct Asking {
    what: Message,
    deadline: Millis,
    pause: Pause,
    /// Why there is no answer yet.
    status: nmc_status_t,
    /// The leader that was heard of last when it was asked for.
    asked: Term,
    /// The same of the first time that nobody has said what became of it; 0 if somebody always has, or no leader was known.
    unsure: Term,
}

impl Asking {
    pub(super) fn new(what: Message, deadline: Millis) -> Self {
        Self { what, deadline, pause: Pause::default(), status: NMC_ERR_TIMEOUT, asked: 0, unsure: 0 }
    }

    pub(super) fn is_lookup(&self) -> bool {
        matches!(self.what, Message::Find(_))
    }

    pub(super) fn wake(&self) -> Millis {
        self.pause.until.unwrap_or(self.deadline).min(self.deadline)
    }

    pub(super) fn begin(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        if let Message::Remove(remove) = &self.what {
            cx.shared.cache.forget(&remove.key);
        }
        self.asked = cx.shared.leaders.term();
        // What waits for others is answered only when they have.
        let waits = matches!(self.what, Message::Remove(_) | Message::RemoveAll(_));
        let patience = if waits { 4 } else { 1 } * cx.shared.config.master_ms;
        let what = match &self.what {
            Message::Find(find) => find.copy().map(Into::into),
            few => Ok(few.clone()),
        };
        match what {
            Ok(what) => cx.ask_master_for(0, patience, self.deadline, what),
            Err(error) => return self.reply(Reply::Failed(error.status), cx),
        }
        None
    }

    pub(super) fn reply(&mut self, reply: Reply, cx: &mut Cx<'_>) -> Option<Outcome> {
        match reply {
            // A leader that has died since may have removed it, and no other one knows of that. It is gone, as was asked, unless the answer is
            // another cluster's, whose nodes have yet to come.
            Reply::Message(Message::Answer(answer))
                if answer.status == NMC_ERR_NOT_FOUND
                    && self.unsure != 0
                    && cluster_of(self.unsure) == cluster_of(answer.term)
                    && matches!(self.what, Message::Remove(_)) =>
            {
                return Some(Outcome::of(NMC_OK));
            }
            Reply::Message(Message::Answer(answer)) if answer.status != NMC_ERR_UNAVAILABLE => {
                let outcome = Outcome { count: answer.count, ..Outcome::of(answer.status) };
                return Some(Outcome { reply: Some(Box::new(answer.into())), ..outcome });
            }
            Reply::Message(message @ (Message::Found(_) | Message::Segments(_) | Message::Keys(_))) => {
                let settled = self.learn(&message, cx);
                if settled || cx.now >= self.deadline {
                    return Some(Outcome { reply: Some(Box::new(message)), ..Outcome::of(NMC_OK) });
                }
                self.status = NMC_ERR_UNAVAILABLE;
            }
            Reply::Failed(status) => return Some(Outcome::of(status)),
            Reply::Message(_) => self.status = NMC_ERR_UNAVAILABLE,
            _ if self.unsure == 0 => self.unsure = self.asked,
            _ => {}
        }
        if cx.now >= self.deadline {
            return Some(Outcome::of(self.status));
        }
        self.pause.begin(cx.now);
        None
    }

    /// Remembers where keys are. Gives whether all that was asked for is known.
    fn learn(&self, message: &Message, cx: &mut Cx<'_>) -> bool {
        let (Message::Find(find), Message::Found(found)) = (&self.what, message) else { return true };
        for (key, listed) in find.keys.iter().zip(&found.keys).filter(|(_, listed)| listed.status == NMC_OK) {
            cx.shared.cache.enter(key, &listed.replicas);
        }
        found.keys.iter().all(|listed| listed.status != NMC_ERR_UNAVAILABLE)
    }

    pub(super) fn tick(&mut self, cx: &mut Cx<'_>) -> Option<Outcome> {
        if cx.now >= self.deadline {
            return Some(Outcome::of(self.status));
        }
        if self.pause.over(cx.now) {
            return self.begin(cx);
        }
        None
    }
}
