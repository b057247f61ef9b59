//! Reads from SSD against those of Mooncake Store, if it is installed: `scripts/bench_mooncake.sh` starts one with its bucket
//! backend and io_uring in a folder of the same file system. Its reads and ours take turns. The area `cluster` tells the script in the
//! same way what to do.

use super::mooncake::{self, NOT_INSTALLED};
use crate::args::Failure;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A Mooncake Store that does as it is told. It ends with this value.
pub struct Mooncake {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Mooncake {
    /// Starts one that has written its values below `folder`; or why there is none.
    pub fn start(folder: &Path) -> Result<Result<Self, String>, Failure> {
        Self::with(&["--ssd".as_ref(), folder.as_os_str()])
    }

    /// Starts the script with these arguments.
    pub fn with(args: &[&OsStr]) -> Result<Result<Self, String>, Failure> {
        let Some(script) = mooncake::script() else { return Ok(Err(NOT_INSTALLED.into())) };
        let mut child = Command::new("bash")
            .arg(script)
            .args(args)
            .arg(std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| Failure::os("starting bench_mooncake.sh", &e))?;
        let (input, Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            let _ = child.kill().and_then(|()| child.wait());
            return Err(Failure::new("bench_mooncake.sh has no pipes"));
        };
        let mut started = Self { child, input, output: BufReader::new(output) };
        let said = started.heard()?;
        match skipped(&said) {
            Some(why) => Ok(Err(why)),
            None if said.contains("\"ready\"") => Ok(Ok(started)),
            None => Err(Failure::new(format!("bench_mooncake.sh says {said:?} instead of being ready"))),
        }
    }

    /// The next line of its own; its libraries may print others.
    fn heard(&mut self) -> Result<String, Failure> {
        loop {
            let mut line = String::new();
            let read =
                self.output.read_line(&mut line).map_err(|e| Failure::os("reading from bench_mooncake.sh", &e))?;
            if read == 0 {
                return Err(Failure::new("bench_mooncake.sh ended early"));
            }
            if line.starts_with("{\"") {
                return Ok(line.trim_end().to_owned());
            }
        }
    }

    /// µs a value, when it reads `count` of them from disk, one after the other.
    pub fn read(&mut self, count: usize) -> Result<f64, Failure> {
        self.order(&count.to_string(), "get")?.map_err(Failure::new)
    }

    /// The figure of this name that it answers an order with; or why there is none.
    pub fn order(&mut self, order: &str, name: &str) -> Result<Result<f64, String>, Failure> {
        let told = self.input.as_mut().map(|input| writeln!(input, "{order}").and_then(|()| input.flush()));
        told.transpose().map_err(|e| Failure::os("talking to bench_mooncake.sh", &e))?;
        let line = self.heard()?;
        match (mooncake::figure(&line, name), skipped(&line)) {
            (Some(figure), _) => Ok(Ok(figure)),
            (None, Some(why)) => Ok(Err(why)),
            (None, None) => Err(Failure::new(format!("no figure in {line:?}"))),
        }
    }
}

/// Why the script leaves something out.
fn skipped(said: &str) -> Option<String> {
    let (_, why) = said.split_once("\"skipped\": \"")?;
    Some(format!("skipped: {}", why.split('"').next()?))
}

impl Drop for Mooncake {
    fn drop(&mut self) {
        // At the end of its input it ends what it started, which it would not if it were killed at once.
        self.input = None;
        let _ = self.child.wait();
    }
}
