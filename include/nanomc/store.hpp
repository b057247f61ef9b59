/*
 * The object store for C++17. In nmc::nothrow the same with results instead of exceptions: nanomc/core.hpp says how, and what
 * `Mode` and `Out<T>` are.
 *
 *   nmc::Store store = nmc::Store::attach(world, nmc::StoreConfig().page_bytes(256 << 10));
 *   store.put("prompt/17", kv);                                         // from a vector, a string, pointer and size, ...
 *   nmc::View view = store.pin("prompt/17");                            // in place, no copy; unpinned with the scope
 *   if (std::optional<nmc::View> hit = store.find("prompt/18"))         // the same, for a key that may be missing
 *     attend(hit->page(0).data());
 *
 * A key that is missing or still being written is an error of pin, get, and the calls that copy: NMC_ERR_NOT_FOUND or
 * NMC_NOT_READY. Of find, of those that end in _if, and of questions (size, location, metadata) it is an answer: std::nullopt.
 */
#ifndef NANOMC_STORE_HPP
#define NANOMC_STORE_HPP

#include <array>
#include <iterator>
#include <string_view>

#include "nanomc/bytes.hpp"
#include "nanomc/world.hpp"

namespace nmc {

// ---------------------------------------------------------------------------------------------------- constants --

/// How an object is kept: evicted as the policy says, after the others, or never.
enum class Retain : uint32_t { none = NMC_RETAIN_NONE, soft = NMC_RETAIN_SOFT, hard = NMC_RETAIN_HARD };
/// What is known of a key.
enum class ObjectState : uint32_t {
  absent = NMC_OBJECT_ABSENT,
  writing = NMC_OBJECT_WRITING,
  ready = NMC_OBJECT_READY,
  on_disk = NMC_OBJECT_ON_DISK,
  elsewhere = NMC_OBJECT_ELSEWHERE,
};
/// Whether a wait ends at once for a key that is not being written.
enum class Wait : uint32_t { written = 0, appear = NMC_WAIT_APPEAR };

/// For Store::namespace_: leave the quota as it is.
inline constexpr uint64_t same_quota = UINT64_MAX;

// ------------------------------------------------------------------------------------------------------ options --

/// How a store is created or attached to; see nmc_store_config_t.
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
  /// Until the tier is open, nothing is stored and no key counts as missing; see NMC_STORE_WAIT_FOR_TIER.
  StoreConfig& wait_for_tier(bool wanted = true) { return flag(NMC_STORE_WAIT_FOR_TIER, wanted); }
  StoreConfig& master_rank(int32_t value) { return c_.master_rank = value, *this; }
  /// Above `high`/1000 of a heap the master evicts, down to `low`/1000.
  StoreConfig& watermarks(int32_t low, int32_t high) {
    return c_.low_permille = low, c_.high_permille = high, *this;
  }
  StoreConfig& watchdog(std::chrono::milliseconds value) {
    const auto ms = value.count();
    // Out of range on purpose, so that the library refuses what does not fit.
    return c_.watchdog_ms = ms >= -1 && ms <= INT32_MAX ? static_cast<int32_t>(ms) : INT32_MIN, *this;
  }
  StoreConfig& attach_timeout(std::chrono::milliseconds value) { return c_.attach_timeout_ms = value.count(), *this; }
  StoreConfig& call_timeout(std::chrono::milliseconds value) { return c_.call_timeout_ms = value.count(), *this; }
  /// Embedded store: number, kind and device of its heaps.
  StoreConfig& world_size(uint32_t value) { return c_.world_size = value, *this; }
  StoreConfig& heap_kind(HeapKind value) { return c_.heap_kind = static_cast<uint32_t>(value), *this; }
  StoreConfig& device(int32_t value) { return c_.device = value, *this; }
  StoreConfig& huge_pages(bool wanted = true) { return heap_flag(NMC_HEAP_HUGE_PAGES, wanted); }
  StoreConfig& populate(bool wanted = true) { return heap_flag(NMC_HEAP_POPULATE, wanted); }
  /// Embedded store: memory of the program to use as its one heap, as much as `heap_bytes` and `heap_offset` say, until the store is
  /// destroyed.
  StoreConfig& lend_host_ptr(void* ptr) { return lend(NMC_IMPORT_HOST_PTR, -1, ptr); }
  /// All of this memory: `heap_bytes` is its size, from byte 0 on.
  StoreConfig& lend_host_ptr(MutableBytes memory) { return heap_bytes(memory.len).heap_offset(0).lend_host_ptr(memory.ptr); }
  StoreConfig& lend_host_fd(int fd) { return lend(NMC_IMPORT_HOST_FD, fd, nullptr); }
  StoreConfig& lend_cuda_ptr(void* ptr) { return lend(NMC_IMPORT_CUDA_PTR, -1, ptr); }
  StoreConfig& lend_cuda_ptr(MutableBytes memory) { return heap_bytes(memory.len).heap_offset(0).lend_cuda_ptr(memory.ptr); }
  StoreConfig& lend_cuda_fd(int fd) { return lend(NMC_IMPORT_CUDA_FD, fd, nullptr); }

  const nmc_store_config_t& c() const noexcept { return c_; }

 private:
  StoreConfig& flag(uint32_t bit, bool wanted) {
    return c_.flags = wanted ? c_.flags | bit : c_.flags & ~bit, *this;
  }
  StoreConfig& heap_flag(uint32_t bit, bool wanted) {
    return c_.heap_flags = wanted ? c_.heap_flags | bit : c_.heap_flags & ~bit, *this;
  }
  StoreConfig& lend(uint32_t kind, int32_t fd, void* ptr) { return c_.heap_import = {kind, fd, ptr}, *this; }
  nmc_store_config_t c_ = NMC_STORE_CONFIG_INIT;
};

