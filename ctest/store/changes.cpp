// Ranks that come and go in every way there is, while all of them write, read and hold pins: killed, stopped, leaving in
// order, leaving with the store still open, aborting, destroying handles in either order, rejoining in the same process or
// in another, lending memory as their heap and being replaced by one that does not, with the master killed in between.
// Whatever happens, a value that is read is whole, of its key, and was published; what is pinned does not change; and at
// the end of each stretch every page and every place for clients is free again.
// usage: changes ROUNDS [SEED] [external] [points|unpinned|empty|leak]
//   `external` puts the master into a process of its own. `points`, with a library that has crash points, ends somebody at a
//   random one of them in most rounds, whatever is going on. The other words break something on purpose: the check must
//   see it.

#include "../support/crew.hpp"
#include "../support/value.hpp"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <map>

namespace {

constexpr uint32_t RANKS = 3, PAGE = 4096, HEAP_PAGES = 20;
constexpr uint64_t KEYS = 48;
constexpr double PATIENCE = 60;

const char* const POINTS[] = {
    "writer.opened",   "writer.mid_copy", "writer.before_publish", "writer.published",  "writer.before_reveal", "writer.before_abort",
    "reader.held",     "reader.pinned",   "reader.before_unpin",   "master.filled",     "master.writing",       "master.killed",
    "master.unlinked", "master.releasing", "master.shown",         "master.exchanged",  "master.unpinned",      "master.rank_dropped",
    "evictor.killed",  "evictor.released", "takeover.counted",     "takeover.indexed",  "takeover.swept",       "consumer.pinned",
    "consumer.took"};
constexpr size_t N_POINTS = sizeof POINTS / sizeof *POINTS;

enum Wish : uint32_t { RUN, PAUSE, CHECK, QUIT };
enum State : uint32_t { JOINING, RUNNING, PAUSED, CHECKED, FAILED };
// What a rank does to itself when it is told to.
enum Event : uint32_t { NOTHING, LEAVE, WORLD_FIRST, REFUSED_LEAVE, ABORT, ABORT_STORE_LATER, STORE_AGAIN, REJOIN, N_EVENTS };
const char* const NAMES[] = {"-", "leave", "world first", "refused leave", "abort", "abort, store later", "store again", "rejoin"};

struct Board {
  std::atomic<uint32_t> wish, state, event, lends, lending;  // the last: its heap is memory of its own now
  std::atomic<uint64_t> reads, writes, held, lost, refused;
};
struct Shared {
  Board ranks[RANKS + 1];  // the last is for a master that is none of the ranks
  std::atomic<uint64_t> seq;
  std::atomic<uint32_t> breaks;
  Complaint complaint;
};
Shared* shared;
bool external = false;

nmc_world_config_t world_config(const std::string& dir) {
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.name = nmc_slice_t{"changes", 7};
  config.dir = slice(dir);
  config.world_size = RANKS;
  config.heap_bytes = HEAP_PAGES * PAGE;
  config.join_timeout_ms = 120000;
  if (external) config.master = NMC_MASTER_EXTERNAL;
  return config;
}

// ---- a rank -----------------------------------------------------------------------------------------------------------

struct Held {
  nmc_view_t view;
  uint64_t stamp, words;
};

struct Rank {
  uint32_t rank;
  std::string dir;
  nmc_world_t* world = nullptr;
  nmc_store_t* store = nullptr;
  bool lends = false;
  Random random;
  std::vector<uint64_t> buffer = std::vector<uint64_t>(8 * PAGE / 8);
  std::vector<Held> held;

  Rank(uint32_t number, const std::string& where) : rank(number), dir(where), random(static_cast<uint64_t>(getpid()) * 8 + number) {}
  Board& board() const { return shared->ranks[rank]; }

  [[noreturn]] void fail(const char* what, nmc_status_t status) {
    shared->complaint.say("rank %u: %s: %s: %s", rank, what, nmc_status_name(status), nmc_last_error_message());
    board().state.store(FAILED);
    for (;;) pause_us(100000);
  }
  static std::string name(uint64_t key) { return "key-" + std::to_string(key); }

