// A world of ranks with CUDA memory, used as an engine uses it: nanomc.h on the host, nanomc/device.cuh in kernels.
// usage: world_gpu procs N     N processes, one rank each, device ranks in reverse order
//        world_gpu ranks N     N ranks in this process, one thread each
//        world_gpu graph       a captured nmc_world_write_word_async, replayed 3 times
//        world_gpu import      2 processes lend cudaMalloc, VMM and host memory as heaps
//        world_gpu rejoin      3 processes, one is killed, another takes its place and its heap
//        world_gpu drain       a killed rank leaves a forked child and a kernel that stores
//        world_gpu contexts    calls leave the caller's current context as it was
//        world_gpu fork        a forked child is refused, its parent goes on

#include <nanomc.h>
#include <nanomc/device.cuh>

#include <csignal>
#include <fcntl.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include "check.h"

static constexpr uint64_t HEAP_BYTES = 8u << 20, OFFSET = 4096, PAIR_BYTES = 64u << 10;
static constexpr uint64_t TIMEOUT_NS = 20000000000ull;
static constexpr int64_t TIMEOUT_MS = 20000;

// ---- kernels ------------------------------------------------------------------------------------------------------

// One block per destination: fill its part of the destination's heap, then publish `step` into its word for `me`.
__global__ void send(const uint64_t* bases, const uint64_t* words, uint32_t me, uint64_t step) {
  const uint32_t dst = blockIdx.x;
  uint64_t* out = static_cast<uint64_t*>(nmc_dev_peer_ptr(bases, dst, OFFSET + me * PAIR_BYTES));
  for (uint64_t i = threadIdx.x; i < PAIR_BYTES / 8; i += blockDim.x) out[i] = nmc_pattern_u64(step, me, dst, i);
  __syncthreads();
  if (threadIdx.x == 0) nmc_dev_publish(reinterpret_cast<uint64_t*>(words[dst]), step);
}

// One block: wait for every source's word and count wrong words; a source that does not come counts as all wrong.
__global__ void receive(const uint64_t* bases, const uint64_t* my_words, uint32_t me, uint32_t n, uint64_t step,
                        unsigned long long* wrong) {
  __shared__ bool there;
  for (uint32_t src = 0; src < n; ++src) {
    if (threadIdx.x == 0) there = nmc_dev_wait_ge(reinterpret_cast<const uint64_t*>(my_words[src]), step, TIMEOUT_NS);
    __syncthreads();
    const char* in = static_cast<const char*>(nmc_dev_peer_ptr(bases, me, OFFSET + src * PAIR_BYTES));
    for (uint64_t i = threadIdx.x; i < PAIR_BYTES / 16; i += blockDim.x) {
      const ulonglong2 seen = nmc_dev_ld16(in + i * 16);
      if (!there || seen.x != nmc_pattern_u64(step, src, me, 2 * i) || seen.y != nmc_pattern_u64(step, src, me, 2 * i + 1)) {
        atomicAdd(wrong, 1ull);
      }
    }
    __syncthreads();
  }
}

// ---- a rank -------------------------------------------------------------------------------------------------------

static nmc_slice_t slice(const std::string& text) { return nmc_slice_t{text.data(), text.size()}; }

static nmc_world_config_t config(const std::string& name, int32_t rank, uint32_t n) {
  nmc_world_config_t cfg = NMC_WORLD_CONFIG_INIT;
  cfg.name = slice(name);
  cfg.rank = rank;
  cfg.world_size = n;
  cfg.heap_kind = NMC_HEAP_CUDA;
  cfg.heap_bytes = HEAP_BYTES;
  cfg.device = 0;
  cfg.join_timeout_ms = TIMEOUT_MS;
  return cfg;
}

// Everything a rank needs on the device. Made before any kernel waits: cudaMalloc may wait for the device.
struct Rank {
  nmc_world_t* world;
  uint32_t n, device_rank;
  const uint64_t* bases = nullptr;
  uint64_t *words_out = nullptr, *words_in = nullptr;
  unsigned long long* wrong = nullptr;
  cudaStream_t stream = nullptr;

