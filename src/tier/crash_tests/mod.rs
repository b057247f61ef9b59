//! Crashes of a directory on the simulated disk: whatever is done to a tier, at whatever moment the process is killed or the
//! power goes, and whichever operation of the disk fails, the next one to open the directory finds the truth. Each promise has
//! a control that breaks it and is noticed.
//!
//! `NMC_TIER_IMAGES=50000 cargo test --lib tier::crash_tests` looks at so many images by chance, and at all short workloads.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod disk;
mod faults;
mod ledger;
mod master;

use super::Config;
use super::directory::{Directory, Recovered};
use super::format::{SUPER_NAME, bucket_id, journal_number};
use super::io::Disk;
use super::io::sim::{Rng, SimDisk};
use crate::base::error::Error;
use Promise::{
    Counted, Found as IsFound, NotBackAfterKill, NotBackAfterPowerLoss, NumbersOnce, Opens, RightBytes, Same,
};
use disk::{Mistake, Watched};
use ledger::{Ledger, Moment, Moments, Name, Version};
use master::{Found, Master, Meanwhile, Op, When, head, look};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What holds after every crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// The directory opens.
    Opens,
    /// Every record that is found is whole, and the value that was put.
    RightBytes,
    /// What was written and is not over is found.
    Found,
    /// What is over is not found.
    NotBackAfterKill,
    /// The same, if it was made durable.
    NotBackAfterPowerLoss,
    /// No bucket has the number of a former one.
    NumbersOnce,
    /// A second recovery finds what the first did.
    Same,
    /// Every file in the directory is one that counts.
    Counted,
}

/// A promise that was not kept.
#[derive(Debug, Clone)]
struct Violation {
    promise: Promise,
    text: String,
}

impl Violation {
    fn new(promise: Promise, text: impl Into<String>) -> Self {
        Self { promise, text: text.into() }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {}", self.promise, self.text)
    }
}

type Checked = Result<(), Violation>;

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crash {
    Kill,
    PowerLoss,
}

/// What a recovery found is what the ledger says.
fn keeps(current: &BTreeMap<Name, Found>, ledger: &Ledger, over: &BTreeMap<Name, Version>) -> Checked {
    for (name, version) in &ledger.there {
        let found = current.get(name).map(|found| found.version);
        if found != Some(*version) {
            return Err(Violation::new(IsFound, format!("{name:?} should be {version:?} and is {found:?}")));
        }
    }
    for (name, found) in current {
        if over.get(name).is_some_and(|last| found.version <= *last) {
            let text = format!("{name:?} is {found:?}, which is over since {:?}", over[name]);
            return Err(Violation::new(NotBackAfterKill, text));
        }
    }
    Ok(())
}

fn recover(image: &SimDisk) -> Result<(Directory, Recovered), Violation> {
    Directory::open(Arc::new(image.clone()), &Config::default(), head, &mut |_, _| {})
        .map_err(|error| Violation::new(Opens, error.to_string()))
}

/// Every file in a directory that was just opened is known and counted.
fn count(image: &SimDisk, directory: &Directory) -> Checked {
    let list = image.list().unwrap();
    let buckets = || list.iter().filter(|file| bucket_id(&file.name).is_some());
    let journals = list.iter().filter(|file| journal_number(&file.name).is_some()).count();
    let bytes: u64 = buckets().map(|file| file.bytes).sum();
    let all = 1 + journals + buckets().count();
    let right = list.iter().any(|file| file.name == SUPER_NAME)
        && (journals, all) == (1, list.len())
        && directory.bucket_count() == buckets().count() as u64
        && directory.file_bytes() == bytes;
    if right {
        return Ok(());
    }
    let (count, counted) = (directory.bucket_count(), directory.file_bytes());
    Err(Violation::new(Counted, format!("{counted} bytes in {count} buckets are counted; there are {list:?}")))
}

