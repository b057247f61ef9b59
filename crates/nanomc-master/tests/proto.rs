//! What is generated is committed: this fails when it is not what the .proto files say, or was edited. `make bless` writes it anew.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may")]

use std::path::Path;
use xxhash_rust::xxh64::xxh64;

/// Whether `code` is what was generated from `proto`: its first line says what it was made from, and what follows it.
fn is_made_of(code: &str, proto: &[u8]) -> bool {
    code.split_once('\n').is_some_and(|(first, rest)| {
        first == format!("// xxh64 {:016x} {:016x}", xxh64(proto, 0), xxh64(rest.as_bytes(), 0))
    })
}

#[test]
fn generated_code_is_what_the_proto_files_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (file, name) in
        [("../../proto/nanomc/master/v1/master.proto", "nanomc.master.v1.rs"), ("proto/etcd.proto", "etcdserverpb.rs")]
    {
        let proto = std::fs::read(root.join(file)).expect("the .proto file");
        let code = std::fs::read_to_string(root.join("src/proto").join(name)).expect("what was generated");
        assert!(is_made_of(&code, &proto), "src/proto/{name} is not what {file} says: make bless");
        // Controls: one of the two was edited.
        assert!(!is_made_of(&(code.clone() + " "), &proto));
        assert!(!is_made_of(&code, &[&proto[..], b" "].concat()));
    }
}
