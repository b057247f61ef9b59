//! Generates the C header into the build directory, sets the soname, and chooses the kernels to embed.
#![allow(clippy::expect_used, reason = "a build script reports by failing")]

#[path = "build/header.rs"]
mod header;
#[path = "build/kernels.rs"]
mod kernels;

use std::path::PathBuf;

fn main() {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(std::env::var("OUT_DIR").unwrap_or_default());
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnanomc.so.{major}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A call between exports stays in this library: a second copy in the same process would otherwise be called instead.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build/header.rs");
    for source in header::SOURCES {
        println!("cargo:rerun-if-changed={source}");
    }
    println!("cargo:rerun-if-changed=cbindgen.toml");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let text = header::generate(&root, &version);
    std::fs::write(out.join("nanomc.h"), text).expect("writing the generated header");
    kernels::emit();
}