  // `reversed` says that world rank r has device rank n - 1 - r.
  Rank(nmc_world_t* w, uint32_t rank, uint32_t size, bool reversed) : world(w), n(size) {
    const auto device_rank_of = [&](uint32_t r) { return reversed ? n - 1 - r : r; };
    device_rank = device_rank_of(rank);
    const uint64_t* host_bases = nullptr;
    uint32_t entries = 0;
    NMC_CHECK(nmc_world_base_table(world, &host_bases, &bases, &entries));
    if (entries != n || bases == nullptr) {
      std::printf("FAIL the base table has %u entries for %u ranks\n", entries, n);
      std::_Exit(1);
    }
    std::vector<uint64_t> out(n), in(n);
    for (uint32_t r = 0; r < n; ++r) {
      uint64_t *host_word = nullptr, *device_word = nullptr;
      NMC_CHECK(nmc_world_word(world, r, device_rank, &host_word, &device_word));
      out[device_rank_of(r)] = reinterpret_cast<uint64_t>(device_word);
      NMC_CHECK(nmc_world_word(world, rank, device_rank_of(r), &host_word, &device_word));
      in[device_rank_of(r)] = reinterpret_cast<uint64_t>(device_word);
    }
    CUDA_OK(cudaSetDevice(0));
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_OK(cudaMalloc(&words_out, n * 8));
    CUDA_OK(cudaMalloc(&words_in, n * 8));
    CUDA_OK(cudaMalloc(&wrong, 8));
    CUDA_OK(cudaMemcpyAsync(words_out, out.data(), n * 8, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaMemcpyAsync(words_in, in.data(), n * 8, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaMemsetAsync(wrong, 0, 8, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
  }

  // Sends to and receives from every rank, itself included, `steps` times; returns the number of wrong places.
  uint64_t exchange(uint64_t first_step, uint64_t steps) {
    NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
    for (uint64_t step = first_step; step < first_step + steps; ++step) {
      send<<<n, 256, 0, stream>>>(bases, words_out, device_rank, step);
      // Streams of one process can share a hardware queue: nobody waits before everybody's sends are in theirs.
      NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
      receive<<<1, 512, 0, stream>>>(bases, words_in, device_rank, n, step, wrong);
      CUDA_OK(cudaGetLastError());
      CUDA_OK(cudaStreamSynchronize(stream));
      // Nobody overwrites what a slower rank still reads.
      NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
    }
    unsigned long long total = 0;
    CUDA_OK(cudaMemcpyAsync(&total, wrong, 8, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    return total;
  }

  ~Rank() {
    // cudaFree waits for the device, so not before every rank of this process has finished.
    nmc_world_barrier(world, TIMEOUT_MS);
    cudaFree(words_out);
    cudaFree(words_in);
    cudaFree(wrong);
    cudaStreamDestroy(stream);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
};

// ---- processes ----------------------------------------------------------------------------------------------------

static std::string own_path;

static pid_t run_rank(const char* mode, uint32_t rank, uint32_t n, const std::string& name) {
  const pid_t pid = fork();
  if (pid == 0) {
    const std::string r = std::to_string(rank), size = std::to_string(n);
    execl(own_path.c_str(), own_path.c_str(), mode, r.c_str(), size.c_str(), name.c_str(), static_cast<char*>(nullptr));
    std::perror("execl");
    std::_Exit(1);
  }
  return pid;
}

// Runs this program once per rank with `mode` + rank + n + world name, starts one that is killed again, and tells
// whether all of them succeed.
static bool run_ranks(const char* mode, uint32_t n) {
  const std::string name = std::string("ctest-") + mode + "-" + std::to_string(getpid());
  std::vector<pid_t> children;
  std::fflush(stdout);
  for (uint32_t rank = 0; rank < n; ++rank) children.push_back(run_rank(mode, rank, n, name));
  bool all = true;
  for (uint32_t left = n; left > 0;) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    for (uint32_t rank = 0; rank < n; ++rank) {
      if (children[rank] != ended) continue;
      if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        children[rank] = run_rank(mode, rank, n, name);
      } else {
        all = WIFEXITED(status) && WEXITSTATUS(status) == 0 && all;
        --left;
      }
    }
  }
  return all;
}

static int as_process(uint32_t rank, uint32_t n, const std::string& name) {
  nmc_world_config_t cfg = config(name, static_cast<int32_t>(rank), n);
  cfg.device_rank = static_cast<int32_t>(n - 1 - rank);
  nmc_world_t* world = nullptr;
  NMC_CHECK(nmc_world_join(&cfg, &world));
  uint64_t wrong = 0;
  {
    Rank me(world, rank, n, true);
    wrong = me.exchange(1, 5);
  }
  NMC_CHECK(nmc_world_selftest(world, 42, TIMEOUT_MS));
  NMC_CHECK(nmc_world_destroy(world));
  if (wrong != 0) std::printf("# rank %u: %llu wrong places\n", rank, static_cast<unsigned long long>(wrong));
  return wrong == 0 ? 0 : 1;
}

// ---- a rank dies and is replaced ----------------------------------------------------------------------------------

static uint64_t first_word_of(nmc_world_t* world, int32_t rank) {
  void* heap = nullptr;
  uint64_t value = 0;
  NMC_CHECK(nmc_world_ptr(world, rank, 0, 8, &heap));
  CUDA_OK(cudaMemcpy(&value, heap, 8, cudaMemcpyDeviceToHost));
  return value;
}

static void set_first_word(nmc_world_t* world, int32_t rank, uint64_t value) {
  void* heap = nullptr;
  NMC_CHECK(nmc_world_ptr(world, rank, 0, 8, &heap));
  CUDA_OK(cudaMemcpy(heap, &value, 8, cudaMemcpyHostToDevice));
  // From pageable memory it returns when the value has been taken, which is before it is there for other processes to see.
  CUDA_OK(cudaDeviceSynchronize());
}

static uint32_t state_of(nmc_world_t* world, int32_t rank) {
  uint32_t state = 0;
  NMC_CHECK(nmc_world_alive(world, rank, &state));
  return state;
}

constexpr int32_t VICTIM = 1;

// Rank 1 kills itself the first time it lives; its successor must find the device memory that it left.
static int as_mortal(int32_t rank, uint32_t n, const std::string& name) {
  const nmc_world_config_t cfg = config(name, rank, n);
  CUDA_OK(cudaSetDevice(0));
  nmc_world_t* world = nullptr;
  NMC_CHECK(nmc_world_join(&cfg, &world));
  nmc_rank_info_t info = NMC_RANK_INFO_INIT;
  NMC_CHECK(nmc_world_rank_info(world, VICTIM, &info));
  const bool successor = rank == VICTIM && info.generation == 2;
  bool fine = true;
  if (!successor) {
    set_first_word(world, rank, 1000 + static_cast<uint64_t>(rank));
    NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
    if (rank == VICTIM) raise(SIGKILL);
    const auto died = std::chrono::steady_clock::now();
    while (state_of(world, VICTIM) == NMC_RANK_ALIVE && std::chrono::steady_clock::now() - died < std::chrono::seconds(60)) usleep(1000);
    fine = first_word_of(world, VICTIM) == 1000 + VICTIM;
    if (!fine) std::printf("# rank %d cannot read what the dead rank left\n", rank);
  } else {
    fine = first_word_of(world, VICTIM) == 1000 + VICTIM;
    if (!fine) std::printf("# the successor does not find what its predecessor left\n");
    set_first_word(world, VICTIM, 2000);
  }
  nmc_status_t met = NMC_ERR_PEER_LOST;
  for (int tries = 0; met == NMC_ERR_PEER_LOST && tries < 6000; ++tries) {
    met = nmc_world_barrier(world, TIMEOUT_MS);
    if (met == NMC_ERR_PEER_LOST) usleep(10000);
  }
  NMC_CHECK(met);
  if (first_word_of(world, VICTIM) != 2000) {
    std::printf("# rank %d does not see what the successor wrote\n", rank);
    fine = false;
  }
  NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
  NMC_CHECK(nmc_world_selftest(world, 77, TIMEOUT_MS));
  NMC_CHECK(nmc_world_destroy(world));
  return fine ? 0 : 1;
}

// ---- a killed process whose kernel goes on --------------------------------------------------------------------------

// Stores a growing number into a peer's control word for `ns` nanoseconds.
__global__ void storm(uint64_t* word, uint64_t ns) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin)::"memory");
  uint64_t value = 1;
  do {
    nmc_dev_st_relaxed_sys_u64(word, ++value);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
  } while (now - begin < ns);
}

static bool changes_within(const volatile uint64_t* word, int ms) {
  const uint64_t before = *word;
  for (int i = 0; i < ms; ++i) {
    usleep(1000);
    if (*word != before) return true;
  }
  return false;
}

// Rank 1 forks a child, starts a kernel that stores into rank 0's memory, and kills itself. Its rank must not be given
// away while the child lives or the kernel stores.
static int as_stormy(int32_t rank, uint32_t n, const std::string& name) {
  const nmc_world_config_t cfg = config(name, rank, n);
  CUDA_OK(cudaSetDevice(0));
  nmc_world_t* world = nullptr;
  NMC_CHECK(nmc_world_join(&cfg, &world));
  uint64_t *host_word = nullptr, *device_word = nullptr;
  NMC_CHECK(nmc_world_word(world, 0, 7, &host_word, &device_word));
  nmc_rank_info_t info = NMC_RANK_INFO_INIT;
  NMC_CHECK(nmc_world_rank_info(world, VICTIM, &info));
  bool fine = true;
  if (rank == VICTIM && info.generation == 1) {
    NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
    storm<<<1, 1>>>(device_word, 6000000000ull);
    CUDA_OK(cudaGetLastError());
    while (*static_cast<volatile uint64_t*>(host_word) == 0) usleep(100);
    if (fork() == 0) {
      usleep(3000000);
      std::_Exit(0);
    }
    raise(SIGKILL);
  } else if (rank != VICTIM) {
    NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
    const auto begin = std::chrono::steady_clock::now();
    const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
    while (state_of(world, VICTIM) == NMC_RANK_ALIVE && seconds() < 60) usleep(1000);
    const double died = seconds();
    // The control: who frees the rank as soon as the process is dead frees it under a kernel that stores.
    const bool went_on = changes_within(host_word, 200);
    do {
      NMC_CHECK(nmc_world_rank_info(world, VICTIM, &info));
      usleep(1000);
    } while (info.state == NMC_RANK_DYING && info.generation == 1 && seconds() < 60);
    fine = !changes_within(host_word, 1000);
    std::printf("# after the process was dead its kernel %s; the rank was free after %.1f s, and then %s\n",
                went_on ? "went on storing (the control)" : "stored nothing more", seconds() - died,
                fine ? "nothing stored" : "something STILL STORED");
  }
  NMC_CHECK(nmc_world_destroy(world));
  return fine ? 0 : 1;
}

// ---- ranks in one process -----------------------------------------------------------------------------------------

static void test_ranks(uint32_t n) {
  const std::string name = "ctest-ranks-" + std::to_string(getpid());
  const nmc_world_config_t cfg = config(name, -1, n);
  std::vector<int32_t> ranks(n);
  for (uint32_t r = 0; r < n; ++r) ranks[r] = static_cast<int32_t>(r);
  std::vector<nmc_world_t*> worlds(n);
  NMC_CHECK(nmc_world_join_ranks(&cfg, ranks.data(), n, worlds.data()));
  std::vector<uint64_t> wrong(n);
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      Rank me(worlds[r], r, n, false);
      wrong[r] = me.exchange(1, 5);
    });
  }
  for (auto& thread : threads) thread.join();
  uint64_t total = 0;
  for (const uint64_t w : wrong) total += w;
  check(total == 0, "ranks of one process exchange through their heaps");
  for (nmc_world_t* world : worlds) check(nmc_world_destroy(world) == NMC_OK, "destroy of a rank");

  std::vector<nmc_world_t*> local(n);
  NMC_CHECK(nmc_world_create_local(&cfg, local.data()));
  std::vector<nmc_status_t> tested(n);
  threads.clear();
  for (uint32_t r = 0; r < n; ++r) {
    threads.emplace_back([&, r] { tested[r] = nmc_world_selftest(local[r], 5, TIMEOUT_MS); });
  }
  for (auto& thread : threads) thread.join();
  bool all = true;
  for (const nmc_status_t status : tested) all = all && status == NMC_OK;
  check(all, "all ranks of a local world pass the self-test");
  for (nmc_world_t* world : local) check(nmc_world_destroy(world) == NMC_OK, "destroy of a local rank");
}

