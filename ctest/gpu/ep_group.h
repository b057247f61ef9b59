// What the EP programs share: all ranks of a case in one process, on either backend, and a comparison of what they give.
#ifndef NMC_CTEST_GPU_EP_GROUP_H
#define NMC_CTEST_GPU_EP_GROUP_H

#include "../ep/ep_check.hpp"
#include "check.h"

namespace ep {

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

inline Case wide_case(uint64_t seed) {
  Case c = random_case(seed);
  if (seed % 4 == 0) {  // the shape of a real layer
    static const uint32_t hidden[] = {5120, 7168, 2048, 4096, 6144, 8192};
    c.world = 8, c.t_cap = 32, c.hidden = hidden[seed / 4 % 6], c.top_k = 8, c.experts = 64, c.max_m = 0, c.spill_groups = 0;
    c.repeated = false;
  }
  return c;
}

inline std::vector<std::vector<Bytes>> on_cpu(const Case& c, uint32_t steps = kSteps, int fixed = -1) {
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

}  // namespace ep

#endif
