//! One connection: frames and values in both directions, none of which anybody waits for. A value goes straight between the
//! socket and the memory that it is for. After a connection has ended, or a value was let go of, no byte of it is moved.

use super::channel::Channel;
use super::sys::{self, Moved, Span};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_PROTOCOL;
use crate::cluster::types::Millis;
use crate::cluster::wire::{Frame, HEAD, Head, MAX_MESSAGE};
use std::collections::VecDeque;
use std::os::fd::AsFd as _;

/// Bytes that are received at once where it is not known what they are.
const ROOM: usize = 64 << 10;

/// The same where a long value is expected behind the next message: what comes of it this way is copied once more.
const FEW: usize = 4 << 10;

/// Bytes that are put into one buffer to be sent, or a frame more.
const MOST_TOGETHER: usize = 256 << 10;
/// Bytes of a long value after which it is looked at again.
const PIECE: usize = 128 << 10;
/// What somebody says first who speaks TLS and heard that this end does not. No frame begins like this.
const TLS_ALERT: &[u8] = &[0x15, 3];

/// Pieces of memory that a value goes to or comes from, as far as it has not yet.
#[derive(Debug, Default)]
pub struct Spans {
    list: VecDeque<Span>,
    left: u64,
    /// The checksum of what has come, and what it is to be at the end.
    sum: Option<(u32, u32)>,
}

impl Spans {
    /// These.
    pub fn new(spans: impl IntoIterator<Item = Span>) -> Self {
        let list: VecDeque<Span> = spans.into_iter().filter(|span| !span.is_empty()).collect();
        let left = list.iter().map(|span| span.len() as u64).sum();
        Self { list, left, sum: None }
    }

    /// The same, if memory is given for them.
    pub fn of(spans: &[Span]) -> Result<Self> {
        let mut list = VecDeque::<Span>::new();
        memory::reserve_queue(&mut list, spans.len())?;
        list.extend(spans.iter().filter(|span| !span.is_empty()));
        let left = list.iter().map(|span| span.len() as u64).sum();
        Ok(Self { list, left, sum: None })
    }

    /// What comes there is to have this CRC32C, if one is given.
    #[must_use]
    pub fn wanting(mut self, sum: Option<u32>) -> Self {
        self.sum = sum.map(|wanted| (0, wanted));
        self
    }

    /// Whether what has come is what was to come.
    fn is_right(&self) -> bool {
        self.sum.is_none_or(|(sum, wanted)| sum == wanted)
    }

    /// So many bytes have come there. They are looked at now, when they are still near.
    fn came(&mut self, n: usize) {
        if let Some((sum, _)) = &mut self.sum {
            let mut left = n;
            for span in &self.list {
                let span = span.up_to(left);
                *sum = span.sum(*sum);
                left -= span.len();
                if left == 0 {
                    break;
                }
            }
        }
        self.advance(n);
    }

    /// Bytes of them.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Only the first so many bytes.
    #[must_use]
    pub fn up_to(mut self, bytes: u64) -> Self {
        if bytes >= self.left {
            return self;
        }
        self.left = bytes;
        let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.list.retain_mut(|span| {
            *span = span.up_to(left);
            left -= span.len();
            !span.is_empty()
        });
        self
    }

    /// Without the first so many bytes.
    #[must_use]
    pub fn behind(mut self, bytes: u64) -> Self {
        self.advance(usize::try_from(bytes).unwrap_or(usize::MAX));
        self
    }

    /// They, in a list.
    pub fn list(self) -> Result<Vec<Span>> {
        memory::collect(self.list)
    }

    fn advance(&mut self, mut n: usize) {
        while let Some(first) = self.list.front_mut() {
            let step = n.min(first.len());
            *first = first.behind(step);
            self.left -= step as u64;
            n -= step;
            if !first.is_empty() {
                return;
            }
            self.list.pop_front();
        }
    }

    fn store(&mut self, mut bytes: &[u8]) {
        while let Some(first) = self.list.front().copied().filter(|_| !bytes.is_empty()) {
            let step = bytes.len().min(first.len());
            first.store(&bytes[..step]);
            self.came(step);
            bytes = &bytes[step..];
        }
    }

