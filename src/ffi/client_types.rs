//! Structs and constants of the cluster client's API.

use super::basic::{NMC_ABI_VERSION, nmc_slice_t};
use super::config::Config as Versioned;
use super::store_types::{NMC_RETAIN_NONE, keep};
use super::world_types::bytes_of;
use crate::base::error::Result;
use crate::base::memory;
use crate::cluster::client::ReadOrder;
use crate::cluster::facade::{Config, MASTER_PORT, PutOptions, RDMA_FROM};
use crate::cluster::net::secure::Files;
use crate::cluster::node::real::retain_code;
use crate::cluster::types::Media;
use crate::cluster::wire::{Location, Replicate};
use std::ffi::c_void;
use std::time::Duration;

/// Keep a copy of values that are read from another node on this client's first node, where others find it too.
pub const NMC_CLIENT_KEEP_COPIES: u32 = 1;
/// Drive submitted calls (`nmc_client_submit_put` and the like) with a thread of the library, so that they make
/// progress while the program does something else. Without this flag, `nmc_client_completions` drives them. The thread
/// starts with the first submitted call.
pub const NMC_CLIENT_THREAD: u32 = 2;

/// Remove a value, with all its copies on all nodes, `expire_ms` after this client has read it. That concerns the put
/// that was read, not one that takes its key later. Reads that have begun finish. The leader removes the value; a new
/// leader does not know of it, and then the value stays until it is read again. Values that are read through
/// `nmc_client_open_store` stay.
pub const NMC_CLIENT_EXPIRE: u32 = 4;

/// Of several copies, read one on this machine first; then one in memory; then one on the node from which this client
/// waits for the least. Nodes that failed lately come last, in all three orders. A value that a node of this client has
/// is always read there.
pub const NMC_READ_NEAR: u32 = 0;
/// Read a copy in memory first; then one on this machine; then as for `NMC_READ_NEAR`.
pub const NMC_READ_MEMORY: u32 = 1;
/// Read a copy in memory first; then one on the node from which this client waits for the least, on whatever machine.
/// So a value that many read comes from all nodes that have it.
pub const NMC_READ_SPREAD: u32 = 2;

/// Most calls that a client can have submitted without having taken their completions. A batch counts as up to 256.
pub const NMC_CLIENT_MAX_SUBMITTED: u32 = 4096;
const _: () = assert!(NMC_CLIENT_MAX_SUBMITTED as usize == crate::cluster::submit::MOST_SUBMITTED);

/// Do not wait until every owner has dropped the object: it is out of the directory when the call returns.
pub const NMC_REMOVE_ASYNC: u32 = 1;
/// Remove objects of all namespaces, not only the client's.
pub const NMC_REMOVE_EVERYWHERE: u32 = 2;

/// GPU memory.
pub const NMC_MEDIA_VRAM: u32 = 0;
/// Host memory.
pub const NMC_MEDIA_RAM: u32 = 1;
/// The SSD tier of a node.
pub const NMC_MEDIA_SSD: u32 = 2;
/// Any medium.
pub const NMC_MEDIA_ANY: u32 = u32::MAX;

/// The segment accepts values.
pub const NMC_SEGMENT_OK: u32 = 0;
/// The segment accepts no more values; values that are only there are being copied to other nodes.
pub const NMC_SEGMENT_DRAINING: u32 = 1;
/// The master has not heard from the segment's node for a while.
pub const NMC_SEGMENT_GONE: u32 = 2;

/// Longest text in a config.
const MAX_TEXT: usize = 4096;
/// Longest time that a call may take, in ms.
const MAX_PATIENCE_MS: i64 = 24 * 3600 * 1000;
/// Parts of a value have at least so many bytes, but for the last: with less the messages would cost more than the bytes.
const MIN_STRIPE: u64 = 64 << 10;
/// Locations that a put may name.
const MAX_LOCATIONS: usize = 64;

