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

/// The slabs of what is on disk: the one that leads to values, and how often they are read. They neither move nor go away while
/// the views are lent.
pub struct MappedDisk {
    /// Of the slabs below; never given out for longer than they live.
    view: disk::View<'static>,
    heat: disk::Heat<'static>,
    slab: Slab,
    heat_slab: Slab,
}

impl MappedDisk {
    /// Looks up what is in the slabs; `None` if they are smaller than they must be for so many entries.
    #[must_use]
    pub fn new(layout: &disk::Layout, entries: u64, slab: Slab, heat_slab: Slab) -> Option<Self> {
        // SAFETY: the slabs stay mapped until they are dropped with this value, and the views are lent for no longer than this
        // value is borrowed.
        let (region, heat) = unsafe { (slab.region_unbound(), heat_slab.region_unbound()) };
        let (view, heat) = (disk::View::new(layout, region)?, disk::Heat::new(entries, heat)?);
        Some(Self { view, heat, slab, heat_slab })
    }

    /// What leads to values.
    #[inline(always)]
    #[must_use]
    pub fn view(&self) -> &disk::View<'_> {
        &self.view
    }

    /// How often they are read.
    #[inline(always)]
    #[must_use]
    pub fn heat(&self) -> &disk::Heat<'_> {
        &self.heat
    }

    /// The slab that leads to values, which its owner writes.
    #[must_use]
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// The slab that everybody writes.
    #[must_use]
    pub fn heat_slab(&self) -> &Slab {
        &self.heat_slab
    }
}
