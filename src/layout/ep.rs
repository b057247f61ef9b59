//! The transport region of an expert-parallel group: what lies where in every rank's heap, and who writes it.
//!
//! A region begins with words for aborting and counting; then come the buffer *sets*, each a protocol of its own. In a
//! set, what peers write (flags, records, rows) and what the rank keeps for itself lie in separate lines. Offsets are the
//! same on all ranks. [`RankDesc`] is all that a kernel, or the CPU backend, needs to know; `nmc_ep_rank_t` in C.

use super::CACHE_LINE;

/// Most ranks of a group; `NMC_EP_MAX_RANKS` in C.
pub const MAX_EP_RANKS: usize = 32;
/// Elements that share a scale in fp8 rows.
pub const SCALE_GROUP: u32 = 128;
/// A record begins with count, layer, config hash and phase, 4 bytes each; the hit mask follows.
pub const RECORD_HEAD: u64 = 16;

/// The error word at the beginning of a region. Written by the rank and by peers that give up.
pub const OFF_ABORT: u64 = 0;
/// Words that the rank keeps for itself, from the beginning of a set: the phase of the last step that came in, the tokens
/// of the last dispatch, and how many blocks have returned their rows.
pub const OFF_PHASE: u64 = 0;
/// See [`OFF_PHASE`].
pub const OFF_TOKENS: u64 = 4;
/// The phase of the last scatter that told peers of its rows.
pub const OFF_SCATTERED: u64 = 8;
/// What the counters of all ranks were when the last step had come in; see [`OFF_FLAGS`].
pub const OFF_COUNTED: u64 = 16;
/// See [`OFF_PHASE`].
pub const OFF_RETURNED: u64 = 64;
/// Flags for the return, one a rank, 8 bytes each: `phase:32 | layer:16 | tokens:16`, the phase lowest.
pub const OFF_RETURNS: u64 = 128;
/// Words for dispatch, one a rank. On the CPU a flag like those for the return. On a GPU a counter: each block of the rank adds
/// `1 | layer << 32` when its own rows are stored, and waits for no other.
pub const OFF_FLAGS: u64 = OFF_RETURNS + 8 * MAX_EP_RANKS as u64;

/// Element types; numbers of `nmc_ep_rank_t`, which kernels go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Dtype {
    /// bfloat16.
    Bf16 = 0,
    /// IEEE half.
    Fp16 = 1,
    /// IEEE single.
    Fp32 = 2,
    /// e4m3 without infinities, with fp32 scales.
    Fp8 = 3,
}

impl Dtype {
    /// Bytes of an element.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Dtype::Bf16 | Dtype::Fp16 => 2,
            Dtype::Fp32 => 4,
            Dtype::Fp8 => 1,
        }
    }

    /// Its `NMC_DTYPE_*` of the C header, where FP32 is 0.
    #[must_use]
    pub fn public_code(self) -> u32 {
        match self {
            Dtype::Fp32 => 0,
            Dtype::Bf16 => 1,
            Dtype::Fp16 => 2,
            Dtype::Fp8 => 3,
        }
    }

    /// The type with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Dtype::Bf16, Dtype::Fp16, Dtype::Fp32, Dtype::Fp8].into_iter().find(|d| *d as u32 == code)
    }
}

/// How rows travel to the experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Wire {
    /// As they are.
    Same = 0,
    /// As fp8; the library quantises.
    Quantised = 1,
    /// As fp8; the caller has quantised.
    Given = 2,
}

impl Wire {
    /// The way with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Wire::Same, Wire::Quantised, Wire::Given].into_iter().find(|w| *w as u32 == code)
    }
}