/// How a program takes part in a cluster. Start from `NMC_CLIENT_CONFIG_INIT` and set `master_server`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_client_config_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// Name or address of this machine, by which others reach it: `host` or `host:port`. With a port, the first node of
    /// the client listens there; all other nodes listen at a free port from 12300 to 14299. Empty for 127.0.0.1. Or
    /// `unix:/folder`: nodes listen at sockets in that folder, which is made for this user alone if it is not there; then
    /// all masters must be on this machine.
    pub local_hostname: nmc_slice_t,
    /// The masters, separated by commas: `host`, `host:port` or `unix:/path`, with port 50051 by default. The first one
    /// that answers is the leader, or says which one is.
    pub master_server: nmc_slice_t,
    /// For programs that come from Mooncake Store: `etcd://`, `redis://` or `http://` and an address, a bare
    /// `host:port`, `P2PHANDSHAKE`, or empty. Its form is checked, but it is not needed here and never contacted.
    pub metadata_server: nmc_slice_t,
    /// `tcp` (default) or `rdma`. With `rdma`, NIXL moves the bytes of large values, by RDMA or whatever else it finds,
    /// where both client and node have it; everything else goes by TCP. If NIXL is not installed, a line in the log
    /// says so; docs/cluster.md says how it is found.
    pub protocol: nmc_slice_t,
    /// With `rdma`: names of the network devices that NIXL uses, separated by commas; empty for all. With neither a
    /// token nor certificates, NIXL uses only the loopback device. Not used with `tcp`.
    pub device_names: nmc_slice_t,
    /// Secret that all masters, nodes and clients of the cluster share. Without a token and without certificates,
    /// everything must be on the loopback device, or `nmc_client_open` returns `NMC_ERR_PERMISSION`. With another token
    /// than the masters', every call returns `NMC_ERR_PERMISSION`. Without certificates the token is sent in the clear,
    /// so the network must be trusted.
    pub token: nmc_slice_t,
    /// Namespace of the client's keys: empty, or 1 to 64 bytes. In the nodes' stores it is the namespace of the same
    /// name.
    pub namespace_name: nmc_slice_t,
    /// How long a call may take, in ms; -1 for 5 s. The call returns at most 2 s after that.
    pub timeout_ms: i64,
    /// Number of keys whose locations the client remembers; -1 for 65,536.
    pub cache_keys: i32,
    /// 0, or `NMC_CLIENT_*` flags.
    pub flags: u32,
    /// With `NMC_CLIENT_EXPIRE`: how long after its first read a value is removed, in ms, up to a day; -1 for 1 s.
    pub expire_ms: i64,
    /// With `rdma`: NIXL moves values of at least this many bytes; 0 for 256 KiB.
    pub rdma_bytes: u64,
    /// One of `NMC_READ_*`: which of several copies is read first.
    pub read_order: u32,
    /// Zero.
    pub reserved_order: u32,
    /// Put larger values in parts of about this many bytes, at most 4,096 of them, which lie on different segments if
    /// there are enough and move in parallel. 0 for never; less than 64 KiB counts as 64 KiB. Readers need no setting
    /// for this. A value that loses one part is lost.
    pub stripe_bytes: u64,
    /// PEM file with this program's certificate and any certificates between it and the authority's. With it, all
    /// connections except `unix:` ones are encrypted (TLS 1.3), and each end demands a certificate of the other that
    /// one in `tls_ca` has signed, whatever name is in it; a token is then not needed to leave the loopback device. Set
    /// all three files or none. What NIXL moves is not encrypted. If the files are replaced while the program runs,
    /// connections that begin after that use the new ones.
    pub tls_cert: nmc_slice_t,
    /// PEM file with the key of `tls_cert`.
    pub tls_key: nmc_slice_t,
    /// PEM file with the certificates of the authority. Any program with a certificate that it has signed may do
    /// everything.
    pub tls_ca: nmc_slice_t,
}

