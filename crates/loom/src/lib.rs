//! The sources of the library that loom looks at, compiled with its atomics: `cargo test -p nanomc-loom`.
#![cfg(test)]
#![allow(dead_code, unused_imports, reason = "used by what is left out here")]

#[path = "../../../src/base/mod.rs"]
pub mod base;
#[path = "../../../src/sync/mod.rs"]
pub mod sync;
