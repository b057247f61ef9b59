//! Memory in pieces: which bytes here go to which bytes there. Whatever others say about their memory is checked against what they have said of it.

use super::sys::Medium;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_PROTOCOL;
use crate::cluster::net::Span;
use crate::cluster::wire::{Extent, Region};

/// Pieces of one transfer.
const MOST_PIECES: usize = 8192;

/// Copies pieces of memory to one place, and gives that.
pub(super) fn gather(from: &[Span], stage: Span) -> Result<Span> {
    let mut at = 0;
    for span in from {
        let to = stage.behind(at);
        if to.len() < span.len() {
            crate::bail!(NMC_ERR_INTERNAL, "{} bytes are too few to copy a value to", stage.len());
        }
        span.copy_to(&to);
        at += span.len();
    }
    Ok(stage.up_to(at))
}

/// A part of what is in pieces: so many bytes from there on, as far as there are any.
pub fn part(pieces: &[Span], offset: u64, length: u64) -> impl Iterator<Item = Span> {
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let (mut offset, mut left) = (size(offset), size(length));
    let part = pieces.iter().map(move |piece| {
        let before = offset.min(piece.len());
        let found = piece.behind(before).up_to(left);
        (offset, left) = (offset - before, left - found.len());
        found
    });
    part.filter(|piece| !piece.is_empty())
}

/// Copies what is in one place to pieces of memory, as much as there is room for.
pub fn scatter(mut from: Span, to: impl Iterator<Item = Span>) {
    for span in to {
        let part = from.up_to(span.len());
        part.copy_to(&span);
        from = from.behind(part.len());
    }
}

/// What pieces are made of, if all of them are in registered memory of one kind.
pub(super) fn medium(pieces: &[Span], registered: impl Iterator<Item = (Span, Medium)> + Clone) -> Result<Medium> {
    let mut found = None;
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        let of = registered.clone().find(|(span, _)| span.holds(piece)).map(|(_, medium)| medium);
        if of.is_none() || found.is_some_and(|found| Some(found) != of) {
            crate::bail!(NMC_ERR_UNSUPPORTED, "memory is not registered, or of two kinds");
        }
        found = of;
    }
    found.ok_or_else(|| Error::new(NMC_ERR_PROTOCOL, "there is nothing to move"))
}

/// Which bytes here go to which addresses there, and what is there: the first extents are filled.
pub(super) fn pair(from: &[Span], into: &[Extent], regions: &[Region]) -> Result<(Vec<(Span, usize)>, Medium)> {
    let mut pieces = memory::with_capacity(from.len().saturating_add(into.len()).min(MOST_PIECES))?;
    let mut medium = None;
    let mut places = into.iter();
    // What is left of the place that is being filled.
    let (mut address, mut room) = (0usize, 0usize);
    for span in from {
        let mut rest = *span;
        while !rest.is_empty() {
            if room == 0 {
                let Some(place) = places.next() else {
                    crate::bail!(NMC_ERR_PROTOCOL, "a value is longer than the room for it");
                };
                let (first, length, of) = locate(place, regions)?;
                if medium.is_some_and(|medium| medium != of) {
                    crate::bail!(NMC_ERR_UNSUPPORTED, "a value goes to memory of two kinds");
                }
                (address, room, medium) = (first, length, Some(of));
                continue;
            }
            if pieces.len() == MOST_PIECES {
                crate::bail!(NMC_ERR_UNSUPPORTED, "a value is in more than {MOST_PIECES} pieces");
            }
            let part = rest.up_to(room);
            pieces.push((part, address));
            rest = rest.behind(part.len());
            (address, room) = (address + part.len(), room - part.len());
        }
    }
    match medium {
        Some(medium) => Ok((pieces, medium)),
        None => crate::bail!(NMC_ERR_PROTOCOL, "there is nothing to move"),
    }
}