/// What all ranks of a group agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Ranks of the group.
    pub world: u32,
    /// Most tokens of a rank in a step.
    pub t_cap: u32,
    /// Elements of a row.
    pub hidden: u32,
    /// Experts of a token.
    pub top_k: u32,
    /// Experts of all ranks together.
    pub experts: u32,
    /// Type of returned rows, and of dispatched ones unless they travel as fp8.
    pub dtype: Dtype,
    /// How rows travel.
    pub wire: Wire,
    /// Bytes of a weight: 4 or 2.
    pub weight_bytes: u32,
    /// Rows of an expert in the grouped layout.
    pub max_m: u32,
    /// Groups for rows that did not fit their expert's.
    pub spill_groups: u32,
    /// Buffer sets.
    pub sets: u32,
    /// Whether returned rows have memory of their own. Otherwise a row is returned where it came.
    pub separate_y: bool,
    /// Blocks of a rank that dispatch; 1 on the CPU.
    pub blocks: u32,
    /// Whether fences of processes that share one device are of its scope.
    pub device_scope: bool,
}

/// Where the parts of a set begin, counted from the beginning of the set, and how large it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetLayout {
    /// Records of the sources.
    pub record: u64,
    /// Bytes from one record to the next.
    pub record_stride: u64,
    /// Destinations of own tokens.
    pub sent: u64,
    /// Local expert numbers.
    pub eid: u64,
    /// Weights.
    pub weight: u64,
    /// Scales of fp8 rows.
    pub scale: u64,
    /// Received rows.
    pub x: u64,
    /// Rows to return.
    pub y: u64,
    /// Bytes of the set.
    pub bytes: u64,
}

fn round(bytes: u64) -> u64 {
    bytes.next_multiple_of(256)
}

impl Shape {
    /// Experts of a rank.
    #[must_use]
    pub fn n_local(&self) -> u32 {
        self.experts / self.world
    }

    /// Slots in which a rank receives rows.
    #[must_use]
    pub fn slots(&self) -> u64 {
        u64::from(self.world) * u64::from(self.t_cap)
    }

    /// Type in which rows travel.
    #[must_use]
    pub fn wire_dtype(&self) -> Dtype {
        if self.wire == Wire::Same { self.dtype } else { Dtype::Fp8 }
    }

    /// Bytes of a dispatched row.
    #[must_use]
    pub fn x_bytes(&self) -> u32 {
        self.hidden * self.wire_dtype().bytes()
    }

    /// Bytes of a returned row.
    #[must_use]
    pub fn y_bytes(&self) -> u32 {
        self.hidden * self.dtype.bytes()
    }

    /// Scales of a row; 0 unless rows travel as fp8.
    #[must_use]
    pub fn scales(&self) -> u32 {
        if self.wire == Wire::Same { 0 } else { self.hidden / SCALE_GROUP }
    }

