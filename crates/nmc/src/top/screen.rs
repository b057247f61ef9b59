//! What `nmc top` shows, as lines of a width: columns that have no room are left out, the least important first, and then names are cut.
//! With a height lists are cut too; what is not as it should be comes first in each.

use super::cluster::{Cluster, Master};
use super::http::Place;
use crate::facts;
use crate::term::{self, Style, Tone};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Columns of a bar.
const BAR: usize = 20;
/// What is said of the leader goes on in the next line after so many, however wide a line may be.
const HEAD: usize = 100;
/// What is older is not what is: a master hangs, or is asked rarely.
const OLD: Duration = Duration::from_secs(5);
/// A name is not cut to less.
const SHORTEST: usize = 8;

/// A master that was asked, and what it said or why not.
pub struct Asked {
    /// Where it listens.
    pub place: Place,
    /// The last answer; none before the first.
    pub said: Option<Result<Master, String>>,
    /// Lookups in a second since the answer before, by their names.
    pub rates: Vec<(String, f64)>,
}

/// How much room there is.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Columns.
    pub width: usize,
    /// Lines; none if all may be shown.
    pub height: Option<usize>,
}

/// The one that leads, of all that were asked: of two the later one.
pub fn leader(asked: &[Asked]) -> Option<(&Asked, &Master, &Cluster)> {
    let leads = asked.iter().filter_map(|asked| match &asked.said {
        Some(Ok(master)) => Some((asked, master, master.cluster.as_ref()?)),
        _ => None,
    });
    leads.max_by_key(|(_, master, _)| master.term)
}

#[derive(Clone)]
struct Cell {
    text: String,
    tone: Option<Tone>,
}

fn cell(text: impl AsRef<str>) -> Cell {
    Cell { text: term::clean(text.as_ref()), tone: None }
}

fn toned(tone: Tone, text: impl AsRef<str>) -> Cell {
    Cell { tone: Some(tone), ..cell(text) }
}

/// A column: whether its text is at the right, and its rank: the highest goes first where there is no room.
struct Column(bool, u8);

const LEFT: bool = false;
const RIGHT: bool = true;

/// A section: what is above, and rows of cells, whose first is a name.
struct Section {
    title: String,
    columns: &'static [Column],
    rows: Vec<Vec<Cell>>,
    /// What is said if there is no row.
    none: &'static str,
}

fn width_of(text: &str) -> usize {
    text.chars().map(term::columns).sum()
}

fn tone(state: &str) -> Tone {
    match state {
        "active" | "leader" => Tone::Good,
        "joining" | "reporting" | "silent" | "draining" | "standby" => Tone::Warn,
        _ => Tone::Bad,
    }
}

/// 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn percent(part: u64, all: u64) -> String {
    if all == 0 { "–".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / all as f64) }
}

fn bar(part: u64, all: u64) -> String {
    let full = u128::from(part.min(all)) * BAR as u128 / u128::from(all.max(1));
    let full = usize::try_from(full).unwrap_or(BAR);
    format!("{}{}", "#".repeat(full), ".".repeat(BAR - full))
}

/// The time of a day in UTC, and the day if it is not today.
fn moment(ms: u64) -> String {
    let seconds = ms / 1000;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let day = if seconds / 86_400 == now / 86_400 { String::new() } else { format!("{} ", facts::date(seconds)) };
    let (h, m, s) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{day}{h:02}:{m:02}:{s:02} UTC")
}

fn now() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    moment(u64::try_from(now.as_millis()).unwrap_or(0))
}

fn section(title: impl Into<String>, columns: &'static [Column], none: &'static str) -> Section {
    Section { title: title.into(), columns, rows: Vec::new(), none }
}

