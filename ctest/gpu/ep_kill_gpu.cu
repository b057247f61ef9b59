// A rank of the expert-parallel transport is killed, and the others go on; one process a rank.
// `ep_kill_gpu kill N`: N times; not under MPS.   `ep_kill_gpu kill_mps N`: the same under MPS, after `terminate_client`.
#include "ep_ranks.h"

using namespace ep;

namespace {

Case kill_case() {
  Case c;
  c.world = 4, c.t_cap = 16, c.hidden = 1024, c.experts = 16, c.top_k = 4, c.masked = false, c.repeated = false;
  c.deadline_ms = 3000;
  return c;
}

// Steps until a peer is lost; then a new group of those who are left. `doomed` is killed by the parent.
int kill_child(uint32_t number, uint32_t doomed, const char* dir) {
  const Case c = kill_case();
  Member m = join(c, number, dir, "kill", heap_for(c));
  nmc_ep_config_t config = c.config();
  NMC_CHECK(nmc_ep_create(m.world, &config, &m.ep));
  std::printf("rank %u steps\n", number);
  std::fflush(stdout);
  Bytes ignored;
  nmc_status_t status = NMC_OK;
  uint64_t began = now_ns();
  {
    Rank<DeviceMemory> rank(c, number);
    for (uint32_t s = 0; status == NMC_OK; ++s) {
      began = now_ns();
      status = step_of(m, rank, s, &ignored);
    }
  }
  const double waited = static_cast<double>(now_ns() - began) * 1e-9;
  std::printf("rank %u: %s after %.2f s: %s\n", number, nmc_status_name(status), waited, nmc_last_error_message());
  if (status != NMC_ERR_PEER_LOST || waited > 4.0 * static_cast<double>(c.deadline_ms) / 1000) return 1;
  NMC_CHECK(nmc_ep_destroy(m.ep));
  // The others make a group of their own in the same memory.
  Case smaller = c;
  smaller.world = c.world - 1;
  smaller.experts = 12;
  smaller.deadline_ms = 30000;
  config = smaller.config();
  config.members = 0xf & ~(1ull << doomed);
  NMC_CHECK(nmc_ep_create(m.world, &config, &m.ep));
  const uint32_t in_group = number - (number > doomed ? 1 : 0);
  const std::vector<std::vector<Bytes>> want = on_cpu(smaller);
  Rank<DeviceMemory> rank(smaller, in_group);
  for (uint32_t s = 0; s < kSteps; ++s) {
    Bytes got;
    NMC_CHECK(step_of(m, rank, s, &got));
    if (got != want[s][in_group]) return std::printf("rank %u: other bits in the new group\n", number), 1;
  }
  // Nobody leaves while another is still in a step.
  const uint64_t until = now_ns() + 500000000ull;
  while (now_ns() < until) {
  }
  NMC_CHECK(nmc_ep_destroy(m.ep));
  NMC_CHECK(nmc_world_destroy(m.world));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const auto number = [&](int i, uint64_t otherwise) { return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise; };
  if (mode == "child" && argc > 6) {
    return kill_child(static_cast<uint32_t>(number(4, 0)), static_cast<uint32_t>(number(6, 0)), argv[5]);
  }
  const bool gently = mode == "kill_mps";
  if (!gently && mode != "kill") return std::fprintf(stderr, "usage: ep_kill_gpu kill|kill_mps\n"), 2;
  if (gently && mps("get_default_active_thread_percentage").empty()) return std::printf("skipped: no MPS\n"), 77;
  for (uint64_t round = 0; round < number(2, 2); ++round) {
    const int doomed = static_cast<int>(round % 4);
    check(run_children("kill", 1, 4, doomed, 6000 + 137 * static_cast<uint32_t>(round % 8), gently) == 0,
          "the others report the loss, and go on in a new group");
  }
  return failed_checks != 0;
}
