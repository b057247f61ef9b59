/*
 * Worlds for C++17: the ranks of one machine, whose heaps all of them address, and their master. In nmc::nothrow the same
 * with results instead of exceptions: nanomc/core.hpp says how, and what `Mode` and `Out<T>` are.
 *
 *   nmc::World world = nmc::World::join(nmc::WorldConfig("engine").rank(0).world_size(4).heap_bytes(1 << 30));
 *   nmc::span<float> kv = world.heap<float>(2, offset, count);    // in the heap of rank 2, mapped here
 *   world.word(2, 0).store_release(epoch);                        // publishes what was written
 *   if (world.alive(3) != nmc::RankState::alive) reroute();
 *   world.barrier();
 *   world.finalize();                                             // the others see that we left; the destructor unmaps
 */
#ifndef NANOMC_WORLD_HPP
#define NANOMC_WORLD_HPP

#include <initializer_list>

#include "nanomc/bytes.hpp"

namespace nmc {

// ------------------------------------------------------------------------------------------- values and configs --

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
  /// The same, and `heap_bytes` is its size.
  WorldConfig& lend_host_ptr(MutableBytes memory) { return heap_bytes(memory.len).lend_host_ptr(memory.ptr); }
  WorldConfig& lend_host_fd(int fd) { return lend(NMC_IMPORT_HOST_FD, fd, nullptr); }
  WorldConfig& lend_cuda_ptr(void* ptr) { return lend(NMC_IMPORT_CUDA_PTR, -1, ptr); }
  WorldConfig& lend_cuda_ptr(MutableBytes memory) { return heap_bytes(memory.len).lend_cuda_ptr(memory.ptr); }
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
  span<const uint64_t> host;
  const uint64_t* device = nullptr;
};

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

// ------------------------------------------------------------------------------------------------------- worlds --

/// A world in either form: for functions that take one.
using AnyWorld = detail::Handle<nmc_world_t, nmc_world_destroy>;

/// One rank of a world. Move-only; the destructor leaves the world. All members may be called from any thread.
template <class Mode>
class BasicWorld : public AnyWorld {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  using AnyWorld::AnyWorld;
  BasicWorld(AnyWorld&& other) noexcept : AnyWorld(std::move(other)) {}
  /// This world with results, for one call: `world.nothrow()->barrier(timeout)`.
  detail::Borrowed<BasicWorld<Returning>> nothrow() const noexcept {
    return detail::Borrowed<BasicWorld<Returning>>(get());
  }

  // ---- joining and leaving ------------------------------------------------------------------------------------------

  static Out<BasicWorld> join(const WorldConfig& config) {
    const nmc_world_config_t c = config.c();
    nmc_world_t* handle = nullptr;
    const nmc_status_t status = nmc_world_join(&c, &handle);
    if (status < 0) return Mode::failure(status);
    return BasicWorld(handle);
  }
  /// Joins as several ranks of this process.
  static Out<std::vector<BasicWorld>> join_ranks(const WorldConfig& config, span<const int32_t> ranks) {
    const nmc_world_config_t c = config.c();
    std::vector<nmc_world_t*> handles(ranks.size() + 1, nullptr);  // never empty: NULL would be another error
    const nmc_status_t status = nmc_world_join_ranks(&c, ranks.data(), ranks.size(), handles.data());
    if (status < 0) return Mode::failure(status);
    handles.pop_back();
    return adopt(handles);
  }
  static Out<std::vector<BasicWorld>> join_ranks(const WorldConfig& config, std::initializer_list<int32_t> ranks) {
    return join_ranks(config, span<const int32_t>(ranks.begin(), ranks.size()));
  }
  /// All ranks of a world inside this process, without socket, files or threads.
  static Out<std::vector<BasicWorld>> create_local(const WorldConfig& config) {
    const nmc_world_config_t c = config.c();
    std::vector<nmc_world_t*> handles(NMC_MAX_RANKS, nullptr);
    const nmc_status_t status = nmc_world_create_local(&c, handles.data());
    if (status < 0) return Mode::failure(status);
    handles.resize(c.world_size);
    return adopt(handles);
  }

