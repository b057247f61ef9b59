//! Named places at which a test can end the process, to see what its peers make of what it left. Without the feature
//! `crash-points`, which no shipped library has, a place is nothing at all.
//!
//! With it, `NMC_CRASH_POINT="name:count"` ends the process by SIGKILL the `count`-th time that it comes to `name`;
//! `NMC_CRASH_POINT="@file"` reads that from a file each time, so that a test can decide late.

/// The process comes to the place `name`.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub fn reach(_name: &'static str) {}

/// The process comes to the place `name`.
#[cfg(feature = "crash-points")]
pub fn reach(name: &'static str) {
    use std::sync::{Mutex, OnceLock};
    static WHERE: OnceLock<Option<String>> = OnceLock::new();
    static HITS: Mutex<(String, u64)> = Mutex::new((String::new(), 0));
    let Some(wanted) = WHERE.get_or_init(|| std::env::var("NMC_CRASH_POINT").ok()) else { return };
    let text = match wanted.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).unwrap_or_default(),
        None => wanted.clone(),
    };
    let Some((point, count)) = text.trim().split_once(':') else { return };
    if point != name {
        return;
    }
    let Ok(mut hits) = HITS.lock() else { return };
    if hits.0 != text {
        *hits = (text.clone(), 0);
    }
    hits.1 += 1;
    if count.parse() == Ok(hits.1) {
        super::sys::kill_self();
    }
}