/// Everything.
pub fn lines(asked: &[Asked], room: Room, style: Style) -> Vec<String> {
    let mut lines = Vec::new();
    let leading = leader(asked);
    let head = match leading {
        Some((asked, master, cluster)) => {
            let mut words = vec![
                toned(Tone::Strong, format!("nanomc-master {}", master.version)),
                cell(asked.place.to_string()),
                toned(tone(&master.role), &master.role),
                cell(format!("term {}", master.term.unwrap_or(0))),
                if cluster.settled { cell("settled") } else { toned(Tone::Warn, "not settled: members still report") },
                toned(Tone::Quiet, now()),
            ];
            let age = master.asked.elapsed();
            if age >= OLD {
                words.push(toned(Tone::Warn, format!("as of {} s ago", age.as_secs())));
            }
            words.extend(cluster.figures.iter().map(|(name, figure)| cell(format!("{name} {}", grouped(*figure)))));
            words
        }
        None => {
            let state = match asked.iter().all(|asked| asked.said.is_none()) {
                true => toned(Tone::Quiet, "asking"),
                false => toned(Tone::Bad, "no leader: nothing is known of the cluster"),
            };
            vec![toned(Tone::Strong, "nmc top"), state, toned(Tone::Quiet, now())]
        }
    };
    lines.extend(wrapped(&head, room.width.min(HEAD), style));
    // One that leads, alone, has been told of above.
    if asked.len() > 1 || leading.is_none() {
        lines.extend(masters(asked, leading.map(|(leading, ..)| leading), room.width, style));
    }
    let mut lists = Vec::new();
    if let Some((asked, master, cluster)) = leading {
        let lookups = lookups(asked, cluster);
        lines.extend(lookups.lines(lookups.rows.len(), room.width, style));
        lists = vec![segments(cluster), members(cluster), slow(master)];
    }
    let shares = match room.height {
        Some(height) => {
            shares(&lists, height.saturating_sub(lines.len() + lists.iter().map(|list| list.above()).sum::<usize>()))
        }
        None => lists.iter().map(|list| list.rows.len()).collect(),
    };
    for (section, share) in lists.iter().zip(shares) {
        lines.extend(section.lines(share, room.width, style));
    }
    lines.truncate(room.height.unwrap_or(usize::MAX));
    lines
}

/// Words that belong together, as many in a line as there is room for.
fn wrapped(words: &[Cell], width: usize, style: Style) -> Vec<String> {
    let (mut lines, mut taken) = (vec![String::new()], 0);
    for word in words {
        let text = term::cut(&word.text, width);
        let needed = width_of(&text);
        if taken > 0 && taken + 3 + needed > width {
            lines.push(String::new());
            taken = 0;
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(if taken > 0 { "   " } else { "" });
            line.push_str(&paint(style, word.tone, &text));
        }
        taken += needed + if taken > 0 { 3 } else { 0 };
    }
    lines
}

fn paint(style: Style, tone: Option<Tone>, text: &str) -> String {
    tone.map_or_else(|| text.to_owned(), |tone| style.paint(tone, text))
}

/// Rows that each list gets: all the same, and what one does not need goes to the others.
fn shares(lists: &[Section], mut rows: usize) -> Vec<usize> {
    let mut shares = vec![0; lists.len()];
    loop {
        let mut given = false;
        for (share, list) in shares.iter_mut().zip(lists) {
            if rows > 0 && *share < list.rows.len() {
                (*share, rows, given) = (*share + 1, rows - 1, true);
            }
        }
        if !given {
            return shares;
        }
    }
}

impl Section {
    /// Lines that are not rows of it: an empty one, the heading, and what is said if there is no row.
    fn above(&self) -> usize {
        2 + usize::from(self.rows.is_empty())
    }

