// Prefill and decode in two processes: prefill's kernels store and publish what decode's kernels read and verify.
#include "store_value.h"

// The runs of an object for a kernel.
static constexpr uint32_t MAX_RUNS = 16;
struct Runs {
  uint64_t at[MAX_RUNS];
  uint64_t bytes[MAX_RUNS];
  uint32_t n;
};

static Runs runs_of(const std::vector<nmc_extent_t>& extents, size_t n) {
  Runs runs = {};
  if (n > MAX_RUNS) {
    std::printf("FAIL an object in %zu extents; this test has room for %u\n", n, MAX_RUNS);
    stop();
  }
  runs.n = static_cast<uint32_t>(n);
  for (size_t i = 0; i < n; ++i) {
    runs.at[i] = reinterpret_cast<uint64_t>(extents[i].device_ptr);
    runs.bytes[i] = extents[i].bytes;
  }
  return runs;
}

static Runs runs_of_plan(nmc_store_t* store, const nmc_write_plan_t& plan) {
  std::vector<nmc_extent_t> extents(256);
  size_t n = 0;
  NMC_CHECK(nmc_store_plan_extents(store, &plan, extents.data(), extents.size(), &n));
  return runs_of(extents, n);
}

static Runs runs_of_view(nmc_store_t* store, const nmc_view_t& view) {
  std::vector<nmc_extent_t> extents(256);
  size_t n = 0;
  NMC_CHECK(nmc_store_view_extents(store, &view, extents.data(), extents.size(), &n));
  return runs_of(extents, n);
}

// Counts the words (and single bytes at the end) that are not those of the value with number `seed`.
static __global__ void count_wrong(Runs runs, uint64_t seed, unsigned long long* wrong) {
  const uint64_t me = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  unsigned long long bad = 0;
  uint64_t first = 0; // of the run, in the value; a multiple of the page
  for (uint32_t r = 0; r < runs.n; ++r) {
    const uint64_t words = runs.bytes[r] / 8;
    for (uint64_t i = me; i < words; i += step) {
      const uint64_t seen = nmc_dev_ld_relaxed_sys_u64(reinterpret_cast<const uint64_t*>(runs.at[r] + 8 * i));
      bad += seen != word_of(seed, first / 8 + i);
    }
    for (uint64_t i = 8 * words + me; i < runs.bytes[r]; i += step) {
      const uint8_t seen = *reinterpret_cast<const volatile uint8_t*>(runs.at[r] + i);
      bad += seen != static_cast<uint8_t>(word_of(seed, (first + i) / 8) >> (8 * ((first + i) % 8)));
    }
    first += runs.bytes[r];
  }
  if (bad != 0) atomicAdd(wrong, bad);
}

static constexpr uint32_t DECODE = 0, PREFILL = 1;
static constexpr uint64_t OBJECTS = 200, WINDOW = 8, PROCS_HEAP = 4 * MIB;

static std::string kv_key(uint64_t i) { return "kv " + std::to_string(i); }
// Two to four pages, with every kind of tail: the heap holds about 20.
static uint64_t kv_bytes(uint64_t i) { return (1 + nmc_pattern_u64(9, 0, 0, i) % 3) * PAGE + 1 + i * 9973 % PAGE; }

// One block a page: stores it where the plan says; the last block publishes.
static __global__ void __launch_bounds__(256)
    store_pages(Runs runs, uint64_t page_bytes, const uint8_t* src, uint64_t bytes, uint32_t* counter,
                uint64_t* publish_word, uint64_t epoch) {
  const uint64_t page = blockIdx.x;
  uint64_t first = 0; // page of the run's beginning
  for (uint32_t r = 0; r < runs.n; ++r) {
    const uint64_t pages = (runs.bytes[r] + page_bytes - 1) / page_bytes;
    if (page < first + pages) {
      const uint64_t left = bytes - page * page_bytes;
      nmc_dev_store_page(reinterpret_cast<void*>(runs.at[r]), page - first, page_bytes, src + page * page_bytes,
                         left < page_bytes ? left : page_bytes, threadIdx.x, blockDim.x);
      break;
    }
    first += pages;
  }
  __syncthreads();
  if (threadIdx.x == 0) nmc_dev_grid_publish(counter, gridDim.x, publish_word, epoch);
}