/// How a value is stored; see nmc_put_options_t.
class PutOptions {
 public:
  /// Stores the value in the heap of this rank.
  PutOptions& on_rank(int32_t value) { return c_.preferred_segment = value, *this; }
  /// Uses the heap of another rank if that one has no room.
  PutOptions& any_rank(bool wanted = true) { return flag(NMC_PUT_ANY_RANK, wanted); }
  /// Stores the value in one run of pages.
  PutOptions& contiguous(bool wanted = true) { return flag(NMC_PUT_CONTIGUOUS, wanted); }
  /// Replaces an object with the same key.
  PutOptions& replace(bool wanted = true) { return flag(NMC_PUT_REPLACE, wanted); }
  PutOptions& retain(Retain value) { return c_.retain = static_cast<uint32_t>(value), *this; }
  /// 0 to 3; lower ones are evicted first.
  PutOptions& priority(uint32_t value) { return c_.priority = value, *this; }
  /// How long a soft retention lasts. Zero means for ever; a negative time counts as the shortest possible one.
  PutOptions& ttl(std::chrono::milliseconds value) { return c_.ttl_ms = detail::ttl_ms(value), *this; }
  /// How long to wait for room if there is none; `default_timeout` is the store's call timeout.
  PutOptions& wait(std::chrono::milliseconds value) { return c_.wait_ms = value.count(), *this; }
  /// Metadata of the object, up to NMC_MAX_METADATA bytes. Refers to these bytes. In a batch, every object gets the same.
  PutOptions& metadata(LastingBytes value) { return c_.metadata = value, *this; }
  /// In a batch: metadata for each object, as many as there are keys. Refers to the list.
  PutOptions& metadata_each(span<const Bytes> values) {
    return c_.metadata_each = values.data(), each_ = values.size(), *this;
  }
  /// The list ends before it is read: give it a name.
  template <class C, std::enable_if_t<std::is_convertible_v<C, span<const Bytes>> && !detail::stays_v<C>, int> = 0>
  PutOptions& metadata_each(C&& values) = delete;
  /// Length of the list of `metadata_each`; `n` if there is none.
  size_t each_or(size_t n) const noexcept { return each_ == SIZE_MAX ? n : each_; }

  const nmc_put_options_t& c() const noexcept { return c_; }

 private:
  PutOptions& flag(uint32_t bit, bool wanted) {
    return c_.flags = wanted ? c_.flags | bit : c_.flags & ~bit, *this;
  }
  nmc_put_options_t c_ = NMC_PUT_OPTIONS_INIT;
  size_t each_ = SIZE_MAX;
};

// ------------------------------------------------------------------------------------------------------ results --

/// Counters of a store, and of each rank's heap.
struct StoreStats : nmc_store_stats_t {
  std::vector<nmc_store_rank_stats_t> ranks;
};

namespace detail {
/// The runs of bytes that a value lies in: one as a rule, and then without an allocation.
class Runs {
 public:
  Runs() = default;
  Runs(Runs&&) noexcept = default;
  Runs& operator=(Runs&& other) noexcept {
    if (this == &other) return *this;  // a vector that is moved to itself is empty
    only_ = other.only_;
    all_ = std::move(other.all_);
    return *this;
  }

  template <class Fetch>
  nmc_status_t read(const nmc_extent_t& only, uint32_t n, Fetch fetch) {
    only_ = only;
    if (n <= 1) return NMC_OK;
    all_.resize(n);
    size_t found = 0;
    return fetch(all_.data(), all_.size(), &found);
  }
  span<const nmc_extent_t> all(uint32_t n) const noexcept { return {n > 1 ? all_.data() : &only_, n}; }
  /// Page `index`, which is never split.
  static span<std::byte> page(span<const nmc_extent_t> runs, uint32_t index, uint32_t page_bytes) noexcept {
    uint64_t at = uint64_t{index} * page_bytes;
    for (const nmc_extent_t& run : runs) {
      if (at < run.bytes) {
        const uint64_t left = run.bytes - at;
        return {static_cast<std::byte*>(run.ptr) + at, static_cast<size_t>(left < page_bytes ? left : page_bytes)};
      }
      at -= run.bytes;
    }
    return {};
  }

 private:
  nmc_extent_t only_{};
  std::vector<nmc_extent_t> all_;
};

/// Whether memory of `bytes` bytes has these rows.
inline bool has_rows(size_t bytes, size_t rows, size_t row_bytes, size_t stride) noexcept {
  if (rows == 0 || row_bytes == 0) return true;
  return row_bytes <= bytes && (stride == 0 || rows - 1 <= (bytes - row_bytes) / stride);
}
inline Failure has_no_rows(size_t bytes, size_t rows, size_t row_bytes, size_t stride) {
  return {NMC_ERR_INVALID_ARG, std::to_string(bytes) + " bytes have no room for " + std::to_string(rows) + " rows of " +
                                   std::to_string(row_bytes) + " bytes, " + std::to_string(stride) + " bytes apart"};
}

inline nmc_status_t unpin(nmc_store_t* store, nmc_view_t view) { return nmc_store_unpin(store, &view); }

/// A plan that is given up unless it was committed.
struct OpenPlan : nmc_write_plan_t {
  bool committed = false;
};
inline nmc_status_t give_up(nmc_store_t* store, OpenPlan plan) {
  return plan.committed ? NMC_OK : nmc_store_abort(store, &plan);
}
}  // namespace detail

template <class Mode>
class BasicStore;

// --------------------------------------------------------------------------------------------------------- view --

/// A pinned object in either form.
class AnyView : public detail::Lease<nmc_store_t, nmc_view_t, detail::unpin> {
 public:
  AnyView() = default;

