// The object store with CUDA memory, used as an engine uses it: nanomc.h on the host, nanomc/device.cuh in kernels.
// usage: store_gpu copies            put and get between every kind of memory, with red zones
//        store_gpu tier              what left memory, from disk into every kind of memory
//        store_gpu streams           push, commit, fetch and unpin on a stream
//        store_gpu graph             captured publish and unpin; control: a baked epoch
//        store_gpu wait              nmc_store_wait_ready_async: ready, stale, late
//        store_gpu devpin [seconds]  kernels pin while a thread churns; control: the same without the pin
//        store_gpu litmus [rounds]   store buffering between nmc_dev_pin and the master's kill-then-scan
//        store_gpu procs             2 processes: prefill's kernels store and publish, decode's verify

#include "store_check.h"

#include <atomic>
#include <thread>

static constexpr uint64_t PAGE = 64 * KIB, HEAP = 8 * MIB, RED = 64;
static constexpr uint8_t RED_BYTE = 0xA5, FREE_BYTE = 0xEE;

// Ends the process; what was printed is kept.
[[noreturn]] static void stop() {
  std::fflush(stdout);
  std::_Exit(1);
}

static unsigned long long ull(uint64_t value) { return static_cast<unsigned long long>(value); }

// ---- values -------------------------------------------------------------------------------------------------------

// Word `i` of the value with number `seed`; its bytes are the value's, the last word may be cut.
static __host__ __device__ uint64_t word_of(uint64_t seed, uint64_t i) { return nmc_pattern_u64(seed, 3, 5, i); }

static std::vector<uint8_t> value_of(uint64_t seed, size_t bytes) {
  std::vector<uint8_t> value((bytes + 7) / 8 * 8);
  for (size_t i = 0; i < value.size() / 8; ++i) {
    const uint64_t word = word_of(seed, i);
    std::memcpy(value.data() + 8 * i, &word, 8);
  }
  value.resize(bytes);
  return value;
}

// Counts cases and says what the first wrong ones were.
struct Tally {
  uint64_t tried = 0, wrong = 0;

  void note(bool ok, const std::string& what) {
    ++tried;
    if (ok) return;
    if (++wrong <= 5) std::printf("# wrong: %s (last error: %s)\n", what.c_str(), nmc_last_error_message());
  }
  bool all_right(const std::string& name) const {
    return check(wrong == 0 && tried > 0, (name + ": " + std::to_string(tried) + " cases").c_str());
  }
};

// The runs of an object for a kernel.
static constexpr uint32_t MAX_RUNS = 16;
struct Runs {
  uint64_t at[MAX_RUNS];
  uint64_t bytes[MAX_RUNS];
  uint32_t n;
};

static Runs runs_of(const std::vector<nmc_extent_t>& extents, size_t n) {
  Runs runs = {};
  if (n > MAX_RUNS) {
    std::printf("FAIL an object in %zu extents; this test has room for %u\n", n, MAX_RUNS);
    stop();
  }
  runs.n = static_cast<uint32_t>(n);
  for (size_t i = 0; i < n; ++i) {
    runs.at[i] = reinterpret_cast<uint64_t>(extents[i].device_ptr);
    runs.bytes[i] = extents[i].bytes;
  }
  return runs;
}

static Runs runs_of_plan(nmc_store_t* store, const nmc_write_plan_t& plan) {
  std::vector<nmc_extent_t> extents(256);
  size_t n = 0;
  NMC_CHECK(nmc_store_plan_extents(store, &plan, extents.data(), extents.size(), &n));
  return runs_of(extents, n);
}

static Runs runs_of_view(nmc_store_t* store, const nmc_view_t& view) {
  std::vector<nmc_extent_t> extents(256);
  size_t n = 0;
  NMC_CHECK(nmc_store_view_extents(store, &view, extents.data(), extents.size(), &n));
  return runs_of(extents, n);
}

// Writes the value with number `seed` to `dst`, byte by byte: any alignment.
static __global__ void fill_value(uint8_t* dst, uint64_t bytes, uint64_t seed) {
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < bytes; i += step) {
    dst[i] = static_cast<uint8_t>(word_of(seed, i / 8) >> (8 * (i % 8)));
  }
}

// Counts the words (and single bytes at the end) that are not those of the value with number `seed`.
static __global__ void count_wrong(Runs runs, uint64_t seed, unsigned long long* wrong) {
  const uint64_t me = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  unsigned long long bad = 0;
  uint64_t first = 0; // of the run, in the value; a multiple of the page
  for (uint32_t r = 0; r < runs.n; ++r) {
    const uint64_t words = runs.bytes[r] / 8;
    for (uint64_t i = me; i < words; i += step) {
      const uint64_t seen = nmc_dev_ld_relaxed_sys_u64(reinterpret_cast<const uint64_t*>(runs.at[r] + 8 * i));
      bad += seen != word_of(seed, first / 8 + i);
    }
    for (uint64_t i = 8 * words + me; i < runs.bytes[r]; i += step) {
      const uint8_t seen = *reinterpret_cast<const volatile uint8_t*>(runs.at[r] + i);
      bad += seen != static_cast<uint8_t>(word_of(seed, (first + i) / 8) >> (8 * ((first + i) % 8)));
    }
    first += runs.bytes[r];
  }
  if (bad != 0) atomicAdd(wrong, bad);
}

// ---- a store whose whole heap is looked at ------------------------------------------------------------------------

struct Bed {
  nmc_store_t* store;
  uint32_t heap_kind;
  char* heap = nullptr;
  std::vector<uint8_t> before;
  uint8_t* now = pinned_array<uint8_t>(HEAP);

  explicit Bed(uint32_t kind, uint32_t pin_slots = 0) : heap_kind(kind), before(HEAP) {
    nmc_store_config_t cfg = embedded(kind, HEAP, PAGE);
    cfg.pin_slots = pin_slots;
    store = create(cfg);
    // A value that fills the heap shows where it is; what is written now are the red zones of everything to come.
    const nmc_put_options_t contiguous = options(NMC_PUT_CONTIGUOUS);
    const nmc_write_plan_t plan = open_plan(store, "whole heap", HEAP, &contiguous);
    heap = static_cast<char*>(plan.payload);
    if (plan.payload_device == nullptr || plan.publish_word_device == nullptr || plan.n_extents != 1) {
      std::printf("FAIL a plan without device addresses, or in %u extents\n", plan.n_extents);
      stop();
    }
    if (kind == NMC_HEAP_CUDA) {
      CUDA_OK(cudaMemset(heap, FREE_BYTE, HEAP));
      CUDA_OK(cudaDeviceSynchronize());
    } else {
      std::memset(heap, FREE_BYTE, HEAP);
    }
    NMC_CHECK(nmc_store_abort(store, &plan));
    look();
  }
  ~Bed() {
    NMC_CHECK(nmc_store_destroy(store));
    cudaFreeHost(now);
  }
  Bed(const Bed&) = delete;
  Bed& operator=(const Bed&) = delete;

  void snapshot() {
    if (heap_kind == NMC_HEAP_CUDA) {
      CUDA_OK(cudaMemcpy(now, heap, HEAP, cudaMemcpyDeviceToHost));
    } else {
      std::memcpy(now, heap, HEAP);
    }
  }

  // Takes the heap as it is.
  void look() {
    snapshot();
    std::memcpy(before.data(), now, HEAP);
  }

