// Random operations through the C ABI on an embedded store, and on a plain map that says what must come out. Half of
// the seeds stay below the capacity, so that the map knows everything; in the other half the store evicts, and the map
// knows what may be missing and what may not. After every operation results and bytes agree.
// usage: model OPERATIONS SEEDS [FIRST_SEED] [drop|stale]
//   With `drop` one remove is not passed on, with `stale` one replacement: the comparison must notice.

#include "../support/value.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <time.h>
#include <unistd.h>

namespace {

enum class Break { None, Drop, Stale };
Break broken = Break::None;

// A value with its pages. It exists as long as the index leads to it, its writer may store, or somebody has it pinned.
struct Object {
  std::string key;
  size_t ns = 0;
  uint64_t stamp = 0, bytes = 0, pages = 0;
  uint32_t rank = 0;
  uint32_t retain = NMC_RETAIN_NONE;
  bool ready = false;    // its writer is done
  bool linked = false;   // the index leads to it
  bool hidden = false;   // it will replace another
  bool dead = false;     // removed, replaced, evicted or given up
  bool planned = false;  // the program has a plan for it
  bool by_itself = false;  // the program stored the publish word
  uint64_t progress = 0;
  int pins = 0;
  nmc_write_plan_t plan{};
  bool held() const { return !dead || pins > 0 || (planned && !ready); }
};
using Ref = std::shared_ptr<Object>;

struct Pinned {
  nmc_view_t view;
  Ref object;
};

[[noreturn]] void fail(const char* format, ...);

// The hash by which keys are spread over ranks, from its specification.
uint64_t xxh64(const std::string& text, uint64_t seed) {
  constexpr uint64_t P1 = 0x9e3779b185ebca87u, P2 = 0xc2b2ae3d27d4eb4fu, P3 = 0x165667b19e3779f9u, P4 = 0x85ebca77c2b2ae63u,
                     P5 = 0x27d4eb2f165667c5u;
  const auto turn = [](uint64_t x, int r) { return (x << r) | (x >> (64 - r)); };
  const auto round = [&](uint64_t acc, uint64_t in) { return turn(acc + in * P2, 31) * P1; };
  const unsigned char* at = reinterpret_cast<const unsigned char*>(text.data());
  size_t left = text.size();
  const auto read = [&](size_t bytes) {
    uint64_t word = 0;
    std::memcpy(&word, at, bytes);
    at += bytes;
    left -= bytes;
    return word;
  };
  uint64_t hash;
  if (left >= 32) {
    uint64_t acc[4] = {seed + P1 + P2, seed + P2, seed, seed - P1};
    while (left >= 32)
      for (uint64_t& lane : acc) lane = round(lane, read(8));
    hash = turn(acc[0], 1) + turn(acc[1], 7) + turn(acc[2], 12) + turn(acc[3], 18);
    for (uint64_t lane : acc) hash = (hash ^ round(0, lane)) * P1 + P4;
  } else {
    hash = seed + P5;
  }
  hash += text.size();
  while (left >= 8) hash = turn(hash ^ round(0, read(8)), 27) * P1 + P4;
  if (left >= 4) hash = turn(hash ^ (read(4) * P1), 23) * P2 + P3;
  while (left > 0) hash = turn(hash ^ (read(1) * P5), 11) * P1;
  hash = (hash ^ (hash >> 33)) * P2;
  hash = (hash ^ (hash >> 29)) * P3;
  return hash ^ (hash >> 32);
}

struct Bed {
  uint64_t seed;
  Random random;
  bool exact;
  uint32_t ranks, page, heap_pages, max_objects, pin_slots;
  bool sums;
  std::vector<nmc_store_t*> stores;  // the namespaces; the first is the one without a name
  std::vector<uint64_t> quota;
  std::vector<std::map<std::string, Ref>> there;  // what the index leads to
  std::vector<Ref> all;                           // everything that holds memory
  std::vector<Ref> plans;
  std::vector<Pinned> pins;
  std::vector<unsigned char> buffer, other;
  uint64_t next_stamp;
  uint64_t number = 0;
  std::deque<std::string> story;

  void note(const char* format, ...) __attribute__((format(printf, 2, 3))) {
    char text[200];
    va_list list;
    va_start(list, format);
    std::vsnprintf(text, sizeof text, format, list);
    va_end(list);
    story.emplace_back("op " + std::to_string(number) + ": " + text);
    if (story.size() > 24) story.pop_front();
  }

