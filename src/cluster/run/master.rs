//! A master and its connections, on a thread of their own. Others in the process speak to it through a [`Handle`]: as a client would
//! that has connected, or by looking at it between two events.

use super::TURN;
use super::acks::Acks;
use super::mailbox::Mailbox;
use super::times::{Timer, Times};
use crate::base::error::Result;
use crate::base::status::{NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE};
use crate::cluster::directory::{Action, Change, Event, Master};
use crate::cluster::net::{Heard, Limits, Listener, Net, Ready, now_ms, now_ns};
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
pub struct Handle {
    mailbox: Arc<Mailbox<Mail>>,
    times: Arc<Times>,
}

impl Handle {
    fn post(&self, mail: Mail) {
        self.mailbox.post(mail);
    }

    /// How long the calls of those take who have connected, and not of callers in this process.
    #[must_use]
    pub fn times(&self) -> &Times {
        &self.times
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
        let times = Arc::new(Times::default());
        let handle = Handle { mailbox: Arc::clone(&mailbox), times: Arc::clone(&times) };
        let running = Running {
            began: now_ms(),
            master,
            net,
            mailbox,
            recorder,
            inside: HashMap::new(),
            next: 0,
            actions: Vec::new(),
            acks: Acks::default(),
            timer: Timer::new(times),
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
    acks: Acks,
    timer: Timer,
}

impl Running {
    fn run(mut self) {
        let poller = self.net.poller();
        let mut ready = Vec::new();
        let mut due: Millis = 0;
        loop {
            let until = self.acks.due().map_or(due, |moment| moment.min(due));
            let limit = if self.net.is_busy() { 0 } else { until.saturating_sub(now_ms()) };
            ready.clear();
            poller.wait(Duration::from_millis(limit), &mut ready);
            self.net.ready(&ready);
            if !self.read_mail(&ready) {
                return self.end();
            }
            for _ in 0..TURN {
                // The time of each: the process may sleep between two, and the lease may end.
                match self.net.hear() {
                    Some(Heard::Frame(peer, frame)) => {
                        let now = self.now();
                        self.timer.begins(peer, &frame);
                        self.tell(Event::Message(peer, frame), now);
                    }
                    Some(Heard::Closed(peer)) => {
                        let now = self.now();
                        self.timer.closed(peer);
                        self.acks.take(peer);
                        self.tell(Event::Closed(peer), now);
                    }
                    Some(_) => {}
                    None => break,
                }
            }
            let now = self.now();
            if now >= due {
                self.tell(Event::Tick, now);
                self.net.end_stalled();
                self.end_late(now);
                self.timer.end_late();
                due = self.master.wake(now);
            }
            while let Some((to, frame)) = self.acks.next(now) {
                self.send(to, &frame);
            }
            self.net.flush();
        }
    }

    /// The time, which is also when what was handled last has ended.
    fn now(&mut self) -> Millis {
        let now = now_ns();
        self.timer.tick(now);
        now / 1_000_000
    }

    fn read_mail(&mut self, ready: &[Ready]) -> bool {
        for mail in self.mailbox.take(ready) {
            // The time of each: the lease may end while they are read.
            let now = self.now();
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
                    self.timer.answers(to, &frame);
                    for frame in self.acks.pass(to, frame, now).iter().flatten() {
                        self.send(to, frame);
                    }
                }
                Action::Record(number, changes) => (self.recorder)(number, changes),
            }
        }
        self.actions = actions;
    }

    fn send(&mut self, to: Peer, frame: &Frame) {
        if let Err(error) = self.net.send(to, frame) {
            let answer = Answer::new(0, error.status, error.message);
            let _ = self.net.send(to, &Frame::answering(frame.request, answer));
        }
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
