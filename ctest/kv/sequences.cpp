// What sequences of the block KV cache do, through the C ABI: every function, and a random walk over all of them in every
// layout and under every policy. After each step all sequences must read their own bytes, the audit must be clean and the
// numbers must add up.
//
//   kv_sequences [steps of a walk] [seed] [stale|copy]
//
// The last argument is the control: an engine that says that a block is computed before it is, or does not make the copies.
#include "kv_engine.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace {

using namespace kv;

// ---- prefixes -----------------------------------------------------------------------------------------------------------

void prefix_hits() {
  promise("full blocks of equal tokens are found again, at least one token is left, and salts keep apart");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  const Tokens prompt = numbers(100, 10);
  OK(e.open(1, prompt));
  CHECK(e.opened.hit_tokens == 0 && e.opened.tokens == 10);
  e.verify();
  CHECK(e.match(prompt) == 0);  // not computed yet, as far as the calls tell
  OK(e.append(1, {7}));
  CHECK(e.match(prompt) == 8);
  OK(e.open(2, prompt));
  CHECK(e.opened.hit_tokens == 8);
  OK(e.open(3, numbers(100, 8)));  // all of it is there, but the last token's result is needed
  CHECK(e.opened.hit_tokens == 4);
  OK(e.open(4, numbers(100, 8), "", NMC_KV_OPEN_MATCH_ALL));
  CHECK(e.opened.hit_tokens == 8);
  OK(e.open(5, prompt, "tenant"));
  CHECK(e.opened.hit_tokens == 0 && e.match(prompt, "tenant") == 0);
  OK(e.open(6, prompt, "", NMC_KV_OPEN_PRIVATE));
  CHECK(e.opened.hit_tokens == 0);
  OK(e.open(7, prompt, "", 0, false));  // unknown tokens
  CHECK(e.opened.hit_tokens == 0);
  OK(e.open(8, {}));
  e.verify();
  Tokens other = prompt;
  other[5] = 0;
  CHECK(e.match(other) == 4);
  CHECK(e.match(numbers(101, 10)) == 0 && e.match({}) == 0 && e.match(numbers(100, 3)) == 0);
  const nmc_kv_stats_t stats = e.stats();
  CHECK(stats.sequences == 8 && stats.hit_tokens == 20 && stats.asked_tokens == 66);
  for (uint64_t id = 1; id <= 8; ++id) OK(e.close(id));
  e.verify();
  // 11 tokens of 1 and 10 with a salt: 2 + 2 full blocks; the rest was equal, private or unknown.
  CHECK(e.stats().idle == 4 && e.stats().used == 0 && e.stats().published == 4);
  CHECK(e.match(prompt) == 8 && e.match(prompt, "tenant") == 8);
}

void lag_by_one() {
  promise("tokens can be matched with the next append or close, or with commit, and not before");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 4)));
  CHECK(e.match(numbers(0, 4)) == 0);
  OK(e.append(1, {4}));
  CHECK(e.match(numbers(0, 8)) == 4);
  OK(e.append(1, {5, 6, 7}));
  CHECK(e.match(numbers(0, 8)) == 4 && e.info(1).published == 1);
  OK(nmc_kv_commit(e.kv, 1, 7));
  CHECK(e.match(numbers(0, 8)) == 4);
  OK(nmc_kv_commit(e.kv, 1, 8));
  CHECK(e.match(numbers(0, 8)) == 8 && e.info(1).published == 2);
  OK(nmc_kv_commit(e.kv, 1, 0));  // never takes anything back
  CHECK(e.match(numbers(0, 8)) == 8);
  OK(e.append(1, {8, 9, 10, 11}));
  e.verify();
  OK(e.close(1));
  CHECK(e.match(numbers(0, 12)) == 12);

  promise("an abort publishes only what counted as computed before");
  OK(e.open(2, numbers(50, 9)));
  OK(e.append(2, {59, 60, 61}));
  OK(e.close(2, NMC_KV_CLOSE_ABORT));
  CHECK(e.match(numbers(50, 12)) == 8);
  OK(e.open(3, numbers(80, 8)));
  OK(nmc_kv_commit(e.kv, 3, 5));
  OK(e.close(3, NMC_KV_CLOSE_ABORT));
  CHECK(e.match(numbers(80, 8)) == 4);
  e.verify();

  promise("tokens that are not known end the publishing, and an empty sequence publishes what it gets");
  OK(e.open(4, numbers(200, 4)));
  OK(e.append(4, {1, 2}, false));
  OK(e.append(4, {3, 4}));
  OK(e.append(4, {5}));
  e.verify();
  OK(e.close(4));
  CHECK(e.match({200, 201, 202, 203, 1, 2, 3, 4}) == 4);
  OK(e.open(5, {}));
  OK(e.append(5, numbers(300, 5)));
  OK(e.close(5));
  CHECK(e.match(numbers(300, 5)) == 4);
  e.verify();
}

void equal_at_once() {
  promise("blocks that two sequences compute at once become one, and both read the right bytes");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 8)));
  OK(e.open(2, numbers(0, 8)));
  CHECK(e.stats().used == 4);
  OK(e.append(1, {8}));
  OK(e.append(2, {9}));
  e.verify();
  const nmc_kv_stats_t stats = e.stats();
  CHECK(stats.deduplicated == 2 && stats.used == 4 && stats.published == 2);
  CHECK(e.fresh_table(1)[0] == e.fresh_table(2)[0] && e.fresh_table(1)[2] != e.fresh_table(2)[2]);
  OK(e.close(1));
  e.verify();
  OK(e.close(2));
}

void hashes() {
  promise("a program that computes hashes itself gets the same hits, and each kind of hash works");
  for (uint32_t kind : {NMC_KV_HASH_BLAKE3, NMC_KV_HASH_SHA256, NMC_KV_HASH_XXH3}) {
    nmc_kv_config_t config = plain_config(64);
    config.hash = kind;
    config.hash_secret = slice_of("secret");
    Cache cache(config);
    Engine e = cache.engine();
    const Tokens prompt = numbers(5, 14);
    std::vector<nmc_kv_hash_t> hash(3), salted(3);
    OK(nmc_kv_hash(e.kv, prompt.data(), prompt.size(), {nullptr, 0}, hash.data()));
    OK(nmc_kv_hash(e.kv, prompt.data(), prompt.size(), slice_of("x"), salted.data()));
    CHECK(std::memcmp(&hash[0], &salted[0], 16) != 0 && std::memcmp(&hash[0], &hash[1], 16) != 0);
    OK(e.open(1, prompt));
    OK(e.close(1));
    nmc_kv_open_t options = NMC_KV_OPEN_INIT;
    options.hashes = hash.data();
    options.n_hashes = hash.size();
    OK(e.open(2, prompt, options));
    CHECK(e.opened.hit_tokens == 12);
    uint64_t hit = 0;
    OK(nmc_kv_match(e.kv, prompt.data(), prompt.size(), hash.data(), {nullptr, 0}, &hit));
    CHECK(hit == 12);
    if (kind == NMC_KV_HASH_XXH3) {
      GIVES(e.open(3, prompt, options, false), NMC_ERR_INVALID_ARG);
      GIVES(nmc_kv_match(e.kv, nullptr, 14, hash.data(), {nullptr, 0}, &hit), NMC_ERR_INVALID_ARG);
    } else {
      OK(e.open(3, prompt, options, false));
      CHECK(e.opened.hit_tokens == 12);
      OK(nmc_kv_match(e.kv, nullptr, 14, hash.data(), {nullptr, 0}, &hit));
      CHECK(hit == 12);
      // Known by hashes alone, a sequence publishes as far as these go.
      const Tokens far = numbers(1000, 10);
      OK(nmc_kv_hash(e.kv, far.data(), far.size(), {nullptr, 0}, hash.data()));
      options.n_hashes = 2;
      OK(e.open(4, far, options, false));
      OK(e.append(4, numbers(1010, 6)));
      CHECK(e.match(numbers(1000, 16)) == 8);
      OK(e.close(4));
      CHECK(e.match(numbers(1000, 16)) == 8);
      OK(e.close(3));
    }
    e.verify();
    OK(e.close(2));
  }
}

