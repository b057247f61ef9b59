// Whether fences of the device's scope order stores between two processes that share one GPU (NMC_EP_DEVICE_SCOPE).
// `ep_scope ROUNDS`: message passing as a dispatch does it. The threads of a block store into a heap of the other process, the block
// synchronises, one warp releases and stores a flag there; the other process polls the flag, acquires and reads. No word may be old.
// `ep_scope ROUNDS without`: the control, without the release. Old words must be seen, or the test would show nothing.
// `ep_scope ROUNDS without broken`: the control of the control. Its processes fail before they pass anything; that is not a catch.
// Needs MPS: otherwise the processes take turns on the GPU, and nothing happens at the same time.
//
// What makes a missing release visible is where the words lie. Some blocks keep the part of the cache busy in which the data is,
// with atomics on the same lines; the flag lies elsewhere and overtakes it.
#include <sys/wait.h>

#include <nanomc.h>
#include <nanomc/ep.cuh>

#include <string>
#include <vector>

#include "check.h"

namespace {

constexpr uint32_t kPairs = 32, kThreads = 128, kLines = kThreads, kHammers = 64;
constexpr uint64_t kLine = 128;
constexpr uint64_t kPairBytes = kLines * kLine;             // data of a pair: a line a thread
constexpr uint64_t kFlags = kPairs * kPairBytes;            // then flags and answers, a line each
constexpr uint64_t kAnswers = kFlags + kPairs * kLine;
constexpr uint64_t kHeap = 2 << 20;
// Exit codes of a process. Any other one, such as the 1 of CUDA_OK, says that it failed before it could tell.
constexpr int kNoOldWord = 0, kOldWords = 10, kTooLate = 11;

__device__ uint64_t load(const char* at) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
  return v;
}

__device__ void store(char* at, uint64_t v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(at), "l"(v) : "memory"); }

// Blocks 0 to kPairs - 1 send to the other rank's heap, as many receive from it in the own one, and the rest keep the lines of the
// own data busy until all that send are done.
__global__ void __launch_bounds__(kThreads) pass(nmc_ep_rank_t d, char* own, char* other, uint64_t rounds, bool release,
                                                 unsigned long long* old_words, uint32_t* done) {
  const uint32_t pair = blockIdx.x % kPairs, role = blockIdx.x / kPairs;
  const uint64_t begin = nmc_dev_globaltimer_ns(), limit = 120ull * 1000000000;
  if (role == 0) {
    char* data = other + pair * kPairBytes + threadIdx.x * kLine;
    bool late = false;
    for (uint64_t round = 1; round <= rounds && !late; ++round) {
      asm volatile("st.global.u64 [%0], %1;" : : "l"(data), "l"(round) : "memory");
      __syncthreads();
      if (threadIdx.x < 32) {
        if (release) nmc_dev_impl_ep_release(d);
        if (threadIdx.x == 0) store(other + kFlags + pair * kLine, round);
      }
      if (threadIdx.x == 0) {
        while (load(own + kAnswers + pair * kLine) < round && !late) late = nmc_dev_globaltimer_ns() - begin > limit;
      }
      late = __syncthreads_or(late);
    }
    if (threadIdx.x == 0) atomicAdd(done, 1);
  } else if (role == 1) {
    const char* data = own + pair * kPairBytes + threadIdx.x * kLine;
    uint64_t bad = 0;
    bool late = false;
    for (uint64_t round = 1; round <= rounds && !late; ++round) {
      if (threadIdx.x == 0) {
        while (load(own + kFlags + pair * kLine) < round && !late) late = nmc_dev_globaltimer_ns() - begin > limit;
        nmc_dev_impl_ep_acquire(d);
      }
      late = __syncthreads_or(late);
      uint64_t seen;
      asm volatile("ld.global.u64 %0, [%1];" : "=l"(seen) : "l"(data) : "memory");
      bad += seen < round;
      // What was read is read before the other side may store again.
      nmc_dev_impl_ep_release(d);
      __syncthreads();
      if (threadIdx.x == 0) store(other + kAnswers + pair * kLine, round);
    }
    if (bad != 0) atomicAdd(old_words, bad);
    if (late && threadIdx.x == 0) atomicAdd(old_words + 1, 1);
    if (threadIdx.x == 0) atomicAdd(done, 1);
  } else {
    while (*reinterpret_cast<volatile uint32_t*>(done) < 2 * kPairs) {
      for (uint32_t i = 0; i < 64; ++i) {
        // Behind the word that is passed on, in the same line.
        atomicAdd(reinterpret_cast<unsigned long long*>(own + (i * 61 + blockIdx.x * 7 + threadIdx.x) % (kPairs * kLines) * kLine + 16), 1);
      }
    }
  }
}

