// What was offloaded and evicted is read back byte for byte, by every call that reads; what was removed, replaced or flushed does not come
// back; and all of it is there when another process opens the directory. Sizes are those around which something changes: a block, the
// end of what fits behind a header, 64 KiB under one checksum, what is read with several requests.
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <memory>

#include "../support/tier_check.hpp"

extern char** environ;

namespace {

const std::vector<size_t> kSizes = {0,     1,     511,   3600,  3700,  3771,  3772,  3773,      4095,      4096,
                                    4097,  8191,  65535, 65536, 65537, 98304, 262143, 262144, 1 << 20, (9 << 20) + 3};

std::string name_of(size_t size) { return "size-" + std::to_string(size); }

constexpr StoreSetup kRoom = {8192};  // pages: 32 MiB

// Memory that begins `shift` bytes behind a block, between red zones.
class Shifted {
 public:
  Shifted(size_t size, size_t shift) : size_(size), at_(4096 + shift), bytes_(size + 3 * 4096) {
    all_.reset(static_cast<unsigned char*>(std::aligned_alloc(4096, (bytes_ + 4095) / 4096 * 4096)));
    REQUIRE(all_ != nullptr);
    memset(all_.get(), 0xa5, bytes_);
  }
  void* data() { return all_.get() + at_; }
  bool is(std::string_view value) const {
    return value.size() == size_ && memcmp(all_.get() + at_, value.data(), size_) == 0;
  }
  bool zones_intact() const {
    const auto red = [](unsigned char byte) { return byte == 0xa5; };
    return std::all_of(all_.get(), all_.get() + at_, red) && std::all_of(all_.get() + at_ + size_, all_.get() + bytes_, red);
  }

 private:
  struct Free {
    void operator()(unsigned char* memory) const { std::free(memory); }
  };
  size_t size_, at_, bytes_;
  std::unique_ptr<unsigned char, Free> all_;
};

void put_sizes(nmc_store_t* store) {
  for (size_t size : kSizes) OK(put(store, name_of(size), value_of(size, size)));
}

// ---------------------------------------------------------------------------------------------------------- reads --

void whole_values(uint32_t store_flags, uint32_t tier_flags) {
  printf("store flags %u, tier flags %u\n", store_flags, tier_flags);
  StoreSetup setup = kRoom;
  setup.flags = store_flags;
  Embedded store(setup);
  TierDir dir;
  nmc_tier_config_t config = tier_config(dir.path);
  config.flags |= tier_flags;
  OpenTier tier(store, config);
  put_sizes(store);

  promise("what_is_in_memory_and_on_disk_is_ready");
  CHECK(offload(tier) == kSizes.size());
  CHECK(offload(tier) == 0);  // it is there already
  for (size_t size : kSizes) CHECK(state_of(store, name_of(size)) == NMC_OBJECT_READY);
  CHECK(tier_stats(tier).objects == kSizes.size() && tier_stats(tier).read_objects == 0);

  promise("what_memory_evicts_disk_keeps_byte_for_byte");
  evict(store);
  CHECK(stats_of(store).ready_count == 0);
  for (size_t size : kSizes) {
    const std::string key = name_of(size), value = value_of(size, size);
    CHECK(state_of(store, key) == NMC_OBJECT_ON_DISK);
    CHECK(get(store, key) == value);
    for (size_t shift : {0, 1, 8, 512, 2048, 4095}) {
      if (under_tool() && shift > 0 && size > 1 << 20) continue;  // long values take long there; get() has read into an odd address
      Shifted to(size, shift);
      OK(nmc_store_get_into(store, bytes_of(key), to.data(), size));
      CHECK(to.is(value) && to.zones_intact());
    }
  }
  const nmc_tier_stats_t stats = tier_stats(tier);
  CHECK(stats.read_objects >= 3 * kSizes.size() && stats.corrupt == 0 && stats.errors == 0);
  CHECK(stats.evicted_clean == kSizes.size() && stats.evicted_dirty == 0);

  promise("a_buffer_of_another_size_is_refused_as_in_memory");
  Guarded small(4096);
  size_t bytes = 0;
  GIVES(nmc_store_get(store, bytes_of(name_of(4097)), small.data(), small.size(), &bytes), NMC_ERR_TOO_SMALL);
  CHECK(bytes == 4097 && small.zones_intact());
  GIVES(nmc_store_get_into(store, bytes_of(name_of(4097)), small.data(), small.size()), NMC_ERR_INVALID_ARG);
  GIVES(nmc_store_get_into(store, bytes_of(name_of(4095)), small.data(), small.size()), NMC_ERR_INVALID_ARG);
  CHECK(small.zones_intact());
  const nmc_tier_verified_t found = verified(tier);
  CHECK(found.objects == kSizes.size() && found.corrupt == 0);
}

void parts() {
  promise("a_part_of_a_value_on_disk_is_that_part");
  Embedded store(kRoom);
  TierDir dir;
  OpenTier tier(store, dir.path);
  put_sizes(store);
  CHECK(offload(tier) == kSizes.size());
  evict(store);
  for (size_t size : kSizes) {
    const std::string key = name_of(size), value = value_of(size, size);
    for (size_t offset : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{65535}, size_t{65536}, size_t{65537},
                          size / 2, size - std::min<size_t>(size, 1), size}) {
      for (size_t bytes : {size_t{0}, size_t{1}, size_t{2}, size_t{4096}, size_t{65536}, size_t{100001}, size}) {
        if (under_tool() && offset > 0 && bytes > 1 << 20) continue;  // one too many like this is enough where it takes long
        Guarded to(bytes);
        const nmc_status_t status = get_range(store, bytes_of(key), offset, to.data(), bytes);
        if (offset + bytes > size) {
          GIVES(status, NMC_ERR_INVALID_ARG);
        } else if (OK(status)) {
          CHECK(to.text() == std::string_view(value).substr(offset, bytes));
        }
        CHECK(to.zones_intact());
      }
    }
  }

