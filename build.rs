//! Generates the C header and the tables of the ABI into the build directory, sets the soname, and chooses the kernels to embed.

#[path = "build/header.rs"]
mod header;
#[path = "build/kernels.rs"]
mod kernels;
#[path = "build/nouns.rs"]
mod nouns;
#[path = "build/structs.rs"]
mod structs;

use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(std::env::var("OUT_DIR").unwrap_or_default());
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnanomc.so.{major}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A call between exports stays in this library: a second copy in the same process would otherwise be called instead.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    for path in ["build.rs", "build", "cbindgen.toml", "src/ffi", "src/base/status.rs"] {
        println!("cargo:rerun-if-changed={path}");
    }
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    if let Err(error) = abi(&root, &out, &version) {
        println!("cargo::error={}", error.replace('\n', " "));
    }
    kernels::emit();
}

/// The header, and the structs as a table for Rust and for C.
fn abi(root: &Path, out: &Path, version: &str) -> structs::Result<()> {
    let abi = header::read(root)?;
    for (name, text) in [
        ("nanomc.h", header::generate(root, version, &abi)?),
        ("structs.rs", abi.rust_table()),
        ("structs.inc", abi.c_table()),
    ] {
        std::fs::write(out.join(name), text).map_err(|e| format!("writing {name}: {e}"))?;
    }
    Ok(())
}
