// Random call sequences from several threads: live, stale, foreign, wrong-kind and NULL handles, random arguments,
// wrong struct sizes, double destroys. Nothing may crash, and every answer must be one that the header allows.
// usage: calls SEQUENCES [SEED]

#include "../support/random.hpp"

#include <nanomc.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int THREADS = 3;
constexpr int POOL = 24;
std::atomic<void*> pool[POOL];  // handles that threads steal from each other, alive or not
std::atomic<uint64_t> calls{0}, refused{0};

void expect(nmc_status_t status, const char* call, std::initializer_list<nmc_status_t> allowed) {
  calls.fetch_add(1, std::memory_order_relaxed);
  if (status == NMC_OK) return;
  refused.fetch_add(1, std::memory_order_relaxed);
  for (nmc_status_t s : allowed)
    if (s == status) {
      if (std::strlen(nmc_last_error_message()) == 0) {
        std::fprintf(stderr, "FAIL %s: %s without a message\n", call, nmc_status_name(status));
        std::abort();
      }
      return;
    }
  std::fprintf(stderr, "FAIL %s answered %s: %s\n", call, nmc_status_name(status), nmc_last_error_message());
  std::abort();
}

struct Caller {
  Random random;
  explicit Caller(uint64_t seed) : random(seed) {}

  uint64_t below(uint64_t n) { return random() % n; }
  bool rarely(uint64_t n) { return below(n) == 0; }

  // Numbers near the edges are likelier than others.
  uint64_t odd_number() {
    static const uint64_t edges[] = {0, 1, 2, 7, 8, 63, 64, 65, 4095, 4096, 1u << 20, UINT32_MAX, UINT64_MAX, UINT64_MAX - 7};
    return rarely(3) ? random() : edges[below(sizeof edges / sizeof *edges)];
  }
  int32_t odd_rank() { return rarely(4) ? static_cast<int32_t>(odd_number()) : static_cast<int32_t>(below(5)) - 1; }

  nmc_world_t* some_handle() {
    switch (below(12)) {
      case 0: return nullptr;
      case 1: return reinterpret_cast<nmc_world_t*>(this);
      case 2: return reinterpret_cast<nmc_world_t*>(odd_number());
      case 3: return reinterpret_cast<nmc_world_t*>((uint64_t{0x4e} << 56) | (random() >> 8));
      case 4: {  // a real handle with one bit changed
        const auto bits = reinterpret_cast<uint64_t>(pool[below(POOL)].load());
        return reinterpret_cast<nmc_world_t*>(bits ^ (uint64_t{1} << below(64)));
      }
      default: return static_cast<nmc_world_t*>(pool[below(POOL)].load());
    }
  }

  void create() {
    nmc_world_config_t cfg = NMC_WORLD_CONFIG_INIT;
    cfg.world_size = 1 + static_cast<uint32_t>(below(3));
    cfg.heap_bytes = 4096;
    cfg.words_per_rank = 4;
    switch (below(12)) {  // sometimes break one thing
      case 0: cfg.struct_size = static_cast<uint32_t>(odd_number() % (sizeof cfg + 1)); break;
      case 1: cfg.abi_version = static_cast<uint32_t>(odd_number()); break;
      case 2: cfg.world_size = static_cast<uint32_t>(odd_number() % 100); break;
      case 3: cfg.heap_kind = static_cast<uint32_t>(odd_number()); break;
      case 4: cfg.heap_bytes = rarely(2) ? 0 : UINT64_MAX; break;
      case 5: cfg.reserved[below(sizeof cfg.reserved / sizeof cfg.reserved[0])] = random(); break;
      case 6: cfg.words_per_rank = static_cast<int32_t>(odd_number() % 5000) - 2; break;
      case 7: cfg.name = nmc_slice_t{"a/b", 3}; break;
      default: break;
    }
    nmc_world_t* worlds[NMC_MAX_RANKS] = {};
    const nmc_status_t status = nmc_world_create_local(&cfg, worlds);
    expect(status, "nmc_world_create_local", {NMC_ERR_INVALID_ARG, NMC_ERR_VERSION, NMC_ERR_NO_MEMORY, NMC_ERR_UNSUPPORTED});
    if (status != NMC_OK) return;
    for (nmc_world_t* world : worlds)
      if (world != nullptr) destroy(static_cast<nmc_world_t*>(pool[below(POOL)].exchange(world)));
  }

  void destroy(nmc_world_t* world) { expect(nmc_world_destroy(world), "nmc_world_destroy", {NMC_ERR_BAD_HANDLE}); }

