//! A model of what a node stands on, for the tests of its agent and for the simulator: a store, and the tier below it. What a wrong one
//! would do is there too, for the controls.

mod disk;
mod store;

pub use disk::{Directory, SLOTS};
pub use store::{State, Store, sum_of};

/// What a wrong store or tier does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A put to a disk is answered before it is there.
    AnswersBeforeDisk,
    /// A tier that comes back has all that memory has been told.
    NeverApart,
    /// A position is kept for whatever tier there is by now.
    PositionOfAnyTier,
    /// What comes into memory from a tier that is apart stays.
    KeepsPromoted,
    /// A value that has another place by now is not found by the one that it had.
    PinsByName,
    /// A store does not say that its tier is not there any more.
    NeverLeft,
    /// An agent looks at the name of its tier alone.
    TiersByName,
    /// A remove takes the places that were told of, and no other.
    OnePlace,
}
