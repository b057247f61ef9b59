//! One operation of the disk fails, whichever it is: the call that met it fails or does not, everything that was promised holds,
//! and the directory goes on, or says why it is only read.

use super::Promise::{Found as IsFound, NotBackAfterPowerLoss, Opens, RightBytes};
use super::disk::{Mistake, Watched};
use super::ledger::{Ledger, Moments};
use super::master::{Master, Meanwhile, Op, When};
use super::{BACKENDS, Case, Checked, Crash, Promise, Violation, any_op, any_simple_op, asked, check, config, failed};
use crate::base::id::random_u64;
use crate::tier::config::{Backend, Config};
use crate::tier::io::sim::{Fault, Random, SimDisk};
use std::sync::Arc;

const FIRST: (u8, u8) = (0, 0);
const SECOND: (u8, u8) = (1, 0);
const THIRD: (u8, u8) = (0, 1);

/// Comes to everything that a directory does: buckets that are over, holes, journals that are full, restarts, buckets that are
/// given up, and values that come back.
const EVERYTHING: &[Op] = &[
    Op::Set(FIRST),
    Op::Set(SECOND),
    Op::Write(None),
    Op::Remove(FIRST),
    Op::Sync,
    Op::Tidy,
    Op::Set(THIRD),
    Op::WriteAnd(When::Assigned, Meanwhile::Set(THIRD)),
    Op::Set(FIRST),
    Op::Tidy,
    Op::WriteAnd(When::Written, Meanwhile::Remove(FIRST)),
    Op::Remove(SECOND),
    Op::Sync,
    Op::Tidy,
    Op::Set(SECOND),
    Op::Write(None),
    Op::Flush(1),
    Op::Set(SECOND),
    Op::Write(None),
    Op::Restart,
    Op::Set(FIRST),
    Op::Tidy,
    Op::Write(None),
    Op::Set(FIRST),
    Op::Write(None),
    Op::Remove(SECOND),
    Op::Sync,
    Op::Tidy,
    Op::Sync,
    Op::Set(SECOND),
    Op::Write(None),
    Op::Close,
    Op::Remove(THIRD),
    Op::Sync,
    Op::Tidy,
    Op::Set(THIRD),
    Op::Write(None),
    Op::Set(THIRD),
    Op::Write(None),
    Op::Remove(FIRST),
    Op::Sync,
    Op::Set(FIRST),
    Op::Write(None),
    Op::Evict,
    Op::PromoteAnd(THIRD, Meanwhile::GiveUp),
    Op::Promote(FIRST),
    Op::Condemn(0),
    Op::Remove(FIRST),
    Op::Set(THIRD),
    Op::WriteAnd(When::Chosen, Meanwhile::GiveUp),
    Op::Set(FIRST),
    Op::Write(None),
    Op::Set(SECOND),
    Op::Write(None),
    Op::Condemn(1),
    Op::Set(THIRD),
    Op::Write(None),
    Op::Restart,
    Op::PromoteAnd(FIRST, Meanwhile::Remove(FIRST)),
    Op::PromoteAnd(SECOND, Meanwhile::Set(SECOND)),
    Op::GiveUp,
    Op::Sync,
];

/// What the cases below were found with.
const OF_THE_DISK: [Fault; 3] = [Fault::Eio, Fault::Eio, Fault::Enospc];

/// Opens a directory; faults may hit that a few times.
fn open(watched: &Watched, config: &Config) -> Result<Master, Violation> {
    let mut failures = watched.sim().failures();
    loop {
        match Master::open(watched, config) {
            Ok(master) => return Ok(master),
            Err(error) if watched.sim().failures() == failures => return Err(failed(watched, "opening")(error)),
            Err(_) => failures = watched.sim().failures(),
        }
    }
}

/// Does something that may meet a fault. What fails without one says that the directory is only read.
fn step(watched: &Watched, config: &Config, master: &mut Master, op: Op) -> Checked {
    let failures = watched.sim().failures();
    match master.run(op) {
        Ok(_) => {}
        Err(error) if watched.sim().failures() == failures && master.trouble().is_none() => {
            return Err(failed(watched, op)(error));
        }
        Err(_) if matches!(op, Op::Close | Op::Restart) => *master = open(watched, config)?,
        Err(_) => {}
    }
    if watched.sim().failures() > 0 { master.audit() } else { Ok(()) }
}