  explicit Bed(uint64_t seed_in)
      : seed(seed_in), random(seed_in), exact(seed_in % 2 == 0), next_stamp(seed_in << 32) {
    ranks = static_cast<uint32_t>(1 + random.below(3));
    page = random.one_in(4) ? 8192 : 4096;
    heap_pages = static_cast<uint32_t>(exact ? 64 + random.below(193) : 16 + random.below(100));
    max_objects = static_cast<uint32_t>(exact ? 256 + random.below(300) : 24 + random.below(200));
    pin_slots = static_cast<uint32_t>(4 + random.below(12));
    sums = random.one_in(4);
    nmc_store_config_t config = NMC_STORE_CONFIG_INIT;
    config.heap_bytes = uint64_t{heap_pages} * page;
    config.page_bytes = page;
    config.world_size = ranks;
    config.max_objects = max_objects;
    config.key_slab_bytes = uint64_t{max_objects} * 3200;  // never the reason of a refusal
    config.pin_slots = pin_slots;
    config.eviction = NMC_EVICT_FIFO + static_cast<uint32_t>(random.below(3));
    config.flags = sums ? NMC_STORE_CHECKSUMS : 0;
    config.high_permille = exact ? 1000 : static_cast<int32_t>(700 + random.below(301));
    config.low_permille = exact ? 1000 : config.high_permille - static_cast<int32_t>(random.below(200));
    config.watchdog_ms = 3600 * 1000;
    nmc_store_t* store = nullptr;
    must(nmc_store_create(nullptr, &config, &store), NMC_OK, "create");
    stores.push_back(store);
    quota.push_back(0);
    for (const char* name : {"one", "two"}) {
      // A quota evicts: it has no place where the map is exact.
      const uint64_t limit = !exact && random.one_in(2) ? (4 + random.below(heap_pages)) * page : 0;
      must(nmc_store_namespace(stores[0], nmc_slice_t{name, 3}, limit, &store), NMC_OK, "namespace");
      stores.push_back(store);
      quota.push_back(limit);
    }
    there.resize(stores.size());
    buffer.resize(size_t{heap_pages + 2} * page);
    other.resize(buffer.size());
  }
  ~Bed() {
    for (nmc_store_t* store : stores) nmc_store_destroy(store);
  }
  Bed(const Bed&) = delete;
  Bed& operator=(const Bed&) = delete;

  void must(nmc_status_t got, nmc_status_t want, const char* what) {
    if (got != want)
      fail("%s gives %s, the model %s (%s)", what, nmc_status_name(got), nmc_status_name(want), nmc_last_error_message());
  }
  void must_be(bool fine, const char* what) {
    if (!fine) fail("%s", what);
  }

  // ---- the map ------------------------------------------------------------------------------------------------------

  Ref find(size_t ns, const std::string& key) const {
    const auto at = there[ns].find(key);
    return at == there[ns].end() ? nullptr : at->second;
  }
  // The object leaves the index; what still uses it keeps its memory.
  void unlink(const Ref& object) {
    if (object->linked) {
      const auto at = there[object->ns].find(object->key);
      if (at != there[object->ns].end() && at->second == object) there[object->ns].erase(at);
    }
    object->linked = false;
    object->dead = true;
  }
  void settle() {
    const auto gone = [](const Ref& object) { return !object->held(); };
    all.erase(std::remove_if(all.begin(), all.end(), gone), all.end());
  }
  uint64_t used(uint32_t rank) const {
    uint64_t sum = 0;
    for (const Ref& object : all)
      if (object->rank == rank && object->held()) sum += object->pages;
    return sum;
  }
  static bool evictable(const Object& object) {
    return object.linked && object.ready && object.retain != NMC_RETAIN_HARD && object.pins == 0;
  }

  // What the store evicted is no longer in the map; what it could not have evicted must be there.
  void look_for_evicted() {
    if (exact) return;
    for (size_t ns = 0; ns < stores.size(); ++ns) {
      std::vector<Ref> objects;
      for (const auto& [key, object] : there[ns]) objects.push_back(object);
      for (const Ref& object : objects) check_if_evicted(object);
    }
    settle();
  }
  bool check_if_evicted(const Ref& object) {
    uint32_t state = 77;
    must(nmc_store_exists(stores[object->ns], slice(object->key), &state), NMC_OK, "exists");
    if (state != NMC_OBJECT_ABSENT) return false;
    if (exact || !evictable(*object))
      fail("an object that %s is gone", exact ? "nobody removed" : object->pins > 0 ? "is pinned" : !object->ready ? "is being written" : "is retained");
    unlink(object);
    return true;
  }

  void compare() {
    settle();
    nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
    nmc_store_rank_stats_t each[4] = {NMC_STORE_RANK_STATS_INIT};
    must(nmc_store_stats(stores[0], each, ranks, &stats), NMC_OK, "stats");
    uint64_t ready = 0, writing = 0, limbo = 0, quarantined = 0;
    for (const Ref& object : all) {
      if (!object->held()) continue;
      const uint64_t bytes = object->pages * page;
      if (!object->dead) ++(object->ready && !object->hidden ? ready : writing);
      else if (object->planned && !object->ready) quarantined += bytes;
      else limbo += bytes;
    }
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const uint64_t want = used(rank) * page;
      if (each[rank].bytes_used != want)
        fail("rank %u uses %" PRIu64 " bytes, the model %" PRIu64, rank, each[rank].bytes_used, want);
      must_be(each[rank].bytes_total == uint64_t{heap_pages} * page, "bytes_total");
    }
    if (stats.ready_count != ready || stats.writing_count != writing)
      fail("%" PRIu64 " ready and %" PRIu64 " being written, the model has %" PRIu64 " and %" PRIu64, stats.ready_count,
           stats.writing_count, ready, writing);
    if (stats.limbo_bytes != limbo || stats.quarantined_bytes != quarantined)
      fail("%" PRIu64 " bytes wait for readers and %" PRIu64 " for writers, the model has %" PRIu64 " and %" PRIu64,
           stats.limbo_bytes, stats.quarantined_bytes, limbo, quarantined);
  }

  // ---- what to do it with -------------------------------------------------------------------------------------------

