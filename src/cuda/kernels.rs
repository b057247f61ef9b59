//! The kernels of the library: a fatbin embedded at build time, loaded into a device on first use, with typed launches of the
//! kernels that `world` and `store` use, and a generic one for capabilities that launch their own (`ep/gpu.rs`). A launch only
//! enqueues; it can be captured.

use core::ffi::{CStr, c_void};

use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig, CUmodule,
};

use super::device::Device;
use super::error::call;
use crate::bail;
use crate::base::error::Result;
use crate::layout::MAX_RANKS;
use crate::layout::device::PATTERN_ALIGN;

/// Words that [`Kernels::world_pattern_verify`] stores: wrong words, heap offset of the lowest wrong word (`u64::MAX`
/// when there is none), 1 + the source that did not come in time (0 when all came), 1 when finished.
pub const VERIFY_RESULT_WORDS: usize = 4;

const THREADS: u32 = 1024;

/// The loader reads the image as structs, so it is aligned like them.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);
static FATBIN: &Aligned<[u8]> = &Aligned(*include_bytes!(env!("NMC_FATBIN_PATH")));

/// The module of one device.
pub(crate) struct Loaded {
    module: CUmodule,
    pattern_write: CUfunction,
    pattern_verify: CUfunction,
    store_copy: CUfunction,
    store_publish: CUfunction,
    store_wait: CUfunction,
    pub(crate) kv_copy: CUfunction,
}

impl Loaded {
    /// Inside `with_current`.
    pub(super) fn load() -> Result<Self> {
        let mut module = core::ptr::null_mut();
        // SAFETY: the image is a whole fatbin, made by the build and checked against its manifest by a test.
        unsafe { call!(sys::cuModuleLoadData(&raw mut module, FATBIN.0.as_ptr().cast())) }
            .map_err(|e| e.context("loading the kernels of the library"))?;
        let loaded = (|| -> Result<Self> {
            Ok(Self {
                module,
                pattern_write: function(module, c"nmc_k_world_pattern_write")?,
                pattern_verify: function(module, c"nmc_k_world_pattern_verify")?,
                store_copy: function(module, c"nmc_k_store_copy")?,
                store_publish: function(module, c"nmc_k_store_publish")?,
                store_wait: function(module, c"nmc_k_store_wait")?,
                kv_copy: function(module, c"nmc_k_kv_copy")?,
            })
        })();
        loaded.inspect_err(|_| {
            // SAFETY: loaded above and not used again.
            unsafe { sys::cuModuleUnload(module) };
        })
    }

    /// # Safety
    /// Inside `with_current` of the device it was loaded into; no launch may follow.
    pub(super) unsafe fn unload(self) {
        // SAFETY: loaded once by `load`; the caller vouches for the rest.
        unsafe { sys::cuModuleUnload(self.module) };
    }
}

fn function(module: CUmodule, name: &CStr) -> Result<CUfunction> {
    let mut function = core::ptr::null_mut();
    // SAFETY: the module is loaded, the name is NUL-terminated and the out-pointer is a local.
    unsafe { call!(sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr())) }
        .map_err(|e| e.context(name.to_string_lossy()))?;
    // Now, not at the first launch: loading may wait for kernels that wait for this rank, and is not legal in a capture.
    // SAFETY: found above.
    unsafe { call!(sys::cuFuncLoad(function)) }.map_err(|e| e.context(name.to_string_lossy()))?;
    Ok(function)
}

/// A kernel of one device, for [`Kernels::launch_on`].
#[derive(Debug, Clone, Copy)]
pub struct Kernel(CUfunction);

// SAFETY: a function handle may be used from every thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// How a [`Kernel`] is launched.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// Blocks, in two dimensions.
    pub grid: (u32, u32),
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory; see [`Kernels::allow_shared`].
    pub shared_bytes: u32,
    /// Whether its blocks may be placed while the kernel before it in the stream ends (programmatic stream serialization).
    pub overlaps: bool,
}

/// Stretches that one launch copies.
pub const STRETCHES: usize = 32;
/// Bytes that a block copies at a time.
const COPY_TILE: u64 = 32 << 10;
const COPY_THREADS: u32 = 512;
const MAX_COPY_BLOCKS: u64 = 264;

/// One stretch of a copy: device addresses and bytes. NmcStretch in kernels/store.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stretch {
    /// Where to.
    pub dst: u64,
    /// Where from.
    pub src: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Arguments of [`Kernels::world_pattern_write`]. Ranks are device ranks.
