// Calls that nobody waits for, with a master and nodes that are processes: many at once, from the event descriptor, past deadlines, with owners and
// masters that are killed or stopped, and a client that is closed with all of it under way.
#include <poll.h>

#include <map>
#include <thread>

#include "../support/cluster.hpp"
#include "../support/value.hpp"

namespace {

using Done = nmc_client_completion_t;

std::string key_of(uint64_t i) { return "key/" + std::to_string(i); }
size_t size_of(uint64_t i) { return i % 7 == 0 ? 150000 + i : 20 + i * 13 % 5000; }

// A process that will have a node of this name. All of them are made before the library is used here.
Process node(const std::string& master, const std::string& name, uint64_t bytes) {
  return Process([=](Link& test) {
    std::string line;
    OpenClient client;
    while (test.hear(line, 1e6)) {
      client = OpenClient(master);
      const nmc_store_config_t segment = segment_of(bytes);
      test.say(outcome(nmc_client_mount(client, slice(name), &segment)));
    }
  });
}

nmc_status_t put(nmc_client_t* client, const std::string& key, const std::string& value, uint64_t token, const char* where = nullptr) {
  nmc_replicate_t options = NMC_REPLICATE_INIT;
  const nmc_location_t place{{where, where == nullptr ? 0 : strlen(where)}, NMC_MEDIA_ANY, 0};
  if (where != nullptr) options.locations = &place, options.n_locations = 1;
  const nmc_slice_t bytes = slice(value);
  return nmc_client_submit_put(client, slice(key), &bytes, 1, &options, token);
}
nmc_status_t get(nmc_client_t* client, const std::string& key, std::string& to, uint64_t token) {
  const nmc_buffer_t buffer{to.data(), to.size()};
  return nmc_client_submit_get(client, slice(key), &buffer, 1, token);
}

// The next `n` completions by their tokens.
std::map<uint64_t, Done> take(nmc_client_t* client, size_t n, int64_t timeout_ms = -1) {
  std::map<uint64_t, Done> found;
  for (const double start = seconds_now(); found.size() < n && seconds_now() - start < kPatience;) {
    Done some[50];
    size_t taken = 0;
    if (!OK(nmc_client_completions(client, some, 50, timeout_ms, &taken))) break;
    for (size_t i = 0; i < taken; ++i) CHECK(found.emplace(some[i].token, some[i]).second);
    if (timeout_ms == -1 && taken == 0) break;
  }
  CHECK(found.size() == n);
  return found;
}
bool all_are(const std::map<uint64_t, Done>& done, nmc_status_t status) {
  bool right = true;
  for (const auto& [token, one] : done) right = CHECK(one.status == status) && right;
  return right;
}

// As a program with an event loop has it: it sleeps on the descriptor, and then takes what there is.
std::map<uint64_t, Done> take_by_descriptor(nmc_client_t* client, size_t n) {
  std::map<uint64_t, Done> found;
  int32_t fd = -1;
  REQUIRE(OK(nmc_client_event_fd(client, &fd)));
  for (const double start = seconds_now(); found.size() < n && seconds_now() - start < kPatience;) {
    pollfd look{fd, POLLIN, 0};
    if (!CHECK(poll(&look, 1, static_cast<int>(kPatience * 1000)) == 1)) break;
    Done some[7];
    size_t taken = 0;
    OK(nmc_client_completions(client, some, 7, 0, &taken));
    for (size_t i = 0; i < taken; ++i) found[some[i].token] = some[i];
  }
  CHECK(found.size() == n);
  return found;
}

void many(const Master& master, uint32_t flags) {
  const size_t n = 500;
  OpenClient client(master.address(), 30000, {}, flags);
  std::vector<std::string> values, rooms;
  for (size_t i = 0; i < n; ++i) values.push_back(value_of(i, size_of(i))), rooms.emplace_back(size_of(i), ' ');

  promise("many_calls_are_under_way_at_once_and_each_ends_once");
  for (size_t i = 0; i < n; ++i) OK(put(client, key_of(i), values[i], i));
  all_are(take(client, n), NMC_OK);
  for (size_t i = 0; i < n; ++i) OK(get(client, key_of(i), rooms[i], i));
  const auto got = flags == 0 ? take_by_descriptor(client, n) : take(client, n, 20);
  all_are(got, NMC_OK);
  for (size_t i = 0; i < n; ++i) CHECK(rooms[i] == values[i] && got.at(i).bytes == values[i].size());

  promise("calls_that_wait_go_on_beside_them");
  for (size_t i = 0; i < n; ++i) rooms[i].assign(size_of(i), ' ');
  for (size_t i = 0; i < n; ++i) {
    OK(get(client, key_of(i), rooms[i], i));
    if (i % 10 == 0) OK(nmc_client_exists(client, slice(key_of(i))));
  }
  std::thread other([&] {
    for (size_t i = 0; i < 50; ++i) OK(nmc_client_exists(client, slice(key_of(i))));
  });
  all_are(take(client, n), NMC_OK);
  other.join();
  for (size_t i = 0; i < n; ++i) CHECK(rooms[i] == values[i]);

  promise("what_a_call_that_waits_returns_its_completion_has");
  std::string small(3, ' ');
  OK(get(client, "none", small, 1));
  OK(get(client, key_of(0), small, 2));
  OK(nmc_client_submit_remove(client, slice(key_of(1)), 0, 3));
  OK(nmc_client_submit_remove(client, slice(std::string("none")), 0, 4));
  const auto told = take(client, 4);
  CHECK(told.at(1).status == NMC_ERR_NOT_FOUND && told.at(2).status == NMC_ERR_TOO_SMALL && told.at(2).bytes == size_of(0));
  CHECK(told.at(3).status == NMC_OK && told.at(4).status == NMC_ERR_NOT_FOUND);
  GIVES(nmc_client_exists(client, slice(key_of(1))), NMC_ERR_NOT_FOUND);
  size_t none = 7;
  OK(nmc_client_completions(client, nullptr, 0, -1, &none));
  CHECK(none == 0);

  promise("a_batch_ends_once_and_tells_of_every_item");
  std::vector<std::string> keys;
  for (size_t i = 0; i < 700; ++i) keys.push_back("batch/" + key_of(i));
  keys[13].clear();
  std::vector<nmc_slice_t> names, bytes;
  std::vector<nmc_buffer_t> buffers;
  for (size_t i = 0; i < 700; ++i) names.push_back(slice(keys[i])), bytes.push_back(slice(values[i % n]));
  std::vector<nmc_status_t> statuses(700, 77);
  OK(nmc_client_submit_put_batch(client, names.data(), bytes.data(), nullptr, 700, nullptr, 9, statuses.data()));
  const auto put = take(client, 1);
  CHECK(put.at(9).status == NMC_ERR_INVALID_ARG && statuses[13] == NMC_ERR_INVALID_ARG);
  for (size_t i = 0; i < 700; ++i) CHECK(i == 13 || statuses[i] == NMC_OK);
  rooms.clear();
  for (size_t i = 0; i < 700; ++i) rooms.emplace_back(values[i % n].size(), ' ');
  keys[14] = "none", names[14] = slice(keys[14]);
  for (size_t i = 0; i < 700; ++i) buffers.push_back({rooms[i].data(), rooms[i].size()});
  std::vector<uint64_t> sizes(700, 77);
  OK(nmc_client_submit_get_batch(client, names.data() + 14, buffers.data() + 14, nullptr, 686, 10, sizes.data() + 14, statuses.data() + 14));
  CHECK(take(client, 1).at(10).status == NMC_ERR_NOT_FOUND);
  CHECK(statuses[14] == NMC_ERR_NOT_FOUND && sizes[14] == 0);
  for (size_t i = 15; i < 700; ++i) CHECK(statuses[i] == NMC_OK && sizes[i] == rooms[i].size() && rooms[i] == values[i % n]);
  OK(nmc_client_submit_get_batch(client, nullptr, nullptr, nullptr, 0, 11, nullptr, nullptr));
  CHECK(take(client, 1).at(11).status == NMC_OK);
  OK(nmc_client_remove_all(client, 0));
}

void limits(Master& master) {
  OpenClient client(master.address(), 60000), hasty(master.address(), 700);
  std::string room(100, ' ');
  OK(nmc_client_exists(client, slice(key_of(0))) == NMC_ERR_NOT_FOUND ? NMC_OK : NMC_ERR_INTERNAL);

  promise("without_a_master_calls_end_by_their_deadline");
  master.stop();
  const std::string value = "value";
  const double start = seconds_now();
  OK(put(hasty, "k", value, 1));
  OK(get(hasty, "k", room, 2));
  OK(nmc_client_submit_remove(hasty, slice(std::string("k")), 0, 3));
  for (const auto& [token, done] : take_by_descriptor(hasty, 3)) CHECK(done.status == NMC_ERR_TIMEOUT || done.status == NMC_ERR_UNAVAILABLE);
  CHECK(seconds_now() - start < 30);

  promise("more_than_can_be_under_way_is_busy_and_goes_when_completions_are_taken");
  std::vector<std::string> rooms(NMC_CLIENT_MAX_SUBMITTED, std::string(10, ' '));
  for (size_t i = 0; i < rooms.size(); ++i) {
    if (!OK(get(client, "none", rooms[i], i))) break;
  }
  GIVES(get(client, "none", room, 1), NMC_ERR_BUSY);
  CHECK(strstr(nmc_last_error_message(), "4096") != nullptr);
  GIVES(put(client, "none", value, 1), NMC_ERR_BUSY);

  promise("what_is_cancelled_ends_at_once_and_nothing_else_does");
  OK(nmc_client_cancel(client, 17));
  GIVES(nmc_client_cancel(client, 17), NMC_ERR_NOT_FOUND);
  Done done{};
  size_t n = 0;
  OK(nmc_client_completions(client, &done, 1, -1, &n));
  CHECK(n == 1 && done.token == 17 && done.status == NMC_ERR_CANCELLED);
  OK(put(client, "k", value, 5000));
  master.signal(SIGCONT);
  for (const auto& [token, one] : take(client, NMC_CLIENT_MAX_SUBMITTED)) {
    CHECK(one.status == (token == 5000 ? NMC_OK : NMC_ERR_NOT_FOUND));
  }
}

void faults(const Master& master, std::vector<Process>& doomed, Process& owner) {
  const size_t large = 48 << 20;
  OpenClient client(master.address(), 5000);
  std::string value = value_of(3, large), room(large, ' ');

  promise("a_get_whose_owner_is_killed_ends_and_its_memory_is_the_callers");
  for (size_t round = 0; round < doomed.size(); ++round) {
    REQUIRE(doomed[round].ask("mount") == "NMC_OK");
    OK(put(client, "large", value, 1, ("doomed" + std::to_string(round)).c_str()));
    all_are(take(client, 1), NMC_OK);
    room.assign(large, ' ');
    OK(get(client, "large", room, 2));
    Done done{};
    size_t n = 0;
    for (size_t i = 0; i < 5 * round && n == 0; ++i) OK(nmc_client_completions(client, &done, 1, 1, &n));
    doomed[round].kill9();
    if (n == 0) OK(nmc_client_completions(client, &done, 1, -1, &n));
    CHECK(n == 1 && done.token == 2);
    // It may have come whole before; else its time is over, or nobody has it.
    if (done.status == NMC_OK) CHECK(room == value);
    else CHECK(done.status == NMC_ERR_TIMEOUT || done.status == NMC_ERR_NOT_FOUND || done.status == NMC_ERR_UNAVAILABLE);
    room.assign(large, 'm');
    size_t none = 0;
    OK(nmc_client_completions(client, &done, 1, 50, &none));
    CHECK(none == 0 && room == std::string(large, 'm'));
    nmc_client_remove(client, slice(std::string("large")), 0);
  }

  promise("closing_ends_what_is_under_way_and_touches_nothing_after_that");
  REQUIRE(owner.ask("mount") == "NMC_OK");
  OK(put(client, "large", value, 1, "owner"));
  all_are(take(client, 1), NMC_OK);
  for (const uint32_t flags : {0u, uint32_t{NMC_CLIENT_THREAD}}) {
    for (int round = 0; round < 3; ++round) {
      OpenClient closing(master.address(), 20000, {}, flags);
      std::vector<std::string> rooms(4, std::string(large, ' ')), sent(4, value);
      std::vector<nmc_buffer_t> to;
      std::vector<nmc_slice_t> keys(4, slice_of("large"));
      for (std::string& one : rooms) to.push_back({one.data(), one.size()});
      std::vector<nmc_status_t> statuses(4, 77);
      for (size_t i = 0; i < 3; ++i) OK(put(closing, "closing" + std::to_string(i), sent[i], i, "owner"));
      OK(nmc_client_submit_get_batch(closing, keys.data(), to.data(), nullptr, 4, 9, nullptr, statuses.data()));
      Done done[8];
      size_t n = 0;
      for (int i = 0; i < round * 4; ++i) OK(nmc_client_completions(closing, done, 8, 2, &n));
      closing.close();
      for (const nmc_status_t status : statuses) CHECK(status == NMC_OK || status == NMC_ERR_CANCELLED);
      for (std::string& one : rooms) one.assign(large, 'm');
      statuses.assign(4, 78);
      sleep_ms(20);
      for (const std::string& one : rooms) CHECK(one.find_first_not_of('m') == std::string::npos);
      CHECK(statuses == std::vector<nmc_status_t>(4, 78));
      for (size_t i = 0; i < 3; ++i) nmc_client_remove(client, slice("closing" + std::to_string(i)), 0);
    }
  }

  promise("a_thread_that_waits_for_completions_is_woken_by_closing");
  OpenClient waited(master.address(), 60000);
  std::string small(10, ' ');
  stop_child(owner.pid());
  OK(get(waited, "large", room, 1));
  std::thread waiting([&, handle = waited.client] {
    Done done{};
    size_t n = 0;
    const nmc_status_t status = nmc_client_completions(handle, &done, 1, -1, &n);
    CHECK(status == NMC_ERR_BAD_HANDLE || (status == NMC_OK && n == 1 && done.status == NMC_ERR_CANCELLED));
  });
  sleep_ms(50);
  waited.close();
  waiting.join();
  kill(owner.pid(), SIGCONT);

  promise("a_forked_child_is_refused_and_its_parent_goes_on");
  OK(get(client, "large", room, 7));
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    Done done{};
    size_t n = 0;
    int32_t fd = -1;
    const bool refused = get(client, "large", small, 1) == NMC_ERR_FORKED && nmc_client_completions(client, &done, 1, 0, &n) == NMC_ERR_FORKED &&
                         nmc_client_event_fd(client, &fd) == NMC_ERR_FORKED && nmc_client_cancel(client, 7) == NMC_ERR_FORKED;
    _exit(refused && nmc_client_close(client) == NMC_OK ? 0 : 1);
  }
  int ended = 1;
  waitpid(child, &ended, 0);
  CHECK(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
  all_are(take(client, 1), NMC_OK);
  CHECK(room == value);
}

// Nobody calls anything until all have ended.
void threads(const Master& master) {
  promise("with_a_thread_calls_end_while_the_program_does_something_else");
  OpenClient client(master.address(), 20000, {}, NMC_CLIENT_THREAD);
  std::vector<std::string> values;
  for (size_t i = 0; i < 20; ++i) values.push_back(value_of(i, 100000));
  for (size_t i = 0; i < 20; ++i) OK(put(client, "threads/" + std::to_string(i), values[i], i));
  int32_t fd = -1;
  REQUIRE(OK(nmc_client_event_fd(client, &fd)));
  for (const double start = seconds_now(); seconds_now() - start < kPatience; sleep_ms(10)) {
    OpenClient other(master.address());
    size_t there = 0;
    for (size_t i = 0; i < 20; ++i) there += nmc_client_exists(other, slice("threads/" + std::to_string(i))) == NMC_OK;
    if (there == 20) break;
  }
  pollfd look{fd, POLLIN, 0};
  CHECK(poll(&look, 1, static_cast<int>(kPatience * 1000)) == 1);
  all_are(take(client, 20), NMC_OK);
  size_t n = 7;
  OK(nmc_client_completions(client, nullptr, 0, 0, &n));
  CHECK(n == 0 && poll(&look, 1, 0) == 0);
}

}  // namespace

int main() {
  skip_without_join();
  Master master;
  Process first = node(master.address(), "first", 200 << 20), second = node(master.address(), "second", 200 << 20),
          owner = node(master.address(), "owner", 300 << 20);
  std::vector<Process> doomed;
  for (int round = 0; round < 3; ++round) doomed.push_back(node(master.address(), "doomed" + std::to_string(round), 100 << 20));
  REQUIRE(first.ask("mount") == "NMC_OK" && second.ask("mount") == "NMC_OK");
  many(master, 0);
  many(master, NMC_CLIENT_THREAD);
  threads(master);
  limits(master);
  faults(master, doomed, owner);
  return finish();
}
