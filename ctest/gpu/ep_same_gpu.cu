// The expert-parallel transport on a GPU, bit for bit what the CPU backend gives.
// `ep_same_gpu same N [FIRST]`: N random cases: eager, as a graph, in halves, with launches of their own for each rank; 3 times each.
// `ep_same_gpu seeds N R [FIRST]`: N random cases, R times each in one group.   `ep_same_gpu prefill`: 4096 tokens a rank.
// `ep_same_gpu chain N [FIRST]`: steps behind each other, with nothing between their kernels.
// `ep_same_gpu fused N`: a kernel of the program takes the place of the library's dispatch.
// `ep_same_gpu order`: a control: sums in another order give other bits, and the comparison notices.
#include <nanomc/ep.cuh>

#include "ep_group.h"

using namespace ep;

namespace {

// What an engine does that ends its own kernel with the dispatch: a block has whole tokens.
__global__ void __launch_bounds__(256) fused_dispatch(nmc_ep_rank_t d, const char* x, const void* idx, bool idx_64,
                                                      const float* weight, uint32_t tokens) {
  const uint32_t lane = threadIdx.x & 31;
  // The same for the whole block, and before anything is stored: the memory may belong to another group by now.
  if (__syncthreads_or(nmc_dev_ep_failed(d)) != 0) return;
  const uint32_t phase = nmc_dev_ep_phase(d) + 1;
  for (uint32_t t = blockIdx.x; t < tokens; t += d.blocks) {
    int64_t expert = -1;
    if (lane < d.top_k) {
      const uint32_t at = t * d.top_k + lane;
      expert = idx_64 ? static_cast<const int64_t*>(idx)[at] : static_cast<const int32_t*>(idx)[at];
    }
    bool wrong;
    const uint32_t targets = nmc_dev_ep_targets(d, expert, &wrong);
    if (threadIdx.x < 32) {
      nmc_dev_ep_send_meta(d, t, targets, expert, lane < d.top_k ? weight[t * d.top_k + lane] : 0.0f);
    }
    for (uint32_t i = threadIdx.x; i < d.x_bytes / 16; i += blockDim.x) {
      const ulonglong2 v = nmc_dev_ld16(x + static_cast<uint64_t>(t) * d.x_bytes + 16ull * i);
      for (uint32_t r = 0; r < d.world; ++r) {
        if (targets >> r & 1) nmc_dev_st16(nmc_dev_ep_row(d, r, t) + 16ull * i, v);
      }
    }
  }
  if (threadIdx.x < 32) {
    for (uint32_t dst = blockIdx.x; dst < d.world; dst += d.blocks) nmc_dev_ep_send_record(d, dst, idx, idx_64, tokens, phase);
  }
  __syncthreads();
  if (threadIdx.x < 32) nmc_dev_ep_signal_dispatch(d);
  if (blockIdx.x == 0) nmc_dev_ep_wait_dispatch(d, phase, tokens);
}

// The first half of a step by kernels of the program, one stream a rank since they wait for each other.
void fused(uint64_t n) {
  uint64_t wrong = 0, compared = 0;
  for (uint64_t seed = 1; compared < n; ++seed) {
    Case c = wide_case(seed);
    c.dispatch = NMC_EP_DISPATCH_SAME;
    c.weights = NMC_DTYPE_FP32;
    const std::vector<std::vector<Bytes>> want = [&] {
      Group<HostMemory> g(c);
      std::vector<std::vector<Bytes>> all;
      for (uint32_t s = 0; s < kSteps; ++s) all.push_back(g.step(s, 0));
      return all;
    }();
    Group<DeviceMemory> g(c);
    std::vector<cudaStream_t> streams(c.world);
    for (cudaStream_t& s : streams) CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (uint32_t s = 0; s < kSteps; ++s) {
      for (auto& rank : g.ranks) rank.load(s);
      for (uint32_t r = 0; r < c.world; ++r) {
        nmc_ep_rank_t d;
        NMC_CHECK(nmc_ep_device(g.eps[r], s, &d));
        auto& rank = g.ranks[r];
        fused_dispatch<<<d.blocks, 256, 0, streams[r]>>>(d, rank.x.as<char>(), rank.idx.get(), c.idx_64,
                                                         rank.weight.as<float>(), rank.tokens.n);
        CUDA_OK(cudaGetLastError());
      }
      for (cudaStream_t& stream : streams) CUDA_OK(cudaStreamSynchronize(stream));
      g.each([&](nmc_ep_t* e, Rank<DeviceMemory>& rank) {
        const nmc_ep_grouped_t where = rank.where();
        NMC_CHECK(nmc_ep_route_pack(e, s, &where, g.stream));
      });
      g.wait();
      for (auto& rank : g.ranks) rank.compute();
      g.after(s, 0);
      for (uint32_t r = 0; r < c.world; ++r) {
        compared += 1;
        wrong += g.ranks[r].digest() != want[s][r];
      }
    }
    for (nmc_ep_t* e : g.eps) NMC_CHECK(nmc_ep_check(e));
    for (cudaStream_t& stream : streams) CUDA_OK(cudaStreamDestroy(stream));
  }
  check(wrong == 0, "a kernel of the program can take the place of the dispatch");
}

void same(uint64_t first, uint64_t n, bool break_it) {
  Compare all;
  for (uint64_t seed = first; seed < first + n; ++seed) {
    const Case c = wide_case(seed);
    std::vector<std::vector<Bytes>> want = on_cpu(c);
    if (break_it) {  // one unit in the last place of one element
      for (auto& step : want) {
        for (Bytes& rank : step) rank[0] ^= 1;
      }
    }
    for (int how = 0; how < 5; ++how) {
      for (int repeat = 0; repeat < 3; ++repeat) {
        Group<DeviceMemory> g(c, how == 1 ? NMC_EP_SEPARATE_Y : 0);
        for (uint32_t s = 0; s < kSteps; ++s) all.add(g, s, how, g.step(s, how), want[s]);
        for (nmc_ep_t* e : g.eps) NMC_CHECK(nmc_ep_check(e));
      }
    }
  }
  check(all.good(), "the GPU gives the bits of the CPU: eager, in halves, as a graph, together and apart, every time");
}

// Many cases, each often in one group: results that depend on what was in memory or on timing would differ some time. One case
// in 16 has the shape of a real layer.
void seeds(uint64_t first, uint64_t n, uint64_t repeats) {
  Compare all;
  for (uint64_t seed = first; seed < first + n; ++seed) {
    const Case c = seed % 16 == 0 ? wide_case(seed) : random_case(seed);
    const std::vector<std::vector<Bytes>> want = on_cpu(c);
    Group<DeviceMemory> g(c);
    for (uint64_t repeat = 0; repeat < repeats; ++repeat) {
      const int how = static_cast<int>(repeat % 5);
      for (uint32_t s = 0; s < kSteps; ++s) all.add(g, s, how, g.step(s, how), want[s]);
    }
    for (nmc_ep_t* e : g.eps) NMC_CHECK(nmc_ep_check(e));
  }
  check(all.good(), "many seeds, many times each: always the bits of the CPU");
}

// Steps behind each other, with nothing between their kernels: experts that return what they get. On the GPU also as a graph that is
// replayed, so that each step overwrites the rows of the one before it while kernels are placed early.
template <typename Memory>
std::vector<Bytes> chain_of(const Case& c, uint32_t steps, int rounds) {
  Group<Memory> g(c);
  std::vector<std::vector<Rank<Memory>>> all(steps);
  for (uint32_t s = 0; s < steps; ++s) {
    for (uint32_t r = 0; r < c.world; ++r) all[s].emplace_back(c, r);
    for (Rank<Memory>& rank : all[s]) rank.load(s);
  }
  const auto enqueue = [&] {
    for (uint32_t s = 0; s < steps; ++s) {
      NMC_CHECK(nmc_ep_group_begin());
      for (int kernel = 0; kernel < 4; ++kernel) {
        for (uint32_t r = 0; r < c.world; ++r) {
          Rank<Memory>& rank = all[s][r];
          const nmc_ep_dispatch_t args = rank.dispatch(s, false);
          const nmc_ep_grouped_t where = rank.where();
          if (kernel == 0) NMC_CHECK(nmc_ep_dispatch(g.eps[r], &args, g.stream));
          if (kernel == 1) NMC_CHECK(nmc_ep_route_pack(g.eps[r], s, &where, g.stream));
          if (kernel == 2) NMC_CHECK(nmc_ep_scatter(g.eps[r], s, where.x, where.row_of, nullptr, g.stream));
          if (kernel == 3) NMC_CHECK(nmc_ep_combine(g.eps[r], s, nullptr, rank.out.get(), g.stream));
        }
      }
      NMC_CHECK(nmc_ep_group_end());
    }
  };
  enqueue();
  if (rounds > 0) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_OK(cudaStreamBeginCapture(g.stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    CUDA_OK(cudaStreamEndCapture(g.stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < rounds; ++i) CUDA_OK(cudaGraphLaunch(exec, g.stream));
    g.wait();
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(graph));
  }
  for (nmc_ep_t* e : g.eps) NMC_CHECK(nmc_ep_check(e));
  std::vector<Bytes> results;
  for (auto& step : all) {
    for (auto& rank : step) results.push_back(rank.result());
  }
  return results;
}

void chain(uint64_t first, uint64_t n) {
  uint64_t compared = 0, wrong = 0;
  for (uint64_t seed = first; seed < first + n; ++seed) {
    Case c = wide_case(seed);
    c.dispatch = NMC_EP_DISPATCH_SAME;
    const std::vector<Bytes> want = chain_of<HostMemory>(c, 5, 0), got = chain_of<DeviceMemory>(c, 5, 50);
    for (size_t i = 0; i < want.size(); ++i) compared += 1, wrong += want[i] != got[i];
  }
  std::printf("%llu results compared, %llu with other bits\n", static_cast<unsigned long long>(compared),
              static_cast<unsigned long long>(wrong));
  check(wrong == 0 && compared > 0, "steps behind each other, without a break, give the bits of the CPU");
}

// More tokens than a decode step has. Of 100 a block of the scatter can list the slots but not keep all entries, of 4096 neither.
void prefill() {
  for (const uint32_t tokens : {100u, 4096u}) {
    for (const uint32_t dispatch : {NMC_EP_DISPATCH_SAME, NMC_EP_DISPATCH_FP8}) {
      Case c;
      c.world = 8, c.t_cap = tokens, c.hidden = 1024, c.top_k = 4, c.experts = 32, c.repeated = false;
      c.max_m = tokens == 4096 ? 8192 : 0;
      c.dispatch = dispatch;
      c.deadline_ms = 30000;
      const int all_of_them = static_cast<int>(tokens);
      const std::vector<std::vector<Bytes>> want = on_cpu(c, 2, all_of_them);
      Group<DeviceMemory> g(c);
      Compare all;
      for (uint32_t s = 0; s < 2; ++s) all.add(g, s, s == 0 ? 0 : 2, g.step(s, s == 0 ? 0 : 2, all_of_them), want[s]);
      for (nmc_ep_t* e : g.eps) NMC_CHECK(nmc_ep_check(e));
      std::printf("%u tokens of each of 8 ranks:\n", tokens);
      check(all.good(), "more tokens than in a decode step: the bits of the CPU");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const auto number = [&](int i, uint64_t otherwise) { return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise; };
  skip_without_gpu();
  if (mode == "same") same(number(3, 1), number(2, 12), false);
  else if (mode == "order") same(number(3, 1), 1, true);
  else if (mode == "fused") fused(number(2, 40));
  else if (mode == "seeds") seeds(number(4, 1), number(2, 20), number(3, 3));
  else if (mode == "prefill") prefill();
  else if (mode == "chain") chain(number(3, 1), number(2, 8));
  else return std::fprintf(stderr, "usage: ep_same_gpu same|seeds|chain|prefill|fused|order\n"), 2;
  return failed_checks != 0;
}
