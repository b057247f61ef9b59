// Who owns a tier on a machine that will stop, and notes down what it does; and who judges what is found after that. power_loss.cpp says what must be
// true.
#ifndef NMC_CTEST_TIER_POWER_LOSS_HPP
#define NMC_CTEST_TIER_POWER_LOSS_HPP

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdarg>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../support/check.h"
#include "../support/crew.hpp"
#include "../support/value.hpp"

namespace {

constexpr uint32_t WORKERS = 2, KEYS = 24, PAGE = 4096;
constexpr size_t EVENTS = 1 << 14;
constexpr size_t LARGEST = 1 << 20;
constexpr uint64_t ABSENT = 0, WRONG = ~uint64_t{0};

enum Op : uint32_t { PUT, REPLACE, REMOVE, GET, OFFLOAD, SYNC, FLUSH, EVICT, CLOSE, OPS };
constexpr const char* WORDS[OPS] = {"put", "replace", "remove", "get", "offload", "sync", "flush", "evict", "close"};

// A call. `began` and `ended` are of the clock that both sides share; a call without an end was under way.
struct Event {
  Op op;
  uint32_t key;
  uint64_t stamp;  // what was put or read
  uint64_t keys;   // of an offload: those that it was to write and that were there afterwards, a bit each
  uint64_t began;
  std::atomic<uint64_t> ended;
  nmc_status_t status;
};

enum State : uint32_t { NOWHERE, OPENING, OPEN, LOOKED, WORKING, CLOSED };

// What the owner of a round tells.
struct Shared {
  std::atomic<uint64_t> clock;
  std::atomic<uint32_t> state, wish;  // wish: 1 to leave
  std::atomic<nmc_status_t> opened;
  std::atomic<uint64_t> open_us;
  nmc_status_t read[WORKERS][KEYS];
  uint64_t found[WORKERS][KEYS];
  nmc_tier_stats_t stats;
  nmc_tier_verified_t verified;
  std::atomic<uint32_t> log_bytes;
  char log[1 << 14];
  char text[400];
  std::atomic<uint32_t> count[WORKERS];
  Event events[WORKERS][EVENTS];
};
Shared* shared;

uint64_t now() { return shared->clock.fetch_add(1) + 1; }

// How a round's owner is.
struct Setup {
  std::string directory;
  uint32_t backend = 0, flags = 0, eviction = 0, heartbeat_ms = 0, bucket_keys = 0;
  uint64_t capacity = 0, heap = 0, seed = 0, first_stamp = 0;
  bool evicts = false, works = true;
  std::string broken;
  bool through() const { return (flags & NMC_TIER_WRITE_THROUGH) != 0; }
  bool durable() const { return (flags & NMC_TIER_DURABLE_REMOVE) != 0; }
};

std::string key_of(uint32_t key) { return "key number " + std::to_string(key); }

// A stamp says whose value it is, and how long that is.
uint64_t stamp_of(uint64_t number, uint32_t worker, uint32_t key) { return (number * WORKERS + worker) * KEYS + key; }
bool is_of(uint64_t stamp, uint32_t worker, uint32_t key) { return stamp % (WORKERS * KEYS) == worker * KEYS + key; }
size_t bytes_of_stamp(uint64_t stamp) {
  static const size_t sizes[] = {16, 16, 100, 900, 3000, 3700, 4096, 4097, 9000, 20000, 65536, 65537, 200001, LARGEST};
  return sizes[mix(stamp) % (sizeof sizes / sizeof *sizes)];
}

// ------------------------------------------------------------------------------------------------------- the owner --

class Owner {
 public:
  explicit Owner(const Setup& setup) : setup_(setup) {}

