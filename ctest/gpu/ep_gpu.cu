// The expert-parallel transport on a GPU, bit for bit what the CPU backend gives.
// `ep_gpu same N [FIRST]`: N random cases: eager, as a graph, in halves, with launches of their own for each rank; 3 times each.
// `ep_gpu seeds N R [FIRST]`: N random cases, R times each in one group.   `ep_gpu prefill`: 4096 tokens a rank.
// `ep_gpu chain N [FIRST]`: steps behind each other, with nothing between their kernels.
// `ep_gpu procs N [FIRST [device_scope|early|early_device_scope]]`: the same by one process a rank, early ones under MPS alone.   `ep_gpu forward`: whole layers, built-in product and callback.
// `ep_gpu errors`: what only the GPU can see, and aborts.   `ep_gpu abort`: an abort by another process.
// `ep_gpu kill N`: N times a rank is killed and the others go on; not under MPS. `ep_gpu kill_mps N`: the same under MPS, after
// `terminate_client`.
// `ep_gpu overlap STREAMS N [FIRST]`: one process a rank, steps of several buffer sets on several streams beside experts that take
// whole multiprocessors; more than two streams are refused.
// `ep_gpu fused N`: a kernel of the program takes the place of the library's dispatch.
// `ep_gpu order`: a control: sums in another order give other bits, and the comparison notices.
#include <signal.h>
#include <sys/wait.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <nanomc/ep.cuh>

#include "../ep/ep_check.hpp"
#include "check.h"

using namespace ep;

namespace {

struct DeviceMemory {
  static void* alloc(size_t bytes) {
    void* p = nullptr;
    CUDA_OK(cudaMalloc(&p, bytes));
    poison(p, bytes);
    return p;
  }
  static void free(void* p) { CUDA_OK(cudaFree(p)); }
  static void up(void* to, const void* from, size_t bytes) {
    if (bytes != 0) CUDA_OK(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    CUDA_OK(cudaDeviceSynchronize());  // the copy may return before its last bytes are there
  }
  static void down(void* to, const void* from, size_t bytes) {
    if (bytes != 0) CUDA_OK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
  }
  static void poison(void* p, size_t bytes) {
    CUDA_OK(cudaMemset(p, 0xff, bytes));
    CUDA_OK(cudaDeviceSynchronize());  // the streams of these tests do not wait for it
  }
};

// All ranks of a case in this process, on either backend.
template <typename Memory>
struct Group {
  static constexpr bool kDevice = std::is_same<Memory, DeviceMemory>::value;
  const Case& c;
  std::vector<nmc_world_t*> worlds;
  std::vector<nmc_ep_t*> eps;
  std::vector<Rank<Memory>> ranks;
  cudaStream_t stream = nullptr;
  std::vector<cudaStream_t> apart;  // one a rank

  explicit Group(const Case& which, uint32_t flags = 0) : c(which), worlds(which.world), eps(which.world) {
    nmc_ep_config_t config = c.config();
    config.flags = flags;
    config.blocks = c.hidden >= 1024 ? 0 : 1 + c.seed % 5;
    nmc_ep_bytes_t bytes = NMC_EP_BYTES_INIT;
    NMC_CHECK(nmc_ep_bytes_needed(&config, c.world, 0, &bytes));
    nmc_world_config_t world = NMC_WORLD_CONFIG_INIT;
    world.world_size = c.world;
    world.heap_kind = kDevice ? NMC_HEAP_CUDA : NMC_HEAP_HOST;
    world.device = kDevice ? 0 : -1;
    world.heap_bytes = (bytes.transport + (2 << 20) - 1) >> 21 << 21;
    NMC_CHECK(nmc_world_create_local(&world, worlds.data()));
    for (uint32_t r = 0; r < c.world; ++r) {
      void* heap = nullptr;
      NMC_CHECK(nmc_world_ptr(worlds[r], static_cast<int32_t>(r), 0, world.heap_bytes, &heap));
      Memory::poison(heap, world.heap_bytes);
    }
    NMC_CHECK(nmc_ep_create_ranks(worlds.data(), c.world, &config, eps.data()));
    for (uint32_t r = 0; r < c.world; ++r) ranks.emplace_back(c, r);
    if (kDevice) CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    apart.resize(kDevice ? c.world : 0);
    for (cudaStream_t& s : apart) CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  }
  ~Group() {
    for (nmc_ep_t* e : eps) NMC_CHECK(nmc_ep_destroy(e));
    for (nmc_world_t* w : worlds) NMC_CHECK(nmc_world_destroy(w));
    if (kDevice) CUDA_OK(cudaStreamDestroy(stream));
    for (cudaStream_t s : apart) CUDA_OK(cudaStreamDestroy(s));
  }
  void wait() {
    if (kDevice) CUDA_OK(cudaStreamSynchronize(stream));
    for (cudaStream_t s : apart) CUDA_OK(cudaStreamSynchronize(s));
  }
  template <typename Body>
  void each(const Body& body) {
    NMC_CHECK(nmc_ep_group_begin());
    for (uint32_t r = 0; r < c.world; ++r) body(eps[r], ranks[r]);
    NMC_CHECK(nmc_ep_group_end());
  }