// ---- forks, cuts, room --------------------------------------------------------------------------------------------------

void forks() {
  promise("a fork shares full blocks and copies one that is not full");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 10)));
  OK(e.fork(1, 2));
  CHECK(e.last_copies() == 1 && e.info(2).shared == 2 && e.info(1).shared == 3 && e.stats().used == 4);
  OK(e.fork(2, 3));
  OK(e.append(1, {10, 11, 12}));
  OK(e.append(2, {20, 21, 22, 23}));
  OK(e.append(3, {30}));
  e.verify();
  CHECK(e.fresh_table(1)[1] == e.fresh_table(3)[1] && e.fresh_table(1)[2] != e.fresh_table(3)[2]);
  OK(e.close(1));
  e.verify();
  OK(e.open(4, numbers(0, 8)));
  OK(e.fork(4, 5));  // nothing is left over, so nothing is copied
  CHECK(e.last_copies() == 0);
  OK(e.append(5, {5}));
  OK(e.append(4, {4}));
  e.verify();
  OK(e.open(6, {}));
  OK(e.fork(6, 7));
  OK(e.append(7, {1}));
  GIVES(e.fork(7, 2), NMC_ERR_EXISTS);
  GIVES(e.fork(99, 100), NMC_ERR_NOT_FOUND);
  e.verify();

  promise("a fork of a contiguous sequence is paged, and one of a fork that reserved gets only tokens");
  OK(e.open(8, numbers(40, 7), "", NMC_KV_OPEN_CONTIGUOUS));
  OK(e.fork(8, 9));
  CHECK(e.info(8).contiguous == 1 && e.info(9).contiguous == 0);
  OK(e.append(9, numbers(60, 9)));
  OK(e.append(8, numbers(70, 9)));
  e.verify();
  OK(e.reserve(9, 100));
  OK(e.fork(9, 10));
  CHECK(e.info(9).blocks == 25 && e.info(10).blocks == 4);
  e.verify();
  for (uint64_t id : {2, 3, 4, 5, 6, 7, 8, 9, 10}) OK(e.close(id));
  e.verify();
  CHECK(e.stats().used == 0);
}

void cuts() {
  promise("a private tail is cut in place, a tail that others read is copied");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 6)));
  OK(e.append(1, {6, 7, 8, 9}));  // speculation
  OK(e.truncate(1, 7));
  CHECK(e.last_copies() == 0 && e.info(1).blocks == 2);
  e.verify();
  OK(e.append(1, {70, 80}));
  e.verify();
  CHECK(e.match(joined(numbers(0, 7), {70})) == 4);
  OK(e.append(1, {90}));
  CHECK(e.match(joined(numbers(0, 7), {70})) == 8 && e.match(numbers(0, 10)) == 4);

  OK(e.open(2, joined(numbers(0, 7), {70, 5})));
  CHECK(e.opened.hit_tokens == 8);
  OK(e.truncate(2, 6));  // into a block that sequence 1 reads as well
  CHECK(e.last_copies() == 1);
  OK(e.append(2, {61, 62, 63}));
  e.verify();
  OK(e.truncate(2, 4));
  OK(e.truncate(2, 4));
  e.verify();
  OK(e.append(2, numbers(600, 5)));
  OK(e.append(2, {1}));
  OK(e.truncate(2, 0));
  CHECK(e.info(2).blocks == 0);
  OK(e.append(2, numbers(900, 5)));
  e.verify();
  OK(e.close(2));
  GIVES(e.truncate(1, 1000), NMC_ERR_INVALID_ARG);

  promise("a cut among a fork's blocks leaves the other as it was");
  OK(e.open(3, numbers(300, 12)));
  OK(e.fork(3, 4));
  OK(e.truncate(4, 5));
  CHECK(e.last_copies() == 1);
  OK(e.append(4, numbers(3000, 9)));
  OK(e.truncate(3, 11));
  OK(e.append(3, {1}));
  e.verify();
  OK(e.close(3));
  OK(e.truncate(4, 3));
  e.verify();
  OK(e.close(4));
  OK(e.close(1));
  e.verify();
  CHECK(e.stats().used == 0);
}

void rooms() {
  promise("what does not fit changes nothing and says how much there is; what is reserved fits");
  Cache cache(plain_config(8));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 12)));
  OK(e.reserve(1, 20));
  CHECK(e.info(1).blocks == 5 && e.stats().used == 5);
  FAILS(e.open(2, numbers(100, 16)), NMC_ERR_NO_SPACE, "4 blocks are needed, 3 are free and 0 hold cached");
  CHECK(e.room.needed == 4 && e.room.free == 3 && e.room.evictable == 0);
  OK(e.open(2, numbers(100, 12)));
  CHECK(e.stats().is_full == 1);
  OK(e.append(1, numbers(12, 8)));
  FAILS(e.append(1, {20}), NMC_ERR_NO_SPACE, "1 blocks are needed");
  GIVES(e.reserve(1, 21), NMC_ERR_NO_SPACE);
  GIVES(e.fork(2, 3), NMC_OK);  // full blocks alone: nothing is needed
  GIVES(e.append(3, {1}), NMC_ERR_NO_SPACE);
  OK(e.close(3));
  e.verify();
  OK(e.close(2));
  CHECK(e.stats().is_full == 0 && e.stats().idle == 3);
  OK(e.append(1, {20}));  // takes a cached block
  CHECK(e.stats().evicted_blocks == 1 && e.stats().idle == 2 && e.match(numbers(100, 12)) == 8);
  e.verify();
  OK(e.truncate(1, 20));
  OK(e.reserve(1, 24));
  OK(e.truncate(1, 20));  // gives back what was reserved
  CHECK(e.info(1).blocks == 5);
  e.verify();
  GIVES(e.reserve(1, (uint64_t{1} << 31) + 1), NMC_ERR_LIMIT);
  OK(e.close(1));
}

