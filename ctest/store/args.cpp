// Bad input to the store: NULL and foreign handles, keys and sizes at their edges, configs of any age, plans and views
// that are not. Every call gives the documented status and touches nothing.
#include <sys/wait.h>

#include <functional>

#include "../support/store_check.hpp"

namespace {

// Calls every function of the store on a handle, with arguments that are fine otherwise.
void every_call(nmc_store_t* store, nmc_status_t want) {
  const nmc_slice_t key = slice_of("key");
  const nmc_slice_t keys[1] = {key};
  const nmc_slice_t values[1] = {key};
  const uint64_t sizes[1] = {1};
  char byte = 'x';
  const nmc_buffer_t buffers[1] = {{&byte, 1}};
  nmc_store_t* other = nullptr;
  nmc_write_plan_t plan{};
  nmc_view_t view{};
  nmc_object_meta_t meta{};
  nmc_extent_t extent{};
  nmc_completion_t completion{};
  nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
  nmc_status_t item = 0;
  size_t n = 0;
  uint32_t number = 0;
  uint64_t long_number = 0, cursor = 0;
  nmc_retry_hint_t hint = NMC_RETRY_HINT_INIT;
  int32_t fd = -1;
  GIVES(nmc_store_namespace(store, key, 0, &other), want);
  CHECK(other == nullptr);
  GIVES(nmc_store_put(store, key, &byte, 1, nullptr), want);
  GIVES(nmc_store_put_slices(store, key, values, 1, nullptr), want);
  GIVES(nmc_store_put_strided(store, key, &byte, 1, 1, 1, nullptr), want);
  GIVES(nmc_store_get(store, key, &byte, 1, &n), want);
  GIVES(nmc_store_get_into(store, key, &byte, 1), want);
  GIVES(nmc_store_get_slices(store, key, 0, buffers, 1, &n), want);
  GIVES(get_range(store, key, 0, &byte, 1), want);
  GIVES(nmc_store_get_strided(store, key, 0, &byte, 1, 1, 1), want);
  GIVES(nmc_store_exists(store, key, &number), want);
  GIVES(nmc_store_remove(store, key), want);
  GIVES(nmc_store_remove_by_prefix(store, key, &long_number), want);
  GIVES(nmc_store_remove_all(store), want);
  GIVES(nmc_store_touch(store, key), want);
  GIVES(nmc_store_retain(store, key, NMC_RETAIN_HARD, 0, 0), want);
  GIVES(nmc_store_get_location(store, key, &meta), want);
  GIVES(nmc_store_open_for_write(store, key, 1, nullptr, &plan), want);
  GIVES(nmc_store_commit(store, &plan), want);
  GIVES(nmc_store_publish_pages(store, &plan, 1), want);
  GIVES(nmc_store_abort(store, &plan), want);
  GIVES(nmc_store_plan_extents(store, &plan, &extent, 1, &n), want);
  GIVES(nmc_store_view_extents(store, &view, &extent, 1, &n), want);
  GIVES(nmc_store_pin(store, key, &view), want);
  GIVES(nmc_store_pin_partial(store, key, 1, &view), want);
  GIVES(nmc_store_unpin(store, &view), want);
  GIVES(nmc_store_ready_pages(store, &view, &number), want);
  GIVES(nmc_store_wait_ready(store, key, 0, 0), want);
  GIVES(nmc_store_wait_pages(store, key, 1, 0, 0), want);
  GIVES(nmc_store_cancel(store), want);
  GIVES(nmc_store_watch(store, key, 0, 1), want);
  GIVES(nmc_store_completions(store, &completion, 1, &n), want);
  GIVES(nmc_store_event_fd(store, &fd), want);
  GIVES(nmc_store_evict_until_below(store, 0, 500), want);
  GIVES(nmc_store_next(store, &cursor, &byte, 1, &n, &long_number), want);
  GIVES(nmc_store_stats(store, nullptr, 0, &stats), want);
  GIVES(nmc_store_retry_hint(store, 0, &hint), want);
  GIVES(nmc_store_get_metadata(store, key, &byte, 1, &n), want);
  GIVES(nmc_store_view_metadata(store, &view, &byte, 1, &n), want);
  GIVES(nmc_store_consume(store, key, &view), want);
  GIVES(nmc_store_verify(store, &view), want);
  GIVES(nmc_store_prometheus(store, &byte, 1, &n), want);
  GIVES(nmc_store_dump(store, 40, &byte, 1, &n), want);
  GIVES(nmc_store_put_batch(store, keys, values, 1, nullptr, &item), want);
  GIVES(nmc_store_get_into_batch(store, keys, buffers, 1, &item), want);
  GIVES(nmc_store_exists_batch(store, keys, 1, &number), want);
  GIVES(nmc_store_match_prefix(store, keys, 1, &n), want);
  GIVES(nmc_store_remove_batch(store, keys, 1, &item), want);
  GIVES(nmc_store_open_batch(store, keys, sizes, 1, nullptr, &plan, &item), want);
  GIVES(nmc_store_commit_batch(store, &plan, 1, &item), want);
  GIVES(nmc_store_pin_batch(store, keys, 1, &view, &n, &item), want);
  GIVES(nmc_store_unpin_batch(store, &view, 1, &item), want);
}

void handles() {
  promise("null_is_a_bad_handle_everywhere_but_in_destroy");
  every_call(nullptr, NMC_ERR_BAD_HANDLE);
  OK(nmc_store_destroy(nullptr));

  promise("what_is_no_handle_or_a_world_is_a_bad_handle");
  char memory[64] = {};
  every_call(reinterpret_cast<nmc_store_t*>(memory), NMC_ERR_BAD_HANDLE);
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.heap_bytes = 1 << 16;
  nmc_world_t* world = nullptr;
  REQUIRE(OK(nmc_world_create_local(&config, &world)));
  every_call(reinterpret_cast<nmc_store_t*>(world), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_store_destroy(reinterpret_cast<nmc_store_t*>(world)), NMC_ERR_BAD_HANDLE);
  Embedded store;
  nmc_world_info_t info = NMC_WORLD_INFO_INIT;
  GIVES(nmc_world_info(reinterpret_cast<nmc_world_t*>(store.store), &info), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_destroy(reinterpret_cast<nmc_world_t*>(store.store)), NMC_ERR_BAD_HANDLE);
  const nmc_store_config_t attach = store_config({});
  nmc_store_t* out = store.store;
  GIVES(nmc_store_create(reinterpret_cast<nmc_world_t*>(store.store), &attach, &out), NMC_ERR_BAD_HANDLE);
  CHECK(out == nullptr);
  OK(nmc_world_destroy(world));
  GIVES(nmc_store_create(world, &attach, &out), NMC_ERR_BAD_HANDLE);

  promise("a_destroyed_store_is_a_bad_handle_and_namespaces_live_on_without_the_first_handle");
  nmc_store_t *first = nullptr, *space = nullptr;
  const nmc_store_config_t small = store_config({});
  OK(nmc_store_create(nullptr, &small, &first));
  OK(nmc_store_namespace(first, slice_of("space"), 0, &space));
  OK(nmc_store_destroy(first));
  GIVES(nmc_store_destroy(first), NMC_ERR_BAD_HANDLE);
  every_call(first, NMC_ERR_BAD_HANDLE);
  OK(put(space, "key", "value"));
  CHECK(get(space, "key") == "value");
  OK(nmc_store_destroy(space));
  every_call(space, NMC_ERR_BAD_HANDLE);
}

void forked() {
  promise("in_a_forked_child_every_call_says_so_and_destroy_does_nothing");
  Embedded store;
  OK(put(store, "key", "value"));
  nmc_view_t view{};
  OK(nmc_store_pin(store, slice_of("key"), &view));
  fflush(stdout);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    failed_checks = 0;
    every_call(store, NMC_ERR_FORKED);
    OK(nmc_store_destroy(store));
    fflush(stdout);
    _exit(failed_checks != 0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(memcmp(view.data, "value", 5) == 0 && get(store, "key") == "value");
  OK(nmc_store_unpin(store, &view));
}

void configs() {
  nmc_store_t* out = nullptr;
  const auto refused = [&](nmc_status_t want, const std::function<void(nmc_store_config_t&)>& change) {
    nmc_store_config_t config = store_config({});
    change(config);
    char dummy = 0;
    out = reinterpret_cast<nmc_store_t*>(&dummy);
    GIVES(nmc_store_create(nullptr, &config, &out), want);
    CHECK(out == nullptr && strlen(nmc_last_error_message()) > 0);
  };
  promise("making_a_store_from_null_or_nonsense_is_refused");
  const nmc_store_config_t fine = store_config({});
  GIVES(nmc_store_create(nullptr, nullptr, &out), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_create(nullptr, &fine, nullptr), NMC_ERR_INVALID_ARG);
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.heap_bytes = 0; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.heap_bytes = kPage - 1; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.heap_bytes = UINT64_MAX; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.heap_offset = 100; });
  for (uint32_t page : {1u, 2048u, 4097u, 6144u, 4u << 20, UINT32_MAX}) {
    refused(NMC_ERR_INVALID_ARG, [page](auto& c) { c.page_bytes = page; });
  }
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.max_objects = UINT32_MAX; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.key_slab_bytes = 1; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.key_slab_bytes = UINT64_MAX; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.pin_slots = UINT32_MAX; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.eviction = NMC_EVICT_LFU; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.flags = 16; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.master_rank = -2; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.high_permille = 1001; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.high_permille = 500, c.low_permille = 501; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.low_permille = -2; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.watchdog_ms = 0; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.watchdog_ms = -5; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.attach_timeout_ms = -2; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.call_timeout_ms = INT64_MAX; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.world_size = UINT32_MAX; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.heap_kind = 9; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.reserved[1] = 1; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.heap_import.kind = 5; });
  refused(NMC_ERR_INVALID_ARG, [](auto& c) { c.heap_import.fd = 5; });  // of no kind
  refused(NMC_ERR_INVALID_ARG, [](auto& c) {
    c.heap_import = {NMC_IMPORT_HOST_FD, 5, &c};
  });
  for (uint32_t kind : {NMC_IMPORT_HOST_PTR, NMC_IMPORT_HOST_FD, NMC_IMPORT_CUDA_PTR, NMC_IMPORT_CUDA_FD}) {
    refused(NMC_ERR_INVALID_ARG, [kind](auto& c) { c.heap_import.kind = kind; });  // of nothing
  }

  promise("structs_of_another_age_work_or_are_refused_with_a_version");
  refused(NMC_ERR_VERSION, [](auto& c) { c.struct_size = 0; });
  refused(NMC_ERR_VERSION, [](auto& c) { c.struct_size = 7; });
  refused(NMC_ERR_VERSION, [](auto& c) { c.abi_version = 0; });
  struct {
    nmc_store_config_t config;
    uint64_t later[4];
  } newer = {fine, {0, 0, 0, 0}};
  newer.config.struct_size = sizeof newer;
  newer.config.abi_version = NMC_ABI_VERSION + 1;
  OK(nmc_store_create(nullptr, &newer.config, &out));
  OK(nmc_store_destroy(out));
  newer.later[2] = 1;  // a setting that this library does not know
  GIVES(nmc_store_create(nullptr, &newer.config, &out), NMC_ERR_VERSION);
  nmc_store_config_t older = fine;
  older.struct_size = offsetof(nmc_store_config_t, max_objects);  // without all that came later, garbage behind it
  memset(&older.max_objects, 0xee, sizeof older - older.struct_size);
  if (OK(nmc_store_create(nullptr, &older, &out))) OK(nmc_store_destroy(out));

  Embedded store;
  nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
  const auto with = [&](const std::function<void(nmc_put_options_t&)>& change) {
    nmc_put_options_t changed = options;
    change(changed);
    return put(store, "with", "x", &changed);
  };
  GIVES(with([](auto& o) { o.struct_size = 3; }), NMC_ERR_VERSION);
  GIVES(with([](auto& o) { o.preferred_segment = -2; }), NMC_ERR_INVALID_ARG);
  GIVES(with([](auto& o) { o.preferred_segment = 1; }), NMC_ERR_INVALID_ARG);
  GIVES(with([](auto& o) { o.flags = 8; }), NMC_ERR_INVALID_ARG);
  GIVES(with([](auto& o) { o.wait_ms = -2; }), NMC_ERR_INVALID_ARG);
  GIVES(with([](auto& o) { o.wait_ms = INT64_MAX; }), NMC_ERR_INVALID_ARG);
  GIVES(with([](auto& o) { o.retain = 3; }), NMC_ERR_INVALID_ARG);
  GIVES(with([](auto& o) { o.priority = 4; }), NMC_ERR_INVALID_ARG);
  GIVES(with([](auto& o) { o.reserved[1] = 1; }), NMC_ERR_INVALID_ARG);
  static const char said[NMC_MAX_METADATA + 1] = {};
  static const nmc_slice_t each = {said, 1};
  GIVES(with([](auto& o) { o.metadata = {said, sizeof said}; }), NMC_ERR_INVALID_ARG);
  CHECK(error_mentions("metadata") && error_mentions("257"));
  GIVES(with([](auto& o) { o.metadata = {nullptr, 1}; }), NMC_ERR_INVALID_ARG);
  GIVES(with([](auto& o) { o.metadata_each = &each; }), NMC_ERR_INVALID_ARG);
  CHECK(error_mentions("metadata_each"));
  CHECK(state_of(store, "with") == NMC_OBJECT_ABSENT);
  OK(with([](auto& o) { o.struct_size = offsetof(nmc_put_options_t, retain); }));
  nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
  GIVES(nmc_store_stats(store, nullptr, 0, nullptr), NMC_ERR_INVALID_ARG);
  for (const uint32_t size : {0u, 2u, uint32_t{sizeof stats} + 4, 1u << 20}) {
    stats.struct_size = size;
    stats.bytes_total = 0xeeee;
    GIVES(nmc_store_stats(store, nullptr, 0, &stats), NMC_ERR_INVALID_ARG);
    CHECK(error_mentions("NMC_STORE_STATS_INIT") && stats.bytes_total == 0xeeee);
  }
  stats = NMC_STORE_STATS_INIT;
  nmc_store_rank_stats_t ranks[2] = {};
  GIVES(nmc_store_stats(store, ranks, 2, &stats), NMC_ERR_INVALID_ARG);
  CHECK(error_mentions("NMC_STORE_RANK_STATS_INIT") && stats.n_ranks == 0);
  ranks[0] = NMC_STORE_RANK_STATS_INIT;
  GIVES(nmc_store_stats(store, ranks, SIZE_MAX / 2, &stats), NMC_ERR_INVALID_ARG);
  OK(nmc_store_stats(store, ranks, 2, &stats));
  OK(nmc_store_stats(store, nullptr, 2, &stats));
  CHECK(stats.n_ranks == 1 && stats.bytes_total == 64 * kPage && ranks[0].bytes_total == 64 * kPage && ranks[1].bytes_total == 0);
  nmc_retry_hint_t hint{};
  GIVES(nmc_store_retry_hint(store, 0, &hint), NMC_ERR_INVALID_ARG);
  CHECK(error_mentions("NMC_RETRY_HINT_INIT"));
  hint = NMC_RETRY_HINT_INIT;
  GIVES(nmc_store_retry_hint(store, 1, &hint), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_retry_hint(store, -1, &hint), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_retry_hint(store, 0, nullptr), NMC_ERR_INVALID_ARG);
  OK(nmc_store_retry_hint(store, 0, &hint));
}