// Stores what it gets, unlike the process that waits for it.
static bool prefill(nmc_world_t* world, nmc_store_t* store) {
  cudaStream_t stream = new_stream();
  constexpr uint64_t room = 5 * PAGE, depth = 4;
  uint8_t* sources = device_array<uint8_t>(depth * room);
  uint32_t* counter = device_array<uint32_t>(1);
  uint64_t *consumed = nullptr, *consumed_device = nullptr;
  NMC_CHECK(nmc_world_word(world, PREFILL, 0, &consumed, &consumed_device));
  nmc_put_options_t put = NMC_PUT_OPTIONS_INIT;
  put.preferred_segment = DECODE;
  std::vector<nmc_write_plan_t> plans(OBJECTS);
  std::vector<cudaEvent_t> events(depth);
  for (cudaEvent_t& event : events) CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  uint64_t committed = 0, in_parts = 0;
  const auto commit_up_to = [&](uint64_t end) {
    for (; committed < end; ++committed) {
      CUDA_OK(cudaEventSynchronize(events[committed % depth]));
      NMC_CHECK(nmc_store_commit(store, &plans[committed]));
    }
  };
  for (uint64_t i = 0; i < OBJECTS; ++i) {
    // Not so far ahead that the oldest is evicted before it was read.
    const uint64_t deadline = now_ns() + TIMEOUT_NS;
    while (load_acquire(consumed) + WINDOW <= i) {
      if (now_ns() > deadline) {
        std::printf("FAIL prefill: decode has read %llu of %llu objects and does not go on\n",
                    ull(load_acquire(consumed)), ull(i));
        return false;
      }
      usleep(20);
    }
    if (i >= depth) commit_up_to(i - depth + 1);
    plans[i] = open_plan(store, kv_key(i), kv_bytes(i), &put);
    const nmc_write_plan_t& plan = plans[i];
    if (plan.dst_rank != DECODE || plan.page_bytes != PAGE || plan.publish_word_device == nullptr) {
      std::printf("FAIL prefill: plan %llu is for rank %u with pages of %u\n", ull(i), plan.dst_rank, plan.page_bytes);
      return false;
    }
    const Runs runs = runs_of_plan(store, plan);
    in_parts += runs.n > 1;
    // A source at every alignment.
    uint8_t* source = sources + i % depth * room + i % 16;
    fill_value<<<16, 256, 0, stream>>>(source, kv_bytes(i), i);
    store_pages<<<plan.n_pages, 256, 0, stream>>>(runs, PAGE, source, kv_bytes(i), counter, plan.publish_word_device,
                                                  plan.epoch);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaEventRecord(events[i % depth], stream));
  }
  commit_up_to(OBJECTS);
  CUDA_OK(cudaStreamSynchronize(stream));
  std::printf("# prefill: %llu objects stored and published by kernels, %llu of them in several extents\n",
              ull(OBJECTS), ull(in_parts));
  NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
  for (const cudaEvent_t event : events) CUDA_OK(cudaEventDestroy(event));
  CUDA_OK(cudaFree(sources));
  CUDA_OK(cudaFree(counter));
  CUDA_OK(cudaStreamDestroy(stream));
  return true;
}

