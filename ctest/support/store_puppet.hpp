// Ranks that are clients of the store of their world, driven like the puppets in puppet.hpp.
#ifndef NMC_CTEST_SUPPORT_PUPPET_HPP
#define NMC_CTEST_SUPPORT_PUPPET_HPP

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "store_check.hpp"
#include "puppet.hpp"

// What a test may want to be different.
struct StoreWish {
  uint64_t pages = 64;
  int32_t watchdog_ms = -1;
  int64_t call_timeout_ms = -1;
  uint32_t page_bytes = kPage;
  uint32_t max_objects = 0;
  bool external = false;
  uint32_t least = 0;  // ranks that must be there; 0 for all
};

inline Setup setup_of(int32_t rank, uint32_t size, const StoreWish& wish) {
  Setup setup;
  setup.rank = rank;
  setup.size = size;
  setup.least = wish.least;
  setup.heap_bytes = wish.pages * wish.page_bytes;
  setup.external = wish.external;
  return setup;
}

inline nmc_store_config_t client_config(const StoreWish& wish) {
  nmc_store_config_t config = NMC_STORE_CONFIG_INIT;
  config.page_bytes = wish.page_bytes;
  config.max_objects = wish.max_objects;
  config.watchdog_ms = wish.watchdog_ms;
  config.attach_timeout_ms = 40000;
  config.call_timeout_ms = wish.call_timeout_ms;
  return config;
}

// What a client of a store can do. Values are given by size and seed; plans and views are known by the key.
class Client {
 public:
  Client(nmc_world_t* world, const StoreWish& wish) : world_(world), wish_(wish) {}
  ~Client() { stop_reading(); }

  nmc_store_t* store() const { return store_; }

