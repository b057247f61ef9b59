/*
 * The expert-parallel transport for C++17. In nmc::nothrow the same with results instead of exceptions: nanomc/core.hpp says
 * how, and what `Mode` and `Out<T>` are. Rows are addresses: memory of the kind that the world's heaps are of. Where a pointer
 * is taken, a container or std::span with data() does as well, but no container that ends with the statement. One with less than the
 * tokens of a step have is refused: NMC_ERR_INVALID_ARG.
 *
 *   nmc::Ep ep = nmc::Ep::create(world, nmc::EpConfig(7168, 8, 256));      // hidden, top_k, experts; all ranks together
 *   ep.dispatch(nmc::EpTokens(x, topk_idx, topk_w, n).layer(l), stream);   // to the ranks of their experts
 *   ep.pack(l, grouped, stream);
 *   your_grouped_gemms(grouped, y_grouped, stream);
 *   ep.scatter(l, y_grouped, grouped.row_of, stream);
 *   ep.combine(l, out, stream);                                            // and back, summed
 *
 * or all of it in ep.moe_forward(tokens, moe, gemm, stream), where gemm is anything that can be called.
 */
#ifndef NANOMC_EP_HPP
#define NANOMC_EP_HPP

#include <exception>
#include <iterator>

#include "nanomc/world.hpp"

namespace nmc {

// ---------------------------------------------------------------------------------------------------- constants --

/// Type of rows.
enum class EpDtype : uint32_t { fp32 = NMC_DTYPE_FP32, bf16 = NMC_DTYPE_BF16, fp16 = NMC_DTYPE_FP16 };
/// How rows travel to the experts.
enum class EpWire : uint32_t {
  same = NMC_EP_DISPATCH_SAME,            ///< as they are
  fp8 = NMC_EP_DISPATCH_FP8,              ///< as fp8; the library quantises
  fp8_given = NMC_EP_DISPATCH_FP8_GIVEN,  ///< as fp8, with the caller's scales
};
/// Type of weights.
enum class EpWeights : uint32_t { fp32 = NMC_DTYPE_FP32, fp16 = NMC_DTYPE_FP16 };

namespace detail {
template <class C>
inline constexpr bool is_address_v = std::is_pointer_v<std::remove_reference_t<C>> || std::is_null_pointer_v<std::remove_reference_t<C>>;

/// The first element: of a pointer, or of a container, array or span.
template <class C>
auto first_of(C&& values) noexcept {
  static_assert(stays_v<C>, "the container ends before its memory is used: give it a name");
  if constexpr (is_address_v<C>) {
    return values;
  } else {
    return std::data(values);
  }
}
template <class C>
using element_of = std::remove_cv_t<std::remove_pointer_t<decltype(first_of(std::declval<C&>()))>>;

/// How many bytes a container has; nobody knows that of a pointer.
inline constexpr uint64_t unknown_bytes = UINT64_MAX;
template <class C>
uint64_t bytes_of(const C& values) noexcept {
  if constexpr (is_address_v<C>) {
    return unknown_bytes;
  } else {
    return uint64_t{std::size(values)} * sizeof(*std::data(values));
  }
}
}  // namespace detail

// ------------------------------------------------------------------------------------------------------- config --

/// What a group needs, in bytes; see nmc_ep_bytes_t.
struct EpBytes : nmc_ep_bytes_t {
  EpBytes() noexcept : nmc_ep_bytes_t NMC_EP_BYTES_INIT {}
};

/// How a group is made; see nmc_ep_config_t. All ranks give the same.
class EpConfig {
 public:
  EpConfig() = default;
  EpConfig(uint32_t hidden, uint32_t top_k, uint32_t experts) { this->hidden(hidden).top_k(top_k).experts(experts); }
  /// Ranks of the world that are in the group, one bit each; 0 for all.
  EpConfig& members(uint64_t mask) { return c_.members = mask, *this; }
  EpConfig& heap_offset(uint64_t value) { return c_.heap_offset = value, *this; }
  EpConfig& t_cap(uint32_t value) { return c_.t_cap = value, *this; }
  EpConfig& hidden(uint32_t value) { return c_.hidden = value, *this; }
  EpConfig& top_k(uint32_t value) { return c_.top_k = value, *this; }
  EpConfig& experts(uint32_t value) { return c_.experts = value, *this; }
  EpConfig& dtype(EpDtype value) { return c_.dtype = static_cast<uint32_t>(value), *this; }
  EpConfig& dispatch(EpWire value) { return c_.dispatch = static_cast<uint32_t>(value), *this; }
  EpConfig& weights(EpWeights value) { return c_.weights = static_cast<uint32_t>(value), *this; }
  EpConfig& max_m(uint32_t value) { return c_.max_m = value, *this; }
  EpConfig& spill_groups(uint32_t value) { return c_.spill_groups = value, *this; }
  EpConfig& buffer_sets(uint32_t value) { return c_.buffer_sets = value, *this; }
  EpConfig& blocks(uint32_t value) { return c_.blocks = value, *this; }
  EpConfig& deadline(std::chrono::milliseconds value) { return c_.deadline_ms = value.count(), *this; }
  EpConfig& first_phase(uint32_t value) { return c_.first_phase = value, *this; }
  EpConfig& trap(bool wanted = true) { return flag(NMC_EP_TRAP, wanted); }
  EpConfig& count_load(bool wanted = true) { return flag(NMC_EP_NO_LOAD, !wanted); }
  EpConfig& separate_y(bool wanted = true) { return flag(NMC_EP_SEPARATE_Y, wanted); }
  EpConfig& early(bool wanted = true) { return flag(NMC_EP_EARLY, wanted); }
  EpConfig& device_scope(bool wanted = true) { return flag(NMC_EP_DEVICE_SCOPE, wanted); }
  const nmc_ep_config_t& c() const noexcept { return c_; }

