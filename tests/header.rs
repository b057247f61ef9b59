//! `include/nanomc.h` and `ctest/abi/structs.inc` are what the sources say, and what the sources cannot say in C fails the
//! build. `make bless` (NMC_BLESS=1) rewrites both after an intended change.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test reports by failing")]

#[path = "../build/structs.rs"]
#[allow(dead_code, reason = "the build script uses the rest")]
mod structs;

use std::collections::BTreeSet;
use structs::{Abi, Kind};

const HEADER: &str = include_str!(concat!(env!("OUT_DIR"), "/nanomc.h"));
const STRUCTS: &str = include_str!(concat!(env!("OUT_DIR"), "/structs.inc"));
/// Headers of which comments speak too.
const OTHERS: &[&str] = &[
    include_str!("../include/nanomc/layout.h"),
    include_str!("../include/nanomc/device.cuh"),
    include_str!("../include/nanomc/ep.cuh"),
];

fn up_to_date(generated: &str, committed: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(committed);
    if std::env::var_os("NMC_BLESS").is_some() {
        std::fs::write(&path, generated).expect("writing what was generated");
    }
    let text = std::fs::read_to_string(path).expect(committed);
    let differs = generated.lines().zip(text.lines()).position(|(a, b)| a != b);
    assert!(
        generated == text,
        "{committed} differs from the sources, first in line {}; run `make bless` and read the diff",
        differs.map_or_else(|| "(length)".to_owned(), |n| (n + 1).to_string())
    );
}

#[test]
fn the_committed_header_is_up_to_date() {
    up_to_date(HEADER, "include/nanomc.h");
}

#[test]
fn the_committed_list_of_structs_is_up_to_date() {
    up_to_date(STRUCTS, "ctest/abi/structs.inc");
}

#[test]
fn version_macros_come_from_the_manifest() {
    let manifest = include_str!("../Cargo.toml");
    let version = manifest.lines().find_map(|l| l.strip_prefix("version = \"")).and_then(|l| l.strip_suffix('"'));
    let version = version.expect("a version in Cargo.toml");
    let mut parts = version.split('.');
    for name in ["MAJOR", "MINOR", "PATCH"] {
        let line = format!("#define NMC_VERSION_{name} {}\n", parts.next().expect("three parts"));
        assert!(HEADER.contains(&line), "{line}");
    }
    assert!(HEADER.contains(&format!("#define NMC_VERSION_STRING \"{version}\"\n")));
}

#[test]
fn every_function_states_its_statuses_and_thread_safety() {
    for (at, _) in HEADER.match_indices("\nnmc_status_t nmc_") {
        let before = &HEADER[..at];
        let doc = &before[before.rfind("/**").expect("a comment")..];
        let name = HEADER[at + 1..].split(['(', ' ']).nth(1).unwrap_or_default();
        assert!(doc.trim_end().ends_with("*/"), "{name} has no comment");
        let doc = doc.replace("\n *", "").to_lowercase();
        let statuses = ["statuses", "returns `nmc_", "like `nmc_"];
        assert!(statuses.iter().any(|t| doc.contains(t)), "{name}: which statuses?");
        let threads = ["thread-safe", "any thread", "one thread", "like `nmc_", "collective", "all ranks"];
        assert!(threads.iter().any(|t| doc.contains(t)), "{name}: which threads?");
    }
}

/// Words that look like names of the API, each with what follows it.
fn names(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split_inclusive(move |c| !is_name(c)).filter_map(move |piece| {
        let name = piece.trim_end_matches(|c| !is_name(c));
        (name.starts_with("nmc_") || name.starts_with("NMC_")).then(|| (name, &piece[name.len()..]))
    })
}

/// Comments and code, apart.
fn apart(text: &str) -> (String, String) {
    let (mut comments, mut code, mut rest) = (String::new(), String::new(), text);
    while let Some((before, after)) = rest.split_once("/*") {
        let (comment, behind) = after.split_once("*/").expect("the comment ends");
        code.push_str(before);
        comments.push_str(comment);
        rest = behind;
    }
    (comments, code + rest)
}

/// Names that a comment speaks of and the API does not have; a star stands for the rest of a name.
fn stale(comments: &str, code: &str) -> Vec<String> {
    let known: BTreeSet<_> = names(code).map(|(name, _)| name).collect();
    let is_known = |(name, after): &(&str, &str)| {
        let begins = after.starts_with('*') || name.ends_with('_');
        known.contains(name) || begins && known.iter().any(|k| k.starts_with(name))
    };
    names(comments).filter(|found| !is_known(found)).map(|f| f.0.to_owned()).collect()
}

#[test]
fn comments_speak_of_names_that_exist() {
    let (comments, mut code) = apart(HEADER);
    OTHERS.iter().for_each(|other| code += &apart(other).1);
    code += " NMC_UNKNOWN_STATUS "; // a text that nmc_status_name returns
    code += " NMC_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS NMC_BUCKET_MAX_TOTAL_SIZE NMC_USE_URING "; // of the environment
    assert_eq!(stale(&comments, &code), [""; 0], "what are they called now?");
    let control = format!("{comments} see `nmc_kv_no_such_call`, `NMC_KV_*` and `NMC_NO_SUCH_*`");
    assert_eq!(stale(&control, &code), ["nmc_kv_no_such_call", "NMC_NO_SUCH_"]);
}

