//! `nmc master`: the masters of a world and its store in a process of its own, for ranks that join with `NMC_MASTER_EXTERNAL`.

use crate::Outcome;
use crate::args::{Failure, Parsed, parse_bytes};
use crate::{facts, sys, term};
use nanomc::base::{Deadline, log};
use nanomc::ffi::common::{NMC_EVICT_FIFO, NMC_EVICT_LRU, NMC_EVICT_NONE};
use nanomc::ffi::tier_types::{
    NMC_TIER_DURABLE_REMOVE, NMC_TIER_OTHER_DIRECTORY, NMC_TIER_RESET_IF_DAMAGED, NMC_TIER_WRITE_THROUGH, config_for,
};
use nanomc::mem::HeapKind;
use nanomc::store::Masters;
use nanomc::tier::{Backend, Config as TierConfig, Hosted};
use nanomc::world::config::{DEFAULT_DRAIN_MS, DEFAULT_WORDS};
use nanomc::world::{Config, Hosting};
use std::process::ExitCode;
use std::time::Duration;

/// Options that are flags of the tier.
const TIER_FLAGS: [(&str, u32); 4] = [
    ("--ssd-write-through", NMC_TIER_WRITE_THROUGH),
    ("--ssd-durable-remove", NMC_TIER_DURABLE_REMOVE),
    ("--ssd-reset-if-damaged", NMC_TIER_RESET_IF_DAMAGED),
    ("--ssd-other-directory", NMC_TIER_OTHER_DIRECTORY),
];
/// How often it is looked whether there is a store.
const LOOK: Duration = Duration::from_millis(20);

/// Runs the command.
pub fn run(args: &Parsed) -> Outcome {
    let config = config(args)?;
    config.check().map_err(|e| Failure::usage(e.message))?;
    // Held before the master's thread starts, so that a signal that comes at once still ends it in order.
    let interrupts = sys::Interrupts::hold();
    let tier = tier(args, &config)?;
    let tell = |level: i32, text: &str| {
        let what = if level == log::ERROR { "error" } else { "warning" };
        term::print_error(&format!("nmc master: {what}: {text}\n"));
    };
    log::set_sink(Some(Box::new(tell)), log::WARN);
    let master = if tier.is_some() { Masters::open_with_tier(&config) } else { Masters::open(&config) }?;
    let mut tier = tier.map(|tier| Hosted::new(&master, tier)).transpose()?;
    let kind = if config.heap_kind == HeapKind::Cuda { "cuda" } else { "host" };
    term::print(&format!(
        "nmc master: serving world {:?} ({} ranks, {kind} heaps of {}) at {}; SIGTERM or SIGINT ends it\n",
        config.name,
        config.world_size,
        facts::size(config.heap_bytes),
        config.place().socket().display()
    ));
    match &mut tier {
        None => _ = interrupts.wait(),
        Some(tier) => serve_tier(tier, &interrupts)?,
    }
    // What is noted is written while there is a master.
    if let Some(tier) = tier {
        tier.end();
    }
    drop(master);
    Ok(ExitCode::SUCCESS)
}

/// Keeps the tier with the store, until a signal comes.
fn serve_tier(tier: &mut Hosted, interrupts: &sys::Interrupts) -> Result<(), Failure> {
    loop {
        let mut progress = None;
        let opened = tier.look(&mut |done, total| {
            progress.get_or_insert_with(term::Progress::new).bar(done, total, "buckets recovered");
        })?;
        drop(progress);
        if opened {
            term::print(&format!("nmc master: the tier is open, {} values\n", tier.objects()));
        }
        if interrupts.wait_for(LOOK).is_some() {
            return Ok(());
        }
    }
}

/// What the tier is opened with, if one is asked for.
fn tier(args: &Parsed, world: &Config) -> Result<Option<TierConfig>, Failure> {
    let Some(directory) = args.path("--ssd") else {
        let others = ["--ssd-capacity", "--ssd-evict", "--ssd-backend", "--ssd-max-objects", "--ssd-write-rate"];
        let given = others.into_iter().find(|name| matches!(args.text(name), Ok(Some(_))));
        let given = given.or_else(|| TIER_FLAGS.map(|(name, _)| name).into_iter().find(|name| args.has(name)));
        return given.map_or(Ok(None), |name| Err(Failure::usage(format!("{name} is nothing without --ssd DIR"))));
    };
    if world.heap_kind != HeapKind::Host {
        let text = "--ssd is for host heaps: of CUDA heaps a rank with a device owns the tier (nmc_tier_open)";
        return Err(Failure::usage(text));
    }
    let bytes = |name: &str| match args.text(name)? {
        None => Ok(0),
        Some(text) => {
            parse_bytes(text).ok_or_else(|| Failure::usage(format!("{name} {text:?} is not a number of bytes")))
        }
    };
    let (capacity_bytes, write_bytes_per_s) = (bytes("--ssd-capacity")?, bytes("--ssd-write-rate")?);
    let max_objects = args.number("--ssd-max-objects")?.unwrap_or(0);
    let eviction = match args.text("--ssd-evict")? {
        None | Some("never") => NMC_EVICT_NONE,
        Some("fifo") => NMC_EVICT_FIFO,
        Some("lru") => NMC_EVICT_LRU,
        Some(other) => return Err(Failure::usage(format!("--ssd-evict {other:?} is none of never, fifo and lru"))),
    };
    let named = args.text("--ssd-backend")?.unwrap_or(Backend::Bucket.name());
    let backend = Backend::ALL.into_iter().find(|backend| backend.name() == named && *backend != Backend::Noop);
    let backend = backend
        .ok_or_else(|| Failure::usage(format!("--ssd-backend {named:?} is none of bucket, file-per-key and offset")))?;
    let config = config_for(directory.into(), |c| {
        (c.capacity_bytes, c.eviction, c.backend) = (capacity_bytes, eviction, backend.code());
        (c.max_objects, c.write_bytes_per_s) = (max_objects.into(), write_bytes_per_s);
        c.flags = TIER_FLAGS.iter().filter(|(name, _)| args.has(name)).map(|(_, flag)| flag).sum();
    });
    config.map(Some).map_err(|error| Failure::usage(error.message))
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
