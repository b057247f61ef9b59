//! What was written reads back the same, and damage is told: round trips at all edges, every single-bit flip, and random
//! damage of all kinds, with the sums left as they are and with sums made to fit.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use super::fields::{put, seal};
use super::journal::replay;
use super::*;
use crate::base::crc;
use crate::base::random::Random;
use crate::base::status::{NMC_ERR_CORRUPT, NMC_ERR_INVALID_ARG, NMC_ERR_VERSION};

const TIER: u64 = 0x1234_5678_9abc_def0;

impl Random {
    fn space(&mut self) -> Space {
        Space { number: u32_of(self.word() % u64::from(MAX_SPACE)), generation: u32_of(self.word() >> 32) }
    }

    /// 0, the last that is possible, or anything between.
    fn below_limit(&mut self, limit: u64) -> u64 {
        match self.below(4) {
            0 => 0,
            1 => limit - 1,
            _ => self.word() % limit,
        }
    }
}

fn u32_of(word: u64) -> u32 {
    u32::try_from(word).unwrap()
}

fn head(random: &mut Random) -> Head {
    let secret = random.bytes(32).try_into().unwrap();
    Head { tier_id: random.word(), secret, backend: u32_of(random.word() >> 32), created: random.word() }
}

fn record<'a>(random: &mut Random, key: &'a [u8], metadata: &'a [u8], value_bytes: u64) -> Record<'a> {
    Record {
        space: random.space(),
        key,
        metadata,
        value_bytes,
        epoch: random.below_limit(MAX_EPOCH),
        store_id: random.word(),
        rank: u32_of(random.word() >> 32),
        retain: random.word().to_le_bytes()[0],
        priority: random.word().to_le_bytes()[0],
        put: random.word(),
    }
}

fn sums(value: &[u8]) -> Vec<u32> {
    value.chunks(GRANULE).map(crc::crc32c).collect()
}

/// A whole record as a writer makes it, in a buffer with rubbish in it.
fn written(record: &Record<'_>, value: &[u8]) -> Vec<u8> {
    let shape = record.shape();
    let mut bytes = vec![0xee; usize::try_from(shape.blocks).unwrap() * BLOCK];
    let value_at = usize::try_from(shape.value_at).unwrap();
    bytes[value_at..].fill(0);
    bytes[value_at..value_at + value.len()].copy_from_slice(value);
    record.encode(&sums(value), &mut bytes[..shape.header_bytes()]).unwrap();
    bytes
}

/// The value of a record, if every sum is right.
fn value_of<'a>(header: &Header<'_>, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let at = usize::try_from(header.shape().value_at).unwrap();
    let value = bytes.get(at..)?.get(..usize::try_from(header.record.value_bytes).ok()?)?;
    let right = |(granule, part): (u32, &[u8])| header.sum(granule) == Some(crc::crc32c(part));
    (0..).zip(value.chunks(GRANULE)).all(right).then_some(value)
}

/// Records of a bucket, one behind the other with a gap now and then, and the blocks they take.
fn items<'a>(random: &mut Random, keys: &'a [Vec<u8>]) -> (Vec<Item<'a>>, u64) {
    let (mut list, mut block) = (Vec::new(), 0);
    for key in keys {
        let (space, value_bytes) = (random.space(), random.word() % (1 << 20));
        block += random.below_limit(3);
        list.push(Item {
            block,
            space,
            fingerprint: fingerprint(&[7; 32], space, key),
            epoch: random.below_limit(MAX_EPOCH),
            store_id: random.word(),
            value_bytes,
            put: random.word(),
            key,
        });
        block += Shape::of(key.len(), value_bytes).blocks;
    }
    (list, block)
}

fn keys(random: &mut Random, count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|number| {
            let len = [1, MAX_KEY, 1 + random.below(60), 1 + random.below(MAX_KEY)][number % 4];
            random.bytes(len)
        })
        .collect()
}

/// What a bucket's file says, read as recovery does; the list's items are copied out.
fn read_footer(footer: &[u8], records_blocks: u64) -> crate::base::error::Result<(Tail, Vec<Item<'_>>)> {
    let file_bytes = records_blocks * BLOCK as u64 + footer.len() as u64;
    let last = footer.len().saturating_sub(BLOCK);
    let tail = Tail::decode(&footer[last..], file_bytes)?;
    let items = tail.items(&footer[..last])?.collect::<crate::base::error::Result<Vec<_>>>()?;
    Ok((tail, items))
}

