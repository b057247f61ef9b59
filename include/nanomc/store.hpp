/*
 * The object store for C++17: RAII over nmc_store_* of nanomc.h. nanomc.hpp includes it; like there, every operation
 * has a `try_x` that returns a Result, and an `x` that throws nmc::Error.
 *
 *   nmc::Store store = nmc::Store::attach(world, nmc::StoreConfig().page_bytes(256 << 10));
 *   store.put("prompt/17", kv);                                   // from a vector, a string, pointer and size, ...
 *   if (nmc::Result<nmc::View> hit = store.try_pin("prompt/17"))  // in place, no copy; unpinned with the scope
 *     attend(hit->page(0).data());
 *
 * A key that is missing or still being written is a Result without a value: NMC_ERR_NOT_FOUND or NMC_NOT_READY. The
 * throwing forms throw for both.
 */
#ifndef NANOMC_STORE_HPP
#define NANOMC_STORE_HPP

#include <array>
#include <cstring>
#include <memory>
#include <string_view>

#include "nanomc.hpp"

namespace nmc {

// ---------------------------------------------------------------------------------------------------- constants --

/// Which objects go first when room is needed.
enum class Evict : uint32_t { fifo = NMC_EVICT_FIFO, lru = NMC_EVICT_LRU, s3fifo = NMC_EVICT_S3FIFO };
/// How an object is kept: evicted as the policy says, after the others, or never.
enum class Retain : uint32_t { none = NMC_RETAIN_NONE, soft = NMC_RETAIN_SOFT, hard = NMC_RETAIN_HARD };
/// What is known of a key.
enum class ObjectState : uint32_t {
  absent = NMC_OBJECT_ABSENT,
  writing = NMC_OBJECT_WRITING,
  ready = NMC_OBJECT_READY,
  on_disk = NMC_OBJECT_ON_DISK,
};
/// Whether a wait ends at once for a key that nobody is writing.
enum class Wait : uint32_t { written = 0, appear = NMC_WAIT_APPEAR };

/// For Store::namespace_: leave the quota as it is.
inline constexpr uint64_t same_quota = UINT64_MAX;

// ---------------------------------------------------------------------------------------------------- arguments --

namespace detail {
/// A container whose data() and size() describe plain data: string, string_view, vector, array, nmc::view.
template <class C>
using data_of = std::remove_pointer_t<decltype(std::data(std::declval<C&>()))>;
template <class C, class = void>
inline constexpr bool is_plain_v = false;
template <class C>
inline constexpr bool is_plain_v<C, std::void_t<data_of<C>, decltype(std::size(std::declval<C&>()))>> =
    std::is_trivially_copyable_v<data_of<C>> && !std::is_array_v<C>;
}  // namespace detail

/// Bytes that a call reads. Made from a container of plain data (string_view among them), or address and size; refers to
/// it, so it must not outlive it. Not from a `char*` or an array of char: nobody could tell text from a page there.
struct Bytes : nmc_slice_t {
  Bytes() noexcept : nmc_slice_t{nullptr, 0} {}
  Bytes(const void* data, size_t size) noexcept : nmc_slice_t{data, size} {}
  Bytes(const char*) = delete;  // for text say std::string_view("..."), for all of an array nmc::bytes(array)
  template <class C, class = std::enable_if_t<detail::is_plain_v<const C>>>
  Bytes(const C& values) noexcept : nmc_slice_t{std::data(values), std::size(values) * sizeof(*std::data(values))} {}
};

/// All bytes of an array; of a string literal with its NUL.
template <class T, size_t N>
Bytes bytes(const T (&array)[N]) noexcept {
  static_assert(std::is_trivially_copyable_v<T>, "plain data only");
  return {array, sizeof array};
}

/// A key, or the name of a namespace: as Bytes, and also from text that ends with a NUL.
struct Key : Bytes {
  using Bytes::Bytes;
  Key(const char* text) noexcept : Bytes(text, text == nullptr ? 0 : std::strlen(text)) {}
  Key(const Bytes& bytes) noexcept : Bytes(bytes) {}
};

/// Memory that a call writes to. Made from a container of plain data, or address and size; refers to it.
struct MutableBytes : nmc_buffer_t {
  MutableBytes() noexcept : nmc_buffer_t{nullptr, 0} {}
  MutableBytes(void* data, size_t size) noexcept : nmc_buffer_t{data, size} {}
  template <class C, class = std::enable_if_t<detail::is_plain_v<C> && !std::is_const_v<detail::data_of<C>>>>
  MutableBytes(C& values) noexcept : nmc_buffer_t{std::data(values), std::size(values) * sizeof(*std::data(values))} {}
};

/// The keys of a range of strings, for the batch forms; refers to them.
template <class Range>
std::vector<Key> all_keys(const Range& range) {
  return std::vector<Key>(std::begin(range), std::end(range));
}
/// The same for the values of a range of containers.
template <class Range>
std::vector<Bytes> all_bytes(const Range& range) {
  return std::vector<Bytes>(std::begin(range), std::end(range));
}

/// How a store is made or attached to; see nmc_store_config_t.
class StoreConfig {
 public:
  StoreConfig& heap_bytes(uint64_t value) { return c_.heap_bytes = value, *this; }
  StoreConfig& heap_offset(uint64_t value) { return c_.heap_offset = value, *this; }
  StoreConfig& key_slab_bytes(uint64_t value) { return c_.key_slab_bytes = value, *this; }
  StoreConfig& page_bytes(uint32_t value) { return c_.page_bytes = value, *this; }
  StoreConfig& max_objects(uint32_t value) { return c_.max_objects = value, *this; }
  StoreConfig& pin_slots(uint32_t value) { return c_.pin_slots = value, *this; }
  StoreConfig& eviction(Evict value) { return c_.eviction = static_cast<uint32_t>(value), *this; }
  StoreConfig& checksums(bool wanted = true) { return flag(NMC_STORE_CHECKSUMS, wanted); }
  StoreConfig& huge_pages(bool wanted = true) { return flag(NMC_STORE_HUGE_PAGES, wanted); }
  StoreConfig& populate(bool wanted = true) { return flag(NMC_STORE_POPULATE, wanted); }
  StoreConfig& master_rank(int32_t value) { return c_.master_rank = value, *this; }
  /// Above `high`/1000 of a heap the master evicts, down to `low`/1000.
  StoreConfig& watermarks(int32_t low, int32_t high) {
    return c_.low_permille = low, c_.high_permille = high, *this;
  }
  StoreConfig& watchdog(std::chrono::milliseconds value) {
    const auto ms = value.count();
    // Out of range on purpose, so that the library refuses what does not fit.
    return c_.watchdog_ms = ms >= 0 && ms <= INT32_MAX ? static_cast<int32_t>(ms) : INT32_MIN, *this;
  }
  StoreConfig& attach_timeout(std::chrono::milliseconds value) { return c_.attach_timeout_ms = value.count(), *this; }
  StoreConfig& call_timeout(std::chrono::milliseconds value) { return c_.call_timeout_ms = value.count(), *this; }
  /// Of an embedded store: number, kind and device of its heaps.
  StoreConfig& world_size(uint32_t value) { return c_.world_size = value, *this; }
  StoreConfig& heap_kind(HeapKind value) { return c_.heap_kind = static_cast<uint32_t>(value), *this; }
  StoreConfig& device(int32_t value) { return c_.device = value, *this; }

