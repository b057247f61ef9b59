// A program outside of the source tree that uses the installed library. Returns 0 if the library works.
#include <nanomc.h>

#include <cstdio>
#include <cstring>

#define REQUIRE(condition)                                                             \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      std::printf("line %d: %s; %s\n", __LINE__, #condition, nmc_last_error_message()); \
      return 1;                                                                        \
    }                                                                                  \
  } while (0)

int main() {
  REQUIRE(std::strcmp(nmc_version(), NMC_VERSION_STRING) == 0);
  REQUIRE(nmc_abi_version() == NMC_ABI_VERSION);
  REQUIRE(std::strcmp(nmc_status_name(NMC_ERR_TIMEOUT), "NMC_ERR_TIMEOUT") == 0);

  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.world_size = 2;
  config.heap_bytes = 1 << 20;
  nmc_world_t* ranks[2] = {nullptr, nullptr};
  REQUIRE(nmc_world_create_local(&config, ranks) == NMC_OK);

  // What rank 0 writes into the heap of rank 1, rank 1 reads in place.
  void *there = nullptr, *here = nullptr;
  REQUIRE(nmc_world_ptr(ranks[0], 1, 4096, 5, &there) == NMC_OK);
  std::memcpy(there, "hello", 5);
  REQUIRE(nmc_world_ptr(ranks[1], 1, 4096, 5, &here) == NMC_OK);
  REQUIRE(std::memcmp(here, "hello", 5) == 0);

  for (nmc_world_t* rank : ranks) REQUIRE(nmc_world_destroy(rank) == NMC_OK);
  REQUIRE(nmc_world_destroy(ranks[0]) == NMC_ERR_BAD_HANDLE);
  std::printf("consumer of nanomc %s: ok\n", nmc_version());
  return 0;
}
