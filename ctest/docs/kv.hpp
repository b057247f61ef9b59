// What the fragments in docs/kv.md take for granted.
#include <nanomc.hpp>
#include <vector>
