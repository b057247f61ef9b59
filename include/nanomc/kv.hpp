/*
 * The block KV cache for C++17: RAII over nmc_kv_* of nanomc.h. nanomc.hpp includes it; like there, every operation has a
 * `try_x` that returns a Result, and an `x` that throws nmc::Error. When blocks are published and freed is said at nmc_kv_t.
 *
 *   nmc::KvGroup layout(32, 8, 128);                                        // layers, heads of K and V, head size
 *   nmc::KvCache cache = nmc::KvCache::create(nmc::KvConfig(4096).group(layout.memory(arena, arena_bytes)));
 *   nmc::KvSequence seq = cache.open(7, prompt);                            // aborted with the scope, unless closed
 *   prefill(seq.hit_tokens(), ...);                                         // what the cache had need not be computed
 *   seq.append(token);                                                      // and decode
 *   seq.close();                                                            // its full blocks stay for others
 */
#ifndef NANOMC_KV_HPP
#define NANOMC_KV_HPP

#include <string_view>

#include "nanomc.hpp"

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

/// Which cached block goes first.
enum class KvEviction : uint32_t {
  lru = NMC_EVICT_LRU,
  lfu = NMC_EVICT_LFU,
  fifo = NMC_EVICT_FIFO,
  s3fifo = NMC_EVICT_S3FIFO,
  priority = NMC_EVICT_PRIORITY,
};

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
  KvConfig& eviction(KvEviction value) { return c_.eviction = static_cast<uint32_t>(value), *this; }
  KvConfig& when_full(KvWhenFull value) { return c_.when_full = static_cast<uint32_t>(value), *this; }
  KvConfig& hash(KvHash value) { return c_.hash = static_cast<uint32_t>(value), *this; }
  KvConfig& hash_secret(std::string value) { return secret_ = std::move(value), *this; }
  /// How many events can be looked back at.
  KvConfig& event_capacity(uint32_t value) { return c_.event_capacity = value, *this; }
  /// No block is matched or published.
  KvConfig& no_prefix(bool value = true) {
    c_.flags = (c_.flags & ~static_cast<uint32_t>(NMC_KV_NO_PREFIX)) | (value ? NMC_KV_NO_PREFIX : 0);
    return *this;
  }
  /// Every sequence has contiguous addresses for so many tokens; see NMC_KV_VIRTUAL.
  KvConfig& virtual_memory(uint64_t max_sequence_tokens, uint32_t heap_kind = NMC_HEAP_HOST, int32_t device = -1) {
    c_.flags |= NMC_KV_VIRTUAL;
    c_.max_sequence_tokens = max_sequence_tokens;
    c_.heap_kind = heap_kind;
    c_.device = device;
    return *this;
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
  /// Bytes of memory that the group with this number needs, or that all of them take in the heap of a world.
  Result<uint64_t> try_heap_bytes(uint32_t group = NMC_KV_GROUPS_ALL) const {
    const nmc_kv_config_t config = c();
    uint64_t bytes = 0;
    const nmc_status_t status = nmc_kv_heap_bytes(&config, group, &bytes);
    if (status < 0) return detail::failure(status);
    return bytes;
  }
  /// The smallest tokens_per_block with which virtual memory has whole pages.
  Result<uint32_t> try_page_tokens() const {
    const nmc_kv_config_t config = c();
    uint32_t tokens = 0;
    const nmc_status_t status = nmc_kv_page_tokens(&config, &tokens);
    if (status < 0) return detail::failure(status);
    return tokens;
  }
#if NMC_HPP_EXCEPTIONS
  uint32_t page_tokens() const { return try_page_tokens().value(); }
  uint64_t heap_bytes(uint32_t group = NMC_KV_GROUPS_ALL) const { return try_heap_bytes(group).value(); }
#endif

 private:
  std::vector<nmc_kv_group_t> groups_;
  std::string secret_;
  nmc_kv_config_t c_ = NMC_KV_CONFIG_INIT;
};

