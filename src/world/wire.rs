//! Messages between ranks and the master: one packet each, little-endian fields behind a magic number and a kind.
//! Decoding trusts nothing: lengths, counts and codes are checked before they are used.

use crate::base::error::Result;
use crate::base::memory;
use crate::layout::MAX_RANKS;
use crate::mem::heap::{HeapDesc, Route};
use crate::rpc::packet::{Cursor, Field, Service, message_structs};
use crate::rpc::{MAX_FDS, MAX_PACKET};

pub use crate::rpc::packet::Refusal;

/// The master of a world.
pub const SERVICE: Service = Service { magic: 0x314d_4e57, name: "the world's master" };

/// All peers travel in one packet: of each a pidfd, a life pipe and a heap, and beside them the two slabs.
const _: () = assert!(3 * MAX_RANKS + 2 <= MAX_FDS);

impl Field for HeapDesc {
    fn put(&self, to: &mut Vec<u8>) {
        self.route.code().put(to);
        self.bytes.put(to);
        self.allocation_bytes.put(to);
        self.offset.put(to);
        self.address.put(to);
        self.device_address.put(to);
        self.process.put(to);
        self.id.put(to);
        self.lent.put(to);
        self.ipc.put(to);
    }
    fn get(from: &mut Cursor<'_>) -> Result<Self> {
        let code = u32::get(from)?;
        let Some(route) = Route::from_code(code) else {
            crate::bail!(NMC_ERR_PROTOCOL, "a heap is announced with route {code}");
        };
        let desc = HeapDesc {
            route,
            bytes: Field::get(from)?,
            allocation_bytes: Field::get(from)?,
            offset: Field::get(from)?,
            address: Field::get(from)?,
            device_address: Field::get(from)?,
            process: Field::get(from)?,
            id: Field::get(from)?,
            lent: Field::get(from)?,
            ipc: Field::get(from)?,
        };
        let end = desc.offset.checked_add(desc.bytes);
        if desc.bytes == 0 || end.is_none_or(|end| end > desc.allocation_bytes) {
            crate::bail!(
                NMC_ERR_PROTOCOL,
                "a heap of {} bytes is announced in an allocation of {}",
                desc.bytes,
                desc.allocation_bytes
            );
        }
        Ok(desc)
    }
}

message_structs! {
    /// What all ranks of a world must agree on.
    pub struct Params {
        /// `layout::VERSION`.
        pub layout: u32,
        /// Number of ranks.
        pub world_size: u32,
        /// How many of them must be there for a join to complete.
        pub min_ranks: u32,
        /// Code of the heap kind.
        pub heap_kind: u32,
        /// Bytes of every heap.
        pub heap_bytes: u64,
        /// Program words per rank.
        pub words_per_rank: u32,
    }
    /// Who holds, or wants to hold, a rank.
    pub struct Holder {
        /// Process id.
        pub pid: u32,
        /// Start time of the process.
        pub start_time: u64,
        /// Number in device code, -1 for the same as the rank.
        pub device_rank: i32,
        /// CUDA ordinal in that process, -1 for none.
        pub device: i32,
        /// Identity of the device, zero for none.
        pub device_uuid: [u8; 16],
        /// Time that its GPU gets to drain after its death, in ms.
        pub drain_ms: u32,
        /// Whether it brings memory of its engine as the heap.
        pub lent: bool,
    }
    /// Rank to master: may I join? Descriptors: pidfd, life pipe.
    pub struct Hello {
        /// Parameters of the world.
        pub params: Params,
        /// Wanted rank, -1 for any.
        pub rank: i32,
        /// Who asks.
        pub holder: Holder,
    }
    /// Master to rank: make your heap. Descriptors: control (read-only), words, and the rank's former heap if
    /// `adopt` is set.
    pub struct Welcome {
        /// Random name of the world.
        pub world_id: u64,
        /// Rank that was given.
        pub rank: u32,
        /// How many processes have held it, this one counted.
        pub generation: u64,
        /// Description of the former heap, empty if the rank has to make one.
        pub adopt: Vec<HeapDesc>,
    }
    /// Master to rank: what its join waits for.
    pub struct Waiting {
        /// Ranks that have not come yet.
        pub missing: Vec<u32>,
        /// Ranks that came, but have no heap yet.
        pub unready: Vec<u32>,
        /// The receiver's rank, if its former holder is not gone yet.
        pub dying: Vec<u32>,
        /// Ranks of a former world that live and have not reported.
        pub living: Vec<u32>,
    }
    /// Rank to master: this is my heap. Descriptors: the heap's, if its route has one.
    pub struct Offer {
        /// The heap.
        pub heap: HeapDesc,
    }
    /// A rank as others need to know it. Descriptors, in this order: pidfd, life pipe, heap if its route has one.
    pub struct Peer {
        /// Rank.
        pub rank: u32,
        /// Generation of its holder.
        pub generation: u64,
        /// Its holder.
        pub holder: Holder,
        /// Its heap.
        pub heap: HeapDesc,
    }
    /// Master to rank: these are your peers. The first roster has all ranks that are there, the receiver included, and completes its
    /// join; later ones have those that changed, and may be empty in answer to a [`Reattach`].
    pub struct PeerList {
        /// World that it is about.
        pub world_id: u64,
        /// The peers.
        pub peers: Vec<Peer>,
    }
    /// Rank to a new master: take the world over. Descriptors: control (read-only), words, then those of `peers`.
    pub struct Reattach {
        /// World that the rank is in.
        pub world_id: u64,
        /// Parameters of the world.
        pub params: Params,
        /// The rank.
        pub rank: u32,
        /// Its generation.
        pub generation: u64,
        /// All ranks as it knows them, itself included.
        pub peers: Vec<Peer>,
    }
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $kind:literal,)*) => {
        /// Any message.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Message { $($(#[$doc])* $name($name),)* }

        impl Message {
            /// The packet of the message.
            pub fn encode(&self) -> Result<Vec<u8>> {
                // Room for the longest: putting the fields must not need more.
                let mut to = memory::with_capacity(MAX_PACKET)?;
                SERVICE.begin(&mut to);
                match self { $(Message::$name(m) => { ($kind as u32).put(&mut to); m.put(&mut to); })* }
                Ok(to)
            }

            /// What kind of message it is, for errors.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Message::$name(_) => stringify!($name),)* }
            }

            /// The message in a packet.
            pub fn decode(packet: &[u8]) -> Result<Self> {
                let mut from = Cursor::new(packet);
                let message = match SERVICE.kind(&mut from)? {
                    $($kind => Message::$name(Field::get(&mut from)?),)*
                    other => crate::bail!(NMC_ERR_PROTOCOL, "there is no message of kind {other}"),
                };
                from.end()?;
                Ok(message)
            }
        }
    };
}

