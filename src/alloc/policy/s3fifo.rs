//! S3-FIFO: entries pass a small queue first, a tenth of all. Those that were used there, or that come back soon after they
//! left it, go on to the main queue, where a use is worth another round, up to three; the others leave. So a scan does not
//! drive out what is in use, and no use moves an entry: it only counts up its heat.
//!
//! What left the small queue is remembered by 32 bits of its name, in a table in which newer ones overwrite older ones.

use super::{Entry, Policy, Queue, Turn, take};
use crate::base::error::Result;
use crate::base::memory;

const SMALL: u16 = 0;
const MAIN: u16 = 1;
/// The small queue is to have one entry of this many.
const SHARE: u64 = 10;
/// Uses are counted up to this.
const WARM: u8 = 3;

pub struct S3Fifo {
    /// 0 is none.
    ghosts: Vec<u32>,
}

impl S3Fifo {
    /// Remembers so many entries that left, about.
    pub fn new(ghosts: usize) -> Result<Self> {
        Ok(Self { ghosts: memory::zeroed(ghosts.max(1))? })
    }

    pub fn bytes(&self) -> usize {
        self.ghosts.capacity() * size_of::<u32>()
    }

    /// Where a name is remembered, and as what.
    fn ghost(&mut self, name: u64) -> (&mut u32, u32) {
        #[allow(clippy::cast_possible_truncation, reason = "parts of a hash, and fewer ghosts than entries")]
        let (place, print) = (name as u32 % self.ghosts.len() as u32, (name >> 32) as u32 | 1);
        (&mut self.ghosts[place as usize], print)
    }

    /// The queue whose turn it is.
    fn turn<E: Entry>(queue: &Queue<'_, E>) -> u16 {
        let (small, main) = (u64::from(queue.list(SMALL).len()), u64::from(queue.list(MAIN).len()));
        if small > 0 && (main == 0 || small * SHARE >= small + main) { SMALL } else { MAIN }
    }
}

impl Policy for S3Fifo {
    const LISTS: u16 = 2;

    fn joins<E: Entry>(&mut self, entry: &mut E, name: u64) -> u16 {
        entry.set_heat(0);
        let (ghost, print) = self.ghost(name);
        if *ghost == print {
            *ghost = 0;
            return MAIN;
        }
        SMALL
    }

    #[inline]
    fn touch<E: Entry>(&mut self, queue: &mut Queue<'_, E>, id: u32) {
        let entry = &mut queue.table[id as usize];
        entry.set_heat((entry.heat() + 1).min(WARM));
    }

    fn victim<E: Entry>(
        &mut self,
        queue: &mut Queue<'_, E>,
        looks: &mut usize,
        mut judge: impl FnMut(&mut E, u32) -> Turn,
    ) -> Option<u32> {
        let all = u64::from(queue.list(SMALL).len()) + u64::from(queue.list(MAIN).len());
        // Every round ends it, moves an entry to the main queue, or cools one there, each at most `WARM` times.
        for _ in 0..all * u64::from(WARM + 2) {
            let from = Self::turn(queue);
            let id = queue.list(from).front().filter(|_| take(looks))?;
            let entry = &mut queue.table[id as usize];
            let (verdict, heat) = (judge(entry, id), entry.heat());
            if let Turn::Goes(name) = verdict
                && heat == 0
            {
                if from == SMALL {
                    let (ghost, print) = self.ghost(name);
                    *ghost = print;
                }
                return Some(id);
            }
            // What stays does so as if it were used.
            entry.set_heat(if from == SMALL { 0 } else { heat.saturating_sub(1) });
            queue.move_to(MAIN, id);
        }
        // All of the main queue stays, and the small one is too short for its turn.
        (SMALL..=MAIN).find_map(|list| queue.first_to_go(list, looks, &mut judge))
    }

    fn front<E: Entry>(&self, queue: &Queue<'_, E>) -> Option<u32> {
        queue.list(Self::turn(queue)).front()
    }
}
