/*
 * A cluster for C++17: objects on the nodes of many machines, found by key. In nmc::nothrow the same with results instead of exceptions:
 * nanomc/core.hpp says how, and what `Mode` and `Out<T>` are.
 *
 *   nmc::Client client = nmc::Client::open(nmc::ClientConfig("10.0.0.1:50051").local_hostname("10.0.0.2").token(token));
 *   client.mount("node-2", nmc::StoreConfig().heap_bytes(uint64_t{64} << 30));      // memory of this process, for the whole cluster
 *   client.put("prompt/17", kv, nmc::Replicate().copies(2));                        // on two nodes, if there are two
 *   nmc::Buffer value = client.get("prompt/17");                                    // from wherever it is
 *
 * For get and get_into a missing key is an error, NMC_ERR_NOT_FOUND. For get_if, size and query it is a normal result: std::nullopt, or an
 * empty list.
 */
#ifndef NANOMC_CLIENT_HPP
#define NANOMC_CLIENT_HPP

#include <algorithm>
#include <functional>
#include <memory>
#include <unordered_set>

#include "nanomc/store.hpp"

namespace nmc {

// ---------------------------------------------------------------------------------------------------- constants --

/// What a segment is made of.
enum class Media : uint32_t { vram = NMC_MEDIA_VRAM, ram = NMC_MEDIA_RAM, ssd = NMC_MEDIA_SSD, any = NMC_MEDIA_ANY };
/// Whether a segment takes values.
enum class SegmentState : uint32_t { ok = NMC_SEGMENT_OK, draining = NMC_SEGMENT_DRAINING, gone = NMC_SEGMENT_GONE };
/// Which of several copies is read first; see NMC_READ_NEAR.
enum class ReadOrder : uint32_t { near = NMC_READ_NEAR, memory = NMC_READ_MEMORY, spread = NMC_READ_SPREAD };
/// Outcome of a remove: no owner has the object any more, or one that is away may still have it, or there was none.
enum class Removed { everywhere, in_progress, absent };

// ---------------------------------------------------------------------------------------------------- arguments --

/// How a program takes part in a cluster; see nmc_client_config_t.
class ClientConfig {
 public:
  ClientConfig() = default;
  explicit ClientConfig(std::string master_server) : master_server_(std::move(master_server)) {}

  /// The masters, separated by commas: `host`, `host:port` or `unix:/path`.
  ClientConfig& master_server(std::string value) { return master_server_ = std::move(value), *this; }
  /// Name or address of this machine, by which others reach it; with a port, where its first node listens.
  ClientConfig& local_hostname(std::string value) { return local_hostname_ = std::move(value), *this; }
  /// For programs that come from Mooncake Store: its form is checked, and it is never contacted.
  ClientConfig& metadata_server(std::string value) { return metadata_server_ = std::move(value), *this; }
  /// `tcp`, or `rdma`: NIXL moves large values, where both client and node have it.
  ClientConfig& protocol(std::string value) { return protocol_ = std::move(value), *this; }
  /// With `rdma`: NIXL moves values of at least this many bytes.
  ClientConfig& rdma_bytes(uint64_t value) { return c_.rdma_bytes = value, *this; }
  ClientConfig& device_names(std::string value) { return device_names_ = std::move(value), *this; }
  /// Secret that all programs of the cluster share. Without it, or certificates, everything must be on the loopback device.
  ClientConfig& token(std::string value) { return token_ = std::move(value), *this; }
  /// PEM files with this program's certificate, its key, and the certificates of the authority that signed those of the others.
  ClientConfig& tls(std::string cert, std::string key, std::string ca) {
    return tls_cert_ = std::move(cert), tls_key_ = std::move(key), tls_ca_ = std::move(ca), *this;
  }
  ClientConfig& namespace_name(std::string value) { return namespace_name_ = std::move(value), *this; }
  /// How long a call may take; `default_timeout` is 5 s here.
  ClientConfig& timeout(std::chrono::milliseconds value) { return c_.timeout_ms = value.count(), *this; }
  /// Number of keys whose locations the client remembers.
  ClientConfig& cache_keys(int32_t value) { return c_.cache_keys = value, *this; }
  /// Keeps a copy of values that are read from another node on this client's first node.
  ClientConfig& keep_copies(bool wanted = true) { return flag(NMC_CLIENT_KEEP_COPIES, wanted); }
  /// Removes a value, with all its copies, this long after this client has read it; by default it stays. A value that is put under its key
  /// later stays.
  ClientConfig& expire_after_get(std::chrono::milliseconds value = std::chrono::seconds(1)) {
    return c_.expire_ms = value.count(), flag(NMC_CLIENT_EXPIRE, true);
  }
  /// Puts larger values in parts of about this many bytes, on different segments, which move in parallel; by default none.
  ClientConfig& stripe_bytes(uint64_t value) { return c_.stripe_bytes = value, *this; }
  ClientConfig& read_order(ReadOrder value) { return c_.read_order = static_cast<uint32_t>(value), *this; }
  /// Lets a thread of the library drive submitted calls; otherwise completions() does.
  ClientConfig& thread(bool wanted = true) { return flag(NMC_CLIENT_THREAD, wanted); }

