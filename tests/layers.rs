//! Imports point downward only, and `unsafe` stays where it is allowed. The table below is the picture of the layers.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may")]

use std::fs;
use std::path::{Path, PathBuf};

/// Every folder of `src` and what it may import. A new folder has to be added here.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("ffi", &["kv", "store", "ep", "world", "mem", "cuda", "layout", "alloc", "sync", "base"]),
    ("kv", &["store", "world", "mem", "cuda", "layout", "alloc", "sync", "base"]),
    ("store", &["world", "mem", "cuda", "layout", "alloc", "sync", "base"]),
    ("ep", &["world", "mem", "cuda", "layout", "alloc", "sync", "base"]),
    ("world", &["mem", "cuda", "layout", "alloc", "sync", "base"]),
    ("mem", &["cuda", "layout", "alloc", "sync", "base"]),
    ("cuda", &["layout", "alloc", "sync", "base"]),
    ("layout", &["sync", "base"]),
    ("alloc", &["sync", "base"]),
    ("sync", &["base"]),
    ("base", &[]),
];

/// Layers that may use `unsafe`; in the others only files with one of the names below.
const UNSAFE_LAYERS: &[&str] = &["ffi", "mem", "cuda", "layout", "sync"];
const UNSAFE_FILES: &[&str] = &["sys.rs", "kernels.rs", "copy.rs", "pack.rs"];

fn is_layer(name: &str) -> bool {
    MAY_IMPORT.iter().any(|(layer, _)| *layer == name)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Words and punctuation of a source text, without comments, strings and character literals.
fn tokens(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(length) = string_literal(rest) {
            length
        } else if is_word(bytes[at]) {
            let length = rest.bytes().take_while(|b| is_word(*b)).count();
            found.push(&rest[..length]);
            length
        } else if rest.starts_with("::") {
            found.push("::");
            2
        } else {
            let length = rest.chars().next().map_or(1, char::len_utf8);
            if bytes[at].is_ascii_punctuation() {
                found.push(&rest[..length]);
            }
            length
        };
        at += skip;
    }
    found
}

/// Length of the block comment, which may hold others, at the start of `text`.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let pair = text.as_bytes().get(at..at + 2).unwrap_or_default();
        match pair {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Length of the string or character literal at the start of `text`, if there is one. A lifetime is none.
fn string_literal(text: &str) -> Option<usize> {
    let body = text.trim_start_matches(['b', 'c']);
    let prefix = text.len() - body.len();
    if prefix <= 1 && body.starts_with(['r', '"']) {
        let hashes = body[1..].bytes().take_while(|b| *b == b'#').count();
        if body.starts_with('r') && body[1 + hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let inside = &body[hashes + 2..];
            return Some(prefix + hashes + 2 + inside.find(&end).map_or(inside.len(), |n| n + end.len()));
        }
        if body.starts_with('"') {
            return Some(prefix + quoted(body, b'"'));
        }
    }
    let character = body.starts_with("'\\") || body.chars().nth(2) == Some('\'');
    (prefix <= 1 && body.starts_with('\'') && character).then(|| prefix + quoted(body, b'\''))
}

/// Length up to and with the closing quote, minding backslashes.
fn quoted(text: &str, quote: u8) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b if b == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// First names of the paths that begin with `crate::`: `crate::a::b` gives a, `crate::{a, b::c}` gives a and b.
fn crate_paths<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let from_root = tokens[at] == "crate" || (tokens[at] == "super" && at >= 2 && tokens[at - 2] == "super");
        if !from_root || tokens.get(at + 1) != Some(&"::") {
            continue;
        }
        if tokens.get(at + 2) != Some(&"{") {
            found.extend(tokens.get(at + 2));
            continue;
        }
        let mut depth = 0;
        for pair in tokens[at + 2..].windows(2) {
            match pair[0] {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            if depth == 1 && (pair[0] == "{" || pair[0] == ",") {
                found.push(pair[1]);
            }
        }
    }
    found
}

