//! `nmc master`: the masters of a world and its store in a process of its own, for ranks that join with `NMC_MASTER_EXTERNAL`.

use crate::Outcome;
use crate::args::{Failure, Parsed, parse_bytes};
use crate::{facts, sys, term};
use nanomc::base::{Deadline, log};
use nanomc::ffi::common::{NMC_EVICT_FIFO, NMC_EVICT_LRU, NMC_EVICT_NONE};
use nanomc::ffi::tier_types::{
    NMC_TIER_DELETE_TORN, NMC_TIER_DURABLE_REMOVE, NMC_TIER_EVENTS, NMC_TIER_META, NMC_TIER_NO_DIRECT,
    NMC_TIER_NO_URING, NMC_TIER_OTHER_DIRECTORY, NMC_TIER_PAUSED, NMC_TIER_RESET_IF_DAMAGED, NMC_TIER_WRITE_THROUGH,
    config_for,
};
use nanomc::mem::HeapKind;
use nanomc::store::Masters;
use nanomc::tier::{Backend, Config as TierConfig, Hosted};
use nanomc::world::config::{DEFAULT_DRAIN_MS, DEFAULT_WORDS};
use nanomc::world::{Config, Hosting};
use std::process::ExitCode;
use std::time::Duration;

/// Options that are flags of the tier.
const TIER_FLAGS: [(&str, u32); 10] = [
    ("--ssd-write-through", NMC_TIER_WRITE_THROUGH),
    ("--ssd-durable-remove", NMC_TIER_DURABLE_REMOVE),
    ("--ssd-reset-if-damaged", NMC_TIER_RESET_IF_DAMAGED),
    ("--ssd-other-directory", NMC_TIER_OTHER_DIRECTORY),
    ("--ssd-no-direct", NMC_TIER_NO_DIRECT),
    ("--ssd-no-uring", NMC_TIER_NO_URING),
    ("--ssd-paused", NMC_TIER_PAUSED),
    ("--ssd-meta", NMC_TIER_META),
    ("--ssd-events", NMC_TIER_EVENTS),
    ("--ssd-delete-torn", NMC_TIER_DELETE_TORN),
];
/// Those that have values.
const TIER_VALUES: [&str; 11] = [
    "--ssd-capacity",
    "--ssd-evict",
    "--ssd-backend",
    "--ssd-max-objects",
    "--ssd-write-rate",
    "--ssd-bucket-bytes",
    "--ssd-bucket-keys",
    "--ssd-heartbeat-ms",
    "--ssd-depth",
    "--ssd-admit-reads",
    "--ssd-admit-priority",
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
        let others = TIER_VALUES.into_iter().chain(TIER_FLAGS.map(|(name, _)| name));
        let given = others.into_iter().find(|name| args.has(name));
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
    let bucket_bytes = bytes("--ssd-bucket-bytes")?;
    let number = |name: &str, most: u32| match args.number(name)? {
        Some(number) if number > most => Err(Failure::usage(format!("{name} {number} is above {most}"))),
        number => Ok(number.unwrap_or(0)),
    };
    let max_objects = number("--ssd-max-objects", u32::MAX)?;
    let (bucket_keys, depth) = (number("--ssd-bucket-keys", 4096)?, number("--ssd-depth", 1024)?);
    let heartbeat_ms = number("--ssd-heartbeat-ms", u32::MAX)?;
    let (admit_reads, admit_priority) =
        (number("--ssd-admit-reads", (1 << 24) - 1)?, number("--ssd-admit-priority", 3)?);
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
        (c.bucket_bytes, c.bucket_keys, c.depth) = (bucket_bytes, bucket_keys, depth);
        (c.heartbeat_ms, c.admit_reads, c.admit_priority) = (heartbeat_ms, admit_reads, admit_priority);
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]
mod tests {
    use super::*;
    use nanomc::tier::{Evict, OnDamage, Torn};

