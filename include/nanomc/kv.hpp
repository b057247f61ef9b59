/*
 * The block KV cache for C++17. In nmc::nothrow the same with results instead of exceptions: nanomc/core.hpp says how, and
 * what `Mode` and `Out<T>` are. When blocks are published and freed is said at nmc_kv_t.
 *
 *   nmc::KvGroup layout(32, 8, 128);                                        // layers, heads of K and V, head size
 *   nmc::KvCache cache = nmc::KvCache::create(nmc::KvConfig(4096).group(layout.memory(arena, arena_bytes)));
 *   nmc::KvSequence seq = cache.open(7, prompt);                            // aborted with the scope, unless closed
 *   prefill(seq.hit_tokens(), ...);                                         // what the cache had need not be computed
 *   seq.append(token);                                                      // and decode
 *   seq.close();                                                            // its full blocks stay for others
 *
 * In a cache that may be full NMC_ERR_NO_SPACE is an ordinary answer: ask with `cache.nothrow()->open(8, prompt)`.
 */
#ifndef NANOMC_KV_HPP
#define NANOMC_KV_HPP

#include <initializer_list>
#include <string_view>

#include "nanomc/world.hpp"

namespace nmc {

// ---------------------------------------------------------------------------------------------------- constants --

/// Type of an element.
enum class KvDtype : uint32_t {
  fp32 = NMC_DTYPE_FP32,
  bf16 = NMC_DTYPE_BF16,
  fp16 = NMC_DTYPE_FP16,
  fp8 = NMC_DTYPE_FP8,
  int8 = NMC_DTYPE_INT8,
};

/// Order of the axes, outermost first.
enum class KvOrder : uint32_t {
  layer_major = NMC_KV_LAYER_MAJOR,          ///< [layers, blocks, heads, tokens, dim]
  head_major = NMC_KV_HEAD_MAJOR,            ///< [heads, layers, blocks, tokens, dim]
  layer_major_nhd = NMC_KV_LAYER_MAJOR_NHD,  ///< [layers, blocks, tokens, heads, dim]
  block_major = NMC_KV_BLOCK_MAJOR,          ///< [blocks, layers, heads, tokens, dim]
};

/// Where K and V stand among the axes.
enum class KvSides : uint32_t {
  separate = NMC_KV_SIDES_SEPARATE,    ///< outermost
  per_layer = NMC_KV_SIDES_PER_LAYER,  ///< right inside the layers
  per_block = NMC_KV_SIDES_PER_BLOCK,  ///< right inside the blocks
};

/// K (or the latent vectors), or V.
enum class KvSide : uint32_t { k = NMC_KV_K, v = NMC_KV_V };

/// What happens when there is no room.
enum class KvWhenFull : uint32_t {
  reject = NMC_KV_WHEN_FULL_REJECT,
  shorten = NMC_KV_WHEN_FULL_SHORTEN,
  evict_sequence = NMC_KV_WHEN_FULL_EVICT_SEQUENCE,
  move_sequence = NMC_KV_WHEN_FULL_MOVE_SEQUENCE,
};

/// What names blocks by their tokens.
enum class KvHash : uint32_t { blake3 = NMC_KV_HASH_BLAKE3, sha256 = NMC_KV_HASH_SHA256, xxh3 = NMC_KV_HASH_XXH3 };

/// Entries of a dense table.
enum class KvTable : uint32_t { blocks = NMC_KV_TABLE_BLOCKS, offsets = NMC_KV_TABLE_OFFSETS };

// -------------------------------------------------------------------------------------------------------- config --

namespace detail {
/// The address of what a caller gives: not NULL even if it is nothing, since for the library NULL is what is not known.
template <class T>
const T* given(const T* values, size_t count) noexcept {
  static const T none{};
  return count == 0 ? &none : values;
}
}  // namespace detail

/// Layers with one layout; see nmc_kv_group_t. The memory stays the program's.
class KvGroup {
 public:
  KvGroup(uint32_t layers, uint32_t kv_heads, uint32_t head_dim) {
    c_.layers = layers;
    c_.kv_heads = kv_heads;
    c_.head_dim = head_dim;
  }
  /// Latent vectors of `dim` elements: one head, no V.
  static KvGroup mla(uint32_t layers, uint32_t dim) {
    KvGroup group(layers, 1, dim);
    group.c_.kind = NMC_KV_KIND_MLA;
    return group;
  }
  /// A state of so many bytes in each layer, one for each sequence, in `slots` slots; see NMC_KV_KIND_RECURRENT.
  static KvGroup recurrent(uint32_t layers, uint64_t state_bytes, uint32_t slots) {
    KvGroup group(layers, 0, 0);
    group.c_.kind = NMC_KV_KIND_RECURRENT;
    group.c_.state_bytes = state_bytes;
    group.c_.blocks = slots;
    return group;
  }
  /// The state at the end of every so many blocks is kept for later sequences.
  KvGroup& state_every(uint32_t blocks) { return c_.state_every = blocks, *this; }
  /// These layers see the last `tokens` tokens alone, and have `blocks` blocks of their own.
  KvGroup& window(uint64_t tokens, uint32_t blocks) {
    c_.blocks = blocks;
    return c_.window = tokens, *this;
  }
  KvGroup& dtype(KvDtype value) {
    c_.element_bytes = 0;
    return c_.dtype = static_cast<uint32_t>(value), *this;
  }
  /// Elements of so many bytes that the library knows nothing else about.
  KvGroup& raw(uint32_t element_bytes) {
    c_.element_bytes = element_bytes;
    return c_.dtype = NMC_DTYPE_RAW, *this;
  }
  KvGroup& order(KvOrder value) { return c_.order = static_cast<uint32_t>(value), *this; }
  KvGroup& sides(KvSides value) { return c_.sides = static_cast<uint32_t>(value), *this; }
  KvGroup& memory(void* address, uint64_t bytes) {
    c_.memory = address;
    c_.memory_bytes = bytes;
    return *this;
  }
  KvGroup& memory(MutableBytes all) { return memory(all.ptr, all.len); }
  const nmc_kv_group_t& c() const noexcept { return c_; }