  void call() {
    nmc_world_t* world = some_handle();
    void* ptr = nullptr;
    uint64_t *host = nullptr, *device = nullptr, offset = 0;
    const uint64_t *bases = nullptr, *device_bases = nullptr;
    uint32_t state = 0, n = 0;
    int32_t rank = 0, fd = 0;
    nmc_status_t inner = 0;
    char text[64];
    size_t needed = 0;
    switch (below(18)) {
      case 0: return expect(nmc_world_ptr(world, odd_rank(), odd_number(), odd_number(), rarely(9) ? nullptr : &ptr), "nmc_world_ptr", {NMC_ERR_BAD_HANDLE, NMC_ERR_INVALID_ARG});
      case 1: return expect(nmc_world_locate(world, reinterpret_cast<void*>(odd_number()), &rank, &offset), "nmc_world_locate", {NMC_ERR_BAD_HANDLE, NMC_ERR_NOT_FOUND});
      case 2: return expect(nmc_world_word(world, odd_rank(), static_cast<uint32_t>(odd_number()), &host, rarely(2) ? nullptr : &device), "nmc_world_word", {NMC_ERR_BAD_HANDLE, NMC_ERR_INVALID_ARG});
      case 3: return expect(nmc_world_alive(world, odd_rank(), rarely(9) ? nullptr : &state), "nmc_world_alive", {NMC_ERR_BAD_HANDLE, NMC_ERR_INVALID_ARG});
      case 4: return expect(nmc_world_event_fd(world, rarely(9) ? nullptr : &fd), "nmc_world_event_fd", {NMC_ERR_BAD_HANDLE, NMC_ERR_INVALID_ARG});
      case 5: return expect(nmc_world_base_table(world, &bases, &device_bases, &n), "nmc_world_base_table", {NMC_ERR_BAD_HANDLE});
      case 6: return expect(nmc_world_barrier(world, rarely(4) ? -2 : 0), "nmc_world_barrier", {NMC_ERR_BAD_HANDLE, NMC_ERR_INVALID_ARG, NMC_ERR_TIMEOUT, NMC_ERR_PEER_LOST, NMC_ERR_CANCELLED, NMC_ERR_BUSY});
      case 7: return expect(nmc_world_dump(world, text, below(65), rarely(2) ? nullptr : &needed), "nmc_world_dump", {NMC_ERR_BAD_HANDLE, NMC_ERR_TOO_SMALL});
      case 8: return expect(nmc_world_async_error(world, &inner, text, sizeof text, &needed), "nmc_world_async_error", {NMC_ERR_BAD_HANDLE});
      case 9: return expect(nmc_world_rank_of_device_rank(world, odd_rank(), &rank), "nmc_world_rank_of_device_rank", {NMC_ERR_BAD_HANDLE, NMC_ERR_INVALID_ARG});
      case 10: return expect(nmc_world_write_word_async(world, odd_rank(), 0, 1, nullptr), "nmc_world_write_word_async", {NMC_ERR_BAD_HANDLE, NMC_ERR_INVALID_ARG, NMC_ERR_UNSUPPORTED});
      case 11: return expect(nmc_world_finalize(world), "nmc_world_finalize", {NMC_ERR_BAD_HANDLE});
      case 12: return expect(nmc_world_abort(world), "nmc_world_abort", {NMC_ERR_BAD_HANDLE});
      case 13: {
        nmc_world_info_t info = NMC_WORLD_INFO_INIT;
        if (rarely(4)) info.struct_size = static_cast<uint32_t>(below(sizeof info));
        return expect(nmc_world_info(world, rarely(9) ? nullptr : &info), "nmc_world_info", {NMC_ERR_BAD_HANDLE, NMC_ERR_INVALID_ARG, NMC_ERR_VERSION});
      }
      case 14: {
        nmc_rank_info_t info = NMC_RANK_INFO_INIT;
        return expect(nmc_world_rank_info(world, odd_rank(), &info), "nmc_world_rank_info", {NMC_ERR_BAD_HANDLE, NMC_ERR_INVALID_ARG});
      }
      case 15: return expect(nmc_master_destroy(reinterpret_cast<nmc_master_t*>(world)), "nmc_master_destroy", {NMC_ERR_BAD_HANDLE});
      case 16: if (rarely(24)) destroy(world); return;  // the pool may still hold it: from now on it is stale
      default: if (rarely(8)) create(); return;
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t sequences = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  std::vector<std::thread> threads;
  for (int t = 0; t < THREADS; ++t)
    threads.emplace_back([=] {
      Caller caller(seed * 1000 + static_cast<uint64_t>(t));
      for (uint64_t s = 0; s < sequences / THREADS + 1; ++s) {
        for (uint64_t n = 1 + caller.below(12); n > 0; --n) caller.call();
      }
    });
  for (auto& thread : threads) thread.join();
  for (auto& handle : pool) nmc_world_destroy(static_cast<nmc_world_t*>(handle.exchange(nullptr)));
  std::printf("PASS %" PRIu64 " sequences, %" PRIu64 " calls, %" PRIu64 " refused as documented, 0 signals\n", sequences,
              calls.load(), refused.load());
  return 0;
}
