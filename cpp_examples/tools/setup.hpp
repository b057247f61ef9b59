// What both programs are set up with: the environment variables of Mooncake Store's programs and their defaults, and flags that make
// everything smaller.
#ifndef NANOMC_TOOLS_SETUP_HPP
#define NANOMC_TOOLS_SETUP_HPP

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <nanomc.hpp>

struct Setup {
  static std::string variable(const char* name, const char* otherwise) {
    const char* given = std::getenv(name);
    return given != nullptr ? given : otherwise;
  }

  std::string role = variable("ROLE", "prefill");
  std::string protocol = variable("PROTOCOL", "tcp");
  std::string device_name = variable("DEVICE_NAME", "ibp6s0");  // not used with tcp
  // Of this machine; its port is a free one of 12300 to 14299 if none is said.
  std::string local_hostname = variable("LOCAL_HOSTNAME", "localhost");
  std::string metadata_addr = variable("METADATA_ADDR", "127.0.0.1:2379");  // its form is checked, nobody is contacted
  std::string master_server = variable("MASTER_SERVER", "127.0.0.1:50051");
  std::string token = variable("NMC_TOKEN", "");  // needed as soon as it is more than one machine

  uint64_t segment_bytes = uint64_t{3200} << 20;
  uint64_t buffer_bytes = uint64_t{512} << 20;
  uint64_t value_bytes = uint64_t{1} << 20;
  uint64_t requests = 1000;
  uint64_t wait_s = 100;  // how long prefill stays, so that others can read

  // Flags: --segment-mib, --buffer-mib, --value-bytes, --requests, --wait-s. False, with a sentence, for any other.
  bool read(int argc, char** argv) {
    for (int i = 1; i < argc; i += 2) {
      const std::string flag = argv[i];
      const uint64_t number = i + 1 < argc ? std::strtoull(argv[i + 1], nullptr, 10) : 0;
      if (flag == "--segment-mib") segment_bytes = number << 20;
      else if (flag == "--buffer-mib") buffer_bytes = number << 20;
      else if (flag == "--value-bytes") value_bytes = number;
      else if (flag == "--requests") requests = number;
      else if (flag == "--wait-s") wait_s = number;
      else number_missing_ = true;
      number_missing_ = number_missing_ || i + 1 >= argc;
    }
    if (number_missing_ || segment_bytes == 0 || value_bytes == 0 || value_bytes > buffer_bytes) {
      std::fprintf(stderr,
                   "usage: %s [--segment-mib N] [--buffer-mib N] [--value-bytes N, not more than the buffer] [--requests N] [--wait-s N]\n"
                   "environment: ROLE (prefill or decode) PROTOCOL DEVICE_NAME LOCAL_HOSTNAME METADATA_ADDR MASTER_SERVER NMC_TOKEN\n",
                   argv[0]);
      return false;
    }
    return true;
  }

  nmc::Client open() const {
    return nmc::Client::open(nmc::ClientConfig(master_server)
                                 .local_hostname(local_hostname)
                                 .metadata_server(metadata_addr)
                                 .protocol(protocol)
                                 .device_names(device_name)
                                 .token(token));
  }

 private:
  bool number_missing_ = false;
};

#endif