  promise("a_part_goes_into_several_buffers_and_into_rows");
  const size_t size = (9 << 20) + 3;
  const std::string value = value_of(size, size);
  Guarded a(1), b(70000), c(0), d(4096);
  const nmc_buffer_t buffers[] = {{a.data(), 1}, {b.data(), 70000}, {c.data(), 0}, {d.data(), 4096}};
  size_t total = 0;
  OK(nmc_store_get_slices(store, bytes_of(name_of(size)), 65000, buffers, 4, &total));
  CHECK(total == size && a.text() == value.substr(65000, 1) && b.text() == value.substr(65001, 70000));
  CHECK(d.text() == value.substr(135001, 4096) && a.zones_intact() && b.zones_intact() && d.zones_intact());
  constexpr size_t kRows = 37, kRow = 1031, kStride = 2000;
  Guarded rows((kRows - 1) * kStride + kRow);
  OK(nmc_store_get_strided(store, bytes_of(name_of(size)), 777, rows.data(), kRows, kRow, kStride));
  for (size_t row = 0; row < kRows; ++row) {
    CHECK(rows.text().substr(row * kStride, kRow) == std::string_view(value).substr(777 + row * kRow, kRow));
  }
  CHECK(rows.zones_intact());
}

void batches() {
  promise("a_batch_reads_memory_and_disk_and_tells_of_each_item");
  Embedded store(kRoom);
  TierDir dir;
  OpenTier tier(store, dir.path);
  put_sizes(store);
  CHECK(offload(tier) == kSizes.size());
  evict(store);
  OK(put(store, "in memory", value_of(5, 5000)));
  nmc_write_plan_t plan{};
  OK(nmc_store_open_for_write(store, slice_of("being written"), 8, nullptr, &plan));
  std::vector<std::string> names = {"in memory", "being written", "not there", name_of(4096)};
  std::vector<size_t> sizes = {5000, 8, 8, 4097};  // the last is wrong
  for (size_t size : kSizes) {
    names.push_back(name_of(size));
    sizes.push_back(size);
  }
  std::vector<nmc_slice_t> keys;
  std::vector<nmc_buffer_t> buffers;
  std::vector<Guarded> memory(sizes.begin(), sizes.end());
  for (size_t i = 0; i < names.size(); ++i) {
    keys.push_back(bytes_of(names[i]));
    buffers.push_back({memory[i].data(), memory[i].size()});
  }
  std::vector<nmc_status_t> items(names.size(), 77);
  GIVES(nmc_store_get_into_batch(store, keys.data(), buffers.data(), keys.size(), items.data()), NMC_ERR_NOT_FOUND);
  CHECK(items[0] == NMC_OK && items[1] == NMC_NOT_READY && items[2] == NMC_ERR_NOT_FOUND);
  CHECK(items[3] == NMC_ERR_INVALID_ARG && memory[0].text() == value_of(5, 5000));
  for (size_t i = 4; i < names.size(); ++i) {
    CHECK(items[i] == NMC_OK && memory[i].text() == value_of(sizes[i], sizes[i]));
  }
  for (const Guarded& one : memory) CHECK(one.zones_intact());

  promise("states_and_prefixes_count_what_is_on_disk");
  std::vector<uint32_t> states(names.size(), 77);
  OK(nmc_store_exists_batch(store, keys.data(), keys.size(), states.data()));
  CHECK(states[0] == NMC_OBJECT_READY && states[1] == NMC_OBJECT_WRITING && states[2] == NMC_OBJECT_ABSENT);
  CHECK(states[4] == NMC_OBJECT_ON_DISK);
  const nmc_slice_t prefix[] = {slice_of("size-1"), slice_of("in memory"), slice_of("size-4096"), slice_of("not there"),
                                slice_of("size-0")};
  size_t matched = 77;
  OK(nmc_store_match_prefix(store, prefix, 5, &matched));
  CHECK(matched == 3);
  OK(nmc_store_abort(store, &plan));
}

