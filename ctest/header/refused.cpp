// What the compiler must refuse, one case a line: refused.sh looks at which lines it does. With -DREFUSED the container in ENDS() ends with
// the statement, and TEXT() is text where a value is wanted; without it the same calls compile.
// The compiler complains once about a function template and a type: each case that goes through detail::first_of has a size of its own.
#include <array>
#include <string>
#include <vector>

#include "nanomc.hpp"

char page[4096];
const char* pointer = page;
#ifdef REFUSED
#define ENDS(value) std::move(value)
#define TEXT(value) value
#else
#define ENDS(value) value
#define TEXT(value) nmc::bytes(page)
#endif

// What is used after the call that takes it cannot be a container that ends with the statement.
template <size_t n>
std::array<float, n> rows;
template <size_t n>
std::array<int32_t, n> numbers;

void tokens(const nmc::Ep& ep, std::vector<float> more, std::vector<int32_t> chosen, std::array<float, 2> weights) {
  (void)nmc::EpTokens(ENDS(more), chosen, weights, 1);
  (void)nmc::EpTokens(more, ENDS(chosen), weights, 1);
  (void)nmc::EpTokens(more, chosen, ENDS(weights), 1);
  (void)nmc::EpTokens(more, chosen, weights, 1).scales(ENDS(rows<4>));
  (void)nmc::EpMoe().weights(ENDS(rows<5>), more);
  (void)nmc::EpMoe().weights(more, ENDS(rows<6>));
  (void)nmc::EpMoe().out(ENDS(rows<7>));
  (void)nmc::EpMoe().workspace(ENDS(more));
  ep.scatter(0, ENDS(rows<9>), chosen);
  ep.scatter(0, more, ENDS(numbers<10>));
  ep.combine(0, ENDS(rows<11>));
  ep.combine_recv(0, ENDS(rows<12>));
  (void)nmc::EpTokens(more.data(), nmc::span<const int32_t>(chosen), nmc::span<float>(weights), 1).scales(nullptr);
  (void)nmc::EpMoe().weights(nullptr, nullptr).out(more.data()).workspace(nmc::span<float>(more)).workspace(more.data(), 8);
}

void submitted(const nmc::Client& client, nmc::Calls& calls, std::string text, std::vector<nmc_status_t> statuses, std::vector<uint64_t> sizes) {
  client.submit_put("key", ENDS(text), 1);
  client.submit_put_slices("key", {ENDS(text), std::string_view(text)}, 1);
  client.submit_put_batch({"key"}, {ENDS(text)}, 1, statuses);
  client.submit_put_batch({"key"}, {text}, 1, ENDS(statuses));
  client.submit_get_batch({"key"}, {text}, 1, ENDS(sizes));
  calls.put("key", ENDS(text));
  calls.put_slices_batch({"key"}, {{ENDS(text), nmc::Bytes(text)}}, statuses);
  calls.put_slices_batch({"key"}, {{text, nmc::Bytes(text)}}, ENDS(statuses));
  calls.get_batch({"key"}, {ENDS(text)}, sizes, statuses);
}

void referred_to(std::vector<nmc::Bytes> each, std::string text, nmc::KvCache& cache, nmc::Buffer buffer, nmc::WritePlan& plan) {
  (void)nmc::PutOptions().metadata(ENDS(text));
  (void)nmc::PutOptions().metadata_each(ENDS(each));
  (void)nmc::PutOptions().metadata_each({});
  (void)nmc::Replicate().metadata(ENDS(text));
  (void)nmc::Replicate().at(ENDS(text));
  (void)nmc::Replicate().at("node", nmc::Media::ssd).at(std::string_view(text));
  (void)nmc::StoreConfig().lend_host_ptr(ENDS(text));
  (void)nmc::KvGroup(1, 1, 1).memory(ENDS(text));
  cache.gather({}, ENDS(text));
  cache.scatter({}, ENDS(buffer));
  plan.push_async(0, {ENDS(text)}, nullptr);
}

using nmc::detail::stays_v;
static_assert(stays_v<std::string&> && stays_v<const std::string&> && !stays_v<std::string> && !stays_v<const std::string>);
static_assert(stays_v<int*> && stays_v<const float* const> && stays_v<std::nullptr_t> && stays_v<std::string_view>);
static_assert(stays_v<nmc::span<int>> && stays_v<const nmc::span<const int>> && stays_v<nmc::Many<nmc::Bytes>>);
static_assert(!stays_v<std::array<int, 2>> && !stays_v<std::array<const int, 2>> && !stays_v<int[2]> && stays_v<int (&)[2]>);
static_assert(!stays_v<std::initializer_list<int>> && !stays_v<nmc::Buffer> && stays_v<nmc::Buffer&> && !stays_v<std::vector<float>>);
#if defined(__cpp_lib_span)
static_assert(stays_v<std::span<int, 2>> && std::is_convertible_v<std::span<int, 2>, nmc::MutableBytes>);
#endif
static_assert(std::is_convertible_v<nmc::span<int>, nmc::MutableBytes> && !std::is_convertible_v<nmc::span<const int>, nmc::MutableBytes>);

// An array of char is no value of the store: it might be text, or a page that begins with a zero.
void puts(const nmc::Store& store, nmc::Bytes value) {
  (void)store.put("key", TEXT(page));
  (void)store.put("key", TEXT(pointer));
  (void)store.put("key", TEXT("text"));
  (void)store.put_slices("key", {value, TEXT(page)});
  (void)store.put_slices("key", {value, TEXT(pointer)});
  (void)store.put_slices("key", {value, TEXT("text")});
  (void)store.put_batch({"one", "two"}, {value, TEXT(page)});
  (void)store.put_batch({"one", "two"}, {value, TEXT(pointer)});
  (void)store.put_batch({"one", "two"}, {value, TEXT("text")});
}
