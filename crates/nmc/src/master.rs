//! `nmc master`: the masters of a world and its store in a process of its own, for ranks that join with `NMC_MASTER_EXTERNAL`.

use crate::Outcome;
use crate::args::{Failure, Parsed, parse_bytes};
use crate::{facts, sys, term};
use nanomc::base::Deadline;
use nanomc::mem::HeapKind;
use nanomc::store::Masters;
use nanomc::world::config::{DEFAULT_DRAIN_MS, DEFAULT_WORDS};
use nanomc::world::{Config, Hosting};
use std::process::ExitCode;
use std::time::Duration;

/// Runs the command.
pub fn run(args: &Parsed) -> Outcome {
    let config = config(args)?;
    config.check().map_err(|e| Failure::usage(e.message))?;
    // Held before the master's thread starts, so that a signal that comes at once still ends it in order.
    let interrupts = sys::Interrupts::hold();
    let master = Masters::open(&config)?;
    let kind = if config.heap_kind == HeapKind::Cuda { "cuda" } else { "host" };
    term::print(&format!(
        "nmc master: serving world {:?} ({} ranks, {kind} heaps of {}) at {}; SIGTERM or SIGINT ends it\n",
        config.name,
        config.world_size,
        facts::size(config.heap_bytes),
        config.place().socket().display()
    ));
    interrupts.wait();
    drop(master);
    Ok(ExitCode::SUCCESS)
}

fn config(args: &Parsed) -> Result<Config, Failure> {
    let bytes = args.required("--heap-bytes")?;
    let heap_bytes =
        parse_bytes(bytes).ok_or_else(|| Failure::usage(format!("--heap-bytes {bytes:?} is not a number of bytes")))?;
    let heap_kind = match args.text("--heap-kind")? {
        None | Some("host") => HeapKind::Host,
        Some("cuda") => HeapKind::Cuda,
        Some(other) => return Err(Failure::usage(format!("--heap-kind {other:?} is neither host nor cuda"))),
    };
    let world_size = args.number("--world-size")?.ok_or_else(|| Failure::usage("--world-size is missing"))?;
    Ok(Config {
        name: args.required("--name")?.to_owned(),
        dir: args.path("--dir").map(Into::into),
        rank: None,
        world_size,
        min_ranks: args.number("--min-ranks")?.unwrap_or(0),
        heap_kind,
        heap_bytes,
        huge_pages: false,
        populate: false,
        import: None,
        device: None,
        device_rank: None,
        words_per_rank: args.number("--words")?.unwrap_or(DEFAULT_WORDS),
        hosting: Hosting::Elsewhere,
        deadline: Deadline::after(Duration::ZERO),
        drain_ms: DEFAULT_DRAIN_MS,
        service_cpu: None,
        give_up: std::sync::Arc::default(),
    })
}