void batches() {
  promise("a batch of appends gives each its status, and those that fail are as they were");
  Cache cache(plain_config(4));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 4)));
  OK(e.open(2, numbers(10, 3)));
  OK(e.open(3, numbers(20, 4)));
  const uint64_t ids[] = {1, 2, 99, 3, 2};
  const uint32_t tokens[] = {100, 101, 102, 103, 104};
  nmc_status_t statuses[5];
  GIVES(nmc_kv_append_batch(e.kv, ids, tokens, 5, statuses), NMC_ERR_NOT_FOUND);
  CHECK(error_mentions("no sequence 99 is open"));
  CHECK(statuses[0] == NMC_OK && statuses[1] == NMC_OK && statuses[2] == NMC_ERR_NOT_FOUND);
  CHECK(statuses[3] == NMC_ERR_NO_SPACE && statuses[4] == NMC_ERR_NO_SPACE);
  e.appended(1, {100});
  e.appended(2, {101});
  e.verify();
  OK(nmc_kv_append_batch(e.kv, ids, tokens, 0, nullptr));
  OK(e.close(3));
  GIVES(nmc_kv_append_batch(e.kv, ids, nullptr, 2, nullptr), NMC_OK);
  e.appended(1, {5});
  e.appended(2, {6});
  e.verify();
  OK(e.close(1));
  OK(e.close(2));
}

// ---- dropping -------------------------------------------------------------------------------------------------------------

void dropping() {
  promise("the least important blocks of the middle go, and leave -1 in every table");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 4)));
  const float scores[] = {5, 1, 3, 1, 9, 2};
  for (uint32_t i = 0; i < 6; ++i) {
    const Tokens four = numbers(4 + 4 * i, 4);
    nmc_kv_append_t options = NMC_KV_APPEND_INIT;
    options.importance = scores[i];
    OK(nmc_kv_append(e.kv, 1, four.data(), 4, &options, nullptr));
    e.appended(1, four);
  }
  OK(e.append(1, {28, 29}));
  uint32_t dropped = 0;
  OK(nmc_kv_drop_least(e.kv, 1, 3, 1, 1, &dropped));
  CHECK(dropped == 3 && e.info(1).dropped == 3 && e.info(1).blocks == 8);
  const std::vector<int32_t> table = e.fresh_table(1);
  CHECK(table[2] == -1 && table[4] == -1 && table[3] == -1 && table[0] >= 0 && table[5] >= 0 && table[7] >= 0);
  e.verify();
  OK(nmc_kv_drop_least(e.kv, 1, 100, 1, 1, nullptr));
  CHECK(e.info(1).dropped == 5);
  OK(nmc_kv_drop_least(e.kv, 1, UINT32_MAX, UINT32_MAX, UINT32_MAX, &dropped));
  CHECK(dropped == 0);
  OK(e.append(1, numbers(30, 5)));
  e.verify();
  FAILS(e.truncate(1, 10), NMC_ERR_INVALID_ARG, "were dropped");
  OK(e.truncate(1, 29));
  OK(e.append(1, {99}));
  e.verify();
  OK(e.fork(1, 2));
  OK(e.append(2, numbers(500, 6)));
  e.verify();
  int32_t indptr[2], last = 0, indices[16];
  size_t n = 0;
  const uint64_t id = 1;
  OK(nmc_kv_table_csr(e.kv, 0, &id, 1, indptr, &last, indices, 16, &n));
  CHECK(n == 8 && indices[2] == -1 && last == 2);
  OK(e.close(1));
  OK(e.close(2));
  e.verify();
  CHECK(e.stats().used == 0);
}

void dropping_makes_room() {
  promise("blocks that were dropped make room, also if what comes after them can be matched and is held");
  for (uint32_t eviction = 0; eviction < 5; ++eviction) {
    nmc_kv_config_t config = plain_config(10);
    config.eviction = eviction;
    config.hash = eviction == 1 ? NMC_KV_HASH_XXH3 : NMC_KV_HASH_BLAKE3;
    Cache cache(config);
    Engine e = cache.engine();
    OK(e.open(1, numbers(0, 40)));
    OK(nmc_kv_commit(e.kv, 1, 40));
    OK(e.fork(1, 2));
    for (uint64_t id : {1, 2}) OK(nmc_kv_drop_least(e.kv, id, 6, 1, 1, nullptr));
    CHECK(e.stats().idle == 6 && e.match(numbers(0, 40)) == 40);
    OK(e.open(3, numbers(100, 20)));
    e.verify();
    CHECK(e.match(numbers(0, 40)) < 40 && e.stats().published < 10);
    OK(e.close(2));
    OK(e.append(1, numbers(500, 4)));
    e.verify();
    OK(e.truncate(1, 36));
    OK(e.append(1, {7}));
    e.verify();
    uint64_t evicted = 0;
    OK(nmc_kv_clear(e.kv, &evicted));
    CHECK(e.stats().idle == 0);
    OK(e.close(3));
    OK(e.close(1));
    e.verify();
    CHECK(e.stats().used == 0);
  }
}

void window() {
  promise("blocks that the window has passed are freed as a sequence grows, also after a cut to nothing");
  nmc_kv_config_t config = plain_config(16);
  config.window = 6;
  Cache cache(config);
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 5)));
  for (uint32_t t = 5; t < 100; ++t) {
    if (!OK(e.append(1, {t}))) break;
    const nmc_kv_seq_info_t info = e.info(1);
    CHECK(info.blocks - info.dropped <= 3);
    // Token t attends to the tokens from t - 5 on.
    const std::vector<int32_t> table = e.fresh_table(1);
    for (uint32_t seen = t < 5 ? 0 : t - 5; seen <= t; ++seen) CHECK(table[seen / 4] >= 0);
    e.verify();
  }
  OK(e.truncate(1, 0));
  for (uint32_t t = 0; t < 50; ++t) OK(e.append(1, {t}));
  if (!CHECK(e.info(1).blocks - e.info(1).dropped <= 3)) std::printf("     blocks that left the window stay after a cut\n");
  e.verify();
  OK(e.close(1));
}

// ---- contiguous -------------------------------------------------------------------------------------------------------------

