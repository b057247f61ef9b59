// Speed of the expert-parallel transport on one GPU: `ep_bench [--json] [--procs] [--quick] [--only TEXT]`.
// Without --procs 8 ranks of this process go out in one launch a step; with it 8 processes take part (start MPS first, or
// the GPU gives each a turn of milliseconds). Every figure is printed beside the same bytes copied by the fastest plain kernels
// that we know, in the same run; prefill beside the bandwidth of a device copy, one and four tokens beside two exchanges of
// flags. A graph of 58 layers; median of 100 replays; "queued" launches 10 graphs back to back.
#include <cuda_bf16.h>
#include <nanomc.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "../../ctest/support/random.hpp"
#include "../../ctest/gpu/check.h"

namespace {

constexpr uint32_t kWorld = 8, kExperts = 256, kTopK = 8, kHidden = 7168, kLayers = 58, kPrefillLayers = 4;
bool json = false, shared_gpu = false;

// ---- the same bytes without a protocol ------------------------------------------------------------------------------
// Plain kernels that are launched as the library's are: each is placed while the one before it ends. What they read first was
// there before the graph, so that they ask for it before they wait.

__device__ __forceinline__ void wait_for_previous(bool early) {
  if (early) asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
  asm volatile("griddepcontrol.wait;" : : : "memory");
}

// Where rows of all ranks are. Row t of rank r is number r * t_cap + t everywhere.
struct Places {
  char* own[kWorld];   // x or out
  char* heap[kWorld];  // slots
  const uint32_t* to;  // ranks that a row goes to, one bit each
  uint32_t t_cap, row_bytes;
  uint32_t first, rows;  // which of them a launch moves
  bool down;             // the last row first
};

// Copies each row to its slots. One warp has 1 KiB of a row.
__global__ void __launch_bounds__(512) send_rows(const __grid_constant__ Places p, bool early) {
  const uint32_t lane = threadIdx.x & 31, warps = blockDim.x / 32, vectors = p.row_bytes / 16, parts = (vectors + 63) / 64;
  bool waited = false;
  for (uint32_t unit = blockIdx.x * warps + threadIdx.x / 32; unit < p.rows * parts; unit += gridDim.x * warps) {
    const uint32_t row = p.first + unit / parts, first = unit % parts * 64 + lane;
    const char* from = p.own[row / p.t_cap] + static_cast<size_t>(row % p.t_cap) * p.row_bytes;
    const uint32_t to = p.to[row];
    if (!waited) wait_for_previous(early), waited = true;
    uint4 v[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (first + 32 * i < vectors) v[i] = reinterpret_cast<const uint4*>(from)[first + 32 * i];
    }
#pragma unroll
    for (uint32_t r = 0; r < kWorld; ++r) {
      if ((to >> r & 1) == 0) continue;
      uint4* out = reinterpret_cast<uint4*>(p.heap[r] + static_cast<size_t>(row) * p.row_bytes) + first;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (first + 32 * i < vectors) out[32 * i] = v[i];
      }
    }
  }
}

// Reads each row's slots and stores one row. (Sums the bits: what is added does not change the time.)
__global__ void __launch_bounds__(512) fetch_rows(const __grid_constant__ Places p, bool early) {
  const uint32_t lane = threadIdx.x & 31, warps = blockDim.x / 32, vectors = p.row_bytes / 16, parts = (vectors + 31) / 32;
  bool waited = false;
  for (uint32_t unit = blockIdx.x * warps + threadIdx.x / 32; unit < p.rows * parts; unit += gridDim.x * warps) {
    const uint32_t nth = unit / parts, at = unit % parts * 32 + lane;
    const uint32_t row = p.first + (p.down ? p.rows - 1 - nth : nth);
    const uint32_t from = p.to[row];
    if (!waited) wait_for_previous(early), waited = true;
    if (at >= vectors) continue;
    uint4 v[kWorld], sum = {};
#pragma unroll
    for (uint32_t r = 0; r < kWorld; ++r) {
      if (from >> r & 1) v[r] = reinterpret_cast<const uint4*>(p.heap[r] + static_cast<size_t>(row) * p.row_bytes)[at];
    }
#pragma unroll
    for (uint32_t r = 0; r < kWorld; ++r) {
      if (from >> r & 1) sum = make_uint4(sum.x + v[r].x, sum.y + v[r].y, sum.z + v[r].z, sum.w + v[r].w);
    }
    reinterpret_cast<uint4*>(p.own[row / p.t_cap] + static_cast<size_t>(row % p.t_cap) * p.row_bytes)[at] = sum;
  }
}