    fn append_to(&self, to: &mut Vec<u8>) -> Result<()> {
        memory::reserve(to, usize::try_from(self.left).unwrap_or(usize::MAX))?;
        self.list.iter().for_each(|span| span.append_to(to));
        Ok(())
    }
}

/// What follows the last frame that came.
#[derive(Debug)]
enum Value {
    /// Another frame.
    None,
    /// So many bytes, of which nobody has said where they go.
    Asked(u64),
    /// Bytes that go there.
    Into(Spans, u64),
    /// So many bytes that nobody wants.
    Skip(u64),
}

/// Something that is to be sent.
#[derive(Debug)]
enum Out {
    Bytes(Vec<u8>, usize),
    Value(Spans, u64),
}

impl Out {
    /// Whether more is put behind it: what has been sent of it is freed only with all of it.
    fn has_room(&self) -> bool {
        matches!(self, Out::Bytes(bytes, _) if bytes.len() < MOST_TOGETHER)
    }
}

/// Buffers of connections that have nothing in them, for those that will.
#[derive(Debug, Default)]
pub(super) struct Spares {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Spares {
    /// Takes a buffer back, if it is a better one.
    fn keep_output(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > self.output.capacity() && buffer.capacity() <= 2 * MOST_TOGETHER {
            self.output = buffer;
        }
    }
}

/// What came.
#[derive(Debug)]
pub(super) enum Came {
    Frame(Frame),
    /// The last byte of the value with this ticket.
    Taken(u64),
    /// The same, and it has another checksum than it was to have.
    Torn(u64),
    /// Nothing for the moment.
    Nothing,
    /// Something else is to be looked at first: there is more.
    Enough,
    /// It has ended, or cannot go on.
    Ended(Option<Error>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    pub channel: Channel,
    input: Vec<u8>,
    at: usize,
    value: Value,
    /// The socket has given all that it had.
    drained: bool,
    /// Bytes without which it does not count as readable.
    piece: usize,
    /// The last message had a long value: the next probably has one too.
    long: bool,
    output: VecDeque<Out>,
    /// Bytes that wait in buffers of ours.
    pub queued: usize,
    /// Whether it is waited until it can be written to.
    pub watched: bool,
    /// Whether it is in the list of those with something to send.
    pub dirty: bool,
    /// Whether it is in a list of those that may have something.
    pub in_turn: bool,
    /// When it was made, when something came last, and when something that was to be sent was taken last, or began to wait.
    made_at: Millis,
    moved_at: Millis,
    sent_at: Millis,
    /// What the other end had taken when the socket took nothing more.
    taken: u64,
    /// Bytes of values that have come since it was made.
    came: u64,
    /// The time as it was told last.
    now: Millis,
    /// Whoever connected has not said who it is.
    pub unknown: bool,
}

impl Link {
    pub(super) fn new(channel: Channel, connecting: bool, now: Millis) -> Self {
        Self {
            channel,
            input: Vec::new(),
            at: 0,
            value: Value::None,
            drained: false,
            piece: 1,
            long: false,
            output: VecDeque::new(),
            queued: 0,
            watched: connecting,
            dirty: false,
            in_turn: false,
            made_at: now,
            moved_at: now,
            sent_at: now,
            taken: 0,
            came: 0,
            now,
            unknown: false,
        }
    }

    /// Whether something is to be sent that is in no buffer of the kernel yet, and is not a value.
    pub(super) fn has_unsent(&self) -> bool {
        self.queued > 0 || self.channel.has_waiting()
    }

    /// Bytes in buffers of ours, at most.
    pub(super) fn held(&self) -> usize {
        self.queued + self.input.len() + self.channel.waiting()
    }

    /// Bytes of values that have come, and of everything that was taken by the other end; and whether it has taken all.
    pub(super) fn moved(&self) -> (u64, bool) {
        let untaken = sys::untaken(self.channel.as_fd());
        let coming = match &self.value {
            // What is not looked at yet, because more is to come first.
            Value::Into(spans, _) => sys::unread(self.channel.as_fd()).min(spans.left),
            _ => 0,
        };
        let over = self.output.is_empty() && untaken == 0 && !self.channel.has_waiting();
        (self.came + coming + self.channel.gone().saturating_sub(untaken), over)
    }

    /// The socket may have something.
    pub(super) fn readable(&mut self, now: Millis) {
        self.drained = false;
        (self.moved_at, self.now) = (now, now);
    }

