//! A KV cache as a C program sees it: `libnanomc.so` loaded at run time.
#![allow(unsafe_code, reason = "calls through the C ABI")]

use super::library::c_api::{
    Config as _, NMC_DTYPE_BF16, NMC_KV_HASH_BLAKE3, NMC_KV_KIND_RECURRENT, NMC_KV_OPEN_MATCH_ALL, NMC_KV_TABLE_BLOCKS,
    nmc_kv_config_t, nmc_kv_group_t, nmc_kv_hash_t, nmc_kv_open_t, nmc_kv_opened_t, nmc_kv_row_t, nmc_kv_stats_t,
    nmc_kv_t, nmc_slice_t,
};
use super::library::{Nanomc, blank, call, try_call};
use crate::args::Failure;

/// A cache of the loaded library.
pub struct Kv {
    nanomc: Nanomc,
    handle: *mut nmc_kv_t,
}

// SAFETY: all functions may be called from any thread at the same time, and the handle is a number.
unsafe impl Sync for Kv {}

const NONE: nmc_slice_t = nmc_slice_t { ptr: std::ptr::null(), len: 0 };

impl Kv {
    /// A cache of `blocks` blocks of 16 tokens.
    pub fn create(blocks: u32, hash: u32) -> Result<Self, Failure> {
        Self::create_with(blocks, hash, 16)
    }

    /// A cache of blocks of another size.
    pub fn create_with(blocks: u32, hash: u32, tokens_per_block: u32) -> Result<Self, Failure> {
        Self::create_of(blocks, hash, tokens_per_block, &[])
    }

    /// A cache with a window of 1,024 tokens and a recurrent state beside full attention.
    pub fn create_hybrid(blocks: u32) -> Result<Self, Failure> {
        let dtype = NMC_DTYPE_BF16;
        let full = nmc_kv_group_t { dtype, layers: 1, kv_heads: 1, head_dim: 64, ..nmc_kv_group_t::defaults() };
        let window = nmc_kv_group_t { window: 1_024, blocks, ..full };
        let state = nmc_kv_group_t { kind: NMC_KV_KIND_RECURRENT, state_bytes: 4_096, blocks: 1_024, ..full };
        Self::create_of(blocks, NMC_KV_HASH_BLAKE3, 16, &[full, window, state])
    }

