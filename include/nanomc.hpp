/*
 * nanomc for C++17: header-only RAII over nanomc.h. Nothing here has state of its own; every function is one call of
 * the C API, whose documentation says what it guarantees.
 *
 * Every operation comes in two forms: `try_x` returns a Result (status, message, value) and never throws an
 * nmc::Error; `x` returns the value and throws nmc::Error. With -fno-exceptions only the first form exists.
 * -fno-rtti is fine.
 *
 *   nmc::World world = nmc::World::join(nmc::WorldConfig("engine").rank(0).world_size(4).heap_bytes(1 << 30));
 *   nmc::view<float> kv = world.heap<float>(2, offset, count);    // the heap of rank 2, mapped here
 *   world.word(2, 0).store_release(epoch);
 *
 * Worlds are here; the object store is in nanomc/store.hpp, the expert-parallel transport in nanomc/ep.hpp, the block allocator in
 * nanomc/blocks.hpp, the block KV cache in nanomc/kv.hpp: this header includes all.
 */
#ifndef NANOMC_HPP
#define NANOMC_HPP

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "nanomc.hpp needs C++17"
#endif

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanomc.h"

#if defined(__cpp_exceptions)
#define NMC_HPP_EXCEPTIONS 1
#else
#define NMC_HPP_EXCEPTIONS 0
#endif

namespace nmc {

// ---------------------------------------------------------------------------------------------------- constants --

/// State of a rank as this process sees it.
enum class RankState : uint32_t {
  absent = NMC_RANK_ABSENT,  ///< nobody has taken it yet
  alive = NMC_RANK_ALIVE,    ///< a process holds it
  dying = NMC_RANK_DYING,    ///< dead, but something of it may still write
  gone = NMC_RANK_GONE,      ///< provably nothing of it is left
  left = NMC_RANK_LEFT,      ///< it left in order
};

/// Where heaps live.
enum class HeapKind : uint32_t { host = NMC_HEAP_HOST, cuda = NMC_HEAP_CUDA };

/// How much is logged.
enum class LogLevel : int32_t {
  error = NMC_LOG_ERROR,
  warn = NMC_LOG_WARN,
  info = NMC_LOG_INFO,
  debug = NMC_LOG_DEBUG,
};

/// For timeouts: the library's default (30 s).
inline constexpr std::chrono::milliseconds default_timeout{-1};

/// Name of a state, such as "alive".
inline const char* name(RankState state) noexcept {
  switch (state) {
    case RankState::absent: return "absent";
    case RankState::alive: return "alive";
    case RankState::dying: return "dying";
    case RankState::gone: return "gone";
    case RankState::left: return "left";
  }
  return "unknown";
}

/// Version of the loaded library, such as "0.1.0".
inline const char* version() noexcept { return nmc_version(); }
/// Version of the ABI that the loaded library speaks.
inline uint32_t abi_version() noexcept { return nmc_abi_version(); }
/// Layout version of the loaded library.
inline uint32_t layout_version() noexcept { return nmc_layout_version(); }
/// Name of a status, such as "NMC_ERR_TIMEOUT".
inline const char* status_name(nmc_status_t status) noexcept { return nmc_status_name(status); }
/// Whether the loaded library knows everything that this header offers, and lays out memory the same way.
inline bool library_matches_header() noexcept {
  return nmc_abi_version() >= NMC_ABI_VERSION && nmc_layout_version() == NMC_LAYOUT_VERSION;
}

// ------------------------------------------------------------------------------------------------------- errors --

/// A status and the sentence that explains it.
struct Failure {
  nmc_status_t status = NMC_OK;
  std::string message;
};

#if NMC_HPP_EXCEPTIONS
/// What the throwing forms throw. what() is "NMC_ERR_TIMEOUT: <message>".
class Error : public std::runtime_error {
 public:
  explicit Error(Failure failure)
      : std::runtime_error(std::string(nmc_status_name(failure.status)) + ": " + failure.message),
        failure_(std::move(failure)) {}
  nmc_status_t status() const noexcept { return failure_.status; }
  const std::string& message() const noexcept { return failure_.message; }

 private:
  Failure failure_;
};
#endif

namespace detail {
/// The failure that the last call of this thread, which returned `status`, left behind.
inline Failure failure(nmc_status_t status) { return Failure{status, nmc_last_error_message()}; }

[[noreturn]] inline void bad_access(const Failure& failure) {
#if NMC_HPP_EXCEPTIONS
  throw Error(failure);
#else
  (void)failure;
  std::abort();
#endif
}
}  // namespace detail

/// A value, or why there is none. value() of a failed result throws nmc::Error; without exceptions it aborts, so
/// look first.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Failure failure) : failure_(std::move(failure)) {}

  bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  nmc_status_t status() const noexcept { return failure_.status; }
  const std::string& message() const noexcept { return failure_.message; }

  T& value() & { return checked(), *value_; }
  const T& value() const& { return checked(), *value_; }
  T value() && { return checked(), std::move(*value_); }
  T& operator*() & { return value(); }
  T* operator->() { return &value(); }
  T value_or(T other) && { return ok() ? std::move(*value_) : std::move(other); }

 private:
  void checked() const {
    if (!ok()) detail::bad_access(failure_);
  }
  std::optional<T> value_;
  Failure failure_;
};

/// Success, or why not.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Failure failure) : failure_(std::move(failure)) {}

  bool ok() const noexcept { return failure_.status >= 0; }
  explicit operator bool() const noexcept { return ok(); }
  nmc_status_t status() const noexcept { return failure_.status; }
  const std::string& message() const noexcept { return failure_.message; }
  void value() const {
    if (!ok()) detail::bad_access(failure_);
  }

 private:
  Failure failure_;
};

namespace detail {
inline Result<void> done(nmc_status_t status) {
  if (status < 0) return failure(status);
  return Failure{status, {}};  // a positive status is an outcome, not an error
}

/// Calls `write` until its text fits: it may grow between two calls.
template <class Write>
Result<std::string> text(Write write) {
  std::string out(256, '\0');
  for (;;) {
    size_t needed = 0;
    const nmc_status_t status = write(out.data(), out.size(), &needed);
    if (status >= 0) {
      out.resize(needed - 1);  // without the NUL
      return out;
    }
    if (status != NMC_ERR_TOO_SMALL) return failure(status);
    out.resize(needed + needed / 4);
  }
}
}  // namespace detail

// --------------------------------------------------------------------------------------------------------- view --

/// `size()` objects in memory that somebody else owns; the C++20 std::span in small.
template <class T>
class view {
 public:
  constexpr view() noexcept = default;
  constexpr view(T* data, size_t size) noexcept : data_(data), size_(size) {}
  template <class U, class = std::enable_if_t<std::is_same_v<const U, T>>>
  constexpr view(view<U> other) noexcept : data_(other.data()), size_(other.size()) {}

