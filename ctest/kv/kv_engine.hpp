// What the KV tests share: an arena with a naive model of its layout, and an engine that writes into it, for every token of
// every sequence, bytes that depend on all tokens up to it. Whatever way a sequence is looked up, its own bytes must be there.
#ifndef NMC_CTEST_KV_ENGINE_HPP
#define NMC_CTEST_KV_ENGINE_HPP

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "nanomc.hpp"
#include "words.hpp"

namespace kv {


// ---- the arena --------------------------------------------------------------------------------------------------------

// The axes of [order][sides] from the outermost in, as the header has them: S is K or V.
inline const char* axes(uint32_t order, uint32_t sides) {
  static const char* const all[4][3] = {{"SLBHTD", "LSBHTD", "LBSHTD"},
                                        {"SHLBTD", "HLSBTD", "HLBSTD"},
                                        {"SLBTHD", "LSBTHD", "LBSTHD"},
                                        {"SBLHTD", "BLSHTD", "BSLHTD"}};
  return all[order][sides];
}

inline uint32_t bytes_of(const nmc_kv_group_t& g) {
  switch (g.dtype) {
    case NMC_DTYPE_FP32: return 4;
    case NMC_DTYPE_BF16:
    case NMC_DTYPE_FP16: return 2;
    case NMC_DTYPE_RAW: return g.element_bytes;
    default: return 1;
  }
}

// Memory of a group, with room before and behind that must stay as it is.
class Arena {
 public:
  static constexpr size_t kGuard = 4096;
  Arena(const nmc_kv_group_t& group, uint32_t blocks, uint32_t tokens_per_block)
      : group_(group), blocks_(blocks), size_(tokens_per_block), element_(bytes_of(group)) {
    bytes_ = size_t{element_} * group.layers * sides() * blocks * group.kv_heads * tokens_per_block * group.head_dim;
    memory_.assign(bytes_ + 2 * kGuard, 0xa5);
    group_.memory = memory_.data() + kGuard;
    group_.memory_bytes = bytes_;
  }
  const nmc_kv_group_t& c() const { return group_; }
  size_t bytes() const { return bytes_; }
  uint32_t sides() const { return group_.kind == NMC_KV_KIND_ATTENTION ? 2 : 1; }
  uint32_t vector_bytes() const { return group_.head_dim * element_; }
  unsigned char* base() { return memory_.data() + kGuard; }

  // Where the vector of a token lies: the index of the axes read as the digits of a number.
  unsigned char* at(uint32_t layer, uint32_t side, uint32_t block, uint32_t head, uint32_t token) {
    size_t index = 0;
    for (const char* axis = axes(group_.order, group_.sides); *axis != 0; ++axis) {
      switch (*axis) {
        case 'L': index = index * group_.layers + layer; break;
        case 'S': index = index * sides() + side; break;
        case 'B': index = index * blocks_ + block; break;
        case 'H': index = index * group_.kv_heads + head; break;
        case 'T': index = index * size_ + token; break;
        default: index = index * group_.head_dim; break;
      }
    }
    return base() + index * element_;
  }
  // What a kernel that copies blocks does.
  void copy(uint32_t from, uint32_t to) {
    each_vector([&](uint32_t l, uint32_t s, uint32_t h) {
      for (uint32_t t = 0; t < size_; ++t) std::memcpy(at(l, s, to, h, t), at(l, s, from, h, t), vector_bytes());
    });
  }
  template <class Each>
  void each_vector(Each each) const {
    for (uint32_t l = 0; l < group_.layers; ++l) {
      for (uint32_t s = 0; s < sides(); ++s) {
        for (uint32_t h = 0; h < group_.kv_heads; ++h) each(l, s, h);
      }
    }
  }
  bool guards_are_whole() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (memory_[i] != 0xa5 || memory_[kGuard + bytes_ + i] != 0xa5) return false;
    }
    return true;
  }

 private:
  nmc_kv_group_t group_;
  uint32_t blocks_, size_, element_;
  size_t bytes_;
  std::vector<unsigned char> memory_;
};

// ---- the engine -------------------------------------------------------------------------------------------------------

struct Seq {
  Tokens tokens;
  std::string salt;
  size_t written = 0;             // tokens whose bytes are in the arena
  std::vector<uint64_t> prefix;   // of each token, what all tokens up to it are
  std::vector<nmc_kv_row_t> row = {{0, 0, 0}};
  std::vector<int32_t> table;     // written by pieces, as an engine does

