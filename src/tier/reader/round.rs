//! Reads of several values at once. A round brings as much of them as there is scratch for, all of it under way together, and
//! verifies what it brings by the headers that come with it; what is left is for the next round. A job that fails is done again
//! by itself, through scratch, from a file that was opened anew, before anything is said about the disk.

use super::Reader;
use super::scratch::SLAB;
use super::sys::{Flight, Landed};
use crate::base::crc;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_INTERNAL, NMC_ERR_NOT_FOUND};
use crate::layout::disk::Spot;
use crate::store::copy::{Pieces, Slice, Walk};
use crate::store::disk::{DiskInfo, DiskMap, DiskRead, Target};
use crate::tier::format::{BLOCK, GRANULE, Header, Shape};
use std::ops::Range;

/// Most reads of a round.
const MOST_PARTS: usize = 4096;
/// Most values of a round: each may be in a file of its own.
const MOST_SEATS: usize = 64;
/// A granule has no more: each is a block at least.
const PARTS_OF_A_GRANULE: usize = GRANULE / BLOCK;
/// Bytes that are taken at a time, by whoever takes them elsewhere.
const TAKEN: u32 = 512 << 10;
const _: () = assert!(TAKEN as usize <= SLAB && (TAKEN as usize).is_multiple_of(GRANULE));

/// A value, or a part of one, that is being read.
pub struct Job<'r, 'a> {
    read: &'r mut DiskRead<'a>,
    shape: Shape,
    /// What comes next, and where it goes: everything before was found right.
    at: u64,
    walk: Walk<'a>,
    /// The second try.
    careful: bool,
    finished: bool,
    /// What the header says about the value.
    pub info: DiskInfo,
}

/// What a job has in a round.
struct Seat<'a> {
    job: usize,
    /// Its reads. The first one is that of the header.
    parts: Range<usize>,
    missing: usize,
    /// The parts of the value that it brings whole, and the number of the first one in the value.
    granules: Range<usize>,
    first: u64,
    /// Where the job is when all of it is right.
    then: (u64, Walk<'a>),
    /// The next part to be taken.
    next: usize,
    trouble: Option<Trouble>,
}

/// Why a job does not go on.
enum Trouble {
    /// The entry has ended.
    Ended,
    /// The disk has something else than the entry says, or does not give it.
    Wrong(Error),
    /// Whoever takes the bytes did not.
    Refused(Error),
}

/// What a read is for.
struct Part<'a> {
    seat: usize,
    /// Its first byte, in the value.
    at: u64,
    role: Role<'a>,
}

enum Role<'a> {
    Header,
    /// It is where it belongs.
    Straight,
    /// Some of it goes here.
    Copied(Walk<'a>),
    /// Some of it is taken.
    Taken,
}

/// 64 KiB of a value under one sum.
struct Granule {
    /// The first part that has some of it.
    part: usize,
    /// Bytes that have not arrived.
    missing: u64,
    is: u32,
    should: Option<u32>,
}

impl<'r, 'a> Job<'r, 'a> {
    /// A read of which nothing is done. One that cannot be done is over.
    pub fn new(read: &'r mut DiskRead<'a>) -> Self {
        let pieces = match &read.to {
            Target::Host(pieces) => *pieces,
            Target::Take(_) => Pieces::Slices(&[]),
        };
        let shape = Shape::of(read.key.len(), read.entry.entry.bytes);
        let at = read.offset;
        let mut job = Self {
            read,
            shape,
            at,
            walk: Walk::new(pieces),
            careful: false,
            finished: false,
            info: DiskInfo::default(),
        };
        if let Err(error) = job.check(&pieces) {
            job.finish(Err(error));
        }
        job
    }

