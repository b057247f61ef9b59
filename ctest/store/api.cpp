// What the store does, through the C ABI, in one process: every function where it succeeds, and every limit.
#include <poll.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "../support/store_check.hpp"

namespace {

nmc_put_options_t with(const std::function<void(nmc_put_options_t&)>& change) {
  nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
  change(options);
  return options;
}

bool readable(int fd) {
  pollfd event{fd, POLLIN, 0};
  return poll(&event, 1, 0) == 1;
}

void values() {
  promise("what_was_put_is_read_back_by_every_kind_of_read_and_no_byte_more");
  for (uint32_t flags : {0u, uint32_t{NMC_STORE_CHECKSUMS}}) {
    StoreSetup setup;
    setup.flags = flags;
    Embedded store(setup);
    for (size_t size : {size_t{0}, size_t{1}, size_t{63}, size_t{4095}, size_t{4096}, size_t{4097}, size_t{40000}}) {
      const std::string key = "k" + std::to_string(size), value = value_of(size, size);
      OK(put(store, key, value));
      GIVES(put(store, key, "another"), NMC_ERR_EXISTS);
      CHECK(get(store, key) == value);
      Guarded exact(size), roomy(size + 100);
      OK(nmc_store_get_into(store, bytes_of(key), exact.data(), size));
      CHECK(exact.text() == value && exact.zones_intact());
      size_t told = 77;
      OK(nmc_store_get(store, bytes_of(key), roomy.data(), roomy.size(), &told));
      CHECK(told == size && roomy.text().substr(0, size) == value && roomy.text()[size] == '\xa5' && roomy.zones_intact());
      nmc_object_meta_t meta{};
      OK(nmc_store_get_location(store, bytes_of(key), &meta));
      CHECK(meta.bytes_total == size && meta.page_bytes == kPage && meta.owner_rank == 0 && meta.epoch != 0);
      CHECK(meta.n_pages == (size + kPage - 1) / kPage && (meta.payload == nullptr) == (size == 0));
      CHECK(meta.last_page_bytes == (size == 0 ? 0 : (size - 1) % kPage + 1) && meta.header != nullptr);
      nmc_view_t view{};
      OK(nmc_store_pin(store, bytes_of(key), &view));
      CHECK(view.bytes == size && view.epoch == meta.epoch && view.data == meta.payload && view.ready_pages == meta.n_pages);
      CHECK(size == 0 || memcmp(view.data, value.data(), size) == 0);
      nmc_extent_t extent{};
      size_t n = 77;
      OK(nmc_store_view_extents(store, &view, &extent, 1, &n));
      CHECK(n == (size == 0 ? 0 : 1) && extent.bytes == size && extent.ptr == view.data && extent.device_ptr == nullptr);
      OK(nmc_store_unpin(store, &view));
      if (size < 3) continue;
      Guarded part(size - 2), left(size / 3), right(size - size / 3);
      OK(get_range(store, bytes_of(key), 1, part.data(), part.size()));
      CHECK(part.text() == std::string_view(value).substr(1, size - 2) && part.zones_intact());
      const nmc_buffer_t buffers[3] = {{left.data(), left.size()}, {nullptr, 0}, {right.data(), right.size()}};
      OK(nmc_store_get_slices(store, bytes_of(key), 0, buffers, 3, &told));
      CHECK(told == size && std::string(left.text()) + std::string(right.text()) == value);
      CHECK(left.zones_intact() && right.zones_intact());
    }
  }
}

void gathered() {
  promise("slices_and_rows_are_gathered_and_scattered");
  Embedded store;
  const std::string matrix = value_of(3, 64 * 200);  // 64 rows of 200 bytes
  OK(nmc_store_put_strided(store, slice_of("column"), matrix.data() + 40, 64, 100, 200, nullptr));
  std::string column;
  for (size_t row = 0; row < 64; ++row) column += matrix.substr(row * 200 + 40, 100);
  CHECK(get(store, "column") == column);
  Guarded back(64 * 200 - 100);  // the last row ends the buffer
  OK(nmc_store_get_strided(store, slice_of("column"), 0, back.data(), 64, 100, 200));
  for (size_t row = 0; row < 64; ++row) {
    CHECK(back.text().substr(row * 200, 100) == std::string_view(matrix).substr(row * 200 + 40, 100));
    if (row < 63) CHECK(back.text().substr(row * 200 + 100, 100) == std::string(100, '\xa5'));
  }
  CHECK(back.zones_intact());
  Guarded some(10 * 50);
  OK(nmc_store_get_strided(store, slice_of("column"), 1000, some.data(), 10, 50, 50));
  CHECK(some.text() == std::string_view(column).substr(1000, 500) && some.zones_intact());
  const nmc_slice_t slices[4] = {slice_of("one "), {nullptr, 0}, bytes_of(column), slice_of(" end")};
  OK(nmc_store_put_slices(store, slice_of("slices"), slices, 4, nullptr));
  CHECK(get(store, "slices") == "one " + column + " end");
  OK(nmc_store_put_slices(store, slice_of("none"), nullptr, 0, nullptr));
  OK(nmc_store_put_strided(store, slice_of("no rows"), nullptr, 0, 10, 10, nullptr));
  OK(put(store, "no address", {}));
  CHECK(get(store, "none").empty() && get(store, "no rows").empty() && get(store, "no address").empty());
}

void extents() {
  promise("a_value_that_finds_no_single_run_spans_extents_and_the_plan_lists_them");
  StoreSetup setup;
  Embedded store(setup);
  std::vector<std::string> keys;
  for (int i = 0; i < 60; ++i) {
    keys.push_back("small" + std::to_string(i));
    OK(put(store, keys.back(), value_of(1, kPage)));
  }
  for (size_t i = 0; i < keys.size(); i += 2) OK(nmc_store_remove(store, bytes_of(keys[i])));
  const size_t size = 20 * kPage - 5;
  nmc_write_plan_t plan{};
  OK(nmc_store_open_for_write(store, slice_of("spread"), size, nullptr, &plan));
  CHECK(plan.n_extents > 1 && plan.n_pages == 20 && plan.last_page_bytes == kPage - 5 && plan.bytes_total == size);
  std::vector<nmc_extent_t> runs(plan.n_extents);
  size_t n = 0;
  GIVES(nmc_store_plan_extents(store, &plan, runs.data(), runs.size() - 1, &n), NMC_ERR_TOO_SMALL);
  CHECK(n == runs.size());
  OK(nmc_store_plan_extents(store, &plan, runs.data(), runs.size(), &n));
  const std::string value = value_of(9, size);
  size_t at = 0;
  for (const nmc_extent_t& run : runs) {
    REQUIRE(at + run.bytes <= size);
    memcpy(run.ptr, value.data() + at, run.bytes);
    at += run.bytes;
  }
  CHECK(at == size && runs[0].ptr == plan.payload);
  GIVES(nmc_store_pin(store, slice_of("spread"), nullptr), NMC_ERR_INVALID_ARG);
  OK(nmc_store_commit(store, &plan));
  CHECK(get(store, "spread") == value);
  Guarded part(3 * kPage);
  OK(get_range(store, slice_of("spread"), kPage - 7, part.data(), part.size()));
  CHECK(part.text() == std::string_view(value).substr(kPage - 7, 3 * kPage) && part.zones_intact());
  nmc_view_t view{};
  OK(nmc_store_pin(store, slice_of("spread"), &view));
  std::vector<nmc_extent_t> seen(view.n_extents);
  OK(nmc_store_view_extents(store, &view, seen.data(), seen.size(), &n));
  CHECK(n == runs.size() && memcmp(seen.data(), runs.data(), n * sizeof runs[0]) == 0);
  OK(nmc_store_unpin(store, &view));
  promise("one_run_can_be_asked_for");
  const nmc_put_options_t contiguous = with([](auto& o) { o.flags = NMC_PUT_CONTIGUOUS; });
  OK(put(store, "one run", value_of(4, 6 * kPage), &contiguous));
  nmc_object_meta_t meta{};
  OK(nmc_store_get_location(store, slice_of("one run"), &meta));
  CHECK(meta.n_extents == 1 && get(store, "one run") == value_of(4, 6 * kPage));
}

void limits() {
  promise("a_heap_of_pinned_objects_is_busy_and_larger_than_the_heap_is_no_space");
  {
    StoreSetup setup;
    setup.pages = 4;
    Embedded store(setup);
    nmc_view_t views[4];
    for (int i = 0; i < 4; ++i) {
      OK(put(store, std::to_string(i), value_of(i, kPage)));
      OK(nmc_store_pin(store, bytes_of(std::to_string(i)), &views[i]));
    }
    nmc_write_plan_t plan{};
    GIVES(put(store, "more", "x"), NMC_ERR_BUSY);
    GIVES(nmc_store_open_for_write(store, slice_of("more"), 1, nullptr, &plan), NMC_ERR_BUSY);
    GIVES(put(store, "huge", value_of(0, 4 * kPage + 1)), NMC_ERR_NO_SPACE);
    GIVES(nmc_store_open_for_write(store, slice_of("huge"), UINT64_MAX, nullptr, &plan), NMC_ERR_NO_SPACE);
    CHECK(stats_of(store).oom_count >= 4 && state_of(store, "more") == NMC_OBJECT_ABSENT);
    OK(put(store, "nothing", ""));  // needs no page
    for (int i = 0; i < 4; ++i) {
      CHECK(memcmp(views[i].data, value_of(i, kPage).data(), kPage) == 0 && get(store, std::to_string(i)) == value_of(i, kPage));
      OK(nmc_store_unpin(store, &views[i]));
    }
    OK(put(store, "all", value_of(8, 4 * kPage)));  // evicts everything
    CHECK(get(store, "all") == value_of(8, 4 * kPage));
  }
  promise("objects_being_written_are_not_evicted");
  {
    StoreSetup setup;
    setup.pages = 2;
    Embedded store(setup);
    nmc_write_plan_t plan{};
    OK(nmc_store_open_for_write(store, slice_of("w"), 2 * kPage, nullptr, &plan));
    GIVES(put(store, "more", "x"), NMC_ERR_BUSY);
    OK(nmc_store_commit(store, &plan));
    OK(put(store, "more", "x"));
  }
  promise("a_full_index_of_retained_objects_is_a_limit");
  {
    StoreSetup setup;
    setup.max_objects = 8;
    Embedded store(setup);
    const nmc_put_options_t hard = with([](auto& o) { o.retain = NMC_RETAIN_HARD; });
    for (int i = 0; i < 8; ++i) OK(put(store, "hard" + std::to_string(i), "x", &hard));
    GIVES(put(store, "ninth", "x"), NMC_ERR_LIMIT);
    CHECK(error_mentions("max_objects"));
    GIVES(put(store, "ninth", ""), NMC_ERR_LIMIT);
    for (int i = 0; i < 8; ++i) CHECK(get(store, "hard" + std::to_string(i)) == "x");
    OK(nmc_store_retain(store, slice_of("hard3"), NMC_RETAIN_NONE, 0, 0));
    OK(put(store, "ninth", "y"));
    CHECK(get(store, "ninth") == "y" && state_of(store, "hard3") == NMC_OBJECT_ABSENT);
  }
  promise("a_full_key_slab_is_a_limit");
  {
    StoreSetup setup;
    setup.key_slab_bytes = 4096;
    Embedded store(setup);
    const nmc_put_options_t hard = with([](auto& o) { o.retain = NMC_RETAIN_HARD; });
    nmc_status_t status = NMC_OK;
    int stored = 0;
    for (; status == NMC_OK && stored < 10; ++stored) {
      status = put(store, std::string(1000, static_cast<char>('a' + stored)), "x", &hard);
    }
    GIVES(status, NMC_ERR_LIMIT);
    CHECK(error_mentions("key slab") && stored >= 3);
    GIVES(put(store, std::string(1024, 'z'), ""), NMC_ERR_LIMIT);  // without a page too
    CHECK(error_mentions("key slab"));
    const nmc_put_options_t contiguous = with([](auto& o) { o.flags = NMC_PUT_CONTIGUOUS; });
    GIVES(put(store, std::string(1024, 'z'), "x", &contiguous), NMC_ERR_LIMIT);  // and in one run
    OK(nmc_store_remove(store, bytes_of(std::string(1000, 'a'))));
    OK(put(store, std::string(1000, 'z'), "z"));
    CHECK(get(store, std::string(1000, 'z')) == "z");
  }
  promise("pin_slots_run_out_and_come_back");
  {
    StoreSetup setup;
    setup.pin_slots = 3;
    Embedded store(setup);
    OK(put(store, "k", "value"));
    nmc_view_t views[4];
    for (int i = 0; i < 3; ++i) OK(nmc_store_pin(store, slice_of("k"), &views[i]));
    GIVES(nmc_store_pin(store, slice_of("k"), &views[3]), NMC_ERR_BUSY);
    char buffer[5];
    GIVES(nmc_store_get_into(store, slice_of("k"), buffer, 5), NMC_ERR_BUSY);
    CHECK(state_of(store, "k") == NMC_OBJECT_READY);
    OK(nmc_store_unpin(store, &views[1]));
    OK(nmc_store_get_into(store, slice_of("k"), buffer, 5));
    OK(nmc_store_unpin(store, &views[0]));
    OK(nmc_store_unpin(store, &views[2]));
  }
  promise("a_quota_evicts_own_objects_but_not_pinned_ones_or_those_of_others");
  {
    Embedded store;
    nmc_store_t* space = nullptr;
    REQUIRE(OK(nmc_store_namespace(store, slice_of("model"), 2 * kPage, &space)));
    OK(put(store, "k", "default"));
    OK(put(space, "k", "first"));
    OK(put(space, "l", "second"));
    OK(put(space, "m", "third"));
    CHECK(state_of(space, "k") == NMC_OBJECT_ABSENT && get(space, "m") == "third" && get(store, "k") == "default");
    GIVES(put(space, "big", value_of(1, 2 * kPage + 1)), NMC_ERR_NO_SPACE);
    CHECK(get(space, "l") == "second" && get(space, "m") == "third");  // it could not have been stored anyway
    nmc_view_t l{}, m{};
    OK(nmc_store_pin(space, slice_of("l"), &l));
    OK(nmc_store_pin(space, slice_of("m"), &m));
    const nmc_status_t status = put(space, "n", "fourth");
    CHECK(status == NMC_ERR_NO_SPACE || status == NMC_ERR_BUSY);
    CHECK(get(space, "l") == "second" && get(space, "m") == "third");  // in use: they stay readable
    OK(nmc_store_unpin(space, &l));
    OK(nmc_store_unpin(space, &m));
    OK(put(space, "n", "fourth"));
    nmc_store_t* same = nullptr;
    OK(nmc_store_namespace(store, slice_of("model"), UINT64_MAX, &same));
    CHECK(get(same, "n") == "fourth");
    nmc_store_t* free_space = nullptr;
    OK(nmc_store_namespace(store, slice_of("model"), 0, &free_space));
    OK(put(space, "big", value_of(1, 4 * kPage)));  // no quota any more
    OK(nmc_store_remove_all(same));
    CHECK(state_of(space, "big") == NMC_OBJECT_ABSENT && get(store, "k") == "default");
    OK(nmc_store_destroy(same));
    OK(nmc_store_destroy(free_space));
    OK(nmc_store_destroy(space));
  }
}

void eviction() {
  promise("fifo_evicts_the_oldest_and_lru_what_was_not_touched");
  for (uint32_t policy : {NMC_EVICT_FIFO, NMC_EVICT_LRU, NMC_EVICT_S3FIFO}) {
    StoreSetup setup;
    setup.pages = 16;
    setup.eviction = policy;
    Embedded store(setup);
    OK(put(store, "old", value_of(0, kPage)));
    for (int i = 0; i < 10; ++i) OK(put(store, "a" + std::to_string(i), value_of(1, kPage)));
    sleep_ms(20);  // stamps are some milliseconds apart
    OK(nmc_store_touch(store, slice_of("old")));
    for (int i = 0; i < 8; ++i) OK(put(store, "b" + std::to_string(i), value_of(2, kPage)));
    CHECK((state_of(store, "old") == NMC_OBJECT_READY) == (policy != NMC_EVICT_FIFO));
    const nmc_store_stats_t stats = stats_of(store);
    CHECK(stats.evict_count > 0 && stats.bytes_used <= 16 * kPage);
    OK(nmc_store_evict_until_below(store, 0, 250));
    CHECK(stats_of(store).bytes_used <= 4 * kPage && stats_of(store).bytes_used > 0);
    OK(nmc_store_evict_until_below(store, 0, 0));
    CHECK(stats_of(store).bytes_used == 0 && stats_of(store).ready_count == 0);
  }
  promise("what_waited_for_readers_is_taken_back_before_anything_is_evicted");
  {
    StoreSetup setup;
    setup.pages = 16;
    Embedded store(setup);
    OK(put(store, "kept", value_of(1, kPage)));
    nmc_view_t views[14];
    for (int i = 0; i < 14; ++i) {
      const std::string key = "r" + std::to_string(i);
      OK(put(store, key, value_of(2, kPage)));
      OK(nmc_store_pin(store, bytes_of(key), &views[i]));
    }
    for (int i = 0; i < 14; ++i) OK(nmc_store_remove(store, bytes_of("r" + std::to_string(i))));
    for (const nmc_view_t& view : views) OK(nmc_store_unpin(store, &view));
    OK(put(store, "new", value_of(3, kPage)));
    CHECK(stats_of(store).evict_count == 0 && get(store, "kept") == value_of(1, kPage));
  }
  promise("retained_objects_stay_and_priorities_go_in_order");
  Embedded store;
  const auto kept = [](uint32_t retain, uint64_t ttl, uint32_t priority) {
    return with([=](auto& o) { o.retain = retain, o.ttl_ms = ttl, o.priority = priority; });
  };
  const nmc_put_options_t hard = kept(NMC_RETAIN_HARD, 0, 0), soft = kept(NMC_RETAIN_SOFT, 0, 0);
  const nmc_put_options_t brief = kept(NMC_RETAIN_SOFT, 1, 0), high = kept(NMC_RETAIN_NONE, 0, 3);
  OK(put(store, "hard", value_of(1, kPage), &hard));
  OK(put(store, "soft", value_of(1, kPage), &soft));
  OK(put(store, "brief", value_of(1, kPage), &brief));
  OK(put(store, "high", value_of(1, kPage), &high));
  sleep_ms(10);
  for (int i = 0; i < 300; ++i) OK(put(store, "x" + std::to_string(i), value_of(2, kPage)));
  CHECK(state_of(store, "hard") == NMC_OBJECT_READY && state_of(store, "soft") == NMC_OBJECT_READY);
  CHECK(state_of(store, "brief") == NMC_OBJECT_ABSENT && state_of(store, "high") == NMC_OBJECT_READY);
  OK(nmc_store_evict_until_below(store, 0, 0));
  CHECK(state_of(store, "hard") == NMC_OBJECT_READY && state_of(store, "soft") == NMC_OBJECT_ABSENT);
  OK(nmc_store_retain(store, slice_of("hard"), NMC_RETAIN_SOFT, 1, 1000));
  OK(nmc_store_evict_until_below(store, 0, 0));
  CHECK(state_of(store, "hard") == NMC_OBJECT_ABSENT);
}

void pinned_objects() {
  promise("what_is_pinned_stays_when_it_is_removed_or_replaced");
  Embedded store;
  OK(put(store, "k", value_of(1, 3 * kPage)));
  nmc_view_t view{};
  OK(nmc_store_pin(store, slice_of("k"), &view));
  OK(nmc_store_remove(store, slice_of("k")));
  CHECK(stats_of(store).limbo_bytes == 3 * kPage);
  OK(put(store, "k", value_of(2, 3 * kPage)));
  for (int i = 0; i < 200; ++i) OK(put(store, "x" + std::to_string(i), value_of(3, kPage)));
  CHECK(memcmp(view.data, value_of(1, 3 * kPage).data(), view.bytes) == 0);
  uint32_t pages = 0;
  OK(nmc_store_ready_pages(store, &view, &pages));
  CHECK(pages == 3);
  OK(nmc_store_unpin(store, &view));
  CHECK(stats_of(store).limbo_bytes == 0);

  promise("replacing_shows_the_old_value_until_the_new_one_is_complete");
  const nmc_put_options_t replace = with([](auto& o) { o.flags = NMC_PUT_REPLACE; });
  OK(put(store, "r", "old"));
  OK(nmc_store_pin(store, slice_of("r"), &view));
  nmc_write_plan_t plan{};
  OK(nmc_store_open_for_write(store, slice_of("r"), 9, &replace, &plan));
  memcpy(plan.payload, "new value", 9);
  CHECK(get(store, "r") == "old" && state_of(store, "r") == NMC_OBJECT_READY);
  OK(nmc_store_commit(store, &plan));
  OK(nmc_store_commit(store, &plan));
  CHECK(get(store, "r") == "new value" && memcmp(view.data, "old", 3) == 0);
  OK(nmc_store_unpin(store, &view));
  OK(put(store, "r", "", &replace));
  CHECK(get(store, "r").empty());
  OK(put(store, "fresh", "it was not there", &replace));
  CHECK(get(store, "fresh") == "it was not there");
  OK(nmc_store_open_for_write(store, slice_of("r"), 9, &replace, &plan));
  OK(nmc_store_abort(store, &plan));
  CHECK(get(store, "r").empty() && state_of(store, "r") == NMC_OBJECT_READY);

  promise("a_key_that_is_being_replaced_is_never_missed");
  const nmc_put_options_t kept = with([](auto& o) { o.flags = NMC_PUT_REPLACE, o.retain = NMC_RETAIN_HARD; });
  OK(put(store, "often", "0", &kept));
  std::atomic<bool> writing{true};
  std::thread writer([&] {
    for (int i = 0; i < 20000; ++i) OK(put(store, "often", std::to_string(i), &kept));
    writing = false;
  });
  uint64_t looks = 0, missed = 0;
  for (; writing; ++looks) {
    char buffer[8];
    size_t size = 0;
    missed += nmc_store_get(store, slice_of("often"), buffer, sizeof buffer, &size) != NMC_OK;
    missed += state_of(store, "often") != NMC_OBJECT_READY;
  }
  writer.join();
  if (!CHECK(missed == 0)) printf("     %d of %d\n", static_cast<int>(missed), static_cast<int>(looks));

  promise("readers_may_begin_with_the_first_pages");
  OK(nmc_store_open_for_write(store, slice_of("p"), 3 * kPage, nullptr, &plan));
  nmc_view_t part{};
  GIVES(nmc_store_pin(store, slice_of("p"), &part), NMC_NOT_READY);
  GIVES(nmc_store_pin_partial(store, slice_of("p"), 1, &part), NMC_NOT_READY);
  size_t size = 0;
  nmc_object_meta_t meta{};
  GIVES(nmc_store_get(store, slice_of("p"), nullptr, 0, &size), NMC_NOT_READY);
  GIVES(nmc_store_get_location(store, slice_of("p"), &meta), NMC_NOT_READY);
  GIVES(nmc_store_wait_ready(store, slice_of("p"), 0, 5), NMC_ERR_TIMEOUT);
  GIVES(nmc_store_wait_pages(store, slice_of("p"), 2, 0, 5), NMC_ERR_TIMEOUT);
  memcpy(plan.payload, value_of(5, 3 * kPage).data(), 2 * kPage);
  OK(nmc_store_publish_pages(store, &plan, 2));
  GIVES(nmc_store_publish_pages(store, &plan, 1), NMC_ERR_INVALID_ARG);
  OK(nmc_store_wait_pages(store, slice_of("p"), 2, 0, 0));
  GIVES(nmc_store_wait_pages(store, slice_of("p"), 3, 0, 5), NMC_ERR_TIMEOUT);
  GIVES(nmc_store_pin_partial(store, slice_of("p"), 3, &part), NMC_NOT_READY);
  OK(nmc_store_pin_partial(store, slice_of("p"), 2, &part));
  CHECK(part.ready_pages == 2 && memcmp(part.data, value_of(5, 3 * kPage).data(), 2 * kPage) == 0);
  memcpy(plan.payload, value_of(5, 3 * kPage).data(), 3 * kPage);
  OK(nmc_store_commit(store, &plan));
  OK(nmc_store_ready_pages(store, &part, &pages));
  CHECK(pages == 3);
  OK(nmc_store_wait_pages(store, slice_of("p"), 1000, 0, 0));  // all there are
  OK(nmc_store_unpin(store, &part));
  OK(nmc_store_open_for_write(store, slice_of("q"), 2 * kPage, nullptr, &plan));
  OK(nmc_store_publish_pages(store, &plan, 1));
  OK(nmc_store_pin_partial(store, slice_of("q"), 1, &part));
  OK(nmc_store_abort(store, &plan));
  GIVES(nmc_store_ready_pages(store, &part, &pages), NMC_ERR_STALE);
  OK(nmc_store_unpin(store, &part));

  promise("a_late_writer_is_given_up_and_its_memory_kept_until_it_stops");
  StoreSetup setup;
  setup.watchdog_ms = 20;
  Embedded hurried(setup);
  OK(nmc_store_open_for_write(hurried, slice_of("slow"), kPage, nullptr, &plan));
  sleep_ms(60);
  nmc_store_stats_t stats = stats_of(hurried);
  CHECK(stats.stuck_put_reclaimed == 1 && stats.quarantined_bytes == kPage);
  GIVES(nmc_store_commit(hurried, &plan), NMC_ERR_STALE);
  CHECK(stats_of(hurried).quarantined_bytes == 0 && state_of(hurried, "slow") == NMC_OBJECT_ABSENT);
}

void waiting() {
  promise("a_wait_ends_with_the_publication_the_deadline_the_end_of_the_writer_or_cancel");
  Embedded store;
  nmc_write_plan_t plan{};
  const auto in_thread = [&](std::string_view key, uint32_t flags, const std::function<void()>& act) {
    std::atomic<nmc_status_t> status{77};
    std::thread waiter([&] { status = nmc_store_wait_ready(store, bytes_of(key), flags, 60000); });
    sleep_ms(30);
    act();
    waiter.join();
    return status.load();
  };
  GIVES(nmc_store_wait_ready(store, slice_of("a"), 0, 60000), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_wait_ready(store, slice_of("a"), NMC_WAIT_APPEAR, 5), NMC_ERR_TIMEOUT);
  OK(in_thread("a", NMC_WAIT_APPEAR, [&] { OK(put(store, "a", "x")); }));
  OK(nmc_store_wait_ready(store, slice_of("a"), 0, 0));
  OK(nmc_store_open_for_write(store, slice_of("b"), 8, nullptr, &plan));
  OK(in_thread("b", 0, [&] { OK(nmc_store_commit(store, &plan)); }));
  OK(nmc_store_open_for_write(store, slice_of("c"), 8, nullptr, &plan));
  // The program publishes itself, as a kernel would.
  OK(in_thread("c", 0, [&] { __atomic_store_n(plan.publish_word, plan.epoch, __ATOMIC_RELEASE); }));
  OK(nmc_store_commit(store, &plan));
  OK(nmc_store_open_for_write(store, slice_of("d"), 8, nullptr, &plan));
  const nmc_status_t aborted = in_thread("d", 0, [&] { OK(nmc_store_abort(store, &plan)); });
  CHECK(aborted == NMC_ERR_STALE || aborted == NMC_ERR_NOT_FOUND);  // the latter if it had not begun
  std::atomic<nmc_status_t> status{77};
  std::thread cancelled([&] { status = nmc_store_wait_ready(store, slice_of("never"), NMC_WAIT_APPEAR, 60000); });
  for (; status == 77; sleep_ms(5)) OK(nmc_store_cancel(store));  // the first may come before the wait
  cancelled.join();
  GIVES(status, NMC_ERR_CANCELLED);

  promise("destroying_a_handle_ends_its_waits_and_only_those");
  nmc_store_t* space = nullptr;
  OK(nmc_store_namespace(store, slice_of("space"), 0, &space));
  OK(in_thread("later", NMC_WAIT_APPEAR, [&] {
    OK(nmc_store_destroy(space));
    sleep_ms(20);
    OK(put(store, "later", "x"));
  }));
  nmc_store_t* doomed = nullptr;
  OK(nmc_store_namespace(store, slice_of("space"), 0, &doomed));
  std::thread waiter([&] { status = nmc_store_wait_ready(doomed, slice_of("x"), NMC_WAIT_APPEAR, 60000); });
  sleep_ms(30);
  OK(nmc_store_destroy(doomed));
  waiter.join();
  CHECK(status == NMC_ERR_CANCELLED || status == NMC_ERR_BAD_HANDLE);  // the latter if it had not begun
}

void room() {
  promise("every_form_of_put_finds_another_rank_or_waits_for_room");
  StoreSetup setup;
  setup.pages = 4;
  setup.ranks = 2;
  Embedded store(setup);
  const nmc_put_options_t hard = with([](auto& o) { o.preferred_segment = 0, o.retain = NMC_RETAIN_HARD; });
  const nmc_put_options_t alone = with([](auto& o) { o.preferred_segment = 0; });
  const nmc_put_options_t anywhere = with([](auto& o) { o.preferred_segment = 0, o.flags = NMC_PUT_ANY_RANK; });
  const nmc_put_options_t patient = with([](auto& o) { o.preferred_segment = 0, o.wait_ms = 60000; });
  const std::string value = value_of(1, kPage);
  const nmc_slice_t halves[] = {{value.data(), kPage / 2}, {value.data() + kPage / 2, kPage / 2}}, whole = bytes_of(value);
  const nmc_slice_t key = slice_of("late");
  const uint64_t bytes = kPage;
  nmc_write_plan_t plan{};
  using Form = std::function<nmc_status_t(const nmc_put_options_t*)>;
  const Form forms[] = {
      [&](auto* o) { return nmc_store_put(store, key, value.data(), kPage, o); },
      [&](auto* o) { return nmc_store_put_slices(store, key, halves, 2, o); },
      [&](auto* o) { return nmc_store_put_strided(store, key, value.data(), 4, kPage / 4, kPage / 4, o); },
      [&](auto* o) { return nmc_store_put_batch(store, &key, &whole, 1, o, nullptr); },
      [&](auto* o) { return nmc_store_open_for_write(store, key, kPage, o, &plan); },
      [&](auto* o) { return nmc_store_open_batch(store, &key, &bytes, 1, o, &plan, nullptr); },
  };
  for (const Form& form : forms) {
    for (int i = 0; i < 4; ++i) OK(put(store, "hard" + std::to_string(i), value, &hard));
    plan = {};
    GIVES(form(&alone), NMC_ERR_BUSY);
    OK(form(&anywhere));
    if (plan.plan_id == 0) {
      nmc_object_meta_t meta{};
      OK(nmc_store_get_location(store, key, &meta));
      CHECK(meta.owner_rank == 1 && get(store, "late") == value);
    } else {
      CHECK(plan.dst_rank == 1);
      OK(nmc_store_commit(store, &plan));
    }
    OK(nmc_store_remove(store, key));
    std::atomic<nmc_status_t> status{77};
    std::thread waiter([&] { status = form(&patient); });
    sleep_ms(20);
    CHECK(status == 77);
    OK(nmc_store_remove(store, slice_of("hard2")));
    waiter.join();
    OK(status);
    if (plan.plan_id != 0) OK(nmc_store_commit(store, &plan));
    OK(nmc_store_remove_all(store));
  }
}

// Takes completions until there are `n`.
std::map<uint64_t, nmc_status_t> completed(nmc_store_t* store, size_t n) {
  std::map<uint64_t, nmc_status_t> found;
  int32_t fd = -1;
  OK(nmc_store_event_fd(store, &fd));
  for (const double deadline = seconds_now() + 30; found.size() < n && seconds_now() < deadline;) {
    pollfd event{fd, POLLIN, 0};
    poll(&event, 1, 1000);
    nmc_completion_t batch[2];
    size_t taken = 0;
    OK(nmc_store_completions(store, batch, 2, &taken));
    for (size_t i = 0; i < taken; ++i) CHECK(found.emplace(batch[i].token, batch[i].status).second);
  }
  return found;
}

// Threads of this process.
long threads() {
  using Tasks = std::filesystem::directory_iterator;
  return std::distance(Tasks("/proc/self/task"), Tasks());
}

void watching() {
  promise("watched_keys_become_completions_and_the_descriptor_tells");
  Embedded store;
  const long without_watches = threads();
  int32_t fd = -1;
  OK(nmc_store_event_fd(store, &fd));
  CHECK(fd >= 0 && !readable(fd));
  nmc_write_plan_t plan{}, given_up{};
  OK(put(store, "ready", "x"));
  OK(nmc_store_open_for_write(store, slice_of("writing"), 8, nullptr, &plan));
  OK(nmc_store_open_for_write(store, slice_of("given up"), 8, nullptr, &given_up));
  OK(nmc_store_watch(store, slice_of("ready"), 0, 1));
  OK(nmc_store_watch(store, slice_of("absent"), 0, 2));
  std::map<uint64_t, nmc_status_t> found = completed(store, 2);
  CHECK(found[1] == NMC_OK && found[2] == NMC_ERR_NOT_FOUND && !readable(fd));
  OK(nmc_store_watch(store, slice_of("writing"), 0, 3));
  OK(nmc_store_watch(store, slice_of("given up"), 0, 4));
  OK(nmc_store_watch(store, slice_of("later"), NMC_WAIT_APPEAR, UINT64_MAX));
  sleep_ms(30);
  CHECK(!readable(fd));
  OK(nmc_store_commit(store, &plan));
  OK(nmc_store_abort(store, &given_up));
  OK(put(store, "later", "x"));
  found = completed(store, 3);
  CHECK(found[3] == NMC_OK && found[4] == NMC_ERR_STALE && found[UINT64_MAX] == NMC_OK && !readable(fd));

  promise("cancel_ends_the_watches_before_it_and_none_after_it");
  for (uint64_t round = 0; round < 200; ++round) {
    OK(nmc_store_watch(store, slice_of("never"), NMC_WAIT_APPEAR, 2 * round));
    OK(nmc_store_cancel(store));
    OK(nmc_store_watch(store, slice_of("ready"), 0, 2 * round + 1));
    found = completed(store, 2);
    if (!CHECK(found[2 * round] == NMC_ERR_CANCELLED && found[2 * round + 1] == NMC_OK)) {
      printf("     round %d: %s and %s\n", static_cast<int>(round), nmc_status_name(found[2 * round]),
             nmc_status_name(found[2 * round + 1]));
      break;
    }
  }

  promise("completions_that_nobody_takes_do_not_pile_up_and_the_gap_is_told_once");
  constexpr uint64_t more = 1000, all = NMC_MAX_COMPLETIONS + more;
  for (uint64_t token = 0; token < all;) {
    const nmc_status_t status = nmc_store_watch(store, slice_of("ready"), 0, token);
    if (status != NMC_ERR_LIMIT) OK(status), ++token;  // more are watched than the thread has looked at
  }
  for (const double deadline = seconds_now() + 60; seconds_now() < deadline && threads() > without_watches;) {
    sleep_ms(5);  // the thread that looks at watched keys ends when it is through
  }
  uint64_t lost = 0, gaps = 0, taken = 0, last = 0;
  for (const double deadline = seconds_now() + 60; last != all - 1 && seconds_now() < deadline;) {
    nmc_completion_t batch[64];
    size_t n = 0;
    OK(nmc_store_completions(store, batch, 64, &n));
    for (size_t i = 0; i < n; ++i) {
      lost += batch[i].lost, gaps += batch[i].lost != 0, ++taken, last = batch[i].token;
      CHECK(batch[i].status == NMC_OK && last == taken + lost - 1);  // in order, and nothing is gone that is not told
    }
  }
  if (!CHECK(taken == NMC_MAX_COMPLETIONS && lost == more && gaps == 1 && !readable(fd))) {
    printf("     %llu taken, %llu lost in %llu gaps\n", static_cast<unsigned long long>(taken),
           static_cast<unsigned long long>(lost), static_cast<unsigned long long>(gaps));
  }

  promise("a_store_can_be_destroyed_while_keys_are_watched");
  for (int round = 0; round < 20; ++round) {
    nmc_store_t* brief = nullptr;
    const nmc_store_config_t config = store_config({});
    OK(nmc_store_create(nullptr, &config, &brief));
    OK(nmc_store_watch(brief, slice_of("never"), NMC_WAIT_APPEAR, 1));
    if (round % 2 == 1) sleep_ms(1);
    OK(nmc_store_destroy(brief));
  }
}

void looking() {
  promise("iteration_sees_the_objects_of_the_namespace_that_can_be_read");
  Embedded store;
  nmc_store_t* space = nullptr;
  OK(nmc_store_namespace(store, slice_of("space"), 0, &space));
  std::map<std::string, uint64_t> want, seen;
  for (size_t i = 0; i < 20; ++i) {
    const std::string key = std::string(1 + i * 50, static_cast<char>('a' + i));
    want[key] = i * 100;
    OK(put(store, key, value_of(1, i * 100)));
    OK(put(space, "other " + std::to_string(i), "x"));
  }
  nmc_write_plan_t plan{};
  OK(nmc_store_open_for_write(store, slice_of("unfinished"), 8, nullptr, &plan));
  uint64_t cursor = 0;
  Guarded key(1024);
  size_t len = 0;
  uint64_t bytes = 0;
  nmc_status_t status;
  while ((status = nmc_store_next(store, &cursor, key.data(), key.size(), &len, &bytes)) == NMC_OK) {
    CHECK(seen.emplace(key.text().substr(0, len), bytes).second);
  }
  GIVES(status, NMC_ERR_NOT_FOUND);
  CHECK(seen == want && key.zones_intact());
  cursor = 0;
  size_t short_ones = 0;
  Guarded brief(100);
  for (;;) {
    const uint64_t before = cursor;
    status = nmc_store_next(store, &cursor, brief.data(), brief.size(), &len, nullptr);
    if (status == NMC_ERR_NOT_FOUND) break;
    if (status == NMC_ERR_TOO_SMALL) {
      CHECK(len > 100 && cursor == before && brief.zones_intact());
      ++cursor;  // skip it
      continue;
    }
    OK(status);
    ++short_ones;
  }
  CHECK(short_ones == 2);
  // Wherever a cursor points that no call gave, it leads to objects or to the end.
  for (const uint64_t made_up : {uint64_t{UINT32_MAX}, uint64_t{UINT32_MAX} + 1, uint64_t{1} << 62, (uint64_t{1} << 63) + 7, UINT64_MAX - 1, UINT64_MAX}) {
    cursor = made_up;
    for (size_t steps = 0; steps <= want.size(); ++steps) {
      status = nmc_store_next(store, &cursor, key.data(), key.size(), &len, &bytes);
      if (status != NMC_OK) break;
    }
    GIVES(status, NMC_ERR_NOT_FOUND);
  }

  promise("states_prefixes_and_removal_by_prefix");
  const nmc_slice_t keys[4] = {slice_of("a"), bytes_of(want.rbegin()->first), slice_of("unfinished"), slice_of("none")};
  uint32_t states[4] = {9, 9, 9, 9};
  OK(nmc_store_exists_batch(store, keys, 4, states));
  CHECK(states[0] == NMC_OBJECT_READY && states[1] == NMC_OBJECT_READY && states[2] == NMC_OBJECT_WRITING);
  CHECK(states[3] == NMC_OBJECT_ABSENT);
  size_t matched = 77;
  OK(nmc_store_match_prefix(store, keys, 4, &matched));
  CHECK(matched == 2);
  OK(nmc_store_match_prefix(store, keys, 0, &matched));
  CHECK(matched == 0);
  uint64_t removed = 77;
  OK(nmc_store_remove_by_prefix(store, slice_of("bb"), &removed));
  CHECK(removed == 1);
  OK(nmc_store_remove_by_prefix(store, slice_of("bb"), &removed));
  CHECK(removed == 0 && get(space, "other 3") == "x");
  OK(nmc_store_remove_all(store));
  CHECK(state_of(store, "a") == NMC_OBJECT_ABSENT && get(space, "other 3") == "x");
  cursor = 0;
  GIVES(nmc_store_next(store, &cursor, key.data(), key.size(), &len, &bytes), NMC_ERR_NOT_FOUND);
  OK(put(store, "a", "again"));
  CHECK(get(store, "a") == "again");
  GIVES(nmc_store_commit(store, &plan), NMC_ERR_STALE);  // it was forgotten with the others
  OK(nmc_store_destroy(space));

  promise("statistics_add_up");
  StoreSetup setup;
  setup.ranks = 3;
  Embedded three(setup);
  for (int32_t rank = 0; rank < 3; ++rank) {
    const nmc_put_options_t on = with([rank](auto& o) { o.preferred_segment = rank; });
    for (int i = 0; i <= rank; ++i) OK(put(three, std::to_string(rank * 10 + i), value_of(1, 5000), &on));
  }
  char byte[5000];
  for (int i = 0; i < 10; ++i) OK(nmc_store_get_into(three, slice_of("0"), byte, 5000));
  GIVES(nmc_store_get_into(three, slice_of("none"), byte, 5000), NMC_ERR_NOT_FOUND);
  nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
  nmc_store_rank_stats_t ranks[4];
  memset(ranks, 0xee, sizeof ranks);
  ranks[0].struct_size = sizeof *ranks;
  OK(nmc_store_stats(three, ranks, 4, &stats));
  CHECK(stats.n_ranks == 3 && stats.bytes_total == 3 * 64 * kPage && stats.bytes_used == 6 * 2 * kPage);
  for (uint64_t rank = 0; rank < 3; ++rank) {
    CHECK(ranks[rank].ready_count == rank + 1 && ranks[rank].bytes_used == (rank + 1) * 2 * kPage);
    CHECK(ranks[rank].largest_free_bytes + ranks[rank].bytes_used == 64 * kPage && ranks[rank].free_runs == 1);
  }
  CHECK(ranks[3].bytes_used == 0xeeeeeeeeeeeeeeee && stats.puts == 6 && stats.bytes_written == 30000);
  CHECK(stats.get_hits == 10 && stats.get_misses == 1 && stats.bytes_read == 50000 && stats.hit_permille == 909);
  CHECK(stats.put_p50_ns > 0 && stats.put_p99_ns >= stats.put_p50_ns && stats.get_p99_ns >= stats.get_p50_ns);
  CHECK(stats.master_up == 1 && stats.metadata_bytes > 0 && stats.master_bytes > 0 && stats.bytes_tx > 0);
  nmc_store_rank_stats_t first = NMC_STORE_RANK_STATS_INIT;
  OK(nmc_store_stats(three, &first, 1, &stats));
  CHECK(first.bytes_used == 2 * kPage && first.struct_size == sizeof first);
  nmc_retry_hint_t hint = NMC_RETRY_HINT_INIT;
  OK(nmc_store_retry_hint(three, 2, &hint));
  CHECK(hint.free_bytes == 58 * kPage && hint.ready_count == 3 && hint.retry_after_us > 0 && hint.waiting_bytes == 0);

  promise("a_program_of_a_newer_header_gets_what_this_library_knows");
  struct Newer {
    nmc_store_rank_stats_t known;
    uint64_t later[3];
  } newer[3];
  memset(newer, 0xee, sizeof newer);
  newer[0].known.struct_size = sizeof *newer;
  OK(nmc_store_stats(three, &newer[0].known, 3, &stats));
  for (uint64_t rank = 0; rank < 3; ++rank) {
    CHECK(newer[rank].known.ready_count == rank + 1 && newer[rank].later[0] == 0xeeeeeeeeeeeeeeee);
  }
  std::vector<char> text(1 << 16);
  OK(nmc_store_prometheus(three, text.data(), text.size(), nullptr));
  CHECK(strstr(text.data(), "nanomc_store_bytes_used{rank=\"2\"} 24576") != nullptr);
  OK(nmc_store_dump(three, 32, text.data(), text.size(), nullptr));
  CHECK(strchr(text.data(), '#') != nullptr && strchr(text.data(), '.') != nullptr);
}

void metadata() {
  promise("metadata_is_given_with_its_size_and_a_buffer_that_is_too_small_is_left_alone");
  Embedded store;
  const std::string said = value_of(9, NMC_MAX_METADATA);
  const nmc_put_options_t with_it = with([&](auto& o) { o.metadata = bytes_of(said); });
  OK(put(store, "k", "value", &with_it));
  OK(put(store, "plain", "value"));
  size_t n = 77;
  OK(nmc_store_get_metadata(store, slice_of("k"), nullptr, 0, &n));
  CHECK(n == NMC_MAX_METADATA);
  Guarded small(NMC_MAX_METADATA - 1), right(NMC_MAX_METADATA);
  n = 77;
  GIVES(nmc_store_get_metadata(store, slice_of("k"), small.data(), small.size(), &n), NMC_ERR_TOO_SMALL);
  CHECK(n == NMC_MAX_METADATA && small.untouched());
  GIVES(nmc_store_get_metadata(store, slice_of("k"), small.data(), small.size(), nullptr), NMC_ERR_TOO_SMALL);
  GIVES(nmc_store_get_metadata(store, slice_of("k"), nullptr, 0, nullptr), NMC_ERR_TOO_SMALL);
  OK(nmc_store_get_metadata(store, slice_of("k"), right.data(), right.size(), nullptr));
  CHECK(right.text() == said && right.zones_intact());
  OK(nmc_store_get_metadata(store, slice_of("plain"), right.data(), right.size(), &n));
  CHECK(n == 0 && right.text() == said);
  GIVES(nmc_store_get_metadata(store, slice_of("none"), right.data(), right.size(), &n), NMC_ERR_NOT_FOUND);
  nmc_write_plan_t plan{};
  OK(nmc_store_open_for_write(store, slice_of("open"), 5, &with_it, &plan));
  GIVES(nmc_store_get_metadata(store, slice_of("open"), right.data(), right.size(), &n), NMC_NOT_READY);
  OK(nmc_store_commit(store, &plan));
  OK(nmc_store_get_metadata(store, slice_of("open"), right.data(), right.size(), &n));
  CHECK(n == NMC_MAX_METADATA);
  nmc_view_t view{};
  OK(nmc_store_pin(store, slice_of("k"), &view));
  Guarded again(NMC_MAX_METADATA + 9);
  OK(nmc_store_view_metadata(store, &view, again.data(), again.size(), &n));
  CHECK(n == NMC_MAX_METADATA && again.text().substr(0, n) == said && again.zones_intact());
  OK(nmc_store_unpin(store, &view));
  GIVES(nmc_store_view_metadata(store, &view, again.data(), again.size(), &n), NMC_ERR_NOT_FOUND);

  promise("of_a_batch_with_metadata_for_each_only_the_item_with_the_wrong_one_fails");
  const std::string longer(NMC_MAX_METADATA + 1, 'x');
  const nmc_slice_t keys[3] = {slice_of("a"), slice_of("b"), slice_of("c")}, values[3] = {keys[0], keys[1], keys[2]};
  const nmc_slice_t each[3] = {slice_of("first"), bytes_of(longer), slice_of("third")};
  const nmc_put_options_t options = with([&](auto& o) { o.metadata_each = each; });
  nmc_status_t items[3];
  GIVES(nmc_store_put_batch(store, keys, values, 3, &options, items), NMC_ERR_INVALID_ARG);
  CHECK(items[0] == NMC_OK && items[1] == NMC_ERR_INVALID_ARG && items[2] == NMC_OK && state_of(store, "b") == NMC_OBJECT_ABSENT);
  OK(nmc_store_get_metadata(store, keys[2], again.data(), again.size(), &n));
  CHECK(again.text().substr(0, n) == "third");
}

void in_a_world() {
  promise("ranks_of_a_local_world_share_one_store");
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.world_size = 2;
  config.heap_bytes = 64 * kPage;
  nmc_world_t* worlds[2] = {};
  REQUIRE(OK(nmc_world_create_local(&config, worlds)));
  nmc_store_config_t attach = store_config({});
  attach.heap_bytes = 0;  // the rest of the heap
  attach.heap_offset = 16 * kPage;
  nmc_store_t *zero = nullptr, *one = nullptr, *again = nullptr, *other = nullptr;
  REQUIRE(OK(nmc_store_create(worlds[0], &attach, &zero)) && OK(nmc_store_create(worlds[1], &attach, &one)));
  OK(nmc_store_create(worlds[1], &attach, &again));
  nmc_store_config_t differs = attach;
  differs.page_bytes = 2 * kPage;
  GIVES(nmc_store_create(worlds[1], &differs, &other), NMC_ERR_MISMATCH);
  CHECK(error_mentions("8192") && error_mentions("4096") && other == nullptr);
  differs = attach;
  differs.heap_offset = 64 * kPage;
  GIVES(nmc_store_create(worlds[0], &differs, &other), NMC_ERR_INVALID_ARG);
  differs = attach;
  differs.heap_bytes = 49 * kPage;
  GIVES(nmc_store_create(worlds[0], &differs, &other), NMC_ERR_INVALID_ARG);
  const nmc_put_options_t there = with([](auto& o) { o.preferred_segment = 1; });
  OK(put(zero, "k", value_of(1, 5000), &there));
  CHECK(get(one, "k") == value_of(1, 5000) && get(again, "k") == value_of(1, 5000));
  nmc_view_t view{};
  OK(nmc_store_pin(one, slice_of("k"), &view));
  int32_t rank = -1;
  uint64_t offset = 0;
  OK(nmc_world_locate(worlds[0], view.data, &rank, &offset));
  CHECK(rank == 1 && offset >= 16 * kPage);
  GIVES(nmc_store_unpin(zero, &view), NMC_ERR_NOT_FOUND);  // it is another client's
  OK(nmc_store_unpin(again, &view));                        // and this is the same client
  OK(nmc_store_destroy(again));
  OK(put(one, "l", "still attached"));
  OK(nmc_store_destroy(one));
  OK(nmc_store_destroy(zero));
  for (nmc_world_t* world : worlds) OK(nmc_world_destroy(world));
}

}  // namespace

int main() {
  values();
  gathered();
  extents();
  limits();
  eviction();
  pinned_objects();
  waiting();
  room();
  watching();
  looking();
  metadata();
  in_a_world();
  return finish();
}
