// Bigger than memory: a KV cache eight times as large as the memory it has. What memory evicts is on an SSD, the same call reads both,
// and after a restart everything is found again. README.md says what to look at. Needs no GPU.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <nanomc.hpp>

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kValueBytes = size_t{1} << 20;  // the K and V of one block of tokens, all layers
constexpr size_t kTimesMemory = 8;

struct Options {
  uint64_t heap_bytes = uint64_t{64} << 20;
  std::string directory;  // of the user's choice, on the disk that is to be looked at; else a temporary one
};

std::string key_of(size_t number) { return "prompt-" + std::to_string(number / 16) + "/block-" + std::to_string(number % 16); }

// A value that says what it is: every word depends on the number of the value and on its place.
void fill(std::vector<uint64_t>& value, size_t number) {
  for (size_t i = 0; i < value.size(); ++i) value[i] = nmc_pattern_u64(number, 0, 0, i);
}
bool is_right(const std::vector<uint64_t>& value, size_t number) {
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i] != nmc_pattern_u64(number, 0, 0, i)) return false;
  }
  return true;
}

// Where a read found its value, how often, and how long that took.
struct Tally {
  size_t count = 0;
  Clock::duration time{};

  void add(Clock::duration spent) {
    ++count;
    time += spent;
  }
  double gb_per_s() const {
    const double seconds = std::chrono::duration<double>(time).count();
    return seconds > 0 ? static_cast<double>(count * kValueBytes) / seconds / 1e9 : 0;
  }
};

nmc::Store open_store(const Options& options) {
  return nmc::Store::embedded(nmc::StoreConfig().heap_bytes(options.heap_bytes).page_bytes(256 << 10).populate());
}

nmc::Tier open_tier(const nmc::Store& store, const Options& options) {
  return nmc::Tier::open(store, nmc::TierConfig(options.directory).bucket_bytes(32 << 20));
}

// The engine's first run: it stores all blocks of all prompts. A thread of the library writes what is next to be evicted to disk. Here
// memory is overrun as fast as the CPU can, and no value may be lost, so the program waits for the disk every quarter of the memory.
// (An engine does not wait: what is evicted before it was written is a miss, which it computes anew.)
void write_all(const nmc::Store& store, const nmc::Tier& tier, size_t values, const Options& options) {
  std::vector<uint64_t> value(kValueBytes / 8);
  const size_t quarter = options.heap_bytes / kValueBytes / 4;
  const auto start = Clock::now();
  for (size_t i = 0; i < values; ++i) {
    fill(value, i);
    store.put(key_of(i), value);
    if (i % quarter == quarter - 1) (void)tier.offload();
  }
  (void)tier.offload();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const nmc_tier_stats_t stats = tier.stats();
  std::printf("   stored %zu values of 1 MiB in %.2f s: %.2f GB/s, made and written to %llu buckets\n", values, seconds,
              static_cast<double>(values * kValueBytes) / seconds / 1e9,
              static_cast<unsigned long long>(stats.written_buckets));
}

// Reads everything, newest first, and compares every byte. Returns how many were not there or not right.
size_t read_all(const nmc::Store& store, size_t values) {
  std::vector<uint64_t> value(kValueBytes / 8);
  Tally memory, disk;
  size_t missing = 0, wrong = 0;
  for (size_t i = values; i-- > 0;) {
    const std::string key = key_of(i);
    const nmc::ObjectState state = store.state(key);  // only to count by it: a read asks for no tier
    if (state == nmc::ObjectState::absent) {
      ++missing;
      continue;
    }
    const auto start = Clock::now();
    store.get_into(key, value);
    (state == nmc::ObjectState::on_disk ? disk : memory).add(Clock::now() - start);
    wrong += !is_right(value, i);
  }
  std::printf("   tier     hits      rate       speed\n");
  for (const auto& [name, tally] : {std::pair("memory", memory), std::pair("disk", disk)}) {
    std::printf("   %-6s %6zu %7.1f %% %6.2f GB/s\n", name, tally.count,
                100.0 * static_cast<double>(tally.count) / static_cast<double>(values), tally.gb_per_s());
  }
  std::printf("   %zu missing, %zu wrong\n", missing, wrong);
  return missing + wrong;
}

