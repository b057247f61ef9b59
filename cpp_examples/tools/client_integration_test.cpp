// Shows that the parts of a cluster work together on this machine: start `nanomc-master`, then this program. It gives memory as two nodes,
// and puts, reads, copies and removes as a third client; it prints a line for each step and what failed. setup.hpp has the variables.
#include <vector>

#include "setup.hpp"

namespace {

int failed = 0;

void step(const char* name, bool ok, const std::string& why = {}) {
  std::printf("%-48s %s%s%s\n", name, ok ? "ok" : "FAILED", why.empty() ? "" : ": ", why.c_str());
  failed += !ok;
}
template <class T>
void step(const char* name, const nmc::Result<T>& result) {
  step(name, result.ok(), result.message());
}
template <class T>
void refused(const char* name, const nmc::Result<T>& result, nmc_status_t want) {
  step(name, result.status() == want, result.status() == want ? "" : std::string("gives ") + nmc_status_name(result.status()));
}

void run(const Setup& setup) {
  const nmc::Client first = setup.open(), second = setup.open(), client = setup.open();
  const auto test = client.nothrow();
  // Names of their own, so that it can run beside others in a cluster.
  const std::string mark = "integration-" + std::to_string(nmc_pattern_u64(reinterpret_cast<uintptr_t>(client.get()), 0, 0, 0) >> 40);
  const std::string a = mark + "/a", b = mark + "/b", key = mark + "/key", parts = mark + "/parts", none = mark + "/none";
  const auto segment = nmc::StoreConfig().heap_bytes(setup.segment_bytes / 2);
  step("mount a segment", first.nothrow()->mount(a, segment));
  if (failed != 0) return;  // without a master every step would wait for one
  step("mount another", second.nothrow()->mount(b, segment));

  std::vector<char> buffer(setup.buffer_bytes);
  step("register memory", test->register_memory(buffer));
  const std::string value(setup.value_bytes, 'v');
  const auto both = nmc::Replicate().copies(2).at(a).at(b);
  step("put with two copies", test->put(key, value, both));
  refused("put it again: the old value stays", test->put(key, value, both), NMC_ERR_EXISTS);
  const auto copies = test->query(key);
  step("both copies are listed", copies.ok() && copies->size() == 2);
  const auto got = test->get_into(key, buffer);
  step("get", got.ok() && *got == value.size() && std::memcmp(buffer.data(), value.data(), value.size()) == 0, got.message());
  step("exists", test->exists(key));

  const std::string head = "head ", tail = "and tail";
  step("put of two slices", test->put_slices(parts, {nmc::Bytes(head), nmc::Bytes(tail)}, nmc::Replicate().at(a)));
  const auto whole = second.nothrow()->get(parts);
  step("another client reads it whole", whole.ok() && whole->text() == head + tail, whole.message());

  std::vector<std::string> names, values;
  for (int i = 0; i < 32; ++i) names.push_back(mark + "/batch/" + std::to_string(i)), values.push_back("value " + std::to_string(i));
  const nmc::Batch put = client.put_batch(nmc::all_keys(names), nmc::all_bytes(values), nmc::Replicate().at(b));
  step("put of a batch", put.ok(), put.message());
  std::vector<std::string> read(names.size(), std::string(16, ' '));
  const auto batch = client.get_into_batch(nmc::all_keys(names), std::vector<nmc::MutableBytes>(read.begin(), read.end()));
  bool right = batch.ok();
  for (size_t i = 0; right && i < names.size(); ++i) right = read[i].substr(0, batch.values[i]) == values[i];
  step("get of a batch", right, batch.message());

  step("remove", test->remove(key).ok() && test->remove(parts).ok());
  refused("what is removed is gone", test->get_into(key, buffer), NMC_ERR_NOT_FOUND);
  refused("what never was is not there", test->get(none), NMC_ERR_NOT_FOUND);
  for (const std::string& name : names) (void)test->remove(name);
  refused("only who mounted a segment unmounts it", test->unmount(a), NMC_ERR_NOT_FOUND);
  step("unregister memory", test->unregister_memory(buffer.data()));
  step("unmount", first.nothrow()->unmount(a).ok() && second.nothrow()->unmount(b).ok());
}

}  // namespace

int main(int argc, char** argv) {
  Setup setup;
  if (!setup.read(argc, argv)) return 2;
  try {
    run(setup);
  } catch (const nmc::Error& error) {
    step("open", false, error.what());
  }
  if (failed != 0) std::printf("%d steps FAILED. Is a master running at %s?\n", failed, setup.master_server.c_str());
  else std::printf("All steps succeeded.\n");
  return failed == 0 ? 0 : 1;
}
