// Pins that kernels take.
// usage: store_pins_gpu devpin [seconds]   while a thread churns; control: the same without the pin
//        store_pins_gpu litmus [rounds]    store buffering between nmc_dev_pin and the master's kill-then-scan
#include "store_value.h"

#include "../support/random.hpp"

#include <atomic>
#include <thread>

static constexpr uint32_t KEYS = 6, READERS = 8;
static constexpr uint64_t PIN_PAGE = 128 * KIB, PIN_BYTES = 2 * PIN_PAGE;

// Every word of a value tells its key, its epoch and its place.
static __device__ uint64_t churn_word(uint64_t key, uint64_t epoch, uint64_t i) {
  return nmc_pattern_u64(epoch, static_cast<uint32_t>(key), 77, i);
}

static __global__ void fill_churn(uint64_t* dst, uint64_t key, uint64_t epoch) {
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < PIN_BYTES / 8; i += step) {
    dst[i] = churn_word(key, epoch, i);
  }
}

// The control's check: what nmc_dev_pin looks at, without saying so in a slot.
static __device__ bool looks_readable(const nmc_device_pin_t& pin) {
  const uint64_t control = nmc_dev_ld_acquire_sys_u64(reinterpret_cast<const uint64_t*>(pin.control));
  const uint64_t published = nmc_dev_ld_acquire_sys_u64(reinterpret_cast<const uint64_t*>(pin.published));
  const uint64_t state = control & 15;
  return (state == NMC_STATE_WRITING || state == NMC_STATE_READY) && control >> NMC_EPOCH_SHIFT == pin.epoch &&
         published == pin.epoch;
}

// Each block pins with a slot of its own, reads the object twice and unpins. counts: readable, not, torn.
template <bool PIN>
static __global__ void __launch_bounds__(512)
    pin_and_verify(const nmc_device_pin_t* pins, uint32_t rounds, unsigned long long* counts) {
  __shared__ bool readable;
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint32_t key = (round + blockIdx.x) % KEYS;
    const nmc_device_pin_t pin = pins[blockIdx.x * KEYS + key];
    if (pin.bytes == 0) continue;
    if (threadIdx.x == 0) readable = PIN ? nmc_dev_pin(&pin) : looks_readable(pin);
    __syncthreads();
    const bool there = readable;
    bool wrong = false;
    if (there) {
      // First as an engine reads, through L1; then past it, so that every pass sees memory as it is.
      for (uint64_t i = threadIdx.x; i < pin.bytes / 16; i += blockDim.x) {
        const ulonglong2 seen = nmc_dev_ld16(reinterpret_cast<const void*>(pin.payload + 16 * i));
        wrong |= seen.x != churn_word(key, pin.epoch, 2 * i) || seen.y != churn_word(key, pin.epoch, 2 * i + 1);
      }
      for (uint64_t i = threadIdx.x; i < pin.bytes / 8; i += blockDim.x) {
        const uint64_t seen = nmc_dev_ld_relaxed_sys_u64(reinterpret_cast<const uint64_t*>(pin.payload + 8 * i));
        wrong |= seen != churn_word(key, pin.epoch, i);
      }
    }
    const int torn = __syncthreads_or(wrong ? 1 : 0);
    if (threadIdx.x == 0) {
      if (PIN && there) nmc_dev_unpin(&pin);
      atomicAdd(&counts[there ? 0 : 1], 1ull);
      if (torn != 0) atomicAdd(&counts[2], 1ull);
    }
  }
}

static std::string churn_key(uint64_t key) { return "churn " + std::to_string(key); }

// Writes objects by kernel, and replaces two at a time so that each gets the pages of the other.
struct Churn {
  nmc_store_t* store;
  cudaStream_t stream = new_stream();
  std::atomic<bool> over{false};
  uint64_t writes = 0;
  Random random{1};

  explicit Churn(nmc_store_t* s) : store(s) {
    for (uint64_t key = 0; key < KEYS; ++key) write(key);
  }
  ~Churn() { cudaStreamDestroy(stream); }
  Churn(const Churn&) = delete;
  Churn& operator=(const Churn&) = delete;

  void write(uint64_t key) {
    const nmc_put_options_t contiguous = options(NMC_PUT_CONTIGUOUS);
    const nmc_write_plan_t plan = open_plan(store, churn_key(key), PIN_BYTES, &contiguous);
    fill_churn<<<32, 256, 0, stream>>>(static_cast<uint64_t*>(plan.payload_device), key, plan.epoch);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaStreamSynchronize(stream));
    NMC_CHECK(nmc_store_commit(store, &plan));
    ++writes;
  }

  void remove(uint64_t key) {
    const nmc_status_t status = nmc_store_remove(store, slice(churn_key(key)));
    if (status != NMC_ERR_NOT_FOUND) NMC_CHECK(status); // not found: evicted before
  }

  void run() {
    while (!over.load()) {
      const uint64_t a = random.below(KEYS), b = (a + 1 + random.below(KEYS - 1)) % KEYS;
      remove(a);
      remove(b);
      write(b);
      write(a);
    }
  }
};

