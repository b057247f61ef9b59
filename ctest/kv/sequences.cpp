// What one sequence does: forks, cuts, batches, blocks that are dropped or left behind by the window, blocks that lie together, names,
// and the tables that kernels take.
#include "kv_engine.hpp"

namespace {

using namespace kv;

void forks() {
  promise("a fork shares full blocks and copies one that is not full");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 10)));
  OK(e.fork(1, 2));
  CHECK(e.last_copies() == 1 && e.info(2).shared == 2 && e.info(1).shared == 3 && e.stats().used == 4);
  OK(e.fork(2, 3));
  OK(e.append(1, {10, 11, 12}));
  OK(e.append(2, {20, 21, 22, 23}));
  OK(e.append(3, {30}));
  e.verify();
  CHECK(e.fresh_table(1)[1] == e.fresh_table(3)[1] && e.fresh_table(1)[2] != e.fresh_table(3)[2]);
  OK(e.close(1));
  e.verify();
  OK(e.open(4, numbers(0, 8)));
  OK(e.fork(4, 5));  // nothing is left over, so nothing is copied
  CHECK(e.last_copies() == 0);
  OK(e.append(5, {5}));
  OK(e.append(4, {4}));
  e.verify();
  OK(e.open(6, {}));
  OK(e.fork(6, 7));
  OK(e.append(7, {1}));
  GIVES(e.fork(7, 2), NMC_ERR_EXISTS);
  GIVES(e.fork(99, 100), NMC_ERR_NOT_FOUND);
  e.verify();

  promise("a fork of a contiguous sequence is paged, and one of a fork that reserved gets only tokens");
  OK(e.open(8, numbers(40, 7), "", NMC_KV_OPEN_CONTIGUOUS));
  OK(e.fork(8, 9));
  CHECK(e.info(8).contiguous == 1 && e.info(9).contiguous == 0);
  OK(e.append(9, numbers(60, 9)));
  OK(e.append(8, numbers(70, 9)));
  e.verify();
  OK(e.reserve(9, 100));
  OK(e.fork(9, 10));
  CHECK(e.info(9).blocks == 25 && e.info(10).blocks == 4);
  e.verify();
  for (uint64_t id : {2, 3, 4, 5, 6, 7, 8, 9, 10}) OK(e.close(id));
  e.verify();
  CHECK(e.stats().used == 0);
}

void cuts() {
  promise("a private tail is cut in place, a tail that others read is copied");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 6)));
  OK(e.append(1, {6, 7, 8, 9}));  // speculation
  OK(e.truncate(1, 7));
  CHECK(e.last_copies() == 0 && e.info(1).blocks == 2);
  e.verify();
  OK(e.append(1, {70, 80}));
  e.verify();
  CHECK(e.match(joined(numbers(0, 7), {70})) == 4);
  OK(e.append(1, {90}));
  CHECK(e.match(joined(numbers(0, 7), {70})) == 8 && e.match(numbers(0, 10)) == 4);

  OK(e.open(2, joined(numbers(0, 7), {70, 5})));
  CHECK(e.opened.hit_tokens == 8);
  OK(e.truncate(2, 6));  // into a block that sequence 1 reads as well
  CHECK(e.last_copies() == 1);
  OK(e.append(2, {61, 62, 63}));
  e.verify();
  OK(e.truncate(2, 4));
  OK(e.truncate(2, 4));
  e.verify();
  OK(e.append(2, numbers(600, 5)));
  OK(e.append(2, {1}));
  OK(e.truncate(2, 0));
  CHECK(e.info(2).blocks == 0);
  OK(e.append(2, numbers(900, 5)));
  e.verify();
  OK(e.close(2));
  GIVES(e.truncate(1, 1000), NMC_ERR_INVALID_ARG);

  promise("a cut among a fork's blocks leaves the other as it was");
  OK(e.open(3, numbers(300, 12)));
  OK(e.fork(3, 4));
  OK(e.truncate(4, 5));
  CHECK(e.last_copies() == 1);
  OK(e.append(4, numbers(3000, 9)));
  OK(e.truncate(3, 11));
  OK(e.append(3, {1}));
  e.verify();
  OK(e.close(3));
  OK(e.truncate(4, 3));
  e.verify();
  OK(e.close(4));
  OK(e.close(1));
  e.verify();
  CHECK(e.stats().used == 0);
}

