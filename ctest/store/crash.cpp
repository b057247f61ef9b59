// kill -9 at named points. Four ranks write, replace, remove, evict and read; each round one of them ends itself at a point
// inside the library (src/base/point.rs), is replaced by a new process, and everything is looked at: no value is torn or
// of another key, what was retained is what its writer last stored, what was removed stays removed, and every page that
// no object holds is free again. While the master is away the others go on reading. In some rounds a forked child of the
// victim lives on for a while: until it has ended nothing of the victim is gone.
// usage: crash ROUNDS [SEED] [EACH] [external] [torn|leak|lost]
//   EACH is how often every point must have been hit. `external` puts the master into a process of its own. The last word
//   breaks something on purpose: the check must see it.

#include "../support/crew.hpp"
#include "../support/value.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <map>

namespace {

constexpr uint32_t RANKS = 4, PAGE = 4096, HEAP_PAGES = 24;
constexpr uint64_t PER_RANK = 18, KEYS = RANKS * PER_RANK, RETAINED = 3;
constexpr uint64_t NONE = ~uint64_t{0};
constexpr double PATIENCE = 60;

const char* const POINTS[] = {
    "writer.opened",    "writer.mid_copy",   "writer.before_publish", "writer.published", "writer.before_reveal",
    "writer.before_abort", "reader.held",    "reader.pinned",         "reader.before_unpin", "master.filled",
    "master.writing",   "master.killed",     "master.unlinked",       "master.releasing", "master.shown",
    "master.exchanged", "master.purging",    "master.purged",         "master.unpinned",  "evictor.killed",
    "evictor.released", "takeover.counted",  "takeover.indexed",      "takeover.swept"};
constexpr size_t N_POINTS = sizeof POINTS / sizeof *POINTS;

enum Wish : uint32_t { RUN, PAUSE, CHECK, QUIT };
enum State : uint32_t { JOINING, RUNNING, PAUSED, CHECKED, FAILED };

// What the writer of a key knows: 0 is absent. With an intent both are possible.
struct Entry {
  std::atomic<uint64_t> done, intent;
};
struct Board {
  std::atomic<uint32_t> wish, state, fork_child;
  std::atomic<int> child;
  std::atomic<uint64_t> reads, writes, next_seq, settle_ms;
  std::atomic<uint32_t> seen[RANKS];  // states of the ranks as this one sees them
};
struct Shared {
  Board ranks[RANKS + 1];  // the last is for a master that is none of the ranks
  Entry keys[KEYS];
  std::atomic<uint64_t> stale, refused, away;
  std::atomic<uint32_t> breaks;  // what a control breaks, once
  Complaint complaint;
};
Shared* shared;
pid_t driver;
bool external = false;
// Who dies at the master's points.
uint32_t master_place() { return external ? RANKS : 0; }

nmc_world_config_t world_config(const std::string& dir) {
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.name = nmc_slice_t{"crash", 5};
  config.dir = slice(dir);
  config.world_size = RANKS;
  config.heap_bytes = HEAP_PAGES * PAGE;
  config.join_timeout_ms = 60000;
  if (external) config.master = NMC_MASTER_EXTERNAL;
  return config;
}
void set_arm(const std::string& dir, uint32_t place) {
  setenv("NMC_CRASH_POINT", ("@" + dir + "/arm-" + std::to_string(place)).c_str(), 1);
}

// ---- a rank -----------------------------------------------------------------------------------------------------------

struct Rank {
  uint32_t rank;
  nmc_world_t* world = nullptr;
  nmc_store_t* store = nullptr;
  Random random;
  std::vector<uint64_t> buffer = std::vector<uint64_t>(16 * PAGE / 8);

  explicit Rank(uint32_t number) : rank(number), random(static_cast<uint64_t>(getpid()) * 4 + number) {}
  Board& board() const { return shared->ranks[rank]; }