/// Looks at what crashes leave at the moments that were kept, and now. Only a power loss is followed by another: who is killed
/// after a sync failed, before it has done anything about it, leaves a disk that shows more than will last.
fn look(watched: &Watched, rng: &mut Random, case: Case) -> Result<u64, Violation> {
    let moments = watched.moments();
    moments.keep(true);
    moments.come(watched.sim());
    let all = moments.take();
    for moment in &all {
        for image in [moment.disk.crash(rng), moment.disk.crash(rng)] {
            check(&image, case, &moment.ledger, Crash::PowerLoss, rng.below(8) == 0)?;
        }
        check(&moment.disk.kill(), case, &moment.ledger, Crash::Kill, false)?;
    }
    Ok(3 * all.len() as u64)
}

/// Runs everything with operation `n` of the disk failing. False if nothing failed: there are fewer, or this one cannot fail so.
fn run(case: Case, config: &Config, n: u64, fault: Fault) -> Result<bool, Violation> {
    let (sim, moments) = (SimDisk::new(), Arc::new(Moments::new(Ledger::default())));
    let watched = Watched::new(&sim, &moments, case.mistake);
    sim.fail_at(n, fault);
    moments.keep_since_failure(64, n);
    let mut master = open(&watched, config)?;
    for op in EVERYTHING {
        step(&watched, config, &mut master, *op)?;
        if sim.operations() > n && sim.failures() == 0 {
            return Ok(false);
        }
    }
    let images = look(&watched, &mut Random(n), case);
    counts_right(&watched, config, &mut master)?;
    images.map(|_| sim.failures() > 0)
}

/// What could not be done is done later, and nothing is left of it: neither on the disk nor in what is counted. (Where the disk refuses
/// to delete what it has refused to write, that stays until the directory is opened anew.)
fn counts_right(watched: &Watched, config: &Config, master: &mut Master) -> Checked {
    watched.sim().mend();
    master.try_again();
    step(watched, config, master, Op::Tidy)?;
    if master.trouble().is_some() { Ok(()) } else { master.audit_bytes() }
}

/// A workload by chance with a few faults, often close together. Gives how many images were looked at.
fn run_any(backend: Backend, seed: u64, any_op: fn(&mut Random) -> Op, faults: &[Fault]) -> Result<u64, Violation> {
    let mut rng = Random(seed);
    let config = config(backend, rng.below(4) == 0);
    let config = Config { meta: backend == Backend::Bucket && seed.is_multiple_of(3), ..config };
    let (sim, moments) = (SimDisk::new(), Arc::new(Moments::new(Ledger::default())));
    let watched = Watched::new(&sim, &moments, None);
    for _ in 0..1 + rng.below(2) {
        let mut at = rng.below(250);
        for _ in 0..1 + rng.below(3) {
            sim.fail_at(at, faults[rng.below(faults.len())]);
            at += 1 + rng.below(3);
        }
    }
    moments.keep_since_failure(24, seed);
    let mut master = open(&watched, &config)?;
    for _ in 0..20 + rng.below(30) {
        step(&watched, &config, &mut master, any_op(&mut rng))?;
    }
    look(&watched, &mut rng, Case { backend, mistake: None, faulty: true })
}

/// Operations of a disk that does not fail: all that may fail, and some that only a failure brings about.
fn operations(config: &Config) -> Result<u64, Violation> {
    let disk = SimDisk::new();
    let watched = Watched::new(&disk, &Arc::new(Moments::new(Ledger::default())), None);
    let mut master = open(&watched, config)?;
    for op in EVERYTHING {
        master.run(*op).unwrap();
    }
    Ok(disk.operations() + 20)
}

/// Operations from `first` on, one of `step`, with these faults. Gives how many operations there are, and how often one failed.
fn run_all(
    config: &Config,
    faults: &[Fault],
    (first, step): (u64, usize),
    mistake: Option<Mistake>,
) -> Result<(u64, u64), Violation> {
    let case = Case { backend: config.backend, mistake, faulty: true };
    let (all, mut failed) = (operations(config)?, 0);
    for fault in faults {
        for n in (first..all).step_by(step) {
            let explain = |violation: Violation| {
                let name = config.backend.name();
                let text = format!("{name}, meta: {}, {fault:?} at operation {n}: {}", config.meta, violation.text);
                Violation { text, ..violation }
            };
            let config = Config { durable_remove: n.is_multiple_of(3), ..config.clone() };
            failed += u64::from(run(case, &config, n, *fault).map_err(explain)?);
        }
    }
    Ok((all, failed))
}

