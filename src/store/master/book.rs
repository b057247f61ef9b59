//! What the master itself knows of every object. Headers are for readers: a stray store into one may make its object
//! unreadable, but what the master frees, kills and counts is what it wrote down here.

use super::*;

/// An object. That of a free header holds nothing.
#[derive(Debug, Clone, Default)]
pub(super) struct Book {
    /// Hash of the key.
    pub hash: u64,
    pub epoch: u64,
    pub plan_id: u64,
    /// When the state was entered.
    pub since: u64,
    /// When a soft retention ends.
    pub until: u64,
    /// The first run of pages.
    pub first: Run,
    /// The others.
    pub more: Option<Box<[Run]>>,
    /// What it has in the key slab; no units for most.
    pub key: Run,
    pub pages: u32,
    /// Rank whose heap holds it; below the world size.
    pub owner: u32,
    /// Namespace and its generation.
    pub namespace: u32,
    /// Client that writes or wrote it.
    pub writer: u32,
    pub flags: u32,
    /// Its entry in the index of the disk, plus one, if that is still its own; 0 for none.
    pub disk: u32,
}

/// In [`Book::flags`] alone: a consumer has taken it. It was published, whatever its writer thinks.
pub(super) const TAKEN: u32 = 1 << 31;
/// In [`Book::flags`] alone: it may have come from its entry on the disk. Of others the entry is younger.
pub(super) const RETURNED: u32 = 1 << 30;
const _: () = assert!(size_of::<Book>() == 96);

static NOTHING: Book = Book {
    hash: 0,
    epoch: 0,
    plan_id: 0,
    since: 0,
    until: 0,
    first: Run { first: 0, count: 0 },
    more: None,
    key: Run { first: 0, count: 0 },
    pages: 0,
    owner: 0,
    namespace: 0,
    writer: 0,
    flags: 0,
    disk: 0,
};

impl Book {
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        std::iter::once(self.first).filter(|run| run.count > 0).chain(self.more.iter().flatten().copied())
    }

    /// Whether it is the value of this put: then a record of the same put is the same value, whichever store has written it.
    pub fn is_of(&self, put: u64) -> bool {
        self.plan_id == put && put != 0
    }

    pub fn is_hidden(&self) -> bool {
        self.flags & FLAG_HIDDEN != 0
    }

    pub fn class(&self) -> (Retain, u16) {
        let retain = Retain::from_code(self.flags >> RETAIN_SHIFT & 3).unwrap_or(Retain::None);
        (retain, u16::try_from(self.flags >> PRIORITY_SHIFT & 3).unwrap_or(0))
    }

    pub fn facts(&self, view: &View<'_>, index: u32, now: u64) -> Facts {
        #[allow(clippy::cast_possible_truncation, reason = "stamps are compared for equality only")]
        let stamp = view.access(index).map_or(0, |a| a.load(Relaxed)) as u32;
        let (retain, priority) = self.class();
        let expired = retain != Retain::Soft || self.until <= now;
        Facts { stamp, fingerprint: self.hash, priority, expired }
    }

    /// What a header says, for a master that takes over; `None` if it makes no sense.
    pub fn read(map: &Map, view: &View<'_>, header: &ObjectHeader, epoch: u64) -> Result<Option<Self>> {
        let p = &view.layout.params;
        let Some(shape) = view.shape(header) else { return Ok(None) };
        let mut runs: Vec<Run> = memory::with_capacity(shape.n_extents as usize)?;
        for run in view.runs(header, &shape) {
            let Some((first, count)) = run else { return Ok(None) };
            runs.push(Run { first, count });
        }
        let key_len = header.key_len.load(Relaxed) as usize;
        let flags = header.flags.load(Relaxed);
        let key = match key_units(key_len, runs.len(), metadata_len(flags)) {
            0 => Run::default(),
            count => Run { first: header.key_unit.load(Relaxed), count },
        };
        let namespace = header.namespace.load(Relaxed);
        let sane = (1..=MAX_KEY).contains(&key_len)
            && key.range().end <= p.key_units() as usize
            && metadata_len(flags) <= MAX_METADATA
            && ((namespace & 0xff) as usize) < MAX_NAMESPACES
            && header.page_bytes.load(Relaxed) == p.page_bytes
            && header.last_page_bytes.load(Relaxed) == last_page_bytes(shape.bytes_total, p.page_bytes)
            && header.key_hash.load(Relaxed) == map.hash_of(&view.key_of(header), namespace & 0xff);
        Ok(sane.then(|| Self {
            hash: header.key_hash.load(Relaxed),
            epoch,
            plan_id: header.plan_id.load(Relaxed),
            since: header.state_ts.load(Relaxed),
            until: header.retain_until.load(Relaxed),
            first: runs.first().copied().unwrap_or_default(),
            more: further(&runs),
            key,
            pages: shape.n_pages,
            owner: shape.owner_rank,
            namespace,
            writer: header.writer.load(Relaxed),
            flags: flags & !(TAKEN | RETURNED),
            disk: 0,
        }))
    }
}

/// All runs but the first.
pub(super) fn further(runs: &[Run]) -> Option<Box<[Run]>> {
    runs.get(1..).filter(|more| !more.is_empty()).map(Box::from)
}

/// What a namespace uses, and may.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Account {
    pub quota: u64,
    pub used: u64,
    pub objects: u64,
}

impl Master {
    pub(super) fn book(&self, index: u32) -> &Book {
        self.books.get(index as usize).unwrap_or(&NOTHING)
    }

    /// Whether a header holds an object that is being written or can be read.
    pub(super) fn is_current(&self, index: u32) -> bool {
        is_current(&self.lists, index)
    }

    pub(super) fn paged_bytes(&self, index: u32) -> u64 {
        u64::from(self.book(index).pages) * u64::from(self.map.params().page_bytes)
    }

    /// The account of a namespace changed: shows it to everybody.
    pub(super) fn charge(&mut self, view: &View<'_>, namespace: u32, change: impl FnOnce(&mut Account)) {
        let id = namespace & 0xff;
        let (Some(ns), Some(account)) = (view.namespace(id), self.accounts.get_mut(id as usize)) else { return };
        change(account);
        ns.bytes_used.store(account.used, Relaxed);
        ns.objects.store(account.objects, Relaxed);
        ns.quota_bytes.store(account.quota, Relaxed);
    }
}

/// See [`Master::is_current`].
pub(super) fn is_current(lists: &Lists, index: u32) -> bool {
    !matches!(lists.list_of(index), None | Some(FREE | LIMBO | QUARANTINE))
}
