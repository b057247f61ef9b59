// The block allocator from C++: what it gives, what it refuses, the line of those who wait, and 16 threads that would see
// a block that two of them own.
//
//   kv_blocks [rounds a thread] [seed] [twice|lost]
//
// The last argument is the control: the threads work on an allocator of this file, which now and then hands a block out
// twice, or forgets one that is freed.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../support/forms.hpp"
#include "nanomc.hpp"
#include "words.hpp"

namespace {

nmc_blocks_t* make(uint32_t total) {
  nmc_blocks_config_t config = NMC_BLOCKS_CONFIG_INIT;
  config.total_blocks = total;
  nmc_blocks_t* blocks = nullptr;
  OK(nmc_blocks_create(&config, &blocks));
  return blocks;
}

nmc_blocks_stats_t stats_of(nmc_blocks_t* blocks) {
  nmc_blocks_stats_t stats = NMC_BLOCKS_STATS_INIT;
  OK(nmc_blocks_stats(blocks, &stats));
  CHECK(stats.used + stats.free == stats.total);
  return stats;
}

// ---- what it gives ----------------------------------------------------------------------------------------------------

void runs_and_scattered() {
  promise("runs and scattered blocks come from the same blocks, and either kind of free takes both");
  nmc_blocks_t* blocks = make(256);
  nmc_block_run_t run = {-1, -1};
  OK(nmc_blocks_allocate(blocks, 33, &run));
  CHECK(run.first >= 0 && run.count == 33);
  CHECK(stats_of(blocks).used == 33);  // exactly what was asked for
  std::vector<int32_t> some(223, -1);
  OK(nmc_blocks_allocate_scattered(blocks, some.size(), some.data()));
  std::vector<bool> owned(256);
  for (int32_t i = 0; i < run.count; ++i) owned[static_cast<size_t>(run.first + i)] = true;
  for (int32_t block : some) {
    CHECK(block >= 0 && block < 256 && !owned[static_cast<size_t>(block)]);
    owned[static_cast<size_t>(block)] = true;
  }
  const nmc_blocks_stats_t full = stats_of(blocks);
  CHECK(full.free == 0 && full.largest_run == 0 && full.free_runs == 0 && full.fragmentation == 0);

  std::vector<int32_t> tail;
  for (int32_t i = 30; i < 33; ++i) tail.push_back(run.first + i);
  OK(nmc_blocks_free_scattered(blocks, tail.data(), tail.size()));
  OK(nmc_blocks_free(blocks, {run.first, 30}));
  OK(nmc_blocks_free_scattered(blocks, some.data(), some.size()));
  const nmc_blocks_stats_t empty = stats_of(blocks);
  CHECK(empty.used == 0 && empty.free_runs == 1 && empty.largest_run == 256 && empty.fragmentation == 0);
  CHECK(empty.bytes > 0);
  OK(nmc_blocks_allocate(blocks, 256, &run));
  OK(nmc_blocks_destroy(blocks));
}

void extend() {
  promise("a run grows in place while the blocks behind it are free");
  nmc_blocks_t* blocks = make(100);
  nmc_block_run_t run = {0, 0}, next = {0, 0};
  OK(nmc_blocks_allocate(blocks, 10, &run));
  OK(nmc_blocks_extend(blocks, &run, 7));
  CHECK(run.count == 17 && stats_of(blocks).used == 17);
  OK(nmc_blocks_allocate(blocks, 1, &next));
  CHECK(next.first >= run.first + run.count || next.first < run.first);
  const nmc_block_run_t before = run;
  FAILS(nmc_blocks_extend(blocks, &run, 100), NMC_ERR_NO_SPACE, "not all free");
  FAILS(nmc_blocks_extend(blocks, &run, UINT32_MAX), NMC_ERR_NO_SPACE, "not all free");
  FAILS(nmc_blocks_extend(blocks, &run, 0), NMC_ERR_INVALID_ARG, "no blocks");
  CHECK(run.first == before.first && run.count == before.count);
  OK(nmc_blocks_free(blocks, run));
  FAILS(nmc_blocks_extend(blocks, &run, 1), NMC_ERR_INVALID_ARG, "not wholly in use");
  OK(nmc_blocks_destroy(blocks));
}

void map() {
  promise("the map has a character a block, and its counts add up");
  nmc_blocks_t* blocks = make(70);
  nmc_block_run_t run = {0, 0};
  OK(nmc_blocks_allocate(blocks, 3, &run));
  size_t needed = 0;
  OK(nmc_blocks_dump(blocks, nullptr, 0, &needed));
  std::string text(needed, '\0');
  OK(nmc_blocks_dump(blocks, text.data(), text.size(), nullptr));
  text.pop_back();
  const std::string expected =
      "Blocks: 70, used 3, free 67\nFree runs: 1, largest 67, fragmentation 0.00\nMap (. free, X used):\nXXX" +
      std::string(61, '.') + "\n......\n";
  if (!CHECK(text == expected)) std::printf("%s", text.c_str());
  char small[10];
  GIVES(nmc_blocks_dump(blocks, small, sizeof small, &needed), NMC_ERR_TOO_SMALL);
  CHECK(needed == expected.size() + 1 && std::strlen(small) == 9);
  OK(nmc_blocks_destroy(blocks));
}

void resize() {
  promise("blocks are added at the end, and taken away there when they are free");
  nmc_blocks_t* blocks = make(64);
  nmc_block_run_t all = {0, 0}, more = {0, 0};
  OK(nmc_blocks_allocate(blocks, 64, &all));
  OK(nmc_blocks_resize(blocks, 1000));
  OK(nmc_blocks_allocate(blocks, 512, &more));
  CHECK(more.first >= 64 && stats_of(blocks).total == 1000);
  FAILS(nmc_blocks_resize(blocks, 64), NMC_ERR_BUSY, "is in use");
  OK(nmc_blocks_free(blocks, more));
  OK(nmc_blocks_resize(blocks, 64));
  FAILS(nmc_blocks_resize(blocks, 63), NMC_ERR_BUSY, "block 63 is in use");
  for (uint32_t bad : {0u, 1u << 31, UINT32_MAX}) FAILS(nmc_blocks_resize(blocks, bad), NMC_ERR_INVALID_ARG, "1 to 2147483647");
  CHECK(stats_of(blocks).free == 0);
  OK(nmc_blocks_destroy(blocks));
}

// ---- what it refuses --------------------------------------------------------------------------------------------------

void configs() {
  promise("a config that makes no sense is refused with a reason");
  nmc_blocks_t* out = reinterpret_cast<nmc_blocks_t*>(&out);
  nmc_blocks_config_t config = NMC_BLOCKS_CONFIG_INIT;
  FAILS(nmc_blocks_create(&config, &out), NMC_ERR_INVALID_ARG, "total_blocks: 0 blocks");
  CHECK(out == nullptr);
  config.total_blocks = 1u << 31;
  FAILS(nmc_blocks_create(&config, &out), NMC_ERR_INVALID_ARG, "2147483648 blocks: there must be 1 to 2147483647");
  config.total_blocks = 10;
  config.reserved[3] = 1;
  FAILS(nmc_blocks_create(&config, &out), NMC_ERR_INVALID_ARG, "reserved");
  config.struct_size = 0;
  GIVES(nmc_blocks_create(&config, &out), NMC_ERR_VERSION);
  GIVES(nmc_blocks_create(nullptr, &out), NMC_ERR_INVALID_ARG);
  GIVES(nmc_blocks_create(&config, nullptr), NMC_ERR_INVALID_ARG);
}

void handles() {
  promise("a handle that is none is a bad handle everywhere, and NULL can be destroyed");
  nmc_blocks_t* gone = make(10);
  OK(nmc_blocks_destroy(gone));
  GIVES(nmc_blocks_destroy(gone), NMC_ERR_BAD_HANDLE);
  OK(nmc_blocks_destroy(nullptr));
  nmc_block_run_t run = {0, 1};
  nmc_blocks_stats_t stats = NMC_BLOCKS_STATS_INIT;
  int32_t number = 0;
  uint64_t ticket = 0;
  size_t needed = 0;
  for (nmc_blocks_t* bad : {gone, static_cast<nmc_blocks_t*>(nullptr), reinterpret_cast<nmc_blocks_t*>(&run)}) {
    GIVES(nmc_blocks_allocate(bad, 1, &run), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_blocks_free(bad, run), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_blocks_extend(bad, &run, 1), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_blocks_allocate_scattered(bad, 1, &number), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_blocks_free_scattered(bad, &number, 1), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_blocks_request(bad, 1, &ticket), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_blocks_poll(bad, 1, &run), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_blocks_cancel(bad, 1), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_blocks_stats(bad, &stats), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_blocks_dump(bad, nullptr, 0, &needed), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_blocks_resize(bad, 1), NMC_ERR_BAD_HANDLE);
  }
}

void numbers() {
  promise("counts and blocks that cannot be are refused, and nothing changes");
  nmc_blocks_t* blocks = make(100);
  nmc_block_run_t run = {5, 5};
  FAILS(nmc_blocks_allocate(blocks, 0, &run), NMC_ERR_INVALID_ARG, "no blocks");
  for (uint32_t many : {101u, 1u << 31, UINT32_MAX}) {
    FAILS(nmc_blocks_allocate(blocks, many, &run), NMC_ERR_NO_SPACE, "only 100 are free");
  }
  int32_t one = 7;
  OK(nmc_blocks_allocate_scattered(blocks, 0, nullptr));
  OK(nmc_blocks_free_scattered(blocks, nullptr, 0));
  for (size_t many : {size_t{101}, size_t{1} << 31, SIZE_MAX}) {
    FAILS(nmc_blocks_allocate_scattered(blocks, many, &one), NMC_ERR_NO_SPACE, "only 100 are free");
  }
  GIVES(nmc_blocks_free_scattered(blocks, &one, SIZE_MAX), NMC_ERR_INVALID_ARG);
  CHECK(run.first == 5 && one == 7);
  GIVES(nmc_blocks_allocate(blocks, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_blocks_allocate_scattered(blocks, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_blocks_free_scattered(blocks, nullptr, 1), NMC_ERR_INVALID_ARG);
  GIVES(nmc_blocks_extend(blocks, nullptr, 1), NMC_ERR_INVALID_ARG);
  GIVES(nmc_blocks_request(blocks, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_blocks_poll(blocks, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_blocks_stats(blocks, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_blocks_dump(blocks, nullptr, 5, nullptr), NMC_ERR_INVALID_ARG);

  OK(nmc_blocks_allocate(blocks, 20, &run));
  const nmc_block_run_t foreign[] = {{run.first, 21}, {90, 20},        {50, 0},         {-1, 5},
                                     {0, -5},         {INT32_MAX, 1}, {0, INT32_MAX}, {INT32_MAX, INT32_MAX}};
  for (nmc_block_run_t bad : foreign) GIVES(nmc_blocks_free(blocks, bad), NMC_ERR_INVALID_ARG);
  const int32_t numbers[][3] = {{run.first, run.first + 1, 100}, {run.first, -1, run.first + 1},
                                {run.first, run.first + 1, run.first}, {run.first, INT32_MIN, 0},
                                {run.first, run.first + 1, 99}};
  for (const int32_t(&bad)[3] : numbers) {
    FAILS(nmc_blocks_free_scattered(blocks, bad, 3), NMC_ERR_INVALID_ARG, "nothing was freed");
  }
  FAILS(nmc_blocks_free_scattered(blocks, numbers[1], 3), NMC_ERR_INVALID_ARG, "block -1 ");
  CHECK(stats_of(blocks).used == 20);
  OK(nmc_blocks_free(blocks, run));
  FAILS(nmc_blocks_free(blocks, run), NMC_ERR_INVALID_ARG, "freed before");
  CHECK(stats_of(blocks).used == 0);
  OK(nmc_blocks_destroy(blocks));
}

void no_run_fits() {
  promise("a run that does not fit says what is free and how long the longest run is");
  nmc_blocks_t* blocks = make(64);
  nmc_block_run_t all = {0, 0}, run = {0, 0};
  OK(nmc_blocks_allocate(blocks, 64, &all));
  for (int32_t block = 0; block < 64; block += 2) OK(nmc_blocks_free(blocks, {block, 1}));
  FAILS(nmc_blocks_allocate(blocks, 2, &run), NMC_ERR_NO_SPACE, "32 are free, but at most 1 in one run");
  GIVES(nmc_blocks_allocate(blocks, 33, &run), NMC_ERR_NO_SPACE);
  // The text is that of the last error, whenever it is asked for.
  GIVES(nmc_blocks_allocate(blocks, 0, &run), NMC_ERR_INVALID_ARG);
  CHECK(error_mentions("a run of no blocks"));
  const nmc_blocks_stats_t stats = stats_of(blocks);
  CHECK(stats.free_runs == 32 && stats.largest_run == 1 && stats.fragmentation > 0.96f);
  OK(nmc_blocks_destroy(blocks));
}

// ---- the line -----------------------------------------------------------------------------------------------------------

void line() {
  promise("requests are served in order, a small one waits behind a large one, and nothing leaks");
  nmc_blocks_t* blocks = make(100);
  nmc_block_run_t held = {0, 0}, run = {-7, -7};
  uint64_t large = 0, small = 0, last = 0;
  OK(nmc_blocks_allocate(blocks, 95, &held));
  OK(nmc_blocks_request(blocks, 40, &large));
  OK(nmc_blocks_request(blocks, 3, &small));
  OK(nmc_blocks_request(blocks, 90, &last));
  CHECK(large != 0 && large != small);
  for (uint64_t ticket : {large, small, last}) GIVES(nmc_blocks_poll(blocks, ticket, &run), NMC_IN_PROGRESS);
  CHECK(run.first == -7 && stats_of(blocks).waiting == 3);
  OK(nmc_blocks_free(blocks, held));
  nmc_blocks_stats_t stats = stats_of(blocks);
  CHECK(stats.waiting == 1 && stats.ready == 2 && stats.used == 43);
  OK(nmc_blocks_poll(blocks, small, &run));
  CHECK(run.count == 3);
  FAILS(nmc_blocks_poll(blocks, small, &run), NMC_ERR_NOT_FOUND, "is not open");
  GIVES(nmc_blocks_poll(blocks, last, &run), NMC_IN_PROGRESS);
  OK(nmc_blocks_cancel(blocks, large));  // served, never fetched
  OK(nmc_blocks_cancel(blocks, last));
  CHECK(stats_of(blocks).used == 3);
  for (uint64_t ticket : {large, small, last, uint64_t{0}, UINT64_MAX}) {
    GIVES(nmc_blocks_cancel(blocks, ticket), NMC_ERR_NOT_FOUND);
  }
  GIVES(nmc_blocks_request(blocks, 0, &large), NMC_ERR_INVALID_ARG);
  FAILS(nmc_blocks_request(blocks, 101, &large), NMC_ERR_NO_SPACE, "more than all 100");

  // Scattered blocks serve the line as well, and so do new ones.
  std::vector<int32_t> rest(97);
  OK(nmc_blocks_allocate_scattered(blocks, rest.size(), rest.data()));
  OK(nmc_blocks_request(blocks, 50, &large));
  OK(nmc_blocks_request(blocks, 64, &last));
  OK(nmc_blocks_free_scattered(blocks, rest.data(), rest.size()));
  CHECK(stats_of(blocks).ready == 1);
  OK(nmc_blocks_resize(blocks, 400));
  OK(nmc_blocks_poll(blocks, last, &run));
  CHECK(run.count == 64);
  OK(nmc_blocks_destroy(blocks));
}

void too_few_for_the_line() {
  promise("a request that can never be served any more ends with NMC_ERR_NO_SPACE");
  nmc_blocks_t* blocks = make(100);
  nmc_block_run_t held = {0, 0}, run = {0, 0};
  uint64_t ticket = 0;
  OK(nmc_blocks_allocate(blocks, 30, &held));
  OK(nmc_blocks_request(blocks, 80, &ticket));
  OK(nmc_blocks_resize(blocks, 50));
  GIVES(nmc_blocks_poll(blocks, ticket, &run), NMC_ERR_NO_SPACE);
  GIVES(nmc_blocks_poll(blocks, ticket, &run), NMC_ERR_NOT_FOUND);
  OK(nmc_blocks_destroy(blocks));
}

// ---- the C++ wrapper ----------------------------------------------------------------------------------------------------

template <class Mode>
void wrapper() {
  using Blocks = nmc::BasicBlocks<Mode>;
  using Run = nmc::BasicBlockRun<Mode>;
  using Ticket = nmc::BasicBlockTicket<Mode>;
  promise("the wrapper frees what goes out of scope, and gives up what waits");
  Blocks blocks = value_of(Blocks::create(nmc::BlocksConfig(100)));
  const auto used = [&] { return value_of(blocks.stats()).used; };
  {
    Run run = value_of(blocks.allocate(10));
    CHECK(value_of(run.extend(5)) && run && run.count() == 15 && used() == 15);
    CHECK(STATUS(run.shrink(4)) == NMC_OK);
    Run other = std::move(run);
    CHECK(!run && run.count() == 0 && other.count() == 4 && used() == 4);
    other = value_of(blocks.allocate(1));
    CHECK(used() == 1);
    CHECK(STATUS(blocks.allocate(1000)) == NMC_ERR_NO_SPACE && STATUS(blocks.allocate(0)) == NMC_ERR_INVALID_ARG);
    CHECK(blocks.nothrow()->allocate(1000).status() == NMC_ERR_NO_SPACE);
    CHECK(STATUS(other.shrink(-1)) == NMC_ERR_INVALID_ARG && STATUS(other.shrink(7)) == NMC_OK && other.count() == 1);
    CHECK(STATUS(other.free()) == NMC_OK && !other && used() == 0);
  }
  {
    Run run = value_of(blocks.allocate(10)), behind = value_of(blocks.allocate(90));
    CHECK(!value_of(run.extend(1)) && run.count() == 10 && STATUS(run.extend(0)) == NMC_ERR_INVALID_ARG);
  }
  {
    const std::vector<int32_t> table = value_of(blocks.allocate_scattered(100));
    Ticket waits = value_of(blocks.request(60));
    CHECK(!value_of(waits.poll()) && STATUS(waits.poll()) == NMC_OK && waits);
    Ticket never = value_of(blocks.request(100)), given_up = value_of(blocks.request(1));
    CHECK(STATUS(given_up.cancel()) == NMC_OK && !given_up);
    CHECK(STATUS(blocks.free_scattered(table)) == NMC_OK);
    std::optional<Run> run = value_of(waits.poll());
    CHECK(run && run->count() == 60 && !waits && never);
    const nmc_block_run_t given = run->release();
    CHECK(used() == 60 && given.count == 60);
    nmc::nothrow::BlockRun back(blocks.get(), given);
    run = std::move(back);  // in the other form, or the same
    CHECK(!back && run->count() == 60);
  }
  CHECK(used() == 0 && value_of(blocks.stats()).waiting == 0);
  int32_t few[4];
  CHECK(STATUS(blocks.allocate_scattered(few)) == NMC_OK && STATUS(blocks.free_scattered(few)) == NMC_OK);
  CHECK(STATUS(blocks.free_scattered({few, 1})) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(blocks.resize(200)) == NMC_OK);
  CHECK(value_of(blocks.dump()).find("Blocks: 200, used 0, free 200") == 0);
  CHECK(STATUS(blocks.destroy()) == NMC_OK && !blocks && STATUS(blocks.stats()) == NMC_ERR_BAD_HANDLE);
}

// ---- 16 threads ---------------------------------------------------------------------------------------------------------

/// What the threads work on: the library, or the broken allocator of the control.
struct Subject {
  virtual ~Subject() = default;
  virtual bool take(size_t n, int32_t* out) = 0;
  virtual void give(const int32_t* numbers, size_t n) = 0;
  virtual bool take_run(uint32_t n, nmc_block_run_t* run) = 0;
  virtual void give_run(nmc_block_run_t run) = 0;
  virtual bool request_run(uint32_t n, nmc_block_run_t* run, Random& random) = 0;
  virtual uint32_t used() = 0;
};

struct Library : Subject {
  nmc_blocks_t* blocks;
  explicit Library(nmc_blocks_t* made) : blocks(made) {}
  ~Library() override { OK(nmc_blocks_destroy(blocks)); }
  bool take(size_t n, int32_t* out) override { return fits(nmc_blocks_allocate_scattered(blocks, n, out)); }
  void give(const int32_t* numbers, size_t n) override { OK(nmc_blocks_free_scattered(blocks, numbers, n)); }
  bool take_run(uint32_t n, nmc_block_run_t* run) override { return fits(nmc_blocks_allocate(blocks, n, run)); }
  void give_run(nmc_block_run_t run) override { OK(nmc_blocks_free(blocks, run)); }
  bool request_run(uint32_t n, nmc_block_run_t* run, Random& random) override {
    uint64_t ticket = 0;
    OK(nmc_blocks_request(blocks, n, &ticket));
    for (uint32_t asked = 0; asked < random() % 20; ++asked) {
      const nmc_status_t status = nmc_blocks_poll(blocks, ticket, run);
      if (status == NMC_OK) return true;
      GIVES(status, NMC_IN_PROGRESS);
      // Seldom: on a machine that is busy with other things, every one costs a turn of all of them.
      if (random() % 64 == 0) std::this_thread::yield();
    }
    OK(nmc_blocks_cancel(blocks, ticket));
    return false;
  }
  uint32_t used() override { return stats_of(blocks).used; }
  static bool fits(nmc_status_t status) { return status == NMC_OK || (GIVES(status, NMC_ERR_NO_SPACE), false); }
};

/// A stack of numbers, with a fault.
struct Broken : Subject {
  std::mutex mutex;
  std::vector<int32_t> free;
  uint32_t total, calls = 0;
  bool twice;
  Broken(uint32_t n, bool hands_out_twice) : total(n), twice(hands_out_twice) {
    for (uint32_t i = 0; i < n; ++i) free.push_back(static_cast<int32_t>(i));
  }
  bool take(size_t n, int32_t* out) override {
    const std::lock_guard<std::mutex> lock(mutex);
    if (free.size() < n) return false;
    for (size_t i = 0; i < n; ++i) {
      out[i] = free.back();
      if (!twice || ++calls % 5000 != 0) free.pop_back();
    }
    return true;
  }
  void give(const int32_t* numbers, size_t n) override {
    const std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < n; ++i) {
      if (twice || ++calls % 5000 != 0) free.push_back(numbers[i]);
    }
  }
  bool take_run(uint32_t, nmc_block_run_t*) override { return false; }
  void give_run(nmc_block_run_t) override {}
  bool request_run(uint32_t, nmc_block_run_t*, Random&) override { return false; }
  uint32_t used() override { return total - static_cast<uint32_t>(free.size()); }
};

constexpr uint32_t kTotal = 4096;
constexpr uint32_t kThreads = 16;

/// Who owns each block; 0 is nobody.
class Owners {
 public:
  void take(int32_t block, uint32_t owner) {
    if (block < 0 || block >= static_cast<int32_t>(kTotal)) {
      complain(block, "is no block");
      return;
    }
    uint32_t before = 0;
    if (!of_[block].compare_exchange_strong(before, owner)) complain(block, "is owned twice");
  }
  void give(int32_t block, uint32_t owner) {
    if (of_[block].exchange(0) != owner) complain(block, "is owned twice");
  }

 private:
  void complain(int32_t block, const char* what) {
    if (complaints_.fetch_add(1) == 0) std::printf("block %d %s\n", block, what);
    __atomic_add_fetch(&failed_checks, 1, __ATOMIC_RELAXED);
  }
  std::atomic<uint32_t> of_[kTotal] = {};
  std::atomic<uint32_t> complaints_{0};
};

void threads(Subject& subject, uint32_t rounds, uint32_t seed) {
  Owners owners;
  const auto work = [&](uint32_t self) {
    Random random(seed * 1000 + self);
    std::vector<std::vector<int32_t>> scattered;
    std::vector<nmc_block_run_t> runs;
    const auto own = [&](nmc_block_run_t run) {
      for (int32_t i = 0; i < run.count; ++i) owners.take(run.first + i, self);
      runs.push_back(run);
    };
    for (uint32_t round = 0; round < rounds; ++round) {
      nmc_block_run_t run = {0, 0};
      switch (random() % 6) {
        case 0:
        case 1: {
          std::vector<int32_t> some(1 + random() % 60);
          if (!subject.take(some.size(), some.data())) break;
          for (int32_t block : some) owners.take(block, self);
          scattered.push_back(std::move(some));
          break;
        }
        case 2:
          if (subject.take_run(1 + random() % 64, &run)) own(run);
          break;
        case 3:
          if (subject.request_run(1 + random() % 64, &run, random)) own(run);
          break;
        default: break;
      }
      // About 90 % are in use: each thread keeps to its share.
      while (scattered.size() + runs.size() > 8) {
        if (!runs.empty() && (scattered.empty() || random() % 2 == 0)) {
          std::swap(runs[random() % runs.size()], runs.back());
          run = runs.back();
          runs.pop_back();
          for (int32_t i = 0; i < run.count; ++i) owners.give(run.first + i, self);
          subject.give_run(run);
        } else {
          std::swap(scattered[random() % scattered.size()], scattered.back());
          for (int32_t block : scattered.back()) owners.give(block, self);
          subject.give(scattered.back().data(), scattered.back().size());
          scattered.pop_back();
        }
      }
    }
    for (const std::vector<int32_t>& some : scattered) {
      for (int32_t block : some) owners.give(block, self);
      subject.give(some.data(), some.size());
    }
    for (nmc_block_run_t run : runs) {
      for (int32_t i = 0; i < run.count; ++i) owners.give(run.first + i, self);
      subject.give_run(run);
    }
  };
  std::vector<std::thread> all;
  for (uint32_t self = 1; self <= kThreads; ++self) all.emplace_back(work, self);
  for (std::thread& thread : all) thread.join();
  const uint32_t lost = subject.used();
  if (lost != 0) std::printf("%u blocks are lost\n", lost);
  CHECK(lost == 0);
}

void destroyed_under_way() {
  promise("an allocator can be destroyed while others call it");
  for (int round = 0; round < 20; ++round) {
    nmc_blocks_t* blocks = make(1000);
    std::vector<std::thread> all;
    for (int i = 0; i < 4; ++i) {
      all.emplace_back([blocks] {
        for (;;) {
          int32_t some[10];
          const nmc_status_t status = nmc_blocks_allocate_scattered(blocks, 10, some);
          if (status == NMC_ERR_BAD_HANDLE) return;
          if (status == NMC_OK) (void)nmc_blocks_free_scattered(blocks, some, 10);
        }
      });
    }
    sleep_ms(1);
    OK(nmc_blocks_destroy(blocks));
    for (std::thread& thread : all) thread.join();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto rounds = static_cast<uint32_t>(argc > 1 ? std::atoi(argv[1]) : 2000);
  const auto seed = static_cast<uint32_t>(argc > 2 ? std::atoi(argv[2]) : 1);
  if (argc > 3) {
    promise("control");
    Broken broken(kTotal, std::strcmp(argv[3], "twice") == 0);
    threads(broken, rounds, seed);
    return finish();
  }
  runs_and_scattered();
  extend();
  resize();
  numbers();
  line();
  configs();
  handles();
  map();
  no_run_fits();
  too_few_for_the_line();
  wrapper<nmc::Throwing>();
  wrapper<nmc::Returning>();
  destroyed_under_way();
  promise("16 threads never own a block twice, and lose none");
  std::printf("seed %u\n", seed);
  Library library(make(kTotal));
  threads(library, rounds, seed);
  return finish();
}
