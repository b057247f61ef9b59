/*
 * The C side of `python -m nanomc.bench`: the same calls on the same kind of store. Each line of its input names a measurement; it
 * answers with nanoseconds a call. So Python and C take turns, and a machine that slows down slows both down.
 */
#include <nanomc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCH 128

static struct nmc_store_t *store;
static unsigned long round_number;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static void check(nmc_status_t status, const char *what) {
  if (status != NMC_OK) {
    fprintf(stderr, "%s: %s: %s\n", what, nmc_status_name(status), nmc_last_error_message());
    exit(1);
  }
}

static double put_batch(const char *value) {
  static char names[BATCH][32];
  static nmc_slice_t keys[BATCH], values[BATCH];
  nmc_status_t statuses[BATCH];
  for (int i = 0; i < BATCH; i++) {
    int n = snprintf(names[i], sizeof names[i], "c-%lu-%d", round_number, i);
    keys[i].ptr = names[i], keys[i].len = (size_t)n;
    values[i].ptr = value, values[i].len = 1024;
  }
  round_number++;
  double start = now();
  check(nmc_store_put_batch(store, keys, values, BATCH, NULL, statuses), "nmc_store_put_batch");
  double taken = now() - start;
  check(nmc_store_remove_batch(store, keys, BATCH, statuses), "nmc_store_remove_batch");
  return taken;
}

int main(void) {
  static char small[1024], buffer[65536];
  char *large = malloc(1 << 20), *into = malloc(1 << 20), what[32];
  unsigned calls;
  nmc_store_config_t config = NMC_STORE_CONFIG_INIT;
  config.heap_bytes = 64 << 20;
  config.page_bytes = 4096;
  config.heap_flags = NMC_HEAP_POPULATE;
  check(nmc_store_create(NULL, &config, &store), "nmc_store_create");
  memset(small, 'x', sizeof small);
  memset(large, 'y', 1 << 20);
  memset(into, 0, 1 << 20);
  nmc_slice_t one = {"small", 5}, two = {"large", 5};
  check(nmc_store_put(store, one, small, sizeof small, NULL), "nmc_store_put");
  check(nmc_store_put(store, two, large, 1 << 20, NULL), "nmc_store_put");
  while (scanf("%31s %u", what, &calls) == 2) {
    double start = now(), taken = 0;
    size_t bytes;
    uint32_t state;
    nmc_view_t view;
    for (unsigned i = 0; i < calls; i++) {
      if (strcmp(what, "get") == 0) check(nmc_store_get(store, one, buffer, sizeof buffer, &bytes), what);
      else if (strcmp(what, "get_into") == 0) check(nmc_store_get_into(store, two, into, 1 << 20), what);
      else if (strcmp(what, "exists") == 0) check(nmc_store_exists(store, one, &state), what);
      else if (strcmp(what, "pin") == 0) {
        check(nmc_store_pin(store, one, &view), what);
        check(nmc_store_unpin(store, &view), what);
      } else if (strcmp(what, "put_batch") == 0) taken += put_batch(small);
      else return 2;
    }
    if (taken == 0) taken = now() - start;
    printf("%.1f\n", taken / calls);
    fflush(stdout);
  }
  return 0;
}