 private:
  EpConfig& flag(uint32_t bit, bool wanted) { return c_.flags = wanted ? c_.flags | bit : c_.flags & ~bit, *this; }
  nmc_ep_config_t c_ = NMC_EP_CONFIG_INIT;
};

// ---------------------------------------------------------------------------------------------------- arguments --

/// The tokens that a rank sends in a step; see nmc_ep_dispatch_t. Refers to them.
class EpTokens {
 public:
  /// A rank without tokens takes part, too.
  EpTokens() = default;
  /// `n` rows, and for each of them top_k expert numbers (int32_t or int64_t; -1 for none) and weights.
  template <class X, class Idx, class Weights>
  EpTokens(X&& x, Idx&& topk_idx, Weights&& topk_w, uint32_t n) {
    using Index = detail::element_of<Idx>;
    static_assert(std::is_same_v<Index, int32_t> || std::is_same_v<Index, int64_t>, "expert numbers are int32 or int64");
    c_.x = detail::first_of(std::forward<X>(x));
    c_.topk_idx = detail::first_of(std::forward<Idx>(topk_idx));
    c_.idx_is_64 = sizeof(Index) == 8 ? 1 : 0;
    c_.topk_w = detail::first_of(std::forward<Weights>(topk_w));
    c_.n_tokens = n;
    x_bytes_ = detail::bytes_of(x), idx_bytes_ = detail::bytes_of(topk_idx), w_bytes_ = detail::bytes_of(topk_w);
  }
  EpTokens& layer(uint32_t value) { return c_.layer = value, *this; }
  /// Of rows that are given as fp8.
  template <class Scales>
  EpTokens& scales(Scales&& values) {
    scales_bytes_ = detail::bytes_of(values);
    return c_.scales = detail::first_of(std::forward<Scales>(values)), *this;
  }
  /// Where the number of tokens is when the step runs, in place of `n`: a captured graph can be replayed with others.
  EpTokens& count_at(const int32_t* where) { return c_.n_tokens_ptr = where, *this; }

