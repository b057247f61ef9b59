/*
 * The allocator of blocks for C++17. In nmc::nothrow the same with results instead of exceptions: nanomc/core.hpp says how,
 * and what `Mode` and `Out<T>` are.
 *
 *   nmc::Blocks blocks = nmc::Blocks::create(nmc::BlocksConfig(131072));
 *   nmc::BlockRun run = blocks.allocate(32);        // 32 blocks that follow each other; freed with the scope
 *   if (!run.extend(8)) grow_elsewhere();           // in place, if those behind it are free
 *   std::vector<int32_t> table = blocks.allocate_scattered(100);
 *   blocks.free_scattered(table);
 */
#ifndef NANOMC_BLOCKS_HPP
#define NANOMC_BLOCKS_HPP

#include "nanomc/core.hpp"

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

/// A run of blocks in either form.
using AnyBlockRun = detail::Lease<nmc_blocks_t, nmc_block_run_t, nmc_blocks_free>;

/// Blocks that follow each other, freed with this object. Move-only. The allocator must live longer, or be gone for good:
/// then there is nothing to free.
template <class Mode>
class BasicBlockRun : public AnyBlockRun {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  using AnyBlockRun::AnyBlockRun;
  BasicBlockRun(AnyBlockRun&& other) noexcept : AnyBlockRun(std::move(other)) {}

  int32_t first() const noexcept { return what_.first; }
  int32_t count() const noexcept { return what_.count; }

  /// Longer by the blocks behind it. False if those are not free: then it is as it was.
  [[nodiscard]] Out<bool> extend(uint32_t more) {
    const nmc_status_t status = nmc_blocks_extend(from_, &what_, more);
    if (status == NMC_ERR_NO_SPACE) return false;
    if (status < 0) return Mode::failure(status);
    return true;
  }
  /// Keeps the first `count` blocks and frees the others; all of them if that is 0.
  Out<void> shrink(int32_t count) {
    if (count < 0) return Mode::done({NMC_ERR_INVALID_ARG, "a run of " + std::to_string(count) + " blocks"});
    if (count >= what_.count) return Mode::done(NMC_OK);
    const nmc_status_t status = nmc_blocks_free(from_, {what_.first + count, what_.count - count});
    if (status >= 0) what_.count = count;
    if (status >= 0 && count == 0) from_ = nullptr;
    return Mode::done(status);
  }
  /// Frees the blocks now.
  Out<void> free() { return shrink(0); }
};

/// A request in either form.
using AnyBlockTicket = detail::Lease<nmc_blocks_t, uint64_t, nmc_blocks_cancel>;

/// A request that stands in line. Move-only; given up with this object, unless it was fetched.
template <class Mode>
class BasicBlockTicket : public AnyBlockTicket {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  using AnyBlockTicket::AnyBlockTicket;
  BasicBlockTicket(AnyBlockTicket&& other) noexcept : AnyBlockTicket(std::move(other)) {}

  /// The run, or nothing while the request waits.
  Out<std::optional<BasicBlockRun<Mode>>> poll() {
    nmc_block_run_t run = {0, 0};
    const nmc_status_t status = nmc_blocks_poll(from_, what_, &run);
    if (status == NMC_IN_PROGRESS) return std::nullopt;
    nmc_blocks_t* const blocks = std::exchange(from_, nullptr);  // served, or never to be
    if (status < 0) return Mode::failure(status);
    return BasicBlockRun<Mode>(blocks, run);
  }
  /// Gives the request up now.
  Out<void> cancel() { return Mode::done(nmc_blocks_cancel(std::exchange(from_, nullptr), what_)); }
};

/// An allocator in either form: for functions that take one.
using AnyBlocks = detail::Handle<nmc_blocks_t, nmc_blocks_destroy>;

/// An allocator of blocks. Move-only. All members may be called from any thread.
template <class Mode>
class BasicBlocks : public AnyBlocks {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  using AnyBlocks::AnyBlocks;
  BasicBlocks(AnyBlocks&& other) noexcept : AnyBlocks(std::move(other)) {}
  /// This allocator with results, for one call: `blocks.nothrow()->allocate(32)`.
  detail::Borrowed<BasicBlocks<Returning>> nothrow() const noexcept {
    return detail::Borrowed<BasicBlocks<Returning>>(get());
  }

  static Out<BasicBlocks> create(const BlocksConfig& config) {
    nmc_blocks_t* handle = nullptr;
    const nmc_status_t status = nmc_blocks_create(&config.c(), &handle);
    if (status < 0) return Mode::failure(status);
    return BasicBlocks(handle);
  }
  /// Does what the destructor does, and says how it went.
  Out<void> destroy() { return Mode::done(destroy_now()); }

  /// `count` blocks that follow each other.
  Out<BasicBlockRun<Mode>> allocate(uint32_t count) const {
    nmc_block_run_t run = {0, 0};
    const nmc_status_t status = nmc_blocks_allocate(get(), count, &run);
    if (status < 0) return Mode::failure(status);
    return BasicBlockRun<Mode>(get(), run);
  }
  /// Any `count` free blocks: all, or none.
  Out<std::vector<int32_t>> allocate_scattered(size_t count) const {
    std::vector<int32_t> numbers(count);
    const nmc_status_t status = nmc_blocks_allocate_scattered(get(), count, numbers.data());
    if (status < 0) return Mode::failure(status);
    return numbers;
  }
  /// The same into memory of the caller.
  Out<void> allocate_scattered(span<int32_t> out) const {
    return Mode::done(nmc_blocks_allocate_scattered(get(), out.size(), out.data()));
  }
  Out<void> free_scattered(span<const int32_t> numbers) const {
    return Mode::done(nmc_blocks_free_scattered(get(), numbers.data(), numbers.size()));
  }
  /// Stands in line for `count` blocks that follow each other.
  Out<BasicBlockTicket<Mode>> request(uint32_t count) const {
    uint64_t ticket = 0;
    const nmc_status_t status = nmc_blocks_request(get(), count, &ticket);
    if (status < 0) return Mode::failure(status);
    return BasicBlockTicket<Mode>(get(), ticket);
  }
  Out<nmc_blocks_stats_t> stats() const {
    nmc_blocks_stats_t stats = NMC_BLOCKS_STATS_INIT;
    const nmc_status_t status = nmc_blocks_stats(get(), &stats);
    if (status < 0) return Mode::failure(status);
    return stats;
  }
  /// Counts and a map of all blocks, for people.
  Out<std::string> dump() const {
    return detail::text<Mode>([&](char* buffer, size_t capacity, size_t* needed) {
      return nmc_blocks_dump(get(), buffer, capacity, needed);
    });
  }
  Out<void> resize(uint32_t total) const { return Mode::done(nmc_blocks_resize(get(), total)); }
};

using Blocks = BasicBlocks<Throwing>;
using BlockRun = BasicBlockRun<Throwing>;
using BlockTicket = BasicBlockTicket<Throwing>;
namespace nothrow {
using Blocks = BasicBlocks<Returning>;
using BlockRun = BasicBlockRun<Returning>;
using BlockTicket = BasicBlockTicket<Returning>;
}  // namespace nothrow

namespace detail {
static_assert(is_move_only_v<nothrow::Blocks> && is_move_only_v<nothrow::BlockRun> && is_move_only_v<nothrow::BlockTicket>,
              "blocks have one owner");
static_assert(sizeof(nothrow::Blocks) == sizeof(void*), "a handle costs one pointer");
}  // namespace detail

}  // namespace nmc

#endif  // NANOMC_BLOCKS_HPP
