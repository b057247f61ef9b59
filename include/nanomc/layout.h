/*
 * What host code and device code agree on: sizes, strides, structs in shared memory, and the self-test pattern.
 * Plain C11, C++17 and CUDA; needs no other nanomc header and no CUDA toolkit.
 * `src/layout/device.rs` is the Rust side; a test compares the two. NMC_LAYOUT_VERSION changes when anything here does.
 */
#ifndef NANOMC_LAYOUT_H
#define NANOMC_LAYOUT_H

#include <stdint.h>

/* Version of everything in this file. A process that attaches to memory of another version is refused. */
#define NMC_LAYOUT_VERSION 1

/* What one writer must not share with another, in bytes. */
#define NMC_CACHE_LINE 64

/* Most ranks in one world. */
#define NMC_MAX_RANKS 64

/* Distance from one control word to the next, in bytes. */
#define NMC_WORD_STRIDE 64

/* Offsets and sizes of the world self-test are multiples of this, in bytes. */
#define NMC_PATTERN_ALIGN 16

#if defined(__CUDACC__)
#define NMC_LAYOUT_FN static __host__ __device__ __forceinline__
#else
#define NMC_LAYOUT_FN static inline
#endif

#if defined(__cplusplus)
#define NMC_LAYOUT_ASSERT(condition, text) static_assert(condition, text)
extern "C" {
#else
#define NMC_LAYOUT_ASSERT(condition, text) _Static_assert(condition, text)
#endif

/*
 * A control word on its own cache line. It has one writer; everyone may read it.
 * A GPU only loads and stores `value`: read-modify-write on host memory is not atomic to the CPU.
 */
typedef struct nmc_word_line_t {
  uint64_t value;
  uint64_t reserved[7]; /* zero */
} nmc_word_line_t;

NMC_LAYOUT_ASSERT(sizeof(nmc_word_line_t) == NMC_WORD_STRIDE, "a control word fills its stride");
NMC_LAYOUT_ASSERT(NMC_WORD_STRIDE % NMC_CACHE_LINE == 0, "two control words never share a cache line");

/* States of an object in the low 4 bits of its control word, the first word of its header; the epoch is above 8 bits. */
#define NMC_STATE_RESERVED 0
#define NMC_STATE_WRITING 1
#define NMC_STATE_READY 2
#define NMC_STATE_DEAD 3
#define NMC_EPOCH_SHIFT 8

/* What nmc_dev_wait_ready found: the object can be read, will not become readable, or the time is over. */
#define NMC_READY_YES 0
#define NMC_READY_STALE 1
#define NMC_READY_TIMEOUT 2

/*
 * What a captured publish stores: the host fills it before each launch of the graph (nmc_store_publish_desc), in
 * pinned or registered memory. A captured value would be baked; this is read anew by every launch.
 */
typedef struct nmc_publish_desc_t {
  uint64_t word;  /* device address of the object's publish word */
  uint64_t epoch; /* 0: nothing to publish */
} nmc_publish_desc_t;

/* What a kernel needs to pin an object by itself (nmc_store_device_pin). All addresses are device addresses. */
typedef struct nmc_device_pin_t {
  uint64_t slot;      /* address of the pin slot */
  uint64_t value;     /* what to store there */
  uint64_t control;   /* address of the control word */
  uint64_t published; /* address of the publish word */
  uint64_t epoch;     /* the object's epoch */
  uint64_t payload;   /* address of the first byte */
  uint64_t bytes;     /* bytes of the value */
} nmc_device_pin_t;

NMC_LAYOUT_ASSERT(sizeof(nmc_publish_desc_t) == 16 && sizeof(nmc_device_pin_t) == 56, "no padding");

/*
 * The 64-bit word at `index` that `src_rank` writes for `dst_rank` in the self-test.
 * All four inputs change about half of the bits, so a word from a wrong place is never taken for the right one.
 */
NMC_LAYOUT_FN uint64_t nmc_pattern_u64(uint64_t seed, uint32_t src_rank, uint32_t dst_rank, uint64_t index) {
  uint64_t x = seed + UINT64_C(0x9E3779B97F4A7C15) * (index + 1);
  x ^= ((uint64_t)src_rank << 32) | (uint64_t)dst_rank;
  x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
  return x ^ (x >> 31);
}

/* True when counter `seen` has reached `want`; right across the wrap of 64 bits while they are less than 2^63 apart. */
NMC_LAYOUT_FN int nmc_reached(uint64_t seen, uint64_t want) { return (seen - want) < (UINT64_C(1) << 63); }

#if defined(__cplusplus)
}
#endif

#endif /* NANOMC_LAYOUT_H */
