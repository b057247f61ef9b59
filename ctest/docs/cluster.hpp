// What the fragments in docs/cluster.md take for granted.
#include <nanomc.hpp>

#include <string>
#include <vector>

extern nmc::Client client;
extern nmc::Store store;
extern std::vector<char> buffer;
extern std::vector<std::string> keys;
extern std::vector<std::vector<char>> rooms;
void handle(uint64_t token, nmc_status_t status, uint64_t bytes);
