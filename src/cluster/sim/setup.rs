//! How a run is set up.

use crate::cluster::types::Chance;

/// What a run does wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    /// Owners drop whatever has the key.
    RemoveByKey,
    /// The end of a put lists replicas, whatever the owners say.
    PutEndAdds,
    /// A copy is published before the leader knows of it.
    CopyFirst,
    /// Pages of a late writer are given away.
    AbandonOnTimeout,
    /// Whoever is written to believes that nothing arrives any more when the writer says that it has ended.
    TrustWriter,
    /// A leader answers although its lease is over.
    StaleLeader,
    /// What was read is removed by its key when its time is over.
    ExpireByKey,
    /// A put to a disk is answered before it is there.
    AnswerBeforeDisk,
    /// An owner publishes what has another checksum than was said.
    BelieveAnySum,
    /// What was read goes at once.
    ExpireAtOnce,
    /// A call that is cancelled goes on, and nobody hears of it.
    CancelForgets,
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
    /// Terms of one cluster are those of another.
    SameTerms,
    /// All striped values of a key have the same id: their parts are named by the key.
    PartsByKey,
    /// Parts of a value end with it at once, whoever moves their bytes.
    PartsEndAtOnce,
    /// What is left of a striped value stays.
    PartsStay,
    /// A leader drops parts before it was told all that there is.
    DropsUntold,
    /// A node has the stub of a value where the value would be.
    StubsAreValues,
}

/// How a run is set up.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub seed: u64,
    pub nodes: usize,
    pub clients: usize,
    pub masters: usize,
    /// There is something that elects and keeps the drop log.
    pub durable: bool,
    /// Somebody else moves the bytes.
    pub pushed: bool,
    /// In a thousand.
    pub loss: u64,
    pub double: u64,
    pub slow: u64,
    /// Mean time between two faults.
    pub fault_ms: u64,
    pub op_ms: u64,
    pub ring: usize,
    pub events: u64,
    /// Copies that are made again in a second, of what is lost with nodes.
    pub again: u32,
    /// Masters see that connections have ended.
    pub sees_ends: bool,
    /// Nodes have tiers.
    pub tiers: bool,
    /// Some values are put in parts.
    pub striped: bool,
    /// What the cluster has written down is lost once.
    pub forgets: bool,
    pub control: Option<Control>,
}

impl Setup {
    /// Headers and pages of a node's store: parts need some of each.
    pub fn size(&self) -> (u32, u32) {
        if self.striped { (20, 40) } else { (12, 24) }
    }

    /// A run in which nothing happens by itself.
    pub fn quiet(nodes: usize, clients: usize) -> Self {
        let quiet = Self { loss: 0, double: 0, slow: 0, op_ms: 0, pushed: false, ..Self::by_seed(1) };
        Self { nodes, clients, tiers: false, forgets: false, sees_ends: false, striped: false, ..quiet }
    }

    /// A run by chance.
    pub fn by_seed(seed: u64) -> Self {
        let mut chance = Chance::new(seed ^ 0x5eed);
        let mut pick = |list: &[u64]| list[chance.below(list.len())];
        let size = |n: u64| usize::try_from(n).unwrap();
        let durable = pick(&[0, 1, 1]) == 1;
        let setup = Self {
            seed,
            nodes: size(pick(&[2, 3, 4])),
            clients: size(pick(&[3, 4, 5])),
            masters: if durable { size(pick(&[2, 3])) } else { 1 },
            durable,
            pushed: pick(&[0, 0, 1]) == 1,
            loss: pick(&[0, 0, 10, 50]),
            double: pick(&[0, 10, 50]),
            slow: pick(&[0, 10, 40]),
            fault_ms: pick(&[200, 500, 1500]),
            op_ms: pick(&[10, 20, 40]),
            ring: size(pick(&[4, 16, 64])),
            events: 2000,
            again: if pick(&[0, 0, 1]) == 1 { 50 } else { 0 },
            tiers: pick(&[0, 1, 1, 1]) == 1,
            forgets: pick(&[0, 0, 0, 0, 0, 0, 0, 1]) == 1,
            sees_ends: pick(&[0, 1]) == 1,
            striped: pick(&[0, 1]) == 1,
            control: None,
        };
        // A value in parts takes more messages.
        if setup.striped { Self { events: 4000, ..setup } } else { setup }
    }
}
