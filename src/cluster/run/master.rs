//! A master and its connections, on a thread of their own. Others in the process speak to it through a [`Handle`]: as a client would
//! that has connected, or by looking at it between two events.

use super::TURN;
use super::mailbox::Mailbox;
use crate::base::error::Result;
use crate::base::status::{NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE};
use crate::cluster::directory::{Action, Change, Event, Master};
use crate::cluster::net::{Heard, Limits, Listener, Net, Ready, now_ms};
use crate::cluster::types::{Millis, Peer, incarnation_of};
use crate::cluster::wire::{Answer, Frame, Message};
use crate::sync::service_thread;
use rustls::ServerConnection;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Peers above this are callers in this process.
const INSIDE: u64 = 1 << 60;

/// What is called with an answer.
pub type Answered = Box<dyn FnOnce(Message) + Send>;
/// What looks at a master.
pub type Looking = Box<dyn FnOnce(&Master, Millis) + Send>;
/// What writes changes down, all or none, and then tells the master by the number: [`Event::Recorded`].
pub type Recorder = Box<dyn FnMut(u64, Vec<Change>) + Send>;

enum Mail {
    Event(Event),
    Call(u32, Box<Message>, Answered),
    Look(Looking),
    Link(OwnedFd, Option<Box<ServerConnection>>),
    Stop,
}

/// Speaks to a master in this process.
#[derive(Clone)]
pub struct Handle(Arc<Mailbox<Mail>>);

impl Handle {
    fn post(&self, mail: Mail) {
        self.0.post(mail);
    }

    /// Tells the master that it leads, or what was written down.
    pub fn tell(&self, event: Event) {
        self.post(Mail::Event(event));
    }

    /// Says something as a client that has connected would. It is answered once, with TIMEOUT if nothing came in time.
    pub fn call(&self, time_left_ms: u32, message: impl Into<Message>, answer: Answered) {
        self.post(Mail::Call(time_left_ms, Box::new(message.into()), answer));
    }

    /// Looks at the master between two events.
    pub fn look(&self, look: Looking) {
        self.post(Mail::Look(look));
    }

    /// Hands over somebody who has connected elsewhere and is going to send frames, and has shown its certificate there if one is wanted. The
    /// socket does not block.
    pub fn adopt(&self, socket: OwnedFd, tls: Option<Box<ServerConnection>>) {
        self.post(Mail::Link(socket, tls));
    }

    /// Ends it.
    pub fn stop(&self) {
        self.post(Mail::Stop);
    }
}

/// A master that runs.
pub struct Service {
    thread: JoinHandle<()>,
}

impl Service {
    /// Begins to serve whoever connects. The master leads when it is told so.
    pub fn start(
        master: Master,
        listeners: Vec<Listener>,
        limits: Limits,
        recorder: Recorder,
    ) -> Result<(Self, Handle)> {
        let mut net = Net::new(limits)?;
        for listener in listeners {
            net.listen(listener)?;
        }
        let mailbox = Arc::new(Mailbox::new(&net)?);
        let handle = Handle(Arc::clone(&mailbox));
        let running = Running {
            began: now_ms(),
            master,
            net,
            mailbox,
            recorder,
            inside: HashMap::new(),
            next: 0,
            actions: Vec::new(),
        };
        let thread = service_thread::spawn(c"nmc-directory", None, move || running.run())?;
        Ok((Self { thread }, handle))
    }

    /// Waits until it has ended.
    pub fn join(self) {
        let _ = self.thread.join();
    }
}

/// As long as a process runs no longer than this nothing that has come is old.
const YOUNG_MS: Millis = 1_000;

struct Running {
    /// When it began to listen.
    began: Millis,
    master: Master,
    net: Net,
    mailbox: Arc<Mailbox<Mail>>,
    recorder: Recorder,
    /// Callers in this process that wait for an answer, and until when.
    inside: HashMap<u64, (Millis, Answered)>,
    next: u64,
    actions: Vec<Action>,
}

impl Running {
    fn run(mut self) {
        let poller = self.net.poller();
        let mut ready = Vec::new();
        let mut due: Millis = 0;
        loop {
            let limit = if self.net.is_busy() { 0 } else { due.saturating_sub(now_ms()) };
            ready.clear();
            poller.wait(Duration::from_millis(limit), &mut ready);
            self.net.ready(&ready);
            if !self.read_mail(&ready) {
                return self.end();
            }
            for _ in 0..TURN {
                // The time of each: the process may sleep between two, and the lease may end.
                match self.net.hear() {
                    Some(Heard::Frame(peer, frame)) => self.tell(Event::Message(peer, frame), now_ms()),
                    Some(Heard::Closed(peer)) => self.tell(Event::Closed(peer), now_ms()),
                    Some(_) => {}
                    None => break,
                }
            }
            let now = now_ms();
            if now >= due {
                self.tell(Event::Tick, now);
                self.net.end_stalled();
                self.end_late(now);
                due = self.master.wake(now);
            }
            self.net.flush();
        }
    }

    fn read_mail(&mut self, ready: &[Ready]) -> bool {
        for mail in self.mailbox.take(ready) {
            // The time of each: the lease may end while they are read.
            let now = now_ms();
            match mail {
                Mail::Event(event) => {
                    if matches!(event, Event::Elected(_)) && now > self.began + YOUNG_MS {
                        // What came before this was not for a leader, and may be old: of a node's former life, if this process slept. All ask again.
                        self.net.close_all();
                    }
                    self.tell(event, now);
                }
                Mail::Call(time_left_ms, message, answer) => {
                    self.next += 1;
                    self.inside.insert(self.next, (now + Millis::from(time_left_ms), answer));
                    let frame = Frame { request: 1, time_left_ms, message: *message };
                    self.tell(Event::Message(Peer(INSIDE + self.next), frame), now);
                }
                Mail::Look(look) => look(&self.master, now),
                Mail::Link(socket, tls) => self.net.adopt_from(socket, tls),
                Mail::Stop => return false,
            }
        }
        true
    }

    fn tell(&mut self, mut event: Event, now: Millis) {
        if let Event::Message(_, frame) = &mut event
            && let Some(incarnation) = frame.message.own_incarnation()
        {
            *incarnation = incarnation_of(*incarnation);
        }
        let mut actions = std::mem::take(&mut self.actions);
        self.master.on(event, now, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Send(to, frame) if to.0 > INSIDE => {
                    if let Some((_, answer)) = self.inside.remove(&(to.0 - INSIDE)) {
                        answer(frame.message);
                    }
                }
                Action::Send(to, frame) => {
                    if let Err(error) = self.net.send(to, &frame) {
                        let answer = Answer::new(0, error.status, error.message);
                        let _ = self.net.send(to, &Frame::answering(frame.request, answer));
                    }
                }
                Action::Record(number, changes) => (self.recorder)(number, changes),
            }
        }
        self.actions = actions;
    }

    fn end_late(&mut self, now: Millis) {
        for (_, (_, answer)) in self.inside.extract_if(|_, (until, _)| *until <= now) {
            answer(Answer::new(0, NMC_ERR_TIMEOUT, "the directory did not answer in time").into());
        }
    }

    fn end(&mut self) {
        for (_, (_, answer)) in self.inside.drain() {
            answer(Answer::new(0, NMC_ERR_UNAVAILABLE, "the master is ending").into());
        }
    }
}