  /// Leaves in order: the others see RankState::left. What was made from this rank must be destroyed before.
  Out<void> finalize() const { return Mode::done(nmc_world_finalize(get())); }
  /// Breaks off: calls that wait return, and the others see RankState::dying.
  Out<void> abort() const { return Mode::done(nmc_world_abort(get())); }
  /// Does what the destructor does, and says how it went. If it fails (NMC_ERR_BUSY) the world is still owned.
  Out<void> destroy() { return Mode::done(destroy_now()); }

  // ---- who is there -------------------------------------------------------------------------------------------------

  Out<WorldInfo> info() const {
    nmc_world_info_t c = NMC_WORLD_INFO_INIT;
    const nmc_status_t status = nmc_world_info(get(), &c);
    if (status < 0) return Mode::failure(status);
    const bool huge_pages = (c.heap_flags & NMC_HEAP_HUGE_PAGES) != 0;
    return WorldInfo{c.rank,       c.world_size, static_cast<HeapKind>(c.heap_kind), huge_pages,
                     c.heap_bytes, c.world_id,   c.words_per_rank,                   c.master_up != 0};
  }
  Out<RankInfo> rank_info(int32_t rank) const {
    nmc_rank_info_t c = NMC_RANK_INFO_INIT;
    const nmc_status_t status = nmc_world_rank_info(get(), rank, &c);
    if (status < 0) return Mode::failure(status);
    return RankInfo{static_cast<RankState>(c.state), c.generation, c.pid, c.device, c.heap_base, c.device_rank};
  }
  Out<RankState> alive(int32_t rank) const {
    uint32_t state = 0;
    const nmc_status_t status = nmc_world_alive(get(), rank, &state);
    if (status < 0) return Mode::failure(status);
    return static_cast<RankState>(state);
  }
  /// Becomes readable when a rank's state changes; belongs to the world. Read 8 bytes to rearm it.
  Out<int> event_fd() const {
    int32_t fd = -1;
    const nmc_status_t status = nmc_world_event_fd(get(), &fd);
    if (status < 0) return Mode::failure(status);
    return fd;
  }
  Out<AsyncError> async_error() const {
    AsyncError found;
    const nmc_status_t status = detail::read_text(found.message, [&](char* buffer, size_t capacity, size_t* needed) {
      return nmc_world_async_error(get(), &found.status, buffer, capacity, needed);
    });
    if (status < 0) return Mode::failure(status);
    return found;
  }
  /// The world as text for people.
  Out<std::string> dump() const {
    return detail::text<Mode>([&](char* buffer, size_t capacity, size_t* needed) {
      return nmc_world_dump(get(), buffer, capacity, needed);
    });
  }

  // ---- heaps --------------------------------------------------------------------------------------------------------

  Out<void*> ptr(int32_t rank, uint64_t offset, uint64_t bytes) const {
    void* ptr = nullptr;
    const nmc_status_t status = nmc_world_ptr(get(), rank, offset, bytes, &ptr);
    if (status < 0) return Mode::failure(status);
    return ptr;
  }
  /// `count` objects of T at byte `offset` in the heap of `rank`. For CUDA heaps they are in device memory.
  template <class T = std::byte>
  Out<span<T>> heap(int32_t rank, uint64_t offset, size_t count) const {
    static_assert(std::is_trivially_copyable_v<T>, "heaps hold plain data: no pointers or constructors survive there");
    if (count > UINT64_MAX / sizeof(T)) {
      return Mode::failure({NMC_ERR_INVALID_ARG, std::to_string(count) + " objects do not fit the address space"});
    }
    void* ptr = nullptr;
    const nmc_status_t status = nmc_world_ptr(get(), rank, offset, uint64_t{count} * sizeof(T), &ptr);
    if (status < 0) return Mode::failure(status);
    if (reinterpret_cast<uintptr_t>(ptr) % alignof(T) != 0) {
      return Mode::failure({NMC_ERR_INVALID_ARG, "offset " + std::to_string(offset) + " is not aligned to " +
                                                     std::to_string(alignof(T)) + " bytes"});
    }
    return span<T>(static_cast<T*>(ptr), count);
  }
  /// Where in the heaps an address is; nothing if it is in none.
  Out<std::optional<Location>> locate(const void* ptr) const {
    Location at;
    const nmc_status_t status = nmc_world_locate(get(), ptr, &at.rank, &at.offset);
    if (detail::is_miss(status)) return std::nullopt;
    if (status < 0) return Mode::failure(status);
    return at;
  }
  Out<BaseTable> base_table() const {
    const uint64_t* host = nullptr;
    const uint64_t* device = nullptr;
    uint32_t n = 0;
    const nmc_status_t status = nmc_world_base_table(get(), &host, &device, &n);
    if (status < 0) return Mode::failure(status);
    return BaseTable{{host, n}, device};
  }
  /// The rank that kernels know by this number; nothing if none has it.
  Out<std::optional<int32_t>> rank_of_device_rank(int32_t device_rank) const {
    int32_t rank = -1;
    const nmc_status_t status = nmc_world_rank_of_device_rank(get(), device_rank, &rank);
    if (detail::is_miss(status)) return std::nullopt;
    if (status < 0) return Mode::failure(status);
    return rank;
  }

