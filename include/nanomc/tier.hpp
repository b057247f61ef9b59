/*
 * The SSD tier of a store for C++17: what memory evicts, disk keeps. In nmc::nothrow the same with results instead of exceptions:
 * nanomc/core.hpp says how, and what `Mode` and `Out<T>` are.
 *
 *   nmc::Store store = nmc::Store::embedded(nmc::StoreConfig().heap_bytes(1 << 30));
 *   nmc::Tier tier = nmc::Tier::open(store, nmc::TierConfig("/mnt/nvme/kv").capacity_bytes(uint64_t{100} << 30));
 *   store.put("prompt/17", kv);                                 // written ahead of eviction, by a thread of the library
 *   nmc::Buffer value = store.get("prompt/17");                 // from memory or from disk: the same call, in any process
 *
 * Reads need no tier object: only the process of the store's master has to open one, which creates the tier. If a callback throws, the
 * call that it was called from ends, and throws the same exception, in both forms.
 */
#ifndef NANOMC_TIER_HPP
#define NANOMC_TIER_HPP

#include <functional>

#include "nanomc/store.hpp"

namespace nmc {

// ---------------------------------------------------------------------------------------------------- arguments --

/// Receives the progress of a recovery: `done` of `total` buckets have been read.
using TierProgress = std::function<void(uint64_t done, uint64_t total)>;

/// How a tier is opened; see nmc_tier_config_t.
class TierConfig {
 public:
  TierConfig() = default;
  explicit TierConfig(std::string directory) : directory_(std::move(directory)) {}

  TierConfig& directory(std::string value) { return directory_ = std::move(value), *this; }
  TierConfig& max_objects(uint64_t value) { return c_.max_objects = value, *this; }
  TierConfig& capacity_bytes(uint64_t value) { return c_.capacity_bytes = value, *this; }
  /// A bucket is complete when it has this many bytes, or this many values.
  TierConfig& bucket_bytes(uint64_t value) { return c_.bucket_bytes = value, *this; }
  TierConfig& bucket_keys(uint32_t value) { return c_.bucket_keys = value, *this; }
  /// Longest time between two checks for something to write, from 1 ms up.
  TierConfig& heartbeat(std::chrono::milliseconds value) {
    const auto ms = value.count();
    // 0 would be the default.
    return c_.heartbeat_ms = ms < 1 ? 1 : ms > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(ms), *this;
  }
  TierConfig& depth(uint32_t value) { return c_.depth = value, *this; }
  /// Whether to bypass the page cache, where the file system supports it, and whether to use io_uring. Both are on by default.
  TierConfig& direct(bool wanted) { return flag(NMC_TIER_NO_DIRECT, !wanted); }
  TierConfig& uring(bool wanted) { return flag(NMC_TIER_NO_URING, !wanted); }
  TierConfig& durable_remove(bool wanted = true) { return flag(NMC_TIER_DURABLE_REMOVE, wanted); }
  TierConfig& paused(bool wanted = true) { return flag(NMC_TIER_PAUSED, wanted); }
  TierConfig& reset_if_damaged(bool wanted = true) { return flag(NMC_TIER_RESET_IF_DAMAGED, wanted); }
  TierConfig& delete_torn(bool wanted = true) { return flag(NMC_TIER_DELETE_TORN, wanted); }
  /// How values are laid out in the directory: NMC_TIER_BACKEND_BUCKET, _FILE, _OFFSET or _NOOP.
  TierConfig& backend(uint32_t value) { return c_.backend = value, *this; }
  /// Writes the list of every bucket twice.
  TierConfig& meta(bool wanted = true) { return flag(NMC_TIER_META, wanted); }
  /// Opens this directory although the store's tier had another one under its former master; see NMC_TIER_OTHER_DIRECTORY.
  TierConfig& other_directory(bool wanted = true) { return flag(NMC_TIER_OTHER_DIRECTORY, wanted); }
  /// Puts return when their values are on disk.
  TierConfig& write_through(bool wanted = true) { return flag(NMC_TIER_WRITE_THROUGH, wanted); }
  /// What is evicted from a full disk: Evict::none, fifo or lru.
  TierConfig& eviction(Evict value) { return c_.eviction = static_cast<uint32_t>(value), *this; }
  /// After how many reads from disk a value comes back into memory; 1 for always, 0 for never.
  TierConfig& promote_after(uint32_t reads) { return c_.promote_after = reads, *this; }
  /// Which values are written ahead of their eviction: those that were read this often, and have at least this priority.
  TierConfig& admit_reads(uint32_t value) { return c_.admit_reads = value, *this; }
  TierConfig& admit_priority(uint32_t value) { return c_.admit_priority = value, *this; }
  TierConfig& write_bytes_per_s(uint64_t value) { return c_.write_bytes_per_s = value, *this; }
  /// Records what happens to values on disk, for Tier::events.
  TierConfig& events(bool wanted = true) { return flag(NMC_TIER_EVENTS, wanted); }
  TierConfig& progress(TierProgress value) { return progress_ = std::move(value), *this; }
  const TierProgress& progress() const noexcept { return progress_; }