  constexpr T* data() const noexcept { return data_; }
  constexpr size_t size() const noexcept { return size_; }
  constexpr size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  constexpr bool empty() const noexcept { return size_ == 0; }
  constexpr T* begin() const noexcept { return data_; }
  constexpr T* end() const noexcept { return data_ + size_; }
  constexpr T& operator[](size_t index) const noexcept { return data_[index]; }
  /// `count` objects from `first` on; what lies past the end is cut off.
  constexpr view subview(size_t first, size_t count = SIZE_MAX) const noexcept {
    const size_t begin = first < size_ ? first : size_;
    const size_t rest = size_ - begin;
    return view(data_ + begin, count < rest ? count : rest);
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

using bytes_view = view<std::byte>;
using const_bytes_view = view<const std::byte>;

/// The same memory as bytes.
template <class T>
const_bytes_view as_bytes(view<T> v) noexcept {
  return {reinterpret_cast<const std::byte*>(v.data()), v.size_bytes()};
}
/// The same memory as writable bytes.
template <class T>
bytes_view as_writable_bytes(view<T> v) noexcept {
  return {reinterpret_cast<std::byte*>(v.data()), v.size_bytes()};
}

/// A control word: one writer, any number of readers. Copyable; valid until its world is destroyed.
class Word {
 public:
  Word() = default;
  Word(uint64_t* host, uint64_t* device) noexcept : host_(host), device_(device) {}
  /// Reads the word; what its writer stored before store_release is visible afterwards.
  uint64_t load_acquire() const noexcept { return __atomic_load_n(host_, __ATOMIC_ACQUIRE); }
  /// Publishes everything written so far, and `value`.
  void store_release(uint64_t value) const noexcept { __atomic_store_n(host_, value, __ATOMIC_RELEASE); }
  /// The raw address in this process.
  uint64_t* host() const noexcept { return host_; }
  /// Its address for kernels; NULL without a device.
  uint64_t* device() const noexcept { return device_; }

 private:
  uint64_t* host_ = nullptr;
  uint64_t* device_ = nullptr;
};

// ------------------------------------------------------------------------------------------------------- config --

/// How a process joins a world. Fluent: `WorldConfig("engine").rank(0).world_size(4).heap_bytes(1 << 30)`. It owns
/// its strings and can be copied and kept.
class WorldConfig {
 public:
  WorldConfig() = default;
  explicit WorldConfig(std::string name) : name_(std::move(name)) {}

  WorldConfig& name(std::string value) { return name_ = std::move(value), *this; }
  WorldConfig& dir(std::string value) { return dir_ = std::move(value), *this; }
  WorldConfig& rank(int32_t value) { return c_.rank = value, *this; }
  WorldConfig& world_size(uint32_t value) { return c_.world_size = value, *this; }
  /// How many ranks must be there for a join to complete; the others may come later. 0 for all.
  WorldConfig& min_ranks(uint32_t value) { return c_.min_ranks = value, *this; }
  WorldConfig& heap_bytes(uint64_t value) { return c_.heap_bytes = value, *this; }
  WorldConfig& heap_kind(HeapKind value) { return c_.heap_kind = static_cast<uint32_t>(value), *this; }
  WorldConfig& huge_pages(bool wanted = true) { return heap_flag(NMC_HEAP_HUGE_PAGES, wanted); }
  WorldConfig& populate(bool wanted = true) { return heap_flag(NMC_HEAP_POPULATE, wanted); }
  WorldConfig& device(int32_t value) { return c_.device = value, *this; }
  WorldConfig& device_rank(int32_t value) { return c_.device_rank = value, *this; }
  WorldConfig& words_per_rank(int32_t value) { return c_.words_per_rank = value, *this; }
  WorldConfig& external_master(bool value = true) {
    return c_.master = value ? NMC_MASTER_EXTERNAL : NMC_MASTER_RANK0, *this;
  }
  WorldConfig& join_timeout(std::chrono::milliseconds value) { return c_.join_timeout_ms = value.count(), *this; }
  WorldConfig& drain(std::chrono::milliseconds value) {
    const auto ms = value.count();
    // Out of range on purpose, so that the library refuses what does not fit.
    c_.drain_ms = ms >= INT32_MIN && ms <= INT32_MAX ? static_cast<int32_t>(ms) : INT32_MAX;
    return *this;
  }
  WorldConfig& service_cpu(int32_t value) { return c_.service_cpu = value, *this; }
  /// Memory of the engine as this rank's heap; see nmc_memory_t for how long it must live.
  WorldConfig& lend_host_ptr(void* ptr) { return lend(NMC_IMPORT_HOST_PTR, -1, ptr); }
  WorldConfig& lend_host_fd(int fd) { return lend(NMC_IMPORT_HOST_FD, fd, nullptr); }
  WorldConfig& lend_cuda_ptr(void* ptr) { return lend(NMC_IMPORT_CUDA_PTR, -1, ptr); }
  WorldConfig& lend_cuda_fd(int fd) { return lend(NMC_IMPORT_CUDA_FD, fd, nullptr); }

  /// The C struct; it points into this object.
  nmc_world_config_t c() const noexcept {
    nmc_world_config_t c = c_;
    c.name = {name_.data(), name_.size()};
    c.dir = {dir_.data(), dir_.size()};
    return c;
  }

 private:
  WorldConfig& heap_flag(uint32_t bit, bool wanted) {
    return c_.heap_flags = wanted ? c_.heap_flags | bit : c_.heap_flags & ~bit, *this;
  }
  WorldConfig& lend(uint32_t kind, int32_t fd, void* ptr) { return c_.heap_import = {kind, fd, ptr}, *this; }

  std::string name_;
  std::string dir_;
  nmc_world_config_t c_ = NMC_WORLD_CONFIG_INIT;
};

// ------------------------------------------------------------------------------------------------------ handles --

namespace detail {
/// Sole owner of a C handle. Its destructor destroys the handle and ignores the status; use try_destroy to see it.
template <class C, nmc_status_t (*Destroy)(C*)>
class Handle {
 public:
  Handle() noexcept = default;
  explicit Handle(C* handle) noexcept : handle_(handle) {}
  Handle(Handle&& other) noexcept : handle_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      if (handle_ != nullptr) (void)Destroy(handle_);
      handle_ = other.release();
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (handle_ != nullptr) (void)Destroy(handle_);
  }

  /// The C handle; still owned by this object.
  C* get() const noexcept { return handle_; }
  /// Gives the C handle away: the caller destroys it.
  C* release() noexcept { return std::exchange(handle_, nullptr); }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

  /// Destroys the handle now. If that fails (NMC_ERR_BUSY) it is still owned.
  Result<void> try_destroy() {
    const nmc_status_t status = Destroy(handle_);
    if (status < 0) return failure(status);
    handle_ = nullptr;
    return {};
  }
#if NMC_HPP_EXCEPTIONS
  void destroy() { try_destroy().value(); }
#endif

 private:
  C* handle_ = nullptr;
};
}  // namespace detail

/// Facts about a world; see nmc_world_info_t.
struct WorldInfo {
  uint32_t rank = 0;
  uint32_t world_size = 0;
  HeapKind heap_kind = HeapKind::host;
  bool huge_pages = false;
  uint64_t heap_bytes = 0;
  uint64_t world_id = 0;
  uint32_t words_per_rank = 0;
  bool master_up = false;
};

/// Facts about a rank; see nmc_rank_info_t.
struct RankInfo {
  RankState state = RankState::absent;
  uint64_t generation = 0;
  uint32_t pid = 0;
  int32_t device = -1;
  void* heap_base = nullptr;
  uint32_t device_rank = 0;
};

/// What went wrong in the background of a world; status NMC_OK if nothing did.
struct AsyncError {
  nmc_status_t status = NMC_OK;
  std::string message;
};

/// A place in one of the heaps.
struct Location {
  int32_t rank = -1;
  uint64_t offset = 0;
};

/// Heap base addresses: `host` by rank, `device` by device rank and in device memory (NULL without a device).
struct BaseTable {
  view<const uint64_t> host;
  const uint64_t* device = nullptr;
};

/// One rank of a world. Move-only; the destructor leaves the world. All members may be called from any thread.
class World : public detail::Handle<nmc_world_t, nmc_world_destroy> {
 public:
  using Handle::Handle;

