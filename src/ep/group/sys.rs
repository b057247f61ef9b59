//! Where the memory of a group lies: regions of its ranks on host heaps, and on the GPU.
#![allow(unsafe_code, reason = "regions are made from addresses")]

use super::Ep;
use crate::base::error::Result;
use crate::cuda::Device;
use crate::ep::cpu::HostRank;
use crate::ep::sys::{Region, size};

impl Ep {
    /// The transport region of a rank of the group in host memory; nothing on a GPU, or if there is no such rank.
    fn region(&self, number: usize) -> Region<'_> {
        let base = if self.gpu.is_none() { self.desc.region.get(number).copied().unwrap_or(0) } else { 0 };
        // SAFETY: `create` found the heaps in the membership, which keeps them mapped, and checked that the region fits.
        unsafe { Region::new(base, self.shape.region_bytes()) }
    }

    /// Where bytes of the region of a rank lie on the GPU. Only where the group lies on one.
    fn on_gpu(&self, number: u32, offset: u64, bytes: u64) -> Result<u64> {
        let base = self.desc.region.get(number as usize).copied().filter(|base| self.gpu.is_some() && *base != 0);
        match (base, offset.checked_add(bytes).filter(|end| *end <= self.shape.region_bytes())) {
            (Some(base), Some(_)) => Ok(base + offset),
            _ => crate::bail!(NMC_ERR_INTERNAL, "{bytes} bytes at {offset} are not in the region of rank {number}"),
        }
    }

    /// Copies to own region on the GPU, and waits.
    pub(super) fn write_own(&self, device: &Device, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.on_gpu(self.desc.rank, offset, bytes.len() as u64)?;
        // SAFETY: `create` found the region in the membership, which keeps it mapped, and checked that it fits; steps of others write to it
        // when this has come, which they are told.
        unsafe { device.write_now(at, bytes) }
    }

    /// Fills the first bytes of own region on the GPU with zeros, and waits.
    pub(super) fn clear_own(&self, device: &Device, bytes: u64) -> Result<()> {
        let at = self.on_gpu(self.desc.rank, 0, bytes)?;
        // SAFETY: as in `write_own`.
        unsafe { device.zero_now(at, size(bytes)) }
    }

    /// Copies words of own region on the GPU, which are being counted, and waits.
    pub(super) fn read_own(&self, device: &Device, offset: u64, words: &mut [u64]) -> Result<()> {
        let at = self.on_gpu(self.desc.rank, offset, size_of_val(words) as u64)?;
        // SAFETY: as in `write_own`.
        unsafe { device.read_now(at, words) }
    }

    /// Has a word of the protocol stored in the region of a rank on a GPU, without waiting.
    pub(super) fn store_urgently(&self, device: &Device, number: u32, offset: u64, word: u64) -> Result<()> {
        let at = self.on_gpu(number, offset, 8)?;
        // SAFETY: as in `write_own`, and a word that is only used as an atomic. The membership, which keeps it mapped, goes after the group,
        // and that synchronizes the device when it is dropped.
        unsafe { device.write_urgently(at, word) }
    }

    /// Own region.
    pub(super) fn own_region(&self) -> Region<'_> {
        self.region(self.desc.rank as usize)
    }

    /// This rank on host memory, for the CPU backend.
    pub(in crate::ep) fn host_rank(&self, layer: u32) -> HostRank<'_> {
        let regions = std::array::from_fn(|number| self.region(number));
        // SAFETY: the descriptor of this group, with whose sizes its calls are checked.
        unsafe { HostRank::new(self.desc_for(layer), regions, self.status.words()) }
    }
}
