// A KV cache on the GPU over a store with an SSD tier. Blocks that left the store's memory come from disk into blocks on the GPU by the
// calls that bring them from memory, whole and a layer after the other, in the process that wrote them and in the next one; what is
// damaged on disk does not come. A kernel compares every word, and is shown to see a single bit.
// usage: kv_tier_gpu cuda|host                  where the store's heap is; a process for each half below
//        kv_tier_gpu cuda|host compute|find DIR

#include "kv_move.h"

#include <filesystem>

static constexpr uint32_t BLOCKS = 8, TOTAL = 24;
static constexpr uint64_t SEQUENCES = 2, VALUES = SEQUENCES * BLOCKS;
static constexpr uint64_t TIER_BLOCK = 4096, RECORD_BYTES = BLOCK_BYTES + TIER_BLOCK; // a block of the cache and its header
static constexpr uint64_t READ_PATIENCE_NS = 120 * 1000000000ull;

// A store whose heap lies there, with a tier in this directory, which writes what it is told to.
struct Bed {
  nmc_store_t* store;
  nmc_tier_t* tier = nullptr;

  Bed(uint32_t heap_kind, const std::string& dir) : store(create(embedded(heap_kind, 96 * MIB, 256 * KIB))) {
    nmc_tier_config_t config = NMC_TIER_CONFIG_INIT;
    config.directory = slice(dir);
    config.flags = NMC_TIER_PAUSED;
    config.max_objects = 1000;
    NMC_CHECK(nmc_tier_open(store, &config, &tier));
  }
  ~Bed() {
    NMC_CHECK(nmc_tier_close(tier));
    NMC_CHECK(nmc_store_destroy(store));
  }
  Bed(const Bed&) = delete;
  Bed& operator=(const Bed&) = delete;

  nmc_tier_stats_t stats() {
    nmc_tier_stats_t stats = NMC_TIER_STATS_INIT;
    NMC_CHECK(nmc_tier_stats(tier, &stats));
    return stats;
  }
  // Empties memory: what the disk has stays there.
  void evict() { NMC_CHECK(nmc_store_evict_until_below(store, 0, 0)); }
};

// A bit of the last word of the last block changes, and changes back.
static void flip_a_bit(Cache& cache) {
  int32_t block = 0;
  CUDA_OK(cudaMemcpy(&block, cache.table + BLOCKS - 1, sizeof(block), cudaMemcpyDeviceToHost));
  constexpr uint64_t plane_words = BLOCK_BYTES / 4 / (2 * LAYERS);
  uint32_t* at = cache.arena + ((2 * LAYERS - 1) * uint64_t{cache.total} + static_cast<uint64_t>(block) + 1) * plane_words - 1;
  uint32_t word = 0;
  CUDA_OK(cudaMemcpy(&word, at, sizeof(word), cudaMemcpyDeviceToHost));
  word ^= 1u << 31;
  CUDA_OK(cudaMemcpy(at, &word, sizeof(word), cudaMemcpyHostToDevice));
  CUDA_OK(cudaDeviceSynchronize());
}

// Looks at each layer as soon as it is said to be there. True if all came and were right by then.
static bool layers_come_right(Cache& cache, uint64_t id, uint64_t ticket) {
  const uint64_t deadline = now_ns() + READ_PATIENCE_NS;
  nmc_kv_progress_t progress = NMC_KV_PROGRESS_INIT;
  uint32_t seen = 0, wrong = 0;
  nmc_status_t status;
  do {
    status = nmc_kv_transfer_poll(cache.kv, ticket, &progress);
    for (; seen < progress.layers_done && seen < LAYERS; ++seen) wrong += !cache.right_layer(id, BLOCKS, seen);
  } while (status == NMC_IN_PROGRESS && now_ns() < deadline);
  if (status != NMC_OK) std::printf("# %s: %s\n", nmc_status_name(status), nmc_last_error_message());
  if (status == NMC_OK && (seen != LAYERS || wrong != 0)) std::printf("# %u layers came, %u of them wrong\n", seen, wrong);
  return status == NMC_OK && seen == LAYERS && wrong == 0;
}

