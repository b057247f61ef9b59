//! Imports point downward only, between the folders of `src` and between the rooms of a large one, and `unsafe` stays where it is
//! allowed. The tables below are the picture of the layers.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Every folder of `src` and what it imports. A new folder has to be added here.
const MAY_IMPORT: Table = &[
    ("ffi", &["kv", "tier", "cluster", "store", "ep", "world", "mem", "cuda", "layout", "alloc", "sync", "base"]),
    ("kv", &["store", "world", "mem", "cuda", "layout", "alloc", "sync", "base"]),
    ("tier", &["store", "world", "rpc", "mem", "layout", "alloc", "sync", "base"]),
    ("cluster", &["store", "rpc", "mem", "cuda", "layout", "sync", "base"]),
    ("store", &["world", "rpc", "mem", "cuda", "layout", "alloc", "sync", "base"]),
    ("ep", &["world", "mem", "cuda", "layout", "base"]),
    ("world", &["rpc", "mem", "cuda", "layout", "sync", "base"]),
    ("rpc", &["sync", "base"]),
    ("mem", &["cuda", "layout", "alloc", "base"]),
    ("cuda", &["layout", "alloc", "base"]),
    ("layout", &["sync", "base"]),
    ("alloc", &["base"]),
    ("sync", &["base"]),
    ("base", &[]),
];

/// Layers that are large enough to have rooms: files and folders directly in them, and what each may import of the others. All
/// of them are listed; only `mod.rs`, which names them all, is free. A room is imported by its own name, not through `mod.rs`.
const ROOMS: &[(&str, Table)] =
    &[("kv", KV), ("tier", TIER), ("cluster", CLUSTER), ("store", STORE), ("ep", EP), ("world", WORLD)];

type Table = &'static [(&'static str, &'static [&'static str])];

const KV: Table = &[
    ("facade", &["transfer", "place", "cache", "seq", "config", "pool", "groups", "error", "block", "hash"]),
    ("transfer", &["place", "cache", "block", "hash"]),
    ("place", &["cache", "seq", "groups", "error", "block"]),
    ("cache", &["seq", "config", "pool", "groups", "error", "block", "hash"]),
    ("seq", &["config", "pool", "groups", "error", "block", "hash"]),
    ("config", &["pool", "groups", "hash"]),
    ("pool", &["groups", "error", "block", "hash"]),
    ("groups", &["error", "block"]),
    ("error", &["block"]),
    ("block", &["hash"]),
    ("hash", &[]),
];

const TIER: Table = &[
    ("sequences_tests", &["tests", "test_store", "directory", "recovery", "journal", "config", "format", "io"]),
    ("moves_tests", &["tests", "facade", "test_store", "config", "format"]),
    ("away_tests", &["tests", "facade", "test_store", "config", "format"]),
    ("churn_tests", &["tests", "facade", "test_store", "config", "format", "io"]),
    ("tests", &["facade", "test_store", "recovery", "backend", "journal", "config", "format", "io"]),
    ("crash_tests", &["reader", "directory", "recovery", "backend", "journal", "config", "format", "io"]),
    ("facade", &["owner", "elsewhere", "reader", "sys", "staging", "config"]),
    ("hosted", &["owner", "reader", "config", "io"]),
    ("owner", &["test_store", "reader", "directory", "recovery", "config", "format", "io"]),
    ("test_store", &["config"]),
    ("elsewhere", &["reader", "config", "io"]),
    ("reader", &["directory", "recovery", "backend", "config", "format", "io"]),
    ("directory", &["recovery", "backend", "journal", "stages", "config", "format", "io"]),
    ("recovery", &["backend", "journal", "config", "format", "io"]),
    ("backend", &["journal", "config", "format", "io"]),
    ("journal", &["format", "io"]),
    ("stages", &["format", "io"]),
    ("sys", &["staging", "io"]),
    ("staging", &["io"]),
    ("config", &[]),
    ("format", &[]),
    ("io", &[]),
];

