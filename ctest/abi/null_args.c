/* Every pointer argument NULL, every number at its edges, every function: the documented status, never a crash. */
#define _GNU_SOURCE
#include "../support/check.h"

enum { HEAP = 1 << 16, RANKS = 3, WORDS = 5 };

static nmc_world_t* world;
static nmc_world_t* worlds[RANKS];
static const int32_t bad_ranks[] = {-1, -2, RANKS, RANKS + 1, NMC_MAX_RANKS, INT32_MAX, INT32_MIN};

static nmc_world_config_t named(const char* name) {
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.name = slice_of(name);
  config.rank = 0;
  config.heap_bytes = HEAP;
  config.join_timeout_ms = 2000;
  return config;
}

static void null_handles(void) {
  promise("a_null_handle_is_a_bad_handle_everywhere_but_in_destroy");
  nmc_world_info_t info = NMC_WORLD_INFO_INIT;
  nmc_rank_info_t rank_info = NMC_RANK_INFO_INIT;
  uint32_t state, n;
  int32_t number;
  uint64_t offset, *word;
  const uint64_t* table;
  void* ptr;
  nmc_status_t status;
  char text[8];
  size_t needed;
  GIVES(nmc_world_finalize(NULL), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_abort(NULL), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_info(NULL, &info), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_rank_info(NULL, 0, &rank_info), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_alive(NULL, 0, &state), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_event_fd(NULL, &number), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_ptr(NULL, 0, 0, 1, &ptr), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_locate(NULL, &ptr, &number, &offset), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_base_table(NULL, &table, &table, &n), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_rank_of_device_rank(NULL, 0, &number), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_word(NULL, 0, 0, &word, &word), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_write_word_async(NULL, 0, 0, 1, NULL), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_barrier(NULL, 0), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_selftest(NULL, 1, 0), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_async_error(NULL, &status, text, sizeof text, &needed), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_world_dump(NULL, text, sizeof text, &needed), NMC_ERR_BAD_HANDLE);
  CHECK(error_mentions("NULL"));
  OK(nmc_world_destroy(NULL));
  OK(nmc_master_destroy(NULL));
}

static void null_configs(void) {
  promise("making_something_from_null_is_refused_and_the_out_pointer_is_null");
  const nmc_world_config_t config = named("null-args");
  nmc_world_t* out = (nmc_world_t*)&config;
  nmc_master_t* master = (nmc_master_t*)&config;
  const int32_t ranks[1] = {0};
  GIVES(nmc_world_join(NULL, &out), NMC_ERR_INVALID_ARG);
  CHECK(out == NULL);
  GIVES(nmc_world_join(&config, NULL), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_join(NULL, NULL), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_join_ranks(NULL, ranks, 1, &out), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_join_ranks(&config, NULL, 1, &out), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_join_ranks(&config, ranks, 1, NULL), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_join_ranks(&config, ranks, 0, &out), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_join_ranks(&config, ranks, NMC_MAX_RANKS + 1, &out), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_join_ranks(&config, ranks, SIZE_MAX, &out), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_create_local(NULL, &out), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_create_local(&config, NULL), NMC_ERR_INVALID_ARG);
  GIVES(nmc_master_start(NULL, &master), NMC_ERR_INVALID_ARG);
  CHECK(master == NULL);
  GIVES(nmc_master_start(&config, NULL), NMC_ERR_INVALID_ARG);

  promise("texts_that_are_no_texts_are_refused");
  nmc_world_config_t bad = config;
  bad.name.ptr = NULL; /* with a length */
  GIVES(nmc_world_join(&bad, &out), NMC_ERR_INVALID_ARG);
  bad = config;
  bad.name.len = 0;
  GIVES(nmc_world_join(&bad, &out), NMC_ERR_INVALID_ARG);
  bad.name.len = SIZE_MAX;
  GIVES(nmc_world_join(&bad, &out), NMC_ERR_INVALID_ARG);
  const char* names[] = {"has space", "a/b", "..", ".hidden", "\xff\xfe", "",
                         "1234567890123456789012345678901234567890123456789"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    bad.name = slice_of(names[i]);
    GIVES(nmc_world_join(&bad, &out), NMC_ERR_INVALID_ARG);
    GIVES(nmc_master_start(&bad, &master), NMC_ERR_INVALID_ARG);
  }
  bad = config;
  bad.dir.ptr = NULL;
  bad.dir.len = 5;
  GIVES(nmc_world_join(&bad, &out), NMC_ERR_INVALID_ARG);
  bad.dir.ptr = "/tmp/a\0b";
  bad.dir.len = 8;
  GIVES(nmc_world_join(&bad, &out), NMC_ERR_INVALID_ARG);
  static char long_dir[5000];
  memset(long_dir, 'x', sizeof long_dir);
  long_dir[0] = '/';
  bad.dir.ptr = long_dir;
  bad.dir.len = sizeof long_dir;
  GIVES(nmc_world_join(&bad, &out), NMC_ERR_INVALID_ARG);
  bad.dir = slice_of("/dev/null/nowhere");
  CHECK(nmc_world_join(&bad, &out) < 0 && out == NULL);
  CHECK(nmc_master_start(&bad, &master) < 0 && master == NULL);
  bad = config;
  bad.rank = 1; /* of 1 */
  GIVES(nmc_world_join(&bad, &out), NMC_ERR_INVALID_ARG);
  CHECK(error_mentions("rank 1"));
  bad = config;
  bad.join_timeout_ms = -2;
  GIVES(nmc_world_join(&bad, &out), NMC_ERR_INVALID_ARG);
  bad.join_timeout_ms = INT64_MAX;
  GIVES(nmc_world_join(&bad, &out), NMC_ERR_INVALID_ARG);
  bad.join_timeout_ms = INT64_MIN;
  GIVES(nmc_world_join(&bad, &out), NMC_ERR_INVALID_ARG);
  bad = config;
  bad.world_size = 2;
  const int32_t twice_bad[2] = {-1, 2};
  nmc_world_t* pair[2];
  GIVES(nmc_world_join_ranks(&bad, twice_bad, 2, pair), NMC_ERR_INVALID_ARG);
  CHECK(pair[0] == NULL && pair[1] == NULL);
}