 private:
  nmc_kv_group_t c_ = NMC_KV_GROUP_INIT;
};

/// How a KV cache is made; see nmc_kv_config_t. It owns its groups and its secret and can be copied and kept.
class KvConfig {
 public:
  KvConfig() = default;
  explicit KvConfig(uint32_t total_blocks) { c_.total_blocks = total_blocks; }

  KvConfig& total_blocks(uint32_t value) { return c_.total_blocks = value, *this; }
  KvConfig& max_total_tokens(uint64_t value) { return c_.max_total_tokens = value, *this; }
  KvConfig& tokens_per_block(uint32_t value) { return c_.tokens_per_block = value, *this; }
  KvConfig& capacity_blocks(uint32_t value) { return c_.capacity_blocks = value, *this; }
  KvConfig& max_sequences(uint32_t value) { return c_.max_sequences = value, *this; }
  KvConfig& group(const KvGroup& value) { return groups_.push_back(value.c()), *this; }
  KvConfig& window(uint64_t tokens) { return c_.window = tokens, *this; }
  KvConfig& eviction(Evict value) { return c_.eviction = static_cast<uint32_t>(value), *this; }
  KvConfig& when_full(KvWhenFull value) { return c_.when_full = static_cast<uint32_t>(value), *this; }
  KvConfig& hash(KvHash value) { return c_.hash = static_cast<uint32_t>(value), *this; }
  KvConfig& hash_secret(std::string value) { return secret_ = std::move(value), *this; }
  /// How many events can be looked back at.
  KvConfig& event_capacity(uint32_t value) { return c_.event_capacity = value, *this; }
  /// No block is matched or published.
  KvConfig& no_prefix(bool wanted = true) { return flag(NMC_KV_NO_PREFIX, wanted); }
  /// Every sequence has contiguous addresses for so many tokens; see NMC_KV_VIRTUAL.
  KvConfig& virtual_memory(uint64_t max_sequence_tokens, HeapKind heap_kind = HeapKind::host, int32_t device = -1) {
    c_.max_sequence_tokens = max_sequence_tokens;
    c_.heap_kind = static_cast<uint32_t>(heap_kind);
    c_.device = device;
    return flag(NMC_KV_VIRTUAL, true);
  }
  /// Where the groups begin in the heap of a world, if the cache is made in one.
  KvConfig& heap_offset(uint64_t value) { return c_.heap_offset = value, *this; }

  /// The C struct; it points into this object.
  nmc_kv_config_t c() const noexcept {
    nmc_kv_config_t c = c_;
    c.groups = groups_.data();
    c.n_groups = groups_.size();
    c.hash_secret = {secret_.data(), secret_.size()};
    return c;
  }

 private:
  KvConfig& flag(uint32_t bit, bool wanted) { return c_.flags = wanted ? c_.flags | bit : c_.flags & ~bit, *this; }

  std::vector<nmc_kv_group_t> groups_;
  std::string secret_;
  nmc_kv_config_t c_ = NMC_KV_CONFIG_INIT;
};

/// How a sequence is opened; see nmc_kv_open_t. Its strings and hashes are copied.
class KvOpen {
 public:
  /// Its blocks follow each other.
  KvOpen& contiguous(bool wanted = true) { return flag(NMC_KV_OPEN_CONTIGUOUS, wanted); }
  /// Nothing is matched or published.
  KvOpen& unshared(bool wanted = true) { return flag(NMC_KV_OPEN_PRIVATE, wanted); }
  /// The last token may come from the cache, too.
  KvOpen& match_all(bool wanted = true) { return flag(NMC_KV_OPEN_MATCH_ALL, wanted); }
  /// 0 to 15; blocks of lower ones are evicted first with Evict::priority.
  KvOpen& priority(uint32_t value) { return c_.priority = value, *this; }
  /// How long the priority lasts; 0 for ever.
  KvOpen& ttl(std::chrono::milliseconds value) { return c_.ttl_ms = detail::ttl_ms(value), *this; }
  KvOpen& salt(std::string value) { return salt_ = std::move(value), *this; }
  KvOpen& name(std::string value) { return name_ = std::move(value), *this; }
  /// Hashes of its full blocks, as hash() of a cache with the same secret gives them.
  KvOpen& hashes(span<const nmc_kv_hash_t> values) {
    given_ = true;
    return hashes_.assign(values.begin(), values.end()), *this;
  }
  /// The C struct; it points into this object.
  nmc_kv_open_t c() const noexcept {
    nmc_kv_open_t c = c_;
    c.salt = {salt_.data(), salt_.size()};
    c.name = {name_.data(), name_.size()};
    c.hashes = given_ ? detail::given(hashes_.data(), hashes_.size()) : nullptr;
    c.n_hashes = hashes_.size();
    return c;
  }

 private:
  KvOpen& flag(uint32_t bit, bool wanted) { return c_.flags = wanted ? c_.flags | bit : c_.flags & ~bit, *this; }

  std::string salt_, name_;
  std::vector<nmc_kv_hash_t> hashes_;
  bool given_ = false;
  nmc_kv_open_t c_ = NMC_KV_OPEN_INIT;
};

/// How tokens are appended; see nmc_kv_append_t.
class KvAppend {
 public:
  /// How important they are, for drop_least().
  KvAppend& importance(float value) { return c_.importance = value, *this; }
  const nmc_kv_append_t& c() const noexcept { return c_; }

