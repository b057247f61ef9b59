// A cluster as its users have it: a master, nodes and clients, each a process. Some of them are killed or stopped; the others notice no
// more than the documentation says.
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include "../support/cluster.hpp"
#include "../support/value.hpp"

namespace {

#define SAID(process, line, want) says_at(process.ask(line), want, line, __LINE__)
bool says_at(const std::string& said, const std::string& want, const std::string& line, int number) {
  const bool right = said == want || said.rfind(want + " ", 0) == 0;
  if (!check_at(right, line.c_str(), __FILE__, number)) printf("     said \"%s\", expected \"%s\"\n", said.c_str(), want.c_str());
  return right;
}

struct Wish {
  int64_t timeout_ms = 20000;
  uint32_t flags = 0;
  std::string token;
};

// A process with a client. It says how opening went, and obeys.
Process member(const std::string& master, const Wish& wish = {}) {
  return Process([master, wish](Link& test) {
    nmc_client_config_t config = NMC_CLIENT_CONFIG_INIT;
    config.master_server = slice(master);
    config.timeout_ms = wish.timeout_ms;
    config.flags = wish.flags;
    config.token = slice(wish.token);
    nmc_client_t* client = nullptr;
    const nmc_status_t opened = nmc_client_open(&config, &client);
    test.say(outcome(opened));
    nmc_store_t* store = nullptr;
    std::string line;
    while (test.hear(line, 1e6)) {
      std::istringstream words(line);
      std::ostringstream answer;
      std::string verb, key;
      size_t size = 0;
      uint64_t stamp = 0;
      words >> verb >> key;
      if (verb == "mount") {  // mount <name> <MiB>
        words >> size;
        const nmc_store_config_t segment = segment_of(size << 20);
        answer << outcome(nmc_client_mount(client, slice(key), &segment));
      } else if (verb == "attach") {  // attach <name>: a store of its own
        const nmc_store_config_t segment = segment_of(8 << 20);
        OK(nmc_store_create(nullptr, &segment, &store));
        answer << outcome(nmc_client_attach_store(client, slice(key), store));
      } else if (verb == "own") {  // own <key> <size> <stamp>: a put into that store
        words >> size >> stamp;
        const std::string value = value_of(stamp, size);
        nmc_status_t status = nmc_store_put(store, slice(key), value.data(), size, nullptr);
        if (status == NMC_OK) status = nmc_client_sync(client);
        answer << outcome(status);
      } else if (verb == "here") {  // here <key> <size> <stamp>: the same without a wait
        words >> size >> stamp;
        const std::string value = value_of(stamp, size);
        answer << outcome(nmc_store_put(store, slice(key), value.data(), size, nullptr));
      } else if (verb == "undrain") {
        answer << outcome(nmc_client_undrain(client, slice(key)));
      } else if (verb == "unmount") {
        answer << outcome(nmc_client_unmount(client, slice(key)));
      } else if (verb == "drain") {  // until nothing is left
        uint64_t left = 1;
        nmc_status_t status = NMC_IN_PROGRESS;
        for (const double start = seconds_now(); status == NMC_IN_PROGRESS && seconds_now() - start < kPatience / 2; sleep_ms(10)) {
          status = nmc_client_drain(client, slice(key), 0, &left);
        }
        answer << (status == NMC_OK ? std::to_string(left) + " left" : outcome(status));
      } else if (verb == "put") {  // put <key> <size> <stamp> <copies> [<segment>]
        nmc_replicate_t options = NMC_REPLICATE_INIT;
        std::string where;
        words >> size >> stamp >> options.copies >> where;
        nmc_location_t location{slice(where), NMC_MEDIA_ANY, 0};
        options.locations = where.empty() ? nullptr : &location;
        options.n_locations = where.empty() ? 0 : 1;
        const std::string value = value_of(stamp, size);
        const nmc_slice_t bytes = slice(value);
        answer << outcome(nmc_client_put(client, slice(key), &bytes, 1, &options));
      } else if (verb == "get") {  // get <key> <size> <stamp>
        words >> size >> stamp;
        std::string value(size, ' ');
        const nmc_buffer_t to{value.data(), size};
        uint64_t bytes = 0;
        const double start = seconds_now();
        const nmc_status_t status = nmc_client_get(client, slice(key), &to, 1, &bytes);
        if (seconds_now() - start > static_cast<double>(wish.timeout_ms) * 1e-3 + 10) answer << "late: ";
        answer << (status != NMC_OK ? outcome(status) : bytes == size && value == value_of(stamp, size) ? "right" : "wrong");
      } else if (verb == "await") {  // await <key> <size> <stamp>: until it can be read
        words >> size >> stamp;
        std::string value(size, ' ');
        const nmc_buffer_t to{value.data(), size};
        nmc_status_t status = NMC_ERR_TIMEOUT;
        for (const double start = seconds_now(); status != NMC_OK && seconds_now() - start < kPatience / 2; sleep_ms(20)) {
          status = nmc_client_get(client, slice(key), &to, 1, nullptr);
        }
        answer << (status != NMC_OK ? outcome(status) : value == value_of(stamp, size) ? "right" : "wrong");
      } else if (verb == "exists") {
        answer << outcome(nmc_client_exists(client, slice(key)));
      } else if (verb == "remove") {
        answer << outcome(nmc_client_remove(client, slice(key), 0));
      } else if (verb == "copies") {  // how many, and on how many nodes
        std::vector<std::string> at;
        const auto each = [](void* user, const nmc_replica_t* copy) -> int32_t {
          static_cast<std::vector<std::string>*>(user)->emplace_back(static_cast<const char*>(copy->endpoint.ptr), copy->endpoint.len);
          return 1;
        };
        const nmc_status_t status = nmc_client_query(client, slice(key), each, &at);
        if (status == NMC_OK) answer << at.size() << " on " << std::set<std::string>(at.begin(), at.end()).size();
        else answer << outcome(status);
      } else if (verb == "segments") {  // those that take values
        std::set<std::string> names;
        const auto each = [](void* user, const nmc_segment_t* segment) -> int32_t {
          if (segment->state == NMC_SEGMENT_OK) static_cast<std::set<std::string>*>(user)->emplace(static_cast<const char*>(segment->name.ptr), segment->name.len);
          return 1;
        };
        answer << outcome(nmc_client_segments(client, each, &names));
        for (const std::string& name : names) answer << " " << name;
      } else if (verb == "close") {
        answer << outcome(nmc_client_close(client));
        client = nullptr;
      } else if (verb == "forked") {  // what a child gets
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
          const nmc_status_t status = nmc_client_exists(client, slice(key));
          _exit(status == NMC_ERR_FORKED && nmc_client_close(client) == NMC_OK ? 0 : 1);
        }
        int ended = 0;
        waitpid(child, &ended, 0);
        answer << (WIFEXITED(ended) && WEXITSTATUS(ended) == 0 ? "refused" : "not refused");
      } else {
        answer << "what is " << verb << "?";
      }
      test.say(answer.str());
    }
    nmc_client_close(client);
    nmc_store_destroy(store);
  });
}

