//! Nano Mooncake: the memory that LLM serving processes share, behind one C header.
//!
//! C and C++ programs use `include/nanomc.h`; the Rust modules are the layers behind it and carry no
//! stability promise. Imports point downward only: `ffi` → `kv`, `tier`, `cluster` → `store`, `ep` → `world` → `rpc`, `mem`, `cuda` → `layout`, `alloc` → `sync`, `base`.

#![cfg_attr(feature = "shuttle", allow(dead_code, reason = "used by what is left out there"))]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64", target_endian = "little")))]
compile_error!("nanomc runs on 64-bit little-endian Linux");

#[cfg(not(feature = "loom"))]
pub mod alloc;
pub mod base;
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub mod cluster;
#[cfg(not(feature = "loom"))]
pub mod cuda;
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
mod ep;
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub mod ffi;
#[cfg(not(feature = "loom"))]
pub mod kv;
#[cfg(not(feature = "loom"))]
pub mod layout;
#[cfg(not(feature = "loom"))]
pub mod mem;
#[cfg(not(feature = "loom"))]
pub mod rpc;
#[cfg(not(feature = "loom"))]
pub mod store;
pub mod sync;
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub mod tier;
#[cfg(not(feature = "loom"))]
pub mod world;