// ---- graph --------------------------------------------------------------------------------------------------------

static nmc_world_t* local_world() {
  static const std::string name = "ctest-local-" + std::to_string(getpid());
  const nmc_world_config_t cfg = config(name, -1, 1);
  nmc_world_t* world = nullptr;
  NMC_CHECK(nmc_world_create_local(&cfg, &world));
  return world;
}

static void test_graph() {
  nmc_world_t* world = local_world();
  uint64_t *host_word = nullptr, *device_word = nullptr;
  NMC_CHECK(nmc_world_word(world, 0, 3, &host_word, &device_word));
  store_release(host_word, 0);
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  NMC_CHECK(nmc_world_write_word_async(world, 0, 3, 4711, stream));
  cudaGraph_t graph;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  check(load_acquire(host_word) == 0, "a captured word is not stored at capture");
  cudaGraphExec_t exec;
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int replay = 0; replay < 3; ++replay) {
    store_release(host_word, 0);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    check(cpu_sees(host_word, 4711, 10000), "the CPU sees the captured word at a replay");
    CUDA_OK(cudaStreamSynchronize(stream));
  }
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaStreamDestroy(stream));
  NMC_CHECK(nmc_world_destroy(world));
}

// ---- lent memory --------------------------------------------------------------------------------------------------

