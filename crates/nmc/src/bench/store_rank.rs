//! A process of the store benchmarks: a client that is told what to measure in lines of words, and answers with a line of
//! figures. While it works it may ask for echoes, the baseline of a call to another process.

use super::rank::{READY, pipes};
use super::store_library::{Shelf, Slices, Wanted};
use super::store_ops::{self as ops, Pair, Rotation};
use crate::args::Failure;
use crate::sys::Cpus;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// Asks for an echo.
pub const ECHO: u8 = b'E';

/// Families of keys; a number stands for the same keys in every process.
pub mod family {
    /// The small working set.
    pub const SMALL: u32 = 1;
    /// What single puts store.
    pub const PUT: u32 = 2;
    /// What batches store.
    pub const BATCH: u32 = 3;
    /// Large values.
    pub const LARGE: u32 = 4;
    /// What full heaps hold.
    pub const CHURN: u32 = 5;
    /// Values that are read, by their size.
    pub const READ: u32 = 16;
}

/// The store that all processes of the area's worlds agree on.
pub fn wanted(heap_bytes: u64) -> Wanted {
    Wanted { heap_bytes, page_bytes: 4096, max_objects: 0, brim: false }
}

/// The pipes to the process that gives orders.
pub struct Wire {
    /// Orders.
    pub input: File,
    /// Answers.
    pub output: File,
}

impl Wire {
    /// The next order; `None` at the end.
    pub fn line(&mut self) -> std::io::Result<Option<String>> {
        let mut line = String::new();
        let mut byte = [0];
        loop {
            match self.input.read_exact(&mut byte) {
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
                other => other?,
            }
            match byte[0] {
                b'\n' => return Ok(Some(line)),
                other => line.push(other.into()),
            }
        }
    }

    /// µs for a byte there and back.
    fn echo(&mut self) -> std::io::Result<f64> {
        let start = Instant::now();
        self.output.write_all(&[ECHO])?;
        self.input.read_exact(&mut [0])?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }
}

/// Joins, tells that it did, and obeys until its input ends.
pub fn serve(dir: &Path, rank: u32, size: u32, heap_bytes: u64) -> Result<(), Failure> {
    let os = |e| Failure::os(format!("process {rank} of the benchmark"), &e);
    let shelf = Shelf::join(dir, rank, size, &wanted(heap_bytes))?;
    let cpus = Cpus::current().map_err(os)?;
    let (input, output) = pipes().map_err(os)?;
    let mut wire = Wire { input, output };
    wire.output.write_all(&[READY]).map_err(os)?;
    let small = Slices::keys(family::SMALL, 0..ops::SMALL_SET as u64);
    while let Some(line) = wire.line().map_err(os)? {
        let mut words = line.split(' ');
        let what = words.next().unwrap_or_default();
        let numbers: Vec<usize> = words.filter_map(|w| w.parse().ok()).collect();
        let number = |at: usize| numbers.get(at).copied().unwrap_or(1);
        let figures: Vec<Pair> = match what {
            "bind" => {
                let cpu = u32::try_from(number(0)).unwrap_or(0);
                Cpus::one(cpu).bind().map_err(os)?;
                Vec::new()
            }
            "free" => {
                cpus.bind().map_err(os)?;
                Vec::new()
            }
            "read" => {
                let rotation = Rotation { bytes: number(0), objects: number(1), block: number(2), blocks: number(3) };
                let keys = read_keys(rotation.bytes, rotation.objects);
                vec![ops::read_values(&shelf, keys.all(), &rotation)?]
            }
            "small" => ops::small_reads(&shelf, small.all(), number(0))?.to_vec(),
            "rate" => {
                let limit = Duration::from_millis(number(0) as u64);
                vec![(ops::read_rate(&shelf, small.all(), limit)?, 0.0)]
            }
            "put" => vec![ops::small_puts(&shelf, family::PUT, number(0), |_, _| wire.echo().map_err(os))?],
            "batch" => vec![ops::batched_puts(&shelf, family::BATCH, number(0))?],
            "large" => vec![ops::write_values(&shelf, family::LARGE, number(0))?],
            other => return Err(Failure::new(format!("there is no order {other:?}"))),
        };
        let answer: String = figures.iter().map(|(ours, plain)| format!("{ours} {plain} ")).collect();
        wire.output.write_all(format!("{}\n", answer.trim_end()).as_bytes()).map_err(os)?;
    }
    shelf.close()
}

/// The keys of values of this size.
pub fn read_keys(bytes: usize, objects: usize) -> Slices {
    Slices::keys(family::READ + bytes.trailing_zeros(), 0..objects as u64)
}
