//! Reading values: from a store of this process, or else from an owner.

use super::item::first_bytes;
use super::nodes::Local;
use super::{Cluster, Got, Item, What, about, device};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::client::{Call, GetCall};
use crate::cluster::net::now_ms;
use crate::cluster::run::client::Task;
use crate::cluster::types::{ObjectKey, PutId};
use crate::store::copy::Pieces;
use crate::store::types::Look;

/// How often a value that is replaced meanwhile is read anew from a node of this client.
const READS_HERE: usize = 16;

impl Cluster {
    /// Reads values into memory that holds them; says of each what came of it.
    pub fn get(&self, items: &[Item<'_>]) -> Result<Vec<Got>> {
        self.get_what(items, What::Value)
    }

    /// The same, of this.
    pub fn get_what(&self, items: &[Item<'_>], what: What) -> Result<Vec<Got>> {
        let deadline = Deadline::after(self.config.patience);
        let call = |items: &[Item<'_>]| self.get_within(items, what, &deadline);
        device::get(&device::Calls { cluster: self, deadline: &deadline }, items, call)
    }

    fn get_within(&self, items: &[Item<'_>], what: What, deadline: &Deadline) -> Result<Vec<Got>> {
        let mut results = memory::with_capacity(items.len())?;
        let (mut far, mut numbers) = (Vec::new(), Vec::new());
        for (at, item) in items.iter().enumerate() {
            let found = self.get_here(item, what);
            if matches!(found, Ok(None)) {
                memory::push(&mut far, *item)?;
                memory::push(&mut numbers, at)?;
            }
            results.push(match found {
                Ok(found) => found.unwrap_or(Got::whole(0)),
                Err(error) => Got::of(Err(error)),
            });
        }
        if far.is_empty() {
            return Ok(results);
        }
        let read = self.fetch_what(self.scope(deadline), &far, what)?;
        for (at, got) in numbers.into_iter().zip(read) {
            results[at] = got;
        }
        Ok(results)
    }

    pub(super) fn get_task(&self, space: &[u8], item: &Item<'_>, what: What, expire_ms: u32) -> Result<Task> {
        let (key, room, about) = (ObjectKey::new(space, item.key)?, item.bytes()?, what == What::Metadata);
        // Who asks for what is said about a value has not read it.
        let (keep, expire_ms) = if about { (false, 0) } else { (self.config.keep, expire_ms) };
        let get = GetCall { keep, expire_ms, about, ..GetCall::new(key, room) };
        Ok(Task { far: item.far, ..self.task(Call::Get(get), item.spans()?) })
    }

    /// From a store of this process.
    pub(super) fn get_here(&self, item: &Item<'_>, what: What) -> Result<Option<Got>> {
        if what == What::Metadata {
            return self.about_here(item.key);
        }
        let room = item.bytes()?;
        let mut bytes = room;
        let (expires, both) = (self.config.expire_ms > 0, what == What::Both);
        self.local(|node| {
            let store = &node.store;
            let mut put = if expires || both { store.put_under(item.key).ok().flatten() } else { None };
            // The store reads into memory of the value's size: if that is another, once more; it may be replaced meanwhile.
            for _ in 0..READS_HERE {
                let slices = first_bytes(item.slices, bytes)?;
                let mut size = bytes;
                let read = store.read(item.key, 0, &Pieces::Slices(&slices), |total| {
                    size = total;
                    Ok(total == bytes)
                })?;
                match read {
                    Look::Ready(_) if size == bytes => {
                        let mut got = Got::whole(bytes);
                        if both {
                            let Some(said) = about::said_here(store, item.key)? else { return Ok(None) };
                            let now = store.put_under(item.key)?;
                            if now.is_none() || std::mem::replace(&mut put, now) != now {
                                // It was said about another one than was read.
                                continue;
                            }
                            got.metadata = said;
                        }
                        self.read_here(node, item.key, put);
                        return Ok(Some(got));
                    }
                    Look::Ready(_) if size > room => return Ok(Some(Got::too_large(size, room))),
                    Look::Ready(_) => bytes = size,
                    Look::Writing(..) | Look::Missing => return Ok(None),
                }
            }
            // Whoever has it is asked, in the time of the call.
            Ok(None)
        })
    }

    /// What was read on a node of this client, if it is what it was before that, goes after a while.
    fn read_here(&self, node: &Local, key: &[u8], put: Option<u64>) {
        let after_ms = self.config.expire_ms;
        if let Some(put) = put.filter(|_| after_ms > 0)
            && matches!(node.store.put_under(key), Ok(Some(after)) if after == put)
            && let Ok(object) = self.key(key)
            && self.told.lock().is_new(PutId(put), now_ms(), after_ms.into())
        {
            node.agent.handle().expire(object, PutId(put), after_ms);
        }
    }
}