  const nmc_store_config_t& c() const noexcept { return c_; }

 private:
  StoreConfig& flag(uint32_t bit, bool wanted) {
    return c_.flags = wanted ? c_.flags | bit : c_.flags & ~bit, *this;
  }
  nmc_store_config_t c_ = NMC_STORE_CONFIG_INIT;
};

/// How a value is stored; see nmc_put_options_t.
class PutOptions {
 public:
  /// In the heap of this rank.
  PutOptions& on_rank(int32_t value) { return c_.preferred_segment = value, *this; }
  /// In the heap of another rank if that one has no room.
  PutOptions& any_rank(bool wanted = true) { return flag(NMC_PUT_ANY_RANK, wanted); }
  /// In one run of pages.
  PutOptions& contiguous(bool wanted = true) { return flag(NMC_PUT_CONTIGUOUS, wanted); }
  /// In the place of an object with the same key.
  PutOptions& replace(bool wanted = true) { return flag(NMC_PUT_REPLACE, wanted); }
  PutOptions& retain(Retain value) { return c_.retain = static_cast<uint32_t>(value), *this; }
  /// 0 to 3; lower ones are evicted first.
  PutOptions& priority(uint32_t value) { return c_.priority = value, *this; }
  /// How long a soft retention lasts.
  PutOptions& ttl(std::chrono::milliseconds value) { return c_.ttl_ms = static_cast<uint64_t>(value.count()), *this; }
  /// Waits so long for room if there is none; `default_timeout` is the store's call timeout.
  PutOptions& wait(std::chrono::milliseconds value) { return c_.wait_ms = value.count(), *this; }
  /// What is said about the object, up to NMC_MAX_METADATA bytes; refers to them. In a batch, about each.
  PutOptions& metadata(Bytes value) { return c_.metadata = value, *this; }
  /// In a batch: the same for each object, one after the other; refers to the list.
  PutOptions& metadata_each(const std::vector<Bytes>& values) { return c_.metadata_each = values.data(), *this; }

  const nmc_put_options_t& c() const noexcept { return c_; }

 private:
  PutOptions& flag(uint32_t bit, bool wanted) {
    return c_.flags = wanted ? c_.flags | bit : c_.flags & ~bit, *this;
  }
  nmc_put_options_t c_ = NMC_PUT_OPTIONS_INIT;
};

// ------------------------------------------------------------------------------------------------------ results --

/// A value that was read: bytes that it owns. Like a vector, but nobody clears the memory before it is filled.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size) : data_(size == 0 ? nullptr : new std::byte[size]), size_(size), capacity_(size) {}
  Buffer(Buffer&& other) noexcept
      : data_(std::move(other.data_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }

  std::byte* data() noexcept { return data_.get(); }
  const std::byte* data() const noexcept { return data_.get(); }
  size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  std::byte* begin() noexcept { return data(); }
  std::byte* end() noexcept { return data() + size_; }
  const std::byte* begin() const noexcept { return data(); }
  const std::byte* end() const noexcept { return data() + size_; }
  std::byte& operator[](size_t index) noexcept { return data_[index]; }
  const std::byte& operator[](size_t index) const noexcept { return data_[index]; }
  /// The same bytes as text.
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(data()), size_}; }
  /// Keeps only the first `size` bytes.
  void resize(size_t size) noexcept { size_ = size < capacity_ ? size : capacity_; }

 private:
  friend class Store;
  std::unique_ptr<std::byte[]> data_;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

/// What became of the items of a batch. A failed item does not stop the others.
struct Batch {
  std::vector<nmc_status_t> items;
  Failure failure;  ///< of the first item that failed

  bool ok() const noexcept { return failure.status == NMC_OK; }
  explicit operator bool() const noexcept { return ok(); }
  nmc_status_t status() const noexcept { return failure.status; }
  const std::string& message() const noexcept { return failure.message; }
  void value() const {
    if (!ok()) detail::bad_access(failure);
  }
};

