// Garbage on the store's socket: random packets, introductions that are cut off or lack what they need, silent and crowding
// connections. The store answers or closes, and goes on.
// usage: store_garbage [SEED]
#include <sys/socket.h>
#include <sys/un.h>

#include <utility>

#include "../support/random.hpp"
#include "../support/store_puppet.hpp"

namespace {

constexpr uint32_t kMagic = 0x314f5453;  // as in src/store/wire.rs

// A connection to the store of the world in a place.
struct Plug {
  int fd = -1;
  explicit Plug(const Place& place) {
    const std::string path = place.dir + "/procs+store/sock";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(path.size() < sizeof address.sun_path);
    memcpy(address.sun_path, path.c_str(), path.size());
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    const double deadline = seconds_now() + 30;
    while (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      REQUIRE((errno == EAGAIN || errno == EINTR) && seconds_now() < deadline);  // a full backlog
      sleep_ms(1);
    }
  }
  ~Plug() {
    if (fd >= 0) close(fd);
  }
  Plug(Plug&& other) noexcept : fd(std::exchange(other.fd, -1)) {}

  // Sends a packet, with `n` descriptors that are none of those a client would send.
  void send(const std::string& packet, size_t n = 0) const {
    iovec part{const_cast<char*>(packet.data()), packet.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 8)] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (n > 0) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(sizeof(int) * n);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * n);
      static const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
      for (size_t i = 0; i < n; ++i) memcpy(CMSG_DATA(header) + i * sizeof(int), &null, sizeof(int));
    }
    (void)sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);  // the store may have closed it
  }
  // Whether the other side answers or closes: it does not leave us waiting.
  bool reacts() const {
    pollfd event{fd, POLLIN, 0};
    return poll(&event, 1, 30000) == 1;
  }
};

std::string little_endian(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// An introduction as a client would send it, of a client that holds memory if `holds`.
std::string hello(uint64_t world_id, bool holds, size_t params) {
  std::string packet = little_endian(kMagic, 4) + little_endian(1, 4);
  packet += little_endian(world_id, 8) + little_endian(holds ? 1 : 0, 8);  // world, store
  packet += little_endian(holds, 1) + little_endian(holds ? 1 : UINT32_MAX, 4);
  packet += little_endian(static_cast<uint64_t>(getpid()), 4) + little_endian(1, 8);  // pid, start time
  packet += little_endian(1, 4) + little_endian(1, 8) + little_endian(0, 4);          // rank, generation, drain
  packet += little_endian(params, 4);
  for (size_t i = 0; i < params; ++i) packet += little_endian(4096, 8);
  return packet + little_endian(1, 1) + little_endian(0, 4);
}

void still_works(std::vector<Process>& ranks, const std::string& name) {
  SAYS(ranks[1].ask("put " + name + " 9000 5"), "NMC_OK");
  SAYS(ranks[0].ask("get " + name + " 9000 5"), "right");
  SAYS(ranks[0].ask("remove " + name), "NMC_OK");
  SAYS(ranks[1].ask("exists " + name), "ABSENT");
}

}  // namespace

int main(int argc, char** argv) {
  skip_without_join();
  const uint64_t seed = argc > 1 ? strtoull(argv[1], nullptr, 0) : 1;
  Random random(seed);
  Place place;
  std::vector<Process> ranks = whole_store(place, 2);
  const uint64_t world_id = strtoull(ranks[0].ask("world_id").c_str(), nullptr, 10);
  SAYS(ranks[1].ask("put kept 9000 1"), "NMC_OK");

  promise("random_packets_are_answered_or_the_connection_is_closed");
  for (int i = 0; i < 300; ++i) {
    Plug plug(place);
    std::string packet(i % 7 == 0 ? 0 : random() % 3000, '\0');
    for (char& c : packet) c = static_cast<char>(random());
    if (i % 2 == 1) packet = little_endian(kMagic, 4) + little_endian(random() % 16, 4) + packet;
    plug.send(packet, random() % 5);
    if (!CHECK(plug.reacts())) {
      printf("     seed %d, packet %d of %zu bytes\n", static_cast<int>(seed), i, packet.size());
      break;
    }
  }
  still_works(ranks, "after_random");

  promise("calls_without_an_introduction_are_refused");
  for (uint64_t kind = 2; kind <= 13; ++kind) {
    Plug plug(place);
    plug.send(little_endian(kMagic, 4) + little_endian(kind, 4) + little_endian(0, 4));
    CHECK(plug.reacts());
  }

  promise("introductions_that_are_cut_off_or_lack_descriptors_are_refused");
  for (const bool holds : {false, true}) {
    for (const size_t params : {size_t{0}, size_t{13}, size_t{14}, size_t{64}}) {
      const std::string whole = hello(world_id, holds, params);
      for (size_t cut = 0; cut < whole.size(); cut += 1 + random() % 9) {
        Plug plug(place);
        plug.send(whole.substr(0, cut));
        CHECK(plug.reacts());
      }
      for (size_t fds = 0; fds <= 1; ++fds) {
        Plug plug(place);
        plug.send(whole, fds);
        CHECK(plug.reacts());
        plug.send(whole, fds);  // and once more
      }
      Plug longer(place);
      longer.send(whole + "x", 2);
      CHECK(longer.reacts());
      Plug foreign(place);
      foreign.send(hello(world_id ^ 1, holds, params), 2);
      CHECK(foreign.reacts());
    }
  }
  still_works(ranks, "after_introductions");

  promise("a_crowd_of_silent_connections_keeps_nobody_out_who_is_in");
  {
    std::vector<Plug> silent;
    for (int i = 0; i < 100; ++i) silent.emplace_back(place);
    still_works(ranks, "in_a_crowd");
    for (size_t i = 0; i < silent.size(); i += 2) silent[i].send(std::string(100, 'x'));
    still_works(ranks, "in_a_loud_crowd");
  }
  still_works(ranks, "after_the_crowd");

  promise("objects_and_clients_are_as_before_and_a_client_can_still_come_and_go");
  SAYS(ranks[0].ask("get kept 9000 1"), "right");
  SAYS(ranks[1].ask("leave"), "NMC_OK");
  SAYS(ranks[1].ask("create"), "NMC_OK");
  SAYS(ranks[1].ask("get kept 9000 1"), "right");
  SAYS(ranks[1].ask("remove kept"), "NMC_OK");
  saw_in_time(ranks[0].ask("await_bytes 0"), "empty");
  dismiss_clients(ranks);
  CHECK(place.leftovers().empty());
  return finish();
}