fn entries(random: &mut Random, count: usize) -> Vec<Entry> {
    let mut list = vec![Entry::Start { tier_id: TIER, journal: random.word() }];
    while list.len() < count {
        let bucket = random.below_limit(MAX_BUCKET);
        list.push(match random.below(8) {
            0 => Entry::Dead { bucket, block: random.below_limit(MAX_BLOCK) },
            1 => Entry::Gone { bucket },
            2 => {
                let len = [0, MAX_NAME, random.below(MAX_NAME)][random.below(3)];
                Entry::Namespace { name: random.bytes(len), space: random.space() }
            }
            3 => Entry::Generation(random.space()),
            4 => Entry::High { bucket: bucket + 1 },
            5 => {
                let first = random.below_limit(MAX_BLOCK);
                Entry::Extent { bucket, first, blocks: 1 + random.below_limit(MAX_BLOCK - first) }
            }
            6 => Entry::Lost { bucket },
            _ => Entry::Position { term: random.word(), number: random.word() },
        });
    }
    list
}

/// A journal as its owner writes it: record by record, each with the number that was durable then, space behind.
fn journal(entries: &[Entry], durable: impl Fn(u64) -> u64) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..).zip(entries).flat_map(|(number, entry)| encode_entry(number, durable(number), TIER, entry)).collect();
    bytes.resize(bytes.len() + 3 * JOURNAL_RECORD, 0);
    bytes
}

