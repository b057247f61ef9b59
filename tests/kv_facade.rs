//! `Kv`, the KV cache as a whole, one promise at a time: where its groups lie, what paged and virtual caches have each, and
//! copies of blocks. The models (`kv_model`, `kv_virtual`, `kv_transfer`) have the sequences under random calls.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test may")]
#![allow(unsafe_code, reason = "a test that gives the cache its memory")]

mod common;
#[path = "common/kv.rs"]
mod kv;

use nanomc::base::status::*;
use nanomc::cuda::GivenStream;
use nanomc::kv::hash::Algo;
use nanomc::kv::place::geometry::{Dtype, Kind, Order, Shape, Side, Sides};
use nanomc::kv::place::tables::{Format, Row};
use nanomc::kv::place::{Move, Region};
use nanomc::kv::{
    Copies, GROUPS_ALL, GroupCopy, GroupReport, GroupSpec, GroupStats, Kv, MappedSpec, Open, OwnGroup, OwnKind,
    SeqCopy, Spec,
};

const BLOCKS: u32 = 8;
const SIZE: u32 = 4;

/// Two layers of K and V, each with two elements of four bytes a token: 128 bytes a block.
const SHAPE: Shape = Shape {
    kind: Kind::Full,
    dtype: Dtype::Fp32,
    layers: 2,
    kv_heads: 1,
    head_dim: 2,
    tokens_per_block: 0,
    total_blocks: 0,
    order: Order::LayerMajor,
    sides: Sides::Separate,
};
const BLOCK_BYTES: u64 = 128;

fn group() -> GroupSpec {
    GroupSpec { shape: SHAPE, own: None, memory: None }
}

/// A group whose window is a block of its own blocks.
fn windowed() -> GroupSpec {
    GroupSpec { own: Some(OwnGroup { blocks: 3, kind: OwnKind::Window(SIZE) }), ..group() }
}

fn spec(groups: Vec<GroupSpec>) -> Spec {
    Spec { config: kv::config(BLOCKS, SIZE, Algo::Blake3), capacity_blocks: BLOCKS, groups, mapped: None }
}

fn region(memory: &mut [u32]) -> Region {
    // SAFETY: the test touches it only between calls, and has it longer than the cache.
    unsafe { Region::new(memory.as_mut_ptr() as u64, size_of_val(memory) as u64) }
}

fn block_copy(group: u32, from: i32, to: i32) -> SeqCopy {
    SeqCopy::Block(GroupCopy { group, from, to })
}

fn open(kv: &Kv, id: u64, tokens: u32) {
    kv.open(id, &Open { n_tokens: tokens, ..Open::default() }).unwrap().unwrap();
}

/// What a spec is refused with.
fn refused(spec: &Spec) -> (nmc_status_t, String) {
    let error = Kv::new(spec).err().expect("refused");
    (error.status, error.message)
}

#[test]
fn groups_with_blocks_of_their_own_are_known_by_their_number_among_all() {
    let kv = Kv::new(&spec(vec![windowed(), group(), windowed()])).unwrap();
    assert_eq!([0, 1].map(|own| kv.group_of(own)), [0, 2]);
    open(&kv, 1, 2 * SIZE);
    let GroupReport { has_own_blocks, blocks, block_bytes, heap_offset } = kv.group_report(2).unwrap();
    assert_eq!((has_own_blocks, block_bytes, heap_offset), (true, BLOCK_BYTES, None));
    assert_eq!(blocks, GroupStats { total: 3, free: 1, idle: 0, used: 2, evicted: 0 });
    assert!(!kv.group_report(1).unwrap().has_own_blocks);
    let short = kv.append(1, 4 * SIZE, None, None).unwrap().unwrap_err();
    assert_eq!(kv.group_of(short.own_group), 0, "the first that has too few");
    kv.audit().unwrap();
}

#[test]
fn a_group_needs_as_much_memory_as_the_spec_says() {
    let whole = spec(vec![group(), windowed()]);
    assert_eq!([0, 1].map(|group| whole.group_bytes(group).unwrap()), [8 * BLOCK_BYTES, 3 * BLOCK_BYTES]);
    assert!(whole.group_bytes(2).is_err());
    assert_eq!(whole.heap_bytes(4096).unwrap(), 4096 + 3 * BLOCK_BYTES, "groups begin at pages");
    assert!(whole.heap_bytes(4095).is_err());
    let mut memory = [0u32; 256];
    let given = |bytes: usize, memory: &mut [u32]| {
        spec(vec![GroupSpec { memory: Some(region(&mut memory[..bytes / 4])), ..group() }])
    };
    assert!(Kv::new(&given(1024, &mut memory)).is_ok());
    let (status, message) = refused(&given(1020, &mut memory));
    assert_eq!(status, NMC_ERR_INVALID_ARG);
    assert!(message.contains("group 0") && message.contains("1020 bytes") && message.contains("1024"), "{message}");
}