/// How a sequence is opened; see nmc_kv_open_t. Its strings and hashes are copied.
class KvOpen {
 public:
  /// Its blocks follow each other.
  KvOpen& contiguous(bool value = true) { return flag(NMC_KV_OPEN_CONTIGUOUS, value); }
  /// Nothing is matched or published.
  KvOpen& unshared(bool value = true) { return flag(NMC_KV_OPEN_PRIVATE, value); }
  /// The last token may come from the cache, too.
  KvOpen& match_all(bool value = true) { return flag(NMC_KV_OPEN_MATCH_ALL, value); }
  KvOpen& priority(uint32_t value, uint64_t ttl_ms = 0) {
    c_.ttl_ms = ttl_ms;
    return c_.priority = value, *this;
  }
  KvOpen& salt(std::string value) { return salt_ = std::move(value), *this; }
  KvOpen& name(std::string value) { return name_ = std::move(value), *this; }
  /// Hashes of its full blocks, as hash() of a cache with the same secret gives them.
  KvOpen& hashes(std::vector<nmc_kv_hash_t> value) {
    given_ = true;
    return hashes_ = std::move(value), *this;
  }
  /// The C struct; it points into this object.
  nmc_kv_open_t c() const noexcept {
    static const nmc_kv_hash_t none{};
    nmc_kv_open_t c = c_;
    c.salt = {salt_.data(), salt_.size()};
    c.name = {name_.data(), name_.size()};
    c.hashes = !given_ ? nullptr : hashes_.empty() ? &none : hashes_.data();
    c.n_hashes = hashes_.size();
    return c;
  }

 private:
  KvOpen& flag(uint32_t bit, bool value) { return c_.flags = (c_.flags & ~bit) | (value ? bit : 0), *this; }

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

namespace detail {
template <class Range>
using element_t = std::remove_const_t<std::remove_pointer_t<decltype(std::declval<const Range&>().data())>>;
/// Whether something has tokens one after the other: uint32_t or int32_t, with data() and size().
template <class Range, class = void>
inline constexpr bool has_tokens_v = false;
template <class Range>
inline constexpr bool has_tokens_v<Range, std::void_t<element_t<Range>, decltype(std::declval<const Range&>().size())>> =
    std::is_same_v<element_t<Range>, uint32_t> || std::is_same_v<element_t<Range>, int32_t>;
}  // namespace detail

/// Tokens of the caller, of 32 bits with or without sign, or so many that are not known. For arguments: it owns nothing.
class KvTokens {
 public:
  /// None, of which nothing is known.
  KvTokens() noexcept : data_(nullptr), count_(0) {}
  KvTokens(const uint32_t* data, size_t count) noexcept : data_(data == nullptr ? &none() : data), count_(count) {}
  KvTokens(const int32_t* data, size_t count) noexcept : KvTokens(reinterpret_cast<const uint32_t*>(data), count) {}
  /// A vector, an array, a view, a std::span.
  template <class Range, class = std::enable_if_t<detail::has_tokens_v<Range>>>
  KvTokens(const Range& tokens) noexcept : KvTokens(tokens.data(), static_cast<size_t>(tokens.size())) {}
  KvTokens(const uint32_t& token) noexcept : KvTokens(&token, 1) {}
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
  static const uint32_t& none() noexcept {
    static const uint32_t zero = 0;
    return zero;
  }
  const uint32_t* data_;
  uint64_t count_;
};

// ----------------------------------------------------------------------------------------------------- sequences --

/// Blocks that stay in the cache as long as this object lives. Move-only.
class KvPin {
 public:
  KvPin() = default;
  KvPin(nmc_kv_t* kv, uint64_t pin, uint64_t tokens) noexcept : kv_(kv), pin_(pin), tokens_(tokens) {}
  KvPin(KvPin&& other) noexcept : kv_(std::exchange(other.kv_, nullptr)), pin_(other.pin_), tokens_(other.tokens_) {}
  KvPin& operator=(KvPin&& other) noexcept {
    if (this != &other) {
      if (kv_ != nullptr) (void)nmc_kv_unpin(kv_, pin_);
      kv_ = std::exchange(other.kv_, nullptr);
      pin_ = other.pin_;
      tokens_ = other.tokens_;
    }
    return *this;
  }
  KvPin(const KvPin&) = delete;
  KvPin& operator=(const KvPin&) = delete;
  ~KvPin() {
    if (kv_ != nullptr) (void)nmc_kv_unpin(kv_, pin_);
  }

  explicit operator bool() const noexcept { return kv_ != nullptr; }
  /// Tokens that it covers.
  uint64_t tokens() const noexcept { return tokens_; }
  uint64_t c() const noexcept { return pin_; }
  Result<void> try_unpin() { return detail::done(nmc_kv_unpin(std::exchange(kv_, nullptr), pin_)); }
#if NMC_HPP_EXCEPTIONS
  void unpin() { try_unpin().value(); }
#endif

 private:
  nmc_kv_t* kv_ = nullptr;
  uint64_t pin_ = 0;
  uint64_t tokens_ = 0;
};

/// What a transfer of blocks waits for. Device memory needs a stream or an event.
class KvAfter {
 public:
  KvAfter() = default;
  static KvAfter stream(void* handle) { return KvAfter(NMC_KV_AFTER_STREAM, handle); }
  static KvAfter event(void* handle) { return KvAfter(NMC_KV_AFTER_EVENT, handle); }
  const nmc_kv_after_t* c() const noexcept { return &c_; }

