// A model whose layers differ, over one block KV cache: attention over all tokens, attention over a sliding window, and a
// recurrent state. Windows and states have blocks of their own, and a prefix is reused as far as all three have what comes
// next. README.md says what to look at.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include <nanomc.hpp>

namespace {

using Tokens = std::vector<uint32_t>;
constexpr uint32_t kDim = 8, kBlock = 16, kWindow = 24, kVocabulary = 1000;
constexpr uint32_t kFull = 0, kSliding = 1, kState = 2;  // groups

// ------------------------------------------------------------------------------------------------------------- model --

struct Vector {
  float at[kDim];
};

// What a layer makes of a token at its place: keys, values and inputs alike.
Vector embed(uint32_t token, size_t place, uint32_t layer) {
  Vector out;
  for (uint32_t i = 0; i < kDim; ++i) {
    out.at[i] = std::sin(static_cast<float>(token * 31 + layer * 17 + i * 7) + 0.01f * static_cast<float>(place));
  }
  return out;
}

// Attention of the last of `count` tokens over those from `first` on; `key` and `value` say where they are.
template <class Key, class Value>
Vector attend(const Vector& query, size_t first, size_t count, Key key, Value value) {
  float best = -1e30f, total = 0;
  for (size_t i = first; i < count; ++i) {
    float score = 0;
    for (uint32_t d = 0; d < kDim; ++d) score += query.at[d] * key(i).at[d];
    best = std::max(best, score);
  }
  Vector out = {};
  for (size_t i = first; i < count; ++i) {
    float score = 0;
    for (uint32_t d = 0; d < kDim; ++d) score += query.at[d] * key(i).at[d];
    const float weight = std::exp(score - best);
    total += weight;
    for (uint32_t d = 0; d < kDim; ++d) out.at[d] += weight * value(i).at[d];
  }
  for (float& x : out.at) x /= total;
  return out;
}

void recur(Vector& state, const Vector& in) {
  for (uint32_t d = 0; d < kDim; ++d) state.at[d] = 0.9f * state.at[d] + in.at[d] * (1 + 0.1f * state.at[(d + 1) % kDim]);
}

uint32_t sample(const Vector& all, const Vector& near, const Vector& state) {
  double sum = 0;
  for (uint32_t d = 0; d < kDim; ++d) sum += (all.at[d] + 2.0 * near.at[d] + 3.0 * state.at[d]) * (d + 1);
  return static_cast<uint32_t>(static_cast<int64_t>(std::fabs(sum) * 1e4)) % kVocabulary;
}

size_t window_begin(size_t count) { return count > kWindow ? count - kWindow : 0; }

// The next token without a cache.
uint32_t reference(const Tokens& tokens) {
  const size_t n = tokens.size();
  const auto key = [&](uint32_t layer) { return [&tokens, layer](size_t i) { return embed(tokens[i], i, layer); }; };
  Vector state = {};
  for (size_t i = 0; i < n; ++i) recur(state, embed(tokens[i], i, 4));
  return sample(attend(embed(tokens[n - 1], n, 5), 0, n, key(0), key(1)),
                attend(embed(tokens[n - 1], n, 6), window_begin(n), n, key(2), key(3)), state);
}

// ------------------------------------------------------------------------------------------------------------ engine --

struct Counts {
  uint64_t asked = 0, reused = 0, wrong = 0, slots_switched = 0;
};

class Engine {
 public:
  Engine() {
    nmc::KvConfig config(256);
    config.tokens_per_block(kBlock);
    const auto layer = [] { return nmc::KvGroup(1, 1, kDim).dtype(nmc::KvDtype::fp32).order(nmc::KvOrder::layer_major_nhd); };
    nmc::KvGroup groups[] = {layer(), layer().window(kWindow, 64), nmc::KvGroup::recurrent(1, sizeof(Vector), 16)};
    for (const nmc::KvGroup& group : groups) config.group(group);
    nmc::KvConfig placed(256);
    placed.tokens_per_block(kBlock);
    for (uint32_t g = 0; g < 3; ++g) {
      memory_[g].resize(nmc::KvCache::heap_bytes(config, g) / sizeof(Vector));
      placed.group(groups[g].memory(memory_[g].data(), memory_[g].size() * sizeof(Vector)));
    }
    kv_ = nmc::KvCache::create(placed);
  }

  // Opens a sequence and computes what the cache does not have of it. The state after the last full block is kept, so that
  // later prompts that begin alike can begin there: a state exists only between calls.
  nmc::KvSequence prefill(uint64_t id, const Tokens& tokens) {
    const size_t full = tokens.size() / kBlock * kBlock;
    // All of this part may come from the cache, if there is more to compute behind it.
    nmc::KvSequence seq = kv_.open(id, {tokens.data(), full}, nmc::KvOpen().match_all(full < tokens.size()));
    counts_.asked += tokens.size();
    counts_.reused += seq.hit_tokens();
    forward(seq, {tokens.begin(), tokens.begin() + static_cast<long>(full)}, seq.hit_tokens());
    if (full > 0) seq.keep_state();
    if (full < tokens.size()) {
      seq.append({tokens.data() + full, tokens.size() - full});
      forward(seq, tokens, full);
    }
    return seq;
  }