/// What is wrong with a source file; `path` is relative to `src`.
fn problems(path: &str, text: &str) -> Vec<String> {
    let (layer, file) = path.split_once('/').unwrap_or(("", path));
    if layer == "bin" {
        return Vec::new(); // programs on top of everything
    }
    let mut found = Vec::new();
    let tokens = tokens(text);
    if !layer.is_empty() {
        let Some((_, may)) = MAY_IMPORT.iter().find(|(name, _)| *name == layer) else {
            return vec![format!("src/{path}: \"{layer}\" is no layer; add it to MAY_IMPORT")];
        };
        for name in crate_paths(&tokens) {
            if name != layer && is_layer(name) && !may.contains(&name) {
                found.push(format!("src/{path}: {layer} must not import {name}"));
            }
        }
    }
    let name = file.rsplit('/').next().unwrap_or(file);
    let allowed = UNSAFE_LAYERS.contains(&layer) || (!layer.is_empty() && UNSAFE_FILES.contains(&name));
    if !allowed && tokens.contains(&"unsafe") {
        found.push(format!("src/{path}: unsafe is not allowed here"));
    }
    found
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files
}

#[test]
fn imports_point_downward_and_unsafe_stays_in_its_places() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = rust_files(&root);
    let mut found = Vec::new();
    for file in &files {
        let path = file.strip_prefix(&root).expect("below src").to_str().expect("a name in UTF-8");
        found.extend(problems(path, &fs::read_to_string(file).expect("text")));
    }
    assert!(files.len() > 30, "only {} files in {}", files.len(), root.display());
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_table_itself_has_no_cycle() {
    for (at, (layer, may)) in MAY_IMPORT.iter().enumerate() {
        for name in *may {
            let below = MAY_IMPORT[at + 1..].iter().any(|(lower, _)| lower == name);
            assert!(below, "{layer} may import {name}, which is not below it");
        }
    }
}

#[test]
fn control_bad_imports_are_detected() {
    for (path, text) in [
        ("base/id.rs", "use crate::sync::futex;"),
        ("sync/asym.rs", "pub(crate) use crate::layout::world::Realm;"),
        ("layout/world.rs", "fn f() { crate::mem::heap::make(); }"),
        ("cuda/device.rs", "use crate::{base::Deadline, mem};"),
        ("mem/heap.rs", "use crate::{\n    base::{Deadline, error::Result},\n    world::World,\n};"),
        ("world/join.rs", "use crate::ffi::handle;"),
        ("world/sys.rs", "use super::super::ffi::handle;"),
        ("kv/pool.rs", "use crate::ep::Group;"),
        ("attic/pool.rs", ""),
    ] {
        assert_eq!(problems(path, text).len(), 1, "{path}: {text}: {:?}", problems(path, text));
    }
}

#[test]
fn control_good_imports_are_accepted() {
    for (path, text) in [
        ("world/join.rs", "use crate::{base::{error::Result, world}, mem::Heap}; crate::bail!(X, \"crate::ffi::x\");"),
        ("base/id.rs", "// use crate::ffi::x;\n/* crate::ffi /* nested */ */ const A: &str = r#\"\"crate::ffi::x\"#;"),
        ("sync/fork.rs", "use crate::base::log; use crate::sync::futex; use super::futex;"),
        ("bin/nmc/main.rs", "use nanomc::ffi::abi; unsafe {}"),
    ] {
        assert_eq!(problems(path, text), Vec::<String>::new(), "{path}: {text}");
    }
}

#[test]
fn control_misplaced_unsafe_is_detected() {
    let bad = "fn f<'a>(x: &'a u8) -> char { unsafe { g() }; '\"' }";
    for path in ["base/id.rs", "world/join.rs", "lib.rs", "sys.rs"] {
        assert_eq!(problems(path, bad), [format!("src/{path}: unsafe is not allowed here")]);
    }
    for path in ["world/sys.rs", "world/kernels.rs", "ffi/world.rs", "mem/heap.rs", "bin/nmc/main.rs"] {
        assert_eq!(problems(path, bad), Vec::<String>::new());
    }
    for good in ["#![allow(unsafe_code)]", "// unsafe", "/* unsafe */", "\"unsafe \\\" unsafe\"", "b'\\'' b\"unsafe\""]
    {
        assert_eq!(problems("base/id.rs", good), Vec::<String>::new(), "{good}");
    }
}
