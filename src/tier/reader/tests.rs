//! Clients read what the index leads to, whatever the size, the part and the destination; never a byte that is wrong, nor a byte
//! beside what was asked for. Buckets are written by hand here.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use super::*;
use crate::base::Deadline;
use crate::base::crc;
use crate::base::error::Error;
use crate::base::over::Over;
use crate::base::random::Random;
use crate::base::status::{
    NMC_ERR_CORRUPT, NMC_ERR_INVALID_ARG, NMC_ERR_NOT_FOUND, NMC_ERR_PERMISSION, NMC_ERR_TIMEOUT, NMC_ERR_VERSION,
};
use crate::layout::disk::{Entry, Spot};
use crate::store::PLACE_SHIFT;
use crate::store::copy::{Rows, Slice};
use crate::store::disk::{Mark, SpaceName, ToWrite};
use crate::store::types::Retain;
use crate::sync::{disk_entry, index};
use crate::tier::config::Config;
use crate::tier::directory::{Directory, Source};
use crate::tier::format::{self, BLOCK, GRANULE, Head, Item, Record, Shape, bucket_name, encode_footer, fingerprint};
use crate::tier::io::sim::SimDisk;
use crate::tier::io::{Buffer, Disk as _};
use parking_lot::Mutex;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

type Hook = Arc<dyn Fn() + Send + Sync>;

/// What a test does to a reader.
#[derive(Default)]
pub struct Stage {
    /// Called when everything was read, before the entry is looked at.
    hook: Mutex<Option<Hook>>,
    /// Does not look at the entry at all.
    blind: AtomicBool,
}

impl Stage {
    pub fn before_the_second_look(&self) -> Option<bool> {
        let hook = self.hook.lock().clone();
        if let Some(hook) = hook {
            hook();
        }
        self.blind.load(Relaxed).then_some(true)
    }
}

const SECRET: [u8; 32] = [7; 32];
const SPACE: Space = Space { number: 3, generation: 5 };

/// Bytes that tell where they come from.
fn value(seed: u64, bytes: usize) -> Vec<u8> {
    Random(seed).bytes(bytes)
}

/// An object as it lies on disk.
#[derive(Clone)]
struct Object {
    key: Vec<u8>,
    epoch: u64,
    value: Vec<u8>,
}

impl Object {
    fn new(key: impl AsRef<[u8]>, epoch: u64, bytes: usize) -> Self {
        Self { key: key.as_ref().to_vec(), epoch, value: value(epoch, bytes) }
    }

    fn record<'a>(&'a self, metadata: &'a [u8]) -> Record<'a> {
        let (key, epoch, value_bytes) = (&self.key[..], self.epoch, self.value.len() as u64);
        Record {
            space: SPACE,
            key,
            metadata,
            value_bytes,
            epoch,
            store_id: 9,
            rank: 1,
            retain: 0,
            priority: 0,
            put: epoch,
        }
    }

    /// Its blocks.
    fn blocks(&self) -> Vec<u8> {
        let record = self.record(b"some metadata");
        let shape = record.shape();
        let mut bytes = vec![0; usize::try_from(shape.blocks).unwrap() * BLOCK];
        let at = usize::try_from(shape.value_at).unwrap();
        bytes[at..at + self.value.len()].copy_from_slice(&self.value);
        let sums: Vec<u32> = self.value.chunks(GRANULE).map(crc::crc32c).collect();
        record.encode(&sums, &mut bytes[..shape.header_bytes()]).unwrap();
        bytes
    }
}

/// A whole bucket, and the blocks at which its objects begin.
fn bucket_of(bucket: u64, objects: &[Object]) -> (Vec<u8>, Vec<u64>) {
    let (mut bytes, mut spots) = (Vec::new(), Vec::new());
    for object in objects {
        spots.push((bytes.len() / BLOCK) as u64);
        bytes.extend(object.blocks());
    }
    let items: Vec<Item<'_>> = objects
        .iter()
        .zip(&spots)
        .map(|(object, block)| Item {
            block: *block,
            space: SPACE,
            fingerprint: fingerprint(&SECRET, SPACE, &object.key),
            epoch: object.epoch,
            store_id: 9,
            value_bytes: object.value.len() as u64,
            put: object.epoch,
            key: &object.key,
        })
        .collect();
    let blocks = (bytes.len() / BLOCK) as u64;
    bytes.extend(encode_footer(1, bucket, blocks, &items).unwrap());
    (bytes, spots)
}

/// A directory and the index that leads there.
struct Tree {
    dir: tempfile::TempDir,
    map: DiskMap,
    next: AtomicU32,
    backend: Backend,
    /// Who writes, if it is not done by hand.
    owner: Option<Directory>,
}

/// Gives the values of objects to whoever writes them, by index.
struct Values<'a>(&'a [Object]);

impl Source for Values<'_> {
    fn read(&self, item: &ToWrite, offset: u64, to: &mut [u8]) -> Result<()> {
        let from = usize::try_from(offset).unwrap();
        to.copy_from_slice(&self.0[item.index as usize].value[from..from + to.len()]);
        Ok(())
    }
}

impl Tree {
    fn new() -> Self {
        let deadline = Deadline::after(Duration::from_secs(60));
        let map = DiskMap::create(1, 1, 4096, &SECRET, &deadline).unwrap();
        map.view().set_space(0, Some(SPACE));
        let (dir, next) = (tempfile::tempdir().unwrap(), AtomicU32::new(0));
        Self { dir, map, next, backend: Backend::Bucket, owner: None }
    }

    /// One that is written as the owner of a directory does. There is room for so many bytes.
    fn of(backend: Backend, capacity_bytes: u64) -> Self {
        let tree = Self::new();
        let disk = RealDisk::open(tree.dir.path(), false, Options::default()).unwrap();
        let head = || Ok(Head { tier_id: 1, secret: SECRET, backend: 0, created: 0 });
        let config = Config { backend, capacity_bytes, ..Config::default() };
        let (owner, _) = Directory::open(Arc::new(disk), &config, head, &mut |_, _| {}).unwrap();
        owner.note(&[Mark::Namespace(SpaceName::new(b"name").unwrap(), SPACE)]);
        Self { backend, owner: Some(owner), ..tree }
    }

    /// Writes objects, and gives where they are.
    fn store(&self, objects: &[Object]) -> Vec<Spot> {
        let items: Vec<ToWrite> = objects
            .iter()
            .zip(0..)
            .map(|(object, index)| ToWrite {
                index,
                epoch: object.epoch,
                namespace: 0,
                space: SPACE,
                key: object.key.clone(),
                metadata: b"some metadata".to_vec(),
                bytes: object.value.len() as u64,
                rank: 1,
                class: (Retain::None, 0),
                put: object.epoch,
            })
            .collect();
        let owner = self.owner.as_ref().unwrap();
        let stored = owner.write(&items, 9, &Values(objects), &mut |places| Ok(vec![true; places.len()])).unwrap();
        stored.iter().for_each(|stored| owner.entered(stored.entry.spot.bucket));
        stored.iter().map(|stored| stored.entry.spot).collect()
    }

