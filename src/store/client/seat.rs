//! Where the client of one holder of a rank is: there is one of a role at a time, and the next one begins when it has closed.

use super::client::Client;
use crate::base::Deadline;
use crate::base::error::Result;
use crate::base::memory;
use crate::store::types::Role;
use crate::world::Membership;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A rank of a world, how many held it before, and which of its clients is meant.
type Place = (u64, u32, u64, u32);

static SEATS: Mutex<Option<HashMap<Place, Arc<Seat>>>> = Mutex::new(None);

/// Where the client of one holder of a rank is: there is one of a role at a time, and the next one begins when it has closed. To the
/// master, whoever comes anew takes the place of what was there before.
#[derive(Default)]
pub(super) struct Seat {
    state: Mutex<SeatState>,
    changed: Condvar,
}

#[derive(Default)]
struct SeatState {
    client: Weak<Client>,
    /// There is a client, or one is being made or closed.
    taken: bool,
}

impl Seat {
    pub(super) fn of(member: &Membership, role: Role) -> Result<Arc<Self>> {
        let mut seats = SEATS.lock();
        let seats = seats.get_or_insert_default();
        seats.retain(|_, seat| Arc::strong_count(seat) > 1);
        memory::reserve_map(seats, 1)?;
        let place = (member.world_id(), member.rank(), member.generation(), role.code());
        Ok(Arc::clone(seats.entry(place).or_default()))
    }

    /// The client that is there, or the right to make one.
    pub(super) fn take(self: &Arc<Self>, member: &Membership, deadline: &Deadline) -> Result<Taken> {
        let mut state = self.state.lock();
        loop {
            if let Some(client) = state.client.upgrade() {
                return Ok(Taken::By(client));
            }
            if !state.taken {
                state.taken = true;
                return Ok(Taken::Here(Occupancy(Arc::clone(self))));
            }
            member.check_present()?;
            if deadline.passed() {
                crate::bail!(NMC_ERR_TIMEOUT, "attaching to the store: another thread attaches or closes this rank's");
            }
            let nap = Duration::from_millis(20).min(deadline.left());
            self.changed.wait_for(&mut state, nap);
        }
    }

    pub(super) fn set(&self, client: &Arc<Client>) {
        self.state.lock().client = Arc::downgrade(client);
        self.changed.notify_all();
    }
}

pub(super) enum Taken {
    By(Arc<Client>),
    Here(Occupancy),
}

/// The right to make the client of a seat, and then to be it.
pub(super) struct Occupancy(Arc<Seat>);

impl Drop for Occupancy {
    fn drop(&mut self) {
        *self.0.state.lock() = SeatState::default();
        self.0.changed.notify_all();
    }
}
