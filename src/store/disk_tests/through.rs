//! Puts that wait for the disk.

use super::*;
use crate::base::status::NMC_ERR_NO_SPACE;
use crate::store::write::{CALL_DONE, CALL_THROUGH};

/// One is written, one is removed before, one is replaced, and one has no room.
#[test]
fn of_a_batch_that_waits_for_the_disk_each_is_told_what_became_of_it() {
    for refused in [false, true] {
        let bed = Arc::new(Bed::new());
        bed.disk.map.lock().as_ref().unwrap().view().header().write_through.store(1, SeqCst);
        let (inside, mut begun) = (Arc::downgrade(&bed), false);
        *bed.disk.answer.lock() = Some(Box::new(move |what| {
            let bed = inside.upgrade().unwrap();
            if what == CALL_THROUGH && !std::mem::replace(&mut begun, true) {
                bed.store.remove(b"removed").unwrap();
                bed.disk.map.lock().as_ref().unwrap().view().header().write_through.store(0, SeqCst);
                replace(&bed.store, b"replaced", b"again");
                let items: Vec<_> =
                    bed.next(Scope::All).into_iter().filter(|item| item.key.starts_with(b"written")).collect();
                assert_eq!(bed.write(&items, 2), items.len() as u64);
            }
            match what {
                CALL_DONE if refused => Err(Error::new(NMC_ERR_NO_SPACE, "the disk is full")),
                _ => Ok([1, 0, 0]),
            }
        }));
        let keys: [&[u8]; 5] = [b"written 1", b"removed", b"replaced", b"too large", b"written 2"];
        let value = [Slice::of_test(VALUE)];
        let items: Vec<_> = keys.iter().map(|key| (*key, Pieces::Slices(&value))).collect();
        let results = bed.store.put_many(&items, &PutOptions::DEFAULT).unwrap();
        let statuses: Vec<i32> =
            results.iter().map(|result| result.as_ref().map_or_else(|error| error.status, |()| 0)).collect();
        let last = if refused { NMC_ERR_NO_SPACE } else { NMC_ERR_IO };
        assert_eq!(statuses, [0, NMC_ERR_STALE, 0, last, 0]);
    }
}

/// What waits for the disk beside a flush was removed, whatever has its key by then: the disk is fine.
#[test]
fn what_is_removed_before_it_was_written_is_not_what_could_not_be_written() {
    let bed = Bed::new();
    let store = &bed.store;
    *bed.disk.answer.lock() = Some(Box::new(|_| Ok([1, 0, 0])));
    put(store, b"k", VALUE);
    let of = store.put_under(b"k").unwrap().unwrap();
    let status = || store.is_written(b"k", of, store.begin_to_write(b"k").unwrap()).map_err(|error| error.status);
    assert_eq!(status(), Err(NMC_ERR_IO), "control: it is in memory");
    store.remove_all().unwrap();
    assert_eq!(status(), Err(NMC_ERR_STALE));
    put(store, b"k", VALUE);
    assert_ne!(store.put_under(b"k").unwrap(), Some(of));
    assert_eq!(status(), Err(NMC_ERR_STALE), "another one has its place");
}
