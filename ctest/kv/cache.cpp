// The cache as a whole: pins, its size, events for routers, texts about it, and a cache without memory.
#include "kv_engine.hpp"

#include <algorithm>

namespace {

using namespace kv;

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

}  // namespace

int main() {
  pins();
  sizes();
  events();
  texts();
  no_memory();
  return finish();
}