// ------------------------------------------------------------------------------------------------- the other verbs --

void on_disk_only() {
  Embedded store(kRoom);
  TierDir dir;
  OpenTier tier(store, dir.path);
  nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
  options.metadata = slice_of("dtype=bf16");
  OK(put(store, "key", value_of(1, 5000), &options));
  OK(put(store, "plain", value_of(2, 5000)));
  CHECK(offload(tier) == 2);
  evict(store);
  const nmc_slice_t key = slice_of("key");

  promise("what_is_about_memory_says_not_ready_of_a_key_on_disk");
  nmc_view_t view{};
  nmc_object_meta_t meta{};
  GIVES(nmc_store_pin(store, key, &view), NMC_NOT_READY);
  GIVES(nmc_store_pin_partial(store, key, 1, &view), NMC_NOT_READY);
  GIVES(nmc_store_consume(store, key, &view), NMC_NOT_READY);
  GIVES(nmc_store_get_location(store, key, &meta), NMC_NOT_READY);
  GIVES(nmc_store_wait_ready(store, key, 0, 20000), NMC_NOT_READY);
  GIVES(nmc_store_wait_ready(store, key, NMC_WAIT_APPEAR, 20000), NMC_NOT_READY);
  GIVES(nmc_store_wait_pages(store, key, 1, 0, 20000), NMC_NOT_READY);
  GIVES(nmc_store_wait_pages(store, key, 1, NMC_WAIT_APPEAR, 20000), NMC_NOT_READY);
  size_t pinned = 77;
  nmc_status_t one = 77;
  GIVES(nmc_store_pin_batch(store, &key, 1, &view, &pinned, &one), NMC_NOT_READY);
  CHECK(pinned == 0 && one == NMC_NOT_READY);
  GIVES(nmc_store_retain(store, key, NMC_RETAIN_HARD, 0, 0), NMC_NOT_READY);
  OK(nmc_store_touch(store, key));
  CHECK(state_of(store, "key") == NMC_OBJECT_ON_DISK && get(store, "key") == value_of(1, 5000));

  promise("what_takes_values_from_memory_or_to_disk_finds_nothing_to_do");
  evict(store);
  CHECK(offload(tier) == 0 && state_of(store, "key") == NMC_OBJECT_ON_DISK);
  OK(nmc_tier_offload(tier, &key, 1, nullptr));

  promise("a_watch_is_about_memory_alone");
  nmc_completion_t completion{};
  const auto completed = [&] {
    size_t n = 0;
    for (const double deadline = seconds_now() + 60; n == 0 && seconds_now() < deadline; sleep_ms(2)) {
      OK(nmc_store_completions(store, &completion, 1, &n));
    }
    return n == 1;
  };
  OK(nmc_store_watch(store, slice_of("plain"), 0, 1));
  CHECK(completed() && completion.token == 1 && completion.status == NMC_ERR_NOT_FOUND);
  OK(nmc_store_watch(store, slice_of("plain"), NMC_WAIT_APPEAR, 2));
  const nmc_slice_t plain = slice_of("plain");
  OK(nmc_tier_prefetch(tier, &plain, 1, nullptr));
  CHECK(completed() && completion.token == 2 && completion.status == NMC_OK);
  evict(store);
  CHECK(state_of(store, "plain") == NMC_OBJECT_ON_DISK);

  promise("metadata_goes_to_disk_with_the_value");
  char text[NMC_MAX_METADATA];
  size_t bytes = 77;
  OK(nmc_store_get_metadata(store, key, text, sizeof text, &bytes));
  CHECK(std::string_view(text, bytes) == "dtype=bf16");
  OK(nmc_store_get_metadata(store, slice_of("plain"), text, sizeof text, &bytes));
  CHECK(bytes == 0);
  GIVES(nmc_store_get_metadata(store, key, text, 3, &bytes), NMC_ERR_TOO_SMALL);

  promise("a_key_on_disk_is_taken");
  GIVES(put(store, "key", "other"), NMC_ERR_EXISTS);
  nmc_write_plan_t plan{};
  GIVES(nmc_store_open_for_write(store, key, 8, nullptr, &plan), NMC_ERR_EXISTS);
  CHECK(get(store, "key") == value_of(1, 5000));

  promise("going_through_the_objects_comes_to_those_in_memory_after_those_on_disk");
  OK(put(store, "in memory", "value"));
  std::vector<std::string> seen;
  uint64_t cursor = 0, size = 0;
  for (;;) {
    char buffer[1024];
    size_t len = 0;
    const nmc_status_t status = nmc_store_next(store, &cursor, buffer, sizeof buffer, &len, &size);
    if (status == NMC_ERR_NOT_FOUND) break;
    REQUIRE(OK(status));
    seen.emplace_back(buffer, len);
    CHECK(size == (seen.back() == "in memory" ? 5 : 5000));
  }
  REQUIRE(seen.size() == 3);
  CHECK(seen[2] == "in memory");
  std::sort(seen.begin(), seen.end());
  CHECK(seen == (std::vector<std::string>{"in memory", "key", "plain"}));
}