void contiguous() {
  promise("a contiguous sequence grows in place or moves with its bytes, and its view is its own blocks");
  {
    Cache cache(plain_config(64), {plain_group(2, 2, 8)});
    Engine e = cache.engine();
    OK(e.open(1, numbers(0, 6), "", NMC_KV_OPEN_CONTIGUOUS));
    OK(e.open(2, numbers(50, 6), "", NMC_KV_OPEN_CONTIGUOUS));
    size_t moves = 0;
    for (uint32_t i = 0; i < 60; ++i) {
      OK(e.append(1 + i % 2, {1000 + i}));
      moves += e.last_copies() != 0;
      const std::vector<int32_t> table = e.fresh_table(1 + i % 2);
      for (size_t k = 1; k < table.size(); ++k) CHECK(table[k] == table[k - 1] + 1);
      e.verify();
    }
    CHECK(moves > 0);
    OK(e.reserve(1, 60));
    e.verify();
    nmc_kv_view_t view = NMC_KV_VIEW_INIT;
    OK(nmc_kv_view(e.kv, 1, 0, 1, NMC_KV_V, &view));
    CHECK(view.shape[0] == 15 && view.shape[1] == 2 && view.shape[2] == 4 && view.shape[3] == 8 && view.contiguous == 1);
    OK(e.truncate(1, 9));
    e.verify();
    OK(e.close(2));
    uint32_t dropped = 0;
    OK(e.append(1, numbers(0, 20)));
    OK(nmc_kv_drop_least(e.kv, 1, 2, 1, 1, &dropped));
    CHECK(dropped == 2);
    e.verify();
    OK(e.open(3, numbers(70, 20)));
    OK(e.append(1, numbers(0, 60)));
    e.verify();
    OK(e.close(1));
    OK(e.close(3));
    e.verify();
    CHECK(e.stats().used == 0);
  }
  promise("what contiguous sequences computed is found by paged ones, and a cut moves where others read");
  Cache cache(plain_config(32));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 9), "", NMC_KV_OPEN_CONTIGUOUS));
  OK(e.append(1, {9}));
  OK(e.open(2, numbers(0, 9)));
  CHECK(e.opened.hit_tokens == 8);
  OK(e.open(3, numbers(0, 9), "", NMC_KV_OPEN_CONTIGUOUS));
  CHECK(e.opened.hit_tokens == 0);
  OK(e.truncate(1, 6));
  CHECK(e.last_copies() == 2);
  OK(e.append(1, {77, 78, 79}));
  e.verify();
  for (uint64_t id : {1, 2, 3}) OK(e.close(id));
  e.verify();
}

// ---- no room --------------------------------------------------------------------------------------------------------------

void shorten() {
  promise("with NMC_KV_WHEN_FULL_SHORTEN a sequence gets what there is, and that is its limit");
  nmc_kv_config_t config = plain_config(8);
  config.when_full = NMC_KV_WHEN_FULL_SHORTEN;
  Cache cache(config);
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 10)));
  OK(e.open(2, numbers(100, 40)));
  CHECK(e.opened.tokens == 20 && e.info(2).max_tokens == 20);
  FAILS(e.append(2, {1}), NMC_ERR_LIMIT, "its limit is 20");
  e.verify();
  GIVES(e.open(3, numbers(500, 4)), NMC_ERR_NO_SPACE);
  OK(e.truncate(2, 18));
  OK(e.append(2, {1, 2}));
  OK(e.close(1));
  e.verify();
  OK(e.open(4, numbers(700, 40), "", NMC_KV_OPEN_CONTIGUOUS));
  CHECK(e.opened.tokens > 0 && e.opened.tokens <= 12);
  e.verify();
  OK(e.close(2));
  OK(e.close(4));

  promise("a sequence that is shortened to what the cache has would have nothing to compute: there is no room for it");
  OK(nmc_kv_clear(e.kv, nullptr));
  OK(e.open(5, numbers(0, 32)));
  OK(nmc_kv_commit(e.kv, 5, 32));
  const Tokens other = joined(numbers(0, 8), numbers(900, 8));
  GIVES(e.open(6, other), NMC_ERR_NO_SPACE);
  OK(e.open(6, other, "", NMC_KV_OPEN_MATCH_ALL));
  CHECK(e.opened.hit_tokens == 8 && e.opened.tokens == 8);
  e.verify();
  OK(e.close(5));
  OK(e.close(6));
}

void order_of_eviction() {
  promise("the policy says which cached prefix goes first, and a tail goes before what it continues");
  struct Want {
    uint32_t eviction;
    uint32_t first;  // which prompt loses blocks first: 0, 100 or 200
  };
  // Prompt 0 is the oldest and used again at the end; prompt 100 is used often; prompt 200 has the priority.
  for (const Want want : {Want{NMC_EVICT_LRU, 100}, Want{NMC_EVICT_LFU, 200}, Want{NMC_EVICT_FIFO, 0},
                          Want{NMC_EVICT_PRIORITY, 100}}) {
    nmc_kv_config_t config = plain_config(9);
    config.eviction = want.eviction;
    Cache cache(config);
    Engine e = cache.engine();
    uint64_t id = 1;
    const auto use = [&](uint32_t first) {
      nmc_kv_open_t options = NMC_KV_OPEN_INIT;
      options.flags = NMC_KV_OPEN_MATCH_ALL;
      options.priority = first == 200 ? 5 : 0;
      OK(e.open(id, numbers(first, 12), options));
      OK(e.close(id++));
    };
    use(0);
    for (int i = 0; i < 9; ++i) use(100);
    use(200);
    for (int i = 0; i < 3; ++i) use(0);
    CHECK(e.stats().idle == 9);
    OK(e.open(id, numbers(900, 4)));
    for (uint32_t prompt : {0u, 100u, 200u}) {
      if (!CHECK(e.match(numbers(prompt, 12)) == (prompt == want.first ? 8 : 12))) {
        std::printf("     eviction %u, prompt %u\n", want.eviction, prompt);
      }
    }
    e.verify();
    OK(e.close(id));
  }
}

void priorities_lapse() {
  promise("blocks of a higher priority stay longer, and no longer than its time to live");
  // How long the priority of prompt 0 lasts, and whether it outlives what is waited for.
  struct Want {
    uint32_t ttl_ms;
    bool stays;
  };
  for (const Want want : {Want{0, true}, Want{3'600'000, true}, Want{1, false}}) {
    nmc_kv_config_t config = plain_config(6);
    config.eviction = NMC_EVICT_PRIORITY;
    Cache cache(config);
    Engine e = cache.engine();
    uint64_t id = 1;
    const auto use = [&](uint32_t first, uint32_t priority, uint32_t ttl_ms) {
      nmc_kv_open_t options = NMC_KV_OPEN_INIT;
      options.priority = priority;
      options.ttl_ms = ttl_ms;
      OK(e.open(id, numbers(first, 12), options));
      OK(e.close(id++));
    };
    use(0, 5, want.ttl_ms);
    use(100, 1, 0);
    CHECK(e.stats().idle == 6);
    // At least so long; a lapse may be told late, never early.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    OK(e.open(id, numbers(900, 12)));
    CHECK(e.match(numbers(0, 12)) == (want.stays ? 12 : 0));
    CHECK(e.match(numbers(100, 12)) == (want.stays ? 0 : 12));
    e.verify();
    OK(e.close(id++));
    // What has none goes first in any case.
    OK(e.open(id, numbers(500, 12)));
    CHECK(e.match(numbers(900, 12)) == 0);
    CHECK(e.match(numbers(want.stays ? 0 : 100, 12)) == 12);
    e.verify();
    OK(e.close(id));
  }
}

