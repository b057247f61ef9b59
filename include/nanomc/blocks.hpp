/*
 * The block allocator for C++17: RAII over nmc_blocks_* of nanomc.h. nanomc.hpp includes it; like there, every operation
 * has a `try_x` that returns a Result, and an `x` that throws nmc::Error.
 *
 *   nmc::Blocks blocks = nmc::Blocks::create(nmc::BlocksConfig(131072));
 *   nmc::BlockRun run = blocks.allocate(32);        // 32 blocks that follow each other; freed with the scope
 *   run.extend(8);                                  // in place, if those behind it are free
 *   std::vector<int32_t> table = blocks.allocate_scattered(100);
 *   blocks.free_scattered(table);
 */
#ifndef NANOMC_BLOCKS_HPP
#define NANOMC_BLOCKS_HPP

#include "nanomc.hpp"

namespace nmc {

/// How an allocator of blocks is made; see nmc_blocks_config_t.
class BlocksConfig {
 public:
  BlocksConfig() = default;
  explicit BlocksConfig(uint32_t total) { c_.total_blocks = total; }
  BlocksConfig& total_blocks(uint32_t value) { return c_.total_blocks = value, *this; }
  const nmc_blocks_config_t& c() const noexcept { return c_; }

 private:
  nmc_blocks_config_t c_ = NMC_BLOCKS_CONFIG_INIT;
};

/// Blocks that follow each other, freed with this object. Move-only. The allocator must live longer, or be gone for good:
/// then there is nothing to free.
class BlockRun {
 public:
  BlockRun() = default;
  /// Takes over blocks that are in use.
  BlockRun(nmc_blocks_t* blocks, nmc_block_run_t run) noexcept : blocks_(blocks), run_(run) {}
  BlockRun(BlockRun&& other) noexcept
      : blocks_(std::exchange(other.blocks_, nullptr)), run_(std::exchange(other.run_, {0, 0})) {}
  BlockRun& operator=(BlockRun&& other) noexcept {
    if (this != &other) {
      if (blocks_ != nullptr) (void)nmc_blocks_free(blocks_, run_);
      blocks_ = std::exchange(other.blocks_, nullptr);
      run_ = std::exchange(other.run_, {0, 0});
    }
    return *this;
  }
  BlockRun(const BlockRun&) = delete;
  BlockRun& operator=(const BlockRun&) = delete;
  ~BlockRun() {
    if (blocks_ != nullptr) (void)nmc_blocks_free(blocks_, run_);
  }

  int32_t first() const noexcept { return run_.first; }
  int32_t count() const noexcept { return run_.count; }
  explicit operator bool() const noexcept { return blocks_ != nullptr; }
  const nmc_block_run_t& c() const noexcept { return run_; }
  /// Gives the blocks away: the caller frees them.
  nmc_block_run_t release() noexcept {
    blocks_ = nullptr;
    return std::exchange(run_, {0, 0});
  }

  /// Longer by the blocks behind it, if those are free: otherwise NMC_ERR_NO_SPACE.
  Result<void> try_extend(uint32_t more) { return detail::done(nmc_blocks_extend(blocks_, &run_, more)); }
  /// Keeps the first `count` blocks and frees the others; all of them if that is 0.
  Result<void> try_shrink(int32_t count) {
    if (count >= run_.count) return {};
    if (count < 0) return Failure{NMC_ERR_INVALID_ARG, "a run of " + std::to_string(count) + " blocks"};
    const nmc_status_t status = nmc_blocks_free(blocks_, {run_.first + count, run_.count - count});
    if (status < 0) return detail::failure(status);
    run_.count = count;
    if (count == 0) blocks_ = nullptr;
    return {};
  }
  /// Frees the blocks now.
  Result<void> try_free() { return try_shrink(0); }
#if NMC_HPP_EXCEPTIONS
  void extend(uint32_t more) { try_extend(more).value(); }
  void shrink(int32_t count) { try_shrink(count).value(); }
  void free() { try_free().value(); }
#endif

 private:
  nmc_blocks_t* blocks_ = nullptr;
  nmc_block_run_t run_ = {0, 0};
};

/// A request that stands in line. Move-only; given up with this object, unless it was fetched.
class BlockTicket {
 public:
  BlockTicket() = default;
  BlockTicket(nmc_blocks_t* blocks, uint64_t ticket) noexcept : blocks_(blocks), ticket_(ticket) {}
  BlockTicket(BlockTicket&& other) noexcept
      : blocks_(std::exchange(other.blocks_, nullptr)), ticket_(std::exchange(other.ticket_, 0)) {}
  BlockTicket& operator=(BlockTicket&& other) noexcept {
    if (this != &other) {
      if (blocks_ != nullptr) (void)nmc_blocks_cancel(blocks_, ticket_);
      blocks_ = std::exchange(other.blocks_, nullptr);
      ticket_ = std::exchange(other.ticket_, 0);
    }
    return *this;
  }
  BlockTicket(const BlockTicket&) = delete;
  BlockTicket& operator=(const BlockTicket&) = delete;
  ~BlockTicket() {
    if (blocks_ != nullptr) (void)nmc_blocks_cancel(blocks_, ticket_);
  }

