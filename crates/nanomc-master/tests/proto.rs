//! What is generated is committed: this fails when it is not what the .proto files say. `NMC_BLESS=1` writes it anew.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may")]

use std::path::Path;

const FILES: [(&str, &str, &str, bool); 2] = [
    ("../../proto", "nanomc/master/v1/master.proto", "nanomc.master.v1.rs", true),
    ("proto", "etcd.proto", "etcdserverpb.rs", false),
];

#[test]
fn generated_code_is_what_the_proto_files_say() {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (include, file, name, server) in FILES {
        let out = tempfile::tempdir().expect("a directory");
        let files = protox::compile([file], [crate_root.join(include)]).unwrap_or_else(|e| panic!("{file}: {e:?}"));
        tonic_prost_build::configure()
            .build_transport(false)
            .build_server(server)
            .out_dir(out.path())
            .compile_fds(files)
            .expect("code is generated");
        let fresh = std::fs::read_to_string(out.path().join(name)).expect("what was generated");
        let committed = crate_root.join("src/proto").join(name);
        if std::env::var_os("NMC_BLESS").is_some() {
            std::fs::write(&committed, &fresh).expect("it is written");
        }
        let old = std::fs::read_to_string(&committed).unwrap_or_default();
        assert!(
            old == fresh,
            "src/proto/{name} is not what {file} says: NMC_BLESS=1 cargo test -p nanomc-master --test proto"
        );
    }
}