const STORE: Table = &[
    ("disk_tests", &["write", "test_store", "client", "serve", "master", "disk", "copy", "config", "types", "sys"]),
    ("stray_tests", &["test_store", "client", "serve", "master", "copy", "wire", "map", "types"]),
    ("hash_tests", &["master", "map", "hash", "config", "types"]),
    ("agent", &["watch", "write", "read", "client", "disk", "copy", "wire", "types"]),
    ("stream", &["client", "copy", "types"]),
    ("stats", &["client", "wire"]),
    ("watch", &["test_store", "client", "master", "disk", "completions", "wire", "types"]),
    ("write", &["read", "test_store", "client", "serve", "disk", "copy", "wire", "config", "types", "sys"]),
    ("read", &["client", "disk", "peers", "copy", "wire", "hash", "types", "sys"]),
    ("test_store", &["client", "copy", "config", "types"]),
    ("client", &["serve", "master", "disk", "completions", "peers", "copy", "wire", "map", "config", "types", "sys"]),
    ("serve", &["master", "disk", "copy", "wire", "map", "config", "types"]),
    ("master", &["disk", "map", "hash", "config", "types", "sys"]),
    ("disk", &["completions", "copy", "wire", "types", "sys"]),
    ("completions", &[]),
    ("peers", &["copy"]),
    ("copy", &["map", "types", "sys"]),
    ("wire", &["types"]),
    ("map", &["hash"]),
    ("hash", &[]),
    ("config", &[]),
    ("types", &[]),
    ("sys", &[]),
];

const EP: Table = &[
    ("forward", &["group", "cpu", "layer", "calls", "sys"]),
    ("group", &["rendezvous", "gpu", "cpu", "status", "calls", "config", "sys"]),
    ("rendezvous", &[]),
    ("gpu", &["layer", "calls"]),
    ("cpu", &["layer", "status", "calls", "dtype", "sys"]),
    ("layer", &["calls", "sys"]),
    ("status", &["sys"]),
    ("calls", &["sys"]),
    ("config", &[]),
    ("dtype", &["sys"]),
    ("sys", &[]),
];

const WORLD: Table = &[
    ("selftest", &["world", "config"]),
    ("gpu", &["world"]),
    ("barrier", &["world", "shared", "liveness"]),
    ("membership", &["world", "presence", "shared", "config", "dir", "liveness", "sys"]),
    ("world", &["presence", "join", "shared", "master", "config", "wire", "liveness"]),
    ("presence", &["service", "shared", "master"]),
    ("service", &["shared", "roster", "wire", "liveness"]),
    ("shared", &["roster", "watch", "config", "dir", "rank_locks", "wire", "liveness"]),
    ("join", &["master", "roster", "config", "dir", "rank_locks", "wire", "sys"]),
    ("master", &["roster", "watch", "config", "dir", "rank_locks", "wire"]),
    ("roster", &["watch", "rank_locks", "wire", "liveness"]),
    ("watch", &["liveness"]),
    ("config", &["dir", "wire"]),
    ("dir", &["rank_locks", "sys"]),
    ("rank_locks", &["sys"]),
    ("wire", &[]),
    ("liveness", &[]),
    ("sys", &[]),
];

const CLUSTER: Table = &[
    ("facade", &["submit", "run", "nixl", "node", "client", "net", "told", "wire", "types"]),
    ("submit", &["run", "client", "net", "wire", "types"]),
    ("run", &["nixl", "node", "directory", "client", "net", "wire", "types"]),
    ("sim", &["node", "directory", "client", "wire", "types"]),
    ("nixl", &["net", "wire"]),
    ("node", &["net", "leaders", "revoked", "told", "wire", "types"]),
    ("directory", &["revoked", "wire", "types"]),
    ("client", &["net", "leaders", "wire", "types"]),
    ("net", &["wire", "types"]),
    ("leaders", &["types"]),
    ("revoked", &["types"]),
    ("told", &["types"]),
    ("wire", &["types"]),
    ("types", &[]),
];

