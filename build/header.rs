//! `include/nanomc.h`: what cbindgen makes of the ABI, in parts by noun, with a table of contents and the `_INIT` macros.

use crate::nouns::{NOUNS, Noun, RULES};
use crate::structs::{Abi, Kind, Result};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Longest line of the words above a part.
const WIDTH: usize = 118;

/// Reads the sources of the ABI: those of all nouns in order, then the rest of `src/ffi`, which declares nothing to C.
pub fn read(root: &Path) -> Result<Abi> {
    let mut paths: Vec<String> = NOUNS.iter().flat_map(|n| n.sources).map(|s| format!("src/{s}")).collect();
    let listed = paths.len();
    let folder = std::fs::read_dir(root.join("src/ffi")).map_err(|e| format!("src/ffi: {e}"))?;
    let mut others: Vec<String> = folder
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".rs"))
        .map(|name| format!("src/ffi/{name}"))
        .filter(|path| !paths.contains(path))
        .collect();
    others.sort();
    paths.append(&mut others);
    let mut files = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(root.join(&path)).map_err(|e| format!("{path}: {e}"))?;
        files.push((path, text));
    }
    let abi = Abi::parse(&files)?;
    match abi.sources[listed..].iter().find(|s| !s.items.is_empty()) {
        Some(source) => Err(format!(
            "{} declares {} to C, but belongs to no noun of build/nouns.rs",
            source.path, source.items[0].1
        )),
        None => Ok(abi),
    }
}

/// The text of the header for this version of the library.
pub fn generate(root: &Path, version: &str, abi: &Abi) -> Result<String> {
    let mut declarations = declarations(root, abi)?;
    let mut text = opening(abi);
    text.push_str("\n#ifndef NANOMC_H\n#define NANOMC_H\n\n#include <stddef.h>\n#include <stdint.h>\n");
    text.push_str("#include \"nanomc/layout.h\"\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n");
    text.push_str("/* Handles: what calls make and destroy. The part of each says more. */\n");
    for (_, name) in abi.sources.iter().flat_map(|s| &s.items).filter(|(kind, _)| *kind == Kind::Handle) {
        let _ = writeln!(text, "struct {name};");
    }
    for noun in NOUNS {
        text.push_str(&heading(noun));
        if noun.title == "Basics" {
            text.push_str(&version_macros(version));
        }
        for (kind, name) in declared(abi, noun) {
            let declaration =
                declarations.remove(name).ok_or_else(|| format!("cbindgen leaves {name} out of the header"))?;
            let _ = writeln!(text, "\n{declaration}");
            if let (Kind::Struct, Some(of)) = (kind, abi.structs.get(name))
                && let Some(initialiser) = abi.initialiser(of)?
            {
                let _ = writeln!(text, "\n/** What an {name} starts from. */\n{initialiser}");
            }
        }
        text.push_str("\n/** @} */\n");
    }
    if let Some((name, _)) = declarations.first_key_value() {
        return Err(format!("cbindgen declares {name}, which build/structs.rs does not know"));
    }
    text.push_str("\n#ifdef __cplusplus\n} /* extern \"C\" */\n#endif\n\n#endif /* NANOMC_H */\n");
    Ok(short_comments(&text))
}

/// Comments of one line in one line.
fn short_comments(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let (mut short, mut at) = (String::new(), 0);
    while let Some(line) = lines.get(at) {
        let inside = match lines.get(at + 1..at + 3) {
            Some([inside, end]) if line.trim() == "/**" && end.trim() == "*/" => inside.trim().strip_prefix("* "),
            _ => None,
        };
        let merged = inside.map(|inside| format!("{line} {inside} */")).filter(|merged| merged.len() <= WIDTH);
        at += if merged.is_some() { 3 } else { 1 };
        let _ = writeln!(short, "{}", merged.as_deref().unwrap_or(line));
    }
    short
}

/// What a noun declares: constants, types and callbacks of all its sources, then functions, as the sources order them.
fn declared<'a>(abi: &'a Abi, noun: &'a Noun) -> impl Iterator<Item = (Kind, &'a str)> {
    let items = move |functions: bool| {
        let sources =
            noun.sources.iter().flat_map(|s| abi.sources.iter().filter(move |a| a.path == format!("src/{s}")));
        sources
            .flat_map(|s| &s.items)
            .filter(move |(kind, _)| (*kind == Kind::Function) == functions && *kind != Kind::LayoutStruct)
            .map(|(kind, name)| (*kind, name.as_str()))
    };
    items(false).chain(items(true))
}

