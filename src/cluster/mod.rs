//! Cluster mode: nodes own objects, the master is a directory that can be rebuilt. Here is the core of it, as state machines
//! that are told what happened and when, and say what is to be done: no socket, no clock and no thread. The same code runs
//! under the real loops, which are in `run` and speak through `net`, and under the simulator. How the parts speak to each other is in `docs/cluster-inside.md`.

pub mod client;
pub mod directory;
pub mod facade;
pub mod leaders;
pub mod net;
pub mod nixl;
pub mod node;
pub mod revoked;
pub mod run;
#[cfg(test)]
mod sim;
pub mod submit;
pub mod told;
pub mod types;
pub mod wire;
