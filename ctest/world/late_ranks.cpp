// Ranks that come later: two of four form the world and use its store, a third comes, reads, writes and dies, the fourth comes,
// and the third place is taken again. With the master in rank 0, and elsewhere.
#include "../support/store_puppet.hpp"

namespace {

constexpr uint32_t kSize = 4, kLeast = 2;

// A store's master hears of a heap a moment after the rank has joined.
void put_on(Process& writer, const std::string& key, int rank) {
  const double deadline = seconds_now() + 30;
  std::string said;
  do {
    said = writer.ask("put " + key + " 9000 3 " + std::to_string(rank));
  } while (begins_with(said, "NMC_ERR_PEER_LOST") && seconds_now() < deadline);
  SAYS(said, "NMC_OK");
}

void everyone_reads(std::vector<Process*> ranks, const std::string& key) {
  for (Process* rank : ranks) SAYS(rank->ask("get " + key + " 9000 3"), "right");
}

void story(bool external) {
  Place place;
  StoreWish wish;
  wish.least = kLeast;
  wish.external = external;
  Process master;
  if (external) {
    master = master_process(place, setup_of(-1, kSize, wish));
    REQUIRE(SAYS(master.reply(), "NMC_OK"));
  }

  promise("two_of_four_form_a_world_and_use_its_store");
  Process first = client_process(place, 0, kSize, wish), second = client_process(place, 1, kSize, wish);
  for (Process* rank : {&first, &second}) REQUIRE(SAYS(rank->reply(), "NMC_OK"));
  for (Process* rank : {&first, &second}) rank->send("create");
  for (Process* rank : {&first, &second}) REQUIRE(SAYS(rank->reply(), "NMC_OK"));
  SAYS(first.ask("state 2"), "ABSENT");
  SAYS(first.ask("generation 2"), "0");
  SAYS(second.ask("puts early 40 4096"), "40");  // wherever their hashes say: no rank that is absent is among them
  SAYS(first.ask("gets early 40 4096"), "40");
  CHECK(begins_with(first.ask("put nowhere 9000 3 2"), "NMC_ERR_PEER_LOST"));

  promise("a_third_comes_later_reads_what_is_there_and_stores_where_all_can_read_it");
  Process third = come(place, 2, kSize, wish);
  for (Process* rank : {&first, &second}) CHECK(atof(rank->ask("await 2 ALIVE").c_str()) >= 0);
  SAYS(third.ask("gets early 40 4096"), "40");
  put_on(third, "own", 2);
  put_on(first, "given", 2);
  put_on(third, "there", 1);
  for (const char* key : {"own", "given", "there"}) everyone_reads({&first, &second, &third}, key);
  SAYS(second.ask("pin own"), "NMC_OK");

  promise("it_dies_and_what_lies_in_its_heap_stays");
  third.kill9();
  for (Process* rank : {&first, &second}) CHECK(atof(rank->ask("await 2 GONE").c_str()) >= 0);
  everyone_reads({&first, &second}, "own");
  SAYS(second.ask("look_at own 3"), "right");

  promise("the_fourth_comes_and_knows_them_all");
  Process fourth = come(place, 3, kSize, wish);
  SAYS(fourth.ask("state 2"), "GONE");
  everyone_reads({&fourth}, "own");
  put_on(fourth, "last", 3);
  put_on(second, "also", 3);
  for (const char* key : {"last", "also"}) everyone_reads({&first, &second, &fourth}, key);

  promise("and_the_third_place_is_taken_again_with_what_lies_there");
  third = come(place, 2, kSize, wish);
  SAYS(third.ask("generation 2"), "2");
  for (const char* key : {"own", "given", "last"}) everyone_reads({&first, &second, &third, &fourth}, key);
  put_on(third, "again", 2);
  everyone_reads({&first, &second, &third, &fourth}, "again");
  SAYS(second.ask("look_at own 3"), "right");
  SAYS(second.ask("unpin own"), "NMC_OK");

  std::vector<Process> ranks;
  for (Process* rank : {&first, &second, &third, &fourth}) ranks.push_back(std::move(*rank));
  dismiss_clients(ranks);
  if (external) {
    master.send("quit");
    CHECK(master.ends_well());
  }
  CHECK(place.leftovers().empty());
}

}  // namespace

int main() {
  skip_without_join();
  story(false);
  story(true);
  return finish();
}
