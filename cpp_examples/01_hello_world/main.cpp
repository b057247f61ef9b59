// Hello, world: four processes share memory, one is killed, a new one takes its place.
//
// Read run_rank() first: it is all that a rank does. Everything below it starts the processes, kills one, and prints.
// Needs no GPU.
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nanomc.hpp>
#include <sstream>

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRanks = 4, kVictim = 2, kRounds = 30;
constexpr size_t kWords = size_t{1} << 20;  // what a rank writes into each heap, in 64-bit words: 8 MiB
constexpr size_t kBytes = kWords * sizeof(uint64_t);
constexpr auto kPatience = std::chrono::seconds(60);  // for loaded machines; nothing here takes that long
const std::vector<int> kAll = {0, 1, 2, 3}, kSurvivors = {0, 1, 3};

// ------------------------------------------------------------------------------------------------------ a rank --

// A line for the process that started us, which prints it nicely.
template <class... T>
void say(const char* what, const T&... values) {
  std::ostringstream line;
  line << what;
  ((line << ' ' << values), ...);
  std::puts(line.str().c_str());
  std::fflush(stdout);
}

// Compares every byte that `source` wrote for `owner` in a round.
void verify(const nmc::World& world, int source, int owner, uint64_t round) {
  const auto slot = world.heap<const uint64_t>(owner, source * kBytes, kWords);
  for (size_t i = 0; i < kWords; ++i) {
    if (slot[i] != nmc_pattern_u64(round, source, owner, i)) throw std::runtime_error("a wrong byte");
  }
}

// Writes into the heap of every peer, publishes, and checks what the peers wrote here. Returns the seconds of writing.
double exchange(const nmc::World& world, int me, const std::vector<int>& peers, uint64_t round) {
  std::vector<uint64_t> mine(kWords);
  Clock::duration spent{0};
  for (int peer : peers) {
    for (size_t i = 0; i < kWords; ++i) mine[i] = nmc_pattern_u64(round, me, peer, i);
    const auto start = Clock::now();
    std::memcpy(world.heap(peer, me * kBytes, kBytes).data(), mine.data(), kBytes);  // their memory, mapped here
    spent += Clock::now() - start;
    world.word(peer, me).store_release(round);  // "it is there": each control word has one writer
  }
  for (int peer : peers) {
    while (world.word(me, peer).load_acquire() < round) usleep(100);
    verify(world, peer, me, round);
  }
  return std::chrono::duration<double>(spent).count();
}

// Sleeps until something happened to a rank.
void wait_for_event(const nmc::World& world) {
  pollfd event{world.event_fd(), POLLIN, 0};
  uint64_t count = 0;
  if (poll(&event, 1, 1000) > 0 && read(event.fd, &count, sizeof count) < 0) throw std::runtime_error("event fd");
}

void run_rank(int me, const std::string& dir, bool newcomer) {
  const auto config = nmc::WorldConfig("hello").dir(dir).rank(me).world_size(kRanks).heap_bytes(kRanks * kBytes);
  const nmc::World world = nmc::World::join(config);  // returns when all four are there
  say("joined", getpid());
  if (newcomer) {
    for (int peer : kSurvivors) verify(world, peer, me, kRounds);  // our predecessor's heap, as it was left
    say("inherited", world.rank_info(me).generation);
  } else {
    double seconds = 0;
    for (int round = 1; round <= kRounds; ++round) {
      seconds += exchange(world, me, kAll, round);
      world.barrier(kPatience);  // nobody overwrites what another one still checks
      say("speed", static_cast<double>(round * kRanks * kBytes) / seconds);
      say("round", round);
    }
    if (me == kVictim) {
      say("writing", 1);
      for (int value = 0;; ++value) {  // until somebody kills us
        for (int peer : kAll) std::memset(world.heap(peer, me * kBytes, kBytes).data(), value, kBytes);
      }
    }
    while (world.alive(kVictim) == nmc::RankState::alive) wait_for_event(world);
    say("noticed", Clock::now().time_since_epoch().count());
    const auto barrier = world.nothrow()->barrier(kPatience);  // a dead rank is no exception in this program
    if (barrier.status() != NMC_ERR_PEER_LOST) throw std::runtime_error("the barrier noticed nothing");
    exchange(world, me, kSurvivors, kRounds + 1);
    say("went_on", 1);
    while (world.alive(kVictim) != nmc::RankState::alive) wait_for_event(world);
  }
  world.barrier(kPatience);  // the one that was still open: the newcomer completes it
  exchange(world, me, kAll, kRounds + 2);
  world.barrier(kPatience);
  say("complete", 1);
  world.finalize();  // the others see that we left; ~World unmaps and closes everything
}

