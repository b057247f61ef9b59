// The expert-parallel transport on a GPU with one process a rank: bit for bit what the CPU backend gives.
// `ep_procs_gpu same N [FIRST [device_scope|early|early_device_scope]]`: N random cases, early ones under MPS alone.
// `ep_procs_gpu abort`: an abort by another process.
#include "ep_ranks.h"

using namespace ep;

namespace {

int proc_child(uint64_t seed, uint32_t number, const char* dir, const std::string& how) {
  const Case c = wide_case(seed);
  const std::vector<std::vector<Bytes>> want = on_cpu(c);
  Member m = join(c, number, dir, "procs", heap_for(c));
  nmc_ep_config_t config = c.config();
  if (how.find("device_scope") != std::string::npos) config.flags |= NMC_EP_DEVICE_SCOPE;
  if (how.find("early") != std::string::npos) config.flags |= NMC_EP_EARLY, config.blocks = 16;  // as ep_bench measures
  NMC_CHECK(nmc_ep_create(m.world, &config, &m.ep));
  Rank<DeviceMemory> rank(c, number);
  int wrong = 0;
  for (uint32_t s = 0; s < kSteps; ++s) {
    Bytes got;
    NMC_CHECK(step_of(m, rank, s, &got));
    if (got != want[s][number]) {
      std::printf("seed %llu step %u rank %u: other bits\n", static_cast<unsigned long long>(seed), s, number);
      wrong = 1;
    }
  }
  NMC_CHECK(nmc_world_barrier(m.world, 60000));
  NMC_CHECK(nmc_ep_destroy(m.ep));
  NMC_CHECK(nmc_world_destroy(m.world));
  return wrong;
}

// Rank 0 waits in its kernel; rank 1, in another process, has none and aborts from the host.
int abort_child(uint32_t number, const char* dir) {
  Case c;
  c.world = 2, c.t_cap = 8, c.hidden = 1024, c.experts = 8, c.top_k = 2, c.masked = false, c.deadline_ms = 30000;
  Member m = join(c, number, dir, "abort", heap_for(c));
  const nmc_ep_config_t config = c.config();
  NMC_CHECK(nmc_ep_create(m.world, &config, &m.ep));
  Rank<DeviceMemory> rank(c, number);
  rank.load(0, 4);
  NMC_CHECK(nmc_world_barrier(m.world, 60000));
  int wrong = 0;
  if (number == 0) {
    const nmc_ep_dispatch_t args = rank.dispatch(0, false);
    const uint64_t began = now_ns();
    NMC_CHECK(nmc_ep_dispatch(m.ep, &args, m.stream));
    CUDA_OK(cudaStreamSynchronize(m.stream));
    const double waited = static_cast<double>(now_ns() - began) * 1e-9;
    const nmc_status_t status = nmc_ep_check(m.ep);
    std::printf("  after %.2f s: %s: %s\n", waited, nmc_status_name(status), nmc_last_error_message());
    wrong = status != NMC_ERR_CANCELLED || waited > 10;
  } else {
    usleep(500000);
    NMC_CHECK(nmc_ep_abort(m.ep));
    wrong = nmc_ep_check(m.ep) != NMC_ERR_CANCELLED;
  }
  NMC_CHECK(nmc_world_barrier(m.world, 60000));
  NMC_CHECK(nmc_ep_destroy(m.ep));
  NMC_CHECK(nmc_world_destroy(m.world));
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const auto number = [&](int i, uint64_t otherwise) { return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise; };
  if (mode == "child" && argc > 6) {
    const uint32_t rank = static_cast<uint32_t>(number(4, 0));
    if (std::strncmp(argv[2], "same", 4) == 0) return proc_child(number(3, 1), rank, argv[5], argv[2] + 4);
    return abort_child(rank, argv[5]);
  }
  if (mode == "same") {  // without a context in the parent
    for (uint64_t seed = number(3, 1); seed < number(3, 1) + number(2, 4); ++seed) {
      const std::string how = mode + (argc > 4 ? argv[4] : "");
      if (how.find("early") != std::string::npos && mps("get_default_active_thread_percentage").empty()) {
        return std::printf("skipped: no MPS\n"), 77;
      }
      check(run_children(how.c_str(), seed, wide_case(seed).world, -1, 0) == 0, "processes give the bits of the CPU");
    }
  } else if (mode == "abort") {
    check(run_children("abort", 1, 2, -1, 0) == 0, "an abort reaches a kernel of another process");
  } else return std::fprintf(stderr, "usage: ep_procs_gpu same|abort\n"), 2;
  return failed_checks != 0;
}
