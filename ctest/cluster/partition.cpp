// A cluster whose parts are on machines of their own, as far as the network can tell: two masters, etcd, three owners and two
// requesters, each in a network namespace. In each round one or two of them are cut off (in both directions or in one, from all, from
// one other or from the masters), killed with SIGKILL and started again, or stopped for a while. history.hpp has the clients, and the checker that
// knows every byte. After each round somebody who had no fault reads all that must be there, and puts something; how long that takes is
// printed and not checked, except that a minute is a hang.
// Where etcd is not on the PATH, and with the word `alone`, there is one master, which begins again on its directory.
// usage: partition ROUNDS [SEED] [alone|stale|torn|unput|late|lost]
//   With one of the other words something is broken, and the check must see it: the clients as in history.hpp; `lost` kills two owners
//   and does not say so.
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "../support/netns.hpp"
#include "history.hpp"

namespace {

constexpr uint32_t NODES = 3;
constexpr uint64_t HEAP = 256 << 20;
constexpr const char* TOKEN = "a-token-for-a-test-of-partitions";
// Shorter than a long fault, so that owners are given up and come back. Lease and settle time are those that users have.
constexpr const char* AWAY_MS = "4000";

// Who is where.
enum Spot : size_t { ETCD, MASTER, STANDBY, NODE, WORKER = NODE + NODES, WATCHER = WORKER + WORKERS, PLACES };

// What the watcher is asked to do, and what came of it. Times are of the clock that all processes share.
struct Watch {
  std::atomic<uint32_t> asked, done, found;
  std::atomic<double> since, readable_s, writable_s;
};
Watch* watch;

std::string on_path(const char* program) {
  std::istringstream folders(getenv("PATH") != nullptr ? getenv("PATH") : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (const std::string path = folder + "/" + program; access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

// etcd of one member; it begins again on its directory.
class Etcd {
 public:
  Etcd(const Networks& networks, std::string program) : networks_(networks), program_(std::move(program)) { start(); }
  ~Etcd() { kill9(); }
  static std::string url(int port) { return "http://" + Networks::address(ETCD) + ":" + std::to_string(port); }
  pid_t pid() const { return pid_; }
  void start() {
    pid_ = start_member([this] {
      networks_.enter(ETCD);
      const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
      dup2(null, 1), dup2(null, 2);
      const std::string clients = url(2379), peers = url(2380), cluster = "e=" + peers, dir = place_.dir + "/etcd";
      execl(program_.c_str(), "etcd", "--name", "e", "--data-dir", dir.c_str(), "--listen-client-urls", clients.c_str(), "--advertise-client-urls",
            clients.c_str(), "--listen-peer-urls", peers.c_str(), "--initial-advertise-peer-urls", peers.c_str(), "--initial-cluster", cluster.c_str(),
            nullptr);
      return 127;
    });
  }
  void kill9() {
    std::vector<pid_t> one = {pid_};
    end_all(one);
    pid_ = -1;
  }

 private:
  const Networks& networks_;
  std::string program_;
  Place place_;
  pid_t pid_ = -1;
};

enum Kind { CABLE, DEVICE, MUTE, DEAF, APART, ONE_WAY, KILLED, STOPPED, KINDS };
constexpr const char* WORDS[KINDS] = {"has no cable",  "has no device",   "is not heard", "does not hear",
                                      "is apart from", "is not heard by", "is killed",    "is stopped"};

struct Fault {
  Kind kind;
  size_t at, other;  // other: for faults between two
};

class Cluster {
 public:
  Cluster(uint64_t seed, std::string word) : word_(std::move(word)), random_(seed) {
    const std::string program = word_ == "alone" ? "" : on_path("etcd"), token = place_.dir + "/token";
    std::ofstream(token) << TOKEN << "\n";
    REQUIRE(chmod(token.c_str(), 0600) == 0);
    std::vector<std::string> flags = {"--token_file", token, "--away_ms", AWAY_MS};
    if (!program.empty()) {
      etcd_ = std::make_unique<Etcd>(networks_, program);
      flags.insert(flags.end(), {"--etcd", Etcd::url(2379)});
    } else {
      printf("one master and no standby: %s\n", word_ == "alone" ? "so it was asked for" : "there is no etcd on the PATH (Debian: apt-get install etcd-server)");
    }
    for (size_t at = 0; at < PLACES; ++at) {
      if (at >= NODE || at == MASTER || !program.empty()) used_.push_back(at);
    }
    promise("what_is_cut_off_is_cut_off");
    check_network();
    for (size_t at = MASTER; at <= (etcd_ ? STANDBY : MASTER); ++at) {
      masters_.push_back(std::make_unique<Master>(flags, Networks::address(at), [this, at] { networks_.enter(at); }));
      addresses_ += (addresses_.empty() ? "" : ",") + masters_.back()->address();
    }
    for (uint32_t i = 0; i < NODES; ++i) start_node(i);
    for (uint32_t i = 0; i < NODES; ++i) await_node(i);
    watcher_ = start_member([this] { return be_watcher(); });
    for (uint32_t i = 0; i < WORKERS; ++i) start_worker(i);
  }
  ~Cluster() {
    end_all(workers_);
    end_all(nodes_);
    std::vector<pid_t> one = {watcher_};
    end_all(one);
  }

  void round(uint32_t number) {
    std::vector<Fault> faults = {drawn()};
    if (random_.one_in(2)) faults.push_back(drawn());
    if (faults.size() == 2 && exclude(faults[0], faults[1])) faults.pop_back();
    const uint64_t ms = random_.one_in(2) ? 4500 + random_.below(2000) : 200 + random_.below(1800);
    printf("%3u:", number);
    for (const Fault& fault : faults) {
      printf(" %s %s%s,", name_of(fault.at).c_str(), WORDS[fault.kind], fault.kind == APART || fault.kind == ONE_WAY ? other_of(fault).c_str() : "");
    }
    printf(" for %.1f s", static_cast<double>(ms) * 1e-3);
    fflush(stdout);
    for (const Fault& fault : faults) {
      begin(fault);
      wait_ms(random_.below(1000));
    }
    wait_ms(ms);
    for (const Fault& fault : faults) end(fault);
    const double healed = now_s();
    for (uint32_t i = 0; i < NODES; ++i) await_node(i);
    if (!look(number, healed)) return;
    readable_.push_back(watch->readable_s);
    writable_.push_back(watch->writable_s);
  }

  // Asks the watcher, and waits for it: values are read, and one is put. The times are from `since` on.
  bool look(uint32_t number, double since) {
    watch->since = since;
    watch->asked = number;
    std::vector<pid_t> one = {watcher_};
    const bool answered = watch_until(one, 4 * kPatience, [&] { return watch->done == number; });
    watcher_ = one[0];
    if (!answered) violation("the watcher has ended, or hangs");
    if (shared->violations != 0) return printf("\n"), false;
    printf(" %u values read after %.1f s, put after %.1f s\n", watch->found.load(), watch->readable_s.load(), watch->writable_s.load());
    return true;
  }

  void finish_workers() {
    shared->over = true;
    for (pid_t& pid : workers_) {
      std::vector<pid_t> one = {pid};
      const bool ended = watch_until(one, kPatience, [&] { return one[0] < 0; });
      CHECK(ended && "a client ends");
      if (ended) pid = -1;
    }
  }

  void kill_quietly() {
    for (uint32_t i = 0; i < 2; ++i) {
      kill9(nodes_[i]);
      start_node(i);
      await_node(i);
    }
  }

  void print_times() {
    for (auto [what, times] : {std::make_pair("readable", &readable_), std::make_pair("writable", &writable_)}) {
      if (times->empty()) continue;
      std::sort(times->begin(), times->end());
      const auto within = std::upper_bound(times->begin(), times->end(), 8.0) - times->begin();
      printf("%s again after a fault: p50 %.2f s, p99 %.2f s, max %.2f s; %td of %zu within 8 s\n", what, (*times)[times->size() / 2],
             (*times)[times->size() * 99 / 100], times->back(), within, times->size());
    }
  }

 private:
  static void wait_ms(uint64_t ms) { pause_us(static_cast<long>(ms) * 1000); }
  static void kill9(pid_t& pid) {
    std::vector<pid_t> one = {std::exchange(pid, -1)};
    end_all(one);
  }
  static std::string name_of(size_t at) {
    if (at == ETCD) return "etcd";
    if (at < NODE) return at == MASTER ? "master 1" : "master 2";
    return at < WORKER ? "node " + std::to_string(at - NODE) : "client " + std::to_string(at - WORKER);
  }

  static std::string other_of(const Fault& fault) { return fault.at >= NODE && is_master(fault.other) ? " the masters" : " " + name_of(fault.other); }

  Fault drawn() {
    Fault fault{static_cast<Kind>(random_.below(KINDS)), 0, 0};
    do fault.at = used_[random_.below(used_.size())];
    while (fault.at == WATCHER);
    do fault.other = used_[random_.below(used_.size())];
    while (fault.other == WATCHER || !speak(std::min(fault.at, fault.other), std::max(fault.at, fault.other)));
    return fault;
  }
  // Whether the two have anything to say to each other.
  static bool speak(size_t low, size_t high) { return low == ETCD ? is_master(high) : low != high && low < WORKER; }
  // Whether there can not be both: a process is killed once, and a device that is down can not be told about others.
  static bool exclude(const Fault& a, const Fault& b) {
    const bool networks = a.kind < KILLED && b.kind < KILLED;
    return networks ? a.kind == DEVICE || b.kind == DEVICE : a.kind >= KILLED && b.kind >= KILLED && a.at == b.at;
  }

  void begin(const Fault& fault) {
    if (fault.kind < KILLED) return change_network(fault, true);
    const bool kill = fault.kind == KILLED;
    if (fault.at == ETCD) kill ? etcd_->kill9() : stop_child(etcd_->pid());
    else if (fault.at < NODE) kill ? masters_[fault.at - MASTER]->kill9() : masters_[fault.at - MASTER]->stop();
    else if (fault.at < WORKER) kill ? kill_node(fault.at - NODE) : stop_child(nodes_[fault.at - NODE]);
    else if (kill) kill9(workers_[fault.at - WORKER]);
    else ++shared->stops[fault.at - WORKER], stop_child(workers_[fault.at - WORKER]);
  }
  void end(const Fault& fault) {
    if (fault.kind < KILLED) return change_network(fault, false);
    const bool killed = fault.kind == KILLED;
    if (fault.at == ETCD) killed ? etcd_->start() : go_on(etcd_->pid());
    else if (fault.at < NODE) killed ? masters_[fault.at - MASTER]->start() : masters_[fault.at - MASTER]->signal(SIGCONT);
    else if (fault.at < WORKER) killed ? start_node(static_cast<uint32_t>(fault.at - NODE)) : go_on(nodes_[fault.at - NODE]);
    else if (killed) start_worker(static_cast<uint32_t>(fault.at - WORKER));
    else ++shared->stops[fault.at - WORKER], go_on(workers_[fault.at - WORKER]);
  }
  static void go_on(pid_t pid) {
    REQUIRE(pid > 0);
    ::kill(pid, SIGCONT);
  }
  void kill_node(size_t i) {
    ++shared->kills;  // before: what was put since may be on it
    shared->of[lives_[i]].killed = true;
    kill9(nodes_[i]);
    ++shared->kills;
  }

  void change_network(const Fault& fault, bool begins) const {
    const auto lose = [&](size_t from, const std::vector<size_t>& to) { begins ? networks_.lose(from, to) : networks_.lose_no_more(from, to); };
    std::vector<size_t> others;
    std::copy_if(used_.begin(), used_.end(), std::back_inserter(others), [&](size_t at) { return at != fault.at; });
    switch (fault.kind) {
      case CABLE: return networks_.plug(fault.at, !begins);
      case DEVICE: return networks_.device(fault.at, !begins);
      case MUTE: return lose(fault.at, others);
      case DEAF:
        for (const size_t other : others) lose(other, {fault.at});
        return;
      case APART:
        for (const size_t other : far_ends(fault)) lose(other, {fault.at});
        [[fallthrough]];
      default: return lose(fault.at, far_ends(fault));
    }
  }
  // Masters are so from all of them: one that does not lead would not matter.
  std::vector<size_t> far_ends(const Fault& fault) const {
    if (fault.at < NODE || !is_master(fault.other)) return {fault.other};
    return masters_.size() == 2 ? std::vector<size_t>{MASTER, STANDBY} : std::vector<size_t>{MASTER};
  }
  static bool is_master(size_t at) { return at == MASTER || at == STANDBY; }
  // The network does what the rounds believe of it.
  void check_network() const {
    const size_t a = NODE, b = NODE + 1;
    for (int kind = CABLE; kind <= ONE_WAY; ++kind) {
      const Fault fault{static_cast<Kind>(kind), a, b};
      CHECK(arrives(a, b, true) && arrives(b, a, true));
      change_network(fault, true);
      const bool there = kind == DEAF, back = kind == MUTE || kind == ONE_WAY;
      CHECK(arrives(a, b, there) == there && arrives(b, a, back) == back);
      change_network(fault, false);
    }
    CHECK(arrives(a, b, true) && arrives(b, a, true));
  }
  // Whether datagrams get from one place to another. Who expects none does not wait for long.
  bool arrives(size_t from, size_t to, bool expected) const {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(9999);
    inet_pton(AF_INET, Networks::address(to).c_str(), &at.sin_addr);
    int ready[2];
    REQUIRE(pipe2(ready, O_CLOEXEC) == 0);
    std::vector<pid_t> receiver = {start_member([&] {
      networks_.enter(to);
      const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
      if (bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) return 2;
      (void)!write(ready[1], "r", 1);
      pollfd event{fd, POLLIN, 0};
      return poll(&event, 1, expected ? 30000 : 200) == 1 ? 0 : 1;
    })};
    close(ready[1]);
    char byte = 0;
    REQUIRE(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    std::vector<pid_t> sender = {start_member([&] {
      networks_.enter(from);
      const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
      for (;; pause_us(50000)) (void)!sendto(fd, "x", 1, 0, reinterpret_cast<sockaddr*>(&at), sizeof at);
      return 0;
    })};
    int status = 0;
    waitpid(receiver[0], &status, 0);
    end_all(sender);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 0;
  }

  Calling calling(size_t at) const {
    const bool alone = word_ == "alone";
    return {addresses_, TOKEN, Networks::address(at), alone ? "" : word_, true, 3};
  }

  // Comes back under the name of the one before or under another, as it happens. Without etcd a remove is IN_PROGRESS for as long as one
  // of the members is away, so it keeps its name there. It asks to be a member until it is.
  void start_node(uint32_t i) {
    const uint32_t life = shared->lives++;
    REQUIRE(life < LIVES);
    const bool another = names_[i].empty() || (etcd_ && random_.one_in(2));
    if (another) names_[i] = "node-" + std::to_string(life);
    lives_[i] = life;
    nodes_[i] = start_member([this, i, life] {
      networks_.enter(NODE + i);
      const int port = 12300 + static_cast<int>(life);  // says whose life it is
      shared->of[life].port = port;
      const OpenClient node(addresses_, 3000, Networks::address(NODE + i) + ":" + std::to_string(port), 0, TOKEN);
      const nmc_store_config_t config = segment_of(HEAP);
      while (nmc_client_mount(node, slice(names_[i]), &config) != NMC_OK) pause_us(50000);
      shared->of[life].up = true;
      for (;;) pause();
      return 0;
    });
  }
  void await_node(uint32_t i) {
    const bool up = watch_until(nodes_, kPatience, [&] { return shared->of[lives_[i]].up.load(); });
    if (!up) violation("node %u does not become a member again", i);
  }
  void start_worker(uint32_t i) {
    const uint64_t seed = random_.next();
    workers_[i] = start_member([this, i, seed] {
      networks_.enter(WORKER + i);
      return Worker(i, seed, calling(WORKER + i)).run();
    });
  }
  // Reads all the time, so that its connections have seen the fault too.
  int be_watcher() {
    networks_.enter(WATCHER);
    Calling calls = calling(WATCHER);
    calls.broken.clear();
    Worker reader(WORKERS, 7, calls);
    for (;; pause_us(2000)) {
      const uint32_t asked = watch->asked;
      if (asked == watch->done) {
        reader.read_any();
        continue;
      }
      const double patience = word_ == "lost" ? 15 : kPatience;
      watch->found = reader.look(patience);
      watch->readable_s = now_s() - watch->since;
      reader.write("probe-" + std::to_string(asked), patience);
      watch->writable_s = now_s() - watch->since;
      watch->done = asked;
    }
  }

  Networks networks_{PLACES};
  Place place_;
  std::string word_, addresses_, names_[NODES];
  Random random_;
  std::unique_ptr<Etcd> etcd_;
  std::vector<std::unique_ptr<Master>> masters_;
  std::vector<size_t> used_;
  std::vector<pid_t> nodes_ = std::vector<pid_t>(NODES), workers_ = std::vector<pid_t>(WORKERS);
  uint32_t lives_[NODES] = {};
  pid_t watcher_ = -1;
  std::vector<double> readable_, writable_;
};

}  // namespace

int main(int argc, char** argv) {
  skip_without_join();
  const uint32_t rounds = argc > 1 ? static_cast<uint32_t>(atoi(argv[1])) : 3;
  const uint64_t seed = argc > 2 ? strtoull(argv[2], nullptr, 10) : 1;
  const std::string word = argc > 3 ? argv[3] : "";
  shared = shared_between_processes<Shared>();
  watch = shared_between_processes<Watch>();
  const double start = now_s();
  {
    Cluster cluster(seed, word);
    promise("what_is_acknowledged_is_found_what_is_removed_stays_away_and_every_call_returns");
    printf("%u rounds, seed %" PRIu64 "\n", rounds, seed);
    cluster.look(1, now_s());
    shared->calm = true;
    stay_calm(1, word);
    for (uint32_t round = 2; round < rounds + 2 && shared->violations == 0; ++round) cluster.round(round);
    if (word == "lost") cluster.kill_quietly();
    cluster.finish_workers();
    if (shared->violations == 0) cluster.look(rounds + 2, now_s());
    cluster.print_times();
  }
  printf("%u rounds in %.0f s: %" PRIu64 " calls: %" PRIu64 " puts, %" PRIu64 " gets (%" PRIu64 " misses), %" PRIu64 " removes, %" PRIu64
         " in doubt; slowest call %.2f s after its deadline\n",
         rounds, now_s() - start, shared->calls.load(), shared->puts.load(), shared->gets.load(), shared->misses.load(), shared->removes.load(),
         shared->doubts.load(), static_cast<double>(shared->slowest_us) * 1e-6 - TIMEOUT_MS * 1e-3);
  for (const auto& text : shared->text)
    if (text[0] != 0) printf("FAIL %s\n", text);
  CHECK(shared->violations == 0);
  CHECK(shared->puts > 0 && shared->gets > shared->misses);
  return finish();
}