  /// First byte. The others follow it only if the value is contiguous().
  const std::byte* data() const noexcept { return static_cast<const std::byte*>(what_.data); }
  const void* device_data() const noexcept { return what_.data_device; }
  size_t size() const noexcept { return static_cast<size_t>(what_.bytes); }
  bool empty() const noexcept { return what_.bytes == 0; }
  bool contiguous() const noexcept { return what_.n_extents <= 1; }
  span<const nmc_extent_t> extents() const noexcept { return runs_.all(what_.n_extents); }
  uint32_t page_bytes() const noexcept { return what_.page_bytes; }
  uint32_t n_pages() const noexcept {
    return what_.page_bytes == 0 ? 0 : static_cast<uint32_t>((what_.bytes + what_.page_bytes - 1) / what_.page_bytes);
  }
  /// The bytes of a page; empty behind the last.
  span<const std::byte> page(uint32_t index) const noexcept {
    return detail::Runs::page(extents(), index, what_.page_bytes);
  }
  uint64_t epoch() const noexcept { return what_.epoch; }
  uint32_t owner_rank() const noexcept { return what_.owner_rank; }

 protected:
  using Lease::Lease;
  nmc_status_t read_runs() {
    const nmc_extent_t only = {const_cast<void*>(what_.data), const_cast<void*>(what_.data_device), what_.bytes};
    return runs_.read(only, what_.n_extents, [&](nmc_extent_t* to, size_t capacity, size_t* n) {
      return nmc_store_view_extents(from_, &what_, to, capacity, n);
    });
  }

 private:
  detail::Runs runs_;
};

/// A pinned object: its bytes stay where and what they are until the view is destroyed. Move-only. The addresses end
/// with the store.
template <class Mode>
class BasicView : public AnyView {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  BasicView() = default;
  BasicView(AnyView&& other) noexcept : AnyView(std::move(other)) {}
  /// Takes over a pin that C code has made.
  static Out<BasicView> adopt(nmc_store_t* store, const nmc_view_t& c) {
    BasicView made(store, c);  // from here on it is unpinned, whatever happens
    const nmc_status_t status = made.read_runs();
    if (status < 0) return Mode::failure(status);
    return made;
  }

  /// How many pages can be read by now; fewer than all only if the object was pinned while it was being written.
  Out<uint32_t> ready_pages() const {
    uint32_t pages = 0;
    const nmc_status_t status = nmc_store_ready_pages(from_, &what_, &pages);
    if (status < 0) return Mode::failure(status);
    return pages;
  }
  /// Metadata of the object; empty if there is none.
  Out<Buffer> metadata() const {
    Buffer found;
    const nmc_status_t status = detail::read_metadata(found, [&](void* to, size_t capacity, size_t* bytes) {
      return nmc_store_view_metadata(from_, &what_, to, capacity, bytes);
    });
    if (status != NMC_OK) return Mode::failure(detail::missed(status));
    return found;
  }
  /// Compares every page with its checksum: NMC_ERR_CORRUPT if one is wrong, NMC_ERR_UNSUPPORTED in a store without checksums.
  /// False if the checksums are not stored yet.
  [[nodiscard]] Out<bool> verify() const {
    const nmc_status_t status = nmc_store_verify(from_, &what_);
    if (status < 0) return Mode::failure(status);
    return status == NMC_OK;
  }
  /// Copies, on a CUDA stream, from byte `offset` on into memory that the GPU can reach. Unpin on that stream too.
  Out<void> fetch_async(uint64_t offset, Many<MutableBytes> to, void* stream) const {
    return Mode::done(nmc_store_fetch_async(from_, &what_, offset, to.data(), to.size(), stream));
  }
  /// Unpins now.
  Out<void> unpin() {
    nmc_store_t* const store = from_;
    return Mode::done(detail::unpin(store, release()));
  }
  /// Lets a CUDA stream unpin, after everything that was enqueued before. The view is empty then.
  Out<void> unpin_async(void* stream) {
    const nmc_status_t status = nmc_store_unpin_async(from_, &what_, stream);
    if (status >= 0) (void)release();
    return Mode::done(status);
  }

 private:
  BasicView(nmc_store_t* store, const nmc_view_t& c) noexcept : AnyView(store, c) {}
};

// --------------------------------------------------------------------------------------------------------- plan --

/// An object that is open for writing, in either form.
class AnyWritePlan : public detail::Lease<nmc_store_t, detail::OpenPlan, detail::give_up> {
 public:
  AnyWritePlan() = default;

  bool committed() const noexcept { return what_.committed; }
  /// First byte. The others follow it only if the value is contiguous().
  std::byte* data() const noexcept { return static_cast<std::byte*>(what_.payload); }
  void* device_data() const noexcept { return what_.payload_device; }
  size_t size() const noexcept { return static_cast<size_t>(what_.bytes_total); }
  bool contiguous() const noexcept { return what_.n_extents <= 1; }
  span<const nmc_extent_t> extents() const noexcept { return runs_.all(what_.n_extents); }
  uint32_t page_bytes() const noexcept { return what_.page_bytes; }
  uint32_t n_pages() const noexcept { return what_.n_pages; }
  /// The bytes of a page; empty behind the last.
  span<std::byte> page(uint32_t index) const noexcept { return detail::Runs::page(extents(), index, what_.page_bytes); }
  uint64_t epoch() const noexcept { return what_.epoch; }
  uint32_t dst_rank() const noexcept { return what_.dst_rank; }