 private:
  KvAfter(uint32_t kind, void* handle) : c_{kind, 0, handle} {}
  nmc_kv_after_t c_ = {NMC_KV_AFTER_NOTHING, 0, nullptr};
};

/// The copy of a block to another one, as from slot to slot of a recurrent group.
inline nmc_kv_copy_t kv_copy(int32_t from, int32_t to, uint32_t group = NMC_KV_GROUPS_ALL) noexcept {
  return {from, to, group, 0, nullptr, nullptr, 0};
}

/// What began to come from the store; both are 0 if it has nothing.
struct KvOnboard {
  uint64_t ticket = 0, tokens = 0;
};

/// An open sequence. Move-only. Unless it is closed before, it is aborted with this object: what was not committed, and does
/// not count as computed yet, is not published. Calls that can lack room store in `*room` how much there was.
class KvSequence {
 public:
  KvSequence() = default;
  /// Takes over a sequence that is open.
  KvSequence(nmc_kv_t* kv, uint64_t id, nmc_kv_opened_t opened = NMC_KV_OPENED_INIT) noexcept
      : kv_(kv), id_(id), opened_(opened) {}
  KvSequence(KvSequence&& other) noexcept
      : kv_(std::exchange(other.kv_, nullptr)), id_(other.id_), opened_(other.opened_) {}
  KvSequence& operator=(KvSequence&& other) noexcept {
    if (this != &other) {
      if (kv_ != nullptr) (void)nmc_kv_close(kv_, id_, NMC_KV_CLOSE_ABORT);
      kv_ = std::exchange(other.kv_, nullptr);
      id_ = other.id_;
      opened_ = other.opened_;
    }
    return *this;
  }
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;
  ~KvSequence() {
    if (kv_ != nullptr) (void)nmc_kv_close(kv_, id_, NMC_KV_CLOSE_ABORT);
  }

  explicit operator bool() const noexcept { return kv_ != nullptr; }
  uint64_t id() const noexcept { return id_; }
  /// Leading tokens that the cache had when it was opened.
  uint64_t hit_tokens() const noexcept { return opened_.hit_tokens; }
  /// Tokens that it was opened with: as many as asked for, or fewer with KvWhenFull::shorten.
  uint64_t opened_tokens() const noexcept { return opened_.tokens; }
  /// Gives the sequence away: the caller closes it.
  uint64_t release() noexcept { return kv_ = nullptr, id_; }