  int run() {
    nmc_log_set_callback(keep_line, NMC_LOG_WARN, nullptr);
    nmc_store_config_t config = NMC_STORE_CONFIG_INIT;
    config.heap_bytes = setup_.heap;
    config.page_bytes = PAGE;
    config.world_size = 1;
    config.max_objects = 1024;
    config.flags = NMC_STORE_CHECKSUMS;
    if (nmc_store_create(nullptr, &config, &store_) != NMC_OK) return failed("create");
    for (uint32_t i = 0; i < WORKERS; ++i) {
      if (nmc_store_namespace(store_, slice("worker " + std::to_string(i)), 0, &spaces_[i]) != NMC_OK) return failed("namespace");
    }
    shared->state = OPENING;
    nmc_tier_config_t own = NMC_TIER_CONFIG_INIT;
    own.directory = slice(setup_.directory);
    own.max_objects = 4096;
    own.capacity_bytes = setup_.capacity;
    own.bucket_keys = setup_.bucket_keys;
    own.heartbeat_ms = setup_.heartbeat_ms;
    own.flags = setup_.flags;
    own.backend = setup_.backend;
    own.eviction = setup_.eviction;
    const double began = now_s();
    const nmc_status_t opened = nmc_tier_open(store_, &own, &tier_);
    shared->open_us = static_cast<uint64_t>((now_s() - began) * 1e6);
    shared->opened = opened;
    if (opened != NMC_OK) std::snprintf(shared->text, sizeof shared->text, "%s: %s", nmc_status_name(opened), nmc_last_error_message());
    shared->state = OPEN;
    if (opened != NMC_OK) return wait_for_the_end();
    look();
    if (setup_.works) {
      shared->state = WORKING;
      std::vector<std::thread> workers;
      for (uint32_t i = 0; i < WORKERS; ++i) workers.emplace_back([this, i] { work(i); });
      for (std::thread& worker : workers) worker.join();
    } else {
      while (shared->wish == 0) pause_us(1000);
    }
    noted(0, CLOSE, 0, [&](Event&) { return nmc_tier_close(tier_); });
    for (nmc_store_t* space : spaces_) nmc_store_destroy(space);
    nmc_store_destroy(store_);
    shared->state = CLOSED;
    return wait_for_the_end();
  }

 private:
  static void keep_line(int32_t, const char* text, void*) {
    const size_t bytes = strlen(text);
    const uint32_t at = shared->log_bytes.fetch_add(static_cast<uint32_t>(bytes + 1));
    if (at + bytes + 1 >= sizeof shared->log) return;
    std::memcpy(shared->log + at, text, bytes);
    shared->log[at + bytes] = '\n';
  }
  static int wait_for_the_end() {
    for (;;) pause();
  }
  static int failed(const char* what) {
    std::snprintf(shared->text, sizeof shared->text, "%s: %s", what, nmc_last_error_message());
    return 1;
  }

  // Reads a key; what it is, if it is something that was put there.
  nmc_status_t read(uint32_t worker, uint32_t key, std::vector<unsigned char>& buffer, uint64_t* stamp) {
    const std::string name = key_of(key);
    size_t bytes = 0;
    const nmc_status_t status = nmc_store_get(spaces_[worker], slice(name), buffer.data(), buffer.size(), &bytes);
    *stamp = ABSENT;
    if (status != NMC_OK) return status;
    std::memcpy(stamp, buffer.data(), 8);
    if (bytes < 16 || !is_of(*stamp, worker, key) || bytes != bytes_of_stamp(*stamp) || !is_value(*stamp, 8, buffer.data() + 8, bytes - 8))
      *stamp = WRONG;
    return status;
  }

  // What is there after the restart.
  void look() {
    std::vector<unsigned char> buffer(LARGEST + 1);
    for (uint32_t worker = 0; worker < WORKERS; ++worker)
      for (uint32_t key = 0; key < KEYS; ++key) shared->read[worker][key] = read(worker, key, buffer, &shared->found[worker][key]);
    shared->verified = NMC_TIER_VERIFIED_INIT;
    shared->stats = NMC_TIER_STATS_INIT;
    nmc_tier_verify(tier_, nullptr, nullptr, &shared->verified);
    nmc_tier_stats(tier_, &shared->stats);
    shared->state = LOOKED;
  }

  template <class Call>
  void noted(uint32_t worker, Op op, uint32_t key, Call call) {
    const uint32_t at = shared->count[worker].load();
    Event& event = shared->events[worker][at];
    event.op = op;
    event.key = key;
    event.stamp = event.keys = 0;
    event.ended = 0;
    if (op == PUT || op == REPLACE) event.stamp = stamp_of(setup_.first_stamp + at, worker, key);
    event.began = now();
    shared->count[worker] = at + 1;
    event.status = call(event);
    event.ended = now();
  }

