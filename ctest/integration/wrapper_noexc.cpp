// nanomc.hpp without exceptions (and without RTTI): the same calls, and the throwing forms are not there.
#include "wrapper_cases.hpp"

#if NMC_HPP_EXCEPTIONS
#error "build this file with -fno-exceptions"
#endif

namespace {

template <class T, class = void>
struct has_throwing_info : std::false_type {};
template <class T>
struct has_throwing_info<T, std::void_t<decltype(std::declval<const T&>().info())>> : std::true_type {};
static_assert(!has_throwing_info<nmc::World>::value, "a form that cannot throw must not exist");

}  // namespace

int main() {
  try_forms();
  return finish();
}
