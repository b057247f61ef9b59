//! Whatever the system makes of any one request, or of all: every call moves all of its bytes, and none fails. With rings, with
//! plain calls, and where rings or their registered memory cannot be had.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use super::super::sim::Random;
use super::super::{BLOCK, Buffer, Disk, File, FixedBuffer, Options, Read, Readers, RealDisk};
use super::{Hitch, with};
use crate::base::error::Result;
use crate::base::log;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, LazyLock, Mutex};

/// Bytes of the file that is read and written.
const BYTES: usize = 800 << 10;
/// Bytes of each read of a client.
const PIECE: usize = 68 << 10;

const RING: Options = Options { direct: true, uring: true, depth: 8 };
const SHALLOW: Options = Options { direct: false, uring: true, depth: 2 };
const PLAIN: Options = Options { direct: true, uring: false, depth: 8 };
const BUFFERED: Options = Options { direct: false, uring: false, depth: 8 };
const KINDS: [(&str, Options); 4] = [("ring", RING), ("shallow", SHALLOW), ("plain", PLAIN), ("buffered", BUFFERED)];

/// Bytes of which no two sectors are the same. Tests read and write them often: most of it is copied.
fn bytes(seed: u64, count: usize) -> Vec<u8> {
    static SECTOR: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..512).scan(Random(512), |rng, _| u8::try_from(rng.below(256)).ok()).collect());
    let mut all = SECTOR.repeat(count.div_ceil(512));
    for (number, sector) in (0u64..).zip(all.chunks_mut(512)) {
        sector[..8].copy_from_slice(&(seed << 32 | number).to_le_bytes());
        sector[504..].copy_from_slice(&(seed << 32 | number).to_be_bytes());
    }
    all.truncate(count);
    all
}

/// Aligned memory with these bytes.
fn aligned(from: &[u8]) -> Buffer {
    let mut buffer = Buffer::new(from.len()).unwrap();
    buffer.copy_from_slice(from);
    buffer
}

/// Says where something else was read than was written.
fn check(what: &str, read: &[u8], model: &[u8], from: usize) -> std::result::Result<(), String> {
    let should = &model[from..from + read.len()];
    if read == should {
        return Ok(());
    }
    let at = read.iter().zip(should).position(|(is, should)| is != should).unwrap_or(0);
    Err(format!("{what}: byte {} is another", from + at))
}

/// Writes and reads in every form that there is. Gives the first call that failed, or what it found that it had not written.
fn work(disk: &dyn Disk, seed: u64) -> std::result::Result<(), String> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: crate::base::error::Error| format!("{what}: {error}")
    };
    let all = |result: Result<()>, what: &str| result.map_err(failed(what));
    let _ = disk.unlink("a");
    let file = disk.create("a", BYTES as u64).map_err(failed("create"))?;
    let mut model = bytes(seed, BYTES);
    all(file.write_aligned(&aligned(&model), 0), "write_aligned")?;
    // Not at a block.
    let odd = bytes(seed + 1, 30_001);
    all(file.write(&odd, 12_345), "write")?;
    model[12_345..][..odd.len()].copy_from_slice(&odd);
    // Several requests, one of which is made of several pieces.
    let pieces = [70 << 10, 4096, 8192, 80 << 10, 5000].map(|count| aligned(&bytes(seed + count as u64, count)));
    let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    all(file.vector_write(&slices, 64 << 10), "vector_write")?;
    let whole: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
    model[64 << 10..][..whole.len()].copy_from_slice(&whole);
    all(file.datasync(), "datasync")?;

    let mut long = Buffer::new(BYTES).unwrap();
    all(file.read_aligned(&mut long, 0), "read_aligned")?;
    check("read_aligned", &long, &model, 0)?;
    let mut odd = vec![0; 20_003];
    all(file.read(&mut odd, 60_001), "read")?;
    check("read", &odd, &model, 60_001)?;
    let mut parts = [70 << 10, 4096, 8192, 80 << 10, 5000].map(|count| Buffer::new(count).unwrap());
    let mut slices: Vec<IoSliceMut<'_>> = parts.iter_mut().map(|part| IoSliceMut::new(part)).collect();
    all(file.vector_read(&mut slices, 64 << 10), "vector_read")?;
    check("vector_read", &parts.iter().flat_map(|part| part.to_vec()).collect::<Vec<u8>>(), &model, 64 << 10)?;
    let places = [(0, 12_288), (400 << 10, 4096), (200 << 10, 70 << 10), (12_288, 4096), (4096, 5000), (700_001, 100)];
    let mut parts = places.map(|(_, count)| Buffer::new(count).unwrap());
    let mut reads: Vec<(u64, &mut [u8])> =
        places.iter().zip(&mut parts).map(|((at, _), part)| (*at as u64, &mut **part)).collect();
    all(file.batch_read(&mut reads), "batch_read")?;
    for ((at, _), part) in places.iter().zip(&parts) {
        check("batch_read", part, &model, *at)?;
    }
    all(file.truncate(BYTES as u64 - 5000), "truncate")?;
    match file.bytes().map_err(failed("bytes"))? {
        bytes if bytes == BYTES as u64 - 5000 => Ok(()),
        bytes => Err(format!("truncate: {bytes} bytes")),
    }
}