  Op drawn(uint32_t done, Random& random) const {
    if (setup_.broken == "put") return random.one_in(3) ? GET : PUT;
    if (setup_.broken == "remove") return done < 30 ? PUT : done == 30 ? OFFLOAD : REMOVE;
    const uint64_t dice = random.below(1000);
    if (dice < 280) return PUT;
    if (dice < 480) return REPLACE;
    if (dice < 590) return REMOVE;
    if (dice < 790) return GET;
    if (dice < 890) return OFFLOAD;
    if (dice < 950) return SYNC;
    if (dice < 952) return FLUSH;
    return setup_.evicts && dice < 962 ? EVICT : GET;
  }

  void work(uint32_t worker) {
    Random random(setup_.seed * WORKERS + worker);
    std::vector<unsigned char> buffer(LARGEST + 1);
    nmc_store_t* const space = spaces_[worker];
    // An offload of the other one would sync what this one has removed.
    const bool idle = setup_.broken == "remove" && worker != 0;
    while (shared->wish == 0 && !idle && shared->count[worker].load() < EVENTS - 1) {
      const Op op = drawn(shared->count[worker].load(), random);
      // Of the control something stays, so that no bucket is over, which would be written down and synced.
      const uint32_t key = static_cast<uint32_t>(random.below(setup_.broken == "remove" && op == REMOVE ? KEYS / 2 : KEYS));
      const std::string name = key_of(key);
      noted(worker, op, key, [&](Event& event) {
        switch (op) {
          case PUT:
          case REPLACE: {
            const size_t bytes = bytes_of_stamp(event.stamp);
            std::memcpy(buffer.data(), &event.stamp, 8);
            make_value(event.stamp, 8, buffer.data() + 8, bytes - 8);
            nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
            if (op == REPLACE) options.flags |= NMC_PUT_REPLACE;
            return nmc_store_put(space, slice(name), buffer.data(), bytes, &options);
          }
          case REMOVE: return nmc_store_remove(space, slice(name));
          case GET: return read(worker, key, buffer, &event.stamp);
          case OFFLOAD: return offload(worker, random, event);
          case SYNC: return nmc_tier_sync(tier_);
          case FLUSH: return nmc_store_remove_all(space);
          default: return nmc_tier_evict(tier_, random.below(8 << 20), nullptr);
        }
      });
      // Some memory is given up, and what is there is brought back: that says nothing, and changes what is where.
      if (setup_.broken.empty() && random.one_in(80)) nmc_store_evict_until_below(store_, 0, random.one_in(2) ? 0 : 50);
      if (setup_.broken.empty() && random.one_in(60)) {
        const nmc_slice_t one = slice(name);
        nmc_tier_prefetch(tier_, &one, 1, nullptr);
      }
      take_turns(random);
    }
    while (shared->wish == 0) pause_us(1000);
  }

  // Everything, or the keys of this worker that somebody draws. The handle of the tier is that of the store's own namespace, so keys are named
  // through one of the worker's.
  nmc_status_t offload(uint32_t worker, Random& random, Event& event) {
    uint64_t wanted = ~uint64_t{0};
    nmc_status_t status;
    if (random.one_in(2)) {
      status = nmc_tier_offload(tier_, nullptr, 0, nullptr);
    } else {
      nmc_tier_t* handle = nullptr;
      nmc_tier_config_t any = NMC_TIER_CONFIG_INIT;
      status = nmc_tier_open(spaces_[worker], &any, &handle);
      if (status != NMC_OK) return status;
      wanted = random.next();
      std::vector<std::string> names;
      for (uint32_t key = 0; key < KEYS; ++key)
        if ((wanted >> key & 1) != 0) names.push_back(key_of(key));
      std::vector<nmc_slice_t> keys;
      for (const std::string& name : names) keys.push_back(slice(name));
      status = nmc_tier_offload(handle, keys.data(), keys.size(), nullptr);
      nmc_tier_close(handle);
    }
    for (uint32_t key = 0; key < KEYS && status == NMC_OK; ++key) {
      const std::string name = key_of(key);
      uint32_t state = NMC_OBJECT_ABSENT;
      if ((wanted >> key & 1) == 0 || nmc_store_exists(spaces_[worker], slice(name), &state) != NMC_OK) continue;
      if (state == NMC_OBJECT_READY || state == NMC_OBJECT_ON_DISK) event.keys |= uint64_t{1} << key;
    }
    return status;
  }

