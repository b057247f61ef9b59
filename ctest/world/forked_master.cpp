// A master process that forked: when it is killed, its child holds copies of its sockets and of the directory lock.
#include "../support/puppet.hpp"

int main() {
  skip_without_join();
  adopt_grandchildren();
  promise("a_master_that_was_killed_is_away_also_while_a_child_of_it_lives");
  Place place;
  Setup setup;
  setup.external = true;
  Process master = master_process(place, setup);
  REQUIRE(SAYS(master.reply(), "NMC_OK"));
  std::vector<Process> ranks = whole_world(place, setup);
  const std::string child = master.ask("fork");
  for (Process& rank : ranks) rank.send("await_master 0");
  master.kill9();
  for (Process& rank : ranks) saw_in_time(rank.reply(), "master away");
  promise("and_another_master_can_start_and_takes_the_world_over");
  Process second = master_process(place, setup);
  if (SAYS(second.reply(), "NMC_OK")) {
    for (Process& rank : ranks) saw_in_time(rank.ask("await_master 1"), "master back");
  }
  end_grandchild(child);
  dismiss(ranks);
  return finish();
}
