/*
 * Sizes, offsets and defaults of the public structs as a C compiler sees them, in the format of `nmc abi`
 * (src/ffi/abi.rs), which is what Rust sees. structs.inc lists them, and is generated from the Rust sources.
 */
#include <nanomc.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
#define ALIGN(type) alignof(type)
#else
#define ALIGN(type) _Alignof(type)
#endif
#define STRUCT(type) printf(#type " size %zu align %zu\n", sizeof(type), ALIGN(type));
#define FIELD(type, field) \
  printf(#type "." #field " at %zu bytes %zu\n", offsetof(type, field), sizeof(((const type*)NULL)->field));
/* Static, so that padding, were there any, is zero. */
#define INIT(type, macro)               \
  do {                                  \
    static const type value = macro;    \
    bytes_of(#macro, &value, sizeof value); \
  } while (0);

static void bytes_of(const char* name, const void* value, size_t size) {
  const unsigned char* bytes = (const unsigned char*)value;
  printf("%s", name);
  for (size_t i = 0; i < size; ++i) printf(" %02x", bytes[i]);
  printf("\n");
}

int main(void) {
#include "structs.inc"
  return 0;
}
