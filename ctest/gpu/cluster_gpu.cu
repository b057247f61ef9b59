// Values of a cluster in memory of a GPU: put from there and read into it, alone, in batches, in pieces of which some are host memory,
// on another node and on one of this client; what is refused; bytes behind the value that nobody may touch.
//   cluster_gpu          all of it
//   cluster_gpu broken   the control: one byte on the device is changed after a get
#include <cuda_runtime.h>

#include <thread>

#include "../support/cluster.hpp"
#include "../support/value.hpp"

namespace {

bool broken = false;

void cuda(cudaError_t status) {
  if (status != cudaSuccess) printf("CUDA: %s\n", cudaGetErrorString(status));
  REQUIRE(status == cudaSuccess);
}

// Memory of the device, all bytes 0xEE at first.
struct OnDevice {
  char* at = nullptr;
  size_t size;
  explicit OnDevice(size_t bytes) : size(bytes) {
    cuda(cudaMalloc(&at, bytes));
    cuda(cudaMemset(at, 0xEE, bytes));
    cuda(cudaDeviceSynchronize());
  }
  ~OnDevice() { cudaFree(at); }
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

std::string value_of(uint64_t stamp, size_t size) {
  std::string value(size, ' ');
  make_value(stamp, 0, value.data(), size);
  return value;
}
nmc_slice_t part(const char* at, size_t bytes) { return {at, bytes}; }
nmc_buffer_t room(char* at, size_t bytes) { return {at, bytes}; }

// A value from the device, read into host memory and into the device, with room to spare.
void one(nmc_client_t* client, const std::string& key, size_t bytes) {
  const std::string value = value_of(bytes, bytes);
  OnDevice source(bytes + 1), target(bytes + 4096);
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
  OnDevice source(400000), target(500000);
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
  OnDevice source(kCount * kBytes), target(kCount * kBytes);
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
  REQUIRE(OK(nmc_client_put_batch(client, names.data(), from.data(), kCount, nullptr, statuses.data())));
  REQUIRE(OK(nmc_client_remove(client, names[7], 0)));
  for (size_t i = 0; i < kCount; ++i) {
    if (i % 4 == 1) host[i].assign(kBytes, ' ');
    to.push_back(i % 4 == 1 ? room(host[i].data(), kBytes) : room(target.at + i * kBytes, kBytes));
  }
  std::vector<uint64_t> sizes(kCount, 1);
  REQUIRE(nmc_client_get_batch(client, names.data(), to.data(), kCount, sizes.data(), statuses.data()) == NMC_ERR_NOT_FOUND);
  for (size_t i = 0; i < kCount; ++i) {
    REQUIRE(statuses[i] == (i == 7 ? NMC_ERR_NOT_FOUND : NMC_OK));
    if (i == 7) continue;
    const size_t bytes = values[i].size();
    REQUIRE(sizes[i] == bytes);
    REQUIRE((i % 4 == 1 ? host[i].substr(0, bytes) : target.get(i * kBytes, bytes)) == values[i]);
  }
}

// Calls that do not wait say so, and those of host memory beside them go on.
void submitted(nmc_client_t* client) {
  OnDevice memory(1000);
  const nmc_slice_t from = part(memory.at, 1000);
  const std::string key = "submitted";
  REQUIRE(OK(nmc_client_submit_put(client, slice(key), &from, 1, nullptr, 5)));
  nmc_client_completion_t done[2];
  size_t count = 0;
  REQUIRE(OK(nmc_client_completions(client, done, 2, 20000, &count)));
  REQUIRE(count == 1 && done[0].token == 5 && done[0].status == NMC_ERR_UNSUPPORTED);
  REQUIRE(nmc_client_exists(client, slice(key)) == NMC_ERR_NOT_FOUND);
  REQUIRE(OK(nmc_client_register(client, memory.at, 1000)));  // with tcp nothing depends on it
  REQUIRE(OK(nmc_client_unregister(client, memory.at)));
}

}  // namespace

int main(int argc, char** argv) {
  broken = argc > 1 && strcmp(argv[1], "broken") == 0;
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
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    printf("skipped: no GPU\n");
    return 77;
  }
  REQUIRE(node.ask("go") == "NMC_OK");
  {
    OpenClient client(master.address());
    for (size_t bytes : {size_t{1}, size_t{1000}, size_t{65536}, (size_t{2} << 20) + 1, size_t{70} << 20}) one(client, "far/" + std::to_string(bytes), bytes);
    mixed(client);
    batch(client);
    submitted(client);
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
  }
  printf("PASS\n");
  return 0;
}
