// Waits that end with another process: for an object whose writer is killed, alone or together with the master, for room that
// somebody leaves who is killed, and for a master that does not answer.
// usage: store_waits [alive]   the control: the master dies alone, and nobody says that the writer is lost
#include "../support/store_puppet.hpp"

namespace {

constexpr int kBegin = 300;  // ms until a wait has begun

// Waits of rank 1, as an object and through a watch, for what `writer` does not finish.
void begin_waiting(std::vector<Process>& ranks, size_t writer, int timeout_ms = 15000) {
  SAYS(ranks[writer].ask("open plan 8192 1"), "NMC_OK");
  SAYS(ranks[1].ask("watch plan 5"), "NMC_OK");
  ranks[1].send("wait plan 0 " + std::to_string(timeout_ms));
  sleep_ms(kBegin);
}
void both_say(Process& waiter, const char* status) {
  SAYS(waiter.reply(), status);
  SAYS(waiter.ask("completion"), std::string("5 ") + status);
}

void writer_killed(const std::vector<size_t>& killed, size_t writer, bool again) {
  Place place;
  std::vector<Process> ranks = whole_store(place, 3);
  begin_waiting(ranks, writer);
  for (size_t rank : killed) ranks[rank].kill9();
  if (again) {
    for (size_t rank : killed) ranks[rank] = client_process(place, static_cast<int32_t>(rank), 3);
    for (size_t rank : killed) REQUIRE(SAYS(ranks[rank].reply(), "NMC_OK"));
    for (size_t rank : killed) ranks[rank].send("create");
    for (size_t rank : killed) REQUIRE(SAYS(ranks[rank].reply(), "NMC_OK"));
  }
  both_say(ranks[1], "NMC_ERR_PEER_LOST");
  if (!again) return;
  saw_in_time(ranks[1].ask("await_put plan 5000 1"), "somebody else writes it");
  for (Process& rank : ranks) SAYS(rank.ask("get plan 5000 1"), "right");
  dismiss_clients(ranks);
  CHECK(place.leftovers().empty());
}

void master_killed(bool control) {
  promise("a_wait_goes_on_when_the_master_dies_alone");
  Place place;
  std::vector<Process> ranks = whole_store(place, 3);
  begin_waiting(ranks, 2, control ? 2000 : 15000);
  ranks[0].kill9();
  if (control) {  // the wait, which has a deadline and comes to it; the watch would go on
    SAYS(ranks[1].reply(), "NMC_ERR_PEER_LOST");
    return;
  }
  sleep_ms(kBegin);
  SAYS(ranks[2].ask("fill_plan plan 4"), "filled");
  SAYS(ranks[2].ask("commit plan"), "NMC_OK");
  both_say(ranks[1], "NMC_OK");
  SAYS(ranks[1].ask("get plan 8192 4"), "right");
}

void removed() {
  promise("a_wait_says_that_another_process_has_removed_the_object_or_given_it_up");
  Place place;
  std::vector<Process> ranks = whole_store(place, 3);
  begin_waiting(ranks, 2);
  SAYS(ranks[0].ask("remove plan"), "NMC_OK");
  both_say(ranks[1], "NMC_ERR_NOT_FOUND");
  begin_waiting(ranks, 2);
  SAYS(ranks[2].ask("abort_plan plan"), "NMC_OK");
  both_say(ranks[1], "NMC_ERR_STALE");
  begin_waiting(ranks, 2);
  SAYS(ranks[2].ask("leave"), "NMC_OK");  // which gives it up
  both_say(ranks[1], "NMC_ERR_STALE");
  SAYS(ranks[2].ask("create"), "NMC_OK");
  dismiss_clients(ranks);
}

void room() {
  Place place;
  StoreWish wish;
  wish.pages = 4;
  std::vector<Process> ranks = whole_store(place, 3, wish);
  const std::string wait = " 0 0 50000", hard = " 0 0 0 " + std::to_string(NMC_RETAIN_HARD);
  const auto fill = [&] {
    for (int i = 0; i < 3; ++i) SAYS(ranks[0].ask("put hard" + std::to_string(i) + " 4096 1" + hard), "NMC_OK");
    SAYS(ranks[0].ask("put held 4096 2 0"), "NMC_OK");
    SAYS(ranks[2].ask("pin held"), "NMC_OK");
  };
  fill();
  promise("a_put_finds_another_rank_when_its_own_is_full");
  SAYS(ranks[1].ask("put else 4096 3 0"), "NMC_ERR_BUSY");
  SAYS(ranks[1].ask("put else 4096 3 0 " + std::to_string(NMC_PUT_ANY_RANK)), "NMC_OK");
  const std::string owner = ranks[2].ask("owner else");
  CHECK(owner == "1" || owner == "2");
  SAYS(ranks[0].ask("get else 4096 3"), "right");

  promise("a_put_that_waits_gets_the_room_that_a_reader_in_another_process_leaves");
  ranks[1].send("put late 4096 4" + wait);
  sleep_ms(kBegin);
  SAYS(ranks[2].ask("unpin held"), "NMC_OK");
  SAYS(ranks[1].reply(), "NMC_OK");
  SAYS(ranks[0].ask("get late 4096 4"), "right");
  SAYS(ranks[0].ask("exists held"), "ABSENT");

  promise("also_one_that_is_killed");
  for (Process& rank : ranks) SAYS(rank.ask("flush"), "NMC_OK");
  fill();
  ranks[1].send("put late 4096 5" + wait);
  sleep_ms(kBegin);
  ranks[2].kill9();
  SAYS(ranks[1].reply(), "NMC_OK");
  SAYS(ranks[0].ask("get late 4096 5"), "right");

  promise("waits_for_room_are_cancelled");
  SAYS(ranks[1].ask("put last 4096 5" + hard), "NMC_OK");  // instead of the former
  SAYS(ranks[1].ask("interrupted cancel later 50000"), "NMC_ERR_CANCELLED");
  SAYS(ranks[1].ask("interrupted destroy later 50000"), "NMC_ERR_CANCELLED");
  REQUIRE(SAYS(ranks[1].ask("create"), "NMC_OK"));

  promise("and_end_with_the_master");
  ranks[1].send("put later 4096 6" + wait);
  sleep_ms(kBegin);
  ranks[0].kill9();
  SAYS(ranks[1].reply(), "NMC_ERR_UNAVAILABLE");
}

void stopped() {
  Place place;
  StoreWish wish;
  wish.call_timeout_ms = 50000;
  std::vector<Process> ranks = whole_store(place, 4, wish);
  stop_child(ranks[0].pid());
  promise("calls_that_wait_for_a_stopped_master_are_cancelled");
  for (int i = 0; i < 3; ++i) SAYS(ranks[1].ask("interrupted cancel a 0"), "NMC_ERR_CANCELLED");
  promise("by_destroy_as_well");
  SAYS(ranks[2].ask("interrupted destroy b 0"), "NMC_ERR_CANCELLED");
  promise("and_by_the_end_of_the_rank");
  SAYS(ranks[3].ask("interrupted abort c 0"), "NMC_ERR_CANCELLED");

  promise("what_the_master_did_not_hear_leaves_nothing");
  REQUIRE(kill(ranks[0].pid(), SIGCONT) == 0);
  saw_in_time(ranks[1].ask("await_put a 5000 1"), "rank 1 can write");
  SAYS(ranks[1].ask("remove a"), "NMC_OK");
  ranks[3].kill9();
  saw_in_time(ranks[1].ask("await_bytes 0"), "nothing is used");
  for (size_t rank : {0, 1}) SAYS(ranks[rank].ask("leave"), "NMC_OK");
}

void without_memory() {
  promise("a_master_without_memory_for_the_store_shows_as_that_and_not_as_one_that_is_away");
  if (under_tool_named("asan")) {
    std::puts("     left out: AddressSanitizer cannot live with a limit of address space");
    return;
  }
  Place place;
  StoreWish wish;
  wish.max_objects = 1 << 17;
  std::vector<Process> ranks = whole_store(place, 2, wish);
  SAYS(ranks[1].ask("put kept 5000 1"), "NMC_OK");
  ranks[0].kill9();
  SAYS(ranks[1].ask("put late 5000 2"), "NMC_ERR_UNAVAILABLE");
  ranks[0] = client_process(place, 0, 2, wish);
  REQUIRE(SAYS(ranks[0].reply(), "NMC_OK"));
  SAYS(ranks[0].ask("limit 8"), "limited");
  SAYS(ranks[0].ask("create"), "NMC_ERR_NO_MEMORY");
  ranks[0].kill9();
}

}  // namespace

int main(int argc, char**) {
  skip_without_join();
  if (argc > 1) {
    master_killed(true);
    return finish();
  }
  promise("a_wait_says_that_the_writer_was_killed");
  writer_killed({2}, 2, true);
  promise("also_when_the_master_died_with_it_and_nobody_takes_over");
  writer_killed({0, 2}, 2, false);
  promise("or_was_the_writer");
  writer_killed({0}, 0, false);
  promise("and_when_both_come_back_at_once");
  writer_killed({0, 2}, 2, true);
  writer_killed({0}, 0, true);
  master_killed(false);
  removed();
  room();
  stopped();
  without_memory();
  return finish();
}
