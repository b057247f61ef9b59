// Prefill and decode: two processes compute the KV cache of prompts and write it straight into memory that two other
// processes own; those find it, read it in place, and check every byte.
//
// Read prefill() and decode() first: they are all that the engines do. Everything else counts, starts the processes and
// prints. Needs no GPU; with --gpu the heaps lie in GPU memory, and kernels (gpu.cu) store and read the bytes.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "engine.hpp"

namespace {

constexpr int kRanks = 4;                             // 0 and 1 prefill for 2 and 3, which decode
constexpr uint64_t kBlocks = 4;                       // objects of a prompt: one for each block of its tokens
constexpr uint64_t kWindow = 4;                       // prompts that prefill may be ahead of decode
constexpr uint64_t kRoom = 2 * kBlocks * kWindow;     // objects that fit a heap; older ones are evicted
constexpr auto kPatience = std::chrono::seconds(60);  // for loaded machines; nothing here takes that long

struct Options {
  bool gpu = false;
  double seconds = 3;
  uint64_t page_bytes = 256 << 10, value_bytes = 1 << 20;
  uint64_t heap_bytes() const { return kRoom * ((value_bytes + page_bytes - 1) / page_bytes * page_bytes); }
};

// ------------------------------------------------------------------------------------------------------ counting --

// What a process has done so far. It lies in memory that all processes share, so that the table can be live.
struct Tally {
  std::atomic<uint64_t> objects, bytes, busy_ns, looked, matched, evicted, wrong;
  std::array<std::atomic<uint64_t>, 320> latency;  // a histogram with eight steps for each power of two

  void moved(uint64_t size, Clock::duration busy) {
    ++objects;
    bytes += size;
    busy_ns += static_cast<uint64_t>(busy.count());
  }
  void took(Clock::duration time) {
    const uint64_t ns = std::max<uint64_t>(static_cast<uint64_t>(time.count()), 8);
    const int power = 63 - __builtin_clzll(ns);
    ++latency[std::min<size_t>(static_cast<size_t>(power) * 8 + (ns >> (power - 3) & 7), latency.size() - 1)];
  }
  double percentile_us(double share) const {
    uint64_t all = 0, seen = 0;
    for (const auto& n : latency) all += n;
    for (size_t i = 0; i < latency.size(); ++i) {
      seen += latency[i];
      if (seen > 0 && static_cast<double>(seen) >= share * static_cast<double>(all)) {
        return static_cast<double>(8 + i % 8) / 8e3 * static_cast<double>(uint64_t{1} << i / 8);
      }
    }
    return 0;
  }
};
Tally* tallies = nullptr;  // by rank

// ------------------------------------------------------------------------------------------------------- engines --

// A prompt is known by who computes it and a number; each of its blocks is an object.
std::string key_of(int engine, uint64_t prompt, uint64_t block) {
  return "prompt/" + std::to_string(engine) + "/" + std::to_string(prompt) + "/block/" + std::to_string(block);
}

class Cpu : public Engine {
 public:
  explicit Cpu(uint64_t page_bytes) : page_(page_bytes / 8) {}

  Clock::duration fill(nmc::WritePlan& plan) override {
    Clock::duration busy{0};
    for (uint32_t page = 0; page < plan.n_pages(); ++page) {
      compute(plan.c().key_hash, page);
      const auto start = Clock::now();
      std::memcpy(plan.page(page).data(), page_.data(), plan.page(page).size());  // their memory, mapped here
      busy += Clock::now() - start;
    }
    const auto start = Clock::now();
    plan.commit();  // one release store, and it is theirs
    return busy + (Clock::now() - start);
  }

  Clock::duration check(nmc::View view, uint64_t key_hash, bool& right) override {
    Clock::duration busy{0};
    right = true;
    for (uint32_t page = 0; page < view.n_pages(); ++page) {
      compute(key_hash, page);
      const auto start = Clock::now();
      const nmc::span<const std::byte> bytes = view.page(page);
      right &= std::memcmp(bytes.data(), page_.data(), bytes.size()) == 0;
      busy += Clock::now() - start;
    }
    return busy;
  }  // unpinned here

