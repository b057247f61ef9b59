// A cluster on one machine: a master, three nodes and a client, each a process of its own. Every value is on two nodes; one node is killed,
// and reads go on. README.md says what to look at. Needs no GPU, no etcd and no network.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nanomc.hpp>

#ifndef NANOMC_MASTER
#define NANOMC_MASTER "nanomc-master"
#endif

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kValueBytes = size_t{1} << 20;

struct Options {
  std::string master = NANOMC_MASTER;
  size_t values = 48;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// ---- processes ---------------------------------------------------------------------------------------------------------

// A program that runs beside this one, whose output is read line by line, and that ends with it.
class Child {
 public:
  explicit Child(std::vector<std::string> words) {
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0) std::abort();
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(out[1], 1);
      execvp(argv[0], argv.data());
      std::fprintf(stderr, "%s cannot be started: %s\n", argv[0], std::strerror(errno));
      _exit(127);
    }
    close(out[1]);
    lines_ = fdopen(out[0], "r");
  }
  ~Child() {
    kill9();
    std::fclose(lines_);
  }
  Child(const Child&) = delete;

  // What follows `mark` in the first line that has it; empty if the program ends without one.
  std::string line_with(const std::string& mark) {
    char line[512];
    while (std::fgets(line, sizeof line, lines_) != nullptr) {
      const std::string text(line, std::strcspn(line, "\n"));
      if (text.rfind(mark, 0) == 0) return text.substr(mark.size());
    }
    return {};
  }
  void kill9() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  FILE* lines_ = nullptr;
};

// What a node is: a process that gives memory and waits. Any process of an engine could do it beside its work.
int be_node(const std::string& name, const std::string& master) {
  const nmc::Client client = nmc::Client::open(nmc::ClientConfig(master));
  client.mount(name, nmc::StoreConfig().heap_bytes(uint64_t{128} << 20).page_bytes(256 << 10));
  std::printf("mounted\n");
  std::fflush(stdout);
  for (;;) pause();
}

// ---- the client --------------------------------------------------------------------------------------------------------

std::string key_of(size_t number) { return "prompt-" + std::to_string(number / 8) + "/block-" + std::to_string(number % 8); }

// A value that says what it is: every word depends on the number of the value and on its place.
void fill(std::vector<uint64_t>& value, size_t number) {
  for (size_t i = 0; i < value.size(); ++i) value[i] = nmc_pattern_u64(number, 0, 0, i);
}
bool is_right(const std::vector<uint64_t>& value, size_t number) {
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i] != nmc_pattern_u64(number, 0, 0, i)) return false;
  }
  return true;
}

void write_all(const nmc::Client& client, size_t first, size_t end) {
  std::vector<uint64_t> value(kValueBytes / 8);
  Clock::duration time{};
  for (size_t i = first; i < end; ++i) {
    fill(value, i);
    const auto start = Clock::now();
    client.put(key_of(i), value, nmc::Replicate().copies(2));
    time += Clock::now() - start;
  }
  const double seconds = std::chrono::duration<double>(time).count();
  std::printf("   put %zu values of 1 MiB twice each: %.2f GB/s\n", end - first, static_cast<double>((end - first) * kValueBytes) / seconds / 1e9);
}

// Reads everything and compares every byte. Returns how many were not there or not right.
size_t read_all(const nmc::Client& client, size_t values) {
  std::vector<uint64_t> value(kValueBytes / 8);
  size_t bad = 0;
  double all = 0, slowest = 0;
  for (size_t i = 0; i < values; ++i) {
    const auto start = Clock::now();
    const auto got = client.nothrow()->get_into(key_of(i), value);
    const double took = seconds_since(start);
    all += took;
    slowest = std::max(slowest, took);
    if (!got.ok() || !is_right(value, i)) {
      ++bad;
      std::printf("   %s: %s\n", key_of(i).c_str(), got.ok() ? "wrong bytes" : got.message().c_str());
    }
  }
  std::printf("   read %zu values: %.2f GB/s, the slowest took %.1f ms; %zu missing or wrong\n", values,
              static_cast<double>(values * kValueBytes) / all / 1e9, slowest * 1e3, bad);
  return bad;
}

