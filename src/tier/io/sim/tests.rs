//! The simulation does lose what it should: each of these is a control for tests that are built on it.

use super::*;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_IO, NMC_ERR_LIMIT, NMC_ERR_NO_SPACE};
use std::collections::BTreeSet;

/// Names and contents.
type Image = Vec<(String, Vec<u8>)>;

fn contents(disk: &SimDisk, name: &str) -> Vec<u8> {
    let file = disk.open(name, false).unwrap();
    let mut all = vec![0; index(file.bytes().unwrap())];
    file.read(&mut all, 0).unwrap();
    all
}

fn image(disk: &SimDisk) -> Image {
    let list = disk.list().unwrap();
    list.into_iter().map(|listed| (listed.name.clone(), contents(disk, &listed.name))).collect()
}

fn images(disk: &SimDisk) -> BTreeSet<Image> {
    disk.crash_all(100_000).iter().map(image).collect()
}

fn names(disk: &SimDisk) -> BTreeSet<Vec<String>> {
    images(disk).into_iter().map(|image| image.into_iter().map(|(name, _)| name).collect()).collect()
}

fn sets(all: &[&[&str]]) -> BTreeSet<Vec<String>> {
    all.iter().map(|names| names.iter().map(|name| (*name).into()).collect()).collect()
}

/// A file that lasts.
fn durable(disk: &SimDisk, name: &str, bytes: &[u8]) -> Box<dyn File> {
    let file = disk.create(name, bytes.len() as u64).unwrap();
    file.write(bytes, 0).unwrap();
    file.datasync().unwrap();
    disk.sync().unwrap();
    file
}

#[test]
fn what_was_synced_stays() {
    let disk = SimDisk::new();
    durable(&disk, "a", &[7; 1500]);
    assert_eq!(images(&disk), BTreeSet::from([vec![("a".into(), vec![7; 1500])]]));
}

#[test]
fn unsynced_sectors_are_old_or_new_each_by_itself() {
    let disk = SimDisk::new();
    let file = durable(&disk, "a", &[1; 2 * SECTOR]);
    file.write(&[2; 2 * SECTOR], 0).unwrap();
    let halves: BTreeSet<_> = images(&disk).into_iter().map(|image| (image[0].1[0], image[0].1[SECTOR])).collect();
    assert_eq!(halves, BTreeSet::from([(1, 1), (1, 2), (2, 1), (2, 2)]));
    for image in images(&disk) {
        assert!(image[0].1.chunks(SECTOR).all(|sector| sector.iter().all(|byte| *byte == sector[0])), "a torn sector");
    }
    file.write(&[3; 10], 0).unwrap();
    let firsts: BTreeSet<_> = images(&disk).into_iter().map(|image| (image[0].1[0], image[0].1[10])).collect();
    assert_eq!(firsts, BTreeSet::from([(1, 1), (2, 2), (3, 2)]), "any prefix of the writes to a sector");
    assert_eq!(contents(&disk, "a")[..11], [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2], "without a crash, the newest");
}

#[test]
fn without_a_datasync_a_name_that_lasts_leads_to_zeros_or_to_nothing() {
    let disk = SimDisk::new();
    disk.create("a", 100).unwrap().write(&[5; 100], 0).unwrap();
    disk.sync().unwrap();
    let want = [vec![], vec![0; 100], vec![5; 100]].map(|bytes| vec![("a".into(), bytes)]);
    assert_eq!(images(&disk), BTreeSet::from(want));
}

#[test]
fn without_a_directory_sync_a_file_may_be_gone() {
    let disk = SimDisk::new();
    let file = disk.create("a", 4).unwrap();
    file.write(b"data", 0).unwrap();
    file.datasync().unwrap();
    assert_eq!(images(&disk), BTreeSet::from([vec![], vec![("a".into(), b"data".to_vec())]]));
}

#[test]
fn a_renamed_file_has_its_old_name_the_new_one_or_both() {
    let disk = SimDisk::new();
    durable(&disk, "old", b"x");
    disk.rename("old", "new").unwrap();
    assert_eq!(names(&disk), sets(&[&["old"], &["new"], &["new", "old"]]));
    disk.sync().unwrap();
    assert_eq!(names(&disk), sets(&[&["new"]]));
    // If its first name never lasted, it may have none.
    let disk = SimDisk::new();
    disk.create("old", 0).unwrap();
    disk.rename("old", "new").unwrap();
    assert_eq!(names(&disk), sets(&[&[], &["old"], &["new"], &["new", "old"]]));
}

