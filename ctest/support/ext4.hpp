// An ext4 of a test's own: in memory, behind a loop device, mounted where nobody else sees it. It can be stopped as a machine stops
// that loses its power, and made read-only as by an error of its disk. Memory, device and mount end with the test, however that ends.
// Needs root, loop devices and mkfs.ext4 (e2fsprogs); without them a test is skipped.
#ifndef NMC_CTEST_SUPPORT_EXT4_HPP
#define NMC_CTEST_SUPPORT_EXT4_HPP

#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <vector>

#include "check.h"

class Ext4 {
 public:
  // What happens to records of the journal that are not on disk yet: they come there, or are lost.
  enum Stop : uint32_t { FLUSHED = 1, LOST = 2 };

  // Of so many MiB, with these options of mount and sectors of so many bytes.
  explicit Ext4(uint32_t mib, std::string options = "", uint32_t sector = 512) : options_(std::move(options)), sector_(sector) {
    static int made = 0;
    path_ = std::string(place()) + "/" + std::to_string(++made);
    REQUIRE(mkdir(path_.c_str(), 0700) == 0);
    memory_ = memfd_create("nmc-ext4", MFD_CLOEXEC);
    REQUIRE(memory_ >= 0 && ftruncate(memory_, static_cast<off_t>(mib) << 20) == 0);
    attach();
    if (!mkfs()) skip("mkfs.ext4 fails");
    if (::mount(device_.c_str(), path_.c_str(), "ext4", 0, options_.c_str()) != 0) skip("it can not be mounted");
    check_is_ours();
  }
  ~Ext4() {
    if (umount2(path_.c_str(), 0) != 0) umount2(path_.c_str(), MNT_DETACH);
    close(loop_);  // it lets go of the memory when the mount does
    close(memory_);
    if (stopped_ >= 0) close(stopped_);
    rmdir(path_.c_str());
  }
  Ext4(const Ext4&) = delete;
  Ext4& operator=(const Ext4&) = delete;

  const std::string& path() const { return path_; }
  // Whether the file system has found nothing wrong with itself.
  bool sound() const {
    FILE* const file = fopen(knob("errors_count").c_str(), "re");
    unsigned errors = 0;
    if (file == nullptr) return true;
    const bool said = fscanf(file, "%u", &errors) == 1;
    fclose(file);
    return !said || errors == 0;
  }

  // Nothing that was not synced is there the next time, and until then everything is an I/O error.
  void stop(Stop how) {
    const int fd = open_checked();
    const uint32_t flags = how;
    REQUIRE(ioctl(fd, _IOR('X', 125, uint32_t), &flags) == 0);  // EXT4_IOC_SHUTDOWN
    close(fd);
    keep();
  }
  // What the machine does when it begins again: the journal of the file system is replayed. Nobody has a file open.
  void mount_again() {
    // Files of a killed process may be open for a while: rings of io_uring are taken down in the background.
    const double deadline = seconds_now() + 60;
    while (umount2(path_.c_str(), 0) != 0) {
      REQUIRE(errno == EBUSY && seconds_now() < deadline);
      sleep_ms(2);
    }
    if (stopped_ >= 0) {
      close(loop_);
      close(memory_);
      memory_ = stopped_;
      stopped_ = loop_ = -1;
      attach();
    }
    REQUIRE(::mount(device_.c_str(), path_.c_str(), "ext4", 0, options_.c_str()) == 0);
    check_is_ours();
  }
  // With the option errors=remount-ro it is read-only from now on. False where the kernel has no such thing for tests.
  bool fail() {
    check_is_ours();
    const int fd = open(knob("trigger_fs_error").c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const bool done = write(fd, "a test", 6) == 6;
    close(fd);
    if (done) keep();
    return done;
  }

 private:
  [[noreturn]] static void skip(const char* why) {
    printf("skipped: there is no ext4 for tests here: %s%s%s\n", why, errno == 0 ? "" : ": ", errno == 0 ? "" : strerror(errno));
    fflush(stdout);
    exit(77);
  }
  // A folder that is there everywhere, with other things in it than anybody else sees.
  static const char* place() {
    static const char* found = nullptr;
    if (found != nullptr) return found;
    errno = 0;
    if (geteuid() != 0) skip("not root");
    if (unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) skip("no mounts of one's own");
    for (const char* folder : {"/media", "/srv", "/mnt"}) {
      if (::mount("nmc-test", folder, "tmpfs", 0, "size=1m,mode=700") == 0) return found = folder;
    }
    skip("no tmpfs can be mounted");
  }
  std::string knob(const char* name) const { return "/sys/fs/ext4/" + device_.substr(5) + "/" + name; }
  // The disk as it is when the machine stops. What is written to it later, by a kernel that goes on and takes the file system down, a power loss would
  // not let through; on the way it is half of what belongs together (seen: bitmaps with wrong checksums).
  void keep() {
    struct stat now;
    stopped_ = memfd_create("nmc-ext4", MFD_CLOEXEC);
    REQUIRE(stopped_ >= 0 && fstat(memory_, &now) == 0 && ftruncate(stopped_, now.st_size) == 0);
    std::vector<char> part(1 << 20);
    for (off_t at = 0; (at = lseek(memory_, at, SEEK_DATA)) >= 0;) {
      const ssize_t bytes = pread(memory_, part.data(), part.size(), at);
      REQUIRE(bytes > 0 && pwrite(stopped_, part.data(), static_cast<size_t>(bytes), at) == bytes);
      at += bytes;
    }
  }
  void attach() {
    const int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0) skip("no /dev/loop-control");
    // Somebody else may take the one that is free.
    for (int i = 0; i < 100 && loop_ < 0; ++i) {
      const int number = ioctl(control, LOOP_CTL_GET_FREE);
      if (number < 0) skip("no loop device is free");
      device_ = "/dev/loop" + std::to_string(number);
      loop_ = open(device_.c_str(), O_RDWR | O_CLOEXEC);
      if (loop_ < 0) skip("a loop device can not be opened");
      loop_config config{};
      config.fd = static_cast<uint32_t>(memory_);
      config.block_size = sector_;
      config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
      if (ioctl(loop_, LOOP_CONFIGURE, &config) == 0) break;
      if (errno != EBUSY) skip("a loop device can not be had");
      close(loop_);
      loop_ = -1;
    }
    close(control);
    if (loop_ < 0) skip("all loop devices are taken");
  }
  bool mkfs() const {
    fflush(stdout);
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (const char* program : {"/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4"})
        execl(program, "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard", device_.c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    errno = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) skip("mkfs.ext4 (e2fsprogs) is not installed");
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  // What is stopped and broken is what this made: the machine has other file systems.
  int open_checked() const {
    const int fd = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat folder, device;
    REQUIRE(fd >= 0 && fstat(fd, &folder) == 0 && fstat(loop_, &device) == 0);
    REQUIRE(S_ISBLK(device.st_mode) && folder.st_dev == device.st_rdev);
    return fd;
  }
  void check_is_ours() const { close(open_checked()); }

  std::string options_, path_, device_;
  uint32_t sector_;
  int memory_ = -1, loop_ = -1;
  int stopped_ = -1;  // a copy of the memory
};

#endif
