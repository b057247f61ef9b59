// Every reserved byte of every struct that a program fills must be zero: a later version may give it a meaning, and a program that
// leaves rubbish there would then ask for something.
#include <filesystem>

#include "../support/check.h"

namespace {

// Sets one byte after the other of a reserved field; `call` must refuse each, and say why.
template <class T, class Field, class Call>
void refused(const char* name, const T& good, Field T::*field, Call call) {
  for (size_t i = 0; i < sizeof(Field); ++i) {
    T bad = good;
    reinterpret_cast<unsigned char*>(&(bad.*field))[i] = 0x80;
    const nmc_status_t got = call(&bad);
    if (got != NMC_ERR_INVALID_ARG || !error_mentions("reserved")) {
      printf("byte %zu of %s: %s (%s)\n", i, name, nmc_status_name(got), nmc_last_error_message());
      CHECK(!"it must be refused");
    }
  }
}

}  // namespace

int main() {
  promise("a_reserved_byte_that_is_not_zero_is_refused");
  nmc_world_config_t world = NMC_WORLD_CONFIG_INIT;
  world.world_size = 1;
  world.heap_bytes = 1 << 20;
  nmc_world_t* w = nullptr;
  const auto make = [&](const nmc_world_config_t* c) { return nmc_world_create_local(c, &w); };
  refused("nmc_world_config_t", world, &nmc_world_config_t::reserved, make);
  refused("nmc_world_config_t", world, &nmc_world_config_t::reserved0, make);
  REQUIRE(OK(nmc_world_create_local(&world, &w)));  // the control: as it is, it works

  nmc_store_config_t store = NMC_STORE_CONFIG_INIT;
  store.heap_bytes = 1 << 20;
  nmc_store_t* s = nullptr;
  refused("nmc_store_config_t", store, &nmc_store_config_t::reserved,
          [&](const nmc_store_config_t* c) { return nmc_store_create(nullptr, c, &s); });
  REQUIRE(OK(nmc_store_create(nullptr, &store, &s)));
  const nmc_put_options_t put = NMC_PUT_OPTIONS_INIT;
  refused("nmc_put_options_t", put, &nmc_put_options_t::reserved,
          [&](const nmc_put_options_t* o) { return nmc_store_put(s, slice_of("k"), "v", 1, o); });
  OK(nmc_store_put(s, slice_of("k"), "v", 1, &put));

  nmc_tier_config_t tier = NMC_TIER_CONFIG_INIT;
  char dir[] = "/tmp/nmc-reserved-XXXXXX";
  REQUIRE(mkdtemp(dir) != nullptr);
  tier.directory = slice_of(dir);
  nmc_tier_t* t = nullptr;
  refused("nmc_tier_config_t", tier, &nmc_tier_config_t::reserved,
          [&](const nmc_tier_config_t* c) { return nmc_tier_open(s, c, &t); });
  REQUIRE(OK(nmc_tier_open(s, &tier, &t)));

  nmc_ep_config_t ep = NMC_EP_CONFIG_INIT;
  ep.hidden = 8;
  ep.top_k = 1;
  ep.experts = 1;
  ep.t_cap = 4;
  nmc_ep_t* e = nullptr;
  const auto create = [&](const nmc_ep_config_t* c) { return nmc_ep_create(w, c, &e); };
  refused("nmc_ep_config_t", ep, &nmc_ep_config_t::reserved0, create);
  refused("nmc_ep_config_t", ep, &nmc_ep_config_t::reserved, create);
  REQUIRE(OK(create(&ep)));
  const nmc_ep_dispatch_t dispatch = NMC_EP_DISPATCH_INIT;
  const nmc_ep_moe_t moe = NMC_EP_MOE_INIT;
  refused("nmc_ep_dispatch_t", dispatch, &nmc_ep_dispatch_t::reserved,
          [&](const nmc_ep_dispatch_t* d) { return nmc_ep_dispatch(e, d, nullptr); });
  refused("nmc_ep_moe_t", moe, &nmc_ep_moe_t::reserved,
          [&](const nmc_ep_moe_t* m) { return nmc_ep_moe_forward(e, &dispatch, m, nullptr); });
  OK(nmc_ep_dispatch(e, &dispatch, nullptr));

  nmc_blocks_config_t blocks = NMC_BLOCKS_CONFIG_INIT;
  blocks.total_blocks = 8;
  nmc_blocks_t* b = nullptr;
  const auto create_blocks = [&](const nmc_blocks_config_t* c) { return nmc_blocks_create(c, &b); };
  refused("nmc_blocks_config_t", blocks, &nmc_blocks_config_t::reserved0, create_blocks);
  refused("nmc_blocks_config_t", blocks, &nmc_blocks_config_t::reserved, create_blocks);
  REQUIRE(OK(nmc_blocks_create(&blocks, &b)));

  nmc_kv_config_t kv = NMC_KV_CONFIG_INIT;
  kv.total_blocks = 8;
  nmc_kv_t* k = nullptr;
  const auto create_kv = [&](const nmc_kv_config_t* c) { return nmc_kv_create(nullptr, c, &k); };
  refused("nmc_kv_config_t", kv, &nmc_kv_config_t::reserved0, create_kv);
  const auto with_group = [&](const nmc_kv_group_t* g) {
    nmc_kv_config_t config = kv;
    config.groups = g;
    config.n_groups = 1;
    return nmc_kv_create(nullptr, &config, &k);
  };
  const nmc_kv_group_t group = NMC_KV_GROUP_INIT;
  refused("nmc_kv_group_t", group, &nmc_kv_group_t::reserved0, with_group);
  REQUIRE(OK(nmc_kv_create(nullptr, &kv, &k)));
  const nmc_kv_open_t open = NMC_KV_OPEN_INIT;
  const auto open_1 = [&](const nmc_kv_open_t* o) { return nmc_kv_open(k, 1, nullptr, 3, o, nullptr, nullptr); };
  refused("nmc_kv_open_t", open, &nmc_kv_open_t::reserved, open_1);
  OK(open_1(&open));
  const nmc_kv_copy_t copy{};
  refused("nmc_kv_copy_t", copy, &nmc_kv_copy_t::reserved,
          [&](const nmc_kv_copy_t* c) { return nmc_kv_copy_blocks(k, c, 1, nullptr); });
  const nmc_kv_after_t after{};
  refused("nmc_kv_after_t", after, &nmc_kv_after_t::reserved,
          [&](const nmc_kv_after_t* a) { return nmc_kv_move_after(k, a); });

  OK(nmc_kv_destroy(k));
  OK(nmc_blocks_destroy(b));
  OK(nmc_ep_destroy(e));
  OK(nmc_tier_close(t));
  OK(nmc_store_destroy(s));
  std::filesystem::remove_all(dir);
  OK(nmc_world_destroy(w));
  return finish();
}
