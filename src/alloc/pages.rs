//! The books of pages that are shared by count and mapped into ranges: [`Pages`] knows which page has memory behind it and
//! how many hold it, [`Slots`] which page is mapped where in a range. They are numbers only, the same for host and CUDA
//! memory; what lies behind a page is the caller's business. One owner at a time.

use crate::bail;
use crate::base::error::Result;
use crate::base::memory;

/// Number of a page in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// How many pages are in which state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageCounts {
    /// All pages of the pool.
    pub total: u32,
    /// Pages that somebody holds.
    pub used: u32,
    /// Pages with memory behind them that nobody holds.
    pub idle: u32,
}

/// A page that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Has the memory of its last holder.
    Idle(PageId),
    /// Has no memory yet: the taker gets it some, or says [`Pages::park`] if there is none.
    Bare(PageId),
}

/// Holders and memory of every page of a pool.
#[derive(Debug)]
pub(crate) struct Pages {
    /// Holders of each page; 0 for pages in one of the lists below or between them.
    holders: Vec<u32>,
    /// With memory, the last used first: its memory is the likeliest to be in a cache.
    idle: Vec<u32>,
    /// Were taken, and got no memory.
    bare: Vec<u32>,
    /// Pages from here on were never taken.
    fresh: u32,
    total: u32,
    used: u32,
}

impl Pages {
    /// `total` pages without memory.
    #[must_use]
    pub fn new(total: u32) -> Self {
        Self { holders: Vec::new(), idle: Vec::new(), bare: Vec::new(), fresh: 0, total, used: 0 }
    }

    /// Makes room for one more page that is taken, so that it can be put back later.
    fn make_room(&mut self) -> Result<()> {
        let count = self.fresh as usize + 1;
        memory::reserve(&mut self.holders, 1)?;
        memory::reserve_to(&mut self.idle, count)?;
        memory::reserve_to(&mut self.bare, count)
    }

    /// Takes a page for one holder; one with memory if there is any.
    pub fn take(&mut self) -> Result<Taken> {
        if let Some(page) = self.idle.pop() {
            self.hold_first(page);
            return Ok(Taken::Idle(PageId(page)));
        }
        self.take_bare().map(Taken::Bare)
    }

    /// Takes a page that has no memory yet.
    pub fn take_bare(&mut self) -> Result<PageId> {
        let page = match self.bare.pop() {
            Some(page) => page,
            None if self.fresh < self.total => {
                self.make_room()?;
                self.fresh += 1;
                self.holders.push(0);
                self.fresh - 1
            }
            None => bail!(NMC_ERR_NO_SPACE, "all {} pages of the pool are in use", self.total),
        };
        self.hold_first(page);
        Ok(PageId(page))
    }

    fn hold_first(&mut self, page: u32) {
        self.holders[page as usize] = 1;
        self.used += 1;
    }

    fn held(&mut self, page: PageId) -> Result<&mut u32> {
        match self.holders.get_mut(page.0 as usize) {
            Some(count) if *count > 0 => Ok(count),
            _ => bail!(NMC_ERR_NOT_FOUND, "page {} is held by no one", page.0),
        }
    }

    /// Adds a holder to a page that has one.
    pub fn retain(&mut self, page: PageId) -> Result<()> {
        let count = self.held(page)?;
        let Some(more) = count.checked_add(1) else {
            bail!(NMC_ERR_LIMIT, "page {} has {count} holders, which is the most", page.0);
        };
        *count = more;
        Ok(())
    }

    /// Takes a holder away. `true` for the last: the page is then in no list until [`Pages::park`].
    pub fn release(&mut self, page: PageId) -> Result<bool> {
        let count = self.held(page)?;
        *count -= 1;
        let last = *count == 0;
        self.used -= u32::from(last);
        Ok(last)
    }

    /// Puts a page that nobody holds back into its list.
    pub fn park(&mut self, page: PageId, has_memory: bool) {
        let list = if has_memory { &mut self.idle } else { &mut self.bare };
        list.push(page.0);
    }

    /// Holders of a page.
    #[must_use]
    pub fn holders(&self, page: PageId) -> u32 {
        self.holders.get(page.0 as usize).copied().unwrap_or(0)
    }

    /// How many pages are in which state.
    #[must_use]
    pub fn counts(&self) -> PageCounts {
        let idle = u32::try_from(self.idle.len()).unwrap_or(u32::MAX);
        PageCounts { total: self.total, used: self.used, idle }
    }
}

/// Takes `count` pages with `take`; if one cannot be had, gives those before it back with `release`.
pub(crate) fn take_all(count: u32, take: impl Fn() -> Result<PageId>, release: impl Fn(PageId)) -> Result<Vec<PageId>> {
    let mut taken = memory::with_capacity(count as usize)?;
    for _ in 0..count {
        match take() {
            Ok(page) => taken.push(page),
            Err(error) => {
                taken.into_iter().for_each(release);
                return Err(error);
            }
        }
    }
    Ok(taken)
}

/// Which page is mapped at each place of a range.
#[derive(Debug)]
pub struct Slots {
    pages: Vec<Option<PageId>>,
    mapped: u32,
}

