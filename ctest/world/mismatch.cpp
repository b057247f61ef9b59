// Ranks that do not fit together are refused with a message that names both values, and harm nobody.
#include "../support/puppet.hpp"

namespace {

struct Misfit {
  const char* promise;
  std::function<void(Setup&)> change;
  std::vector<const char*> statuses;  // any of them
  std::vector<const char*> words;     // all of them in the message
};

const std::vector<Misfit>& misfits() {
  static const std::vector<Misfit> all = {
      {"another_world_size", [](Setup& s) { s.size = 4; }, {"NMC_ERR_MISMATCH"}, {"world size", "3", "4"}},
      {"another_heap_size", [](Setup& s) { s.heap_bytes = 131072; }, {"NMC_ERR_MISMATCH"}, {"heap", "65536", "131072"}},
      {"another_number_of_words", [](Setup& s) { s.words = 32; }, {"NMC_ERR_MISMATCH"}, {"words", "64", "32"}},
      // Where there is no GPU it does not come that far.
      {"another_heap_kind",
       [](Setup& s) { s.heap_kind = NMC_HEAP_CUDA; },
       {"NMC_ERR_MISMATCH", "NMC_ERR_UNSUPPORTED"},
       {}},
      {"a_rank_that_is_taken", [](Setup& s) { s.rank = 0; }, {"NMC_ERR_EXISTS"}, {"rank 0"}},
      {"a_device_rank_that_is_taken", [](Setup& s) { s.device_rank = 2; }, {"NMC_ERR_EXISTS"}, {"device_rank 2"}},
  };
  return all;
}

void refused(const Place& place, const Misfit& misfit, pid_t holder_of_rank_0) {
  promise(misfit.promise);
  Setup setup;
  setup.rank = 1;
  misfit.change(setup);
  Process process = rank_process(place, setup);
  const std::string said = process.reply();
  printf("     %s\n", said.c_str());
  bool right = false;
  for (const char* status : misfit.statuses) right |= begins_with(said, status);
  CHECK(right);
  for (const char* word : misfit.words) CHECK(said.find(word) != std::string::npos);
  if (setup.rank == 0) CHECK(said.find(std::to_string(holder_of_rank_0)) != std::string::npos);
  CHECK(process.ends_well());
}

void default_device_rank() {
  promise("a_device_rank_collides_with_the_default_of_another_rank_too");
  Place place;
  Setup setup;
  setup.size = 2;
  setup.rank = 0;
  setup.timeout_ms = 3000;
  Process zero = rank_process(place, setup);  // device rank 0 by default
  setup.rank = 1;
  setup.device_rank = 0;
  Process one = rank_process(place, setup);
  const std::string said[2] = {zero.reply(), one.reply()};
  const bool refused_0 = begins_with(said[0], "NMC_ERR_EXISTS");
  SAYS(said[refused_0 ? 0 : 1], "NMC_ERR_EXISTS");
  CHECK(said[refused_0 ? 0 : 1].find("device_rank 0") != std::string::npos);
  CHECK(begins_with(said[refused_0 ? 1 : 0], "NMC_ERR_TIMEOUT"));
}

}  // namespace

int main() {
  skip_without_join();
  printf("before the world is formed\n");
  Place place;
  std::vector<Process> ranks(3);
  Setup setup;
  for (int32_t rank : {0, 2}) {
    setup.rank = rank;
    setup.device_rank = rank;
    ranks[static_cast<size_t>(rank)] = rank_process(place, setup);
    sleep_ms(100);
  }
  for (const Misfit& misfit : misfits()) refused(place, misfit, ranks[0].pid());
  promise("the_others_are_unharmed_and_the_right_rank_completes_the_world");
  setup.rank = setup.device_rank = 1;
  ranks[1] = rank_process(place, setup);
  for (Process& rank : ranks) REQUIRE(SAYS(rank.reply(), "NMC_OK"));
  TOGETHER(all_of(ranks), "selftest 1", "NMC_OK");

  printf("a rank that comes back to a world that exists\n");
  ranks[1].kill9();
  saw_in_time(ranks[0].ask("await 1 GONE"), "gone");
  for (const Misfit& misfit : misfits()) refused(place, misfit, ranks[0].pid());
  ranks[1] = rank_process(place, setup);
  REQUIRE(SAYS(ranks[1].reply(), "NMC_OK"));
  for (size_t i : {0, 2}) saw_in_time(ranks[i].ask("await 1 ALIVE"), "alive again");
  TOGETHER(all_of(ranks), "selftest 1", "NMC_OK");
  for (Process& rank : ranks) SAYS(rank.ask("error"), "NMC_OK");
  dismiss(ranks);
  default_device_rank();
  return finish();
}
