// kill -9 of any rank, at any time: the others see it and go on, and a new process takes the place and finds the heap.
#include "../support/puppet.hpp"

namespace {

void killed(int32_t victim) {
  printf("victim: rank %d\n", victim);
  Place place;
  std::vector<Process> ranks = whole_world(place, seat(-1));
  const std::string number = std::to_string(victim);
  std::vector<Process*> survivors;
  for (int32_t rank = 0; rank < 3; ++rank) {
    if (rank != victim) survivors.push_back(&ranks[static_cast<size_t>(rank)]);
  }
  Process& dead = ranks[static_cast<size_t>(victim)];
  Process& one = *survivors[0];
  Process& two = *survivors[1];
  for (int generation = 1; generation <= 3; ++generation) {
    SAYS(one.ask("generation " + number), std::to_string(generation));
    SAYS(dead.ask("fill " + number + " 100"), "0 wrong");
    SAYS(dead.ask("publish " + number + " 5 " + std::to_string(500 + generation)), std::to_string(500 + generation));
    TOGETHER(all_of(ranks), "barrier 30000", "NMC_OK");

    promise("survivors_see_a_killed_rank_and_it_is_gone");
    for (Process* survivor : survivors) survivor->send("await " + number + " GONE");
    sleep_ms(50);
    dead.kill9();
    for (Process* survivor : survivors) saw_in_time(survivor->reply(), "gone");

    promise("a_barrier_with_a_dead_rank_says_which_one_is_lost");
    for (Process* survivor : survivors) survivor->send("barrier 30000");
    for (Process* survivor : survivors) {
      const std::string said = survivor->reply();
      SAYS(said, "NMC_ERR_PEER_LOST");
      CHECK(said.find("rank " + number) != std::string::npos);
    }

    promise("survivors_go_on_and_still_reach_the_dead_ranks_heap");
    SAYS(one.ask("fill " + std::string(victim == 1 ? "2" : "1") + " 7"), "0 wrong");
    SAYS(two.ask("verify " + std::string(victim == 1 ? "2" : "1") + " 7"), "0 wrong");
    SAYS(one.ask("verify " + number + " 100"), "0 wrong");
    SAYS(two.ask("fill " + number + " 200"), "0 wrong");

    promise("a_new_process_takes_the_place_and_finds_heap_and_words_as_they_were_left");
    dead = rank_process(place, seat(victim));
    REQUIRE(SAYS(dead.reply(), "NMC_OK"));
    SAYS(dead.ask("generation " + number), std::to_string(generation + 1));
    SAYS(dead.ask("verify " + number + " 200"), "0 wrong");
    SAYS(dead.ask("look " + number + " 5"), std::to_string(500 + generation));
    for (Process* survivor : survivors) saw_in_time(survivor->ask("await " + number + " ALIVE"), "alive again");
    for (Process* survivor : survivors) saw_in_time(survivor->ask("await_master 1"), "master there");

    promise("the_barrier_that_was_open_is_passed_together_and_everything_works_again");
    TOGETHER(all_of(ranks), "barrier 30000", "NMC_OK");
    TOGETHER(all_of(ranks), "selftest 3", "NMC_OK");
    for (Process& rank : ranks) SAYS(rank.ask("error"), "NMC_OK");
  }
  dismiss(ranks);
  CHECK(place.leftovers().empty());
}

void everybody_but_one() {
  promise("one_survivor_is_enough_to_keep_the_world");
  Place place;
  std::vector<Process> ranks = whole_world(place, seat(-1, 4));
  const std::string id = ranks[3].ask("world_id");
  SAYS(ranks[2].ask("fill 2 9"), "0 wrong");
  for (size_t i : {0, 1, 2}) ranks[i].kill9();
  for (size_t i : {0, 1, 2}) saw_in_time(ranks[3].ask("await " + std::to_string(i) + " GONE"), "gone");
  for (int32_t i : {1, 2, 0}) ranks[static_cast<size_t>(i)] = rank_process(place, seat(i, 4));
  for (size_t i : {0, 1, 2}) REQUIRE(SAYS(ranks[i].reply(), "NMC_OK"));
  for (Process& rank : ranks) CHECK(rank.ask("world_id") == id);
  SAYS(ranks[2].ask("verify 2 9"), "0 wrong");
  for (Process& rank : ranks) {
    for (int i = 0; i < 4; ++i) saw_in_time(rank.ask("await " + std::to_string(i) + " ALIVE"), "alive");
  }
  TOGETHER(all_of(ranks), "selftest 3", "NMC_OK");
  dismiss(ranks);
}

void killed_while_joining() {
  for (int32_t victim : {1, 0}) {
    promise(victim == 0 ? "rank_0_killed_while_the_others_join_is_replaced"
                        : "a_rank_killed_while_joining_is_replaced");
    Place place;
    std::vector<Process> ranks(3);
    for (int32_t rank : {0, 1}) ranks[static_cast<size_t>(rank)] = rank_process(place, seat(rank));
    sleep_ms(200);  // both wait for rank 2
    ranks[static_cast<size_t>(victim)].kill9();
    ranks[2] = rank_process(place, seat(2));
    sleep_ms(100);
    ranks[static_cast<size_t>(victim)] = rank_process(place, seat(victim));
    for (Process& rank : ranks) REQUIRE(SAYS(rank.reply(), "NMC_OK"));
    TOGETHER(all_of(ranks), "selftest 1", "NMC_OK");
    dismiss(ranks);
  }
}

// The window between "the world forms" and "everyone has joined" is short: hit it by trying.
void killed_while_forming() {
  promise("a_rank_killed_at_any_instant_of_its_join_can_be_replaced");
  for (int round = 0; round < 25; ++round) {
    Place place;
    std::vector<Process> ranks(3);
    for (int32_t rank : {0, 1, 2}) ranks[static_cast<size_t>(rank)] = rank_process(place, seat(rank));
    const timespec pause{0, round * 150000};
    nanosleep(&pause, nullptr);
    const int32_t victim = round % 3;
    ranks[static_cast<size_t>(victim)].kill9();
    ranks[static_cast<size_t>(victim)] = rank_process(place, seat(victim));
    for (Process& rank : ranks) {
      if (!SAYS(rank.reply(), "NMC_OK")) {
        printf("     round %d, victim %d\n", round, victim);
        return;
      }
    }
    for (Process& rank : ranks) {
      for (int i = 0; i < 3; ++i) CHECK(atof(rank.ask("await " + std::to_string(i) + " ALIVE").c_str()) >= 0);
    }
    TOGETHER(all_of(ranks), "barrier 30000", "NMC_OK");
    dismiss(ranks);
  }
}

void killed_at_a_barrier() {
  promise("a_rank_killed_while_it_waits_at_a_barrier_is_replaced_and_all_meet_again");
  Place place;
  std::vector<Process> ranks = whole_world(place, seat(-1));
  TOGETHER(all_of(ranks), "barrier 30000", "NMC_OK");
  ranks[1].send("barrier 30000");  // the first to arrive
  sleep_ms(200);
  ranks[1].kill9();
  for (size_t i : {0, 2}) saw_in_time(ranks[i].ask("await 1 GONE"), "gone");
  ranks[1] = rank_process(place, seat(1));
  REQUIRE(SAYS(ranks[1].reply(), "NMC_OK"));
  for (size_t i : {0, 2}) saw_in_time(ranks[i].ask("await 1 ALIVE"), "alive again");
  TOGETHER(all_of(ranks), "barrier 8000", "NMC_OK");  // everyone who is alive now calls it once
  TOGETHER(all_of(ranks), "barrier 8000", "NMC_OK");
  dismiss(ranks);
}

void aborted() {
  promise("a_rank_that_aborts_is_dying_then_gone_when_destroyed_and_can_be_replaced_while_its_process_lives");
  Place place;
  std::vector<Process> ranks = whole_world(place, seat(-1));
  SAYS(ranks[1].ask("fill 1 4"), "0 wrong");
  SAYS(ranks[1].ask("abort"), "NMC_OK");
  SAYS(ranks[1].ask("barrier 30000"), "NMC_ERR_CANCELLED");
  for (size_t i : {0, 2}) saw_in_time(ranks[i].ask("await 1 DYING"), "dying");
  Process old = std::move(ranks[1]);
  SAYS(old.ask("destroy"), "NMC_OK");
  for (size_t i : {0, 2}) saw_in_time(ranks[i].ask("await 1 GONE"), "gone");
  ranks[1] = rank_process(place, seat(1));
  REQUIRE(SAYS(ranks[1].reply(), "NMC_OK"));
  SAYS(ranks[1].ask("verify 1 4"), "0 wrong");
  old.send("quit");
  CHECK(old.ends_well());
  sleep_ms(300);
  for (size_t i : {0, 2}) saw_in_time(ranks[i].ask("await 1 ALIVE"), "the new one is alive");
  promise("the_rank_of_a_living_process_is_not_given_away");
  Process rival = rank_process(place, seat(1));
  SAYS(rival.reply(), "NMC_ERR_EXISTS");
  promise("a_barrier_that_was_refused_after_abort_does_not_count");
  TOGETHER(all_of(ranks), "barrier 8000", "NMC_OK");
  dismiss(ranks);
}

}  // namespace

int main(int argc, char** argv) {
  skip_without_join();
  const std::string only = argc > 1 ? argv[1] : "";
  const auto wanted = [&](const char* part) { return only.empty() || only == part; };
  if (wanted("rank2")) killed(2);
  if (wanted("rank0")) killed(0);
  if (wanted("most")) everybody_but_one();
  if (wanted("joining")) killed_while_joining();
  if (wanted("forming")) killed_while_forming();
  if (wanted("barrier")) killed_at_a_barrier();
  if (wanted("abort")) aborted();
  return finish();
}