/// Numbers about a store, and about each rank's heap.
struct StoreStats : nmc_store_stats_t {
  std::vector<nmc_store_rank_stats_t> ranks;
};

namespace detail {
/// Why a read gave nothing. A status that is no error has left no message.
inline Failure missed(nmc_status_t status) {
  if (status > 0) return Failure{status, "the object is still being written"};
  return failure(status);
}

/// Metadata, which `fetch` copies.
template <class Fetch>
Result<Buffer> metadata(Fetch fetch) {
  Buffer found(NMC_MAX_METADATA);
  size_t bytes = 0;
  const nmc_status_t status = fetch(found.data(), found.size(), &bytes);
  if (status != NMC_OK) return missed(status);
  found.resize(bytes);
  return Result<Buffer>(std::move(found));
}

/// The runs of bytes that a value lies in: one as a rule, and then without an allocation.
class Runs {
 public:
  Runs() = default;
  template <class Fetch>
  static Result<Runs> fetch(uint32_t n, const void* data, const void* device, uint64_t bytes, Fetch fetch) {
    Runs runs;
    runs.count_ = n;
    if (n == 1) runs.first_ = {const_cast<void*>(data), const_cast<void*>(device), bytes};
    if (n > 1) {
      runs.rest_.resize(n);
      size_t found = 0;
      const nmc_status_t status = fetch(runs.rest_.data(), runs.rest_.size(), &found);
      if (status < 0) return failure(status);
    }
    return runs;
  }
  view<const nmc_extent_t> all() const noexcept { return {count_ > 1 ? rest_.data() : &first_, count_}; }
  /// Page `index`, which is never split.
  bytes_view page(uint32_t index, uint32_t page_bytes) const noexcept {
    uint64_t at = uint64_t{index} * page_bytes;
    for (const nmc_extent_t& run : all()) {
      if (at < run.bytes) {
        const uint64_t left = run.bytes - at;
        return {static_cast<std::byte*>(run.ptr) + at, static_cast<size_t>(left < page_bytes ? left : page_bytes)};
      }
      at -= run.bytes;
    }
    return {};
  }

 private:
  nmc_extent_t first_{};
  std::vector<nmc_extent_t> rest_;
  uint32_t count_ = 0;
};
}  // namespace detail

// --------------------------------------------------------------------------------------------------------- view --

