// Ranks as processes that do what a test tells them, a line at a time, so that a test reads like the story it tells.
// The test process itself never makes a handle, so it may fork at any time. A puppet dies with the test.
#ifndef NMC_CTEST_PUPPET_HPP
#define NMC_CTEST_PUPPET_HPP

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdarg>
#include <filesystem>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"

constexpr double kPatience = 60;  // seconds; a step that takes longer hangs

// ---------------------------------------------------------------------------------------------------- processes --

// Lines between a test and a puppet.
struct Link {
  int in = -1;
  int out = -1;
  std::string pending;

  void say(const std::string& line) const {
    const std::string text = line + "\n";
    if (write(out, text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(3);
  }
  // The next line; false after `seconds`, or when the other side is gone.
  bool hear(std::string& line, double seconds) {
    const double deadline = seconds_now() + seconds;
    for (;;) {
      const size_t end = pending.find('\n');
      if (end != std::string::npos) {
        line = pending.substr(0, end);
        pending.erase(0, end + 1);
        return true;
      }
      const double left = deadline - seconds_now();
      if (left <= 0) return false;
      pollfd fd{in, POLLIN, 0};
      if (poll(&fd, 1, static_cast<int>(left * 1000) + 1) <= 0) continue;
      char buffer[4096];
      const ssize_t got = read(in, buffer, sizeof buffer);
      if (got <= 0) return false;
      pending.append(buffer, static_cast<size_t>(got));
    }
  }
};

// A forked process that runs `body` and is always killed and reaped in the end.
class Process {
 public:
  Process() = default;
  explicit Process(const std::function<void(Link&)>& body) {
    int down[2], up[2];
    REQUIRE(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
    fflush(stdout);
    const pid_t test = getpid();
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != test) _exit(3);
      failed_checks = 0;
      for (int fd : open_ends()) close(fd);  // of the siblings
      close(down[1]);
      close(up[0]);
      Link link{down[0], up[1], {}};
      body(link);
      fflush(stdout);
      _exit(failed_checks != 0);
    }
    close(down[0]);
    close(up[1]);
    link_ = Link{up[0], down[1], {}};
    open_ends().insert({up[0], down[1]});
  }
  Process(Process&& other) noexcept { *this = std::move(other); }
  Process& operator=(Process&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(link_, other.link_);
    return *this;
  }
  ~Process() {
    if (pid_ > 0) kill9();
    close_link();
  }

  pid_t pid() const { return pid_; }
  void send(const std::string& line) { link_.say(line); }
  std::string reply(double seconds = kPatience) {
    std::string line;
    if (!link_.hear(line, seconds)) {
      printf("process %d says nothing\n", static_cast<int>(pid_));
      REQUIRE(!"a process hangs or died");
    }
    return line;
  }
  std::string ask(const std::string& line) {
    send(line);
    return reply();
  }
  // SIGKILL, and wait until the kernel says that it is dead.
  void kill9() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
    close_link();
  }
  // Waits for the end that the process makes by itself.
  bool ends_well() {
    int status = 0;
    const double deadline = seconds_now() + kPatience;
    pid_t got = 0;
    while (got == 0 && seconds_now() < deadline) {
      got = waitpid(pid_, &status, WNOHANG);
      if (got == 0) sleep_ms(2);
    }
    if (got != pid_) return false;
    pid_ = -1;
    close_link();
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  static std::set<int>& open_ends() {
    static std::set<int> ends;
    return ends;
  }
  void close_link() {
    for (int* fd : {&link_.in, &link_.out}) {
      if (*fd >= 0) {
        open_ends().erase(*fd);
        close(*fd);
        *fd = -1;
      }
    }
  }
  pid_t pid_ = -1;
  Link link_;
};

// Stops a child of this process. All of its threads have stopped when this returns: until then some would still answer.
inline void stop_child(pid_t pid) {
  REQUIRE(pid > 0);
  ::kill(pid, SIGSTOP);
  REQUIRE(::waitpid(pid, nullptr, WUNTRACED) == pid);
}

// ------------------------------------------------------------------------------------------------------- worlds --

// A fresh directory for the worlds of one case. A test that ends in the middle of it removes it too.
struct Place {
  std::string dir;
  Place() {
    char path[] = "/tmp/nmc-procs-XXXXXX";
    REQUIRE(mkdtemp(path) != nullptr);
    dir = path;
    static const pid_t test = getpid();  // not its children
    static const int registered = atexit([] {
      for (const std::string& left : all()) {
        std::error_code ignored;
        if (getpid() == test) std::filesystem::remove_all(left, ignored);
      }
    });
    (void)registered;
    all().insert(dir);
  }
  ~Place() {
    std::filesystem::remove_all(dir);
    all().erase(dir);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  static std::set<std::string>& all() {
    static std::set<std::string>* const all = new std::set<std::string>;  // outlives whatever runs at the end
    return *all;
  }
  // What the worlds have left in it.
  std::vector<std::string> leftovers() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) found.push_back(entry.path().string());
    return found;
  }
};

