// What only the GPU can see of the expert-parallel transport: numbers and counts in its memory, peers that do not come, aborts, rows that
// do not fit, and steps that need more room than there is.
#include "ep_group.h"

using namespace ep;

namespace {

// Rows that a kernel of the program changes between scatter and combine, in the place where they are fetched: the combine tells.
void changed_in_place() {
  Case c;
  c.world = 4, c.t_cap = 16, c.hidden = 1024, c.experts = 16, c.top_k = 4, c.masked = false, c.repeated = false;
  const std::vector<std::vector<Bytes>> want = on_cpu(c);
  Group<DeviceMemory> g(c);
  bool ok = true;
  for (uint32_t s = 0; s < kSteps; ++s) {
    for (auto& rank : g.ranks) rank.load(s);
    g.before(s, 0);
    for (auto& rank : g.ranks) rank.compute();
    g.each([&](nmc_ep_t* e, Rank<DeviceMemory>& rank) {
      nmc_ep_recv_buffers_t recv = NMC_EP_RECV_BUFFERS_INIT;
      NMC_CHECK(nmc_ep_recv_buffers(e, s, &recv));
      NMC_CHECK(nmc_ep_scatter(e, s, rank.y.get(), rank.row_of.as<int32_t>(), const_cast<void*>(recv.y), g.stream));
    });
    g.each([&](nmc_ep_t* e, Rank<DeviceMemory>& rank) { NMC_CHECK(nmc_ep_combine(e, s, nullptr, rank.out.get(), g.stream)); });
    g.wait();
    for (uint32_t r = 0; r < c.world; ++r) ok = g.ranks[r].digest() == want[s][r] && ok;
  }
  for (nmc_ep_t* e : g.eps) ok = nmc_ep_check(e) == NMC_OK && ok;
  check(ok, "a scatter to the given place leaves it to the combine to tell");
}

// Rank 1 has no kernel and aborts from the host.
void aborts(Case c) {
  c.deadline_ms = 20000;
  const auto told = [](nmc_ep_t* e) {
    return nmc_ep_check(e) == NMC_ERR_CANCELLED && std::strstr(nmc_last_error_message(), "rank 1 reports") != nullptr;
  };
  // In a dispatch, the same while a stream is captured, and in a combine.
  for (int kind = 0; kind < 3; ++kind) {
    Group<DeviceMemory> g(c);
    for (auto& rank : g.ranks) rank.load(0, 4);
    cudaStream_t captured;
    CUDA_OK(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
    if (kind == 2) {
      g.each([&](nmc_ep_t* e, Rank<DeviceMemory>& rank) {
        const nmc_ep_dispatch_t args = rank.dispatch(0, false);
        NMC_CHECK(nmc_ep_dispatch(e, &args, g.stream));
      });
      g.wait();
      NMC_CHECK(nmc_ep_combine(g.eps[0], 0, nullptr, g.ranks[0].out.get(), g.stream));
    } else {
      const nmc_ep_dispatch_t args = g.ranks[0].dispatch(0, false);
      NMC_CHECK(nmc_ep_dispatch(g.eps[0], &args, g.stream));
    }
    usleep(50000);
    if (kind == 1) CUDA_OK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
    const uint64_t began = now_ns();
    NMC_CHECK(nmc_ep_abort(g.eps[1]));
    const double call = static_cast<double>(now_ns() - began) * 1e-6;
    if (kind == 1) {
      cudaGraph_t graph;
      CUDA_OK(cudaStreamEndCapture(captured, &graph));
      CUDA_OK(cudaGraphDestroy(graph));
    }
    g.wait();
    const double waited = static_cast<double>(now_ns() - began) * 1e-9;
    std::printf("  the call took %.3f ms, the peer returned after %.3f s\n", call, waited);
    check(waited < 2 && call < 1000 && told(g.eps[0]) && nmc_ep_check(g.eps[1]) == NMC_ERR_CANCELLED,
          kind == 0   ? "an abort from the host ends a peer's dispatch"
          : kind == 1 ? "an abort from the host is legal during a capture"
                      : "an abort from the host ends a peer's combine");
    CUDA_OK(cudaStreamDestroy(captured));
  }
  // A rank that has not heard of it yet stores nothing any more.
  for (const bool abort : {false, true}) {
    Group<DeviceMemory> g(c);
    for (auto& rank : g.ranks) rank.load(0, 8);
    if (abort) NMC_CHECK(nmc_ep_abort(g.eps[1]));
    CUDA_OK(cudaDeviceSynchronize());
    nmc_ep_recv_buffers_t recv = NMC_EP_RECV_BUFFERS_INIT;
    NMC_CHECK(nmc_ep_recv_buffers(g.eps[1], 0, &recv));
    const size_t slots = size_t{c.world} * c.t_cap;
    struct {
      const void* at;
      size_t bytes;
    } const parts[] = {{recv.x, slots * c.x_bytes()},
                       {recv.local_eid, slots * c.top_k * 2},
                       {recv.weights, slots * c.top_k * 4},
                       {recv.records, size_t{c.world} * recv.record_stride}};
    for (const auto& part : parts) DeviceMemory::poison(const_cast<void*>(part.at), part.bytes);
    const nmc_ep_dispatch_t args = g.ranks[0].dispatch(0, false);
    NMC_CHECK(nmc_ep_dispatch_send(g.eps[0], &args, g.stream));
    g.wait();
    size_t changed = 0;
    for (const auto& part : parts) {
      Bytes now(part.bytes);
      DeviceMemory::down(now.data(), part.at, part.bytes);
      for (const unsigned char byte : now) changed += byte != 0xff;
    }
    if (abort) check(changed == 0 && told(g.eps[0]), "a dispatch of a group that is over stores nothing at its peers");
    else check(changed > 0, "and one of a group that works does");
  }
}

// Rows that do not fit are counted by packs of two sets at the same time.
void overflow() {
  Case c;
  c.world = 4, c.t_cap = 16, c.hidden = 1024, c.experts = 8, c.top_k = 4, c.masked = false, c.repeated = false, c.max_m = 2;
  c.sets = 2;
  constexpr uint64_t kRounds = 50;
  std::vector<uint64_t> want(c.world), got(c.world);
  {
    Group<HostMemory> g(c);
    g.step(0, 0, 16);
    for (uint32_t r = 0; r < c.world; ++r) NMC_CHECK(nmc_ep_stats(g.eps[r], nullptr, nullptr, &want[r]));
  }
  Group<DeviceMemory> g(c);
  for (auto& rank : g.ranks) rank.load(0, 16);
  cudaStream_t streams[2];
  for (cudaStream_t& s : streams) CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  for (uint64_t round = 0; round < kRounds; ++round) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      // Both write the same lists: the same tokens come.
      g.each([&](nmc_ep_t* e, Rank<DeviceMemory>& rank) {
        const nmc_ep_dispatch_t args = rank.dispatch(layer, false);
        const nmc_ep_grouped_t where = rank.where(true);
        NMC_CHECK(nmc_ep_dispatch(e, &args, streams[layer]));
        NMC_CHECK(nmc_ep_route_pack(e, layer, &where, streams[layer]));
        NMC_CHECK(nmc_ep_combine(e, layer, nullptr, rank.out.get(), streams[layer]));
      });
    }
  }
  for (cudaStream_t& s : streams) {
    CUDA_OK(cudaStreamSynchronize(s));
    CUDA_OK(cudaStreamDestroy(s));
  }
  bool ok = true;
  for (uint32_t r = 0; r < c.world; ++r) {
    NMC_CHECK(nmc_ep_check(g.eps[r]));
    NMC_CHECK(nmc_ep_stats(g.eps[r], nullptr, nullptr, &got[r]));
    ok = ok && want[r] > 0 && got[r] == 2 * kRounds * want[r];
  }
  std::printf("  rank 0: %llu rows did not fit in one step, %llu in %llu steps\n", static_cast<unsigned long long>(want[0]),
              static_cast<unsigned long long>(got[0]), static_cast<unsigned long long>(2 * kRounds));
  check(ok, "packs of two sets on two streams count every row that does not fit");
}