/// Layers that may use `unsafe`; in the others only files with one of the names below, and these files. CONTRIBUTING.md has the layers and the names, too.
const UNSAFE_LAYERS: &[&str] = &["ffi", "mem", "cuda", "layout", "sync"];
const UNSAFE_NAMES: &[&str] = &["sys.rs", "gpu.rs"];
const UNSAFE_FILES: &[&str] = &[
    "cluster/facade/item.rs",      // memory of the program, whose values others send and receive
    "cluster/facade/nixl.rs",      // and that NIXL knows
    "cluster/facade/device.rs",    // and of its device
    "cluster/nixl/room.rs",        // memory of the library for the same
    "cluster/node/bounce.rs",      // and that beside a device
    "cluster/node/real/places.rs", // where values of a store lie
    "cluster/run/node.rs",         // whole heaps, for NIXL
    "kv/place/region.rs",          // addresses become memory that somebody vouches for
    "kv/transfer/located.rs",      // blocks are copied by the calling thread
    "store/client/copy.rs",        // values are copied and summed, from and to addresses that were checked
    "store/copy/cursor.rs",        // the same by the CPU alone
    "store/copy/pieces.rs",        // memory of the program, for which whoever made the pieces vouches
    "store/stream.rs",             // streams copy and publish, by addresses that were checked
    "world/shared.rs",             // heaps of ranks of the same process are known by their address
];

fn is_layer(name: &str) -> bool {
    MAY_IMPORT.iter().any(|(layer, _)| *layer == name)
}

