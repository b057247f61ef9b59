// The C++ headers with exceptions: both forms, and what the throwing one adds.
#include "wrapper_cases.hpp"

namespace {

void throwing() {
  promise("a_throwing_call_gives_the_value_itself");
  const std::vector<nmc::World> worlds = nmc::World::create_local(wrapper_config(2));
  worlds[0].heap<uint64_t>(1, 0, 8)[3] = 7;
  CHECK(worlds[1].heap<const uint64_t>(1, 0, 8)[3] == 7 && *static_cast<uint64_t*>(worlds[0].ptr(1, 24, 8)) == 7);
  CHECK(worlds[0].locate(worlds[0].ptr(1, 24, 8))->offset == 24);
  static_assert(std::is_void_v<decltype(worlds[0].barrier())>, "nothing to look at");

  promise("an_error_is_a_standard_exception");
  try {
    (void)nmc::World().info();
    CHECK(!"it should have thrown");
  } catch (const std::exception& error) {
    CHECK(std::string(error.what()).find("NMC_ERR_BAD_HANDLE: ") == 0);
  }

  promise("value_of_a_failed_result_throws_what_the_result_carries");
  const nmc::nothrow::World none;
  CHECK(STATUS(none.alive(0).value()) == NMC_ERR_BAD_HANDLE);
  CHECK(STATUS(none.info()->rank) == NMC_ERR_BAD_HANDLE);

  promise("what_a_log_callback_throws_ends_there");
  int thrown = 0;
  nmc::Log::set([&](nmc::LogLevel, std::string_view) { throw ++thrown; }, nmc::LogLevel::debug);
  log_something();
  nmc::Log::clear();
  CHECK(thrown > 0);
}

}  // namespace

int main() {
  values();
  wrapper_cases<nmc::Throwing>("nmc");
  wrapper_cases<nmc::Returning>("nmc::nothrow");
  throwing();
  return finish();
}
