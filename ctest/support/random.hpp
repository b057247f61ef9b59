// The random numbers of all tests: a seed that failed is printed, and gives the same ones again.
#ifndef NMC_CTEST_SUPPORT_RANDOM_HPP
#define NMC_CTEST_SUPPORT_RANDOM_HPP

#include <cstdint>

inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Small, fast and the same everywhere. Also a generator for the standard library's algorithms.
struct Random {
  using result_type = uint64_t;
  uint64_t state;
  explicit Random(uint64_t seed) : state(mix(seed)) {}
  uint64_t next() { return mix(state += 0x9e3779b97f4a7c15u); }
  uint64_t below(uint64_t n) { return n == 0 ? 0 : next() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }

  uint64_t operator()() { return next(); }
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }
};

#endif