 protected:
  template <class Mode>
  friend class BasicStore;
  using Lease::Lease;
  void ended(nmc_status_t commit) noexcept { what_.committed = what_.committed || commit >= 0; }
  nmc_status_t read_runs() {
    const nmc_extent_t only = {what_.payload, what_.payload_device, what_.bytes_total};
    return runs_.read(only, what_.n_extents, [&](nmc_extent_t* to, size_t capacity, size_t* n) {
      return nmc_store_plan_extents(from_, &what_, to, capacity, n);
    });
  }

 private:
  detail::Runs runs_;
};

/// An object that is open for writing: the program stores its bytes where the plan says, and commits. The destructor
/// gives it up unless it was committed. Move-only.
template <class Mode>
class BasicWritePlan : public AnyWritePlan {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  BasicWritePlan() = default;
  BasicWritePlan(AnyWritePlan&& other) noexcept : AnyWritePlan(std::move(other)) {}
  /// Takes over a plan that C code has opened.
  static Out<BasicWritePlan> adopt(nmc_store_t* store, const nmc_write_plan_t& c) {
    BasicWritePlan made(store, c);  // from here on it is given up, whatever happens
    const nmc_status_t status = made.read_runs();
    if (status < 0) return Mode::failure(status);
    return made;
  }

  /// Publishes the object: all bytes are stored.
  Out<void> commit() {
    const nmc_status_t status = nmc_store_commit(from_, &what_);
    ended(status);
    return Mode::done(status);
  }
  /// Publishes when a CUDA stream gets there. Call commit() afterwards: it returns the outcome, and wakes waiting readers.
  Out<void> commit_async(void* stream) const { return Mode::done(nmc_store_commit_async(from_, &what_, stream)); }
  /// Copies, on a CUDA stream, memory that the GPU can reach to the value, from byte `offset` on. Follow with commit_async.
  Out<void> push_async(uint64_t offset, LastingSlices slices, void* stream) const {
    return Mode::done(nmc_store_push_async(from_, &what_, offset, slices.data(), slices.size(), stream));
  }
  /// For Store::publish_captured, before each launch of the graph: fills `desc`, host memory that the GPU can reach.
  Out<void> publish_desc(nmc_publish_desc_t& desc) const {
    return Mode::done(nmc_store_publish_desc(from_, &what_, &desc));
  }
  /// Publishes the first `pages` pages, which are stored: readers may begin with them.
  Out<void> publish_pages(uint32_t pages) const { return Mode::done(nmc_store_publish_pages(from_, &what_, pages)); }
  /// Gives the plan up now.
  Out<void> abort() {
    const nmc_status_t status = nmc_store_abort(from_, &what_);
    if (status >= 0) (void)release();
    return Mode::done(status);
  }

 private:
  BasicWritePlan(nmc_store_t* store, const nmc_write_plan_t& c) noexcept : AnyWritePlan(store, {c, false}) {}
};

// --------------------------------------------------------------------------------------------------------- slot --

/// A reserved pin slot in either form.
using AnyPinSlot = detail::Lease<nmc_store_t, uint32_t, nmc_store_slot_release>;

/// A pin slot reserved for a captured graph or for kernels. Move-only; the destructor gives it back, and after that no graph and no kernel
/// may use it.
template <class Mode>
class BasicPinSlot : public AnyPinSlot {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  using AnyPinSlot::AnyPinSlot;
  BasicPinSlot(AnyPinSlot&& other) noexcept : AnyPinSlot(std::move(other)) {}

  /// Pins an object before the launch of a graph that ends the pin with a captured unpin_async. The result owns nothing.
  Out<nmc_view_t> pin(Key key) const {
    nmc_view_t view{};
    const nmc_status_t status = nmc_store_slot_pin(from_, what_, key, &view);
    if (status != NMC_OK) return Mode::failure(detail::missed(status));
    return view;
  }
  /// Ends the pin when the CUDA stream gets there; in a captured graph, with every launch.
  Out<void> unpin_async(void* stream) const { return Mode::done(nmc_store_slot_unpin_async(from_, what_, stream)); }
  /// What a kernel needs to pin the object by itself (nmc_dev_pin). The object must lie in one extent.
  Out<nmc_device_pin_t> device_pin(Key key) const {
    nmc_device_pin_t pin{};
    const nmc_status_t status = nmc_store_device_pin(from_, what_, key, &pin);
    if (status != NMC_OK) return Mode::failure(detail::missed(status));
    return pin;
  }
};

// -------------------------------------------------------------------------------------------------------- store --

/// A store in either form: for functions that take one.
using AnyStore = detail::Handle<nmc_store_t, nmc_store_destroy>;

/// A client of a store, in one of its namespaces. Move-only; the destructor leaves the store. All members may be called
/// from any thread. Views and plans must be gone before it is.
template <class Mode>
class BasicStore : public AnyStore {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;
  using View = BasicView<Mode>;
  using WritePlan = BasicWritePlan<Mode>;

  using AnyStore::AnyStore;
  BasicStore(AnyStore&& other) noexcept : AnyStore(std::move(other)) {}
  /// This store in the form with results, for one call: `store.nothrow()->wait_ready(key)`.
  detail::Borrowed<BasicStore<Returning>> nothrow() const noexcept {
    return detail::Borrowed<BasicStore<Returning>>(get());
  }

  /// A store of this process alone, with a heap of `config.heap_bytes`.
  static Out<BasicStore> embedded(const StoreConfig& config) { return create(nullptr, config); }
  /// The store of a world, for one of its ranks. The world must outlive it.
  static Out<BasicStore> attach(const AnyWorld& world, const StoreConfig& config = {}) {
    if (!world) {
      return Mode::failure({NMC_ERR_BAD_HANDLE, "the world is empty; Store::embedded makes a store without one"});
    }
    return create(world.get(), config);
  }
  /// The same store with keys of its own, and a quota: 0 for none.
  Out<BasicStore> namespace_(Key name, uint64_t quota_bytes = same_quota) const {
    nmc_store_t* handle = nullptr;
    const nmc_status_t status = nmc_store_namespace(get(), name, quota_bytes, &handle);
    if (status < 0) return Mode::failure(status);
    return BasicStore(handle);
  }
  /// Does what the destructor does, and returns the outcome. If it fails (NMC_ERR_BUSY), the store is still owned.
  Out<void> destroy() { return Mode::done(destroy_now()); }

