/* The parts of the ABI that everything else stands on: versions, status names, the error message of a thread, the log,
 * silence on stdout and stderr, and config structs of any age. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../support/check.h"

static const struct {
  nmc_status_t status;
  const char* name;
} statuses[] = {
#define ROW(s) {s, #s}
    ROW(NMC_OK),
    ROW(NMC_NOT_READY),
    ROW(NMC_IN_PROGRESS),
    ROW(NMC_ERR_INVALID_ARG),
    ROW(NMC_ERR_BAD_HANDLE),
    ROW(NMC_ERR_FORKED),
    ROW(NMC_ERR_VERSION),
    ROW(NMC_ERR_UNSUPPORTED),
    ROW(NMC_ERR_NO_MEMORY),
    ROW(NMC_ERR_LIMIT),
    ROW(NMC_ERR_TIMEOUT),
    ROW(NMC_ERR_MISMATCH),
    ROW(NMC_ERR_EXISTS),
    ROW(NMC_ERR_PERMISSION),
    ROW(NMC_ERR_PROTOCOL),
    ROW(NMC_ERR_UNAVAILABLE),
    ROW(NMC_ERR_PEER_LOST),
    ROW(NMC_ERR_CANCELLED),
    ROW(NMC_ERR_OS),
    ROW(NMC_ERR_CUDA),
    ROW(NMC_ERR_INTERNAL),
    ROW(NMC_ERR_BUSY),
    ROW(NMC_ERR_NOT_FOUND),
    ROW(NMC_ERR_TOO_SMALL),
    ROW(NMC_ERR_CORRUPT),
    ROW(NMC_ERR_STALE),
    ROW(NMC_ERR_NO_SPACE),
    ROW(NMC_ERR_IO),
#undef ROW
};

static nmc_world_config_t local_config(uint32_t ranks) {
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.world_size = ranks;
  config.heap_bytes = 1 << 16;
  return config;
}

/* Makes and destroys a local world; for configs that only have to be accepted or refused. */
static nmc_status_t try_config(const void* config) {
  nmc_world_t* worlds[NMC_MAX_RANKS] = {NULL};
  const nmc_status_t status = nmc_world_create_local((const nmc_world_config_t*)config, worlds);
  for (int i = 0; i < NMC_MAX_RANKS; ++i) OK(nmc_world_destroy(worlds[i]));
  return status;
}

static void versions(void) {
  promise("versions_of_header_and_library_agree");
  CHECK(strcmp(nmc_version(), NMC_VERSION_STRING) == 0);
  char text[32];
  snprintf(text, sizeof text, "%d.%d.%d", NMC_VERSION_MAJOR, NMC_VERSION_MINOR, NMC_VERSION_PATCH);
  CHECK(strcmp(text, NMC_VERSION_STRING) == 0);
  CHECK(nmc_abi_version() == NMC_ABI_VERSION);
  CHECK(nmc_layout_version() == NMC_LAYOUT_VERSION);
}

static void names(void) {
  promise("every_status_has_its_own_number_and_name");
  const size_t n = sizeof statuses / sizeof statuses[0];
  for (size_t i = 0; i < n; ++i) {
    CHECK(strcmp(nmc_status_name(statuses[i].status), statuses[i].name) == 0);
    for (size_t j = 0; j < i; ++j) CHECK(statuses[i].status != statuses[j].status);
  }
  promise("a_number_that_is_no_status_has_a_name_too");
  const nmc_status_t unknown[] = {3, 1000, -26, -100, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; ++i) {
    CHECK(strcmp(nmc_status_name(unknown[i]), "NMC_UNKNOWN_STATUS") == 0);
  }
}

static void ignore_line(int32_t level, const char* text, void* user) { (void)level, (void)text, (void)user; }

static void* other_thread(void* unused) {
  (void)unused;
  CHECK(strcmp(nmc_last_error_message(), "") == 0);
  GIVES(nmc_log_set_callback(ignore_line, 77, NULL), NMC_ERR_INVALID_ARG);
  CHECK(error_mentions("77"));
  return NULL;
}

static void messages(void) {
  promise("before_any_failure_the_message_is_empty");
  CHECK(nmc_last_error_message() != NULL && strcmp(nmc_last_error_message(), "") == 0);
  promise("a_failure_leaves_its_message_to_its_thread_alone");
  GIVES(nmc_log_set_callback(ignore_line, 55, NULL), NMC_ERR_INVALID_ARG);
  CHECK(error_mentions("55"));
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, other_thread, NULL) == 0);
  pthread_join(thread, NULL);
  CHECK(error_mentions("55"));
  promise("a_call_that_succeeds_leaves_the_message_alone");
  OK(nmc_world_destroy(NULL));
  CHECK(error_mentions("55"));
}

struct sink {
  int lines;
  int worst_level;
  int empty;
};

static void count_line(int32_t level, const char* text, void* user) {
  struct sink* sink = user;
  __atomic_add_fetch(&sink->lines, 1, __ATOMIC_RELAXED);
  if (level > sink->worst_level) sink->worst_level = level;
  if (text == NULL || text[0] == '\0') ++sink->empty;
}

