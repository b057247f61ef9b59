// Every function of nanomc/device.cuh on a real GPU, without libnanomc: copies with red zones, publish and wait, grid
// publish, the wrapped compare, stream writes in a graph, and a store-buffering litmus between CPU and GPU.
// usage: device_header [litmus rounds, default 200000]

#include <nanomc/device.cuh>

#include <vector>

#include "check.h"

static constexpr uint64_t WORDS_PER_LINE = NMC_WORD_STRIDE / 8;
static constexpr uint64_t SECOND_NS = 1000000000;

// ---- words, fences, addresses -------------------------------------------------------------------------------------

__global__ void words_kernel(uint64_t* words, uint64_t* out) {
  nmc_dev_st_relaxed_sys_u64(words + 0, 11);
  nmc_dev_fence_release_sys();
  nmc_dev_st_release_sys_u64(words + 1, 22);
  nmc_dev_fence_sc_sys();
  out[0] = nmc_dev_ld_relaxed_sys_u64(words + 0);
  nmc_dev_fence_acquire_sys();
  out[1] = nmc_dev_ld_acquire_sys_u64(words + 1);
  const uint64_t bases[2] = {1000, 5000};
  out[2] = reinterpret_cast<uint64_t>(nmc_dev_peer_ptr(bases, 1, 24));
  out[3] = nmc_pattern_u64(7, 1, 2, 3);
}

static void test_words(uint64_t* words, const uint64_t* words_host, const char* name) {
  uint64_t* out;
  CUDA_OK(cudaMalloc(&out, 32));
  words_kernel<<<1, 1>>>(words, out);
  CUDA_OK(cudaDeviceSynchronize());
  uint64_t seen[4];
  CUDA_OK(cudaMemcpy(seen, out, 32, cudaMemcpyDeviceToHost));
  bool ok = seen[0] == 11 && seen[1] == 22 && seen[2] == 5024 && seen[3] == nmc_pattern_u64(7, 1, 2, 3);
  if (words_host != nullptr) ok = ok && load_acquire(words_host) == 11 && load_acquire(words_host + 1) == 22;
  check(ok, name);
  CUDA_OK(cudaFree(out));
}

// ---- copy16 -------------------------------------------------------------------------------------------------------

static constexpr uint64_t COPY_STRIDE = 8192, RED_ZONE = 64;
static constexpr uint64_t COPY_SIZES[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 255, 1029, 4099};
static constexpr uint64_t N_SIZES = sizeof(COPY_SIZES) / sizeof(COPY_SIZES[0]);

struct Sizes {
  uint64_t of[N_SIZES];
};

// One block per case: 16 destination x 16 source alignments x all sizes.
__global__ void copy_kernel(char* dst, const char* __restrict__ src, Sizes sizes) {
  const uint64_t c = blockIdx.x;
  char* to = dst + c * COPY_STRIDE + RED_ZONE + c % 16;
  const char* from = src + RED_ZONE + c / 16 % 16;
  nmc_dev_copy16(to, from, sizes.of[c / 256], threadIdx.x, blockDim.x);
}

__global__ void big_copy_kernel(char* dst, const char* src, uint64_t bytes) {
  nmc_dev_copy16(dst, src, bytes, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x);
}

static void test_copies() {
  constexpr uint64_t cases = 256 * N_SIZES;
  Sizes sizes;
  std::memcpy(sizes.of, COPY_SIZES, sizeof(COPY_SIZES));
  std::vector<uint8_t> source(COPY_STRIDE), result(cases * COPY_STRIDE);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(nmc_pattern_u64(1, 0, 0, i) | 1);
  char *src, *dst;
  CUDA_OK(cudaMalloc(&src, source.size()));
  CUDA_OK(cudaMalloc(&dst, result.size()));
  CUDA_OK(cudaMemcpy(src, source.data(), source.size(), cudaMemcpyHostToDevice));
  for (unsigned threads : {1u, 96u, 256u}) {
    CUDA_OK(cudaMemset(dst, 0, result.size()));
    copy_kernel<<<cases, threads>>>(dst, src, sizes);
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaMemcpy(result.data(), dst, result.size(), cudaMemcpyDeviceToHost));
    uint64_t wrong = 0, outside = 0;
    for (uint64_t c = 0; c < cases; ++c) {
      const uint64_t begin = RED_ZONE + c % 16, end = begin + COPY_SIZES[c / 256], from = RED_ZONE + c / 16 % 16;
      const uint8_t* row = result.data() + c * COPY_STRIDE;
      for (uint64_t i = 0; i < COPY_STRIDE; ++i) {
        if (i < begin || i >= end) {
          outside += row[i] != 0;
        } else {
          wrong += row[i] != source[from + i - begin];
        }
      }
    }
    if (wrong + outside != 0) {
      std::printf("# %u threads: %llu wrong bytes, %llu outside\n", threads, static_cast<unsigned long long>(wrong),
                  static_cast<unsigned long long>(outside));
    }
    check(wrong == 0, "copy16 copies every byte at every alignment");
    check(outside == 0, "copy16 leaves the red zones alone");
  }
  CUDA_OK(cudaFree(src));
  CUDA_OK(cudaFree(dst));

  const uint64_t big = (8u << 20) + 5;
  std::vector<uint8_t> large(big), back(big);
  for (uint64_t i = 0; i < big; ++i) large[i] = static_cast<uint8_t>(i * 131 + (i >> 11));
  CUDA_OK(cudaMalloc(&src, big));
  CUDA_OK(cudaMalloc(&dst, big));
  CUDA_OK(cudaMemcpy(src, large.data(), big, cudaMemcpyHostToDevice));
  big_copy_kernel<<<64, 256>>>(dst, src, big);
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaMemcpy(back.data(), dst, big, cudaMemcpyDeviceToHost));
  check(back == large, "copy16 copies 8 MiB + 5 with a grid");
  CUDA_OK(cudaFree(src));
  CUDA_OK(cudaFree(dst));
}

