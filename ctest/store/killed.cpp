// kill -9 of the store's master or of a client: readers go on, and everything that the dead one held comes back when it is
// provably gone.
#include "../support/store_puppet.hpp"

namespace {

void master_killed() {
  Place place;
  std::vector<Process> ranks = whole_store(place, 3);
  for (int round = 1; round <= 3; ++round) {
    printf("round %d\n", round);
    const std::string name = std::to_string(round);
    SAYS(ranks[1].ask("puts " + name + "/ 20 5000"), "20");
    SAYS(ranks[0].ask("put " + name + "own 5000 9 0"), "NMC_OK");
    SAYS(ranks[1].ask("pin " + name + "/3"), "NMC_OK");
    SAYS(ranks[1].ask("open " + name + "open 8192 1"), "NMC_OK");
    SAYS(ranks[1].ask("fill_plan " + name + "open 6"), "filled");
    SAYS(ranks[1].ask("open " + name + "committed 4096 2"), "NMC_OK");
    SAYS(ranks[1].ask("fill_plan " + name + "committed 8"), "filled");
    SAYS(ranks[1].ask("put " + name + "replaced 4096 1 1"), "NMC_OK");
    SAYS(ranks[1].ask("open " + name + "replaced 4096 1 " + std::to_string(NMC_PUT_REPLACE)), "NMC_OK");
    SAYS(ranks[1].ask("fill_plan " + name + "replaced 2"), "filled");
    SAYS(ranks[1].ask("read_on " + name + "/ 20 5000"), "reading");
    SAYS(ranks[2].ask("read_on " + name + "/ 20 5000"), "reading");

    promise("while_the_master_is_dead_reads_go_on_and_writes_are_unavailable");
    ranks[0].kill9();
    SAYS(ranks[1].ask("put " + name + "late 5000 1"), "NMC_ERR_UNAVAILABLE");
    SAYS(ranks[2].ask("remove " + name + "/1"), "NMC_ERR_UNAVAILABLE");
    SAYS(ranks[2].ask("open " + name + "late 5000"), "NMC_ERR_UNAVAILABLE");
    const long long before = atoll(ranks[2].ask("reads").c_str());
    SAYS(ranks[2].ask("gets " + name + "/ 20 5000"), "20");
    SAYS(ranks[2].ask("get " + name + "own 5000 9"), "right");  // in the heap of the dead rank
    SAYS(ranks[2].ask("pin " + name + "/4"), "NMC_OK");
    promise("a_commit_needs_no_master");
    SAYS(ranks[1].ask("commit " + name + "committed"), "NMC_OK");
    SAYS(ranks[2].ask("get " + name + "committed 4096 8"), "right");
    promise("but_a_replacement_does_and_can_be_repeated");
    SAYS(ranks[1].ask("commit " + name + "replaced"), "NMC_ERR_UNAVAILABLE");
    SAYS(ranks[1].ask("commit " + name + "replaced"), "NMC_ERR_UNAVAILABLE");
    SAYS(ranks[2].ask("get " + name + "replaced 4096 1"), "right");
    sleep_ms(50);
    CHECK(atoll(ranks[2].ask("reads").c_str()) > before);

    promise("a_new_master_finds_everything_as_it_was");
    ranks[0] = client_process(place, 0, 3);
    REQUIRE(SAYS(ranks[0].reply(), "NMC_OK"));
    REQUIRE(SAYS(ranks[0].ask("create"), "NMC_OK"));
    saw_in_time(ranks[1].ask("await_put " + name + "late 5000 1"), "rank 1 can write");
    saw_in_time(ranks[2].ask("await_put " + name + "later 5000 2"), "rank 2 can write");
    SAYS(ranks[1].ask("stop"), "0 wrong");
    SAYS(ranks[2].ask("stop"), "0 wrong");
    for (Process& rank : ranks) {
      SAYS(rank.ask("gets " + name + "/ 20 5000"), "20");
      SAYS(rank.ask("get " + name + "own 5000 9"), "right");
      SAYS(rank.ask("get " + name + "committed 4096 8"), "right");
      SAYS(rank.ask("get " + name + "late 5000 1"), "right");
      SAYS(rank.ask("get " + name + "later 5000 2"), "right");
    }
    promise("pins_and_plans_of_survivors_still_hold");
    SAYS(ranks[1].ask("look_at " + name + "/3 3"), "right");
    SAYS(ranks[1].ask("unpin " + name + "/3"), "NMC_OK");
    SAYS(ranks[2].ask("unpin " + name + "/4"), "NMC_OK");
    SAYS(ranks[0].ask("exists " + name + "open"), "WRITING");
    SAYS(ranks[1].ask("commit " + name + "open"), "NMC_OK");
    SAYS(ranks[0].ask("get " + name + "open 8192 6"), "right");
    SAYS(ranks[1].ask("commit " + name + "replaced"), "NMC_OK");
    for (Process& rank : ranks) SAYS(rank.ask("get " + name + "replaced 4096 2"), "right");
    SAYS(ranks[2].ask("remove " + name + "replaced"), "NMC_OK");
    for (Process& rank : ranks) SAYS(rank.ask("exists " + name + "replaced"), "ABSENT");
    // 20 + own, late, later of two pages each, open of two, committed of one.
    for (int i = 0; i < 20; ++i) SAYS(ranks[0].ask("remove " + name + "/" + std::to_string(i)), "NMC_OK");
    for (const char* rest : {"own", "late", "later", "open", "committed"}) {
      SAYS(ranks[0].ask("remove " + name + rest), "NMC_OK");
    }
    saw_in_time(ranks[0].ask("await_bytes 0"), "the books are right: nothing is used");
  }
  dismiss_clients(ranks);
  CHECK(place.leftovers().empty());
}

void client_killed(bool with_child) {
  printf("%s\n", with_child ? "with a forked child" : "without a child");
  Place place;
  std::vector<Process> ranks = whole_store(place, 3);
  for (size_t victim : {2, 1}) {
    Process& dead = ranks[victim];
    Process& other = ranks[3 - victim];
    SAYS(other.ask("put kept 5000 1 " + std::to_string(victim)), "NMC_OK");  // in the heap of the victim
    SAYS(other.ask("put removed 9000 2 0"), "NMC_OK");
    SAYS(dead.ask("pin removed"), "NMC_OK");
    SAYS(other.ask("remove removed"), "NMC_OK");
    SAYS(dead.ask("open plan 10000 0"), "NMC_OK");
    SAYS(dead.ask("open quarantined 4096 0"), "NMC_OK");
    SAYS(other.ask("remove quarantined"), "NMC_OK");  // from under its writer
    SAYS(dead.ask("put finished 6000 3 0"), "NMC_OK");
    const std::string held = "45056 4096 12288";
    // Publications are noticed when somebody looks: until the counters are what they must be.
    const double start = seconds_now();
    while (ranks[0].ask("bytes") != held && seconds_now() - start < 20) sleep_ms(2);
    SAYS(ranks[0].ask("bytes"), held);
    std::string child;
    if (with_child) child = dead.ask("fork stay");
    dead.kill9();
    if (with_child) {
      promise("what_a_dead_client_held_is_kept_while_a_child_of_it_lives");
      saw_in_time(ranks[0].ask("await " + std::to_string(victim) + " DYING"), "dying");
      sleep_ms(1500);
      SAYS(ranks[0].ask("bytes"), held);
      SAYS(other.ask("exists plan"), "WRITING");
      SAYS(other.ask("get kept 5000 1"), "right");
      end_grandchild(child);
    }
    promise("what_a_dead_client_held_comes_back_when_it_is_gone");
    saw_in_time(ranks[0].ask("await_bytes 16384"), "reclaimed");
    SAYS(other.ask("exists plan"), "ABSENT");
    SAYS(other.ask("get finished 6000 3"), "right");
    SAYS(other.ask("get kept 5000 1"), "right");
    SAYS(other.ask("put plan 5000 1"), "NMC_OK");
    promise("and_its_rank_can_be_taken_by_a_new_client");
    dead = client_process(place, static_cast<int32_t>(victim), 3);
    REQUIRE(SAYS(dead.reply(), "NMC_OK"));
    SAYS(dead.ask("create"), "NMC_OK");
    for (Process& rank : ranks) SAYS(rank.ask("get kept 5000 1"), "right");
    for (const char* key : {"kept", "finished", "plan"}) SAYS(dead.ask(std::string("remove ") + key), "NMC_OK");
    saw_in_time(ranks[0].ask("await_bytes 0"), "empty again");
  }
  dismiss_clients(ranks);
  CHECK(place.leftovers().empty());
}

void killed_together() {
  promise("a_client_that_dies_while_the_master_is_dead_is_noticed_by_the_next_one");
  Place place;
  std::vector<Process> ranks = whole_store(place, 3);
  SAYS(ranks[1].ask("put kept 5000 1 1"), "NMC_OK");
  SAYS(ranks[2].ask("open plan 8192 1"), "NMC_OK");
  SAYS(ranks[1].ask("put removed 4096 1 1"), "NMC_OK");
  SAYS(ranks[2].ask("pin removed"), "NMC_OK");
  SAYS(ranks[0].ask("remove removed"), "NMC_OK");
  ranks[0].kill9();
  ranks[2].kill9();
  SAYS(ranks[1].ask("get kept 5000 1"), "right");
  for (int32_t rank : {0, 2}) ranks[static_cast<size_t>(rank)] = client_process(place, rank, 3);
  for (size_t rank : {0, 2}) REQUIRE(SAYS(ranks[rank].reply(), "NMC_OK"));
  for (size_t rank : {0, 2}) ranks[rank].send("create");
  for (size_t rank : {0, 2}) REQUIRE(SAYS(ranks[rank].reply(), "NMC_OK"));
  saw_in_time(ranks[1].ask("await_bytes 8192"), "reclaimed");
  for (Process& rank : ranks) SAYS(rank.ask("get kept 5000 1"), "right");
  SAYS(ranks[2].ask("put plan 5000 2"), "NMC_OK");
  dismiss_clients(ranks);
  CHECK(place.leftovers().empty());
}

// How many of the keys r/0 to r/39 a rank finds.
std::string found(Process& rank) { return rank.ask("gets r/ 40 5000"); }

void new_master(const Place& place, std::vector<Process>& ranks) {
  ranks[0] = client_process(place, 0, 3);
  REQUIRE(SAYS(ranks[0].reply(), "NMC_OK"));
  REQUIRE(SAYS(ranks[0].ask("create"), "NMC_OK"));
}

void flushed_and_killed(bool by_halves) {
  Place place;
  std::vector<Process> ranks = whole_store(place, 3);
  const auto flush = [&](Process& rank) {
    // The control forgets one key after the other, and dies in the middle.
    for (int i = 0; by_halves && i < 20; ++i) (void)rank.ask("remove r/" + std::to_string(i));
    rank.send(by_halves ? "remove r/20" : "flush");
  };
  for (int round = 0; round < 6; ++round) {
    SAYS(ranks[1].ask("puts r/ 40 5000"), "40");
    SAYS(ranks[2].ask("pin r/39"), "NMC_OK");
    std::string said;
    if (round % 2 == 0) {
      promise("what_remove_all_has_forgotten_stays_forgotten_when_the_master_dies");
      flush(ranks[1]);
      said = ranks[1].reply();
      ranks[0].kill9();
      SAYS(said, "NMC_OK");
    } else {
      promise("remove_all_forgets_all_or_nothing_when_the_master_dies_in_it");
      flush(ranks[1]);
      ranks[0].kill9();
      said = ranks[1].reply();
    }
    const std::string left = found(ranks[2]);
    printf("     it said %s; %s are there\n", said.c_str(), left.c_str());
    CHECK(left == "0" || (left == "40" && begins_with(said, "NMC_ERR_UNAVAILABLE")));
    new_master(place, ranks);
    saw_in_time(ranks[1].ask("await_put late 5000 1"), "rank 1 can write");
    saw_in_time(ranks[2].ask("await_put later 5000 2"), "rank 2 can write");
    for (Process& rank : ranks) CHECK(found(rank) == left);
    SAYS(ranks[2].ask("look_at r/39 39"), "right");  // it is pinned
    SAYS(ranks[2].ask("unpin r/39"), "NMC_OK");
    promise("and_the_memory_comes_back");
    SAYS(ranks[2].ask("flush"), "NMC_OK");
    saw_in_time(ranks[0].ask("await_bytes 0"), "the books are right: nothing is used");
    if (failed_checks != 0) return;
  }
  dismiss_clients(ranks);
  CHECK(place.leftovers().empty());
}

void master_killed_with_a_child() {
  promise("a_master_that_was_killed_is_away_also_while_a_child_of_it_lives");
  Place place;
  std::vector<Process> ranks = whole_store(place, 2);
  SAYS(ranks[1].ask("put k 5000 1"), "NMC_OK");
  const std::string child = ranks[0].ask("fork stay");
  ranks[0].kill9();
  SAYS(ranks[1].ask("put l 5000 1"), "NMC_ERR_UNAVAILABLE");
  SAYS(ranks[1].ask("get k 5000 1"), "right");
  end_grandchild(child);
  ranks[0] = client_process(place, 0, 2);
  REQUIRE(SAYS(ranks[0].reply(), "NMC_OK"));
  REQUIRE(SAYS(ranks[0].ask("create"), "NMC_OK"));
  saw_in_time(ranks[1].ask("await_put l 5000 1"), "master back");
  SAYS(ranks[0].ask("get k 5000 1"), "right");
  dismiss_clients(ranks);
}

}  // namespace

int main(int argc, char** argv) {
  skip_without_join();
  adopt_grandchildren();
  const std::string only = argc > 1 ? argv[1] : "";
  const auto wanted = [&](const char* part) { return only.empty() || only == part; };
  if (wanted("master")) master_killed();
  if (wanted("client")) client_killed(false);
  if (wanted("child")) client_killed(true);
  if (wanted("both")) killed_together();
  if (wanted("flush")) flushed_and_killed(false);
  if (only == "flush-by-halves") flushed_and_killed(true);  // the control
  if (wanted("master_child")) master_killed_with_a_child();
  return finish();
}
