// nanomc/ep.hpp: what it offers with and without exceptions (wrapper_noexc.cpp), on host heaps.
#include <functional>
#include <string>
#include <type_traits>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

#include "../integration/check.h"
#include "nanomc/ep.hpp"

namespace {

constexpr uint32_t kHidden = 8, kTopK = 2, kExperts = 4, kTokens = 3, kCap = 4, kInner = 8;

nmc::EpConfig config() {
  return nmc::EpConfig(kHidden, kTopK, kExperts).t_cap(kCap).dtype(nmc::EpDtype::fp32).deadline(std::chrono::seconds(60));
}

std::vector<nmc::nothrow::World> local_worlds(uint32_t ranks) {
  const nmc::EpBytes bytes = config().try_bytes_needed(ranks).value();
  return nmc::nothrow::World::create_local(nmc::WorldConfig().world_size(ranks).heap_bytes(bytes.transport)).value();
}

// Rows are aligned to 16 bytes.
struct alignas(16) Row {
  float v[kHidden];
};

// What one rank gives and gets. Token t of rank r goes to the experts t and (t + 2) % 4 with weight 1/2 each.
template <class Index>
struct Rank {
  std::vector<Row> x{kTokens}, out{kTokens}, grouped, y;
  std::vector<Index> idx;
  std::vector<float> weights = std::vector<float>(kTokens * kTopK, 0.5f);
  std::vector<int32_t> masked_m, group_expert, row_of, row_index;

