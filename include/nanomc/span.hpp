/*
 * nmc::span<T>: `size()` objects in memory that somebody else owns. With C++20 it is std::span; with C++17 it is the part
 * of it below. A function that takes one accepts an address and a count, an array, a vector, or any other container whose
 * objects follow each other:
 *
 *   void sum(nmc::span<const float> values);
 *   sum({address, count});
 *   sum(vector);
 */
#ifndef NANOMC_SPAN_HPP
#define NANOMC_SPAN_HPP

#include <array>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <type_traits>
#include <utility>

#if __cplusplus >= 202002L && defined(__has_include)
#if __has_include(<span>)
#include <span>
#endif
#endif

namespace nmc {

#if defined(__cpp_lib_span)

using std::as_bytes;
using std::as_writable_bytes;
using std::span;

#else

namespace detail {
/// Whether `Range` lends a span of T: its objects follow each other and are T, or T without const. What ends with the
/// statement lends only to readers.
template <class Range, class T, class = void>
inline constexpr bool lends_v = false;
template <class Range, class T>
inline constexpr bool lends_v<Range, T,
                              std::void_t<decltype(std::data(std::declval<Range&>())),
                                          decltype(std::size(std::declval<Range&>()))>> =
    std::is_convertible_v<std::remove_pointer_t<decltype(std::data(std::declval<Range&>()))> (*)[], T (*)[]> &&
    (std::is_lvalue_reference_v<Range> || std::is_const_v<T>);
}  // namespace detail

template <class T>
class span {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using size_type = size_t;
  using pointer = T*;
  using reference = T&;
  using iterator = T*;

  constexpr span() noexcept = default;
  constexpr span(T* data, size_t size) noexcept : data_(data), size_(size) {}
  template <class Range, class = std::enable_if_t<detail::lends_v<Range, T>>>
  constexpr span(Range&& range) noexcept : data_(std::data(range)), size_(std::size(range)) {}

  constexpr T* data() const noexcept { return data_; }
  constexpr size_t size() const noexcept { return size_; }
  constexpr size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
  constexpr T* begin() const noexcept { return data_; }
  constexpr T* end() const noexcept { return data_ + size_; }
  constexpr T& operator[](size_t index) const noexcept { return data_[index]; }
  constexpr T& front() const noexcept { return data_[0]; }
  constexpr T& back() const noexcept { return data_[size_ - 1]; }
  /// The caller makes sure that they exist, as with std::span.
  constexpr span first(size_t count) const noexcept { return span(data_, count); }
  constexpr span last(size_t count) const noexcept { return span(data_ + (size_ - count), count); }
  constexpr span subspan(size_t from, size_t count = static_cast<size_t>(-1)) const noexcept {
    return span(data_ + from, count == static_cast<size_t>(-1) ? size_ - from : count);
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

/// The same memory as bytes.
template <class T>
span<const std::byte> as_bytes(span<T> memory) noexcept {
  return {reinterpret_cast<const std::byte*>(memory.data()), memory.size_bytes()};
}
/// The same memory as writable bytes.
template <class T>
span<std::byte> as_writable_bytes(span<T> memory) noexcept {
  return {reinterpret_cast<std::byte*>(memory.data()), memory.size_bytes()};
}

#endif

namespace detail {
/// Whether `Range` refers to objects of somebody else, as spans and string_views do: its copy is plain, and to make it const makes the
/// objects no more const than they were.
template <class Range, class = void>
inline constexpr bool is_view_v = false;
template <class Range>
inline constexpr bool is_view_v<Range, std::void_t<decltype(std::data(std::declval<const Range&>())),
                                                   decltype(std::size(std::declval<const Range&>()))>> =
    !std::is_array_v<Range> && std::is_trivially_copyable_v<Range> &&
    std::is_same_v<decltype(std::data(std::declval<Range&>())), decltype(std::data(std::declval<const Range&>()))>;
template <class T>
inline constexpr bool is_view_v<std::initializer_list<T>> = false;
template <class T, size_t N>
inline constexpr bool is_view_v<std::array<const T, N>> = false;

/// Whether what a `Given&&` refers to can be there after the statement: not the objects of a container that ends with it.
template <class Given>
inline constexpr bool stays_v = std::is_lvalue_reference_v<Given> || std::is_pointer_v<std::remove_reference_t<Given>> ||
                                std::is_null_pointer_v<std::remove_reference_t<Given>> ||
                                is_view_v<std::remove_cv_t<std::remove_reference_t<Given>>>;
}  // namespace detail

}  // namespace nmc

#endif  // NANOMC_SPAN_HPP
