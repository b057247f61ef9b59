/* Bodies of nanomc/ep.cuh; include that one. */

/* Offsets of src/layout/ep.rs. */
#define NMC_EP_OFF_WAITED 64
#define NMC_EP_OFF_TOKENS 4
#define NMC_EP_OFF_SCATTERED 8
#define NMC_EP_OFF_COUNTED 16
#define NMC_EP_OFF_RETURNED 64
#define NMC_EP_OFF_RETURNS 128
#define NMC_EP_OFF_FLAGS (NMC_EP_OFF_RETURNS + 8 * NMC_EP_MAX_RANKS)
#define NMC_EP_RECORD_HEAD 16

/* Faults of src/layout/ep.rs. */
#define NMC_EP_FAULT_TIMEOUT 1
#define NMC_EP_FAULT_LAYER 2
#define NMC_EP_FAULT_TOKENS 3
#define NMC_EP_FAULT_EXPERT 4

NMC_DEV char* nmc_dev_impl_ep_own(const nmc_ep_rank_t& d, uint64_t offset) {
  return reinterpret_cast<char*>(d.region[d.rank] + offset);
}

NMC_DEV char* nmc_dev_impl_ep_at(const nmc_ep_rank_t& d, uint32_t rank, uint64_t offset) {
  return reinterpret_cast<char*>(d.region[rank] + offset);
}

NMC_DEV uint32_t nmc_dev_impl_ep_lane() { return threadIdx.x & 31; }

/* n / by, where inverse is (2^32 - 1) / by and n is below 2^31. The product is at most one too small. */
NMC_DEV uint32_t nmc_dev_impl_ep_divide(uint32_t n, uint32_t by, uint32_t inverse, uint32_t* rest) {
  uint32_t whole = __umulhi(n, inverse);
  *rest = n - whole * by;
  if (*rest >= by) whole += 1, *rest -= by;
  return whole;
}

/* The rank that has an expert, and its number there. */
NMC_DEV uint32_t nmc_dev_impl_ep_home(const nmc_ep_rank_t& d, uint32_t expert, uint32_t* local) {
  return nmc_dev_impl_ep_divide(expert, d.n_local, d.n_local_inverse, local);
}

/* Fences of the scope that the group needs; see docs/ep.md. */
NMC_DEV void nmc_dev_impl_ep_release(const nmc_ep_rank_t& d) {
  if (d.scope == 0) return nmc_dev_fence_release_sys();
#if NMC_DEV_ONE_WAY_FENCES
  asm volatile("fence.release.gpu;" : : : "memory");
#else
  asm volatile("fence.acq_rel.gpu;" : : : "memory");
#endif
}

NMC_DEV void nmc_dev_impl_ep_acquire(const nmc_ep_rank_t& d) {
  if (d.scope == 0) return nmc_dev_fence_acquire_sys();
#if NMC_DEV_ONE_WAY_FENCES
  asm volatile("fence.acquire.gpu;" : : : "memory");
#else
  asm volatile("fence.acq_rel.gpu;" : : : "memory");
#endif
}

/* Regions and status pages are global memory; saying so saves the look at what an address points to. */
NMC_DEV uint64_t nmc_dev_impl_ep_ld64(const void* at) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
  return v;
}

NMC_DEV void nmc_dev_impl_ep_st64(void* at, uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(at), "l"(v) : "memory");
}

NMC_DEV uint32_t nmc_dev_impl_ep_ld32(const void* at) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
}

NMC_DEV void nmc_dev_impl_ep_st32(void* at, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" : : "l"(at), "r"(v) : "memory");
}

NMC_DEV void nmc_dev_impl_ep_st16(void* at, int32_t v) {
  asm volatile("st.relaxed.sys.global.u16 [%0], %1;" : : "l"(at), "h"(static_cast<uint16_t>(v)) : "memory");
}

/* The first failure stays; peers learn of it, so that nobody waits for a group that is over. Of one that is over already they
 * have been told, and their memory may have another use by now. */
NMC_DEV void nmc_dev_impl_ep_end(const nmc_ep_rank_t& d, uint64_t word) {
  uint64_t* status = reinterpret_cast<uint64_t*>(d.status);
  const uint64_t earlier = nmc_dev_impl_ep_ld64(reinterpret_cast<const uint64_t*>(d.region[d.rank]));
  if (nmc_dev_impl_ep_ld64(status) == 0) nmc_dev_impl_ep_st64(status, earlier != 0 ? earlier : word);
  for (uint32_t r = 0; r < d.world && earlier == 0; ++r) {
    nmc_dev_impl_ep_st64(reinterpret_cast<uint64_t*>(d.region[r]), word);
  }
  nmc_dev_fence_release_sys();
  if (d.trap != 0) __trap();
}