Process opened(const std::string& master, const Wish& wish = {}) {
  Process made = member(master, wish);
  REQUIRE(says_at(made.reply(), "NMC_OK", "open", __LINE__));
  return made;
}

// Asks until it says so, for a while.
bool becomes(Process& process, const std::string& line, const std::string& want) {
  for (const double start = seconds_now(); seconds_now() - start < kPatience / 2; sleep_ms(20)) {
    const std::string said = process.ask(line);
    if (said == want || said.rfind(want + " ", 0) == 0) return true;
  }
  return false;
}

void owners() {
  Master master;
  std::vector<Process> nodes;
  for (const char* name : {"a", "b", "c"}) {
    nodes.push_back(opened(master.address()));
    REQUIRE(SAID(nodes.back(), std::string("mount ") + name + " 32", "NMC_OK"));
  }
  Process client = opened(master.address());
  SAID(client, "segments", "NMC_OK a b c");

  promise("reads_go_on_when_one_of_two_owners_is_killed");
  SAID(client, "put two 300000 1 2 a", "NMC_OK");
  SAID(client, "copies two", "2 on 2");
  SAID(client, "put one 5000 2 1 a", "NMC_OK");
  SAID(client, "put other 5000 3 1 b", "NMC_OK");
  SAID(client, "get two 300000 1", "right");
  nodes[0].kill9();
  SAID(client, "get two 300000 1", "right");
  SAID(client, "get other 5000 3", "right");
  Process hasty = opened(master.address(), {1500, 0, {}});
  const std::string lost = hasty.ask("get one 5000 2");
  CHECK(lost.rfind("NMC_ERR_", 0) == 0);

  promise("a_stopped_owner_delays_its_readers_no_longer_than_their_deadline");
  stop_child(nodes[1].pid());
  const std::string said = hasty.ask("get other 5000 3");
  CHECK(said.rfind("NMC_ERR_", 0) == 0 && said.rfind("late", 0) != 0);
  kill(nodes[1].pid(), SIGCONT);
  SAID(hasty, "await other 5000 3", "right");

  promise("only_who_mounted_a_segment_unmounts_it");
  SAID(hasty, "unmount b", "NMC_ERR_NOT_FOUND");
  SAID(nodes[1], "mount b 8", "NMC_ERR_EXISTS");

  promise("a_drained_node_leaves_without_loss");
  SAID(client, "copies other", "1 on 1");
  SAID(nodes[1], "drain b", "0 left");
  CHECK(becomes(client, "copies other", "2 on 2"));
  SAID(nodes[1], "unmount b", "NMC_OK");
  SAID(client, "await other 5000 3", "right");
  SAID(client, "await two 300000 1", "right");

  promise("a_node_that_closes_is_gone_at_once");
  SAID(client, "put last 100 4 1 c", "NMC_OK");
  SAID(client, "get last 100 4", "right");
  SAID(client, "forked last", "refused");
  SAID(nodes[2], "close", "NMC_OK");
  CHECK(client.ask("get last 100 4").rfind("NMC_ERR_", 0) == 0);
}

