// What left memory comes from disk into every kind of memory: whole, in parts, in batches and ahead.
#include "store_bed.h"

static void tier_of(Bed& bed, Buffers& sources, Buffers& targets) {
  static constexpr uint64_t sizes[] = {0, 1, 4096, PAGE + 1, 300 * KIB + 3, 3 * MIB + 5};
  const std::string where = std::string(" on a ") + heap_name(bed.heap_kind);
  char dir[] = "/tmp/nmc-gpu-tier-XXXXXX";
  if (mkdtemp(dir) == nullptr) stop();
  nmc_tier_config_t config = NMC_TIER_CONFIG_INIT;
  config.directory = nmc_slice_t{dir, std::strlen(dir)};
  config.flags = NMC_TIER_PAUSED;
  config.max_objects = 1000;
  nmc_tier_t* tier = nullptr;
  NMC_CHECK(nmc_tier_open(bed.store, &config, &tier));
  Tally gets, parts;
  uint64_t seed = 4000;
  for (const uint64_t bytes : sizes) {
    const std::vector<uint8_t> value = value_of(++seed, bytes);
    const std::string key = "tier " + std::to_string(bytes);
    sources.device.write(RED, value.data(), bytes);
    NMC_CHECK(nmc_store_put(bed.store, slice(key), sources.device.base + RED, bytes, nullptr));
    uint64_t written = 0;
    NMC_CHECK(nmc_tier_offload(tier, nullptr, 0, &written));
    NMC_CHECK(nmc_store_evict_until_below(bed.store, 0, 0));
    // One without bytes takes no page, and stays.
    const bool left = bytes == 0 || state_of(bed.store, key) == NMC_OBJECT_ON_DISK;
    gets.note(written == 1 && left, key + " is on disk");
    for (const Kind to : KINDS) {
      for (const size_t offset : {size_t{0}, size_t{3}}) {
        Memory& target = targets.of(to);
        target.fill(0, RED_BYTE, RED + offset + bytes + RED);
        const nmc_status_t got = nmc_store_get_into(bed.store, slice(key), target.base + RED + offset, bytes);
        gets.note(got == NMC_OK && arrived(target, RED + offset, value), case_name("get into", to, offset, bytes));
        const uint64_t from = bytes / 3, part = bytes / 2;
        const std::vector<uint8_t> want(value.begin() + static_cast<std::ptrdiff_t>(from),
                                        value.begin() + static_cast<std::ptrdiff_t>(from + part));
        target.fill(0, RED_BYTE, RED + offset + part + RED);
        const nmc_status_t some = get_range(bed.store, slice(key), from, target.base + RED + offset, part);
        parts.note(some == NMC_OK && arrived(target, RED + offset, want), case_name("a part into", to, offset, part));
      }
    }
  }
  // All together, into memory of the device: each between bytes that stay.
  std::vector<std::string> names;
  std::vector<nmc_slice_t> keys;
  std::vector<nmc_buffer_t> to;
  std::vector<uint8_t> want(RED, RED_BYTE);
  seed = 4000;
  for (const uint64_t bytes : sizes) {
    const std::vector<uint8_t> value = value_of(++seed, bytes);
    names.push_back("tier " + std::to_string(bytes));
    to.push_back(nmc_buffer_t{targets.device.base + want.size(), bytes});
    want.insert(want.end(), value.begin(), value.end());
    want.insert(want.end(), RED, RED_BYTE);
  }
  for (const std::string& name : names) keys.push_back(slice(name));
  targets.device.fill(0, RED_BYTE, want.size());
  const nmc_status_t batch = nmc_store_get_into_batch(bed.store, keys.data(), to.data(), keys.size(), nullptr);
  std::vector<uint8_t> seen(want.size());
  targets.device.read(0, seen.data(), seen.size());
  gets.note(batch == NMC_OK && seen == want, "a batch");
  // Back into the heap, and from there.
  const nmc_status_t fetched = nmc_tier_prefetch(tier, keys.data(), keys.size(), nullptr);
  seed = 4000;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::vector<uint8_t> value = value_of(++seed, sizes[i]);
    targets.device.fill(0, RED_BYTE, RED + value.size() + RED);
    const nmc_status_t got = nmc_store_get_into(bed.store, keys[i], targets.device.base + RED, value.size());
    const bool there = state_of(bed.store, names[i]) == NMC_OBJECT_READY;
    gets.note(fetched == NMC_OK && there && got == NMC_OK && arrived(targets.device, RED, value), names[i] + " prefetched");
  }
  gets.all_right("values come from disk into every kind of memory" + where);
  parts.all_right("and so do parts of them" + where);
  NMC_CHECK(nmc_tier_close(tier));
  (void)!std::system((std::string("rm -rf ") + dir).c_str());
}

int main() {
  prepare_environment();
  skip_without_gpu();
  CUDA_OK(cudaSetDevice(0));
  Buffers sources(6 * MIB), targets(6 * MIB);
  for (const uint32_t kind : {NMC_HEAP_CUDA, NMC_HEAP_HOST}) {
    Bed bed(kind);
    tier_of(bed, sources, targets);
  }
  return finish();
}