/// What cbindgen makes of each item: comment and declaration, by name.
fn declarations(root: &Path, abi: &Abi) -> Result<BTreeMap<String, String>> {
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).map_err(|e| format!("cbindgen.toml: {e}"))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in abi.sources.iter().filter(|s| !s.items.is_empty()) {
        builder = builder.with_src(root.join(&source.path));
    }
    let mut bytes = Vec::new();
    builder.generate().map_err(|e| format!("cbindgen could not read the ABI: {e}"))?.write(&mut bytes);
    let text = String::from_utf8(bytes).map_err(|e| e.to_string())?;
    let mut found = BTreeMap::new();
    // An empty line ends each of them: inside of comments lines begin with a star.
    for piece in text.split("\n\n").map(str::trim).filter(|p| !p.is_empty()) {
        let name = name_of(piece).ok_or_else(|| format!("no name is found in what cbindgen wrote:\n{piece}"))?;
        if found.insert(name.clone(), piece.to_owned()).is_some() {
            return Err(format!("cbindgen declares {name} twice"));
        }
    }
    Ok(found)
}

/// The name that a piece of C declares.
fn name_of(piece: &str) -> Option<String> {
    let code = if piece.starts_with("/**") { piece.split_once("*/")?.1.trim_start() } else { piece };
    let word = |text: &str| -> Option<String> {
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        text[..end].to_lowercase().starts_with("nmc_").then(|| text[..end].to_owned())
    };
    if let Some(rest) = code.strip_prefix("#define ").or_else(|| code.strip_prefix("typedef struct ")) {
        return word(rest);
    }
    if let Some(rest) = code.strip_prefix("typedef ") {
        let callback = rest.split_once("(*").map(|(_, name)| name);
        return word(callback.or_else(|| rest.rsplit_once(' ').map(|(_, name)| name))?);
    }
    word(code.split_once('(')?.0.rsplit([' ', '*']).next()?)
}

/// Rules and table of contents.
fn opening(abi: &Abi) -> String {
    let mut text = format!("{RULES}\n\nContents. Each part begins with how its calls go together.\n");
    for noun in NOUNS {
        let functions: Vec<_> = declared(abi, noun)
            .filter(|(kind, _)| *kind == Kind::Function)
            .map(|(_, name)| name.strip_prefix(noun.prefix).unwrap_or(name))
            .collect();
        let _ = write!(text, "\n {:<10}{}\n", noun.title, noun.about);
        let _ = writeln!(text, "{}", wrapped(&format!("{:<11}{}*:", "", noun.prefix), &functions, 13));
    }
    text.push_str("\nGenerated from the Rust sources (build/header.rs) by cbindgen; do not edit.");
    let lines: Vec<_> = text.lines().map(|l| format!(" * {l}").trim_end().to_owned()).collect();
    format!("/*\n{}\n */\n", lines.join("\n"))
}

/// Words behind `first`, in lines that are not too long.
fn wrapped(first: &str, words: &[&str], indent: usize) -> String {
    let mut lines = vec![first.to_owned()];
    for word in words {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() + 3 <= WIDTH => *line = format!("{line} {word}"),
            _ => lines.push(format!("{:indent$}{word}", "")),
        }
    }
    lines.join("\n")
}

/// What stands above a part; a group for Doxygen, too.
fn heading(noun: &Noun) -> String {
    let rule = "=".repeat(WIDTH - 9 - noun.title.len());
    let id = noun.title.to_lowercase().replace(' ', "_");
    let how: Vec<_> = noun.how.lines().map(|line| format!(" * {line}")).collect();
    format!(
        "\n/* == {} {rule} */\n\n/**\n * @defgroup {id} {}\n * {}\n *\n{}\n * @{{\n */\n",
        noun.title,
        noun.title,
        sentence(noun.about),
        how.join("\n")
    )
}

/// With a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

fn version_macros(version: &str) -> String {
    let mut parts = version.split(['.', '-', '+']);
    let mut next = || parts.next().unwrap_or("0");
    let (major, minor, patch) = (next(), next(), next());
    format!(
        "\n/* Version of this header, from Cargo.toml. */\n\
         #define NMC_VERSION_MAJOR {major}\n#define NMC_VERSION_MINOR {minor}\n#define NMC_VERSION_PATCH {patch}\n\
         #define NMC_VERSION_STRING \"{version}\"\n"
    )
}