  explicit operator bool() const noexcept { return blocks_ != nullptr; }
  uint64_t c() const noexcept { return ticket_; }

  /// The run, if it is there: without a value and with NMC_IN_PROGRESS while it is not.
  Result<BlockRun> try_poll() {
    nmc_block_run_t run = {0, 0};
    nmc_blocks_t* const blocks = blocks_;
    const nmc_status_t status = nmc_blocks_poll(blocks, ticket_, &run);
    if (status == NMC_IN_PROGRESS) return Failure{status, "the request waits for blocks"};
    blocks_ = nullptr;  // served, or never to be
    if (status < 0) return detail::failure(status);
    return BlockRun(blocks, run);
  }
  /// Gives the request up now.
  Result<void> try_cancel() { return detail::done(nmc_blocks_cancel(std::exchange(blocks_, nullptr), ticket_)); }
#if NMC_HPP_EXCEPTIONS
  /// The run, or nothing while the request waits.
  std::optional<BlockRun> poll() {
    Result<BlockRun> run = try_poll();
    if (run.status() == NMC_IN_PROGRESS) return std::nullopt;
    return std::move(run).value();
  }
  void cancel() { try_cancel().value(); }
#endif

 private:
  nmc_blocks_t* blocks_ = nullptr;
  uint64_t ticket_ = 0;
};

/// An allocator of blocks. Move-only. All members may be called from any thread.
class Blocks : public detail::Handle<nmc_blocks_t, nmc_blocks_destroy> {
 public:
  using Handle::Handle;

  static Result<Blocks> try_create(const BlocksConfig& config) {
    nmc_blocks_t* handle = nullptr;
    const nmc_status_t status = nmc_blocks_create(&config.c(), &handle);
    if (status < 0) return detail::failure(status);
    return Blocks(handle);
  }

  /// `count` blocks that follow each other.
  Result<BlockRun> try_allocate(uint32_t count) const {
    nmc_block_run_t run = {0, 0};
    const nmc_status_t status = nmc_blocks_allocate(get(), count, &run);
    if (status < 0) return detail::failure(status);
    return BlockRun(get(), run);
  }
  /// Any `count` free blocks: all, or none.
  Result<std::vector<int32_t>> try_allocate_scattered(size_t count) const {
    std::vector<int32_t> numbers(count);
    const nmc_status_t status = nmc_blocks_allocate_scattered(get(), count, numbers.data());
    if (status < 0) return detail::failure(status);
    return numbers;
  }
  /// The same into memory of the caller.
  Result<void> try_allocate_scattered(view<int32_t> out) const {
    return detail::done(nmc_blocks_allocate_scattered(get(), out.size(), out.data()));
  }
  Result<void> try_free_scattered(view<const int32_t> numbers) const {
    return detail::done(nmc_blocks_free_scattered(get(), numbers.data(), numbers.size()));
  }
  Result<void> try_free_scattered(const std::vector<int32_t>& numbers) const {
    return detail::done(nmc_blocks_free_scattered(get(), numbers.data(), numbers.size()));
  }
  /// Stands in line for `count` blocks that follow each other.
  Result<BlockTicket> try_request(uint32_t count) const {
    uint64_t ticket = 0;
    const nmc_status_t status = nmc_blocks_request(get(), count, &ticket);
    if (status < 0) return detail::failure(status);
    return BlockTicket(get(), ticket);
  }
  Result<nmc_blocks_stats_t> try_stats() const {
    nmc_blocks_stats_t stats = NMC_BLOCKS_STATS_INIT;
    const nmc_status_t status = nmc_blocks_stats(get(), &stats);
    if (status < 0) return detail::failure(status);
    return stats;
  }
  /// Counts and a map of all blocks, for people.
  Result<std::string> try_map() const {
    return detail::text([&](char* buffer, size_t capacity, size_t* needed) {
      return nmc_blocks_dump(get(), buffer, capacity, needed);
    });
  }
  Result<void> try_resize(uint32_t total) const { return detail::done(nmc_blocks_resize(get(), total)); }

#if NMC_HPP_EXCEPTIONS
  static Blocks create(const BlocksConfig& config) { return try_create(config).value(); }
  BlockRun allocate(uint32_t count) const { return try_allocate(count).value(); }
  std::vector<int32_t> allocate_scattered(size_t count) const { return try_allocate_scattered(count).value(); }
  void allocate_scattered(view<int32_t> out) const { try_allocate_scattered(out).value(); }
  void free_scattered(view<const int32_t> numbers) const { try_free_scattered(numbers).value(); }
  void free_scattered(const std::vector<int32_t>& numbers) const { try_free_scattered(numbers).value(); }
  BlockTicket request(uint32_t count) const { return try_request(count).value(); }
  nmc_blocks_stats_t stats() const { return try_stats().value(); }
  std::string map() const { return try_map().value(); }
  void resize(uint32_t total) const { try_resize(total).value(); }
#endif
};

namespace detail {
static_assert(is_move_only_v<Blocks> && is_move_only_v<BlockRun> && is_move_only_v<BlockTicket>,
              "blocks have one owner");
static_assert(sizeof(Blocks) == sizeof(void*), "a handle costs one pointer");
}  // namespace detail

}  // namespace nmc

#endif  // NANOMC_BLOCKS_HPP