  Result<void> try_append(KvTokens tokens, nmc_kv_room_t* room = nullptr) const {
    return detail::done(nmc_kv_append(kv_, id_, tokens.data(), tokens.size(), nullptr, room));
  }
  Result<void> try_append(KvTokens tokens, const KvAppend& options, nmc_kv_room_t* room = nullptr) const {
    return detail::done(nmc_kv_append(kv_, id_, tokens.data(), tokens.size(), &options.c(), room));
  }
  /// The first `tokens` tokens are computed.
  Result<void> try_commit(uint64_t tokens) const { return detail::done(nmc_kv_commit(kv_, id_, tokens)); }
  /// Keeps the state that it has now for later sequences; see nmc_kv_keep_state.
  Result<void> try_keep_state() const { return detail::done(nmc_kv_keep_state(kv_, id_)); }
  /// Room for `tokens` tokens in all.
  Result<void> try_reserve(uint64_t tokens, nmc_kv_room_t* room = nullptr) const {
    return detail::done(nmc_kv_reserve(kv_, id_, tokens, room));
  }
  /// Keeps the first `tokens` tokens. Look at take_copies() afterwards.
  Result<void> try_truncate(uint64_t tokens, nmc_kv_room_t* room = nullptr) const {
    return detail::done(nmc_kv_truncate(kv_, id_, tokens, room));
  }
  /// Another sequence with the same tokens. Look at its take_copies().
  Result<KvSequence> try_fork(uint64_t child, nmc_kv_room_t* room = nullptr) const {
    const nmc_status_t status = nmc_kv_fork(kv_, id_, child, room);
    if (status < 0) return detail::failure(status);
    return KvSequence(kv_, child);
  }
  /// The copies that it waits for, which copy_blocks() makes; each is given once.
  Result<std::vector<nmc_kv_copy_t>> try_take_copies() const {
    std::vector<nmc_kv_copy_t> copies(1);
    for (;;) {
      size_t n = 0;
      const nmc_status_t status = nmc_kv_take_copies(kv_, id_, copies.data(), copies.size(), &n);
      if (status < 0 && status != NMC_ERR_TOO_SMALL) return detail::failure(status);
      copies.resize(n);
      if (status == NMC_OK) return copies;
    }
  }
  /// Drops up to `count` full blocks from the middle, the least important first; gives how many went.
  Result<uint32_t> try_drop_least(uint32_t count, uint32_t keep_first, uint32_t keep_recent) const {
    uint32_t dropped = 0;
    const nmc_status_t status = nmc_kv_drop_least(kv_, id_, count, keep_first, keep_recent, &dropped);
    if (status < 0) return detail::failure(status);
    return dropped;
  }
  /// Keeps the published blocks of the first `tokens` tokens.
  Result<KvPin> try_pin(uint64_t tokens) const {
    uint64_t pin = 0, covered = 0;
    const nmc_status_t status = nmc_kv_pin(kv_, id_, tokens, &pin, &covered);
    if (status < 0) return detail::failure(status);
    return KvPin(kv_, pin, covered);
  }
  /// What it is. `flags`: NMC_KV_SEQ_STORED to look up what the store has.
  Result<nmc_kv_seq_info_t> try_info(uint32_t flags = 0) const {
    nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
    const nmc_status_t status = nmc_kv_seq_info(kv_, id_, flags, &info);
    if (status < 0) return detail::failure(status);
    return info;
  }
  /// K or V in one layer, as a 4-D tensor.
  Result<nmc_kv_view_t> try_view(uint32_t layer, KvSide side, uint32_t group = 0) const {
    nmc_kv_view_t view = NMC_KV_VIEW_INIT;
    const nmc_status_t status = nmc_kv_view(kv_, id_, group, layer, static_cast<uint32_t>(side), &view);
    if (status < 0) return detail::failure(status);
    return view;
  }
  /// Where the vector of one token lies.
  Result<void*> try_token_address(uint64_t token, uint32_t layer, KvSide side, uint32_t head, uint32_t group = 0) const {
    void* address = nullptr;
    const nmc_status_t status =
        nmc_kv_token_address(kv_, id_, token, group, layer, static_cast<uint32_t>(side), head, &address);
    if (status < 0) return detail::failure(status);
    return address;
  }
  /// Begins to copy the blocks of the first `tokens` tokens to the store of the cache; gives the ticket.
  Result<uint64_t> try_offload(uint64_t tokens, const KvAfter& after = {}) const {
    uint64_t ticket = 0;
    const nmc_status_t status = nmc_kv_offload(kv_, id_, tokens, after.c(), &ticket);
    if (status < 0) return detail::failure(status);
    return ticket;
  }
  /// Begins to fetch the blocks that the store has of what is yet to be computed. `flags`: NMC_KV_ONBOARD_*.
  Result<KvOnboard> try_onboard(uint32_t flags = 0, const KvAfter& after = {}) const {
    KvOnboard begun;
    const nmc_status_t status = nmc_kv_onboard(kv_, id_, flags, after.c(), &begun.ticket, &begun.tokens);
    if (status < 0) return detail::failure(status);
    return begun;
  }
  /// Closes it: everything that it has counts as computed.
  Result<void> try_close() { return detail::done(nmc_kv_close(std::exchange(kv_, nullptr), id_, 0)); }
  /// Closes it: what was not committed, and does not count as computed yet, was not.
  Result<void> try_abort() { return detail::done(nmc_kv_close(std::exchange(kv_, nullptr), id_, NMC_KV_CLOSE_ABORT)); }

#if NMC_HPP_EXCEPTIONS
  void append(KvTokens tokens, nmc_kv_room_t* room = nullptr) const { try_append(tokens, room).value(); }
  void append(KvTokens tokens, const KvAppend& options, nmc_kv_room_t* room = nullptr) const {
    try_append(tokens, options, room).value();
  }
  void commit(uint64_t tokens) const { try_commit(tokens).value(); }
  void keep_state() const { try_keep_state().value(); }
  void reserve(uint64_t tokens, nmc_kv_room_t* room = nullptr) const { try_reserve(tokens, room).value(); }
  void truncate(uint64_t tokens, nmc_kv_room_t* room = nullptr) const { try_truncate(tokens, room).value(); }
  KvSequence fork(uint64_t child, nmc_kv_room_t* room = nullptr) const { return try_fork(child, room).value(); }
  std::vector<nmc_kv_copy_t> take_copies() const { return try_take_copies().value(); }
  uint32_t drop_least(uint32_t count, uint32_t keep_first, uint32_t keep_recent) const {
    return try_drop_least(count, keep_first, keep_recent).value();
  }
  KvPin pin(uint64_t tokens) const { return try_pin(tokens).value(); }
  nmc_kv_seq_info_t info(uint32_t flags = 0) const { return try_info(flags).value(); }
  nmc_kv_view_t view(uint32_t layer, KvSide side, uint32_t group = 0) const {
    return try_view(layer, side, group).value();
  }
  void* token_address(uint64_t token, uint32_t layer, KvSide side, uint32_t head, uint32_t group = 0) const {
    return try_token_address(token, layer, side, head, group).value();
  }
  uint64_t offload(uint64_t tokens, const KvAfter& after = {}) const { return try_offload(tokens, after).value(); }
  KvOnboard onboard(uint32_t flags = 0, const KvAfter& after = {}) const { return try_onboard(flags, after).value(); }
  void close() { try_close().value(); }
  void abort() { try_abort().value(); }
#endif