  // The halves of a step before and after the experts. `how`: 0 eager, 1 halves with rows staged, 2 as a graph; 3 and 4: the second
  // and the first half with a stream and launches for each rank.
  void before(uint32_t layer, int how) {
    const auto enqueue = [&] {
      if (how == 4) {
        for (uint32_t r = 0; r < c.world; ++r) {
          const nmc_ep_dispatch_t args = ranks[r].dispatch(layer, false);
          const nmc_ep_grouped_t where = ranks[r].where();
          NMC_CHECK(nmc_ep_dispatch(eps[r], &args, apart[r]));
          NMC_CHECK(nmc_ep_route_pack(eps[r], layer, &where, apart[r]));
        }
        return;
      }
      if (how == 1) {
        each([&](nmc_ep_t* e, Rank<Memory>& rank) {
          const nmc_ep_dispatch_t args = rank.dispatch(layer, true);
          NMC_CHECK(nmc_ep_dispatch_send(e, &args, stream));
        });
        each([&](nmc_ep_t* e, Rank<Memory>&) { NMC_CHECK(nmc_ep_dispatch_recv(e, layer, stream)); });
      } else {
        each([&](nmc_ep_t* e, Rank<Memory>& rank) {
          const nmc_ep_dispatch_t args = rank.dispatch(layer, how == 2);
          NMC_CHECK(nmc_ep_dispatch(e, &args, stream));
        });
      }
      each([&](nmc_ep_t* e, Rank<Memory>& rank) {
        const nmc_ep_grouped_t where = rank.where();
        NMC_CHECK(nmc_ep_route_pack(e, layer, &where, stream));
      });
    };
    run(enqueue, how == 2);
  }
  void after(uint32_t layer, int how) {
    std::vector<Buffer<Memory>> staged;
    const auto enqueue = [&] {
      if (how == 3) {
        for (uint32_t r = 0; r < c.world; ++r) {
          const int32_t* row_of = ranks[r].row_of.template as<int32_t>();
          NMC_CHECK(nmc_ep_scatter(eps[r], layer, ranks[r].y.get(), row_of, nullptr, apart[r]));
          NMC_CHECK(nmc_ep_combine(eps[r], layer, nullptr, ranks[r].out.get(), apart[r]));
        }
        return;
      }
      each([&](nmc_ep_t* e, Rank<Memory>& rank) {
        void* y = nullptr;
        if (how == 1) {
          staged.emplace_back(size_t{c.world} * c.t_cap * c.y_bytes());
          y = staged.back().get();
        }
        NMC_CHECK(nmc_ep_scatter(e, layer, rank.y.get(), rank.row_of.template as<int32_t>(), y, stream));
      });
      if (how == 1) {
        size_t i = 0;
        each([&](nmc_ep_t* e, Rank<Memory>&) { NMC_CHECK(nmc_ep_combine_send(e, layer, staged[i++].get(), stream)); });
        each([&](nmc_ep_t* e, Rank<Memory>& rank) { NMC_CHECK(nmc_ep_combine_recv(e, layer, rank.out.get(), stream)); });
      } else {
        each([&](nmc_ep_t* e, Rank<Memory>& rank) { NMC_CHECK(nmc_ep_combine(e, layer, nullptr, rank.out.get(), stream)); });
      }
    };
    run(enqueue, how == 2);
  }
  template <typename Enqueue>
  void run(const Enqueue& enqueue, bool as_graph) {
    if (!as_graph || !kDevice) {
      enqueue();
      wait();
      return;
    }
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_OK(cudaGraphLaunch(exec, stream));
    wait();
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(graph));
  }
  std::vector<Bytes> step(uint32_t s, int how, int fixed = -1) {
    for (Rank<Memory>& rank : ranks) rank.load(s, fixed);
    before(s, how);
    for (Rank<Memory>& rank : ranks) rank.compute();
    after(s, how);
    std::vector<Bytes> all;
    for (Rank<Memory>& rank : ranks) all.push_back(rank.digest());
    return all;
  }
};

constexpr uint32_t kSteps = 3;

Case wide_case(uint64_t seed) {
  Case c = random_case(seed);
  if (seed % 4 == 0) {  // the shape of a real layer
    static const uint32_t hidden[] = {5120, 7168, 2048, 4096, 6144, 8192};
    c.world = 8, c.t_cap = 32, c.hidden = hidden[seed / 4 % 6], c.top_k = 8, c.experts = 64, c.max_m = 0, c.spill_groups = 0;
    c.repeated = false;
  }
  return c;
}

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

std::vector<std::vector<Bytes>> on_cpu(const Case& c, uint32_t steps = kSteps, int fixed = -1) {
  Group<HostMemory> g(c);
  std::vector<std::vector<Bytes>> all;
  for (uint32_t s = 0; s < steps; ++s) all.push_back(g.step(s, 0, fixed));
  return all;
}

// Compares results bit for bit, and says where the first ones differ.
struct Compare {
  uint64_t compared = 0, wrong = 0;
  void add(const Group<DeviceMemory>& g, uint32_t s, int how, const std::vector<Bytes>& got, const std::vector<Bytes>& want) {
    for (uint32_t r = 0; r < g.c.world; ++r) {
      compared += 1;
      if (got[r] == want[r]) continue;
      wrong += 1;
      size_t at = 0;
      while (at < got[r].size() && at < want[r].size() && got[r][at] == want[r][at]) ++at;
      if (wrong < 10) {
        std::printf("seed %llu step %u rank %u of %u how %d: other bits from byte %zu of %zu on (out has %zu); dtype %u dispatch %u\n",
                    static_cast<unsigned long long>(g.c.seed), s, r, g.c.world, how, at, got[r].size(),
                    static_cast<size_t>(g.ranks[r].tokens.n) * g.c.y_bytes(), g.c.dtype, g.c.dispatch);
      }
    }
  }
  bool good() const {
    std::printf("%llu results compared, %llu with other bits\n", static_cast<unsigned long long>(compared),
                static_cast<unsigned long long>(wrong));
    return wrong == 0 && compared > 0;
  }
};

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

// Rows that a kernel of the program changes between scatter and combine, in the place where they are fetched: the combine tells.
void changed_in_place() {
  Case c;
  c.world = 4, c.t_cap = 16, c.hidden = 1024, c.experts = 16, c.top_k = 4, c.masked = false, c.repeated = false;
  const std::vector<std::vector<Bytes>> want = on_cpu(c);
  Group<DeviceMemory> g(c);
  bool ok = true;
  for (uint32_t s = 0; s < kSteps; ++s) {
    for (auto& rank : g.ranks) rank.load(s);
    g.before(s, 0);
    for (auto& rank : g.ranks) rank.compute();
    g.each([&](nmc_ep_t* e, Rank<DeviceMemory>& rank) {
      nmc_ep_recv_buffers_t recv = NMC_EP_RECV_BUFFERS_INIT;
      NMC_CHECK(nmc_ep_recv_buffers(e, s, &recv));
      NMC_CHECK(nmc_ep_scatter(e, s, rank.y.get(), rank.row_of.as<int32_t>(), const_cast<void*>(recv.y), g.stream));
    });
    g.each([&](nmc_ep_t* e, Rank<DeviceMemory>& rank) { NMC_CHECK(nmc_ep_combine(e, s, nullptr, rank.out.get(), g.stream)); });
    g.wait();
    for (uint32_t r = 0; r < c.world; ++r) ok = g.ranks[r].digest() == want[s][r] && ok;
  }
  for (nmc_ep_t* e : g.eps) ok = nmc_ep_check(e) == NMC_OK && ok;
  check(ok, "a scatter to the given place leaves it to the combine to tell");
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

// ---- one process a rank ---------------------------------------------------------------------------------------------

struct Member {
  nmc_world_t* world = nullptr;
  nmc_ep_t* ep = nullptr;
  cudaStream_t stream = nullptr;
};

Member join(const Case& c, uint32_t rank, const char* dir, const char* name, uint64_t heap) {
  Member m;
  CUDA_OK(cudaSetDevice(0));
  CUDA_OK(cudaStreamCreateWithFlags(&m.stream, cudaStreamNonBlocking));
  nmc_world_config_t world = NMC_WORLD_CONFIG_INIT;
  world.name = {name, std::strlen(name)};
  world.dir = {dir, std::strlen(dir)};
  world.rank = static_cast<int32_t>(rank);
  world.world_size = c.world;
  world.heap_kind = NMC_HEAP_CUDA;
  world.device = 0;
  world.heap_bytes = heap;
  world.join_timeout_ms = 60000;
  NMC_CHECK(nmc_world_join(&world, &m.world));
  return m;
}

uint64_t heap_for(const Case& c) {
  const nmc_ep_config_t config = c.config();
  nmc_ep_bytes_t bytes = NMC_EP_BYTES_INIT;
  NMC_CHECK(nmc_ep_bytes_needed(&config, c.world, 0, &bytes));
  return (bytes.transport + (2 << 20) - 1) >> 21 << 21;
}

// One step of one rank; its number in the group may differ from its rank.
nmc_status_t step_of(const Member& m, Rank<DeviceMemory>& rank, uint32_t s, Bytes* out) {
  rank.load(s);
  const nmc_ep_dispatch_t args = rank.dispatch(s, true);
  const nmc_ep_grouped_t where = rank.where();
  nmc_status_t status = nmc_ep_dispatch(m.ep, &args, m.stream);
  if (status == NMC_OK) status = nmc_ep_route_pack(m.ep, s, &where, m.stream);
  CUDA_OK(cudaStreamSynchronize(m.stream));
  if (status == NMC_OK) status = nmc_ep_check(m.ep);
  if (status != NMC_OK) return status;
  rank.compute();
  status = nmc_ep_scatter(m.ep, s, rank.y.get(), where.row_of, nullptr, m.stream);
  if (status == NMC_OK) status = nmc_ep_combine(m.ep, s, nullptr, rank.out.get(), m.stream);
  CUDA_OK(cudaStreamSynchronize(m.stream));
  if (status == NMC_OK) status = nmc_ep_check(m.ep);
  if (status == NMC_OK) *out = rank.digest();
  return status;
}

int proc_child(uint64_t seed, uint32_t number, const char* dir, const std::string& how) {
  const Case c = wide_case(seed);
  const std::vector<std::vector<Bytes>> want = on_cpu(c);
  Member m = join(c, number, dir, "procs", heap_for(c));
  nmc_ep_config_t config = c.config();
  if (how.find("device_scope") != std::string::npos) config.flags |= NMC_EP_DEVICE_SCOPE;
  if (how.find("early") != std::string::npos) config.flags |= NMC_EP_EARLY, config.blocks = 16;  // as ep_bench measures
  NMC_CHECK(nmc_ep_create(m.world, &config, &m.ep));
  Rank<DeviceMemory> rank(c, number);
  int wrong = 0;
  for (uint32_t s = 0; s < kSteps; ++s) {
    Bytes got;
    NMC_CHECK(step_of(m, rank, s, &got));
    if (got != want[s][number]) {
      std::printf("seed %llu step %u rank %u: other bits\n", static_cast<unsigned long long>(seed), s, number);
      wrong = 1;
    }
  }
  NMC_CHECK(nmc_world_barrier(m.world, 60000));
  NMC_CHECK(nmc_ep_destroy(m.ep));
  NMC_CHECK(nmc_world_destroy(m.world));
  return wrong;
}

// Rank 0 waits in its kernel; rank 1, in another process, has none and aborts from the host.
int abort_child(uint32_t number, const char* dir) {
  Case c;
  c.world = 2, c.t_cap = 8, c.hidden = 1024, c.experts = 8, c.top_k = 2, c.masked = false, c.deadline_ms = 30000;
  Member m = join(c, number, dir, "abort", heap_for(c));
  const nmc_ep_config_t config = c.config();
  NMC_CHECK(nmc_ep_create(m.world, &config, &m.ep));
  Rank<DeviceMemory> rank(c, number);
  rank.load(0, 4);
  NMC_CHECK(nmc_world_barrier(m.world, 60000));
  int wrong = 0;
  if (number == 0) {
    const nmc_ep_dispatch_t args = rank.dispatch(0, false);
    const uint64_t began = now_ns();
    NMC_CHECK(nmc_ep_dispatch(m.ep, &args, m.stream));
    CUDA_OK(cudaStreamSynchronize(m.stream));
    const double waited = static_cast<double>(now_ns() - began) * 1e-9;
    const nmc_status_t status = nmc_ep_check(m.ep);
    std::printf("  after %.2f s: %s: %s\n", waited, nmc_status_name(status), nmc_last_error_message());
    wrong = status != NMC_ERR_CANCELLED || waited > 10;
  } else {
    usleep(500000);
    NMC_CHECK(nmc_ep_abort(m.ep));
    wrong = nmc_ep_check(m.ep) != NMC_ERR_CANCELLED;
  }
  NMC_CHECK(nmc_world_barrier(m.world, 60000));
  NMC_CHECK(nmc_ep_destroy(m.ep));
  NMC_CHECK(nmc_world_destroy(m.world));
  return wrong;
}

// ---- steps that overlap ----------------------------------------------------------------------------------------------

constexpr uint32_t kWholeBytes = 227 << 10;  // all that a multiprocessor has: no other block fits beside this one

// The experts of these steps: they leave the rows as they are, and run where products of engines run, on whole multiprocessors.
__global__ void __launch_bounds__(256) whole_experts(const uint4* x, uint4* y, uint64_t vectors) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < vectors; i += uint64_t{gridDim.x} * blockDim.x) y[i] = x[i];
}

