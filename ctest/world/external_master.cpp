// A master in a process of its own: it may die and come back while the ranks go on.
#include "../support/puppet.hpp"

namespace {

Setup outside(int32_t rank) {
  Setup setup = seat(rank);
  setup.external = true;
  return setup;
}

Process started(const Place& place) {
  Process master = master_process(place, outside(-1));
  REQUIRE(SAYS(master.reply(), "NMC_OK"));
  return master;
}

void await_master(std::vector<Process>& ranks, const char* up) {
  const char* what = up[0] == '1' ? "master up" : "master away";
  for (Process& rank : ranks) saw_in_time(rank.ask(std::string("await_master ") + up), what);
}

}  // namespace

int main() {
  skip_without_join();
  Place place;
  promise("ranks_wait_for_a_master_that_starts_late");
  std::vector<Process> ranks;
  for (int32_t rank = 0; rank < 3; ++rank) ranks.push_back(rank_process(place, outside(rank)));
  sleep_ms(200);
  Process master = started(place);
  for (Process& rank : ranks) REQUIRE(SAYS(rank.reply(), "NMC_OK"));
  TOGETHER(all_of(ranks), "selftest 1", "NMC_OK");
  const std::string first_world = ranks[0].ask("world_id");

  promise("a_second_master_of_the_same_name_is_refused");
  Process rival = master_process(place, outside(-1));
  SAYS(rival.reply(), "NMC_ERR_EXISTS");
  CHECK(rival.ends_well());

  for (int round = 0; round < 3; ++round) {
    promise("when_the_master_is_killed_the_ranks_know_and_go_on");
    for (Process& rank : ranks) rank.send("await_master 0");
    sleep_ms(30);
    master.kill9();
    for (Process& rank : ranks) saw_in_time(rank.reply(), "master away");
    TOGETHER(all_of(ranks), "barrier 30000", "NMC_OK");
    TOGETHER(all_of(ranks), "selftest 2", "NMC_OK");
    for (Process& rank : ranks) {
      for (const char* peer : {"0", "1", "2"}) SAYS(rank.ask(std::string("state ") + peer), "ALIVE");
    }

    promise("a_rank_that_dies_without_a_master_is_seen");
    SAYS(ranks[1].ask("fill 1 " + std::to_string(round)), "0 wrong");
    if (round != 1) {
      ranks[1].kill9();
      for (size_t i : {0, 2}) saw_in_time(ranks[i].ask("await 1 GONE"), "gone");
    }

    promise("a_new_master_takes_the_world_over");
    master = started(place);
    for (size_t i : {0, 2}) saw_in_time(ranks[i].ask("await_master 1"), "master up");
    if (round == 1) {
      ranks[1].kill9();
      for (size_t i : {0, 2}) saw_in_time(ranks[i].ask("await 1 GONE"), "gone");
    }
    promise("and_a_new_process_can_take_the_dead_ranks_place");
    ranks[1] = rank_process(place, outside(1));
    REQUIRE(SAYS(ranks[1].reply(), "NMC_OK"));
    SAYS(ranks[1].ask("verify 1 " + std::to_string(round)), "0 wrong");
    CHECK(ranks[1].ask("world_id") == first_world);
    for (size_t i : {0, 2}) saw_in_time(ranks[i].ask("await 1 ALIVE"), "alive again");
    TOGETHER(all_of(ranks), "selftest 3", "NMC_OK");
    for (Process& rank : ranks) SAYS(rank.ask("error"), "NMC_OK");
  }

  promise("a_master_that_ends_in_order_can_be_replaced_too");
  master.send("quit");
  CHECK(master.ends_well());
  await_master(ranks, "0");
  master = started(place);
  await_master(ranks, "1");

  promise("ranks_can_join_at_once_after_the_master_came_back_whoever_reports_first");
  for (int round = 0; round < 5; ++round) {
    ranks[2].kill9();
    master.kill9();
    for (size_t i : {0, 1}) saw_in_time(ranks[i].ask("await_master 0"), "master away");
    ranks[2] = rank_process(place, outside(2));  // waits for the master
    sleep_ms(round * 40);
    master = started(place);
    if (!SAYS(ranks[2].reply(), "NMC_OK")) break;
    for (size_t i : {0, 1}) saw_in_time(ranks[i].ask("await 2 ALIVE"), "alive again");
    TOGETHER(all_of(ranks), "barrier 10000", "NMC_OK");
  }

  promise("after_all_have_left_the_same_master_serves_a_new_world");
  dismiss(ranks);
  ranks = whole_world(place, outside(-1));
  CHECK(ranks[0].ask("world_id") != first_world);
  SAYS(ranks[0].ask("generation 1"), "1");
  TOGETHER(all_of(ranks), "selftest 4", "NMC_OK");
  dismiss(ranks);
  master.send("quit");
  CHECK(master.ends_well());
  CHECK(place.leftovers().empty());
  return finish();
}