void masters() {
  Master master({"--settle_ms", "500"});
  Process node = opened(master.address()), client = opened(master.address()), other = opened(master.address());
  REQUIRE(SAID(node, "mount a 32", "NMC_OK"));
  SAID(client, "put k 100000 1 1", "NMC_OK");
  SAID(client, "put gone 100 2 1", "NMC_OK");
  SAID(client, "get k 100000 1", "right");
  SAID(other, "get gone 100 2", "right");
  SAID(client, "remove gone", "NMC_OK");

  promise("what_was_removed_is_gone_for_who_remembers_its_place");
  SAID(other, "get gone 100 2", "NMC_ERR_NOT_FOUND");

  promise("places_that_are_remembered_and_own_values_need_no_master");
  master.kill9();
  SAID(client, "get k 100000 1", "right");
  SAID(node, "get k 100000 1", "right");

  promise("without_a_master_calls_say_so_in_time");
  Process hasty = opened(master.address(), {1000, 0, {}});
  for (const char* call : {"put n 10 1 1", "get k 100000 1", "remove k", "segments", "mount z 8"}) {
    const double start = seconds_now();
    const std::string said = hasty.ask(call);
    CHECK(said.rfind("NMC_ERR_UNAVAILABLE", 0) == 0 || said.rfind("NMC_ERR_TIMEOUT", 0) == 0);
    CHECK(seconds_now() - start < 30);
  }

  promise("a_master_that_begins_again_learns_what_nodes_have");
  master.start();
  SAID(hasty, "await k 100000 1", "right");
  SAID(hasty, "get gone 100 2", "NMC_ERR_NOT_FOUND");
  SAID(hasty, "put n 10 1 1", "NMC_OK");
  SAID(client, "get n 10 1", "right");
  CHECK(master.ends() == 0);
  master.start();
  SAID(hasty, "await n 10 1", "right");
  SAID(hasty, "remove k", "NMC_OK");
  SAID(client, "get k 100000 1", "NMC_ERR_NOT_FOUND");
}

