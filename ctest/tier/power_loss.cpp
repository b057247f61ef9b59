// A machine that stops at any moment, again and again, and what the disk has then. The owner of a tier puts, replaces, removes, flushes,
// offloads, syncs and evicts, with two threads, in a directory of a real ext4, which is stopped under it (EXT4_IOC_SHUTDOWN: what was
// not synced is lost, as if the power had failed). Then it is mounted again, and a new process opens the tier and reads every key, before it goes on
// with the next round. All that the owner does it notes down, before and after each call, in memory that outlives it.
//
// What was acknowledged as safe from a power loss before the stop is found, byte for byte: a put that is written through, what was in memory when an
// offload began, if that said OK. What was removed safely (with NMC_TIER_DURABLE_REMOVE, or before a sync, or by a flush) does not come
// back. Everything else may be there or not; but what is found was put under this key and may be what it stood for. All this holds while
// the owner runs, too, where every value is known.
// usage: power_loss ROUNDS [SEED] [bucket|file|offset|put|remove]
//   bucket, file, offset: only this backend. With `put` every put, with `remove` every removal counts as safe when it has returned, though
//   nobody has synced it: the check must see that it is not.
#include "../support/ext4.hpp"
#include "power_loss.hpp"

namespace {

constexpr double PATIENCE = 120;
constexpr uint32_t BACKENDS[] = {NMC_TIER_BACKEND_BUCKET, NMC_TIER_BACKEND_FILE, NMC_TIER_BACKEND_OFFSET};
constexpr const char* BACKEND_WORDS[] = {"bucket", "file", "offset"};
constexpr const char* MOUNTS[] = {"", "data=writeback", "data=journal"};

// When the machine stops.
enum When : uint32_t { ANY_TIME, IN_A_CALL, WHILE_IT_OPENS, AFTER_ITS_CLOSE };

class Rounds {
 public:
  Rounds(uint32_t rounds, uint64_t seed, const std::string& word) : rounds_(rounds), random_(seed) {
    only_ = -1;
    for (int i = 0; i < 3; ++i)
      if (word == BACKEND_WORDS[i]) only_ = i;
    if (only_ < 0) broken_ = word;
  }
  ~Rounds() { end_owner(); }

  bool run() {
    uint32_t life = 0;
    for (uint32_t round = 1; round <= rounds_; ++round) {
      if (life-- == 0) {
        if (disk_ != nullptr && !last_look()) return false;
        begin_anew();
        life = rounds_ <= 12 ? (rounds_ - 1) / 3 : static_cast<uint32_t>(2 + random_.below(12));
      }
      if (!this->round(round)) return false;
    }
    return last_look();
  }
  const Judge& judge() const { return judge_; }

 private:
  void begin_anew() {
    disk_.reset();
    const size_t backend = only_ >= 0 ? static_cast<size_t>(only_) : lives_ % 3;
    setup_.backend = BACKENDS[backend];
    setup_.broken = broken_;
    const char* mount = MOUNTS[lives_ / 3 % 3];
    const uint32_t sector = lives_ % 2 == 0 ? 512 : 4096;
    ++lives_;
    disk_ = std::make_unique<Ext4>(128, mount, sector);
    setup_.directory = disk_->path() + "/tier";
    judge_.forget();
    printf("a new file system: %s, sectors of %u; backend %s\n", *mount == 0 ? "data=ordered" : mount, sector, BACKEND_WORDS[backend]);
  }

  void draw_setup() {
    setup_.seed = random_.next();
    setup_.flags = 0;
    setup_.eviction = NMC_EVICT_NONE;
    setup_.evicts = random_.one_in(3);
    setup_.heap = random_.one_in(2) ? 8 << 20 : 40 << 20;
    setup_.capacity = setup_.backend == NMC_TIER_BACKEND_OFFSET ? 48 << 20 : 0;
    setup_.bucket_keys = static_cast<uint32_t>(random_.one_in(2) ? 4 + random_.below(8) : 0);
    setup_.heartbeat_ms = static_cast<uint32_t>(random_.one_in(2) ? 3 : 0);
    setup_.first_stamp = (next_stamp_ += EVENTS);
    setup_.works = true;
    if (random_.one_in(2)) setup_.flags |= NMC_TIER_NO_URING;
    if (random_.one_in(4)) setup_.flags |= NMC_TIER_NO_DIRECT;
    if (setup_.backend == NMC_TIER_BACKEND_BUCKET && random_.one_in(3)) setup_.flags |= NMC_TIER_META;
    if (!broken_.empty()) {
      setup_.flags |= NMC_TIER_PAUSED;
      setup_.heartbeat_ms = setup_.bucket_keys = 0;
      setup_.heap = 64 << 20;
      return;
    }
    if (random_.one_in(3)) setup_.flags |= NMC_TIER_WRITE_THROUGH;
    if (random_.one_in(3)) setup_.flags |= NMC_TIER_DURABLE_REMOVE;
    if (random_.one_in(4)) setup_.flags |= NMC_TIER_PAUSED;
    if (random_.one_in(5)) {
      setup_.eviction = random_.one_in(3) ? NMC_EVICT_LRU : NMC_EVICT_FIFO;
      if (setup_.backend != NMC_TIER_BACKEND_OFFSET) setup_.capacity = 6 << 20;
    }
  }