  static Result<World> try_join(const WorldConfig& config) {
    const nmc_world_config_t c = config.c();
    nmc_world_t* handle = nullptr;
    const nmc_status_t status = nmc_world_join(&c, &handle);
    if (status < 0) return detail::failure(status);
    return World(handle);
  }

  /// Joins as several ranks of this process.
  static Result<std::vector<World>> try_join_ranks(const WorldConfig& config, const std::vector<int32_t>& ranks) {
    const nmc_world_config_t c = config.c();
    std::vector<nmc_world_t*> handles(ranks.size() + 1, nullptr);  // never empty: NULL would be another error
    const nmc_status_t status = nmc_world_join_ranks(&c, ranks.data(), ranks.size(), handles.data());
    if (status < 0) return detail::failure(status);
    handles.pop_back();
    return adopt(handles);
  }

  /// All ranks of a world inside this process, without socket, files or threads.
  static Result<std::vector<World>> try_create_local(const WorldConfig& config) {
    const nmc_world_config_t c = config.c();
    std::vector<nmc_world_t*> handles(NMC_MAX_RANKS, nullptr);
    const nmc_status_t status = nmc_world_create_local(&c, handles.data());
    if (status < 0) return detail::failure(status);
    handles.resize(c.world_size);
    return adopt(handles);
  }

  Result<void> try_finalize() const { return detail::done(nmc_world_finalize(get())); }
  Result<void> try_abort() const { return detail::done(nmc_world_abort(get())); }

  Result<WorldInfo> try_info() const {
    nmc_world_info_t c = NMC_WORLD_INFO_INIT;
    const nmc_status_t status = nmc_world_info(get(), &c);
    if (status < 0) return detail::failure(status);
    const bool huge_pages = (c.heap_flags & NMC_HEAP_HUGE_PAGES) != 0;
    return WorldInfo{c.rank,       c.world_size, static_cast<HeapKind>(c.heap_kind), huge_pages,
                     c.heap_bytes, c.world_id,   c.words_per_rank,                   c.master_up != 0};
  }

  Result<RankInfo> try_rank_info(int32_t rank) const {
    nmc_rank_info_t c = NMC_RANK_INFO_INIT;
    const nmc_status_t status = nmc_world_rank_info(get(), rank, &c);
    if (status < 0) return detail::failure(status);
    return RankInfo{static_cast<RankState>(c.state), c.generation, c.pid, c.device, c.heap_base, c.device_rank};
  }

