//! Memory that may be refused. The standard collections end the process when they cannot grow; what follows from a
//! config, an argument or growth is reserved through these functions first, which give `NMC_ERR_NO_MEMORY` instead.

use super::error::{Error, Result};
use super::status::NMC_ERR_NO_MEMORY;
use super::sys;
pub use super::sys::Zero;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash};

/// The error for `n` things of type `T` that no memory was given for.
#[cold]
#[must_use]
pub fn refused<T>(n: usize) -> Error {
    let bytes = n.saturating_mul(size_of::<T>().max(1));
    Error::new(NMC_ERR_NO_MEMORY, format!("the system's allocator refused {bytes} bytes"))
}

/// An empty list with room for `n`.
pub fn with_capacity<T>(n: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(n).map_err(|_| refused::<T>(n))?;
    Ok(list)
}

/// A list of `n` times `value`.
pub fn vec_of<T: Clone>(n: usize, value: T) -> Result<Vec<T>> {
    let mut list = with_capacity(n)?;
    list.resize(n, value);
    Ok(list)
}

/// A list of `n` zeros. Large ones are pages that take no memory until they are used.
pub fn zeroed<T: Zero>(n: usize) -> Result<Vec<T>> {
    sys::zeroed(n).ok_or_else(|| refused::<T>(n))
}

/// A list of `n` things, made by their numbers.
pub fn vec_with<T>(n: usize, make: impl FnMut(usize) -> T) -> Result<Vec<T>> {
    let mut list = with_capacity(n)?;
    list.extend((0..n).map(make));
    Ok(list)
}

/// A list of everything in `items`.
pub fn collect<T>(items: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    try_collect(items.into_iter().map(Ok))
}

/// A list of everything in `items`, or the first error.
pub fn try_collect<T>(items: impl IntoIterator<Item = Result<T>>) -> Result<Vec<T>> {
    let items = items.into_iter();
    let mut list = with_capacity(items.size_hint().0)?;
    for item in items {
        push(&mut list, item?)?;
    }
    Ok(list)
}

/// A list with the same entries.
pub fn copy<T: Clone>(items: &[T]) -> Result<Vec<T>> {
    let mut list = with_capacity(items.len())?;
    list.extend_from_slice(items);
    Ok(list)
}

/// Makes room for `more` entries after those that are there.
#[inline]
pub fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    list.try_reserve(more).map_err(|_| refused::<T>(list.len().saturating_add(more)))
}

/// Makes room for `n` entries in all.
#[inline]
pub fn reserve_to<T>(list: &mut Vec<T>, n: usize) -> Result<()> {
    reserve(list, n.saturating_sub(list.len()))
}

/// Puts an entry at the end.
#[inline]
pub fn push<T>(list: &mut Vec<T>, item: T) -> Result<()> {
    reserve(list, 1)?;
    list.push(item);
    Ok(())
}

/// Puts entries at the end: all of them, or none.
pub fn extend<T: Clone>(list: &mut Vec<T>, items: &[T]) -> Result<()> {
    reserve(list, items.len())?;
    list.extend_from_slice(items);
    Ok(())
}

/// Makes a list longer, with `value` in the new entries, or shorter.
pub fn resize<T: Clone>(list: &mut Vec<T>, n: usize, value: T) -> Result<()> {
    reserve(list, n.saturating_sub(list.len()))?;
    list.resize(n, value);
    Ok(())
}

/// Makes room for `more` entries in a queue.
#[inline]
pub fn reserve_queue<T>(queue: &mut VecDeque<T>, more: usize) -> Result<()> {
    queue.try_reserve(more).map_err(|_| refused::<T>(queue.len().saturating_add(more)))
}

/// Makes room for `more` entries in a map.
#[inline]
pub fn reserve_map<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>, more: usize) -> Result<()> {
    map.try_reserve(more).map_err(|_| refused::<(K, V)>(map.len().saturating_add(more)))
}

/// A copy of a text.
pub fn text(from: &str) -> Result<String> {
    let mut copy = String::new();
    copy.try_reserve_exact(from.len()).map_err(|_| refused::<u8>(from.len()))?;
    copy.push_str(from);
    Ok(copy)
}

/// A text that grows by `write!`, which fails where no memory is given.
#[derive(Default)]
pub struct Text(String);

impl Text {
    /// The text, or `NMC_ERR_NO_MEMORY` if `written` tells that a part of it is missing.
    pub fn finish(self, written: std::fmt::Result) -> Result<String> {
        written.map_err(|_| refused::<u8>(self.0.len() * 2)).map(|()| self.0)
    }
}

impl std::fmt::Write for Text {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        self.0.try_reserve(part.len()).map_err(|_| std::fmt::Error)?;
        self.0.push_str(part);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_had_is_refused_with_its_size() {
        let error = vec_of(usize::MAX / 16, 0u64).unwrap_err();
        assert_eq!(error.status, NMC_ERR_NO_MEMORY);
        assert!(error.message.contains(&(usize::MAX / 16 * 8).to_string()), "{error}");
        assert_eq!(with_capacity::<u64>(usize::MAX).unwrap_err().status, NMC_ERR_NO_MEMORY);
        let mut list = vec![1u8];
        assert_eq!(reserve(&mut list, usize::MAX).unwrap_err().status, NMC_ERR_NO_MEMORY);
        assert_eq!(reserve_map(&mut HashMap::<u64, u64>::new(), usize::MAX).unwrap_err().status, NMC_ERR_NO_MEMORY);
        assert_eq!(reserve_queue(&mut VecDeque::<u64>::new(), usize::MAX).unwrap_err().status, NMC_ERR_NO_MEMORY);
        assert_eq!(list, [1]);
    }

    #[test]
    fn what_can_be_had_is_as_asked() {
        assert_eq!(vec_of(3, 7).unwrap(), [7, 7, 7]);
        assert_eq!(zeroed::<u32>(3).unwrap(), [0, 0, 0]);
        assert!(zeroed::<u64>(0).unwrap().is_empty());
        assert_eq!(zeroed::<u64>(usize::MAX).unwrap_err().status, NMC_ERR_NO_MEMORY);
        assert_eq!(vec_with(3, |i| i).unwrap(), [0, 1, 2]);
        assert_eq!(collect((0..9).filter(|i| i % 2 == 1)).unwrap(), [1, 3, 5, 7]);
        assert_eq!(try_collect([Ok(1), Err(refused::<u8>(5))]).unwrap_err(), refused::<u8>(5));
        let mut list = copy(&[1, 2]).unwrap();
        extend(&mut list, &[3]).unwrap();
        resize(&mut list, 4, 9).unwrap();
        assert_eq!(list, [1, 2, 3, 9]);
        let mut text = Text::default();
        let written = std::fmt::Write::write_fmt(&mut text, format_args!("{}-{}", 1, 2));
        assert_eq!(text.finish(written).unwrap(), "1-2");
    }
}
