// Speed of the expert-parallel transport on one GPU: `ep_bench [--json] [--procs] [--quick]`.
// Without --procs 8 ranks of this process go out in one launch a step; with it 8 processes take part (start MPS first, or
// the GPU gives each a turn of milliseconds). Every figure is printed beside the same bytes copied by plain kernels in
// the same run. A graph of 58 layers; median of 100 replays; "queued" launches 10 graphs back to back.
#include <cuda_bf16.h>
#include <nanomc.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "../../ctest/support/random.hpp"
#include "../../ctest/gpu/check.h"

namespace {

constexpr uint32_t kWorld = 8, kExperts = 256, kTopK = 8, kHidden = 7168, kLayers = 58;
bool json = false, shared_gpu = false;

// ---- the same bytes without a protocol ------------------------------------------------------------------------------

struct Move {
  const char* from;
  uint32_t n;      // targets of one source, or sources of one target
  uint32_t first;  // in the list of addresses
};

// Copies each row to its targets. One warp has 2 KiB of a row.
__global__ void __launch_bounds__(448) copy_rows(const Move* moves, char* const* to, uint32_t n, uint32_t row_bytes) {
  const uint32_t lane = threadIdx.x & 31, vectors = row_bytes / 16, parts = (vectors + 127) / 128;
  for (uint32_t unit = blockIdx.x * 14 + threadIdx.x / 32; unit < n * parts; unit += gridDim.x * 14) {
    const Move m = moves[unit / parts];
    const uint32_t first = unit % parts * 128;
    uint4 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t at = first + lane + 32 * i;
      if (at < vectors) v[i] = reinterpret_cast<const uint4*>(m.from)[at];
    }
    for (uint32_t j = 0; j < m.n; ++j) {
      uint4* out = reinterpret_cast<uint4*>(to[m.first + j]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t at = first + lane + 32 * i;
        if (at < vectors) out[at] = v[i];
      }
    }
  }
}

// Reads each target's sources and stores one row. (Sums the bits: what is added does not change the time.)
__global__ void __launch_bounds__(448) sum_rows(const Move* moves, char* const* from, uint32_t n, uint32_t row_bytes) {
  const uint32_t lane = threadIdx.x & 31, vectors = row_bytes / 16, parts = (vectors + 63) / 64;
  for (uint32_t unit = blockIdx.x * 14 + threadIdx.x / 32; unit < n * parts; unit += gridDim.x * 14) {
    const Move m = moves[unit / parts];
    const uint32_t first = unit % parts * 64;
    uint4 v[8][2], sum[2] = {};
    for (uint32_t base = 0; base < m.n; base += 8) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (base + j >= m.n) break;
        const uint4* in = reinterpret_cast<const uint4*>(from[m.first + base + j]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (first + lane + 32 * i < vectors) v[j][i] = in[first + lane + 32 * i];
        }
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (base + j >= m.n) break;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          sum[i].x += v[j][i].x;
          sum[i].y += v[j][i].y;
          sum[i].z += v[j][i].z;
          sum[i].w += v[j][i].w;
        }
      }
    }
    uint4* out = reinterpret_cast<uint4*>(const_cast<char*>(m.from));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (first + lane + 32 * i < vectors) out[first + lane + 32 * i] = sum[i];
    }
  }
}

// ---- a workload -----------------------------------------------------------------------------------------------------

struct Workload {
  const char* name;
  uint32_t t_cap;
  std::vector<uint32_t> tokens;  // by rank
  int routing;                   // 0 uniform, 1 Zipf, 2 hot
  uint32_t sets;
  uint32_t dispatch;  // NMC_EP_DISPATCH_*
  bool full;          // with pack and scatter
  bool lists;         // pack writes the lists alone
};