// SAFETY: repr(C), integers and pointers only, no padding.
unsafe impl Versioned for nmc_client_config_t {
    const NAME: &'static str = "nmc_client_config_t";
    fn defaults() -> Self {
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            abi_version: NMC_ABI_VERSION,
            local_hostname: nmc_slice_t { ptr: std::ptr::null(), len: 0 },
            master_server: nmc_slice_t { ptr: std::ptr::null(), len: 0 },
            metadata_server: nmc_slice_t { ptr: std::ptr::null(), len: 0 },
            protocol: nmc_slice_t { ptr: std::ptr::null(), len: 0 },
            device_names: nmc_slice_t { ptr: std::ptr::null(), len: 0 },
            token: nmc_slice_t { ptr: std::ptr::null(), len: 0 },
            namespace_name: nmc_slice_t { ptr: std::ptr::null(), len: 0 },
            timeout_ms: -1,
            cache_keys: -1,
            flags: 0,
            expire_ms: -1,
            rdma_bytes: 0,
            read_order: NMC_READ_NEAR,
            reserved_order: 0,
            stripe_bytes: 0,
            tls_cert: nmc_slice_t { ptr: std::ptr::null(), len: 0 },
            tls_key: nmc_slice_t { ptr: std::ptr::null(), len: 0 },
            tls_ca: nmc_slice_t { ptr: std::ptr::null(), len: 0 },
        }
    }
}

/// Place that a copy must be in.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_location_t {
    /// Name of a segment or of a node.
    pub segment: nmc_slice_t,
    /// `NMC_MEDIA_*`: if `segment` names a node, which of its segments; otherwise `NMC_MEDIA_ANY`.
    pub media: u32,
    /// Zero.
    pub reserved: u32,
}

/// How a value is put. Start from `NMC_REPLICATE_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_replicate_t {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// `NMC_ABI_VERSION` as the caller knows it.
    pub abi_version: u32,
    /// Number of copies, 1 to 16, on as many nodes if there are enough. Fewer copies are no error if there are fewer
    /// nodes.
    pub copies: u32,
    /// Number of copies on each medium, by `NMC_MEDIA_*`. If their sum is more than `copies`, the sum counts.
    pub media_copies: [u32; 3],
    /// One of `NMC_RETAIN_*`.
    pub retain: u32,
    /// 0 to 3; lower ones are evicted first.
    pub priority: u32,
    /// Places where copies must be, filled in this order; NULL for anywhere.
    pub locations: *const nmc_location_t,
    /// Number of locations.
    pub n_locations: usize,
    /// Metadata of the value, up to `NMC_MAX_METADATA` bytes (256); every copy has it.
    pub metadata: nmc_slice_t,
    /// Zero.
    pub reserved: [u64; 4],
}

// SAFETY: repr(C), integers and pointers only, no padding.
unsafe impl Versioned for nmc_replicate_t {
    const NAME: &'static str = "nmc_replicate_t";
    fn defaults() -> Self {
        Self {
            struct_size: u32::try_from(size_of::<Self>()).unwrap_or(0),
            abi_version: NMC_ABI_VERSION,
            copies: 1,
            media_copies: [0, 0, 0],
            retain: NMC_RETAIN_NONE,
            priority: 0,
            locations: std::ptr::null(),
            n_locations: 0,
            metadata: nmc_slice_t { ptr: std::ptr::null(), len: 0 },
            reserved: [0, 0, 0, 0],
        }
    }
}

/// A copy of an object, as the leader lists it. What it points to is valid during the callback only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_replica_t {
    /// Size of this struct as the library knows it; there are no fields beyond that.
    pub struct_size: u32,
    /// `NMC_MEDIA_*`.
    pub media: u32,
    /// Size of the value.
    pub bytes: u64,
    /// Identifies the put that the copy came from; all copies of one put have the same.
    pub put_id: u64,
    /// Address at which the copy's owner listens.
    pub endpoint: nmc_slice_t,
}

