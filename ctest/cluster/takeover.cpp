// The store of a world of two ranks is a node by one of them. That one is killed, the other one attaches the store under the same name, and
// what is in both heaps is found again elsewhere, less what was removed.
#include "../support/cluster.hpp"
#include "../support/value.hpp"

namespace {

std::string value_of(uint64_t stamp, size_t size) {
  std::string value(size, ' ');
  make_value(stamp, 0, value.data(), size);
  return value;
}

// A rank of the world, with its store and a client. It says how that went, and obeys.
Process rank_of(const Place& place, const Setup& setup, const std::string& master) {
  return Process([&place, setup, master](Link& test) {
    const nmc_world_config_t config = config_of(place, setup);
    nmc_world_t* world = nullptr;
    nmc_status_t status = nmc_world_join(&config, &world);
    nmc_store_config_t wanted = NMC_STORE_CONFIG_INIT;
    wanted.attach_timeout_ms = 40000;
    nmc_store_t* store = nullptr;
    if (status == NMC_OK) status = nmc_store_create(world, &wanted, &store);
    test.say(outcome(status));
    if (status != NMC_OK) return;
    OpenClient client(master);
    obey(test, world, [&](const std::string& verb, std::istringstream& words, std::ostringstream& answer) {
      std::string key;
      words >> key;
      if (verb == "attach") {
        answer << outcome(nmc_client_attach_store(client, slice(key), store));
      } else if (verb == "own") {  // own <key> <stamp>: a put into the store, onto this rank's heap
        uint64_t stamp = 0;
        words >> stamp;
        const std::string value = value_of(stamp, 30000);
        answer << outcome(nmc_store_put(store, slice(key), value.data(), value.size(), nullptr));
      } else if (verb == "has") {
        uint32_t state = 77;
        const nmc_status_t found = nmc_store_exists(store, slice(key), &state);
        answer << (found == NMC_OK ? std::to_string(state) : outcome(found));
      } else {
        return false;
      }
      return true;
    });
    client.close();
    OK(nmc_store_destroy(store));
  });
}

// A client elsewhere; none of its processes is in the world.
struct Reader {
  OpenClient client;
  explicit Reader(const std::string& master) : client(master) {}