void evict_sequences() {
  promise("with NMC_KV_WHEN_FULL_EVICT_SEQUENCE the one used longest ago goes, and can only be closed");
  nmc_kv_config_t config = plain_config(8);
  config.when_full = NMC_KV_WHEN_FULL_EVICT_SEQUENCE;
  Cache cache(config);
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 12)));
  OK(e.open(2, numbers(100, 12)));
  OK(e.append(1, {12}));
  uint64_t victims[4] = {0, 0, 0, 0};
  size_t n = 0;
  OK(nmc_kv_victims(e.kv, victims, 4, &n));
  CHECK(n == 2 && victims[0] == 2 && victims[1] == 1);
  OK(nmc_kv_victims(e.kv, victims, 1, &n));
  CHECK(n == 1);
  OK(e.open(3, numbers(200, 8)));
  CHECK(e.info(2).state == NMC_KV_SEQ_EVICTED && e.info(1).state == NMC_KV_SEQ_OPEN && e.stats().evicted_sequences == 1);
  FAILS(e.append(2, {1}), NMC_ERR_STALE, "were taken to make room");
  GIVES(nmc_kv_commit(e.kv, 2, 1), NMC_ERR_STALE);
  GIVES(e.fork(2, 9), NMC_ERR_STALE);
  GIVES(e.truncate(2, 0), NMC_ERR_STALE);
  e.verify();
  GIVES(nmc_kv_open(e.kv, 2, nullptr, 1, nullptr, nullptr, nullptr), NMC_ERR_EXISTS);
  OK(e.close(2));
  e.verify();
  for (uint64_t id : {1, 3}) OK(e.close(id));

  promise("a sequence that was evicted before its tokens were computed leaves nothing that can be matched");
  OK(nmc_kv_clear(e.kv, nullptr));
  e.compute = false;
  OK(e.open(4, numbers(300, 28)));
  e.compute = true;
  OK(e.open(5, numbers(400, 8)));
  CHECK(e.info(4).state == NMC_KV_SEQ_EVICTED);
  CHECK(e.match(numbers(300, 28)) == 0);
  OK(e.close(4));
  OK(e.close(5));

  promise("a sequence that can never fit takes nobody's blocks");
  OK(nmc_kv_clear(e.kv, nullptr));
  OK(e.open(6, numbers(500, 8)));
  GIVES(e.open(7, numbers(600, 33)), NMC_ERR_NO_SPACE);
  CHECK(e.info(6).state == NMC_KV_SEQ_OPEN);
  GIVES(e.reserve(6, 33), NMC_ERR_NO_SPACE);
  e.verify();
  OK(e.open(8, numbers(600, 4)));
  GIVES(e.append(8, numbers(0, 100)), NMC_ERR_NO_SPACE);
  CHECK(e.info(6).state == NMC_KV_SEQ_OPEN);
  e.verify();
  for (uint64_t id : {6, 8}) OK(e.close(id));

  promise("an id that is open already takes nobody's blocks");
  OK(e.open(9, numbers(700, 16)));
  OK(e.open(10, numbers(800, 16)));
  GIVES(nmc_kv_open(e.kv, 10, nullptr, 8, nullptr, nullptr, nullptr), NMC_ERR_EXISTS);
  CHECK(e.info(9).state == NMC_KV_SEQ_OPEN && e.info(10).state == NMC_KV_SEQ_OPEN);
  for (uint64_t id : {9, 10}) OK(e.close(id));
  e.verify();
}

// ---- the cache as a whole ---------------------------------------------------------------------------------------------------

void pins() {
  promise("pinned blocks stay, also after their sequence and under pressure, until they are unpinned");
  Cache cache(plain_config(8));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 12)));
  uint64_t pin = 0, covered = 77, none = 0;
  OK(nmc_kv_pin(e.kv, 1, 12, &none, &covered));
  CHECK(covered == 0);  // nothing is published yet
  OK(nmc_kv_commit(e.kv, 1, 12));
  OK(nmc_kv_pin(e.kv, 1, 11, &pin, &covered));
  CHECK(covered == 8 && pin != none);
  OK(e.close(1));
  CHECK(e.stats().used == 2 && e.stats().idle == 1);
  OK(e.open(2, numbers(100, 24)));
  GIVES(e.open(3, numbers(200, 4)), NMC_ERR_NO_SPACE);
  CHECK(e.match(numbers(0, 12)) == 8);
  e.verify();
  uint64_t evicted = 77;
  OK(nmc_kv_clear(e.kv, &evicted));
  CHECK(evicted == 0);
  OK(nmc_kv_unpin(e.kv, pin));
  OK(nmc_kv_unpin(e.kv, none));
  GIVES(nmc_kv_unpin(e.kv, pin), NMC_ERR_NOT_FOUND);
  OK(nmc_kv_clear(e.kv, &evicted));
  CHECK(evicted == 2 && e.match(numbers(0, 12)) == 0);
  e.verify();
  OK(e.close(2));
}

void sizes() {
  promise("a cache grows and shrinks within its capacity, and its sequences stay");
  nmc_kv_config_t config = plain_config(8);
  config.capacity_blocks = 32;
  Cache cache(config);
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 30)));
  GIVES(e.open(2, numbers(100, 9)), NMC_ERR_NO_SPACE);
  OK(nmc_kv_resize(e.kv, 32));
  OK(e.open(2, numbers(100, 90)));
  e.verify();
  FAILS(nmc_kv_resize(e.kv, 9), NMC_ERR_BUSY, "are in use");
  FAILS(nmc_kv_resize(e.kv, 33), NMC_ERR_INVALID_ARG, "capacity_blocks (32)");
  GIVES(nmc_kv_resize(e.kv, 0), NMC_ERR_INVALID_ARG);
  e.verify();
  OK(e.close(2));
  CHECK(e.stats().total == 32 && e.stats().idle == 22);
  OK(nmc_kv_resize(e.kv, 8));
  CHECK(e.stats().total == 8 && e.stats().free == 0);
  e.verify();
  OK(e.append(1, {30, 31}));
  OK(e.close(1));
  CHECK(e.match(numbers(0, 32)) == 32);
  e.verify();
}

// What a router that reads the events knows: the blocks by name, each with the one that it continues.
struct Router {
  std::map<std::string, std::string> known;
  uint64_t cursor = 0, lost = 0;
  static std::string name(const nmc_kv_hash_t& hash) { return std::string(reinterpret_cast<const char*>(hash.bytes), 16); }
  void apply(const nmc_kv_event_t& event) {
    if (event.kind == NMC_KV_EVENT_STORED) {
      const std::string parent = name(event.parent);
      CHECK(parent == std::string(16, '\0') || known.count(parent) == 1);  // never before what it continues
      CHECK(known.emplace(name(event.hash), parent).second);
    } else if (event.kind == NMC_KV_EVENT_REMOVED) {
      CHECK(known.erase(name(event.hash)) == 1);
    } else {
      known.clear();
    }
  }
  void read(nmc_kv_t* kv) {
    nmc_kv_event_t events[7];
    for (size_t n = 7; n == 7;) {
      uint64_t gone = 77;
      const uint64_t first = cursor;
      OK(nmc_kv_events(kv, &cursor, events, 7, &n, &gone));
      lost += gone;
      if (gone != 0) return;
      for (size_t i = 0; i < n; ++i) {
        CHECK(events[i].number == first + i);
        apply(events[i]);
      }
    }
  }
  std::map<std::string, std::string> snapshot(nmc_kv_t* kv) {
    Router fresh;
    size_t n = 0;
    (void)nmc_kv_snapshot(kv, &cursor, nullptr, 0, &n);
    std::vector<nmc_kv_event_t> events(n);
    OK(nmc_kv_snapshot(kv, &cursor, events.data(), n, &n));
    for (const nmc_kv_event_t& event : events) fresh.apply(event);
    return fresh.known;
  }
};