#[test]
fn groups_lie_in_the_heap_where_the_cache_says() {
    let mut config = common::config(std::path::Path::new("/"), None, 1);
    (config.dir, config.heap_bytes) = (None, 1 << 20);
    let world = nanomc::world::World::join(config).unwrap();
    let whole = spec(vec![group(), windowed()]);
    let kv = Kv::in_heap(&whole, &world, 8192).unwrap();
    let offsets = [0, 1].map(|group| kv.group_report(group).unwrap().heap_offset.unwrap());
    assert_eq!(offsets, [8192, 12288]);
    open(&kv, 1, 1);
    let start = world.ptr(0, 8192, 1).unwrap();
    assert_eq!(kv.view(1, 0, 0, Side::K).unwrap().view.offset, start);
    assert!(Kv::in_heap(&whole, &world, 1 << 20).is_err(), "behind the end");
}

#[test]
fn blocks_are_copied_where_they_lie_and_into_contiguous_memory() {
    let mut memory: Vec<u32> = (0..256).collect();
    let kv = Kv::new(&spec(vec![GroupSpec { memory: Some(region(&mut memory)), ..group() }])).unwrap();
    let of_block = |block: u32| -> Vec<u32> {
        // K and V of a layer are 64 words each, and of a block 8 of them.
        let tensors = [0, 128, 64, 192].map(|tensor| tensor + block * 8);
        tensors.into_iter().flat_map(|first| first..first + 8).collect()
    };
    let mut packed = [0; 64];
    kv.gather(GROUPS_ALL, &[5, 2], &region(&mut packed), GivenStream::NULL).unwrap();
    assert_eq!(packed.to_vec(), [of_block(5), of_block(2)].concat());
    kv.scatter(0, &[7], &region(&mut packed), GivenStream::NULL).unwrap();
    kv.copy_blocks(std::iter::once(block_copy(GROUPS_ALL, 2, 6)), GivenStream::NULL).unwrap();
    let mut back = [0; 64];
    kv.gather(0, &[7, 6], &region(&mut back), GivenStream::NULL).unwrap();
    assert_eq!(back, packed);
    let status = |done: nanomc::base::error::Result<()>| done.unwrap_err().status;
    assert_eq!(status(kv.gather(0, &[8], &region(&mut packed), GivenStream::NULL)), NMC_ERR_INVALID_ARG);
    assert_eq!(status(kv.gather(0, &[0, 1, 2], &region(&mut packed), GivenStream::NULL)), NMC_ERR_TOO_SMALL);
    assert_eq!(status(kv.scatter(0, &[1, 1], &region(&mut packed), GivenStream::NULL)), NMC_ERR_INVALID_ARG);
    let two = [(1, 2), (2, 3)].map(|(from, to)| block_copy(0, from, to));
    assert_eq!(status(kv.copy_blocks(two.into_iter(), GivenStream::NULL)), NMC_ERR_INVALID_ARG);
    let own = region(&mut memory[..32]);
    assert_eq!(status(kv.gather(0, &[0], &own, GivenStream::NULL)), NMC_ERR_INVALID_ARG, "it overlaps the cache");
}