  bool reads(const std::string& key, uint64_t stamp) {
    std::string value(30000, ' ');
    const nmc_buffer_t to{value.data(), value.size()};
    uint64_t bytes = 0;
    return nmc_client_get(client, slice(key), &to, 1, &bytes) == NMC_OK && bytes == value.size() && value == value_of(stamp, value.size());
  }
  bool comes_to_read(const std::string& key, uint64_t stamp) {
    for (const double start = seconds_now(); seconds_now() - start < kPatience / 2; sleep_ms(10)) {
      if (reads(key, stamp)) return true;
    }
    return false;
  }
  nmc_status_t get(const std::string& key) {
    char byte = 0;
    const nmc_buffer_t to{&byte, 1};
    return nmc_client_get(client, slice(key), &to, 1, nullptr);
  }
  nmc_status_t put(const std::string& key, uint64_t stamp, const std::string& segment) {
    nmc_replicate_t options = NMC_REPLICATE_INIT;
    const nmc_location_t location{slice(segment), NMC_MEDIA_ANY, 0};
    options.locations = &location;
    options.n_locations = 1;
    const std::string value = value_of(stamp, 30000);
    const nmc_slice_t bytes = slice(value);
    return nmc_client_put(client, slice(key), &bytes, 1, &options);
  }
  nmc_status_t remove(const std::string& key) { return nmc_client_remove(client, slice(key), 0); }
};

void taken_over(bool external, size_t first) {
  Master master;
  Place place;
  Setup setup;
  setup.size = 2;
  setup.heap_bytes = 4 << 20;
  setup.external = external;
  Process keeper;
  if (external) {
    keeper = master_process(place, setup);
    REQUIRE(SAYS(keeper.reply(), "NMC_OK"));
  }
  std::vector<Process> ranks;
  for (int32_t rank : {0, 1}) {
    setup.rank = rank;
    ranks.push_back(rank_of(place, setup, master.address()));
  }
  for (Process& rank : ranks) REQUIRE(SAYS(rank.reply(), "NMC_OK"));
  Process& a = ranks[first];
  Process& b = ranks[1 - first];

  // The test itself never makes a handle: it forks.
  Process elsewhere([&](Link& test) {
    Reader reader(master.address());
    std::string line;
    while (test.hear(line, 1e6) && line != "quit") {
      std::istringstream words(line);
      std::string verb, key, segment;
      uint64_t stamp = 0;
      words >> verb >> key >> stamp >> segment;
      if (verb == "reads") test.say(reader.comes_to_read(key, stamp) ? "right" : "not found");
      else if (verb == "get") test.say(outcome(reader.get(key)));
      else if (verb == "put") test.say(outcome(reader.put(key, stamp, segment)));
      else if (verb == "remove") test.say(outcome(reader.remove(key)));
      else test.say("what is " + verb + "?");
    }
  });

  promise("one_rank_attaches_the_store_and_values_of_all_ranks_are_found");
  REQUIRE(SAYS(a.ask("attach n"), "NMC_OK"));
  SAYS(a.ask("own of-a 1"), "NMC_OK");
  SAYS(b.ask("own of-b 2"), "NMC_OK");
  for (const char* key : {"removed-a 3", "late-a 4"}) SAYS(a.ask(std::string("own ") + key), "NMC_OK");
  for (const char* key : {"removed-b 5", "late-b 6"}) SAYS(b.ask(std::string("own ") + key), "NMC_OK");
  for (const char* key : {"of-a 1", "of-b 2", "removed-a 3", "late-a 4", "removed-b 5", "late-b 6"}) {
    SAYS(elsewhere.ask(std::string("reads ") + key), "right");
  }
  SAYS(elsewhere.ask("put put-0 7 n/0"), "NMC_OK");
  SAYS(elsewhere.ask("put put-1 8 n/1"), "NMC_OK");
  for (const char* key : {"removed-a", "removed-b"}) SAYS(elsewhere.ask(std::string("remove ") + key), "NMC_OK");

  promise("it_is_killed_and_another_one_attaches_the_store_under_its_name");
  a.kill9();
  const double killed = seconds_now();
  elsewhere.send("remove late-a");
  if (first == 0 && !external) {  // the master of the store died too: somebody has to start it again
    setup.rank = 0;
    a = rank_of(place, setup, master.address());
    REQUIRE(SAYS(a.reply(), "NMC_OK"));
  }
  REQUIRE(SAYS(b.ask("attach n"), "NMC_OK"));
  SAYS(elsewhere.reply(), "NMC_OK");
  for (const char* key : {"of-a 1", "of-b 2", "put-0 7", "put-1 8", "late-b 6"}) SAYS(elsewhere.ask(std::string("reads ") + key), "right");
  printf("     found again %.2f s after the death\n", seconds_now() - killed);
  for (const char* key : {"removed-a", "removed-b", "late-a"}) {
    SAYS(elsewhere.ask(std::string("get ") + key), "NMC_ERR_NOT_FOUND");
    SAYS(b.ask(std::string("has ") + key), "0");
  }

  promise("it_is_a_node_like_any_other");
  SAYS(elsewhere.ask("remove late-b"), "NMC_OK");
  SAYS(elsewhere.ask("get late-b"), "NMC_ERR_NOT_FOUND");
  SAYS(b.ask("own more 9"), "NMC_OK");
  SAYS(elsewhere.ask("reads more 9"), "right");
  SAYS(elsewhere.ask("put more-0 10 n/" + std::to_string(1 - first)), "NMC_OK");
  SAYS(elsewhere.ask("reads more-0 10"), "right");
  elsewhere.send("quit");
  CHECK(elsewhere.ends_well());
}

}  // namespace

int main() {
  skip_without_join();
  printf("the master of the store lives\n");
  taken_over(false, 1);
  printf("the master of the store dies with it, and is started again\n");
  taken_over(false, 0);
  printf("the master of the store is a process of its own\n");
  for (size_t first : {0, 1}) taken_over(true, first);
  return finish();
}
