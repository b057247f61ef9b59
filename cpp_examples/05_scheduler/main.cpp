// Continuous batching over a block KV cache that is too small for its load: requests are admitted while there is room,
// grow a token a step, and when there is no room the youngest is preempted. Its blocks go to an object store, and when it
// is its turn again they come back instead of being computed anew. README.md says what to look at.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nanomc.hpp>

namespace {

using Tokens = std::vector<uint32_t>;

// ----------------------------------------------------------------------------------------------- a model of a model --
// What it keeps for a token depends on all tokens before, and the next token on everything that it keeps: a block that is
// missing, of somebody else, or not written changes all that follows.

constexpr uint32_t kLayers = 2, kHeads = 2, kDim = 4, kBlockTokens = 8, kVocabulary = 50000;

uint64_t mix(uint64_t state, uint64_t word) {
  state = (state ^ word) * 0x9e3779b97f4a7c15u;
  return state ^ state >> 29;
}

// The element that a layer keeps for a token, given the state after it.
float element(uint64_t state, uint32_t layer, uint32_t side, uint32_t head, uint32_t dim) {
  return static_cast<float>(mix(state, ((layer * 2 + side) * kHeads + head) * kDim + dim) >> 44);
}

constexpr uint64_t kStart = 1;

// The model without a cache: the tokens that follow a prompt.
Tokens reference(const Tokens& prompt, uint32_t count) {
  Tokens all = prompt;
  while (all.size() < prompt.size() + count) {
    uint64_t state = kStart, sum = 0;
    for (uint32_t token : all) {
      state = mix(state, token);
      for (uint32_t i = 0; i < kLayers * 2 * kHeads * kDim; ++i) {
        const uint32_t dim = i % kDim, head = i / kDim % kHeads, side = i / (kDim * kHeads) % 2;
        sum = mix(sum, static_cast<uint64_t>(element(state, i / (kDim * kHeads * 2), side, head, dim)));
      }
    }
    all.push_back(static_cast<uint32_t>(sum % kVocabulary));
  }
  return Tokens(all.begin() + static_cast<long>(prompt.size()), all.end());
}

struct Request {
  uint64_t id = 0;
  Tokens tokens;          // the prompt, and what was generated
  size_t prompt = 0;      // tokens of the prompt
  size_t wanted = 0;      // tokens to generate
  size_t computed = 0;    // leading tokens whose K and V are in the blocks
  nmc::KvSequence blocks;

  size_t generated() const { return tokens.size() - prompt; }
};

struct Counts {
  uint64_t steps = 0, preempted = 0, from_cache = 0, from_store = 0, computed = 0, most_running = 0;
};

class Engine {
 public:
  Engine(uint32_t blocks, uint32_t most_running, bool offload) : most_running_(most_running), offload_(offload) {
    nmc::KvConfig config(blocks);
    config.tokens_per_block(kBlockTokens);
    nmc::KvGroup group(kLayers, kHeads, kDim);
    group.dtype(nmc::KvDtype::fp32);
    arena_.assign(nmc::KvCache::heap_bytes(nmc::KvConfig(config).group(group), 0) / sizeof(float), -1.0f);
    config.group(group.memory(arena_.data(), arena_.size() * sizeof(float)));
    kv_ = nmc::KvCache::create(config);
    if (!offload_) return;
    store_ = nmc::Store::embedded(nmc::StoreConfig().heap_bytes(8 << 20).page_bytes(4096).checksums());
    kv_.attach(store_);
  }

  void submit(uint64_t id, Tokens prompt, size_t wanted) {
    auto request = std::make_unique<Request>();
    request->id = id;
    request->prompt = prompt.size();
    request->tokens = std::move(prompt);
    request->wanted = wanted;
    waiting_.push_back(std::move(request));
  }

  bool busy() const { return !waiting_.empty() || !running_.empty(); }
  std::vector<std::unique_ptr<Request>>& finished() { return finished_; }
  const Counts& counts() const { return counts_; }
  nmc::KvCache& kv() { return kv_; }