void events() {
  promise("who reads the events knows what the index has, also when dropped blocks are evicted under held ones");
  nmc_kv_config_t config = plain_config(12);
  config.event_capacity = 64;
  Cache cache(config);
  Engine e = cache.engine();
  Router router;
  const auto same = [&] {
    router.read(e.kv);
    Router other;
    return router.lost == 0 && router.known == other.snapshot(e.kv) && router.known.size() == e.stats().published &&
           other.cursor == router.cursor;
  };
  OK(e.open(1, numbers(0, 40)));
  CHECK(same() && router.known.empty());
  OK(nmc_kv_commit(e.kv, 1, 40));
  CHECK(same() && router.known.size() == 10);
  OK(nmc_kv_drop_least(e.kv, 1, 6, 1, 1, nullptr));
  CHECK(same() && router.known.size() == 10);
  OK(e.open(2, numbers(100, 20)));
  CHECK(same() && router.known.size() < 10);
  OK(e.close(2));
  CHECK(same());
  OK(nmc_kv_clear(e.kv, nullptr));
  CHECK(same() && router.known.size() == e.stats().published);
  OK(e.close(1));
  OK(nmc_kv_clear(e.kv, nullptr));
  CHECK(same() && router.known.empty());
  e.verify();
  for (uint64_t id = 10; id < 40; ++id) {
    OK(e.open(id, numbers(static_cast<uint32_t>(id) * 100, 30)));
    OK(e.close(id));
  }
  router.read(e.kv);
  CHECK(router.lost > 0);
  router.known = router.snapshot(e.kv);
  router.lost = 0;
  CHECK(same() && router.known.size() == 12 - e.stats().free);
  size_t n = 0;
  nmc_kv_event_t one;
  FAILS(nmc_kv_snapshot(e.kv, &router.cursor, &one, 1, &n), NMC_ERR_TOO_SMALL, "blocks are cached");
  uint64_t cursor = UINT64_MAX;
  OK(nmc_kv_events(e.kv, &cursor, &one, 1, &n, nullptr));
  CHECK(n == 0 && cursor == router.cursor);
  GIVES(nmc_kv_events(e.kv, nullptr, &one, 1, &n, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_events(e.kv, &cursor, nullptr, 1, &n, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_events(e.kv, &cursor, &one, 1, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_snapshot(e.kv, nullptr, &one, 1, &n), NMC_ERR_INVALID_ARG);
}

void named() {
  promise("sequences are found by name while they are open");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  nmc_kv_open_t options = NMC_KV_OPEN_INIT;
  options.name = slice_of("request-1");
  nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
  uint64_t found = 0;
  OK(nmc_kv_open(e.kv, NMC_KV_ID_AUTO, nullptr, 5, &options, &opened, nullptr));
  const uint64_t id = opened.id;
  CHECK(id >= uint64_t{1} << 63 && opened.tokens == 5);
  OK(nmc_kv_find(e.kv, options.name, &found));
  CHECK(found == id);
  FAILS(nmc_kv_open(e.kv, NMC_KV_ID_AUTO, nullptr, 5, &options, &opened, nullptr), NMC_ERR_EXISTS, "'request-1'");
  FAILS(e.open(3, {1}, options), NMC_ERR_EXISTS, "'request-1'");
  options.name = slice_of("request-2");
  OK(e.open(3, {1}, options));
  OK(nmc_kv_find(e.kv, options.name, &found));
  CHECK(found == 3);
  FAILS(nmc_kv_find(e.kv, slice_of("request-3"), &found), NMC_ERR_NOT_FOUND, "'request-3'");
  GIVES(nmc_kv_find(e.kv, {nullptr, 0}, &found), NMC_ERR_NOT_FOUND);
  OK(nmc_kv_close(e.kv, id, 0));
  GIVES(nmc_kv_find(e.kv, slice_of("request-1"), &found), NMC_ERR_NOT_FOUND);
  OK(nmc_kv_audit(e.kv));
  OK(e.close(3));

  promise("an id that the cache chooses is one that nobody has, whatever ids the program uses");
  for (uint64_t own = id; own < id + 6; ++own) OK(nmc_kv_open(e.kv, own, nullptr, 1, nullptr, nullptr, nullptr));
  std::vector<uint64_t> chosen;
  for (int i = 0; i < 3; ++i) {
    OK(nmc_kv_open(e.kv, NMC_KV_ID_AUTO, nullptr, 1, nullptr, &opened, nullptr));
    CHECK(opened.id >= id + 6 && (chosen.empty() || opened.id > chosen.back()));
    FAILS(nmc_kv_open(e.kv, opened.id, nullptr, 1, nullptr, nullptr, nullptr), NMC_ERR_EXISTS, "is already open");
    chosen.push_back(opened.id);
  }
  FAILS(nmc_kv_open(e.kv, NMC_KV_ID_AUTO, nullptr, 1, nullptr, nullptr, nullptr), NMC_ERR_INVALID_ARG, "out_opened or a name");
  FAILS(nmc_kv_fork(e.kv, id, NMC_KV_ID_AUTO, nullptr), NMC_ERR_INVALID_ARG, "the id of a fork is the program's");
  options.name = slice_of("request-4");
  OK(nmc_kv_open(e.kv, NMC_KV_ID_AUTO, nullptr, 1, &options, nullptr, nullptr));  // found by its name
  OK(nmc_kv_find(e.kv, options.name, &found));
  CHECK(found > chosen.back());
  OK(nmc_kv_audit(e.kv));
}

std::string dump_of(nmc_kv_t* kv, uint32_t width) {
  size_t needed = 0;
  OK(nmc_kv_dump(kv, width, nullptr, 0, &needed));
  std::string text(needed, '\0');
  OK(nmc_kv_dump(kv, width, text.data(), text.size(), nullptr));
  text.pop_back();
  return text;
}

void texts() {
  promise("the dump and the map say the same as the numbers");
  Cache cache(plain_config(70), {plain_group(4, 8, 128)});
  Engine e = cache.engine();
  e.deep = false;
  OK(e.open(1, numbers(0, 30)));
  OK(e.open(2, numbers(100, 13), "", NMC_KV_OPEN_CONTIGUOUS));
  OK(e.open(3, numbers(200, 17)));
  OK(e.close(3));
  const nmc_kv_stats_t stats = e.stats();
  CHECK(stats.used == 12 && stats.idle == 4 && stats.free == 54);
  CHECK(stats.arena_bytes == 70ull * 4 * 2 * 8 * 4 * 128 * 2 && stats.metadata_bytes > 0);
  const std::string map = dump_of(e.kv, 64);
  CHECK(map.find("total 70, used 12, cached 4, free 54") != std::string::npos);
  const std::string picture = map.substr(map.find("cached)\n") + 8);
  CHECK(std::count(picture.begin(), picture.end(), 'X') == 12);
  CHECK(std::count(picture.begin(), picture.end(), 'c') == 4);
  CHECK(std::count(picture.begin(), picture.end(), '.') == 54);
  const std::string dump = dump_of(e.kv, 0);
  for (const char* part : {"TotalBlocks: 70", "Sequences: 2", "Used: 12 blocks, 0.75 MB", "Cached, idle: 4 blocks, 0.25 MB",
                           "Free: 54 blocks", "1: 30/32 tokens, 8 blocks (0 shared, 0 dropped), paged",
                           "2: 13/16 tokens, 4 blocks (0 shared, 0 dropped), contiguous"}) {
    if (!CHECK(dump.find(part) != std::string::npos)) std::printf("     expected: %s\n%s", part, dump.c_str());
  }
  char small[10];
  size_t needed = 0;
  GIVES(nmc_kv_dump(e.kv, 0, small, sizeof(small), &needed), NMC_ERR_TOO_SMALL);
  CHECK(needed == dump.size() + 1);
  OK(e.close(1));
  OK(e.close(2));
}

void tables() {
  promise("dense tables, offsets, compressed tables and slots of a batch agree, and only changes are written");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 10)));
  OK(e.open(2, {}));
  OK(e.open(3, numbers(20, 8)));
  const uint64_t ids[] = {1, 2, 3};
  nmc_kv_row_t rows[3] = {}, offset_rows[3] = {};
  std::vector<int32_t> table(3 * 5, 99), offsets(3 * 2 * 5, 99);
  uint64_t written = 0;
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 5, -9, rows, table.data(), &written));
  CHECK(written == 15 && rows[0].blocks == 3 && rows[1].blocks == 0 && rows[2].blocks == 2);
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_OFFSETS, ids, 3, 5, -9, offset_rows, offsets.data(), &written));
  CHECK(written == 30);
  for (size_t r = 0; r < 3; ++r) {
    for (size_t k = 0; k < 5; ++k) {
      const int32_t block = table[r * 5 + k];
      CHECK(offsets[r * 10 + k] == (block < 0 ? -9 : 2 * block) && offsets[r * 10 + 5 + k] == (block < 0 ? -9 : 2 * block + 1));
    }
  }
  table.assign(table.size(), 99);  // what is not written again keeps its value
  OK(e.append(1, {10, 11}));
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 5, -9, rows, table.data(), &written));
  CHECK(written == 0);
  OK(e.append(1, {12}));
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 5, -9, rows, table.data(), &written));
  CHECK(written == 1 && table[0] == 99 && table[3] == e.fresh_table(1)[3] && table[4] == 99);
  OK(e.truncate(1, 3));
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 5, -9, rows, table.data(), &written));
  CHECK(written == 5 && table[0] == e.fresh_table(1)[0] && table[1] == -9);

  int32_t indptr[4], last[3], indices[8];
  size_t n = 0;
  OK(nmc_kv_table_csr(e.kv, 0, ids, 3, indptr, last, indices, 8, &n));
  CHECK(n == 3 && indptr[0] == 0 && indptr[1] == 1 && indptr[2] == 1 && indptr[3] == 3);
  CHECK(last[0] == 3 && last[1] == 0 && last[2] == 4);
  CHECK(indices[0] == e.fresh_table(1)[0] && indices[1] == e.fresh_table(3)[0] && indices[2] == e.fresh_table(3)[1]);
  GIVES(nmc_kv_table_csr(e.kv, 0, ids, 3, indptr, last, indices, 2, &n), NMC_ERR_TOO_SMALL);
  CHECK(n == 3);
  const uint32_t counts[] = {2, 0, 8};
  int64_t slots[10];
  OK(nmc_kv_slot_mapping(e.kv, 0, ids, counts, 3, slots, 10, &n));
  CHECK(n == 10 && slots[0] == int64_t{indices[0]} * 4 + 1 && slots[2] == int64_t{indices[1]} * 4);
  GIVES(nmc_kv_slot_mapping(e.kv, 0, ids, counts, 3, slots, 9, &n), NMC_ERR_TOO_SMALL);
  CHECK(n == 10);
  GIVES(nmc_kv_slot_mapping(e.kv, 0, ids, nullptr, 3, slots, 10, &n), NMC_ERR_INVALID_ARG);  // sequence 2 has no last token
  const uint64_t two[] = {1, 3};
  OK(nmc_kv_slot_mapping(e.kv, 0, two, nullptr, 2, slots, 10, &n));
  CHECK(n == 2 && slots[0] == int64_t{indices[0]} * 4 + 2 && slots[1] == int64_t{indices[2]} * 4 + 3);
  FAILS(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 1, -9, rows, table.data(), nullptr), NMC_ERR_TOO_SMALL, "2 blocks");
  nmc_kv_row_t again[3] = {};
  GIVES(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 0, -9, again, nullptr, nullptr), NMC_ERR_TOO_SMALL);
  // A row knows its sequence even if another one gets its id.
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 5, -9, rows, table.data(), &written));
  OK(e.close(3));
  OK(e.open(3, numbers(900, 8)));
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 5, -9, rows, table.data(), &written));
  CHECK(written == 5 && table[10] == e.fresh_table(3)[0]);
  for (uint64_t id : ids) OK(e.close(id));
}

