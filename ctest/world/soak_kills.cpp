// Kills random ranks while they join or leave. After each kill the survivors must work, a new process must be able to
// take the place, and nothing may be left: no descriptor, no thread, no file but at most the socket of a dead master.
// usage: kills ROUNDS [SEED] [leak]   (with `leak` each rank leaks a descriptor, which must be noticed)

#include "../support/random.hpp"

#include <nanomc.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr uint32_t SIZE = 4;
constexpr int64_t PATIENCE_MS = 60000;

int entries(const char* path) {
  DIR* dir = opendir(path);
  if (dir == nullptr) return 0;
  int n = 0;
  while (const dirent* entry = readdir(dir)) n += entry->d_name[0] != '.';
  closedir(dir);
  return n;
}

// ---- a rank: tells the controller what it has reached on stdout, and waits for its word on stdin -------------------

void tell(char what) {
  if (write(STDOUT_FILENO, &what, 1) != 1) _exit(9);
}
void await() {
  char word;
  if (read(STDIN_FILENO, &word, 1) != 1) _exit(9);
}
[[noreturn]] void die(const char* what, nmc_status_t status) {
  std::fprintf(stderr, "FAIL %s: %s: %s\n", what, nmc_status_name(status), nmc_last_error_message());
  _exit(1);
}

int as_rank(int32_t rank, const char* dir, bool leak) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  nmc_world_config_t cfg = NMC_WORLD_CONFIG_INIT;
  cfg.name = nmc_slice_t{"soak", 4};
  cfg.dir = nmc_slice_t{dir, std::strlen(dir)};
  cfg.rank = rank;
  cfg.world_size = SIZE;
  cfg.heap_bytes = 1 << 16;
  cfg.join_timeout_ms = PATIENCE_MS;
  const int fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  nmc_world_t* world = nullptr;
  if (nmc_status_t s = nmc_world_join(&cfg, &world); s != NMC_OK) die("join", s);
  tell('J');
  await();
  // The controller has replaced whoever was killed; a survivor learns of it on the way.
  for (int tries = 0;; ++tries) {
    const nmc_status_t s = nmc_world_barrier(world, PATIENCE_MS);
    if (s == NMC_OK) break;
    if (s != NMC_ERR_PEER_LOST || tries > 6000) die("barrier", s);
    usleep(10000);
  }
  if (nmc_status_t s = nmc_world_selftest(world, 5, PATIENCE_MS); s != NMC_OK) die("selftest", s);
  tell('T');
  await();
  if (nmc_status_t s = nmc_world_destroy(world); s != NMC_OK) die("destroy", s);
  if (leak && dup(STDIN_FILENO) < 0) _exit(9);
  // A thread that has been joined is listed until the kernel has cleaned up after it.
  for (int i = 0; i < 1000 && entries("/proc/self/task") > threads; ++i) usleep(10000);
  const int fds_after = entries("/proc/self/fd"), threads_after = entries("/proc/self/task");
  if (fds_after != fds || threads_after != threads) {
    std::fprintf(stderr, "FAIL rank %d leaks: descriptors %d -> %d, threads %d -> %d\n", rank, fds, fds_after, threads, threads_after);
    return 1;
  }
  return 0;
}

// ---- the controller -------------------------------------------------------------------------------------------------

struct Child {
  pid_t pid = -1;
  int to = -1, from = -1;
};

const char* leak_word = "";

Child start(int32_t rank, const std::string& dir) {
  int down[2], up[2];
  if (pipe2(down, O_CLOEXEC) != 0 || pipe2(up, O_CLOEXEC) != 0) std::abort();
  Child child;
  child.pid = fork();
  if (child.pid == 0) {
    dup2(down[0], STDIN_FILENO);
    dup2(up[1], STDOUT_FILENO);
    execl("/proc/self/exe", "kills", "rank", std::to_string(rank).c_str(), dir.c_str(), leak_word, nullptr);
    _exit(8);
  }
  close(down[0]);
  close(up[1]);
  child.to = down[1];
  child.from = up[0];
  return child;
}

bool hears(const Child& child, char what) {
  pollfd p{child.from, POLLIN, 0};
  char got = 0;
  return poll(&p, 1, static_cast<int>(PATIENCE_MS)) == 1 && read(child.from, &got, 1) == 1 && got == what;
}

int reap(Child& child) {
  int status = 0;
  waitpid(child.pid, &status, 0);
  close(child.to);
  close(child.from);
  child = Child{};
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

bool round(uint64_t number, Random& random, const std::string& dir) {
  const uint32_t victim = static_cast<uint32_t>(random() % SIZE);
  const bool while_leaving = random() % 2 == 0;
  std::vector<Child> ranks;
  for (uint32_t r = 0; r < SIZE; ++r) ranks.push_back(start(static_cast<int32_t>(r), dir));
  const auto fail = [&](const char* what) {
    std::fprintf(stderr, "FAIL round %llu (victim %u, %s): %s\n", static_cast<unsigned long long>(number), victim,
                 while_leaving ? "leaving" : "joining", what);
    for (Child& c : ranks)
      if (c.pid > 0) {
        kill(c.pid, SIGKILL);
        reap(c);
      }
    return false;
  };
  if (!while_leaving) {
    usleep(static_cast<useconds_t>(random() % 25000));
    kill(ranks[victim].pid, SIGKILL);
    if (reap(ranks[victim]) != -SIGKILL) return fail("the victim ended before it was killed");
    ranks[victim] = start(static_cast<int32_t>(victim), dir);
  }
  for (Child& c : ranks)
    if (!hears(c, 'J')) return fail("a rank did not join");
  for (Child& c : ranks)
    if (write(c.to, "g", 1) != 1) return fail("a rank is gone");
  for (Child& c : ranks)
    if (!hears(c, 'T')) return fail("a rank did not pass barrier and self-test");
  for (Child& c : ranks)
    if (write(c.to, "l", 1) != 1) return fail("a rank is gone");
  if (while_leaving) {
    usleep(static_cast<useconds_t>(random() % 2000));
    kill(ranks[victim].pid, SIGKILL);
  }
  for (uint32_t r = 0; r < SIZE; ++r) {
    const int end = reap(ranks[r]);
    // The victim may have left just before it was killed.
    if (end != 0 && !(while_leaving && r == victim && end == -SIGKILL)) return fail("a rank did not end well");
  }
  // Only who was killed while it cleaned up, or a master that was killed, may leave the directory; the next round joins
  // over it.
  const int left = entries(dir.c_str());
  if (left != 0 && !(while_leaving && left == 1)) return fail("files are left behind");
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const bool leak = argc > 1 && std::strcmp(argv[argc - 1], "leak") == 0;
  if (argc == 5 && std::strcmp(argv[1], "rank") == 0) return as_rank(std::atoi(argv[2]), argv[3], leak);
  if (leak) leak_word = "leak";
  const uint64_t rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20;
  Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  signal(SIGPIPE, SIG_IGN);
  char base[] = "/tmp/nanomc-kills-XXXXXX";
  if (mkdtemp(base) == nullptr) return 1;
  const std::string dir(base);
  bool fine = true;
  for (uint64_t i = 0; fine && i < rounds; ++i) fine = round(i, random, dir);
  unlink((dir + "/soak/sock").c_str());
  rmdir((dir + "/soak").c_str());
  rmdir(base);
  if (fine) std::printf("PASS %llu kills: survivors worked, nothing leaked\n", static_cast<unsigned long long>(rounds));
  return fine ? 0 : 1;
}
