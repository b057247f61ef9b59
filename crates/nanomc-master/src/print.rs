//! Output: no panic when the reader of a pipe has gone.

use std::io::Write as _;

/// Writes to stdout.
pub fn out(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes to stderr.
pub fn error(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Something that somebody should look at, and that does not end the program.
pub fn warn(text: &str) {
    error(&format!("nanomc-master: warning: {text}\n"));
}
