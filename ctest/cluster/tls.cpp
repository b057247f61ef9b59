// A cluster with certificates: who has one of its authority takes part, and nobody else.
#include <nanomc.hpp>

#include "../support/cluster.hpp"
#include "../support/value.hpp"

namespace {

nmc::ClientConfig config_of(const std::string& master) { return nmc::ClientConfig(master).timeout(std::chrono::milliseconds(20000)); }

nmc::ClientConfig with(nmc::ClientConfig config, const std::string& who, const std::string& ca) {
  return config.tls(who + ".pem", who + ".key", ca + "/ca.pem");
}

template <class Call>
nmc_status_t status_of(Call call) {
  try {
    call();
  } catch (const nmc::Error& error) {
    return error.status();
  }
  return NMC_OK;
}

void values() {
  promise("nodes_and_clients_with_certificates_put_and_read_values_of_all_sizes");
  Master master;
  const std::string all = certificates + "/all";
  nmc::Client node = nmc::Client::open(with(config_of(master.address()), all, certificates));
  node.mount("node", nmc::StoreConfig().heap_bytes(256 << 20));
  nmc::Client client = nmc::Client::open(with(config_of(master.address()).stripe_bytes(1 << 20), all, certificates));
  for (const size_t bytes : {size_t{1}, size_t{1000}, size_t{100000}, size_t{1} << 20, size_t{9} << 20}) {
    const std::string key = std::to_string(bytes);
    std::vector<uint8_t> value(bytes);
    make_value(bytes, 0, value.data(), bytes);
    client.put(key, nmc::Bytes(value.data(), value.size()));
    std::vector<uint8_t> room(bytes);
    CHECK(client.get_into(key, nmc::MutableBytes(room.data(), room.size())) == bytes && room == value);
  }

  promise("long_values_never_wait_for_each_other");
  nmc::Client whole = nmc::Client::open(with(config_of(master.address()), all, certificates));
  std::vector<uint8_t> from(48 << 20), to(from.size());
  make_value(1, 0, from.data(), from.size());
  for (int round = 0; round < 8; ++round) {
    whole.put("long", nmc::Bytes(from.data(), from.size()));
    CHECK(whole.get_into("long", nmc::MutableBytes(to.data(), to.size())) == from.size() && from == to);
    CHECK(whole.remove("long") == nmc::Removed::everywhere);
  }

  promise("a_master_that_is_started_again_is_found_again");
  master.kill9();
  master.start();
  const double late = seconds_now() + kPatience;
  while (status_of([&] { client.put("again", std::string_view("x")); }) != NMC_OK) CHECK(seconds_now() < late);
  CHECK(client.get("again").text() == "x");

  promise("without_a_certificate_or_with_another_nobody_is_heard");
  nmc::Client plain = nmc::Client::open(config_of(master.address()));
  CHECK(status_of([&] { plain.put("x", std::string_view("x")); }) == NMC_ERR_PERMISSION);
  const std::string ours = certificates;
  secure();
  nmc::Client other = nmc::Client::open(with(config_of(master.address()), certificates + "/all", ours));
  CHECK(status_of([&] { other.put("x", std::string_view("x")); }) == NMC_ERR_PERMISSION);
  nmc::Client deceived = nmc::Client::open(with(config_of(master.address()), ours + "/all", certificates));
  CHECK(status_of([&] { deceived.put("x", std::string_view("x")); }) == NMC_ERR_PERMISSION);
  CHECK(!client.exists("x"));
}

void arguments() {
  promise("two_files_of_three_and_files_that_are_none_are_refused_with_a_message");
  const std::string all = certificates + "/all";
  const auto open = [](nmc::ClientConfig config) { return status_of([&] { nmc::Client::open(config); }); };
  CHECK(open(config_of("127.0.0.1:1").tls(all + ".pem", all + ".key", "")) == NMC_ERR_INVALID_ARG);
  CHECK(std::string(nmc_last_error_message()).find("together") != std::string::npos);
  CHECK(open(config_of("127.0.0.1:1").tls(all + ".pem", all + ".pem", all + ".pem")) == NMC_ERR_INVALID_ARG);
  CHECK(open(config_of("127.0.0.1:1").tls("/nowhere", all + ".key", all + ".pem")) == NMC_ERR_INVALID_ARG);
  CHECK(std::string(nmc_last_error_message()).find("/nowhere can not be used for TLS") != std::string::npos);
  // No token is needed to leave the loopback device: nobody without a certificate is heard.
  CHECK(open(config_of("192.0.2.1:1")) == NMC_ERR_PERMISSION);
  CHECK(open(with(config_of("192.0.2.1:1"), all, certificates)) == NMC_OK);
}

}  // namespace

int main() {
  secure();
  values();
  arguments();
  return finish();
}
