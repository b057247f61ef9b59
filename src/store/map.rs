//! The two slabs of a store, mapped.

use crate::base::Deadline;
use crate::base::error::{Error, Result};
use crate::base::id;
use crate::base::status::{NMC_ERR_INTERNAL, NMC_ERR_PROTOCOL};
use crate::cuda::{Device, HostRegistration};
use crate::layout::store::{Layout, Params, View};
use crate::mem::slab::reopen;
use crate::mem::{MappedView, Slab};
use crate::store::hash::KeyHash;
use once_cell::sync::OnceCell;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

struct Registered {
    words: HostRegistration,
    control: Option<HostRegistration>,
}

/// The slabs.
pub struct Map {
    /// For the GPU; dropped before the memory that it registers.
    registered: OnceCell<Registered>,
    slabs: MappedView,
    keys: KeyHash,
    seed: [u64; 2],
    store_id: u64,
}

impl Map {
    /// Reserves and fills the slabs of a new store.
    pub fn create(params: &Params, deadline: &Deadline) -> Result<Self> {
        let layout = Layout::new(*params);
        let control = Slab::create(c"nanomc store control", layout.control_bytes as u64, false, deadline)?;
        let words = Slab::create(c"nanomc store words", layout.words_bytes as u64, false, deadline)?;
        let slabs = MappedView::new(layout, control, words).ok_or_else(too_small)?;
        let (store_id, seed) = (id::random_u64()?, [id::random_u64()?, id::random_u64()?]);
        slabs.view().header().fill(store_id, seed, params);
        Ok(Self::new(slabs, store_id, seed))
    }

    fn new(slabs: MappedView, store_id: u64, seed: [u64; 2]) -> Self {
        Self { registered: OnceCell::new(), slabs, keys: KeyHash::new(seed), seed, store_id }
    }

    /// Maps the slabs of a store for a client.
    pub fn open(params: &Params, store_id: u64, control: OwnedFd, words: OwnedFd) -> Result<Self> {
        let slabs = Self::mapped(params, control, words, false)?;
        let seed = slabs.view().header().seed();
        let map = Self::new(slabs, store_id, seed);
        if map.view().header().params() != Some(*params) {
            return Err(not_of_this_store());
        }
        Ok(map)
    }

    /// Maps the slabs that a survivor hands to a new master, which writes to both. The survivor knows what they are; a
    /// header that was overwritten in part is put right.
    pub fn adopt(params: &Params, store_id: u64, seed: [u64; 2], control: OwnedFd, words: OwnedFd) -> Result<Self> {
        let slabs = Self::mapped(params, reopen(control.as_fd(), libc::O_RDWR)?, words, true)?;
        let map = Self::new(slabs, store_id, seed);
        if !map.view().header().resembles(params) {
            return Err(not_of_this_store());
        }
        map.restore_header();
        Ok(map)
    }

    fn mapped(params: &Params, control: OwnedFd, words: OwnedFd, master: bool) -> Result<MappedView> {
        let layout = Layout::new(*params);
        let control = Slab::open(control, layout.control_bytes as u64, master)?;
        let words = Slab::open(words, layout.words_bytes as u64, true)?;
        MappedView::new(layout, control, words).ok_or_else(too_small)
    }

    /// Master: stores again what clients compare when they come.
    pub fn restore_header(&self) {
        self.view().header().restore(self.store_id, self.seed, self.params());
    }

    /// What the hash of the index is made from.
    #[must_use]
    pub fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// Makes the slabs known to the GPU, once for all clients of this process.
    pub fn register(&self, device: &Arc<Device>) -> Result<()> {
        let made = self.registered.get_or_try_init(|| -> Result<Registered> {
            // Without the control slab a wait on a stream cannot see that an object died; its deadline ends it.
            let control = self.control().register(device, true).ok();
            Ok(Registered { words: self.words().register(device, false)?, control })
        });
        made.map(|_| ())
    }

    /// Address of the words slab for the GPU; `None` without a device.
    #[must_use]
    pub fn device_words(&self) -> Option<u64> {
        self.registered.get().map(|r| r.words.device_ptr())
    }

    /// Address of the control slab for the GPU; `None` if it cannot reach it.
    #[must_use]
    pub fn device_control(&self) -> Option<u64> {
        self.registered.get().and_then(|r| r.control.as_ref()).map(HostRegistration::device_ptr)
    }

    /// What is in the slabs.
    #[inline(always)]
    #[must_use]
    pub fn view(&self) -> &View<'_> {
        self.slabs.view()
    }

    /// Where a key is in the index.
    #[inline(always)]
    #[must_use]
    pub fn hash_of(&self, key: &[u8], namespace: u32) -> u64 {
        self.keys.of(key, namespace)
    }

    /// Random name of the store.
    #[must_use]
    pub fn store_id(&self) -> u64 {
        self.store_id
    }

    /// Parameters.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.view().layout.params
    }

    /// Where everything is.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.view().layout
    }

    /// Descriptors for a client: control (read-only) and words.
    pub fn client_fds(&self) -> Result<(OwnedFd, OwnedFd)> {
        let words = self.words().as_fd().try_clone_to_owned().map_err(|e| Error::os("dup", &e))?;
        Ok((self.control().read_only_fd()?, words))
    }

    /// The slab that the master writes.
    #[must_use]
    pub fn control(&self) -> &Slab {
        self.slabs.control()
    }

    /// The slab that clients write.
    #[must_use]
    pub fn words(&self) -> &Slab {
        self.slabs.words()
    }

    /// Bytes of both slabs.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.view().layout.control_bytes + self.view().layout.words_bytes) as u64
    }
}

#[cold]
fn not_of_this_store() -> Error {
    Error::new(NMC_ERR_PROTOCOL, "the memory that came is not that of this store")
}

#[cold]
fn too_small() -> Error {
    Error::new(NMC_ERR_INTERNAL, "a slab of the store is smaller than its layout")
}
