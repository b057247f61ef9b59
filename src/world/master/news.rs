//! What ranks are told of each other. A rank that has no room for it is owed it; others do not wait for it, except those who
//! have to be known to everybody before their join is complete.

use super::{Books, Guest, Guests, Role, Seat, tell};
use crate::base::error::Result;
use crate::base::{log, memory};
use crate::rpc::Sent;
use crate::rpc::server::Id;
use crate::world::roster::{Roster, slots_of};
use crate::world::wire::{Message, Offer, PeerList, Reattach, Welcome};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// For one that has had no room for this long no newcomer waits: it may be stopped.
const HESITATION: Duration = Duration::from_millis(500);

/// What a rank has to be told as soon as there is room.
#[derive(Default)]
pub(super) struct Owed {
    welcome: bool,
    /// Ranks to tell about; `Some` and empty is an answer without news.
    roster: Option<BTreeSet<u32>>,
    /// The roster completes its join: others are to know of it first.
    completes: bool,
}

impl Owed {
    /// A rank was given.
    pub fn welcome() -> Self {
        Self { welcome: true, ..Self::default() }
    }

    pub fn is_nothing(&self) -> bool {
        !self.welcome && self.roster.is_none()
    }
}

impl Books {
    /// The connections of those who hold a rank of the world.
    pub(super) fn seats(&self, guests: &Guests) -> impl Iterator<Item = (Id, Seat)> {
        let seats = guests.peers().filter_map(|(id, guest)| Some((id, guest.seat()?)));
        seats.filter(|(_, seat)| self.is_current(*seat))
    }

    /// A rank has made its heap.
    pub(super) fn offer(&mut self, guests: &mut Guests, seat: Seat, offer: Offer, mut fds: Vec<OwnedFd>) -> Result<()> {
        if !self.is_joining(seat) {
            crate::bail!(NMC_ERR_EXISTS, "rank {} was given to another process meanwhile", seat.rank);
        }
        let Some(roster) = self.roster.as_mut() else { return Ok(()) };
        if fds.len() != usize::from(offer.heap.route.has_fd()) || offer.heap.bytes != self.params.heap_bytes {
            crate::bail!(NMC_ERR_PROTOCOL, "rank {} offers a heap that is not what it announced", seat.rank);
        }
        let was_formed = roster.formed();
        let now_formed = roster.set_heap(seat.rank, offer.heap, fds.pop());
        let everyone: Vec<u32> = (0..self.params.world_size).collect();
        match (was_formed, now_formed) {
            (false, true) => self.owe(guests, |_| true, &everyone),
            (true, _) => {
                self.owe(guests, |to| to != seat, &[seat.rank]);
                self.owe(guests, |to| to == seat, &everyone);
                for guest in guests.peers_mut() {
                    if let Role::Rank(own, owed) = &mut guest.role {
                        owed.completes |= *own == seat;
                    }
                }
            }
            (false, false) => {}
        }
        Ok(())
    }

    /// Notes that holders are to be told about ranks. Who is still joining will be told everything when it has joined.
    fn owe(&mut self, guests: &mut Guests, to: impl Fn(Seat) -> bool, about: &[u32]) {
        for guest in guests.peers_mut() {
            if let Role::Rank(seat, owed) = &mut guest.role
                && to(*seat)
                && self.is_current(*seat)
                && !self.is_joining(*seat)
            {
                owed.roster.get_or_insert_default().extend(about);
            }
        }
    }

