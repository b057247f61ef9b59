//! Namespaces: keys of their own, a quota, and forgetting everything at once.

use super::*;
use crate::store::disk::SpaceName;

impl Master {
    /// Opens the namespace `name`, making it if need be; a quota that is given replaces the former one.
    pub fn namespace(&mut self, name: &[u8], quota_bytes: Option<u64>) -> Result<u32> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        if name.is_empty() || name.len() > MAX_NAMESPACE_NAME {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "a namespace's name has {} bytes; 1 to {MAX_NAMESPACE_NAME} are possible",
                name.len()
            );
        }
        let mut free = None;
        for id in 1..u32::try_from(MAX_NAMESPACES).unwrap_or(0) {
            let Some(ns) = view.namespace(id) else { continue };
            if ns.name_len.load(Relaxed) == 0 {
                free = free.or(Some((id, ns)));
            } else if ns.name() == name {
                if let Some(quota) = quota_bytes {
                    self.charge(view, id, |account| account.quota = quota);
                }
                return Ok(id);
            }
        }
        let Some((id, ns)) = free else {
            crate::bail!(NMC_ERR_LIMIT, "all {MAX_NAMESPACES} namespaces are in use");
        };
        self.charge(view, id, |account| account.quota = quota_bytes.unwrap_or(0));
        self.give_space(id, name)?;
        ns.set_name(name);
        Ok(id)
    }

    /// Makes every namespace of which something is on disk, as if somebody had opened it.
    pub fn adopt_namespaces(&mut self) -> Result<()> {
        let all: Vec<SpaceName> = memory::collect(self.disk.iter().flat_map(disk::Disk::names))?;
        all.iter().filter(|name| !name.is_empty()).try_for_each(|name| self.namespace(name, None).map(|_| ()))
    }

    /// Forgets everything in a namespace at once; the memory comes back bit by bit.
    pub fn flush(&mut self, namespace: u32) -> Result<()> {
        let map = Arc::clone(&self.map);
        let view = map.view();
        let Some(ns) = view.namespace(namespace) else {
            crate::bail!(NMC_ERR_NOT_FOUND, "there is no namespace {namespace}");
        };
        self.check_disk()?;
        self.room_for_marks(1)?;
        let next = ns.generation.load(Relaxed).wrapping_add(1) & 0xff_ffff;
        ns.generation.store(next, Release);
        self.tell_fact(view, Fact::Flushed { namespace, generation: next });
        self.takes_away();
        self.flush_disk(namespace);
        self.begin_flush();
        self.glance(view, now_ns());
        Ok(())
    }

    /// Every header is to be looked at once more. The search goes on from where it is: if it began anew each time, it would
    /// never get to the last headers of a store in which some namespace is flushed again and again.
    pub(super) fn begin_flush(&mut self) {
        self.flush_left = self.map.params().max_objects;
    }

    /// So many steps at once.
    pub(super) fn hurry_flush(&mut self, view: &View<'_>, steps: u32) {
        for _ in 0..steps {
            self.continue_flush(view);
        }
    }

    pub(super) fn continue_flush(&mut self, view: &View<'_>) {
        if self.flush_left == 0 {
            return;
        }
        let all = self.map.params().max_objects;
        let from = self.flush_at;
        let to = from.saturating_add(FLUSH.min(self.flush_left)).min(all);
        let over = |master: &Self, index: u32| {
            let word = master.book(index).namespace;
            namespace_word(view, word & 0xff) != word
        };
        if self.drop_those(view, from..to, over) > 0 {
            self.count_all();
        }
        self.flush_left -= to - from;
        self.flush_at = if to < all { to } else { 0 };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::base::Deadline;
    use crate::store::config::Config;
    use std::time::Duration;

    const HEADERS: u32 = 20_000;

    /// A store whose namespace `a` was full and is forgotten, but for what it has in memory.
    fn forgotten() -> (Master, u32) {
        let config = Config { page_bytes: 4096, max_objects: Some(HEADERS), ..Config::default() };
        let params = config.params(1, 1 << 20).unwrap();
        let map = Arc::new(Map::create(&params, &Deadline::after(Duration::from_secs(60))).unwrap());
        let mut master = Master::new(Arc::clone(&map)).unwrap();
        master.note_heaps([(1, 1)]);
        let info = ClientInfo { pid: 1, start_time: 1, rank: 0, rank_generation: 1, role: Role::Program };
        let client = master.attach(&info).unwrap();
        let (a, b) = (master.namespace(b"a", None).unwrap(), master.namespace(b"b", None).unwrap());
        // Nothing but a flush takes them away.
        let keep = Keep { retain: Retain::Hard, ..Keep::DEFAULT };
        for i in 0..HEADERS * 9 / 10 {
            let key = i.to_le_bytes();
            let request = OpenRequest {
                key: &key,
                namespace: a,
                bytes: 0,
                rank: None,
                among: 0,
                flags: 0,
                keep,
                metadata: &[],
                put: 0,
            };
            let plan = master.open(client.number, &request).unwrap();
            map.view().publish(plan.index).unwrap().published.store(plan.epoch, Release);
        }
        master.look_at_all_writing(map.view(), now_ns(), usize::MAX);
        master.flush(a).unwrap();
        (master, b)
    }

    /// How many calls it takes until all headers are free, if there is an end within `most`. `after` is what becomes of the
    /// master after each.
    fn calls_until_free(most: u32, call: impl Fn(&mut Master, u32), after: impl Fn(&mut Master)) -> Option<u32> {
        let (mut master, b) = forgotten();
        (1..=most).find(|_| {
            // It is always time for upkeep: calls are counted, not milliseconds.
            master.next_sweep = 0;
            call(&mut master, b);
            after(&mut master);
            master.lists.len(FREE) == HEADERS
        })
    }

    const ROUND: u32 = HEADERS.div_ceil(FLUSH) + 1;

    #[test]
    fn what_a_namespace_forgot_comes_back_however_often_another_one_is_flushed() {
        let flush = |master: &mut Master, b| master.flush(b).unwrap();
        assert!(calls_until_free(ROUND, flush, |_| ()).is_some());
        let twice = |master: &mut Master, b| {
            master.flush(b).unwrap();
            master.flush(b).unwrap();
        };
        assert!(calls_until_free(ROUND, twice, |_| ()).is_some());
    }

    /// The control: a search that begins anew with every flush.
    #[test]
    fn a_search_that_begins_anew_never_gets_to_the_end() {
        let flush = |master: &mut Master, b| master.flush(b).unwrap();
        assert_eq!(calls_until_free(20 * ROUND, flush, |master| master.flush_at = 0), None);
    }

    #[test]
    fn what_a_namespace_forgot_comes_back_whatever_is_called() {
        let calls: [fn(&mut Master, u32); 4] = [
            |master, b| assert!(master.remove(b, b"none").is_err()),
            |master, b| assert!(master.retain(b, b"none", Keep::DEFAULT).is_err()),
            |master, _| assert!(master.evict_until_below(0, 1000).is_ok()),
            |master, _| assert!(master.tend().is_ok()),
        ];
        for call in calls {
            assert!(calls_until_free(ROUND, call, |_| ()).is_some());
        }
    }

    #[test]
    fn a_flush_ends_when_every_header_was_looked_at() {
        let (mut master, _) = forgotten();
        let map = Arc::clone(&master.map);
        master.hurry_flush(map.view(), ROUND);
        assert_eq!((master.flush_left, master.lists.len(FREE)), (0, HEADERS));
    }
}