static bool decode(nmc_world_t* world, nmc_store_t* store) {
  cudaStream_t stream = new_stream();
  unsigned long long* wrong = device_array<unsigned long long>(1);
  for (uint64_t i = 0; i < OBJECTS; ++i) {
    NMC_CHECK(nmc_store_wait_ready(store, slice(kv_key(i)), NMC_WAIT_APPEAR, TIMEOUT_MS));
    nmc_view_t view = {};
    NMC_CHECK(nmc_store_pin(store, slice(kv_key(i)), &view));
    if (view.bytes != kv_bytes(i) || view.owner_rank != DECODE || view.data_device == nullptr) {
      std::printf("FAIL decode: object %llu has %llu bytes on rank %u\n", ull(i), ull(view.bytes), view.owner_rank);
      return false;
    }
    const Runs runs = runs_of_view(store, view);
    if (runs.at[0] != reinterpret_cast<uint64_t>(view.data_device)) {
      std::printf("FAIL decode: object %llu begins at %p and its first extent elsewhere\n", ull(i), view.data_device);
      return false;
    }
    count_wrong<<<8, 256, 0, stream>>>(runs, i, wrong);
    CUDA_OK(cudaGetLastError());
    NMC_CHECK(nmc_store_unpin_async(store, &view, stream));
    NMC_CHECK(nmc_world_write_word_async(world, PREFILL, 0, i + 1, stream));
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
  unsigned long long total = 1;
  CUDA_OK(cudaMemcpy(&total, wrong, 8, cudaMemcpyDeviceToHost));
  nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
  const uint64_t deadline = now_ns() + 5000000000ull;
  do {
    NMC_CHECK(nmc_store_stats(store, nullptr, 0, &stats));
  } while (stats.limbo_bytes != 0 && now_ns() < deadline);
  std::printf(
      "# decode: %llu objects verified, %llu wrong words, %llu evicted, %llu bytes in limbo, %llu in quarantine\n",
      ull(OBJECTS), total, ull(stats.evict_count), ull(stats.limbo_bytes),
      ull(stats.quarantined_bytes));
  bool fine = check(total == 0, "decode: every byte is what prefill's kernels stored");
  fine = check(stats.evict_count >= OBJECTS / 2, "decode: the heap was used over and over") && fine;
  fine = check(stats.limbo_bytes == 0 && stats.quarantined_bytes == 0, "decode: nothing is left behind") &&
         fine;
  CUDA_OK(cudaFree(wrong));
  CUDA_OK(cudaStreamDestroy(stream));
  return fine;
}

static int as_rank(uint32_t rank, uint32_t n, const std::string& name, const std::string& heap) {
  nmc_world_config_t cfg = NMC_WORLD_CONFIG_INIT;
  cfg.name = slice(name);
  cfg.rank = static_cast<int32_t>(rank);
  cfg.world_size = n;
  cfg.heap_kind = heap == "cuda" ? NMC_HEAP_CUDA : NMC_HEAP_HOST;
  cfg.heap_bytes = PROCS_HEAP;
  cfg.device = 0;
  cfg.join_timeout_ms = TIMEOUT_MS;
  nmc_world_t* world = nullptr;
  NMC_CHECK(nmc_world_join(&cfg, &world));
  CUDA_OK(cudaSetDevice(0));
  nmc_store_config_t store_cfg = NMC_STORE_CONFIG_INIT;
  store_cfg.page_bytes = static_cast<uint32_t>(PAGE);
  store_cfg.pin_slots = 64;
  // Evict only what is needed, so that some objects get several extents.
  store_cfg.high_permille = 1000;
  store_cfg.low_permille = 1000;
  store_cfg.attach_timeout_ms = TIMEOUT_MS;
  nmc_store_t* store = nullptr;
  NMC_CHECK(nmc_store_create(world, &store_cfg, &store));
  NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
  const bool fine = rank == DECODE ? decode(world, store) : prefill(world, store);
  if (!fine) stop();
  // The master is decode's: prefill leaves first.
  if (rank == PREFILL) NMC_CHECK(nmc_store_destroy(store));
  NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
  if (rank == DECODE) NMC_CHECK(nmc_store_destroy(store));
  NMC_CHECK(nmc_world_destroy(world));
  return 0;
}

int main(int argc, char** argv) {
  prepare_environment();
  if (argc == 6 && std::string(argv[1]) == "as-rank") {
    return as_rank(static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)),
                   static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)), argv[4], argv[5]);
  }
  // This process forks, so a child asks for the GPU.
  if (!child_sees_gpu()) return 77;
  const std::string program = own_path(argv[0]);
  check(run_ranks(program, "as-rank", 2, "cuda"),
        "200 objects from prefill's kernels to decode's, through a CUDA heap for 20");
  check(run_ranks(program, "as-rank", 2, "host"), "the same through a host heap that is registered with the device");
  return finish();
}
