// What the tests of a cluster share: a master as a process of its own, and nodes as processes that do what a test tells them, a line at
// a time. NMC_MASTER_PROGRAM is the path of nanomc-master; without that program a test is skipped.
#ifndef NMC_CTEST_SUPPORT_CLUSTER_HPP
#define NMC_CTEST_SUPPORT_CLUSTER_HPP

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "puppet.hpp"

// Where the certificates of this test are; empty where connections are not encrypted. From secure() on, masters and clients have them.
inline std::string certificates;

// Makes a new authority and a certificate for all, as docs/cluster.md says.
inline void secure() {
  // Never destroyed, so that no child removes it; it goes with the test.
  const Place& place = *new Place;
  const std::string make =
      "cd " + place.dir +
      " && exec 2>/dev/null && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test -keyout ca.key -out ca.pem"
      " && openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=all -keyout all.key -out all.csr"
      " && printf 'extendedKeyUsage=serverAuth,clientAuth\\nsubjectAltName=DNS:all\\n' > all.ext"
      " && openssl x509 -req -days 1 -in all.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile all.ext -out all.pem";
  if (system("command -v openssl > /dev/null") != 0) {
    printf("skipped: openssl is not there\n");
    exit(77);
  }
  REQUIRE(system(make.c_str()) == 0);
  certificates = place.dir;
}

// nanomc-master with a directory of its own, at a port of the kernel's choice that it keeps when it is started again. At another
// address than 127.0.0.1 it is where `enter` brings its process.
class Master {
 public:
  explicit Master(std::vector<std::string> flags = {}, std::string host = "127.0.0.1", std::function<void()> enter = {})
      : flags_(std::move(flags)), host_(std::move(host)), enter_(std::move(enter)) {
    if (access(program(), X_OK) != 0) {
      printf("skipped: %s is not there\n", program());
      exit(77);
    }
    start();
  }
  ~Master() { kill9(); }
  Master(const Master&) = delete;
  Master& operator=(const Master&) = delete;

  static const char* program() {
    const char* other = getenv("NMC_TEST_MASTER");
    return other != nullptr ? other : NMC_MASTER_PROGRAM;
  }
  pid_t pid() const { return pid_; }
  int port() const { return port_; }
  std::string address() const { return host_ + ":" + std::to_string(port_); }

  // On the state of the one before.
  void start() {
    std::vector<std::string> words = {program(), "--host", host_, "--port", std::to_string(port_), "--metrics_port", "off"};
    const bool elected = std::find(flags_.begin(), flags_.end(), "--etcd") != flags_.end();
    if (!elected) words.insert(words.end(), {"--state", place_.dir + "/state"});
    words.insert(words.end(), flags_.begin(), flags_.end());
    if (!certificates.empty()) {
      const std::string all = certificates + "/all";
      words.insert(words.end(), {"--tls_cert", all + ".pem", "--tls_key", all + ".key", "--tls_ca", certificates + "/ca.pem"});
    }
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int out[2];
    REQUIRE(pipe2(out, O_CLOEXEC) == 0);
    fflush(stdout);
    const pid_t test = getpid();
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != test) _exit(3);
      if (enter_) enter_();
      dup2(out[1], 1);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(out[1]);
    Link lines{out[0], -1, {}};
    std::string line;
    const std::string mark = "Master service listening on ";
    while (lines.hear(line, kPatience)) {
      if (line.rfind(mark, 0) == 0) port_ = atoi(line.c_str() + line.rfind(':') + 1);
      if (line.rfind(mark, 0) == 0) break;
    }
    close(out[0]);
    REQUIRE(port_ > 0);
  }
  void kill9() { end(SIGKILL); }
  // Ends it in order; the exit code.
  int ends() { return end(SIGTERM); }
  void signal(int number) const {
    REQUIRE(pid_ > 0);
    ::kill(pid_, number);
  }
  void stop() const { stop_child(pid_); }

 private:
  int end(int number) {
    int status = 0;
    if (pid_ <= 0) return -1;
    ::kill(pid_, number);
    if (number == SIGKILL) ::kill(pid_, SIGCONT);
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  Place place_;
  std::vector<std::string> flags_;
  std::string host_;
  std::function<void()> enter_;
  pid_t pid_ = -1;
  int port_ = 0;
};

// A port that was free a moment ago.
inline int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  REQUIRE(fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&at), size) == 0);
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0);
  close(fd);
  return ntohs(at.sin_port);
}

// A client as a config and a handle; closed at the end of the case, if it was not before.
// `rdma`, if NIXL is to move the bytes.
inline std::string protocol;
// Values of more bytes are put in parts of about as many, if it is not 0.
inline uint64_t stripe_bytes = 0;

struct OpenClient {
  nmc_client_t* client = nullptr;
  OpenClient() = default;
  explicit OpenClient(const std::string& master, int64_t timeout_ms = 20000, const std::string& host = {}, uint32_t flags = 0,
                      const std::string& token = {}) {
    nmc_client_config_t config = NMC_CLIENT_CONFIG_INIT;
    config.master_server = {master.data(), master.size()};
    config.local_hostname = {host.data(), host.size()};
    config.timeout_ms = timeout_ms;
    config.flags = flags;
    config.token = {token.data(), token.size()};
    config.protocol = {protocol.data(), protocol.size()};
    config.rdma_bytes = 64 << 10;
    config.stripe_bytes = stripe_bytes;
    const std::string cert = certificates + "/all.pem", key = certificates + "/all.key", ca = certificates + "/ca.pem";
    if (!certificates.empty()) {
      config.tls_cert = {cert.data(), cert.size()};
      config.tls_key = {key.data(), key.size()};
      config.tls_ca = {ca.data(), ca.size()};
    }
    REQUIRE(OK(nmc_client_open(&config, &client)));
  }
  ~OpenClient() { close(); }
  OpenClient(OpenClient&& other) noexcept { std::swap(client, other.client); }
  OpenClient& operator=(OpenClient&& other) noexcept { return std::swap(client, other.client), *this; }
  operator nmc_client_t*() const { return client; }
  void close() {
    OK(nmc_client_close(client));
    client = nullptr;
  }
};

inline nmc_store_config_t segment_of(uint64_t bytes) {
  nmc_store_config_t config = NMC_STORE_CONFIG_INIT;
  config.heap_bytes = bytes;
  return config;
}

// A client with a node at a port that it knows: `endpoint` is how the leader lists it.
inline OpenClient node_at(const std::string& master, const std::string& name, uint64_t bytes, std::string& endpoint,
                          int64_t timeout_ms = 20000, uint32_t flags = 0) {
  for (int tries = 0;; ++tries) {
    endpoint = "127.0.0.1:" + std::to_string(free_port());
    OpenClient client(master, timeout_ms, endpoint, flags);
    const nmc_store_config_t config = segment_of(bytes);
    const nmc_status_t status = nmc_client_mount(client, {name.data(), name.size()}, &config);
    if (status == NMC_OK) return client;
    if (status != NMC_ERR_OS || tries == 20) {  // else the port was taken meanwhile
      printf("mount of %s: %s\n", name.c_str(), outcome(status).c_str());
      REQUIRE(!"a node");
    }
  }
}

#endif