 private:
  nmc_kv_append_t c_ = NMC_KV_APPEND_INIT;
};

/// Tokens of the caller, of 32 bits with or without sign, or so many that are not known. For arguments: it owns nothing.
class KvTokens {
 public:
  /// None, of which nothing is known.
  KvTokens() noexcept = default;
  KvTokens(const uint32_t* data, size_t count) noexcept : data_(detail::given(data, count)), count_(count) {}
  KvTokens(const int32_t* data, size_t count) noexcept : KvTokens(reinterpret_cast<const uint32_t*>(data), count) {}
  /// A vector, an array, a span: whatever lends a span of tokens.
  template <class Range, std::enable_if_t<std::is_convertible_v<const Range&, span<const uint32_t>>, int> = 0>
  KvTokens(const Range& tokens) noexcept : KvTokens(std::data(tokens), std::size(tokens)) {}
  template <class Range, std::enable_if_t<std::is_convertible_v<const Range&, span<const int32_t>>, long> = 0>
  KvTokens(const Range& tokens) noexcept : KvTokens(std::data(tokens), std::size(tokens)) {}
  /// One token.
  KvTokens(const uint32_t& token) noexcept : KvTokens(&token, 1) {}
  KvTokens(const int32_t& token) noexcept : KvTokens(&token, 1) {}
  /// Blocks of tokens that are not known are neither matched nor published.
  static KvTokens unknown(uint64_t count) noexcept {
    KvTokens tokens;
    tokens.count_ = count;
    return tokens;
  }
  /// Not NULL for tokens that are known, even if there are none of them.
  const uint32_t* data() const noexcept { return data_; }
  uint64_t size() const noexcept { return count_; }

 private:
  const uint32_t* data_ = nullptr;
  uint64_t count_ = 0;
};

/// What a transfer of blocks waits for. Device memory needs a stream or an event.
class KvAfter {
 public:
  KvAfter() = default;
  static KvAfter stream(void* handle) { return KvAfter(NMC_KV_AFTER_STREAM, handle); }
  static KvAfter event(void* handle) { return KvAfter(NMC_KV_AFTER_EVENT, handle); }
  const nmc_kv_after_t& c() const noexcept { return c_; }

 private:
  KvAfter(uint32_t kind, void* handle) : c_{kind, 0, handle} {}
  nmc_kv_after_t c_ = {NMC_KV_AFTER_NOTHING, 0, nullptr};
};

/// The copy of a block to another one, as from slot to slot of a recurrent group.
inline nmc_kv_copy_t kv_copy(int32_t from, int32_t to, uint32_t group = NMC_KV_GROUPS_ALL) noexcept {
  return {from, to, group, 0, nullptr, nullptr, 0};
}

// ------------------------------------------------------------------------------------------------------- results --

/// What began to come from the store.
struct KvOnboard {
  uint64_t ticket = 0;  ///< for KvCache::poll, wait and cancel
  uint64_t tokens = 0;
};

/// The compressed table that FlashInfer takes.
struct KvCsr {
  std::vector<int32_t> indptr, indices, last_page_len;
};

/// Slots of states; -1 where there is none.
struct KvStateSlots {
  std::vector<int32_t> reads, writes;
};

/// What entered and left the prefix index.
struct KvEvents {
  std::vector<nmc_kv_event_t> events;
  uint64_t lost = 0;  ///< events that were overwritten before these; a snapshot fills the gap
};

namespace detail {
/// Calls `write(data, capacity, &n)` until what it writes fits: it may grow between two calls.
template <class T, class Write>
nmc_status_t read_all(std::vector<T>& values, Write write) {
  for (;;) {
    size_t n = 0;
    const nmc_status_t status = write(values.data(), values.size(), &n);
    if (status < 0 && status != NMC_ERR_TOO_SMALL) return status;
    values.resize(n);
    if (status >= 0) return status;
  }
}

inline nmc_status_t abort_sequence(nmc_kv_t* kv, uint64_t id) { return nmc_kv_close(kv, id, NMC_KV_CLOSE_ABORT); }
}  // namespace detail

// ---------------------------------------------------------------------------------------------------------- pins --

/// A pin in either form.
class AnyKvPin : public detail::Lease<nmc_kv_t, uint64_t, nmc_kv_unpin> {
 public:
  AnyKvPin() noexcept = default;
  /// Takes over a pin that covers so many tokens.
  AnyKvPin(nmc_kv_t* kv, uint64_t pin, uint64_t tokens) noexcept : Lease(kv, pin), tokens_(tokens) {}
  /// Tokens that it covers.
  uint64_t tokens() const noexcept { return tokens_; }

 private:
  uint64_t tokens_ = 0;
};

/// Blocks that stay in the cache as long as this object lives. Move-only.
template <class Mode>
class BasicKvPin : public AnyKvPin {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  using AnyKvPin::AnyKvPin;
  BasicKvPin(AnyKvPin&& other) noexcept : AnyKvPin(std::move(other)) {}

  /// Unpins now.
  Out<void> unpin() { return Mode::done(nmc_kv_unpin(std::exchange(from_, nullptr), what_)); }
};

// ----------------------------------------------------------------------------------------------------- sequences --

/// An open sequence in either form.
class AnyKvSequence : public detail::Lease<nmc_kv_t, uint64_t, detail::abort_sequence> {
 public:
  AnyKvSequence() noexcept = default;
  /// Takes over a sequence that is open.
  AnyKvSequence(nmc_kv_t* kv, uint64_t id, const nmc_kv_opened_t& opened = NMC_KV_OPENED_INIT) noexcept
      : Lease(kv, id), opened_(opened) {}

  uint64_t id() const noexcept { return what_; }
  /// Leading tokens that the cache had when it was opened.
  uint64_t hit_tokens() const noexcept { return opened_.hit_tokens; }
  /// Tokens that it was opened with: as many as asked for, or fewer with KvWhenFull::shorten.
  uint64_t opened_tokens() const noexcept { return opened_.tokens; }

