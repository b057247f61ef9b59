// Steps of the expert-parallel transport that overlap, with one process a rank: steps of several buffer sets on several streams beside
// experts that take whole multiprocessors; more than two streams are refused.
// `ep_overlap_gpu STREAMS N [FIRST]`: N random cases.
#include "ep_ranks.h"

using namespace ep;

namespace {

constexpr uint32_t kWholeBytes = 227 << 10;  // all that a multiprocessor has: no other block fits beside this one

// The experts of these steps: they leave the rows as they are, and run where products of engines run, on whole multiprocessors.
__global__ void __launch_bounds__(256) whole_experts(const uint4* x, uint4* y, uint64_t vectors) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < vectors; i += uint64_t{gridDim.x} * blockDim.x) y[i] = x[i];
}

Case overlap_case(uint64_t seed) {
  Case c = random_case(seed);
  c.world = 8, c.t_cap = 32, c.hidden = seed % 2 == 0 ? 7168 : 1024, c.top_k = 8, c.experts = 64, c.max_m = 0, c.spill_groups = 0;
  c.repeated = false, c.dispatch = NMC_EP_DISPATCH_SAME, c.deadline_ms = 5000;
  c.sets = 2 + static_cast<uint32_t>(seed % 3);
  return c;
}

// Many steps without the host in between; set s is on stream s % n. Now and then a rank is late with its experts: meanwhile the
// combines of all others wait, and they must leave room for these.
int overlap_child(uint64_t seed, uint32_t number, const char* dir, uint32_t n) {
  Case c = overlap_case(seed);
  c.sets = std::max(c.sets, n);
  constexpr uint32_t kSteps = 48;
  const bool early = seed % 4 == 3;
  const bool straight = seed % 8 == 7;  // early, and no kernel of ours between pack and scatter: placed while the pack ends
  const auto batch_of = [&](uint32_t s) { return s % c.sets + c.sets * (s / c.sets % 2); };  // tokens: two kinds a set, in turn
  std::vector<Bytes> want;
  {
    Group<HostMemory> g(c);
    for (uint32_t b = 0; b < 2 * c.sets; ++b) {
      for (auto& rank : g.ranks) rank.load(b);
      g.before(b, 0);
      for (auto& rank : g.ranks) rank.y.put(rank.grouped.read());
      g.after(b, 0);
      want.push_back(g.ranks[number].result());
    }
  }
  Member m = join(c, number, dir, "overlap", heap_for(c));
  nmc_ep_config_t config = c.config();
  config.blocks = early ? 8 : seed % 4 == 0 ? 0 : 16;
  config.flags = early ? NMC_EP_EARLY : 0;
  NMC_CHECK(nmc_ep_create(m.world, &config, &m.ep));
  CUDA_OK(cudaFuncSetAttribute(whole_experts, cudaFuncAttributeMaxDynamicSharedMemorySize, kWholeBytes));  // loads it, too
  std::vector<Rank<DeviceMemory>> batches;
  std::vector<Buffer<DeviceMemory>> outs;
  for (uint32_t b = 0; b < 2 * c.sets; ++b) {
    batches.emplace_back(c, number);
    batches.back().load(b);
  }
  for (uint32_t s = 0; s < kSteps; ++s) outs.emplace_back(size_t{c.t_cap} * c.y_bytes());
  std::vector<cudaStream_t> streams(n);
  for (cudaStream_t& s : streams) CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  const auto stream_of = [&](uint32_t s) { return streams[s % c.sets % n]; };
  NMC_CHECK(nmc_world_barrier(m.world, 60000));
  nmc_status_t status = NMC_OK;
  for (uint32_t first = 0; first < kSteps && status == NMC_OK; first += n) {
    // All dispatches, then all experts, as engines do that overlap micro-batches.
    for (uint32_t s = first; s < first + n && status == NMC_OK; ++s) {
      const nmc_ep_dispatch_t args = batches[batch_of(s)].dispatch(s, true);
      const nmc_ep_grouped_t where = batches[batch_of(s)].where();
      status = nmc_ep_dispatch(m.ep, &args, stream_of(s));
      if (status == NMC_OK) status = nmc_ep_route_pack(m.ep, s, &where, stream_of(s));
    }
    if (first / n % 8 == 0 && number == (seed + first / n / 8) % c.world) usleep(100000);
    for (uint32_t s = first; s < first + n && status == NMC_OK; ++s) {
      Rank<DeviceMemory>& rank = batches[batch_of(s)];
      const uint64_t vectors = uint64_t{c.groups()} * c.rows() * c.x_bytes() / 16;
      if (!straight) whole_experts<<<16, 256, kWholeBytes, stream_of(s)>>>(rank.grouped.as<uint4>(), rank.y.as<uint4>(), vectors);
      CUDA_OK(cudaGetLastError());
      const void* y = straight ? rank.grouped.get() : rank.y.get();
      status = nmc_ep_scatter(m.ep, s, y, rank.row_of.as<int32_t>(), nullptr, stream_of(s));
      if (status == NMC_OK) status = nmc_ep_combine(m.ep, s, nullptr, outs[s].get(), stream_of(s));
    }
  }
  int wrong = 0;
  if (n > 2) {
    wrong = status != NMC_ERR_LIMIT;
    if (number == 0) std::printf("  %s: %s\n", nmc_status_name(status), nmc_last_error_message());
    NMC_CHECK(nmc_world_barrier(m.world, 60000));  // all were refused, before one ends the group
    NMC_CHECK(nmc_ep_abort(m.ep));
  }
  for (cudaStream_t& stream : streams) CUDA_OK(cudaStreamSynchronize(stream));
  if (n <= 2) {
    if (status == NMC_OK) status = nmc_ep_check(m.ep);
    const unsigned long long which = seed;
    if (status != NMC_OK) {
      std::printf("  seed %llu rank %u: %s: %s\n", which, number, nmc_status_name(status), nmc_last_error_message());
      return 1;
    }
    for (uint32_t s = 0; s < kSteps; ++s) {
      Bytes got = outs[s].read();
      got.resize(want[batch_of(s)].size());
      if (got != want[batch_of(s)]) wrong = 1, std::printf("seed %llu step %u rank %u: other bits\n", which, s, number);
    }
  }
  NMC_CHECK(nmc_world_barrier(m.world, 60000));
  NMC_CHECK(nmc_ep_destroy(m.ep));
  NMC_CHECK(nmc_world_destroy(m.world));
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, uint64_t otherwise) { return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise; };
  if (argc > 6 && std::strcmp(argv[1], "child") == 0) {
    const uint32_t rank = static_cast<uint32_t>(number(4, 0));
    return overlap_child(number(3, 1), rank, argv[5], static_cast<uint32_t>(number(2, 2)));
  }
  const uint64_t streams = number(1, 2), first = number(3, 1);
  for (uint64_t seed = first; seed < first + number(2, 3); ++seed) {
    check(run_children(std::to_string(streams).c_str(), seed, 8, -1, 0) == 0,
          streams > 2 ? "more steps at once than there is room for are refused" : "steps of two sets at once give the bits of the CPU");
  }
  return failed_checks != 0;
}
