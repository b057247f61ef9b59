//! Crashes of a directory on the simulated disk: whatever is done to a tier, at whatever moment the process is killed or the
//! power goes, and whichever operation of the disk fails, the next one to open the directory finds the truth. Each promise has
//! a control that breaks it and is noticed.
//!
//! `NMC_TIER_IMAGES=50000 cargo test --profile checks --lib tier::crash_tests` looks at so many images by chance of every backend, at twice
//! as many damaged directories, at every failure of every operation, and at all short workloads.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod damage;
mod disk;
mod faults;
mod ledger;
mod master;
mod mutated;

use super::backend::{DATA_NAME, meta_id};
use super::config::{Backend, Config};
use super::directory::Directory;
use super::format::{SUPER_NAME, bucket_id, bucket_name, journal_number};
use super::io::Disk;
use super::io::sim::{Random, SimDisk};
use super::recovery::Recovered;
use crate::base::error::Error;
use Promise::{
    Counted, Found as IsFound, NotBackAfterKill, NotBackAfterPowerLoss, NumbersOnce, Opens, RightBytes, Same,
};
use disk::{Mistake, Watched, values};
use ledger::{Ledger, Moment, Moments, Name, Version};
use master::{Found, Master, Meanwhile, Op, Records, When, head, look};
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

/// Backends that keep something.
const BACKENDS: [Backend; 3] = [Backend::Bucket, Backend::File, Backend::Offset];

/// A directory with this backend. There is room for all that a workload writes.
fn config(backend: Backend, durable_remove: bool) -> Config {
    Config { backend, durable_remove, capacity_bytes: 64 << 20, ..Config::default() }
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
        if ledger.gone.contains(&found.spot.bucket) {
            let text = format!("{name:?} is in bucket {}, which was given up", found.spot.bucket);
            return Err(Violation::new(NotBackAfterKill, text));
        }
        if over.get(name).is_some_and(|last| found.version <= *last) {
            let text = format!("{name:?} is {found:?}, which is over since {:?}", over[name]);
            return Err(Violation::new(NotBackAfterKill, text));
        }
    }
    Ok(())
}

fn recover(image: &SimDisk, backend: Backend) -> Result<(Directory, Recovered), Violation> {
    Directory::open(Arc::new(image.clone()), &config(backend, false), head, &mut |_, _| {})
        .map_err(|error| Violation::new(Opens, error.to_string()))
}

/// Every file in a directory that was just opened is known and counted.
fn count(image: &SimDisk, directory: &Directory, backend: Backend) -> Checked {
    let list = image.list().unwrap();
    let journals = list.iter().filter(|file| journal_number(&file.name).is_some()).count();
    let bytes: u64 = values(image).map(|(_, bytes)| bytes).sum();
    let files = list.iter().filter(|file| bucket_id(&file.name).is_some()).count() as u64;
    let others = list.iter().filter(|file| file.folder || file.name == DATA_NAME).count() as u64;
    let (known, right) = match backend {
        Backend::Bucket => (files, directory.bucket_count() == files && directory.file_bytes() == bytes),
        Backend::File => (others, directory.file_bytes() == bytes),
        _ => (others, others == 1),
    };
    // A second copy of a list is there with its bucket only, which may have been written without one.
    let metas: Vec<u64> = list.iter().filter_map(|file| meta_id(&file.name)).collect();
    let right = right && metas.iter().all(|id| list.iter().any(|file| file.name == bucket_name(*id)));
    let all = 1 + journals as u64 + known + metas.len() as u64;
    if right && list.iter().any(|file| file.name == SUPER_NAME) && (journals, all) == (1, list.len() as u64) {
        return Ok(());
    }
    let (count, counted) = (directory.bucket_count(), directory.file_bytes());
    Err(Violation::new(Counted, format!("{counted} bytes in {count} buckets are counted; there are {list:?}")))
}