void no_memory() {
  promise("without memory views hold offsets, and without groups there are none");
  nmc_kv_config_t config = plain_config(8);
  nmc_kv_group_t group = plain_group(2, 2, 16);
  config.groups = &group;
  config.n_groups = 1;
  nmc_kv_t* kv = nullptr;
  OK(nmc_kv_create(nullptr, &config, &kv));
  OK(nmc_kv_open(kv, 1, nullptr, 3, nullptr, nullptr, nullptr));
  nmc_kv_view_t view = NMC_KV_VIEW_INIT;
  OK(nmc_kv_view(kv, 1, 0, 1, NMC_KV_K, &view));
  CHECK(reinterpret_cast<uintptr_t>(view.data) == 8u * 2 * 4 * 16 * 2);
  OK(nmc_kv_destroy(kv));
  config.n_groups = 0;
  OK(nmc_kv_create(nullptr, &config, &kv));
  OK(nmc_kv_open(kv, 1, nullptr, 3, nullptr, nullptr, nullptr));
  FAILS(nmc_kv_view(kv, 1, 0, 0, NMC_KV_K, &view), NMC_ERR_INVALID_ARG, "group 0 does not exist");
  OK(nmc_kv_destroy(kv));
}

// ---- a random walk ----------------------------------------------------------------------------------------------------------

struct Walk {
  nmc_kv_config_t config = plain_config(40);
  std::vector<nmc_kv_group_t> groups = {plain_group()};
  std::string name;
};