  /// Valid while this object is not changed.
  nmc_client_config_t c() const noexcept {
    const auto slice = [](const std::string& text) { return nmc_slice_t{text.data(), text.size()}; };
    nmc_client_config_t c = c_;
    c.local_hostname = slice(local_hostname_);
    c.master_server = slice(master_server_);
    c.metadata_server = slice(metadata_server_);
    c.protocol = slice(protocol_);
    c.device_names = slice(device_names_);
    c.token = slice(token_);
    c.namespace_name = slice(namespace_name_);
    c.tls_cert = slice(tls_cert_);
    c.tls_key = slice(tls_key_);
    c.tls_ca = slice(tls_ca_);
    return c;
  }

 private:
  ClientConfig& flag(uint32_t bit, bool wanted) { return c_.flags = wanted ? c_.flags | bit : c_.flags & ~bit, *this; }
  std::string local_hostname_, master_server_, metadata_server_, protocol_, device_names_, token_, namespace_name_;
  std::string tls_cert_, tls_key_, tls_ca_;
  nmc_client_config_t c_ = NMC_CLIENT_CONFIG_INIT;
};

/// How a value is put; see nmc_replicate_t.
class Replicate {
 public:
  /// Copies in all, on as many nodes if there are enough.
  Replicate& copies(uint32_t value) { return c_.copies = value, *this; }
  /// Number of copies on this medium. If the media together have more than `copies`, their sum counts.
  Replicate& copies_on(Media media, uint32_t value) {
    const size_t at = static_cast<size_t>(media);
    if (at < sizeof c_.media_copies / sizeof *c_.media_copies) c_.media_copies[at] = value;
    return *this;
  }
  /// Requires the next copy to be in this segment, or on this node. Refers to the name.
  Replicate& at(Key segment, Media media = Media::any) {
    return locations_.push_back({segment, static_cast<uint32_t>(media), 0}), *this;
  }
  /// The string ends before its bytes are read: give it a name.
  template <class C, std::enable_if_t<detail::is_plain_v<const std::remove_reference_t<C>> && !detail::stays_v<C>, int> = 0>
  Replicate& at(C&& segment, Media media = Media::any) = delete;
  Replicate& retain(Retain value) { return c_.retain = static_cast<uint32_t>(value), *this; }
  /// 0 to 3; lower ones are evicted first.
  Replicate& priority(uint32_t value) { return c_.priority = value, *this; }
  /// Metadata of the value, up to NMC_MAX_METADATA bytes. Refers to these bytes.
  Replicate& metadata(LastingBytes value) { return c_.metadata = value, *this; }

  /// Valid while this object is not changed.
  nmc_replicate_t c() const noexcept {
    nmc_replicate_t c = c_;
    c.locations = locations_.empty() ? nullptr : locations_.data();
    c.n_locations = locations_.size();
    return c;
  }

 private:
  std::vector<nmc_location_t> locations_;
  nmc_replicate_t c_ = NMC_REPLICATE_INIT;
};

// ------------------------------------------------------------------------------------------------------ results --

/// A copy of an object, as the leader lists it.
struct Replica {
  Media media;
  uint64_t bytes;
  uint64_t put_id;       ///< the same for copies of one put
  std::string endpoint;  ///< address at which its owner listens
};

/// A segment of the cluster.
struct Segment {
  std::string name;
  Media media;
  SegmentState state;
  int32_t near;  ///< NUMA node or CUDA device when its node joined; -1 if unknown, see nmc_segment_t
  uint64_t capacity;
  uint64_t used;     ///< as last reported by its node
  std::string host;  ///< machine that has it: the address by which others reach its node
  bool here;         ///< that is this client's machine
};

/// Progress of a drain; true if nothing is left.
struct Drained {
  bool done = false;
  uint64_t left = 0;  ///< number of objects left, as far as that is known
  std::string what;   ///< what is left, in words, the first objects by their names

  explicit operator bool() const noexcept { return done; }
};

/// A value that was read, and its metadata.
struct Described {
  Buffer value, metadata;
};

namespace detail {
inline Segment segment_of(const nmc_segment_t& c) {
  return {std::string(text_of(c.name)), static_cast<Media>(c.media), static_cast<SegmentState>(c.state), c.near, c.capacity, c.used,
          std::string(text_of(c.host)), c.here != 0};
}
}  // namespace detail

/// A value to be placed, and the segments of the cluster; see nmc_placement_t. Valid during the callback only.
class Placing {
 public:
  explicit Placing(const nmc_placement_t& c) noexcept : c_(c) {}
  std::string_view key() const noexcept { return detail::text_of(c_.key); }
  uint64_t bytes() const noexcept { return c_.bytes; }
  /// Number of copies that the put asks for.
  uint32_t copies() const noexcept { return c_.copies; }
  /// Number of segments.
  size_t size() const noexcept { return c_.n_segments; }
  /// Segment number `at`.
  Segment operator[](size_t at) const { return detail::segment_of(*c_.segments[at]); }

 private:
  const nmc_placement_t& c_;
};

/// Chooses segments for a value by their numbers, best first; the leader chooses the rest. May be called by several threads at a time.
using Placement = std::function<std::vector<uint32_t>(const Placing&)>;

namespace detail {
/// The pieces of several values, one after the other, and how many each has.
template <class Piece>
struct Pieces {
  std::vector<Piece> pieces;
  std::vector<size_t> counts;