struct Setup {
  int32_t rank = -1;
  uint32_t size = 3;
  uint32_t least = 0;  // ranks that must be there; 0 for all
  uint64_t heap_bytes = 1 << 16;
  int32_t words = -1;
  int32_t device_rank = -1;
  uint32_t heap_kind = NMC_HEAP_HOST;
  bool external = false;
  int64_t timeout_ms = 40000;
};

// One of the ranks of a world of this size.
inline Setup seat(int32_t rank, uint32_t size = 3) {
  Setup setup;
  setup.rank = rank;
  setup.size = size;
  return setup;
}

inline nmc_world_config_t config_of(const Place& place, const Setup& setup) {
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.name = slice_of("procs");
  config.dir = {place.dir.data(), place.dir.size()};
  config.rank = setup.rank;
  config.world_size = setup.size;
  config.min_ranks = setup.least;
  config.heap_bytes = setup.heap_bytes;
  config.heap_kind = setup.heap_kind;
  config.words_per_rank = setup.words;
  config.device_rank = setup.device_rank;
  config.master = setup.external ? NMC_MASTER_EXTERNAL : NMC_MASTER_RANK0;
  config.join_timeout_ms = setup.timeout_ms;
  return config;
}

inline const char* state_name(uint32_t state) {
  const char* names[] = {"ABSENT", "ALIVE", "DYING", "GONE", "LEFT"};
  return state < 5 ? names[state] : "?";
}

inline std::string outcome(nmc_status_t status) {
  if (status >= 0) return nmc_status_name(status);
  return std::string(nmc_status_name(status)) + " " + nmc_last_error_message();
}

// Waits, asleep on the world's event descriptor, until `done`; the seconds it took, or -1.
template <class Done>
double await(nmc_world_t* world, Done done) {
  int32_t fd = -1;
  OK(nmc_world_event_fd(world, &fd));
  const double start = seconds_now();
  while (!done()) {
    if (seconds_now() - start > kPatience / 2) return -1;
    pollfd event{fd, POLLIN, 0};
    uint64_t count = 0;
    // The event alone has to be enough: the long timeout would be seen in the time that is printed.
    if (poll(&event, 1, 5000) > 0 && read(fd, &count, sizeof count) != sizeof count) return -1;
  }
  return seconds_now() - start;
}

// More that a puppet can do: true if the verb was its own and is answered.
using Skill = std::function<bool(const std::string& verb, std::istringstream& words, std::ostringstream& answer)>;