/// Receives a copy. Returns 0 to end the list. Called on the calling thread; must not throw.
pub type nmc_replica_fn = Option<unsafe extern "C" fn(user: *mut c_void, replica: *const nmc_replica_t) -> i32>;

/// Receives a key, which is valid during the call only. Returns 0 to end the list. Called on the calling thread; must
/// not throw.
pub type nmc_key_fn = Option<unsafe extern "C" fn(user: *mut c_void, key: nmc_slice_t) -> i32>;

/// A segment of the cluster. What it points to is valid during the callback only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_segment_t {
    /// Size of this struct as the library knows it; there are no fields beyond that.
    pub struct_size: u32,
    /// `NMC_MEDIA_*`.
    pub media: u32,
    /// `NMC_SEGMENT_*`.
    pub state: u32,
    /// For host memory, the NUMA node where it begins, as `host` numbers them; for GPU memory, the CUDA number of the
    /// device in the node's process. It is as it was when the node joined. -1 for disks, if the rank of the store had
    /// no holder then, or if the memory had no first page yet (memory that is not populated gets pages when values
    /// come) and the machine has several NUMA nodes.
    pub near: i32,
    /// Size in bytes.
    pub capacity: u64,
    /// Bytes in use, as last reported by its node.
    pub used: u64,
    /// Name of the segment.
    pub name: nmc_slice_t,
    /// Machine that has the segment: the address by which others reach its node.
    pub host: nmc_slice_t,
    /// 1 if that is this client's machine: both have the same `local_hostname`, or names of the same address.
    pub here: u32,
    /// Zero.
    pub reserved: u32,
}

/// Receives a segment. Returns 0 to end the list. Called on the calling thread; must not throw.
pub type nmc_segment_fn = Option<unsafe extern "C" fn(user: *mut c_void, segment: *const nmc_segment_t) -> i32>;

/// Outcome of a submitted call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_client_completion_t {
    /// What the caller passed to the submitting call.
    pub token: u64,
    /// For a read, the size of the value, even if there was no room for it, or of the metadata if only that was read;
    /// for a batch of reads, of all values together. Otherwise 0.
    pub bytes: u64,
    /// What the blocking form of the call would have returned.
    pub status: i32,
    /// Zero.
    pub reserved: u32,
}

/// # Safety
/// `slice` is one as the C contract says.
unsafe fn text_of(slice: nmc_slice_t, name: &str) -> Result<String> {
    // SAFETY: forwarded from the caller.
    let bytes = unsafe { bytes_of(slice, name, MAX_TEXT) }?;
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text.to_string()),
        // A secret stays out of logs.
        _ if name == "token" => crate::bail!(NMC_ERR_INVALID_ARG, "token, of {} bytes, is no text", bytes.len()),
        _ => crate::bail!(NMC_ERR_INVALID_ARG, "{name} \"{}\" is no text", bytes.escape_ascii()),
    }
}

/// A metadata service as Mooncake Store's programs name it.
fn check_metadata(text: &str) -> Result<()> {
    if text.is_empty() || text == "P2PHANDSHAKE" {
        return Ok(());
    }
    let rest = match text.split_once("://") {
        Some(("etcd" | "redis" | "http" | "https", rest)) => rest,
        Some((scheme, _)) => {
            crate::bail!(
                NMC_ERR_INVALID_ARG,
                "metadata_server begins with {scheme}://, not with etcd://, redis:// or http://"
            );
        }
        None => text,
    };
    let parts = rest.split('/').next().unwrap_or_default();
    let good = |part: &str| match part.rsplit_once(':') {
        Some((host, port)) => !host.is_empty() && port.parse::<u16>().is_ok(),
        None => !part.is_empty() && text.contains("://"),
    };
    if !parts.split([',', ';']).all(good) {
        crate::bail!(NMC_ERR_INVALID_ARG, "metadata_server \"{text}\" is no address of the form host:port");
    }
    crate::base::log::emit(crate::base::log::INFO, || {
        format!("client: the metadata service {text} is not needed here and not contacted")
    });
    Ok(())
}