 private:
  nmc_kv_t* kv_ = nullptr;
  uint64_t id_ = 0;
  nmc_kv_opened_t opened_ = NMC_KV_OPENED_INIT;
};

// --------------------------------------------------------------------------------------------------------- cache --

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

/// A block KV cache. Move-only. All members may be called from any thread.
class KvCache : public detail::Handle<nmc_kv_t, nmc_kv_destroy> {
 public:
  using Handle::Handle;

  static Result<KvCache> try_create(const KvConfig& config) { return created(nullptr, config); }
  /// The groups lie in the heap of this rank, so that peers reach them. The world must outlive the cache.
  static Result<KvCache> try_create(const AnyWorld& world, const KvConfig& config) { return created(world.get(), config); }

  /// Opens a sequence under an id of the caller, or with NMC_KV_ID_AUTO one of the cache.
  Result<KvSequence> try_open(uint64_t id, KvTokens tokens, const KvOpen& options = {},
                              nmc_kv_room_t* room = nullptr) const {
    const nmc_kv_open_t c = options.c();
    nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
    const nmc_status_t status = nmc_kv_open(get(), id, tokens.data(), tokens.size(), &c, &opened, room);
    if (status < 0) return detail::failure(status);
    return KvSequence(get(), opened.id, opened);
  }
  /// The id of the open sequence with this name.
  Result<uint64_t> try_find(std::string_view name) const {
    uint64_t id = 0;
    const nmc_status_t status = nmc_kv_find(get(), {name.data(), name.size()}, &id);
    if (status < 0) return detail::failure(status);
    return id;
  }
  /// One token more for each sequence. Those that fail are as they were; `statuses`, if not empty, has one for each.
  Result<void> try_append_batch(view<const uint64_t> ids, KvTokens tokens, view<nmc_status_t> statuses = {}) const {
    if ((tokens.size() != 0 && tokens.size() != ids.size()) || (!statuses.empty() && statuses.size() != ids.size())) {
      return Failure{NMC_ERR_INVALID_ARG, "tokens and statuses are one for each sequence, or none"};
    }
    return detail::done(nmc_kv_append_batch(get(), ids.data(), tokens.size() == 0 ? nullptr : tokens.data(), ids.size(),
                                            statuses.empty() ? nullptr : statuses.data()));
  }
  /// How many leading tokens the cache has now.
  Result<uint64_t> try_match(KvTokens tokens, std::string_view salt = {}) const {
    uint64_t hit = 0;
    const nmc_status_t status =
        nmc_kv_match(get(), tokens.data(), tokens.size(), nullptr, {salt.data(), salt.size()}, &hit);
    if (status < 0) return detail::failure(status);
    return hit;
  }
  /// The hashes of the full blocks of `tokens`, of which there are tokens.size() / `tokens_per_block`.
  Result<std::vector<nmc_kv_hash_t>> try_hash(KvTokens tokens, uint32_t tokens_per_block, std::string_view salt = {}) const {
    if (tokens_per_block == 0) return Failure{NMC_ERR_INVALID_ARG, "tokens_per_block is 0"};
    std::vector<nmc_kv_hash_t> hashes(static_cast<size_t>(tokens.size() / tokens_per_block));
    const nmc_status_t status =
        nmc_kv_hash(get(), tokens.data(), tokens.size(), {salt.data(), salt.size()}, hashes.data());
    if (status < 0) return detail::failure(status);
    return hashes;
  }