  template <class Values>
  explicit Pieces(const Values& values) {
    for (const auto& value : values) {
      const Many<Piece> some(value);
      pieces.insert(pieces.end(), some.begin(), some.end());
      counts.push_back(some.size());
    }
  }
};

/// The items of a batch that nobody waits for, and where the library tells of each.
struct Items {
  Many<Key> keys;
  size_t others;     ///< how many values or buffers go with the keys,
  const char* what;  ///< and what they are
  span<nmc_status_t> statuses;
  span<uint64_t> sizes{};

  bool fit() const noexcept {
    return others == keys.size() && one_each_or_none(statuses.size(), keys.size()) && one_each_or_none(sizes.size(), keys.size());
  }
  Failure why() const {
    if (others != keys.size()) return not_one_each(others, what, keys.size(), "keys", false);
    const bool of_sizes = one_each_or_none(statuses.size(), keys.size());
    return of_sizes ? not_one_each(sizes.size(), "sizes", keys.size(), "keys") : not_one_each(statuses.size(), "statuses", keys.size(), "keys");
  }
  /// NULL is what the caller does not want.
  nmc_status_t* told() const noexcept { return statuses.empty() ? nullptr : statuses.data(); }

  nmc_status_t put(nmc_client_t* client, const Bytes* slices, const size_t* counts, const Replicate& options, uint64_t token) const {
    const nmc_replicate_t c = options.c();
    return nmc_client_submit_put_batch(client, keys.data(), slices, counts, keys.size(), &c, token, told());
  }
  nmc_status_t get(nmc_client_t* client, const MutableBytes* to, const size_t* counts, uint64_t token) const {
    uint64_t* const bytes = sizes.empty() ? nullptr : sizes.data();
    return nmc_client_submit_get_batch(client, keys.data(), to, counts, keys.size(), token, bytes, told());
  }
  nmc_status_t remove(nmc_client_t* client, uint32_t flags, uint64_t token) const {
    return nmc_client_submit_remove_batch(client, keys.data(), keys.size(), flags, token, told());
  }
};
}  // namespace detail

// ------------------------------------------------------------------------------------------------------- client --

/// A client in either form: for functions that take one.
using AnyClient = detail::Handle<nmc_client_t, nmc_client_close>;

/// A client of a cluster, and the nodes that it has mounted. Move-only; the destructor closes it: its nodes leave the cluster. All members
/// may be called from any thread. A call returns at most 2 s after the config's timeout.
template <class Mode>
class BasicClient : public AnyClient {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  using AnyClient::AnyClient;
  BasicClient(AnyClient&& other) noexcept : AnyClient(std::move(other)) {}
  /// This client in the form with results, for one call: `client.nothrow()->put(key, value)`.
  detail::Borrowed<BasicClient<Returning>> nothrow() const noexcept {
    return detail::Borrowed<BasicClient<Returning>>(get());
  }

  /// Opens a client. It contacts no master yet.
  static Out<BasicClient> open(const ClientConfig& config) {
    const nmc_client_config_t c = config.c();
    nmc_client_t* handle = nullptr;
    const nmc_status_t status = nmc_client_open(&c, &handle);
    if (status < 0) return Mode::failure(status);
    return BasicClient(handle);
  }
  /// Does what the destructor does, and returns the outcome. If it fails (NMC_ERR_BUSY), the client is still owned.
  Out<void> close() { return Mode::done(destroy_now()); }

  // ---- nodes --------------------------------------------------------------------------------------------------------

  /// Gives memory of this process, `config.heap_bytes`, to the cluster as a segment of this name, or `host:port` if the name is empty.
  Out<void> mount(Key name, const StoreConfig& config) const {
    return Mode::done(nmc_client_mount(get(), name, &config.c()));
  }
  /// Makes a node of a store that the program has; see nmc_client_attach_store for what happens to its contents.
  Out<void> attach_store(Key name, const AnyStore& store) const {
    return Mode::done(nmc_client_attach_store(get(), name, store.get()));
  }
  /// A handle of a store, in its namespace, whose reads continue in the cluster: values that are neither in memory nor on disk are read from
  /// a node. A miss takes up to `timeout`, by default the client's. `store` itself stays as it is.
  Out<BasicStore<Mode>> open_store(const AnyStore& store, std::chrono::milliseconds timeout = default_timeout) const {
    nmc_store_t* handle = nullptr;
    const nmc_status_t status = nmc_client_open_store(get(), store.get(), timeout.count(), &handle);
    if (status < 0) return Mode::failure(status);
    return BasicStore<Mode>(handle);
  }
  /// Takes a node of this client out of the cluster.
  Out<void> unmount(Key name) const { return Mode::done(nmc_client_unmount(get(), name)); }
  /// Closes a segment, for its node's own programs too, and has values that are only there copied to other nodes. Waits up to `timeout` until
  /// nothing is left: 0 ms does not wait, -1 ms waits as long as it takes. Returns whether anything is left, and what: call it again until
  /// nothing is.
  Out<Drained> drain(Key segment, std::chrono::milliseconds timeout = std::chrono::milliseconds(0)) const {
    Drained made;
    const nmc_status_t status = nmc_client_drain(get(), segment, timeout.count(), &made.left);
    if (status < 0) return Mode::failure(status);
    made.done = status == NMC_OK;
    if (!made.done) made.what = nmc_last_error_message();
    return made;
  }
  /// Gives up a drain: the segment accepts values again.
  Out<void> undrain(Key segment) const { return Mode::done(nmc_client_undrain(get(), segment)); }
  /// Waits until others can find everything that was stored in this client's nodes before, even if not through this client.
  Out<void> sync() const { return Mode::done(nmc_client_sync(get())); }