  // A whole value of this key that somebody published; its stamp.
  static bool whole(uint64_t key, const uint64_t* words, uint64_t n, uint64_t* stamp) {
    if (n < 2 || words[0] >> 40 != key + 1 || (words[0] & 0xffffffffff) > shared->seq.load()) return false;
    for (uint64_t i = 1; i < n; ++i)
      if (words[i] != word_of(words[0], i)) return false;
    *stamp = words[0];
    return true;
  }

  void join() {
    nmc_world_config_t config = world_config(dir);
    config.rank = static_cast<int32_t>(rank);
    lends = board().lends.exchange(0) != 0;
    int fd = -1;
    if (lends) {
      fd = memfd_create("lent", MFD_ALLOW_SEALING | MFD_CLOEXEC);
      if (fd < 0 || ftruncate(fd, HEAP_PAGES * PAGE) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) std::abort();
      config.heap_import.kind = NMC_IMPORT_HOST_FD;
      config.heap_import.fd = fd;
    }
    if (nmc_status_t s = nmc_world_join(&config, &world); s != NMC_OK) fail("join", s);
    if (fd >= 0) close(fd);
    board().lending.store(lends);
    attach();
  }
  void attach() {
    nmc_store_config_t wanted = NMC_STORE_CONFIG_INIT;
    wanted.page_bytes = PAGE;
    wanted.max_objects = 64;
    wanted.key_slab_bytes = 64 << 10;
    wanted.attach_timeout_ms = 120000;
    wanted.call_timeout_ms = 60000;
    const nmc_status_t s = nmc_store_create(world, &wanted, &store);
    // While somebody lends, nobody gets a store: neither the lender nor who comes meanwhile.
    if (s == NMC_ERR_UNSUPPORTED) return void(store = nullptr);
    if (s != NMC_OK) fail("create", s);
  }
  void detach(nmc_status_t also = NMC_OK) {
    held.clear();  // what is pinned ends with the handle
    if (nmc_status_t s = nmc_store_destroy(store); s != NMC_OK && s != also) fail("destroy", s);
    store = nullptr;
  }
  void leave() {
    if (nmc_status_t s = nmc_world_destroy(world); s != NMC_OK) fail("world_destroy", s);
    world = nullptr;
  }

  static bool verify(const Held& h) {
    const uint64_t* words = static_cast<const uint64_t*>(h.view.data);
    for (uint64_t i = 1; i < h.words; ++i)
      if (words[i] != word_of(h.stamp, i)) return false;
    return words[0] == h.stamp;
  }
  void look_at_held() {
    for (const Held& h : held)
      if (!verify(h)) fail("what is pinned has changed", NMC_ERR_CORRUPT);
  }

  bool accepted(nmc_status_t status) {
    switch (status) {
      case NMC_OK: case NMC_NOT_READY: case NMC_ERR_NOT_FOUND: case NMC_ERR_BUSY: case NMC_ERR_EXISTS: case NMC_ERR_LIMIT:
      case NMC_ERR_NO_SPACE: case NMC_ERR_UNAVAILABLE: case NMC_ERR_TIMEOUT:
        return true;
      case NMC_ERR_STALE: case NMC_ERR_PEER_LOST:
        board().lost.fetch_add(1, std::memory_order_relaxed);
        return true;
      default: return false;
    }
  }

  void read(uint64_t key) {
    const std::string text = name(key);
    uint64_t stamp = 0;
    nmc_status_t status;
    if (random.one_in(2)) {
      nmc_view_t view;
      status = random.one_in(8) ? nmc_store_consume(store, slice(text), &view) : nmc_store_pin(store, slice(text), &view);
      if (status == NMC_OK) {
        bool keep = false;
        if (view.n_extents <= 1) {
          if (!whole(key, static_cast<const uint64_t*>(view.data), view.bytes / 8, &stamp)) fail("a pinned value is torn, foreign or never published", NMC_ERR_CORRUPT);
          keep = held.size() < 4 && random.one_in(6);
        }
        if (keep) {
          held.push_back(Held{view, stamp, view.bytes / 8});
          board().held.fetch_add(1, std::memory_order_relaxed);
        }
        // The control: unpinned, and looked at all the same.
        if (!keep || shared->breaks.load() == 'u')
          if (nmc_status_t s = nmc_store_unpin(store, &view); s != NMC_OK) fail("unpin", s);
      }
    } else {
      size_t size = 0;
      status = nmc_store_get(store, slice(text), buffer.data(), buffer.size() * 8, &size);
      if (status == NMC_OK && !whole(key, buffer.data(), size / 8, &stamp)) fail("a value is torn, foreign or never published", NMC_ERR_CORRUPT);
    }
    if (!accepted(status)) fail("read", status);
    if (status == NMC_OK) board().reads.fetch_add(1, std::memory_order_relaxed);
  }

