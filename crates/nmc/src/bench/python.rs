//! Area `python`: what the Python package costs on top of the C calls. `python -m nanomc.bench` of the source tree measures, a C program
//! beside it in the same run.

use super::{Better, Metric, Run, outside};
use crate::args::Failure;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Without those that a peer is needed for.
pub const METRICS: usize = 5;

const LIMIT: Duration = Duration::from_secs(600);

/// Adds the metrics of the area.
pub fn measure(run: &mut Run) {
    run.measure("Python", |run| {
        let (venv, package) = (Path::new("python/.venv/bin/python"), Path::new("python/nanomc/bench.py"));
        if !package.exists() {
            run.skip("python", "this is not run in the source tree, which has the package");
            return Ok(());
        }
        let mut command = Command::new(if venv.exists() { venv.as_os_str() } else { "python3".as_ref() });
        command.args(["-m", "nanomc.bench", "--json"]).args(run.is_quick().then_some("--quick"));
        command.env("PYTHONPATH", "python");
        crate::sys::end_with_this_process(&mut command);
        let (ended, text) = outside::output(&mut command, LIMIT)?;
        if !ended.success() {
            run.skip(
                "python",
                "python -m nanomc.bench does not run here; python/test.sh makes the environment that it needs",
            );
            return Ok(());
        }
        parse(&text)?.into_iter().for_each(|metric| run.add(metric));
        Ok(())
    });
}

fn parse(text: &str) -> Result<Vec<Metric>, Failure> {
    let mut found = Vec::new();
    for line in text.lines() {
        let value = |name: &str| line.split_once(&format!("\"{name}\": ")).map(|(_, rest)| rest);
        let word = |name: &str| value(name)?.strip_prefix('"')?.split_once('"').map(|(text, _)| kept(text));
        let number = |name: &str| value(name)?.split([',', '}']).next()?.trim().parse::<f64>().ok();
        // Remarks, and what has no baseline here, are left out.
        let (Some(name), Some(unit), Some(baseline_name)) = (word("name"), word("unit"), word("baseline_name")) else {
            continue;
        };
        let (Some(value), Some(baseline)) = (number("value"), number("baseline")) else { continue };
        let better = if matches!(unit, "ns" | "µs" | "ms" | "s") { Better::Lower } else { Better::Higher };
        found.push(Metric { name, value, unit, better, baseline_name, baseline });
    }
    if found.is_empty() { Err(Failure::new("python -m nanomc.bench printed no figures")) } else { Ok(found) }
}

/// A few words that are there until the program ends.
fn kept(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_package_are_figures() {
        let good = "{\"name\": \"python.get.1KiB\", \"value\": 1.4, \"unit\": \"µs\", \"baseline_name\": \"the same calls in C\", \
                    \"baseline\": 0.1, \"ratio\": 14.0}\n{\"name\": \"python.vs_mooncake\", \"skipped\": \"quick run\"}";
        let found = parse(good).unwrap_or_default();
        assert_eq!(found.len(), 1);
        assert!(found[0].name == "python.get.1KiB" && (found[0].ratio() - 14.0).abs() < 1e-9);
        assert!(found[0].better == Better::Lower && parse("").is_err());
    }
}