 protected:
  nmc_kv_opened_t opened_ = NMC_KV_OPENED_INIT;
};

/// An open sequence. Move-only. Unless it is closed before, it is aborted with this object: what was not committed, and does
/// not count as computed yet, is not published. Calls that can lack room store in `*room` how much there was.
template <class Mode>
class BasicKvSequence : public AnyKvSequence {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  using AnyKvSequence::AnyKvSequence;
  BasicKvSequence(AnyKvSequence&& other) noexcept : AnyKvSequence(std::move(other)) {}
  /// This sequence with results, for one call: `seq.nothrow()->append(token)`.
  detail::Borrowed<BasicKvSequence<Returning>> nothrow() const noexcept {
    return detail::Borrowed<BasicKvSequence<Returning>>(from_, what_, opened_);
  }

  // ---- growing and shrinking ----------------------------------------------------------------------------------------

  Out<void> append(KvTokens tokens, nmc_kv_room_t* room = nullptr) const {
    return Mode::done(nmc_kv_append(from_, what_, tokens.data(), tokens.size(), nullptr, room));
  }
  Out<void> append(KvTokens tokens, const KvAppend& options, nmc_kv_room_t* room = nullptr) const {
    return Mode::done(nmc_kv_append(from_, what_, tokens.data(), tokens.size(), &options.c(), room));
  }
  /// The first `tokens` tokens are computed.
  Out<void> commit(uint64_t tokens) const { return Mode::done(nmc_kv_commit(from_, what_, tokens)); }
  /// Keeps the state that it has now for later sequences; see nmc_kv_keep_state.
  Out<void> keep_state() const { return Mode::done(nmc_kv_keep_state(from_, what_)); }
  /// Room for `tokens` tokens in all.
  Out<void> reserve(uint64_t tokens, nmc_kv_room_t* room = nullptr) const {
    return Mode::done(nmc_kv_reserve(from_, what_, tokens, room));
  }
  /// Keeps the first `tokens` tokens. Look at take_copies() afterwards.
  Out<void> truncate(uint64_t tokens, nmc_kv_room_t* room = nullptr) const {
    return Mode::done(nmc_kv_truncate(from_, what_, tokens, room));
  }
  /// Another sequence with the same tokens. Look at its take_copies().
  Out<BasicKvSequence> fork(uint64_t child, nmc_kv_room_t* room = nullptr) const {
    const nmc_status_t status = nmc_kv_fork(from_, what_, child, room);
    if (status < 0) return Mode::failure(status);
    return BasicKvSequence(from_, child);
  }
  /// The copies that it waits for, which KvCache::copy_blocks makes; each is given once.
  Out<std::vector<nmc_kv_copy_t>> take_copies() const {
    std::vector<nmc_kv_copy_t> copies(1);
    const nmc_status_t status = detail::read_all(copies, [&](nmc_kv_copy_t* to, size_t capacity, size_t* n) {
      return nmc_kv_take_copies(from_, what_, to, capacity, n);
    });
    if (status < 0) return Mode::failure(status);
    return copies;
  }
  /// Drops up to `count` full blocks from the middle, the least important first; gives how many went.
  Out<uint32_t> drop_least(uint32_t count, uint32_t keep_first, uint32_t keep_recent) const {
    uint32_t dropped = 0;
    const nmc_status_t status = nmc_kv_drop_least(from_, what_, count, keep_first, keep_recent, &dropped);
    if (status < 0) return Mode::failure(status);
    return dropped;
  }
  /// Closes it: everything that it has counts as computed.
  Out<void> close() { return Mode::done(nmc_kv_close(std::exchange(from_, nullptr), what_, 0)); }
  /// Closes it: what was not committed, and does not count as computed yet, was not.
  Out<void> abort() { return Mode::done(detail::abort_sequence(std::exchange(from_, nullptr), what_)); }

  // ---- looking ------------------------------------------------------------------------------------------------------

  /// What it is. `flags`: NMC_KV_SEQ_STORED to look up what the store has.
  Out<nmc_kv_seq_info_t> info(uint32_t flags = 0) const {
    nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
    const nmc_status_t status = nmc_kv_seq_info(from_, what_, flags, &info);
    if (status < 0) return Mode::failure(status);
    return info;
  }
  /// K or V in one layer, as a 4-D tensor.
  Out<nmc_kv_view_t> view(uint32_t layer, KvSide side, uint32_t group = 0) const {
    nmc_kv_view_t view = NMC_KV_VIEW_INIT;
    const nmc_status_t status = nmc_kv_view(from_, what_, group, layer, static_cast<uint32_t>(side), &view);
    if (status < 0) return Mode::failure(status);
    return view;
  }
  /// Where the vector of one token lies.
  Out<void*> token_address(uint64_t token, uint32_t layer, KvSide side, uint32_t head, uint32_t group = 0) const {
    void* address = nullptr;
    const nmc_status_t status =
        nmc_kv_token_address(from_, what_, token, group, layer, static_cast<uint32_t>(side), head, &address);
    if (status < 0) return Mode::failure(status);
    return address;
  }

  // ---- keeping and moving -------------------------------------------------------------------------------------------

