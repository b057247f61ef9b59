//! What the tests share that call the C functions: structs of the ABI, slices, keys and values.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::expect_used, reason = "a test may")]
#![allow(unsafe_code, reason = "makes structs of the ABI")]

use nanomc::ffi::basic::{NMC_ABI_VERSION, nmc_slice_t};

pub fn slice(bytes: &[u8]) -> nmc_slice_t {
    nmc_slice_t { ptr: bytes.as_ptr().cast(), len: bytes.len() }
}

/// A struct of the ABI that is all zero.
pub fn zeroed<T>() -> T {
    // SAFETY: structs of the ABI hold integers and pointers, for which all zero is a value.
    unsafe { std::mem::zeroed() }
}

/// A struct of the ABI that is all zero but for its size and version.
pub fn fresh<T: Copy>() -> T {
    let mut made = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: structs of the ABI hold integers and pointers, and begin with these two.
    unsafe {
        made.as_mut_ptr().cast::<u32>().write(u32::try_from(size_of::<T>()).expect("a small struct"));
        made.as_mut_ptr().cast::<u32>().add(1).write(NMC_ABI_VERSION);
        made.assume_init()
    }
}

pub fn key(i: usize) -> Vec<u8> {
    format!("key {i:05}").into_bytes()
}

/// A small value that belongs to a key.
pub fn value(i: usize) -> Vec<u8> {
    (0..100 + i % 50).map(|at| u8::try_from((at * 7 + i * 13) % 256).expect("a byte")).collect()
}
