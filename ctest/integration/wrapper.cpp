// nanomc.hpp with exceptions.
#include "wrapper_cases.hpp"

namespace {

template <class Body>
void throws(nmc_status_t want, Body body) {
  try {
    body();
    CHECK(!"it should have thrown");
  } catch (const nmc::Error& error) {
    GIVES(error.status(), want);
    const std::string what = error.what();
    CHECK(!error.message().empty() && what == std::string(nmc_status_name(want)) + ": " + error.message());
    const std::exception& base = error;
    CHECK(what == base.what());
  }
}

void throwing_forms() {
  promise("the_throwing_forms_return_values");
  TempDir dir;
  {
    auto worlds = nmc::World::create_local(wrapper_config(2));
    nmc::World& world = worlds[0];
    world.heap<uint64_t>(1, 0, 8)[3] = 7;
    CHECK(worlds[1].heap<const uint64_t>(1, 0, 8)[3] == 7 && *static_cast<uint64_t*>(world.ptr(1, 24, 8)) == 7);
    CHECK(world.heap(1, 24, 1)[0] == std::byte{7});
    world.word(0, 0).store_release(9);
    CHECK(worlds[1].word(0, 0).load_acquire() == 9 && world.locate(world.ptr(1, 24, 8)).offset == 24);
    CHECK(world.info().world_size == 2 && world.rank_info(1).state == nmc::RankState::alive);
    CHECK(world.alive(0) == nmc::RankState::alive && world.event_fd() >= 0 && world.rank_of_device_rank(1) == 1);
    CHECK(world.base_table().host.size() == 2 && world.async_error().status == NMC_OK && !world.dump().empty());
    std::thread other([&] { worlds[1].barrier(), worlds[1].selftest(3); });
    world.barrier(std::chrono::seconds(30));
    world.selftest(3, std::chrono::seconds(30));
    other.join();
    worlds[1].finalize();
    worlds[1].destroy();
    world.abort();
    auto master = nmc::Master::start(wrapper_config(1).dir(dir.path));
    if (can_join()) {
      auto joined = nmc::World::join(wrapper_config(1).dir(dir.path).external_master());
      CHECK(joined.info().master_up);
      joined.destroy();
      CHECK(nmc::World::join_ranks(wrapper_config(1).dir(dir.path).external_master(), {0}).size() == 1);
    }
    master.destroy();
    nmc::set_log_callback([](int32_t, const char*, void*) {}, nmc::LogLevel::warn);
    nmc::clear_log_callback();
  }
  promise("the_throwing_forms_throw_the_status");
  const nmc::World none;
  throws(NMC_ERR_BAD_HANDLE, [&] { none.info(); });
  throws(NMC_ERR_BAD_HANDLE, [&] { none.barrier(); });
  throws(NMC_ERR_BAD_HANDLE, [&] { none.dump(); });
  throws(NMC_ERR_BAD_HANDLE, [&] { none.write_word_async(0, 0, 0, nullptr); });
  throws(NMC_ERR_INVALID_ARG, [] { nmc::World::join(nmc::WorldConfig()); });
  throws(NMC_ERR_INVALID_ARG, [] { nmc::World::create_local(nmc::WorldConfig()); });
  throws(NMC_ERR_INVALID_ARG, [] { nmc::Master::start(nmc::WorldConfig()); });
  throws(NMC_ERR_TIMEOUT, [&] {
    nmc::World::join(wrapper_config(2).dir(dir.path).rank(1).join_timeout(std::chrono::milliseconds(20)));
  });
  promise("value_of_a_failed_result_throws_what_the_result_carries");
  throws(NMC_ERR_BAD_HANDLE, [&] { (void)none.try_alive(0).value(); });
  throws(NMC_ERR_BAD_HANDLE, [&] { auto failed = none.try_info(); (void)failed->rank; });
}

}  // namespace

int main() {
  try_forms();
  throwing_forms();
  return finish();
}