  // Computes the tokens from `computed` on; returns the next one.
  uint32_t forward(const nmc::KvSequence& seq, const Tokens& tokens, size_t computed) {
    if (tokens.empty()) return 0;
    const uint64_t id = seq.id();
    const nmc::KvCsr full = kv_.table_csr({&id, 1}, kFull), near = kv_.table_csr({&id, 1}, kSliding);
    const auto at = [&](uint32_t group, const nmc::KvCsr& table, uint32_t side, size_t i) -> Vector& {
      const size_t half = memory_[group].size() / 2;  // K, then V
      return memory_[group][side * half + static_cast<size_t>(table.indices[i / kBlock]) * kBlock + i % kBlock];
    };
    const nmc::KvStateSlots slots = kv_.state_slots({&id, 1}, kState);
    Vector state = {};
    if (slots.reads[0] >= 0) state = memory_[kState][static_cast<size_t>(slots.reads[0])];
    counts_.slots_switched += slots.reads[0] >= 0 && slots.writes[0] >= 0 && slots.reads[0] != slots.writes[0];
    for (size_t i = computed; i < tokens.size(); ++i) {
      for (uint32_t side = 0; side < 2; ++side) {
        at(kFull, full, side, i) = embed(tokens[i], i, side);
        at(kSliding, near, side, i) = embed(tokens[i], i, 2 + side);
      }
      recur(state, embed(tokens[i], i, 4));
    }
    if (computed < tokens.size()) memory_[kState][static_cast<size_t>(slots.writes[0])] = state;
    const size_t n = tokens.size();
    const uint32_t next = sample(attend(embed(tokens[n - 1], n, 5), 0, n, [&](size_t i) { return at(kFull, full, 0, i); },
                                        [&](size_t i) { return at(kFull, full, 1, i); }),
                                 attend(embed(tokens[n - 1], n, 6), window_begin(n), n,
                                        [&](size_t i) { return at(kSliding, near, 0, i); },
                                        [&](size_t i) { return at(kSliding, near, 1, i); }),
                                 state);
    counts_.wrong += next != reference(tokens);
    return next;
  }

  // Generates `count` tokens.
  void decode(const nmc::KvSequence& seq, Tokens& tokens, uint32_t next, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      seq.append(next);
      tokens.push_back(next);
      next = forward(seq, tokens, tokens.size() - 1);
    }
  }

  // Tries tokens in a fork, which shares everything and overwrites nothing; returns how many of them are as generated.
  size_t draft(const nmc::KvSequence& seq, Tokens tokens, const Tokens& guess, uint64_t id) {
    nmc::KvSequence fork = seq.fork(id);
    kv_.copy_blocks(fork.take_copies(), nullptr);
    size_t right = 0;
    for (uint32_t token : guess) {
      if (reference(tokens) != token) break;
      fork.append(token);
      tokens.push_back(token);
      forward(fork, tokens, tokens.size() - 1);
      ++right;
    }
    return right;  // the fork is aborted with the scope
  }

  nmc::KvCache& kv() { return kv_; }
  const Counts& counts() const { return counts_; }

 private:
  std::vector<Vector> memory_[3];
  nmc::KvCache kv_;
  Counts counts_;
};

Tokens text(uint32_t first, size_t count) {
  Tokens tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back((first + static_cast<uint32_t>(i) * 37) % kVocabulary);
  return tokens;
}

}  // namespace

int main() {
  std::printf("hybrid model: full attention, a window of %u tokens, a recurrent state, one cache\n", kWindow);
  Engine engine;
  // A conversation: every turn begins with all that was said before.
  Tokens said = text(1, 40);
  for (uint64_t turn = 0; turn < 3; ++turn) {
    const Tokens question = text(500 + static_cast<uint32_t>(turn) * 100, 20);
    said.insert(said.end(), question.begin(), question.end());
    nmc::KvSequence seq = engine.prefill(turn + 1, said);
    const size_t hit = seq.hit_tokens(), asked = said.size();
    engine.decode(seq, said, reference(said), 30);
    seq.close();
    std::printf("  turn %llu: %zu tokens asked, %zu of them found, 30 generated\n", static_cast<unsigned long long>(turn + 1), asked, hit);
  }
  // Others have the same system prompt of 40 tokens: 32 of them are full blocks, and the state after them was kept.
  Tokens other = text(1, 40);
  nmc::KvSequence first = engine.prefill(10, other);
  Tokens asks = text(1, 32);
  const Tokens tail = text(900, 9);
  asks.insert(asks.end(), tail.begin(), tail.end());
  nmc::KvSequence second = engine.prefill(11, asks);
  std::printf("  another question: %zu tokens asked, %llu of them found\n", asks.size(),
              static_cast<unsigned long long>(second.hit_tokens()));
  // Drafts: the first three are what the model says, the fourth is not.
  Tokens sure = asks, guess;
  for (int i = 0; i < 4; ++i) {
    guess.push_back(reference(sure));
    sure.push_back(guess.back());
  }
  guess[3] = (guess[3] + 1) % kVocabulary;
  const size_t right = engine.draft(second, asks, guess, 12);
  Tokens kept = asks;
  engine.decode(second, kept, reference(asks), 10);  // the fork left no trace
  std::printf("  drafts: %zu of 4 were right\n", right);
  first.close();
  second.close();

  const nmc_kv_group_stats_t window = engine.kv().group_stats(kSliding), states = engine.kv().group_stats(kState);
  engine.kv().audit();
  const Counts& c = engine.counts();
  std::printf("  tokens found %llu of %llu; kept for others: %llu blocks of the window, %llu states; %llu times a state was read\n"
              "  from one slot and written to another; every block is accounted for\n",
              static_cast<unsigned long long>(c.reused), static_cast<unsigned long long>(c.asked),
              static_cast<unsigned long long>(window.idle), static_cast<unsigned long long>(states.idle),
              static_cast<unsigned long long>(c.slots_switched));
  const bool met = c.wrong == 0 && c.reused > 0 && second.hit_tokens() == 32 && right == 3 && window.used == 0 && states.used == 0;
  std::printf("%s\n", met ? "hybrid model: every token as without a cache" : "hybrid model: FAILED");
  return met ? 0 : 1;
}
