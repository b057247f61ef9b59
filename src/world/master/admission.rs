//! Who gets which rank, and what those who wait are waiting for.

use super::news::Owed;
use super::{Books, Guest, Guests, Role, Seat};
use crate::base::error::{Error, Result};
use crate::base::status::NMC_ERR_EXISTS;
use crate::rpc;
use crate::rpc::server::Id;
use crate::world::roster::{Roster, taken};
use crate::world::watch::Watch;
use crate::world::wire::{Message, Waiting};
use std::os::fd::AsFd as _;

impl Books {
    /// Before the world exists, two joiners that want the same rank are told apart at once.
    pub(super) fn check_rivals(&self, guests: &Guests, id: Id) -> Result<()> {
        let asks = |guest: &Guest| match &guest.role {
            Role::Waiting { hello, pidfd, .. } if !rpc::ready(pidfd.as_fd()) => {
                Some((hello.rank, hello.holder.device_rank, hello.holder.pid))
            }
            _ => None,
        };
        let Some((rank, device_rank, _)) = guests.peer(id).and_then(asks) else { return Ok(()) };
        let size = self.params.world_size;
        for (name, value) in [("rank", rank), ("device_rank", device_rank)] {
            if value < -1 || value >= size.cast_signed() {
                crate::bail!(NMC_ERR_INVALID_ARG, "{name} {value} is not below the world size {size}");
            }
        }
        if self.roster.is_some() {
            return Ok(());
        }
        let mut others = 0;
        for (other_rank, other_device_rank, pid) in
            guests.peers().filter(|(other, _)| *other != id).filter_map(|(_, guest)| asks(guest))
        {
            others += 1;
            if rank >= 0 && rank == other_rank {
                return Err(taken(rank, pid));
            }
            if device_rank >= 0 && device_rank == other_device_rank {
                return Err(Error::new(
                    NMC_ERR_EXISTS,
                    format!("device_rank {device_rank} is already taken by process {pid}"),
                ));
            }
        }
        if others >= size {
            return Err(Error::new(NMC_ERR_EXISTS, format!("all {size} ranks are taken")));
        }
        Ok(())
    }

    /// Gives ranks to whoever waits, as far as that is possible now.
    pub(super) fn admit(&mut self, guests: &mut Guests) {
        // Explicit ranks first, so that an automatic one cannot take what another asked for.
        let mut waiting: Vec<(bool, Id)> = Vec::new();
        waiting.extend(guests.peers().filter_map(|(id, guest)| match &guest.role {
            Role::Waiting { hello, .. } => Some((hello.rank < 0, id)),
            Role::Rank(..) => None,
        }));
        if waiting.is_empty() {
            return;
        }
        let enough = waiting.len() >= self.params.min_ranks as usize;
        if self.roster.is_none() && enough && self.someone_lives(guests) {
            return;
        }
        let seats: Vec<Seat> = self.seats(guests).map(|(_, seat)| seat).collect();
        match &mut self.roster {
            Some(roster) => {
                if roster.is_settling(|rank| seats.iter().any(|seat| seat.rank == rank)) {
                    return;
                }
            }
            None if !enough => return self.tell_missing(guests),
            None => match Roster::create(&self.params, &self.locks) {
                Ok(roster) => self.roster = Some(roster),
                Err(error) => {
                    for (_, id) in waiting {
                        self.reject(guests, id, &error);
                    }
                    return;
                }
            },
        }
        waiting.sort_unstable();
        for (_, id) in waiting {
            if let Err(error) = self.admit_one(guests, id) {
                self.reject(guests, id, &error);
            }
        }
    }

    fn admit_one(&mut self, guests: &mut Guests, id: Id) -> Result<()> {
        let (Some(roster), Some(connection)) = (self.roster.as_mut(), guests.get_mut(id)) else { return Ok(()) };
        let Some(Guest { role: Role::Waiting { hello, .. }, .. }) = connection.peer() else { return Ok(()) };
        let Some(rank) = roster.choose_rank(hello)? else {
            let dying = u32::try_from(hello.rank).into_iter().collect();
            tell_waiting(connection, &Waiting { dying, ..Waiting::NOTHING });
            return Ok(());
        };
        let Some(Guest { role: Role::Waiting { hello, pidfd, life }, .. }) = connection.take_peer() else {
            return Ok(());
        };
        let watch = Watch::new(pidfd, life, hello.holder.drain());
        let generation = roster.seat(rank, hello.holder, watch);
        let seat = Seat { world_id: roster.id(), rank, generation };
        connection.introduce(Guest::new(Role::Rank(seat, Owed::welcome())));
        Ok(())
    }

    /// Whether ranks of a world that outlived its master are there, which have not reported: they go before newcomers, who
    /// are told what they wait for.
    fn someone_lives(&mut self, guests: &mut Guests) -> bool {
        let living: Vec<u32> = (0..self.params.world_size).filter(|rank| self.locks.is_held(*rank)).collect();
        let lives = !living.is_empty();
        if lives {
            tell_all(guests, Guest::is_waiting, &Waiting { living, ..Waiting::NOTHING });
        }
        lives
    }

    /// Tells everyone who waits for the world to form which ranks have not come.
    fn tell_missing(&mut self, guests: &mut Guests) {
        let mut present = vec![false; self.params.world_size as usize];
        let mut automatic = 0;
        for (_, guest) in guests.peers() {
            if let Role::Waiting { hello, .. } = &guest.role {
                match present.get_mut(usize::try_from(hello.rank).unwrap_or(usize::MAX)) {
                    Some(seat) => *seat = true,
                    None => automatic += 1,
                }
            }
        }
        let free = present.iter().zip(0u32..).filter(|(present, _)| !**present).map(|(_, rank)| rank);
        let missing = free.skip(automatic).collect();
        tell_all(guests, Guest::is_waiting, &Waiting { missing, ..Waiting::NOTHING });
    }

    /// Tells everyone who has a rank of a world that is not formed yet which ranks have no heap yet, or have died before they had one. Later nobody is
    /// told: its join may be complete.
    pub(super) fn tell_unready(&self, guests: &mut Guests) {
        if let Some(roster) = self.roster.as_ref().filter(|roster| !roster.formed()) {
            let waiting = Waiting { missing: roster.absent(), unready: roster.unready(), ..Waiting::NOTHING };
            tell_all(guests, |guest| guest.seat().is_some_and(|seat| self.is_current(seat)), &waiting);
        }
    }
}

/// Tells those for whom `who` holds what they wait for. It is just news: who has no room for it does without.
fn tell_all(guests: &mut Guests, who: impl Fn(&Guest) -> bool, what: &Waiting) {
    for (_, connection) in guests.iter_mut() {
        if connection.peer().is_some_and(&who) {
            tell_waiting(connection, what);
        }
    }
}

fn tell_waiting(connection: &mut rpc::Connection<Guest>, what: &Waiting) {
    if connection.peer().is_none_or(|guest| guest.told == *what) {
        return;
    }
    if let Ok(packet) = Message::Waiting(what.clone()).encode()
        && connection.mention(&packet)
        && let Some(guest) = connection.peer_mut()
    {
        guest.told = what.clone();
    }
}