// ---- publish and wait ---------------------------------------------------------------------------------------------

// Block 0 writes and publishes, block 1 waits and reads; two blocks are always resident together on one GPU.
__global__ void pass_message(uint64_t* data, uint64_t n, uint64_t* word, uint64_t round, uint64_t* wrong) {
  __shared__ bool there;
  if (blockIdx.x == 0) {
    for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) data[i] = nmc_pattern_u64(round, 0, 1, i);
    __syncthreads();
    if (threadIdx.x == 0) nmc_dev_publish(word, round);
  } else {
    if (threadIdx.x == 0) there = nmc_dev_wait_ge(word, round, 10 * SECOND_NS);
    __syncthreads();
    for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
      const bool ok = there && nmc_dev_ld_relaxed_sys_u64(data + i) == nmc_pattern_u64(round, 0, 1, i);
      if (!ok) atomicAdd(reinterpret_cast<unsigned long long*>(wrong), 1ull);
    }
  }
}

static void test_message(uint64_t* word, const char* name) {
  constexpr uint64_t n = 4096;
  uint64_t *data, *wrong, total = 0;
  CUDA_OK(cudaMalloc(&data, n * 8));
  CUDA_OK(cudaMalloc(&wrong, 8));
  CUDA_OK(cudaMemset(wrong, 0, 8));
  for (uint64_t round = 1; round <= 200; ++round) pass_message<<<2, 256>>>(data, n, word, round, wrong);
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaMemcpy(&total, wrong, 8, cudaMemcpyDeviceToHost));
  check(total == 0, name);
  CUDA_OK(cudaFree(data));
  CUDA_OK(cudaFree(wrong));
}

// The CPU writes data and then the word; the GPU waits, adds one to every datum elsewhere and answers.
__global__ void answer(const uint64_t* question, uint64_t* reply, uint64_t n, const uint64_t* ask, uint64_t* done, uint64_t round) {
  __shared__ bool there;
  if (threadIdx.x == 0) there = nmc_dev_wait_ge(ask, round, 10 * SECOND_NS);
  __syncthreads();
  if (!there) return;
  for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
    nmc_dev_st_relaxed_sys_u64(reply + i, nmc_dev_ld_relaxed_sys_u64(question + i) + 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) nmc_dev_publish(done, round);
}

static void test_cpu_conversation() {
  constexpr uint64_t n = 512, rounds = 200;
  SharedWords memory(1 << 16);
  uint64_t* question = memory.host + 2 * WORDS_PER_LINE;
  uint64_t* reply = question + n;
  const auto on_device = [&](uint64_t* p) { return memory.device + (p - memory.host); };
  uint64_t wrong = 0, silent = 0;
  for (uint64_t round = 1; round <= rounds && silent == 0; ++round) {
    answer<<<1, 128>>>(on_device(question), on_device(reply), n, memory.device, memory.device + WORDS_PER_LINE, round);
    CUDA_OK(cudaGetLastError());
    for (uint64_t i = 0; i < n; ++i) question[i] = round * 1000 + i;
    store_release(memory.host, round);
    if (!cpu_sees(memory.host + WORDS_PER_LINE, round, 10000)) ++silent;
    for (uint64_t i = 0; i < n; ++i) wrong += __atomic_load_n(reply + i, __ATOMIC_RELAXED) != round * 1000 + i + 1;
  }
  CUDA_OK(cudaDeviceSynchronize());
  check(silent == 0 && wrong == 0, "CPU and GPU pass messages both ways through registered memfd words");
}

