//! The journal of a directory: which records are dead, which buckets are gone, what namespaces are called. It is written in one
//! go after the master's lock, so that it survives whoever is killed, and synced where a power loss must be survived as well.
//! A file that cannot be written or synced is never tried again: everything is written anew, to the next one.

use super::format::{
    Entry, JOURNAL_RECORD, Replay, Replayer, Space, encode_entries, encode_entry, journal_name, journal_number,
    journal_temporary_name,
};
use super::io::{Disk, File, create_temporary};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_LIMIT, NMC_ERR_NO_SPACE};
use std::sync::Arc;

/// Records that a fresh journal has room for beyond those it begins with: 4 MiB.
const ROOM: u64 = if cfg!(test) { 8 } else { 32_768 };

/// Room in a journal that begins with so many records: as much again, so that it is written anew ever more seldom.
fn room_for(records: u64) -> u64 {
    ROOM.max(records)
}

/// Whoever opens a directory goes on with a multiple of this. Journals of the former owner that got a name and no sync have lower
/// numbers, and do not count if they come back.
const ERA: u64 = 1 << 20;

/// Bytes of a journal that are read at a time: whole records.
const PIECE: usize = 1 << 20;
/// A journal may be so long, whatever it says. Much of that is nothing: it takes time to read, but no memory.
const MOST_SURPLUS: u64 = 4 << 30;

/// Where a bucket lies in the one file that has them all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its number.
    pub bucket: u64,
    /// Its first block.
    pub first: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// What a journal says, all in all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Namespaces: number, generation and name.
    pub spaces: Vec<(Space, Vec<u8>)>,
    /// No bucket above this one was ever begun.
    pub high: u64,
    /// Dead records: bucket and block. Sorted and without doubles after [`State::tidy`].
    pub dead: Vec<(u64, u64)>,
    /// Buckets whose files may come back.
    pub gone: Vec<u64>,
    /// Buckets that are there and could not be read: the tier went on without them.
    pub lost: Vec<u64>,
    /// Buckets that lie in one file, in the order of their numbers.
    pub extents: Vec<Extent>,
    /// How far the drop log of a cluster was applied: term and number.
    pub position: Option<(u64, u64)>,
}

impl State {
    /// A copy of the names of namespaces.
    pub fn names(&self) -> Result<Vec<(Space, Vec<u8>)>> {
        memory::try_collect(self.spaces.iter().map(|(space, name)| Ok((*space, memory::copy(name)?))))
    }

    /// Room for what these records say: then nothing can fail.
    fn make_room(&mut self, entries: &[Entry]) -> Result<()> {
        let number_of = |kind: fn(&Entry) -> bool| entries.iter().filter(|entry| kind(entry)).count();
        memory::reserve(&mut self.dead, number_of(|entry| matches!(entry, Entry::Dead { .. })))?;
        memory::reserve(&mut self.gone, number_of(|entry| matches!(entry, Entry::Gone { .. })))?;
        memory::reserve(&mut self.lost, number_of(|entry| matches!(entry, Entry::Lost { .. })))?;
        memory::reserve(&mut self.extents, number_of(|entry| matches!(entry, Entry::Extent { .. })))?;
        memory::reserve(&mut self.spaces, number_of(|entry| matches!(entry, Entry::Namespace { .. })))
    }

    /// Takes in what a record says, and a name with it. There is room for it.
    fn apply(&mut self, entry: &mut Entry) {
        match entry {
            Entry::Dead { bucket, block } => self.dead.push((*bucket, *block)),
            Entry::Gone { bucket } => {
                self.extents.retain(|extent| extent.bucket != *bucket);
                self.gone.push(*bucket);
            }
            Entry::Lost { bucket } => self.lost.push(*bucket),
            Entry::Extent { bucket, first, blocks } => {
                self.extents.push(Extent { bucket: *bucket, first: *first, blocks: *blocks });
            }
            Entry::Namespace { name, space } => {
                self.spaces.retain(|(known, other)| known.number != space.number && other != name);
                self.spaces.push((*space, std::mem::take(name)));
            }
            Entry::Generation(space) => {
                for (known, _) in self.spaces.iter_mut().filter(|(known, _)| known.number == space.number) {
                    known.generation = space.generation;
                }
            }
            Entry::High { bucket } => self.high = self.high.max(*bucket),
            // Without a term: what is here is of no cluster.
            Entry::Position { term, number } => self.position = (*term != 0).then_some((*term, *number)),
            Entry::Start { .. } => {}
        }
    }

