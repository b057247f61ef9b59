/*
 * What calls take and give, in C++17: keys, bytes, several of them, and what became of each. For stores, tiers and clients.
 */
#ifndef NANOMC_BYTES_HPP
#define NANOMC_BYTES_HPP

#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <string_view>

#include "nanomc/core.hpp"

namespace nmc {

// ---------------------------------------------------------------------------------------------------- arguments --

namespace detail {
/// A container whose data() and size() describe plain data: string, string_view, vector, array, nmc::span.
template <class C>
using data_of = std::remove_pointer_t<decltype(std::data(std::declval<C&>()))>;
template <class C, class = void>
inline constexpr bool is_plain_v = false;
template <class C>
inline constexpr bool is_plain_v<C, std::void_t<data_of<C>, decltype(std::size(std::declval<C&>()))>> =
    std::is_trivially_copyable_v<data_of<C>> && !std::is_array_v<C>;
}  // namespace detail

/// Bytes that a call reads. Made from a container of plain data (string_view among them), or address and size; refers to
/// it, so it must not outlive it. Not from a `char*` or an array of char: nobody could tell text from a page there.
struct Bytes : nmc_slice_t {
  Bytes() noexcept : nmc_slice_t{nullptr, 0} {}
  Bytes(const void* data, size_t size) noexcept : nmc_slice_t{data, size} {}
  Bytes(const char*) = delete;  // for text say std::string_view("..."), for all of an array nmc::bytes(array)
  template <class C, class = std::enable_if_t<detail::is_plain_v<const C>>>
  Bytes(const C& values) noexcept : nmc_slice_t{std::data(values), std::size(values) * sizeof(*std::data(values))} {}
};

/// Bytes that are read after the call, too: by a call that nobody waits for, or from an object that refers to them. As Bytes, but not from a
/// container that ends with the statement.
struct LastingBytes : Bytes {
  LastingBytes() noexcept = default;
  LastingBytes(const void* data, size_t size) noexcept : Bytes(data, size) {}
  LastingBytes(const char*) = delete;
  LastingBytes(const Bytes& bytes) noexcept : Bytes(bytes) {}
  template <class C, std::enable_if_t<detail::is_plain_v<const std::remove_reference_t<C>> && detail::stays_v<C>, int> = 0>
  LastingBytes(C&& values) noexcept : Bytes(values) {}
  /// The container ends before its bytes are read: give it a name.
  template <class C, std::enable_if_t<detail::is_plain_v<const std::remove_reference_t<C>> && !detail::stays_v<C>, int> = 0>
  LastingBytes(C&& values) = delete;
};

/// All bytes of an array; of a string literal with its NUL.
template <class T, size_t N>
Bytes bytes(const T (&array)[N]) noexcept {
  static_assert(std::is_trivially_copyable_v<T>, "plain data only");
  return {array, sizeof array};
}

/// A key, or the name of a namespace: as Bytes, and also from text that ends with a NUL.
struct Key : Bytes {
  using Bytes::Bytes;
  Key(const char* text) noexcept : Bytes(text, text == nullptr ? 0 : std::strlen(text)) {}
  Key(const Bytes& bytes) noexcept : Bytes(bytes) {}
};

/// Memory that a call writes to. Made from a container of plain data, or address and size; refers to it.
struct MutableBytes : nmc_buffer_t {
  MutableBytes() noexcept : nmc_buffer_t{nullptr, 0} {}
  MutableBytes(void* data, size_t size) noexcept : nmc_buffer_t{data, size} {}
  template <class C, class = std::enable_if_t<detail::is_plain_v<C> && !std::is_const_v<detail::data_of<C>>>>
  MutableBytes(C& values) noexcept : nmc_buffer_t{std::data(values), std::size(values) * sizeof(*std::data(values))} {}
  /// A span refers to memory of somebody else: it may be a temporary one.
  template <class V, std::enable_if_t<!std::is_lvalue_reference_v<V> && detail::is_view_v<V> && detail::is_plain_v<V> &&
                                          !std::is_const_v<detail::data_of<V>>,
                                      int> = 0>
  MutableBytes(V&& values) noexcept : nmc_buffer_t{std::data(values), std::size(values) * sizeof(*std::data(values))} {}
};

/// Several of a kind for one call: a list in braces, or a container of them; refers to it.
template <class T>
struct Many : span<const T> {
  Many() = default;
  Many(std::initializer_list<T> list) noexcept : span<const T>(std::data(list), list.size()) {}
  template <class C, class = std::enable_if_t<std::is_convertible_v<detail::data_of<const C> (*)[], const T (*)[]>>>
  Many(const C& values) noexcept : span<const T>(std::data(values), std::size(values)) {}
};

/// Several pieces of bytes, or values, for a call that nobody waits for: the list may end with the statement, the bytes must not.
struct LastingSlices : Many<Bytes> {
  LastingSlices() = default;
  LastingSlices(std::initializer_list<LastingBytes> list) noexcept : Many<Bytes>(span<const Bytes>(static_cast<const Bytes*>(std::data(list)), list.size())) {}
  template <class C, class = std::enable_if_t<std::is_convertible_v<detail::data_of<const C> (*)[], const Bytes (*)[]>>>
  LastingSlices(const C& values) noexcept : Many<Bytes>(values) {}
};

/// The keys of a range of strings, for the batch forms; refers to them.
template <class Range>
std::vector<Key> all_keys(const Range& range) {
  return std::vector<Key>(std::begin(range), std::end(range));
}
/// The same for the values of a range of containers.
template <class Range>
std::vector<Bytes> all_bytes(const Range& range) {
  return std::vector<Bytes>(std::begin(range), std::end(range));
}
// ------------------------------------------------------------------------------------------------------ results --

/// A value that was read: bytes that it owns. Like a vector, but nobody clears the memory before it is filled.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size) : data_(size == 0 ? nullptr : new std::byte[size]), size_(size), capacity_(size) {}
  Buffer(Buffer&& other) noexcept
      : data_(std::move(other.data_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }

  std::byte* data() noexcept { return data_.get(); }
  const std::byte* data() const noexcept { return data_.get(); }
  size_t size() const noexcept { return size_; }
  size_t capacity() const noexcept { return capacity_; }
  bool empty() const noexcept { return size_ == 0; }
  std::byte* begin() noexcept { return data(); }
  std::byte* end() noexcept { return data() + size_; }
  const std::byte* begin() const noexcept { return data(); }
  const std::byte* end() const noexcept { return data() + size_; }
  std::byte& operator[](size_t index) noexcept { return data_[index]; }
  const std::byte& operator[](size_t index) const noexcept { return data_[index]; }
  /// The same bytes as text.
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(data()), size_}; }
  /// Keeps only the first `size` bytes.
  void resize(size_t size) noexcept { size_ = size < capacity_ ? size : capacity_; }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