  /// The C config, without the progress function, which Tier::open sets. Valid until this object is changed or destroyed.
  nmc_tier_config_t c() const noexcept {
    nmc_tier_config_t c = c_;
    c.directory = nmc_slice_t{directory_.data(), directory_.size()};
    return c;
  }

 private:
  TierConfig& flag(uint32_t bit, bool wanted) {
    return c_.flags = wanted ? c_.flags | bit : c_.flags & ~bit, *this;
  }
  std::string directory_;
  TierProgress progress_;
  nmc_tier_config_t c_ = NMC_TIER_CONFIG_INIT;
};

// ------------------------------------------------------------------------------------------------------ results --

/// A value on disk. What it refers to is valid during the callback only.
struct TierEntry {
  std::string_view namespace_name;  ///< empty for the namespace that a store begins with
  std::string_view key;
  uint64_t bytes;
  uint64_t epoch;
  uint64_t bucket;
  uint64_t block;  ///< of 4 KiB, in the bucket
};

/// A value to which something happened.
struct TierEventValue {
  std::string_view namespace_name;
  std::string_view key;
  uint64_t bytes;
};
/// Values to which the same thing happened at the same time. What it refers to is valid during the callback only.
class TierEvent {
 public:
  explicit TierEvent(const nmc_tier_event_t& c) noexcept : c_(c) {}
  bool stored() const noexcept { return c_.what == NMC_TIER_STORED; }
  bool evicted() const noexcept { return c_.what == NMC_TIER_EVICTED; }
  size_t size() const noexcept { return c_.n; }
  TierEventValue operator[](size_t i) const noexcept {
    return {detail::text_of(c_.namespace_names[i]), detail::text_of(c_.keys[i]), c_.bytes[i]};
  }
  /// Number of values in earlier events that were dropped because they were not taken in time.
  uint64_t lost() const noexcept { return c_.lost; }

 private:
  const nmc_tier_event_t& c_;
};

/// Receives an event; returns false to leave the others for later.
using TierEvents = std::function<bool(const TierEvent& event)>;
/// Receives the progress of a verification; returns false to end it.
using TierVerifying = std::function<bool(uint64_t done, uint64_t total)>;
/// Receives a value of a scan; returns false to end it.
using TierScan = std::function<bool(const TierEntry& entry)>;

// --------------------------------------------------------------------------------------------------------- tier --

/// A tier in either form: for functions that take one.
using AnyTier = detail::Handle<nmc_tier_t, nmc_tier_close>;

/// Values in memory that the library lends (BasicTier::stage). Move-only; the destructor gives the memory back. Must not outlive the tier.
template <class Mode>
class BasicStaged {
 public:
  BasicStaged(BasicStaged&& other) noexcept
      : tier_(other.tier_), loan_(std::exchange(other.loan_, 0)), values_(std::move(other.values_)),
        statuses_(std::move(other.statuses_)) {}
  BasicStaged& operator=(BasicStaged&& other) noexcept {
    std::swap(tier_, other.tier_), std::swap(loan_, other.loan_);
    return values_.swap(other.values_), statuses_.swap(other.statuses_), *this;
  }
  ~BasicStaged() {
    if (loan_ != 0) nmc_tier_release(tier_, loan_);
  }

