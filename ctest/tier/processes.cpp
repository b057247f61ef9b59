// The tier between processes: every rank reads the disk by itself, also while the master is stopped or dead; a new master goes on with the
// directory; and what was removed does not come back, whoever is killed.
#include "../support/store_puppet.hpp"
#include "../support/tier_check.hpp"

namespace {

constexpr uint32_t kRanks = 3;

StoreWish wish() {
  StoreWish wish;
  wish.pages = 512;
  return wish;
}

// A client that can open the tier, too.
Process tier_process(const Place& place, int32_t rank) {
  const Setup setup = setup_of(rank, kRanks, wish());
  return Process([&place, setup](Link& test) {
    const nmc_world_config_t config = config_of(place, setup);
    nmc_world_t* world = nullptr;
    const nmc_status_t status = nmc_world_join(&config, &world);
    test.say(outcome(status));
    if (status != NMC_OK) return;
    Client client(world, wish());
    nmc_tier_t* tier = nullptr;
    obey(test, world, [&](const std::string& verb, std::istringstream& words, std::ostringstream& answer) {
      std::string word;
      if (verb == "tier") {  // tier [<directory>]: opens it
        words >> word;
        const nmc_tier_config_t own = tier_config(word);
        answer << outcome(nmc_tier_open(client.store(), word.empty() ? nullptr : &own, &tier));
      } else if (verb == "untier") {
        answer << outcome(nmc_tier_close(tier));
        tier = nullptr;
      } else if (verb == "offload") {  // offload [<key>]: all, or one; how many were written
        uint64_t written = 0;
        words >> word;
        const nmc_slice_t key = bytes_of(word);
        const size_t n = word.empty() ? 0 : 1;
        const nmc_status_t offloaded = nmc_tier_offload(tier, n == 0 ? nullptr : &key, n, &written);
        answer << (offloaded == NMC_OK ? std::to_string(written) : outcome(offloaded));
      } else if (verb == "prefetch") {  // prefetch <key>...: what became of each
        std::vector<std::string> names;
        while (words >> word) names.push_back(word);
        std::vector<nmc_slice_t> keys;
        for (const std::string& name : names) keys.push_back(bytes_of(name));
        std::vector<nmc_status_t> statuses(keys.size());
        (void)nmc_tier_prefetch(tier, keys.data(), keys.size(), statuses.data());
        for (const nmc_status_t status : statuses) answer << nmc_status_name(status) << " ";
      } else if (verb == "clear_disk") {  // how many went
        uint64_t evicted = 0;
        const nmc_status_t cleared = nmc_tier_evict(tier, 0, &evicted);
        answer << (cleared == NMC_OK ? std::to_string(evicted) : outcome(cleared));
      } else if (verb == "sync") {
        answer << outcome(nmc_tier_sync(tier));
      } else if (verb == "pause") {
        answer << outcome(nmc_tier_pause(tier));
      } else if (verb == "resume") {
        answer << outcome(nmc_tier_resume(tier));
      } else if (verb == "scan") {  // scan <prefix>: how many keys it comes to, and how many of them begin so
        const std::map<std::string, uint64_t> found = scanned(tier);
        words >> word;
        const auto is = [&word](const auto& one) { return one.first.compare(0, word.size(), word) == 0; };
        answer << found.size() << " " << std::count_if(found.begin(), found.end(), is);
      } else if (verb == "walk") {  // what became of a scan, and of going through all keys
        const auto each = [](void*, const nmc_tier_entry_t*) -> int32_t { return 1; };
        if (tier != nullptr) answer << nmc_status_name(nmc_tier_scan(tier, each, nullptr)) << " ";
        uint64_t cursor = 0, bytes = 0;
        char key[256];
        size_t length = 0;
        nmc_status_t next = NMC_OK;
        while (next == NMC_OK) next = nmc_store_next(client.store(), &cursor, key, sizeof key, &length, &bytes);
        answer << nmc_status_name(next);
      } else if (verb == "judge") {  // what became of a verify
        nmc_tier_verified_t found = NMC_TIER_VERIFIED_INIT;
        answer << nmc_status_name(nmc_tier_verify(tier, nullptr, nullptr, &found));
      } else if (verb == "verify") {  // values that are right, wrong, unreadable
        const nmc_tier_verified_t found = verified(tier);
        answer << found.objects << " " << found.corrupt << " " << found.unreadable;
      } else if (verb == "tier_stats") {  // owner objects paused read_objects
        const nmc_tier_stats_t stats = tier_stats(tier);
        answer << stats.owner << " " << stats.objects << " " << stats.paused << " " << stats.read_objects;
      } else if (verb == "evict") {  // all ranks
        nmc_status_t evicted = NMC_OK;
        for (int32_t owner = 0; owner < static_cast<int32_t>(kRanks) && evicted == NMC_OK; ++owner) {
          evicted = nmc_store_evict_until_below(client.store(), owner, 0);
        }
        answer << outcome(evicted);
      } else {
        return client.act(verb, words, answer);
      }
      return true;
    });
  });
}

std::vector<Process> tiered(const Place& place) {
  std::vector<Process> ranks;
  for (uint32_t rank = 0; rank < kRanks; ++rank) ranks.push_back(tier_process(place, static_cast<int32_t>(rank)));
  for (Process& rank : ranks) REQUIRE(SAYS(rank.reply(), "NMC_OK"));
  for (Process& rank : ranks) rank.send("create");
  for (Process& rank : ranks) REQUIRE(SAYS(rank.reply(), "NMC_OK"));
  return ranks;
}

void kill_all(std::vector<Process>& ranks) {
  for (Process& rank : ranks) rank.kill9();
}

void reading() {
  Place place;
  TierDir dir;
  std::vector<Process> ranks = tiered(place);
  promise("elsewhere_than_in_the_masters_process_there_is_no_tier_before_that_has_opened_it");
  SAYS(ranks[1].ask("tier"), "NMC_ERR_NOT_FOUND");
  REQUIRE(SAYS(ranks[0].ask("tier " + dir.path), "NMC_OK"));

  promise("a_rank_that_is_not_the_master_reads_from_disk_by_itself");
  SAYS(ranks[1].ask("puts a/ 40 5000"), "40");
  SAYS(ranks[0].ask("offload"), "40");
  SAYS(ranks[0].ask("evict"), "NMC_OK");
  for (Process& rank : ranks) {
    SAYS(rank.ask("exists a/7"), "ON_DISK");
    SAYS(rank.ask("gets a/ 40 5000"), "40");
    SAYS(rank.ask("pin a/7"), "NMC_NOT_READY");
  }

  promise("a_handle_elsewhere_asks_the_owner_or_says_that_it_cannot");
  REQUIRE(SAYS(ranks[1].ask("tier"), "NMC_OK"));
  SAYS(ranks[1].ask("tier_stats"), "0 40 ");
  SAYS(ranks[0].ask("tier_stats"), "1 40 1 40");
  SAYS(ranks[1].ask("sync"), "NMC_OK");
  SAYS(ranks[1].ask("resume"), "NMC_OK");
  SAYS(ranks[0].ask("tier_stats"), "1 40 0 ");
  SAYS(ranks[1].ask("pause"), "NMC_OK");
  SAYS(ranks[0].ask("tier_stats"), "1 40 1 ");
  SAYS(ranks[2].ask("put late 5000 1"), "NMC_OK");
  SAYS(ranks[1].ask("offload"), "1");
  SAYS(ranks[0].ask("tier_stats"), "1 41 1 ");
  SAYS(ranks[2].ask("remove late"), "NMC_OK");
  for (Process* rank : {&ranks[0], &ranks[1]}) {
    SAYS(rank->ask("scan /a/"), "40 40");
    SAYS(rank->ask("verify"), "40 0 0");
  }
  CHECK(damaged(dir.path, value_of(12, 5000)) == 1);
  SAYS(ranks[1].ask("verify"), "39 1 0");  // which the owner has found as well, and given up
  SAYS(ranks[0].ask("verify"), "39 0 0");
  SAYS(ranks[2].ask("exists a/12"), "ABSENT");
  SAYS(ranks[2].ask("put a/12 5000 12"), "NMC_OK");
  SAYS(ranks[1].ask("offload"), "1");
  SAYS(ranks[0].ask("evict"), "NMC_OK");
  SAYS(ranks[1].ask("scan /a/"), "40 40");

  promise("keys_are_offloaded_and_brought_back_from_any_process");
  SAYS(ranks[2].ask("put mine 5000 1"), "NMC_OK");
  SAYS(ranks[1].ask("offload none"), "0");
  SAYS(ranks[1].ask("offload mine"), "1");
  SAYS(ranks[0].ask("tier_stats"), "1 41 ");
  SAYS(ranks[1].ask("prefetch a/7 mine none a/8"), "NMC_OK NMC_OK NMC_ERR_NOT_FOUND NMC_OK ");
  for (Process& rank : ranks) {
    SAYS(rank.ask("exists a/7"), "READY");
    SAYS(rank.ask("exists a/9"), "ON_DISK");
    SAYS(rank.ask("gets a/ 40 5000"), "40");
  }
  SAYS(ranks[0].ask("tier_stats"), "1 41 ");  // they are in both places
  SAYS(ranks[0].ask("evict"), "NMC_OK");
  SAYS(ranks[2].ask("exists a/7"), "ON_DISK");
  SAYS(ranks[2].ask("remove mine"), "NMC_OK");
  SAYS(ranks[1].ask("untier"), "NMC_OK");
  SAYS(ranks[2].ask("gets a/ 40 5000"), "40");

  promise("a_second_owner_of_the_directory_is_told_of_the_first");
  {
    Process other([&dir](Link& test) {
      Embedded store;
      nmc_tier_t* tier = nullptr;
      const nmc_tier_config_t config = tier_config(dir.path);
      test.say(outcome(nmc_tier_open(store, &config, &tier)));
      std::string line;
      test.hear(line, 1e6);
    });
    const std::string said = other.reply();
    SAYS(said, "NMC_ERR_EXISTS");
    CHECK(said.find(std::to_string(ranks[0].pid())) != std::string::npos);
    other.send("end");
    CHECK(other.ends_well());
  }

  promise("reads_from_disk_ask_nobody");
  REQUIRE(kill(ranks[0].pid(), SIGSTOP) == 0);
  for (size_t rank : {1, 2}) {
    SAYS(ranks[rank].ask("gets a/ 40 5000"), "40");
    SAYS(ranks[rank].ask("exists a/39"), "ON_DISK");
  }
  REQUIRE(kill(ranks[0].pid(), SIGCONT) == 0);

  promise("a_key_that_another_rank_removed_is_gone_for_all");
  SAYS(ranks[2].ask("remove a/0"), "NMC_OK");
  for (Process& rank : ranks) SAYS(rank.ask("get a/0 5000 0"), "<NMC_ERR_NOT_FOUND>");
  SAYS(ranks[2].ask("put a/0 5000 77"), "NMC_OK");
  SAYS(ranks[1].ask("get a/0 5000 77"), "right");

  promise("what_is_evicted_from_the_disk_is_gone_for_all_but_in_memory");
  REQUIRE(SAYS(ranks[1].ask("tier"), "NMC_OK"));
  SAYS(ranks[1].ask("prefetch a/5"), "NMC_OK ");
  SAYS(ranks[1].ask("clear_disk"), "39");
  for (Process& rank : ranks) {
    SAYS(rank.ask("exists a/5"), "READY");
    SAYS(rank.ask("exists a/6"), "ABSENT");
  }
  SAYS(ranks[1].ask("get a/0 5000 77"), "right");
  SAYS(ranks[1].ask("prefetch a/6"), "NMC_ERR_NOT_FOUND ");
  SAYS(ranks[2].ask("put a/6 5000 78"), "NMC_OK");
  SAYS(ranks[0].ask("offload"), "3");  // a/0, a/5 and a/6
  SAYS(ranks[1].ask("untier"), "NMC_OK");

  promise("a_closed_tier_is_closed_for_all");
  SAYS(ranks[0].ask("evict"), "NMC_OK");
  SAYS(ranks[0].ask("untier"), "NMC_OK");
  for (Process& rank : ranks) SAYS(rank.ask("exists a/5"), "ABSENT");
  dismiss_clients(ranks);
  CHECK(place.leftovers().empty());
}

void master_killed() {
  Place place;
  TierDir dir;
  std::vector<Process> ranks = tiered(place);
  REQUIRE(SAYS(ranks[0].ask("tier " + dir.path), "NMC_OK"));
  for (int round = 1; round <= 3; ++round) {
    printf("round %d\n", round);
    const std::string name = "r" + std::to_string(round);
    SAYS(ranks[1].ask("puts " + name + "/ 30 5000"), "30");
    SAYS(ranks[0].ask("offload"), "30");
    SAYS(ranks[0].ask("evict"), "NMC_OK");
    SAYS(ranks[1].ask("put " + name + "memory 5000 5 1"), "NMC_OK");
    SAYS(ranks[2].ask("remove " + name + "/0"), "NMC_OK");
    for (size_t rank : {1, 2}) SAYS(ranks[rank].ask("gets " + name + "/ 30 5000"), "29");

    promise("while_the_master_is_dead_the_disk_is_read");
    ranks[0].kill9();
    for (size_t rank : {1, 2}) {
      SAYS(ranks[rank].ask("gets " + name + "/ 30 5000"), "29");
      SAYS(ranks[rank].ask("get " + name + "/0 5000 0"), "<NMC_ERR_NOT_FOUND>");
      SAYS(ranks[rank].ask("get " + name + "memory 5000 5"), "right");
      SAYS(ranks[rank].ask("put " + name + "late 5000 1"), "NMC_ERR_UNAVAILABLE");
      SAYS(ranks[rank].ask("remove " + name + "/1"), "NMC_ERR_UNAVAILABLE");
    }

    promise("a_new_master_writes_nothing_before_it_has_opened_the_same_tier_again");
    ranks[0] = tier_process(place, 0);
    REQUIRE(SAYS(ranks[0].reply(), "NMC_OK"));
    REQUIRE(SAYS(ranks[0].ask("create"), "NMC_OK"));
    for (size_t rank : {1, 2}) {
      SAYS(ranks[rank].ask("put " + name + "late 5000 1"), "NMC_ERR_UNAVAILABLE");
      SAYS(ranks[rank].ask("gets " + name + "/ 30 5000"), "29");
    }
    TierDir other;
    SAYS(ranks[0].ask("tier " + other.path), "NMC_ERR_MISMATCH");
    for (size_t rank : {1, 2}) {
      SAYS(ranks[rank].ask("put " + name + "late 5000 1"), "NMC_ERR_UNAVAILABLE");
      SAYS(ranks[rank].ask("gets " + name + "/ 30 5000"), "29");
    }
    REQUIRE(SAYS(ranks[0].ask("tier " + dir.path), "NMC_OK"));
    saw_in_time(ranks[1].ask("await_put " + name + "late 5000 1"), "rank 1 can write");
    for (Process& rank : ranks) {
      SAYS(rank.ask("gets " + name + "/ 30 5000"), "29");
      SAYS(rank.ask("get " + name + "/0 5000 0"), "<NMC_ERR_NOT_FOUND>");
      SAYS(rank.ask("get " + name + "memory 5000 5"), "right");
      SAYS(rank.ask("get " + name + "late 5000 1"), "right");
    }
    SAYS(ranks[2].ask("put " + name + "/1 5000 9"), "NMC_ERR_EXISTS");
    SAYS(ranks[2].ask("remove " + name + "/1"), "NMC_OK");
    for (Process& rank : ranks) SAYS(rank.ask("get " + name + "/1 5000 1"), "<NMC_ERR_NOT_FOUND>");
    SAYS(ranks[0].ask("offload"), "2");  // memory and late
  }
  SAYS(ranks[0].ask("untier"), "NMC_OK");
  dismiss_clients(ranks);
}

// What an owner that was killed had begun to give up looks damaged until the next one has the directory.
void damage_that_nobody_can_judge() {
  Place place;
  TierDir dir;
  std::vector<Process> ranks = tiered(place);
  REQUIRE(SAYS(ranks[0].ask("tier " + dir.path), "NMC_OK"));
  REQUIRE(SAYS(ranks[1].ask("tier"), "NMC_OK"));
  SAYS(ranks[1].ask("puts a/ 30 5000"), "30");
  SAYS(ranks[0].ask("offload"), "30");
  SAYS(ranks[0].ask("evict"), "NMC_OK");
  SAYS(ranks[0].ask("walk"), "NMC_OK NMC_ERR_NOT_FOUND");
  for (const auto& file : std::filesystem::directory_iterator(dir.path)) {
    if (file.path().extension() != ".bucket") continue;
    std::filesystem::resize_file(file.path(), 0);
  }
  promise("a_list_that_is_not_whole_is_corrupt_when_its_owner_keeps_it");
  SAYS(ranks[2].ask("walk"), "NMC_ERR_CORRUPT");
  promise("and_unavailable_while_there_is_no_owner");
  ranks[0].kill9();
  SAYS(ranks[2].ask("walk"), "NMC_ERR_UNAVAILABLE");
  SAYS(ranks[1].ask("walk"), "NMC_ERR_UNAVAILABLE NMC_ERR_UNAVAILABLE");
  SAYS(ranks[1].ask("judge"), "NMC_ERR_UNAVAILABLE");
  promise("the_next_owner_judges_it");
  ranks[0] = tier_process(place, 0);
  REQUIRE(SAYS(ranks[0].reply(), "NMC_OK"));
  REQUIRE(SAYS(ranks[0].ask("create"), "NMC_OK"));
  SAYS(ranks[2].ask("walk"), "NMC_ERR_UNAVAILABLE");
  REQUIRE(SAYS(ranks[0].ask("tier " + dir.path), "NMC_OK"));
  saw_in_time(ranks[1].ask("await_put late 5000 1"), "rank 1 can write");
  SAYS(ranks[1].ask("walk"), "NMC_OK NMC_ERR_NOT_FOUND");
  SAYS(ranks[1].ask("gets a/ 30 5000"), "0");
  SAYS(ranks[0].ask("untier"), "NMC_OK");
  dismiss_clients(ranks);
}

void all_killed() {
  promise("when_all_are_killed_the_next_world_finds_what_was_on_disk_and_nothing_that_was_removed");
  TierDir dir;
  for (int round = 1; round <= 3; ++round) {
    printf("round %d\n", round);
    Place place;
    std::vector<Process> ranks = tiered(place);
    REQUIRE(SAYS(ranks[0].ask("tier " + dir.path), "NMC_OK"));
    for (int before = 1; before < round; ++before) {
      const std::string name = "r" + std::to_string(before);
      for (Process& rank : ranks) {
        SAYS(rank.ask("gets " + name + "/ 30 5000"), "28");
        SAYS(rank.ask("exists " + name + "/0"), "ABSENT");
        SAYS(rank.ask("exists " + name + "/1"), "ABSENT");
        SAYS(rank.ask("exists " + name + "memory"), "ABSENT");
      }
    }
    const std::string name = "r" + std::to_string(round);
    SAYS(ranks[1].ask("puts " + name + "/ 30 5000"), "30");
    SAYS(ranks[0].ask("offload"), "30");
    SAYS(ranks[2].ask("remove " + name + "/0"), "NMC_OK");  // in memory and on disk
    SAYS(ranks[0].ask("evict"), "NMC_OK");
    SAYS(ranks[2].ask("remove " + name + "/1"), "NMC_OK");  // on disk only
    SAYS(ranks[1].ask("put " + name + "memory 5000 1"), "NMC_OK");
    kill_all(ranks);
  }
}

}  // namespace

int main() {
  skip_without_join();
  reading();
  master_killed();
  damage_that_nobody_can_judge();
  all_killed();
  return finish();
}
