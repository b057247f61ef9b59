// What the tests of the expert-parallel transport share: random cases, one step of a layer on any backend, and what it
// must give. `Memory` says where the program's buffers are: host memory here, device memory in ctest/gpu.
#ifndef NMC_CTEST_EP_CHECK_HPP
#define NMC_CTEST_EP_CHECK_HPP

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../support/random.hpp"
#include "nanomc.h"

namespace ep {

using Bytes = std::vector<unsigned char>;

// ---- numbers ----------------------------------------------------------------------------------------------------------

inline float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

inline uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_fp16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                   : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

// Rounds to nearest even; for numbers that half precision has.
inline uint16_t to_fp16(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (size < std::ldexp(1.0f, -14)) return static_cast<uint16_t>(sign | static_cast<int>(std::nearbyint(std::ldexp(size, 24))));
  int exponent;
  const float mantissa = std::frexp(size, &exponent);
  int steps = static_cast<int>(std::nearbyint(std::ldexp(mantissa, 11)));
  if (steps == 2048) steps = 1024, ++exponent;
  return static_cast<uint16_t>(sign | (exponent + 14) << 10 | (steps - 1024));
}

inline float from_e4m3(unsigned char code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(mantissa + 8), exponent - 10);
  return (code & 0x80) != 0 ? -size : size;
}

inline uint32_t element_bytes(uint32_t dtype) { return dtype == NMC_DTYPE_FP32 ? 4 : 2; }

