//! Area `world`: forming a world, writing into it, waiting for each other, noticing a death. Ranks are processes of
//! their own, started from this very program.

use super::copy::{self, Copies};
use super::crowd::{Rank, Scratch};
use super::rank::{BARRIERS, BIND, ECHO, Role, config};
use super::{Better, Metric, Run, median};
use crate::args::Failure;
use crate::sys::{self, Cpus, Mapping};
use nanomc::base::Deadline;
use nanomc::layout::world::words_bytes;
use nanomc::world::config::DEFAULT_WORDS;
use nanomc::world::{RankState, World};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

/// How many metrics [`measure`] adds.
pub const METRICS: usize = 6;

const RANKS: u32 = 8;
const JOIN_HEAP_BYTES: u64 = 64 << 20;
const LOCAL_HEAP_BYTES: u64 = 1 << 20;
const SMALL_HEAP_BYTES: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(30);

/// Adds the metrics of the area.
pub fn measure(run: &mut Run) {
    run.measure("world.join_8", join);
    run.measure("world.local_create_8", local_create);
    run.measure("world.write_peer and world.barrier_2", pair);
    run.measure("world.death_seen", death_seen);
}

/// Seconds from the first start of a process until the last has everyone together.
fn gather(role: Role, heap_bytes: u64) -> Result<f64, Failure> {
    let scratch = Scratch::new()?;
    let start = Instant::now();
    let spawn = |number| Rank::spawn(role, scratch.path(), number, RANKS, heap_bytes);
    let mut ranks = (0..RANKS).map(spawn).collect::<Result<Vec<_>, _>>()?;
    for rank in &mut ranks {
        rank.heard()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    ranks.iter_mut().for_each(Rank::dismiss);
    ranks.into_iter().try_for_each(Rank::finish)?;
    Ok(seconds)
}

/// Two baselines: the bare rendezvous, and the rendezvous of processes that reserve the same memory, which is what
/// takes most of the time.
fn join(run: &mut Run) -> Result<(), Failure> {
    let reps = run.reps(9, 41);
    let (mut ours, mut bare, mut same) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..reps {
        ours.push(gather(Role::World, JOIN_HEAP_BYTES)?);
        bare.push(gather(Role::Plain, 0)?);
        same.push(gather(Role::Plain, JOIN_HEAP_BYTES)?);
    }
    let value = median(&mut ours);
    run.add(Metric {
        name: "world.join_8",
        value,
        unit: "s",
        better: Better::Lower,
        baseline_name: "8 processes, 1 byte over a Unix socket, no memory",
        baseline: median(&mut bare),
    });
    run.add(Metric {
        name: "world.join_8.same_memory",
        value,
        unit: "s",
        better: Better::Lower,
        baseline_name: "8 processes, 1 byte over a Unix socket, 64 MiB memfd each",
        baseline: median(&mut same),
    });
    Ok(())
}

fn local_create(run: &mut Run) -> Result<(), Failure> {
    let wanted = config(std::path::Path::new("unused"), 0, RANKS, LOCAL_HEAP_BYTES);
    let bytes = |n: u64| usize::try_from(n).map_err(|_| Failure::new(format!("{n} bytes do not fit")));
    let heap = bytes(LOCAL_HEAP_BYTES)?;
    let words = bytes(words_bytes(RANKS, DEFAULT_WORDS).next_multiple_of(4096))?;
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..run.reps(51, 501) {
        let start = Instant::now();
        let worlds = World::local(&wanted)?;
        ours.push(start.elapsed().as_secs_f64() * 1e6);
        drop(worlds);
        let start = Instant::now();
        let sizes = std::iter::once(words).chain(std::iter::repeat_n(heap, RANKS as usize));
        let mappings = sizes.map(Mapping::shared).collect::<std::io::Result<Vec<_>>>();
        let mappings = mappings.map_err(|e| Failure::os("making the baseline's memory", &e))?;
        plain.push(start.elapsed().as_secs_f64() * 1e6);
        drop(mappings);
    }
    run.add(Metric {
        name: "world.local_create_8",
        value: median(&mut ours),
        unit: "µs",
        better: Better::Lower,
        baseline_name: "memfd_create, fallocate, mmap of the same sizes (1 MiB heaps)",
        baseline: median(&mut plain),
    });
    Ok(())
}

/// This process as rank 0 and another one as rank 1.
struct Pair {
    world: World,
    other: Rank,
    _scratch: Scratch,
}

impl Pair {
    fn form(heap_bytes: u64) -> Result<Self, Failure> {
        let scratch = Scratch::new()?;
        let mut other = Rank::spawn(Role::World, scratch.path(), 1, 2, heap_bytes)?;
        let world = World::join(config(scratch.path(), 0, 2, heap_bytes))?;
        other.heard()?;
        Ok(Self { world, other, _scratch: scratch })
    }

    fn order(&mut self, what: u8, number: u32) -> Result<(), Failure> {
        let [a, b, c, d] = number.to_le_bytes();
        self.other.tell(&[what, a, b, c, d])
    }

    fn part(self) -> Result<(), Failure> {
        self.other.finish()?;
        self.world.finalize()?;
        Ok(())
    }
}

fn pair(run: &mut Run) -> Result<(), Failure> {
    let mut pair = Pair::form((copy::BUFFERS * copy::BYTES) as u64)?;
    write_peer(run, &pair.world)?;
    barrier(run, &mut pair)?;
    pair.part()
}

fn write_peer(run: &mut Run, world: &World) -> Result<(), Failure> {
    let copies = Copies::new(world, 1)?;
    // Faults the pages of both targets in.
    let _ = (copies.peer_rate(2), copies.private_rate(2));
    let rounds = 4;
    let (mut ours, mut private) = (Vec::new(), Vec::new());
    for _ in 0..run.reps(101, 1001) {
        ours.push(copies.peer_rate(rounds));
        private.push(copies.private_rate(rounds));
    }
    run.add(Metric {
        name: "world.write_peer.1MiB",
        value: median(&mut ours),
        unit: "GB/s",
        better: Better::Higher,
        baseline_name: "memcpy between private buffers, 16 of 1 MiB in turn",
        baseline: median(&mut private),
    });
    Ok(())
}

/// Both processes stay on a CPU of their own: left to the scheduler, ours and the baseline may run in different places,
/// and a message between two CPUs takes several times as long as one that stays.
fn barrier(run: &mut Run, pair: &mut Pair) -> Result<(), Failure> {
    let os = |e| Failure::os("binding to a CPU", &e);
    let all = Cpus::current().map_err(os)?;
    if let [first, second, ..] = all.numbers()[..] {
        pair.order(BIND, second)?;
        Cpus::one(first).bind().map_err(os)?;
    }
    let measured = bound_barrier(run, pair);
    all.bind().map_err(os)?;
    measured
}

fn bound_barrier(run: &mut Run, pair: &mut Pair) -> Result<(), Failure> {
    let (mut ours, mut pipes) = (Vec::new(), Vec::new());
    let each = 500;
    for block in 0..run.reps(16, 101) {
        pair.order(BARRIERS, each)?;
        for _ in 0..each {
            let start = Instant::now();
            pair.world.barrier(&Deadline::after(LIMIT))?;
            ours.push(start.elapsed().as_secs_f64() * 1e6);
        }
        pair.order(ECHO, each)?;
        for _ in 0..each {
            let start = Instant::now();
            pair.other.tell(&[0])?;
            pair.other.heard()?;
            pipes.push(start.elapsed().as_secs_f64() * 1e6);
        }
        if block == 0 {
            // The first block warms up.
            ours.clear();
            pipes.clear();
        }
    }
    run.add(Metric {
        name: "world.barrier_2",
        value: median(&mut ours),
        unit: "µs",
        better: Better::Lower,
        baseline_name: "one byte there and back through pipes, same processes and CPUs",
        baseline: median(&mut pipes),
    });
    Ok(())
}

/// Milliseconds from SIGKILL until the survivor's eventfd has fired and the state says so.
fn see_death(mut pair: Pair) -> Result<f64, Failure> {
    let os = |e| Failure::os("waiting for an event", &e);
    let mut events = File::from(sys::duplicate(pair.world.event_fd()).map_err(os)?);
    let mut count = [0u8; 8];
    // What happened while the ranks came together is no news.
    while sys::wait_readable(events.as_fd(), Duration::ZERO).map_err(os)? {
        events.read_exact(&mut count).map_err(os)?;
    }
    let start = Instant::now();
    pair.other.kill()?;
    while pair.world.state(1)? == RankState::Alive {
        if !sys::wait_readable(events.as_fd(), LIMIT).map_err(os)? {
            return Err(Failure::new(format!("the death of rank 1 was not reported within {LIMIT:?}")));
        }
        events.read_exact(&mut count).map_err(os)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// The same death as its parent sees it.
fn see_exit(mut pair: Pair) -> Result<f64, Failure> {
    let start = Instant::now();
    pair.other.kill()?;
    pair.other.reap()?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

fn death_seen(run: &mut Run) -> Result<(), Failure> {
    let (mut ours, mut parents) = (Vec::new(), Vec::new());
    for _ in 0..run.reps(21, 101) {
        ours.push(see_death(Pair::form(SMALL_HEAP_BYTES)?)?);
        parents.push(see_exit(Pair::form(SMALL_HEAP_BYTES)?)?);
    }
    run.add(Metric {
        name: "world.death_seen",
        value: median(&mut ours),
        unit: "ms",
        better: Better::Lower,
        baseline_name: "waitpid by the parent after the same SIGKILL",
        baseline: median(&mut parents),
    });
    Ok(())
}