    /// Where the value goes that follows the last frame.
    pub(super) fn take(&mut self, spans: Spans, ticket: u64) -> bool {
        match self.value {
            Value::Asked(bytes) if bytes == spans.left() => {
                self.value = Value::Into(spans, ticket);
                true
            }
            _ => false,
        }
    }

    /// No byte more of this value is stored.
    pub(super) fn abandon(&mut self, ticket: u64) {
        if let Value::Into(spans, of) = &self.value
            && *of == ticket
        {
            self.value = Value::Skip(spans.left());
            self.look_at(1);
        }
    }

    /// Tickets of everything that is not complete.
    pub(super) fn tickets(&self) -> impl Iterator<Item = u64> {
        let incoming = match &self.value {
            Value::Into(_, ticket) => Some(*ticket),
            _ => None,
        };
        let outgoing = self.output.iter().filter_map(|out| match out {
            Out::Value(_, ticket) => Some(*ticket),
            Out::Bytes(..) => None,
        });
        incoming.into_iter().chain(outgoing)
    }

    /// From now on it is waited for the other end to take something, if it was not before.
    fn begin_output(&mut self) {
        if self.output.is_empty() {
            self.sent_at = self.now;
        }
    }

    /// Whether whoever has connected has had so long to say something, and there is nothing of it that nobody has looked at.
    pub(super) fn had_time(&self, now: Millis, moment: Millis) -> bool {
        self.made_at + moment <= now && !self.in_turn && !sys::has_bytes(self.channel.as_fd())
    }

    /// Bytes that the other end has taken, as they are on the way.
    fn taken(&self) -> u64 {
        self.channel.gone().saturating_sub(sys::untaken(self.channel.as_fd()))
    }

    /// A socket that holds much takes nothing for long, while the other end takes what it holds.
    pub(super) fn look_at_taken(&mut self, now: Millis, stall_ms: Millis) {
        if self.output.is_empty() || self.sent_at + stall_ms > now {
            return;
        }
        let taken = self.taken();
        if taken > std::mem::replace(&mut self.taken, taken) {
            self.sent_at = now;
        }
    }

    /// Whether the other end has not taken anything, or not said the rest of what it began, or who it is, for so long.
    pub(super) fn is_stalled(&self, now: Millis, stall_ms: Millis) -> bool {
        let input = self.at < self.input.len() || !matches!(self.value, Value::None);
        let since = |at: Millis| at + stall_ms <= now;
        (!self.output.is_empty() || self.channel.has_waiting()) && since(self.sent_at)
            || input && since(self.moved_at)
            || (self.unknown || self.channel.is_beginning()) && since(self.made_at)
    }

    /// Puts a frame behind what is to be sent.
    pub(super) fn send(&mut self, bytes: &[u8], spares: &mut Spares) -> Result<()> {
        self.begin_output();
        self.queued += bytes.len();
        memory::extend(self.last(spares)?, bytes)
    }

    /// Puts a value behind it: by copying it now, or from where it is, if somebody is to be told when it has left.
    pub(super) fn send_value(&mut self, spans: Spans, ticket: Option<u64>, spares: &mut Spares) -> Result<()> {
        self.begin_output();
        match ticket {
            Some(ticket) => {
                memory::reserve_queue(&mut self.output, 1)?;
                self.output.push_back(Out::Value(spans, ticket));
                Ok(())
            }
            None => {
                self.queued += usize::try_from(spans.left()).unwrap_or(usize::MAX);
                spans.append_to(self.last(spares)?)
            }
        }
    }

    /// The buffer behind which something is put to be sent.
    fn last(&mut self, spares: &mut Spares) -> Result<&mut Vec<u8>> {
        if !self.output.back().is_some_and(Out::has_room) {
            memory::reserve_queue(&mut self.output, 1)?;
            let mut buffer = std::mem::take(&mut spares.output);
            buffer.clear();
            self.output.push_back(Out::Bytes(buffer, 0));
        }
        match self.output.back_mut() {
            Some(Out::Bytes(last, _)) => Ok(last),
            _ => crate::bail!(NMC_ERR_INTERNAL, "a connection has no buffer to send from"),
        }
    }