void removals() {
  Embedded store(kRoom);
  TierDir dir;
  OpenTier tier(store, dir.path);
  const auto fill = [&](const std::string& prefix, int n) {
    for (int i = 0; i < n; ++i) OK(put(store, prefix + std::to_string(i), value_of(static_cast<uint64_t>(i), 5000)));
    OK(nmc_tier_offload(tier, nullptr, 0, nullptr));
  };
  promise("a_removed_key_is_gone_from_memory_and_disk");
  fill("a", 4);
  OK(nmc_store_remove(store, slice_of("a0")));  // in both
  evict(store);
  CHECK(get(store, "a0") == "<NMC_ERR_NOT_FOUND>" && state_of(store, "a0") == NMC_OBJECT_ABSENT);
  OK(nmc_store_remove(store, slice_of("a1")));  // on disk only
  CHECK(get(store, "a1") == "<NMC_ERR_NOT_FOUND>");
  GIVES(nmc_store_remove(store, slice_of("a1")), NMC_ERR_NOT_FOUND);
  CHECK(get(store, "a2") == value_of(2, 5000) && tier_stats(tier).objects == 2);

  promise("its_key_can_be_used_again");
  OK(put(store, "a1", "another"));
  CHECK(get(store, "a1") == "another");
  CHECK(offload(tier) == 1);
  evict(store);
  CHECK(get(store, "a1") == "another");

  promise("a_batch_of_removals_tells_of_each_item");
  const nmc_slice_t keys[] = {slice_of("a1"), slice_of("a0"), slice_of("a2")};
  nmc_status_t items[3] = {77, 77, 77};
  GIVES(nmc_store_remove_batch(store, keys, 3, items), NMC_ERR_NOT_FOUND);
  CHECK(items[0] == NMC_OK && items[1] == NMC_ERR_NOT_FOUND && items[2] == NMC_OK);
  CHECK(get(store, "a1") == "<NMC_ERR_NOT_FOUND>" && get(store, "a2") == "<NMC_ERR_NOT_FOUND>");

  promise("a_prefix_is_removed_in_memory_and_on_disk");
  fill("b/", 10);
  fill("c/", 3);
  evict(store);
  OK(put(store, "b/in memory", "value"));
  uint64_t removed = 77;
  OK(nmc_store_remove_by_prefix(store, slice_of("b/"), &removed));
  CHECK(removed == 11);
  for (int i = 0; i < 10; ++i) CHECK(state_of(store, "b/" + std::to_string(i)) == NMC_OBJECT_ABSENT);
  CHECK(get(store, "c/2") == value_of(2, 5000));

  promise("a_flush_forgets_what_is_on_disk_too");
  OK(put(store, "in memory", "value"));
  OK(nmc_store_remove_all(store));
  for (const char* key : {"c/0", "a3", "in memory"}) CHECK(get(store, key) == "<NMC_ERR_NOT_FOUND>");
  CHECK(scanned(tier).empty());
  OK(put(store, "c/0", "after the flush"));
  CHECK(offload(tier) == 1);
  evict(store);
  CHECK(get(store, "c/0") == "after the flush");
}

