//! What happens to the agent of a node.
#![no_main]
#![allow(dead_code, reason = "examples are for tests")]

#[path = "../../tests/cluster_fuzz/counted.rs"]
mod counted;
#[path = "../../tests/cluster_fuzz/frame.rs"]
mod frame;
#[path = "../../tests/cluster_fuzz/node.rs"]
mod node;
#[path = "../../tests/cluster_fuzz/script.rs"]
mod script;
#[path = "../../tests/cluster_fuzz/shelf.rs"]
mod shelf;

libfuzzer_sys::fuzz_target!(|data: &[u8]| node::body(data));