  Setup setup_;
  nmc_store_t* store_ = nullptr;
  nmc_store_t* spaces_[WORKERS] = {};
  nmc_tier_t* tier_ = nullptr;
};

// -------------------------------------------------------------------------------------------------------- the judge --

// What may be found under a key after a restart, and what it stands for as long as nobody ends: `sure` if that is known.
struct Key {
  std::set<uint64_t> may = {ABSENT};
  uint64_t value = ABSENT;
  bool sure = true;
  bool is_safe() const { return may.size() == 1 && value != ABSENT && may.count(value) != 0; }
};

class Judge {
 public:
  // What the process that began anew has found; false if that cannot be.
  bool look(const Setup& setup) {
    setup_ = setup;
    if (shared->stats.torn != 0 || shared->verified.corrupt != 0 || shared->verified.unreadable != 0)
      complain("%" PRIu64 " buckets are torn, %" PRIu64 " values corrupt, %" PRIu64 " unreadable", shared->stats.torn, shared->verified.corrupt,
               shared->verified.unreadable);
    for (uint32_t worker = 0; worker < WORKERS; ++worker) {
      for (uint32_t at = 0; at < KEYS; ++at) {
        Key& key = keys_[worker][at];
        const uint64_t found = shared->found[worker][at];
        const nmc_status_t status = shared->read[worker][at];
        if (status != NMC_OK && status != NMC_ERR_NOT_FOUND) {
          complain("%s can not be read: %s", name(worker, at).c_str(), nmc_status_name(status));
        } else if (found == WRONG) {
          complain("%s: its bytes are those of nothing that was put there", name(worker, at).c_str());
        } else if (key.may.count(found) == 0) {
          wrong(worker, at, key, found);
        }
        safe_ += key.is_safe();
        gone_ += key.value == ABSENT && key.may.size() == 1;
        doubtful_ += key.may.size() > 1;
        lost_ += key.value != ABSENT && found != key.value;
        back_ += key.value == ABSENT && found != ABSENT;
        key = Key{{found}, found, true};
      }
    }
    return complaints_ == 0;
  }

  // What the owner did until it ended; `stopped` is when its disk was stopped.
  bool follow(const Setup& setup, uint64_t stopped) {
    setup_ = setup;
    evicting_ = 0;
    evicted_ = 0;
    if (setup.eviction != NMC_EVICT_NONE) all_may(ABSENT);
    struct Moment {
      uint64_t at;
      uint32_t worker;
      const Event* event;
      bool end;
    };
    std::vector<Moment> moments;
    for (uint32_t worker = 0; worker < WORKERS; ++worker) {
      past_[worker].push_back({stopped, KEYS, "the disk is stopped at " + std::to_string(stopped)});
      for (uint32_t i = 0; i < shared->count[worker].load(); ++i) {
        const Event& event = shared->events[worker][i];
        remember(worker, event);
        moments.push_back({event.began, worker, &event, false});
        if (const uint64_t ended = event.ended.load(); ended != 0) moments.push_back({ended, worker, &event, true});
      }
    }
    std::sort(moments.begin(), moments.end(), [](const Moment& a, const Moment& b) { return a.at < b.at; });
    for (const Moment& moment : moments) {
      if (!moment.end) {
        begin(moment.worker, *moment.event);
        continue;
      }
      ++calls_[moment.event->op];
      end(moment.worker, *moment.event, moment.at > stopped);
    }
    // Whoever comes next knows only what is certain.
    for (auto& keys : keys_) {
      for (Key& key : keys) {
        key.sure = key.may.size() == 1;
        if (key.sure) key.value = *key.may.begin();
      }
    }
    return complaints_ == 0;
  }

  // A directory that is empty.
  void forget() {
    for (auto& keys : keys_)
      for (Key& key : keys) key = Key();
    for (auto& past : past_) past.clear();
  }

