// How fast values come from an SSD to the GPU: `nmc_store_get_into` of what is on disk only, into memory of the device, against plain
// reads of the same files into host memory, in one run, in turn, medians.
// usage: ssd_bench [--json] [DIRECTORY]    --json: one object a line {"name","value","unit","baseline_name","baseline","ratio"}
// "ratio" is ours / baseline; the baseline does not bring its bytes to the GPU. Takes less than a minute.

#include "../../ctest/gpu/store_check.h"

#include <fcntl.h>

#include <algorithm>
#include <cinttypes>

static bool json = false;
static constexpr uint64_t TOTAL = 512 * MIB, BLOCK = 4096;

static void report(const std::string& name, double ours, double raw) {
  if (json) {
    std::printf("{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"GB/s\",\"baseline_name\":\"pread to host memory\",\"baseline\":%.6g,\"ratio\":%.4g}\n",
                name.c_str(), ours, raw, ours / raw);
  } else {
    std::printf("%-28s %8.3f GB/s %8.3f GB/s pread to host memory %6.3f\n", name.c_str(), ours, raw, ours / raw);
  }
}

static double median(std::vector<double>& all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

struct Where {
  uint64_t bucket, offset;
};

static void measure(nmc_store_t* store, nmc_tier_t* tier, const std::string& dir, uint64_t bytes, size_t together, char* device) {
  const size_t count = TOTAL / bytes;
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back("ssd " + std::to_string(bytes) + " " + std::to_string(i));
  if (together == 1) {
    std::vector<uint8_t> value(bytes);
    for (size_t i = 0; i < bytes; ++i) value[i] = static_cast<uint8_t>(i * 31 + i / 251);
    // A part at a time: the heap is smaller than all of it.
    for (size_t i = 0; i < count; ++i) {
      NMC_CHECK(nmc_store_put(store, slice(names[i]), value.data(), bytes, nullptr));
      if ((i + 1) * bytes % (64 * MIB) == 0 || i + 1 == count) {
        NMC_CHECK(nmc_tier_offload(tier, nullptr, 0, nullptr));
        NMC_CHECK(nmc_store_evict_until_below(store, 0, 0));
      }
    }
  }
  std::vector<Where> places(count);
  struct Scan {
    std::vector<Where>* places;
    std::string prefix;
  } scan{&places, "ssd " + std::to_string(bytes) + " "};
  NMC_CHECK(nmc_tier_scan(
      tier,
      [](void* user, const nmc_tier_entry_t* entry) -> int32_t {
        Scan& scan = *static_cast<Scan*>(user);
        const std::string key(static_cast<const char*>(entry->key.ptr), entry->key.len);
        if (key.rfind(scan.prefix, 0) == 0) {
          (*scan.places)[std::stoul(key.substr(scan.prefix.size()))] = Where{entry->bucket, (entry->block + 1) * BLOCK};
        }
        return 1;
      },
      &scan));
  std::vector<int> files;
  for (const Where& place : places) {
    char name[64];
    std::snprintf(name, sizeof name, "/%016" PRIx64 ".bucket", place.bucket);
    files.push_back(open((dir + name).c_str(), O_RDONLY | O_DIRECT));
    if (files.back() < 0) std::exit(1);
  }
  void* host = nullptr;
  if (posix_memalign(&host, BLOCK, bytes) != 0) std::exit(1);
  std::vector<double> ours, raw;
  const size_t sample = std::max(together, size_t{16 * MIB / bytes});
  for (size_t round = 0; round < 24; ++round) {
    const auto from = [&](size_t i, size_t half) { return (round * sample + i + half * count / 2) % count; };
    uint64_t start = now_ns();
    for (size_t i = 0; i < sample; i += together) {
      std::vector<nmc_slice_t> keys;
      std::vector<nmc_buffer_t> to;
      for (size_t k = 0; k < together; ++k) {
        keys.push_back(slice(names[from(i + k, 0)]));
        to.push_back(nmc_buffer_t{device + k * bytes, bytes});
      }
      NMC_CHECK(nmc_store_get_into_batch(store, keys.data(), to.data(), together, nullptr));
    }
    ours.push_back(static_cast<double>(sample * bytes) / static_cast<double>(now_ns() - start));
    start = now_ns();
    for (size_t i = 0; i < sample; ++i) {
      const size_t which = from(i, 1);
      if (pread(files[which], host, bytes, static_cast<off_t>(places[which].offset)) != static_cast<ssize_t>(bytes)) std::exit(1);
    }
    raw.push_back(static_cast<double>(sample * bytes) / static_cast<double>(now_ns() - start));
  }
  for (const int file : files) close(file);
  std::free(host);
  const std::string size = bytes >= MIB ? std::to_string(bytes / MIB) + "MiB" : std::to_string(bytes / KIB) + "KiB";
  report(together == 1 ? "ssd.gpu.get." + size : "ssd.gpu.get.batch16." + size, median(ours), median(raw));
}

int main(int argc, char** argv) {
  prepare_environment();
  std::string parent = "/tmp";
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--json") {
      json = true;
    } else {
      parent = argv[i];
    }
  }
  std::string dir = parent + "/nmc-ssd-bench-XXXXXX";
  if (mkdtemp(dir.data()) == nullptr) std::exit(1);
  {
    nmc_store_config_t wanted = embedded(NMC_HEAP_HOST, 256 * MIB, 64 * KIB);
    nmc_store_t* store = create(wanted);
    nmc_tier_config_t config = NMC_TIER_CONFIG_INIT;
    config.directory = slice(dir);
    config.flags = NMC_TIER_PAUSED;
    nmc_tier_t* tier = nullptr;
    NMC_CHECK(nmc_tier_open(store, &config, &tier));
    Memory device(DEVICE, 16 * 8 * MIB);
    for (const uint64_t bytes : {256 * KIB, MIB, 8 * MIB}) {
      for (const size_t together : {size_t{1}, size_t{16}}) measure(store, tier, dir, bytes, together, device.base);
    }
    NMC_CHECK(nmc_tier_close(tier));
    NMC_CHECK(nmc_store_destroy(store));
  }
  (void)!std::system(("rm -rf " + dir).c_str());
  return 0;
}
