//! What was measured, as Markdown.

use crate::measure::{Alone, BATCH, Row, Size};
use std::collections::BTreeMap;
use std::fmt::Write as _;

pub fn tables(rows: &[Row], alone: &BTreeMap<usize, Alone>, left_out: &[Size]) -> String {
    let count = |n: usize| match n {
        n if n >= 1_000_000 && n % 1_000_000 == 0 => format!("{} M", n / 1_000_000),
        n if n >= 10_000 && n % 1000 == 0 => format!("{} k", n / 1000),
        n => n.to_string(),
    };
    let thousands = |n: f64| {
        let text = format!("{n:.0}");
        let parts: Vec<&str> =
            text.as_bytes().rchunks(3).rev().map(|part| std::str::from_utf8(part).unwrap()).collect();
        parts.join(",")
    };
    let mut to = String::new();
    let mut table = |title: &str, heads: &[&str], cells: &dyn Fn(&Row) -> Vec<String>| {
        let _ = write!(
            to,
            "\n**{title}**\n\n| nodes | objects | {} |\n|{}\n",
            heads.join(" | "),
            "---:|".repeat(heads.len() + 2)
        );
        for row in rows {
            let (nodes, objects) = (thousands(row.nodes as f64), count(row.objects));
            let _ = writeln!(to, "| {nodes} | {objects} | {} |", cells(row).join(" | "));
        }
    };
    table(
        "Memory, and a new leader",
        &[
            "memory of the directory",
            "bytes an object",
            "messages of the rebuild",
            "bytes of them",
            "its CPU time",
            "leader dead until all is known",
        ],
        &|row| {
            let objects = (row.memory - alone[&row.nodes].bytes) / row.objects as f64;
            let moved = (row.rebuild.heard_bytes + row.rebuild.said_bytes) as f64;
            vec![
                format!("{:.0} MiB", row.memory / f64::from(1 << 20)),
                format!("{objects:.0}"),
                thousands(row.rebuild.messages() as f64),
                format!("{:.0} MB", moved / 1e6),
                format!("{:.2} s", row.rebuild_s),
                format!("{:.1} s", row.change_s),
            ]
        },
    );
    table(
        "CPU time of the master's thread, µs",
        &[
            "lookup of one key",
            "a key of a batch of 128",
            "`PutStart`",
            "put in all",
            "remove in all",
            "a node joins",
            "a tick, 10 in a second",
            "a copy of a drain",
        ],
        &|row| {
            let figures = [
                row.find_us,
                row.find_key_us,
                row.start_us,
                row.put_us,
                row.remove_us,
                row.join_us,
                row.tick_us,
                row.copy_us,
            ];
            figures.map(|us| if us < 9.95 { format!("{us:.1}") } else { thousands(us) }).to_vec()
        },
    );
    table(
        "What goes on by itself",
        &["messages in a second", "of a core", "messages a put", "messages a remove", "copies of a drain in a second"],
        &|row| {
            vec![
                thousands(row.idle_messages),
                format!("{:.2} %", row.idle_share * 100.0),
                format!("{:.1}", row.put_messages),
                format!("{:.1}", row.remove_messages),
                thousands(row.copies),
            ]
        },
    );
    table(
        "Computed from that: what fills one core",
        &[
            "keys looked up in a second, one by one",
            "in batches of 128",
            "puts in a second",
            "puts of each node in a second",
            "minutes to drain a node",
        ],
        &|row| {
            let socket = alone[&row.nodes].socket_us;
            // Pings come over sockets, too; half of the messages are answers.
            let free = 1.0 - row.idle_share - row.idle_messages / 2.0 * socket / 1e6;
            let rate = |us: f64| free * 1e6 / us;
            let puts = rate(row.put_us + row.put_heard * socket);
            let minutes = row.objects as f64 / row.nodes as f64 / row.copies / 60.0;
            vec![
                thousands(rate(row.find_us + socket)),
                thousands(rate(row.find_key_us + socket / BATCH as f64)),
                thousands(puts),
                thousands(puts / row.nodes as f64),
                format!("{minutes:.1}"),
            ]
        },
    );
    let sockets: Vec<String> = alone
        .iter()
        .map(|(nodes, alone)| format!("{:.1} µs with {}", alone.socket_us, thousands(*nodes as f64)))
        .collect();
    let _ = writeln!(
        to,
        "\nOver sockets a message and its answer take this much more of the thread, by connections: {}.",
        sockets.join(", ")
    );
    // The difference between few and many, since some of it is there without any.
    let ends = (alone.iter().next(), alone.iter().next_back());
    if let (Some((few, less)), Some((many, more))) = ends
        && many > few
    {
        let bytes = (more.bytes - less.bytes) / (many - few) as f64;
        let _ = writeln!(to, "\nA member takes {} bytes of the directory, besides its objects.", thousands(bytes));
    }
    for size in left_out {
        let like = rows.iter().rfind(|row| row.nodes == size.nodes).unwrap();
        let bytes = (like.memory - alone[&like.nodes].bytes) / like.objects as f64;
        let gib = (alone[&size.nodes].bytes + bytes * size.objects as f64) / f64::from(1 << 30);
        let seconds = like.rebuild_s * size.objects as f64 / like.objects as f64;
        let _ = writeln!(
            to,
            "\n{} nodes with {} objects were not simulated, since that takes memory. Computed from {} objects: {gib:.1} GiB, and \
             {seconds:.0} s of CPU time for a rebuild.",
            thousands(size.nodes as f64),
            count(size.objects),
            count(like.objects)
        );
    }
    to
}
