//! Processes and folders of a benchmark. A [`Rank`] is this program again, as one process of a world; it is killed and
//! reaped when the value goes. Folders are removed when their value goes, or by the interrupt handler.

use super::rank::{Role, SUBCOMMAND};
use crate::args::Failure;
use std::fs::DirBuilder;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

static SCRATCH: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A folder of its own, mostly under the system's folder for temporary files.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A fresh folder that only this user can enter.
    pub fn new() -> Result<Self, Failure> {
        Self::within(&std::env::temp_dir())
    }

    /// The same in another folder than the one for temporary files.
    pub fn within(folder: &Path) -> Result<Self, Failure> {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("nmc-bench-{}-{number}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| Failure::os(format!("making {}", path.display()), &e))?;
        SCRATCH.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
        Ok(Self(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        SCRATCH.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| *path != self.0);
    }
}

/// Removes the folders that are in use, because the process is about to end.
pub fn remove_scratch() {
    for path in SCRATCH.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let _ = std::fs::remove_dir_all(path);
    }
}

/// A process of a benchmark.
#[derive(Debug)]
pub struct Rank {
    number: u32,
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
}

impl Rank {
    /// Starts process `number` of `size`. Only the main thread may: the child dies with the thread that started it.
    pub fn spawn(role: Role, dir: &Path, number: u32, size: u32, heap_bytes: u64) -> Result<Self, Failure> {
        let mut child = Command::new("/proc/self/exe")
            .arg(SUBCOMMAND)
            .arg(role.name())
            .arg(dir)
            .args([number.to_string(), size.to_string(), heap_bytes.to_string(), std::process::id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| Failure::os("starting a process of the benchmark", &e))?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = pipes else {
            let _ = child.kill().and_then(|()| child.wait());
            return Err(Failure::new("a process of the benchmark has no pipes"));
        };
        Ok(Self { number, child, input: Some(input), output })
    }

    /// Waits until it has written a byte: it is ready, or has done what it was told.
    pub fn heard(&mut self) -> Result<u8, Failure> {
        let mut byte = [0];
        self.output
            .read_exact(&mut byte)
            .map_err(|e| Failure::os(format!("process {} of the benchmark ended early", self.number), &e))?;
        Ok(byte[0])
    }

    /// Sends it bytes.
    pub fn tell(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let sent = match &mut self.input {
            Some(input) => input.write_all(bytes),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        sent.map_err(|e| Failure::os(format!("talking to process {} of the benchmark", self.number), &e))
    }

    /// Tells it to leave, without waiting for that.
    pub fn dismiss(&mut self) {
        self.input = None;
    }

    /// Waits until it has left, which it must have been told to.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.dismiss();
        let status = self.child.wait().map_err(|e| Failure::os("waiting for a process of the benchmark", &e))?;
        if status.success() { Ok(()) } else { Err(Failure::new(format!("process {} failed: {status}", self.number))) }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, without waiting for the end.
    pub fn kill(&mut self) -> Result<(), Failure> {
        self.child.kill().map_err(|e| Failure::os("killing a process of the benchmark", &e))
    }

    /// Waits until the kernel reports its end.
    pub fn reap(&mut self) -> Result<(), Failure> {
        self.child.wait().map(drop).map_err(|e| Failure::os("waiting for a process of the benchmark", &e))
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