/// Opens what a crash left and compares it with what was promised. `thorough`: also opens it a second time after another
/// power loss, and goes on with it.
fn check(image: &SimDisk, ledger: &Ledger, crash: Crash, mistake: Option<Mistake>, thorough: bool) -> Checked {
    let again = thorough.then(|| image.kill());
    let (directory, recovered) = recover(image)?;
    let (current, _) = look(image, &recovered, mistake)?;
    if recovered.torn + recovered.foreign > 0 {
        return Err(Violation::new(RightBytes, format!("{} buckets are torn", recovered.torn)));
    }
    let over = if crash == Crash::Kill { &ledger.over } else { &ledger.over_for_good };
    keeps(&current, ledger, over).map_err(|violation| match violation.promise {
        NotBackAfterKill if crash == Crash::PowerLoss => Violation { promise: NotBackAfterPowerLoss, ..violation },
        _ => violation,
    })?;
    count(image, &directory)?;
    drop(directory);
    let Some(again) = again else { return Ok(()) };
    let second = image.crash(&mut Rng(again.operations() + 1));
    let (_, recovered) = recover(&second)?;
    let (other, _) = look(&second, &recovered, mistake)?;
    if other != current {
        return Err(Violation::new(Same, format!("first {current:?}, then {other:?}")));
    }
    let mut ledger = ledger.clone();
    ledger.over.clone_from(over);
    goes_on(&again, ledger, mistake)
}

/// Whatever a crash left can be used.
fn goes_on(image: &SimDisk, ledger: Ledger, mistake: Option<Mistake>) -> Checked {
    let watched = Watched::new(image, &Arc::new(Moments::new(ledger)), mistake);
    let mut master = Master::open(&watched, &Config::default()).map_err(failed(&watched, "going on"))?;
    for op in [Op::Set((0, 3)), Op::Write(None), Op::Tidy, Op::Restart] {
        step(&watched, &mut master, op)?;
    }
    Ok(())
}

/// A call failed though the disk did not.
fn failed(watched: &Watched, what: impl std::fmt::Debug) -> impl Fn(Error) -> Violation {
    move |error| watched.moments().wrong().unwrap_or_else(|| Violation::new(Opens, format!("{what:?}: {error}")))
}

/// Does something on a disk that does not fail; gives whether there was anything to do.
fn step(watched: &Watched, master: &mut Master, op: Op) -> Result<bool, Violation> {
    let done = master.run(op).map_err(failed(watched, op))?;
    master.audit()?;
    // A mistake is to be noticed after a crash.
    if !watched.is_mistaken() {
        master.audit_bytes()?;
    }
    Ok(done)
}

/// How images are drawn from moments.
struct Draw {
    /// Power losses at a moment: all, if there are no more than these.
    losses: usize,
    /// One image of so many is looked at thoroughly.
    thorough: u64,
    images: u64,
}

impl Draw {
    fn new(losses: usize, thorough: u64) -> Self {
        Self { losses, thorough, images: 0 }
    }

    fn look(&mut self, image: &SimDisk, ledger: &Ledger, crash: Crash, mistake: Option<Mistake>) -> Checked {
        self.images += 1;
        check(image, ledger, crash, mistake, self.images.is_multiple_of(self.thorough))
    }

    /// What a crash may leave at this moment, all or some of it.
    fn all(&mut self, moment: &Moment, mistake: Option<Mistake>) -> Checked {
        self.look(&moment.disk.kill(), &moment.ledger, Crash::Kill, mistake)?;
        for image in moment.disk.crash_all(self.losses) {
            self.look(&image, &moment.ledger, Crash::PowerLoss, mistake)?;
        }
        Ok(())
    }

    /// One image, by chance.
    fn one(&mut self, moment: &Moment, mistake: Option<Mistake>, rng: &mut Rng) -> Checked {
        if rng.below(3) == 0 {
            return self.look(&moment.disk, &moment.ledger, Crash::Kill, mistake);
        }
        let image = moment.disk.crash(rng);
        self.look(&image, &moment.ledger, Crash::PowerLoss, mistake)
    }
}

// ---- short workloads -------------------------------------------------------------------------------------------------

/// Everything that is done to two keys.
fn alphabet([first, second]: [Name; 2]) -> Vec<Op> {
    let mut ops = vec![
        Op::Set(first),
        Op::Set(second),
        Op::Remove(first),
        Op::Remove(second),
        Op::Flush(first.0),
        Op::Write(None),
        Op::Sync,
        Op::Tidy,
        Op::Close,
        Op::Restart,
    ];
    for when in [When::Chosen, When::Assigned, When::Written] {
        ops.push(Op::WriteAnd(when, Meanwhile::Set(first)));
        ops.push(Op::WriteAnd(when, Meanwhile::Remove(first)));
        ops.push(Op::WriteAnd(when, Meanwhile::Flush(first.0)));
    }
    ops
}

