//! Output: no panic when the reader of a pipe has gone.

use std::io::Write as _;
use std::time::{Duration, Instant};

/// Writes to stdout.
pub fn out(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes to stderr.
pub fn error(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Passes lines on, and only counts those of one moment that are too many: whoever connects can cause some, and must not be able
/// to fill a disk.
#[derive(Debug, Default)]
pub struct Few {
    since: Option<Instant>,
    said: u32,
    left_out: u32,
}

impl Few {
    /// Lines of one moment.
    const MOST: u32 = 20;
    /// How long one is.
    const MOMENT: Duration = Duration::from_secs(10);

    /// What is to be said when somebody wants to say this now.
    pub fn pass(&mut self, line: &str, now: Instant) -> Option<String> {
        if self.since.is_none_or(|since| now >= since + Self::MOMENT) {
            let left_out = std::mem::take(&mut self.left_out);
            (self.since, self.said) = (Some(now), 1);
            return Some(if left_out > 0 {
                format!("{line} ({left_out} more were not shown)")
            } else {
                line.to_owned()
            });
        }
        if self.said >= Self::MOST {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.said += 1;
        Some(line.to_owned())
    }
}

/// Something that somebody should look at, and that does not end the program.
pub fn warn(text: &str) {
    error(&format!("nanomc-master: warning: {text}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_lines_only_the_number_is_told() {
        let (mut few, start) = (Few::default(), Instant::now());
        let passed = (0..100).filter_map(|_| few.pass("x", start)).count();
        assert_eq!(passed, 20);
        assert_eq!(few.pass("y", start + Few::MOMENT).as_deref(), Some("y (80 more were not shown)"));
        assert_eq!(few.pass("z", start + Few::MOMENT).as_deref(), Some("z"));
    }
}