  [[noreturn]] void fail(const char* what, nmc_status_t status) {
    shared->complaint.say("rank %u: %s gives %s: %s", rank, what, nmc_status_name(status), nmc_last_error_message());
    board().state.store(FAILED);
    for (;;) pause_us(100000);
  }
  static std::string name(uint64_t key) { return "key-" + std::to_string(key); }

  // Whether the words are a whole value of this key; its number in `seq`.
  static bool whole(uint64_t key, const uint64_t* words, uint64_t n, uint64_t* seq) {
    if (n < 2 || words[0] >> 40 != key + 1) return false;
    for (uint64_t i = 1; i < n; ++i)
      if (words[i] != word_of(words[0], i)) return false;
    *seq = words[0] & 0xffffffffff;
    return true;
  }
  uint64_t compose(uint64_t key, uint64_t seq, uint64_t n) {
    buffer[0] = (key + 1) << 40 | seq;
    for (uint64_t i = 1; i < n; ++i) buffer[i] = word_of(buffer[0], i);
    return n * 8;
  }

  void join(const std::string& dir) {
    nmc_world_config_t config = world_config(dir);
    config.rank = static_cast<int32_t>(rank);
    if (nmc_status_t s = nmc_world_join(&config, &world); s != NMC_OK) fail("join", s);
    nmc_store_config_t wanted = NMC_STORE_CONFIG_INIT;
    wanted.page_bytes = PAGE;
    wanted.max_objects = 64;
    wanted.key_slab_bytes = 64 << 10;
    wanted.attach_timeout_ms = 60000;
    wanted.call_timeout_ms = 60000;
    wanted.master_rank = 0;
    if (nmc_status_t s = nmc_store_create(world, &wanted, &store); s != NMC_OK) fail("create", s);
  }

  void read(uint64_t key) {
    const std::string text = name(key);
    nmc_status_t status;
    uint64_t seq = 0;
    if (random.one_in(2)) {
      nmc_view_t view;
      status = nmc_store_pin(store, slice(text), &view);
      if (status == NMC_OK) {
        bool fine = view.bytes <= buffer.size() * 8;
        if (fine && view.n_extents == 1) {
          fine = whole(key, static_cast<const uint64_t*>(view.data), view.bytes / 8, &seq);
        } else if (fine) {
          nmc_extent_t extents[16];
          size_t n = 0, at = 0;
          if (nmc_status_t s = nmc_store_view_extents(store, &view, extents, 16, &n); s != NMC_OK) fail("view_extents", s);
          for (size_t i = 0; i < n; ++i) {
            std::memcpy(buffer.data() + at, extents[i].ptr, extents[i].bytes);
            at += extents[i].bytes / 8;
          }
          fine = whole(key, buffer.data(), view.bytes / 8, &seq);
        }
        if (!fine) fail("a torn or foreign value", NMC_ERR_CORRUPT);
        if (nmc_status_t s = nmc_store_unpin(store, &view); s != NMC_OK) fail("unpin", s);
      }
    } else {
      size_t size = 0;
      status = nmc_store_get(store, slice(text), buffer.data(), buffer.size() * 8, &size);
      if (status == NMC_OK && !whole(key, buffer.data(), size / 8, &seq)) fail("a torn or foreign value", NMC_ERR_CORRUPT);
    }
    if (status != NMC_OK && status != NMC_NOT_READY && status != NMC_ERR_NOT_FOUND && status != NMC_ERR_BUSY) fail("read", status);
    if (status == NMC_OK) board().reads.fetch_add(1, std::memory_order_relaxed);
  }

  // An answer that says nothing about what happened: the entry keeps both until everything is looked at.
  static bool unsure(nmc_status_t status) { return status == NMC_ERR_UNAVAILABLE || status == NMC_ERR_TIMEOUT; }

