// What the tests of the SSD tier share: a directory of the case's own, a tier that writes only when it is told to, and calls in a line.
#ifndef NMC_CTEST_SUPPORT_TIER_CHECK_HPP
#define NMC_CTEST_SUPPORT_TIER_CHECK_HPP

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "store_check.hpp"

// A directory that is not there yet, inside one that goes with the case.
struct TierDir {
  std::string outside;
  std::string path;
  TierDir() {
    char name[] = "/tmp/nmc-tier-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    outside = name;
    path = outside + "/tier";
  }
  ~TierDir() {
    std::error_code ignored;
    std::filesystem::remove_all(outside, ignored);
  }
  TierDir(const TierDir&) = delete;
  TierDir& operator=(const TierDir&) = delete;
};

// A tier that writes nothing by itself, so that a test knows what is where.
inline nmc_tier_config_t tier_config(const std::string& path) {
  nmc_tier_config_t config = NMC_TIER_CONFIG_INIT;
  config.directory = nmc_slice_t{path.data(), path.size()};
  config.max_objects = 1 << 14;
  config.flags = NMC_TIER_PAUSED;
  return config;
}

// A tier that is closed at the end of the case, if it was not before.
struct OpenTier {
  nmc_tier_t* tier = nullptr;
  OpenTier(nmc_store_t* store, const std::string& path) : OpenTier(store, tier_config(path)) {}
  OpenTier(nmc_store_t* store, const nmc_tier_config_t& config) { REQUIRE(OK(nmc_tier_open(store, &config, &tier))); }
  ~OpenTier() { close(); }
  OpenTier(const OpenTier&) = delete;
  OpenTier& operator=(const OpenTier&) = delete;
  operator nmc_tier_t*() const { return tier; }
  void close() {
    OK(nmc_tier_close(tier));
    tier = nullptr;
  }
};

// Everything that is in memory is written; how much was not on disk yet.
inline uint64_t offload(nmc_tier_t* tier) {
  uint64_t written = UINT64_MAX;
  OK(nmc_tier_offload(tier, nullptr, 0, &written));
  return written;
}

// Everything leaves the memory of this rank.
inline void evict(nmc_store_t* store, int32_t rank = 0) { OK(nmc_store_evict_until_below(store, rank, 0)); }

inline nmc_tier_stats_t tier_stats(nmc_tier_t* tier) {
  nmc_tier_stats_t stats = NMC_TIER_STATS_INIT;
  OK(nmc_tier_stats(tier, &stats));
  return stats;
}

// What a scan finds: "namespace/key" and the bytes of each.
inline std::map<std::string, uint64_t> scanned(nmc_tier_t* tier) {
  std::map<std::string, uint64_t> found;
  const auto each = [](void* user, const nmc_tier_entry_t* entry) -> int32_t {
    CHECK(entry->struct_size == sizeof *entry && entry->epoch > 0);
    const auto text = [](const nmc_slice_t& s) { return std::string(static_cast<const char*>(s.ptr), s.len); };
    auto& all = *static_cast<std::map<std::string, uint64_t>*>(user);
    CHECK(all.emplace(text(entry->namespace_name) + "/" + text(entry->key), entry->bytes).second);
    return 1;
  };
  OK(nmc_tier_scan(tier, each, &found));
  return found;
}

inline nmc_tier_verified_t verified(nmc_tier_t* tier) {
  nmc_tier_verified_t found = NMC_TIER_VERIFIED_INIT;
  OK(nmc_tier_verify(tier, nullptr, nullptr, &found));
  return found;
}

// Writes over every copy of a value in the files of a directory.
inline size_t damaged(const std::string& path, const std::string& value) {
  size_t found = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const size_t at = bytes.find(value);
    if (at == std::string::npos) continue;
    file.clear();
    file.seekp(static_cast<std::streamoff>(at));
    file << "damage" << std::flush;
    found += file.good();
  }
  return found;
}

#endif
