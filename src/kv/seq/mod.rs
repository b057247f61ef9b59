//! Sequences: what one is ([`Seq`]), and what a call does to it ([`Editor`]) with blocks from the [`Supply`] that all of them
//! share. Nothing here knows how sequences are found or which threads use them; `cache` does.

mod editor;
mod sequence;
mod supply;
mod types;

pub(super) use editor::{Editor, standing_block};
pub(super) use sequence::Seq;
pub(super) use supply::{Aligned, Supply};
pub use types::{BlockCopy, MAX_TOKENS, Open, Opened, Placement, SeqInfo, State};
