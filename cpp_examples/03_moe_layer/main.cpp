// A MoE layer of 8 ranks, compared with the same layer on one rank. README.md says how to run it.
#include <nanomc.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#ifdef MOE_WITH_CUDA
#include <cuda_runtime_api.h>
#define CUDA(call)                                                                                \
  do {                                                                                            \
    const cudaError_t result = (call);                                                            \
    if (result != cudaSuccess) std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(result)), std::exit(1); \
  } while (0)
#endif

namespace {

struct Options {
  uint32_t ranks = 8, tokens = 8, hidden = 256, inner = 128, experts = 64, top_k = 4, layers = 3;
  bool gpu = false;
} options;

using Rows = std::vector<uint16_t>;  // bf16

uint16_t bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float number(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

Rows random_rows(size_t n, float size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, size);
  Rows rows(n);
  for (uint16_t& v : rows) v = bf16(normal(random));
  return rows;
}

// Memory of the kind that the heaps are of.
void* allocate(size_t bytes) {
  bytes = (bytes + 255) / 256 * 256 + 256;
#ifdef MOE_WITH_CUDA
  if (options.gpu) {
    void* p = nullptr;
    CUDA(cudaMalloc(&p, bytes));
    return p;
  }
#endif
  return std::aligned_alloc(256, bytes);
}

void release(void* p) {
#ifdef MOE_WITH_CUDA
  if (options.gpu) {
    CUDA(cudaFree(p));
    return;
  }
#endif
  std::free(p);
}

void copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
#ifdef MOE_WITH_CUDA
  if (options.gpu) {
    CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
    CUDA(cudaDeviceSynchronize());
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

template <typename T>
void* uploaded(const std::vector<T>& values) {
  void* p = allocate(values.size() * sizeof(T));
  copy(p, values.data(), values.size() * sizeof(T));
  return p;
}

// The tokens of all ranks, and where they go.
struct Batch {
  std::vector<uint32_t> tokens;  // by rank
  Rows x;
  std::vector<int32_t> idx;
  std::vector<float> weight;

  explicit Batch(uint32_t seed) {
    std::mt19937 random(seed);
    uint32_t all = 0;
    for (uint32_t r = 0; r < options.ranks; ++r) {
      tokens.push_back(r == 3 ? 0 : 1 + random() % options.tokens);  // a rank without tokens takes part, too
      all += tokens.back();
    }
    x = random_rows(size_t{all} * options.hidden, 1, seed + 1);
    for (uint32_t t = 0; t < all; ++t) {
      std::vector<int32_t> experts(options.experts);
      for (uint32_t e = 0; e < options.experts; ++e) experts[e] = static_cast<int32_t>(e);
      std::shuffle(experts.begin(), experts.end(), random);
      for (uint32_t k = 0; k < options.top_k; ++k) {
        idx.push_back(experts[k]);
        weight.push_back(0.1f + 0.01f * static_cast<float>(random() % 40));
      }
    }
  }
  uint32_t first(uint32_t rank) const {
    uint32_t before = 0;
    for (uint32_t r = 0; r < rank; ++r) before += tokens[r];
    return before;
  }
};

struct Weights {
  Rows w13 = random_rows(size_t{options.experts} * 2 * options.inner * options.hidden, 0.08f, 5);
  Rows w2 = random_rows(size_t{options.experts} * options.hidden * options.inner, 0.08f, 6);
};

// One rank: its part of the group, its experts and its buffers.
struct Rank {
  nmc::Ep ep;
  uint16_t* x;
  int32_t *idx, *count;
  float* weight;
  void *out, *w13, *w2, *workspace;
  uint64_t workspace_bytes;
  void* stream = nullptr;

  void forward(uint32_t layer) {
    // The number of tokens is read by every replay.
    const nmc::EpTokens tokens = nmc::EpTokens(x, idx, weight, 0).count_at(count).layer(layer);
    const nmc::EpMoe moe = nmc::EpMoe().weights(w13, w2).inner(options.inner).workspace(workspace, workspace_bytes).out(out);
    ep.moe_forward(tokens, moe, stream);
  }
};

// A group of `ranks` ranks in this process.
class Moe {
 public:
  Moe(uint32_t ranks, uint32_t t_cap, const Weights& weights) : ranks_(ranks) {
    const nmc::EpConfig config = nmc::EpConfig(options.hidden, options.top_k, options.experts)
                                     .t_cap(t_cap)
                                     .blocks(options.gpu ? 8 : 0);  // eight ranks share the device with their products
    const nmc::EpBytes bytes = nmc::Ep::bytes_needed(config, ranks, options.inner);
    worlds_ = nmc::World::create_local(nmc::WorldConfig()
                                           .world_size(ranks)
                                           .heap_bytes((bytes.transport + (2 << 20) - 1) >> 21 << 21)
                                           .heap_kind(options.gpu ? nmc::HeapKind::cuda : nmc::HeapKind::host)
                                           .device(options.gpu ? 0 : -1));
    std::vector<nmc::Ep> eps = nmc::Ep::create_ranks(worlds_, config);
    const size_t n_local = options.experts / ranks;
    const size_t per13 = size_t{2} * options.inner * options.hidden, per2 = size_t{options.inner} * options.hidden;
    const auto part = [&](const Rows& all, size_t rank, size_t per) {
      const auto first = all.begin() + static_cast<long>(rank * n_local * per);
      return uploaded(Rows(first, first + static_cast<long>(n_local * per)));
    };
    for (uint32_t r = 0; r < ranks; ++r) {
      Rank& rank = ranks_[r];
      rank.ep = std::move(eps[r]);
      rank.x = static_cast<uint16_t*>(allocate(size_t{t_cap} * options.hidden * 2));
      rank.out = allocate(size_t{t_cap} * options.hidden * 2);
      rank.idx = static_cast<int32_t*>(allocate(size_t{t_cap} * options.top_k * 4));
      rank.weight = static_cast<float*>(allocate(size_t{t_cap} * options.top_k * 4));
      rank.count = static_cast<int32_t*>(allocate(4));
      rank.w13 = part(weights.w13, r, per13);
      rank.w2 = part(weights.w2, r, per2);
      rank.workspace = allocate(bytes.workspace);
      rank.workspace_bytes = bytes.workspace;
    }
    std::printf("%u rank%s: %.1f MiB of transport and %.1f MiB of workspace each\n", ranks, ranks == 1 ? "" : "s",
                static_cast<double>(bytes.transport) / 1048576, static_cast<double>(bytes.workspace) / 1048576);
  }
  ~Moe() {
    for (Rank& rank : ranks_) {
      rank.ep = {};
      for (void* p : {static_cast<void*>(rank.x), static_cast<void*>(rank.idx), static_cast<void*>(rank.weight),
                      static_cast<void*>(rank.count), rank.out, rank.w13, rank.w2, rank.workspace}) {
        release(p);
      }
    }
  }

  // Gives tokens [first, first + n) of the batch to a rank.
  void load(uint32_t rank, const Batch& batch, uint32_t first, uint32_t n) {
    Rank& r = ranks_[rank];
    copy(r.x, batch.x.data() + size_t{first} * options.hidden, size_t{n} * options.hidden * 2);
    copy(r.idx, batch.idx.data() + size_t{first} * options.top_k, size_t{n} * options.top_k * 4);
    copy(r.weight, batch.weight.data() + size_t{first} * options.top_k, size_t{n} * options.top_k * 4);
    const int32_t count = static_cast<int32_t>(n);
    copy(r.count, &count, 4);
  }
  Rows result(uint32_t rank, uint32_t n) const {
    Rows rows(size_t{n} * options.hidden);
    copy(rows.data(), ranks_[rank].out, rows.size() * 2);
    return rows;
  }

  // All layers of one step: a thread a rank on the CPU; on a GPU a graph of all ranks, captured the first time.
  void step() {
#ifdef MOE_WITH_CUDA
    if (options.gpu) return replay();
#endif
    std::vector<std::thread> threads;
    for (Rank& rank : ranks_) {
      threads.emplace_back([&rank] {
        try {
          for (uint32_t l = 0; l < options.layers; ++l) rank.forward(l);
        } catch (const nmc::Error& error) {
          std::fprintf(stderr, "%s\n", error.what()), std::exit(1);
        }
      });
    }
    for (std::thread& t : threads) t.join();
  }

 private:
#ifdef MOE_WITH_CUDA
  void replay() {
    if (graph_ == nullptr) {
      CUDA(cudaStreamCreateWithFlags(&main_, cudaStreamNonBlocking));
      cudaEvent_t fork;
      CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
      CUDA(cudaStreamBeginCapture(main_, cudaStreamCaptureModeThreadLocal));
      CUDA(cudaEventRecord(fork, main_));
      for (Rank& rank : ranks_) {
        cudaStream_t stream;
        cudaEvent_t done;
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CUDA(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
        CUDA(cudaStreamWaitEvent(stream, fork, 0));
        rank.stream = stream;
        for (uint32_t l = 0; l < options.layers; ++l) rank.forward(l);
        CUDA(cudaEventRecord(done, stream));
        CUDA(cudaStreamWaitEvent(main_, done, 0));
      }
      cudaGraph_t captured;
      CUDA(cudaStreamEndCapture(main_, &captured));
      CUDA(cudaGraphInstantiate(&graph_, captured, 0));
    }
    CUDA(cudaGraphLaunch(graph_, main_));
    CUDA(cudaStreamSynchronize(main_));
    for (Rank& rank : ranks_) rank.ep.check();
  }
  cudaStream_t main_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
#endif
  std::vector<nmc::World> worlds_;  // outlive their ranks' parts of the group
  std::vector<Rank> ranks_;
};

double distance(const Rows& a, const Rows& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = number(a[i]), y = number(b[i]);
    difference += (x - y) * (x - y);
    size += y * y;
  }
  return size > 0 ? std::sqrt(difference / size) : 0;
}

int run() {
  const Weights weights;
  Moe eight(options.ranks, options.tokens, weights);
  Moe one(1, options.ranks * options.tokens, weights);
  bool good = true;
  for (uint32_t step = 0; step < 4; ++step) {
    const Batch batch(100 + step);
    uint32_t all = 0;
    for (uint32_t r = 0; r < options.ranks; ++r) {
      eight.load(r, batch, batch.first(r), batch.tokens[r]);
      all += batch.tokens[r];
    }
    one.load(0, batch, 0, all);
    eight.step();
    one.step();
    const Rows want = one.result(0, all);
    double worst = 0;
    for (uint32_t r = 0; r < options.ranks; ++r) {
      const Rows got = eight.result(r, batch.tokens[r]);
      const Rows part(want.begin() + static_cast<long>(size_t{batch.first(r)} * options.hidden),
                      want.begin() + static_cast<long>(size_t{batch.first(r) + batch.tokens[r]} * options.hidden));
      worst = std::max(worst, distance(got, part));
    }
    std::printf("step %u: %3u tokens on %u ranks, off by %.1e from one rank\n", step, all, options.ranks, worst);
    good = good && worst < 1e-2;
  }
  std::printf(good ? "the layer of %u ranks is that of one rank\n" : "the layer of %u ranks is NOT that of one rank\n", options.ranks);
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    uint32_t* value = name == "--tokens" ? &options.tokens
                      : name == "--hidden" ? &options.hidden
                      : name == "--inner"  ? &options.inner
                      : name == "--layers" ? &options.layers
                                           : nullptr;
    if (name == "--gpu") options.gpu = true;
    else if (value != nullptr && i + 1 < argc && std::atoi(argv[i + 1]) > 0) *value = static_cast<uint32_t>(std::atoi(argv[++i]));
    else return std::fprintf(stderr, "usage: moe_layer [--gpu] [--tokens N] [--hidden N] [--inner N] [--layers N]\n"), 2;
  }
#ifdef MOE_WITH_CUDA
  int devices = 0;
  if (options.gpu && (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)) {
    return std::fprintf(stderr, "--gpu: this machine has no GPU\n"), 77;
  }
#else
  if (options.gpu) return std::fprintf(stderr, "--gpu: built without the CUDA runtime (CMake found no CUDAToolkit)\n"), 2;
#endif
  try {
    return run();
  } catch (const nmc::Error& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
