//! Bytes as they may come from anybody.
#![no_main]
#![allow(dead_code, reason = "some of it is for other targets")]

#[path = "../../tests/cluster_fuzz/counted.rs"]
mod counted;
#[path = "../../tests/cluster_fuzz/frame.rs"]
mod frame;

libfuzzer_sys::fuzz_target!(|data: &[u8]| frame::body(data));
