//! An expert-parallel group of 8 ranks in this process as a C program sees it, on host heaps, and the same rows copied
//! without it.
#![allow(unsafe_code, reason = "calls through the C ABI, and copies of rows by address")]

use super::library::c_api::{
    Config as _, nmc_ep_bytes_t, nmc_ep_config_t, nmc_ep_dispatch_t, nmc_ep_grouped_t, nmc_ep_recv_buffers_t, nmc_ep_t,
    nmc_world_config_t, nmc_world_t,
};
use super::library::{Nanomc, blank, call, try_call};
use super::random::Random;
use crate::args::Failure;
use crate::sys::Mapping;
use std::ffi::c_void;

const WORLD: usize = 8;
const EXPERTS: usize = 256;
const TOP_K: usize = 8;
const HIDDEN: usize = 7168;
const ROW: usize = 2 * HIDDEN;
/// Tokens of a rank.
const TOKENS: usize = 32;
/// Tokens of all ranks in a step.
pub const ALL_TOKENS: usize = WORLD * TOKENS;

/// Whether rows are grouped by expert and summed in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steps {
    /// Dispatch and combine; the rows that came go back.
    Exchange,
    /// Dispatch, pack, scatter, combine; the grouped rows are the experts' results.
    Full,
}

/// What one rank gives and gets.
struct Member {
    x: Mapping,
    idx: Vec<i32>,
    weights: Vec<f32>,
    out: Mapping,
    grouped: Mapping,
    masked_m: Vec<i32>,
    group_expert: Vec<i32>,
    row_of: Vec<i32>,
    row_index: Vec<i32>,
}

/// The value of an element: small and whole, so that sums of up to 8 are exact in bf16.
fn element(rank: usize, token: usize, at: usize) -> f32 {
    ((rank + 3 * token + at) % 7 + 1) as f32
}

fn bf16(value: f32) -> [u8; 2] {
    let [_, _, low, high] = value.to_le_bytes();
    [low, high]
}

impl Member {
    fn new(rank: usize, needed: &nmc_ep_bytes_t, random: &mut Random) -> Result<Self, Failure> {
        let map = |bytes: usize| Mapping::private(bytes).map_err(|e| Failure::os("mapping rows", &e));
        let size = |bytes: u64| usize::try_from(bytes).map_err(|_| Failure::new(format!("{bytes} bytes do not fit")));
        let list = |bytes: u64| size(bytes).map(|bytes| vec![0i32; bytes / 4]);
        let member = Self {
            x: map(TOKENS * ROW)?,
            idx: (0..TOKENS).flat_map(|_| some_experts(random)).collect(),
            weights: vec![1.0 / TOP_K as f32; TOKENS * TOP_K],
            out: map(TOKENS * ROW)?,
            grouped: map(size(needed.grouped_x)?)?,
            masked_m: list(needed.masked_m)?,
            group_expert: list(needed.masked_m)?,
            row_of: list(needed.row_of)?,
            row_index: list(needed.row_index)?,
        };
        let rows = (0..TOKENS).flat_map(|t| (0..HIDDEN).flat_map(move |i| bf16(element(rank, t, i))));
        // SAFETY: the mapping has TOKENS * ROW bytes, and nobody else knows it yet.
        let x = unsafe { std::slice::from_raw_parts_mut(member.x.base(), TOKENS * ROW) };
        x.iter_mut().zip(rows).for_each(|(to, byte)| *to = byte);
        Ok(member)
    }

