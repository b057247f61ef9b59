// NIXL moves the bytes, by UCX over TCP on the loopback device: a node and a client, each a process, with memory that is registered and memory that is
// not. Where NIXL is not installed it is skipped (`make cluster-deps`, and NMC_NIXL).
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "../support/cluster.hpp"
#include "../support/value.hpp"

namespace {

// Looked for in a process of its own: the library is not for those who fork afterwards.
bool is_installed() {
  Process look([](Link& test) {
    const char* said = getenv("NMC_NIXL");
    test.say(dlopen(said && *said ? said : "libnixl_capi.so", RTLD_LAZY | RTLD_LOCAL) ? "yes" : dlerror());
  });
  const std::string said = look.reply();
  if (said != "yes") printf("skipped: %s\n", said.c_str());
  return said == "yes";
}

// Whether the log has said that NIXL reaches a node.
std::mutex log_lock;
bool reached = false;
void listen(int32_t, const char* line, void*) {
  const std::lock_guard<std::mutex> guard(log_lock);
  if (strstr(line, "NIXL reaches") && strstr(line, "true")) reached = true;
}
bool has_reached() {
  const std::lock_guard<std::mutex> guard(log_lock);
  return reached;
}

nmc_client_t* open(const std::string& master) {
  nmc_client_config_t config = NMC_CLIENT_CONFIG_INIT;
  const std::string rdma = "rdma";
  config.master_server = slice(master);
  config.protocol = slice(rdma);
  config.rdma_bytes = 64 << 10;
  config.timeout_ms = 20000;
  nmc_client_t* client = nullptr;
  OK(nmc_client_open(&config, &client));
  return client;
}

void put(nmc_client_t* client, const std::string& key, const std::vector<char>& value) {
  const nmc_slice_t pieces[2] = {{value.data(), 1000}, {value.data() + 1000, value.size() - 1000}};
  OK(nmc_client_put(client, slice(key), pieces, 2, nullptr));
}

void get(nmc_client_t* client, const std::string& key, std::vector<char>& room, const std::vector<char>& want) {
  const nmc_buffer_t pieces[2] = {{room.data(), 77}, {room.data() + 77, room.size() - 77}};
  uint64_t bytes = 0;
  OK(nmc_client_get(client, slice(key), pieces, 2, &bytes));
  CHECK(bytes == want.size() && memcmp(room.data(), want.data(), want.size()) == 0);
}

}  // namespace

int main() {
  if (!is_installed()) return 77;
  Master master;
  Process node([&](Link& test) {
    nmc_client_t* client = open(master.address());
    const nmc_store_config_t segment = segment_of(64 << 20);
    const std::string name = "node";
    OK(nmc_client_mount(client, slice(name), &segment));
    test.say("ready");
    std::string line;
    test.hear(line, 1e6);
    OK(nmc_client_close(client));
  });
  CHECK(node.reply() == "ready");

  OK(nmc_log_set_callback(listen, 4, nullptr));
  nmc_client_t* client = open(master.address());
  std::vector<char> value(3 << 20), room(4 << 20), known(4 << 20);
  OK(nmc_client_register(client, value.data(), value.size()));
  OK(nmc_client_register(client, known.data(), known.size()));
  CHECK(nmc_client_register(client, value.data(), 10) == NMC_ERR_EXISTS);
  const double start = seconds_now();
  for (int n = 0; n < 40 || (!has_reached() && seconds_now() - start < 30); ++n) {
    const std::string key = "k" + std::to_string(n);
    const size_t size = n % 2 == 0 ? value.size() : 5000 + static_cast<size_t>(n) * 60000;
    make_value(static_cast<uint64_t>(n), 0, value.data(), value.size());
    const std::vector<char> copy(value.begin(), value.begin() + static_cast<ptrdiff_t>(std::min(size, value.size())));
    put(client, key, n % 3 == 0 ? copy : value);
    get(client, key, n % 4 < 2 ? room : known, n % 3 == 0 ? copy : value);
    OK(nmc_client_remove(client, slice(key), 0));
    if (n < 10) sleep_ms(20);
  }
  CHECK(has_reached());
  OK(nmc_client_unregister(client, known.data()));
  CHECK(nmc_client_unregister(client, known.data()) == NMC_ERR_NOT_FOUND);
  OK(nmc_client_close(client));
  node.send("end");
  CHECK(node.ends_well());
  return finish();
}
