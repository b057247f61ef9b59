//! `nmc doctor`: what the machine offers, what is missing for which feature, and how to get it. Features are tried
//! rather than looked up where that is cheap. A missing GPU is a fact, not an error; only a machine on which host heaps
//! cannot work makes the command fail.

mod cluster;
mod cuda;
mod host;
mod world;

use crate::Outcome;
use crate::args::Parsed;
use crate::json::{self, Object};
use crate::term::{self, Style, Tone};
use std::process::ExitCode;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// As it should be.
    Ok,
    /// Works, but not as well as it could.
    Warn,
    /// Not there.
    Missing,
}

/// One fact about the machine.
#[derive(Debug, Clone)]
pub struct Check {
    /// `group.fact`.
    pub name: String,
    /// How it came out.
    pub status: Status,
    /// What was found.
    pub value: String,
    /// What needs it.
    pub needed_for: &'static str,
    /// What to do; empty when nothing has to be done.
    pub remedy: String,
}

impl Check {
    /// A fact that is as it should be.
    pub fn ok(name: impl Into<String>, value: impl Into<String>, needed_for: &'static str) -> Self {
        Self { name: name.into(), status: Status::Ok, value: value.into(), needed_for, remedy: String::new() }
    }

    /// The same fact with a reason to worry.
    #[must_use]
    pub fn warn_if(self, bad: bool, remedy: impl Into<String>) -> Self {
        if bad { Self { status: Status::Warn, remedy: remedy.into(), ..self } } else { self }
    }

    /// The same fact as something that is not there.
    #[must_use]
    pub fn missing_if(self, bad: bool, remedy: impl Into<String>) -> Self {
        if bad { Self { status: Status::Missing, remedy: remedy.into(), ..self } } else { self }
    }

    /// A trial of something that must work.
    pub fn tried(name: &str, result: std::io::Result<()>, needed_for: &'static str, remedy: impl Into<String>) -> Self {
        match result {
            Ok(()) => Self::ok(name, "works", needed_for),
            Err(cause) => Self::ok(name, cause.to_string(), needed_for).missing_if(true, remedy),
        }
    }

    fn group(&self) -> &str {
        self.name.split_once('.').map_or(self.name.as_str(), |(group, _)| group)
    }

    fn fact(&self) -> &str {
        self.name.split_once('.').map_or(self.name.as_str(), |(_, fact)| fact)
    }

    fn to_json(&self) -> String {
        let status = match self.status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Missing => "missing",
        };
        Object::new()
            .text("name", &self.name)
            .text("status", status)
            .text("value", &self.value)
            .text("needed_for", self.needed_for)
            .text("remedy", &self.remedy)
            .finish()
    }
}

/// Whether the machine can run a capability.
#[derive(Debug, Clone)]
pub struct Feature {
    name: &'static str,
    available: bool,
    /// Why not, or under which condition.
    reason: String,
}

impl Feature {
    /// Available unless one of `needed` is missing.
    fn from_checks(name: &'static str, checks: &[Check], needed: &[&str]) -> Self {
        let lacking = checks.iter().find(|c| c.status == Status::Missing && needed.contains(&c.name.as_str()));
        let reason = lacking.map_or_else(String::new, |c| format!("{}: {}", c.name, c.value));
        Self { name, available: lacking.is_none(), reason }
    }
}

