//! Named places at which a test can end the process, or hold one of its threads, to see what others make of it. In a release build
//! without the feature `crash-points`, which no shipped library has, a place is nothing at all.
//!
//! Elsewhere `NMC_CRASH_POINT="name:count"` ends the process by SIGKILL the `count`-th time that it comes to `name`;
//! `NMC_CRASH_POINT="@file"` reads that from a file each time, so that a test can decide late. `name:count:hold` in a file
//! holds the thread that comes there until the file changes; `file.held` appears when it is there.

/// The process comes to the place `name`.
#[cfg(not(any(debug_assertions, feature = "crash-points")))]
#[inline(always)]
pub fn reach(_name: &'static str) {}

/// The process comes to the place `name`.
#[cfg(any(debug_assertions, feature = "crash-points"))]
pub fn reach(name: &'static str) {
    use std::sync::{Mutex, OnceLock};
    static WHERE: OnceLock<Option<String>> = OnceLock::new();
    static HITS: Mutex<(String, u64)> = Mutex::new((String::new(), 0));
    let Some(wanted) = WHERE.get_or_init(|| std::env::var("NMC_CRASH_POINT").ok()) else { return };
    let file = wanted.strip_prefix('@');
    let read = || file.map_or_else(|| wanted.clone(), |file| std::fs::read_to_string(file).unwrap_or_default());
    let text = read();
    let mut words = text.trim().split(':');
    let (Some(point), Some(count)) = (words.next(), words.next()) else { return };
    if point != name {
        return;
    }
    let Ok(mut hits) = HITS.lock() else { return };
    if hits.0 != text {
        *hits = (text.clone(), 0);
    }
    hits.1 += 1;
    if count.parse() != Ok(hits.1) {
        return;
    }
    let Some(file) = file.filter(|_| words.next() == Some("hold")) else { return super::sys::kill_self() };
    drop(hits);
    let _ = std::fs::write(format!("{file}.held"), "");
    while read() == text {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