  const nmc_ep_dispatch_t& c() const noexcept { return c_; }

 private:
  template <class Mode>
  friend class BasicEp;
  nmc_ep_dispatch_t c_ = NMC_EP_DISPATCH_INIT;
  uint64_t x_bytes_ = detail::unknown_bytes, idx_bytes_ = detail::unknown_bytes, w_bytes_ = detail::unknown_bytes;
  uint64_t scales_bytes_ = detail::unknown_bytes;
};

/// Where grouped rows and their lists go: memory of the caller; see nmc_ep_grouped_t for the fields.
struct EpGrouped : nmc_ep_grouped_t {
  EpGrouped() noexcept : nmc_ep_grouped_t NMC_EP_GROUPED_INIT {}
};

/// Where what a rank receives lies; see nmc_ep_recv_buffers_t for the fields.
struct EpRecvBuffers : nmc_ep_recv_buffers_t {
  EpRecvBuffers() noexcept : nmc_ep_recv_buffers_t NMC_EP_RECV_BUFFERS_INIT {}
};

/// The experts of a whole layer; see nmc_ep_moe_t. Refers to its memory.
class EpMoe {
 public:
  /// Gate and up matrices, and down matrices; NULL if the callable keeps its own.
  template <class W13, class W2>
  EpMoe& weights(W13&& w13, W2&& w2) {
    w13_bytes_ = detail::bytes_of(w13), w2_bytes_ = detail::bytes_of(w2);
    return c_.w13 = detail::first_of(std::forward<W13>(w13)), c_.w2 = detail::first_of(std::forward<W2>(w2)), *this;
  }
  /// Columns between the two products.
  EpMoe& inner(uint32_t value) { return c_.inner = value, *this; }
  /// Memory for what is between the steps: EpBytes::workspace bytes, aligned to 256.
  EpMoe& workspace(void* memory, uint64_t bytes) { return c_.workspace = memory, c_.workspace_bytes = bytes, *this; }
  EpMoe& workspace(MutableBytes memory) { return workspace(memory.ptr, memory.len); }
  /// Result rows.
  template <class Rows>
  EpMoe& out(Rows&& rows) {
    out_bytes_ = detail::bytes_of(rows);
    return c_.out = detail::first_of(std::forward<Rows>(rows)), *this;
  }

  const nmc_ep_moe_t& c() const noexcept { return c_; }

 private:
  template <class Mode>
  friend class BasicEp;
  nmc_ep_moe_t c_ = NMC_EP_MOE_INIT;
  uint64_t w13_bytes_ = detail::unknown_bytes, w2_bytes_ = detail::unknown_bytes, out_bytes_ = detail::unknown_bytes;
};

/// What a group has counted; see nmc_ep_stats.
struct EpStats {
  std::vector<uint64_t> expert_load;  ///< tokens that this rank sent to each expert
  std::vector<uint64_t> waited_ns;    ///< for each rank of the group
  uint64_t overflow_rows = 0;         ///< that did not fit the grouped layout
};

namespace detail {
/// The engine's product behind the C callback. Nothing that it throws passes through the library.
template <class Gemm>
struct EpGemm {
  Gemm& gemm;
  Failure failure{};
#if NMC_HPP_EXCEPTIONS
  std::exception_ptr thrown{};
#endif

  nmc_status_t call(const nmc_ep_gemm_t& product, void* stream) {
    using Returned = std::invoke_result_t<Gemm&, const nmc_ep_gemm_t&, void*>;
    if constexpr (std::is_void_v<Returned>) {
      gemm(product, stream);
      return NMC_OK;
    } else if constexpr (std::is_same_v<std::decay_t<Returned>, nmc_status_t>) {
      return gemm(product, stream);
    } else {
      const Result<void> done = gemm(product, stream);
      if (!done.ok()) failure = Failure{done.status(), done.message()};
      return done.ok() ? NMC_OK : done.status();
    }
  }