  void write(uint64_t key) {
    Entry& entry = shared->keys[key];
    if (entry.intent.load() != NONE) return;
    const bool retained = key % PER_RANK < RETAINED;
    const std::string text = name(key);
    const uint64_t there = entry.done.load();
    if (random.one_in(retained ? 8 : 4)) {
      entry.intent.store(0);
      const nmc_status_t status = nmc_store_remove(store, slice(text));
      if (unsure(status)) return void(shared->away.fetch_add(1));
      if (status == NMC_ERR_NOT_FOUND && retained && there != 0) fail("lost: remove of a retained key", status);
      if (status != NMC_OK && status != NMC_ERR_NOT_FOUND) fail("remove", status);
      entry.done.store(0);
      return entry.intent.store(NONE);
    }
    const uint64_t seq = board().next_seq.fetch_add(1) + 1;
    nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
    options.preferred_segment = random.one_in(2) ? -1 : static_cast<int32_t>(random.below(RANKS));
    if (retained) options.retain = NMC_RETAIN_HARD;
    if (retained || random.one_in(2)) options.flags = NMC_PUT_REPLACE;
    const uint64_t n = random.one_in(6) ? 2 + random.below(5 * PAGE / 8 - 2) : 2 + random.below(PAGE / 4);
    const uint64_t bytes = compose(key, seq, n);
    if (shared->breaks.load() == 't') buffer[n - 1] ^= 1;  // the control
    entry.intent.store(seq);
    nmc_status_t status;
    bool aborted = false;
    const uint64_t form = random.below(3);
    if (form == 0) {
      status = nmc_store_put(store, slice(text), buffer.data(), bytes, &options);
    } else if (form == 1) {
      const uint64_t a = 8 * random.below(n), b = a + random.below(bytes - a);
      const char* from = reinterpret_cast<const char*>(buffer.data());
      const nmc_slice_t parts[3] = {{from, a}, {from + a, b - a}, {from + b, bytes - b}};
      status = nmc_store_put_slices(store, slice(text), parts, 3, &options);
    } else {
      nmc_write_plan_t plan;
      status = nmc_store_open_for_write(store, slice(text), bytes, &options, &plan);
      if (status == NMC_OK) {
        nmc_extent_t extents[64];
        size_t count = 0, at = 0;
        status = nmc_store_plan_extents(store, &plan, extents, 64, &count);
        if (status != NMC_OK) fail("plan_extents", status);
        for (size_t i = 0; i < count; ++i) {
          std::memcpy(extents[i].ptr, buffer.data() + at, extents[i].bytes);
          at += extents[i].bytes / 8;
        }
        aborted = random.one_in(3);
        status = aborted ? nmc_store_abort(store, &plan) : nmc_store_commit(store, &plan);
        // A commit that the master did not hear of could be repeated; this program gives the plan up.
        if (!aborted && unsure(status)) (void)nmc_store_abort(store, &plan);
      }
    }
    board().writes.fetch_add(1, std::memory_order_relaxed);
    if (unsure(status)) return void(shared->away.fetch_add(1));
    switch (status) {
      case NMC_OK:
        if (!aborted) entry.done.store(seq);
        break;
      case NMC_ERR_STALE:  // evicted as soon as it was there
        if (retained) fail("a retained value", status);
        shared->stale.fetch_add(1);
        break;
      case NMC_ERR_EXISTS: break;
      case NMC_ERR_BUSY:
      case NMC_ERR_LIMIT: shared->refused.fetch_add(1); break;
      default: fail("write", status);
    }
    entry.intent.store(NONE);
  }

