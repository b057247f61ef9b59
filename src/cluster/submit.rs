//! Calls that nobody waits for. What became of each is queued until the program takes it, and a descriptor is readable while there is something to
//! take or to do. The memory of a call is the library's until it has ended; that of a cancelled one, and of all when the client is
//! closed, is not touched any more when cancelling or closing has returned.

use super::client::{Call, Outcome};
use super::net::{Poller, Span, Timer};
use super::run::client::{Service, Task};
use super::run::node;
use super::types::ObjectKey;
use super::wire::{Find, MAX_KEYS, ROOM};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::{NMC_ERR_CANCELLED, NMC_ERR_STALE, NMC_ERR_TIMEOUT, NMC_OK, nmc_status_t};
use crate::rpc::Event;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Calls that can be submitted at a time: a batch counts as many as it has under way together.
pub const MOST_SUBMITTED: usize = 4096;
/// Calls of a batch that are under way together.
pub(super) const TOGETHER: usize = 256;
/// Bytes of their values.
pub(super) const TOGETHER_BYTES: u64 = 64 << 20;
/// How often the clock is looked at while calls are under way.
const LOOK_MS: u32 = 20;

/// What became of what was submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// What the program called it.
    pub token: u64,
    /// Bytes that were read; of a value that did not fit, its size.
    pub bytes: u64,
    /// How it went: of a batch, the first item that failed.
    pub status: nmc_status_t,
}

/// Is told of each item of a batch what became of it, and its bytes, from whichever thread drives.
pub type Tell = Box<dyn FnMut(usize, u64, nmc_status_t) + Send>;

/// Is given what is said about a value, when that is known; tells how many bytes it has, and whether it could be taken.
pub type Said = Box<dyn FnMut(&[u8]) -> (u64, nmc_status_t) + Send>;

/// What the items of a submitted call have come to so far.
pub struct Sum {
    tell: Option<Tell>,
    /// What is said about the only item is wanted, and not its bytes.
    said: Option<Said>,
    bytes: u64,
    /// The first item that failed, and how.
    failed: Option<(usize, nmc_status_t)>,
    /// A status that is no failure, of the only item.
    status: nmc_status_t,
}

impl Sum {
    /// Nothing yet.
    #[must_use]
    pub fn new(tell: Option<Tell>) -> Self {
        Self { tell, said: None, bytes: 0, failed: None, status: NMC_OK }
    }

    /// Nothing yet of one item, about which something is said.
    #[must_use]
    pub fn saying(said: Said) -> Self {
        Self { said: Some(said), ..Self::new(None) }
    }

    /// This is said about the only item.
    pub fn said(&mut self, metadata: &[u8]) {
        let (bytes, status) = self.said.as_mut().map_or((0, NMC_OK), |said| said(metadata));
        self.add(0, bytes, status);
    }

    /// The call of an item has ended.
    fn ended(&mut self, item: usize, outcome: &Outcome, reads: bool) {
        match outcome.status {
            NMC_OK if self.said.is_some() => self.said(&outcome.metadata.0),
            status => self.add(item, if reads { outcome.count } else { 0 }, status),
        }
    }

    /// An item has ended.
    pub fn add(&mut self, item: usize, bytes: u64, status: nmc_status_t) {
        if let Some(tell) = &mut self.tell {
            tell(item, bytes, status);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if status < 0 && self.failed.is_none_or(|(first, _)| item < first) {
            self.failed = Some((item, status));
        } else if status > 0 {
            self.status = status;
        }
    }

    fn completion(&self, token: u64) -> Completion {
        Completion { token, bytes: self.bytes, status: self.failed.map_or(self.status, |(_, status)| status) }
    }
}

/// Memory that a call reads or writes and that no socket reaches: other memory stands in for it while the call is under way.
pub trait Bounce: Send {
    /// Makes that, with the bytes in it if the call puts them; gives where it is.
    fn begin(&mut self) -> Result<Vec<Span>>;