Case overlap_case(uint64_t seed) {
  Case c = random_case(seed);
  c.world = 8, c.t_cap = 32, c.hidden = seed % 2 == 0 ? 7168 : 1024, c.top_k = 8, c.experts = 64, c.max_m = 0, c.spill_groups = 0;
  c.repeated = false, c.dispatch = NMC_EP_DISPATCH_SAME, c.deadline_ms = 5000;
  c.sets = 2 + static_cast<uint32_t>(seed % 3);
  return c;
}

// Many steps without the host in between; set s is on stream s % n. Now and then a rank is late with its experts: meanwhile the
// combines of all others wait, and they must leave room for these.
int overlap_child(uint64_t seed, uint32_t number, const char* dir, uint32_t n) {
  Case c = overlap_case(seed);
  c.sets = std::max(c.sets, n);
  constexpr uint32_t kSteps = 48;
  const bool early = seed % 4 == 3;
  const bool straight = seed % 8 == 7;  // early, and no kernel of ours between pack and scatter: placed while the pack ends
  const auto batch_of = [&](uint32_t s) { return s % c.sets + c.sets * (s / c.sets % 2); };  // tokens: two kinds a set, in turn
  std::vector<Bytes> want;
  {
    Group<HostMemory> g(c);
    for (uint32_t b = 0; b < 2 * c.sets; ++b) {
      for (auto& rank : g.ranks) rank.load(b);
      g.before(b, 0);
      for (auto& rank : g.ranks) rank.y.put(rank.grouped.read());
      g.after(b, 0);
      want.push_back(g.ranks[number].result());
    }
  }
  Member m = join(c, number, dir, "overlap", heap_for(c));
  nmc_ep_config_t config = c.config();
  config.blocks = early ? 8 : seed % 4 == 0 ? 0 : 16;
  config.flags = early ? NMC_EP_EARLY : 0;
  NMC_CHECK(nmc_ep_create(m.world, &config, &m.ep));
  CUDA_OK(cudaFuncSetAttribute(whole_experts, cudaFuncAttributeMaxDynamicSharedMemorySize, kWholeBytes));  // loads it, too
  std::vector<Rank<DeviceMemory>> batches;
  std::vector<Buffer<DeviceMemory>> outs;
  for (uint32_t b = 0; b < 2 * c.sets; ++b) {
    batches.emplace_back(c, number);
    batches.back().load(b);
  }
  for (uint32_t s = 0; s < kSteps; ++s) outs.emplace_back(size_t{c.t_cap} * c.y_bytes());
  std::vector<cudaStream_t> streams(n);
  for (cudaStream_t& s : streams) CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  const auto stream_of = [&](uint32_t s) { return streams[s % c.sets % n]; };
  NMC_CHECK(nmc_world_barrier(m.world, 60000));
  nmc_status_t status = NMC_OK;
  for (uint32_t first = 0; first < kSteps && status == NMC_OK; first += n) {
    // All dispatches, then all experts, as engines do that overlap micro-batches.
    for (uint32_t s = first; s < first + n && status == NMC_OK; ++s) {
      const nmc_ep_dispatch_t args = batches[batch_of(s)].dispatch(s, true);
      const nmc_ep_grouped_t where = batches[batch_of(s)].where();
      status = nmc_ep_dispatch(m.ep, &args, stream_of(s));
      if (status == NMC_OK) status = nmc_ep_route_pack(m.ep, s, &where, stream_of(s));
    }
    if (first / n % 8 == 0 && number == (seed + first / n / 8) % c.world) usleep(100000);
    for (uint32_t s = first; s < first + n && status == NMC_OK; ++s) {
      Rank<DeviceMemory>& rank = batches[batch_of(s)];
      const uint64_t vectors = uint64_t{c.groups()} * c.rows() * c.x_bytes() / 16;
      if (!straight) whole_experts<<<16, 256, kWholeBytes, stream_of(s)>>>(rank.grouped.as<uint4>(), rank.y.as<uint4>(), vectors);
      CUDA_OK(cudaGetLastError());
      const void* y = straight ? rank.grouped.get() : rank.y.get();
      status = nmc_ep_scatter(m.ep, s, y, rank.row_of.as<int32_t>(), nullptr, stream_of(s));
      if (status == NMC_OK) status = nmc_ep_combine(m.ep, s, nullptr, outs[s].get(), stream_of(s));
    }
  }
  int wrong = 0;
  if (n > 2) {
    wrong = status != NMC_ERR_LIMIT;
    if (number == 0) std::printf("  %s: %s\n", nmc_status_name(status), nmc_last_error_message());
    NMC_CHECK(nmc_world_barrier(m.world, 60000));  // all were refused, before one ends the group
    NMC_CHECK(nmc_ep_abort(m.ep));
  }
  for (cudaStream_t& stream : streams) CUDA_OK(cudaStreamSynchronize(stream));
  if (n <= 2) {
    if (status == NMC_OK) status = nmc_ep_check(m.ep);
    const unsigned long long which = seed;
    if (status != NMC_OK) {
      std::printf("  seed %llu rank %u: %s: %s\n", which, number, nmc_status_name(status), nmc_last_error_message());
      return 1;
    }
    for (uint32_t s = 0; s < kSteps; ++s) {
      Bytes got = outs[s].read();
      got.resize(want[batch_of(s)].size());
      if (got != want[batch_of(s)]) wrong = 1, std::printf("seed %llu step %u rank %u: other bits\n", which, s, number);
    }
  }
  NMC_CHECK(nmc_world_barrier(m.world, 60000));
  NMC_CHECK(nmc_ep_destroy(m.ep));
  NMC_CHECK(nmc_world_destroy(m.world));
  return wrong;
}