  /// Keeps the published blocks of the first `tokens` tokens.
  Out<BasicKvPin<Mode>> pin(uint64_t tokens) const {
    uint64_t pin = 0, covered = 0;
    const nmc_status_t status = nmc_kv_pin(from_, what_, tokens, &pin, &covered);
    if (status < 0) return Mode::failure(status);
    return BasicKvPin<Mode>(from_, pin, covered);
  }
  /// Begins to copy the blocks of the first `tokens` tokens to the store of the cache; gives the ticket for KvCache::poll,
  /// wait and cancel.
  Out<uint64_t> offload(uint64_t tokens, const KvAfter& after = {}) const {
    uint64_t ticket = 0;
    const nmc_status_t status = nmc_kv_offload(from_, what_, tokens, &after.c(), &ticket);
    if (status < 0) return Mode::failure(status);
    return ticket;
  }
  /// Begins to fetch the blocks that the store has of what is yet to be computed; nothing if it has none. `flags`:
  /// NMC_KV_ONBOARD_*.
  Out<std::optional<KvOnboard>> onboard(uint32_t flags = 0, const KvAfter& after = {}) const {
    KvOnboard begun;
    const nmc_status_t status = nmc_kv_onboard(from_, what_, flags, &after.c(), &begun.ticket, &begun.tokens);
    if (status < 0) return Mode::failure(status);
    if (begun.ticket == 0) return std::nullopt;
    return begun;
  }
};

// --------------------------------------------------------------------------------------------------------- cache --

/// A store in either form, as in store.hpp.
using AnyStore = detail::Handle<nmc_store_t, nmc_store_destroy>;

/// A cache in either form: for functions that take one.
class AnyKvCache : public detail::Handle<nmc_kv_t, nmc_kv_destroy> {
 public:
  AnyKvCache() noexcept = default;
  /// Takes over a cache whose blocks have so many tokens.
  AnyKvCache(nmc_kv_t* handle, uint32_t tokens_per_block) noexcept : Handle(handle), tokens_per_block_(tokens_per_block) {}
  uint32_t tokens_per_block() const noexcept { return tokens_per_block_; }

 protected:
  uint32_t tokens_per_block_ = 0;
};

/// A block KV cache. Move-only. All members may be called from any thread. Functions that take ids take those of open
/// sequences.
template <class Mode>
class BasicKvCache : public AnyKvCache {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;
  using Sequence = BasicKvSequence<Mode>;

  using AnyKvCache::AnyKvCache;
  BasicKvCache(AnyKvCache&& other) noexcept : AnyKvCache(std::move(other)) {}
  /// This cache with results, for one call: `cache.nothrow()->open(id, prompt)`.
  detail::Borrowed<BasicKvCache<Returning>> nothrow() const noexcept {
    return detail::Borrowed<BasicKvCache<Returning>>(get(), tokens_per_block_);
  }

  // ---- making -------------------------------------------------------------------------------------------------------

  /// Bytes of memory that the group with this number needs, or that all of them take in the heap of a world.
  static Out<uint64_t> heap_bytes(const KvConfig& config, uint32_t group = NMC_KV_GROUPS_ALL) {
    const nmc_kv_config_t c = config.c();
    uint64_t bytes = 0;
    const nmc_status_t status = nmc_kv_heap_bytes(&c, group, &bytes);
    if (status < 0) return Mode::failure(status);
    return bytes;
  }
  /// The smallest tokens_per_block with which virtual memory has whole pages.
  static Out<uint32_t> page_tokens(const KvConfig& config) {
    const nmc_kv_config_t c = config.c();
    uint32_t tokens = 0;
    const nmc_status_t status = nmc_kv_page_tokens(&c, &tokens);
    if (status < 0) return Mode::failure(status);
    return tokens;
  }
  static Out<BasicKvCache> create(const KvConfig& config) { return make(nullptr, config); }
  /// The groups lie in the heap of this rank, so that peers reach them. The world must outlive the cache.
  static Out<BasicKvCache> create(const AnyWorld& world, const KvConfig& config) {
    if (!world) {
      return Mode::failure({NMC_ERR_BAD_HANDLE, "the world is empty; without one KvCache::create takes the config alone"});
    }
    return make(world.get(), config);
  }
  /// Does what the destructor does, and says how it went. If it fails (NMC_ERR_BUSY) the cache is still owned.
  Out<void> destroy() { return Mode::done(destroy_now()); }

  // ---- sequences ----------------------------------------------------------------------------------------------------

  /// Opens a sequence under an id of the caller, or with NMC_KV_ID_AUTO one of the cache.
  Out<Sequence> open(uint64_t id, KvTokens tokens, const KvOpen& options = {}, nmc_kv_room_t* room = nullptr) const {
    const nmc_kv_open_t c = options.c();
    nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
    const nmc_status_t status = nmc_kv_open(get(), id, tokens.data(), tokens.size(), &c, &opened, room);
    if (status < 0) return Mode::failure(status);
    return Sequence(get(), opened.id, opened);
  }
  /// The id of the open sequence with this name; nothing if none has it.
  Out<std::optional<uint64_t>> find(std::string_view name) const {
    uint64_t id = 0;
    const nmc_status_t status = nmc_kv_find(get(), {name.data(), name.size()}, &id);
    if (detail::is_miss(status)) return std::nullopt;
    if (status < 0) return Mode::failure(status);
    return id;
  }
  /// One token more for each sequence; no tokens if they are not known. Those that fail are as they were; `statuses`, if not
  /// empty, has one for each.
  Out<void> append_batch(span<const uint64_t> ids, KvTokens tokens, span<nmc_status_t> statuses = {}) const {
    if (!one_each_or_none(tokens.size(), ids)) return Mode::done(not_one_each(tokens.size(), "tokens", ids));
    if (!one_each_or_none(statuses.size(), ids)) return Mode::done(not_one_each(statuses.size(), "statuses", ids));
    return Mode::done(nmc_kv_append_batch(get(), ids.data(), tokens.size() == 0 ? nullptr : tokens.data(), ids.size(),
                                          statuses.empty() ? nullptr : statuses.data()));
  }
  /// Up to `count` sequences, the one that was used longest ago first.
  Out<std::vector<uint64_t>> victims(size_t count) const {
    std::vector<uint64_t> ids(count);
    size_t n = 0;
    const nmc_status_t status = nmc_kv_victims(get(), ids.data(), ids.size(), &n);
    if (status < 0) return Mode::failure(status);
    ids.resize(n);
    return ids;
  }

  // ---- prefixes -----------------------------------------------------------------------------------------------------

