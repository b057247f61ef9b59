// What the EP programs share that have one process a rank: joining, a step, and the parent of all of them.
#ifndef NMC_CTEST_GPU_EP_RANKS_H
#define NMC_CTEST_GPU_EP_RANKS_H

#include <signal.h>
#include <sys/wait.h>

#include "ep_group.h"

namespace ep {

struct Member {
  nmc_world_t* world = nullptr;
  nmc_ep_t* ep = nullptr;
  cudaStream_t stream = nullptr;
};

inline Member join(const Case& c, uint32_t rank, const char* dir, const char* name, uint64_t heap) {
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

inline uint64_t heap_for(const Case& c) {
  const nmc_ep_config_t config = c.config();
  nmc_ep_bytes_t bytes = NMC_EP_BYTES_INIT;
  NMC_CHECK(nmc_ep_bytes_needed(&config, c.world, 0, &bytes));
  return (bytes.transport + (2 << 20) - 1) >> 21 << 21;
}

// One step of one rank; its number in the group may differ from its rank.
inline nmc_status_t step_of(const Member& m, Rank<DeviceMemory>& rank, uint32_t s, Bytes* out) {
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

// What the MPS control daemon answers; empty if there is none.
inline std::string mps(const std::string& command) {
  FILE* pipe = popen(("echo " + command + " | nvidia-cuda-mps-control 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return "";
  std::string all;
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr) all += line;
  pclose(pipe);
  return all.find("Cannot find") == std::string::npos ? all : "";
}

// Ends a client of MPS, so that killing it does not break the contexts of the others.
inline bool terminate_client(pid_t client) {
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
inline int run_children(const char* mode, uint64_t seed, uint32_t world, int doomed, uint32_t after_ms, bool gently = false) {
  char folder[] = "/tmp/nmc-ep-gpu-XXXXXX";
  if (mkdtemp(folder) == nullptr) return std::perror("mkdtemp"), 1;
  std::vector<pid_t> children;
  for (uint32_t r = 0; r < world; ++r) {
    const pid_t child = fork();
    if (child == 0) {
      const std::string a = std::to_string(seed), b = std::to_string(r), d = std::to_string(doomed);
      execl("/proc/self/exe", "ep_ranks", "child", mode, a.c_str(), b.c_str(), folder, d.c_str(), nullptr);
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

}  // namespace ep

#endif
