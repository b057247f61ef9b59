//! `nmc bench`: what the library costs, each figure beside a baseline from the same run on the same machine. An area is
//! one file with one function; it adds its metrics to a [`Run`]. Samples of ours and of the baseline are taken in turn,
//! so that a machine that slows down slows both down, and medians are reported.

mod cluster;
mod cluster_frames;
mod cluster_library;
mod cluster_master;
mod cluster_mooncake;
mod cluster_nixl;
mod cluster_plain;
mod cluster_rank;
mod cluster_ways;
mod copy;
mod crowd;
mod ep;
mod ep_library;
mod ffi;
mod kv;
mod kv_cache;
mod kv_cache_library;
mod kv_library;
mod kv_load;
mod library;
mod mooncake;
mod outside;
mod python;
#[path = "../../../../src/base/random.rs"]
mod random;
pub mod rank;
mod report;
mod ssd;
mod ssd_kv;
mod ssd_library;
mod ssd_mooncake;
mod ssd_raw;
mod store;
mod store_library;
mod store_ops;
mod store_rank;
mod svg;
mod world;

use crate::args::{Failure, Parsed};
use crate::json::Object;
use crate::term::{self, Progress, Style, Tone};
use crate::{Outcome, facts, sys};
use std::hint::black_box;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// An area that can be asked for by name.
struct Area {
    name: &'static str,
    /// How many metrics it adds, for the progress line.
    metrics: usize,
    measure: fn(&mut Run),
}

const AREAS: &[Area] = &[
    Area { name: "ffi", metrics: ffi::METRICS, measure: ffi::measure },
    Area { name: "world", metrics: world::METRICS, measure: world::measure },
    Area { name: "store", metrics: store::METRICS, measure: store::measure },
    Area { name: "ssd", metrics: ssd::METRICS, measure: ssd::measure },
    Area { name: "cluster", metrics: cluster::METRICS, measure: cluster::measure },
    Area { name: "ep", metrics: ep::METRICS, measure: ep::measure },
    Area { name: "kv", metrics: kv::METRICS, measure: kv::measure },
    Area { name: "python", metrics: python::METRICS, measure: python::measure },
];

/// Which way is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Times.
    Lower,
    /// Rates.
    Higher,
}

/// One figure and what it is compared with.
#[derive(Debug, Clone)]
pub struct Metric {
    /// `area.what`.
    pub name: &'static str,
    /// Ours.
    pub value: f64,
    /// Unit of both.
    pub unit: &'static str,
    /// Which way is good.
    pub better: Better,
    /// What the baseline is.
    pub baseline_name: &'static str,
    /// The baseline.
    pub baseline: f64,
}

impl Metric {
    /// Ours in units of the baseline.
    pub fn ratio(&self) -> f64 {
        self.value / self.baseline
    }

    /// The area it belongs to.
    pub fn area(&self) -> &str {
        self.name.split_once('.').map_or(self.name, |(area, _)| area)
    }

    fn to_json(&self) -> String {
        Object::new()
            .text("name", self.name)
            .number("value", self.value)
            .text("unit", self.unit)
            .text("baseline_name", self.baseline_name)
            .number("baseline", self.baseline)
            .number("ratio", self.ratio())
            .finish()
    }
}

/// Collects what the areas measure, and shows it in the way that was asked for.
pub struct Run {
    quick: bool,
    json: bool,
    /// What the name of a measurement has in it, if not all are wanted.
    only: Option<String>,
    /// The program that measures on a GPU.
    gpu: Option<PathBuf>,
    /// The program that measures other block allocators.
    peers: Option<PathBuf>,
    expected: usize,
    progress: Progress,
    metrics: Vec<Metric>,
    remarks: Vec<Remark>,
    failures: Vec<String>,
}

/// What is said about a metric or an area besides its figures.
#[derive(Debug, Clone)]
pub struct Remark {
    /// `area.what`, or the area.
    pub name: &'static str,
    /// What is said.
    pub text: String,
}