  /// How many leading tokens the cache has now.
  Out<uint64_t> match(KvTokens tokens, std::string_view salt = {}) const {
    uint64_t hit = 0;
    const nmc_status_t status =
        nmc_kv_match(get(), tokens.data(), tokens.size(), nullptr, {salt.data(), salt.size()}, &hit);
    if (status < 0) return Mode::failure(status);
    return hit;
  }
  /// The same for full blocks whose hashes are known, without their tokens.
  Out<uint64_t> match_hashes(span<const nmc_kv_hash_t> hashes) const {
    uint64_t hit = 0;
    const nmc_status_t status = nmc_kv_match(get(), nullptr, uint64_t{hashes.size()} * tokens_per_block_,
                                             detail::given(hashes.data(), hashes.size()), {nullptr, 0}, &hit);
    if (status < 0) return Mode::failure(status);
    return hit;
  }
  /// The hashes of the full blocks of `tokens`.
  Out<std::vector<nmc_kv_hash_t>> hash(KvTokens tokens, std::string_view salt = {}) const {
    const uint64_t full = tokens_per_block_ == 0 ? 0 : tokens.size() / tokens_per_block_;
    std::vector<nmc_kv_hash_t> hashes(static_cast<size_t>(full));
    const nmc_status_t status =
        nmc_kv_hash(get(), tokens.data(), tokens.size(), {salt.data(), salt.size()}, hashes.data());
    if (status < 0) return Mode::failure(status);
    return hashes;
  }
  /// Evicts every cached block that nobody holds; gives how many.
  Out<uint64_t> clear() const {
    uint64_t evicted = 0;
    const nmc_status_t status = nmc_kv_clear(get(), &evicted);
    if (status < 0) return Mode::failure(status);
    return evicted;
  }
  /// Up to `most` events from number `cursor` on, which moves on behind them. Every reader has its own, 0 at first.
  Out<KvEvents> events(uint64_t& cursor, size_t most = 1024) const {
    KvEvents found;
    found.events.resize(most);
    size_t n = 0;
    const nmc_status_t status = nmc_kv_events(get(), &cursor, found.events.data(), most, &n, &found.lost);
    if (status < 0) return Mode::failure(status);
    found.events.resize(n);
    return found;
  }
  /// Every block of the prefix index, as if it came now. `cursor` receives where events go on from there.
  Out<std::vector<nmc_kv_event_t>> snapshot(uint64_t& cursor) const {
    std::vector<nmc_kv_event_t> events;
    const nmc_status_t status = detail::read_all(events, [&](nmc_kv_event_t* to, size_t capacity, size_t* n) {
      return nmc_kv_snapshot(get(), &cursor, to, capacity, n);
    });
    if (status < 0) return Mode::failure(status);
    return events;
  }

  // ---- tables for kernels -------------------------------------------------------------------------------------------

  /// Writes what changed in the rows of a dense table; see nmc_kv_table. `rows` belongs to the table, and is resized to one
  /// row a sequence; gives how many entries were stored.
  Out<uint64_t> table(span<const uint64_t> ids, std::vector<nmc_kv_row_t>& rows, span<int32_t> table, size_t width,
                      int32_t pad = 0, KvTable format = KvTable::blocks, uint32_t group = 0) const {
    const size_t sides = format == KvTable::offsets ? 2 : 1;
    if (width == 0 || table.size() / sides / width < ids.size()) {
      return Mode::failure({NMC_ERR_INVALID_ARG, "a table of " + std::to_string(table.size()) + " entries has no room for " +
                                                     std::to_string(ids.size()) + " sequences with " +
                                                     std::to_string(sides) + " x " + std::to_string(width) + " each"});
    }
    rows.resize(ids.size(), nmc_kv_row_t{0, 0, 0});
    uint64_t written = 0;
    const nmc_status_t status = nmc_kv_table(get(), group, static_cast<uint32_t>(format), ids.data(), ids.size(), width, pad,
                                             rows.data(), table.data(), &written);
    if (status < 0) return Mode::failure(status);
    return written;
  }
  /// The compressed table.
  Out<KvCsr> table_csr(span<const uint64_t> ids, uint32_t group = 0) const {
    KvCsr csr;
    csr.indptr.resize(ids.size() + 1);
    csr.last_page_len.resize(ids.size());
    const nmc_status_t status = detail::read_all(csr.indices, [&](int32_t* to, size_t capacity, size_t* n) {
      return nmc_kv_table_csr(get(), group, ids.data(), ids.size(), csr.indptr.data(), csr.last_page_len.data(), to,
                              capacity, n);
    });
    if (status < 0) return Mode::failure(status);
    return csr;
  }
  /// The same into memory of the caller, such as pinned memory; gives how many blocks there are.
  Out<size_t> table_csr_into(span<const uint64_t> ids, span<int32_t> indptr, span<int32_t> indices,
                             span<int32_t> last_page_len, uint32_t group = 0) const {
    if (indptr.size() <= ids.size() || last_page_len.size() < ids.size()) {
      return Mode::failure({NMC_ERR_INVALID_ARG, "indptr has " + std::to_string(indptr.size()) +
                                                     " entries and last_page_len " + std::to_string(last_page_len.size()) +
                                                     ", too few for " + std::to_string(ids.size()) + " sequences"});
    }
    size_t n = 0;
    const nmc_status_t status = nmc_kv_table_csr(get(), group, ids.data(), ids.size(), indptr.data(), last_page_len.data(),
                                                 indices.data(), indices.size(), &n);
    if (status < 0) return Mode::failure(status);
    return n;
  }
  /// Slots of the last `counts[i]` tokens of each sequence; without counts of the last one.
  Out<std::vector<int64_t>> slot_mapping(span<const uint64_t> ids, span<const uint32_t> counts = {},
                                         uint32_t group = 0) const {
    if (!one_each_or_none(counts.size(), ids)) return Mode::failure(not_one_each(counts.size(), "counts", ids));
    std::vector<int64_t> slots(ids.size());
    const nmc_status_t status = detail::read_all(slots, [&](int64_t* to, size_t capacity, size_t* n) {
      return map_slots(ids, counts, group, to, capacity, n);
    });
    if (status < 0) return Mode::failure(status);
    return slots;
  }
  /// The same into memory of the caller; gives how many slots there are.
  Out<size_t> slot_mapping_into(span<int64_t> slots, span<const uint64_t> ids, span<const uint32_t> counts = {},
                                uint32_t group = 0) const {
    if (!one_each_or_none(counts.size(), ids)) return Mode::failure(not_one_each(counts.size(), "counts", ids));
    size_t n = 0;
    const nmc_status_t status = map_slots(ids, counts, group, slots.data(), slots.size(), &n);
    if (status < 0) return Mode::failure(status);
    return n;
  }
  /// The slots of states that the next work of each sequence reads and writes; see nmc_kv_state_slots.
  Out<KvStateSlots> state_slots(span<const uint64_t> ids, uint32_t group) const {
    KvStateSlots found{std::vector<int32_t>(ids.size()), std::vector<int32_t>(ids.size())};
    const nmc_status_t status =
        nmc_kv_state_slots(get(), group, ids.data(), ids.size(), found.reads.data(), found.writes.data());
    if (status < 0) return Mode::failure(status);
    return found;
  }

