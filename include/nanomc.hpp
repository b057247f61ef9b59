/*
 * nanomc for C++17 and C++20, header-only: all of it. A header for each noun, which can be included alone as well:
 *
 *   nanomc/world.hpp    the ranks of one machine, whose heaps all of them address
 *   nanomc/store.hpp    objects that one process writes and all read
 *   nanomc/tier.hpp     an SSD below the store
 *   nanomc/client.hpp   a cluster: objects on many machines
 *   nanomc/kv.hpp       the block KV cache
 *   nanomc/blocks.hpp   the allocator of blocks
 *   nanomc/ep.hpp       the expert-parallel transport
 *   nanomc/log.hpp      what happens in the background
 *
 * Errors are thrown (nmc::World) or returned (nmc::nothrow::World): nanomc/core.hpp says how.
 */
#ifndef NANOMC_HPP
#define NANOMC_HPP

#include "nanomc/blocks.hpp"
#include "nanomc/client.hpp"
#include "nanomc/ep.hpp"
#include "nanomc/kv.hpp"
#include "nanomc/log.hpp"
#include "nanomc/store.hpp"
#include "nanomc/tier.hpp"
#include "nanomc/world.hpp"

#endif  // NANOMC_HPP