    /// Sorts, and forgets what is said twice, or of buckets that are gone.
    pub fn tidy(&mut self) {
        self.gone.sort_unstable();
        self.gone.dedup();
        self.dead.sort_unstable();
        self.dead.dedup();
        self.lost.sort_unstable();
        self.lost.dedup();
        let gone = &self.gone;
        self.dead.retain(|(bucket, _)| gone.binary_search(bucket).is_err());
        self.lost.retain(|bucket| gone.binary_search(bucket).is_err());
        self.extents.sort_unstable_by_key(|extent| extent.bucket);
    }

    /// Forgets marks for buckets other than these, which are sorted: one that is not there, nor gone, never had a name that
    /// lasted.
    fn keep(&mut self, buckets: &[u64]) {
        self.dead.retain(|(bucket, _)| buckets.binary_search(bucket).is_ok());
        self.lost.retain(|bucket| buckets.binary_search(bucket).is_ok());
    }

    /// Whether a record is dead. After [`State::tidy`].
    #[must_use]
    pub fn is_dead(&self, bucket: u64, block: u64) -> bool {
        self.dead.binary_search(&(bucket, block)).is_ok()
    }

    /// The records of a journal that says the same.
    fn entries(&self, tier_id: u64, journal: u64) -> Result<Vec<Entry>> {
        let marks = self.dead.len() + self.gone.len() + self.lost.len() + self.extents.len();
        let mut entries = memory::with_capacity(3 + self.spaces.len() + marks)?;
        entries.push(Entry::Start { tier_id, journal });
        entries.push(Entry::High { bucket: self.high });
        entries.extend(self.position.map(|(term, number)| Entry::Position { term, number }));
        for (space, name) in &self.spaces {
            entries.push(Entry::Namespace { name: memory::copy(name)?, space: *space });
        }
        entries.extend(self.gone.iter().map(|bucket| Entry::Gone { bucket: *bucket }));
        entries.extend(self.lost.iter().map(|bucket| Entry::Lost { bucket: *bucket }));
        entries.extend(self.extents.iter().map(|extent| {
            let Extent { bucket, first, blocks } = *extent;
            Entry::Extent { bucket, first, blocks }
        }));
        entries.extend(self.dead.iter().map(|(bucket, block)| Entry::Dead { bucket: *bucket, block: *block }));
        Ok(entries)
    }
}

/// See the module.
pub struct Journal {
    disk: Arc<dyn Disk>,
    tier_id: u64,
    file: Box<dyn File>,
    /// Of the file, and of the last one that was begun: what failed is not written again, nor is its name given again.
    number: u64,
    begun: u64,
    /// The next record, and how many there are room for.
    next: u64,
    room: u64,
    /// Records below this one are durable.
    durable: u64,
    /// Records from here on say something that is not durable yet.
    settled: u64,
    /// The file could not be written or synced, or is full: nothing is added to it any more.
    failed: bool,
    /// Records that were refused may be found all the same by whoever reads the directory, until a journal is written anew.
    in_doubt: bool,
    /// A sync of the directory failed: names that were taken away before may come back whatever later syncs say.
    names_in_doubt: bool,
    state: State,
}

impl Journal {
    /// The first journal of a directory.
    pub fn create(disk: &Arc<dyn Disk>, tier_id: u64) -> Result<Self> {
        Self::begin(disk, tier_id, 0, State::default())
    }

    /// Goes on where another one ended: writes what it said anew, without what is over. `names` are the files in the directory,
    /// `latest` is what [`read_latest`] gave, and `buckets` are those that are there.
    pub fn resume(
        disk: &Arc<dyn Disk>,
        tier_id: u64,
        names: &[String],
        latest: (u64, State),
        buckets: &[u64],
    ) -> Result<Self> {
        let (number, mut state) = latest;
        state.keep(buckets);
        let journal = Self::begin(disk, tier_id, (number / ERA + 1).saturating_mul(ERA), state)?;
        for former in names.iter().filter(|name| journal_number(name).is_some()) {
            // If it comes back, the next one counts.
            let _ = disk.unlink(former);
        }
        Ok(journal)
    }