    /// Ranks that have experts of a token, in ascending order.
    fn targets(&self, token: usize) -> Vec<usize> {
        let experts = self.idx[token * TOP_K..][..TOP_K].iter().filter_map(|e| usize::try_from(*e).ok());
        let mut ranks: Vec<usize> = experts.map(|e| e / (EXPERTS / WORLD)).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}

/// Different experts for one token, each as likely as any other.
fn some_experts(random: &mut Random) -> Vec<i32> {
    let mut experts = Vec::with_capacity(TOP_K);
    while experts.len() < TOP_K {
        let expert = i32::try_from(random.below(EXPERTS)).unwrap_or(0);
        if !experts.contains(&expert) {
            experts.push(expert);
        }
    }
    experts
}

/// Rows to copy, in the order in which the library touches them.
pub struct Copies(Vec<(*const u8, *mut u8)>);

impl Copies {
    /// Copies them all.
    pub fn run(&self) {
        for (from, to) in &self.0 {
            // SAFETY: rows of different buffers and heaps, which live as long as the group that `self` was made for; the
            // caller does not run a step meanwhile, since both are on one thread.
            unsafe { std::ptr::copy_nonoverlapping(*from, *to, ROW) };
        }
    }
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

/// All ranks of a group.
pub struct Party {
    nanomc: Nanomc,
    worlds: [*mut nmc_world_t; WORLD],
    eps: [*mut nmc_ep_t; WORLD],
    members: Vec<Member>,
}

impl Party {
    /// Makes the group and its tokens.
    pub fn form() -> Result<Self, Failure> {
        let (worlds, eps) = ([std::ptr::null_mut(); WORLD], [std::ptr::null_mut(); WORLD]);
        let mut party = Self { nanomc: Nanomc::load()?, worlds, eps, members: Vec::new() };
        let config = nmc_ep_config_t {
            t_cap: number(TOKENS),
            hidden: number(HIDDEN),
            top_k: number(TOP_K),
            experts: number(EXPERTS),
            ..nmc_ep_config_t::defaults()
        };
        // SAFETY: integers behind their size.
        let mut needed: nmc_ep_bytes_t = unsafe { blank() };
        // SAFETY: a full config and room for the answer.
        unsafe { try_call!(party.nanomc, nmc_ep_bytes_needed(&raw const config, number(WORLD), 0, &raw mut needed)) }?;
        let heap_bytes = needed.transport.next_multiple_of(4096);
        let world = nmc_world_config_t { world_size: number(WORLD), heap_bytes, ..nmc_world_config_t::defaults() };
        // SAFETY: a full config, and room for as many handles as it has ranks.
        unsafe { try_call!(party.nanomc, nmc_world_create_local(&raw const world, party.worlds.as_mut_ptr())) }?;
        let (worlds, eps) = (party.worlds.as_ptr(), party.eps.as_mut_ptr());
        // SAFETY: as many worlds and places for handles as are said.
        unsafe { try_call!(party.nanomc, nmc_ep_create_ranks(worlds, WORLD, &raw const config, eps)) }?;
        // The same tokens in every run.
        let mut random = Random(1);
        for rank in 0..WORLD {
            party.members.push(Member::new(rank, &needed, &mut random)?);
        }
        Ok(party)
    }

    /// One layer of all ranks.
    pub fn step(&mut self, layer: u32, steps: Steps) -> Result<(), Failure> {
        let (nanomc, stream) = (&self.nanomc, std::ptr::null_mut());
        // SAFETY: no arguments.
        unsafe { try_call!(nanomc, nmc_ep_group_begin()) }?;
        for (ep, member) in self.eps.iter().zip(&self.members) {
            let args = nmc_ep_dispatch_t {
                x: member.x.base().cast(),
                topk_idx: member.idx.as_ptr().cast(),
                topk_w: member.weights.as_ptr().cast(),
                n_tokens: number(TOKENS),
                layer,
                ..nmc_ep_dispatch_t::defaults()
            };
            // SAFETY: TOKENS rows, expert numbers and weights that live until the group of calls ends.
            unsafe { try_call!(nanomc, nmc_ep_dispatch(*ep, &raw const args, stream)) }?;
        }
        if steps == Steps::Full {
            for (ep, member) in self.eps.iter().zip(&mut self.members) {
                let grouped = nmc_ep_grouped_t {
                    x: member.grouped.base().cast(),
                    scales: std::ptr::null_mut(),
                    masked_m: member.masked_m.as_mut_ptr(),
                    group_expert: member.group_expert.as_mut_ptr(),
                    row_of: member.row_of.as_mut_ptr(),
                    row_index: member.row_index.as_mut_ptr(),
                    ..nmc_ep_grouped_t::defaults()
                };
                // SAFETY: memory of the sizes that the library asked for.
                unsafe { try_call!(nanomc, nmc_ep_route_pack(*ep, layer, &raw const grouped, stream)) }?;
            }
            for (ep, member) in self.eps.iter().zip(&self.members) {
                let (y, row_of) = (member.grouped.base().cast::<c_void>(), member.row_of.as_ptr());
                // SAFETY: as above; the rows go where the combine takes them from.
                unsafe { try_call!(nanomc, nmc_ep_scatter(*ep, layer, y, row_of, std::ptr::null_mut(), stream)) }?;
            }
        }
        for (ep, member) in self.eps.iter().zip(&self.members) {
            let out = member.out.base().cast();
            // SAFETY: room for TOKENS rows; those to return are in place.
            unsafe { try_call!(nanomc, nmc_ep_combine(*ep, layer, std::ptr::null(), out, stream)) }?;
        }
        // SAFETY: no arguments; all that the calls above were given is alive.
        unsafe { try_call!(nanomc, nmc_ep_group_end()) }
    }