// VMM memory of the engine: exportable, one allocation, mapped at *base.
static void engine_vmm(CUdeviceptr* base, size_t* bytes, int* fd) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = 0;
  CUmemAccessDesc access = {};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUmemGenericAllocationHandle handle;
  *bytes = HEAP_BYTES; // a multiple of the granularity of 2 MiB
  CU_OK(driver_function<decltype(&cuMemCreate)>("cuMemCreate")(&handle, *bytes, &prop, 0));
  CU_OK(driver_function<decltype(&cuMemAddressReserve)>("cuMemAddressReserve")(base, *bytes, 0, 0, 0));
  CU_OK(driver_function<decltype(&cuMemMap)>("cuMemMap")(*base, *bytes, 0, handle, 0));
  CU_OK(driver_function<decltype(&cuMemSetAccess)>("cuMemSetAccess")(*base, *bytes, &access, 1));
  CU_OK(driver_function<decltype(&cuMemExportToShareableHandle)>("cuMemExportToShareableHandle")(
      fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static int sealed_memfd() {
  const int fd = memfd_create("ctest-lent", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, HEAP_BYTES) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    std::perror("memfd");
    std::_Exit(1);
  }
  return fd;
}

// The only place that knows how memory is lent.
static nmc_memory_t lend(uint32_t kind, uint64_t address, int fd) {
  nmc_memory_t memory = {};
  memory.kind = kind;
  memory.fd = fd;
  memory.ptr = reinterpret_cast<void*>(address);
  return memory;
}

static int as_lender(const char* what, uint32_t rank, uint32_t n, const std::string& name) {
  nmc_world_config_t cfg = config(name, static_cast<int32_t>(rank), n);
  CUDA_OK(cudaSetDevice(0));
  CUDA_OK(cudaFree(nullptr));
  CUdeviceptr vmm = 0;
  size_t vmm_bytes = 0;
  int fd = -1;
  char* pool = nullptr;
  if (std::strcmp(what, "lend-malloc") == 0) {
    // The heap begins inside the allocation, as a slice of an engine's pool does.
    CUDA_OK(cudaMalloc(&pool, HEAP_BYTES + (4u << 20)));
    cfg.heap_import = lend(NMC_IMPORT_CUDA_PTR, reinterpret_cast<uint64_t>(pool) + (1u << 20), -1);
  } else if (std::strcmp(what, "lend-vmm") == 0) {
    engine_vmm(&vmm, &vmm_bytes, &fd);
    cfg.heap_import = lend(NMC_IMPORT_CUDA_PTR, vmm, -1);
  } else if (std::strcmp(what, "lend-vmm-fd") == 0) {
    engine_vmm(&vmm, &vmm_bytes, &fd);
    cfg.heap_import = lend(NMC_IMPORT_CUDA_FD, 0, fd);
  } else {
    cfg.heap_kind = NMC_HEAP_HOST;
    fd = sealed_memfd();
    cfg.heap_import = lend(NMC_IMPORT_HOST_FD, 0, fd);
  }
  nmc_world_t* world = nullptr;
  NMC_CHECK(nmc_world_join(&cfg, &world));
  uint64_t wrong = 0;
  {
    Rank me(world, rank, n, false);
    wrong = me.exchange(1, 3);
  }
  if (pool != nullptr) {
    uint64_t first = 0;
    CUDA_OK(cudaMemcpy(&first, pool + (1u << 20) + OFFSET, 8, cudaMemcpyDeviceToHost));
    if (first != nmc_pattern_u64(3, 0, rank, 0)) ++wrong;
  }
  NMC_CHECK(nmc_world_destroy(world));
  if (pool != nullptr) CUDA_OK(cudaFree(pool)); // still the engine's after destroy
  return wrong == 0 ? 0 : 1;
}

// ---- contexts -----------------------------------------------------------------------------------------------------

// Looked up before the threads start: a call of the runtime could itself make a context current.
static decltype(&cuCtxGetCurrent) get_current = nullptr;

static CUcontext current_context() {
  CUcontext context = nullptr;
  CU_OK(get_current(&context));
  return context;
}

static bool calls_keep_context(CUcontext expected) {
  bool kept = current_context() == expected;
  nmc_world_t* world = local_world();
  kept = kept && current_context() == expected;
  void* ptr = nullptr;
  NMC_CHECK(nmc_world_ptr(world, 0, 0, 64, &ptr));
  const uint64_t *host = nullptr, *device = nullptr;
  uint32_t n = 0;
  NMC_CHECK(nmc_world_base_table(world, &host, &device, &n));
  kept = kept && current_context() == expected;
  NMC_CHECK(nmc_world_selftest(world, 1, TIMEOUT_MS));
  kept = kept && current_context() == expected;
  // A call that fails must restore as well.
  kept = kept && nmc_world_ptr(world, 99, 0, 64, &ptr) != NMC_OK && current_context() == expected;
  NMC_CHECK(nmc_world_destroy(world));
  return kept && current_context() == expected;
}

static void test_contexts() {
  using CtxCreate = CUresult (*)(CUcontext*, unsigned int, CUdevice);
  // Version 3.2 of the call, whose signature has stayed the same.
  const auto create = driver_function<CtxCreate>("cuCtxCreate", 10000);
  get_current = driver_function<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent");
  const auto set_current = driver_function<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent");
  const auto destroy = driver_function<CUresult (*)(CUcontext)>("cuCtxDestroy");
  std::thread([&] {
    CU_OK(set_current(nullptr));
    check(calls_keep_context(nullptr), "calls on a thread without a context leave it without one");
  }).join();
  std::thread([&] {
    CUDA_OK(cudaSetDevice(0));
    CUDA_OK(cudaFree(nullptr));
    check(calls_keep_context(current_context()), "calls leave the primary context current");
  }).join();
  std::thread([&] {
    CUcontext own = nullptr;
    CU_OK(create(&own, 0, 0));
    check(calls_keep_context(own), "calls leave a context of the caller's own current");
    CU_OK(destroy(own));
  }).join();
}

// ---- fork ---------------------------------------------------------------------------------------------------------

static void test_fork() {
  nmc_world_t* world = local_world();
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    void* ptr = nullptr;
    const bool refused = nmc_world_ptr(world, 0, 0, 64, &ptr) == NMC_ERR_FORKED &&
                         nmc_world_barrier(world, 100) == NMC_ERR_FORKED &&
                         nmc_world_write_word_async(world, 0, 0, 1, nullptr) == NMC_ERR_FORKED;
    nmc_world_destroy(world);
    std::_Exit(refused ? 0 : 1);
  }
  int status = 0;
  const bool exited = waitpid(pid, &status, 0) == pid && WIFEXITED(status);
  check(exited && WEXITSTATUS(status) == 0, "a forked child is refused with NMC_ERR_FORKED");
  uint64_t wrong = 1;
  {
    Rank me(world, 0, 1, false);
    wrong = me.exchange(1, 3);
  }
  check(wrong == 0, "the parent goes on after the child destroyed its copy of the handle");
  check(nmc_world_destroy(world) == NMC_OK, "destroy in the parent");
}