  Result<RankState> try_alive(int32_t rank) const {
    uint32_t state = 0;
    const nmc_status_t status = nmc_world_alive(get(), rank, &state);
    if (status < 0) return detail::failure(status);
    return static_cast<RankState>(state);
  }

  /// Becomes readable when a rank's state changes; belongs to the world. Read 8 bytes to rearm it.
  Result<int> try_event_fd() const {
    int32_t fd = -1;
    const nmc_status_t status = nmc_world_event_fd(get(), &fd);
    if (status < 0) return detail::failure(status);
    return static_cast<int>(fd);
  }

  Result<void*> try_ptr(int32_t rank, uint64_t offset, uint64_t bytes) const {
    void* ptr = nullptr;
    const nmc_status_t status = nmc_world_ptr(get(), rank, offset, bytes, &ptr);
    if (status < 0) return detail::failure(status);
    return ptr;
  }

  /// `count` objects of T at byte `offset` in the heap of `rank`. For CUDA heaps the view points to device memory.
  template <class T = std::byte>
  Result<view<T>> try_heap(int32_t rank, uint64_t offset, size_t count) const {
    static_assert(std::is_trivially_copyable_v<T>, "heaps hold plain data: no pointers or constructors survive there");
    if (count > UINT64_MAX / sizeof(T)) {
      return Failure{NMC_ERR_INVALID_ARG, std::to_string(count) + " objects do not fit the address space"};
    }
    void* ptr = nullptr;
    const nmc_status_t status = nmc_world_ptr(get(), rank, offset, uint64_t{count} * sizeof(T), &ptr);
    if (status < 0) return detail::failure(status);
    if (reinterpret_cast<uintptr_t>(ptr) % alignof(T) != 0) {
      return Failure{NMC_ERR_INVALID_ARG, "offset " + std::to_string(offset) + " is not aligned to " +
                                              std::to_string(alignof(T)) + " bytes"};
    }
    return view<T>(static_cast<T*>(ptr), count);
  }

  Result<Location> try_locate(const void* ptr) const {
    Location at;
    const nmc_status_t status = nmc_world_locate(get(), ptr, &at.rank, &at.offset);
    if (status < 0) return detail::failure(status);
    return at;
  }

  Result<BaseTable> try_base_table() const {
    const uint64_t* host = nullptr;
    const uint64_t* device = nullptr;
    uint32_t n = 0;
    const nmc_status_t status = nmc_world_base_table(get(), &host, &device, &n);
    if (status < 0) return detail::failure(status);
    return BaseTable{{host, n}, device};
  }

  Result<int32_t> try_rank_of_device_rank(int32_t device_rank) const {
    int32_t rank = -1;
    const nmc_status_t status = nmc_world_rank_of_device_rank(get(), device_rank, &rank);
    if (status < 0) return detail::failure(status);
    return rank;
  }

  Result<Word> try_word(int32_t rank, uint32_t index) const {
    uint64_t* host = nullptr;
    uint64_t* device = nullptr;
    const nmc_status_t status = nmc_world_word(get(), rank, index, &host, &device);
    if (status < 0) return detail::failure(status);
    return Word(host, device);
  }

  /// Stores `value` when the work before it in `stream` (cudaStream_t or CUstream) is done.
  Result<void> try_write_word_async(int32_t rank, uint32_t index, uint64_t value, void* stream) const {
    return detail::done(nmc_world_write_word_async(get(), rank, index, value, stream));
  }

  Result<void> try_barrier(std::chrono::milliseconds timeout = default_timeout) const {
    return detail::done(nmc_world_barrier(get(), timeout.count()));
  }

  Result<void> try_selftest(uint64_t seed, std::chrono::milliseconds timeout = default_timeout) const {
    return detail::done(nmc_world_selftest(get(), seed, timeout.count()));
  }

  Result<AsyncError> try_async_error() const {
    AsyncError found;
    Result<std::string> message = detail::text([&](char* buffer, size_t capacity, size_t* needed) {
      return nmc_world_async_error(get(), &found.status, buffer, capacity, needed);
    });
    if (!message) return Failure{message.status(), message.message()};
    found.message = std::move(message).value();
    return found;
  }

