//! What must outlive a master: its term, who is a member, and what members that are away must drop. With etcd that is kept there
//! and etcd says who leads; without it one master keeps it in a file of its own.

pub mod etcd;
pub mod file;

use nanomc::cluster::directory::Change;
use tokio::sync::mpsc;

/// Changes to be written down in this order, each with the number under which the master waits for it.
pub type Changes = mpsc::UnboundedReceiver<(u64, Vec<Change>)>;