  void start_owner() {
    shared->state = NOWHERE;
    shared->wish = 0;
    shared->opened = NMC_OK;
    shared->log_bytes = 0;
    shared->text[0] = 0;
    std::memset(shared->log, 0, sizeof shared->log);
    for (auto& count : shared->count) count = 0;
    owner_ = start_member([this] { return Owner(setup_).run(); });
  }
  void end_owner() {
    if (owner_ <= 0) return;
    kill(owner_, SIGKILL);
    waitpid(owner_, nullptr, 0);
    owner_ = -1;
  }
  // Waits until the owner has come so far; false, with a complaint, when it has ended or hangs.
  bool await(State state) {
    const double deadline = now_s() + PATIENCE;
    while (shared->state < state) {
      int status = 0;
      if (waitpid(owner_, &status, WNOHANG) == owner_) {
        owner_ = -1;
        return judge_.complain("the owner has ended by itself: %d; %s", status, shared->text), false;
      }
      if (now_s() > deadline) return judge_.complain("the owner hangs in state %u; %s", shared->state.load(), shared->text), false;
      pause_us(200);
    }
    return true;
  }

  bool await_calls(uint32_t n) {
    const double deadline = now_s() + PATIENCE;
    while (shared->count[0] < n) {
      if (now_s() > deadline) return judge_.complain("the owner hangs"), false;
      pause_us(1000);
    }
    return true;
  }

  // What is looked for is a call that waits for the disk.
  bool is_in(Op op) const {
    for (uint32_t worker = 0; worker < WORKERS; ++worker) {
      const uint32_t count = shared->count[worker].load();
      if (count == 0) continue;
      const Event& event = shared->events[worker][count - 1];
      if (event.op == op && event.ended.load() == 0) return true;
    }
    return false;
  }

  bool opened_and_looked() {
    if (!await(OPEN)) return false;
    if (shared->opened != NMC_OK) return judge_.complain("the tier can not be opened: %s", shared->text), false;
    return await(LOOKED) && judge_.look(setup_);
  }
  // Nothing is left of what was under way.
  void check_names() {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(setup_.directory)) {
      const std::string name = entry.path().filename();
      for (const char* end : {".tmp", ".damaged"}) {
        const size_t bytes = strlen(end);
        if (name.size() > bytes && name.compare(name.size() - bytes, bytes, end) == 0) judge_.complain("%s was left there", entry.path().c_str());
      }
    }
  }

