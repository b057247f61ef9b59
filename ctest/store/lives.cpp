// Lives of single objects, told step by step: readers and writers that die in the middle, a forked child that lives on, a
// master that comes back, a plan that its program published itself, and the seed's own tests.
#include "../support/puppet.hpp"

#include <atomic>
#include <map>
#include <thread>

#include "../support/value.hpp"

namespace {

constexpr uint64_t PAGE = 4096, HEAP_PAGES = 32;

// A rank with a store that does what it is told.
void obey_store(Link& test, const Place& place, Setup setup, int32_t watchdog_ms) {
  const nmc_world_config_t config = config_of(place, setup);
  nmc_world_t* world = nullptr;
  nmc_store_t* store = nullptr;
  nmc_status_t status = nmc_world_join(&config, &world);
  nmc_store_config_t wanted = NMC_STORE_CONFIG_INIT;
  wanted.page_bytes = PAGE;
  wanted.watchdog_ms = watchdog_ms;
  wanted.master_rank = 0;
  if (status == NMC_OK) status = nmc_store_create(world, &wanted, &store);
  test.say(outcome(status));
  if (status != NMC_OK) return;
  nmc_write_plan_t plan{};
  nmc_view_t view{};
  const unsigned char* canary = nullptr;
  std::string line, verb, key;
  while (test.hear(line, 1e6)) {
    std::istringstream words(line);
    words >> verb;
    const auto number = [&words] {
      long long value = 0;
      words >> value;
      return static_cast<uint64_t>(value);
    };
    std::ostringstream answer;
    if (verb == "put") {  // put <key> <stamp> <pages>
      words >> key;
      const uint64_t stamp = number();
      std::vector<char> bytes(number() * PAGE);
      make_value(stamp, 0, bytes.data(), bytes.size());
      answer << outcome(nmc_store_put(store, slice(key), bytes.data(), bytes.size(), nullptr));
    } else if (verb == "say") {  // say <key> <stamp> <pages> [text]: put with metadata, in the heap of rank 2
      words >> key;
      const uint64_t stamp = number();
      std::vector<char> bytes(number() * PAGE);
      std::string text;
      words >> text;
      make_value(stamp, 0, bytes.data(), bytes.size());
      nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
      options.flags = NMC_PUT_REPLACE;
      options.preferred_segment = 2;
      options.metadata = slice(text);
      answer << outcome(nmc_store_put(store, slice(key), bytes.data(), bytes.size(), &options));
    } else if (verb == "said") {  // said <key>: its metadata
      words >> key;
      char text[NMC_MAX_METADATA];
      size_t n = 0;
      status = nmc_store_get_metadata(store, slice(key), text, sizeof text, &n);
      answer << (status == NMC_OK ? "\"" + std::string(text, n) + "\"" : outcome(status));
    } else if (verb == "consume") {
      words >> key;
      answer << outcome(nmc_store_consume(store, slice(key), &view));
    } else if (verb == "get") {  // get <key> <stamp> <pages>
      words >> key;
      const uint64_t stamp = number();
      std::vector<char> bytes(number() * PAGE);
      status = nmc_store_get_into(store, slice(key), bytes.data(), bytes.size());
      answer << (status == NMC_OK && !is_value(stamp, 0, bytes.data(), bytes.size()) ? "foreign bytes" : outcome(status));
    } else if (verb == "open") {  // open <key> <pages>
      words >> key;
      answer << outcome(nmc_store_open_for_write(store, slice(key), number() * PAGE, nullptr, &plan));
    } else if (verb == "half") {  // half <stamp>: the first half of the plan's pages
      make_value(number(), 0, plan.payload, plan.bytes_total / 2);
      answer << outcome(nmc_store_publish_pages(store, &plan, plan.n_pages / 2));
    } else if (verb == "commit") {
      answer << outcome(nmc_store_commit(store, &plan));
    } else if (verb == "abort") {
      answer << outcome(nmc_store_abort(store, &plan));
    } else if (verb == "pin") {
      words >> key;
      answer << outcome(nmc_store_pin(store, slice(key), &view));
    } else if (verb == "partial") {  // partial <key> <pages>
      words >> key;
      answer << outcome(nmc_store_pin_partial(store, slice(key), static_cast<uint32_t>(number()), &view));
    } else if (verb == "unpin") {
      answer << outcome(nmc_store_unpin(store, &view));
    } else if (verb == "viewed") {  // viewed <stamp> <pages>: what is pinned is still that
      const uint64_t stamp = number();
      answer << (view_is(store, view, stamp, number() * PAGE) ? "NMC_OK" : "foreign bytes");
    } else if (verb == "note") {  // note <key>: where it lies
      words >> key;
      nmc_object_meta_t meta;
      answer << outcome(nmc_store_get_location(store, slice(key), &meta));
      canary = static_cast<const unsigned char*>(meta.payload);
    } else if (verb == "noted") {  // noted <stamp> <pages>: what lies there now
      const uint64_t stamp = number();
      answer << (is_value(stamp, 0, canary, number() * PAGE) ? "as it was" : "overwritten");
    } else if (verb == "remove") {
      words >> key;
      answer << outcome(nmc_store_remove(store, slice(key)));
    } else if (verb == "churn") {  // churn <n>: fills every page that is free, n times
      const uint64_t n = number();
      std::vector<char> bytes(PAGE);
      for (uint64_t i = 0; i < n; ++i)
        for (uint64_t j = 0; j < HEAP_PAGES * 3; ++j) {
          nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
          options.flags = NMC_PUT_REPLACE;
          options.preferred_segment = static_cast<int32_t>(j % 3);
          const std::string name = "churn-" + std::to_string(j);
          make_value(1000000 + i, 0, bytes.data(), bytes.size());
          status = nmc_store_put(store, slice(name), bytes.data(), bytes.size(), &options);
          if (status != NMC_OK && status != NMC_ERR_BUSY) CHECK(!outcome(status).c_str());
        }
      answer << "NMC_OK";
    } else if (verb == "empty") {
      OK(nmc_store_remove_by_prefix(store, slice_of("churn-"), nullptr));
      answer << "NMC_OK";
    } else if (verb == "state") {
      words >> key;
      uint32_t state = 77;
      OK(nmc_store_exists(store, slice(key), &state));
      answer << (state == NMC_OBJECT_ABSENT ? "ABSENT" : state == NMC_OBJECT_READY ? "READY" : "WRITING");
    } else if (verb == "settle") {  // settle <used> <limbo> <quarantined> <writing>: pages; waits for it
      const uint64_t used = number() * PAGE, limbo = number() * PAGE, quarantined = number() * PAGE, writing = number();
      nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
      const double deadline = seconds_now() + 20;
      const nmc_store_stats_t& t = stats;
      do {
        OK(nmc_store_stats(store, nullptr, 0, &stats));
        if (t.bytes_used == used && t.limbo_bytes == limbo && t.quarantined_bytes == quarantined && t.writing_count == writing) break;
        sleep_ms(2);
      } while (seconds_now() < deadline);
      answer << (seconds_now() < deadline ? "NMC_OK" : "it stays") << " " << t.bytes_used / PAGE << " used, " << t.limbo_bytes / PAGE
             << " wait for readers, " << t.quarantined_bytes / PAGE << " for writers, " << t.writing_count << " being written";
    } else if (verb == "stuck") {
      nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
      OK(nmc_store_stats(store, nullptr, 0, &stats));
      answer << stats.stuck_put_reclaimed;
    } else if (verb == "fork") {
      fflush(stdout);
      const pid_t child = fork();
      if (child == 0) {
        for (;;) pause();
      }
      answer << child;
    } else if (verb == "leave") {
      OK(nmc_store_destroy(store));
      answer << outcome(nmc_world_destroy(world));
    } else if (verb == "quit") {
      return;
    } else {
      answer << "what is " << verb << "?";
    }
    test.say(answer.str());
  }
}

Process store_process(const Place& place, int32_t rank, int32_t watchdog_ms) {
  Setup setup;
  setup.rank = rank;
  setup.heap_bytes = HEAP_PAGES * PAGE;
  return Process([&place, setup, watchdog_ms](Link& test) { obey_store(test, place, setup, watchdog_ms); });
}
std::vector<Process> three(const Place& place, int32_t watchdog_ms = 60000) {
  std::vector<Process> ranks;
  for (int32_t rank = 0; rank < 3; ++rank) ranks.push_back(store_process(place, rank, watchdog_ms));
  for (Process& rank : ranks) REQUIRE(SAYS(rank.reply(), "NMC_OK"));
  return ranks;
}
void leave(std::vector<Process>& ranks) {
  for (size_t i : {2, 1, 0}) {
    SAYS(ranks[i].ask("leave"), "NMC_OK");
    ranks[i].send("quit");
    CHECK(ranks[i].ends_well());
  }
}

void crash_in_mid_put() {
  promise("a_writer_killed_in_the_middle_leaves_nothing_and_its_key_is_free_again");
  Place place;
  std::vector<Process> ranks = three(place);
  SAYS(ranks[1].ask("open k 6"), "NMC_OK");
  SAYS(ranks[1].ask("half 7"), "NMC_OK");
  SAYS(ranks[2].ask("state k"), "WRITING");
  SAYS(ranks[2].ask("put k 8 2"), "NMC_ERR_EXISTS");
  ranks[1].kill9();
  SAYS(ranks[0].ask("settle 0 0 0 0"), "NMC_OK");
  SAYS(ranks[2].ask("put k 8 2"), "NMC_OK");
  SAYS(ranks[0].ask("get k 8 2"), "NMC_OK");
  ranks[1] = store_process(place, 1, 60000);
  REQUIRE(SAYS(ranks[1].reply(), "NMC_OK"));
  SAYS(ranks[1].ask("get k 8 2"), "NMC_OK");
  leave(ranks);
}

void watchdog() {
  promise("a_late_writer_is_given_up_its_pages_wait_for_it_and_its_commit_says_stale");
  Place place;
  std::vector<Process> ranks = three(place, 50);
  SAYS(ranks[1].ask("open k 6"), "NMC_OK");
  SAYS(ranks[0].ask("settle 6 0 6 0"), "NMC_OK");
  SAYS(ranks[2].ask("state k"), "ABSENT");
  SAYS(ranks[0].ask("stuck"), "1");
  SAYS(ranks[2].ask("put k 8 2"), "NMC_OK");
  SAYS(ranks[1].ask("half 7"), "NMC_ERR_STALE");
  SAYS(ranks[1].ask("commit"), "NMC_ERR_STALE");
  SAYS(ranks[0].ask("settle 2 0 0 0"), "NMC_OK");
  SAYS(ranks[1].ask("get k 8 2"), "NMC_OK");
  SAYS(ranks[1].ask("open other 3"), "NMC_OK");
  SAYS(ranks[0].ask("settle 5 0 3 0"), "NMC_OK");
  SAYS(ranks[1].ask("abort"), "NMC_OK");
  SAYS(ranks[0].ask("settle 2 0 0 0"), "NMC_OK");
  promise("a_late_writer_that_dies_gives_its_pages_back");
  SAYS(ranks[1].ask("open third 3"), "NMC_OK");
  SAYS(ranks[0].ask("settle 5 0 3 0"), "NMC_OK");
  ranks[1].kill9();
  SAYS(ranks[0].ask("settle 2 0 0 0"), "NMC_OK");
  ranks[1] = store_process(place, 1, 50);
  REQUIRE(SAYS(ranks[1].reply(), "NMC_OK"));
  leave(ranks);
}

void child_left_alive(bool reader) {
  promise(reader ? "what_a_killed_reader_had_pinned_is_not_reused_while_a_forked_child_of_it_lives"
                 : "what_a_killed_writer_was_writing_is_not_reused_while_a_forked_child_of_it_lives");
  Place place;
  std::vector<Process> ranks = three(place);
  if (reader) {
    SAYS(ranks[0].ask("put k 7 4"), "NMC_OK");
    SAYS(ranks[2].ask("note k"), "NMC_OK");
    SAYS(ranks[1].ask("pin k"), "NMC_OK");
  } else {
    SAYS(ranks[1].ask("open k 4"), "NMC_OK");
    SAYS(ranks[1].ask("half 7"), "NMC_OK");
    SAYS(ranks[2].ask("partial k 2"), "NMC_OK");
  }
  const std::string child = ranks[1].ask("fork");
  ranks[1].kill9();
  if (reader) SAYS(ranks[0].ask("remove k"), "NMC_OK");
  SAYS(ranks[0].ask("churn 3"), "NMC_OK");
  sleep_ms(300);
  SAYS(ranks[0].ask("churn 3"), "NMC_OK");
  SAYS(ranks[0].ask("empty"), "NMC_OK");
  if (reader) {
    SAYS(ranks[2].ask("noted 7 4"), "as it was");
    SAYS(ranks[0].ask("settle 4 4 0 0"), "NMC_OK");
  } else {
    SAYS(ranks[2].ask("viewed 7 2"), "NMC_OK");
    SAYS(ranks[0].ask("settle 4 0 0 1"), "NMC_OK");
  }
  end_grandchild(child);
  if (!reader) {
    SAYS(ranks[0].ask("settle 4 4 0 0"), "NMC_OK");  // a reader has it pinned
    SAYS(ranks[0].ask("churn 1"), "NMC_OK");
    SAYS(ranks[2].ask("viewed 7 2"), "NMC_OK");
    SAYS(ranks[2].ask("unpin"), "NMC_OK");
    SAYS(ranks[0].ask("empty"), "NMC_OK");
  }
  SAYS(ranks[0].ask("settle 0 0 0 0"), "NMC_OK");
  if (reader) {
    promise("the_look_at_the_memory_can_fail");
    SAYS(ranks[0].ask("churn 1"), "NMC_OK");
    SAYS(ranks[2].ask("noted 7 4"), "overwritten");  // now that nobody has it
    SAYS(ranks[0].ask("empty"), "NMC_OK");
  }
  ranks[1] = store_process(place, 1, 60000);
  REQUIRE(SAYS(ranks[1].reply(), "NMC_OK"));
  leave(ranks);
}

void master_returns_to_a_partial_pin() {
  promise("half_an_object_whose_writer_is_gone_comes_back_when_its_reader_unpins_also_under_a_new_master");
  Place place;
  std::vector<Process> ranks = three(place);
  SAYS(ranks[1].ask("open k 4"), "NMC_OK");
  SAYS(ranks[1].ask("half 7"), "NMC_OK");
  SAYS(ranks[2].ask("partial k 2"), "NMC_OK");
  ranks[1].kill9();
  SAYS(ranks[0].ask("settle 4 4 0 0"), "NMC_OK");
  ranks[0].kill9();
  SAYS(ranks[2].ask("viewed 7 2"), "NMC_OK");
  ranks[0] = store_process(place, 0, 60000);
  REQUIRE(SAYS(ranks[0].reply(), "NMC_OK"));
  SAYS(ranks[0].ask("settle 4 4 0 0"), "NMC_OK");
  SAYS(ranks[2].ask("viewed 7 2"), "NMC_OK");
  SAYS(ranks[2].ask("unpin"), "NMC_OK");
  SAYS(ranks[0].ask("settle 0 0 0 0"), "NMC_OK");
  ranks[1] = store_process(place, 1, 60000);
  REQUIRE(SAYS(ranks[1].reply(), "NMC_OK"));
  leave(ranks);
}

void plans_survive_the_master() {
  promise("a_plan_that_is_open_when_the_master_dies_can_be_committed_under_the_next_one");
  Place place;
  std::vector<Process> ranks = three(place);
  SAYS(ranks[2].ask("put old 3 2"), "NMC_OK");
  SAYS(ranks[1].ask("open k 2"), "NMC_OK");
  SAYS(ranks[2].ask("pin old"), "NMC_OK");
  for (int time = 0; time < 12; ++time) {  // more often than there are places for clients
    ranks[0].kill9();
    SAYS(ranks[1].ask("get old 3 2"), "NMC_OK");
    SAYS(ranks[2].ask("viewed 3 2"), "NMC_OK");
    ranks[0] = store_process(place, 0, 60000);
    REQUIRE(SAYS(ranks[0].reply(), "NMC_OK"));
  }
  SAYS(ranks[1].ask("half 7"), "NMC_OK");
  SAYS(ranks[1].ask("commit"), "NMC_OK");
  SAYS(ranks[0].ask("state k"), "READY");
  SAYS(ranks[2].ask("unpin"), "NMC_OK");
  SAYS(ranks[0].ask("settle 4 0 0 0"), "NMC_OK");
  leave(ranks);
}

// The answer of a rank that may not have heard of the new master yet.
std::string when_up(Process& rank, const std::string& command) {
  std::string answer;
  for (int look = 0; look < 4000; ++look) {
    answer = rank.ask(command);
    if (answer.find("UNAVAILABLE") == std::string::npos && answer.find("TIMEOUT") == std::string::npos) break;
    sleep_ms(5);
  }
  return answer;
}

void metadata_survives_the_master() {
  promise("what_is_said_of_an_object_stays_under_the_next_master_and_goes_with_the_object");
  Place place;
  std::vector<Process> ranks = three(place);
  const std::string longest(NMC_MAX_METADATA, 'x'), key(100, 'k');
  SAYS(ranks[1].ask("say k 1 2 short"), "NMC_OK");
  SAYS(ranks[1].ask("say " + key + " 2 3 " + longest), "NMC_OK");
  SAYS(ranks[2].ask("say plain 3 1"), "NMC_OK");
  for (int time = 0; time < 3; ++time) {
    ranks[0].kill9();
    SAYS(ranks[2].ask("said k"), "\"short\"");
    ranks[0] = store_process(place, 0, 60000);
    REQUIRE(SAYS(ranks[0].reply(), "NMC_OK"));
    // What the new master gives to others is not what these lie in.
    SAYS(when_up(ranks[1], "say n" + std::to_string(time) + " 9 1 " + std::string(200, 'n')), "NMC_OK");
    SAYS(ranks[0].ask("said k"), "\"short\"");
    SAYS(ranks[1].ask("said " + key), "\"" + longest + "\"");
    SAYS(ranks[2].ask("said plain"), "\"\"");
    SAYS(ranks[2].ask("get " + key + " 2 3"), "NMC_OK");
  }
  SAYS(when_up(ranks[2], "say k 4 1 other"), "NMC_OK");
  SAYS(ranks[0].ask("said k"), "\"other\"");
  SAYS(ranks[2].ask("remove k"), "NMC_OK");
  SAYS(ranks[0].ask("said k"), "NMC_ERR_NOT_FOUND");
  SAYS(ranks[0].ask("settle 7 0 0 0"), "NMC_OK");
  leave(ranks);
}

void consumers_that_die() {
  promise("what_a_killed_consumer_had_taken_is_gone_and_its_memory_comes_back");
  Place place;
  std::vector<Process> ranks = three(place);
  SAYS(ranks[0].ask("say k 7 4"), "NMC_OK");
  SAYS(ranks[1].ask("consume k"), "NMC_OK");
  SAYS(ranks[2].ask("consume k"), "NMC_ERR_NOT_FOUND");
  SAYS(ranks[2].ask("get k 7 4"), "NMC_ERR_NOT_FOUND");
  SAYS(ranks[0].ask("settle 4 4 0 0"), "NMC_OK");
  SAYS(ranks[0].ask("churn 3"), "NMC_OK");
  SAYS(ranks[1].ask("viewed 7 4"), "NMC_OK");  // it is the consumer's, whatever the others store
  SAYS(ranks[0].ask("empty"), "NMC_OK");
  ranks[1].kill9();
  SAYS(ranks[0].ask("settle 0 0 0 0"), "NMC_OK");
  SAYS(ranks[2].ask("consume k"), "NMC_ERR_NOT_FOUND");
  ranks[1] = store_process(place, 1, 60000);
  REQUIRE(SAYS(ranks[1].reply(), "NMC_OK"));
  promise("a_consumer_killed_before_it_has_taken_its_object_leaves_it_to_the_next");
  SAYS(ranks[0].ask("say k 8 4"), "NMC_OK");
  SAYS(ranks[1].ask("pin k"), "NMC_OK");  // as far as it gets without the master
  ranks[1].kill9();
  SAYS(ranks[2].ask("consume k"), "NMC_OK");
  SAYS(ranks[2].ask("viewed 8 4"), "NMC_OK");
  promise("without_a_master_nothing_is_taken_and_nothing_is_lost");
  SAYS(ranks[2].ask("say other 9 2"), "NMC_OK");
  ranks[0].kill9();
  SAYS(ranks[2].ask("consume other"), "NMC_ERR_UNAVAILABLE");
  SAYS(ranks[2].ask("get other 9 2"), "NMC_OK");
  ranks[0] = store_process(place, 0, 60000);
  REQUIRE(SAYS(ranks[0].reply(), "NMC_OK"));
  SAYS(ranks[0].ask("consume other"), "NMC_OK");
  SAYS(ranks[0].ask("viewed 9 2"), "NMC_OK");
  SAYS(ranks[0].ask("unpin"), "NMC_OK");
  ranks[1] = store_process(place, 1, 60000);
  REQUIRE(SAYS(ranks[1].reply(), "NMC_OK"));
  leave(ranks);
}

// ---- one process ----------------------------------------------------------------------------------------------------

nmc_store_t* embedded(uint64_t pages, uint32_t max_objects, uint32_t flags = 0, uint32_t page = PAGE, uint32_t ranks = 1) {
  nmc_store_config_t config = NMC_STORE_CONFIG_INIT;
  config.heap_bytes = pages * page;
  config.page_bytes = page;
  config.max_objects = max_objects;
  config.flags = flags;
  config.world_size = ranks;
  config.high_permille = config.low_permille = 1000;
  nmc_store_t* store = nullptr;
  REQUIRE(OK(nmc_store_create(nullptr, &config, &store)));
  return store;
}

void published_by_the_program() {
  promise("a_commit_after_the_program_published_and_the_header_was_used_again_leaves_the_other_object_alone");
  nmc_store_t* store = embedded(8, 1);
  const std::string a = "a", b = "b";
  nmc_write_plan_t plan;
  REQUIRE(OK(nmc_store_open_for_write(store, slice(a), 64, nullptr, &plan)));
  make_value(1, 0, plan.payload, 64);
  __atomic_store_n(plan.publish_word, plan.epoch, __ATOMIC_RELEASE);  // as a kernel does
  OK(nmc_store_remove(store, slice(a)));
  char value[64], back[64];
  make_value(2, 0, value, sizeof value);
  OK(nmc_store_put(store, slice(b), value, sizeof value, nullptr));  // in the one header there is
  GIVES(nmc_store_commit(store, &plan), NMC_ERR_STALE);
  OK(nmc_store_get_into(store, slice(b), back, sizeof back));
  CHECK(is_value(2, 0, back, sizeof back));
  OK(nmc_store_destroy(store));
}

void pinned_ones_do_not_hide_others() {
  promise("what_can_be_evicted_goes_whatever_is_pinned_before_it");
  nmc_store_t* store = embedded(2, 8);
  char value[PAGE] = {};
  nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
  OK(nmc_store_put(store, slice_of("first"), value, sizeof value, &options));
  options.priority = 3;
  OK(nmc_store_put(store, slice_of("second"), value, sizeof value, &options));
  nmc_view_t view;
  OK(nmc_store_pin(store, slice_of("first"), &view));
  OK(nmc_store_put(store, slice_of("third"), value, sizeof value, nullptr));
  uint32_t state = 77;
  OK(nmc_store_exists(store, slice_of("first"), &state));
  CHECK(state == NMC_OBJECT_READY);
  OK(nmc_store_destroy(store));

  promise("a_header_of_another_rank_can_be_taken_if_all_of_this_one_are_pinned");
  store = embedded(8, 2, 0, PAGE, 2);
  options = NMC_PUT_OPTIONS_INIT;
  options.preferred_segment = 0;
  OK(nmc_store_put(store, slice_of("first"), value, sizeof value, &options));
  OK(nmc_store_pin(store, slice_of("first"), &view));
  options.preferred_segment = 1;
  OK(nmc_store_put(store, slice_of("second"), value, sizeof value, &options));
  options.preferred_segment = 0;
  OK(nmc_store_put(store, slice_of("third"), value, sizeof value, &options));
  OK(nmc_store_destroy(store));
}

void get_and_evict() {
  promise("a_get_that_races_with_eviction_gives_the_whole_value_or_none");
  nmc_store_t* store = embedded(8, 32, NMC_STORE_CHECKSUMS);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> reads{0}, wrong{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t)
    readers.emplace_back([&, t] {
      Random random(static_cast<uint64_t>(t));
      std::vector<char> buffer(3 * PAGE);
      while (!stop.load()) {
        const uint64_t key = random.below(16);
        size_t size = 0;
        const nmc_status_t status = nmc_store_get(store, slice(std::to_string(key)), buffer.data(), buffer.size(), &size);
        if (status == NMC_OK && is_value(key, 0, buffer.data(), size)) reads.fetch_add(1);
        else if (status != NMC_ERR_NOT_FOUND && status != NMC_NOT_READY) wrong.fetch_add(1);
      }
    });
  Random random(9);
  std::vector<char> value(3 * PAGE);
  const double start = seconds_now();
  uint64_t writes = 0;
  while ((writes < 2000 || reads.load() < 2000) && seconds_now() - start < 60 && wrong.load() == 0) {
    const uint64_t key = random.below(16), bytes = 1 + random.below(value.size());
    make_value(key, 0, value.data(), bytes);
    const nmc_status_t status = nmc_store_put(store, slice(std::to_string(key)), value.data(), bytes, nullptr);
    writes += status == NMC_OK;
    CHECK(status == NMC_OK || status == NMC_ERR_EXISTS || status == NMC_ERR_BUSY || status == NMC_ERR_STALE);
    if (random.one_in(64)) OK(nmc_store_evict_until_below(store, 0, 300));
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong.load() == 0 && reads.load() > 0 && writes > 0);
  OK(nmc_store_destroy(store));
}

void sizes() {
  promise("values_of_64_KB_to_8_MB_come_back_as_they_were_and_a_changed_byte_is_noticed");
  nmc_store_t* store = embedded(160, 64, NMC_STORE_CHECKSUMS, 256 << 10);
  std::vector<char> value(8 << 20), back(8 << 20);
  for (uint64_t bytes : {64u << 10, 256u << 10, 1u << 20, (1u << 20) + 1, 8u << 20}) {
    make_value(bytes, 0, value.data(), bytes);
    const std::string key = std::to_string(bytes);
    OK(nmc_store_put(store, slice(key), value.data(), bytes, nullptr));
    OK(nmc_store_get_into(store, slice(key), back.data(), bytes));
    CHECK(std::memcmp(value.data(), back.data(), bytes) == 0);
  }
  nmc_view_t view;
  OK(nmc_store_pin(store, slice_of("65536"), &view));
  char* inside = const_cast<char*>(static_cast<const char*>(view.data)) + 1234;
  *inside = static_cast<char>(*inside ^ 1);
  GIVES(nmc_store_get_into(store, slice_of("65536"), back.data(), 65536), NMC_ERR_CORRUPT);
  OK(nmc_store_unpin(store, &view));
  OK(nmc_store_destroy(store));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  const auto wanted = [&](const char* part) { return only.empty() || only == part; };
  adopt_grandchildren();
  // Before this process makes a handle: afterwards a child of it could not.
  if (can_join()) {
    if (wanted("crash")) crash_in_mid_put();
    if (wanted("watchdog")) watchdog();
    if (wanted("child")) child_left_alive(true);
    if (wanted("child")) child_left_alive(false);
    if (wanted("partial")) master_returns_to_a_partial_pin();
    if (wanted("plans")) plans_survive_the_master();
    if (wanted("metadata")) metadata_survives_the_master();
    if (wanted("consumers")) consumers_that_die();
  }
  if (wanted("published")) published_by_the_program();
  if (wanted("pinned")) pinned_ones_do_not_hide_others();
  if (wanted("race")) get_and_evict();
  if (wanted("sizes")) sizes();
  return finish();
}