  // One step: whoever fits comes in, everybody gets a token, whoever has all goes, the others get room for theirs.
  void step() {
    ++counts_.steps;
    while (running_.size() < most_running_ && !waiting_.empty() && admit(*waiting_.front())) {
      running_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    counts_.most_running = std::max<uint64_t>(counts_.most_running, running_.size());
    for (auto& request : running_) {
      request->tokens.push_back(forward(*request));
      if (request->generated() < request->wanted) continue;
      request->blocks.close();  // all that it has is computed; its full blocks stay, for who begins in the same way
      finished_.push_back(std::move(request));
    }
    running_.erase(std::remove(running_.begin(), running_.end(), nullptr), running_.end());
    grow();
  }

  void show() {
    const nmc_kv_stats_t stats = kv_.stats();
    std::printf("step %4llu: %2zu running, %2zu waiting, %2zu done; blocks: %3llu held, %3llu cached, %3llu free\n",
                static_cast<unsigned long long>(counts_.steps), running_.size(), waiting_.size(), finished_.size(),
                static_cast<unsigned long long>(stats.used), static_cast<unsigned long long>(stats.idle),
                static_cast<unsigned long long>(stats.free));
    const std::string text = kv_.dump(64), picture = text.substr(text.find("KV blocks:"));
    std::printf("%s", picture.substr(picture.find('\n', picture.find('\n') + 1) + 1).c_str());
  }

 private:
  // Gets blocks for a request: those that the cache has, those that the store has, and room for the rest.
  bool admit(Request& request) {
    nmc::Result<nmc::KvSequence> opened = kv_.nothrow()->open(request.id, request.tokens);
    if (!opened) {
      if (opened.status() == NMC_ERR_NO_SPACE && !running_.empty()) return false;
      opened.value();  // it can never fit, or something is wrong: throws
    }
    request.blocks = std::move(opened.value());
    request.computed = request.blocks.hit_tokens();
    counts_.from_cache += request.computed;
    if (offload_) {
      if (const std::optional<nmc::KvOnboard> fetch = request.blocks.onboard()) {
        finish(fetch->ticket);  // an engine would go on with others, and look again in the next step
        counts_.from_store += fetch->tokens;
        request.computed = request.blocks.info().computed_tokens;
      }
    }
    return true;
  }

  // The forward pass: keeps K and V of every token that has none, and finds the next token from all that is kept.
  uint32_t forward(Request& request) {
    uint64_t state = kStart, sum = 0;
    for (size_t at = 0; at < request.tokens.size(); ++at) {
      state = mix(state, request.tokens[at]);
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (uint32_t side = 0; side < 2; ++side) {
          for (uint32_t head = 0; head < kHeads; ++head) {
            const nmc::KvSide which = side == 0 ? nmc::KvSide::k : nmc::KvSide::v;
            auto* vector = static_cast<float*>(request.blocks.token_address(at, layer, which, head));
            for (uint32_t dim = 0; dim < kDim; ++dim) {
              if (at >= request.computed) vector[dim] = element(state, layer, side, head, dim);
              sum = mix(sum, static_cast<uint64_t>(vector[dim]));
            }
          }
        }
      }
    }
    counts_.computed += request.tokens.size() - request.computed;
    request.computed = request.tokens.size();
    return static_cast<uint32_t>(sum % kVocabulary);
  }

  // Everybody gets room for the new token. Who finds none waits while the youngest is preempted.
  void grow() {
    std::vector<uint64_t> ids;
    std::vector<uint32_t> tokens;
    for (auto& request : running_) {
      ids.push_back(request->id);
      tokens.push_back(request->tokens.back());
    }
    std::vector<nmc_status_t> statuses(ids.size());
    const nmc::Result<void> grown = kv_.nothrow()->append_batch(ids, tokens, statuses);
    if (grown) return;
    for (size_t i = 0; i < running_.size(); ++i) {
      if (statuses[i] == NMC_OK) continue;
      // The last one in goes first; it may be this one.
      while (i < running_.size()) {
        const nmc::Result<void> again = running_[i]->blocks.nothrow()->append(running_[i]->tokens.back());
        if (again) break;
        if (again.status() != NMC_ERR_NO_SPACE) again.value();
        preempt();
      }
    }
  }

