//! Cluster mode: nodes own objects, the master is a directory that can be rebuilt. Here is the core of it, as state machines
//! that are told what happened and when, and say what is to be done: no socket, no clock and no thread. The same code runs
//! under the real loops and under the simulator. How the parts speak to each other is in `docs/cluster-inside.md`.
//!
//! ```text
//! facade     what a program holds: a client, and the nodes that it has made of its stores
//! submit     calls that nobody waits for, and their completions
//! run        the real loops, around a master, a node and a client
//! sim        the simulator, around many of each
//! nixl       NIXL, which moves the bytes of large values
//! node       the agent of a node, its store, and a model of that for tests
//! directory  the master
//! client     puts over several owners, gets over several replicas
//! net        connections: frames and values between sockets and memory
//! leaders    which master is asked
//! revoked, told   puts that are not to be; puts of which it was told that they were read
//! wire       frames and messages
//! types      names of nodes, objects and puts, places in the drop log
//! ```
//! Each uses those below it, and none above; `tests/layers.rs` has the table.

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
