// Many steps of one group across the wrap of the phase, each with other numbers of tokens and with poison in all buffers: no
// poison is left in a result, every 50th is exactly right, and in between one thread serves all ranks or each has its own.
// usage: ep_steps STEPS [SEED] [BREAK]. BREAK "poison" leaves one element of one result as it was.
#include "ep_host.hpp"

using namespace ep;

namespace {

constexpr uint32_t kEvery = 50, kWrap = 1000;

// What a rank received in the last step.
void poison_received(const HostRank& rank, nmc_ep_t* e, uint32_t layer) {
  nmc_ep_recv_buffers_t recv = NMC_EP_RECV_BUFFERS_INIT;
  REQUIRE(OK(nmc_ep_recv_buffers(e, layer, &recv)));
  const size_t slots = size_t{rank.c.world} * rank.c.t_cap, entries = slots * rank.c.top_k;
  std::memset(const_cast<void*>(recv.x), 0xff, slots * rank.c.x_bytes());
  std::memset(const_cast<int16_t*>(recv.local_eid), 0xff, 2 * entries);
  std::memset(const_cast<void*>(recv.weights), 0xff, 4 * entries);
  std::memset(const_cast<void*>(recv.records), 0xff, size_t{rank.c.world} * recv.record_stride);
}

// Elements of the result that are NaN: tokens and weights are not, so these have been left.
size_t left_over(const HostRank& rank) {
  const Bytes out = rank.result();
  size_t nans = 0;
  for (size_t i = 0; i < size_t{rank.tokens.n} * rank.c.hidden; ++i) nans += std::isnan(get(rank.c.dtype, out.data(), i));
  return nans;
}

// What is behind the tokens of this step must stay as it was.
bool nothing_beyond(const HostRank& rank) {
  const Bytes out = rank.out.read();
  const auto end = out.begin() + static_cast<long>(size_t{rank.tokens.n} * rank.c.y_bytes());
  return std::all_of(end, out.end(), [](unsigned char byte) { return byte == 0xff; });
}

void check_step(HostRank& rank, uint32_t step) {
  const size_t left = left_over(rank);
  if (left != 0) std::printf("step %u rank %u: poison is left in %zu elements\n", step, rank.number, left);
  CHECK(left == 0);
  CHECK(nothing_beyond(rank));
  if (step % kEvery == 0) CHECK(right(rank, step));
}

}  // namespace

int main(int argc, char** argv) {
  const uint32_t steps = argc > 1 ? static_cast<uint32_t>(std::strtoul(argv[1], nullptr, 10)) : 3000;
  Case c;
  c.seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  c.t_cap = 4;
  c.first_phase = 0x80000000u - kWrap;
  c.max_m = c.world * c.t_cap * c.top_k;
  const bool poison = argc > 3 && std::string(argv[3]) == "poison";
  promise("no step leaves poison, and every 50th is exactly right");
  Group g(c);
  uint64_t tokens = 0;
  for (uint32_t s = 0; s < steps && failed_checks == 0; ++s) {
    const uint32_t layer = s % 65536;
    for (HostRank& rank : g.ranks) {
      rank.load(s);
      poison_received(rank, g.eps[rank.number], layer);
    }
    // A thread a rank now and then and around the wrap: slow, but more can happen in the meantime.
    const bool threads = s % 10 == 0 || (s > kWrap - 50 && s < kWrap + 50);
    if (threads) on_threads(c.world, [&](uint32_t r) { OK(try_step(g.eps[r], g.ranks[r], layer)); });
    else grouped_step(g, layer);
    if (poison && s > 6 && g.ranks[1].tokens.n > 0) std::memset(g.ranks[1].out.as<unsigned char>() + 200, 0xff, 2);
    for (HostRank& rank : g.ranks) {
      tokens += rank.tokens.n;
      check_step(rank, s);
    }
  }
  for (nmc_ep_t* e : g.eps) OK(nmc_ep_check(e));
  std::printf("%u steps, %llu tokens\n", steps, static_cast<unsigned long long>(tokens));
  return finish();
}
