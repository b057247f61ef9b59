//! `nmc_client_open_store`: the store's own reads, which go on to the cluster. A read that does is a call of the client as well: closing
//! the client ends it, and waits for it.

use super::client::{nmc_client_t, with};
use super::handle;
use super::store::{self, nmc_store_t};
use super::{guard, out};
use crate::base::Deadline;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::status::{NMC_ERR_BAD_HANDLE, NMC_ERR_NOT_FOUND, NMC_ERR_TOO_SMALL, nmc_status_t};
use crate::cluster::facade::{Cluster, Got, Item, Scope, What};
use crate::store::peers::{Ask, PeerRead, Peers};
use std::sync::Arc;

/// The cluster of a client, for as long as that is open.
struct OfClient {
    /// The client's handle.
    client: usize,
    timeout_ms: i64,
}

impl OfClient {
    /// `None` if the client is closed: then the store is all there is.
    fn with<R>(&self, body: impl FnOnce(&Cluster) -> Result<R>) -> Result<Option<R>> {
        // What the store finds is not the client's handle being bad.
        let called = with(self.client as *const nmc_client_t, |cluster| Ok(body(cluster)));
        match called {
            Ok(told) => told.map(Some),
            Err(error) if error.status == NMC_ERR_BAD_HANDLE => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What a store asks for, as the client calls it.
fn scope<'a>(ask: &Ask<'a>) -> Scope<'a> {
    Scope { space: ask.space, deadline: ask.until, stop: ask.stop, expire_ms: 0 }
}

impl Peers for OfClient {
    fn begin(&self) -> Result<Deadline> {
        let patience = self.with(|cluster| Ok(cluster.patience()))?.unwrap_or_default();
        Deadline::from_ms(self.timeout_ms, i64::try_from(patience.as_millis()).unwrap_or(i64::MAX))
    }

    fn read(&self, ask: &Ask<'_>, reads: &mut [PeerRead<'_>]) {
        let told = self.with(|cluster| {
            let items: Vec<Item<'_>> = memory::collect(reads.iter().map(|read| Item::new(read.key, read.to)))?;
            cluster.fetch(scope(ask), &items)
        });
        match told {
            Ok(None) => {}
            Ok(Some(all)) => {
                for (read, got) in reads.iter_mut().zip(all) {
                    read.outcome = match got.result {
                        Ok(()) => Ok(Some(got.bytes)),
                        Err(error) if error.status == NMC_ERR_TOO_SMALL => Ok(Some(got.bytes)),
                        Err(error) if error.status == NMC_ERR_NOT_FOUND => Ok(None),
                        Err(error) => Err(error),
                    };
                }
            }
            Err(error) => reads.iter_mut().for_each(|read| read.outcome = Err(error.clone())),
        }
    }

    fn find(&self, ask: &Ask<'_>, keys: &[&[u8]]) -> Result<Vec<bool>> {
        let told = self.with(|cluster| cluster.listed(scope(ask), keys))?;
        told.map_or_else(|| memory::vec_of(keys.len(), false), Ok)
    }

    fn metadata(&self, ask: &Ask<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let told = self.with(|cluster| cluster.fetch_what(scope(ask), &[Item::new(key, &[])], What::Metadata))?;
        match told.and_then(|mut all| all.pop()) {
            None => Ok(None),
            Some(Got { result: Ok(()), metadata, .. }) => Ok(Some(metadata)),
            Some(Got { result: Err(error), .. }) if error.status == NMC_ERR_NOT_FOUND => Ok(None),
            Some(Got { result: Err(error), .. }) => Err(error),
        }
    }
}

/// Makes a handle of a store whose reads continue in the cluster, and stores it in `*out_store`. It is in the same
/// namespace as `store`. Values that the store has neither in memory nor on disk are read from any node that has them,
/// under the same key, in the namespace of the same name. The store need not be a node itself. `store` stays as it is,
/// and its misses cost no message. Handles that `nmc_store_namespace` makes from the new handle read from the cluster
/// too. Destroy the handle with `nmc_store_destroy`.
///
/// These read from the cluster: `get`, `get_into`, `get_slices`, `get_strided` and `get_into_batch`, also into device
/// memory (through host memory, as are parts of a value); `get_metadata`, which asks a node; and `exists`,
/// `exists_batch` and `match_prefix`, which ask the leader for 256 keys at once and return `NMC_OBJECT_ELSEWHERE`.
/// Everything else concerns only this store: pins, locations, waits, watches, touch, retain, iteration, removes and
/// puts. An object that is being written here is `NMC_NOT_READY`, even if a node has it. With `NMC_CLIENT_KEEP_COPIES`,
/// values that were read are kept on this client's first node.
///
/// A read that continues in the cluster takes up to `timeout_ms` (-1 for the client's `timeout_ms`) plus 2 s. It can
/// also return the statuses of `nmc_client_get`. If no master answers, that is `NMC_ERR_UNAVAILABLE` or
/// `NMC_ERR_TIMEOUT` and not `NMC_ERR_NOT_FOUND`, because it is unknown whether the value exists. `nmc_store_cancel`
/// and `nmc_store_destroy` of the handle end such reads with `NMC_ERR_CANCELLED`, and so does `nmc_client_close`; after
/// that the handle behaves like `store`. Client, handle and store may be closed in any order.
///
/// Does not block, and asks no master. Thread-safe. Not graph-safe. Statuses: `NMC_ERR_LIMIT`, `NMC_ERR_NO_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nmc_client_open_store(
    client: *mut nmc_client_t,
    store: *mut nmc_store_t,
    timeout_ms: i64,
    out_store: *mut *mut nmc_store_t,
) -> nmc_status_t {
    guard(|| {
        let slot = out(out_store, "out_store")?;
        slot.write(std::ptr::null_mut());
        handle::prepare()?;
        Deadline::from_ms(timeout_ms, 0)?;
        let peers = with(client, |_| Ok(Arc::new(OfClient { client: client as usize, timeout_ms })))?;
        let made = store::with(store, |store| Ok(store.with_peers(peers)))?;
        slot.write(handle::create(made)?);
        Ok(())
    })
}