  // ---- memory -------------------------------------------------------------------------------------------------------

  /// Announces that values will be put from, or read into, this memory. With `tcp` it makes no difference.
  Out<void> register_memory(MutableBytes memory) const {
    return Mode::done(nmc_client_register(get(), memory.ptr, memory.len));
  }
  /// Undoes register_memory; `memory` is its first byte.
  Out<void> unregister_memory(void* memory) const { return Mode::done(nmc_client_unregister(get(), memory)); }

  // ---- values -------------------------------------------------------------------------------------------------------

  Out<void> put(Key key, Bytes value, const Replicate& options = {}) const {
    return put_slices(key, Many<Bytes>({value}), options);
  }
  /// Puts a value from several pieces, one after the other.
  Out<void> put_slices(Key key, Many<Bytes> slices, const Replicate& options = {}) const {
    const nmc_replicate_t c = options.c();
    return Mode::done(nmc_client_put(get(), key, slices.data(), slices.size(), &c));
  }

  /// Sets a function that chooses where values go whose options name no place; an empty one removes it. It is called on the thread that puts
  /// or submits. If it throws, that put ends with NMC_ERR_INVALID_ARG.
  Out<void> set_placement(Placement placement) const {
    if (!placement) return Mode::done(nmc_client_set_placement(get(), nullptr, nullptr, nullptr));
    auto kept = std::make_unique<Placement>(std::move(placement));
    const auto release = [](void* user) { delete static_cast<Placement*>(user); };
    const nmc_status_t status = nmc_client_set_placement(get(), place, kept.get(), release);
    if (status == NMC_OK) static_cast<void>(kept.release());
    return Mode::done(status);
  }

  using AnyClient::get;  // the C handle; get(key) is the read

  /// A copy of the value. If you know its size, get_into is faster.
  Out<Buffer> get(Key key) const {
    Buffer value;
    const nmc_status_t status = read_all(key, value);
    if (status < 0) return Mode::failure(status);
    return value;
  }
  /// get, for a key that may be missing.
  Out<std::optional<Buffer>> get_if(Key key) const {
    Buffer value;
    const nmc_status_t status = read_all(key, value);
    if (detail::is_miss(status)) return std::nullopt;
    if (status < 0) return Mode::failure(status);
    return value;
  }
  /// Reads into memory that is large enough. Returns the size of the value.
  Out<uint64_t> get_into(Key key, MutableBytes to) const { return get_slices(key, Many<MutableBytes>({to})); }
  /// Reads into several pieces of memory, one after the other. Returns the size of the value.
  Out<uint64_t> get_slices(Key key, Many<MutableBytes> to) const {
    uint64_t bytes = 0;
    const nmc_status_t status = nmc_client_get(get(), key, to.data(), to.size(), &bytes);
    if (status < 0) return Mode::failure(status);
    return bytes;
  }

  /// A copy of the value, and its metadata; both are of the same put.
  Out<Described> get_with_metadata(Key key) const {
    Described made;
    const nmc_status_t status = detail::read_metadata(made.metadata, [&](void* to, size_t capacity, size_t* bytes) {
      return fill(made.value, [&](const MutableBytes& into, uint64_t* size) {
        return nmc_client_get_with_metadata(get(), key, &into, 1, {to, capacity}, size, bytes);
      });
    });
    if (status < 0) return Mode::failure(status);
    return made;
  }
  /// Metadata of a value (Replicate::metadata), read without the value; empty if it has none. std::nullopt if there is no such value.
  Out<std::optional<Buffer>> metadata(Key key) const {
    Buffer found;
    const nmc_status_t status = detail::read_metadata(found, [&](void* to, size_t capacity, size_t* bytes) {
      return nmc_client_get_metadata(get(), key, to, capacity, bytes);
    });
    if (detail::is_miss(status)) return std::nullopt;
    if (status < 0) return Mode::failure(status);
    return found;
  }

  [[nodiscard]] Out<bool> exists(Key key) const {
    const nmc_status_t status = nmc_client_exists(get(), key);
    if (status == NMC_ERR_NOT_FOUND) return false;
    if (status < 0) return Mode::failure(status);
    return true;
  }
  /// The size of a value, as the leader lists it; std::nullopt if there is no such value.
  Out<std::optional<uint64_t>> size(Key key) const {
    std::vector<Replica> found;
    const nmc_status_t status = list(key, found);
    if (detail::is_miss(status) || (status >= 0 && found.empty())) return std::nullopt;
    if (status < 0) return Mode::failure(status);
    return found.front().bytes;
  }
  /// Removes an object; waits until every owner has dropped it.
  Out<Removed> remove(Key key) const { return removed(nmc_client_remove(get(), key, 0)); }
  /// Removes an object without waiting for the owners: it is out of the directory when this returns.
  Out<Removed> remove_async(Key key) const { return removed(nmc_client_remove(get(), key, NMC_REMOVE_ASYNC)); }
  /// Removes all objects of the client's namespace in one step; with NMC_REMOVE_EVERYWHERE, of all namespaces.
  Out<Removed> remove_all(uint32_t flags = 0) const { return removed(nmc_client_remove_all(get(), flags)); }

