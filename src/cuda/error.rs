//! Turns a driver result into the library's error, naming the call, the number, CUDA's name for it and its sentence.
//! Only the files of `cuda` use it.

use core::ffi::{CStr, c_char};

use cudarc::driver::sys::{self, CUresult};

use crate::base::error::{Error, Result};
use crate::base::status::{NMC_ERR_CUDA, NMC_ERR_NO_MEMORY};

/// Calls a driver function and checks its result: `call!(sys::cuInit(0))?`. Used inside an `unsafe` block.
macro_rules! call {
    (sys::$function:ident($($argument:expr),* $(,)?)) => {
        $crate::cuda::error::check(stringify!($function), sys::$function($($argument),*))
    };
}
pub(super) use call;

/// `Ok` for `CUDA_SUCCESS`; out of memory becomes `NMC_ERR_NO_MEMORY`, everything else `NMC_ERR_CUDA`.
pub(super) fn check(name: &str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failure(name, result)) }
}

/// The error for a result that is not success.
pub(super) fn failure(name: &str, result: CUresult) -> Error {
    let status = if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY { NMC_ERR_NO_MEMORY } else { NMC_ERR_CUDA };
    // SAFETY: both functions are in the probed list, and a result exists only after the probe passed.
    let (cuda_name, sentence) = unsafe {
        (text(result, |r, out| sys::cuGetErrorName(r, out)), text(result, |r, out| sys::cuGetErrorString(r, out)))
    };
    Error::new(status, format!("{name} failed with {} {cuda_name}: {sentence}", result as u32))
}

fn text(result: CUresult, get: impl FnOnce(CUresult, *mut *const c_char) -> CUresult) -> String {
    let mut out: *const c_char = core::ptr::null();
    if get(result, &raw mut out) != CUresult::CUDA_SUCCESS || out.is_null() {
        return String::from("(unknown to this driver)");
    }
    // SAFETY: the driver returns a static NUL-terminated string on success.
    unsafe { CStr::from_ptr(out) }.to_string_lossy().into_owned()
}
