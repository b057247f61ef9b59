//! Nano Mooncake: the memory that LLM serving processes share, behind one C header.
//!
//! C and C++ programs use `include/nanomc.h`; the Rust modules are the layers behind it and carry no
//! stability promise. Imports point downward only: `ffi` → `kv`, `tier`, `cluster` → `store`, `ep` → `world` → `rpc`, `mem`, `cuda` → `layout`, `alloc` → `sync`, `base`.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64", target_endian = "little")))]
compile_error!("nanomc runs on 64-bit little-endian Linux");

pub mod alloc;
pub mod base;
pub mod cluster;
pub mod cuda;
mod ep;
pub mod ffi;
pub mod kv;
pub mod layout;
pub mod mem;
pub mod rpc;
pub mod store;
pub mod sync;
pub mod tier;
pub mod world;