impl Slots {
    /// `count` places with nothing mapped.
    pub(crate) fn new(count: u32) -> Result<Self> {
        Ok(Self { pages: memory::vec_of(count as usize, None)?, mapped: 0 })
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.pages.len()).unwrap_or(u32::MAX)
    }

    /// Places with a page.
    #[must_use]
    pub fn mapped(&self) -> u32 {
        self.mapped
    }

    /// The page at a place.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<PageId> {
        self.pages.get(index as usize).copied().flatten()
    }

    /// Fails unless the `count` places from `first` on exist.
    pub(crate) fn check(&self, first: u32, count: u32) -> Result<()> {
        if u64::from(first) + u64::from(count) > self.pages.len() as u64 {
            bail!(NMC_ERR_INVALID_ARG, "{count} pages from {first} on are not all in a range of {}", self.pages.len());
        }
        Ok(())
    }

    /// Fails unless those places exist and are empty.
    pub(crate) fn check_empty(&self, first: u32, count: u32) -> Result<()> {
        self.check(first, count)?;
        match (first..first + count).find(|i| self.get(*i).is_some()) {
            Some(index) => bail!(NMC_ERR_EXISTS, "place {index} of the range has a page; unmap it first"),
            None => Ok(()),
        }
    }

    /// Fails unless those places exist and have pages.
    pub(crate) fn check_mapped(&self, first: u32, count: u32) -> Result<()> {
        self.check(first, count)?;
        match (first..first + count).find(|i| self.get(*i).is_none()) {
            Some(index) => bail!(NMC_ERR_NOT_FOUND, "place {index} of the range has no page; map one first"),
            None => Ok(()),
        }
    }

    /// Notes that a page is mapped at a place, which was checked to be there and empty.
    pub(crate) fn set(&mut self, index: u32, page: PageId) {
        if let Some(slot) = self.pages.get_mut(index as usize) {
            self.mapped += u32::from(slot.is_none());
            *slot = Some(page);
        }
    }

    /// Notes that a place is empty; gives the page that was there.
    pub(crate) fn clear(&mut self, index: u32) -> Option<PageId> {
        let page = self.pages.get_mut(index as usize)?.take();
        self.mapped -= u32::from(page.is_some());
        page
    }

    /// The next stretch of places with pages, as its first place and its length, in `first..end`.
    #[must_use]
    pub(crate) fn next_run(&self, first: u32, end: u32) -> Option<(u32, u32)> {
        let begin = (first..end).find(|i| self.get(*i).is_some())?;
        let stop = (begin..end).find(|i| self.get(*i).is_none()).unwrap_or(end);
        Some((begin, stop - begin))
    }

    /// The places that `bytes` bytes at `offset` touch, checked to have pages: the first and how many.
    pub(crate) fn span(&self, offset: u64, bytes: u64, page_bytes: u64) -> Result<(u32, u32)> {
        let total = self.pages.len() as u64 * page_bytes;
        let Some(end) = offset.checked_add(bytes).filter(|end| *end <= total) else {
            bail!(NMC_ERR_INVALID_ARG, "{bytes} bytes at {offset} pass the end of a range of {total} bytes");
        };
        if bytes == 0 {
            return Ok((0, 0));
        }
        let (first, last) = (offset / page_bytes, (end - 1) / page_bytes);
        let (Ok(first), Ok(count)) = (u32::try_from(first), u32::try_from(last - first + 1)) else {
            bail!(NMC_ERR_INTERNAL, "a range of {total} bytes has more than 2^32 pages");
        };
        self.check_mapped(first, count)?;
        Ok((first, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::status::{NMC_ERR_EXISTS, NMC_ERR_INVALID_ARG, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND};

    #[test]
    fn a_page_comes_back_after_its_last_holder() {
        let mut pages = Pages::new(2);
        let Ok(Taken::Bare(a)) = pages.take() else { panic!("a page without memory") };
        let Ok(Taken::Bare(b)) = pages.take() else { panic!("a page without memory") };
        assert_ne!(a, b);
        assert_eq!(pages.take().unwrap_err().status, NMC_ERR_NO_SPACE);
        pages.retain(a).unwrap();
        assert!(!pages.release(a).unwrap());
        assert!(pages.release(a).unwrap());
        assert_eq!(pages.release(a).unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(pages.retain(a).unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert!(pages.take().is_err(), "a page between its lists cannot be taken");
        pages.park(a, true);
        assert_eq!(pages.counts(), PageCounts { total: 2, used: 1, idle: 1 });
        assert_eq!(pages.take(), Ok(Taken::Idle(a)));
        assert!(pages.release(b).unwrap());
        pages.park(b, false);
        assert_eq!(pages.take(), Ok(Taken::Bare(b)));
        assert_eq!(pages.retain(PageId(7)).unwrap_err().status, NMC_ERR_NOT_FOUND);
    }

    #[test]
    fn places_are_checked_and_runs_are_found() {
        let mut slots = Slots::new(6).unwrap();
        for index in [1, 2, 5] {
            slots.set(index, PageId(index));
        }
        assert_eq!(
            (slots.next_run(0, 6), slots.next_run(2, 6), slots.next_run(3, 6)),
            (Some((1, 2)), Some((2, 1)), Some((5, 1)))
        );
        assert_eq!(slots.next_run(3, 5), None);
        assert_eq!(slots.check_empty(3, 2), Ok(()));
        assert_eq!(slots.check_empty(3, 3).unwrap_err().status, NMC_ERR_EXISTS);
        assert_eq!(slots.check_mapped(1, 3).unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(slots.check(u32::MAX, u32::MAX).unwrap_err().status, NMC_ERR_INVALID_ARG);
        assert_eq!(slots.span(15, 10, 10), Ok((1, 2)));
        assert_eq!(slots.span(15, 16, 10).unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(slots.span(55, 6, 10).unwrap_err().status, NMC_ERR_INVALID_ARG);
        assert_eq!(slots.span(u64::MAX, 2, 10).unwrap_err().status, NMC_ERR_INVALID_ARG);
        assert_eq!(slots.span(60, 0, 10), Ok((0, 0)));
        assert_eq!((slots.clear(1), slots.clear(1), slots.mapped()), (Some(PageId(1)), None, 2));
    }
}
