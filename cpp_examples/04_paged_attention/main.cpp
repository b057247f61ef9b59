// Attention over a block KV cache: a small transformer generates text, keeps K and V in the blocks of an nmc::KvCache, reuses
// the prefix of a prompt that it has seen, and forks a sequence into several continuations. The results are compared with
// the same model without any cache. README.md says what to look at.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>

#include "device.hpp"

namespace {

using Tokens = std::vector<uint32_t>;
using Row = std::vector<float>;

// ----------------------------------------------------------------------------------------------------------- CPU --

// Softmax over one token after the other: the sum and the result are scaled whenever a larger score comes.
struct Online {
  float best = -std::numeric_limits<float>::infinity(), sum = 0;

  void add(float score, const float* value, int64_t stride, uint32_t dim, float* out) {
    const float top = std::max(best, score);
    const float old = std::exp(best - top), now = std::exp(score - top);
    sum = sum * old + now;
    for (uint32_t d = 0; d < dim; ++d) out[d] = out[d] * old + now * value[d * stride];
    best = top;
  }
};

class Cpu : public Device {
 public:
  void* allocate(size_t bytes) override {
    memory_.assign(bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN());  // what was not written shows
    return memory_.data();
  }
  void store(const nmc_kv_view_t& view, const std::vector<int64_t>& slots, const std::vector<float>& rows) override {
    for (size_t i = 0; i < slots.size(); ++i) {
      for (int64_t h = 0; h < view.shape[1]; ++h) {
        float* to = at(view, slots[i] / view.shape[2], h, slots[i] % view.shape[2]);
        const float* from = rows.data() + (static_cast<int64_t>(i) * view.shape[1] + h) * view.shape[3];
        std::copy(from, from + view.shape[3], to);
      }
    }
  }
  void attend(const nmc_kv_view_t& k, const nmc_kv_view_t& v, const Batch& batch, const Shape& shape,
              const std::vector<float>& q, std::vector<float>& out) override {
    const float scale = 1 / std::sqrt(static_cast<float>(shape.dim));
    out.assign(q.size(), 0);
    for (size_t i = 0; i < batch.lengths.size(); ++i) {
      for (uint32_t head = 0; head < shape.heads; ++head) {
        const float* query = q.data() + (i * shape.heads + head) * shape.dim;
        float* result = out.data() + (i * shape.heads + head) * shape.dim;
        const int64_t kv_head = head / (shape.heads / shape.kv_heads);
        Online softmax;
        for (int64_t t = 0; t < batch.lengths[i]; ++t) {
          const int64_t number = t / shape.block_tokens, place = t % shape.block_tokens;
          const int64_t block = batch.table == nullptr ? number : batch.table[i * batch.width + static_cast<size_t>(number)];
          const float* key = at(k, block, kv_head, place);
          float score = 0;
          for (uint32_t d = 0; d < shape.dim; ++d) score += query[d] * key[d * k.strides[3]];
          softmax.add(score * scale, at(v, block, kv_head, place), v.strides[3], shape.dim, result);
        }
        for (uint32_t d = 0; d < shape.dim; ++d) result[d] /= softmax.sum;
      }
    }
  }
  void copy(const nmc_kv_view_t& view, nmc_kv_copy_t blocks) override {
    for (int64_t h = 0; h < view.shape[1]; ++h) {
      for (int64_t t = 0; t < view.shape[2]; ++t) {
        std::copy_n(at(view, blocks.from, h, t), view.shape[3], at(view, blocks.to, h, t));
      }
    }
  }