  // ---- writing ------------------------------------------------------------------------------------------------------

  Out<void> put(Key key, Bytes value, const PutOptions& options = {}) const {
    return Mode::done(nmc_store_put(get(), key, value.ptr, value.len, &options.c()));
  }
  /// From several pieces, one after the other.
  Out<void> put_slices(Key key, Many<Bytes> slices, const PutOptions& options = {}) const {
    return Mode::done(nmc_store_put_slices(get(), key, slices.data(), slices.size(), &options.c()));
  }
  /// From rows of `row_bytes` bytes whose beginnings are `stride` bytes apart.
  Out<void> put_strided(Key key, const void* data, size_t rows, size_t row_bytes, size_t stride,
                        const PutOptions& options = {}) const {
    return Mode::done(nmc_store_put_strided(get(), key, data, rows, row_bytes, stride, &options.c()));
  }
  /// The same from memory that has them all.
  Out<void> put_strided(Key key, Bytes data, size_t rows, size_t row_bytes, size_t stride, const PutOptions& options = {}) const {
    if (!detail::has_rows(data.len, rows, row_bytes, stride)) return Mode::done(detail::has_no_rows(data.len, rows, row_bytes, stride));
    return put_strided(key, data.ptr, rows, row_bytes, stride, options);
  }
  /// An object whose bytes the program stores itself.
  Out<WritePlan> open_for_write(Key key, uint64_t bytes, const PutOptions& options = {}) const {
    nmc_write_plan_t c{};
    const nmc_status_t status = nmc_store_open_for_write(get(), key, bytes, &options.c(), &c);
    if (status < 0) return Mode::failure(status);
    return WritePlan::adopt(get(), c);
  }
  /// When to try again after NMC_ERR_BUSY or NMC_ERR_NO_SPACE, and what is free on `rank`.
  Out<nmc_retry_hint_t> retry_hint(int32_t rank) const {
    nmc_retry_hint_t hint = NMC_RETRY_HINT_INIT;
    const nmc_status_t status = nmc_store_retry_hint(get(), rank, &hint);
    if (status < 0) return Mode::failure(status);
    return hint;
  }

  // ---- reading in place ---------------------------------------------------------------------------------------------

  /// The value in place.
  Out<View> pin(Key key) const {
    return pinned([&](nmc_view_t* c) { return nmc_store_pin(get(), key, c); });
  }
  /// The same while it is being written, if its first `pages` pages are ready.
  Out<View> pin_partial(Key key, uint32_t pages) const {
    return pinned([&](nmc_view_t* c) { return nmc_store_pin_partial(get(), key, pages, c); });
  }
  /// The value in place, for this caller alone: it is removed from the store. Of several callers, one gets it. If that one dies, the
  /// value is gone.
  Out<View> consume(Key key) const {
    return pinned([&](nmc_view_t* c) { return nmc_store_consume(get(), key, c); });
  }
  /// pin, for a key that may be missing or still being written: a hash probe, and no message.
  Out<std::optional<View>> find(Key key) const {
    return pinned_if([&](nmc_view_t* c) { return nmc_store_pin(get(), key, c); });
  }
  /// pin_partial in the same way.
  Out<std::optional<View>> find_partial(Key key, uint32_t pages) const {
    return pinned_if([&](nmc_view_t* c) { return nmc_store_pin_partial(get(), key, pages, c); });
  }
  /// consume in the same way; also std::nullopt if another caller was faster.
  Out<std::optional<View>> consume_if(Key key) const {
    return pinned_if([&](nmc_view_t* c) { return nmc_store_consume(get(), key, c); });
  }

  // ---- copying ------------------------------------------------------------------------------------------------------

  using AnyStore::get;  // the C handle; get(key) is the read

  /// A copy of the value.
  Out<Buffer> get(Key key) const {
    Buffer value;
    const nmc_status_t status = read_all(key, value);
    if (status != NMC_OK) return Mode::failure(detail::missed(status));
    return value;
  }
  /// get, for a key that may be missing or still being written.
  Out<std::optional<Buffer>> get_if(Key key) const {
    Buffer value;
    const nmc_status_t status = read_all(key, value);
    if (detail::is_miss(status)) return std::nullopt;
    if (status < 0) return Mode::failure(status);
    return value;
  }
  /// Reads into memory of exactly the value's size. Returns the number of bytes read, as do the next three.
  Out<size_t> get_into(Key key, MutableBytes to) const {
    return read(nmc_store_get_into(get(), key, to.ptr, to.len), to.len);
  }
  /// Reads a part of the value, from byte `offset` on.
  Out<size_t> get_range(Key key, uint64_t offset, MutableBytes to) const {
    return read(nmc_store_get_slices(get(), key, offset, &to, 1, nullptr), to.len);
  }
  /// The same into several pieces of memory.
  Out<size_t> get_slices(Key key, uint64_t offset, Many<MutableBytes> to) const {
    size_t bytes = 0;
    for (const MutableBytes& piece : to) bytes += piece.len;
    return read(nmc_store_get_slices(get(), key, offset, to.data(), to.size(), nullptr), bytes);
  }
  /// The same into rows of `row_bytes` bytes whose beginnings are `stride` bytes apart.
  Out<size_t> get_strided(Key key, uint64_t offset, void* to, size_t rows, size_t row_bytes, size_t stride) const {
    return read(nmc_store_get_strided(get(), key, offset, to, rows, row_bytes, stride), rows * row_bytes);
  }
  /// The same into memory that has them all.
  Out<size_t> get_strided(Key key, uint64_t offset, MutableBytes to, size_t rows, size_t row_bytes, size_t stride) const {
    if (!detail::has_rows(to.len, rows, row_bytes, stride)) return Mode::failure(detail::has_no_rows(to.len, rows, row_bytes, stride));
    return get_strided(key, offset, to.ptr, rows, row_bytes, stride);
  }

