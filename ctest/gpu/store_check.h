// What the GPU programs of the store share: a stop on nanomc errors, configs, memory of every kind, a stream that is
// held.
#ifndef NMC_CTEST_GPU_STORE_CHECK_H
#define NMC_CTEST_GPU_STORE_CHECK_H

#include <nanomc.h>
#include <nanomc/device.cuh>

#include <string>
#include <sys/wait.h>
#include <vector>

#include "../support/range.hpp"
#include "check.h"

static constexpr uint64_t KIB = 1024, MIB = 1024 * KIB;
static constexpr uint64_t TIMEOUT_NS = 10000000000ull, HOLD_NS = 3000000000ull;
static constexpr int64_t TIMEOUT_MS = 20000;

// A check of a status: prints both when they differ.
[[maybe_unused]] static bool expect(nmc_status_t got, nmc_status_t want, const char* name) {
  if (got != want) {
    std::printf("# got %s, wanted %s: %s\n", nmc_status_name(got), nmc_status_name(want), nmc_last_error_message());
  }
  return check(got == want, name);
}

[[maybe_unused]] static nmc_slice_t slice(const std::string& text) { return nmc_slice_t{text.data(), text.size()}; }

[[maybe_unused]] static const char* heap_name(uint32_t heap_kind) {
  return heap_kind == NMC_HEAP_CUDA ? "CUDA heap" : "host heap";
}

// An embedded store that evicts only when it must.
[[maybe_unused]] static nmc_store_config_t embedded(uint32_t heap_kind, uint64_t heap_bytes, uint64_t page_bytes) {
  nmc_store_config_t cfg = NMC_STORE_CONFIG_INIT;
  cfg.heap_kind = heap_kind;
  cfg.heap_bytes = heap_bytes;
  cfg.page_bytes = static_cast<uint32_t>(page_bytes);
  cfg.device = 0;
  cfg.high_permille = 1000;
  cfg.low_permille = 1000;
  return cfg;
}

[[maybe_unused]] static nmc_store_t* create(const nmc_store_config_t& cfg) {
  nmc_store_t* store = nullptr;
  NMC_CHECK(nmc_store_create(nullptr, &cfg, &store));
  return store;
}

[[maybe_unused]] static nmc_put_options_t options(uint32_t flags, uint32_t retain = NMC_RETAIN_NONE) {
  nmc_put_options_t put = NMC_PUT_OPTIONS_INIT;
  put.flags = flags;
  put.retain = retain;
  return put;
}

[[maybe_unused]] static uint32_t state_of(nmc_store_t* store, const std::string& key) {
  uint32_t state = 99;
  NMC_CHECK(nmc_store_exists(store, slice(key), &state));
  return state;
}

// Opens a plan; tries again while everything else is pinned or being written.
[[maybe_unused]] static nmc_write_plan_t open_plan(nmc_store_t* store, const std::string& key, uint64_t bytes,
                                                   const nmc_put_options_t* put = nullptr) {
  nmc_write_plan_t plan = {};
  const uint64_t deadline = now_ns() + TIMEOUT_NS;
  nmc_status_t status = nmc_store_open_for_write(store, slice(key), bytes, put, &plan);
  while (status == NMC_ERR_BUSY && now_ns() < deadline) {
    usleep(50);
    status = nmc_store_open_for_write(store, slice(key), bytes, put, &plan);
  }
  NMC_CHECK(status);
  return plan;
}

// ---- memory -------------------------------------------------------------------------------------------------------

enum Kind { DEVICE, PINNED, ORDINARY };
[[maybe_unused]] static constexpr Kind KINDS[] = {DEVICE, PINNED, ORDINARY};
[[maybe_unused]] static const char* const KIND_NAMES[] = {"device", "pinned", "ordinary"};

// Zeroed pinned memory; device code can use the same address.
template <typename T>
static T* pinned_array(size_t n) {
  void* memory = nullptr;
  CUDA_OK(cudaHostAlloc(&memory, n * sizeof(T), cudaHostAllocMapped | cudaHostAllocPortable));
  std::memset(memory, 0, n * sizeof(T));
  return static_cast<T*>(memory);
}

