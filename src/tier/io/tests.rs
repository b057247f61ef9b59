//! One suite for every kind of disk: what is written is read back, at any size and offset, and not a byte beside it changes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use super::sim::{Random, SimDisk};
use super::*;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_INVALID_ARG, NMC_ERR_LIMIT, NMC_ERR_NO_MEMORY, NMC_ERR_PERMISSION};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

const DIRECT: Options = Options { direct: true, uring: true, depth: 32 };
const PLAIN: Options = Options { direct: true, uring: false, depth: 32 };
const SHALLOW: Options = Options { direct: true, uring: true, depth: 2 };
const BUFFERED: Options = Options { direct: false, uring: true, depth: 32 };
const KINDS: [(&str, Options); 4] =
    [("direct", DIRECT), ("direct, plain", PLAIN), ("direct, two at a time", SHALLOW), ("buffered", BUFFERED)];

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn real(folder: &Path, options: Options) -> RealDisk {
    RealDisk::open(folder, false, options).unwrap()
}

/// Runs a test on every kind of disk.
fn on_all(test: impl Fn(&str, &dyn Disk)) {
    for (kind, options) in KINDS {
        let folder = folder();
        test(kind, &real(folder.path(), options));
    }
    test("simulated", &SimDisk::new());
}

fn below(rng: &mut Random, limit: usize) -> usize {
    rng.below(u32::try_from(limit).unwrap()) as usize
}

fn random_bytes(rng: &mut Random, count: usize) -> Vec<u8> {
    (0..count).map(|_| u8::try_from(rng.below(256)).unwrap()).collect()
}

/// A buffer with a margin on both sides that must stay as it is. Its address is aligned or, if `odd`, is not.
struct Guarded {
    all: Buffer,
    first: usize,
    bytes: usize,
}

const MARGIN: usize = BLOCK;

impl Guarded {
    fn new(bytes: usize, odd: usize) -> Self {
        let mut all = Buffer::new(bytes + odd + 2 * MARGIN).unwrap();
        all.fill(0xA5);
        Self { all, first: MARGIN + odd, bytes }
    }

    fn inside(&mut self) -> &mut [u8] {
        &mut self.all[self.first..self.first + self.bytes]
    }

    fn check(&self, what: &str) {
        let outside = self.all[..self.first].iter().chain(&self.all[self.first + self.bytes..]);
        assert!(outside.into_iter().all(|byte| *byte == 0xA5), "a byte beside the buffer: {what}");
    }
}

/// Odd or even sizes and offsets, within a file of `bytes` bytes.
fn range(rng: &mut Random, bytes: usize) -> (usize, usize) {
    let (mut from, mut to) = (below(rng, bytes + 1), below(rng, bytes + 1));
    if rng.below(3) == 0 {
        (from, to) = (from / BLOCK * BLOCK, to / BLOCK * BLOCK);
    }
    if rng.below(3) == 0 {
        to = from + below(rng, 700).min(bytes - from);
    }
    (from.min(to), from.max(to))
}

/// Cuts `bytes` into pieces.
fn cut(rng: &mut Random, bytes: usize) -> Vec<usize> {
    let (mut pieces, mut left) = (Vec::new(), bytes);
    while left > 0 {
        let size = match rng.below(4) {
            0 => below(rng, 2 * BLOCK),
            1 => BLOCK,
            2 => 4 * BLOCK,
            _ => left,
        };
        pieces.push(size.min(left));
        left -= size.min(left);
    }
    pieces
}