/// What became of the items of a batch, in both forms. A failed item does not stop the others; value() throws for the first.
struct [[nodiscard]] Batch {
  std::vector<nmc_status_t> items;
  Failure failure;  ///< of the first item that failed

  bool ok() const noexcept { return failure.status == NMC_OK; }
  explicit operator bool() const noexcept { return ok(); }
  nmc_status_t status() const noexcept { return failure.status; }
  const std::string& message() const noexcept { return failure.message; }
  void value() const {
    if (!ok()) detail::raise(failure);
  }
};

/// The same for a batch that makes something of each item; what failed items made is empty.
template <class T>
struct [[nodiscard]] BatchOf : Batch {
  std::vector<T> values;

  /// All of them. If one failed, the others are given back.
  std::vector<T> value() && {
    Batch::value();
    return std::move(values);
  }
};

namespace detail {
/// Why a read gave nothing. A status that is no error has left no message.
inline Failure missed(nmc_status_t status) {
  if (status > 0) return Failure{status, "the object is still being written, or on disk only"};
  return failure(status);
}

/// Runs a call on `n` items; `others` is the length of what goes with them.
template <class B, class Call>
B batch(size_t n, size_t others, Call call) {
  B made;
  if (n != others) {
    const std::string text = std::to_string(n) + " keys do not go with " + std::to_string(others) + " others";
    made.failure = {NMC_ERR_INVALID_ARG, text};
    made.items.assign(n, NMC_ERR_INVALID_ARG);
    return made;
  }
  constexpr nmc_status_t untouched = INT32_MIN;
  made.items.assign(n, untouched);
  const nmc_status_t status = call(made.items.data());
  if (status != NMC_OK) made.failure = detail::missed(status);
  for (nmc_status_t& item : made.items) {
    if (item == untouched) item = status;  // the call as a whole was refused
  }
  return made;
}

/// Metadata, which `fetch` copies.
template <class Fetch>
nmc_status_t read_metadata(Buffer& found, Fetch fetch) {
  found = Buffer(NMC_MAX_METADATA);
  size_t bytes = 0;
  const nmc_status_t status = fetch(found.data(), found.size(), &bytes);
  if (status == NMC_OK) found.resize(bytes);
  return status;
}
}  // namespace detail

}  // namespace nmc

#endif
