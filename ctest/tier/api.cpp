// Every call of the SSD tier with good and with bad arguments: NULL, foreign and closed handles, configs at their edges, directories
// that are none, a second owner, the environment. Each gives the documented status, and what failed has changed nothing.
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "../support/tier_check.hpp"

namespace {

int32_t go_on(void*, const nmc_tier_entry_t*) { return 1; }

// Calls every function of the tier but open and close on a handle, with arguments that are fine otherwise.
void every_call(nmc_tier_t* tier, nmc_status_t want) {
  const nmc_slice_t key = slice_of("key");
  uint64_t written = 0;
  nmc_tier_stats_t stats = NMC_TIER_STATS_INIT;
  nmc_tier_verified_t found = NMC_TIER_VERIFIED_INIT;
  GIVES(nmc_tier_sync(tier), want);
  GIVES(nmc_tier_offload(tier, nullptr, 0, &written), want);
  GIVES(nmc_tier_offload(tier, &key, 1, &written), want);
  nmc_status_t status = 77;
  // The key is not there: that is what a good handle says.
  GIVES(nmc_tier_prefetch(tier, &key, 1, &status), want == NMC_OK ? NMC_ERR_NOT_FOUND : want);
  uint64_t loan = 77;
  nmc_slice_t value{};
  GIVES(nmc_tier_stage(tier, &key, 1, 0, &loan, &value, &status), want == NMC_OK ? NMC_ERR_NOT_FOUND : want);
  GIVES(nmc_tier_release(tier, 0), want);
  GIVES(nmc_tier_evict(tier, 0, &written), want);
  GIVES(nmc_tier_events(tier, [](void*, const nmc_tier_event_t*) { return 1; }, nullptr), want);
  GIVES(nmc_tier_pause(tier), want);
  GIVES(nmc_tier_resume(tier), want);
  GIVES(nmc_tier_stats(tier, &stats), want);
  GIVES(nmc_tier_verify(tier, nullptr, nullptr, &found), want);
  GIVES(nmc_tier_scan(tier, go_on, nullptr), want);
}

void handles() {
  promise("null_is_a_bad_handle_everywhere_but_in_close");
  every_call(nullptr, NMC_ERR_BAD_HANDLE);
  OK(nmc_tier_close(nullptr));

  promise("what_is_no_tier_is_a_bad_handle");
  char memory[64] = {};
  every_call(reinterpret_cast<nmc_tier_t*>(memory), NMC_ERR_BAD_HANDLE);
  Embedded store;
  every_call(reinterpret_cast<nmc_tier_t*>(store.store), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_tier_close(reinterpret_cast<nmc_tier_t*>(store.store)), NMC_ERR_BAD_HANDLE);
  CHECK(error_mentions("another kind"));

  TierDir dir;
  OpenTier tier(store, dir.path);
  every_call(tier, NMC_OK);
  GIVES(nmc_store_remove_all(reinterpret_cast<nmc_store_t*>(tier.tier)), NMC_ERR_BAD_HANDLE);
  nmc_tier_t* out = tier.tier;
  const nmc_tier_config_t config = tier_config(dir.path);
  for (nmc_store_t* wrong : {static_cast<nmc_store_t*>(nullptr), reinterpret_cast<nmc_store_t*>(tier.tier),
                             reinterpret_cast<nmc_store_t*>(memory)}) {
    GIVES(nmc_tier_open(wrong, &config, &out), NMC_ERR_BAD_HANDLE);
    CHECK(out == nullptr);
  }

  promise("a_closed_tier_is_a_bad_handle");
  nmc_tier_t* closed = tier.tier;
  tier.close();
  every_call(closed, NMC_ERR_BAD_HANDLE);
  GIVES(nmc_tier_close(closed), NMC_ERR_BAD_HANDLE);
}

void arguments() {
  Embedded store;
  TierDir dir;
  nmc_tier_config_t config = tier_config(dir.path);
  nmc_tier_t* out = nullptr;

  promise("without_a_place_for_the_handle_nothing_is_opened");
  GIVES(nmc_tier_open(store, &config, nullptr), NMC_ERR_INVALID_ARG);
  CHECK(!std::filesystem::exists(dir.path));

  promise("null_out_pointers_and_keys_that_are_none_are_refused");
  OpenTier tier(store, config);
  OK(put(store, "key", "value"));
  GIVES(nmc_tier_stats(tier, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_tier_verify(tier, nullptr, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_tier_scan(tier, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_tier_events(tier, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  uint64_t written = 77;
  GIVES(nmc_tier_offload(tier, nullptr, 1, &written), NMC_ERR_INVALID_ARG);
  const std::string longest(1024, 'k'), longer(1025, 'k');
  for (const nmc_slice_t bad : {nmc_slice_t{nullptr, 0}, nmc_slice_t{"", 0}, nmc_slice_t{nullptr, 3}, bytes_of(longer)}) {
    const nmc_slice_t keys[] = {slice_of("key"), bad};
    GIVES(nmc_tier_offload(tier, keys, 2, &written), NMC_ERR_INVALID_ARG);
    nmc_status_t statuses[] = {77, 77};
    GIVES(nmc_tier_prefetch(tier, keys, 2, statuses), NMC_ERR_INVALID_ARG);
    CHECK(statuses[0] == NMC_OK && statuses[1] == NMC_ERR_INVALID_ARG);
  }
  GIVES(nmc_tier_prefetch(tier, nullptr, 1, nullptr), NMC_ERR_INVALID_ARG);
  OK(nmc_tier_prefetch(tier, nullptr, 0, nullptr));
  OK(nmc_tier_evict(tier, UINT64_MAX, nullptr));
  uint64_t loan = 77;
  nmc_slice_t values[2] = {};
  const nmc_slice_t mixed[] = {slice_of("key"), bytes_of(longer)};
  GIVES(nmc_tier_stage(tier, mixed, 2, 0, nullptr, values, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_tier_stage(tier, mixed, 2, 0, &loan, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  CHECK(loan == 0);
  GIVES(nmc_tier_stage(tier, nullptr, 1, 0, &loan, values, nullptr), NMC_ERR_INVALID_ARG);
  OK(nmc_tier_stage(tier, nullptr, 0, 0, &loan, nullptr, nullptr));
  CHECK(loan == 0);
  nmc_status_t said[] = {77, 77};
  GIVES(nmc_tier_stage(tier, mixed, 2, 0, &loan, values, said), NMC_ERR_INVALID_ARG);
  CHECK(said[0] == NMC_OK && said[1] == NMC_ERR_INVALID_ARG && loan != 0 && values[0].len == 5 && values[1].ptr == nullptr);
  OK(nmc_tier_release(tier, loan));
  GIVES(nmc_tier_release(tier, loan), NMC_ERR_STALE);
  GIVES(nmc_tier_release(tier, UINT64_MAX), NMC_ERR_STALE);
  const nmc_slice_t one = slice_of("key");
  GIVES(nmc_tier_offload(tier, &one, SIZE_MAX, &written), NMC_ERR_INVALID_ARG);  // more than memory has
  CHECK(written == 77 && tier_stats(tier).objects == 0);

  promise("a_list_without_keys_is_nothing_and_not_all");
  OK(nmc_tier_offload(tier, &one, 0, &written));
  CHECK(written == 0 && tier_stats(tier).objects == 0);

  promise("keys_that_are_not_there_are_no_error");
  const nmc_slice_t keys[] = {slice_of("none"), one, bytes_of(longest)};
  OK(nmc_tier_offload(tier, keys, 3, &written));
  CHECK(written == 1 && tier_stats(tier).objects == 1);
  OK(nmc_tier_offload(tier, keys, 3, nullptr));

  promise("structs_without_their_size_are_refused");
  for (uint32_t size : {0u, 4u, 6u, 4104u, UINT32_MAX}) {
    nmc_tier_stats_t stats = NMC_TIER_STATS_INIT;
    nmc_tier_verified_t found = NMC_TIER_VERIFIED_INIT;
    stats.struct_size = found.struct_size = size;
    GIVES(nmc_tier_stats(tier, &stats), NMC_ERR_INVALID_ARG);
    CHECK(error_mentions("NMC_TIER_STATS_INIT"));
    GIVES(nmc_tier_verify(tier, nullptr, nullptr, &found), NMC_ERR_INVALID_ARG);
    nmc_tier_config_t bad = tier_config(dir.path);
    bad.struct_size = size;
    GIVES(nmc_tier_open(store, &bad, &out), NMC_ERR_VERSION);
  }
  nmc_tier_config_t bad = tier_config(dir.path);
  bad.abi_version = 0;
  GIVES(nmc_tier_open(store, &bad, &out), NMC_ERR_VERSION);
}

void configs() {
  Embedded store;
  TierDir dir;
  nmc_tier_t* out = nullptr;
  const auto refused = [&](const char* says, const auto& change) {
    nmc_tier_config_t config = tier_config(dir.path);
    change(config);
    out = reinterpret_cast<nmc_tier_t*>(&config);
    GIVES(nmc_tier_open(store, &config, &out), NMC_ERR_INVALID_ARG);
    CHECK(out == nullptr && error_mentions(says));
  };
  promise("numbers_beyond_their_limits_are_refused_and_named");
  refused("flags 0x400", [](nmc_tier_config_t& c) { c.flags = 1024; });
  refused("backend 4", [](nmc_tier_config_t& c) { c.backend = 4; });
  refused("capacity_bytes", [](nmc_tier_config_t& c) { c.backend = NMC_TIER_BACKEND_OFFSET; });
  refused("eviction 3", [](nmc_tier_config_t& c) { c.eviction = 3; });
  refused("promote_after 256", [](nmc_tier_config_t& c) { c.promote_after = 256; });
  refused("admit_reads 16777216", [](nmc_tier_config_t& c) { c.admit_reads = 1 << 24; });
  refused("admit_priority 4", [](nmc_tier_config_t& c) { c.admit_priority = 4; });
  refused("flags 0x80000000", [](nmc_tier_config_t& c) { c.flags = 1u << 31; });
  refused("reserved", [](nmc_tier_config_t& c) { c.reserved[3] = 1; });
  refused("depth 1025", [](nmc_tier_config_t& c) { c.depth = 1025; });
  refused("bucket_bytes", [](nmc_tier_config_t& c) { c.bucket_bytes = UINT64_MAX; });

  promise("without_a_directory_nothing_is_opened");
  const std::string long_path(4096, 'x');
  refused("directory", [](nmc_tier_config_t& c) { c.directory = nmc_slice_t{nullptr, 0}; });
  refused("directory", [](nmc_tier_config_t& c) { c.directory = nmc_slice_t{"", 0}; });
  refused("directory", [&](nmc_tier_config_t& c) { c.directory = bytes_of(long_path); });
  GIVES(nmc_tier_open(store, nullptr, &out), NMC_ERR_INVALID_ARG);

  promise("zeros_are_the_defaults_and_small_numbers_work");
  {
    nmc_tier_config_t config = NMC_TIER_CONFIG_INIT;
    config.directory = bytes_of(dir.path);
    OpenTier tier(store, config);
    const nmc_tier_stats_t stats = tier_stats(tier);
    CHECK(stats.owner == 1 && stats.max_objects >= 1000000 && stats.paused == 0 && stats.degraded == 0);
    CHECK(stats.index_bytes <= 100 * stats.max_objects);
  }
  nmc_tier_config_t config = tier_config(dir.path);
  config.bucket_bytes = 1;
  config.bucket_keys = 1;
  config.depth = 1;
  config.heartbeat_ms = 1;
  config.max_objects = 4;
  config.flags |= NMC_TIER_NO_DIRECT | NMC_TIER_NO_URING | NMC_TIER_DURABLE_REMOVE;
  OpenTier tier(store, config);
  for (int i = 0; i < 4; ++i) OK(put(store, std::to_string(i), value_of(1, 5000)));
  CHECK(offload(tier) == 4);

  promise("what_the_index_has_no_room_for_stays_in_memory_and_is_counted");
  OK(put(store, "one more", "value"));
  GIVES(nmc_tier_offload(tier, nullptr, 0, nullptr), NMC_ERR_NO_SPACE);
  CHECK(tier_stats(tier).full > 0 && tier_stats(tier).objects == 4);
  CHECK(get(store, "one more") == "value");

  promise("pause_and_resume_can_be_repeated");
  CHECK(tier_stats(tier).paused == 1);
  OK(nmc_tier_resume(tier));
  OK(nmc_tier_resume(tier));
  CHECK(tier_stats(tier).paused == 0);
  OK(nmc_tier_pause(tier));
  OK(nmc_tier_pause(tier));
  CHECK(tier_stats(tier).paused == 1);
  OK(nmc_tier_sync(tier));
}

void directories() {
  Embedded store;
  TierDir dir;
  nmc_tier_t* out = nullptr;
  const auto refused = [&](const std::string& path) {
    const nmc_tier_config_t config = tier_config(path);
    out = reinterpret_cast<nmc_tier_t*>(&out);
    CHECK(nmc_tier_open(store, &config, &out) < 0 && out == nullptr);
    if (!error_mentions(path.c_str())) printf("     %s: %s\n", path.c_str(), nmc_last_error_message());
    CHECK(error_mentions(path.c_str()));
  };
  promise("what_is_no_directory_is_refused_and_named");
  const std::string file = dir.outside + "/file";
  std::ofstream(file) << "mine";
  refused(file);
  refused(file + "/below");
  refused("/dev/null");
  refused("/dev/null/nowhere");
  refused(dir.outside + "/not/there");  // only the last part is made
  refused("/proc/tier");
  std::string kept;
  std::ifstream(file) >> kept;
  CHECK(kept == "mine" && !std::filesystem::exists(dir.outside + "/not"));

  promise("what_is_not_the_tiers_is_left_alone");
  std::filesystem::create_directory(dir.path);
  std::ofstream(dir.path + "/notes.txt") << "mine";
  {
    OpenTier tier(store, dir.path);
    OK(put(store, "key", "value"));
    CHECK(offload(tier) == 1);
  }
  kept.clear();
  std::ifstream(dir.path + "/notes.txt") >> kept;
  CHECK(kept == "mine");

  promise("a_head_that_is_damaged_is_refused_unless_it_may_be_reset");
  {
    std::fstream head(dir.path + "/SUPER", std::ios::in | std::ios::out | std::ios::binary);
    head.seekp(100);
    head.put('x');
  }
  const nmc_tier_config_t config = tier_config(dir.path);
  GIVES(nmc_tier_open(store, &config, &out), NMC_ERR_CORRUPT);
  GIVES(nmc_tier_open(store, &config, &out), NMC_ERR_CORRUPT);  // nothing was changed
  nmc_tier_config_t reset = config;
  reset.flags |= NMC_TIER_RESET_IF_DAMAGED;
  OpenTier tier(store, reset);
  CHECK(tier_stats(tier).objects == 0);
  kept.clear();
  std::ifstream(dir.path + "/notes.txt") >> kept;
  CHECK(kept == "mine");
}

void owners() {
  Embedded store, other;
  TierDir dir, second;
  OpenTier tier(store, dir.path);
  nmc_tier_t* out = nullptr;

  promise("a_second_owner_is_refused_and_told_who_the_first_is");
  nmc_tier_config_t config = tier_config(dir.path);
  GIVES(nmc_tier_open(other, &config, &out), NMC_ERR_EXISTS);
  CHECK(out == nullptr && error_mentions(dir.path.c_str()));
  CHECK(error_mentions(std::to_string(getpid()).c_str()));

  promise("a_store_has_one_tier");
  config = tier_config(second.path);
  GIVES(nmc_tier_open(store, &config, &out), NMC_ERR_EXISTS);

  promise("a_directory_that_was_refused_is_free_for_the_next_store");
  OpenTier third(other, second.path);

  promise("a_closed_directory_is_free_for_another_store");
  tier.close();
  third.close();
  OpenTier taken(other, dir.path);
}

void stores() {
  TierDir dir;
  promise("a_tier_keeps_its_store_open");
  nmc_store_t* store = nullptr;
  const nmc_store_config_t small = store_config({});
  REQUIRE(OK(nmc_store_create(nullptr, &small, &store)));
  OK(put(store, "key", "value"));
  OpenTier tier(store, dir.path);
  OK(nmc_store_destroy(store));
  CHECK(offload(tier) == 1);
  CHECK(scanned(tier) == (std::map<std::string, uint64_t>{{"/key", 5}}));
  tier.close();

  promise("a_closed_tier_leaves_the_store_as_it_is_in_memory");
  Embedded next;
  OK(put(next, "in memory", "value"));
  OpenTier again(next, dir.path);
  CHECK(state_of(next, "key") == NMC_OBJECT_ON_DISK && get(next, "key") == "value");
  again.close();
  CHECK(state_of(next, "key") == NMC_OBJECT_ABSENT && get(next, "key") == "<NMC_ERR_NOT_FOUND>");
  CHECK(get(next, "in memory") == "value");
  OK(put(next, "key", "other"));

  promise("of_a_key_that_memory_has_too_when_the_directory_comes_back_memory_counts");
  OpenTier last(next, dir.path);
  CHECK(get(next, "key") == "other");
  evict(next);
  CHECK(get(next, "key") != "value");
}

std::string text(const nmc_slice_t& value) { return {static_cast<const char*>(value.ptr), value.len}; }

void loans() {
  const TierDir dir;
  Embedded store;
  OpenTier tier(store, dir.path);
  const std::string long_value(200000, 'l');
  OK(put(store, "long", long_value));
  OK(put(store, "short", "s"));
  CHECK(offload(tier) == 2);
  evict(store);
  OK(put(store, "memory", "m"));

  promise("values_are_lent_from_disk_and_from_memory");
  const nmc_slice_t keys[] = {slice_of("short"), slice_of("none"), slice_of("long"), slice_of("memory")};
  nmc_slice_t values[4];
  nmc_status_t statuses[4];
  uint64_t loan = 0;
  GIVES(nmc_tier_stage(tier, keys, 4, 60000, &loan, values, statuses), NMC_ERR_NOT_FOUND);
  CHECK(statuses[0] == NMC_OK && statuses[1] == NMC_ERR_NOT_FOUND && statuses[2] == NMC_OK && statuses[3] == NMC_OK);
  CHECK(text(values[0]) == "s" && values[1].ptr == nullptr && text(values[2]) == long_value && text(values[3]) == "m");
  for (const int i : {0, 2, 3}) CHECK(reinterpret_cast<uintptr_t>(values[i].ptr) % 4096 == 0);

  promise("a_lent_value_stays_when_its_key_is_removed_or_replaced");
  OK(nmc_store_remove(store, keys[2]));
  OK(nmc_store_remove(store, keys[0]));
  OK(put(store, "short", "another"));
  CHECK(text(values[0]) == "s" && text(values[2]) == long_value);
  OK(nmc_tier_release(tier, loan));

  promise("a_loan_that_lasted_too_long_is_stale");
  OK(nmc_tier_stage(tier, &keys[0], 1, 1, &loan, values, statuses));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  GIVES(nmc_tier_release(tier, loan), NMC_ERR_STALE);

  promise("more_is_not_lent_than_there_is_and_all_of_it_comes_back");
  std::vector<uint64_t> loans;
  nmc_status_t status = NMC_OK;
  while (loans.size() < 5000) {
    status = nmc_tier_stage(tier, &keys[0], 1, 600000, &loan, values, statuses);
    if (status != NMC_OK) break;
    loans.push_back(loan);
  }
  GIVES(status, NMC_ERR_BUSY);
  CHECK(loans.size() == 1024 && statuses[0] == NMC_ERR_BUSY && loan == 0 && values[0].ptr == nullptr);
  for (const uint64_t open : loans) OK(nmc_tier_release(tier, open));
  OK(nmc_tier_stage(tier, &keys[0], 1, 0, &loan, values, statuses));
  CHECK(text(values[0]) == "another");
}

void callbacks() {
  Embedded store({256});
  TierDir dir;
  {
    nmc_tier_config_t config = tier_config(dir.path);
    config.bucket_keys = 3;
    OpenTier tier(store, config);
    for (int i = 0; i < 20; ++i) OK(put(store, std::to_string(i), value_of(1, 5000)));
    CHECK(offload(tier) == 20);
  }
  promise("the_recovery_tells_how_far_it_is");
  struct Progress {
    uint64_t calls = 0, done = 0, total = 0;
    std::thread::id thread = std::this_thread::get_id();
  } progress;
  nmc_tier_config_t config = tier_config(dir.path);
  config.progress_user = &progress;
  config.progress = [](void* user, uint64_t done, uint64_t total) {
    Progress& p = *static_cast<Progress*>(user);
    CHECK(done >= p.done && done <= total && p.thread == std::this_thread::get_id());
    p.done = done;
    p.total = total;
    ++p.calls;
  };
  OpenTier tier(store, config);
  CHECK(progress.calls > 0 && progress.done == progress.total && progress.total >= 7);
  const nmc_tier_stats_t stats = tier_stats(tier);
  CHECK(stats.recovered_objects == 20 && stats.recovered_buckets >= 7 && stats.recovery_ns > 0 && stats.objects == 20);
  CHECK(stats.bytes == 20 * 5000 && stats.recovered_dead == 0);

  promise("a_verification_tells_how_far_it_is_and_ends_when_told_to");
  struct Count {
    nmc_tier_t* tier;
    uint64_t calls = 0, stop = UINT64_MAX;
  } count{tier, 0, UINT64_MAX};
  const nmc_tier_verify_fn verify = [](void* user, uint64_t done, uint64_t total) -> int32_t {
    Count& c = *static_cast<Count*>(user);
    CHECK(done <= total);
    GIVES(nmc_tier_close(c.tier), NMC_ERR_BUSY);  // it is in use by this very call
    return ++c.calls < c.stop;
  };
  nmc_tier_verified_t found = NMC_TIER_VERIFIED_INIT;
  OK(nmc_tier_verify(tier, verify, &count, &found));
  CHECK(count.calls > 0 && found.objects == 20 && found.bytes == 20 * 5000 && found.corrupt == 0);
  count = {tier, 0, 1};
  OK(nmc_tier_verify(tier, verify, &count, &found));
  CHECK(count.calls == 1 && found.objects < 20);

  promise("a_scan_ends_when_told_to");
  uint64_t seen = 0;
  const nmc_tier_scan_fn scan = [](void* user, const nmc_tier_entry_t* entry) -> int32_t {
    CHECK(entry->bytes == 5000 && entry->namespace_name.len == 0 && entry->key.len > 0);
    return ++*static_cast<uint64_t*>(user) < 5;
  };
  OK(nmc_tier_scan(tier, scan, &seen));
  CHECK(seen == 5);
  CHECK(scanned(tier).size() == 20);

  promise("closing_ends_a_verification_of_another_thread");
  std::atomic<bool> inside{false};
  std::thread other([&] {
    const nmc_tier_verify_fn slow = [](void* user, uint64_t, uint64_t) -> int32_t {
      static_cast<std::atomic<bool>*>(user)->store(true);
      sleep_ms(1);
      return 1;
    };
    nmc_status_t status = NMC_OK;
    while (status == NMC_OK) {
      nmc_tier_verified_t last = NMC_TIER_VERIFIED_INIT;
      status = nmc_tier_verify(tier.tier, slow, &inside, &last);
    }
    CHECK(status == NMC_ERR_CANCELLED || status == NMC_ERR_BAD_HANDLE);
  });
  while (!inside.load()) std::this_thread::yield();
  OK(nmc_tier_close(tier.tier));
  other.join();
  tier.tier = nullptr;
}

void environment() {
  Embedded store;
  TierDir dir;
  nmc_tier_t* out = nullptr;
  const nmc_tier_config_t config = tier_config(dir.path);
  promise("a_variable_of_the_environment_that_cannot_be_read_is_named_with_its_text");
  struct {
    const char *name, *text;
  } const wrong[] = {{"NMC_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "often"},
                     {"NMC_BUCKET_MAX_TOTAL_SIZE", "-5"},
                     {"NMC_USE_URING", "perhaps"},
                     {"MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "0"},
                     {"MOONCAKE_BUCKET_MAX_TOTAL_SIZE", "10GB"},
                     {"MOONCAKE_USE_URING", "2"}};
  for (const auto& [name, text] : wrong) {
    REQUIRE(setenv(name, text, 1) == 0);
    GIVES(nmc_tier_open(store, &config, &out), NMC_ERR_INVALID_ARG);
    CHECK(out == nullptr && error_mentions(name) && error_mentions(text));
    REQUIRE(unsetenv(name) == 0);
  }
  CHECK(!std::filesystem::exists(dir.path));

  promise("the_environment_counts_where_the_config_is_silent");
  REQUIRE(setenv("MOONCAKE_BUCKET_MAX_TOTAL_SIZE", "8192", 1) == 0);
  REQUIRE(setenv("NMC_USE_URING", "false", 1) == 0);
  for (int i = 0; i < 8; ++i) OK(put(store, std::to_string(i), value_of(1, 9000)));
  {
    OpenTier tier(store, config);
    GIVES(nmc_tier_offload(tier, nullptr, 0, nullptr), NMC_ERR_NO_SPACE);
  }
  nmc_tier_config_t spoken = config;
  spoken.capacity_bytes = 64 << 20;
  OpenTier tier(store, spoken);
  OK(nmc_tier_offload(tier, nullptr, 0, nullptr));
  CHECK(tier_stats(tier).objects == 8);
  REQUIRE(unsetenv("MOONCAKE_BUCKET_MAX_TOTAL_SIZE") == 0 && unsetenv("NMC_USE_URING") == 0);
}

void forked() {
  promise("a_forked_child_gets_forked_and_neither_closes_the_tier_nor_keeps_its_directory");
  Embedded store;
  TierDir dir;
  OpenTier tier(store, dir.path);
  OK(put(store, "key", "value"));
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  fflush(stdout);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    failed_checks = 0;
    close(ends[1]);
    every_call(tier, NMC_ERR_FORKED);
    nmc_tier_t* out = nullptr;
    const nmc_tier_config_t config = tier_config(dir.path);
    GIVES(nmc_tier_open(store, &config, &out), NMC_ERR_FORKED);
    OK(nmc_tier_close(tier));
    fflush(stdout);
    char byte = 0;
    const ssize_t got = read(ends[0], &byte, 1);  // it lives until the parent has opened the directory again
    _exit(failed_checks != 0 || got != 0);
  }
  close(ends[0]);
  CHECK(offload(tier) == 1);
  tier.close();
  {
    OpenTier again(store, dir.path);
    CHECK(tier_stats(again).objects == 1);
  }
  close(ends[1]);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace

int main() {
  handles();
  arguments();
  configs();
  directories();
  owners();
  stores();
  loans();
  callbacks();
  environment();
  // The child of a process with threads has lost what these held, and valgrind says so.
  if (!under_tool_named("valgrind")) forked();
  return finish();
}