  // ---- copies -------------------------------------------------------------------------------------------------------

  /// Copies blocks one after the other into contiguous memory; `group` may be NMC_KV_GROUPS_ALL. On a device it runs when
  /// `stream` gets there; in host memory it is done then, and there is no stream.
  Out<void> gather(span<const int32_t> blocks, void* to, uint64_t to_bytes, void* stream = nullptr,
                   uint32_t group = NMC_KV_GROUPS_ALL) const {
    return Mode::done(nmc_kv_gather(get(), group, blocks.data(), blocks.size(), to, to_bytes, stream));
  }
  Out<void> gather(span<const int32_t> blocks, MutableBytes to, void* stream = nullptr, uint32_t group = NMC_KV_GROUPS_ALL) const {
    return gather(blocks, to.ptr, to.len, stream, group);
  }
  /// The reverse.
  Out<void> scatter(span<const int32_t> blocks, const void* from, uint64_t from_bytes, void* stream = nullptr,
                    uint32_t group = NMC_KV_GROUPS_ALL) const {
    return Mode::done(nmc_kv_scatter(get(), group, blocks.data(), blocks.size(), from, from_bytes, stream));
  }
  Out<void> scatter(span<const int32_t> blocks, LastingBytes from, void* stream = nullptr, uint32_t group = NMC_KV_GROUPS_ALL) const {
    return scatter(blocks, from.ptr, from.len, stream, group);
  }
  /// Makes the copies of KvSequence::take_copies().
  Out<void> copy_blocks(span<const nmc_kv_copy_t> copies, void* stream = nullptr) const {
    return Mode::done(nmc_kv_copy_blocks(get(), copies.data(), copies.size(), stream));
  }
  Out<void> copy_blocks(std::initializer_list<nmc_kv_copy_t> copies, void* stream = nullptr) const {
    return copy_blocks(span<const nmc_kv_copy_t>(copies.begin(), copies.size()), stream);
  }

  // ---- the store ----------------------------------------------------------------------------------------------------

  /// Ties the cache to a store, with which it exchanges blocks.
  Out<void> attach(const AnyStore& store) const { return Mode::done(nmc_kv_attach_store(get(), store.get())); }
  /// What moves come after that make room; see nmc_kv_move_after.
  Out<void> move_after(const KvAfter& after) const { return Mode::done(nmc_kv_move_after(get(), &after.c())); }
  /// Whether a transfer is over; a failure is its outcome. With the end the ticket ends.
  [[nodiscard]] Out<bool> poll(uint64_t ticket, nmc_kv_progress_t* progress = nullptr) const {
    return is_over(nmc_kv_transfer_poll(get(), ticket, progress));
  }
  /// The same, after waiting for its end; false if the time is over first.
  [[nodiscard]] Out<bool> wait(uint64_t ticket, std::chrono::milliseconds timeout = default_timeout,
                               nmc_kv_progress_t* progress = nullptr) const {
    return is_over(nmc_kv_transfer_wait(get(), ticket, timeout.count(), progress));
  }
  /// Asks a transfer to end soon; poll or wait tells how it did.
  Out<void> cancel(uint64_t ticket) const { return Mode::done(nmc_kv_transfer_cancel(get(), ticket)); }

  // ---- as a whole ---------------------------------------------------------------------------------------------------

  Out<void> resize(uint32_t total_blocks) const { return Mode::done(nmc_kv_resize(get(), total_blocks)); }
  Out<nmc_kv_stats_t> stats() const {
    nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
    const nmc_status_t status = nmc_kv_stats(get(), &stats);
    if (status < 0) return Mode::failure(status);
    return stats;
  }
  /// The blocks of one group.
  Out<nmc_kv_group_stats_t> group_stats(uint32_t group) const {
    nmc_kv_group_stats_t stats = NMC_KV_GROUP_STATS_INIT;
    const nmc_status_t status = nmc_kv_group_stats(get(), group, &stats);
    if (status < 0) return Mode::failure(status);
    return stats;
  }
  /// The state as text for people; with a picture of the blocks, so many in a line, if `width` is not 0.
  Out<std::string> dump(uint32_t width = 0) const {
    return detail::text<Mode>([&](char* buffer, size_t capacity, size_t* needed) {
      return nmc_kv_dump(get(), width, buffer, capacity, needed);
    });
  }
  /// Counts every block afresh.
  Out<void> audit() const { return Mode::done(nmc_kv_audit(get())); }