    fn begin(disk: &Arc<dyn Disk>, tier_id: u64, number: u64, state: State) -> Result<Self> {
        let (file, next) = write_whole(&**disk, tier_id, number, &state, &[]).map_err(|refused| refused.error)?;
        Ok(Self {
            disk: Arc::clone(disk),
            tier_id,
            file,
            number,
            begun: number,
            next,
            room: next + room_for(next),
            durable: next,
            settled: next,
            failed: false,
            in_doubt: false,
            names_in_doubt: false,
            state,
        })
    }

    /// What it says.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// A sync of the directory failed.
    pub fn doubt_names(&mut self) {
        self.names_in_doubt = true;
    }

    /// The directory was synced after these buckets' files were taken away: their marks are over with the next journal.
    pub fn forget(&mut self, over: &mut [u64]) {
        if self.names_in_doubt {
            return;
        }
        over.sort_unstable();
        self.state.gone.retain(|bucket| over.binary_search(bucket).is_err());
        self.state.dead.retain(|(bucket, _)| over.binary_search(bucket).is_err());
    }

    /// Whether records that were refused may be found all the same.
    #[must_use]
    pub fn in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Whether somebody may find that this bucket lies in the one file that has them all.
    #[must_use]
    pub fn may_have(&self, bucket: u64) -> bool {
        self.in_doubt || self.state.extents.iter().any(|extent| extent.bucket == bucket)
    }

    /// Adds records; they survive whoever is killed. If it fails, they are as they were, and so is what is said here; whether a
    /// part of them is on disk may be in doubt.
    pub fn append(&mut self, entries: &mut [Entry]) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let bytes = encode_entries(self.next, self.durable, self.tier_id, entries)?;
        self.state.make_room(entries)?;
        let end = self.next + entries.len() as u64;
        // The last one is for `sync`.
        if self.failed || end >= self.room {
            return self.begin_anew(entries);
        }
        if let Err(error) = self.file.write(&bytes, self.next * JOURNAL_RECORD as u64) {
            // What must not be so long is as it was.
            self.in_doubt |= error.status != NMC_ERR_LIMIT;
            return self.begin_anew(entries).map_err(|second| worse(error, &second));
        }
        self.next = end;
        entries.iter_mut().for_each(|entry| self.state.apply(entry));
        Ok(())
    }

    /// Everything that was added is durable when this returns.
    pub fn sync(&mut self) -> Result<()> {
        if self.failed {
            return self.begin_anew(&mut []);
        }
        if self.next == self.settled {
            return Ok(());
        }
        if let Err(error) = self.file.datasync() {
            return self.begin_anew(&mut []).map_err(|second| worse(error, &second));
        }
        self.durable = self.next;
        // A record that says so: what is damaged from here on is not taken for what was never synced.
        let mark = encode_entry(self.next, self.durable, self.tier_id, &Entry::High { bucket: self.state.high });
        if self.file.write(&mark, self.next * JOURNAL_RECORD as u64).is_err() {
            // What is durable is so without it.
            self.settled = self.next;
            let _ = self.begin_anew(&mut []);
            return Ok(());
        }
        self.next += 1;
        self.settled = self.next;
        Ok(())
    }

    /// Goes on with a new file, which says everything, and these. One that cannot be written is tried once more, elsewhere.
    fn begin_anew(&mut self, entries: &mut [Entry]) -> Result<()> {
        self.failed = true;
        self.state.tidy();
        self.try_anew(entries).or_else(|error| match error.status {
            NMC_ERR_NO_SPACE | NMC_ERR_LIMIT => Err(error),
            _ => self.try_anew(entries),
        })
    }

    fn try_anew(&mut self, entries: &mut [Entry]) -> Result<()> {
        if self.begun % ERA == ERA - 1 {
            crate::bail!(NMC_ERR_IO, "the journal was written anew {ERA} times: the tier has to be opened again");
        }
        let number = self.begun + 1;
        let (file, next) = match write_whole(&*self.disk, self.tier_id, number, &self.state, entries) {
            Ok(written) => written,
            Err(Refused { error, named }) => {
                // A number that no name was made of is there for the next try: there may be very many.
                self.begun += u64::from(named);
                // The sync of the directory may have failed, and the name may last.
                self.names_in_doubt |= named;
                self.in_doubt |= named && !entries.is_empty();
                return Err(error);
            }
        };
        self.file = file;
        let _ = self.disk.unlink(&journal_name(self.number));
        (self.begun, self.number, self.failed, self.in_doubt) = (number, number, false, false);
        (self.next, self.room, self.durable, self.settled) = (next, next + room_for(next), next, next);
        entries.iter_mut().for_each(|entry| self.state.apply(entry));
        Ok(())
    }
}