#[test]
fn a_file_is_what_was_done_to_it() {
    on_all(|kind, disk| {
        let mut rng = Random(kind.len() as u64);
        for buffered in [false, true] {
            let (name, start) = (if buffered { "b" } else { "a" }, 200_000);
            let made = if buffered { disk.create_buffered(name, start) } else { disk.create(name, start) };
            let file = made.unwrap();
            let mut model = vec![0_u8; 200_000];
            for step in 0..150 {
                let what = format!("{kind}, {name}, step {step}");
                let (from, to) = range(&mut rng, model.len());
                let odd = [0, 1, 512, 100][below(&mut rng, 4)];
                let mut buffer = Guarded::new(to - from, odd);
                match rng.below(10) {
                    0..=2 => {
                        let bytes = random_bytes(&mut rng, to - from);
                        buffer.inside().copy_from_slice(&bytes);
                        // Now and then behind the end.
                        let at = if rng.below(8) == 0 { from + model.len() / 4 } else { from };
                        model.resize(model.len().max(if bytes.is_empty() { 0 } else { at + bytes.len() }), 0);
                        model[at..at + bytes.len()].copy_from_slice(&bytes);
                        file.write(buffer.inside(), at as u64).unwrap();
                    }
                    3 => {
                        let bytes = random_bytes(&mut rng, to - from);
                        let (mut slices, mut rest) = (Vec::new(), &bytes[..]);
                        for piece in cut(&mut rng, bytes.len()) {
                            let (now, later) = rest.split_at(piece);
                            slices.push(IoSlice::new(now));
                            rest = later;
                        }
                        file.vector_write(&slices, from as u64).unwrap();
                        model[from..to].copy_from_slice(&bytes);
                    }
                    4 | 5 => {
                        file.read(buffer.inside(), from as u64).unwrap();
                        assert!(*buffer.inside() == model[from..to], "{what}");
                    }
                    6 => {
                        let pieces = cut(&mut rng, to - from);
                        let (mut slices, mut rest) = (Vec::new(), buffer.inside());
                        for piece in pieces {
                            let (now, later) = rest.split_at_mut(piece);
                            slices.push(IoSliceMut::new(now));
                            rest = later;
                        }
                        file.vector_read(&mut slices, from as u64).unwrap();
                        assert!(*buffer.inside() == model[from..to], "{what}");
                    }
                    7 => {
                        let places: Vec<_> = (0..8).map(|_| range(&mut rng, model.len())).collect();
                        let mut buffers: Vec<_> = places.iter().map(|(a, b)| Guarded::new(b - a, odd)).collect();
                        let offsets = places.iter().map(|(from, _)| *from as u64);
                        let mut reads: Vec<_> = offsets.zip(buffers.iter_mut().map(Guarded::inside)).collect();
                        file.batch_read(&mut reads).unwrap();
                        for (buffer, (from, to)) in buffers.iter_mut().zip(&places) {
                            assert!(*buffer.inside() == model[*from..*to], "{what}");
                            buffer.check(&what);
                        }
                    }
                    8 => {
                        if file.punch(from as u64, (to - from) as u64).unwrap() {
                            model[from..to].fill(0);
                        }
                    }
                    _ => {
                        let bytes = model.len() - below(&mut rng, 5000) + below(&mut rng, 5000);
                        file.truncate(bytes as u64).unwrap();
                        model.resize(bytes, 0);
                    }
                }
                buffer.check(&what);
                assert_eq!(file.bytes().unwrap(), model.len() as u64, "{what}");
            }
            file.datasync().unwrap();
            drop(file);
            let opened = if buffered { disk.open(name, false) } else { disk.open_buffered(name, false) };
            let mut all = vec![0; model.len()];
            opened.unwrap().read(&mut all, 0).unwrap();
            assert!(all == model, "{kind}, {name}");
        }
    });
}

#[test]
fn long_transfers_are_whole() {
    on_all(|kind, disk| {
        let bytes = (5 << 20) + 3 * BLOCK;
        let mut from = Buffer::new(bytes).unwrap();
        from.copy_from_slice(&random_bytes(&mut Random(5), bytes));
        let file = disk.create("long", 0).unwrap();
        file.write_aligned(&from, BLOCK as u64).unwrap();
        assert_eq!(file.bytes().unwrap(), (bytes + BLOCK) as u64);
        let mut to = Guarded::new(bytes, 0);
        file.read_aligned(to.inside(), BLOCK as u64).unwrap();
        assert!(*to.inside() == *from, "{kind}");
        to.check(kind);
        // Scattered: a head, a value and a tail that ends within a block.
        let pieces = [BLOCK, 1 << 20, 3 * BLOCK, 100];
        let mut buffers: Vec<_> = pieces.iter().map(|bytes| Guarded::new(*bytes, 0)).collect();
        let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer.inside())).collect();
        file.vector_read(&mut slices, BLOCK as u64).unwrap();
        let mut at = 0;
        for buffer in &mut buffers {
            buffer.check(kind);
            let bytes = buffer.inside();
            assert!(*bytes == from[at..at + bytes.len()], "{kind}");
            at += bytes.len();
        }
    });
}

