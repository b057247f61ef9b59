// Device functions for the engine's own kernels: ordered loads and stores on memory that other processes, other GPUs and
// the CPU also use, publish and wait on control words, and a copy that takes any alignment.
//
// Guarantees: no global state; every access that orders is of system scope; every asm statement clobbers memory; memory
// that a peer writes is never read through the non-coherent path; host memory is only loaded and stored, never modified
// in place (CPU and GPU atomics on one host word are not atomic to each other on PCIe machines).
// Any kernel may call this, from compute capability 8.0 on. Pointers are generic addresses of global memory: device
// memory, a peer's mapped heap, or registered host memory through its device pointer. Words are 8-byte aligned.
//
// Typical use, one block per destination:
//     nmc_dev_copy16(nmc_dev_peer_ptr(bases, dst, offset), rows, bytes, threadIdx.x, blockDim.x);
//     __syncthreads();
//     if (threadIdx.x == 0) nmc_dev_publish(word_of_dst, step);
// and in the destination's kernel:
//     __shared__ bool there;
//     if (threadIdx.x == 0) there = nmc_dev_wait_ge(word, step, timeout_ns);
//     __syncthreads();
//     if (there) { ... read the rows ... }
#ifndef NANOMC_DEVICE_CUH
#define NANOMC_DEVICE_CUH

#include "layout.h"

#define NMC_DEV static __device__ __forceinline__

// ---- single words -------------------------------------------------------------------------------------------------

// Loads a word. What its writer did before a release of this value is visible to this thread afterwards.
NMC_DEV uint64_t nmc_dev_ld_acquire_sys_u64(const uint64_t* word);
// Loads a word without ordering anything else; for polling, followed by nmc_dev_fence_acquire_sys.
NMC_DEV uint64_t nmc_dev_ld_relaxed_sys_u64(const uint64_t* word);
// Stores a word after everything this thread did or, through a block barrier, has seen done.
NMC_DEV void nmc_dev_st_release_sys_u64(uint64_t* word, uint64_t value);
// Stores a word without ordering anything else; after nmc_dev_fence_release_sys it publishes.
NMC_DEV void nmc_dev_st_relaxed_sys_u64(uint64_t* word, uint64_t value);

// ---- fences, all of system scope ----------------------------------------------------------------------------------

// Before a relaxed store that publishes. One-way on sm_90 and later; acq_rel before.
NMC_DEV void nmc_dev_fence_release_sys();
// After a relaxed load that saw the value. One-way (a cache invalidate) on sm_90 and later; acq_rel before.
NMC_DEV void nmc_dev_fence_acquire_sys();
// Between a store and a later load of another word, when two sides do this to each other (store buffering).
NMC_DEV void nmc_dev_fence_sc_sys();

// ---- addresses ----------------------------------------------------------------------------------------------------

// Address of `offset` in the heap of `device_rank`; `bases` is the device table of nmc_world_base_table.
NMC_DEV void* nmc_dev_peer_ptr(const uint64_t* bases, uint32_t device_rank, uint64_t offset);

// ---- publish and wait ---------------------------------------------------------------------------------------------

// Makes the block's writes visible to the system, then stores `value`. By one thread, after __syncthreads().
NMC_DEV void nmc_dev_publish(uint64_t* word, uint64_t value);
// The same for a whole grid: by one thread of each of `n_blocks` blocks, after __syncthreads(). The last to arrive
// publishes, sets the counter back to 0 and gets true. `counter` is in device memory, 0 before the first use, and
// serves one grid at a time.
NMC_DEV bool nmc_dev_grid_publish(uint32_t* counter, uint32_t n_blocks, uint64_t* word, uint64_t value);
// Waits until the word has reached `value` (nmc_reached: right across the wrap) and acquires. False after `timeout_ns`
// nanoseconds of %globaltimer; the word is always looked at once more after the deadline. 0 looks once.
// UINT64_MAX waits for ever. By one thread, followed by __syncthreads() for the block. Every block that waits must be
// resident together with the blocks it waits for.
NMC_DEV bool nmc_dev_wait_ge(const uint64_t* word, uint64_t value, uint64_t timeout_ns);
// %globaltimer: nanoseconds, the same clock for every SM of one GPU. Its step can be a microsecond.
NMC_DEV uint64_t nmc_dev_globaltimer_ns();

// ---- copy ---------------------------------------------------------------------------------------------------------

// Copies `bytes` bytes with `nthreads` threads numbered by `tid`. 16-byte vectors when dst and src have the same
// remainder of 16, else the widest access both allow; unaligned head and tail byte by byte. Touches no byte outside.
// The ranges must not overlap. Orders nothing: publish afterwards.
NMC_DEV void nmc_dev_copy16(void* dst, const void* src, uint64_t bytes, uint32_t tid, uint32_t nthreads);
// The same with source loads that do not stay in L1, for bytes that are read once.
NMC_DEV void nmc_dev_copy16_cg(void* dst, const void* src, uint64_t bytes, uint32_t tid, uint32_t nthreads);
// 16 bytes from memory that a peer may have written; both addresses are multiples of 16.
NMC_DEV ulonglong2 nmc_dev_ld16(const void* src);
NMC_DEV void nmc_dev_st16(void* dst, ulonglong2 value);

// ---- objects of a store -------------------------------------------------------------------------------------------

// Stores page `page` of an object: `bytes` bytes (at most page_bytes; the last page of a value has last_page_bytes) from
// `src`, with `nthreads` threads numbered by `tid`. `payload` is the plan's payload_device; for plans of several extents
// pass the extent's device_ptr and count pages from its beginning. Publish when all pages are stored:
// nmc_dev_publish(publish_word_device, epoch) by one block, nmc_dev_grid_publish by a grid.
NMC_DEV void nmc_dev_store_page(void* payload, uint64_t page, uint64_t page_bytes, const void* src, uint64_t bytes,
                                uint32_t tid, uint32_t nthreads);
// Waits until the object is published in `epoch` and acquires: NMC_READY_YES. NMC_READY_STALE if it died before, as far
// as `control` tells (may be null: then only time ends the wait), NMC_READY_TIMEOUT after `timeout_ns`. By one thread,
// followed by __syncthreads() for the block. A published object can still be evicted: pin it on the host first, or here.
NMC_DEV uint32_t nmc_dev_wait_ready(const uint64_t* published, const uint64_t* control, uint64_t epoch,
                                    uint64_t timeout_ns);
// Pins an object from a kernel, with a slot that the host reserved for it (nmc_store_device_pin): true if it can be read
// until nmc_dev_unpin. By one thread, followed by __syncthreads() for the block. Costs about 2.4 us over PCIe, against
// 0.1 us on the host: opt-in, for kernels that learn late what they need.
NMC_DEV bool nmc_dev_pin(const nmc_device_pin_t* pin);
// Ends it. By one thread, after __syncthreads(): every read of the block is before it.
NMC_DEV void nmc_dev_unpin(const nmc_device_pin_t* pin);

#include "impl/device_impl.cuh"

#endif // NANOMC_DEVICE_CUH