    /// The call was made, and has read so many bytes: they go to where they belong.
    fn end(&mut self, bytes: u64) -> Result<()>;
}

/// A call of a batch.
pub struct Numbered {
    /// Which item of it that is.
    pub item: usize,
    /// The call.
    pub task: Task,
    /// Stands between, if its memory is out of reach.
    pub bounce: Option<Box<dyn Bounce>>,
}

impl Numbered {
    /// A call whose memory is in reach.
    #[must_use]
    pub fn new(item: usize, task: Task) -> Self {
        Self { item, task, bounce: None }
    }
}

/// An item whose call is under way, and what stands between its memory and the call.
type Item = (usize, Option<Box<dyn Bounce>>);

/// What is under way of something that was submitted, and what waits for its turn.
struct Turns {
    waiting: std::vec::IntoIter<Numbered>,
    /// The next one, which was too much for the turn before.
    next: Option<Numbered>,
    /// Calls whose places are being asked for, and which are made after that.
    found: Vec<Numbered>,
    /// Items whose calls are under way.
    items: Vec<Item>,
    sum: Sum,
    /// What came and nobody has looked at.
    came: Option<Vec<Outcome>>,
    /// Somebody looks at what came.
    looking: bool,
    /// Nodes of this process that are to be told of first, see [`Calls::submit_after`].
    nodes: usize,
}

/// Something that was submitted.
struct Submitted {
    calls: Arc<Calls>,
    number: u64,
    token: u64,
    weight: usize,
    /// Whether it reads: then places are asked for many at once.
    reads: bool,
    deadline: Deadline,
    cancelled: AtomicBool,
    turns: Mutex<Turns>,
}

impl Submitted {
    /// The leader knows what a node of this process has, or will not. The node's thread says so, which others wait for: whoever drives goes on.
    fn told_by_node(self: &Arc<Self>, status: nmc_status_t) {
        if !self.note(status) {
            return;
        }
        let own = Arc::clone(self);
        if let Err(error) = self.calls.service.post(self.number, Box::new(move |_| own.came(Vec::new()))) {
            // With nothing left that could begin.
            let mut turns = self.turns.lock();
            let Turns { waiting, sum, .. } = &mut *turns;
            waiting.for_each(|one| sum.add(one.item, 0, error.status));
            drop(turns);
            self.came(Vec::new());
        }
    }

    /// The same for whoever does not wait for nodes any more.
    fn told_of(self: &Arc<Self>, status: nmc_status_t) {
        if self.note(status) {
            self.came(Vec::new());
        }
    }

    /// Notes that; gives whether the first turn begins: behind the last of the nodes.
    fn note(&self, status: nmc_status_t) -> bool {
        let mut turns = self.turns.lock();
        let Turns { nodes, waiting, sum, .. } = &mut *turns;
        // None is waited for if one has failed, or if it was cancelled meanwhile.
        let Some(left) = nodes.checked_sub(1) else { return false };
        *nodes = if status == NMC_OK { left } else { 0 };
        if status != NMC_OK {
            waiting.for_each(|one| sum.add(one.item, 0, status));
        }
        turns.nodes == 0
    }

    /// The calls of a turn have ended, or the first turn begins.
    fn came(self: &Arc<Self>, outcomes: Vec<Outcome>) {
        {
            let mut turns = self.turns.lock();
            turns.came = Some(outcomes);
            if std::mem::replace(&mut turns.looking, true) {
                // Calls can end as soon as they begin: whoever began them looks.
                return;
            }
        }
        loop {
            let mut turns = self.turns.lock();
            let Some(outcomes) = turns.came.take() else {
                turns.looking = false;
                return;
            };
            let Turns { items, sum, .. } = &mut *turns;
            for ((item, bounce), mut outcome) in items.drain(..).zip(outcomes) {
                if let Some(mut bounce) = bounce.filter(|_| outcome.status == NMC_OK)
                    && let Err(error) = bounce.end(outcome.count)
                {
                    outcome = Outcome::of(error.status);
                }
                sum.ended(item, &outcome, self.reads);
            }
            let tasks = match self.cancelled.load(SeqCst) {
                true => Vec::new(),
                false => self.next(&mut turns),
            };
            if tasks.is_empty() {
                let Turns { found, next, waiting, sum, .. } = &mut *turns;
                for one in found.drain(..).chain(next.take()).chain(waiting) {
                    sum.add(one.item, 0, NMC_ERR_CANCELLED);
                }
                let completion = sum.completion(self.token);
                drop(turns);
                return self.calls.ended(self.number, self.weight, completion);
            }
            drop(turns);
            let own = Arc::clone(self);
            let ended = Box::new(move |outcomes| own.came(outcomes));
            if let Err(error) = self.calls.service.spawn(tasks, self.number, ended) {
                let mut turns = self.turns.lock();
                let Turns { items, sum, came, .. } = &mut *turns;
                items.drain(..).for_each(|(item, _)| sum.add(item, 0, error.status));
                *came = Some(Vec::new());
            }
            if self.cancelled.load(SeqCst) {
                self.calls.service.end(self.number);
            }
        }
    }