NMC_DEV void nmc_dev_impl_ep_fail(const nmc_ep_rank_t& d, uint32_t fault, uint32_t about, uint32_t value) {
  nmc_dev_impl_ep_end(d, static_cast<uint64_t>(fault) | static_cast<uint64_t>(d.rank) << 8 |
                             static_cast<uint64_t>(about & 0xff) << 16 | static_cast<uint64_t>(d.layer & 0xffff) << 24 |
                             static_cast<uint64_t>(value & 0xffffff) << 40);
}

/* Tells the host what ended the group, if it does not know. */
NMC_DEV void nmc_dev_impl_ep_tell(const nmc_ep_rank_t& d) {
  uint64_t* status = reinterpret_cast<uint64_t*>(d.status);
  const uint64_t word = nmc_dev_impl_ep_ld64(reinterpret_cast<const uint64_t*>(d.region[d.rank]));
  /* A block that has seen nothing yet must not store that over what another one tells meanwhile. */
  if (word != 0 && nmc_dev_impl_ep_ld64(status) == 0) nmc_dev_impl_ep_st64(status, word);
}

NMC_DEV bool nmc_dev_ep_failed(const nmc_ep_rank_t& d) {
  return nmc_dev_impl_ep_ld64(reinterpret_cast<const uint64_t*>(d.region[d.rank])) != 0;
}

NMC_DEV uint32_t nmc_dev_ep_phase(const nmc_ep_rank_t& d) {
  return nmc_dev_impl_ep_ld32(nmc_dev_impl_ep_own(d, d.off_set));
}

NMC_DEV uint32_t nmc_dev_ep_targets(const nmc_ep_rank_t& d, int64_t expert, bool* bad) {
  const uint32_t lane = nmc_dev_impl_ep_lane();
  const bool wrong = lane < d.top_k && (expert < -1 || expert >= static_cast<int64_t>(d.world) * d.n_local);
  const bool some = lane < d.top_k && expert >= 0 && !wrong;
  *bad = __any_sync(0xffffffffu, wrong);
  uint32_t local;
  const uint32_t bit = some ? 1u << nmc_dev_impl_ep_home(d, static_cast<uint32_t>(expert), &local) : 0u;
  return __reduce_or_sync(0xffffffffu, bit);
}

NMC_DEV char* nmc_dev_ep_row(const nmc_ep_rank_t& d, uint32_t dst, uint32_t t) {
  return nmc_dev_impl_ep_at(d, dst, d.off_x + static_cast<uint64_t>(d.rank * d.t_cap + t) * d.x_bytes);
}

NMC_DEV void nmc_dev_ep_send_meta(const nmc_ep_rank_t& d, uint32_t t, uint32_t targets, int64_t expert, float weight) {
  const uint32_t lane = nmc_dev_impl_ep_lane();
  if (lane == 0) nmc_dev_impl_ep_st32(nmc_dev_impl_ep_own(d, d.off_sent + 4ull * t), targets);
  if (lane >= d.top_k) return;
  uint32_t local = 0;
  const uint32_t dst = expert >= 0 ? nmc_dev_impl_ep_home(d, static_cast<uint32_t>(expert), &local) : 0xffffffffu;
  const uint64_t entry = static_cast<uint64_t>(d.rank * d.t_cap + t) * d.top_k + lane;
  for (uint32_t left = targets; left != 0; left &= left - 1) {
    const uint32_t r = __ffs(static_cast<int>(left)) - 1;
    const bool mine = r == dst;
    nmc_dev_impl_ep_st16(nmc_dev_impl_ep_at(d, r, d.off_eid + 2 * entry), mine ? static_cast<int32_t>(local) : -1);
    char* at = nmc_dev_impl_ep_at(d, r, d.off_weight + d.weight_bytes * entry);
    if (d.weight_bytes == 4) {
      nmc_dev_impl_ep_st32(at, __float_as_uint(mine ? weight : 0.0f));
    } else {
      uint16_t half;
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(mine ? weight : 0.0f));
      nmc_dev_impl_ep_st16(at, half);
    }
  }
}

NMC_DEV int64_t nmc_dev_impl_ep_expert(const void* idx, bool idx_64, uint64_t at) {
  if (idx_64) return static_cast<const int64_t*>(idx)[at];
  return static_cast<const int32_t*>(idx)[at];
}