static void set_inside(int32_t level, const char* text, void* user) {
  (void)level, (void)text;
  nmc_status_t* status = user;
  *status = nmc_log_set_callback(NULL, NMC_LOG_DEBUG, NULL);
}

/* A life that logs at level INFO: ranks appear. */
static void some_life(void) {
  const nmc_world_config_t config = local_config(2);
  OK(try_config(&config));
}

static void logging(void) {
  struct sink first = {0, 0, 0}, second = {0, 0, 0};
  promise("log_lines_reach_the_callback");
  OK(nmc_log_set_callback(count_line, NMC_LOG_DEBUG, &first));
  some_life();
  CHECK(first.lines > 0 && first.empty == 0);
  CHECK(first.worst_level >= NMC_LOG_ERROR && first.worst_level <= NMC_LOG_DEBUG);
  promise("a_replaced_callback_is_never_called_again");
  OK(nmc_log_set_callback(count_line, NMC_LOG_DEBUG, &second));
  const int before = first.lines;
  some_life();
  CHECK(first.lines == before && second.lines > 0);
  promise("the_level_limits_what_is_logged");
  second.lines = 0;
  OK(nmc_log_set_callback(count_line, NMC_LOG_ERROR, &second));
  some_life();
  CHECK(second.lines == 0);
  promise("levels_that_do_not_exist_are_refused");
  const int32_t bad[] = {0, -1, 5, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    GIVES(nmc_log_set_callback(count_line, bad[i], &second), NMC_ERR_INVALID_ARG);
  }
  promise("inside_a_callback_the_callback_cannot_be_changed");
  nmc_status_t inside = NMC_OK;
  OK(nmc_log_set_callback(set_inside, NMC_LOG_DEBUG, &inside));
  some_life();
  GIVES(inside, NMC_ERR_BUSY);
  promise("null_ends_logging");
  OK(nmc_log_set_callback(NULL, NMC_LOG_DEBUG, NULL));
  inside = NMC_OK;
  some_life();
  CHECK(inside == NMC_OK);
}

static void config_ages(void) {
  /* Twice the size, so that a struct from the future fits. */
  static union {
    nmc_world_config_t config;
    unsigned char bytes[2 * sizeof(nmc_world_config_t)];
  } u;
  const uint32_t size = (uint32_t)sizeof(nmc_world_config_t);
  promise("a_shorter_struct_of_an_older_header_takes_the_defaults");
  memset(&u, 0xA5, sizeof u); /* what lies behind the short struct must not be looked at */
  u.config = local_config(2);
  const size_t known = offsetof(nmc_world_config_t, heap_kind);
  memset(u.bytes + known, 0xA5, sizeof u - known);
  u.config.struct_size = (uint32_t)known;
  OK(try_config(&u));
  u.config.struct_size = 8; /* nothing but the two versions: then the defaults are not enough */
  GIVES(try_config(&u), NMC_ERR_INVALID_ARG);
  CHECK(error_mentions("heap_bytes"));

  promise("a_longer_struct_of_a_newer_header_is_accepted_if_its_new_fields_are_zero");
  memset(&u, 0, sizeof u);
  u.config = local_config(2);
  u.config.struct_size = 2 * size;
  OK(try_config(&u));
  u.config.abi_version = NMC_ABI_VERSION + 5;
  OK(try_config(&u));
  promise("a_new_field_that_is_set_is_refused");
  for (uint32_t at = size; at < 2 * size; at += 7) {
    u.bytes[at] = 1;
    GIVES(try_config(&u), NMC_ERR_VERSION);
    u.bytes[at] = 0;
  }

  promise("sizes_that_cannot_be_are_refused");
  const uint32_t sizes[] = {0, 1, 4, 7, 4100, 1u << 20, UINT32_MAX};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    u.config = local_config(2);
    u.config.struct_size = sizes[i];
    GIVES(try_config(&u), NMC_ERR_VERSION);
  }
  promise("abi_version_0_is_refused");
  u.config = local_config(2);
  u.config.abi_version = 0;
  GIVES(try_config(&u), NMC_ERR_VERSION);
  promise("a_config_that_is_not_aligned_is_refused");
  GIVES(try_config(u.bytes + 4), NMC_ERR_INVALID_ARG);

  promise("info_structs_of_any_age_are_filled_as_far_as_they_go");
  nmc_world_config_t config = local_config(1);
  nmc_world_t* world = NULL;
  REQUIRE(OK(nmc_world_create_local(&config, &world)));
  struct {
    nmc_world_info_t info;
    uint64_t beyond[8];
  } long_info;
  memset(&long_info, 0xA5, sizeof long_info);
  long_info.info.struct_size = (uint32_t)offsetof(nmc_world_info_t, heap_bytes);
  OK(nmc_world_info(world, &long_info.info));
  CHECK(long_info.info.world_size == 1 && long_info.info.heap_bytes == UINT64_C(0xA5A5A5A5A5A5A5A5));
  CHECK(long_info.info.struct_size == (uint32_t)offsetof(nmc_world_info_t, heap_bytes));
  long_info.info.struct_size = (uint32_t)sizeof long_info;
  OK(nmc_world_info(world, &long_info.info));
  CHECK(long_info.info.heap_bytes == 1 << 16 && long_info.beyond[0] == UINT64_C(0xA5A5A5A5A5A5A5A5));
  promise("an_out_struct_without_its_size_is_refused_and_its_macro_named");
  const uint32_t wrong[] = {0, 3, 4, 7, 12, 4097, UINT32_MAX};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    nmc_world_info_t info = NMC_WORLD_INFO_INIT;
    nmc_rank_info_t rank_info = NMC_RANK_INFO_INIT;
    info.struct_size = rank_info.struct_size = wrong[i];
    GIVES(nmc_world_info(world, &info), NMC_ERR_INVALID_ARG);
    CHECK(error_mentions("NMC_WORLD_INFO_INIT") && info.world_size == 0);
    GIVES(nmc_world_rank_info(world, 0, &rank_info), NMC_ERR_INVALID_ARG);
    CHECK(error_mentions("NMC_RANK_INFO_INIT"));
  }
  OK(nmc_world_destroy(world));
}

