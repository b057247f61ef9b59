//! A machine without CUDA, or with a driver that lacks something, gets a sentence and not a crash.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test reports by failing")]

use nanomc::base::status::NMC_ERR_UNSUPPORTED;
use std::process::Command;

/// Not a test of its own: prints what the probe says in a process with another library path.
#[test]
fn child() {
    if std::env::var_os("NMC_CASE").is_none() {
        return;
    }
    let probe = nanomc::cuda::probe();
    println!("library={} missing={}", probe.library, probe.missing_symbols.len());
    println!("problem={}", probe.problem.clone().unwrap_or_default());
    match nanomc::cuda::require() {
        Ok(()) => println!("usable"),
        Err(e) => println!("status={} {}", e.status, e.status == NMC_ERR_UNSUPPORTED),
    }
}

fn probe_with(library_path: &std::path::Path) -> String {
    let out = Command::new(std::env::current_exe().expect("exe"))
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("NMC_CASE", "1")
        .env("LD_LIBRARY_PATH", library_path)
        .output()
        .expect("child");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    text
}

fn fake_driver(dir: &std::path::Path, source: &str) {
    std::fs::write(dir.join("fake.c"), source).expect("source");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o", "libcuda.so.1", "fake.c"])
        .current_dir(dir)
        .status()
        .expect("a C compiler");
    assert!(built.success());
    std::fs::copy(dir.join("libcuda.so.1"), dir.join("libcuda.so")).expect("copy");
}

#[test]
fn no_driver_is_a_sentence() {
    let dir = tempfile::tempdir().expect("dir");
    let text = probe_with(dir.path());
    if text.contains("library=true") {
        eprintln!("skipped: this machine has a CUDA driver outside the library path");
        return;
    }
    assert!(text.contains("status=-5 true") && text.contains("problem=") && text.contains("libcuda"), "{text}");
}

#[test]
fn a_driver_without_the_symbols_is_a_sentence() {
    let dir = tempfile::tempdir().expect("dir");
    fake_driver(dir.path(), "int cuInit(unsigned f) { (void)f; return 0; }\n");
    let text = probe_with(dir.path());
    assert!(text.contains("library=true") && !text.contains("missing=0"), "{text}");
    assert!(text.contains("status=-5 true") && text.contains("cuMem"), "it names what is missing: {text}");
}