    fn create_of(blocks: u32, hash: u32, tokens_per_block: u32, groups: &[nmc_kv_group_t]) -> Result<Self, Failure> {
        let nanomc = Nanomc::load()?;
        let config = nmc_kv_config_t {
            total_blocks: blocks,
            tokens_per_block,
            hash,
            n_groups: groups.len(),
            groups: if groups.is_empty() { std::ptr::null() } else { groups.as_ptr() },
            ..nmc_kv_config_t::defaults()
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: a complete config, and an out-pointer that is a local.
        unsafe { try_call!(nanomc, nmc_kv_create(std::ptr::null_mut(), &raw const config, &raw mut handle)) }?;
        Ok(Self { nanomc, handle })
    }

    /// Opens a sequence of full blocks with these hashes; returns how many tokens the cache had.
    pub fn open_hashes(&self, id: u64, hashes: &[nmc_kv_hash_t]) -> Result<u64, Failure> {
        let options = nmc_kv_open_t {
            flags: NMC_KV_OPEN_MATCH_ALL,
            hashes: hashes.as_ptr(),
            n_hashes: hashes.len(),
            ..nmc_kv_open_t::defaults()
        };
        let struct_size = u32::try_from(size_of::<nmc_kv_opened_t>()).unwrap_or(0);
        let mut opened = nmc_kv_opened_t { struct_size, reserved0: 0, id: 0, hit_tokens: 0, tokens: 0 };
        let (none, tokens) = (std::ptr::null_mut(), hashes.len() as u64 * 16);
        // SAFETY: complete options with as many hashes, and an out-pointer that is a local.
        unsafe {
            try_call!(
                self.nanomc,
                nmc_kv_open(self.handle, id, std::ptr::null(), tokens, &raw const options, &raw mut opened, none)
            )
        }?;
        Ok(opened.hit_tokens)
    }

    /// Opens a sequence of tokens, whose values are told if there are any.
    pub fn open(&self, id: u64, tokens: &[u32], count: u64) -> Result<(), Failure> {
        let values = if tokens.is_empty() { std::ptr::null() } else { tokens.as_ptr() };
        let (none, out) = (std::ptr::null(), std::ptr::null_mut());
        // SAFETY: as many tokens, or none; the rest may be NULL.
        unsafe { try_call!(self.nanomc, nmc_kv_open(self.handle, id, values, count, none, out, std::ptr::null_mut())) }
    }

    pub fn close(&self, id: u64) -> Result<(), Failure> {
        // SAFETY: the library checks the handle.
        unsafe { try_call!(self.nanomc, nmc_kv_close(self.handle, id, 0)) }
    }

    pub fn append(&self, id: u64, count: u64) -> Result<(), Failure> {
        let (tokens, options, room) = (std::ptr::null(), std::ptr::null(), std::ptr::null_mut());
        // SAFETY: tokens, options and room may be NULL.
        unsafe { try_call!(self.nanomc, nmc_kv_append(self.handle, id, tokens, count, options, room)) }
    }

    /// One more token for each, told if there are any.
    pub fn append_batch(&self, ids: &[u64], tokens: &[u32]) -> Result<(), Failure> {
        let values = if tokens.len() == ids.len() { tokens.as_ptr() } else { std::ptr::null() };
        // SAFETY: as many ids, and as many tokens or none.
        unsafe {
            try_call!(
                self.nanomc,
                nmc_kv_append_batch(self.handle, ids.as_ptr(), values, ids.len(), std::ptr::null_mut())
            )
        }
    }

    pub fn truncate(&self, id: u64, tokens: u64) -> Result<(), Failure> {
        // SAFETY: room may be NULL.
        unsafe { try_call!(self.nanomc, nmc_kv_truncate(self.handle, id, tokens, std::ptr::null_mut())) }
    }

    /// Brings a dense table up to date; returns how many entries were written.
    pub fn table(&self, ids: &[u64], rows: &mut [nmc_kv_row_t], table: &mut [i32]) -> Result<u64, Failure> {
        let (width, mut written) = (table.len() / ids.len(), 0);
        // SAFETY: as many rows as ids, and a table of as many rows of `width`.
        unsafe {
            try_call!(
                self.nanomc,
                nmc_kv_table(
                    self.handle,
                    0,
                    NMC_KV_TABLE_BLOCKS,
                    ids.as_ptr(),
                    ids.len(),
                    width,
                    -1,
                    rows.as_mut_ptr(),
                    table.as_mut_ptr(),
                    &raw mut written,
                )
            )
        }?;
        Ok(written)
    }

    /// The hashes of full blocks.
    pub fn hash(&self, tokens: &[u32], hashes: &mut [nmc_kv_hash_t]) -> Result<(), Failure> {
        // SAFETY: a hash for every 16 tokens.
        unsafe {
            try_call!(
                self.nanomc,
                nmc_kv_hash(self.handle, tokens.as_ptr(), tokens.len() as u64, NONE, hashes.as_mut_ptr())
            )
        }
    }

    /// Bytes of the books, for every block.
    pub fn bytes_per_block(&self) -> Result<f64, Failure> {
        // SAFETY: numbers, for which all zero is a value.
        let mut stats: nmc_kv_stats_t = unsafe { blank() };
        // SAFETY: an out-pointer that is a local, with its size.
        unsafe { try_call!(self.nanomc, nmc_kv_stats(self.handle, &raw mut stats)) }?;
        Ok(stats.metadata_bytes as f64 / stats.total as f64)
    }
}

impl Drop for Kv {
    fn drop(&mut self) {
        // SAFETY: the library checks the handle.
        unsafe { call!(self.nanomc, nmc_kv_destroy(self.handle)) };
    }
}