NMC_DEV void nmc_dev_ep_send_record(const nmc_ep_rank_t& d, uint32_t dst, const void* idx, bool idx_64, uint32_t tokens,
                                    uint32_t phase) {
  const uint32_t lane = nmc_dev_impl_ep_lane();
  char* record = nmc_dev_impl_ep_at(d, dst, d.off_record + static_cast<uint64_t>(d.rank) * d.record_stride);
  const int64_t first = static_cast<int64_t>(dst) * d.n_local, end = first + d.n_local;
  for (uint32_t base = 0; base < d.t_cap; base += 32) {
    bool hit = false;
    const uint32_t t = base + lane;
    if (t < tokens) {
      for (uint32_t k = 0; k < d.top_k; ++k) {
        const int64_t e = nmc_dev_impl_ep_expert(idx, idx_64, static_cast<uint64_t>(t) * d.top_k + k);
        hit |= e >= first && e < end;
      }
    }
    const uint32_t mask = __ballot_sync(0xffffffffu, hit);
    if (lane == 0) nmc_dev_impl_ep_st32(record + NMC_EP_RECORD_HEAD + base / 8, mask);
  }
  if (lane < 4) {
    nmc_dev_impl_ep_st32(record + 4 * lane,
                         lane == 0 ? tokens : lane == 1 ? d.layer : lane == 2 ? d.config_hash : phase);
  }
}

/* What a block adds to the counters when it has stored its rows. The layers are summed beside the blocks, so that who comes with
 * another layer is noticed. */
NMC_DEV uint64_t nmc_dev_impl_ep_step(const nmc_ep_rank_t& d) { return 1ull | static_cast<uint64_t>(d.layer & 0xffff) << 32; }

NMC_DEV void nmc_dev_ep_signal_dispatch(const nmc_ep_rank_t& d) {
  const uint32_t lane = nmc_dev_impl_ep_lane();
  if (lane >= d.world) return;
  char* counter = nmc_dev_impl_ep_at(d, lane, d.off_set + NMC_EP_OFF_FLAGS + 8ull * d.rank);
  const uint64_t step = nmc_dev_impl_ep_step(d);
  if (d.scope == 0) {
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" : : "l"(counter), "l"(step) : "memory");
  } else {
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" : : "l"(counter), "l"(step) : "memory");
  }
}

/* One warp, after a release fence of it. */
NMC_DEV void nmc_dev_impl_ep_flag_return(const nmc_ep_rank_t& d, uint32_t phase) {
  const uint32_t lane = nmc_dev_impl_ep_lane();
  const uint64_t flag = static_cast<uint64_t>(phase) | static_cast<uint64_t>(d.layer & 0xffff) << 32;
  if (lane < d.world) nmc_dev_impl_ep_st64(nmc_dev_impl_ep_at(d, lane, d.off_set + NMC_EP_OFF_RETURNS + 8ull * d.rank), flag);
}

NMC_DEV void nmc_dev_ep_signal_return(const nmc_ep_rank_t& d, uint32_t phase) {
  nmc_dev_impl_ep_release(d);
  nmc_dev_impl_ep_flag_return(d, phase);
}

/* A flag that a rank stores: it has come if it has this phase, or a later one. */
struct NmcEpFlag {
  uint32_t phase;
  __device__ __forceinline__ bool came(uint64_t seen) const { return static_cast<int32_t>(static_cast<uint32_t>(seen) - phase) >= 0; }
  __device__ __forceinline__ uint32_t layer(const nmc_ep_rank_t& d, uint64_t seen) const {
    return static_cast<uint32_t>(seen) == phase ? static_cast<uint32_t>(seen >> 32) & 0xffff : d.layer & 0xffff;
  }
};

/* A counter to which the blocks of a rank add: they have all come if it has what it had before and their part. */
struct NmcEpCounter {
  uint64_t before, want;
  __device__ __forceinline__ bool came(uint64_t seen) const {
    return static_cast<int32_t>(static_cast<uint32_t>(seen) - static_cast<uint32_t>(want)) >= 0;
  }
  __device__ __forceinline__ uint32_t layer(const nmc_ep_rank_t& d, uint64_t seen) const {
    if (seen == want || static_cast<uint32_t>(seen) != static_cast<uint32_t>(want)) return d.layer & 0xffff;
    return static_cast<uint32_t>((seen - before) >> 32) / d.blocks & 0xffff;
  }
};

/* Waits for one word. The clock is not read before a few looks were in vain: most waits are shorter than that. `start` is 0 until
 * then. */
