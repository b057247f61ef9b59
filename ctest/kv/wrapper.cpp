// nanomc/kv.hpp: every function in both forms, from one body; without exceptions (wrapper_noexc.cpp) in the only one, with
// std::span.
#include <array>
#include <cstring>
#include <numeric>
#include <sstream>

#include "../support/forms.hpp"
#include "nanomc/kv.hpp"
#include "nanomc/store.hpp"
#include "words.hpp"

#define WORKS(...) (STATUS(__VA_ARGS__) == NMC_OK)

namespace {

using namespace kv;

constexpr uint32_t kSize = 4;  // tokens of a block

nmc::KvConfig small(uint32_t blocks) { return nmc::KvConfig(blocks).tokens_per_block(kSize); }
nmc::KvGroup layers() { return nmc::KvGroup(2, 2, 8).dtype(nmc::KvDtype::fp32); }

/// A cache of two layers with memory of its own.
template <class Mode>
struct Cached {
  std::vector<float> memory;
  nmc::BasicKvCache<Mode> cache;

  explicit Cached(nmc::KvConfig config) {
    memory.resize(value_of(nmc::BasicKvCache<Mode>::heap_bytes(nmc::KvConfig(config).group(layers()), 0)) / sizeof(float));
    config.group(layers().memory(memory.data(), memory.size() * sizeof(float)));
    cache = value_of(nmc::BasicKvCache<Mode>::create(config));
  }
};

// ---- values ---------------------------------------------------------------------------------------------------------------

void configs() {
  promise("configs and options fill the C structs");
  nmc::KvConfig config(5);
  config.max_total_tokens(6).tokens_per_block(7).capacity_blocks(8).max_sequences(9).window(10);
  config.eviction(nmc::Evict::priority).when_full(nmc::KvWhenFull::shorten).hash(nmc::KvHash::sha256);
  config.hash_secret("secret").event_capacity(11).heap_offset(12).no_prefix().virtual_memory(13, nmc::HeapKind::cuda, 14);
  config.group(nmc::KvGroup(1, 2, 3).order(nmc::KvOrder::block_major).sides(nmc::KvSides::per_layer).window(15, 16));
  config.group(nmc::KvGroup::mla(1, 4).raw(8)).group(nmc::KvGroup::recurrent(2, 17, 18).state_every(19));
  const nmc::KvConfig copy = config;
  const nmc_kv_config_t c = copy.c();
  CHECK(c.struct_size == sizeof c && c.abi_version == NMC_ABI_VERSION && c.total_blocks == 5 && c.max_total_tokens == 6);
  CHECK(c.tokens_per_block == 7 && c.capacity_blocks == 8 && c.max_sequences == 9 && c.window == 10);
  CHECK(c.eviction == NMC_EVICT_PRIORITY && c.when_full == NMC_KV_WHEN_FULL_SHORTEN && c.hash == NMC_KV_HASH_SHA256);
  CHECK(c.hash_secret.len == 6 && c.event_capacity == 11 && c.heap_offset == 12 && c.max_sequence_tokens == 13);
  CHECK(c.flags == (NMC_KV_NO_PREFIX | NMC_KV_VIRTUAL) && c.heap_kind == NMC_HEAP_CUDA && c.device == 14);
  CHECK(config.no_prefix(false).c().flags == NMC_KV_VIRTUAL && config.total_blocks(20).c().total_blocks == 20);
  CHECK(c.n_groups == 3 && c.groups[0].order == NMC_KV_BLOCK_MAJOR && c.groups[0].sides == NMC_KV_SIDES_PER_LAYER);
  CHECK(c.groups[0].window == 15 && c.groups[0].blocks == 16 && c.groups[1].kind == NMC_KV_KIND_MLA);
  CHECK(c.groups[1].element_bytes == 8 && c.groups[2].state_bytes == 17 && c.groups[2].state_every == 19);

  const std::vector<nmc_kv_hash_t> hashes(3);
  nmc::KvOpen open;
  open.contiguous().unshared().match_all().priority(3).ttl(std::chrono::seconds(4)).salt("salt").name("name").hashes(hashes);
  const nmc_kv_open_t o = open.c();
  CHECK(o.flags == (NMC_KV_OPEN_CONTIGUOUS | NMC_KV_OPEN_PRIVATE | NMC_KV_OPEN_MATCH_ALL) && o.priority == 3);
  CHECK(o.ttl_ms == 4000 && o.salt.len == 4 && o.name.len == 4 && o.n_hashes == 3 && o.hashes != hashes.data());
  CHECK(open.contiguous(false).match_all(false).c().flags == NMC_KV_OPEN_PRIVATE);
  CHECK(nmc::KvOpen().c().hashes == nullptr && nmc::KvOpen().hashes({}).c().hashes != nullptr);  // none, and none that is known
  CHECK(nmc::KvAfter().c().kind == NMC_KV_AFTER_NOTHING && nmc::KvAfter::event(&open).c().handle == &open);
  CHECK(nmc::KvAfter::stream(nullptr).c().kind == NMC_KV_AFTER_STREAM);
}

size_t count_of(nmc::KvTokens tokens) { return tokens.data() == nullptr ? SIZE_MAX : static_cast<size_t>(tokens.size()); }

void tokens() {
  promise("tokens are any contiguous range of 32-bit numbers, with or without sign, or one");
  const std::vector<int32_t> with_sign = {1, 2, 3};
  std::vector<uint32_t> without = {1, 2, 3};
  const std::array<int32_t, 2> pair = {1, 2};
  const uint32_t raw[] = {1, 2, 3, 4};
  int32_t signed_raw[] = {1, 2, 3, 4};
  CHECK(count_of(with_sign) == 3 && count_of(without) == 3 && count_of(pair) == 2 && count_of(raw) == 4);
  CHECK(count_of(signed_raw) == 4 && count_of({raw, 2}) == 2 && count_of({signed_raw, 3}) == 3 && count_of(without[1]) == 1);
  CHECK(count_of(7) == 1 && count_of(7u) == 1 && *nmc::KvTokens(signed_raw[1]).data() == 2);
  CHECK(count_of(nmc::span<uint32_t>(without)) == 3 && count_of(nmc::span<const int32_t>(pair.data(), 1)) == 1);
  CHECK(nmc::KvTokens(with_sign).data() == reinterpret_cast<const uint32_t*>(with_sign.data()));
  const nmc::KvTokens one = without, same = one;
  CHECK(same.data() == without.data() && same.size() == 3);
  static_assert(!std::is_constructible_v<nmc::KvTokens, const std::vector<int64_t>&> &&
                    !std::is_constructible_v<nmc::KvTokens, const std::vector<uint16_t>&> &&
                    !std::is_constructible_v<nmc::KvTokens, uint64_t> && !std::is_constructible_v<nmc::KvTokens, const char*>,
                "they would be other tokens");
  // None that are known are not the same as none of which nothing is known.
  CHECK(count_of(Tokens()) == 0 && count_of({}) == SIZE_MAX && nmc::KvTokens::unknown(9).size() == 9);
  CHECK(count_of(nmc::KvTokens::unknown(9)) == SIZE_MAX && count_of({static_cast<uint32_t*>(nullptr), 5}) == SIZE_MAX);
}

// ---- sequences ------------------------------------------------------------------------------------------------------------

template <class Mode>
void sequences() {
  using Sequence = nmc::BasicKvSequence<Mode>;
  promise("sequences are closed, aborted, pinned and unpinned with their scopes");
  Cached<Mode> cached(small(64).max_sequences(16));
  nmc::BasicKvCache<Mode>& cache = cached.cache;
  CHECK(cache && cache.tokens_per_block() == kSize);
  const auto used = [&] { return value_of(cache.stats()).used; };
  const Tokens prompt = numbers(0, 10);
  {
    Sequence seq = value_of(cache.open(1, prompt));
    CHECK(seq && seq.id() == 1 && seq.c() == 1 && seq.hit_tokens() == 0 && seq.opened_tokens() == 10);
    CHECK(WORKS(seq.commit(4)));
  }  // aborted
  CHECK(value_of(cache.match(prompt)) == 4 && value_of(cache.stats()).sequences == 0);
  Sequence seq = value_of(cache.open(1, prompt, nmc::KvOpen().name("first")));
  CHECK(seq.hit_tokens() == 4 && value_of(cache.find("first")) == 1 && !value_of(cache.find("second")));
  CHECK(WORKS(seq.append(10)) && WORKS(seq.append(numbers(11, 2))));
  Sequence child = value_of(seq.fork(2));
  CHECK(child.id() == 2 && STATUS(seq.fork(2)) == NMC_ERR_EXISTS);
  const std::vector<nmc_kv_copy_t> copies = value_of(child.take_copies());
  CHECK(copies.size() == 1 && value_of(child.take_copies()).empty() && WORKS(cache.copy_blocks(copies)));
  CHECK(WORKS(child.append(numbers(60, 20), nmc::KvAppend().importance(0.5f))));
  CHECK(value_of(child.drop_least(2, 1, 1)) == 2 && value_of(child.info()).dropped == 2);
  CHECK(WORKS(child.truncate(30)) && WORKS(seq.reserve(40)));
  CHECK(value_of(cache.victims(10)) == std::vector<uint64_t>({2, 1}) && value_of(cache.victims(1)).size() == 1);
  {
    CHECK(WORKS(seq.commit(13)));
    nmc::BasicKvPin<Mode> pin = value_of(seq.pin(8)), other = value_of(seq.pin(4));
    CHECK(pin && pin.tokens() == 8 && pin.c() != other.c());
    CHECK(WORKS(other.unpin()) && !other && STATUS(other.unpin()) == NMC_ERR_BAD_HANDLE);
    CHECK(WORKS(seq.close()) && !seq && used() > 0);
    Sequence moved = std::move(child);
    CHECK(!child && child.id() == 0 && moved.id() == 2);
    CHECK(WORKS(moved.abort()) && used() == 2 && value_of(cache.victims(10)).empty());
    nmc::nothrow::KvPin elsewhere = std::move(pin);  // in the other form, or the same
    CHECK(!pin && elsewhere.tokens() == 8 && used() == 2);
  }
  CHECK(used() == 0 && value_of(cache.clear()) > 0 && value_of(cache.match(prompt)) == 0);
  CHECK(STATUS(seq.append(1)) == NMC_ERR_BAD_HANDLE && STATUS(seq.close()) == NMC_ERR_BAD_HANDLE);

  promise("a full cache answers with how much room there was");
  nmc_kv_room_t room = NMC_KV_ROOM_INIT;
  CHECK(STATUS(cache.open(3, nmc::KvTokens::unknown(1000), {}, &room)) == NMC_ERR_NO_SPACE && room.needed == 250);
  {
    Sequence full = value_of(cache.open(3, nmc::KvTokens::unknown(200)));
    room = NMC_KV_ROOM_INIT;
    const nmc::Result<void> grown = full.nothrow()->append(nmc::KvTokens::unknown(100), &room);
    CHECK(grown.status() == NMC_ERR_NO_SPACE && room.needed == 25 && !grown.message().empty() && full);
    room = NMC_KV_ROOM_INIT;
    CHECK(STATUS(full.append(nmc::KvTokens::unknown(100), nmc::KvAppend(), &room)) == NMC_ERR_NO_SPACE && room.needed == 25);
    CHECK(STATUS(full.reserve(300, &room)) == NMC_ERR_NO_SPACE && STATUS(full.truncate(201, &room)) == NMC_ERR_INVALID_ARG);
    const nmc::Result<Sequence> refused = cache.nothrow()->open(4, numbers(0, 100));  // a result of the other form
    CHECK(refused.status() == NMC_ERR_NO_SPACE && used() == 50);
    nmc::Result<Sequence> fits = cache.nothrow()->open(4, numbers(0, 8));
    CHECK(fits && fits->id() == 4 && used() == 52);
  }
  CHECK(used() == 0 && STATUS(cache.open(9, prompt, nmc::KvOpen().priority(99))) == NMC_ERR_INVALID_ARG);

  promise("a sequence is given away, taken over, and opened under an id of the cache");
  Sequence given = value_of(cache.open(NMC_KV_ID_AUTO, prompt, nmc::KvOpen().name("auto").contiguous()));
  CHECK(given.id() >> 63 == 1 && value_of(given.view(0, nmc::KvSide::k)).contiguous == 1);
  const uint64_t id = given.release();
  CHECK(!given && value_of(cache.find("auto")) == id);
  {
    Sequence taken(cache.get(), id);
    CHECK(taken.id() == id && value_of(taken.info()).tokens == 10);
  }
  CHECK(!value_of(cache.find("auto")) && STATUS(Sequence(cache.get(), id).info()) == NMC_ERR_NOT_FOUND);
  CHECK(STATUS(nmc::BasicKvCache<Mode>().find("auto")) == NMC_ERR_BAD_HANDLE);

  promise("a cache is resized, counted, shown and destroyed");
  CHECK(WORKS(cache.resize(40)) && STATUS(cache.resize(65)) == NMC_ERR_INVALID_ARG && WORKS(cache.audit()));
  CHECK(value_of(cache.group_stats(0)).total == 40 && STATUS(cache.group_stats(1)) == NMC_ERR_INVALID_ARG);
  CHECK(value_of(cache.dump(64)).find("KV blocks: total 40") != std::string::npos);
  CHECK(value_of(cache.dump()).find("TotalBlocks: 40") != std::string::npos);
  CHECK(value_of(cache.dump()).find("KV blocks") == std::string::npos);
  Sequence orphan = value_of(cache.open(1, prompt));
  CHECK(WORKS(cache.destroy()) && !cache && STATUS(cache.stats()) == NMC_ERR_BAD_HANDLE);
}  // and closing what is gone with it does nothing

template <class Mode>
void tables() {
  promise("a step of several sequences: tokens, tables and slots");
  Cached<Mode> cached(small(64));
  nmc::BasicKvCache<Mode>& cache = cached.cache;
  nmc::BasicKvSequence<Mode> one = value_of(cache.open(1, numbers(0, 13))), two = value_of(cache.open(2, numbers(50, 30)));
  const std::vector<uint64_t> ids = {1, 2};
  const std::array<int32_t, 2> next = {5, 6};
  std::vector<nmc_status_t> statuses(2, NMC_ERR_INTERNAL);
  CHECK(WORKS(cache.append_batch(ids, next, statuses)) && statuses == std::vector<nmc_status_t>(2, NMC_OK));
  CHECK(WORKS(cache.append_batch(ids, {})));  // tokens that are not known
  CHECK(value_of(one.info()).tokens == 15 && value_of(two.info()).tokens == 32);
  const uint64_t unknown[] = {1, 77};
  CHECK(STATUS(cache.append_batch(unknown, nmc::KvTokens::unknown(2), statuses)) == NMC_ERR_NOT_FOUND);
  CHECK(statuses[0] == NMC_OK && statuses[1] == NMC_ERR_NOT_FOUND);
  const nmc::Result<void> refused = cache.nothrow()->append_batch(ids, 7);
  CHECK(refused.status() == NMC_ERR_INVALID_ARG && refused.message() == "1 tokens for 2 sequences: give one for each, or none");
  CHECK(STATUS(cache.append_batch(ids, next, {statuses.data(), 1})) == NMC_ERR_INVALID_ARG);

  std::vector<nmc_kv_row_t> rows;
  std::vector<int32_t> table(20);
  CHECK(value_of(cache.table(ids, rows, table, 10, -1)) == 20 && rows.size() == 2 && table[4] == -1 && table[17] >= 0);
  CHECK(value_of(cache.table(ids, rows, table, 10, -1)) == 0);  // only what changed is written
  std::vector<nmc_kv_row_t> offset_rows;
  std::vector<int32_t> offsets(40);
  CHECK(value_of(cache.table(ids, offset_rows, offsets, 10, -1, nmc::KvTable::offsets)) == 40);
  CHECK(STATUS(cache.table(ids, offset_rows, table, 10, -1, nmc::KvTable::offsets)) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(cache.table(ids, rows, table, 0)) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(cache.table(ids, rows, table, 5)) == NMC_ERR_TOO_SMALL);

  const nmc::KvCsr csr = value_of(cache.table_csr(ids));
  CHECK(csr.indptr == std::vector<int32_t>({0, 4, 12}) && csr.indices.size() == 12 && csr.indices[3] == table[3]);
  CHECK(csr.last_page_len == std::vector<int32_t>({4, 4}) && value_of(cache.table_csr({})).indptr.size() == 1);
  std::vector<int32_t> indptr(3), indices(20), last(2);
  CHECK(value_of(cache.table_csr_into(ids, indptr, indices, last)) == 12 && indptr == csr.indptr && last == csr.last_page_len);
  CHECK(std::equal(csr.indices.begin(), csr.indices.end(), indices.begin()));
  CHECK(STATUS(cache.table_csr_into(ids, indptr, {indices.data(), 11}, last)) == NMC_ERR_TOO_SMALL);
  CHECK(STATUS(cache.table_csr_into(ids, last, indices, last)) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(cache.table_csr_into(ids, indptr, indices, {last.data(), 1})) == NMC_ERR_INVALID_ARG);

  const std::vector<int64_t> slots = value_of(cache.slot_mapping(ids));
  CHECK(slots.size() == 2 && slots[0] == int64_t{table[3]} * kSize + 3);
  const uint32_t counts[] = {3, 2};
  std::vector<int64_t> into(6);
  CHECK(value_of(cache.slot_mapping(ids, counts)).size() == 5 && value_of(cache.slot_mapping({})).empty());
  CHECK(value_of(cache.slot_mapping_into(into, ids, counts)) == 5 && into[2] == slots[0] && into[4] == slots[1]);
  CHECK(STATUS(cache.slot_mapping_into({into.data(), 4}, ids, counts)) == NMC_ERR_TOO_SMALL);
  CHECK(STATUS(cache.slot_mapping(ids, {counts, 1})) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(cache.slot_mapping_into(into, ids, {counts, 1})) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(cache.slot_mapping(unknown)) == NMC_ERR_NOT_FOUND);

  const nmc_kv_view_t view = value_of(one.view(1, nmc::KvSide::v));
  CHECK(view.shape[0] == 64 && view.contiguous == 0 && STATUS(one.view(2, nmc::KvSide::k)) == NMC_ERR_INVALID_ARG);
  CHECK(value_of(one.token_address(13, 1, nmc::KvSide::v, 1)) ==
        static_cast<float*>(view.data) + table[3] * view.strides[0] + view.strides[1] + view.strides[2]);
  CHECK(STATUS(one.token_address(16, 1, nmc::KvSide::v, 1)) == NMC_ERR_INVALID_ARG);
}

// ---- prefixes ---------------------------------------------------------------------------------------------------------------

template <class Mode>
void prefixes() {
  promise("blocks are found by tokens and by hashes, and events tell of them");
  nmc::BasicKvCache<Mode> cache = value_of(nmc::BasicKvCache<Mode>::create(small(64).event_capacity(100)));
  const Tokens prompt = numbers(0, 10);
  const std::vector<nmc_kv_hash_t> hashes = value_of(cache.hash(prompt, "salt"));
  CHECK(hashes.size() == 2 && value_of(cache.hash(Tokens())).empty() && value_of(cache.hash(numbers(0, 3))).empty());
  CHECK(STATUS(cache.hash(nmc::KvTokens::unknown(10))) == NMC_ERR_INVALID_ARG);
  CHECK(WORKS(value_of(cache.open(4, nmc::KvTokens::unknown(10), nmc::KvOpen().salt("salt").hashes(hashes))).close()));
  CHECK(value_of(cache.match(prompt, "salt")) == 8 && value_of(cache.match(prompt)) == 0);
  CHECK(value_of(cache.match_hashes(hashes)) == 8 && value_of(cache.match_hashes({hashes.data(), 1})) == 4);
  CHECK(value_of(cache.match_hashes({})) == 0 && value_of(cache.match_hashes(std::vector<nmc_kv_hash_t>(2))) == 0);
  CHECK(STATUS(cache.open(5, prompt, nmc::KvOpen().hashes({hashes.data(), 1}))) == NMC_ERR_INVALID_ARG);
  nmc::BasicKvSequence<Mode> empty = value_of(cache.open(5, Tokens()));
  CHECK(WORKS(empty.append(prompt)) && WORKS(empty.close()));
  CHECK(value_of(cache.match(prompt)) == 8);  // tokens that are known, though there were none at first
  CHECK(value_of(cache.match(std::vector<int32_t>(prompt.begin(), prompt.end()))) == 8);

  uint64_t from = 0, after = 0;
  const nmc::KvEvents events = value_of(cache.events(from));
  CHECK(events.events.size() == 4 && events.lost == 0 && from == 4 && value_of(cache.events(from)).events.empty());
  CHECK(std::memcmp(&events.events[0].hash, &hashes[0], sizeof hashes[0]) == 0);
  const std::vector<nmc_kv_event_t> all = value_of(cache.snapshot(after));
  CHECK(all.size() == 4 && after == from);
  uint64_t first = 0;
  CHECK(value_of(cache.events(first, 3)).events.size() == 3 && first == 3);
  CHECK(value_of(cache.clear()) == 4 && value_of(cache.snapshot(after)).empty());

  promise("a cache that C code has made is taken over");
  const nmc_kv_config_t config = small(8).c();
  nmc_kv_t* made = nullptr;
  REQUIRE(nmc_kv_create(nullptr, &config, &made) == NMC_OK);
  nmc::BasicKvCache<Mode> taken(made, kSize);
  CHECK(value_of(taken.hash(prompt)).size() == 2 && STATUS(nmc::BasicKvCache<Mode>().hash(prompt)) == NMC_ERR_BAD_HANDLE);
  nmc::nothrow::KvCache other = std::move(taken);
  CHECK(!taken && other.tokens_per_block() == kSize && other.hash(prompt)->size() == 2);
}

// ---- groups with blocks of their own ----------------------------------------------------------------------------------------

template <class Mode>
void groups() {
  promise("windows and states have blocks of their own");
  nmc::KvConfig config = small(32);
  config.group(layers()).group(layers().window(8, 16)).group(nmc::KvGroup::recurrent(1, 64, 8));
  nmc::BasicKvCache<Mode> cache = value_of(nmc::BasicKvCache<Mode>::create(config));
  CHECK(value_of(cache.group_stats(1)).total == 16 && value_of(cache.group_stats(2)).own_blocks == 1);
  nmc::BasicKvSequence<Mode> seq = value_of(cache.open(1, numbers(0, 8)));
  const std::array<uint64_t, 1> ids = {1};
  const nmc::KvStateSlots first = value_of(cache.state_slots(ids, 2));
  CHECK(first.reads == std::vector<int32_t>({-1}) && first.writes.size() == 1 && first.writes[0] >= 0);
  CHECK(WORKS(seq.keep_state()) && WORKS(seq.append(8)) && STATUS(seq.keep_state()) == NMC_ERR_INVALID_ARG);
  const nmc::KvStateSlots next = value_of(cache.state_slots(ids, 2));
  CHECK(next.reads[0] == first.writes[0] && next.writes[0] != next.reads[0]);
  CHECK(STATUS(cache.state_slots(ids, 0)) == NMC_ERR_INVALID_ARG);
  CHECK(value_of(cache.table_csr(ids, 1)).indices.size() == 3 && WORKS(seq.abort()));
  CHECK(value_of(cache.match(numbers(0, 10))) == 8);
}

// ---- copies -----------------------------------------------------------------------------------------------------------------

template <class Mode>
void copies() {
  promise("blocks are gathered, scattered and copied");
  Cached<Mode> cached(small(4));
  std::iota(cached.memory.begin(), cached.memory.end(), 0.0f);
  const size_t block = cached.memory.size() / 4;
  std::vector<float> packed(2 * block), again(2 * block);
  const uint64_t bytes = packed.size() * sizeof(float);
  const std::vector<int32_t> odd = {3, 1};
  const int32_t even[] = {0, 2};
  nmc::BasicKvCache<Mode>& cache = cached.cache;
  CHECK(WORKS(cache.gather(odd, packed.data(), bytes)) && packed[0] != packed[block]);
  CHECK(WORKS(cache.scatter(even, packed.data(), bytes, nullptr, 0)) && WORKS(cache.gather(even, again.data(), bytes)));
  CHECK(again == packed);
  CHECK(WORKS(cache.copy_blocks({nmc::kv_copy(1, 0)})) && WORKS(cache.copy_blocks({nmc::kv_copy(3, 2), nmc::kv_copy(1, 0)})));
  CHECK(WORKS(cache.gather(even, again.data(), bytes)) && std::equal(again.begin(), again.begin() + 10, &packed[block]));
  CHECK(STATUS(cache.gather(odd, packed.data(), 1)) == NMC_ERR_TOO_SMALL);
  std::fill(again.begin(), again.end(), 0.0f);
  CHECK(WORKS(cache.gather(even, again)) && again[0] == packed[block] && WORKS(cache.scatter(odd, again, nullptr, 0)));
  CHECK(WORKS(cache.gather(odd, {packed.data(), bytes}, nullptr, NMC_KV_GROUPS_ALL)) && packed == again);
  std::vector<float> short_room(2 * block - 1);
  CHECK(STATUS(cache.gather(odd, short_room)) == NMC_ERR_TOO_SMALL && STATUS(cache.scatter(odd, short_room)) == NMC_ERR_TOO_SMALL);
  CHECK(STATUS(cache.scatter(odd, nmc::span<const float>(packed.data(), block))) == NMC_ERR_TOO_SMALL);
  const nmc_kv_group_t placed = layers().memory(packed).c(), again_placed = layers().memory(packed.data(), bytes).c();
  CHECK(placed.memory == packed.data() && placed.memory_bytes == bytes && again_placed.memory == placed.memory && again_placed.memory_bytes == bytes);
  CHECK(STATUS(cache.scatter({even, 1}, packed.data(), 1)) == NMC_ERR_TOO_SMALL);
  CHECK(STATUS(cache.copy_blocks(std::vector<nmc_kv_copy_t>(2, nmc::kv_copy(1, 0)))) == NMC_ERR_INVALID_ARG);
}

template <class Mode>
void virtual_memory() {
  promise("sequences with addresses of their own");
  nmc::KvConfig config(8);
  config.group(nmc::KvGroup(2, 1, 32).dtype(nmc::KvDtype::fp32).order(nmc::KvOrder::block_major).sides(nmc::KvSides::per_layer));
  CHECK(STATUS(nmc::BasicKvCache<Mode>::page_tokens(config)) == NMC_ERR_INVALID_ARG);
  config.no_prefix().virtual_memory(100);
  config.tokens_per_block(value_of(nmc::BasicKvCache<Mode>::page_tokens(config)));
  CHECK(config.c().tokens_per_block == 8);
  nmc::BasicKvCache<Mode> cache = value_of(nmc::BasicKvCache<Mode>::create(config));
  nmc::BasicKvSequence<Mode> seq = value_of(cache.open(1, Tokens(12, 1)));
  auto* words = static_cast<uint32_t*>(value_of(seq.view(0, nmc::KvSide::k)).data);
  words[0] = 1;
  nmc::BasicKvSequence<Mode> child = value_of(seq.fork(2));
  const std::vector<nmc_kv_copy_t> pages = value_of(child.take_copies());
  CHECK(pages.size() == 1 && pages[0].bytes == 4096);
  auto* theirs = static_cast<uint32_t*>(value_of(child.view(0, nmc::KvSide::k)).data);
  words[1024] = 77;  // in the block that is not full
  CHECK(WORKS(cache.copy_blocks(pages)) && theirs != words && theirs[0] == 1 && theirs[1024] == 77);
  theirs[0] = 2;  // a full block is one memory at two addresses
  CHECK(words[0] == 2);
}

// ---- in a world, and with a store -----------------------------------------------------------------------------------------

template <class Mode>
void in_a_heap() {
  promise("a cache lies in the heap of a rank, and an empty world is none");
  nmc::WorldConfig world_config;
  const std::vector<nmc::BasicWorld<Mode>> worlds =
      value_of(nmc::BasicWorld<Mode>::create_local(world_config.world_size(2).heap_bytes(1 << 20)));
  nmc::KvConfig config = small(20).group(nmc::KvGroup::mla(1, 1).raw(8));
  CHECK(value_of(nmc::BasicKvCache<Mode>::heap_bytes(config)) == 20 * kSize * 8);
  CHECK(value_of(nmc::BasicKvCache<Mode>::heap_bytes(config, 0)) == 20 * kSize * 8);
  CHECK(STATUS(nmc::BasicKvCache<Mode>::heap_bytes(config, 1)) == NMC_ERR_INVALID_ARG);
  const nmc::BasicKvCache<Mode> cache = value_of(nmc::BasicKvCache<Mode>::create(worlds[1], config.heap_offset(4096)));
  CHECK(value_of(cache.group_stats(0)).heap_offset == 4096);
  CHECK(STATUS(nmc::BasicKvCache<Mode>::create(nmc::BasicWorld<Mode>(), config)) == NMC_ERR_BAD_HANDLE);
  CHECK(STATUS(nmc::BasicKvCache<Mode>::create(config)) == NMC_ERR_INVALID_ARG);  // an offset in no heap
}

template <class Mode>
void with_a_store() {
  promise("blocks go to a store and come back");
  const nmc::BasicStore<Mode> store = value_of(
      nmc::BasicStore<Mode>::embedded(nmc::StoreConfig().heap_bytes(4 << 20).page_bytes(4096).checksums()));
  Cached<Mode> cached(small(32).when_full(nmc::KvWhenFull::move_sequence));
  nmc::BasicKvCache<Mode>& cache = cached.cache;
  const Tokens prompt = numbers(0, 18);
  nmc::BasicKvSequence<Mode> seq = value_of(cache.open(1, prompt));
  CHECK(STATUS(seq.offload(16)) == NMC_ERR_INVALID_ARG && STATUS(seq.onboard()) == NMC_ERR_INVALID_ARG);  // no store yet
  CHECK(STATUS(cache.attach(nmc::BasicStore<Mode>())) == NMC_ERR_BAD_HANDLE);
  CHECK(WORKS(cache.attach(store)) && STATUS(cache.attach(store)) == NMC_ERR_EXISTS);
  CHECK(WORKS(cache.move_after(nmc::KvAfter())));
  CHECK(!value_of(seq.onboard()));  // the store has nothing: no ticket
  *static_cast<float*>(value_of(seq.token_address(15, 1, nmc::KvSide::v, 1))) = 0.25f;
  CHECK(WORKS(seq.commit(18)));
  const uint64_t offload = value_of(seq.offload(18));
  nmc_kv_progress_t progress = NMC_KV_PROGRESS_INIT;
  while (!value_of(cache.wait(offload, nmc::default_timeout, &progress))) {
  }
  CHECK(progress.tokens == 16 && progress.tokens_done == 16 && value_of(seq.info(NMC_KV_SEQ_STORED)).stored_tokens == 16);
  CHECK(STATUS(cache.poll(offload)) == NMC_ERR_NOT_FOUND && STATUS(cache.wait(offload)) == NMC_ERR_NOT_FOUND);
  CHECK(STATUS(cache.cancel(offload)) == NMC_ERR_NOT_FOUND);
  CHECK(WORKS(seq.close()) && value_of(cache.clear()) > 0);
  std::fill(cached.memory.begin(), cached.memory.end(), -1.0f);

  seq = value_of(cache.open(2, prompt));
  CHECK(seq.hit_tokens() == 0);
  const std::optional<nmc::KvOnboard> fetch = value_of(seq.onboard());
  REQUIRE(fetch && fetch->ticket != 0 && fetch->tokens == 16);
  while (!value_of(cache.poll(fetch->ticket, &progress))) {
  }
  CHECK(progress.tokens_done == 16 && value_of(seq.info()).computed_tokens == 16);
  CHECK(*static_cast<float*>(value_of(seq.token_address(15, 1, nmc::KvSide::v, 1))) == 0.25f);

  // What is cancelled ends as cancelled, or was quicker.
  nmc::BasicKvSequence<Mode> third = value_of(cache.open(3, numbers(500, 40)));
  CHECK(WORKS(third.commit(40)));
  const uint64_t cancelled = value_of(third.offload(40));
  CHECK(WORKS(cache.cancel(cancelled)));
  nmc::Result<bool> over = false;
  do over = cache.nothrow()->wait(cancelled);
  while (over && !*over);
  CHECK(over.ok() || over.status() == NMC_ERR_CANCELLED);
}

// ---- by request id ------------------------------------------------------------------------------------------------------------

template <class Mode>
void by_request() {
  promise("requests are known by name in the simple form");
  nmc::KvConfig config(32);
  const nmc::BasicKvCache<Mode> cache = value_of(nmc::BasicKvCache<Mode>::create(config.group(layers())));
  const nmc::KvByRequest requests(cache);
  CHECK(requests.allocateFor("req_001", 512 / 4) && !requests.allocateFor("req_001", 1));
  CHECK(requests.usedTokens("req_001") == 128 && requests.usedTokens("req_002") == 0);
  CHECK(requests.getNumAllocatedSequences() == 1);  // asking makes none
  std::vector<nmc_kv_copy_t> moved;
  CHECK(requests.appendToken("req_001", &moved) && moved.empty() && requests.usedTokens("req_001") == 129);
  CHECK(requests.getTokenOffsetInBlock("req_001") == 1 && requests.getKView("req_001", 1).shape[0] == 9);
  CHECK(requests.getVView("req_001", 1).contiguous == 1 && requests.getVView("other", 0).shape[0] == 0);
  const uint64_t block = 2 * 2 * 16 * 2 * 8 * 4;
  CHECK(requests.getTotalAllocated() == 9 * block && requests.getTotalFree() == 23 * block && !requests.isFull());
  CHECK(requests.getFragmentation() == 0);
  std::ostringstream out;
  requests.dumpCacheStats(out);
  requests.dumpBlockMap(out);
  CHECK(out.str().find("Used: 9 blocks") != std::string::npos && out.str().find("XXXXXXXXX.") != std::string::npos);
  CHECK(requests.freeFor("req_001") && !requests.freeFor("req_001") && !requests.appendToken("req_001"));
  CHECK(value_of(cache.stats()).free == 32);
}

template <class Mode>
void cases(const char* form) {
  printf("%s\n", form);
  sequences<Mode>();
  tables<Mode>();
  prefixes<Mode>();
  groups<Mode>();
  copies<Mode>();
  virtual_memory<Mode>();
  in_a_heap<Mode>();
  with_a_store<Mode>();
  by_request<Mode>();
}

}  // namespace

int main() {
  configs();
  tokens();
#if NMC_HPP_EXCEPTIONS
  cases<nmc::Throwing>("nmc");
#endif
  cases<nmc::Returning>("nmc::nothrow");
  return finish();
}
