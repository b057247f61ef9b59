//! A client of a cluster as a C program sees it: `nmc_client_*` of `libnanomc.so`, loaded at run time. The wrappers do what a
//! C++ program would do and no more.
#![allow(unsafe_code, reason = "calls through the C ABI")]

use super::cluster_ways::Certificates;
use super::library::c_api::{
    Config as _, NMC_OK, nmc_buffer_t, nmc_client_config_t, nmc_client_t, nmc_slice_t, nmc_status_t,
};
use super::library::{Nanomc, call, try_call};
use super::ssd_library::Buffers;
use super::store_library::{Item, Part, Shelf};
use crate::args::Failure;

/// How long a call may take: as long as a machine needs that is busy with something else.
const PATIENCE_MS: i64 = 60_000;

/// How values go.
#[derive(Debug, Default)]
pub struct Manner {
    /// Longer ones go in parts of so many bytes; 0 for never.
    pub stripe_bytes: u64,
    /// With what connections are encrypted.
    pub certificates: Option<Certificates>,
}

/// A client.
pub struct Client {
    nanomc: Nanomc,
    client: *mut nmc_client_t,
}

fn slice(text: &str) -> nmc_slice_t {
    nmc_slice_t { ptr: text.as_ptr().cast(), len: text.len() }
}

impl Client {
    /// One that remembers where so many keys are; -1 for the default.
    pub fn open(master: &str, cache_keys: i32) -> Result<Self, Failure> {
        Self::with(master, cache_keys, &Manner::default())
    }

    /// The same with other ways for values.
    pub fn with(master: &str, cache_keys: i32, manner: &Manner) -> Result<Self, Failure> {
        let [cert, key, ca] = manner.certificates.as_ref().map(Certificates::files).unwrap_or_default();
        let config = nmc_client_config_t {
            master_server: slice(master),
            timeout_ms: PATIENCE_MS,
            cache_keys,
            stripe_bytes: manner.stripe_bytes,
            tls_cert: slice(&cert.1),
            tls_key: slice(&key.1),
            tls_ca: slice(&ca.1),
            ..nmc_client_config_t::defaults()
        };
        let mut made = Self { nanomc: Nanomc::load()?, client: std::ptr::null_mut() };
        // SAFETY: a full config whose text lives during the call; the out-pointer is ours.
        unsafe { try_call!(made.nanomc, nmc_client_open(&raw const config, &raw mut made.client)) }?;
        Ok(made)
    }

    /// `nmc_client_attach_store`: the store is a node of this name from now on.
    pub fn attach(&self, name: &str, shelf: &Shelf) -> Result<(), Failure> {
        // SAFETY: the name lives during the call; the library checks the handles.
        unsafe { try_call!(self.nanomc, nmc_client_attach_store(self.client, slice(name), shelf.store)) }
    }

    /// `nmc_client_put` of one slice, one copy.
    #[inline(always)]
    pub fn put(&self, key: Item<'_>, value: Item<'_>) -> nmc_status_t {
        // SAFETY: key and value are slices of this process that live during the call.
        unsafe {
            call!(self.nanomc, nmc_client_put(self.client, *key.0, std::ptr::from_ref(value.0), 1, std::ptr::null()))
        }
    }

    /// `nmc_client_put_batch`, one value for each key.
    #[inline(always)]
    pub fn put_batch(&self, keys: Part<'_>, values: Part<'_>) -> nmc_status_t {
        let n = keys.len().min(values.len());
        let (keys, values, counts, options, statuses) =
            (keys.0.as_ptr(), values.0.as_ptr(), std::ptr::null(), std::ptr::null(), std::ptr::null_mut());
        // SAFETY: `n` keys and values that live during the call; no statuses are asked for.
        unsafe { call!(self.nanomc, nmc_client_put_batch(self.client, keys, values, counts, n, options, statuses)) }
    }

    /// `nmc_client_get` into one buffer.
    #[inline(always)]
    pub fn get(&self, key: Item<'_>, to: &mut [u8]) -> nmc_status_t {
        let mut bytes = 0;
        let buffer = nmc_buffer_t { ptr: to.as_mut_ptr().cast(), len: to.len() };
        // SAFETY: the buffer is ours, and the out-pointer a local.
        unsafe { call!(self.nanomc, nmc_client_get(self.client, *key.0, &raw const buffer, 1, &raw mut bytes)) }
    }

    /// `nmc_client_get_batch`, one buffer for each key.
    #[inline(always)]
    pub fn get_batch(&self, keys: Part<'_>, to: &mut Buffers) -> nmc_status_t {
        let n = keys.len().min(to.places.len());
        let (keys, to, counts, sizes, statuses) =
            (keys.0.as_ptr(), to.places.as_ptr(), std::ptr::null(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: `n` keys and buffers that live during the call; neither sizes nor statuses are asked for.
        unsafe { call!(self.nanomc, nmc_client_get_batch(self.client, keys, to, counts, n, sizes, statuses)) }
    }

    /// `nmc_client_exists_batch`; whether all are there. `found` has room for each of them.
    #[inline(always)]
    pub fn exist(&self, keys: Part<'_>, found: &mut [nmc_status_t]) -> bool {
        let n = keys.len().min(found.len());
        // SAFETY: `n` keys and statuses of ours.
        let status =
            unsafe { call!(self.nanomc, nmc_client_exists_batch(self.client, keys.0.as_ptr(), n, found.as_mut_ptr())) };
        status == NMC_OK && found[..n].iter().all(|status| *status == NMC_OK)
    }

    /// `nmc_client_remove` of each: when it returns their owners have dropped them.
    pub fn remove(&self, keys: Part<'_>) -> Result<(), Failure> {
        for key in keys.each() {
            // SAFETY: a key that lives during the call.
            unsafe { try_call!(self.nanomc, nmc_client_remove(self.client, *key.0, 0)) }?;
        }
        Ok(())
    }

    /// `nmc_client_sync`: the master knows what the nodes of this client have.
    pub fn sync(&self) -> Result<(), Failure> {
        // SAFETY: the library checks the handle.
        unsafe { try_call!(self.nanomc, nmc_client_sync(self.client)) }
    }

    /// Turns a status into a failure with its reason.
    pub fn check(&self, what: &str, status: nmc_status_t) -> Result<(), Failure> {
        self.nanomc.check(what, status)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: the library checks handles; NULL is fine.
        unsafe { call!(self.nanomc, nmc_client_close(self.client)) };
    }
}