#[test]
fn reading_behind_the_end_is_an_error_that_tells_where_it_is() {
    on_all(|kind, disk| {
        for end in [0, 1, BLOCK, BLOCK + 904, (2 << 20) + 1] {
            let file = disk.create("short", 0).unwrap();
            file.write(&vec![3; end], 0).unwrap();
            assert_eq!(file.bytes().unwrap(), end as u64, "{kind}");
            let first = end / BLOCK * BLOCK;
            for (offset, bytes) in [(first, 2 * BLOCK), (0, end + 1), (end + 5, 1), (first + (1 << 40), 4 << 20)] {
                let mut buffer = Guarded::new(bytes, 0);
                let error = file.read(buffer.inside(), offset as u64).unwrap_err();
                assert_eq!(error.status, NMC_ERR_CORRUPT, "{kind}: {bytes} at {offset} of {end}: {error}");
                let told = error.message.split_once("ends at byte ").unwrap().1.split_once(',').unwrap().0;
                assert_eq!(told, end.to_string(), "{kind}: {bytes} at {offset}: {error}");
                buffer.check(kind);
            }
            let mut all = Guarded::new(end, 0);
            file.read(all.inside(), 0).unwrap();
            assert!(all.inside().iter().all(|byte| *byte == 3));
            disk.unlink("short").unwrap();
        }
    });
}

#[test]
fn aligned_transfers_refuse_what_is_not() {
    on_all(|kind, disk| {
        let file = disk.create("a", 4 * BLOCK as u64).unwrap();
        let mut buffer = Buffer::new(3 * BLOCK).unwrap();
        for (from, to, offset) in [(1, BLOCK + 1, 0), (0, BLOCK + 1, 0), (0, BLOCK, 512), (0, 512, 0)] {
            let error = file.write_aligned(&buffer[from..to], offset).unwrap_err();
            assert_eq!(error.status, NMC_ERR_INVALID_ARG, "{kind}");
            assert!(error.message.contains(&format!("length {} and offset {offset}", to - from)), "{error}");
            let error = file.read_aligned(&mut buffer[from..to], offset).unwrap_err();
            assert_eq!(error.status, NMC_ERR_INVALID_ARG, "{kind}");
        }
        file.write_aligned(&buffer, BLOCK as u64).unwrap();
        file.read_aligned(&mut buffer, BLOCK as u64).unwrap();
    });
}

fn names(disk: &dyn Disk) -> Vec<(String, u64, bool)> {
    disk.list().unwrap().into_iter().map(|listed| (listed.name, listed.bytes, listed.regular)).collect()
}