// What a puppet that holds a rank can do; one line each.
inline void obey(Link& test, nmc_world_t* world, const Skill& skill = {}) {
  std::string line;
  while (test.hear(line, 1e6)) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    const auto number = [&words] {
      long long value = 0;
      words >> value;
      return value;
    };
    std::ostringstream answer;
    if (skill && skill(verb, words, answer)) {
      // It is done.
    } else if (verb == "barrier") {
      answer << outcome(nmc_world_barrier(world, number()));
    } else if (verb == "selftest") {
      answer << outcome(nmc_world_selftest(world, static_cast<uint64_t>(number()), 30000));
    } else if (verb == "state") {
      uint32_t state = 77;
      OK(nmc_world_alive(world, static_cast<int32_t>(number()), &state));
      answer << state_name(state);
    } else if (verb == "await") {  // await <rank> <state>: the seconds
      const int32_t rank = static_cast<int32_t>(number());
      std::string wanted;
      words >> wanted;
      answer << await(world, [&] {
        uint32_t state = 77;
        OK(nmc_world_alive(world, rank, &state));
        return wanted == state_name(state);
      });
    } else if (verb == "await_master") {  // await_master <0|1>: the seconds
      const uint32_t up = static_cast<uint32_t>(number());
      answer << await(world, [&] {
        nmc_world_info_t info = NMC_WORLD_INFO_INIT;
        OK(nmc_world_info(world, &info));
        return info.master_up == up;
      });
    } else if (verb == "fill" || verb == "verify") {  // fill <rank> <seed>: all of its heap
      const int32_t rank = static_cast<int32_t>(number());
      const uint64_t seed = static_cast<uint64_t>(number());
      nmc_world_info_t info = NMC_WORLD_INFO_INIT;
      void* heap = nullptr;
      OK(nmc_world_info(world, &info));
      OK(nmc_world_ptr(world, rank, 0, info.heap_bytes, &heap));
      uint64_t* at = static_cast<uint64_t*>(heap);
      uint64_t wrong = 0;
      for (uint64_t i = 0; i < info.heap_bytes / 8; ++i) {
        const uint64_t value = nmc_pattern_u64(seed, 0, static_cast<uint32_t>(rank), i);
        if (verb == "fill") at[i] = value;
        else wrong += at[i] != value;
      }
      answer << wrong << " wrong";
    } else if (verb == "publish" || verb == "look") {  // publish <rank> <index> <value>, look <rank> <index>
      const int32_t rank = static_cast<int32_t>(number());
      uint64_t* word = nullptr;
      OK(nmc_world_word(world, rank, static_cast<uint32_t>(number()), &word, nullptr));
      if (verb == "publish") __atomic_store_n(word, static_cast<uint64_t>(number()), __ATOMIC_RELEASE);
      answer << __atomic_load_n(word, __ATOMIC_ACQUIRE);
    } else if (verb == "generation") {
      nmc_rank_info_t info = NMC_RANK_INFO_INIT;
      OK(nmc_world_rank_info(world, static_cast<int32_t>(number()), &info));
      answer << info.generation;
    } else if (verb == "rank") {
      nmc_world_info_t info = NMC_WORLD_INFO_INIT;
      OK(nmc_world_info(world, &info));
      answer << info.rank;
    } else if (verb == "world_id") {
      nmc_world_info_t info = NMC_WORLD_INFO_INIT;
      OK(nmc_world_info(world, &info));
      answer << info.world_id;
    } else if (verb == "error") {
      nmc_status_t status = 77;
      char text[512];
      OK(nmc_world_async_error(world, &status, text, sizeof text, nullptr));
      answer << nmc_status_name(status) << " " << text;
    } else if (verb == "fork") {  // fork <stay|exit|destroy>: the child's pid
      std::string how;
      words >> how;
      fflush(stdout);
      const pid_t child = fork();
      if (child == 0) {
        if (how == "stay") {
          for (;;) pause();
        }
        if (how == "destroy") OK(nmc_world_destroy(world));
        _exit(failed_checks != 0);
      }
      int status = 0;
      if (how != "stay") CHECK(waitpid(child, &status, 0) == child && status == 0);
      answer << child;
    } else if (verb == "finalize") {
      answer << outcome(nmc_world_finalize(world));
    } else if (verb == "abort") {
      answer << outcome(nmc_world_abort(world));
    } else if (verb == "destroy") {
      answer << outcome(nmc_world_destroy(world));
    } else if (verb == "quit") {
      return;
    } else {
      answer << "what is " << verb << "?";
    }
    test.say(answer.str());
  }
}

