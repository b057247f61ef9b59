// Whole layers with `nmc_ep_moe_forward`; rows that do not fit, and spill groups; what is counted; groups of some ranks.
#include "ep_host.hpp"

#include <numeric>

using namespace ep;

namespace {

using Buf = Buffer<HostMemory>;

// ---- whole layers -----------------------------------------------------------------------------------------------------

constexpr uint32_t kInner = 24;

// Matrices of all experts: element (e, i, j) of the first or second product.
float weight_of(uint32_t which, uint32_t e, uint32_t i, uint32_t j) {
  return static_cast<float>(static_cast<int>((e * 7 + i * 13 + j * 5 + which * 3) % 17) - 8) / 32;
}

// Matrices of the local experts of a rank, `rows` x `columns` each.
Buf matrices(const Case& c, uint32_t rank, uint32_t which, uint32_t rows, uint32_t columns) {
  Bytes all(size_t{c.n_local()} * rows * columns * element_bytes(c.dtype));
  for (uint32_t e = 0, n = 0; e < c.n_local(); ++e) {
    for (uint32_t i = 0; i < rows; ++i) {
      for (uint32_t j = 0; j < columns; ++j) put(c.dtype, all.data(), n++, weight_of(which, rank * c.n_local() + e, i, j));
    }
  }
  Buf buffer(all.size());
  buffer.put(all);
  return buffer;
}

// Relative L2 distance of the result of a layer from one in double precision.
double layer_distance(const HostRank& rank) {
  const Case& c = rank.c;
  const Bytes out = rank.out.read();
  double difference = 0, size = 0;
  for (uint32_t t = 0; t < rank.tokens.n; ++t) {
    std::vector<double> want(c.hidden);
    for (uint32_t k = 0; k < c.top_k; ++k) {
      const int64_t expert = rank.tokens.experts[t * c.top_k + k];
      if (expert < 0) continue;
      const uint32_t e = static_cast<uint32_t>(expert);
      std::vector<double> mid(2 * kInner), act(kInner);
      for (uint32_t i = 0; i < 2 * kInner; ++i) {
        for (uint32_t j = 0; j < c.hidden; ++j) mid[i] += double{received(c, rank.tokens, t, j)} * weight_of(0, e, i, j);
      }
      for (uint32_t i = 0; i < kInner; ++i) act[i] = mid[i] / (1 + std::exp(-mid[i])) * mid[kInner + i];
      for (uint32_t i = 0; i < c.hidden; ++i) {
        double y = 0;
        for (uint32_t j = 0; j < kInner; ++j) y += act[j] * weight_of(1, e, i, j);
        want[i] += rank.tokens.weights[t * c.top_k + k] * y;
      }
    }
    for (uint32_t i = 0; i < c.hidden; ++i) {
      const double got = get(c.dtype, out.data() + size_t{t} * c.y_bytes(), i);
      difference += (got - want[i]) * (got - want[i]);
      size += want[i] * want[i];
    }
  }
  return size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
}

// A rank's layer: matrices, workspace, and what the callback saw.
struct Layer {
  HostRank& rank;
  nmc_ep_t* ep;
  Buf w13, w2, workspace;
  uint64_t workspace_bytes;
  uint32_t calls = 0;
  nmc_status_t fail = NMC_OK;

  Layer(Group& g, uint32_t r)
      : rank(g.ranks[r]), ep(g.eps[r]), w13(matrices(g.c, r, 0, 2 * kInner, g.c.hidden)),
        w2(matrices(g.c, r, 1, g.c.hidden, kInner)), workspace(needed(g.c)), workspace_bytes(needed(g.c)) {}

  static uint64_t needed(const Case& c) {
    const nmc_ep_config_t config = c.config();
    nmc_ep_bytes_t bytes = NMC_EP_BYTES_INIT;
    REQUIRE(OK(nmc_ep_bytes_needed(&config, c.world, kInner, &bytes)));
    return bytes.workspace;
  }

  nmc_ep_moe_t moe() const {
    nmc_ep_moe_t m = NMC_EP_MOE_INIT;
    m.w13 = w13.get();
    m.w2 = w2.get();
    m.workspace = workspace.get();
    m.workspace_bytes = workspace_bytes;
    m.out = rank.out.get();
    m.inner = kInner;
    return m;
  }