  // ---- many at a time -----------------------------------------------------------------------------------------------
  //
  // A batch returns a status for every item, in both forms: `client.put_batch(keys, values).value()` throws if one failed.

  Batch put_batch(Many<Key> keys, Many<Bytes> values, const Replicate& options = {}) const {
    const nmc_replicate_t c = options.c();
    return detail::batch<Batch>(keys.size(), values.size(), [&](nmc_status_t* items) {
      return nmc_client_put_batch(get(), keys.data(), values.data(), nullptr, keys.size(), &c, items);
    });
  }
  /// Each value from several pieces: `client.put_slices_batch(keys, {{head, tail}, {all}})`, or a container of containers of Bytes.
  template <class Values = std::initializer_list<Many<Bytes>>>
  Batch put_slices_batch(Many<Key> keys, const Values& values, const Replicate& options = {}) const {
    const nmc_replicate_t c = options.c();
    const detail::Pieces<Bytes> all(values);
    return detail::batch<Batch>(keys.size(), all.counts.size(), [&](nmc_status_t* items) {
      return nmc_client_put_batch(get(), keys.data(), all.pieces.data(), all.counts.data(), keys.size(), &c, items);
    });
  }
  /// Reads into memory that is large enough; the values of the result are the sizes.
  BatchOf<uint64_t> get_into_batch(Many<Key> keys, Many<MutableBytes> buffers) const {
    std::vector<uint64_t> sizes(keys.size());
    auto made = detail::batch<BatchOf<uint64_t>>(keys.size(), buffers.size(), [&](nmc_status_t* items) {
      return nmc_client_get_batch(get(), keys.data(), buffers.data(), nullptr, keys.size(), sizes.data(), items);
    });
    made.values = std::move(sizes);
    return made;
  }
  /// Each value into several pieces of memory, one after the other.
  template <class Buffers = std::initializer_list<Many<MutableBytes>>>
  BatchOf<uint64_t> get_slices_batch(Many<Key> keys, const Buffers& buffers) const {
    std::vector<uint64_t> sizes(keys.size());
    const detail::Pieces<MutableBytes> all(buffers);
    auto made = detail::batch<BatchOf<uint64_t>>(keys.size(), all.counts.size(), [&](nmc_status_t* items) {
      return nmc_client_get_batch(get(), keys.data(), all.pieces.data(), all.counts.data(), keys.size(), sizes.data(), items);
    });
    made.values = std::move(sizes);
    return made;
  }
  /// Metadata of each; empty where that failed.
  BatchOf<Buffer> metadata_batch(Many<Key> keys) const {
    std::vector<size_t> sizes(keys.size());
    BatchOf<Buffer> found;
    std::vector<MutableBytes> to;
    for (size_t i = 0; i < keys.size(); ++i) {
      found.values.emplace_back(NMC_MAX_METADATA);
      to.emplace_back(found.values[i].data(), size_t{NMC_MAX_METADATA});
    }
    static_cast<Batch&>(found) = detail::batch<Batch>(keys.size(), to.size(), [&](nmc_status_t* items) {
      return nmc_client_get_metadata_batch(get(), keys.data(), to.data(), keys.size(), sizes.data(), items);
    });
    for (size_t i = 0; i < keys.size(); ++i) found.values[i].resize(sizes[i]);
    return found;
  }
  /// Returns NMC_OK, NMC_IN_PROGRESS or NMC_ERR_NOT_FOUND for each, or why it failed. With NMC_REMOVE_ASYNC as `flags` it does not wait.
  Batch remove_batch(Many<Key> keys, uint32_t flags = 0) const {
    return detail::batch<Batch>(keys.size(), keys.size(), [&](nmc_status_t* items) {
      return nmc_client_remove_batch(get(), keys.data(), keys.size(), flags, items);
    });
  }
  /// Returns NMC_OK or NMC_ERR_NOT_FOUND for each.
  Out<std::vector<nmc_status_t>> exists_batch(Many<Key> keys) const {
    std::vector<nmc_status_t> statuses(keys.size());
    const nmc_status_t status = nmc_client_exists_batch(get(), keys.data(), keys.size(), statuses.data());
    if (status < 0) return Mode::failure(status);
    return statuses;
  }

  // ---- without waiting ----------------------------------------------------------------------------------------------
  //
  // When a call has ended, a completion with its token is queued. Until that has been taken, or the client is closed, the memory of the
  // call is the library's. `Calls` below takes care of that.