template <typename Word>
NMC_DEV bool nmc_dev_impl_ep_wait_word(const nmc_ep_rank_t& d, const uint64_t* at, const Word& word, uint32_t source,
                                       uint64_t* start) {
  for (uint32_t looks = 1;; ++looks) {
    const uint64_t seen = nmc_dev_impl_ep_ld64(at);
    if (word.came(seen)) {
      const uint32_t layer = word.layer(d, seen);
      if (layer == (d.layer & 0xffff)) return true;
      nmc_dev_impl_ep_fail(d, NMC_EP_FAULT_LAYER, source, layer);
      return false;
    }
    if (looks % 16 != 0) continue;
    if (nmc_dev_ep_failed(d)) return false;
    if (looks % 1024 == 0) {
      const uint64_t request = nmc_dev_impl_ep_ld64(reinterpret_cast<uint64_t*>(d.status) + 1);
      if (request != 0) {
        nmc_dev_impl_ep_end(d, request);
        return false;
      }
    }
    const uint64_t now = nmc_dev_globaltimer_ns();
    if (*start == 0) *start = now;
    if (static_cast<int64_t>(now - *start) > static_cast<int64_t>(d.deadline_ns)) {
      nmc_dev_impl_ep_fail(d, NMC_EP_FAULT_TIMEOUT, source, 0);
      return false;
    }
  }
}

/* All threads of a block: waits for a word of each rank. `account`: add the time waited to the statistics, without what passed
 * before the clock was read. `ok`: false for threads that know already that the group has failed; all then return false. */
template <typename Word>
NMC_DEV bool nmc_dev_impl_ep_wait(const nmc_ep_rank_t& d, uint64_t off_words, const Word& word, bool account, bool ok) {
  const uint32_t source = threadIdx.x;
  if (source < d.world && ok) {
    const char* at = nmc_dev_impl_ep_own(d, d.off_set + off_words + 8ull * source);
    uint64_t start = 0;
    ok = nmc_dev_impl_ep_wait_word(d, reinterpret_cast<const uint64_t*>(at), word, source, &start);
    if (ok && account && start != 0) {
      asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;"
                   : : "l"(nmc_dev_impl_ep_own(d, NMC_EP_OFF_WAITED + 8ull * source)),
                       "l"(nmc_dev_globaltimer_ns() - start) : "memory");
    }
    nmc_dev_impl_ep_acquire(d);
  }
  if (__syncthreads_and(ok) != 0) return true;
  if (threadIdx.x == 0) nmc_dev_impl_ep_tell(d);
  return false;
}

NMC_DEV bool nmc_dev_ep_wait_dispatch(const nmc_ep_rank_t& d, uint32_t phase, uint32_t tokens) {
  char* words = nmc_dev_impl_ep_own(d, d.off_set);
  const uint64_t before = nmc_dev_impl_ep_ld64(words + NMC_EP_OFF_COUNTED);
  const NmcEpCounter counter = {before, before + d.blocks * nmc_dev_impl_ep_step(d)};
  if (!nmc_dev_impl_ep_wait(d, NMC_EP_OFF_FLAGS, counter, true, true)) return false;
  /* Own blocks have signalled too, so none of them will look at the old phase any more. */
  if (threadIdx.x == 0) {
    nmc_dev_impl_ep_st64(words, static_cast<uint64_t>(phase) | static_cast<uint64_t>(tokens) << 32);
    nmc_dev_impl_ep_st64(words + NMC_EP_OFF_COUNTED, counter.want);
  }
  return true;
}

NMC_DEV bool nmc_dev_ep_wait_return(const nmc_ep_rank_t& d, uint32_t phase) {
  return nmc_dev_impl_ep_wait(d, NMC_EP_OFF_RETURNS, NmcEpFlag{phase}, false, true);
}

NMC_DEV bool nmc_dev_ep_live(const nmc_ep_rank_t& d, uint32_t src, uint32_t t) {
  const char* record = nmc_dev_impl_ep_own(d, d.off_record + static_cast<uint64_t>(src) * d.record_stride);
  const uint32_t mask = nmc_dev_impl_ep_ld32(record + NMC_EP_RECORD_HEAD + t / 32 * 4);
  return (mask >> (t % 32) & 1) != 0;
}

NMC_DEV uint32_t nmc_dev_ep_sent(const nmc_ep_rank_t& d, uint32_t t) {
  return nmc_dev_impl_ep_ld32(nmc_dev_impl_ep_own(d, d.off_sent + 4ull * t));
}

NMC_DEV const char* nmc_dev_ep_returned(const nmc_ep_rank_t& d, uint32_t dst, uint32_t t) {
  return nmc_dev_impl_ep_at(d, dst, d.off_y + static_cast<uint64_t>(d.rank * d.t_cap + t) * d.y_bytes);
}
