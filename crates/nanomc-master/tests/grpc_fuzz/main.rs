//! Whatever anybody asks over gRPC and HTTP: the body of the fuzz target in `fuzz/`, here with inputs by chance that are the same in every run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may"
)]

#[path = "../../../../tests/cluster_fuzz/mutate.rs"]
mod mutate;
mod service;

use nanomc_master::grpc::convert;
use nanomc_master::proto::v1;
use prost::Message as _;
use service::Asked;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn a_master_outlives_what_it_is_asked() {
    let mut asked = Asked::new();
    mutate::each(4, mutate::many(2_000), &service::examples(), |data| asked.run(data, service::ask));
}

#[test]
fn control_a_service_that_trusts_what_it_is_asked_is_found() {
    let trusting = |asked: &mut Asked, kind: u8, bytes: &[u8]| {
        if kind == 4
            && let Ok(request) = v1::PutStartRequest::decode(bytes)
        {
            convert::put_start(request).unwrap();
        }
        service::ask(asked, kind, bytes);
    };
    let mut asked = Asked::new();
    let all = || mutate::each(4, 2_000, &service::examples(), |data| asked.run(data, trusting));
    assert!(catch_unwind(AssertUnwindSafe(all)).is_err());
}

#[test]
fn whatever_is_asked_over_http_is_answered() {
    let asked = Asked::new();
    let mut met = std::collections::BTreeMap::new();
    mutate::each(5, mutate::many(10_000), &service::targets(), |target| {
        let Some(status) = asked.look(target) else { return };
        assert!(matches!(status.as_u16(), 200 | 400 | 404), "{status}: {}", target.escape_ascii());
        *met.entry(status.as_u16()).or_insert(0) += 1;
    });
    assert!(met.len() == 3 && met.values().all(|n| *n > 100), "{met:?}");
}

#[test]
fn control_a_page_that_trusts_its_cursor_is_found() {
    let trusting = |target: &[u8]| {
        let text = std::str::from_utf8(target).unwrap_or_default();
        if let Some((_, cursor)) = text.split_once("/admin/keys?cursor=") {
            cursor.split('&').next().unwrap().parse::<u64>().unwrap();
        }
    };
    let all = || mutate::each(5, 10_000, &service::targets(), trusting);
    assert!(catch_unwind(all).is_err());
}

/// See the test of this name in `tests/cluster_fuzz`.
#[test]
#[ignore = "writes files"]
fn corpus() {
    let root = std::path::PathBuf::from(std::env::var_os("NMC_FUZZ_CORPUS").expect("NMC_FUZZ_CORPUS says where to"));
    std::fs::create_dir_all(root.join("grpc")).unwrap();
    for (n, example) in service::examples().iter().enumerate() {
        std::fs::write(root.join("grpc").join(format!("example-{n:02}")), example).unwrap();
    }
}