    fn check(&self, pieces: &Pieces<'_>) -> Result<()> {
        let DiskRead { offset, bytes, entry, .. } = &*self.read;
        let total = entry.entry.bytes;
        if offset.checked_add(*bytes).is_none_or(|end| end > total) {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "{bytes} bytes from {offset} on are to be read of a value of {total} bytes"
            );
        }
        if matches!(self.read.to, Target::Host(_)) && pieces.bytes()? < *bytes {
            crate::bail!(NMC_ERR_INVALID_ARG, "{bytes} bytes do not fit the {} of their pieces", pieces.bytes()?);
        }
        Ok(())
    }

    fn end(&self) -> u64 {
        self.read.offset + self.read.bytes
    }

    fn spot(&self) -> Spot {
        self.read.entry.entry.spot
    }

    fn finish(&mut self, outcome: Result<bool>) {
        self.finished = true;
        self.read.outcome = outcome;
    }

    /// Settles what came of a round, or of the attempt to have one.
    fn settle(&mut self, is_still: bool, trouble: Option<Trouble>) {
        match trouble {
            Some(Trouble::Refused(error)) => self.finish(Err(error)),
            Some(Trouble::Ended) => self.finish(Ok(false)),
            _ if !is_still => self.finish(Ok(false)),
            None if self.at == self.end() => self.finish(Ok(true)),
            None => {}
            Some(Trouble::Wrong(_)) if !self.careful => self.careful = true,
            Some(Trouble::Wrong(error)) => {
                let Spot { bucket, block } = self.spot();
                let error = match error.status {
                    NMC_ERR_NOT_FOUND => error.context("the file is gone"),
                    _ => error,
                };
                self.finish(Err(error.context(format!("bucket {bucket}, block {block}"))));
            }
        }
    }

    /// Fails if these are not the blocks of the header that the entry leads to.
    fn check_header<'h>(&self, bytes: &'h [u8]) -> Result<Header<'h>> {
        let header = Header::decode(bytes)?;
        let (entry, put, record) = (&self.read.entry.entry, self.read.entry.put, &header.record);
        if !header.is(self.read.key, put, entry.bytes) || record.space.number != entry.space {
            let same = if record.key == self.read.key { "the same key" } else { "another key" };
            crate::bail!(
                NMC_ERR_CORRUPT,
                "the record there has {same}, put {:x}, {} bytes and namespace {}, where the index says put {put:x}, {} bytes and \
                 namespace {}",
                record.put,
                record.value_bytes,
                record.space.number,
                entry.bytes,
                entry.space
            );
        }
        Ok(header)
    }
}

impl Reader {
    /// Does all jobs.
    pub(super) fn work(&self, map: &DiskMap, jobs: &mut [Job<'_, '_>]) {
        let mut flight = Flight::new(&self.pool);
        while jobs.iter().any(|job| !job.finished) {
            if let Err(error) = self.round(map, jobs, &mut flight) {
                jobs.iter_mut().filter(|job| !job.finished).for_each(|job| job.finish(Err(error.clone())));
            }
            flight.clear();
        }
    }

    /// One round, of all jobs that go well, or of one that does not.
    fn round(&self, map: &DiskMap, jobs: &mut [Job<'_, '_>], flight: &mut Flight<'_>) -> Result<()> {
        let mut round = Round { reader: self, map, jobs, seats: Vec::new(), parts: Vec::new(), granules: Vec::new() };
        let careful = round.jobs.iter().all(|job| job.finished || job.careful);
        for number in 0..round.jobs.len() {
            if round.jobs[number].finished || round.jobs[number].careful != careful {
                continue;
            }
            if !round.plan(number, flight)? || careful {
                break;
            }
        }
        let outcome = flight.read(&self.readers, |landed, number| round.arrived(landed, number));
        round.conclude(&outcome);
        Ok(())
    }
}

struct Round<'s, 'r, 'a> {
    reader: &'s Reader,
    map: &'s DiskMap,
    jobs: &'s mut [Job<'r, 'a>],
    seats: Vec<Seat<'a>>,
    parts: Vec<Part<'a>>,
    granules: Vec<Granule>,
}