 private:
  static float* at(const nmc_kv_view_t& view, int64_t block, int64_t head, int64_t place) {
    return static_cast<float*>(view.data) + block * view.strides[0] + head * view.strides[1] + place * view.strides[2];
  }
  std::vector<float> memory_;
};

// --------------------------------------------------------------------------------------------------------- model --

// A transformer without its MLPs: embedding, attention layers with residuals, and the embedding again for the scores.
class Model {
 public:
  static constexpr uint32_t kVocabulary = 512;
  explicit Model(const Shape& s) : shape(s), hidden(s.heads * s.dim), kv(s.kv_heads * s.dim) {
    std::mt19937 random(7);
    const auto matrix = [&](size_t n, float size) {
      std::normal_distribution<float> normal(0, size);
      std::vector<float> values(n);
      for (float& value : values) value = normal(random);
      return values;
    };
    const float size = 1 / std::sqrt(static_cast<float>(hidden));
    embedding_ = matrix(size_t{kVocabulary} * hidden, 1);
    for (uint32_t l = 0; l < s.layers; ++l) {
      wq_.push_back(matrix(size_t{hidden} * hidden, size * 2));
      wk_.push_back(matrix(size_t{kv} * hidden, size * 2));
      wv_.push_back(matrix(size_t{kv} * hidden, size * 2));
      wo_.push_back(matrix(size_t{hidden} * hidden, size * 2));
    }
  }
  Row embed(uint32_t token, uint32_t position) const {
    Row x(embedding_.begin() + static_cast<long>(size_t{token} * hidden), embedding_.begin() + static_cast<long>(size_t{token + 1} * hidden));
    for (uint32_t i = 0; i < hidden; ++i) {
      x[i] += std::sin(static_cast<float>(position) * std::pow(0.01f, static_cast<float>(i) / static_cast<float>(hidden)));
    }
    return x;
  }
  Row q(uint32_t layer, const Row& x) const { return times(wq_[layer], x); }
  Row k(uint32_t layer, const Row& x) const { return times(wk_[layer], x); }
  Row v(uint32_t layer, const Row& x) const { return times(wv_[layer], x); }
  void add(uint32_t layer, const float* attended, Row& x) const {
    const Row more = times(wo_[layer], Row(attended, attended + hidden));
    float square = 0;
    for (uint32_t i = 0; i < hidden; ++i) x[i] += more[i];
    for (const float value : x) square += value * value;
    const float norm = std::sqrt(square / static_cast<float>(hidden)) + 1e-6f;
    for (float& value : x) value /= norm;
  }
  Row scores(const Row& x) const { return times(embedding_, x); }

  const Shape shape;
  const uint32_t hidden, kv;

 private:
  static Row times(const std::vector<float>& matrix, const Row& x) {
    Row y(matrix.size() / x.size());
    for (size_t i = 0; i < y.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) y[i] += matrix[i * x.size() + j] * x[j];
    }
    return y;
  }
  std::vector<float> embedding_;
  std::vector<std::vector<float>> wq_, wk_, wv_, wo_;
};