void batches() {
  promise("a batch of appends gives each its status, and those that fail are as they were");
  Cache cache(plain_config(4));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 4)));
  OK(e.open(2, numbers(10, 3)));
  OK(e.open(3, numbers(20, 4)));
  const uint64_t ids[] = {1, 2, 99, 3, 2};
  const uint32_t tokens[] = {100, 101, 102, 103, 104};
  nmc_status_t statuses[5];
  GIVES(nmc_kv_append_batch(e.kv, ids, tokens, 5, statuses), NMC_ERR_NOT_FOUND);
  CHECK(error_mentions("no sequence 99 is open"));
  CHECK(statuses[0] == NMC_OK && statuses[1] == NMC_OK && statuses[2] == NMC_ERR_NOT_FOUND);
  CHECK(statuses[3] == NMC_ERR_NO_SPACE && statuses[4] == NMC_ERR_NO_SPACE);
  e.appended(1, {100});
  e.appended(2, {101});
  e.verify();
  OK(nmc_kv_append_batch(e.kv, ids, tokens, 0, nullptr));
  OK(e.close(3));
  GIVES(nmc_kv_append_batch(e.kv, ids, nullptr, 2, nullptr), NMC_OK);
  e.appended(1, {5});
  e.appended(2, {6});
  e.verify();
  OK(e.close(1));
  OK(e.close(2));
}

// ---- dropping -------------------------------------------------------------------------------------------------------------

void dropping() {
  promise("the least important blocks of the middle go, and leave -1 in every table");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 4)));
  const float scores[] = {5, 1, 3, 1, 9, 2};
  for (uint32_t i = 0; i < 6; ++i) {
    const Tokens four = numbers(4 + 4 * i, 4);
    nmc_kv_append_t options = NMC_KV_APPEND_INIT;
    options.importance = scores[i];
    OK(nmc_kv_append(e.kv, 1, four.data(), 4, &options, nullptr));
    e.appended(1, four);
  }
  OK(e.append(1, {28, 29}));
  uint32_t dropped = 0;
  OK(nmc_kv_drop_least(e.kv, 1, 3, 1, 1, &dropped));
  CHECK(dropped == 3 && e.info(1).dropped == 3 && e.info(1).blocks == 8);
  const std::vector<int32_t> table = e.fresh_table(1);
  CHECK(table[2] == -1 && table[4] == -1 && table[3] == -1 && table[0] >= 0 && table[5] >= 0 && table[7] >= 0);
  e.verify();
  OK(nmc_kv_drop_least(e.kv, 1, 100, 1, 1, nullptr));
  CHECK(e.info(1).dropped == 5);
  OK(nmc_kv_drop_least(e.kv, 1, UINT32_MAX, UINT32_MAX, UINT32_MAX, &dropped));
  CHECK(dropped == 0);
  OK(e.append(1, numbers(30, 5)));
  e.verify();
  FAILS(e.truncate(1, 10), NMC_ERR_INVALID_ARG, "were dropped");
  OK(e.truncate(1, 29));
  OK(e.append(1, {99}));
  e.verify();
  OK(e.fork(1, 2));
  OK(e.append(2, numbers(500, 6)));
  e.verify();
  int32_t indptr[2], last = 0, indices[16];
  size_t n = 0;
  const uint64_t id = 1;
  OK(nmc_kv_table_csr(e.kv, 0, &id, 1, indptr, &last, indices, 16, &n));
  CHECK(n == 8 && indices[2] == -1 && last == 2);
  OK(e.close(1));
  OK(e.close(2));
  e.verify();
  CHECK(e.stats().used == 0);
}