  // Everything is at rest: what is there must be what its writer knows, and nothing else may take memory.
  bool check() {
    const double start = now_s(), deadline = start + (broken_on_purpose() ? 3 : PATIENCE);
    // The control: a retained value goes, and its writer does not know.
    for (uint64_t key = 0; key < KEYS && shared->breaks.load() == 'x'; ++key)
      if (key % PER_RANK < RETAINED && shared->keys[key].done.load() != 0 && shared->keys[key].intent.load() == NONE) {
        // Without a master the control tries again at the next check.
        if (nmc_store_remove(store, slice(name(key))) == NMC_OK) shared->breaks.store(0);
      }
    nmc_write_plan_t kept;
    if (shared->breaks.load() == 'l' && shared->breaks.exchange(0) == 'l')
      while (nmc_store_open_for_write(store, nmc_slice_t{"leak", 4}, PAGE, nullptr, &kept) != NMC_OK && now_s() < deadline) pause_us(500);
    for (uint64_t key = 0; key < KEYS; ++key) {
      Entry& entry = shared->keys[key];
      const uint64_t done = entry.done.load(), intent = entry.intent.load();
      uint64_t seq = 0;
      for (;;) {
        size_t size = 0;
        const nmc_status_t status = nmc_store_get(store, slice(name(key)), buffer.data(), buffer.size() * 8, &size);
        if (status == NMC_OK) {
          if (!whole(key, buffer.data(), size / 8, &seq)) return shared->complaint.say("key %" PRIu64 " is torn or foreign", key), false;
          break;
        }
        if (status == NMC_ERR_NOT_FOUND) break;
        // A plan of a process that is gone is taken back soon.
        if (status != NMC_NOT_READY || now_s() > deadline)
          return shared->complaint.say("key %" PRIu64 ": %s %s", key, nmc_status_name(status), nmc_last_error_message()), false;
        pause_us(1000);
      }
      const bool evictable = key % PER_RANK >= RETAINED;
      const bool right = seq == done || (intent != NONE && seq == intent) || (seq == 0 && evictable);
      if (!right)
        return shared->complaint.say("key %" PRIu64 " has value %" PRIu64 "; its writer stored %" PRIu64 "%s", key, seq, done,
                                     intent == NONE ? "" : " and was about to change it"), false;
      entry.done.store(seq);
      entry.intent.store(NONE);
    }
    for (;;) {
      uint64_t pages = 0, objects = 0;
      uint64_t cursor = 0;
      char text[64];
      size_t length = 0;
      uint64_t bytes = 0;
      while (nmc_store_next(store, &cursor, text, sizeof text, &length, &bytes) == NMC_OK) {
        pages += (bytes + PAGE - 1) / PAGE;
        ++objects;
      }
      nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
      if (nmc_status_t s = nmc_store_stats(store, nullptr, 0, &stats); s != NMC_OK) fail("stats", s);
      const nmc_store_stats_t& t = stats;
      if (t.bytes_used == pages * PAGE && t.ready_count == objects && t.writing_count == 0 && t.limbo_bytes == 0 && t.quarantined_bytes == 0)
        break;
      if (now_s() > deadline)
        return shared->complaint.say("leaked: %" PRIu64 " bytes used for %" PRIu64 " pages of %" PRIu64 " objects; %" PRIu64 " ready, %" PRIu64
                                     " being written, %" PRIu64 " bytes wait for readers, %" PRIu64 " for writers",
                                     t.bytes_used, pages, objects, t.ready_count, t.writing_count, t.limbo_bytes, t.quarantined_bytes), false;
      pause_us(500);
    }
    board().settle_ms.store(static_cast<uint64_t>((now_s() - start) * 1000));
    return true;
  }
  static bool broken_on_purpose() { return shared->breaks.load() != 0; }