/// One source file with a struct and its default.
fn parsed(fields: &str, default: &str) -> Abi {
    let text = format!(
        "pub const NMC_ONE: u32 = 1; const HIDDEN: i32 = -7;
         #[repr(C)] pub struct nmc_pair_t {{ pub ptr: *const c_void, pub len: usize }}
         pub type nmc_call_fn = Option<extern \"C\" fn()>;
         #[repr(C)] pub struct nmc_thing_t {{ {fields} }}
         unsafe impl Versioned for nmc_thing_t {{ fn defaults() -> Self {{ {default} }} }}"
    );
    Abi::parse(&[("src/ffi/thing.rs".to_owned(), text)]).expect("it parses")
}

fn macro_of(fields: &str, default: &str) -> Result<String, String> {
    let abi = parsed(fields, default);
    abi.initialiser(&abi.structs["nmc_thing_t"]).map(|text| text.expect("it has a default"))
}

#[test]
fn defaults_become_an_initialiser_in_the_order_of_the_fields() {
    let fields =
        "pub struct_size: u32, pub kind: u32, pub a: i32, pub b: nmc_pair_t, pub c: [u64; 3], pub d: nmc_call_fn,
        pub e: u64, pub f: nmc_pair_t, pub g: u32";
    let default = "let none = nmc_pair_t { len: 0, ptr: std::ptr::null() };
        Self { struct_size: size_of::<Self>() as u32, g: NMC_ONE | 2, f: none, e: u64::MAX, d: None, c: [0; 3], b: none,
               a: HIDDEN, kind: super::NMC_ONE }";
    let expected = "#define NMC_THING_INIT \\\n  { \\\n    /* struct_size */ (uint32_t)sizeof(nmc_thing_t), \\\n    \
        /* kind */ NMC_ONE, \\\n    /* a */ -7, \\\n    /* b */ {NULL, 0}, \\\n    /* c */ {0, 0, 0}, \\\n    \
        /* d */ NULL, \\\n    /* e */ UINT64_MAX, \\\n    /* f */ {NULL, 0}, \\\n    /* g */ (NMC_ONE | 2) \\\n  }";
    assert_eq!(macro_of(fields, default).unwrap(), expected);
}

#[test]
fn a_default_that_cannot_be_said_in_c_fails_the_build() {
    for (default, says) in [
        ("Self { struct_size: 0, kind: compute() }", "`compute ()` cannot be translated"),
        ("Self { struct_size: 0, kind: OTHER }", "`OTHER` cannot be translated"),
        ("Self { struct_size: 0 }", "field kind is missing"),
        ("Self { struct_size: 0, ..zeroed() }", "`..` hides fields"),
        ("let mut s = zeroed(); s.kind = 1; s", "only `let` may stand before"),
        ("made_elsewhere()", "must end in a struct"),
    ] {
        let error = macro_of("pub struct_size: u32, pub kind: u32", default).expect_err(default);
        assert!(error.contains("nmc_thing_t") && error.contains(says), "{error}");
    }
}

#[test]
fn a_struct_that_the_library_fills_starts_from_zeros_and_its_size() {
    let text = "#[repr(C)] pub struct nmc_info_t { pub struct_size: u32, pub pid: u32, pub at: *mut c_void }
                #[repr(C)] pub struct nmc_fixed_t { pub a: u32 }
                pub struct nmc_handle_t { _opaque: [u8; 0] }";
    let abi = Abi::parse(&[("src/ffi/info.rs".to_owned(), text.to_owned())]).unwrap();
    let text = abi.initialiser(&abi.structs["nmc_info_t"]).unwrap().expect("an initialiser");
    assert!(text.contains("/* struct_size */ (uint32_t)sizeof(nmc_info_t), "), "{text}");
    assert!(text.contains("/* pid */ 0, ") && text.contains("/* at */ NULL "), "{text}");
    assert_eq!(abi.initialiser(&abi.structs["nmc_fixed_t"]).unwrap(), None, "what never grows needs none");
    assert_eq!(abi.sources[0].items[2], (Kind::Handle, "nmc_handle_t".to_owned()));
    assert!(abi.rust_table().contains("crate::ffi::info::nmc_info_t as nmc_info_t { struct_size, pid, at }"));
    assert!(abi.c_table().contains("FIELD(nmc_info_t, pid)"));
}

/// The structs of the library itself.
fn library() -> Abi {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root.join("src/ffi")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".rs") {
            files.push((format!("src/ffi/{name}"), std::fs::read_to_string(root.join("src/ffi").join(name)).unwrap()));
        }
    }
    Abi::parse(&files).unwrap()
}

#[test]
fn what_may_grow_has_its_size_first_and_nothing_behind_it() {
    let abi = library();
    let grows = |name: &str| abi.structs.get(name).is_some_and(|s| s.fields[0].0 == "struct_size");
    assert!(grows("nmc_world_config_t") && !grows("nmc_slice_t"));
    for of in abi.structs.values() {
        for (at, (field, ty)) in of.fields.iter().enumerate() {
            assert!(at == 0 || field != "struct_size", "{}: struct_size is not the first field", of.name);
            let ty = quote::ToTokens::to_token_stream(ty).to_string();
            assert!(
                !grows(&ty),
                "{}.{field}: when {ty} grows, what lies behind it moves; point to it instead",
                of.name
            );
        }
    }
}

#[test]
fn the_documentation_lists_the_structs_that_never_change() {
    let abi = library();
    let fixed = abi.structs.values().filter(|of| of.fields[0].0 != "struct_size").map(|of| of.name.as_str());
    let fixed: BTreeSet<_> = fixed.collect();
    let rows = include_str!("../docs/abi.md").lines().filter(|line| line.starts_with("| `nmc_"));
    let listed: BTreeSet<_> =
        rows.filter_map(|row| row.split('|').nth(1)).flat_map(names).map(|(name, _)| name).collect();
    assert_eq!(listed, fixed, "docs/abi.md: the table of structs");
}