void dropping_makes_room() {
  promise("blocks that were dropped make room, also if what comes after them can be matched and is held");
  for (uint32_t eviction = NMC_EVICT_FIFO; eviction <= NMC_EVICT_PRIORITY; ++eviction) {
    nmc_kv_config_t config = plain_config(10);
    config.eviction = eviction;
    config.hash = eviction == 1 ? NMC_KV_HASH_XXH3 : NMC_KV_HASH_BLAKE3;
    Cache cache(config);
    Engine e = cache.engine();
    OK(e.open(1, numbers(0, 40)));
    OK(nmc_kv_commit(e.kv, 1, 40));
    OK(e.fork(1, 2));
    for (uint64_t id : {1, 2}) OK(nmc_kv_drop_least(e.kv, id, 6, 1, 1, nullptr));
    CHECK(e.stats().idle == 6 && e.match(numbers(0, 40)) == 40);
    OK(e.open(3, numbers(100, 20)));
    e.verify();
    CHECK(e.match(numbers(0, 40)) < 40 && e.stats().published < 10);
    OK(e.close(2));
    OK(e.append(1, numbers(500, 4)));
    e.verify();
    OK(e.truncate(1, 36));
    OK(e.append(1, {7}));
    e.verify();
    uint64_t evicted = 0;
    OK(nmc_kv_clear(e.kv, &evicted));
    CHECK(e.stats().idle == 0);
    OK(e.close(3));
    OK(e.close(1));
    e.verify();
    CHECK(e.stats().used == 0);
  }
}

void window() {
  promise("blocks that the window has passed are freed as a sequence grows, also after a cut to nothing");
  nmc_kv_config_t config = plain_config(16);
  config.window = 6;
  Cache cache(config);
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 5)));
  for (uint32_t t = 5; t < 100; ++t) {
    if (!OK(e.append(1, {t}))) break;
    const nmc_kv_seq_info_t info = e.info(1);
    CHECK(info.blocks - info.dropped <= 3);
    // Token t attends to the tokens from t - 5 on.
    const std::vector<int32_t> table = e.fresh_table(1);
    for (uint32_t seen = t < 5 ? 0 : t - 5; seen <= t; ++seen) CHECK(table[seen / 4] >= 0);
    e.verify();
  }
  OK(e.truncate(1, 0));
  for (uint32_t t = 0; t < 50; ++t) OK(e.append(1, {t}));
  if (!CHECK(e.info(1).blocks - e.info(1).dropped <= 3)) std::printf("     blocks that left the window stay after a cut\n");
  e.verify();
  OK(e.close(1));
}

// ---- contiguous -------------------------------------------------------------------------------------------------------------

void contiguous() {
  promise("a contiguous sequence grows in place or moves with its bytes, and its view is its own blocks");
  {
    Cache cache(plain_config(64), {plain_group(2, 2, 8)});
    Engine e = cache.engine();
    OK(e.open(1, numbers(0, 6), "", NMC_KV_OPEN_CONTIGUOUS));
    OK(e.open(2, numbers(50, 6), "", NMC_KV_OPEN_CONTIGUOUS));
    size_t moves = 0;
    for (uint32_t i = 0; i < 60; ++i) {
      OK(e.append(1 + i % 2, {1000 + i}));
      moves += e.last_copies() != 0;
      const std::vector<int32_t> table = e.fresh_table(1 + i % 2);
      for (size_t k = 1; k < table.size(); ++k) CHECK(table[k] == table[k - 1] + 1);
      e.verify();
    }
    CHECK(moves > 0);
    OK(e.reserve(1, 60));
    e.verify();
    nmc_kv_view_t view = NMC_KV_VIEW_INIT;
    OK(nmc_kv_view(e.kv, 1, 0, 1, NMC_KV_V, &view));
    CHECK(view.shape[0] == 15 && view.shape[1] == 2 && view.shape[2] == 4 && view.shape[3] == 8 && view.contiguous == 1);
    OK(e.truncate(1, 9));
    e.verify();
    OK(e.close(2));
    uint32_t dropped = 0;
    OK(e.append(1, numbers(0, 20)));
    OK(nmc_kv_drop_least(e.kv, 1, 2, 1, 1, &dropped));
    CHECK(dropped == 2);
    e.verify();
    OK(e.open(3, numbers(70, 20)));
    OK(e.append(1, numbers(0, 60)));
    e.verify();
    OK(e.close(1));
    OK(e.close(3));
    e.verify();
    CHECK(e.stats().used == 0);
  }
  promise("what contiguous sequences computed is found by paged ones, and a cut moves where others read");
  Cache cache(plain_config(32));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 9), "", NMC_KV_OPEN_CONTIGUOUS));
  OK(e.append(1, {9}));
  OK(e.open(2, numbers(0, 9)));
  CHECK(e.opened.hit_tokens == 8);
  OK(e.open(3, numbers(0, 9), "", NMC_KV_OPEN_CONTIGUOUS));
  CHECK(e.opened.hit_tokens == 0);
  OK(e.truncate(1, 6));
  CHECK(e.last_copies() == 2);
  OK(e.append(1, {77, 78, 79}));
  e.verify();
  for (uint64_t id : {1, 2, 3}) OK(e.close(id));
  e.verify();
}

