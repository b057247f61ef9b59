/*
 * Expert-parallel transport for an engine's own kernels: the pieces of which the library's dispatch and combine kernels
 * are made. With them an engine can write its rows straight into the experts' memory at the end of its own kernel, or
 * begin its next kernel with the combine. nmc_ep_device (nanomc.h) gives the nmc_ep_rank_t; docs/ep.md has the protocol.
 *
 * Every function says which threads call it. Waiting functions return false when the group has failed: the kernel then
 * returns without touching its outputs, and nmc_ep_check tells the host why.
 */
#ifndef NANOMC_EP_CUH
#define NANOMC_EP_CUH

#include "device.cuh"

/* One warp. The ranks that hold an expert of a token, one bit each. `bad` becomes true if a number is no expert; -1 is
 * no entry. `expert` of lane k is what entry k says. */
NMC_DEV uint32_t nmc_dev_ep_targets(const nmc_ep_rank_t& d, int64_t expert, bool* bad);

/* Where token `t` of this rank goes at rank `dst`. */
NMC_DEV char* nmc_dev_ep_row(const nmc_ep_rank_t& d, uint32_t dst, uint32_t t);

/* One warp. Tells the ranks in `targets` which of their experts token `t` goes to; lane k has entry k. Also remembers
 * the targets for the combine. */
NMC_DEV void nmc_dev_ep_send_meta(const nmc_ep_rank_t& d, uint32_t t, uint32_t targets, int64_t expert, float weight);

/* One warp. Writes the record for rank `dst`: which of the first `tokens` tokens go there. `idx` is int32 or int64
 * [tokens][top_k]. */
NMC_DEV void nmc_dev_ep_send_record(const nmc_ep_rank_t& d, uint32_t dst, const void* idx, bool idx_64, uint32_t tokens,
                                    uint32_t phase);

/* The phase of the last step that came in: a dispatch sends the one after it, a combine the same. Any thread. */
NMC_DEV uint32_t nmc_dev_ep_phase(const nmc_ep_rank_t& d);

/* One warp of each of d.blocks blocks, after everything that peers are to see of its block is stored by this warp, or by threads
 * that it has synchronised with: tells all ranks that this block's part of the step is there. Every block signals once. */
NMC_DEV void nmc_dev_ep_signal_dispatch(const nmc_ep_rank_t& d);

/* One warp, when all rows to return are stored: tells all ranks. */
NMC_DEV void nmc_dev_ep_signal_return(const nmc_ep_rank_t& d, uint32_t phase);

/* All threads of one block. Waits until all blocks of all ranks have signalled `phase`. Afterwards the rows can be read by
 * this block, and by kernels after this one. */
NMC_DEV bool nmc_dev_ep_wait_dispatch(const nmc_ep_rank_t& d, uint32_t phase, uint32_t tokens);

/* All threads of a block. Waits until all ranks have returned their rows of `phase`. */
NMC_DEV bool nmc_dev_ep_wait_return(const nmc_ep_rank_t& d, uint32_t phase);

/* Whether token `t` of rank `src` has come here in this step. Any thread, after the wait. */
NMC_DEV bool nmc_dev_ep_live(const nmc_ep_rank_t& d, uint32_t src, uint32_t t);

/* The ranks that token `t` of this rank was sent to, and the row that rank `dst` returns for it. */
NMC_DEV uint32_t nmc_dev_ep_sent(const nmc_ep_rank_t& d, uint32_t t);
NMC_DEV const char* nmc_dev_ep_returned(const nmc_ep_rank_t& d, uint32_t dst, uint32_t t);

/* Whether the group has failed. Any thread; threads that ask at about the same time may see it differently, so that a block
 * agrees first (__syncthreads_or) where it matters. A kernel that dispatches asks before it stores: afterwards the memory may
 * belong to another group. */
NMC_DEV bool nmc_dev_ep_failed(const nmc_ep_rank_t& d);

#include "impl/ep_impl.cuh"

#endif /* NANOMC_EP_CUH */