  bool act(const std::string& verb, std::istringstream& words, std::ostringstream& answer) {
    const auto word = [&words] {
      std::string text;
      words >> text;
      return text;
    };
    const auto number = [&words] {
      long long value = 0;
      words >> value;
      return value;
    };
    if (verb == "create") {  // the store of the world
      const nmc_store_config_t config = client_config(wish_);
      answer << outcome(nmc_store_create(world_, &config, &store_));
    } else if (verb == "leave") {  // the store, not the world
      stop_reading();
      answer << outcome(nmc_store_destroy(store_));
      store_ = nullptr;
    } else if (verb == "leave_and_look") {  // leave_and_look <path>: whether it is gone when destroy returns
      const std::string path = word();
      const nmc_status_t left = nmc_store_destroy(std::exchange(store_, nullptr));
      const bool gone = access(path.c_str(), F_OK) != 0;
      answer << (left != NMC_OK ? outcome(left) : gone ? "gone" : "there");
    } else if (verb == "leave_and_exit") {  // both, and the process ends at the same instant
      const nmc_status_t left = nmc_store_destroy(store_);
      const nmc_status_t destroyed = nmc_world_destroy(world_);
      _exit(left != NMC_OK || destroyed != NMC_OK);
    } else if (verb == "put") {  // put <key> <size> <seed> [<rank> [<flags> [<wait_ms> [<retain>]]]]
      const std::string key = word();
      const std::string value = value_of_next(number);
      const nmc_put_options_t options = options_of_next(words);
      answer << outcome(put(store_, key, value, &options));
    } else if (verb == "puts") {  // puts <prefix> <n> <size>: the seed is the number; how many went well
      const std::string prefix = word();
      const long long n = number(), size = number();
      long long done = 0;
      for (long long i = 0; i < n; ++i) {
        const std::string value = value_of(static_cast<uint64_t>(i), static_cast<size_t>(size));
        done += put(store_, prefix + std::to_string(i), value) == NMC_OK;
      }
      answer << done;
    } else if (verb == "open_batch") {  // open_batch <prefix> <n>: plans of 100 bytes that replace what there is
      const std::string prefix = word();
      const size_t n = static_cast<size_t>(number());
      std::vector<std::string> names;
      std::vector<nmc_slice_t> keys;
      for (size_t i = 0; i < n; ++i) names.push_back(prefix + std::to_string(i));
      for (const std::string& name : names) keys.push_back(bytes_of(name));
      const std::vector<uint64_t> sizes(n, 100);
      nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
      options.flags = NMC_PUT_REPLACE;
      batch_.resize(n);
      answer << outcome(nmc_store_open_batch(store_, keys.data(), sizes.data(), n, &options, batch_.data(), nullptr));
    } else if (verb == "commit_batch") {  // those; how many of them the master has not heard of
      std::vector<nmc_status_t> statuses(batch_.size());
      (void)nmc_store_commit_batch(store_, batch_.data(), batch_.size(), statuses.data());
      const auto unheard = [](nmc_status_t status) { return status == NMC_ERR_TIMEOUT || status == NMC_ERR_UNAVAILABLE; };
      answer << std::count_if(statuses.begin(), statuses.end(), unheard);
    } else if (verb == "gets") {  // gets <prefix> <n> <size>: how many are right
      const std::string prefix = word();
      const long long n = number(), size = number();
      long long right = 0;
      for (long long i = 0; i < n; ++i) {
        const std::string value = value_of(static_cast<uint64_t>(i), static_cast<size_t>(size));
        right += get(store_, prefix + std::to_string(i)) == value;
      }
      answer << right;
    } else if (verb == "get") {  // get <key> <size> <seed>: right, wrong, or <status>
      const std::string key = word();
      const std::string value = value_of_next(number), found = get(store_, key);
      answer << (found == value ? "right" : begins_with(found, "<NMC_") ? found : "wrong");
    } else if (verb == "exists") {
      const char* names[] = {"ABSENT", "WRITING", "READY", "ON_DISK"};
      const uint32_t state = state_of(store_, word());
      answer << (state < 4 ? names[state] : "?");
    } else if (verb == "remove") {
      answer << outcome(nmc_store_remove(store_, bytes_of(word())));
    } else if (verb == "flush") {
      answer << outcome(nmc_store_remove_all(store_));
    } else if (verb == "open") {  // open <key> <size> [<rank> [<flags>]]
      const std::string key = word();
      const uint64_t size = static_cast<uint64_t>(number());
      const nmc_put_options_t options = options_of_next(words);
      answer << outcome(nmc_store_open_for_write(store_, bytes_of(key), size, &options, &plans_[key]));
    } else if (verb == "fill_plan") {  // fill_plan <key> <seed>
      const nmc_write_plan_t& plan = plans_[word()];
      const std::string value = value_of(static_cast<uint64_t>(number()), plan.bytes_total);
      REQUIRE(plan.n_extents == 1);
      memcpy(plan.payload, value.data(), value.size());
      answer << "filled";
    } else if (verb == "publish_pages") {
      const nmc_write_plan_t& plan = plans_[word()];
      answer << outcome(nmc_store_publish_pages(store_, &plan, static_cast<uint32_t>(number())));
    } else if (verb == "commit") {
      answer << outcome(nmc_store_commit(store_, &plans_[word()]));
    } else if (verb == "abort_plan") {
      answer << outcome(nmc_store_abort(store_, &plans_[word()]));
    } else if (verb == "pin") {
      const std::string key = word();
      answer << outcome(nmc_store_pin(store_, bytes_of(key), &views_[key]));
    } else if (verb == "look_at") {  // look_at <key> <seed>: what is pinned
      const nmc_view_t& view = views_[word()];
      const std::string value = value_of(static_cast<uint64_t>(number()), view.bytes);
      answer << (view.n_extents == 1 && memcmp(view.data, value.data(), value.size()) == 0 ? "right" : "wrong");
    } else if (verb == "unpin") {
      answer << outcome(nmc_store_unpin(store_, &views_[word()]));
    } else if (verb == "wait") {  // wait <key> <flags> [<timeout_ms>]
      const std::string key = word();
      const uint32_t flags = static_cast<uint32_t>(number());
      const long long timeout_ms = number();
      answer << outcome(nmc_store_wait_ready(store_, bytes_of(key), flags, timeout_ms == 0 ? 50000 : timeout_ms));
    } else if (verb == "wait_pages") {  // wait_pages <key> <pages>
      const std::string key = word();
      const uint32_t pages = static_cast<uint32_t>(number());
      answer << outcome(nmc_store_wait_pages(store_, bytes_of(key), pages, NMC_WAIT_APPEAR, 50000));
    } else if (verb == "watch") {  // watch <key> <token>
      const std::string key = word();
      answer << outcome(nmc_store_watch(store_, bytes_of(key), NMC_WAIT_APPEAR, static_cast<uint64_t>(number())));
    } else if (verb == "completion") {  // sleeps on the descriptor: <token> <status>
      int32_t fd = -1;
      OK(nmc_store_event_fd(store_, &fd));
      pollfd event{fd, POLLIN, 0};
      nmc_completion_t done{};
      size_t n = 0;
      const bool woken = poll(&event, 1, 50000) == 1;
      OK(nmc_store_completions(store_, &done, 1, &n));
      answer << (woken && n == 1 ? std::to_string(done.token) + " " + nmc_status_name(done.status) : "nothing");
    } else if (verb == "limit") {  // limit <MiB>: the process gets no more memory than this; -1 ends it
      long pages = 0;
      FILE* file = fopen("/proc/self/statm", "r");
      REQUIRE(file != nullptr && fscanf(file, "%ld", &pages) == 1);
      fclose(file);
      const long long more = number();
      const rlim_t most = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (more << 20));
      const rlimit limit{more < 0 ? RLIM_INFINITY : most, RLIM_INFINITY};
      answer << (setrlimit(RLIMIT_AS, &limit) == 0 ? "limited" : "refused");
    } else if (verb == "owner") {  // owner <key>: the rank that holds it
      nmc_object_meta_t meta{};
      const nmc_status_t status = nmc_store_get_location(store_, bytes_of(word()), &meta);
      answer << (status == NMC_OK ? std::to_string(meta.owner_rank) : outcome(status));
    } else if (verb == "interrupted") {  // interrupted cancel|destroy|abort <key> [<wait_ms>]: a put that does not return by itself
      const std::string how = word(), key = word();
      nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
      options.preferred_segment = 0;
      options.wait_ms = number();
      std::atomic<bool> over{false};
      std::string said;
      std::thread caller([&] {
        said = outcome(put(store_, key, value_of(1, 5000), &options));
        over = true;
      });
      sleep_ms(200);
      if (how == "destroy") OK(nmc_store_destroy(store_));
      if (how == "abort") OK(nmc_world_abort(world_));
      for (; how == "cancel" && !over; sleep_ms(5)) OK(nmc_store_cancel(store_));
      caller.join();
      if (how == "destroy") store_ = nullptr;
      answer << said;
    } else if (verb == "bytes") {  // bytes_used quarantined_bytes limbo_bytes, of all ranks
      const nmc_store_stats_t stats = stats_of(store_);
      answer << stats.bytes_used << " " << stats.quarantined_bytes << " " << stats.limbo_bytes;
    } else if (verb == "await_bytes") {  // until bytes_used is this, and nothing waits: the seconds
      const uint64_t wanted = static_cast<uint64_t>(number());
      const double start = seconds_now();
      for (;;) {
        const nmc_store_stats_t now = stats_of(store_);
        if (now.bytes_used == wanted && now.quarantined_bytes == 0 && now.limbo_bytes == 0) break;
        if (seconds_now() - start > kPatience / 2) {
          answer << "-1 with " << now.bytes_used << " " << now.quarantined_bytes << " " << now.limbo_bytes;
          return true;
        }
        sleep_ms(2);
      }
      answer << seconds_now() - start;
    } else if (verb == "await_put") {  // await_put <key> <size> <seed> [<seconds>]: repeats a put while the master is away: the seconds
      const std::string key = word();
      const std::string value = value_of_next(number);
      const long long seconds = number();
      const double start = seconds_now(), patience = seconds == 0 ? kPatience / 2 : static_cast<double>(seconds);
      const auto away = [](nmc_status_t s) { return s == NMC_ERR_UNAVAILABLE || s == NMC_ERR_TIMEOUT; };
      nmc_status_t status = NMC_ERR_UNAVAILABLE;
      while (away(status) && seconds_now() - start < patience) {
        status = put(store_, key, value);
        if (away(status)) sleep_ms(5);
      }
      if (status == NMC_OK) answer << seconds_now() - start;
      else answer << "-1 " << outcome(status);
    } else if (verb == "read_on") {  // read_on <prefix> <n> <size>: a thread reads until `stop`
      const std::string prefix = word();
      const uint64_t n = static_cast<uint64_t>(number()), size = static_cast<uint64_t>(number());
      std::vector<std::string> values;
      for (uint64_t i = 0; i < n; ++i) values.push_back(value_of(i, size));
      reading_ = true;
      reads_ = wrong_ = 0;
      reader_ = std::thread([this, prefix, values = std::move(values)] {
        for (size_t i = 0; reading_; i = (i + 1) % values.size(), ++reads_) {
          wrong_ += get(store_, prefix + std::to_string(i)) != values[i];
        }
      });
      answer << "reading";
    } else if (verb == "reads") {  // how many there were so far
      answer << reads_;
    } else if (verb == "stop") {  // how many reads were wrong
      stop_reading();
      answer << wrong_ << " wrong";
    } else {
      return false;
    }
    return true;
  }

 private:
  template <class Number>
  static std::string value_of_next(Number number) {
    const size_t size = static_cast<size_t>(number());
    return value_of(static_cast<uint64_t>(number()), size);
  }
  static nmc_put_options_t options_of_next(std::istringstream& words) {
    nmc_put_options_t options = NMC_PUT_OPTIONS_INIT;
    long long value = 0;
    if (words >> value) options.preferred_segment = static_cast<int32_t>(value);
    if (words >> value) options.flags = static_cast<uint32_t>(value);
    if (words >> value) options.wait_ms = value;
    if (words >> value) options.retain = static_cast<uint32_t>(value);
    return options;
  }
  void stop_reading() {
    reading_ = false;
    if (reader_.joinable()) reader_.join();
  }

  nmc_world_t* world_;
  StoreWish wish_;
  nmc_store_t* store_ = nullptr;
  std::map<std::string, nmc_write_plan_t> plans_;
  std::vector<nmc_write_plan_t> batch_;
  std::map<std::string, nmc_view_t> views_;
  std::thread reader_;
  std::atomic<bool> reading_{false};
  std::atomic<uint64_t> reads_{0}, wrong_{0};
};

