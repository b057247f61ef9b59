/*
 * What the C++ headers of nanomc share: versions, errors, and the two forms in which every call exists. Header-only, C++17;
 * nothing here has state of its own, and every function is one call of nanomc.h, which says what it guarantees.
 *
 *   nmc::World world = nmc::World::join(config);          // in nmc: gives the value, or throws nmc::Error
 *   auto joined = nmc::nothrow::World::join(config);      // in nmc::nothrow: gives a Result, and throws no nmc::Error
 *   if (!joined) std::puts(joined.message().c_str());     // status() and message() say why
 *   auto met = world.nothrow()->barrier(timeout);         // the second form for one call
 *
 * With -fno-exceptions only nmc::nothrow is there. -fno-rtti is fine. Both forms are one class template, such as BasicWorld,
 * whose parameter is Throwing or Returning (below): it turns `Out<T>`, what a call declares to give, into T or Result<T>.
 */
#ifndef NANOMC_CORE_HPP
#define NANOMC_CORE_HPP

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "the C++ headers of nanomc need C++17"
#endif

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanomc.h"
#include "nanomc/span.hpp"

#if defined(__cpp_exceptions)
#define NMC_HPP_EXCEPTIONS 1
#else
#define NMC_HPP_EXCEPTIONS 0
#endif

namespace nmc {

// ----------------------------------------------------------------------------------------------------- versions --

/// Version of the loaded library, such as "0.1.0".
inline const char* version() noexcept { return nmc_version(); }
/// Version of the ABI that the loaded library speaks.
inline uint32_t abi_version() noexcept { return nmc_abi_version(); }
/// Layout version of the loaded library.
inline uint32_t layout_version() noexcept { return nmc_layout_version(); }
/// Whether the loaded library knows everything that this header offers, and lays out memory the same way.
inline bool library_matches_header() noexcept {
  return nmc_abi_version() >= NMC_ABI_VERSION && nmc_layout_version() == NMC_LAYOUT_VERSION;
}
/// Name of a status, such as "NMC_ERR_TIMEOUT".
inline const char* status_name(nmc_status_t status) noexcept { return nmc_status_name(status); }

/// For timeouts: the library's default (30 s).
inline constexpr std::chrono::milliseconds default_timeout{-1};

/// What goes first when room is needed. A store takes fifo, lru and s3fifo; an SSD tier none, fifo and lru; a KV cache all but none.
enum class Evict : uint32_t {
  none = NMC_EVICT_NONE,
  fifo = NMC_EVICT_FIFO,
  lru = NMC_EVICT_LRU,
  s3fifo = NMC_EVICT_S3FIFO,
  lfu = NMC_EVICT_LFU,
  priority = NMC_EVICT_PRIORITY,
};

// ------------------------------------------------------------------------------------------------------- errors --

/// A status and the sentence that explains it.
struct Failure {
  nmc_status_t status = NMC_OK;
  std::string message;
};

#if NMC_HPP_EXCEPTIONS
/// What the throwing form throws. what() is "NMC_ERR_TIMEOUT: <message>".
class Error : public std::runtime_error {
 public:
  explicit Error(Failure failure)
      : std::runtime_error(std::string(nmc_status_name(failure.status)) + ": " + failure.message),
        failure_(std::move(failure)) {}
  nmc_status_t status() const noexcept { return failure_.status; }
  const std::string& message() const noexcept { return failure_.message; }

 private:
  Failure failure_;
};
#endif

namespace detail {
/// How long something stays: zero is for ever, so what is over gets the shortest time.
inline uint64_t ttl_ms(std::chrono::milliseconds time) noexcept {
  return time.count() < 0 ? 1 : static_cast<uint64_t>(time.count());
}
/// The failure that the last call of this thread, which returned `status`, left behind.
inline Failure failure(nmc_status_t status) { return Failure{status, nmc_last_error_message()}; }

/// Whether a list goes with `n` items: it has one for each, or is left out.
inline bool one_each_or_none(uint64_t given, uint64_t n) noexcept { return given == 0 || given == n; }
/// The failure of a list that does not; `what` and `items` are what there are so many of.
inline Failure not_one_each(uint64_t given, const char* what, uint64_t n, const char* items, bool or_none = true) {
  return {NMC_ERR_INVALID_ARG, std::to_string(given) + " " + what + " for " + std::to_string(n) + " " + items + ": give one for each" +
                                   (or_none ? ", or none" : "")};
}

/// Whether a call that looked for something says that it is not there, or not yet: an answer, and no failure.
inline bool is_miss(nmc_status_t status) noexcept {
  return status == NMC_ERR_NOT_FOUND || status == NMC_NOT_READY || status == NMC_IN_PROGRESS;
}

[[noreturn]] inline void raise(Failure failure) {
#if NMC_HPP_EXCEPTIONS
  throw Error(std::move(failure));
#else
  (void)failure;
  std::abort();
#endif
}
}  // namespace detail

/// A value, or why there is none. value() of a failed result throws nmc::Error; without exceptions it aborts, so
/// look first.
template <class T>
class [[nodiscard]] Result {
 public:
  /// From a T, and from all that a T can be made from.
  template <class U = T, class = std::enable_if_t<std::is_convertible_v<U&&, T>>>
  Result(U&& value) : value_(std::in_place, std::forward<U>(value)) {}  // in place: a T may be an empty optional
  Result(Failure failure) : failure_(std::move(failure)) {}
  /// From the result of another call.
  template <class U, class = std::enable_if_t<std::is_convertible_v<U&&, T>>, class = void>
  Result(Result<U>&& other) {
    if (other) value_.emplace(std::move(other).value());
    else failure_ = {other.status(), other.message()};
  }

  bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  nmc_status_t status() const noexcept { return failure_.status; }
  const std::string& message() const noexcept { return failure_.message; }

  T& value() & { return checked(), *value_; }
  const T& value() const& { return checked(), *value_; }
  T value() && { return checked(), std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T value_or(T other) && { return ok() ? std::move(*value_) : std::move(other); }

 private:
  void checked() const {
    if (!ok()) detail::raise(failure_);
  }
  std::optional<T> value_;
  Failure failure_;
};

/// Success, or why not.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Failure failure) : failure_(std::move(failure)) {}

  /// A positive status is an outcome; with a message it is why nothing was done.
  bool ok() const noexcept { return failure_.status == NMC_OK || (failure_.status > 0 && failure_.message.empty()); }
  explicit operator bool() const noexcept { return ok(); }
  nmc_status_t status() const noexcept { return failure_.status; }
  const std::string& message() const noexcept { return failure_.message; }
  void value() const {
    if (!ok()) detail::raise(failure_);
  }

 private:
  Failure failure_;
};

// -------------------------------------------------------------------------------------------------------- forms --
//
// A form says what a call gives, and how it fails. A call that gives a T is declared as `Out<T>` and written once:
//
//   Out<RankState> alive(int32_t rank) const {
//     uint32_t state = 0;
//     const nmc_status_t status = nmc_world_alive(get(), rank, &state);
//     if (status < 0) return Mode::failure(status);    // or Mode::failure({status, "message"}) for a check of its own
//     return static_cast<RankState>(state);
//   }
//   Out<void> abort() const { return Mode::done(nmc_world_abort(get())); }
//
// Where a miss is an ordinary answer, T is a std::optional and the call returns std::nullopt: no message is made for it.

namespace detail {
/// What a function that never returns gives: it stands for any type.
struct Never {
  template <class T>
  struct is_optional : std::false_type {};
  template <class T>
  struct is_optional<std::optional<T>> : std::true_type {};

  /// Not for an optional: that makes itself from what its value can be made from.
  template <class T, class = std::enable_if_t<!is_optional<T>::value>>
  [[noreturn]] operator T() const {
    std::abort();
  }
};
}  // namespace detail

/// The form that gives values, and throws nmc::Error.
struct Throwing {
#if NMC_HPP_EXCEPTIONS
  template <class T>
  using Out = T;
#else
  template <bool used>
  struct Off {
    static_assert(!used, "exceptions are off: use nmc::nothrow::World in the place of nmc::World, and so on");
  };
  template <class T>
  using Out = std::enable_if_t<sizeof(Off<sizeof(T*) != 0>) != 0, T>;
#endif
  [[noreturn]] static detail::Never failure(Failure why) { detail::raise(std::move(why)); }
  [[noreturn]] static detail::Never failure(nmc_status_t status) { detail::raise(detail::failure(status)); }
  [[noreturn]] static void done(Failure why) { detail::raise(std::move(why)); }
  static void done(nmc_status_t status) {
    if (status < 0) detail::raise(detail::failure(status));
  }
};

/// The form that gives results.
struct Returning {
  template <class T>
  using Out = Result<T>;
  static Failure failure(Failure why) { return why; }
  static Failure failure(nmc_status_t status) { return detail::failure(status); }
  static Result<void> done(Failure why) { return why; }
  static Result<void> done(nmc_status_t status) {
    if (status < 0) return detail::failure(status);
    return Failure{status, {}};  // a positive status is an outcome, not an error
  }
};

// ------------------------------------------------------------------------------------------------------- owners --

namespace detail {
/// Sole owner of a C handle, in either form. Its destructor destroys the handle and ignores the status; destroy() shows it.
template <class C, nmc_status_t (*Destroy)(C*)>
class Handle {
 public:
  Handle() noexcept = default;
  explicit Handle(C* handle) noexcept : handle_(handle) {}
  Handle(Handle&& other) noexcept : handle_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      if (handle_ != nullptr) (void)Destroy(handle_);
      handle_ = other.release();
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (handle_ != nullptr) (void)Destroy(handle_);
  }

