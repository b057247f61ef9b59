// nanomc/store.hpp: every function in both forms, from one body; without exceptions (store_wrapper_noexc.cpp) in the only one.
#include <poll.h>

#include <atomic>
#include <map>
#include <thread>

#include "../support/check.h"
#include "../support/forms.hpp"
#include "nanomc/store.hpp"

#define WORKS(...) (STATUS(__VA_ARGS__) == NMC_OK)

namespace {

using namespace std::string_view_literals;

constexpr uint32_t kPage = 4096;

nmc::StoreConfig small(uint64_t pages = 64) { return nmc::StoreConfig().heap_bytes(pages * kPage).page_bytes(kPage); }

template <class T>
std::string_view text(nmc::span<T> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void configs() {
  promise("configs_and_options_fill_the_c_structs");
  const nmc_store_config_t c = nmc::StoreConfig()
                                   .heap_bytes(1)
                                   .heap_offset(2)
                                   .key_slab_bytes(3)
                                   .page_bytes(4)
                                   .max_objects(5)
                                   .pin_slots(6)
                                   .eviction(nmc::Evict::s3fifo)
                                   .checksums()
                                   .huge_pages()
                                   .master_rank(7)
                                   .watermarks(8, 9)
                                   .watchdog(std::chrono::seconds(10))
                                   .world_size(11)
                                   .heap_kind(nmc::HeapKind::cuda)
                                   .device(12)
                                   .attach_timeout(std::chrono::milliseconds(13))
                                   .call_timeout(std::chrono::milliseconds(14))
                                   .c();
  CHECK(c.struct_size == sizeof c && c.abi_version == NMC_ABI_VERSION && c.heap_bytes == 1 && c.heap_offset == 2);
  CHECK(c.key_slab_bytes == 3 && c.page_bytes == 4 && c.max_objects == 5 && c.pin_slots == 6 && c.eviction == NMC_EVICT_S3FIFO);
  CHECK(c.flags == NMC_STORE_CHECKSUMS && c.heap_flags == NMC_HEAP_HUGE_PAGES && c.master_rank == 7 && c.low_permille == 8 && c.high_permille == 9 && c.watchdog_ms == 10000);
  CHECK(c.world_size == 11 && c.heap_kind == NMC_HEAP_CUDA && c.device == 12 && c.attach_timeout_ms == 13);
  int lent = 0;
  CHECK(nmc::StoreConfig().lend_host_ptr(&lent).c().heap_import.ptr == &lent && nmc::StoreConfig().lend_host_fd(5).c().heap_import.fd == 5);
  CHECK(nmc::StoreConfig().lend_cuda_ptr(&lent).c().heap_import.kind == NMC_IMPORT_CUDA_PTR);
  std::vector<uint64_t> all(5);
  const nmc_store_config_t whole = nmc::StoreConfig().heap_offset(8).lend_host_ptr(all).c();
  CHECK(whole.heap_import.kind == NMC_IMPORT_HOST_PTR && whole.heap_import.ptr == all.data() && whole.heap_bytes == 40 && whole.heap_offset == 0);
  const nmc_store_config_t device = nmc::StoreConfig().lend_cuda_ptr({all.data(), 16}).c();
  CHECK(device.heap_import.kind == NMC_IMPORT_CUDA_PTR && device.heap_import.ptr == all.data() && device.heap_bytes == 16);
  CHECK(nmc::StoreConfig().lend_cuda_fd(6).c().heap_import.kind == NMC_IMPORT_CUDA_FD && c.heap_import.kind == NMC_IMPORT_NONE);
  CHECK(c.call_timeout_ms == 14 && nmc::StoreConfig().checksums().checksums(false).c().flags == 0);
  CHECK(STATUS(nmc::nothrow::Store::embedded(small().watchdog(std::chrono::hours(24 * 365)))) == NMC_ERR_INVALID_ARG);
  const nmc_put_options_t o = nmc::PutOptions()
                                  .on_rank(3)
                                  .any_rank()
                                  .contiguous()
                                  .replace()
                                  .retain(nmc::Retain::soft)
                                  .priority(2)
                                  .ttl(std::chrono::seconds(1))
                                  .wait(std::chrono::seconds(2))
                                  .c();
  CHECK(o.wait_ms == 2000 && nmc::PutOptions().wait(nmc::default_timeout).c().wait_ms == -1);
  CHECK(o.preferred_segment == 3 && o.flags == 7 && o.retain == NMC_RETAIN_SOFT && o.priority == 2 && o.ttl_ms == 1000);

  promise("bytes_are_made_from_what_programs_have");
  const std::vector<float> floats(3);
  const std::array<uint16_t, 2> shorts{};
  std::string string = "abc";
  CHECK(nmc::Key("abc").len == 3 && nmc::Bytes(string).ptr == string.data() && nmc::Bytes(floats).len == 12);
  CHECK(nmc::Bytes(shorts).len == 4 && nmc::Bytes(std::string_view("ab\0c", 4)).len == 4 && nmc::Bytes().ptr == nullptr);
  CHECK(nmc::Bytes(nmc::span<const float>(floats.data(), 2)).len == 8 && nmc::MutableBytes(string).len == 3);
  CHECK(nmc::Bytes(&string[1], 2).ptr == &string[1] && nmc::Key(static_cast<const char*>(nullptr)).len == 0);
  static_assert(std::is_convertible_v<const char*, nmc::Key> && std::is_convertible_v<char (&)[8], nmc::Key>,
                "a key is text");
  static_assert(!std::is_constructible_v<nmc::Bytes, const char*> && !std::is_constructible_v<nmc::Bytes, char (&)[8]> &&
                    !std::is_constructible_v<nmc::Bytes, const char (&)[8]>,
                "a value would end at its first zero");
  static_assert(!std::is_constructible_v<nmc::MutableBytes, const std::string&>, "it would be written to");
  static_assert(!std::is_constructible_v<nmc::Bytes, const std::vector<std::string>&>, "those are no plain data");
}

template <class Mode>
void whole_arrays() {
  promise("an_array_is_stored_as_all_of_its_bytes");
  nmc::BasicStore<Mode> store = value_of(nmc::BasicStore<Mode>::embedded(small()));
  char page[kPage] = {'p'};
  page[kPage - 1] = 'q';
  CHECK(WORKS(store.put("page", nmc::bytes(page))));
  CHECK(value_of(store.get("page")).text() == std::string_view(page, kPage));
  const nmc::Batch put = store.put_batch({"one", "two"}, {nmc::bytes(page), nmc::bytes("ab")});
  CHECK(put.ok() && value_of(store.size("one")) == kPage && value_of(store.size("two")) == 3);
}

template <class Mode>
void reads_and_writes() {
  promise("every_read_and_write_once");
  nmc::BasicStore<Mode> store = value_of(nmc::BasicStore<Mode>::embedded(small()));
  const std::string value(10000, 'v');
  const std::vector<uint32_t> numbers = {1, 2, 3};
  CHECK(WORKS(store.put("k", value)) && WORKS(store.put("n", numbers)) && WORKS(store.put("empty", ""sv)));
  CHECK(STATUS(store.put("k", "other"sv)) == NMC_ERR_EXISTS && STATUS(store.put("", "x"sv)) == NMC_ERR_INVALID_ARG);
  CHECK(WORKS(store.put_slices("s", {"one "sv, value, numbers})) && value_of(store.size("s")) == 10016);
  CHECK(WORKS(store.put_strided("rows", value.data(), 10, 100, 1000)) && value_of(store.size("rows")) == 1000);
  nmc::Buffer got = value_of(store.get("k"));
  CHECK(got.text() == value && got.size() == 10000 && got[9999] == std::byte{'v'} && got.end() - got.begin() == 10000);
  CHECK(value_of(store.get("empty")).empty());
  const nmc::Result<nmc::Buffer> missing = store.nothrow()->get("none");
  CHECK(!missing && missing.status() == NMC_ERR_NOT_FOUND && missing.message().find("none") != std::string::npos);
  CHECK(STATUS(store.get("none")) == NMC_ERR_NOT_FOUND && STATUS(store.pin("none")) == NMC_ERR_NOT_FOUND);
  std::vector<uint32_t> back(3);
  CHECK(value_of(store.get_into("n", back)) == 12 && back == numbers);
  std::fill(back.begin(), back.end(), 0);
  CHECK(value_of(store.get_into("n", nmc::span<uint32_t>(back.data(), back.size()))) == 12 && back == numbers);
  CHECK(STATUS(store.get_into("n", nmc::MutableBytes(back.data(), 11))) == NMC_ERR_INVALID_ARG);
  CHECK(value_of(store.get_range("n", 4, nmc::MutableBytes(back.data(), 4))) == 4 && back[0] == 2);
  std::string left(4, ' '), right(6, ' ');
  CHECK(value_of(store.get_slices("s", 0, {left, right})) == 10 && left + right == "one vvvvvv");
  std::string grid(30, '.');
  CHECK(value_of(store.get_strided("k", 0, grid.data(), 3, 2, 10)) == 6 && grid == "vv........vv........vv........");
  // Of memory whose size is known, rows that it has not are refused; the last one ends before the next would begin.
  grid.assign(22, '.');
  CHECK(value_of(store.get_strided("k", 0, grid, 3, 2, 10)) == 6 && grid == "vv........vv........vv");
  grid.assign(21, '.');
  CHECK(STATUS(store.get_strided("k", 0, grid, 3, 2, 10)) == NMC_ERR_INVALID_ARG && grid == std::string(21, '.'));
  CHECK(STATUS(store.get_strided("k", 0, grid, 1, 22, 0)) == NMC_ERR_INVALID_ARG && STATUS(store.get_strided("k", 0, grid, SIZE_MAX, 2, 2)) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(store.get_strided("k", 0, nmc::MutableBytes(), 1, 1, 1)) == NMC_ERR_INVALID_ARG && value_of(store.get_strided("k", 0, nmc::MutableBytes(), 9, 0, 0)) == 0);
  CHECK(WORKS(store.put_strided("rows 2", nmc::Bytes(value.data(), 9100), 10, 100, 1000)) && value_of(store.size("rows 2")) == 1000);
  CHECK(STATUS(store.put_strided("rows 3", nmc::Bytes(value.data(), 9099), 10, 100, 1000)) == NMC_ERR_INVALID_ARG && !value_of(store.exists("rows 3")));
  CHECK(WORKS(store.put_strided("rows 3", numbers, 1, 12, 0)) && STATUS(store.put_strided("rows 4", value, 2, 10000, SIZE_MAX)) == NMC_ERR_INVALID_ARG);
  CHECK(store.nothrow()->put_strided("rows 4", numbers, 4, 4, 4).message() == "12 bytes have no room for 4 rows of 4 bytes, 4 bytes apart");
  CHECK(value_of(store.remove("rows 2")) && value_of(store.remove("rows 3")));
  CHECK(value_of(store.exists("k")) && !value_of(store.exists("none")));
  CHECK(value_of(store.state("none")) == nmc::ObjectState::absent);
  CHECK(value_of(store.location("k"))->bytes_total == 10000);
  CHECK(value_of(store.match_prefix({"k", "n", "none", "s"})) == 2);
  std::map<std::string, uint64_t> seen;
  CHECK(value_of(store.for_each([&](std::string_view key, uint64_t bytes) { seen.emplace(key, bytes); })) == 5);
  CHECK(seen.size() == 5 && seen["k"] == 10000 && seen["empty"] == 0);
  size_t called = 0;
  CHECK(value_of(store.for_each([&](std::string_view, uint64_t) { return ++called < 2; })) == 2 && called == 2);

  promise("a_key_that_may_be_missing_is_found_or_not");
  CHECK(value_of(store.find("k"))->size() == 10000 && value_of(store.get_if("k"))->text() == value);
  CHECK(value_of(store.find_partial("k", 1))->n_pages() == 3);
  CHECK(!value_of(store.find("none")) && !value_of(store.find_partial("none", 1)) && !value_of(store.get_if("none")));
  CHECK(!value_of(store.consume_if("none")) && !value_of(store.size("none")) && !value_of(store.location("none")));
  CHECK(STATUS(nmc::BasicStore<Mode>().find("k")) == NMC_ERR_BAD_HANDLE);
  CHECK(STATUS(nmc::BasicStore<Mode>().get_if("k")) == NMC_ERR_BAD_HANDLE);

  promise("what_is_said_of_an_object_is_read_by_its_key_and_from_a_view");
  const std::vector<uint16_t> shape = {2, 3};
  CHECK(WORKS(store.put("said", value, nmc::PutOptions().metadata(shape))));
  CHECK(value_of(store.metadata("said"))->size() == 4 && value_of(store.metadata("k"))->empty());
  CHECK(std::memcmp(value_of(store.metadata("said"))->data(), shape.data(), 4) == 0);
  CHECK(value_of(value_of(store.pin("said")).metadata()).size() == 4);
  CHECK(!value_of(store.metadata("none")));
  const std::vector<nmc::Bytes> each = {"one"sv, ""sv};
  CHECK(store.put_batch({"m1", "m2"}, {value, value}, nmc::PutOptions().metadata_each(each)).ok());
  CHECK(value_of(store.metadata("m1"))->text() == "one" && value_of(store.metadata("m2"))->empty());
  const nmc::Batch few = store.put_batch({"m3", "m4", "m5"}, {value, value, value}, nmc::PutOptions().metadata_each(each));
  CHECK(few.status() == NMC_ERR_INVALID_ARG && few.message().find("3 keys do not go with 2 others") != std::string::npos);
  CHECK(store.open_batch({"m3"}, {8}, nmc::PutOptions().metadata_each({})).status() == NMC_ERR_INVALID_ARG);

  promise("one_consumer_gets_an_object_and_a_view_is_verified");
  {
    nmc::BasicView<Mode> taken = value_of(store.consume("said"));
    CHECK(taken.size() == value.size() && taken.page(0).size() == kPage);
    CHECK(STATUS(store.consume("said")) == NMC_ERR_NOT_FOUND && !value_of(store.consume_if("said")));
    CHECK(!value_of(store.exists("said")));
    CHECK(STATUS(taken.verify()) == NMC_ERR_UNSUPPORTED);
  }
  nmc::BasicStore<Mode> checked = value_of(nmc::BasicStore<Mode>::embedded(small().checksums()));
  CHECK(WORKS(checked.put("k", value)) && value_of(value_of(checked.pin("k")).verify()));
  CHECK(store.remove_batch({"m1", "m2"}).ok());

  promise("get_is_right_while_the_object_changes_its_size");
  const nmc::PutOptions kept = nmc::PutOptions().replace().retain(nmc::Retain::hard);
  CHECK(WORKS(store.put("changing", std::string(1, '1'), kept)));
  std::thread writer([&] {
    for (int i = 0; i < 500; ++i) {
      const size_t size = i % 5 == 0 ? 0 : static_cast<size_t>(i * 37 % 9000);
      CHECK(WORKS(store.put("changing", std::string(size, static_cast<char>('0' + size % 10)), kept)));
    }
  });
  for (int i = 0; i < 500; ++i) {
    const nmc::Result<nmc::Buffer> read = store.nothrow()->get("changing");
    if (!CHECK(read.ok())) break;
    const std::string_view all = read.value().text();
    CHECK(all == std::string(all.size(), static_cast<char>('0' + all.size() % 10)));
  }
  writer.join();

  promise("keeping_and_removing");
  CHECK(value_of(store.touch("k")) && !value_of(store.touch("none")));
  CHECK(WORKS(store.retain("k", nmc::Retain::hard)) && WORKS(store.evict_until_below(0, 0)));
  CHECK(value_of(store.exists("k")) && !value_of(store.exists("n")));
  CHECK(value_of(store.remove("k")) && !value_of(store.remove("k")));
  CHECK(WORKS(store.put("p/1", "x"sv)) && WORKS(store.put("p/2", "x"sv)) && WORKS(store.put("q", "x"sv)));
  CHECK(value_of(store.remove_by_prefix("p/")) == 2 && WORKS(store.remove_all()) && !value_of(store.exists("q")));

  promise("namespaces");
  const nmc::BasicStore<Mode> space = value_of(store.namespace_("model", 2 * kPage));
  CHECK(WORKS(space.put("k", "own"sv)) && !value_of(store.exists("k")));
  CHECK(value_of(value_of(store.namespace_("model")).get("k")).text() == "own");
  CHECK(STATUS(space.put("big", std::string(3 * kPage, 'x'))) == NMC_ERR_NO_SPACE);
  CHECK(value_of(store.retry_hint(0)).struct_size == sizeof(nmc_retry_hint_t));
  CHECK(STATUS(store.retry_hint(1)) == NMC_ERR_INVALID_ARG);

  promise("numbers_and_pictures");
  const nmc::StoreStats stats = value_of(store.stats());
  CHECK(stats.ranks.size() == 1 && stats.bytes_total == 64 * kPage && stats.puts > 3 && stats.master_up == 1);
  CHECK(value_of(store.prometheus()).find("nanomc_store_puts_total") != std::string::npos);
  CHECK(value_of(store.dump()).find('#') != std::string::npos && WORKS(store.dump(20)));
}

template <class Mode>
void plans_and_views() {
  promise("a_plan_is_given_up_with_its_scope_unless_it_was_committed");
  nmc::BasicStore<Mode> store = value_of(nmc::BasicStore<Mode>::embedded(small()));
  {
    nmc::BasicWritePlan<Mode> plan = value_of(store.open_for_write("k", 5000));
    CHECK(plan && !plan.committed() && plan.size() == 5000 && plan.n_pages() == 2 && plan.contiguous());
    CHECK(plan.page(0).size() == kPage && plan.page(1).size() == 904 && plan.page(2).empty());
    CHECK(plan.page(1).data() == plan.data() + kPage && plan.extents().size() == 1 && plan.extents()[0].bytes == 5000);
    CHECK(plan.dst_rank() == 0 && plan.epoch() != 0 && plan.page_bytes() == kPage && plan.device_data() == nullptr);
    CHECK(STATUS(plan.commit_async(nullptr)) == NMC_ERR_UNSUPPORTED && !plan.committed());
    CHECK(value_of(store.state("k")) == nmc::ObjectState::writing);
    CHECK(STATUS(store.get("k")) == NMC_NOT_READY && STATUS(store.pin("k")) == NMC_NOT_READY);
    CHECK(STATUS(store.get_into("k", nmc::MutableBytes(nullptr, 0))) == NMC_NOT_READY);
    CHECK(!value_of(store.find("k")) && !value_of(store.get_if("k")) && !value_of(store.size("k")));
  }
  CHECK(value_of(store.state("k")) == nmc::ObjectState::absent);
  {
    nmc::BasicWritePlan<Mode> plan = value_of(store.open_for_write("k", 5000));
    std::memset(plan.page(0).data(), 'a', kPage);
    CHECK(WORKS(plan.publish_pages(1)));
    nmc::BasicView<Mode> part = value_of(store.pin_partial("k", 1));
    CHECK(value_of(part.ready_pages()) == 1 && text(part.page(0)).front() == 'a');
    std::memset(plan.page(1).data(), 'b', 904);
    nmc::BasicWritePlan<Mode> moved = std::move(plan);
    CHECK(!plan && WORKS(moved.commit()) && moved.committed() && WORKS(moved.commit()));
    CHECK(STATUS(moved.abort()) == NMC_ERR_INVALID_ARG && value_of(part.ready_pages()) == 2);
    moved = nmc::BasicWritePlan<Mode>();
  }
  CHECK(value_of(store.get("k")).text() == std::string(kPage, 'a') + std::string(904, 'b'));
  nmc_write_plan_t c_plan{};
  REQUIRE(nmc_store_open_for_write(store.get(), nmc::Key("c"), 3, nullptr, &c_plan) == NMC_OK);
  (void)value_of(nmc::BasicWritePlan<Mode>::adopt(store.get(), c_plan));
  CHECK(value_of(store.state("c")) == nmc::ObjectState::absent);  // what C code opened is given up, too
  nmc::BasicWritePlan<Mode> aborted = value_of(store.open_for_write("a", 10));
  CHECK(WORKS(aborted.abort()) && !aborted && STATUS(aborted.commit()) == NMC_ERR_BAD_HANDLE);

  promise("a_view_is_unpinned_with_its_scope");
  {
    nmc::BasicView<Mode> view = value_of(store.pin("k"));
    CHECK(view && view.size() == 5000 && !view.empty() && view.n_pages() == 2 && view.contiguous());
    CHECK(text(view.page(1)) == std::string(904, 'b') && view.page(2).empty() && view.extents().size() == 1);
    CHECK(view.owner_rank() == 0 && view.epoch() != 0 && view.page_bytes() == kPage && view.device_data() == nullptr);
    CHECK(value_of(store.remove("k")) && value_of(store.stats()).limbo_bytes == 2 * kPage);
    nmc::BasicView<Mode> moved = std::move(view);
    CHECK(!view && moved.data()[0] == std::byte{'a'} && STATUS(view.unpin()) == NMC_ERR_BAD_HANDLE);
  }
  CHECK(value_of(store.stats()).limbo_bytes == 0);
  CHECK(WORKS(store.put("k", "x"sv)));
  nmc::BasicView<Mode> view = value_of(store.pin("k"));
  CHECK(STATUS(view.unpin_async(nullptr)) == NMC_ERR_UNSUPPORTED && view);
  CHECK(WORKS(view.unpin()) && !view);

  promise("pages_of_a_value_in_several_extents");
  for (int i = 0; i < 60; ++i) CHECK(WORKS(store.put(std::to_string(i), std::string(kPage, 'x'))));
  for (int i = 0; i < 60; i += 2) (void)value_of(store.remove(std::to_string(i)));  // some are evicted already
  nmc::BasicWritePlan<Mode> spread = value_of(store.open_for_write("spread", 20 * kPage - 1));
  CHECK(!spread.contiguous() && spread.extents().size() == spread.c().n_extents);
  for (uint32_t i = 0; i < spread.n_pages(); ++i) {
    std::memset(spread.page(i).data(), 'A' + static_cast<int>(i), spread.page(i).size());
  }
  CHECK(spread.page(19).size() == kPage - 1 && WORKS(spread.commit()));
  nmc::BasicView<Mode> pages = value_of(store.pin("spread"));
  const nmc::Buffer copy = value_of(store.get("spread"));
  for (uint32_t i = 0; i < pages.n_pages(); ++i) {
    CHECK(text(pages.page(i)) == copy.text().substr(i * kPage, kPage) && copy.text()[i * kPage] == static_cast<char>('A' + i));
  }
}

template <class Mode>
void waits() {
  promise("waits_watches_and_cancel");
  nmc::BasicStore<Mode> store = value_of(nmc::BasicStore<Mode>::embedded(small()));
  using std::chrono::milliseconds;
  CHECK(STATUS(store.wait_ready("k")) == NMC_ERR_NOT_FOUND);
  CHECK(STATUS(store.wait_ready("k", nmc::Wait::appear, milliseconds(5))) == NMC_ERR_TIMEOUT);
  CHECK(WORKS(store.watch("k", 7, nmc::Wait::appear)) && value_of(store.completions()).empty());
  CHECK(WORKS(store.put("k", "x"sv)) && WORKS(store.wait_ready("k")) && WORKS(store.wait_pages("k", 1)));
  pollfd event{value_of(store.event_fd()), POLLIN, 0};
  CHECK(poll(&event, 1, 30000) == 1);
  const std::vector<nmc_completion_t> done = value_of(store.completions());
  CHECK(done.size() == 1 && done[0].token == 7 && done[0].status == NMC_OK);
  std::atomic<nmc_status_t> status{77};
  std::thread waiter([&] { status = STATUS(store.wait_ready("never", nmc::Wait::appear)); });
  for (; status == 77; sleep_ms(5)) CHECK(WORKS(store.cancel()));  // the first may come before the wait
  waiter.join();
  GIVES(status, NMC_ERR_CANCELLED);
}

template <class Mode>
void batches() {
  promise("batches_tell_of_every_item");
  nmc::BasicStore<Mode> store = value_of(nmc::BasicStore<Mode>::embedded(small()));
  const std::vector<std::string> names = {"a", "b", "c"};
  const std::vector<nmc::Key> keys = nmc::all_keys(names);
  nmc::Batch put = store.put_batch(keys, {"1"sv, "22"sv, "333"sv});
  CHECK(put && put.items == std::vector<nmc_status_t>(3, NMC_OK));
  put = store.put_batch({"d", "a"}, {"x"sv, "y"sv});
  CHECK(!put && put.status() == NMC_ERR_EXISTS && put.items[0] == NMC_OK && put.items[1] == NMC_ERR_EXISTS);
  CHECK(put.message().find("\"a\"") != std::string::npos);
  CHECK(store.put_batch(keys, {"1"sv}).status() == NMC_ERR_INVALID_ARG);
  std::string one(1, ' '), two(2, ' '), three(1, ' ');
  const nmc::Batch got = store.get_into_batch(keys, {one, two, three});
  CHECK(!got && one == "1" && two == "22" && three == " " && got.items[2] == NMC_ERR_INVALID_ARG);
  CHECK(value_of(store.state_batch({"a", "none"}))[1] == nmc::ObjectState::absent);
  auto opened = store.open_batch({"p", "a", "q"}, {10, 10, 10});
  CHECK(!opened && opened.values[0] && !opened.values[1] && opened.values[2] && opened.status() == NMC_ERR_EXISTS);
  std::memcpy(opened.values[0].data(), "0123456789", 10);
  opened.values.pop_back();
  opened.values.pop_back();
  CHECK(store.commit_batch(opened.values) && opened.values[0].committed() && !value_of(store.exists("q")));
  auto pinned = store.pin_batch({"p", "none", "b"});
  CHECK(!pinned && pinned.values[0].size() == 10 && !pinned.values[1] && text(pinned.values[2].page(0)) == "22");
  CHECK(nmc::BasicStore<Mode>().unpin_batch(pinned.values).items[0] == NMC_ERR_BAD_HANDLE && pinned.values[0]);
  CHECK(store.unpin_batch(pinned.values).items[0] == NMC_OK && !pinned.values[0]);
  CHECK(store.remove_batch({"p", "none"}).items[1] == NMC_ERR_NOT_FOUND);
  CHECK(store.open_batch({"x", "y"}, {1, 1}).value().size() == 2 && store.pin_batch({"a", "b"}).value().size() == 2);
  const nmc::Batch refused = nmc::BasicStore<Mode>().remove_batch(keys);
  CHECK(refused.items == std::vector<nmc_status_t>(3, NMC_ERR_BAD_HANDLE));
}

template <class Mode>
void in_a_world() {
  promise("a_store_of_a_world_and_handles_that_outlive_it");
  std::vector<nmc::BasicWorld<Mode>> worlds =
      value_of(nmc::BasicWorld<Mode>::create_local(nmc::WorldConfig().world_size(2).heap_bytes(32 * kPage)));
  nmc::BasicView<Mode> left;
  nmc::BasicWritePlan<Mode> open;
  {
    const nmc::StoreConfig config = nmc::StoreConfig().page_bytes(kPage);
    nmc::BasicStore<Mode> zero = value_of(nmc::BasicStore<Mode>::attach(worlds[0], config));
    nmc::BasicStore<Mode> one = value_of(nmc::BasicStore<Mode>::attach(worlds[1], config));
    CHECK(WORKS(zero.put("k", "x"sv, nmc::PutOptions().on_rank(1))) && value_of(one.location("k"))->owner_rank == 1);
    left = value_of(one.pin("k"));
    open = value_of(zero.open_for_write("w", 10));
    nmc::BasicStore<Mode> moved = std::move(zero);
    CHECK(!zero && STATUS(zero.get("k")) == NMC_ERR_BAD_HANDLE && WORKS(moved.get("k")));
    CHECK(WORKS(moved.destroy()) && !moved);
  }
  CHECK(STATUS(left.unpin()) == NMC_ERR_BAD_HANDLE && STATUS(open.commit()) == NMC_ERR_BAD_HANDLE);
  CHECK(STATUS(nmc::BasicStore<Mode>::attach(nmc::BasicWorld<Mode>())) == NMC_ERR_BAD_HANDLE);
}

template <class Mode>
void without_a_device() {
  promise("what_goes_to_a_cuda_stream_needs_a_device");
  nmc::BasicStore<Mode> store = value_of(nmc::BasicStore<Mode>::embedded(small()));
  CHECK(WORKS(store.put("k", "0123"sv)));
  const nmc::BasicView<Mode> view = value_of(store.pin("k"));
  const nmc::BasicWritePlan<Mode> plan = value_of(store.open_for_write("w", 4));
  std::string four(4, ' ');
  nmc_publish_desc_t desc{};
  CHECK(STATUS(view.fetch_async(0, {four}, nullptr)) == NMC_ERR_UNSUPPORTED);
  CHECK(STATUS(plan.push_async(0, {four}, nullptr)) == NMC_ERR_UNSUPPORTED);
  CHECK(STATUS(plan.publish_desc(desc)) == NMC_ERR_UNSUPPORTED);
  CHECK(STATUS(store.publish_captured({&desc, 1}, nullptr)) == NMC_ERR_UNSUPPORTED);
  CHECK(STATUS(store.wait_ready_async("k", nullptr)) == NMC_ERR_UNSUPPORTED);
  CHECK(STATUS(store.reserve_slot()) == NMC_ERR_UNSUPPORTED);
  const nmc::BasicPinSlot<Mode> none;
  CHECK(STATUS(none.pin("k")) == NMC_ERR_BAD_HANDLE && STATUS(none.device_pin("k")) == NMC_ERR_BAD_HANDLE);
  CHECK(STATUS(none.unpin_async(nullptr)) == NMC_ERR_BAD_HANDLE);
}

template <class Mode>
void both(const char* form) {
  printf("%s\n", form);
  whole_arrays<Mode>();
  reads_and_writes<Mode>();
  plans_and_views<Mode>();
  waits<Mode>();
  batches<Mode>();
  in_a_world<Mode>();
  without_a_device<Mode>();
}

#if NMC_HPP_EXCEPTIONS
void throwing() {
  promise("a_throwing_call_gives_the_value_itself_and_a_batch_throws_when_asked");
  nmc::Store store = nmc::Store::embedded(small());
  store.put("k", "0123456789"sv);
  const nmc::View view = store.pin("k");
  const std::optional<nmc::View> hit = store.find("k");
  CHECK(view.size() == 10 && hit && hit->data() == view.data() && store.get("k").text() == "0123456789");
  nmc::WritePlan plan = store.open_for_write("w", 3);
  plan.commit();
  store.wait_ready("w");
  CHECK(STATUS(store.put_batch({"k"}, {"x"sv}).value()) == NMC_ERR_EXISTS);
  CHECK(STATUS(store.pin_batch({"k", "none"}).value()) == NMC_ERR_NOT_FOUND);
  std::vector<nmc::View> views = store.pin_batch({"k", "w"}).value();
  CHECK(views.size() == 2 && store.unpin_batch(views).ok());

  promise("views_and_plans_change_their_form_when_they_are_moved");
  nmc::nothrow::View returning = store.pin("k");
  CHECK(returning.ready_pages().value() == 1 && returning.unpin().ok());
  CHECK(returning.unpin().status() == NMC_ERR_BAD_HANDLE);
  nmc::WritePlan back = std::move(store.nothrow()->open_for_write("b", 3)).value();
  back.abort();
}
#endif

}  // namespace

int main() {
  configs();
#if NMC_HPP_EXCEPTIONS
  both<nmc::Throwing>("nmc");
  throwing();
#endif
  both<nmc::Returning>("nmc::nothrow");
  return finish();
}