  void push(uint32_t token) {
    uint64_t before = 0x1234;
    for (const char c : salt) before = mix(before, static_cast<unsigned char>(c));
    prefix.push_back(mix(prefix.empty() ? before : prefix.back(), token));
    tokens.push_back(token);
  }
  void cut(size_t n) {
    tokens.resize(n);
    prefix.resize(n);
    if (written > n) written = n;
  }
};

constexpr int32_t kPad = -7;
constexpr size_t kWidth = 256;

// Calls the cache as an engine would, and does the engine's work at once: copies, then the new tokens' bytes. One thread.
class Engine {
 public:
  Engine(nmc_kv_t* cache, std::vector<Arena*> arenas, uint32_t tokens_per_block)
      : kv(cache), arenas_(std::move(arenas)), size_(tokens_per_block) {}

  nmc_kv_t* kv;
  std::map<uint64_t, Seq> seqs;
  bool compute = true;        // false: tokens get room, and their bytes only with write()
  bool execute_copies = true; // false is a fault
  bool may_vanish = false;    // other threads may take the blocks of any sequence
  bool deep = true;           // all four ways to look a token up, in all layers
  nmc_kv_room_t room = NMC_KV_ROOM_INIT;
  nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;

  nmc_status_t open(uint64_t id, const Tokens& tokens, const std::string& salt = "", uint32_t flags = 0, bool known = true) {
    nmc_kv_open_t options = NMC_KV_OPEN_INIT;
    options.salt = {salt.data(), salt.size()};
    options.flags = flags;
    return open(id, tokens, options, known);
  }
  nmc_status_t open(uint64_t id, const Tokens& tokens, const nmc_kv_open_t& options, bool known = true) {
    static const uint32_t none = 0;
    opened = NMC_KV_OPENED_INIT;
    opened.id = opened.hit_tokens = opened.tokens = 77;
    const uint32_t* const data = !known ? nullptr : tokens.empty() ? &none : tokens.data();
    const nmc_status_t status = nmc_kv_open(kv, id, data, tokens.size(), &options, &opened, &room);
    if (status != NMC_OK) return status;
    Seq seq;
    seq.salt.assign(static_cast<const char*>(options.salt.ptr), options.salt.len);
    CHECK(opened.id == id && opened.tokens <= tokens.size() && opened.hit_tokens <= opened.tokens);
    for (size_t i = 0; i < opened.tokens; ++i) seq.push(tokens[i]);
    seq.written = opened.hit_tokens;  // what was hit must be there already
    seqs[id] = seq;
    if (compute) write(id);
    return NMC_OK;
  }
  nmc_status_t append(uint64_t id, const Tokens& tokens, bool known = true) {
    const nmc_status_t status = nmc_kv_append(kv, id, known ? tokens.data() : nullptr, tokens.size(), nullptr, &room);
    if (status == NMC_OK) appended(id, tokens);
    return status;
  }
  void appended(uint64_t id, const Tokens& tokens) {
    copy(id);
    for (const uint32_t token : tokens) seqs[id].push(token);
    if (compute) write(id);
  }
  nmc_status_t reserve(uint64_t id, uint64_t tokens) {
    const nmc_status_t status = nmc_kv_reserve(kv, id, tokens, &room);
    if (status == NMC_OK) copy(id);
    return status;
  }
  nmc_status_t truncate(uint64_t id, size_t tokens) {
    const nmc_status_t status = nmc_kv_truncate(kv, id, tokens, &room);
    if (status != NMC_OK) return status;
    copy(id);
    seqs[id].cut(tokens);
    return status;
  }
  nmc_status_t fork(uint64_t parent, uint64_t child) {
    const nmc_status_t status = nmc_kv_fork(kv, parent, child, &room);
    if (status != NMC_OK) return status;
    Seq seq = seqs[parent];
    seq.row = {{0, 0, 0}};
    seq.table.clear();
    seqs[child] = seq;
    copy(child);
    return status;
  }
  nmc_status_t close(uint64_t id, uint32_t flags = 0) {
    seqs.erase(id);
    return nmc_kv_close(kv, id, flags);
  }

  nmc_kv_seq_info_t info(uint64_t id) const {
    nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
    OK(nmc_kv_seq_info(kv, id, 0, &info));
    return info;
  }
  nmc_kv_stats_t stats() const {
    nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
    OK(nmc_kv_stats(kv, &stats));
    CHECK(stats.total == stats.used + stats.idle + stats.free);
    return stats;
  }
  uint64_t match(const Tokens& tokens, const std::string& salt = "") const {
    uint64_t hit = 77;
    OK(nmc_kv_match(kv, tokens.data(), tokens.size(), nullptr, {salt.data(), salt.size()}, &hit));
    return hit;
  }
  size_t last_copies() const { return last_copies_; }