#[test]
fn names_come_and_go() {
    on_all(|kind, disk| {
        assert_eq!(names(disk), [], "{kind}");
        disk.create("b", 5000).unwrap();
        disk.create_buffered("a", 0).unwrap();
        disk.create("c", 1).unwrap().write(b"c", 0).unwrap();
        let listed = |all: &[(&str, u64)]| all.iter().map(|(n, b)| ((*n).into(), *b, true)).collect::<Vec<_>>();
        assert_eq!(names(disk), listed(&[("a", 0), ("b", 5000), ("c", 1)]), "{kind}");
        let failed = |outcome: Result<Box<dyn File>>| outcome.err().unwrap().status;
        assert_eq!(failed(disk.create("a", 1)), NMC_ERR_EXISTS);
        assert_eq!(failed(disk.open("d", false)), NMC_ERR_NOT_FOUND);
        assert_eq!(disk.rename("d", "e").unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(disk.unlink("d").unwrap_err().status, NMC_ERR_NOT_FOUND);
        let open = disk.open("b", true).unwrap();
        disk.rename("c", "b").unwrap();
        assert_eq!(names(disk), listed(&[("a", 0), ("b", 1)]), "{kind}");
        open.write(b"still there", 0).unwrap();
        assert_eq!(disk.open("b", false).unwrap().bytes().unwrap(), 1, "another file");
        disk.unlink("a").unwrap();
        disk.sync().unwrap();
        assert_eq!(names(disk), listed(&[("b", 1)]), "{kind}");
        let long = "x".repeat(256);
        for name in ["", ".", "..", "a/b", "/etc/passwd", "../a", "a\0b", &long] {
            assert_eq!(failed(disk.open(name, false)), NMC_ERR_INVALID_ARG, "{kind}: {name:?}");
            assert_eq!(failed(disk.create(name, 0)), NMC_ERR_INVALID_ARG, "{kind}: {name:?}");
            assert_eq!(disk.rename("b", name).unwrap_err().status, NMC_ERR_INVALID_ARG);
            assert_eq!(disk.unlink(name).unwrap_err().status, NMC_ERR_INVALID_ARG);
        }
        let read_only = disk.open("b", false).unwrap();
        assert_eq!(read_only.write(b"x", 0).unwrap_err().status, NMC_ERR_IO, "{kind}");
    });
}

#[test]
fn a_file_that_cannot_be_made_leaves_nothing() {
    for (_, options) in KINDS {
        let folder = folder();
        let disk = real(folder.path(), options);
        let error = disk.create("huge", 1 << 62).err().unwrap();
        assert!([NMC_ERR_LIMIT, NMC_ERR_NO_SPACE].contains(&error.status), "{error}");
        assert!(error.message.contains("huge, 4611686018427387904 bytes"), "{error}");
        assert_eq!(names(&disk), []);
    }
}

#[test]
fn files_and_directories_are_this_users_alone() {
    let folder = folder();
    let path = folder.path().join("tier");
    assert_eq!(RealDisk::open(&path, false, DIRECT).err().unwrap().status, NMC_ERR_NOT_FOUND);
    for _ in 0..2 {
        let disk = RealDisk::open(&path, true, DIRECT).unwrap();
        assert_eq!(disk.path(), path);
        disk.create("a", 1).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("a"))), (0o700, 0o600));
        disk.unlink("a").unwrap();
    }
    std::fs::write(folder.path().join("file"), "").unwrap();
    assert!(RealDisk::open(&folder.path().join("file"), true, DIRECT).is_err());
    assert!(RealDisk::open(&folder.path().join("no/where"), true, DIRECT).is_err());
}

