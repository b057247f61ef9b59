//! Files of whole directories, damaged in all ways: flipped bits, other bytes, cuts, tails, blocks and ranges that are elsewhere or
//! gone. A directory opens or says that it is damaged, what is found in it is what was put or is told to be damaged, it can be gone
//! on with, and nobody is made to ask for more memory than the files have bytes.

use super::ledger::{Ledger, Moments, Name, value_of};
use super::master::{Master, Op, Records, Values, head, key_of, put_of, read_record, version_of};
use super::{Watched, any_op, asked, config};
use crate::base::error::Error;
use crate::base::largest::Largest;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND, NMC_ERR_VERSION};
use crate::layout::disk::{Space, Spot};
use crate::store::disk::{Mark, OnDisk, SpaceName, ToWrite};
use crate::store::types::Retain;
use crate::tier::config::{Backend, Config, OnDamage};
use crate::tier::directory::Directory;
use crate::tier::format::{BLOCK, SUPER_NAME, journal_number};
use crate::tier::io::sim::{Random, SimDisk};
use crate::tier::io::{Buffer, Disk, File};
use crate::tier::reader::check_record;
use crate::tier::recovery::Recovered;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is asked for whatever the sizes: a piece of a journal, scratch for a value.
const ALWAYS: usize = 1 << 20;

/// A file: folders on the way, and its name.
type Path = Vec<String>;

/// A whole directory, from which damaged ones are made.
struct Whole {
    config: Config,
    disk: SimDisk,
    files: Vec<Damageable>,
}

struct Damageable {
    path: Path,
    bytes: u64,
    /// Blocks that have anything but zeros.
    used: Vec<u64>,
}

fn open(disk: &SimDisk, path: &[String]) -> Box<dyn File> {
    let (name, folders) = path.split_last().unwrap();
    let disk = Arc::new(disk.clone()) as Arc<dyn Disk>;
    folders.iter().fold(disk, |at, name| at.folder(name).unwrap()).open(name, true).unwrap()
}

fn files_in(disk: &dyn Disk, at: &[String], found: &mut Vec<(Path, u64)>) {
    for file in disk.list().unwrap() {
        let path = [at, std::slice::from_ref(&file.name)].concat();
        match file.folder {
            true => files_in(&*disk.folder(&file.name).unwrap(), &path, found),
            false => found.push((path, file.bytes)),
        }
    }
}

fn files_of(disk: &SimDisk) -> Vec<(Path, u64)> {
    let mut found = Vec::new();
    files_in(disk, &[], &mut found);
    found
}

fn block_of(file: &dyn File, number: u64) -> Vec<u8> {
    let at = number * BLOCK as u64;
    let mut block = vec![0; usize::try_from(file.bytes().unwrap().saturating_sub(at)).unwrap().min(BLOCK)];
    file.read(&mut block, at).unwrap();
    block
}