    /// What is there is over, and its space is used again.
    fn take_away(&self, spots: &[Spot]) {
        let owner = self.owner.as_ref().unwrap();
        let marks: Vec<Mark> = spots.iter().map(|spot| Mark::Dead { spot: *spot, entered: true }).collect();
        owner.note(&marks);
        owner.settle(true).unwrap();
        while owner.tidy().unwrap() {}
    }

    fn path(&self, bucket: u64) -> PathBuf {
        self.dir.path().join(bucket_name(bucket))
    }

    /// Writes a bucket, and gives where its objects are.
    fn write(&self, bucket: u64, objects: &[Object]) -> Vec<Spot> {
        let (bytes, blocks) = bucket_of(bucket, objects);
        std::fs::write(self.path(bucket), bytes).unwrap();
        blocks.into_iter().map(|block| Spot { bucket, block }).collect()
    }

    /// Lets the index lead to an object.
    fn enter(&self, object: &Object, spot: Spot) -> DiskEntry {
        let index = self.next.fetch_add(1, Relaxed);
        self.enter_at(index, object, spot);
        let wanted = fingerprint(&SECRET, SPACE, &object.key);
        index::insert(self.map.view().index().tables[0], wanted.low, index).unwrap();
        self.map.probe(0, &object.key).unwrap().unwrap()
    }

    fn enter_at(&self, index: u32, object: &Object, spot: Spot) {
        let fingerprint = fingerprint(&SECRET, SPACE, &object.key);
        let bytes = object.value.len() as u64;
        let entry = Entry { epoch: object.epoch, fingerprint, bytes, spot, space: SPACE.number };
        self.map.view().fill(index, &entry, object.epoch);
    }

    fn end(&self, index: u32) {
        disk_entry::end(self.map.view().entry(index).unwrap());
    }

    /// A bucket with these objects, all of them entered.
    fn fill(&self, bucket: u64, objects: &[Object]) -> Vec<DiskEntry> {
        let spots = if self.owner.is_some() { self.store(objects) } else { self.write(bucket, objects) };
        objects.iter().zip(spots).map(|(object, spot)| self.enter(object, spot)).collect()
    }

    fn reader(&self, options: Options) -> Reader {
        let directory = std::fs::File::open(self.dir.path()).unwrap();
        Reader::new(directory.into(), options, self.backend).unwrap()
    }
}

/// A directory that is written by hand, and one of every backend.
fn trees() -> impl Iterator<Item = Tree> {
    let keeping = [Backend::Bucket, Backend::File, Backend::Offset];
    std::iter::once_with(Tree::new).chain(keeping.into_iter().map(|backend| Tree::of(backend, 128 << 20)))
}

/// All ways to read.
fn ways() -> impl Iterator<Item = Options> {
    [(true, true, 32), (true, false, 32), (false, true, 3), (false, false, 1)]
        .map(|(direct, uring, depth)| Options { direct, uring, depth })
        .into_iter()
}

/// Memory with a red zone on both sides, `shift` bytes from a multiple of a block.
struct Zone {
    buffer: Buffer,
    at: usize,
    bytes: usize,
}

const RED: u8 = 0xA5;

impl Zone {
    fn new(shift: usize, bytes: usize) -> Self {
        let mut buffer = Buffer::new(bytes + shift + 3 * BLOCK).unwrap();
        buffer.fill(RED);
        Self { buffer, at: BLOCK + shift, bytes }
    }

    fn slice(&mut self) -> Slice {
        Slice::of_test_mut(self.bytes_mut())
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.at..self.at + self.bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.at..self.at + self.bytes]
    }

    fn is_clean_around(&self) -> bool {
        let (before, after) = (&self.buffer[..self.at], &self.buffer[self.at + self.bytes..]);
        before.iter().chain(after).all(|byte| *byte == RED)
    }
}

/// Reads a part to pieces.
fn read_to(
    (tree, reader): (&Tree, &Reader),
    entry: &DiskEntry,
    key: &[u8],
    (offset, bytes): (u64, u64),
    pieces: Pieces<'_>,
) -> Result<bool> {
    let mut reads = [DiskRead { entry: *entry, key, offset, bytes, to: Target::Host(pieces), outcome: Ok(false) }];
    reader.read(&tree.map, &mut reads);
    let [DiskRead { outcome, .. }] = reads;
    outcome
}

/// Reads a whole value; `None` if its entry has ended.
fn read_all(tree: &Tree, reader: &Reader, entry: &DiskEntry, key: &[u8], shift: usize) -> Result<Option<Vec<u8>>> {
    let mut zone = Zone::new(shift, usize::try_from(entry.entry.bytes).unwrap());
    let slices = [zone.slice()];
    let all = (0, entry.entry.bytes);
    let there = read_to((tree, reader), entry, key, all, Pieces::Slices(&slices));
    assert!(zone.is_clean_around());
    Ok(there?.then(|| zone.bytes().to_vec()))
}

/// Reads a part to whoever takes it.
fn read_taken(
    tree: &Tree,
    reader: &Reader,
    entry: &DiskEntry,
    key: &[u8],
    part: (u64, u64),
) -> (Vec<u8>, Result<bool>) {
    let mut taken = Vec::new();
    let mut take = |at: u64, bytes: &[u8]| {
        assert_eq!(at, part.0 + taken.len() as u64, "in order, and each byte once");
        assert!(!bytes.is_empty() && bytes.len() <= 1 << 20);
        taken.extend_from_slice(bytes);
        Ok(())
    };
    let to = Target::Take(&mut take);
    let mut reads = [DiskRead { entry: *entry, key, offset: part.0, bytes: part.1, to, outcome: Ok(false) }];
    reader.read(&tree.map, &mut reads);
    let [DiskRead { outcome, .. }] = reads;
    (taken, outcome)
}

/// The longest value that lies in the first block with a key of so many bytes.
fn inline_limit(key_bytes: usize) -> usize {
    (0..BLOCK).rev().find(|bytes| Shape::of(key_bytes, *bytes as u64).inline).unwrap()
}

/// Objects of all sizes that are special.
fn all_sizes() -> Vec<Object> {
    let (limit, mib) = (inline_limit(3), 1 << 20);
    let near = |size: usize| [size - 1, size, size + 1];
    let mut sizes: Vec<usize> = [limit, BLOCK, GRANULE, 4 * GRANULE].into_iter().flat_map(near).collect();
    sizes.extend([0, 1, mib, 9 * mib + 3]);
    (100..).zip(sizes).map(|(epoch, bytes)| Object::new(epoch.to_string(), epoch, bytes)).collect()
}