struct PinCounts {
  unsigned long long readable = 0, not_readable = 0, torn = 0, launches = 0, writes = 0;
};

// Until `seconds` are over or, for the control, until something was torn.
template <bool PIN>
static PinCounts pins_against_churn(nmc_store_t* store, const uint32_t* slots, double seconds) {
  cudaStream_t stream = new_stream();
  nmc_device_pin_t* pins = pinned_array<nmc_device_pin_t>(READERS * KEYS);
  nmc_device_pin_t* on_device = device_array<nmc_device_pin_t>(READERS * KEYS);
  unsigned long long* counts = device_array<unsigned long long>(3);
  unsigned long long* seen = pinned_array<unsigned long long>(3);
  PinCounts total;
  {
    Churn churn(store);
    std::thread thread([&] { churn.run(); });
    const uint64_t deadline = now_ns() + static_cast<uint64_t>(seconds * 1e9);
    do {
      for (uint32_t reader = 0; reader < READERS; ++reader) {
        for (uint32_t key = 0; key < KEYS; ++key) {
          nmc_device_pin_t& pin = pins[reader * KEYS + key];
          const nmc_status_t status = nmc_store_device_pin(store, slots[reader], slice(churn_key(key)), &pin);
          if (status == NMC_OK) continue;
          // It is just being replaced.
          if (status != NMC_NOT_READY && status != NMC_ERR_NOT_FOUND) NMC_CHECK(status);
          pin = nmc_device_pin_t{};
        }
      }
      CUDA_OK(cudaMemcpyAsync(on_device, pins, READERS * KEYS * sizeof(*pins), cudaMemcpyHostToDevice, stream));
      pin_and_verify<PIN><<<READERS, 512, 0, stream>>>(on_device, 2 * KEYS, counts);
      CUDA_OK(cudaGetLastError());
      CUDA_OK(cudaMemcpyAsync(seen, counts, 24, cudaMemcpyDeviceToHost, stream));
      CUDA_OK(cudaStreamSynchronize(stream));
      ++total.launches;
    } while (now_ns() < deadline && (PIN || seen[2] == 0));
    churn.over.store(true);
    thread.join();
    total.writes = churn.writes;
    for (uint64_t key = 0; key < KEYS; ++key) churn.remove(key);
  }
  total.readable = seen[0];
  total.not_readable = seen[1];
  total.torn = seen[2];
  CUDA_OK(cudaFree(on_device));
  CUDA_OK(cudaFree(counts));
  CUDA_OK(cudaFreeHost(pins));
  CUDA_OK(cudaFreeHost(seen));
  CUDA_OK(cudaStreamDestroy(stream));
  return total;
}

static void print_pins(const char* name, const PinCounts& c) {
  std::printf("# %s: %llu launches, %llu writes; %llu pins held, %llu refused, %llu torn\n", name, c.launches, c.writes,
              c.readable, c.not_readable, c.torn);
}

static void test_devpin(double seconds) {
  for (const uint32_t kind : {NMC_HEAP_CUDA, NMC_HEAP_HOST}) {
    std::printf("# %s\n", heap_name(kind));
    // Room for two objects more than there are keys: what is removed is written over at once.
    nmc_store_config_t cfg = embedded(kind, (KEYS + 2) * PIN_BYTES, PIN_PAGE);
    cfg.pin_slots = 64;
    nmc_store_t* store = create(cfg);
    uint32_t slots[READERS] = {};
    for (uint32_t& slot : slots) NMC_CHECK(nmc_store_slot_reserve(store, &slot));
    const PinCounts pinned = pins_against_churn<true>(store, slots, seconds);
    print_pins("nmc_dev_pin", pinned);
    check(pinned.readable > 0 && pinned.not_readable > 0, "kernels pin objects and are refused others");
    check(pinned.torn == 0, "what a kernel has pinned stays as it is");
    const PinCounts control = pins_against_churn<false>(store, slots, 4 * seconds);
    print_pins("control, a check without a pin", control);
    check(control.torn > 0, "control: without the pin foreign bytes are read");
    for (const uint32_t slot : slots) NMC_CHECK(nmc_store_slot_release(store, slot));
    NMC_CHECK(nmc_store_destroy(store));
  }
  // An object in several extents cannot be pinned by a kernel.
  nmc_store_t* store = create(embedded(NMC_HEAP_CUDA, HEAP, PAGE));
  fragment(store);
  const std::vector<uint8_t> value = value_of(1, 3 * PAGE);
  NMC_CHECK(nmc_store_put(store, slice("spread"), value.data(), value.size(), nullptr));
  uint32_t slot = 0;
  NMC_CHECK(nmc_store_slot_reserve(store, &slot));
  nmc_device_pin_t pin = {};
  expect(nmc_store_device_pin(store, slot, slice("spread"), &pin), NMC_ERR_UNSUPPORTED,
         "device_pin of an object in several extents");
  expect(nmc_store_device_pin(store, slot, slice("nothing"), &pin), NMC_ERR_NOT_FOUND, "device_pin of a missing key");
  expect(nmc_store_device_pin(store, slot + 1, slice("part 0"), &pin), NMC_ERR_NOT_FOUND,
         "device_pin in a slot that is not reserved");
  NMC_CHECK(nmc_store_destroy(store));
}

