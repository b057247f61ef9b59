//! Config structs of any age: a program compiled against an older header passes a shorter struct, one compiled
//! against a newer header a longer one. What is missing takes its default; what is unknown must be zero.

use crate::base::error::Result;
use crate::base::status::NMC_ERR_VERSION;

/// Largest `struct_size` that is looked at.
const MAX_STRUCT_BYTES: u32 = 4096;

/// A config struct of the ABI.
///
/// # Safety
/// The type is `repr(C)`, starts with `struct_size: u32, abi_version: u32`, holds only integers and raw
/// pointers (any bit pattern is valid), and has no padding.
pub unsafe trait Config: Copy {
    /// Name for messages.
    const NAME: &'static str;
    /// What the C initialiser macro stores.
    fn defaults() -> Self;
}

/// Reads a caller's config, whatever its age.
///
/// # Safety
/// `ptr` is NULL or points to at least 8 readable bytes, and to `struct_size` readable bytes.
pub(crate) unsafe fn read<C: Config>(ptr: *const C) -> Result<C> {
    if ptr.is_null() || !ptr.cast::<u64>().is_aligned() {
        crate::bail!(NMC_ERR_INVALID_ARG, "{}: the config pointer is NULL or not aligned to 8 bytes", C::NAME);
    }
    // SAFETY: the caller promises at least 8 readable bytes, and the alignment was checked.
    let (size, abi) = unsafe { (ptr.cast::<u32>().read(), ptr.cast::<u32>().add(1).read()) };
    let known = size_of::<C>();
    if !(8..=MAX_STRUCT_BYTES).contains(&size) || size % 4 != 0 || abi == 0 {
        return Err(crate::base::Error::new(
            NMC_ERR_VERSION,
            format!(
                "{}: struct_size {size} and abi_version {abi} are not those of a config; start from its _INIT macro",
                C::NAME
            ),
        ));
    }
    let size = size as usize;
    let mut config = C::defaults();
    // SAFETY: both regions hold at least min(size, known) bytes, and any bit pattern is a valid C (trait contract).
    unsafe { std::ptr::copy_nonoverlapping(ptr.cast::<u8>(), (&raw mut config).cast::<u8>(), size.min(known)) };
    if size > known {
        // SAFETY: the caller promises `size` readable bytes.
        let tail = unsafe { std::slice::from_raw_parts(ptr.cast::<u8>().add(known), size - known) };
        if let Some(at) = tail.iter().position(|b| *b != 0) {
            crate::bail!(
                NMC_ERR_VERSION,
                "{}: byte {} of {size} is set, but this library knows only {known}; it is older than the header",
                C::NAME,
                known + at
            );
        }
    }
    Ok(config)
}
