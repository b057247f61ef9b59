//! The slabs of a store and the views of them, which are made once and lie beside the memory that they show.

use super::Slab;
use crate::layout::disk;
use crate::layout::store::{Layout, View};

/// See the module. The slabs neither move nor go away while the view is lent.
pub struct MappedView {
    /// Of the slabs below; never given out for longer than they live.
    view: View<'static>,
    control: Slab,
    words: Slab,
}

impl MappedView {
    /// Looks up what is in the slabs; `None` if they are smaller than `layout` says.
    #[must_use]
    pub fn new(layout: Layout, control: Slab, words: Slab) -> Option<Self> {
        // SAFETY: both slabs stay mapped until they are dropped with this value, and `view` lends what is in them for
        // no longer than this value is borrowed.
        let (in_control, in_words) = unsafe { (control.region_unbound(), words.region_unbound()) };
        Some(Self { view: View::new(layout, in_control, in_words)?, control, words })
    }

    /// What is in the slabs.
    #[inline(always)]
    #[must_use]
    pub fn view(&self) -> &View<'_> {
        &self.view
    }

    /// The slab that the master writes.
    #[must_use]
    pub fn control(&self) -> &Slab {
        &self.control
    }

    /// The slab that clients write.
    #[must_use]
    pub fn words(&self) -> &Slab {
        &self.words
    }
}

/// The slab that leads to values on disk. It neither moves nor goes away while the view is lent.
pub struct MappedDisk {
    /// Of the slab below; never given out for longer than it lives.
    view: disk::View<'static>,
    slab: Slab,
}

impl MappedDisk {
    /// Looks up what is in the slab; `None` if it is smaller than `layout` says.
    #[must_use]
    pub fn new(layout: &disk::Layout, slab: Slab) -> Option<Self> {
        // SAFETY: the slab stays mapped until it is dropped with this value, and `view` lends what is in it for no longer than
        // this value is borrowed.
        let region = unsafe { slab.region_unbound() };
        Some(Self { view: disk::View::new(layout, region)?, slab })
    }

    /// What is in the slab.
    #[inline(always)]
    #[must_use]
    pub fn view(&self) -> &disk::View<'_> {
        &self.view
    }

    /// The slab.
    #[must_use]
    pub fn slab(&self) -> &Slab {
        &self.slab
    }
}
