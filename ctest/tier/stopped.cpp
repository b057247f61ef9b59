// The owner of the tier is stopped (SIGSTOP) before a client has got what it needs to read the disk. Calls that promise not to wait for
// the master do not wait for it then either, whatever ends a wait ends theirs, and everything goes on when the owner does.
// usage: tier_stopped [asks]   the control: reads that ask the owner are seen

#include "../support/store_puppet.hpp"
#include "../support/tier_check.hpp"

namespace {

// How long calls wait for the master; and far less, but far more than what a read may take (half a second, once).
// The control, whose call has to wait for all of it, waits for less.
int64_t call_ms = 20000;
double soon = 6;
// Far less than if each of many reads waited half a second.
constexpr double kAtOnce = 2.5;

const std::vector<std::string> kReads = {"exists", "match", "touch", "location", "pin", "get", "metadata", "next"};

StoreWish wish() {
  StoreWish wish;
  wish.call_timeout_ms = call_ms;
  return wish;
}

void go_on(const Process& process) { REQUIRE(kill(process.pid(), SIGCONT) == 0); }

// What a rank holds besides its store.
struct Rank {
  nmc_world_t* world;
  nmc_store_t* store;
  nmc_tier_t* tier;
};

// A call by its name, for the key "k".
nmc_status_t called(const Rank& rank, const std::string& what) {
  const nmc_slice_t key = bytes_of("k");
  nmc_store_t* const store = rank.store;
  uint64_t number = 0;
  size_t n = 0;
  char buffer[64];
  if (what == "exists") {
    uint32_t state = 0;
    return nmc_store_exists(store, key, &state);
  }
  if (what == "match") return nmc_store_match_prefix(store, &key, 1, &n);
  if (what == "touch") return nmc_store_touch(store, key);
  if (what == "location") {
    nmc_object_meta_t meta{};
    return nmc_store_get_location(store, key, &meta);
  }
  if (what == "pin") {
    nmc_view_t view{};
    return nmc_store_pin(store, key, &view);
  }
  if (what == "get") return nmc_store_get(store, key, nullptr, 0, &n);
  if (what == "read") {
    std::vector<char> value(5000);
    return nmc_store_get(store, key, value.data(), value.size(), &n);
  }
  if (what == "metadata") return nmc_store_get_metadata(store, key, buffer, sizeof buffer, &n);
  if (what == "next") return nmc_store_next(store, &number, buffer, sizeof buffer, &n, nullptr);
  if (what == "wait") return nmc_store_wait_ready(store, key, 0, 200);
  if (what == "stage") {
    nmc_slice_t value{};
    return nmc_tier_stage(rank.tier, &key, 1, 0, &number, &value, nullptr);
  }
  if (what == "stats") {
    nmc_tier_stats_t stats = NMC_TIER_STATS_INIT;
    return nmc_tier_stats(rank.tier, &stats);
  }
  if (what == "offload") return nmc_tier_offload(rank.tier, nullptr, 0, nullptr);
  if (what == "sync") return nmc_tier_sync(rank.tier);
  if (what == "prefetch") return nmc_tier_prefetch(rank.tier, &key, 1, nullptr);
  if (what == "evict") return nmc_tier_evict(rank.tier, 0, nullptr);
  if (what == "pause") return nmc_tier_pause(rank.tier);
  return NMC_ERR_INTERNAL;
}

nmc_status_t ended(Rank& rank, const std::string& how) {
  if (how == "cancel") return nmc_store_cancel(rank.store);
  if (how == "abort") return nmc_world_abort(rank.world);
  if (how == "close") return nmc_tier_close(rank.tier);
  return nmc_store_destroy(rank.store);
}

// A client, and what else is asked of it here.
Process process(const Place& place, int32_t number) {
  const Setup setup = setup_of(number, 2, wish());
  return Process([&place, setup](Link& test) {
    const nmc_world_config_t config = config_of(place, setup);
    nmc_world_t* world = nullptr;
    const nmc_status_t joined = nmc_world_join(&config, &world);
    test.say(outcome(joined));
    if (joined != NMC_OK) return;
    Client client(world, wish());
    nmc_tier_t* tier = nullptr;
    obey(test, world, [&](const std::string& verb, std::istringstream& words, std::ostringstream& answer) {
      std::string what, how;
      if (verb == "tier") {  // tier [<directory>]: opens it
        words >> what;
        const nmc_tier_config_t own = tier_config(what);
        answer << outcome(nmc_tier_open(client.store(), what.empty() ? nullptr : &own, &tier));
      } else if (verb == "to_disk") {  // one value, on disk only
        OK(put(client.store(), "k", value_of(1, 5000)));
        CHECK(offload(tier) == 1);
        evict(client.store(), 0);
        evict(client.store(), 1);
        answer << "written";
      } else if (verb == "calls") {  // calls <what>...: seconds of all of them, and what each said
        const Rank rank{world, client.store(), tier};
        const double start = seconds_now();
        std::string said;
        while (words >> what) said += std::string(" ") + nmc_status_name(called(rank, what));
        answer << seconds_now() - start << said;
      } else if (verb == "cpu") {  // seconds that the process has used
        answer << static_cast<double>(clock()) / CLOCKS_PER_SEC;
      } else if (verb == "ended") {  // ended <what> <how>: a call that another one ends; what it said, and the seconds that took
        words >> what >> how;
        Rank rank{world, client.store(), tier};
        std::atomic<bool> over{false};
        nmc_status_t said = NMC_OK;
        std::thread caller([&] {
          said = called(rank, what);
          over = true;
        });
        sleep_ms(100);
        const bool late = over;  // it had its time before it could be ended
        const double start = seconds_now();
        const nmc_status_t end = ended(rank, how);
        caller.join();
        answer << (late ? "late" : nmc_status_name(said)) << " " << seconds_now() - start << " " << nmc_status_name(end);
      } else {
        return client.act(verb, words, answer);
      }
      return true;
    });
  });
}

// Rank 0, which owns the tier and is stopped, and rank 1, which has not heard of the tier and does `first`.
struct Scene {
  Place place;
  TierDir dir;
  Process owner, reader;
  std::string said;
  Scene(const std::string& before, const std::string& first) : owner(process(place, 0)), reader(process(place, 1)) {
    for (Process* rank : {&owner, &reader}) REQUIRE(SAYS(rank->reply(), "NMC_OK"));
    for (Process* rank : {&owner, &reader}) rank->send("create");
    for (Process* rank : {&owner, &reader}) REQUIRE(SAYS(rank->reply(), "NMC_OK"));
    stop_child(reader.pid());
    REQUIRE(SAYS(owner.ask("tier " + dir.path), "NMC_OK"));
    REQUIRE(SAYS(owner.ask("to_disk"), "written"));
    stop_child(owner.pid());
    // Before it runs again: nothing comes in between.
    if (!before.empty()) reader.send(before);
    reader.send(first);
    go_on(reader);
    if (!before.empty()) REQUIRE(SAYS(reader.reply(), "NMC_OK"));
    said = reader.reply();
    printf("     %s: %s\n", first.c_str(), said.c_str());
  }
  ~Scene() {
    owner.kill9();
    reader.kill9();
  }
};

double seconds_of(const std::string& said) { return std::stod(said); }

bool all_unavailable(const std::string& said) {
  std::istringstream words(said);
  std::string word;
  for (words >> word; words >> word;) {
    if (word != "NMC_ERR_UNAVAILABLE") return false;
  }
  return true;
}

void reads(bool asks) {
  const auto call = [asks](const std::string& what) { return "calls " + (asks ? "stats" : what); };
  for (const std::string& first : kReads) {
    promise(("the_first_read_waits_a_moment_for_an_owner_that_is_stopped__" + first).c_str());
    Scene scene(asks ? "tier" : "", call(first));
    CHECK(seconds_of(scene.said) < soon);
    if (asks) return;
    CHECK(all_unavailable(scene.said));

    promise("and_the_next_ones_do_not_wait_for_it");
    std::string all;
    for (const std::string& what : kReads) all += " " + what;
    const std::string said = scene.reader.ask("calls" + all + all + " wait wait");
    printf("     all of them: %.3f s\n", seconds_of(said));
    CHECK(seconds_of(said) < kAtOnce);
    CHECK(all_unavailable(said));

    promise("when_the_owner_goes_on_the_disk_is_read");
    go_on(scene.owner);
    const double start = seconds_now();
    while (scene.reader.ask("get k 5000 1") != "right" && seconds_now() - start < kPatience / 2) sleep_ms(20);
    SAYS(scene.reader.ask("get k 5000 1"), "right");
    SAYS(scene.reader.ask("exists k"), "ON_DISK");

    promise("and_from_then_on_by_the_reader_alone");
    stop_child(scene.owner.pid());
    SAYS(scene.reader.ask("get k 5000 1"), "right");
  }
}

void wait_ready() {
  promise("a_wait_with_a_time_of_its_own_keeps_it");
  Scene scene("", "calls wait");
  CHECK(seconds_of(scene.said) < kAtOnce);
  CHECK(all_unavailable(scene.said));
}

bool was_ended(const std::string& said) {
  std::istringstream words(said);
  std::string status, end;
  double seconds = 0;
  words >> status >> seconds >> end;
  return status == "NMC_ERR_CANCELLED" && end == "NMC_OK" && seconds < soon;
}

void idle() {
  promise("while_the_owner_is_stopped_the_clients_thread_sleeps_whoever_wakes_it");
  Scene scene("tier", "calls exists");
  sleep_ms(1500);  // it has given up the connection, and waits for the next one
  const double before = seconds_of(scene.reader.ask("cpu"));
  CHECK(was_ended(scene.reader.ask("ended prefetch cancel")));
  sleep_ms(1500);
  const double used = seconds_of(scene.reader.ask("cpu")) - before;
  printf("     %.3f s of CPU time\n", used);
  CHECK(used < 0.7);
}

void damage() {
  promise("a_read_of_damage_does_not_wait_long_for_an_owner_to_be_told");
  Scene scene("", "calls exists");
  go_on(scene.owner);
  const double begin = seconds_now();
  while (scene.reader.ask("get k 5000 1") != "right" && seconds_now() - begin < kPatience / 2) sleep_ms(20);
  CHECK(damaged(scene.dir.path, value_of(1, 5000)) == 1);
  stop_child(scene.owner.pid());
  const std::string said = scene.reader.ask("calls read read read");
  printf("     %s\n", said.c_str());
  CHECK(said.find(" NMC_ERR_CORRUPT NMC_ERR_CORRUPT NMC_ERR_CORRUPT") != std::string::npos);
  CHECK(seconds_of(said) < soon);
}

// Until a machine that is busy lets the end come before the call has had its time.
std::string ended_in_time(const std::string& what, const std::string& how) {
  std::string said = "late";
  for (int i = 0; i < 5 && begins_with(said, "late"); ++i) {
    Scene scene(how == "close" ? "tier" : "", "ended " + what + " " + how);
    said = scene.said;
  }
  return said;
}

void ends() {
  for (const std::string how : {"cancel", "abort", "destroy"}) {
    promise(("a_read_that_waits_for_the_owner_is_ended_by_" + how).c_str());
    for (const std::string what : {"exists", "get"}) CHECK(was_ended(ended_in_time(what, how)));
  }
  promise("a_read_through_a_handle_of_the_tier_is_ended_by_its_close");
  CHECK(was_ended(ended_in_time("stage", "close")));
}

void close_of_a_handle() {
  promise("the_close_of_a_handle_ends_calls_that_wait_for_the_owner");
  Scene scene("", "calls exists");
  go_on(scene.owner);
  for (const std::string what : {"stats", "offload", "sync", "prefetch", "evict", "pause"}) {
    REQUIRE(SAYS(scene.reader.ask("tier"), "NMC_OK"));
    // Also those that come after one that was ended.
    saw_in_time(scene.reader.ask("await_put " + what + " 100 1"), "the owner answers");
    const std::string before = scene.reader.ask("calls stats");
    CHECK(before.find(" NMC_OK") != std::string::npos);
    stop_child(scene.owner.pid());
    const std::string said = scene.reader.ask("ended " + what + " close");
    printf("     %s: %s\n", what.c_str(), said.c_str());
    CHECK(was_ended(said));
    go_on(scene.owner);
  }
}

}  // namespace

int main(int argc, char**) {
  skip_without_join();
  const bool control = argc > 1;
  if (control) {
    call_ms = 5000;
    soon = 4;
  }
  reads(control);
  if (control) return finish();
  wait_ready();
  idle();
  damage();
  ends();
  close_of_a_handle();
  return finish();
}
