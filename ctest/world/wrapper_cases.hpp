// What the C++ headers promise in both forms: every call of worlds, masters and the log, from one body for both.
#ifndef NMC_CTEST_WRAPPER_CASES_HPP
#define NMC_CTEST_WRAPPER_CASES_HPP

#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../support/check.h"
#include "../support/forms.hpp"
#include "nanomc.hpp"

struct TempDir {
  char path[32] = "/tmp/nmc-wrapper-XXXXXX";
  TempDir() { REQUIRE(mkdtemp(path) != nullptr); }
  ~TempDir() { CHECK(rmdir(path) == 0); }  // fails if the library left something
};

inline nmc::WorldConfig wrapper_config(uint32_t ranks) {
  return nmc::WorldConfig("wrapper").world_size(ranks).heap_bytes(1 << 16).words_per_rank(16);
}

struct Plain {
  uint32_t a;
  uint64_t b;
};

// ---- cases ------------------------------------------------------------------------------------------------------------

inline void values() {
  promise("versions_and_names");
  CHECK(std::string(nmc::version()) == NMC_VERSION_STRING && nmc::library_matches_header());
  CHECK(nmc::abi_version() == NMC_ABI_VERSION && nmc::layout_version() == NMC_LAYOUT_VERSION);
  CHECK(std::string(nmc::status_name(NMC_ERR_BUSY)) == "NMC_ERR_BUSY");
  CHECK(std::string(nmc::name(nmc::RankState::dying)) == "dying");
  CHECK(std::string(nmc::name(nmc::LogLevel::warn)) == "warn");

  promise("a_config_owns_its_strings_and_can_be_copied");
  nmc::WorldConfig config;
  {
    std::string name = "a name that is long enough to be on the heap";
    config.name(name).dir(name).rank(3).device(-1).device_rank(2).service_cpu(1).join_timeout(std::chrono::seconds(2));
    config.drain(std::chrono::milliseconds(7)).huge_pages().external_master().heap_kind(nmc::HeapKind::cuda);
  }
  const nmc::WorldConfig copy = config;
  const nmc_world_config_t c = copy.c();
  CHECK(c.name.len == 44 && memcmp(c.name.ptr, "a name", 6) == 0 && c.name.ptr != config.c().name.ptr);
  CHECK(c.struct_size == sizeof c && c.abi_version == NMC_ABI_VERSION && c.rank == 3 && c.device_rank == 2);
  CHECK(c.join_timeout_ms == 2000 && c.drain_ms == 7 && c.heap_flags == NMC_HEAP_HUGE_PAGES && c.service_cpu == 1);
  CHECK(c.master == NMC_MASTER_EXTERNAL && c.heap_kind == NMC_HEAP_CUDA && c.device == -1);
  config.drain(std::chrono::hours(24 * 365));
  CHECK(config.c().drain_ms == INT32_MAX);  // refused, not wrapped to something else
  int lent = 0;
  CHECK(config.lend_host_ptr(&lent).c().heap_import.ptr == &lent);
  CHECK(config.lend_host_fd(5).c().heap_import.fd == 5);
  CHECK(config.lend_cuda_fd(6).c().heap_import.kind == NMC_IMPORT_CUDA_FD);
  CHECK(config.lend_cuda_ptr(&lent).c().heap_import.kind == NMC_IMPORT_CUDA_PTR);
  std::vector<uint64_t> all(4);
  CHECK(config.lend_host_ptr(all).c().heap_import.ptr == all.data() && config.c().heap_bytes == 32);
  CHECK(config.lend_cuda_ptr(nmc::span<uint64_t>(all.data(), 2)).c().heap_import.kind == NMC_IMPORT_CUDA_PTR && config.c().heap_bytes == 16);

  promise("a_span_takes_whatever_lies_in_one_piece");
  const auto sum = [](nmc::span<const int32_t> numbers) {
    int32_t all = 0;
    for (int32_t number : numbers) all += number;
    return all;
  };
  std::vector<int32_t> vector{1, 2, 3};
  const std::array<int32_t, 2> array{4, 5};
  int32_t plain[] = {6, 7};
  CHECK(sum(vector) == 6 && sum(array) == 9 && sum(plain) == 13 && sum({vector.data(), 2}) == 3 && sum({}) == 0);
  CHECK(sum(std::vector<int32_t>{8, 9}) == 17);
  const nmc::span<int32_t> writable = vector;
  writable.back() = 30;
  CHECK(sum(writable) == 33 && writable.front() == 1 && writable[1] == 2 && !writable.empty());
  CHECK(sum(writable.first(2)) == 3 && sum(writable.last(2)) == 32 && sum(writable.subspan(1)) == 32);
  CHECK(sum(writable.subspan(1, 1)) == 2 && writable.subspan(3).empty() && writable.size_bytes() == 12);
  CHECK(nmc::as_bytes(writable).size() == 12 && nmc::as_writable_bytes(writable).data() == nmc::as_bytes(writable).data());
  static_assert(!std::is_convertible_v<const std::vector<int32_t>&, nmc::span<int32_t>>, "const stays const");
  static_assert(!std::is_convertible_v<std::vector<int32_t>, nmc::span<int32_t>>, "nobody would see what is written");
  static_assert(!std::is_convertible_v<std::vector<int64_t>&, nmc::span<const int32_t>>, "another type");

  promise("a_result_is_made_from_what_its_value_is_made_from");
  const auto found = [](int number) -> nmc::Result<std::optional<std::string>> {
    if (number < 0) return nmc::Failure{NMC_ERR_LIMIT, "negative"};
    if (number == 0) return std::nullopt;
    if (number == 1) return "text";
    return nmc::Result<std::string>(std::string("of another call"));
  };
  CHECK(!found(-1).ok() && found(-1).status() == NMC_ERR_LIMIT && found(-1).message() == "negative");
  CHECK(found(0).ok() && !found(0).value() && found(1)->value() == "text" && **found(2) == "of another call");
  CHECK(found(-1).value_or("other") == "other");
}

