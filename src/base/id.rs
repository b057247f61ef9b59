//! Random identifiers from the kernel: boot ids of masters, names that nobody can guess.

use super::error::{Error, Result};
use std::io::Read as _;

/// 64 random bits from the kernel, never 0.
pub fn random_u64() -> Result<u64> {
    let mut bytes = [0u8; 8];
    let mut source = std::fs::File::open("/dev/urandom").map_err(|e| Error::os("open(/dev/urandom)", &e))?;
    source.read_exact(&mut bytes).map_err(|e| Error::os("read(/dev/urandom)", &e))?;
    Ok(u64::from_ne_bytes(bytes).max(1))
}

/// A number that no other process has. A pid does not do: it means another process in another pid namespace.
pub fn of_process() -> Result<u64> {
    static ID: once_cell::sync::OnceCell<u64> = once_cell::sync::OnceCell::new();
    ID.get_or_try_init(random_u64).copied()
}