    /// Groups of the grouped layout.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.n_local() + self.spill_groups
    }

    /// Bytes of the part of a region that is not in a set: words, waits per peer, loads per expert.
    #[must_use]
    pub fn head_bytes(&self) -> u64 {
        round(self.off_load() + 8 * u64::from(self.experts))
    }

    /// Where the nanoseconds waited for each peer are.
    #[must_use]
    pub fn off_waited(&self) -> u64 {
        CACHE_LINE as u64
    }

    /// Where the tokens that this rank sent to each expert are counted.
    #[must_use]
    pub fn off_load(&self) -> u64 {
        self.off_waited() + 8 * MAX_EP_RANKS as u64
    }

    /// The layout of a set.
    #[must_use]
    pub fn set(&self) -> SetLayout {
        let (slots, k) = (self.slots(), u64::from(self.top_k));
        let record_stride = (RECORD_HEAD + u64::from(self.t_cap.div_ceil(32)) * 4).next_multiple_of(64);
        let record = round(OFF_FLAGS + 8 * u64::from(self.world));
        let sent = round(record + record_stride * u64::from(self.world));
        let eid = round(sent + 4 * u64::from(self.t_cap));
        let weight = round(eid + 2 * slots * k);
        let scale = round(weight + u64::from(self.weight_bytes) * slots * k);
        let x = round(scale + 4 * slots * u64::from(self.scales()));
        let apart = self.separate_y || self.wire != Wire::Same;
        let y = if apart { round(x + slots * u64::from(self.x_bytes())) } else { x };
        let bytes = round(y + slots * u64::from(self.y_bytes()));
        SetLayout { record, record_stride, sent, eid, weight, scale, x, y, bytes }
    }

    /// Bytes of a region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.head_bytes() + self.set().bytes * u64::from(self.sets)
    }

    /// The numbers that must agree, with their names, as the program gave them.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u64); 13] {
        [
            ("t_cap", self.t_cap.into()),
            ("hidden", self.hidden.into()),
            ("top_k", self.top_k.into()),
            ("experts", self.experts.into()),
            ("dtype", self.dtype.public_code().into()),
            ("dispatch", self.wire as u64),
            ("weights", if self.weight_bytes == 2 { Dtype::Fp16 } else { Dtype::Fp32 }.public_code().into()),
            ("max_m", self.max_m.into()),
            ("spill_groups", self.spill_groups.into()),
            ("buffer_sets", self.sets.into()),
            ("separate_y", self.separate_y.into()),
            ("blocks", self.blocks.into()),
            ("device_scope", self.device_scope.into()),
        ]
    }

    /// A hash of what must agree, for the records.
    #[must_use]
    pub fn hash(&self) -> u32 {
        let bytes: Vec<u8> = self.fields().iter().flat_map(|(_, value)| value.to_le_bytes()).collect();
        #[allow(clippy::cast_possible_truncation, reason = "the low half of a hash")]
        let hash = xxhash_rust::xxh64::xxh64(&bytes, 0) as u32;
        hash
    }
}

/// One rank's place in a group, for one layer. Passed to kernels by value; the CPU backend uses the same with host
/// addresses. `nmc_ep_rank_t` in C.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RankDesc {
    /// Address of each rank's region.
    pub region: [u64; MAX_EP_RANKS],
    /// Address of what the host looks at: the error word, the abort request, overflow per local expert.
    pub status: u64,
    /// Longest wait for a peer.
    pub deadline_ns: u64,
    /// Offsets in a region, of the set in use.
    pub off_set: u64,
    /// See [`SetLayout`]; counted from the beginning of the region, as all of these.
    pub off_record: u64,
    /// See [`SetLayout`].
    pub off_sent: u64,
    /// See [`SetLayout`].
    pub off_eid: u64,
    /// See [`SetLayout`].
    pub off_weight: u64,
    /// See [`SetLayout`].
    pub off_scale: u64,
    /// See [`SetLayout`].
    pub off_x: u64,
    /// See [`SetLayout`].
    pub off_y: u64,
    /// See [`Shape::off_load`].
    pub off_load: u64,
    /// Bytes from one record to the next.
    pub record_stride: u32,
    /// Ranks of the group.
    pub world: u32,
    /// Own number in the group.
    pub rank: u32,
    /// See [`Shape`].
    pub t_cap: u32,
    /// See [`Shape`].
    pub top_k: u32,
    /// See [`Shape`].
    pub hidden: u32,
    /// Experts of a rank.
    pub n_local: u32,
    /// Bytes of a dispatched row.
    pub x_bytes: u32,
    /// Bytes of a returned row.
    pub y_bytes: u32,
    /// Scales of a row.
    pub scales: u32,
    /// [`Dtype`] of returned rows.
    pub dtype: u32,
    /// [`Wire`].
    pub wire: u32,
    /// Bytes of a weight.
    pub weight_bytes: u32,
    /// Rows of a group.
    pub max_m: u32,
    /// Groups.
    pub groups: u32,
    /// Layer of this call.
    pub layer: u32,
    /// See [`Shape::hash`].
    pub config_hash: u32,
    /// 1: trap instead of reporting.
    pub trap: u32,
    /// Blocks of a rank that dispatch.
    pub blocks: u32,
    /// Whether fences are of the scope of the device that all ranks share: 1; of the system: 0.
    pub scope: u32,
    /// `u32::MAX / n_local`: kernels divide by multiplying.
    pub n_local_inverse: u32,
    /// `u32::MAX / t_cap`.
    pub t_cap_inverse: u32,
}

