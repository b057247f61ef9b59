//! Area `kv`, first part: blocks of a KV cache, taken and given through the C ABI. Other allocators are measured by a program of its
//! own (`benches/`), which does the same work in the same invocation; without it, `malloc` stands in.

use super::kv_library::{Blocks, Malloc};
use super::kv_load::{self, BATCH_BLOCKS, Figures, RUN_BLOCKS};
use super::{Better, Metric, Run, kv_cache, median, outside};
use crate::args::Failure;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How many metrics [`measure`] adds.
pub const METRICS: usize = 4 + kv_cache::METRICS;

/// Longest run of the other program.
const LIMIT: Duration = Duration::from_secs(300);
const PEERS: &str = "kv.peers";
const NOT_BUILT: &str = "peers not built; malloc and free of a byte a block";

const BATCHES: &str = "kv.alloc_free.batch100";
/// For each number of blocks.
const RUNS: [&str; 3] = ["kv.run_alloc.2k", "kv.run_alloc.128k", "kv.run_alloc.1M"];

/// Adds the metrics of the area.
pub fn measure(run: &mut Run) {
    let mut peers = HashMap::new();
    run.measure(PEERS, |run| {
        peers = figures_of_peers(run)?;
        Ok(())
    });
    run.measure(BATCHES, |run| batches(run, &peers));
    for (name, (size, blocks)) in RUNS.into_iter().zip(RUN_BLOCKS) {
        let peer = peers.get(&format!("offset-allocator run_alloc.{size}")).copied();
        run.measure(name, |run| runs(run, name, blocks, peer));
    }
    kv_cache::measure(run, &peers);
}

fn add(
    run: &mut Run,
    name: &'static str,
    value: f64,
    unit: &'static str,
    peer: Option<f64>,
    peer_name: &'static str,
    other: f64,
) {
    let (baseline_name, baseline) = peer.map_or((NOT_BUILT, other), |figure| (peer_name, figure));
    run.add(Metric { name, value, unit, better: Better::Lower, baseline_name, baseline });
}

fn batches(run: &mut Run, peers: &HashMap<String, f64>) -> Result<(), Failure> {
    let (samples, per_sample) = (run.reps(3, 501), run.reps(200, 1_000));
    let full = || Failure::new("there are too few blocks");
    let mut ours = Blocks::create(BATCH_BLOCKS)?;
    let figures = kv_load::batches(&mut ours, samples, per_sample);
    ours.check()?;
    let mut plain = kv_load::batches(&mut Malloc, samples, per_sample).ok_or_else(full)?;
    let value = median(&mut figures.ok_or_else(full)?);
    let peer = peers.get("kvbm-logical alloc_free.batch100").copied();
    add(run, BATCHES, value, "ns/block", peer, "kvbm-logical 1.6", median(&mut plain));
    Ok(())
}

fn runs(run: &mut Run, name: &'static str, blocks: u32, peer: Option<f64>) -> Result<(), Failure> {
    let (samples, per_sample) = (run.reps(3, 501), run.reps(2_000, 5_000));
    let mut ours = Blocks::create(blocks)?;
    let Figures { mut ns, .. } = kv_load::runs(&mut ours, blocks, samples, per_sample);
    ours.check()?;
    let mut plain = kv_load::runs(&mut Malloc, blocks, samples, per_sample);
    add(run, name, median(&mut ns), "ns/op", peer, "offset-allocator", median(&mut plain.ns));
    Ok(())
}

/// What the other program measured, by the name of the peer and of the work.
fn figures_of_peers(run: &mut Run) -> Result<HashMap<String, f64>, Failure> {
    let Some(program) = run.peers.clone() else {
        run.skip(PEERS, "not built: `cargo build --release` in benches/, then --peers benches/target/release/kv_peers");
        return Ok(HashMap::new());
    };
    let quick = run.is_quick().then_some("--quick");
    let mut command = Command::new(&program);
    command.args(quick);
    crate::sys::end_with_this_process(&mut command);
    let (ended, text) = outside::output(&mut command, LIMIT)?;
    parse(&program, &text).and_then(|found| match ended.success() {
        true => Ok(found),
        false => Err(Failure::new(format!("{}: {ended}", program.display()))),
    })
}

fn parse(program: &Path, text: &str) -> Result<HashMap<String, f64>, Failure> {
    let mut found = HashMap::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let value = |name: &str| line.split_once(&format!("\"{name}\":")).map(|(_, rest)| rest.trim_start());
        let word = |name: &str| value(name)?.strip_prefix('"')?.split_once('"').map(|(text, _)| text);
        let ns = value("ns").and_then(|rest| rest.split([',', '}']).next()?.trim().parse::<f64>().ok());
        match (word("peer"), word("work"), ns) {
            (Some(peer), Some(work), Some(ns)) if ns > 0.0 => found.insert(format!("{peer} {work}"), ns),
            _ => return Err(Failure::new(format!("{}: not a figure: {line}", program.display()))),
        };
    }
    if found.is_empty() {
        return Err(Failure::new(format!("{} printed no figures", program.display())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_other_program_is_a_figure() {
        let good = r#"{"peer":"offset-allocator","work":"run_alloc.2k","ns":31.5,"refused":0.25,"load":0.9}"#;
        let found = parse(Path::new("x"), &format!("# a note\n{good}\n")).ok();
        assert_eq!(found.and_then(|found| found.get("offset-allocator run_alloc.2k").copied()), Some(31.5));
        for bad in ["", "# a note", "{}", &good.replace("31.5", "null"), &good.replace("\"ns\"", "\"n\"")] {
            assert!(parse(Path::new("x"), bad).is_err(), "{bad}");
        }
    }
}