void keys() {
  promise("keys_have_1_to_1024_bytes");
  Embedded store;
  char byte = 0;
  size_t n = 0;
  uint32_t state = 0;
  uint64_t removed = 0;
  nmc_view_t view{};
  nmc_write_plan_t plan{};
  nmc_object_meta_t meta{};
  const std::string longest(1024, 'k'), longer(1025, 'k');
  const nmc_slice_t bad[] = {{"", 0}, {nullptr, 0}, {nullptr, 5}, {longer.data(), 1025}, {longer.data(), SIZE_MAX}};
  for (const nmc_slice_t key : bad) {
    GIVES(nmc_store_put(store, key, "x", 1, nullptr), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_put_strided(store, key, "x", 1, 1, 1, nullptr), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_get(store, key, &byte, 1, &n), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_get_into(store, key, &byte, 1), NMC_ERR_INVALID_ARG);
    GIVES(get_range(store, key, 0, &byte, 1), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_get_strided(store, key, 0, &byte, 1, 1, 1), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_exists(store, key, &state), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_remove(store, key), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_touch(store, key), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_retain(store, key, NMC_RETAIN_HARD, 0, 0), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_get_location(store, key, &meta), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_open_for_write(store, key, 1, nullptr, &plan), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_pin(store, key, &view), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_pin_partial(store, key, 1, &view), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_wait_ready(store, key, 0, 0), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_watch(store, key, 0, 1), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_match_prefix(store, &key, 1, &n), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_exists_batch(store, &key, 1, &state), NMC_ERR_INVALID_ARG);
  }
  for (const std::string& key : {std::string(1, 'k'), longest, std::string("a\0b", 3), std::string(1, '\0')}) {
    const std::string value = "value of " + key;
    OK(put(store, key, value));
    CHECK(get(store, key) == value);
  }
  promise("keys_with_nul_bytes_are_different_keys");
  CHECK(state_of(store, "a") == NMC_OBJECT_ABSENT && state_of(store, std::string_view("a\0", 2)) == NMC_OBJECT_ABSENT);
  OK(put(store, "a", "only a"));
  CHECK(get(store, "a") == "only a" && get(store, std::string_view("a\0b", 3)) != "only a");
  OK(nmc_store_remove_by_prefix(store, bytes_of(std::string_view("a\0", 2)), &removed));
  CHECK(removed == 1 && state_of(store, "a") == NMC_OBJECT_READY);
  GIVES(nmc_store_remove_by_prefix(store, bytes_of(longer), &removed), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_remove_by_prefix(store, {nullptr, 3}, &removed), NMC_ERR_INVALID_ARG);
  OK(nmc_store_remove_by_prefix(store, {nullptr, 0}, nullptr));  // no prefix: everything
  CHECK(state_of(store, longest) == NMC_OBJECT_ABSENT);

  promise("names_of_namespaces_have_1_to_64_bytes_and_there_are_63");
  nmc_store_t* out = nullptr;
  GIVES(nmc_store_namespace(store, {"", 0}, 0, &out), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_namespace(store, {nullptr, 4}, 0, &out), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_namespace(store, bytes_of(std::string_view(longest).substr(0, 65)), 0, &out), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_namespace(store, bytes_of(longest), 0, &out), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_namespace(store, slice_of("n"), 0, nullptr), NMC_ERR_INVALID_ARG);
  for (int i = 0; i < 63; ++i) {
    std::string name(i == 0 ? 64 : 5, static_cast<char>('0' + i));
    if (OK(nmc_store_namespace(store, bytes_of(name), 0, &out))) OK(nmc_store_destroy(out));
  }
  GIVES(nmc_store_namespace(store, slice_of("one too many"), 0, &out), NMC_ERR_LIMIT);
  CHECK(out == nullptr);
}

