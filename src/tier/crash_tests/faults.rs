//! One operation of the disk fails, whichever it is: the call that met it fails or does not, everything that was promised holds,
//! and the directory goes on, or says why it is only read.

use super::Promise::{Found as IsFound, NotBackAfterPowerLoss, Opens, RightBytes};
use super::disk::{Mistake, Watched};
use super::ledger::{Ledger, Moments};
use super::master::{Master, Meanwhile, Op, When};
use super::{Checked, Crash, Promise, Violation, any_op, asked, check, failed};
use crate::tier::Config;
use crate::tier::io::sim::{Fault, Rng, SimDisk};
use std::sync::Arc;

const FIRST: (u8, u8) = (0, 0);
const SECOND: (u8, u8) = (1, 0);
const THIRD: (u8, u8) = (0, 1);

/// Comes to everything that a directory does: buckets that are over, holes, journals that are full, restarts.
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
];

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
fn look(watched: &Watched, rng: &mut Rng, mistake: Option<Mistake>) -> Result<u64, Violation> {
    let moments = watched.moments();
    moments.keep(true);
    moments.come(watched.sim());
    let all = moments.take();
    for moment in &all {
        for image in [moment.disk.crash(rng), moment.disk.crash(rng)] {
            check(&image, &moment.ledger, Crash::PowerLoss, mistake, rng.below(8) == 0)?;
        }
        check(&moment.disk.kill(), &moment.ledger, Crash::Kill, mistake, false)?;
    }
    Ok(3 * all.len() as u64)
}

/// Runs everything with operation `n` of the disk failing. False if nothing failed: there are fewer, or this one cannot fail so.
fn run(n: u64, fault: Fault, durable_remove: bool, mistake: Option<Mistake>) -> Result<bool, Violation> {
    let config = Config { durable_remove, ..Config::default() };
    let (sim, moments) = (SimDisk::new(), Arc::new(Moments::new(Ledger::default())));
    let watched = Watched::new(&sim, &moments, mistake);
    sim.fail_at(n, fault);
    moments.keep_since_failure(64, n);
    let mut master = open(&watched, &config)?;
    for op in EVERYTHING {
        step(&watched, &config, &mut master, *op)?;
        if sim.operations() > n && sim.failures() == 0 {
            return Ok(false);
        }
    }
    look(&watched, &mut Rng(n), mistake).map(|_| sim.failures() > 0)
}

/// A workload by chance with a few faults, often close together. Gives how many images were looked at.
fn run_any(seed: u64) -> Result<u64, Violation> {
    let mut rng = Rng(seed);
    let config = Config { durable_remove: rng.below(4) == 0, ..Config::default() };
    let (sim, moments) = (SimDisk::new(), Arc::new(Moments::new(Ledger::default())));
    let watched = Watched::new(&sim, &moments, None);
    for _ in 0..1 + rng.below(2) {
        let mut at = rng.below(250);
        for _ in 0..1 + rng.below(3) {
            let fault = [Fault::Eio, Fault::Eio, Fault::Enospc][rng.below(3) as usize];
            sim.fail_at(at.into(), fault);
            at += 1 + rng.below(3);
        }
    }
    moments.keep_since_failure(24, seed);
    let mut master = open(&watched, &config)?;
    for _ in 0..20 + rng.below(30) {
        step(&watched, &config, &mut master, any_op(&mut rng))?;
    }
    look(&watched, &mut rng, None)
}

/// All operations, with all faults that count for something.
fn run_all(faults: &[Fault], step: usize, mistake: Option<Mistake>) -> Result<u64, Violation> {
    let mut failed = 0;
    let disk = SimDisk::new();
    let watched = Watched::new(&disk, &Arc::new(Moments::new(Ledger::default())), None);
    let mut master = open(&watched, &Config::default())?;
    for op in EVERYTHING {
        master.run(*op).unwrap();
    }
    for fault in faults {
        for n in (0..disk.operations() + 20).step_by(step) {
            let explain = |violation: Violation| {
                let text = format!("{fault:?} at operation {n}: {}", violation.text);
                Violation { text, ..violation }
            };
            failed += u64::from(run(n, *fault, n.is_multiple_of(3), mistake).map_err(explain)?);
        }
    }
    Ok(failed)
}

#[test]
fn whichever_operation_fails_nothing_that_was_promised_is_lost() {
    // A sync that fails with EIO is a failed sync.
    let faults: &[Fault] =
        if asked().is_some() { &[Fault::Eio, Fault::Enospc, Fault::FailedSync] } else { &[Fault::Eio] };
    let step = if asked().is_some() { 1 } else { 5 };
    let failed = run_all(faults, step, None).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(failed > 50, "only {failed} failures");
    println!("{failed} failures");
}

#[test]
fn whatever_fails_meanwhile_nothing_that_was_promised_is_lost() {
    let (wanted, mut images, mut seed) = (asked().unwrap_or(1500), 0, 1);
    while images < wanted {
        images += run_any(seed).unwrap_or_else(|wrong| panic!("seed {seed}, image {images}: {wrong}"));
        seed += 1;
    }
    println!("{images} images of {} workloads with faults", seed - 1);
}

#[test]
fn what_is_no_failure_passes_unnoticed() {
    let step = if asked().is_some() { 1 } else { 37 };
    for fault in [Fault::Eintr, Fault::Short, Fault::RingFull] {
        assert_eq!(run_all(&[fault], step, None).unwrap_or_else(|wrong| panic!("{wrong}")), 0);
    }
}

#[test]
fn a_sync_that_is_repeated_after_it_failed_is_noticed() {
    let noticed = run_all(&[Fault::FailedSync], 1, Some(Mistake::RepeatedSync));
    let violation = noticed.map(|_| ()).expect_err("RepeatedSync was not noticed");
    println!("RepeatedSync: {violation}");
    let promises: [Promise; 4] = [IsFound, Opens, RightBytes, NotBackAfterPowerLoss];
    assert!(promises.contains(&violation.promise), "{violation}");
}