  void write(uint64_t key) {
    const std::string text = name(key);
    nmc_status_t status;
    if (random.one_in(5)) {
      status = nmc_store_remove(store, slice(text));
    } else {
      nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
      options.preferred_segment = random.one_in(2) ? -1 : static_cast<int32_t>(random.below(RANKS));
      if (random.one_in(2)) options.flags = NMC_PUT_REPLACE;
      const uint64_t n = 2 + random.below(3 * PAGE / 8 - 2);
      buffer[0] = (key + 1) << 40 | (shared->seq.fetch_add(1) + 1);
      for (uint64_t i = 1; i < n; ++i) buffer[i] = word_of(buffer[0], i);
      if (shared->breaks.load() == 'e') std::fill(buffer.begin(), buffer.end(), 0);  // the control
      if (random.one_in(2)) {
        status = nmc_store_put(store, slice(text), buffer.data(), n * 8, &options);
      } else {
        nmc_write_plan_t plan;
        status = nmc_store_open_for_write(store, slice(text), n * 8, &options, &plan);
        if (status == NMC_OK) {
          nmc_extent_t extents[64];
          size_t count = 0, at = 0;
          status = nmc_store_plan_extents(store, &plan, extents, 64, &count);
          for (size_t i = 0; status == NMC_OK && i < count; ++i) {
            std::memcpy(extents[i].ptr, buffer.data() + at, extents[i].bytes);
            at += extents[i].bytes / 8;
          }
          // Some plans are left open by an event, which has to give them back.
          if (board().event.load() == NOTHING || random.one_in(2)) {
            const nmc_status_t ended = status == NMC_OK && !random.one_in(4) ? nmc_store_commit(store, &plan) : nmc_store_abort(store, &plan);
            if (status == NMC_OK) status = ended;
            if (ended == NMC_ERR_UNAVAILABLE || ended == NMC_ERR_TIMEOUT) (void)nmc_store_abort(store, &plan);
          }
        }
      }
      board().writes.fetch_add(1, std::memory_order_relaxed);
    }
    if (!accepted(status)) fail("write", status);
  }

  void work() {
    if (store == nullptr) {
      pause_us(2000);
      if (!lends && random.one_in(20)) attach();
      return;
    }
    if (random.one_in(3)) write(random.below(KEYS));
    else read(random.below(KEYS));
    if (random.one_in(8)) look_at_held();
    if (!held.empty() && random.one_in(60)) {
      const size_t which = random.below(held.size());
      if (!verify(held[which])) fail("what is pinned has changed", NMC_ERR_CORRUPT);
      if (shared->breaks.load() != 'u')
        if (nmc_status_t s = nmc_store_unpin(store, &held[which].view); s != NMC_OK) fail("unpin", s);
      held.erase(held.begin() + static_cast<long>(which));
    }
    // Whose heap was replaced, or who was counted as gone, begins anew.
    if (world != nullptr && board().lost.load(std::memory_order_relaxed) > 40) {
      board().lost.store(0);
      look_at_held();
      detach(NMC_ERR_STALE);
      attach();
    }
  }
  void work_a_while() {
    for (int i = 0; i < 40 && store != nullptr; ++i) work();
  }

  // Does to itself what the driver wants; true if the process is to end.
  bool change(uint32_t event) {
    switch (event) {
      case LEAVE:
        if (store != nullptr) detach();
        leave();
        return true;
      case REJOIN:
        if (store != nullptr) detach();
        leave();
        break;
      case WORLD_FIRST:  // the rank stays until its store is gone
        leave();
        work_a_while();
        if (store != nullptr) detach();
        break;
      case REFUSED_LEAVE:
        if (store != nullptr && nmc_world_finalize(world) != NMC_ERR_BUSY) fail("a rank leaves while its store is open", NMC_OK);
        work_a_while();
        return false;
      case ABORT:
        nmc_world_abort(world);
        leave();
        if (store != nullptr) {
          look_at_held();
          detach(NMC_ERR_CANCELLED);
        }
        break;
      case ABORT_STORE_LATER:
        nmc_world_abort(world);
        for (int i = 0; i < 20 && store != nullptr; ++i) look_at_held(), pause_us(1000);
        if (store != nullptr) detach(NMC_ERR_CANCELLED);
        leave();
        break;
      case STORE_AGAIN:
        if (store != nullptr) detach();
        if (!lends) attach();
        return false;
      default: return false;
    }
    join();
    return false;
  }