  size_t any_ns() { return random.one_in(2) ? 0 : static_cast<size_t>(random.below(stores.size())); }
  std::string any_key() {
    const uint64_t which = random.below(48);
    std::string key = "k" + std::to_string(which % 6) + "/" + std::to_string(which);
    // A few keys are long; the length belongs to the key.
    if (which % 7 == 3) key += std::string(size_t{which} * 20, static_cast<char>('a' + which % 26));
    return key;
  }
  uint64_t any_size() {
    switch (random.below(10)) {
      case 0: return 0;
      case 1: return page;
      case 2: return 1 + random.below(16);
      case 3: return (1 + random.below(4)) * page;
      case 4: return exact ? random.below(8 * page) : random.below(uint64_t{heap_pages} * page + 1);
      default: return random.below(2 * page);
    }
  }
  uint64_t pages_of(uint64_t bytes) const { return (bytes + page - 1) / page; }

  // Whether there is room on every rank without evicting anything.
  bool room(uint64_t pages, size_t objects) {
    if (all.size() + objects > max_objects) return false;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      if (used(rank) + pages > heap_pages) return false;
    return true;
  }
  // Makes room in the map and the store, when the map has to be exact.
  bool may_add(uint64_t pages, size_t objects) { return !exact || room(pages, objects); }

  struct Options {
    nmc_put_options_t c = NMC_PUT_OPTIONS_INIT;
    bool replace() const { return (c.flags & NMC_PUT_REPLACE) != 0; }
  };
  Options any_options(uint64_t pages) {
    Options options;
    if (random.one_in(2)) options.c.preferred_segment = static_cast<int32_t>(random.below(ranks));
    if (random.one_in(3)) options.c.flags |= NMC_PUT_REPLACE;
    // One run may need evictions where there is room enough.
    if (random.one_in(6) && (!exact || pages <= 1)) options.c.flags |= NMC_PUT_CONTIGUOUS;
    if (random.one_in(5)) options.c.retain = random.one_in(3) ? NMC_RETAIN_HARD : NMC_RETAIN_SOFT;
    options.c.priority = static_cast<uint32_t>(random.below(4));
    return options;
  }

  // A refusal for want of room is right only if what cannot be evicted leaves too little of it.
  void check_refusal(nmc_status_t status, size_t ns, const std::string& key, uint64_t pages, const Options& options) {
    if (exact) fail("%s though there is room (%s)", nmc_status_name(status), nmc_last_error_message());
    look_for_evicted();
    if (status == NMC_ERR_NO_SPACE) {
      uint64_t fixed = 0;
      for (const Ref& object : all)
        if (object->ns == ns && !evictable(*object)) fixed += object->pages;
      const bool too_large = pages > heap_pages;
      if (!too_large && (quota[ns] == 0 || (fixed + pages) * page <= quota[ns]))
        fail("NO_SPACE for %" PRIu64 " pages: %s", pages, nmc_last_error_message());
      return;
    }
    if (status != NMC_ERR_BUSY && status != NMC_ERR_LIMIT) fail("put gives %s: %s", nmc_status_name(status), nmc_last_error_message());
    uint64_t objects = 0;
    std::vector<uint64_t> fixed(ranks, 0);
    for (const Ref& object : all)
      if (!evictable(*object)) {
        ++objects;
        fixed[object->rank] += object->pages;
      }
    const bool no_header = objects + 1 > max_objects;
    const bool no_pages = fixed[rank_of(ns, key, options)] + pages > heap_pages;
    const bool contiguous = (options.c.flags & NMC_PUT_CONTIGUOUS) != 0 && pages > 1;
    if (!no_header && !no_pages && !contiguous)
      fail("%s for %" PRIu64 " pages of \"%.20s\", though what may be evicted is enough: %s", nmc_status_name(status), pages,
           key.c_str(), nmc_last_error_message());
  }

  Ref add(size_t ns, const std::string& key, uint64_t stamp, uint64_t bytes, const Options& options) {
    Ref object = std::make_shared<Object>();
    object->key = key;
    object->ns = ns;
    object->stamp = stamp;
    object->bytes = bytes;
    object->pages = pages_of(bytes);
    object->retain = options.c.retain;
    object->rank = rank_of(ns, key, options);
    all.push_back(object);
    return object;
  }
  // Where the key goes if the caller has no wish.
  uint32_t rank_of(size_t ns, const std::string& key, const Options& options) const {
    if (options.c.preferred_segment >= 0) return static_cast<uint32_t>(options.c.preferred_segment);
    return static_cast<uint32_t>(xxh64(key, ns) % ranks);
  }
  // A published object that is not hidden, or no longer: it is what the index leads to.
  void link(const Ref& object) {
    if (const Ref former = find(object->ns, object->key); former != nullptr && former != object) unlink(former);
    there[object->ns][object->key] = object;
    object->linked = true;
    object->hidden = false;
  }

  // ---- operations ---------------------------------------------------------------------------------------------------

