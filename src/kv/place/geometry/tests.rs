//! Offsets and views against a naive model of every layout.

use super::*;
use crate::base::status::NMC_ERR_INVALID_ARG;
use std::collections::BTreeMap;

const ORDERS: [Order; 4] = [Order::LayerMajor, Order::HeadMajor, Order::LayerMajorNhd, Order::BlockMajor];
const SIDES: [Sides; 3] = [Sides::Separate, Sides::PerLayer, Sides::PerBlock];

/// The example of the original design: 32 layers, 2,048 blocks, 32 heads, 16 tokens, 64 elements, fp32.
const EXAMPLE: Shape = Shape {
    kind: Kind::Full,
    dtype: Dtype::Fp32,
    layers: 32,
    kv_heads: 32,
    head_dim: 64,
    tokens_per_block: 16,
    total_blocks: 2048,
    order: Order::LayerMajor,
    sides: Sides::Separate,
};

/// What lies at every byte offset, by walking the tensors as their shape is written down, outermost axis first.
/// Says nothing about strides. A value is `[layer, side, block, head, token, dim]`.
fn walk(shape: &Shape) -> BTreeMap<u64, [u64; 6]> {
    let (heads, tokens, dim, element, sides) = match shape.kind {
        Kind::Recurrent { state_bytes } => (1, 1, state_bytes, 1, 1),
        Kind::Mla => (1, u64::from(shape.tokens_per_block), u64::from(shape.head_dim), shape.dtype.bytes(), 1),
        Kind::Full => (
            u64::from(shape.kv_heads),
            u64::from(shape.tokens_per_block),
            u64::from(shape.head_dim),
            shape.dtype.bytes(),
            2,
        ),
    };
    let count = |name: u8| match name {
        b'L' => u64::from(shape.layers),
        b'S' => sides,
        b'B' => shape.total_blocks,
        b'H' => heads,
        b'T' => tokens,
        _ => dim,
    };
    // The twelve orders, written out.
    let names: &[u8; 6] = match (shape.order, shape.sides) {
        (Order::LayerMajor, Sides::Separate) => b"SLBHTD",
        (Order::LayerMajor, Sides::PerLayer) => b"LSBHTD",
        (Order::LayerMajor, Sides::PerBlock) => b"LBSHTD",
        (Order::HeadMajor, Sides::Separate) => b"SHLBTD",
        (Order::HeadMajor, Sides::PerLayer) => b"HLSBTD",
        (Order::HeadMajor, Sides::PerBlock) => b"HLBSTD",
        (Order::LayerMajorNhd, Sides::Separate) => b"SLBTHD",
        (Order::LayerMajorNhd, Sides::PerLayer) => b"LSBTHD",
        (Order::LayerMajorNhd, Sides::PerBlock) => b"LBSTHD",
        (Order::BlockMajor, Sides::Separate) => b"SBLHTD",
        (Order::BlockMajor, Sides::PerLayer) => b"BLSHTD",
        (Order::BlockMajor, Sides::PerBlock) => b"BSLHTD",
    };
    let mut found = BTreeMap::new();
    let mut at = 0;
    let n = names.map(count);
    for a in 0..n[0] {
        for b in 0..n[1] {
            for c in 0..n[2] {
                for d in 0..n[3] {
                    for e in 0..n[4] {
                        for f in 0..n[5] {
                            let index = [a, b, c, d, e, f];
                            let of = |name| names.iter().position(|x| *x == name).map_or(0, |p| index[p]);
                            found.insert(at, [of(b'L'), of(b'S'), of(b'B'), of(b'H'), of(b'T'), of(b'D')]);
                            at += element;
                        }
                    }
                }
            }
        }
    }
    found.insert(at, [u64::MAX; 6]); // the end
    found
}

fn small(n: u64) -> u32 {
    u32::try_from(n).unwrap()
}

fn side_of(n: u64) -> Side {
    if n == 0 { Side::K } else { Side::V }
}