messages! {
    /// The master refuses ([`crate::rpc::packet::REFUSAL`]).
    Refusal = 0,
    /// A rank asks to join.
    Hello = 1,
    /// The master gives a rank.
    Welcome = 3,
    /// A rank gives its heap.
    Offer = 4,
    /// The master tells who is there.
    PeerList = 5,
    /// A survivor hands the world to a new master.
    Reattach = 6,
    /// The master tells what is waited for.
    Waiting = 7,
}

impl Waiting {
    /// For nothing, as far as is known.
    pub const NOTHING: Self = Self { missing: vec![], unready: vec![], dying: vec![], living: vec![] };
}

impl Holder {
    /// Time that its GPU gets to drain after its death.
    #[must_use]
    pub fn drain(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.drain_ms.into())
    }
}

impl Params {
    /// Fails with the first field on which `theirs` differs, naming both values.
    pub fn check(&self, theirs: &Params) -> Result<()> {
        let fields = [
            ("layout version", u64::from(self.layout), u64::from(theirs.layout)),
            ("world size", self.world_size.into(), theirs.world_size.into()),
            ("min_ranks", self.min_ranks.into(), theirs.min_ranks.into()),
            ("heap kind", self.heap_kind.into(), theirs.heap_kind.into()),
            ("heap size in bytes", self.heap_bytes, theirs.heap_bytes),
            ("words per rank", self.words_per_rank.into(), theirs.words_per_rank.into()),
        ];
        for (name, ours, theirs) in fields {
            if ours != theirs {
                crate::bail!(NMC_ERR_MISMATCH, "{name}: the world has {ours}, the joining rank has {theirs}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Message> {
        let params =
            Params { layout: 1, world_size: 4, min_ranks: 2, heap_kind: 1, heap_bytes: 4096, words_per_rank: 8 };
        let holder = Holder {
            pid: 7,
            start_time: 9,
            device_rank: -1,
            device: -1,
            device_uuid: [3; 16],
            drain_ms: 1000,
            lent: false,
        };
        let heap = HeapDesc {
            route: Route::HostFd,
            bytes: 4096,
            allocation_bytes: 8192,
            offset: 0,
            address: 5,
            device_address: 6,
            process: 7,
            id: 8,
            lent: false,
            ipc: [1; 64],
        };
        let peer = Peer { rank: 2, generation: 3, holder: holder.clone(), heap: heap.clone() };
        vec![
            Message::Hello(Hello { params: params.clone(), rank: -1, holder }),
            Message::Refusal(Refusal { status: -9, message: "größer".into() }),
            Message::Welcome(Welcome { world_id: 1, rank: 2, generation: 3, adopt: vec![heap.clone()] }),
            Message::Offer(Offer { heap }),
            Message::Waiting(Waiting { missing: vec![1, 3], unready: vec![0], dying: vec![2], living: vec![0] }),
            Message::PeerList(PeerList { world_id: 1, peers: vec![peer.clone(), peer.clone()] }),
            Message::Reattach(Reattach { world_id: 1, params, rank: 2, generation: 3, peers: vec![peer] }),
        ]
    }

    #[test]
    fn every_message_survives_the_wire() {
        for message in sample() {
            assert_eq!(Message::decode(&message.encode().expect("memory")), Ok(message));
        }
    }

    #[test]
    fn every_truncation_and_extension_is_refused() {
        for message in sample() {
            let packet = message.encode().expect("memory");
            for cut in 0..packet.len() {
                assert!(Message::decode(&packet[..cut]).is_err(), "{message:?} cut to {cut}");
            }
            let mut longer = packet;
            longer.push(0);
            assert!(Message::decode(&longer).is_err());
        }
    }

    #[test]
    fn flipped_bytes_never_panic() {
        for message in sample() {
            let packet = message.encode().expect("memory");
            for at in 0..packet.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bad = packet.clone();
                    bad[at] = value;
                    let _ = Message::decode(&bad);
                }
            }
        }
    }
}