  int live(const std::string& dir) {
    set_arm(dir, rank);
    join(dir);
    for (uint64_t turn = 0;; ++turn) {
      switch (board().wish.load()) {
        case RUN: {
          board().state.store(RUNNING);
          take_turns(random);
          if (board().fork_child.exchange(0) != 0) {
            const pid_t child = fork();
            if (child == 0) {
              while (kill(driver, 0) == 0) pause_us(20000);
              _exit(0);
            }
            board().child.store(child);
          }
          if (turn % 16 == 0)
            for (uint32_t r = 0; r < RANKS; ++r) {
              uint32_t state = 77;
              if (nmc_world_alive(world, static_cast<int32_t>(r), &state) == NMC_OK) board().seen[r].store(state);
            }
          if (random.one_in(3)) write(rank * PER_RANK + random.below(PER_RANK));
          else read(random.below(KEYS));
          if (rank == 0 && random.one_in(200)) nmc_store_evict_until_below(store, static_cast<int32_t>(random.below(RANKS)), 300);
          break;
        }
        case PAUSE:
          // Until a new master has heard of this rank, what is under way is not settled.
          if (board().state.load() == PAUSED || !unsure(nmc_store_remove(store, nmc_slice_t{"none", 4}))) board().state.store(PAUSED);
          pause_us(200);
          break;
        case CHECK:
          if (board().state.load() != CHECKED) board().state.store(check() ? CHECKED : FAILED);
          pause_us(200);
          break;
        case QUIT:
          board().state.store(PAUSED);
          while (rank == 0 && std::any_of(shared->ranks + 1, shared->ranks + RANKS, [](const Board& b) { return b.state.load() != CHECKED; }))
            pause_us(500);
          if (nmc_status_t s = nmc_store_destroy(store); s != NMC_OK) fail("destroy", s);
          if (nmc_status_t s = nmc_world_destroy(world); s != NMC_OK) fail("world_destroy", s);
          board().state.store(CHECKED);
          return 0;
      }
    }
  }
};

// A master that is none of the ranks.
int run_master(const std::string& dir) {
  set_arm(dir, RANKS);
  const nmc_world_config_t config = world_config(dir);
  nmc_master_t* master = nullptr;
  if (nmc_status_t s = nmc_master_start(&config, &master); s != NMC_OK) {
    shared->complaint.say("the master: %s %s", nmc_status_name(s), nmc_last_error_message());
    shared->ranks[RANKS].state.store(FAILED);
  }
  while (shared->ranks[RANKS].wish.load() != QUIT) pause_us(1000);
  return nmc_master_destroy(master) == NMC_OK ? 0 : 1;
}

// ---- the driver --------------------------------------------------------------------------------------------------------

struct Driver {
  OwnDir dir;
  pid_t pids[RANKS + 1] = {};
  std::map<std::string, uint64_t> hits;
  uint64_t kills = 0, absences = 0, children = 0, missed = 0, slowest_ms = 0, gap_reads = 0;
  Random random;
  const char* point = "";

  explicit Driver(uint64_t seed) : random(seed) {
    for (Entry& entry : shared->keys) entry.intent.store(NONE);
    for (uint32_t place = 0; place < RANKS + external; ++place) {
      disarm(place);
      start(place);
    }
  }
  ~Driver() {
    for (pid_t pid : pids)
      if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
      }
    end_children();
  }

  void start(uint32_t rank) {
    shared->ranks[rank].state.store(JOINING);
    shared->ranks[rank].wish.store(RUN);
    shared->ranks[rank].fork_child.store(0);
    pids[rank] = start_member([&] { return rank == RANKS ? run_master(dir.path) : Rank(rank).live(dir.path); });
  }
  void write_arm(uint32_t rank, const std::string& text) {
    const std::string path = dir.path + "/arm-" + std::to_string(rank), fresh = path + ".new";
    FILE* file = std::fopen(fresh.c_str(), "w");
    if (file == nullptr || std::fputs(text.c_str(), file) < 0 || std::fclose(file) != 0) std::abort();
    if (std::rename(fresh.c_str(), path.c_str()) != 0) std::abort();
  }
  void arm(uint32_t rank, const char* name, uint64_t count) { write_arm(rank, std::string(name) + ":" + std::to_string(count)); }
  void disarm(uint32_t rank) { write_arm(rank, ""); }