  // True when the object's bytes are `value` and no other byte of the heap has changed since the last look.
  bool holds(const std::string& key, const std::vector<uint8_t>& value, uint32_t* n_extents = nullptr) {
    nmc_view_t view = {};
    NMC_CHECK(nmc_store_pin(store, slice(key), &view));
    std::vector<nmc_extent_t> extents(256);
    size_t n = 0;
    NMC_CHECK(nmc_store_view_extents(store, &view, extents.data(), extents.size(), &n));
    NMC_CHECK(nmc_store_unpin(store, &view));
    if (n_extents != nullptr) *n_extents = static_cast<uint32_t>(n);
    size_t done = 0;
    for (size_t i = 0; i < n; ++i) {
      const size_t at = static_cast<size_t>(static_cast<char*>(extents[i].ptr) - heap);
      if (at + extents[i].bytes > HEAP || done + extents[i].bytes > value.size()) return false;
      std::memcpy(before.data() + at, value.data() + done, extents[i].bytes);
      done += extents[i].bytes;
    }
    snapshot();
    const bool same = view.bytes == value.size() && done == value.size() && std::memcmp(before.data(), now, HEAP) == 0;
    if (!same) {
      size_t first = 0;
      while (first < HEAP && before[first] == now[first]) ++first;
      std::printf("# %s: %zu of %zu bytes in %zu extents; first difference at byte %zu of the heap\n", key.c_str(),
                  done, value.size(), n, first);
    }
    std::memcpy(before.data(), now, HEAP);
    return same;
  }
};

// True when `want` lies at `at`, and nothing but the red byte is before it and RED bytes behind it.
static bool arrived(const Memory& memory, size_t at, const std::vector<uint8_t>& want) {
  std::vector<uint8_t> seen(at + want.size() + RED);
  memory.read(0, seen.data(), seen.size());
  for (size_t i = 0; i < at; ++i) {
    if (seen[i] != RED_BYTE) return false;
  }
  for (size_t i = at + want.size(); i < seen.size(); ++i) {
    if (seen[i] != RED_BYTE) return false;
  }
  return want.empty() || std::memcmp(seen.data() + at, want.data(), want.size()) == 0;
}

// Makes every second page of the heap free and the others used.
static void fragment(nmc_store_t* store) {
  const std::vector<uint8_t> page(PAGE, 0x33);
  for (uint64_t i = 0; i < HEAP / PAGE; ++i) {
    NMC_CHECK(nmc_store_put(store, slice("part " + std::to_string(i)), page.data(), page.size(), nullptr));
  }
  for (uint64_t i = 1; i < HEAP / PAGE; i += 2) NMC_CHECK(nmc_store_remove(store, slice("part " + std::to_string(i))));
}

// ---- copies -------------------------------------------------------------------------------------------------------

static std::string case_name(const char* what, Kind kind, size_t offset, uint64_t bytes) {
  return std::string(what) + " " + KIND_NAMES[kind] + "+" + std::to_string(offset) + ", " + std::to_string(bytes) +
         " bytes";
}

struct Buffers {
  Memory device, pinned, ordinary;
  explicit Buffers(size_t bytes) : device(DEVICE, bytes), pinned(PINNED, bytes), ordinary(ORDINARY, bytes) {}
  Memory& of(Kind kind) { return kind == DEVICE ? device : kind == PINNED ? pinned : ordinary; }
};

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

static void copies_of_all_kinds(Bed& bed, Buffers& sources, Buffers& targets) {
  static constexpr uint64_t sizes[] = {0, 1, 15, 16, 17, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 5, 5 * MIB};
  static constexpr size_t offsets[][2] = {{0, 0}, {1, 0}, {0, 1}, {1, 3}, {3, 8}, {8, 8}, {8, 1}};
  Tally puts, gets;
  uint64_t seed = 1;
  for (const uint64_t bytes : sizes) {
    for (const Kind from : KINDS) {
      for (const auto& offset : offsets) {
        const std::vector<uint8_t> value = value_of(++seed, bytes);
        Memory& source = sources.of(from);
        source.write(RED + offset[0], value.data(), bytes);
        const nmc_status_t put = nmc_store_put(bed.store, slice("copy"), source.base + RED + offset[0], bytes, nullptr);
        puts.note(put == NMC_OK && bed.holds("copy", value), case_name("put from", from, offset[0], bytes));
        if (put != NMC_OK) continue;
        for (const Kind to : KINDS) {
          Memory& target = targets.of(to);
          target.fill(0, RED_BYTE, RED + offset[1] + bytes + RED);
          const nmc_status_t got = nmc_store_get_into(bed.store, slice("copy"), target.base + RED + offset[1], bytes);
          gets.note(got == NMC_OK && arrived(target, RED + offset[1], value),
                    case_name("get into", to, offset[1], bytes));
        }
        NMC_CHECK(nmc_store_remove(bed.store, slice("copy")));
      }
    }
  }
  const std::string where = std::string(" on a ") + heap_name(bed.heap_kind);
  puts.all_right("put stores every byte and touches no other byte of the heap" + where);
  gets.all_right("get_into gives every byte and leaves the red zones alone" + where);
}

static void ranges_and_rows(Bed& bed, Buffers& sources, Buffers& targets) {
  const std::string where = std::string(" on a ") + heap_name(bed.heap_kind);
  const uint64_t bytes = 3 * PAGE + 5;
  const std::vector<uint8_t> value = value_of(700, bytes);
  sources.device.write(RED + 3, value.data(), bytes);
  NMC_CHECK(nmc_store_put(bed.store, slice("range"), sources.device.base + RED + 3, bytes, nullptr));
  static constexpr uint64_t ranges[][2] = {{0, 1}, {1, 15},       {PAGE - 1, 2},      {PAGE, PAGE}, {3 * PAGE + 4, 1},
                                           {5, 0}, {1, 3 * PAGE}, {17, 2 * PAGE + 9}, {0, bytes},   {bytes, 0}};
  Tally parts;
  for (const auto& range : ranges) {
    const std::vector<uint8_t> want(value.begin() + static_cast<std::ptrdiff_t>(range[0]),
                                    value.begin() + static_cast<std::ptrdiff_t>(range[0] + range[1]));
    for (const Kind to : KINDS) {
      for (const size_t offset : {size_t{0}, size_t{1}, size_t{8}}) {
        Memory& target = targets.of(to);
        target.fill(0, RED_BYTE, RED + offset + want.size() + RED);
        const nmc_status_t got =
            get_range(bed.store, slice("range"), range[0], target.base + RED + offset, want.size());
        parts.note(got == NMC_OK && arrived(target, RED + offset, want),
                   case_name("get_range into", to, offset, want.size()));
      }
    }
  }
  parts.all_right("get_range gives parts at odd offsets" + where);
  expect(get_range(bed.store, slice("range"), bytes - 1, targets.device.base, 2), NMC_ERR_INVALID_ARG,
         "get_range behind the end is refused");
  NMC_CHECK(nmc_store_remove(bed.store, slice("range")));

  // Rows: small ones go by kernel in groups of 32, large ones one by one.
  static constexpr uint64_t rows[][3] = {
      {300, 1021, 1300}, {1, 77, 77}, {33, 16, 48}, {5, 600 * KIB + 1, 700 * KIB + 3}};
  Tally strided;
  uint64_t seed = 800;
  for (const auto& shape : rows) {
    const uint64_t n = shape[0], row = shape[1], stride = shape[2];
    const std::vector<uint8_t> whole = value_of(++seed, n * row);
    std::vector<uint8_t> spread((n - 1) * stride + row, 0x11);
    for (uint64_t r = 0; r < n; ++r) std::memcpy(spread.data() + r * stride, whole.data() + r * row, row);
    for (const Kind kind : KINDS) {
      Memory& source = sources.of(kind);
      source.write(RED + 1, spread.data(), spread.size());
      const nmc_status_t put =
          nmc_store_put_strided(bed.store, slice("rows"), source.base + RED + 1, n, row, stride, nullptr);
      strided.note(put == NMC_OK && bed.holds("rows", whole), case_name("put_strided from", kind, 1, whole.size()));
      if (put != NMC_OK) continue;
      // Back into rows with the same stride; what lies between them is red.
      std::vector<uint8_t> want(spread.size(), RED_BYTE);
      for (uint64_t r = 0; r < n; ++r) std::memcpy(want.data() + r * stride, whole.data() + r * row, row);
      Memory& target = targets.of(kind);
      target.fill(0, RED_BYTE, RED + want.size() + RED);
      const nmc_status_t got = nmc_store_get_strided(bed.store, slice("rows"), 0, target.base + RED, n, row, stride);
      strided.note(got == NMC_OK && arrived(target, RED, want), case_name("get_strided into", kind, 0, whole.size()));
      NMC_CHECK(nmc_store_remove(bed.store, slice("rows")));
    }
  }
  strided.all_right("rows go in and out with their strides" + where);
}