/// Calls `check` with every bit of `bytes` flipped, one at a time.
fn each_flip(bytes: &[u8], mut check: impl FnMut(usize, &[u8])) {
    let mut bytes = bytes.to_vec();
    for bit in 0..8 * bytes.len() {
        bytes[bit / 8] ^= 1 << (bit % 8);
        check(bit, &bytes);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_head_reads_back() {
    let mut random = Random(1);
    for _ in 0..100 {
        let head = head(&mut random);
        assert_eq!(Head::decode(&head.encode()).unwrap(), head);
        assert!(!format!("{head:?}").contains("secret"));
    }
}

#[test]
fn a_head_of_another_format_is_told_from_a_broken_one() {
    let whole = head(&mut Random(2)).encode();
    let mut other = whole;
    put(&mut other, 8, &7u32.to_le_bytes());
    seal(&mut other, BLOCK..BLOCK);
    let error = Head::decode(&other).unwrap_err();
    assert_eq!(error.status, NMC_ERR_VERSION);
    assert!(error.message.contains("format 7") && error.message.contains("format 3"), "{error}");
    for broken in [&[][..], &whole[..BLOCK - 1], &[0; BLOCK], &[&whole[..], &[0]].concat()] {
        assert_eq!(Head::decode(broken).unwrap_err().status, NMC_ERR_CORRUPT);
    }
}

#[test]
fn a_record_reads_back_at_every_edge() {
    let mut random = Random(3);
    for key_bytes in [1, 2, 26, 40, 1023, 1024, 1 + random.below(1024), 1 + random.below(1024)] {
        let limit = (BLOCK - 328 - 4 - key_bytes) as u64;
        let granule = GRANULE as u64;
        let near = [limit - 1, limit, limit + 1, 4095, 4096, 4097, granule - 1, granule, granule + 1, 3 * granule + 5];
        for value_bytes in [0, 1].into_iter().chain(near) {
            let metadata_bytes = [0, 1, 255, 256, random.below(257)][random.below(5)];
            let (key, metadata) = (random.bytes(key_bytes), random.bytes(metadata_bytes));
            let value = random.bytes(usize::try_from(value_bytes).unwrap());
            let record = record(&mut random, &key, &metadata, value_bytes);
            let bytes = written(&record, &value);

            let header = Header::decode(&bytes).unwrap();
            assert_eq!(header.record, record);
            assert_eq!(header.shape(), Shape::of(key_bytes, value_bytes));
            assert_eq!(header.shape().inline, value_bytes <= limit, "{key_bytes} {value_bytes}");
            assert_eq!(value_of(&header, &bytes), Some(&value[..]));
            assert_eq!(header.sum(header.shape().granules), None);
            assert_eq!(header_bytes(&bytes[..BLOCK]), Some(header.shape().header_bytes()));
            assert!(header.is(&key, record.put, value_bytes));
            assert!(!header.is(&key, record.put ^ 1, value_bytes));
            assert!(!header.is(&key, record.put, value_bytes + 1));
            assert!(!header.is(&key[1..], record.put, value_bytes));
            let end = usize::try_from(header.shape().value_at + value_bytes).unwrap();
            assert!(bytes[end..].iter().all(|byte| *byte == 0), "nothing of the buffer's past is left");
        }
    }
}

#[test]
fn an_inline_value_may_come_before_the_header_or_after_it() {
    let mut random = Random(4);
    let (value, key) = (random.bytes(1000), random.bytes(40));
    let record = record(&mut random, &key, &[], 1000);
    let before = written(&record, &value);
    let mut after = vec![0xee; BLOCK];
    record.encode(&sums(&value), &mut after).unwrap();
    let at = usize::try_from(record.shape().value_at).unwrap();
    assert!(after[at..at + 1000].iter().all(|byte| *byte == 0xee), "the value's bytes are the caller's");
    after[at..at + 1000].copy_from_slice(&value);
    assert_eq!(before, after);
}

#[test]
fn a_large_header_takes_several_blocks() {
    let mut random = Random(5);
    let (key, value_bytes) = (random.bytes(1024), 256 << 20);
    let record = record(&mut random, &key, b"metadata", value_bytes);
    let shape = record.shape();
    assert_eq!((shape.granules, shape.header_blocks, shape.inline), (4096, 5, false));
    assert_eq!((shape.value_at, shape.blocks), (5 * 4096, 5 + 65_536));
    let sums: Vec<u32> = (0..4096).map(|_| u32_of(random.word() >> 32)).collect();
    let mut bytes = vec![1; shape.header_bytes()];
    record.encode(&sums, &mut bytes).unwrap();
    let header = Header::decode(&bytes).unwrap();
    assert_eq!(header.record, record);
    assert!((0..).zip(&sums).all(|(granule, sum)| header.sum(granule) == Some(*sum)));
    assert_eq!(header_bytes(&bytes[..72]), Some(bytes.len()));
    assert_eq!(Header::decode(&bytes[..4 * BLOCK]).unwrap_err().status, NMC_ERR_CORRUPT);

    // The last header that fits its blocks, and the first that does not.
    let granules = |count: u64| Shape::of(1024, count * GRANULE as u64).header_blocks;
    assert_eq!((granules(686), granules(687)), (1, 2));
    // Lengths that nothing has do not overflow.
    for (key, value) in [(1, MAX_VALUE - 1), (usize::MAX, u64::MAX), (0, u64::MAX), (usize::MAX, 0)] {
        assert!(Shape::of(key, value).blocks > 1);
    }
}

#[test]
fn a_record_beyond_the_limits_is_not_written() {
    let mut random = Random(6);
    let (key, long) = (random.bytes(1024), random.bytes(1025));
    let good = record(&mut random, &key, &[], 100);
    let mut to = vec![0; BLOCK];
    good.encode(&[1], &mut to).unwrap();
    let past = Space { number: MAX_SPACE, generation: 0 };
    for (wrong, names) in [
        (Record { key: &[], ..good }, "0 bytes"),
        (Record { key: &long, ..good }, "1025"),
        (Record { metadata: &long[..257], ..good }, "257"),
        (Record { value_bytes: MAX_VALUE, ..good }, "1099511627776"),
        (Record { epoch: MAX_EPOCH, ..good }, "epoch"),
        (Record { space: past, ..good }, "256"),
    ] {
        let error = wrong.encode(&[1], &mut to).unwrap_err();
        assert_eq!(error.status, NMC_ERR_INVALID_ARG);
        assert!(error.message.contains(names), "{error}");
    }
    for (sums, bytes) in [(0, BLOCK), (2, BLOCK), (1, 0), (1, BLOCK - 1), (1, BLOCK + 1)] {
        let error = good.encode(&vec![0; sums], &mut vec![0; bytes]).unwrap_err();
        assert_eq!(error.status, NMC_ERR_INVALID_ARG);
    }
}

#[test]
fn a_footer_reads_back() {
    let mut random = Random(7);
    for count in [0, 1, 2, 3, 7, 76, 500] {
        let keys = keys(&mut random, count);
        let (items, blocks) = items(&mut random, &keys);
        let bucket = random.below_limit(MAX_BUCKET);
        let footer = encode_footer(TIER, bucket, blocks, &items).unwrap();
        assert_eq!(footer.len() % BLOCK, 0);
        assert_eq!(footer.len() as u64, footer_bytes(keys.iter().map(Vec::len)));
        let (tail, read) = read_footer(&footer, blocks).unwrap();
        assert_eq!(read, items);
        assert_eq!((tail.tier_id, tail.bucket, tail.count as usize), (TIER, bucket, count));
        assert_eq!((tail.records_blocks, tail.list_at), (blocks, blocks * 4096));
        assert_eq!(tail.list_bytes, (footer.len() - BLOCK) as u64);
        assert_eq!(tail.max_epoch, items.iter().map(|item| item.epoch).max().unwrap_or(0));
        for file_bytes in [0, tail.list_at, tail.list_at + footer.len() as u64 + 1, u64::MAX] {
            let last = &footer[footer.len() - BLOCK..];
            assert_eq!(Tail::decode(last, file_bytes).unwrap_err().status, NMC_ERR_CORRUPT);
        }
        // In a file of its own.
        let (list, last) = footer.split_at(footer.len() - BLOCK);
        let alone = Tail::decode_alone(last, footer.len() as u64).unwrap();
        assert_eq!((alone.list_at, alone.list_bytes, alone.bucket), (0, tail.list_bytes, bucket));
        assert!(alone.items(list).unwrap().map(Result::unwrap).eq(items));
        for file_bytes in [0, BLOCK as u64 - 1, footer.len() as u64 + 1, u64::MAX] {
            assert_eq!(Tail::decode_alone(last, file_bytes).unwrap_err().status, NMC_ERR_CORRUPT);
        }
    }
}

#[test]
fn records_of_a_bucket_lie_behind_each_other_and_within_it() {
    let mut random = Random(8);
    let keys = keys(&mut random, 3);
    let (good, blocks) = items(&mut random, &keys);
    let wrong = |change: &dyn Fn(&mut Vec<Item<'_>>)| {
        let mut list = good.clone();
        change(&mut list);
        encode_footer(TIER, 1, blocks, &list).unwrap_err().status
    };
    assert_eq!(wrong(&|list| list[1].block = list[0].block), NMC_ERR_INVALID_ARG);
    assert_eq!(wrong(&|list| list.swap(0, 2)), NMC_ERR_INVALID_ARG);
    assert_eq!(wrong(&|list| list[2].block += 1), NMC_ERR_INVALID_ARG);
    assert_eq!(wrong(&|list| list[2].block = u64::MAX), NMC_ERR_INVALID_ARG);
    assert_eq!(wrong(&|list| list[0].key = &[]), NMC_ERR_INVALID_ARG);
    assert_eq!(encode_footer(TIER, MAX_BUCKET, blocks, &good).unwrap_err().status, NMC_ERR_INVALID_ARG);
    assert_eq!(encode_footer(TIER, 1, MAX_BLOCK + 1, &good).unwrap_err().status, NMC_ERR_INVALID_ARG);

    // The same lies in a list whose sums are right are found when it is read.
    let footer = encode_footer(TIER, 1, blocks, &good).unwrap();
    for (at, field) in [(0, blocks), (4, 256), (40, MAX_VALUE), (24, MAX_EPOCH), (56, 4096), (56, 1 << 26)] {
        let mut lie = footer.clone();
        let width = if at >= 24 && at != 56 { 8 } else { 4 };
        put(&mut lie, at, &field.to_le_bytes()[..width]);
        reseal_footer(&mut lie);
        assert_eq!(read_footer(&lie, blocks).unwrap_err().status, NMC_ERR_CORRUPT, "field at {at}");
    }
}

fn reseal_footer(footer: &mut [u8]) {
    let (list, last) = footer.split_at_mut(footer.len() - BLOCK);
    put(last, 60, &crc::crc32c(list).to_le_bytes());
    seal(last, BLOCK..BLOCK);
}

#[test]
fn a_journal_reads_back() {
    let mut random = Random(9);
    for count in [1, 2, 40, 1000] {
        let entries = entries(&mut random, count);
        for durable in [|_| 0, |number| number, |number| number / 2] {
            let read = replay(&journal(&entries, durable), TIER).unwrap();
            assert_eq!((read.next, read.lost), (count as u64, 0));
            assert!(read.entries.iter().map(|(number, _)| *number).eq(0..count as u64));
            assert!(read.entries.iter().map(|(_, entry)| entry).eq(&entries));
        }
        // Written whole: every record says that all of them are durable, and none can be cut off unseen.
        let whole = encode_entries(0, count as u64, TIER, &entries).unwrap();
        assert_eq!(replay(&whole, TIER).unwrap().entries.len(), count);
        // The same piece by piece.
        let mut pieces = Replayer::new(TIER);
        whole.chunks(3 * JOURNAL_RECORD).for_each(|piece| pieces.read(piece).unwrap());
        assert_eq!(pieces.finish(), replay(&whole, TIER));
        if count > 1 {
            let cut = &whole[..whole.len() - JOURNAL_RECORD];
            assert_eq!(replay(cut, TIER).unwrap_err().status, NMC_ERR_CORRUPT);
        }
    }
    for nothing in [vec![], vec![0; 7], vec![0; 4096]] {
        assert_eq!(replay(&nothing, TIER).unwrap(), Replay { entries: vec![], next: 0, lost: 0 });
    }
}

#[test]
fn a_record_of_another_tier_or_place_is_not_believed() {
    let entries = entries(&mut Random(10), 8);
    let bytes = journal(&entries, |_| 0);
    assert_eq!(replay(&bytes, TIER + 1).unwrap().entries, []);
    let mut moved = bytes.clone();
    moved.copy_within(3 * JOURNAL_RECORD..4 * JOURNAL_RECORD, 5 * JOURNAL_RECORD);
    let read = replay(&moved, TIER).unwrap();
    assert_eq!((read.next, read.lost), (8, 1));
    assert!(
        read.entries.iter().all(|(number, entry)| *number != 5 && *entry == entries[usize::try_from(*number).unwrap()])
    );
}

#[test]
fn what_was_never_durable_may_be_lost_and_what_was_is_missed() {
    let entries = entries(&mut Random(11), 12);
    // The records from 8 on were written when the first 6 were durable.
    let bytes = journal(&entries, |number| if number < 8 { 2 } else { 6 });
    for number in 0..12 {
        for torn in [0..JOURNAL_RECORD, 4..JOURNAL_RECORD, 64..65] {
            let mut damaged = bytes.clone();
            let record = &mut damaged[number * JOURNAL_RECORD..][..JOURNAL_RECORD];
            record[torn.clone()].iter_mut().for_each(|byte| *byte = if torn.len() == 1 { !*byte } else { 0 });
            match replay(&damaged, TIER) {
                Err(error) => {
                    assert!(number < 6 && error.status == NMC_ERR_CORRUPT, "{number}: {error}");
                    assert!(error.message.contains(&format!("record {number} ")), "{error}");
                }
                Ok(read) => {
                    // The last one is not missed if nothing of it is there.
                    let cut = number == 11 && torn.len() == JOURNAL_RECORD;
                    assert!(number >= 6, "record {number} was durable");
                    assert_eq!((read.next, read.lost), if cut { (11, 0) } else { (12, 1) });
                    assert_eq!(read.entries.len(), 11, "what follows counts");
                }
            }
        }
    }
    // Cut off in the middle of a record.
    let read = replay(&bytes[..9 * JOURNAL_RECORD + 30], TIER).unwrap();
    assert_eq!((read.entries.len(), read.next, read.lost), (9, 10, 1));
    assert_eq!(replay(&bytes[..5 * JOURNAL_RECORD], TIER).unwrap().next, 5, "nobody is left who says more");
}

#[test]
fn a_whole_record_that_makes_no_sense_is_no_loss() {
    let start = Entry::Start { tier_id: TIER, journal: 1 };
    let status = |entry: &Entry| {
        let bytes = [encode_entry(0, 0, TIER, &start), encode_entry(1, 0, TIER, entry)].concat();
        replay(&bytes, TIER).unwrap_err().status
    };
    let space = Space { number: MAX_SPACE, generation: 1 };
    for wrong in [
        start.clone(),
        Entry::Dead { bucket: MAX_BUCKET, block: 0 },
        Entry::Dead { bucket: 0, block: MAX_BLOCK },
        Entry::Gone { bucket: MAX_BUCKET },
        Entry::High { bucket: MAX_BUCKET + 1 },
        Entry::Lost { bucket: MAX_BUCKET },
        Entry::Extent { bucket: MAX_BUCKET, first: 0, blocks: 1 },
        Entry::Extent { bucket: 0, first: 5, blocks: 0 },
        Entry::Extent { bucket: 0, first: MAX_BLOCK, blocks: 1 },
        Entry::Extent { bucket: 0, first: 1, blocks: MAX_BLOCK },
        Entry::Generation(space),
        Entry::Namespace { name: vec![], space },
        Entry::Namespace { name: vec![b'n'; 65], space: Space { number: 1, generation: 1 } },
        Entry::Namespace { name: vec![b'n'; 1000], space: Space { number: 1, generation: 1 } },
    ] {
        assert_eq!(status(&wrong), NMC_ERR_CORRUPT, "{wrong:?}");
        assert!(wrong == start || encode_entries(0, 0, TIER, &[wrong]).unwrap_err().status == NMC_ERR_INVALID_ARG);
    }
    let first = encode_entry(0, 0, TIER, &Entry::Gone { bucket: 1 });
    assert_eq!(replay(&first, TIER).unwrap_err().status, NMC_ERR_CORRUPT);
    let foreign = encode_entry(0, 0, TIER, &Entry::Start { tier_id: 1, journal: 1 });
    assert_eq!(replay(&foreign, TIER).unwrap_err().status, NMC_ERR_CORRUPT);
    let mut unknown = encode_entry(0, 0, TIER, &start);
    put(&mut unknown, 4, &[99]);
    reseal_journal(&mut unknown);
    assert_eq!(replay(&unknown, TIER).unwrap_err().status, NMC_ERR_VERSION);
}

fn reseal_journal(bytes: &mut [u8]) {
    for record in bytes.chunks_exact_mut(JOURNAL_RECORD) {
        let sum = crc::crc32c_append(crate::base::crc::crc32c(&TIER.to_le_bytes()), &record[4..]);
        put(record, 0, &sum.to_le_bytes());
    }
}

#[test]
fn every_flip_of_a_head_is_found() {
    let bytes = head(&mut Random(12)).encode();
    each_flip(&bytes, |bit, bytes| assert!(Head::decode(bytes).is_err(), "bit {bit}"));
}

#[test]
fn every_flip_of_a_record_is_found() {
    let mut random = Random(13);
    // Inline with much padding, inline without any, and behind a header of a block.
    for (key_bytes, value_bytes) in [(40, 100), (1024, 4096 - 328 - 4 - 1024), (26, 4096)] {
        let (key, value) = (random.bytes(key_bytes), random.bytes(value_bytes));
        let record = record(&mut random, &key, b"some metadata", value_bytes as u64);
        let bytes = written(&record, &value);
        assert_eq!(value_of(&Header::decode(&bytes).unwrap(), &bytes), Some(&value[..]), "the control");
        each_flip(&bytes, |bit, bytes| {
            let found = Header::decode(bytes).map_or(true, |header| value_of(&header, bytes).is_none());
            assert!(found, "bit {bit} of a record with a value of {value_bytes} bytes");
        });
    }
    // A header of several blocks, every bit; its value's sums are in it.
    let key = random.bytes(1024);
    let record = record(&mut random, &key, &[], 689 * GRANULE as u64);
    let mut header = vec![0; 2 * BLOCK];
    record.encode(&vec![0x5555_aaaa; 689], &mut header).unwrap();
    each_flip(&header, |bit, bytes| assert!(Header::decode(bytes).is_err(), "bit {bit}"));
}

#[test]
fn every_flip_of_a_footer_is_found() {
    let mut random = Random(14);
    let keys = keys(&mut random, 5);
    let (items, blocks) = items(&mut random, &keys);
    let footer = encode_footer(TIER, 77, blocks, &items).unwrap();
    assert!(read_footer(&footer, blocks).is_ok(), "the control");
    each_flip(&footer, |bit, footer| assert!(read_footer(footer, blocks).is_err(), "bit {bit}"));
}

#[test]
fn every_flip_of_a_journal_is_found_or_loses_what_was_not_durable() {
    let entries = entries(&mut Random(15), 10);
    let bytes = journal(&entries, |number| number.saturating_sub(3));
    let durable = 6;
    each_flip(&bytes, |bit, bytes| {
        let number = bit / (8 * JOURNAL_RECORD);
        match replay(bytes, TIER) {
            Err(error) => assert!(number < durable && error.status == NMC_ERR_CORRUPT, "bit {bit}: {error}"),
            Ok(read) => {
                assert!(number >= durable, "bit {bit}");
                let same = |(number, entry): &(u64, Entry)| entries[usize::try_from(*number).unwrap()] == *entry;
                assert!(read.entries.iter().all(same), "bit {bit} made another entry");
                assert_eq!(read.entries.len() as u64 + read.lost, read.next);
                let left = entries.len() - usize::from(number < entries.len());
                assert_eq!(read.entries.len(), left, "bit {bit}");
            }
        }
    });
}

#[test]
fn fingerprints_do_not_confuse_number_generation_and_key() {
    let of = |number, generation, key: &[u8]| fingerprint(&[3; 32], Space { number, generation }, key);
    let mut seen = std::collections::HashSet::new();
    // The same bytes, cut at other places, and neighbours.
    let all = [
        of(1, 2, b"key"),
        of(2, 1, b"key"),
        of(1, 2, b"key\0"),
        of(1, 2, b""),
        of(0, 0, b"\x01\0\0\0\x02\0\0\0key"),
        of(1, 0, b"\x02\0\0\0key"),
        of(0x0101, 2, b"key"),
        of(1, 0x0200, b"key"),
        of(1, 2, &[0; 1024]),
        of(1, 2, &[0; 1023]),
        fingerprint(&[4; 32], Space { number: 1, generation: 2 }, b"key"),
    ];
    assert!(all.iter().all(|print| seen.insert(*print)));
    let key = Random(18).bytes(MAX_KEY);
    for len in 0..=MAX_KEY {
        let (input, print) = ([&[1, 0, 0, 0, 2, 0, 0, 0], &key[..len]].concat(), of(1, 2, &key[..len]));
        let hash = blake3::keyed_hash(&[3; 32], &input);
        assert_eq!(hash.as_bytes()[..8], print.low.to_le_bytes());
        assert_eq!(hash.as_bytes()[8..10], print.high.to_le_bytes());
    }
}

#[test]
fn names_are_read_exactly_as_they_are_written() {
    for id in [0, 1, 0xabc, MAX_BUCKET - 1, u64::MAX] {
        assert_eq!(bucket_id(bucket_name(id)), Some(id));
        assert_eq!(bucket_temporary_id(bucket_temporary_name(id)), Some(id));
        assert_eq!(journal_number(journal_name(id)), Some(id));
        assert_eq!(journal_temporary_number(journal_temporary_name(id)), Some(id));
        assert_eq!((bucket_id(bucket_temporary_name(id)), bucket_temporary_id(bucket_name(id))), (None, None));
        assert_eq!(
            (journal_number(journal_temporary_name(id)), journal_temporary_number(journal_name(id))),
            (None, None)
        );
    }
    assert_eq!((bucket_name(255), journal_name(12)), ("00000000000000ff.bucket".into(), "journal.12".into()));
    for foreign in [
        "",
        ".bucket",
        "ff.bucket",
        "00000000000000FF.bucket",
        "00000000000000ff.Bucket",
        "00000000000000ff.bucket ",
        "+0000000000000ff.bucket",
        "000000000000000ff.bucket",
        "00000000000000f\u{e9}.bucket",
        "00000000000000ff",
        "journal.",
        "journal.01",
        "journal.+1",
        "journal.-1",
        "journal.1 ",
        "journal.1a",
        "journal.18446744073709551616",
        "journal",
        "SUPER",
    ] {
        assert_eq!((bucket_id(foreign), journal_number(foreign)), (None, None), "{foreign:?}");
        let temporary = format!("{foreign}.tmp");
        assert_eq!(
            (bucket_temporary_id(&temporary), journal_temporary_number(&temporary)),
            (None, None),
            "{foreign:?}"
        );
    }
    assert_eq!(bucket_id([0xff; 23]), None);
}

/// Damage of all kinds: flips, other numbers in fields, cuts, pieces of itself elsewhere, rubbish, zeros and ones.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(3) {
        let (at, len) = (random.below(bytes.len()), random.below(bytes.len()));
        match random.below(9) {
            0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            2 => {
                // Fields are at the beginning of a block or of a record.
                let field = [random.below(64), at][random.below(2)];
                let word = [0, 1, u64::MAX, random.word(), random.word() >> random.below(64)][random.below(5)];
                put(bytes, field, &word.to_le_bytes()[..1 << random.below(4)]);
            }
            3 => bytes.truncate(at),
            4 => {
                let more = random.below(600);
                bytes.extend(random.bytes(more));
            }
            5 => {
                let from = random.below(bytes.len());
                let len = len.min(bytes.len() - from.max(at).min(bytes.len()));
                bytes.copy_within(from..from + len, at);
            }
            6 => {
                let end = (at + len).min(bytes.len());
                let byte = [0, 0xff, random.word().to_le_bytes()[0]][random.below(3)];
                bytes[at.min(end)..end].fill(byte);
            }
            7 => {
                let word = random.word().to_le_bytes();
                put(bytes, at, &word);
            }
            _ if random.below(20) == 0 => bytes.fill([0, 0xff][random.below(2)]),
            _ => {}
        }
    }
}

