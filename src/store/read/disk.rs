//! Reads of what memory does not have, from the disk below it. They ask nobody: entries are found in shared memory, and files
//! are read by the calling process.

use super::get::other_size;
use super::pin::LOOKS;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_CORRUPT, NMC_ERR_NOT_FOUND, NMC_ERR_UNAVAILABLE};
use crate::store::client::{CALL_SUSPECT, GRANT, Interrupt, Store};
use crate::store::copy::Pieces;
use crate::store::disk::{DiskAccess, DiskEntry, DiskRead, Target};
use crate::store::types::{Look, Sums, check_key, show};
use crate::store::wire::Request;
use crate::sync::disk_entry::moves_of_same;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// What an owner may be giving up, or may keep.
#[cold]
fn not_judged(error: &Error) -> Error {
    let text = format!("{}; whether it was given up is known when the tier has an owner", error.message);
    Error::new(NMC_ERR_UNAVAILABLE, text)
}

impl Store {
    /// Looks for a key that memory did not have, on disk and in memory, until one of them has it or it is certain that none
    /// does. `read` is called with what the disk has, and gives `None` if that ended; or without, and looks into memory.
    #[cold]
    pub(in crate::store) fn look_on_disk<T>(
        &self,
        mut disk: DiskAccess,
        key: &[u8],
        mut read: impl FnMut(Option<(&DiskAccess, &DiskEntry)>) -> Result<Option<Look<T>>>,
    ) -> Result<Look<T>> {
        for _ in 0..LOOKS {
            // In this order: a key that moves from memory to disk is on disk before it leaves memory, and one that moves the
            // other way is counted when it is in memory, and before it ends on disk; whether because it was replaced, or
            // because its bucket went after it had been read into memory.
            let moved = disk.map.view().header().moved.load(Acquire);
            match read(None)? {
                None | Some(Look::Missing) => {}
                Some(look) => return Ok(look),
            }
            if let Some(entry) = disk.map.probe(self.namespace, key)? {
                if let Some(look) = read(Some((&disk, &entry)))? {
                    return Ok(look);
                }
            } else if disk.map.view().header().moved.load(Relaxed) == moved && !self.is_former(&disk) {
                return Ok(Look::Missing);
            }
            if self.is_former(&disk) {
                // It was opened anew, or closed.
                match self.disk()? {
                    Some(access) => disk = access,
                    None => return Ok(read(None)?.unwrap_or(Look::Missing)),
                }
            }
        }
        Err(Error::new(NMC_ERR_BUSY, format!("{} was moved again and again while it was read", show(key))))
    }

    /// Reads a part of what an entry leads to; false if the entry has ended.
    pub(in crate::store) fn read_entry(
        &self,
        disk: &DiskAccess,
        entry: &DiskEntry,
        key: &[u8],
        offset: u64,
        pieces: &Pieces<'_>,
    ) -> Result<bool> {
        let bytes = pieces.bytes()?;
        let mut deliver = |at: u64, bytes: &[u8]| self.client.deliver(pieces, at - offset, bytes);
        let to = if self.client.reads_into(pieces)? { Target::Host(*pieces) } else { Target::Take(&mut deliver) };
        let mut read = [DiskRead { entry: *entry, key, offset, bytes, to, outcome: Ok(false) }];
        disk.reader.read(&disk.map, &mut read);
        let [DiskRead { outcome, .. }] = read;
        let read = self.judge(disk, entry, bytes, outcome)?;
        if read {
            disk.map.count_read(entry, self.rank());
        }
        Ok(read)
    }

    /// Whether the store has another tier by now, or none.
    fn is_former(&self, disk: &DiskAccess) -> bool {
        self.client.view().header().disk.load(Acquire) != disk.map.id()
    }

    /// What it means that something is not whole that was come to on the way through everything on disk. An owner that was killed may
    /// have been giving it up, and the next one goes on with that before this index ends.
    #[must_use]
    pub fn judge_list(&self, disk: &DiskAccess, error: Error) -> Error {
        if error.status != NMC_ERR_CORRUPT {
            return error;
        }
        // Nobody's entry: whoever answers is the owner.
        let nothing = Request::Disk(CALL_SUSPECT, [u64::from(u32::MAX), 0], Vec::new());
        if self.call_soon(&nothing, GRANT).is_ok() && !self.is_former(disk) {
            return error;
        }
        not_judged(&error)
    }

