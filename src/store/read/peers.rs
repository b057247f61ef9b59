//! Reads of what neither memory nor disk has, from others. Only handles that [`Store::with_peers`] has made do; any other pays one branch
//! on a miss, and nothing on a hit. What is read from elsewhere is not stored here: whoever reads it may keep a copy.

use super::get::other_size;
use super::pin::LOOKS;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_NOT_FOUND};
use crate::store::client::Store;
use crate::store::copy::{Pieces, Slice, read_to};
use crate::store::peers::{Ask, PeerRead, Peers};
use crate::store::types::{Look, Presence, check_key, check_within, show};
use std::sync::Arc;

/// Keys that are looked for together.
const WINDOW: usize = 256;

/// A call of a program that goes on to peers.
struct Far<'a> {
    peers: &'a dyn Peers,
    space: Vec<u8>,
    until: Deadline,
}

impl Store {
    /// Another handle of the same client and namespace, whose reads go on to these peers. So do those of the handles that
    /// [`Store::namespace`] makes of it.
    #[must_use]
    pub fn with_peers(&self, peers: Arc<dyn Peers>) -> Self {
        let mut store = self.share();
        store.peers = Some(peers);
        store
    }

    fn space_name(&self) -> Result<Vec<u8>> {
        let none = || Error::new(NMC_ERR_NOT_FOUND, format!("there is no namespace {}", self.namespace));
        self.namespace_name(self.namespace).ok_or_else(none)
    }