  // A product as an engine might do it, in single precision.
  static int32_t gemm(void* user, const nmc_ep_gemm_t* g, void* stream) {
    Layer& self = *static_cast<Layer*>(user);
    const Case& c = self.rank.c;
    CHECK(stream == nullptr && g->which == self.calls && g->groups == c.groups() && g->max_m == c.rows() && g->expected_m >= 1);
    CHECK(g->which == 0 ? g->n == 2 * kInner && g->k == c.hidden && g->b == self.w13.get()
                        : g->n == c.hidden && g->k == kInner && g->b == self.w2.get());
    GIVES(nmc_ep_destroy(self.ep), NMC_ERR_BUSY);
    ++self.calls;
    if (self.fail != NMC_OK) return self.fail;
    const auto *a = static_cast<const unsigned char*>(g->a), *b = static_cast<const unsigned char*>(g->b);
    for (uint32_t group = 0; group < g->groups; ++group) {
      for (int32_t r = 0; r < g->masked_m[group]; ++r) {
        const size_t row = size_t{group} * g->max_m + static_cast<size_t>(r);
        for (uint32_t i = 0; i < g->n; ++i) {
          float sum = 0;
          const size_t column = (static_cast<size_t>(g->group_expert[group]) * g->n + i) * g->k;
          for (uint32_t j = 0; j < g->k; ++j) sum += get(c.dtype, a, row * g->k + j) * get(c.dtype, b, column + j);
          put(c.dtype, static_cast<unsigned char*>(g->c), row * g->n + i, sum);
        }
      }
    }
    return NMC_OK;
  }

