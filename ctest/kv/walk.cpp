// A random walk over all calls of the block KV cache, in every layout and under every policy. After each step all sequences must
// read their own bytes, the audit must be clean and the numbers must add up.
//
//   kv_walk [steps of a walk] [seed] [stale|copy]
//
// The last argument is the control: an engine that says that a block is computed before it is, or does not make the copies.
#include "kv_engine.hpp"

namespace {

using namespace kv;

struct Walk {
  nmc_kv_config_t config = plain_config(40);
  std::vector<nmc_kv_group_t> groups = {plain_group()};
  std::string name;
};

void walk(const Walk& how, uint32_t steps, uint32_t seed, bool deep) {
  Cache cache(how.config, how.groups);
  Engine e = cache.engine();
  e.deep = deep;
  Random random(seed);
  uint64_t next = 1;
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  const auto any = [&](nmc_status_t status) {  // what a full cache may say
    return CHECK(status == NMC_OK || status == NMC_ERR_NO_SPACE || status == NMC_ERR_STALE || status == NMC_ERR_LIMIT) != 0;
  };
  const int before = failed_checks;
  std::vector<uint64_t> pins;
  for (uint32_t step = 0; step < steps; ++step) {
    uint64_t id = 0;
    if (!e.seqs.empty()) {
      auto at = e.seqs.begin();
      std::advance(at, below(static_cast<uint32_t>(e.seqs.size())));
      id = at->first;
    }
    const uint32_t what = id == 0 ? 0 : below(14);
    Seq& seq = e.seqs[id];
    if (id == 0) e.seqs.erase(id);
    switch (what) {
      case 0:
      case 1: {  // one of a few prompts, cut and continued
        Tokens prompt = numbers(below(4) * 1000, below(30));
        if (below(3) == 0) prompt.push_back(below(3));
        const uint32_t flags = below(4) == 0 ? NMC_KV_OPEN_CONTIGUOUS : below(6) == 0 ? NMC_KV_OPEN_MATCH_ALL : 0;
        if (e.seqs.size() < 8) any(e.open(next++, prompt, below(4) == 0 ? "salt" : "", flags, below(8) != 0));
        break;
      }
      case 2:
      case 3:
      case 4:
      case 5: {
        // Often what another sequence has at the same place, so that equal blocks meet.
        Tokens more = numbers(static_cast<uint32_t>(seq.tokens.size()) + below(2) * 5000, 1 + below(6));
        if (seq.tokens.size() < 150) any(e.append(id, more, below(20) != 0));
        break;
      }
      case 6: {
        const nmc_status_t status = e.truncate(id, below(static_cast<uint32_t>(seq.tokens.size()) + 1));
        if (status == NMC_ERR_UNSUPPORTED && how.config.window > 0) break;          // blocks left the window
        if (status != NMC_ERR_INVALID_ARG || e.info(id).dropped == 0) any(status);  // not into a block that was dropped
        break;
      }
      case 7:
        if (e.seqs.size() < 8) any(e.fork(id, next++));
        break;
      case 8: any(e.reserve(id, seq.tokens.size() + below(10))); break;
      case 9:
        if (e.info(id).state == NMC_KV_SEQ_OPEN) OK(nmc_kv_commit(e.kv, id, below(static_cast<uint32_t>(seq.tokens.size()) + 1)));
        break;
      case 10: OK(e.close(id, below(2) == 0 ? NMC_KV_CLOSE_ABORT : 0)); break;
      case 11:
        if (below(4) == 0) any(nmc_kv_drop_least(e.kv, id, below(3), 1, 1, nullptr));
        break;
      case 12: {
        uint64_t pin = 0;
        if (pins.size() < 2 && nmc_kv_pin(e.kv, id, below(20), &pin, nullptr) == NMC_OK) pins.push_back(pin);
        break;
      }
      default:
        if (!pins.empty()) {
          OK(nmc_kv_unpin(e.kv, pins.back()));
          pins.pop_back();
        }
        if (below(50) == 0) OK(nmc_kv_clear(e.kv, nullptr));
        if (below(10) == 0) {
          const nmc_status_t status = nmc_kv_resize(e.kv, how.config.total_blocks - below(how.config.total_blocks / 2));
          CHECK(status == NMC_OK || status == NMC_ERR_BUSY);
        }
        break;
    }
    if (!e.verify() || failed_checks != before) {
      std::printf("walk '%s', seed %u, step %u (kind %u of sequence %llu)\n", how.name.c_str(), seed, step, what,
                  static_cast<unsigned long long>(id));
      return;
    }
  }
  while (!e.seqs.empty()) OK(e.close(e.seqs.begin()->first));
  for (const uint64_t pin : pins) OK(nmc_kv_unpin(e.kv, pin));
  e.verify();
  CHECK(e.stats().used == 0);
  OK(nmc_kv_clear(e.kv, nullptr));
  OK(nmc_kv_resize(e.kv, how.config.total_blocks));
  CHECK(e.stats().free == how.config.total_blocks);
}

void walks(uint32_t steps, uint32_t seed) {
  promise("in every layout all sequences read their own bytes, by tables, slots, views and addresses");
  const uint32_t dtypes[] = {NMC_DTYPE_FP32, NMC_DTYPE_BF16, NMC_DTYPE_FP16, NMC_DTYPE_FP8, NMC_DTYPE_INT8, NMC_DTYPE_RAW};
  uint32_t number = 0;
  for (uint32_t order = 0; order < 4; ++order) {
    for (uint32_t sides = 0; sides < 3; ++sides) {
      Walk how;
      nmc_kv_group_t group = plain_group(1 + number % 3, 1 + number % 4, 8 + number % 3);
      group.order = order;
      group.sides = sides;
      group.dtype = dtypes[number % 6];
      group.element_bytes = group.dtype == NMC_DTYPE_RAW ? 3 : 0;
      how.groups = {group};
      if (number % 2 == 0) {
        nmc_kv_group_t latent = plain_group(2, 1, 12);
        latent.kind = NMC_KV_KIND_MLA;
        latent.order = (order + 1) % 4;
        how.groups.push_back(latent);
      }
      how.config.tokens_per_block = 1 + number % 5;
      how.name = "layout " + std::string(axes(order, sides));
      walk(how, steps / 10, seed + number++, true);
    }
  }
  promise("under every policy all sequences read their own bytes, and no block is lost");
  for (uint32_t eviction = NMC_EVICT_FIFO; eviction <= NMC_EVICT_PRIORITY; ++eviction) {
    for (uint32_t full = 0; full < 3; ++full) {
      Walk how;
      how.config.eviction = eviction;
      how.config.when_full = full;
      how.config.hash = (eviction + full) % 3;
      how.config.total_blocks = full == 0 ? 60 : 40;
      how.name = "eviction " + std::to_string(eviction) + ", when full " + std::to_string(full);
      walk(how, steps, seed + 100 + eviction * 3 + full, false);
    }
  }
  promise("with spare blocks in lanes, without an index and with a window it is the same");
  Walk large, plain, sliding;
  large.config.total_blocks = 2048;
  large.name = "large";
  plain.config.flags = NMC_KV_NO_PREFIX;
  plain.name = "no prefix";
  sliding.config.window = 9;
  sliding.name = "window";
  for (const Walk& how : {large, plain, sliding}) walk(how, steps, seed + 200, false);
}

int control(const std::string& fault) {
  promise("control");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  if (fault == "stale") {
    e.compute = false;
    OK(e.open(1, numbers(0, 9)));
    OK(nmc_kv_commit(e.kv, 1, 9));
    OK(e.open(2, numbers(0, 9)));
    e.seqs[1].written = 0;
  } else {
    e.execute_copies = false;
    OK(e.open(1, numbers(0, 10)));
    OK(e.fork(1, 2));
  }
  e.verify();
  return finish();
}

}  // namespace

int main(int argc, char** argv) {
  const auto steps = static_cast<uint32_t>(argc > 1 ? std::atoi(argv[1]) : 300);
  const auto seed = static_cast<uint32_t>(argc > 2 ? std::atoi(argv[2]) : 1);
  if (argc > 3) return control(argv[3]);
  std::printf("seed %u\n", seed);
  walks(steps, seed);
  return finish();
}