void replacements() {
  Embedded store(kRoom);
  TierDir dir;
  OpenTier tier(store, dir.path);
  nmc_put_options_t replace = NMC_PUT_OPTIONS_INIT;
  replace.flags = NMC_PUT_REPLACE;
  promise("a_replacement_ends_the_copy_on_disk");
  for (int round = 0; round < 4; ++round) {
    const uint64_t old = static_cast<uint64_t>(2 * round), next = old + 1;
    OK(put(store, "key", value_of(old, 5000), &replace));
    CHECK(offload(tier) == 1);
    if (round % 2 == 0) evict(store);  // on disk only, or in both
    OK(put(store, "key", value_of(next, 7000), &replace));
    CHECK(get(store, "key") == value_of(next, 7000) && tier_stats(tier).objects == 0);
    CHECK(offload(tier) == 1);
    evict(store);
    CHECK(get(store, "key") == value_of(next, 7000) && tier_stats(tier).objects == 1);
  }
  promise("readers_see_the_old_value_on_disk_until_the_new_one_is_committed");
  const std::string old = value_of(7, 7000);
  nmc_write_plan_t plan{};
  OK(nmc_store_open_for_write(store, slice_of("key"), 4096, &replace, &plan));
  memset(plan.payload, 'n', 4096);
  CHECK(get(store, "key") == old);
  OK(nmc_store_commit(store, &plan));
  CHECK(get(store, "key") == std::string(4096, 'n'));

  promise("a_replacement_that_is_given_up_leaves_the_copy_on_disk");
  CHECK(offload(tier) == 1);
  evict(store);
  OK(nmc_store_open_for_write(store, slice_of("key"), 8, &replace, &plan));
  OK(nmc_store_abort(store, &plan));
  CHECK(get(store, "key") == std::string(4096, 'n'));

  promise("many_lives_of_a_key_leave_one_value");
  for (uint64_t life = 0; life < 100; ++life) {
    OK(put(store, "key", value_of(life, 100 + life), &replace));
    if (life % 3 == 0) OK(nmc_tier_offload(tier, nullptr, 0, nullptr));
    if (life % 7 == 0) evict(store);
    const std::string found = get(store, "key");
    CHECK(found == value_of(life, 100 + life) || (found == "<NMC_ERR_NOT_FOUND>" && life % 3 != 0 && life % 7 == 0));
  }
}

void namespaces() {
  promise("a_key_of_one_namespace_is_not_that_of_another_on_disk_either");
  Embedded store(kRoom);
  TierDir dir;
  OpenTier tier(store, dir.path);
  nmc_store_t *left = nullptr, *right = nullptr;
  REQUIRE(OK(nmc_store_namespace(store, slice_of("left"), 0, &left)));
  REQUIRE(OK(nmc_store_namespace(store, slice_of("right"), 0, &right)));
  OK(put(store, "key", "of none"));
  OK(put(left, "key", "of the left"));
  OK(put(right, "key", "of the right"));
  CHECK(offload(tier) == 3);
  evict(store);
  CHECK(get(store, "key") == "of none" && get(left, "key") == "of the left" && get(right, "key") == "of the right");
  const std::map<std::string, uint64_t> all = {{"/key", 7}, {"left/key", 11}, {"right/key", 12}};
  CHECK(scanned(tier) == all);

  promise("a_flush_of_one_leaves_the_other");
  OK(nmc_store_remove_all(left));
  CHECK(get(left, "key") == "<NMC_ERR_NOT_FOUND>" && get(right, "key") == "of the right" && get(store, "key") == "of none");
  OK(nmc_store_destroy(left));
  OK(nmc_store_destroy(right));
}