// ---- names and tables -------------------------------------------------------------------------------------------------------

void named() {
  promise("sequences are found by name while they are open");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  nmc_kv_open_t options = NMC_KV_OPEN_INIT;
  options.name = slice_of("request-1");
  nmc_kv_opened_t opened = NMC_KV_OPENED_INIT;
  uint64_t found = 0;
  OK(nmc_kv_open(e.kv, NMC_KV_ID_AUTO, nullptr, 5, &options, &opened, nullptr));
  const uint64_t id = opened.id;
  CHECK(id >= uint64_t{1} << 63 && opened.tokens == 5);
  OK(nmc_kv_find(e.kv, options.name, &found));
  CHECK(found == id);
  FAILS(nmc_kv_open(e.kv, NMC_KV_ID_AUTO, nullptr, 5, &options, &opened, nullptr), NMC_ERR_EXISTS, "'request-1'");
  FAILS(e.open(3, {1}, options), NMC_ERR_EXISTS, "'request-1'");
  options.name = slice_of("request-2");
  OK(e.open(3, {1}, options));
  OK(nmc_kv_find(e.kv, options.name, &found));
  CHECK(found == 3);
  FAILS(nmc_kv_find(e.kv, slice_of("request-3"), &found), NMC_ERR_NOT_FOUND, "'request-3'");
  GIVES(nmc_kv_find(e.kv, {nullptr, 0}, &found), NMC_ERR_NOT_FOUND);
  OK(nmc_kv_close(e.kv, id, 0));
  GIVES(nmc_kv_find(e.kv, slice_of("request-1"), &found), NMC_ERR_NOT_FOUND);
  OK(nmc_kv_audit(e.kv));
  OK(e.close(3));

  promise("an id that the cache chooses is one that nobody has, whatever ids the program uses");
  for (uint64_t own = id; own < id + 6; ++own) OK(nmc_kv_open(e.kv, own, nullptr, 1, nullptr, nullptr, nullptr));
  std::vector<uint64_t> chosen;
  for (int i = 0; i < 3; ++i) {
    OK(nmc_kv_open(e.kv, NMC_KV_ID_AUTO, nullptr, 1, nullptr, &opened, nullptr));
    CHECK(opened.id >= id + 6 && (chosen.empty() || opened.id > chosen.back()));
    FAILS(nmc_kv_open(e.kv, opened.id, nullptr, 1, nullptr, nullptr, nullptr), NMC_ERR_EXISTS, "is already open");
    chosen.push_back(opened.id);
  }
  FAILS(nmc_kv_open(e.kv, NMC_KV_ID_AUTO, nullptr, 1, nullptr, nullptr, nullptr), NMC_ERR_INVALID_ARG, "out_opened or a name");
  FAILS(nmc_kv_fork(e.kv, id, NMC_KV_ID_AUTO, nullptr), NMC_ERR_INVALID_ARG, "the id of a fork is the program's");
  options.name = slice_of("request-4");
  OK(nmc_kv_open(e.kv, NMC_KV_ID_AUTO, nullptr, 1, &options, nullptr, nullptr));  // found by its name
  OK(nmc_kv_find(e.kv, options.name, &found));
  CHECK(found > chosen.back());
  OK(nmc_kv_audit(e.kv));
}