  // ---- asking -------------------------------------------------------------------------------------------------------

  Out<ObjectState> state(Key key) const {
    uint32_t state = 0;
    const nmc_status_t status = nmc_store_exists(get(), key, &state);
    if (status < 0) return Mode::failure(status);
    return static_cast<ObjectState>(state);
  }
  /// Whether the object can be read.
  [[nodiscard]] Out<bool> exists(Key key) const {
    uint32_t state = 0;
    const nmc_status_t status = nmc_store_exists(get(), key, &state);
    if (status < 0) return Mode::failure(status);
    return state != NMC_OBJECT_ABSENT && state != NMC_OBJECT_WRITING;
  }
  /// The size of the value; std::nullopt if there is none yet, as in the next two.
  Out<std::optional<size_t>> size(Key key) const {
    size_t size = 0;
    const nmc_status_t status = nmc_store_get(get(), key, nullptr, 0, &size);
    if (detail::is_miss(status)) return std::nullopt;
    if (status < 0) return Mode::failure(status);
    return size;
  }
  /// Metadata of an object (PutOptions::metadata); empty if its writer gave none.
  Out<std::optional<Buffer>> metadata(Key key) const {
    Buffer found;
    const nmc_status_t status = detail::read_metadata(found, [&](void* to, size_t capacity, size_t* bytes) {
      return nmc_store_get_metadata(get(), key, to, capacity, bytes);
    });
    if (detail::is_miss(status)) return std::nullopt;
    if (status < 0) return Mode::failure(status);
    return found;
  }
  /// Where an object is; it is not pinned.
  Out<std::optional<nmc_object_meta_t>> location(Key key) const {
    nmc_object_meta_t meta{};
    const nmc_status_t status = nmc_store_get_location(get(), key, &meta);
    if (detail::is_miss(status)) return std::nullopt;
    if (status < 0) return Mode::failure(status);
    return meta;
  }
  /// How many of the keys, from the first on, can be read.
  Out<size_t> match_prefix(Many<Key> keys) const {
    size_t matched = 0;
    const nmc_status_t status = nmc_store_match_prefix(get(), keys.data(), keys.size(), &matched);
    if (status < 0) return Mode::failure(status);
    return matched;
  }
  /// Calls `one(std::string_view key, uint64_t bytes)` for the objects that can be read; if it returns a bool, until that is false.
  /// Returns how many it was called for.
  template <class One>
  Out<size_t> for_each(One one) const {
    std::array<char, 1024> key;  // the longest there is
    uint64_t cursor = 0;
    for (size_t n = 0;; ++n) {
      size_t len = 0;
      uint64_t bytes = 0;
      const nmc_status_t status = nmc_store_next(get(), &cursor, key.data(), key.size(), &len, &bytes);
      if (status == NMC_ERR_NOT_FOUND) return n;
      if (status < 0) return Mode::failure(status);
      if constexpr (std::is_same_v<decltype(one(std::string_view(), bytes)), bool>) {
        if (!one(std::string_view(key.data(), len), bytes)) return n + 1;
      } else {
        one(std::string_view(key.data(), len), bytes);
      }
    }
  }

  // ---- keeping ------------------------------------------------------------------------------------------------------

  /// False if there was no such object.
  Out<bool> remove(Key key) const { return was_there(nmc_store_remove(get(), key)); }
  /// Returns how many were removed.
  Out<uint64_t> remove_by_prefix(Key prefix) const {
    uint64_t removed = 0;
    const nmc_status_t status = nmc_store_remove_by_prefix(get(), prefix, &removed);
    if (status < 0) return Mode::failure(status);
    return removed;
  }
  /// Removes all objects of the namespace at once.
  Out<void> remove_all() const { return Mode::done(nmc_store_remove_all(get())); }
  /// Counts as an access. False if there is no such object.
  Out<bool> touch(Key key) const { return was_there(nmc_store_touch(get(), key)); }
  /// For an object that is only on disk this is an error, NMC_NOT_READY.
  Out<void> retain(Key key, Retain retain, uint32_t priority = 0,
                   std::chrono::milliseconds ttl = std::chrono::milliseconds(0)) const {
    const uint64_t ms = detail::ttl_ms(ttl);
    return really(nmc_store_retain(get(), key, static_cast<uint32_t>(retain), priority, ms));
  }
  Out<void> evict_until_below(int32_t rank, uint32_t permille) const {
    return Mode::done(nmc_store_evict_until_below(get(), rank, permille));
  }

  // ---- waiting ------------------------------------------------------------------------------------------------------

