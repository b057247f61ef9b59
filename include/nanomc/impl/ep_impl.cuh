/* Bodies of nanomc/ep.cuh; include that one. */

/* Offsets of src/layout/ep.rs. */
#define NMC_EP_OFF_WAITED 64
#define NMC_EP_OFF_TOKENS 4
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
  if (nmc_dev_impl_ep_ld64(status) == 0) nmc_dev_impl_ep_st64(status, word);
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
  const uint32_t bit = some ? 1u << (static_cast<uint32_t>(expert) / d.n_local) : 0u;
  return __reduce_or_sync(0xffffffffu, bit);
}

NMC_DEV char* nmc_dev_ep_row(const nmc_ep_rank_t& d, uint32_t dst, uint32_t t) {
  return nmc_dev_impl_ep_at(d, dst, d.off_x + static_cast<uint64_t>(d.rank * d.t_cap + t) * d.x_bytes);
}

NMC_DEV void nmc_dev_ep_send_meta(const nmc_ep_rank_t& d, uint32_t t, uint32_t targets, int64_t expert, float weight) {
  const uint32_t lane = nmc_dev_impl_ep_lane();
  if (lane == 0) nmc_dev_impl_ep_st32(nmc_dev_impl_ep_own(d, d.off_sent + 4ull * t), targets);
  if (lane >= d.top_k) return;
  const uint32_t dst = expert >= 0 ? static_cast<uint32_t>(expert) / d.n_local : 0xffffffffu;
  const uint32_t local = expert >= 0 ? static_cast<uint32_t>(expert) % d.n_local : 0;
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

/* After a release fence of the same thread. */
NMC_DEV void nmc_dev_impl_ep_flag(const nmc_ep_rank_t& d, uint64_t offset, uint32_t phase, uint32_t tokens) {
  const uint64_t word = static_cast<uint64_t>(phase) | static_cast<uint64_t>(d.layer & 0xffff) << 32 |
                        static_cast<uint64_t>(tokens & 0xffff) << 48;
  for (uint32_t r = 0; r < d.world; ++r) {
    nmc_dev_impl_ep_st64(reinterpret_cast<uint64_t*>(nmc_dev_impl_ep_at(d, r, d.off_set + offset)), word);
  }
}

NMC_DEV void nmc_dev_impl_ep_flag_return(const nmc_ep_rank_t& d, uint32_t phase) {
  nmc_dev_impl_ep_flag(d, NMC_EP_OFF_RETURNS + 8ull * d.rank, phase, 0);
}

NMC_DEV void nmc_dev_ep_signal_dispatch(const nmc_ep_rank_t& d, uint32_t block, uint32_t phase, uint32_t tokens) {
  nmc_dev_fence_release_sys();
  nmc_dev_impl_ep_flag(d, NMC_EP_OFF_FLAGS + 8ull * (d.rank * d.blocks + block), phase, tokens);
}

NMC_DEV void nmc_dev_ep_signal_return(const nmc_ep_rank_t& d, uint32_t phase) {
  nmc_dev_fence_release_sys();
  nmc_dev_impl_ep_flag_return(d, phase);
}

/* Waits for one flag. */
NMC_DEV bool nmc_dev_impl_ep_wait_flag(const nmc_ep_rank_t& d, const uint64_t* flag, uint32_t source, uint32_t phase,
                                       uint64_t start) {
  for (uint32_t spins = 1;; ++spins) {
    const uint64_t seen = nmc_dev_impl_ep_ld64(flag);
    const int32_t ahead = static_cast<int32_t>(static_cast<uint32_t>(seen) - phase);
    if (ahead >= 0) {
      const uint32_t layer = static_cast<uint32_t>(seen >> 32) & 0xffff;
      if (ahead > 0 || layer == (d.layer & 0xffff)) return true;
      nmc_dev_impl_ep_fail(d, NMC_EP_FAULT_LAYER, source, layer);
      return false;
    }
    if (spins % 16 != 0) continue;
    if (nmc_dev_ep_failed(d)) return false;
    if (spins % 1024 == 0) {
      const uint64_t request = nmc_dev_impl_ep_ld64(reinterpret_cast<uint64_t*>(d.status) + 1);
      if (request != 0) {
        nmc_dev_impl_ep_end(d, request);
        return false;
      }
    }
    if (static_cast<int64_t>(nmc_dev_globaltimer_ns() - start) > static_cast<int64_t>(d.deadline_ns)) {
      nmc_dev_impl_ep_fail(d, NMC_EP_FAULT_TIMEOUT, source, 0);
      return false;
    }
  }
}

/* All threads of a block: each waits for its share of `n` flags, `per_source` of which belong to a rank. `account`: add the
 * time waited to the statistics. `ok`: false for threads that know already that the group has failed; all then return false. */
NMC_DEV bool nmc_dev_impl_ep_wait(const nmc_ep_rank_t& d, uint64_t off_flags, uint32_t n, uint32_t per_source,
                                  uint32_t phase, bool account, bool ok) {
  const uint64_t* flags = reinterpret_cast<const uint64_t*>(nmc_dev_impl_ep_own(d, d.off_set + off_flags));
  const uint64_t start = nmc_dev_globaltimer_ns();
  for (uint32_t i = threadIdx.x; i < n && ok; i += blockDim.x) {
    const uint32_t source = i / per_source;
    ok = nmc_dev_impl_ep_wait_flag(d, flags + i, source, phase, start);
    if (ok && account && i % per_source == 0) {
      asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;"
                   : : "l"(nmc_dev_impl_ep_own(d, NMC_EP_OFF_WAITED + 8ull * source)),
                       "l"(nmc_dev_globaltimer_ns() - start) : "memory");
    }
  }
  if (threadIdx.x < n) nmc_dev_fence_acquire_sys();
  if (__syncthreads_and(ok) != 0) return true;
  if (threadIdx.x == 0) nmc_dev_impl_ep_tell(d);
  return false;
}