  Rank(const nmc::EpBytes& bytes, uint32_t rank)
      : grouped(bytes.grouped_x / sizeof(Row)), y(bytes.grouped_y / sizeof(Row)), masked_m(bytes.masked_m / 4),
        group_expert(bytes.masked_m / 4), row_of(bytes.row_of / 4), row_index(bytes.row_index / 4) {
    for (uint32_t t = 0; t < kTokens; ++t) {
      for (uint32_t i = 0; i < kHidden; ++i) x[t].v[i] = static_cast<float>(100 * rank + 10 * t + i);
      idx.push_back(static_cast<Index>(t % kExperts));
      idx.push_back(static_cast<Index>((t + 2) % kExperts));
    }
  }
  nmc::EpTokens tokens(uint32_t layer) const { return nmc::EpTokens(x, idx, weights, kTokens).layer(layer); }
  nmc::EpGrouped where() {
    nmc::EpGrouped g;
    g.x = grouped.data();
    g.masked_m = masked_m.data();
    g.group_expert = group_expert.data();
    g.row_of = row_of.data();
    g.row_index = row_index.data();
    return g;
  }
  // The experts double every row, so that the halves of a token add up to twice what it was.
  void compute() {
    for (size_t i = 0; i < y.size(); ++i) {
      for (uint32_t h = 0; h < kHidden; ++h) y[i].v[h] = 2 * grouped[i].v[h];
    }
  }
  bool is_right() const {
    for (uint32_t t = 0; t < kTokens; ++t) {
      for (uint32_t h = 0; h < kHidden; ++h) {
        if (out[t].v[h] != 2 * x[t].v[h]) return false;
      }
    }
    return true;
  }
};

template <class Index>
void steps(const char* name) {
  promise(name);
  std::vector<nmc::nothrow::World> worlds = local_worlds(2);
  std::vector<nmc::Ep> eps = nmc::Ep::try_create_ranks(worlds, config()).value();
  const nmc::EpBytes bytes = config().try_bytes_needed(2).value();
  std::vector<Rank<Index>> ranks;
  for (uint32_t r = 0; r < 2; ++r) ranks.emplace_back(bytes, r);
  const auto all = [&](auto call) {
    nmc::EpCallGroup group = nmc::EpCallGroup::try_begin().value();
    for (uint32_t r = 0; r < 2; ++r) CHECK(call(eps[r], ranks[r]).ok());
    CHECK(group.try_end().ok());
  };
  // Whole steps, then halves, with rows to return elsewhere.
  all([](nmc::Ep& ep, Rank<Index>& rank) { return ep.try_dispatch(rank.tokens(0)); });
  all([](nmc::Ep& ep, Rank<Index>& rank) { return ep.try_pack(0, rank.where()); });
  for (Rank<Index>& rank : ranks) rank.compute();
  all([](nmc::Ep& ep, Rank<Index>& rank) { return ep.try_scatter(0, rank.y, rank.row_of); });
  all([](nmc::Ep& ep, Rank<Index>& rank) { return ep.try_combine(0, rank.out); });
  for (Rank<Index>& rank : ranks) CHECK(rank.is_right());
  for (Rank<Index>& rank : ranks) rank.out.assign(kTokens, Row{});

  std::vector<std::vector<Row>> back(2, std::vector<Row>(2 * kCap));
  all([](nmc::Ep& ep, Rank<Index>& rank) { return ep.try_dispatch_send(rank.tokens(1)); });
  all([](nmc::Ep& ep, Rank<Index>&) { return ep.try_dispatch_recv(1); });
  all([](nmc::Ep& ep, Rank<Index>& rank) { return ep.try_pack(1, rank.where()); });
  for (Rank<Index>& rank : ranks) rank.compute();
  for (uint32_t r = 0; r < 2; ++r) {
    CHECK(eps[r].try_scatter_to(1, ranks[r].y.data(), ranks[r].row_of.data(), back[r].data()).ok());
    CHECK(eps[r].try_combine_send_from(1, back[r].data()).ok());
  }
  all([](nmc::Ep& ep, Rank<Index>& rank) { return ep.try_combine_recv(1, rank.out.data()); });
  for (Rank<Index>& rank : ranks) CHECK(rank.is_right());

  const nmc::EpStats stats = eps[1].try_stats().value();
  CHECK(stats.expert_load == std::vector<uint64_t>({4, 2, 4, 2}) && stats.waited_ns.size() == 2 && stats.overflow_rows == 0);
  const nmc::EpRecvBuffers recv = eps[0].try_recv_buffers(1).value();
  CHECK(recv.x == recv.y && recv.local_eid != nullptr && recv.scales == nullptr);
  CHECK(eps[0].try_recv_buffers(70000).status() == NMC_ERR_INVALID_ARG);
  CHECK(eps[0].try_device(0).status() == NMC_ERR_UNSUPPORTED);
  CHECK(eps[0].try_check().ok() && eps[0].try_abort().ok());
  CHECK(eps[1].try_check().status() == NMC_ERR_CANCELLED);
  CHECK(eps[0].try_destroy().ok() && !eps[0]);
}

void arguments() {
  promise("tokens come from pointers, containers, arrays and spans, with the width of their expert numbers");
  static const int32_t narrow[] = {0, 1};
  const std::vector<int64_t> wide = {0, 1};
  const float weights[] = {1, 0};
  Row row{};
  CHECK(nmc::EpTokens(&row, narrow, weights, 1).c().idx_is_64 == 0);
  CHECK(nmc::EpTokens(&row, wide, weights, 1).c().idx_is_64 == 1);
  CHECK(nmc::EpTokens(&row, wide.data(), &weights[0], 1).c().topk_idx == wide.data());
#if __cplusplus >= 202002L
  CHECK(nmc::EpTokens(std::span<const Row>(&row, 1), std::span(narrow), std::span(weights), 1).c().topk_idx == narrow);
#endif
  const int32_t count = 1;
  CHECK(nmc::EpTokens().layer(7).count_at(&count).c().n_tokens_ptr == &count);
  const nmc_ep_config_t c =
      config().members(3).trap().count_load(false).separate_y().early().dispatch(nmc::EpWire::fp8).weights(nmc::EpWeights::fp16).c();
  CHECK(c.flags == (NMC_EP_TRAP | NMC_EP_NO_LOAD | NMC_EP_SEPARATE_Y | NMC_EP_EARLY) && c.members == 3 && c.deadline_ms == 60000);

  promise("making a group fails as it does in C");
  std::vector<nmc::nothrow::World> worlds = local_worlds(1);
  CHECK(nmc::Ep::try_create(worlds[0], config().hidden(3)).status() == NMC_ERR_INVALID_ARG);
  CHECK(nmc::Ep::try_create(nmc::nothrow::World(), config()).status() == NMC_ERR_BAD_HANDLE);
  CHECK(nmc::Ep::try_create_ranks({}, config()).status() == NMC_ERR_INVALID_ARG);
  CHECK(config().try_bytes_needed(0).status() == NMC_ERR_INVALID_ARG);
}

void call_groups() {
  promise("a group of calls tells its errors at its end, and is over with its scope");
  std::vector<nmc::nothrow::World> worlds = local_worlds(1);
  nmc::Ep ep = nmc::Ep::try_create(worlds[0], config()).value();
  Rank<int32_t> rank(config().try_bytes_needed(1).value(), 0);
  {
    nmc::EpCallGroup group = nmc::EpCallGroup::try_begin().value();
    CHECK(nmc::EpCallGroup::try_begin().status() == NMC_ERR_INVALID_ARG);
    CHECK(ep.try_combine(0, rank.out).ok());
    const nmc::Result<void> ended = group.try_end();
    CHECK(ended.status() == NMC_ERR_INVALID_ARG && ended.message().find("out of turn") != std::string::npos);
  }
  {
    nmc::EpCallGroup moved = [] { return nmc::EpCallGroup::try_begin().value(); }();
    CHECK(ep.try_dispatch(rank.tokens(0)).ok() && ep.try_pack(0, rank.where()).ok());
  }
  CHECK(rank.masked_m[0] == 2);  // the destructor has sent them out
  CHECK(nmc::EpCallGroup::try_begin().value().try_end().ok());
}

// A layer of one rank.
struct Layer {
  std::vector<nmc::nothrow::World> worlds = local_worlds(1);
  nmc::Ep ep = nmc::Ep::try_create(worlds[0], config()).value();
  nmc::EpBytes bytes = config().try_bytes_needed(1, kInner).value();
  Rank<int64_t> rank{bytes, 0};
  struct alignas(256) Piece {
    unsigned char v[256];
  };
  std::vector<Piece> workspace = std::vector<Piece>(bytes.workspace / sizeof(Piece) + 1);
  std::vector<Row> w13 = std::vector<Row>(kExperts * 2 * kInner), w2 = std::vector<Row>(kExperts * kInner);