  /// Waits until the object can be pinned. For an object that is only on disk this is an error, NMC_NOT_READY: a get reads it,
  /// Tier::prefetch brings it back.
  Out<void> wait_ready(Key key, Wait wait = Wait::written, std::chrono::milliseconds timeout = default_timeout) const {
    return really(nmc_store_wait_ready(get(), key, static_cast<uint32_t>(wait), timeout.count()));
  }
  /// Waits until the first `pages` pages are ready.
  Out<void> wait_pages(Key key, uint32_t pages, Wait wait = Wait::written,
                       std::chrono::milliseconds timeout = default_timeout) const {
    return really(nmc_store_wait_pages(get(), key, pages, static_cast<uint32_t>(wait), timeout.count()));
  }
  /// Queues a completion with `token` when the object can be read, or never will be.
  Out<void> watch(Key key, uint64_t token, Wait wait = Wait::written) const {
    return Mode::done(nmc_store_watch(get(), key, static_cast<uint32_t>(wait), token));
  }
  /// Takes queued completions, oldest first and at most `most`. `lost` of one says how many just before it were dropped, because more
  /// than `NMC_MAX_COMPLETIONS` waited.
  Out<std::vector<nmc_completion_t>> completions(size_t most = 64) const {
    std::vector<nmc_completion_t> taken(most);
    size_t n = 0;
    const nmc_status_t status = nmc_store_completions(get(), taken.data(), taken.size(), &n);
    if (status < 0) return Mode::failure(status);
    taken.resize(n);
    return taken;
  }
  /// Readable while completions are queued; belongs to the store.
  Out<int> event_fd() const {
    int32_t fd = -1;
    const nmc_status_t status = nmc_store_event_fd(get(), &fd);
    if (status < 0) return Mode::failure(status);
    return fd;
  }
  /// Ends every wait and watch of this client.
  Out<void> cancel() const { return Mode::done(nmc_store_cancel(get())); }

  // ---- on CUDA streams ----------------------------------------------------------------------------------------------

  /// Makes the stream wait until the object can be read. `*result`, in memory that the GPU can reach, becomes NMC_READY_YES,
  /// NMC_READY_STALE or NMC_READY_TIMEOUT.
  Out<void> wait_ready_async(Key key, void* stream, uint32_t* result = nullptr,
                             std::chrono::milliseconds timeout = default_timeout) const {
    return Mode::done(nmc_store_wait_ready_async(get(), key, timeout.count(), stream, result));
  }
  /// Publishes what the descriptors (WritePlan::publish_desc) hold when the stream gets there. Made to be captured in a graph.
  Out<void> publish_captured(span<const nmc_publish_desc_t> descs, void* stream) const {
    if (descs.size() > UINT32_MAX) {
      return Mode::done({NMC_ERR_INVALID_ARG, std::to_string(descs.size()) + " descriptors do not fit 32 bits"});
    }
    return Mode::done(nmc_store_publish_captured(get(), descs.data(), static_cast<uint32_t>(descs.size()), stream));
  }
  /// Reserves a pin slot for a captured graph or for kernels.
  Out<BasicPinSlot<Mode>> reserve_slot() const {
    uint32_t slot = 0;
    const nmc_status_t status = nmc_store_slot_reserve(get(), &slot);
    if (status < 0) return Mode::failure(status);
    return BasicPinSlot<Mode>(get(), slot);
  }

  // ---- many at a time -----------------------------------------------------------------------------------------------
  //
  // A batch returns a status for every item, in both forms: `store.put_batch(keys, values).value()` throws if one failed.

  Batch put_batch(Many<Key> keys, Many<Bytes> values, const PutOptions& options = {}) const {
    const size_t others = values.size() == keys.size() ? options.each_or(keys.size()) : values.size();
    return detail::batch<Batch>(keys.size(), others, [&](nmc_status_t* items) {
      return nmc_store_put_batch(get(), keys.data(), values.data(), keys.size(), &options.c(), items);
    });
  }
  Batch get_into_batch(Many<Key> keys, Many<MutableBytes> buffers) const {
    return detail::batch<Batch>(keys.size(), buffers.size(), [&](nmc_status_t* items) {
      return nmc_store_get_into_batch(get(), keys.data(), buffers.data(), keys.size(), items);
    });
  }
  Batch remove_batch(Many<Key> keys) const {
    return detail::batch<Batch>(keys.size(), keys.size(), [&](nmc_status_t* items) {
      return nmc_store_remove_batch(get(), keys.data(), keys.size(), items);
    });
  }
  Out<std::vector<ObjectState>> state_batch(Many<Key> keys) const {
    std::vector<uint32_t> states(keys.size());
    const nmc_status_t status = nmc_store_exists_batch(get(), keys.data(), keys.size(), states.data());
    if (status < 0) return Mode::failure(status);
    std::vector<ObjectState> found;
    found.reserve(states.size());
    for (uint32_t state : states) found.push_back(static_cast<ObjectState>(state));
    return found;
  }
  BatchOf<WritePlan> open_batch(Many<Key> keys, Many<uint64_t> sizes, const PutOptions& options = {}) const {
    std::vector<nmc_write_plan_t> plans(keys.size());
    const size_t others = sizes.size() == keys.size() ? options.each_or(keys.size()) : sizes.size();
    auto made = detail::batch<BatchOf<WritePlan>>(keys.size(), others, [&](nmc_status_t* items) {
      return nmc_store_open_batch(get(), keys.data(), sizes.data(), keys.size(), &options.c(), plans.data(), items);
    });
    adopt<BasicWritePlan<Returning>>(made, plans);
    return made;
  }
  Batch commit_batch(span<WritePlan> plans) const {
    std::vector<nmc_write_plan_t> c;
    c.reserve(plans.size());
    for (const WritePlan& plan : plans) c.push_back(plan.c());
    Batch done = detail::batch<Batch>(c.size(), c.size(), [&](nmc_status_t* items) {
      return nmc_store_commit_batch(get(), c.data(), c.size(), items);
    });
    for (size_t i = 0; i < plans.size(); ++i) plans[i].ended(done.items[i]);
    return done;
  }
  /// Pins as many as can be.
  BatchOf<View> pin_batch(Many<Key> keys) const {
    std::vector<nmc_view_t> views(keys.size());
    size_t pinned = 0;
    auto made = detail::batch<BatchOf<View>>(keys.size(), keys.size(), [&](nmc_status_t* items) {
      return nmc_store_pin_batch(get(), keys.data(), keys.size(), views.data(), &pinned, items);
    });
    adopt<BasicView<Returning>>(made, views);
    return made;
  }
  Batch unpin_batch(span<View> views) const {
    std::vector<nmc_view_t> c;
    c.reserve(views.size());
    for (const View& view : views) c.push_back(view.c());
    Batch done = detail::batch<Batch>(c.size(), c.size(), [&](nmc_status_t* items) {
      return nmc_store_unpin_batch(get(), c.data(), c.size(), items);
    });
    for (size_t i = 0; i < views.size(); ++i) {
      if (done.items[i] == NMC_OK) (void)views[i].release();  // the others are still the views' to unpin
    }
    return done;
  }

