// nanomc/client.hpp: every function in both forms, from one body; without exceptions (wrapper_noexc.cpp) in the only one.
#include <set>
#include <string>

#include "../support/cluster.hpp"
#include "../support/forms.hpp"
#include "nanomc/client.hpp"

#define WORKS(...) (STATUS(__VA_ARGS__) == NMC_OK)

namespace {

std::string text(const nmc_slice_t& slice) { return std::string(static_cast<const char*>(slice.ptr), slice.len); }

void configs() {
  promise("a_config_fills_the_c_struct");
  nmc::ClientConfig config("a,b:7");
  config.local_hostname("here").metadata_server("etcd://c").protocol("tcp").device_names("d0,d1").token("secret").namespace_name("e");
  const nmc_client_config_t c = config.timeout(std::chrono::seconds(3)).cache_keys(9).keep_copies().c();
  CHECK(c.struct_size == sizeof c && c.abi_version == NMC_ABI_VERSION);
  CHECK(text(c.master_server) == "a,b:7" && text(c.local_hostname) == "here" && text(c.metadata_server) == "etcd://c");
  CHECK(text(c.protocol) == "tcp" && text(c.device_names) == "d0,d1" && text(c.token) == "secret" && text(c.namespace_name) == "e");
  CHECK(c.timeout_ms == 3000 && c.cache_keys == 9 && c.flags == NMC_CLIENT_KEEP_COPIES);
  CHECK(config.keep_copies(false).c().flags == 0 && text(config.master_server("z").c().master_server) == "z");
  CHECK(config.thread().c().flags == NMC_CLIENT_THREAD && config.thread(false).c().flags == 0);
  const nmc_client_config_t plain = nmc::ClientConfig().c();
  CHECK(plain.timeout_ms == -1 && plain.cache_keys == -1 && plain.flags == 0 && plain.master_server.len == 0);

  promise("options_of_a_put_fill_the_c_struct");
  const std::string said = "said";
  nmc::Replicate options;
  options.copies(3).copies_on(nmc::Media::ram, 2).copies_on(nmc::Media::ssd, 1).copies_on(nmc::Media::any, 9);
  options.retain(nmc::Retain::hard).priority(2).metadata(said).at("n1").at("n2", nmc::Media::ssd);
  const nmc_replicate_t r = options.c();
  CHECK(r.struct_size == sizeof r && r.copies == 3 && r.retain == NMC_RETAIN_HARD && r.priority == 2 && text(r.metadata) == "said");
  CHECK(r.media_copies[NMC_MEDIA_VRAM] == 0 && r.media_copies[NMC_MEDIA_RAM] == 2 && r.media_copies[NMC_MEDIA_SSD] == 1);
  CHECK(r.n_locations == 2 && text(r.locations[0].segment) == "n1" && r.locations[0].media == NMC_MEDIA_ANY);
  CHECK(text(r.locations[1].segment) == "n2" && r.locations[1].media == NMC_MEDIA_SSD);
  CHECK(nmc::Replicate().c().locations == nullptr && nmc::Replicate().c().copies == 1);
}

// Lists that are not one entry for each key: nothing is submitted, nothing beside them is written, and the message has the numbers.
template <class Client, class Calls>
void lists(Client& client) {
  promise("a_list_that_is_not_one_entry_for_each_key_is_refused_before_anything_is_submitted");
  const auto wait = std::chrono::milliseconds(-1);
  const std::vector<uint32_t> words = {1, 2, 3};
  const std::vector<nmc::Bytes> values(3, nmc::Bytes(words));
  const std::vector<std::vector<nmc::Bytes>> pieces(3, {nmc::Bytes(words), nmc::Bytes(words)});
  std::vector<std::vector<uint32_t>> rooms(6, std::vector<uint32_t>(3));
  const std::vector<nmc::MutableBytes> to(rooms.begin(), rooms.begin() + 3);
  std::vector<std::vector<nmc::MutableBytes>> into(3);
  for (size_t i = 0; i < 6; ++i) into[i / 2].emplace_back(rooms[i]);
  const std::vector<std::string> names = {"l/0", "l/1", "l/2"};
  const std::vector<nmc::Key> keys = nmc::all_keys(names);
  Calls calls(client);
  for (const size_t n : {size_t{1}, size_t{2}, size_t{4}}) {
    std::vector<nmc_status_t> few(n, 7);
    std::vector<uint64_t> small(n, 7), right(3, 7);
    CHECK(STATUS(client.submit_put_batch(keys, values, 1, few)) == NMC_ERR_INVALID_ARG);
    CHECK(STATUS(client.submit_put_slices_batch(keys, pieces, 1, few)) == NMC_ERR_INVALID_ARG);
    CHECK(STATUS(client.submit_get_batch(keys, to, 1, small)) == NMC_ERR_INVALID_ARG);
    CHECK(STATUS(client.submit_get_batch(keys, to, 1, right, few)) == NMC_ERR_INVALID_ARG);
    CHECK(STATUS(client.submit_get_slices_batch(keys, into, 1, small)) == NMC_ERR_INVALID_ARG);
    CHECK(STATUS(client.submit_get_slices_batch(keys, into, 1, {}, few)) == NMC_ERR_INVALID_ARG);
    CHECK(STATUS(client.submit_remove_batch(keys, 1, few)) == NMC_ERR_INVALID_ARG);
    CHECK(STATUS(calls.put_batch(keys, values, few)) == NMC_ERR_INVALID_ARG && STATUS(calls.put_slices_batch(keys, pieces, few)) == NMC_ERR_INVALID_ARG);
    CHECK(STATUS(calls.get_batch(keys, to, small)) == NMC_ERR_INVALID_ARG && STATUS(calls.get_batch(keys, to, {}, few)) == NMC_ERR_INVALID_ARG);
    CHECK(STATUS(calls.get_slices_batch(keys, into, small)) == NMC_ERR_INVALID_ARG && STATUS(calls.get_slices_batch(keys, into, right, few)) == NMC_ERR_INVALID_ARG);
    CHECK(STATUS(calls.remove_batch(keys, few)) == NMC_ERR_INVALID_ARG && calls.under_way() == 0);
    CHECK(few == std::vector<nmc_status_t>(n, 7) && small == std::vector<uint64_t>(n, 7) && right == std::vector<uint64_t>(3, 7));
  }
  nmc_status_t two[2];
  const nmc::Result<void> told = client.nothrow()->submit_remove_batch(keys, 1, two);
  CHECK(told.message() == "2 statuses for 3 keys: give one for each, or none");
  CHECK(client.nothrow()->submit_put_batch(keys, {words}, 1).message() == "1 values for 3 keys: give one for each");
  CHECK(STATUS(calls.put_batch(keys, {words})) == NMC_ERR_INVALID_ARG && STATUS(calls.get_slices_batch(keys, {})) == NMC_ERR_INVALID_ARG);
  CHECK(value_of(client.completions(wait)).empty() && !value_of(client.exists("l/0")));

  promise("values_of_a_submitted_batch_may_lie_in_pieces");
  const std::string head(100000, 'h'), tail = "tail";
  std::string first_half(100000, ' '), second_half(4, ' '), other(4, ' ');
  std::vector<nmc_status_t> statuses(2, 7);
  std::vector<uint64_t> sizes(2, 7);
  CHECK(WORKS(client.submit_put_slices_batch({"p/0", "p/1"}, {{head, tail}, {tail}}, 1, statuses)));
  CHECK(value_of(client.completions(wait)).at(0).status == NMC_OK && statuses == std::vector<nmc_status_t>(2, NMC_OK));
  CHECK(value_of(client.get("p/0")).text() == head + tail && value_of(client.get("p/1")).text() == tail);
  CHECK(WORKS(client.submit_get_slices_batch({"p/0", "none"}, {{first_half, second_half}, {other}}, 2, sizes, statuses)));
  CHECK(value_of(client.completions(wait)).at(0).status == NMC_ERR_NOT_FOUND && first_half == head && second_half == tail);
  CHECK(sizes[0] == 100004 && statuses == (std::vector<nmc_status_t>{NMC_OK, NMC_ERR_NOT_FOUND}));

  promise("calls_have_batches_too");
  statuses.assign(2, 7);
  CHECK(WORKS(calls.put_batch({"q/0", "q/1"}, {head, tail}, statuses)) && calls.under_way() == 1);
  CHECK(value_of(calls.wait()).at(0).status == NMC_OK && statuses == std::vector<nmc_status_t>(2, NMC_OK) && calls.under_way() == 0);
  statuses.assign(2, 7);
  CHECK(WORKS(calls.put_slices_batch({"q/2", "q/0"}, {{tail, head}, {tail}}, statuses, nmc::Replicate().copies(1))));
  CHECK(value_of(calls.wait()).at(0).status == NMC_ERR_EXISTS && statuses == (std::vector<nmc_status_t>{NMC_OK, NMC_ERR_EXISTS}));
  first_half.assign(100000, ' '), second_half.assign(4, ' '), sizes.assign(2, 7);
  CHECK(WORKS(calls.get_batch({"q/0", "q/1"}, {nmc::MutableBytes(first_half), nmc::MutableBytes(second_half)}, sizes)));
  CHECK(value_of(calls.wait()).at(0).status == NMC_OK && first_half == head && second_half == tail && sizes == (std::vector<uint64_t>{100000, 4}));
  first_half.assign(100000, ' '), second_half.assign(4, ' ');
  CHECK(WORKS(calls.get_slices_batch({"q/2"}, {{second_half, first_half}})));
  CHECK(value_of(calls.wait()).at(0).status == NMC_OK && first_half == head && second_half == tail);
  CHECK(WORKS(calls.remove_batch({"q/0", "none"}, statuses)) && value_of(calls.wait()).at(0).status == NMC_ERR_NOT_FOUND);
  CHECK(statuses == (std::vector<nmc_status_t>{NMC_OK, NMC_ERR_NOT_FOUND}));
  CHECK(WORKS(calls.remove_batch({"q/1", "q/2"}, {}, NMC_REMOVE_ASYNC)) && value_of(calls.wait()).at(0).status == NMC_OK);
  CHECK(STATUS(calls.remove_batch({"q/1"}, {}, 1u << 31)) == NMC_ERR_INVALID_ARG && calls.under_way() == 0);

  promise("what_a_batch_borrows_is_the_programs_again_when_its_calls_are_gone");
  {
    std::vector<nmc_status_t> mine(3, 7);
    std::vector<uint64_t> counted(3, 7);
    std::vector<std::string> large(3, std::string(1 << 20, 'l')), back(3, std::string(1 << 20, ' '));
    {
      Calls made(client);
      CHECK(WORKS(made.put_batch(keys, nmc::all_bytes(large), mine)));
    }
    large.clear(), mine.assign(3, 7);
    {
      Calls made(client);
      CHECK(WORKS(made.get_batch(keys, std::vector<nmc::MutableBytes>(back.begin(), back.end()), counted, mine)) && made.under_way() == 1);
    }
  }
  CHECK(value_of(client.completions(wait)).empty());
  CHECK(client.remove_batch({"l/0", "l/1", "l/2", "p/0", "p/1"}).items.size() == 5);
}

template <class Store, class Client, class Calls>
void calls(const Master& master) {
  const auto config = nmc::ClientConfig(master.address()).timeout(std::chrono::seconds(20));
  const auto segment = nmc::StoreConfig().heap_bytes(8 << 20);

  promise("failures_are_told_in_the_form_of_the_class");
  CHECK(STATUS(Client::open(nmc::ClientConfig())) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(Client::open(nmc::ClientConfig("10.255.0.1"))) == NMC_ERR_PERMISSION);
  CHECK(STATUS(Client().sync()) == NMC_ERR_BAD_HANDLE && STATUS(Client().get("a")) == NMC_ERR_BAD_HANDLE);
  Client client = value_of(Client::open(config));
  CHECK(STATUS(client.get("a")) == NMC_ERR_NOT_FOUND && STATUS(client.unmount("none")) == NMC_ERR_NOT_FOUND);
  CHECK(STATUS(client.put("a", std::string_view("v"))) == NMC_ERR_NO_SPACE);

  promise("memory_and_stores_become_nodes");
  const Client first = value_of(Client::open(config));
  CHECK(WORKS(first.mount("first", segment)));
  const Store store = value_of(Store::embedded(nmc::StoreConfig().heap_bytes(8 << 20).page_bytes(4096)));
  CHECK(WORKS(first.attach_store("second", store)) && STATUS(first.attach_store("second", store)) == NMC_ERR_EXISTS);
  std::set<std::string> names;
  for (const nmc::Segment& found : value_of(client.segments())) {
    CHECK(found.media == nmc::Media::ram && found.capacity > 0 && found.here && found.host == "127.0.0.1");
    if (found.state == nmc::SegmentState::ok) names.insert(found.name);
  }
  CHECK(names == (std::set<std::string>{"first", "second"}));

  promise("values_of_any_shape_are_put_and_read");
  const std::string large(300000, 'x');
  std::vector<uint32_t> words = {1, 2, 3};
  CHECK(WORKS(client.put("a", large, nmc::Replicate().copies(2))));
  CHECK(STATUS(client.put("a", large, nmc::Replicate().copies(2))) == NMC_ERR_EXISTS);
  CHECK(WORKS(client.put("b", words)) && WORKS(client.put_slices("c", {nmc::Bytes(large), nmc::Bytes(words)})));
  CHECK(WORKS(client.put("empty", nmc::Bytes())));
  CHECK(value_of(client.get("a")).text() == large && value_of(first.get("a")).text() == large);
  CHECK(value_of(client.get("c")).size() == 300012 && value_of(client.get("empty")).empty());
  CHECK(!value_of(client.get_if("none")) && value_of(client.get_if("b"))->size() == 12);
  std::vector<uint32_t> back(3);
  CHECK(value_of(client.get_into("b", back)) == 12 && back == words);
  std::vector<char> head(300000), tail(12);
  CHECK(value_of(client.get_slices("c", {nmc::MutableBytes(head), nmc::MutableBytes(tail)})) == 300012 && head[299999] == 'x');
  CHECK(std::memcmp(tail.data(), words.data(), 12) == 0);
  CHECK(value_of(first.get("b")).size() == 12 && value_of(first.get("empty")).empty());
  CHECK(STATUS(client.get_into("a", back)) == NMC_ERR_TOO_SMALL);
  CHECK(value_of(client.exists("a")) && !value_of(client.exists("none")));
  CHECK(value_of(client.size("a")) == 300000u && !value_of(client.size("none")));

  promise("copies_are_where_they_should_be");
  std::vector<nmc::Replica> copies = value_of(client.query("a"));
  CHECK(copies.size() == 2 && copies[0].put_id == copies[1].put_id && copies[0].endpoint != copies[1].endpoint);
  CHECK(copies[0].bytes == 300000 && copies[0].media == nmc::Media::ram && value_of(client.query("none")).empty());
  CHECK(WORKS(client.put("d", words, nmc::Replicate().at("second"))) && value_of(store.size("d")) == 12u);

  promise("what_is_put_into_an_attached_store_is_found");
  CHECK(WORKS(store.put("own", words)) && WORKS(first.sync()) && value_of(client.get("own")).size() == 12);

  promise("a_store_that_goes_on_to_the_cluster_reads_what_others_have");
  {
    const Store alone = value_of(Store::embedded(nmc::StoreConfig().heap_bytes(1 << 20)));
    const Store far = value_of(client.open_store(alone, std::chrono::seconds(20)));
    CHECK(value_of(far.get("own")).size() == 12 && value_of(far.state("own")) == nmc::ObjectState::elsewhere && value_of(far.exists("own")));
    CHECK(value_of(far.match_prefix({"own", "b", "none", "b"})) == 2 && value_of(far.size("a")) == 300000u && !value_of(far.exists("none")));
    CHECK(!value_of(alone.exists("own")) && STATUS(alone.get("own")) == NMC_ERR_NOT_FOUND);
    CHECK(STATUS(client.open_store(Store())) == NMC_ERR_BAD_HANDLE && STATUS(Client().open_store(alone)) == NMC_ERR_BAD_HANDLE);
  }

  promise("a_batch_tells_of_every_item");
  const std::vector<std::string> keys = {"b/0", "b/1", "b/2"}, values = {"zero", "one", std::string(100000, '2')};
  CHECK(client.put_batch(nmc::all_keys(keys), nmc::all_bytes(values)).ok());
  const nmc::Batch again = client.put_batch({"b/9", ""}, nmc::all_bytes(std::vector<std::string>{"x", "y"}));
  CHECK(again.status() == NMC_ERR_INVALID_ARG && again.items == (std::vector<nmc_status_t>{NMC_OK, NMC_ERR_INVALID_ARG}));
  CHECK(client.put_batch({"x"}, {}).status() == NMC_ERR_INVALID_ARG);
  std::vector<std::string> buffers(4, std::string(100000, ' '));
  std::vector<nmc::MutableBytes> into(buffers.begin(), buffers.end());
  auto got = client.get_into_batch({"b/0", "b/1", "b/2", "none"}, into);
  CHECK(got.status() == NMC_ERR_NOT_FOUND && got.items[2] == NMC_OK && got.items[3] == NMC_ERR_NOT_FOUND);
  CHECK(got.values == (std::vector<uint64_t>{4, 3, 100000, 0}) && buffers[1].substr(0, 4) == "one " && buffers[2] == values[2]);
  CHECK(value_of(client.exists_batch({"b/1", "none"})) == (std::vector<nmc_status_t>{NMC_OK, NMC_ERR_NOT_FOUND}));
  CHECK(STATUS(client.exists_batch({"b/1", ""})) == NMC_ERR_INVALID_ARG && STATUS(Client().exists_batch({"b/1"})) == NMC_ERR_BAD_HANDLE);

  promise("what_is_said_about_a_value_is_told");
  const std::string said = "said";
  CHECK(WORKS(client.put("m", words, nmc::Replicate().metadata(said))) && value_of(client.metadata("m"))->text() == said);
  CHECK(value_of(first.metadata("m"))->text() == said && !value_of(client.metadata("none")) && value_of(client.metadata("b"))->empty());
  CHECK(STATUS(client.metadata("")) == NMC_ERR_INVALID_ARG && STATUS(client.get_with_metadata("none")) == NMC_ERR_NOT_FOUND);
  CHECK(value_of(client.get_with_metadata("m")).metadata.text() == said && value_of(client.get_with_metadata("a")).value.text() == large);
  const auto about = client.metadata_batch({"m", "none", "b"});
  CHECK(about.status() == NMC_ERR_NOT_FOUND && about.items[0] == NMC_OK && about.items[2] == NMC_OK && about.values[0].text() == said);

  promise("values_of_a_batch_may_lie_in_pieces");
  CHECK(client.put_slices_batch({"sb/0", "sb/1"}, {{nmc::Bytes(large), nmc::Bytes(words)}, {nmc::Bytes(said)}}).ok());
  CHECK(value_of(client.get("sb/0")).size() == 300012 && value_of(client.get("sb/1")).text() == said);
  CHECK(client.put_slices_batch({"x"}, {}).status() == NMC_ERR_INVALID_ARG);
  const auto pieces = client.get_slices_batch({"sb/0"}, {{nmc::MutableBytes(head), nmc::MutableBytes(tail)}});
  CHECK(pieces.ok() && pieces.values[0] == 300012 && std::memcmp(tail.data(), words.data(), 12) == 0);
  const nmc::Batch gone = client.remove_batch({"m", "sb/0", "none", "sb/1"});
  CHECK(gone.status() == NMC_ERR_NOT_FOUND && gone.items == (std::vector<nmc_status_t>{NMC_OK, NMC_OK, NMC_ERR_NOT_FOUND, NMC_OK}));
  CHECK(client.remove_batch({}).ok() && client.remove_batch({"x"}, 1u << 31).status() == NMC_ERR_INVALID_ARG);

  promise("keys_are_listed_page_by_page");
  const std::vector<std::string> some = value_of(client.keys("b/"));
  CHECK(std::set<std::string>(some.begin(), some.end()) == (std::set<std::string>{"b/0", "b/1", "b/2", "b/9"}) && some.size() == 4);
  CHECK(value_of(client.keys("zzz")).empty() && value_of(client.keys()).size() >= 9);
  uint64_t cursor = 0;
  CHECK(value_of(client.keys_page(cursor, "b/1")) == std::vector<std::string>{"b/1"} && cursor == 0);
  Client apart = value_of(Client::open(nmc::ClientConfig(master.address()).namespace_name("apart")));
  CHECK(value_of(apart.keys()).empty());

  promise("what_is_submitted_is_told_when_it_has_ended");
  CHECK(WORKS(client.submit_put("s", words, 1)) && value_of(client.completions(std::chrono::milliseconds(-1))).at(0).token == 1);
  std::vector<uint32_t> once(3), twice(3);
  CHECK(WORKS(client.submit_get("s", once, 2)) && value_of(client.event_fd()) >= 0);
  const nmc_client_completion_t read = value_of(client.completions(std::chrono::milliseconds(-1))).at(0);
  CHECK(read.token == 2 && read.status == NMC_OK && read.bytes == 12 && once == words && !value_of(client.cancel(2)));
  nmc_status_t told[2] = {7, 7};
  uint64_t sizes[2] = {7, 7};
  CHECK(WORKS(client.submit_put_batch({"s/1", "s/2"}, {nmc::Bytes(words), nmc::Bytes(words)}, 3, told)));
  CHECK(value_of(client.completions(std::chrono::milliseconds(-1))).size() == 1 && told[0] == NMC_OK && told[1] == NMC_OK);
  CHECK(WORKS(client.submit_get_batch({"s/1", "none"}, {nmc::MutableBytes(once), nmc::MutableBytes(twice)}, 4, sizes, told)));
  CHECK(value_of(client.completions(std::chrono::milliseconds(-1))).at(0).status == NMC_ERR_NOT_FOUND && sizes[0] == 12 && told[0] == NMC_OK);
  CHECK(STATUS(client.submit_put_batch({"x"}, {}, 5)) == NMC_ERR_INVALID_ARG);
  CHECK(STATUS(client.submit_get_batch({"x"}, {}, 5)) == NMC_ERR_INVALID_ARG);
  CHECK(WORKS(client.submit_remove("s", 6)) && value_of(client.completions(std::chrono::milliseconds(-1))).at(0).status == NMC_OK);
  std::string room(300, ' ');
  CHECK(WORKS(client.submit_put_slices("s", {nmc::Bytes(words), nmc::Bytes(words)}, 7, nmc::Replicate().metadata(said))));
  CHECK(value_of(client.completions(std::chrono::milliseconds(-1))).at(0).status == NMC_OK);
  CHECK(WORKS(client.submit_get_slices("s", {nmc::MutableBytes(once), nmc::MutableBytes(twice)}, 8)));
  CHECK(value_of(client.completions(std::chrono::milliseconds(-1))).at(0).bytes == 24 && once == words && twice == words);
  CHECK(WORKS(client.submit_metadata("s", room, 9)) && value_of(client.completions(std::chrono::milliseconds(-1))).at(0).bytes == 4);
  CHECK(room.substr(0, 4) == said && WORKS(client.submit_remove("s", 10, NMC_REMOVE_ASYNC)));
  CHECK(value_of(client.completions(std::chrono::milliseconds(-1))).at(0).status == NMC_OK && STATUS(client.submit_remove("s", 11, 99)) == NMC_ERR_INVALID_ARG);
  CHECK(WORKS(client.submit_remove_batch({"s/1", "none"}, 12, told)));
  CHECK(value_of(client.completions(std::chrono::milliseconds(-1))).at(0).token == 12 && told[0] == NMC_OK && told[1] == NMC_ERR_NOT_FOUND);
  {
    Calls made(client);
    CHECK(WORKS(made.put_slices("u", {nmc::Bytes(words), nmc::Bytes(said)}, nmc::Replicate().metadata(said))) && !value_of(made.wait()).empty());
    CHECK(WORKS(made.get_slices("u", {nmc::MutableBytes(once), nmc::MutableBytes(room)})) && value_of(made.wait()).at(0).bytes == 16);
    CHECK(WORKS(made.metadata("u", room)) && value_of(made.wait()).at(0).bytes == 4);
    CHECK(WORKS(made.remove("u", NMC_REMOVE_ASYNC)) && value_of(made.wait()).at(0).status == NMC_OK && STATUS(made.remove("u", 99)) == NMC_ERR_INVALID_ARG);
  }
  {
    Calls made(client);
    const uint64_t first_token = value_of(made.put("t", words)), second_token = value_of(made.get("b/0", once));
    CHECK(first_token != second_token && made.under_way() == 2);
    while (made.under_way() > 0) CHECK(!value_of(made.wait()).empty());
    CHECK(WORKS(made.remove("t")) && WORKS(made.get("b/2", head)) && STATUS(made.get("", once)) == NMC_ERR_INVALID_ARG);
    CHECK(made.under_way() == 2);
  }
  CHECK(value_of(client.completions(std::chrono::milliseconds(-1))).empty());

  lists<Client, Calls>(client);

  promise("what_is_removed_is_gone");
  CHECK(value_of(client.remove("a")) == nmc::Removed::everywhere && !value_of(first.exists("a")));
  CHECK(value_of(client.remove("a")) == nmc::Removed::absent);
  CHECK(value_of(client.remove_async("b")) != nmc::Removed::absent && !value_of(client.get_if("b")));
  CHECK(WORKS(client.put("a", words)) && value_of(client.get("a")).size() == 12);
  CHECK(value_of(client.remove_all()) == nmc::Removed::everywhere && !value_of(client.exists("c")));

  promise("a_segment_is_drained_before_it_goes");
  CHECK(WORKS(client.put("kept", words, nmc::Replicate().at("first"))));
  const nmc::Drained begun = value_of(first.drain("first"));
  CHECK(!begun && !begun.what.empty());
  const nmc::Drained drained = value_of(first.drain("first", std::chrono::seconds(60)));
  CHECK(drained && drained.left == 0 && drained.what.empty() && WORKS(first.unmount("first")) && value_of(client.get("kept")).size() == 12);
  CHECK(STATUS(client.drain("none")) == NMC_ERR_NOT_FOUND && STATUS(client.undrain("none")) == NMC_ERR_NOT_FOUND);
  CHECK(WORKS(client.drain("second")) && WORKS(client.undrain("second")) && WORKS(client.put("again", words)));

  promise("memory_is_registered_once");
  CHECK(WORKS(client.register_memory(head)) && STATUS(client.register_memory(head)) == NMC_ERR_EXISTS);
  CHECK(WORKS(client.unregister_memory(head.data())) && STATUS(client.unregister_memory(head.data())) == NMC_ERR_NOT_FOUND);

  promise("a_client_can_be_moved_and_closed");
  CHECK(client.nothrow()->exists("kept").ok());
  Client moved = std::move(client);
  CHECK(!client && moved && WORKS(moved.close()) && !moved);
}

}  // namespace

int main() {
  skip_without_join();
  configs();
  Master returning;
  calls<nmc::nothrow::Store, nmc::nothrow::Client, nmc::nothrow::Calls>(returning);
#if NMC_HPP_EXCEPTIONS
  Master throwing;
  calls<nmc::Store, nmc::Client, nmc::Calls>(throwing);
#endif
  return finish();
}