// One value from pieces of all kinds of memory, and back into other pieces.
static void mixed_slices(Bed& bed, Buffers& sources, Buffers& targets, const char* key, const std::string& where) {
  struct Piece {
    Kind kind;
    size_t at, bytes;
  };
  const std::vector<Piece> in = {{DEVICE, 1, 17},         {PINNED, 3, 70001},         {ORDINARY, 0, 131073},
                                 {DEVICE, 100, 0},        {DEVICE, 4096 + 8, 600000}, {ORDINARY, 200001, 3},
                                 {PINNED, 100003, 524288}};
  std::vector<uint8_t> value;
  std::vector<nmc_slice_t> slices;
  uint64_t seed = 900;
  for (const Piece& piece : in) {
    const std::vector<uint8_t> part = value_of(++seed, piece.bytes);
    if (piece.bytes > 0) sources.of(piece.kind).write(piece.at, part.data(), part.size());
    slices.push_back(nmc_slice_t{sources.of(piece.kind).base + piece.at, piece.bytes});
    value.insert(value.end(), part.begin(), part.end());
  }
  NMC_CHECK(nmc_store_put_slices(bed.store, slice(key), slices.data(), slices.size(), nullptr));
  uint32_t extents = 0;
  check(bed.holds(key, value, &extents), ("a value from slices of all kinds of memory" + where).c_str());
  const uint64_t offset = 5;
  const std::vector<Piece> out = {
      {ORDINARY, RED, 3}, {PINNED, RED + 1, 65537}, {DEVICE, RED + 3, 700001}, {ORDINARY, 100000, 50000}};
  for (const Kind kind : KINDS) targets.of(kind).fill(0, RED_BYTE, 1 * MIB);
  std::vector<nmc_buffer_t> buffers;
  std::vector<std::vector<uint8_t>> want(3, std::vector<uint8_t>(1 * MIB, RED_BYTE));
  size_t at = offset;
  for (const Piece& piece : out) {
    buffers.push_back(nmc_buffer_t{targets.of(piece.kind).base + piece.at, piece.bytes});
    std::memcpy(want[piece.kind].data() + piece.at, value.data() + at, piece.bytes);
    at += piece.bytes;
  }
  size_t size = 0;
  NMC_CHECK(nmc_store_get_slices(bed.store, slice(key), offset, buffers.data(), buffers.size(), &size));
  bool same = size == value.size();
  std::vector<uint8_t> seen(1 * MIB);
  for (const Kind kind : KINDS) {
    targets.of(kind).read(0, seen.data(), seen.size());
    same = same && seen == want[kind];
  }
  check(same, ("and back into slices of all kinds of memory" + where).c_str());
  NMC_CHECK(nmc_store_remove(bed.store, slice(key)));
}

static void several_extents(Bed& bed, Buffers& sources, Buffers& targets) {
  const std::string where = std::string(" in many extents of a ") + heap_name(bed.heap_kind);
  fragment(bed.store);
  bed.look();
  Tally all;
  uint64_t seed = 1000;
  uint32_t most = 0;
  for (const uint64_t bytes : {40 * PAGE + 5, 64 * PAGE, 2 * PAGE + 1}) {
    for (const Kind from : KINDS) {
      for (const size_t offset : {size_t{0}, size_t{1}, size_t{8}}) {
        const std::vector<uint8_t> value = value_of(++seed, bytes);
        Memory& source = sources.of(from);
        source.write(RED + offset, value.data(), bytes);
        const nmc_status_t put = nmc_store_put(bed.store, slice("wide"), source.base + RED + offset, bytes, nullptr);
        uint32_t extents = 0;
        all.note(put == NMC_OK && bed.holds("wide", value, &extents), case_name("put from", from, offset, bytes));
        if (put != NMC_OK) continue;
        most = extents > most ? extents : most;
        for (const Kind to : KINDS) {
          Memory& target = targets.of(to);
          target.fill(0, RED_BYTE, RED + offset + bytes + RED);
          const nmc_status_t got = nmc_store_get_into(bed.store, slice("wide"), target.base + RED + offset, bytes);
          all.note(got == NMC_OK && arrived(target, RED + offset, value), case_name("get into", to, offset, bytes));
          const uint64_t begin = PAGE - 3, part = bytes - PAGE - 7;
          const std::vector<uint8_t> want(value.begin() + static_cast<std::ptrdiff_t>(begin),
                                          value.begin() + static_cast<std::ptrdiff_t>(begin + part));
          target.fill(0, RED_BYTE, RED + part + RED);
          const nmc_status_t ranged = get_range(bed.store, slice("wide"), begin, target.base + RED, part);
          all.note(ranged == NMC_OK && arrived(target, RED, want), case_name("get_range into", to, 0, part));
        }
        NMC_CHECK(nmc_store_remove(bed.store, slice("wide")));
      }
    }
  }
  all.all_right("put, get_into and get_range" + where);
  std::printf("# up to %u extents\n", most);
  check(most > 32, "more extents than one launch copies");
  mixed_slices(bed, sources, targets, "wide", where);
}

static void test_copies() {
  Buffers sources(6 * MIB), targets(6 * MIB);
  for (const uint32_t kind : {NMC_HEAP_CUDA, NMC_HEAP_HOST}) {
    Bed bed(kind);
    copies_of_all_kinds(bed, sources, targets);
    ranges_and_rows(bed, sources, targets);
    mixed_slices(bed, sources, targets, "mixed", std::string(" on a ") + heap_name(kind));
    several_extents(bed, sources, targets);
  }
}

static void test_tier() {
  Buffers sources(6 * MIB), targets(6 * MIB);
  for (const uint32_t kind : {NMC_HEAP_CUDA, NMC_HEAP_HOST}) {
    Bed bed(kind);
    tier_of(bed, sources, targets);
  }
}

// ---- streams ------------------------------------------------------------------------------------------------------