impl<'a> Round<'_, '_, 'a> {
    /// Plans the reads of a job, as far as there is room. False if there is no room for more.
    fn plan(&mut self, number: usize, flight: &mut Flight<'_>) -> Result<bool> {
        let alone = self.jobs.len() == 1;
        let job = &mut self.jobs[number];
        let header_bytes = job.shape.header_bytes();
        if !self.seats.is_empty()
            && (self.seats.len() >= MOST_SEATS
                || self.parts.len() + PARTS_OF_A_GRANULE >= MOST_PARTS
                || !flight.has_scratch(header_bytes)?)
        {
            return Ok(false);
        }
        let (file, block) = match self.reader.files.get(job.spot(), job.careful) {
            Ok(found) => found,
            Err(error) => {
                let is_still = self.reader.is_still(self.map, &job.read.entry);
                job.settle(is_still, Some(Trouble::Wrong(error)));
                return Ok(true);
            }
        };
        let align = if job.careful { None } else { Some(file.memory_align() as u64) };
        flight.open(file)?;
        let seat = self.seats.len();
        let (parts, granules, first) = (self.parts.len(), self.granules.len(), job.at / GRANULE as u64);
        let mut plan = Plan {
            flight,
            parts: &mut self.parts,
            seat,
            record_at: block * BLOCK as u64,
            value_at: job.shape.value_at,
            longest: if matches!(job.read.to, Target::Take(_)) {
                TAKEN
            } else {
                self.reader.longest(job.read.bytes, alone)
            },
            align,
            walk: job.walk,
        };
        plan.header(header_bytes)?;
        let (mut at, end, total) = (job.at, job.end(), job.read.entry.entry.bytes);
        let mut full = false;
        if job.shape.inline {
            at = end;
        }
        while at < end {
            full = self.granules.len() > granules && plan.parts.len() + PARTS_OF_A_GRANULE > MOST_PARTS
                || !plan.flight.has_scratch(GRANULE)?;
            if full {
                break;
            }
            let begin = at / GRANULE as u64 * GRANULE as u64;
            let granule = begin..total.min(begin + GRANULE as u64);
            let wanted = at..end.min(granule.end);
            let part = plan.granule(&granule, &wanted, matches!(job.read.to, Target::Host(_)))?;
            let missing = granule.end - granule.start;
            memory::push(&mut self.granules, Granule { part, missing, is: 0, should: None })?;
            at = wanted.end;
        }
        if full && seat == 0 && self.granules.is_empty() {
            // Or the next round would be the same.
            return Err(memory::refused::<u8>(GRANULE));
        }
        let then = (at, plan.walk);
        let parts = parts..self.parts.len();
        let granules = granules..self.granules.len();
        let (missing, next) = (parts.len(), parts.start + 1);
        memory::push(
            &mut self.seats,
            Seat { job: number, parts, missing, granules, first, then, next, trouble: None },
        )?;
        Ok(!full)
    }

    /// A read has arrived: looks at it while others are under way.
    fn arrived(&mut self, landed: Landed<'_>, number: usize) {
        let Some(&Part { seat, at, ref role }) = self.parts.get(number) else { return };
        self.seats[seat].missing -= 1;
        let bytes = landed.bytes(number);
        let job = &self.jobs[self.seats[seat].job];
        if let Role::Copied(walk) = role {
            // From the first byte that is wanted; those behind the last one that is have no place.
            let from = job.at.max(at);
            let to = job.end().min(at + bytes.len() as u64);
            let mut walk = *walk;
            walk.fill(part_of(bytes, at, from..to));
        }
        let outcome = match role {
            Role::Header => self.header(seat, bytes),
            _ => {
                self.sum(landed, seat, at, bytes.len() as u64);
                Ok(())
            }
        };
        let outcome = outcome.and_then(|()| self.take(landed, seat));
        if let Err(trouble) = outcome {
            self.seats[seat].trouble.get_or_insert(trouble);
        }
    }

    /// A header has arrived: checks it, and keeps the sums that it has. An inline value is there, too.
    fn header(&mut self, seat: usize, bytes: &[u8]) -> std::result::Result<(), Trouble> {
        let seat = &mut self.seats[seat];
        let job = &mut self.jobs[seat.job];
        let header = job.check_header(bytes).map_err(Trouble::Wrong)?;
        job.info.metadata.clear();
        memory::extend(&mut job.info.metadata, header.record.metadata).map_err(Trouble::Refused)?;
        job.info.class = (header.record.retain, header.record.priority);
        let sum_of = |number: u64| u32::try_from(number).ok().and_then(|number| header.sum(number));
        for (number, granule) in (seat.first..).zip(&mut self.granules[seat.granules.clone()]) {
            granule.should = sum_of(number);
        }
        if !job.shape.inline || job.at == job.end() {
            return Ok(());
        }
        let total = job.read.entry.entry.bytes;
        let value = part_of(bytes, 0, job.shape.value_at..job.shape.value_at + total);
        check_sum(0, total, crc::crc32c(value), sum_of(0)).map_err(Trouble::Wrong)?;
        let (from, wanted) = (job.at, part_of(value, 0, job.at..job.end()));
        match &mut job.read.to {
            Target::Host(_) => {
                let mut walk = job.walk;
                walk.fill(wanted);
            }
            Target::Take(_) if !self.reader.is_still(self.map, &job.read.entry) => return Err(Trouble::Ended),
            Target::Take(take) => take(from, wanted).map_err(Trouble::Refused)?,
        }
        Ok(())
    }