    fn lines(&self, rows: usize, width: usize, style: Style) -> Vec<String> {
        let left_out = self.rows.len().saturating_sub(rows);
        // The line that says so takes the place of a row.
        let rows = if left_out > 0 { rows.saturating_sub(1) } else { rows };
        let shown = self.rows.get(..rows).unwrap_or_default();
        let widest = |at: usize| {
            let cells = shown.iter().filter_map(|row| row.get(at)).map(|cell| width_of(&cell.text));
            cells.max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.columns.len()).map(widest).collect();
        // A column that says nothing takes no place.
        let mut kept: Vec<usize> = (0..self.columns.len()).filter(|at| *at == 0 || widths[*at] > 0).collect();
        let needed = |kept: &[usize], widths: &[usize]| kept.iter().map(|at| widths[*at] + 2).sum::<usize>();
        while needed(&kept, &widths) > width {
            // Names are cut before the most important column goes, and after all others have gone.
            let over = needed(&kept, &widths) - width;
            let least = kept.iter().copied().filter(|at| *at > 0).max_by_key(|at| self.columns[*at].1);
            match least {
                Some(at) if kept.len() > 2 || widths[0] < SHORTEST + over => kept.retain(|other| *other != at),
                _ => {
                    widths[0] = widths[0].saturating_sub(over);
                    break;
                }
            }
        }
        let mut lines = vec![String::new(), style.paint(Tone::Strong, &term::cut(&self.title, width))];
        if self.rows.is_empty() {
            lines.push(style.paint(Tone::Quiet, &term::cut(&format!("  {}", self.none), width)));
        }
        for row in shown {
            let mut line = String::new();
            for at in &kept {
                let Some(cell) = row.get(*at) else { continue };
                let text = term::cut(&cell.text, widths[*at]);
                line.push_str("  ");
                line.push_str(&paint(style, cell.tone, &self.padded(*at, &text, widths[*at])));
            }
            lines.push(line.trim_end().to_owned());
        }
        if left_out > 0 {
            let more = format!("  … {} more", self.rows.len() - rows);
            lines.push(style.paint(Tone::Quiet, &term::cut(&more, width)));
        }
        lines
    }

    fn padded(&self, at: usize, text: &str, width: usize) -> String {
        if self.columns[at].0 { term::pad_left(text, width) } else { term::pad(text, width) }
    }
}

/// Each master with how it stands. What goes wrong is told whole, in as many lines as it takes.
fn masters(asked: &[Asked], leading: Option<&Asked>, width: usize, style: Style) -> Vec<String> {
    let mut lines = vec![String::new(), style.paint(Tone::Strong, &term::cut("Masters", width))];
    for one in asked {
        let (tone, state) = match &one.said {
            None => (Tone::Quiet, "asked".to_owned()),
            Some(Err(why)) => (Tone::Bad, format!("{why}; it is asked again")),
            Some(Ok(master)) => {
                let later = leading.is_some_and(|leading| leading.place != one.place);
                let role = if master.cluster.is_some() && later { "earlier leader" } else { &master.role };
                let term = master.term.map_or(String::new(), |term| format!(", term {term}"));
                let leads = &master.follows;
                let leads = if leads.is_empty() { String::new() } else { format!(", {leads} leads") };
                (tone(role), format!("{role}{term}{leads}"))
            }
        };
        let mut line = term::cut(&format!("  {} ", one.place), width);
        let mut taken = width_of(&line);
        for word in term::clean(&state).split(' ') {
            let word = term::cut(word, width.saturating_sub(4));
            if taken + 1 + width_of(&word) > width {
                lines.push(std::mem::replace(&mut line, "   ".to_owned()));
                taken = 3;
            }
            taken += 1 + width_of(&word);
            line.push(' ');
            line.push_str(&style.paint(tone, &word));
        }
        lines.push(line);
    }
    lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
}

