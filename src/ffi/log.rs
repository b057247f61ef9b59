//! Where log lines go.

use super::guard;
use crate::base::log;
use crate::base::status::nmc_status_t;
use std::ffi::{c_char, c_void};

/// Something failed and a user will notice.
pub const NMC_LOG_ERROR: i32 = 1;
/// Something is wrong but was dealt with.
pub const NMC_LOG_WARN: i32 = 2;
/// Rare events of normal life: a rank joined, a rank died.
pub const NMC_LOG_INFO: i32 = 3;
/// What a developer of the library wants to see.
pub const NMC_LOG_DEBUG: i32 = 4;

const _: () = assert!(
    NMC_LOG_ERROR == log::ERROR
        && NMC_LOG_WARN == log::WARN
        && NMC_LOG_INFO == log::INFO
        && NMC_LOG_DEBUG == log::DEBUG
);

/// Receives a log line: level, NUL-terminated text that is valid during the call, and the caller's pointer. It is
/// called on whichever thread logs, also on threads of the library, and must not throw. It may call nmc functions;
/// destroying a handle in it gives `NMC_ERR_BUSY`.
pub type nmc_log_fn = Option<extern "C" fn(level: i32, text: *const c_char, user: *mut c_void)>;

struct User(*mut c_void);
// SAFETY: the pointer is never dereferenced here; the contract says the callback is called on any thread.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

/// Sends log lines up to `max_level` to `callback`; NULL ends logging, whatever the level. Without a callback the library writes nothing
/// anywhere. When the call returns, the former callback is not running and will not be called again.
///
/// Thread-safe, graph-safe; waits for a callback that is running. Returns `NMC_ERR_INVALID_ARG` for a level that does not exist
/// and `NMC_ERR_BUSY` when called from inside a callback.
#[unsafe(no_mangle)]
pub extern "C" fn nmc_log_set_callback(callback: nmc_log_fn, max_level: i32, user: *mut c_void) -> nmc_status_t {
    guard(|| {
        super::handle::enter()?;
        if callback.is_some() && !(NMC_LOG_ERROR..=NMC_LOG_DEBUG).contains(&max_level) {
            crate::bail!(NMC_ERR_INVALID_ARG, "log level {max_level} is not between 1 (error) and 4 (debug)");
        }
        let user = User(user);
        let sink = callback.map(|callback| -> log::Sink {
            Box::new(move |level, text| {
                let user = &user;
                let mut line: Vec<u8> = text.bytes().filter(|b| *b != 0).collect();
                line.push(0);
                callback(level, line.as_ptr().cast(), user.0);
            })
        });
        if !log::set_sink(sink, max_level) {
            crate::bail!(NMC_ERR_BUSY, "the log callback cannot be changed from inside a log callback");
        }
        Ok(())
    })
}