// The same from disk with many requests in flight: what an engine does that knows which blocks a prompt needs.
size_t read_batches(const nmc::Store& store, size_t values) {
  constexpr size_t kBatch = 16;
  std::vector<std::vector<uint64_t>> buffers(kBatch, std::vector<uint64_t>(kValueBytes / 8));
  const std::vector<nmc::MutableBytes> to(buffers.begin(), buffers.end());
  Tally all;
  size_t wrong = 0;
  for (size_t first = 0; first + kBatch <= values; first += kBatch) {
    std::array<std::string, kBatch> names;
    for (size_t i = 0; i < kBatch; ++i) names[i] = key_of(first + i);
    const std::vector<nmc::Key> keys = nmc::all_keys(names);
    const auto start = Clock::now();
    const nmc::Batch batch = store.get_into_batch(keys, to);
    all.time += Clock::now() - start;
    all.count += kBatch;
    for (size_t i = 0; i < kBatch; ++i) wrong += batch.items[i] != NMC_OK || !is_right(buffers[i], first + i);
  }
  std::printf("   %zu values in batches of %zu: %.2f GB/s, %zu wrong\n", all.count, kBatch, all.gb_per_s(), wrong);
  return wrong;
}

size_t show(const Options& options) {
  const size_t values = options.heap_bytes / kValueBytes * kTimesMemory;
  size_t bad = 0;
  std::printf("A cache of %zu MiB in %llu MiB of memory, and a disk (%s)\n", values,
              static_cast<unsigned long long>(options.heap_bytes >> 20), options.directory.c_str());
  {
    const nmc::Store store = open_store(options);
    const nmc::Tier tier = open_tier(store, options);
    std::printf("\n1  Everything is stored, much more than memory holds\n");
    write_all(store, tier, values, options);
    std::printf("\n2  Everything is read, by the same call wherever it is\n");
    bad += read_all(store, values);
    tier.sync();
  }  // the tier is closed, then the store goes, with all that was in memory

  std::printf("\n3  A new store on the same directory: memory is empty, the disk is not\n");
  const nmc::Store store = open_store(options);
  const nmc::Tier tier = open_tier(store, options);
  const nmc_tier_stats_t stats = tier.stats();
  std::printf("   found %llu values in %llu buckets again in %.1f ms; the index takes %.0f bytes a value\n",
              static_cast<unsigned long long>(stats.recovered_objects),
              static_cast<unsigned long long>(stats.recovered_buckets), static_cast<double>(stats.recovery_ns) / 1e6,
              static_cast<double>(stats.index_bytes) / static_cast<double>(stats.max_objects));
  bad += read_all(store, values);
  bad += read_batches(store, values);

  std::printf("\n4  What is removed is gone from both\n");
  const uint64_t removed = store.remove_by_prefix("prompt-0/");
  std::printf("   removed %llu blocks of the first prompt; is one there? %s\n", static_cast<unsigned long long>(removed),
              store.exists(key_of(3)) ? "yes" : "no");
  bad += removed != 16 || store.exists(key_of(3));
  return bad;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--heap-mib") == 0) options.heap_bytes = std::strtoull(argv[i + 1], nullptr, 10) << 20;
    else if (std::strcmp(argv[i], "--dir") == 0) options.directory = argv[i + 1];
  }
  if (argc % 2 == 0 || options.heap_bytes < uint64_t{4} << 20) {
    std::fprintf(stderr, "usage: %s [--heap-mib N, from 4 up] [--dir DIRECTORY]\n", argv[0]);
    return 2;
  }
  const bool temporary = options.directory.empty();
  size_t bad = 1;
  try {
    char path[] = "/tmp/nanomc-bigger-XXXXXX";
    if (temporary && mkdtemp(path) != nullptr) options.directory = path;
    bad = show(options);
  } catch (const nmc::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  if (temporary && !options.directory.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(options.directory, ignored);
  }
  return bad == 0 ? 0 : 1;
}
