//! Memory placed by mapping keeps the same promises on the host and on a device. Without a device the second half is
//! skipped with the reason; on a machine with one, run the program with `--nocapture` to see that it was not.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test reports by failing")]
#![allow(unsafe_code, reason = "a kernel copies by address")]

use nanomc::alloc::pages::{PageCounts, PageId};
use nanomc::base::status::{
    NMC_ERR_EXISTS, NMC_ERR_INVALID_ARG, NMC_ERR_LIMIT, NMC_ERR_NO_MEMORY, NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND,
};
use nanomc::cuda::{CudaPages, Device, Stream, Stretch};
use nanomc::mem::ranges::DEFAULT_PAGE_BYTES;
use nanomc::mem::{HostPages, PagePool, PageRange};
use std::sync::Arc;
use std::time::Instant;

/// The device, or the reason why there is none.
fn device() -> Result<Arc<Device>, String> {
    nanomc::cuda::require().and_then(|()| Device::open(-1)).map_err(|e| e.message)
}

fn host(pages: u32) -> PagePool {
    PagePool::Host(HostPages::new(c"nmc-test-ranges", DEFAULT_PAGE_BYTES, pages).unwrap())
}

/// A pool of each kind that this machine has.
fn pools(pages: u32) -> Vec<PagePool> {
    let mut all = vec![host(pages)];
    match device() {
        Ok(device) => all.push(PagePool::Cuda(CudaPages::new(&device, 0, pages).unwrap())),
        Err(reason) => eprintln!("skipped on a device: {reason}"),
    }
    all
}

fn bytes_at(range: &PageRange, offset: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    range.read(offset, &mut bytes).unwrap();
    bytes
}

/// Bytes that differ from place to place and from seed to seed.
fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let word = |n: usize| (n as u64 ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..bytes.div_ceil(8)).flat_map(word).take(bytes).collect()
}

#[test]
fn growing_keeps_the_address_and_the_data() {
    for pool in pools(12) {
        let page = pool.page_bytes();
        let mut range = pool.reserve(12 * page).unwrap();
        let base = range.base();
        assert_eq!(pool.counts(), PageCounts { total: 12, used: 0, idle: 0 }, "reserving takes no memory");
        for index in 0..12u32 {
            range.grow(index, 1).unwrap();
            range.write(u64::from(index) * page, &pattern(1000, u64::from(index))).unwrap();
            assert_eq!(range.base(), base);
            for earlier in 0..=index {
                let found = bytes_at(&range, u64::from(earlier) * page, 1000);
                assert_eq!(found, pattern(1000, u64::from(earlier)), "{pool:?}");
            }
        }
        // One copy over all borders.
        let all = pattern(usize::try_from(range.bytes()).unwrap(), 77);
        range.write(0, &all).unwrap();
        assert!(bytes_at(&range, 0, all.len()) == all, "{pool:?}");
    }
}

#[test]
fn a_page_in_two_ranges_is_the_same_memory() {
    for pool in pools(4) {
        let page = pool.page_bytes();
        let (mut one, mut two) = (pool.reserve(3 * page).unwrap(), pool.reserve(3 * page).unwrap());
        one.grow(0, 2).unwrap();
        let shared = [one.slots().get(1).unwrap(), one.slots().get(0).unwrap()];
        two.map(1, &shared).unwrap();
        assert_eq!(pool.holders(shared[0]), 2);
        one.write(page - 3, b"shared").unwrap();
        assert_eq!(bytes_at(&two, page, 3), b"red");
        assert_eq!(bytes_at(&two, 3 * page - 3, 3), b"sha");
        two.write(page, b"ROD").unwrap();
        assert_eq!(bytes_at(&one, page - 3, 6), b"shaROD");
        drop(one);
        assert_eq!(pool.counts().used, 2, "a page lives as long as one range has it");
        assert_eq!(bytes_at(&two, page, 3), b"ROD");
        // Others cannot get it meanwhile.
        let mut other = pool.reserve(3 * page).unwrap();
        assert_eq!(other.grow(0, 3).unwrap_err().status, NMC_ERR_NO_SPACE);
        other.grow(0, 2).unwrap();
        other.zero(0, 2).unwrap();
        assert_eq!(bytes_at(&two, page, 3), b"ROD");
        assert_eq!((two.unmap(0, 3), two.unmap(0, 3)), (Ok(2), Ok(0)));
        drop(other);
        assert_eq!(pool.counts(), PageCounts { total: 4, used: 0, idle: 4 });
    }
}