  size_t size() const noexcept { return statuses_.size(); }
  /// NMC_OK if value `i` is there, NMC_ERR_NOT_FOUND if it is nowhere, NMC_NOT_READY if it is being written, or why it could not be read.
  nmc_status_t status(size_t i) const noexcept { return statuses_[i]; }
  /// Value `i`; empty if it is not there.
  std::string_view operator[](size_t i) const noexcept { return detail::text_of(values_[i]); }
  /// Gives the memory back. NMC_ERR_STALE means that the time was over: what was read last may belong to other values.
  typename Mode::template Out<void> release() { return Mode::done(nmc_tier_release(tier_, std::exchange(loan_, 0))); }

 private:
  template <class>
  friend class BasicTier;
  BasicStaged(nmc_tier_t* tier, size_t n) : tier_(tier), values_(n), statuses_(n) {}
  nmc_tier_t* tier_;
  uint64_t loan_ = 0;
  std::vector<nmc_slice_t> values_;
  std::vector<nmc_status_t> statuses_;
};

/// The SSD tier of a store. In the process of the store's master it owns the tier; elsewhere it is a handle to it. Move-only; the
/// destructor closes it. All members may be called from any thread.
template <class Mode>
class BasicTier : public AnyTier {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  using AnyTier::AnyTier;
  BasicTier(AnyTier&& other) noexcept : AnyTier(std::move(other)) {}
  /// This tier in the form with results, for one call: `tier.nothrow()->sync()`.
  detail::Borrowed<BasicTier<Returning>> nothrow() const noexcept {
    return detail::Borrowed<BasicTier<Returning>>(get());
  }

  /// Opens the tier. In the process of the store's master this takes the directory, recovers what is in it, and writes to it from then on.
  /// Elsewhere it returns a handle to the tier that the store has, and the config does not matter. The tier keeps the store open.
  static Out<BasicTier> open(const AnyStore& store, const TierConfig& config = {}) {
    detail::Callback<TierProgress> progress(config.progress());
    nmc_tier_config_t c = config.c();
    if (config.progress()) {
      c.progress = [](void* user, uint64_t done, uint64_t total) {
        static_cast<detail::Callback<TierProgress>*>(user)->call(done, total);
      };
      c.progress_user = &progress;
    }
    nmc_tier_t* handle = nullptr;
    const nmc_status_t status = nmc_tier_open(store.get(), &c, &handle);
    BasicTier made(handle);  // closed, if the callback has thrown
    progress.rethrow();
    if (status < 0) return Mode::failure(status);
    return made;
  }
  /// Does what the destructor does, and returns the outcome. If it fails (NMC_ERR_BUSY), the tier is still owned.
  Out<void> close() { return Mode::done(destroy_now()); }

  /// Waits until everything that was removed or written before is safe from a power loss.
  Out<void> sync() const { return Mode::done(nmc_tier_sync(get())); }
  /// Writes all values that are in memory to disk now. Returns how many were written: those that were not on disk yet.
  Out<uint64_t> offload() const { return offload_these(nullptr, 0); }
  /// Writes the values of these keys, in the namespace of the store that the tier was opened with.
  Out<uint64_t> offload(Many<Key> keys) const {
    static const Key none;  // a list without keys is not "all"
    return offload_these(keys.empty() ? &none : keys.data(), keys.size());
  }
  /// Brings the values of these keys back into memory, into the heap of this process's rank. Returns what became of each: NMC_OK if it is
  /// in memory, NMC_NOT_READY if it is being written, NMC_ERR_NOT_FOUND if it is nowhere, or why it did not come.
  Batch prefetch(Many<Key> keys) const {
    return detail::batch<Batch>(keys.size(), keys.size(), [&](nmc_status_t* items) {
      return nmc_tier_prefetch(get(), keys.data(), keys.size(), items);
    });
  }
  /// Reads the values of these keys into memory of the library, for `ttl` and at most until the returned object is destroyed.
  Out<BasicStaged<Mode>> stage(Many<Key> keys,
                               std::chrono::milliseconds ttl = std::chrono::milliseconds(NMC_TIER_STAGE_MS)) const {
    BasicStaged<Mode> staged(get(), keys.size());
    const auto ms = ttl.count();
    // 0 would be the default.
    const uint64_t time = ms < 1 ? 1 : static_cast<uint64_t>(ms);
    const nmc_status_t status = nmc_tier_stage(get(), keys.data(), keys.size(), time, &staged.loan_, staged.values_.data(),
                                               staged.statuses_.data());
    // An item that failed is no failure of the call; if there is no loan because of something else, that is one.
    const bool missing = status == NMC_OK || status == NMC_NOT_READY || status == NMC_ERR_NOT_FOUND;
    if (staged.loan_ == 0 && !missing) return Mode::failure(status);
    return staged;
  }
  /// Evicts values from the disk until its files take at most this many bytes. Returns how many went.
  Out<uint64_t> evict(uint64_t keep_bytes) const {
    uint64_t evicted = 0;
    const nmc_status_t status = nmc_tier_evict(get(), keep_bytes, &evicted);
    if (status < 0) return Mode::failure(status);
    return evicted;
  }
  /// Calls `each` for what has happened to values on disk since the last call in this process. The owner of the tier
  /// needs TierConfig::events.
  Out<void> events(const TierEvents& each) const {
    if (!each) return Mode::done({NMC_ERR_INVALID_ARG, "events need a function to call"});
    detail::Callback<TierEvents> callback(each);
    const nmc_tier_event_fn call = [](void* user, const nmc_tier_event_t* c) -> int32_t {
      return static_cast<detail::Callback<TierEvents>*>(user)->call(TierEvent(*c));
    };
    const nmc_status_t status = nmc_tier_events(get(), call, &callback);
    callback.rethrow();
    return Mode::done(status);
  }
  /// Stops offloading until resume(); writes that have begun are completed.
  Out<void> pause() const { return Mode::done(nmc_tier_pause(get())); }
  Out<void> resume() const { return Mode::done(nmc_tier_resume(get())); }