// ---- a rank dies ------------------------------------------------------------------------------------------------------

Case kill_case() {
  Case c;
  c.world = 4, c.t_cap = 16, c.hidden = 1024, c.experts = 16, c.top_k = 4, c.masked = false, c.repeated = false;
  c.deadline_ms = 3000;
  return c;
}

// Steps until a peer is lost; then a new group of those who are left. `doomed` is killed by the parent.
int kill_child(uint32_t number, uint32_t doomed, const char* dir) {
  const Case c = kill_case();
  Member m = join(c, number, dir, "kill", heap_for(c));
  nmc_ep_config_t config = c.config();
  NMC_CHECK(nmc_ep_create(m.world, &config, &m.ep));
  std::printf("rank %u steps\n", number);
  std::fflush(stdout);
  Bytes ignored;
  nmc_status_t status = NMC_OK;
  uint64_t began = now_ns();
  {
    Rank<DeviceMemory> rank(c, number);
    for (uint32_t s = 0; status == NMC_OK; ++s) {
      began = now_ns();
      status = step_of(m, rank, s, &ignored);
    }
  }
  const double waited = static_cast<double>(now_ns() - began) * 1e-9;
  std::printf("rank %u: %s after %.2f s: %s\n", number, nmc_status_name(status), waited, nmc_last_error_message());
  if (status != NMC_ERR_PEER_LOST || waited > 4.0 * static_cast<double>(c.deadline_ms) / 1000) return 1;
  NMC_CHECK(nmc_ep_destroy(m.ep));
  // The others make a group of their own in the same memory.
  Case smaller = c;
  smaller.world = c.world - 1;
  smaller.experts = 12;
  smaller.deadline_ms = 30000;
  config = smaller.config();
  config.members = 0xf & ~(1ull << doomed);
  NMC_CHECK(nmc_ep_create(m.world, &config, &m.ep));
  const uint32_t in_group = number - (number > doomed ? 1 : 0);
  const std::vector<std::vector<Bytes>> want = on_cpu(smaller);
  Rank<DeviceMemory> rank(smaller, in_group);
  for (uint32_t s = 0; s < kSteps; ++s) {
    Bytes got;
    NMC_CHECK(step_of(m, rank, s, &got));
    if (got != want[s][in_group]) return std::printf("rank %u: other bits in the new group\n", number), 1;
  }
  // Nobody leaves while another is still in a step.
  const uint64_t until = now_ns() + 500000000ull;
  while (now_ns() < until) {
  }
  NMC_CHECK(nmc_ep_destroy(m.ep));
  NMC_CHECK(nmc_world_destroy(m.world));
  return 0;
}