/// Many small shapes of every kind, order and place of K and V.
fn shapes() -> Vec<Shape> {
    let mut all = Vec::new();
    let kinds = [Kind::Full, Kind::Mla, Kind::Recurrent { state_bytes: 5 }, Kind::Recurrent { state_bytes: 1 }];
    let sizes = [
        (1, 1, 1, 1, 1),
        (1, 1, 1, 1, 3),
        (2, 1, 1, 1, 1),
        (2, 3, 2, 4, 5),
        (3, 2, 4, 2, 1),
        (1, 2, 3, 4, 2),
        (2, 1, 3, 1, 4),
        (3, 4, 1, 2, 3),
    ];
    let dtypes = [Dtype::Fp32, Dtype::Bf16, Dtype::Fp16, Dtype::Fp8, Dtype::Int8, Dtype::Raw(3)];
    for kind in kinds {
        for (n, &(layers, heads, head_dim, tokens_per_block, total_blocks)) in sizes.iter().enumerate() {
            for order in ORDERS {
                for sides in SIDES {
                    let kv_heads = if kind == Kind::Mla { 1 } else { heads };
                    let dtype = dtypes[n % dtypes.len()];
                    all.push(Shape {
                        kind,
                        dtype,
                        layers,
                        kv_heads,
                        head_dim,
                        tokens_per_block,
                        total_blocks,
                        order,
                        sides,
                    });
                }
            }
        }
    }
    all
}

#[test]
fn every_element_has_an_offset_of_its_own_and_it_is_the_right_one() {
    for shape in shapes() {
        let geometry = Geometry::new(shape).unwrap();
        let mut walked = walk(&shape);
        assert_eq!(walked.pop_last().unwrap().0, geometry.bytes(), "{shape:?}");
        let total = walked.len() as u64;
        assert_eq!(total * geometry.element_bytes(), geometry.bytes());
        for (at, [layer, side, block, head, token, dim]) in walked {
            let found = geometry.offset(small(layer), side_of(side), small(block), small(head), small(token), dim);
            assert_eq!(found, at, "{shape:?} [{layer}, {side}, {block}, {head}, {token}, {dim}]");
        }
    }
}

#[test]
fn views_and_strides_agree_with_the_offsets() {
    for shape in shapes() {
        let geometry = Geometry::new(shape).unwrap();
        let s = geometry.strides();
        for (at, [layer, side, block, head, token, dim]) in walk(&shape) {
            if layer == u64::MAX {
                continue;
            }
            let by_stride =
                layer * s.layer + side * s.side + block * s.block + head * s.head + token * s.token + dim * s.dim;
            assert_eq!(by_stride, at, "{shape:?}");
            let whole = geometry.layer_view(small(layer), side_of(side)).unwrap();
            assert_eq!(whole.at([block, head, token, dim]), Some(at), "{shape:?}");
            for first in 0..=block {
                let count = small(shape.total_blocks - first);
                let run = geometry.run_view(small(layer), side_of(side), small(first), count).unwrap();
                assert_eq!(run.at([block - first, head, token, dim]), Some(at), "{shape:?}");
                assert_eq!(run.at([u64::from(count), 0, 0, 0]), None);
            }
            assert_eq!(whole.element_strides().map(|n| n * geometry.element_bytes()), whole.strides);
        }
    }
}

#[test]
fn the_pages_of_all_blocks_partition_the_arena() {
    for shape in shapes() {
        let geometry = Geometry::new(shape).unwrap();
        let (planes, bytes) = (geometry.pieces_per_block(), geometry.piece_bytes());
        assert_eq!(planes * bytes, geometry.block_bytes(), "{shape:?}");
        let mut owner = vec![None; usize::try_from(geometry.bytes()).unwrap()];
        for (plane, block) in (0..planes).flat_map(|plane| (0..shape.total_blocks).map(move |block| (plane, block))) {
            let page = (plane * shape.total_blocks + block) * bytes;
            for at in page..page + bytes {
                assert_eq!(owner[usize::try_from(at).unwrap()].replace(block), None, "{shape:?}");
            }
        }
        for (at, [layer, _, block, ..]) in walk(&shape) {
            if layer != u64::MAX {
                assert_eq!(owner[usize::try_from(at).unwrap()], Some(block), "{shape:?}");
            }
        }
    }
}

