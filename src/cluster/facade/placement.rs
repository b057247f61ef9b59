//! Where a program itself wants its values: what it says is asked for in the thread that puts, before the put begins, and goes to the leader like
//! places that a put names. No lock is held meanwhile.

use super::Cluster;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::wire::{Location, MAX_COPIES, Replicate, Segment};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How old the list of segments may be that a program is shown.
const AGE: Duration = Duration::from_secs(1);

/// What is to be placed.
pub struct Placing<'a> {
    /// Key of the value.
    pub key: &'a [u8],
    /// Its bytes.
    pub bytes: u64,
    /// Copies that are wanted.
    pub copies: u32,
    /// The segments of the cluster, as the leader listed them lately.
    pub segments: &'a [Segment],
    /// Who puts.
    pub cluster: &'a Cluster,
}

/// A program's own strategy.
pub trait Placement: Send + Sync {
    /// Chooses segments, by their places in the list. None leaves it to the leader; an error ends the put.
    fn place(&self, what: &Placing<'_>) -> Result<Vec<u32>>;
}

/// What a client knows of it.
#[derive(Default)]
pub(super) struct Placements {
    chosen: RwLock<Option<Arc<dyn Placement>>>,
    segments: Mutex<Option<(Instant, Arc<Vec<Segment>>)>>,
}

impl Cluster {
    /// From now on this says where values go that name no place; nobody does if it is none.
    pub fn set_placement(&self, placement: Option<Arc<dyn Placement>>) {
        // The former one may have something to say when it goes, and then no lock is held.
        let former = std::mem::replace(&mut *self.placements.chosen.write(), placement);
        drop(former);
    }

    /// The segments, not older than [`AGE`].
    fn segments_lately(&self, deadline: &Deadline) -> Result<Arc<Vec<Segment>>> {
        if let Some((when, segments)) = &*self.placements.segments.lock()
            && when.elapsed() < AGE
        {
            return Ok(Arc::clone(segments));
        }
        let segments = Arc::new(self.list_segments(deadline)?);
        *self.placements.segments.lock() = Some((Instant::now(), Arc::clone(&segments)));
        Ok(segments)
    }

    /// How a value is put, with the places that the program has chosen.
    pub(super) fn placed(
        &self,
        key: &[u8],
        bytes: u64,
        mut config: Replicate,
        deadline: &Deadline,
    ) -> Result<Replicate> {
        let chosen = self.placements.chosen.read().clone();
        let Some(placement) = chosen.filter(|_| config.fixed.is_empty()) else { return Ok(config) };
        let segments = self.segments_lately(deadline)?;
        let copies = config.copies;
        let places = placement.place(&Placing { key, bytes, copies, segments: &segments, cluster: self })?;
        if places.len() > MAX_COPIES as usize {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "the placement has chosen {} segments; {MAX_COPIES} are possible",
                places.len()
            );
        }
        for (number, at) in places.iter().enumerate() {
            let Some(segment) = segments.get(*at as usize) else {
                crate::bail!(
                    NMC_ERR_INVALID_ARG,
                    "the placement has chosen segment {at}, and there are {} of them",
                    segments.len()
                );
            };
            let info = &segment.info;
            if places.iter().take(number).any(|other| other == at) {
                crate::bail!(NMC_ERR_INVALID_ARG, "the placement has chosen segment \"{}\" twice", info.name);
            }
            let segment = memory::text(&info.name)?;
            memory::push(&mut config.fixed, Location { segment, media: Some(info.media) })?;
        }
        Ok(config)
    }
}
