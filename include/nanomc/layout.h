/*
 * What host code and device code agree on: sizes, strides, structs in shared memory, and the self-test pattern.
 * Plain C11, C++17 and CUDA; needs no other nanomc header and no CUDA toolkit.
 * `src/layout/device.rs` is the Rust side; a test compares the two. NMC_LAYOUT_VERSION changes when anything here does.
 */
#ifndef NANOMC_LAYOUT_H
#define NANOMC_LAYOUT_H

#include <stdint.h>

/* Version of everything in this file. A process that attaches to memory of another version is refused. */
#define NMC_LAYOUT_VERSION 6

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

/* Most ranks of an expert-parallel group. */
#define NMC_EP_MAX_RANKS 32

/*
 * One rank's place in an expert-parallel group for one layer (nmc_ep_device): what a kernel needs to take part. Addresses
 * are device addresses; offsets count from the beginning of a rank's region and are the same on all ranks.
 * src/layout/ep.rs says what lies where; nanomc/ep.cuh has the functions.
 */
typedef struct nmc_ep_rank_t {
  uint64_t region[NMC_EP_MAX_RANKS]; /* each rank's region */
  uint64_t status;                   /* what the host looks at: error word, abort request, overflow per local expert */
  uint64_t deadline_ns;              /* longest wait for a peer */
  uint64_t off_set;                  /* the set's words: phase, counters, flags */
  uint64_t off_record;               /* records of the sources */
  uint64_t off_sent;                 /* destinations of own tokens: one bit a rank */
  uint64_t off_eid;                  /* int16 [world * t_cap][top_k] */
  uint64_t off_weight;               /* weights, the same shape */
  uint64_t off_scale;                /* fp32 [world * t_cap][scales] */
  uint64_t off_x;                    /* received rows */
  uint64_t off_y;                    /* rows to return */
  uint64_t off_load;                 /* tokens sent to each expert */
  uint32_t record_stride;            /* bytes from one record to the next */
  uint32_t world;
  uint32_t rank;
  uint32_t t_cap;
  uint32_t top_k;
  uint32_t hidden;
  uint32_t n_local; /* experts of a rank */
  uint32_t x_bytes; /* of a dispatched row */
  uint32_t y_bytes; /* of a returned row */
  uint32_t scales;  /* of a row; 0 unless rows travel as fp8 */
  uint32_t dtype;   /* of returned rows: 0 bf16, 1 fp16, 2 fp32 (not the numbers of NMC_DTYPE_*) */
  uint32_t wire;    /* 0: rows travel as they are, 1: quantised to fp8 on the way, 2: given as fp8 */
  uint32_t weight_bytes;
  uint32_t max_m;
  uint32_t groups;
  uint32_t layer;
  uint32_t config_hash;
  uint32_t trap;   /* 1: trap instead of reporting */
  uint32_t blocks; /* of a rank that dispatch */
  uint32_t scope;  /* of fences: 0 the system, 1 the device that all ranks share */
  uint32_t n_local_inverse; /* (2^32 - 1) / n_local, and the same of t_cap: kernels divide by multiplying */
  uint32_t t_cap_inverse;
} nmc_ep_rank_t;

NMC_LAYOUT_ASSERT(sizeof(nmc_ep_rank_t) == 8 * (NMC_EP_MAX_RANKS + 11) + 4 * 22, "no padding");

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