#[test]
fn links_directories_and_pipes_are_refused() {
    let (folder, outside) = (folder(), folder());
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    let at = |name: &str| folder.path().join(name);
    symlink(outside.path().join("secret"), at("link")).unwrap();
    symlink(outside.path().join("nothing"), at("dangling")).unwrap();
    std::fs::create_dir(at("dir")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(at("pipe")).status();
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff");
    std::fs::write(folder.path().join(odd), "12345").unwrap();
    for (kind, options) in KINDS {
        let disk = real(folder.path(), options);
        let mut refused = vec!["link", "dangling", "dir"];
        refused.extend(made.as_ref().is_ok_and(std::process::ExitStatus::success).then_some("pipe"));
        for name in refused {
            for write in [false, true] {
                let error = disk.open(name, write).err().unwrap();
                assert_eq!(error.status, NMC_ERR_PERMISSION, "{kind}: {error}");
                assert!(error.message.ends_with("is no regular file"), "{error}");
            }
            assert_eq!(disk.create(name, 4).err().unwrap().status, NMC_ERR_EXISTS, "{kind}: {name}");
            let listed = disk.list().unwrap().into_iter().find(|listed| listed.name == name).unwrap();
            assert!(!listed.regular, "{kind}: {name}");
        }
        let listed = disk.list().unwrap().into_iter().find(|listed| listed.name.starts_with("odd")).unwrap();
        assert_eq!((listed.name.as_str(), listed.bytes, listed.regular), ("odd\u{fffd}", 5, false));
    }
    assert!(!outside.path().join("nothing").exists());
    assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
}

#[test]
fn a_reader_gets_the_directory_and_can_change_nothing() {
    let folder = folder();
    let owner = real(folder.path(), DIRECT);
    let lock = owner.lock().unwrap();
    owner.create("a", 0).unwrap().write(b"value", 0).unwrap();
    let reader = RealDisk::from_fd(owner.shareable().unwrap(), DIRECT).unwrap();
    // Wherever the directory is by now.
    let moved = folder.path().with_extension("moved");
    std::fs::rename(folder.path(), &moved).unwrap();
    let (file, mut value) = (reader.open("a", false).unwrap(), [0; 5]);
    file.read(&mut value, 0).unwrap();
    assert_eq!(&value, b"value");
    assert_eq!(reader.list().unwrap().len(), 2);
    assert!(file.descriptor().is_some());
    let refused = |outcome: Result<()>| assert_eq!(outcome.unwrap_err().status, NMC_ERR_PERMISSION);
    refused(reader.open("a", true).map(drop));
    refused(reader.create("b", 0).map(drop));
    refused(reader.create_buffered("b", 0).map(drop));
    refused(reader.rename("a", "b"));
    refused(reader.unlink("a"));
    refused(reader.lock().map(drop));
    // The lock is gone with its owner, whoever has the directory open.
    drop(lock);
    let again = real(&moved, DIRECT).lock().unwrap();
    std::fs::rename(&moved, folder.path()).unwrap();
    drop(again);
    let file = std::fs::File::open(folder.path().join("a")).unwrap();
    assert_eq!(RealDisk::from_fd(file.into(), DIRECT).err().unwrap().status, NMC_ERR_INVALID_ARG);
}

#[test]
fn a_directory_has_one_owner_and_a_second_is_told_who() {
    let folder = folder();
    let (first, second) = (real(folder.path(), DIRECT), real(folder.path(), DIRECT));
    let lock = first.lock().unwrap();
    for disk in [&first, &second] {
        let error = disk.lock().unwrap_err();
        assert_eq!(error.status, NMC_ERR_EXISTS);
        let owner = format!("{} is owned by process {} on ", folder.path().display(), std::process::id());
        assert!(error.message.starts_with(&owner), "{error}");
    }
    drop(lock);
    let lock = second.lock().unwrap();
    // Somebody removes the file: the new one is another lock, and that cannot be helped. The next owner gets one that counts.
    std::fs::remove_file(folder.path().join("LOCK")).unwrap();
    let other = first.lock().unwrap();
    assert_eq!(second.lock().unwrap_err().status, NMC_ERR_EXISTS);
    drop((lock, other));
    std::fs::remove_file(folder.path().join("LOCK")).unwrap();
    symlink("/dev/null", folder.path().join("LOCK")).unwrap();
    assert_eq!(first.lock().unwrap_err().status, NMC_ERR_PERMISSION, "planted");
}

/// Somebody has forked, and the child has not got to close anything yet.
#[test]
fn a_directory_that_was_given_up_is_free_while_a_child_has_its_lock_open() {
    let folder = folder();
    let disk = real(folder.path(), DIRECT);
    let lock = disk.lock().unwrap();
    let of_child = lock.fd.as_fd().try_clone_to_owned().unwrap();
    assert_eq!(disk.lock().unwrap_err().status, NMC_ERR_EXISTS);
    drop(lock);
    drop(disk.lock().unwrap());
    drop(of_child);
}

#[test]
fn many_threads_read_one_file_at_once() {
    for (kind, options) in KINDS {
        let folder = folder();
        let disk = real(folder.path(), options);
        let bytes = random_bytes(&mut Random(9), 2 << 20);
        let file = disk.create("a", 0).unwrap();
        file.write(&bytes, 0).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (file, bytes) = (&file, &bytes);
                scope.spawn(move || {
                    let mut rng = Random(thread);
                    for _ in 0..20 {
                        let (from, to) = range(&mut rng, bytes.len());
                        let mut buffer = Guarded::new(to - from, 0);
                        file.read(buffer.inside(), from as u64).unwrap();
                        assert!(*buffer.inside() == bytes[from..to], "{kind}");
                        buffer.check(kind);
                    }
                });
            }
        });
    }
}

#[test]
fn space_is_given_back_where_holes_can_be_punched() {
    let folder = folder();
    let disk = real(folder.path(), DIRECT);
    let file = disk.create("a", 1 << 20).unwrap();
    file.write(&vec![1; 1 << 20], 0).unwrap();
    file.datasync().unwrap();
    let blocks = || std::fs::metadata(folder.path().join("a")).unwrap().blocks();
    let before = blocks();
    if file.punch(0, 1 << 19).unwrap() {
        assert!(blocks() < before, "{} of {before}", blocks());
        assert_eq!(file.bytes().unwrap(), 1 << 20);
    }
    assert!(file.punch(0, 0).unwrap());
}