template <class Mode>
void joined_worlds() {
  using World = nmc::BasicWorld<Mode>;
  using Master = nmc::BasicMaster<Mode>;
  promise("joined_worlds_and_masters");
  TempDir dir;
  const nmc::WorldConfig config = wrapper_config(2).dir(dir.path);
  {
    Master master = value_of(Master::start(config));
    CHECK(STATUS(Master::start(config)) == NMC_ERR_EXISTS);
    std::vector<World> pair = value_of(World::join_ranks(nmc::WorldConfig(config).external_master(), {1, 0}));
    CHECK(value_of(pair[0].info()).rank == 1 && value_of(pair[1].info()).rank == 0);
    CHECK(STATUS(pair[0].destroy()) == NMC_OK && STATUS(master.destroy()) == NMC_OK && !master);
  }
  CHECK(STATUS(World::join(nmc::WorldConfig(config).rank(1).join_timeout(std::chrono::milliseconds(20)))) ==
        NMC_ERR_TIMEOUT);
  World single = value_of(World::join(wrapper_config(1).dir(dir.path).rank(0)));
  CHECK(value_of(single.info()).master_up);
}

template <class Mode>
void local_worlds() {
  using World = nmc::BasicWorld<Mode>;
  promise("a_failure_carries_status_and_message");
  const World none;
  CHECK(STATUS(World::join(nmc::WorldConfig("bad name"))) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(World::join_ranks(wrapper_config(2), {})) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(World::create_local(nmc::WorldConfig())) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(World::create_local(wrapper_config(NMC_MAX_RANKS + 1))) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(nmc::BasicMaster<Mode>::start(nmc::WorldConfig())) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(none.info()) == NMC_ERR_BAD_HANDLE && STATUS(none.barrier()) == NMC_ERR_BAD_HANDLE);
  CHECK(STATUS(none.dump()) == NMC_ERR_BAD_HANDLE && STATUS(none.async_error()) == NMC_ERR_BAD_HANDLE);
  CHECK(STATUS(none.locate(&none)) == NMC_ERR_BAD_HANDLE);

  promise("a_local_world_through_every_call");
  std::vector<World> worlds = value_of(World::create_local(wrapper_config(3)));
  REQUIRE(worlds.size() == 3);
  World& world = worlds[0];
  CHECK(world && world.get() != nullptr);
  const nmc::WorldInfo info = value_of(world.info());
  CHECK(info.rank == 0 && info.world_size == 3 && info.heap_bytes == 1 << 16 && info.words_per_rank == 16);
  CHECK(info.heap_kind == nmc::HeapKind::host && !info.huge_pages && info.master_up && info.world_id != 0);
  const nmc::RankInfo about = value_of(world.rank_info(2));
  CHECK(about.state == nmc::RankState::alive && about.generation == 1 && about.device == -1 && about.device_rank == 2);
  CHECK(about.pid == static_cast<uint32_t>(getpid()) && about.heap_base == value_of(world.ptr(2, 0, 1)));
  CHECK(value_of(world.alive(1)) == nmc::RankState::alive && STATUS(world.alive(3)) == NMC_ERR_INVALID_ARG);
  CHECK(value_of(world.event_fd()) >= 0);
  CHECK(STATUS(world.write_word_async(0, 0, 1, nullptr)) == NMC_ERR_UNSUPPORTED);
  const nmc::BaseTable table = value_of(world.base_table());
  CHECK(table.host.size() == 3 && table.device == nullptr);
  CHECK(table.host[2] == reinterpret_cast<uint64_t>(about.heap_base));
  CHECK(value_of(world.async_error()).status == NMC_OK && value_of(world.async_error()).message.empty());
  const std::string dump = value_of(world.dump());
  CHECK(dump.find("rank 2") != std::string::npos && dump.find('\0') == std::string::npos);

  promise("typed_views_of_heaps_are_checked");
  nmc::span<Plain> plain = value_of(world.template heap<Plain>(1, 64, 100));
  for (size_t i = 0; i < plain.size(); ++i) plain[i] = {static_cast<uint32_t>(i), i * i};
  uint64_t sum = 0;
  const nmc::span<const Plain> seen = value_of(worlds[1].template heap<const Plain>(1, 64, 100));
  for (size_t i = 0; i < seen.size(); ++i) sum += seen[i].b;
  CHECK(sum == 328350);
  CHECK(STATUS(world.template heap<Plain>(1, 1, 1)) == NMC_ERR_INVALID_ARG);  // not aligned
  CHECK(STATUS(world.template heap<Plain>(1, 0, SIZE_MAX)) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(world.template heap<Plain>(1, 0, SIZE_MAX / sizeof(Plain))) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(world.heap(1, 0, (1 << 16) + 1)) == NMC_ERR_INVALID_ARG);
  const nmc::span<std::byte> bytes = value_of(world.heap(1, 0, 1 << 16));
  CHECK(bytes.size() == 1 << 16 && nmc::as_writable_bytes(plain).data() == bytes.data() + 64);

  promise("what_is_not_there_is_no_failure");
  const std::optional<nmc::Location> at = value_of(world.locate(&plain[1]));
  CHECK(at && at->rank == 1 && at->offset == 64 + sizeof(Plain));
  CHECK(!value_of(world.locate(&at)) && STATUS(world.locate(&at)) == NMC_OK);
  CHECK(value_of(world.rank_of_device_rank(1)) == 1);

  promise("words_publish");
  const nmc::Word word = value_of(world.word(2, 15));
  CHECK(word.device() == nullptr && word.host() != nullptr && STATUS(world.word(2, 16)) == NMC_ERR_INVALID_ARG);
  word.store_release(42);
  CHECK(value_of(worlds[2].word(2, 15)).load_acquire() == 42);

  promise("barrier_and_self_test");
  CHECK(STATUS(world.barrier(std::chrono::milliseconds(0))) == NMC_ERR_TIMEOUT);
  std::vector<std::thread> threads;
  for (World& each : worlds) {
    threads.emplace_back([&each] {
      CHECK(STATUS(each.barrier()) == NMC_OK && STATUS(each.selftest(1, std::chrono::seconds(30))) == NMC_OK);
    });
  }
  for (std::thread& thread : threads) thread.join();

  promise("one_call_with_a_result_leaves_the_handle_alone");
  const nmc::Result<nmc::WorldInfo> once = world.nothrow()->info();
  CHECK(once.ok() && once->world_size == 3 && world.nothrow()->alive(3).status() == NMC_ERR_INVALID_ARG);
  CHECK(world && STATUS(world.info()) == NMC_OK);

  promise("a_handle_has_one_owner");
  World moved = std::move(worlds[2]);
  CHECK(!worlds[2] && moved && STATUS(worlds[2].info()) == NMC_ERR_BAD_HANDLE);
  nmc::nothrow::World other = std::move(moved);  // in the other form, or the same
  CHECK(!moved && other.info().ok());
  moved = std::move(other);
  nmc_world_t* raw = moved.release();
  CHECK(!moved && moved.get() == nullptr);
  moved = World(raw);
  moved = World();  // destroys what it held
  GIVES(nmc_world_destroy(raw), NMC_ERR_BAD_HANDLE);
  CHECK(STATUS(worlds[1].finalize()) == NMC_OK && value_of(world.alive(1)) == nmc::RankState::left);
  CHECK(STATUS(worlds[1].destroy()) == NMC_OK && !worlds[1]);
  CHECK(STATUS(worlds[1].destroy()) == NMC_OK);
  CHECK(STATUS(world.abort()) == NMC_OK);
  CHECK(STATUS(world.barrier()) == NMC_ERR_CANCELLED);
}

