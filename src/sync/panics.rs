//! Panics inside the library: caught, turned into an error, told to the log, and never written to stderr, which belongs to the
//! program. Rust's handler of panics is one per copy of the standard library, so a program in Rust may have set it: ours
//! passes on what does not come from inside, to whichever was there before.

use super::thread_slot;
use crate::base::error::Error;
use crate::base::log;
use crate::base::status::NMC_ERR_INTERNAL;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

/// Depth of a thread outside of the library, once it has been inside. 0: it never was.
const OUTSIDE: usize = 1;

thread_local! {
    /// Where this thread panicked inside the library.
    static PLACE: Cell<Option<String>> = const { Cell::new(None) };
}

/// Runs `body` inside the library; a panic in it becomes an error. It is logged here, after the unwinding: while the panic
/// begins, locks of the library are held that a log callback may want.
#[inline]
pub fn catch<R>(body: impl FnOnce() -> R) -> Result<R, Error> {
    let before = match thread_slot::depth() {
        0 => first(),
        depth => depth,
    };
    thread_slot::set_depth(before + 1);
    let done = catch_unwind(AssertUnwindSafe(body));
    thread_slot::set_depth(before);
    done.map_err(|payload| caught(payload.as_ref()))
}

/// The first time that a thread comes in: the handler has to be there before anything can panic.
#[cold]
#[inline(never)]
fn first() -> usize {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| match inside() {
            true => note(info),
            false => before(info),
        }));
    });
    OUTSIDE
}

/// Whether a panic now would be the library's own, and not that of a log callback.
fn inside() -> bool {
    thread_slot::depth() > OUTSIDE && !log::inside()
}

fn note(info: &PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string);
    let _ = PLACE.try_with(|noted| noted.set(place));
}

#[cold]
#[inline(never)]
fn caught(payload: &(dyn std::any::Any + Send)) -> Error {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    let place = PLACE.try_with(Cell::take).ok().flatten();
    let place = place.as_deref().unwrap_or("an unknown place");
    let error = Error::new(NMC_ERR_INTERNAL, format!("a bug in nanomc was caught, please report it: {text} ({place})"));
    log::emit(log::ERROR, || error.message.clone());
    error
}

#[cfg(test)]
#[allow(clippy::panic, clippy::expect_used, reason = "what is tested are panics")]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::Mutex;

    /// The lines that were logged.
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn lines() -> Vec<String> {
        LINES.lock().map(|lines| lines.clone()).unwrap_or_default()
    }

    /// Runs the part `name` of [`child`] in a process of its own and gives what it wrote to stderr.
    fn stderr_of(name: &str) -> String {
        let program = std::env::current_exe().expect("the path of this test");
        let child = Command::new(program)
            .args(["--exact", "sync::panics::tests::child", "--ignored", "--nocapture"])
            .env("NMC_TEST_PART", name)
            .output()
            .expect("a child");
        assert!(child.status.success(), "{name}: {}", String::from_utf8_lossy(&child.stdout));
        String::from_utf8_lossy(&child.stderr).into_owned()
    }

    #[test]
    fn a_panic_inside_says_nothing_on_stderr_and_everything_to_the_log() {
        for part in ["call", "nested", "thread", "quiet"] {
            assert_eq!(stderr_of(part), "", "{part}");
        }
    }

    #[test]
    fn a_panic_outside_is_the_programs_own() {
        assert!(stderr_of("outside").contains("not ours"));
        assert_eq!(stderr_of("programs"), "mine: not ours\n");
    }

    /// The control: without `catch` the handler of Rust writes.
    #[test]
    fn a_panic_that_is_caught_by_hand_is_seen_on_stderr() {
        assert!(stderr_of("by hand").contains("forced"));
    }

    fn forced() -> Result<(), Error> {
        catch(|| panic!("forced"))
    }

    #[test]
    #[ignore = "runs in a process of its own, for the tests above"]
    fn child() {
        let part = std::env::var("NMC_TEST_PART").unwrap_or_default();
        if part == "programs" {
            set_hook(Box::new(|info| {
                eprintln!("mine: {}", info.payload().downcast_ref::<&str>().unwrap_or(&""));
            }));
        }
        if part != "quiet" {
            let sink = |level, text: &str| LINES.lock().expect("no panic here").push(format!("{level} {text}"));
            assert!(log::set_sink(Some(Box::new(sink)), log::ERROR));
        }
        match part.as_str() {
            "call" | "quiet" => {
                let error = forced().expect_err("it panics");
                assert_eq!(error.status, NMC_ERR_INTERNAL);
                assert!(error.message.contains("forced (src/sync/panics.rs:"), "{error}");
                assert_eq!(lines().len(), usize::from(part == "call"));
                assert!(lines().iter().all(|line| line.contains("forced (src/sync/panics.rs:")));
                assert!(!inside());
            }
            "nested" => {
                catch(|| forced().expect_err("it panics")).expect("the outer one goes on");
                assert_eq!(thread_slot::depth(), OUTSIDE);
            }
            "thread" => {
                let thread = std::thread::spawn(|| forced().is_err());
                assert!(thread.join().expect("it was caught"));
            }
            "outside" | "programs" => {
                catch(|| ()).expect("nothing happens");
                assert!(std::thread::spawn(|| panic!("not ours")).join().is_err());
            }
            "by hand" => assert!(catch_unwind(|| panic!("forced")).is_err()),
            other => panic!("no part {other:?}"),
        }
    }
}
