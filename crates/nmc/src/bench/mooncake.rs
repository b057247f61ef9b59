//! The same figures of Mooncake Store, if it is installed: `scripts/bench_mooncake.sh` starts its master and a process
//! that owns the memory, and measures from another one. Ours are those of this very run.

use super::{Better, Metric, Run, outside};
use crate::args::Failure;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const NAME: &str = "store.vs_mooncake";
/// What it would take to have its figures.
pub const NOT_INSTALLED: &str = "not installed: run scripts/bench_mooncake.sh --install";
const LIMIT: Duration = Duration::from_secs(60);
/// What the script prints, ours that it is compared with, and bytes of a value if ours is in GB/s.
const ROWS: [(&str, &str, &str, f64); 7] = [
    ("get_into.64KiB", "store.vs_mooncake.get_into.64KiB", "store.get_into.64KiB", 65_536.0),
    ("get_into.1MiB", "store.vs_mooncake.get_into.1MiB", "store.get_into.1MiB", 1_048_576.0),
    ("put.1MiB", "store.vs_mooncake.put.1MiB", "store.put.1MiB.remote", 1_048_576.0),
    ("put.1KiB", "store.vs_mooncake.put.1KiB", "store.put.1KiB.remote", 0.0),
    ("get.1KiB", "store.vs_mooncake.get.1KiB", "store.get.1KiB", 0.0),
    ("exists", "store.vs_mooncake.exists", "store.exists", 0.0),
    ("put.1KiB.batch128", "store.vs_mooncake.put.1KiB.batch128", "store.put.1KiB.batch128", 0.0),
];

/// Adds a row for each figure that the script gives.
pub fn measure(run: &mut Run) -> Result<(), Failure> {
    if run.is_quick() {
        run.skip(NAME, "skipped: quick run");
        return Ok(());
    }
    let Some(script) = script() else {
        run.skip(NAME, NOT_INSTALLED);
        return Ok(());
    };
    let text = output(&script)?;
    for (theirs, name, ours, bytes) in ROWS {
        let (Some(baseline), Some(value)) = (figure(&text, theirs), run.value(ours)) else {
            return Err(Failure::new(format!("there is no figure {theirs} of Mooncake or no {ours} of ours")));
        };
        let lower = bytes > 0.0 || theirs == "put.1KiB";
        let unit = match theirs {
            _ if lower => "µs",
            "put.1KiB.batch128" => "keys/s",
            _ => "ops/s",
        };
        run.add(Metric {
            name,
            // µs for a value instead of GB/s.
            value: if bytes > 0.0 { bytes / value / 1e3 } else { value },
            unit,
            better: if lower { Better::Lower } else { Better::Higher },
            baseline_name: "Mooncake Store over loopback TCP, same sizes",
            baseline,
        });
    }
    Ok(())
}

/// The script, if what it installs is there.
pub fn script() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let target = program.ancestors().find(|folder| folder.join("mooncake-venv/bin/python").exists())?;
    let script = target.parent()?.join("scripts/bench_mooncake.sh");
    script.is_file().then_some(script)
}

/// What the script prints. Its processes end with it, and it with this process.
fn output(script: &Path) -> Result<String, Failure> {
    let mut command = Command::new("bash");
    command.arg(script).arg("--run").arg(std::process::id().to_string()).stderr(Stdio::null());
    let (ended, text) = outside::output(&mut command, LIMIT)?;
    if ended.success() { Ok(text) } else { Err(Failure::new(format!("{}: {ended}", script.display()))) }
}

/// A value in lines of `{"name": "x", "value": 1.5}`.
pub fn figure(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains(&format!("\"name\": \"{name}\"")))?;
    let (_, rest) = line.split_once("\"value\": ")?;
    rest.split([',', '}']).next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_their_whole_name() {
        let text = "noise\n{\"name\": \"put.1KiB.batch128\", \"value\": 7}\n{\"name\": \"put.1KiB\", \"value\": 1.5, \"unit\": \"us\"}\n";
        assert_eq!(figure(text, "put.1KiB"), Some(1.5));
        assert_eq!(figure(text, "put.1KiB.batch128"), Some(7.0));
        assert_eq!(figure(text, "put"), None);
    }
}
