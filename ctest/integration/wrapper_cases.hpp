// What nanomc.hpp offers with and without exceptions: every function once, through the try_ forms.
#ifndef NMC_CTEST_WRAPPER_CASES_HPP
#define NMC_CTEST_WRAPPER_CASES_HPP

#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
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

inline void joined_worlds() {
  promise("joined_worlds_and_masters");
  TempDir dir;
  {
    nmc::Master master = nmc::Master::try_start(wrapper_config(2).dir(dir.path)).value();
    CHECK(nmc::Master::try_start(wrapper_config(2).dir(dir.path)).status() == NMC_ERR_EXISTS);
    std::vector<nmc::World> pair =
        nmc::World::try_join_ranks(wrapper_config(2).dir(dir.path).external_master(), {1, 0}).value();
    CHECK(pair[0].try_info().value().rank == 1 && pair[1].try_info().value().rank == 0);
    CHECK(pair[0].try_destroy().ok() && master.try_destroy().ok() && !master);
  }
  nmc::World single = nmc::World::try_join(wrapper_config(1).dir(dir.path).rank(0)).value();
  CHECK(single.try_info().value().master_up);
}

inline void try_forms() {
  promise("versions_and_names");
  CHECK(std::string(nmc::version()) == NMC_VERSION_STRING && nmc::library_matches_header());
  CHECK(nmc::abi_version() == NMC_ABI_VERSION && nmc::layout_version() == NMC_LAYOUT_VERSION);
  CHECK(std::string(nmc::status_name(NMC_ERR_BUSY)) == "NMC_ERR_BUSY");
  CHECK(std::string(nmc::name(nmc::RankState::dying)) == "dying");

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

  promise("a_failure_carries_status_and_message");
  nmc::Result<nmc::World> failed = nmc::World::try_join(nmc::WorldConfig("bad name"));
  CHECK(!failed && !failed.ok() && failed.status() == NMC_ERR_INVALID_ARG);
  CHECK(failed.message().find("bad name") != std::string::npos);
  CHECK(!std::move(failed).value_or(nmc::World()));
  CHECK(nmc::World::try_join_ranks(wrapper_config(2), {}).status() == NMC_ERR_INVALID_ARG);
  CHECK(nmc::World::try_create_local(nmc::WorldConfig()).status() == NMC_ERR_INVALID_ARG);
  CHECK(nmc::World::try_create_local(wrapper_config(NMC_MAX_RANKS + 1)).status() == NMC_ERR_INVALID_ARG);
  CHECK(nmc::Master::try_start(nmc::WorldConfig()).status() == NMC_ERR_INVALID_ARG);

  promise("a_local_world_through_every_call");
  std::vector<nmc::World> worlds = nmc::World::try_create_local(wrapper_config(3)).value();
  REQUIRE(worlds.size() == 3);
  nmc::World& world = worlds[0];
  CHECK(world && world.get() != nullptr);
  const nmc::WorldInfo info = world.try_info().value();
  CHECK(info.rank == 0 && info.world_size == 3 && info.heap_bytes == 1 << 16 && info.words_per_rank == 16);
  CHECK(info.heap_kind == nmc::HeapKind::host && !info.huge_pages && info.master_up && info.world_id != 0);
  const nmc::RankInfo about = world.try_rank_info(2).value();
  CHECK(about.state == nmc::RankState::alive && about.generation == 1 && about.device == -1 && about.device_rank == 2);
  CHECK(about.pid == static_cast<uint32_t>(getpid()) && about.heap_base == world.try_ptr(2, 0, 1).value());
  CHECK(world.try_alive(1).value() == nmc::RankState::alive && world.try_alive(3).status() == NMC_ERR_INVALID_ARG);
  CHECK(world.try_event_fd().value() >= 0);
  CHECK(world.try_rank_of_device_rank(1).value() == 1);
  CHECK(world.try_write_word_async(0, 0, 1, nullptr).status() == NMC_ERR_UNSUPPORTED);
  const nmc::BaseTable table = world.try_base_table().value();
  CHECK(table.host.size() == 3 && table.device == nullptr);
  CHECK(table.host[2] == reinterpret_cast<uint64_t>(about.heap_base));
  CHECK(world.try_async_error().value().status == NMC_OK && world.try_async_error().value().message.empty());
  const std::string dump = world.try_dump().value();
  CHECK(dump.find("rank 2") != std::string::npos && dump.find('\0') == std::string::npos);

  promise("typed_views_of_heaps_are_checked");
  nmc::view<Plain> plain = world.try_heap<Plain>(1, 64, 100).value();
  for (size_t i = 0; i < plain.size(); ++i) plain[i] = {static_cast<uint32_t>(i), i * i};
  uint64_t sum = 0;
  for (const Plain& p : worlds[1].try_heap<const Plain>(1, 64, 100).value()) sum += p.b;
  CHECK(sum == 328350);
  CHECK(world.try_heap<Plain>(1, 1, 1).status() == NMC_ERR_INVALID_ARG);  // not aligned
  CHECK(world.try_heap<Plain>(1, 0, SIZE_MAX).status() == NMC_ERR_INVALID_ARG);
  CHECK(world.try_heap<Plain>(1, 0, SIZE_MAX / sizeof(Plain)).status() == NMC_ERR_INVALID_ARG);
  CHECK(world.try_heap(1, 0, (1 << 16) + 1).status() == NMC_ERR_INVALID_ARG);
  const nmc::bytes_view bytes = world.try_heap(1, 0, 1 << 16).value();
  CHECK(bytes.size_bytes() == 1 << 16 && !bytes.empty() && bytes.subview(10, 5).size() == 5);
  CHECK(bytes.subview(65530, 100).size() == 6 && bytes.subview(70000).empty());
  CHECK(nmc::as_bytes(plain).size() == 1600 && nmc::as_writable_bytes(plain).data() == bytes.data() + 64);
  const nmc::const_bytes_view constant = bytes;
  CHECK(constant.begin() == bytes.begin() && constant.end() == bytes.end() && nmc::bytes_view().empty());
  const nmc::Location at = world.try_locate(&plain[1]).value();
  CHECK(at.rank == 1 && at.offset == 64 + sizeof(Plain));
  CHECK(world.try_locate(&at).status() == NMC_ERR_NOT_FOUND);

  promise("words_publish");
  const nmc::Word word = world.try_word(2, 15).value();
  CHECK(word.device() == nullptr && word.host() != nullptr && world.try_word(2, 16).status() == NMC_ERR_INVALID_ARG);
  word.store_release(42);
  CHECK(worlds[2].try_word(2, 15).value().load_acquire() == 42);

  promise("barrier_and_self_test");
  CHECK(world.try_barrier(std::chrono::milliseconds(0)).status() == NMC_ERR_TIMEOUT);
  std::vector<std::thread> threads;
  for (nmc::World& each : worlds) {
    threads.emplace_back([&each] {
      CHECK(each.try_barrier().ok() && each.try_selftest(1, std::chrono::seconds(30)));
    });
  }
  for (std::thread& thread : threads) thread.join();

  promise("a_handle_has_one_owner");
  nmc::World moved = std::move(worlds[2]);
  CHECK(!worlds[2] && moved && worlds[2].try_info().status() == NMC_ERR_BAD_HANDLE);
  nmc_world_t* raw = moved.release();
  CHECK(!moved && moved.get() == nullptr);
  moved = nmc::World(raw);
  moved = nmc::World();  // destroys what it held
  GIVES(nmc_world_destroy(raw), NMC_ERR_BAD_HANDLE);
  raw = worlds[1].get();
  CHECK(worlds[1].try_finalize().ok() && world.try_alive(1).value() == nmc::RankState::left);
  CHECK(worlds[1].try_destroy().ok() && !worlds[1]);
  CHECK(worlds[1].try_destroy().ok());
  CHECK(world.try_abort().ok());
  CHECK(world.try_barrier().status() == NMC_ERR_CANCELLED);

  if (can_join()) joined_worlds();

  promise("logging");
  int lines = 0;
  const nmc_log_fn count = [](int32_t, const char*, void* user) { ++*static_cast<int*>(user); };
  CHECK(nmc::try_set_log_callback(count, nmc::LogLevel::debug, &lines).ok());
  CHECK(nmc::World::try_create_local(wrapper_config(2)).ok() && lines > 0);
  CHECK(nmc::try_clear_log_callback().ok());
}

#endif