  Out<void> submit_put(Key key, LastingBytes value, uint64_t token, const Replicate& options = {}) const {
    return submit_put_slices(key, LastingSlices({value}), token, options);
  }
  /// From several pieces, one after the other.
  Out<void> submit_put_slices(Key key, LastingSlices slices, uint64_t token, const Replicate& options = {}) const {
    const nmc_replicate_t c = options.c();
    return Mode::done(nmc_client_submit_put(get(), key, slices.data(), slices.size(), &c, token));
  }
  Out<void> submit_get(Key key, MutableBytes to, uint64_t token) const { return submit_get_slices(key, Many<MutableBytes>({to}), token); }
  /// Into several pieces of memory, one after the other.
  Out<void> submit_get_slices(Key key, Many<MutableBytes> to, uint64_t token) const {
    return Mode::done(nmc_client_submit_get(get(), key, to.data(), to.size(), token));
  }
  /// Reads the metadata of a value; `bytes` of the completion is its size.
  Out<void> submit_metadata(Key key, MutableBytes to, uint64_t token) const {
    return Mode::done(nmc_client_submit_get_metadata(get(), key, to.ptr, to.len, token));
  }
  /// With NMC_REMOVE_ASYNC as `flags` the completion does not wait for the owners.
  Out<void> submit_remove(Key key, uint64_t token, uint32_t flags = 0) const {
    return Mode::done(nmc_client_submit_remove(get(), key, flags, token));
  }
  /// `statuses`, if not empty, has one for each key, also in the next four; anything else is refused, and nothing submitted.
  Out<void> submit_put_batch(Many<Key> keys, LastingSlices values, uint64_t token, span<nmc_status_t> statuses = {},
                             const Replicate& options = {}) const {
    const detail::Items items{keys, values.size(), "values", statuses};
    if (!items.fit()) return Mode::done(items.why());
    return Mode::done(items.put(get(), values.data(), nullptr, options, token));
  }
  /// Each value from several pieces, as in put_slices_batch.
  template <class Values = std::initializer_list<LastingSlices>>
  Out<void> submit_put_slices_batch(Many<Key> keys, const Values& values, uint64_t token, span<nmc_status_t> statuses = {},
                                    const Replicate& options = {}) const {
    const detail::Pieces<Bytes> all(values);
    const detail::Items items{keys, all.counts.size(), "values", statuses};
    if (!items.fit()) return Mode::done(items.why());
    return Mode::done(items.put(get(), all.pieces.data(), all.counts.data(), options, token));
  }
  /// `sizes`, if not empty, has one for each key, too.
  Out<void> submit_get_batch(Many<Key> keys, Many<MutableBytes> to, uint64_t token, span<uint64_t> sizes = {},
                             span<nmc_status_t> statuses = {}) const {
    const detail::Items items{keys, to.size(), "buffers", statuses, sizes};
    if (!items.fit()) return Mode::done(items.why());
    return Mode::done(items.get(get(), to.data(), nullptr, token));
  }
  /// Each value into several pieces of memory, one after the other.
  template <class Buffers = std::initializer_list<Many<MutableBytes>>>
  Out<void> submit_get_slices_batch(Many<Key> keys, const Buffers& buffers, uint64_t token, span<uint64_t> sizes = {},
                                    span<nmc_status_t> statuses = {}) const {
    const detail::Pieces<MutableBytes> all(buffers);
    const detail::Items items{keys, all.counts.size(), "buffers", statuses, sizes};
    if (!items.fit()) return Mode::done(items.why());
    return Mode::done(items.get(get(), all.pieces.data(), all.counts.data(), token));
  }
  /// With NMC_REMOVE_ASYNC as `flags` the completion does not wait for the owners.
  Out<void> submit_remove_batch(Many<Key> keys, uint64_t token, span<nmc_status_t> statuses = {}, uint32_t flags = 0) const {
    const detail::Items items{keys, keys.size(), "keys", statuses};
    if (!items.fit()) return Mode::done(items.why());
    return Mode::done(items.remove(get(), flags, token));
  }
  /// Takes queued completions, oldest first and at most `most`. If there are none, it waits for one: 0 ms does not wait, -1 ms waits as long
  /// as any call is under way.
  Out<std::vector<nmc_client_completion_t>> completions(std::chrono::milliseconds timeout = std::chrono::milliseconds(0),
                                                        size_t most = 64) const {
    std::vector<nmc_client_completion_t> taken(most);
    size_t n = 0;
    const nmc_status_t status = nmc_client_completions(get(), taken.data(), taken.size(), timeout.count(), &n);
    if (status < 0) return Mode::failure(status);
    taken.resize(n);
    return taken;
  }
  /// Readable when completions() should be called; belongs to the client.
  Out<int> event_fd() const {
    int32_t fd = -1;
    const nmc_status_t status = nmc_client_event_fd(get(), &fd);
    if (status < 0) return Mode::failure(status);
    return fd;
  }
  /// Ends the calls that were submitted with this token. Returns whether any was under way; its completion is queued either way.
  Out<bool> cancel(uint64_t token) const {
    const nmc_status_t status = nmc_client_cancel(get(), token);
    if (status == NMC_ERR_NOT_FOUND) return false;
    if (status < 0) return Mode::failure(status);
    return true;
  }

  // ---- looking ------------------------------------------------------------------------------------------------------

  /// The copies of an object; empty if there are none.
  Out<std::vector<Replica>> query(Key key) const {
    std::vector<Replica> found;
    const nmc_status_t status = list(key, found);
    if (status < 0 && status != NMC_ERR_NOT_FOUND) return Mode::failure(status);
    return found;
  }
  /// One page of the keys that begin with `prefix`. `cursor` is 0 at first, and again after the last page.
  Out<std::vector<std::string>> keys_page(uint64_t& cursor, std::string_view prefix = {}) const {
    std::vector<std::string> found;
    const nmc_status_t status = list_keys(cursor, prefix, found);
    if (status < 0) return Mode::failure(status);
    return found;
  }
  /// All keys that begin with `prefix`.
  Out<std::vector<std::string>> keys(std::string_view prefix = {}) const {
    std::vector<std::string> found;
    uint64_t cursor = 0;
    do {
      const nmc_status_t status = list_keys(cursor, prefix, found);
      if (status < 0) return Mode::failure(status);
    } while (cursor != 0);
    return found;
  }
  /// The segments of the cluster.
  Out<std::vector<Segment>> segments() const {
    std::vector<Segment> found;
    const std::function<void(const nmc_segment_t&)> add = [&](const nmc_segment_t& c) { found.push_back(detail::segment_of(c)); };
    Callback<nmc_segment_t> callback(add);
    const nmc_status_t status = nmc_client_segments(get(), each<nmc_segment_t>, &callback);
    callback.rethrow();
    if (status < 0) return Mode::failure(status);
    return found;
  }