fn row(table: Table, name: &str) -> Option<&'static [&'static str]> {
    table.iter().find(|(row, _)| *row == name).map(|(_, may)| *may)
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

/// The module that a file is, from the root of the crate: `kv/pool/mod.rs` is `kv::pool`.
fn module_of(path: &str) -> Vec<&str> {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    stem.split('/').filter(|name| *name != "lib" && *name != "mod").collect()
}

/// All paths that begin with `crate`, `super` or `self`, from the root of the crate: in `kv::pool`, `use super::{a, b::C}` gives
/// `kv::a` and `kv::b::C`, and `super::super::mem` gives `mem`. `module` is that of the file; modules inside it are followed.
fn paths<'a>(module: &[&'a str], tokens: &[&'a str]) -> Vec<Vec<&'a str>> {
    let mut found = Vec::new();
    let mut module = module.to_vec();
    // Where the modules inside the file end, as the number of braces that are open around each.
    let (mut braces, mut inside) = (0, Vec::new());
    for (at, token) in tokens.iter().enumerate() {
        let before = if at > 0 { tokens[at - 1] } else { "" };
        let after = |n: usize| tokens.get(at + n).copied().unwrap_or("");
        match *token {
            "mod" if after(2) == "{" => {
                module.push(after(1));
                inside.push(braces);
            }
            "{" => braces += 1,
            "}" => {
                braces -= 1;
                if inside.last() == Some(&braces) {
                    inside.pop();
                    module.pop();
                }
            }
            // What follows `in` says who may see something, and imports nothing.
            "crate" | "super" | "self" if before != "::" && before != "in" && matches!(after(1), "::" | "as") => {
                let mut path = match *token {
                    "crate" => Vec::new(),
                    _ => module.clone(),
                };
                if *token == "super" {
                    path.pop();
                }
                follow(path, tokens, at + 1, &mut found);
            }
            _ => {}
        }
    }
    found
}

/// Adds what a path, or a tree of them, names from `at` on, which is behind its beginning. Returns where it ends.
fn follow<'a>(mut path: Vec<&'a str>, tokens: &[&'a str], mut at: usize, found: &mut Vec<Vec<&'a str>>) -> usize {
    while tokens.get(at) == Some(&"::") {
        match tokens.get(at + 1).copied() {
            Some("{") => {
                at += 2;
                while let Some(token) = tokens.get(at).filter(|token| **token != "}") {
                    let mut branch = path.clone();
                    match *token {
                        "super" => drop(branch.pop()),
                        "self" => {}
                        name => branch.push(name),
                    }
                    at = follow(branch, tokens, at + 1, found);
                    // A new name for it, and the comma.
                    at += tokens[at..].iter().take_while(|token| **token != "," && **token != "}").count();
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                return at + 1;
            }
            Some("super") => drop(path.pop()),
            Some(name) => path.push(name),
            None => break,
        }
        at += 2;
    }
    found.push(path);
    at
}

/// What is wrong with a source file; `path` is relative to `src`.
fn problems(path: &str, text: &str) -> Vec<String> {
    let (layer, file) = path.split_once('/').unwrap_or(("", path));
    let mut found = Vec::new();
    let tokens = tokens(text);
    if !layer.is_empty() {
        let Some(may) = row(MAY_IMPORT, layer) else {
            return vec![format!("src/{path}: \"{layer}\" is no layer; add it to MAY_IMPORT")];
        };
        let imports = paths(&module_of(path), &tokens);
        for name in imports.iter().filter_map(|import| import.first()) {
            if *name != layer && is_layer(name) && !may.contains(name) {
                found.push(format!("src/{path}: {layer} must not import {name}"));
            }
        }
        if let Some((_, rooms)) = ROOMS.iter().find(|(name, _)| *name == layer)
            && file != "mod.rs"
        {
            found.extend(room_problems(path, layer, rooms, &imports));
        }
    }
    let name = file.rsplit('/').next().unwrap_or(file);
    let named = !layer.is_empty() && UNSAFE_NAMES.contains(&name) || UNSAFE_FILES.contains(&path);
    if !named && !UNSAFE_LAYERS.contains(&layer) && tokens.contains(&"unsafe") {
        found.push(format!("src/{path}: unsafe is not allowed here"));
    }
    found.dedup();
    found
}

/// What is wrong with the imports of a file from other rooms of its layer.
fn room_problems(path: &str, layer: &str, rooms: Table, imports: &[Vec<&str>]) -> Vec<String> {
    let room = module_of(path)[1];
    let Some(may) = row(rooms, room) else {
        return vec![format!("src/{path}: \"{room}\" is no room of {layer}; add it to ROOMS")];
    };
    let mut found = Vec::new();
    for import in imports.iter().filter(|import| import.first() == Some(&layer) || import.is_empty()) {
        match import.get(1) {
            Some(name) if *name == room || may.contains(name) => {}
            Some(name) if row(rooms, name).is_some() => {
                found.push(format!("src/{path}: {layer}::{room} must not import {layer}::{name}"));
            }
            _ => {
                let what = import.join("::");
                found.push(format!("src/{path}: {layer}::{room} imports \"{what}\", which is in no room of its own"));
            }
        }
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
fn the_tables_themselves_have_no_cycle() {
    for table in [MAY_IMPORT].into_iter().chain(ROOMS.iter().map(|(_, table)| *table)) {
        for (at, (layer, may)) in table.iter().enumerate() {
            for name in *may {
                let below = table[at + 1..].iter().any(|(lower, _)| lower == name);
                assert!(below, "{layer} may import {name}, which is not below it");
            }
        }
    }
}

/// What a table says too much about the files and folders directly in a layer, or in `src`, which has no name: rows that are not
/// there, and imports that nobody uses.
fn surplus(layer: &str, table: Table) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let folder = root.join(layer);
    let depth = usize::from(!layer.is_empty());
    let mut used = BTreeSet::new();
    for file in rust_files(&folder) {
        let path = file.strip_prefix(&root).expect("below src").to_str().expect("a name in UTF-8");
        let (module, text) = (module_of(path), fs::read_to_string(&file).expect("text"));
        let room = module.get(depth).map_or(String::new(), |room| (*room).into());
        for import in paths(&module, &tokens(&text)) {
            let name = import.get(depth).filter(|_| depth == 0 || import[0] == layer).copied().unwrap_or_default();
            used.insert((room.clone(), name.to_string()));
        }
    }
    let mut found = Vec::new();
    for (room, may) in table {
        if !["", "/mod"].iter().any(|end| folder.join(format!("{room}{end}.rs")).exists()) {
            found.push(format!("{layer}::{room} is not there"));
        }
        let unused = may.iter().filter(|name| !used.contains(&((*room).to_string(), (**name).to_string())));
        found.extend(unused.map(|name| format!("{layer}::{room} does not import {layer}::{name}")));
    }
    found
}

#[test]
fn the_tables_say_no_more_than_what_is_there() {
    for (layer, table) in [("", MAY_IMPORT)].iter().chain(ROOMS) {
        let found = surplus(layer, table);
        assert!(found.is_empty(), "the table says too much:\n{}", found.join("\n"));
    }
}

#[test]
fn control_what_a_table_says_too_much_is_detected() {
    const WRONG: &[(&str, Table, &str)] = &[
        ("", &[("rpc", &["sync", "mem", "base"])], "::rpc does not import ::mem"),
        ("", &[("attic", &[])], "::attic is not there"),
        ("kv", &[("block", &["hash", "pool"])], "kv::block does not import kv::pool"),
        ("kv", &[("attic", &[])], "kv::attic is not there"),
    ];
    for (layer, table, what) in WRONG {
        assert_eq!(surplus(layer, table), [*what]);
    }
}

/// And CONTRIBUTING.md says so.
#[test]
fn unsafe_is_used_wherever_it_is_allowed() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = home.join("src");
    let is_unsafe = |path: &Path| tokens(&fs::read_to_string(path).expect("text")).contains(&"unsafe");
    let files: Vec<PathBuf> = rust_files(&root).into_iter().filter(|path| is_unsafe(path)).collect();
    let paths = || files.iter().map(|path| path.strip_prefix(&root).expect("below src"));
    let in_layer = |path: &Path| UNSAFE_LAYERS.iter().any(|layer| path.starts_with(layer));
    for file in UNSAFE_FILES {
        assert!(paths().any(|path| path == Path::new(file)), "{file} has no unsafe");
    }
    for name in UNSAFE_NAMES {
        assert!(paths().any(|path| path.ends_with(name) && !in_layer(path)), "no {name} needs it");
    }
    let text = fs::read_to_string(home.join("CONTRIBUTING.md")).expect("text");
    let rule = text.lines().find(|line| line.starts_with("- `unsafe` lives in")).expect("a rule");
    for what in UNSAFE_LAYERS.iter().chain(UNSAFE_NAMES) {
        assert!(paths().any(|path| path.starts_with(what) || path.ends_with(what)), "{what} has no unsafe");
        assert!(rule.contains(&format!("`{what}`")), "CONTRIBUTING.md does not name {what}: {rule}");
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
        ("kv/pool/mod.rs", "use crate::ep::Group;"),
        ("kv/pool/mod.rs", "use super::super::ep::Group;"),
        ("attic/pool.rs", ""),
        ("bin/main.rs", ""),
    ] {
        assert_eq!(problems(path, text).len(), 1, "{path}: {text}: {:?}", problems(path, text));
    }
}

#[test]
fn control_bad_imports_between_rooms_are_detected() {
    for (path, text) in [
        ("kv/pool/index.rs", "use crate::kv::seq::Seq;"),
        ("kv/pool/index.rs", "use super::super::seq::Seq;"),
        ("kv/pool/mod.rs", "use super::{block::NONE, seq::{Seq, Editor}};"),
        ("kv/pool/mod.rs", "use crate::{base::memory, kv::{hash, cache}};"),
        ("kv/pool/mod.rs", "fn f() -> super::cache::Cache { panic!() }"),
        ("kv/seq/editor/cut.rs", "use super::super::super::cache::Cache;"),
        ("kv/seq/editor/cut.rs", "use super::super::super::super::kv::cache::Cache;"),
        ("kv/seq/editor/cut.rs", "use crate::base::{super::kv::cache::Cache, memory};"),
        ("kv/groups/pool.rs", "mod tests { mod more { use super::super::super::super::pool::Pool; } }"),
        ("kv/groups/pool.rs", "use crate::kv::Kv;"),
        ("kv/groups/pool.rs", "use crate::kv::*;"),
        ("kv/groups/pool.rs", "use crate::kv;"),
        ("kv/groups/pool.rs", "use crate as all;"),
        ("kv/groups/pool.rs", "use super::super as all;"),
        ("kv/groups/pool.rs", "use crate::{self as all};"),
        ("kv/block.rs", "use super::pool::Pool;"),
        ("tier/journal.rs", "use super::backend::Storage;"),
        ("tier/backend/mod.rs", "use super::recovery::read_head;"),
        ("tier/tests.rs", "use super::*;"),
        ("store/read/get.rs", "use crate::store::write::keep_of;"),
        ("store/types/plan.rs", "use super::super::wire::Request;"),
        ("store/config.rs", "use super::Store;"),
        ("store/attic.rs", ""),
        ("ep/cpu/sys.rs", "use crate::ep::group::Ep;"),
        ("ep/gpu.rs", "use super::forward::forward;"),
        ("ep/calls.rs", "use super::Ep;"),
        ("world/rank_locks.rs", "use super::dir::Place;"),
        ("world/sys.rs", "use super::world::World;"),
        ("world/selftest.rs", "use super::World;"),
        ("world/attic.rs", ""),
        ("kv/attic/pool.rs", ""),
        ("kv/attic.rs", ""),
        ("cluster/client/put.rs", "use crate::cluster::run::client::Service;"),
        ("cluster/client/put.rs", "use super::super::node::Agent;"),
        ("cluster/directory/mod.rs", "use super::{types::Millis, sim::{Sim, Setup}};"),
        ("cluster/node/tests.rs", "use crate::cluster::{sim::Store, wire::Message};"),
        ("cluster/net/link.rs", "use crate::cluster::nixl::Settings;"),
        ("cluster/run/client/mod.rs", "fn f() -> crate::cluster::facade::Config { panic!() }"),
        ("cluster/told.rs", "use super::revoked::Revoked;"),
        ("cluster/wire/page.rs", "use crate::cluster::*;"),
        ("cluster/attic.rs", ""),
    ] {
        assert_eq!(problems(path, text).len(), 1, "{path}: {text}: {:?}", problems(path, text));
    }
}

#[test]
fn control_good_imports_between_rooms_are_accepted() {
    for (path, text) in [
        ("kv/mod.rs", "mod pool; pub use cache::Cache; use self::seq::Seq;"),
        ("kv/pool/mod.rs", "mod index; use index::Named; use self::index::Prefix; use super::block::{Info, NONE};"),
        ("kv/pool/index.rs", "use super::{Keep, Pool}; pub(super) fn f() {} pub(in crate::kv) fn g(self) { self.h() }"),
        ("kv/pool/index.rs", "mod tests { use super::*; use super::super::evict::Kind; } use super::roots::Roots;"),
        ("kv/seq/editor/cut.rs", "use crate::{bail, kv::{pool::Pool, seq::{Seq, self}}}; crate::bail!(X, \"\");"),
        ("store/read/get.rs", "use super::pin::LOOKS; use crate::store::client::Store;"),
        ("tier/directory/write.rs", "use super::Directory; use super::super::backend::Draft;"),
        ("world/selftest/gpu.rs", "use super::{Run, World}; use crate::world::world::PeerInfo;"),
        ("cluster/sim/mod.rs", "use super::node::model::Store; use super::directory::{self, Master};"),
        ("cluster/run/client/calls.rs", "use super::super::times; use crate::cluster::run::Mailbox;"),
        ("cluster/node/real/places.rs", "pub(in crate::cluster::node) fn f() {} use crate::cluster::node::Offer;"),
    ] {
        assert_eq!(problems(path, text), Vec::<String>::new(), "{path}: {text}");
    }
}

#[test]
fn control_good_imports_are_accepted() {
    for (path, text) in [
        ("world/join.rs", "use crate::{base::{error::Result, world}, mem::Heap}; crate::bail!(X, \"crate::ffi::x\");"),
        ("base/id.rs", "// use crate::ffi::x;\n/* crate::ffi /* nested */ */ const A: &str = r#\"\"crate::ffi::x\"#;"),
        ("sync/fork.rs", "use crate::base::log; use crate::sync::futex; use super::futex;"),
    ] {
        assert_eq!(problems(path, text), Vec::<String>::new(), "{path}: {text}");
    }
}

#[test]
fn control_misplaced_unsafe_is_detected() {
    let bad = "fn f<'a>(x: &'a u8) -> char { unsafe { g() }; '\"' }";
    for path in ["base/id.rs", "world/join.rs", "lib.rs", "sys.rs", "kv/hash.rs", "store/read/pin.rs"] {
        assert_eq!(problems(path, bad), [format!("src/{path}: unsafe is not allowed here")]);
    }
    for path in ["world/sys.rs", "world/gpu.rs", "ffi/world.rs", "mem/heap.rs", "kv/place/region.rs"] {
        assert_eq!(problems(path, bad), Vec::<String>::new());
    }
    for good in ["#![allow(unsafe_code)]", "// unsafe", "/* unsafe */", "\"unsafe \\\" unsafe\"", "b'\\'' b\"unsafe\""]
    {
        assert_eq!(problems("base/id.rs", good), Vec::<String>::new(), "{good}");
    }
}
