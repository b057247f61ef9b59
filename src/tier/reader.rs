//! stub
use super::io::{Buffer, File, Options};
use crate::base::error::Result;
use crate::store::backing::DiskReader;
use std::os::fd::OwnedFd;
use std::sync::Arc;
/// x
pub fn flags(_: Options) -> u64 {
    0
}
/// x
pub fn make(_: OwnedFd, _: u64) -> Result<Arc<dyn DiskReader>> {
    crate::bail!(NMC_ERR_UNSUPPORTED, "stub")
}
/// x
pub fn check_record(_: &dyn File, _: u64, _: &[u8], _: u64, _: u64, _: &mut Buffer) -> Result<()> {
    Ok(())
}