struct Move {
  char* one;       // a slot
  uint32_t n;      // rows of experts that belong to it
  uint32_t first;  // in the list of their addresses
};

// Copies each slot to its rows. One warp has 2 KiB of a row.
__global__ void __launch_bounds__(512) pack_rows(const Move* moves, char* const* to, uint32_t n, uint32_t row_bytes,
                                                 bool early) {
  const uint32_t lane = threadIdx.x & 31, warps = blockDim.x / 32, vectors = row_bytes / 16, parts = (vectors + 127) / 128;
  bool waited = false;
  for (uint32_t unit = blockIdx.x * warps + threadIdx.x / 32; unit < n * parts; unit += gridDim.x * warps) {
    const Move m = moves[unit / parts];
    const uint32_t first = unit % parts * 128;
    if (!waited) wait_for_previous(early), waited = true;
    uint4 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t at = first + lane + 32 * i;
      if (at < vectors) v[i] = reinterpret_cast<const uint4*>(m.one)[at];
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

// Reads the rows of each slot and stores one. One warp has 1 KiB of a row.
__global__ void __launch_bounds__(512) sum_rows(const Move* moves, char* const* from, uint32_t n, uint32_t row_bytes,
                                                bool early) {
  const uint32_t lane = threadIdx.x & 31, warps = blockDim.x / 32, vectors = row_bytes / 16, parts = (vectors + 63) / 64;
  bool waited = false;
  for (uint32_t unit = blockIdx.x * warps + threadIdx.x / 32; unit < n * parts; unit += gridDim.x * warps) {
    const Move m = moves[unit / parts];
    const uint32_t first = unit % parts * 64;
    if (!waited) wait_for_previous(early), waited = true;
    uint4 sum[2] = {};
    for (uint32_t base = 0; base < m.n; base += 4) {
      uint4 v[4][2];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (base + j >= m.n) break;
        const uint4* in = reinterpret_cast<const uint4*>(from[m.first + base + j]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (first + lane + 32 * i < vectors) v[j][i] = in[first + lane + 32 * i];
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
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
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (first + lane + 32 * i < vectors) reinterpret_cast<uint4*>(m.one)[first + lane + 32 * i] = sum[i];
    }
  }
}

// A flag from every rank to every rank, and nothing else: the least that a dispatch or a combine can take. A block is a rank.
__global__ void exchange(uint64_t* flags, uint64_t* phases) {
  wait_for_previous(true);
  const uint32_t me = blockIdx.x, lane = threadIdx.x;
  const uint64_t phase = phases[me] + 1;
  __syncwarp();
  if (lane < kWorld) {
    asm volatile("fence.acq_rel.gpu;" : : : "memory");
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" : : "l"(flags + 16 * lane + me), "l"(phase) : "memory");
    uint64_t seen = 0;
    while (seen < phase) asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(flags + 16 * me + lane) : "memory");
    asm volatile("fence.acq_rel.gpu;" : : : "memory");
  }
  if (lane == 0) phases[me] = phase;
}

// How a plain kernel is launched.
struct Grid {
  uint32_t blocks, threads;
  bool early;     // the next one is placed while this one works
  uint32_t bytes; // of shared memory that it asks for: keeps blocks from crowding on the multiprocessors that are free first
};

// Launches a plain kernel so that it is placed while the one before it ends, or before.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream, Arguments... arguments) {
  if (grid.bytes != 0) {
    CUDA_OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(grid.bytes)));
  }
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  CUDA_OK(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

// ---- a workload -----------------------------------------------------------------------------------------------------

struct Workload {
  const char* name;
  uint32_t t_cap;
  std::vector<uint32_t> tokens;  // by rank
  int routing;                   // 0 uniform, 1 Zipf, 2 hot
  uint32_t sets;
  uint32_t dispatch;  // NMC_EP_DISPATCH_*
  bool full = false;   // with pack and scatter
  bool lists = false;  // pack writes the lists alone
  uint32_t flags = 0;  // NMC_EP_*
  uint32_t layers = kLayers;
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
  config.flags = w.flags;
  if (shared_gpu) {  // what follows a dispatch here is a combine of the library, which leaves room
    config.flags |= NMC_EP_EARLY;
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
Times time_graph(cudaGraphExec_t graph, cudaStream_t stream, const Meet& meet, uint32_t layers = kLayers, int replays = 100) {
  cudaEvent_t begin, end;
  CUDA_OK(cudaEventCreate(&begin));
  CUDA_OK(cudaEventCreate(&end));
  for (int i = 0; i < 5; ++i) CUDA_OK(cudaGraphLaunch(graph, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  std::vector<double> all;
  for (int i = 0; i < replays; ++i) {
    meet();
    CUDA_OK(cudaEventRecord(begin, stream));
    CUDA_OK(cudaGraphLaunch(graph, stream));
    CUDA_OK(cudaEventRecord(end, stream));
    CUDA_OK(cudaEventSynchronize(end));
    float ms = 0;
    CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
    all.push_back(ms * 1000.0 / layers);
  }
  std::vector<double> queued;
  for (int i = 0; i < replays / 10; ++i) {
    meet();
    CUDA_OK(cudaEventRecord(begin, stream));
    for (int j = 0; j < 10; ++j) CUDA_OK(cudaGraphLaunch(graph, stream));
    CUDA_OK(cudaEventRecord(end, stream));
    CUDA_OK(cudaEventSynchronize(end));
    float ms = 0;
    CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
    queued.push_back(ms * 100.0 / layers);
  }
  std::sort(all.begin(), all.end());
  std::sort(queued.begin(), queued.end());
  CUDA_OK(cudaEventDestroy(begin));
  CUDA_OK(cudaEventDestroy(end));
  CUDA_OK(cudaGraphExecDestroy(graph));
  return {all[all.size() / 2], all[all.size() - all.size() / 100 - 1], queued[queued.size() / 2]};
}

// The copies of all ranks, one launch each, in the fastest of a few shapes. Or of one rank of eight processes that do the same side by side, all in memory
// of their own: what a process that copies without a protocol takes on a GPU that it shares. `meet` brings them together.
template <typename Meet>
Times floor_of(const Workload& w, cudaStream_t stream, int only, const Meet& meet) {
  const uint32_t wire = w.dispatch == NMC_EP_DISPATCH_SAME ? kHidden * 2 : kHidden, row = kHidden * 2;
  const size_t y_at = wire == row ? 0 : size_t{kWorld} * w.t_cap * wire;  // rows go back from where they came
  const size_t region = y_at + size_t{kWorld} * w.t_cap * row;
  std::vector<char*> rows, parts;
  std::vector<Buffers> b;
  std::vector<Move> pack, scatter;
  std::vector<uint32_t> in_expert(kExperts, 0), to(kWorld * w.t_cap, 0);
  const uint32_t first = only < 0 ? 0 : static_cast<uint32_t>(only) * w.t_cap, share = only < 0 ? 1 : kWorld;
  const uint32_t n_rows = kWorld * w.t_cap / share;
  Places send{{}, {}, nullptr, w.t_cap, wire, first, n_rows, false}, back{{}, {}, nullptr, w.t_cap, row, first, n_rows, false};
  for (uint32_t r = 0; r < kWorld; ++r) {
    b.push_back(buffers_of(w, r));
    send.heap[r] = device_bytes<char>(region);
    back.heap[r] = send.heap[r] + y_at;
    send.own[r] = b[r].x;
    back.own[r] = b[r].out;
  }
  for (uint32_t r = 0; r < kWorld; ++r) {
    const std::vector<int32_t> idx = routes(w, r);
    for (uint32_t t = 0; t < w.tokens[r]; ++t) {
      const uint32_t slot = r * w.t_cap + t;
      for (uint32_t k = 0; k < kTopK; ++k) to[slot] |= 1u << (idx[t * kTopK + k] / (kExperts / kWorld));
      for (uint32_t d = 0; d < kWorld && w.full; ++d) {
        if ((to[slot] >> d & 1) == 0) continue;
        Move packed{send.heap[d] + size_t{slot} * wire, 0, static_cast<uint32_t>(rows.size())};
        for (uint32_t k = 0; k < kTopK; ++k) {
          const uint32_t e = static_cast<uint32_t>(idx[t * kTopK + k]);
          if (e / (kExperts / kWorld) != d) continue;
          const size_t at = (static_cast<size_t>(e % (kExperts / kWorld)) * kWorld * w.t_cap + in_expert[e]++);
          if (!w.lists) rows.push_back(b[d].grouped + at * wire);
          parts.push_back(b[d].y + at * row);
          packed.n += 1;
        }
        if (only >= 0 && d != static_cast<uint32_t>(only)) continue;
        if (!w.lists) pack.push_back(packed);
        scatter.push_back({back.heap[d] + size_t{slot} * row, packed.n, static_cast<uint32_t>(parts.size()) - packed.n});
      }
    }
  }
  const auto upload = [](const auto& v) {
    using T = typename std::decay_t<decltype(v)>::value_type;
    T* p = device_bytes<T>(v.size() * sizeof(T));
    CUDA_OK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
  };
  Move *d_pack = upload(pack), *d_scatter = upload(scatter);
  char **d_rows = upload(rows), **d_parts = upload(parts);
  send.to = back.to = upload(to);
  const auto n = [](const std::vector<Move>& v) { return static_cast<uint32_t>(v.size()); };
  const auto timed = [&](const Grid* grid, int replays) {
    cudaGraphExec_t graph = capture(stream, [&] {
      for (uint32_t l = 0; l < w.layers; ++l) {
        launch(send_rows, grid[0], stream, send, grid[0].early);
        if (w.full && !w.lists) launch(pack_rows, grid[1], stream, d_pack, d_rows, n(pack), wire, grid[1].early);
        if (w.full) launch(sum_rows, grid[2], stream, d_scatter, d_parts, n(scatter), row, grid[2].early);
        launch(fetch_rows, grid[3], stream, back, grid[3].early);
      }
    });
    return time_graph(graph, stream, meet, w.layers, replays);
  };
  // One step after the other.
  const uint32_t all = 264 / share;
  Grid best[4] = {{all, 256, true, 96 << 10}, {all, 448, true, 0}, {all, 448, true, 0}, {all, 448, true, 0}};
  double fastest = 1e30;
  for (int step = 0; step < 4; ++step) {
    if ((step == 1 && (!w.full || w.lists)) || (step == 2 && !w.full)) continue;
    for (const uint32_t per_sm : {1u, 2u, 4u}) {
      for (const uint32_t threads : {256u, 448u}) {
        for (const uint32_t bytes : {0u, (192u << 10) / per_sm}) {
          Grid with[4] = {best[0], best[1], best[2], best[3]};
          with[step] = {(132 * per_sm + share - 1) / share, threads, true, bytes};
          const double took = timed(with, 10).median;
          if (took < fastest) fastest = took, best[step] = with[step];
        }
      }
    }
  }
  // Of more rows than the L2 cache holds it has the last ones.
  back.down = true;
  back.down = timed(best, 10).median < fastest;
  const Times times = timed(best, 100);
  for (uint32_t r = 0; r < kWorld; ++r) {
    CUDA_OK(cudaFree(send.heap[r]));
    free_buffers(b[r]);
  }
  for (const void* p : {static_cast<const void*>(d_pack), static_cast<const void*>(d_scatter), static_cast<const void*>(d_rows),
                        static_cast<const void*>(d_parts), static_cast<const void*>(send.to)}) {
    CUDA_OK(cudaFree(const_cast<void*>(p)));
  }
  return times;
}

// Two exchanges of flags, as two launches.
Times exchanges(cudaStream_t stream) {
  uint64_t* words = device_bytes<uint64_t>(4096);
  CUDA_OK(cudaMemset(words, 0, 4096));
  cudaGraphExec_t graph = capture(stream, [&] {
    for (uint32_t l = 0; l < 2 * kLayers; ++l) launch(exchange, {kWorld, 32, true, 0}, stream, words, words + 256);
  });
  const Times times = time_graph(graph, stream, [] {});
  CUDA_OK(cudaFree(words));
  return times;
}

__global__ void __launch_bounds__(512) copy_all(const uint4* from, uint4* to, size_t n) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 4 * stride) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j * stride < n) v[j] = from[i + j * stride];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j * stride < n) to[i + j * stride] = v[j];
    }
  }
}

