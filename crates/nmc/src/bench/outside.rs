//! Programs outside of this one that measure: started, waited for, and what they print.

use crate::args::Failure;
use std::io::Read as _;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Runs a program that prints a few lines, which the pipe holds; kills it after `limit`.
pub fn output(command: &mut Command, limit: Duration) -> Result<(ExitStatus, String), Failure> {
    let name = command.get_program().display().to_string();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::os(format!("starting {name}"), &e))?;
    let start = Instant::now();
    let ended = loop {
        match child.try_wait() {
            Ok(None) if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(50)),
            Ok(None) => {
                let _ = child.kill().and_then(|()| child.wait());
                return Err(Failure::new(format!("{name} took longer than {limit:?}")));
            }
            Ok(Some(status)) => break status,
            Err(e) => return Err(Failure::os(format!("waiting for {name}"), &e)),
        }
    };
    let mut text = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut text).map_err(|e| Failure::os(format!("reading what {name} prints"), &e))?;
    }
    Ok((ended, text))
}
