//! What something is and was since it was last made to last.

/// The versions of a sector, a size or a name. After a power loss it is any of them.
#[derive(Clone)]
pub struct Versions<T> {
    lasting: T,
    /// Newer ones, and whether a failed sync gave them up.
    newer: Vec<(T, bool)>,
}

impl<T: PartialEq> Versions<T> {
    /// One that lasts.
    pub fn new(lasting: T) -> Self {
        Self { lasting, newer: Vec::new() }
    }

    /// What everybody sees.
    pub fn now(&self) -> &T {
        self.newer.last().map_or(&self.lasting, |(newest, _)| newest)
    }

    /// A new version. One that is the same was written nevertheless, and is worth a sync.
    pub fn set(&mut self, version: T) {
        match self.newer.last_mut() {
            Some((newest, given_up)) if *newest == version => *given_up = false,
            None if self.lasting == version => {}
            _ => self.newer.push((version, false)),
        }
    }

    /// The newest lasts, unless a failed sync has given it up: then nobody writes it any more.
    pub fn sync(&mut self) {
        if let Some((newest, false)) = self.newer.pop_if(|(_, given_up)| !*given_up) {
            self.lasting = newest;
            self.newer.clear();
        }
    }

    /// A sync failed: what it was to write is not written by a later one.
    pub fn give_up(&mut self) {
        self.newer.iter_mut().for_each(|(_, given_up)| *given_up = true);
    }

    /// Whether a power loss cannot change it.
    pub fn is_certain(&self) -> bool {
        self.newer.is_empty()
    }

    /// How many versions it may be after a power loss.
    pub fn choices(&self) -> usize {
        1 + self.newer.len()
    }

    /// One of them; 0 is the oldest.
    pub fn choice(&self, i: usize) -> &T {
        i.checked_sub(1).map_or(&self.lasting, |i| &self.newer[i].0)
    }
}