// Opens a sequence of which the cache knows nothing, in blocks that hold nothing of it, and begins to fetch it.
static uint64_t begin(Cache& cache, uint64_t id, uint32_t flags) {
  NMC_CHECK(nmc_kv_clear(cache.kv, nullptr));
  CUDA_OK(cudaMemset(cache.arena, 0xee, BLOCK_BYTES * cache.total));
  CUDA_OK(cudaDeviceSynchronize());
  check(cache.open(id, BLOCKS) == 0, "the cache knows nothing of it");
  check(cache.wrong_words(id, BLOCKS, 0, 2 * LAYERS) == BLOCKS * BLOCK_BYTES / 4, "control: before it comes every word is another");
  const nmc_kv_after_t after = cache.after_stream();
  uint64_t ticket = 0, tokens = 0;
  NMC_CHECK(nmc_kv_onboard(cache.kv, id, NMC_KV_ONBOARD_ALL | flags, &after, &ticket, &tokens));
  check(tokens == BLOCKS * TOKENS && ticket != 0, "the store has all of it");
  return ticket;
}

// All sequences come back: from disk or, if `reads` is not wanted, without it.
static void comes_back(Bed& bed, Cache& cache, bool reads, const std::string& where) {
  for (const uint32_t flags : {uint32_t{0}, uint32_t{NMC_KV_ONBOARD_BY_LAYER}}) {
    const bool by_layer = flags != 0;
    const uint64_t before = bed.stats().read_objects;
    for (uint64_t id = 1; id <= SEQUENCES; ++id) {
      const uint64_t ticket = begin(cache, id, flags);
      if (by_layer) {
        check(layers_come_right(cache, id, ticket), ("every layer is right when it is said to be there, " + where).c_str());
      } else {
        NMC_CHECK(nmc_kv_transfer_wait(cache.kv, ticket, 120000, nullptr));
      }
      check(cache.right(id, BLOCKS), ("it comes " + std::string(by_layer ? "by layer" : "whole") + " and bit for bit, " + where).c_str());
      flip_a_bit(cache);
      check(cache.wrong_words(id, BLOCKS, 0, 2 * LAYERS) == 1 && !cache.right_layer(id, BLOCKS, LAYERS - 1) &&
                cache.right_layer(id, BLOCKS, 0),
            "control: one bit is seen, in its layer");
      flip_a_bit(cache);
      NMC_CHECK(nmc_kv_close(cache.kv, id, 0));
      check(cache.open(id, BLOCKS) == BLOCKS * TOKENS && cache.right(id, BLOCKS), "and is matched from then on");
      NMC_CHECK(nmc_kv_close(cache.kv, id, 0));
    }
    // By layer each is one read as well, and a few more where threads came at the same time.
    const uint64_t read = bed.stats().read_objects - before, most = by_layer ? VALUES * LAYERS / 2 : VALUES;
    if (!check(reads ? read >= VALUES && read <= most : read == 0, reads ? "each value is read from disk once" : "nothing is read from disk")) {
      std::printf("# %llu values were read\n", static_cast<unsigned long long>(read));
    }
  }
  NMC_CHECK(nmc_kv_audit(cache.kv));
}

// All values on disk come into the store's memory.
static void prefetch(Bed& bed) {
  std::vector<std::string> names;
  const auto take = [](void* user, const nmc_tier_entry_t* entry) -> int32_t {
    static_cast<std::vector<std::string>*>(user)->emplace_back(static_cast<const char*>(entry->key.ptr), entry->key.len);
    return 1;
  };
  NMC_CHECK(nmc_tier_scan(bed.tier, take, &names));
  check(names.size() == VALUES, "every block is one value on disk");
  std::vector<nmc_slice_t> keys;
  for (const std::string& name : names) keys.push_back(slice(name));
  NMC_CHECK(nmc_tier_prefetch(bed.tier, keys.data(), keys.size(), nullptr));
}