    /// What came of a read: counts it, and tells the owner of what cannot be read.
    pub(in crate::store) fn judge(
        &self,
        disk: &DiskAccess,
        entry: &DiskEntry,
        bytes: u64,
        outcome: Result<bool>,
    ) -> Result<bool> {
        match &outcome {
            Ok(true) => self.client.counters.disk_hit(bytes),
            Ok(false) => {}
            // An index that is not the store's any more may lead to what is no longer there.
            Err(_) if self.is_former(disk) => return Ok(false),
            Err(error) if matches!(error.status, NMC_ERR_CORRUPT | NMC_ERR_NOT_FOUND) => {
                // It looks itself. If it cannot be reached, or does not answer soon, the next one who reads tells it.
                let suspect = Request::Disk(CALL_SUSPECT, [entry.index.into(), entry.word], Vec::new());
                let told = self.call_soon(&suspect, GRANT);
                if error.status == NMC_ERR_NOT_FOUND {
                    // Whoever gave the file up may have been killed before the entry ended, and the next owner takes it away first.
                    return match told {
                        Ok(_) if self.is_former(disk) => Ok(false),
                        Ok(_) => Err(Error::new(NMC_ERR_CORRUPT, error.message.clone())),
                        Err(_) => Err(not_judged(error)),
                    };
                }
            }
            Err(_) => {}
        }
        outcome
    }

