// A store whose own reads go on to the cluster (nmc_client_open_store): what others have is found by every read that says so, and by no other;
// whatever ends, in whatever order, ends the reads that wait for it.
#include <atomic>
#include <cstring>
#include <thread>

#include "../support/cluster.hpp"
#include "../support/value.hpp"

namespace {

nmc_slice_t key(const char* text) { return {text, strlen(text)}; }

// A process with a node. It puts what it is told to, on itself.
Process node_process(const std::string& master, const std::string& name) {
  return Process([master, name](Link& test) {
    OpenClient client(master);
    nmc_store_t *store = nullptr, *space = nullptr;
    const nmc_store_config_t config = segment_of(32 << 20);
    OK(nmc_store_create(nullptr, &config, &store));
    OK(nmc_store_namespace(store, slice("space"), UINT64_MAX, &space));
    test.say(outcome(nmc_client_attach_store(client, slice(name), store)));
    std::string line;
    while (test.hear(line, 1e6)) {  // put|space <key> <size> <stamp>
      std::istringstream words(line);
      std::string verb, key;
      size_t size = 0;
      uint64_t stamp = 0;
      words >> verb >> key >> size >> stamp;
      const std::string value = value_of(stamp, size);
      nmc_status_t status = nmc_store_put(verb == "space" ? space : store, slice(key), value.data(), size, nullptr);
      if (status == NMC_OK) status = nmc_client_sync(client);
      test.say(outcome(status));
    }
    client.close();
    nmc_store_destroy(space);
    nmc_store_destroy(store);
  });
}

struct Stores {
  nmc_store_t *near = nullptr, *far = nullptr;
  Stores(nmc_client_t* client, int64_t timeout_ms) {
    const nmc_store_config_t config = segment_of(8 << 20);
    OK(nmc_store_create(nullptr, &config, &near));
    OK(nmc_client_open_store(client, near, timeout_ms, &far));
  }
  ~Stores() {
    OK(nmc_store_destroy(far));
    OK(nmc_store_destroy(near));
  }
};

nmc_status_t read(nmc_store_t* store, const std::string& key, uint64_t stamp, size_t size) {
  std::string value(size, ' ');
  const nmc_status_t status = nmc_store_get_into(store, slice(key), value.data(), size);
  return status == NMC_OK && value != value_of(stamp, size) ? NMC_ERR_CORRUPT : status;
}

uint32_t state(nmc_store_t* store, const char* key) {
  uint32_t state = 99;
  OK(nmc_store_exists(store, slice(key), &state));
  return state;
}

bool unknown(nmc_status_t status) { return status == NMC_ERR_UNAVAILABLE || status == NMC_ERR_TIMEOUT; }

void every_read() {
  Master master;
  Process node = node_process(master.address(), "a");
  REQUIRE(node.reply() == "NMC_OK");
  REQUIRE(node.ask("put far 300000 1") == "NMC_OK" && node.ask("put small 100 2") == "NMC_OK" && node.ask("put empty 0 3") == "NMC_OK");
  REQUIRE(node.ask("space other 5000 4") == "NMC_OK");
  OpenClient client(master.address());
  Stores stores(client, 20000);
  const std::string mine = value_of(9, 1000);
  OK(nmc_store_put(stores.near, slice("near"), mine.data(), mine.size(), nullptr));

  promise("a_read_that_goes_on_finds_what_a_node_has");
  std::string value(300000, ' ');
  size_t size = 0;
  OK(nmc_store_get(stores.far, slice("far"), value.data(), value.size(), &size));
  CHECK(size == 300000 && is_value(1, 0, value.data(), size));
  OK(nmc_store_get(stores.far, slice("small"), value.data(), value.size(), &size));
  CHECK(size == 100 && is_value(2, 0, value.data(), 100));
  OK(nmc_store_get(stores.far, slice("far"), nullptr, 0, &size));
  CHECK(size == 300000);
  CHECK(nmc_store_get(stores.far, slice("far"), value.data(), 10, &size) == NMC_ERR_TOO_SMALL && size == 300000);
  OK(nmc_store_get_into(stores.far, slice("empty"), nullptr, 0));
  CHECK(read(stores.far, "far", 1, 300000) == NMC_OK && read(stores.far, "near", 9, 1000) == NMC_OK);
  CHECK(read(stores.far, "far", 1, 299999) == NMC_ERR_INVALID_ARG && read(stores.far, "far", 1, 300001) == NMC_ERR_INVALID_ARG);

  promise("parts_of_what_a_node_has_are_read");
  std::string part(1000, ' ');
  const nmc_buffer_t two[2] = {{part.data(), 300}, {part.data() + 300, 700}};
  OK(nmc_store_get_slices(stores.far, slice("far"), 12345, two, 2, &size));
  CHECK(size == 300000 && is_value(1, 12345, part.data(), 1000));
  OK(nmc_store_get_slices(stores.far, slice("far"), 0, two, 2, &size));
  CHECK(is_value(1, 0, part.data(), 1000));
  CHECK(nmc_store_get_slices(stores.far, slice("far"), 299001, two, 2, &size) == NMC_ERR_INVALID_ARG);
  OK(nmc_store_get_strided(stores.far, slice("far"), 8, part.data(), 10, 8, 100));
  CHECK(is_value(1, 8 + 72, part.data() + 900, 8));

  promise("a_batch_reads_here_and_there");
  std::string first(1000, ' '), second(300000, ' '), third(100, ' '), fourth(7, ' ');
  const nmc_slice_t keys[4] = {key("near"), key("far"), key("small"), key("none")};
  const nmc_buffer_t into[4] = {{first.data(), 1000}, {second.data(), 300000}, {third.data(), 100}, {fourth.data(), 7}};
  nmc_status_t statuses[4];
  CHECK(nmc_store_get_into_batch(stores.far, keys, into, 4, statuses) == NMC_ERR_NOT_FOUND);
  CHECK(statuses[0] == NMC_OK && statuses[1] == NMC_OK && statuses[2] == NMC_OK && statuses[3] == NMC_ERR_NOT_FOUND);
  CHECK(first == mine && second == value_of(1, 300000) && third == value_of(2, 100));
  const nmc_buffer_t wrong = {second.data(), 299999};
  CHECK(nmc_store_get_into_batch(stores.far, keys + 1, &wrong, 1, statuses) == NMC_ERR_INVALID_ARG);

  promise("what_a_node_has_is_counted_as_there");
  uint32_t states[4];
  OK(nmc_store_exists_batch(stores.far, keys, 4, states));
  CHECK(states[0] == NMC_OBJECT_READY && states[1] == NMC_OBJECT_ELSEWHERE && states[2] == NMC_OBJECT_ELSEWHERE && states[3] == NMC_OBJECT_ABSENT);
  CHECK(state(stores.far, "far") == NMC_OBJECT_ELSEWHERE && state(stores.far, "none") == NMC_OBJECT_ABSENT);
  size_t matched = 0;
  OK(nmc_store_match_prefix(stores.far, keys, 4, &matched));
  CHECK(matched == 3);
  std::vector<nmc_slice_t> many(600, key("far"));
  many[555] = key("none");
  OK(nmc_store_match_prefix(stores.far, many.data(), many.size(), &matched));
  CHECK(matched == 555);

  promise("other_calls_are_about_this_store_alone");
  nmc_view_t view;
  nmc_object_meta_t meta;
  CHECK(nmc_store_pin(stores.far, slice("far"), &view) == NMC_ERR_NOT_FOUND && nmc_store_get_location(stores.far, slice("far"), &meta) == NMC_ERR_NOT_FOUND);
  CHECK(nmc_store_wait_ready(stores.far, slice("far"), 0, 1000) == NMC_ERR_NOT_FOUND && nmc_store_touch(stores.far, slice("far")) == NMC_ERR_NOT_FOUND);
  CHECK(nmc_store_retain(stores.far, slice("far"), NMC_RETAIN_SOFT, 0, 0) == NMC_ERR_NOT_FOUND && nmc_store_remove(stores.far, slice("far")) == NMC_ERR_NOT_FOUND);
  nmc_write_plan_t plan;
  OK(nmc_store_open_for_write(stores.far, slice("small"), 100, nullptr, &plan));
  CHECK(read(stores.far, "small", 2, 100) == NMC_NOT_READY);
  OK(nmc_store_abort(stores.far, &plan));
  CHECK(read(stores.far, "small", 2, 100) == NMC_OK);

  promise("namespaces_go_by_their_names");
  nmc_store_t *space = nullptr, *plain = nullptr;
  OK(nmc_store_namespace(stores.far, slice("space"), UINT64_MAX, &space));
  OK(nmc_store_namespace(stores.near, slice("space"), UINT64_MAX, &plain));
  CHECK(read(space, "other", 4, 5000) == NMC_OK && read(space, "far", 1, 300000) == NMC_ERR_NOT_FOUND);
  CHECK(read(stores.far, "other", 4, 5000) == NMC_ERR_NOT_FOUND);
  OK(nmc_store_destroy(space));

  promise("without_such_a_handle_a_miss_stays_here");  // the control of all above
  CHECK(read(stores.near, "far", 1, 300000) == NMC_ERR_NOT_FOUND && read(plain, "other", 4, 5000) == NMC_ERR_NOT_FOUND);
  CHECK(nmc_store_get(stores.near, slice("far"), value.data(), value.size(), &size) == NMC_ERR_NOT_FOUND);
  CHECK(nmc_store_get_into_batch(stores.near, keys, into, 4, statuses) == NMC_ERR_NOT_FOUND && statuses[1] == NMC_ERR_NOT_FOUND);
  OK(nmc_store_match_prefix(stores.near, keys, 4, &matched));
  CHECK(matched == 1 && state(stores.near, "far") == NMC_OBJECT_ABSENT);
  OK(nmc_store_destroy(plain));

  promise("a_forked_child_is_refused");
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) _exit(read(stores.far, "far", 1, 300000) == NMC_ERR_FORKED && nmc_store_destroy(stores.far) == NMC_OK ? 0 : 1);
  int ended = 1;
  waitpid(child, &ended, 0);
  CHECK(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);

