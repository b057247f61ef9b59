// Publish and unpin of the store, captured into a graph and replayed. Control: a baked epoch.
#include "store_value.h"

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

int main() {
  prepare_environment();
  skip_without_gpu();
  CUDA_OK(cudaSetDevice(0));
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
  return finish();
}