  void put() {
    const size_t ns = any_ns();
    const std::string key = any_key();
    const uint64_t bytes = any_size(), pages = pages_of(bytes), stamp = next_stamp++;
    if (!may_add(pages, 1)) return remove();
    const Options options = any_options(pages);
    note("put ns %zu \"%.12s\" %" PRIu64 " bytes, flags %u retain %u rank %d", ns, key.c_str(), bytes, options.c.flags,
         options.c.retain, options.c.preferred_segment);
    nmc_status_t status;
    make_value(stamp, 0, buffer.data(), bytes);
    if (broken == Break::Stale && options.replace() && find(ns, key) != nullptr && number > 40) {
      broken = Break::None;
      status = NMC_OK;
    } else if (const uint64_t form = random.below(3); form == 0) {
      status = nmc_store_put(stores[ns], slice(key), buffer.data(), bytes, &options.c);
    } else if (form == 1) {
      const uint64_t a = random.below(bytes + 1), b = a + random.below(bytes - a + 1);
      const nmc_slice_t parts[3] = {{buffer.data(), a}, {buffer.data() + a, b - a}, {buffer.data() + b, bytes - b}};
      status = nmc_store_put_slices(stores[ns], slice(key), parts, 3, &options.c);
    } else {
      const uint64_t row = 1 + random.below(300), rows = bytes / row;
      if (rows * row != bytes || rows * (row + 5) > other.size()) {
        status = nmc_store_put(stores[ns], slice(key), buffer.data(), bytes, &options.c);
      } else {
        for (uint64_t i = 0; i < rows; ++i) std::memcpy(other.data() + i * (row + 5), buffer.data() + i * row, row);
        status = nmc_store_put_strided(stores[ns], slice(key), other.data(), rows, row, row + 5, &options.c);
      }
    }
    after_put(status, ns, key, stamp, bytes, options);
  }
  void after_put(nmc_status_t status, size_t ns, const std::string& key, uint64_t stamp, uint64_t bytes, const Options& options) {
    const Ref former = find(ns, key);
    if (former != nullptr && !options.replace() && !exact && status != NMC_ERR_EXISTS) {
      // It may have been evicted before the call, or to make room for others; never by the call itself.
      if (!evictable(*former)) fail("put gives %s, the model EXISTS", nmc_status_name(status));
      unlink(former);
    } else if (former != nullptr && !options.replace()) {
      return must(status, NMC_ERR_EXISTS, "put of a key that is there");
    }
    if (status != NMC_OK) return check_refusal(status, ns, key, pages_of(bytes), options);
    const Ref object = add(ns, key, stamp, bytes, options);
    object->ready = true;
    link(object);
    settle();
    if (!random.one_in(8) || pins.size() == pin_slots) return;
    nmc_object_meta_t meta;
    must(nmc_store_get_location(stores[ns], slice(key), &meta), NMC_OK, "get_location");
    must_be(meta.bytes_total == bytes && meta.n_pages == object->pages && meta.owner_rank == object->rank, "get_location");
  }

  void put_batch() {
    const size_t ns = any_ns(), n = 1 + static_cast<size_t>(random.below(6));
    std::vector<std::string> keys;
    std::vector<uint64_t> stamps, sizes;
    uint64_t pages = 0, at = 0;
    std::vector<nmc_slice_t> names, values;
    for (size_t i = 0; i < n; ++i) {
      keys.push_back(any_key());
      sizes.push_back(random.below(2 * page));
      pages += pages_of(sizes.back());
      stamps.push_back(next_stamp++);
    }
    if (!may_add(pages, n)) return remove();
    if (at + 2 * n * page > buffer.size()) return;
    const Options options = any_options(2);
    for (size_t i = 0; i < n; ++i) {
      make_value(stamps[i], 0, buffer.data() + at, sizes[i]);
      names.push_back(slice(keys[i]));
      values.push_back(nmc_slice_t{buffer.data() + at, sizes[i]});
      at += sizes[i];
    }
    note("put_batch ns %zu of %zu, flags %u retain %u", ns, n, options.c.flags, options.c.retain);
    std::vector<nmc_status_t> statuses(n, 77);
    const nmc_status_t first = nmc_store_put_batch(stores[ns], names.data(), values.data(), n, &options.c, statuses.data());
    nmc_status_t expected = NMC_OK;
    for (size_t i = 0; i < n; ++i) {
      if (expected == NMC_OK) expected = statuses[i];
      if (!exact) look_for_evicted_but(keys, ns);
      // A value that a later item of the batch has replaced is not seen by anybody.
      bool replaced = false;
      for (size_t j = i + 1; j < n; ++j) replaced |= options.replace() && keys[j] == keys[i] && statuses[j] == NMC_OK;
      if (replaced && statuses[i] == NMC_OK) continue;
      after_put_in_batch(statuses[i], ns, keys[i], stamps[i], sizes[i], options, i, keys, statuses);
    }
    must(first, expected, "put_batch");
  }
  // All plans of a batch are made before the first value is stored: one item may have evicted what another found.
  void look_for_evicted_but(const std::vector<std::string>& keys, size_t ns) {
    for (size_t n = 0; n < stores.size(); ++n) {
      std::vector<Ref> objects;
      for (const auto& [key, object] : there[n])
        if (n != ns || std::find(keys.begin(), keys.end(), key) == keys.end()) objects.push_back(object);
      for (const Ref& object : objects) check_if_evicted(object);
    }
    settle();
  }
  void after_put_in_batch(nmc_status_t status, size_t ns, const std::string& key, uint64_t stamp, uint64_t bytes,
                          const Options& options, size_t i, const std::vector<std::string>& keys,
                          const std::vector<nmc_status_t>& statuses) {
    if (!exact) {
      // Exists because of the map, or because of an earlier item.
      if (status == NMC_ERR_EXISTS) {
        bool earlier = find(ns, key) != nullptr;
        for (size_t j = 0; j < i; ++j) earlier |= keys[j] == key && statuses[j] == NMC_OK;
        must_be(earlier && !options.replace(), "put_batch: EXISTS for a key that is not there");
        return;
      }
      if (status != NMC_OK) {
        // The other items of the batch were being written at the time.
        if (status != NMC_ERR_BUSY && status != NMC_ERR_LIMIT && status != NMC_ERR_NO_SPACE)
          fail("put_batch gives %s: %s", nmc_status_name(status), nmc_last_error_message());
        return;
      }
    }
    after_put(status, ns, key, stamp, bytes, options);
  }