static void null_outs(void) {
  promise("a_null_out_pointer_is_refused_where_one_is_needed");
  int32_t number = 12345;
  uint64_t offset = 12345;
  GIVES(nmc_world_info(world, NULL), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_rank_info(world, 0, NULL), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_alive(world, 0, NULL), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_event_fd(world, NULL), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_ptr(world, 0, 0, 1, NULL), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_rank_of_device_rank(world, 0, NULL), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_async_error(world, NULL, NULL, 0, NULL), NMC_ERR_INVALID_ARG);
  void* heap = NULL;
  OK(nmc_world_ptr(world, 1, 8, 8, &heap));
  GIVES(nmc_world_locate(world, heap, NULL, &offset), NMC_ERR_INVALID_ARG);
  CHECK(offset == 12345);
  GIVES(nmc_world_locate(world, heap, &number, NULL), NMC_ERR_INVALID_ARG);
  promise("out_parameters_are_written_only_on_success");
  CHECK(number == 12345);
  promise("optional_out_pointers_may_be_null");
  OK(nmc_world_base_table(world, NULL, NULL, NULL));
  OK(nmc_world_word(world, 0, 0, NULL, NULL));
  size_t needed = 0;
  OK(nmc_world_dump(world, NULL, 0, &needed));
  CHECK(needed > 1);
  nmc_status_t status = 77;
  OK(nmc_world_async_error(world, &status, NULL, 0, NULL));
  CHECK(status == NMC_OK);
  promise("a_null_text_buffer_with_a_capacity_is_refused");
  status = 77;
  GIVES(nmc_world_dump(world, NULL, 100, &needed), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_dump(world, NULL, SIZE_MAX, NULL), NMC_ERR_INVALID_ARG);
  GIVES(nmc_world_async_error(world, &status, NULL, 100, NULL), NMC_ERR_INVALID_ARG);
  CHECK(status == 77);
  promise("locate_finds_nothing_outside_the_heaps");
  GIVES(nmc_world_locate(world, NULL, &number, &offset), NMC_ERR_NOT_FOUND);
  GIVES(nmc_world_locate(world, &number, &number, &offset), NMC_ERR_NOT_FOUND);
  GIVES(nmc_world_locate(world, (const void*)UINTPTR_MAX, &number, &offset), NMC_ERR_NOT_FOUND);
}