#[test]
fn the_pieces_of_a_block_are_its_elements_layer_by_layer_in_all_orders() {
    for shape in shapes() {
        let geometry = Geometry::new(shape).unwrap();
        let at = walk(&shape);
        let tokens_first = shape.order == Order::LayerMajorNhd;
        for block in 0..small(shape.total_blocks) {
            for layers in [0..shape.layers, 0..1, shape.layers - 1..shape.layers, 1..shape.layers, 0..0] {
                let pieces = geometry.pieces(layers.clone());
                let found: Vec<[u64; 6]> = pieces
                    .extents(block)
                    .flat_map(|p| at.range(p.offset..p.offset + p.bytes).map(|(_, element)| *element))
                    .collect();
                let mut wanted: Vec<[u64; 6]> = at
                    .values()
                    .filter(|e| e[2] == u64::from(block) && (layers.start..layers.end).contains(&small(e[0])))
                    .copied()
                    .collect();
                wanted.sort_by_key(|e| {
                    if tokens_first { [e[0], e[1], e[4], e[3], e[5]] } else { [e[0], e[1], e[3], e[4], e[5]] }
                });
                assert_eq!(found, wanted, "{shape:?} {layers:?}");
            }
        }
    }
    let whole = Geometry::new(Shape { order: Order::BlockMajor, sides: Sides::PerLayer, ..EXAMPLE }).unwrap();
    assert_eq!((whole.pieces(0..32).count(), whole.pieces(0..32).bytes), (1, 8 << 20), "neighbours are one piece");
    let planes = Geometry::new(Shape { sides: Sides::PerLayer, ..EXAMPLE }).unwrap().pieces(0..32);
    assert_eq!((planes.axes[2].0, planes.bytes), (64, 128 << 10), "evenly spaced planes are one axis");
}

#[test]
fn a_block_has_the_same_bytes_in_an_arena_of_another_size() {
    for shape in shapes() {
        let larger = Shape { total_blocks: shape.total_blocks + 2, ..shape };
        let (geometry, grown) = (Geometry::new(shape).unwrap(), Geometry::new(larger).unwrap());
        let (here, there) = (walk(&shape), walk(&larger));
        for block in 0..small(shape.total_blocks) {
            let elements = |g: &Geometry, at: &BTreeMap<u64, [u64; 6]>| -> Vec<[u64; 6]> {
                let pieces = g.pieces(0..shape.layers).extents(block);
                pieces.flat_map(|p| at.range(p.offset..p.offset + p.bytes).map(|(_, e)| *e)).collect()
            };
            assert_eq!(elements(&geometry, &here), elements(&grown, &there), "{shape:?}");
        }
    }
}

#[test]
fn the_example_of_the_design_comes_out_right() {
    let geometry = Geometry::new(EXAMPLE).unwrap();
    assert_eq!(geometry.bytes(), 16 << 30, "K and V together");
    assert_eq!(geometry.strides().layer, 256 << 20);
    assert_eq!(geometry.offset(0, Side::K, 101, 0, 1, 0) / 4, 3_309_632);
    assert_eq!(geometry.offset(0, Side::V, 0, 0, 0, 0), 8 << 30);
    // 512 tokens fill 32 blocks; the 513th, number 512, needs one more: block 132 of a run that begins at 100.
    assert_eq!(geometry.locate(512), (32, 0));
    let view = geometry.run_view(3, Side::V, 100, 33).unwrap();
    assert_eq!((view.shape, view.element_strides()), ([33, 32, 16, 64], [32_768, 1024, 64, 1]));
    assert_eq!((geometry.pieces_per_block(), geometry.piece_bytes()), (64, 128 << 10));
    let blocks_outside = Geometry::new(Shape { order: Order::BlockMajor, sides: Sides::PerLayer, ..EXAMPLE });
    let blocks_outside = blocks_outside.unwrap();
    assert_eq!((blocks_outside.pieces_per_block(), blocks_outside.piece_bytes()), (1, 8 << 20));
}