/// # Safety
/// The config is one as the C contract says.
unsafe fn tls_of(c: &nmc_client_config_t) -> Result<Option<Files>> {
    // SAFETY: forwarded from the caller.
    let texts =
        unsafe { [text_of(c.tls_cert, "tls_cert")?, text_of(c.tls_key, "tls_key")?, text_of(c.tls_ca, "tls_ca")?] };
    if texts.iter().all(String::is_empty) {
        return Ok(None);
    }
    if texts.iter().any(String::is_empty) {
        crate::bail!(NMC_ERR_INVALID_ARG, "tls_cert, tls_key and tls_ca are needed together, and one of them is empty");
    }
    let [cert, key, ca] = texts.map(Into::into);
    Ok(Some(Files { cert, key, ca }))
}

/// # Safety
/// `ptr` is NULL or a config as the C contract says.
pub(super) unsafe fn parse_client(ptr: *const nmc_client_config_t) -> Result<Config> {
    // SAFETY: forwarded from the caller.
    let c = unsafe { super::config::read(ptr) }?;
    if c.flags & !(NMC_CLIENT_KEEP_COPIES | NMC_CLIENT_THREAD | NMC_CLIENT_EXPIRE) != 0 || c.reserved_order != 0 {
        crate::bail!(NMC_ERR_INVALID_ARG, "flags {:#x} or a reserved field has bits that mean nothing", c.flags);
    }
    // SAFETY: the C contract of all of these.
    let (host, masters, metadata, protocol, devices, token) = unsafe {
        (
            text_of(c.local_hostname, "local_hostname")?,
            text_of(c.master_server, "master_server")?,
            text_of(c.metadata_server, "metadata_server")?,
            text_of(c.protocol, "protocol")?,
            text_of(c.device_names, "device_names")?,
            text_of(c.token, "token")?,
        )
    };
    // SAFETY: as above.
    let tls = unsafe { tls_of(&c) }?;
    // SAFETY: as above.
    let space = unsafe { bytes_of(c.namespace_name, "namespace_name", crate::layout::store::MAX_NAMESPACE_NAME) }?;
    check_metadata(&metadata)?;
    let rdma = match protocol.as_str() {
        "" | "tcp" => false,
        "rdma" => true,
        other => crate::bail!(NMC_ERR_INVALID_ARG, "protocol \"{other}\" is neither tcp nor rdma"),
    };
    if !devices.is_empty() && !rdma {
        crate::base::log::emit(crate::base::log::INFO, || format!("client: with tcp no device is used: {devices}"));
    }
    if masters.is_empty() {
        crate::bail!(NMC_ERR_INVALID_ARG, "master_server is empty; it is host:port, port {MASTER_PORT} by default");
    }
    let default = Config::default();
    let patience = match c.timeout_ms {
        -1 => default.patience,
        ms @ 1..=MAX_PATIENCE_MS => Duration::from_millis(ms.unsigned_abs()),
        ms => crate::bail!(NMC_ERR_INVALID_ARG, "timeout_ms {ms} is not -1 or between 1 and {MAX_PATIENCE_MS}"),
    };
    let cache = match c.cache_keys {
        -1 => default.cache,
        keys => match usize::try_from(keys) {
            Ok(keys) => keys,
            Err(_) => crate::bail!(NMC_ERR_INVALID_ARG, "cache_keys {keys} is not -1, 0 or more"),
        },
    };
    let expire_ms = match (c.flags & NMC_CLIENT_EXPIRE != 0, c.expire_ms) {
        (false, _) => 0,
        (true, -1) => 1_000,
        (true, ms @ 1..=MAX_PATIENCE_MS) => u32::try_from(ms).unwrap_or(u32::MAX),
        (true, ms) => crate::bail!(NMC_ERR_INVALID_ARG, "expire_ms {ms} is not -1 or between 1 and {MAX_PATIENCE_MS}"),
    };
    let read_order = match c.read_order {
        NMC_READ_NEAR => ReadOrder::Near,
        NMC_READ_MEMORY => ReadOrder::Memory,
        NMC_READ_SPREAD => ReadOrder::Spread,
        other => crate::bail!(NMC_ERR_INVALID_ARG, "read_order {other} is none of NMC_READ_*"),
    };
    Ok(Config {
        host: if host.is_empty() { default.host } else { host },
        masters: masters.split(',').map(|master| master.trim().to_string()).collect(),
        token,
        tls,
        space: memory::copy(space)?,
        patience,
        cache,
        keep: c.flags & NMC_CLIENT_KEEP_COPIES != 0,
        read_order,
        expire_ms,
        stripe: if c.stripe_bytes == 0 { 0 } else { c.stripe_bytes.max(MIN_STRIPE) },
        thread: c.flags & NMC_CLIENT_THREAD != 0,
        rdma,
        rdma_from: if c.rdma_bytes == 0 { RDMA_FROM } else { c.rdma_bytes },
        devices,
        unfenced: false,
        bounce: None,
    })
}