 private:
  // Stands for attention: every word depends on the key and on the page, so that nothing else can pass for it.
  void compute(uint64_t key_hash, uint32_t page) {
    for (size_t i = 0; i < page_.size(); ++i) page_[i] = nmc_pattern_u64(key_hash, 0, page, i);
  }
  std::vector<uint64_t> page_;
};

#ifdef PREFILL_DECODE_GPU
constexpr bool kGpuBuilt = true;
std::unique_ptr<Engine> engine_for(const Options& options) {
  return options.gpu ? gpu_engine() : std::make_unique<Cpu>(options.page_bytes);
}
#else
constexpr bool kGpuBuilt = false;
std::unique_ptr<Engine> engine_for(const Options& options) { return std::make_unique<Cpu>(options.page_bytes); }
#endif

// Computes prompts and pushes them into the memory of a decode engine, until the time is over.
void prefill(Engine& engine, const nmc::World& world, const nmc::Store& store, const Options& options, int me) {
  const int decoder = me + 2;
  const nmc::Word decoded = world.word(decoder, 0), end_word = world.word(me, 0);
  const auto end = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(options.seconds * 1000));
  uint64_t prompt = 0;
  while (Clock::now() < end) {
    if (prompt >= decoded.load_acquire() + kWindow) {  // far enough ahead
      usleep(50);
      continue;
    }
    for (uint64_t block = 0; block < kBlocks; ++block) {
      const auto start = Clock::now();
      // A place in the decoder's memory. Old prompts are evicted to make room; nobody has to ask for that.
      nmc::WritePlan plan =
          store.open_for_write(key_of(me, prompt, block), options.value_bytes, nmc::PutOptions().on_rank(decoder));
      Clock::duration busy = Clock::now() - start;
      busy += engine.fill(plan);
      tallies[me].took(busy);
      tallies[me].moved(plan.size(), busy);
    }
    ++prompt;
    tallies[me].evicted = store.stats().ranks[static_cast<size_t>(decoder)].evict_count;
  }
  end_word.store_release(prompt + 1);  // there will be no more
}

// Takes the prompts of a prefill engine as they come, and returns to old ones now and then.
void decode(Engine& engine, const nmc::World& world, const nmc::Store& store, int me) {
  const int prefiller = me - 2;
  const nmc::Word decoded = world.word(me, 0), end_word = world.word(prefiller, 0);
  Tally& tally = tallies[me];
  std::mt19937_64 random(static_cast<uint64_t>(me));

  const auto attend = [&](const std::string& key) {
    const auto meta = store.location(key);  // only to know which bytes to expect
    const auto start = Clock::now();
    std::optional<nmc::View> view = store.find(key);  // a hash probe: no copy, and no other process is asked
    tally.took(Clock::now() - start);
    if (!view || !meta) return;  // evicted meanwhile: an engine would compute it again
    const uint64_t bytes = view->size(), key_hash = meta->key_hash;
    bool right = false;
    const Clock::duration busy = engine.check(std::move(*view), key_hash, right);
    tally.wrong += !right;
    tally.moved(bytes, busy);
  };

  for (uint64_t prompt = 0;; ++prompt) {
    for (uint64_t block = 0; block < kBlocks; ++block) {
      const std::string key = key_of(prefiller, prompt, block);
      while (!store.nothrow()->wait_ready(key, nmc::Wait::appear, std::chrono::milliseconds(100))) {
        const uint64_t end = end_word.load_acquire();  // 0 while there is more to come
        if (end != 0 && prompt + 1 >= end) return;
      }
      attend(key);
    }
    if (random() % 4 == 0) {  // somebody asks again: how much of an old prompt is still there?
      const uint64_t old = prompt - std::min(prompt, 1 + random() % (2 * kWindow));
      std::vector<std::string> keys;
      for (uint64_t block = 0; block < kBlocks; ++block) keys.push_back(key_of(prefiller, old, block));
      const size_t matched = store.match_prefix(nmc::all_keys(keys));
      tally.looked += kBlocks, tally.matched += matched;
      for (size_t i = 0; i < matched; ++i) attend(keys[i]);
    }
    decoded.store_release(prompt + 1);
  }
}