 private:
  static Out<BasicKvCache> make(nmc_world_t* world, const KvConfig& config) {
    const nmc_kv_config_t c = config.c();
    nmc_kv_t* handle = nullptr;
    const nmc_status_t status = nmc_kv_create(world, &c, &handle);
    if (status < 0) return Mode::failure(status);
    return BasicKvCache(handle, c.tokens_per_block);
  }
  static bool one_each_or_none(uint64_t n, span<const uint64_t> ids) noexcept { return detail::one_each_or_none(n, ids.size()); }
  static Failure not_one_each(uint64_t n, const char* what, span<const uint64_t> ids) {
    return detail::not_one_each(n, what, ids.size(), "sequences");
  }
  nmc_status_t map_slots(span<const uint64_t> ids, span<const uint32_t> counts, uint32_t group, int64_t* to,
                         size_t capacity, size_t* n) const {
    return nmc_kv_slot_mapping(get(), group, ids.data(), counts.empty() ? nullptr : counts.data(), ids.size(), to, capacity,
                               n);
  }
  static Out<bool> is_over(nmc_status_t status) {
    if (status < 0) return Mode::failure(status);
    return status == NMC_OK;
  }
};

// ------------------------------------------------------------------------------------------------- by request id --

/// The cache for programs that know sequences by the text of a request id, and tokens only by their number: the names of
/// the simple contiguous caches that it replaces. Nothing throws: false, 0 or an empty view is what went wrong, and
/// nmc_last_error_message() says why. Does not own the cache.
class KvByRequest {
 public:
  explicit KvByRequest(const AnyKvCache& cache) noexcept : kv_(cache.get()) {}

  bool allocateFor(std::string_view request, uint64_t tokens) const {
    nmc_kv_open_t options = NMC_KV_OPEN_INIT;
    options.flags = NMC_KV_OPEN_CONTIGUOUS;
    options.name = {request.data(), request.size()};
    return nmc_kv_open(kv_, NMC_KV_ID_AUTO, nullptr, tokens, &options, nullptr, nullptr) == NMC_OK;
  }
  bool freeFor(std::string_view request) const {
    uint64_t id = 0;
    return find(request, &id) && nmc_kv_close(kv_, id, 0) == NMC_OK;
  }
  /// One token more. The blocks may move: `moved`, if not NULL, receives the copies to make before the next call.
  bool appendToken(std::string_view request, std::vector<nmc_kv_copy_t>* moved = nullptr) const {
    uint64_t id = 0;
    if (!find(request, &id) || nmc_kv_append(kv_, id, nullptr, 1, nullptr, nullptr) != NMC_OK) return false;
    if (moved == nullptr) return true;
    auto copies = detail::Borrowed<BasicKvSequence<Returning>>(kv_, id)->take_copies();
    if (copies) *moved = std::move(*copies);
    return copies.ok();
  }
  uint64_t usedTokens(std::string_view request) const { return info(request).tokens; }
  uint32_t getTokenOffsetInBlock(std::string_view request) const { return info(request).next_offset_in_block; }
  nmc_kv_view_t getKView(std::string_view request, uint32_t layer) const { return tensor(request, layer, NMC_KV_K); }
  nmc_kv_view_t getVView(std::string_view request, uint32_t layer) const { return tensor(request, layer, NMC_KV_V); }

  /// Bytes of the arena that are in use, and that are not; of a cache whose capacity is its size.
  uint64_t getTotalAllocated() const {
    const nmc_kv_stats_t now = stats();
    return now.total == 0 ? 0 : now.arena_bytes / now.total * now.used;
  }
  uint64_t getTotalFree() const {
    const nmc_kv_stats_t now = stats();
    return now.total == 0 ? 0 : now.arena_bytes / now.total * (now.total - now.used);
  }
  uint64_t getNumAllocatedSequences() const { return stats().sequences; }
  bool isFull() const { return stats().is_full != 0; }
  float getFragmentation() const { return stats().fragmentation; }
  template <class Stream>
  void dumpCacheStats(Stream& out) const {
    dump(out, 0);
  }
  /// The same with a picture of the blocks.
  template <class Stream>
  void dumpBlockMap(Stream& out) const {
    dump(out, 64);
  }

 private:
  template <class Stream>
  void dump(Stream& out, uint32_t width) const {
    out << detail::text<Returning>([&](char* buffer, size_t capacity, size_t* needed) {
             return nmc_kv_dump(kv_, width, buffer, capacity, needed);
           }).value_or({});
  }
  bool find(std::string_view request, uint64_t* id) const {
    return nmc_kv_find(kv_, {request.data(), request.size()}, id) == NMC_OK;
  }
  nmc_kv_seq_info_t info(std::string_view request) const {
    nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
    uint64_t id = 0;
    if (find(request, &id)) (void)nmc_kv_seq_info(kv_, id, 0, &info);
    return info;
  }
  nmc_kv_view_t tensor(std::string_view request, uint32_t layer, uint32_t side) const {
    nmc_kv_view_t view = NMC_KV_VIEW_INIT;
    uint64_t id = 0;
    if (find(request, &id)) (void)nmc_kv_view(kv_, id, 0, layer, side, &view);
    return view;
  }
  nmc_kv_stats_t stats() const {
    nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
    (void)nmc_kv_stats(kv_, &stats);
    return stats;
  }
  nmc_kv_t* kv_;
};

// ------------------------------------------------------------------------------------------------- the two forms --

using KvCache = BasicKvCache<Throwing>;
using KvSequence = BasicKvSequence<Throwing>;
using KvPin = BasicKvPin<Throwing>;
namespace nothrow {
using KvCache = BasicKvCache<Returning>;
using KvSequence = BasicKvSequence<Returning>;
using KvPin = BasicKvPin<Returning>;
}  // namespace nothrow

namespace detail {
static_assert(is_move_only_v<nothrow::KvCache> && is_move_only_v<nothrow::KvSequence> && is_move_only_v<nothrow::KvPin>,
              "sequences have one owner");
}  // namespace detail

}  // namespace nmc

#endif  // NANOMC_KV_HPP
