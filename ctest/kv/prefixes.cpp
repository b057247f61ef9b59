// Prefixes that sequences share: what is found again, when, and under which hashes.
#include "kv_engine.hpp"

namespace {

using namespace kv;

void prefix_hits() {
  promise("full blocks of equal tokens are found again, at least one token is left, and salts keep apart");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  const Tokens prompt = numbers(100, 10);
  OK(e.open(1, prompt));
  CHECK(e.opened.hit_tokens == 0 && e.opened.tokens == 10);
  e.verify();
  CHECK(e.match(prompt) == 0);  // not computed yet, as far as the calls tell
  OK(e.append(1, {7}));
  CHECK(e.match(prompt) == 8);
  OK(e.open(2, prompt));
  CHECK(e.opened.hit_tokens == 8);
  OK(e.open(3, numbers(100, 8)));  // all of it is there, but the last token's result is needed
  CHECK(e.opened.hit_tokens == 4);
  OK(e.open(4, numbers(100, 8), "", NMC_KV_OPEN_MATCH_ALL));
  CHECK(e.opened.hit_tokens == 8);
  OK(e.open(5, prompt, "tenant"));
  CHECK(e.opened.hit_tokens == 0 && e.match(prompt, "tenant") == 0);
  OK(e.open(6, prompt, "", NMC_KV_OPEN_PRIVATE));
  CHECK(e.opened.hit_tokens == 0);
  OK(e.open(7, prompt, "", 0, false));  // unknown tokens
  CHECK(e.opened.hit_tokens == 0);
  OK(e.open(8, {}));
  e.verify();
  Tokens other = prompt;
  other[5] = 0;
  CHECK(e.match(other) == 4);
  CHECK(e.match(numbers(101, 10)) == 0 && e.match({}) == 0 && e.match(numbers(100, 3)) == 0);
  const nmc_kv_stats_t stats = e.stats();
  CHECK(stats.sequences == 8 && stats.hit_tokens == 20 && stats.asked_tokens == 66);
  for (uint64_t id = 1; id <= 8; ++id) OK(e.close(id));
  e.verify();
  // 11 tokens of 1 and 10 with a salt: 2 + 2 full blocks; the rest was equal, private or unknown.
  CHECK(e.stats().idle == 4 && e.stats().used == 0 && e.stats().published == 4);
  CHECK(e.match(prompt) == 8 && e.match(prompt, "tenant") == 8);
}

void lag_by_one() {
  promise("tokens can be matched with the next append or close, or with commit, and not before");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 4)));
  CHECK(e.match(numbers(0, 4)) == 0);
  OK(e.append(1, {4}));
  CHECK(e.match(numbers(0, 8)) == 4);
  OK(e.append(1, {5, 6, 7}));
  CHECK(e.match(numbers(0, 8)) == 4 && e.info(1).published == 1);
  OK(nmc_kv_commit(e.kv, 1, 7));
  CHECK(e.match(numbers(0, 8)) == 4);
  OK(nmc_kv_commit(e.kv, 1, 8));
  CHECK(e.match(numbers(0, 8)) == 8 && e.info(1).published == 2);
  OK(nmc_kv_commit(e.kv, 1, 0));  // never takes anything back
  CHECK(e.match(numbers(0, 8)) == 8);
  OK(e.append(1, {8, 9, 10, 11}));
  e.verify();
  OK(e.close(1));
  CHECK(e.match(numbers(0, 12)) == 12);

  promise("an abort publishes only what counted as computed before");
  OK(e.open(2, numbers(50, 9)));
  OK(e.append(2, {59, 60, 61}));
  OK(e.close(2, NMC_KV_CLOSE_ABORT));
  CHECK(e.match(numbers(50, 12)) == 8);
  OK(e.open(3, numbers(80, 8)));
  OK(nmc_kv_commit(e.kv, 3, 5));
  OK(e.close(3, NMC_KV_CLOSE_ABORT));
  CHECK(e.match(numbers(80, 8)) == 4);
  e.verify();

  promise("tokens that are not known end the publishing, and an empty sequence publishes what it gets");
  OK(e.open(4, numbers(200, 4)));
  OK(e.append(4, {1, 2}, false));
  OK(e.append(4, {3, 4}));
  OK(e.append(4, {5}));
  e.verify();
  OK(e.close(4));
  CHECK(e.match({200, 201, 202, 203, 1, 2, 3, 4}) == 4);
  OK(e.open(5, {}));
  OK(e.append(5, numbers(300, 5)));
  OK(e.close(5));
  CHECK(e.match(numbers(300, 5)) == 4);
  e.verify();
}