/// Runs a workload and looks at all moments of its last operation: those before it belong to shorter ones. False if an
/// operation had nothing to do.
fn run_short(ops: &[Op], config: &Config, mistake: Option<Mistake>, draw: &mut Draw) -> Result<bool, Violation> {
    let moments = Arc::new(Moments::new(Ledger::default()));
    let watched = Watched::new(&SimDisk::new(), &moments, mistake);
    moments.keep(ops.is_empty());
    let mut master = Master::open(&watched, config).map_err(failed(&watched, "opening"))?;
    for (number, op) in ops.iter().enumerate() {
        moments.keep(number + 1 == ops.len());
        if !step(&watched, &mut master, *op)? {
            return Ok(false);
        }
    }
    moments.come(watched.sim());
    for moment in moments.take() {
        draw.all(&moment, mistake)?;
    }
    Ok(true)
}

/// All workloads of so many operations; of the longest one of `share`.
fn run_all_short(longest: usize, share: u32, mistake: Option<Mistake>, draw: &mut Draw) -> Checked {
    let mut rng = Rng(14);
    for names in [[(0, 0), (0, 1)], [(0, 0), (1, 0)]] {
        let ops = alphabet(names);
        let mut grown: Vec<Vec<Op>> = vec![vec![]];
        for length in 0..=longest {
            let mut useful = Vec::new();
            for workload in grown {
                if length == longest && rng.below(share) != 0 {
                    continue;
                }
                let config = Config { durable_remove: rng.below(4) == 0, ..Config::default() };
                let found = run_short(&workload, &config, mistake, draw);
                let explain = |violation: Violation| Violation {
                    text: format!("{} after {workload:?}, durable_remove: {}", violation.text, config.durable_remove),
                    ..violation
                };
                if found.map_err(explain)? {
                    useful.push(workload);
                }
            }
            let longer = |workload: &Vec<Op>| {
                ops.iter().map(|op| workload.iter().chain([op]).copied().collect::<Vec<_>>()).collect::<Vec<_>>()
            };
            // The first key is the one that comes first.
            let begins = |workload: &Vec<Op>| workload.first() == Some(&Op::Set(names[0]));
            grown = useful.iter().flat_map(longer).filter(begins).collect();
        }
    }
    Ok(())
}

// ---- long workloads --------------------------------------------------------------------------------------------------

fn any_name(rng: &mut Rng) -> Name {
    (u8::try_from(rng.below(2)).unwrap(), u8::try_from(rng.below(2)).unwrap())
}

fn any_op(rng: &mut Rng) -> Op {
    let name = any_name(rng);
    match rng.below(24) {
        0..6 => Op::Set(name),
        6..9 => Op::Remove(name),
        9 => Op::Flush(name.0),
        10..13 => Op::Write(None),
        13 => Op::Write(Some(name.1)),
        14..17 => {
            let when = [When::Chosen, When::Assigned, When::Written][rng.below(3) as usize];
            let meanwhile = match rng.below(4) {
                0 => Meanwhile::Set(name),
                1 => Meanwhile::Flush(name.0),
                _ => Meanwhile::Remove(name),
            };
            Op::WriteAnd(when, meanwhile)
        }
        17 => Op::Evict,
        18 => Op::Sync,
        19..22 => Op::Tidy,
        22 => Op::Close,
        _ => Op::Restart,
    }
}

/// A workload by chance, of several lives with crashes in between, and images of some of its moments.
fn run_long(seed: u64, mistake: Option<Mistake>, draw: &mut Draw) -> Checked {
    let mut rng = Rng(seed);
    let config = Config { durable_remove: rng.below(4) == 0, ..Config::default() };
    let (mut sim, mut ledger) = (SimDisk::new(), Ledger::default());
    for life in 0..3 {
        let moments = Arc::new(Moments::new(ledger));
        moments.keep_one_of(12, seed ^ life);
        let watched = Watched::new(&sim, &moments, mistake);
        let mut master = Master::open(&watched, &config).map_err(failed(&watched, "opening"))?;
        master.audit()?;
        for _ in 0..4 + rng.below(10) {
            step(&watched, &mut master, any_op(&mut rng))?;
        }
        moments.come(&sim);
        for moment in moments.take() {
            draw.one(&moment, mistake, &mut rng)?;
        }
        ledger = moments.ledger.lock().clone();
        sim = if rng.below(2) == 0 {
            sim.kill()
        } else {
            ledger.over = ledger.over_for_good.clone();
            sim.crash(&mut rng)
        };
    }
    Ok(())
}