fn damage(tree: &Tree, bucket: u64, at: u64, bytes: &[u8]) {
    std::fs::OpenOptions::new().write(true).open(tree.path(bucket)).unwrap().write_all_at(bytes, at).unwrap();
}

fn flip(tree: &Tree, bucket: u64, at: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(tree.path(bucket)).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

fn info(reader: &Reader, map: &DiskMap, entry: &DiskEntry, key: &[u8]) -> Result<Option<DiskInfo>> {
    reader.infos(map, &[(*entry, key)])?.pop().unwrap()
}

fn is_corrupt<T: std::fmt::Debug>(outcome: Result<T>, says: &str) {
    let error = outcome.unwrap_err();
    assert_eq!(error.status, NMC_ERR_CORRUPT, "{error}");
    assert!(error.message.contains(says), "{error}, and not {says}");
}

#[test]
fn flags_say_how_a_directory_is_read() {
    for way in ways() {
        for backend in Backend::ALL {
            let (back, of) = options(flags(way, backend)).unwrap();
            assert_eq!((back.direct, back.uring, back.depth, of), (way.direct, way.uring, way.depth, backend));
        }
    }
    assert_eq!(options(0).unwrap().0.depth, 1);
    let deep = flags(Options { depth: u32::MAX, ..Options::default() }, Backend::Noop);
    assert_eq!(options(deep).unwrap().0.depth, 65_535);
    assert_eq!(options(deep | 0xf0).unwrap_err().status, NMC_ERR_VERSION);
}

#[test]
fn values_of_all_sizes_arrive_and_nothing_beside_them() {
    let objects = all_sizes();
    for tree in trees() {
        let entries = tree.fill(1, &objects);
        for way in ways() {
            let reader = tree.reader(way);
            for (object, entry) in objects.iter().zip(&entries) {
                for shift in [0, 1, 512, BLOCK - 8] {
                    let read = read_all(&tree, &reader, entry, &object.key, shift).unwrap();
                    assert!(read.unwrap() == object.value, "{} bytes at {shift}, {way:?}", object.value.len());
                }
            }
        }
    }
}

#[test]
fn parts_go_to_pieces_of_all_kinds() {
    let (tree, mut random) = (Tree::new(), Random(5));
    let objects: Vec<Object> = [700, 5000, 3 * GRANULE + 77, 10 * GRANULE + BLOCK, 20 * GRANULE]
        .into_iter()
        .zip(1..)
        .map(|(bytes, epoch)| Object::new(format!("{epoch}"), epoch, bytes))
        .collect();
    let entries = tree.fill(4, &objects);
    for way in ways() {
        let reader = tree.reader(way);
        for round in 0..80 {
            let (object, entry) = (&objects[round % 5], &entries[round % 5]);
            let total = u32::try_from(object.value.len()).unwrap();
            let from = random.below(total + 1);
            let from = if round % 3 == 0 { from / 4096 * 4096 } else { from };
            let bytes = random.below(total - from + 1);
            let wanted = &object.value[from as usize..(from + bytes) as usize];
            let part = (u64::from(from), u64::from(bytes));
            if round % 2 == 0 {
                // Slices, some of them empty, tiny, or of whole blocks, in zones of their own.
                let (mut zones, mut left) = (Vec::new(), bytes as usize);
                while left > 0 {
                    let size = [0, 1, 100, BLOCK, 5 * BLOCK, 40_000, 100_000][random.below(7) as usize].min(left);
                    let shift = [0, 0, 4, 512, 7][random.below(5) as usize];
                    zones.push(Zone::new(shift, size));
                    left -= size;
                }
                let slices: Vec<Slice> = zones.iter_mut().map(Zone::slice).collect();
                assert!(read_to((&tree, &reader), entry, &object.key, part, Pieces::Slices(&slices)).unwrap());
                assert!(zones.iter().all(Zone::is_clean_around));
                assert!(zones.iter().flat_map(Zone::bytes).eq(wanted), "{way:?} {part:?}");
            } else {
                let row = [1, 9, 512, 3 * BLOCK, 70_000][random.below(5) as usize].max(bytes as usize / 3000);
                let (rows, gap) = (bytes as usize / row, [0, 1, BLOCK][random.below(3) as usize]);
                let (bytes, stride) = (rows * row, row + gap);
                let mut zone = Zone::new(0, rows * stride);
                let pieces = Pieces::Rows(Rows::of_test_mut(zone.bytes_mut(), rows, row, stride));
                let part = (part.0, bytes as u64);
                assert!(read_to((&tree, &reader), entry, &object.key, part, pieces).unwrap());
                assert!(zone.is_clean_around());
                for (line, wanted) in zone.bytes().chunks(stride).zip(wanted.chunks(row)) {
                    assert_eq!(&line[..row], wanted);
                    assert!(line[row..].iter().all(|byte| *byte == RED));
                }
            }
        }
    }
}

#[test]
fn what_is_taken_comes_in_order() {
    let objects = all_sizes();
    for tree in trees() {
        let entries = tree.fill(1, &objects);
        for way in ways() {
            let reader = tree.reader(way);
            for (object, entry) in objects.iter().zip(&entries) {
                let total = object.value.len();
                for (from, to) in
                    [(0, total), (total / 3, total), (total / 2, total / 2), (total.min(5), total / 3 * 2)]
                {
                    let to = to.max(from);
                    let part = (from as u64, (to - from) as u64);
                    let (taken, outcome) = read_taken(&tree, &reader, entry, &object.key, part);
                    assert!(outcome.unwrap() && taken == object.value[from..to], "{from}..{to} of {total}, {way:?}");
                }
            }
        }
        // Whoever takes them may not want any more.
        let reader = tree.reader(Options::default());
        let large = objects.len() - 1;
        let mut calls = 0;
        let mut take = |_: u64, _: &[u8]| {
            calls += 1;
            if calls < 3 { Ok(()) } else { Err(Error::new(NMC_ERR_TIMEOUT, "enough")) }
        };
        let (key, bytes) = (&objects[large].key[..], objects[large].value.len() as u64);
        let entry = entries[large];
        let mut reads = [DiskRead { entry, key, offset: 0, bytes, to: Target::Take(&mut take), outcome: Ok(false) }];
        reader.read(&tree.map, &mut reads);
        let [DiskRead { outcome, .. }] = reads;
        assert_eq!((outcome.unwrap_err().status, calls), (NMC_ERR_TIMEOUT, 3));
    }
}

#[test]
fn what_needs_more_scratch_than_there_is_comes_in_rounds() {
    let (tree, bytes) = (Tree::new(), 40 * (1 << 20) + 77);
    let objects = [Object::new("large", 1, bytes), Object::new("also", 2, 10 << 20)];
    let entries = tree.fill(1, &objects);
    for way in ways() {
        let reader = tree.reader(way);
        assert!(read_all(&tree, &reader, &entries[0], b"large", 3).unwrap().unwrap() == objects[0].value);
        let (taken, outcome) = read_taken(&tree, &reader, &entries[0], b"large", (0, bytes as u64));
        assert!(outcome.unwrap() && taken == objects[0].value);
        // Several in one call.
        let mut zones: Vec<Zone> = [0, 1, 0, 1].map(|n| Zone::new(1, objects[n].value.len())).into();
        let slices: Vec<[Slice; 1]> = zones.iter_mut().map(|zone| [zone.slice()]).collect();
        let mut reads: Vec<DiskRead<'_>> = slices
            .iter()
            .enumerate()
            .map(|(i, slice)| DiskRead {
                entry: entries[i % 2],
                key: &objects[i % 2].key,
                offset: 0,
                bytes: slice[0].bytes(),
                to: Target::Host(Pieces::Slices(slice)),
                outcome: Ok(false),
            })
            .collect();
        reader.read(&tree.map, &mut reads);
        assert!(reads.into_iter().all(|read| read.outcome.unwrap()));
        for (i, zone) in zones.iter().enumerate() {
            assert!(zone.is_clean_around() && zone.bytes() == objects[i % 2].value);
        }
    }
}

#[test]
fn one_that_cannot_be_read_leaves_the_others_of_a_batch_alone() {
    let tree = Tree::new();
    let mut random = Random(11);
    let objects: Vec<Object> = (1..41)
        .map(|epoch| {
            let bytes = [0, 9, 3000, 5000, 70_000, 300_000, 1 << 20][random.below(7) as usize];
            Object::new(format!("key {epoch}"), epoch, bytes)
        })
        .collect();
    let mut entries = Vec::new();
    for (bucket, some) in (1..).zip(objects.chunks(4)) {
        entries.extend(tree.fill(bucket, some));
    }
    for way in ways() {
        let reader = tree.reader(way);
        for bad in [None, Some("gone"), Some("cut"), Some("flipped"), Some("ended")] {
            // Bucket 3 has the objects 8 to 11.
            let spot = entries[9].entry.spot;
            let kept = std::fs::read(tree.path(3)).unwrap();
            match bad {
                Some("gone") => std::fs::remove_file(tree.path(3)).unwrap(),
                Some("cut") => std::fs::write(tree.path(3), &kept[..BLOCK]).unwrap(),
                Some("flipped") => flip(&tree, 3, spot.block * BLOCK as u64 + 100),
                Some("ended") => tree.end(entries[9].index),
                _ => {}
            }
            let mut zones: Vec<Zone> =
                objects.iter().zip(0..).map(|(object, i)| Zone::new(i % 3, object.value.len())).collect();
            let slices: Vec<[Slice; 1]> = zones.iter_mut().map(|zone| [zone.slice()]).collect();
            let mut reads: Vec<DiskRead<'_>> = (0..objects.len())
                .map(|i| DiskRead {
                    entry: entries[i],
                    key: &objects[i].key,
                    offset: 0,
                    bytes: slices[i][0].bytes(),
                    to: Target::Host(Pieces::Slices(&slices[i])),
                    outcome: Ok(false),
                })
                .collect();
            reader.read(&tree.map, &mut reads);
            let outcomes: Vec<Result<bool>> = reads.into_iter().map(|read| read.outcome).collect();
            for (i, outcome) in outcomes.into_iter().enumerate() {
                assert!(zones[i].is_clean_around());
                // The file that is open is the one that is gone.
                let may_be_wrong = (8..12).contains(&i) && matches!(bad, Some("gone" | "cut"));
                match (outcome, bad) {
                    (Ok(false), Some("ended")) if i == 9 => {}
                    (Err(error), Some("flipped")) if i == 9 => assert_eq!(error.status, NMC_ERR_CORRUPT),
                    (Err(error), _) if may_be_wrong => assert_eq!(error.status, NMC_ERR_CORRUPT, "{error}"),
                    (outcome, _) => assert!(outcome.unwrap() && zones[i].bytes() == objects[i].value, "{i} {bad:?}"),
                }
            }
            std::fs::write(tree.path(3), kept).unwrap();
            if bad == Some("ended") {
                tree.enter_at(entries[9].index, &objects[9], spot);
            }
        }
    }
}

#[test]
fn an_entry_that_ended_is_looked_for_again() {
    let tree = Tree::new();
    let objects = [Object::new("a", 1, 300), Object::new("b", 2, 300_000), Object::new("c", 3, 9 << 20)];
    let entries = tree.fill(1, &objects);
    let tree = Arc::new(tree);
    for way in ways() {
        for (object, entry) in objects.iter().zip(&entries) {
            let again = |tree: &Tree| tree.enter_at(entry.index, object, entry.entry.spot);
            // Before anything is read, with the file and without it.
            let reader = tree.reader(way);
            tree.end(entry.index);
            assert_eq!(read_all(&tree, &reader, entry, &object.key, 0).unwrap(), None);
            assert_eq!(info(&reader, &tree.map, entry, &object.key).unwrap(), None);
            let (away, home) = (tree.path(77), tree.path(1));
            std::fs::rename(&home, &away).unwrap();
            let reader = tree.reader(way);
            assert_eq!(read_all(&tree, &reader, entry, &object.key, 0).unwrap(), None);
            std::fs::rename(&away, &home).unwrap();
            again(&tree);

            // When everything was read.
            let (there, index) = (Arc::clone(&tree), entry.index);
            *reader.stage.hook.lock() = Some(Arc::new(move || there.end(index)));
            assert_eq!(read_all(&tree, &reader, entry, &object.key, 0).unwrap(), None);
            again(&tree);
            let (taken, outcome) = read_taken(&tree, &reader, entry, &object.key, (0, entry.entry.bytes));
            assert!(!outcome.unwrap() && taken.is_empty(), "nothing is handed on that is not valid");
            again(&tree);

            // When a part was taken.
            let (there, looks) = (Arc::clone(&tree), AtomicU32::new(0));
            *reader.stage.hook.lock() = Some(Arc::new(move || {
                if looks.fetch_add(1, Relaxed) == 1 {
                    there.end(index);
                }
            }));
            let (taken, outcome) = read_taken(&tree, &reader, entry, &object.key, (0, entry.entry.bytes));
            assert!(!outcome.unwrap() && object.value.starts_with(&taken));
            again(&tree);
            *reader.stage.hook.lock() = None;
            assert_eq!(read_all(&tree, &reader, entry, &object.key, 0).unwrap().unwrap(), object.value, "the control");
        }
    }
}

#[test]
fn a_record_that_took_the_place_of_another_is_not_read_for_it() {
    for bytes in [300, 5000, 300_000] {
        let tree = Tree::new();
        let one = Object::new("key", 5, bytes);
        // The same in everything that the record says of itself, with sums that fit.
        let other = Object { value: value(99, bytes), ..one.clone() };
        let entry = tree.fill(1, std::slice::from_ref(&one))[0];
        let reader = tree.reader(Options::default());
        assert_eq!(read_all(&tree, &reader, &entry, b"key", 0).unwrap().unwrap(), one.value);
        tree.end(entry.index);
        damage(&tree, 1, 0, &other.blocks());
        assert_eq!(read_all(&tree, &reader, &entry, b"key", 0).unwrap(), None);
        let (taken, outcome) = read_taken(&tree, &reader, &entry, b"key", (0, bytes as u64));
        assert!(!outcome.unwrap() && taken.is_empty());
        // The control: who does not look at the entry again gives away bytes of another value.
        reader.stage.blind.store(true, Relaxed);
        assert_eq!(read_all(&tree, &reader, &entry, b"key", 0).unwrap().unwrap(), other.value);
    }
}

#[test]
fn another_record_is_never_taken_for_the_one_that_is_wanted() {
    let tree = Tree::new();
    let object = Object::new("key", 5, 5000);
    let entry = tree.fill(1, std::slice::from_ref(&object))[0];
    let others = [
        Object { key: b"kez".to_vec(), ..object.clone() },
        Object { epoch: 6, ..object.clone() },
        Object { value: object.value[..4999].to_vec(), ..object.clone() },
    ];
    for way in ways() {
        let reader = tree.reader(way);
        for other in &others {
            damage(&tree, 1, 0, &other.blocks());
            is_corrupt(read_all(&tree, &reader, &entry, b"key", 0), "bucket 1, block 0: the record there has");
            is_corrupt(info(&reader, &tree.map, &entry, b"key"), "bucket 1, block 0");
        }
        damage(&tree, 1, 0, &object.blocks());
        let elsewhere = Entry { space: 4, ..entry.entry };
        is_corrupt(
            read_all(&tree, &reader, &DiskEntry { entry: elsewhere, ..entry }, b"key", 0),
            "namespace 3, where the index says",
        );
        is_corrupt(read_all(&tree, &reader, &entry, b"yek", 0), "another key");
        assert_eq!(read_all(&tree, &reader, &entry, b"key", 0).unwrap().unwrap(), object.value, "the control");
    }
}

#[test]
fn damage_is_told_where_it_is_touched_and_nowhere_else() {
    let tree = Tree::new();
    let objects = [Object::new("small", 1, 700), Object::new("large", 2, 20 * GRANULE + 9)];
    let entries = tree.fill(1, &objects);
    let (small, large) = (Shape::of(5, 700), Shape::of(5, objects[1].value.len() as u64));
    let base = entries[1].entry.spot.block * BLOCK as u64;
    let granule = |n: u64| base + large.value_at + n * GRANULE as u64;
    let whole = std::fs::read(tree.path(1)).unwrap();
    for way in ways() {
        let reader = tree.reader(way);
        let read = |at: u64, bytes: u64, shift: usize| {
            let mut zone = Zone::new(shift, usize::try_from(bytes).unwrap());
            let slices = [zone.slice()];
            let outcome = read_to((&tree, &reader), &entries[1], b"large", (at, bytes), Pieces::Slices(&slices));
            assert!(zone.is_clean_around());
            let from = usize::try_from(at).unwrap();
            assert!(outcome.is_err() || zone.bytes() == &objects[1].value[from..from + zone.bytes]);
            outcome
        };
        for (at, says) in
            [(0, "begin with"), (26, "CRC32C"), (70, "CRC32C"), (330, "CRC32C"), (403, "CRC32C"), (4000, "CRC32C")]
        {
            flip(&tree, 1, base + at);
            is_corrupt(read(0, 100, 0), says);
            is_corrupt(info(&reader, &tree.map, &entries[1], b"large"), says);
            flip(&tree, 1, base + at);
        }
        flip(&tree, 1, small.value_at + 600);
        is_corrupt(read_all(&tree, &reader, &entries[0], b"small", 0), "bucket 1, block 0: the bytes 0 to 700");
        flip(&tree, 1, small.value_at + 600);

        for shift in [0, 1] {
            flip(&tree, 1, granule(3) + 17);
            is_corrupt(read(0, 20 * GRANULE as u64, shift), "the bytes 196608 to 262144 of the value");
            is_corrupt(read(4 * GRANULE as u64 - 1, 1, shift), "196608");
            assert!(read(0, 3 * GRANULE as u64, shift).unwrap());
            assert!(read(4 * GRANULE as u64, 16 * GRANULE as u64, shift).unwrap());
            let (taken, outcome) = read_taken(&tree, &reader, &entries[1], b"large", (0, 20 * GRANULE as u64));
            is_corrupt(outcome, "196608");
            assert!(objects[1].value.starts_with(&taken) && taken.len() <= 3 * GRANULE);
            flip(&tree, 1, granule(3) + 17);

            // A hole.
            damage(&tree, 1, granule(7), &vec![0; GRANULE]);
            is_corrupt(read(0, 20 * GRANULE as u64, shift), "CRC32C");
            assert!(read(10, 6 * GRANULE as u64, shift).unwrap());
            damage(&tree, 1, 0, &whole);

            // Cut off, while it is open and before.
            for cut in [granule(9), base + 1, base, 0] {
                let file = std::fs::OpenOptions::new().write(true).open(tree.path(1)).unwrap();
                file.set_len(cut).unwrap();
                is_corrupt(read(0, 20 * GRANULE as u64, shift), "bucket 1, block");
                assert!(read(100, 100, shift).is_err() || cut > granule(1));
                file.write_all_at(&whole, 0).unwrap();
            }
            // A file that was put in the place of another is found by opening it anew.
            std::fs::write(tree.path(5), &whole).unwrap();
            std::fs::OpenOptions::new().write(true).open(tree.path(1)).unwrap().set_len(0).unwrap();
            std::fs::rename(tree.path(5), tree.path(1)).unwrap();
            assert!(read(0, 20 * GRANULE as u64, shift).unwrap());
            assert!(info(&reader, &tree.map, &entries[0], b"small").unwrap().is_some());
        }
        std::fs::remove_file(tree.path(1)).unwrap();
        assert!(read(0, 10, 0).unwrap(), "it is still open");
        let reader = tree.reader(way);
        let error = read_all(&tree, &reader, &entries[0], b"small", 0).unwrap_err();
        assert_eq!(error.status, NMC_ERR_NOT_FOUND);
        assert!(error.message.starts_with("bucket 1, block 0: the file is gone"), "{error}");
        std::os::unix::fs::symlink("/etc/passwd", tree.path(1)).unwrap();
        let error = read_all(&tree, &reader, &entries[0], b"small", 0).unwrap_err();
        assert_eq!(error.status, NMC_ERR_PERMISSION);
        std::fs::remove_file(tree.path(1)).unwrap();
        std::fs::write(tree.path(1), &whole).unwrap();
    }
}

#[test]
fn a_read_beyond_the_value_or_its_pieces_is_refused() {
    let tree = Tree::new();
    let entry = tree.fill(1, &[Object::new("key", 5, 5000)])[0];
    let reader = tree.reader(Options::default());
    let mut zone = Zone::new(0, 100);
    let slices = [zone.slice()];
    for part in [(0, 5001), (5000, 1), (u64::MAX, 2), (0, 101)] {
        let outcome = read_to((&tree, &reader), &entry, b"key", part, Pieces::Slices(&slices));
        assert_eq!(outcome.unwrap_err().status, NMC_ERR_INVALID_ARG, "{part:?}");
    }
    assert!(read_to((&tree, &reader), &entry, b"key", (4900, 100), Pieces::Slices(&slices)).unwrap());
    assert!(read_to((&tree, &reader), &entry, b"key", (5000, 0), Pieces::Slices(&slices)).unwrap());
}

#[test]
fn threads_read_right_while_files_come_and_go() {
    const KEYS: u32 = 6;
    let object = |key: u32, epoch: u64| {
        let bytes = [100, 5000, 70_000, 200_000, 300_001, 600_000][key as usize % 6];
        Object::new(format!("key {key}"), epoch * 100 + u64::from(key), bytes)
    };
    for way in ways().take(2) {
        let tree = Tree::new();
        let reader = tree.reader(way);
        // Each key has two entries that are used in turn.
        let generation = |bucket: u64| (0..KEYS).map(|key| object(key, bucket)).collect::<Vec<_>>();
        for (bucket, objects) in [(1, generation(1)), (2, generation(2))] {
            let entries = tree.fill(bucket, &objects);
            if bucket == 1 {
                entries.iter().for_each(|entry| tree.end(entry.index));
            }
        }
        let (over, hits) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let _over = Over(&over);
            let mut handles = Vec::new();
            for thread in 0..8 {
                let (tree, reader, over, hits) = (&tree, &reader, &over, &hits);
                handles.push(scope.spawn(move || {
                    let mut random = Random(thread);
                    while !over.load(Relaxed) {
                        let mut keys: Vec<u32> = (0..KEYS).collect();
                        keys.rotate_left(random.below(KEYS) as usize);
                        let names: Vec<Vec<u8>> = keys.iter().map(|key| format!("key {key}").into_bytes()).collect();
                        let found: Vec<(usize, DiskEntry)> = (0..names.len())
                            .filter_map(|i| Some((i, tree.map.probe(0, &names[i]).unwrap()?)))
                            .collect();
                        let mut zones: Vec<Zone> = found
                            .iter()
                            .map(|(_, entry)| {
                                Zone::new(usize::from(thread % 2 == 1), usize::try_from(entry.entry.bytes).unwrap())
                            })
                            .collect();
                        let slices: Vec<[Slice; 1]> = zones.iter_mut().map(|zone| [zone.slice()]).collect();
                        let mut reads: Vec<DiskRead<'_>> = found
                            .iter()
                            .zip(&slices)
                            .map(|((i, entry), slice)| DiskRead {
                                entry: *entry,
                                key: &names[*i],
                                offset: 0,
                                bytes: slice[0].bytes(),
                                to: Target::Host(Pieces::Slices(slice)),
                                outcome: Ok(false),
                            })
                            .collect();
                        reader.read(&tree.map, &mut reads);
                        let outcomes: Vec<bool> = reads.into_iter().map(|read| read.outcome.unwrap()).collect();
                        for ((there, (_, entry)), zone) in outcomes.into_iter().zip(&found).zip(&zones) {
                            assert!(zone.is_clean_around());
                            if there {
                                assert!(zone.bytes() == value(entry.entry.epoch, zone.bytes));
                                hits.fetch_add(1, Relaxed);
                            }
                        }
                    }
                }));
            }
            for bucket in 3..40 {
                let objects = generation(bucket);
                let spots = tree.write(bucket, &objects);
                let index = |key: u32, bucket: u64| key + KEYS * u32::try_from((bucket + 1) % 2).unwrap();
                for (key, (object, spot)) in (0..).zip(objects.iter().zip(spots)) {
                    tree.end(index(key, bucket - 1));
                    tree.enter_at(index(key, bucket), object, spot);
                }
                // As a disk may that gives the blocks to somebody else at once.
                let former = std::fs::OpenOptions::new().write(true).open(tree.path(bucket - 1)).unwrap();
                std::fs::remove_file(tree.path(bucket - 1)).unwrap();
                former.write_all_at(&generation(bucket + 100)[3].blocks(), 0).unwrap();
                former.set_len(0).unwrap();
                let seen = hits.load(Relaxed);
                while hits.load(Relaxed) < seen + 4 && !handles.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                    std::thread::yield_now();
                }
            }
        });
    }
}

