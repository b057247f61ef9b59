// Whoever can connect to a master or a node may send what he likes: neither ends, takes memory for what was only announced, or keeps
// others from being served.
#include <netinet/tcp.h>
#include <sys/resource.h>

#include <algorithm>

#include "../support/cluster.hpp"
#include "../support/value.hpp"

namespace {

constexpr uint32_t MAGIC = 0x05434d4e;  // of the framed protocol: docs/protocol.md

// A connection to 127.0.0.1 that ends with the case.
struct Socket {
  int fd = -1;
  explicit Socket(int port) {
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) {
      if (fd >= 0) ::close(fd);
      fd = -1;
    }
  }
  ~Socket() {
    if (fd >= 0) ::close(fd);
  }
  Socket(Socket&& other) noexcept { std::swap(fd, other.fd); }
  Socket(const Socket&) = delete;
  // As much as the other side takes at once.
  void send(const void* bytes, size_t n) const {
    if (fd >= 0) (void)!::send(fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void send(const std::string& bytes) const { send(bytes.data(), bytes.size()); }
  // Whether the other side ends the connection, in a while.
  bool is_ended() const {
    if (fd < 0) return true;
    const double start = seconds_now();
    char buffer[4096];
    while (seconds_now() - start < kPatience) {
      pollfd event{fd, POLLIN, 0};
      if (poll(&event, 1, 1000) <= 0) continue;
      if (recv(fd, buffer, sizeof buffer, 0) <= 0) return true;
    }
    return false;
  }
};

std::string head(uint32_t magic, uint32_t kind, uint32_t len, uint64_t request, uint64_t value) {
  const uint32_t words[] = {magic, kind, len, 1000};
  std::string bytes(32, '\0');
  std::memcpy(bytes.data(), words, 16);
  std::memcpy(bytes.data() + 16, &request, 8);
  std::memcpy(bytes.data() + 24, &value, 8);
  return bytes;
}

uint64_t resident_bytes(pid_t pid) {
  FILE* file = fopen(("/proc/" + std::to_string(pid) + "/statm").c_str(), "r");
  long all = 0, resident = 0;
  if (file == nullptr) return UINT64_MAX;
  const bool read = fscanf(file, "%ld %ld", &all, &resident) == 2;
  fclose(file);
  return read ? static_cast<uint64_t>(resident) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : UINT64_MAX;
}

struct Cluster {
  Master master;
  Process node, client;
  int node_port = 0;
  int puts = 0;

  Cluster() {
    node = Process([this](Link& test) {
      std::string endpoint, line;
      const OpenClient node = node_at(master.address(), "node", 32 << 20, endpoint);
      test.say(endpoint.substr(endpoint.rfind(':') + 1));
      while (test.hear(line, 1e6)) {
      }
    });
    node_port = atoi(node.reply().c_str());
    REQUIRE(node_port > 0);
    client = another_client();
  }
  // Puts and reads under each key that it is told.
  Process another_client() const {
    return Process([this](Link& test) {
      const OpenClient client(master.address());
      std::string key;
      while (test.hear(key, 1e6)) {
        std::string value(20000, ' '), got(20000, ' ');
        make_value(mix(key.size()), 0, value.data(), value.size());
        const nmc_slice_t from = slice(value);
        const nmc_buffer_t to{got.data(), got.size()};
        nmc_status_t status = nmc_client_put(client, slice(key), &from, 1, nullptr);
        if (status == NMC_OK) status = nmc_client_get(client, slice(key), &to, 1, nullptr);
        test.say(status == NMC_OK && got != value ? "other bytes" : outcome(status));
      }
    });
  }
  // Others put and read as if nothing were.
  void serves() { serves(client); }
  void serves(Process& somebody) {
    const std::string said = somebody.ask("key-" + std::to_string(puts++));
    if (!CHECK(said == "NMC_OK")) printf("     %s\n", said.c_str());
  }
};

// The master raises its own limit as far as it may, which is as far as this process may.
bool may_have_descriptors(rlim_t wanted) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= wanted) return true;
  printf("skipped: %llu descriptors are needed, and %llu are allowed here (ulimit -n)\n", static_cast<unsigned long long>(wanted),
         static_cast<unsigned long long>(limit.rlim_cur));
  return false;
}

