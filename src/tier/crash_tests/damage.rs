//! Lists of buckets that cannot be read, or are not what was written: the directory opens without them, says so, and goes on. What
//! was in them never comes back behind the back of those who went on.

use super::disk::{Watched, values};
use super::ledger::{Ledger, Moments};
use super::master::{Master, Op, Records, extent_bytes, head, look};
use super::{BACKENDS, config};
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_NO_SPACE};
use crate::tier::backend::{DATA_NAME, meta_name};
use crate::tier::config::{Backend, Config, Torn};
use crate::tier::directory::Directory;
use crate::tier::format::BLOCK;
use crate::tier::io::sim::{Fault, SimDisk};
use crate::tier::io::{Disk, File};
use crate::tier::recovery::Recovered;
use std::sync::Arc;

/// A directory with two buckets, of one key each.
fn two_buckets(config: &Config) -> SimDisk {
    let sim = SimDisk::new();
    let watched = Watched::new(&sim, &Arc::new(Moments::new(Ledger::default())), None);
    let mut master = Master::open(&watched, config).unwrap();
    for op in [Op::Set((0, 0)), Op::Write(None), Op::Set((0, 1)), Op::Write(None), Op::Sync] {
        assert!(master.run(op).unwrap());
    }
    sim
}

fn open(disk: &SimDisk, config: &Config) -> (Directory, Recovered) {
    Directory::open(Arc::new(disk.clone()), config, head, &mut |_, _| {}).unwrap()
}

/// Keys that are found.
fn found(disk: &SimDisk, config: &Config, recovered: &Recovered) -> Vec<(u8, u8)> {
    look(&Records::new(disk, config.backend), recovered, None).unwrap().0.into_keys().collect()
}

fn bytes_of(disk: &SimDisk) -> u64 {
    values(disk).map(|(_, bytes)| bytes).sum()
}

/// Bytes that are taken from the capacity.
fn taken(disk: &SimDisk, config: &Config) -> u64 {
    if config.backend == Backend::Offset { extent_bytes(&disk.kill()) } else { bytes_of(disk) }
}

#[test]
fn a_list_that_cannot_be_read_keeps_nobody_from_the_others() {
    for config in BACKENDS.map(|backend| config(backend, false)) {
        let (disk, name) = (two_buckets(&config), config.backend.name());
        let whole = disk.kill();
        let (_, recovered) = open(&whole, &config);
        assert_eq!((found(&whole, &config, &recovered), recovered.torn), (vec![(0, 0), (0, 1)], 0), "the control");
        let mut lost = 0;
        for n in 0..whole.operations() {
            let image = disk.kill();
            image.fail_at(n, Fault::Eio);
            let arc = Arc::new(image.clone());
            let Ok((directory, recovered)) = Directory::open(arc, &config, head, &mut |_, _| {}) else { continue };
            if recovered.torn == 0 {
                continue;
            }
            lost += 1;
            let left = found(&image, &config, &recovered);
            assert_eq!((recovered.torn, left.len()), (1, 1), "{name}");
            assert_eq!(bytes_of(&image), bytes_of(&disk), "{name}: it stays as it is");
            assert_eq!(directory.file_bytes(), taken(&image, &config), "{name}: and counts");
            drop(directory);
            // The disk works again: what was gone on without does not come back, and stays nevertheless. Nor after a crash.
            for image in [image.kill(), image.crash(&mut super::Random(n))] {
                let (directory, recovered) = open(&image, &config);
                assert_eq!((recovered.torn, found(&image, &config, &recovered)), (1, left.clone()), "{name}");
                assert_eq!(directory.bucket_count(), 1);
                assert_eq!(directory.file_bytes(), taken(&image, &config), "{name}");
                drop(directory);
                let watched = Watched::new(&image, &Arc::new(Moments::new(Ledger::default())), None);
                watched.moments().ledger.lock().numbers = [1, 2].into();
                let mut master = Master::open(&watched, &config).unwrap();
                for op in [Op::Set((0, 0)), Op::Set((0, 1)), Op::Write(None), Op::Tidy, Op::Restart] {
                    master.run(op).unwrap();
                    master.audit().unwrap();
                    master.audit_bytes().unwrap();
                }
            }
        }
        assert!(lost >= 4, "{name}: {lost}");
    }
}

