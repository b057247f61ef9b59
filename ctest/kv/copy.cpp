// Copies of blocks: nmc_kv_gather, nmc_kv_scatter and nmc_kv_copy_blocks move the bytes that a naive walk over the tokens does,
// for all orders of the axes, kinds, several groups and odd sizes, and refuse what makes no sense.
//
//   kv_copy [seed] [order|layers|block]   a word is a fault in the walk, which must be noticed
#include "../support/kv_blocks.hpp"
#include "kv_engine.hpp"

#include <algorithm>

namespace {

using namespace kv;

std::string fault;

constexpr uint32_t kAll = NMC_KV_GROUPS_ALL;

// A cache of which one sequence has all blocks, so that nmc_kv_token_address tells where everything is.
class Cache {
 public:
  Cache(std::vector<nmc_kv_group_t> groups, uint32_t blocks, uint32_t tokens) : blocks_(blocks), tokens_(tokens) {
    for (const nmc_kv_group_t& group : groups) arenas_.emplace_back(group, blocks, tokens);
    for (Arena& arena : arenas_) groups_.push_back(arena.c());
    nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
    config.total_blocks = blocks;
    config.tokens_per_block = tokens;
    config.groups = groups_.data();
    config.n_groups = static_cast<uint32_t>(groups_.size());
    REQUIRE(nmc_kv_create(nullptr, &config, &kv) == NMC_OK);
    REQUIRE(nmc_kv_open(kv, 1, nullptr, uint64_t{blocks} * tokens, nullptr, nullptr, nullptr) == NMC_OK);
    const uint64_t id = 1;
    std::vector<int32_t> indices(blocks);
    int32_t indptr[2], last;
    size_t n = 0;
    REQUIRE(nmc_kv_table_csr(kv, 0, &id, 1, indptr, &last, indices.data(), indices.size(), &n) == NMC_OK && n == blocks);
    index_.resize(blocks);
    for (uint32_t i = 0; i < blocks; ++i) index_[static_cast<uint32_t>(indices[i])] = i;
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache() { OK(nmc_kv_destroy(kv)); }

  nmc_kv_t* kv = nullptr;

  uint32_t groups() const { return static_cast<uint32_t>(groups_.size()); }
  Arena& arena(uint32_t group) { return arenas_[group]; }
  size_t block_bytes(uint32_t group) const {
    if (group != NMC_KV_GROUPS_ALL) return arenas_[group].bytes() / blocks_;
    size_t sum = 0;
    for (const Arena& arena : arenas_) sum += arena.bytes() / blocks_;
    return sum;
  }
  void fill(Random& random) {
    for (Arena& arena : arenas_) std::generate_n(arena.base(), arena.bytes(), [&] { return static_cast<unsigned char>(random()); });
  }
  std::vector<std::vector<unsigned char>> content() {
    std::vector<std::vector<unsigned char>> all;
    for (Arena& arena : arenas_) all.emplace_back(arena.base(), arena.base() + arena.bytes());
    return all;
  }
  bool guards_are_whole() const {
    return std::all_of(arenas_.begin(), arenas_.end(), [](const Arena& arena) { return arena.guards_are_whole(); });
  }

  // Every vector of a block in the order in which it is packed.
  template <class Each>
  void walk(uint32_t group, uint32_t block, Each each) {
    for (uint32_t g = 0; g < groups(); ++g) {
      if (group != NMC_KV_GROUPS_ALL && g != group) continue;
      const nmc_kv_group_t& c = groups_[g];
      const bool tokens_first = (c.order == NMC_KV_LAYER_MAJOR_NHD) != (fault == "order");
      const uint32_t outer = tokens_first ? tokens_ : c.kv_heads, inner = tokens_first ? c.kv_heads : tokens_;
      for (uint32_t layer = 0; layer < c.layers; ++layer) {
        for (uint32_t side = 0; side < arenas_[g].sides(); ++side) {
          for (uint32_t i = 0; i < outer * inner; ++i) {
            const uint32_t token = tokens_first ? i / inner : i % inner, head = tokens_first ? i % inner : i / inner;
            const uint32_t from = fault == "layers" ? c.layers - 1 - layer : layer;
            const uint32_t number = fault == "block" ? (block + 1) % blocks_ : block;
            void* at = nullptr;
            REQUIRE(nmc_kv_token_address(kv, 1, uint64_t{index_[number]} * tokens_ + token, g, from, side, head, &at) == NMC_OK);
            each(static_cast<unsigned char*>(at), arenas_[g].vector_bytes());
          }
        }
      }
    }
  }

 private:
  uint32_t blocks_, tokens_;
  std::vector<Arena> arenas_;
  std::vector<nmc_kv_group_t> groups_;
  std::vector<uint32_t> index_;  // of each block, its place in the sequence
};

constexpr uint32_t kBlocks = 11;

void same_bytes(Cache& cache, Random& random) {
  for (uint32_t group = 0; group <= cache.groups(); ++group) {
    const uint32_t which = group == cache.groups() ? NMC_KV_GROUPS_ALL : group;
    const size_t bytes = cache.block_bytes(which);
    std::vector<int32_t> list = some_blocks(random, kBlocks, 1 + random() % kBlocks);
    list.push_back(list.front());  // a block may be read twice
    cache.fill(random);
    const auto before = cache.content();

    std::vector<unsigned char> packed(list.size() * bytes + 7, 0x5a), wanted;
    OK(nmc_kv_gather(cache.kv, which, list.data(), list.size(), packed.data(), packed.size() - 7, nullptr));
    for (int32_t block : list) {
      cache.walk(which, static_cast<uint32_t>(block), [&](const unsigned char* at, size_t n) { wanted.insert(wanted.end(), at, at + n); });
    }
    wanted.insert(wanted.end(), 7, 0x5a);
    if (packed != wanted) CHECK(!"gathered blocks differ from the walk");
    CHECK(cache.content() == before);

    // Other bytes into other blocks: these and nothing else change.
    list = some_blocks(random, kBlocks, 1 + random() % kBlocks);
    packed.resize(list.size() * bytes);
    std::generate(packed.begin(), packed.end(), [&] { return static_cast<unsigned char>(random()); });
    OK(nmc_kv_scatter(cache.kv, which, list.data(), list.size(), packed.data(), packed.size(), nullptr));
    const auto after = cache.content();
    for (uint32_t g = 0; g < cache.groups(); ++g) std::copy(before[g].begin(), before[g].end(), cache.arena(g).base());
    const unsigned char* next = packed.data();
    for (int32_t block : list) {
      cache.walk(which, static_cast<uint32_t>(block), [&](unsigned char* at, size_t n) { std::memcpy(at, next, n), next += n; });
    }
    if (cache.content() != after) CHECK(!"scattered blocks differ from the walk");
  }
  // Half of the blocks, some of them more than once, to the other half.
  std::vector<int32_t> list = some_blocks(random, kBlocks, kBlocks);
  std::vector<nmc_kv_copy_t> copies;
  for (size_t i = kBlocks / 2; i < kBlocks; ++i) copies.push_back(nmc::kv_copy(list[random() % (kBlocks / 2)], list[i]));
  cache.fill(random);
  const auto before = cache.content();
  OK(nmc_kv_copy_blocks(cache.kv, copies.data(), copies.size(), nullptr));
  const auto after = cache.content();
  for (uint32_t g = 0; g < cache.groups(); ++g) std::copy(before[g].begin(), before[g].end(), cache.arena(g).base());
  for (const nmc_kv_copy_t& copy : copies) {
    std::vector<unsigned char> block;
    cache.walk(NMC_KV_GROUPS_ALL, static_cast<uint32_t>(copy.from),
               [&](const unsigned char* at, size_t n) { block.insert(block.end(), at, at + n); });
    const unsigned char* next = block.data();
    cache.walk(NMC_KV_GROUPS_ALL, static_cast<uint32_t>(copy.to), [&](unsigned char* at, size_t n) { std::memcpy(at, next, n), next += n; });
  }
  if (cache.content() != after) CHECK(!"copied blocks differ from the walk");
  CHECK(cache.guards_are_whole());
}

void all_layouts(Random& random) {
  promise("blocks are copied as a walk over their tokens does, in all layouts");
  std::vector<nmc_kv_group_t> others;
  for (uint32_t order = 0; order < 4; ++order) {
    for (uint32_t sides = 0; sides < 3; ++sides) {
      for (uint32_t kind : {NMC_KV_KIND_ATTENTION, NMC_KV_KIND_MLA}) {
        const nmc_kv_group_t even = group_of(kind, NMC_DTYPE_BF16, 3, 2, 16, order, sides);
        const nmc_kv_group_t odd = group_of(kind, NMC_DTYPE_FP8, 2, 3, 3, order, sides);
        for (uint32_t tokens : {1u, 4u, 5u}) {
          Cache one({even}, kBlocks, tokens), two({odd}, kBlocks, tokens);
          same_bytes(one, random);
          same_bytes(two, random);
        }
        others.push_back(even);
        others.push_back(odd);
        Cache several({even, odd, others[random() % others.size()], group_of(kind, NMC_DTYPE_FP32, 1, 1, 1, order, sides)}, kBlocks, 3);
        same_bytes(several, random);
      }
    }
  }
}

void exchange(Random& random) {
  promise("caches with other orders exchange blocks through contiguous memory");
  Cache from({group_of(NMC_KV_KIND_ATTENTION, NMC_DTYPE_BF16, 3, 2, 8, NMC_KV_HEAD_MAJOR, NMC_KV_SIDES_PER_BLOCK)}, kBlocks, 4);
  Cache to({group_of(NMC_KV_KIND_ATTENTION, NMC_DTYPE_BF16, 3, 2, 8, NMC_KV_BLOCK_MAJOR, NMC_KV_SIDES_SEPARATE)}, kBlocks, 4);
  from.fill(random);
  const std::vector<int32_t> here = some_blocks(random, kBlocks, 5), there = some_blocks(random, kBlocks, 5);
  std::vector<unsigned char> packed(5 * from.block_bytes(0)), again(packed.size());
  OK(nmc_kv_gather(from.kv, 0, here.data(), 5, packed.data(), packed.size(), nullptr));
  OK(nmc_kv_scatter(to.kv, 0, there.data(), 5, packed.data(), packed.size(), nullptr));
  OK(nmc_kv_gather(to.kv, NMC_KV_GROUPS_ALL, there.data(), 5, again.data(), again.size(), nullptr));
  CHECK(packed == again);
}

void fork_and_move() {
  promise("the copies of a fork, a cut and a move are made by nmc_kv_copy_blocks");
  nmc_kv_group_t layout = group_of(NMC_KV_KIND_ATTENTION, NMC_DTYPE_BF16, 2, 2, 8, NMC_KV_LAYER_MAJOR, NMC_KV_SIDES_SEPARATE);
  Arena arena(layout, 32, 4);
  nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
  config.total_blocks = 32, config.tokens_per_block = 4;
  config.groups = &arena.c(), config.n_groups = 1;
  nmc_kv_t* kv = nullptr;
  REQUIRE(nmc_kv_create(nullptr, &config, &kv) == NMC_OK);
  auto byte_of = [&](uint64_t id, uint64_t token) -> unsigned char& {
    void* at = nullptr;
    REQUIRE(nmc_kv_token_address(kv, id, token, 0, 1, NMC_KV_V, 1, &at) == NMC_OK);
    return *static_cast<unsigned char*>(at);
  };
  auto make_copies = [&](uint64_t id) {
    nmc_kv_copy_t copies[32];
    size_t n = 0;
    OK(nmc_kv_take_copies(kv, id, copies, 32, &n));
    for (size_t i = 0; i < n; ++i) {
      CHECK(copies[i].from >= 0 && copies[i].to >= 0 && copies[i].group == kAll && copies[i].bytes == 0);
      CHECK(copies[i].from_address == nullptr && copies[i].to_address == nullptr);
    }
    OK(nmc_kv_copy_blocks(kv, copies, n, nullptr));
    return n;
  };
  OK(nmc_kv_open(kv, 1, nullptr, 6, nullptr, nullptr, nullptr));
  for (uint64_t t = 0; t < 6; ++t) byte_of(1, t) = static_cast<unsigned char>(10 + t);
  OK(nmc_kv_fork(kv, 1, 2, nullptr));
  CHECK(make_copies(2) == 1);
  OK(nmc_kv_truncate(kv, 2, 3, nullptr));
  CHECK(make_copies(2) == 1);
  for (uint64_t t = 0; t < 3; ++t) CHECK(byte_of(2, t) == 10 + t);
  byte_of(2, 2) = 99;
  CHECK(byte_of(1, 2) == 12);

  nmc_kv_open_t options = NMC_KV_OPEN_INIT;
  options.flags = NMC_KV_OPEN_CONTIGUOUS;
  OK(nmc_kv_open(kv, 3, nullptr, 8, &options, nullptr, nullptr));
  OK(nmc_kv_open(kv, 4, nullptr, 8, &options, nullptr, nullptr));
  size_t moved = 0;
  for (uint64_t t = 0; t < 8; ++t) byte_of(3, t) = byte_of(4, t) = static_cast<unsigned char>(50 + t);
  for (uint64_t id : {3, 4}) {
    OK(nmc_kv_append(kv, id, nullptr, 24, nullptr, nullptr));
    moved += make_copies(id);
    for (uint64_t t = 0; t < 8; ++t) CHECK(byte_of(id, t) == 50 + t);
  }
  CHECK(moved > 0);
  OK(nmc_kv_destroy(kv));
}

void refused() {
  promise("what makes no sense is refused with a reason, and nothing is copied");
  Cache cache({group_of(NMC_KV_KIND_ATTENTION, NMC_DTYPE_BF16, 2, 2, 8, 0, 0), group_of(NMC_KV_KIND_MLA, NMC_DTYPE_FP8, 1, 1, 3, 0, 0)}, kBlocks, 4);
  const size_t first = cache.block_bytes(0), bytes = cache.block_bytes(NMC_KV_GROUPS_ALL);
  std::vector<unsigned char> memory(kBlocks * bytes, 0x77);
  const auto untouched = memory;
  const auto before = cache.content();
  void* const to = memory.data();
  const int32_t blocks[] = {3, 1, 3};
  const int stream = 0;
  void* const any_stream = const_cast<int*>(&stream);
  auto gather = [&](uint32_t group, const int32_t* list, size_t n, void* at, uint64_t room, void* s = nullptr) {
    return nmc_kv_gather(cache.kv, group, list, n, at, room, s);
  };
  FAILS(gather(2, blocks, 2, to, memory.size()), NMC_ERR_INVALID_ARG, "group 2 does not exist");
  FAILS(gather(UINT32_MAX - 1, blocks, 2, to, memory.size()), NMC_ERR_INVALID_ARG, "does not exist");
  FAILS(gather(0, nullptr, 2, to, memory.size()), NMC_ERR_INVALID_ARG, "blocks");
  FAILS(gather(0, blocks, SIZE_MAX, to, memory.size()), NMC_ERR_INVALID_ARG, "blocks");
  FAILS(gather(0, blocks, 2, nullptr, memory.size()), NMC_ERR_INVALID_ARG, "NULL");
  FAILS(gather(0, blocks, 2, to, 2 * first - 1), NMC_ERR_TOO_SMALL, std::to_string(2 * first).c_str());
  FAILS(gather(NMC_KV_GROUPS_ALL, blocks, 3, to, 3 * bytes - 1), NMC_ERR_TOO_SMALL, std::to_string(3 * bytes).c_str());
  FAILS(gather(0, blocks, 2, to, memory.size(), any_stream), NMC_ERR_INVALID_ARG, "stream must be NULL");
  for (int32_t bad : {-1, static_cast<int32_t>(kBlocks), INT32_MAX, INT32_MIN}) {
    const int32_t list[] = {0, bad};
    const std::string says = "block " + std::to_string(bad) + " does not exist; there are 11";
    FAILS(gather(0, list, 2, to, memory.size()), NMC_ERR_INVALID_ARG, says.c_str());
    FAILS(nmc_kv_scatter(cache.kv, 0, list, 2, to, memory.size(), nullptr), NMC_ERR_INVALID_ARG, says.c_str());
    const nmc_kv_copy_t reads[] = {nmc::kv_copy(bad, 0, kAll)}, writes[] = {nmc::kv_copy(0, bad, kAll)};
    FAILS(nmc_kv_copy_blocks(cache.kv, reads, 1, nullptr), NMC_ERR_INVALID_ARG, says.c_str());
    FAILS(nmc_kv_copy_blocks(cache.kv, writes, 1, nullptr), NMC_ERR_INVALID_ARG, says.c_str());
  }
  void* const own = cache.arena(1).base();
  FAILS(gather(NMC_KV_GROUPS_ALL, blocks, 1, own, bytes), NMC_ERR_INVALID_ARG, "overlaps");
  FAILS(gather(0, blocks, 1, reinterpret_cast<void*>(UINTPTR_MAX - 8), bytes), NMC_ERR_INVALID_ARG, "overlaps");
  FAILS(nmc_kv_scatter(cache.kv, 0, blocks, 3, to, memory.size(), nullptr), NMC_ERR_INVALID_ARG, "block 3 would be written twice");
  FAILS(nmc_kv_scatter(cache.kv, 0, blocks, 2, to, 1, nullptr), NMC_ERR_TOO_SMALL, "need");
  FAILS(nmc_kv_scatter(cache.kv, 0, blocks, 2, to, memory.size(), any_stream), NMC_ERR_INVALID_ARG, "stream must be NULL");
  const nmc_kv_copy_t twice[] = {nmc::kv_copy(1, 2, kAll), nmc::kv_copy(3, 2, kAll)}, chain[] = {nmc::kv_copy(1, 2, kAll), nmc::kv_copy(2, 3, kAll)};
  const nmc_kv_copy_t itself[] = {nmc::kv_copy(4, 4, kAll)}, fine[] = {nmc::kv_copy(1, 2, kAll)}, elsewhere[] = {nmc::kv_copy(1, 2, 77)};
  FAILS(nmc_kv_copy_blocks(cache.kv, twice, 2, nullptr), NMC_ERR_INVALID_ARG, "block 2 would be written twice");
  FAILS(nmc_kv_copy_blocks(cache.kv, chain, 2, nullptr), NMC_ERR_INVALID_ARG, "block 2 would be read and written");
  FAILS(nmc_kv_copy_blocks(cache.kv, itself, 1, nullptr), NMC_ERR_INVALID_ARG, "block 4 would be read and written");
  FAILS(nmc_kv_copy_blocks(cache.kv, elsewhere, 1, nullptr), NMC_ERR_INVALID_ARG, "group 77 does not exist");
  const nmc_kv_copy_t mixed[] = {nmc::kv_copy(1, 2, kAll), nmc::kv_copy(3, 2, 0)}, passed[] = {nmc::kv_copy(2, 3, 0), nmc::kv_copy(1, 2, kAll)};
  FAILS(nmc_kv_copy_blocks(cache.kv, mixed, 2, nullptr), NMC_ERR_INVALID_ARG, "block 2 would be written twice");
  FAILS(nmc_kv_copy_blocks(cache.kv, passed, 2, nullptr), NMC_ERR_INVALID_ARG, "block 2 would be read and written");
  FAILS(nmc_kv_copy_blocks(cache.kv, fine, 1, any_stream), NMC_ERR_INVALID_ARG, "stream must be NULL");
  FAILS(nmc_kv_copy_blocks(cache.kv, nullptr, 1, nullptr), NMC_ERR_INVALID_ARG, "copies");
  const nmc_kv_copy_t of_bytes = {-1, -1, 0, 0, to, to, 8}, half = {-1, -1, 0, 0, nullptr, to, 8}, odd = {1, 2, kAll, 7, nullptr, nullptr, 0};
  FAILS(nmc_kv_copy_blocks(cache.kv, &of_bytes, 1, nullptr), NMC_ERR_UNSUPPORTED, "is for NMC_KV_VIRTUAL");
  FAILS(nmc_kv_copy_blocks(cache.kv, &half, 1, nullptr), NMC_ERR_UNSUPPORTED, "is for NMC_KV_VIRTUAL");
  FAILS(nmc_kv_copy_blocks(cache.kv, &odd, 1, nullptr), NMC_ERR_INVALID_ARG, "reserved");
  GIVES(nmc_kv_copy_blocks(nullptr, fine, 1, nullptr), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_kv_gather(nullptr, 0, blocks, 1, to, bytes, nullptr), NMC_ERR_BAD_HANDLE);
  OK(gather(NMC_KV_GROUPS_ALL, nullptr, 0, nullptr, 0));
  OK(nmc_kv_scatter(cache.kv, 1, nullptr, 0, nullptr, 0, nullptr));
  OK(nmc_kv_copy_blocks(cache.kv, nullptr, 0, nullptr));
  CHECK(memory == untouched && cache.content() == before && cache.guards_are_whole());

  promise("a cache without memory, or with virtual placement, has nothing to copy");
  nmc_kv_group_t groups[] = {cache.arena(0).c(), cache.arena(1).c()};
  groups[1].memory = nullptr, groups[1].memory_bytes = 0;
  nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
  config.total_blocks = kBlocks, config.tokens_per_block = 4;
  for (uint32_t n : {0u, 2u}) {
    nmc_kv_t* kv = nullptr;
    config.groups = groups, config.n_groups = n;
    REQUIRE(nmc_kv_create(nullptr, &config, &kv) == NMC_OK);
    FAILS(nmc_kv_gather(kv, NMC_KV_GROUPS_ALL, blocks, 1, to, bytes, nullptr), NMC_ERR_INVALID_ARG, "does not know");
    FAILS(nmc_kv_copy_blocks(kv, fine, 1, nullptr), NMC_ERR_INVALID_ARG, "does not know");
    if (n == 2) {
      FAILS(nmc_kv_gather(kv, 1, blocks, 1, to, bytes, nullptr), NMC_ERR_INVALID_ARG, "memory of group 1");
      OK(nmc_kv_gather(kv, 0, blocks, 1, to, bytes, nullptr));
    }
    OK(nmc_kv_destroy(kv));
  }
  nmc_kv_t* kv = nullptr;
  groups[0] = group_of(NMC_KV_KIND_ATTENTION, NMC_DTYPE_BF16, 1, 1, 512, NMC_KV_BLOCK_MAJOR, NMC_KV_SIDES_PER_LAYER);
  config.groups = groups, config.n_groups = 1, config.flags = NMC_KV_VIRTUAL;
  REQUIRE(nmc_kv_page_tokens(&config, &config.tokens_per_block) == NMC_OK);
  REQUIRE(nmc_kv_create(nullptr, &config, &kv) == NMC_OK);
  FAILS(nmc_kv_gather(kv, 0, blocks, 1, to, bytes, nullptr), NMC_ERR_UNSUPPORTED, "NMC_KV_VIRTUAL");
  FAILS(nmc_kv_scatter(kv, 0, blocks, 1, to, bytes, nullptr), NMC_ERR_UNSUPPORTED, "NMC_KV_VIRTUAL");
  FAILS(nmc_kv_copy_blocks(kv, fine, 1, nullptr), NMC_ERR_UNSUPPORTED, "NMC_KV_VIRTUAL");
  OK(nmc_kv_destroy(kv));
}

void own_blocks() {
  promise("a cache whose groups all have blocks of their own has no blocks of all, and no copies to make are none");
  std::vector<uint64_t> states = {1, 2, 3, 4};
  nmc_kv_group_t group = NMC_KV_GROUP_INIT;
  group.kind = NMC_KV_KIND_RECURRENT, group.layers = 1, group.state_bytes = 8, group.blocks = 4;
  group.memory = states.data(), group.memory_bytes = states.size() * 8;
  nmc_kv_config_t config = NMC_KV_CONFIG_INIT;
  config.total_blocks = kBlocks, config.groups = &group, config.n_groups = 1;
  nmc_kv_t* kv = nullptr;
  REQUIRE(nmc_kv_create(nullptr, &config, &kv) == NMC_OK);
  OK(nmc_kv_copy_blocks(kv, nullptr, 0, nullptr));
  const nmc_kv_copy_t copy = nmc::kv_copy(1, 3, 0);
  OK(nmc_kv_copy_blocks(kv, &copy, 1, nullptr));
  CHECK(states == std::vector<uint64_t>({1, 2, 3, 2}));
  OK(nmc_kv_destroy(kv));
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  if (argc > 2) fault = argv[2];
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  all_layouts(random);
  exchange(random);
  if (fault.empty()) {
    fork_and_move();
    refused();
    own_blocks();
  }
  return finish();
}
