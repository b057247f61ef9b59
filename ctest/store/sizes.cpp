// The seed's first test: values of 64 KB to 8 MB, with checksums, at random sizes and around the page boundaries, put and
// read back in every way; and what a damaged byte does.
// usage: store_sizes [SEED]

#include "../support/random.hpp"
#include "../support/store_check.hpp"

namespace {

// Each byte takes long under valgrind: there values end at a page more than the largest pages.
constexpr size_t kLeast = 64 << 10;
const size_t kMost = under_tool_named("valgrind") ? (2 << 20) + (256 << 10) : 8 << 20;

void round_trip(nmc_store_t* store, uint64_t number, size_t size, uint64_t kind) {
  const std::string key = "object/" + std::to_string(number), value = value_of(number, size);
  // Both sides are unaligned, and the ends are where they can be seen.
  Guarded from(size), to(size);
  memcpy(from.data(), value.data(), size);
  if (kind % 3 == 0) {
    OK(nmc_store_put(store, bytes_of(key), from.data(), size, nullptr));
  } else if (kind % 3 == 1) {
    const size_t cut = (number * 7919) % size;
    const nmc_slice_t slices[2] = {{from.data(), cut}, {from.data() + cut, size - cut}};
    OK(nmc_store_put_slices(store, bytes_of(key), slices, 2, nullptr));
  } else {
    nmc_write_plan_t plan{};
    if (!OK(nmc_store_open_for_write(store, bytes_of(key), size, nullptr, &plan))) return;
    std::vector<nmc_extent_t> runs(plan.n_extents);
    size_t n = 0, at = 0;
    OK(nmc_store_plan_extents(store, &plan, runs.data(), runs.size(), &n));
    for (const nmc_extent_t& run : runs) {
      memcpy(run.ptr, from.data() + at, run.bytes);
      at += run.bytes;
    }
    CHECK(at == size);
    OK(nmc_store_commit(store, &plan));
  }
  CHECK(from.text() == value && from.zones_intact());
  OK(nmc_store_get_into(store, bytes_of(key), to.data(), size));
  CHECK(to.text() == value && to.zones_intact());
  const size_t offset = (number * 104729) % size, bytes = 1 + (number * 31) % (size - offset);
  Guarded part(bytes);
  OK(get_range(store, bytes_of(key), offset, part.data(), bytes));
  CHECK(part.text() == std::string_view(value).substr(offset, bytes) && part.zones_intact());
}

void damaged(nmc_store_t* store, size_t size) {
  OK(put(store, "damaged", value_of(1, size)));
  nmc_view_t view{};
  if (!OK(nmc_store_pin(store, slice_of("damaged"), &view))) return;
  std::vector<nmc_extent_t> runs(view.n_extents);
  size_t n = 0;
  OK(nmc_store_view_extents(store, &view, runs.data(), runs.size(), &n));
  char* last = static_cast<char*>(runs.back().ptr) + runs.back().bytes - 1;
  *last = static_cast<char>(*last ^ 1);  // a stray store of this process
  Guarded to(size);
  GIVES(nmc_store_get_into(store, slice_of("damaged"), to.data(), size), NMC_ERR_CORRUPT);
  OK(get_range(store, slice_of("damaged"), 0, to.data(), 1000));  // other pages are fine
  *last = static_cast<char>(*last ^ 1);
  OK(nmc_store_get_into(store, slice_of("damaged"), to.data(), size));
  OK(nmc_store_unpin(store, &view));
  OK(nmc_store_remove(store, slice_of("damaged")));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = under_tool() ? 1 : 60;
  Random random(argc > 1 ? strtoull(argv[1], nullptr, 0) : 20260101);
  uint64_t number = 0;
  for (uint32_t page : {4u << 10, 256u << 10, 2u << 20}) {
    promise("values_of_64_kb_to_8_mb_are_read_back_as_they_were_with_checksums");
    StoreSetup setup;
    setup.page_bytes = page;
    setup.pages = (24 << 20) / page;
    setup.flags = NMC_STORE_CHECKSUMS;
    setup.eviction = NMC_EVICT_LRU;
    Embedded store(setup);
    std::vector<size_t> sizes = {kLeast, kLeast - 1, kLeast + 1, kMost, kMost - 1};
    for (size_t pages : {size_t{1}, size_t{3}}) {
      for (int step : {-1, 0, 1}) sizes.push_back(pages * page + static_cast<size_t>(step + 1) - 1);
    }
    for (int i = 0; i < rounds; ++i) {
      const size_t any = kLeast + random() % (kMost - kLeast);
      sizes.push_back(i % 2 == 0 ? any : any / page * page + 1 - random() % 3);
    }
    for (size_t size : sizes) {
      if (size == 0 || size > kMost) continue;
      const int before = failed_checks;
      round_trip(store, ++number, size, random());
      if (failed_checks != before) printf("     page %u, size %zu, object %d\n", page, size, static_cast<int>(number));
    }
    CHECK(rounds == 1 || stats_of(store).evict_count > 0);
    promise("a_damaged_byte_is_noticed");
    damaged(store, 3 * page + 5);
  }
  return finish();
}
