// Networks of a test's own: each place is a network namespace with one address, and all are plugged into a switch that is a namespace
// too. A place can be cut off, in one direction as well. Nothing of it has a name or can be seen outside: it ends with the test, however
// that ends. Needs root, or user namespaces for everybody, and `ip` (iproute2); without them a test is skipped.
#ifndef NMC_CTEST_SUPPORT_NETNS_HPP
#define NMC_CTEST_SUPPORT_NETNS_HPP

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "check.h"

class Networks {
 public:
  explicit Networks(size_t places) {
    become_root();
    hub_ = made();
    if (!ip(hub_, "link add name hub type bridge\nlink set hub up\n")) skip("ip can not make a bridge");
    for (size_t at = 0; at < places; ++at) {
      places_.push_back(made());
      const std::string port = "p" + std::to_string(at), pid = std::to_string(getpid()), fd = std::to_string(places_[at]);
      if (!ip(hub_, "link add name " + port + " type veth peer name net netns /proc/" + pid + "/fd/" + fd + "\nlink set " + port +
                        " master hub up\n"))
        skip("ip can not make a pair of devices");
      REQUIRE(ip(places_[at], "link set lo up\nlink set net up\naddress add " + address(at) + "/24 dev net\n"));
    }
  }
  ~Networks() {
    for (const int fd : places_) close(fd);
    close(hub_);
  }
  Networks(const Networks&) = delete;
  Networks& operator=(const Networks&) = delete;

  size_t size() const { return places_.size(); }
  static std::string address(size_t at) { return "10.77.0." + std::to_string(at + 1); }
  // The calling process, which has one thread, is in this place from now on.
  void enter(size_t at) const {
    if (setns(places_[at], CLONE_NEWNET) != 0) _exit(3);
  }

  // The cable: what is sent is lost, in both directions.
  void plug(size_t at, bool in) const { REQUIRE(ip(hub_, "link set p" + std::to_string(at) + updown(in))); }
  // The device: who is there is told that no network can be reached.
  void device(size_t at, bool up) const { REQUIRE(ip(places_[at], std::string("link set net") + updown(up))); }
  // One direction: what `from` sends to `to` has the address of nobody. The other one is as before.
  void lose(size_t from, const std::vector<size_t>& to) const { REQUIRE(ip(places_[from], neighbours(to, "replace ", " lladdr 02:00:00:00:00:01 nud permanent"))); }
  void lose_no_more(size_t from, const std::vector<size_t>& to) const {
    REQUIRE(ip(places_[from], neighbours(to, "replace ", " lladdr 02:00:00:00:00:01 nud stale")));  // there is one, then it is unlearned
    REQUIRE(ip(places_[from], neighbours(to, "delete ", "")));
  }

 private:
  static std::string updown(bool up) { return up ? " up\n" : " down\n"; }
  static std::string neighbours(const std::vector<size_t>& to, const char* verb, const char* rest) {
    std::string lines;
    for (const size_t at : to) lines += std::string("neighbour ") + verb + address(at) + rest + " dev net\n";
    return lines;
  }
  [[noreturn]] static void skip(const char* why) {
    printf("skipped: there are no network namespaces here: %s\n", why);
    fflush(stdout);
    exit(77);
  }
  static bool write_to(const char* path, const std::string& text) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool done = fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    if (fd >= 0) close(fd);
    return done;
  }
  // Who is not root becomes it in a user namespace, where the kernel lets him.
  static void become_root() {
    if (geteuid() == 0) return;
    const std::string user = "0 " + std::to_string(geteuid()) + " 1", group = "0 " + std::to_string(getegid()) + " 1";
    // With a network of its own, to which it may come back.
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) skip("not root, and no user namespaces for others");
    if (!write_to("/proc/self/setgroups", "deny") || !write_to("/proc/self/uid_map", user) || !write_to("/proc/self/gid_map", group))
      skip("not root, and it can not be mapped");
  }
  // A new one, which lives as long as somebody is in it or has it open.
  static int made() {
    const int here = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (here < 0 || unshare(CLONE_NEWNET) != 0) skip("unshare is refused");
    (void)write_to("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");  // where there is any: nobody needs an address of it
    (void)write_to("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    const int fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    const bool back = setns(here, CLONE_NEWNET) == 0;
    close(here);
    if (fd < 0 || !back) skip("setns is refused");
    return fd;
  }
  // Runs `ip` in a namespace, with these lines.
  static bool ip(int where, const std::string& lines) {
    int in[2];
    REQUIRE(pipe2(in, O_CLOEXEC) == 0);
    fflush(stdout);
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (setns(where, CLONE_NEWNET) != 0 || dup2(in[0], 0) != 0) _exit(3);
      for (const char* path : {"/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"}) execl(path, "ip", "-batch", "-", nullptr);
      _exit(127);
    }
    close(in[0]);
    const bool sent = write(in[1], lines.data(), lines.size()) == static_cast<ssize_t>(lines.size());
    close(in[1]);
    int status = 0;
    if (waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 127) skip("ip (iproute2) is not installed");
    return sent && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  int hub_ = -1;
  std::vector<int> places_;
};

#endif