static void compute(uint32_t heap_kind, const std::string& dir) {
  Bed bed(heap_kind, dir);
  Cache writer(TOTAL, bed.store);
  for (uint64_t id = 1; id <= SEQUENCES; ++id) {
    writer.open(id, BLOCKS);
    // The kernel is late: what goes to the store, and from there to disk, is what it writes in the end.
    writer.fill(id, BLOCKS, 20'000'000);
    const nmc_kv_after_t after = writer.after_stream();
    uint64_t ticket = 0;
    NMC_CHECK(nmc_kv_commit(writer.kv, id, BLOCKS * TOKENS));
    NMC_CHECK(nmc_kv_offload(writer.kv, id, BLOCKS * TOKENS, &after, &ticket));
    NMC_CHECK(nmc_kv_close(writer.kv, id, 0));
    NMC_CHECK(nmc_kv_transfer_wait(writer.kv, ticket, 30000, nullptr));
  }
  uint64_t written = 0;
  NMC_CHECK(nmc_tier_offload(bed.tier, nullptr, 0, &written));
  bed.evict();
  const nmc_tier_stats_t stats = bed.stats();
  check(written == VALUES && stats.evicted_clean == VALUES && stats.evicted_dirty == 0, "all of it is on disk, and nothing in memory");
  comes_back(bed, writer, true, "where it was computed");
  Cache other(TOTAL, bed.store);
  comes_back(bed, other, true, "in another cache");
  prefetch(bed);
  comes_back(bed, other, false, "when it was brought back before");
}

// Changes a byte of every value on disk.
static void damage(const std::string& dir) {
  for (const auto& file : std::filesystem::directory_iterator(dir)) {
    if (file.path().extension() != ".bucket") continue;
    std::FILE* bucket = std::fopen(file.path().c_str(), "r+b");
    if (bucket == nullptr) continue;
    for (uint64_t at = 3 * TIER_BLOCK + 100; at < file.file_size(); at += RECORD_BYTES) {
      std::fseek(bucket, static_cast<long>(at), SEEK_SET);
      const int byte = std::fgetc(bucket);
      std::fseek(bucket, static_cast<long>(at), SEEK_SET);
      std::fputc(byte ^ 1, bucket);
    }
    std::fclose(bucket);
  }
}

static void find_again(uint32_t heap_kind, const std::string& dir) {
  Bed bed(heap_kind, dir);
  check(bed.stats().recovered_objects == VALUES, "the next process finds all of it on disk");
  Cache cache(TOTAL, bed.store);
  comes_back(bed, cache, true, "in the next process");
  damage(dir);
  for (uint64_t id = 1; id <= SEQUENCES; ++id) {
    const uint64_t ticket = begin(cache, id, id == 1 ? 0 : NMC_KV_ONBOARD_BY_LAYER);
    expect(nmc_kv_transfer_wait(cache.kv, ticket, 120000, nullptr), NMC_ERR_CORRUPT, "what is damaged on disk does not come");
    nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
    NMC_CHECK(nmc_kv_seq_info(cache.kv, id, 0, &info));
    check(info.computed_tokens == 0, "and no block of it counts");
    NMC_CHECK(nmc_kv_close(cache.kv, id, 0));
  }
}

// Runs a half of this in a process of its own.
static bool run(const std::string& program, const std::string& heap, const char* half, const std::string& dir) {
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    execl(program.c_str(), program.c_str(), heap.c_str(), half, dir.c_str(), static_cast<char*>(nullptr));
    std::perror("execl");
    std::_Exit(1);
  }
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char** argv) {
  prepare_environment();
  const std::string heap = argc > 1 ? argv[1] : "", half = argc > 2 ? argv[2] : "";
  const bool known = heap == "cuda" || heap == "host";
  if (known && argc == 4 && (half == "compute" || half == "find")) {
    CUDA_OK(cudaSetDevice(0));
    (half == "compute" ? compute : find_again)(heap == "cuda" ? NMC_HEAP_CUDA : NMC_HEAP_HOST, argv[3]);
    return failed_checks == 0 ? 0 : 1;
  }
  if (!known || argc != 2) {
    std::printf("usage: kv_tier_gpu cuda|host\n");
    return 2;
  }
  if (!child_sees_gpu()) return 77;
  char dir[] = "/tmp/nmc-gpu-kv-tier-XXXXXX";
  if (mkdtemp(dir) == nullptr) return 1;
  const std::string program = own_path(argv[0]), tier = std::string(dir) + "/tier";
  const bool both = run(program, heap, "compute", tier) && run(program, heap, "find", tier);
  std::error_code ignored;
  std::filesystem::remove_all(dir, ignored);
  return both ? 0 : 1;
}
