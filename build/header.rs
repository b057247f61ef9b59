//! The C header, from the Rust sources of the ABI.

use std::path::Path;

/// The files that make up the ABI.
pub const SOURCES: &[&str] = &[
    "src/base/status.rs",
    "src/ffi/basic.rs",
    "src/ffi/common.rs",
    "src/ffi/log.rs",
    "src/ffi/world_types.rs",
    "src/ffi/world.rs",
    "src/ffi/master.rs",
    "src/ffi/store_types.rs",
    "src/ffi/store.rs",
    "src/ffi/store_access.rs",
    "src/ffi/store_service.rs",
    "src/ffi/store_batch.rs",
    "src/ffi/store_stream.rs",
    "src/ffi/ep_types.rs",
    "src/ffi/ep.rs",
    "src/ffi/blocks.rs",
    "src/ffi/kv_types.rs",
    "src/ffi/kv.rs",
    "src/ffi/kv_seq.rs",
    "src/ffi/kv_state.rs",
    "src/ffi/kv_tables.rs",
    "src/ffi/kv_move.rs",
    "src/ffi/kv_copy.rs",
    "src/ffi/kv_virtual.rs",
];

/// The text of `include/nanomc.h` for this version of the library.
pub fn generate(root: &Path, version: &str) -> String {
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let initialisers = config.after_includes.take().unwrap_or_default();
    config.after_includes = Some(format!("{}\n{}", version_macros(version), initialisers.trim_end()));
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root.join(source));
    }
    let mut bytes = Vec::new();
    builder.generate().expect("cbindgen could not read the ABI").write(&mut bytes);
    String::from_utf8(bytes).expect("the header is text")
}

fn version_macros(version: &str) -> String {
    let mut parts = version.split(['.', '-', '+']);
    let mut next = || parts.next().unwrap_or("0");
    let (major, minor, patch) = (next(), next(), next());
    format!(
        "\n/* Version of this header, from Cargo.toml. */\n\
         #define NMC_VERSION_MAJOR {major}\n#define NMC_VERSION_MINOR {minor}\n#define NMC_VERSION_PATCH {patch}\n\
         #define NMC_VERSION_STRING \"{version}\""
    )
}