__global__ void grid_publish_kernel(uint32_t* counter, uint64_t* word, uint64_t value, uint64_t* data, uint32_t* publishers) {
  data[blockIdx.x * blockDim.x + threadIdx.x] = value;
  __syncthreads();
  if (threadIdx.x == 0 && nmc_dev_grid_publish(counter, gridDim.x, word, value)) atomicAdd(publishers, 1u);
}

static void test_grid_publish() {
  constexpr uint32_t blocks = 333, threads = 64, rounds = 50;
  SharedWords memory(4096);
  uint32_t *counter, *publishers, seen[2];
  uint64_t* data;
  CUDA_OK(cudaMalloc(&counter, 8));
  publishers = counter + 1;
  CUDA_OK(cudaMemset(counter, 0, 8));
  CUDA_OK(cudaMalloc(&data, blocks * threads * 8));
  bool published = true;
  for (uint64_t round = 1; round <= rounds; ++round) {
    grid_publish_kernel<<<blocks, threads>>>(counter, memory.device, round, data, publishers);
    published = published && cpu_sees(memory.host, round, 10000);
  }
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaMemcpy(seen, counter, 8, cudaMemcpyDeviceToHost));
  check(published, "grid_publish publishes when all blocks have arrived");
  check(seen[0] == 0, "grid_publish sets its counter back to 0");
  check(seen[1] == rounds, "grid_publish has one publisher per grid");
  CUDA_OK(cudaFree(counter));
  CUDA_OK(cudaFree(data));
}

__global__ void wait_kernel(const uint64_t* word, uint64_t want, uint64_t timeout_ns, uint64_t* out) {
  const uint64_t start = nmc_dev_globaltimer_ns();
  out[0] = nmc_dev_wait_ge(word, want, timeout_ns) ? 1 : 0;
  out[1] = nmc_dev_globaltimer_ns() - start;
}

struct Waited {
  bool reached;
  uint64_t took_ns;
};

static Waited wait_on(uint64_t have, uint64_t want, uint64_t timeout_ns) {
  SharedWords memory(4096);
  memory.host[0] = have;
  uint64_t *out, seen[2];
  CUDA_OK(cudaMalloc(&out, 16));
  wait_kernel<<<1, 1>>>(memory.device, want, timeout_ns, out);
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaMemcpy(seen, out, 16, cudaMemcpyDeviceToHost));
  CUDA_OK(cudaFree(out));
  return {seen[0] == 1, seen[1]};
}

static void test_wait() {
  const Waited late = wait_on(4, 5, 50000000);
  std::printf("# a wait of 50 ms took %.3f ms\n", static_cast<double>(late.took_ns) / 1e6);
  check(!late.reached, "wait_ge gives up at its deadline");
  check(late.took_ns >= 50000000 && late.took_ns < 10 * SECOND_NS, "wait_ge waits until its deadline and not much longer");
  const Waited once = wait_on(4, 5, 0);
  check(!once.reached && once.took_ns < SECOND_NS, "wait_ge with timeout 0 looks once");
  check(wait_on(5, 5, 0).reached, "wait_ge with timeout 0 takes a word that is there");
  check(wait_on(6, 5, UINT64_MAX).reached, "wait_ge takes a later value and a timeout of for ever");
  check(wait_on(1, UINT64_MAX, 0).reached, "wait_ge compares across the wrap: 1 is after 2^64-1");
  check(!wait_on(UINT64_MAX, 1, 0).reached, "wait_ge compares across the wrap: 2^64-1 is before 1");
}

// ---- stream writes in a graph -------------------------------------------------------------------------------------

static void test_graph_write() {
  using WriteValue64 = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned int);
  const auto write_value = driver_function<WriteValue64>("cuStreamWriteValue64");
  SharedWords memory(4096);
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CU_OK(write_value(stream, reinterpret_cast<CUdeviceptr>(memory.device), 77, CU_STREAM_WRITE_VALUE_DEFAULT));
  cudaGraph_t graph;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  check(load_acquire(memory.host) == 0, "a captured stream write does not run at capture");
  cudaGraphExec_t exec;
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  bool seen = true;
  for (int replay = 0; replay < 3; ++replay) {
    store_release(memory.host, 0);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    seen = seen && cpu_sees(memory.host, 77, 10000);
    CUDA_OK(cudaStreamSynchronize(stream));
  }
  check(seen, "a captured stream write into registered memfd memory is seen by the CPU at each of 3 replays");
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaStreamDestroy(stream));
}