    /// Sends what the socket takes. Adds the tickets of values whose last byte has left. Gives whether something is left, or
    /// nothing if the connection has ended.
    pub(super) fn flush(&mut self, now: Millis, left: &mut Vec<u64>, spares: &mut Spares) -> Option<bool> {
        while !self.output.is_empty() {
            let spans = self.output.iter().flat_map(|out| {
                let (bytes, spans) = match out {
                    Out::Bytes(bytes, at) => (Some(sys::reading(&bytes[*at..])), None),
                    Out::Value(spans, _) => (None, Some(spans.list.iter().copied())),
                };
                bytes.into_iter().chain(spans.into_iter().flatten())
            });
            match self.channel.send(spans) {
                Moved::Bytes(n) => {
                    self.sent_at = now;
                    self.advance(n, left, spares);
                }
                Moved::Later => {
                    self.taken = self.taken();
                    self.shrink(spares);
                    // Before a handshake has ended nothing is taken, whatever the socket would take.
                    return Some(!self.channel.is_beginning() || self.channel.has_waiting());
                }
                Moved::Ended => return None,
            }
        }
        let gone = self.channel.gone();
        let rest = self.channel.push().then(|| self.channel.has_waiting());
        if self.channel.gone() > gone {
            self.sent_at = now;
        }
        rest
    }

    /// Whether something can be sent that could not before something came: TLS has more to say, or lets others speak.
    pub(super) fn can_go_on(&self) -> bool {
        self.channel.is_secure() && (self.channel.has_waiting() || !self.output.is_empty())
    }

    /// What waits for somebody to take it takes no more memory than it needs.
    fn shrink(&mut self, spares: &mut Spares) {
        if let Some(Out::Bytes(bytes, at)) = self.output.front_mut()
            && bytes.capacity() > 2 * (bytes.len() - *at)
            && let Ok(rest) = memory::copy(&bytes[*at..])
        {
            *at = 0;
            spares.keep_output(std::mem::replace(bytes, rest));
        }
    }

    fn advance(&mut self, mut n: usize, left: &mut Vec<u64>, spares: &mut Spares) {
        while let Some(out) = self.output.front_mut() {
            let ended = match out {
                Out::Bytes(bytes, at) => {
                    let step = n.min(bytes.len() - *at);
                    *at += step;
                    n -= step;
                    self.queued = self.queued.saturating_sub(step);
                    *at == bytes.len()
                }
                Out::Value(spans, ticket) => {
                    let step = n.min(usize::try_from(spans.left).unwrap_or(usize::MAX));
                    spans.advance(step);
                    n -= step;
                    if spans.left == 0 {
                        left.push(*ticket);
                    }
                    spans.left == 0
                }
            };
            if !ended {
                return;
            }
            if let Some(Out::Bytes(buffer, _)) = self.output.pop_front() {
                spares.keep_output(buffer);
            }
        }
    }

    /// The next thing that came; `patience` counts down what is received before somebody else has a turn.
    pub(super) fn next(&mut self, patience: &mut u32, spares: &mut Spares) -> Came {
        loop {
            let there = &self.input[self.at..];
            match &mut self.value {
                Value::Asked(bytes) => self.value = Value::Skip(*bytes),
                Value::Into(spans, ticket) => {
                    let step = there.len().min(usize::try_from(spans.left).unwrap_or(usize::MAX));
                    spans.store(&there[..step]);
                    self.at += step;
                    self.came += step as u64;
                    if spans.left == 0 {
                        let (ticket, right) = (*ticket, spans.is_right());
                        self.value = Value::None;
                        return if right { Came::Taken(ticket) } else { Came::Torn(ticket) };
                    }
                    if self.drained {
                        self.settle(spares);
                        return Came::Nothing;
                    }
                    if *patience == 0 {
                        return Came::Enough;
                    }
                    *patience -= 1;
                    let wanted: usize = spans.list.iter().take(64).map(Span::len).sum();
                    match self.channel.receive_into(spans.list.make_contiguous()) {
                        Moved::Bytes(n) => {
                            spans.came(n);
                            self.came += n as u64;
                            // Behind a long value there is rarely something at once; if there is, the socket tells.
                            let over = spans.left == 0 && !self.channel.is_secure();
                            self.drained = over || self.channel.is_dry(n, wanted);
                        }
                        Moved::Later => self.drained = true,
                        Moved::Ended => return Came::Ended(self.channel.why()),
                    }
                    // Of a long value the next look is worth it when there is a piece of it.
                    let piece = usize::try_from(spans.left).unwrap_or(usize::MAX).min(PIECE);
                    self.look_at(if piece < ROOM { 1 } else { piece });
                }
                Value::Skip(bytes) => {
                    let step = there.len().min(usize::try_from(*bytes).unwrap_or(usize::MAX));
                    self.at += step;
                    *bytes -= step as u64;
                    if *bytes == 0 {
                        self.value = Value::None;
                        continue;
                    }
                    if let Some(came) = self.receive(ROOM, patience, spares) {
                        return came;
                    }
                }
                Value::None => match parse(there) {
                    Ok(Parsed::Frame(frame, bytes, value)) => {
                        self.at += bytes;
                        self.value = if value > 0 { Value::Asked(value) } else { Value::None };
                        self.long = value > ROOM as u64;
                        return Came::Frame(frame);
                    }
                    Ok(Parsed::Wants(bytes)) => {
                        let room = if self.long { FEW } else { ROOM };
                        if let Some(came) = self.receive(bytes.max(room), patience, spares) {
                            return came;
                        }
                    }
                    Err(error) => return Came::Ended(Some(error)),
                },
            }
        }
    }