  void open() {
    if (plans.size() >= 6) return finish_plan();
    const size_t ns = any_ns();
    const std::string key = any_key();
    const uint64_t bytes = any_size(), pages = pages_of(bytes), stamp = next_stamp++;
    if (!may_add(pages, 1)) return remove();
    const Options options = any_options(pages);
    note("open ns %zu \"%.12s\" %" PRIu64 " bytes, flags %u retain %u", ns, key.c_str(), bytes, options.c.flags, options.c.retain);
    nmc_write_plan_t plan;
    const bool batched = random.one_in(3);
    nmc_status_t status;
    if (batched) {
      const nmc_slice_t name = slice(key);
      nmc_status_t one = 77;
      status = nmc_store_open_batch(stores[ns], &name, &bytes, 1, &options.c, &plan, &one);
      must(one, status, "open_batch");
    } else {
      status = nmc_store_open_for_write(stores[ns], slice(key), bytes, &options.c, &plan);
    }
    const Ref former = find(ns, key);
    if (former != nullptr && !options.replace()) {
      if (exact || status == NMC_ERR_EXISTS) return must(status, NMC_ERR_EXISTS, "open of a key that is there");
      if (!evictable(*former)) fail("open gives %s, the model EXISTS", nmc_status_name(status));
      unlink(former);
    }
    if (status != NMC_OK) return check_refusal(status, ns, key, pages, options);
    const Ref object = add(ns, key, stamp, bytes, options);
    object->planned = true;
    object->plan = plan;
    must_be(plan.dst_rank == object->rank, "open: the rank");
    object->hidden = options.replace();
    must_be(plan.n_pages == pages && plan.bytes_total == bytes, "open: sizes");
    must_be(plan.last_page_bytes == (bytes == 0 ? 0 : bytes % page == 0 ? page : bytes % page), "open: last page");
    if (!object->hidden) {
      there[ns][key] = object;
      object->linked = true;
    }
    must_be(fill_plan(stores[ns], plan, stamp), "plan_extents");
    plans.push_back(object);
    settle();
  }

  void publish_pages() {
    if (plans.empty()) return open();
    const Ref object = plans[random.below(plans.size())];
    if (object->ready) return;
    const uint64_t pages = random.below(object->pages + 2);
    note("publish_pages \"%.12s\" %" PRIu64 " of %" PRIu64, object->key.c_str(), pages, object->pages);
    const nmc_status_t status = nmc_store_publish_pages(stores[object->ns], &object->plan, static_cast<uint32_t>(pages));
    if (pages > object->pages || pages < object->progress) return must(status, NMC_ERR_INVALID_ARG, "publish_pages");
    must(status, object->dead ? NMC_ERR_STALE : NMC_OK, "publish_pages");
    object->progress = pages;
  }

  // The program stores the publish word, as a kernel would; the commit comes later, when the object may be gone.
  void publish_by_itself() {
    if (plans.empty()) return open();
    const Ref object = plans[random.below(plans.size())];
    if (object->ready || sums) return;  // sums are stored by commit
    note("publish by itself \"%.12s\"", object->key.c_str());
    __atomic_store_n(object->plan.publish_word, object->plan.epoch, __ATOMIC_RELEASE);
    object->by_itself = true;
    object->ready = true;  // if it is dead the master finds out that its writer is done
    settle();
  }

  void finish_plan() {
    if (plans.empty()) return open();
    const size_t which = random.below(plans.size());
    const Ref object = plans[which];
    const bool commits = random.below(4) != 0 || object->by_itself;
    note("%s \"%.12s\"%s%s%s", commits ? "commit" : "abort", object->key.c_str(), object->dead ? " (dead)" : "",
         object->hidden ? " (hidden)" : "", object->by_itself ? " (published)" : "");
    nmc_store_t* store = stores[object->ns];
    nmc_status_t status;
    if (commits && random.one_in(3)) {
      nmc_status_t one = 77;
      status = nmc_store_commit_batch(store, &object->plan, 1, &one);
      must(one, status, "commit_batch");
    } else {
      status = commits ? nmc_store_commit(store, &object->plan) : nmc_store_abort(store, &object->plan);
    }
    plans.erase(plans.begin() + static_cast<std::ptrdiff_t>(which));
    if (!commits) {
      must(status, NMC_OK, "abort");
      unlink(object);
      object->planned = false;
      settle();
      must(nmc_store_abort(store, &object->plan), NMC_ERR_NOT_FOUND, "abort twice");
      return must(nmc_store_commit(store, &object->plan), NMC_ERR_NOT_FOUND, "commit after abort");
    }
    if (object->by_itself && !object->dead && !exact && status == NMC_ERR_STALE) {
      // It was readable already, and could be evicted.
      must_be(evictable(*object) && !object->hidden, "commit: STALE for an object that could not go");
      unlink(object);
    }
    must(status, object->dead ? NMC_ERR_STALE : NMC_OK, "commit");
    object->planned = false;
    if (object->dead) return settle();
    object->ready = true;
    link(object);
    settle();
    if (random.one_in(4) && exact) must(nmc_store_commit(store, &object->plan), NMC_OK, "commit twice");
  }

