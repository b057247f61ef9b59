//! Numbers for the names of namespaces. When everything in a namespace is removed its name gets a new number: what had the
//! old one is found by nobody from then on, in one step, and is swept away later.

use crate::base::error::Result;
use crate::base::memory;

/// Most namespaces of a cluster.
const MAX_SPACES: usize = 4096;

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

    /// The number of a name.
    pub fn enter(&mut self, name: &[u8]) -> Result<u32> {
        let at = match self.list.binary_search_by(|(other, _)| other.as_slice().cmp(name)) {
            Ok(at) => return Ok(self.list[at].1),
            Err(at) => at,
        };
        if self.list.len() == MAX_SPACES {
            crate::bail!(NMC_ERR_LIMIT, "there are {MAX_SPACES} namespaces, the most possible");
        }
        memory::reserve(&mut self.list, 1)?;
        self.list.insert(at, (memory::copy(name)?, self.next));
        self.next += 1;
        Ok(self.next - 1)
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

    #[test]
    fn a_renewed_name_leads_to_nothing_that_was_there() {
        let mut spaces = Spaces::default();
        let (a, b) = (spaces.enter(b"a").unwrap(), spaces.enter(b"").unwrap());
        assert_eq!((spaces.enter(b"a").unwrap(), spaces.find(b""), spaces.find(b"c")), (a, Some(b), None));
        assert!(spaces.renew(Some(b"a")).unwrap() && !spaces.renew(Some(b"c")).unwrap());
        assert!(spaces.find(b"a") != Some(a) && spaces.is_former(a) && !spaces.is_former(b));
        assert!(spaces.renew(None).unwrap());
        assert_eq!(spaces.former(), 3);
        spaces.swept(1);
        assert!(!spaces.is_former(a) && spaces.is_former(b) && spaces.to_sweep());
    }
}
