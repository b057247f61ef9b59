// What goes wrong with expert-parallel groups: every mistake gives its status and says what is wrong, nothing hangs, groups
// that can go on do, and after one that is over a new one works in the same memory.
#include "ep_host.hpp"

#include <atomic>
#include <initializer_list>

using namespace ep;

namespace {

constexpr int64_t kLong = 60000;  // ms

#define FAILS(call, want, text)                                              \
  do {                                                                       \
    if (GIVES(call, want) && !CHECK(error_mentions(text))) std::printf("     expected: %s\n", text); \
  } while (0)

Case small(uint32_t world = 2, int64_t deadline_ms = kLong) {
  Case c;
  c.world = world;
  c.hidden = 128;
  c.experts = 4 * world;
  c.deadline_ms = deadline_ms;
  c.max_m = world * c.t_cap * c.top_k;
  return c;
}

void* at(const Buffer<HostMemory>& buffer, size_t offset) { return buffer.as<unsigned char>() + offset; }

void check_works(Group& g, uint32_t step) {
  g.load(step);
  on_threads(g.c.world, [&](uint32_t r) { OK(try_step(g.eps[r], g.ranks[r], step)); });
  for (const HostRank& rank : g.ranks) CHECK(right(rank, step));
}

// ---- making a group ---------------------------------------------------------------------------------------------------

void configs() {
  promise("a config that makes no sense is refused with a reason");
  struct Bad {
    const char* says;
    void (*change)(nmc_ep_config_t&);
    nmc_status_t status = NMC_ERR_INVALID_ARG;
  };
  const Bad everywhere[] = {
      {"hidden 100 is not a multiple of 8", [](nmc_ep_config_t& c) { c.hidden = 100; }},
      {"hidden 0", [](nmc_ep_config_t& c) { c.hidden = 0; }},
      {"hidden 2097152", [](nmc_ep_config_t& c) { c.hidden = 1 << 21; }},
      {"multiple of 128", [](nmc_ep_config_t& c) { c.hidden = 200, c.dispatch = NMC_EP_DISPATCH_FP8; }},
      {"top_k 0", [](nmc_ep_config_t& c) { c.top_k = 0; }},
      {"top_k 33", [](nmc_ep_config_t& c) { c.top_k = 33; }},
      {"experts 7 is not a multiple of the 2 ranks", [](nmc_ep_config_t& c) { c.experts = 7; }},
      {"experts 0", [](nmc_ep_config_t& c) { c.experts = 0; }},
      {"experts 4294967294", [](nmc_ep_config_t& c) { c.experts = 0xfffffffe; }},
      {"t_cap 32769", [](nmc_ep_config_t& c) { c.t_cap = 32769; }},
      {"max_m 65", [](nmc_ep_config_t& c) { c.max_m = 2 * 8 * 4 + 1; }},
      {"max_m 4294967295", [](nmc_ep_config_t& c) { c.max_m = 0xffffffff; }},
      {"spill_groups", [](nmc_ep_config_t& c) { c.spill_groups = 0xffffffff; }},
      {"buffer_sets 65", [](nmc_ep_config_t& c) { c.buffer_sets = 65; }},
      {"dtype 3", [](nmc_ep_config_t& c) { c.dtype = NMC_DTYPE_FP8; }},
      {"dispatch 3", [](nmc_ep_config_t& c) { c.dispatch = 3; }},
      {"weights 1", [](nmc_ep_config_t& c) { c.weights = NMC_DTYPE_BF16; }},
      {"flags 0x20", [](nmc_ep_config_t& c) { c.flags = 32; }},
      {"reserved", [](nmc_ep_config_t& c) { c.reserved[3] = 1; }},
      {"deadline_ms 0", [](nmc_ep_config_t& c) { c.deadline_ms = 0; }},
      {"deadline_ms -2", [](nmc_ep_config_t& c) { c.deadline_ms = -2; }},
      {"members 0x4 names ranks", [](nmc_ep_config_t& c) { c.members = 4; }},
      {"struct_size 0", [](nmc_ep_config_t& c) { c.struct_size = 0; }, NMC_ERR_VERSION},
  };
  const Bad in_a_world[] = {
      {"rank 0 is not in members", [](nmc_ep_config_t& c) { c.members = 2, c.max_m = 0; }},
      {"a multiple of 256", [](nmc_ep_config_t& c) { c.heap_offset = 128; }},
      {"heaps have", [](nmc_ep_config_t& c) { c.heap_offset = 4096; }},
      {"heaps have", [](nmc_ep_config_t& c) { c.heap_offset = ~uint64_t{255}; }},
      {"heaps have", [](nmc_ep_config_t& c) { c.t_cap = 4096; }},
  };
  const Case c = small();
  std::vector<nmc_world_t*> worlds = local_world(c.world, heap_bytes(c));
  std::vector<nmc_ep_t*> eps(c.world);
  const auto refused = [&](const Bad& bad, bool by_size) {
    nmc_ep_config_t config = c.config();
    bad.change(config);
    nmc_ep_bytes_t bytes = NMC_EP_BYTES_INIT;
    if (by_size) FAILS(nmc_ep_bytes_needed(&config, c.world, 0, &bytes), bad.status, bad.says);
    FAILS(nmc_ep_create_ranks(worlds.data(), c.world, &config, eps.data()), bad.status, bad.says);
    CHECK(eps[0] == nullptr && eps[1] == nullptr);
  };
  for (const Bad& bad : everywhere) refused(bad, true);
  {
    const nmc_ep_config_t config = c.config();
    nmc_ep_bytes_t bytes = NMC_EP_BYTES_INIT;
    FAILS(nmc_ep_bytes_needed(&config, c.world, ~0u, &bytes), NMC_ERR_INVALID_ARG, "inner 4294967295");
    bytes.struct_size = 0;
    CHECK(nmc_ep_bytes_needed(&config, c.world, 0, &bytes) < 0 && error_mentions("_INIT"));
    nmc_world_t* const same[2] = {worlds[0], worlds[0]};
    FAILS(nmc_ep_create_ranks(same, 2, &config, eps.data()), NMC_ERR_INVALID_ARG, "rank 0 is given twice");
    std::vector<nmc_world_t*> others = local_world(c.world, heap_bytes(c));
    nmc_world_t* const mixed[2] = {worlds[0], others[1]};
    FAILS(nmc_ep_create_ranks(mixed, 2, &config, eps.data()), NMC_ERR_INVALID_ARG, "of another world");
    for (nmc_world_t* world : others) OK(nmc_world_destroy(world));
  }
  for (const Bad& bad : in_a_world) refused(bad, false);

  const nmc_ep_config_t config = c.config();
  nmc_ep_bytes_t bytes = NMC_EP_BYTES_INIT;
  FAILS(nmc_ep_bytes_needed(&config, 0, 0, &bytes), NMC_ERR_INVALID_ARG, "world_size 0");
  FAILS(nmc_ep_bytes_needed(&config, 65, 0, &bytes), NMC_ERR_INVALID_ARG, "world_size 65");
  FAILS(nmc_ep_bytes_needed(&config, 64, 0, &bytes), NMC_ERR_LIMIT, "64 ranks");
  GIVES(nmc_ep_bytes_needed(nullptr, 2, 0, &bytes), NMC_ERR_INVALID_ARG);
  GIVES(nmc_ep_bytes_needed(&config, 2, 0, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_ep_create(nullptr, &config, eps.data()), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_ep_create(worlds[0], nullptr, eps.data()), NMC_ERR_INVALID_ARG);
  GIVES(nmc_ep_create(worlds[0], &config, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_ep_create_ranks(nullptr, 2, &config, eps.data()), NMC_ERR_INVALID_ARG);
  GIVES(nmc_ep_create_ranks(worlds.data(), 0, &config, eps.data()), NMC_ERR_INVALID_ARG);
  GIVES(nmc_ep_create_ranks(worlds.data(), 65, &config, eps.data()), NMC_ERR_INVALID_ARG);
  // All of it has left the world as it was.
  OK(nmc_ep_create_ranks(worlds.data(), c.world, &config, eps.data()));
  for (nmc_ep_t* e : eps) OK(nmc_ep_destroy(e));
  for (nmc_world_t* w : worlds) OK(nmc_world_destroy(w));
}

void disagreement() {
  promise("ranks that disagree are told on what, with both values");
  struct Other {
    const char *here, *there;
    void (*change)(nmc_ep_config_t&);
  };
  const Other others[] = {
      {"t_cap is 8 here and 9 on rank 1", "t_cap is 9 here and 8 on rank 0", [](nmc_ep_config_t& c) { c.t_cap = 9; }},
      {"hidden is 128 here and 256", "hidden is 256 here and 128", [](nmc_ep_config_t& c) { c.hidden = 256; }},
      {"top_k is 4 here and 5", "top_k is 5 here and 4", [](nmc_ep_config_t& c) { c.top_k = 5; }},
      {"experts is 8 here and 16", "experts is 16 here and 8", [](nmc_ep_config_t& c) { c.experts = 16; }},
      {"dtype is 1 here and 2", "dtype is 2 here and 1", [](nmc_ep_config_t& c) { c.dtype = NMC_DTYPE_FP16; }},
      {"dispatch is 0 here and 1", "dispatch is 1 here and 0", [](nmc_ep_config_t& c) { c.dispatch = 1; }},
      {"weights is 0 here and 2", "weights is 2 here and 0", [](nmc_ep_config_t& c) { c.weights = NMC_DTYPE_FP16; }},
      {"max_m is 64 here and 3", "max_m is 3 here and 64", [](nmc_ep_config_t& c) { c.max_m = 3; }},
      {"spill_groups is 0 here and 3", "spill_groups is 3 here", [](nmc_ep_config_t& c) { c.spill_groups = 3; }},
      {"buffer_sets is 1 here and 2", "buffer_sets is 2 here", [](nmc_ep_config_t& c) { c.buffer_sets = 2; }},
      {"separate_y is 0 here and 1", "separate_y is 1", [](nmc_ep_config_t& c) { c.flags = NMC_EP_SEPARATE_Y; }},
      {"device_scope is 0 here and 1", "device_scope is 1", [](nmc_ep_config_t& c) { c.flags = NMC_EP_DEVICE_SCOPE; }},
      {"heap_offset is 0 here and 256", "heap_offset is 256 here", [](nmc_ep_config_t& c) { c.heap_offset = 256; }},
      {"first_phase is 0 here and 5", "first_phase is 5 here and 0", [](nmc_ep_config_t& c) { c.first_phase = 5; }},
  };
  const Case c = small();
  std::vector<nmc_world_t*> worlds = local_world(c.world, 4 * heap_bytes(c));
  for (const Other& other : others) {
    on_threads(2, [&](uint32_t r) {
      nmc_ep_config_t config = c.config();
      if (r == 1) other.change(config);
      nmc_ep_t* e = nullptr;
      FAILS(nmc_ep_create(worlds[r], &config, &e), NMC_ERR_MISMATCH, r == 0 ? other.here : other.there);
      CHECK(e == nullptr);
    });
  }
  for (nmc_world_t* w : worlds) OK(nmc_world_destroy(w));

  promise("all of several ranks are told, not only the first two");
  const Case four = small(4);
  worlds = local_world(4, heap_bytes(four));
  for (uint32_t i = 0; i < 20 && failed_checks == 0; ++i) {
    on_threads(4, [&](uint32_t r) {
      nmc_ep_config_t config = four.config();
      if (r == i % 4) config.first_phase = 5;
      nmc_ep_t* e = nullptr;
      FAILS(nmc_ep_create(worlds[r], &config, &e), NMC_ERR_MISMATCH, r == i % 4 ? "is 5 here and 0 on" : "is 0 here and 5 on");
    });
  }
  for (nmc_world_t* w : worlds) OK(nmc_world_destroy(w));
}

void other_members() {
  promise("ranks that name different members are told so, not what follows from it");
  Case c = small(3);
  c.max_m = 0;
  std::vector<nmc_world_t*> worlds = local_world(3, 16 * heap_bytes(c));
  on_threads(3, [&](uint32_t r) {
    nmc_ep_config_t config = c.config();
    config.t_cap = 0;  // it and max_m depend on how many they are
    if (r == 1) config.members = 3;
    nmc_ep_t* e = nullptr;
    FAILS(nmc_ep_create(worlds[r], &config, &e), NMC_ERR_MISMATCH,
          r == 1 ? "members is 0x3 here and 0x7 on rank" : "members is 0x7 here and 0x3 on rank 1");
  });
  for (nmc_world_t* w : worlds) OK(nmc_world_destroy(w));
}

// How long this thread has waited for a CPU so far, where the system tells.
double starved_seconds() {
  double ran = 0, waited = 0;
  if (FILE* file = std::fopen("/proc/thread-self/schedstat", "r")) {
    if (std::fscanf(file, "%lf %lf", &ran, &waited) != 2) waited = 0;
    std::fclose(file);
  }
  return waited * 1e-9;
}

// Ranks that disagree again and again, each at its own speed: a fast one is at its next attempt while a slow one has not left
// the last. One that gets no CPU for most of a second is not waited for, and the others are ahead of it for good: then the run says
// nothing, and the result is false.
bool differences_in_a_row(uint32_t ranks, uint32_t rounds) {
  const Case c = small(ranks);
  std::vector<nmc_world_t*> worlds = local_world(ranks, heap_bytes(c));
  std::atomic<int> other_round{0}, not_told{0};
  std::atomic<bool> starved{false};
  on_threads(ranks, [&](uint32_t r) {
    for (uint32_t i = 0; i < rounds && not_told.load() == 0; ++i) {
      nmc_ep_config_t config = c.config();
      config.first_phase = 100 * (i + 1) + r;
      config.deadline_ms = 5000;
      if ((i * 7 + r * 3) % 5 == 0) sleep_ms(static_cast<long>((i + r) % 3));
      nmc_ep_t* e = nullptr;
      const double before = starved_seconds();
      const nmc_status_t status = nmc_ep_create(worlds[r], &config, &e);
      if (starved_seconds() - before > 0.3) starved = true;
      unsigned here = 0, there = 0;
      if (status != NMC_ERR_MISMATCH) {
        not_told.fetch_add(1);
      } else if (std::sscanf(nmc_last_error_message(), "first_phase is %u here and %u", &here, &there) == 2 && here / 100 != there / 100) {
        other_round.fetch_add(1);
      }
    }
  });
  for (nmc_world_t* w : worlds) OK(nmc_world_destroy(w));
  if (starved.load()) return false;
  CHECK(not_told.load() == 0);
  CHECK(other_round.load() == 0);
  return true;
}

void again_and_again() {
  promise("every one of several differences in a row is told to all ranks, and ends one attempt of each");
  const uint32_t rounds = under_tool() ? 5 : 100;
  for (const uint32_t ranks : {2u, 3u, 4u}) {
    int tries = 0;
    while (!differences_in_a_row(ranks, rounds) && ++tries < 5) {}
    if (tries == 5) std::printf("     %u ranks could not be checked: this machine has no CPU for them\n", ranks);
  }
}

// Ranks that are told of a difference come again at once with what they should have wanted, at different speeds. A rank that gets no
// CPU for as long as the others stay to tell it learns of the difference later, and they with it: such a run says nothing.
bool second_try(uint32_t rounds) {
  const Case c = small(4);
  std::vector<nmc_world_t*> worlds = local_world(4, heap_bytes(c));
  std::atomic<int> told{0}, unmet{0};
  std::atomic<bool> starved{false};
  for (uint32_t i = 0; i < rounds && unmet.load() == 0; ++i) {
    on_threads(4, [&](uint32_t r) {
      nmc_ep_config_t config = c.config();
      if (r == i % 4) config.first_phase = 5;
      nmc_ep_t* e = nullptr;
      // Who comes late may meet those that come again, and find nothing wrong.
      if (i % 3 == 1 && r == (i + 1) % 4) sleep_ms(static_cast<long>(i % 7));
      const double before = starved_seconds();
      nmc_status_t status = nmc_ep_create(worlds[r], &config, &e);
      if (status == NMC_ERR_MISMATCH) {
        told.fetch_add(1);
        CHECK(error_mentions("first_phase is"));
        config.first_phase = 0;
        if (i % 2 == 0) sleep_ms(r % 3);
        status = nmc_ep_create(worlds[r], &config, &e);
      }
      if (starved_seconds() - before > 0.3) starved = true;
      if (status == NMC_OK) {
        OK(nmc_ep_destroy(e));
      } else {
        unmet.fetch_add(1);
      }
    });
  }
  for (nmc_world_t* w : worlds) OK(nmc_world_destroy(w));
  if (starved.load()) return false;
  CHECK(unmet.load() == 0);
  CHECK(told.load() >= static_cast<int>(2 * rounds));
  return true;
}

void tried_again() {
  promise("ranks that disagreed are all told, and meet when they try again");
  const uint32_t rounds = under_tool() ? 10 : 100;
  int tries = 0;
  while (!second_try(rounds) && ++tries < 5) {}
  if (tries == 5) std::printf("     could not be checked: this machine has no CPU for them\n");
}

void missing() {
  promise("a rank that does not come to make the group is named");
  const Case c = small(3);
  std::vector<nmc_world_t*> worlds = local_world(3, heap_bytes(c));
  nmc_ep_config_t config = c.config();
  config.deadline_ms = 300;
  nmc_ep_t* eps[2] = {};
  FAILS(nmc_ep_create_ranks(worlds.data(), 2, &config, eps), NMC_ERR_TIMEOUT, "rank 2 did not come");
  OK(nmc_world_destroy(worlds[2]));
  config.deadline_ms = kLong;
  GIVES(nmc_ep_create_ranks(worlds.data(), 2, &config, eps), NMC_ERR_PEER_LOST);
  CHECK(error_mentions("rank 2"));
  // Those that are left can do without.
  config.members = 3;
  config.experts = 8;
  config.max_m = 0;
  OK(nmc_ep_create_ranks(worlds.data(), 2, &config, eps));
  for (nmc_ep_t* e : eps) OK(nmc_ep_destroy(e));
  for (int r = 0; r < 2; ++r) OK(nmc_world_destroy(worlds[r]));
}

void one_after_another() {
  promise("groups with other shapes can follow each other at once");
  const Case c = small(3);
  std::vector<nmc_world_t*> worlds = local_world(3, 2 * heap_bytes(c));
  on_threads(3, [&](uint32_t r) {
    nmc_ep_config_t config = c.config();
    config.max_m = 0;
    for (uint32_t i = 0; i < 300 && failed_checks == 0; ++i) {
      config.t_cap = 5 + i % 3;
      nmc_ep_t* e = nullptr;
      if (!OK(nmc_ep_create(worlds[r], &config, &e))) return;
      OK(nmc_ep_destroy(e));
    }
  });
  for (nmc_world_t* w : worlds) OK(nmc_world_destroy(w));
}

// ---- arguments --------------------------------------------------------------------------------------------------------

void arguments() {
  promise("a call with bad arguments does nothing, and the group goes on");
  Case c = small();
  c.dispatch = NMC_EP_DISPATCH_FP8_GIVEN;
  Group g(c);
  nmc_ep_t* e = g.eps[0];
  HostRank& rank = g.ranks[0];
  g.load(0, 3);
  const auto dispatch = [&](void (*change)(nmc_ep_dispatch_t&, const HostRank&), nmc_status_t want, const char* says) {
    nmc_ep_dispatch_t args = rank.dispatch(0, false);
    change(args, rank);
    FAILS(nmc_ep_dispatch(e, &args, nullptr), want, says);
    FAILS(nmc_ep_dispatch_send(e, &args, nullptr), want, says);
  };
  using Args = nmc_ep_dispatch_t;
  dispatch([](Args& a, const HostRank& r) { a.x = at(r.x, 8); }, NMC_ERR_INVALID_ARG, "x is 0x");
  dispatch([](Args& a, const HostRank&) { a.x = nullptr; }, NMC_ERR_INVALID_ARG, "x is 0x0");
  dispatch([](Args& a, const HostRank&) { a.topk_idx = nullptr; }, NMC_ERR_INVALID_ARG, "topk_idx");
  dispatch([](Args& a, const HostRank& r) { a.topk_idx = at(r.idx, 4), a.idx_is_64 = 1; }, NMC_ERR_INVALID_ARG, "aligned to 8");
  dispatch([](Args& a, const HostRank& r) { a.topk_w = at(r.weight, 2); }, NMC_ERR_INVALID_ARG, "topk_w");
  dispatch([](Args& a, const HostRank&) { a.scales = nullptr; }, NMC_ERR_INVALID_ARG, "scales");
  dispatch([](Args& a, const HostRank& r) { a.n_tokens_ptr = static_cast<int32_t*>(at(r.count, 2)); }, NMC_ERR_INVALID_ARG, "n_tokens_ptr");
  dispatch([](Args& a, const HostRank&) { a.n_tokens = 9; }, NMC_ERR_LIMIT, "9 tokens are more than t_cap 8; nothing was sent");
  dispatch([](Args& a, const HostRank&) { a.n_tokens = 0xffffffff; }, NMC_ERR_LIMIT, "nothing was sent");
  dispatch([](Args& a, const HostRank&) { a.layer = 65536; }, NMC_ERR_INVALID_ARG, "layer 65536");
  dispatch([](Args& a, const HostRank&) { a.idx_is_64 = 2; }, NMC_ERR_INVALID_ARG, "idx_is_64 is 2");
  dispatch([](Args& a, const HostRank&) { a.struct_size = 4; }, NMC_ERR_VERSION, "struct_size 4");
  dispatch([](Args& a, const HostRank&) { a.reserved = 0x80; }, NMC_ERR_INVALID_ARG, "nmc_ep_dispatch_t is 0x80 and not zero");

  nmc_ep_dispatch_t args = rank.dispatch(0, false);
  nmc_ep_grouped_t where = rank.where();
  nmc_ep_moe_t moe = NMC_EP_MOE_INIT;
  moe.reserved = 1;
  FAILS(nmc_ep_moe_forward(e, &args, &moe, nullptr), NMC_ERR_INVALID_ARG, "nmc_ep_moe_t is 0x1 and not zero");
  int stream = 0;
  FAILS(nmc_ep_dispatch(e, &args, &stream), NMC_ERR_INVALID_ARG, "takes no stream");
  FAILS(nmc_ep_route_pack(e, 0, &where, &stream), NMC_ERR_INVALID_ARG, "takes no stream");
  FAILS(nmc_ep_scatter(e, 0, rank.y.get(), where.row_of, nullptr, &stream), NMC_ERR_INVALID_ARG, "takes no stream");
  FAILS(nmc_ep_combine(e, 0, nullptr, rank.out.get(), &stream), NMC_ERR_INVALID_ARG, "takes no stream");
  GIVES(nmc_ep_dispatch(e, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_ep_route_pack(e, 0, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  where.row_of = nullptr;
  FAILS(nmc_ep_route_pack(e, 0, &where, nullptr), NMC_ERR_INVALID_ARG, "row_of");
  where = rank.where();
  where.struct_size = 0;
  FAILS(nmc_ep_route_pack(e, 0, &where, nullptr), NMC_ERR_VERSION, "nmc_ep_grouped_t: struct_size 0");
  where = rank.where();
  where.scales = nullptr;
  FAILS(nmc_ep_route_pack(e, 0, &where, nullptr), NMC_ERR_INVALID_ARG, "scales");
  FAILS(nmc_ep_scatter(e, 0, nullptr, rank.where().row_of, nullptr, nullptr), NMC_ERR_INVALID_ARG, "y_grouped");
  FAILS(nmc_ep_combine(e, 0, nullptr, nullptr, nullptr), NMC_ERR_INVALID_ARG, "out");
  FAILS(nmc_ep_combine(e, 0, nullptr, at(rank.out, 8), nullptr), NMC_ERR_INVALID_ARG, "out");
  FAILS(nmc_ep_combine_send(e, 0, at(rank.y, 8), nullptr), NMC_ERR_INVALID_ARG, "y_recv");
  nmc_ep_recv_buffers_t recv = NMC_EP_RECV_BUFFERS_INIT;
  OK(nmc_ep_recv_buffers(e, 65535, &recv));
  CHECK(recv.x != nullptr && recv.struct_size == sizeof recv);
  for (const uint32_t layer : {65536u, 70000u, ~0u}) {
    const std::string says = "layer " + std::to_string(layer) + " is more than 65535";
    FAILS(nmc_ep_recv_buffers(e, layer, &recv), NMC_ERR_INVALID_ARG, says.c_str());
    FAILS(nmc_ep_combine(e, layer, nullptr, rank.out.get(), nullptr), NMC_ERR_INVALID_ARG, says.c_str());
    FAILS(nmc_ep_dispatch_recv(e, layer, nullptr), NMC_ERR_INVALID_ARG, says.c_str());
  }
  GIVES(nmc_ep_recv_buffers(e, 0, nullptr), NMC_ERR_INVALID_ARG);
  recv.struct_size = 0;
  CHECK(nmc_ep_recv_buffers(e, 0, &recv) < 0 && error_mentions("_INIT"));
  nmc_ep_rank_t device;
  FAILS(nmc_ep_device(e, 0, &device), NMC_ERR_UNSUPPORTED, "host memory");
  OK(nmc_ep_stats(e, nullptr, nullptr, nullptr));
  check_works(g, 1);
}

void nothing_came() {
  promise("before the first dispatch there is nothing to pack, whatever was in the heap");
  const Case c = small();
  Group g(c);
  // Other bytes than the poison, which is no expert: a heap that was used before.
  g.destroy();
  for (nmc_world_t* world : g.worlds) fill_heap(world, 0x33);
  g.create();
  for (HostRank& rank : g.ranks) {
    const nmc_ep_grouped_t where = rank.where();
    OK(nmc_ep_route_pack(g.eps[rank.number], 0, &where, nullptr));
    for (uint32_t i = 0; i < c.groups(); ++i) CHECK(where.masked_m[i] == 0);
  }
  check_works(g, 0);
}

void turns() {
  promise("a combine before its dispatch, and a dispatch before the combine of the last one, are refused and change nothing");
  Case c = small();
  c.sets = 2;
  Group g(c);
  g.load(0, 3);
  const auto dispatch = [&](uint32_t r, uint32_t layer) {
    const nmc_ep_dispatch_t args = g.ranks[r].dispatch(layer, false);
    return nmc_ep_dispatch(g.eps[r], &args, nullptr);
  };
  const auto send = [&](uint32_t r, uint32_t layer) {
    const nmc_ep_dispatch_t args = g.ranks[r].dispatch(layer, false);
    return nmc_ep_dispatch_send(g.eps[r], &args, nullptr);
  };
  const auto combine = [&](uint32_t r, uint32_t layer) {
    return nmc_ep_combine(g.eps[r], layer, nullptr, g.ranks[r].out.get(), nullptr);
  };
  FAILS(combine(0, 0), NMC_ERR_INVALID_ARG, "nmc_ep_combine of layer 0 is out of turn: the next step of buffer set 0 is nmc_ep_dispatch");
  FAILS(nmc_ep_combine_send(g.eps[0], 1, nullptr, nullptr), NMC_ERR_INVALID_ARG, "buffer set 1 is nmc_ep_dispatch;");
  FAILS(nmc_ep_combine_recv(g.eps[0], 0, g.ranks[0].out.get(), nullptr), NMC_ERR_INVALID_ARG, "out of turn");
  FAILS(nmc_ep_dispatch_recv(g.eps[0], 0, nullptr), NMC_ERR_INVALID_ARG, "out of turn");
  check_works(g, 0);
  FAILS(combine(1, 0), NMC_ERR_INVALID_ARG, "out of turn");
  on_threads(2, [&](uint32_t r) {
    OK(dispatch(r, 2));
    FAILS(dispatch(r, 2), NMC_ERR_INVALID_ARG, "nmc_ep_dispatch of layer 2 is out of turn: the next step of buffer set 0 is nmc_ep_combine");
    FAILS(dispatch(r, 4), NMC_ERR_INVALID_ARG, "out of turn");
    FAILS(send(r, 2), NMC_ERR_INVALID_ARG, "nmc_ep_dispatch_send");
    OK(dispatch(r, 3));  // another set
    OK(combine(r, 2));
    FAILS(combine(r, 2), NMC_ERR_INVALID_ARG, "out of turn");
    OK(combine(r, 3));
  });
  // In a group of calls the end tells, and what could not go out counts for nothing.
  OK(nmc_ep_group_begin());
  for (uint32_t r = 0; r < 2; ++r) OK(combine(r, 4));
  FAILS(nmc_ep_group_end(), NMC_ERR_INVALID_ARG, "out of turn");
  OK(nmc_ep_group_begin());
  for (uint32_t r = 0; r < 2; ++r) OK(dispatch(r, 4));
  for (uint32_t r = 0; r < 2; ++r) OK(combine(r, 4));
  OK(nmc_ep_group_end());
  for (nmc_ep_t* e : g.eps) OK(nmc_ep_check(e));
  check_works(g, 5);
}

// ---- the end of a group -----------------------------------------------------------------------------------------------

using Part = std::function<nmc_status_t(Group&, uint32_t rank)>;

// Every rank does its part and gets `want`, then and for ever; `says` is in the message. A new group in the same memory
// works.
void ends_with(const char* name, nmc_status_t want, const char* says, const Part& part, int64_t deadline_ms = kLong) {
  promise(name);
  Group g(small(3, deadline_ms));
  check_works(g, 0);
  g.load(1, 4);
  on_threads(3, [&](uint32_t r) { FAILS(part(g, r), want, says); });
  for (uint32_t r = 0; r < 3; ++r) {
    FAILS(nmc_ep_check(g.eps[r]), want, says);
    FAILS(try_step(g.eps[r], g.ranks[r], 2), want, "the group is over, destroy it");
    OK(nmc_ep_stats(g.eps[r], nullptr, nullptr, nullptr));
  }
  g.destroy();
  g.create();
  check_works(g, 3);
}

void ends() {
  for (const int32_t count : {9, -1, 0x01000009, 0x7fffffff, -0x7fffffff - 1}) {
    const std::string says = std::to_string(count) + " tokens are not between 0 and t_cap 8";
    ends_with("too many tokens in memory end the group", NMC_ERR_LIMIT, says.c_str(), [=](Group& g, uint32_t r) {
      if (r == 1) std::memcpy(g.ranks[r].count.get(), &count, 4);
      return try_step(g.eps[r], g.ranks[r], 1);
    });
  }
  for (const int32_t expert : {12, -2, 0x7fffffff}) {
    ends_with("a number that is no expert ends the group", NMC_ERR_INVALID_ARG, "topk_idx of token 2 is neither -1 nor below 12",
              [=](Group& g, uint32_t r) {
                if (r == 2) std::memcpy(at(g.ranks[r].idx, 4 * (2 * g.c.top_k + 1)), &expert, 4);
                return try_step(g.eps[r], g.ranks[r], 1);
              });
  }
  ends_with("ranks at different layers end the group", NMC_ERR_MISMATCH, "was expected",
            [](Group& g, uint32_t r) { return try_step(g.eps[r], g.ranks[r], r == 1 ? 7 : 6); });
  ends_with("a combine of another layer ends the group", NMC_ERR_MISMATCH, "was expected", [](Group& g, uint32_t r) {
    const nmc_ep_dispatch_t args = g.ranks[r].dispatch(1, false);
    const nmc_status_t status = nmc_ep_dispatch(g.eps[r], &args, nullptr);
    return status == NMC_OK ? nmc_ep_combine(g.eps[r], r == 0 ? 2 : 1, nullptr, g.ranks[r].out.get(), nullptr) : status;
  });
  ends_with("a rank that does not come any more ends the group", NMC_ERR_PEER_LOST, "rank 1 did not come within",
            [](Group& g, uint32_t r) {
              if (r != 1) return try_step(g.eps[r], g.ranks[r], 1);
              nmc_status_t status = NMC_OK;
              for (const double end = seconds_now() + 60; status == NMC_OK && seconds_now() < end; sleep_ms(5)) status = nmc_ep_check(g.eps[1]);
              return status;
            },
            short_deadline_ms());
  for (const uint32_t by : {0u, 1u}) {
    ends_with("an abort by any thread of any rank ends the group", NMC_ERR_CANCELLED, "aborted", [=](Group& g, uint32_t r) {
      if (r != 1) return try_step(g.eps[r], g.ranks[r], 1);
      sleep_ms(50);
      OK(nmc_ep_abort(g.eps[by]));
      return nmc_ep_check(g.eps[1]);
    });
  }
  ends_with("an abort before a step, too", NMC_ERR_CANCELLED, "aborted", [](Group& g, uint32_t r) {
    OK(nmc_ep_abort(g.eps[r]));
    OK(nmc_ep_abort(g.eps[r]));
    return try_step(g.eps[r], g.ranks[r], 1);
  });
}

void leavers() {
  promise("who waits for a rank that leaves the world learns it");
  const Case c = small(2);
  Group g(c);
  check_works(g, 0);
  g.load(1);
  std::thread waits([&] { FAILS(try_step(g.eps[0], g.ranks[0], 1), NMC_ERR_PEER_LOST, "rank 1"); });
  sleep_ms(50);
  g.destroy(1);
  OK(nmc_world_destroy(g.worlds[1]));
  g.worlds.pop_back();
  waits.join();
  FAILS(nmc_ep_check(g.eps[0]), NMC_ERR_PEER_LOST, "rank 1");
}

void check_finds_a_leaver() {
  promise("a check that finds a rank gone ends the group for that reason everywhere");
  Group g(small(3));
  check_works(g, 0);
  g.load(1);
  // It waits for rank 1 and does not look at rank 2.
  std::thread waits([&] { FAILS(try_step(g.eps[0], g.ranks[0], 1), NMC_ERR_PEER_LOST, "rank 2 has died"); });
  sleep_ms(50);
  g.destroy(2);
  OK(nmc_world_destroy(g.worlds[2]));
  g.worlds.pop_back();
  FAILS(nmc_ep_check(g.eps[0]), NMC_ERR_PEER_LOST, "rank 2 has died");
  waits.join();
  FAILS(try_step(g.eps[1], g.ranks[1], 1), NMC_ERR_PEER_LOST, "rank 0 reports: layer 0: rank 2 has died");
}

// Returns when rank `src` has sent its tokens to rank `dst`, in the first step of a group: it is inside its call then.
void until_sent(const Group& g, uint32_t src, uint32_t dst) {
  nmc_ep_recv_buffers_t recv = NMC_EP_RECV_BUFFERS_INIT;
  REQUIRE(OK(nmc_ep_recv_buffers(g.eps[dst], 0, &recv)));
  const auto* record = reinterpret_cast<const uint32_t*>(static_cast<const unsigned char*>(recv.records) + size_t{src} * recv.record_stride);
  // The hash of the config, which is 0 before.
  while (__atomic_load_n(record + 2, __ATOMIC_RELAXED) == 0) sleep_ms(1);
}

// ---- handles ----------------------------------------------------------------------------------------------------------

void handles() {
  promise("a handle that is destroyed is refused everywhere");
  Group g(small());
  nmc_ep_t* e = g.eps[0];
  HostRank& rank = g.ranks[0];
  g.load(0);
  const nmc_ep_dispatch_t args = rank.dispatch(0, false);
  const nmc_ep_grouped_t where = rank.where();
  nmc_ep_moe_t moe = NMC_EP_MOE_INIT;
  nmc_ep_recv_buffers_t recv = NMC_EP_RECV_BUFFERS_INIT;
  nmc_ep_rank_t device;
  const auto refused = [&](nmc_ep_t* bad) {
    GIVES(nmc_ep_dispatch(bad, &args, nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_ep_dispatch_send(bad, &args, nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_ep_dispatch_recv(bad, 0, nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_ep_route_pack(bad, 0, &where, nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_ep_scatter(bad, 0, rank.y.get(), where.row_of, nullptr, nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_ep_combine(bad, 0, nullptr, rank.out.get(), nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_ep_combine_send(bad, 0, nullptr, nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_ep_combine_recv(bad, 0, rank.out.get(), nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_ep_moe_forward(bad, &args, &moe, nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_ep_recv_buffers(bad, 0, &recv), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_ep_device(bad, 0, &device), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_ep_stats(bad, nullptr, nullptr, nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_ep_check(bad), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_ep_abort(bad), NMC_ERR_BAD_HANDLE);
  };
  g.destroy(0);
  refused(e);
  GIVES(nmc_ep_destroy(e), NMC_ERR_BAD_HANDLE);
  refused(nullptr);
  OK(nmc_ep_destroy(nullptr));
  GIVES(nmc_ep_destroy(reinterpret_cast<nmc_ep_t*>(g.worlds[0])), NMC_ERR_BAD_HANDLE);

  promise("destroying a group ends a call of another thread that waits in it, and of the peers");
  g.destroy(1);
  g.create();
  std::thread waits([&] { FAILS(try_step(g.eps[0], rank, 0), NMC_ERR_CANCELLED, "aborted"); });
  until_sent(g, 0, 1);
  OK(nmc_ep_destroy(g.eps[0]));
  waits.join();
  g.eps[0] = nullptr;
  FAILS(try_step(g.eps[1], g.ranks[1], 0), NMC_ERR_CANCELLED, "rank 0 reports");
}

void grouped_calls() {
  promise("groups of calls: begin and end come in pairs, errors come with the end");
  FAILS(nmc_ep_group_end(), NMC_ERR_INVALID_ARG, "has begun no group");
  OK(nmc_ep_group_begin());
  FAILS(nmc_ep_group_begin(), NMC_ERR_INVALID_ARG, "end it first");
  OK(nmc_ep_group_end());
  GIVES(nmc_ep_group_end(), NMC_ERR_INVALID_ARG);

  Group g(small());
  g.load(0, 3);
  const int32_t none = 99;
  std::memcpy(g.ranks[1].idx.get(), &none, 4);
  OK(nmc_ep_group_begin());
  for (HostRank& rank : g.ranks) {
    const nmc_ep_dispatch_t args = rank.dispatch(0, false);
    OK(nmc_ep_dispatch(g.eps[rank.number], &args, nullptr));
    // Arguments are looked at in the call itself.
    FAILS(nmc_ep_combine(g.eps[rank.number], 0, nullptr, nullptr, nullptr), NMC_ERR_INVALID_ARG, "out");
  }
  FAILS(nmc_ep_group_end(), NMC_ERR_INVALID_ARG, "topk_idx of token 0");
  g.destroy();
  g.create();

  // A handle that goes away between begin and end.
  OK(nmc_ep_group_begin());
  const nmc_ep_dispatch_t args = g.ranks[0].dispatch(0, false);
  OK(nmc_ep_dispatch(g.eps[0], &args, nullptr));
  g.destroy(0);
  GIVES(nmc_ep_group_end(), NMC_ERR_CANCELLED);
  g.destroy();
  g.create();
  // A thread that ends without an end.
  std::thread([&] {
    OK(nmc_ep_group_begin());
    OK(nmc_ep_dispatch(g.eps[0], &args, nullptr));
  }).join();
  check_works(g, 1);
}

}  // namespace

int main() {
  configs();
  disagreement();
  other_members();
  again_and_again();
  tried_again();
  missing();
  one_after_another();
  arguments();
  nothing_came();
  turns();
  ends();
  leavers();
  check_finds_a_leaver();
  handles();
  grouped_calls();
  return finish();
}