/// A pinned object: its bytes stay where and what they are until the view is destroyed. Move-only. The addresses end
/// with the store.
class View {
 public:
  View() = default;
  View(View&& other) noexcept { swap(other); }
  View& operator=(View&& other) noexcept {
    View taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~View() {
    if (store_ != nullptr) (void)nmc_store_unpin(store_, &c_);
  }

  explicit operator bool() const noexcept { return store_ != nullptr; }
  /// First byte. The others follow it only if the value is contiguous().
  const std::byte* data() const noexcept { return static_cast<const std::byte*>(c_.data); }
  const void* device_data() const noexcept { return c_.data_device; }
  size_t size() const noexcept { return static_cast<size_t>(c_.bytes); }
  bool empty() const noexcept { return c_.bytes == 0; }
  bool contiguous() const noexcept { return c_.n_extents <= 1; }
  view<const nmc_extent_t> extents() const noexcept { return runs_.all(); }
  uint32_t page_bytes() const noexcept { return c_.page_bytes; }
  uint32_t n_pages() const noexcept {
    return c_.page_bytes == 0 ? 0 : static_cast<uint32_t>((c_.bytes + c_.page_bytes - 1) / c_.page_bytes);
  }
  /// The bytes of a page; empty behind the last.
  const_bytes_view page(uint32_t index) const noexcept { return runs_.page(index, c_.page_bytes); }
  uint64_t epoch() const noexcept { return c_.epoch; }
  uint32_t owner_rank() const noexcept { return c_.owner_rank; }
  const nmc_view_t& c() const noexcept { return c_; }

  /// How many pages can be read by now; fewer than all only if the object was pinned while it was being written.
  Result<uint32_t> try_ready_pages() const {
    uint32_t pages = 0;
    const nmc_status_t status = nmc_store_ready_pages(store_, &c_, &pages);
    if (status < 0) return detail::failure(status);
    return pages;
  }
  /// What the writer of the object said about it; empty if nothing.
  Result<Buffer> try_metadata() const {
    return detail::metadata([&](void* to, size_t capacity, size_t* bytes) {
      return nmc_store_view_metadata(store_, &c_, to, capacity, bytes);
    });
  }
  /// Compares every page with its checksum: NMC_ERR_CORRUPT if one is wrong, NMC_ERR_UNSUPPORTED in a store without them.
  /// False if they are not stored yet.
  Result<bool> try_verify() const {
    const nmc_status_t status = nmc_store_verify(store_, &c_);
    if (status < 0) return detail::failure(status);
    return status == NMC_OK;
  }
  /// Unpins now.
  Result<void> try_unpin() {
    const nmc_status_t status = nmc_store_unpin(store_, &c_);
    store_ = nullptr;
    return detail::done(status);
  }
  /// Leaves the unpinning to a CUDA stream, after all that was enqueued before. The view is empty then.
  Result<void> try_unpin_async(void* stream) {
    const nmc_status_t status = nmc_store_unpin_async(store_, &c_, stream);
    if (status >= 0) store_ = nullptr;
    return detail::done(status);
  }
#if NMC_HPP_EXCEPTIONS
  uint32_t ready_pages() const { return try_ready_pages().value(); }
  Buffer metadata() const { return try_metadata().value(); }
  bool verify() const { return try_verify().value(); }
  void unpin() { try_unpin().value(); }
  void unpin_async(void* stream) { try_unpin_async(stream).value(); }
#endif

 private:
  friend class Store;
  static Result<View> adopt(nmc_store_t* store, const nmc_view_t& c) {
    View made;
    made.store_ = store;  // from here on it is unpinned, whatever happens
    made.c_ = c;
    const auto fetch = [&](nmc_extent_t* to, size_t n, size_t* found) {
      return nmc_store_view_extents(store, &c, to, n, found);
    };
    auto runs = detail::Runs::fetch(c.n_extents, c.data, c.data_device, c.bytes, fetch);
    if (!runs) return Failure{runs.status(), runs.message()};
    made.runs_ = std::move(runs).value();
    return Result<View>(std::move(made));
  }
  void swap(View& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(c_, other.c_);
    std::swap(runs_, other.runs_);
  }

  nmc_store_t* store_ = nullptr;
  nmc_view_t c_{};
  detail::Runs runs_;
};

// --------------------------------------------------------------------------------------------------------- plan --

/// An object that is open for writing: the program stores its bytes where the plan says, and commits. The destructor
/// gives it up unless it was committed. Move-only.
class WritePlan {
 public:
  WritePlan() = default;
  WritePlan(WritePlan&& other) noexcept { swap(other); }
  WritePlan& operator=(WritePlan&& other) noexcept {
    WritePlan taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~WritePlan() {
    if (store_ != nullptr && !committed_) (void)nmc_store_abort(store_, &c_);
  }

  explicit operator bool() const noexcept { return store_ != nullptr; }
  bool committed() const noexcept { return committed_; }
  /// First byte. The others follow it only if the value is contiguous().
  std::byte* data() const noexcept { return static_cast<std::byte*>(c_.payload); }
  void* device_data() const noexcept { return c_.payload_device; }
  size_t size() const noexcept { return static_cast<size_t>(c_.bytes_total); }
  bool contiguous() const noexcept { return c_.n_extents <= 1; }
  view<const nmc_extent_t> extents() const noexcept { return runs_.all(); }
  uint32_t page_bytes() const noexcept { return c_.page_bytes; }
  uint32_t n_pages() const noexcept { return c_.n_pages; }
  /// The bytes of a page; empty behind the last.
  bytes_view page(uint32_t index) const noexcept { return runs_.page(index, c_.page_bytes); }
  uint64_t epoch() const noexcept { return c_.epoch; }
  uint32_t dst_rank() const noexcept { return c_.dst_rank; }
  const nmc_write_plan_t& c() const noexcept { return c_; }

  /// All bytes are stored: readers may have the object.
  Result<void> try_commit() {
    const nmc_status_t status = nmc_store_commit(store_, &c_);
    committed_ = committed_ || status >= 0;
    return detail::done(status);
  }
  /// A CUDA stream publishes when it gets there. commit() afterwards tells what became of it, and wakes who waits.
  Result<void> try_commit_async(void* stream) const {
    return detail::done(nmc_store_commit_async(store_, &c_, stream));
  }
  /// The first `pages` pages are stored: readers may begin with them.
  Result<void> try_publish_pages(uint32_t pages) const {
    return detail::done(nmc_store_publish_pages(store_, &c_, pages));
  }
  /// Gives the plan up now.
  Result<void> try_abort() {
    const nmc_status_t status = nmc_store_abort(store_, &c_);
    if (status >= 0) store_ = nullptr;
    return detail::done(status);
  }
#if NMC_HPP_EXCEPTIONS
  void commit() { try_commit().value(); }
  void commit_async(void* stream) const { try_commit_async(stream).value(); }
  void publish_pages(uint32_t pages) const { try_publish_pages(pages).value(); }
  void abort() { try_abort().value(); }
#endif

 private:
  friend class Store;
  static Result<WritePlan> adopt(nmc_store_t* store, const nmc_write_plan_t& c) {
    WritePlan made;
    made.store_ = store;  // from here on it is given up, whatever happens
    made.c_ = c;
    const auto fetch = [&](nmc_extent_t* to, size_t n, size_t* found) {
      return nmc_store_plan_extents(store, &c, to, n, found);
    };
    auto runs = detail::Runs::fetch(c.n_extents, c.payload, c.payload_device, c.bytes_total, fetch);
    if (!runs) return Failure{runs.status(), runs.message()};
    made.runs_ = std::move(runs).value();
    return Result<WritePlan>(std::move(made));
  }
  void swap(WritePlan& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(committed_, other.committed_);
    std::swap(c_, other.c_);
    std::swap(runs_, other.runs_);
  }

  nmc_store_t* store_ = nullptr;
  bool committed_ = false;
  nmc_write_plan_t c_{};
  detail::Runs runs_;
};

/// Plans of a batch; those of failed items are empty.
struct PlanBatch : Batch {
  std::vector<WritePlan> plans;
};
/// Views of a batch; those of failed items are empty.
struct ViewBatch : Batch {
  std::vector<View> views;
};

// -------------------------------------------------------------------------------------------------------- store --

/// A client of a store, in one of its namespaces. Move-only; the destructor leaves the store. All members may be called
/// from any thread. Views and plans must be gone before it is.
class Store : public detail::Handle<nmc_store_t, nmc_store_destroy> {
 public:
  using Handle::Handle;