    /// The calls of the next turn. What is to be read is asked for at once where its place is remembered, and in the next turn where that
    /// is still to be asked.
    fn next(&self, turns: &mut Turns) -> Vec<Task> {
        if turns.found.is_empty() {
            self.choose(turns);
            if self.reads && turns.found.len() > 1 {
                // If there is no memory for that, or no answer, it is asked for each.
                let asked = self.ask_first(turns).unwrap_or_default();
                if !asked.is_empty() {
                    return asked;
                }
            }
        }
        let left = self.deadline.left();
        let Turns { found, items, sum, .. } = turns;
        match memory::with_capacity(found.len()) {
            Ok(mut tasks) => {
                // There is room for as many items: it was made with the calls.
                for Numbered { item, task, bounce } in found.drain(..) {
                    items.push((item, bounce));
                    tasks.push(Task { patience: left, ..task });
                }
                tasks
            }
            Err(error) => {
                found.drain(..).for_each(|one| sum.add(one.item, 0, error.status));
                self.next(turns)
            }
        }
    }

    /// Questions where values are, behind the calls that need none; nothing if none does.
    fn ask_first(&self, turns: &mut Turns) -> Result<Vec<Task>> {
        let Turns { found, items, .. } = turns;
        let left = self.deadline.left();
        self.calls.service.look_at(|knows| {
            let known = |task: &Task| task.call.key().is_none_or(knows);
            let unknown = found.iter().filter(|one| !known(&one.task)).filter_map(|one| one.task.call.key());
            let asked = questions(unknown, left)?;
            if asked.is_empty() {
                return Ok(asked);
            }
            let mut tasks = memory::with_capacity(found.len() + asked.len())?;
            for Numbered { item, task, bounce } in found.extract_if(.., |one| known(&one.task)) {
                items.push((item, bounce));
                tasks.push(Task { patience: left, ..task });
            }
            tasks.extend(asked);
            Ok(tasks)
        })
    }

    /// As many of those that wait as may be under way together, with memory in reach.
    fn choose(&self, turns: &mut Turns) {
        let mut bytes = 0u64;
        while turns.found.len() < TOGETHER {
            let Some(mut one) = turns.next.take().or_else(|| turns.waiting.next()) else { break };
            let more = one.task.spans.iter().map(|span| span.len() as u64).sum::<u64>();
            if bytes > 0 && bytes + more > TOGETHER_BYTES {
                turns.next = Some(one);
                break;
            }
            if let Some(bounce) = &mut one.bounce {
                let begun = match self.deadline.passed() {
                    false => bounce.begin().map_err(|error| error.status),
                    // Nothing is copied for what is too late anyway.
                    true => Err(NMC_ERR_TIMEOUT),
                };
                match begun {
                    Ok(spans) => one.task.spans = spans,
                    Err(status) => {
                        turns.sum.add(one.item, 0, status);
                        continue;
                    }
                }
            }
            bytes += more;
            turns.found.push(one);
        }
    }
}

/// Questions where values are, as many keys at once as a message holds.
pub(super) fn questions<'a>(keys: impl Iterator<Item = &'a ObjectKey>, patience: Duration) -> Result<Vec<Task>> {
    let (mut asked, mut part, mut bytes) = (Vec::new(), Vec::new(), 0);
    let ask = |keys: &mut Vec<_>| {
        let find = Find { keys: std::mem::take(keys), missed: Vec::new() };
        Task { call: Call::Ask(Box::new(find.into())), spans: Vec::new(), far: false, patience }
    };
    for key in keys {
        let more = key.as_bytes().len() + 8;
        if part.len() == MAX_KEYS || bytes + more > ROOM {
            memory::push(&mut asked, ask(&mut part))?;
            bytes = 0;
        }
        bytes += more;
        memory::push(&mut part, key.copy()?)?;
    }
    if !part.is_empty() {
        memory::push(&mut asked, ask(&mut part))?;
    }
    Ok(asked)
}