  // ---- control words and barriers -----------------------------------------------------------------------------------

  Out<Word> word(int32_t rank, uint32_t index) const {
    uint64_t* host = nullptr;
    uint64_t* device = nullptr;
    const nmc_status_t status = nmc_world_word(get(), rank, index, &host, &device);
    if (status < 0) return Mode::failure(status);
    return Word(host, device);
  }
  /// Stores `value` when the work before it in `stream` (cudaStream_t or CUstream) is done.
  Out<void> write_word_async(int32_t rank, uint32_t index, uint64_t value, void* stream) const {
    return Mode::done(nmc_world_write_word_async(get(), rank, index, value, stream));
  }
  /// Waits until all ranks are in it.
  Out<void> barrier(std::chrono::milliseconds timeout = default_timeout) const {
    return Mode::done(nmc_world_barrier(get(), timeout.count()));
  }
  /// Proves the paths between all ranks; overwrites the beginning of every heap, see nmc_world_selftest.
  Out<void> selftest(uint64_t seed, std::chrono::milliseconds timeout = default_timeout) const {
    return Mode::done(nmc_world_selftest(get(), seed, timeout.count()));
  }

 private:
  static std::vector<BasicWorld> adopt(const std::vector<nmc_world_t*>& handles) {
    return std::vector<BasicWorld>(handles.begin(), handles.end());
  }
};

// ------------------------------------------------------------------------------------------------------- master --

/// A master in either form.
using AnyMaster = detail::Handle<nmc_master_t, nmc_master_destroy>;

/// The master of a world, in a process that is none of its ranks. Move-only; the destructor ends it.
template <class Mode>
class BasicMaster : public AnyMaster {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  using AnyMaster::AnyMaster;
  BasicMaster(AnyMaster&& other) noexcept : AnyMaster(std::move(other)) {}

  static Out<BasicMaster> start(const WorldConfig& config) {
    const nmc_world_config_t c = config.c();
    nmc_master_t* handle = nullptr;
    const nmc_status_t status = nmc_master_start(&c, &handle);
    if (status < 0) return Mode::failure(status);
    return BasicMaster(handle);
  }
  /// Does what the destructor does, and says how it went.
  Out<void> destroy() { return Mode::done(destroy_now()); }
};

// ------------------------------------------------------------------------------------------------- the two forms --

using World = BasicWorld<Throwing>;
using Master = BasicMaster<Throwing>;
namespace nothrow {
using World = BasicWorld<Returning>;
using Master = BasicMaster<Returning>;
}  // namespace nothrow

namespace detail {
static_assert(is_move_only_v<nothrow::World> && is_move_only_v<nothrow::Master>, "handles have one owner");
static_assert(sizeof(nothrow::World) == sizeof(void*) && sizeof(nothrow::Master) == sizeof(void*),
              "a handle costs one pointer");
static_assert(std::is_trivially_copyable_v<Word>, "words are values");
}  // namespace detail

}  // namespace nmc

#endif  // NANOMC_WORLD_HPP
