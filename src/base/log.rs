//! Log lines go to the callback that the program set, and nowhere else. Without one, nothing is formatted.

use parking_lot::RwLock;
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, Ordering};

/// Something failed and a user will notice.
pub const ERROR: i32 = 1;
/// Something is wrong but was dealt with.
pub const WARN: i32 = 2;
/// Rare events of normal life: a rank joined, a rank died.
pub const INFO: i32 = 3;
/// What a developer of the library wants to see.
pub const DEBUG: i32 = 4;

/// Receives level and text. Must not block for long; it is called on the thread that logs.
pub type Sink = Box<dyn Fn(i32, &str) + Send + Sync>;

static MAX_LEVEL: AtomicI32 = AtomicI32::new(0);
static SINK: RwLock<Option<Sink>> = RwLock::new(None);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Replaces the sink. When it returns, the former sink is not running and will not be called again.
/// Called from inside the sink it changes nothing and returns false.
pub fn set_sink(sink: Option<Sink>, max_level: i32) -> bool {
    if INSIDE.get() {
        return false;
    }
    let mut slot = SINK.write();
    MAX_LEVEL.store(if sink.is_some() { max_level } else { 0 }, Ordering::Relaxed);
    *slot = sink;
    true
}

/// Whether the calling thread is inside the sink.
#[must_use]
pub fn inside() -> bool {
    INSIDE.get()
}

/// Hands a line to the sink if its level is wanted. A line logged from inside the sink is dropped.
pub fn emit(level: i32, line: impl FnOnce() -> String) {
    if level > MAX_LEVEL.load(Ordering::Relaxed) || INSIDE.get() {
        return;
    }
    let text = line();
    if let Some(sink) = SINK.read_recursive().as_ref() {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                INSIDE.set(false);
            }
        }
        INSIDE.set(true);
        let _leave = Leave;
        sink(level, &text);
    }
}