/// The descriptor of a client.
struct Bell {
    /// Readable while any of the others is.
    all: Poller,
    /// Something waits to be taken, or to be done at once.
    event: Event,
    /// Time has passed. None if a thread looks at the clock.
    timer: Option<Timer>,
    /// Whether it counts.
    ticks: bool,
}

#[derive(Default)]
struct Queue {
    done: VecDeque<(Completion, usize)>,
    under_way: HashMap<u64, Arc<Submitted>>,
    /// Calls that were submitted and whose completions nobody has taken.
    weight: usize,
    next: u64,
    bell: Option<Bell>,
}

/// What a client has submitted.
pub(super) struct Calls {
    /// What makes the calls.
    pub(super) service: Service,
    /// Whether it has a thread that drives.
    thread: bool,
    queue: Mutex<Queue>,
    /// Something is not under way any more.
    over: Condvar,
}

impl Calls {
    pub(super) fn new(service: Service, thread: bool) -> Arc<Self> {
        Arc::new(Self { service, thread, queue: Mutex::default(), over: Condvar::new() })
    }

    /// Refuses what would be more than can be submitted at a time. For who has not yet made anything for it.
    pub(super) fn check(&self, calls: usize) -> Result<()> {
        self.queue.lock().check(calls.clamp(1, TOGETHER))
    }

    /// Makes calls one after the other, some together, and queues one completion when all have ended.
    pub(super) fn submit(
        self: &Arc<Self>,
        token: u64,
        tasks: Vec<Numbered>,
        sum: Sum,
        patience: Duration,
    ) -> Result<()> {
        self.submit_after(&[], token, tasks, sum, patience)
    }

    /// The same, when the leader knows what these nodes of this process have by now. If it does not in time all fail with that. Nobody may
    /// end the nodes before this returns.
    pub(super) fn submit_after(
        self: &Arc<Self>,
        nodes: &[node::Handle],
        token: u64,
        tasks: Vec<Numbered>,
        sum: Sum,
        patience: Duration,
    ) -> Result<()> {
        let submitted = self.enter(token, tasks, sum, patience, nodes.len())?;
        for node in nodes {
            let own = Arc::clone(&submitted);
            // What a node is emptied of goes anyway.
            let told = |status| if status == NMC_ERR_STALE { NMC_OK } else { status };
            node.sync_then(patience, move |status| own.told_by_node(told(status)));
        }
        if nodes.is_empty() {
            submitted.came(Vec::new());
        }
        Ok(())
    }

    /// Notes what is submitted.
    fn enter(
        self: &Arc<Self>,
        token: u64,
        tasks: Vec<Numbered>,
        sum: Sum,
        patience: Duration,
        nodes: usize,
    ) -> Result<Arc<Submitted>> {
        if self.thread {
            self.service.start_thread()?;
        }
        let together = tasks.len().min(TOGETHER);
        let reads = tasks.first().is_some_and(|one| matches!(one.task.call, Call::Get(_)));
        let turns = Turns {
            found: memory::with_capacity(together)?,
            items: memory::with_capacity(together)?,
            waiting: tasks.into_iter(),
            next: None,
            sum,
            came: None,
            looking: false,
            nodes,
        };
        let mut queue = self.queue.lock();
        let weight = together.max(1);
        queue.check(weight)?;
        // What ends needs no memory to be queued.
        let all = queue.under_way.len() + 1;
        memory::reserve_queue(&mut queue.done, all)?;
        memory::reserve_map(&mut queue.under_way, 1)?;
        queue.next += 1;
        let submitted = Arc::new(Submitted {
            calls: Arc::clone(self),
            number: queue.next,
            token,
            weight,
            reads,
            deadline: Deadline::after(patience),
            cancelled: AtomicBool::new(false),
            turns: Mutex::new(turns),
        });
        queue.weight += weight;
        queue.under_way.insert(submitted.number, Arc::clone(&submitted));
        queue.set_timer();
        Ok(submitted)
    }