  static int32_t run(void* user, const nmc_ep_gemm_t* product, void* stream) {
    EpGemm& self = *static_cast<EpGemm*>(user);
#if NMC_HPP_EXCEPTIONS
    try {
      return self.call(*product, stream);
    } catch (const Error& error) {
      // What is no error to the library, such as NMC_NOT_READY, is one here: the product was not made.
      const bool is_error = error.status() < 0;
      self.failure = is_error ? Failure{error.status(), error.message()} : Failure{NMC_ERR_CANCELLED, error.what()};
      return self.failure.status;
    } catch (...) {
      self.thrown = std::current_exception();
      return NMC_ERR_CANCELLED;
    }
#else
    return self.call(*product, stream);
#endif
  }

  /// What the layer gave, or why the product failed.
  template <class Mode>
  typename Mode::template Out<void> finish(nmc_status_t status) {
#if NMC_HPP_EXCEPTIONS
    if (thrown) std::rethrow_exception(thrown);
#endif
    if (status < 0 && failure.status == status) return Mode::done(std::move(failure));
    return Mode::done(status);
  }
};
}  // namespace detail

// -------------------------------------------------------------------------------------------------------- group --

/// Calls for several ranks of this process go out together when it ends, on a GPU in one launch a step. On host heaps this is how
/// one thread serves several ranks. Stays on the thread that began it.
///
///   nmc::EpCallGroup group = nmc::EpCallGroup::begin();
///   for (...) eps[r].dispatch(tokens[r]);
///   group.end();                             // errors of the calls come here; the destructor ends it, too, and drops them
template <class Mode>
class [[nodiscard]] BasicEpCallGroup {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  static Out<BasicEpCallGroup> begin() {
    const nmc_status_t status = nmc_ep_group_begin();
    if (status < 0) return Mode::failure(status);
    return BasicEpCallGroup(Begun{});
  }
  /// Sends the calls out. The group is over, whatever it gives.
  Out<void> end() {
    open_ = false;
    return Mode::done(nmc_ep_group_end());
  }

  BasicEpCallGroup(BasicEpCallGroup&& other) noexcept : open_(std::exchange(other.open_, false)) {}
  BasicEpCallGroup& operator=(BasicEpCallGroup&&) = delete;
  BasicEpCallGroup(const BasicEpCallGroup&) = delete;
  BasicEpCallGroup& operator=(const BasicEpCallGroup&) = delete;
  ~BasicEpCallGroup() {
    if (open_) (void)nmc_ep_group_end();
  }

 private:
  struct Begun {};
  explicit BasicEpCallGroup(Begun) noexcept : open_(true) {}
  bool open_;
};

/// One rank's part of a group, in either form.
class AnyEp : public detail::Handle<nmc_ep_t, nmc_ep_destroy> {
 public:
  AnyEp() noexcept = default;
  /// Takes over a handle of a group with so many experts and ranks.
  AnyEp(nmc_ep_t* handle, uint32_t experts, uint32_t ranks) noexcept : Handle(handle), ranks_(ranks) { config_.experts(experts); }
  /// Takes over a handle of a group that was made like this, of so many ranks: then the sizes of containers can be looked at.
  AnyEp(nmc_ep_t* handle, const EpConfig& config, uint32_t ranks) noexcept : Handle(handle), config_(config), ranks_(ranks) {}