  /// Writes what changed in the rows of a dense table; see nmc_kv_table. `rows` belongs to the table, and is resized to one
  /// row a sequence; gives how many entries were stored.
  Result<uint64_t> try_table(view<const uint64_t> ids, std::vector<nmc_kv_row_t>& rows, view<int32_t> table, size_t width,
                             int32_t pad = 0, KvTable format = KvTable::blocks, uint32_t group = 0) const {
    const size_t sides = format == KvTable::offsets ? 2 : 1;
    if (width == 0 || table.size() / sides / width < ids.size()) {
      return Failure{NMC_ERR_INVALID_ARG, "the table has no room for a row of each sequence"};
    }
    rows.resize(ids.size(), nmc_kv_row_t{0, 0, 0});
    uint64_t written = 0;
    const nmc_status_t status = nmc_kv_table(get(), group, static_cast<uint32_t>(format), ids.data(), ids.size(), width, pad, rows.data(), table.data(), &written);
    if (status < 0) return detail::failure(status);
    return written;
  }
  /// The compressed table.
  Result<KvCsr> try_table_csr(view<const uint64_t> ids, uint32_t group = 0) const {
    KvCsr csr;
    csr.indptr.resize(ids.size() + 1);
    csr.last_page_len.resize(ids.size());
    for (;;) {  // it may grow between two calls
      size_t n = 0;
      const nmc_status_t status = nmc_kv_table_csr(get(), group, ids.data(), ids.size(), csr.indptr.data(),
                                                   csr.last_page_len.data(), csr.indices.data(), csr.indices.size(), &n);
      if (status < 0 && status != NMC_ERR_TOO_SMALL) return detail::failure(status);
      csr.indices.resize(n);
      if (status == NMC_OK) return csr;
    }
  }
  /// Slots of the last `counts[i]` tokens of each sequence; without counts of the last one.
  Result<std::vector<int64_t>> try_slot_mapping(view<const uint64_t> ids, view<const uint32_t> counts = {},
                                                uint32_t group = 0) const {
    if (!counts.empty() && counts.size() != ids.size()) {
      return Failure{NMC_ERR_INVALID_ARG, "counts are one for each sequence, or none"};
    }
    std::vector<int64_t> slots;
    for (;;) {
      size_t n = 0;
      const nmc_status_t status = nmc_kv_slot_mapping(get(), group, ids.data(), counts.empty() ? nullptr : counts.data(),
                                                      ids.size(), slots.data(), slots.size(), &n);
      if (status < 0 && status != NMC_ERR_TOO_SMALL) return detail::failure(status);
      slots.resize(n);
      if (status == NMC_OK) return slots;
    }
  }
  /// The slots of states that the next work of each sequence reads and writes; see nmc_kv_state_slots.
  Result<KvStateSlots> try_state_slots(view<const uint64_t> ids, uint32_t group) const {
    KvStateSlots found{std::vector<int32_t>(ids.size()), std::vector<int32_t>(ids.size())};
    const nmc_status_t status =
        nmc_kv_state_slots(get(), group, ids.data(), ids.size(), found.reads.data(), found.writes.data());
    if (status < 0) return detail::failure(status);
    return found;
  }
  /// The blocks of one group.
  Result<nmc_kv_group_stats_t> try_group_stats(uint32_t group) const {
    nmc_kv_group_stats_t stats = NMC_KV_GROUP_STATS_INIT;
    const nmc_status_t status = nmc_kv_group_stats(get(), group, &stats);
    if (status < 0) return detail::failure(status);
    return stats;
  }

  /// Up to `most` events from number `cursor` on, which moves on behind them. Every reader has its own, 0 at first.
  Result<KvEvents> try_events(uint64_t& cursor, size_t most = 1024) const {
    KvEvents found;
    found.events.resize(most);
    size_t n = 0;
    const nmc_status_t status = nmc_kv_events(get(), &cursor, found.events.data(), most, &n, &found.lost);
    if (status < 0) return detail::failure(status);
    found.events.resize(n);
    return found;
  }
  /// Every block of the prefix index, as if it came now. `cursor` receives where events go on from there.
  Result<std::vector<nmc_kv_event_t>> try_snapshot(uint64_t& cursor) const {
    std::vector<nmc_kv_event_t> events;
    for (;;) {  // it may grow between two calls
      size_t n = 0;
      const nmc_status_t status = nmc_kv_snapshot(get(), &cursor, events.data(), events.size(), &n);
      if (status < 0 && status != NMC_ERR_TOO_SMALL) return detail::failure(status);
      events.resize(n);
      if (status == NMC_OK) return events;
    }
  }