/// Why a journal could not be written, and whether it may be found under its name all the same.
struct Refused {
    error: Error,
    named: bool,
}

/// Writes a whole journal, of what is said and of these records, under a temporary name and gives it its own when it is safe. Gives
/// how many records it has.
fn write_whole(
    disk: &dyn Disk,
    tier_id: u64,
    number: u64,
    state: &State,
    more: &[Entry],
) -> std::result::Result<(Box<dyn File>, u64), Refused> {
    let (temporary, name) = (journal_temporary_name(number), journal_name(number));
    let mut named = false;
    let written = (|| {
        let entries = state.entries(tier_id, number)?;
        let (first, next) = (entries.len() as u64, (entries.len() + more.len()) as u64);
        let bytes = encode_entries(0, next, tier_id, &entries)?;
        let more = encode_entries(first, next, tier_id, more)?;
        let file = create_temporary(disk, &temporary, (next + room_for(next)) * JOURNAL_RECORD as u64)?;
        file.write(&bytes, 0)?;
        file.write(&more, bytes.len() as u64)?;
        file.datasync()?;
        // One that has no space for a name gives none.
        disk.rename(&temporary, &name).inspect_err(|error| named = error.status != NMC_ERR_NO_SPACE)?;
        named = true;
        disk.sync()?;
        Ok((file, next))
    })();
    written.map_err(|error: Error| {
        let _ = disk.unlink(&temporary);
        // It may be here after a crash or not.
        let _ = disk.unlink(&name);
        Refused { error: error.context("writing the journal"), named }
    })
}

#[cold]
fn worse(first: Error, second: &Error) -> Error {
    // A full disk is not a broken one, nor is one on which no file may be opened.
    let passes = matches!(second.status, NMC_ERR_NO_SPACE | NMC_ERR_LIMIT);
    let status = if passes { second.status } else { first.status };
    Error::new(status, format!("{}; and then {}", first.message, second.message))
}

/// What the journal of a directory says, of whose files these are the names, and its number.
pub fn read_latest(disk: &dyn Disk, tier_id: u64, names: &[String]) -> Result<(u64, State)> {
    let Some(number) = names.iter().filter_map(journal_number).max() else {
        return Err(Error::new(NMC_ERR_CORRUPT, "the directory has no journal"));
    };
    Ok((number, read(disk, tier_id, number)?))
}

/// Reads the file of a journal, however long it is, a piece at a time.
pub fn replay(file: &dyn File, tier_id: u64) -> Result<Replay> {
    let bytes = file.bytes()?;
    let mut piece = memory::zeroed::<u8>(usize::try_from(bytes).unwrap_or(PIECE).min(PIECE))?;
    let (mut replayer, mut at) = (Replayer::new(tier_id), 0);
    while at < bytes {
        let next = usize::try_from(bytes - at).unwrap_or(PIECE).min(PIECE);
        file.read(&mut piece[..next], at)?;
        replayer.read(&piece[..next])?;
        if at == 0 && bytes > most_bytes(replayer.durable()) {
            crate::bail!(NMC_ERR_CORRUPT, "it has {bytes} bytes, which is more than a journal can have");
        }
        at += next as u64;
    }
    replayer.finish()
}

/// Bytes that a journal is not longer than whose first piece says that so many records are durable: a multiple of what it is made
/// with.
fn most_bytes(durable: u64) -> u64 {
    (durable + room_for(durable)).saturating_mul(8 * JOURNAL_RECORD as u64).max(MOST_SURPLUS)
}

/// What journal `number` of a directory says.
pub fn read(disk: &dyn Disk, tier_id: u64, number: u64) -> Result<State> {
    let name = journal_name(number);
    let file = disk.open_buffered(&name, false)?;
    let mut replay = replay(&*file, tier_id).map_err(|error| error.context(&name))?;
    match replay.entries.first() {
        Some((0, Entry::Start { journal, .. })) if *journal == number => {}
        first => crate::bail!(NMC_ERR_CORRUPT, "{name}: it begins with {first:?}"),
    }
    let mut state = State::default();
    for (expected, (number, entry)) in (0..).zip(&mut replay.entries) {
        // Behind a record that was lost, a position says too much: what led to it may have been lost as well.
        if *number == expected || !matches!(entry, Entry::Position { .. }) {
            state.make_room(std::slice::from_ref(entry))?;
            state.apply(entry);
        }
    }
    state.tidy();
    Ok(state)
}
