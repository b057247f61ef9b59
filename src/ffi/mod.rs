//! The C ABI. Every exported function is a thin body around [`guard`], which turns errors into a status and a
//! thread-local message and lets no panic out. One file per noun; no other layer imports this one.
#![allow(unsafe_code, reason = "this is the C boundary")]
#![allow(non_camel_case_types, reason = "the names are the C names")]
#![allow(clippy::missing_safety_doc, reason = "the contract of each export is its C documentation")]

pub mod abi;
mod arg;
pub mod basic;
pub mod blocks;
pub mod client;
pub mod client_drain;
pub mod client_metadata;
pub mod client_placement;
pub mod client_remove;
pub mod client_store;
pub mod client_submit;
pub mod client_types;
pub mod common;
pub mod config;
pub mod ep;
pub mod ep_types;
pub mod handle;
pub mod kv;
mod kv_config;
pub mod kv_copy;
pub mod kv_move;
pub mod kv_seq;
pub mod kv_state;
pub mod kv_tables;
pub mod kv_types;
pub mod log;
pub mod master;
pub mod store;
pub mod store_access;
pub mod store_batch;
pub mod store_service;
pub mod store_stream;
pub mod store_types;
pub mod text;
pub mod tier;
pub mod tier_types;
pub mod world;
pub mod world_types;

pub(crate) use config::put_struct;

use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_NOT_FOUND, NMC_OK, nmc_status_t};
use crate::store::types::{SHOWN, not_found};
use crate::sync::panics;
use std::cell::{Cell, RefCell};

thread_local! {
    /// NUL-terminated text of the last error of this thread.
    static LAST_ERROR: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// What the text will be made from, if nobody asked yet.
    static LAZY: Cell<Option<LazyError>> = const { Cell::new(None) };
}

/// An error whose text is made when somebody asks for it: for those that are a normal outcome of a fast call.
#[derive(Clone, Copy)]
enum LazyError {
    Numbers {
        tell: fn([u64; 3]) -> String,
        numbers: [u64; 3],
    },
    /// There is no object with a key that begins like this: as much as a message shows, and a byte that says there is more.
    Missing {
        head: [u8; SHOWN + 1],
        len: usize,
    },
}

/// Keeps an error for `nmc_last_error_message`, with the numbers for its text.
#[inline]
pub(crate) fn remember_untold(status: nmc_status_t, tell: fn([u64; 3]) -> String, numbers: [u64; 3]) -> nmc_status_t {
    let _ = LAZY.try_with(|lazy| lazy.set(Some(LazyError::Numbers { tell, numbers })));
    status
}

/// Keeps the error for a key that is not there.
pub(crate) fn remember_missing(key: &[u8]) -> nmc_status_t {
    let (mut head, len) = ([0; SHOWN + 1], key.len().min(SHOWN + 1));
    head[..len].copy_from_slice(&key[..len]);
    let _ = LAZY.try_with(|lazy| lazy.set(Some(LazyError::Missing { head, len })));
    NMC_ERR_NOT_FOUND
}

/// Makes the text of an error that was only kept.
fn tell() {
    match LAZY.try_with(Cell::take) {
        Ok(Some(LazyError::Numbers { tell, numbers })) => store_text(&tell(numbers)),
        Ok(Some(LazyError::Missing { head, len })) => store_text(&not_found(&head[..len]).message),
        Ok(None) | Err(_) => {}
    }
}

fn store_text(text: &str) {
    // A thread that is being torn down has no place for the message; the status still tells.
    let _ = LAST_ERROR.try_with(|last| {
        let mut last = last.borrow_mut();
        last.clear();
        last.extend(text.bytes().map(|b| if b == 0 { b'?' } else { b }));
        last.push(0);
    });
}

/// Runs the body of an export: errors become a status and a message, panics become `NMC_ERR_INTERNAL` and say
/// nothing on stderr.
#[inline]
pub(crate) fn guard(body: impl FnOnce() -> Result<()>) -> nmc_status_t {
    guard_status(|| body().map(|()| NMC_OK))
}

/// Like [`guard`], for bodies with a non-error outcome other than `NMC_OK`.
#[inline]
pub(crate) fn guard_status(body: impl FnOnce() -> Result<nmc_status_t>) -> nmc_status_t {
    match panics::catch(body) {
        Ok(Ok(status)) => status,
        Ok(Err(error)) | Err(error) => remember(&error),
    }
}

#[cold]
pub(crate) fn remember(error: &Error) -> nmc_status_t {
    let _ = LAZY.try_with(|lazy| lazy.set(None));
    store_text(&error.message);
    error.status
}

/// Like [`out`], for pointers that may be NULL.
#[inline]
pub(crate) fn optional_out<'a, T>(ptr: *mut T, name: &str) -> Result<Option<&'a mut std::mem::MaybeUninit<T>>> {
    if ptr.is_null() { Ok(None) } else { out(ptr, name).map(Some) }
}

#[cold]
#[inline(never)]
fn bad_out(address: usize, name: &str) -> Error {
    let text = format!("{name} must be an aligned pointer to writable memory, got {address:#x}");
    Error::new(crate::base::status::NMC_ERR_INVALID_ARG, text)
}

/// Checks an out-pointer before it is written.
#[inline]
pub(crate) fn out<'a, T>(ptr: *mut T, name: &str) -> Result<&'a mut std::mem::MaybeUninit<T>> {
    if ptr.is_null() || !ptr.is_aligned() {
        return Err(bad_out(ptr as usize, name));
    }
    // SAFETY: non-null and aligned; the caller promises by the C contract that it points to writable memory
    // for a T. MaybeUninit makes no claim about the bytes there now.
    Ok(unsafe { &mut *ptr.cast::<std::mem::MaybeUninit<T>>() })
}

#[cfg(test)]
#[allow(clippy::panic, reason = "what is tested is a panic")]
mod tests {
    use super::*;
    use crate::base::status::NMC_ERR_INTERNAL;

    /// That it says nothing on stderr is tested where it is caught, in `sync::panics`.
    #[test]
    fn a_panic_becomes_a_status_with_its_text_and_place() {
        assert_eq!(guard(|| panic!("forced {}", 7)), NMC_ERR_INTERNAL);
        let text = LAST_ERROR.with(|last| String::from_utf8_lossy(&last.borrow()).into_owned());
        assert!(text.contains("forced 7 (src/ffi/mod.rs:"), "{text}");
        assert_eq!(guard(|| Ok(())), NMC_OK);
    }
}