/* One field, one bad value, refused with a message that names the field. */
#define REFUSED(field, value, word)              \
  do {                                           \
    nmc_world_config_t config = local_config(2); \
    config.field = (value);                      \
    GIVES(try_config(&config), NMC_ERR_INVALID_ARG); \
    CHECK(error_mentions(word));                 \
  } while (0)

static void config_values(void) {
  promise("values_out_of_range_are_refused_and_named");
  const uint32_t kinds[] = {0, 3, 99, UINT32_MAX};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) REFUSED(heap_kind, kinds[i], "heap_kind");
  const uint32_t flags[] = {4, 7, 0x80000000u, UINT32_MAX};
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; ++i) REFUSED(heap_flags, flags[i], "heap_flags");
  const uint32_t imports[] = {5, 77, UINT32_MAX};
  for (size_t i = 0; i < sizeof imports / sizeof imports[0]; ++i) REFUSED(heap_import.kind, imports[i], "heap_import");
  REFUSED(world_size, 0, "world_size");
  REFUSED(world_size, NMC_MAX_RANKS + 1, "world_size");
  REFUSED(world_size, UINT32_MAX, "world_size");
  REFUSED(heap_bytes, 0, "heap_bytes");
  REFUSED(heap_bytes, UINT64_MAX, "heap_bytes");
  REFUSED(device, -2, "device");
  REFUSED(words_per_rank, -2, "words_per_rank");
  REFUSED(words_per_rank, INT32_MAX, "words_per_rank");
  REFUSED(drain_ms, -2, "drain_ms");
  REFUSED(drain_ms, INT32_MAX, "drain_ms");
  REFUSED(service_cpu, -2, "service_cpu");
  REFUSED(reserved0, 1, "reserved");
  for (int i = 0; i < 3; ++i) REFUSED(reserved[i], 1, "reserved");
  const uint32_t masters[] = {2, 77, UINT32_MAX};
  for (size_t i = 0; i < sizeof masters / sizeof masters[0]; ++i) {
    nmc_world_config_t config = local_config(1); /* a local world has no master, so this one is asked of join */
    config.name = slice_of("spine");
    config.master = masters[i];
    nmc_world_t* world = NULL;
    GIVES(nmc_world_join(&config, &world), NMC_ERR_INVALID_ARG);
    CHECK(error_mentions("master") && world == NULL);
  }
  promise("an_import_without_its_memory_or_of_the_wrong_kind_is_refused");
  const uint32_t of_kind[] = {NMC_IMPORT_HOST_PTR, NMC_IMPORT_HOST_FD, NMC_IMPORT_CUDA_PTR, NMC_IMPORT_CUDA_FD};
  for (size_t i = 0; i < 4; ++i) REFUSED(heap_import.kind, of_kind[i], "heap_import");
}

int main(void) {
  /* Everything that the library might print lands in this file; our own lines go through a copy of stdout. */
  char path[] = "/tmp/nmc-spine-XXXXXX";
  const int quiet = mkstemp(path);
  const int out = dup(STDOUT_FILENO);
  REQUIRE(quiet >= 0 && out >= 0);
  unlink(path);
  REQUIRE(dup2(quiet, STDOUT_FILENO) >= 0 && dup2(quiet, STDERR_FILENO) >= 0);
  stdout = fdopen(out, "w");

  messages(); /* first: it needs a thread without a failure */
  versions();
  names();
  logging();
  config_ages();
  config_values();

  promise("nothing_was_written_to_stdout_or_stderr");
  struct stat info;
  REQUIRE(fstat(quiet, &info) == 0);
  CHECK(info.st_size == 0);
  return finish();
}