/// Opens what a crash left and compares it with what was promised. `thorough`: also opens it a second time after another
/// power loss, and goes on with it.
fn check(image: &SimDisk, case: Case, ledger: &Ledger, crash: Crash, thorough: bool) -> Checked {
    let Case { backend, mistake, faulty } = case;
    let again = thorough.then(|| image.kill());
    let (directory, recovered) = recover(image, backend)?;
    let (current, _) = look(&Records::new(image, backend), &recovered, mistake)?;
    let mut ledger = ledger.clone();
    if recovered.torn > 0 && faulty {
        // A list could not be read once: then nobody was promised to find what is in it.
        ledger.there.clear();
    } else if recovered.torn + recovered.foreign > 0 {
        return Err(Violation::new(RightBytes, format!("{} buckets are torn", recovered.torn)));
    }
    let over = if crash == Crash::Kill { &ledger.over } else { &ledger.over_for_good };
    keeps(&current, &ledger, over).map_err(|violation| match violation.promise {
        NotBackAfterKill if crash == Crash::PowerLoss => Violation { promise: NotBackAfterPowerLoss, ..violation },
        _ => violation,
    })?;
    if recovered.torn == 0 {
        count(image, &directory, backend)?;
    }
    drop(directory);
    let Some(again) = again else { return Ok(()) };
    let second = image.crash(&mut Random(again.operations() + 1));
    let (_, recovered) = recover(&second, backend)?;
    let (other, _) = look(&Records::new(&second, backend), &recovered, mistake)?;
    if other != current {
        return Err(Violation::new(Same, format!("first {current:?}, then {other:?}")));
    }
    ledger.over = over.clone();
    goes_on(&again, case, ledger)
}

/// What is tested.
#[derive(Debug, Clone, Copy)]
struct Case {
    backend: Backend,
    mistake: Option<Mistake>,
    /// The disk fails now and then.
    faulty: bool,
}

impl Case {
    fn new(backend: Backend, mistake: Option<Mistake>) -> Self {
        Self { backend, mistake, faulty: false }
    }
}

/// Whatever a crash left can be used.
fn goes_on(image: &SimDisk, case: Case, ledger: Ledger) -> Checked {
    let watched = Watched::new(image, &Arc::new(Moments::new(ledger)), case.mistake);
    let opened = Master::open(&watched, &config(case.backend, false));
    let mut master = opened.map_err(failed(&watched, "going on"))?;
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

    fn look(&mut self, image: &SimDisk, case: Case, ledger: &Ledger, crash: Crash) -> Checked {
        self.images += 1;
        check(image, case, ledger, crash, self.images.is_multiple_of(self.thorough))
    }

    /// What a crash may leave at this moment, all or some of it.
    fn all(&mut self, moment: &Moment, case: Case) -> Checked {
        self.look(&moment.disk.kill(), case, &moment.ledger, Crash::Kill)?;
        for image in moment.disk.crash_all(self.losses) {
            self.look(&image, case, &moment.ledger, Crash::PowerLoss)?;
        }
        Ok(())
    }

    /// One image, by chance.
    fn one(&mut self, moment: &Moment, case: Case, rng: &mut Random) -> Checked {
        if rng.below(3) == 0 {
            return self.look(&moment.disk, case, &moment.ledger, Crash::Kill);
        }
        let image = moment.disk.crash(rng);
        self.look(&image, case, &moment.ledger, Crash::PowerLoss)
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
        Op::Evict,
        Op::GiveUp,
        Op::Condemn(0),
        Op::Condemn(1),
        Op::Promote(first),
        Op::PromoteAnd(first, Meanwhile::Set(first)),
        Op::PromoteAnd(first, Meanwhile::Remove(first)),
        Op::PromoteAnd(first, Meanwhile::GiveUp),
        Op::WriteAnd(When::Chosen, Meanwhile::GiveUp),
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
    let case = Case::new(config.backend, mistake);
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
        draw.all(&moment, case)?;
    }
    Ok(true)
}