void tables() {
  promise("dense tables, offsets, compressed tables and slots of a batch agree, and only changes are written");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 10)));
  OK(e.open(2, {}));
  OK(e.open(3, numbers(20, 8)));
  const uint64_t ids[] = {1, 2, 3};
  nmc_kv_row_t rows[3] = {}, offset_rows[3] = {};
  std::vector<int32_t> table(3 * 5, 99), offsets(3 * 2 * 5, 99);
  uint64_t written = 0;
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 5, -9, rows, table.data(), &written));
  CHECK(written == 15 && rows[0].blocks == 3 && rows[1].blocks == 0 && rows[2].blocks == 2);
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_OFFSETS, ids, 3, 5, -9, offset_rows, offsets.data(), &written));
  CHECK(written == 30);
  for (size_t r = 0; r < 3; ++r) {
    for (size_t k = 0; k < 5; ++k) {
      const int32_t block = table[r * 5 + k];
      CHECK(offsets[r * 10 + k] == (block < 0 ? -9 : 2 * block) && offsets[r * 10 + 5 + k] == (block < 0 ? -9 : 2 * block + 1));
    }
  }
  table.assign(table.size(), 99);  // what is not written again keeps its value
  OK(e.append(1, {10, 11}));
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 5, -9, rows, table.data(), &written));
  CHECK(written == 0);
  OK(e.append(1, {12}));
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 5, -9, rows, table.data(), &written));
  CHECK(written == 1 && table[0] == 99 && table[3] == e.fresh_table(1)[3] && table[4] == 99);
  OK(e.truncate(1, 3));
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 5, -9, rows, table.data(), &written));
  CHECK(written == 5 && table[0] == e.fresh_table(1)[0] && table[1] == -9);

  int32_t indptr[4], last[3], indices[8];
  size_t n = 0;
  OK(nmc_kv_table_csr(e.kv, 0, ids, 3, indptr, last, indices, 8, &n));
  CHECK(n == 3 && indptr[0] == 0 && indptr[1] == 1 && indptr[2] == 1 && indptr[3] == 3);
  CHECK(last[0] == 3 && last[1] == 0 && last[2] == 4);
  CHECK(indices[0] == e.fresh_table(1)[0] && indices[1] == e.fresh_table(3)[0] && indices[2] == e.fresh_table(3)[1]);
  GIVES(nmc_kv_table_csr(e.kv, 0, ids, 3, indptr, last, indices, 2, &n), NMC_ERR_TOO_SMALL);
  CHECK(n == 3);
  const uint32_t counts[] = {2, 0, 8};
  int64_t slots[10];
  OK(nmc_kv_slot_mapping(e.kv, 0, ids, counts, 3, slots, 10, &n));
  CHECK(n == 10 && slots[0] == int64_t{indices[0]} * 4 + 1 && slots[2] == int64_t{indices[1]} * 4);
  GIVES(nmc_kv_slot_mapping(e.kv, 0, ids, counts, 3, slots, 9, &n), NMC_ERR_TOO_SMALL);
  CHECK(n == 10);
  GIVES(nmc_kv_slot_mapping(e.kv, 0, ids, nullptr, 3, slots, 10, &n), NMC_ERR_INVALID_ARG);  // sequence 2 has no last token
  const uint64_t two[] = {1, 3};
  OK(nmc_kv_slot_mapping(e.kv, 0, two, nullptr, 2, slots, 10, &n));
  CHECK(n == 2 && slots[0] == int64_t{indices[0]} * 4 + 2 && slots[1] == int64_t{indices[2]} * 4 + 3);
  FAILS(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 1, -9, rows, table.data(), nullptr), NMC_ERR_TOO_SMALL, "2 blocks");
  nmc_kv_row_t again[3] = {};
  GIVES(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 0, -9, again, nullptr, nullptr), NMC_ERR_TOO_SMALL);
  // A row knows its sequence even if another one gets its id.
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 5, -9, rows, table.data(), &written));
  OK(e.close(3));
  OK(e.open(3, numbers(900, 8)));
  OK(nmc_kv_table(e.kv, 0, NMC_KV_TABLE_BLOCKS, ids, 3, 5, -9, rows, table.data(), &written));
  CHECK(written == 5 && table[10] == e.fresh_table(3)[0]);
  for (uint64_t id : ids) OK(e.close(id));
}

}  // namespace

int main() {
  forks();
  cuts();
  batches();
  dropping();
  dropping_makes_room();
  window();
  contiguous();
  named();
  tables();
  return finish();
}
