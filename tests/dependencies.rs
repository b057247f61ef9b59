//! What this workspace is built from: crates of the public registry, of chosen versions, under licences that a user of the library can
//! live with; and the library itself has no runtime for network programs in it.
#![allow(clippy::expect_used, clippy::panic, reason = "a test reports by failing")]

use serde_json::Value;
use spdx::{Expression, ParseMode};
use std::process::Command;

const LICENCES: &[&str] = &["Apache-2.0", "MIT", "ISC", "BSL-1.0", "Unicode-3.0"];
/// Crates with another licence, and why that does no harm.
const EXCEPTIONS: &[(&str, &str)] = &[
    // Runs at build time only; nothing of it is in the library.
    ("cbindgen", "MPL-2.0"),
    // Part of rustls. Like the others it wants its copyright named, and no more.
    ("subtle", "BSD-3-Clause"),
];
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// What belongs to nanomc-master, and not to the library.
const OUTSIDE: &[&str] = &["tokio", "tonic", "hyper", "tokio-rustls"];

fn cargo(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO")).current_dir(env!("CARGO_MANIFEST_DIR")).args(args).output().expect("cargo");
    assert!(out.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8")
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or("")
}

/// What is wrong with a package as `cargo metadata` describes it.
fn problems(package: &Value) -> Vec<String> {
    let name = text(package, "name");
    let allowed = |licence: &str| LICENCES.contains(&licence) || EXCEPTIONS.contains(&(name, licence));
    let mut found = Vec::new();
    match Expression::parse_mode(text(package, "license"), ParseMode::LAX) {
        Ok(licence)
            if licence
                .evaluate(|one| one.license.id().is_some_and(|id| one.addition.is_none() && allowed(id.name))) => {}
        Ok(licence) => found.push(format!("{name}: licence {licence}")),
        Err(e) => found.push(format!("{name}: licence {:?}: {}", text(package, "license"), e.reason)),
    }
    match package["source"].as_str() {
        None => {
            let wild = package["dependencies"].as_array().into_iter().flatten();
            let wild = wild.filter(|other| text(other, "req") == "*" && other["path"].is_null());
            found.extend(wild.map(|other| format!("{name} takes any version of {}", text(other, "name"))));
        }
        Some(source) if source != REGISTRY => found.push(format!("{name} comes from {source}")),
        Some(_) => {}
    }
    found
}

#[test]
fn crates_are_of_the_registry_and_of_licences_that_do_no_harm() {
    for platform in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        let listed =
            cargo(&["metadata", "--locked", "--format-version=1", "--all-features", "--filter-platform", platform]);
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        let packages = listed["packages"].as_array().expect("packages");
        assert!(
            packages.iter().any(|package| text(package, "name") == "nanomc-master"),
            "all of the workspace is looked at"
        );
        let found: Vec<String> = packages.iter().flat_map(problems).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}

#[test]
fn control_what_is_not_allowed_is_seen() {
    let of = |name: &str, license: &str, source: Value, req: &str| {
        let dependency = serde_json::json!({ "name": "other", "req": req, "path": null });
        problems(
            &serde_json::json!({ "name": name, "license": license, "source": source, "dependencies": [dependency] }),
        )
    };
    let registry = || Value::from(REGISTRY);
    assert!(of("a", "MIT/Apache-2.0", registry(), "*").is_empty());
    assert!(of("a", "GPL-3.0 OR MIT", registry(), "1").is_empty());
    assert!(of("cbindgen", "MPL-2.0", registry(), "1").is_empty());
    for (licence, source) in [
        ("MPL-2.0", registry()),
        ("GPL-3.0-only", registry()),
        ("MIT AND GPL-3.0-only", registry()),
        ("Apache-2.0 WITH LLVM-exception", registry()),
        ("", registry()),
        ("MIT", Value::from("git+https://example.com/a")),
    ] {
        assert_eq!(of("a", licence, source, "1").len(), 1, "{licence}");
    }
    assert_eq!(of("a", "MIT", Value::Null, "*").len(), 1);
}

#[test]
fn the_library_has_no_network_runtime() {
    let of =
        |package: &str| cargo(&["tree", "--locked", "-e", "normal", "--prefix", "none", "-f", "{p}", "-p", package]);
    let has = |tree: &str, name: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
    let (library, master) = (of("nanomc"), of("nanomc-master"));
    for name in OUTSIDE {
        assert!(!has(&library, name), "the library has {name} in it:\n{library}");
        assert!(has(&master, name), "nanomc-master is looked at in the right way: it has {name}");
    }
}
