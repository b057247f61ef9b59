//! What becomes of writes whose values, plans or masters go meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use super::publish::Publication;
use crate::base::error::Error;
use crate::base::status::{NMC_ERR_CANCELLED, NMC_ERR_NOT_FOUND, NMC_ERR_STALE, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE};
use crate::layout::store::Fate;
use crate::store::client::Store;
use crate::store::config::Config;
use crate::store::test_store::{self, world};
use crate::store::types::{Look, Opened, PutOptions, Wait};
use crate::sync::object;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

fn store() -> Store {
    let config = Config { page_bytes: 4096, max_objects: Some(1), key_bytes: Some(4096), ..Config::default() };
    Store::embedded(&world(), &config).unwrap()
}

fn on_rank_0() -> PutOptions<'static> {
    PutOptions { rank: Some(0), ..PutOptions::DEFAULT }
}

/// Stores a small value whatever is there; there is one header, so it gets that of its predecessor.
fn put(store: &Store, key: &[u8]) {
    test_store::put(store, key, &[7; 8], &on_rank_0()).unwrap();
}

/// Opens a plan and publishes it as a kernel does: nobody else hears of it.
fn published_by_itself(store: &Store) -> Opened {
    let (plan, _) = store.open_for_write(b"k", 8, &on_rank_0()).unwrap();
    object::publish(&store.client.view().publish(plan.index).unwrap().published, plan.epoch);
    plan
}

/// A value that was consumed before its writer looked was stored, also when its header is another object's by then. One
/// that was removed was not.
#[test]
fn a_write_whose_value_was_consumed_has_succeeded() {
    for consumed in [true, false] {
        let store = store();
        let plan = published_by_itself(&store);
        if consumed {
            let Look::Ready((pin, _)) = store.consume(b"k").unwrap() else { panic!("it was published") };
            store.unpin(pin).unwrap();
        } else {
            store.remove(b"k").unwrap();
        }
        put(&store, b"other");
        let told = store.client.view().fate(plan.epoch).unwrap().load(Relaxed);
        assert_eq!(Fate::of(told, plan.epoch), consumed.then_some(Fate::Taken));
        let committed = store.commit(&plan);
        assert_eq!(committed.map_err(|error| error.status), if consumed { Ok(()) } else { Err(NMC_ERR_STALE) });
        assert_eq!(store.client.plans.len(), 0);
    }
}

/// A plan that the master has ended leads nobody to pages that are another object's by now.
#[test]
fn nothing_is_stored_for_a_plan_that_has_ended() {
    let store = store();
    let (plan, _) = store.open_for_write(b"k", 8, &on_rank_0()).unwrap();
    let terms = store.client.plans.terms(plan.plan_id).unwrap();
    store.abort(&plan).unwrap();
    assert!(store.client.plans.add(terms), "as if it were still open");
    let status = |store: &Store| store.planned(store.client.view(), &plan).err().map(|error| error.status);
    assert_eq!(status(&store), Some(NMC_ERR_STALE), "its pages are free");
    put(&store, b"other");
    assert_eq!(status(&store), Some(NMC_ERR_STALE), "its pages are another's");
}

/// A master that does not know a replacement any more has given it up, also if its header looks as it did.
#[test]
fn a_replacement_that_the_master_has_given_up_is_stale() {
    let store = store();
    let (plan, _) = store.open_for_write(b"k", 8, &PutOptions { replace: true, ..on_rank_0() }).unwrap();
    let unknown = Opened { plan_id: plan.plan_id ^ 1, ..plan };
    let published = store.publish(store.client.view(), &unknown, true, Publication::Once, &store.interrupt());
    assert_eq!(published.map_err(|error| error.status), Err(NMC_ERR_STALE));
    store
        .publish(store.client.view(), &plan, true, Publication::Once, &store.interrupt())
        .expect("control: this one is known");
}

/// Of several calls that share a wait: one that waited in vain ends the others, one that found no connection does not.
#[test]
fn only_a_call_that_has_waited_in_vain_ends_the_others() {
    let store = store();
    let interrupt = store.interrupt();
    let ended = |status| interrupt.note::<()>(Err(Error::new(status, "no answer"))).map_err(|error| error.status);
    for status in [NMC_ERR_UNAVAILABLE, NMC_ERR_NOT_FOUND] {
        assert_eq!(ended(status), Err(status));
        interrupt.check_answers().unwrap();
    }
    assert_eq!(ended(NMC_ERR_TIMEOUT), Err(NMC_ERR_TIMEOUT));
    assert_eq!(interrupt.check_answers().unwrap_err().status, NMC_ERR_TIMEOUT);
}

/// Whoever cancels after a call has begun ends it, also if it did not wait yet.
#[test]
fn a_call_that_was_cancelled_before_it_waits_does_not_wait() {
    let store = store();
    // What is being written is not evicted: there is no room.
    store.open_for_write(b"there", 8, &on_rank_0()).unwrap();
    let long = PutOptions { wait: Wait::For(Duration::from_secs(3600)), ..on_rank_0() };
    let patience = store.patience(long.wait);
    store.cancel();
    let mut results = [Err::<Opened, _>(Error::new(crate::base::status::NMC_ERR_BUSY, "no room"))];
    let request = |_, among| store.request(b"k", 8, &long, among);
    store.open_rest(&patience, 0..1, &mut results, &long, request, |_, plan| Ok(plan)).unwrap();
    let [result] = results;
    assert_eq!(result.map_err(|error| error.status), Err(NMC_ERR_CANCELLED));
}
