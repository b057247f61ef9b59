// The C++ headers without exceptions (and without RTTI): the form with results. ctest/header shows that there is no other.
#include "wrapper_cases.hpp"

#if NMC_HPP_EXCEPTIONS
#error "build this file with -fno-exceptions"
#endif

int main() {
  values();
  wrapper_cases<nmc::Returning>("nmc::nothrow");
  return finish();
}
