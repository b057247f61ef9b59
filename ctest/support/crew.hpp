// Processes of one test that run the same function and count into memory they share with the test. The test process makes
// no handle, so it may fork. A member dies with the test.
#ifndef NMC_CTEST_SUPPORT_CREW_HPP
#define NMC_CTEST_SUPPORT_CREW_HPP

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

inline double now_s() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}
inline void pause_us(long us) {
  timespec span{us / 1000000, us % 1000000 * 1000};
  nanosleep(&span, nullptr);
}

// Called before each piece of work of a process that would never sleep else: where processors are few, such processes keep the one from working that
// all of them wait for.
template <class Random>
void take_turns(Random& random) {
  if (random.one_in(4)) pause_us(1000);
}

// A T in memory that forked processes share.
template <class T>
T* shared_between_processes() {
  void* memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return new (memory) T{};
}

// The first complaint of all processes of a test, in memory that they share.
struct Complaint {
  char text[600];
  __attribute__((format(printf, 2, 3))) void say(const char* format, ...) {
    va_list list;
    va_start(list, format);
    if (text[0] == 0) std::vsnprintf(text, sizeof text, format, list);
    va_end(list);
  }
};

// A directory of the test's own.
struct OwnDir {
  std::string path;
  OwnDir() {
    char name[] = "/tmp/nmc-store-XXXXXX";
    if (mkdtemp(name) == nullptr) std::abort();
    path = name;
  }
  ~OwnDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  OwnDir(const OwnDir&) = delete;
  OwnDir& operator=(const OwnDir&) = delete;
};

template <class Body>
pid_t start_member(Body body) {
  std::fflush(nullptr);
  const pid_t test = getpid();
  const pid_t pid = fork();
  if (pid < 0) std::abort();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != test) _exit(3);
    const int code = body();
    std::fflush(nullptr);
    _exit(code);
  }
  return pid;
}

// Waits until `done`, as long as no process has ended badly; false after `seconds` or when one has.
template <class Done>
bool watch_until(std::vector<pid_t>& pids, double seconds, Done done) {
  const double deadline = now_s() + seconds;
  while (!done()) {
    for (pid_t& pid : pids) {
      int status = 0;
      if (pid > 0 && waitpid(pid, &status, WNOHANG) == pid) {
        pid = -1;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return false;
      }
    }
    if (now_s() > deadline) return false;
    pause_us(5000);
  }
  return true;
}

// Kills and reaps whoever is left.
inline void end_all(std::vector<pid_t>& pids) {
  for (pid_t pid : pids)
    if (pid > 0) kill(pid, SIGKILL);
  for (pid_t& pid : pids)
    if (pid > 0) {
      waitpid(pid, nullptr, 0);
      pid = -1;
    }
}

#endif