// The number of the `rank`th best score, the best being 0.
uint32_t choice(const Row& scores, size_t rank = 0) {
  std::vector<uint32_t> order(scores.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::nth_element(order.begin(), order.begin() + static_cast<long>(rank), order.end(),
                   [&](uint32_t a, uint32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  return order[rank];
}

// The scores after each token, without any cache: plain arrays, and softmax as the books have it.
std::vector<Row> reference(const Model& m, const Tokens& tokens) {
  std::vector<std::vector<Row>> k(m.shape.layers), v(m.shape.layers);
  std::vector<Row> all;
  for (uint32_t t = 0; t < tokens.size(); ++t) {
    Row x = m.embed(tokens[t], t);
    for (uint32_t l = 0; l < m.shape.layers; ++l) {
      const Row q = m.q(l, x);
      k[l].push_back(m.k(l, x));
      v[l].push_back(m.v(l, x));
      Row out(m.hidden);
      for (uint32_t h = 0; h < m.shape.heads; ++h) {
        const uint32_t first = h / (m.shape.heads / m.shape.kv_heads) * m.shape.dim;
        std::vector<double> weight(t + 1);
        double top = -1e300, sum = 0;
        for (uint32_t s = 0; s <= t; ++s) {
          for (uint32_t d = 0; d < m.shape.dim; ++d) weight[s] += double{q[h * m.shape.dim + d]} * double{k[l][s][first + d]};
          weight[s] /= std::sqrt(double{m.shape.dim * 1.0});
          top = std::max(top, weight[s]);
        }
        for (double& w : weight) sum += w = std::exp(w - top);
        for (uint32_t d = 0; d < m.shape.dim; ++d) {
          double value = 0;
          for (uint32_t s = 0; s <= t; ++s) value += weight[s] * double{v[l][s][first + d]};
          out[h * m.shape.dim + d] = static_cast<float>(value / sum);
        }
      }
      m.add(l, out.data(), x);
    }
    all.push_back(m.scores(x));
  }
  return all;
}

// -------------------------------------------------------------------------------------------------------- engine --

// A sequence and the scores of its tokens, as far as they were computed here.
struct Text {
  nmc::KvSequence seq;
  Tokens tokens;
  std::vector<Row> scores;  // the last ones belong to the last tokens
  bool contiguous = false;
};

class Engine {
 public:
  Engine(const Model& model, Device& device) : m_(model), device_(device) {
    const Shape& s = m_.shape;
    nmc::KvGroup group(s.layers, s.kv_heads, s.dim);
    group.dtype(nmc::KvDtype::fp32).order(nmc::KvOrder::layer_major_nhd);
    nmc::KvConfig config(s.blocks);
    config.tokens_per_block(s.block_tokens);
    const uint64_t bytes = nmc::KvCache::heap_bytes(nmc::KvConfig(config).group(group), 0);
    config.group(group.memory(device_.allocate(bytes), bytes));
    cache = nmc::KvCache::create(config);
    // A sequence without blocks: its views are of all blocks of a layer.
    const nmc::KvSequence any = cache.open(UINT64_MAX, Tokens());
    for (uint32_t l = 0; l < s.layers; ++l) {
      k_.push_back(any.view(l, nmc::KvSide::k));
      v_.push_back(any.view(l, nmc::KvSide::v));
    }
  }

  // Opens a sequence and computes what the cache does not have of its prompt.
  Text prefill(uint64_t id, const Tokens& prompt, bool contiguous = false) {
    Text text{cache.open(id, prompt, nmc::KvOpen().contiguous(contiguous)), prompt, {}, contiguous};
    const uint32_t missing = static_cast<uint32_t>(prompt.size() - text.seq.hit_tokens());
    const std::vector<int64_t> slots = cache.slot_mapping({&id, 1}, {&missing, 1});
    for (size_t i = 0; i < missing; ++i) {
      step({&text}, {slots[i]}, static_cast<uint32_t>(prompt.size() - missing + i));
    }
    return text;
  }
  // One token more for each: room for all in one call, then one step of the model.
  void decode(const std::vector<Text*>& texts, const Tokens& tokens) {
    std::vector<uint64_t> ids;
    for (const Text* text : texts) ids.push_back(text->seq.id());
    cache.append_batch(ids, tokens);
    for (size_t i = 0; i < texts.size(); ++i) {
      texts[i]->tokens.push_back(tokens[i]);
      make_copies(*texts[i]);  // of a contiguous sequence that had to move
    }
    step(texts, cache.slot_mapping(ids), UINT32_MAX);
  }
  void generate(Text& text, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) decode({&text}, {choice(text.scores.back())});
  }
  Text fork(const Text& text, uint64_t id) {
    Text child{text.seq.fork(id), text.tokens, {text.scores.back()}, false};
    make_copies(child);  // of the block that is not full
    return child;
  }

  nmc::KvCache cache;
  uint64_t copied = 0, computed = 0;

 private:
  void make_copies(const Text& text) {
    for (const nmc_kv_copy_t& blocks : text.seq.take_copies()) {
      ++copied;
      for (uint32_t l = 0; l < m_.shape.layers; ++l) {
        device_.copy(k_[l], blocks);
        device_.copy(v_[l], blocks);
      }
    }
  }
  // Runs the model for one token of each sequence: the one at `position`, or the last one.
  void step(const std::vector<Text*>& texts, const std::vector<int64_t>& slots, uint32_t position) {
    Batch batch;
    std::vector<uint64_t> ids;
    std::vector<Row> x;
    for (const Text* text : texts) {
      const uint32_t at = std::min(position, static_cast<uint32_t>(text->tokens.size() - 1));
      ids.push_back(text->seq.id());
      batch.lengths.push_back(static_cast<int32_t>(at + 1));
      x.push_back(m_.embed(text->tokens[at], at));
    }
    computed += texts.size();
    // The table that kernels take, int32 [sequences, width]. A sequence that is alone and contiguous needs none.
    const bool own = texts.size() == 1 && texts[0]->contiguous;
    std::vector<nmc_kv_row_t> rows;
    std::vector<int32_t> table(texts.size() * m_.shape.blocks);
    batch.width = m_.shape.blocks;
    if (!own) cache.table(ids, rows, table, batch.width);
    batch.table = own ? nullptr : table.data();
    for (uint32_t l = 0; l < m_.shape.layers; ++l) {
      std::vector<float> q, k, v, out;
      for (const Row& one : x) {
        const Row rq = m_.q(l, one), rk = m_.k(l, one), rv = m_.v(l, one);
        q.insert(q.end(), rq.begin(), rq.end());
        k.insert(k.end(), rk.begin(), rk.end());
        v.insert(v.end(), rv.begin(), rv.end());
      }
      device_.store(k_[l], slots, k);
      device_.store(v_[l], slots, v);
      const nmc_kv_view_t keys = own ? texts[0]->seq.view(l, nmc::KvSide::k) : k_[l];
      const nmc_kv_view_t values = own ? texts[0]->seq.view(l, nmc::KvSide::v) : v_[l];
      device_.attend(keys, values, batch, m_.shape, q, out);
      for (size_t i = 0; i < x.size(); ++i) m_.add(l, out.data() + i * m_.hidden, x[i]);
    }
    for (size_t i = 0; i < x.size(); ++i) texts[i]->scores.push_back(m_.scores(x[i]));
  }

  const Model& m_;
  Device& device_;
  std::vector<nmc_kv_view_t> k_, v_;
};

// ---------------------------------------------------------------------------------------------------------- acts --

bool all_good = true;

void tell(bool good, const char* what) {
  std::printf("    %s %s\n", good ? "ok " : "NO:", what);
  all_good = all_good && good;
}

// Whether the scores are those of the model without a cache, as far as they were computed.
bool as_without(const Model& model, const Text& text) {
  const std::vector<Row> want = reference(model, text.tokens);
  double worst = 0;
  for (size_t i = 0; i < text.scores.size(); ++i) {
    const Row &a = text.scores[text.scores.size() - 1 - i], &b = want[want.size() - 1 - i];
    for (size_t j = 0; j < a.size(); ++j) {
      const double off = std::fabs(double{a[j]} - double{b[j]});
      if (!(off <= worst)) worst = off;  // NaN, too
    }
  }
  return worst < 1e-2;  // scores are in the tens
}

bool same_bits(const std::vector<Row>& a, const std::vector<Row>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) return false;
  }
  return true;
}