    /// Reads `n` values, each into pieces of its size; `item` names them by their numbers, `result` hears what came of each. What is
    /// on disk is read together, 64 values at a time. So is what peers have.
    pub fn get_many_into<'a>(
        &self,
        n: usize,
        item: impl Fn(usize) -> Result<(&'a [u8], Pieces<'a>)>,
        mut result: impl FnMut(usize, Result<Look<u64>>),
    ) {
        if self.peers.is_none() {
            return self.get_many_here(n, item, result);
        }
        let mut missed = Vec::new();
        self.get_many_here(n, &item, |number, look| match look {
            Ok(Look::Missing) => {
                if let Err(error) = memory::push(&mut missed, number) {
                    result(number, Err(error));
                }
            }
            look => result(number, look),
        });
        if !missed.is_empty() {
            self.get_many_far(&missed, item, &mut result);
        }
    }

    fn get_many_here<'a>(
        &self,
        n: usize,
        item: impl Fn(usize) -> Result<(&'a [u8], Pieces<'a>)>,
        mut result: impl FnMut(usize, Result<Look<u64>>),
    ) {
        // What memory does not have; nothing is allocated if it has all, or there is no disk.
        let mut late: Vec<(usize, &[u8], Pieces<'_>)> = Vec::new();
        // Looked at after memory: what has left it is on a disk that is there by then.
        let with_disk = || self.client.view().header().disk.load(Acquire) != 0;
        for number in 0..n {
            let (key, pieces) = match item(number) {
                Ok(item) => item,
                Err(error) => {
                    result(number, Err(error));
                    continue;
                }
            };
            match self.get_from_memory(key, &pieces) {
                Ok(Look::Missing) if with_disk() => {
                    if let Err(error) = memory::push(&mut late, (number, key, pieces)) {
                        result(number, Err(error));
                    }
                }
                look => result(number, look),
            }
        }
        if late.is_empty() {
            return;
        }
        match self.disk() {
            Ok(Some(disk)) => self.get_late(&disk, &late, &mut result),
            Ok(None) => late.iter().for_each(|(number, ..)| result(*number, Ok(Look::Missing))),
            Err(error) => late.iter().for_each(|(number, ..)| result(*number, Err(error.clone()))),
        }
    }

    /// Reads what memory did not have, all of it together as far as that can be.
    fn get_late(
        &self,
        disk: &DiskAccess,
        late: &[(usize, &[u8], Pieces<'_>)],
        result: &mut impl FnMut(usize, Result<Look<u64>>),
    ) {
        let mut alone: Vec<usize> = Vec::new();
        let (mut reads, mut places): (Vec<DiskRead<'_>>, Vec<usize>) = (Vec::new(), Vec::new());
        // Into what is not read straight they are taken.
        let takers = memory::collect(
            late.iter().map(|(_, _, pieces)| |at: u64, bytes: &[u8]| self.client.deliver(pieces, at, bytes)),
        );
        let room = memory::reserve(&mut alone, late.len())
            .and_then(|()| memory::reserve(&mut reads, late.len()))
            .and_then(|()| memory::reserve(&mut places, late.len()));
        // Without memory for lists they are read one after the other.
        let (Ok(mut takers), Ok(())) = (takers, room) else {
            late.iter().for_each(|(number, key, pieces)| result(*number, self.get_one_late(disk, key, pieces)));
            return;
        };
        for ((at, (_, key, pieces)), taker) in late.iter().enumerate().zip(&mut takers) {
            let found = disk.map.probe(self.namespace, key).ok().flatten();
            let bytes = pieces.bytes().unwrap_or(0);
            match (found, self.client.reads_into(pieces)) {
                (Some(entry), Ok(straight)) if entry.entry.bytes == bytes => {
                    let to = if straight { Target::Host(*pieces) } else { Target::Take(taker) };
                    reads.push(DiskRead { entry, key, offset: 0, bytes, to, outcome: Ok(false) });
                    places.push(at);
                }
                // One at a time: what has another size, and what may have moved.
                _ => alone.push(at),
            }
        }
        disk.reader.read(&disk.map, &mut reads);
        for (at, read) in places.into_iter().zip(reads) {
            match self.judge(disk, &read.entry, read.bytes, read.outcome) {
                Ok(true) => {
                    disk.map.count_read(&read.entry, self.rank());
                    result(late[at].0, Ok(Look::Ready(read.bytes)));
                }
                Ok(false) => alone.push(at),
                Err(error) => result(late[at].0, Err(error)),
            }
        }
        for at in alone {
            let (number, key, pieces) = &late[at];
            result(*number, self.get_one_late(disk, key, pieces));
        }
    }

    fn get_one_late(&self, disk: &DiskAccess, key: &[u8], pieces: &Pieces<'_>) -> Result<Look<u64>> {
        let wanted = pieces.bytes()?;
        let fits = |total, _| if total == wanted { Ok(true) } else { Err(other_size(total, wanted)) };
        self.part_from_disk(disk.clone(), key, 0, pieces, Sums::Touched, fits)
    }

    /// The disk below the store, and how many values have ended there and stayed in memory. If nothing of it changes, whatever came into
    /// memory from there is still on disk.
    pub(in crate::store) fn moves_on_disk(&self, interrupt: &Interrupt<'_>) -> Result<Option<(u64, u64)>> {
        let disk = self.disk_for_call_until(interrupt)?;
        Ok(disk.map(|disk| (disk.map.id(), moves_of_same(disk.map.view().header().moved.load(Acquire)))))
    }

    /// Tells what the writer of a value said about it, wherever the value is.
    pub fn tell_metadata(&self, key: &[u8], tell: impl FnOnce(&[u8]) -> Result<()>) -> Result<Look<()>> {
        Ok(match self.metadata(key)? {
            Look::Ready(metadata) => Look::Ready(tell(&metadata)?),
            Look::Writing(index, epoch) => Look::Writing(index, epoch),
            Look::Missing => match self.metadata_below(key)? {
                Look::Ready(metadata) => Look::Ready(tell(&metadata)?),
                Look::Writing(index, epoch) => Look::Writing(index, epoch),
                Look::Missing => Look::Missing,
            },
        })
    }

    /// What its writer said about a value that memory did not have: by its record on disk, or by whoever has it.
    #[cold]
    fn metadata_below(&self, key: &[u8]) -> Result<Look<Vec<u8>>> {
        match self.disk_metadata(key)? {
            Look::Missing => self.metadata_from_peers(key),
            look => Ok(look),
        }
    }

    /// What its writer said about a value, by its record, or by memory if it is there by now.
    pub fn disk_metadata(&self, key: &[u8]) -> Result<Look<Vec<u8>>> {
        check_key(key)?;
        let Some(disk) = self.disk()? else { return Ok(Look::Missing) };
        self.look_on_disk(disk, key, |found| match found {
            None => Ok(Some(match self.metadata(key)? {
                Look::Ready(metadata) => Look::Ready(memory::copy(&metadata)?),
                Look::Writing(index, epoch) => Look::Writing(index, epoch),
                Look::Missing => Look::Missing,
            })),
            Some((disk, entry)) => {
                let told = disk.reader.infos(&disk.map, &[(*entry, key)])?.pop().unwrap_or(Ok(None));
                Ok(told?.map(|info| Look::Ready(info.metadata)))
            }
        })
    }
}
