// What a client tells of values besides their bytes, removes of many keys, values of several pieces in a batch, how a drain is waited for and what it says, and segments in
// memory of the program. Nodes are processes of their own.
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <thread>

#include <nanomc.hpp>

#include "../support/cluster.hpp"
#include "../support/value.hpp"

namespace {

std::string key_of(size_t i) { return "key/" + std::to_string(i); }

// A process with a node of 32 MiB, in the life of which it puts what it is told to on itself.
Process node_process(const std::string& master, const std::string& name) {
  return Process([=](Link& test) {
    OpenClient client(master);
    const nmc_store_config_t config = segment_of(32 << 20);
    test.say(outcome(nmc_client_mount(client, slice(name), &config)));
    std::string line;
    while (test.hear(line, 1e6)) test.say("ok");
  });
}

nmc::ClientConfig config_of(const std::string& master) { return nmc::ClientConfig(master).timeout(std::chrono::seconds(20)); }

template <class T>
nmc::span<const T> part(const std::vector<T>& all, size_t first, size_t n) {
  return {all.data() + first, n};
}

std::string text_of(const nmc::Buffer& found) { return std::string(found.text()); }

void metadata() {
  Master master;
  Process a = node_process(master.address(), "a"), b = node_process(master.address(), "b");
  REQUIRE(a.reply() == "NMC_OK" && b.reply() == "NMC_OK");
  nmc::Client client = nmc::Client::open(config_of(master.address())), own = nmc::Client::open(config_of(master.address()));
  own.mount("own", nmc::StoreConfig().heap_bytes(16 << 20));
  const std::string most(NMC_MAX_METADATA, 'm'), large = value_of(1, 3 << 20);

  promise("what_is_said_about_a_value_is_told_by_whoever_has_it");
  for (const char* where : {"a", "own"}) {
    const std::string key = std::string("at-") + where;
    client.put(key, nmc::Bytes(large), nmc::Replicate().at(where).metadata(nmc::Bytes(most)));
    client.put(key + "/none", std::string_view("v"), nmc::Replicate().at(where));
    for (const nmc::Client* reader : {&client, &own}) {
      CHECK(text_of(*reader->metadata(key)) == most && text_of(*reader->metadata(key + "/none")).empty() && !reader->metadata("missing"));
      const nmc::Described both = reader->get_with_metadata(key);
      CHECK(both.value.text() == large && text_of(both.metadata) == most);
      CHECK(reader->get_with_metadata(key + "/none").value.text() == "v" && reader->get_with_metadata(key + "/none").metadata.empty());
    }
  }

  promise("a_buffer_that_is_too_small_gets_the_size");
  char room[NMC_MAX_METADATA];
  size_t size = 7;
  for (const nmc::Client* reader : {&client, &own}) {
    const nmc_slice_t key = slice_of("at-a");
    OK(nmc_client_get_metadata(reader->get(), key, nullptr, 0, &size));
    CHECK(size == NMC_MAX_METADATA);
    size = 7, memset(room, 'r', sizeof room);
    GIVES(nmc_client_get_metadata(reader->get(), key, room, 10, &size), NMC_ERR_TOO_SMALL);
    CHECK(size == NMC_MAX_METADATA && room[0] == 'r');
    GIVES(nmc_client_get_metadata(reader->get(), key, room, 10, nullptr), NMC_ERR_TOO_SMALL);
    size = 7;
    GIVES(nmc_client_get_metadata(reader->get(), slice_of("missing"), room, sizeof room, &size), NMC_ERR_NOT_FOUND);
    CHECK(size == 7);
    std::string to(large.size(), ' ');
    const nmc_buffer_t into{to.data(), to.size()}, part{to.data(), 10};
    uint64_t bytes = 7;
    GIVES(nmc_client_get_with_metadata(reader->get(), key, &into, 1, {room, 10}, &bytes, &size), NMC_ERR_TOO_SMALL);
    CHECK(bytes == large.size() && size == NMC_MAX_METADATA && room[0] == 'r');
    GIVES(nmc_client_get_with_metadata(reader->get(), key, &part, 1, {room, sizeof room}, &bytes, &size), NMC_ERR_TOO_SMALL);
    CHECK(bytes == large.size());
  }

  promise("it_is_that_of_the_put_that_there_is");
  for (int round = 0; round < 5; ++round) {
    const std::string said = "round " + std::to_string(round);
    client.put("again", std::string_view("v"), nmc::Replicate().at(round % 2 == 0 ? "a" : "b").metadata(nmc::Bytes(said)));
    CHECK(text_of(*client.metadata("again")) == said && text_of(*own.metadata("again")) == said);
    CHECK(own.remove("again") == nmc::Removed::everywhere);
    CHECK(!client.metadata("again"));  // though its place is remembered
  }

  promise("a_batch_tells_of_every_item");
  std::vector<std::string> keys, said, values;
  std::vector<nmc::Key> names;
  for (size_t i = 0; i < 600; ++i) {
    keys.push_back(key_of(i)), said.push_back(i % 5 == 0 ? "" : "said " + std::to_string(i));
    client.put(keys[i], nmc::Bytes(said[i]), nmc::Replicate().at(i % 3 == 0 ? "a" : i % 3 == 1 ? "b" : "own").metadata(nmc::Bytes(said[i])));
  }
  keys.push_back("missing"), keys.emplace_back();
  for (const std::string& key : keys) names.emplace_back(key);
  for (const nmc::Client* reader : {&client, &own}) {
    const auto told = reader->metadata_batch(names);
    for (size_t i = 0; i < 600; ++i) CHECK(told.items[i] == NMC_OK && text_of(told.values[i]) == said[i]);
    CHECK(told.items[600] == NMC_ERR_NOT_FOUND && told.items[601] == NMC_ERR_INVALID_ARG && told.status() == NMC_ERR_NOT_FOUND);
    CHECK(told.values[600].empty() && told.values[601].empty());
  }

  promise("it_is_told_without_waiting");
  {
    nmc::Calls calls(client);
    std::vector<std::string> rooms(600, std::string(NMC_MAX_METADATA, ' '));
    std::vector<uint64_t> tokens;
    for (size_t i = 0; i < 600; ++i) tokens.push_back(calls.metadata(names[i], nmc::MutableBytes(rooms[i])));
    while (calls.under_way() > 0) {
      for (const nmc_client_completion_t& done : calls.wait()) {
        const size_t i = done.token - tokens[0];
        CHECK(done.status == NMC_OK && rooms[i].substr(0, done.bytes) == said[i]);
      }
    }
    calls.metadata("missing", nmc::MutableBytes(rooms[0]));
    CHECK(calls.wait().at(0).status == NMC_ERR_NOT_FOUND);
    calls.metadata("at-a", nmc::MutableBytes(rooms[0].data(), 255));
    const nmc_client_completion_t small = calls.wait().at(0);
    CHECK(small.status == NMC_ERR_TOO_SMALL && small.bytes == NMC_MAX_METADATA);
    nmc::Calls here(own);
    here.metadata("at-own", nmc::MutableBytes(rooms[0]));
    const nmc_client_completion_t done = here.wait().at(0);
    CHECK(done.status == NMC_OK && done.bytes == NMC_MAX_METADATA && rooms[0] == most);
  }

  promise("a_value_in_parts_has_it_too");
  nmc::Client striping = nmc::Client::open(config_of(master.address()).stripe_bytes(256 << 10));
  striping.put("striped", nmc::Bytes(large), nmc::Replicate().metadata(nmc::Bytes(most)));
  CHECK(text_of(*client.metadata("striped")) == most && client.get_with_metadata("striped").value.text() == large);
  CHECK(text_of(client.get_with_metadata("striped").metadata) == most);

  promise("who_asks_for_it_has_not_read_the_value");
  nmc::Client expiring = nmc::Client::open(config_of(master.address()).expire_after_get(std::chrono::milliseconds(100)));
  for (const char* key : {"at-a", "at-own"}) CHECK(text_of(*expiring.metadata(key)) == most);
  CHECK(expiring.metadata_batch({"at-a", "at-own"}).ok());
  sleep_ms(1500);
  CHECK(client.exists("at-a") && client.exists("at-own"));
  CHECK(text_of(expiring.get_with_metadata("at-a").metadata) == most);  // the control: this is a read
  bool there = true;
  for (const double start = seconds_now(); there && seconds_now() - start < kPatience / 2; sleep_ms(20)) there = client.exists("at-a");
  CHECK(!there);

  promise("a_store_that_goes_on_to_the_cluster_tells_it_of_what_others_have");
  client.put("far", std::string_view("v"), nmc::Replicate().at("b").metadata(nmc::Bytes(most)));
  const nmc::Store near = nmc::Store::embedded(nmc::StoreConfig().heap_bytes(1 << 20).page_bytes(4096));
  near.put("near", std::string_view("n"), nmc::PutOptions().metadata(nmc::Bytes(said[1])));
  const nmc::Store far = client.open_store(near, std::chrono::seconds(20));
  CHECK(text_of(*far.metadata("far")) == most && text_of(*far.metadata("near")) == said[1] && !far.metadata("missing"));
  CHECK(!near.metadata("far"));
  GIVES(nmc_store_get_metadata(far.get(), slice_of("far"), room, 10, &size), NMC_ERR_TOO_SMALL);
  CHECK(size == NMC_MAX_METADATA);
  stop_child(b.pid());
  const nmc::Store hasty = client.open_store(near, std::chrono::milliseconds(300));
  const nmc_status_t away = nmc_store_get_metadata(hasty.get(), slice_of("far"), room, sizeof room, &size);
  CHECK(away == NMC_ERR_TIMEOUT || away == NMC_ERR_UNAVAILABLE);
  kill(b.pid(), SIGCONT);
  CHECK(text_of(*far.metadata("far")) == most);
}

void removes() {
  Master master;
  Process a = node_process(master.address(), "a"), b = node_process(master.address(), "b");
  REQUIRE(a.reply() == "NMC_OK" && b.reply() == "NMC_OK");
  nmc::Client client = nmc::Client::open(config_of(master.address())), own = nmc::Client::open(config_of(master.address()));
  own.mount("own", nmc::StoreConfig().heap_bytes(16 << 20));
  std::vector<std::string> keys;
  for (size_t i = 0; i < 700; ++i) keys.push_back(key_of(i));
  const std::vector<nmc::Key> names = nmc::all_keys(keys);
  const std::vector<nmc::Bytes> values(700, nmc::Bytes(std::string_view("value")));
  std::vector<nmc_status_t> statuses(700);

  promise("many_are_removed_and_each_tells_what_became_of_it");
  for (const uint32_t flags : {uint32_t{0}, uint32_t{NMC_REMOVE_ASYNC}}) {
    for (nmc::Client* remover : {&client, &own}) {
      CHECK(own.put_batch(names, values, nmc::Replicate().copies(2)).ok());
      std::vector<nmc::Key> some(names);
      some[3] = "missing", some[5] = nmc::Key();
      const nmc::Batch told = remover->remove_batch(some, flags);
      for (size_t i = 0; i < 700; ++i) {
        CHECK(told.items[i] == (i == 3 ? NMC_ERR_NOT_FOUND : i == 5 ? NMC_ERR_INVALID_ARG : NMC_OK));
        CHECK(client.exists(keys[i]) == (i == 3 || i == 5));
      }
      CHECK(told.status() == NMC_ERR_NOT_FOUND);
      CHECK(remover->remove_batch({names[3], names[5]}).ok());
      GIVES(remover->remove_batch({names[3]}, flags).status(), NMC_ERR_NOT_FOUND);
    }
  }
  CHECK(client.remove_batch({}).ok());

  promise("what_was_just_stored_in_the_own_node_goes_too");
  const nmc::Store store = nmc::Store::embedded(nmc::StoreConfig().heap_bytes(4 << 20).page_bytes(4096));
  own.attach_store("attached", store);
  for (int round = 0; round < 5; ++round) {
    for (size_t i = 0; i < 100; ++i) store.put(keys[i], std::string_view("mine"));
    CHECK(own.remove_batch(part(names, 0, 100)).ok());
    for (size_t i = 0; i < 100; ++i) CHECK(!store.exists(keys[i]));
  }

  promise("without_waiting_one_completion_tells_of_all");
  CHECK(own.put_batch(names, values).ok());
  std::vector<nmc_slice_t> some(names.begin(), names.end());
  some[3] = slice_of("missing"), some[5] = {nullptr, 0};
  OK(nmc_client_submit_remove_batch(client.get(), some.data(), 700, 0, 9, statuses.data()));
  nmc_client_completion_t done = client.completions(std::chrono::milliseconds(-1)).at(0);
  CHECK(done.token == 9 && done.status == NMC_ERR_NOT_FOUND && done.bytes == 0);
  for (size_t i = 0; i < 700; ++i) CHECK(statuses[i] == (i == 3 ? NMC_ERR_NOT_FOUND : i == 5 ? NMC_ERR_INVALID_ARG : NMC_OK));
  client.submit_remove_batch({names[3], names[5]}, 10);
  CHECK(client.completions(std::chrono::milliseconds(-1)).at(0).status == NMC_OK && client.keys().empty());
  OK(nmc_client_submit_remove_batch(client.get(), nullptr, 0, 0, 11, nullptr));
  CHECK(client.completions(std::chrono::milliseconds(-1)).at(0).token == 11);
  GIVES(nmc_client_submit_remove_batch(client.get(), some.data(), 1, NMC_REMOVE_EVERYWHERE, 12, nullptr), NMC_ERR_INVALID_ARG);

  promise("what_does_not_wait_ends_while_an_owner_is_stopped_and_what_waits_does_not");
  CHECK(client.put_batch(part(names, 0, 50), part(values, 0, 50), nmc::Replicate().at("a")).ok());
  stop_child(a.pid());
  nmc::Client hasty = nmc::Client::open(config_of(master.address()).timeout(std::chrono::milliseconds(1500)));
  const double start = seconds_now();
  const nmc::Batch waits = hasty.remove_batch(part(names, 0, 25));
  CHECK(seconds_now() - start < 10);
  for (const nmc_status_t status : waits.items) CHECK(status == NMC_ERR_TIMEOUT);
  CHECK(hasty.remove_batch(part(names, 25, 25), NMC_REMOVE_ASYNC).ok());
  {
    nmc::Calls calls(client);
    client.put("last", std::string_view("v"), nmc::Replicate().at("b"));
    calls.remove("last", NMC_REMOVE_ASYNC);
    CHECK(calls.wait().at(0).status == NMC_OK);
  }
  kill(a.pid(), SIGCONT);
  CHECK(client.keys().empty());
}

void pieces() {
  Master master;
  Process a = node_process(master.address(), "a");
  REQUIRE(a.reply() == "NMC_OK");
  nmc::Client client = nmc::Client::open(config_of(master.address()));
  const std::string one = value_of(1, 100), two = value_of(2, 70000), three = value_of(3, 7);

  promise("values_of_a_batch_are_put_from_pieces_and_read_into_them");
  CHECK(client.put_slices_batch({"k0", "k1", "k2", "k3"}, {{one, two}, {}, {three}, {two, nmc::Bytes(), one}}).ok());
  CHECK(client.get("k0").text() == one + two && client.get("k1").empty() && client.get("k2").text() == three && client.get("k3").text() == two + one);
  std::vector<std::vector<nmc::Bytes>> lists(300);
  std::vector<std::string> keys, wanted;
  for (size_t i = 0; i < 300; ++i) {
    keys.push_back(key_of(i)), wanted.emplace_back();
    for (size_t n = 0; n < i % 4; ++n) lists[i].emplace_back(n == 1 ? two : one), wanted[i] += n == 1 ? two : one;
  }
  CHECK(client.put_slices_batch(nmc::all_keys(keys), lists).ok());
  std::vector<std::string> rooms(900, std::string(35100, ' '));
  std::vector<std::vector<nmc::MutableBytes>> to(300);
  for (size_t i = 0; i < 900; ++i) to[i / 3].emplace_back(rooms[i]);
  const auto got = client.get_slices_batch(nmc::all_keys(keys), to);
  CHECK(got.ok());
  for (size_t i = 0; i < 300; ++i) {
    CHECK(got.values[i] == wanted[i].size() && (rooms[3 * i] + rooms[3 * i + 1] + rooms[3 * i + 2]).substr(0, wanted[i].size()) == wanted[i]);
  }
  CHECK(client.put_slices_batch({"x", "y"}, {{one}}).status() == NMC_ERR_INVALID_ARG && !client.exists("x"));

  promise("one_value_is_submitted_from_pieces_and_read_into_them");
  std::string head(50, ' '), tail(70050, ' ');
  nmc::Calls calls(client);
  calls.put_slices("s", {nmc::Bytes(one), nmc::Bytes(two)});
  OK(calls.wait().at(0).status);
  calls.get_slices("s", {nmc::MutableBytes(head), nmc::MutableBytes(tail)});
  const nmc_client_completion_t done = calls.wait().at(0);
  CHECK(done.status == NMC_OK && done.bytes == 70100 && head + tail == one + two);
  client.submit_put_slices("t", {nmc::Bytes(two), nmc::Bytes(three)}, 5);
  OK(client.completions(std::chrono::milliseconds(-1)).at(0).status);
  CHECK(client.get("t").text() == two + three);
  head.assign(50, ' '), tail.assign(70050, ' ');
  client.submit_get_slices("s", {nmc::MutableBytes(head), nmc::MutableBytes(tail)}, 6);
  CHECK(client.completions(std::chrono::milliseconds(-1)).at(0).bytes == 70100 && head + tail == one + two);

  promise("batches_that_do_not_wait_have_pieces_too");
  const nmc_slice_t names[2] = {slice_of("b0"), slice_of("b1")};
  const nmc_slice_t bytes[3] = {slice(one), slice(three), slice(two)};
  const size_t counts[2] = {2, 1}, none[2] = {SIZE_MAX, 2};
  OK(nmc_client_submit_put_batch(client.get(), names, bytes, counts, 2, nullptr, 7, nullptr));
  OK(client.completions(std::chrono::milliseconds(-1)).at(0).status);
  std::string first(107, ' '), second(70000, ' ');
  const nmc_buffer_t into[3] = {{first.data(), 7}, {first.data() + 7, 100}, {second.data(), second.size()}};
  uint64_t sizes[2] = {7, 7};
  OK(nmc_client_submit_get_batch(client.get(), names, into, counts, 2, 8, sizes, nullptr));
  OK(client.completions(std::chrono::milliseconds(-1)).at(0).status);
  CHECK(first == one + three && second == two && sizes[0] == 107 && sizes[1] == 70000);

  promise("counts_that_cannot_be_are_refused");
  GIVES(nmc_client_put_batch(client.get(), names, bytes, none, 2, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_get_batch(client.get(), names, into, none, 2, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_put_batch(client.get(), names, nullptr, counts, 2, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_put_batch(client.get(), names, bytes, reinterpret_cast<const size_t*>(1), 2, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_submit_put_batch(client.get(), names, bytes, none, 2, nullptr, 9, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_submit_get_batch(client.get(), names, into, none, 2, 9, nullptr, nullptr), NMC_ERR_INVALID_ARG);
}

void drains() {
  Master master({"--settle_ms", "500"});
  Process a = node_process(master.address(), "a"), c([address = master.address()](Link& test) {
    std::string line;
    OpenClient node;
    while (test.hear(line, 1e6)) {
      node = OpenClient(address);
      const nmc_store_config_t config = segment_of(8 << 20);
      test.say(outcome(nmc_client_mount(node, slice_of("c"), &config)));
    }
  });
  REQUIRE(a.reply() == "NMC_OK");
  nmc::Client client = nmc::Client::open(config_of(master.address()));
  nmc::Client apart = nmc::Client::open(config_of(master.address()).namespace_name("apart"));
  for (size_t i = 0; i < 5; ++i) client.put(key_of(i), std::string_view("v"));

  promise("what_is_left_is_counted_and_named");
  const auto names = [](const std::string& what) {
    size_t named = 0;
    for (size_t i = 0; i < 5; ++i) named += what.find("\"" + key_of(i) + "\"") != what.npos;
    return named;
  };
  double start = seconds_now();
  nmc::Drained left = client.drain("a", std::chrono::milliseconds(1500));
  CHECK(!left && left.left == 5 && names(left.what) == 4 && left.what.find("and 1 more") != left.what.npos && left.what.find("\"a\"") != left.what.npos);
  if (names(left.what) != 4) printf("     said \"%s\"\n", left.what.c_str());
  CHECK(seconds_now() - start >= 1.4 && seconds_now() - start < kPatience / 2);
  uint64_t count = 77;
  GIVES(nmc_client_drain(client.get(), slice_of("a"), 0, &count), NMC_IN_PROGRESS);
  CHECK(count == 5 && names(nmc_last_error_message()) == 4);
  GIVES(nmc_client_drain(client.get(), slice_of("a"), -2, &count), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_drain(client.get(), slice_of("none"), 60000, &count), NMC_ERR_NOT_FOUND);
  for (size_t i = 1; i < 5; ++i) client.remove(key_of(i));
  bool named = false;
  for (start = seconds_now(); !named && seconds_now() - start < kPatience / 2; sleep_ms(20)) {
    left = client.drain("a");
    named = left.left == 1 && left.what.find(": \"key/0\"") != left.what.npos;
  }
  CHECK(named);
  client.undrain("a");
  client.remove_all();
  for (named = false, start = seconds_now(); !named && seconds_now() - start < kPatience / 2; sleep_ms(20)) {
    named = apart.nothrow()->put("other", std::string_view("v")).ok();
  }
  left = client.drain("a", std::chrono::milliseconds(1500));
  CHECK(left.left == 1 && left.what.find("\"other\" of namespace \"apart\"") != left.what.npos);

  promise("whoever_waits_hears_when_nothing_is_left_also_of_another_leader");
  nmc::Drained done;
  std::thread waits([&] { done = client.drain("a", std::chrono::seconds(60)); });
  sleep_ms(500);
  master.kill9();
  master.start();
  sleep_ms(500);
  nmc::Client taker = nmc::Client::open(config_of(master.address()));
  taker.mount("b", nmc::StoreConfig().heap_bytes(8 << 20));
  waits.join();
  CHECK(done && done.left == 0 && done.what.empty() && apart.get("other").text() == "v");

  promise("closing_ends_the_wait");
  REQUIRE(c.ask("mount") == "NMC_OK");
  client.put("stays", std::string_view("v"), nmc::Replicate().at("c"));
  OpenClient closing(master.address());
  std::atomic<bool> begun{false};
  nmc_status_t said = NMC_OK;
  std::thread waiting([&, handle = closing.client] {
    begun = true;
    said = nmc_client_drain(handle, slice_of("c"), -1, nullptr);
  });
  while (!begun) sleep_ms(1);
  sleep_ms(300);
  start = seconds_now();
  closing.close();
  waiting.join();
  CHECK((said == NMC_ERR_CANCELLED || said == NMC_ERR_BAD_HANDLE) && seconds_now() - start < kPatience / 4);
}

// Memory of the program, with nothing behind it.
struct Lent {
  size_t bytes;
  char* first;
  explicit Lent(size_t n) : bytes(n), first(static_cast<char*>(mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(first != MAP_FAILED);
  }
  ~Lent() { munmap(first, bytes); }
  bool has(const std::string& what) const { return std::string_view(first, bytes).find(what) != std::string_view::npos; }
  bool is_all(char c) const { return std::string_view(first, bytes).find_first_not_of(c) == std::string_view::npos; }
};

void lent() {
  Master master;
  Process a = node_process(master.address(), "a"), hammer([address = master.address()](Link& test) {
    // Puts to the segment and reads from there, as long as it is told to.
    OpenClient client(address, 3000);
    std::atomic<bool> ends{false};
    size_t done = 0;
    std::thread work([&] {
      nmc_replicate_t options = NMC_REPLICATE_INIT;
      const nmc_location_t place{slice_of("lent"), NMC_MEDIA_ANY, 0};
      options.locations = &place, options.n_locations = 1;
      const std::string value = value_of(5, 300000);
      std::string to(value.size(), ' ');
      for (size_t i = 0; !ends; ++i) {
        const std::string key = "hammer/" + std::to_string(i);
        const nmc_slice_t bytes = slice(value);
        const nmc_buffer_t into{to.data(), to.size()};
        const nmc_status_t put = nmc_client_put(client, slice(key), &bytes, 1, &options);
        if (put == NMC_OK) done += 1;
        if (put == NMC_OK && nmc_client_get(client, slice(key), &into, 1, nullptr) == NMC_OK) CHECK(to == value);
        nmc_client_remove(client, slice(key), NMC_REMOVE_ASYNC);
      }
    });
    std::string line;
    while (test.hear(line, 1e6) && line != "end") test.say("ok");
    ends = true;
    work.join();
    test.say(std::to_string(done));
  });
  REQUIRE(a.reply() == "NMC_OK");
  nmc::Client client = nmc::Client::open(config_of(master.address())), other = nmc::Client::open(config_of(master.address()));
  const nmc::Replicate there = nmc::Replicate().at("lent");

  promise("a_segment_lies_in_memory_of_the_program");
  const std::string value = value_of(3, 100000);
  {
    Lent memory(8 << 20);
    const auto config = nmc::StoreConfig().heap_bytes(memory.bytes).lend_host_ptr(memory.first);
    client.mount("lent", config);
    other.put("k", nmc::Bytes(value), there);
    CHECK(other.get("k").text() == value && client.get("k").text() == value && memory.has(value.substr(0, 4096)));
    for (const nmc::Segment& segment : other.segments()) CHECK(segment.name != "lent" || segment.capacity == memory.bytes);

    promise("another_mount_on_it_fails_and_the_first_goes_on");
    GIVES(client.nothrow()->mount("lent", config).status(), NMC_ERR_EXISTS);
    CHECK(other.get("k").text() == value);

    promise("when_it_is_unmounted_the_memory_is_the_programs");
    client.unmount("lent");
    CHECK(memory.has(value.substr(0, 4096)));
    munmap(memory.first, memory.bytes);
    REQUIRE(mmap(memory.first, memory.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory.first);
    CHECK(!client.get_if("k") && !other.exists("k"));
    other.put("elsewhere", nmc::Bytes(value), nmc::Replicate().at("a"));
  }

  promise("nothing_is_stored_there_after_that_whoever_still_puts_and_reads");
  {
    Lent memory(16 << 20);
    for (int round = 0; round < 12; ++round) {
      client.mount("lent", nmc::StoreConfig().heap_bytes(memory.bytes - 4096).heap_offset(0).lend_host_ptr(memory.first));
      sleep_ms(100);
      client.unmount("lent");
      memset(memory.first, 'm', memory.bytes);
      sleep_ms(30);
      CHECK(memory.is_all('m'));
    }
    hammer.send("end");
    const std::string puts = hammer.reply();
    printf("     %s values were put meanwhile\n", puts.c_str());
    CHECK(atoi(puts.c_str()) > 0);
  }

  promise("closing_the_client_gives_it_back_too_and_a_descriptor_can_be_lent");
  {
    Lent memory(4 << 20);
    nmc::Client closing = nmc::Client::open(config_of(master.address()));
    closing.mount("lent", nmc::StoreConfig().heap_bytes(memory.bytes).lend_host_ptr(memory.first));
    other.put("k", nmc::Bytes(value), there);
    closing.close();
    memset(memory.first, 'm', memory.bytes);
    CHECK(!other.nothrow()->get_if("k").ok() || !other.get_if("k"));
    CHECK(memory.is_all('m'));
  }
  const int fd = memfd_create("lent", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(fd >= 0 && ftruncate(fd, 4 << 20) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  client.mount("by-fd", nmc::StoreConfig().heap_bytes(4 << 20).lend_host_fd(fd));
  other.put("f", nmc::Bytes(value), nmc::Replicate().at("by-fd"));
  std::string whole(4 << 20, ' ');
  CHECK(other.get("f").text() == value && pread(fd, whole.data(), whole.size(), 0) == 4 << 20 && whole.find(value.substr(0, 4096)) != whole.npos);
  client.unmount("by-fd");
  close(fd);

  promise("memory_that_cannot_be_is_refused");
  Lent memory(1 << 20);
  const auto refused = [&](const nmc::StoreConfig& config) { return client.nothrow()->mount("bad", config).status(); };
  const auto base = [&] { return nmc::StoreConfig().heap_bytes(1 << 20); };
  GIVES(refused(base().lend_host_ptr(nullptr)), NMC_ERR_INVALID_ARG);
  GIVES(refused(base().lend_host_ptr(memory.first + 1)), NMC_ERR_INVALID_ARG);
  GIVES(refused(base().lend_host_fd(-1)), NMC_ERR_INVALID_ARG);
  GIVES(refused(base().lend_host_ptr(memory.first).world_size(2)), NMC_ERR_INVALID_ARG);
  GIVES(refused(base().lend_host_ptr(memory.first).heap_kind(nmc::HeapKind::cuda)), NMC_ERR_INVALID_ARG);
  GIVES(refused(base().lend_cuda_ptr(memory.first)), NMC_ERR_INVALID_ARG);
  nmc_store_config_t odd = NMC_STORE_CONFIG_INIT;
  odd.heap_bytes = 1 << 20, odd.heap_import.kind = 99;
  GIVES(nmc_client_mount(client.get(), slice_of("bad"), &odd), NMC_ERR_INVALID_ARG);

  promise("an_embedded_store_has_such_memory_too_and_a_store_of_a_world_does_not");
  const nmc::Store store = nmc::Store::embedded(base().page_bytes(4096).lend_host_ptr(memory.first));
  store.put("k", nmc::Bytes(value));
  CHECK(store.get("k").text() == value && memory.has(value.substr(0, 4096)));
  nmc_world_config_t world = NMC_WORLD_CONFIG_INIT;
  world.name = slice_of("lent"), world.world_size = 1, world.heap_bytes = 1 << 20;
  nmc_world_t* made = nullptr;
  OK(nmc_world_create_local(&world, &made));
  nmc_store_config_t of_world = base().lend_host_ptr(memory.first).c();
  nmc_store_t* none = nullptr;
  GIVES(nmc_store_create(made, &of_world, &none), NMC_ERR_INVALID_ARG);
  OK(nmc_world_destroy(made));
}

}  // namespace

int main(int argc, char** argv) {
  skip_without_join();
  { Master check; }  // skips the test if there is no such program
  const std::pair<const char*, void (*)()> all[] = {
      {"metadata", metadata}, {"removes", removes}, {"pieces", pieces}, {"drains", drains}, {"lent", lent}};
  // Each in a process of its own: nodes are forked off before it makes a handle.
  for (const auto& [name, one] : all) {
    if (argc > 1 && std::string(argv[1]) != name) continue;
    Process process([run = one](Link&) { run(); });
    CHECK(process.ends_well());
  }
  return finish();
}