void equal_at_once() {
  promise("blocks that two sequences compute at once become one, and both read the right bytes");
  Cache cache(plain_config(64));
  Engine e = cache.engine();
  OK(e.open(1, numbers(0, 8)));
  OK(e.open(2, numbers(0, 8)));
  CHECK(e.stats().used == 4);
  OK(e.append(1, {8}));
  OK(e.append(2, {9}));
  e.verify();
  const nmc_kv_stats_t stats = e.stats();
  CHECK(stats.deduplicated == 2 && stats.used == 4 && stats.published == 2);
  CHECK(e.fresh_table(1)[0] == e.fresh_table(2)[0] && e.fresh_table(1)[2] != e.fresh_table(2)[2]);
  OK(e.close(1));
  e.verify();
  OK(e.close(2));
}

void hashes() {
  promise("a program that computes hashes itself gets the same hits, and each kind of hash works");
  for (uint32_t kind : {NMC_KV_HASH_BLAKE3, NMC_KV_HASH_SHA256, NMC_KV_HASH_XXH3}) {
    nmc_kv_config_t config = plain_config(64);
    config.hash = kind;
    config.hash_secret = slice_of("secret");
    Cache cache(config);
    Engine e = cache.engine();
    const Tokens prompt = numbers(5, 14);
    std::vector<nmc_kv_hash_t> hash(3), salted(3);
    OK(nmc_kv_hash(e.kv, prompt.data(), prompt.size(), {nullptr, 0}, hash.data()));
    OK(nmc_kv_hash(e.kv, prompt.data(), prompt.size(), slice_of("x"), salted.data()));
    CHECK(std::memcmp(&hash[0], &salted[0], 16) != 0 && std::memcmp(&hash[0], &hash[1], 16) != 0);
    OK(e.open(1, prompt));
    OK(e.close(1));
    nmc_kv_open_t options = NMC_KV_OPEN_INIT;
    options.hashes = hash.data();
    options.n_hashes = hash.size();
    OK(e.open(2, prompt, options));
    CHECK(e.opened.hit_tokens == 12);
    uint64_t hit = 0;
    OK(nmc_kv_match(e.kv, prompt.data(), prompt.size(), hash.data(), {nullptr, 0}, &hit));
    CHECK(hit == 12);
    if (kind == NMC_KV_HASH_XXH3) {
      GIVES(e.open(3, prompt, options, false), NMC_ERR_INVALID_ARG);
      GIVES(nmc_kv_match(e.kv, nullptr, 14, hash.data(), {nullptr, 0}, &hit), NMC_ERR_INVALID_ARG);
    } else {
      OK(e.open(3, prompt, options, false));
      CHECK(e.opened.hit_tokens == 12);
      OK(nmc_kv_match(e.kv, nullptr, 14, hash.data(), {nullptr, 0}, &hit));
      CHECK(hit == 12);
      // Known by hashes alone, a sequence publishes as far as these go.
      const Tokens far = numbers(1000, 10);
      OK(nmc_kv_hash(e.kv, far.data(), far.size(), {nullptr, 0}, hash.data()));
      options.n_hashes = 2;
      OK(e.open(4, far, options, false));
      OK(e.append(4, numbers(1010, 6)));
      CHECK(e.match(numbers(1000, 16)) == 8);
      OK(e.close(4));
      CHECK(e.match(numbers(1000, 16)) == 8);
      OK(e.close(3));
    }
    e.verify();
    OK(e.close(2));
  }
}

}  // namespace

int main() {
  prefix_hits();
  lag_by_one();
  equal_at_once();
  hashes();
  return finish();
}