    /// Begins to go on to peers; `None` if the handle has none.
    fn far(&self) -> Result<Option<Far<'_>>> {
        let Some(peers) = self.peers.as_deref() else { return Ok(None) };
        Ok(Some(Far { peers, space: self.space_name()?, until: peers.begin()? }))
    }

    fn ask_far<R>(&self, far: &Far<'_>, body: impl FnOnce(&Ask<'_>) -> R) -> R {
        let interrupt = self.interrupt();
        body(&Ask { space: &far.space, until: &far.until, stop: &|| interrupt.check().is_err() })
    }

    /// Reads together what is nowhere here.
    fn read_far(&self, far: &Far<'_>, reads: &mut [PeerRead<'_>]) {
        self.ask_far(far, |ask| far.peers.read(ask, reads));
        // A value that did not fit was not read.
        let fits = |read: &PeerRead<'_>| Pieces::Slices(read.to).bytes().unwrap_or(0);
        for read in reads.iter() {
            if let Ok(Some(bytes)) = read.outcome
                && bytes <= fits(read)
            {
                self.client.counters.peer_hit(bytes);
            }
        }
    }

    fn read_one_far(&self, far: &Far<'_>, key: &[u8], to: &[Slice]) -> Result<Option<u64>> {
        let mut read = [PeerRead { key, to, outcome: Ok(None) }];
        self.read_far(far, &mut read);
        let [PeerRead { outcome, .. }] = read;
        outcome
    }

    /// Reads all of a value from elsewhere if it fits; gives its size in any case.
    #[cold]
    pub(super) fn whole_from_peers(&self, key: &[u8], pieces: &Pieces<'_>) -> Result<Look<u64>> {
        let Some(far) = self.far()? else { return Ok(Look::Missing) };
        self.whole_far(&far, key, pieces)
    }

    fn whole_far(&self, far: &Far<'_>, key: &[u8], pieces: &Pieces<'_>) -> Result<Look<u64>> {
        pieces.check()?;
        if self.client.is_host(pieces)? {
            let found = self.read_one_far(far, key, &pieces.slices()?)?;
            return Ok(found.map_or(Look::Missing, Look::Ready));
        }
        let room = pieces.bytes()?;
        self.by_way_of_host(far, key, |total| Ok((total <= room).then_some((0, total))), pieces)
    }

    /// Reads a part of a value, from `offset` on, as much as the pieces hold. `fits` is asked as for [`Store::read`].
    #[cold]
    pub(super) fn part_from_peers(
        &self,
        key: &[u8],
        offset: u64,
        pieces: &Pieces<'_>,
        fits: impl FnMut(u64) -> Result<bool>,
    ) -> Result<Look<u64>> {
        let Some(far) = self.far()? else { return Ok(Look::Missing) };
        self.part_far(&far, key, offset, pieces, fits)
    }

    fn part_far(
        &self,
        far: &Far<'_>,
        key: &[u8],
        offset: u64,
        pieces: &Pieces<'_>,
        mut fits: impl FnMut(u64) -> Result<bool>,
    ) -> Result<Look<u64>> {
        let wanted = pieces.bytes()?;
        if offset == 0 {
            match self.whole_far(far, key, pieces)? {
                Look::Ready(total) if total > wanted => {}
                Look::Ready(total) => {
                    if fits(total)? {
                        check_within(0, wanted, total)?;
                    }
                    return Ok(Look::Ready(total));
                }
                look => return Ok(look),
            }
        }
        let part = |total| {
            if !fits(total)? {
                return Ok(None);
            }
            check_within(offset, wanted, total)?;
            Ok(Some((offset, wanted)))
        };
        self.by_way_of_host(far, key, part, pieces)
    }

    /// Reads all of a value into memory of the library and the part that `part` names, when it is told the size, from there into
    /// the pieces; without one nothing.
    fn by_way_of_host(
        &self,
        far: &Far<'_>,
        key: &[u8],
        mut part: impl FnMut(u64) -> Result<Option<(u64, u64)>>,
        pieces: &Pieces<'_>,
    ) -> Result<Look<u64>> {
        let Some(mut total) = self.read_one_far(far, key, &[])? else { return Ok(Look::Missing) };
        for _ in 0..LOOKS {
            let Some((offset, bytes)) = part(total)? else { return Ok(Look::Ready(total)) };
            let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
            let mut value = memory::zeroed::<u8>(size(total))?;
            match read_to(&mut value, |to| self.read_one_far(far, key, to))? {
                None => return Ok(Look::Missing),
                Some(found) if found == total => {
                    let end = offset.saturating_add(bytes);
                    self.client.deliver(pieces, 0, value.get(size(offset)..size(end)).unwrap_or_default())?;
                    return Ok(Look::Ready(total));
                }
                // Another value has the key by now.
                Some(found) => total = found,
            }
        }
        Err(Error::new(NMC_ERR_BUSY, format!("{} was replaced again and again while it was read", show(key))))
    }

    /// Reads those of `n` values that are nowhere here, each into pieces of its size.
    #[cold]
    pub(super) fn get_many_far<'a>(
        &self,
        which: &[usize],
        item: impl Fn(usize) -> Result<(&'a [u8], Pieces<'a>)>,
        result: &mut impl FnMut(usize, Result<Look<u64>>),
    ) {
        let all = || {
            let all = memory::try_collect(which.iter().map(|number| {
                let (key, pieces) = item(*number)?;
                let host = self.client.is_host(&pieces)?;
                Ok((*number, key, pieces, if host { Some(pieces.slices()?) } else { None }))
            }));
            Ok::<_, Error>((all?, self.far()?))
        };
        let (all, far) = match all() {
            Ok((all, Some(far))) => (all, far),
            Ok((_, None)) => return which.iter().for_each(|number| result(*number, Ok(Look::Missing))),
            Err(error) => return which.iter().for_each(|number| result(*number, Err(error.clone()))),
        };
        let together = all.iter().filter_map(|(number, key, _, to)| Some((*number, *key, to.as_deref()?)));
        let reads = memory::collect(together.map(|(n, key, to)| (n, PeerRead { key, to, outcome: Ok(None) })));
        let read = reads.map(|reads| {
            let (numbers, mut reads): (Vec<usize>, Vec<PeerRead<'_>>) = reads.into_iter().unzip();
            self.read_far(&far, &mut reads);
            (numbers, reads)
        });
        match read {
            Ok((numbers, reads)) => {
                for (number, read) in numbers.into_iter().zip(reads) {
                    let wanted = Pieces::Slices(read.to).bytes().unwrap_or(0);
                    let exact = |found: Option<u64>| match found {
                        None => Ok(Look::Missing),
                        Some(total) if total == wanted => Ok(Look::Ready(total)),
                        Some(total) => Err(other_size(total, wanted)),
                    };
                    result(number, read.outcome.and_then(exact));
                }
            }
            Err(error) => {
                let host = all.iter().filter(|(_, _, _, to)| to.is_some());
                host.for_each(|(number, ..)| result(*number, Err(error.clone())));
            }
        }
        for (number, key, pieces, _) in all.iter().filter(|(_, _, _, to)| to.is_none()) {
            let exact = |wanted| {
                self.part_far(&far, key, 0, pieces, |total| {
                    if total == wanted { Ok(true) } else { Err(other_size(total, wanted)) }
                })
            };
            result(*number, pieces.bytes().and_then(exact));
        }
    }

    /// What was said elsewhere about a value that is nowhere here.
    pub(super) fn metadata_from_peers(&self, key: &[u8]) -> Result<Look<Vec<u8>>> {
        let Some(far) = self.far()? else { return Ok(Look::Missing) };
        let told = self.ask_far(&far, |ask| far.peers.metadata(ask, key))?;
        Ok(told.map_or(Look::Missing, Look::Ready))
    }

    /// What is known of a key, here and elsewhere.
    #[inline]
    pub fn presence_anywhere(&self, key: &[u8]) -> Result<Presence> {
        let here = self.presence(key);
        if matches!(here, Ok(Presence::Absent)) && self.peers.is_some() {
            return self.presence_elsewhere(key);
        }
        here
    }

    #[cold]
    fn presence_elsewhere(&self, key: &[u8]) -> Result<Presence> {
        let mut found = [Presence::Absent];
        if let Some(far) = self.far()? {
            self.find_far(&far, &[key], &mut found)?;
        }
        Ok(found[0])
    }

    /// Asks peers for those of these keys that are not here.
    fn find_far(&self, far: &Far<'_>, keys: &[&[u8]], found: &mut [Presence]) -> Result<()> {
        let absent = keys.iter().zip(found.iter()).filter(|(_, found)| **found == Presence::Absent);
        let absent: Vec<&[u8]> = memory::collect(absent.map(|(key, _)| *key))?;
        if absent.is_empty() {
            return Ok(());
        }
        let told = self.ask_far(far, |ask| far.peers.find(ask, &absent))?;
        let places = found.iter_mut().filter(|found| **found == Presence::Absent);
        places.zip(told).filter(|(_, there)| *there).for_each(|(place, _)| *place = Presence::Elsewhere);
        Ok(())
    }

    /// Looks for many keys as [`Store::look_many`] does, here and elsewhere: elsewhere for some together.
    #[inline]
    pub fn look_many_anywhere<'k>(
        &self,
        mut keys: impl Iterator<Item = Result<&'k [u8]>>,
        mut go_on: impl FnMut(Presence) -> bool,
    ) -> Result<()> {
        match self.peers {
            None => self.look_many(keys, go_on),
            Some(_) => self.look_many_far(&mut keys, &mut go_on),
        }
    }

    #[cold]
    fn look_many_far(
        &self,
        keys: &mut dyn Iterator<Item = Result<&[u8]>>,
        go_on: &mut dyn FnMut(Presence) -> bool,
    ) -> Result<()> {
        let (mut window, mut found) = (memory::with_capacity(WINDOW)?, memory::with_capacity(WINDOW)?);
        let far = self.far()?;
        loop {
            window.clear();
            found.clear();
            for key in (&mut *keys).take(WINDOW) {
                let key = key?;
                check_key(key)?;
                window.push(key);
            }
            self.look_many(window.iter().map(|key| Ok(*key)), |presence| {
                found.push(presence);
                true
            })?;
            if let Some(far) = &far {
                self.find_far(far, &window, &mut found)?;
            }
            if window.is_empty() || !found.iter().all(|presence| go_on(*presence)) {
                return Ok(());
            }
        }
    }
}