  /// The C handle; still owned by this object.
  C* get() const noexcept { return handle_; }
  /// Gives the C handle away: the caller destroys it.
  C* release() noexcept { return std::exchange(handle_, nullptr); }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

 protected:
  /// Destroys the handle. If that fails (NMC_ERR_BUSY) it is still owned.
  nmc_status_t destroy_now() noexcept {
    const nmc_status_t status = Destroy(handle_);
    if (status >= 0) handle_ = nullptr;
    return status;
  }

 private:
  C* handle_ = nullptr;
};

/// Sole owner of what a handle gave out and takes back, in either form: blocks, a ticket, a pin. The handle must live
/// longer, or be gone for good: then there is nothing to give back.
template <class C, class What, nmc_status_t (*GiveBack)(C*, What)>
class Lease {
 public:
  Lease() noexcept = default;
  /// Takes over something that `from` has given out.
  Lease(C* from, What what) noexcept : from_(from), what_(what) {}
  Lease(Lease&& other) noexcept
      : from_(std::exchange(other.from_, nullptr)), what_(std::exchange(other.what_, What{})) {}
  Lease& operator=(Lease&& other) noexcept {
    if (this != &other) {
      if (from_ != nullptr) (void)GiveBack(from_, what_);
      from_ = std::exchange(other.from_, nullptr);
      what_ = std::exchange(other.what_, What{});
    }
    return *this;
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    if (from_ != nullptr) (void)GiveBack(from_, what_);
  }

  /// What C calls take.
  const What& c() const noexcept { return what_; }
  /// Gives it away: the caller gives it back.
  What release() noexcept {
    from_ = nullptr;
    return std::exchange(what_, What{});
  }
  explicit operator bool() const noexcept { return from_ != nullptr; }

 protected:
  C* from_ = nullptr;
  What what_{};
};

/// Something in the other form for one call, as in `world.nothrow()->barrier(timeout)`; it owns nothing.
template <class Noun>
class Borrowed {
 public:
  template <class... Parts>
  explicit Borrowed(Parts... parts) noexcept : noun_(parts...) {}
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed() { (void)noun_.release(); }
  const Noun* operator->() const noexcept { return &noun_; }

 private:
  Noun noun_;
};

/// Calls `write` until its text fits: it may grow between two calls.
template <class Write>
nmc_status_t read_text(std::string& text, Write write) {
  text.resize(256);
  for (;;) {
    size_t needed = 0;
    const nmc_status_t status = write(text.data(), text.size(), &needed);
    if (status >= 0) text.resize(needed - 1);  // without the NUL
    if (status != NMC_ERR_TOO_SMALL) return status;
    text.resize(needed + needed / 4);
  }
}
/// The text that `write(buffer, capacity, &needed)` writes.
template <class Mode, class Write>
typename Mode::template Out<std::string> text(Write write) {
  std::string text;
  const nmc_status_t status = read_text(text, write);
  if (status < 0) return Mode::failure(status);
  return text;
}

inline std::string_view text_of(const nmc_slice_t& slice) noexcept {
  return {static_cast<const char*>(slice.ptr), slice.len};
}

/// A function of the program that the library calls through C, on the calling thread. What it throws is kept until the library has
/// returned; then rethrow() goes on with it.
template <class Function>
class Callback {
 public:
  explicit Callback(const Function& function) : function_(function) {}

  /// Whether to go on.
  template <class... Args>
  bool call(const Args&... args) noexcept {
#if NMC_HPP_EXCEPTIONS
    if (thrown_) return false;
    try {
      return answer(args...);
    } catch (...) {
      thrown_ = std::current_exception();
      return false;
    }
#else
    return answer(args...);
#endif
  }
  void rethrow() const {
#if NMC_HPP_EXCEPTIONS
    if (thrown_) std::rethrow_exception(thrown_);
#endif
  }

 private:
  template <class... Args>
  bool answer(const Args&... args) {
    if constexpr (std::is_void_v<typename Function::result_type>) {
      function_(args...);
      return true;
    } else {
      return function_(args...);
    }
  }
  const Function& function_;
  std::exception_ptr thrown_;
};

template <class T>
inline constexpr bool is_move_only_v =
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
    !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(std::is_trivially_copyable_v<span<int>> && sizeof(span<int>) == 2 * sizeof(void*), "spans are values");
}  // namespace detail

}  // namespace nmc

#endif  // NANOMC_CORE_HPP