#[test]
fn damage_is_told_and_nothing_that_was_not_written_is_read() {
    let mut random = Random(16);

    let head = head(&mut random).encode();
    let (key, value) = (random.bytes(300), random.bytes(1500));
    let inline = record(&mut random, &key, b"about it", 1500);
    let inline = written(&inline, &value);
    let mut large = vec![0; 2 * BLOCK];
    record(&mut random, &key, &[], 900 * GRANULE as u64).encode(&vec![9; 900], &mut large).unwrap();
    let keys = keys(&mut random, 6);
    let (items, blocks) = items(&mut random, &keys);
    let footer = encode_footer(TIER, 3, blocks, &items).unwrap();
    let entries = entries(&mut random, 12);
    let journal = journal(&entries, |number| number.saturating_sub(5));

    for round in 0..100_000 {
        let original = [&head[..], &inline, &large, &footer, &journal][round % 5];
        let mut bytes = original.to_vec();
        damage(&mut random, &mut bytes);
        let same = bytes == original;
        match round % 5 {
            0 => assert_eq!(Head::decode(&bytes).is_ok(), same),
            1 | 2 => {
                let whole = |header: Header<'_>| round % 5 == 2 || value_of(&header, &bytes).is_some();
                let read = Header::decode(&bytes).is_ok_and(whole);
                // Something behind the record is none of its business.
                assert_eq!(read, bytes.starts_with(original));
                assert!(header_bytes(&bytes).is_none_or(|bytes| bytes <= 64 << 20 | BLOCK));
            }
            3 => {
                if let Ok((_, read)) = read_footer(&bytes, blocks) {
                    assert!(same && read == items);
                }
            }
            _ => {
                if let Ok(read) = replay(&bytes, TIER) {
                    let known = |(number, entry): &(u64, Entry)| entries[usize::try_from(*number).unwrap()] == *entry;
                    assert!(read.entries.iter().all(known));
                    let room = read.entries.capacity() * size_of::<(u64, Entry)>();
                    assert!(room <= bytes.len() + 4 * size_of::<(u64, Entry)>());
                }
            }
        }
    }
}

