//! What happens to a master that leads.
#![no_main]
#![allow(dead_code, reason = "examples are for tests")]

#[path = "../../tests/cluster_fuzz/counted.rs"]
mod counted;
#[path = "../../tests/cluster_fuzz/directory.rs"]
mod directory;
#[path = "../../tests/cluster_fuzz/frame.rs"]
mod frame;
#[path = "../../tests/cluster_fuzz/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|data: &[u8]| directory::body(data));
