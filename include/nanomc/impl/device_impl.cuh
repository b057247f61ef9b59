// Bodies of nanomc/device.cuh, which documents them. Include that file, never this one.
#ifndef NANOMC_DEVICE_CUH
#error "include nanomc/device.cuh"
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "nanomc/device.cuh needs compute capability 8.0 or later (nvcc -arch=sm_80 and up)"
#endif

// One-way fences are PTX ISA 8.6 (CUDA 12.7) on sm_90 and later.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && \
    (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 7))
#define NMC_DEV_ONE_WAY_FENCES 1
#else
#define NMC_DEV_ONE_WAY_FENCES 0
#endif

NMC_DEV uint64_t nmc_dev_ld_acquire_sys_u64(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

NMC_DEV uint64_t nmc_dev_ld_relaxed_sys_u64(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

NMC_DEV void nmc_dev_st_release_sys_u64(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

NMC_DEV void nmc_dev_st_relaxed_sys_u64(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

NMC_DEV void nmc_dev_fence_release_sys() {
#if NMC_DEV_ONE_WAY_FENCES
  asm volatile("fence.release.sys;" : : : "memory");
#else
  asm volatile("fence.acq_rel.sys;" : : : "memory");
#endif
}

NMC_DEV void nmc_dev_fence_acquire_sys() {
#if NMC_DEV_ONE_WAY_FENCES
  asm volatile("fence.acquire.sys;" : : : "memory");
#else
  asm volatile("fence.acq_rel.sys;" : : : "memory");
#endif
}

NMC_DEV void nmc_dev_fence_sc_sys() { asm volatile("fence.sc.sys;" : : : "memory"); }

NMC_DEV void* nmc_dev_peer_ptr(const uint64_t* bases, uint32_t device_rank, uint64_t offset) {
  return reinterpret_cast<void*>(bases[device_rank] + offset);
}

NMC_DEV void nmc_dev_publish(uint64_t* word, uint64_t value) {
  nmc_dev_fence_release_sys();
  nmc_dev_st_relaxed_sys_u64(word, value);
}

NMC_DEV bool nmc_dev_grid_publish(uint32_t* counter, uint32_t n_blocks, uint64_t* word, uint64_t value) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  if (before + 1 != n_blocks) return false;
  // Before the publish: whoever sees the word may launch the next grid on this counter.
  asm volatile("st.relaxed.gpu.u32 [%0], 0;" : : "l"(counter) : "memory");
  nmc_dev_publish(word, value);
  return true;
}

NMC_DEV uint64_t nmc_dev_globaltimer_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) : : "memory");
  return now;
}

NMC_DEV bool nmc_dev_wait_ge(const uint64_t* word, uint64_t value, uint64_t timeout_ns) {
  const uint64_t start = nmc_dev_globaltimer_ns();
  for (uint64_t now = start;; now = nmc_dev_globaltimer_ns()) {
    // The clock is read before the word, so a thread that was switched out past its deadline still sees a word that came in time.
    if (nmc_reached(nmc_dev_ld_relaxed_sys_u64(word), value)) {
      nmc_dev_fence_acquire_sys();
      return true;
    }
    // A clock that was set back must not look like 500 years.
    const int64_t waited = static_cast<int64_t>(now - start);
    if (timeout_ns == 0 || (waited > 0 && static_cast<uint64_t>(waited) >= timeout_ns)) return false;
  }
}