// Silent ones, ones that stop in the middle of a message, and ones that look like gRPC. Memory is bounded by what the documentation says
// of all connections together.
void ten_thousand(Cluster& cluster) {
  const pid_t pid = cluster.master.pid();
  const uint64_t before = resident_bytes(pid);
  uint64_t most = before;
  std::vector<Socket> sockets;
  const double start = seconds_now();
  for (int i = 0; i < 10000; ++i) {
    sockets.emplace_back(cluster.master.port());
    if (i % 4 == 1) sockets.back().send(head(MAGIC, 2, 60000, 1, 0) + std::string(1000, 'x'));
    if (i % 4 == 2) sockets.back().send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\0\0\0\4\0\0\0\0\0", 9));
    if (i % 4 == 3) sockets.back().send("N");
    if (i % 1000 == 999) cluster.serves();
    if (i % 1000 == 999) most = std::max(most, resident_bytes(pid));
  }
  sleep_ms(2000);  // those that wait to be taken are taken
  const auto open = std::count_if(sockets.begin(), sockets.end(), [](const Socket& socket) {
    char byte;
    return socket.fd >= 0 && (recv(socket.fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) > 0 || errno == EAGAIN);
  });
  cluster.serves();
  most = std::max(most, resident_bytes(pid));
  printf("     10000 connections in %.1f s, %td of them open at the end; the master has %.1f MiB, before %.1f MiB\n", seconds_now() - start, open,
         static_cast<double>(most) / (1 << 20), static_cast<double>(before) / (1 << 20));
  CHECK(most < before + (uint64_t{256} << 20));
  sockets.clear();
  cluster.serves();
  Process newcomer = cluster.another_client();
  cluster.serves(newcomer);
}

void hostile() {
  Cluster cluster;
  cluster.serves();
  const std::vector<std::pair<int, pid_t>> victims = {{cluster.master.port(), cluster.master.pid()}, {cluster.node_port, cluster.node.pid()}};
  Random random(7);

  promise("random_bytes_end_the_connection_and_nothing_else");
  for (const auto& [port, pid] : victims) {
    for (int i = 0; i < 200; ++i) {
      std::string bytes(1 + random.below(3000), ' ');
      for (char& byte : bytes) byte = static_cast<char>(random.next());
      if (random.one_in(2)) std::memcpy(bytes.data(), &MAGIC, std::min(bytes.size(), sizeof MAGIC));
      Socket(port).send(bytes);
    }
    cluster.serves();
  }

  promise("a_frame_of_another_version_or_with_a_length_that_cannot_be_ends_the_connection");
  for (const auto& [port, pid] : victims) {
    const uint64_t before = resident_bytes(pid);
    for (const std::string& bytes : {head(MAGIC + (7u << 24), 1, 0, 1, 0), head(MAGIC, 1, UINT32_MAX, 1, 0), head(MAGIC, 1, 64, 1, UINT64_MAX),
                                     head(MAGIC, 1, 1 << 20, 1, 0)}) {
      const Socket socket(port);
      socket.send(bytes);
      CHECK(socket.is_ended());
    }
    // Announced, but never sent: no memory is taken for it.
    std::vector<Socket> waiting;
    for (uint32_t kind = 1; kind < 100; ++kind) {
      waiting.emplace_back(port);
      waiting.back().send(head(MAGIC, kind, 60000, 1, uint64_t{1} << 40));
    }
    cluster.serves();
    CHECK(resident_bytes(pid) < before + (uint64_t{64} << 20));
  }

  promise("who_sends_a_byte_now_and_then_keeps_nobody_waiting");
  for (const auto& [port, pid] : victims) {
    const std::string slow = head(MAGIC, 3, 40, 1, 0);
    std::vector<Socket> sockets;
    for (int i = 0; i < 50; ++i) sockets.emplace_back(port);
    for (size_t at = 0; at < slow.size(); at += 4) {
      for (const Socket& socket : sockets) socket.send(slow.data() + at, 1);
      if (at % 16 == 0) cluster.serves();
    }
  }

  promise("a_thousand_connections_at_once_keep_nobody_out");
  for (const auto& [port, pid] : victims) {
    const uint64_t before = resident_bytes(pid);
    std::vector<Socket> sockets;
    for (int i = 0; i < 1000; ++i) {
      sockets.emplace_back(port);
      if (i % 3 == 0) sockets.back().send(head(MAGIC, 2, 1000, 1, 0));
    }
    cluster.serves();
    CHECK(resident_bytes(pid) < before + (uint64_t{128} << 20));
    sockets.clear();
    cluster.serves();
  }

  promise("ten_thousand_connections_at_a_master_keep_nobody_waiting_who_is_there_or_comes_afterwards");
  if (may_have_descriptors(10100)) ten_thousand(cluster);

  promise("what_looks_like_http_or_grpc_is_answered_or_ended");
  for (const auto& [port, pid] : victims) {
    const Socket http(port), grpc(port), tls(port);
    http.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    grpc.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\xff\xff\xff\x04\x00\x00\x00\x00\x00", 9) + std::string(2000, 'x'));
    tls.send(std::string("\x16\x03\x01\xff\xff", 5) + std::string(2000, 'y'));
    cluster.serves();
  }
  CHECK(cluster.master.ends() == 0);
}

}  // namespace

int main() {
  skip_without_join();
  // Children inherit it; a service of systemd has more.
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 12000);
  setrlimit(RLIMIT_NOFILE, &limit);
  hostile();
  return finish();
}