/// All workloads of so many operations; of the longest one of `share`.
fn run_all_short(backend: Backend, longest: usize, share: u32, draw: &mut Draw) -> Checked {
    let mut rng = Random(14);
    for names in [[(0, 0), (0, 1)], [(0, 0), (1, 0)]] {
        let ops = alphabet(names);
        let mut grown: Vec<Vec<Op>> = vec![vec![]];
        for length in 0..=longest {
            let mut useful = Vec::new();
            for workload in grown {
                if length == longest && rng.below(share) != 0 {
                    continue;
                }
                let config = config(backend, rng.below(4) == 0);
                let found = run_short(&workload, &config, None, draw);
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

fn any_name(rng: &mut Random) -> Name {
    (u8::try_from(rng.below(2)).unwrap(), u8::try_from(rng.below(2)).unwrap())
}

fn any_op(rng: &mut Random) -> Op {
    let name = any_name(rng);
    match rng.below(34) {
        0..24 => any_simple_op(rng),
        24 | 25 => Op::GiveUp,
        26 => Op::Condemn(rng.below(2) as usize),
        27 => Op::WriteAnd(When::Chosen, Meanwhile::GiveUp),
        28 | 29 => Op::Evict,
        30 | 31 => Op::Promote(name),
        _ => {
            let set = Meanwhile::Set(name);
            Op::PromoteAnd(name, [Meanwhile::Remove(name), set, Meanwhile::GiveUp][rng.below(3) as usize])
        }
    }
}

/// One by which nothing leaves the disk to make room, or comes back from it. (Seeds that once broke a promise are of these.)
fn any_simple_op(rng: &mut Random) -> Op {
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
fn run_long(seed: u64, case: Case, any_op: fn(&mut Random) -> Op, draw: &mut Draw) -> Checked {
    let mut rng = Random(seed);
    let config = config(case.backend, rng.below(4) == 0);
    let config = Config { meta: case.backend == Backend::Bucket && seed.is_multiple_of(3), ..config };
    let (mut sim, mut ledger) = (SimDisk::new(), Ledger::default());
    for life in 0..3 {
        let moments = Arc::new(Moments::new(ledger));
        moments.keep_one_of(12, seed ^ life);
        let watched = Watched::new(&sim, &moments, case.mistake);
        let mut master = Master::open(&watched, &config).map_err(failed(&watched, "opening"))?;
        master.audit()?;
        for _ in 0..4 + rng.below(10) {
            step(&watched, &mut master, any_op(&mut rng))?;
        }
        moments.come(&sim);
        for moment in moments.take() {
            draw.one(&moment, case, &mut rng)?;
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

fn short_workloads(backend: Backend) {
    let (share, losses) = if asked().is_some() { (1, 16) } else { (450, 1) };
    let mut draw = Draw::new(losses, 16);
    if let Err(violation) = run_all_short(backend, 4, share, &mut draw) {
        panic!("{}, image {}: {violation}", backend.name(), draw.images);
    }
    println!("{} images of short workloads, {}", draw.images, backend.name());
}

fn long_workloads(backend: Backend) {
    let wanted = asked().unwrap_or(500);
    let (mut draw, mut seed) = (Draw::new(1, 8), 1);
    while draw.images < wanted {
        if let Err(violation) = run_long(seed, Case::new(backend, None), any_op, &mut draw) {
            panic!("{}, seed {seed}, image {}: {violation}", backend.name(), draw.images);
        }
        seed += 1;
    }
    println!("{} images of {} long workloads, {}", draw.images, seed - 1, backend.name());
}

#[test]
fn after_any_crash_of_a_short_workload_buckets_tell_the_truth() {
    short_workloads(Backend::Bucket);
}

#[test]
fn after_any_crash_of_a_short_workload_files_per_key_tell_the_truth() {
    short_workloads(Backend::File);
}

#[test]
fn after_any_crash_of_a_short_workload_one_file_tells_the_truth() {
    short_workloads(Backend::Offset);
}

#[test]
fn after_any_crash_of_a_long_workload_the_disk_tells_the_truth() {
    BACKENDS.into_iter().for_each(long_workloads);
}

/// A mistake breaks one of these promises, and that is noticed, with every one of these backends.
fn is_noticed_by(backends: &[Backend], mistake: Mistake, promises: &[Promise]) {
    let moves = matches!(mistake, Mistake::EntriesFirst | Mistake::GoneUnsynced | Mistake::CleanFlag);
    let any_op = if moves { any_op } else { any_simple_op };
    for backend in backends {
        let (mut draw, mut noticed) = (Draw::new(1, 4), None);
        for seed in 1..400 {
            if let Err(violation) = run_long(seed, Case::new(*backend, Some(mistake)), any_op, &mut draw) {
                noticed = Some(violation);
                break;
            }
        }
        let (name, images) = (backend.name(), draw.images);
        println!("{mistake:?} of {name} after {images} images: {noticed:?}");
        let violation = noticed.unwrap_or_else(|| panic!("{mistake:?} of {name} was not noticed in {images} images"));
        assert!(promises.contains(&violation.promise), "{mistake:?} of {name} was noticed otherwise: {violation}");
    }
}

fn is_noticed(mistake: Mistake, promises: &[Promise]) {
    is_noticed_by(&BACKENDS, mistake, promises);
}

#[test]
fn a_bucket_without_a_datasync_is_noticed() {
    // Of one file for all: the record of the journal is there before what it leads to.
    is_noticed(Mistake::NoDatasync, &[RightBytes, IsFound, Same]);
}

#[test]
fn names_without_a_sync_are_noticed() {
    is_noticed(Mistake::NoDirectorySync, &[IsFound, Opens]);
}

#[test]
fn entries_before_the_sync_are_noticed() {
    // Of one file for all that is a journal that is not synced, below.
    is_noticed_by(&[Backend::Bucket, Backend::File], Mistake::EarlyEntries, &[IsFound, Opens]);
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
            (from..=ops.len()).try_for_each(|length| {
                run_short(&ops[..length], &config(Backend::Bucket, false), mistake, &mut draw).map(drop)
            })
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

#[test]
fn an_extent_that_is_used_again_before_gone_lasts_is_noticed() {
    is_noticed_by(&[Backend::Offset], Mistake::Hasty, &[RightBytes]);
}

#[test]
fn a_folder_that_is_deleted_before_gone_lasts_is_noticed() {
    is_noticed_by(&[Backend::File], Mistake::Hasty, &[RightBytes]);
}

/// A crash between the phases of an eviction brings keys back.
#[test]
fn entries_that_end_before_their_bucket_is_given_up_are_noticed() {
    is_noticed(Mistake::EntriesFirst, &[NotBackAfterKill, NotBackAfterPowerLoss]);
}

#[test]
fn entries_that_end_before_gone_lasts_are_noticed() {
    // Later records of the journal say that it does.
    is_noticed(Mistake::GoneUnsynced, &[NotBackAfterPowerLoss, Opens]);
}

#[test]
fn a_value_that_leaves_memory_since_it_was_written_once_is_noticed() {
    is_noticed(Mistake::CleanFlag, &[IsFound]);
}

#[test]
fn a_value_that_comes_back_by_an_ordinary_put_is_noticed() {
    let key = (0, 0);
    let back = Op::PromoteAnd(key, Meanwhile::Remove(key));
    let ops = [Op::Set(key), Op::Write(None), Op::Evict, back, Op::Set((0, 1)), Op::Write(None)];
    let run = |backend, mistake| run_short(&ops, &config(backend, false), mistake, &mut Draw::new(4, u64::MAX));
    for backend in BACKENDS {
        let violation = run(backend, Some(Mistake::PromotedByPut)).expect_err("PromotedByPut was not noticed");
        println!("PromotedByPut of {}: {violation}", backend.name());
        assert_eq!(violation.promise, NotBackAfterKill);
        assert!(run(backend, None).unwrap_or_else(|violation| panic!("without the mistake: {violation}")));
    }
}

#[test]
fn folders_whose_names_are_not_synced_are_noticed() {
    is_noticed_by(&[Backend::File], Mistake::NoFolderSync, &[IsFound, RightBytes, Opens]);
}
