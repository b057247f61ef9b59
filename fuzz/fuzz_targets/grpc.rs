//! What anybody may ask a master over gRPC.
#![no_main]
#![allow(dead_code, reason = "examples are for tests")]

#[path = "../../crates/nanomc-master/tests/grpc_fuzz/service.rs"]
mod service;

use std::cell::RefCell;

thread_local! {
    static ASKED: RefCell<service::Asked> = RefCell::new(service::Asked::new());
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| ASKED.with_borrow_mut(|asked| asked.run(data, service::ask)));