    /// What the tier is opened with for these words behind `--ssd DIR`.
    fn opened_with(words: &[&str]) -> Result<TierConfig, Failure> {
        let always = ["--name", "x", "--world-size", "1", "--heap-bytes", "1MiB", "--ssd", "d"];
        let command = crate::COMMANDS.iter().find(|command| command.name == "master").unwrap();
        let args = command.parse(always.iter().chain(words).map(Into::into).collect())?;
        tier(&args, &config(&args)?).map(Option::unwrap)
    }

    #[test]
    fn every_option_of_the_tier_arrives() {
        type Change = fn(&mut TierConfig);
        let cases: [(&[&str], Change); 21] = [
            (&["--ssd-capacity", "5GiB"], |c| c.capacity_bytes = 5 << 30),
            (&["--ssd-evict", "fifo"], |c| c.evict = Evict::Fifo),
            (&["--ssd-evict", "lru"], |c| c.evict = Evict::Lru),
            (&["--ssd-backend", "offset"], |c| c.backend = Backend::Offset),
            (&["--ssd-max-objects", "77"], |c| c.max_objects = 77),
            (&["--ssd-write-rate", "3MiB"], |c| c.write_bytes_per_s = 3 << 20),
            (&["--ssd-bucket-bytes", "8MiB"], |c| c.bucket_bytes = 8 << 20),
            (&["--ssd-bucket-keys", "4096"], |c| c.bucket_keys = 4096),
            (&["--ssd-heartbeat-ms", "7"], |c| c.heartbeat_ms = 7),
            (&["--ssd-depth", "1024"], |c| c.depth = 1024),
            (&["--ssd-admit-reads", "2"], |c| c.admission.reads = 2),
            (&["--ssd-admit-priority", "3"], |c| c.admission.priority = 3),
            (&["--ssd-write-through"], |c| c.write_through = true),
            (&["--ssd-durable-remove"], |c| c.durable_remove = true),
            (&["--ssd-reset-if-damaged"], |c| c.on_damage = OnDamage::Reset),
            (&["--ssd-other-directory", "--ssd-delete-torn"], |c| (c.other_directory, c.torn) = (true, Torn::Delete)),
            (&["--ssd-no-direct"], |c| c.direct = false),
            (&["--ssd-no-uring"], |c| c.uring = false),
            (&["--ssd-paused"], |c| c.paused = true),
            (&["--ssd-meta"], |c| c.meta = true),
            (&["--ssd-events"], |c| c.events = true),
        ];
        let without = opened_with(&[]).unwrap();
        for (words, change) in cases {
            let mut wanted = without.clone();
            change(&mut wanted);
            assert_ne!(wanted, without, "control: {words:?} changes something");
            assert_eq!(opened_with(words).unwrap(), wanted, "{words:?}");
        }
        // Whatever the help names is among them.
        let command = crate::COMMANDS.iter().find(|command| command.name == "master").unwrap();
        for name in command.help().split_whitespace().filter(|word| word.starts_with("--ssd-")) {
            assert!(cases.iter().any(|(words, _)| words.contains(&name)), "{name}");
            assert!(TIER_VALUES.contains(&name) || TIER_FLAGS.iter().any(|(flag, _)| *flag == name), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_option() {
        for (words, part) in [
            (["--ssd-bucket-keys", "4097"], "--ssd-bucket-keys 4097 is above 4096"),
            (["--ssd-depth", "1025"], "--ssd-depth 1025 is above 1024"),
            (["--ssd-admit-priority", "4"], "--ssd-admit-priority 4 is above 3"),
            (["--ssd-admit-reads", "16777216"], "--ssd-admit-reads 16777216 is above 16777215"),
            (["--ssd-heartbeat-ms", "soon"], "--ssd-heartbeat-ms \"soon\" is not a whole number"),
            (["--ssd-bucket-bytes", "2TB"], "--ssd-bucket-bytes \"2TB\" is not a number of bytes"),
            (["--ssd-bucket-bytes", "2048GiB"], "bucket_bytes"),
        ] {
            let failure = opened_with(&words).unwrap_err();
            assert_eq!(failure.code, 2, "{words:?}");
            assert!(failure.message.contains(part), "{words:?}: {}", failure.message);
        }
    }
}
