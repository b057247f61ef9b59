// One store, several processes: what one writes the others find, pin, wait for and read in place.
#include "../support/store_puppet.hpp"

namespace {

void reads_and_writes() {
  Place place;
  std::vector<Process> ranks = whole_store(place, 3);
  promise("what_one_process_puts_the_others_read");
  for (size_t writer : {1, 0, 2}) {
    for (const char* owner : {"-1", "0", "1", "2"}) {
      const std::string key = "from" + std::to_string(writer) + "on" + owner;
      SAYS(ranks[writer].ask("put " + key + " 9000 7 " + owner), "NMC_OK");
      for (Process& reader : ranks) SAYS(reader.ask("get " + key + " 9000 7"), "right");
      for (Process& reader : ranks) SAYS(reader.ask("put " + key + " 5 1"), "NMC_ERR_EXISTS");
    }
  }
  SAYS(ranks[0].ask("remove from1on-1"), "NMC_OK");
  for (Process& reader : ranks) SAYS(reader.ask("get from1on-1 9000 7"), "<NMC_ERR_NOT_FOUND>");

  promise("a_pin_outlives_removal_by_another_process_and_its_memory_comes_back_after_it");
  for (size_t reader : {1, 0}) {
    Process& remover = ranks[1 - reader];
    const std::string before = ranks[2].ask("bytes");
    SAYS(remover.ask("put pinned 8192 3 2"), "NMC_OK");
    SAYS(ranks[reader].ask("pin pinned"), "NMC_OK");
    SAYS(remover.ask("remove pinned"), "NMC_OK");
    SAYS(ranks[2].ask("exists pinned"), "ABSENT");
    SAYS(ranks[2].ask("puts churn 200 4096"), "200");  // evicts everything that can be
    SAYS(ranks[reader].ask("look_at pinned 3"), "right");
    const std::string waiting = ranks[2].ask("bytes");
    CHECK(waiting.find(" 8192") != std::string::npos);
    SAYS(ranks[reader].ask("unpin pinned"), "NMC_OK");
    SAYS(ranks[reader].ask("unpin pinned"), "NMC_ERR_NOT_FOUND");
    const double start = seconds_now();
    std::string now;
    do {
      now = ranks[2].ask("bytes");
    } while (now.substr(now.rfind(' ')) != " 0" && seconds_now() - start < 20);
    if (!CHECK(now.substr(now.rfind(' ')) == " 0")) printf("     %s, before %s\n", now.c_str(), before.c_str());
  }
  dismiss_clients(ranks);
  CHECK(place.leftovers().empty());
}

void waiting() {
  Place place;
  std::vector<Process> ranks = whole_store(place, 3);
  for (size_t writer : {1, 0}) {
    promise("a_wait_in_another_process_ends_with_the_commit");
    const std::string key = "waited" + std::to_string(writer);
    for (size_t i : {0, 1, 2}) {
      if (i != writer) ranks[i].send("wait " + key + " 1");
    }
    sleep_ms(50);
    SAYS(ranks[writer].ask("open " + key + " 8192 2"), "NMC_OK");
    SAYS(ranks[writer].ask("fill_plan " + key + " 4"), "filled");
    sleep_ms(20);
    SAYS(ranks[writer].ask("commit " + key), "NMC_OK");
    for (size_t i : {0, 1, 2}) {
      if (i != writer) SAYS(ranks[i].reply(), "NMC_OK");
    }
    for (Process& reader : ranks) SAYS(reader.ask("get " + key + " 8192 4"), "right");

    promise("and_of_some_pages_with_their_publication");
    const std::string partly = "partly" + std::to_string(writer);
    Process& reader = ranks[1 - writer];
    reader.send("wait_pages " + partly + " 2");
    SAYS(ranks[writer].ask("open " + partly + " 12288 2"), "NMC_OK");
    SAYS(ranks[writer].ask("publish_pages " + partly + " 1"), "NMC_OK");
    sleep_ms(20);
    SAYS(ranks[writer].ask("publish_pages " + partly + " 2"), "NMC_OK");
    SAYS(reader.reply(), "NMC_OK");
    reader.send("wait " + partly + " 0");
    sleep_ms(20);
    SAYS(ranks[writer].ask("abort_plan " + partly), "NMC_OK");
    const std::string said = reader.reply();
    CHECK(begins_with(said, "NMC_ERR_STALE") || begins_with(said, "NMC_ERR_NOT_FOUND"));

    promise("a_watched_key_becomes_a_completion_when_another_process_publishes_it");
    const std::string watched = "watched" + std::to_string(writer);
    SAYS(reader.ask("watch " + watched + " 42"), "NMC_OK");
    reader.send("completion");
    sleep_ms(30);
    SAYS(ranks[writer].ask("put " + watched + " 100 1"), "NMC_OK");
    SAYS(reader.reply(), "42 NMC_OK");
    SAYS(reader.ask("get " + watched + " 100 1"), "right");
  }
  dismiss_clients(ranks);
  CHECK(place.leftovers().empty());
}

void mismatch() {
  promise("clients_that_disagree_are_refused_with_both_values");
  Place place;
  StoreWish other;
  other.page_bytes = 2 * kPage;
  other.pages = 32;  // heaps of the same size
  std::vector<Process> ranks;
  ranks.push_back(client_process(place, 0, 2));
  ranks.push_back(client_process(place, 1, 2, other));
  for (Process& rank : ranks) REQUIRE(SAYS(rank.reply(), "NMC_OK"));
  SAYS(ranks[0].ask("create"), "NMC_OK");
  const std::string said = ranks[1].ask("create");
  SAYS(said, "NMC_ERR_MISMATCH");
  CHECK(said.find("4096") != std::string::npos && said.find("8192") != std::string::npos);
  SAYS(ranks[0].ask("put k 100 1"), "NMC_OK");
  SAYS(ranks[0].ask("leave"), "NMC_OK");
  dismiss(ranks);
  CHECK(place.leftovers().empty());
}

void leaving() {
  promise("a_client_that_leaves_takes_nothing_with_it_and_can_come_back");
  Place place;
  std::vector<Process> ranks = whole_store(place, 2);
  SAYS(ranks[1].ask("put k 9000 1 1"), "NMC_OK");
  SAYS(ranks[1].ask("open unfinished 4096"), "NMC_OK");
  SAYS(ranks[1].ask("pin k"), "NMC_OK");
  SAYS(ranks[1].ask("leave"), "NMC_OK");
  SAYS(ranks[0].ask("get k 9000 1"), "right");
  SAYS(ranks[0].ask("exists unfinished"), "ABSENT");
  saw_in_time(ranks[0].ask("await_bytes 12288"), "what it was writing came back");
  SAYS(ranks[1].ask("create"), "NMC_OK");
  SAYS(ranks[1].ask("get k 9000 1"), "right");
  promise("when_the_masters_rank_leaves_the_others_read_on_and_it_can_come_back");
  SAYS(ranks[0].ask("leave"), "NMC_OK");
  SAYS(ranks[1].ask("get k 9000 1"), "right");
  SAYS(ranks[1].ask("put l 9000 2"), "NMC_ERR_UNAVAILABLE");
  SAYS(ranks[0].ask("create"), "NMC_OK");
  saw_in_time(ranks[1].ask("await_put l 9000 2"), "master back");
  for (Process& rank : ranks) {
    SAYS(rank.ask("get k 9000 1"), "right");
    SAYS(rank.ask("get l 9000 2"), "right");
  }
  dismiss_clients(ranks);
  CHECK(place.leftovers().empty());

  promise("when_destroy_returns_the_client_has_left_also_if_keys_are_watched");
  {
    Place alone;
    std::vector<Process> one = whole_store(alone, 1);
    for (int round = 0; round < 100; ++round) {
      SAYS(one[0].ask("watch never 1"), "NMC_OK");
      if (!SAYS(one[0].ask("leave_and_look " + alone.dir + "/procs+store"), "gone")) break;
      SAYS(one[0].ask("create"), "NMC_OK");
    }
    dismiss_clients(one);
  }

  promise("a_store_that_is_destroyed_while_keys_are_watched_leaves_nothing_behind");
  for (int round = 0; round < 10; ++round) {
    Place fresh;
    std::vector<Process> pair = whole_store(fresh, 2);
    for (Process& rank : pair) SAYS(rank.ask("watch never 1"), "NMC_OK");
    sleep_ms(2 + round);
    for (size_t i : {1, 0}) {
      pair[i].send("leave_and_exit");
      CHECK(pair[i].ends_well());
    }
    const std::vector<std::string> left = fresh.leftovers();
    if (!CHECK(left.empty())) {
      printf("     round %d: %s\n", round, left[0].c_str());
      break;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  skip_without_join();
  const std::string only = argc > 1 ? argv[1] : "";
  const auto wanted = [&](const char* part) { return only.empty() || only == part; };
  if (wanted("reads")) reads_and_writes();
  if (wanted("waiting")) waiting();
  if (wanted("mismatch")) mismatch();
  if (wanted("leaving")) leaving();
  return finish();
}