    /// Bytes of a value have arrived: sums up the granules of which these were the last.
    fn sum(&mut self, landed: Landed<'_>, seat: usize, at: u64, bytes: u64) {
        let seat = &self.seats[seat];
        let total = self.jobs[seat.job].read.entry.entry.bytes;
        let (mut from, to) = (at, total.min(at + bytes));
        while from < to {
            let number = from / GRANULE as u64;
            let whole = number * GRANULE as u64..total.min((number + 1) * GRANULE as u64);
            let upto = to.min(whole.end);
            let index = usize::try_from(number - seat.first).map_or(usize::MAX, |n| seat.granules.start + n);
            if let Some(granule) = self.granules.get_mut(index) {
                granule.missing -= upto - from;
                if granule.missing == 0 {
                    let parts = (granule.part..seat.parts.end)
                        .map(|n| part_of(landed.bytes(n), self.parts[n].at, whole.clone()));
                    granule.is = parts.take_while(|part| !part.is_empty()).fold(0, crc::crc32c_append);
                }
            }
            from = upto;
        }
    }

    /// Hands on what is right, in order, to whoever takes it.
    fn take(&mut self, landed: Landed<'_>, seat: usize) -> std::result::Result<(), Trouble> {
        let seat = &mut self.seats[seat];
        let Job { read, at, .. } = &mut self.jobs[seat.job];
        let Target::Take(take) = &mut read.to else { return Ok(()) };
        let (end, total) = (read.offset + read.bytes, read.entry.entry.bytes);
        while seat.trouble.is_none()
            && landed.has(seat.parts.start)
            && landed.has(seat.next)
            && seat.next < seat.parts.end
        {
            let (bytes, first) = (landed.bytes(seat.next), self.parts[seat.next].at);
            // A part has whole granules here.
            for number in first / GRANULE as u64..(first + bytes.len() as u64).div_ceil(GRANULE as u64) {
                let granule =
                    usize::try_from(number - seat.first).ok().and_then(|n| self.granules.get(seat.granules.start + n));
                let Some(Granule { is, should, missing: 0, .. }) = granule else {
                    return Err(Trouble::Wrong(Error::new(NMC_ERR_INTERNAL, "a part of a value was not summed up")));
                };
                check_sum(number, total, *is, *should).map_err(Trouble::Wrong)?;
            }
            if !self.reader.is_still(self.map, &read.entry) {
                return Err(Trouble::Ended);
            }
            let wanted = first.max(*at)..end.min(first + bytes.len() as u64);
            take(wanted.start, part_of(bytes, first, wanted.clone())).map_err(Trouble::Refused)?;
            // A second try does not begin before what was taken.
            *at = wanted.end;
            seat.next += 1;
        }
        Ok(())
    }

    /// Everything has arrived that will.
    fn conclude(&mut self, outcome: &Result<()>) {
        for seat in &mut self.seats {
            let job = &mut self.jobs[seat.job];
            let mut trouble = seat.trouble.take();
            if trouble.is_none() && seat.missing > 0 {
                let stopped = || Error::new(NMC_ERR_INTERNAL, "a read did not arrive");
                trouble = Some(Trouble::Wrong(outcome.clone().err().unwrap_or_else(stopped)));
            }
            if trouble.is_none() {
                let total = job.read.entry.entry.bytes;
                let mut granules = (seat.first..).zip(&self.granules[seat.granules.clone()]);
                let wrong =
                    granules.try_for_each(|(number, granule)| check_sum(number, total, granule.is, granule.should));
                trouble = wrong.err().map(Trouble::Wrong);
            }
            if trouble.is_none() {
                (job.at, job.walk) = seat.then;
            }
            let is_still = self.reader.is_still(self.map, &job.read.entry);
            job.settle(is_still, trouble);
        }
    }
}

/// Plans reads of one job.
struct Plan<'p, 'f, 'a> {
    flight: &'p mut Flight<'f>,
    parts: &'p mut Vec<Part<'a>>,
    seat: usize,
    /// Where the record begins in its file, and the value in the record.
    record_at: u64,
    value_at: u64,
    longest: u32,
    /// What addresses must be multiples of for blocks to go straight there; without it none do.
    align: Option<u64>,
    walk: Walk<'a>,
}