  /// A store of this process alone, with a heap of `config.heap_bytes`.
  static Result<Store> try_embedded(const StoreConfig& config) { return create(nullptr, config); }
  /// The store of a world, for one of its ranks. The world must outlive it.
  static Result<Store> try_attach(const AnyWorld& world, const StoreConfig& config = {}) {
    if (!world) return Failure{NMC_ERR_BAD_HANDLE, "the world is empty; Store::embedded makes a store without one"};
    return create(world.get(), config);
  }
  /// The same store with keys of its own, and a quota: 0 for none.
  Result<Store> try_namespace_(Key name, uint64_t quota_bytes = same_quota) const {
    nmc_store_t* handle = nullptr;
    const nmc_status_t status = nmc_store_namespace(get(), name, quota_bytes, &handle);
    if (status < 0) return detail::failure(status);
    return Store(handle);
  }

  // ---- writing ------------------------------------------------------------------------------------------------------

  Result<void> try_put(Key key, Bytes value, const PutOptions& options = {}) const {
    return detail::done(nmc_store_put(get(), key, value.ptr, value.len, &options.c()));
  }
  /// From several pieces, one after the other.
  Result<void> try_put_slices(Key key, const std::vector<Bytes>& slices, const PutOptions& options = {}) const {
    return detail::done(nmc_store_put_slices(get(), key, slices.data(), slices.size(), &options.c()));
  }
  /// From rows of `row_bytes` bytes whose beginnings are `stride` bytes apart.
  Result<void> try_put_strided(Key key, const void* data, size_t rows, size_t row_bytes, size_t stride,
                               const PutOptions& options = {}) const {
    return detail::done(nmc_store_put_strided(get(), key, data, rows, row_bytes, stride, &options.c()));
  }
  /// An object whose bytes the program stores itself.
  Result<WritePlan> try_open_for_write(Key key, uint64_t bytes, const PutOptions& options = {}) const {
    nmc_write_plan_t c{};
    const nmc_status_t status = nmc_store_open_for_write(get(), key, bytes, &options.c(), &c);
    if (status < 0) return detail::failure(status);
    return WritePlan::adopt(get(), c);
  }

  // ---- reading ------------------------------------------------------------------------------------------------------

  /// A copy of the value.
  Result<Buffer> try_get(Key key) const {
    Buffer value;
    for (;;) {  // another object may take the key between the question for its size and the read
      size_t size = 0;
      const nmc_status_t status = nmc_store_get(get(), key, value.data(), value.capacity_, &size);
      if (status != NMC_OK && status != NMC_ERR_TOO_SMALL) return detail::missed(status);
      if (size <= value.capacity_) {
        value.size_ = size;
        return Result<Buffer>(std::move(value));
      }
      value = Buffer(size);
    }
  }
  /// The size of the value.
  Result<size_t> try_size(Key key) const {
    size_t size = 0;
    const nmc_status_t status = nmc_store_get(get(), key, nullptr, 0, &size);
    return read(status, size);
  }
  /// Into memory of exactly the value's size. The result is the number of bytes read, also in the next three.
  Result<size_t> try_get_into(Key key, MutableBytes to) const {
    return read(nmc_store_get_into(get(), key, to.ptr, to.len), to.len);
  }
  /// A part of the value, from byte `offset` on.
  Result<size_t> try_get_range(Key key, uint64_t offset, MutableBytes to) const {
    return read(nmc_store_get_slices(get(), key, offset, &to, 1, nullptr), to.len);
  }
  /// The same into several pieces of memory.
  Result<size_t> try_get_slices(Key key, uint64_t offset, const std::vector<MutableBytes>& to) const {
    size_t bytes = 0;
    for (const MutableBytes& piece : to) bytes += piece.len;
    return read(nmc_store_get_slices(get(), key, offset, to.data(), to.size(), nullptr), bytes);
  }
  /// The same into rows of `row_bytes` bytes whose beginnings are `stride` bytes apart.
  Result<size_t> try_get_strided(Key key, uint64_t offset, void* to, size_t rows, size_t row_bytes,
                                 size_t stride) const {
    return read(nmc_store_get_strided(get(), key, offset, to, rows, row_bytes, stride), rows * row_bytes);
  }
  /// The value in place.
  Result<View> try_pin(Key key) const {
    nmc_view_t c{};
    const nmc_status_t status = nmc_store_pin(get(), key, &c);
    if (status != NMC_OK) return detail::missed(status);
    return View::adopt(get(), c);
  }
  /// The same while it is being written, if its first `pages` pages are ready.
  Result<View> try_pin_partial(Key key, uint32_t pages) const {
    nmc_view_t c{};
    const nmc_status_t status = nmc_store_pin_partial(get(), key, pages, &c);
    if (status != NMC_OK) return detail::missed(status);
    return View::adopt(get(), c);
  }
  /// The value in place, for this caller alone: it is removed from the store, and of several who ask one gets it. If that one
  /// dies, the value is gone with it.
  Result<View> try_consume(Key key) const {
    nmc_view_t c{};
    const nmc_status_t status = nmc_store_consume(get(), key, &c);
    if (status != NMC_OK) return detail::missed(status);
    return View::adopt(get(), c);
  }
  /// What the writer of an object said about it (PutOptions::metadata); empty if nothing.
  Result<Buffer> try_metadata(Key key) const {
    return detail::metadata([&](void* to, size_t capacity, size_t* bytes) {
      return nmc_store_get_metadata(get(), key, to, capacity, bytes);
    });
  }
  Result<ObjectState> try_state(Key key) const {
    uint32_t state = 0;
    const nmc_status_t status = nmc_store_exists(get(), key, &state);
    if (status < 0) return detail::failure(status);
    return static_cast<ObjectState>(state);
  }
  /// Whether the object can be read.
  Result<bool> try_exists(Key key) const {
    const Result<ObjectState> state = try_state(key);
    if (!state) return Failure{state.status(), state.message()};
    return state.value() == ObjectState::ready || state.value() == ObjectState::on_disk;
  }
  /// Where an object is; it is not pinned.
  Result<nmc_object_meta_t> try_location(Key key) const {
    nmc_object_meta_t meta{};
    const nmc_status_t status = nmc_store_get_location(get(), key, &meta);
    if (status != NMC_OK) return detail::missed(status);
    return meta;
  }
  /// How many of the keys, from the first on, can be read.
  Result<size_t> try_match_prefix(const std::vector<Key>& keys) const {
    size_t matched = 0;
    const nmc_status_t status = nmc_store_match_prefix(get(), keys.data(), keys.size(), &matched);
    return read(status, matched);
  }
  /// Calls `one(std::string_view key, uint64_t bytes)` for the objects that can be read; if it returns a bool, until
  /// that is false. Gives how many it was called for.
  template <class One>
  Result<size_t> try_for_each(One one) const {
    std::array<char, 1024> key;  // the longest there is
    uint64_t cursor = 0;
    for (size_t n = 0;; ++n) {
      size_t len = 0;
      uint64_t bytes = 0;
      const nmc_status_t status = nmc_store_next(get(), &cursor, key.data(), key.size(), &len, &bytes);
      if (status == NMC_ERR_NOT_FOUND) return n;
      if (status < 0) return detail::failure(status);
      if constexpr (std::is_same_v<decltype(one(std::string_view(), bytes)), bool>) {
        if (!one(std::string_view(key.data(), len), bytes)) return n + 1;
      } else {
        one(std::string_view(key.data(), len), bytes);
      }
    }
  }

