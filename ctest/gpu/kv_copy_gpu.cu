// Copies of blocks of a KV cache in device memory.
// `kv_copy_gpu test`: gather, scatter and copy_blocks leave the same bits as the CPU, in all layouts and odd sizes, with lists of
// many launches, from and to pinned memory, on a late stream and from a captured graph; what cannot be is refused.
// `kv_copy_gpu short`: a part of it, for tools.

#include "kv_copy.h"

static bool expect(nmc_status_t got, nmc_status_t want, const char* name) {
  if (got != want) std::printf("# got %s, wanted %s: %s\n", nmc_status_name(got), nmc_status_name(want), nmc_last_error_message());
  return check(got == want, name);
}

using Bytes = std::vector<unsigned char>;

static Bytes random_bytes(Random& random, size_t n) {
  Bytes bytes(n + 8);
  for (size_t i = 0; i < n; i += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  bytes.resize(n);
  return bytes;
}

// The same cache twice, on the host and on the device.
class Twins {
 public:
  // `shift`: bytes by which the memory of the groups misses a multiple of 16.
  Twins(std::vector<nmc_kv_group_t> groups, uint32_t blocks, uint32_t tokens, Random& random, uint32_t shift = 0)
      : blocks_(blocks) {
    std::vector<nmc_kv_group_t> here = groups, there = groups;
    for (size_t g = 0; g < groups.size(); ++g) {
      const uint64_t bytes = block_bytes(groups[g], tokens) * blocks;
      block_ += bytes / blocks;
      host_.push_back(random_bytes(random, bytes));
      unsigned char* memory = nullptr;
      CUDA_OK(cudaMalloc(&memory, bytes + 64 + shift));
      CUDA_OK(cudaMemset(memory, 0xa5, bytes + 64 + shift));
      allocated_.push_back(memory);
      device_.push_back(memory + 32 + shift);
      CUDA_OK(cudaMemcpy(device_.back(), host_.back().data(), bytes, cudaMemcpyHostToDevice));
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      here[g].memory = host_[g].data(), there[g].memory = device_[g];
      here[g].memory_bytes = there[g].memory_bytes = host_[g].size();
    }
    cpu = create_kv(here, blocks, tokens);
    gpu = create_kv(there, blocks, tokens);
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_OK(cudaDeviceSynchronize());
  }
  Twins(const Twins&) = delete;
  Twins& operator=(const Twins&) = delete;
  ~Twins() {
    (void)nmc_kv_destroy(cpu);
    (void)nmc_kv_destroy(gpu);
    for (unsigned char* memory : allocated_) cudaFree(memory);
    cudaStreamDestroy(stream);
  }

  nmc_kv_t* cpu = nullptr;
  nmc_kv_t* gpu = nullptr;
  cudaStream_t stream = nullptr;

  uint32_t blocks() const { return blocks_; }
  uint64_t block() const { return block_; }
  // Both arenas have the same bits, and the device nothing around its own.
  bool same() {
    CUDA_OK(cudaStreamSynchronize(stream));
    for (size_t g = 0; g < host_.size(); ++g) {
      const size_t before = static_cast<size_t>(device_[g] - allocated_[g]), behind = 32;
      Bytes back(before + host_[g].size() + behind);
      CUDA_OK(cudaMemcpy(back.data(), allocated_[g], back.size(), cudaMemcpyDeviceToHost));
      if (std::memcmp(back.data() + before, host_[g].data(), host_[g].size()) != 0) return false;
      auto whole = [](unsigned char byte) { return byte == 0xa5; };
      if (!std::all_of(back.begin(), back.begin() + static_cast<ptrdiff_t>(before), whole)) return false;
      if (!std::all_of(back.end() - static_cast<ptrdiff_t>(behind), back.end(), whole)) return false;
    }
    return true;
  }

 private:
  uint32_t blocks_;
  uint64_t block_ = 0;
  std::vector<Bytes> host_;
  std::vector<unsigned char*> allocated_, device_;
};

// Contiguous memory with 16 bytes before and behind that must stay.
class Buffer {
 public:
  Buffer(size_t bytes, bool pinned, uint32_t shift) : pinned_(pinned), bytes_(bytes), before_(16 + shift) {
    if (pinned) CUDA_OK(cudaMallocHost(&memory_, bytes + 48));
    else CUDA_OK(cudaMalloc(&memory_, bytes + 48));
    CUDA_OK(cudaMemset(memory_, 0xee, bytes + 48));
    CUDA_OK(cudaDeviceSynchronize());
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (pinned_) cudaFreeHost(memory_);
    else cudaFree(memory_);
  }
  void* data() { return memory_ + before_; }
  void put(const Bytes& bytes) { CUDA_OK(cudaMemcpy(data(), bytes.data(), bytes.size(), cudaMemcpyDefault)); }
  bool has(const Bytes& bytes) {
    Bytes back(bytes_ + 48);
    CUDA_OK(cudaMemcpy(back.data(), memory_, back.size(), cudaMemcpyDefault));
    Bytes wanted(back.size(), 0xee);
    std::copy(bytes.begin(), bytes.end(), wanted.begin() + before_);
    return back == wanted;
  }

 private:
  bool pinned_;
  size_t bytes_;
  uint32_t before_;
  unsigned char* memory_ = nullptr;
};

// One round of all three; true if both sides have the same bits.
static bool round_of(Twins& twins, Random& random, size_t n, uint32_t group, uint64_t block, bool pinned, uint32_t shift,
                     uint64_t late_ns) {
  std::vector<int32_t> list = some_blocks(random, twins.blocks(), n);
  Bytes wanted(n * block);
  NMC_CHECK(nmc_kv_gather(twins.cpu, group, list.data(), n, wanted.data(), wanted.size(), nullptr));
  Buffer buffer(wanted.size(), pinned, shift);
  if (late_ns != 0) wait_ns<<<1, 1, 0, twins.stream>>>(late_ns);
  {
    std::vector<int32_t> gone = list;  // the list is free when the call returns
    NMC_CHECK(nmc_kv_gather(twins.gpu, group, gone.data(), n, buffer.data(), wanted.size(), twins.stream));
    std::fill(gone.begin(), gone.end(), -1);
  }
  CUDA_OK(cudaStreamSynchronize(twins.stream));
  if (!buffer.has(wanted) || !twins.same()) return false;

  list = some_blocks(random, twins.blocks(), n);
  const Bytes fresh = random_bytes(random, wanted.size());
  buffer.put(fresh);
  CUDA_OK(cudaDeviceSynchronize());
  NMC_CHECK(nmc_kv_scatter(twins.cpu, group, list.data(), n, fresh.data(), fresh.size(), nullptr));
  NMC_CHECK(nmc_kv_scatter(twins.gpu, group, list.data(), n, buffer.data(), fresh.size(), twins.stream));
  if (!twins.same() || !buffer.has(fresh)) return false;

  list = some_blocks(random, twins.blocks(), twins.blocks());
  std::vector<nmc_kv_copy_t> copies;
  const size_t half = list.size() / 2;
  for (size_t i = half; i < list.size() && copies.size() < n; ++i) copies.push_back(block_copy(list[random() % half], list[i]));
  NMC_CHECK(nmc_kv_copy_blocks(twins.cpu, copies.data(), copies.size(), nullptr));
  NMC_CHECK(nmc_kv_copy_blocks(twins.gpu, copies.data(), copies.size(), twins.stream));
  return twins.same();
}

static void layouts(Random& random, bool all) {
  bool right = true;
  for (uint32_t order = 0; order < 4; ++order) {
    for (uint32_t sides = 0; sides < 3; ++sides) {
      for (uint32_t kind : {NMC_KV_KIND_ATTENTION, NMC_KV_KIND_MLA}) {
        const nmc_kv_group_t even = group_of(kind, NMC_DTYPE_BF16, 3, 2, 64, order, sides);
        const nmc_kv_group_t odd = group_of(kind, NMC_DTYPE_FP8, 2, 3, 3, order, sides);
        for (uint32_t tokens : {1u, 5u, 16u}) {
          if (!all && tokens != 5) continue;
          Twins one({even}, 13, tokens, random), two({odd}, 13, tokens, random), shifted({even}, 13, tokens, random, 4);
          Twins both({even, odd}, 13, tokens, random);
          const bool pinned = random() % 2 == 0;
          right &= round_of(one, random, 7, 0, one.block(), pinned, 0, 0);
          right &= round_of(one, random, 7, 0, one.block(), !pinned, 2, 0);
          right &= round_of(two, random, 13, 0, two.block(), pinned, 0, 0);
          right &= round_of(shifted, random, 5, NMC_KV_GROUPS_ALL, shifted.block(), pinned, 0, 0);
          right &= round_of(both, random, 9, NMC_KV_GROUPS_ALL, both.block(), pinned, 0, 0);
          right &= round_of(both, random, 9, 1, two.block(), pinned, 0, 0);
        }
      }
    }
  }
  check(right, "the GPU leaves the same bits as the CPU, in all layouts");
}

static void many(Random& random) {
  Twins twins({group_of(NMC_KV_KIND_ATTENTION, NMC_DTYPE_BF16, 4, 2, 64, NMC_KV_LAYER_MAJOR_NHD, NMC_KV_SIDES_PER_LAYER)}, 3000, 16, random);
  bool right = true;
  for (size_t n : {1u, 487u, 488u, 489u, 976u, 2999u, 3000u}) {
    right &= round_of(twins, random, n, 0, twins.block(), false, 0, n == 489 ? 20'000'000 : 0);
  }
  right &= round_of(twins, random, 700, 0, twins.block(), true, 0, 20'000'000);
  check(right, "lists of many launches, and streams that are late");
  Twins large({group_of(NMC_KV_KIND_ATTENTION, NMC_DTYPE_BF16, 32, 8, 128, NMC_KV_HEAD_MAJOR, NMC_KV_SIDES_SEPARATE)}, 100, 16, random);
  check(round_of(large, random, 60, NMC_KV_GROUPS_ALL, large.block(), false, 0, 0), "blocks of 2 MiB");
}

static void graph(Random& random) {
  Twins twins({group_of(NMC_KV_KIND_ATTENTION, NMC_DTYPE_BF16, 4, 2, 64, NMC_KV_LAYER_MAJOR, NMC_KV_SIDES_PER_BLOCK)}, 1200, 16, random);
  const size_t n = 600;
  const uint64_t bytes = n * twins.block();
  Buffer buffer(bytes, false, 0);
  std::vector<int32_t> from = some_blocks(random, 1200, n), to = some_blocks(random, 1200, n);
  std::vector<nmc_kv_copy_t> copies = {block_copy(from[0], from[1]), block_copy(from[2], from[3])};
  NMC_CHECK(nmc_kv_gather(twins.gpu, 0, nullptr, 0, nullptr, 0, twins.stream));
  cudaGraph_t captured;
  cudaGraphExec_t executable;
  CUDA_OK(cudaStreamBeginCapture(twins.stream, cudaStreamCaptureModeGlobal));
  NMC_CHECK(nmc_kv_gather(twins.gpu, NMC_KV_GROUPS_ALL, from.data(), n, buffer.data(), bytes, twins.stream));
  NMC_CHECK(nmc_kv_copy_blocks(twins.gpu, copies.data(), copies.size(), twins.stream));
  NMC_CHECK(nmc_kv_scatter(twins.gpu, NMC_KV_GROUPS_ALL, to.data(), n, buffer.data(), bytes, twins.stream));
  CUDA_OK(cudaStreamEndCapture(twins.stream, &captured));
  CUDA_OK(cudaGraphInstantiate(&executable, captured, 0));
  check(twins.same(), "capturing copies nothing");
  const std::vector<int32_t> same_from = from, same_to = to;
  std::fill(from.begin(), from.end(), -1);
  std::fill(to.begin(), to.end(), -1);
  bool right = true;
  for (int round = 0; round < 3; ++round) {
    Bytes packed(bytes);
    NMC_CHECK(nmc_kv_gather(twins.cpu, 0, same_from.data(), n, packed.data(), bytes, nullptr));
    NMC_CHECK(nmc_kv_copy_blocks(twins.cpu, copies.data(), copies.size(), nullptr));
    NMC_CHECK(nmc_kv_scatter(twins.cpu, 0, same_to.data(), n, packed.data(), bytes, nullptr));
    CUDA_OK(cudaGraphLaunch(executable, twins.stream));
    right &= twins.same() && buffer.has(packed);
  }
  check(right, "a captured graph has the lists in it, and does the same with every launch");
  CUDA_OK(cudaGraphExecDestroy(executable));
  CUDA_OK(cudaGraphDestroy(captured));
}

static void refused(Random& random) {
  const nmc_kv_group_t layout = group_of(NMC_KV_KIND_ATTENTION, NMC_DTYPE_BF16, 2, 2, 64, 0, 0);
  Twins twins({layout}, 8, 16, random);
  Buffer buffer(8 * twins.block(), false, 0);
  Bytes ordinary(8 * twins.block());
  const int32_t blocks[] = {1, 2}, far[] = {1, 8};
  const nmc_kv_copy_t chain[] = {block_copy(1, 2), block_copy(2, 3)};
  const uint64_t room = 2 * twins.block();
  expect(nmc_kv_gather(twins.gpu, 0, blocks, 2, ordinary.data(), room, twins.stream), NMC_ERR_INVALID_ARG,
         "ordinary host memory cannot be gathered into");
  expect(nmc_kv_gather(twins.cpu, 0, blocks, 2, buffer.data(), room, nullptr), NMC_ERR_INVALID_ARG,
         "a cache in host memory is not gathered into device memory");
  expect(nmc_kv_gather(twins.gpu, 0, blocks, 2, buffer.data(), room - 1, twins.stream), NMC_ERR_TOO_SMALL, "too small");
  expect(nmc_kv_scatter(twins.gpu, 0, far, 2, buffer.data(), room, twins.stream), NMC_ERR_INVALID_ARG, "no such block");
  expect(nmc_kv_copy_blocks(twins.gpu, chain, 2, twins.stream), NMC_ERR_INVALID_ARG, "a chain of copies");
  check(twins.same(), "nothing was copied");

  std::vector<unsigned char> memory(twins.block() * 8);
  unsigned char *device = nullptr, *managed = nullptr;
  CUDA_OK(cudaMalloc(&device, memory.size()));
  CUDA_OK(cudaMallocManaged(&managed, memory.size()));
  std::vector<nmc_kv_group_t> two = {layout, layout};
  two[0].memory = memory.data(), two[1].memory = device;
  two[0].memory_bytes = two[1].memory_bytes = memory.size();
  nmc_kv_t* kv = create_kv(two, 8, 16);
  Buffer both(4 * twins.block(), true, 0);
  expect(nmc_kv_gather(kv, NMC_KV_GROUPS_ALL, blocks, 2, both.data(), 4 * twins.block(), nullptr), NMC_ERR_UNSUPPORTED,
         "groups on host and device together");
  NMC_CHECK(nmc_kv_gather(kv, 0, blocks, 2, both.data(), room, nullptr));
  NMC_CHECK(nmc_kv_gather(kv, 1, blocks, 2, both.data(), room, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  (void)nmc_kv_destroy(kv);
  two[0].memory = managed;
  kv = create_kv(two, 8, 16);
  expect(nmc_kv_gather(kv, 0, blocks, 2, both.data(), room, nullptr), NMC_ERR_UNSUPPORTED, "managed memory");
  (void)nmc_kv_destroy(kv);
  CUDA_OK(cudaFree(device));
  CUDA_OK(cudaFree(managed));
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "test";
  skip_without_gpu();
  CUDA_OK(cudaSetDevice(0));
  Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  layouts(random, mode == "test");
  if (mode == "test") many(random);
  graph(random);
  refused(random);
  return failed_checks == 0 ? 0 : 1;
}