  bool fail(const char* what) {
    std::fprintf(stderr, "FAIL %s (point %s): %s\n", what, point, shared->complaint.text);
    return false;
  }
  bool anyone_failed() {
    return std::any_of(shared->ranks, shared->ranks + RANKS + 1, [](const Board& b) { return b.state.load() == FAILED; });
  }
  // Whether the rank is dead by now; it is reaped.
  bool dead(uint32_t rank) {
    int status = 0;
    if (pids[rank] <= 0) return true;
    if (waitpid(pids[rank], &status, WNOHANG) != pids[rank]) return false;
    pids[rank] = -1;
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) shared->complaint.say("rank %u ended with %d", rank, status);
    return true;
  }
  template <class Done>
  bool wait(double seconds, Done done) {
    const double deadline = now_s() + seconds;
    while (!done()) {
      if (anyone_failed() || now_s() > deadline) return false;
      pause_us(300);
    }
    return !anyone_failed();
  }
  bool all_reach(State state) {
    return wait(PATIENCE, [&] {
      return std::all_of(shared->ranks, shared->ranks + RANKS, [&](const Board& b) { return b.state.load() == state; });
    });
  }
  void wish(Wish what) {
    for (Board& board : shared->ranks) board.wish.store(what);
  }
  uint64_t reads_but(uint32_t rank) const {
    uint64_t sum = 0;
    for (uint32_t r = 0; r < RANKS; ++r)
      if (r != rank) sum += shared->ranks[r].reads.load();
    return sum;
  }
  void end_children() {
    for (Board& board : shared->ranks)
      if (const int child = board.child.exchange(0); child > 0) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
      }
  }

  // A rank is dead: what its peers see until it is replaced.
  bool mourn(uint32_t victim) {
    ++kills;
    if (victim == master_place()) {
      ++absences;
      const uint64_t before = reads_but(victim);
      if (!wait(PATIENCE, [&] { return reads_but(victim) > before + 50; })) return fail("nobody reads while the master is away");
      gap_reads += reads_but(victim) - before;
    }
    if (shared->ranks[victim].child.load() > 0) {
      ++children;
      const double until = now_s() + 0.15;
      for (uint32_t r = 0; r < RANKS; ++r) shared->ranks[r].seen[victim].store(77);
      while (now_s() < until) {
        for (uint32_t r = 0; r < RANKS; ++r)
          if (r != victim && pids[r] > 0 && shared->ranks[r].seen[victim].load() == NMC_RANK_GONE)
            return fail("a rank is gone while a forked child of it lives");
        if (anyone_failed()) return fail("a rank");
        pause_us(2000);
      }
      end_children();
    }
    return true;
  }

  bool look_at_everything() {
    if (!all_reach(RUNNING)) return fail("a rank does not come back");
    wish(PAUSE);
    if (!all_reach(PAUSED)) return fail("a rank does not pause");
    // Any rank can look; the master's own sees its numbers first.
    const uint32_t who = static_cast<uint32_t>(random.below(RANKS));
    shared->ranks[who].wish.store(CHECK);
    if (!wait(2 * PATIENCE, [&] { return shared->ranks[who].state.load() == CHECKED; })) return fail("the check");
    slowest_ms = std::max(slowest_ms, shared->ranks[who].settle_ms.load());
    wish(RUN);
    return all_reach(RUNNING) || fail("a rank does not go on");
  }

  bool round() {
    // Points that were hit least come first, in random order.
    size_t which = random.below(N_POINTS);
    for (int i = 0; i < 3; ++i)
      if (const size_t other = random.below(N_POINTS); hits[POINTS[other]] < hits[POINTS[which]]) which = other;
    point = POINTS[which];
    const std::string kind = std::string(point).substr(0, std::string(point).find('.'));
    const uint32_t master = master_place();
    uint32_t victim = kind == "writer" || kind == "reader" ? static_cast<uint32_t>(random.below(RANKS)) : master;
    const bool takes_over = kind == "takeover", on_death = std::strcmp(point, "master.unpinned") == 0;
    if (!all_reach(RUNNING)) return fail("a rank does not run");
    if (random.one_in(8) && victim != RANKS) {
      shared->ranks[victim].fork_child.store(1);
      wait(5, [&] { return shared->ranks[victim].child.load() > 0; });
    }
    if (takes_over || on_death) {
      const uint32_t first = takes_over ? master : 1 + static_cast<uint32_t>(random.below(RANKS - 1));
      if (on_death) arm(master, point, 1);
      kill(pids[first], SIGKILL);
      if (!wait(PATIENCE, [&] { return dead(first); })) return fail("the victim does not die");
      if (takes_over) {
        if (!mourn(master)) return false;
        arm(master, point, 1);
        start(master);
      }
      if (!wait(PATIENCE, [&] { return dead(master); })) return fail("the master does not come to the point");
      disarm(master);
      ++hits[point];
      if (!mourn(master)) return false;
      if (on_death) {
        if (random.one_in(2)) start(first), start(master);
        else start(master), start(first);
      } else {
        start(master);
      }
      return look_at_everything();
    }
    arm(victim, point, 1 + random.below(12));
    const bool hit = wait(4, [&] { return dead(victim); });
    disarm(victim);
    if (anyone_failed()) return fail("a rank");
    if (!hit && !dead(victim)) {
      ++missed;
      shared->ranks[victim].fork_child.store(0);
      end_children();
      return true;
    }
    ++hits[point];
    if (!mourn(victim)) return false;
    start(victim);
    return look_at_everything();
  }

  bool farewell() {
    if (!all_reach(RUNNING)) return fail("a rank does not run");
    for (uint32_t rank = 0; rank < RANKS; ++rank) shared->ranks[rank].wish.store(QUIT);
    std::vector<pid_t> left(pids, pids + RANKS);
    const auto all_ended = [&] { return std::all_of(left.begin(), left.end(), [](pid_t p) { return p < 0; }); };
    bool fine = watch_until(left, PATIENCE, all_ended);
    std::copy(left.begin(), left.end(), pids);
    if (external) {
      left.assign(1, pids[RANKS]);
      shared->ranks[RANKS].wish.store(QUIT);
      fine = watch_until(left, PATIENCE, all_ended) && fine;
      pids[RANKS] = left[0];
    }
    return fine || fail("a rank does not leave");
  }
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 40;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const uint64_t each = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0;
  if (syscall(434, getpid(), 0) < 0) return 77;  // no pidfd_open: an old valgrind
  driver = getpid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  shared = shared_between_processes<Shared>();
  external = argc > 4 && std::strcmp(argv[4], "external") == 0;
  if (const char* what = argc > 4 + external ? argv[4 + external] : nullptr)
    shared->breaks.store(what[0] == 't' ? 't' : what[0] == 'l' && what[1] == 'e' ? 'l' : 'x');
  bool fine = true;
  const double start = now_s();
  {
    Driver driver(seed);
    for (uint64_t i = 0; fine && i < rounds; ++i) fine = driver.round();
    // Points that are still short get rounds of their own.
    const auto least = [&] {
      uint64_t n = NONE;
      for (const char* point : POINTS) n = std::min(n, driver.hits[point]);
      return n;
    };
    for (uint64_t i = 0; fine && least() < each && i < 4 * rounds; ++i) fine = driver.round();
    if (fine) fine = driver.farewell();
    for (const char* point : POINTS) std::printf("  %-24s %" PRIu64 "\n", point, driver.hits[point]);
    uint64_t writes = 0, reads = 0;
    for (const Board& board : shared->ranks) {
      writes += board.writes.load();
      reads += board.reads.load();
    }
    std::printf("%" PRIu64 " kills (%" PRIu64 " of the master, with %" PRIu64 " reads meanwhile; %" PRIu64 " with a child left; %" PRIu64
                " points not reached), %" PRIu64 " writes, %" PRIu64 " reads, %" PRIu64 " stale, %" PRIu64 " refused, %" PRIu64
                " without a master; memory back after at most %" PRIu64 " ms; %.1f s\n",
                driver.kills, driver.absences, driver.gap_reads, driver.children, driver.missed, writes, reads, shared->stale.load(),
                shared->refused.load(), shared->away.load(), driver.slowest_ms, now_s() - start);
    if (fine && least() < each) {
      std::printf("FAIL a point was hit less than %" PRIu64 " times\n", each);
      fine = false;
    }
  }
  if (!fine) std::printf("FAIL seed %" PRIu64 "\n", seed);
  else std::printf("PASS\n");
  return fine ? 0 : 1;
}