#[test]
fn only_so_many_files_stay_open() {
    let tree = Tree::new();
    let objects: Vec<Object> = (1..=100).map(|n| Object::new(format!("key {n}"), n, 50)).collect();
    let entries: Vec<DiskEntry> =
        (1..).zip(&objects).map(|(bucket, object)| tree.fill(bucket, std::slice::from_ref(object))[0]).collect();
    let reader = tree.reader(Options::default());
    let read = |i: usize| read_all(&tree, &reader, &entries[i], &objects[i].key, 0);
    for i in 0..100 {
        assert_eq!(read(i).unwrap().unwrap(), objects[i].value);
        assert_eq!(read(0).unwrap().unwrap(), objects[0].value);
    }
    assert_eq!(reader.files.count(), 64);
    // The first was used again and again, the second not.
    (1..=2).for_each(|bucket| std::fs::remove_file(tree.path(bucket)).unwrap());
    assert_eq!(read(0).unwrap().unwrap(), objects[0].value);
    assert_eq!(read(1).unwrap_err().status, NMC_ERR_NOT_FOUND);
}

#[test]
fn a_header_tells_about_its_value() {
    let objects = all_sizes();
    for tree in trees() {
        let entries = tree.fill(1, &objects);
        for way in ways() {
            let reader = tree.reader(way);
            for (object, entry) in objects.iter().zip(&entries) {
                let info = info(&reader, &tree.map, entry, &object.key).unwrap().unwrap();
                assert_eq!(info.metadata, b"some metadata");
            }
        }
    }
}