int child(uint32_t rank, const char* dir, uint64_t rounds, bool release, bool broken) {
  CUDA_OK(cudaSetDevice(broken ? -1 : 0));
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.name = {"scope", 5};
  config.dir = {dir, std::strlen(dir)};
  config.rank = static_cast<int32_t>(rank);
  config.world_size = 2;
  config.heap_kind = NMC_HEAP_CUDA;
  config.device = 0;
  config.heap_bytes = kHeap;
  config.join_timeout_ms = 60000;
  nmc_world_t* world = nullptr;
  NMC_CHECK(nmc_world_join(&config, &world));
  void *own = nullptr, *other = nullptr;
  NMC_CHECK(nmc_world_ptr(world, static_cast<int32_t>(rank), 0, kHeap, &own));
  NMC_CHECK(nmc_world_ptr(world, static_cast<int32_t>(1 - rank), 0, kHeap, &other));
  CUDA_OK(cudaMemset(own, 0, kHeap));
  unsigned long long* counts = nullptr;
  CUDA_OK(cudaMalloc(&counts, 64));
  CUDA_OK(cudaMemset(counts, 0, 64));
  CUDA_OK(cudaDeviceSynchronize());
  NMC_CHECK(nmc_world_barrier(world, 60000));
  nmc_ep_rank_t d = {};
  d.scope = 1;
  const uint64_t begin = now_ns();
  pass<<<2 * kPairs + kHammers, kThreads>>>(d, static_cast<char*>(own), static_cast<char*>(other), rounds / kPairs / 2 + 1, release,
                                            counts, reinterpret_cast<uint32_t*>(counts + 2));
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaDeviceSynchronize());
  unsigned long long found[2];
  CUDA_OK(cudaMemcpy(found, counts, sizeof found, cudaMemcpyDeviceToHost));
  std::printf("rank %u: %llu old words in %llu rounds, %.1f s%s\n", rank, found[0],
              static_cast<unsigned long long>((rounds / kPairs / 2 + 1) * kPairs), static_cast<double>(now_ns() - begin) * 1e-9,
              found[1] != 0 ? ", and a wait took too long" : "");
  std::fflush(stdout);
  NMC_CHECK(nmc_world_barrier(world, 60000));
  NMC_CHECK(nmc_world_destroy(world));
  return found[1] != 0 ? kTooLate : found[0] != 0 ? kOldWords : kNoOldWord;
}

bool under_mps() {
  FILE* pipe = popen("echo get_server_list | nvidia-cuda-mps-control 2>&1", "r");
  if (pipe == nullptr) return false;
  char line[256] = "";
  std::string all;
  while (std::fgets(line, sizeof line, pipe) != nullptr) all += line;
  return pclose(pipe) == 0 && all.find("Cannot find") == std::string::npos;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 6 && std::strcmp(argv[1], "child") == 0) {
    return child(static_cast<uint32_t>(std::atoi(argv[2])), argv[3], std::strtoull(argv[4], nullptr, 10), std::atoi(argv[5]) != 0,
                 std::atoi(argv[6]) != 0);
  }
  if (argc < 2) return std::fprintf(stderr, "usage: ep_scope ROUNDS [without [broken]]\n"), 2;
  const bool control = argc > 2 && std::strcmp(argv[2], "without") == 0;
  const bool broken = argc > 3 && std::strcmp(argv[3], "broken") == 0;
  if (!under_mps()) return std::printf("skipped: no MPS\n"), 77;
  char folder[] = "/tmp/nmc-ep-scope-XXXXXX";
  if (mkdtemp(folder) == nullptr) return std::perror("mkdtemp"), 1;
  pid_t children[2];
  for (int rank = 0; rank < 2; ++rank) {
    children[rank] = fork();
    if (children[rank] == 0) {
      execl("/proc/self/exe", "ep_scope", "child", rank == 0 ? "0" : "1", folder, argv[1], control ? "0" : "1", broken ? "1" : "0",
            nullptr);
      _exit(127);
    }
  }
  int codes[2] = {127, 127};
  for (int rank = 0; rank < 2; ++rank) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    if (WIFEXITED(status)) codes[rank] = WEXITSTATUS(status);
  }
  if (std::system((std::string("rm -rf ") + folder).c_str()) != 0) std::printf("could not remove %s\n", folder);
  const auto ran = [](int code) { return code == kNoOldWord || code == kOldWords; };
  const bool seen = codes[0] == kOldWords || codes[1] == kOldWords;
  check(ran(codes[0]) && ran(codes[1]), "both processes ran to their end");
  if (control) check(seen, "without the release old words are seen");
  else check(!seen, "with a release of the device's scope no old word is seen by another process");
  return failed_checks != 0;
}