 protected:
  EpConfig config_;  // hidden and top_k are 0 if nobody has said them
  uint32_t ranks_ = 0;
};

/// One rank's part of a group; see nmc_ep_t. Move-only; the destructor leaves the group, and the world must live longer. Its calls
/// are made by one thread at a time; abort and check by any.
template <class Mode>
class BasicEp : public AnyEp {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  using AnyEp::AnyEp;
  BasicEp(AnyEp&& other) noexcept : AnyEp(std::move(other)) {}
  /// This part with results, for one call: `ep.nothrow()->check()`.
  detail::Borrowed<BasicEp<Returning>> nothrow() const noexcept {
    return detail::Borrowed<BasicEp<Returning>>(get(), config_, ranks_);
  }

  /// What a group needs in a world of `world_size` ranks; `inner` is for moe_forward.
  static Out<EpBytes> bytes_needed(const EpConfig& config, uint32_t world_size, uint32_t inner = 0) {
    EpBytes bytes;
    const nmc_status_t status = nmc_ep_bytes_needed(&config.c(), world_size, inner, &bytes);
    if (status < 0) return Mode::failure(status);
    return bytes;
  }
  /// Makes a group together with the other members.
  static Out<BasicEp> create(const AnyWorld& world, const EpConfig& config) {
    nmc_world_t* const one = world.get();
    std::vector<BasicEp> made;
    const nmc_status_t status = make(&one, 1, config, made);
    if (status < 0) return Mode::failure(status);
    return std::move(made.front());
  }
  /// The same for several ranks of this process at once.
  template <class Worlds = Mode>
  static Out<std::vector<BasicEp>> create_ranks(const std::vector<BasicWorld<Worlds>>& worlds, const EpConfig& config) {
    std::vector<nmc_world_t*> handles;
    handles.reserve(worlds.size() + 1);  // never empty: NULL would be another error
    for (const AnyWorld& world : worlds) handles.push_back(world.get());
    std::vector<BasicEp> made;
    const nmc_status_t status = make(handles.data(), handles.size(), config, made);
    if (status < 0) return Mode::failure(status);
    return made;
  }
  /// Does what the destructor does, and says how it went. If it fails (NMC_ERR_BUSY) the part is still owned.
  Out<void> destroy() { return Mode::done(destroy_now()); }

  Out<void> abort() const { return Mode::done(nmc_ep_abort(get())); }
  Out<void> check() const { return Mode::done(nmc_ep_check(get())); }

  Out<EpRecvBuffers> recv_buffers(uint32_t layer) const {
    EpRecvBuffers buffers;
    const nmc_status_t status = nmc_ep_recv_buffers(get(), layer, &buffers);
    if (status < 0) return Mode::failure(status);
    return buffers;
  }
  /// What kernels of the engine need to take part (nanomc/ep.cuh).
  Out<nmc_ep_rank_t> device(uint32_t layer) const {
    nmc_ep_rank_t device;
    const nmc_status_t status = nmc_ep_device(get(), layer, &device);
    if (status < 0) return Mode::failure(status);
    return device;
  }

  /// Sends tokens to the ranks of their experts, and waits for those that come here.
  Out<void> dispatch(const EpTokens& tokens, void* stream = nullptr) const {
    if (const Failure few = too_few(tokens); few.status != NMC_OK) return Mode::done(few);
    return Mode::done(nmc_ep_dispatch(get(), &tokens.c(), stream));
  }
  Out<void> dispatch_send(const EpTokens& tokens, void* stream = nullptr) const {
    if (const Failure few = too_few(tokens); few.status != NMC_OK) return Mode::done(few);
    return Mode::done(nmc_ep_dispatch_send(get(), &tokens.c(), stream));
  }
  Out<void> dispatch_recv(uint32_t layer, void* stream = nullptr) const {
    return Mode::done(nmc_ep_dispatch_recv(get(), layer, stream));
  }