#[test]
fn every_key_that_lives_is_listed_once() {
    let tree = Tree::new();
    let reader = tree.reader(Options::default());
    let mut there = |record: &crate::store::disk::DiskRecord<'_>| Ok(record.resident);
    let mut list = |space: Space| {
        let (mut all, mut cursor) = (Vec::new(), 0);
        loop {
            let (found, next) = reader.next(&tree.map, space, cursor, &mut there).unwrap();
            assert!(next > cursor || found.is_none() && next >= cursor);
            let Some((key, bytes)) = found else { break };
            cursor = next;
            all.push((String::from_utf8(key).unwrap(), bytes));
        }
        (all, cursor)
    };
    assert_eq!(list(SPACE).0, []);
    let object =
        |bucket: u64, n: u64| Object::new(format!("{bucket}:{n}"), bucket * 1000 + n, 10 + usize::try_from(n).unwrap());
    let (mut wanted, mut goes) = (Vec::new(), Vec::new());
    for bucket in [2, 7, 9, 0x123, format::MAX_BUCKET - 1] {
        let objects: Vec<Object> = (0..150).map(|n| object(bucket, n)).collect();
        let entries = tree.fill(bucket, &objects);
        if bucket == 0x123 {
            goes = entries.iter().map(|entry| entry.index).collect();
        }
        for (n, (object, entry)) in objects.iter().zip(&entries).enumerate() {
            match n % 5 {
                // It has ended, or is elsewhere by now.
                1 => tree.end(entry.index),
                2 => {
                    tree.end(entry.index);
                    tree.enter_at(entry.index, object, Spot { bucket, block: format::MAX_BLOCK - 1 });
                }
                _ => wanted.push((format!("{bucket}:{n}"), 10 + n as u64)),
            }
        }
    }
    // What is no bucket is not looked at.
    std::fs::write(tree.dir.path().join("foreign"), b"x").unwrap();
    std::fs::write(tree.dir.path().join(format::bucket_temporary_name(3)), b"x").unwrap();
    std::fs::create_dir(tree.path(4)).unwrap();
    let (all, last) = list(SPACE);
    assert_eq!(all, wanted);
    assert_eq!(list(Space { generation: 6, ..SPACE }).0, []);
    assert_eq!(list(Space { number: 4, ..SPACE }).0, []);
    // Those that come later are found from the same cursor on.
    let (_, middle) = reader.next(&tree.map, SPACE, 0, &mut |_| Ok(true)).unwrap();
    // The end is behind the last bucket.
    assert_eq!(
        reader.next(&tree.map, SPACE, last, &mut |_| Ok(true)).unwrap(),
        (None, format::MAX_BUCKET << PLACE_SHIFT)
    );
    tree.fill(8, &[object(8, 1)]);
    assert_eq!(list(SPACE).0.len(), wanted.len() + 1);
    // One that goes is passed by; one that is not there while something leads to it, or is damaged, is told.
    let stays = tree.dir.path().join("aside");
    std::fs::rename(tree.path(9), &stays).unwrap();
    assert_eq!(list(SPACE).0.len(), wanted.len() + 1, "its list is known");
    is_corrupt(
        tree.reader(Options::default()).next(&tree.map, SPACE, 9 << PLACE_SHIFT, &mut |_| Ok(true)).map(drop),
        "is gone",
    );
    std::fs::rename(&stays, tree.path(9)).unwrap();
    goes.iter().for_each(|index| tree.end(*index));
    std::fs::remove_file(tree.path(0x123)).unwrap();
    assert_eq!(list(SPACE).0.len(), wanted.len() + 1 - 90);
    let fresh = tree.reader(Options::default());
    flip(&tree, 7, std::fs::metadata(tree.path(7)).unwrap().len() - 5000);
    let mut cursor = middle;
    let error = loop {
        match fresh.next(&tree.map, SPACE, cursor, &mut |_| Ok(true)) {
            Ok((_, next)) => cursor = next,
            Err(error) => break error,
        }
    };
    assert_eq!(error.status, NMC_ERR_CORRUPT);
    assert!(error.message.contains("the footer of bucket 7"), "{error}");
}