int run_rank(int me, const std::string& dir, const Options& options) try {
  const std::unique_ptr<Engine> engine = engine_for(options);
  nmc::WorldConfig world_config = nmc::WorldConfig("kv").dir(dir).rank(me).world_size(kRanks);
  world_config.heap_bytes(options.heap_bytes());
  if (options.gpu) world_config.heap_kind(nmc::HeapKind::cuda).device(0);
  const nmc::World world = nmc::World::join(world_config);
  const nmc::StoreConfig config = nmc::StoreConfig().page_bytes(static_cast<uint32_t>(options.page_bytes));
  const nmc::Store store = nmc::Store::attach(world, config);
  world.barrier(kPatience);
  if (me < 2) prefill(*engine, world, store, options, me);
  else decode(*engine, world, store, me);
  world.barrier(kPatience);
  if (me == 0) std::printf("\nthe heaps at the end (# used, . free):\n%s", store.dump(64).c_str()), std::fflush(stdout);
  world.barrier(kPatience);  // the master is in rank 0: it stays until all are done
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "\nrank %d: %s\n", me, error.what());
  return 1;
}

// ---------------------------------------------------------------------------------------- who starts the processes --

const bool kTerminal = isatty(STDOUT_FILENO) == 1;
const bool kColour = kTerminal && (std::getenv("NO_COLOR") == nullptr || *std::getenv("NO_COLOR") == '\0');
const char* const kBold = kColour ? "\x1b[1m" : "";
const char* const kGreen = kColour ? "\x1b[32m" : "";
const char* const kRed = kColour ? "\x1b[31m" : "";
const char* const kOff = kColour ? "\x1b[0m" : "";

void table(double seconds) {
  std::printf("%5.1f s  rank  engine         objects  objects/s   GB/s   p50 us   p99 us  hits  evicted\n", seconds);
  for (int rank = 0; rank < kRanks; ++rank) {
    const Tally& t = tallies[rank];
    const double objects = static_cast<double>(t.objects), busy = static_cast<double>(std::max<uint64_t>(t.busy_ns, 1));
    std::printf("         %4d  %s %d %11.0f %10.0f %6.1f %8.1f %8.1f", rank, rank < 2 ? "prefill for" : "decode from",
                (rank + 2) % kRanks, objects, objects / seconds, static_cast<double>(t.bytes) / busy,
                t.percentile_us(0.5), t.percentile_us(0.99));
    const double looked = static_cast<double>(std::max<uint64_t>(t.looked, 1));
    if (rank < 2) std::printf("  %4s %8llu\n", "", static_cast<unsigned long long>(t.evicted));
    else std::printf(" %3.0f %%\n", 100 * static_cast<double>(t.matched) / looked);
  }
  std::fflush(stdout);
}