impl Run {
    /// Whether the figures only have to show that everything works.
    pub fn is_quick(&self) -> bool {
        self.quick
    }

    /// What was measured under this name.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|m| m.name == name).map(|m| m.value)
    }

    /// Tells that a metric is not measured here, which is no failure.
    pub fn skip(&mut self, name: &'static str, why: impl Into<String>) {
        self.remark(name, "skipped", why.into());
    }

    /// Tells what a reader of the figures should know.
    pub fn note(&mut self, name: &'static str, text: impl Into<String>) {
        self.remark(name, "note", text.into());
    }

    fn remark(&mut self, name: &'static str, kind: &str, text: String) {
        if self.json {
            self.progress.clear();
            let line = Object::new().text("name", name).text(kind, &text).finish();
            term::print(&format!("{line}\n"));
        }
        self.remarks.push(Remark { name, text });
    }

    /// One of two numbers of repetitions.
    pub fn reps(&self, quick: usize, full: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// Measures something; what goes wrong is told at the end and does not stop the other measurements.
    pub fn measure(&mut self, what: &str, body: impl FnOnce(&mut Self) -> Result<(), Failure>) {
        // A name without a dot is that of what an area needs for all its measurements.
        if what.contains('.') && self.only.as_ref().is_some_and(|only| !what.contains(only.as_str())) {
            return;
        }
        let number = self.metrics.len() + 1;
        // What other programs measure is not among the expected.
        self.progress.show(&format!("[{number}/{}] {what}", self.expected.max(number)));
        if let Err(failure) = body(self) {
            self.failures.push(format!("{what}: {}", failure.message));
        }
    }

    /// Adds a metric.
    pub fn add(&mut self, metric: Metric) {
        if self.json {
            self.progress.clear();
            term::print(&format!("{}\n", metric.to_json()));
        }
        self.metrics.push(metric);
    }
}

/// Runs the command.
pub fn run(args: &Parsed) -> Outcome {
    let known: Vec<&str> = AREAS.iter().map(|a| a.name).collect();
    let wanted = args.positional.as_ref().and_then(|w| w.to_str()).unwrap_or_default();
    let areas: Vec<&Area> = AREAS.iter().filter(|a| wanted == "all" || wanted == a.name).collect();
    if areas.is_empty() {
        return Err(Failure::usage(format!("which area? One of: {}, all; not {wanted:?}", known.join(", "))));
    }
    if args.has("--gpu") && !areas.iter().any(|a| a.name == "ep") {
        return Err(Failure::usage(format!("--gpu is for the area ep, not {wanted}")));
    }
    if args.has("--peers") && !areas.iter().any(|a| a.name == "kv") {
        return Err(Failure::usage(format!("--peers is for the area kv, not {wanted}")));
    }
    if args.has("--only") && args.has("--report") {
        return Err(Failure::usage("a report is of whole areas: --only and --report do not go together"));
    }
    if let Some(file) = args.path("--report") {
        report::check(file)?;
    }
    end_cleanly_on_interrupt()?;
    let mut run = Run {
        quick: args.has("--quick"),
        json: args.has("--json"),
        only: args.text("--only")?.map(str::to_string),
        gpu: args.path("--gpu").map(PathBuf::from),
        peers: args.path("--peers").map(PathBuf::from),
        expected: areas.iter().map(|a| a.metrics).sum(),
        progress: Progress::new(),
        metrics: Vec::new(),
        remarks: Vec::new(),
        failures: Vec::new(),
    };
    for area in &areas {
        (area.measure)(&mut run);
    }
    run.progress.clear();
    let machine = machine_line(run.quick);
    if !run.json {
        term::print(&table(&run.metrics, Style::stdout()));
        for Remark { name, text } in &run.remarks {
            term::print(&format!("{name}  {text}\n"));
        }
        term::print(&format!("\n{machine}\n"));
    }
    if let Some(file) = args.path("--report") {
        report::write(file, wanted, &run.metrics, &run.remarks, &machine)?;
    }
    for failure in &run.failures {
        term::print_error(&format!("nmc: {failure}\n"));
    }
    Ok(if run.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Ctrl-C leaves neither folders nor processes behind: the processes of a benchmark die with this one.
fn end_cleanly_on_interrupt() -> Result<(), Failure> {
    let interrupts = sys::Interrupts::hold();
    let watch = move || {
        let signal = interrupts.wait();
        crowd::remove_scratch();
        std::process::exit(128 + signal);
    };
    let started = std::thread::Builder::new().name("nmc-signals".into()).spawn(watch);
    started.map(drop).map_err(|e| Failure::os("starting a thread", &e))
}

/// Where and when the figures were taken.
fn machine_line(quick: bool) -> String {
    format!(
        "{}, {} cores, Linux {}, nanomc {}{}, {}, {} run",
        facts::cpu_model(),
        facts::cores(),
        facts::kernel(),
        env!("CARGO_PKG_VERSION"),
        if cfg!(debug_assertions) { " (debug build)" } else { "" },
        facts::today(),
        if quick { "quick" } else { "full" }
    )
}

/// Three significant digits.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 || v == 0.0 => 2,
        v if v >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.digits$}")
}