void pressure() {
  promise("a_working_set_larger_than_memory_is_all_there");
  Embedded store({1024});  // 4 MiB
  TierDir dir;
  nmc_tier_config_t config = tier_config(dir.path);
  config.bucket_bytes = 1 << 20;
  OpenTier tier(store, config);
  const uint64_t kValues = under_tool_named("valgrind") ? 200 : 600;  // three times what memory holds is enough there
  constexpr size_t kBytes = 60001;
  for (uint64_t i = 0; i < kValues; ++i) {
    OK(put(store, std::to_string(i), value_of(i, kBytes)));
    if (i % 8 == 7) OK(nmc_tier_offload(tier, nullptr, 0, nullptr));
  }
  OK(nmc_tier_offload(tier, nullptr, 0, nullptr));
  for (uint64_t i = 0; i < kValues; ++i) CHECK(get(store, std::to_string(i)) == value_of(i, kBytes));
  const nmc_tier_stats_t stats = tier_stats(tier);
  CHECK(stats.objects == kValues && stats.evicted_dirty == 0 && stats.evicted_clean > 0 && stats.written_buckets > 10);

  promise("without_a_tier_that_writes_what_memory_evicts_is_gone_and_counted");
  OK(put(store, "late", value_of(1, kBytes)));
  evict(store);
  CHECK(get(store, "late") == "<NMC_ERR_NOT_FOUND>" && tier_stats(tier).evicted_dirty == 1);

  promise("a_tier_that_is_not_paused_writes_by_itself");
  tier.close();
  config.flags = 0;
  config.heartbeat_ms = 5;
  OpenTier running(store, config);
  const uint64_t before = tier_stats(running).written_objects;
  const double deadline = seconds_now() + 60;
  for (uint64_t i = 0; tier_stats(running).written_objects < before + 20 && seconds_now() < deadline; ++i) {
    OK(put(store, "more " + std::to_string(i), value_of(i, kBytes)));
    sleep_ms(1);
  }
  CHECK(tier_stats(running).written_objects >= before + 20);
}

// --------------------------------------------------------------------------------------------------------- restarts --

constexpr int kKeys = 40;

// What the first process leaves: in three namespaces, some removed, replaced or flushed, some never written to disk.
void leave_behind(const std::string& path, const char* how) {
  Embedded store(kRoom);
  nmc_tier_config_t config = tier_config(path);
  config.bucket_keys = 7;
  OpenTier tier(store, config);
  nmc_store_t *first = nullptr, *second = nullptr;
  REQUIRE(OK(nmc_store_namespace(store, slice_of("first"), 0, &first)));
  REQUIRE(OK(nmc_store_namespace(store, slice_of("second"), 0, &second)));
  nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
  options.flags = NMC_PUT_REPLACE;
  options.metadata = slice_of("kept");
  put_sizes(store);
  for (int i = 0; i < kKeys; ++i) {
    OK(put(first, std::to_string(i), value_of(static_cast<uint64_t>(i), 3000), &options));
    OK(put(second, std::to_string(i), value_of(static_cast<uint64_t>(i + 1000), 3000)));
  }
  OK(put(second, "before the flush", "value"));
  OK(nmc_tier_offload(tier, nullptr, 0, nullptr));
  OK(nmc_store_remove_all(second));
  OK(put(second, "after the flush", "value"));
  for (int i = 0; i < kKeys; i += 4) OK(nmc_store_remove(first, bytes_of(std::to_string(i))));
  for (int i = 1; i < kKeys; i += 4) OK(put(first, std::to_string(i), "replaced", &options));
  OK(nmc_tier_offload(tier, nullptr, 0, nullptr));
  OK(put(first, "never written", "value"));
  if (strcmp(how, "killed") == 0) {
    fflush(stdout);
    kill(getpid(), SIGKILL);
  }
  OK(nmc_store_destroy(first));
  OK(nmc_store_destroy(second));
}

