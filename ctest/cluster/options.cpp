// What a client can choose: that values go after they were read, which of several copies is read, where values go (nmc_client_set_placement), and in how many parts.
#include <atomic>
#include <cstring>
#include <thread>

#include <nanomc.hpp>

#include "../support/cluster.hpp"
#include "../support/value.hpp"

namespace {

// A process with a node of so many bytes.
Process node_process(const std::string& master, const std::string& name, uint64_t bytes = 32 << 20) {
  return Process([=](Link& test) {
    OpenClient client(master);
    const nmc_store_config_t config = segment_of(bytes);
    test.say(outcome(nmc_client_mount(client, slice(name), &config)));
    std::string line;
    while (test.hear(line, 1e6)) test.say("ok");
  });
}

nmc::ClientConfig config_of(const std::string& master) { return nmc::ClientConfig(master).timeout(std::chrono::milliseconds(10000)); }

template <class Is>
bool soon(Is is, double seconds = kPatience / 2) {
  for (const double start = seconds_now(); seconds_now() - start < seconds; sleep_ms(10)) {
    if (is()) return true;
  }
  return is();
}

struct Nodes {
  Master master;
  std::vector<Process> processes;
  explicit Nodes(std::vector<std::string> names) {
    for (const std::string& name : names) processes.push_back(node_process(master.address(), name));
    for (Process& process : processes) CHECK(process.reply() == "NMC_OK");
  }
};

void expiry() {
  promise("what_was_read_goes_after_its_time_with_all_its_copies");
  Nodes nodes({"a", "b"});
  const std::string master = nodes.master.address();
  nmc::Client plain = nmc::Client::open(config_of(master));
  nmc::Client reader = nmc::Client::open(config_of(master).expire_after_get(std::chrono::milliseconds(1500)));
  plain.put("read", std::string_view("value"), nmc::Replicate().copies(2));
  plain.put("stays", std::string_view("value"), nmc::Replicate().copies(2));
  CHECK(plain.get("stays").text() == "value");
  const double start = seconds_now();
  CHECK(reader.get("read").text() == "value");
  while (seconds_now() - start < 0.5) {
    if (seconds_now() - start < 0.5) CHECK(plain.exists("read"));
    sleep_ms(50);
  }
  CHECK(soon([&] { return !plain.exists("read"); }));
  CHECK(plain.query("read").empty());
  CHECK(soon([&] { return !plain.get_if("read").has_value(); }));  // it remembers the place, and the owner hears of it a moment later
  CHECK(plain.exists("stays"));

  promise("a_value_that_is_put_before_the_former_goes_stays");
  plain.put("again", std::string_view("former"));
  CHECK(reader.get("again").text() == "former");
  CHECK(plain.remove("again") == nmc::Removed::everywhere);
  plain.put("again", std::string_view("next"));
  sleep_ms(3000);
  CHECK(plain.get("again").text() == "next");

  promise("what_a_node_of_this_client_has_goes_too");
  nmc::Client own = nmc::Client::open(config_of(master).expire_after_get(std::chrono::milliseconds(300)));
  own.mount("own", nmc::StoreConfig().heap_bytes(8 << 20));
  own.put("here", std::string_view("mine"), nmc::Replicate().at("own"));
  sleep_ms(1000);
  CHECK(plain.exists("here"));  // nobody has read it
  CHECK(own.get("here").text() == "mine");
  CHECK(soon([&] { return !plain.exists("here"); }));
  CHECK(soon([&] { return !own.get_if("here").has_value(); }));  // its node hears of it a moment later
  // By calls that nobody waits for, and in a batch.
  std::vector<std::string> texts{"s0", "s1", "s2", "s3"};
  std::vector<nmc::Key> keys(texts.begin(), texts.end());
  for (size_t i = 0; i < texts.size(); ++i) plain.put(texts[i], std::string_view("x"), nmc::Replicate().at(i % 2 == 0 ? "own" : "a"));
  char room[4];
  {
    nmc::Calls calls(own);
    for (size_t i = 0; i < 2; ++i) calls.get(texts[i], nmc::MutableBytes(room + i, 1));
    while (calls.under_way() > 0) {
      for (const nmc_client_completion_t& done : calls.wait()) OK(done.status);
    }
  }
  const std::vector<nmc::MutableBytes> places{{room, 1}, {room + 1, 1}};
  CHECK(own.get_into_batch(std::vector<nmc::Key>{texts[2], texts[3]}, places).status() == NMC_OK);
  for (const std::string& text : texts) CHECK(soon([&] { return !plain.exists(text); }));

  promise("whoever_reads_it_while_it_goes_has_all_of_it");
  nmc::Client quick = nmc::Client::open(config_of(master).expire_after_get(std::chrono::milliseconds(1)).cache_keys(1000));
  std::string large(8 << 20, ' '), to(8 << 20, ' ');
  int whole = 0, missed = 0;
  for (int round = 0; round < 12; ++round) {
    make_value(round, 0, large.data(), large.size());
    plain.put("large", nmc::Bytes(large), nmc::Replicate().at("a"));
    std::thread other([&] { CHECK(quick.get("large").size() == large.size()); });
    for (nmc_status_t status = NMC_OK; status == NMC_OK;) {
      const auto got = plain.nothrow()->get_into("large", nmc::MutableBytes(to.data(), to.size()));
      status = got.status();
      (status == NMC_OK ? whole : missed)++;
      if (status == NMC_OK) CHECK(to == large);
      if (status != NMC_OK) CHECK(status == NMC_ERR_NOT_FOUND);
    }
    other.join();
    CHECK(soon([&] { return !plain.exists("large"); }));
  }
  printf("     %d times whole, %d times gone\n", whole, missed);

  promise("a_master_that_is_started_again_does_not_know_of_it_and_hears_it_from_the_next_who_reads");
  plain.put("kept", std::string_view("value"), nmc::Replicate().at("a"));
  CHECK(reader.get("kept").text() == "value");
  nodes.master.kill9();
  nodes.master.start();
  sleep_ms(2500);
  const auto is_there = [&] {
    const auto there = plain.nothrow()->exists("kept");
    return there.ok() && *there;
  };
  CHECK(soon(is_there));
  CHECK(reader.get("kept").text() == "value");
  CHECK(soon([&] { return !plain.exists("kept"); }));
}

int32_t fixed_answer(void* user, const nmc_placement_t* put, uint32_t* out) {
  const int32_t answer = *static_cast<int32_t*>(user);
  const uint32_t n = static_cast<uint32_t>(put->n_segments);
  switch (answer) {
    case 100: return out[0] = n, 1;                        // there is no such segment
    case 101: return out[0] = UINT32_MAX, 1;
    case 102: return out[0] = 0, out[1] = 0, 2;            // twice
    case 103: return 17;                                   // more than there is room for
    case 104: return INT32_MAX;
    case 105: return 1;                                    // it has stored none
    default: return answer;
  }
}

std::atomic<int> released{0};
void release(void*) { ++released; }

void placement() {
  promise("a_program_says_where_values_go");
  Nodes nodes({"a", "b", "c"});
  const std::string master = nodes.master.address();
  nmc::Client client = nmc::Client::open(config_of(master));
  const auto on = [&](const char* key) {
    std::vector<std::string> names;
    const std::vector<nmc::Replica> replicas = client.query(key);
    return replicas.size();
  };
  // The endpoint of a segment, as somebody sees it who puts a value there.
  const auto endpoint = [&](const std::string& segment) {
    const std::string key = "probe-" + segment;
    client.put(key, std::string_view("x"), nmc::Replicate().at(segment));
    return client.query(key).at(0).endpoint;
  };
  const std::string at_b = endpoint("b"), at_c = endpoint("c");
  int calls = 0;
  const std::thread::id self = std::this_thread::get_id();
  client.set_placement([&](const nmc::Placing& put) {
    ++calls;
    CHECK(std::this_thread::get_id() == self && put.size() == 3 && put.bytes() == 5);
    std::vector<uint32_t> chosen;
    for (uint32_t i = 0; i < put.size(); ++i) {
      const nmc::Segment segment = put[i];
      CHECK(segment.state == nmc::SegmentState::ok && segment.media == nmc::Media::ram && segment.capacity > 0);
      CHECK(segment.here && segment.host == "127.0.0.1");
      if (segment.name == (put.key() == "to-b" ? "b" : "c")) chosen.push_back(i);
    }
    return put.key() == "anywhere" ? std::vector<uint32_t>{} : chosen;
  });
  for (int i = 0; i < 5; ++i) {
    client.put("to-b", std::string_view("12345"));
    CHECK(client.query("to-b").at(0).endpoint == at_b);
    CHECK(client.remove("to-b") == nmc::Removed::everywhere);
  }
  client.put("two", std::string_view("12345"), nmc::Replicate().copies(2));  // the leader chooses the other one
  const std::vector<nmc::Replica> two = client.query("two");
  CHECK(two.size() == 2 && (two[0].endpoint == at_c || two[1].endpoint == at_c));
  client.put("anywhere", std::string_view("12345"));
  CHECK(on("anywhere") == 1 && calls == 7);
  client.put("named", std::string_view("12345"), nmc::Replicate().at("b"));
  CHECK(calls == 7 && client.query("named").at(0).endpoint == at_b);  // who names a place is not asked
  std::vector<std::string> texts{"p0", "p1", "p2"};
  std::vector<nmc::Key> keys(texts.begin(), texts.end());
  const std::vector<nmc::Bytes> values(3, nmc::Bytes(std::string_view("12345")));
  CHECK(client.put_batch(keys, values).status() == NMC_OK && calls == 10);
  {
    nmc::Calls submitted(client);
    submitted.put("p3", std::string_view("12345"));
    CHECK(calls == 11);  // when it was submitted
    while (submitted.under_way() > 0) {
      for (const nmc_client_completion_t& done : submitted.wait()) OK(done.status);
    }
  }
  for (const char* key : {"p0", "p1", "p2", "p3"}) CHECK(client.query(key).at(0).endpoint == at_c);

  promise("what_it_throws_ends_that_put");
  client.set_placement([](const nmc::Placing&) -> std::vector<uint32_t> { throw std::runtime_error("no"); });
  GIVES(client.nothrow()->put("thrown", std::string_view("12345")).status(), NMC_ERR_INVALID_ARG);
  CHECK(!client.exists("thrown"));
  client.set_placement({});
  client.put("thrown", std::string_view("12345"));

  promise("rubbish_is_a_status_and_what_was_given_is_released_once");
  int32_t answer = 0;
  const nmc_slice_t key = slice_of("rubbish"), value = slice_of("12345");
  OK(nmc_client_set_placement(client.get(), fixed_answer, &answer, release));
  for (answer = 100; answer <= 105; ++answer) {
    GIVES(nmc_client_put(client.get(), key, &value, 1, nullptr), NMC_ERR_INVALID_ARG);
    if (!CHECK(strstr(nmc_last_error_message(), "placement") != nullptr)) printf("     %s\n", nmc_last_error_message());
  }
  for (const int32_t unknown : {-9999, -26, INT32_MIN}) {
    answer = unknown;
    GIVES(nmc_client_put(client.get(), key, &value, 1, nullptr), NMC_ERR_INVALID_ARG);
    CHECK(strstr(nmc_last_error_message(), "placement") != nullptr);
  }
  for (answer = -25; answer < 0; ++answer) GIVES(nmc_client_put(client.get(), key, &value, 1, nullptr), answer);
  GIVES(nmc_client_exists(client.get(), key), NMC_ERR_NOT_FOUND);
  CHECK(released == 0);
  OK(nmc_client_set_placement(client.get(), nullptr, nullptr, nullptr));
  CHECK(released == 1);
  OK(nmc_client_set_placement(client.get(), fixed_answer, &answer, release));
  answer = 0;
  OK(nmc_client_put(client.get(), key, &value, 1, nullptr));
  client.close();
  CHECK(released == 2);

  promise("a_segment_that_takes_nothing_more_is_said_so");
  nmc::Client other = nmc::Client::open(config_of(master));
  CHECK(soon([&] { return other.drain("b").done; }));
  other.set_placement([](const nmc::Placing& put) {
    for (uint32_t i = 0; i < put.size(); ++i) {
      if (put[i].name == "b") return std::vector<uint32_t>{i};
    }
    return std::vector<uint32_t>{};
  });
  GIVES(other.nothrow()->put("full", std::string_view("12345")).status(), NMC_ERR_NO_SPACE);
  CHECK(strstr(nmc_last_error_message(), "\"b\"") != nullptr);
}

void orders() {
  promise("whichever_copy_is_read_first_it_is_the_value");
  Nodes nodes({"a", "b", "c"});
  const std::string master = nodes.master.address();
  nmc::Client::open(config_of(master)).put("k", std::string_view("value"), nmc::Replicate().copies(3));
  for (const nmc::ReadOrder order : {nmc::ReadOrder::near, nmc::ReadOrder::memory, nmc::ReadOrder::spread}) {
    nmc::Client client = nmc::Client::open(config_of(master).read_order(order));
    std::vector<nmc::Key> keys(64, "k");
    std::string room(64 * 5, ' ');
    std::vector<nmc::MutableBytes> to;
    for (size_t i = 0; i < 64; ++i) to.emplace_back(room.data() + 5 * i, 5);
    for (int round = 0; round < 10; ++round) CHECK(client.get_into_batch(keys, to).status() == NMC_OK);
    for (size_t i = 0; i < 64; ++i) CHECK(room.compare(5 * i, 5, "value") == 0);
  }
}

void stripes() {
  promise("a_large_value_is_in_parts_on_all_nodes_and_one_value_to_everybody");
  Nodes nodes({"a", "b", "c"});
  const std::string master = nodes.master.address();
  nmc::Client writer = nmc::Client::open(config_of(master).stripe_bytes(1 << 20));
  nmc::Client reader = nmc::Client::open(config_of(master));
  std::string large((6 << 20) + 5, ' '), to(large.size(), ' ');
  make_value(1, 0, large.data(), large.size());
  // How many of these nodes have something, by what they said last.
  const auto filled = [&](std::string_view names) {
    size_t count = 0;
    for (const nmc::Segment& segment : reader.segments()) count += segment.used > 0 && names.find(segment.name) != names.npos;
    return count;
  };
  const auto read = [&] { return reader.nothrow()->get_into("large", nmc::MutableBytes(to.data(), to.size())).status(); };
  writer.put("large", nmc::Bytes(large));
  CHECK(soon([&] { return filled("abc") == 3; }));
  OK(read());
  CHECK(to == large && reader.query("large").size() == 1 && reader.query("large")[0].bytes == large.size());
  CHECK(reader.remove("large") == nmc::Removed::everywhere);
  GIVES(read(), NMC_ERR_NOT_FOUND);
  CHECK(soon([&] { return filled("abc") == 0; }));

  promise("a_value_of_which_a_node_that_is_killed_has_parts_is_not_found_unless_there_are_copies_and_is_put_again");
  writer.put("large", nmc::Bytes(large));
  std::string twice(large.size(), ' ');
  writer.put("twice", nmc::Bytes(large), nmc::Replicate().copies(2));
  OK(read());
  nodes.processes[1].kill9();
  CHECK(soon([&] { return read() == NMC_ERR_NOT_FOUND; }, kPatience));
  CHECK(reader.get_into("twice", nmc::MutableBytes(twice.data(), twice.size())) == twice.size() && twice == large);
  reader.remove("twice");
  writer.put("large", nmc::Bytes(large));
  OK(read());
  CHECK(to == large);
  reader.remove("large");
  CHECK(soon([&] { return filled("ac") == 0; }));
}

// A process with a node whose store has several ranks, each with so many bytes.
Process wide_process(const std::string& master, const std::string& name, uint32_t ranks, uint64_t bytes) {
  return Process([=](Link& test) {
    OpenClient client(master);
    nmc_store_config_t config = segment_of(bytes);
    config.world_size = ranks;
    test.say(outcome(nmc_client_mount(client, slice(name), &config)));
    std::string line;
    while (test.hear(line, 1e6)) test.say("ok");
  });
}

void ranks() {
  Master master;
  Process wide = wide_process(master.address(), "wide", 4, 8 << 20), plain = node_process(master.address(), "plain");
  CHECK(wide.reply() == "NMC_OK" && plain.reply() == "NMC_OK");
  nmc::Client client = nmc::Client::open(config_of(master.address()));
  const std::string value(512 << 10, 'v');
  const auto found = [&](const std::string& prefix, int n) {
    int count = 0;
    for (int i = 0; i < n; ++i) count += client.nothrow()->exists(prefix + std::to_string(i)).value();
    return count;
  };
  const auto put = [&](const std::string& key, const char* where, nmc::Retain retain = nmc::Retain::none) {
    return client.nothrow()->put(key, nmc::Bytes(value), nmc::Replicate().at(where).retain(retain)).status();
  };

  promise("a_node_that_is_named_takes_values_on_all_of_its_ranks");
  for (int i = 0; i < 40; ++i) OK(put("n" + std::to_string(i), "wide"));
  CHECK(found("n", 40) == 40);

  promise("what_a_segment_has_no_room_for_goes_to_another_of_its_node_unless_it_was_named");
  for (int i = 0; i < 40; ++i) client.remove("n" + std::to_string(i));
  int kept = 0;
  while (put("h" + std::to_string(kept), "wide/2", nmc::Retain::hard) == NMC_OK) ++kept;
  CHECK(kept > 8 && kept <= 16);
  for (int i = 0; i < 24; ++i) OK(put("o" + std::to_string(i), "wide"));
  CHECK(found("o", 24) == 24 && found("h", kept) == kept);
  for (int i = 0; i < 24; ++i) client.remove("o" + std::to_string(i));

  promise("copies_for_a_drain_go_where_there_is_room_and_evict_nothing");
  for (int i = 0; i < 8; ++i) OK(put("w" + std::to_string(i), "wide/0"));
  for (int i = 0; i < 24; ++i) OK(put("p" + std::to_string(i), "plain"));
  CHECK(soon(
      [&] {
        const auto empty = client.nothrow()->drain("plain");
        return empty.ok() && empty->done;
      },
      kPatience));
  plain.send("end");
  plain.kill9();
  CHECK(found("w", 8) == 8);
  int there = 0;
  for (int i = 0; i < 24; ++i) there += client.nothrow()->get("p" + std::to_string(i)).ok();
  CHECK(there == 24);
}

}  // namespace

int main() {
  skip_without_join();
  { Master check; }  // skips the test if there is no such program
  // Each in a process of its own: nodes are forked off before it makes a handle.
  for (void (*one)() : {expiry, placement, orders, stripes, ranks}) {
    Process process([one](Link&) { one(); });
    CHECK(process.ends_well());
  }
  return finish();
}
