//! How a program takes part in a cluster.

use crate::cluster::client::ReadOrder;
use crate::cluster::net::secure::Files;
use std::time::Duration;

/// The port of a master, if none is said.
pub const MASTER_PORT: u16 = 50051;
/// Values of so many bytes are large.
pub const RDMA_FROM: u64 = 256 << 10;

/// How a program takes part.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of this machine, or its address; with a port, where its first node listens.
    pub host: String,
    /// Addresses of the masters.
    pub masters: Vec<String>,
    /// What whoever connects must know; empty for nothing. Without it and without certificates everything stays on this machine.
    pub token: String,
    /// With which certificate it speaks TLS; none for not at all.
    pub tls: Option<Files>,
    /// Namespace of the keys.
    pub space: Vec<u8>,
    /// How long a call may take.
    pub patience: Duration,
    /// Keys whose places are remembered.
    pub cache: usize,
    /// What is read from elsewhere is kept on this node too.
    pub keep: bool,
    /// Which of several copies is read.
    pub read_order: ReadOrder,
    /// How long after it was first read a value goes, in ms; 0 if it stays.
    pub expire_ms: u32,
    /// Values of more bytes are put in parts of about as many, on different segments; 0 for never.
    pub stripe: u64,
    /// A thread drives what is submitted; else whoever asks what became of it.
    pub thread: bool,
    /// NIXL moves the bytes of large values, where both sides have it.
    pub rdma: bool,
    /// What is a large value.
    pub rdma_from: u64,
    /// Names of network devices that it uses, with commas between; empty for all.
    pub devices: String,
    /// See [`crate::cluster::nixl::Settings::unfenced`].
    pub unfenced: bool,
    /// See [`crate::cluster::node::NodeStore::by_way_of_host`]; for none, only nodes with heaps on a GPU do that. Memory of the program counts as a device's then, too.
    pub bounce: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            masters: Vec::new(),
            token: String::new(),
            tls: None,
            space: Vec::new(),
            patience: Duration::from_secs(5),
            cache: 1 << 16,
            keep: false,
            read_order: ReadOrder::Near,
            expire_ms: 0,
            stripe: 0,
            thread: false,
            rdma: false,
            rdma_from: RDMA_FROM,
            devices: String::new(),
            unfenced: false,
            bounce: None,
        }
    }
}

impl Config {
    /// Whether anybody may come who can connect.
    pub(super) fn is_open(&self) -> bool {
        self.token.is_empty() && self.tls.is_none()
    }
}
