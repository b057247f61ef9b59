//! Area `ffi`: what crossing the C boundary costs, measured through the shared library as a C program would call it.

use super::library::{Handle, Nanomc, PlainC};
use super::{Better, Metric, Run, median, ns_per_call};
use crate::args::Failure;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

/// How many metrics [`measure`] adds.
pub const METRICS: usize = 3;

/// Handles that are used in turn, so that neither side can live off one cached entry.
const HANDLES: usize = 8;
/// How long a sample lasts: long against the clock's resolution, short against the scheduler's time slice.
const SAMPLE_NS: f64 = 1e6;

/// Adds the metrics of the area.
pub fn measure(run: &mut Run) {
    run.measure("ffi.empty_call", empty_call);
    run.measure("ffi.handle_lookup", handle_lookup);
    run.measure("ffi.bad_handle", bad_handle);
}

fn empty_call(run: &mut Run) -> Result<(), Failure> {
    let (nanomc, plain) = (Nanomc::load()?, PlainC::load()?);
    let ours = |calls| ns_per_call(calls, |_| nanomc.abi_version());
    let baseline = |calls| ns_per_call(calls, |_| plain.abs(-1));
    let (value, baseline) = in_turn(run.reps(301, 3001), ours, baseline);
    run.add(Metric {
        name: "ffi.empty_call",
        value,
        unit: "ns",
        better: Better::Lower,
        baseline_name: "abs() of the C library through dlsym",
        baseline,
    });
    Ok(())
}

/// What handle tables usually are: a map behind a lock, whose entries are counted so that they outlive the lookup.
struct UsualTable {
    map: Mutex<HashMap<u64, Arc<AtomicU64>>>,
    keys: [u64; HANDLES],
}

impl UsualTable {
    fn new() -> Self {
        // Keys of the same shape as handles: a mark, a generation, an index.
        let keys: [u64; HANDLES] = std::array::from_fn(|i| 0x4e00_0000_0100_0001 | (i as u64) << 4);
        let entries = keys.iter().map(|key| (*key, Arc::new(AtomicU64::new(*key))));
        Self { map: Mutex::new(entries.collect()), keys }
    }

    #[inline(always)]
    fn get(&self, key: u64) -> Option<Arc<AtomicU64>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner).get(&key).map(Arc::clone)
    }
}

/// The call with a handle less the call without one. What is left also holds the checks of the arguments and the store
/// of the result, so it is an upper bound of the lookup.
fn handle_lookup(run: &mut Run) -> Result<(), Failure> {
    let nanomc = Nanomc::load()?;
    let worlds = Worlds::create(&nanomc)?;
    if worlds.handles.iter().any(|h| nanomc.event_fd(*h) != 0) {
        return Err(Failure::new("nmc_world_event_fd failed on a fresh handle"));
    }
    let table = UsualTable::new();
    let ours = |calls| {
        let call = ns_per_call(calls, |i| nanomc.event_fd(worlds.handles[i % HANDLES]));
        let empty = ns_per_call(calls, |_| nanomc.abi_version());
        (call - empty).max(0.0)
    };
    let baseline = |calls| ns_per_call(calls, |i| table.get(table.keys[i % HANDLES]));
    let (value, baseline) = in_turn(run.reps(301, 3001), ours, baseline);
    run.add(Metric {
        name: "ffi.handle_lookup",
        value,
        unit: "ns",
        better: Better::Lower,
        baseline_name: "Mutex<HashMap<u64, Arc>> lookup and clone",
        baseline,
    });
    Ok(())
}

thread_local! {
    static MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A call with a destroyed handle, which leaves a message behind; the baseline does the same with its means.
fn bad_handle(run: &mut Run) -> Result<(), Failure> {
    let nanomc = Nanomc::load()?;
    let stale: [Handle; HANDLES] = Worlds::create(&nanomc)?.handles;
    if stale.iter().any(|h| nanomc.event_fd(*h) == 0) {
        return Err(Failure::new("a destroyed handle was accepted"));
    }
    let table = UsualTable::new();
    let ours = |calls| ns_per_call(calls, |i| nanomc.event_fd(stale[i % HANDLES]));
    let baseline = |calls| {
        ns_per_call(calls, |i| {
            let key = !table.keys[i % HANDLES];
            if black_box(table.get(key)).is_none() {
                MESSAGE.with_borrow_mut(|text| {
                    text.clear();
                    let _ = write!(text, "the world handle {key:#x} was destroyed, or never created");
                });
            }
        })
    };
    let (value, baseline) = in_turn(run.reps(301, 3001), ours, baseline);
    run.add(Metric {
        name: "ffi.bad_handle",
        value,
        unit: "ns",
        better: Better::Lower,
        baseline_name: "Mutex<HashMap> miss and a formatted message",
        baseline,
    });
    Ok(())
}

/// The worlds of a measurement, destroyed at its end.
struct Worlds<'a> {
    nanomc: &'a Nanomc,
    handles: [Handle; HANDLES],
}

impl<'a> Worlds<'a> {
    fn create(nanomc: &'a Nanomc) -> Result<Self, Failure> {
        Ok(Self { nanomc, handles: nanomc.create_local()? })
    }
}

impl Drop for Worlds<'_> {
    fn drop(&mut self) {
        for handle in self.handles {
            self.nanomc.destroy(handle);
        }
    }
}

/// Medians of samples taken in turn. The functions get a number of calls and return nanoseconds per call; the first
/// samples find out how many calls fill a sample, and do not count.
fn in_turn(reps: usize, mut ours: impl FnMut(usize) -> f64, mut baseline: impl FnMut(usize) -> f64) -> (f64, f64) {
    let trial = 10_000;
    let slower = ours(trial).max(baseline(trial)).max(1.0);
    let mut calls = 1_000;
    while (calls as f64) * slower < SAMPLE_NS {
        calls *= 2;
    }
    let (mut a, mut b): (Vec<f64>, Vec<f64>) = (0..reps).map(|_| (ours(calls), baseline(calls))).unzip();
    (median(&mut a), median(&mut b))
}