/// The same for a client, which reads many pieces together and looks at each as it comes.
fn read_many(readers: &Readers, file: &dyn File, model: &[u8], to: &mut [u8]) -> std::result::Result<(), String> {
    to.fill(0);
    let fd = file.descriptor().unwrap().as_raw_fd();
    let address = to.as_mut_ptr() as u64;
    let (count, bytes) = (to.len() / PIECE, u32::try_from(PIECE).unwrap());
    let read = |i: usize| {
        let (from, place) = (i * 7 % count * PIECE, i * PIECE);
        Read { fd, address: address + place as u64, bytes, offset: from as u64 }
    };
    let reads: Vec<Read> = (0..count).map(read).collect();
    let mut seen = Vec::new();
    super::sys::read(readers, &reads, &mut |i, came: &[u8]| seen.push((i, came.to_vec())))
        .map_err(|error| error.to_string())?;
    if seen.len() != count {
        return Err(format!("{} of {count} pieces came", seen.len()));
    }
    seen.into_iter()
        .try_for_each(|(i, came)| check("a client", &came, model, usize::try_from(reads[i].offset).unwrap()))
}

/// Runs `work` with the nth that may meet a hitch meeting it, for all n, or one of `share`, until there are no more; then with
/// all of them. Gives how often one was met.
fn for_all(
    hitch: Hitch,
    share: u64,
    mut work: impl FnMut() -> std::result::Result<(), String>,
) -> std::result::Result<u64, String> {
    let mut met = 0;
    for before in (0..).step_by(usize::try_from(share).unwrap()) {
        let (done, here) = with(hitch, before, 1, &mut work);
        done.map_err(|wrong| format!("{hitch:?} at {before}: {wrong}"))?;
        met += here;
        if here == 0 {
            break;
        }
    }
    // A signal for every call would never end.
    let is_signal = matches!(hitch, Hitch::Fails(libc::EINTR) | Hitch::Enter(libc::EINTR));
    let times = if is_signal { 3 } else { u64::MAX };
    let (done, here) = with(hitch, 0, times, &mut work);
    done.map_err(|wrong| format!("{hitch:?} always: {wrong}"))?;
    Ok(met + here)
}

/// What nobody may notice.
fn hitches() -> Vec<Hitch> {
    let codes = [libc::EINTR, libc::EAGAIN, libc::ECANCELED, libc::EINVAL, libc::EOPNOTSUPP];
    let mut all: Vec<Hitch> = codes.into_iter().map(Hitch::Fails).collect();
    all.extend([BLOCK, 5 * BLOCK, usize::MAX].map(Hitch::Short));
    all.push(Hitch::Full);
    all.extend([libc::EINTR, libc::EBUSY, libc::EAGAIN].map(Hitch::Enter));
    all
}

#[test]
fn signals_short_transfers_and_full_rings_pass_unnoticed_whenever_they_come() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, options) in KINDS {
        let disk = RealDisk::open(folder.path(), false, options).unwrap();
        let mut met = std::collections::BTreeMap::new();
        for hitch in hitches() {
            let here = for_all(hitch, 1, || work(&disk, 1));
            met.insert(format!("{hitch:?}"), here.unwrap_or_else(|wrong| panic!("{kind}, {wrong}")));
        }
        println!("{kind}: {met:?}");
        let of_rings = |name: &str| name != "Fails(4)" && !name.starts_with("Short");
        let expected = |name: &str| !of_rings(name) || options.uring && has_rings();
        assert!(met.iter().all(|(name, met)| (*met > 3) == expected(name)), "{kind}: {met:?}");
    }
}

/// Short by an odd number of bytes, as through the page cache.
#[test]
fn transfers_that_end_within_a_block_go_on_there() {
    let folder = tempfile::tempdir().unwrap();
    for options in [SHALLOW, BUFFERED] {
        let disk = RealDisk::open(folder.path(), false, options).unwrap();
        for less in [1, 777, 4097] {
            assert!(for_all(Hitch::Short(less), 5, || work(&disk, 1)).unwrap_or_else(|wrong| panic!("{wrong}")) > 3);
        }
    }
}

