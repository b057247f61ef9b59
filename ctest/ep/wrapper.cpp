// nanomc/ep.hpp on host heaps: every function in both forms, from one body; without exceptions (wrapper_noexc.cpp) in the only one.
#include <functional>
#include <string>
#include <type_traits>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

#include "../support/check.h"
#include "../support/forms.hpp"
#include "nanomc/ep.hpp"

#define WORKS(...) (STATUS(__VA_ARGS__) == NMC_OK)

namespace {

constexpr uint32_t kHidden = 8, kTopK = 2, kExperts = 4, kTokens = 3, kCap = 4, kInner = 8;

nmc::EpConfig config() {
  return nmc::EpConfig(kHidden, kTopK, kExperts).t_cap(kCap).dtype(nmc::EpDtype::fp32).deadline(std::chrono::seconds(60));
}

template <class Mode>
std::vector<nmc::BasicWorld<Mode>> local_worlds(uint32_t ranks) {
  const nmc::EpBytes bytes = value_of(nmc::BasicEp<Mode>::bytes_needed(config(), ranks));
  return value_of(nmc::BasicWorld<Mode>::create_local(nmc::WorldConfig().world_size(ranks).heap_bytes(bytes.transport)));
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

template <class Mode, class Index>
void steps(const char* name) {
  promise(name);
  std::vector<nmc::BasicWorld<Mode>> worlds = local_worlds<Mode>(2);
  std::vector<nmc::BasicEp<Mode>> eps = value_of(nmc::BasicEp<Mode>::create_ranks(worlds, config()));
  const nmc::EpBytes bytes = value_of(nmc::BasicEp<Mode>::bytes_needed(config(), 2));
  std::vector<Rank<Index>> ranks;
  for (uint32_t r = 0; r < 2; ++r) ranks.emplace_back(bytes, r);
  const auto all = [&](auto call) {
    nmc::BasicEpCallGroup<Mode> group = value_of(nmc::BasicEpCallGroup<Mode>::begin());
    for (uint32_t r = 0; r < 2; ++r) CHECK(WORKS(call(eps[r], ranks[r])));
    CHECK(WORKS(group.end()));
  };
  // Whole steps, then halves, with rows to return elsewhere.
  all([](nmc::BasicEp<Mode>& ep, Rank<Index>& rank) { return ep.dispatch(rank.tokens(0)); });
  all([](nmc::BasicEp<Mode>& ep, Rank<Index>& rank) { return ep.pack(0, rank.where()); });
  for (Rank<Index>& rank : ranks) rank.compute();
  all([](nmc::BasicEp<Mode>& ep, Rank<Index>& rank) { return ep.scatter(0, rank.y, rank.row_of); });
  all([](nmc::BasicEp<Mode>& ep, Rank<Index>& rank) { return ep.combine(0, rank.out); });
  for (Rank<Index>& rank : ranks) CHECK(rank.is_right());
  for (Rank<Index>& rank : ranks) rank.out.assign(kTokens, Row{});

  std::vector<std::vector<Row>> back(2, std::vector<Row>(2 * kCap));
  all([](nmc::BasicEp<Mode>& ep, Rank<Index>& rank) { return ep.dispatch_send(rank.tokens(1)); });
  all([](nmc::BasicEp<Mode>& ep, Rank<Index>&) { return ep.dispatch_recv(1); });
  all([](nmc::BasicEp<Mode>& ep, Rank<Index>& rank) { return ep.pack(1, rank.where()); });
  for (Rank<Index>& rank : ranks) rank.compute();
  for (uint32_t r = 0; r < 2; ++r) {
    CHECK(WORKS(eps[r].scatter_to(1, ranks[r].y.data(), ranks[r].row_of.data(), back[r].data())));
    CHECK(WORKS(eps[r].combine_send_from(1, back[r].data())));
  }
  all([](nmc::BasicEp<Mode>& ep, Rank<Index>& rank) { return ep.combine_recv(1, rank.out.data()); });
  for (Rank<Index>& rank : ranks) CHECK(rank.is_right());

  const nmc::EpStats stats = value_of(eps[1].stats());
  CHECK(stats.expert_load == std::vector<uint64_t>({4, 2, 4, 2}) && stats.waited_ns.size() == 2 && stats.overflow_rows == 0);
  for (Rank<Index>& rank : ranks) rank.out.assign(kTokens, Row{});
  all([](nmc::BasicEp<Mode>& ep, Rank<Index>& rank) { return ep.dispatch(rank.tokens(2)); });
  all([](nmc::BasicEp<Mode>& ep, Rank<Index>& rank) { return ep.pack(2, rank.where()); });
  for (Rank<Index>& rank : ranks) rank.compute();
  all([](nmc::BasicEp<Mode>& ep, Rank<Index>& rank) { return ep.scatter(2, rank.y, rank.row_of); });
  all([](nmc::BasicEp<Mode>& ep, Rank<Index>&) { return ep.combine_send(2); });
  all([](nmc::BasicEp<Mode>& ep, Rank<Index>& rank) { return ep.combine_recv(2, rank.out); });
  for (Rank<Index>& rank : ranks) CHECK(rank.is_right());

  const nmc::EpRecvBuffers recv = value_of(eps[0].recv_buffers(1));
  CHECK(recv.x == recv.y && recv.local_eid != nullptr && recv.scales == nullptr);
  CHECK(STATUS(eps[0].recv_buffers(70000)) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(eps[0].device(0)) == NMC_ERR_UNSUPPORTED);
  CHECK(WORKS(eps[0].check()) && eps[0].nothrow()->check().ok() && WORKS(eps[0].abort()));
  CHECK(STATUS(eps[1].check()) == NMC_ERR_CANCELLED);
  CHECK(WORKS(eps[0].destroy()) && !eps[0]);
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
      config().members(3).trap().count_load(false).separate_y().early().device_scope().dispatch(nmc::EpWire::fp8).weights(nmc::EpWeights::fp16).c();
  CHECK(c.flags == (NMC_EP_TRAP | NMC_EP_NO_LOAD | NMC_EP_SEPARATE_Y | NMC_EP_EARLY | NMC_EP_DEVICE_SCOPE));
  CHECK(c.members == 3 && c.deadline_ms == 60000);
}

template <class Mode>
void refused() {
  promise("making a group fails as it does in C");
  std::vector<nmc::BasicWorld<Mode>> worlds = local_worlds<Mode>(1);
  CHECK(STATUS(nmc::BasicEp<Mode>::create(worlds[0], config().hidden(3))) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(nmc::BasicEp<Mode>::create(nmc::BasicWorld<Mode>(), config())) == NMC_ERR_BAD_HANDLE);
  CHECK(STATUS(nmc::BasicEp<Mode>::create_ranks({}, config())) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(nmc::BasicEp<Mode>::bytes_needed(config(), 0)) == NMC_ERR_INVALID_ARG);
}

template <class Mode>
void call_groups() {
  promise("a group of calls tells its errors at its end, and is over with its scope");
  std::vector<nmc::BasicWorld<Mode>> worlds = local_worlds<Mode>(1);
  nmc::BasicEp<Mode> ep = value_of(nmc::BasicEp<Mode>::create(worlds[0], config()));
  Rank<int32_t> rank(value_of(nmc::BasicEp<Mode>::bytes_needed(config(), 1)), 0);
  {
    nmc::nothrow::EpCallGroup group = nmc::nothrow::EpCallGroup::begin().value();
    CHECK(STATUS(nmc::BasicEpCallGroup<Mode>::begin()) == NMC_ERR_INVALID_ARG);
    CHECK(WORKS(ep.combine(0, rank.out)));
    const nmc::Result<void> ended = group.end();
    CHECK(ended.status() == NMC_ERR_INVALID_ARG && ended.message().find("out of turn") != std::string::npos);
  }
  {
    nmc::BasicEpCallGroup<Mode> moved = [] { return value_of(nmc::BasicEpCallGroup<Mode>::begin()); }();
    CHECK(WORKS(ep.dispatch(rank.tokens(0))) && WORKS(ep.pack(0, rank.where())));
  }
  CHECK(rank.masked_m[0] == 2);  // the destructor has sent them out
  CHECK(WORKS(value_of(nmc::BasicEpCallGroup<Mode>::begin()).end()));
}

// A layer of one rank.
template <class Mode>
struct Layer {
  std::vector<nmc::BasicWorld<Mode>> worlds = local_worlds<Mode>(1);
  nmc::BasicEp<Mode> ep = value_of(nmc::BasicEp<Mode>::create(worlds[0], config()));
  nmc::EpBytes bytes = value_of(nmc::BasicEp<Mode>::bytes_needed(config(), 1, kInner));
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

template <class Mode>
void sizes() {
  promise("a container with less than the tokens of a step have is refused before anything is sent");
  Layer<Mode> layer;
  Rank<int64_t>& rank = layer.rank;
  nmc::BasicEp<Mode>& ep = layer.ep;
  const std::vector<Row> two(kTokens - 1);
  const std::vector<int64_t> five(kTokens * kTopK - 1);
  const std::vector<float> short_weights(kTokens * kTopK - 1);
  const auto refuses = [&](const nmc::EpTokens& tokens) {
    CHECK(STATUS(ep.dispatch(tokens)) == NMC_ERR_INVALID_ARG && STATUS(ep.dispatch_send(tokens)) == NMC_ERR_INVALID_ARG);
    CHECK(STATUS(ep.moe_forward(tokens, layer.moe())) == NMC_ERR_INVALID_ARG);
    CHECK(STATUS(ep.moe_forward(tokens, layer.moe(), [](const nmc_ep_gemm_t&, void*) {})) == NMC_ERR_INVALID_ARG);
    CHECK(!ep.nothrow()->dispatch(tokens).ok());
  };
  refuses(nmc::EpTokens(two, rank.idx, rank.weights, kTokens));
  refuses(nmc::EpTokens(rank.x, five, rank.weights, kTokens));
  refuses(nmc::EpTokens(rank.x, rank.idx, short_weights, kTokens));
  refuses(nmc::EpTokens(nmc::span<const Row>(two), rank.idx, rank.weights, kTokens));
  CHECK(ep.nothrow()->dispatch(nmc::EpTokens(two, rank.idx, rank.weights, 3)).message() == "x has 64 bytes; 3 tokens have 96");
  std::vector<Row> less_out(kTokens - 1), less_w13(kExperts * 2 * kInner - 1), less_w2(kExperts * kInner - 1);
  const nmc::EpTokens tokens = rank.tokens(0);
  CHECK(STATUS(ep.moe_forward(tokens, layer.moe().out(less_out))) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(ep.moe_forward(tokens, layer.moe().weights(less_w13, layer.w2))) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(ep.moe_forward(tokens, layer.moe().weights(layer.w13, less_w2))) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(ep.moe_forward(tokens, layer.moe().workspace(nmc::span<std::byte>()))) == NMC_ERR_INVALID_ARG);

  promise("what is large enough, or of nobody knows what size, is taken");
  std::vector<Row> more(2 * kTokens);
  CHECK(WORKS(ep.moe_forward(tokens, layer.moe().out(more).workspace(layer.workspace))));
  CHECK(WORKS(ep.moe_forward(nmc::EpTokens(rank.x.data(), rank.idx.data(), rank.weights.data(), kTokens), layer.moe().out(more.data()))));
  CHECK(WORKS(ep.moe_forward(tokens, layer.moe().weights(less_w13, less_w2), [](const nmc_ep_gemm_t&, void*) {})));  // the callable knows its own
  const int32_t count = 2;  // in place of what the tokens say
  CHECK(WORKS(ep.moe_forward(nmc::EpTokens(two, rank.idx, rank.weights, kTokens).count_at(&count), layer.moe().out(less_out))));
  CHECK(layer.moe().workspace(layer.workspace).c().workspace_bytes == layer.workspace.size() * 256);
}

int32_t fails(const nmc_ep_gemm_t&, void*) { return NMC_ERR_NO_SPACE; }

template <class Mode>
void forward() {
  promise("a layer takes any callable as its product");
  Layer<Mode> layer;
  const nmc::EpTokens tokens = layer.rank.tokens(0);
  CHECK(WORKS(layer.ep.moe_forward(tokens, layer.moe())));
  std::vector<uint32_t> which;
  CHECK(WORKS(layer.ep.moe_forward(tokens, layer.moe(), [&](const nmc_ep_gemm_t& g, void* stream) {
    which.push_back(g.which);
    CHECK(stream == nullptr && g.struct_size == sizeof g && g.b == (g.which == 0 ? layer.w13.data() : layer.w2.data()));
  })));
  CHECK(which == std::vector<uint32_t>({0, 1}));
  const std::function<nmc::Result<void>(const nmc_ep_gemm_t&, void*)> good = [](const nmc_ep_gemm_t&, void*) {
    return nmc::Result<void>();
  };
  CHECK(WORKS(layer.ep.moe_forward(tokens, layer.moe(), good)));

  promise("a product that fails ends the group, and the call tells why");
  const nmc::Result<void> failed = layer.ep.nothrow()->moe_forward(tokens, layer.moe(), fails);
  CHECK(failed.status() == NMC_ERR_NO_SPACE && failed.message().find("product 0") != std::string::npos);
  CHECK(STATUS(layer.ep.check()) == NMC_ERR_CANCELLED);
  Layer<Mode> other;
  const auto second_fails = [](const nmc_ep_gemm_t& g, void*) {
    return g.which == 0 ? nmc::Result<void>() : nmc::Result<void>(nmc::Failure{NMC_ERR_CUDA, "no such stream"});
  };
  CHECK(STATUS(other.ep.moe_forward(other.rank.tokens(0), other.moe(), second_fails)) == NMC_ERR_CUDA);
  Layer<Mode> third;
  const nmc::Result<void> told = third.ep.nothrow()->moe_forward(third.rank.tokens(0), third.moe(), second_fails);
  CHECK(told.status() == NMC_ERR_CUDA && told.message() == "no such stream");
}

template <class Mode>
void cases(const char* form) {
  printf("%s\n", form);
  steps<Mode, int32_t>("steps with 32-bit expert numbers");
  steps<Mode, int64_t>("steps with 64-bit expert numbers");
  refused<Mode>();
  sizes<Mode>();
  call_groups<Mode>();
  forward<Mode>();
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

template <class Mode>
void products_that_throw() {
  promise("what a product throws does not pass through the library, and is thrown by the call");
  Layer<Mode> first, second, third;
  const auto breaks = [](const nmc_ep_gemm_t&, void*) { throw std::out_of_range("no tile"); };
  CHECK(throws<std::out_of_range>([&] { (void)first.ep.moe_forward(first.rank.tokens(0), first.moe(), breaks); }));
  CHECK(STATUS(first.ep.check()) == NMC_ERR_CANCELLED);

  promise("an nmc::Error of a product is how the call fails");
  const auto checks = [&](const nmc_ep_gemm_t&, void*) { nmc::Ep(nullptr, 0, 0).check(); };
  CHECK(STATUS(second.ep.moe_forward(second.rank.tokens(0), second.moe(), checks)) == NMC_ERR_BAD_HANDLE);
  const auto misses = [](const nmc_ep_gemm_t&, void*) { throw nmc::Error({NMC_NOT_READY, "later"}); };
  CHECK(STATUS(third.ep.moe_forward(third.rank.tokens(0), third.moe(), misses)) == NMC_ERR_CANCELLED);
}
#endif

}  // namespace

int main() {
  arguments();
#if NMC_HPP_EXCEPTIONS
  cases<nmc::Throwing>("nmc");
  products_that_throw<nmc::Throwing>();
  products_that_throw<nmc::Returning>();
#endif
  cases<nmc::Returning>("nmc::nothrow");
  return finish();
}