#[test]
fn lies_with_the_right_sums_do_no_harm() {
    let mut random = Random(17);
    let rounds = if cfg!(debug_assertions) { 10_000 } else { 100_000 };
    let key = random.bytes(300);
    let mut large = vec![0; 2 * BLOCK];
    record(&mut random, &key, &[], 900 * GRANULE as u64).encode(&vec![9; 900], &mut large).unwrap();
    let keys = keys(&mut random, 6);
    let (items, blocks) = items(&mut random, &keys);
    let footer = encode_footer(TIER, 3, blocks, &items).unwrap();
    let entries = entries(&mut random, 12);
    let journal = journal(&entries, |number| number.saturating_sub(5));

    let mut believed = [0; 3];
    for round in 0..rounds {
        let mut bytes = [&large[..], &footer, &journal][round % 3].to_vec();
        damage(&mut random, &mut bytes);
        match round % 3 {
            0 => {
                bytes.resize(2 * BLOCK, 0);
                seal(&mut bytes, 2 * BLOCK..2 * BLOCK);
                if let Ok(header) = Header::decode(&bytes) {
                    believed[0] += 1;
                    let Record { key, metadata, value_bytes, .. } = header.record;
                    assert!((1..=MAX_KEY).contains(&key.len()) && metadata.len() <= MAX_METADATA);
                    assert!(value_bytes < MAX_VALUE && header.shape() == Shape::of(key.len(), value_bytes));
                    assert!(header.shape().header_bytes() <= bytes.len());
                    assert!((0..header.shape().granules).all(|granule| header.sum(granule).is_some()));
                }
            }
            1 => {
                let mut bytes = bytes;
                bytes.resize(footer.len(), 0);
                reseal_footer(&mut bytes);
                if let Ok((tail, read)) = read_footer(&bytes, blocks) {
                    believed[1] += 1;
                    assert!(tail.count as usize == read.len() && tail.bucket < MAX_BUCKET);
                    let mut free = 0;
                    for item in read {
                        assert!(item.block >= free && !item.key.is_empty() && item.epoch <= tail.max_epoch);
                        free = item.block + Shape::of(item.key.len(), item.value_bytes).blocks;
                    }
                    assert!(free <= tail.records_blocks);
                }
            }
            _ => {
                reseal_journal(&mut bytes);
                if let Ok(read) = replay(&bytes, TIER) {
                    believed[2] += 1;
                    assert!(read.entries.iter().all(|(number, entry)| entry.check().is_ok() && *number < read.next));
                }
            }
        }
    }
    assert!(believed.iter().all(|count| *count > rounds / 100), "some lies must pass the sums: {believed:?}");
}