/// Where the list of the second bucket ends.
fn end_of_list(disk: &SimDisk, config: &Config) -> (Box<dyn File>, u64) {
    let folder = |disk: &dyn Disk| disk.folder("02").unwrap().folder("0000000000000002.keys").unwrap();
    let file = match config.backend {
        Backend::Bucket => disk.open("0000000000000002.bucket", true).unwrap(),
        Backend::File => folder(disk).open("list", true).unwrap(),
        _ => disk.open(DATA_NAME, true).unwrap(),
    };
    let mut end = file.bytes().unwrap();
    if config.backend == Backend::Offset {
        let mut block = vec![0; BLOCK];
        let is_last = |block: &[u8]| block.starts_with(b"NMCBUCKT") && block[24] == 2;
        while !is_last(&block) {
            end -= BLOCK as u64;
            file.read(&mut block, end).unwrap();
        }
        end += BLOCK as u64;
    }
    (file, end)
}

#[test]
fn a_damaged_list_is_set_aside_or_deleted() {
    for (backend, torn) in BACKENDS.into_iter().flat_map(|b| [(b, Torn::MoveAside), (b, Torn::Delete)]) {
        let config = Config { torn, ..config(backend, false) };
        let disk = two_buckets(&config);
        let (file, end) = end_of_list(&disk, &config);
        file.write(b"damage", end - 100).unwrap();
        file.datasync().unwrap();
        let before = bytes_of(&disk);
        let (directory, recovered) = open(&disk, &config);
        assert_eq!((recovered.torn, found(&disk, &config, &recovered)), (1, vec![(0, 0)]), "{}", backend.name());
        assert_eq!(directory.counts.torn.load(std::sync::atomic::Ordering::Relaxed), 1);
        let gone = torn == Torn::Delete;
        assert_eq!(bytes_of(&disk) < before, gone && backend != Backend::Offset, "{}", backend.name());
        assert_eq!(directory.file_bytes(), taken(&disk, &config), "{}", backend.name());
        assert_eq!(directory.aside_bytes() > 0, !gone, "{}", backend.name());
        drop(directory);
        // It is not looked at again; only that of one file is still there, since it cannot have another name.
        let (directory, recovered) = open(&disk, &config);
        assert_eq!(directory.file_bytes(), taken(&disk, &config), "{}", backend.name());
        assert_eq!(directory.aside_bytes() > 0, !gone, "{}", backend.name());
        let still = backend == Backend::Offset && torn == Torn::MoveAside;
        assert_eq!((recovered.torn, recovered.foreign), (u64::from(still), 0), "{}", backend.name());
        assert_eq!(found(&disk, &config, &recovered), [(0, 0)]);
    }
}

/// The capacity holds for everything that is there: what was set aside, and second copies of lists.
#[test]
fn what_is_damaged_and_lists_that_are_written_twice_take_their_part_of_the_capacity() {
    for (backend, meta) in [(Backend::Bucket, false), (Backend::Bucket, true), (Backend::File, false)] {
        let config = Config { meta, ..config(backend, false) };
        let disk = two_buckets(&config);
        if meta {
            // Both copies of the list.
            let copy = disk.open(&meta_name(2), true).unwrap();
            copy.write(b"damage", copy.bytes().unwrap() - 100).unwrap();
        }
        let (file, end) = end_of_list(&disk, &config);
        file.write(b"damage", end - 100).unwrap();
        drop(open(&disk, &config));
        // Writes one more bucket; gives the bytes that there are then.
        let write = |capacity_bytes| {
            let disk = disk.kill();
            let watched = Watched::new(&disk, &Arc::new(Moments::new(Ledger::default())), None);
            let mut master = Master::open(&watched, &Config { capacity_bytes, ..config.clone() }).unwrap();
            assert!(master.run(Op::Set((1, 0))).unwrap());
            let written = master.run(Op::Write(None));
            master.audit_bytes().unwrap();
            written.map(|_| bytes_of(&disk)).map_err(|error| error.status)
        };
        let needed = write(64 << 20).unwrap();
        assert_eq!(write(needed), Ok(needed), "{} {meta}", backend.name());
        assert_eq!(write(needed - 1), Err(NMC_ERR_NO_SPACE), "{} {meta}", backend.name());
    }
}