  /// Groups the rows that came by expert.
  Out<void> pack(uint32_t layer, const nmc_ep_grouped_t& grouped, void* stream = nullptr) const {
    return Mode::done(nmc_ep_route_pack(get(), layer, &grouped, stream));
  }
  /// Sums the weighted rows of each token that came, where the combine takes them from. Their owners may fetch them from then on:
  /// nothing may change them any more.
  template <class Rows, class Lists>
  Out<void> scatter(uint32_t layer, Rows&& y_grouped, Lists&& row_of, void* stream = nullptr) const {
    return scatter_to(layer, std::forward<Rows>(y_grouped), std::forward<Lists>(row_of), nullptr, stream);
  }
  /// The same into memory of the caller, or to the `y` of recv_buffers: then the combine lets the owners fetch the rows.
  template <class Rows, class Lists>
  Out<void> scatter_to(uint32_t layer, Rows&& y_grouped, Lists&& row_of, void* y_recv, void* stream = nullptr) const {
    const void* const rows = detail::first_of(std::forward<Rows>(y_grouped));
    return Mode::done(nmc_ep_scatter(get(), layer, rows, detail::first_of(std::forward<Lists>(row_of)), y_recv, stream));
  }

  /// Returns the rows that came to their owners, and sums what comes back.
  template <class Rows>
  Out<void> combine(uint32_t layer, Rows&& out, void* stream = nullptr) const {
    return combine_from(layer, nullptr, std::forward<Rows>(out), stream);
  }
  /// The same with rows to return that are not in place.
  template <class Rows>
  Out<void> combine_from(uint32_t layer, const void* y_recv, Rows&& out, void* stream = nullptr) const {
    return Mode::done(nmc_ep_combine(get(), layer, y_recv, detail::first_of(std::forward<Rows>(out)), stream));
  }
  Out<void> combine_send(uint32_t layer, void* stream = nullptr) const {
    return combine_send_from(layer, nullptr, stream);
  }
  Out<void> combine_send_from(uint32_t layer, const void* y_recv, void* stream = nullptr) const {
    return Mode::done(nmc_ep_combine_send(get(), layer, y_recv, stream));
  }
  template <class Rows>
  Out<void> combine_recv(uint32_t layer, Rows&& out, void* stream = nullptr) const {
    return Mode::done(nmc_ep_combine_recv(get(), layer, detail::first_of(std::forward<Rows>(out)), stream));
  }

  /// A whole layer with the built-in products.
  Out<void> moe_forward(const EpTokens& tokens, const EpMoe& moe, void* stream = nullptr) const {
    if (const Failure few = too_few(tokens, moe, true); few.status != NMC_OK) return Mode::done(few);
    return Mode::done(nmc_ep_moe_forward(get(), &tokens.c(), &moe.c(), stream));
  }
  /// A whole layer with the engine's products: `gemm(const nmc_ep_gemm_t&, void* stream)` enqueues one, and returns nothing, an
  /// nmc_status_t or a Result<void>. If it fails the group is over. What it throws is thrown here, when the library has returned;
  /// an nmc::Error is how this call fails.
  template <class Gemm, class = std::enable_if_t<std::is_invocable_v<Gemm&, const nmc_ep_gemm_t&, void*>>>
  Out<void> moe_forward(const EpTokens& tokens, const EpMoe& moe, Gemm&& gemm, void* stream = nullptr) const {
    using Callable = std::remove_reference_t<Gemm>;
    if (const Failure few = too_few(tokens, moe, false); few.status != NMC_OK) return Mode::done(few);
    detail::EpGemm<Callable> callback{gemm};
    nmc_ep_moe_t c = moe.c();
    c.gemm = &detail::EpGemm<Callable>::run;
    c.gemm_user = &callback;
    return callback.template finish<Mode>(nmc_ep_moe_forward(get(), &tokens.c(), &c, stream));
  }

  Out<EpStats> stats() const {
    EpStats stats;
    stats.expert_load.resize(config_.c().experts);
    stats.waited_ns.resize(ranks_);
    const nmc_status_t status =
        nmc_ep_stats(get(), stats.expert_load.data(), stats.waited_ns.data(), &stats.overflow_rows);
    if (status < 0) return Mode::failure(status);
    return stats;
  }