// ---- the words of a pin, CPU against GPU --------------------------------------------------------------------------
//
// GPU, as nmc_dev_pin: slot = i (release); fence.sc.sys; saw[i] = control (acquire); published (acquire).
// CPU, as the master:  control = j (release); SeqCst fence; u[j] = slot (acquire).
// Forbidden: saw[i] < j and u[j] < i for some i, j: the reader found the object alive and the master found no pin. Both
// logs only grow, so for every i it is enough to look at the first j above saw[i].

static constexpr uint64_t WORDS_PER_LINE = NMC_WORD_STRIDE / 8;

template <bool FENCED>
static __global__ void litmus_reader(uint64_t* slot, const uint64_t* control, const uint64_t* published,
                                     uint64_t rounds, uint64_t* saw, uint64_t* done) {
  uint64_t sum = 0;
  for (uint64_t i = 1; i <= rounds; ++i) {
    nmc_dev_st_release_sys_u64(slot, i);
    if (FENCED) nmc_dev_fence_sc_sys();
    saw[i] = nmc_dev_ld_acquire_sys_u64(control);
    sum += nmc_dev_ld_acquire_sys_u64(published);
  }
  nmc_dev_publish(done, 1 + sum);
}

struct Litmus {
  uint64_t compared = 0, close = 0, violations = 0;
};

template <bool FENCED>
static Litmus litmus(uint64_t rounds) {
  constexpr uint64_t chunk = 50000;
  SharedWords memory(4096);
  uint64_t *slot = memory.host, *control = slot + WORDS_PER_LINE, *done = slot + 3 * WORDS_PER_LINE;
  uint64_t* on_device = device_array<uint64_t>(chunk + 1);
  std::vector<uint64_t> saw(chunk + 1);
  std::vector<uint32_t> u(32u << 20);
  Litmus total;
  for (uint64_t begun = 0; begun < rounds; begun += chunk) {
    const uint64_t n = rounds - begun < chunk ? rounds - begun : chunk;
    std::memset(memory.host, 0, 4 * NMC_WORD_STRIDE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    litmus_reader<FENCED><<<1, 1>>>(memory.device, memory.device + WORDS_PER_LINE, memory.device + 2 * WORDS_PER_LINE,
                                    n, on_device, memory.device + 3 * WORDS_PER_LINE);
    CUDA_OK(cudaGetLastError());
    const uint64_t deadline = now_ns() + TIMEOUT_NS;
    while (__atomic_load_n(slot, __ATOMIC_RELAXED) == 0 && now_ns() < deadline) {
    }
    uint64_t j = 0;
    while (j + 1 < u.size() && __atomic_load_n(done, __ATOMIC_RELAXED) == 0) {
      ++j;
      __atomic_store_n(control, j, __ATOMIC_RELEASE);
      if (FENCED) __atomic_thread_fence(__ATOMIC_SEQ_CST);
      u[j] = static_cast<uint32_t>(__atomic_load_n(slot, __ATOMIC_ACQUIRE));
    }
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaMemcpy(saw.data(), on_device, (n + 1) * 8, cudaMemcpyDeviceToHost));
    for (uint64_t i = 1; i <= n; ++i) {
      const uint64_t first_missed = saw[i] + 1;
      if (first_missed > j) continue;
      ++total.compared;
      total.close += u[first_missed] == i || u[first_missed] + 1 == i;
      total.violations += u[first_missed] < i;
    }
  }
  CUDA_OK(cudaFree(on_device));
  return total;
}

static void print_litmus(const char* name, const Litmus& l) {
  std::printf("# %s: %llu rounds compared, %llu close together, %llu where both sides missed the other's store\n", name,
              ull(l.compared), ull(l.close), ull(l.violations));
}

static void test_litmus(uint64_t rounds) {
  const Litmus fenced = litmus<true>(rounds);
  print_litmus("pin words with fence.sc.sys", fenced);
  check(fenced.compared >= rounds / 10, "the litmus compares at least a tenth of its rounds");
  check(fenced.violations == 0, "a kernel's pin and the master's scan never miss each other");
  const Litmus control = litmus<false>(rounds);
  print_litmus("control without fences", control);
  std::printf("# the control %s\n",
              control.violations > 0 ? "shows what the fences prevent" : "shows nothing this time: run more rounds");
}

int main(int argc, char** argv) {
  prepare_environment();
  skip_without_gpu();
  CUDA_OK(cudaSetDevice(0));
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "devpin") {
    test_devpin(argc > 2 ? std::strtod(argv[2], nullptr) : 2.0);
  } else if (mode == "litmus") {
    test_litmus(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 200000);
  } else {
    std::printf("usage: store_pins_gpu devpin [seconds] | litmus [rounds]\n");
    return 2;
  }
  return finish();
}
