//! `docs/protocol.md` says what is sent: its tables are made of the comments of the messages, and its limits are the ones that are kept.

use super::*;
use crate::cluster::types::Media;
use crate::layout::store::{MAX_KEY, MAX_METADATA, MAX_NAMESPACE_NAME};
use std::fmt::Write as _;

const MARK: &str = "by `NMC_BLESS=1 cargo test --lib wire::`. -->\n";

/// Sources of the messages, and what is said about them.
const PARTS: [(&str, &str); 5] = [
    ("Clients and the leader", include_str!("messages/directory.rs")),
    ("Clients and nodes", include_str!("messages/value.rs")),
    ("Nodes and the leader", include_str!("messages/member.rs")),
    ("What reports carry", include_str!("messages/news.rs")),
    ("What several of them speak of", include_str!("messages/nouns.rs")),
];

/// What a type is called on the page.
fn word(of: &str) -> String {
    let inside = |outer: &str| of.strip_prefix(outer)?.strip_suffix('>').map(word);
    if let Some(item) = inside("Vec<") {
        return format!("list of {item}");
    }
    if let Some(item) = inside("Option<") {
        return format!("optional {item}");
    }
    match of {
        "String" => "text",
        "ObjectKey" => "key",
        "NodeId" => "node",
        "PutId" => "put id",
        "Media" => "medium",
        "nmc_status_t" => "status",
        "Term" | "Position" | "Name" | "Space" | "Prefix" | "Metadata" | "Card" => return of.to_lowercase(),
        "u32" | "u64" | "i32" | "bool" => return format!("`{of}`"),
        other => {
            let number = number_of(other).map(|number| format!("-{number}")).unwrap_or_default();
            return format!("[`{other}`](#{}{number})", other.to_lowercase());
        }
    }
    .into()
}

/// A comment as Markdown: links between messages become plain names.
fn plain(comment: &str) -> String {
    comment.replace("[`", "`").replace("`]", "`").replace("::", ".").replace('|', "\\|")
}

/// Number on the wire of the messages whose name is this.
fn number_of(name: &str) -> Option<&'static str> {
    let list = include_str!("messages/mod.rs");
    let at = list.find(&format!(" => {name}({name}),"))?;
    list[..at].rsplit(' ').next()
}

/// The tables: a line of a source is a comment, the beginning or end of a struct or choice, or one of its fields.
fn tables() -> String {
    let mut page = String::new();
    for (title, source) in PARTS {
        _ = writeln!(page, "\n### {title}");
        let (mut comment, mut inside) = (String::new(), false);
        for line in source.lines().map(str::trim) {
            if let Some(more) = line.strip_prefix("/// ") {
                comment = format!("{comment} {more}");
                continue;
            }
            let said = plain(std::mem::take(&mut comment).trim());
            if let Some(name) = line.strip_prefix("pub struct ").and_then(|line| line.split(' ').next()) {
                let number = number_of(name).map(|number| format!(" ({number})")).unwrap_or_default();
                _ = writeln!(page, "\n#### `{name}`{number}\n{said}\n");
                inside = line.ends_with('{');
                if inside {
                    page += "| field | word | |\n|---|---|---|\n";
                }
            } else if let Some((name, _)) = line.strip_prefix("pub enum ").and_then(|line| line.split_once(':')) {
                _ = writeln!(page, "\n#### `{name}`\n{said}\n\n| number | struct | |\n|---|---|---|");
                inside = true;
            } else if line == "}" {
                inside = false;
            } else if let Some((field, of)) =
                line.strip_prefix("pub ").and_then(|line| line.split_once(": ")).filter(|_| inside)
            {
                _ = writeln!(page, "| `{field}` | {} | {said} |", word(of.trim_end_matches(',')));
            } else if let Some((number, variant)) = line.split_once(" => ").filter(|_| inside) {
                let held = variant.split(['(', ')']).nth(1).unwrap_or_default();
                _ = writeln!(page, "| {number} | {} | {said} |", word(held));
            }
        }
    }
    page
}

#[test]
fn the_page_says_what_is_sent() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/protocol.md");
    let page = std::fs::read_to_string(path).unwrap();
    let head = &page[..page.find(MARK).expect("the mark of what is generated") + MARK.len()];
    let expected = format!("{head}{}", tables());
    if std::env::var_os("NMC_BLESS").is_some() {
        std::fs::write(path, &expected).unwrap();
        return;
    }
    assert!(
        page == expected,
        "docs/protocol.md is not what src/cluster/wire/messages says: NMC_BLESS=1 cargo test --lib wire::"
    );
    let grouped = |number: usize| {
        let digits = number.to_string();
        let (head, tail) = digits.split_at(digits.len().saturating_sub(3));
        if head.is_empty() { tail.to_owned() } else { format!("{head},{tail}") }
    };
    for limit in [MAX_MESSAGE, MAX_KEYS, MAX_KEY, MAX_NAMESPACE_NAME, MAX_METADATA, Card::MAX] {
        assert!(head.contains(&grouped(limit)), "the page does not name {}", grouped(limit));
    }
    assert!(head.contains(&format!("| 3 | version | {} |", MAGIC >> 24)));
    for media in Media::ALL {
        let said = format!("{} {}", media.code(), format!("{media:?}").to_uppercase());
        assert!(head.contains(&said), "the page does not say {said}");
    }
}

#[test]
fn every_message_is_on_the_page() {
    let page = tables();
    for line in include_str!("messages/mod.rs").lines().map(str::trim) {
        if !line.starts_with(|first: char| first.is_ascii_digit()) {
            continue;
        }
        let name = line.split([' ', '(']).nth(2).unwrap();
        let number = line.split(' ').next().unwrap();
        assert!(page.contains(&format!("#### `{name}` ({number})\n")), "{line}");
    }
}