/// Every operation fails in every way, or one of 29 in three ways. Which ones, and which ways, is another share each time: the seed is
/// told, and `NMC_TIER_SEED` gives the same again.
fn whichever_fails(config: &Config) {
    const STEP: usize = 29;
    // A sync that fails with EIO is a failed sync.
    let mut all = [Fault::Eio, Fault::Emfile, Fault::Efbig, Fault::Enospc, Fault::Full, Fault::FailedSync];
    let given = std::env::var("NMC_TIER_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed = given.unwrap_or_else(|| random_u64().unwrap());
    let mut rng = Random(seed);
    // EIO is what every operation may suffer, so it is always among them.
    (2..all.len()).rev().for_each(|last| all.swap(last, 1 + rng.below(last)));
    let first = rng.below(STEP as u64);
    let (faults, (first, step)) = if asked().is_some() { (&all[..], (0, 1)) } else { (&all[..3], (first, STEP)) };
    let (name, meta) = (config.backend.name(), config.meta);
    let (operations, failed) = run_all(config, faults, (first, step), None)
        .unwrap_or_else(|wrong| panic!("NMC_TIER_SEED={seed}, {name}, meta: {meta}: {wrong}"));
    // The others pass many operations by.
    assert!(failed > 10, "NMC_TIER_SEED={seed}, {name}, meta: {meta}: only {failed} failures by {faults:?}");
    println!(
        "{failed} failures: every {step} of {operations} operations from {first} on, {faults:?}, {name}, meta: {meta}, seed {seed}"
    );
}

// Whichever operation fails nothing that was promised is lost. One test for each kind: they run side by side.

#[test]
fn whichever_operation_fails_nothing_is_lost_of_buckets() {
    whichever_fails(&config(Backend::Bucket, false));
}

#[test]
fn whichever_operation_fails_nothing_is_lost_of_buckets_with_two_lists() {
    whichever_fails(&Config { meta: true, ..config(Backend::Bucket, false) });
}

#[test]
fn whichever_operation_fails_nothing_is_lost_of_folders() {
    whichever_fails(&config(Backend::File, false));
}

#[test]
fn whichever_operation_fails_nothing_is_lost_of_one_file() {
    whichever_fails(&config(Backend::Offset, false));
}

#[test]
fn whatever_fails_meanwhile_nothing_that_was_promised_is_lost() {
    for backend in BACKENDS {
        let (wanted, mut images, mut seed, name) = (asked().unwrap_or(500), 0, 1, backend.name());
        while images < wanted {
            let run = run_any(backend, seed, any_op, &[Fault::Eio, Fault::Emfile, Fault::Enospc, Fault::Efbig]);
            images += run.unwrap_or_else(|wrong| panic!("{name}, seed {seed}, image {images}: {wrong}"));
            seed += 1;
        }
        println!("{images} images of {} workloads with faults, {name}", seed - 1);
    }
}

/// The seal of a folder failed, and the mark that it is gone did too: deleted file by file, it came back with its list and without a
/// record.
#[test]
fn a_folder_that_may_come_back_comes_back_whole() {
    run_any(Backend::File, 85, any_simple_op, &OF_THE_DISK).unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// It kept its name, which the failed sync had lost, and counted when the directory was opened again.
#[test]
fn a_folder_whose_seal_failed_does_not_count_later() {
    run_any(Backend::File, 1769, any_simple_op, &OF_THE_DISK).unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// The seal failed, and there was no room for the mark that the bucket is gone: what was replaced later came back by it.
#[test]
fn a_bucket_that_may_come_back_and_is_not_marked_ends_writing() {
    run_any(Backend::File, 3168, any_simple_op, &OF_THE_DISK).unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// A directory could not be made, its head could not be taken away, and its journal was: it counted as damaged.
#[test]
fn a_directory_that_could_not_be_made_is_not_damaged() {
    run_any(Backend::Bucket, 1614, any_simple_op, &OF_THE_DISK).unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// It had a file for values, which was taken away together with the head; the sync failed, and a power loss brought back that file alone:
/// it counted as damaged.
#[test]
fn a_directory_that_could_not_be_made_has_no_values_without_a_head() {
    run_any(Backend::Offset, 1382, any_op, &OF_THE_DISK).unwrap_or_else(|wrong| panic!("{wrong}"));
}

#[test]
fn a_sync_that_is_repeated_after_it_failed_is_noticed() {
    for backend in BACKENDS {
        let noticed = run_all(&config(backend, false), &[Fault::FailedSync], (0, 1), Some(Mistake::RepeatedSync));
        let violation = noticed.map(drop).expect_err("RepeatedSync was not noticed");
        println!("RepeatedSync: {violation}");
        let promises: [Promise; 4] = [IsFound, Opens, RightBytes, NotBackAfterPowerLoss];
        assert!(promises.contains(&violation.promise), "{violation}");
    }
}