int main(int argc, char** argv) {
  // Loading a kernel late may wait for the device, which a waiting kernel would never leave.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  own_path = length > 0 ? std::string(path, static_cast<size_t>(length)) : std::string(argv[0]);
  const std::string mode = argc > 1 ? argv[1] : "";
  const uint32_t second = argc > 2 ? static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 2;
  if (argc == 5) {
    const uint32_t n = static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10));
    if (mode == "as-process") return as_process(second, n, argv[4]);
    if (mode == "as-stormy") return as_stormy(static_cast<int32_t>(second), n, argv[4]);
    if (mode == "as-mortal") return as_mortal(static_cast<int32_t>(second), n, argv[4]);
    return as_lender(argv[1], second, n, argv[4]);
  }
  if (mode == "procs" || mode == "import" || mode == "rejoin" || mode == "drain") {
    // These fork before they touch CUDA; a rank without a GPU says so itself, and a child asks first here.
    std::fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
      skip_without_gpu();
      std::_Exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return 77;
  } else {
    skip_without_gpu();
  }

  if (mode == "procs") {
    check(run_ranks("as-process", second), "ranks of several processes exchange through their heaps");
  } else if (mode == "rejoin") {
    check(run_ranks("as-mortal", 3), "a killed rank's device memory is there for the others and for its successor");
  } else if (mode == "drain") {
    check(run_ranks("as-stormy", 2), "a rank is free only when its forked child and its kernel have ended");
  } else if (mode == "ranks") {
    test_ranks(second);
  } else if (mode == "graph") {
    test_graph();
  } else if (mode == "import") {
    check(run_ranks("lend-malloc", 2), "two processes lend slices of their cudaMalloc pools");
    check(run_ranks("lend-vmm", 2), "two processes lend VMM memory by address");
    check(run_ranks("lend-vmm-fd", 2), "two processes lend VMM memory by descriptor");
    check(run_ranks("lend-host", 2), "two processes lend sealed memfds");
  } else if (mode == "contexts") {
    test_contexts();
  } else if (mode == "fork") {
    test_fork();
  } else {
    std::printf("usage: world_gpu procs N | ranks N | graph | import | rejoin | drain | contexts | fork\n");
    return 2;
  }
  return finish();
}
