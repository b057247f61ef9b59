//! Generates `src/proto` of nanomc-master from the .proto files. The first line of each file has the xxh64 of what it was made from,
//! and of what follows: `tests/proto.rs` compares both, so that checking needs no generator.

use std::error::Error;
use std::fs;
use std::path::Path;
use xxhash_rust::xxh64::xxh64;

/// Where to look, the file, what is made of it, and whether for servers too.
const FILES: [(&str, &str, &str, bool); 2] = [
    ("../../proto", "nanomc/master/v1/master.proto", "nanomc.master.v1.rs", true),
    ("proto", "etcd.proto", "etcdserverpb.rs", false),
];

fn main() -> Result<(), Box<dyn Error>> {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no crate around this one")?;
    for (include, file, name, server) in FILES {
        let out = tempfile::tempdir()?;
        let files = protox::compile([file], [crate_root.join(include)])?;
        let generator = tonic_prost_build::configure().build_transport(false).build_server(server);
        generator.out_dir(out.path()).compile_fds(files)?;
        let code = fs::read_to_string(out.path().join(name))?;
        let (from, of) = (xxh64(&fs::read(crate_root.join(include).join(file))?, 0), xxh64(code.as_bytes(), 0));
        fs::write(crate_root.join("src/proto").join(name), format!("// xxh64 {from:016x} {of:016x}\n{code}"))?;
    }
    Ok(())
}