#[test]
fn a_file_that_replaces_another_leaves_one_of_the_two() {
    let disk = SimDisk::new();
    durable(&disk, "journal", b"before");
    let file = disk.create("tmp", 5).unwrap();
    file.write(b"after", 0).unwrap();
    file.datasync().unwrap();
    disk.rename("tmp", "journal").unwrap();
    let journals: BTreeSet<Vec<u8>> = disk.crash_all(1000).iter().map(|disk| contents(disk, "journal")).collect();
    assert_eq!(journals, BTreeSet::from([b"before".to_vec(), b"after".to_vec()]));
}

#[test]
fn an_unlinked_file_may_come_back() {
    let disk = SimDisk::new();
    durable(&disk, "a", b"x");
    disk.unlink("a").unwrap();
    assert!(disk.list().unwrap().is_empty());
    assert_eq!(names(&disk), sets(&[&[], &["a"]]));
    disk.sync().unwrap();
    assert_eq!(names(&disk), sets(&[&[]]));
}

#[test]
fn names_are_lost_each_by_itself() {
    let disk = SimDisk::new();
    disk.create("a", 0).unwrap();
    disk.create("b", 0).unwrap();
    assert_eq!(names(&disk), sets(&[&[], &["a"], &["b"], &["a", "b"]]));
}

#[test]
fn holes_and_sizes_may_be_lost() {
    let disk = SimDisk::new();
    let file = durable(&disk, "a", &[1; SECTOR]);
    assert!(file.punch(0, 10).unwrap());
    let want = [vec![1; SECTOR], [vec![0; 10], vec![1; SECTOR - 10]].concat()].map(|bytes| vec![("a".into(), bytes)]);
    assert_eq!(images(&disk), BTreeSet::from(want));
    let disk = SimDisk::new();
    let file = durable(&disk, "a", &[1; SECTOR]);
    file.truncate(1).unwrap();
    let lengths: BTreeSet<usize> = images(&disk).into_iter().map(|image| image[0].1.len()).collect();
    assert_eq!(lengths, BTreeSet::from([1, SECTOR]));
    file.truncate(SECTOR as u64).unwrap();
    assert_eq!(contents(&disk, "a")[..3], [1, 0, 0]);
    file.datasync().unwrap();
    assert_eq!(images(&disk).len(), 1);
}

#[test]
fn after_a_failed_sync_reads_show_what_is_not_there() {
    let disk = SimDisk::new();
    let file = durable(&disk, "a", b"old");
    file.write(b"new", 0).unwrap();
    disk.fail_at(0, Fault::FailedSync);
    assert_eq!(file.datasync().unwrap_err().status, NMC_ERR_IO);
    file.datasync().unwrap(); // the one that must not be trusted
    assert_eq!(contents(&disk, "a"), b"new");
    let left: BTreeSet<Vec<u8>> = disk.crash_all(1000).iter().map(|disk| contents(disk, "a")).collect();
    assert_eq!(left, BTreeSet::from([b"old".to_vec(), b"new".to_vec()]));
    // Written once more, it is written.
    file.write(b"new", 0).unwrap();
    file.datasync().unwrap();
    assert_eq!(images(&disk).len(), 1);
}

#[test]
fn after_a_failed_sync_of_the_directory_names_may_be_lost() {
    let disk = SimDisk::new();
    disk.create("a", 0).unwrap();
    disk.fail_at(0, Fault::FailedSync);
    assert_eq!(disk.sync().unwrap_err().status, NMC_ERR_IO);
    disk.sync().unwrap();
    assert_eq!(names(&disk), sets(&[&[], &["a"]]));
}

#[test]
fn a_killed_process_leaves_everything_and_what_it_did_not_sync_can_still_be_lost() {
    let disk = SimDisk::new();
    let file = durable(&disk, "a", b"old");
    file.write(b"new", 0).unwrap();
    disk.create("b", 0).unwrap();
    let after = disk.kill();
    file.write(b"xxx", 0).unwrap(); // by the dead: not seen
    assert_eq!(image(&after), [("a".into(), b"new".to_vec()), ("b".into(), vec![])]);
    assert_eq!(images(&after).len(), 4);
}