/// Nobody is told of it: its owner makes an empty file of that name for a moment, to take the name away for good.
#[test]
fn a_bucket_to_which_nothing_leads_may_have_any_list() {
    let tree = Tree::new();
    let objects = [Object::new("one", 1, 100), Object::new("other", 2, 100)];
    let ends = tree.fill(5, &objects[..1])[0];
    tree.fill(6, &objects[1..]);
    std::fs::write(tree.path(4), b"").unwrap();
    let list = || {
        let reader = tree.reader(Options::default());
        let (mut keys, mut cursor) = (Vec::new(), 0);
        loop {
            match reader.next(&tree.map, SPACE, cursor, &mut |record| Ok(record.resident))? {
                (Some((key, _)), next) => {
                    keys.push(key);
                    cursor = next;
                }
                (None, _) => return Ok::<_, Error>(keys),
            }
        }
    };
    assert_eq!(list().unwrap(), [b"one".to_vec(), b"other".to_vec()]);
    std::fs::write(tree.path(5), b"").unwrap();
    assert_eq!(list().unwrap_err().status, NMC_ERR_CORRUPT, "control: an entry leads there");
    tree.end(ends.index);
    assert_eq!(list().unwrap(), [b"other".to_vec()]);
    let (mut seen, mut lost) = (Vec::new(), 0);
    let reader = tree.reader(Options::default());
    let mut each = |live: &Live<'_>| {
        seen.push(live.key.to_vec());
        Ok(true)
    };
    let mut told = |_, _| {
        lost += 1;
        Ok(())
    };
    reader.each(&tree.map, &mut each, &mut told).unwrap();
    assert_eq!((seen, lost), (vec![b"other".to_vec()], 0));
}

