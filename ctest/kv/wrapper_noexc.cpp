// nanomc/kv.hpp without exceptions (and without RTTI): the same calls in the form with results. And with C++20, where nmc::span is
// std::span.
#include "nanomc/core.hpp"
#if NMC_HPP_EXCEPTIONS
#error "build this file with -fno-exceptions"
#endif
#include "wrapper.cpp"

#if !defined(__cpp_lib_span)
#error "build this file with -std=c++20"
#endif
static_assert(std::is_convertible_v<std::span<const int32_t>, nmc::KvTokens> &&
              std::is_convertible_v<std::span<uint32_t, 4>, nmc::KvTokens> &&
              !std::is_convertible_v<std::span<const int64_t>, nmc::KvTokens>);