// ---- store buffering ----------------------------------------------------------------------------------------------
//
// GPU: x = i; fence; v[i] = y.   CPU: y = j; fence; u[j] = x.   i and j count up without waiting for each other.
// Forbidden with sequentially consistent fences: v[i] < j and u[j] < i for some i, j (each side missed the other's
// store). Both logs only grow, so for every i it is enough to look at the first j above v[i].

template <bool FENCED>
__global__ void litmus_kernel(uint64_t* x, const uint64_t* y, uint64_t rounds, uint64_t* v, uint64_t* done) {
  for (uint64_t i = 1; i <= rounds; ++i) {
    nmc_dev_st_relaxed_sys_u64(x, i);
    if (FENCED) nmc_dev_fence_sc_sys();
    v[i] = nmc_dev_ld_relaxed_sys_u64(y);
  }
  nmc_dev_publish(done, 1);
}

struct Litmus {
  uint64_t compared = 0, overlapping = 0, violations = 0;
};

template <bool FENCED>
static Litmus litmus(uint64_t rounds) {
  constexpr uint64_t chunk = 50000;
  SharedWords memory(4096);
  uint64_t *x = memory.host, *y = x + WORDS_PER_LINE, *done = y + WORDS_PER_LINE;
  uint64_t* device_v;
  CUDA_OK(cudaMalloc(&device_v, (chunk + 1) * 8));
  std::vector<uint64_t> v(chunk + 1);
  std::vector<uint32_t> u(32u << 20);
  Litmus total;
  for (uint64_t begun = 0; begun < rounds; begun += chunk) {
    const uint64_t n = rounds - begun < chunk ? rounds - begun : chunk;
    *x = *y = *done = 0;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    litmus_kernel<FENCED><<<1, 1>>>(memory.device, memory.device + WORDS_PER_LINE, n, device_v,
                                    memory.device + 2 * WORDS_PER_LINE);
    CUDA_OK(cudaGetLastError());
    while (__atomic_load_n(x, __ATOMIC_RELAXED) == 0) {
    }
    uint64_t j = 0;
    while (j + 1 < u.size() && __atomic_load_n(done, __ATOMIC_RELAXED) == 0) {
      ++j;
      __atomic_store_n(y, j, __ATOMIC_RELAXED);
      if (FENCED) __atomic_thread_fence(__ATOMIC_SEQ_CST);
      u[j] = static_cast<uint32_t>(__atomic_load_n(x, __ATOMIC_RELAXED));
    }
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaMemcpy(v.data(), device_v, (n + 1) * 8, cudaMemcpyDeviceToHost));
    for (uint64_t i = 1; i <= n; ++i) {
      const uint64_t first_missed = v[i] + 1;
      if (first_missed > j) continue;
      ++total.compared;
      total.overlapping += u[first_missed] == i || u[first_missed] + 1 == i;
      total.violations += u[first_missed] < i;
    }
  }
  CUDA_OK(cudaFree(device_v));
  return total;
}

static void print_litmus(const char* name, const Litmus& l) {
  std::printf("# %s: %llu rounds compared, %llu close together, %llu where both sides missed the other's store\n", name,
              static_cast<unsigned long long>(l.compared), static_cast<unsigned long long>(l.overlapping),
              static_cast<unsigned long long>(l.violations));
}

static void test_litmus(uint64_t rounds) {
  const Litmus fenced = litmus<true>(rounds);
  print_litmus("store buffering with fence.sc.sys", fenced);
  check(fenced.compared >= rounds / 10, "the store-buffering litmus compares at least a tenth of its rounds");
  check(fenced.violations == 0, "fence.sc.sys forbids store buffering between CPU and GPU");
  const Litmus control = litmus<false>(rounds);
  print_litmus("control without fences", control);
  std::printf("# the control %s\n", control.violations > 0 ? "shows what the fence prevents"
                                                            : "shows nothing this time: run more rounds");
}

int main(int argc, char** argv) {
  skip_without_gpu();
  const uint64_t rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200000;
  {
    SharedWords memory(4096);
    uint64_t* on_device;
    CUDA_OK(cudaMalloc(&on_device, 4096));
    CUDA_OK(cudaMemset(on_device, 0, 4096));
    test_words(memory.device, memory.host, "words, fences and addresses on registered host memory");
    test_words(on_device, nullptr, "words, fences and addresses on device memory");
    test_message(on_device + WORDS_PER_LINE, "publish and wait between blocks through a device word");
    test_message(memory.device + WORDS_PER_LINE, "publish and wait between blocks through a host word");
    CUDA_OK(cudaFree(on_device));
  }
  test_copies();
  test_cpu_conversation();
  test_grid_publish();
  test_wait();
  test_graph_write();
  test_litmus(rounds);
  return finish();
}
