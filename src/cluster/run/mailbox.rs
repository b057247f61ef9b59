//! What others in the process have to say to a loop: a queue, and what wakes its thread.

use crate::base::error::Result;
use crate::base::queue::Queue;
use crate::cluster::net::{Net, Ready, WAKE};
use crate::rpc::Event;
use parking_lot::Mutex;
use std::os::fd::AsFd;

/// See the module.
pub(super) struct Mailbox<T> {
    mail: Mutex<Queue<T>>,
    wake: Event,
}

impl<T> Mailbox<T> {
    /// One that wakes whoever waits for these connections.
    pub(super) fn new(net: &Net) -> Result<Self> {
        let wake = Event::new()?;
        net.poller().add(&wake.as_fd(), WAKE, false)?;
        Ok(Self { mail: Mutex::new(Queue::new()), wake })
    }

    /// Puts something in.
    pub(super) fn post(&self, mail: T) {
        self.mail.lock().push(mail);
        self.wake.signal();
    }

    /// Takes everything out, if that is why the thread is awake.
    pub(super) fn take(&self, ready: &[Ready]) -> Queue<T> {
        if !ready.iter().any(|ready| ready.number == WAKE) {
            return Queue::new();
        }
        // Before the mail is taken: what is posted behind that wakes the thread again.
        self.wake.drain();
        std::mem::take(&mut *self.mail.lock())
    }
}
