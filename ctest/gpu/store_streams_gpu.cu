// The store on a stream.
// usage: store_streams_gpu streams   push, commit, fetch and unpin
//        store_streams_gpu wait      nmc_store_wait_ready_async: ready, stale, late
#include "store_bed.h"

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

int main(int argc, char** argv) {
  prepare_environment();
  skip_without_gpu();
  CUDA_OK(cudaSetDevice(0));
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "streams") {
    test_streams();
  } else if (mode == "wait") {
    test_wait();
  } else {
    std::printf("usage: store_streams_gpu streams | wait\n");
    return 2;
  }
  return finish();
}