 private:
  template <class C>
  using Callback = detail::Callback<std::function<void(const C&)>>;
  /// What C calls for each of a list.
  template <class C>
  static int32_t each(void* user, const C* c) {
    return static_cast<Callback<C>*>(user)->call(*c);
  }

  static int32_t place(void* user, const nmc_placement_t* put, uint32_t* out) noexcept {
    const auto answer = [&]() -> int32_t {
      const std::vector<uint32_t> chosen = (*static_cast<const Placement*>(user))(Placing(*put));
      if (chosen.size() > NMC_CLIENT_MAX_COPIES) return NMC_ERR_INVALID_ARG;
      std::copy(chosen.begin(), chosen.end(), out);
      return static_cast<int32_t>(chosen.size());
    };
#if NMC_HPP_EXCEPTIONS
    try {
      return answer();
    } catch (...) {
      return NMC_ERR_INVALID_ARG;
    }
#else
    return answer();
#endif
  }

  nmc_status_t list_keys(uint64_t& cursor, std::string_view prefix, std::vector<std::string>& found) const {
    const std::function<void(const nmc_slice_t&)> add = [&](const nmc_slice_t& c) { found.emplace_back(detail::text_of(c)); };
    Callback<nmc_slice_t> callback(add);
    const auto each_key = [](void* user, nmc_slice_t key) -> int32_t { return static_cast<Callback<nmc_slice_t>*>(user)->call(key); };
    const nmc_status_t status = nmc_client_keys(get(), nmc_slice_t{prefix.data(), prefix.size()}, &cursor, each_key, &callback);
    callback.rethrow();
    return status;
  }

  nmc_status_t list(Key key, std::vector<Replica>& found) const {
    const std::function<void(const nmc_replica_t&)> add = [&](const nmc_replica_t& c) {
      found.push_back({static_cast<Media>(c.media), c.bytes, c.put_id, std::string(detail::text_of(c.endpoint))});
    };
    Callback<nmc_replica_t> callback(add);
    const nmc_status_t status = nmc_client_query(get(), key, each<nmc_replica_t>, &callback);
    callback.rethrow();
    return status;
  }

  nmc_status_t read_all(Key key, Buffer& value) const {
    return fill(value, [&](const MutableBytes& to, uint64_t* size) { return nmc_client_get(get(), key, &to, 1, size); });
  }
  /// All of a value that `read` reads.
  template <class Read>
  static nmc_status_t fill(Buffer& value, Read read) {
    value = Buffer(64 << 10);  // what is not larger takes one call
    for (;;) {                 // another object may take the key between two calls
      uint64_t size = 0;
      const nmc_status_t status = read(MutableBytes(value.data(), value.capacity()), &size);
      if (status == NMC_OK) value.resize(static_cast<size_t>(size));
      if (status != NMC_ERR_TOO_SMALL) return status;
      value = Buffer(static_cast<size_t>(size));
    }
  }

  static Out<Removed> removed(nmc_status_t status) {
    if (status == NMC_ERR_NOT_FOUND) return Removed::absent;
    if (status < 0) return Mode::failure(status);
    return status == NMC_IN_PROGRESS ? Removed::in_progress : Removed::everywhere;
  }
};

// -------------------------------------------------------------------------------------------------------- calls --

/// Submitted calls of a client. The destructor ends those that are under way, so memory that outlives this object is safe: make it after
/// values, buffers and lists of statuses. It takes all completions of the client, so use only one per client. It refers to the client,
/// which may be closed before it. Not thread-safe.
///
///   nmc::Calls calls(client);
///   const uint64_t first = calls.get("prompt/17", room), second = calls.get("prompt/18", more);
///   while (calls.under_way() > 0) {
///     for (const nmc_client_completion_t& done : calls.wait()) ...
///   }
template <class Mode>
class BasicCalls {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  explicit BasicCalls(const AnyClient& client) noexcept : client_(client.get()) {}
  BasicCalls(const BasicCalls&) = delete;
  BasicCalls& operator=(const BasicCalls&) = delete;
  ~BasicCalls() {
    for (const uint64_t token : tokens_) nmc_client_cancel(client_, token);
    nmc_client_completion_t taken[16];
    // After nmc_client_close there is nothing to take, and the memory is the program's.
    for (size_t n = 0; !tokens_.empty() && nmc_client_completions(client_, taken, 16, -1, &n) == NMC_OK && n > 0;) forget(taken, n);
  }