static void edges(void) {
  promise("ranks_that_do_not_exist_are_refused");
  for (size_t i = 0; i < sizeof bad_ranks / sizeof bad_ranks[0]; ++i) {
    const int32_t rank = bad_ranks[i];
    nmc_rank_info_t rank_info = NMC_RANK_INFO_INIT;
    uint32_t state = 0;
    int32_t number = 0;
    uint64_t* word = NULL;
    void* ptr = NULL;
    GIVES(nmc_world_rank_info(world, rank, &rank_info), NMC_ERR_INVALID_ARG);
    GIVES(nmc_world_alive(world, rank, &state), NMC_ERR_INVALID_ARG);
    GIVES(nmc_world_ptr(world, rank, 0, 1, &ptr), NMC_ERR_INVALID_ARG);
    GIVES(nmc_world_rank_of_device_rank(world, rank, &number), NMC_ERR_INVALID_ARG);
    GIVES(nmc_world_word(world, rank, 0, &word, NULL), NMC_ERR_INVALID_ARG);
    GIVES(nmc_world_write_word_async(world, rank, 0, 1, NULL), NMC_ERR_INVALID_ARG);
    CHECK(ptr == NULL && word == NULL);
  }
  promise("words_that_do_not_exist_are_refused");
  const uint32_t words[] = {WORDS, WORDS + 1, 1u << 20, 1u << 31, UINT32_MAX};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) {
    uint64_t* word = NULL;
    GIVES(nmc_world_word(world, 0, words[i], &word, NULL), NMC_ERR_INVALID_ARG);
    GIVES(nmc_world_write_word_async(world, 0, words[i], 1, NULL), NMC_ERR_INVALID_ARG);
    CHECK(word == NULL);
  }
  promise("without_a_device_nothing_is_written_by_streams");
  GIVES(nmc_world_write_word_async(world, 0, 0, 1, NULL), NMC_ERR_UNSUPPORTED);

  promise("ranges_that_leave_the_heap_are_refused_without_overflow");
  const uint64_t ranges[][2] = {{0, HEAP + 1},         {HEAP, 1},  {HEAP + 1, 0},           {1, UINT64_MAX},
                                {UINT64_MAX, 1},       {UINT64_MAX, UINT64_MAX}, {UINT64_MAX - 7, 8}, {HEAP - 1, 2},
                                {UINT64_C(1) << 63, UINT64_C(1) << 63}};
  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; ++i) {
    void* ptr = NULL;
    GIVES(nmc_world_ptr(world, 0, ranges[i][0], ranges[i][1], &ptr), NMC_ERR_INVALID_ARG);
    CHECK(ptr == NULL);
  }
  promise("ranges_up_to_the_very_end_are_fine");
  void* base = NULL;
  void* end = NULL;
  OK(nmc_world_ptr(world, 0, 0, HEAP, &base));
  OK(nmc_world_ptr(world, 0, HEAP, 0, &end));
  CHECK((char*)end == (char*)base + HEAP);
  OK(nmc_world_ptr(world, 0, 0, 0, &end));

  promise("timeouts_that_make_no_sense_are_refused");
  const int64_t times[] = {-2, INT64_MIN, INT64_MAX, INT64_C(1) << 40};
  for (size_t i = 0; i < sizeof times / sizeof times[0]; ++i) {
    GIVES(nmc_world_barrier(world, times[i]), NMC_ERR_INVALID_ARG);
    GIVES(nmc_world_selftest(world, 1, times[i]), NMC_ERR_INVALID_ARG);
  }
  GIVES(nmc_world_barrier(world, 0), NMC_ERR_TIMEOUT);
}

int main(void) {
  null_handles();
  null_configs();
  nmc_world_config_t config = NMC_WORLD_CONFIG_INIT;
  config.world_size = RANKS;
  config.heap_bytes = HEAP;
  config.words_per_rank = WORDS;
  REQUIRE(OK(nmc_world_create_local(&config, worlds)));
  world = worlds[0];
  null_outs();
  edges();
  for (int i = 0; i < RANKS; ++i) OK(nmc_world_destroy(worlds[i]));
  return finish();
}