  // The bytes of the tokens that have none yet.
  void write(uint64_t id) {
    Seq& seq = seqs[id];
    const std::vector<int32_t> table = fresh_table(id);
    for (size_t t = seq.written; t < seq.tokens.size(); ++t) {
      if (t / size_ >= table.size() || table[t / size_] < 0) continue;
      for (uint32_t g = 0; g < arenas_.size(); ++g) {
        arenas_[g]->each_vector([&](uint32_t l, uint32_t s, uint32_t h) {
          fill(arenas_[g]->at(l, s, static_cast<uint32_t>(table[t / size_]), h, static_cast<uint32_t>(t % size_)),
               arenas_[g]->vector_bytes(), word(seq.prefix[t], g, l, s, h), true);
        });
      }
    }
    seq.written = seq.tokens.size();
  }

  // Whether every token of a sequence has its own bytes, whichever way it is looked up. Dropped ones are -1 in tables.
  bool verify(uint64_t id) {
    Seq& seq = seqs[id];
    const nmc_kv_seq_info_t info = this->info(id);
    if (!CHECK(info.tokens == seq.tokens.size())) return false;
    CHECK(info.next_offset_in_block == seq.tokens.size() % size_);
    const std::vector<int32_t> table = fresh_table(id);
    if (!CHECK(table.size() == (seq.tokens.size() + size_ - 1) / size_)) return false;
    // The row that is kept must have become the same by its pieces.
    if (seq.table.empty()) seq.table.assign(kWidth, 12345);
    OK(nmc_kv_table(kv, 0, NMC_KV_TABLE_BLOCKS, &id, 1, kWidth, kPad, seq.row.data(), seq.table.data(), nullptr));
    CHECK(std::equal(table.begin(), table.end(), seq.table.begin()));
    uint32_t holes = 0;
    std::set<int32_t> once;
    for (const int32_t block : table) {
      holes += block < 0;
      if (block >= 0 && !CHECK(once.insert(block).second)) std::printf("     block %d twice in sequence %llu\n", block, id_of(id));
    }
    CHECK(holes == info.dropped);
    const uint32_t all = info.tokens;
    std::vector<int64_t> slots(all);
    size_t n = 0;
    OK(nmc_kv_slot_mapping(kv, 0, &id, &all, 1, slots.data(), slots.size(), &n));
    CHECK(n == all);
    for (uint32_t t = 0; t < all; ++t) {
      const int32_t block = table[t / size_];
      const int64_t slot = block < 0 ? -1 : int64_t{block} * size_ + t % size_;
      if (!CHECK(slots[t] == slot)) return false;
      if (block < 0) {
        void* address = nullptr;
        if (!arenas_.empty()) GIVES(nmc_kv_token_address(kv, id, t, 0, 0, NMC_KV_K, 0, &address), NMC_ERR_STALE);
      } else if (t < seq.written && !verify_token(id, seq, t, static_cast<uint32_t>(block), info.contiguous != 0)) {
        return false;
      }
    }
    return true;
  }
  // Everything that is open, the audit, and the numbers.
  bool verify() {
    bool good = true;
    for (auto& [id, seq] : seqs) good &= this->info(id).state == NMC_KV_SEQ_EVICTED || verify(id);
    good &= OK(nmc_kv_audit(kv)) != 0;
    const nmc_kv_stats_t now = stats();
    good &= CHECK(now.sequences == seqs.size()) != 0;
    for (Arena* arena : arenas_) good &= CHECK(arena->guards_are_whole()) != 0;
    return good;
  }

  std::vector<int32_t> fresh_table(uint64_t id) const {
    nmc_kv_row_t row = {0, 0, 0};
    std::vector<int32_t> table(kWidth, 12345);
    uint64_t written = 0;
    OK(nmc_kv_table(kv, 0, NMC_KV_TABLE_BLOCKS, &id, 1, kWidth, kPad, &row, table.data(), &written));
    CHECK(written == kWidth);
    size_t end = kWidth;
    while (end > 0 && table[end - 1] == kPad) --end;
    table.resize(end);
    return table;
  }