void walk(const Walk& how, uint32_t steps, uint32_t seed, bool deep) {
  Cache cache(how.config, how.groups);
  Engine e = cache.engine();
  e.deep = deep;
  Random random(seed);
  uint64_t next = 1;
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  const auto any = [&](nmc_status_t status) {  // what a full cache may say
    return CHECK(status == NMC_OK || status == NMC_ERR_NO_SPACE || status == NMC_ERR_STALE || status == NMC_ERR_LIMIT) != 0;
  };
  const int before = failed_checks;
  std::vector<uint64_t> pins;
  for (uint32_t step = 0; step < steps; ++step) {
    uint64_t id = 0;
    if (!e.seqs.empty()) {
      auto at = e.seqs.begin();
      std::advance(at, below(static_cast<uint32_t>(e.seqs.size())));
      id = at->first;
    }
    const uint32_t what = id == 0 ? 0 : below(14);
    Seq& seq = e.seqs[id];
    if (id == 0) e.seqs.erase(id);
    switch (what) {
      case 0:
      case 1: {  // one of a few prompts, cut and continued
        Tokens prompt = numbers(below(4) * 1000, below(30));
        if (below(3) == 0) prompt.push_back(below(3));
        const uint32_t flags = below(4) == 0 ? NMC_KV_OPEN_CONTIGUOUS : below(6) == 0 ? NMC_KV_OPEN_MATCH_ALL : 0;
        if (e.seqs.size() < 8) any(e.open(next++, prompt, below(4) == 0 ? "salt" : "", flags, below(8) != 0));
        break;
      }
      case 2:
      case 3:
      case 4:
      case 5: {
        // Often what another sequence has at the same place, so that equal blocks meet.
        Tokens more = numbers(static_cast<uint32_t>(seq.tokens.size()) + below(2) * 5000, 1 + below(6));
        if (seq.tokens.size() < 150) any(e.append(id, more, below(20) != 0));
        break;
      }
      case 6: {
        const nmc_status_t status = e.truncate(id, below(static_cast<uint32_t>(seq.tokens.size()) + 1));
        if (status == NMC_ERR_UNSUPPORTED && how.config.window > 0) break;          // blocks left the window
        if (status != NMC_ERR_INVALID_ARG || e.info(id).dropped == 0) any(status);  // not into a block that was dropped
        break;
      }
      case 7:
        if (e.seqs.size() < 8) any(e.fork(id, next++));
        break;
      case 8: any(e.reserve(id, seq.tokens.size() + below(10))); break;
      case 9:
        if (e.info(id).state == NMC_KV_SEQ_OPEN) OK(nmc_kv_commit(e.kv, id, below(static_cast<uint32_t>(seq.tokens.size()) + 1)));
        break;
      case 10: OK(e.close(id, below(2) == 0 ? NMC_KV_CLOSE_ABORT : 0)); break;
      case 11:
        if (below(4) == 0) any(nmc_kv_drop_least(e.kv, id, below(3), 1, 1, nullptr));
        break;
      case 12: {
        uint64_t pin = 0;
        if (pins.size() < 2 && nmc_kv_pin(e.kv, id, below(20), &pin, nullptr) == NMC_OK) pins.push_back(pin);
        break;
      }
      default:
        if (!pins.empty()) {
          OK(nmc_kv_unpin(e.kv, pins.back()));
          pins.pop_back();
        }
        if (below(50) == 0) OK(nmc_kv_clear(e.kv, nullptr));
        if (below(10) == 0) {
          const nmc_status_t status = nmc_kv_resize(e.kv, how.config.total_blocks - below(how.config.total_blocks / 2));
          CHECK(status == NMC_OK || status == NMC_ERR_BUSY);
        }
        break;
    }
    if (!e.verify() || failed_checks != before) {
      std::printf("walk '%s', seed %u, step %u (kind %u of sequence %llu)\n", how.name.c_str(), seed, step, what,
                  static_cast<unsigned long long>(id));
      return;
    }
  }
  while (!e.seqs.empty()) OK(e.close(e.seqs.begin()->first));
  for (const uint64_t pin : pins) OK(nmc_kv_unpin(e.kv, pin));
  e.verify();
  CHECK(e.stats().used == 0);
  OK(nmc_kv_clear(e.kv, nullptr));
  OK(nmc_kv_resize(e.kv, how.config.total_blocks));
  CHECK(e.stats().free == how.config.total_blocks);
}

void walks(uint32_t steps, uint32_t seed) {
  promise("in every layout all sequences read their own bytes, by tables, slots, views and addresses");
  const uint32_t dtypes[] = {NMC_DTYPE_FP32, NMC_DTYPE_BF16, NMC_DTYPE_FP16, NMC_DTYPE_FP8, NMC_DTYPE_INT8, NMC_DTYPE_RAW};
  uint32_t number = 0;
  for (uint32_t order = 0; order < 4; ++order) {
    for (uint32_t sides = 0; sides < 3; ++sides) {
      Walk how;
      nmc_kv_group_t group = plain_group(1 + number % 3, 1 + number % 4, 8 + number % 3);
      group.order = order;
      group.sides = sides;
      group.dtype = dtypes[number % 6];
      group.element_bytes = group.dtype == NMC_DTYPE_RAW ? 3 : 0;
      how.groups = {group};
      if (number % 2 == 0) {
        nmc_kv_group_t latent = plain_group(2, 1, 12);
        latent.kind = NMC_KV_KIND_MLA;
        latent.order = (order + 1) % 4;
        how.groups.push_back(latent);
      }
      how.config.tokens_per_block = 1 + number % 5;
      how.name = "layout " + std::string(axes(order, sides));
      walk(how, steps / 10, seed + number++, true);
    }
  }
  promise("under every policy all sequences read their own bytes, and no block is lost");
  for (uint32_t eviction = 0; eviction < 5; ++eviction) {
    for (uint32_t full = 0; full < 3; ++full) {
      Walk how;
      how.config.eviction = eviction;
      how.config.when_full = full;
      how.config.hash = (eviction + full) % 3;
      how.config.total_blocks = full == 0 ? 60 : 40;
      how.name = "eviction " + std::to_string(eviction) + ", when full " + std::to_string(full);
      walk(how, steps, seed + 100 + eviction * 3 + full, false);
    }
  }
  promise("with spare blocks in lanes, without an index and with a window it is the same");
  Walk large, plain, sliding;
  large.config.total_blocks = 2048;
  large.name = "large";
  plain.config.flags = NMC_KV_NO_PREFIX;
  plain.name = "no prefix";
  sliding.config.window = 9;
  sliding.name = "window";
  for (const Walk& how : {large, plain, sliding}) walk(how, steps, seed + 200, false);
}

int control(const std::string& fault) {
  promise("control");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  if (fault == "stale") {
    e.compute = false;
    OK(e.open(1, numbers(0, 9)));
    OK(nmc_kv_commit(e.kv, 1, 9));
    OK(e.open(2, numbers(0, 9)));
    e.seqs[1].written = 0;
  } else {
    e.execute_copies = false;
    OK(e.open(1, numbers(0, 10)));
    OK(e.fork(1, 2));
  }
  e.verify();
  return finish();
}

}  // namespace

int main(int argc, char** argv) {
  const auto steps = static_cast<uint32_t>(argc > 1 ? std::atoi(argv[1]) : 300);
  const auto seed = static_cast<uint32_t>(argc > 2 ? std::atoi(argv[2]) : 1);
  if (argc > 3) return control(argv[3]);
  prefix_hits();
  lag_by_one();
  equal_at_once();
  hashes();
  forks();
  cuts();
  rooms();
  batches();
  dropping();
  dropping_makes_room();
  window();
  contiguous();
  shorten();
  order_of_eviction();
  priorities_lapse();
  evict_sequences();
  pins();
  sizes();
  events();
  named();
  texts();
  tables();
  no_memory();
  std::printf("seed %u\n", seed);
  walks(steps, seed);
  return finish();
}
