/*
 * What the test programs share: a line per case, a line per failed check with the values, and an exit code.
 * C11 and C++17, with _GNU_SOURCE. A program ends with `return finish();`.
 */
#ifndef NMC_CTEST_CHECK_H
#define NMC_CTEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nanomc.h"

static int failed_checks = 0; /* counted with atomics: threads check too */

/* Names the promise that the checks after it are about. */
static inline void promise(const char* name) {
  printf("case %s\n", name);
  fflush(stdout);
}

static inline int check_at(int ok, const char* what, const char* file, int line) {
  if (!ok) {
    __atomic_add_fetch(&failed_checks, 1, __ATOMIC_RELAXED);
    printf("FAIL %s:%d %s\n     last error: %s\n", file, line, what, nmc_last_error_message());
    fflush(stdout);
  }
  return ok;
}

static inline int status_at(nmc_status_t got, nmc_status_t want, const char* what, const char* file, int line) {
  if (got != want) {
    __atomic_add_fetch(&failed_checks, 1, __ATOMIC_RELAXED);
    printf("FAIL %s:%d %s gives %s, expected %s\n     last error: %s\n", file, line, what, nmc_status_name(got),
           nmc_status_name(want), nmc_last_error_message());
    fflush(stdout);
  }
  return got == want;
}

#define CHECK(condition) check_at(!!(condition), #condition, __FILE__, __LINE__)
/* The call returns exactly this status. */
#define GIVES(call, want) status_at((call), (want), #call, __FILE__, __LINE__)
#define OK(call) GIVES(call, NMC_OK)
/* For what later checks need: ends the program when it fails. */
#define REQUIRE(condition) \
  do {                     \
    if (!CHECK(condition)) exit(1); \
  } while (0)

/* Whether this run is under a tool (AddressSanitizer or valgrind) with which everything takes long, or under this one. */
static inline int under_tool_named(const char* name) {
  const char* tool = getenv("NMC_TEST_TOOL");
  return tool != NULL && strcmp(tool, name) == 0;
}
static inline int under_tool(void) { return getenv("NMC_TEST_TOOL") != NULL; }

static inline int finish(void) {
  const int failed = __atomic_load_n(&failed_checks, __ATOMIC_RELAXED);
  if (failed != 0) printf("%d checks FAILED\n", failed);
  else printf("all checks passed\n");
  fflush(stdout);
  return failed != 0;
}

/* Joining needs pidfd_open, which valgrind before 3.22 does not know. Without it such cases are left out, and a
 * program that has no others exits with 77, which CTest reports as skipped. */
static inline int can_join(void) {
  const long fd = syscall(SYS_pidfd_open, (long)getpid(), 0L);
  if (fd >= 0) close((int)fd);
  else printf("skipped: there is no pidfd_open here\n");
  return fd >= 0;
}

static inline void skip_without_join(void) {
  if (!can_join()) exit(77);
}

/* Whether the message of the last failed call of this thread contains `text`. */
static inline int error_mentions(const char* text) { return strstr(nmc_last_error_message(), text) != NULL; }

static inline nmc_slice_t slice_of(const char* text) {
  nmc_slice_t slice;
  slice.ptr = text;
  slice.len = strlen(text);
  return slice;
}

static inline double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void sleep_ms(long ms) {
  struct timespec span;
  span.tv_sec = ms / 1000;
  span.tv_nsec = ms % 1000 * 1000000;
  while (nanosleep(&span, &span) != 0) {
  }
}

#endif