inline float get(uint32_t dtype, const unsigned char* row, size_t at) {
  if (dtype == NMC_DTYPE_FP32) {
    float value;
    std::memcpy(&value, row + 4 * at, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, row + 2 * at, 2);
  return dtype == NMC_DTYPE_BF16 ? from_bf16(bits) : from_fp16(bits);
}

inline void put(uint32_t dtype, unsigned char* row, size_t at, float value) {
  if (dtype == NMC_DTYPE_FP32) {
    std::memcpy(row + 4 * at, &value, 4);
    return;
  }
  const uint16_t bits = dtype == NMC_DTYPE_BF16 ? to_bf16(value) : to_fp16(value);
  std::memcpy(row + 2 * at, &bits, 2);
}

// ---- cases ------------------------------------------------------------------------------------------------------------

struct Case {
  uint64_t seed = 1;
  uint32_t world = 4, t_cap = 8, hidden = 256, top_k = 4, experts = 16;
  uint32_t dtype = NMC_DTYPE_BF16, dispatch = NMC_EP_DISPATCH_SAME, weights = NMC_DTYPE_FP32;
  uint32_t max_m = 0, spill_groups = 0, sets = 1, first_phase = 0;
  bool idx_64 = false, masked = true, repeated = true;
  bool tiny = true;  // some groups of elements are; see unusual()
  int64_t deadline_ms = -1;
  uint64_t heap_offset = 0;

  nmc_ep_config_t config() const {
    nmc_ep_config_t c = NMC_EP_CONFIG_INIT;
    c.t_cap = t_cap;
    c.hidden = hidden;
    c.top_k = top_k;
    c.experts = experts;
    c.dtype = dtype;
    c.dispatch = dispatch;
    c.weights = weights;
    c.max_m = max_m;
    c.spill_groups = spill_groups;
    c.buffer_sets = sets;
    c.first_phase = first_phase;
    c.deadline_ms = deadline_ms;
    c.heap_offset = heap_offset;
    return c;
  }
  uint32_t n_local() const { return experts / world; }
  uint32_t groups() const { return n_local() + spill_groups; }
  uint32_t rows() const { return max_m != 0 ? max_m : world * t_cap; }
  uint32_t x_bytes() const { return dispatch == NMC_EP_DISPATCH_SAME ? y_bytes() : hidden; }
  uint32_t y_bytes() const { return hidden * element_bytes(dtype); }
  uint32_t scales() const { return dispatch == NMC_EP_DISPATCH_SAME ? 0 : hidden / 128; }
  uint32_t pitch() const { return (rows() + 3) / 4 * 4; }
};

// What one rank has in one step.
struct Tokens {
  uint32_t n = 0;
  Bytes x, scales, idx, weight;
  std::vector<int64_t> experts;
  std::vector<float> weights;
};

// Some groups of 128 elements are tiny (around and below the 1e-30 under which fp8 makes zeros of them, down to denormals) or
// all -0.0, and any element may be -0.0: what a conversion could get wrong.
inline float unusual(uint32_t random, size_t group, float value) {
  if (random % 61 == 0) return -0.0f;
  const float tiny[] = {1e-29f, 1.5e-30f, 9e-31f, 1e-33f, 1e-36f, 1e-38f, 1e-40f, 1e-44f, 0.0f};
  const uint64_t mixed = group * 0x9e3779b97f4a7c15u >> 40;
  return mixed % 8 == 0 ? value * tiny[mixed / 8 % 9] : value;
}

inline Tokens tokens_of(const Case& c, uint32_t rank, uint32_t step, int fixed = -1) {
  Random random(c.seed * 1000003 + step * 131 + rank);
  Tokens t;
  t.n = fixed >= 0 ? static_cast<uint32_t>(fixed) : random() % 5 == 0 ? 0 : static_cast<uint32_t>(random() % (c.t_cap + 1));
  std::normal_distribution<float> normal;
  const bool given = c.dispatch == NMC_EP_DISPATCH_FP8_GIVEN;
  t.x.resize(static_cast<size_t>(t.n) * (given ? c.hidden : c.y_bytes()));
  for (size_t i = 0; i < static_cast<size_t>(t.n) * c.hidden; ++i) {
    if (given) {
      t.x[i] = static_cast<unsigned char>(random() % 2 << 7 | random() % 0x7f);
    } else {
      const float value = normal(random);
      const uint32_t choice = static_cast<uint32_t>(random());
      put(c.dtype, t.x.data(), i, c.tiny ? unusual(choice, i / 128, value) : value);
    }
  }
  t.scales.resize(given ? static_cast<size_t>(t.n) * c.scales() * 4 : 0);
  for (size_t i = 0; i < t.scales.size() / 4; ++i) {
    const float scale = std::exp(normal(random)) / 64;  // sums stay below what fp16 has
    std::memcpy(t.scales.data() + 4 * i, &scale, 4);
  }
  for (uint32_t i = 0; i < t.n * c.top_k; ++i) {
    int64_t e = static_cast<int64_t>(random() % c.experts);
    const auto taken = [&] {
      for (uint32_t k = i / c.top_k * c.top_k; k < i; ++k) {
        if (t.experts[k] == e) return true;
      }
      return false;
    };
    if (!c.repeated) {
      while (taken()) e = (e + 1) % c.experts;
    }
    if (c.masked && random() % 7 == 0) e = -1;
    t.experts.push_back(e);
    float w = std::fabs(normal(random)) + 0.01f;
    if (c.weights == NMC_DTYPE_FP16) w = from_fp16(to_fp16(w));
    t.weights.push_back(w);
  }
  t.idx.resize(t.experts.size() * (c.idx_64 ? 8 : 4));
  t.weight.resize(t.weights.size() * (c.weights == NMC_DTYPE_FP16 ? 2 : 4));
  for (size_t i = 0; i < t.experts.size(); ++i) {
    const int32_t narrow = static_cast<int32_t>(t.experts[i]);
    if (c.idx_64) std::memcpy(t.idx.data() + 8 * i, &t.experts[i], 8);
    else std::memcpy(t.idx.data() + 4 * i, &narrow, 4);
    const uint16_t half = to_fp16(t.weights[i]);
    if (c.weights == NMC_DTYPE_FP16) std::memcpy(t.weight.data() + 2 * i, &half, 2);
    else std::memcpy(t.weight.data() + 4 * i, &t.weights[i], 4);
  }
  return t;
}

// What element `at` of a token is when it reaches its expert.
inline float received(const Case& c, const Tokens& t, uint32_t token, uint32_t at) {
  const size_t i = static_cast<size_t>(token) * c.hidden + at;
  if (c.dispatch != NMC_EP_DISPATCH_FP8_GIVEN) return get(c.dtype, t.x.data(), i);
  float scale;
  std::memcpy(&scale, t.scales.data() + 4 * (static_cast<size_t>(token) * c.scales() + at / 128), 4);
  return from_e4m3(t.x[i]) * scale;
}

// The experts of these tests: something that depends on the expert and on every element.
inline float expert(uint32_t global_expert, float value) {
  return value * (0.5f + 0.125f * static_cast<float>(global_expert % 7)) + 0.25f;
}

// ---- memory -----------------------------------------------------------------------------------------------------------

struct HostMemory {
  static void* alloc(size_t bytes) {
    void* p = std::aligned_alloc(256, (bytes + 511) / 256 * 256);
    std::memset(p, 0xff, bytes);  // NaN in every type
    return p;
  }
  static void free(void* p) { std::free(p); }
  static void up(void* to, const void* from, size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  static void down(void* to, const void* from, size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  static void poison(void* p, size_t bytes) { std::memset(p, 0xff, bytes); }
  static void wait(void*) {}
};

template <typename Memory>
class Buffer {
 public:
  explicit Buffer(size_t bytes = 0) : bytes_(bytes), p_(Memory::alloc(bytes + 16)) {}
  ~Buffer() {
    if (p_ != nullptr) Memory::free(p_);
  }
  Buffer(Buffer&& other) noexcept : bytes_(other.bytes_), p_(other.p_) { other.p_ = nullptr; }
  Buffer(const Buffer&) = delete;
  void* get() const { return p_; }
  template <typename T>
  T* as() const { return static_cast<T*>(p_); }
  void put(const Bytes& data) { Memory::up(p_, data.data(), data.size()); }
  Bytes read() const {
    Bytes out(bytes_);
    Memory::down(out.data(), p_, bytes_);
    return out;
  }
  void poison() { Memory::poison(p_, bytes_); }

 private:
  size_t bytes_;
  void* p_;
};

// ---- a step -----------------------------------------------------------------------------------------------------------

// How a result is summed; all but the first are for controls.
enum class Sum { kAsPromised, kBackwards, kFused };

// One rank's buffers; all are poisoned before each step.
template <typename Memory>
struct Rank {
  const Case& c;
  uint32_t number;
  Buffer<Memory> x, scales, idx, weight, count, out, grouped, grouped_scales, masked_m, group_expert, row_of, row_index, y;
  Tokens tokens;

  Rank(const Case& which, uint32_t rank)
      : c(which), number(rank), x(size_t{which.t_cap} * which.hidden * 4), scales(size_t{which.t_cap} * which.scales() * 4),
        idx(size_t{which.t_cap} * which.top_k * 8), weight(size_t{which.t_cap} * which.top_k * 4), count(4),
        out(size_t{which.t_cap} * which.y_bytes()), grouped(size_t{which.groups()} * which.rows() * which.x_bytes()),
        grouped_scales(size_t{which.groups()} * which.scales() * which.pitch() * 4), masked_m(which.groups() * 4),
        group_expert(which.groups() * 4), row_of(size_t{which.world} * which.t_cap * which.top_k * 4),
        row_index(size_t{which.groups()} * which.rows() * 4), y(size_t{which.groups()} * which.rows() * which.y_bytes()) {}

  void load(uint32_t step, int fixed = -1) {
    tokens = tokens_of(c, number, step, fixed);
    x.put(tokens.x);
    scales.put(tokens.scales);
    idx.put(tokens.idx);
    weight.put(tokens.weight);
    Bytes n(4);
    std::memcpy(n.data(), &tokens.n, 4);
    count.put(n);
    for (Buffer<Memory>* b : {&out, &grouped, &grouped_scales, &masked_m, &group_expert, &row_of, &row_index, &y}) b->poison();
  }

  nmc_ep_dispatch_t dispatch(uint32_t layer, bool count_on_device) const {
    nmc_ep_dispatch_t args = NMC_EP_DISPATCH_INIT;
    args.x = x.get();
    args.scales = c.scales() != 0 ? scales.template as<float>() : nullptr;
    args.topk_idx = idx.get();
    args.topk_w = weight.get();
    args.idx_is_64 = c.idx_64;
    args.layer = layer;
    args.n_tokens = count_on_device ? 0 : tokens.n;
    args.n_tokens_ptr = count_on_device ? count.template as<int32_t>() : nullptr;
    return args;
  }

  nmc_ep_grouped_t where(bool lists_only = false) const {
    nmc_ep_grouped_t g = NMC_EP_GROUPED_INIT;
    g.x = lists_only ? nullptr : grouped.get();
    g.scales = c.scales() != 0 ? grouped_scales.template as<float>() : nullptr;
    g.masked_m = masked_m.template as<int32_t>();
    g.group_expert = group_expert.template as<int32_t>();
    g.row_of = row_of.template as<int32_t>();
    g.row_index = row_index.template as<int32_t>();
    return g;
  }

  // The experts, on the host: y = expert(x) for the rows in use.
  void compute() {
    const Bytes rows = grouped.read(), factors = grouped_scales.read(), m = masked_m.read(), experts = group_expert.read();
    Bytes result(size_t{c.groups()} * c.rows() * c.y_bytes(), 0xff);
    for (uint32_t g = 0; g < c.groups(); ++g) {
      int32_t n, e;
      std::memcpy(&n, m.data() + 4 * g, 4);
      std::memcpy(&e, experts.data() + 4 * g, 4);
      for (int32_t r = 0; r < n; ++r) {
        const size_t row = size_t{g} * c.rows() + static_cast<size_t>(r);
        for (uint32_t i = 0; i < c.hidden; ++i) {
          float value;
          if (c.scales() == 0) {
            value = get_element(rows, row, i);
          } else {
            float scale;
            std::memcpy(&scale, factors.data() + 4 * ((size_t{g} * c.scales() + i / 128) * c.pitch() + static_cast<size_t>(r)), 4);
            value = from_e4m3(rows[row * c.hidden + i]) * scale;
          }
          ep::put(c.dtype, result.data() + row * c.y_bytes(), i,
                  expert(number * c.n_local() + static_cast<uint32_t>(e), value));
        }
      }
    }
    y.put(result);
  }

  // Everything that must be the same bits in every arrangement.
  Bytes digest() const {
    Bytes all;
    const auto add = [&all](const Bytes& b, size_t bytes) { all.insert(all.end(), b.begin(), b.begin() + static_cast<long>(bytes)); };
    const Bytes m = masked_m.read(), rows = grouped.read(), factors = grouped_scales.read();
    add(out.read(), size_t{tokens.n} * c.y_bytes());
    for (const Buffer<Memory>* b : {&masked_m, &group_expert, &row_of, &row_index}) {
      const Bytes data = b->read();
      add(data, data.size());
    }
    for (uint32_t g = 0; g < c.groups(); ++g) {
      int32_t n;
      std::memcpy(&n, m.data() + 4 * g, 4);
      if (n < 0 || n > static_cast<int32_t>(c.rows())) n = 0;
      const unsigned char* first = rows.data() + size_t{g} * c.rows() * c.x_bytes();
      all.insert(all.end(), first, first + static_cast<size_t>(n) * c.x_bytes());
      for (uint32_t s = 0; s < c.scales(); ++s) {
        const unsigned char* scale = factors.data() + 4 * (size_t{g} * c.scales() + s) * c.pitch();
        all.insert(all.end(), scale, scale + 4 * static_cast<size_t>(n));
      }
    }
    return all;
  }

  // FNV-1a of the digest, for comparing across processes.
  uint64_t digest_hash() const {
    uint64_t hash = 0xcbf29ce484222325;
    for (const unsigned char byte : digest()) hash = (hash ^ byte) * 0x100000001b3;
    return hash;
  }

  Bytes result() const {
    Bytes bytes = out.read();
    bytes.resize(size_t{tokens.n} * c.y_bytes());
    return bytes;
  }

  // The result to the bit: a token's rows are summed on the expert's side in the order of entries, then by their owner in
  // the order of ranks; products and sums are rounded, and each sum once more to the type of rows. Not for rows that the
  // library quantises, whose values the test does not know.
  Bytes exact(Sum how = Sum::kAsPromised) const {
    Bytes all(size_t{tokens.n} * c.y_bytes(), 0xff);
    const auto rounded = [this](float value) {
      unsigned char bytes[4];
      ep::put(c.dtype, bytes, 0, value);
      return ep::get(c.dtype, bytes, 0);
    };
    for (uint32_t t = 0; t < tokens.n; ++t) {
      for (uint32_t i = 0; i < c.hidden; ++i) {
        const float value = received(c, tokens, t, i);
        float sum = 0;
        for (uint32_t n = 0; n < c.world; ++n) {
          const uint32_t r = how == Sum::kBackwards ? c.world - 1 - n : n;
          float part = 0;
          for (uint32_t k = 0; k < c.top_k; ++k) {
            const int64_t e = tokens.experts[t * c.top_k + k];
            if (e < 0 || e / c.n_local() != r) continue;
            const float weight = tokens.weights[t * c.top_k + k], y = rounded(expert(static_cast<uint32_t>(e), value));
            if (how == Sum::kFused) {
              part = std::fma(weight, y, part);
            } else {
              const volatile float product = weight * y;  // volatile: no compiler makes one rounding of two
              part += product;
            }
          }
          sum += rounded(part);
        }
        ep::put(c.dtype, all.data() + size_t{t} * c.y_bytes(), i, sum);
      }
    }
    return all;
  }

  // Relative L2 distance of the result from one in double precision. Rows that did not fit are left out of both.
  double distance() const {
    const Bytes result = out.read();
    double difference = 0, size = 0;
    for (uint32_t t = 0; t < tokens.n; ++t) {
      for (uint32_t i = 0; i < c.hidden; ++i) {
        double want = 0;
        for (uint32_t k = 0; k < c.top_k; ++k) {
          const int64_t e = tokens.experts[t * c.top_k + k];
          if (e < 0) continue;
          want += static_cast<double>(tokens.weights[t * c.top_k + k]) *
                  (static_cast<double>(received(c, tokens, t, i)) * (0.5 + 0.125 * static_cast<double>(e % 7)) + 0.25);
        }
        const double got = ep::get(c.dtype, result.data() + size_t{t} * c.y_bytes(), i);
        difference += (got - want) * (got - want);
        size += want * want;
      }
    }
    if (difference != difference) return 1e9;
    return size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
  }

 private:
  float get_element(const Bytes& rows, size_t row, uint32_t i) const { return ep::get(c.dtype, rows.data() + row * c.x_bytes(), i); }
};

// How far a result may be from the exact one: three roundings, to the expert's result and after each sum, all to one side
// if a single element outweighs the others; fp8 rounds once more, and coarsely.
inline double tolerance(const Case& c) {
  if (c.dispatch == NMC_EP_DISPATCH_FP8) return 4e-2;
  if (c.dtype == NMC_DTYPE_FP32) return 1e-6;
  return c.dtype == NMC_DTYPE_FP16 ? 1.6e-3 : 6e-3;
}

// A random case.
inline Case random_case(uint64_t seed, uint32_t most_tokens = 40) {
  Random random(seed);
  Case c;
  c.seed = seed;
  c.world = 1 + random() % 8;
  c.t_cap = 1 + static_cast<uint32_t>(random() % most_tokens);
  c.hidden = 128 * (1 + random() % 4);
  c.top_k = 1 + random() % 8;
  c.experts = c.world * (2 + random() % 8);
  if (c.experts < c.top_k) c.experts = c.world * c.top_k;
  const uint32_t dtypes[] = {NMC_DTYPE_BF16, NMC_DTYPE_FP16, NMC_DTYPE_FP32};
  c.dtype = dtypes[random() % 3];
  c.dispatch = random() % 3;
  c.weights = random() % 2 == 0 ? NMC_DTYPE_FP32 : NMC_DTYPE_FP16;
  c.idx_64 = random() % 2 != 0;
  c.sets = 1 + random() % 3;
  if (random() % 3 == 0) {
    // No group can get more rows than there are slots.
    c.max_m = std::min<uint32_t>(1 + random() % 8, c.world * c.t_cap * c.top_k);
    c.spill_groups = c.world * c.t_cap * c.top_k;  // room for all
  } else if (c.repeated) {
    c.max_m = c.world * c.t_cap * c.top_k;  // a token may name an expert more than once
  }
  return c;
}

}  // namespace ep

#endif