    fn ended(&self, number: u64, weight: usize, completion: Completion) {
        let mut queue = self.queue.lock();
        let submitted = queue.under_way.remove(&number);
        queue.done.push_back((completion, weight));
        queue.set_timer();
        if let Some(bell) = &queue.bell {
            bell.event.signal();
        }
        drop(queue);
        self.over.notify_all();
        drop(submitted);
    }

    /// Takes completions, the oldest first, at most `most`; gives how many. Waits for the first, as long as something is under way, but not
    /// longer than this, and drives the connections meanwhile.
    pub(super) fn completions(&self, most: usize, limit: Duration, mut take: impl FnMut(Completion)) -> usize {
        let busy = if limit.is_zero() {
            self.service.look()
        } else {
            let enough = || {
                let queue = self.queue.lock();
                !queue.done.is_empty() || queue.under_way.is_empty()
            };
            self.service.drive(limit, enough);
            false
        };
        let mut queue = self.queue.lock();
        let mut taken = 0;
        while taken < most
            && let Some((completion, weight)) = queue.done.pop_front()
        {
            queue.weight -= weight;
            take(completion);
            taken += 1;
        }
        if let Some(bell) = &queue.bell {
            bell.event.drain();
            if let Some(timer) = &bell.timer {
                timer.drain();
            }
            if busy || !queue.done.is_empty() {
                bell.event.signal();
            }
        }
        taken
    }

    /// Ends all that was submitted with this token, with CANCELLED; gives how much. None of it is under way when this returns: another thread
    /// may be noting what became of it, or beginning its next calls, and then that is waited for.
    pub(super) fn cancel(&self, token: u64) -> Result<usize> {
        let list = {
            let queue = self.queue.lock();
            memory::collect(queue.under_way.values().filter(|one| one.token == token).map(Arc::clone))?
        };
        for submitted in &list {
            submitted.cancelled.store(true, SeqCst);
            submitted.told_of(NMC_ERR_CANCELLED);
            self.service.end(submitted.number);
        }
        let over = || {
            let queue = self.queue.lock();
            !list.iter().any(|submitted| queue.under_way.contains_key(&submitted.number))
        };
        while !over() {
            // Where somebody else moves their bytes, that has to end first, and nobody else may drive.
            self.service.drive(Duration::from_millis(20), over);
        }
        Ok(list.len())
    }

    /// Nothing that was submitted begins another call.
    pub(super) fn cancel_all(&self) {
        for submitted in self.queue.lock().under_way.values() {
            submitted.cancelled.store(true, SeqCst);
        }
    }

    /// The descriptor, which is made when it is asked for first.
    pub(super) fn event_fd(&self) -> Result<RawFd> {
        let mut queue = self.queue.lock();
        if queue.bell.is_none() {
            let (all, event) = (Poller::new()?, Event::new()?);
            all.add(&event.as_fd(), 0, false)?;
            let timer = match self.thread {
                true => None,
                false => {
                    let timer = Timer::new()?;
                    all.add(&timer, 1, false)?;
                    all.add(&*self.service.poller(), 2, false)?;
                    Some(timer)
                }
            };
            if !queue.done.is_empty() {
                event.signal();
            }
            queue.bell = Some(Bell { all, event, timer, ticks: false });
            queue.set_timer();
        }
        Ok(queue.bell.as_ref().map_or(-1, |bell| bell.all.as_raw_fd()))
    }
}

impl Queue {
    fn check(&self, more: usize) -> Result<()> {
        if self.weight + more > MOST_SUBMITTED {
            crate::bail!(
                NMC_ERR_BUSY,
                "{} calls are submitted and their completions not taken; {more} more would be over {MOST_SUBMITTED}",
                self.weight
            );
        }
        Ok(())
    }

    /// The clock counts while something is under way.
    fn set_timer(&mut self) {
        let Some(Bell { timer: Some(timer), ticks, .. }) = &mut self.bell else { return };
        let wanted = !self.under_way.is_empty();
        if std::mem::replace(ticks, wanted) != wanted {
            timer.every(if wanted { LOOK_MS } else { 0 });
        }
    }
}