impl<'a> Plan<'_, '_, 'a> {
    fn header(&mut self, bytes: usize) -> Result<()> {
        if !self.flight.has_scratch(bytes)? {
            crate::bail!(NMC_ERR_INTERNAL, "there is no scratch for a header of {bytes} bytes");
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        // Never longer than itself: nothing follows that could be part of it.
        self.flight.add_to_scratch(self.record_at, bytes, 0)?;
        memory::push(self.parts, Part { seat: self.seat, at: 0, role: Role::Header })
    }

    /// Plans a granule of which some bytes are wanted, and gives the first part that has some of it.
    fn granule(&mut self, granule: &Range<u64>, wanted: &Range<u64>, host: bool) -> Result<usize> {
        let (mut planned, mut at, mut first) = (granule.start, wanted.start, None);
        // Where the next bytes go that are copied.
        let mut copied = self.walk;
        while host && at < wanted.end {
            let Some(piece) = self.walk.step(wanted.end - at) else { break };
            let bytes = piece.bytes();
            let blocks = at.next_multiple_of(BLOCK as u64)..(at + bytes) / BLOCK as u64 * BLOCK as u64;
            let to = piece.behind(blocks.start - at).first(blocks.end.saturating_sub(blocks.start));
            if blocks.start < blocks.end && self.align.is_some_and(|align| to.address().is_multiple_of(align)) {
                let part = self.copied(planned..blocks.start, Role::Copied(copied))?;
                first = first.or(part);
                let part = self.add(&blocks, Some(to), Role::Straight)?;
                first = first.or(Some(part));
                copied.skip(blocks.end - wanted.start.max(planned));
                planned = blocks.end;
            }
            at += bytes;
        }
        let rest = planned..granule.end.next_multiple_of(BLOCK as u64);
        let role = if host { Role::Copied(copied) } else { Role::Taken };
        let part = self.copied(rest, role)?;
        Ok(first.or(part).unwrap_or(self.parts.len().saturating_sub(1)))
    }

    /// Plans blocks that go to scratch, if there are any, and gives the part that has them.
    fn copied(&mut self, blocks: Range<u64>, role: Role<'a>) -> Result<Option<usize>> {
        if blocks.is_empty() {
            return Ok(None);
        }
        self.add(&blocks, None, role).map(Some)
    }

    /// Plans blocks that go to a piece, or to scratch. Gives the part that has them now.
    fn add(&mut self, blocks: &Range<u64>, to: Option<Slice>, role: Role<'a>) -> Result<usize> {
        let same = self.parts.last().is_some_and(|last| {
            last.seat == self.seat && std::mem::discriminant(&last.role) == std::mem::discriminant(&role)
        });
        let longest = if same { self.longest } else { 0 };
        let offset = self.record_at + self.value_at + blocks.start;
        let bytes = u32::try_from(blocks.end - blocks.start).unwrap_or(u32::MAX);
        let is_new = match to {
            Some(to) => self.flight.add(offset, to, longest)?,
            None => self.flight.add_to_scratch(offset, bytes, longest)?,
        };
        if is_new {
            memory::push(self.parts, Part { seat: self.seat, at: blocks.start, role })?;
        }
        Ok(self.parts.len().saturating_sub(1))
    }
}

/// What `bytes`, which begin at `at`, have of `wanted`.
fn part_of(bytes: &[u8], at: u64, wanted: Range<u64>) -> &[u8] {
    let place = |position: u64| usize::try_from(position.saturating_sub(at)).unwrap_or(usize::MAX).min(bytes.len());
    let (from, to) = (place(wanted.start), place(wanted.end));
    bytes.get(from..to).unwrap_or(&[])
}

/// Fails if the sum of a granule of a value of `total` bytes is another one.
pub fn check_sum(number: u64, total: u64, is: u32, should: Option<u32>) -> Result<()> {
    match should {
        Some(should) if should == is => Ok(()),
        Some(should) => {
            let from = number * GRANULE as u64;
            let to = total.min(from + GRANULE as u64);
            crate::bail!(
                NMC_ERR_CORRUPT,
                "the bytes {from} to {to} of the value have CRC32C {is:08x} instead of {should:08x}"
            );
        }
        None => crate::bail!(NMC_ERR_CORRUPT, "the header has no sum for granule {number} of the value"),
    }
}