// Zeroed device memory.
template <typename T>
static T* device_array(size_t n) {
  void* memory = nullptr;
  CUDA_OK(cudaMalloc(&memory, n * sizeof(T)));
  CUDA_OK(cudaMemset(memory, 0, n * sizeof(T)));
  CUDA_OK(cudaDeviceSynchronize());
  return static_cast<T*>(memory);
}

// Memory of one kind. `write`, `fill` and `read` are for before and after: they wait for the whole device.
struct Memory {
  Kind kind;
  char* base = nullptr;
  size_t bytes;

  Memory(Kind k, size_t n) : kind(k), bytes(n) {
    if (kind == DEVICE) {
      base = device_array<char>(bytes);
    } else if (kind == PINNED) {
      base = pinned_array<char>(bytes);
    } else {
      base = static_cast<char*>(std::calloc(1, bytes));
    }
  }
  ~Memory() {
    if (kind == DEVICE) cudaFree(base);
    if (kind == PINNED) cudaFreeHost(base);
    if (kind == ORDINARY) std::free(base);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void write(size_t at, const void* from, size_t n) {
    if (kind == DEVICE) {
      CUDA_OK(cudaMemcpy(base + at, from, n, cudaMemcpyHostToDevice));
      CUDA_OK(cudaDeviceSynchronize());
    } else {
      std::memcpy(base + at, from, n);
    }
  }
  void fill(size_t at, uint8_t value, size_t n) {
    if (kind == DEVICE) {
      CUDA_OK(cudaMemset(base + at, value, n));
      CUDA_OK(cudaDeviceSynchronize());
    } else {
      std::memset(base + at, value, n);
    }
  }
  void read(size_t at, void* to, size_t n) const {
    if (kind == DEVICE) {
      CUDA_OK(cudaMemcpy(to, base + at, n, cudaMemcpyDeviceToHost));
    } else {
      std::memcpy(to, base + at, n);
    }
  }
};

// ---- a stream that is held ----------------------------------------------------------------------------------------

static __global__ void hold_kernel(const uint64_t* word, uint64_t ticket) { nmc_dev_wait_ge(word, ticket, HOLD_NS); }

// Holds streams until `end`, or for 3 s. Nothing may allocate or wait for the device meanwhile.
struct Hold {
  uint64_t* word = pinned_array<uint64_t>(8);
  uint64_t ticket = 0;

  Hold() = default;
  ~Hold() { cudaFreeHost(word); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  void begin(cudaStream_t stream) {
    hold_kernel<<<1, 1, 0, stream>>>(word, ++ticket);
    CUDA_OK(cudaGetLastError());
  }
  void end() { store_release(word, ticket); }
};

[[maybe_unused]] static cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// ---- processes ----------------------------------------------------------------------------------------------------

[[maybe_unused]] static std::string own_path(const char* argv0) {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : std::string(argv0);
}

// Runs this program as ranks 0 to n-1, with `mode`, rank, n, a world's name and `what`; true when all succeed. To be
// called before this process touches CUDA or nanomc.
[[maybe_unused]] static bool run_ranks(const std::string& program, const char* mode, uint32_t n,
                                       const std::string& what) {
  const std::string name = std::string("ctest-") + mode + "-" + std::to_string(getpid());
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < n; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      const std::string r = std::to_string(rank), size = std::to_string(n);
      execl(program.c_str(), program.c_str(), mode, r.c_str(), size.c_str(), name.c_str(), what.c_str(),
            static_cast<char*>(nullptr));
      std::perror("execl");
      std::_Exit(1);
    }
    children.push_back(pid);
  }
  bool all = true;
  for (const pid_t child : children) {
    int status = 0;
    all = waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0 && all;
  }
  return all;
}

// Whether there is a GPU, asked by a child: this process may still fork.
[[maybe_unused]] static bool child_sees_gpu() {
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    skip_without_gpu();
    std::_Exit(0);
  }
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) != 77;
}

// What every program of the store does first.
static void prepare_environment() {
  // Loading a kernel late may wait for the device, which a waiting kernel would never leave.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  // Streams that share a hardware queue wait for each other; a held one would stop the others.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}

#endif
