//! Values that several nouns of the API share.

/// Element types: 32-bit float.
pub const NMC_DTYPE_FP32: u32 = 0;
/// 16-bit brain float.
pub const NMC_DTYPE_BF16: u32 = 1;
/// 16-bit float.
pub const NMC_DTYPE_FP16: u32 = 2;
/// 8-bit float of either kind.
pub const NMC_DTYPE_FP8: u32 = 3;
/// 8-bit integer.
pub const NMC_DTYPE_INT8: u32 = 4;
/// Elements of `element_bytes` bytes that the library knows nothing else about.
pub const NMC_DTYPE_RAW: u32 = 5;

/// Nothing is evicted to make room: when the disk is full, offloading pauses, which `full` of `nmc_tier_stats_t` counts. SSD tier only.
pub const NMC_EVICT_NONE: u32 = 0;
/// What was stored, written or published first goes first.
pub const NMC_EVICT_FIFO: u32 = 1;
/// What was used longest ago: an object, the bucket on disk that was last read longest ago, the cached block of the KV
/// cache that has been idle longest.
pub const NMC_EVICT_LRU: u32 = 2;
/// S3-FIFO: what is new passes a small queue first, and stays if it is used there or returns soon after it left. A scan does
/// not push out what is read often. Store and KV cache only.
pub const NMC_EVICT_S3FIFO: u32 = 3;
/// What was used least, in powers of two; among equals the one idle longest. KV cache only.
pub const NMC_EVICT_LFU: u32 = 4;
/// What has the lowest priority; a priority lapses after its time to live. KV cache only.
pub const NMC_EVICT_PRIORITY: u32 = 5;