  // ---- keeping ------------------------------------------------------------------------------------------------------

  Result<void> try_remove(Key key) const { return detail::done(nmc_store_remove(get(), key)); }
  /// Gives how many were removed.
  Result<uint64_t> try_remove_by_prefix(Key prefix) const {
    uint64_t removed = 0;
    const nmc_status_t status = nmc_store_remove_by_prefix(get(), prefix, &removed);
    if (status < 0) return detail::failure(status);
    return removed;
  }
  /// Forgets every object of the namespace.
  Result<void> try_remove_all() const { return detail::done(nmc_store_remove_all(get())); }
  /// Counts as an access.
  Result<void> try_touch(Key key) const { return detail::done(nmc_store_touch(get(), key)); }
  Result<void> try_retain(Key key, Retain retain, uint32_t priority = 0,
                          std::chrono::milliseconds ttl = std::chrono::milliseconds(0)) const {
    const auto ms = static_cast<uint64_t>(ttl.count());
    return detail::done(nmc_store_retain(get(), key, static_cast<uint32_t>(retain), priority, ms));
  }
  Result<void> try_evict_until_below(int32_t rank, uint32_t permille) const {
    return detail::done(nmc_store_evict_until_below(get(), rank, permille));
  }

  // ---- waiting ------------------------------------------------------------------------------------------------------

  Result<void> try_wait_ready(Key key, Wait wait = Wait::written,
                              std::chrono::milliseconds timeout = default_timeout) const {
    return detail::done(nmc_store_wait_ready(get(), key, static_cast<uint32_t>(wait), timeout.count()));
  }
  /// Until the first `pages` pages are ready.
  Result<void> try_wait_pages(Key key, uint32_t pages, Wait wait = Wait::written,
                              std::chrono::milliseconds timeout = default_timeout) const {
    return detail::done(nmc_store_wait_pages(get(), key, pages, static_cast<uint32_t>(wait), timeout.count()));
  }
  /// Queues a completion with `token` when the object can be read, or will not become so.
  Result<void> try_watch(Key key, uint64_t token, Wait wait = Wait::written) const {
    return detail::done(nmc_store_watch(get(), key, static_cast<uint32_t>(wait), token));
  }
  /// Takes what is queued, the oldest first, at most `most`. `lost` of one tells how many just before it are gone, since
  /// nobody took them and more than `NMC_MAX_COMPLETIONS` waited.
  Result<std::vector<nmc_completion_t>> try_completions(size_t most = 64) const {
    std::vector<nmc_completion_t> taken(most);
    size_t n = 0;
    const nmc_status_t status = nmc_store_completions(get(), taken.data(), taken.size(), &n);
    if (status < 0) return detail::failure(status);
    taken.resize(n);
    return taken;
  }
  /// Readable while completions are queued; belongs to the store.
  Result<int> try_event_fd() const {
    int32_t fd = -1;
    const nmc_status_t status = nmc_store_event_fd(get(), &fd);
    if (status < 0) return detail::failure(status);
    return static_cast<int>(fd);
  }
  /// Ends every wait and watch of this client.
  Result<void> try_cancel() const { return detail::done(nmc_store_cancel(get())); }

  // ---- many at a time -----------------------------------------------------------------------------------------------

