//! Why a call failed, in words.

use crate::base::error::Error;
use crate::base::status::{
    NMC_ERR_BUSY, NMC_ERR_CANCELLED, NMC_ERR_CORRUPT, NMC_ERR_EXISTS, NMC_ERR_LIMIT, NMC_ERR_NO_MEMORY,
    NMC_ERR_NO_SPACE, NMC_ERR_NOT_FOUND, NMC_ERR_PERMISSION, NMC_ERR_STALE, NMC_ERR_TIMEOUT, NMC_ERR_UNAVAILABLE,
    NMC_ERR_VERSION, name, nmc_status_t,
};
use crate::cluster::client::Outcome;
use crate::cluster::wire::Message;

/// Why a call failed, in the words of who refused it, if anybody said more than a status.
pub(super) fn failed(outcome: &Outcome, what: impl std::fmt::Display) -> Error {
    let said = match outcome.reply.as_deref() {
        Some(Message::Answer(answer)) => answer.text.as_str(),
        _ => "",
    };
    let said = if said.is_empty() { words(outcome.status) } else { said };
    Error::new(outcome.status, format!("{what}: {said}"))
}

/// What a status means here, where nobody has said more.
pub(super) fn words(status: nmc_status_t) -> &'static str {
    match status {
        NMC_ERR_NOT_FOUND => "no node has it",
        NMC_ERR_EXISTS => "there is a value already",
        NMC_ERR_BUSY => {
            "a node has no room at the moment, another put of it is under way, or a node that may have a copy cannot be reached: try again"
        }
        NMC_ERR_NO_SPACE => "too few nodes have room for it",
        NMC_ERR_LIMIT => {
            "this process may have no more files open (ulimit -n), or a node that is to have it has values of as many namespaces already, or had them, as a store can have"
        }
        NMC_ERR_TIMEOUT => "no answer in time from a master, or from a node that has it or is to have it",
        NMC_ERR_UNAVAILABLE => "no master leads, or no node takes it",
        NMC_ERR_PERMISSION => {
            "a node that has it or is to have it refuses this client, or shows no certificate that this client believes; the log says which"
        }
        NMC_ERR_VERSION => "a node that has it or is to have it speaks another version",
        NMC_ERR_CANCELLED => "cancelled before it had ended",
        NMC_ERR_CORRUPT => "every copy that was read had a wrong checksum",
        NMC_ERR_NO_MEMORY => "no memory for it",
        NMC_ERR_STALE => "it was removed or evicted, or its node began anew, before the put had ended",
        _ => name(status).to_str().unwrap_or("an unknown status"),
    }
}
