//! Output: colours only where a person reads them, progress only on a terminal, and no panic when the reader of a pipe
//! has gone.

use std::io::{IsTerminal as _, Write as _};

/// Writes to stdout. A reader that went away has seen what it wanted.
pub fn print(text: &str) {
    try_print(text);
}

/// The same; false when the reader went away, for what would go on for ever.
pub fn try_print(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// Writes to stderr.
pub fn print_error(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

fn wants_colour(is_terminal: bool) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    is_terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// How stdout is painted.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    colour: bool,
}

/// What a colour says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Works, but.
    Warn,
    /// Does not work.
    Bad,
    /// Headings.
    Strong,
    /// Details.
    Quiet,
}

impl Style {
    /// The style of stdout.
    pub fn stdout() -> Self {
        Self { colour: wants_colour(std::io::stdout().is_terminal()) }
    }

    /// No colours.
    #[cfg(test)]
    pub fn plain() -> Self {
        Self { colour: false }
    }

    /// `text` in a tone.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Warn => "33",
            Tone::Bad => "31",
            Tone::Strong => "1",
            Tone::Quiet => "2",
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// One line on stderr that says what is going on; nothing when stderr is not a terminal.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Progress on stderr.
    pub fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal() }
    }

    /// Replaces the line.
    pub fn show(&self, text: &str) {
        if self.shown {
            print_error(&format!("\r\x1b[K{text} …"));
        }
    }

    /// Replaces the line by a bar and some words.
    pub fn bar(&self, done: u64, total: u64, text: &str) {
        const WIDTH: usize = 30;
        let percent = usize::try_from(done.saturating_mul(100) / total.max(1)).unwrap_or(0).min(100);
        let full = "#".repeat(percent * WIDTH / 100);
        self.show(&format!("[{full:.<WIDTH$}] {percent:3} %  {text}"));
    }

    /// Removes the line.
    pub fn clear(&self) {
        if self.shown {
            print_error("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Columns that a character takes on a terminal, as far as names are made of such: two in East Asian scripts and for pictures.
pub fn columns(c: char) -> usize {
    let wide = [
        0x1100..=0x115f,
        0x2e80..=0xa4cf,
        0xac00..=0xd7a3,
        0xf900..=0xfaff,
        0xfe30..=0xfe6f,
        0xff00..=0xff60,
        0xffe0..=0xffe6,
        0x1f300..=0x1faff,
        0x20000..=0x3fffd,
    ];
    if wide.iter().any(|range| range.contains(&u32::from(c))) { 2 } else { 1 }
}

/// What others have named, as it can be shown: one line, without anything that a terminal would obey or that takes no place.
pub fn clean(text: &str) -> String {
    let obeyed = |c: char| {
        let invisible = [0x300..=0x36f, 0x200b..=0x200f, 0x2028..=0x202e, 0x2060..=0x206f, 0xfe00..=0xfe0f];
        c.is_control() || c == '\u{feff}' || invisible.iter().any(|range| range.contains(&u32::from(c)))
    };
    text.chars().map(|c| if obeyed(c) { '?' } else { c }).collect()
}

/// `text` in a number of columns: cut with a mark if it is longer, else as it is.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().map(columns).sum::<usize>() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| {
        let (fits, taken) = (columns(*c) <= left, columns(*c));
        left = left.saturating_sub(taken);
        fits
    };
    let mut cut: String = text.chars().take_while(fits).collect();
    cut.push_str(if width > 0 { "…" } else { "" });
    cut
}

/// Pads to a width in columns, which `{:<n}` does not do for coloured text.
pub fn pad(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().map(columns).sum());
    format!("{text}{}", " ".repeat(missing))
}

/// Like [`pad`], with the text at the right.
pub fn pad_left(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().map(columns).sum());
    format!("{}{text}", " ".repeat(missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_others_have_named_a_terminal_obeys_none_of_it() {
        assert_eq!(clean("a\x1b[2J\u{9b}31m\r\nb\u{202e}c\u{200b}"), "a?[2J?31m??b?c?");
        assert_eq!(clean("nöde-1/ram 節"), "nöde-1/ram 節");
    }

    #[test]
    fn texts_are_cut_and_padded_by_columns() {
        assert_eq!(["", "abc", "abcd"].map(|text| cut(text, 3)), ["", "abc", "ab…"]);
        assert_eq!([0, 1, 2, 3, 4].map(|width| cut("節節", width)), ["", "…", "…", "節…", "節節"]);
        assert_eq!((pad("節", 3), pad_left("é", 3)), ("節 ".to_owned(), "  é".to_owned()));
    }
}