  Batch try_put_batch(const std::vector<Key>& keys, const std::vector<Bytes>& values,
                      const PutOptions& options = {}) const {
    return batch<Batch>(keys.size(), values.size(), [&](nmc_status_t* items) {
      return nmc_store_put_batch(get(), keys.data(), values.data(), keys.size(), &options.c(), items);
    });
  }
  Batch try_get_into_batch(const std::vector<Key>& keys, const std::vector<MutableBytes>& buffers) const {
    return batch<Batch>(keys.size(), buffers.size(), [&](nmc_status_t* items) {
      return nmc_store_get_into_batch(get(), keys.data(), buffers.data(), keys.size(), items);
    });
  }
  Batch try_remove_batch(const std::vector<Key>& keys) const {
    return batch<Batch>(keys.size(), keys.size(), [&](nmc_status_t* items) {
      return nmc_store_remove_batch(get(), keys.data(), keys.size(), items);
    });
  }
  Result<std::vector<ObjectState>> try_state_batch(const std::vector<Key>& keys) const {
    std::vector<uint32_t> states(keys.size());
    const nmc_status_t status = nmc_store_exists_batch(get(), keys.data(), keys.size(), states.data());
    if (status < 0) return detail::failure(status);
    std::vector<ObjectState> found;
    for (uint32_t state : states) found.push_back(static_cast<ObjectState>(state));
    return found;
  }
  PlanBatch try_open_batch(const std::vector<Key>& keys, const std::vector<uint64_t>& sizes,
                           const PutOptions& options = {}) const {
    std::vector<nmc_write_plan_t> plans(keys.size());
    PlanBatch made = batch<PlanBatch>(keys.size(), sizes.size(), [&](nmc_status_t* items) {
      return nmc_store_open_batch(get(), keys.data(), sizes.data(), keys.size(), &options.c(), plans.data(), items);
    });
    adopt(made, made.plans, plans);
    return made;
  }
  Batch try_commit_batch(std::vector<WritePlan>& plans) const {
    std::vector<nmc_write_plan_t> c;
    for (const WritePlan& plan : plans) c.push_back(plan.c());
    Batch done = batch<Batch>(c.size(), c.size(), [&](nmc_status_t* items) {
      return nmc_store_commit_batch(get(), c.data(), c.size(), items);
    });
    for (size_t i = 0; i < plans.size(); ++i) plans[i].committed_ = plans[i].committed_ || done.items[i] >= 0;
    return done;
  }
  /// Pins as many as can be.
  ViewBatch try_pin_batch(const std::vector<Key>& keys) const {
    std::vector<nmc_view_t> views(keys.size());
    size_t pinned = 0;
    ViewBatch made = batch<ViewBatch>(keys.size(), keys.size(), [&](nmc_status_t* items) {
      return nmc_store_pin_batch(get(), keys.data(), keys.size(), views.data(), &pinned, items);
    });
    adopt(made, made.views, views);
    return made;
  }
  Batch try_unpin_batch(std::vector<View>& views) const {
    std::vector<nmc_view_t> c;
    for (const View& each : views) c.push_back(each.c());
    Batch done = batch<Batch>(c.size(), c.size(), [&](nmc_status_t* items) {
      return nmc_store_unpin_batch(get(), c.data(), c.size(), items);
    });
    for (View& each : views) each.store_ = nullptr;
    return done;
  }

  // ---- looking ------------------------------------------------------------------------------------------------------