// Combines of three sets on three streams need room for all of them, unless all ranks are in the launch.
void room() {
  Case c;
  c.world = 8, c.t_cap = 8, c.hidden = 1024, c.experts = 8, c.top_k = 2, c.sets = 3;
  Group<DeviceMemory> g(c);
  for (auto& rank : g.ranks) rank.load(0, 4);
  cudaStream_t streams[3];
  for (cudaStream_t& s : streams) CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  for (uint32_t layer = 0; layer < 3; ++layer) {
    g.each([&](nmc_ep_t* e, Rank<DeviceMemory>& rank) {
      const nmc_ep_dispatch_t args = rank.dispatch(layer, false);
      NMC_CHECK(nmc_ep_dispatch(e, &args, streams[layer]));
    });
  }
  check(nmc_ep_combine(g.eps[0], 0, nullptr, g.ranks[0].out.get(), streams[0]) == NMC_ERR_LIMIT,
        "three sets on three streams without room for all are refused");
  for (uint32_t layer = 0; layer < 3; ++layer) {
    g.each([&](nmc_ep_t* e, Rank<DeviceMemory>& rank) {
      NMC_CHECK(nmc_ep_combine(e, layer, nullptr, rank.out.get(), streams[layer]));
    });
  }
  for (cudaStream_t& s : streams) {
    CUDA_OK(cudaStreamSynchronize(s));
    CUDA_OK(cudaStreamDestroy(s));
  }
  bool ok = true;
  for (nmc_ep_t* e : g.eps) ok = nmc_ep_check(e) == NMC_OK && ok;
  check(ok, "with all ranks in the launch they work");
}