#[test]
fn the_nth_operation_fails_and_no_other() {
    let work = |disk: &SimDisk| -> Result<()> {
        let file = disk.create("a", 4)?;
        file.write(b"data", 0)?;
        file.datasync()?;
        disk.sync()?;
        let mut back = [0; 4];
        file.read(&mut back, 0)?;
        assert_eq!(&back, b"data");
        disk.list().map(drop)
    };
    let disk = SimDisk::new();
    work(&disk).unwrap();
    let total = disk.operations();
    assert_eq!((total, disk.failures()), (6, 0));
    for (fault, failing) in [
        (Fault::Eio, vec![0, 1, 2, 3, 4, 5]),
        (Fault::Enospc, vec![0, 1]),
        (Fault::Full, vec![0]),
        (Fault::FailedSync, vec![2, 3]),
        (Fault::Emfile, vec![0, 5]),
        (Fault::Efbig, vec![0, 1]),
    ] {
        for n in 0..total + 1 {
            let disk = SimDisk::new();
            disk.fail_at(n, fault);
            let outcome = work(&disk);
            assert_eq!(outcome.is_err(), failing.contains(&n), "{fault:?} at {n}");
            assert_eq!(disk.failures(), u64::from(outcome.is_err()));
            let status = match fault {
                Fault::Enospc | Fault::Full => NMC_ERR_NO_SPACE,
                Fault::Eio | Fault::FailedSync => NMC_ERR_IO,
                Fault::Emfile | Fault::Efbig => NMC_ERR_LIMIT,
            };
            assert!(outcome.is_ok() || outcome.is_err_and(|error| error.status == status));
        }
    }
}

#[test]
fn a_write_that_fails_has_written_a_part() {
    for (fault, status) in [(Fault::Eio, NMC_ERR_IO), (Fault::Enospc, NMC_ERR_NO_SPACE)] {
        let disk = SimDisk::new();
        let file = durable(&disk, "a", b"oldold");
        disk.fail_at(0, fault);
        assert_eq!(file.write(b"newnew", 0).unwrap_err().status, status);
        assert_eq!(contents(&disk, "a"), b"newold");
        assert_eq!(file.read(&mut [0; 7], 0).unwrap_err().status, NMC_ERR_CORRUPT);
    }
}

#[test]
fn images_by_chance_are_among_the_possible_and_reach_all_of_them() {
    let disk = SimDisk::new();
    let file = durable(&disk, "a", &[1; 2 * SECTOR]);
    file.write(&[2; 2 * SECTOR], 0).unwrap();
    disk.rename("a", "b").unwrap();
    disk.create("c", 0).unwrap();
    let (possible, mut rng) = (images(&disk), Random(1));
    let drawn: BTreeSet<Image> = (0..2000).map(|_| image(&disk.crash(&mut rng))).collect();
    assert_eq!(possible.len(), 3 * 2 * 4);
    assert_eq!(drawn, possible);
    assert_eq!(disk.crash_all(5).len(), 5, "a share of them");
    let again = |seed| (0..20).map(|_| image(&disk.crash(&mut Random(seed)))).collect::<Vec<_>>();
    assert_eq!(again(7), again(7));
}

#[test]
fn names_in_a_folder_need_its_own_sync_and_the_folder_that_of_its_directory() {
    let reach = |image: &SimDisk| {
        let folder = image.list().unwrap().into_iter().find(|listed| listed.folder).map(|listed| listed.name);
        folder.map(|name| (image.folder(&name).unwrap().list().unwrap().len(), name))
    };
    let all = |disk: &SimDisk| disk.crash_all(1000).iter().map(reach).collect::<BTreeSet<_>>();
    let some = |files: usize, name: &str| Some((files, name.to_owned()));
    let disk = SimDisk::new();
    let folder = disk.make_folder("old").unwrap();
    folder.create("file", 0).unwrap();
    assert_eq!(all(&disk), BTreeSet::from([None, some(0, "old"), some(1, "old")]));
    disk.sync().unwrap();
    assert_eq!(all(&disk), BTreeSet::from([some(0, "old"), some(1, "old")]));
    folder.sync().unwrap();
    assert_eq!(all(&disk), BTreeSet::from([some(1, "old")]));
    // It keeps what is in it, and has one name.
    disk.rename("old", "new").unwrap();
    assert_eq!(all(&disk), BTreeSet::from([some(1, "old"), some(1, "new")]));
    assert!(disk.remove_folder("new").is_err(), "there is something in it");
    folder.unlink("file").unwrap();
    disk.remove_folder("new").unwrap();
    assert!(disk.folder("new").is_err());
    disk.sync().unwrap();
    assert_eq!(all(&disk), BTreeSet::from([None]));
}

/// Seeds that once broke a promise are tried ever since, and must go on meaning the same.
#[test]
fn a_seed_means_the_same_workload_for_ever() {
    let mut random = Random(14);
    let mut below = |limit: u64| random.below(limit);
    assert_eq!([2, 34, 1000, 1 << 20, 1 << 31].map(&mut below), [1, 27, 207, 151_285, 320_260_965]);
    assert_eq!([0, 1, 1 << 32, 1 << 40].map(&mut below), [0, 0, 2_060_937_130, 700_972_103_023]);
}
