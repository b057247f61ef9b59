//! Values on loan: read into a buffer of the library, where whoever asked may use them for a while, without memory of its own. A loan
//! ends when it is given back or when its time is over, and only then others get the memory: who counts the time from before it
//! asked never reads another's value. What is lent is bounded, and no loan lasts for ever, whoever is killed.

use crate::alloc::runs::{Run, Runs};
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_BUSY, NMC_ERR_LIMIT, NMC_ERR_STALE};
use crate::tier::io::{BLOCK, FixedBuffer};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that can be lent at a time.
pub const BYTES: usize = if cfg!(test) { 64 * BLOCK } else { 64 << 20 };
/// Loans at a time.
pub const LOANS: usize = 1024;

/// Where lent memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    address: u64,
    bytes: u64,
}

impl Lent {
    /// First byte.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

struct Loan {
    runs: Vec<Run>,
    /// When it ends; `None` while it is being filled.
    until: Option<Instant>,
}

#[derive(Default)]
struct Place {
    /// Loans that this place has had: a name of one of them is not a name of the next.
    generation: u32,
    loan: Option<Loan>,
}

struct State {
    memory: Arc<FixedBuffer>,
    runs: Runs,
    places: Vec<Place>,
}

impl State {
    fn new() -> Result<Self> {
        Ok(Self {
            memory: Arc::new(FixedBuffer::new(BYTES)?),
            runs: Runs::new(u32::try_from(BYTES / BLOCK).unwrap_or(0))?,
            places: Vec::new(),
        })
    }

    /// Ends the loan of a place.
    fn end(&mut self, place: usize) {
        if let Some(loan) = self.places.get_mut(place).and_then(|place| place.loan.take()) {
            for run in loan.runs {
                // It was allocated by `lend`, and is freed here alone.
                let _ = self.runs.free(run);
            }
        }
    }

    /// Ends all loans whose time is over.
    fn collect(&mut self, now: Instant) {
        for place in 0..self.places.len() {
            let over = |loan: &Loan| loan.until.is_some_and(|until| until <= now);
            if self.places[place].loan.as_ref().is_some_and(over) {
                self.end(place);
            }
        }
    }

    fn free_place(&mut self) -> Result<usize> {
        if let Some(free) = self.places.iter().position(|place| place.loan.is_none()) {
            return Ok(free);
        }
        if self.places.len() == LOANS {
            return Err(Error::new(NMC_ERR_BUSY, format!("{LOANS} loans of staging memory are open; give one back")));
        }
        memory::push(&mut self.places, Place::default())?;
        Ok(self.places.len() - 1)
    }

    /// The place that a name stands for, if its loan has not ended.
    fn place_of(&self, name: u64) -> Option<usize> {
        let place = usize::try_from(name & u64::from(u32::MAX)).ok()?;
        let at = self.places.get(place)?;
        (u64::from(at.generation) == name >> 32 && at.loan.is_some()).then_some(place)
    }
}

/// See the module.
#[derive(Default)]
pub struct Staging(Mutex<Option<State>>);

impl Staging {
    /// Memory for values of these sizes, in one loan: its name, which is not 0, and where they go. It lasts until it is given back, or
    /// for the time that [`Staging::start`] says.
    pub fn lend(&self, sizes: &[u64], now: Instant) -> Result<(u64, Vec<Lent>)> {
        let blocks = |bytes: &u64| bytes.div_ceil(BLOCK as u64).max(1);
        let all = sizes.iter().map(blocks).fold(0, u64::saturating_add);
        if all > (BYTES / BLOCK) as u64 {
            let most = BYTES >> 10;
            let wanted = all.saturating_mul(BLOCK as u64) >> 10;
            return Err(Error::new(
                NMC_ERR_LIMIT,
                format!("{wanted} KiB are wanted, but staging memory has {most} KiB"),
            ));
        }
        let mut held = self.0.lock();
        let state = match &mut *held {
            Some(state) => state,
            none => none.insert(State::new()?),
        };
        state.collect(now);
        let place = state.free_place()?;
        let mut runs: Vec<Run> = memory::with_capacity(sizes.len())?;
        let mut lent = memory::with_capacity(sizes.len())?;
        for bytes in sizes {
            let count = u32::try_from(blocks(bytes)).unwrap_or(u32::MAX);
            let Some(run) = state.runs.allocate(count) else {
                for run in runs {
                    let _ = state.runs.free(run);
                }
                let text = "staging memory is lent to others; it comes back when they release it or their time is over";
                return Err(Error::new(NMC_ERR_BUSY, text));
            };
            let address = state.memory.address() + u64::from(run.first) * BLOCK as u64;
            runs.push(run);
            lent.push(Lent { address, bytes: *bytes });
        }
        let at = &mut state.places[place];
        at.generation = at.generation.wrapping_add(1).max(1);
        at.loan = Some(Loan { runs, until: None });
        Ok((u64::from(at.generation) << 32 | place as u64, lent))
    }

    /// The memory, once some was lent.
    pub fn memory(&self) -> Option<Arc<FixedBuffer>> {
        self.0.lock().as_ref().map(|state| Arc::clone(&state.memory))
    }

    /// The values are there: the loan's time begins.
    pub fn start(&self, name: u64, time: Duration, now: Instant) {
        if let Some(state) = &mut *self.0.lock()
            && let Some(place) = state.place_of(name)
            && let Some(loan) = &mut state.places[place].loan
        {
            loan.until = now.checked_add(time);
        }
    }