#[derive(Debug, Clone, Copy)]
pub struct PatternWrite {
    /// Device address of `u64[n_ranks]`: the heap bases.
    pub device_bases: u64,
    /// Ranks in the world.
    pub n_ranks: u32,
    /// The rank that writes.
    pub my_rank: u32,
    /// Where the test area begins in every heap; a multiple of 16.
    pub offset: u64,
    /// Bytes from one rank to another; a multiple of 16. The area is `n_ranks * bytes` large.
    pub bytes: u64,
    /// Seed of the pattern.
    pub seed: u64,
    /// Device address of `u64[n_ranks]`: for each destination, the device address of its flag word for this source.
    pub flag_words: u64,
    /// What is stored into the flag words after the pattern.
    pub flag_value: u64,
}

/// Arguments of [`Kernels::world_pattern_verify`]. Ranks are device ranks.
#[derive(Debug, Clone, Copy)]
pub struct PatternVerify {
    /// Device address of the heap of the rank that verifies.
    pub heap_base: u64,
    /// Ranks in the world.
    pub n_ranks: u32,
    /// The rank that verifies.
    pub my_rank: u32,
    /// As for the write.
    pub offset: u64,
    /// As for the write.
    pub bytes: u64,
    /// As for the write.
    pub seed: u64,
    /// Device address of the flag word of source 0.
    pub flags: u64,
    /// Distance to the flag word of the next source.
    pub flag_stride_bytes: u64,
    /// Flag value to wait for.
    pub expected: u64,
    /// How long to wait for all sources together.
    pub timeout_ns: u64,
    /// Device address of `u64[VERIFY_RESULT_WORDS]`, in device memory or registered host memory.
    pub out: u64,
}

/// The kernels of one device; see [`Device::kernels`].
pub struct Kernels<'a> {
    pub(crate) device: &'a Device,
    pub(crate) loaded: &'a Loaded,
}

// SAFETY: module and function handles may be used from every thread.
unsafe impl Send for Loaded {}
// SAFETY: as above; nothing changes after loading.
unsafe impl Sync for Loaded {}

impl Device {
    /// The kernels, loaded on first use.
    pub fn kernels(&self) -> Result<Kernels<'_>> {
        Ok(Kernels { device: self, loaded: self.loaded()? })
    }
}

