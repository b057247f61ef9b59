// What the fragments in docs/cluster.md take for granted.
#include <nanomc.hpp>

#include <vector>

extern nmc::Client client;
extern nmc::Store store;
extern std::vector<char> buffer;