// What a copy on the device moves in a microsecond, read and written bytes together: the better of the driver's and ours.
double copy_bytes_per_us(cudaStream_t stream) {
  constexpr size_t kBytes = size_t{2} << 30;
  char *from = device_bytes<char>(kBytes), *to = device_bytes<char>(kBytes);
  const auto timed = [&](const auto& record) { return time_graph(capture(stream, record), stream, [] {}, 1, 20).median; };
  double us = timed([&] { CUDA_OK(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream)); });
  for (const uint32_t blocks : {264u, 528u, 2112u, 65536u}) {
    us = std::min(us, timed([&] {
      copy_all<<<blocks, 512, 0, stream>>>(reinterpret_cast<uint4*>(from), reinterpret_cast<uint4*>(to), kBytes / 16);
    }));
  }
  CUDA_OK(cudaFree(from));
  CUDA_OK(cudaFree(to));
  return 2.0 * kBytes / us;
}

// Bytes that a dispatch and a combine read and write.
double bytes_of(const Workload& w) {
  double rows = 0, tokens = 0;
  for (uint32_t r = 0; r < kWorld; ++r) {
    const std::vector<int32_t> idx = routes(w, r);
    for (uint32_t t = 0; t < w.tokens[r]; ++t) {
      uint32_t targets = 0;
      for (uint32_t k = 0; k < kTopK; ++k) targets |= 1u << (idx[t * kTopK + k] / (kExperts / kWorld));
      rows += __builtin_popcount(targets);
      tokens += 1;
    }
  }
  return (2 * tokens + 2 * rows) * kHidden * 2;
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

// Prefill: the share of the bandwidth of a copy.
void report_bandwidth(const std::string& name, const Times& ours, double bytes, double copy) {
  const double value = bytes / ours.median * 1e-3, base = copy * 1e-3;
  if (json) {
    std::printf("{\"name\":\"%s\",\"value\":%.1f,\"unit\":\"GB/s\",\"baseline_name\":\"device copy\",\"baseline\":%.1f,\"ratio\":%.3f}\n",
                name.c_str(), value, base, value / base);
  } else {
    std::printf("%-44s %8.0f GB/s      device copy  %8.0f  ratio %5.2f  (%.1f us/layer)\n", name.c_str(), value, base, value / base,
                ours.median);
  }
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
    for (uint32_t l = 0; l < w.layers; ++l) {
      NMC_CHECK(nmc_ep_group_begin());
      for (int step = 0; step < 4; ++step) {
        for (uint32_t r = 0; r < kWorld; ++r) layer_of(eps[r], stream, l, w, b[r], w.tokens[r], step);
      }
      NMC_CHECK(nmc_ep_group_end());
    }
  });
  const Times times = time_graph(graph, stream, [] {}, w.layers, w.layers == kLayers ? 100 : 20);
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
  std::map<std::string, Times> floors;  // the same for both scopes
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
    const bool latency = w.t_cap <= 4;
    if (rank == 0) {
      const std::string base = std::string(w.name).substr(0, std::string(w.name).find(".device_scope"));
      if (floors.count(base) == 0) floors[base] = latency ? exchanges(stream) : floor_of(w, stream, -1, [] {});
      floor = floors[base];
    }
    const auto meet = [&] { NMC_CHECK(nmc_world_barrier(world, 60000)); };
    meet();
    Times apart;
    if (!latency) apart = floor_of(w, stream, static_cast<int>(rank), meet);
    meet();
    NMC_CHECK(nmc_ep_create(world, &ep_config, &ep));
    Buffers b = buffers_of(w, rank);
    cudaGraphExec_t graph = capture(stream, [&] {
      for (uint32_t l = 0; l < kLayers; ++l) {
        for (int step = 0; step < 4; ++step) layer_of(ep, stream, l, w, b, w.tokens[rank], step);
      }
    });
    meet();
    const Times times = time_graph(graph, stream, meet);
    NMC_CHECK(nmc_ep_check(ep));
    const std::string metric = std::string("ep.") + w.name + ".mps8";
    if (rank == 0) report(metric, times, floor, latency ? "2 exchanges" : "copy floor");
    if (rank == 0 && !latency) report(metric + ".vs_apart", times, apart, "8 copiers");
    meet();
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
  const char *dir = nullptr, *only = "";
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--json") json = true;
    else if (arg == "--procs") procs = true;
    else if (arg == "--quick") quick = true;
    else if (arg == "--only" && i + 1 < argc) only = argv[++i];
    else if (arg == "--rank" && i + 2 < argc) rank = std::atoi(argv[i + 1]), dir = argv[i + 2], i += 2;
    else return std::fprintf(stderr, "usage: ep_bench [--json] [--procs] [--quick] [--only TEXT]\n"), 2;
  }
  const std::vector<uint32_t> even(kWorld, 32), large(kWorld, 128), uneven = {32, 0, 17, 32, 1, 32, 0, 8};
  const std::vector<uint32_t> one(kWorld, 1), four(kWorld, 4);
  std::vector<Workload> workloads = {{"dispatch_combine.T32", 32, even, 0, 1, 0}, {"full.T32", 32, even, 0, 1, 0, true}};
  if (!quick) {
    workloads.push_back({"dispatch_combine.T32.cold", 32, even, 0, 4, 0});
    workloads.push_back({"full_lists.T32", 32, even, 0, 1, 0, true, true});
    workloads.push_back({"dispatch_combine.uneven", 32, uneven, 0, 1, 0});
    workloads.push_back({"dispatch_combine.zipf", 32, even, 1, 1, 0});
    workloads.push_back({"dispatch_combine.hot", 32, even, 2, 1, 0});
    workloads.push_back({"dispatch_combine.T1", 1, one, 0, 1, 0});
    workloads.push_back({"dispatch_combine.T4", 4, four, 0, 1, 0});
    workloads.push_back({"dispatch_combine.T128", 128, large, 0, 1, 0});
    workloads.push_back({"fp8.T128", 128, large, 0, 1, NMC_EP_DISPATCH_FP8});
    workloads.push_back({"fp8_given.T128", 128, large, 0, 1, NMC_EP_DISPATCH_FP8_GIVEN});
    for (const uint32_t tokens : {1024u, 4096u}) {
      if (procs || rank >= 0) break;
      Workload prefill{tokens == 1024 ? "dispatch_combine.T1024" : "dispatch_combine.T4096", tokens, {}, 0, 1, 0};
      prefill.tokens.assign(kWorld, tokens);
      prefill.layers = kPrefillLayers;
      workloads.push_back(prefill);
    }
  }
  if (rank >= 0) {  // the same with fences of the device's scope
    static std::vector<std::string> names(workloads.size());
    const size_t n = workloads.size();
    for (size_t i = 0; i < n; ++i) {
      names[i] = std::string(workloads[i].name) + ".device_scope";
      Workload w = workloads[i];
      w.name = names[i].c_str();
      w.flags = NMC_EP_DEVICE_SCOPE;
      workloads.push_back(w);
    }
  }
  workloads.erase(std::remove_if(workloads.begin(), workloads.end(),
                                 [&](const Workload& w) { return std::strstr(w.name, only) == nullptr; }),
                  workloads.end());
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
        args.push_back("--only");
        args.push_back(only);
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
    const std::string name = std::string("ep.") + w.name + ".inproc8";
    if (w.layers != kLayers) {
      report_bandwidth(name, in_process(w, stream), bytes_of(w), copy_bytes_per_us(stream));
      continue;
    }
    const bool latency = w.t_cap <= 4;
    const Times floor = latency ? exchanges(stream) : floor_of(w, stream, -1, [] {});
    const Times ours = in_process(w, stream);
    report(name, ours, floor, latency ? "2 exchanges" : "copy floor");
    if (std::string(w.name) == "dispatch_combine.T128") bf16 = ours.median, bf16_queued = ours.queued;
    if (std::string(w.name) == "fp8.T128" && bf16 > 0) report("ep.fp8.T128.vs_bf16", ours, {bf16, 0, bf16_queued}, "bf16");
  }
  return 0;
}