impl Kernels<'_> {
    /// Writes the pattern of one rank into every heap (its own too) and publishes into one flag word per destination.
    /// Waits for nothing.
    ///
    /// # Safety
    /// `stream` is one of the device's, or NULL. The tables have as many addresses as there are ranks, each heap has room for the area, which
    /// nobody else uses, and the flags are words that others only use as atomics: until the kernel has run.
    pub unsafe fn world_pattern_write(&self, stream: *mut c_void, a: &PatternWrite) -> Result<()> {
        check_area(a.n_ranks, a.my_rank, a.offset, a.bytes)?;
        let mut arguments = [
            arg(&a.device_bases),
            arg(&a.n_ranks),
            arg(&a.my_rank),
            arg(&a.offset),
            arg(&a.bytes),
            arg(&a.seed),
            arg(&a.flag_words),
            arg(&a.flag_value),
        ];
        // SAFETY: order and types are those of nmc_k_world_pattern_write in kernels/world.cu; the caller vouches for the rest.
        unsafe { self.launch(self.loaded.pattern_write, (a.n_ranks, THREADS), stream, &mut arguments) }
    }

    /// Waits for every source's flag word and compares what it wrote. One block spins until the sources came or
    /// `timeout_ns` passed: write first, and on another stream when ranks of one process share a device.
    ///
    /// # Safety
    /// `stream` is one of the device's, or NULL. The heap has the area, there are as many flags as ranks, at this distance, and `out` has
    /// room for the result: until the kernel has run.
    pub unsafe fn world_pattern_verify(&self, stream: *mut c_void, a: &PatternVerify) -> Result<()> {
        check_area(a.n_ranks, a.my_rank, a.offset, a.bytes)?;
        let mut arguments = [
            arg(&a.heap_base),
            arg(&a.n_ranks),
            arg(&a.my_rank),
            arg(&a.offset),
            arg(&a.bytes),
            arg(&a.seed),
            arg(&a.flags),
            arg(&a.flag_stride_bytes),
            arg(&a.expected),
            arg(&a.timeout_ns),
            arg(&a.out),
        ];
        // SAFETY: order and types are those of nmc_k_world_pattern_verify in kernels/world.cu; the caller vouches for the rest.
        unsafe { self.launch(self.loaded.pattern_verify, (1, THREADS), stream, &mut arguments) }
    }

    /// Copies stretches of memory that the device can reach, at most [`STRETCHES`] of them. Enqueues only. `past_l1`: the
    /// source is read once.
    ///
    /// # Safety
    /// `stream` is one of the device's, or NULL. Sources can be read, and destinations written to, by the device until the launch or its last
    /// replay has run; they do not overlap, and nobody else uses the destinations then.
    pub unsafe fn store_copy(&self, stream: *mut c_void, stretches: &[Stretch], past_l1: bool) -> Result<()> {
        let mut all = [Stretch::default(); STRETCHES];
        let Some(room) = all.get_mut(..stretches.len()) else {
            bail!(NMC_ERR_INTERNAL, "{} stretches do not fit a launch of {STRETCHES}", stretches.len());
        };
        room.copy_from_slice(stretches);
        let n = u32::try_from(stretches.len()).unwrap_or(0);
        let tiles: u64 = stretches.iter().map(|s| s.bytes.div_ceil(COPY_TILE)).sum();
        // Two blocks an SM of the largest devices keep the memory busy; more only queue.
        let blocks = u32::try_from(tiles.clamp(1, MAX_COPY_BLOCKS)).unwrap_or(1);
        let (tile, past_l1) = (COPY_TILE, u32::from(past_l1));
        let mut arguments = [arg(&all), arg(&n), arg(&tile), arg(&past_l1)];
        // SAFETY: order and types are those of nmc_k_store_copy in kernels/store.cu; `Stretch` is NmcStretch; the caller vouches for the rest.
        unsafe { self.launch(self.loaded.store_copy, (blocks, COPY_THREADS), stream, &mut arguments) }
    }

    /// Publishes what `n` descriptors at `descriptors` say when the launch runs.
    ///
    /// # Safety
    /// `stream` is one of the device's, or NULL. So many descriptors can be read by the device until the launch or its last replay has run,
    /// and each says nothing, or a publish word that is registered then.
    pub unsafe fn store_publish(&self, stream: *mut c_void, descriptors: u64, n: u32) -> Result<()> {
        let mut arguments = [arg(&descriptors), arg(&n)];
        // SAFETY: order and types are those of nmc_k_store_publish in kernels/store.cu; the caller vouches for the rest.
        unsafe { self.launch(self.loaded.store_publish, (1, 32), stream, &mut arguments) }
    }

    /// Makes the stream wait until an object is published in `epoch`, dead, or `timeout_ns` are over; what happened goes
    /// to `out`. `control` and `out` may be 0.
    ///
    /// # Safety
    /// `stream` is one of the device's, or NULL. `published` and `control` are words of a store that are registered, and at `out` there is a
    /// word of 32 bits that the device can write to and nobody else uses: until the launch or its last replay has run.
    pub unsafe fn store_wait(
        &self,
        stream: *mut c_void,
        published: u64,
        control: u64,
        epoch: u64,
        timeout_ns: u64,
        out: u64,
    ) -> Result<()> {
        let mut arguments = [arg(&published), arg(&control), arg(&epoch), arg(&timeout_ns), arg(&out)];
        // SAFETY: order and types are those of nmc_k_store_wait in kernels/store.cu; the caller vouches for the rest.
        unsafe { self.launch(self.loaded.store_wait, (1, 32), stream, &mut arguments) }
    }

    /// The kernel with this name, which is loaded now: kernels that nobody asks for take no room on the device.
    pub fn find(&self, name: &CStr) -> Result<Kernel> {
        self.device.with_current(|| function(self.loaded.module, name).map(Kernel))
    }

    /// Lets launches of a kernel have up to `bytes` of dynamic shared memory. A device that has less refuses those that ask for it.
    pub fn allow_shared(&self, kernel: Kernel, bytes: u32) -> Result<()> {
        let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        self.device.with_current(|| {
            // SAFETY: a kernel of this library. Whether it worked shows in the launches.
            unsafe { sys::cuFuncSetAttribute(kernel.0, most, bytes.cast_signed()) };
            Ok(())
        })
    }

    /// Blocks of a kernel that the device can hold at once.
    pub fn resident_blocks(&self, kernel: Kernel, threads: u32) -> Result<u32> {
        let mut blocks = 0;
        self.device.with_current(|| {
            // SAFETY: a kernel of this library, and the out-pointer is a local.
            unsafe {
                call!(sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &raw mut blocks,
                    kernel.0,
                    threads.cast_signed(),
                    0
                ))
            }
        })?;
        Ok(u32::try_from(blocks * self.device.facts().sm_count).unwrap_or(0))
    }

    /// Enqueues a kernel that was found with [`Self::find`].
    ///
    /// # Safety
    /// The kernel is of this device, and `arguments` are what its signature says; see [`arg`].
    pub unsafe fn launch_on(
        &self,
        stream: *mut c_void,
        kernel: Kernel,
        how: Launch,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let mut serial = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            // SAFETY: plain numbers, for which zero is a value.
            value: unsafe { core::mem::zeroed() },
        };
        serial.value.programmaticStreamSerializationAllowed = 1;
        let config = CUlaunchConfig {
            gridDimX: how.grid.0,
            gridDimY: how.grid.1,
            gridDimZ: 1,
            blockDimX: how.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: how.shared_bytes,
            hStream: stream.cast(),
            attrs: &raw mut serial,
            numAttrs: u32::from(how.overlaps),
        };
        self.device.with_current(|| {
            let arguments = arguments.as_mut_ptr();
            // SAFETY: as promised by the caller; the driver copies the arguments before it returns.
            unsafe { call!(sys::cuLaunchKernelEx(&raw const config, kernel.0, arguments, core::ptr::null_mut())) }
        })
    }

    /// # Safety
    /// `arguments` must be what the kernel's signature says.
    unsafe fn launch(
        &self,
        function: CUfunction,
        (blocks, threads): (u32, u32),
        stream: *mut c_void,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        // SAFETY: as promised by the caller.
        unsafe { self.launch_2d(function, (blocks, 1), threads, stream, arguments) }
    }

    /// # Safety
    /// `arguments` must be what the kernel's signature says.
    pub(crate) unsafe fn launch_2d(
        &self,
        function: CUfunction,
        (x, y): (u32, u32),
        threads: u32,
        stream: *mut c_void,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let arguments = arguments.as_mut_ptr();
        self.device.with_current(|| {
            // SAFETY: the function is of this device's module; the driver copies the arguments before it returns.
            unsafe {
                call!(sys::cuLaunchKernel(
                    function,
                    x,
                    y,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    stream.cast(),
                    arguments,
                    core::ptr::null_mut()
                ))
            }
        })
    }
}

