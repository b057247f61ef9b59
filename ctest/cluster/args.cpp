// nmc_client_*: every pointer NULL, every number at its edges, every text that cannot be: the documented status, never a crash. No master
// is needed for that.
#include "../support/check.h"
#include "../support/value.hpp"

namespace {

nmc_client_config_t good() {
  nmc_client_config_t config = NMC_CLIENT_CONFIG_INIT;
  config.master_server = slice_of("127.0.0.1:1");  // nobody is there
  config.timeout_ms = 300;
  return config;
}

nmc_status_t open(const nmc_client_config_t& config) {
  nmc_client_t* client = nullptr;
  const nmc_status_t status = nmc_client_open(&config, &client);
  CHECK((status == NMC_OK) == (client != nullptr));
  OK(nmc_client_close(client));
  return status;
}

template <class Set>
nmc_status_t opens(Set set) {
  nmc_client_config_t config = good();
  set(config);
  return open(config);
}

int32_t no_replica(void*, const nmc_replica_t*) { return 1; }
int32_t no_key(void*, nmc_slice_t) { return 1; }
int32_t no_segment(void*, const nmc_segment_t*) { return 1; }

void configs() {
  promise("a_config_that_cannot_be_is_refused");
  nmc_client_config_t config = good();
  nmc_client_t* client = reinterpret_cast<nmc_client_t*>(&config);
  GIVES(nmc_client_open(nullptr, &client), NMC_ERR_INVALID_ARG);
  CHECK(client == nullptr);
  GIVES(nmc_client_open(&config, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(opens([](auto& c) { c.struct_size = 4; }), NMC_ERR_VERSION);
  GIVES(opens([](auto& c) { c.master_server = {nullptr, 0}; }), NMC_ERR_INVALID_ARG);
  GIVES(opens([](auto& c) { c.master_server = {nullptr, 7}; }), NMC_ERR_INVALID_ARG);
  for (const char* text : {",", "host:port", "127.0.0.1:99999", "127.0.0.1:-1", "\n", "unix:"}) {
    const nmc_status_t status = opens([&](auto& c) { c.master_server = slice_of(text); });
    if (!CHECK(status < 0)) printf("     master_server \"%s\"\n", text);
  }
  GIVES(opens([](auto& c) { c.protocol = slice_of("carrier pigeon"); }), NMC_ERR_INVALID_ARG);
  OK(opens([](auto& c) { c.protocol = slice_of("rdma"), c.rdma_bytes = 1 << 20; }));  // without NIXL a line in the log
  GIVES(opens([](auto& c) { c.metadata_server = slice_of("ftp://somewhere"); }), NMC_ERR_INVALID_ARG);
  GIVES(opens([](auto& c) { c.timeout_ms = -2; }), NMC_ERR_INVALID_ARG);
  GIVES(opens([](auto& c) { c.timeout_ms = INT64_MAX; }), NMC_ERR_INVALID_ARG);
  GIVES(opens([](auto& c) { c.cache_keys = -2; }), NMC_ERR_INVALID_ARG);
  CHECK(strstr(nmc_last_error_message(), "-1, 0 or more") != nullptr);
  GIVES(opens([](auto& c) { c.flags = 1u << 31; }), NMC_ERR_INVALID_ARG);
  OK(opens([](auto& c) { c.stripe_bytes = 1 << 20; }));
  GIVES(opens([](auto& c) { c.reserved_order = 1; }), NMC_ERR_INVALID_ARG);
  GIVES(opens([](auto& c) { c.read_order = 3; }), NMC_ERR_INVALID_ARG);
  OK(opens([](auto& c) { c.read_order = NMC_READ_SPREAD, c.flags = NMC_CLIENT_EXPIRE; }));
  for (const int64_t ms : {int64_t{0}, int64_t{-2}, INT64_MAX, int64_t{24 * 3600 * 1000 + 1}}) {
    GIVES(opens([&](auto& c) { c.flags = NMC_CLIENT_EXPIRE, c.expire_ms = ms; }), NMC_ERR_INVALID_ARG);
    OK(opens([&](auto& c) { c.expire_ms = ms; }));  // without the flag it means nothing
  }
  const std::string long_name(65, 'n'), long_text(5000, 't');
  GIVES(opens([&](auto& c) { c.namespace_name = slice(long_name); }), NMC_ERR_INVALID_ARG);
  GIVES(opens([&](auto& c) { c.token = slice(long_text); }), NMC_ERR_INVALID_ARG);

  promise("without_a_token_everything_stays_on_this_machine");
  GIVES(opens([](auto& c) { c.master_server = slice_of("192.0.2.1:50051"); }), NMC_ERR_PERMISSION);
  GIVES(opens([](auto& c) { c.local_hostname = slice_of("192.0.2.1"); }), NMC_ERR_PERMISSION);

  promise("sockets_of_this_machine_are_for_clusters_on_it");
  OK(opens([](auto& c) { c.local_hostname = slice_of("unix:/tmp/none"), c.master_server = slice_of("unix:/tmp/none"); }));
  GIVES(opens([](auto& c) { c.local_hostname = slice_of("unix:/tmp/none"), c.master_server = slice_of("192.0.2.1"); }), NMC_ERR_INVALID_ARG);
  GIVES(opens([](auto& c) { c.local_hostname = slice_of("unix:"); }), NMC_ERR_INVALID_ARG);

  promise("what_programs_for_mooncake_say_is_taken");
  for (const char* text : {"", "P2PHANDSHAKE", "etcd://127.0.0.1:2379", "redis://127.0.0.1:6379", "http://127.0.0.1:8080/metadata", "127.0.0.1:2379"}) {
    OK(opens([&](auto& c) { c.metadata_server = slice_of(text); }));
  }
  OK(opens([](auto& c) { c.device_names = slice_of("ibp6s0,mlx5_0"), c.protocol = slice_of("tcp"), c.local_hostname = slice_of("localhost"); }));
  OK(opens([](auto& c) { c.master_server = slice_of("127.0.0.1,localhost:1,unix:/tmp/none"); }));
}

void arguments() {
  nmc_client_config_t config = good();
  nmc_client_t* client = nullptr;
  REQUIRE(OK(nmc_client_open(&config, &client)));
  char byte = 'b';
  const nmc_slice_t key = slice_of("key"), none{nullptr, 0}, bad{nullptr, 3}, value{&byte, 1};
  const nmc_buffer_t to{&byte, 1};
  nmc_store_config_t segment = NMC_STORE_CONFIG_INIT;
  segment.heap_bytes = 1 << 20;
  nmc_replicate_t options = NMC_REPLICATE_INIT;
  nmc_status_t status = NMC_OK;
  uint64_t number = 0;
  nmc_client_completion_t done{};
  size_t n = 7;
  int32_t fd = -1;

  promise("a_null_handle_is_a_bad_handle_everywhere_but_in_close");
  GIVES(nmc_client_mount(nullptr, key, &segment), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_attach_store(nullptr, key, nullptr), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_unmount(nullptr, key), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_drain(nullptr, key, 0, &number), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_register(nullptr, &byte, 1), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_unregister(nullptr, &byte), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_put(nullptr, key, &value, 1, nullptr), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_get(nullptr, key, &to, 1, nullptr), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_put_batch(nullptr, &key, &value, nullptr, 1, nullptr, &status), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_get_batch(nullptr, &key, &to, nullptr, 1, &number, &status), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_get_metadata(nullptr, key, &byte, 1, &n), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_get_metadata_batch(nullptr, &key, &to, 1, &n, &status), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_get_with_metadata(nullptr, key, &to, 1, to, &number, &n), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_remove_batch(nullptr, &key, 1, 0, &status), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_submit_get_metadata(nullptr, key, &byte, 1, 1), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_submit_remove_batch(nullptr, &key, 1, 0, 1, &status), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_exists(nullptr, key), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_exists_batch(nullptr, &key, 1, &status), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_remove(nullptr, key, 0), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_remove_all(nullptr, 0), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_query(nullptr, key, no_replica, nullptr), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_segments(nullptr, no_segment, nullptr), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_keys(nullptr, none, &number, no_key, nullptr), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_sync(nullptr), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_submit_put(nullptr, key, &value, 1, nullptr, 1), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_submit_get(nullptr, key, &to, 1, 1), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_submit_remove(nullptr, key, 0, 1), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_submit_put_batch(nullptr, &key, &value, nullptr, 1, nullptr, 1, &status), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_submit_get_batch(nullptr, &key, &to, nullptr, 1, 1, &number, &status), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_completions(nullptr, &done, 1, 0, &n), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_event_fd(nullptr, &fd), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_cancel(nullptr, 1), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_set_placement(nullptr, nullptr, nullptr, nullptr), NMC_ERR_BAD_HANDLE);
  OK(nmc_client_close(nullptr));

  promise("null_and_texts_that_cannot_be_are_refused");
  GIVES(nmc_client_mount(client, key, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_mount(client, bad, &segment), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_mount(client, slice_of("two\nlines"), &segment), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_attach_store(client, key, nullptr), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_unmount(client, none), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_drain(client, none, 0, &number), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_register(client, nullptr, 1), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_register(client, &byte, 0), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_register(client, &byte, SIZE_MAX), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_unregister(client, nullptr), NMC_ERR_NOT_FOUND);
  for (const nmc_slice_t& k : {none, bad}) {
    GIVES(nmc_client_put(client, k, &value, 1, nullptr), NMC_ERR_INVALID_ARG);
    GIVES(nmc_client_get(client, k, &to, 1, nullptr), NMC_ERR_INVALID_ARG);
    GIVES(nmc_client_exists(client, k), NMC_ERR_INVALID_ARG);
    GIVES(nmc_client_get_metadata(client, k, &byte, 1, &n), NMC_ERR_INVALID_ARG);
    GIVES(nmc_client_get_metadata_batch(client, &k, &to, 1, &n, &status), NMC_ERR_INVALID_ARG);
    GIVES(nmc_client_get_with_metadata(client, k, &to, 1, to, &number, &n), NMC_ERR_INVALID_ARG);
    GIVES(nmc_client_submit_get_metadata(client, k, &byte, 1, 1), NMC_ERR_INVALID_ARG);
    status = NMC_OK;
    GIVES(nmc_client_remove_batch(client, &k, 1, 0, &status), NMC_ERR_INVALID_ARG);
    CHECK(status == NMC_ERR_INVALID_ARG);
    GIVES(nmc_client_remove(client, k, 0), NMC_ERR_INVALID_ARG);
    GIVES(nmc_client_query(client, k, no_replica, nullptr), NMC_ERR_INVALID_ARG);
    GIVES(nmc_client_put_batch(client, &k, &value, nullptr, 1, nullptr, &status), NMC_ERR_INVALID_ARG);
    GIVES(nmc_client_get_batch(client, &k, &to, nullptr, 1, &number, &status), NMC_ERR_INVALID_ARG);
    GIVES(nmc_client_exists_batch(client, &k, 1, &status), NMC_ERR_INVALID_ARG);
  }
  GIVES(nmc_client_put(client, key, nullptr, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_put(client, key, &bad, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_put(client, key, &value, SIZE_MAX, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_get(client, key, nullptr, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_put_batch(client, nullptr, &value, nullptr, 1, nullptr, &status), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_put_batch(client, &key, nullptr, nullptr, 1, nullptr, &status), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_get_batch(client, &key, nullptr, nullptr, 1, &number, &status), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_exists_batch(client, &key, 1, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_get_metadata(client, key, nullptr, 1, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_get_metadata(client, key, &byte, SIZE_MAX, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_get_metadata_batch(client, &key, nullptr, 1, &n, &status), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_get_with_metadata(client, key, nullptr, 1, to, &number, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_get_with_metadata(client, key, &to, 1, nmc_buffer_t{nullptr, 1}, &number, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_remove_batch(client, nullptr, 1, 0, &status), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_remove_batch(client, &key, 1, NMC_REMOVE_EVERYWHERE, &status), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_submit_get_metadata(client, key, nullptr, 1, 1), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_submit_remove_batch(client, nullptr, 1, 0, 1, &status), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_submit_remove_batch(client, &key, 1, 1u << 31, 1, &status), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_query(client, key, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_segments(client, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_remove(client, key, 1u << 31), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_remove(client, key, NMC_REMOVE_EVERYWHERE), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_remove_all(client, 1u << 31), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_keys(client, bad, &number, no_key, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_keys(client, none, nullptr, no_key, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_keys(client, none, &number, nullptr, nullptr), NMC_ERR_INVALID_ARG);
  uint64_t no_place = UINT64_MAX;
  GIVES(nmc_client_keys(client, none, &no_place, no_key, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_submit_put(client, none, &value, 1, nullptr, 1), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_submit_put(client, key, nullptr, 1, nullptr, 1), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_submit_get(client, bad, &to, 1, 1), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_submit_get(client, key, nullptr, 1, 1), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_submit_remove(client, none, 0, 1), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_submit_remove(client, key, NMC_REMOVE_EVERYWHERE, 1), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_submit_put_batch(client, nullptr, &value, nullptr, 1, nullptr, 1, &status), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_submit_get_batch(client, &key, nullptr, nullptr, 1, 1, &number, &status), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_completions(client, nullptr, 1, 0, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_completions(client, &done, 1, 0, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_completions(client, &done, 1, -2, &n), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_event_fd(client, nullptr), NMC_ERR_INVALID_ARG);
  GIVES(nmc_client_cancel(client, 1), NMC_ERR_NOT_FOUND);
  OK(nmc_client_completions(client, &done, 1, -1, &n));
  CHECK(n == 0);  // nothing of all that was submitted
  const std::string long_key(2000, 'k');
  GIVES(nmc_client_exists(client, slice(long_key)), NMC_ERR_INVALID_ARG);

  promise("options_of_a_put_that_cannot_be_are_refused");
  const auto refused = [&](auto set) {
    nmc_replicate_t changed = options;
    set(changed);
    return nmc_client_put(client, key, &value, 1, &changed);
  };
  GIVES(refused([](auto& o) { o.copies = 0; }), NMC_ERR_INVALID_ARG);
  GIVES(refused([](auto& o) { o.copies = 17; }), NMC_ERR_INVALID_ARG);
  GIVES(refused([](auto& o) { o.retain = 9; }), NMC_ERR_INVALID_ARG);
  GIVES(refused([](auto& o) { o.priority = 4; }), NMC_ERR_INVALID_ARG);
  GIVES(refused([](auto& o) { o.n_locations = 1; }), NMC_ERR_INVALID_ARG);
  GIVES(refused([](auto& o) { o.n_locations = SIZE_MAX; }), NMC_ERR_INVALID_ARG);
  GIVES(refused([](auto& o) { o.reserved[0] = 1; }), NMC_ERR_INVALID_ARG);
  GIVES(refused([&](auto& o) { o.metadata = slice(long_key); }), NMC_ERR_INVALID_ARG);
  nmc_location_t where{slice_of("a"), 7, 0};
  GIVES(refused([&](auto& o) { o.locations = &where, o.n_locations = 1; }), NMC_ERR_INVALID_ARG);
  where = {slice_of("a"), NMC_MEDIA_ANY, 1};
  GIVES(refused([&](auto& o) { o.locations = &where, o.n_locations = 1; }), NMC_ERR_INVALID_ARG);
  const nmc_location_t twice[2] = {{slice_of("a"), NMC_MEDIA_ANY, 0}, {slice_of("a"), NMC_MEDIA_ANY, 0}};
  GIVES(refused([&](auto& o) { o.locations = twice, o.n_locations = 2, o.copies = 2; }), NMC_ERR_INVALID_ARG);

  promise("without_a_master_every_call_says_so");
  const auto away = [](nmc_status_t got) { return got == NMC_ERR_UNAVAILABLE || got == NMC_ERR_TIMEOUT; };
  CHECK(away(nmc_client_put(client, key, &value, 1, nullptr)) && away(nmc_client_get(client, key, &to, 1, nullptr)));
  number = 77;
  CHECK(away(nmc_client_get(client, key, &to, 1, &number)) && number == 77);  // of what was not found nothing is told
  CHECK(away(nmc_client_get_metadata(client, key, &byte, 1, nullptr)) && away(nmc_client_get_with_metadata(client, key, &to, 1, to, nullptr, nullptr)));
  CHECK(away(nmc_client_get_metadata_batch(client, &key, &to, 1, &n, &status)) && away(status) && n == 0);
  CHECK(away(nmc_client_remove_batch(client, &key, 1, 0, &status)) && away(status));
  CHECK(away(nmc_client_exists(client, key)) && away(nmc_client_remove(client, key, 0)) && away(nmc_client_remove_all(client, 0)));
  CHECK(away(nmc_client_drain(client, key, 0, nullptr)) && away(nmc_client_query(client, key, no_replica, nullptr)));
  CHECK(away(nmc_client_keys(client, none, &number, no_key, nullptr)));
  CHECK(away(nmc_client_segments(client, no_segment, nullptr)) && away(nmc_client_mount(client, key, &segment)));
  CHECK(away(nmc_client_exists_batch(client, &key, 1, &status)) && away(status));
  CHECK(away(nmc_client_put_batch(client, &key, &value, nullptr, 1, nullptr, &status)) && away(status));
  CHECK(away(nmc_client_get_batch(client, &key, &to, nullptr, 1, &number, &status)) && away(status));
  OK(nmc_client_sync(client));  // there is no node whose objects anybody would have to find
  OK(nmc_client_remove_batch(client, nullptr, 0, 0, nullptr));
  OK(nmc_client_get_metadata_batch(client, nullptr, nullptr, 0, nullptr, nullptr));
  OK(nmc_client_put_batch(client, nullptr, nullptr, nullptr, 0, nullptr, nullptr));
  OK(nmc_client_get_batch(client, nullptr, nullptr, nullptr, 0, nullptr, nullptr));

  promise("a_closed_client_is_a_bad_handle");
  OK(nmc_client_close(client));
  GIVES(nmc_client_exists(client, key), NMC_ERR_BAD_HANDLE);
  GIVES(nmc_client_close(client), NMC_ERR_BAD_HANDLE);
}

}  // namespace

int main() {
  skip_without_join();
  configs();
  arguments();
  return finish();
}