#[test]
fn clients_notice_none_of_it_either() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, options) in KINDS {
        let disk = RealDisk::open(folder.path(), false, options).unwrap();
        let model = bytes(5, 11 * PIECE);
        let file = disk.create(kind, 0).unwrap();
        file.write(&model, 0).unwrap();
        let mut to = Buffer::new(model.len()).unwrap();
        // The kernel's threads hand over what is long, on a disk that does requests while they are handed over.
        let readers = Readers::new(options);
        for hitch in hitches() {
            for_all(hitch, 1, || read_many(&readers, &*file, &model, &mut to))
                .unwrap_or_else(|wrong| panic!("{kind}, {wrong}"));
        }
    }
}

/// The control: whoever takes a short transfer for a whole one is found out.
#[test]
fn a_short_transfer_that_is_taken_for_a_whole_one_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, options) in KINDS {
        let disk = RealDisk::open(folder.path(), false, options).unwrap();
        let (mut unnoticed, mut met) = (Vec::new(), 0);
        for before in 0.. {
            let (done, here) = with(Hitch::Unseen(BLOCK), before, 1, || work(&disk, 1));
            if here == 0 {
                break;
            }
            met += 1;
            unnoticed.extend(done.is_ok().then_some(before));
        }
        assert!(met > 10, "{kind}: {met}");
        assert!(unnoticed.is_empty(), "{kind}: {unnoticed:?} of {met}");
    }
}

// ---- without rings ---------------------------------------------------------------------------------------------------

fn has_rings() -> bool {
    let file = tempfile::tempfile().unwrap();
    file.set_len(2 * PIECE as u64).unwrap();
    let readers = Readers::new(RING);
    let mut to = Buffer::new(2 * PIECE).unwrap();
    let (address, bytes, fd) = (to.as_mut_ptr() as u64, u32::try_from(PIECE).unwrap(), file.as_raw_fd());
    let read = |at: u64| Read { fd, address: address + at, bytes, offset: at };
    super::sys::read(&readers, &[read(PIECE as u64), read(0)], &mut |_, _| ()).unwrap();
    !readers.rings().is_empty()
}

/// Runs a part of [`child`] in a process of its own: nobody else logs there, and no call comes back to whoever refused it.
fn in_a_process(part: &str) {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tier::io::hitch::tests::child", "--ignored", "--nocapture"])
        .env("NMC_TEST_PART", part)
        .output()
        .unwrap();
    assert!(child.status.success(), "{part}: {}", String::from_utf8_lossy(&child.stderr));
}

#[test]
fn where_no_ring_can_be_made_plain_calls_do_the_same_and_a_line_says_so() {
    in_a_process("setup");
}

#[test]
fn where_no_memory_can_be_registered_rings_read_to_it_like_to_any_other_and_a_line_says_so() {
    in_a_process("register");
}

/// The control: where nothing is refused there are rings that know their memory, and no line.
#[test]
fn where_nothing_is_refused_nothing_is_said() {
    in_a_process("neither");
}

#[test]
#[ignore = "runs in a process of its own, for the tests above"]
fn child() {
    let part = std::env::var("NMC_TEST_PART").unwrap_or_default();
    if !has_rings() {
        eprintln!("skipped: there is no io_uring here");
        return;
    }
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let said = Arc::clone(&lines);
    let sink = move |_, text: &str| said.lock().unwrap().push(text.to_owned());
    assert!(log::set_sink(Some(Box::new(sink)), log::DEBUG));
    let refused = match part.as_str() {
        "setup" => super::sys::refuse(libc::SYS_io_uring_setup, libc::EPERM),
        // As if no memory may be locked (RLIMIT_MEMLOCK 0).
        "register" => super::sys::refuse(libc::SYS_io_uring_register, libc::ENOMEM),
        _ => Ok(()),
    };
    if let Err(cause) = refused {
        eprintln!("skipped: no calls can be refused here: {cause}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(folder.path(), false, RING).unwrap();
    (0..3).for_each(|seed| work(&disk, seed).unwrap());
    let model = bytes(5, 11 * PIECE);
    let file = disk.create("b", 0).unwrap();
    file.write(&model, 0).unwrap();
    let readers = Readers::new(RING);
    let memory = Arc::new(FixedBuffer::new(model.len()).unwrap());
    readers.fix(&memory);
    (0..3).for_each(|_| super::sys::with_fixed(&memory, |to| read_many(&readers, &*file, &model, to)).unwrap());
    let lines = lines.lock().unwrap();
    let count = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
    // One for the files of the directory and one for the readers.
    let setup = (count("io_uring_setup: Operation not permitted"), count("io_uring_register: "), readers.rings());
    match part.as_str() {
        "setup" => assert_eq!(setup, (2, 0, vec![]), "{lines:?}"),
        "register" => assert_eq!(setup, (0, 1, vec![false]), "{lines:?}"),
        _ => assert_eq!(setup, (0, 0, vec![true]), "{lines:?}"),
    }
    assert!(part != "setup" || lines.iter().any(|line| line.ends_with("files are read by plain system calls")));
}