#[test]
fn the_owner_finds_every_flip_of_a_record() {
    let objects = [
        Object::new("empty", 1, 0),
        Object::new("inline", 2, 500),
        Object::new("block", 3, 5000),
        Object::new("large", 4, 3 * GRANULE + 100),
    ];
    let (bytes, blocks) = bucket_of(1, &objects);
    let disk = SimDisk::new();
    let file = disk.create("bucket", bytes.len() as u64).unwrap();
    file.write(&bytes, 0).unwrap();
    let mut scratch = Buffer::new(0).unwrap();
    for (object, block) in objects.iter().zip(blocks) {
        let mut check = |file: &dyn crate::tier::io::File| {
            check_record(file, block, &object.key, object.epoch, object.value.len() as u64, &mut scratch)
        };
        check(&*file).unwrap();
        let from = usize::try_from(block).unwrap() * BLOCK;
        let end = from + object.blocks().len();
        for at in (from..end).step_by(if end - from > 2 * BLOCK { 509 } else { 7 }).chain(end - 9..end) {
            for bit in [0, 5] {
                file.write(&[bytes[at] ^ 1 << bit], at as u64).unwrap();
                assert_eq!(check(&*file).unwrap_err().status, NMC_ERR_CORRUPT, "byte {at}");
            }
            file.write(&[bytes[at]], at as u64).unwrap();
        }
        check(&*file).unwrap();
    }
    let mut check = |block, key: &[u8], epoch, bytes| check_record(&*file, block, key, epoch, bytes, &mut scratch);
    is_corrupt(check(0, b"emptY", 1, 0), "another key");
    is_corrupt(check(0, b"empty", 2, 0), "put 1 and 0 bytes instead of put 2");
    is_corrupt(check(1 << 30, b"empty", 1, 0), "of a file that has");
    is_corrupt(check(0, b"empty", 1, format::MAX_VALUE - 1), "of a file that has");

    // The same on a real disk, with scratch that is just enough.
    let tree = Tree::new();
    let spots = tree.write(1, &objects);
    let disk = RealDisk::open(tree.dir.path(), false, Options::default()).unwrap();
    let file = disk.open(&bucket_name(1), false).unwrap();
    let mut scratch = Buffer::new(GRANULE).unwrap();
    for (object, spot) in objects.iter().zip(spots) {
        let bytes = object.value.len() as u64;
        check_record(&*file, spot.block, &object.key, object.epoch, bytes, &mut scratch).unwrap();
    }
}

