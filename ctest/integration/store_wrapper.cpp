// nanomc/store.hpp: every function through its try_ form, and where there are exceptions, through the throwing one.
#include <poll.h>

#include <atomic>
#include <map>
#include <thread>

#include "check.h"
#include "nanomc/store.hpp"

namespace {

using namespace std::string_view_literals;

constexpr uint32_t kPage = 4096;

nmc::StoreConfig small(uint64_t pages = 64) { return nmc::StoreConfig().heap_bytes(pages * kPage).page_bytes(kPage); }

template <class T>
std::string_view text(nmc::view<T> bytes) {
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
  CHECK(c.key_slab_bytes == 3 && c.page_bytes == 4 && c.max_objects == 5 && c.pin_slots == 6 && c.eviction == 2);
  CHECK(c.flags == 3 && c.master_rank == 7 && c.low_permille == 8 && c.high_permille == 9 && c.watchdog_ms == 10000);
  CHECK(c.world_size == 11 && c.heap_kind == NMC_HEAP_CUDA && c.device == 12 && c.attach_timeout_ms == 13);
  CHECK(c.call_timeout_ms == 14 && nmc::StoreConfig().checksums().checksums(false).c().flags == 0);
  CHECK(nmc::Store::try_embedded(small().watchdog(std::chrono::hours(24 * 365))).status() == NMC_ERR_INVALID_ARG);
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
  CHECK(nmc::Bytes(nmc::view<const float>(floats.data(), 2)).len == 8 && nmc::MutableBytes(string).len == 3);
  CHECK(nmc::Bytes(&string[1], 2).ptr == &string[1] && nmc::Key(static_cast<const char*>(nullptr)).len == 0);
  static_assert(std::is_convertible_v<const char*, nmc::Key> && std::is_convertible_v<char (&)[8], nmc::Key>,
                "a key is text");
  static_assert(!std::is_constructible_v<nmc::Bytes, const char*> && !std::is_constructible_v<nmc::Bytes, char (&)[8]> &&
                    !std::is_constructible_v<nmc::Bytes, const char (&)[8]>,
                "a value would end at its first zero");
  static_assert(!std::is_constructible_v<nmc::MutableBytes, const std::string&>, "it would be written to");
  static_assert(!std::is_constructible_v<nmc::Bytes, const std::vector<std::string>&>, "those are no plain data");
}

void whole_arrays() {
  promise("an_array_is_stored_as_all_of_its_bytes");
  nmc::Store store = nmc::Store::try_embedded(small()).value();
  char page[kPage] = {'p'};
  page[kPage - 1] = 'q';
  CHECK(store.try_put("page", nmc::bytes(page)).ok());
  CHECK(store.try_get("page").value().text() == std::string_view(page, kPage));
  const nmc::Batch put = store.try_put_batch({"one", "two"}, {nmc::bytes(page), nmc::bytes("ab")});
  CHECK(put.ok() && store.try_size("one").value() == kPage && store.try_size("two").value() == 3);
}

void reads_and_writes() {
  promise("every_read_and_write_once");
  nmc::Store store = nmc::Store::try_embedded(small()).value();
  const std::string value(10000, 'v');
  const std::vector<uint32_t> numbers = {1, 2, 3};
  CHECK(store.try_put("k", value).ok() && store.try_put("n", numbers).ok() && store.try_put("empty", ""sv).ok());
  CHECK(store.try_put("k", "other"sv).status() == NMC_ERR_EXISTS && store.try_put("", "x"sv).status() == NMC_ERR_INVALID_ARG);
  CHECK(store.try_put_slices("s", {"one "sv, value, numbers}).ok() && store.try_size("s").value() == 10016);
  CHECK(store.try_put_strided("rows", value.data(), 10, 100, 1000).ok() && store.try_size("rows").value() == 1000);
  nmc::Buffer got = store.try_get("k").value();
  CHECK(got.text() == value && got.size() == 10000 && got[9999] == std::byte{'v'} && got.end() - got.begin() == 10000);
  CHECK(store.try_get("empty").value().empty());
  nmc::Result<nmc::Buffer> missing = store.try_get("none");
  CHECK(!missing && missing.status() == NMC_ERR_NOT_FOUND && missing.message().find("none") != std::string::npos);
  std::vector<uint32_t> back(3);
  CHECK(store.try_get_into("n", back).value() == 12 && back == numbers);
  CHECK(store.try_get_into("n", nmc::MutableBytes(back.data(), 11)).status() == NMC_ERR_INVALID_ARG);
  CHECK(store.try_get_range("n", 4, nmc::MutableBytes(back.data(), 4)).value() == 4 && back[0] == 2);
  std::string left(4, ' '), right(6, ' ');
  CHECK(store.try_get_slices("s", 0, {left, right}).value() == 10 && left + right == "one vvvvvv");
  std::string grid(30, '.');
  CHECK(store.try_get_strided("k", 0, grid.data(), 3, 2, 10).value() == 6 && grid == "vv........vv........vv........");
  CHECK(store.try_exists("k").value() && !store.try_exists("none").value());
  CHECK(store.try_state("none").value() == nmc::ObjectState::absent);
  CHECK(store.try_location("k").value().bytes_total == 10000);
  CHECK(store.try_location("none").status() == NMC_ERR_NOT_FOUND);
  CHECK(store.try_match_prefix({"k", "n", "none", "s"}).value() == 2);
  std::map<std::string, uint64_t> seen;
  CHECK(store.try_for_each([&](std::string_view key, uint64_t bytes) { seen.emplace(key, bytes); }).value() == 5);
  CHECK(seen.size() == 5 && seen["k"] == 10000 && seen["empty"] == 0);
  size_t called = 0;
  CHECK(store.try_for_each([&](std::string_view, uint64_t) { return ++called < 2; }).value() == 2 && called == 2);

  promise("what_is_said_of_an_object_is_read_by_its_key_and_from_a_view");
  const std::vector<uint16_t> shape = {2, 3};
  CHECK(store.try_put("said", value, nmc::PutOptions().metadata(shape)).ok());
  CHECK(store.try_metadata("said").value().size() == 4 && store.try_metadata("k").value().empty());
  CHECK(std::memcmp(store.try_metadata("said").value().data(), shape.data(), 4) == 0);
  CHECK(store.try_pin("said").value().try_metadata().value().size() == 4);
  CHECK(store.try_metadata("none").status() == NMC_ERR_NOT_FOUND);
  const std::vector<nmc::Bytes> each = {"one"sv, ""sv};
  CHECK(store.try_put_batch({"m1", "m2"}, {value, value}, nmc::PutOptions().metadata_each(each)).ok());
  CHECK(store.try_metadata("m1").value().text() == "one" && store.try_metadata("m2").value().empty());

  promise("one_consumer_gets_an_object_and_a_view_is_verified");
  {
    nmc::View taken = store.try_consume("said").value();
    CHECK(taken.size() == value.size() && taken.page(0).size() == kPage);
    CHECK(store.try_consume("said").status() == NMC_ERR_NOT_FOUND && !store.try_exists("said").value());
    CHECK(taken.try_verify().status() == NMC_ERR_UNSUPPORTED);
  }
  nmc::Store checked = nmc::Store::try_embedded(small().checksums()).value();
  CHECK(checked.try_put("k", value).ok() && checked.try_pin("k").value().try_verify().value());
  CHECK(store.try_remove_batch({"m1", "m2"}).ok());

  promise("get_is_right_while_the_object_changes_its_size");
  const nmc::PutOptions kept = nmc::PutOptions().replace().retain(nmc::Retain::hard);
  CHECK(store.try_put("changing", std::string(1, '1'), kept).ok());
  std::thread writer([&] {
    for (int i = 0; i < 500; ++i) {
      const size_t size = i % 5 == 0 ? 0 : static_cast<size_t>(i * 37 % 9000);
      CHECK(store.try_put("changing", std::string(size, static_cast<char>('0' + size % 10)), kept).ok());
    }
  });
  for (int i = 0; i < 500; ++i) {
    const nmc::Result<nmc::Buffer> read = store.try_get("changing");
    if (!CHECK(read.ok())) break;
    const std::string_view all = read.value().text();
    CHECK(all == std::string(all.size(), static_cast<char>('0' + all.size() % 10)));
  }
  writer.join();

  promise("keeping_and_removing");
  CHECK(store.try_touch("k").ok() && store.try_touch("none").status() == NMC_ERR_NOT_FOUND);
  CHECK(store.try_retain("k", nmc::Retain::hard).ok() && store.try_evict_until_below(0, 0).ok());
  CHECK(store.try_exists("k").value() && !store.try_exists("n").value());
  CHECK(store.try_remove("k").ok() && store.try_remove("k").status() == NMC_ERR_NOT_FOUND);
  CHECK(store.try_put("p/1", "x"sv).ok() && store.try_put("p/2", "x"sv).ok() && store.try_put("q", "x"sv).ok());
  CHECK(store.try_remove_by_prefix("p/").value() == 2 && store.try_remove_all().ok() && !store.try_exists("q").value());

  promise("namespaces");
  const nmc::Store space = store.try_namespace_("model", 2 * kPage).value();
  CHECK(space.try_put("k", "own"sv).ok() && !store.try_exists("k").value());
  CHECK(store.try_namespace_("model").value().try_get("k").value().text() == "own");
  CHECK(space.try_put("big", std::string(3 * kPage, 'x')).status() == NMC_ERR_NO_SPACE);

  promise("numbers_and_pictures");
  const nmc::StoreStats stats = store.try_stats().value();
  CHECK(stats.ranks.size() == 1 && stats.bytes_total == 64 * kPage && stats.puts > 3 && stats.master_up == 1);
  CHECK(store.try_prometheus().value().find("nanomc_store_puts_total") != std::string::npos);
  CHECK(store.try_dump().value().find('#') != std::string::npos && store.try_dump(20).ok());
}

void plans_and_views() {
  promise("a_plan_is_given_up_with_its_scope_unless_it_was_committed");
  nmc::Store store = nmc::Store::try_embedded(small()).value();
  {
    nmc::WritePlan plan = store.try_open_for_write("k", 5000).value();
    CHECK(plan && !plan.committed() && plan.size() == 5000 && plan.n_pages() == 2 && plan.contiguous());
    CHECK(plan.page(0).size() == kPage && plan.page(1).size() == 904 && plan.page(2).empty());
    CHECK(plan.page(1).data() == plan.data() + kPage && plan.extents().size() == 1 && plan.extents()[0].bytes == 5000);
    CHECK(plan.dst_rank() == 0 && plan.epoch() != 0 && plan.page_bytes() == kPage && plan.device_data() == nullptr);
    CHECK(plan.try_commit_async(nullptr).status() == NMC_ERR_UNSUPPORTED && !plan.committed());
    CHECK(store.try_state("k").value() == nmc::ObjectState::writing);
    CHECK(store.try_get("k").status() == NMC_NOT_READY && store.try_pin("k").status() == NMC_NOT_READY);
    CHECK(store.try_get_into("k", nmc::MutableBytes(nullptr, 0)).status() == NMC_NOT_READY);
    CHECK(!store.try_get("k").message().empty());
  }
  CHECK(store.try_state("k").value() == nmc::ObjectState::absent);
  {
    nmc::WritePlan plan = store.try_open_for_write("k", 5000).value();
    std::memset(plan.page(0).data(), 'a', kPage);
    CHECK(plan.try_publish_pages(1).ok());
    nmc::View part = store.try_pin_partial("k", 1).value();
    CHECK(part.try_ready_pages().value() == 1 && text(part.page(0)).front() == 'a');
    std::memset(plan.page(1).data(), 'b', 904);
    nmc::WritePlan moved = std::move(plan);
    CHECK(!plan && moved.try_commit().ok() && moved.committed() && moved.try_commit().ok());
    CHECK(moved.try_abort().status() == NMC_ERR_INVALID_ARG && part.try_ready_pages().value() == 2);
    moved = nmc::WritePlan();
  }
  CHECK(store.try_get("k").value().text() == std::string(kPage, 'a') + std::string(904, 'b'));
  nmc::WritePlan aborted = store.try_open_for_write("a", 10).value();
  CHECK(aborted.try_abort().ok() && !aborted && aborted.try_commit().status() == NMC_ERR_BAD_HANDLE);

  promise("a_view_is_unpinned_with_its_scope");
  {
    nmc::View view = store.try_pin("k").value();
    CHECK(view && view.size() == 5000 && !view.empty() && view.n_pages() == 2 && view.contiguous());
    CHECK(text(view.page(1)) == std::string(904, 'b') && view.page(2).empty() && view.extents().size() == 1);
    CHECK(view.owner_rank() == 0 && view.epoch() != 0 && view.page_bytes() == kPage && view.device_data() == nullptr);
    CHECK(store.try_remove("k").ok() && store.try_stats().value().limbo_bytes == 2 * kPage);
    nmc::View moved = std::move(view);
    CHECK(!view && moved.data()[0] == std::byte{'a'} && view.try_unpin().status() == NMC_ERR_BAD_HANDLE);
  }
  CHECK(store.try_stats().value().limbo_bytes == 0);
  CHECK(store.try_put("k", "x"sv).ok());
  nmc::View view = store.try_pin("k").value();
  CHECK(view.try_unpin_async(nullptr).status() == NMC_ERR_UNSUPPORTED && view);
  CHECK(view.try_unpin().ok() && !view);

  promise("pages_of_a_value_in_several_extents");
  for (int i = 0; i < 60; ++i) CHECK(store.try_put(std::to_string(i), std::string(kPage, 'x')).ok());
  for (int i = 0; i < 60; i += 2) (void)store.try_remove(std::to_string(i));
  nmc::WritePlan spread = store.try_open_for_write("spread", 20 * kPage - 1).value();
  CHECK(!spread.contiguous() && spread.extents().size() == spread.c().n_extents);
  for (uint32_t i = 0; i < spread.n_pages(); ++i) {
    std::memset(spread.page(i).data(), 'A' + static_cast<int>(i), spread.page(i).size());
  }
  CHECK(spread.page(19).size() == kPage - 1 && spread.try_commit().ok());
  nmc::View pages = store.try_pin("spread").value();
  const nmc::Buffer copy = store.try_get("spread").value();
  for (uint32_t i = 0; i < pages.n_pages(); ++i) {
    CHECK(text(pages.page(i)) == copy.text().substr(i * kPage, kPage) && copy.text()[i * kPage] == static_cast<char>('A' + i));
  }
}

void waits() {
  promise("waits_watches_and_cancel");
  nmc::Store store = nmc::Store::try_embedded(small()).value();
  using std::chrono::milliseconds;
  CHECK(store.try_wait_ready("k").status() == NMC_ERR_NOT_FOUND);
  CHECK(store.try_wait_ready("k", nmc::Wait::appear, milliseconds(5)).status() == NMC_ERR_TIMEOUT);
  CHECK(store.try_watch("k", 7, nmc::Wait::appear).ok() && store.try_completions().value().empty());
  CHECK(store.try_put("k", "x"sv).ok() && store.try_wait_ready("k").ok() && store.try_wait_pages("k", 1).ok());
  pollfd event{store.try_event_fd().value(), POLLIN, 0};
  CHECK(poll(&event, 1, 30000) == 1);
  const std::vector<nmc_completion_t> done = store.try_completions().value();
  CHECK(done.size() == 1 && done[0].token == 7 && done[0].status == NMC_OK);
  std::atomic<nmc_status_t> status{77};
  std::thread waiter([&] { status = store.try_wait_ready("never", nmc::Wait::appear).status(); });
  for (; status == 77; sleep_ms(5)) CHECK(store.try_cancel().ok());  // the first may come before the wait
  waiter.join();
  GIVES(status, NMC_ERR_CANCELLED);
}

void batches() {
  promise("batches_tell_of_every_item");
  nmc::Store store = nmc::Store::try_embedded(small()).value();
  const std::vector<std::string> names = {"a", "b", "c"};
  const std::vector<nmc::Key> keys = nmc::all_keys(names);
  nmc::Batch put = store.try_put_batch(keys, {"1"sv, "22"sv, "333"sv});
  CHECK(put && put.items == std::vector<nmc_status_t>(3, NMC_OK));
  put = store.try_put_batch({"d", "a"}, {"x"sv, "y"sv});
  CHECK(!put && put.status() == NMC_ERR_EXISTS && put.items[0] == NMC_OK && put.items[1] == NMC_ERR_EXISTS);
  CHECK(put.message().find("\"a\"") != std::string::npos);
  CHECK(store.try_put_batch(keys, {"1"sv}).status() == NMC_ERR_INVALID_ARG);
  std::string one(1, ' '), two(2, ' '), three(1, ' ');
  const nmc::Batch got = store.try_get_into_batch(keys, {one, two, three});
  CHECK(!got && one == "1" && two == "22" && three == " " && got.items[2] == NMC_ERR_INVALID_ARG);
  CHECK(store.try_state_batch({"a", "none"}).value()[1] == nmc::ObjectState::absent);
  nmc::PlanBatch opened = store.try_open_batch({"p", "a", "q"}, {10, 10, 10});
  CHECK(!opened && opened.plans[0] && !opened.plans[1] && opened.plans[2] && opened.status() == NMC_ERR_EXISTS);
  std::memcpy(opened.plans[0].data(), "0123456789", 10);
  opened.plans.pop_back();
  opened.plans.pop_back();
  CHECK(store.try_commit_batch(opened.plans) && opened.plans[0].committed() && !store.try_exists("q").value());
  nmc::ViewBatch pinned = store.try_pin_batch({"p", "none", "b"});
  CHECK(!pinned && pinned.views[0].size() == 10 && !pinned.views[1] && text(pinned.views[2].page(0)) == "22");
  CHECK(store.try_unpin_batch(pinned.views).items[0] == NMC_OK && !pinned.views[0]);
  CHECK(store.try_remove_batch({"p", "none"}).items[1] == NMC_ERR_NOT_FOUND);
  const nmc::Batch refused = nmc::Store().try_remove_batch(keys);
  CHECK(refused.items == std::vector<nmc_status_t>(3, NMC_ERR_BAD_HANDLE));
}

void in_a_world() {
  promise("a_store_of_a_world_and_handles_that_outlive_it");
  std::vector<nmc::nothrow::World> worlds =
      nmc::nothrow::World::create_local(nmc::WorldConfig().world_size(2).heap_bytes(32 * kPage)).value();
  nmc::View left;
  nmc::WritePlan open;
  {
    const nmc::StoreConfig config = nmc::StoreConfig().page_bytes(kPage);
    nmc::Store zero = nmc::Store::try_attach(worlds[0], config).value();
    nmc::Store one = nmc::Store::try_attach(worlds[1], config).value();
    CHECK(zero.try_put("k", "x"sv, nmc::PutOptions().on_rank(1)).ok() && one.try_location("k").value().owner_rank == 1);
    left = one.try_pin("k").value();
    open = zero.try_open_for_write("w", 10).value();
    nmc::Store moved = std::move(zero);
    CHECK(!zero && zero.try_get("k").status() == NMC_ERR_BAD_HANDLE && moved.try_get("k").ok());
    CHECK(moved.try_destroy().ok() && !moved);
  }
  CHECK(left.try_unpin().status() == NMC_ERR_BAD_HANDLE && open.try_commit().status() == NMC_ERR_BAD_HANDLE);
  CHECK(nmc::Store::try_attach(nmc::nothrow::World()).status() == NMC_ERR_BAD_HANDLE);
}

#if NMC_HPP_EXCEPTIONS
template <class Body>
void throws(nmc_status_t want, Body body) {
  try {
    body();
    CHECK(!"it should have thrown");
  } catch (const nmc::Error& error) {
    GIVES(error.status(), want);
    CHECK(!error.message().empty());
  }
}

void throwing_forms() {
  promise("the_throwing_forms_return_values");
  nmc::Store store = nmc::Store::embedded(small());
  std::string ten(10, ' ');
  store.put("k", "0123456789"sv);
  CHECK(store.get("k").text() == "0123456789" && store.size("k") == 10 && store.get_into("k", ten) == 10);
  CHECK(store.get_range("k", 8, nmc::MutableBytes(ten.data(), 2)) == 2 && store.get_slices("k", 0, {ten}) == 10);
  CHECK(store.get_strided("k", 0, ten.data(), 2, 5, 5) == 10 && ten == "0123456789");
  store.put_slices("s", {"a"sv, "b"sv});
  store.put_strided("t", ten.data(), 5, 1, 2);
  CHECK(store.get("t").text() == "02468" && store.exists("s") && store.state("s") == nmc::ObjectState::ready);
  nmc::WritePlan plan = store.open_for_write("w", 2 * kPage);
  std::memset(plan.data(), 'w', plan.size());
  plan.publish_pages(1);
  CHECK(store.pin_partial("w", 1).ready_pages() == 1);
  plan.commit();
  store.open_for_write("gone", 1).abort();
  nmc::View view = store.pin("w");
  CHECK(view.ready_pages() == 2);
  view.unpin();
  CHECK(store.location("w").n_pages == 2 && store.match_prefix({"k", "w"}) == 2);
  CHECK(store.for_each([](std::string_view, uint64_t) {}) == 4);
  store.touch("k");
  store.retain("k", nmc::Retain::soft, 1, std::chrono::seconds(1));
  store.wait_ready("k");
  store.wait_pages("w", 2);
  store.watch("k", 1);
  pollfd event{store.event_fd(), POLLIN, 0};
  CHECK(poll(&event, 1, 30000) == 1 && store.completions().size() == 1);
  store.cancel();
  store.put_batch({"1", "2"}, {"x"sv, "y"sv});
  store.get_into_batch({"k"}, {ten});
  CHECK(store.state_batch({"1"})[0] == nmc::ObjectState::ready);
  std::vector<nmc::WritePlan> plans = store.open_batch({"3", "4"}, {1, 1});
  store.commit_batch(plans);
  std::vector<nmc::View> views = store.pin_batch({"3", "4"});
  store.unpin_batch(views);
  store.remove_batch({"3", "4"});
  store.remove("k");
  CHECK(store.remove_by_prefix("1") == 1);
  nmc::Store space = store.namespace_("space");
  space.remove_all();
  CHECK(store.stats().puts > 0 && !store.prometheus().empty() && !store.dump(20).empty());
  store.evict_until_below(0, 0);
  std::vector<nmc::World> worlds = nmc::World::create_local(nmc::WorldConfig().heap_bytes(32 * kPage));
  CHECK(nmc::Store::attach(worlds[0], nmc::StoreConfig().page_bytes(kPage)).stats().n_ranks == 1);

  promise("the_throwing_forms_throw_the_status");
  throws(NMC_ERR_NOT_FOUND, [&] { (void)store.get("none"); });
  throws(NMC_ERR_NOT_FOUND, [&] { (void)store.pin("none"); });
  const nmc::WritePlan open = store.open_for_write("o", 1);
  throws(NMC_NOT_READY, [&] { (void)store.get("o"); });
  throws(NMC_NOT_READY, [&] { store.get_into("o", ten); });
  throws(NMC_ERR_EXISTS, [&] { store.put("o", "x"sv); });
  throws(NMC_ERR_EXISTS, [&] { store.put_batch({"o"}, {"x"sv}); });
  throws(NMC_ERR_NOT_FOUND, [&] { (void)store.pin_batch({"none"}); });
  throws(NMC_ERR_INVALID_ARG, [] { (void)nmc::Store::embedded(nmc::StoreConfig()); });
  throws(NMC_ERR_BAD_HANDLE, [] { nmc::Store().remove("k"); });
}
#endif

}  // namespace

int main() {
  configs();
  whole_arrays();
  reads_and_writes();
  plans_and_views();
  waits();
  batches();
  in_a_world();
#if NMC_HPP_EXCEPTIONS
  throwing_forms();
#endif
  return finish();
}