  /// What nmc::Store is; that may not be defined yet.
  using AnyStore = detail::Handle<nmc_store_t, nmc_store_destroy>;
  /// Ties the cache to a store, with which it exchanges blocks.
  Result<void> try_attach(const AnyStore& store) const { return detail::done(nmc_kv_attach_store(get(), store.get())); }
  /// What moves come after that make room; see nmc_kv_move_after.
  Result<void> try_move_after(const KvAfter& after) const { return detail::done(nmc_kv_move_after(get(), after.c())); }
  /// Whether a transfer is over; a failure is its outcome. With the end the ticket ends.
  Result<bool> try_poll(uint64_t ticket, nmc_kv_progress_t* progress = nullptr) const {
    const nmc_status_t status = nmc_kv_transfer_poll(get(), ticket, progress);
    if (status < 0) return detail::failure(status);
    return status == NMC_OK;
  }
  /// The same, after waiting for its end.
  Result<bool> try_wait(uint64_t ticket, std::chrono::milliseconds timeout = std::chrono::seconds(30)) const {
    const nmc_status_t status = nmc_kv_transfer_wait(get(), ticket, timeout.count(), nullptr);
    if (status < 0) return detail::failure(status);
    return status == NMC_OK;
  }
  Result<void> try_cancel(uint64_t ticket) const { return detail::done(nmc_kv_transfer_cancel(get(), ticket)); }

  /// Copies blocks one after the other into contiguous memory; `group` may be NMC_KV_GROUPS_ALL. On a device it runs when
  /// `stream` gets there; in host memory it is done then, and there is no stream.
  Result<void> try_gather(view<const int32_t> blocks, void* to, uint64_t to_bytes, void* stream = nullptr,
                          uint32_t group = NMC_KV_GROUPS_ALL) const {
    return detail::done(nmc_kv_gather(get(), group, blocks.data(), blocks.size(), to, to_bytes, stream));
  }
  /// The reverse.
  Result<void> try_scatter(view<const int32_t> blocks, const void* from, uint64_t from_bytes, void* stream = nullptr,
                           uint32_t group = NMC_KV_GROUPS_ALL) const {
    return detail::done(nmc_kv_scatter(get(), group, blocks.data(), blocks.size(), from, from_bytes, stream));
  }
  /// Makes the copies of KvSequence::take_copies().
  Result<void> try_copy_blocks(const std::vector<nmc_kv_copy_t>& copies, void* stream = nullptr) const {
    return detail::done(nmc_kv_copy_blocks(get(), copies.data(), copies.size(), stream));
  }