impl Whole {
    fn new(backend: Backend, meta: bool, seed: u64) -> Self {
        let config = Config { meta, capacity_bytes: 4 << 20, ..config(backend, false) };
        let sim = SimDisk::new();
        let watched = Watched::new(&sim, &Arc::new(Moments::new(Ledger::default())), None);
        let mut master = Master::open(&watched, &config).unwrap();
        let mut rng = Random(seed);
        for _ in 0..30 {
            master.run(any_op(&mut rng)).unwrap();
        }
        // Several buckets, with dead records, and one with several.
        for name in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            master.run(Op::Set(name)).unwrap();
            master.run(Op::Write(None)).unwrap();
        }
        for op in [Op::Set((0, 2)), Op::Set((0, 3)), Op::Set((1, 0)), Op::Write(None), Op::Remove((0, 1)), Op::Sync] {
            master.run(op).unwrap();
        }
        let disk = sim.kill();
        let all = files_of(&disk).into_iter().map(|(path, bytes)| {
            let file = open(&disk, &path);
            let is_used = |number: &u64| block_of(&*file, *number).iter().any(|byte| *byte != 0);
            Damageable { path, bytes, used: (0..bytes.div_ceil(BLOCK as u64)).filter(is_used).collect() }
        });
        Self { config, files: all.collect(), disk: disk.kill() }
    }

    fn any_file(&self, rng: &mut Random) -> &Damageable {
        let is_list =
            |file: &Damageable| file.path.last().is_some_and(|name| name == "list" || name.ends_with(".meta"));
        let is_common = |file: &Damageable| file.path[0] == SUPER_NAME || journal_number(&file.path[0]).is_some();
        loop {
            let file = &self.files[any(rng, self.files.len())];
            // Without a head or a journal nothing else is looked at.
            let wanted = if is_common(file) { 4 } else { 1 + u32::from(!is_list(file)) };
            if rng.below(wanted) == 0 {
                return file;
            }
        }
    }

    /// A place in a file that has something there, often where fields are.
    fn any_place(&self, file: &Damageable, rng: &mut Random) -> (u64, u64) {
        let last = file.used.len().saturating_sub(1);
        // Lists are at the end of what is used, and so is the last block.
        let at = if rng.below(2) == 0 { last.saturating_sub(rng.below(2) as usize) } else { any(rng, last + 1) };
        let block = file.used.get(at).copied().unwrap_or(0);
        let at = if rng.below(2) == 0 { any(rng, 128) } else { any(rng, BLOCK) };
        (block, block * BLOCK as u64 + at as u64)
    }

    /// One damage; tells what it was.
    fn damage(&self, disk: &SimDisk, rng: &mut Random) -> String {
        let target = self.any_file(rng);
        let (name, file) = (target.path.join("/"), open(disk, &target.path));
        let (block, at) = self.any_place(target, rng);
        let bytes = file.bytes().unwrap();
        let write = |from: &[u8], at: u64| {
            let left = usize::try_from(bytes.saturating_sub(at)).unwrap().min(from.len());
            file.write(&from[..left], at).unwrap();
        };
        let what = match rng.below(12) {
            0..3 => {
                let mut byte = [0];
                if at < bytes {
                    file.read(&mut byte, at).unwrap();
                }
                write(&[byte[0] ^ 1 << rng.below(8)], at);
                "flipped"
            }
            3 | 4 => {
                let word = [0, 1, u64::MAX, u64::from(rng.below(u32::MAX)), 1 << rng.below(63)][any(rng, 5)];
                write(&word.to_le_bytes()[..1 << rng.below(4)], at / 4 * 4);
                "other bytes"
            }
            5 => {
                let ends = [at, block * BLOCK as u64, bytes.saturating_sub(1), bytes.saturating_sub(BLOCK as u64), 0];
                file.truncate(ends[any(rng, 5)].min(bytes)).unwrap();
                "cut"
            }
            6 => {
                // A tail of zeros, long or too long for a journal, or of rubbish.
                let more = [1, 512, BLOCK as u64, 1 << 20, 1 << 41][any(rng, 5)];
                file.truncate(bytes + more).unwrap();
                // What is written there the simulated disk keeps in memory, with all that comes before it.
                if rng.below(2) == 0 && bytes < 1 << 30 {
                    file.write(&rubbish(rng, 5000), bytes).unwrap();
                }
                "longer"
            }
            7 | 8 => {
                let (other, from) = loop {
                    let other = self.any_file(rng);
                    if other.bytes > 0 {
                        break (other, self.any_place(other, rng).0);
                    }
                };
                let other = open(&self.disk, &other.path);
                write(&block_of(&*other, from), block * BLOCK as u64);
                if rng.below(2) == 0 && other.bytes().unwrap() > 0 {
                    let back = block_of(&*open(&self.disk, &target.path), block);
                    let other = open(disk, &self.any_file(rng).path);
                    if other.bytes().unwrap() >= (from + 1) * BLOCK as u64 {
                        other.write(&back, from * BLOCK as u64).unwrap();
                    }
                }
                "blocks elsewhere"
            }
            9 => {
                let length = [8, 128, BLOCK, 3 * BLOCK, usize::try_from(bytes.min(1 << 20)).unwrap()][any(rng, 5)];
                write(&vec![[0, 0xff][any(rng, 2)]; length], if rng.below(2) == 0 { at } else { block * BLOCK as u64 });
                "a range of the same bytes"
            }
            10 => {
                write(&rubbish(rng, 600), at);
                "rubbish"
            }
            _ => {
                // What follows comes too early.
                let next = block_of(&*open(&self.disk, &target.path), block + 1);
                write(&next, block * BLOCK as u64);
                "moved"
            }
        };
        format!("{name} at {at}: {what}")
    }
}

fn any(rng: &mut Random, below: usize) -> usize {
    rng.below(u32::try_from(below).unwrap()) as usize
}

fn rubbish(rng: &mut Random, most: usize) -> Vec<u8> {
    (0..any(rng, most)).map(|_| u8::try_from(rng.below(256)).unwrap()).collect()
}

/// What became of damaged directories.
#[derive(Debug, Default)]
struct Outcomes {
    refused: u64,
    right: u64,
    corrupt: u64,
    torn: u64,
    largest: usize,
}

fn open_directory(disk: &SimDisk, config: &Config) -> Result<(Directory, Recovered), Error> {
    Directory::open(Arc::new(disk.clone()), config, head, &mut |_, _| {})
}

