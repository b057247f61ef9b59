//! `nmc ssd` as a user meets it, on directories that are written here byte by byte, and on such as the library writes.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may"
)]

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../tests/common/slices.rs"]
mod slices;

use nanomc::store::copy::Pieces;
use nanomc::store::types::PutOptions;
use nanomc::store::{Config as StoreConfig, Store};
use nanomc::tier::format::{
    BLOCK, Entry, GRANULE, Head, Item, Record, Shape, Space, bucket_name, encode_entries, encode_footer, journal_name,
};
use nanomc::tier::{Backend, Config as TierConfig, Tier};
use slices::slice;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const HEAD: Head = Head { tier_id: 77, secret: [3; 32], backend: 1, created: 1_700_000_000 };
const PLAIN: Space = Space { number: 0, generation: 0 };
const NAMED: Space = Space { number: 1, generation: 2 };

fn value_of(key: &str, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + key.len()) as u8).collect()
}

/// CRC32C, the slow way.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0x82f6_3b78 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// The put that a record is of: another number than its epoch, as it always is.
fn put_of(epoch: u64) -> u64 {
    0x62b8_0000_0000_0000 | epoch << 8
}

/// Key, bytes, epoch and namespace of a record.
type What<'a> = (&'a str, usize, u64, Space);