/// An argument of a launch, which the driver copies.
#[must_use]
pub fn arg<T>(value: &T) -> *mut c_void {
    core::ptr::from_ref(value).cast_mut().cast()
}

fn check_area(n_ranks: u32, my_rank: u32, offset: u64, bytes: u64) -> Result<()> {
    if n_ranks == 0 || n_ranks as usize > MAX_RANKS || my_rank >= n_ranks {
        bail!(NMC_ERR_INVALID_ARG, "rank {my_rank} of {n_ranks} is not a rank of a world of 1 to {MAX_RANKS}");
    }
    if bytes == 0 || !bytes.is_multiple_of(PATTERN_ALIGN) || !offset.is_multiple_of(PATTERN_ALIGN) {
        bail!(
            NMC_ERR_INVALID_ARG,
            "the test area begins at {offset} with {bytes} bytes a rank; both must be multiples of {PATTERN_ALIGN}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_image_is_an_aligned_fatbin() {
        let image = &FATBIN.0;
        assert_eq!(image.as_ptr() as usize % 16, 0);
        assert_eq!(image.get(..4), Some(&0xBA55_ED50_u32.to_le_bytes()[..]));
    }

    #[test]
    fn a_test_area_that_kernels_cannot_use_is_refused() {
        assert!(check_area(2, 1, 64, 4096).is_ok());
        for (n, me, offset, bytes) in
            [(0, 0, 0, 16), (65, 0, 0, 16), (2, 2, 0, 16), (2, 0, 8, 16), (2, 0, 0, 0), (2, 0, 0, 24)]
        {
            assert!(check_area(n, me, offset, bytes).is_err(), "{n} {me} {offset} {bytes}");
        }
    }
}
