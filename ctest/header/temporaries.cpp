// What is used after the call that takes it cannot be a container that ends with the statement: the compiler says so. One of the places below
// gets one with -DTEMPORARY=<number>; without it all of them have names, and the same calls compile.
#include <array>
#include <string>
#include <vector>

#include "nanomc.hpp"

#ifndef TEMPORARY
#define TEMPORARY 0
#endif

// The same, as what has a name or as what is about to end.
template <int place, class T>
std::conditional_t<place == TEMPORARY, T&&, T&> give(T& value) {
  return static_cast<std::conditional_t<place == TEMPORARY, T&&, T&>>(value);
}

void tokens(const nmc::Ep& ep, std::vector<float> rows, std::vector<int32_t> numbers, std::array<float, 2> weights) {
  (void)nmc::EpTokens(give<1>(rows), give<2>(numbers), give<3>(weights), 1).scales(give<4>(rows));
  (void)nmc::EpMoe().weights(give<5>(rows), give<6>(rows)).out(give<7>(rows)).workspace(give<8>(rows));
  ep.scatter(0, give<9>(rows), give<10>(numbers));
  ep.combine(0, give<11>(rows));
  ep.combine_recv(0, give<12>(rows));
  (void)nmc::EpTokens(rows.data(), nmc::span<const int32_t>(numbers), nmc::span<float>(weights), 1).scales(nullptr);
  (void)nmc::EpMoe().weights(nullptr, nullptr).out(rows.data()).workspace(nmc::span<float>(rows)).workspace(rows.data(), 8);
}

void submitted(const nmc::Client& client, nmc::Calls& calls, std::string text, std::vector<nmc_status_t> statuses, std::vector<uint64_t> sizes) {
  client.submit_put("key", give<13>(text), 1);
  client.submit_put_slices("key", {give<14>(text), std::string_view(text)}, 1);
  client.submit_put_batch({"key"}, {give<15>(text)}, 1, give<16>(statuses));
  client.submit_get_batch({"key"}, {text}, 1, give<17>(sizes));
  calls.put("key", give<18>(text));
  calls.put_slices_batch({"key"}, {{give<19>(text), nmc::Bytes(text)}}, give<20>(statuses));
  calls.get_batch({"key"}, {give<21>(text)}, sizes, statuses);
}

void referred_to(const std::vector<nmc::Bytes>& each, std::string text, nmc::KvCache& cache, nmc::Buffer buffer, nmc::WritePlan& plan) {
  std::vector<nmc::Bytes> list = each;
  (void)nmc::PutOptions().metadata(give<22>(text)).metadata_each(give<23>(list)).metadata_each({});
  (void)nmc::Replicate().metadata(give<24>(text)).at(give<25>(text)).at("node", nmc::Media::ssd).at(std::string_view(text));
  (void)nmc::StoreConfig().lend_host_ptr(give<26>(text));
  (void)nmc::KvGroup(1, 1, 1).memory(give<27>(text));
  cache.gather({}, give<28>(text));
  cache.scatter({}, give<29>(buffer));
  plan.push_async(0, {give<30>(text)}, nullptr);
}

using nmc::detail::stays_v;
static_assert(stays_v<std::string&> && stays_v<const std::string&> && !stays_v<std::string> && !stays_v<const std::string>);
static_assert(stays_v<int*> && stays_v<const float* const> && stays_v<std::nullptr_t> && stays_v<std::string_view>);
static_assert(stays_v<nmc::span<int>> && stays_v<const nmc::span<const int>> && stays_v<nmc::Many<nmc::Bytes>>);
static_assert(!stays_v<std::array<int, 2>> && !stays_v<std::array<const int, 2>> && !stays_v<int[2]> && stays_v<int (&)[2]>);
static_assert(!stays_v<std::initializer_list<int>> && !stays_v<nmc::Buffer> && stays_v<nmc::Buffer&>);
#if defined(__cpp_lib_span)
static_assert(stays_v<std::span<int, 2>> && std::is_convertible_v<std::span<int, 2>, nmc::MutableBytes>);
#endif
static_assert(std::is_convertible_v<nmc::span<int>, nmc::MutableBytes> && !std::is_convertible_v<nmc::span<const int>, nmc::MutableBytes>);