  // Everything is at rest: nothing takes memory but what can be read.
  bool check() {
    const double deadline = now_s() + (shared->breaks.load() == 'l' ? 3 : PATIENCE);
    nmc_write_plan_t kept;
    if (shared->breaks.load() == 'l')
      while (nmc_store_open_for_write(store, nmc_slice_t{"leak", 4}, PAGE, nullptr, &kept) != NMC_OK && now_s() < deadline) pause_us(500);
    for (;;) {
      uint64_t pages = 0, objects = 0, bytes = 0;
      uint64_t cursor = 0;
      char text[64];
      size_t length = 0;
      while (nmc_store_next(store, &cursor, text, sizeof text, &length, &bytes) == NMC_OK) {
        pages += (bytes + PAGE - 1) / PAGE;
        ++objects;
      }
      nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
      if (nmc_status_t s = nmc_store_stats(store, nullptr, 0, &stats); s != NMC_OK) fail("stats", s);
      const nmc_store_stats_t& t = stats;
      if (t.bytes_used == pages * PAGE && t.ready_count == objects && t.writing_count == 0 && t.limbo_bytes == 0 && t.quarantined_bytes == 0) return true;
      if (now_s() > deadline)
        return shared->complaint.say("leaked: %" PRIu64 " bytes used for %" PRIu64 " pages of %" PRIu64 " objects; %" PRIu64 " ready, %" PRIu64
                                     " being written, %" PRIu64 " bytes wait for readers, %" PRIu64 " for writers",
                                     t.bytes_used, pages, objects, t.ready_count, t.writing_count, t.limbo_bytes, t.quarantined_bytes), false;
      pause_us(2000);
    }
  }