 private:
  static unsigned long long id_of(uint64_t id) { return id; }
  static uint64_t word(uint64_t prefix, uint32_t g, uint32_t l, uint32_t s, uint32_t h) {
    return mix(prefix, mix(mix(g, l), mix(s, h)));
  }
  // Stores the bytes of a vector, or compares them.
  static bool fill(unsigned char* at, uint32_t bytes, uint64_t word, bool store) {
    for (uint32_t i = 0; i < bytes; ++i) {
      const unsigned char byte = static_cast<unsigned char>(word >> i % 8 * 8) ^ static_cast<unsigned char>(i / 8);
      if (store) at[i] = byte;
      else if (at[i] != byte) return false;
    }
    return true;
  }
  bool verify_token(uint64_t id, const Seq& seq, uint32_t t, uint32_t block, bool contiguous) {
    bool good = true;
    for (uint32_t g = 0; g < arenas_.size(); ++g) {
      Arena& arena = *arenas_[g];
      arena.each_vector([&](uint32_t l, uint32_t s, uint32_t h) {
        unsigned char* const at = arena.at(l, s, block, h, t % size_);
        if (!fill(at, arena.vector_bytes(), word(seq.prefix[t], g, l, s, h), false)) {
          if (good) std::printf("sequence %llu: token %u in block %u does not have its own bytes\n", id_of(id), t, block);
          good = false;
        }
        if (!deep) return;
        void* address = nullptr;
        OK(nmc_kv_token_address(kv, id, t, g, l, s, h, &address));
        nmc_kv_view_t view = NMC_KV_VIEW_INIT;
        OK(nmc_kv_view(kv, id, g, l, s, &view));
        good &= CHECK(view.contiguous == (contiguous ? 1u : 0u)) != 0;
        const int64_t first = view.contiguous != 0 ? t / size_ : block;
        const int64_t offset = first * view.strides[0] + h * view.strides[1] + t % size_ * view.strides[2];
        unsigned char* const seen = static_cast<unsigned char*>(view.data) + offset * view.element_bytes;
        good &= CHECK(address == at && seen == at) != 0;
        good &= CHECK(view.strides[3] == 1 && first < view.shape[0] && h < view.shape[1]) != 0;
      });
    }
    if (!good) check_at(0, "a token has its own bytes", __FILE__, __LINE__);
    return good;
  }
  void copy(uint64_t id) {
    size_t n = 77;
    const nmc_status_t asked = nmc_kv_take_copies(kv, id, nullptr, 0, &n);
    if (may_vanish) return;
    CHECK(asked == (n == 0 ? NMC_OK : NMC_ERR_TOO_SMALL));
    last_copies_ = n;
    std::vector<nmc_kv_copy_t> copies(n);
    if (n != 0) OK(nmc_kv_take_copies(kv, id, copies.data(), n, &n));
    if (!execute_copies) return;
    for (const nmc_kv_copy_t& one : copies) {
      for (Arena* arena : arenas_) arena->copy(static_cast<uint32_t>(one.from), static_cast<uint32_t>(one.to));
    }
  }

  std::vector<Arena*> arenas_;
  uint32_t size_;
  size_t last_copies_ = 0;
};

// ---- a cache with its arenas --------------------------------------------------------------------------------------------

inline nmc_kv_group_t plain_group(uint32_t layers = 1, uint32_t heads = 1, uint32_t dim = 8) {
  nmc_kv_group_t group = NMC_KV_GROUP_INIT;
  group.layers = layers;
  group.kv_heads = heads;
  group.head_dim = dim;
  return group;
}

inline nmc_kv_config_t plain_config(uint32_t blocks, uint32_t tokens_per_block = 4) {
  nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
  config.total_blocks = blocks;
  config.tokens_per_block = tokens_per_block;
  config.max_sequences = 1024;
  return config;
}

struct Cache {
  std::vector<Arena> arenas;
  nmc_kv_t* kv = nullptr;
  uint32_t size;

  explicit Cache(nmc_kv_config_t config, const std::vector<nmc_kv_group_t>& groups = {plain_group()})
      : size(config.tokens_per_block) {
    const uint32_t capacity = config.capacity_blocks != 0 ? config.capacity_blocks : config.total_blocks;
    std::vector<nmc_kv_group_t> given = groups;
    config.groups = given.data();
    config.n_groups = static_cast<uint32_t>(given.size());
    arenas.reserve(groups.size());
    for (uint32_t g = 0; g < given.size(); ++g) {
      arenas.emplace_back(given[g], capacity, size);
      uint64_t bytes = 0;
      OK(nmc_kv_heap_bytes(&config, g, &bytes));
      CHECK(bytes == arenas[g].bytes());
      given[g] = arenas[g].c();
    }
    REQUIRE(nmc_kv_create(nullptr, &config, &kv) == NMC_OK);
  }
  Cache(const Cache&) = delete;
  ~Cache() { OK(nmc_kv_destroy(kv)); }
  Engine engine() {
    std::vector<Arena*> all;
    for (Arena& arena : arenas) all.push_back(&arena);
    return Engine(kv, all, size);
  }
};

inline Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace kv

#endif
