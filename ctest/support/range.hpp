// Reading a part of a value: for all tests that read values, on the host and on a GPU.
#ifndef NMC_CTEST_SUPPORT_RANGE_HPP
#define NMC_CTEST_SUPPORT_RANGE_HPP

#include <nanomc.h>

#include <cstddef>
#include <cstdint>

// A part of a value, into one buffer.
inline nmc_status_t get_range(nmc_store_t* store, nmc_slice_t key, uint64_t offset, void* to, size_t bytes) {
  const nmc_buffer_t buffer{to, bytes};
  return nmc_store_get_slices(store, key, offset, &buffer, 1, nullptr);
}

#endif