void say(const char* name, const Text& text, size_t prompt) {
  std::printf("    %s:", name);
  for (size_t i = prompt; i < text.tokens.size(); ++i) std::printf(" %u", text.tokens[i]);
  std::printf("\n");
}

int run(Device& device) {
  const Model model{Shape{}};
  Engine engine(model, device);
  Tokens system(45), question = {7, 77, 177, 277, 377};
  for (uint32_t i = 0; i < system.size(); ++i) system[i] = (i * 37 + 11) % Model::kVocabulary;
  Tokens prompt = system;
  prompt.insert(prompt.end(), question.begin(), question.end());

  std::printf("A prompt of %zu tokens, in blocks of %u\n", prompt.size(), model.shape.block_tokens);
  Text first = engine.prefill(1, prompt);
  engine.generate(first, 12);
  say("generated", first, prompt.size());
  tell(as_without(model, first), "paged attention gives what the model gives without a cache");
  const std::vector<Row> first_scores = first.scores;
  first.seq.close();

  std::printf("The same prompt in blocks that follow each other\n");
  Text straight = engine.prefill(2, prompt, true);
  const uint64_t copied = engine.copied;
  Text wall = engine.prefill(3, {1, 2, 3}, true);  // may stand where the other wants to grow
  engine.generate(straight, 12);
  std::printf("    %llu blocks were copied as it grew\n", static_cast<unsigned long long>(engine.copied - copied));
  tell(straight.tokens == first.tokens && same_bits(straight.scores, first_scores), "the same bits, to the last one");
  straight.seq.close();
  wall.seq.close();

  std::printf("Another question after the same system prompt\n");
  Tokens other = system;
  other.insert(other.end(), {9, 99, 199});
  const uint64_t before = engine.computed;
  Text second = engine.prefill(4, other);
  std::printf("    %llu of %zu tokens were there, %llu were computed\n",
              static_cast<unsigned long long>(second.seq.hit_tokens()), other.size(),
              static_cast<unsigned long long>(engine.computed - before));
  tell(second.seq.hit_tokens() == 40 && engine.computed - before == 8, "what the cache has is not computed again");
  engine.generate(second, 4);
  say("generated", second, other.size());
  tell(as_without(model, second), "and what was not computed is right");

  std::printf("Three continuations of it, in one batch\n");
  const uint64_t used = engine.cache.stats().used, copies = engine.copied;
  std::vector<Text> beams;
  for (uint64_t i = 0; i < 3; ++i) beams.push_back(engine.fork(second, 10 + i));
  std::printf("    %llu blocks more than before, %llu of them copies\n",
              static_cast<unsigned long long>(engine.cache.stats().used - used),
              static_cast<unsigned long long>(engine.copied - copies));
  for (uint32_t t = 0; t < 10; ++t) {
    Tokens next;
    std::vector<Text*> all;
    for (size_t i = 0; i < beams.size(); ++i) {
      next.push_back(choice(beams[i].scores.back(), t == 0 ? i : 0));  // they begin with the best three
      all.push_back(&beams[i]);
    }
    engine.decode(all, next);
  }
  bool good = true;
  for (const Text& beam : beams) {
    say("beam", beam, other.size());
    good = good && as_without(model, beam);
  }
  tell(good, "each is what the model gives without a cache");
  engine.generate(second, 10);
  tell(second.tokens == beams[0].tokens && same_bits({second.scores.back()}, {beams[0].scores.back()}),
       "the parent goes on as its first child did, to the last bit");

  std::printf("%s", engine.cache.dump(64).c_str());
  const nmc_kv_stats_t stats = engine.cache.stats();
  std::printf("    %llu of %llu prompt tokens were found in the cache\n", static_cast<unsigned long long>(stats.hit_tokens),
              static_cast<unsigned long long>(stats.asked_tokens));
  beams.clear();
  second.seq.close();
  engine.cache.audit();
  tell(engine.cache.stats().used == 0, "all blocks are free or cached again, and the audit is clean");
  return all_good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const bool gpu = argc == 2 && std::string(argv[1]) == "--gpu";
  if (argc > 1 && !gpu) return std::fprintf(stderr, "usage: paged_attention [--gpu]\n"), 2;
  try {
    if (gpu) {
#ifdef PAGED_ATTENTION_GPU
      return run(*gpu_device());
#else
      return std::fprintf(stderr, "--gpu: built without nvcc (CMake found no CUDA compiler)\n"), 2;
#endif
    }
    Cpu cpu;
    return run(cpu);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
