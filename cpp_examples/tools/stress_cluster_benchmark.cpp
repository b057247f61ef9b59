// Puts many values as one node of a cluster and reads them as another:
//   ROLE=prefill stress_cluster_benchmark      on one machine: gives memory, puts, and stays a while
//   ROLE=decode stress_cluster_benchmark       on another: reads what is there and compares every byte
// setup.hpp has the variables and their defaults.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "setup.hpp"

namespace {

using Clock = std::chrono::steady_clock;

std::string key_of(uint64_t number) { return "key" + std::to_string(number); }

// The latencies of calls, and what they moved.
class Figures {
 public:
  template <class Call>
  bool time(uint64_t bytes, Call call) {
    const auto start = Clock::now();
    const nmc::Result<void> done = call();
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    if (!done.ok()) {
      if (++failed_ <= 3) std::fprintf(stderr, "%s\n", done.message().c_str());
      return false;
    }
    seconds_.push_back(took);
    bytes_ += bytes;
    return true;
  }
  void wrong() { ++failed_; }
  uint64_t failed() const { return failed_; }
  void print(const char* what) {
    double all = 0;
    for (const double one : seconds_) all += one;
    std::sort(seconds_.begin(), seconds_.end());
    const auto at = [&](double part) {
      return seconds_.empty() ? 0 : seconds_[std::min(seconds_.size() - 1, static_cast<size_t>(part * static_cast<double>(seconds_.size())))] * 1e3;
    };
    std::printf("%s: %zu done, %llu failed; %.2f GB/s; p50 %.3f ms, p90 %.3f ms, p99 %.3f ms\n", what, seconds_.size(),
                static_cast<unsigned long long>(failed_), all > 0 ? static_cast<double>(bytes_) / all / 1e9 : 0, at(0.5), at(0.9), at(0.99));
    std::fflush(stdout);
  }

 private:
  std::vector<double> seconds_;
  uint64_t bytes_ = 0, failed_ = 0;
};

void fill(std::vector<uint8_t>& buffer, uint64_t number) {
  for (size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<uint8_t>(number * 31 + i / 7);
}

uint64_t prefill(const Setup& setup, const nmc::Client& client) {
  client.mount("", nmc::StoreConfig().heap_bytes(setup.segment_bytes));
  std::vector<uint8_t> value(setup.value_bytes);
  Figures figures;
  for (uint64_t i = 0; i < setup.requests; ++i) {
    fill(value, i);
    (void)figures.time(value.size(), [&] { return client.nothrow()->put(key_of(i), value); });
  }
  figures.print("prefill");
  sleep(static_cast<unsigned>(setup.wait_s));
  return figures.failed();
}

uint64_t decode(const Setup& setup, const nmc::Client& client) {
  std::vector<uint8_t> buffer(setup.buffer_bytes), want(setup.value_bytes);
  client.register_memory(buffer);
  Figures figures;
  for (uint64_t i = 0; i < setup.requests; ++i) {
    uint64_t bytes = 0;
    const nmc::MutableBytes to(buffer.data(), setup.value_bytes);
    const bool read = figures.time(setup.value_bytes, [&]() -> nmc::Result<void> {
      const nmc::Result<uint64_t> got = client.nothrow()->get_into(key_of(i), to);
      if (!got.ok()) return nmc::Failure{got.status(), got.message()};
      bytes = *got;
      return {};
    });
    fill(want, i);
    if (read && (bytes != want.size() || std::memcmp(want.data(), buffer.data(), want.size()) != 0)) {
      std::fprintf(stderr, "%s: wrong bytes\n", key_of(i).c_str());
      figures.wrong();
    }
  }
  figures.print("decode");
  client.unregister_memory(buffer.data());
  return figures.failed();
}

}  // namespace

int main(int argc, char** argv) {
  Setup setup;
  if (!setup.read(argc, argv)) return 2;
  if (setup.role != "prefill" && setup.role != "decode") {
    std::fprintf(stderr, "ROLE=%s is neither prefill nor decode\n", setup.role.c_str());
    return 2;
  }
  try {
    const nmc::Client client = setup.open();
    return (setup.role == "prefill" ? prefill(setup, client) : decode(setup, client)) == 0 ? 0 : 1;
  } catch (const nmc::Error& error) {
    std::fprintf(stderr, "%s\nIs a master running at %s? `nanomc-master` starts one.\n", error.what(), setup.master_server.c_str());
    return 1;
  }
}
