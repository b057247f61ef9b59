//! Output: colours only where a person reads them, progress only on a terminal, and no panic when the reader of a pipe
//! has gone.

use std::io::{IsTerminal as _, Write as _};

/// Writes to stdout. A reader that went away has seen what it wanted.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
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

/// Pads to a width counted in characters, which `{:<n}` does not do for coloured text.
pub fn pad(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    format!("{text}{}", " ".repeat(missing))
}

/// Like [`pad`], with the text at the right.
pub fn pad_left(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    format!("{}{text}", " ".repeat(missing))
}