/// A bucket whose first record is at block `first`: the records, with the block of each, and the list.
fn bucket_of(bucket: u64, first: u64, records: &[What<'_>]) -> (Vec<(u64, Vec<u8>)>, Vec<u8>) {
    let mut all = Vec::new();
    let mut next = first;
    let mut items = Vec::new();
    for (key, bytes, epoch, space) in records {
        let value = value_of(key, *bytes);
        let shape = Shape::of(key.len(), *bytes as u64);
        let record = Record {
            space: *space,
            key: key.as_bytes(),
            metadata: b"",
            value_bytes: *bytes as u64,
            epoch: *epoch,
            store_id: 5,
            rank: 0,
            retain: 0,
            priority: 0,
            put: put_of(*epoch),
        };
        let mut blocks = vec![0; shape.blocks as usize * BLOCK];
        let sums: Vec<u32> = value.chunks(GRANULE).map(crc32c).collect();
        blocks[shape.value_at as usize..][..value.len()].copy_from_slice(&value);
        record.encode(&sums, &mut blocks[..shape.header_bytes()]).unwrap();
        items.push(Item {
            block: next,
            space: *space,
            fingerprint: HEAD.fingerprint(*space, key.as_bytes()),
            epoch: *epoch,
            store_id: 5,
            value_bytes: *bytes as u64,
            put: put_of(*epoch),
            key: key.as_bytes(),
        });
        all.push((next, blocks));
        next += shape.blocks;
    }
    (all, encode_footer(HEAD.tier_id, bucket, next, &items).unwrap())
}

/// Writes a bucket as a file.
fn write_bucket(dir: &Path, bucket: u64, records: &[What<'_>]) {
    let (records, list) = bucket_of(bucket, 0, records);
    let file: Vec<u8> = records.into_iter().flat_map(|(_, blocks)| blocks).chain(list).collect();
    fs::write(dir.join(bucket_name(bucket)), file).unwrap();
}

fn write_journal(dir: &Path, marks: &[Entry]) {
    let mut entries = vec![
        Entry::Start { tier_id: HEAD.tier_id, journal: 4 },
        Entry::High { bucket: 100 },
        Entry::Namespace { name: Vec::new(), space: PLAIN },
        Entry::Namespace { name: b"mine".to_vec(), space: NAMED },
    ];
    entries.extend_from_slice(marks);
    let mut bytes = encode_entries(0, entries.len() as u64, HEAD.tier_id, &entries).unwrap();
    bytes.resize(bytes.len() + 4096, 0);
    fs::write(dir.join(journal_name(4)), bytes).unwrap();
}

const OLDER: Space = Space { number: 1, generation: 1 };
const FIRST: [What<'_>; 3] = [("small", 10, 1, PLAIN), ("large", 200_000, 2, PLAIN), ("removed", 5000, 3, PLAIN)];
const SECOND: [What<'_>; 3] = [("small", 20, 4, PLAIN), ("flushed", 30, 5, OLDER), ("sp\nace", 70_000, 6, NAMED)];

/// A directory without buckets.
fn empty(backend: Backend) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let head = Head { backend: backend.number(), ..HEAD };
    fs::write(dir.path().join("SUPER"), head.encode()).unwrap();
    fs::write(dir.path().join("LOCK"), "process 1 on somewhere\n").unwrap();
    dir
}

/// A directory with two buckets: of six records three are live.
fn directory() -> tempfile::TempDir {
    let dir = empty(Backend::Bucket);
    write_bucket(dir.path(), 1, &FIRST);
    write_bucket(dir.path(), 2, &SECOND);
    let removed = Shape::of("small".len(), 10).blocks + Shape::of("large".len(), 200_000).blocks;
    write_journal(dir.path(), &[Entry::Dead { bucket: 1, block: removed }]);
    dir
}

/// The same with a file for every record.
fn directory_of_files() -> tempfile::TempDir {
    let dir = empty(Backend::File);
    let mut removed = 0;
    for (bucket, records) in [(1, FIRST), (2, SECOND)] {
        let folder = dir.path().join(format!("{bucket:02x}/{bucket:016x}.keys"));
        fs::create_dir_all(&folder).unwrap();
        let (records, list) = bucket_of(bucket, 0, &records);
        removed = if bucket == 1 { records[2].0 } else { removed };
        for (block, blocks) in records.into_iter().filter(|(block, _)| (bucket, *block) != (1, removed)) {
            fs::write(folder.join(format!("{block:07x}.kv")), blocks).unwrap();
        }
        fs::write(folder.join("list"), list).unwrap();
    }
    write_journal(dir.path(), &[Entry::Dead { bucket: 1, block: removed }]);
    dir
}

/// The same with one file for all.
fn directory_of_extents() -> tempfile::TempDir {
    let dir = empty(Backend::Offset);
    let (mut file, mut marks) = (vec![0; 5 * BLOCK], Vec::new());
    for (bucket, records) in [(1, FIRST), (2, SECOND)] {
        let first = (file.len() / BLOCK) as u64;
        let (records, list) = bucket_of(bucket, first, &records);
        if bucket == 1 {
            marks.push(Entry::Dead { bucket, block: records[2].0 });
        }
        file.extend(records.into_iter().flat_map(|(_, blocks)| blocks).chain(list));
        marks.push(Entry::Extent { bucket, first, blocks: (file.len() / BLOCK) as u64 - first });
        file.extend([7; 2 * BLOCK]);
    }
    fs::write(dir.path().join("kv_cache.data"), file).unwrap();
    write_journal(dir.path(), &marks);
    dir
}

fn ssd(what: &str, dir: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nmc"));
    command.arg("ssd").arg(what).arg(dir).args(more).output().expect("nmc starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Names and contents of everything in a directory.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

/// Changes one byte of a file.
fn damage(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn keys_that_would_be_found_are_listed_and_no_others() {
    let dir = directory();
    let output = ssd("ls", dir.path(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let lines: Vec<String> =
        text(&output).lines().skip(1).map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines, ["200000 1 1 /large", "20 2 0 /small", "70000 2 2 mine/sp\\nace"]);
}

#[test]
fn numbers_tell_what_became_of_the_records() {
    let dir = directory();
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    fs::write(dir.path().join(format!("{}.tmp", bucket_name(9))), "begun").unwrap();
    let output = ssd("stat", dir.path(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let words: Vec<Vec<String>> =
        text(&output).lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    let number = |name: &str| words.iter().find(|line| line[0] == name).unwrap_or_else(|| panic!("{name}"))[1].clone();
    for (name, n) in [("live", "3"), ("removed", "1"), ("flushed", "1"), ("older", "1"), ("mine", "1"), ("files", "2")]
    {
        assert_eq!(number(name), n, "{name}: {}", text(&output));
    }
    for says in ["2023-11-14", "journal.4: 1 dead records", "notes.txt: not the tier's", ".tmp: not completed"] {
        assert!(text(&output).contains(says), "{says}: {}", text(&output));
    }
}

#[test]
fn what_is_right_is_verified_and_what_is_wrong_is_named() {
    let dir = directory();
    let output = ssd("verify", dir.path(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("3 values are right"), "{}", text(&output));
    let (first, second) = (bucket_name(1), bucket_name(2));
    for (file, at, says) in [
        (first.as_str(), 10 * BLOCK, "large"), // in the value
        (first.as_str(), BLOCK + 30, "large"), // in its header
        (second.as_str(), 3 * BLOCK + 7, "sp\\nace"),
        ("journal.4", 130, "journal"),
    ] {
        let dir = directory();
        damage(&dir.path().join(file), at);
        let output = ssd("verify", dir.path(), &[]);
        assert_eq!(output.status.code(), Some(1), "{file} {at}: {}", text(&output));
        assert!(text(&output).contains(says), "{file} {at}: {}", text(&output));
    }
    let dir = directory();
    let end = fs::metadata(dir.path().join(&first)).unwrap().len() as usize;
    damage(&dir.path().join(&first), end - 100);
    let output = ssd("verify", dir.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains(&first) && text(&output).contains("2 values are right"), "{}", text(&output));
}

#[test]
fn what_is_left_of_a_bucket_that_is_gone_is_shown() {
    let dir = directory();
    fs::write(dir.path().join("00000000000000aa.meta"), b"list").unwrap();
    let output = ssd("verify", dir.path(), &[]);
    let said = text(&output);
    assert!(
        output.status.code() == Some(0) && said.contains("besides  00000000000000aa.meta: not completed"),
        "{said}"
    );
}

#[test]
fn what_was_removed_is_not_looked_at_since_its_space_may_be_given_back() {
    let dir = directory();
    let block = Shape::of("small".len(), 10).blocks + Shape::of("large".len(), 200_000).blocks;
    damage(&dir.path().join(bucket_name(1)), block as usize * BLOCK + 20);
    let output = ssd("verify", dir.path(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}

#[test]
fn structures_are_shown_of_all_files_or_of_one() {
    let dir = directory();
    let all = text(&ssd("dump", dir.path(), &[]));
    for says in
        ["SUPER: Head", "journal.4: 5 records", "dead       bucket 1", "epoch 6", "older", "removed", "flushed", "live"]
    {
        assert!(all.contains(says), "{says}: {all}");
    }
    assert!(!all.contains("secret"), "{all}");
    let one = text(&ssd("dump", dir.path(), &["--file", "journal.4"]));
    assert!(one.contains("namespace") && !one.contains("SUPER") && !one.contains("epoch"), "{one}");
    assert_eq!(ssd("dump", dir.path(), &["--file", "other"]).status.code(), Some(1));
}

#[test]
fn nothing_is_changed() {
    let dir = directory();
    let before = contents(dir.path());
    for what in ["ls", "stat", "verify", "dump"] {
        assert_eq!(ssd(what, dir.path(), &[]).status.code(), Some(0), "{what}");
    }
    assert_eq!(contents(dir.path()), before);
}

#[test]
fn what_is_no_directory_of_a_tier_or_has_an_owner_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().to_owned(), dir.path().join("none"), "/dev/null".into()] {
        let output = ssd("ls", &path, &[]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(text(&output).contains(path.to_str().unwrap()), "{}", text(&output));
    }
    let dir = directory();
    let disk = nanomc::tier::io::RealDisk::open(dir.path(), false, Default::default()).unwrap();
    let lock = disk.lock().unwrap();
    let output = ssd("ls", dir.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains(&format!("owned by process {}", std::process::id())), "{}", text(&output));
    drop(lock);
    assert_eq!(ssd("ls", dir.path(), &[]).status.code(), Some(0));
}

#[test]
fn a_command_line_that_says_something_else_is_refused_with_code_2() {
    let nmc = |words: &[&str]| Command::new(env!("CARGO_BIN_EXE_nmc")).args(words).output().unwrap().status.code();
    for words in [
        ["ssd"].as_slice(),
        &["ssd", "ls"],
        &["ssd", "ls", ""],
        &["ssd", "delete", "/tmp"],
        &["ssd", "ls", "/tmp", "more"],
    ] {
        assert_eq!(nmc(words), Some(2), "{words:?}");
    }
}

#[test]
fn every_backend_can_be_looked_at() {
    for (dir, name) in [(directory_of_files(), "file-per-key"), (directory_of_extents(), "offset")] {
        let shown = |what: &str| {
            let output = ssd(what, dir.path(), &[]);
            assert_eq!(output.status.code(), Some(0), "{name} {what}: {}", text(&output));
            text(&output)
        };
        let keys: Vec<String> =
            shown("ls").lines().skip(1).filter_map(|line| line.split_whitespace().last().map(str::to_owned)).collect();
        assert_eq!(keys, ["/large", "/small", "mine/sp\\nace"], "{name}");
        let numbers = shown("stat");
        for says in [&format!("backend {name}"), "2 buckets", "journal.4: 1 dead records"] {
            assert!(numbers.contains(says), "{says}: {numbers}");
        }
        assert!(!numbers.contains("besides"), "{numbers}");
        assert!(shown("verify").contains("3 values are right"), "{name}");
        let all = shown("dump");
        for says in ["SUPER: Head", "dead       bucket 1", "older", "removed", "flushed", "live"] {
            assert!(all.contains(says), "{name}, {says}: {all}");
        }
        let one = text(&ssd("dump", dir.path(), &["--file", "2"]));
        assert!(one.contains("epoch 6") && !one.contains("epoch 1 "), "{one}");
    }
}

#[test]
fn damage_is_named_whatever_the_backend() {
    let dir = directory_of_files();
    let large = dir.path().join("01/0000000000000001.keys/0000001.kv");
    damage(&large, 10 * BLOCK);
    let output = ssd("verify", dir.path(), &[]);
    assert!(output.status.code() == Some(1) && text(&output).contains("large"), "{}", text(&output));
    fs::remove_file(&large).unwrap();
    let output = ssd("verify", dir.path(), &[]);
    assert!(output.status.code() == Some(1) && text(&output).contains("large"), "{}", text(&output));

    let dir = directory_of_extents();
    damage(&dir.path().join("kv_cache.data"), (5 + 1 + 10) * BLOCK);
    let output = ssd("verify", dir.path(), &[]);
    assert!(output.status.code() == Some(1) && text(&output).contains("large"), "{}", text(&output));
    fs::remove_file(dir.path().join("kv_cache.data")).unwrap();
    let output = ssd("verify", dir.path(), &[]);
    assert!(output.status.code() == Some(1) && text(&output).contains("kv_cache.data"), "{}", text(&output));
}

/// Sizes of the values that the library writes: in a header, of some granules, and with a last one that is not whole.
const SIZES: [usize; 5] = [0, 100, 5000, 65_536, 200_001];

/// A directory as the library writes it: values in two buckets, of which one is removed and one replaced.
fn written(dir: &Path, backend: Backend) -> PathBuf {
    let directory = dir.join(backend.name());
    let world = nanomc::world::Config { heap_bytes: 4 << 20, ..common::config(dir, None, 1) };
    let store = Store::embedded(&world, &StoreConfig { page_bytes: 4096, ..StoreConfig::default() }).unwrap();
    let config = TierConfig {
        directory: directory.clone(),
        backend,
        capacity_bytes: 64 << 20,
        paused: true,
        ..TierConfig::default()
    };
    let tier = Tier::open(&store, &config, &mut |_, _| ()).unwrap();
    let put = |key: &str, bytes: usize, replace: bool| {
        let value = value_of(key, bytes);
        let slices = [slice(&value)];
        let options = PutOptions { replace, ..PutOptions::DEFAULT };
        store.put(key.as_bytes(), &Pieces::Slices(&slices), &options).unwrap();
    };
    SIZES.iter().for_each(|bytes| put(&format!("first {bytes}"), *bytes, false));
    put("removed", 5000, false);
    put("replaced", 5000, false);
    tier.offload(None).unwrap();
    store.remove(b"removed").unwrap();
    put("replaced", 6000, true);
    SIZES.iter().for_each(|bytes| put(&format!("second value of {bytes}"), *bytes, false));
    tier.offload(None).unwrap();
    directory
}

/// All files below a directory.
fn files_of(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_of(&path) } else { vec![path] }).collect()
}

#[test]
fn what_the_library_has_written_is_right_and_every_flipped_bit_is_named() {
    for backend in [Backend::Bucket, Backend::File, Backend::Offset] {
        let dir = tempfile::tempdir().unwrap();
        let directory = written(dir.path(), backend);
        let verified = || {
            let output = ssd("verify", &directory, &[]);
            (output.status.code(), text(&output))
        };
        let (code, says) = verified();
        assert_eq!(code, Some(0), "{}: {says}", backend.name());
        assert!(says.contains("11 values are right") && says.contains("0 things are wrong"), "{says}");
        let key = "second value of 200001";
        // The header of its record comes before the list of its bucket; the value follows.
        let found = files_of(&directory).into_iter().find_map(|path| {
            let bytes = fs::read(&path).unwrap();
            let at = bytes.windows(key.len()).position(|window| window == key.as_bytes())?;
            (bytes.len() > at + 200_001).then_some((path, at))
        });
        let (file, at) = found.unwrap();
        for (flipped, wrong) in [(true, "1 things are wrong"), (false, "0 things are wrong")] {
            damage(&file, at + 100_000);
            let (code, says) = verified();
            assert_eq!(code, Some(i32::from(flipped)), "{}: {says}", backend.name());
            assert!(says.contains(wrong) && says.contains(key) == flipped, "{}: {says}", backend.name());
        }
    }
}

/// What comes of a command that must not wait for anything.
fn at_once(what: &str, dir: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nmc"));
    command.args(["ssd", what]).arg(dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut child, began) = (command.spawn().unwrap(), Instant::now());
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("nmc ssd {what} waits for ever");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), text(&output))
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_lock_that_is_no_file_is_refused_and_neither_followed_nor_waited_for() {
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    for odd in ["fifo", "link", "folder"] {
        let dir = directory();
        let lock = dir.path().join("LOCK");
        fs::remove_file(&lock).unwrap();
        match odd {
            "fifo" => fifo(&lock),
            "link" => std::os::unix::fs::symlink(elsewhere.path(), &lock).unwrap(),
            _ => fs::create_dir(&lock).unwrap(),
        }
        for what in ["ls", "stat", "verify", "dump"] {
            let (code, says) = at_once(what, dir.path());
            assert_eq!(code, Some(1), "{odd} {what}: {says}");
            assert!(says.contains("LOCK: it is not a regular file"), "{odd} {what}: {says}");
        }
        // One that is not there locks nothing.
        if lock.is_dir() { fs::remove_dir(&lock) } else { fs::remove_file(&lock) }.unwrap();
        assert_eq!(at_once("ls", dir.path()).0, Some(0));
    }
}

#[test]
fn what_is_called_like_a_journal_and_is_no_file_is_not_the_tiers() {
    for folder in [false, true] {
        let dir = directory();
        let odd = dir.path().join("journal.7");
        if folder {
            fs::create_dir(&odd).unwrap()
        } else {
            fifo(&odd)
        }
        for what in ["ls", "stat", "verify", "dump"] {
            let (code, says) = at_once(what, dir.path());
            assert_eq!(code, Some(0), "{what}: {says}");
            assert!(what != "stat" || says.contains("journal.7: not the tier's"), "{says}");
        }
    }
}
