//! What NICs write to memory of a GPU (GPUDirect RDMA), and when kernels see it: that the writes have ended does not say so on every device.

use cudarc::driver::sys::{
    self, CUdevice_attribute as Attribute, CUflushGPUDirectRDMAWritesScope as Scope,
    CUflushGPUDirectRDMAWritesTarget as Target,
};

use super::device::Device;
use super::error::call;
use crate::bail;
use crate::base::error::Result;

/// Who is to see what a NIC has written to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// That GPU.
    ByOwner,
    /// All that reach its memory.
    ByAll,
}

impl Seen {
    fn scope(self) -> Scope {
        match self {
            Self::ByOwner => Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
            Self::ByAll => Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES,
        }
    }
}

/// What makes writes that have ended visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visible {
    /// They are.
    Already,
    /// The driver does that when it is asked.
    WhenFlushed,
    /// Nothing that the CPU could do.
    Never,
}

/// The same, by what the driver says about a device: how its writes are ordered, and how they can be flushed.
fn visible(ordering: i32, options: i32, seen: Seen) -> Visible {
    const BY_HOST: i32 = sys::CUflushGPUDirectRDMAWritesOptions::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as i32;
    if ordering >= seen.scope() as i32 {
        Visible::Already
    } else if options & BY_HOST != 0 {
        Visible::WhenFlushed
    } else {
        Visible::Never
    }
}

impl Device {
    /// What makes visible what NICs have written to this device.
    pub fn rdma_writes(&self, seen: Seen) -> Result<Visible> {
        let ordering = self.number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?;
        let options = self.number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?;
        Ok(visible(ordering, options, seen))
    }

    /// What NICs have written to this device, and have ended to write, is visible when this returns.
    pub fn flush_rdma_writes(&self, seen: Seen) -> Result<()> {
        match self.rdma_writes(seen)? {
            Visible::Already => Ok(()),
            Visible::WhenFlushed => self.with_current(|| {
                let target = Target::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
                // SAFETY: the context of the device is current; nothing is passed but two numbers.
                unsafe { call!(sys::cuFlushGPUDirectRDMAWrites(target, seen.scope())) }
            }),
            Visible::Never => {
                bail!(NMC_ERR_UNSUPPORTED, "nothing makes what NICs write to device {} visible", self.ordinal())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_flushed_unless_the_device_orders_them_so_far() {
        use Seen::{ByAll, ByOwner};
        use Visible::{Already, Never, WhenFlushed};
        // As the driver says it: no order, for the owner, for all; flushed by the CPU (1), by streams (2).
        let said = [(0, 0), (0, 1), (0, 2), (0, 3), (100, 0), (100, 1), (200, 0), (200, 3)];
        let owner = [Never, WhenFlushed, Never, WhenFlushed, Already, Already, Already, Already];
        let all = [Never, WhenFlushed, Never, WhenFlushed, Never, WhenFlushed, Already, Already];
        assert_eq!(said.map(|(ordering, options)| visible(ordering, options, ByOwner)), owner);
        assert_eq!(said.map(|(ordering, options)| visible(ordering, options, ByAll)), all);
    }
}