  /// These submit a call and return the token of its completion.
  Out<uint64_t> put(Key key, LastingBytes value, const Replicate& options = {}) { return put_slices(key, LastingSlices({value}), options); }
  Out<uint64_t> put_slices(Key key, LastingSlices slices, const Replicate& options = {}) {
    const nmc_replicate_t c = options.c();
    return submit([&](uint64_t token) { return nmc_client_submit_put(client_, key, slices.data(), slices.size(), &c, token); });
  }
  Out<uint64_t> get(Key key, MutableBytes to) { return get_slices(key, Many<MutableBytes>({to})); }
  Out<uint64_t> get_slices(Key key, Many<MutableBytes> to) {
    return submit([&](uint64_t token) { return nmc_client_submit_get(client_, key, to.data(), to.size(), token); });
  }
  Out<uint64_t> metadata(Key key, MutableBytes to) {
    return submit([&](uint64_t token) { return nmc_client_submit_get_metadata(client_, key, to.ptr, to.len, token); });
  }
  /// With NMC_REMOVE_ASYNC as `flags` the completion does not wait for the owners.
  Out<uint64_t> remove(Key key, uint32_t flags = 0) {
    return submit([&](uint64_t token) { return nmc_client_submit_remove(client_, key, flags, token); });
  }
  // Batches: one completion tells when all have ended. `statuses` and `sizes` live as long as the values; if not empty, they have one for
  // each key.

  Out<uint64_t> put_batch(Many<Key> keys, LastingSlices values, span<nmc_status_t> statuses = {}, const Replicate& options = {}) {
    return submit({keys, values.size(), "values", statuses}, [&](const detail::Items& items, uint64_t token) {
      return items.put(client_, values.data(), nullptr, options, token);
    });
  }
  /// Each value from several pieces: `calls.put_slices_batch(keys, {{head, tail}, {all}})`, or a container of containers of Bytes.
  template <class Values = std::initializer_list<LastingSlices>>
  Out<uint64_t> put_slices_batch(Many<Key> keys, const Values& values, span<nmc_status_t> statuses = {}, const Replicate& options = {}) {
    const detail::Pieces<Bytes> all(values);
    return submit({keys, all.counts.size(), "values", statuses}, [&](const detail::Items& items, uint64_t token) {
      return items.put(client_, all.pieces.data(), all.counts.data(), options, token);
    });
  }
  Out<uint64_t> get_batch(Many<Key> keys, Many<MutableBytes> to, span<uint64_t> sizes = {}, span<nmc_status_t> statuses = {}) {
    return submit({keys, to.size(), "buffers", statuses, sizes},
                  [&](const detail::Items& items, uint64_t token) { return items.get(client_, to.data(), nullptr, token); });
  }
  /// Each value into several pieces of memory, one after the other.
  template <class Buffers = std::initializer_list<Many<MutableBytes>>>
  Out<uint64_t> get_slices_batch(Many<Key> keys, const Buffers& buffers, span<uint64_t> sizes = {}, span<nmc_status_t> statuses = {}) {
    const detail::Pieces<MutableBytes> all(buffers);
    return submit({keys, all.counts.size(), "buffers", statuses, sizes}, [&](const detail::Items& items, uint64_t token) {
      return items.get(client_, all.pieces.data(), all.counts.data(), token);
    });
  }
  /// With NMC_REMOVE_ASYNC as `flags` the completion does not wait for the owners.
  Out<uint64_t> remove_batch(Many<Key> keys, span<nmc_status_t> statuses = {}, uint32_t flags = 0) {
    return submit({keys, keys.size(), "keys", statuses},
                  [&](const detail::Items& items, uint64_t token) { return items.remove(client_, flags, token); });
  }
  /// Number of calls that were submitted and whose completions have not been taken.
  size_t under_way() const noexcept { return tokens_.size(); }
  /// Takes completions. If there are none, it waits for one as long as any call is under way, or up to `timeout`.
  Out<std::vector<nmc_client_completion_t>> wait(std::chrono::milliseconds timeout = std::chrono::milliseconds(-1), size_t most = 64) {
    std::vector<nmc_client_completion_t> taken(most);
    size_t n = 0;
    const nmc_status_t status = nmc_client_completions(client_, taken.data(), taken.size(), timeout.count(), &n);
    if (status < 0) return Mode::failure(status);
    taken.resize(n);
    forget(taken.data(), n);
    return taken;
  }

 private:
  template <class Call>
  Out<uint64_t> submit(const detail::Items& items, Call call) {
    if (!items.fit()) return Mode::failure(items.why());
    return submit([&](uint64_t token) { return call(items, token); });
  }
  template <class Call>
  Out<uint64_t> submit(Call call) {
    const uint64_t token = next_;
    tokens_.insert(token);  // before: what is under way must be known
    const nmc_status_t status = call(token);
    if (status < 0) {
      tokens_.erase(token);
      return Mode::failure(status);
    }
    ++next_;
    return token;
  }
  void forget(const nmc_client_completion_t* taken, size_t n) {
    for (size_t i = 0; i < n; ++i) tokens_.erase(taken[i].token);
  }

  nmc_client_t* client_;
  uint64_t next_ = 1;
  std::unordered_set<uint64_t> tokens_;
};

// ------------------------------------------------------------------------------------------------- the two forms --

using Client = BasicClient<Throwing>;
using Calls = BasicCalls<Throwing>;
namespace nothrow {
using Client = BasicClient<Returning>;
using Calls = BasicCalls<Returning>;
}  // namespace nothrow

namespace detail {
static_assert(is_move_only_v<nothrow::Client> && sizeof(nothrow::Client) == sizeof(void*), "a handle costs one pointer");
}  // namespace detail

}  // namespace nmc

#endif  // NANOMC_CLIENT_HPP