void absent() {
  Master master({"--away_ms", "3000", "--settle_ms", "500"});
  Process node = opened(master.address()), dies = opened(master.address()), guest = opened(master.address()), client = opened(master.address());
  REQUIRE(SAID(node, "mount a 8", "NMC_OK"));

  promise("nobody_waits_for_a_node_that_has_left_with_nothing");
  REQUIRE(SAID(guest, "attach empty", "NMC_OK"));
  SAID(guest, "unmount empty", "NMC_OK");
  CHECK(becomes(client, "remove nothing", "NMC_ERR_NOT_FOUND"));

  promise("removes_that_a_dead_node_has_not_heard_of_do_not_stop_puts");
  REQUIRE(SAID(dies, "mount d 8", "NMC_OK"));
  dies.kill9();
  for (int i = 0; i < 500 && client.ask("segments").find(" d") != std::string::npos; ++i) sleep_ms(20);
  master.kill9();
  master.start();
  CHECK(becomes(client, "put k 100 1 1 a", "NMC_OK"));  // when its node has found the master
  CHECK(becomes(client, "remove k", "NMC_IN_PROGRESS"));
  for (int i = 0; i < 20; ++i) SAID(client, "put n" + std::to_string(i) + " 100 1 1", "NMC_OK");
}

void copies() {
  Master master;
  Process node = opened(master.address()), keeper = opened(master.address(), {20000, NMC_CLIENT_KEEP_COPIES, {}}), client = opened(master.address());
  REQUIRE(SAID(node, "mount a 32", "NMC_OK"));
  REQUIRE(SAID(keeper, "mount b 32", "NMC_OK"));

  promise("what_is_read_with_keep_copies_is_found_on_the_reader_too");
  SAID(client, "put hot 100000 1 1 a", "NMC_OK");
  SAID(client, "copies hot", "1 on 1");
  SAID(keeper, "get hot 100000 1", "right");
  CHECK(becomes(client, "copies hot", "2 on 2"));
  SAID(client, "remove hot", "NMC_OK");
  SAID(keeper, "get hot 100000 1", "NMC_ERR_NOT_FOUND");

  promise("what_is_put_into_a_store_that_is_a_node_is_found_by_all");
  Process owner = opened(master.address());
  REQUIRE(SAID(owner, "attach s", "NMC_OK"));
  SAID(owner, "own mine 70000 9", "NMC_OK");
  SAID(client, "get mine 70000 9", "right");
  SAID(client, "put theirs 70000 8 1 s", "NMC_OK");
  SAID(owner, "get theirs 70000 8", "right");
  SAID(client, "remove mine", "NMC_OK");
  SAID(owner, "get mine 70000 9", "NMC_ERR_NOT_FOUND");
}

// Asks with another number each time, until it says so.
bool comes_to(Process& process, const std::string& verb, const std::string& rest, const std::string& want) {
  for (int i = 0; i < 3000; ++i, sleep_ms(20)) {
    if (process.ask(verb + std::to_string(i) + rest) == want) return true;
  }
  return false;
}

void drains() {
  Master master;
  Process node = opened(master.address()), other = opened(master.address());
  REQUIRE(SAID(node, "attach a", "NMC_OK"));
  REQUIRE(SAID(other, "mount b 32", "NMC_OK"));

  promise("a_node_that_is_drained_stores_nothing_of_its_own_either");
  SAID(node, "own mine 70000 9", "NMC_OK");
  SAID(other, "copies mine", "1 on 1");
  SAID(node, "drain a", "0 left");
  const std::string refused = node.ask("here late 100 1");
  CHECK(refused.rfind("NMC_ERR_NO_SPACE", 0) == 0);
  CHECK(becomes(other, "copies mine", "2 on 2"));

  promise("a_drain_that_is_given_up_opens_the_node_again");
  SAID(node, "undrain a", "NMC_OK");
  CHECK(comes_to(node, "here k", " 100 2", "NMC_OK"));

  promise("a_store_is_its_programs_own_again_when_its_node_is_gone");
  SAID(node, "drain a", "0 left");
  SAID(node, "unmount a", "NMC_OK");
  SAID(node, "here last 100 3", "NMC_OK");
}