#[test]
fn errors_have_the_status_that_a_caller_can_act_on() {
    for (code, status) in [
        (libc::ENOSPC, NMC_ERR_NO_SPACE),
        (libc::EDQUOT, NMC_ERR_NO_SPACE),
        (libc::EACCES, NMC_ERR_PERMISSION),
        (libc::EPERM, NMC_ERR_PERMISSION),
        (libc::ENOENT, NMC_ERR_NOT_FOUND),
        (libc::EEXIST, NMC_ERR_EXISTS),
        (libc::EMFILE, NMC_ERR_LIMIT),
        (libc::EFBIG, NMC_ERR_LIMIT),
        (libc::ENOMEM, NMC_ERR_NO_MEMORY),
        (libc::EIO, NMC_ERR_IO),
        (libc::EROFS, NMC_ERR_IO),
    ] {
        let error = error("open", "dir/a", &std::io::Error::from_raw_os_error(code));
        assert_eq!(error.status, status, "{error}");
        assert!(error.message.starts_with("open(dir/a): "), "{error}");
    }
}

#[test]
fn folders_are_directories_of_their_own() {
    on_all(|kind, disk| {
        let inner = disk.make_folder("outer").unwrap().make_folder("inner").unwrap();
        assert_eq!(disk.make_folder("outer").err().unwrap().status, NMC_ERR_EXISTS, "{kind}");
        inner.create("file", 100).unwrap().write(b"here", 7).unwrap();
        inner.sync().unwrap();
        disk.rename("outer", "other").unwrap();
        let found = disk.folder("other").unwrap().folder("inner").unwrap();
        let mut read = [0; 4];
        found.open("file", false).unwrap().read(&mut read, 7).unwrap();
        assert_eq!(&read, b"here", "{kind}");
        let listed = disk.list().unwrap();
        assert_eq!((listed[0].name.as_str(), listed[0].regular, listed[0].folder), ("other", false, true));
        assert_eq!(disk.folder("outer").err().unwrap().status, NMC_ERR_NOT_FOUND);
        assert!(disk.open("other", false).is_err() && disk.unlink("other").is_err());
        assert!(disk.folder("other").unwrap().remove_folder("inner").is_err(), "there is something in it");
        found.unlink("file").unwrap();
        disk.folder("other").unwrap().remove_folder("inner").unwrap();
        disk.remove_folder("other").unwrap();
        assert!(disk.list().unwrap().is_empty());
        for odd in ["", ".", "..", "a/b", "a\0"] {
            assert_eq!(disk.make_folder(odd).err().unwrap().status, NMC_ERR_INVALID_ARG);
            assert_eq!(disk.folder(odd).err().unwrap().status, NMC_ERR_INVALID_ARG);
        }
    });
}

#[test]
fn a_folder_is_never_reached_through_a_link() {
    let (folder, elsewhere) = (folder(), folder());
    std::fs::write(elsewhere.path().join("file"), b"secret").unwrap();
    symlink(elsewhere.path(), folder.path().join("link")).unwrap();
    std::fs::write(folder.path().join("file"), b"no folder").unwrap();
    let disk = real(folder.path(), DIRECT);
    for name in ["link", "file"] {
        assert_eq!(disk.folder(name).err().unwrap().status, NMC_ERR_PERMISSION, "{name}");
    }
    assert!(disk.list().unwrap().iter().all(|listed| !listed.folder));
    // Whoever has it for reading changes nothing in its folders, either.
    disk.make_folder("inner").unwrap();
    let reader = RealDisk::from_fd(disk.shareable().unwrap(), DIRECT).unwrap();
    let inner = reader.folder("inner").unwrap();
    assert_eq!(inner.create("file", 1).err().unwrap().status, NMC_ERR_PERMISSION);
    assert_eq!(reader.make_folder("new").err().unwrap().status, NMC_ERR_PERMISSION);
    assert_eq!(reader.remove_folder("inner").err().unwrap().status, NMC_ERR_PERMISSION);
}