// What the MPS control daemon answers; empty if there is none.
std::string mps(const std::string& command) {
  FILE* pipe = popen(("echo " + command + " | nvidia-cuda-mps-control 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return "";
  std::string all;
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr) all += line;
  pclose(pipe);
  return all.find("Cannot find") == std::string::npos ? all : "";
}

// Ends a client of MPS, so that killing it does not break the contexts of the others.
bool terminate_client(pid_t client) {
  const std::string servers = mps("get_server_list");
  size_t at = 0;
  for (size_t end; (end = servers.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string server = servers.substr(at, end - at);
    const std::string said = mps("terminate_client " + server + " " + std::to_string(client));
    if (!said.empty()) std::printf("  terminate_client %s %d: %s\n", server.c_str(), static_cast<int>(client), said.c_str());
  }
  return !servers.empty();
}

// Runs `argv[0] child MODE ...` for each rank; returns how many failed. `doomed` is killed after `after_ms`; `gently`: after
// it was taken from its MPS server.
int run_children(const char* mode, uint64_t seed, uint32_t world, int doomed, uint32_t after_ms, bool gently = false) {
  char folder[] = "/tmp/nmc-ep-gpu-XXXXXX";
  if (mkdtemp(folder) == nullptr) return std::perror("mkdtemp"), 1;
  std::vector<pid_t> children;
  for (uint32_t r = 0; r < world; ++r) {
    const pid_t child = fork();
    if (child == 0) {
      const std::string a = std::to_string(seed), b = std::to_string(r), d = std::to_string(doomed);
      execl("/proc/self/exe", "ep_gpu", "child", mode, a.c_str(), b.c_str(), folder, d.c_str(), nullptr);
      _exit(127);
    }
    children.push_back(child);
  }
  if (doomed >= 0) {
    usleep(after_ms * 1000);
    if (gently && !terminate_client(children[static_cast<size_t>(doomed)])) std::printf("  no MPS server\n");
    kill(children[static_cast<size_t>(doomed)], SIGKILL);
  }
  int failed = 0;
  for (uint32_t r = 0; r < world; ++r) {
    int status = 0;
    waitpid(children[r], &status, 0);
    if (static_cast<int>(r) != doomed && status != 0) ++failed;
  }
  const std::string clean = std::string("rm -rf ") + folder;
  if (std::system(clean.c_str()) != 0) ++failed;
  return failed;
}

// ---- what only the GPU can see ---------------------------------------------------------------------------------------

// Rank 1 has no kernel and aborts from the host.
void aborts(Case c) {
  c.deadline_ms = 20000;
  const auto told = [](nmc_ep_t* e) {
    return nmc_ep_check(e) == NMC_ERR_CANCELLED && std::strstr(nmc_last_error_message(), "rank 1 reports") != nullptr;
  };
  // In a dispatch, the same while a stream is captured, and in a combine.
  for (int kind = 0; kind < 3; ++kind) {
    Group<DeviceMemory> g(c);
    for (auto& rank : g.ranks) rank.load(0, 4);
    cudaStream_t captured;
    CUDA_OK(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
    if (kind == 2) {
      g.each([&](nmc_ep_t* e, Rank<DeviceMemory>& rank) {
        const nmc_ep_dispatch_t args = rank.dispatch(0, false);
        NMC_CHECK(nmc_ep_dispatch(e, &args, g.stream));
      });
      g.wait();
      NMC_CHECK(nmc_ep_combine(g.eps[0], 0, nullptr, g.ranks[0].out.get(), g.stream));
    } else {
      const nmc_ep_dispatch_t args = g.ranks[0].dispatch(0, false);
      NMC_CHECK(nmc_ep_dispatch(g.eps[0], &args, g.stream));
    }
    usleep(50000);
    if (kind == 1) CUDA_OK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
    const uint64_t began = now_ns();
    NMC_CHECK(nmc_ep_abort(g.eps[1]));
    const double call = static_cast<double>(now_ns() - began) * 1e-6;
    if (kind == 1) {
      cudaGraph_t graph;
      CUDA_OK(cudaStreamEndCapture(captured, &graph));
      CUDA_OK(cudaGraphDestroy(graph));
    }
    g.wait();
    const double waited = static_cast<double>(now_ns() - began) * 1e-9;
    std::printf("  the call took %.3f ms, the peer returned after %.3f s\n", call, waited);
    check(waited < 2 && call < 1000 && told(g.eps[0]) && nmc_ep_check(g.eps[1]) == NMC_ERR_CANCELLED,
          kind == 0   ? "an abort from the host ends a peer's dispatch"
          : kind == 1 ? "an abort from the host is legal during a capture"
                      : "an abort from the host ends a peer's combine");
    CUDA_OK(cudaStreamDestroy(captured));
  }
  // A rank that has not heard of it yet stores nothing any more.
  for (const bool abort : {false, true}) {
    Group<DeviceMemory> g(c);
    for (auto& rank : g.ranks) rank.load(0, 8);
    if (abort) NMC_CHECK(nmc_ep_abort(g.eps[1]));
    CUDA_OK(cudaDeviceSynchronize());
    nmc_ep_recv_buffers_t recv = NMC_EP_RECV_BUFFERS_INIT;
    NMC_CHECK(nmc_ep_recv_buffers(g.eps[1], 0, &recv));
    const size_t slots = size_t{c.world} * c.t_cap;
    struct {
      const void* at;
      size_t bytes;
    } const parts[] = {{recv.x, slots * c.x_bytes()},
                       {recv.local_eid, slots * c.top_k * 2},
                       {recv.weights, slots * c.top_k * 4},
                       {recv.records, size_t{c.world} * recv.record_stride}};
    for (const auto& part : parts) DeviceMemory::poison(const_cast<void*>(part.at), part.bytes);
    const nmc_ep_dispatch_t args = g.ranks[0].dispatch(0, false);
    NMC_CHECK(nmc_ep_dispatch_send(g.eps[0], &args, g.stream));
    g.wait();
    size_t changed = 0;
    for (const auto& part : parts) {
      Bytes now(part.bytes);
      DeviceMemory::down(now.data(), part.at, part.bytes);
      for (const unsigned char byte : now) changed += byte != 0xff;
    }
    if (abort) check(changed == 0 && told(g.eps[0]), "a dispatch of a group that is over stores nothing at its peers");
    else check(changed > 0, "and one of a group that works does");
  }
}

// Rows that do not fit are counted by packs of two sets at the same time.
void overflow() {
  Case c;
  c.world = 4, c.t_cap = 16, c.hidden = 1024, c.experts = 8, c.top_k = 4, c.masked = false, c.repeated = false, c.max_m = 2;
  c.sets = 2;
  constexpr uint64_t kRounds = 50;
  std::vector<uint64_t> want(c.world), got(c.world);
  {
    Group<HostMemory> g(c);
    g.step(0, 0, 16);
    for (uint32_t r = 0; r < c.world; ++r) NMC_CHECK(nmc_ep_stats(g.eps[r], nullptr, nullptr, &want[r]));
  }
  Group<DeviceMemory> g(c);
  for (auto& rank : g.ranks) rank.load(0, 16);
  cudaStream_t streams[2];
  for (cudaStream_t& s : streams) CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  for (uint64_t round = 0; round < kRounds; ++round) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      // Both write the same lists: the same tokens come.
      g.each([&](nmc_ep_t* e, Rank<DeviceMemory>& rank) {
        const nmc_ep_dispatch_t args = rank.dispatch(layer, false);
        const nmc_ep_grouped_t where = rank.where(true);
        NMC_CHECK(nmc_ep_dispatch(e, &args, streams[layer]));
        NMC_CHECK(nmc_ep_route_pack(e, layer, &where, streams[layer]));
        NMC_CHECK(nmc_ep_combine(e, layer, nullptr, rank.out.get(), streams[layer]));
      });
    }
  }
  for (cudaStream_t& s : streams) {
    CUDA_OK(cudaStreamSynchronize(s));
    CUDA_OK(cudaStreamDestroy(s));
  }
  bool ok = true;
  for (uint32_t r = 0; r < c.world; ++r) {
    NMC_CHECK(nmc_ep_check(g.eps[r]));
    NMC_CHECK(nmc_ep_stats(g.eps[r], nullptr, nullptr, &got[r]));
    ok = ok && want[r] > 0 && got[r] == 2 * kRounds * want[r];
  }
  std::printf("  rank 0: %llu rows did not fit in one step, %llu in %llu steps\n", static_cast<unsigned long long>(want[0]),
              static_cast<unsigned long long>(got[0]), static_cast<unsigned long long>(2 * kRounds));
  check(ok, "packs of two sets on two streams count every row that does not fit");
}

// Combines of three sets on three streams need room for all of them, unless all ranks are in the launch.
void room() {
  Case c;
  c.world = 8, c.t_cap = 8, c.hidden = 1024, c.experts = 8, c.top_k = 2, c.sets = 3;
  Group<DeviceMemory> g(c);
  for (auto& rank : g.ranks) rank.load(0, 4);
  cudaStream_t streams[3];
  for (cudaStream_t& s : streams) CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  for (uint32_t layer = 0; layer < 3; ++layer) {
    g.each([&](nmc_ep_t* e, Rank<DeviceMemory>& rank) {
      const nmc_ep_dispatch_t args = rank.dispatch(layer, false);
      NMC_CHECK(nmc_ep_dispatch(e, &args, streams[layer]));
    });
  }
  check(nmc_ep_combine(g.eps[0], 0, nullptr, g.ranks[0].out.get(), streams[0]) == NMC_ERR_LIMIT,
        "three sets on three streams without room for all are refused");
  for (uint32_t layer = 0; layer < 3; ++layer) {
    g.each([&](nmc_ep_t* e, Rank<DeviceMemory>& rank) {
      NMC_CHECK(nmc_ep_combine(e, layer, nullptr, rank.out.get(), streams[layer]));
    });
  }
  for (cudaStream_t& s : streams) {
    CUDA_OK(cudaStreamSynchronize(s));
    CUDA_OK(cudaStreamDestroy(s));
  }
  bool ok = true;
  for (nmc_ep_t* e : g.eps) ok = nmc_ep_check(e) == NMC_OK && ok;
  check(ok, "with all ranks in the launch they work");
}

void errors() {
  Case c;
  c.world = 2, c.t_cap = 8, c.hidden = 1024, c.experts = 8, c.top_k = 2, c.deadline_ms = 1000, c.masked = false;
  const auto dispatch_all = [](Group<DeviceMemory>& g, uint32_t layer_of_second, bool count_on_device) {
    NMC_CHECK(nmc_ep_group_begin());
    for (uint32_t r = 0; r < g.c.world; ++r) {
      const nmc_ep_dispatch_t args = g.ranks[r].dispatch(r == 1 ? layer_of_second : 0, count_on_device);
      NMC_CHECK(nmc_ep_dispatch(g.eps[r], &args, g.stream));
    }
    NMC_CHECK(nmc_ep_group_end());
    g.wait();
  };
  const auto both = [](Group<DeviceMemory>& g, nmc_status_t want, const char* name) {
    bool ok = true;
    for (nmc_ep_t* e : g.eps) {
      const nmc_status_t got = nmc_ep_check(e);
      if (got != want) ok = false, std::printf("  %s: %s\n", nmc_status_name(got), nmc_last_error_message());
      // Steps after it do nothing and fail at once.
      ok = nmc_ep_combine(e, 0, nullptr, g.ranks[0].out.get(), g.stream) == want && ok;
    }
    g.wait();
    check(ok, name);
  };
  for (const int64_t expert : {int64_t{8}, int64_t{-2}, int64_t{1} << 40}) {
    Case wide = c;
    wide.idx_64 = true;
    Group<DeviceMemory> g(wide);
    for (auto& rank : g.ranks) rank.load(0, 4);
    Bytes idx = g.ranks[1].tokens.idx;
    std::memcpy(idx.data() + 8 * 5, &expert, 8);
    g.ranks[1].idx.put(idx);
    dispatch_all(g, 0, false);
    both(g, NMC_ERR_INVALID_ARG, "an expert number that does not exist ends the group on all ranks");
  }
  {
    Group<DeviceMemory> g(c);
    for (auto& rank : g.ranks) rank.load(0, 4);
    Bytes many(4);
    many[0] = 9;
    g.ranks[0].count.put(many);
    dispatch_all(g, 0, true);
    both(g, NMC_ERR_LIMIT, "too many tokens in n_tokens_ptr end the group on all ranks");
  }
  {
    Group<DeviceMemory> g(c);
    for (auto& rank : g.ranks) rank.load(0, 4);
    dispatch_all(g, 1, false);
    both(g, NMC_ERR_MISMATCH, "ranks at different layers are told");
  }
  {
    Group<DeviceMemory> g(c);
    for (auto& rank : g.ranks) rank.load(0, 4);
    const nmc_ep_dispatch_t args = g.ranks[0].dispatch(0, false);
    NMC_CHECK(nmc_ep_dispatch(g.eps[0], &args, g.stream));  // rank 1 does not come
    g.wait();
    check(nmc_ep_check(g.eps[0]) == NMC_ERR_PEER_LOST, "a rank that does not come is reported, the context lives");
    std::printf("  %s\n", nmc_last_error_message());
    Group<DeviceMemory> again(c);
    const std::vector<std::vector<Bytes>> want = on_cpu(c);
    check(again.step(0, 0) == want[0], "a new group works afterwards");
  }
  {
    Group<DeviceMemory> g(c);
    for (auto& rank : g.ranks) rank.load(0, 4);
    const nmc_ep_dispatch_t args = g.ranks[0].dispatch(0, false);
    NMC_CHECK(nmc_ep_dispatch(g.eps[0], &args, g.stream));
    NMC_CHECK(nmc_ep_abort(g.eps[0]));
    g.wait();
    check(nmc_ep_check(g.eps[0]) == NMC_ERR_CANCELLED, "an abort ends a kernel that waits");
  }
  aborts(c);
  changed_in_place();
  overflow();
  room();
  {
    Group<DeviceMemory> g(c);
    g.ranks[0].load(0, 4);
    nmc_ep_dispatch_t args = g.ranks[0].dispatch(0, false);
    std::vector<char> host(1 << 16);
    args.x = host.data() + (16 - reinterpret_cast<uintptr_t>(host.data()) % 16) % 16;
    check(nmc_ep_dispatch(g.eps[0], &args, g.stream) == NMC_ERR_INVALID_ARG, "host memory is refused");
    args.x = nullptr;
    check(nmc_ep_dispatch(g.eps[0], &args, g.stream) == NMC_ERR_INVALID_ARG, "NULL is refused");
    check(nmc_ep_check(g.eps[0]) == NMC_OK, "a refused call changes nothing");
    Case eight = c;
    eight.world = 8;
    Group<DeviceMemory> many(eight);
    nmc_ep_config_t config = eight.config();
    config.blocks = 128;
    std::vector<nmc_ep_t*> none(8);
    check(nmc_ep_create_ranks(many.worlds.data(), 8, &config, none.data()) == NMC_ERR_LIMIT && none[0] == nullptr,
          "more blocks than the device holds at once are refused");
  }
}

// ---- whole layers -----------------------------------------------------------------------------------------------------

__device__ float element(uint32_t dtype, const void* rows, uint64_t at) {
  if (dtype == NMC_DTYPE_FP32) return static_cast<const float*>(rows)[at];
  if (dtype == NMC_DTYPE_FP16) return __half2float(static_cast<const __half*>(rows)[at]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(rows)[at]);
}

// The product of an engine, plainly.
__global__ void plain_gemm(nmc_ep_gemm_t g, uint32_t dtype) {
  const uint32_t group = blockIdx.y;
  const uint32_t m = static_cast<uint32_t>(max(0, min(g.masked_m[group], static_cast<int32_t>(g.max_m))));
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < uint64_t{m} * g.n; i += gridDim.x * blockDim.x) {
    const uint64_t row = uint64_t{group} * g.max_m + i / g.n, col = i % g.n;
    const uint64_t b = (static_cast<uint64_t>(g.group_expert[group]) * g.n + col) * g.k;
    float sum = 0;
    for (uint32_t k = 0; k < g.k; ++k) sum += element(dtype, g.a, row * g.k + k) * element(dtype, g.b, b + k);
    if (dtype == NMC_DTYPE_FP32) static_cast<float*>(g.c)[row * g.n + col] = sum;
    else if (dtype == NMC_DTYPE_FP16) static_cast<__half*>(g.c)[row * g.n + col] = __float2half_rn(sum);
    else static_cast<__nv_bfloat16*>(g.c)[row * g.n + col] = __float2bfloat16_rn(sum);
  }
}

