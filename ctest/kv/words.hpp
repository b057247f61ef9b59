// What all KV tests begin with: a check of a status with its message, tokens, and words that depend on them.
#ifndef NMC_CTEST_KV_WORDS_HPP
#define NMC_CTEST_KV_WORDS_HPP

#include <cstdint>
#include <cstdio>
#include <vector>

#include "../support/check.h"
#include "../support/random.hpp"

#define FAILS(call, want, text)                                                                      \
  do {                                                                                               \
    if (GIVES(call, want) && !CHECK(error_mentions(text))) std::printf("     expected: %s\n", text); \
  } while (0)

namespace kv {

using Tokens = std::vector<uint32_t>;

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b + 1;
  x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9;
  return x ^ x >> 29;
}

inline Tokens numbers(uint32_t first, size_t n) {
  Tokens tokens(n);
  for (size_t i = 0; i < n; ++i) tokens[i] = first + static_cast<uint32_t>(i);
  return tokens;
}

}  // namespace kv

#endif
