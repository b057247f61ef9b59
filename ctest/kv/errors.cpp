// What the block KV cache refuses: every wrong argument gives the documented status with a sentence, and changes nothing.
#include "kv_engine.hpp"

#include <cmath>
#include <limits>

namespace {

using namespace kv;

constexpr uint64_t k31 = uint64_t{1} << 31, k63 = uint64_t{1} << 63;
constexpr nmc_slice_t kNone = {nullptr, 0};

nmc_status_t create(const nmc_kv_config_t& config) {
  nmc_kv_t* kv = reinterpret_cast<nmc_kv_t*>(8);
  const nmc_status_t status = nmc_kv_create(nullptr, &config, &kv);
  if (status == NMC_OK) OK(nmc_kv_destroy(kv));
  else CHECK(kv == nullptr);
  return status;
}

void configs() {
  promise("a config that makes no sense is refused with a reason");
  nmc_kv_config_t c = NMC_KV_CONFIG_INIT;
  FAILS(create(c), NMC_ERR_INVALID_ARG, "total_blocks or max_total_tokens must be set");
  c.total_blocks = 10;
  OK(create(c));
  c.max_total_tokens = 10;
  FAILS(create(c), NMC_ERR_INVALID_ARG, "cannot both be set");
  c.total_blocks = 0;
  OK(create(c));
  c.max_total_tokens = UINT64_MAX;
  FAILS(create(c), NMC_ERR_INVALID_ARG, "more than 2147483647");
  c = plain_config(1u << 31);
  FAILS(create(c), NMC_ERR_INVALID_ARG, "2147483648 blocks");
  struct Bad {
    uint32_t nmc_kv_config_t::*field;
    uint32_t value;
    const char* says;
  };
  const Bad bad[] = {{&nmc_kv_config_t::tokens_per_block, 0, "tokens_per_block 0"},
                     {&nmc_kv_config_t::tokens_per_block, (1u << 20) + 1, "tokens_per_block 1048577"},
                     {&nmc_kv_config_t::capacity_blocks, 9, "capacity_blocks 9"},
                     {&nmc_kv_config_t::capacity_blocks, 1u << 31, "capacity_blocks 2147483648"},
                     {&nmc_kv_config_t::max_sequences, UINT32_MAX, "max_sequences 4294967295"},
                     {&nmc_kv_config_t::eviction, 6, "eviction 6"},
                     {&nmc_kv_config_t::eviction, UINT32_MAX, "eviction 4294967295"},
                     {&nmc_kv_config_t::when_full, 4, "when_full 4"},
                     {&nmc_kv_config_t::hash, 3, "hash 3"},
                     {&nmc_kv_config_t::flags, 4, "flag"}};
  for (const Bad& one : bad) {
    c = plain_config(10);
    c.*one.field = one.value;
    FAILS(create(c), NMC_ERR_INVALID_ARG, one.says);
  }
  c = plain_config(10);
  c.n_groups = 1;
  FAILS(create(c), NMC_ERR_INVALID_ARG, "groups");
  for (size_t many : {size_t{1025}, SIZE_MAX}) {
    c.n_groups = many;
    FAILS(create(c), NMC_ERR_INVALID_ARG, ("n_groups " + std::to_string(many)).c_str());
  }
  for (uint64_t window : {k31 + 1, uint64_t{1} << 32, UINT64_MAX}) {
    c = plain_config(10);
    c.window = window;
    FAILS(create(c), NMC_ERR_INVALID_ARG, ("window " + std::to_string(window)).c_str());
  }
  c = plain_config(10);
  c.reserved0 = 1;
  FAILS(create(c), NMC_ERR_INVALID_ARG, "reserved");
  c = plain_config(10);
  c.hash_secret = {nullptr, 5};
  GIVES(create(c), NMC_ERR_INVALID_ARG);
  const std::string secret(5000, 'x');
  c.hash_secret = {secret.data(), secret.size()};
  FAILS(create(c), NMC_ERR_INVALID_ARG, "hash_secret has 5000 bytes");
  for (uint32_t size : {0u, 4u, 1u << 20, UINT32_MAX}) {
    c = plain_config(10);
    c.struct_size = size;
    GIVES(create(c), NMC_ERR_VERSION);
  }
  c = plain_config(10);
  c.abi_version = 0;
  GIVES(create(c), NMC_ERR_VERSION);
  c = plain_config(10);
  nmc_kv_t* kv = nullptr;
  GIVES(nmc_kv_create(nullptr, nullptr, &kv), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_create(nullptr, &c, nullptr), NMC_ERR_INVALID_ARG);
  alignas(8) char room[64];
  GIVES(nmc_kv_create(nullptr, &c, reinterpret_cast<nmc_kv_t**>(room + 1)), NMC_ERR_INVALID_ARG);
}

void groups() {
  promise("a group that makes no sense, or whose memory is too small, is refused with its number");
  struct Bad {
    uint32_t nmc_kv_group_t::*field;
    uint32_t value;
    const char* says;
  };
  const Bad bad[] = {{&nmc_kv_group_t::kind, 3, "kind 3"},          {&nmc_kv_group_t::kind, UINT32_MAX, "kind"},
                     {&nmc_kv_group_t::dtype, 6, "dtype 6"},        {&nmc_kv_group_t::element_bytes, 2, "element_bytes 2"},
                     {&nmc_kv_group_t::dtype, NMC_DTYPE_RAW, "bytes"}, {&nmc_kv_group_t::layers, 0, "layers"},
                     {&nmc_kv_group_t::kv_heads, 0, "kv_heads"},    {&nmc_kv_group_t::head_dim, 0, "head_dim"},
                     {&nmc_kv_group_t::order, 4, "order 4"},        {&nmc_kv_group_t::sides, 3, "sides 3"},
                     {&nmc_kv_group_t::kind, NMC_KV_KIND_MLA, "MLA"}};
  std::vector<nmc_kv_group_t> two(2);
  nmc_kv_config_t c = plain_config(10);
  c.groups = two.data();
  c.n_groups = 2;
  uint64_t bytes = 77;
  for (const Bad& one : bad) {
    two = {plain_group(2, 2, 8), plain_group(2, 2, 8)};
    two[1].*one.field = one.value;
    FAILS(create(c), NMC_ERR_INVALID_ARG, one.says);
    CHECK(error_mentions("group 1"));
    GIVES(nmc_kv_heap_bytes(&c, 0, &bytes), NMC_ERR_INVALID_ARG);
  }
  two = {plain_group(UINT32_MAX, UINT32_MAX, UINT32_MAX), plain_group()};
  FAILS(create(c), NMC_ERR_INVALID_ARG, "pass the limit");
  two = {plain_group(), plain_group()};
  two[0].reserved0 = 1;
  FAILS(create(c), NMC_ERR_INVALID_ARG, "reserved");
  two[0] = plain_group(1, 1, 8);
  std::vector<unsigned char> memory(10 * 2 * 4 * 8 * 2);
  two[0].memory = memory.data();
  two[0].memory_bytes = memory.size() - 1;
  FAILS(create(c), NMC_ERR_INVALID_ARG, "group 0 has 1279 bytes of memory and needs 1280");
  two[0].memory_bytes = memory.size();
  OK(create(c));
  OK(nmc_kv_heap_bytes(&c, 0, &bytes));
  CHECK(bytes == memory.size());
  c.capacity_blocks = 11;
  FAILS(create(c), NMC_ERR_INVALID_ARG, "needs 1408");
  FAILS(nmc_kv_heap_bytes(&c, 2, &bytes), NMC_ERR_INVALID_ARG, "group 2 does not exist");
  GIVES(nmc_kv_heap_bytes(&c, 0, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_heap_bytes(nullptr, 0, &bytes), NMC_ERR_INVALID_ARG);
  c.groups = reinterpret_cast<const nmc_kv_group_t*>(reinterpret_cast<const char*>(two.data()) + 1);
  GIVES(create(c), NMC_ERR_INVALID_ARG);
}

// Every function that takes a sequence, with some id.
void each_of(nmc_kv_t* kv, uint64_t id, nmc_status_t want, bool closes = true) {
  const uint32_t token = 1;
  uint64_t pin = 0;
  size_t n = 0;
  nmc_kv_row_t row = {0, 0, 0};
  int32_t table[8], indptr[2], last = 0;
  int64_t slots[8];
  nmc_kv_view_t view = NMC_KV_VIEW_INIT;
  void* address = nullptr;
  nmc_kv_copy_t copy;
  GIVES(nmc_kv_append(kv, id, &token, 1, nullptr, nullptr), want);
  nmc_kv_append_t important = NMC_KV_APPEND_INIT;
  important.importance = 1.0f;
  GIVES(nmc_kv_append(kv, id, &token, 1, &important, nullptr), want);
  GIVES(nmc_kv_append_batch(kv, &id, &token, 1, nullptr), want);
  GIVES(nmc_kv_commit(kv, id, 0), want);
  GIVES(nmc_kv_reserve(kv, id, 0, nullptr), want);
  GIVES(nmc_kv_truncate(kv, id, 0, nullptr), want);
  GIVES(nmc_kv_fork(kv, id, 4711, nullptr), want);
  GIVES(nmc_kv_take_copies(kv, id, &copy, 1, &n), want);
  GIVES(nmc_kv_drop_least(kv, id, 1, 0, 0, nullptr), want);
  GIVES(nmc_kv_pin(kv, id, 1, &pin, nullptr), want);
  GIVES(nmc_kv_view(kv, id, 0, 0, NMC_KV_K, &view), want);
  GIVES(nmc_kv_token_address(kv, id, 0, 0, 0, NMC_KV_K, 0, &address), want);
  GIVES(nmc_kv_table(kv, 0, NMC_KV_TABLE_BLOCKS, &id, 1, 8, 0, &row, table, nullptr), want);
  GIVES(nmc_kv_table_csr(kv, 0, &id, 1, indptr, &last, table, 8, &n), want);
  GIVES(nmc_kv_slot_mapping(kv, 0, &id, nullptr, 1, slots, 8, &n), want);
  CHECK(nmc_last_error_message()[0] != 0);
  if (closes) GIVES(nmc_kv_close(kv, id, 0), want);
}

void handles() {
  promise("a handle that is none is a bad handle everywhere, and NULL can be destroyed");
  nmc_kv_config_t config = plain_config(8);
  nmc_kv_t* gone = nullptr;
  OK(nmc_kv_create(nullptr, &config, &gone));
  OK(nmc_kv_destroy(gone));
  GIVES(nmc_kv_destroy(gone), NMC_ERR_BAD_HANDLE);
  OK(nmc_kv_destroy(nullptr));
  nmc_blocks_config_t other_config = NMC_BLOCKS_CONFIG_INIT;
  other_config.total_blocks = 4;
  nmc_blocks_t* other = nullptr;
  OK(nmc_blocks_create(&other_config, &other));
  nmc_kv_t* const bad[] = {gone, nullptr, reinterpret_cast<nmc_kv_t*>(&config), reinterpret_cast<nmc_kv_t*>(other)};
  for (nmc_kv_t* kv : bad) {
    const uint32_t token = 1;
    uint64_t number = 0;
    size_t n = 0;
    nmc_kv_hash_t hash;
    nmc_kv_open_t options = NMC_KV_OPEN_INIT;
    options.name = slice_of("x");
    nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
    nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
    each_of(kv, 1, NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_open(kv, 1, &token, 1, nullptr, nullptr, nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_open(kv, NMC_KV_ID_AUTO, &token, 1, &options, nullptr, nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_find(kv, slice_of("x"), &number), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_match(kv, &token, 1, nullptr, kNone, &number), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_hash(kv, &token, 1, kNone, &hash), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_unpin(kv, 1), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_clear(kv, nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_resize(kv, 8), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_seq_info(kv, 1, 0, &info), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_victims(kv, &number, 1, &n), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_stats(kv, &stats), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_dump(kv, 0, nullptr, 0, &n), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_dump(kv, 64, nullptr, 0, &n), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_audit(kv), NMC_ERR_BAD_HANDLE);
    nmc_kv_event_t event;
    GIVES(nmc_kv_events(kv, &number, &event, 1, &n, nullptr), NMC_ERR_BAD_HANDLE);
    GIVES(nmc_kv_snapshot(kv, &number, &event, 1, &n), NMC_ERR_BAD_HANDLE);
  }
  OK(nmc_blocks_destroy(other));
}

void ids() {
  promise("ids that are not open, or are already, are refused");
  Cache cache(plain_config(8));
  Engine e = cache.engine();
  for (uint64_t id : {uint64_t{0}, uint64_t{1}, k31, k63, UINT64_MAX}) each_of(e.kv, id, NMC_ERR_NOT_FOUND);
  nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
  FAILS(nmc_kv_seq_info(e.kv, 5, 0, &info), NMC_ERR_NOT_FOUND, "no sequence 5 is open");
  for (uint64_t id : {uint64_t{0}, UINT64_MAX - 1}) {  // any number is an id, but NMC_KV_ID_AUTO
    OK(e.open(id, numbers(0, 5)));
    FAILS(nmc_kv_open(e.kv, id, nullptr, 1, nullptr, nullptr, nullptr), NMC_ERR_EXISTS, "is already open");
    e.verify();
    OK(e.close(id));
    FAILS(nmc_kv_close(e.kv, id, 0), NMC_ERR_NOT_FOUND, "was it closed");
    each_of(e.kv, id, NMC_ERR_NOT_FOUND);
  }
  GIVES(nmc_kv_unpin(e.kv, 1), NMC_ERR_NOT_FOUND);
  GIVES(nmc_kv_unpin(e.kv, UINT64_MAX), NMC_ERR_NOT_FOUND);
  e.verify();

  promise("no more sequences than max_sequences");
  nmc_kv_config_t config = plain_config(8);
  config.max_sequences = 2;
  Cache small(config);
  Engine few = small.engine();
  OK(few.open(1, {1}));
  OK(few.open(2, {2}));
  FAILS(few.open(3, {3}), NMC_ERR_LIMIT, "raise max_sequences");
  GIVES(few.fork(1, 3), NMC_ERR_LIMIT);
  few.verify();
  OK(few.close(1));
  OK(few.open(3, {3}));
  few.verify();

  promise("an evicted sequence is stale everywhere until it is closed");
  config = plain_config(4);
  config.when_full = NMC_KV_WHEN_FULL_EVICT_SEQUENCE;
  Cache full(config);
  Engine f = full.engine();
  OK(f.open(1, numbers(0, 12)));
  OK(f.open(2, numbers(100, 12)));
  each_of(f.kv, 1, NMC_ERR_STALE, false);
  f.verify();
  OK(f.close(1));
  GIVES(nmc_kv_close(f.kv, 1, 0), NMC_ERR_NOT_FOUND);
}

void counts() {
  promise("counts that cannot be are refused, and nothing changes");
  Cache cache(plain_config(8));
  Engine e = cache.engine();
  const uint32_t token = 1;
  for (uint64_t many : {k31 + 1, uint64_t{UINT32_MAX}, uint64_t{1} << 32, k63, UINT64_MAX}) {
    FAILS(nmc_kv_open(e.kv, 1, nullptr, many, nullptr, nullptr, nullptr), NMC_ERR_LIMIT, "more than a sequence can have");
    GIVES(nmc_kv_open(e.kv, 1, &token, many, nullptr, nullptr, nullptr), NMC_ERR_LIMIT);
  }
  nmc_kv_room_t room = NMC_KV_ROOM_INIT;
  GIVES(nmc_kv_open(e.kv, 1, nullptr, k31, nullptr, nullptr, &room), NMC_ERR_NO_SPACE);
  CHECK(room.needed == k31 / 4 && room.free == 8);
  OK(e.open(1, numbers(0, 5)));
  for (uint64_t many : {k31 - 4, k31, k31 + 1, uint64_t{1} << 32, k63, UINT64_MAX}) {
    GIVES(nmc_kv_append(e.kv, 1, nullptr, many, nullptr, nullptr), NMC_ERR_LIMIT);
    const nmc_kv_append_t options = NMC_KV_APPEND_INIT;
    GIVES(nmc_kv_append(e.kv, 1, nullptr, many, &options, nullptr), NMC_ERR_LIMIT);
    const std::string given = std::to_string(many);
    FAILS(nmc_kv_commit(e.kv, 1, many), NMC_ERR_INVALID_ARG, ("not " + given).c_str());
    FAILS(nmc_kv_truncate(e.kv, 1, many, nullptr), NMC_ERR_INVALID_ARG, ("not " + given).c_str());
    if (many > k31) FAILS(nmc_kv_reserve(e.kv, 1, many, nullptr), NMC_ERR_LIMIT, (given + " tokens").c_str());
    GIVES(nmc_kv_reserve(e.kv, 1, many, nullptr), many <= k31 ? NMC_ERR_NO_SPACE : NMC_ERR_LIMIT);
    void* address = nullptr;
    GIVES(nmc_kv_token_address(e.kv, 1, many, 0, 0, NMC_KV_K, 0, &address), NMC_ERR_INVALID_ARG);
    uint64_t pin = 0, covered = 77;
    OK(nmc_kv_pin(e.kv, 1, many, &pin, &covered));  // as much as there is
    CHECK(covered <= 4);
    OK(nmc_kv_unpin(e.kv, pin));
    uint64_t hit = 0;
    nmc_kv_hash_t hash{};
    if (many >= k63) {  // no array is that long
      GIVES(nmc_kv_match(e.kv, &token, many, nullptr, kNone, &hit), NMC_ERR_INVALID_ARG);
      GIVES(nmc_kv_hash(e.kv, &token, many, kNone, &hash), NMC_ERR_INVALID_ARG);
    }
  }
  OK(nmc_kv_append(e.kv, 1, nullptr, 0, nullptr, nullptr));
  OK(nmc_kv_append(e.kv, 1, &token, 0, nullptr, nullptr));
  OK(nmc_kv_append_batch(e.kv, nullptr, nullptr, 0, nullptr));
  OK(nmc_kv_hash(e.kv, nullptr, 0, kNone, nullptr));
  OK(nmc_kv_hash(e.kv, &token, 1, kNone, nullptr));  // no full block, no hash
  uint64_t hit = 77;
  OK(nmc_kv_match(e.kv, nullptr, 0, nullptr, kNone, &hit));
  CHECK(hit == 0);
  for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::nanf("")}) {
    nmc_kv_append_t options = NMC_KV_APPEND_INIT;
    options.importance = bad;
    FAILS(nmc_kv_append(e.kv, 1, &token, 1, &options, nullptr), NMC_ERR_INVALID_ARG, "finite");
  }
  nmc_kv_append_t options = NMC_KV_APPEND_INIT;
  options.flags = 1;
  FAILS(nmc_kv_append(e.kv, 1, &token, 1, &options, nullptr), NMC_ERR_INVALID_ARG, "flags 0x1");
  for (uint32_t size : {0u, 4u, 5000u}) {
    options = NMC_KV_APPEND_INIT;
    options.struct_size = size;
    FAILS(nmc_kv_append(e.kv, 1, &token, 1, &options, nullptr), NMC_ERR_VERSION, "nmc_kv_append_t");
  }
  options = NMC_KV_APPEND_INIT;
  options.abi_version = 0;
  GIVES(nmc_kv_append(e.kv, 1, &token, 1, &options, nullptr), NMC_ERR_VERSION);
  CHECK(e.info(1).tokens == 5);
  for (uint32_t total : {0u, 9u, 1u << 31, UINT32_MAX}) GIVES(nmc_kv_resize(e.kv, total), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_close(e.kv, 1, 2), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_close(e.kv, 1, UINT32_MAX), NMC_ERR_INVALID_ARG);
  const uint64_t id = 1;
  const uint32_t six = 6, huge = UINT32_MAX;
  int64_t slots[8];
  size_t n = 0;
  FAILS(nmc_kv_slot_mapping(e.kv, 0, &id, &six, 1, slots, 8, &n), NMC_ERR_INVALID_ARG, "has 5 tokens, not 6");
  GIVES(nmc_kv_slot_mapping(e.kv, 0, &id, &huge, 1, slots, 8, &n), NMC_ERR_INVALID_ARG);
  nmc_kv_row_t row = {0, 0, 0};
  int32_t table[8];
  GIVES(nmc_kv_table(e.kv, 0, 2, &id, 1, 8, 0, &row, table, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, &id, 1, SIZE_MAX, 0, &row, table, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, &id, SIZE_MAX, 8, 0, &row, table, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, &id, 1, 1, 0, &row, table, nullptr), NMC_ERR_TOO_SMALL);
  GIVES(nmc_kv_table_csr(e.kv, 0, &id, SIZE_MAX, table, table, table, 8, &n), NMC_ERR_INVALID_ARG);
  const uint64_t ids[] = {1, 99};
  nmc_kv_row_t rows[2] = {};
  int32_t both[16];
  FAILS(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 2, 8, 0, rows, both, nullptr), NMC_ERR_NOT_FOUND, "99");
  CHECK(rows[0].blocks == 2 && rows[1].blocks == 0);  // those before the one at fault are written
  GIVES(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids + 1, 1, 0, 0, rows, nullptr, nullptr), NMC_ERR_NOT_FOUND);
  nmc_kv_view_t view = NMC_KV_VIEW_INIT;
  FAILS(nmc_kv_view(e.kv, 1, 1, 0, NMC_KV_K, &view), NMC_ERR_INVALID_ARG, "group 1");
  FAILS(nmc_kv_view(e.kv, 1, 0, 1, NMC_KV_K, &view), NMC_ERR_INVALID_ARG, "layer 1");
  FAILS(nmc_kv_view(e.kv, 1, 0, 0, 2, &view), NMC_ERR_INVALID_ARG, "side 2");
  void* address = nullptr;
  FAILS(nmc_kv_token_address(e.kv, 1, 5, 0, 0, NMC_KV_K, 0, &address), NMC_ERR_INVALID_ARG, "has 5 tokens");
  FAILS(nmc_kv_token_address(e.kv, 1, 0, 0, 0, NMC_KV_K, 1, &address), NMC_ERR_INVALID_ARG, "head 1");
  e.verify();
  OK(e.close(1));

  nmc_kv_group_t latent = plain_group(1, 1, 8);
  latent.kind = NMC_KV_KIND_MLA;
  Cache mla(plain_config(4), {latent});
  Engine m = mla.engine();
  OK(m.open(1, {1}));
  FAILS(nmc_kv_view(m.kv, 1, 0, 0, NMC_KV_V, &view), NMC_ERR_INVALID_ARG, "no V");
  m.verify();
}

void options() {
  promise("options that make no sense are refused");
  Cache cache(plain_config(8));
  Engine e = cache.engine();
  const Tokens prompt = numbers(0, 9);
  nmc_kv_open_t o = NMC_KV_OPEN_INIT;
  const auto refused = [&](nmc_status_t want, const char* says) {
    FAILS(e.open(1, prompt, o), want, says);
    o = NMC_KV_OPEN_INIT;
  };
  o.flags = 8;
  refused(NMC_ERR_INVALID_ARG, "flag");
  o.flags = UINT32_MAX;
  refused(NMC_ERR_INVALID_ARG, "flag");
  o.reserved[1] = 1;
  refused(NMC_ERR_INVALID_ARG, "reserved");
  o.priority = 16;
  refused(NMC_ERR_INVALID_ARG, "priority");
  o.priority = UINT32_MAX;
  refused(NMC_ERR_INVALID_ARG, "priority");
  o.struct_size = 3;
  refused(NMC_ERR_VERSION, "");
  o.abi_version = 0;
  refused(NMC_ERR_VERSION, "");
  std::vector<nmc_kv_hash_t> hash(3);
  OK(nmc_kv_hash(e.kv, prompt.data(), prompt.size(), kNone, hash.data()));
  for (uint64_t n : {0, 1, 3}) {
    o.hashes = hash.data();
    o.n_hashes = n;
    refused(NMC_ERR_INVALID_ARG, "hashes for 2 full blocks");
  }
  o.hashes = hash.data();
  o.n_hashes = UINT64_MAX;
  refused(NMC_ERR_INVALID_ARG, "hashes");
  o.salt = {nullptr, 3};
  refused(NMC_ERR_INVALID_ARG, "salt");
  const std::string name(1025, 'n');
  o.name = {name.data(), name.size()};
  refused(NMC_ERR_INVALID_ARG, "name has 1025 bytes");
  o.salt = {name.data(), (1u << 20) + 1};
  refused(NMC_ERR_INVALID_ARG, "salt has 1048577 bytes");
  FAILS(nmc_kv_open(e.kv, NMC_KV_ID_AUTO, nullptr, 1, nullptr, nullptr, nullptr), NMC_ERR_INVALID_ARG, "name");
  GIVES(nmc_kv_open(e.kv, NMC_KV_ID_AUTO, nullptr, 1, &o, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  CHECK(e.stats().free == 8);
  e.verify();
}

void pointers() {
  promise("pointers that are NULL or not aligned are refused where a value is needed");
  Cache cache(plain_config(8));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 5)));
  alignas(16) char raw[256] = {};
  auto* const odd32 = reinterpret_cast<uint32_t*>(raw + 1);
  auto* const odd64 = reinterpret_cast<uint64_t*>(raw + 4);
  auto* const odd_int = reinterpret_cast<int32_t*>(raw + 2);
  auto* const odd_size = reinterpret_cast<size_t*>(raw + 4);
  const uint64_t id = 1;
  uint64_t number = 0;
  size_t n = 0;
  const uint32_t token = 1;
  GIVES(nmc_kv_open(e.kv, 2, odd32, 1, nullptr, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_open(e.kv, 2, &token, 1, reinterpret_cast<nmc_kv_open_t*>(raw + 1), nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_open(e.kv, 2, &token, 1, nullptr, reinterpret_cast<nmc_kv_opened_t*>(raw + 1), nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_append(e.kv, 1, odd32, 1, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_append_batch(e.kv, nullptr, &token, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_append_batch(e.kv, odd64, &token, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_append_batch(e.kv, &id, odd32, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_append_batch(e.kv, &id, &token, 1, odd_int), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_take_copies(e.kv, 1, nullptr, 0, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_take_copies(e.kv, 1, nullptr, 1, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_take_copies(e.kv, 1, nullptr, 0, odd_size), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_drop_least(e.kv, 1, 1, 0, 0, odd32), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_match(e.kv, &token, 1, nullptr, kNone, nullptr), NMC_ERR_INVALID_ARG);
  FAILS(nmc_kv_match(e.kv, nullptr, 4, nullptr, kNone, &number), NMC_ERR_INVALID_ARG, "tokens are needed");
  GIVES(nmc_kv_match(e.kv, odd32, 4, nullptr, kNone, &number), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_match(e.kv, &token, 1, nullptr, {nullptr, 1}, &number), NMC_ERR_INVALID_ARG);
  const Tokens four = numbers(0, 4);
  GIVES(nmc_kv_hash(e.kv, four.data(), 4, kNone, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_hash(e.kv, nullptr, 4, kNone, reinterpret_cast<nmc_kv_hash_t*>(raw)), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_pin(e.kv, 1, 4, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_pin(e.kv, 1, 4, &number, odd64), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_clear(e.kv, odd64), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_find(e.kv, slice_of("x"), nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_find(e.kv, {nullptr, 1}, &number), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_seq_info(e.kv, 1, 0, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_stats(e.kv, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_victims(e.kv, nullptr, 1, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_victims(e.kv, &number, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_dump(e.kv, 0, nullptr, 5, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_dump(e.kv, 64, nullptr, 5, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_view(e.kv, 1, 0, 0, NMC_KV_K, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_token_address(e.kv, 1, 0, 0, 0, NMC_KV_K, 0, nullptr), NMC_ERR_INVALID_ARG);
  nmc_kv_row_t row = {0, 0, 0};
  int32_t table[8];
  int64_t slots[8];
  GIVES(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, nullptr, 1, 8, 0, &row, table, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, &id, 1, 8, 0, nullptr, table, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, &id, 1, 8, 0, &row, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, &id, 1, 8, 0, &row, odd_int, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, &id, 1, 8, 0, &row, table, odd64), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_table_csr(e.kv, 0, &id, 1, nullptr, table, table, 8, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_table_csr(e.kv, 0, &id, 1, table, table, nullptr, 8, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_table_csr(e.kv, 0, &id, 1, table, table, table, 8, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_table_csr(e.kv, 0, &id, 1, table, nullptr, table, 8, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_slot_mapping(e.kv, 0, nullptr, nullptr, 1, slots, 8, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_slot_mapping(e.kv, 0, &id, odd32, 1, slots, 8, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_slot_mapping(e.kv, 0, &id, nullptr, 1, nullptr, 8, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_slot_mapping(e.kv, 0, &id, nullptr, 1, slots, 8, nullptr), NMC_ERR_INVALID_ARG);
  nmc_kv_room_t* const odd_room = reinterpret_cast<nmc_kv_room_t*>(raw + 1);
  GIVES(nmc_kv_open(e.kv, 2, nullptr, 100, nullptr, nullptr, odd_room), NMC_ERR_INVALID_ARG);
  GIVES(nmc_kv_append(e.kv, 1, &token, 1, nullptr, odd_room), NMC_ERR_INVALID_ARG);  // before anything is done
  CHECK(e.info(1).tokens == 5);
  e.verify();

  promise("a number that has no room in 32 bits is told as it was given");
  constexpr uint64_t kLarge = (uint64_t{1} << 33) + 5;
  GIVES(nmc_kv_reserve(e.kv, 1, kLarge, nullptr), NMC_ERR_LIMIT);
  CHECK(error_mentions("8589934597"));
  GIVES(nmc_kv_truncate(e.kv, 1, kLarge, nullptr), NMC_ERR_INVALID_ARG);
  CHECK(error_mentions("8589934597"));
  void* address = nullptr;
  GIVES(nmc_kv_token_address(e.kv, 1, kLarge, 0, 0, NMC_KV_K, 0, &address), NMC_ERR_INVALID_ARG);
  CHECK(error_mentions("8589934597"));

  promise("structs of a size that cannot be are refused");
  for (uint32_t size : {0u, 7u, 5000u, UINT32_MAX}) {
    nmc_kv_stats_t stats = NMC_KV_STATS_INIT;
    stats.struct_size = size;
    GIVES(nmc_kv_stats(e.kv, &stats), NMC_ERR_INVALID_ARG);
    nmc_kv_seq_info_t info = NMC_KV_SEQ_INFO_INIT;
    info.struct_size = size;
    GIVES(nmc_kv_seq_info(e.kv, 1, 0, &info), NMC_ERR_INVALID_ARG);
    nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
    opened.struct_size = size;
    FAILS(nmc_kv_open(e.kv, 2, nullptr, 1, nullptr, &opened, nullptr), NMC_ERR_INVALID_ARG, "NMC_KV_OPENED_INIT");
    nmc_kv_room_t room = NMC_KV_ROOM_INIT;
    room.struct_size = size;
    FAILS(nmc_kv_open(e.kv, 2, nullptr, 1, nullptr, nullptr, &room), NMC_ERR_INVALID_ARG, "NMC_KV_ROOM_INIT");
    FAILS(nmc_kv_append(e.kv, 1, nullptr, 1, nullptr, &room), NMC_ERR_INVALID_ARG, "NMC_KV_ROOM_INIT");
    FAILS(nmc_kv_reserve(e.kv, 1, 6, &room), NMC_ERR_INVALID_ARG, "NMC_KV_ROOM_INIT");
    FAILS(nmc_kv_truncate(e.kv, 1, 1, &room), NMC_ERR_INVALID_ARG, "NMC_KV_ROOM_INIT");
    FAILS(nmc_kv_fork(e.kv, 1, 2, &room), NMC_ERR_INVALID_ARG, "NMC_KV_ROOM_INIT");
    nmc_kv_view_t view = NMC_KV_VIEW_INIT;
    view.struct_size = size;
    FAILS(nmc_kv_view(e.kv, 1, 0, 0, NMC_KV_K, &view), NMC_ERR_INVALID_ARG, "NMC_KV_VIEW_INIT");
    nmc_kv_progress_t progress = NMC_KV_PROGRESS_INIT;
    progress.struct_size = size;
    FAILS(nmc_kv_transfer_poll(e.kv, 1, &progress), NMC_ERR_INVALID_ARG, "NMC_KV_PROGRESS_INIT");
    FAILS(nmc_kv_transfer_wait(e.kv, 1, 0, &progress), NMC_ERR_INVALID_ARG, "NMC_KV_PROGRESS_INIT");
    CHECK(e.info(1).tokens == 5 && e.stats().sequences == 1);  // nothing was done
    nmc_kv_group_t group = plain_group();
    group.struct_size = size;
    nmc_kv_config_t config = plain_config(8);
    config.groups = &group;
    config.n_groups = 1;
    FAILS(create(config), NMC_ERR_INVALID_ARG, "NMC_KV_GROUP_INIT");
  }
  nmc_kv_stats_t older = NMC_KV_STATS_INIT;  // one that knows only the first numbers
  older.struct_size = 16;
  older.used = 4242;
  OK(nmc_kv_stats(e.kv, &older));
  CHECK(older.total == 8 && older.used == 4242);

  promise("structs of other ages are read and written as far as they go");
  nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
  opened.struct_size = 16;  // up to the id
  opened.hit_tokens = opened.tokens = 4242;
  OK(nmc_kv_open(e.kv, NMC_KV_ID_AUTO, nullptr, 3, nullptr, &opened, nullptr));
  CHECK(opened.struct_size == 16 && opened.id >> 63 == 1 && opened.hit_tokens == 4242 && opened.tokens == 4242);
  OK(nmc_kv_close(e.kv, opened.id, 0));
  nmc_kv_room_t room = NMC_KV_ROOM_INIT;
  room.struct_size = 16;  // up to what was needed
  room.free = room.evictable = 4242;
  GIVES(nmc_kv_open(e.kv, 2, nullptr, 400, nullptr, nullptr, &room), NMC_ERR_NO_SPACE);
  CHECK(room.needed == 100 && room.free == 4242 && room.evictable == 4242 && room.group == NMC_KV_GROUPS_ALL);
  struct Newer {  // of a header that has one field more
    nmc_kv_group_t known;
    uint64_t unknown;
  } newer[2] = {{plain_group(), 0}, {plain_group(), 0}};
  newer[0].known.struct_size = newer[1].known.struct_size = sizeof(Newer);
  nmc_kv_config_t config = plain_config(8);
  config.groups = &newer[0].known;
  config.n_groups = 2;
  OK(create(config));
  newer[1].unknown = 1;
  FAILS(create(config), NMC_ERR_VERSION, "nmc_kv_group_t");
  newer[1].known.struct_size = sizeof(nmc_kv_group_t);
  FAILS(create(config), NMC_ERR_INVALID_ARG, "of element 1");
  OK(e.close(1));
  e.verify();
}

}  // namespace

int main() {
  configs();
  groups();
  handles();
  ids();
  counts();
  options();
  pointers();
  return finish();
}