// Starts the engines, shows what they do, and gives what they ended with.
int show(const std::string& dir, const Options& options) {
  std::printf("%snanomc: two prefill engines write into the memory of two decode engines%s\n", kBold, kOff);
  std::printf("objects of %llu KiB in pages of %llu KiB, heaps of %llu MiB%s, %d processes on %ld cores\n\n",
              static_cast<unsigned long long>(options.value_bytes >> 10),
              static_cast<unsigned long long>(options.page_bytes >> 10),
              static_cast<unsigned long long>(options.heap_bytes() >> 20), options.gpu ? " on the GPU" : "", kRanks,
              sysconf(_SC_NPROCESSORS_ONLN));
  std::fflush(stdout);
  std::array<pid_t, kRanks> pids{};
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t parent = getpid();
    pids[static_cast<size_t>(rank)] = fork();  // before the first call of the library, which this process never makes
    if (pids[static_cast<size_t>(rank)] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // an engine does not outlive the demo
      _exit(getppid() == parent ? run_rank(rank, dir, options) : 1);
    }
  }
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  bool failed = false;
  for (int left = kRanks, ticks = 1; left > 0;) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended > 0) {
      --left;
      if (status != 0 && !std::exchange(failed, true)) {
        for (pid_t pid : pids) kill(pid, SIGKILL);  // one is lost: the others would wait for it
      }
    } else if (elapsed() > 0.5 * ticks && elapsed() < options.seconds) {
      if (kTerminal && ticks > 1) std::printf("\x1b[%dA", kRanks + 1);
      table(elapsed());
      ++ticks;
    } else {
      usleep(10'000);
    }
  }
  unsigned long long pushed = 0, checked = 0, evicted = 0, wrong = 0, bytes = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Tally& t = tallies[rank];
    (rank < 2 ? pushed : checked) += t.objects;
    evicted += t.evicted, wrong += t.wrong, bytes += rank < 2 ? 0 : t.bytes.load();
  }
  const bool good = !failed && wrong == 0 && checked > 0;
  std::printf("\n%llu objects pushed, %llu evicted; %llu (%.1f GB) read in place: ", pushed, evicted, checked,
              static_cast<double>(bytes) / 1e9);
  std::printf("%s%s%llu wrong%s\n", good ? kGreen : kRed, failed ? "an engine FAILED, " : "", wrong, kOff);
  std::printf(
      "   GB/s and latency are of a whole object for prefill (plan, %s, commit); for decode, of %s\n"
      "   and of the pin. Hits: blocks of old prompts that were still there.\n"
      "   No byte went through a socket: prefill stored into the decoder's heap, and the decoder looked at it there.\n"
      "   The master was asked for room, and evicted old prompts to make it. Nobody asks it to read.\n",
      options.gpu ? "kernel" : "copy", options.gpu ? "the kernel that checks the bytes" : "comparing the bytes");
  return good ? 0 : 1;
}

constexpr const char* kHelp =
    "usage: prefill_decode [--gpu] [--seconds N] [--page-bytes N] [--value-bytes N]\n"
    "  --seconds N      how long to run (3)\n"
    "  --page-bytes N   bytes of a page, a power of two from 4096 to 2097152 (262144)\n"
    "  --value-bytes N  bytes of an object (1048576)\n"
    "  --gpu            heaps in GPU memory, and kernels that store and check the pages\n";

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--help") return std::fputs(kHelp, stdout), 0;
    if (word == "--gpu") {
      options.gpu = true;
      continue;
    }
    if (word == "--seconds") options.seconds = std::strtod(value, nullptr);
    else if (word == "--page-bytes") options.page_bytes = std::strtoull(value, nullptr, 0);
    else if (word == "--value-bytes") options.value_bytes = std::strtoull(value, nullptr, 0);
    else return std::fputs(kHelp, stderr), 2;
    ++i;
  }
  if (!(options.seconds > 0) || options.page_bytes == 0 || options.value_bytes == 0) {
    return std::fputs(kHelp, stderr), 2;
  }
  if (options.gpu && !kGpuBuilt) {
    std::fputs("--gpu: this program was built without nvcc; configure it again where CMake finds a CUDA compiler\n", stderr);
    return 2;
  }
  void* shared = mmap(nullptr, kRanks * sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  char dir[] = "/tmp/nanomc-kv-XXXXXX";
  if (shared == MAP_FAILED || mkdtemp(dir) == nullptr) return std::perror("prefill_decode"), 1;
  tallies = static_cast<Tally*>(shared);  // all zero
  const int result = show(dir, options);
  std::filesystem::remove_all(dir);
  return result;
}
