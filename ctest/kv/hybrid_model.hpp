// The model of the hybrid tests, without a cache: full attention, a sliding window and a recurrent state.
#ifndef NMC_CTEST_KV_HYBRID_MODEL_HPP
#define NMC_CTEST_KV_HYBRID_MODEL_HPP

#include "words.hpp"

namespace kv {

constexpr uint32_t kSize = 4;                            // tokens of a block
constexpr uint32_t kWindow = 6;                          // of the second group
constexpr uint32_t kFull = 0, kSliding = 1, kState = 2;  // groups

// What it makes of a prompt: each layer adds up words of the tokens that it sees.
inline uint64_t reference(const Tokens& tokens) {
  uint64_t all = 0, near = 0, state = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    all += mix(tokens[i], i);
    if (i + kWindow >= tokens.size() + 1) near += mix(tokens[i], i + 1000);
    state = mix(state, tokens[i]);
  }
  return mix(mix(all, near), state);
}

}  // namespace kv

#endif
