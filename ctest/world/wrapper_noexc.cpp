// The C++ headers without exceptions (and without RTTI): the form with results. ctest/header shows that there is no other. And with
// C++20, where nmc::span is std::span.
#include "wrapper_cases.hpp"

#if NMC_HPP_EXCEPTIONS
#error "build this file with -fno-exceptions"
#endif
#if !defined(__cpp_lib_span)
#error "build this file with -std=c++20"
#endif
static_assert(std::is_same_v<nmc::span<int>, std::span<int>>);

int main() {
  values();
  wrapper_cases<nmc::Returning>("nmc::nothrow");
  return finish();
}