  nmc_status_t forward(uint32_t layer, const nmc_ep_moe_t& m) {
    calls = 0;
    const nmc_ep_dispatch_t args = rank.dispatch(layer, true);
    return nmc_ep_moe_forward(ep, &args, &m, nullptr);
  }
};

Case layer_case(uint32_t dtype, uint32_t dispatch, int64_t deadline_ms = 60000) {
  Case c;
  c.world = 2;
  c.hidden = 128;
  c.experts = 8;
  c.dtype = dtype;
  c.dispatch = dispatch;
  c.tiny = false;  // a whole token would be, and has no result to compare
  c.max_m = 6;  // most rows spill
  c.spill_groups = c.world * c.t_cap * c.top_k;
  c.deadline_ms = deadline_ms;
  return c;
}

void layers() {
  struct Kind {
    uint32_t dtype, dispatch;
    double tolerance;
  };
  for (const Kind& kind : {Kind{NMC_DTYPE_FP32, NMC_EP_DISPATCH_SAME, 1e-5}, Kind{NMC_DTYPE_BF16, NMC_EP_DISPATCH_SAME, 2e-2},
                           Kind{NMC_DTYPE_BF16, NMC_EP_DISPATCH_FP8_GIVEN, 2e-2}, Kind{NMC_DTYPE_FP32, NMC_EP_DISPATCH_FP8, 2e-1}}) {
    promise("a whole layer is what its products give");
    Group g(layer_case(kind.dtype, kind.dispatch));
    std::vector<Layer> parts;
    for (uint32_t r = 0; r < 2; ++r) parts.emplace_back(g, r);
    for (uint32_t s = 0; s < (under_tool() ? 2 : 6); ++s) {
      const bool callback = s % 2 != 0 && kind.dispatch == NMC_EP_DISPATCH_SAME;
      g.load(s);
      on_threads(2, [&](uint32_t r) {
        nmc_ep_moe_t m = parts[r].moe();
        m.gemm = callback ? Layer::gemm : nullptr;
        m.gemm_user = &parts[r];
        OK(parts[r].forward(s, m));
        CHECK(parts[r].calls == (callback ? 2 : 0));
      });
      for (const HostRank& rank : g.ranks) {
        const double distance = layer_distance(rank);
        if (!CHECK(distance <= kind.tolerance)) std::printf("     off by %g\n", distance);
      }
    }
  }
}

void layer_errors() {
  promise("a layer with bad arguments is refused before anything is sent");
  Group g(layer_case(NMC_DTYPE_BF16, NMC_EP_DISPATCH_SAME, short_deadline_ms()));
  std::vector<Layer> parts;
  for (uint32_t r = 0; r < 2; ++r) parts.emplace_back(g, r);
  g.load(0);
  const auto refused = [&](void (*change)(nmc_ep_moe_t&), const char* says) {
    nmc_ep_moe_t m = parts[0].moe();
    change(m);
    GIVES(parts[0].forward(0, m), NMC_ERR_INVALID_ARG);
    CHECK(error_mentions(says));
  };
  refused([](nmc_ep_moe_t& m) { m.out = nullptr; }, "out is 0x0");
  refused([](nmc_ep_moe_t& m) { m.out = static_cast<char*>(m.out) + 8; }, "out is 0x");
  refused([](nmc_ep_moe_t& m) { m.inner = 0; }, "inner 0");
  refused([](nmc_ep_moe_t& m) { m.inner = 20; }, "inner 20 is not a multiple of 8");
  refused([](nmc_ep_moe_t& m) { m.workspace = nullptr; }, "workspace");
  refused([](nmc_ep_moe_t& m) { m.workspace = static_cast<char*>(m.workspace) + 16; }, "workspace");
  refused([](nmc_ep_moe_t& m) { --m.workspace_bytes; }, "nmc_ep_bytes_needed");
  refused([](nmc_ep_moe_t& m) { m.w13 = nullptr; }, "needs w13 and w2");
  refused([](nmc_ep_moe_t& m) { m.w2 = nullptr; }, "needs w13 and w2");
  const nmc_ep_dispatch_t args = g.ranks[0].dispatch(0, false);
  GIVES(nmc_ep_moe_forward(g.eps[0], nullptr, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_ep_moe_forward(g.eps[0], &args, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  OK(nmc_ep_group_begin());
  GIVES(parts[0].forward(0, parts[0].moe()), NMC_ERR_INVALID_ARG);
  OK(nmc_ep_group_end());
  on_threads(2, [&](uint32_t r) { OK(parts[r].forward(0, parts[r].moe())); });
  for (const HostRank& rank : g.ranks) CHECK(layer_distance(rank) < 2e-2);

  promise("what a callback returns is passed on, and ends the group: peers do not wait for the deadline");
  g.destroy();
  Group fails(layer_case(NMC_DTYPE_BF16, NMC_EP_DISPATCH_SAME));
  parts.clear();
  for (uint32_t r = 0; r < 2; ++r) parts.emplace_back(fails, r);
  fails.load(1);
  const double start = seconds_now();
  on_threads(2, [&](uint32_t r) {
    nmc_ep_moe_t m = parts[r].moe();
    m.gemm = Layer::gemm;
    m.gemm_user = &parts[r];
    if (r == 1) parts[r].fail = NMC_ERR_NO_MEMORY;
    GIVES(parts[r].forward(1, m), r == 1 ? NMC_ERR_NO_MEMORY : NMC_ERR_CANCELLED);
    CHECK(error_mentions(r == 1 ? "the callback for product 0 failed" : "rank 1 reports: the group was aborted"));
    CHECK(r == 0 || parts[r].calls == 1);
  });
  CHECK(seconds_now() - start < 30);
  for (nmc_ep_t* e : fails.eps) GIVES(nmc_ep_check(e), NMC_ERR_CANCELLED);
}

// ---- rows that do not fit, and counting -------------------------------------------------------------------------------

void capacity(uint32_t max_m, uint32_t spill_groups, bool load) {
  promise("rows are packed or counted, none twice and none silently lost");
  Case c;
  c.max_m = max_m;
  c.spill_groups = spill_groups;
  std::vector<nmc_world_t*> worlds = local_world(c.world, heap_bytes(c));
  nmc_ep_config_t config = c.config();
  config.flags = load ? 0 : NMC_EP_NO_LOAD;
  std::vector<nmc_ep_t*> eps(c.world);
  REQUIRE(OK(nmc_ep_create_ranks(worlds.data(), c.world, &config, eps.data())));
  std::vector<HostRank> ranks;
  for (uint32_t r = 0; r < c.world; ++r) ranks.emplace_back(c, r);
  std::vector<uint64_t> sent(c.experts), overflow(c.world);
  std::vector<std::vector<uint64_t>> loads(c.world, std::vector<uint64_t>(c.experts));
  uint32_t spilt = 0;
  for (uint32_t s = 0; s < (under_tool() ? 8 : 30); ++s) {
    for (HostRank& rank : ranks) rank.load(s);
    on_threads(c.world, [&](uint32_t r) { OK(try_step(eps[r], ranks[r], s)); });
    std::vector<uint64_t> now(c.experts);
    for (const HostRank& rank : ranks) {
      for (const int64_t e : rank.tokens.experts) {
        if (e >= 0) ++now[static_cast<size_t>(e)], ++loads[rank.number][static_cast<size_t>(e)];
      }
    }
    for (const HostRank& rank : ranks) {
      const auto *m = rank.masked_m.as<int32_t>(), *of = rank.row_of.as<int32_t>(), *index = rank.row_index.as<int32_t>();
      const auto* group_expert = rank.group_expert.as<int32_t>();
      // Rows of each expert: as many as came, or all that its groups hold.
      std::vector<uint64_t> packed(c.n_local());
      for (uint32_t g = 0; g < c.groups(); ++g) {
        CHECK(m[g] >= 0 && m[g] <= static_cast<int32_t>(c.rows()) && group_expert[g] < static_cast<int32_t>(c.n_local()));
        CHECK(g >= c.n_local() ? (group_expert[g] < 0) == (m[g] == 0) : group_expert[g] == static_cast<int32_t>(g));
        if (m[g] > 0) packed[static_cast<size_t>(group_expert[g])] += static_cast<uint64_t>(m[g]);
        spilt += g >= c.n_local() && m[g] > 0;
        for (uint32_t r = 0; r < c.rows(); ++r) CHECK((index[g * c.rows() + r] >= 0) == (static_cast<int32_t>(r) < m[g]));
      }
      uint64_t lost = 0;
      bool spill_full = true;
      for (uint32_t g = c.n_local(); g < c.groups(); ++g) spill_full &= m[g] > 0;
      for (uint32_t e = 0; e < c.n_local(); ++e) {
        const uint64_t came = now[rank.number * c.n_local() + e];
        CHECK(packed[e] <= came && packed[e] >= std::min<uint64_t>(came, c.rows()));
        CHECK(packed[e] == came || spill_full);
        lost += came - packed[e];
      }
      overflow[rank.number] += lost;
      // Every packed entry is in a row of its own, which names its slot.
      std::vector<int32_t> used;
      for (uint32_t i = 0; i < c.world * c.t_cap * c.top_k; ++i) {
        if (of[i] < 0) continue;
        used.push_back(of[i]);
        CHECK(index[of[i]] == static_cast<int32_t>(i / c.top_k));
      }
      std::sort(used.begin(), used.end());
      CHECK(std::adjacent_find(used.begin(), used.end()) == used.end());
      CHECK(used.size() == std::accumulate(packed.begin(), packed.end(), uint64_t{0}));
      if (lost == 0 && max_m == 0) CHECK(right(rank, s));
    }
  }
  for (uint32_t r = 0; r < c.world; ++r) {
    std::vector<uint64_t> counted(c.experts, 77), waited(c.world, UINT64_MAX);
    uint64_t rows = 77;
    OK(nmc_ep_stats(eps[r], counted.data(), waited.data(), &rows));
    CHECK(rows == overflow[r]);
    CHECK(counted == (load ? loads[r] : std::vector<uint64_t>(c.experts)));
    for (const uint64_t ns : waited) CHECK(ns < 600'000'000'000);
  }
  const uint64_t lost = std::accumulate(overflow.begin(), overflow.end(), uint64_t{0});
  std::printf("     %llu rows did not fit, %u spill groups were used\n", static_cast<unsigned long long>(lost), spilt);
  CHECK((lost > 0) == (max_m != 0 && spill_groups < 100));
  CHECK((spilt > 0) == (spill_groups > 0));
  for (nmc_ep_t* e : eps) OK(nmc_ep_destroy(e));
  for (nmc_world_t* w : worlds) OK(nmc_world_destroy(w));
}

void waiting() {
  promise("the time that a rank waits for another one is counted");
  Case c;
  c.world = 2;
  Group g(c);
  g.load(0);
  on_threads(2, [&](uint32_t r) {
    if (r == 1) sleep_ms(200);
    OK(try_step(g.eps[r], g.ranks[r], 0));
  });
  uint64_t waited[2];
  OK(nmc_ep_stats(g.eps[0], nullptr, waited, nullptr));
  CHECK(waited[1] > 50'000'000);
}

// ---- prefill ------------------------------------------------------------------------------------------------------------

void prefill() {
  promise("a rank can send 4,096 tokens at a time");
  Case c;
  c.world = 2, c.t_cap = 4096, c.hidden = 128, c.top_k = 2, c.experts = 8, c.repeated = false;
  Group g(c);
  g.load(0, 4096);
  grouped_step(g, 0);
  for (HostRank& rank : g.ranks) CHECK(right(rank, 0));
}

// Two groups of other shapes between one begin and end: their calls must not be taken for each other's.
void two_groups() {
  promise("calls of two groups can be grouped together");
  Case a, b;
  a.world = 2, b.world = 2, b.t_cap = 4, b.hidden = 128, b.experts = 6, b.top_k = 2, b.seed = 9;
  Group one(a), two(b);
  one.load(0);
  two.load(0);
  const auto each = [&](auto body) {
    OK(nmc_ep_group_begin());
    for (uint32_t r = 0; r < 2; ++r) {
      body(one.eps[r], one.ranks[r]);
      body(two.eps[r], two.ranks[r]);
    }
    OK(nmc_ep_group_end());
  };
  each([](nmc_ep_t* e, HostRank& rank) {
    const nmc_ep_dispatch_t args = rank.dispatch(0, false);
    const nmc_ep_grouped_t where = rank.where();
    OK(nmc_ep_dispatch(e, &args, nullptr));
    OK(nmc_ep_route_pack(e, 0, &where, nullptr));
  });
  for (Group* g : {&one, &two}) {
    for (HostRank& rank : g->ranks) rank.compute();
  }
  each([](nmc_ep_t* e, HostRank& rank) {
    OK(nmc_ep_scatter(e, 0, rank.y.get(), rank.row_of.as<int32_t>(), nullptr, nullptr));
    OK(nmc_ep_combine(e, 0, nullptr, rank.out.get(), nullptr));
  });
  for (Group* g : {&one, &two}) {
    for (HostRank& rank : g->ranks) CHECK(right(rank, 0));
  }
}

// ---- groups of some ranks ---------------------------------------------------------------------------------------------

void some_members() {
  promise("groups of some ranks work at the same time, beside each other and over each other");
  Case pair;
  pair.world = 2;
  pair.max_m = pair.world * pair.t_cap * pair.top_k;
  Case all = pair;
  all.world = 4;
  all.max_m = all.world * all.t_cap * all.top_k;
  all.heap_offset = heap_bytes(pair);
  std::vector<nmc_world_t*> worlds = local_world(4, heap_bytes(all));
  on_threads(4, [&](uint32_t r) {
    // Ranks 0 and 2, and ranks 1 and 3, in the same place of their heaps; all four behind it.
    nmc_ep_config_t config = pair.config();
    config.members = r % 2 == 0 ? 5 : 10;
    nmc_ep_t *two = nullptr, *four = nullptr;
    const nmc_ep_config_t whole = all.config();
    if (!OK(nmc_ep_create(worlds[r], &config, &two)) || !OK(nmc_ep_create(worlds[r], &whole, &four))) return;
    HostRank in_two(pair, r / 2), in_four(all, r);
    for (uint32_t s = 0; s < 20; ++s) {
      in_two.load(s);
      in_four.load(s);
      OK(try_step(two, in_two, s));
      OK(try_step(four, in_four, s));
      CHECK(right(in_two, s) && right(in_four, s));
    }
    OK(nmc_world_barrier(worlds[r], 60000));
    OK(nmc_ep_destroy(two));
    OK(nmc_ep_destroy(four));
  });
  for (nmc_world_t* w : worlds) OK(nmc_world_destroy(w));
}

}  // namespace

int main() {
  layers();
  layer_errors();
  capacity(0, 0, true);
  capacity(2, 0, true);
  capacity(2, 3, true);
  capacity(2, 200, true);
  capacity(1, 1, false);
  waiting();
  if (!under_tool()) prefill();  // valgrind would take minutes
  two_groups();
  some_members();
  return finish();
}