#[test]
fn control_a_view_of_three_axes_is_wrong_past_one_block() {
    let geometry = Geometry::new(EXAMPLE).unwrap();
    let s = geometry.strides();
    let three_axes = |head: u64, token: u64| head * s.head + token * s.token;
    let right = |head: u32, token: u32| geometry.offset(0, Side::K, token / 16, head, token % 16, 0);
    assert_eq!(three_axes(3, 15), right(3, 15));
    assert_ne!(three_axes(3, 16), right(3, 16));
}

#[test]
fn impossible_shapes_are_refused_with_the_value_and_the_limit() {
    let with = |change: fn(&mut Shape)| {
        let mut shape = EXAMPLE;
        change(&mut shape);
        shape
    };
    for (shape, says) in [
        (with(|s| s.layers = 0), "layers is 0"),
        (with(|s| s.kv_heads = 0), "kv_heads is 0"),
        (with(|s| s.head_dim = 0), "head_dim is 0"),
        (with(|s| s.tokens_per_block = 0), "tokens_per_block is 0"),
        (with(|s| s.total_blocks = 0), "total_blocks is 0"),
        (with(|s| s.total_blocks = MAX_BLOCKS + 1), "total_blocks is 2147483649; it must be from 1 to 2147483648"),
        (with(|s| s.total_blocks = u64::MAX), "2147483648"),
        (with(|s| s.dtype = Dtype::Raw(0)), "bytes of an element is 0"),
        (with(|s| s.kind = Kind::Mla), "kv_heads is 32; a latent (MLA) cache has 1"),
        (with(|s| s.kind = Kind::Recurrent { state_bytes: 0 }), "state_bytes is 0"),
        (with(|s| s.kind = Kind::Recurrent { state_bytes: u64::MAX }), "state_bytes is 18446744073709551615"),
        (with(|s| s.kind = Kind::Recurrent { state_bytes: MAX_BYTES }), "9223372036854775807 bytes"),
        (with(|s| (s.layers, s.total_blocks) = (u32::MAX, 1 << 20)), "4294967295 layers of 1048576 blocks"),
        (with(|s| (s.layers, s.kv_heads, s.head_dim) = (u32::MAX, u32::MAX, u32::MAX)), "pass the limit"),
        (with(|s| s.dtype = Dtype::Raw(u32::MAX)), "elements of 4294967295 bytes"),
    ] {
        let error = Geometry::new(shape).unwrap_err();
        assert_eq!(error.status, NMC_ERR_INVALID_ARG);
        assert!(error.message.contains(says), "{says}: {error}");
    }
    // The largest that fits, and one block more.
    let shape = Shape { dtype: Dtype::Raw(1), kv_heads: 1, head_dim: 1, tokens_per_block: 1, layers: 1, ..EXAMPLE };
    assert_eq!(Geometry::new(Shape { total_blocks: MAX_BLOCKS, ..shape }).unwrap().bytes(), 1 << 32);
    let half = Shape { kind: Kind::Recurrent { state_bytes: 1 << 31 }, total_blocks: MAX_BLOCKS, ..shape };
    assert_eq!(Geometry::new(half).unwrap().bytes(), 1 << 62);
    assert!(Geometry::new(Shape { layers: 2, ..half }).is_err());
}

#[test]
fn what_is_not_there_is_refused() {
    let geometry = Geometry::new(EXAMPLE).unwrap();
    let latent = Geometry::new(Shape { kind: Kind::Mla, kv_heads: 1, ..EXAMPLE }).unwrap();
    assert!(geometry.layer_view(32, Side::K).unwrap_err().message.contains("layer 32 does not exist"));
    assert!(latent.layer_view(0, Side::V).unwrap_err().message.contains("no V"));
    for (first, count) in [(0, 0), (0, 2049), (2048, 1), (2047, 2), (u32::MAX, u32::MAX)] {
        assert_eq!(geometry.run_view(0, Side::K, first, count).unwrap_err().status, NMC_ERR_INVALID_ARG);
    }
}
