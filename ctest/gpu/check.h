// What the GPU test programs share: a line per check, an exit code, and a stop on CUDA errors.
// Exit codes: 0 all checks passed, 1 a check failed, 77 there is no GPU to test on (CTest reports it as skipped).
#ifndef NMC_CTEST_GPU_CHECK_H
#define NMC_CTEST_GPU_CHECK_H

#include <cuda.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

static int failed_checks = 0;

[[maybe_unused]] static bool check(bool ok, const char* name) {
  std::printf("%s %s\n", ok ? "ok" : "FAIL", name);
  std::fflush(stdout);
  if (!ok) ++failed_checks;
  return ok;
}

// What a program ends with.
[[maybe_unused]] static int finish() {
  std::printf("%s: %d failed\n", failed_checks == 0 ? "PASS" : "FAIL", failed_checks);
  return failed_checks == 0 ? 0 : 1;
}

#define CUDA_OK(expression)                                                                                    \
  do {                                                                                                         \
    const cudaError_t cuda_result = (expression);                                                              \
    if (cuda_result != cudaSuccess) {                                                                          \
      std::printf("FAIL %s:%d %s: %s\n", __FILE__, __LINE__, #expression, cudaGetErrorString(cuda_result));    \
      std::fflush(stdout);                                                                                     \
      std::_Exit(1);                                                                                           \
    }                                                                                                          \
  } while (0)

#define CU_OK(expression)                                                                                      \
  do {                                                                                                         \
    const CUresult cu_result = (expression);                                                                   \
    if (cu_result != CUDA_SUCCESS) {                                                                           \
      std::printf("FAIL %s:%d %s: CUresult %d\n", __FILE__, __LINE__, #expression, static_cast<int>(cu_result)); \
      std::fflush(stdout);                                                                                     \
      std::_Exit(1);                                                                                           \
    }                                                                                                          \
  } while (0)

// A driver function through the runtime, so that the programs link without libcuda.so and start without a GPU.
template <typename F>
static F driver_function(const char* name, unsigned int version = 12000) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  CUDA_OK(cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || address == nullptr) {
    std::printf("FAIL the driver has no %s\n", name);
    std::_Exit(1);
  }
  return reinterpret_cast<F>(address);
}

[[maybe_unused]] static void skip_without_gpu() {
  int devices = 0;
  const cudaError_t result = cudaGetDeviceCount(&devices);
  if (result != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU (%s)\n", cudaGetErrorString(result));
    std::exit(77);
  }
}

[[maybe_unused]] static uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

[[maybe_unused]] static uint64_t load_acquire(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
[[maybe_unused]] static void store_release(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

// True when `*word` became `want` within `timeout_ms`.
[[maybe_unused]] static bool cpu_sees(const uint64_t* word, uint64_t want, uint64_t timeout_ms) {
  const uint64_t deadline = now_ns() + timeout_ms * 1000000;
  do {
    if (load_acquire(word) == want) return true;
  } while (now_ns() < deadline);
  return load_acquire(word) == want;
}

// Zeroed memfd memory registered with CUDA: what nanomc's control words live in.
struct SharedWords {
  uint64_t* host = nullptr;
  uint64_t* device = nullptr;
  size_t bytes = 0;

  explicit SharedWords(size_t size) : bytes(size) {
    const int fd = memfd_create("nmc-ctest", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
      std::perror("memfd");
      std::_Exit(1);
    }
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) {
      std::perror("mmap");
      std::_Exit(1);
    }
    host = static_cast<uint64_t*>(mapped);
    CUDA_OK(cudaHostRegister(mapped, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable));
    void* address = nullptr;
    CUDA_OK(cudaHostGetDevicePointer(&address, mapped, 0));
    device = static_cast<uint64_t*>(address);
  }
  ~SharedWords() {
    cudaHostUnregister(host);
    munmap(host, bytes);
  }
  SharedWords(const SharedWords&) = delete;
  SharedWords& operator=(const SharedWords&) = delete;
};

// Ends the program at a nanomc error. For programs that include nanomc.h.
#define NMC_CHECK(expression)                                                                              \
  do {                                                                                                     \
    const nmc_status_t nmc_result = (expression);                                                          \
    if (nmc_result != NMC_OK) {                                                                            \
      std::printf("FAIL %s:%d %s: %s: %s\n", __FILE__, __LINE__, #expression, nmc_status_name(nmc_result), \
                  nmc_last_error_message());                                                               \
      std::fflush(stdout);                                                                                 \
      std::_Exit(1);                                                                                       \
    }                                                                                                      \
  } while (0)

#endif