#[test]
fn a_virtual_cache_has_addresses_and_no_tables_and_a_paged_one_the_reverse() {
    let shape = Shape { head_dim: 128, ..SHAPE };
    let paged = Spec { ..spec(vec![GroupSpec { shape, ..group() }]) };
    let mapped = Some(MappedSpec { max_sequence_tokens: 0, device: None });
    let mut whole = Spec { mapped, ..paged.clone() };
    assert_eq!(whole.page_tokens().unwrap(), 8);
    assert!(refused(&whole).1.contains("must be a multiple of 8"));
    whole.config.tokens_per_block = 8;
    let [paged, mapped] = [&paged, &whole].map(|spec| Kv::new(spec).unwrap());
    let table = |kv: &Kv| {
        let (mut rows, mut out) = ([Row::default()], [0; 8]);
        kv.write_table(&[1], 0, Format::Dense, 8, -1, &mut rows, &mut out).map_err(|error| error.status)
    };
    for kv in [&paged, &mapped] {
        open(kv, 1, 12);
        kv.fork(1, 2).unwrap().unwrap();
        kv.audit().unwrap();
    }
    assert_eq!((table(&paged), table(&mapped)), (Ok(8), Err(NMC_ERR_UNSUPPORTED)));
    assert_eq!(mapped.take_copies(2, 3).unwrap(), Err(4), "K and V of two layers");
    let Copies::Bytes(moves) = mapped.take_copies(2, 9).unwrap().unwrap() else { panic!("copies of blocks") };
    assert_eq!(moves.iter().map(|one| (one.group, one.bytes)).collect::<Vec<_>>(), [(0, 4096); 4]);
    assert_eq!(paged.take_copies(2, 9).unwrap().unwrap(), Copies::Blocks(Vec::new()), "three full blocks are shared");
    // SAFETY: pages that the cache has just said are mapped.
    let regions = |one: &Move| unsafe { [one.from, one.to].map(|address| Region::new(address, one.bytes)) };
    let bytes = |one: &Move| {
        let [from, to] = regions(one);
        SeqCopy::Bytes { from, to }
    };
    // SAFETY: as above.
    let words = |address: u64| unsafe { std::slice::from_raw_parts_mut(address as *mut u32, 1024) };
    moves.iter().zip(1..).for_each(|(one, value)| words(one.from).fill(value));
    mapped.copy_blocks(moves.iter().map(bytes), GivenStream::NULL).unwrap();
    assert!(moves.iter().zip(1..).all(|(one, value)| words(one.to).iter().all(|word| *word == value)));
    let status = |done: nanomc::base::error::Result<()>| done.unwrap_err().status;
    assert_eq!(status(paged.copy_blocks(moves.iter().map(bytes), GivenStream::NULL)), NMC_ERR_UNSUPPORTED);
    assert_eq!(
        status(mapped.copy_blocks(std::iter::once(block_copy(0, 1, 2)), GivenStream::NULL)),
        NMC_ERR_UNSUPPORTED
    );
    // SAFETY: it is refused, and never used.
    let stream = unsafe { GivenStream::new(std::ptr::dangling_mut()) };
    assert_eq!(status(mapped.copy_blocks(moves.iter().map(bytes), stream)), NMC_ERR_INVALID_ARG, "it is host memory");
    assert_eq!((paged.mapped_pages().unwrap(), mapped.mapped_pages().unwrap()), (0, 16));
    assert!(mapped.view(1, 0, 0, Side::K).unwrap().contiguous && !paged.view(1, 0, 0, Side::K).unwrap().contiguous);
    assert_eq!(mapped.resize(9).unwrap_err().status, NMC_ERR_UNSUPPORTED);
    assert_eq!(paged.resize(9).unwrap_err().status, NMC_ERR_INVALID_ARG);
    paged.resize(7).unwrap();
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let mapped = Some(MappedSpec { max_sequence_tokens: 64, device: None });
    let mut memory = [0; 256];
    let mut config = kv::config(BLOCKS, SIZE, Algo::Blake3);
    config.window = 16;
    for (spec, why) in [
        (Spec { capacity_blocks: 7, ..spec(Vec::new()) }, "capacity_blocks 7"),
        (Spec { mapped, capacity_blocks: 9, ..spec(vec![group()]) }, "not resized"),
        (Spec { mapped, ..spec(Vec::new()) }, "at least one group"),
        (Spec { mapped, ..spec(vec![group(), windowed()]) }, "group 1 has blocks of its own"),
        (Spec { mapped, ..spec(vec![GroupSpec { memory: Some(region(&mut memory)), ..group() }]) }, "has memory"),
        (Spec { mapped, config, ..spec(vec![group()]) }, "sliding window"),
        (spec(vec![group(), GroupSpec { shape: Shape { layers: 0, ..SHAPE }, ..group() }]), "group 1: layers"),
    ] {
        let (_, message) = refused(&spec);
        assert!(message.contains(why), "{message}");
    }
    assert!(Spec { mapped, ..spec(vec![group()]) }.heap_bytes(0).is_err());
    assert!(spec(vec![group()]).page_tokens().is_err());
}

#[test]
fn ids_that_the_cache_chooses_are_those_of_nobody() {
    let kv = Kv::new(&spec(Vec::new())).unwrap();
    let named = |name: &'static [u8]| Open { name: Some(name), ..Open::default() };
    let (id, opened) = kv.open_auto(&named(b"first")).unwrap();
    opened.unwrap();
    assert_eq!(kv.find(b"first").unwrap(), id);
    assert_eq!(kv.open_auto(&named(b"first")).unwrap_err().status, NMC_ERR_EXISTS, "the name");
    for own in id + 1..id + 9 {
        open(&kv, own, 0);
    }
    let (next, opened) = kv.open_auto(&Open::default()).unwrap();
    opened.unwrap();
    assert!(next > id + 8, "{next}: the ids before it are the program's");
    for taken in id..=next {
        assert_eq!(kv.open(taken, &Open::default()).unwrap_err().status, NMC_ERR_EXISTS);
    }
    kv.close(next, false).unwrap();
    assert_ne!(kv.open_auto(&Open::default()).unwrap().0, next, "a chosen id never comes again");
}