  void get() {
    const size_t ns = any_ns();
    const std::string key = any_key();
    Ref object = find(ns, key);
    nmc_store_t* store = stores[ns];
    const uint64_t form = random.below(6);
    note("get ns %zu \"%.12s\" form %" PRIu64, ns, key.c_str(), form);
    nmc_status_t status;
    size_t size = 12345;
    uint64_t offset = 0, bytes = object == nullptr ? random.below(page) : object->bytes;
    nmc_status_t good = NMC_OK;
    std::memset(buffer.data(), 0x5a, std::min<size_t>(buffer.size(), bytes + 16));
    if (form == 0) {
      const size_t capacity = random.one_in(4) ? static_cast<size_t>(random.below(bytes + 1)) : bytes;
      status = nmc_store_get(store, slice(key), buffer.data(), capacity, &size);
      // Capacity 0 asks for the size.
      if (capacity == 0) bytes = 0;
      else if (capacity < bytes) good = NMC_ERR_TOO_SMALL;
    } else if (form == 1) {
      const size_t wrong = random.one_in(5) ? 1 : 0;
      status = nmc_store_get_into(store, slice(key), buffer.data(), bytes + wrong);
      if (wrong != 0) good = NMC_ERR_INVALID_ARG;
    } else if (form == 2) {
      offset = random.below(bytes + 1);
      const uint64_t behind = random.one_in(6) ? 1 + random.below(100) : 0;
      const uint64_t part = random.below(bytes - offset + 1);
      status = get_range(store, slice(key), offset + behind, buffer.data(), part);
      if (offset + behind + part > bytes) good = NMC_ERR_INVALID_ARG;
      else offset += behind;
      bytes = part;
    } else if (form == 3) {
      offset = random.below(bytes + 1);
      bytes -= offset;
      const uint64_t a = random.below(bytes + 1);
      const nmc_buffer_t parts[2] = {{buffer.data(), a}, {buffer.data() + a, bytes - a}};
      status = nmc_store_get_slices(store, slice(key), offset, parts, 2, &size);
    } else if (form == 4) {
      const uint64_t row = 1 + random.below(200), rows = std::min(bytes / row, other.size() / (row + 3));
      status = nmc_store_get_strided(store, slice(key), 0, other.data(), rows, row, row + 3);
      if (status == NMC_OK)
        for (uint64_t i = 0; i < rows; ++i) std::memcpy(buffer.data() + i * row, other.data() + i * (row + 3), row);
      bytes = rows * row;
    } else {
      const nmc_slice_t name = slice(key);
      const nmc_buffer_t whole{buffer.data(), bytes};
      nmc_status_t one = 77;
      status = nmc_store_get_into_batch(store, &name, &whole, 1, &one);
      must(one, status, "get_into_batch");
    }
    if (pins.size() == pin_slots) return must(status, NMC_ERR_BUSY, "get without a free slot");
    if (status == NMC_ERR_NOT_FOUND && object != nullptr && !exact && check_if_evicted(object)) return;
    if (object == nullptr) return must(status, NMC_ERR_NOT_FOUND, "get of a key that is not there");
    if (!object->ready) return must(status, NMC_NOT_READY, "get of what is being written");
    must(status, good, "get");
    if ((form == 0 && good != NMC_ERR_INVALID_ARG) || (form == 3 && status == NMC_OK)) must_be(size == object->bytes, "get: size");
    if (status != NMC_OK) return;
    must_be(is_value(object->stamp, offset, buffer.data(), bytes), "get: the bytes are not those that were put");
    must_be(buffer[bytes] == 0x5a, "get: a byte behind the end was written");
  }

  void exists() {
    const size_t ns = any_ns(), n = 1 + static_cast<size_t>(random.below(5));
    std::vector<std::string> keys;
    std::vector<nmc_slice_t> names;
    for (size_t i = 0; i < n; ++i) keys.push_back(any_key());
    for (const std::string& key : keys) names.push_back(slice(key));
    note("exists and match_prefix ns %zu of %zu", ns, n);
    std::vector<uint32_t> states(n, 77);
    must(nmc_store_exists_batch(stores[ns], names.data(), n, states.data()), NMC_OK, "exists_batch");
    size_t matched = 77, expected = 0;
    must(nmc_store_match_prefix(stores[ns], names.data(), n, &matched), NMC_OK, "match_prefix");
    for (size_t i = 0; i < n; ++i) {
      Ref object = find(ns, keys[i]);
      if (object != nullptr && !exact && check_if_evicted(object)) object = nullptr;
      const uint32_t want = object == nullptr ? NMC_OBJECT_ABSENT : object->ready ? NMC_OBJECT_READY : NMC_OBJECT_WRITING;
      if (states[i] != want) fail("exists says %u, the model %u", states[i], want);
      if (expected == i && want == NMC_OBJECT_READY) ++expected;
    }
    must_be(matched == expected, "match_prefix");
    settle();
  }

