//! Arguments of the commands, parsed by a table: what a command takes is what its help says. Anything else is refused
//! with exit code 2 and a line that names it.

use crate::Outcome;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Why a command ended early: a sentence for the user and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// Exit code of the process.
    pub code: u8,
    /// What was wrong and what to do.
    pub message: String,
}

impl Failure {
    /// Something went wrong.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// The command line was not understood.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    /// A failed operating-system call.
    pub fn os(what: impl std::fmt::Display, cause: &std::io::Error) -> Self {
        Self::new(format!("{what}: {cause}"))
    }
}

impl From<nanomc::base::Error> for Failure {
    fn from(error: nanomc::base::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// An option of a command.
pub struct Opt {
    name: &'static str,
    /// Placeholder of its value; `None` for a flag.
    value: Option<&'static str>,
    about: &'static str,
}

impl Opt {
    /// An option that is there or not.
    pub const fn flag(name: &'static str, about: &'static str) -> Self {
        Self { name, value: None, about }
    }

    /// An option with a value.
    pub const fn value(name: &'static str, value: &'static str, about: &'static str) -> Self {
        Self { name, value: Some(value), about }
    }
}

/// A command of `nmc`.
pub struct Command {
    /// First word on the command line.
    pub name: &'static str,
    /// Placeholders of its positional arguments, at most two; empty if it has none.
    pub positional: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Its options.
    pub options: &'static [Opt],
    /// What it does.
    pub run: fn(&Parsed) -> Outcome,
}

/// What the user gave.
#[derive(Debug, Default)]
pub struct Parsed {
    /// `--help` was among it.
    pub help: bool,
    /// The positional argument.
    pub positional: Option<OsString>,
    /// The second one.
    pub second: Option<OsString>,
    given: Vec<(&'static str, Option<OsString>)>,
}

impl Command {
    /// The help text.
    pub fn help(&self) -> String {
        let place = if self.positional.is_empty() { String::new() } else { format!(" {}", self.positional) };
        let mut text = format!("Usage: nmc {}{place} [options]\n\n{}\n", self.name, self.about);
        if !self.options.is_empty() {
            text.push_str("\nOptions:\n");
        }
        for option in self.options {
            let left = format!("{} {}", option.name, option.value.unwrap_or_default());
            text.push_str(&format!("  {left:<18} {}\n", option.about));
        }
        text
    }

    /// Sorts the words after the command's name.
    pub fn parse(&self, words: Vec<OsString>) -> Result<Parsed, Failure> {
        let refuse = |why: String| Failure::usage(format!("{why}; see nmc {} --help", self.name));
        let mut parsed = Parsed::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            if word == "--help" || word == "-h" {
                parsed.help = true;
            } else if word.as_bytes().starts_with(b"-") {
                let (name, attached) = split(&word);
                let Some(option) = self.options.iter().find(|o| name == o.name) else {
                    return Err(refuse(format!("{} has no option {}", self.name, name.display())));
                };
                let value = match (option.value, attached) {
                    (None, None) => None,
                    (None, Some(_)) => return Err(refuse(format!("{} takes no value", option.name))),
                    (Some(_), Some(value)) => Some(value),
                    (Some(what), None) => match words.next() {
                        Some(value) => Some(value),
                        None => return Err(refuse(format!("{} needs a value ({what})", option.name))),
                    },
                };
                parsed.given.push((option.name, value));
            } else {
                let places = [&mut parsed.positional, &mut parsed.second];
                let places = places.into_iter().take(self.positional.split_whitespace().count());
                match places.into_iter().find(|place| place.is_none()) {
                    Some(place) => *place = Some(word),
                    None => return Err(refuse(format!("{} is one argument too many", word.display()))),
                }
            }
        }
        Ok(parsed)
    }
}

fn split(word: &OsStr) -> (&OsStr, Option<OsString>) {
    let bytes = word.as_bytes();
    match bytes.iter().position(|b| *b == b'=') {
        Some(at) => (OsStr::from_bytes(&bytes[..at]), Some(OsStr::from_bytes(&bytes[at + 1..]).to_owned())),
        None => (word, None),
    }
}

impl Parsed {
    /// Whether a flag was given.
    pub fn has(&self, name: &str) -> bool {
        self.given.iter().any(|(n, _)| *n == name)
    }

    /// The value of an option; the last one wins.
    pub fn os(&self, name: &str) -> Option<&OsStr> {
        self.given.iter().rev().find(|(n, _)| *n == name).and_then(|(_, v)| v.as_deref())
    }

    /// The value of an option as a path.
    pub fn path(&self, name: &str) -> Option<&Path> {
        self.os(name).map(Path::new)
    }

    /// The value of an option as text.
    pub fn text(&self, name: &str) -> Result<Option<&str>, Failure> {
        match self.os(name).map(|v| (v, v.to_str())) {
            None => Ok(None),
            Some((_, Some(text))) => Ok(Some(text)),
            Some((raw, None)) => Err(Failure::usage(format!("{name} {} is not UTF-8", raw.display()))),
        }
    }

    /// The value of an option that must be there.
    pub fn required(&self, name: &str) -> Result<&str, Failure> {
        self.text(name)?.ok_or_else(|| Failure::usage(format!("{name} is missing")))
    }

    /// A whole number, if the option is there.
    pub fn number(&self, name: &str) -> Result<Option<u32>, Failure> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| Failure::usage(format!("{name} {text:?} is not a whole number below 2^32")))
    }
}

/// A number of bytes: digits, and KiB, MiB or GiB if wanted.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::ExitCode;

    const OPTIONS: &[Opt] = &[Opt::flag("--json", ""), Opt::value("--name", "NAME", "")];

    fn parse(words: &[&str]) -> Result<Parsed, Failure> {
        let command =
            Command { name: "test", positional: "<what>", about: "", options: OPTIONS, run: |_| Ok(ExitCode::SUCCESS) };
        command.parse(words.iter().map(OsString::from).collect())
    }

    #[test]
    fn options_are_taken_in_both_spellings() -> Result<(), Failure> {
        for words in [["all", "--json", "--name", "x"].as_slice(), &["--name=x", "--json", "all"]] {
            let parsed = parse(words)?;
            assert!(parsed.has("--json") && !parsed.help);
            assert_eq!(parsed.required("--name")?, "x");
            assert_eq!(parsed.positional.as_deref(), Some(OsStr::new("all")));
        }
        Ok(())
    }

    #[test]
    fn what_is_not_in_the_table_is_refused_with_code_2() {
        for words in [["--nam", "x"].as_slice(), &["a", "b"], &["--name"], &["--json=1"]] {
            assert_eq!(parse(words).err().map(|f| f.code), Some(2), "{words:?}");
        }
    }

    #[test]
    fn bytes_are_read_with_and_without_unit() {
        assert_eq!(parse_bytes("4096"), Some(4096));
        assert_eq!(parse_bytes("64MiB"), Some(64 << 20));
        assert_eq!(parse_bytes("2 GiB"), Some(2 << 30));
        for bad in ["", "MiB", "-1", "1TB", "99999999999GiB"] {
            assert_eq!(parse_bytes(bad), None, "{bad}");
        }
    }
}
