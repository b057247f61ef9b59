// The same with C++20, where nmc::span is std::span.
#include "wrapper.cpp"

#if !defined(__cpp_lib_span)
#error "build this file with -std=c++20"
#endif
static_assert(std::is_same_v<nmc::span<int>, std::span<int>>);