  /// The world as text for people.
  Result<std::string> try_dump() const {
    return detail::text([&](char* buffer, size_t capacity, size_t* needed) {
      return nmc_world_dump(get(), buffer, capacity, needed);
    });
  }

#if NMC_HPP_EXCEPTIONS
  static World join(const WorldConfig& config) { return try_join(config).value(); }
  static std::vector<World> join_ranks(const WorldConfig& config, const std::vector<int32_t>& ranks) {
    return try_join_ranks(config, ranks).value();
  }
  static std::vector<World> create_local(const WorldConfig& config) { return try_create_local(config).value(); }
  void finalize() const { try_finalize().value(); }
  void abort() const { try_abort().value(); }
  WorldInfo info() const { return try_info().value(); }
  RankInfo rank_info(int32_t rank) const { return try_rank_info(rank).value(); }
  RankState alive(int32_t rank) const { return try_alive(rank).value(); }
  int event_fd() const { return try_event_fd().value(); }
  void* ptr(int32_t rank, uint64_t offset, uint64_t bytes) const { return try_ptr(rank, offset, bytes).value(); }
  template <class T = std::byte>
  view<T> heap(int32_t rank, uint64_t offset, size_t count) const {
    return try_heap<T>(rank, offset, count).value();
  }
  Location locate(const void* ptr) const { return try_locate(ptr).value(); }
  BaseTable base_table() const { return try_base_table().value(); }
  int32_t rank_of_device_rank(int32_t device_rank) const { return try_rank_of_device_rank(device_rank).value(); }
  Word word(int32_t rank, uint32_t index) const { return try_word(rank, index).value(); }
  void write_word_async(int32_t rank, uint32_t index, uint64_t value, void* stream) const {
    try_write_word_async(rank, index, value, stream).value();
  }
  void barrier(std::chrono::milliseconds timeout = default_timeout) const { try_barrier(timeout).value(); }
  void selftest(uint64_t seed, std::chrono::milliseconds timeout = default_timeout) const {
    try_selftest(seed, timeout).value();
  }
  AsyncError async_error() const { return try_async_error().value(); }
  std::string dump() const { return try_dump().value(); }
#endif

 private:
  static std::vector<World> adopt(const std::vector<nmc_world_t*>& handles) {
    std::vector<World> worlds;
    worlds.reserve(handles.size());
    for (nmc_world_t* handle : handles) worlds.emplace_back(handle);
    return worlds;
  }
};

/// The master of a world, in a process that is none of its ranks. Move-only; the destructor ends it.
class Master : public detail::Handle<nmc_master_t, nmc_master_destroy> {
 public:
  using Handle::Handle;

  static Result<Master> try_start(const WorldConfig& config) {
    const nmc_world_config_t c = config.c();
    nmc_master_t* handle = nullptr;
    const nmc_status_t status = nmc_master_start(&c, &handle);
    if (status < 0) return detail::failure(status);
    return Master(handle);
  }
#if NMC_HPP_EXCEPTIONS
  static Master start(const WorldConfig& config) { return try_start(config).value(); }
#endif
};

// ---------------------------------------------------------------------------------------------------------- log --

/// Sends log lines up to `max_level` to `callback`, with `user`. The callback must not throw.
inline Result<void> try_set_log_callback(nmc_log_fn callback, LogLevel max_level, void* user = nullptr) {
  return detail::done(nmc_log_set_callback(callback, static_cast<int32_t>(max_level), user));
}
/// Ends logging. When it returns, the former callback is not running any more.
inline Result<void> try_clear_log_callback() { return try_set_log_callback(nullptr, LogLevel::error); }
#if NMC_HPP_EXCEPTIONS
inline void set_log_callback(nmc_log_fn callback, LogLevel max_level, void* user = nullptr) {
  try_set_log_callback(callback, max_level, user).value();
}
inline void clear_log_callback() { try_clear_log_callback().value(); }
#endif

// ------------------------------------------------------------------------------------------------------- checks --

namespace detail {
template <class T>
inline constexpr bool is_move_only_v =
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
    !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(is_move_only_v<World> && is_move_only_v<Master>, "handles have one owner");
static_assert(sizeof(World) == sizeof(void*) && sizeof(Master) == sizeof(void*), "a handle costs one pointer");
static_assert(std::is_trivially_copyable_v<Word> && std::is_trivially_copyable_v<bytes_view>, "views are values");
}  // namespace detail

}  // namespace nmc

#include "nanomc/blocks.hpp"
#include "nanomc/ep.hpp"
#include "nanomc/kv.hpp"
#include "nanomc/store.hpp"

#endif  // NANOMC_HPP
