//! The directory, as what is asynchronous speaks to it: the thread behind [`Handle`] does the work, and whoever asked is woken with
//! the answer. Nothing here waits otherwise.

use nanomc::base::status::NMC_ERR_UNAVAILABLE;
use nanomc::cluster::directory::Master;
use nanomc::cluster::run::master::Handle;
use nanomc::cluster::run::times::Times;
use nanomc::cluster::types::Millis;
use nanomc::cluster::wire::{Answer, Message};
use tokio::sync::oneshot;

/// See the module.
#[derive(Clone)]
pub struct Directory(Handle);

/// An answer that is to come.
pub type Coming = oneshot::Receiver<Message>;

impl Directory {
    /// The directory behind a handle.
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        Self(handle)
    }

    /// How long the calls of framed clients take.
    #[must_use]
    pub fn times(&self) -> &Times {
        self.0.times()
    }

    /// Asks, as a client that has connected would.
    pub fn begin(&self, time_left_ms: u32, message: impl Into<Message>) -> Coming {
        let (sender, receiver) = oneshot::channel();
        // Who asked may have gone.
        self.0.call(time_left_ms, message, Box::new(move |answer| drop(sender.send(answer))));
        receiver
    }

    /// Waits for an answer. There always is one: also when the directory has ended.
    pub async fn end(coming: Coming) -> Message {
        coming.await.unwrap_or_else(|_| Answer::new(0, NMC_ERR_UNAVAILABLE, "the master is ending").into())
    }

    /// Looks at the master between two events; `None` if it has ended.
    pub async fn look<T: Send + 'static>(&self, look: impl FnOnce(&Master, Millis) -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.0.look(Box::new(move |master, now| drop(sender.send(look(master, now)))));
        receiver.await.ok()
    }
}