std::vector<int32_t> routes(const Workload& w, uint32_t rank) {
  Random random(1000 + rank);
  std::vector<double> weight(kExperts, 1.0);
  if (w.routing == 1) {
    for (uint32_t e = 0; e < kExperts; ++e) weight[e * 97 % kExperts] = 1.0 / (1.0 + e);
  } else if (w.routing == 2) {
    for (uint32_t e = 0; e < kExperts / kWorld; ++e) weight[e] = 50;
  }
  std::vector<int32_t> idx;
  for (uint32_t t = 0; t < w.tokens[rank]; ++t) {
    std::vector<double> left = weight;
    for (uint32_t k = 0; k < kTopK; ++k) {
      std::discrete_distribution<int> pick(left.begin(), left.end());
      const int e = pick(random);
      left[e] = 0;
      idx.push_back(e);
    }
  }
  return idx;
}

struct Buffers {
  char *x = nullptr, *out = nullptr, *grouped = nullptr, *y = nullptr, *scales = nullptr;
  int32_t *idx = nullptr, *masked_m = nullptr, *group_expert = nullptr, *row_of = nullptr, *row_index = nullptr;
  float* weight = nullptr;
};

template <typename T>
T* device_bytes(size_t bytes) {
  void* p = nullptr;
  CUDA_OK(cudaMalloc(&p, std::max<size_t>(bytes, 256)));
  CUDA_OK(cudaMemset(p, 1, std::max<size_t>(bytes, 256)));
  return static_cast<T*>(p);
}

nmc_ep_config_t config_of(const Workload& w) {
  nmc_ep_config_t config = NMC_EP_CONFIG_INIT;
  config.t_cap = w.t_cap;
  config.hidden = kHidden;
  config.top_k = kTopK;
  config.experts = kExperts;
  config.buffer_sets = w.sets;
  config.dispatch = w.dispatch;
  config.deadline_ms = 20000;
  if (shared_gpu) {  // what follows a dispatch here is a combine of the library, which leaves room
    config.flags = NMC_EP_EARLY;
    config.blocks = 16;
  }
  return config;
}

Buffers buffers_of(const Workload& w, uint32_t rank) {
  Buffers b;
  const nmc_ep_config_t config = config_of(w);
  nmc_ep_bytes_t bytes = NMC_EP_BYTES_INIT;
  NMC_CHECK(nmc_ep_bytes_needed(&config, kWorld, 0, &bytes));
  const size_t rows = std::max<uint32_t>(w.tokens[rank], 1);
  b.x = device_bytes<char>(rows * kHidden * 2);
  b.out = device_bytes<char>(rows * kHidden * 2);
  b.scales = device_bytes<char>(rows * kHidden / 128 * 4);
  b.weight = device_bytes<float>(rows * kTopK * 4);
  b.idx = device_bytes<int32_t>(rows * kTopK * 4);
  const std::vector<int32_t> idx = routes(w, rank);
  CUDA_OK(cudaMemcpy(b.idx, idx.data(), idx.size() * 4, cudaMemcpyHostToDevice));
  if (w.full) {
    b.grouped = w.lists ? nullptr : device_bytes<char>(bytes.grouped_x);
    b.y = device_bytes<char>(bytes.grouped_y);
    b.masked_m = device_bytes<int32_t>(bytes.masked_m);
    b.group_expert = device_bytes<int32_t>(bytes.masked_m);
    b.row_of = device_bytes<int32_t>(bytes.row_of);
    b.row_index = device_bytes<int32_t>(bytes.row_index);
  }
  return b;
}

void free_buffers(Buffers& b) {
  for (void* p : {static_cast<void*>(b.x), static_cast<void*>(b.out), static_cast<void*>(b.grouped),
                  static_cast<void*>(b.y), static_cast<void*>(b.scales), static_cast<void*>(b.idx),
                  static_cast<void*>(b.masked_m), static_cast<void*>(b.group_expert), static_cast<void*>(b.row_of),
                  static_cast<void*>(b.row_index), static_cast<void*>(b.weight)}) {
    if (p != nullptr) CUDA_OK(cudaFree(p));
  }
}

// ---- timing ---------------------------------------------------------------------------------------------------------

struct Times {
  double median = 0, p99 = 0, queued = 0;  // us a layer
};

template <typename Record>
cudaGraphExec_t capture(cudaStream_t stream, const Record& record) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  record();
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_OK(cudaGraphDestroy(graph));
  return exec;
}