    /// Ends a loan; `NMC_ERR_STALE` if its time was over: what was read last may have been another's.
    pub fn give_back(&self, name: u64, now: Instant) -> Result<()> {
        let mut held = self.0.lock();
        let state = held.as_mut();
        if let Some(state) = state
            && let Some(place) = state.place_of(name)
        {
            let in_time =
                state.places[place].loan.as_ref().is_some_and(|loan| loan.until.is_none_or(|until| now < until));
            state.end(place);
            if in_time {
                return Ok(());
            }
        }
        Err(Error::new(NMC_ERR_STALE, "the loan has ended: its time was over, or it was given back"))
    }

    /// Bytes of blocks that are lent.
    #[cfg(test)]
    fn lent_bytes(&self, now: Instant) -> u64 {
        self.0.lock().as_mut().map_or(0, |state| {
            state.collect(now);
            let runs =
                |place: &Place| place.loan.as_ref().map_or(0, |l| l.runs.iter().map(|r| u64::from(r.count)).sum());
            state.places.iter().map(runs).sum::<u64>() * BLOCK as u64
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::base::random::Random;

    const TIME: Duration = Duration::from_secs(5);

    /// A loan as its borrower knows it.
    struct Known {
        name: u64,
        lent: Vec<Lent>,
        until: Instant,
    }

    fn overlap(one: &Lent, other: &Lent) -> bool {
        one.address < other.address + other.bytes && other.address < one.address + one.bytes
    }

    /// Lends, gives back, and forgets at random; says when a loan gets memory of one that has not ended, or ends another.
    fn play(seed: u64, steps: usize, forget_generation: bool) -> std::result::Result<(), String> {
        let staging = Staging::default();
        let mut random = Random(seed);
        let mut now = Instant::now();
        let (mut known, mut old): (Vec<Known>, Vec<u64>) = (Vec::new(), Vec::new());
        for _ in 0..steps {
            now += Duration::from_millis(random.below(1500));
            known.retain(|loan| {
                loan.until > now || {
                    old.push(loan.name);
                    false
                }
            });
            match random.below(4) {
                0 | 1 => {
                    let sizes: Vec<u64> = (0..=random.below(3)).map(|_| random.below(60_000)).collect();
                    let Ok((name, lent)) = staging.lend(&sizes, now) else { continue };
                    staging.start(name, TIME, now);
                    let taken = known.iter().flat_map(|loan| &loan.lent);
                    if taken.into_iter().any(|other| lent.iter().any(|own| overlap(own, other))) {
                        return Err("memory was lent twice".into());
                    }
                    known.push(Known { name, lent, until: now + TIME });
                }
                2 if !known.is_empty() => {
                    let loan = known.swap_remove(random.below(u32::try_from(known.len()).unwrap()) as usize);
                    staging.give_back(loan.name, now).map_err(|error| error.message)?;
                    old.push(loan.name);
                }
                _ if !old.is_empty() => {
                    let name = old[random.below(u32::try_from(old.len()).unwrap()) as usize];
                    // The control: a name that says the place only ends whoever has it now.
                    let generation = |place: u64| {
                        staging.0.lock().as_ref().unwrap().places[usize::try_from(place).unwrap()].generation
                    };
                    let place = name & u64::from(u32::MAX);
                    let name = if forget_generation { u64::from(generation(place)) << 32 | place } else { name };
                    let _ = staging.give_back(name, now);
                }
                _ => {}
            }
        }
        for loan in known {
            staging.give_back(loan.name, now).map_err(|error| error.message)?;
        }
        match staging.lent_bytes(now + TIME) {
            0 => Ok(()),
            left => Err(format!("{left} bytes stay lent")),
        }
    }

    #[test]
    fn no_memory_is_lent_twice_and_all_comes_back() {
        for seed in 0..40 {
            assert_eq!(play(seed, 400, false), Ok(()), "seed {seed}");
        }
    }

    #[test]
    fn control_names_without_generations_end_the_loans_of_others() {
        assert!((0..40).any(|seed| play(seed, 400, true).is_err()));
    }

    #[test]
    fn a_loan_whose_time_is_over_is_stale_and_its_memory_is_lent_again() {
        let (staging, now) = (Staging::default(), Instant::now());
        let all = BYTES as u64;
        let (first, _) = staging.lend(&[all], now).unwrap();
        // While it is being filled it lasts.
        assert_eq!(staging.lend(&[1], now + 10 * TIME).unwrap_err().status, NMC_ERR_BUSY);
        staging.start(first, TIME, now);
        assert_eq!(staging.lend(&[1], now + TIME / 2).unwrap_err().status, NMC_ERR_BUSY);
        let (second, _) = staging.lend(&[all], now + TIME).unwrap();
        assert_eq!(staging.give_back(first, now + TIME).unwrap_err().status, NMC_ERR_STALE);
        assert_eq!(staging.lent_bytes(now + TIME), all, "the second one has it");
        staging.give_back(second, now + TIME).unwrap();
        assert_eq!(staging.give_back(second, now + TIME).unwrap_err().status, NMC_ERR_STALE);
        assert_eq!(staging.lend(&[all, 1], now).unwrap_err().status, NMC_ERR_LIMIT);
        assert_eq!(staging.lend(&[u64::MAX, u64::MAX], now).unwrap_err().status, NMC_ERR_LIMIT);
    }
}
