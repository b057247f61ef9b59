//! `include/nanomc.h` is what the sources say. `make bless` (NMC_BLESS=1) rewrites it after an intended change.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test reports by failing")]

const GENERATED: &str = include_str!(concat!(env!("OUT_DIR"), "/nanomc.h"));

fn committed_path() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("include/nanomc.h")
}

#[test]
fn the_committed_header_is_up_to_date() {
    if std::env::var_os("NMC_BLESS").is_some() {
        std::fs::write(committed_path(), GENERATED).expect("writing the header");
    }
    let committed = std::fs::read_to_string(committed_path()).expect("include/nanomc.h");
    let differs = GENERATED.lines().zip(committed.lines()).position(|(a, b)| a != b);
    assert!(
        GENERATED == committed,
        "include/nanomc.h differs from the sources, first in line {}; run `make bless` and read the diff",
        differs.map_or_else(|| "(length)".to_owned(), |n| (n + 1).to_string())
    );
}

#[test]
fn version_macros_come_from_the_manifest() {
    let manifest = include_str!("../Cargo.toml");
    let version = manifest.lines().find_map(|l| l.strip_prefix("version = \"")).and_then(|l| l.strip_suffix('"'));
    let version = version.expect("a version in Cargo.toml");
    let mut parts = version.split('.');
    for name in ["MAJOR", "MINOR", "PATCH"] {
        let line = format!("#define NMC_VERSION_{name} {}\n", parts.next().expect("three parts"));
        assert!(GENERATED.contains(&line), "{line}");
    }
    assert!(GENERATED.contains(&format!("#define NMC_VERSION_STRING \"{version}\"\n")));
}

#[test]
fn every_function_states_its_statuses_and_thread_safety() {
    for (at, _) in GENERATED.match_indices("\nnmc_status_t nmc_") {
        let before = &GENERATED[..at];
        let doc = &before[before.rfind("/**").expect("a comment")..];
        let name = GENERATED[at + 1..].split(['(', ' ']).nth(1).unwrap_or_default();
        assert!(doc.trim_end().ends_with("*/"), "{name} has no comment");
        let doc = doc.replace("\n *", "").to_lowercase();
        let statuses = ["statuses", "returns `nmc_", "like `nmc_"];
        assert!(statuses.iter().any(|t| doc.contains(t)), "{name}: which statuses?");
        let threads = ["thread-safe", "any thread", "one thread", "like `nmc_", "collective", "all ranks"];
        assert!(threads.iter().any(|t| doc.contains(t)), "{name}: which threads?");
    }
}