// `meet` brings all ranks together before each replay.
template <typename Meet>
Times time_graph(cudaGraphExec_t graph, cudaStream_t stream, const Meet& meet) {
  cudaEvent_t begin, end;
  CUDA_OK(cudaEventCreate(&begin));
  CUDA_OK(cudaEventCreate(&end));
  for (int i = 0; i < 5; ++i) CUDA_OK(cudaGraphLaunch(graph, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  std::vector<double> all;
  for (int i = 0; i < 100; ++i) {
    meet();
    CUDA_OK(cudaEventRecord(begin, stream));
    CUDA_OK(cudaGraphLaunch(graph, stream));
    CUDA_OK(cudaEventRecord(end, stream));
    CUDA_OK(cudaEventSynchronize(end));
    float ms = 0;
    CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
    all.push_back(ms * 1000.0 / kLayers);
  }
  std::vector<double> queued;
  for (int i = 0; i < 10; ++i) {
    meet();
    CUDA_OK(cudaEventRecord(begin, stream));
    for (int j = 0; j < 10; ++j) CUDA_OK(cudaGraphLaunch(graph, stream));
    CUDA_OK(cudaEventRecord(end, stream));
    CUDA_OK(cudaEventSynchronize(end));
    float ms = 0;
    CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
    queued.push_back(ms * 100.0 / kLayers);
  }
  std::sort(all.begin(), all.end());
  std::sort(queued.begin(), queued.end());
  CUDA_OK(cudaEventDestroy(begin));
  CUDA_OK(cudaEventDestroy(end));
  CUDA_OK(cudaGraphExecDestroy(graph));
  return {all[all.size() / 2], all[all.size() - 2], queued[queued.size() / 2]};
}

// The copies of all ranks, one launch each.
Times floor_of(const Workload& w, cudaStream_t stream) {
  std::vector<Move> send, back, pack, scatter;
  std::vector<char*> to, from, rows, parts;
  std::vector<Buffers> b;
  const size_t wire = w.dispatch == NMC_EP_DISPATCH_SAME ? kHidden * 2 : kHidden, row = kHidden * 2;
  const size_t y_at = wire == row ? 0 : kWorld * w.t_cap * wire;  // rows go back from where they came
  const size_t region = y_at + kWorld * w.t_cap * row;
  std::vector<char*> heap;
  std::vector<uint32_t> in_expert(kExperts, 0);
  for (uint32_t r = 0; r < kWorld; ++r) {
    heap.push_back(device_bytes<char>(region));
    b.push_back(buffers_of(w, r));
  }
  for (uint32_t r = 0; r < kWorld; ++r) {
    const std::vector<int32_t> idx = routes(w, r);
    for (uint32_t t = 0; t < w.tokens[r]; ++t) {
      uint32_t targets = 0;
      for (uint32_t k = 0; k < kTopK; ++k) targets |= 1u << (idx[t * kTopK + k] / (kExperts / kWorld));
      const Move move{b[r].x + t * row, static_cast<uint32_t>(__builtin_popcount(targets)), static_cast<uint32_t>(to.size())};
      send.push_back(move);
      back.push_back({b[r].out + t * row, move.n, move.first});
      for (uint32_t d = 0; d < kWorld; ++d) {
        if ((targets >> d & 1) == 0) continue;
        const size_t slot = r * w.t_cap + t;
        to.push_back(heap[d] + slot * wire);
        from.push_back(heap[d] + y_at + slot * row);
        if (!w.full) continue;
        Move packed{heap[d] + slot * wire, 0, static_cast<uint32_t>(rows.size())};
        for (uint32_t k = 0; k < kTopK; ++k) {
          const uint32_t e = static_cast<uint32_t>(idx[t * kTopK + k]);
          if (e / (kExperts / kWorld) != d) continue;
          const size_t at = (static_cast<size_t>(e % (kExperts / kWorld)) * kWorld * w.t_cap + in_expert[e]++);
          if (!w.lists) rows.push_back(b[d].grouped + at * wire);
          parts.push_back(b[d].y + at * row);
          packed.n += 1;
        }
        if (!w.lists) pack.push_back(packed);
        scatter.push_back({heap[d] + y_at + slot * row, packed.n, static_cast<uint32_t>(parts.size()) - packed.n});
      }
    }
  }
  const auto moves = [](const std::vector<Move>& v) {
    Move* p = device_bytes<Move>(v.size() * sizeof(Move));
    CUDA_OK(cudaMemcpy(p, v.data(), v.size() * sizeof(Move), cudaMemcpyHostToDevice));
    return p;
  };
  const auto list = [](const std::vector<char*>& v) {
    char** p = device_bytes<char*>(v.size() * sizeof(char*));
    CUDA_OK(cudaMemcpy(p, v.data(), v.size() * sizeof(char*), cudaMemcpyHostToDevice));
    return p;
  };
  Move *d_send = moves(send), *d_back = moves(back), *d_pack = moves(pack), *d_scatter = moves(scatter);
  char **d_to = list(to), **d_from = list(from), **d_rows = list(rows), **d_parts = list(parts);
  const auto n = [](const std::vector<Move>& v) { return static_cast<uint32_t>(v.size()); };
  cudaGraphExec_t graph = capture(stream, [&] {
    for (uint32_t l = 0; l < kLayers; ++l) {
      copy_rows<<<128, 448, 0, stream>>>(d_send, d_to, n(send), static_cast<uint32_t>(wire));
      if (w.full && !w.lists) copy_rows<<<256, 448, 0, stream>>>(d_pack, d_rows, n(pack), static_cast<uint32_t>(wire));
      if (w.full) sum_rows<<<256, 448, 0, stream>>>(d_scatter, d_parts, n(scatter), static_cast<uint32_t>(row));
      sum_rows<<<128, 448, 0, stream>>>(d_back, d_from, n(back), static_cast<uint32_t>(row));
    }
  });
  const Times times = time_graph(graph, stream, [] {});
  for (uint32_t r = 0; r < kWorld; ++r) {
    CUDA_OK(cudaFree(heap[r]));
    free_buffers(b[r]);
  }
  for (void* p : {static_cast<void*>(d_send), static_cast<void*>(d_back), static_cast<void*>(d_pack),
                  static_cast<void*>(d_scatter), static_cast<void*>(d_to), static_cast<void*>(d_from),
                  static_cast<void*>(d_rows), static_cast<void*>(d_parts)}) {
    CUDA_OK(cudaFree(p));
  }
  return times;
}

// One step of a layer for one rank.
void layer_of(nmc_ep_t* ep, cudaStream_t stream, uint32_t layer, const Workload& w, const Buffers& b, uint32_t tokens, int step) {
  if (step == 0) {
    nmc_ep_dispatch_t args = NMC_EP_DISPATCH_INIT;
    args.x = b.x;
    args.scales = reinterpret_cast<const float*>(b.scales);
    args.topk_idx = b.idx;
    args.topk_w = b.weight;
    args.n_tokens = tokens;
    args.layer = layer;
    NMC_CHECK(nmc_ep_dispatch(ep, &args, stream));
  } else if (step == 1 && w.full) {
    nmc_ep_grouped_t grouped = NMC_EP_GROUPED_INIT;
    grouped.x = b.grouped;
    grouped.masked_m = b.masked_m;
    grouped.group_expert = b.group_expert;
    grouped.row_of = b.row_of;
    grouped.row_index = b.row_index;
    NMC_CHECK(nmc_ep_route_pack(ep, layer, &grouped, stream));
  } else if (step == 2 && w.full) {
    NMC_CHECK(nmc_ep_scatter(ep, layer, b.y, b.row_of, nullptr, stream));
  } else if (step == 3) {
    NMC_CHECK(nmc_ep_combine(ep, layer, nullptr, b.out, stream));
  }
}

void report(const std::string& name, const Times& ours, const Times& floor, const char* baseline) {
  const auto line = [&](const std::string& what, double value, double base) {
    if (json) {
      std::printf("{\"name\":\"%s\",\"value\":%.3f,\"unit\":\"us/layer\",\"baseline_name\":\"%s\",\"baseline\":%.3f,\"ratio\":%.3f}\n",
                  what.c_str(), value, baseline, base, value / base);
    } else {
      std::printf("%-44s %8.2f us/layer  %-12s %8.2f  ratio %5.2f\n", what.c_str(), value, baseline, base, value / base);
    }
  };
  line(name, ours.median, floor.median);
  if (!json) std::printf("%-44s %8.2f us/layer\n", (name + ".p99").c_str(), ours.p99);
  line(name + ".queued", ours.queued, floor.queued);
  std::fflush(stdout);
}

nmc_world_config_t world_config(const Workload& w) {
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.world_size = kWorld;
  config.heap_kind = NMC_HEAP_CUDA;
  config.device = 0;
  const nmc_ep_config_t ep = config_of(w);
  nmc_ep_bytes_t bytes = NMC_EP_BYTES_INIT;
  NMC_CHECK(nmc_ep_bytes_needed(&ep, kWorld, 0, &bytes));
  config.heap_bytes = (bytes.transport + (2 << 20) - 1) >> 21 << 21;
  return config;
}

Times in_process(const Workload& w, cudaStream_t stream) {
  const nmc_world_config_t config = world_config(w);
  const nmc_ep_config_t ep_config = config_of(w);
  std::vector<nmc_world_t*> worlds(kWorld);
  std::vector<nmc_ep_t*> eps(kWorld);
  NMC_CHECK(nmc_world_create_local(&config, worlds.data()));
  NMC_CHECK(nmc_ep_create_ranks(worlds.data(), kWorld, &ep_config, eps.data()));
  std::vector<Buffers> b;
  for (uint32_t r = 0; r < kWorld; ++r) b.push_back(buffers_of(w, r));
  cudaGraphExec_t graph = capture(stream, [&] {
    for (uint32_t l = 0; l < kLayers; ++l) {
      NMC_CHECK(nmc_ep_group_begin());
      for (int step = 0; step < 4; ++step) {
        for (uint32_t r = 0; r < kWorld; ++r) layer_of(eps[r], stream, l, w, b[r], w.tokens[r], step);
      }
      NMC_CHECK(nmc_ep_group_end());
    }
  });
  const Times times = time_graph(graph, stream, [] {});
  for (uint32_t r = 0; r < kWorld; ++r) NMC_CHECK(nmc_ep_check(eps[r]));
  for (uint32_t r = 0; r < kWorld; ++r) NMC_CHECK(nmc_ep_destroy(eps[r]));
  for (uint32_t r = 0; r < kWorld; ++r) {
    NMC_CHECK(nmc_world_destroy(worlds[r]));
    free_buffers(b[r]);
  }
  return times;
}

// One rank of a world of processes; rank 0 reports.
int process(const std::vector<Workload>& workloads, uint32_t rank, const char* dir) {
  CUDA_OK(cudaSetDevice(0));
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (size_t i = 0; i < workloads.size(); ++i) {
    const Workload& w = workloads[i];
    nmc_world_config_t config = world_config(w);
    const std::string name = "ep" + std::to_string(i);
    config.name = {name.data(), name.size()};
    config.dir = {dir, std::strlen(dir)};
    config.rank = static_cast<int32_t>(rank);
    config.join_timeout_ms = 60000;
    nmc_world_t* world = nullptr;
    nmc_ep_t* ep = nullptr;
    NMC_CHECK(nmc_world_join(&config, &world));
    const nmc_ep_config_t ep_config = config_of(w);
    Times floor;
    if (rank == 0) floor = floor_of(w, stream);
    NMC_CHECK(nmc_world_barrier(world, 60000));
    NMC_CHECK(nmc_ep_create(world, &ep_config, &ep));
    Buffers b = buffers_of(w, rank);
    cudaGraphExec_t graph = capture(stream, [&] {
      for (uint32_t l = 0; l < kLayers; ++l) {
        for (int step = 0; step < 4; ++step) layer_of(ep, stream, l, w, b, w.tokens[rank], step);
      }
    });
    NMC_CHECK(nmc_world_barrier(world, 60000));
    const Times times = time_graph(graph, stream, [&] { NMC_CHECK(nmc_world_barrier(world, 60000)); });
    NMC_CHECK(nmc_ep_check(ep));
    if (rank == 0) report(std::string("ep.") + w.name + ".mps8", times, floor, "copy floor");
    NMC_CHECK(nmc_world_barrier(world, 60000));
    NMC_CHECK(nmc_ep_destroy(ep));
    NMC_CHECK(nmc_world_destroy(world));
    free_buffers(b);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bool procs = false, quick = false;
  int rank = -1;
  const char* dir = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--json") json = true;
    else if (arg == "--procs") procs = true;
    else if (arg == "--quick") quick = true;
    else if (arg == "--rank" && i + 2 < argc) rank = std::atoi(argv[i + 1]), dir = argv[i + 2], i += 2;
    else return std::fprintf(stderr, "usage: ep_bench [--json] [--procs] [--quick]\n"), 2;
  }
  const std::vector<uint32_t> even(kWorld, 32), large(kWorld, 128), uneven = {32, 0, 17, 32, 1, 32, 0, 8};
  std::vector<Workload> workloads = {{"dispatch_combine.T32", 32, even, 0, 1, 0, false, false},
                                     {"full.T32", 32, even, 0, 1, 0, true, false}};
  if (!quick) {
    workloads.push_back({"dispatch_combine.T32.cold", 32, even, 0, 4, 0, false, false});
    workloads.push_back({"full_lists.T32", 32, even, 0, 1, 0, true, true});
    workloads.push_back({"dispatch_combine.uneven", 32, uneven, 0, 1, 0, false, false});
    workloads.push_back({"dispatch_combine.zipf", 32, even, 1, 1, 0, false, false});
    workloads.push_back({"dispatch_combine.hot", 32, even, 2, 1, 0, false, false});
    workloads.push_back({"dispatch_combine.T128", 128, large, 0, 1, 0, false, false});
    workloads.push_back({"fp8.T128", 128, large, 0, 1, NMC_EP_DISPATCH_FP8, false, false});
    workloads.push_back({"fp8_given.T128", 128, large, 0, 1, NMC_EP_DISPATCH_FP8_GIVEN, false, false});
  }
  shared_gpu = rank >= 0;
  if (rank >= 0) return process(workloads, static_cast<uint32_t>(rank), dir);
  if (procs) {
    char folder[] = "/tmp/nmc-ep-bench-XXXXXX";
    if (mkdtemp(folder) == nullptr) return std::perror("mkdtemp"), 1;
    std::vector<pid_t> children;
    for (uint32_t r = 0; r < kWorld; ++r) {
      const pid_t child = fork();
      if (child == 0) {
        const std::string number = std::to_string(r);
        std::vector<const char*> args = {argv[0], "--rank", number.c_str(), folder};
        if (json) args.push_back("--json");
        if (quick) args.push_back("--quick");
        args.push_back(nullptr);
        execv("/proc/self/exe", const_cast<char* const*>(args.data()));
        _exit(127);
      }
      children.push_back(child);
    }
    int failed = 0;
    for (const pid_t child : children) {
      int status = 0;
      waitpid(child, &status, 0);
      failed |= status;
    }
    rmdir(folder);
    return failed != 0;
  }
  skip_without_gpu();
  CUDA_OK(cudaSetDevice(0));
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  double bf16 = 0, bf16_queued = 0;
  for (const Workload& w : workloads) {
    const Times floor = floor_of(w, stream);
    const Times ours = in_process(w, stream);
    report(std::string("ep.") + w.name + ".inproc8", ours, floor, "copy floor");
    if (std::string(w.name) == "dispatch_combine.T128") bf16 = ours.median, bf16_queued = ours.queued;
    if (std::string(w.name) == "fp8.T128") report("ep.fp8.T128.vs_bf16", ours, {bf16, 0, bf16_queued}, "bf16");
  }
  return 0;
}