  /// Evicts every cached block that nobody holds; gives how many.
  Result<uint64_t> try_clear() const {
    uint64_t evicted = 0;
    const nmc_status_t status = nmc_kv_clear(get(), &evicted);
    if (status < 0) return detail::failure(status);
    return evicted;
  }
  Result<void> try_resize(uint32_t total_blocks) const { return detail::done(nmc_kv_resize(get(), total_blocks)); }
  /// Up to `count` sequences, the one that was used longest ago first.
  Result<std::vector<uint64_t>> try_victims(size_t count) const {
    std::vector<uint64_t> ids(count);
    size_t n = 0;
    const nmc_status_t status = nmc_kv_victims(get(), ids.data(), ids.size(), &n);
    if (status < 0) return detail::failure(status);
    ids.resize(n);
    return ids;
  }
  Result<nmc_kv_stats_t> try_stats() const {
    nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
    const nmc_status_t status = nmc_kv_stats(get(), &stats);
    if (status < 0) return detail::failure(status);
    return stats;
  }
  /// The state as text for people; with a picture of the blocks, so many in a line, if `width` is not 0.
  Result<std::string> try_dump(uint32_t width = 0) const {
    return detail::text([&](char* buffer, size_t capacity, size_t* needed) {
      return nmc_kv_dump(get(), width, buffer, capacity, needed);
    });
  }
  /// Counts every block afresh.
  Result<void> try_audit() const { return detail::done(nmc_kv_audit(get())); }

#if NMC_HPP_EXCEPTIONS
  static KvCache create(const KvConfig& config) { return try_create(config).value(); }
  static KvCache create(const AnyWorld& world, const KvConfig& config) { return try_create(world, config).value(); }
  KvSequence open(uint64_t id, KvTokens tokens, const KvOpen& options = {}, nmc_kv_room_t* room = nullptr) const {
    return try_open(id, tokens, options, room).value();
  }
  uint64_t find(std::string_view name) const { return try_find(name).value(); }
  void append_batch(view<const uint64_t> ids, KvTokens tokens, view<nmc_status_t> statuses = {}) const {
    try_append_batch(ids, tokens, statuses).value();
  }
  uint64_t match(KvTokens tokens, std::string_view salt = {}) const { return try_match(tokens, salt).value(); }
  std::vector<nmc_kv_hash_t> hash(KvTokens tokens, uint32_t tokens_per_block, std::string_view salt = {}) const {
    return try_hash(tokens, tokens_per_block, salt).value();
  }
  uint64_t table(view<const uint64_t> ids, std::vector<nmc_kv_row_t>& rows, view<int32_t> out, size_t width,
                 int32_t pad = 0, KvTable format = KvTable::blocks, uint32_t group = 0) const {
    return try_table(ids, rows, out, width, pad, format, group).value();
  }
  KvCsr table_csr(view<const uint64_t> ids, uint32_t group = 0) const { return try_table_csr(ids, group).value(); }
  std::vector<int64_t> slot_mapping(view<const uint64_t> ids, view<const uint32_t> counts = {}, uint32_t group = 0) const {
    return try_slot_mapping(ids, counts, group).value();
  }
  KvStateSlots state_slots(view<const uint64_t> ids, uint32_t group) const { return try_state_slots(ids, group).value(); }
  nmc_kv_group_stats_t group_stats(uint32_t group) const { return try_group_stats(group).value(); }
  KvEvents events(uint64_t& cursor, size_t most = 1024) const { return try_events(cursor, most).value(); }
  std::vector<nmc_kv_event_t> snapshot(uint64_t& cursor) const { return try_snapshot(cursor).value(); }
  void attach(const AnyStore& store) const { try_attach(store).value(); }
  void move_after(const KvAfter& after) const { try_move_after(after).value(); }
  void gather(view<const int32_t> blocks, void* to, uint64_t to_bytes, void* stream = nullptr,
              uint32_t group = NMC_KV_GROUPS_ALL) const {
    try_gather(blocks, to, to_bytes, stream, group).value();
  }
  void scatter(view<const int32_t> blocks, const void* from, uint64_t from_bytes, void* stream = nullptr,
               uint32_t group = NMC_KV_GROUPS_ALL) const {
    try_scatter(blocks, from, from_bytes, stream, group).value();
  }
  void copy_blocks(const std::vector<nmc_kv_copy_t>& copies, void* stream = nullptr) const {
    try_copy_blocks(copies, stream).value();
  }
  bool poll(uint64_t ticket, nmc_kv_progress_t* progress = nullptr) const { return try_poll(ticket, progress).value(); }
  bool wait(uint64_t ticket, std::chrono::milliseconds timeout = std::chrono::seconds(30)) const {
    return try_wait(ticket, timeout).value();
  }
  void cancel(uint64_t ticket) const { try_cancel(ticket).value(); }
  uint64_t clear() const { return try_clear().value(); }
  void resize(uint32_t total_blocks) const { try_resize(total_blocks).value(); }
  std::vector<uint64_t> victims(size_t count) const { return try_victims(count).value(); }
  nmc_kv_stats_t stats() const { return try_stats().value(); }
  std::string dump(uint32_t width = 0) const { return try_dump(width).value(); }
  void audit() const { try_audit().value(); }
#endif

 private:
  static Result<KvCache> created(nmc_world_t* world, const KvConfig& config) {
    const nmc_kv_config_t c = config.c();
    nmc_kv_t* handle = nullptr;
    const nmc_status_t status = nmc_kv_create(world, &c, &handle);
    if (status < 0) return detail::failure(status);
    return KvCache(handle);
  }
};

// ------------------------------------------------------------------------------------------------- by request id --

/// The cache for programs that know sequences by the text of a request id, and tokens only by their number: the names of
/// the simple contiguous caches that it replaces. Nothing throws: false, 0 or an empty view is what went wrong, and
/// nmc_last_error_message() says why. Does not own the cache.
class KvByRequest {
 public:
  explicit KvByRequest(const KvCache& cache) noexcept : kv_(cache.get()) {}

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
    KvSequence seq(kv_, id);
    Result<std::vector<nmc_kv_copy_t>> copies = seq.try_take_copies();
    seq.release();
    if (copies.ok()) *moved = *copies;
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
    out << detail::text([&](char* buffer, size_t capacity, size_t* needed) {
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

namespace detail {
static_assert(is_move_only_v<KvCache> && is_move_only_v<KvSequence> && is_move_only_v<KvPin>, "sequences have one owner");
static_assert(sizeof(KvCache) == sizeof(void*), "a handle costs one pointer");
}  // namespace detail

}  // namespace nmc

#endif  // NANOMC_KV_HPP
