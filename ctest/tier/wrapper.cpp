// nanomc/tier.hpp: every function in both forms, from one body; without exceptions (wrapper_noexc.cpp) in the only one.
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include "../support/check.h"
#include "../support/forms.hpp"
#include "nanomc/tier.hpp"

#define WORKS(...) (STATUS(__VA_ARGS__) == NMC_OK)

namespace {

nmc::StoreConfig small() { return nmc::StoreConfig().heap_bytes(4 << 20).page_bytes(4096); }

// A directory of the case's own.
struct Dir {
  std::string path;
  Dir() {
    char name[] = "/tmp/nmc-tier-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path = name;
  }
  ~Dir() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

void configs() {
  promise("a_config_fills_the_c_struct");
  nmc::TierConfig config("/here");
  const nmc_tier_config_t c = config.max_objects(1)
                                  .capacity_bytes(2)
                                  .bucket_bytes(3)
                                  .bucket_keys(4)
                                  .heartbeat(std::chrono::seconds(5))
                                  .depth(6)
                                  .direct(false)
                                  .uring(false)
                                  .durable_remove()
                                  .paused()
                                  .reset_if_damaged()
                                  .delete_torn()
                                  .events()
                                  .write_through()
                                  .other_directory()
                                  .meta()
                                  .backend(NMC_TIER_BACKEND_NOOP)
                                  .eviction(nmc::Evict::lru)
                                  .promote_after(7)
                                  .admit_reads(8)
                                  .admit_priority(2)
                                  .write_bytes_per_s(9)
                                  .c();
  CHECK(c.struct_size == sizeof c && c.abi_version == NMC_ABI_VERSION && std::string(static_cast<const char*>(c.directory.ptr), c.directory.len) == "/here");
  CHECK(c.max_objects == 1 && c.capacity_bytes == 2 && c.bucket_bytes == 3 && c.bucket_keys == 4);
  CHECK(c.heartbeat_ms == 5000 && c.depth == 6 && c.flags == 1023 && c.backend == NMC_TIER_BACKEND_NOOP && c.progress == nullptr);
  CHECK(config.direct(true).uring(true).durable_remove(false).paused(false).events(false).write_through(false).other_directory(false).meta(false).c().flags == 48);
  CHECK(c.eviction == NMC_EVICT_LRU && c.promote_after == 7 && c.admit_reads == 8 && c.admit_priority == 2 && c.write_bytes_per_s == 9);
  CHECK(nmc::TierConfig().c().directory.len == 0 && nmc::TierConfig().c().flags == 0);
  CHECK(nmc::TierConfig().heartbeat(std::chrono::milliseconds(0)).c().heartbeat_ms == 1);
  CHECK(nmc::TierConfig().heartbeat(std::chrono::hours(24 * 365 * 100)).c().heartbeat_ms == UINT32_MAX);
  nmc::TierConfig there;
  const nmc_slice_t named = there.directory("/there").c().directory;
  CHECK(std::string(static_cast<const char*>(named.ptr), named.len) == "/there");
}

template <class Store, class Tier>
void calls() {
  Dir dir;
  const Store store = value_of(Store::embedded(small()));
  const nmc::TierConfig config = nmc::TierConfig(dir.path).max_objects(1000).paused().events();

  promise("failures_are_told_in_the_form_of_the_class");
  CHECK(STATUS(Tier::open(store)) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(Tier::open(Store(), config)) == NMC_ERR_BAD_HANDLE);
  CHECK(STATUS(Tier().sync()) == NMC_ERR_BAD_HANDLE && STATUS(Tier().stats()) == NMC_ERR_BAD_HANDLE);

  Tier tier = value_of(Tier::open(store, config));
  CHECK(STATUS(Tier::open(store, config)) == NMC_ERR_EXISTS);

  promise("offloading_takes_a_list_of_keys_or_all");
  const std::string value(5000, 'v');
  for (const char* key : {"a", "b", "c", "d"}) CHECK(WORKS(store.put(key, value)));
  CHECK(value_of(tier.offload({})) == 0);
  CHECK(value_of(tier.offload({"a", "none"})) == 1);
  const std::vector<std::string> names = {"a", "b"};
  CHECK(value_of(tier.offload(nmc::all_keys(names))) == 1);
  CHECK(value_of(tier.offload()) == 2);
  CHECK(WORKS(tier.sync()) && WORKS(tier.resume()) && WORKS(tier.pause()));

  promise("what_is_on_disk_only_is_an_answer_of_the_store");
  CHECK(WORKS(store.evict_until_below(0, 0)));
  CHECK(value_of(store.state("a")) == nmc::ObjectState::on_disk && value_of(store.exists("a")));
  CHECK(STATUS(store.retain("a", nmc::Retain::hard)) == NMC_NOT_READY && !store.nothrow()->retain("a", nmc::Retain::hard).ok());
  CHECK(STATUS(store.wait_ready("a")) == NMC_NOT_READY && STATUS(store.wait_pages("a", 1)) == NMC_NOT_READY);
  CHECK(value_of(store.get("a")).text() == value && value_of(store.size("b")) == 5000);
  CHECK(!value_of(store.find("a")) && STATUS(store.pin("a")) == NMC_NOT_READY);
  CHECK(value_of(store.match_prefix({"a", "b", "none"})) == 2);

  promise("numbers_scans_and_verifications");
  const nmc_tier_stats_t stats = value_of(tier.stats());
  CHECK(stats.owner == 1 && stats.objects == 4 && stats.bytes == 20000 && stats.paused == 1 && stats.read_objects > 0);
  std::map<std::string, uint64_t> seen;
  CHECK(WORKS(tier.scan([&](const nmc::TierEntry& entry) {
    CHECK(entry.namespace_name.empty());
    return seen.emplace(entry.key, entry.bytes).second;
  })));
  CHECK(seen == (std::map<std::string, uint64_t>{{"a", 5000}, {"b", 5000}, {"c", 5000}, {"d", 5000}}));
  CHECK(STATUS(tier.scan(nullptr)) == NMC_ERR_INVALID_ARG);
  CHECK(value_of(tier.verify()).objects == 4);
  int calls = 0;
  CHECK(value_of(tier.verify([&](uint64_t, uint64_t) { return ++calls, true; })).corrupt == 0 && calls > 0);

  promise("values_are_brought_back_evicted_and_told_of");
  const nmc::Batch came = tier.prefetch({"a", "none", "b"});
  CHECK(came.items == (std::vector<nmc_status_t>{NMC_OK, NMC_ERR_NOT_FOUND, NMC_OK}) && came.status() == NMC_ERR_NOT_FOUND);
  CHECK(value_of(store.state("a")) == nmc::ObjectState::ready && value_of(store.state("c")) == nmc::ObjectState::on_disk);
  CHECK(tier.prefetch({"a", "b"}).ok() && tier.prefetch({}).ok() && tier.prefetch({}).items.empty());

  promise("what_refuses_a_prefetch_as_a_whole_is_told_of_every_item");
  const nmc::Batch refused = tier.prefetch(nmc::Many<nmc::Key>(nmc::span<const nmc::Key>(static_cast<const nmc::Key*>(nullptr), 2)));
  CHECK(refused.items == std::vector<nmc_status_t>(2, NMC_ERR_INVALID_ARG) && refused.status() == NMC_ERR_INVALID_ARG && !refused.message().empty());
  CHECK(Tier().prefetch({"a"}).items == std::vector<nmc_status_t>(1, NMC_ERR_BAD_HANDLE) && Tier().prefetch({}).status() == NMC_ERR_BAD_HANDLE);
  {
    auto staged = value_of(tier.stage({"a", "none", "c"}));
    CHECK(staged.size() == 3 && staged.status(0) == NMC_OK && staged.status(1) == NMC_ERR_NOT_FOUND && staged[1].empty());
    CHECK(staged[0].size() == seen["a"] && staged[2].size() == seen["c"]);
    auto moved = std::move(staged);
    CHECK(WORKS(moved.release()) && WORKS(moved.release()));
    auto late = value_of(tier.stage({"a"}, std::chrono::milliseconds(0)));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(STATUS(late.release()) == NMC_ERR_STALE);
  }
  CHECK(value_of(tier.evict(UINT64_MAX)) == 0 && value_of(tier.evict(0)) == 4);
  CHECK(value_of(store.state("a")) == nmc::ObjectState::ready && value_of(store.state("c")) == nmc::ObjectState::absent);
  std::map<std::string, uint64_t> stored, evicted;
  CHECK(WORKS(tier.events([&](const nmc::TierEvent& event) {
    CHECK(event.lost() == 0 && event.stored() != event.evicted());
    for (size_t i = 0; i < event.size(); ++i) (event.stored() ? stored : evicted)[std::string(event[i].key)] += event[i].bytes;
    return true;
  })));
  CHECK(stored == seen && evicted == seen);
  CHECK(STATUS(tier.events(nullptr)) == NMC_ERR_INVALID_ARG);
  for (const char* key : {"c", "d"}) CHECK(WORKS(store.put(key, value)));
  CHECK(value_of(tier.offload()) == 4 && WORKS(store.evict_until_below(0, 0)));
  CHECK(WORKS(tier.nothrow()->sync()));

#if NMC_HPP_EXCEPTIONS
  promise("what_a_callback_throws_comes_out_of_the_call");
  struct Mine {};
  const auto throws = [](auto call) {
    try {
      call();
    } catch (const Mine&) {
      return true;
    }
    return false;
  };
  int entries = 0;
  CHECK(throws([&] { (void)tier.scan([&](const nmc::TierEntry&) -> bool { ++entries; throw Mine(); }); }));
  CHECK(entries == 1);
  CHECK(throws([&] { (void)tier.verify([](uint64_t, uint64_t) -> bool { throw Mine(); }); }));
  CHECK(WORKS(tier.close()));
  nmc::TierConfig thrower = config;
  thrower.progress([](uint64_t, uint64_t) { throw Mine(); });
  CHECK(throws([&] { (void)Tier::open(store, thrower); }));
  tier = value_of(Tier::open(store, config));  // the directory is free again
#endif

  promise("a_tier_can_be_moved_closed_and_opened_again");
  Tier moved = std::move(tier);
  CHECK(!tier && moved);
  CHECK(WORKS(moved.close()) && !moved);
  CHECK(value_of(store.state("a")) == nmc::ObjectState::absent);
  uint64_t done = 0, total = 1;
  nmc::TierConfig again = config;
  again.progress([&](uint64_t so_far, uint64_t all) { done = so_far, total = all; });
  const Tier last = value_of(Tier::open(store, again));
  CHECK(done == total && total > 0);
  CHECK(value_of(store.get("a")).text() == value);
}

}  // namespace

int main() {
  configs();
  calls<nmc::nothrow::Store, nmc::nothrow::Tier>();
#if NMC_HPP_EXCEPTIONS
  calls<nmc::Store, nmc::Tier>();
#endif
  return finish();
}