  nmc::EpMoe moe() {
    return nmc::EpMoe().weights(w13, w2).inner(kInner).workspace(workspace.data(), bytes.workspace).out(rank.out);
  }
};

int32_t fails(const nmc_ep_gemm_t&, void*) { return NMC_ERR_NO_SPACE; }

void forward() {
  promise("a layer takes any callable as its product");
  Layer layer;
  const nmc::EpTokens tokens = layer.rank.tokens(0);
  CHECK(layer.ep.try_moe_forward(tokens, layer.moe()).ok());
  std::vector<uint32_t> which;
  CHECK(layer.ep.try_moe_forward(tokens, layer.moe(), [&](const nmc_ep_gemm_t& g, void* stream) {
    which.push_back(g.which);
    CHECK(stream == nullptr && g.struct_size == sizeof g && g.b == (g.which == 0 ? layer.w13.data() : layer.w2.data()));
  }).ok());
  CHECK(which == std::vector<uint32_t>({0, 1}));
  const std::function<nmc::Result<void>(const nmc_ep_gemm_t&, void*)> good = [](const nmc_ep_gemm_t&, void*) {
    return nmc::Result<void>();
  };
  CHECK(layer.ep.try_moe_forward(tokens, layer.moe(), good).ok());

  promise("a product that fails ends the group, and the call tells why");
  const nmc::Result<void> failed = layer.ep.try_moe_forward(tokens, layer.moe(), fails);
  CHECK(failed.status() == NMC_ERR_NO_SPACE && failed.message().find("product 0") != std::string::npos);
  CHECK(layer.ep.try_check().status() == NMC_ERR_CANCELLED);
  Layer other;
  const nmc::Result<void> told = other.ep.try_moe_forward(other.rank.tokens(0), other.moe(), [](const nmc_ep_gemm_t& g, void*) {
    return g.which == 0 ? nmc::Result<void>() : nmc::Result<void>(nmc::Failure{NMC_ERR_CUDA, "no such stream"});
  });
  CHECK(told.status() == NMC_ERR_CUDA && told.message() == "no such stream");
}

#if NMC_HPP_EXCEPTIONS
template <class E, class F>
bool throws(F f) {
  try {
    f();
  } catch (const E&) {
    return true;
  }
  return false;
}

void throwing() {
  promise("the throwing forms throw");
  std::vector<nmc::nothrow::World> worlds = local_worlds(1);
  nmc::Ep ep = nmc::Ep::create(worlds[0], config());
  Rank<int32_t> rank(config().bytes_needed(1), 0);
  ep.dispatch(rank.tokens(0));
  ep.pack(0, rank.where());
  rank.compute();
  ep.scatter(0, rank.y, rank.row_of);
  ep.combine(0, rank.out);
  CHECK(rank.is_right() && ep.stats().expert_load[0] == 2 && ep.recv_buffers(0).x != nullptr);
  ep.dispatch_send(rank.tokens(1));
  ep.dispatch_recv(1);
  ep.combine_send(1);
  ep.combine_recv(1, rank.out);
  nmc::EpCallGroup::begin().end();
  ep.check();
  CHECK(throws<nmc::Error>([&] { ep.combine(2, rank.out); }) && throws<nmc::Error>([&] { (void)ep.device(0); }));
  CHECK(throws<nmc::Error>([&] { (void)nmc::Ep::create(worlds[0], config().top_k(0)); }));
  CHECK(throws<nmc::Error>([&] { (void)nmc::Ep::create_ranks({}, config()); }));
  ep.abort();
  CHECK(throws<nmc::Error>([&] { ep.check(); }));

  promise("what a product throws does not pass through the library, and is thrown by the call");
  Layer layer;
  const auto breaks = [](const nmc_ep_gemm_t&, void*) { throw std::out_of_range("no tile"); };
  CHECK(throws<std::out_of_range>([&] { layer.ep.moe_forward(layer.rank.tokens(0), layer.moe(), breaks); }));
  CHECK(layer.ep.try_check().status() == NMC_ERR_CANCELLED);
  Layer second, third;
  CHECK(throws<std::out_of_range>([&] { (void)second.ep.try_moe_forward(second.rank.tokens(0), second.moe(), breaks); }));
  const nmc::Result<void> ours = third.ep.try_moe_forward(third.rank.tokens(0), third.moe(), [&](const nmc_ep_gemm_t&, void*) {
    second.ep.check();  // an nmc::Error
  });
  CHECK(ours.status() == NMC_ERR_CANCELLED && ours.message().find("aborted") != std::string::npos);
}
#endif

}  // namespace

int main() {
  steps<int32_t>("steps with 32-bit expert numbers");
  steps<int64_t>("steps with 64-bit expert numbers");
  arguments();
  call_groups();
  forward();
#if NMC_HPP_EXCEPTIONS
  throwing();
#endif
  return finish();
}