/// Reads what was found as its owner does, and compares it with what was put. False if it is damaged.
fn reads(directory: &Directory, records: &Records, recovered: &Recovered, found: &OnDisk) -> Result<bool, String> {
    let spot = found.entry.spot;
    let (_, space) = recovered.spaces.iter().find(|(space, _)| space.number == found.entry.space).unwrap();
    let read = directory.key_of(spot).and_then(|key| {
        let (file, block) = directory.open_record(spot)?;
        check_record(&*file, block, &key, found.put, found.entry.bytes, &mut Buffer::new(BLOCK)?)?;
        Ok((key, read_record(records, spot)?))
    });
    match read {
        Ok((key, (other, version, value))) => {
            let name: Name = (space[0] - b'a', key.last().map_or(0, |digit| digit.wrapping_sub(b'0')));
            let right = key == key_of(name) && other == key && version == version_of(found.put);
            if !right || value != value_of(name, version) {
                return Err(format!("{name:?} at {spot:?} reads {} bytes that were not put", value.len()));
            }
            Ok(true)
        }
        Err(error) if [NMC_ERR_CORRUPT, NMC_ERR_NOT_FOUND].contains(&error.status) => Ok(false),
        Err(error) => Err(format!("{spot:?}: {error}")),
    }
}

/// Opens a damaged directory, looks at everything that is found, and goes on with it.
fn try_out(config: &Config, disk: &SimDisk, seen: &mut Outcomes) -> Result<(), String> {
    let told = |what: &str| {
        let what = what.to_owned();
        move |error: Error| format!("{what}: {error}")
    };
    let before = files_of(disk);
    let (directory, recovered) = match open_directory(disk, config) {
        Ok(opened) => opened,
        Err(error) if [NMC_ERR_CORRUPT, NMC_ERR_VERSION].contains(&error.status) => {
            seen.refused += 1;
            if files_of(disk) != before {
                return Err(format!("it was refused and changed: {error}"));
            }
            if error.status == NMC_ERR_VERSION {
                return Ok(());
            }
            let config = Config { on_damage: OnDamage::Reset, ..config.clone() };
            let (directory, recovered) = open_directory(disk, &config).map_err(told("beginning anew"))?;
            if !recovered.found.is_empty() {
                return Err("something was found after it had begun anew".into());
            }
            return go_on(&config, disk, directory, &recovered, &BTreeSet::new(), &BTreeSet::new());
        }
        Err(error) => return Err(format!("opening: {error}")),
    };
    seen.torn += recovered.torn;
    let records = Records::new(&disk.kill(), config.backend);
    let (mut right, mut wrong) = (BTreeSet::new(), BTreeSet::new());
    for found in &recovered.found {
        let Spot { bucket, block } = found.entry.spot;
        let is_right = reads(&directory, &records, &recovered, found)?;
        _ = if is_right { right.insert((bucket, block)) } else { wrong.insert((bucket, block)) };
    }
    (seen.right, seen.corrupt) = (seen.right + right.len() as u64, seen.corrupt + wrong.len() as u64);
    go_on(config, disk, directory, &recovered, &right, &wrong)
}

/// Gives up what is damaged, writes something, and gives space back; then the next one finds all of that.
fn go_on(
    config: &Config,
    disk: &SimDisk,
    directory: Directory,
    recovered: &Recovered,
    right: &BTreeSet<(u64, u64)>,
    wrong: &BTreeSet<(u64, u64)>,
) -> Result<(), String> {
    let told = |what: &str| {
        let what = what.to_owned();
        move |error: Error| format!("{what}: {error}")
    };
    let mut there = right.clone();
    let mut over = wrong.clone();
    over.extend(there.pop_first());
    let dead =
        |(bucket, block): &(u64, u64)| Mark::Dead { spot: Spot { bucket: *bucket, block: *block }, entered: true };
    let mut marks: Vec<Mark> = over.iter().map(dead).collect();
    let space = recovered.spaces.first().map(|(space, name)| (*space, name[0] - b'a'));
    let (space, namespace) = space.unwrap_or_else(|| {
        let space = Space { number: 0, generation: 0 };
        marks.push(Mark::Namespace(SpaceName::new(b"a").unwrap(), space));
        (space, 0)
    });
    directory.note(&marks);
    directory.settle(true).map_err(told("removing"))?;
    let epoch = (recovered.last_epoch / 16 + 1) * 16;
    let item = |number: u8| ToWrite {
        index: number.into(),
        epoch: epoch + u64::from(number),
        namespace: namespace.into(),
        space,
        key: key_of((namespace, 7 + number)),
        metadata: Vec::new(),
        bytes: value_of((namespace, 7 + number), (99, number.into())).len() as u64,
        rank: 0,
        class: (Retain::None, 0),
        put: put_of((99, number.into())),
    };
    let items = [item(0), item(1)];
    let fits = directory.file_bytes() + directory.bytes_of(&items) <= config.capacity_bytes;
    match directory.write(&items, 99, &Values, &mut |places| Ok(vec![true; places.len()])) {
        Ok(stored) => {
            for stored in &stored {
                let Spot { bucket, block } = stored.entry.spot;
                directory.entered(bucket);
                there.insert((bucket, block));
            }
        }
        // What was made longer may take all that there is.
        Err(error) if error.status == NMC_ERR_NO_SPACE && !fits => {}
        Err(error) => return Err(format!("writing: {error}")),
    }
    while directory.tidy().map_err(told("giving space back"))? {}
    directory.sync().map_err(told("syncing"))?;
    drop(directory);
    let (directory, recovered) = open_directory(disk, config).map_err(told("opening it again"))?;
    let records = Records::new(&disk.kill(), config.backend);
    let mut left = BTreeSet::new();
    for found in &recovered.found {
        let Spot { bucket, block } = found.entry.spot;
        left.insert((bucket, block));
        if !reads(&directory, &records, &recovered, found)? {
            return Err(format!("what is in bucket {bucket} at {block} is damaged later"));
        }
    }
    if left != there {
        return Err(format!("it should have {there:?} and has {left:?}"));
    }
    Ok(())
}