    /// The socket is looked at when it has so many bytes.
    fn look_at(&mut self, piece: usize) {
        // TLS may have received a part of it already.
        if piece != self.piece && !self.channel.is_secure() {
            sys::wake_for(&self.channel, piece);
            self.piece = piece;
        }
    }

    /// Whoever has nothing to say takes no memory, and whoever has said half of something no more than for that.
    fn settle(&mut self, spares: &mut Spares) {
        let Ok(kept) = memory::copy(&self.input[self.at..]) else { return };
        let buffer = std::mem::replace(&mut self.input, kept);
        self.at = 0;
        if buffer.capacity() > spares.input.capacity() {
            spares.input = buffer;
        }
    }

    /// Receives into the buffer, of which so many bytes are needed behind `at`.
    fn receive(&mut self, bytes: usize, patience: &mut u32, spares: &mut Spares) -> Option<Came> {
        if self.drained {
            self.settle(spares);
            return Some(Came::Nothing);
        }
        if *patience == 0 {
            return Some(Came::Enough);
        }
        *patience -= 1;
        self.input.drain(..self.at);
        self.at = 0;
        if self.input.capacity() < spares.input.capacity() && self.input.len() <= spares.input.capacity() {
            let mut buffer = std::mem::take(&mut spares.input);
            buffer.clear();
            buffer.extend_from_slice(&self.input);
            self.input = buffer;
        }
        let room = bytes.max(self.input.len() + bytes.min(ROOM) / 2);
        if let Err(error) = memory::reserve_to(&mut self.input, room) {
            return Some(Came::Ended(Some(error)));
        }
        // Not all that there is room for: the buffer may be a larger one than is wanted.
        let room = if bytes < ROOM { room } else { self.input.capacity() } - self.input.len();
        match self.channel.receive(&mut self.input, room) {
            Moved::Bytes(n) => self.drained = self.channel.is_dry(n, room),
            Moved::Later => self.drained = true,
            Moved::Ended => return Some(Came::Ended(self.channel.why())),
        }
        None
    }
}

#[allow(clippy::large_enum_variant, reason = "there is one at a time, and it is taken apart at once")]
enum Parsed {
    /// A frame, its bytes, and the bytes of the value that follows.
    Frame(Frame, usize, u64),
    /// So many bytes are needed.
    Wants(usize),
}

fn parse(bytes: &[u8]) -> Result<Parsed> {
    if bytes.starts_with(TLS_ALERT) {
        crate::bail!(NMC_ERR_PERMISSION, "the other end wants TLS, and this one has no certificate");
    }
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else { return Ok(Parsed::Wants(HEAD)) };
    let head = Head::decode(head)?;
    let len = head.len as usize;
    let Some(message) = rest.get(..len) else { return Ok(Parsed::Wants(HEAD + len.min(MAX_MESSAGE))) };
    let frame = Frame::decode(&head, message)
        .map_err(|error| Error { status: NMC_ERR_PROTOCOL, ..error }.context("a message of the cluster"))?;
    Ok(Parsed::Frame(frame, HEAD + len, head.value))
}