/// The name of [`RankDesc`] in the C header.
#[allow(non_camel_case_types, reason = "the C name")]
pub type nmc_ep_rank_t = RankDesc;

const _: () = assert!(size_of::<RankDesc>() == 8 * (MAX_EP_RANKS + 11) + 4 * 22);

impl RankDesc {
    /// The descriptor of `rank` for the first set and layer 0; `region` and `status` are filled in by the caller.
    #[must_use]
    pub fn new(shape: &Shape, rank: u32, deadline_ns: u64, trap: bool) -> Self {
        let mut desc = Self {
            region: [0; MAX_EP_RANKS],
            status: 0,
            deadline_ns,
            off_set: 0,
            off_record: 0,
            off_sent: 0,
            off_eid: 0,
            off_weight: 0,
            off_scale: 0,
            off_x: 0,
            off_y: 0,
            off_load: shape.off_load(),
            #[allow(clippy::cast_possible_truncation, reason = "a few KB at most")]
            record_stride: shape.set().record_stride as u32,
            world: shape.world,
            rank,
            t_cap: shape.t_cap,
            top_k: shape.top_k,
            hidden: shape.hidden,
            n_local: shape.n_local(),
            x_bytes: shape.x_bytes(),
            y_bytes: shape.y_bytes(),
            scales: shape.scales(),
            dtype: shape.dtype as u32,
            wire: shape.wire as u32,
            weight_bytes: shape.weight_bytes,
            max_m: shape.max_m,
            groups: shape.groups(),
            layer: 0,
            config_hash: shape.hash(),
            trap: u32::from(trap),
            blocks: shape.blocks,
            scope: 0,
            n_local_inverse: u32::MAX / shape.n_local().max(1),
            t_cap_inverse: u32::MAX / shape.t_cap.max(1),
        };
        desc.select(shape, 0);
        desc
    }

    /// Turns to `layer`, which uses set `layer % sets`.
    pub fn select(&mut self, shape: &Shape, layer: u32) {
        let set = shape.set();
        let base = shape.head_bytes() + set.bytes * u64::from(layer % shape.sets);
        self.off_set = base;
        self.off_record = base + set.record;
        self.off_sent = base + set.sent;
        self.off_eid = base + set.eid;
        self.off_weight = base + set.weight;
        self.off_scale = base + set.scale;
        self.off_x = base + set.x;
        self.off_y = base + set.y;
        self.layer = layer;
    }

    /// Address of own region.
    #[must_use]
    pub fn own(&self) -> u64 {
        self.region[self.rank as usize % MAX_EP_RANKS]
    }
}

/// What a flag says.
#[must_use]
pub fn flag(phase: u32, layer: u32, tokens: u32) -> u64 {
    u64::from(phase) | u64::from(layer & 0xffff) << 32 | u64::from(tokens & 0xffff) << 48
}

/// Phase, layer and tokens of a flag.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "the parts of a word")]
pub fn unflag(word: u64) -> (u32, u32, u32) {
    (word as u32, (word >> 32) as u32 & 0xffff, (word >> 48) as u32)
}

/// Whether phase `seen` has come to `want`, right across the wrap.
#[must_use]
pub fn came(seen: u32, want: u32) -> bool {
    seen.wrapping_sub(want) < 1 << 31
}

/// What went wrong in a step; numbers in the low byte of an error word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Fault {
    /// A peer did not come in time.
    Timeout = 1,
    /// A peer runs another layer.
    Layer = 2,
    /// More tokens than `t_cap`.
    Tokens = 3,
    /// A number that is no expert.
    Expert = 4,
    /// `nmc_ep_abort`.
    Aborted = 5,
    /// A peer has died.
    Lost = 6,
}

