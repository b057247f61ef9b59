// Two copies of the library in one process: the one that this program is linked with, and one that a plugin would bring.
// `two_copies LIBRARY`: LIBRARY is copied under another name and opened with RTLD_LOCAL. Both make the same objects in the
// same order, and no handle of one copy is taken by the other.
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "../support/check.h"

namespace {

// The calls that are used here, of one copy. Directly called they would all be those of the first.
struct Library {
#define CALL(name) decltype(&nmc_##name) name;
#define CALLS                                                                                                       \
  CALL(last_error_message)                                                                                          \
  CALL(world_create_local) CALL(world_info) CALL(world_finalize) CALL(world_abort) CALL(world_destroy)              \
  CALL(master_start) CALL(master_destroy)                                                                           \
  CALL(store_create) CALL(store_stats) CALL(store_destroy)                                                          \
  CALL(ep_create) CALL(ep_recv_buffers) CALL(ep_abort) CALL(ep_destroy)                                             \
  CALL(blocks_create) CALL(blocks_stats) CALL(blocks_destroy)                                                       \
  CALL(kv_create) CALL(kv_stats) CALL(kv_attach_store) CALL(kv_destroy)
  CALLS
#undef CALL
};

Library linked() {
  return {
#define CALL(name) &nmc_##name,
      CALLS
#undef CALL
  };
}

Library opened(const char* path) {
  void* const so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (so == nullptr) printf("dlopen: %s\n", dlerror());
  REQUIRE(so != nullptr);
  Library library{};
#define CALL(name)                                                                 \
  library.name = reinterpret_cast<decltype(&nmc_##name)>(dlsym(so, "nmc_" #name)); \
  REQUIRE(library.name != nullptr);
  CALLS
#undef CALL
  REQUIRE(library.world_info != &nmc_world_info);  // or there would be nothing to see
  return library;
}

// One object of every kind.
struct Objects {
  nmc_world_t* world = nullptr;
  nmc_master_t* master = nullptr;
  nmc_store_t* store = nullptr;
  nmc_ep_t* ep = nullptr;
  nmc_blocks_t* blocks = nullptr;
  nmc_kv_t* kv = nullptr;
};

Objects make(const Library& nmc, const std::string& dir) {
  Objects made;
  nmc_world_config_t world = NMC_WORLD_CONFIG_INIT;
  world.world_size = 1;
  world.heap_bytes = 1 << 20;
  REQUIRE(OK(nmc.world_create_local(&world, &made.world)));
  world.name = slice_of("two");
  world.dir = slice_of(dir.c_str());
  REQUIRE(OK(nmc.master_start(&world, &made.master)));
  nmc_store_config_t store = NMC_STORE_CONFIG_INIT;
  store.heap_bytes = 1 << 20;
  REQUIRE(OK(nmc.store_create(nullptr, &store, &made.store)));
  nmc_ep_config_t ep = NMC_EP_CONFIG_INIT;
  ep.hidden = 8;
  ep.top_k = 1;
  ep.experts = 1;
  ep.t_cap = 4;
  REQUIRE(OK(nmc.ep_create(made.world, &ep, &made.ep)));
  nmc_blocks_config_t blocks = NMC_BLOCKS_CONFIG_INIT;
  blocks.total_blocks = 8;
  REQUIRE(OK(nmc.blocks_create(&blocks, &made.blocks)));
  nmc_kv_config_t kv = NMC_KV_CONFIG_INIT;
  kv.total_blocks = 8;
  REQUIRE(OK(nmc.kv_create(nullptr, &kv, &made.kv)));
  return made;
}

struct Use {
  const char* name;
  std::function<nmc_status_t(const Library&, const Objects&)> run;
};

// A call that changes nothing for every kind but the master, which has none.
const std::vector<Use>& looks() {
  static const std::vector<Use> all = {
      {"world_info", [](const Library& nmc, const Objects& o) {
         nmc_world_info_t info = NMC_WORLD_INFO_INIT;
         return nmc.world_info(o.world, &info);
       }},
      {"store_stats", [](const Library& nmc, const Objects& o) {
         nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
         return nmc.store_stats(o.store, nullptr, 0, &stats);
       }},
      {"ep_recv_buffers", [](const Library& nmc, const Objects& o) {
         nmc_ep_recv_buffers_t recv = NMC_EP_RECV_BUFFERS_INIT;
         return nmc.ep_recv_buffers(o.ep, 0, &recv);
       }},
      {"blocks_stats", [](const Library& nmc, const Objects& o) {
         nmc_blocks_stats_t stats = NMC_BLOCKS_STATS_INIT;
         return nmc.blocks_stats(o.blocks, &stats);
       }},
      {"kv_stats", [](const Library& nmc, const Objects& o) {
         nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
         return nmc.kv_stats(o.kv, &stats);
       }},
  };
  return all;
}

// What ends something.
const std::vector<Use>& ends() {
  static const std::vector<Use> all = {
      {"ep_abort", [](const Library& nmc, const Objects& o) { return nmc.ep_abort(o.ep); }},
      {"world_abort", [](const Library& nmc, const Objects& o) { return nmc.world_abort(o.world); }},
      {"kv_destroy", [](const Library& nmc, const Objects& o) { return nmc.kv_destroy(o.kv); }},
      {"blocks_destroy", [](const Library& nmc, const Objects& o) { return nmc.blocks_destroy(o.blocks); }},
      {"ep_destroy", [](const Library& nmc, const Objects& o) { return nmc.ep_destroy(o.ep); }},
      {"store_destroy", [](const Library& nmc, const Objects& o) { return nmc.store_destroy(o.store); }},
      {"master_destroy", [](const Library& nmc, const Objects& o) { return nmc.master_destroy(o.master); }},
      {"world_destroy", [](const Library& nmc, const Objects& o) { return nmc.world_destroy(o.world); }},
  };
  return all;
}

void all_give(const std::vector<Use>& uses, const Library& nmc, const Objects& objects, nmc_status_t want) {
  for (const Use& use : uses) {
    const nmc_status_t got = use.run(nmc, objects);
    if (got != want) {
      printf("%s gives %s, expected %s\n", use.name, nmc_status_name(got), nmc_status_name(want));
      CHECK(got == want);
    }
  }
}

void cross(const Library& one, const Objects& ones, const Library& other, const Objects& others) {
  promise("a_handle_of_another_copy_is_refused_by_every_kind");
  all_give(looks(), one, others, NMC_ERR_BAD_HANDLE);
  CHECK(strstr(one.last_error_message(), "another copy") != nullptr);
  all_give(ends(), one, others, NMC_ERR_BAD_HANDLE);
  GIVES(one.kv_attach_store(ones.kv, others.store), NMC_ERR_BAD_HANDLE);
  GIVES(one.kv_attach_store(others.kv, ones.store), NMC_ERR_BAD_HANDLE);

  promise("which_leaves_the_objects_of_both_as_they_were");
  all_give(looks(), one, ones, NMC_OK);
  all_give(looks(), other, others, NMC_OK);
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE(argc == 2);
  skip_without_join();
  char folder[] = "/tmp/nmc-copies-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string dir = folder, plugin = dir + "/libplugin.so";
  std::filesystem::copy_file(argv[1], plugin);
  const Library one = linked(), other = opened(plugin.c_str());
  REQUIRE(mkdir((dir + "/1").c_str(), 0700) == 0 && mkdir((dir + "/2").c_str(), 0700) == 0);
  // The same in the same order: without anything that tells the copies apart, the handles would be the same numbers.
  const Objects ones = make(one, dir + "/1"), others = make(other, dir + "/2");
  cross(one, ones, other, others);
  cross(other, others, one, ones);

  promise("every_handle_works_in_its_own_copy");
  all_give(ends(), one, ones, NMC_OK);
  all_give(ends(), other, others, NMC_OK);
  all_give(looks(), one, ones, NMC_ERR_BAD_HANDLE);
  std::filesystem::remove_all(dir);
  return finish();
}