  int live() {
    join();
    for (;;) {
      if (const uint32_t event = board().event.load(); event != NOTHING && board().wish.load() == RUN) {
        if (change(event)) return 0;
        board().event.store(NOTHING);
      }
      switch (board().wish.load()) {
        case RUN:
          board().state.store(RUNNING);
          work();
          break;
        case PAUSE: {
          if (board().state.load() != PAUSED) {
            look_at_held();
            // All of them begin anew: places and pins come back, whatever has happened.
            if (store != nullptr) detach(NMC_ERR_STALE);
            attach();
            const bool there = store != nullptr && nmc_store_remove(store, nmc_slice_t{"none", 4}) == NMC_ERR_NOT_FOUND;
            if (there) board().state.store(PAUSED);
          }
          pause_us(500);
          break;
        }
        case CHECK:
          if (board().state.load() != CHECKED) board().state.store(check() ? CHECKED : FAILED);
          pause_us(200);
          break;
        default:
          board().state.store(PAUSED);
          if (store != nullptr) detach();
          leave();
          board().state.store(CHECKED);
          return 0;
      }
    }
  }
};

// A master that is none of the ranks.
int run_master(const std::string& dir) {
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
  std::map<std::string, uint64_t> done;
  Random random;
  std::string last;
  bool armed[RANKS + 1] = {};

  explicit Driver(uint64_t seed) : random(seed) {
    for (uint32_t place = 0; place < RANKS + external; ++place) {
      arm(place, "");
      start(place);
    }
  }
  ~Driver() {
    for (pid_t pid : pids)
      if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
      }
  }
  void start(uint32_t place, bool lends = false, uint32_t wish = RUN) {
    Board& board = shared->ranks[place];
    board.state.store(JOINING);
    board.wish.store(wish);
    board.event.store(NOTHING);
    board.lends.store(lends);
    pids[place] = start_member([&] {
      setenv("NMC_CRASH_POINT", ("@" + dir.path + "/arm-" + std::to_string(place)).c_str(), 1);
      return place == RANKS ? run_master(dir.path) : Rank(place, dir.path).live();
    });
  }
  void arm(uint32_t place, const std::string& text) {
    const std::string path = dir.path + "/arm-" + std::to_string(place), fresh = path + ".new";
    FILE* file = std::fopen(fresh.c_str(), "w");
    if (file == nullptr || std::fputs(text.c_str(), file) < 0 || std::fclose(file) != 0) std::abort();
    if (std::rename(fresh.c_str(), path.c_str()) != 0) std::abort();
    armed[place] = !text.empty();
  }
  void disarm() {
    for (uint32_t place = 0; place < RANKS + external; ++place)
      if (armed[place]) arm(place, "");
  }
  bool fail(const char* what) {
    std::fprintf(stderr, "FAIL %s (last: %s): %s\n", what, last.c_str(), shared->complaint.text);
    return false;
  }
  bool anyone_failed() {
    for (uint32_t place = 0; place < RANKS + external; ++place) {
      int status = 0;
      if (pids[place] > 0 && waitpid(pids[place], &status, WNOHANG) == pids[place]) {
        pids[place] = -1;
        if (shared->breaks.load() == 'p' && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
          arm(place, "");
          ++done["died at a point"];
          // It may have died at the last moment before it was told to do something else: that is what the next one does.
          start(place, false, shared->ranks[place].wish.load());
        } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
          shared->complaint.say("rank %u ended by itself with %#x", place, static_cast<unsigned>(status));
          shared->ranks[place].state.store(FAILED);
        }
      }
    }
    return std::any_of(shared->ranks, shared->ranks + RANKS + 1, [](const Board& b) { return b.state.load() == FAILED; });
  }
  template <class Done>
  bool wait(double seconds, Done condition) {
    const double deadline = now_s() + seconds;
    while (!condition()) {
      if (anyone_failed() || now_s() > deadline) return false;
      pause_us(300);
    }
    return !anyone_failed();
  }
  bool all_reach(State state) {
    return wait(2 * PATIENCE, [&] {
      return std::all_of(shared->ranks, shared->ranks + RANKS, [&](const Board& b) { return b.state.load() == state; });
    });
  }
  void wish(Wish what) {
    for (uint32_t rank = 0; rank < RANKS; ++rank) shared->ranks[rank].wish.store(what);
  }
  void kill_and_reap(uint32_t place) {
    kill(pids[place], SIGKILL);
    waitpid(pids[place], nullptr, 0);
    pids[place] = -1;
    if (armed[place]) arm(place, "");
  }
  bool ended(uint32_t place) {
    return wait(2 * PATIENCE, [&] { return anyone_failed() || pids[place] < 0; });
  }

  bool round() {
    if (!all_reach(RUNNING)) return fail("a rank does not run");
    disarm();
    if (shared->breaks.load() == 'p' && !random.one_in(4)) {
      const uint32_t place = static_cast<uint32_t>(random.below(RANKS + external));
      arm(place, std::string(POINTS[random.below(N_POINTS)]) + ":" + std::to_string(1 + random.below(6)));
    }
    pause_us(static_cast<long>(random.below(4000)));
    const uint32_t victim = static_cast<uint32_t>(random.below(RANKS)), master = external ? RANKS : 0;
    const bool lent = random.one_in(6), by_master = victim == master;
    switch (random.below(4)) {
      case 0: {  // killed, perhaps after it was stopped for a while
        last = "kill of " + std::to_string(victim);
        if (random.one_in(3)) {
          kill(pids[victim], SIGSTOP);
          pause_us(static_cast<long>(random.below(60000)));
          if (random.one_in(3)) {
            kill(pids[victim], SIGCONT);
            ++done["stopped"];
            return true;
          }
        }
        kill_and_reap(victim);
        ++done["killed"];
        return come_back(victim, lent && !by_master);
      }
      case 1: {  // the master goes
        last = "kill of the master";
        kill_and_reap(master);
        ++done["master killed"];
        const uint32_t other = 1 + static_cast<uint32_t>(random.below(RANKS - 1));
        if (random.one_in(2)) shared->ranks[other].event.store(1 + static_cast<uint32_t>(random.below(N_EVENTS - 1)));
        pause_us(static_cast<long>(random.below(30000)));
        start(master);
        return settle(other);
      }
      default: {
        const uint32_t event = 1 + static_cast<uint32_t>(random.below(N_EVENTS - 1));
        last = std::string(NAMES[event]) + " of " + std::to_string(victim);
        ++done[NAMES[event]];
        shared->ranks[victim].lends.store(lent && !by_master && event == REJOIN);
        shared->ranks[victim].event.store(event);
        return settle(victim);
      }
    }
  }
  // Waits until what a rank was told is done; a new process comes for one that went.
  bool settle(uint32_t rank) {
    if (!wait(2 * PATIENCE, [&] { return pids[rank] < 0 || shared->ranks[rank].event.load() == NOTHING; })) return fail("an event does not end");
    if (pids[rank] < 0) return come_back(rank, random.one_in(6) && rank != 0);
    return true;
  }
  // A new process takes the rank, perhaps with memory of its own; then one after it has a heap of the library again.
  bool come_back(uint32_t rank, bool lends) {
    start(rank, lends);
    if (!lends) return true;
    ++done["lent"];
    if (!all_reach(RUNNING)) return fail("a rank does not come back");
    pause_us(static_cast<long>(random.below(20000)));
    if (random.one_in(2)) {
      kill_and_reap(rank);
    } else {
      shared->ranks[rank].event.store(LEAVE);
      if (!ended(rank)) return fail("a lender does not leave");
    }
    start(rank);
    return true;
  }

  bool look_at_everything() {
    disarm();
    if (!all_reach(RUNNING)) return fail("a rank does not come back");
    // Where somebody lends there is no store.
    for (uint32_t rank = 0; rank < RANKS; ++rank)
      if (shared->ranks[rank].lending.load() != 0) {
        shared->ranks[rank].lends.store(0);
        shared->ranks[rank].event.store(REJOIN);
        if (!settle(rank)) return false;
      }
    if (!all_reach(RUNNING)) return fail("a rank does not come back");
    wish(PAUSE);
    if (!all_reach(PAUSED)) return fail("a rank does not pause");
    const uint32_t who = static_cast<uint32_t>(random.below(RANKS));
    shared->ranks[who].wish.store(CHECK);
    if (!wait(2 * PATIENCE, [&] { return shared->ranks[who].state.load() == CHECKED; })) return fail("the check");
    wish(RUN);
    return all_reach(RUNNING) || fail("a rank does not go on");
  }

  bool farewell() {
    disarm();
    if (!all_reach(RUNNING)) return fail("a rank does not run");
    // The master last: a rank may be attaching to the store at this moment.
    for (uint32_t rank = RANKS; rank-- > 0;) {
      shared->ranks[rank].wish.store(QUIT);
      if (!ended(rank)) return fail("a rank does not leave");
    }
    if (external) {
      shared->ranks[RANKS].wish.store(QUIT);
      int status = 0;
      waitpid(pids[RANKS], &status, 0);
      pids[RANKS] = -1;
      if (status != 0) return fail("the master does not end");
    }
    for (const char* what : {"changes", "changes+store"})
      if (std::filesystem::exists(dir.path + "/" + what)) return shared->complaint.say("%s is left", what), fail("the directory");
    return true;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 40;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  shared = shared_between_processes<Shared>();
  external = argc > 3 && std::strcmp(argv[3], "external") == 0;
  if (argc > 3 + external) shared->breaks.store(static_cast<uint32_t>(argv[3 + external][0]));
  bool fine = true;
  const double start = now_s();
  {
    Driver driver(seed);
    for (uint64_t i = 1; fine && i <= rounds; ++i) {
      fine = driver.round();
      if (fine && i % 8 == 0) fine = driver.look_at_everything();
    }
    if (fine) fine = driver.look_at_everything() && driver.farewell();
    if (fine && shared->breaks.load() == 'p' && driver.done["died at a point"] == 0) fine = driver.fail("no point was reached");
    for (const auto& [what, n] : driver.done) std::printf("  %-24s %" PRIu64 "\n", what.c_str(), n);
    uint64_t writes = 0, reads = 0, held = 0;
    for (const Board& board : shared->ranks) {
      writes += board.writes.load();
      reads += board.reads.load();
      held += board.held.load();
    }
    std::printf("%" PRIu64 " rounds, %" PRIu64 " writes, %" PRIu64 " reads, %" PRIu64 " pins held for a while; %.1f s\n", rounds, writes, reads,
                held, now_s() - start);
  }
  if (!fine) std::printf("FAIL seed %" PRIu64 "\n", seed);
  else std::printf("PASS\n");
  return fine ? 0 : 1;
}