#[test]
fn blocks_that_are_used_again_are_not_read_for_what_was_there() {
    for bytes in [300, 5000, 300_000] {
        let tree = Tree::of(Backend::Offset, 16 << 20);
        let one = Object::new("key", 5, bytes);
        // The same in everything that the record says of itself, with sums that fit.
        let other = Object { value: value(99, bytes), ..one.clone() };
        for way in ways() {
            let reader = tree.reader(way);
            let entry = tree.fill(0, std::slice::from_ref(&one))[0];
            let spot = entry.entry.spot;
            assert_eq!(read_all(&tree, &reader, &entry, b"key", 0).unwrap().unwrap(), one.value);
            tree.end(entry.index);
            tree.take_away(&[spot]);
            let again = tree.store(std::slice::from_ref(&other))[0];
            assert!(again.block == spot.block && again.bucket > spot.bucket, "{again:?} after {spot:?}");
            assert_eq!(read_all(&tree, &reader, &entry, b"key", 0).unwrap(), None);
            let (taken, outcome) = read_taken(&tree, &reader, &entry, b"key", (0, bytes as u64));
            assert!(!outcome.unwrap() && taken.is_empty());
            // The control: who does not look at the entry again gives away bytes of another value.
            reader.stage.blind.store(true, Relaxed);
            assert_eq!(read_all(&tree, &reader, &entry, b"key", 0).unwrap().unwrap(), other.value);
            tree.take_away(&[again]);
        }
    }
}

#[test]
fn threads_read_right_while_space_is_used_again() {
    const KEYS: u32 = 4;
    let object = |key: u32, turn: u64| {
        let bytes = [100, 5000, 70_000, 300_001][key as usize];
        Object::new(format!("key {key}"), turn * 100 + u64::from(key), bytes)
    };
    for (backend, way) in [Backend::File, Backend::Offset].into_iter().flat_map(|b| ways().take(2).map(move |w| (b, w)))
    {
        // For two turns and a half: every other one is where the last but one was.
        let tree = Tree::of(backend, 1 << 20);
        let reader = tree.reader(way);
        let objects: Vec<Object> = (0..KEYS).map(|key| object(key, 1)).collect();
        let entries = tree.fill(0, &objects);
        let mut former: Vec<Spot> = entries.iter().map(|entry| entry.entry.spot).collect();
        let (over, hits) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let _over = Over(&over);
            let mut handles = Vec::new();
            for thread in 0..4u32 {
                let (tree, reader, over, hits) = (&tree, &reader, &over, &hits);
                handles.push(scope.spawn(move || {
                    for turn in thread.. {
                        if over.load(Relaxed) {
                            break;
                        }
                        let key = format!("key {}", turn % KEYS).into_bytes();
                        let Some(entry) = tree.map.probe(0, &key).unwrap() else { continue };
                        let shift = usize::from(thread % 2 == 1);
                        if let Some(read) = read_all(tree, reader, &entry, &key, shift).unwrap() {
                            assert!(read == value(entry.entry.epoch, read.len()));
                            hits.fetch_add(1, Relaxed);
                        }
                    }
                }));
            }
            for turn in 2..40 {
                let objects: Vec<Object> = (0..KEYS).map(|key| object(key, turn)).collect();
                let spots = tree.store(&objects);
                for ((entry, object), spot) in entries.iter().zip(&objects).zip(&spots) {
                    tree.end(entry.index);
                    tree.enter_at(entry.index, object, *spot);
                }
                tree.take_away(&std::mem::replace(&mut former, spots));
                let seen = hits.load(Relaxed);
                while hits.load(Relaxed) < seen + 4 && !handles.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                    std::thread::yield_now();
                }
            }
        });
    }
}

#[test]
fn keys_are_listed_whatever_their_values_lie_in() {
    for backend in [Backend::Bucket, Backend::File, Backend::Offset] {
        let tree = Tree::of(backend, 16 << 20);
        let reader = tree.reader(Options::default());
        let list = |from: u64| {
            let (mut all, mut cursor) = (Vec::new(), from);
            while let (Some((key, _)), next) =
                reader.next(&tree.map, SPACE, cursor, &mut |record| Ok(record.resident)).unwrap()
            {
                assert!(next > cursor);
                cursor = next;
                all.push(String::from_utf8(key).unwrap());
            }
            (all, cursor)
        };
        assert!(list(0).0.is_empty());
        let mut wanted = Vec::new();
        let mut spots = Vec::new();
        for turn in 0..4u64 {
            let objects: Vec<Object> =
                (0..20).map(|n| Object::new(format!("{turn}:{n}"), turn * 100 + n, 10)).collect();
            let entries = tree.fill(0, &objects);
            for (n, entry) in entries.iter().enumerate() {
                if n % 5 == 1 {
                    tree.end(entry.index);
                } else {
                    wanted.push(format!("{turn}:{n}"));
                }
            }
            spots.push(entries);
        }
        let (all, last) = list(0);
        assert_eq!(all, wanted, "{}", backend.name());
        assert!(reader.next(&tree.map, SPACE, last, &mut |_| Ok(true)).unwrap().0.is_none());
        // One that goes is passed by, though another one has its place; that one is found from the same cursor on.
        let (_, first) = reader.next(&tree.map, SPACE, 0, &mut |record| Ok(record.resident)).unwrap();
        let gone: Vec<Spot> = spots[1].iter().map(|entry| entry.entry.spot).collect();
        spots[1].iter().for_each(|entry| tree.end(entry.index));
        tree.take_away(&gone);
        tree.fill(0, &(0..20).map(|n| Object::new(format!("9:{n}"), 900 + n, 10)).collect::<Vec<_>>());
        let fresh = tree.reader(Options::default());
        let rest = |reader: &Reader| {
            let (mut all, mut cursor) = (0, first);
            while let (Some(_), next) =
                reader.next(&tree.map, SPACE, cursor, &mut |record| Ok(record.resident)).unwrap()
            {
                (all, cursor) = (all + 1, next);
            }
            all
        };
        assert_eq!((rest(&reader), rest(&fresh)), (15 + 16 + 16 + 20, 15 + 16 + 16 + 20), "{}", backend.name());
    }
}