void streams() {
  promise("calls_for_a_cuda_stream_need_a_device");
  Embedded store;
  OK(put(store, "k", "0123"));
  const nmc_slice_t key = slice_of("k");
  nmc_view_t view{}, other{};
  OK(nmc_store_pin(store, key, &view));
  nmc_write_plan_t plan{};
  OK(nmc_store_open_for_write(store, slice_of("w"), 4, nullptr, &plan));
  char four[4] = {};
  const nmc_buffer_t buffer{four, 4};
  const nmc_slice_t slice{four, 4};
  nmc_publish_desc_t desc{};
  nmc_device_pin_t pin{};
  uint32_t number = 0;
  GIVES(nmc_store_commit_async(store, &plan, nullptr), NMC_ERR_UNSUPPORTED);
  GIVES(nmc_store_push_async(store, &plan, 0, &slice, 1, nullptr), NMC_ERR_UNSUPPORTED);
  GIVES(nmc_store_fetch_async(store, &view, 0, &buffer, 1, nullptr), NMC_ERR_UNSUPPORTED);
  GIVES(nmc_store_unpin_async(store, &view, nullptr), NMC_ERR_UNSUPPORTED);
  GIVES(nmc_store_wait_ready_async(store, key, 0, nullptr, &number), NMC_ERR_UNSUPPORTED);
  GIVES(nmc_store_publish_desc(store, &plan, &desc), NMC_ERR_UNSUPPORTED);
  GIVES(nmc_store_publish_captured(store, &desc, 1, nullptr), NMC_ERR_UNSUPPORTED);
  GIVES(nmc_store_slot_reserve(store, &number), NMC_ERR_UNSUPPORTED);
  GIVES(nmc_store_slot_pin(store, 0, key, &other), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_device_pin(store, 0, key, &pin), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_slot_unpin_async(store, 0, nullptr), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_slot_release(store, 0), NMC_ERR_NOT_FOUND);
  OK(nmc_store_unpin(store, &view));
  OK(nmc_store_abort(store, &plan));
}

