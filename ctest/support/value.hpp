// Values that say what they are: every word of a value is made of its stamp and its place, so that a byte of another
// value, or of another time, shows.
#ifndef NMC_CTEST_SUPPORT_VALUE_HPP
#define NMC_CTEST_SUPPORT_VALUE_HPP

#include <nanomc.h>

#include "random.hpp"
#include "range.hpp"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

inline uint64_t word_of(uint64_t stamp, uint64_t place) { return (stamp + 1) * 0x9e3779b97f4a7c15u ^ (place * 0xff51afd7ed558ccdu); }

// The bytes from `offset` on of the value with this stamp.
inline void make_value(uint64_t stamp, uint64_t offset, void* to, uint64_t bytes) {
  unsigned char* at = static_cast<unsigned char*>(to);
  while (bytes > 0) {
    const uint64_t word = word_of(stamp, offset / 8), skip = offset % 8;
    const uint64_t step = bytes < 8 - skip ? bytes : 8 - skip;
    std::memcpy(at, reinterpret_cast<const unsigned char*>(&word) + skip, step);
    at += step;
    offset += step;
    bytes -= step;
  }
}

// All of a value.
inline std::string value_of(uint64_t stamp, size_t size) {
  std::string value(size, ' ');
  make_value(stamp, 0, value.data(), size);
  return value;
}

// Whether they are those bytes.
inline bool is_value(uint64_t stamp, uint64_t offset, const void* from, uint64_t bytes) {
  const unsigned char* at = static_cast<const unsigned char*>(from);
  while (bytes > 0) {
    const uint64_t word = word_of(stamp, offset / 8), skip = offset % 8;
    const uint64_t step = bytes < 8 - skip ? bytes : 8 - skip;
    if (std::memcmp(at, reinterpret_cast<const unsigned char*>(&word) + skip, step) != 0) return false;
    at += step;
    offset += step;
    bytes -= step;
  }
  return true;
}

inline nmc_slice_t slice(const std::string& text) { return nmc_slice_t{text.data(), text.size()}; }

// Whether a pinned value is the one with this stamp, wherever its extents are; only the first `bytes` bytes.
inline bool view_is(nmc_store_t* store, const nmc_view_t& view, uint64_t stamp, uint64_t bytes) {
  if (bytes > view.bytes) return false;
  if (view.n_extents <= 1) return is_value(stamp, 0, view.data, bytes);
  std::vector<nmc_extent_t> extents(view.n_extents);
  size_t n = 0;
  if (nmc_store_view_extents(store, &view, extents.data(), extents.size(), &n) != NMC_OK) return false;
  uint64_t offset = 0;
  for (size_t i = 0; i < n && offset < bytes; ++i) {
    const uint64_t part = extents[i].bytes < bytes - offset ? extents[i].bytes : bytes - offset;
    if (!is_value(stamp, offset, extents[i].ptr, part)) return false;
    offset += part;
  }
  return offset == bytes;
}

// Stores the value with this stamp where a plan says.
inline bool fill_plan(nmc_store_t* store, const nmc_write_plan_t& plan, uint64_t stamp) {
  std::vector<nmc_extent_t> extents(plan.n_extents);
  size_t n = 0;
  if (plan.n_extents > 0 && nmc_store_plan_extents(store, &plan, extents.data(), extents.size(), &n) != NMC_OK) return false;
  uint64_t offset = 0;
  for (size_t i = 0; i < n; ++i) {
    make_value(stamp, offset, extents[i].ptr, extents[i].bytes);
    offset += extents[i].bytes;
  }
  return offset == plan.bytes_total;
}

#endif