/// Where an extent is, for its own process.
fn locate(place: &Extent, regions: &[Region]) -> Result<(usize, usize, Medium)> {
    let outside = || Error::new(NMC_ERR_PROTOCOL, format!("{place:?} is not in memory that was told of"));
    let region = regions.iter().find(|region| region.number == place.region).ok_or_else(outside)?;
    let end = place.offset.checked_add(place.length).filter(|end| *end <= region.length);
    let first = region.base.checked_add(place.offset).filter(|_| end.is_some()).ok_or_else(outside)?;
    let medium = region.device.map_or(Medium::Host, Medium::Device);
    match (usize::try_from(first), usize::try_from(place.length)) {
        (Ok(first), Ok(length)) => Ok((first, length, medium)),
        _ => Err(outside()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(number: u32, base: u64, length: u64) -> Region {
        Region { number, base, length, device: None }
    }

    fn extent(region: u32, offset: u64, length: u64) -> Extent {
        Extent { region, offset, length }
    }

    #[test]
    fn bytes_go_to_the_first_places_that_were_named() {
        let from = [Span::of_test(1000, 10), Span::of_test(2000, 0), Span::of_test(3000, 10)];
        let regions = [region(1, 50_000, 100), region(2, 90_000, 100)];
        let into = [extent(2, 5, 6), extent(1, 0, 0), extent(1, 90, 10), extent(2, 50, 50)];
        let (pieces, medium) = pair(&from, &into, &regions).unwrap();
        let pieces: Vec<_> = pieces.iter().map(|(span, to)| (span.first(), span.len(), *to)).collect();
        assert_eq!(pieces, [(1000, 6, 90_005), (1006, 4, 50_090), (3000, 6, 50_094), (3006, 4, 90_050)]);
        assert_eq!(medium, Medium::Host);
    }

    #[test]
    fn what_lies_outside_of_what_was_told_is_refused() {
        let from = [Span::of_test(1000, 10)];
        let regions = [region(1, 50_000, 100), region(2, u64::MAX - 4, 100)];
        for bad in
            [extent(3, 0, 10), extent(1, 91, 10), extent(1, u64::MAX, 10), extent(1, 5, u64::MAX), extent(2, 8, 10)]
        {
            assert!(pair(&from, std::slice::from_ref(&bad), &regions).is_err(), "{bad:?}");
        }
        assert!(pair(&from, &[extent(1, 0, 9)], &regions).is_err(), "too little room");
        assert!(pair(&[], &[extent(1, 0, 9)], &regions).is_err());
        let gpu = Region { device: Some(1), ..region(3, 70_000, 100) };
        let two = [extent(1, 0, 5), extent(3, 0, 5)];
        assert!(pair(&from, &two, &[region(1, 50_000, 100), gpu]).is_err(), "of two kinds");
    }

    #[test]
    fn a_part_of_what_is_in_pieces_is_where_its_bytes_are() {
        let all = [Span::of_test(1000, 10), Span::of_test(2000, 0), Span::of_test(3000, 10)];
        let of = |offset, length| part(&all, offset, length).map(|span| (span.first(), span.len())).collect::<Vec<_>>();
        assert_eq!(of(0, 20), [(1000, 10), (3000, 10)]);
        assert_eq!(of(8, 5), [(1008, 2), (3000, 3)]);
        assert_eq!(of(10, 4), [(3000, 4)]);
        assert_eq!(of(19, 5), [(3009, 1)]);
        assert_eq!(of(20, 1), []);
        assert_eq!(of(u64::MAX, u64::MAX), []);
        assert_eq!(of(3, 0), []);
    }

    #[test]
    fn only_registered_memory_is_read() {
        let own = [(Span::of_test(1000, 100), Medium::Host), (Span::of_test(5000, 100), Medium::Device(1))];
        let of = |pieces: &[Span]| medium(pieces, own.iter().copied()).ok();
        assert_eq!(of(&[Span::of_test(1000, 100), Span::of_test(1099, 1)]), Some(Medium::Host));
        assert_eq!(of(&[Span::of_test(5010, 9)]), Some(Medium::Device(1)));
        assert_eq!(of(&[Span::of_test(1000, 101)]), None);
        assert_eq!(of(&[Span::of_test(999, 1)]), None);
        assert_eq!(of(&[Span::of_test(1000, 1), Span::of_test(5000, 1)]), None);
        assert_eq!(of(&[]), None);
    }
}