NMC_DEV bool nmc_dev_ep_wait_dispatch(const nmc_ep_rank_t& d, uint32_t phase, uint32_t tokens) {
  if (!nmc_dev_impl_ep_wait(d, NMC_EP_OFF_FLAGS, d.world * d.blocks, d.blocks, phase, true, true)) return false;
  /* Own blocks have signalled too, so none of them will look at the old phase any more. */
  if (threadIdx.x == 0) {
    nmc_dev_impl_ep_st32(nmc_dev_impl_ep_own(d, d.off_set), phase);
    nmc_dev_impl_ep_st32(nmc_dev_impl_ep_own(d, d.off_set + NMC_EP_OFF_TOKENS), tokens);
  }
  return true;
}

NMC_DEV bool nmc_dev_ep_wait_return(const nmc_ep_rank_t& d, uint32_t phase) {
  return nmc_dev_impl_ep_wait(d, NMC_EP_OFF_RETURNS, d.world, 1, phase, false, true);
}

NMC_DEV bool nmc_dev_ep_live(const nmc_ep_rank_t& d, uint32_t src, uint32_t t) {
  const char* record = nmc_dev_impl_ep_own(d, d.off_record + static_cast<uint64_t>(src) * d.record_stride);
  const uint32_t count = nmc_dev_impl_ep_ld32(record);
  const uint32_t mask = nmc_dev_impl_ep_ld32(record + NMC_EP_RECORD_HEAD + t / 32 * 4);
  return t < count && (mask >> (t % 32) & 1) != 0;
}

NMC_DEV uint32_t nmc_dev_ep_sent(const nmc_ep_rank_t& d, uint32_t t) {
  return nmc_dev_impl_ep_ld32(nmc_dev_impl_ep_own(d, d.off_sent + 4ull * t));
}

NMC_DEV const char* nmc_dev_ep_returned(const nmc_ep_rank_t& d, uint32_t dst, uint32_t t) {
  return nmc_dev_impl_ep_at(d, dst, d.off_y + static_cast<uint64_t>(d.rank * d.t_cap + t) * d.y_bytes);
}