  bool round(uint32_t number) {
    draw_setup();
    const uint64_t dice = random_.below(10);
    const When when = !broken_.empty() || dice < 3 ? ANY_TIME : dice < 7 ? IN_A_CALL : dice < 9 ? WHILE_IT_OPENS : AFTER_ITS_CLOSE;
    const Op ops[] = {OFFLOAD, OFFLOAD, SYNC, FLUSH, REMOVE, PUT, REPLACE, setup_.evicts ? EVICT : OFFLOAD};
    const Op in = ops[random_.below(sizeof ops / sizeof *ops)];
    const bool first_killed = when != AFTER_ITS_CLOSE && random_.one_in(5);
    const auto how = broken_.empty() && random_.one_in(4) ? Ext4::FLUSHED : Ext4::LOST;
    printf("%3u:", number);
    for (const auto& [flag, word] : {std::make_pair(NMC_TIER_WRITE_THROUGH, "write-through"), {NMC_TIER_DURABLE_REMOVE, "durable removals"},
                                     {NMC_TIER_PAUSED, "paused"}, {NMC_TIER_META, "meta"}, {NMC_TIER_NO_DIRECT, "no O_DIRECT"}, {NMC_TIER_NO_URING, "no io_uring"}})
      if ((setup_.flags & static_cast<uint32_t>(flag)) != 0) printf(" %s,", word);
    if (setup_.eviction != NMC_EVICT_NONE) printf(" evicts by %s,", setup_.eviction == NMC_EVICT_FIFO ? "FIFO" : "LRU");
    const char* const whens[] = {"at any time", "in a call of ", "while it opens", "after its close"};
    printf(" %s%s%s%s: ", whens[when], when == IN_A_CALL ? WORDS[in] : "", first_killed ? ", killed before" : "",
           how == Ext4::FLUSHED ? ", journal flushed" : "");
    fflush(stdout);

    start_owner();
    if (when == WHILE_IT_OPENS) {
      if (!await(OPENING)) return end_badly();
      // Longer and longer: it is not known how long it takes.
      pause_us(static_cast<long>(random_.below(open_us_ + open_us_ / 4 + 1000)));
    } else {
      if (!opened_and_looked()) return end_badly();
      open_us_ = std::max(shared->open_us.load(), open_us_ / 2);
      if (!await(WORKING)) return end_badly();
      if (broken_.empty()) pause_us(static_cast<long>(30000 + random_.below(300000)));
      else if (!await_calls(60)) return end_badly();
      if (when == IN_A_CALL) {
        const double deadline = now_s() + 0.5;
        while (!is_in(in) && now_s() < deadline) pause_us(20);
        if (random_.one_in(2)) pause_us(static_cast<long>(random_.below(4000)));
      }
      if (when == AFTER_ITS_CLOSE) {
        shared->wish = 1;
        if (!await(CLOSED)) return end_badly();
      }
    }
    if (first_killed) end_owner();
    if (shared->state >= OPEN && shared->opened != NMC_OK) {
      judge_.complain("the tier can not be opened: %s", shared->text);
      return end_badly();
    }
    const uint64_t stopped = now();
    disk_->stop(how);
    // What it hears from a disk that is no more.
    if (owner_ > 0) pause_us(static_cast<long>(random_.below(20000)));
    // It may have opened just before.
    if (owner_ > 0 && when == WHILE_IT_OPENS && !await(OPEN)) return end_badly();
    end_owner();
    if (shared->opened != NMC_OK && shared->opened != NMC_ERR_IO) judge_.complain("the tier can not be opened: %s", shared->text);
    const bool works = shared->state >= WORKING;
    if (when == WHILE_IT_OPENS && shared->state >= LOOKED && !look_if_all_was_read()) return end_badly();
    if (works && !judge_.follow(setup_, stopped)) return end_badly();
    // Otherwise nothing that is on it says anything of the tier.
    if (!disk_->sound()) return judge_.complain("the file system itself is damaged"), end_badly();
    disk_->mount_again();
    uint64_t calls = 0;
    for (const auto& count : shared->count) calls += count;
    printf("%" PRIu64 " calls, %" PRIu64 " values are safe\n", calls, judge_.safe());
    return true;
  }
  // One that has opened before its disk was stopped has read what there was, or was told that it cannot be read.
  bool look_if_all_was_read() {
    if (shared->opened != NMC_OK) return true;
    for (const auto& statuses : shared->read)
      for (const nmc_status_t status : statuses)
        if (status == NMC_ERR_IO || status == NMC_ERR_UNAVAILABLE) return true;
    if (shared->verified.unreadable != 0) return true;
    return judge_.look(setup_);
  }

  // Whoever comes last finds everything, and closes what it has opened.
  bool last_look() {
    draw_setup();
    setup_.works = false;
    start_owner();
    if (!opened_and_looked()) return end_badly();
    shared->wish = 1;
    if (!await(CLOSED)) return end_badly();
    end_owner();
    check_names();
    return judge_.follow(setup_, ~uint64_t{0}) && !judge_.complained();
  }

  bool end_badly() {
    end_owner();
    if (!judge_.complained()) judge_.complain("the round has ended early");
    printf("backend %s, seed of the round %" PRIu64 "; the log of the last owner:\n%.*s\n", BACKEND_WORDS[setup_.backend], setup_.seed,
           static_cast<int>(sizeof shared->log), shared->log);
    return false;
  }

  uint32_t rounds_;
  Random random_;
  int only_;
  std::string broken_;
  std::unique_ptr<Ext4> disk_;
  uint32_t lives_ = 0;
  uint64_t next_stamp_ = 0, open_us_ = 0;
  Setup setup_;
  Judge judge_;
  pid_t owner_ = -1;
};

}  // namespace

int main(int argc, char** argv) {
  const uint32_t rounds = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 9;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const std::string word = argc > 3 ? argv[3] : "";
  shared = shared_between_processes<Shared>();
  promise("what_is_acknowledged_as_safe_is_there_after_a_power_loss_and_what_is_removed_safely_is_not");
  printf("%u rounds, seed %" PRIu64 "\n", rounds, seed);
  const double start = now_s();
  Rounds all(rounds, seed, word);
  CHECK(all.run());
  all.judge().print();
  CHECK(all.judge().all_safe() > 0);
  printf("%.1f s\n", now_s() - start);
  return finish();
}
