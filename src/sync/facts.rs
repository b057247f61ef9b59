//! A ring of numbered records: one process appends, in memory that others cannot write, and anybody who maps it reads behind the
//! newest. Nobody waits for a reader: one that is too slow finds that what it wants was overwritten. The words of a record are believed only if
//! its number is the wanted one before and after. Model-checked below on these functions.

use super::atomic::{AtomicU64, Ordering, fence};

/// Number, and what happened.
pub type Record = [AtomicU64; 4];

/// Writer: overwrites the record whose turn it is. Numbers begin with 1 and grow.
pub fn append(record: &Record, number: u64, words: [u64; 3]) {
    record[0].store(0, Ordering::Relaxed);
    // Who sees a word of the new record sees that the former one is over.
    fence(Ordering::Release);
    for (word, value) in record[1..].iter().zip(words) {
        word.store(value, Ordering::Relaxed);
    }
    record[0].store(number, Ordering::Release);
}

/// The words of the record with this number; `None` if it is another one by now, or not there yet.
#[must_use]
pub fn read(record: &Record, number: u64) -> Option<[u64; 3]> {
    read_first(record, number).filter(|_| is_still(record, number))
}

fn read_first(record: &Record, number: u64) -> Option<[u64; 3]> {
    let same = record[0].load(Ordering::Acquire) == number;
    same.then(|| [1, 2, 3].map(|i: usize| record[i].load(Ordering::Relaxed)))
}

fn is_still(record: &Record, number: u64) -> bool {
    fence(Ordering::Acquire);
    record[0].load(Ordering::Relaxed) == number
}

#[cfg(all(feature = "loom", test))]
mod model {
    use super::*;
    use loom::sync::Arc;

    type Append = fn(&Record, u64, [u64; 3]);
    type Read = fn(&Record, u64) -> Option<[u64; 3]>;

    fn words(number: u64) -> [u64; 3] {
        [number * 10, number * 10 + 1, number * 10 + 2]
    }

    /// One record that is overwritten while somebody reads the numbers that it may have.
    fn check(append: Append, read: Read) {
        loom::model(move || {
            let record: Arc<Record> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
            append(&record, 1, words(1));
            let own = Arc::clone(&record);
            let writer = loom::thread::spawn(move || append(&own, 2, words(2)));
            for number in 1..=2 {
                if let Some(found) = read(&record, number) {
                    assert_eq!(found, words(number));
                }
            }
            writer.join().unwrap();
            assert_eq!(read(&record, 2), Some(words(2)));
        });
    }

    #[test]
    fn a_record_is_read_as_it_was_written_or_not_at_all() {
        check(append, read);
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn control_without_the_second_look() {
        check(append, read_first);
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn control_a_record_that_keeps_its_number_while_it_is_written() {
        fn in_place(record: &Record, number: u64, words: [u64; 3]) {
            for (word, value) in record[1..].iter().zip(words) {
                word.store(value, Ordering::Relaxed);
            }
            record[0].store(number, Ordering::Release);
        }
        check(in_place, read);
    }
}