// ------------------------------------------------------------------------------------------- who starts the ranks --

const bool kTerminal = isatty(STDOUT_FILENO) == 1;
const bool kColour = kTerminal && (std::getenv("NO_COLOR") == nullptr || *std::getenv("NO_COLOR") == '\0');
const char* const kBold = kColour ? "\x1b[1m" : "";
const char* const kGreen = kColour ? "\x1b[32m" : "";
const char* const kOff = kColour ? "\x1b[0m" : "";

struct Child {
  pid_t pid = -1;
  int lines = -1;  // its stdout
  std::string unread;
  std::map<std::string, double> said;
};
std::array<Child, kRanks> children;

void start(int rank, const std::string& dir, bool newcomer) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::string words[] = {"nanomc-rank", std::to_string(rank), dir, newcomer ? "newcomer" : "first"};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  Child& child = children[rank] = Child{};
  child.lines = ends[0];
  const int failed = posix_spawn(&child.pid, "/proc/self/exe", &actions, nullptr, arguments, environ);
  if (failed != 0) throw std::runtime_error("posix_spawn");
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
}

// Kills (0: waits for) a child. True if it ended by itself and well.
bool end(Child& child, int signal) {
  if (child.pid <= 0) return true;
  if (signal != 0) kill(child.pid, signal);
  int status = -1;
  waitpid(child.pid, &status, 0);
  if (child.lines >= 0) close(std::exchange(child.lines, -1));
  child.pid = -1;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Listens to the ranks until `count` of them have said `what` (at least `value`).
void hear(int count, const char* what, double value, const std::function<void()>& news = [] {}) {
  const auto done = [&] {
    return std::count_if(children.begin(), children.end(), [&](Child& c) { return c.said[what] >= value; }) >= count;
  };
  const auto deadline = Clock::now() + kPatience;
  for (news(); !done(); news()) {
    std::array<pollfd, kRanks> fds{};
    for (int i = 0; i < kRanks; ++i) fds[i] = {children[i].lines, POLLIN, 0};
    poll(fds.data(), fds.size(), 100);
    for (int i = 0; i < kRanks; ++i) {
      if (fds[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = read(fds[i].fd, buffer, sizeof buffer);
      if (got <= 0 && children[i].said["complete"] == 0) throw std::runtime_error("a rank died unasked");
      if (got <= 0) close(std::exchange(children[i].lines, -1));  // it is done and has left
      std::string& text = children[i].unread.append(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0)));
      for (size_t at; (at = text.find('\n')) != std::string::npos; text.erase(0, at + 1)) {
        std::istringstream line(text.substr(0, at));
        std::string word;
        line >> word;
        line >> children[i].said[word];
      }
    }
    if (Clock::now() > deadline) throw std::runtime_error(std::string("the ranks did not say in time: ") + what);
  }
}

void step(int number, const char* title) { std::printf("\n%s%d  %s%s\n", kBold, number, title, kOff); }

void show(const std::string& dir) {
  std::printf("%snanomc %s: four processes, one memory%s\n", kBold, nmc::version(), kOff);

  step(1, "Four processes meet");
  for (int rank : kAll) start(rank, dir, false);
  hear(kRanks, "joined", 1);
  for (int rank : kAll) std::printf("   rank %d is process %d\n", rank, children[rank].pid);

  step(2, "Each writes into the memory of all, and checks every byte it gets");
  hear(kRanks, "round", kRounds, [] {
    if (!kTerminal) return;
    int rounds = 0;
    for (Child& child : children) rounds += static_cast<int>(child.said["round"]);
    const int bar = rounds * 40 / (kRanks * kRounds);
    std::printf("\r   [%s%s%s%s]", kGreen, std::string(bar, '#').c_str(), kOff, std::string(40 - bar, '.').c_str());
    std::fflush(stdout);
  });
  std::printf("%s   rank     wrote        speed    received\n", kTerminal ? "\r\x1b[K" : "");
  constexpr size_t mib = kRanks * kRounds * (kBytes >> 20);
  for (int rank : kAll) {
    const double speed = children[rank].said["speed"] / 1e9;
    std::printf("   %4d %5zu MiB %7.1f GB/s   %5zu MiB %sall right%s\n", rank, mib, speed, mib, kGreen, kOff);
  }

  step(3, "One is killed in the middle of a write");
  hear(1, "writing", 1);
  usleep(300'000);
  const double killed = static_cast<double>(Clock::now().time_since_epoch().count());
  end(children[kVictim], SIGKILL);
  std::printf("   kill -9 to rank %d\n", kVictim);
  hear(kRanks - 1, "noticed", 1);
  for (int rank : kSurvivors) {
    const double ms = (children[rank].said["noticed"] - killed) / 1e6;
    std::printf("   rank %d knew it after %s%.2f ms%s\n", rank, kGreen, ms, kOff);
  }
  hear(kRanks - 1, "went_on", 1);
  std::printf("   ranks 0, 1 and 3 went on: every byte %sright%s\n", kGreen, kOff);

  step(4, "A new process takes the empty place");
  start(kVictim, dir, true);
  hear(1, "inherited", 2);
  const int pid = children[kVictim].pid;
  std::printf("   process %d is rank %d now, and found its heap %sas it was left%s\n", pid, kVictim, kGreen, kOff);
  hear(kRanks, "complete", 1);
  std::printf("   all four passed the barrier that was open, and wrote and checked again\n");

  step(5, "All leave");
  for (Child& child : children) {
    if (!end(child, 0)) throw std::runtime_error("a rank ended badly");
  }
  if (rmdir(dir.c_str()) != 0) throw std::runtime_error("something was left in " + dir);
  std::printf("   no process, no file, no shared memory is left\n\n%sWhat you just saw%s\n", kBold, kOff);
  std::printf(
      "   Each rank owns a heap that the others map: a peer's memory is a pointer, and a message is a copy and one\n"
      "   control word. No daemon was running: rank 0 introduced the ranks to each other, and after that nothing went\n"
      "   through it. A rank that dies takes nobody with it: the kernel tells the others in milliseconds, its heap\n"
      "   stays mapped, and whoever takes its place goes on with what is in there. The program: run_rank() in\n"
      "   cpp_examples/01_hello_world/main.cpp.\n");
}

}  // namespace

int main(int argc, char** argv) {
  std::string dir;
  try {
    if (argc == 4) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // a rank does not outlive the demo
      return run_rank(std::atoi(argv[1]), argv[2], std::strcmp(argv[3], "newcomer") == 0), 0;
    }
    alarm(300);  // if all else fails
    char path[] = "/tmp/nanomc-hello-XXXXXX";
    if (mkdtemp(path) == nullptr) throw std::runtime_error("mkdtemp");
    show(dir = path);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "\n%s %s: %s\n", argv[0], argc == 4 ? argv[1] : "FAILED", error.what());
    for (Child& child : children) end(child, SIGKILL);
    if (!dir.empty()) std::filesystem::remove_all(dir);
    return 1;
  }
}