fn lookups(asked: &Asked, cluster: &Cluster) -> Section {
    const COLUMNS: &[Column] =
        &[Column(LEFT, 0), Column(RIGHT, 1), Column(RIGHT, 2), Column(LEFT, 4), Column(RIGHT, 3)];
    let all = cluster.lookups.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
    let mut section = section("Lookups", COLUMNS, "none yet");
    for (name, count) in cluster.lookups.iter().filter(|(_, count)| *count > 0) {
        let missed = ["missing", "unknown"].contains(&name.as_str());
        let rate = asked.rates.iter().find(|(other, _)| other == name);
        section.rows.push(vec![
            cell(name),
            toned(if missed { Tone::Warn } else { Tone::Good }, percent(*count, all)),
            cell(format!("{} {}", grouped(*count), if *count == 1 { "key" } else { "keys" })),
            cell(bar(*count, all)),
            cell(rate.map_or(String::new(), |(_, rate)| format!("{rate:.0}/s"))),
        ]);
    }
    section
}

fn segments(cluster: &Cluster) -> Section {
    const COLUMNS: &[Column] = &[
        Column(LEFT, 0),
        Column(LEFT, 1),
        Column(RIGHT, 2),
        Column(RIGHT, 3),
        Column(LEFT, 6),
        Column(LEFT, 4),
        Column(LEFT, 5),
    ];
    let sum =
        |of: fn(&super::cluster::Segment) -> u64| cluster.segments.iter().map(|s| u128::from(of(s))).sum::<u128>();
    let shown = |bytes: u128| facts::size(u64::try_from(bytes).unwrap_or(u64::MAX));
    let (used, capacity) = (shown(sum(|s| s.used)), shown(sum(|s| s.capacity)));
    let title = match cluster.segments.len() {
        0 => "Segments".to_owned(),
        count => format!("Segments: {}, {used} of {capacity}", grouped(count as u64)),
    };
    let mut section = section(title, COLUMNS, "none");
    let mut all: Vec<_> = cluster.segments.iter().collect();
    let full = |used: u64, capacity: u64| u128::from(used) * 10_000 / u128::from(capacity.max(1));
    all.sort_by_key(|s| (s.state == "active", std::cmp::Reverse(full(s.used, s.capacity))));
    for segment in all {
        section.rows.push(vec![
            cell(&segment.name),
            toned(tone(&segment.state), &segment.state),
            cell(format!("{} of {}", facts::size(segment.used), facts::size(segment.capacity))),
            cell(percent(segment.used, segment.capacity)),
            cell(bar(segment.used, segment.capacity)),
            cell(&segment.media),
            cell(format!("on {}", segment.node)),
        ]);
    }
    section
}

fn members(cluster: &Cluster) -> Section {
    const COLUMNS: &[Column] =
        &[Column(LEFT, 0), Column(LEFT, 1), Column(RIGHT, 2), Column(RIGHT, 5), Column(LEFT, 4), Column(LEFT, 3)];
    let count = cluster.members.len();
    let active = cluster.members.iter().filter(|member| member.state == "active").count();
    let title = if count > 0 { format!("Members: {active} of {count} active") } else { "Members".to_owned() };
    let mut section = section(title, COLUMNS, "none");
    let mut all: Vec<_> = cluster.members.iter().collect();
    all.sort_by_key(|m| (m.state == "active", std::cmp::Reverse(m.silent_ms)));
    for member in all {
        let (silent, owed) = (member.silent_ms as f64 / 1000.0, member.drops_owed);
        section.rows.push(vec![
            cell(&member.name),
            toned(tone(&member.state), &member.state),
            cell(format!("heard {silent:.1} s ago")),
            cell(if owed > 0 { format!("{} drops to confirm", grouped(owed)) } else { String::new() }),
            cell(&member.host),
            cell(&member.endpoint),
        ]);
    }
    section
}

fn slow(master: &Master) -> Section {
    const COLUMNS: &[Column] = &[Column(LEFT, 0), Column(RIGHT, 1), Column(LEFT, 2)];
    let mut section = section("Slow calls", COLUMNS, "none took longer than 100 ms");
    for slow in &master.slow {
        let ms = format!("{} ms", grouped(slow.ms));
        section.rows.push(vec![cell(&slow.method), toned(Tone::Warn, ms), cell(moment(slow.at_ms))]);
    }
    section
}