fn table(metrics: &[Metric], style: Style) -> String {
    let heading = ["metric", "ours", "baseline", "unit", "ratio", "good is", "baseline is"].map(str::to_owned);
    let row = |m: &Metric| {
        let good = if m.better == Better::Lower { "lower" } else { "higher" };
        let figures = [short(m.value), short(m.baseline), m.unit.to_owned(), short(m.ratio())];
        let [ours, baseline, unit, ratio] = figures;
        [m.name.to_owned(), ours, baseline, unit, ratio, good.to_owned(), m.baseline_name.to_owned()]
    };
    let rows: Vec<[String; 7]> = std::iter::once(heading).chain(metrics.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        let numeric = |column: usize| [1, 2, 4].contains(&column);
        let cells = row.iter().enumerate().map(|(column, cell)| match numeric(column) {
            true => term::pad_left(cell, widths[column]),
            false => term::pad(cell, widths[column]),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        let line = line.trim_end();
        text.push_str(&if i == 0 { style.paint(Tone::Strong, line) } else { line.to_owned() });
        text.push('\n');
    }
    text
}

/// The middle of the samples; 0 without any.
pub fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    let n = samples.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => samples[n / 2],
        _ => f64::midpoint(samples[n / 2 - 1], samples[n / 2]),
    }
}

/// The sample below which the share `part` of all are; 0 without any.
pub fn percentile(samples: &mut [f64], part: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a list")]
    let at = (samples.len() as f64 * part) as usize;
    samples.get(at).or(samples.last()).copied().unwrap_or(0.0)
}

/// Nanoseconds per call over `calls` calls of `body`, which gets the number of the call and whose result is dropped.
pub fn ns_per_call<R>(calls: usize, mut body: impl FnMut(usize) -> R) -> f64 {
    let start = Instant::now();
    for i in 0..calls {
        black_box(body(i));
    }
    start.elapsed().as_secs_f64() * 1e9 / calls.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&mut []), 0.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(
            [1234.5, 12.34, 1.234, 0.1234, 0.01234, 0.0].map(short),
            ["1234", "12.3", "1.23", "0.123", "0.0123", "0.00"]
        );
    }

    #[test]
    fn a_json_line_has_its_six_fields() {
        let metric =
            Metric { name: "ffi.x", value: 1.0, unit: "ns", better: Better::Lower, baseline_name: "y", baseline: 4.0 };
        let expected = r#"{"name":"ffi.x","value":1,"unit":"ns","baseline_name":"y","baseline":4,"ratio":0.25}"#;
        assert_eq!(metric.to_json(), expected);
        assert_eq!(metric.area(), "ffi");
    }
}
