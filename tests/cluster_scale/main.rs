//! What the master of a large cluster has to do: the real directory and the real agents of up to 1,000 nodes, in one thread and in simulated
//! time, with the real messages between them. The stores are simulated: what a node has follows from its number.
//!
//! `docs/scaling.md` has the tables, and says how to print them. In every run of the tests a small cluster goes through the same, so that
//! the figures can be had again; no time is asserted.
#![allow(unsafe_code, reason = "an allocator and a clock of the kernel")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "figures that are small, for people")]

mod counted;
mod measure;
mod shelf;
mod sim;
mod sockets;
mod tables;

use measure::{Alone, Size, measure};
use nanomc::base::status::NMC_ERR_NOT_FOUND;
use nanomc::cluster::wire::{Find, Message};
use shelf::key;
use sim::{LEASE_MS, Sim};
use std::collections::BTreeMap;
use tables::tables;

const BEGIN: &str = "<!-- scale:begin -->\n";
const END: &str = "<!-- scale:end -->\n";

fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned()));
    let date = std::process::Command::new("date").args(["-u", "+%F"]).output().unwrap().stdout;
    let build = if cfg!(debug_assertions) { ", debug build" } else { "" };
    format!(
        "{}, one core of it{build}, {}",
        model.unwrap_or_else(|| "unknown CPU".into()),
        String::from_utf8_lossy(&date).trim()
    )
}

#[test]
fn a_small_cluster_goes_through_everything_that_is_measured() {
    let size = Size { nodes: 4, objects: 1000, calls: 64, together: 8, idle_ms: 2000 };
    let row = measure(size);
    // What can be counted; nothing of what takes time.
    assert!(
        (4.0..=6.5).contains(&row.put_messages),
        "three messages and their answers, or owners tell of several: {row:?}"
    );
    assert!(row.idle_messages > 4.0 && row.copies > 0.0 && row.remove_messages >= 2.0, "{row:?}");
    assert!(row.change_s * 1e3 >= LEASE_MS as f64, "nobody leads before the lease is over: {row:?}");
    let text = tables(&[row], &BTreeMap::from([(4, Alone::of(4, 40))]), &[Size { objects: 10_000_000, ..size }]);
    assert!(text.contains("| 4 | 1000 | ") && text.contains("4 nodes with 10 M objects were not simulated"), "{text}");
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/scaling.md")).unwrap();
    for table in text.lines().filter(|line| line.starts_with("**") || line.starts_with("| nodes")) {
        assert!(page.contains(table), "docs/scaling.md was printed by another version: it has no\n{table}");
    }
}

#[test]
fn control_a_node_that_says_nothing_is_missed() {
    // The same cluster with a node whose messages are lost: what the test above counts on does not happen by itself.
    let mut sim = Sim::new(4, 1000);
    sim.elect(0, 1);
    sim.settle(0);
    let lost = sim.nodes.pop().unwrap();
    sim.pass(12_000);
    assert_eq!((sim.active(0), sim.nodes.len()), (3, 3));
    let sought = key(3, 0);
    let answers = sim.ask(0, vec![Find { keys: vec![sought], missed: Vec::new() }.into()]);
    assert!(
        matches!(&answers[..], [Message::Found(found)] if found.keys[0].status == NMC_ERR_NOT_FOUND),
        "{answers:?}"
    );
    drop(lost);
}

/// Prints the tables; with `NMC_BLESS=1` also into docs/scaling.md.
#[test]
#[ignore = "takes minutes and gigabytes: prints the tables of docs/scaling.md"]
fn the_tables_of_the_scaling_page() {
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    let most: usize = std::env::var("NMC_SCALE_OBJECTS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000_000);
    let alone: BTreeMap<usize, Alone> = [10, 100, 1000].map(|nodes| (nodes, Alone::of(nodes, 100_000))).into();
    for objects in [100_000, 1_000_000, 10_000_000] {
        for nodes in [10, 100, 1000] {
            let size = Size { nodes, objects, calls: 4096, together: 16, idle_ms: 3000 };
            // Twice what an object may take.
            if objects > most || (objects as u64) * 800 > available_bytes() {
                left_out.push(size);
                continue;
            }
            let row = measure(size);
            eprintln!("{row:?}");
            rows.push(row);
        }
    }
    let text = format!("{}.\n{}", machine(), tables(&rows, &alone, &left_out));
    println!("{text}");
    if std::env::var_os("NMC_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/scaling.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (head, rest) = page.split_once(BEGIN).unwrap();
        let (_, tail) = rest.split_once(END).unwrap();
        std::fs::write(path, format!("{head}{BEGIN}{text}{END}{tail}")).unwrap();
    }
}
