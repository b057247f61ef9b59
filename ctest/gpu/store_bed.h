// Memory of every kind with red zones around what is copied, and a store whose whole heap is looked at.
#ifndef NMC_CTEST_GPU_STORE_BED_H
#define NMC_CTEST_GPU_STORE_BED_H

#include "store_value.h"

static constexpr uint64_t RED = 64;
static constexpr uint8_t RED_BYTE = 0xA5, FREE_BYTE = 0xEE;

// Counts cases and says what the first wrong ones were.
struct Tally {
  uint64_t tried = 0, wrong = 0;

  void note(bool ok, const std::string& what) {
    ++tried;
    if (ok) return;
    if (++wrong <= 5) std::printf("# wrong: %s (last error: %s)\n", what.c_str(), nmc_last_error_message());
  }
  bool all_right(const std::string& name) const {
    return check(wrong == 0 && tried > 0, (name + ": " + std::to_string(tried) + " cases").c_str());
  }
};

[[maybe_unused]] static std::string case_name(const char* what, Kind kind, size_t offset, uint64_t bytes) {
  return std::string(what) + " " + KIND_NAMES[kind] + "+" + std::to_string(offset) + ", " + std::to_string(bytes) +
         " bytes";
}

struct Buffers {
  Memory device, pinned, ordinary;
  explicit Buffers(size_t bytes) : device(DEVICE, bytes), pinned(PINNED, bytes), ordinary(ORDINARY, bytes) {}
  Memory& of(Kind kind) { return kind == DEVICE ? device : kind == PINNED ? pinned : ordinary; }
};

struct Bed {
  nmc_store_t* store;
  uint32_t heap_kind;
  char* heap = nullptr;
  std::vector<uint8_t> before;
  uint8_t* now = pinned_array<uint8_t>(HEAP);

  explicit Bed(uint32_t kind, uint32_t pin_slots = 0) : heap_kind(kind), before(HEAP) {
    nmc_store_config_t cfg = embedded(kind, HEAP, PAGE);
    cfg.pin_slots = pin_slots;
    store = create(cfg);
    // A value that fills the heap shows where it is; what is written now are the red zones of everything to come.
    const nmc_put_options_t contiguous = options(NMC_PUT_CONTIGUOUS);
    const nmc_write_plan_t plan = open_plan(store, "whole heap", HEAP, &contiguous);
    heap = static_cast<char*>(plan.payload);
    if (plan.payload_device == nullptr || plan.publish_word_device == nullptr || plan.n_extents != 1) {
      std::printf("FAIL a plan without device addresses, or in %u extents\n", plan.n_extents);
      stop();
    }
    if (kind == NMC_HEAP_CUDA) {
      CUDA_OK(cudaMemset(heap, FREE_BYTE, HEAP));
      CUDA_OK(cudaDeviceSynchronize());
    } else {
      std::memset(heap, FREE_BYTE, HEAP);
    }
    NMC_CHECK(nmc_store_abort(store, &plan));
    look();
  }
  ~Bed() {
    NMC_CHECK(nmc_store_destroy(store));
    cudaFreeHost(now);
  }
  Bed(const Bed&) = delete;
  Bed& operator=(const Bed&) = delete;

  void snapshot() {
    if (heap_kind == NMC_HEAP_CUDA) {
      CUDA_OK(cudaMemcpy(now, heap, HEAP, cudaMemcpyDeviceToHost));
    } else {
      std::memcpy(now, heap, HEAP);
    }
  }

  // Takes the heap as it is.
  void look() {
    snapshot();
    std::memcpy(before.data(), now, HEAP);
  }

  // True when the object's bytes are `value` and no other byte of the heap has changed since the last look.
  bool holds(const std::string& key, const std::vector<uint8_t>& value, uint32_t* n_extents = nullptr) {
    nmc_view_t view = {};
    NMC_CHECK(nmc_store_pin(store, slice(key), &view));
    std::vector<nmc_extent_t> extents(256);
    size_t n = 0;
    NMC_CHECK(nmc_store_view_extents(store, &view, extents.data(), extents.size(), &n));
    NMC_CHECK(nmc_store_unpin(store, &view));
    if (n_extents != nullptr) *n_extents = static_cast<uint32_t>(n);
    size_t done = 0;
    for (size_t i = 0; i < n; ++i) {
      const size_t at = static_cast<size_t>(static_cast<char*>(extents[i].ptr) - heap);
      if (at + extents[i].bytes > HEAP || done + extents[i].bytes > value.size()) return false;
      std::memcpy(before.data() + at, value.data() + done, extents[i].bytes);
      done += extents[i].bytes;
    }
    snapshot();
    const bool same = view.bytes == value.size() && done == value.size() && std::memcmp(before.data(), now, HEAP) == 0;
    if (!same) {
      size_t first = 0;
      while (first < HEAP && before[first] == now[first]) ++first;
      std::printf("# %s: %zu of %zu bytes in %zu extents; first difference at byte %zu of the heap\n", key.c_str(),
                  done, value.size(), n, first);
    }
    std::memcpy(before.data(), now, HEAP);
    return same;
  }
};

// True when `want` lies at `at`, and nothing but the red byte is before it and RED bytes behind it.
[[maybe_unused]] static bool arrived(const Memory& memory, size_t at, const std::vector<uint8_t>& want) {
  std::vector<uint8_t> seen(at + want.size() + RED);
  memory.read(0, seen.data(), seen.size());
  for (size_t i = 0; i < at; ++i) {
    if (seen[i] != RED_BYTE) return false;
  }
  for (size_t i = at + want.size(); i < seen.size(); ++i) {
    if (seen[i] != RED_BYTE) return false;
  }
  return want.empty() || std::memcmp(seen.data() + at, want.data(), want.size()) == 0;
}

#endif
