// Rounds of faults under load: nodes, clients and the master of a cluster of three nodes are killed (the master begins again on its
// directory) or stopped for a while. history.hpp has the clients, and the checker that knows every byte.
// usage: history ROUNDS [SEED] [stale|torn|unput|late]
//   With a word the clients are broken, and the check must see it.
#include "history.hpp"

namespace {

constexpr uint32_t NODES = 3;
constexpr uint64_t HEAP = 64 << 20;

struct Test {
  Master master{{"--settle_ms", "1000"}};
  Random random;
  std::string broken;
  std::vector<pid_t> nodes = std::vector<pid_t>(NODES), workers = std::vector<pid_t>(WORKERS);
  std::vector<uint32_t> lives = std::vector<uint32_t>(NODES);

  Test(uint64_t seed, std::string how) : random(seed), broken(std::move(how)) {
    for (uint32_t i = 0; i < NODES; ++i) start_node(i);
    shared->calm = true;
    for (uint32_t i = 0; i < WORKERS; ++i) start_worker(i);
  }
  ~Test() {
    end_all(workers);
    end_all(nodes);
  }

  void start_node(uint32_t i) {
    const uint32_t life = shared->lives++;
    REQUIRE(life < LIVES);
    lives[i] = life;
    nodes[i] = start_member([this, life] {
      std::string endpoint;
      const OpenClient node = node_at(master.address(), "node-" + std::to_string(life), HEAP, endpoint);
      shared->of[life].port = atoi(endpoint.c_str() + endpoint.rfind(':') + 1);
      shared->of[life].up = true;
      for (;;) pause();
      return 0;
    });
    std::vector<pid_t> one = {nodes[i]};
    REQUIRE(watch_until(one, kPatience, [&] { return shared->of[life].up.load(); }));
  }
  void start_worker(uint32_t i) {
    const uint64_t seed = random.next();
    workers[i] = start_member([this, i, seed] { return Worker(i, seed, {master.address(), {}, {}, broken}).run(); });
  }
  static void kill9(pid_t pid) {
    ::kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  void wait_ms(uint64_t least, uint64_t more) { pause_us(static_cast<long>((least + random.below(more)) * 1000)); }

  void fault() {
    const uint32_t node = static_cast<uint32_t>(random.below(NODES)), worker = static_cast<uint32_t>(random.below(WORKERS));
    switch (random.below(6)) {
      case 0:
        printf("node killed\n");
        ++shared->kills;  // before: what was put since may be on it
        shared->of[lives[node]].killed = true;
        kill9(nodes[node]);
        ++shared->kills;
        wait_ms(0, 500);
        return start_node(node);
      case 1:
        printf("node stopped\n");
        ::kill(nodes[node], SIGSTOP);
        wait_ms(300, 2500);
        ::kill(nodes[node], SIGCONT);
        return;
      case 2:
        printf("master killed\n");
        master.kill9();
        wait_ms(0, 1000);
        return master.start();
      case 3:
        printf("master stopped\n");
        master.signal(SIGSTOP);
        wait_ms(300, 2500);
        return master.signal(SIGCONT);
      case 4:
        printf("client killed\n");
        kill9(workers[worker]);
        return start_worker(worker);
      default:
        printf("client stopped\n");
        ++shared->stops[worker];
        ::kill(workers[worker], SIGSTOP);
        wait_ms(300, 2500);
        ++shared->stops[worker];
        ::kill(workers[worker], SIGCONT);
    }
  }

  void finish_workers() {
    shared->over = true;
    for (pid_t& pid : workers) {
      std::vector<pid_t> one = {pid};
      const bool ended = watch_until(one, kPatience, [&] { return one[0] < 0; });
      CHECK(ended && "a client ends");
      if (!ended) kill9(pid);
      pid = -1;
    }
  }

  void look() {
    const pid_t pid = start_member([this] {
      const double start = now_s();
      const uint32_t found = Worker(WORKERS, 1, {master.address()}).look(kPatience);
      printf("%u values that must be there were read in %.1f s\n", found, now_s() - start);
      return 0;
    });
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
};

}  // namespace

int main(int argc, char** argv) {
  skip_without_join();
  const int rounds = argc > 1 ? atoi(argv[1]) : 5;
  const uint64_t seed = argc > 2 ? strtoull(argv[2], nullptr, 10) : 1;
  const std::string way = argc > 3 ? argv[3] : "";
  if (way == "tls") secure();
  shared = shared_between_processes<Shared>();
  promise("what_is_acknowledged_is_found_what_is_removed_stays_away_and_every_call_returns");
  printf("%d rounds, seed %" PRIu64 "\n", rounds, seed);
  {
    Test test(seed, way == "tls" ? "" : way);
    stay_calm(1.5, test.broken);
    for (int round = 0; round < rounds && shared->violations == 0; ++round) {
      test.fault();
      test.wait_ms(300, 900);
    }
    test.finish_workers();
    if (shared->violations == 0) test.look();
  }
  printf("%" PRIu64 " puts, %" PRIu64 " gets (%" PRIu64 " misses), %" PRIu64 " removes, %" PRIu64 " in doubt; slowest call %.2f s\n",
         shared->puts.load(), shared->gets.load(), shared->misses.load(), shared->removes.load(), shared->doubts.load(),
         static_cast<double>(shared->slowest_us) * 1e-6);
  for (const auto& text : shared->text)
    if (text[0] != 0) printf("FAIL %s\n", text);
  CHECK(shared->violations == 0);
  CHECK(shared->puts > 0 && shared->gets > shared->misses);
  return finish();
}