  // ---- looking ------------------------------------------------------------------------------------------------------

  Out<StoreStats> stats() const {
    StoreStats stats;
    static_cast<nmc_store_stats_t&>(stats) = NMC_STORE_STATS_INIT;
    stats.ranks.assign(NMC_MAX_RANKS, nmc_store_rank_stats_t NMC_STORE_RANK_STATS_INIT);
    const nmc_status_t status = nmc_store_stats(get(), stats.ranks.data(), stats.ranks.size(), &stats);
    if (status < 0) return Mode::failure(status);
    stats.ranks.resize(stats.n_ranks);
    return stats;
  }
  /// The counters in the text format of Prometheus.
  Out<std::string> prometheus() const {
    return detail::text<Mode>([&](char* buffer, size_t capacity, size_t* needed) {
      return nmc_store_prometheus(get(), buffer, capacity, needed);
    });
  }
  /// A picture of the heaps for people, `width` characters a rank.
  Out<std::string> dump(uint32_t width = 80) const {
    return detail::text<Mode>([&](char* buffer, size_t capacity, size_t* needed) {
      return nmc_store_dump(get(), width, buffer, capacity, needed);
    });
  }

 private:
  static Out<BasicStore> create(nmc_world_t* world, const StoreConfig& config) {
    nmc_store_t* handle = nullptr;
    const nmc_status_t status = nmc_store_create(world, &config.c(), &handle);
    if (status < 0) return Mode::failure(status);
    return BasicStore(handle);
  }

  template <class Call>
  Out<View> pinned(Call call) const {
    nmc_view_t c{};
    const nmc_status_t status = call(&c);
    if (status != NMC_OK) return Mode::failure(detail::missed(status));
    return View::adopt(get(), c);
  }
  template <class Call>
  Out<std::optional<View>> pinned_if(Call call) const {
    nmc_view_t c{};
    const nmc_status_t status = call(&c);
    if (detail::is_miss(status)) return std::nullopt;
    if (status < 0) return Mode::failure(status);
    return View::adopt(get(), c);
  }

  nmc_status_t read_all(Key key, Buffer& value) const {
    for (;;) {  // another object may take the key between the question for its size and the read
      size_t size = 0;
      const nmc_status_t status = nmc_store_get(get(), key, value.data(), value.capacity(), &size);
      if (status != NMC_OK && status != NMC_ERR_TOO_SMALL) return status;
      if (size <= value.capacity()) {
        value.resize(size);
        return NMC_OK;
      }
      value = Buffer(size);
    }
  }
  static Out<size_t> read(nmc_status_t status, size_t bytes) {
    if (status != NMC_OK) return Mode::failure(detail::missed(status));
    return bytes;
  }
  /// For a call that has done nothing if it returns that the object is not ready.
  static Out<void> really(nmc_status_t status) {
    if (status > 0) return Mode::done(detail::missed(status));
    return Mode::done(status);
  }
  static Out<bool> was_there(nmc_status_t status) {
    if (status == NMC_ERR_NOT_FOUND) return false;
    if (status < 0) return Mode::failure(status);
    return true;
  }

  /// Takes over the plans or views of the items that succeeded. If one cannot be taken over, its item has failed.
  template <class Made, class T, class C>
  void adopt(BatchOf<T>& batch, const std::vector<C>& from) const {
    batch.values.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) {
      if (batch.items[i] != NMC_OK) continue;
      Result<Made> made = Made::adopt(get(), from[i]);
      if (made) {
        batch.values[i] = std::move(*made);
        continue;
      }
      batch.items[i] = made.status();
      if (batch.ok()) batch.failure = {made.status(), made.message()};
    }
  }
};

// ------------------------------------------------------------------------------------------------- the two forms --

using Store = BasicStore<Throwing>;
using View = BasicView<Throwing>;
using WritePlan = BasicWritePlan<Throwing>;
using PinSlot = BasicPinSlot<Throwing>;
namespace nothrow {
using Store = BasicStore<Returning>;
using View = BasicView<Returning>;
using WritePlan = BasicWritePlan<Returning>;
using PinSlot = BasicPinSlot<Returning>;
}  // namespace nothrow

namespace detail {
static_assert(is_move_only_v<nothrow::Store> && is_move_only_v<nothrow::View> && is_move_only_v<nothrow::WritePlan> &&
                  is_move_only_v<nothrow::PinSlot>,
              "pins have one owner");
static_assert(sizeof(nothrow::Store) == sizeof(void*), "a handle costs one pointer");
static_assert(sizeof(Bytes) == sizeof(nmc_slice_t) && sizeof(Key) == sizeof(nmc_slice_t) &&
                  sizeof(MutableBytes) == sizeof(nmc_buffer_t),
              "arrays of them are arrays of the C structs");
}  // namespace detail

}  // namespace nmc

#endif  // NANOMC_STORE_HPP
