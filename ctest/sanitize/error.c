/* One deliberate error, chosen by the argument. `none` shows that a run without an error is reported as good. */
#include <nanomc.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile size_t past = 16; /* volatile: the compiler must not see the errors */
static volatile int largest = INT_MAX;
static char *volatile kept;

int main(int argc, char **argv) {
  const char *error = argc == 2 ? argv[1] : "";
  printf("%s of nanomc %s\n", error, nmc_version());
  if (strcmp(error, "none") == 0) return 0;
  kept = malloc(16);
  if (kept == NULL) return 2;
  memset(kept, 0, 16);
  if (strcmp(error, "heap_overflow") == 0) kept[past] = 1;
  else if (strcmp(error, "invalid_read") == 0) printf("%d\n", kept[past]);
  else if (strcmp(error, "signed_overflow") == 0) printf("%d\n", largest + argc);
  else if (strcmp(error, "leak") == 0) {
    /* Several: of the last one an address may be left on the stack. */
    for (int i = 0; i < 16; ++i) kept = malloc(16);
    kept = NULL;
  } else return 2;
  free(kept);
  return 0;
}
