//! What framed clients ask for is counted, beside what gRPC clients do.

use super::common::{Node, eventually};
use super::{OK, start};
use nanomc::base::status::NMC_ERR_TIMEOUT as TIMEOUT;
use nanomc::cluster::facade::{Cluster, Config};
use nanomc::cluster::types::{NodeId, incarnation_of};
use nanomc_master::proto::v1;
use std::collections::HashMap;
use std::time::Duration;

/// The values of `/metrics`.
fn values(text: &str) -> HashMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap()).map(|(name, value)| (name, value.parse().unwrap())).collect()
}

#[tokio::test]
async fn calls_of_programs_with_the_library_are_counted_and_slow_ones_remembered() {
    let own = start(&["--settle_ms", "0"]);
    let config = |ms| Config {
        masters: vec![own.master.address.clone()],
        patience: Duration::from_millis(ms),
        ..Config::default()
    };
    let client = Cluster::open(config(20_000)).unwrap();
    let text = own.master.get("/metrics");
    assert!(!text.contains("message="), "nobody has asked for anything:\n{text}");
    // More than one, as long as the master does not lead.
    assert_eq!(client.exists(&[b"k"]).unwrap(), [false]);
    let before = own.master.get("/metrics");
    let before = values(&before);
    for _ in 0..3 {
        assert_eq!(client.exists(&[b"k"]).unwrap(), [false]);
    }
    assert!(client.segments().unwrap().is_empty());
    let text = own.master.get("/metrics");
    let found = values(&text);
    let expected = [
        ("nanomc_master_framed_call_seconds_count{message=\"Find\"}", 3.0),
        ("nanomc_master_framed_call_seconds_bucket{message=\"Find\",le=\"+Inf\"}", 3.0),
        ("nanomc_master_framed_call_seconds_count{message=\"ListSegments\"}", 1.0),
        ("nanomc_master_framed_failures_total{message=\"Find\"}", 0.0),
    ];
    for (name, more) in expected {
        let more = before.get(name).unwrap_or(&0.0) + more;
        assert_eq!(found.get(name), Some(&more), "{name} in\n{text}");
    }
    assert!(found["nanomc_master_framed_call_seconds_sum{message=\"Find\"}"] < 20.0, "{text}");
    assert!(!text.contains("method=\"Exists\""), "that is gRPC's");
    assert_eq!(own.master.get("/admin/slow").trim(), "[]");

    // A remove that waits for an owner which does not answer: nobody waits for it any longer.
    let mut node = Node::join(&own.master.address, "n1", None);
    let mut grpc = own.master.client().await;
    let start = v1::PutStartRequest { key: b"k".to_vec(), value_length: 5, ..Default::default() };
    let put = grpc.put_start(start).await.unwrap().into_inner().put_id;
    let fact = node.publish(9, "k", put, 5);
    let name = v1::ReplicaName { node: NodeId::of("n1").0, incarnation: incarnation_of(77), index: 9, epoch: 1 };
    let done = vec![v1::PutDone { name: Some(name), fact }];
    let end = v1::PutEndRequest { key: b"k".to_vec(), put_id: put, done, ..Default::default() };
    assert_eq!(grpc.put_end(end).await.unwrap().into_inner().status_code, OK);
    let hasty = Cluster::open(config(400)).unwrap();
    let removed = hasty.remove(b"k", true).map_err(|error| error.status);
    assert_eq!(removed, Err(TIMEOUT));
    eventually("it is remembered", || {
        let slow = own.master.get("/admin/slow");
        async move { slow.contains("{\"method\":\"Remove\",\"protocol\":\"framed\",\"ms\":") }
    })
    .await;
    let text = own.master.get("/metrics");
    let found = values(&text);
    assert!(found["nanomc_master_framed_failures_total{message=\"Remove\"}"] >= 1.0, "{text}");
    assert!(found["nanomc_master_framed_call_seconds_sum{message=\"Remove\"}"] >= 0.1, "{text}");
    assert_eq!(found["nanomc_master_grpc_call_seconds_count{method=\"PutStart\"}"], 1.0, "{text}");
    assert!(!text.contains("message=\"PutStart\""), "what gRPC clients ask for is not counted twice:\n{text}");
}