  void preempt() {
    std::unique_ptr<Request> request = std::move(running_.back());
    running_.pop_back();
    ++counts_.preempted;
    // Its last token is not computed yet, so it is closed as an abort: only what is committed stays.
    request->blocks.commit(request->computed);
    if (offload_) finish(request->blocks.offload(request->computed));
    request->blocks.abort();
    request->computed = 0;
    if (offload_) kv_.clear();  // for the show: without it most of the blocks would still be in the cache
    waiting_.push_front(std::move(request));
  }

  // Waits for the end of a transfer, however long it takes.
  void finish(uint64_t ticket) {
    while (!kv_.wait(ticket)) {
    }
  }

  uint32_t most_running_;
  bool offload_;
  std::vector<float> arena_;
  nmc::Store store_;
  nmc::KvCache kv_;
  std::deque<std::unique_ptr<Request>> waiting_;
  std::vector<std::unique_ptr<Request>> running_, finished_;
  Counts counts_;
};

Tokens prompt_of(uint64_t number) {
  // Three system prompts, and a question of its own length behind each.
  Tokens tokens;
  for (uint32_t at = 0; at < 40; ++at) tokens.push_back(1000 * static_cast<uint32_t>(number % 3) + at);
  for (uint32_t at = 0; at < 5 + number * 7 % 30; ++at) tokens.push_back(static_cast<uint32_t>(number) * 100 + at);
  return tokens;
}

int run(bool offload, bool quiet) {
  constexpr uint64_t kRequests = 24;
  Engine engine(/*blocks=*/96, /*most_running=*/12, offload);
  for (uint64_t number = 0; number < kRequests; ++number) {
    engine.submit(number, prompt_of(number), 20 + number * 13 % 60);
  }
  while (engine.busy()) {
    engine.step();
    if (!quiet && engine.counts().steps % 25 == 1) engine.show();
    if (engine.counts().steps > 100000) return std::fprintf(stderr, "it does not end\n"), 1;
  }
  uint64_t wrong = 0;
  for (auto& request : engine.finished()) {
    const Tokens prompt(request->tokens.begin(), request->tokens.begin() + static_cast<long>(request->prompt));
    const Tokens got(request->tokens.begin() + static_cast<long>(request->prompt), request->tokens.end());
    if (got != reference(prompt, static_cast<uint32_t>(request->wanted))) ++wrong;
  }
  engine.kv().audit();
  const nmc_kv_stats_t stats = engine.kv().stats();
  const Counts& c = engine.counts();
  auto n = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf("%s: %llu requests in %llu steps, up to %llu at once; %llu preemptions\n",
              offload ? "with a store" : "without a store", n(engine.finished().size()), n(c.steps), n(c.most_running),
              n(c.preempted));
  std::printf("  tokens computed %llu, found in the cache %llu, fetched from the store %llu\n", n(c.computed),
              n(c.from_cache), n(c.from_store));
  std::printf("  %llu differ from the model without a cache; audit clean; %llu blocks held at the end\n", n(wrong),
              n(stats.used));
  const bool met = c.preempted > 0 && c.from_cache > 0 && (!offload || c.from_store > 0);
  if (!met) std::fprintf(stderr, "the load was too small to show anything\n");
  return wrong == 0 && stats.used == 0 && met && engine.finished().size() == kRequests ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const bool quiet = argc > 1 && std::strcmp(argv[1], "--quiet") == 0;
  try {
    std::printf("A scheduler with 96 blocks of %u tokens. The map: . free, X held, c cached.\n", kBlockTokens);
    const int with = run(true, quiet);
    const int without = run(false, true);
    return with != 0 ? with : without;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