void lost_copies() {
  promise("copies_that_are_lost_with_a_node_are_made_again_where_the_master_is_told_to");
  Master master({"--away_ms", "1000", "--re_replicate", "100"}), plain({"--away_ms", "1000"});
  std::vector<Process> nodes, others;
  for (const char* name : {"a", "b", "c"}) {
    nodes.push_back(opened(master.address()));
    others.push_back(opened(plain.address()));
    REQUIRE(SAID(nodes.back(), std::string("mount ") + name + " 32", "NMC_OK"));
    REQUIRE(SAID(others.back(), std::string("mount ") + name + " 32", "NMC_OK"));
  }
  Process client = opened(master.address()), control = opened(plain.address());
  for (Process* one : {&client, &control}) {
    SAID((*one), "put two 100000 1 2 a", "NMC_OK");
    SAID((*one), "put one 100 2 1 b", "NMC_OK");
    SAID((*one), "copies two", "2 on 2");
  }
  nodes[0].kill9();
  others[0].kill9();
  REQUIRE(becomes(client, "segments", "NMC_OK b c") && becomes(control, "segments", "NMC_OK b c"));  // it is known to be away
  CHECK(becomes(client, "copies two", "2 on 2"));
  SAID(client, "get two 100000 1", "right");
  SAID(client, "copies one", "1 on 1");
  SAID(control, "copies two", "1 on 1");  // the control: nobody was told to
}

// For longer than a node waits for an answer of a master, and not so long that it is away.
void stopped() {
  promise("puts_at_a_node_that_was_stopped_for_a_while_wait_until_it_has_gone_on");
  Master master;
  Process node = opened(master.address());
  REQUIRE(SAID(node, "mount a 64", "NMC_OK"));
  const OpenClient client(master.address());
  for (int round = 0; round < 2; ++round) {
    stop_child(node.pid());
    sleep_ms(3500);
    std::atomic<bool> over{false};
    std::atomic<int> put{0}, failed{0}, how{NMC_OK};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 6; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; !over; ++i) {
          const std::string key = std::to_string(round) + "-" + std::to_string(thread) + "-" + std::to_string(i), value(100, 'v');
          const nmc_slice_t bytes = slice(value);
          const nmc_status_t status = nmc_client_put(client, slice(key), &bytes, 1, nullptr);
          if (status == NMC_OK) ++put;
          if (status != NMC_OK) ++failed, how = status;
        }
      });
    }
    sleep_ms(200);
    kill(node.pid(), SIGCONT);
    const double start = seconds_now();
    while (put < 1000 && failed == 0 && seconds_now() - start < kPatience) sleep_ms(1);
    over = true;
    for (std::thread& thread : threads) thread.join();
    if (!CHECK(put >= 1000 && failed == 0)) printf("     %d failed, one with %s\n", failed.load(), nmc_status_name(how));
  }
}

void tokens() {
  promise("with_a_token_only_who_knows_it_is_heard");
  Place place;
  const std::string path = place.dir + "/token", token = "a-token-of-some-length";
  std::ofstream(path) << token << "\n";
  REQUIRE(chmod(path.c_str(), 0600) == 0);
  Master master({"--token_file", path});
  Process right = opened(master.address(), {20000, 0, token}), wrong = opened(master.address(), {1000, 0, "another-one-of-some-length"}),
          without = opened(master.address(), {1000, 0, {}});
  REQUIRE(SAID(right, "mount a 8", "NMC_OK"));
  SAID(right, "put k 100 1 1", "NMC_OK");
  for (Process* other : {&wrong, &without}) {
    CHECK(other->ask("get k 100 1").rfind("NMC_ERR_", 0) == 0);
    CHECK(other->ask("put j 100 1 1").rfind("NMC_ERR_", 0) == 0);
  }
  SAID(right, "get k 100 1", "right");
  SAID(right, "exists j", "NMC_ERR_NOT_FOUND");
}

}  // namespace

int main() {
  skip_without_join();
  owners();
  masters();
  absent();
  copies();
  drains();
  lost_copies();
  tokens();
  stopped();  // last: no process that has a client may fork another one
  return finish();
}
