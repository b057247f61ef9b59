//! Nano Mooncake: the memory that LLM serving processes share, behind one C header.
//!
//! C and C++ programs use `include/nanomc.h`; the Rust modules are the layers behind it and carry no
//! stability promise. Imports point downward only: `ffi` → `kv`, `tier` → `store`, `ep` → `world` → `rpc`, `mem`, `cuda` → `layout`, `alloc` → `sync`, `base`.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64", target_endian = "little")))]
compile_error!("nanomc runs on 64-bit little-endian Linux");

#[cfg(not(loom))]
pub mod alloc;
pub mod base;
#[cfg(not(loom))]
pub mod cuda;
#[cfg(not(loom))]
mod ep;
#[cfg(not(loom))]
pub mod ffi;
#[cfg(not(loom))]
pub mod kv;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub mod mem;
#[cfg(not(loom))]
pub mod rpc;
#[cfg(not(loom))]
pub mod store;
pub mod sync;
#[cfg(not(loom))]
pub mod tier;
#[cfg(not(loom))]
pub mod world;
