// Puts and gets of the store between every kind of memory, with red zones: whole values, ranges, rows, slices, many extents.
#include "store_bed.h"

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

int main() {
  prepare_environment();
  skip_without_gpu();
  CUDA_OK(cudaSetDevice(0));
  Buffers sources(6 * MIB), targets(6 * MIB);
  for (const uint32_t kind : {NMC_HEAP_CUDA, NMC_HEAP_HOST}) {
    Bed bed(kind);
    copies_of_all_kinds(bed, sources, targets);
    ranges_and_rows(bed, sources, targets);
    mixed_slices(bed, sources, targets, "mixed", std::string(" on a ") + heap_name(kind));
    several_extents(bed, sources, targets);
  }
  return finish();
}