  promise("what_was_read_is_kept_here_where_the_client_says_so");
  OpenClient keeper(master.address(), 20000, {}, NMC_CLIENT_KEEP_COPIES);
  Stores kept(keeper, 20000);
  OK(nmc_client_attach_store(keeper, slice("b"), kept.near));
  CHECK(read(kept.far, "far", 1, 300000) == NMC_OK);
  nmc_status_t status = NMC_ERR_NOT_FOUND;
  for (const double start = seconds_now(); status != NMC_OK && seconds_now() - start < kPatience / 2; sleep_ms(10)) status = read(kept.near, "far", 1, 300000);
  CHECK(status == NMC_OK && state(kept.far, "far") == NMC_OBJECT_READY);
  keeper.close();
}

void arguments() {
  promise("arguments_are_checked");
  Master master;
  OpenClient client(master.address());
  Stores stores(client, -1);
  nmc_store_t* made = stores.near;
  CHECK(nmc_client_open_store(client, stores.near, -2, &made) == NMC_ERR_INVALID_ARG && made == nullptr);
  CHECK(nmc_client_open_store(nullptr, stores.near, -1, &made) == NMC_ERR_BAD_HANDLE && nmc_client_open_store(client, nullptr, -1, &made) == NMC_ERR_BAD_HANDLE);
  CHECK(nmc_client_open_store(client, stores.near, -1, nullptr) == NMC_ERR_INVALID_ARG);
}