// A process that joins a world, says how that went, and obeys. It makes no store before it is told to.
inline Process client_process(const Place& place, int32_t rank, uint32_t size, const StoreWish& wish = {}) {
  const Setup setup = setup_of(rank, size, wish);
  return Process([&place, setup, wish](Link& test) {
    const nmc_world_config_t config = config_of(place, setup);
    nmc_world_t* world = nullptr;
    const nmc_status_t status = nmc_world_join(&config, &world);
    test.say(outcome(status));
    if (status != NMC_OK) return;
    Client client(world, wish);
    obey(test, world, [&](const std::string& verb, std::istringstream& words, std::ostringstream& answer) {
      return client.act(verb, words, answer);
    });
  });
}

// All ranks of a world, each a client of its store.
inline std::vector<Process> whole_store(const Place& place, uint32_t size, const StoreWish& wish = {}) {
  std::vector<Process> ranks;
  for (uint32_t rank = 0; rank < size; ++rank) {
    ranks.push_back(client_process(place, static_cast<int32_t>(rank), size, wish));
  }
  for (Process& rank : ranks) REQUIRE(SAYS(rank.reply(), "NMC_OK"));
  for (Process& rank : ranks) rank.send("create");
  for (Process& rank : ranks) REQUIRE(SAYS(rank.reply(), "NMC_OK"));
  return ranks;
}

// One rank, which comes to the others and to their store.
inline Process come(const Place& place, int32_t rank, uint32_t size, const StoreWish& wish) {
  Process process = client_process(place, rank, size, wish);
  REQUIRE(SAYS(process.reply(), "NMC_OK"));
  REQUIRE(SAYS(process.ask("create"), "NMC_OK"));
  return process;
}

// All leave the store, then the world.
inline void dismiss_clients(std::vector<Process>& ranks) {
  for (Process& rank : ranks) SAYS(rank.ask("leave"), "NMC_OK");
  dismiss(ranks);
}

#endif
