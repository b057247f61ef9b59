//! Reads of what a writer sealed: metadata, and checksums of pages.

use crate::base::crc::{Combine, crc32c_combine};
use crate::base::error::Result;
use crate::layout::store::{Metadata, ObjectHeader, Seal, Shape, View};
use crate::store::client::Store;
use crate::store::copy::{check_seal, check_sums, metadata_of, seal_of};
use crate::store::types::{Look, Pin, Sums, corrupt, shaped};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

impl Store {
    /// What the checksums of a pinned object are bound to, and whether its writer has sealed a value of this size so;
    /// `None` in a store without checksums.
    #[inline(always)]
    pub(in crate::store) fn seal(
        &self,
        view: &View<'_>,
        key: &[u8],
        pin: Pin,
        header: &ObjectHeader,
        shape: &Shape,
    ) -> Result<Option<Seal>> {
        seal_of(&self.client.map, view, (self.namespace, key), pin, header, shape)
    }

    /// What its writer said about an object.
    pub fn metadata(&self, key: &[u8]) -> Result<Look<Metadata>> {
        let view = self.client.view();
        Ok(match self.pin_complete(view, key)? {
            Look::Ready(pin) => {
                let found = self.sealed_metadata(view, pin, self.client.map.hash_of(key, self.namespace));
                self.release_pin(view, pin.slot);
                Look::Ready(found?.0)
            }
            Look::Writing(index, epoch) => Look::Writing(index, epoch),
            Look::Missing => Look::Missing,
        })
    }

    /// The same for an object that the program has pinned.
    pub fn view_metadata(&self, pin: Pin) -> Result<Look<Metadata>> {
        let view = self.client.view();
        self.check_view(pin)?;
        if self.awaits_sums(pin.index) {
            return Ok(Look::Writing(pin.index, pin.epoch));
        }
        let (header, _) = shaped(view, pin.index)?;
        // Of what the seal was made with: another hash breaks it.
        Ok(Look::Ready(self.sealed_metadata(view, pin, header.key_hash.load(Relaxed))?.0))
    }

    /// The metadata of a pinned object; where there are checksums, as its writer sealed it, with the seal.
    fn sealed_metadata(&self, view: &View<'_>, pin: Pin, key_hash: u64) -> Result<(Metadata, Option<Seal>)> {
        let (header, shape) = shaped(view, pin.index)?;
        let metadata = metadata_of(view, pin.index, header)?;
        if self.client.params().checksums == 0 {
            return Ok((metadata, None));
        }
        let seal = Seal { key_hash, epoch: pin.epoch, metadata: Seal::sum(&metadata) };
        Ok((metadata, Some(check_seal(view, pin.index, &shape, seal)?)))
    }

    /// Compares all pages of an object that the program has pinned with their checksums.
    pub fn verify(&self, pin: Pin) -> Result<Look<()>> {
        self.verify_part(pin, 0..u64::MAX)
    }

    /// The same for the pages of which a part has something.
    pub fn verify_part(&self, pin: Pin, part: Range<u64>) -> Result<Look<()>> {
        let view = self.client.view();
        self.check_view(pin)?;
        if self.client.params().checksums == 0 {
            crate::bail!(NMC_ERR_UNSUPPORTED, "the store keeps no checksums (set NMC_STORE_CHECKSUMS)");
        }
        if self.awaits_sums(pin.index) {
            return Ok(Look::Writing(pin.index, pin.epoch));
        }
        let (header, shape) = shaped(view, pin.index)?;
        if let (_, Some(seal)) = self.sealed_metadata(view, pin, header.key_hash.load(Relaxed))? {
            let part = part.start..part.end.min(shape.bytes_total);
            self.check_sums(view, (pin.index, header, &shape), part, seal, Sums::Touched)?;
        }
        Ok(Look::Ready(()))
    }

    /// CRC32C of all bytes of an object that is pinned, as its writer had them: made of the checksums of its pages, without a look at any byte. `None` where
    /// there are none, or not yet. `pages` is for pieces of a page.
    pub fn sealed_sum(&self, pin: Pin, pages: &Combine) -> Result<Option<u32>> {
        let view = self.client.view();
        self.check_view(pin)?;
        if self.awaits_sums(pin.index) {
            return Ok(None);
        }
        let (header, shape) = shaped(view, pin.index)?;
        let (_, Some(seal)) = self.sealed_metadata(view, pin, header.key_hash.load(Relaxed))? else { return Ok(None) };
        let page = u64::from(self.client.params().page_bytes);
        let (mut sum, mut at) = (0, 0);
        for run in view.runs(header, &shape) {
            let (first, count) = run.ok_or_else(|| corrupt(pin.index))?;
            for heap_page in (first..).take(count as usize) {
                let of = view.sum(shape.owner_rank, heap_page).ok_or_else(|| corrupt(pin.index))?.load(Acquire);
                // That of a page begins with its seed, as if bytes with that sum stood before it.
                let before = sum ^ seal.page_seed(at);
                let left = shape.bytes_total.saturating_sub(at * page);
                sum = if left >= page { pages.combine(before, of) } else { crc32c_combine(before, of, left) };
                at += 1;
            }
        }
        Ok(Some(sum))
    }

    /// Whether a pinned object was published by its program before `commit` has stored the checksums: nothing can be
    /// verified yet.
    #[must_use]
    pub fn awaits_sums(&self, index: u32) -> bool {
        let view = self.client.view();
        view.layout.params.checksums != 0
            && view.publish(index).is_some_and(|words| !Seal::is_word(words.progress.load(Acquire)))
    }

    /// Compares the checksums of pages.
    pub(in crate::store) fn check_sums(
        &self,
        view: &View<'_>,
        (index, header, shape): (u32, &ObjectHeader, &Shape),
        part: Range<u64>,
        seal: Seal,
        sums: Sums,
    ) -> Result<()> {
        let base = self.client.base(shape.owner_rank)?;
        check_sums(view, (index, header, shape), base, part, seal, sums)
    }
}