/// Makes the library log something.
inline void log_something() { CHECK(nmc::nothrow::World::create_local(wrapper_config(2)).ok()); }

struct LogSlot {
  std::atomic<bool> alive{true};
};

/// Two threads set callbacks with `set`, and a third one logs: how often a callback was called that was gone.
template <class Set>
int called_late(Set set) {
  std::atomic<int> late{0};
  std::atomic<bool> over{false};
  std::array<std::array<LogSlot, 100>, 2> slots;
  std::vector<std::thread> threads;
  for (std::array<LogSlot, 100>& mine : slots) {
    threads.emplace_back([&] {
      for (LogSlot& slot : mine) set(&slot, [&slot, &late](nmc::LogLevel, std::string_view) { late += !slot.alive; });
    });
  }
  std::thread logs([&] {
    while (!over) log_something();
  });
  for (std::thread& thread : threads) thread.join();
  over = true;
  logs.join();
  CHECK(nmc::nothrow::Log::clear().ok());
  return late;
}

template <class Mode>
void logging() {
  using Log = nmc::BasicLog<Mode>;
  promise("a_log_callback_lives_as_long_as_it_is_set");
  auto lines = std::make_shared<std::atomic<int>>(0);
  const auto count = [lines](nmc::LogLevel level, std::string_view line) {
    CHECK(!line.empty() && level <= nmc::LogLevel::debug);
    ++*lines;
  };
  CHECK(STATUS(Log::set(count, nmc::LogLevel::debug)) == NMC_OK && lines.use_count() == 3);
  log_something();
  CHECK(*lines > 0);

  promise("a_log_callback_cannot_be_replaced_from_inside_one");
  std::atomic<int> inside{NMC_OK};
  CHECK(STATUS(Log::set([&](nmc::LogLevel, std::string_view) { inside = STATUS(Log::clear()); }, nmc::LogLevel::debug)) ==
        NMC_OK);
  CHECK(lines.use_count() == 2);  // the former is gone
  log_something();
  CHECK(inside == NMC_ERR_BUSY);
  inside = NMC_OK;
  log_something();
  CHECK(inside == NMC_ERR_BUSY);  // and was not lost when it failed

  promise("no_log_callback_is_called_after_it_is_gone");
  CHECK(called_late([](LogSlot* slot, nmc::LogCallback check) {
          const std::shared_ptr<LogSlot> owner(slot, [](LogSlot* gone) { gone->alive = false; });
          const auto callback = [owner, check](nmc::LogLevel level, std::string_view line) { check(level, line); };
          CHECK(STATUS(Log::set(callback, nmc::LogLevel::debug)) == NMC_OK);
        }) == 0);
  promise("no_log_callback_is_called_after_it_is_gone: control, it goes before it is replaced");
  std::mutex mutex;
  LogSlot* former = nullptr;
  CHECK(called_late([&](LogSlot* slot, nmc::LogCallback check) {
          const std::lock_guard<std::mutex> lock(mutex);
          if (former != nullptr) former->alive = false;
          log_something();
          CHECK(STATUS(Log::set(check, nmc::LogLevel::debug)) == NMC_OK);
          former = slot;
        }) > 0);

  promise("nothing_is_logged_and_kept_after_clear");
  CHECK(STATUS(Log::set(count, nmc::LogLevel::debug)) == NMC_OK);
  CHECK(STATUS(Log::clear()) == NMC_OK && lines.use_count() == 2);
  const int before = *lines;
  log_something();
  CHECK(*lines == before);
  CHECK(STATUS(Log::set(nullptr, nmc::LogLevel::debug)) == NMC_OK);
  log_something();
}

template <class Mode>
void wrapper_cases(const char* form) {
  std::printf("form %s\n", form);
  local_worlds<Mode>();
  if (can_join()) joined_worlds<Mode>();
  logging<Mode>();
}

#endif
