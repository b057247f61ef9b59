// What happens when there is no room: what is refused, shortened or evicted, and in which order.
#include "kv_engine.hpp"

#include <chrono>
#include <thread>

namespace {

using namespace kv;

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

}  // namespace

int main() {
  rooms();
  shorten();
  order_of_eviction();
  priorities_lapse();
  evict_sequences();
  return finish();
}
