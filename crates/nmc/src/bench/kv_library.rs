//! A block allocator as a C program sees it: `libnanomc.so` loaded at run time, nothing allocated in a call.
#![allow(unsafe_code, reason = "calls through the C ABI")]

use super::kv_load::{BATCH, Batches, RunAllocator};
use super::library::c_api::{Config as _, NMC_OK, nmc_block_run_t, nmc_blocks_config_t, nmc_blocks_t, nmc_status_t};
use super::library::{Nanomc, call, try_call};
use crate::args::Failure;

/// An allocator of the loaded library.
pub struct Blocks {
    nanomc: Nanomc,
    handle: *mut nmc_blocks_t,
    /// The first call that failed although it must not.
    failed: Option<&'static str>,
}

impl Blocks {
    pub fn create(total_blocks: u32) -> Result<Self, Failure> {
        let nanomc = Nanomc::load()?;
        let config = nmc_blocks_config_t { total_blocks, ..nmc_blocks_config_t::defaults() };
        let mut handle = std::ptr::null_mut();
        // SAFETY: a complete config, and an out-pointer that is a local.
        unsafe { try_call!(nanomc, nmc_blocks_create(&raw const config, &raw mut handle)) }?;
        Ok(Self { nanomc, handle, failed: None })
    }

    /// An error if a free failed.
    pub fn check(&self) -> Result<(), Failure> {
        self.failed.map_or(Ok(()), |call| Err(Failure::new(format!("{call} failed"))))
    }

    fn expect(&mut self, status: nmc_status_t, call: &'static str) -> Option<()> {
        if status != NMC_OK {
            self.failed.get_or_insert(call);
        }
        (status == NMC_OK).then_some(())
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        // SAFETY: the library checks the handle.
        unsafe { call!(self.nanomc, nmc_blocks_destroy(self.handle)) };
    }
}

impl Batches for Blocks {
    type Batch = [i32; BATCH];

    fn take(&mut self) -> Option<Self::Batch> {
        let mut batch = [0; BATCH];
        // SAFETY: room for as many numbers.
        let status =
            unsafe { call!(self.nanomc, nmc_blocks_allocate_scattered(self.handle, BATCH, batch.as_mut_ptr())) };
        self.expect(status, "nmc_blocks_allocate_scattered")?;
        Some(batch)
    }

    #[inline]
    fn renew(&mut self, batch: &mut Self::Batch) -> Option<()> {
        // SAFETY: as many numbers.
        let status = unsafe { call!(self.nanomc, nmc_blocks_free_scattered(self.handle, batch.as_ptr(), BATCH)) };
        self.expect(status, "nmc_blocks_free_scattered")?;
        // SAFETY: room for as many numbers.
        let status =
            unsafe { call!(self.nanomc, nmc_blocks_allocate_scattered(self.handle, BATCH, batch.as_mut_ptr())) };
        self.expect(status, "nmc_blocks_allocate_scattered")
    }
}

impl RunAllocator for Blocks {
    type Run = nmc_block_run_t;

    #[inline]
    fn allocate(&mut self, count: u32) -> Option<nmc_block_run_t> {
        let mut run = nmc_block_run_t { first: 0, count: 0 };
        // SAFETY: the out-pointer is a local.
        (unsafe { call!(self.nanomc, nmc_blocks_allocate(self.handle, count, &raw mut run)) } == NMC_OK).then_some(run)
    }

    #[inline]
    fn free(&mut self, run: nmc_block_run_t, _: u32) {
        // SAFETY: the library checks the run.
        let status = unsafe { call!(self.nanomc, nmc_blocks_free(self.handle, run)) };
        let _ = self.expect(status, "nmc_blocks_free");
    }
}

/// `malloc` and `free` of a byte a block: what every program has. It knows no end and no numbers.
pub struct Malloc;

impl RunAllocator for Malloc {
    type Run = *mut libc::c_void;

    #[inline]
    fn allocate(&mut self, count: u32) -> Option<*mut libc::c_void> {
        // SAFETY: any size may be asked for.
        Some(unsafe { libc::malloc(count as usize) }).filter(|bytes| !bytes.is_null())
    }

    #[inline]
    fn free(&mut self, run: *mut libc::c_void, _: u32) {
        // SAFETY: comes from malloc, and is given back once.
        unsafe { libc::free(run) };
    }
}

impl Batches for Malloc {
    type Batch = [*mut libc::c_void; BATCH];

    fn take(&mut self) -> Option<Self::Batch> {
        Some(std::array::from_fn(|_| self.allocate(1).unwrap_or(std::ptr::null_mut())))
    }

    #[inline]
    fn renew(&mut self, batch: &mut Self::Batch) -> Option<()> {
        for one in &*batch {
            self.free(*one, 1);
        }
        for one in &mut *batch {
            *one = self.allocate(1)?;
        }
        Some(())
    }
}