  Result<StoreStats> try_stats() const {
    StoreStats stats;
    static_cast<nmc_store_stats_t&>(stats) = NMC_STORE_STATS_INIT;
    stats.ranks.assign(NMC_MAX_RANKS, nmc_store_rank_stats_t NMC_STORE_RANK_STATS_INIT);
    const nmc_status_t status = nmc_store_stats(get(), stats.ranks.data(), stats.ranks.size(), &stats);
    if (status < 0) return detail::failure(status);
    stats.ranks.resize(stats.n_ranks);
    return stats;
  }
  /// The numbers in the text format of Prometheus.
  Result<std::string> try_prometheus() const {
    return detail::text([&](char* buffer, size_t capacity, size_t* needed) {
      return nmc_store_prometheus(get(), buffer, capacity, needed);
    });
  }
  /// A picture of the heaps for people, `width` characters a rank.
  Result<std::string> try_dump(uint32_t width = 80) const {
    return detail::text([&](char* buffer, size_t capacity, size_t* needed) {
      return nmc_store_dump(get(), width, buffer, capacity, needed);
    });
  }

#if NMC_HPP_EXCEPTIONS
  static Store embedded(const StoreConfig& config) { return try_embedded(config).value(); }
  static Store attach(const AnyWorld& world, const StoreConfig& config = {}) { return try_attach(world, config).value(); }
  Store namespace_(Key name, uint64_t quota_bytes = same_quota) const {
    return try_namespace_(name, quota_bytes).value();
  }
  void put(Key key, Bytes value, const PutOptions& options = {}) const { try_put(key, value, options).value(); }
  void put_slices(Key key, const std::vector<Bytes>& slices, const PutOptions& options = {}) const {
    try_put_slices(key, slices, options).value();
  }
  void put_strided(Key key, const void* data, size_t rows, size_t row_bytes, size_t stride,
                   const PutOptions& options = {}) const {
    try_put_strided(key, data, rows, row_bytes, stride, options).value();
  }
  WritePlan open_for_write(Key key, uint64_t bytes, const PutOptions& options = {}) const {
    return try_open_for_write(key, bytes, options).value();
  }
  Buffer get(Key key) const { return try_get(key).value(); }
  size_t size(Key key) const { return try_size(key).value(); }
  size_t get_into(Key key, MutableBytes to) const { return try_get_into(key, to).value(); }
  size_t get_range(Key key, uint64_t offset, MutableBytes to) const { return try_get_range(key, offset, to).value(); }
  size_t get_slices(Key key, uint64_t offset, const std::vector<MutableBytes>& to) const {
    return try_get_slices(key, offset, to).value();
  }
  size_t get_strided(Key key, uint64_t offset, void* to, size_t rows, size_t row_bytes, size_t stride) const {
    return try_get_strided(key, offset, to, rows, row_bytes, stride).value();
  }
  View pin(Key key) const { return try_pin(key).value(); }
  View pin_partial(Key key, uint32_t pages) const { return try_pin_partial(key, pages).value(); }
  View consume(Key key) const { return try_consume(key).value(); }
  Buffer metadata(Key key) const { return try_metadata(key).value(); }
  ObjectState state(Key key) const { return try_state(key).value(); }
  bool exists(Key key) const { return try_exists(key).value(); }
  nmc_object_meta_t location(Key key) const { return try_location(key).value(); }
  size_t match_prefix(const std::vector<Key>& keys) const { return try_match_prefix(keys).value(); }
  template <class One>
  size_t for_each(One one) const {
    return try_for_each(std::move(one)).value();
  }
  void remove(Key key) const { try_remove(key).value(); }
  uint64_t remove_by_prefix(Key prefix) const { return try_remove_by_prefix(prefix).value(); }
  void remove_all() const { try_remove_all().value(); }
  void touch(Key key) const { try_touch(key).value(); }
  void retain(Key key, Retain retain, uint32_t priority = 0,
              std::chrono::milliseconds ttl = std::chrono::milliseconds(0)) const {
    try_retain(key, retain, priority, ttl).value();
  }
  void evict_until_below(int32_t rank, uint32_t permille) const { try_evict_until_below(rank, permille).value(); }
  void wait_ready(Key key, Wait wait = Wait::written, std::chrono::milliseconds timeout = default_timeout) const {
    try_wait_ready(key, wait, timeout).value();
  }
  void wait_pages(Key key, uint32_t pages, Wait wait = Wait::written,
                  std::chrono::milliseconds timeout = default_timeout) const {
    try_wait_pages(key, pages, wait, timeout).value();
  }
  void watch(Key key, uint64_t token, Wait wait = Wait::written) const { try_watch(key, token, wait).value(); }
  std::vector<nmc_completion_t> completions(size_t most = 64) const { return try_completions(most).value(); }
  int event_fd() const { return try_event_fd().value(); }
  void cancel() const { try_cancel().value(); }
  void put_batch(const std::vector<Key>& keys, const std::vector<Bytes>& values,
                 const PutOptions& options = {}) const {
    try_put_batch(keys, values, options).value();
  }
  void get_into_batch(const std::vector<Key>& keys, const std::vector<MutableBytes>& buffers) const {
    try_get_into_batch(keys, buffers).value();
  }
  void remove_batch(const std::vector<Key>& keys) const { try_remove_batch(keys).value(); }
  std::vector<ObjectState> state_batch(const std::vector<Key>& keys) const { return try_state_batch(keys).value(); }
  /// All of them: if one fails, the others are given up.
  std::vector<WritePlan> open_batch(const std::vector<Key>& keys, const std::vector<uint64_t>& sizes,
                                    const PutOptions& options = {}) const {
    PlanBatch made = try_open_batch(keys, sizes, options);
    made.value();
    return std::move(made.plans);
  }
  void commit_batch(std::vector<WritePlan>& plans) const { try_commit_batch(plans).value(); }
  /// All of them: if one fails, the others are unpinned.
  std::vector<View> pin_batch(const std::vector<Key>& keys) const {
    ViewBatch made = try_pin_batch(keys);
    made.value();
    return std::move(made.views);
  }
  void unpin_batch(std::vector<View>& views) const { try_unpin_batch(views).value(); }
  StoreStats stats() const { return try_stats().value(); }
  std::string prometheus() const { return try_prometheus().value(); }
  std::string dump(uint32_t width = 80) const { return try_dump(width).value(); }
#endif
  using Handle::get;  // the C handle; get(key) is the read

 private:
  static Result<Store> create(nmc_world_t* world, const StoreConfig& config) {
    nmc_store_t* handle = nullptr;
    const nmc_status_t status = nmc_store_create(world, &config.c(), &handle);
    if (status < 0) return detail::failure(status);
    return Store(handle);
  }

  static Result<size_t> read(nmc_status_t status, size_t bytes) {
    if (status != NMC_OK) return detail::missed(status);
    return bytes;
  }

  /// Runs a call on `n` items; `others` is the length of what goes with them.
  template <class B, class Call>
  static B batch(size_t n, size_t others, Call call) {
    B made;
    if (n != others) {
      const std::string text = std::to_string(n) + " keys do not go with " + std::to_string(others) + " others";
      made.failure = {NMC_ERR_INVALID_ARG, text};
      made.items.assign(n, NMC_ERR_INVALID_ARG);
      return made;
    }
    constexpr nmc_status_t untouched = INT32_MIN;
    made.items.assign(n, untouched);
    const nmc_status_t status = call(made.items.data());
    if (status != NMC_OK) made.failure = detail::missed(status);
    for (nmc_status_t& item : made.items) {
      if (item == untouched) item = status;  // the call as a whole was refused
    }
    return made;
  }

  /// Takes over the plans or views of the items that went well.
  template <class T, class C>
  void adopt(Batch& made, std::vector<T>& to, const std::vector<C>& from) const {
    to.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) {
      if (made.items[i] != NMC_OK) continue;
      Result<T> one = T::adopt(get(), from[i]);
      if (one) {
        to[i] = std::move(one).value();
        continue;
      }
      made.items[i] = one.status();
      if (made.ok()) made.failure = {one.status(), one.message()};
    }
  }
};

// ------------------------------------------------------------------------------------------------------- checks --

namespace detail {
static_assert(is_move_only_v<Store> && is_move_only_v<View> && is_move_only_v<WritePlan>, "pins have one owner");
static_assert(sizeof(Store) == sizeof(void*), "a handle costs one pointer");
static_assert(sizeof(Bytes) == sizeof(nmc_slice_t) && sizeof(Key) == sizeof(nmc_slice_t) &&
                  sizeof(MutableBytes) == sizeof(nmc_buffer_t),
              "arrays of them are arrays of the C structs");
}  // namespace detail

}  // namespace nmc

#endif  // NANOMC_STORE_HPP