  void pin() {
    const size_t ns = any_ns();
    const std::string key = any_key();
    Ref object = find(ns, key);
    const bool partial = object != nullptr && !object->ready && object->progress > 0 && random.one_in(2);
    note("pin%s ns %zu \"%.12s\"", partial ? "_partial" : "", ns, key.c_str());
    nmc_view_t view;
    nmc_status_t status;
    const nmc_slice_t name = slice(key);
    if (partial) {
      status = nmc_store_pin_partial(stores[ns], name, static_cast<uint32_t>(object->progress), &view);
    } else if (random.one_in(3)) {
      nmc_status_t one = 77;
      status = nmc_store_pin_batch(stores[ns], &name, 1, &view, nullptr, &one);
      must(one, status, "pin_batch");
    } else {
      status = nmc_store_pin(stores[ns], name, &view);
    }
    if (pins.size() == pin_slots) return must(status, NMC_ERR_BUSY, "pin without a free slot");
    if (status == NMC_ERR_NOT_FOUND && object != nullptr && !exact && check_if_evicted(object)) return;
    if (object == nullptr) return must(status, NMC_ERR_NOT_FOUND, "pin of a key that is not there");
    if (!object->ready && !partial) return must(status, NMC_NOT_READY, "pin of what is being written");
    must(status, NMC_OK, "pin");
    must_be(view.bytes == object->bytes && view.owner_rank == object->rank, "pin: the view");
    must_be(view.ready_pages == (partial ? object->progress : object->pages), "pin: ready pages");
    ++object->pins;
    pins.push_back({view, object});
    check_pin(pins.back());
  }
  void check_pin(const Pinned& pinned) {
    const uint64_t bytes = std::min<uint64_t>(pinned.view.bytes, uint64_t{pinned.view.ready_pages} * page);
    must_be(view_is(stores[0], pinned.view, pinned.object->stamp, bytes), "a pinned value has changed");
  }
  void unpin() {
    if (pins.empty()) return pin();
    const size_t which = random.below(pins.size());
    note("unpin \"%.12s\"", pins[which].object->key.c_str());
    check_pin(pins[which]);
    const Pinned pinned = pins[which];
    pins.erase(pins.begin() + static_cast<std::ptrdiff_t>(which));
    if (random.one_in(3)) must(nmc_store_unpin_batch(stores[0], &pinned.view, 1, nullptr), NMC_OK, "unpin_batch");
    else must(nmc_store_unpin(stores[0], &pinned.view), NMC_OK, "unpin");
    --pinned.object->pins;
    settle();
    must(nmc_store_unpin(stores[0], &pinned.view), NMC_ERR_NOT_FOUND, "unpin twice");
  }

  void remove() {
    const size_t ns = any_ns();
    const std::string key = any_key();
    const Ref object = find(ns, key);
    note("remove ns %zu \"%.12s\"", ns, key.c_str());
    nmc_status_t status;
    if (broken == Break::Drop && object != nullptr && number > 40) {
      broken = Break::None;
      status = NMC_OK;
    } else if (random.one_in(3)) {
      const nmc_slice_t name = slice(key);
      nmc_status_t one = 77;
      status = nmc_store_remove_batch(stores[ns], &name, 1, &one);
      must(one, status, "remove_batch");
    } else {
      status = nmc_store_remove(stores[ns], slice(key));
    }
    after_remove(status, object);
  }
  void after_remove(nmc_status_t status, const Ref& object) {
    if (object == nullptr) return must(status, NMC_ERR_NOT_FOUND, "remove of a key that is not there");
    if (status == NMC_ERR_NOT_FOUND && !exact && evictable(*object)) return unlink(object);
    must(status, NMC_OK, "remove");
    unlink(object);
  }

  void remove_by_prefix() {
    const size_t ns = any_ns();
    const std::string prefix = "k" + std::to_string(random.below(6)) + (random.one_in(2) ? "/" : "/1");
    note("remove_by_prefix ns %zu \"%s\"", ns, prefix.c_str());
    look_for_evicted();
    uint64_t removed = 77, expected = 0;
    must(nmc_store_remove_by_prefix(stores[ns], slice(prefix), &removed), NMC_OK, "remove_by_prefix");
    for (const Ref& object : std::vector<Ref>(all))
      if (object->ns == ns && !object->dead && object->key.compare(0, prefix.size(), prefix) == 0) {
        // What is to replace another goes as well, but the other one counts.
        expected += !object->hidden;
        unlink(object);
      }
    if (removed != expected) fail("remove_by_prefix removed %" PRIu64 ", the model %" PRIu64, removed, expected);
  }