// What a read says that waits for an owner which is stopped, when `end` is called meanwhile.
template <class End>
nmc_status_t ended_by(nmc_store_t* store, const char* key, End end) {
  std::atomic<bool> begun{false};
  nmc_status_t said = NMC_OK;
  std::thread reader([&] {
    begun = true;
    said = read(store, key, 1, 5000);
  });
  while (!begun) sleep_ms(1);
  sleep_ms(100);
  end();
  reader.join();
  return said;
}

void ends() {
  Master master({"--settle_ms", "500"});
  Process node = node_process(master.address(), "a");
  REQUIRE(node.reply() == "NMC_OK");
  REQUIRE(node.ask("put k 5000 1") == "NMC_OK" && node.ask("put other 5000 1") == "NMC_OK");
  OpenClient client(master.address(), 60000), second(master.address(), 60000);
  Stores stores(client, -1), others(second, 60000);
  nmc_store_t* hasty = nullptr;
  OK(nmc_client_open_store(client, stores.near, 500, &hasty));
  const std::string mine = value_of(9, 1000);
  OK(nmc_store_put(stores.near, slice("near"), mine.data(), mine.size(), nullptr));
  CHECK(read(stores.far, "k", 1, 5000) == NMC_OK);

  promise("a_read_that_waits_ends_with_whatever_it_needs");
  stop_child(node.pid());
  CHECK(unknown(read(hasty, "k", 1, 5000)));
  CHECK(ended_by(stores.far, "k", [&] { OK(nmc_store_cancel(stores.far)); }) == NMC_ERR_CANCELLED);
  nmc_store_t* brief = nullptr;
  OK(nmc_client_open_store(client, stores.near, -1, &brief));
  const nmc_status_t said = ended_by(brief, "k", [&] { OK(nmc_store_destroy(brief)); });
  CHECK(said == NMC_ERR_CANCELLED);
  CHECK(ended_by(others.far, "k", [&] { second.close(); }) == NMC_ERR_CANCELLED);

  promise("after_its_client_a_handle_is_like_any_other");
  CHECK(read(others.far, "k", 1, 5000) == NMC_ERR_NOT_FOUND && state(others.far, "k") == NMC_OBJECT_ABSENT);
  kill(node.pid(), SIGCONT);
  CHECK(read(stores.far, "k", 1, 5000) == NMC_OK);

  promise("without_a_master_a_miss_is_not_known_to_be_one");
  master.kill9();
  CHECK(read(stores.far, "k", 1, 5000) == NMC_OK);  // its place is remembered
  CHECK(read(hasty, "near", 9, 1000) == NMC_OK && unknown(read(hasty, "none", 1, 10)) && unknown(read(hasty, "other", 1, 5000)));
  uint32_t found = 0;
  size_t matched = 0;
  const nmc_slice_t keys[2] = {key("near"), key("none")};
  CHECK(unknown(nmc_store_exists(hasty, slice("none"), &found)) && unknown(nmc_store_match_prefix(hasty, keys, 2, &matched)));
  OK(nmc_store_match_prefix(hasty, keys, 1, &matched));
  CHECK(matched == 1);
  OK(nmc_store_match_prefix(stores.near, keys, 2, &matched));
  CHECK(matched == 1);
  master.start();
  nmc_status_t status = NMC_ERR_TIMEOUT;
  for (const double start = seconds_now(); status != NMC_OK && seconds_now() - start < kPatience / 2; sleep_ms(20)) status = read(stores.far, "other", 1, 5000);
  CHECK(status == NMC_OK && read(stores.far, "none", 1, 10) == NMC_ERR_NOT_FOUND);
  OK(nmc_store_destroy(hasty));
}

}  // namespace

int main() {
  skip_without_join();
  { Master check; }  // skips the test if there is no such program
  // Each in a process of its own: nodes are forked off before it makes a handle.
  for (void (*one)() : {arguments, every_read, ends}) {
    Process process([one](Link&) { one(); });
    CHECK(process.ends_well());
  }
  return finish();
}
