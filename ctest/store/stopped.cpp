// A master that is stopped (SIGSTOP) has neither died nor left: nobody takes its place. Readers go on, calls that need it end
// with a status, clients can leave, and everything goes on when it does.
// usage: store_stopped [waits]   the control: a client that waits for the master before it leaves is seen
#include "../support/store_puppet.hpp"

namespace {

// Far from what it takes (half a second), and from what a master may take to rebuild a store (30 s).
constexpr double kSoon = 20;
// In the control: less than the client waits there, on any machine.
constexpr int kControlWaits = 4;
constexpr double kControlSoon = 3;

bool is_away(const std::string& said) {
  return begins_with(said, "NMC_ERR_TIMEOUT") || begins_with(said, "NMC_ERR_UNAVAILABLE");
}

bool leaves_soon(Process& rank, bool waits) {
  const double start = seconds_now();
  if (waits) (void)rank.ask("await_put never 100 1 " + std::to_string(kControlWaits));
  SAYS(rank.ask("leave"), "NMC_OK");
  const double took = seconds_now() - start;
  printf("     left after %.1f s\n", took);
  return took < (waits ? kControlSoon : kSoon);
}

void stopped(bool waits) {
  Place place;
  StoreWish wish;
  wish.external = true;
  wish.call_timeout_ms = 500;
  Setup seat;
  seat.heap_bytes = wish.pages * wish.page_bytes;
  Process master = master_process(place, seat);
  REQUIRE(SAYS(master.reply(), "NMC_OK"));
  std::vector<Process> ranks = whole_store(place, 3, wish);
  for (int round = 1; round <= 2; ++round) {
    const std::string name = std::to_string(round);
    saw_in_time(ranks[0].ask("await_put " + name + "first 5000 1"), "a master");
    SAYS(ranks[0].ask("puts " + name + "/ 20 5000"), "20");
    SAYS(ranks[2].ask("pin " + name + "/3"), "NMC_OK");
    SAYS(ranks[0].ask("open " + name + "plan 5000"), "NMC_OK");
    SAYS(ranks[0].ask("fill_plan " + name + "plan 6"), "filled");
    SAYS(ranks[0].ask("open_batch " + name + "b 60"), "NMC_OK");
    SAYS(ranks[1].ask("read_on " + name + "/ 20 5000"), "reading");
    stop_child(master.pid());

    promise("while_the_master_is_stopped_reads_go_on");
    SAYS(ranks[2].ask("gets " + name + "/ 20 5000"), "20");
    SAYS(ranks[2].ask("unpin " + name + "/3"), "NMC_OK");
    SAYS(ranks[2].ask("pin " + name + "/4"), "NMC_OK");
    SAYS(ranks[2].ask("unpin " + name + "/4"), "NMC_OK");
    SAYS(ranks[0].ask("commit " + name + "plan"), "NMC_OK");
    SAYS(ranks[2].ask("get " + name + "plan 5000 6"), "right");
    promise("and_calls_that_need_it_end_with_a_status");
    for (int i = 0; i < 3; ++i) {
      const double start = seconds_now();
      CHECK(is_away(ranks[0].ask("put " + name + "late 5000 1")));
      CHECK(is_away(ranks[2].ask("remove " + name + "/1")));
      CHECK(seconds_now() - start < kSoon);
    }
    promise("and_so_do_batches_however_long_they_are");  // one after the other they would take 30 s
    const double begun = seconds_now();
    SAYS(ranks[0].ask("commit_batch"), "60");
    CHECK(seconds_now() - begun < kSoon);
    promise("and_clients_can_leave");
    SAYS(ranks[1].ask("stop"), "0 wrong");
    CHECK(leaves_soon(ranks[1], false));  // it never noticed
    CHECK(leaves_soon(ranks[2], waits));  // it is about to connect again
    if (waits) return;

    promise("when_it_goes_on_so_does_everything");
    REQUIRE(kill(master.pid(), SIGCONT) == 0);
    saw_in_time(ranks[0].ask("await_put " + name + "late 5000 1"), "rank 0 can write");
    SAYS(ranks[0].ask("commit_batch"), "0");
    for (size_t rank : {1, 2}) REQUIRE(SAYS(ranks[rank].ask("create"), "NMC_OK"));
    for (Process& rank : ranks) {
      SAYS(rank.ask("gets " + name + "/ 20 5000"), begins_with(rank.ask("exists " + name + "/1"), "ABSENT") ? "19" : "20");
      SAYS(rank.ask("get " + name + "late 5000 1"), "right");
      SAYS(rank.ask("get " + name + "plan 5000 6"), "right");
    }
    SAYS(ranks[1].ask("flush"), "NMC_OK");
    saw_in_time(ranks[0].ask("await_bytes 0"), "the books are right: nothing is used");
  }
  dismiss_clients(ranks);
  master.send("quit");
  CHECK(master.ends_well());
  CHECK(place.leftovers().empty());
}

}  // namespace

int main(int argc, char**) {
  skip_without_join();
  stopped(argc > 1);
  return finish();
}
