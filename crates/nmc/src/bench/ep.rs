//! Area `ep`: tokens to their experts and back, 8 ranks of this process on host heaps. What a GPU does is measured by a
//! program that is built with nvcc (benches/gpu/ep_bench.cu); its figures are taken over.

use super::ep_library::{ALL_TOKENS, Party, Steps};
use super::{Better, Metric, Run, median, outside};
use crate::args::Failure;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How many metrics [`measure`] adds, without those of a GPU.
pub const METRICS: usize = 2;

/// Layers of a model, in turn.
const LAYERS: u32 = 58;
/// Longest run of the GPU program.
const LIMIT: Duration = Duration::from_secs(300);
/// By which it says that there is no GPU.
const NO_GPU: i32 = 77;
const GPU: &str = "ep.gpu";

/// Adds the metrics of the area.
pub fn measure(run: &mut Run) {
    run.measure("ep.host", host);
    run.measure(GPU, gpu);
}

fn host(run: &mut Run) -> Result<(), Failure> {
    let mut party = Party::form()?;
    for (steps, name, baseline_name) in [
        (Steps::Exchange, "ep.host.T32", "memcpy of the same rows there and back, one thread, no protocol, no sums"),
        (Steps::Full, "ep.host.full.T32", "memcpy of the same rows through all four steps, one thread, no sums"),
    ] {
        let value = exchange(run, &mut party, steps)?;
        let [ours, baseline] = value.map(|seconds| ALL_TOKENS as f64 / seconds);
        run.add(Metric { name, value: ours, unit: "tokens/s", better: Better::Higher, baseline_name, baseline });
    }
    Ok(())
}

/// Seconds of a step of all ranks, and of its copies alone.
fn exchange(run: &Run, party: &mut Party, steps: Steps) -> Result<[f64; 2], Failure> {
    // Faults the pages in, and says where grouped rows go.
    party.step(0, steps)?;
    party.verify(steps)?;
    let copies = party.copies(steps)?;
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for layer in (0..LAYERS).cycle().take(run.reps(3, 4 * LAYERS as usize + 1)) {
        let start = Instant::now();
        copies.run();
        plain.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        party.step(layer, steps)?;
        ours.push(start.elapsed().as_secs_f64());
    }
    party.verify(steps)?;
    Ok([median(&mut ours), median(&mut plain)])
}

/// Takes over what the GPU program measures, with 8 ranks in its process and with 8 processes.
fn gpu(run: &mut Run) -> Result<(), Failure> {
    let Some(program) = run.gpu.clone() else {
        run.skip(GPU, "GPU figures need --gpu path/to/ep_bench (built from benches/gpu with nvcc)");
        return Ok(());
    };
    for extra in [None, Some("--procs")] {
        if !gpu_run(run, &program, extra)? {
            run.skip(GPU, format!("{} finds no GPU", program.display()));
            break;
        }
    }
    Ok(())
}

/// False when there is no GPU.
fn gpu_run(run: &mut Run, program: &Path, extra: Option<&str>) -> Result<bool, Failure> {
    let quick = run.is_quick().then_some("--quick");
    let mut command = Command::new(program);
    command.arg("--json").args(extra).args(quick);
    crate::sys::end_with_this_process(&mut command);
    let (ended, text) = outside::output(&mut command, LIMIT)?;
    let what = || format!("{} {}", program.display(), extra.unwrap_or_default()).trim_end().to_owned();
    if ended.code() == Some(NO_GPU) {
        return Ok(false);
    }
    // What was measured before a failure is told, too.
    let mut figures = 0;
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let metric = parse(line).ok_or_else(|| Failure::new(format!("{}: not a figure: {line}", what())))?;
        run.add(metric);
        figures += 1;
    }
    match figures {
        _ if !ended.success() => Err(Failure::new(format!("{}: {ended}", what()))),
        0 => Err(Failure::new(format!("{} printed no figures", what()))),
        _ => Ok(true),
    }
}

/// A line such as [`Metric`] writes. Texts without escapes are enough: they are names.
fn parse(line: &str) -> Option<Metric> {
    let value = |name: &str| line.split_once(&format!("\"{name}\":")).map(|(_, rest)| rest.trim_start());
    let text = |name: &str| value(name)?.strip_prefix('"')?.split_once('"').map(|(text, _)| text.to_owned());
    let number = |name: &str| value(name)?.split([',', '}']).next()?.trim().parse::<f64>().ok();
    let unit = text("unit")?;
    Some(Metric {
        better: if unit.ends_with("/s") { Better::Higher } else { Better::Lower },
        value: number("value")?,
        baseline: number("baseline")?,
        // Names of metrics are constants everywhere else; these few live as long as the program.
        name: text("name").filter(|name| name.starts_with("ep."))?.leak(),
        unit: unit.leak(),
        baseline_name: text("baseline_name")?.leak(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_gpu_program_is_a_metric() {
        let line = r#"{"name":"ep.x.T32","value":38.5,"unit":"us/layer","baseline_name":"copy floor","baseline":35.0,"ratio":1.1}"#;
        let metric = parse(line).expect("a metric");
        assert_eq!((metric.name, metric.unit, metric.baseline_name), ("ep.x.T32", "us/layer", "copy floor"));
        assert_eq!((metric.value, metric.baseline, metric.better), (38.5, 35.0, Better::Lower));
        for (from, to) in [("35.0", "null"), ("ep.x", "x"), ("\"value\"", "\"v\"")] {
            assert!(parse(&line.replace(from, to)).is_none(), "{to}");
        }
    }
}
