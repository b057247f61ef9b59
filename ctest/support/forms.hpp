// For tests that go through nmc:: and nmc::nothrow:: with one body: what a call gives, in either form.
#ifndef NMC_CTEST_FORMS_HPP
#define NMC_CTEST_FORMS_HPP

#include <string>
#include <type_traits>
#include <utility>

#include "check.h"
#include "nanomc/core.hpp"

/// The value of a call that succeeds.
template <class T>
T value_of(nmc::Result<T> result) {
  return std::move(result).value();
}
template <class T>
T value_of(T value) {
  return value;
}
template <class T>
struct is_result : std::false_type {};
template <class T>
struct is_result<nmc::Result<T>> : std::true_type {};

template <class Call>
nmc_status_t status_of(Call call) {
  using Given = decltype(call());
  if constexpr (is_result<Given>::value) {
    const Given given = call();
    CHECK(given.ok() ? given.status() >= 0 : given.status() != NMC_OK);  // NMC_NOT_READY is no value either
    CHECK(given.message().empty() == given.ok());
    return given.status();
  } else {
#if NMC_HPP_EXCEPTIONS
    try {
      (void)call();
    } catch (const nmc::Error& error) {
      const std::string what = error.what();
      CHECK(!error.message().empty() && what == std::string(nmc_status_name(error.status())) + ": " + error.message());
      return error.status();
    }
#endif
    return NMC_OK;
  }
}
/// The status with which a call ended, returned or thrown.
#define STATUS(...) status_of([&] { return __VA_ARGS__; })

#endif