#[test]
fn what_is_not_mapped_is_refused_and_changes_nothing() {
    for pool in pools(4) {
        let page = pool.page_bytes();
        let mut range = pool.reserve(4 * page).unwrap();
        range.grow(1, 2).unwrap();
        let held = range.slots().get(1).unwrap();
        assert_eq!(range.read(0, &mut [0]).unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(range.write(page - 1, b"ab").unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(range.write(3 * page - 1, b"ab").unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(range.write(4 * page - 1, b"ab").unwrap_err().status, NMC_ERR_INVALID_ARG);
        assert_eq!(range.zero(0, 4).unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(range.map(2, &[held]).unwrap_err().status, NMC_ERR_EXISTS);
        assert_eq!(range.map(4, &[held]).unwrap_err().status, NMC_ERR_INVALID_ARG);
        assert_eq!(range.map(0, &[PageId(3)]).unwrap_err().status, NMC_ERR_NOT_FOUND);
        assert_eq!(range.unmap(3, 2).unwrap_err().status, NMC_ERR_INVALID_ARG);
        assert_eq!((pool.holders(held), range.slots().mapped()), (1, 2));
        assert_eq!(range.map(0, &[]), Ok(()));
        assert_eq!(range.zero(1, 2), Ok(()));
    }
}

#[test]
fn ten_thousand_mappings_leak_nothing() {
    for pool in pools(8) {
        pool.prepare(8).unwrap();
        let mut range = pool.reserve(8 * pool.page_bytes()).unwrap();
        for round in 0..10_000u32 {
            let (first, count) = (round % 6, 1 + round % 3);
            range.grow(first, count).unwrap();
            assert_eq!(range.unmap(first, count), Ok(count));
        }
        assert_eq!(pool.counts(), PageCounts { total: 8, used: 0, idle: 8 });
        range.grow(0, 8).unwrap();
        drop(range);
        assert_eq!(pool.counts().used, 0);
        for _ in 0..50 {
            drop(pool.reserve(64 << 30).unwrap());
        }
    }
}

#[test]
fn a_page_that_the_device_has_no_memory_for_is_a_status() {
    let device = match device() {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let page = (device.facts().total_bytes * 2).next_multiple_of(1 << 30);
    let pool = CudaPages::new(&device, page, 2).unwrap();
    let error = pool.take().unwrap_err();
    assert_eq!(error.status, NMC_ERR_NO_MEMORY, "{error}");
    assert_eq!(pool.prepare(1).unwrap_err().status, NMC_ERR_NO_MEMORY);
    assert_eq!(pool.counts(), PageCounts { total: 2, used: 0, idle: 0 });
    assert_eq!(CudaPages::new(&device, 4096, 2).unwrap_err().status, NMC_ERR_INVALID_ARG);
    assert_eq!(CudaPages::new(&device, 0, 0).unwrap_err().status, NMC_ERR_INVALID_ARG);
    let pool = CudaPages::new(&device, 0, 2).unwrap();
    assert_eq!(pool.reserve(0).unwrap_err().status, NMC_ERR_INVALID_ARG);
    assert_eq!(pool.reserve(u64::MAX).unwrap_err().status, NMC_ERR_INVALID_ARG);
}

#[test]
fn a_kernel_sees_one_contiguous_piece() {
    let device = match device() {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let pool = PagePool::Cuda(CudaPages::new(&device, 0, 8).unwrap());
    let page = pool.page_bytes();
    let (mut from, mut to) = (pool.reserve(8 * page).unwrap(), pool.reserve(8 * page).unwrap());
    from.grow(2, 4).unwrap();
    // Pages in no order, so that neighbours in the range are none in memory.
    let others: Vec<PageId> = (0..4).map(|_| pool.take().unwrap()).collect();
    to.map(1, &[others[3], others[0], others[2], others[1]]).unwrap();
    others.iter().for_each(|page| pool.release(*page).unwrap());
    let bytes = pattern(usize::try_from(4 * page).unwrap(), 5);
    from.write(2 * page, &bytes).unwrap();
    to.zero(1, 4).unwrap();
    let stream = Stream::new(&device).unwrap();
    // Pieces that begin and end inside of pages.
    let piece = page / 2 + page / 8;
    let mut at = 0;
    while at < 4 * page {
        let size = piece.min(4 * page - at);
        let stretches: Vec<Stretch> = [(at, size / 2), (at + size / 2, size - size / 2)]
            .map(|(at, bytes)| Stretch { dst: to.base() + page + at, src: from.base() + 2 * page + at, bytes })
            .to_vec();
        // SAFETY: pieces of both ranges, which stay mapped until the stream is done.
        unsafe { device.kernels().unwrap().store_copy(stream.raw(), &stretches, true).unwrap() };
        at += size;
    }
    stream.synchronize().unwrap();
    assert!(bytes_at(&to, page, bytes.len()) == bytes);
    // Growing at the end does not disturb what a kernel reads.
    assert_eq!(from.unmap(3, 1), Ok(1));
    to.grow(5, 1).unwrap();
    assert!(bytes_at(&to, page, bytes.len()) == bytes);
}

/// Not a test of its own: maps so many pages apart from each other that the kernel's table of mappings is full.
#[test]
fn child() {
    let Ok(case) = std::env::var("NMC_CASE") else { return };
    // A page takes two mappings, but at the beginning of the range one: at the end there is room for none, or for one.
    let first: u32 = case.parse().unwrap();
    let places = 70_000;
    let pool = HostPages::new(c"nmc-test-limit", 4096, 4).unwrap();
    let mut range = pool.reserve(2 * places * 4096).unwrap();
    let page = pool.take().unwrap();
    let mut mapped = 0;
    let refused = (0..u32::try_from(places).unwrap()).find_map(|n| {
        let outcome = range.map(2 * n + first, &[page]).err();
        mapped += u32::from(outcome.is_none());
        outcome
    });
    let Some(error) = refused else {
        println!("no limit");
        return;
    };
    assert_eq!(error.status, NMC_ERR_LIMIT, "{error}");
    assert!(error.message.contains("vm.max_map_count"), "{error}");
    assert_eq!((pool.holders(page), range.slots().mapped()), (mapped + 1, mapped));
    range.write(u64::from(first) * 4096, b"still there").unwrap();
    assert_eq!(range.unmap(0, u32::try_from(2 * places).unwrap()), Ok(mapped));
    range.map(1, &[page]).unwrap();
    let mut found = [0; 11];
    range.read(4096, &mut found).unwrap();
    assert_eq!(&found, b"still there");
    drop(range);
    assert_eq!(pool.holders(page), 1);
    println!("refused after {mapped}");
}

#[test]
fn too_many_mappings_are_a_status() {
    for case in ["0", "1"] {
        let out = std::process::Command::new(std::env::current_exe().expect("exe"))
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env("NMC_CASE", case)
            .output()
            .expect("child");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
        if text.contains("no limit") {
            eprintln!("skipped: vm.max_map_count is above 140,000 here");
        } else {
            assert!(text.contains("refused after"), "{text}");
        }
    }
}

/// `cargo test --release --test ranges -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn how_long_mapping_takes() {
    for pool in pools(256) {
        let kind = if matches!(pool, PagePool::Host(_)) { "host" } else { "cuda" };
        let per_page = |begin: Instant| begin.elapsed().as_secs_f64() * 1e6 / 256.0;
        let begin = Instant::now();
        let mut range = pool.reserve(256 * pool.page_bytes()).unwrap();
        println!("{kind}: reserve {:.1} us", begin.elapsed().as_secs_f64() * 1e6);
        let begin = Instant::now();
        pool.prepare(256).unwrap();
        println!("{kind}: memory for a page {:.2} us", per_page(begin));
        for batch in [1, 8, 64] {
            let (mut map, mut unmap) = (f64::MAX, f64::MAX);
            for _ in 0..5 {
                let begin = Instant::now();
                for first in (0..256).step_by(batch as usize) {
                    range.grow(first, batch).unwrap();
                }
                map = map.min(per_page(begin));
                let begin = Instant::now();
                for first in (0..256).step_by(batch as usize) {
                    range.unmap(first, batch).unwrap();
                }
                unmap = unmap.min(per_page(begin));
            }
            println!("{kind}: {batch} at a time: map {map:.2} us, unmap {unmap:.2} us a page");
        }
    }
}