    /// Sends what is owed, as far as there is room.
    pub(super) fn pay(&mut self, guests: &mut Guests) {
        let Some(roster) = &self.roster else { return };
        let mut closed = Vec::new();
        // If the master died in between, a rank that nobody else knows could not be watched by anybody.
        // Without memory all of them wait for the next look.
        let Ok(mut order) = memory::collect(guests.iter_mut()) else { return };
        order.sort_unstable_by_key(|(id, connection)| {
            let role = connection.peer().map(|guest| &guest.role);
            (matches!(role, Some(Role::Rank(_, owed)) if owed.completes), *id)
        });
        let mut still_owed: BTreeSet<u32> = BTreeSet::new();
        for (id, connection) in order {
            let Some(Guest { role: Role::Rank(seat, owed), .. }) = connection.peer_mut() else { continue };
            let seat = *seat;
            if owed.completes && still_owed.contains(&seat.rank) {
                continue;
            }
            if roster.id() != seat.world_id || !roster.is_holder(seat.rank, seat.generation) {
                *owed = Owed::default();
                connection.owed_nothing();
                continue;
            }
            let owed = std::mem::take(owed);
            let sent = if owed.welcome {
                let mut fds = vec![roster.control_ro(), roster.words_fd()];
                let inherited = roster.inheritance(seat.rank);
                fds.extend(inherited.map(|(_, fd)| fd));
                let adopt = inherited.map(|(desc, _)| desc.clone()).into_iter().collect();
                let Seat { world_id, rank, generation } = seat;
                let welcome = Message::Welcome(Welcome { world_id, rank, generation, adopt });
                tell(connection, &welcome, &fds)
            } else if let Some(about) = &owed.roster {
                roster.roster(|rank| about.contains(&rank)).and_then(|(peers, fds)| {
                    let message = Message::PeerList(PeerList { world_id: seat.world_id, peers });
                    tell(connection, &message, &fds)
                })
            } else {
                continue;
            };
            match sent {
                Ok(Sent::Yes) => continue,
                Ok(Sent::Full) if connection.full_for().is_some_and(|time| time < HESITATION) => {
                    still_owed.extend(owed.roster.iter().flatten());
                }
                Ok(Sent::Full) => {}
                Ok(Sent::Closed) => memory::push(&mut closed, (id, "it closed".to_owned())).unwrap_or_default(),
                Err(error) => memory::push(&mut closed, (id, error.to_string())).unwrap_or_default(),
            }
            if let Some(Guest { role: Role::Rank(_, still), .. }) = connection.peer_mut() {
                *still = owed;
            }
        }
        for (id, why) in closed {
            self.drop_guest(guests, id, &why);
        }
    }

    /// A rank that outlived the former master hands the world over.
    pub(super) fn reattach(
        &mut self,
        guests: &mut Guests,
        id: Id,
        reattach: Reattach,
        fds: Vec<OwnedFd>,
    ) -> Result<()> {
        self.params.check(&reattach.params)?;
        let Reattach { world_id, rank, generation, peers, .. } = reattach;
        let mut fds = fds.into_iter();
        let (Some(control), Some(words)) = (fds.next(), fds.next()) else {
            crate::bail!(NMC_ERR_PROTOCOL, "a survivor came without the world's memory");
        };
        let known: BTreeMap<u32, u64> = peers.iter().map(|p| (p.rank, p.generation)).collect();
        let slots = slots_of(peers, fds)?;
        let roster = match &mut self.roster {
            Some(roster) if roster.id() == world_id => roster,
            Some(_) => crate::bail!(
                NMC_ERR_EXISTS,
                "another world was formed under this name; destroy this one and join again"
            ),
            None => {
                let roster = Roster::adopt(&self.params, world_id, control, words, &self.locks)?;
                log::emit(log::INFO, || format!("master: took over world {world_id:x}"));
                self.roster.insert(roster)
            }
        };
        let news_from_it = roster.merge(rank, generation, slots)?;
        let generations = roster.generations().to_vec();
        let seat = Seat { world_id, rank, generation };
        guests.introduce(id, Guest::new(Role::Rank(seat, Owed::default())));
        // The answer: what was taken anew while it had no master. And others learn what it knew alone.
        let news = |rank: &u32| generations.get(*rank as usize) > known.get(rank);
        let news_for_it: Vec<u32> = (0..self.params.world_size).filter(news).collect();
        self.owe(guests, |to| to == seat, &news_for_it);
        if !news_from_it.is_empty() {
            self.owe(guests, |to| to != seat, &news_from_it);
        }
        Ok(())
    }
}