/// Says which one it was if something panics.
struct Telling<'a>(&'a str);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// Damages a directory, so often as `seed` says, and tries it out.
fn run(whole: &Whole, seed: u64, largest: Largest, seen: &mut Outcomes) {
    let mut rng = Random(seed);
    let disk = whole.disk.kill();
    let damages: Vec<String> = (0..1 + rng.below(3)).map(|_| whole.damage(&disk, &mut rng)).collect();
    let name = whole.config.backend.name();
    let what = format!("{name}, meta: {}, seed {seed}: {}", whole.config.meta, damages.join("; "));
    let _telling = Telling(&what);
    let most = whole.files.iter().map(|file| file.bytes).max().map_or(0, |bytes| usize::try_from(bytes).unwrap());
    let disk = disk.kill();
    // What damage has made longer the simulated disk itself keeps in memory.
    let most = most.max(disk.most_kept());
    disk.watch(largest);
    let _ = largest.take();
    if let Err(wrong) = try_out(&whole.config, &disk, seen) {
        panic!("{what}: {wrong}");
    }
    let asked = largest.take();
    seen.largest = seen.largest.max(asked);
    assert!(asked <= most.max(ALWAYS) + 4 * BLOCK, "{what}: {asked} bytes were asked for");
}

/// So many damaged directories with this backend; one whole one for every thousand.
fn damaged(backend: Backend, meta: bool) {
    let wanted = asked().map_or(400, |images| images / 2);
    let largest = Largest::of_nobody();
    let mut seen = Outcomes::default();
    let mut whole = Whole::new(backend, meta, 1);
    for seed in 0..wanted {
        if seed % 1000 == 999 {
            whole = Whole::new(backend, meta, seed);
        }
        run(&whole, seed, largest, &mut seen);
    }
    println!("{wanted} damaged directories, {}, meta: {meta}: {seen:?}", backend.name());
    let Outcomes { refused, right, corrupt, torn, .. } = seen;
    assert!(wanted < 400 || meta || refused > 20 && right > 100 && corrupt > 20 && torn > 20, "{seen:?}");
}

// A directory with damaged files opens or is refused, and shows nothing that was not put. One test for each kind: they run side by side.

#[test]
fn damaged_buckets_show_nothing_that_was_not_put() {
    damaged(Backend::Bucket, false);
}

#[test]
fn damaged_buckets_with_two_lists_show_nothing_that_was_not_put() {
    damaged(Backend::Bucket, true);
}

#[test]
fn damaged_folders_show_nothing_that_was_not_put() {
    damaged(Backend::File, false);
}

#[test]
fn one_damaged_file_for_all_shows_nothing_that_was_not_put() {
    damaged(Backend::Offset, false);
}

/// The control: whoever takes the number of values in a list for right asks for more than there is.
#[test]
fn memory_for_a_size_that_nobody_vouches_for_is_noticed() {
    let whole = Whole::new(Backend::Bucket, false, 1);
    let largest = Largest::of_nobody();
    let (disk, bucket) =
        (whole.disk.kill(), whole.files.iter().find(|file| file.path[0].ends_with(".bucket")).unwrap());
    disk.watch(largest);
    let file = open(&disk, &bucket.path);
    // On a thread that nobody knows: the disk tells on it.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut lie = [0; 4];
            file.read(&mut lie, 0).unwrap();
            drop(crate::base::memory::zeroed::<u8>(u32::from_le_bytes(lie) as usize));
        });
    });
    assert!(largest.take() > usize::try_from(bucket.bytes).unwrap() + ALWAYS);
}