void errors() {
  Case c;
  c.world = 2, c.t_cap = 8, c.hidden = 1024, c.experts = 8, c.top_k = 2, c.deadline_ms = 1000, c.masked = false;
  const auto dispatch_all = [](Group<DeviceMemory>& g, uint32_t layer_of_second, bool count_on_device) {
    NMC_CHECK(nmc_ep_group_begin());
    for (uint32_t r = 0; r < g.c.world; ++r) {
      const nmc_ep_dispatch_t args = g.ranks[r].dispatch(r == 1 ? layer_of_second : 0, count_on_device);
      NMC_CHECK(nmc_ep_dispatch(g.eps[r], &args, g.stream));
    }
    NMC_CHECK(nmc_ep_group_end());
    g.wait();
  };
  const auto both = [](Group<DeviceMemory>& g, nmc_status_t want, const char* name) {
    bool ok = true;
    for (nmc_ep_t* e : g.eps) {
      const nmc_status_t got = nmc_ep_check(e);
      if (got != want) ok = false, std::printf("  %s: %s\n", nmc_status_name(got), nmc_last_error_message());
      // Steps after it do nothing and fail at once.
      ok = nmc_ep_combine(e, 0, nullptr, g.ranks[0].out.get(), g.stream) == want && ok;
    }
    g.wait();
    check(ok, name);
  };
  for (const int64_t expert : {int64_t{8}, int64_t{-2}, int64_t{1} << 40}) {
    Case wide = c;
    wide.idx_64 = true;
    Group<DeviceMemory> g(wide);
    for (auto& rank : g.ranks) rank.load(0, 4);
    Bytes idx = g.ranks[1].tokens.idx;
    std::memcpy(idx.data() + 8 * 5, &expert, 8);
    g.ranks[1].idx.put(idx);
    dispatch_all(g, 0, false);
    both(g, NMC_ERR_INVALID_ARG, "an expert number that does not exist ends the group on all ranks");
  }
  {
    Group<DeviceMemory> g(c);
    for (auto& rank : g.ranks) rank.load(0, 4);
    Bytes many(4);
    many[0] = 9;
    g.ranks[0].count.put(many);
    dispatch_all(g, 0, true);
    both(g, NMC_ERR_LIMIT, "too many tokens in n_tokens_ptr end the group on all ranks");
  }
  {
    Group<DeviceMemory> g(c);
    for (auto& rank : g.ranks) rank.load(0, 4);
    dispatch_all(g, 1, false);
    both(g, NMC_ERR_MISMATCH, "ranks at different layers are told");
  }
  {
    Group<DeviceMemory> g(c);
    for (auto& rank : g.ranks) rank.load(0, 4);
    const nmc_ep_dispatch_t args = g.ranks[0].dispatch(0, false);
    NMC_CHECK(nmc_ep_dispatch(g.eps[0], &args, g.stream));  // rank 1 does not come
    g.wait();
    check(nmc_ep_check(g.eps[0]) == NMC_ERR_PEER_LOST, "a rank that does not come is reported, the context lives");
    std::printf("  %s\n", nmc_last_error_message());
    Group<DeviceMemory> again(c);
    const std::vector<std::vector<Bytes>> want = on_cpu(c);
    check(again.step(0, 0) == want[0], "a new group works afterwards");
  }
  {
    Group<DeviceMemory> g(c);
    for (auto& rank : g.ranks) rank.load(0, 4);
    const nmc_ep_dispatch_t args = g.ranks[0].dispatch(0, false);
    NMC_CHECK(nmc_ep_dispatch(g.eps[0], &args, g.stream));
    NMC_CHECK(nmc_ep_abort(g.eps[0]));
    g.wait();
    check(nmc_ep_check(g.eps[0]) == NMC_ERR_CANCELLED, "an abort ends a kernel that waits");
  }
  aborts(c);
  changed_in_place();
  overflow();
  room();
  {
    Group<DeviceMemory> g(c);
    g.ranks[0].load(0, 4);
    nmc_ep_dispatch_t args = g.ranks[0].dispatch(0, false);
    std::vector<char> host(1 << 16);
    args.x = host.data() + (16 - reinterpret_cast<uintptr_t>(host.data()) % 16) % 16;
    check(nmc_ep_dispatch(g.eps[0], &args, g.stream) == NMC_ERR_INVALID_ARG, "host memory is refused");
    args.x = nullptr;
    check(nmc_ep_dispatch(g.eps[0], &args, g.stream) == NMC_ERR_INVALID_ARG, "NULL is refused");
    check(nmc_ep_check(g.eps[0]) == NMC_OK, "a refused call changes nothing");
    Case eight = c;
    eight.world = 8;
    Group<DeviceMemory> many(eight);
    nmc_ep_config_t config = eight.config();
    config.blocks = 128;
    std::vector<nmc_ep_t*> none(8);
    check(nmc_ep_create_ranks(many.worlds.data(), 8, &config, none.data()) == NMC_ERR_LIMIT && none[0] == nullptr,
          "more blocks than the device holds at once are refused");
  }
}

}  // namespace

int main() {
  skip_without_gpu();
  errors();
  return failed_checks != 0;
}
