// What the tests of the store share: small embedded stores, patterns, and buffers with red zones.
#ifndef NMC_CTEST_SUPPORT_CHECK_HPP
#define NMC_CTEST_SUPPORT_CHECK_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "range.hpp"

constexpr uint32_t kPage = 4096;

inline nmc_slice_t bytes_of(std::string_view text) { return {text.data(), text.size()}; }

// Byte `at` of the value with this seed: bits of a word that grows by kStep from one byte to the next of a page.
constexpr uint64_t kStep = 2654435761u;
inline uint64_t pattern_word(uint64_t seed, size_t at) { return at * kStep + seed * 40503u + (at >> 12); }
inline unsigned char pattern(uint64_t seed, size_t at) { return static_cast<unsigned char>(pattern_word(seed, at) >> 7); }
inline std::string value_of(uint64_t seed, size_t bytes) {
  std::string value(bytes, '\0');
  char* to = value.data();
  // Without a call for each byte: valgrind is done with long values in a second.
  for (size_t page = 0; page < bytes; page += 4096) {
    uint64_t word = pattern_word(seed, page);
    for (char* end = to + std::min<size_t>(bytes - page, 4096); to != end; word += kStep) *to++ = static_cast<char>(word >> 7);
  }
  return value;
}

// Memory of exactly `size` bytes, unaligned on purpose, between red zones that nobody may write to.
class Guarded {
 public:
  explicit Guarded(size_t size) : size_(size), all_(size + 2 * kZone, static_cast<char>(kRed)) {}
  char* data() { return all_.data() + kZone; }
  size_t size() const { return size_; }
  std::string_view text() const { return {all_.data() + kZone, size_}; }
  bool zones_intact() const {
    for (size_t i = 0; i < kZone; ++i) {
      if (all_[i] != static_cast<char>(kRed) || all_[kZone + size_ + i] != static_cast<char>(kRed)) return false;
    }
    return true;
  }
  // Nothing was written into it at all.
  bool untouched() const { return text().find_first_not_of(static_cast<char>(kRed)) == std::string_view::npos; }

 private:
  static constexpr unsigned char kRed = 0xa5;
  static constexpr size_t kZone = 67;
  size_t size_;
  std::string all_;
};

struct StoreSetup {
  uint64_t pages = 64;
  uint32_t ranks = 1;
  uint32_t max_objects = 0;
  uint64_t key_slab_bytes = 0;
  uint32_t pin_slots = 0;
  uint32_t eviction = NMC_EVICT_FIFO;
  uint32_t flags = 0;
  int32_t watchdog_ms = -1;
  uint32_t page_bytes = kPage;
};

inline nmc_store_config_t store_config(const StoreSetup& setup) {
  nmc_store_config_t config = NMC_STORE_CONFIG_INIT;
  config.heap_bytes = setup.pages * setup.page_bytes;
  config.page_bytes = setup.page_bytes;
  config.world_size = setup.ranks;
  config.max_objects = setup.max_objects;
  config.key_slab_bytes = setup.key_slab_bytes;
  config.pin_slots = setup.pin_slots;
  config.eviction = setup.eviction;
  config.flags = setup.flags;
  config.watchdog_ms = setup.watchdog_ms;
  return config;
}

// A store that is destroyed at the end of the case.
struct Embedded {
  nmc_store_t* store = nullptr;
  explicit Embedded(const StoreSetup& setup = {}) {
    const nmc_store_config_t config = store_config(setup);
    REQUIRE(OK(nmc_store_create(nullptr, &config, &store)));
  }
  ~Embedded() { OK(nmc_store_destroy(store)); }
  Embedded(const Embedded&) = delete;
  Embedded& operator=(const Embedded&) = delete;
  operator nmc_store_t*() const { return store; }
};

inline nmc_status_t put(nmc_store_t* store, std::string_view key, std::string_view value,
                        const nmc_put_options_t* options = nullptr) {
  return nmc_store_put(store, bytes_of(key), value.data(), value.size(), options);
}

// The value of a key; "<status>" if there is none.
inline std::string get(nmc_store_t* store, std::string_view key) {
  size_t size = 0;
  nmc_status_t status = nmc_store_get(store, bytes_of(key), nullptr, 0, &size);
  if (status != NMC_OK) return std::string("<") + nmc_status_name(status) + ">";
  Guarded buffer(size);
  size_t again = 0;
  status = nmc_store_get(store, bytes_of(key), buffer.data(), size, &again);
  CHECK(status == NMC_OK && again == size && buffer.zones_intact());
  return std::string(buffer.text());
}

inline uint32_t state_of(nmc_store_t* store, std::string_view key) {
  uint32_t state = 77;
  OK(nmc_store_exists(store, bytes_of(key), &state));
  return state;
}

inline nmc_store_stats_t stats_of(nmc_store_t* store) {
  nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
  OK(nmc_store_stats(store, nullptr, 0, &stats));
  return stats;
}

#endif