// The loads are asm so that a caller's __restrict__ cannot turn them into ld.global.nc.
NMC_DEV ulonglong2 nmc_dev_ld16(const void* src) {
  ulonglong2 v;
  asm volatile("ld.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(src) : "memory");
  return v;
}

// Past L1.
NMC_DEV ulonglong2 nmc_dev_impl_ld16_cg(const void* src) {
  ulonglong2 v;
  asm volatile("ld.global.cg.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(src) : "memory");
  return v;
}

NMC_DEV void nmc_dev_st16(void* dst, ulonglong2 v) {
  asm volatile("st.v2.u64 [%0], {%1, %2};" : : "l"(dst), "l"(v.x), "l"(v.y) : "memory");
}

// One access of 1, 2, 4 or 8 bytes.
template <int WIDTH>
NMC_DEV void nmc_dev_impl_copy_one(char* dst, const char* src) {
  if (WIDTH == 1) {
    uint32_t v;
    asm volatile("ld.u8 %0, [%1];" : "=r"(v) : "l"(src) : "memory");
    asm volatile("st.u8 [%0], %1;" : : "l"(dst), "r"(v) : "memory");
  } else if (WIDTH == 2) {
    uint16_t v;
    asm volatile("ld.u16 %0, [%1];" : "=h"(v) : "l"(src) : "memory");
    asm volatile("st.u16 [%0], %1;" : : "l"(dst), "h"(v) : "memory");
  } else if (WIDTH == 4) {
    uint32_t v;
    asm volatile("ld.u32 %0, [%1];" : "=r"(v) : "l"(src) : "memory");
    asm volatile("st.u32 [%0], %1;" : : "l"(dst), "r"(v) : "memory");
  } else {
    uint64_t v;
    asm volatile("ld.u64 %0, [%1];" : "=l"(v) : "l"(src) : "memory");
    asm volatile("st.u64 [%0], %1;" : : "l"(dst), "l"(v) : "memory");
  }
}

template <int WIDTH>
NMC_DEV void nmc_dev_impl_copy_narrow(char* dst, const char* src, uint64_t n, uint32_t tid, uint32_t nthreads) {
  for (uint64_t i = tid; i < n; i += nthreads) nmc_dev_impl_copy_one<WIDTH>(dst + i * WIDTH, src + i * WIDTH);
}

template <bool CG>
NMC_DEV ulonglong2 nmc_dev_impl_load(const char* src) {
  return CG ? nmc_dev_impl_ld16_cg(src) : nmc_dev_ld16(src);
}

template <bool CG>
NMC_DEV void nmc_dev_impl_copy_wide(char* dst, const char* src, uint64_t n, uint32_t tid, uint32_t nthreads) {
  const uint64_t step = nthreads;
  uint64_t i = tid;
  // Four loads in flight before the first store.
  for (; i + 3 * step < n; i += 4 * step) {
    const ulonglong2 a = nmc_dev_impl_load<CG>(src + i * 16);
    const ulonglong2 b = nmc_dev_impl_load<CG>(src + (i + step) * 16);
    const ulonglong2 c = nmc_dev_impl_load<CG>(src + (i + 2 * step) * 16);
    const ulonglong2 d = nmc_dev_impl_load<CG>(src + (i + 3 * step) * 16);
    nmc_dev_st16(dst + i * 16, a);
    nmc_dev_st16(dst + (i + step) * 16, b);
    nmc_dev_st16(dst + (i + 2 * step) * 16, c);
    nmc_dev_st16(dst + (i + 3 * step) * 16, d);
  }
  for (; i < n; i += step) nmc_dev_st16(dst + i * 16, nmc_dev_impl_load<CG>(src + i * 16));
}

template <bool CG>
NMC_DEV void nmc_dev_impl_copy16(void* dst_bytes, const void* src_bytes, uint64_t bytes, uint32_t tid, uint32_t nthreads) {
  char* dst = static_cast<char*>(dst_bytes);
  const char* src = static_cast<const char*>(src_bytes);
  const uint32_t difference = static_cast<uint32_t>(reinterpret_cast<uint64_t>(dst) - reinterpret_cast<uint64_t>(src));
  const uint32_t width = 1u << (__ffs(static_cast<int>(difference | 16)) - 1);

  const uint64_t to_boundary = (0 - reinterpret_cast<uint64_t>(dst)) & (width - 1);
  const uint64_t head = to_boundary < bytes ? to_boundary : bytes;
  nmc_dev_impl_copy_narrow<1>(dst, src, head, tid, nthreads);
  dst += head;
  src += head;
  bytes -= head;

  const uint64_t n = bytes / width;
  switch (width) {
    case 16: nmc_dev_impl_copy_wide<CG>(dst, src, n, tid, nthreads); break;
    case 8: nmc_dev_impl_copy_narrow<8>(dst, src, n, tid, nthreads); break;
    case 4: nmc_dev_impl_copy_narrow<4>(dst, src, n, tid, nthreads); break;
    case 2: nmc_dev_impl_copy_narrow<2>(dst, src, n, tid, nthreads); break;
    default: nmc_dev_impl_copy_narrow<1>(dst, src, n, tid, nthreads); break;
  }
  nmc_dev_impl_copy_narrow<1>(dst + n * width, src + n * width, bytes - n * width, tid, nthreads);
}

NMC_DEV void nmc_dev_copy16(void* dst, const void* src, uint64_t bytes, uint32_t tid, uint32_t nthreads) {
  nmc_dev_impl_copy16<false>(dst, src, bytes, tid, nthreads);
}

NMC_DEV void nmc_dev_copy16_cg(void* dst, const void* src, uint64_t bytes, uint32_t tid, uint32_t nthreads) {
  nmc_dev_impl_copy16<true>(dst, src, bytes, tid, nthreads);
}

NMC_DEV void nmc_dev_store_page(void* payload, uint64_t page, uint64_t page_bytes, const void* src, uint64_t bytes,
                                uint32_t tid, uint32_t nthreads) {
  nmc_dev_copy16_cg(static_cast<char*>(payload) + page * page_bytes, src, bytes < page_bytes ? bytes : page_bytes, tid,
                    nthreads);
}

NMC_DEV bool nmc_dev_impl_live(uint64_t control, uint64_t epoch) {
  const uint64_t state = control & 15;
  return (state == NMC_STATE_WRITING || state == NMC_STATE_READY) && control >> NMC_EPOCH_SHIFT == epoch;
}

NMC_DEV uint32_t nmc_dev_wait_ready(const uint64_t* published, const uint64_t* control, uint64_t epoch,
                                    uint64_t timeout_ns) {
  const uint64_t start = nmc_dev_globaltimer_ns();
  for (uint64_t now = start;; now = nmc_dev_globaltimer_ns()) {
    const bool live = control == nullptr || nmc_dev_impl_live(nmc_dev_ld_acquire_sys_u64(control), epoch);
    if (nmc_dev_ld_relaxed_sys_u64(published) == epoch) {
      nmc_dev_fence_acquire_sys();
      return live ? NMC_READY_YES : NMC_READY_STALE;
    }
    if (!live) return NMC_READY_STALE;
    const int64_t waited = static_cast<int64_t>(now - start);
    if (timeout_ns == 0 || (waited > 0 && static_cast<uint64_t>(waited) >= timeout_ns)) return NMC_READY_TIMEOUT;
  }
}

NMC_DEV bool nmc_dev_pin(const nmc_device_pin_t* pin) {
  // Release: who finds the slot changed knows that the use before is over.
  nmc_dev_st_release_sys_u64(reinterpret_cast<uint64_t*>(pin->slot), pin->value);
  nmc_dev_fence_sc_sys();
  const uint64_t control = nmc_dev_ld_acquire_sys_u64(reinterpret_cast<const uint64_t*>(pin->control));
  const uint64_t published = nmc_dev_ld_acquire_sys_u64(reinterpret_cast<const uint64_t*>(pin->published));
  if (nmc_dev_impl_live(control, pin->epoch) && published == pin->epoch) return true;
  nmc_dev_unpin(pin);
  return false;
}

NMC_DEV void nmc_dev_unpin(const nmc_device_pin_t* pin) {
  nmc_dev_fence_release_sys();
  nmc_dev_st_relaxed_sys_u64(reinterpret_cast<uint64_t*>(pin->slot), 0);
}