  void flush() {
    const size_t ns = any_ns();
    note("remove_all ns %zu", ns);
    look_for_evicted();
    must(nmc_store_remove_all(stores[ns]), NMC_OK, "remove_all");
    for (const Ref& object : std::vector<Ref>(all))
      if (object->ns == ns && !object->dead) unlink(object);
    settle();
    // Nothing is found from now on; the memory comes back bit by bit.
    for (const std::string& key : {std::string("k0/0"), std::string("k1/1")}) {
      uint32_t state = 77;
      must(nmc_store_exists(stores[ns], slice(key), &state), NMC_OK, "exists");
      must_be(state == NMC_OBJECT_ABSENT, "an object is found after remove_all");
    }
    for (int tries = 0; tries < 5000; ++tries) {
      nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
      must(nmc_store_stats(stores[0], nullptr, 0, &stats), NMC_OK, "stats");
      uint64_t want = 0, live = 0;
      for (uint32_t rank = 0; rank < ranks; ++rank) want += used(rank) * page;
      for (const Ref& object : all) live += !object->dead;
      if (stats.bytes_used == want && stats.ready_count + stats.writing_count == live) return;
      const timespec pause{0, 300000};
      nanosleep(&pause, nullptr);
    }
  }

  void retain() {
    const size_t ns = any_ns();
    const std::string key = any_key();
    Ref object = find(ns, key);
    const uint32_t class_ = static_cast<uint32_t>(random.below(3));
    note("retain ns %zu \"%.12s\" %u", ns, key.c_str(), class_);
    const nmc_status_t status = nmc_store_retain(stores[ns], slice(key), class_, static_cast<uint32_t>(random.below(4)), 0);
    if (status == NMC_ERR_NOT_FOUND && object != nullptr && !exact && check_if_evicted(object)) return;
    must(status, object == nullptr ? NMC_ERR_NOT_FOUND : NMC_OK, "retain");
    if (object != nullptr) object->retain = class_;
    if (object != nullptr) must(nmc_store_touch(stores[ns], slice(key)), NMC_OK, "touch");
  }

  void evict() {
    const uint32_t rank = static_cast<uint32_t>(random.below(ranks)), permille = static_cast<uint32_t>(random.below(1001));
    note("evict_until_below rank %u %u", rank, permille);
    look_for_evicted();
    const uint64_t before = used(rank);
    must(nmc_store_evict_until_below(stores[0], static_cast<int32_t>(rank), permille), NMC_OK, "evict_until_below");
    uint64_t left = 0;
    for (const Ref& object : std::vector<Ref>(all)) {
      if (!object->linked) continue;
      uint32_t state = 77;
      must(nmc_store_exists(stores[object->ns], slice(object->key), &state), NMC_OK, "exists");
      if (state != NMC_OBJECT_ABSENT) {
        if (object->rank == rank && evictable(*object)) left += object->pages;
        continue;
      }
      must_be(evictable(*object) && object->rank == rank && before * 1000 > uint64_t{heap_pages} * permille,
              "evict_until_below took what it must not");
      unlink(object);
    }
    settle();
    must_be(used(rank) * 1000 <= uint64_t{heap_pages} * permille || left == 0, "evict_until_below stopped too early");
  }

  void iterate() {
    const size_t ns = any_ns();
    note("iterate ns %zu", ns);
    look_for_evicted();
    std::map<std::string, uint64_t> seen;
    uint64_t cursor = 0;
    char key[1024];
    for (;;) {
      size_t length = 0;
      uint64_t bytes = 0;
      const nmc_status_t status = nmc_store_next(stores[ns], &cursor, key, sizeof key, &length, &bytes);
      if (status == NMC_ERR_NOT_FOUND) break;
      must(status, NMC_OK, "next");
      must_be(seen.emplace(std::string(key, length), bytes).second, "iteration gives a key twice");
    }
    size_t expected = 0;
    for (const auto& [name, object] : there[ns]) {
      if (!object->ready) continue;
      ++expected;
      const auto at = seen.find(name);
      must_be(at != seen.end() && at->second == object->bytes, "iteration misses a key, or its size is wrong");
    }
    if (seen.size() != expected) fail("iteration gives %zu keys, the model %zu", seen.size(), expected);
  }

  void step() {
    ++number;
    const uint64_t dice = random.below(1000);
    if (dice < 220) put();
    else if (dice < 270) put_batch();
    else if (dice < 330) open();
    else if (dice < 350) publish_pages();
    else if (dice < 365) publish_by_itself();
    else if (dice < 425) finish_plan();
    else if (dice < 640) get();
    else if (dice < 690) exists();
    else if (dice < 770) pin();
    else if (dice < 845) unpin();
    else if (dice < 940) remove();
    else if (dice < 955) remove_by_prefix();
    else if (dice < 956) flush();
    else if (dice < 980) retain();
    else if (dice < 988) evict();
    else iterate();
    if (exact) {
      compare();
    } else if (random.one_in(16)) {
      look_for_evicted();
      compare();
    }
  }
};

Bed* bed = nullptr;

void fail(const char* format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  for (const std::string& line : bed->story) std::fprintf(stderr, "  %s\n", line.c_str());
  std::fprintf(stderr, "FAIL seed %" PRIu64 " (%s), operation %" PRIu64 ": the model disagrees: %s\n", bed->seed,
               bed->exact ? "exact" : "evicting", bed->number, text);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t operations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200000;
  const uint64_t seeds = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 20;
  const uint64_t first = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  if (argc > 4) broken = std::strcmp(argv[4], "drop") == 0 ? Break::Drop : Break::Stale;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    Bed one(seed);
    bed = &one;
    for (uint64_t i = 0; i < operations / seeds; ++i) one.step();
  }
  std::printf("PASS %" PRIu64 " operations over %" PRIu64 " seeds agree with the model\n", operations / seeds * seeds, seeds);
  return 0;
}
