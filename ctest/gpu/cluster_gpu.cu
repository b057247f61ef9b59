// Values of a cluster in memory of a GPU: put from there and read into it, alone, in batches, in pieces of which some are host memory,
// on another node and on one of this client; what is refused; bytes behind the value that nobody may touch. And a store whose heap is on the GPU, as a node.
//   cluster_gpu           all of it
//   cluster_gpu broken    the control: one byte on the device is changed after a get
//   cluster_gpu rdma      the same, and NIXL moves what is in registered memory and in the heap of that store, by UCX over TCP on the loopback device. Where
//                         it is not installed (NMC_NIXL) it is skipped
//   cluster_gpu spoiled   the control for the node: one byte of its heap is changed, and nobody is to see that
#include <cuda_runtime.h>

#include <atomic>
#include <sstream>
#include <thread>

#include "../support/cluster.hpp"
#include "../support/value.hpp"

namespace {

bool broken = false;

// What the log says that NIXL has moved from this process.
std::atomic<unsigned long long> moved{0};
void listen(int32_t, const char* line, void*) {
  unsigned long long bytes = 0;
  const char* at = strstr(line, "NIXL has moved ");
  if (at && sscanf(at, "NIXL has moved %llu", &bytes) == 1) moved += bytes;
}

void cuda(cudaError_t status) {
  if (status != cudaSuccess) printf("CUDA: %s\n", cudaGetErrorString(status));
  REQUIRE(status == cudaSuccess);
}

// Memory of the device, all bytes 0xEE at first.
struct OnDevice {
  char* at = nullptr;
  size_t size;
  nmc_client_t* known = nullptr;
  // With a client it is registered with NIXL, if that is used.
  explicit OnDevice(size_t bytes, nmc_client_t* client = nullptr) : size(bytes), known(protocol.empty() ? nullptr : client) {
    cuda(cudaMalloc(&at, bytes));
    cuda(cudaMemset(at, 0xEE, bytes));
    cuda(cudaDeviceSynchronize());
    if (known) REQUIRE(OK(nmc_client_register(known, at, bytes)));
  }
  ~OnDevice() {
    if (known) OK(nmc_client_unregister(known, at));
    cudaFree(at);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  void set(const std::string& bytes, size_t from = 0) {
    cuda(cudaMemcpy(at + from, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    cuda(cudaDeviceSynchronize());
  }
  std::string get(size_t from, size_t bytes) {
    std::string out(bytes, ' ');
    if (broken && bytes > 0) cuda(cudaMemset(at + from, 0x11, 1));
    cuda(cudaMemcpy(out.data(), at + from, bytes, cudaMemcpyDeviceToHost));
    return out;
  }
};

nmc_slice_t part(const char* at, size_t bytes) { return {at, bytes}; }
nmc_buffer_t room(char* at, size_t bytes) { return {at, bytes}; }

// A value from the device, read into host memory and into the device, with room to spare.
void one(nmc_client_t* client, const std::string& key, size_t bytes) {
  const std::string value = value_of(bytes, bytes);
  OnDevice source(bytes + 1, client), target(bytes + 4096, client);
  source.set(value);
  const nmc_slice_t from = part(source.at, bytes);
  REQUIRE(OK(nmc_client_put(client, slice(key), &from, 1, nullptr)));
  std::string host(bytes, ' ');
  uint64_t size = 0;
  nmc_buffer_t to = room(host.data(), host.size());
  REQUIRE(OK(nmc_client_get(client, slice(key), &to, 1, &size)));
  REQUIRE(size == bytes && host == value);
  to = room(target.at, bytes + 4096);
  size = 0;
  REQUIRE(OK(nmc_client_get(client, slice(key), &to, 1, &size)));
  REQUIRE(size == bytes && target.get(0, bytes) == value);
  REQUIRE(target.get(bytes + 1, 4095) == std::string(4095, '\xEE'));
  if (bytes > 1) {  // too small: nothing is lost, and the size is told
    to = room(target.at, bytes - 1);
    REQUIRE(nmc_client_get(client, slice(key), &to, 1, &size) == NMC_ERR_TOO_SMALL && size == bytes);
  }
}

// Slices of the device and of the host in turn.
void mixed(nmc_client_t* client) {
  const std::string value = value_of(77, 900001), key = "mixed";
  OnDevice source(400000, client), target(500000, client);
  source.set(value.substr(100000, 400000));
  const std::string head = value.substr(0, 100000), tail = value.substr(500000);
  const nmc_slice_t from[] = {part(head.data(), head.size()), part(source.at, 400000), part(tail.data(), tail.size())};
  REQUIRE(OK(nmc_client_put(client, slice(key), from, 3, nullptr)));
  std::string front(250000, ' '), back(300000, ' ');
  const nmc_buffer_t to[] = {room(front.data(), front.size()), room(target.at, 400000), room(back.data(), back.size())};
  uint64_t size = 0;
  REQUIRE(OK(nmc_client_get(client, slice(key), to, 3, &size)));
  REQUIRE(size == value.size() && front + target.get(0, 400000) + back.substr(0, 250001) == value);
}

// More than stands in host memory at a time, with values of the host between, and one that is not there.
void batch(nmc_client_t* client) {
  constexpr size_t kCount = 24, kBytes = (6 << 20) + 123;
  std::vector<std::string> keys, values;
  OnDevice source(kCount * kBytes, client), target(kCount * kBytes, client);
  std::vector<std::string> host(kCount);
  std::vector<nmc_slice_t> names, from;
  std::vector<nmc_buffer_t> to;
  for (size_t i = 0; i < kCount; ++i) {
    keys.push_back("batch/" + std::to_string(i));
    values.push_back(value_of(1000 + i, kBytes - i));
    source.set(values[i], i * kBytes);
  }
  for (size_t i = 0; i < kCount; ++i) {
    names.push_back(slice(keys[i]));
    from.push_back(i % 5 == 3 ? slice(values[i]) : part(source.at + i * kBytes, values[i].size()));
  }
  std::vector<nmc_status_t> statuses(kCount, -1);
  REQUIRE(OK(nmc_client_put_batch(client, names.data(), from.data(), nullptr, kCount, nullptr, statuses.data())));
  REQUIRE(OK(nmc_client_remove(client, names[7], 0)));
  for (size_t i = 0; i < kCount; ++i) {
    if (i % 4 == 1) host[i].assign(kBytes, ' ');
    to.push_back(i % 4 == 1 ? room(host[i].data(), kBytes) : room(target.at + i * kBytes, kBytes));
  }
  std::vector<uint64_t> sizes(kCount, 1);
  REQUIRE(nmc_client_get_batch(client, names.data(), to.data(), nullptr, kCount, sizes.data(), statuses.data()) == NMC_ERR_NOT_FOUND);
  for (size_t i = 0; i < kCount; ++i) {
    REQUIRE(statuses[i] == (i == 7 ? NMC_ERR_NOT_FOUND : NMC_OK));
    if (i == 7) continue;
    const size_t bytes = values[i].size();
    REQUIRE(sizes[i] == bytes);
    REQUIRE((i % 4 == 1 ? host[i].substr(0, bytes) : target.get(i * kBytes, bytes)) == values[i]);
  }
}

// Memory that stays registered, as programs have it: nodes hear of it while the first values go by way of host memory.
void registered(nmc_client_t* client, const std::string& where) {
  constexpr size_t kBytes = (4 << 20) + 5;
  OnDevice source(kBytes, client), target(kBytes + 64, client);
  nmc_replicate_t there = NMC_REPLICATE_INIT;
  const nmc_location_t place{slice(where), NMC_MEDIA_ANY, 0};
  there.locations = &place, there.n_locations = 1;
  for (uint64_t round = 0; round < 30; ++round) {
    const std::string key = "registered/" + where, value = value_of(9000 + round, kBytes - round);
    source.set(value);
    const nmc_slice_t from = part(source.at, value.size());
    REQUIRE(OK(nmc_client_put(client, slice(key), &from, 1, &there)));
    const nmc_buffer_t to = room(target.at, kBytes + 64);
    uint64_t size = 0;
    REQUIRE(OK(nmc_client_get(client, slice(key), &to, 1, &size)));
    REQUIRE(size == value.size() && target.get(0, size) == value && target.get(kBytes, 64) == std::string(64, '\xEE'));
    REQUIRE(OK(nmc_client_remove(client, slice(key), 0)));
    if (round < 10) sleep_ms(20);
  }
}

// The next completion, which is that of this token.
nmc_client_completion_t ended(nmc_client_t* client, uint64_t token) {
  nmc_client_completion_t done[2];
  size_t count = 0;
  REQUIRE(OK(nmc_client_completions(client, done, 2, 20000, &count)));
  REQUIRE(count == 1 && done[0].token == token);
  return done[0];
}

// Calls that do not wait: a value alone, pieces of which some are host memory, a batch of more than stands in host memory at a time with values of the
// host between and one that is missing, room that is too small, and calls that are cancelled at any moment.
void submitted(nmc_client_t* client, const std::string& folder) {
  constexpr size_t kCount = 24, kBytes = (6 << 20) + 123;
  OnDevice source(kCount * kBytes, client), target(kCount * kBytes, client);
  {
    const std::string value = value_of(55, 900001), key = folder + "/one";
    source.set(value.substr(100000, 400000));
    const std::string head = value.substr(0, 100000), tail = value.substr(500000);
    const nmc_slice_t from[] = {part(head.data(), head.size()), part(source.at, 400000), part(tail.data(), tail.size())};
    REQUIRE(OK(nmc_client_submit_put(client, slice(key), from, 3, nullptr, 5)));
    REQUIRE(ended(client, 5).status == NMC_OK);
    const nmc_buffer_t to = room(target.at, 900100);
    REQUIRE(OK(nmc_client_submit_get(client, slice(key), &to, 1, 6)));
    const nmc_client_completion_t done = ended(client, 6);
    REQUIRE(done.status == NMC_OK && done.bytes == value.size() && target.get(0, value.size()) == value);
    REQUIRE(target.get(value.size(), 99) == std::string(99, '\xEE'));
    const nmc_buffer_t few = room(source.at, 900000);
    const std::string before = source.get(0, 900000);
    REQUIRE(OK(nmc_client_submit_get(client, slice(key), &few, 1, 7)));
    const nmc_client_completion_t small = ended(client, 7);
    REQUIRE(small.status == NMC_ERR_TOO_SMALL && small.bytes == value.size() && source.get(0, 900000) == before);
  }
  std::vector<std::string> keys, values;
  std::vector<std::string> host(kCount);
  std::vector<nmc_slice_t> names, from;
  std::vector<nmc_buffer_t> to;
  for (size_t i = 0; i < kCount; ++i) {
    keys.push_back(folder + "/" + std::to_string(i));
    values.push_back(value_of(3000 + i, kBytes - i));
    source.set(values[i], i * kBytes);
  }
  for (size_t i = 0; i < kCount; ++i) {
    names.push_back(slice(keys[i]));
    from.push_back(i % 5 == 3 ? slice(values[i]) : part(source.at + i * kBytes, values[i].size()));
  }
  std::vector<nmc_status_t> statuses(kCount, -1);
  REQUIRE(OK(nmc_client_submit_put_batch(client, names.data(), from.data(), nullptr, kCount, nullptr, 8, statuses.data())));
  REQUIRE(ended(client, 8).status == NMC_OK);
  REQUIRE(OK(nmc_client_remove(client, names[7], 0)));
  for (size_t i = 0; i < kCount; ++i) {
    if (i % 4 == 1) host[i].assign(kBytes, ' ');
    to.push_back(i % 4 == 1 ? room(host[i].data(), kBytes) : room(target.at + i * kBytes, kBytes));
  }
  std::vector<uint64_t> sizes(kCount, 1);
  REQUIRE(OK(nmc_client_submit_get_batch(client, names.data(), to.data(), nullptr, kCount, 9, sizes.data(), statuses.data())));
  REQUIRE(ended(client, 9).status == NMC_ERR_NOT_FOUND);
  for (size_t i = 0; i < kCount; ++i) {
    REQUIRE(statuses[i] == (i == 7 ? NMC_ERR_NOT_FOUND : NMC_OK));
    if (i == 7) continue;
    const size_t bytes = values[i].size();
    REQUIRE(sizes[i] == bytes);
    REQUIRE((i % 4 == 1 ? host[i].substr(0, bytes) : target.get(i * kBytes, bytes)) == values[i]);
  }
  // When cancelling has returned the memory is the program's: nothing comes to it later.
  for (int round = 0; round < 10; ++round) {
    const nmc_buffer_t whole = room(target.at, kBytes);
    nmc_client_completion_t done{};
    size_t count = 0;
    REQUIRE(OK(nmc_client_submit_get(client, names[0], &whole, 1, 10)));
    REQUIRE(OK(nmc_client_completions(client, &done, 0, round, &count)));
    const nmc_status_t cancelled = nmc_client_cancel(client, 10);
    REQUIRE(cancelled == NMC_OK || cancelled == NMC_ERR_NOT_FOUND);
    const std::string then(kBytes, '\x77');
    target.set(then);
    sleep_ms(20);
    REQUIRE(target.get(0, kBytes) == then);
    REQUIRE(OK(nmc_client_completions(client, &done, 1, 20000, &count)) && count == 1);
  }
  for (size_t i = 0; i < kCount; ++i)
    if (i != 7) REQUIRE(OK(nmc_client_remove(client, names[i], 0)));
}

// -------------------------------------------------------------------------- a store whose heap is on the GPU, as a node --

const char* verdict(bool same) { return same ? "same" : "other"; }

// The process that has it: a line tells what to do, with a key, and the stamp and size of its value; it answers with one.
void vram_node(Link& test, const std::string& master) {
  const std::string name = "vram";
  OpenClient client;
  nmc_store_t* store = nullptr;
  std::string line;
  while (test.hear(line, 1e6)) {
    std::istringstream words(line);
    std::string verb, key;
    uint64_t stamp = 0;
    size_t bytes = 0, size = 0;
    words >> verb >> key >> stamp >> bytes;
    nmc_status_t status = NMC_OK;
    if (verb == "go") {
      nmc_store_config_t config = segment_of(uint64_t{512} << 20);
      config.heap_kind = NMC_HEAP_CUDA;
      config.page_bytes = 64 << 10;
      client = OpenClient(master);
      status = nmc_store_create(nullptr, &config, &store);
      if (status == NMC_OK) status = nmc_client_attach_store(client, slice(name), store);
      test.say(outcome(status));
    } else if (verb == "put") {  // by its own program, from memory of the device
      OnDevice source(bytes);
      source.set(value_of(stamp, bytes));
      status = nmc_store_put(store, slice(key), source.at, bytes, nullptr);
      if (status == NMC_OK) status = nmc_client_sync(client);
      test.say(outcome(status));
    } else if (verb == "is" || verb == "through") {  // what its own program reads into memory of the device; also from others
      nmc_store_t* from = store;
      if (verb == "through") REQUIRE(OK(nmc_client_open_store(client, store, 20000, &from)));
      OnDevice target(bytes + 64);
      status = nmc_store_get(from, slice(key), target.at, bytes + 64, &size);
      const bool same = status == NMC_OK && size == bytes && target.get(0, bytes) == value_of(stamp, bytes);
      const bool untouched = target.get(bytes, 64) == std::string(64, '\xEE');
      test.say(status == NMC_OK ? verdict(same && untouched) : nmc_status_name(status));
      if (from != store) REQUIRE(OK(nmc_store_destroy(from)));
    } else if (verb == "spoil") {  // changes the first byte, where it is
      nmc_view_t view{};
      REQUIRE(OK(nmc_store_pin(store, slice(key), &view)));
      unsigned char byte = 0;
      cuda(cudaMemcpy(&byte, view.data_device, 1, cudaMemcpyDeviceToHost));
      byte = static_cast<unsigned char>(~byte);
      cuda(cudaMemcpy(const_cast<void*>(view.data_device), &byte, 1, cudaMemcpyHostToDevice));
      cuda(cudaDeviceSynchronize());
      REQUIRE(OK(nmc_store_unpin(store, &view)));
      test.say("done");
    }
  }
}

// A process that has no node, and no device.
void far_reader(Link& test, const std::string& master) {
  OpenClient client;
  std::string line;
  while (test.hear(line, 1e6)) {
    std::istringstream words(line);
    std::string verb, key;
    uint64_t stamp = 0, size = 0;
    size_t bytes = 0;
    words >> verb >> key >> stamp >> bytes;
    if (client.client == nullptr) client = OpenClient(master);
    std::string into(bytes + 8, '\xEE');
    const nmc_buffer_t to = room(into.data(), into.size());
    const nmc_status_t status = nmc_client_get(client, slice(key), &to, 1, &size);
    const bool same = size == bytes && into == value_of(stamp, bytes) + std::string(8, '\xEE');
    test.say(status == NMC_OK ? verdict(same) : nmc_status_name(status));
  }
}

std::string told(const std::string& verb, const std::string& key, uint64_t stamp, size_t bytes) {
  return verb + " " + key + " " + std::to_string(stamp) + " " + std::to_string(bytes);
}

int32_t note_media(void* user, const nmc_replica_t* replica) {
  static_cast<std::vector<uint32_t>*>(user)->push_back(replica->media);
  return 1;
}

void put_as(nmc_client_t* client, const std::string& key, uint64_t stamp, size_t bytes, const nmc_replicate_t& options) {
  const std::string value = value_of(stamp, bytes);
  const nmc_slice_t from = slice(value);
  REQUIRE(OK(nmc_client_put(client, slice(key), &from, 1, &options)));
}

void vram(nmc_client_t* client, Process& node, Process& reader, bool spoiled) {
  nmc_replicate_t there = NMC_REPLICATE_INIT;
  const nmc_location_t place{{"vram", 4}, NMC_MEDIA_ANY, 0};
  there.locations = &place, there.n_locations = 1;
  uint64_t stamp = 5000;
  for (size_t bytes : {size_t{1}, size_t{1000}, size_t{65536}, size_t{65537}, (size_t{2} << 20) + 1, size_t{70} << 20}) {
    const std::string key = "vram/" + std::to_string(bytes);
    for (int round = 0; round < 2; ++round) {  // the second time with another value, after the first was removed
      ++stamp;
      put_as(client, key, stamp, bytes, there);
      REQUIRE(node.ask(told("is", key, stamp, bytes)) == "same");
      REQUIRE(reader.ask(told("get", key, stamp, bytes)) == "same");
      if (round == 1) break;
      REQUIRE(OK(nmc_client_remove(client, slice(key), 0)));
      REQUIRE(node.ask(told("is", key, stamp, bytes)) == "NMC_ERR_NOT_FOUND");
      REQUIRE(reader.ask(told("get", key, stamp, bytes)) == "NMC_ERR_NOT_FOUND");
    }
    // From a device to a device, by way of two processes' host memory or as NIXL does it.
    const std::string value = value_of(stamp, bytes);
    OnDevice target(bytes, client);
    const nmc_buffer_t to = room(target.at, bytes);
    uint64_t size = 0;
    REQUIRE(OK(nmc_client_get(client, slice(key), &to, 1, &size)));
    REQUIRE(size == bytes && target.get(0, bytes) == value);
  }
  // Many at once, from memory of the device.
  constexpr size_t kCount = 12, kBytes = (6 << 20) + 77;
  OnDevice source(kCount * kBytes, client);
  std::vector<std::string> keys;
  std::vector<nmc_slice_t> names, from;
  for (size_t i = 0; i < kCount; ++i) keys.push_back("vram/batch/" + std::to_string(i));
  for (size_t i = 0; i < kCount; ++i) {
    source.set(value_of(7000 + i, kBytes - i), i * kBytes);
    names.push_back(slice(keys[i]));
    from.push_back(part(source.at + i * kBytes, kBytes - i));
  }
  std::vector<nmc_status_t> statuses(kCount, -1);
  REQUIRE(OK(nmc_client_put_batch(client, names.data(), from.data(), nullptr, kCount, &there, statuses.data())));
  for (size_t i = 0; i < kCount; ++i) {
    REQUIRE(node.ask(told("is", keys[i], 7000 + i, kBytes - i)) == "same");
    REQUIRE(reader.ask(told("get", keys[i], 7000 + i, kBytes - i)) == "same");
  }
  // What its own program has put, and what that reads from others.
  REQUIRE(node.ask(told("put", "vram/own", 8000, 300001)) == "NMC_OK");
  REQUIRE(reader.ask(told("get", "vram/own", 8000, 300001)) == "same");
  nmc_replicate_t elsewhere = NMC_REPLICATE_INIT;
  elsewhere.media_copies[NMC_MEDIA_RAM] = 1;
  put_as(client, "ram/only", 8001, 3000001, elsewhere);
  REQUIRE(node.ask(told("is", "ram/only", 8001, 3000001)) == "NMC_ERR_NOT_FOUND");
  REQUIRE(node.ask(told("through", "ram/only", 8001, 3000001)) == "same");
  // A copy on each medium.
  nmc_replicate_t both = NMC_REPLICATE_INIT;
  both.copies = 2, both.media_copies[NMC_MEDIA_VRAM] = 1, both.media_copies[NMC_MEDIA_RAM] = 1;
  const std::string two = "vram/two";
  put_as(client, two, 8002, (size_t{5} << 20) + 3, both);
  std::vector<uint32_t> media;
  REQUIRE(OK(nmc_client_query(client, slice(two), note_media, &media)));
  std::sort(media.begin(), media.end());
  REQUIRE((media == std::vector<uint32_t>{NMC_MEDIA_VRAM, NMC_MEDIA_RAM}));
  REQUIRE(node.ask(told("is", two, 8002, (size_t{5} << 20) + 3)) == "same");
  // What others get is what is on the device by now, and one wrong byte is seen.
  REQUIRE(node.ask("spoil vram/own") == "done");
  REQUIRE(reader.ask(told("get", "vram/own", 8000, 300001)) == (spoiled ? "same" : "other"));
}

}  // namespace

int main(int argc, char** argv) {
  broken = argc > 1 && strcmp(argv[1], "broken") == 0;
  const bool spoiled = argc > 1 && strcmp(argv[1], "spoiled") == 0;
  if (argc > 1 && strcmp(argv[1], "rdma") == 0) {
    if (!getenv("NMC_NIXL")) return printf("skipped: NMC_NIXL does not say where NIXL is\n"), 77;
    protocol = "rdma";
    setenv("UCX_MEMTYPE_CACHE", "n", 1);
  }
  Master master;
  // Before CUDA is used here.
  Process node([&](Link& test) {
    std::string line;
    OpenClient client;
    while (test.hear(line, 1e6)) {
      client = OpenClient(master.address());
      const nmc_store_config_t segment = segment_of(uint64_t{512} << 20);
      test.say(outcome(nmc_client_mount(client, slice(std::string("far")), &segment)));
    }
  });
  Process on_device([&](Link& test) { vram_node(test, master.address()); });
  Process reader([&](Link& test) { far_reader(test, master.address()); });
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    printf("skipped: no GPU\n");
    return 77;
  }
  REQUIRE(node.ask("go") == "NMC_OK");
  REQUIRE(OK(nmc_log_set_callback(listen, 4, nullptr)));
  {
    OpenClient client(master.address());
    for (size_t bytes : {size_t{1}, size_t{1000}, size_t{65536}, (size_t{2} << 20) + 1, size_t{70} << 20}) one(client, "far/" + std::to_string(bytes), bytes);
    mixed(client);
    batch(client);
    registered(client, "far");
    submitted(client, "submitted");
    // On another thread, which has used no device so far.
    std::thread([&] {
      const std::string value = value_of(3, 5000), key = "thread";
      OnDevice target(5000);
      const nmc_slice_t from = slice(value);
      REQUIRE(OK(nmc_client_put(client, slice(key), &from, 1, nullptr)));
      const nmc_buffer_t to = room(target.at, 5000);
      REQUIRE(OK(nmc_client_get(client, slice(key), &to, 1, nullptr)));
      REQUIRE(target.get(0, 5000) == value);
    }).join();
  }
  {
    // Values in parts, on the one node that has room for them.
    stripe_bytes = 1 << 20;
    OpenClient client(master.address());
    stripe_bytes = 0;
    for (size_t bytes : {size_t{1000}, (size_t{2} << 20) + 1, size_t{70} << 20}) one(client, "parts/" + std::to_string(bytes), bytes);
    registered(client, "far");
    submitted(client, "submitted parts");
  }
  {
    // What a node of this client has.
    OpenClient client(master.address());
    const nmc_store_config_t segment = segment_of(64 << 20);
    REQUIRE(OK(nmc_client_mount(client, slice(std::string("near")), &segment)));
    nmc_replicate_t options = NMC_REPLICATE_INIT;
    const nmc_location_t place{{"near", 4}, NMC_MEDIA_ANY, 0};
    options.locations = &place, options.n_locations = 1;
    const std::string value = value_of(9, 300000), key = "near/1";
    OnDevice source(value.size()), target(value.size());
    source.set(value);
    const nmc_slice_t from = part(source.at, value.size());
    REQUIRE(OK(nmc_client_put(client, slice(key), &from, 1, &options)));
    const nmc_buffer_t to = room(target.at, value.size());
    REQUIRE(OK(nmc_client_get(client, slice(key), &to, 1, nullptr)));
    REQUIRE(target.get(0, value.size()) == value);
    // Without waiting: it is there when that has returned.
    target.set(std::string(value.size(), '\xEE'));
    REQUIRE(OK(nmc_client_submit_get(client, slice(key), &to, 1, 11)));
    REQUIRE(target.get(0, value.size()) == value && ended(client, 11).status == NMC_OK);
  }
  {
    // A segment of this client that is on the GPU.
    OpenClient client(master.address());
    nmc_store_config_t segment = segment_of(64 << 20);
    segment.heap_kind = NMC_HEAP_CUDA;
    REQUIRE(OK(nmc_client_mount(client, slice(std::string("own")), &segment)));
    nmc_replicate_t options = NMC_REPLICATE_INIT;
    const nmc_location_t place{{"own", 3}, NMC_MEDIA_VRAM, 0};
    options.locations = &place, options.n_locations = 1;
    put_as(client, "own/1", 10, 300000, options);
    REQUIRE(reader.ask(told("get", "own/1", 10, 300000)) == "same");
    std::string host(300000, ' ');
    const nmc_buffer_t to = room(host.data(), host.size());
    REQUIRE(OK(nmc_client_get(client, slice(std::string("own/1")), &to, 1, nullptr)));
    REQUIRE(host == value_of(10, 300000));
  }
  REQUIRE(on_device.ask("go") == "NMC_OK");
  {
    OpenClient client(master.address());
    vram(client, on_device, reader, spoiled);
    registered(client, "vram");
    node.kill9();  // of the two copies, that on the device is left
    REQUIRE(reader.ask(told("get", "vram/two", 8002, (size_t{5} << 20) + 3)) == "same");
  }
  on_device.kill9();  // without a word, and with its memory
  printf("NIXL has moved %llu bytes from this process\n", moved.load());
  REQUIRE(protocol.empty() ? moved == 0 : moved > (32 << 20));
  printf("PASS\n");
  return 0;
}
