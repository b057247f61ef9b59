//! The KV cache under schedules that shuttle chooses: its sources, compiled with shuttle's locks.
#![allow(clippy::panic, reason = "a test may")]
#![allow(dead_code, unused_imports, unsafe_code, reason = "used by what is left out here; src/lib.rs says where")]

#[path = "../../src/alloc/mod.rs"]
pub mod alloc;
#[path = "../../src/base/mod.rs"]
pub mod base;
pub mod kv;
pub mod layout;
pub mod mem;
pub mod sync;
#[path = "../common/words.rs"]
pub mod words;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for (name, test, expected) in kv::schedules::ALL {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part)) {
            continue;
        }
        println!("test {name} ...");
        let Some(expected) = expected else {
            test();
            continue;
        };
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ())); // where it fails is of no interest
        let ended = std::panic::catch_unwind(test);
        std::panic::set_hook(hook);
        let Err(why) = ended else { panic!("{name}: found nothing") };
        let said = why.downcast_ref::<String>().map(String::as_str).or(why.downcast_ref::<&str>().copied());
        assert!(said.is_some_and(|said| said.contains(expected)), "{name}: {said:?} instead of {expected:?}");
    }
}
