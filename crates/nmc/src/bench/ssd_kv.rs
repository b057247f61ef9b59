//! A KV cache over a store with an SSD tier as a C program sees it, on top of [`Drive`]. Its blocks have 256 KiB: 32 layers of one
//! head, as each of eight GPUs has them of a model of 8 billion parameters.
#![allow(unsafe_code, reason = "calls through the C ABI")]

use super::library::c_api::{
    Config as _, NMC_DTYPE_BF16, NMC_KV_ONBOARD_ALL, NMC_KV_ONBOARD_BY_LAYER, nmc_kv_config_t, nmc_kv_group_t, nmc_kv_t,
};
use super::library::{Nanomc, call, try_call};
use super::random::Random;
use super::ssd_library::Drive;
use crate::args::Failure;
use nanomc::tier::io::Buffer;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 256 << 10;
const LAYERS: u32 = 32;
const HEAD_DIM: u32 = 128;
/// Tokens of a block.
const SIZE: u32 = 16;
const TIMEOUT_MS: i64 = 60_000;

/// A cache that has room for one sequence, and the store of a drive below it.
pub struct Cache {
    nanomc: Nanomc,
    handle: *mut nmc_kv_t,
    blocks: u32,
    /// Where the blocks are.
    _memory: Buffer,
}

impl Cache {
    /// For sequences of `blocks` blocks.
    pub fn over(drive: &Drive, blocks: u32) -> Result<Self, Failure> {
        let nanomc = Nanomc::load()?;
        let mut memory = Buffer::new(blocks as usize * BLOCK_BYTES)?;
        memory.copy_from_slice(&Random(7).bytes(blocks as usize * BLOCK_BYTES));
        let group = nmc_kv_group_t {
            dtype: NMC_DTYPE_BF16,
            layers: LAYERS,
            kv_heads: 1,
            head_dim: HEAD_DIM,
            memory: memory.as_mut_ptr().cast(),
            memory_bytes: memory.len() as u64,
            ..nmc_kv_group_t::defaults()
        };
        let config = nmc_kv_config_t {
            total_blocks: blocks,
            tokens_per_block: SIZE,
            n_groups: 1,
            groups: &raw const group,
            ..nmc_kv_config_t::defaults()
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: a complete config whose memory this value keeps as long as the cache; the out-pointer is a local.
        unsafe { try_call!(nanomc, nmc_kv_create(std::ptr::null_mut(), &raw const config, &raw mut handle)) }?;
        let cache = Self { nanomc, handle, blocks, _memory: memory };
        // SAFETY: the library checks both handles.
        unsafe { try_call!(cache.nanomc, nmc_kv_attach_store(handle, drive.shelf.store)) }?;
        Ok(cache)
    }

    /// Opens a sequence of which the cache knows nothing.
    fn open(&self, id: u64) -> Result<(), Failure> {
        let first = u32::try_from(id).unwrap_or(0) * self.blocks * SIZE;
        let tokens: Vec<u32> = (first..first + self.blocks * SIZE).collect();
        let (none, out) = (std::ptr::null(), std::ptr::null_mut());
        // SAFETY: as many tokens; the rest may be NULL.
        unsafe {
            try_call!(self.nanomc, nmc_kv_clear(self.handle, std::ptr::null_mut()))?;
            let (at, count) = (tokens.as_ptr(), tokens.len() as u64);
            try_call!(self.nanomc, nmc_kv_open(self.handle, id, at, count, none, out, std::ptr::null_mut()))
        }
    }

    fn finish(&self, ticket: u64) -> Result<(), Failure> {
        // SAFETY: progress may be NULL.
        unsafe { try_call!(self.nanomc, nmc_kv_transfer_wait(self.handle, ticket, TIMEOUT_MS, std::ptr::null_mut())) }
    }

    /// Sends what stands for a sequence to the store.
    pub fn store(&self, id: u64) -> Result<(), Failure> {
        let (tokens, mut ticket) = (u64::from(self.blocks * SIZE), 0);
        self.open(id)?;
        // SAFETY: it comes after nothing; the out-pointer is a local.
        unsafe {
            try_call!(self.nanomc, nmc_kv_commit(self.handle, id, tokens))?;
            try_call!(self.nanomc, nmc_kv_offload(self.handle, id, tokens, std::ptr::null(), &raw mut ticket))?;
        }
        self.finish(ticket)?;
        self.end(id)
    }

    /// Fetches all of a sequence; calls `now` when it begins.
    pub fn fetch(&self, id: u64, by_layer: bool, now: impl FnOnce()) -> Result<(), Failure> {
        let flags = NMC_KV_ONBOARD_ALL | if by_layer { NMC_KV_ONBOARD_BY_LAYER } else { 0 };
        let (mut ticket, mut tokens) = (0, 0);
        self.open(id)?;
        now();
        let none = std::ptr::null();
        // SAFETY: it comes after nothing; the out-pointers are locals.
        unsafe {
            try_call!(self.nanomc, nmc_kv_onboard(self.handle, id, flags, none, &raw mut ticket, &raw mut tokens))
        }?;
        if tokens != u64::from(self.blocks * SIZE) {
            return Err(Failure::new(format!("the store has {tokens} tokens of sequence {id}")));
        }
        self.finish(ticket)
    }

    /// Ends the sequence that came.
    pub fn end(&self, id: u64) -> Result<(), Failure> {
        // SAFETY: the library checks the handle.
        unsafe { try_call!(self.nanomc, nmc_kv_close(self.handle, id, 0)) }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // SAFETY: the library checks the handle.
        unsafe { call!(self.nanomc, nmc_kv_destroy(self.handle)) };
    }
}