struct Callback {
  uint32_t dtype = 0;
  nmc_status_t fail = NMC_OK;
  static int32_t run(void* user, const nmc_ep_gemm_t* g, void* stream) {
    const Callback& self = *static_cast<const Callback*>(user);
    if (self.fail != NMC_OK) return self.fail;
    plain_gemm<<<dim3(32, g->groups), 128, 0, static_cast<cudaStream_t>(stream)>>>(*g, self.dtype);
    return cudaGetLastError() == cudaSuccess ? NMC_OK : NMC_ERR_CUDA;
  }
};

// `callback`: 0 built in, 1 the program's, 2 the program's, which fails on rank 1.
void forward(uint32_t dtype, int callback) {
  Case c;
  c.world = 2, c.t_cap = 16, c.hidden = 512, c.experts = 8, c.top_k = 4, c.repeated = false, c.tiny = false;
  c.dtype = dtype;
  c.deadline_ms = 20000;
  constexpr uint32_t kInner = 256;
  Group<DeviceMemory> g(c);
  nmc_ep_bytes_t bytes = NMC_EP_BYTES_INIT;
  const nmc_ep_config_t config = c.config();
  NMC_CHECK(nmc_ep_bytes_needed(&config, c.world, kInner, &bytes));
  Random random(7);
  std::normal_distribution<float> normal;
  const auto matrix = [&](size_t n) {
    Bytes all(n * element_bytes(dtype));
    for (size_t i = 0; i < n; ++i) put(dtype, all.data(), i, normal(random) * 0.05f);
    return all;
  };
  std::vector<Bytes> w13, w2;  // by expert
  for (uint32_t e = 0; e < c.experts; ++e) {
    w13.push_back(matrix(2 * kInner * c.hidden));
    w2.push_back(matrix(kInner * c.hidden));
  }
  std::vector<Buffer<DeviceMemory>> matrices13, matrices2, workspaces;
  std::vector<Callback> callbacks(c.world);
  for (uint32_t r = 0; r < c.world; ++r) {
    Bytes a, b;
    for (uint32_t e = r * c.n_local(); e < (r + 1) * c.n_local(); ++e) {
      a.insert(a.end(), w13[e].begin(), w13[e].end());
      b.insert(b.end(), w2[e].begin(), w2[e].end());
    }
    matrices13.emplace_back(a.size());
    matrices13.back().put(a);
    matrices2.emplace_back(b.size());
    matrices2.back().put(b);
    workspaces.emplace_back(bytes.workspace);
    callbacks[r].dtype = dtype;
    if (callback == 2 && r == 1) callbacks[r].fail = NMC_ERR_NO_MEMORY;
  }
  cudaFuncAttributes loaded;  // now: loading it later may wait for a kernel that waits for another rank
  CUDA_OK(cudaFuncGetAttributes(&loaded, plain_gemm));
  // Ranks wait for each other: a stream each.
  std::vector<cudaStream_t> streams(c.world);
  for (cudaStream_t& s : streams) CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  // Before the first step: what comes after it must not wait for the device.
  for (uint32_t r = 0; r < c.world; ++r) g.ranks[r].load(0, 13 + static_cast<int>(r));
  for (uint32_t r = 0; r < c.world; ++r) {
    const nmc_ep_dispatch_t args = g.ranks[r].dispatch(0, false);
    nmc_ep_moe_t moe = NMC_EP_MOE_INIT;
    moe.w13 = matrices13[r].get();
    moe.w2 = matrices2[r].get();
    moe.workspace = workspaces[r].get();
    moe.workspace_bytes = bytes.workspace;
    moe.out = g.ranks[r].out.get();
    moe.inner = kInner;
    moe.gemm = callback != 0 ? Callback::run : nullptr;
    moe.gemm_user = &callbacks[r];
    const nmc_status_t status = nmc_ep_moe_forward(g.eps[r], &args, &moe, streams[r]);
    if (callback == 2 && r == 1) check(status == NMC_ERR_NO_MEMORY, "what a callback returns is passed on");
    else NMC_CHECK(status);
  }
  const uint64_t began = now_ns();
  for (cudaStream_t& s : streams) CUDA_OK(cudaStreamSynchronize(s));
  if (callback == 2) {
    bool told = static_cast<double>(now_ns() - began) * 1e-9 < 5;
    for (nmc_ep_t* e : g.eps) told = nmc_ep_check(e) == NMC_ERR_CANCELLED && told;
    check(told, "a callback that fails ends the group at once");
    for (cudaStream_t& s : streams) CUDA_OK(cudaStreamDestroy(s));
    return;
  }
  double difference = 0, size = 0;
  for (auto& rank : g.ranks) {
    const Bytes out = rank.out.read();
    for (uint32_t t = 0; t < rank.tokens.n; ++t) {
      std::vector<double> want(c.hidden, 0);
      for (uint32_t k = 0; k < c.top_k; ++k) {
        const int64_t e = rank.tokens.experts[t * c.top_k + k];
        if (e < 0) continue;
        std::vector<double> act(kInner);
        for (uint32_t i = 0; i < kInner; ++i) {
          double gate = 0, up = 0;
          for (uint32_t h = 0; h < c.hidden; ++h) {
            const double x = get(c.dtype, rank.tokens.x.data(), size_t{t} * c.hidden + h);
            gate += x * get(dtype, w13[static_cast<size_t>(e)].data(), i * c.hidden + h);
            up += x * get(dtype, w13[static_cast<size_t>(e)].data(), (kInner + i) * c.hidden + h);
          }
          act[i] = gate / (1 + std::exp(-gate)) * up;
        }
        for (uint32_t h = 0; h < c.hidden; ++h) {
          double y = 0;
          for (uint32_t i = 0; i < kInner; ++i) y += act[i] * get(dtype, w2[static_cast<size_t>(e)].data(), h * kInner + i);
          want[h] += rank.tokens.weights[t * c.top_k + k] * y;
        }
      }
      for (uint32_t h = 0; h < c.hidden; ++h) {
        const double got = get(c.dtype, out.data(), size_t{t} * c.hidden + h);
        difference += (got - want[h]) * (got - want[h]);
        size += want[h] * want[h];
      }
    }
  }
  std::printf("dtype %u: a whole layer is off by %.2e\n", dtype, std::sqrt(difference / size));
  check(std::sqrt(difference / size) < (dtype == NMC_DTYPE_FP32 ? 1e-5 : 1e-2),
        callback != 0 ? "a whole layer with a callback is right" : "a whole layer with the built-in product is right");
  for (nmc_ep_t* e : g.eps) NMC_CHECK(nmc_ep_check(e));
  for (cudaStream_t& s : streams) CUDA_OK(cudaStreamDestroy(s));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const auto number = [&](int i, uint64_t otherwise) { return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise; };
  if (mode == "child" && argc > 6) {
    const uint32_t rank = static_cast<uint32_t>(number(4, 0));
    if (std::strncmp(argv[2], "procs", 5) == 0) return proc_child(number(3, 1), rank, argv[5], argv[2] + 5);
    if (std::strcmp(argv[2], "abort") == 0) return abort_child(rank, argv[5]);
    if (std::strncmp(argv[2], "overlap", 7) == 0) {
      return overlap_child(number(3, 1), rank, argv[5], static_cast<uint32_t>(std::atoi(argv[2] + 7)));
    }
    return kill_child(rank, static_cast<uint32_t>(number(6, 0)), argv[5]);
  }
  if (mode == "procs") {  // without a context in the parent
    for (uint64_t seed = number(3, 1); seed < number(3, 1) + number(2, 4); ++seed) {
      const std::string how = std::string("procs") + (argc > 4 ? argv[4] : "");
      if (how.find("early") != std::string::npos && mps("get_default_active_thread_percentage").empty()) {
        return std::printf("skipped: no MPS\n"), 77;
      }
      check(run_children(how.c_str(), seed, wide_case(seed).world, -1, 0) == 0, "processes give the bits of the CPU");
    }
  } else if (mode == "overlap") {
    const std::string how = mode + std::to_string(number(2, 2));
    for (uint64_t seed = number(4, 1); seed < number(4, 1) + number(3, 3); ++seed) {
      check(run_children(how.c_str(), seed, 8, -1, 0) == 0,
            number(2, 2) > 2 ? "more steps at once than there is room for are refused" : "steps of two sets at once give the bits of the CPU");
    }
  } else if (mode == "abort") {
    check(run_children("abort", 1, 2, -1, 0) == 0, "an abort reaches a kernel of another process");
  } else if (mode == "kill" || mode == "kill_mps") {
    const bool gently = mode == "kill_mps";
    if (gently && mps("get_default_active_thread_percentage").empty()) return std::printf("skipped: no MPS\n"), 77;
    for (uint64_t round = 0; round < number(2, 2); ++round) {
      const int doomed = static_cast<int>(round % 4);
      check(run_children("kill", 1, 4, doomed, 6000 + 137 * static_cast<uint32_t>(round % 8), gently) == 0,
            "the others report the loss, and go on in a new group");
    }
  } else {
    skip_without_gpu();
    if (mode == "same") same(number(3, 1), number(2, 12), false);
    else if (mode == "order") same(number(3, 1), 1, true);
    else if (mode == "fused") fused(number(2, 40));
    else if (mode == "errors") errors();
    else if (mode == "seeds") seeds(number(4, 1), number(2, 20), number(3, 3));
    else if (mode == "prefill") prefill();
    else if (mode == "chain") chain(number(3, 1), number(2, 8));
    else if (mode == "forward") {
      forward(NMC_DTYPE_BF16, 0);
      for (const uint32_t dtype : {NMC_DTYPE_BF16, NMC_DTYPE_FP16, NMC_DTYPE_FP32}) forward(dtype, 1);
      forward(NMC_DTYPE_BF16, 2);
    } else return std::fprintf(stderr, "usage: ep_gpu same|seeds|chain|prefill|procs|overlap|fused|errors|abort|forward|kill|kill_mps|order\n"), 2;
  }
  return failed_checks != 0;
}