// A process that joins after `delay_ms`, says how that went, and obeys.
inline Process rank_process(const Place& place, const Setup& setup, long delay_ms = 0) {
  return Process([&place, setup, delay_ms](Link& test) {
    sleep_ms(delay_ms);
    const nmc_world_config_t config = config_of(place, setup);
    nmc_world_t* world = nullptr;
    const nmc_status_t status = nmc_world_join(&config, &world);
    test.say(outcome(status));
    if (status == NMC_OK) obey(test, world);
  });
}

// A process that runs a master until it is told to quit.
inline Process master_process(const Place& place, Setup setup) {
  setup.external = true;
  return Process([&place, setup](Link& test) {
    const nmc_world_config_t config = config_of(place, setup);
    nmc_master_t* master = nullptr;
    const nmc_status_t status = nmc_master_start(&config, &master);
    test.say(outcome(status));
    std::string line;
    while (status == NMC_OK && test.hear(line, 1e6)) {
      if (line == "fork") {
        const pid_t child = fork();
        if (child == 0) {
          for (;;) pause();
        }
        test.say(std::to_string(child));
        continue;
      }
      OK(nmc_master_destroy(master));
      return;
    }
  });
}

// All ranks of a world; they have joined when it returns.
inline std::vector<Process> whole_world(const Place& place, Setup setup) {
  std::vector<Process> ranks;
  for (uint32_t rank = 0; rank < setup.size; ++rank) {
    setup.rank = static_cast<int32_t>(rank);
    ranks.push_back(rank_process(place, setup));
  }
  for (Process& rank : ranks) {
    const std::string said = rank.reply();
    if (said != "NMC_OK") printf("     %s\n", said.c_str());
    REQUIRE(said == "NMC_OK");
  }
  return ranks;
}

inline bool begins_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

// The answer begins with what was expected; otherwise it is printed.
inline bool says_at(const std::string& got, const std::string& want, const char* file, int line) {
  const bool right = begins_with(got, want);
  if (!right) printf("     it said: %s\n", got.c_str());
  return check_at(right, ("expected: " + want).c_str(), file, line) != 0;
}
#define SAYS(got, want) says_at((got), (want), __FILE__, __LINE__)

// All of them are told the same, then all answers are awaited: for calls that wait for each other.
inline void together_at(const std::vector<Process*>& ranks, const std::string& what, const char* want, const char* file,
                        int line) {
  for (Process* rank : ranks) rank->send(what);
  for (Process* rank : ranks) says_at(rank->reply(), want, file, line);
}
#define TOGETHER(ranks, what, want) together_at(ranks, what, want, __FILE__, __LINE__)

inline std::vector<Process*> all_of(std::vector<Process>& ranks) {
  std::vector<Process*> all;
  for (Process& rank : ranks) all.push_back(&rank);
  return all;
}

// All leave in order and end.
inline void dismiss(std::vector<Process>& ranks) {
  for (Process& rank : ranks) SAYS(rank.ask("destroy"), "NMC_OK");
  for (Process& rank : ranks) {
    rank.send("quit");
    CHECK(rank.ends_well());
  }
}

// From now on the children of dead puppets are ours to reap.
inline void adopt_grandchildren() { REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0); }

// Ends the child of a dead puppet, and waits until it is dead.
inline void end_grandchild(const std::string& pid) {
  const pid_t child = static_cast<pid_t>(atol(pid.c_str()));
  REQUIRE(child > 1);
  kill(child, SIGKILL);
  CHECK(waitpid(child, nullptr, 0) == child);
}

// `await` went through; the time is a fact to look at, the limit is far away.
inline void saw_in_time(const std::string& seconds, const char* what) {
  printf("     %s after %s s\n", what, seconds.c_str());
  const double value = atof(seconds.c_str());
  CHECK(value >= 0 && value < 10);
}

#endif