  Out<nmc_tier_stats_t> stats() const {
    nmc_tier_stats_t stats = NMC_TIER_STATS_INIT;
    const nmc_status_t status = nmc_tier_stats(get(), &stats);
    if (status < 0) return Mode::failure(status);
    return stats;
  }
  /// Reads every value on disk and compares its checksums; damaged values are given up.
  Out<nmc_tier_verified_t> verify(const TierVerifying& progress = nullptr) const {
    detail::Callback<TierVerifying> callback(progress);
    nmc_tier_verify_fn call = nullptr;
    if (progress) {
      call = [](void* user, uint64_t done, uint64_t total) -> int32_t {
        return static_cast<detail::Callback<TierVerifying>*>(user)->call(done, total);
      };
    }
    nmc_tier_verified_t verified = NMC_TIER_VERIFIED_INIT;
    const nmc_status_t status = nmc_tier_verify(get(), call, &callback, &verified);
    callback.rethrow();
    if (status < 0) return Mode::failure(status);
    return verified;
  }
  /// Calls `each` for every value on disk, of all namespaces, in no particular order.
  Out<void> scan(const TierScan& each) const {
    if (!each) return Mode::done({NMC_ERR_INVALID_ARG, "a scan needs a function to call"});
    detail::Callback<TierScan> callback(each);
    const nmc_tier_scan_fn call = [](void* user, const nmc_tier_entry_t* c) -> int32_t {
      const TierEntry entry{detail::text_of(c->namespace_name), detail::text_of(c->key), c->bytes, c->epoch, c->bucket,
                            c->block};
      return static_cast<detail::Callback<TierScan>*>(user)->call(entry);
    };
    const nmc_status_t status = nmc_tier_scan(get(), call, &callback);
    callback.rethrow();
    return Mode::done(status);
  }

 private:
  Out<uint64_t> offload_these(const Key* keys, size_t n) const {
    uint64_t written = 0;
    const nmc_status_t status = nmc_tier_offload(get(), keys, n, &written);
    if (status < 0) return Mode::failure(status);
    return written;
  }
};

// ------------------------------------------------------------------------------------------------- the two forms --

using Tier = BasicTier<Throwing>;
using Staged = BasicStaged<Throwing>;
namespace nothrow {
using Tier = BasicTier<Returning>;
using Staged = BasicStaged<Returning>;
}  // namespace nothrow

namespace detail {
static_assert(is_move_only_v<nothrow::Tier> && sizeof(nothrow::Tier) == sizeof(void*), "a handle costs one pointer");
}  // namespace detail

}  // namespace nmc

#endif  // NANOMC_TIER_HPP