void pointers() {
  promise("null_where_memory_is_needed_is_refused_and_nothing_is_written");
  Embedded store;
  const std::string value = value_of(1, 5000);
  OK(put(store, "k", value));
  const nmc_slice_t key = slice_of("k"), fresh = slice_of("fresh");
  size_t n = 77;
  uint64_t cursor = 0;
  uint32_t pages = 0;
  GIVES(nmc_store_put(store, fresh, nullptr, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_put(store, fresh, "x", SIZE_MAX, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_put_slices(store, fresh, nullptr, 2, nullptr), NMC_ERR_INVALID_ARG);
  const nmc_slice_t hole[2] = {slice_of("x"), {nullptr, 1}}, endless[2] = {slice_of("x"), {"x", SIZE_MAX}};
  GIVES(nmc_store_put_slices(store, fresh, hole, 2, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_put_slices(store, fresh, endless, 2, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_put_strided(store, fresh, nullptr, 1, 1, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_put_strided(store, fresh, "x", 2, 10, 9, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_put_strided(store, fresh, "x", SIZE_MAX, 2, 2, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_put_strided(store, fresh, "x", 3, 1, SIZE_MAX, nullptr), NMC_ERR_INVALID_ARG);
  CHECK(state_of(store, "fresh") == NMC_OBJECT_ABSENT);
  GIVES(nmc_store_get(store, key, nullptr, 5000, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_get_into(store, key, nullptr, 5000), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_get_slices(store, key, 0, nullptr, 1, &n), NMC_ERR_INVALID_ARG);
  GIVES(get_range(store, key, 0, nullptr, 1), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_get_strided(store, key, 0, nullptr, 1, 1, 1), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_exists(store, key, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_get_location(store, key, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_open_for_write(store, fresh, 1, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  CHECK(state_of(store, "fresh") == NMC_OBJECT_ABSENT);
  GIVES(nmc_store_commit(store, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_abort(store, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_publish_pages(store, nullptr, 1), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_plan_extents(store, nullptr, nullptr, 0, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_view_extents(store, nullptr, nullptr, 0, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_pin(store, key, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_pin_partial(store, key, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_unpin(store, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_ready_pages(store, nullptr, &pages), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_consume(store, key, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_verify(store, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_view_metadata(store, nullptr, nullptr, 0, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_get_metadata(store, key, nullptr, 1, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_completions(store, nullptr, 1, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_completions(store, nullptr, 0, nullptr), NMC_ERR_INVALID_ARG);
  OK(nmc_store_completions(store, nullptr, 0, &n));
  GIVES(nmc_store_event_fd(store, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_next(store, nullptr, nullptr, 0, &n, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_next(store, &cursor, nullptr, 10, &n, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_next(store, &cursor, nullptr, 0, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_match_prefix(store, nullptr, 1, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_match_prefix(store, &key, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_exists_batch(store, &key, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_put_batch(store, &key, nullptr, 1, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_put_batch(store, nullptr, &key, 1, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_put_batch(store, &key, &key, SIZE_MAX, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_get_into_batch(store, &key, nullptr, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_open_batch(store, &key, nullptr, 1, nullptr, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_commit_batch(store, nullptr, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_pin_batch(store, &key, 1, nullptr, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_unpin_batch(store, nullptr, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_remove_batch(store, nullptr, 1, nullptr), NMC_ERR_INVALID_ARG);
  OK(nmc_store_put_batch(store, nullptr, nullptr, 0, nullptr, nullptr));
  OK(nmc_store_remove_batch(store, nullptr, 0, nullptr));
  GIVES(nmc_store_prometheus(store, nullptr, 100, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_dump(store, 40, nullptr, 100, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_wait_ready(store, key, 2, 0), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_wait_ready(store, key, 0, -2), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_watch(store, key, 2, 0), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_retain(store, key, 3, 0, 0), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_retain(store, key, 0, 4, 0), NMC_ERR_INVALID_ARG);
  for (int32_t rank : {-1, 1, INT32_MAX, INT32_MIN}) {
    GIVES(nmc_store_evict_until_below(store, rank, 500), NMC_ERR_INVALID_ARG);
  }
  GIVES(nmc_store_evict_until_below(store, 0, 1001), NMC_ERR_INVALID_ARG);
  CHECK(get(store, "k") == value);

  promise("a_buffer_of_another_size_is_not_touched");
  for (size_t size : {0, 1, 4999, 5001, 8192}) {
    Guarded buffer(size);
    GIVES(nmc_store_get_into(store, key, buffer.data(), size), NMC_ERR_INVALID_ARG);
    CHECK(buffer.untouched() && buffer.zones_intact());
  }
  Guarded buffer(4999);
  n = 77;
  GIVES(nmc_store_get(store, key, buffer.data(), 4999, &n), NMC_ERR_TOO_SMALL);
  CHECK(n == 5000 && buffer.untouched());
  GIVES(nmc_store_get(store, key, buffer.data(), 0, nullptr), NMC_ERR_TOO_SMALL);
  GIVES(get_range(store, key, 2, buffer.data(), 4999), NMC_ERR_INVALID_ARG);
  GIVES(get_range(store, key, 5000, buffer.data(), 1), NMC_ERR_INVALID_ARG);
  GIVES(get_range(store, key, UINT64_MAX, buffer.data(), 2), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_get_strided(store, key, 0, buffer.data(), 2, 100, 99), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_get_strided(store, key, 0, buffer.data(), 51, 100, 100), NMC_ERR_INVALID_ARG);
  CHECK(buffer.untouched() && buffer.zones_intact());
  OK(get_range(store, key, 5000, buffer.data(), 0));  // nothing, from the end
}

// Whether the last error speaks of all these.
bool says(std::initializer_list<const char*> words) {
  const std::string text = nmc_last_error_message();
  for (const char* word : words) {
    if (text.find(word) == std::string::npos) return printf("     \"%s\" has no %s\n", text.c_str(), word), false;
  }
  return true;
}

void ranges() {
  promise("memory_that_cannot_be_is_refused_before_anything_is_touched_and_the_message_has_the_numbers");
  Embedded store;
  const std::string value = value_of(1, 5000);
  OK(put(store, "k", value));
  const nmc_slice_t key = slice_of("k"), fresh = slice_of("fresh");
  Guarded buffer(5000);
  constexpr size_t half = size_t{1} << 63;
  struct Rows {
    size_t rows, row_bytes, stride;
    const char* number;
  };
  // Strides that leave the address space, come round to where they began, or take for ever.
  for (const Rows& r : {Rows{2, 1, half, "9223372036854775808"}, Rows{2, 8, SIZE_MAX, "18446744073709551615"},
                        Rows{3, 1, half, "9223372036854775808"}, Rows{SIZE_MAX, 0, 1, "18446744073709551615"},
                        Rows{2, 1, half - 4096, "9223372036854771712"}, Rows{1, half, half, "9223372036854775808"},
                        Rows{SIZE_MAX, 1, 1, "18446744073709551615"}}) {
    GIVES(nmc_store_put_strided(store, fresh, value.data(), r.rows, r.row_bytes, r.stride, nullptr), NMC_ERR_INVALID_ARG);
    CHECK(says({r.number, "address space"}));
    GIVES(nmc_store_get_strided(store, key, 0, buffer.data(), r.rows, r.row_bytes, r.stride), NMC_ERR_INVALID_ARG);
    CHECK(says({r.number, "address space"}) && buffer.untouched());
  }
  // No bytes, however many rows.
  OK(nmc_store_put_strided(store, slice_of("empty"), value.data(), SIZE_MAX, 0, 0, nullptr));
  OK(nmc_store_get_strided(store, slice_of("empty"), 0, buffer.data(), SIZE_MAX, 0, 0));
  OK(nmc_store_get_strided(store, slice_of("empty"), 0, nullptr, 1000, 0, 8));

  char* const last = reinterpret_cast<char*>(UINTPTR_MAX - 100);
  nmc_slice_t wrong[2] = {slice_of("x"), {last, 200}};
  nmc_buffer_t into[2] = {{buffer.data(), 1}, {last, 200}};
  GIVES(nmc_store_put(store, fresh, last, 200, nullptr), NMC_ERR_INVALID_ARG);
  CHECK(says({"200", "address space"}));
  GIVES(nmc_store_put_slices(store, fresh, wrong, 2, nullptr), NMC_ERR_INVALID_ARG);
  CHECK(says({"slice 1", "200", "address space"}));
  nmc_slice_t keys[2] = {fresh, slice_of("other")};
  nmc_status_t statuses[2];
  GIVES(nmc_store_put_batch(store, keys, wrong, 2, nullptr, statuses), NMC_ERR_INVALID_ARG);
  CHECK(statuses[0] == NMC_OK && statuses[1] == NMC_ERR_INVALID_ARG && state_of(store, "other") == NMC_OBJECT_ABSENT);
  OK(nmc_store_remove(store, fresh));
  GIVES(nmc_store_get(store, key, last, SIZE_MAX, nullptr), NMC_ERR_INVALID_ARG);
  CHECK(says({"5000", "address space"}));
  GIVES(nmc_store_get_into(store, key, last, 5000), NMC_ERR_INVALID_ARG);
  GIVES(get_range(store, key, 0, last, 200), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_get_slices(store, key, 0, into, 2, nullptr), NMC_ERR_INVALID_ARG);
  CHECK(says({"slice 1", "200", "address space"}) && buffer.untouched());
  const nmc_slice_t both[2] = {key, key};
  const nmc_buffer_t places[2] = {{last, 5000}, {buffer.data(), 5000}};
  GIVES(nmc_store_get_into_batch(store, both, places, 2, statuses), NMC_ERR_INVALID_ARG);
  CHECK(statuses[0] == NMC_ERR_INVALID_ARG && statuses[1] == NMC_OK && buffer.text() == value);
  // Arrays of the caller.
  size_t n = 0;
  uint32_t state = 0;
  const auto* const far = reinterpret_cast<const nmc_slice_t*>(UINTPTR_MAX - 15);
  for (size_t count : {size_t{2}, size_t{1} << 40, SIZE_MAX / 16, SIZE_MAX}) {
    GIVES(nmc_store_match_prefix(store, far, count, &n), NMC_ERR_INVALID_ARG);
    CHECK(says({std::to_string(count).c_str()}));
    GIVES(nmc_store_exists_batch(store, far, count, &state), NMC_ERR_INVALID_ARG);
    GIVES(nmc_store_put_slices(store, fresh, far, count, nullptr), NMC_ERR_INVALID_ARG);
  }
  CHECK(state_of(store, "fresh") == NMC_OBJECT_ABSENT && get(store, "k") == value);

  promise("the_message_says_what_is_wrong_and_the_true_numbers");
  GIVES(nmc_store_get(store, key, nullptr, 10, &n), NMC_ERR_INVALID_ARG);
  CHECK(says({"buffer is NULL", "10"}) && strstr(nmc_last_error_message(), "text") == nullptr);
  GIVES(nmc_store_get_into(store, key, nullptr, 5000), NMC_ERR_INVALID_ARG);
  CHECK(says({"NULL", "5000"}));
  GIVES(nmc_store_get_strided(store, key, 0, nullptr, 50, 100, 100), NMC_ERR_INVALID_ARG);
  CHECK(says({"NULL", "50 rows of 100"}));
  GIVES(nmc_store_exists(store, {"k", SIZE_MAX}, &state), NMC_ERR_INVALID_ARG);
  CHECK(says({"18446744073709551615"}));
  GIVES(nmc_store_exists(store, {"k", size_t{5} << 32}, &state), NMC_ERR_INVALID_ARG);
  CHECK(says({"21474836480"}));
  GIVES(nmc_store_put(store, fresh, value.data(), size_t{5} << 32, nullptr), NMC_ERR_NO_SPACE);
  CHECK(says({"21474836480"}));
  // A miss: made when it is asked for, and of this key.
  GIVES(nmc_store_get(store, slice_of("no\nsuch"), buffer.data(), 5000, &n), NMC_ERR_NOT_FOUND);
  const std::string first = nmc_last_error_message();
  CHECK(says({"no object", "\"no\\nsuch\""}) && first == nmc_last_error_message());
  const std::string shown(48, 'a'), cut(49, 'a');
  GIVES(nmc_store_touch(store, slice_of(shown.c_str())), NMC_ERR_NOT_FOUND);
  CHECK(says({("\"" + shown + "\"").c_str()}));
  GIVES(nmc_store_get_into(store, slice_of(cut.c_str()), buffer.data(), 5000), NMC_ERR_NOT_FOUND);
  CHECK(says({("\"" + shown + "...\"").c_str()}));
  const nmc_slice_t some[3] = {key, slice_of("first"), slice_of("second")};
  const nmc_buffer_t rooms[3] = {{buffer.data(), 5000}, {buffer.data(), 5000}, {buffer.data(), 5000}};
  GIVES(nmc_store_get_into_batch(store, some, rooms, 3, nullptr), NMC_ERR_NOT_FOUND);
  CHECK(says({"\"first\""}));
  nmc_view_t views[3];
  GIVES(nmc_store_pin_batch(store, some, 3, views, nullptr, nullptr), NMC_ERR_NOT_FOUND);
  CHECK(says({"\"first\""}) && views[0].epoch == 0);
}

void texts() {
  promise("text_that_does_not_fit_is_cut_and_the_size_is_told");
  Embedded store;
  OK(put(store, "k", "v"));
  using Text = std::function<nmc_status_t(char*, size_t, size_t*)>;
  const Text texts[] = {
      [&](char* to, size_t n, size_t* needed) { return nmc_store_prometheus(store, to, n, needed); },
      [&](char* to, size_t n, size_t* needed) { return nmc_store_dump(store, 40, to, n, needed); },
  };
  for (const Text& text : texts) {
    size_t needed = 0;
    OK(text(nullptr, 0, &needed));  // only asks
    REQUIRE(needed > 20);
    for (size_t room : {size_t{1}, size_t{10}, needed - 1}) {
      Guarded small(room);
      size_t again = 0;
      GIVES(text(small.data(), room, &again), NMC_ERR_TOO_SMALL);
      CHECK(again > room && small.zones_intact() && small.data()[room - 1] == '\0');
    }
    Guarded whole(needed + 64);
    OK(text(whole.data(), whole.size(), nullptr));
    CHECK(whole.zones_intact() && strlen(whole.data()) > 20);
  }
  for (uint32_t width : {0u, 1u, 1000u, UINT32_MAX}) {
    size_t needed = 0;
    OK(nmc_store_dump(store, width, nullptr, 0, &needed));
    CHECK(needed > 0 && needed < 10000);
  }
}

void plans_and_views() {
  promise("a_plan_that_is_not_open_here_is_not_found");
  Embedded store;
  Embedded other;
  nmc_write_plan_t plan{};
  nmc_extent_t extent{};
  size_t n = 0;
  OK(nmc_store_open_for_write(store, slice_of("k"), 5000, nullptr, &plan));
  for (const auto& change : std::vector<std::function<void(nmc_write_plan_t&)>>{
           [](auto& p) { p.plan_id ^= 1; }, [](auto& p) { p.plan_id = 0; }, [](auto& p) { p.index += 1; },
           [](auto& p) { p.index = UINT32_MAX; }, [](auto& p) { p.epoch += 1; }, [](auto& p) { p = {}; }}) {
    nmc_write_plan_t wrong = plan;
    change(wrong);
    GIVES(nmc_store_commit(store, &wrong), NMC_ERR_NOT_FOUND);
    GIVES(nmc_store_abort(store, &wrong), NMC_ERR_NOT_FOUND);
    GIVES(nmc_store_publish_pages(store, &wrong, 1), NMC_ERR_NOT_FOUND);
    GIVES(nmc_store_plan_extents(store, &wrong, &extent, 1, &n), NMC_ERR_NOT_FOUND);
  }
  GIVES(nmc_store_commit(other, &plan), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_abort(other, &plan), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_plan_extents(store, &plan, nullptr, 0, &n), NMC_ERR_TOO_SMALL);
  CHECK(n == 1);
  GIVES(nmc_store_plan_extents(store, &plan, nullptr, 1, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_publish_pages(store, &plan, 3), NMC_ERR_INVALID_ARG);
  CHECK(state_of(store, "k") == NMC_OBJECT_WRITING);

  promise("a_commit_can_be_repeated_and_ends_what_abort_could_do");
  memset(plan.payload, 'x', 5000);
  OK(nmc_store_commit(store, &plan));
  OK(nmc_store_commit(store, &plan));
  GIVES(nmc_store_abort(store, &plan), NMC_ERR_INVALID_ARG);
  OK(nmc_store_publish_pages(store, &plan, 1));  // all of them are ready already
  CHECK(get(store, "k") == std::string(5000, 'x'));
  OK(nmc_store_remove(store, slice_of("k")));
  GIVES(nmc_store_commit(store, &plan), NMC_ERR_NOT_FOUND);

  promise("after_abort_nothing_can_be_done_with_a_plan");
  OK(nmc_store_open_for_write(store, slice_of("k"), 5000, nullptr, &plan));
  OK(nmc_store_abort(store, &plan));
  GIVES(nmc_store_abort(store, &plan), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_commit(store, &plan), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_publish_pages(store, &plan, 1), NMC_ERR_NOT_FOUND);
  CHECK(state_of(store, "k") == NMC_OBJECT_ABSENT && stats_of(store).bytes_used == 0);

  promise("a_plan_whose_key_was_removed_is_stale_once_and_then_not_found");
  OK(nmc_store_open_for_write(store, slice_of("k"), 5000, nullptr, &plan));
  OK(nmc_store_remove(store, slice_of("k")));
  CHECK(stats_of(store).quarantined_bytes == 2 * kPage);
  GIVES(nmc_store_commit(store, &plan), NMC_ERR_STALE);
  GIVES(nmc_store_commit(store, &plan), NMC_ERR_NOT_FOUND);
  CHECK(state_of(store, "k") == NMC_OBJECT_ABSENT && stats_of(store).bytes_used == 0);

  promise("a_view_that_is_not_pinned_here_is_not_found");
  OK(put(store, "v", "value"));
  OK(put(other, "v", "value"));
  nmc_view_t view{}, nothing{}, theirs{};
  uint32_t pages = 0;
  GIVES(nmc_store_unpin(store, &nothing), NMC_ERR_NOT_FOUND);
  OK(nmc_store_pin(store, slice_of("v"), &view));
  OK(nmc_store_pin(other, slice_of("v"), &theirs));
  for (const auto& change : std::vector<std::function<void(nmc_view_t&)>>{
           [](auto& v) { v.slot += 1; }, [](auto& v) { v.slot = UINT32_MAX; }, [](auto& v) { v.index += 1; },
           [](auto& v) { v.epoch += 1; }, [](auto& v) { v = {}; }}) {
    nmc_view_t wrong = view;
    change(wrong);
    GIVES(nmc_store_unpin(store, &wrong), NMC_ERR_NOT_FOUND);
    GIVES(nmc_store_ready_pages(store, &wrong, &pages), NMC_ERR_NOT_FOUND);
    GIVES(nmc_store_view_extents(store, &wrong, &extent, 1, &n), NMC_ERR_NOT_FOUND);
  }
  OK(nmc_store_ready_pages(store, &view, &pages));
  CHECK(pages == 1);
  OK(nmc_store_unpin(store, &view));
  GIVES(nmc_store_unpin(store, &view), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_ready_pages(store, &view, &pages), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_view_extents(store, &view, &extent, 1, &n), NMC_ERR_NOT_FOUND);
  OK(nmc_store_unpin(other, &theirs));

  promise("pin_after_remove_finds_nothing");
  OK(nmc_store_remove(store, slice_of("v")));
  GIVES(nmc_store_pin(store, slice_of("v"), &view), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_pin_partial(store, slice_of("v"), 1, &view), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_remove(store, slice_of("v")), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_touch(store, slice_of("v")), NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_retain(store, slice_of("v"), 0, 0, 0), NMC_ERR_NOT_FOUND);
}

void batches() {
  promise("a_batch_with_bad_items_does_the_others_and_names_the_first_that_failed");
  Embedded store;
  OK(put(store, "there", "old"));
  const std::string longer(1025, 'k');
  const nmc_slice_t keys[6] = {slice_of("a"), slice_of("there"), {"", 0}, slice_of("b"), bytes_of(longer), slice_of("a")};
  const nmc_slice_t values[6] = {slice_of("1"), slice_of("22"), slice_of("3"), {nullptr, 9}, slice_of("5"), slice_of("6")};
  const nmc_status_t want[6] = {NMC_OK, NMC_ERR_EXISTS, NMC_ERR_INVALID_ARG, NMC_ERR_INVALID_ARG, NMC_ERR_INVALID_ARG,
                                NMC_ERR_EXISTS};
  nmc_status_t items[7];
  for (nmc_status_t& item : items) item = 77;
  GIVES(nmc_store_put_batch(store, keys, values, 6, nullptr, items), NMC_ERR_EXISTS);
  CHECK(error_mentions("there"));
  for (int i = 0; i < 6; ++i) GIVES(items[i], want[i]);
  CHECK(items[6] == 77 && get(store, "a") == "1" && get(store, "there") == "old");
  CHECK(state_of(store, "b") == NMC_OBJECT_ABSENT);

  nmc_write_plan_t plans[6];
  memset(plans, 0xee, sizeof plans);
  const uint64_t sizes[6] = {1, 1, 1, UINT64_MAX, 1, 1};
  const nmc_slice_t open_keys[6] = {slice_of("p"), slice_of("there"), {"", 0}, slice_of("q"), slice_of("r"), slice_of("p")};
  GIVES(nmc_store_open_batch(store, open_keys, sizes, 6, nullptr, plans, items), NMC_ERR_EXISTS);
  const nmc_status_t opened[6] = {NMC_OK, NMC_ERR_EXISTS, NMC_ERR_INVALID_ARG, NMC_ERR_NO_SPACE, NMC_OK, NMC_ERR_EXISTS};
  for (int i = 0; i < 6; ++i) {
    GIVES(items[i], opened[i]);
    CHECK((plans[i].plan_id != 0) == (opened[i] == NMC_OK) && (plans[i].payload != nullptr) == (opened[i] == NMC_OK));
  }
  memcpy(plans[0].payload, "P", 1);
  memcpy(plans[4].payload, "R", 1);
  GIVES(nmc_store_commit_batch(store, plans, 6, items), NMC_ERR_NOT_FOUND);
  for (int i = 0; i < 6; ++i) GIVES(items[i], opened[i] == NMC_OK ? NMC_OK : NMC_ERR_NOT_FOUND);
  CHECK(get(store, "p") == "P" && get(store, "r") == "R");

  nmc_write_plan_t open{};
  OK(nmc_store_open_for_write(store, slice_of("writing"), 4, nullptr, &open));
  const nmc_slice_t reads[5] = {slice_of("a"), slice_of("writing"), slice_of("none"), {"", 0}, slice_of("there")};
  Guarded one(1), two(4), three(1), four(1), five(3);
  const nmc_buffer_t buffers[5] = {
      {one.data(), 1}, {two.data(), 4}, {three.data(), 1}, {four.data(), 1}, {five.data(), 3}};
  const nmc_status_t read[5] = {NMC_OK, NMC_NOT_READY, NMC_ERR_NOT_FOUND, NMC_ERR_INVALID_ARG, NMC_OK};
  GIVES(nmc_store_get_into_batch(store, reads, buffers, 5, items), NMC_ERR_NOT_FOUND);
  for (int i = 0; i < 5; ++i) GIVES(items[i], read[i]);
  CHECK(one.text() == "1" && five.text() == "old" && two.untouched() && three.untouched() && four.untouched());
  CHECK(one.zones_intact() && two.zones_intact() && five.zones_intact());

  promise("pin_batch_pins_all_or_as_many_as_can_be");
  nmc_view_t views[5];
  memset(views, 0xee, sizeof views);
  size_t pinned = 77;
  GIVES(nmc_store_pin_batch(store, reads, 5, views, &pinned, items), NMC_ERR_NOT_FOUND);
  CHECK(pinned == 2 && memcmp(views[0].data, "1", 1) == 0 && views[1].data == nullptr && views[2].bytes == 0);
  for (int i = 0; i < 5; ++i) GIVES(items[i], read[i]);
  GIVES(nmc_store_unpin_batch(store, views, 5, items), NMC_ERR_NOT_FOUND);
  for (int i = 0; i < 5; ++i) GIVES(items[i], read[i] == NMC_OK ? NMC_OK : NMC_ERR_NOT_FOUND);
  GIVES(nmc_store_pin_batch(store, reads, 5, views, nullptr, items), NMC_ERR_NOT_FOUND);
  for (const nmc_view_t& view : views) CHECK(view.data == nullptr && view.bytes == 0);
  OK(nmc_store_evict_until_below(store, 0, 0));  // none of them is pinned any more
  CHECK(state_of(store, "a") == NMC_OBJECT_ABSENT);

  promise("remove_batch_removes_what_is_there");
  OK(put(store, "a", "1"));
  OK(put(store, "there", "2"));
  GIVES(nmc_store_remove_batch(store, reads, 5, items), NMC_ERR_NOT_FOUND);
  const nmc_status_t gone[5] = {NMC_OK, NMC_OK, NMC_ERR_NOT_FOUND, NMC_ERR_INVALID_ARG, NMC_OK};
  for (int i = 0; i < 5; ++i) GIVES(items[i], gone[i]);
  GIVES(nmc_store_commit(store, &open), NMC_ERR_STALE);
}

}  // namespace

int main() {
  handles();
  forked();
  configs();
  keys();
  streams();
  pointers();
  ranges();
  texts();
  plans_and_views();
  batches();
  return finish();
}