#[test]
fn without_a_data_file_nothing_is_found_and_nothing_made() {
    let config = config(Backend::Offset, false);
    let disk = two_buckets(&config);
    disk.unlink(DATA_NAME).unwrap();
    let error = Directory::open(Arc::new(disk.clone()), &config, head, &mut |_, _| {}).err().unwrap();
    assert_eq!(error.status, NMC_ERR_CORRUPT, "{error}");
    assert!(disk.open(DATA_NAME, false).is_err());
}

#[test]
fn a_directory_that_cannot_be_made_for_want_of_space_leaves_nothing() {
    for backend in BACKENDS {
        let config = config(backend, false);
        let mut failed = 0;
        for at in 0.. {
            let disk = SimDisk::new();
            disk.fail_at(at, Fault::Enospc);
            let opened = Directory::open(Arc::new(disk.clone()), &config, head, &mut |_, _| {});
            if at >= disk.operations() {
                break;
            }
            let Err(error) = opened else { continue };
            assert_eq!(error.status, NMC_ERR_NO_SPACE, "{} {at}: {error}", backend.name());
            let left: Vec<String> = disk.list().unwrap().into_iter().map(|file| file.name).collect();
            assert!(left.is_empty(), "{} {at}: {left:?}", backend.name());
            open(&disk, &config);
            failed += 1;
        }
        // The journal and the head; and the one file.
        assert!(failed >= if backend == Backend::Offset { 3 } else { 2 }, "{}: {failed}", backend.name());
    }
}

#[test]
fn one_file_becomes_larger_and_keeps_what_it_has_when_there_is_less_room() {
    let config = config(Backend::Offset, false);
    let disk = two_buckets(&config);
    let bytes = |disk: &SimDisk| disk.open(DATA_NAME, false).unwrap().bytes().unwrap();
    for capacity_bytes in [config.capacity_bytes * 2, BLOCK as u64, config.capacity_bytes] {
        let config = Config { capacity_bytes, ..config.clone() };
        let watched = Watched::new(&disk, &Arc::new(Moments::new(Ledger::default())), None);
        let mut master = Master::open(&watched, &config).unwrap();
        master.run(Op::Set((1, 0))).unwrap();
        let written = master.run(Op::Write(None));
        match capacity_bytes > BLOCK as u64 {
            true => assert!(written.unwrap() && bytes(&disk) == capacity_bytes),
            false => assert_eq!(written.unwrap_err().status, NMC_ERR_NO_SPACE),
        }
        master.audit().unwrap();
        drop(master);
        for image in [disk.kill(), disk.crash(&mut super::Random(capacity_bytes))] {
            let (_, recovered) = open(&image, &config);
            assert_eq!(found(&image, &config, &recovered)[..2], [(0, 0), (0, 1)]);
        }
    }
}

#[test]
fn the_first_extent_waits_for_what_a_killed_owner_had_under_way() {
    let config = config(Backend::Offset, false);
    let disk = two_buckets(&config).kill();
    let watched = Watched::new(&disk, &Arc::new(Moments::new(Ledger::default())), None);
    let mut master = Master::open(&watched, &config).unwrap();
    assert_eq!(watched.punched(DATA_NAME), 0);
    for name in [(1, 0), (1, 1)] {
        master.run(Op::Set(name)).unwrap();
        master.run(Op::Write(None)).unwrap();
        // A hole is not made before that has ended; one is enough.
        assert_eq!(watched.punched(DATA_NAME), BLOCK as u64);
        master.audit().unwrap();
    }
}