// What the second one finds, and leaves to the third.
void find_again(const std::string& path) {
  Embedded store(kRoom);
  nmc_store_t *first = nullptr, *second = nullptr;
  REQUIRE(OK(nmc_store_namespace(store, slice_of("another one"), 0, &second)));
  OK(nmc_store_destroy(second));
  REQUIRE(OK(nmc_store_namespace(store, slice_of("second"), 0, &second)));  // in another order than before
  OpenTier tier(store, path);
  REQUIRE(OK(nmc_store_namespace(store, slice_of("first"), 0, &first)));  // and one when the tier is open
  for (size_t size : kSizes) CHECK(get(store, name_of(size)) == value_of(size, size));
  for (int i = 0; i < kKeys; ++i) {
    const std::string key = std::to_string(i), found = get(first, key);
    CHECK(found == (i % 4 == 0   ? "<NMC_ERR_NOT_FOUND>"
                    : i % 4 == 1 ? "replaced"
                                 : value_of(static_cast<uint64_t>(i), 3000)));
    CHECK(get(second, key) == "<NMC_ERR_NOT_FOUND>");
    if (i % 4 == 0) continue;
    char text[8];
    size_t bytes = 0;
    OK(nmc_store_get_metadata(first, bytes_of(key), text, sizeof text, &bytes));
    CHECK(std::string_view(text, bytes) == "kept");
  }
  CHECK(get(second, "before the flush") == "<NMC_ERR_NOT_FOUND>" && get(second, "after the flush") == "value");
  CHECK(get(first, "never written") == "<NMC_ERR_NOT_FOUND>");
  const uint64_t alive = kSizes.size() + kKeys / 4 * 3 + 1;
  CHECK(tier_stats(tier).recovered_objects == alive && scanned(tier).size() == alive && verified(tier).objects == alive);

  promise("the_next_process_goes_on_where_the_last_one_was");
  GIVES(put(first, "2", "other"), NMC_ERR_EXISTS);
  nmc_put_options_t replace = NMC_PUT_OPTIONS_INIT;
  replace.flags = NMC_PUT_REPLACE;
  replace.metadata = slice_of("kept");
  OK(put(first, "2", value_of(7, 100), &replace));
  CHECK(get(first, "2") == value_of(7, 100));
  OK(nmc_tier_offload(tier, nullptr, 0, nullptr));
  evict(store);
  CHECK(get(first, "2") == value_of(7, 100) && tier_stats(tier).objects == alive);
  OK(put(first, "2", value_of(2, 3000), &replace));  // as it was
  OK(nmc_tier_offload(tier, nullptr, 0, nullptr));
  OK(nmc_store_destroy(first));
  OK(nmc_store_destroy(second));
}

// This program again, with two words; whether it ended by SIGKILL, or well.
bool run_again(const char* self, const char* what, const std::string& path, bool killed) {
  std::string words[] = {self, what, path};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t child = -1;
  fflush(stdout);
  // By its name: under valgrind /proc/self/exe is valgrind.
  if (posix_spawn(&child, self, nullptr, nullptr, arguments, environ) != 0) return false;
  int status = -1;
  if (waitpid(child, &status, 0) != child) return false;
  if (killed) return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void restarts(const char* self) {
  for (const char* how : {"closed", "killed"}) {
    printf("%s\n", how);
    promise("another_process_finds_everything_and_nothing_that_was_removed");
    TierDir dir;
    REQUIRE(run_again(self, how, dir.path, strcmp(how, "killed") == 0));
    for (int round = 0; round < 3; ++round) CHECK(run_again(self, "find", dir.path, false));
  }
  promise("the_same_process_finds_it_too");
  TierDir dir;
  leave_behind(dir.path, "closed");
  find_again(dir.path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    if (strcmp(argv[1], "find") == 0) find_again(argv[2]);
    else leave_behind(argv[2], argv[1]);
    return finish();
  }
  whole_values(0, 0);
  whole_values(NMC_STORE_CHECKSUMS, NMC_TIER_NO_URING);
  whole_values(0, NMC_TIER_NO_DIRECT);
  parts();
  batches();
  on_disk_only();
  removals();
  replacements();
  namespaces();
  pressure();
  restarts(argv[0]);
  return finish();
}
