// How fast the store is with CUDA memory: ours and a baseline in one run, interleaved, medians.
// usage: store_bench [--json]    --json: one object a line {"name","value","unit","baseline_name","baseline","ratio"}
// "ratio" is ours / baseline as printed; for GB/s more is better, for us less. Takes less than a minute.

#include "../../ctest/gpu/store_check.h"

#include <algorithm>
#include <cmath>
#include <functional>

static bool json = false;

// ---- results ------------------------------------------------------------------------------------------------------

static std::string size_name(uint64_t bytes) {
  return bytes >= MIB ? std::to_string(bytes / MIB) + "MiB" : std::to_string(bytes / KIB) + "KiB";
}

static void section(const char* text) {
  if (!json) std::printf("\n%s\n", text);
}

// One line. A baseline of 0 is none.
static void report(const std::string& name, double value, const char* unit, const char* baseline_name, double baseline,
                   const std::string& note = "") {
  if (json) {
    std::printf("{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"", name.c_str(), value, unit);
    if (baseline > 0) {
      std::printf(",\"baseline_name\":\"%s\",\"baseline\":%.6g,\"ratio\":%.4g}\n", baseline_name, baseline,
                  value / baseline);
    } else {
      std::printf(",\"baseline_name\":null,\"baseline\":null,\"ratio\":null}\n");
    }
  } else if (baseline > 0) {
    std::printf("%-44s %10.4g %-5s %10.4g %-34s %6.3f  %s\n", name.c_str(), value, unit, baseline, baseline_name,
                value / baseline, note.c_str());
  } else {
    std::printf("%-44s %10.4g %-5s %s\n", name.c_str(), value, unit, note.c_str());
  }
  std::fflush(stdout);
}

struct Times {
  std::vector<double> us;
  void add(uint64_t ns) { us.push_back(static_cast<double>(ns) / 1e3); }
  double at(double share) {
    if (us.empty()) return NAN;
    std::sort(us.begin(), us.end());
    return us[std::min(us.size() - 1, static_cast<size_t>(share * static_cast<double>(us.size())))];
  }
  double median() { return at(0.5); }
};

static double gb_per_s(uint64_t bytes, double us) { return static_cast<double>(bytes) / us / 1e3; }

// Times both in turn, so that clocks and caches are the same for both. `after` is not timed.
static void in_turn(uint32_t repeats, Times& ours, Times& theirs, const std::function<void()>& run_ours,
                    const std::function<void()>& after, const std::function<void()>& run_theirs) {
  const uint32_t warm = 3;
  for (uint32_t i = 0; i < repeats + warm; ++i) {
    const uint64_t t0 = now_ns();
    run_ours();
    const uint64_t t1 = now_ns();
    after();
    const uint64_t t2 = now_ns();
    run_theirs();
    const uint64_t t3 = now_ns();
    if (i < warm) continue;
    ours.add(t1 - t0);
    theirs.add(t3 - t2);
  }
}

static uint32_t repeats_for(uint64_t bytes) { return bytes >= 64 * MIB ? 40 : bytes >= 8 * MIB ? 100 : 300; }

// ---- put and get --------------------------------------------------------------------------------------------------

static constexpr uint64_t BENCH_HEAP = 512 * MIB;

// A store, a place in its heap for the baseline's copies, and memory of the program.
struct Bench {
  nmc_store_t* store;
  nmc_write_plan_t place = {};
  cudaStream_t stream = new_stream();
  uint64_t largest;

  Bench(uint64_t page_bytes, uint64_t heap_bytes, uint64_t most) : largest(most) {
    store = create(embedded(NMC_HEAP_CUDA, heap_bytes, page_bytes));
    // Never evicted, and nobody reads it: its pages are the baseline's to write to.
    const nmc_put_options_t contiguous = options(NMC_PUT_CONTIGUOUS, NMC_RETAIN_HARD);
    place = open_plan(store, "the baseline's place", largest, &contiguous);
    CUDA_OK(cudaMemset(place.payload, 1, largest));
    CUDA_OK(cudaDeviceSynchronize());
    NMC_CHECK(nmc_store_commit(store, &place));
  }
  ~Bench() {
    cudaStreamDestroy(stream);
    NMC_CHECK(nmc_store_destroy(store));
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void copy(void* to, const void* from, uint64_t bytes) {
    CUDA_OK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
  }
};

static const char* const ASYNC = "cudaMemcpyAsync+sync";

// Times of put and get_into of one size against copies between the program's memory and the heap.
struct PutGet {
  Times put, put_base, get, get_base;
};

static PutGet put_get(Bench& bench, char* memory, uint64_t bytes, uint32_t repeats, bool plain_memcpy) {
  PutGet times;
  const std::string key = "value";
  const auto baseline = [&](void* to, const void* from) {
    if (plain_memcpy) {
      CUDA_OK(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
    } else {
      bench.copy(to, from, bytes);
    }
  };
  in_turn(
      repeats, times.put, times.put_base,
      [&] { NMC_CHECK(nmc_store_put(bench.store, slice(key), memory, bytes, nullptr)); },
      [&] { NMC_CHECK(nmc_store_remove(bench.store, slice(key))); }, [&] { baseline(bench.place.payload, memory); });
  NMC_CHECK(nmc_store_put(bench.store, slice(key), memory, bytes, nullptr));
  in_turn(
      repeats, times.get, times.get_base,
      [&] { NMC_CHECK(nmc_store_get_into(bench.store, slice(key), memory, bytes)); }, [] {},
      [&] { baseline(memory, bench.place.payload); });
  NMC_CHECK(nmc_store_remove(bench.store, slice(key)));
  return times;
}

static void bench_device_values() {
  section("put and get_into of device values, page 256 KiB, CUDA heap (the bar is 0.9 from 1 MiB on)");
  Bench bench(256 * KIB, BENCH_HEAP, 64 * MIB);
  char* memory = device_array<char>(64 * MIB);
  for (const uint64_t bytes : {64 * KIB, 256 * KIB, 1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB, 64 * MIB}) {
    PutGet t = put_get(bench, memory, bytes, repeats_for(bytes), false);
    report("store.gpu.put." + size_name(bytes), gb_per_s(bytes, t.put.median()), "GB/s", ASYNC,
           gb_per_s(bytes, t.put_base.median()));
    report("store.gpu.get_into." + size_name(bytes), gb_per_s(bytes, t.get.median()), "GB/s", ASYNC,
           gb_per_s(bytes, t.get_base.median()));
  }
  CUDA_OK(cudaFree(memory));
}

static void bench_host_values() {
  section("put and get_into of host values, page 256 KiB, CUDA heap, against cudaMemcpy of the same memory");
  Bench bench(256 * KIB, BENCH_HEAP, 64 * MIB);
  Memory pinned(PINNED, 64 * MIB), ordinary(ORDINARY, 64 * MIB);
  std::memset(ordinary.base, 1, ordinary.bytes);
  for (Memory* memory : {&pinned, &ordinary}) {
    const std::string kind = memory->kind == PINNED ? "pinned." : "pageable.";
    for (const uint64_t bytes : {64 * KIB, 1 * MIB, 8 * MIB, 64 * MIB}) {
      PutGet t = put_get(bench, memory->base, bytes, bytes >= 8 * MIB ? 20 : 100, true);
      report("store.gpu.put." + kind + size_name(bytes), gb_per_s(bytes, t.put.median()), "GB/s", "cudaMemcpy",
             gb_per_s(bytes, t.put_base.median()));
      report("store.gpu.get_into." + kind + size_name(bytes), gb_per_s(bytes, t.get.median()), "GB/s", "cudaMemcpy",
             gb_per_s(bytes, t.get_base.median()));
    }
  }
}

static void bench_pages() {
  section("page size x value size, device values: GB/s of the median, and p50 / p99 in us");
  for (const uint64_t page : {128 * KIB, 256 * KIB, 512 * KIB}) {
    Bench bench(page, 64 * MIB, 8 * MIB);
    char* memory = device_array<char>(8 * MIB);
    for (uint64_t bytes = 64 * KIB; bytes <= 8 * MIB; bytes *= 2) {
      PutGet t = put_get(bench, memory, bytes, 200, false);
      const std::string name = ".page" + size_name(page) + "." + size_name(bytes);
      const auto spread = [](Times& times) {
        char text[80];
        std::snprintf(text, sizeof(text), "p50 %.1f us, p99 %.1f us", times.at(0.5), times.at(0.99));
        return std::string(text);
      };
      report("store.gpu.put" + name, gb_per_s(bytes, t.put.median()), "GB/s", ASYNC,
             gb_per_s(bytes, t.put_base.median()), spread(t.put));
      report("store.gpu.get_into" + name, gb_per_s(bytes, t.get.median()), "GB/s", ASYNC,
             gb_per_s(bytes, t.get_base.median()), spread(t.get));
      if (json) {
        report("store.gpu.put.p99" + name, t.put.at(0.99), "us", ASYNC, t.put_base.at(0.99));
        report("store.gpu.get_into.p99" + name, t.get.at(0.99), "us", ASYNC, t.get_base.at(0.99));
      }
    }
    CUDA_OK(cudaFree(memory));
  }
}

// ---- pipelines on a stream ----------------------------------------------------------------------------------------

static void bench_pipelines() {
  section("pipelines: n objects, one cudaStreamSynchronize; against n cudaMemcpyAsync and one");
  for (const uint64_t bytes : {256 * KIB, 1 * MIB, 4 * MIB}) {
    for (const size_t n : {size_t{1}, size_t{4}, size_t{16}, size_t{64}}) {
      // Twice the objects and the place of the baseline.
      Bench bench(256 * KIB, std::max<uint64_t>(64 * MIB, 3 * n * bytes), n * bytes);
      char* memory = device_array<char>(n * bytes);
      std::vector<std::string> names;
      std::vector<nmc_slice_t> keys;
      for (size_t i = 0; i < n; ++i) names.push_back("object " + std::to_string(i));
      for (const std::string& name : names) keys.push_back(slice(name));
      const std::vector<uint64_t> sizes(n, bytes);
      std::vector<nmc_write_plan_t> plans(n);
      char* heap = static_cast<char*>(bench.place.payload);
      const uint32_t repeats = static_cast<uint32_t>(std::clamp<uint64_t>(64 * MIB / (n * bytes) * 4, 20, 200));
      const std::string name = "." + size_name(bytes) + ".x" + std::to_string(n);

      const auto open = [&] {
        NMC_CHECK(nmc_store_open_batch(bench.store, keys.data(), sizes.data(), n, nullptr, plans.data(), nullptr));
      };
      const auto push_all = [&] {
        for (size_t i = 0; i < n; ++i) {
          const nmc_slice_t piece = {memory + i * bytes, bytes};
          NMC_CHECK(nmc_store_push_async(bench.store, &plans[i], 0, &piece, 1, bench.stream));
          NMC_CHECK(nmc_store_commit_async(bench.store, &plans[i], bench.stream));
        }
        CUDA_OK(cudaStreamSynchronize(bench.stream));
      };
      const auto forget = [&] {
        NMC_CHECK(nmc_store_commit_batch(bench.store, plans.data(), n, nullptr));
        NMC_CHECK(nmc_store_remove_batch(bench.store, keys.data(), n, nullptr));
      };
      const auto copy_in = [&] {
        for (size_t i = 0; i < n; ++i) {
          CUDA_OK(cudaMemcpyAsync(heap + i * bytes, memory + i * bytes, bytes, cudaMemcpyDefault, bench.stream));
        }
        CUDA_OK(cudaStreamSynchronize(bench.stream));
      };
      Times with_open, push, base, base_again;
      in_turn(
          repeats, with_open, base,
          [&] {
            open();
            push_all();
          },
          forget, copy_in);
      open();
      in_turn(
          repeats, push, base_again, push_all,
          [&] {
            forget();
            open();
          },
          copy_in);
      push_all();
      NMC_CHECK(nmc_store_commit_batch(bench.store, plans.data(), n, nullptr));
      report("store.gpu.push_commit" + name, gb_per_s(n * bytes, push.median()), "GB/s", "n cudaMemcpyAsync+sync",
             gb_per_s(n * bytes, base_again.median()));
      report("store.gpu.open_push_commit" + name, gb_per_s(n * bytes, with_open.median()), "GB/s",
             "n cudaMemcpyAsync+sync", gb_per_s(n * bytes, base.median()));

      Times fetch, fetch_base;
      in_turn(
          repeats, fetch, fetch_base,
          [&] {
            for (size_t i = 0; i < n; ++i) {
              nmc_view_t view = {};
              NMC_CHECK(nmc_store_pin(bench.store, keys[i], &view));
              const nmc_buffer_t target = {memory + i * bytes, bytes};
              NMC_CHECK(nmc_store_fetch_async(bench.store, &view, 0, &target, 1, bench.stream));
              NMC_CHECK(nmc_store_unpin_async(bench.store, &view, bench.stream));
            }
            CUDA_OK(cudaStreamSynchronize(bench.stream));
          },
          [] {},
          [&] {
            for (size_t i = 0; i < n; ++i) {
              CUDA_OK(cudaMemcpyAsync(memory + i * bytes, heap + i * bytes, bytes, cudaMemcpyDefault, bench.stream));
            }
            CUDA_OK(cudaStreamSynchronize(bench.stream));
          });
      report("store.gpu.pin_fetch_unpin" + name, gb_per_s(n * bytes, fetch.median()), "GB/s", "n cudaMemcpyAsync+sync",
             gb_per_s(n * bytes, fetch_base.median()));
      CUDA_OK(cudaFree(memory));
    }
  }
}

// ---- publish to visible -------------------------------------------------------------------------------------------

// Where each round's object is published, and as what.
struct Round {
  uint64_t word, epoch;
};

static constexpr uint32_t ROUNDS = 300;

// Waits for each object of the host's, then answers with the number of the round. Gives up after 10 s.
static __global__ void answer_publications(const Round* rounds, uint32_t n, uint64_t* reply) {
  for (uint32_t i = 0; i < n; ++i) {
    const uint64_t* word = reinterpret_cast<const uint64_t*>(rounds[i].word);
    if (nmc_dev_wait_ready(word, nullptr, rounds[i].epoch, TIMEOUT_NS) != NMC_READY_YES) return;
    nmc_dev_publish(reply, i + 1);
  }
}

// Waits for the host's word, then publishes the round's object.
static __global__ void publish_on_request(const Round* rounds, uint32_t n, const uint64_t* request) {
  for (uint32_t i = 0; i < n; ++i) {
    if (!nmc_dev_wait_ge(request, i + 1, TIMEOUT_NS)) return;
    nmc_dev_publish(reinterpret_cast<uint64_t*>(rounds[i].word), rounds[i].epoch);
  }
}

// Only answers: the baseline of both.
static __global__ void echo(const uint64_t* request, uint64_t* reply, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) {
    if (!nmc_dev_wait_ge(request, i + 1, TIMEOUT_NS)) return;
    nmc_dev_publish(reply, i + 1);
  }
}

static bool host_sees(const uint64_t* word, uint64_t want) {
  if (cpu_sees(word, want, 5000)) return true;
  std::printf("# no answer from the GPU within 5 s\n");
  return false;
}

static std::string round_key(uint32_t i) { return "round " + std::to_string(i); }

static void bench_latency() {
  section("publish to visible, one process. Half of a round trip; the other half is a plain word the other way");
  nmc_store_config_t cfg = embedded(NMC_HEAP_CUDA, 64 * MIB, 64 * KIB);
  nmc_store_t* store = create(cfg);
  cudaStream_t stream = new_stream();
  uint64_t* words = pinned_array<uint64_t>(16);
  uint64_t *request = words, *reply = words + 8;
  Round* rounds = device_array<Round>(ROUNDS);
  char* memory = device_array<char>(64 * KIB);
  std::vector<nmc_write_plan_t> plans(ROUNDS);
  std::vector<Round> filled(ROUNDS);
  const auto open_all = [&] {
    for (uint32_t i = 0; i < ROUNDS; ++i) {
      plans[i] = open_plan(store, round_key(i), 4096);
      filled[i] = Round{reinterpret_cast<uint64_t>(plans[i].publish_word_device), plans[i].epoch};
    }
    CUDA_OK(cudaMemcpy(rounds, filled.data(), ROUNDS * sizeof(Round), cudaMemcpyHostToDevice));
    CUDA_OK(cudaDeviceSynchronize());
    words[0] = words[8] = 0;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
  };
  const auto remove_all = [&] {
    CUDA_OK(cudaStreamSynchronize(stream));
    for (uint32_t i = 0; i < ROUNDS; ++i) {
      NMC_CHECK(nmc_store_commit(store, &plans[i]));
      NMC_CHECK(nmc_store_remove(store, slice(round_key(i))));
    }
  };

  // Warm: the library's kernels and the first stream write.
  nmc_write_plan_t warm = open_plan(store, "warm", 4096);
  const nmc_slice_t piece = {memory, 4096};
  NMC_CHECK(nmc_store_push_async(store, &warm, 0, &piece, 1, stream));
  NMC_CHECK(nmc_store_commit_async(store, &warm, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  NMC_CHECK(nmc_store_commit(store, &warm));

  Times plain;
  words[0] = words[8] = 0;
  echo<<<1, 1, 0, stream>>>(request, reply, ROUNDS);
  CUDA_OK(cudaGetLastError());
  bool fine = true;
  for (uint32_t i = 0; fine && i < ROUNDS; ++i) {
    const uint64_t t0 = now_ns();
    store_release(request, i + 1);
    fine = host_sees(reply, i + 1);
    plain.add((now_ns() - t0) / 2);
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  const double base = plain.median();

  Times to_gpu;
  open_all();
  answer_publications<<<1, 1, 0, stream>>>(rounds, ROUNDS, reply);
  CUDA_OK(cudaGetLastError());
  for (uint32_t i = 0; fine && i < ROUNDS; ++i) {
    const uint64_t t0 = now_ns();
    NMC_CHECK(nmc_store_commit(store, &plans[i]));
    fine = host_sees(reply, i + 1);
    to_gpu.add((now_ns() - t0) / 2);
  }
  remove_all();
  report("store.gpu.visible.host_to_gpu", to_gpu.median(), "us", "plain word there and back, half", base,
         "nmc_store_commit until a spinning kernel's answer is seen, half");

  Times to_host;
  open_all();
  publish_on_request<<<1, 1, 0, stream>>>(rounds, ROUNDS, request);
  CUDA_OK(cudaGetLastError());
  for (uint32_t i = 0; fine && i < ROUNDS; ++i) {
    const std::string key = round_key(i);
    const uint64_t t0 = now_ns(), deadline = t0 + 5000000000ull;
    store_release(request, i + 1);
    uint32_t state = NMC_OBJECT_WRITING;
    while (state != NMC_OBJECT_READY && fine) {
      NMC_CHECK(nmc_store_exists(store, slice(key), &state));
      fine = now_ns() < deadline;
    }
    to_host.add((now_ns() - t0) / 2);
  }
  remove_all();
  report("store.gpu.visible.gpu_to_host", to_host.median(), "us", "plain word there and back, half", base,
         "request until nmc_store_exists says READY, half");

  // The whole way: no ping-pong, the host itself starts the clock.
  Times by_stream, by_kernel, empty;
  open_all();
  for (uint32_t i = 0; fine && i < ROUNDS; ++i) {
    const std::string key = round_key(i);
    const uint64_t t0 = now_ns(), deadline = t0 + 5000000000ull;
    NMC_CHECK(nmc_store_commit_async(store, &plans[i], stream));
    uint32_t state = NMC_OBJECT_WRITING;
    while (state != NMC_OBJECT_READY && fine) {
      NMC_CHECK(nmc_store_exists(store, slice(key), &state));
      fine = now_ns() < deadline;
    }
    by_stream.add(now_ns() - t0);
    CUDA_OK(cudaStreamSynchronize(stream));
    const uint64_t t1 = now_ns();
    echo<<<1, 1, 0, stream>>>(request, reply, 0);
    CUDA_OK(cudaStreamSynchronize(stream));
    empty.add(now_ns() - t1);
  }
  remove_all();
  report("store.gpu.visible.commit_async", by_stream.median(), "us", "empty kernel+cudaStreamSynchronize",
         empty.median(), "nmc_store_commit_async (cuStreamWriteValue64) until nmc_store_exists says READY");

  nmc_publish_desc_t* desc = pinned_array<nmc_publish_desc_t>(1);
  open_all();
  for (uint32_t i = 0; fine && i < ROUNDS; ++i) {
    const std::string key = round_key(i);
    NMC_CHECK(nmc_store_publish_desc(store, &plans[i], desc));
    const uint64_t t0 = now_ns(), deadline = t0 + 5000000000ull;
    NMC_CHECK(nmc_store_publish_captured(store, desc, 1, stream));
    uint32_t state = NMC_OBJECT_WRITING;
    while (state != NMC_OBJECT_READY && fine) {
      NMC_CHECK(nmc_store_exists(store, slice(key), &state));
      fine = now_ns() < deadline;
    }
    by_kernel.add(now_ns() - t0);
    CUDA_OK(cudaStreamSynchronize(stream));
  }
  remove_all();
  report("store.gpu.visible.publish_kernel", by_kernel.median(), "us", "empty kernel+cudaStreamSynchronize",
         empty.median(), "launch of nmc_store_publish_captured until nmc_store_exists says READY");
  if (!fine) check(false, "every publication was seen");
  CUDA_OK(cudaFreeHost(desc));
  CUDA_OK(cudaFreeHost(words));
  CUDA_OK(cudaFree(rounds));
  CUDA_OK(cudaFree(memory));
  CUDA_OK(cudaStreamDestroy(stream));
  NMC_CHECK(nmc_store_destroy(store));
}

// ---- two processes ------------------------------------------------------------------------------------------------

static constexpr uint32_t HOPS = 200;
static constexpr uint64_t HOPS_NS = 5000000000ull;

// Rank 0 serves, rank 1 returns; all within 5 s. out[i] is the time of round trip i in ns, 0 if it did not come.
static __global__ void ping_pong(uint64_t* mine, uint64_t* theirs, uint32_t rank, uint64_t* out) {
  const uint64_t start = nmc_dev_globaltimer_ns();
  for (uint32_t i = 1; i <= HOPS; ++i) {
    const uint64_t begin = nmc_dev_globaltimer_ns();
    const uint64_t left = begin - start < HOPS_NS ? HOPS_NS - (begin - start) : 0;
    if (rank == 0) nmc_dev_publish(theirs, i);
    if (!nmc_dev_wait_ge(mine, i, left)) return;
    if (rank != 0) nmc_dev_publish(theirs, i);
    out[i - 1] = nmc_dev_globaltimer_ns() - begin;
  }
}

static int as_peer(uint32_t rank, uint32_t n, const std::string& name) {
  nmc_world_config_t cfg = NMC_WORLD_CONFIG_INIT;
  cfg.name = slice(name);
  cfg.rank = static_cast<int32_t>(rank);
  cfg.world_size = n;
  cfg.heap_kind = NMC_HEAP_CUDA;
  cfg.heap_bytes = 2 * MIB;
  cfg.device = 0;
  cfg.join_timeout_ms = TIMEOUT_MS;
  nmc_world_t* world = nullptr;
  NMC_CHECK(nmc_world_join(&cfg, &world));
  CUDA_OK(cudaSetDevice(0));
  uint64_t *host = nullptr, *mine = nullptr, *theirs = nullptr;
  NMC_CHECK(nmc_world_word(world, static_cast<int32_t>(rank), 0, &host, &mine));
  NMC_CHECK(nmc_world_word(world, static_cast<int32_t>(1 - rank), 0, &host, &theirs));
  uint64_t* out = device_array<uint64_t>(HOPS);
  cudaStream_t stream = new_stream();
  NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
  ping_pong<<<1, 1, 0, stream>>>(mine, theirs, rank, out);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaStreamSynchronize(stream));
  std::vector<uint64_t> took(HOPS);
  CUDA_OK(cudaMemcpy(took.data(), out, HOPS * 8, cudaMemcpyDeviceToHost));
  NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
  if (rank == 0) {
    // The mean: the step of the clock can be a microsecond.
    uint64_t sum = 0, trips = 0;
    for (uint32_t i = 10; i < HOPS; ++i) {
      sum += took[i];
      trips += took[i] != 0;
    }
    if (trips == 0) {
      std::printf("# GPU to GPU: fewer than 10 round trips in 5 s\n");
    } else {
      report("store.gpu.visible.gpu_to_gpu_process", static_cast<double>(sum) / static_cast<double>(trips) / 2e3, "us",
             "", 0,
             "half of a round trip between kernels of two processes (mean of " + std::to_string(trips) +
                 ").\n  Words of the world, in the same kind of memory as publish words. Means something under MPS "
                 "only: without\n"
                 "  it the processes take turns, and this is the length of a turn");
    }
  }
  CUDA_OK(cudaFree(out));
  CUDA_OK(cudaStreamDestroy(stream));
  NMC_CHECK(nmc_world_destroy(world));
  return 0;
}

int main(int argc, char** argv) {
  prepare_environment();
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "as-peer" && argc == 6) {
    json = std::string(argv[5]) == "json";
    return as_peer(static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)),
                   static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)), argv[4]);
  }
  json = mode == "--json";
  if (argc > 2 || (argc == 2 && !json)) {
    std::printf("usage: store_bench [--json]\n");
    return 2;
  }
  if (!child_sees_gpu()) return 77;
  const uint64_t begin = now_ns();
  // Before this process touches CUDA: it forks.
  section("publish to visible, two processes");
  if (!run_ranks(own_path(argv[0]), "as-peer", 2, json ? "json" : "table"))
    check(false, "two processes play ping-pong");
  CUDA_OK(cudaSetDevice(0));
  bench_latency();
  bench_device_values();
  bench_pipelines();
  bench_host_values();
  bench_pages();
  if (!json) std::printf("\n%.1f s\n", static_cast<double>(now_ns() - begin) / 1e9);
  return failed_checks == 0 ? 0 : 1;
}
