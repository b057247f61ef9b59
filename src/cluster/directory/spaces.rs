//! Numbers for the names of namespaces. When everything in a namespace is removed its name gets a new number: what had the
//! old one is found by nobody from then on, in one step, and is swept away later.

use crate::base::error::Result;
use crate::base::memory;

/// Most namespaces of a cluster that have something.
pub const MAX_SPACES: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct Spaces {
    /// Sorted by name.
    list: Vec<(Vec<u8>, u32)>,
    next: u32,
    /// Numbers that nothing leads to any more and of which something may be left.
    former: Vec<u32>,
}

impl Spaces {
    /// The number of a name, if it has one.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<u32> {
        let at = self.list.binary_search_by(|(other, _)| other.as_slice().cmp(name)).ok()?;
        self.list.get(at).map(|(_, number)| *number)
    }

    /// The number of a name. If there are too many, those are forgotten of whose number nothing is there; LIMIT if there is no such one.
    pub fn enter(&mut self, name: &[u8], is_there: impl Fn(u32) -> bool) -> Result<u32> {
        if let Some(number) = self.find(name) {
            return Ok(number);
        }
        self.check(name, &is_there)?;
        if self.list.len() == MAX_SPACES {
            self.list.retain(|(_, number)| is_there(*number));
        }
        memory::reserve(&mut self.list, 1)?;
        let at = self.list.partition_point(|(other, _)| other.as_slice() < name);
        self.list.insert(at, (memory::copy(name)?, self.next));
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Whether there is room for a name.
    pub fn check(&self, name: &[u8], is_there: impl Fn(u32) -> bool) -> Result<()> {
        let full = || self.list.len() == MAX_SPACES && self.list.iter().all(|(_, number)| is_there(*number));
        if self.find(name).is_none() && full() {
            crate::bail!(NMC_ERR_LIMIT, "there are {MAX_SPACES} namespaces with something in them, the most possible");
        }
        Ok(())
    }

    /// How many names there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The name that has this number now.
    #[must_use]
    pub fn name(&self, number: u32) -> Option<&[u8]> {
        self.list.iter().find(|(_, other)| *other == number).map(|(name, _)| name.as_slice())
    }

    /// From now on there is nothing in this namespace, or in any. Gives whether there was such a one.
    pub fn renew(&mut self, name: Option<&[u8]>) -> Result<bool> {
        memory::reserve(&mut self.former, self.list.len())?;
        let mut any = false;
        for (other, number) in &mut self.list {
            if name.is_none_or(|name| name == other.as_slice()) {
                self.former.push(std::mem::replace(number, self.next));
                self.next += 1;
                any = true;
            }
        }
        Ok(any)
    }

    /// Whether something may be left that nothing leads to.
    #[must_use]
    pub fn to_sweep(&self) -> bool {
        !self.former.is_empty()
    }

    /// Whether nothing leads to what has this number.
    #[must_use]
    pub fn is_former(&self, number: u32) -> bool {
        self.former.contains(&number)
    }

    /// Everything that had a former number when there were so many of them is swept away.
    pub fn swept(&mut self, count: usize) {
        self.former.drain(..count.min(self.former.len()));
    }

    /// How many former numbers there are.
    #[must_use]
    pub fn former(&self) -> usize {
        self.former.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::status::NMC_ERR_LIMIT;

    #[test]
    fn a_renewed_name_leads_to_nothing_that_was_there() {
        let mut spaces = Spaces::default();
        let mut enter = |name: &[u8]| spaces.enter(name, |_| true).unwrap();
        let (a, b) = (enter(b"a"), enter(b""));
        assert_eq!((enter(b"a"), spaces.find(b""), spaces.find(b"c")), (a, Some(b), None));
        assert!(spaces.renew(Some(b"a")).unwrap() && !spaces.renew(Some(b"c")).unwrap());
        assert!(spaces.find(b"a") != Some(a) && spaces.is_former(a) && !spaces.is_former(b));
        assert!(spaces.renew(None).unwrap());
        assert_eq!(spaces.former(), 3);
        spaces.swept(1);
        assert!(!spaces.is_former(a) && spaces.is_former(b) && spaces.to_sweep());
    }

    #[test]
    fn names_of_which_nothing_is_there_make_room() {
        let mut spaces = Spaces::default();
        for n in 0..MAX_SPACES {
            spaces.enter(format!("{n:08}").as_bytes(), |_| false).unwrap();
        }
        let full = spaces.enter(b"another", |_| true).unwrap_err();
        assert_eq!((full.status, spaces.len()), (NMC_ERR_LIMIT, MAX_SPACES));
        assert_eq!(spaces.enter(b"00000007", |_| false).unwrap(), 7, "who has a number needs no room");
        let number = spaces.enter(b"another", |number| number % 2 == 0).unwrap();
        assert_eq!((spaces.find(b"another"), spaces.len()), (Some(number), MAX_SPACES / 2 + 1));
        assert!(spaces.find(b"00000006") == Some(6) && spaces.find(b"00000007").is_none());
        // A name that comes again is another one.
        assert!(spaces.enter(b"00000007", |_| true).unwrap() > number);
    }
}