/// Images that the environment asks for.
fn asked() -> Option<u64> {
    std::env::var("NMC_TIER_IMAGES").ok().map(|images| images.parse().unwrap())
}

// ---- tests -----------------------------------------------------------------------------------------------------------

#[test]
fn after_any_crash_of_a_short_workload_the_disk_tells_the_truth() {
    let (share, losses) = if asked().is_some() { (1, 16) } else { (150, 1) };
    let mut draw = Draw::new(losses, 16);
    if let Err(violation) = run_all_short(4, share, None, &mut draw) {
        panic!("image {}: {violation}", draw.images);
    }
    println!("{} images of short workloads", draw.images);
}

#[test]
fn after_any_crash_of_a_long_workload_the_disk_tells_the_truth() {
    let wanted = asked().unwrap_or(1500);
    let (mut draw, mut seed) = (Draw::new(1, 8), 1);
    while draw.images < wanted {
        if let Err(violation) = run_long(seed, None, &mut draw) {
            panic!("seed {seed}, image {}: {violation}", draw.images);
        }
        seed += 1;
    }
    println!("{} images of {} long workloads", draw.images, seed - 1);
}

/// A mistake breaks one of these promises, and that is noticed.
fn is_noticed(mistake: Mistake, promises: &[Promise]) {
    let (mut draw, mut noticed) = (Draw::new(1, 4), None);
    for seed in 1..400 {
        if let Err(violation) = run_long(seed, Some(mistake), &mut draw) {
            noticed = Some(violation);
            break;
        }
    }
    println!("{mistake:?} after {} images: {noticed:?}", draw.images);
    let violation = noticed.unwrap_or_else(|| panic!("{mistake:?} was not noticed in {} images", draw.images));
    assert!(promises.contains(&violation.promise), "{mistake:?} was noticed by another promise: {violation}");
}

#[test]
fn a_bucket_without_a_datasync_is_noticed() {
    is_noticed(Mistake::NoDatasync, &[RightBytes, IsFound]);
}

#[test]
fn names_without_a_sync_are_noticed() {
    is_noticed(Mistake::NoDirectorySync, &[IsFound, Opens]);
}

#[test]
fn entries_before_the_sync_are_noticed() {
    is_noticed(Mistake::EarlyEntries, &[IsFound, Opens]);
}

#[test]
fn a_journal_that_is_not_synced_is_noticed() {
    is_noticed(Mistake::NoJournalSync, &[Opens, RightBytes, NotBackAfterPowerLoss, NumbersOnce]);
}

#[test]
fn marks_by_key_are_noticed() {
    // It is not found, or was given back as a hole.
    is_noticed(Mistake::MarksByKey, &[IsFound, RightBytes]);
}

#[test]
fn gone_that_is_forgotten_early_is_noticed() {
    // Only a journal that is written anew is without it, and its own sync of the directory ends the danger: the journal has
    // to be full at the right time.
    let run = |mistake| {
        let mut draw = Draw::new(10, u64::MAX);
        (0..10).try_for_each(|before| {
            let mut ops =
                vec![Op::Set((1, 0)), Op::Set((0, 0)), Op::Write(None), Op::Remove((0, 0)), Op::Remove((1, 0))];
            ops.extend(vec![Op::Flush(1); before]);
            ops.extend([Op::Sync, Op::Tidy, Op::Set((1, 0)), Op::Write(None), Op::Flush(1), Op::Flush(1)]);
            let from = ops.len() - 4;
            (from..=ops.len())
                .try_for_each(|length| run_short(&ops[..length], &Config::default(), mistake, &mut draw).map(drop))
        })
    };
    let violation = run(Some(Mistake::GoneEarly)).expect_err("GoneEarly was not noticed");
    println!("GoneEarly: {violation}");
    // It is back with what was in it, or cut off.
    assert!(matches!(violation.promise, NotBackAfterPowerLoss | RightBytes));
    run(None).unwrap_or_else(|violation| panic!("without the mistake: {violation}"));
}

#[test]
fn numbers_of_buckets_that_are_given_twice_are_noticed() {
    is_noticed(Mistake::NumbersReused, &[NumbersOnce]);
}

#[test]
fn namespaces_that_have_the_numbers_of_the_store_are_noticed() {
    is_noticed(Mistake::StoreNumbers, &[RightBytes]);
}