 private:
  /// Which container is too small for what a call does with it, and why.
  Failure too_few(const EpTokens& tokens) const {
    const nmc_ep_config_t& c = config_.c();
    const uint64_t n = tokens.c_.n_tokens_ptr == nullptr ? tokens.c_.n_tokens : 0, entries = n * c.top_k;
    const uint64_t row = c.dispatch == NMC_EP_DISPATCH_FP8_GIVEN ? c.hidden : row_bytes();
    Failure few = less("x", tokens.x_bytes_, n * row, n);
    if (few.status == NMC_OK) few = less("topk_idx", tokens.idx_bytes_, entries * (tokens.c_.idx_is_64 != 0 ? 8 : 4), n);
    if (few.status == NMC_OK) few = less("topk_w", tokens.w_bytes_, entries * (c.weights == NMC_DTYPE_FP16 ? 2 : 4), n);
    if (few.status == NMC_OK) few = less("scales", tokens.scales_bytes_, n * (c.hidden / 128) * 4, n);
    return few;
  }
  /// Of matrices only the built-in product says how large they are.
  Failure too_few(const EpTokens& tokens, const EpMoe& moe, bool built_in) const {
    const uint64_t n = tokens.c_.n_tokens_ptr == nullptr ? tokens.c_.n_tokens : 0;
    const uint64_t experts = built_in && ranks_ != 0 ? config_.c().experts / ranks_ : 0, matrices = experts * moe.c_.inner;
    Failure few = too_few(tokens);
    if (few.status == NMC_OK) few = less("out", moe.out_bytes_, n * row_bytes(), n);
    if (few.status == NMC_OK) few = less("w13", moe.w13_bytes_, matrices * 2 * row_bytes(), experts, "experts");
    if (few.status == NMC_OK) few = less("w2", moe.w2_bytes_, matrices * row_bytes(), experts, "experts");
    return few;
  }
  uint64_t row_bytes() const noexcept { return uint64_t{config_.c().hidden} * (config_.c().dtype == NMC_DTYPE_FP32 ? 4 : 2); }
  static Failure less(const char* what, uint64_t bytes, uint64_t need, uint64_t n, const char* whom = "tokens") {
    if (bytes >= need) return {};
    return {NMC_ERR_INVALID_ARG, std::string(what) + " has " + std::to_string(bytes) + " bytes; " + std::to_string(n) + " " + whom +
                                     " have " + std::to_string(need)};
  }

  static nmc_status_t make(nmc_world_t* const* worlds, size_t n, const EpConfig& config, std::vector<BasicEp>& made) {
    uint32_t ranks = 0;
    for (uint64_t mask = config.c().members; mask != 0; mask &= mask - 1) ++ranks;
    if (ranks == 0 && n > 0) {
      nmc_world_info_t info = NMC_WORLD_INFO_INIT;
      const nmc_status_t status = nmc_world_info(worlds[0], &info);
      if (status < 0) return status;
      ranks = info.world_size;
    }
    std::vector<nmc_ep_t*> handles(n + 1, nullptr);
    const nmc_status_t status = nmc_ep_create_ranks(worlds, n, &config.c(), handles.data());
    if (status < 0) return status;
    made.reserve(n);
    for (size_t i = 0; i < n; ++i) made.emplace_back(handles[i], config, ranks);
    return status;
  }
};

// ------------------------------------------------------------------------------------------------- the two forms --

using Ep = BasicEp<Throwing>;
using EpCallGroup = BasicEpCallGroup<Throwing>;
namespace nothrow {
using Ep = BasicEp<Returning>;
using EpCallGroup = BasicEpCallGroup<Returning>;
}  // namespace nothrow

namespace detail {
static_assert(is_move_only_v<nothrow::Ep>, "handles have one owner");
}  // namespace detail

}  // namespace nmc

#endif  // NANOMC_EP_HPP