impl Fault {
    /// An error word: the fault, who found it, whom it blames, and two numbers. A rank finds too many tokens in its own call;
    /// there the upper byte of the value is put on whom it blames. Kernels leave that byte out.
    #[must_use]
    pub fn word(self, by: u32, about: u32, layer: u32, value: u32) -> u64 {
        let about = if self == Fault::Tokens { about ^ value >> 24 } else { about };
        self as u64
            | u64::from(by & 0xff) << 8
            | u64::from(about & 0xff) << 16
            | u64::from(layer & 0xffff) << 24
            | u64::from(value & 0xff_ffff) << 40
    }

    /// The fault in an error word.
    #[must_use]
    pub fn of(word: u64) -> Option<Self> {
        use Fault::{Aborted, Expert, Layer, Lost, Timeout, Tokens};
        [Timeout, Layer, Tokens, Expert, Aborted, Lost].into_iter().find(|f| *f as u64 == word & 0xff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape {
            world: 8,
            t_cap: 32,
            hidden: 7168,
            top_k: 8,
            experts: 256,
            dtype: Dtype::Bf16,
            wire: Wire::Same,
            weight_bytes: 4,
            max_m: 256,
            spill_groups: 0,
            sets: 1,
            separate_y: false,
            blocks: 32,
            device_scope: false,
        }
    }

    #[test]
    fn the_default_transport_is_small() {
        assert!(shape().region_bytes() < 64 << 20, "{}", shape().region_bytes());
    }

    #[test]
    fn parts_of_a_set_do_not_overlap_and_rows_are_aligned() {
        for (t_cap, top_k, wire) in [(1, 1, Wire::Same), (33, 8, Wire::Quantised), (4096, 16, Wire::Given)] {
            let shape = Shape { t_cap, top_k, wire, sets: 3, separate_y: true, ..shape() };
            let set = shape.set();
            let slots = shape.slots();
            let parts = [
                (set.record, set.record_stride * 8),
                (set.sent, 4 * u64::from(t_cap)),
                (set.eid, 2 * slots * u64::from(top_k)),
                (set.weight, 4 * slots * u64::from(top_k)),
                (set.scale, 4 * slots * u64::from(shape.scales())),
                (set.x, slots * u64::from(shape.x_bytes())),
                (set.y, slots * u64::from(shape.y_bytes())),
            ];
            for pair in parts.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            }
            assert!(set.y + slots * u64::from(shape.y_bytes()) <= set.bytes);
            assert!([set.x, set.y, set.bytes, shape.head_bytes()].iter().all(|at| at.is_multiple_of(256)));
        }
    }

    #[test]
    fn phases_compare_across_the_wrap() {
        assert!(came(5, 5) && came(6, 5) && !came(4, 5));
        assert!(came(0, u32::MAX) && came(0x8000_0000, 0x7fff_ffff) && !came(u32::MAX, 0));
        let word = flag(u32::MAX, 65_535, 4096);
        assert_eq!(unflag(word), (u32::MAX, 65_535, 4096));
    }

    #[test]
    fn every_field_changes_the_hash() {
        let base = shape();
        let others = [
            Shape { t_cap: 31, ..base },
            Shape { hidden: 7040, ..base },
            Shape { wire: Wire::Given, ..base },
            Shape { max_m: 64, ..base },
            Shape { sets: 2, ..base },
            Shape { device_scope: true, ..base },
        ];
        assert!(others.iter().all(|other| other.hash() != base.hash()));
    }

    #[test]
    fn an_error_word_tells_its_fault() {
        let word = Fault::Expert.word(3, 255, 57, 300);
        assert_eq!(Fault::of(word), Some(Fault::Expert));
        assert_eq!((word >> 8) & 0xff, 3);
        assert_eq!(Fault::of(0), None);
    }
}
