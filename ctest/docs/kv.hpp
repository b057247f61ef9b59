// What the fragments in docs/kv.md take for granted.
#include <nanomc.hpp>

#include <vector>

extern nmc::KvCache cache;
extern nmc::KvSequence seq;
extern nmc::KvGroup layout;
extern std::vector<uint64_t> ids;
extern std::vector<uint32_t> prompt, tokens;
extern std::vector<nmc_status_t> statuses;
extern std::vector<nmc_kv_row_t> rows;
extern std::vector<std::vector<nmc_kv_row_t>> rows_of;
extern std::vector<int32_t> table1;
extern void *device_memory, *staging, *stream;
extern int32_t* pinned_table;
extern const int32_t* blocks;
extern uint64_t request_id, prompt_tokens, state_bytes, bytes;
extern size_t size, width, n;
extern int32_t device;
extern uint32_t layer;
void prefill(const std::vector<uint32_t>& tokens, uint64_t from, const std::vector<int64_t>& slots);
void decode(const int32_t* table);
bool done();
