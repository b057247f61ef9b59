//! What a power loss leaves: for every sector, size and name one of its versions, each chosen by itself; what is in a folder
//! that has no name is lost. One thing holds: a file that had a name that lasts, and has one now, has a name afterwards.

use super::versions::Versions;
use super::{Contents, Folder, Random, SECTOR, SimDisk, State, index};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How often names are drawn again that leave a file without one.
const MOST_DRAWS: u32 = 100;

/// Who decides which versions stay.
trait Choose {
    /// The choices that follow are about the names, or about one file.
    fn begin(&mut self);
    /// A number below `choices`; 0 is the oldest version.
    fn choose(&mut self, choices: usize) -> usize;
}

/// By chance. Often all of a file is lost or all of it stays, which would be rare if every sector were drawn by itself.
struct Chance<'a> {
    rng: &'a mut Random,
    mode: u32,
}

impl Choose for Chance<'_> {
    fn begin(&mut self) {
        self.mode = self.rng.below(4);
    }

    fn choose(&mut self, choices: usize) -> usize {
        match self.mode {
            0 => 0,
            1 => choices - 1,
            _ => self.rng.below(u32::try_from(choices).unwrap()) as usize,
        }
    }
}

/// One after the other: a number with a digit for every choice, counted up.
#[derive(Default)]
struct Counter {
    /// Digit and choices.
    digits: Vec<(usize, usize)>,
    at: usize,
}

impl Choose for Counter {
    fn begin(&mut self) {}

    fn choose(&mut self, choices: usize) -> usize {
        if self.at == self.digits.len() {
            self.digits.push((0, choices));
        }
        self.at += 1;
        self.digits[self.at - 1].0
    }
}

impl Counter {
    /// Goes on to the next number; false after the last.
    fn next(&mut self) -> bool {
        self.digits.truncate(std::mem::take(&mut self.at));
        while let Some((digit, choices)) = self.digits.pop() {
            if digit + 1 < choices {
                self.digits.push((digit + 1, choices));
                return true;
            }
        }
        false
    }
}

/// Always the newest.
struct Newest;

impl Choose for Newest {
    fn begin(&mut self) {}

    fn choose(&mut self, choices: usize) -> usize {
        choices - 1
    }
}

impl Contents {
    fn after_crash(&self, choose: &mut dyn Choose) -> Self {
        choose.begin();
        let bytes = *self.bytes.choice(choose.choose(self.bytes.choices()));
        let mut all = Arc::clone(&self.lasting);
        for (number, versions) in &self.sectors {
            let sector = versions.choice(choose.choose(versions.choices()));
            let (all, end) = (Arc::make_mut(&mut all), (number + 1) * SECTOR);
            all.resize(all.len().max(end), 0);
            all[end - SECTOR..end].copy_from_slice(sector);
        }
        if all.len() > index(bytes) {
            Arc::make_mut(&mut all).truncate(index(bytes));
        }
        Self { lasting: all, is_folder: self.is_folder, ..Self::lasting(Vec::new(), bytes) }
    }
}

/// A name that somebody has come to, by the version of it and of all folders on the way.
type Reached<'a> = (Folder, &'a str, usize);

impl State {
    /// All names that lead somewhere, if `pick` says which version of each counts.
    fn reached(&self, mut pick: impl FnMut(&Versions<Option<usize>>) -> Option<usize>) -> Vec<Reached<'_>> {
        let (mut names, mut folders) = (Vec::new(), BTreeSet::from([0]));
        // Those of a folder come after that of the folder itself.
        for ((folder, name), versions) in &self.names {
            let Some(file) = pick(versions).filter(|_| folders.contains(folder)) else { continue };
            // A folder that is renamed has the old name or the new one; no file system gives it both.
            if !self.files[file].is_folder || folders.insert(file + 1) {
                names.push((*folder, name.as_str(), file));
            }
        }
        names
    }

    /// The names after a power loss; none if a file has lost its name that must not.
    fn names_after_crash(&self, choose: &mut dyn Choose) -> Option<Vec<Reached<'_>>> {
        choose.begin();
        let names = self.reached(|versions| *versions.choice(choose.choose(versions.choices())));
        let files = |names: &[Reached<'_>]| names.iter().map(|(.., file)| *file).collect::<BTreeSet<_>>();
        let (left, now) = (files(&names), files(&self.reached(|versions| *versions.now())));
        let lasting = files(&self.reached(|versions| *versions.choice(0)));
        lasting.iter().all(|file| left.contains(file) || !now.contains(file)).then_some(names)
    }

    fn after_crash(&self, names: &[Reached<'_>], choose: &mut dyn Choose) -> Self {
        let mut after = Self::default();
        // A file may have two names.
        let mut numbers = std::collections::BTreeMap::new();
        for (folder, name, file) in names {
            let number = *numbers.entry(*file).or_insert_with(|| {
                after.files.push(self.files[*file].after_crash(choose));
                after.files.len() - 1
            });
            let folder = folder.checked_sub(1).map_or(0, |folder| numbers[&folder] + 1);
            after.names.insert((folder, (*name).into()), Versions::new(Some(number)));
        }
        after
    }
}

impl SimDisk {
    /// What a power loss may leave, by chance.
    #[must_use]
    pub fn crash(&self, rng: &mut Random) -> Self {
        let state = self.state.lock();
        let mut chance = Chance { rng, mode: 0 };
        let drawn = (0..MOST_DRAWS).find_map(|_| state.names_after_crash(&mut chance));
        let names = drawn.or_else(|| state.names_after_crash(&mut Newest)).unwrap();
        Self::of(state.after_crash(&names, &mut chance))
    }

    /// Everything that a power loss may leave, or `limit` of it by chance if there is more.
    #[must_use]
    pub fn crash_all(&self, limit: usize) -> Vec<Self> {
        let (mut counter, mut all) = (Counter::default(), Vec::new());
        let state = self.state.lock();
        loop {
            if let Some(names) = state.names_after_crash(&mut counter) {
                all.push(Self::of(state.after_crash(&names, &mut counter)));
            }
            if !counter.next() {
                return all;
            }
            if all.len() == limit {
                break;
            }
        }
        drop(state);
        let mut rng = Random(u64::from_le_bytes(*b"powerout"));
        (0..limit).map(|_| self.crash(&mut rng)).collect()
    }
}