/// # Safety
/// `ptr` is NULL or a config as the C contract says.
pub(super) unsafe fn parse_replicate(ptr: *const nmc_replicate_t) -> Result<PutOptions> {
    // SAFETY: forwarded from the caller.
    let c = if ptr.is_null() { Versioned::defaults() } else { unsafe { super::config::read(ptr) }? };
    if c.reserved.iter().any(|r| *r != 0) {
        crate::bail!(NMC_ERR_INVALID_ARG, "a reserved field has bits that mean nothing");
    }
    if c.n_locations > MAX_LOCATIONS {
        crate::bail!(NMC_ERR_INVALID_ARG, "{} locations are named; {MAX_LOCATIONS} are possible", c.n_locations);
    }
    // SAFETY: the C contract of `locations`.
    let locations = unsafe { super::arg::array(c.locations, c.n_locations, "locations") }?;
    let fixed = memory::try_collect(locations.iter().enumerate().map(|(at, location)| {
        if location.reserved != 0 {
            crate::bail!(NMC_ERR_INVALID_ARG, "the reserved field of locations[{at}] has bits that mean nothing");
        }
        let media = match (location.media, Media::from_code(location.media)) {
            (NMC_MEDIA_ANY, _) => None,
            (_, Some(media)) => Some(media),
            (code, None) => crate::bail!(NMC_ERR_INVALID_ARG, "media {code} is none of NMC_MEDIA_*"),
        };
        // SAFETY: the C contract of `locations`.
        Ok(Location { segment: unsafe { text_of(location.segment, "segment") }?, media })
    }))?;
    let named = |location: &Location| !location.segment.is_empty();
    if let Some(at) = (1..fixed.len()).find(|at| named(&fixed[*at]) && fixed[..*at].contains(&fixed[*at])) {
        let segment = &fixed[at].segment;
        crate::bail!(
            NMC_ERR_INVALID_ARG,
            "\"{segment}\" is named twice in locations: each copy is on a segment of its own"
        );
    }
    let kept = keep(c.retain, c.priority, 0)?;
    // SAFETY: the C contract of `metadata`.
    let metadata = unsafe { super::store_types::metadata_of(c.metadata) }?;
    let media = if c.media_copies == [0, 0, 0] { Vec::new() } else { c.media_copies.to_vec() };
    Ok(PutOptions {
        replicate: Replicate { copies: c.copies, media, fixed, near: String::new() },
        retain: retain_code(kept.retain, kept.priority),
        metadata: memory::copy(metadata)?,
    })
}