// Loads the library's kernels and makes its streams: later that could wait for a kernel that is held.
static void warm_up(nmc_store_t* store, Memory& device, cudaStream_t stream) {
  NMC_CHECK(nmc_store_put(store, slice("warm"), device.base, 1000, nullptr));
  NMC_CHECK(nmc_store_get_into(store, slice("warm"), device.base, 1000));
  NMC_CHECK(nmc_store_remove(store, slice("warm")));
  const nmc_write_plan_t plan = open_plan(store, "warm", 1000);
  const nmc_slice_t piece = {device.base, 1000};
  NMC_CHECK(nmc_store_push_async(store, &plan, 0, &piece, 1, stream));
  NMC_CHECK(nmc_store_commit_async(store, &plan, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  NMC_CHECK(nmc_store_commit(store, &plan));
  NMC_CHECK(nmc_store_remove(store, slice("warm")));
}

// A value of `bytes` bytes goes in and out by a stream in two pushes and two fetches.
static void stream_round_trip(Bed& bed, Buffers& memory, cudaStream_t stream, Hold& hold, const std::string& key,
                              uint64_t bytes, Kind kind) {
  const std::string name =
      ": " + std::to_string(bytes) + " bytes, " + KIND_NAMES[kind] + " memory, " + heap_name(bed.heap_kind);
  Memory& mine = memory.of(kind);
  const std::vector<uint8_t> value = value_of(bytes, bytes);
  mine.write(RED + 1, value.data(), bytes);
  nmc_write_plan_t plan = open_plan(bed.store, key, bytes);
  // One stretch of at least 4 MiB, if the value is that large: those are copied by the driver.
  const uint64_t half = bytes >= 4 * MIB + 4097 ? 4097 : bytes / 2 + 1;
  const nmc_slice_t first[] = {{mine.base + RED + 1, 7}, {mine.base + RED + 8, half - 7}};
  const nmc_slice_t second[] = {{mine.base + RED + 1 + half, bytes - half}};

  hold.begin(stream);
  NMC_CHECK(nmc_store_push_async(bed.store, &plan, 0, first, 2, stream));
  NMC_CHECK(nmc_store_push_async(bed.store, &plan, half, second, 1, stream));
  NMC_CHECK(nmc_store_commit_async(bed.store, &plan, stream));
  const uint32_t state = state_of(bed.store, key);
  nmc_view_t view = {};
  const nmc_status_t early = nmc_store_pin(bed.store, slice(key), &view);
  hold.end();
  CUDA_OK(cudaStreamSynchronize(stream));
  check(state == NMC_OBJECT_WRITING && early == NMC_NOT_READY,
        ("before the stream runs the object is being written" + name).c_str());
  check(state_of(bed.store, key) == NMC_OBJECT_READY, ("after the stream ran it is ready" + name).c_str());
  expect(nmc_store_commit(bed.store, &plan), NMC_OK, "commit tells that the stream has published the plan");
  check(bed.holds(key, value), ("what was pushed is there, and nothing else changed" + name).c_str());

  mine.fill(0, RED_BYTE, RED + 3 + bytes + RED);
  NMC_CHECK(nmc_store_pin(bed.store, slice(key), &view));
  const nmc_buffer_t front[] = {{mine.base + RED + 3, half}};
  const nmc_buffer_t back[] = {{mine.base + RED + 3 + half, 5}, {mine.base + RED + 8 + half, bytes - half - 5}};
  hold.begin(stream);
  NMC_CHECK(nmc_store_fetch_async(bed.store, &view, 0, front, 1, stream));
  NMC_CHECK(nmc_store_fetch_async(bed.store, &view, half, back, 2, stream));
  NMC_CHECK(nmc_store_unpin_async(bed.store, &view, stream));
  nmc_view_t other = {};
  const nmc_status_t taken = nmc_store_pin(bed.store, slice(key), &other);
  const nmc_status_t twice = nmc_store_unpin(bed.store, &view);
  hold.end();
  CUDA_OK(cudaStreamSynchronize(stream));
  expect(taken, NMC_ERR_BUSY, "the only pin slot is the stream's until it runs");
  expect(twice, NMC_ERR_NOT_FOUND, "a view that was left to a stream cannot be unpinned by the host");
  expect(nmc_store_pin(bed.store, slice(key), &other), NMC_OK, "after the stream ran the slot can be taken again");
  expect(nmc_store_unpin(bed.store, &other), NMC_OK, "and given back");
  check(arrived(mine, RED + 3, value), ("what was fetched is right, with red zones" + name).c_str());
  NMC_CHECK(nmc_store_remove(bed.store, slice(key)));
}

static void stream_statuses(nmc_store_t* store, Buffers& memory, cudaStream_t stream) {
  nmc_write_plan_t plan = open_plan(store, "status", 1000);
  const nmc_slice_t ordinary = {memory.ordinary.base, 1000}, device = {memory.device.base, 1000};
  expect(nmc_store_push_async(store, &plan, 0, &ordinary, 1, stream), NMC_ERR_INVALID_ARG,
         "push_async from ordinary memory");
  expect(nmc_store_push_async(store, &plan, 1, &device, 1, stream), NMC_ERR_INVALID_ARG, "push_async behind the end");
  nmc_write_plan_t unknown = plan;
  unknown.plan_id ^= 1;
  expect(nmc_store_commit_async(store, &unknown, stream), NMC_ERR_NOT_FOUND, "commit_async of an unknown plan");
  expect(nmc_store_push_async(store, &unknown, 0, &device, 1, stream), NMC_ERR_NOT_FOUND,
         "push_async to an unknown plan");
  NMC_CHECK(nmc_store_push_async(store, &plan, 0, &device, 1, stream));
  NMC_CHECK(nmc_store_commit_async(store, &plan, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  expect(nmc_store_commit(store, &plan), NMC_OK, "none of the refused calls harmed the plan");

  nmc_view_t view = {};
  NMC_CHECK(nmc_store_pin(store, slice("status"), &view));
  const nmc_buffer_t to_ordinary = {memory.ordinary.base, 1000};
  expect(nmc_store_fetch_async(store, &view, 0, &to_ordinary, 1, stream), NMC_ERR_INVALID_ARG,
         "fetch_async to ordinary memory");
  NMC_CHECK(nmc_store_unpin(store, &view));
  const nmc_buffer_t to_device = {memory.device.base, 1000};
  expect(nmc_store_fetch_async(store, &view, 0, &to_device, 1, stream), NMC_ERR_NOT_FOUND,
         "fetch_async of a view that was unpinned");
  expect(nmc_store_unpin_async(store, &view, stream), NMC_ERR_NOT_FOUND, "unpin_async of a view that was unpinned");

  const nmc_put_options_t replace = options(NMC_PUT_REPLACE);
  nmc_write_plan_t successor = open_plan(store, "status", 500, &replace);
  expect(nmc_store_commit_async(store, &successor, stream), NMC_ERR_UNSUPPORTED,
         "commit_async of a plan that replaces");
  nmc_publish_desc_t desc = {};
  expect(nmc_store_publish_desc(store, &successor, &desc), NMC_ERR_UNSUPPORTED, "publish_desc of a plan that replaces");
  NMC_CHECK(nmc_store_abort(store, &successor));
  NMC_CHECK(nmc_store_remove(store, slice("status")));

  nmc_store_config_t cfg = embedded(NMC_HEAP_HOST, 1 * MIB, PAGE);
  cfg.device = -1;
  nmc_store_t* without = create(cfg);
  nmc_write_plan_t hosted = open_plan(without, "status", 1000);
  uint32_t slot = 0;
  expect(nmc_store_commit_async(without, &hosted, stream), NMC_ERR_UNSUPPORTED,
         "commit_async of a store without a device");
  expect(nmc_store_slot_reserve(without, &slot), NMC_ERR_UNSUPPORTED, "slot_reserve of a store without a device");
  NMC_CHECK(nmc_store_destroy(without));
}

// A pin that was left to a stream keeps the bytes until the stream gets there, also when the object is removed and
// all other memory is used up.
static void removed_under_a_stream(uint32_t kind, Buffers& memory, cudaStream_t stream, Hold& hold) {
  nmc_store_config_t cfg = embedded(kind, HEAP, PAGE);
  cfg.pin_slots = 1;
  nmc_store_t* store = create(cfg);
  warm_up(store, memory.device, stream);
  const uint64_t bytes = 10 * PAGE - 3;
  const std::vector<uint8_t> value = value_of(5, bytes);
  memory.device.write(0, value.data(), bytes);
  NMC_CHECK(nmc_store_put(store, slice("held"), memory.device.base, bytes, nullptr));
  memory.device.fill(0, RED_BYTE, RED + bytes + RED);
  memory.pinned.fill(0, 0xCC, memory.pinned.bytes);
  const nmc_put_options_t hard = options(0, NMC_RETAIN_HARD);
  nmc_view_t view = {};
  NMC_CHECK(nmc_store_pin(store, slice("held"), &view));
  hold.begin(stream);
  const nmc_buffer_t target = {memory.device.base + RED, bytes};
  NMC_CHECK(nmc_store_fetch_async(store, &view, 0, &target, 1, stream));
  NMC_CHECK(nmc_store_unpin_async(store, &view, stream));
  NMC_CHECK(nmc_store_remove(store, slice("held")));
  nmc_status_t filled = NMC_OK;
  for (uint64_t left = HEAP - 10 * PAGE, i = 0; left > 0 && filled == NMC_OK; ++i) {
    const uint64_t part = left < 2 * MIB ? left : 2 * MIB;
    filled = nmc_store_put(store, slice("fill " + std::to_string(i)), memory.pinned.base, part, &hard);
    left -= part;
  }
  const nmc_status_t full = nmc_store_put(store, slice("more"), memory.pinned.base, PAGE, &hard);
  hold.end();
  CUDA_OK(cudaStreamSynchronize(stream));
  expect(filled, NMC_OK, "everything but the pinned pages can be used");
  expect(full, NMC_ERR_BUSY, "pages that a stream has pinned are not given away");
  check(arrived(memory.device, RED, value), "the stream reads the removed object as it was");
  expect(nmc_store_put(store, slice("more"), memory.pinned.base, PAGE, &hard), NMC_OK,
         "after the stream ran the pages are free");
  NMC_CHECK(nmc_store_destroy(store));
}

static void test_streams() {
  Buffers memory(6 * MIB);
  cudaStream_t stream = new_stream();
  Hold hold;
  for (const uint32_t kind : {NMC_HEAP_CUDA, NMC_HEAP_HOST}) {
    {
      Bed bed(kind, 1);
      warm_up(bed.store, memory.device, stream);
      bed.look();
      stream_round_trip(bed, memory, stream, hold, "a", 3 * PAGE + 5, DEVICE);
      stream_round_trip(bed, memory, stream, hold, "b", 1021, PINNED);
      stream_round_trip(bed, memory, stream, hold, "c", 5 * MIB, DEVICE);
      stream_round_trip(bed, memory, stream, hold, "d", 4 * MIB + 8 * KIB + 1, PINNED);
      stream_statuses(bed.store, memory, stream);
      fragment(bed.store);
      bed.look();
      stream_round_trip(bed, memory, stream, hold, "e", 40 * PAGE + 5, DEVICE);
    }
    removed_under_a_stream(kind, memory, stream, hold);
  }
  CUDA_OK(cudaStreamDestroy(stream));
}

// ---- graphs -------------------------------------------------------------------------------------------------------

// What one launch of a graph is about; in pinned memory, refilled before each launch.
struct Job {
  uint64_t dst, src, bytes, seed, ticket;
};

static __global__ void copy_job(const Job* job) {
  nmc_dev_copy16(reinterpret_cast<void*>(nmc_dev_ld_relaxed_sys_u64(&job->dst)),
                 reinterpret_cast<const void*>(nmc_dev_ld_relaxed_sys_u64(&job->src)),
                 nmc_dev_ld_relaxed_sys_u64(&job->bytes), blockIdx.x * blockDim.x + threadIdx.x,
                 gridDim.x * blockDim.x);
}

static __global__ void hold_job(const uint64_t* word, const Job* job) {
  nmc_dev_wait_ge(word, nmc_dev_ld_relaxed_sys_u64(&job->ticket), HOLD_NS);
}

// One block.
static __global__ void verify_job(const Job* job, unsigned long long* wrong) {
  const uint64_t src = nmc_dev_ld_relaxed_sys_u64(&job->src), bytes = nmc_dev_ld_relaxed_sys_u64(&job->bytes);
  const uint64_t seed = nmc_dev_ld_relaxed_sys_u64(&job->seed);
  for (uint64_t i = threadIdx.x; i < bytes; i += blockDim.x) {
    const uint8_t seen = *reinterpret_cast<const volatile uint8_t*>(src + i);
    if (seen != static_cast<uint8_t>(word_of(seed, i / 8) >> (8 * (i % 8)))) atomicAdd(wrong, 1ull);
  }
}

// Captures what `enqueue` puts on the stream, in the strictest mode. Null when that fails.
template <typename F>
static cudaGraphExec_t capture(cudaStream_t stream, F enqueue) {
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  const bool enqueued = enqueue();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  if (!enqueued || ended != cudaSuccess) {
    std::printf("# capture: %s; last nanomc error: %s\n", cudaGetErrorString(ended), nmc_last_error_message());
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    return nullptr;
  }
  cudaGraphExec_t exec = nullptr;
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_OK(cudaGraphDestroy(graph));
  return exec;
}

static void launch_and_wait(cudaGraphExec_t exec, cudaStream_t stream) {
  CUDA_OK(cudaGraphLaunch(exec, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
}

static void captured_publish(nmc_store_t* store, cudaStream_t stream) {
  constexpr uint64_t launches = 5, largest = 7 * PAGE;
  Job* job = pinned_array<Job>(1);
  nmc_publish_desc_t* desc = pinned_array<nmc_publish_desc_t>(1);
  uint8_t* payloads = device_array<uint8_t>(launches * largest);
  const auto bytes_of = [&](uint64_t i) { return i * PAGE + 1 + 13 * i; };
  for (uint64_t i = 0; i < launches; ++i)
    fill_value<<<64, 256, 0, stream>>>(payloads + i * largest, bytes_of(i), 100 + i);
  CUDA_OK(cudaStreamSynchronize(stream));

  const auto enqueue = [&] {
    copy_job<<<16, 256, 0, stream>>>(job);
    return nmc_store_publish_captured(store, desc, 1, stream) == NMC_OK;
  };
  // The very first kernel of the library in this process: loading it must be legal here too.
  cudaGraphExec_t exec = capture(stream, enqueue);
  if (!check(exec != nullptr, "publish_captured is captured, also when it is the library's first kernel")) {
    NMC_CHECK(nmc_store_publish_captured(store, desc, 1, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    exec = capture(stream, enqueue);
    if (!check(exec != nullptr, "publish_captured is captured when the kernels are loaded")) return;
  }
  bool ready = true, committed = true, right = true;
  const auto key_of = [](uint64_t i) { return "launch " + std::to_string(i); };
  for (uint64_t i = 0; i < launches; ++i) {
    const nmc_write_plan_t plan = open_plan(store, key_of(i), bytes_of(i));
    *job = Job{reinterpret_cast<uint64_t>(plan.payload_device), reinterpret_cast<uint64_t>(payloads + i * largest),
               bytes_of(i), 0, 0};
    NMC_CHECK(nmc_store_publish_desc(store, &plan, desc));
    ready = ready && state_of(store, key_of(i)) == NMC_OBJECT_WRITING && plan.n_extents == 1;
    launch_and_wait(exec, stream);
    ready = ready && state_of(store, key_of(i)) == NMC_OBJECT_READY;
    committed = committed && nmc_store_commit(store, &plan) == NMC_OK;
  }
  for (uint64_t i = 0; i < launches; ++i) {
    std::vector<uint8_t> seen(bytes_of(i));
    right = right && nmc_store_get_into(store, slice(key_of(i)), seen.data(), seen.size()) == NMC_OK &&
            seen == value_of(100 + i, bytes_of(i));
  }
  check(ready, "each launch of one graph publishes the plan of its own descriptor");
  check(committed, "and commit agrees");
  check(right, "all 5 objects of one graph have their own bytes");

  const nmc_write_plan_t silent = open_plan(store, "silent", 100);
  *job = Job{reinterpret_cast<uint64_t>(silent.payload_device), reinterpret_cast<uint64_t>(payloads), 100, 0, 0};
  *desc = nmc_publish_desc_t{reinterpret_cast<uint64_t>(silent.publish_word_device), 0};
  launch_and_wait(exec, stream);
  check(state_of(store, "silent") == NMC_OBJECT_WRITING, "a descriptor with epoch 0 publishes nothing");
  NMC_CHECK(nmc_store_abort(store, &silent));
  expect(nmc_store_publish_captured(store, nullptr, 1, stream), NMC_ERR_INVALID_ARG,
         "publish_captured without descriptors");
  std::vector<nmc_publish_desc_t> ordinary(1);
  expect(nmc_store_publish_captured(store, ordinary.data(), 1, stream), NMC_ERR_INVALID_ARG,
         "publish_captured of descriptors in ordinary memory");
  for (uint64_t i = 0; i < launches; ++i) NMC_CHECK(nmc_store_remove(store, slice(key_of(i))));
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaFreeHost(job));
  CUDA_OK(cudaFreeHost(desc));
  CUDA_OK(cudaFree(payloads));
}

// The control: a graph with commit_async of one plan is replayed for another.
static void baked_epoch(nmc_store_t* store, cudaStream_t stream) {
  uint8_t* payload = device_array<uint8_t>(1000);
  const nmc_slice_t piece = {payload, 1000};
  const nmc_write_plan_t first = open_plan(store, "baked 1", 1000);
  cudaGraphExec_t exec = capture(stream, [&] {
    return nmc_store_push_async(store, &first, 0, &piece, 1, stream) == NMC_OK &&
           nmc_store_commit_async(store, &first, stream) == NMC_OK;
  });
  if (!check(exec != nullptr, "push_async and commit_async are captured")) return;
  check(state_of(store, "baked 1") == NMC_OBJECT_WRITING, "a captured commit_async does not run at capture");
  launch_and_wait(exec, stream);
  check(state_of(store, "baked 1") == NMC_OBJECT_READY, "the first launch publishes the plan that was captured");
  NMC_CHECK(nmc_store_commit(store, &first));
  NMC_CHECK(nmc_store_remove(store, slice("baked 1")));
  const nmc_write_plan_t second = open_plan(store, "baked 2", 1000);
  launch_and_wait(exec, stream);
  std::vector<uint8_t> seen(1000);
  const nmc_status_t got = nmc_store_get_into(store, slice("baked 2"), seen.data(), seen.size());
  std::printf("# control: replayed for %s header\n", second.index == first.index ? "the same" : "another");
  check(state_of(store, "baked 2") == NMC_OBJECT_WRITING && got == NMC_NOT_READY,
        "control: a baked epoch does not make another plan readable");
  NMC_CHECK(nmc_store_abort(store, &second));
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaFree(payload));
}

static void captured_unpin(nmc_store_t* store, cudaStream_t stream, Hold& hold) {
  constexpr uint64_t launches = 5;
  Job* job = pinned_array<Job>(1);
  unsigned long long* wrong = device_array<unsigned long long>(1);
  const auto key_of = [](uint64_t i) { return "pinned " + std::to_string(i); };
  for (uint64_t i = 0; i < launches; ++i) {
    const std::vector<uint8_t> value = value_of(200 + i, PAGE + 7 * i);
    NMC_CHECK(nmc_store_put(store, slice(key_of(i)), value.data(), value.size(), nullptr));
  }
  uint32_t slot = 0;
  NMC_CHECK(nmc_store_slot_reserve(store, &slot));
  cudaGraphExec_t exec = capture(stream, [&] {
    hold_job<<<1, 1, 0, stream>>>(hold.word, job);
    verify_job<<<1, 512, 0, stream>>>(job, wrong);
    return nmc_store_slot_unpin_async(store, slot, stream) == NMC_OK;
  });
  if (!check(exec != nullptr, "slot_unpin_async is captured")) return;
  bool pinned = true, busy = true, removed = true;
  for (uint64_t i = 0; i < launches; ++i) {
    nmc_view_t view = {}, early = {};
    pinned = pinned && nmc_store_slot_pin(store, slot, slice(key_of(i)), &view) == NMC_OK && view.n_extents == 1;
    *job = Job{0, reinterpret_cast<uint64_t>(view.data_device), view.bytes, 200 + i, ++hold.ticket};
    CUDA_OK(cudaGraphLaunch(exec, stream));
    busy = busy && nmc_store_slot_pin(store, slot, slice(key_of(i)), &early) == NMC_ERR_BUSY;
    // The pin outlives the object.
    removed = removed && nmc_store_remove(store, slice(key_of(i))) == NMC_OK;
    hold.end();
    CUDA_OK(cudaStreamSynchronize(stream));
  }
  check(pinned, "slot_pin pins before each launch, in the slot that the launch before has emptied");
  check(busy, "slot_pin before the launch before has finished is NMC_ERR_BUSY");
  check(removed, "objects are removed while the graph reads them");
  unsigned long long total = 1;
  CUDA_OK(cudaMemcpy(&total, wrong, 8, cudaMemcpyDeviceToHost));
  check(total == 0, "each launch reads the right bytes");
  nmc_view_t view = {};
  expect(nmc_store_slot_release(store, slot), NMC_OK, "slot_release");
  expect(nmc_store_slot_release(store, slot), NMC_ERR_NOT_FOUND, "slot_release again");
  expect(nmc_store_slot_pin(store, slot, slice("nothing"), &view), NMC_ERR_NOT_FOUND,
         "slot_pin in a slot that was released");
  expect(nmc_store_slot_unpin_async(store, slot, stream), NMC_ERR_NOT_FOUND,
         "slot_unpin_async of a slot that was released");
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaFreeHost(job));
  CUDA_OK(cudaFree(wrong));
}

static void test_graph() {
  cudaStream_t stream = new_stream();
  Hold hold;
  for (const uint32_t kind : {NMC_HEAP_CUDA, NMC_HEAP_HOST}) {
    std::printf("# %s\n", heap_name(kind));
    nmc_store_t* store = create(embedded(kind, HEAP, PAGE));
    captured_publish(store, stream);
    baked_epoch(store, stream);
    captured_unpin(store, stream, hold);
    NMC_CHECK(nmc_store_destroy(store));
  }
  CUDA_OK(cudaStreamDestroy(stream));
}

// ---- waits --------------------------------------------------------------------------------------------------------

static void test_wait() {
  Buffers memory(1 * MIB);
  cudaStream_t stream = new_stream(), writer = new_stream();
  nmc_store_t* store = create(embedded(NMC_HEAP_CUDA, HEAP, PAGE));
  warm_up(store, memory.device, stream);
  uint32_t* result = pinned_array<uint32_t>(16);
  const auto seen = [&] { return __atomic_load_n(result, __ATOMIC_ACQUIRE); };
  const auto begin = [&](const char* key, int64_t timeout_ms) {
    __atomic_store_n(result, 99u, __ATOMIC_RELEASE);
    return nmc_store_wait_ready_async(store, slice(key), timeout_ms, stream, result);
  };

  expect(begin("nothing", 1000), NMC_ERR_NOT_FOUND, "wait_ready_async for a key that nobody writes");

  nmc_write_plan_t plan = open_plan(store, "later", 1000);
  expect(begin("later", 10000), NMC_OK, "wait_ready_async for a key that is being written");
  usleep(20000);
  const bool waits = cudaStreamQuery(stream) == cudaErrorNotReady && seen() == 99;
  NMC_CHECK(nmc_store_commit(store, &plan));
  CUDA_OK(cudaStreamSynchronize(stream));
  check(waits, "the stream waits for the commit");
  check(seen() == NMC_READY_YES, "and goes on after it: NMC_READY_YES");

  expect(begin("later", 10000), NMC_OK, "wait_ready_async for an object that is there");
  CUDA_OK(cudaStreamSynchronize(stream));
  check(seen() == NMC_READY_YES, "NMC_READY_YES at once");
  expect(nmc_store_wait_ready_async(store, slice("later"), 10000, stream, nullptr), NMC_OK,
         "wait_ready_async without a result");
  CUDA_OK(cudaStreamSynchronize(stream));

  plan = open_plan(store, "by stream", 1000);
  NMC_CHECK(begin("by stream", 10000));
  const nmc_slice_t piece = {memory.device.base, 1000};
  NMC_CHECK(nmc_store_push_async(store, &plan, 0, &piece, 1, writer));
  NMC_CHECK(nmc_store_commit_async(store, &plan, writer));
  CUDA_OK(cudaStreamSynchronize(stream));
  check(seen() == NMC_READY_YES, "NMC_READY_YES after commit_async on another stream");
  CUDA_OK(cudaStreamSynchronize(writer));
  NMC_CHECK(nmc_store_commit(store, &plan));

  plan = open_plan(store, "given up", 1000);
  NMC_CHECK(begin("given up", 10000));
  usleep(5000);
  const uint64_t aborted = now_ns();
  NMC_CHECK(nmc_store_abort(store, &plan));
  CUDA_OK(cudaStreamSynchronize(stream));
  check(seen() == NMC_READY_STALE, "NMC_READY_STALE after abort");
  check(now_ns() - aborted < 5000000000ull, "soon after it, not at the deadline");

  plan = open_plan(store, "late", 1000);
  const uint64_t started = now_ns();
  NMC_CHECK(begin("late", 50));
  CUDA_OK(cudaStreamSynchronize(stream));
  const uint64_t took = now_ns() - started;
  check(seen() == NMC_READY_TIMEOUT, "NMC_READY_TIMEOUT when nobody commits");
  std::printf("# a wait of 50 ms took %.1f ms\n", static_cast<double>(took) / 1e6);
  check(took >= 45000000ull && took < 5000000000ull, "after its time and not much later");
  NMC_CHECK(nmc_store_abort(store, &plan));
  NMC_CHECK(nmc_store_destroy(store));
  CUDA_OK(cudaFreeHost(result));
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaStreamDestroy(writer));
}

// ---- pins by kernels ----------------------------------------------------------------------------------------------

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
  uint64_t writes = 0, state = 88172645463325252ull;

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

  uint64_t random() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  }

  void run() {
    while (!over.load()) {
      const uint64_t a = random() % KEYS, b = (a + 1 + random() % (KEYS - 1)) % KEYS;
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

// ---- prefill and decode in two processes --------------------------------------------------------------------------

static constexpr uint32_t DECODE = 0, PREFILL = 1;
static constexpr uint64_t OBJECTS = 200, WINDOW = 8, PROCS_HEAP = 4 * MIB;

static std::string kv_key(uint64_t i) { return "kv " + std::to_string(i); }
// Two to four pages, with every kind of tail: the heap holds about 20.
static uint64_t kv_bytes(uint64_t i) { return (1 + nmc_pattern_u64(9, 0, 0, i) % 3) * PAGE + 1 + i * 9973 % PAGE; }

// One block a page: stores it where the plan says; the last block publishes.
static __global__ void __launch_bounds__(256)
    store_pages(Runs runs, uint64_t page_bytes, const uint8_t* src, uint64_t bytes, uint32_t* counter,
                uint64_t* publish_word, uint64_t epoch) {
  const uint64_t page = blockIdx.x;
  uint64_t first = 0; // page of the run's beginning
  for (uint32_t r = 0; r < runs.n; ++r) {
    const uint64_t pages = (runs.bytes[r] + page_bytes - 1) / page_bytes;
    if (page < first + pages) {
      const uint64_t left = bytes - page * page_bytes;
      nmc_dev_store_page(reinterpret_cast<void*>(runs.at[r]), page - first, page_bytes, src + page * page_bytes,
                         left < page_bytes ? left : page_bytes, threadIdx.x, blockDim.x);
      break;
    }
    first += pages;
  }
  __syncthreads();
  if (threadIdx.x == 0) nmc_dev_grid_publish(counter, gridDim.x, publish_word, epoch);
}

// Stores what it gets, unlike the process that waits for it.
static bool prefill(nmc_world_t* world, nmc_store_t* store) {
  cudaStream_t stream = new_stream();
  constexpr uint64_t room = 5 * PAGE, depth = 4;
  uint8_t* sources = device_array<uint8_t>(depth * room);
  uint32_t* counter = device_array<uint32_t>(1);
  uint64_t *consumed = nullptr, *consumed_device = nullptr;
  NMC_CHECK(nmc_world_word(world, PREFILL, 0, &consumed, &consumed_device));
  nmc_put_options_t put = NMC_PUT_OPTIONS_INIT;
  put.preferred_segment = DECODE;
  std::vector<nmc_write_plan_t> plans(OBJECTS);
  std::vector<cudaEvent_t> events(depth);
  for (cudaEvent_t& event : events) CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  uint64_t committed = 0, in_parts = 0;
  const auto commit_up_to = [&](uint64_t end) {
    for (; committed < end; ++committed) {
      CUDA_OK(cudaEventSynchronize(events[committed % depth]));
      NMC_CHECK(nmc_store_commit(store, &plans[committed]));
    }
  };
  for (uint64_t i = 0; i < OBJECTS; ++i) {
    // Not so far ahead that the oldest is evicted before it was read.
    const uint64_t deadline = now_ns() + TIMEOUT_NS;
    while (load_acquire(consumed) + WINDOW <= i) {
      if (now_ns() > deadline) {
        std::printf("FAIL prefill: decode has read %llu of %llu objects and does not go on\n",
                    ull(load_acquire(consumed)), ull(i));
        return false;
      }
      usleep(20);
    }
    if (i >= depth) commit_up_to(i - depth + 1);
    plans[i] = open_plan(store, kv_key(i), kv_bytes(i), &put);
    const nmc_write_plan_t& plan = plans[i];
    if (plan.dst_rank != DECODE || plan.page_bytes != PAGE || plan.publish_word_device == nullptr) {
      std::printf("FAIL prefill: plan %llu is for rank %u with pages of %u\n", ull(i), plan.dst_rank, plan.page_bytes);
      return false;
    }
    const Runs runs = runs_of_plan(store, plan);
    in_parts += runs.n > 1;
    // A source at every alignment.
    uint8_t* source = sources + i % depth * room + i % 16;
    fill_value<<<16, 256, 0, stream>>>(source, kv_bytes(i), i);
    store_pages<<<plan.n_pages, 256, 0, stream>>>(runs, PAGE, source, kv_bytes(i), counter, plan.publish_word_device,
                                                  plan.epoch);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaEventRecord(events[i % depth], stream));
  }
  commit_up_to(OBJECTS);
  CUDA_OK(cudaStreamSynchronize(stream));
  std::printf("# prefill: %llu objects stored and published by kernels, %llu of them in several extents\n",
              ull(OBJECTS), ull(in_parts));
  NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
  for (const cudaEvent_t event : events) CUDA_OK(cudaEventDestroy(event));
  CUDA_OK(cudaFree(sources));
  CUDA_OK(cudaFree(counter));
  CUDA_OK(cudaStreamDestroy(stream));
  return true;
}

static bool decode(nmc_world_t* world, nmc_store_t* store) {
  cudaStream_t stream = new_stream();
  unsigned long long* wrong = device_array<unsigned long long>(1);
  for (uint64_t i = 0; i < OBJECTS; ++i) {
    NMC_CHECK(nmc_store_wait_ready(store, slice(kv_key(i)), NMC_WAIT_APPEAR, TIMEOUT_MS));
    nmc_view_t view = {};
    NMC_CHECK(nmc_store_pin(store, slice(kv_key(i)), &view));
    if (view.bytes != kv_bytes(i) || view.owner_rank != DECODE || view.data_device == nullptr) {
      std::printf("FAIL decode: object %llu has %llu bytes on rank %u\n", ull(i), ull(view.bytes), view.owner_rank);
      return false;
    }
    const Runs runs = runs_of_view(store, view);
    if (runs.at[0] != reinterpret_cast<uint64_t>(view.data_device)) {
      std::printf("FAIL decode: object %llu begins at %p and its first extent elsewhere\n", ull(i), view.data_device);
      return false;
    }
    count_wrong<<<8, 256, 0, stream>>>(runs, i, wrong);
    CUDA_OK(cudaGetLastError());
    NMC_CHECK(nmc_store_unpin_async(store, &view, stream));
    NMC_CHECK(nmc_world_write_word_async(world, PREFILL, 0, i + 1, stream));
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
  unsigned long long total = 1;
  CUDA_OK(cudaMemcpy(&total, wrong, 8, cudaMemcpyDeviceToHost));
  nmc_store_stats_t stats = NMC_STORE_STATS_INIT;
  const uint64_t deadline = now_ns() + 5000000000ull;
  do {
    NMC_CHECK(nmc_store_stats(store, nullptr, 0, &stats));
  } while (stats.limbo_bytes != 0 && now_ns() < deadline);
  std::printf(
      "# decode: %llu objects verified, %llu wrong words, %llu evicted, %llu bytes in limbo, %llu in quarantine\n",
      ull(OBJECTS), total, ull(stats.evict_count), ull(stats.limbo_bytes),
      ull(stats.quarantined_bytes));
  bool fine = check(total == 0, "decode: every byte is what prefill's kernels stored");
  fine = check(stats.evict_count >= OBJECTS / 2, "decode: the heap was used over and over") && fine;
  fine = check(stats.limbo_bytes == 0 && stats.quarantined_bytes == 0, "decode: nothing is left behind") &&
         fine;
  CUDA_OK(cudaFree(wrong));
  CUDA_OK(cudaStreamDestroy(stream));
  return fine;
}

static int as_rank(uint32_t rank, uint32_t n, const std::string& name, const std::string& heap) {
  nmc_world_config_t cfg = NMC_WORLD_CONFIG_INIT;
  cfg.name = slice(name);
  cfg.rank = static_cast<int32_t>(rank);
  cfg.world_size = n;
  cfg.heap_kind = heap == "cuda" ? NMC_HEAP_CUDA : NMC_HEAP_HOST;
  cfg.heap_bytes = PROCS_HEAP;
  cfg.device = 0;
  cfg.join_timeout_ms = TIMEOUT_MS;
  nmc_world_t* world = nullptr;
  NMC_CHECK(nmc_world_join(&cfg, &world));
  CUDA_OK(cudaSetDevice(0));
  nmc_store_config_t store_cfg = NMC_STORE_CONFIG_INIT;
  store_cfg.page_bytes = static_cast<uint32_t>(PAGE);
  store_cfg.pin_slots = 64;
  // Evict only what is needed, so that some objects get several extents.
  store_cfg.high_permille = 1000;
  store_cfg.low_permille = 1000;
  store_cfg.attach_timeout_ms = TIMEOUT_MS;
  nmc_store_t* store = nullptr;
  NMC_CHECK(nmc_store_create(world, &store_cfg, &store));
  NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
  const bool fine = rank == DECODE ? decode(world, store) : prefill(world, store);
  if (!fine) stop();
  // The master is decode's: prefill leaves first.
  if (rank == PREFILL) NMC_CHECK(nmc_store_destroy(store));
  NMC_CHECK(nmc_world_barrier(world, TIMEOUT_MS));
  if (rank == DECODE) NMC_CHECK(nmc_store_destroy(store));
  NMC_CHECK(nmc_world_destroy(world));
  return 0;
}

int main(int argc, char** argv) {
  prepare_environment();
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "as-rank" && argc == 6) {
    return as_rank(static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)),
                   static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)), argv[4], argv[5]);
  }
  if (mode == "procs") {
    // This process forks, so a child asks for the GPU.
    if (!child_sees_gpu()) return 77;
    const std::string program = own_path(argv[0]);
    check(run_ranks(program, "as-rank", 2, "cuda"),
          "200 objects from prefill's kernels to decode's, through a CUDA heap for 20");
    check(run_ranks(program, "as-rank", 2, "host"), "the same through a host heap that is registered with the device");
  } else {
    skip_without_gpu();
    CUDA_OK(cudaSetDevice(0));
    if (mode == "copies") {
      test_copies();
    } else if (mode == "tier") {
      test_tier();
    } else if (mode == "streams") {
      test_streams();
    } else if (mode == "graph") {
      test_graph();
    } else if (mode == "wait") {
      test_wait();
    } else if (mode == "devpin") {
      test_devpin(argc > 2 ? std::strtod(argv[2], nullptr) : 2.0);
    } else if (mode == "litmus") {
      test_litmus(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 200000);
    } else {
      std::printf("usage: store_gpu copies | streams | graph | wait | devpin [seconds] | litmus [rounds] | procs\n");
      return 2;
    }
  }
  std::printf("%s: %d failed\n", failed_checks == 0 ? "PASS" : "FAIL", failed_checks);
  return failed_checks == 0 ? 0 : 1;
}