/// Runs the command.
pub fn run(args: &Parsed) -> Outcome {
    let mut checks = host::checks();
    checks.extend(world::checks());
    let (cuda_checks, cuda_reason) = cuda::checks();
    checks.extend(cuda_checks);
    checks.extend(cluster::checks());
    let features = features(&checks, cuda_reason);
    let host_heaps = features.iter().any(|f| f.name == HOST_HEAPS && f.available);
    if args.has("--json") {
        term::print(&to_json(&checks, &features));
    } else {
        term::print(&for_people(&checks, &features, Style::stdout()));
    }
    Ok(if host_heaps { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const HOST_HEAPS: &str = "host heaps";

fn features(checks: &[Check], cuda_reason: Option<String>) -> Vec<Feature> {
    let host = Feature::from_checks(HOST_HEAPS, checks, world::NEEDED);
    let on_host = |name, needed: &[&str]| match &host {
        Feature { available: true, .. } => Feature::from_checks(name, checks, needed),
        missing => Feature { name, available: false, reason: missing.reason.clone() },
    };
    let cuda = match cuda_reason {
        None => on_host("CUDA heaps", &[]),
        Some(reason) => Feature { name: "CUDA heaps", available: false, reason },
    };
    let lacks = |name: &str| checks.iter().any(|c| c.name == name && c.status != Status::Ok);
    let but = |feature: Feature, reason: &str, lacks: bool| match feature.available && lacks {
        true => Feature { reason: reason.to_owned(), ..feature },
        false => feature,
    };
    let tier = but(on_host("SSD tier", &[]), "one request at a time, without io_uring", lacks("kernel.io_uring"));
    let alone = "with a single master, since no etcd was found here";
    let cluster = but(on_host("cluster", &[]), alone, lacks("cluster.etcd"));
    let rdma = on_host("cluster over RDMA", &["cluster.nixl"]);
    vec![host, cuda, tier, cluster, rdma]
}

fn to_json(checks: &[Check], features: &[Feature]) -> String {
    let features = features
        .iter()
        .map(|f| Object::new().text("name", f.name).flag("available", f.available).text("reason", &f.reason).finish());
    let report = Object::new()
        .text("version", env!("CARGO_PKG_VERSION"))
        .raw("checks", &json::array(checks.iter().map(Check::to_json)))
        .raw("features", &json::array(features));
    format!("{}\n", report.finish())
}

fn for_people(checks: &[Check], features: &[Feature], style: Style) -> String {
    let width = checks.iter().map(|c| c.fact().chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    let mut group = "";
    for check in checks {
        if check.group() != group {
            group = check.group();
            let gap = if text.is_empty() { "" } else { "\n" };
            text.push_str(&format!("{gap}{}\n", style.paint(Tone::Strong, group)));
        }
        let mark = match check.status {
            Status::Ok => style.paint(Tone::Good, "✓"),
            Status::Warn => style.paint(Tone::Warn, "!"),
            Status::Missing => style.paint(Tone::Bad, "✗"),
        };
        text.push_str(&format!("  {mark} {}  {}\n", term::pad(check.fact(), width), check.value));
        if check.status != Status::Ok {
            let advice = format!("for {}; {}", check.needed_for, check.remedy);
            text.push_str(&format!("    {}  {}\n", " ".repeat(width), style.paint(Tone::Quiet, &advice)));
        }
    }
    text.push_str(&format!("\n{}\n", style.paint(Tone::Strong, "what this machine can run")));
    let width = features.iter().map(|f| f.name.chars().count()).max().unwrap_or(0);
    for feature in features {
        let name = term::pad(&format!("{}:", feature.name), width + 1);
        let line = match (feature.available, feature.reason.is_empty()) {
            (true, true) => format!("  {} {name} yes", style.paint(Tone::Good, "✓")),
            (true, false) => format!("  {} {name} yes, {}", style.paint(Tone::Good, "✓"), feature.reason),
            (false, _) => format!("  {} {name} no, because {}", style.paint(Tone::Bad, "✗"), feature.reason),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Time for a trial allocation.
fn trial_deadline() -> nanomc::base::Deadline {
    nanomc::base::Deadline::after(std::time::Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_part_takes_the_feature_with_it_and_is_named() {
        let lost = |name| Check::ok(name, "was not found", "").missing_if(true, "install it");
        let features = features(&[lost("cluster.nixl"), lost("cluster.etcd"), lost("kernel.io_uring")], None);
        let of = |name| features.iter().find(|f| f.name == name).map(|f| (f.available, f.reason.as_str())).unwrap();
        assert_eq!(of(HOST_HEAPS), (true, ""));
        assert_eq!(of("cluster over RDMA"), (false, "cluster.nixl: was not found"));
        // What does without it says so.
        assert!(of("cluster").0 && of("cluster").1.contains("a single master"));
        assert!(of("SSD tier").0 && of("SSD tier").1.contains("without io_uring"));
    }

    #[test]
    fn with_everything_there_is_nothing_to_say() {
        let found = ["cluster.nixl", "cluster.etcd", "kernel.io_uring"].map(|name| Check::ok(name, "works", ""));
        assert!(features(&found, None).iter().all(|f| f.available && f.reason.is_empty()));
    }

    #[test]
    fn without_host_heaps_nothing_runs() {
        let lost = Check::ok("world.memfd", "no", "").missing_if(true, "");
        let features = features(&[lost], None);
        assert!(features.iter().all(|f| !f.available && f.reason == "world.memfd: no"));
    }
}
