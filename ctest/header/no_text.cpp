// What a value of the store cannot be made from: text and pages look the same there. -DVALUE=<expression> is tried in the
// places that take values; without it the same calls compile.
#include "nanomc.hpp"

char page[4096];
const char* pointer = page;

#ifndef VALUE
#define VALUE nmc::bytes(page)
#endif

void puts(const nmc::Store& store) {
  (void)store.put("key", VALUE);
  (void)store.put_slices("key", {VALUE, VALUE});
  (void)store.put_batch({"one", "two"}, {VALUE, VALUE});
}