    /// Whether the last step gave what it must: each token as often as it went out, or once by its weights.
    pub fn verify(&self, steps: Steps) -> Result<(), Failure> {
        for (rank, member) in self.members.iter().enumerate() {
            // SAFETY: the mapping has TOKENS * ROW bytes, which nobody writes now.
            let out = unsafe { std::slice::from_raw_parts(member.out.base(), TOKENS * ROW) };
            for (t, row) in out.chunks_exact(ROW).enumerate() {
                let times = if steps == Steps::Full { 1.0 } else { member.targets(t).len() as f32 };
                let right = |(i, bytes): (usize, &[u8])| bytes == bf16(times * element(rank, t, i));
                if !row.chunks_exact(2).enumerate().all(right) {
                    return Err(Failure::new(format!("token {t} of rank {rank} came back wrong")));
                }
            }
        }
        Ok(())
    }

    /// The copies of one step of this kind, from and to the same addresses. For [`Steps::Full`] a step must have been made.
    pub fn copies(&self, steps: Steps) -> Result<Copies, Failure> {
        let mut received = Vec::with_capacity(WORLD);
        for ep in self.eps {
            // SAFETY: integers and pointers, behind their size.
            let mut buffers: nmc_ep_recv_buffers_t = unsafe { blank() };
            // SAFETY: room for the answer.
            unsafe { try_call!(self.nanomc, nmc_ep_recv_buffers(ep, 0, &raw mut buffers)) }?;
            received.push(buffers);
        }
        let row = |base: *mut u8, at: usize| base.wrapping_add(at * ROW);
        let (mut there, mut grouped, mut summed, mut back) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (rank, member) in self.members.iter().enumerate() {
            for t in 0..TOKENS {
                for target in member.targets(t) {
                    let recv = &received[target];
                    let slot = rank * TOKENS + t;
                    there.push((row(member.x.base(), t).cast_const(), row(recv.x.cast_mut().cast(), slot)));
                    back.push((row(recv.y.cast(), slot).cast_const(), row(member.out.base(), t)));
                }
            }
            for (entry, at) in member.row_of.iter().enumerate() {
                let Ok(at) = usize::try_from(*at) else { continue };
                let (recv, place) = (&received[rank], row(member.grouped.base(), at));
                grouped.push((row(recv.x.cast_mut().cast(), entry / TOP_K).cast_const(), place));
                summed.push((place.cast_const(), row(recv.y.cast(), entry / TOP_K)));
            }
        }
        let parts = if steps == Steps::Full { vec![there, grouped, summed, back] } else { vec![there, back] };
        Ok(Copies(parts.concat()))
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        // SAFETY: handles of the library, or NULL; groups go before their worlds.
        unsafe {
            for ep in self.eps {
                call!(self.nanomc, nmc_ep_destroy(ep));
            }
            for world in self.worlds {
                call!(self.nanomc, nmc_world_destroy(world));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_of_a_token_differ() {
        let mut random = Random(1);
        for _ in 0..1000 {
            let mut experts = some_experts(&mut random);
            experts.sort_unstable();
            experts.dedup();
            assert_eq!(experts.len(), TOP_K);
            assert!(experts.iter().all(|e| (0..256).contains(e)));
        }
    }
}
