// A rank that forks: its child may still write, so the rank is not gone while the child lives; and what the child does
// says nothing about its parent.
#include "../support/puppet.hpp"

namespace {

void child_outlives(int32_t victim) {
  printf("victim: rank %d\n", victim);
  Place place;
  std::vector<Process> ranks = whole_world(place, seat(-1));
  const std::string number = std::to_string(victim);
  std::vector<Process*> others;
  for (int32_t rank = 0; rank < 3; ++rank) {
    if (rank != victim) others.push_back(&ranks[static_cast<size_t>(rank)]);
  }
  Process& dead = ranks[static_cast<size_t>(victim)];
  SAYS(dead.ask("fill " + number + " 1"), "0 wrong");
  const std::string child = dead.ask("fork stay");
  promise("a_killed_rank_whose_child_lives_is_dying_not_gone");
  dead.kill9();
  for (Process* other : others) saw_in_time(other->ask("await " + number + " DYING"), "dying");
  sleep_ms(700);
  for (Process* other : others) SAYS(other->ask("state " + number), "DYING");
  if (victim != 0) {  // with rank 0 there is no master at the moment
    promise("its_place_cannot_be_taken_meanwhile_and_the_message_says_why");
    Setup impatient = seat(victim);
    impatient.timeout_ms = 800;
    Process early = rank_process(place, impatient);
    const std::string said = early.reply();
    SAYS(said, "NMC_ERR_TIMEOUT");
    if (!CHECK(said.find("nobody serves") == std::string::npos)) printf("     %s\n", said.c_str());
    CHECK(early.ends_well());
  }
  promise("when_the_child_ends_the_rank_is_gone_and_can_be_taken");
  end_grandchild(child);
  for (Process* other : others) saw_in_time(other->ask("await " + number + " GONE"), "gone");
  dead = rank_process(place, seat(victim));
  REQUIRE(SAYS(dead.reply(), "NMC_OK"));
  SAYS(dead.ask("verify " + number + " 1"), "0 wrong");
  for (Process* other : others) saw_in_time(other->ask("await " + number + " ALIVE"), "alive again");
  TOGETHER(all_of(ranks), "selftest 1", "NMC_OK");
  dismiss(ranks);
}

void child_is_not_the_parent() {
  Place place;
  std::vector<Process> ranks = whole_world(place, seat(-1));
  for (const char* how : {"exit", "destroy"}) {
    promise(how[0] == 'e' ? "a_child_that_exits_does_not_fake_its_parents_death"
                          : "a_child_that_calls_destroy_does_not_fake_its_parents_death");
    for (size_t rank : {0, 1}) ranks[rank].ask(std::string("fork ") + how);
    sleep_ms(600);
    for (Process& rank : ranks) {
      for (const char* peer : {"0", "1", "2"}) SAYS(rank.ask(std::string("state ") + peer), "ALIVE");
      saw_in_time(rank.ask("await_master 1"), "master there");
    }
    TOGETHER(all_of(ranks), "selftest 1", "NMC_OK");
  }
  dismiss(ranks);
  CHECK(place.leftovers().empty());
}

void left_with_a_child() {
  for (int32_t leaver : {1, 0}) {
    promise(leaver == 0 ? "rank_0_leaves_in_order_while_a_child_lives_and_a_new_rank_0_takes_over"
                        : "a_rank_leaves_in_order_while_a_child_lives_and_can_be_replaced");
    Place place;
    std::vector<Process> ranks = whole_world(place, seat(-1));
    const std::string number = std::to_string(leaver);
    Process& leaving = ranks[static_cast<size_t>(leaver)];
    const std::string child = leaving.ask("fork stay");
    SAYS(leaving.ask("destroy"), "NMC_OK");
    leaving.send("quit");
    CHECK(leaving.ends_well());
    for (size_t i = 0; i < 3; ++i) {
      if (static_cast<int32_t>(i) != leaver) saw_in_time(ranks[i].ask("await " + number + " LEFT"), "left");
    }
    Setup setup = seat(leaver);
    setup.timeout_ms = 5000;
    leaving = rank_process(place, setup);
    const bool back = SAYS(leaving.reply(), "NMC_OK");
    if (back) {
      for (size_t i = 0; i < 3; ++i) saw_in_time(ranks[i].ask("await " + number + " ALIVE"), "alive again");
      TOGETHER(all_of(ranks), "selftest 1", "NMC_OK");
    }
    end_grandchild(child);
    if (back) dismiss(ranks);
  }
}

}  // namespace

int main(int argc, char** argv) {
  skip_without_join();
  adopt_grandchildren();
  const std::string only = argc > 1 ? argv[1] : "";
  if (only.empty() || only == "outlive") child_outlives(1), child_outlives(0);
  if (only.empty() || only == "parent") child_is_not_the_parent();
  if (only.empty() || only == "left") left_with_a_child();
  return finish();
}