void show_segments(const nmc::Client& client) {
  const std::map<nmc::SegmentState, const char*> states = {
      {nmc::SegmentState::ok, "ok"}, {nmc::SegmentState::draining, "draining"}, {nmc::SegmentState::gone, "gone"}};
  for (const nmc::Segment& segment : client.segments()) {
    std::printf("   %-8s %4llu MiB, %s\n", segment.name.c_str(), static_cast<unsigned long long>(segment.capacity >> 20),
                states.at(segment.state));
  }
}

bool is_ok(const nmc::Client& client, const std::string& name) {
  for (const nmc::Segment& segment : client.segments()) {
    if (segment.name == name) return segment.state == nmc::SegmentState::ok;
  }
  return false;
}

size_t show(const Options& options, const std::string& self, const std::string& state) {
  std::printf("A master, three nodes and a client\n\n1  They start\n");
  // A node that is silent for 4 s is out; as a rule that takes 10 s.
  Child master({options.master, "--port", "0", "--metrics_port", "off", "--state", state, "--away_ms", "4000"});
  const std::string address = master.line_with("Master service listening on ");
  if (address.empty()) {
    std::fprintf(stderr, "%s does not start; --master says where it is\n", options.master.c_str());
    return 1;
  }
  const auto start_node = [&](const char* name) { return Child({self, "--node", name, "--at", address}); };
  Child first = start_node("node-1"), second = start_node("node-2"), third = start_node("node-3");
  for (Child* node : {&first, &second, &third}) (void)node->line_with("mounted");
  const nmc::Client client = nmc::Client::open(nmc::ClientConfig(address));
  std::printf("   the master listens at %s\n", address.c_str());
  show_segments(client);

  std::printf("\n2  Every value is put on two of them, and read\n");
  write_all(client, 0, options.values);
  const std::vector<nmc::Replica> copies = client.query(key_of(0));
  for (const nmc::Replica& copy : copies) std::printf("   %s is on %s\n", key_of(0).c_str(), copy.endpoint.c_str());
  size_t bad = copies.size() != 2;
  bad += read_all(client, options.values);

  std::printf("\n3  node-2 is killed; reads and puts go on\n");
  second.kill9();
  bad += read_all(client, options.values);
  write_all(client, options.values, options.values + 8);

  std::printf("\n4  Another node comes, and node-3 goes, but gives away first what only it has\n");
  Child fourth = start_node("node-4");
  (void)fourth.line_with("mounted");
  auto start = Clock::now();
  // Until the master knows that node-2 is gone, it counts on the copies there.
  while (is_ok(client, "node-2") && seconds_since(start) < 30) usleep(100000);
  show_segments(client);
  start = Clock::now();
  const nmc::Drained drained = client.drain("node-3", std::chrono::seconds(30));
  std::printf("   drained in %.1f s, %llu objects left%s%s\n", seconds_since(start), static_cast<unsigned long long>(drained.left),
              drained ? "" : ": ", drained.what.c_str());
  third.kill9();
  bad += !drained;
  bad += read_all(client, options.values + 8);

  std::printf("\n5  What is removed is gone everywhere\n");
  (void)client.nothrow()->remove(key_of(0));
  std::printf("   is %s there? %s\n", key_of(0).c_str(), client.exists(key_of(0)) ? "yes" : "no");
  bad += client.exists(key_of(0));
  return bad;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string node, address;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--master") == 0) options.master = argv[i + 1];
    else if (std::strcmp(argv[i], "--values") == 0) options.values = std::strtoull(argv[i + 1], nullptr, 10);
    else if (std::strcmp(argv[i], "--node") == 0) node = argv[i + 1];
    else if (std::strcmp(argv[i], "--at") == 0) address = argv[i + 1];
  }
  if (argc % 2 == 0 || options.values == 0 || options.values > 48) {
    std::fprintf(stderr, "usage: %s [--values N, 1 to 48] [--master PATH]\n", argv[0]);
    return 2;
  }
  size_t bad = 1;
  try {
    if (!node.empty()) return be_node(node, address);
    char path[] = "/tmp/nanomc-cluster-XXXXXX";
    if (mkdtemp(path) == nullptr) return 1;
    bad = show(options, "/proc/self/exe", std::string(path) + "/state");
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  } catch (const nmc::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return bad == 0 ? 0 : 1;
}