  uint64_t safe() const {
    uint64_t safe = 0;
    for (const auto& keys : keys_) safe += std::count_if(std::begin(keys), std::end(keys), [](const Key& key) { return key.is_safe(); });
    return safe;
  }
  bool complained() const { return complaints_ != 0; }
  uint64_t all_safe() const { return safe_; }
  void print() const {
    printf("%" PRIu64 " values that were safe were there, %" PRIu64 " keys that were gone were not; of %" PRIu64 " in doubt %" PRIu64
           " lost their last value and %" PRIu64 " that were removed came back\n", safe_, gone_, doubtful_, lost_, back_);
    printf("calls:");
    for (uint32_t op = 0; op < OPS; ++op) printf(" %" PRIu64 " %s%s", calls_[op], WORDS[op], op + 1 == OPS ? "\n" : ",");
  }

  __attribute__((format(printf, 2, 3))) void complain(const char* format, ...) {
    if (++complaints_ > MOST) return;
    va_list arguments;
    va_start(arguments, format);
    printf("FAIL ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
  }

 private:
  static std::string name(uint32_t worker, uint32_t key) { return "worker " + std::to_string(worker) + ", key " + std::to_string(key); }

  void wrong(uint32_t worker, uint32_t at, const Key& key, uint64_t found) {
    const std::string who = name(worker, at);
    if (found == ABSENT) complain("%s: value %" PRIu64 " was acknowledged as safe and is lost", who.c_str(), key.value);
    else if (key.may.size() == 1 && key.may.count(ABSENT) != 0) complain("%s: value %" PRIu64 " came back, which was removed", who.c_str(), found);
    else complain("%s: value %" PRIu64 " was found, which is not what it can stand for", who.c_str(), found);
    if (complaints_ > MOST) return;
    std::string may;
    for (const uint64_t one : key.may) may += " " + (one == ABSENT ? "nothing" : std::to_string(one));
    printf("     it may be:%s\n", may.c_str());
    for (const Past& past : past_[worker]) {
      // What concerns all keys is of no use from long ago.
      if (past.key == at || (past.key == KEYS && past.at + 2000 > shared->clock)) printf("     %s\n", past.text.c_str());
    }
  }

  // What is told of a call when something is wrong.
  struct Past {
    uint64_t at;
    uint32_t key;
    std::string text;
  };
  void remember(uint32_t worker, const Event& event) {
    char text[160];
    const uint64_t ended = event.ended;
    std::snprintf(text, sizeof text, "%" PRIu64 "..%" PRIu64 " %s %" PRIu64 " %s", event.began, ended, WORDS[event.op], event.stamp,
                  ended == 0 ? "" : nmc_status_name(event.status));
    past_[worker].push_back({event.began, event.op > GET ? KEYS : event.key, text});
  }

  void all_may(uint64_t value) {
    for (auto& keys : keys_)
      for (Key& key : keys) key.may.insert(value);
  }

  // It is on disk, and safe; what may be evicted may be gone.
  void is_safe(Key& key, const Event& event) {
    const bool stays = setup_.eviction == NMC_EVICT_NONE && evicting_ == 0 && evicted_ < event.began;
    key.may = {key.value};
    if (!stays) key.may.insert(ABSENT);
  }

  // What was replaced or removed by now does not come back.
  static void is_settled(Key& key) {
    if (!key.sure) return;
    const bool safe = key.is_safe();
    key.may = {key.value};
    if (!safe) key.may.insert(ABSENT);
  }

  void begin(uint32_t worker, const Event& event) {
    Key& key = keys_[worker][event.key];
    switch (event.op) {
      case REPLACE: key.may.insert(ABSENT); [[fallthrough]];
      case PUT: key.may.insert(event.stamp); return;
      case REMOVE: key.may.insert(ABSENT); return;
      case FLUSH:
        for (Key& one : keys_[worker]) one.may.insert(ABSENT);
        return;
      case EVICT:
        ++evicting_;
        return all_may(ABSENT);
      default: return;
    }
  }

  // `late`: when the disk was being stopped, so that it may be the reason of a failure. Nobody would have heard of that call any more, and what it says
  // of safety does not count: a sync that is under way when an ext4 is stopped may return 0 for what is lost (a plain program sees it, too, with
  // fdatasync of a file with preallocated space).
  void end(uint32_t worker, const Event& event, bool late) {
    Key& key = keys_[worker][event.key];
    const std::string who = std::string(WORDS[event.op]) + " of " + name(worker, event.key);
    const nmc_status_t status = event.status;
    const bool disk = late && (status == NMC_ERR_IO || status == NMC_ERR_UNAVAILABLE || status == NMC_ERR_CANCELLED);
    const auto odd = [&](const char* what) { complain("%s: %s: %s", who.c_str(), what, nmc_status_name(status)); };
    switch (event.op) {
      case PUT:
      case REPLACE:
        if (status == NMC_OK) {
          key.value = event.stamp;
          key.sure = true;
          if ((setup_.through() || setup_.broken == "put") && !late) is_safe(key, event);
          else if (event.op == REPLACE && setup_.durable() && !late) key.may = {event.stamp, ABSENT};
          else key.may.insert({event.stamp, ABSENT});
        } else if (status == NMC_ERR_EXISTS && event.op == PUT) {
          if (key.sure && key.value == ABSENT) odd("nothing is there");
          key.may.erase(event.stamp);
        } else if (disk || status == NMC_ERR_NO_SPACE || status == NMC_ERR_BUSY || status == NMC_ERR_STALE) {
          key.may.insert({event.stamp, ABSENT});
          key.sure = false;
        } else {
          odd("it fails");
        }
        return;
      case REMOVE:
        if (status == NMC_ERR_NOT_FOUND) {
          // Nothing may have been evicted from memory only.
          if (key.sure && key.value != ABSENT && is_certain(key)) odd("its value is safe");
          return;
        }
        if (status != NMC_OK && !disk) return odd("it fails");
        key.may.insert(ABSENT);
        if (status == NMC_OK && !late && (setup_.durable() || setup_.broken == "remove")) key.may = {ABSENT};
        key.value = ABSENT;
        key.sure = status == NMC_OK || status == NMC_ERR_IO;  // of which it is said that it takes effect
        return;
      case GET:
        if (status == NMC_ERR_NOT_FOUND) {
          if (key.sure && key.value != ABSENT && is_certain(key)) odd("its value is safe");
        } else if (status != NMC_OK) {
          if (!disk) odd("it fails");
        } else if (event.stamp == WRONG) {
          complain("%s: its bytes are those of nothing that was put there", who.c_str());
        } else if (key.sure ? event.stamp != key.value : key.may.count(event.stamp) == 0) {
          complain("%s: %" PRIu64 " is read instead of %" PRIu64, who.c_str(), event.stamp, key.value);
        } else {
          key.value = event.stamp;
          key.sure = true;
        }
        return;
      case OFFLOAD:
        if (status != NMC_OK) {
          if (!disk && status != NMC_ERR_NO_SPACE) odd("it fails");
          return;
        }
        for (uint32_t at = 0; at < KEYS && !late; ++at) {
          Key& one = keys_[worker][at];
          if ((event.keys >> at & 1) != 0 && one.sure && one.value != ABSENT) is_safe(one, event);
        }
        return;
      case SYNC:
      case CLOSE:
        if (status != NMC_OK) {
          if (!disk) odd("it fails");
          return;
        }
        // Of a close all others have returned; otherwise this worker knows of its own calls only.
        for (uint32_t other = 0; other < WORKERS && !late; ++other) {
          if (other == worker || event.op == CLOSE) std::for_each(std::begin(keys_[other]), std::end(keys_[other]), is_settled);
        }
        return;
      case FLUSH:
        if (status != NMC_OK && !disk) return odd("it fails");
        for (Key& one : keys_[worker]) {
          one.value = ABSENT;
          one.sure = status == NMC_OK || status == NMC_ERR_IO;
          if (status == NMC_OK && !late) one.may = {ABSENT};
        }
        return;
      default:
        --evicting_;
        evicted_ = event.ended;
        if (status != NMC_OK && !disk && status != NMC_ERR_NO_SPACE) odd("it fails");
    }
  }
  static bool is_certain(const Key& key) { return key.may.count(ABSENT) == 0; }

  static constexpr uint64_t MOST = 4;  // all the others are of no more use
  Setup setup_;
  Key keys_[WORKERS][KEYS];
  std::vector<Past> past_[WORKERS];
  uint32_t evicting_ = 0;
  uint64_t evicted_ = 0;  // when the last one ended
  uint64_t complaints_ = 0, safe_ = 0, gone_ = 0, doubtful_ = 0, lost_ = 0, back_ = 0;
  uint64_t calls_[OPS] = {};
};

}  // namespace

#endif
