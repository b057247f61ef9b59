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

/// What is read from another node is kept on this client's first node too, where others find it as well.
pub const NMC_CLIENT_KEEP_COPIES: u32 = 1;
/// What is submitted (`nmc_client_submit_put` and its like) is driven by a thread of the library, so that it goes on while the program does
/// something else; without this, `nmc_client_completions` drives it. The thread begins with the first such call.
pub const NMC_CLIENT_THREAD: u32 = 2;

/// A value that this client has read goes after `expire_ms`, with all its copies, wherever they are: the put that was read, not what is put under its
/// key later. Whoever reads it then finishes. The leader sees to it; one that takes the lead meanwhile does not know of it, and the value stays until it
/// is read again. Values that are read through `nmc_client_open_store` stay.
pub const NMC_CLIENT_EXPIRE: u32 = 4;

/// Of several copies, one on this machine is read first; then one in memory; then one of the node from which this client waits for least. Nodes
/// that have failed lately come last, here and below. What a node of this client has is always read there.
pub const NMC_READ_NEAR: u32 = 0;
/// One in memory first; then one on this machine; then as above.
pub const NMC_READ_MEMORY: u32 = 1;
/// One in memory first; then one of the node from which this client waits for least, on whatever machine: a value that many read comes from all that have it.
pub const NMC_READ_SPREAD: u32 = 2;

/// Calls that a client can have submitted without having taken their completions; a batch counts as up to 256.
pub const NMC_CLIENT_MAX_SUBMITTED: u32 = 4096;
const _: () = assert!(NMC_CLIENT_MAX_SUBMITTED as usize == crate::cluster::submit::MOST_SUBMITTED);

/// Do not wait until every owner has dropped the object: it is out of the directory when the call returns.
pub const NMC_REMOVE_ASYNC: u32 = 1;
/// Of all namespaces, not only the client's.
pub const NMC_REMOVE_EVERYWHERE: u32 = 2;

/// Memory of a GPU.
pub const NMC_MEDIA_VRAM: u32 = 0;
/// Memory of the host.
pub const NMC_MEDIA_RAM: u32 = 1;
/// The SSD tier of a node.
pub const NMC_MEDIA_SSD: u32 = 2;
/// Whatever the segment is made of.
pub const NMC_MEDIA_ANY: u32 = u32::MAX;

/// A segment takes values.
pub const NMC_SEGMENT_OK: u32 = 0;
/// It takes no more: what is only there is being copied elsewhere.
pub const NMC_SEGMENT_DRAINING: u32 = 1;
/// Its node has not been heard of for a while.
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
    /// Name or address of this machine, by which others reach it: `host` or `host:port`. With a port, the first node of the client
    /// listens there; else at a free one of 12300 to 14299. Empty for 127.0.0.1.
    pub local_hostname: nmc_slice_t,
    /// Masters, the first that answers leads or says who does: `host`, `host:port` or `unix:/path`, with commas between. Port 50051 if
    /// none is said.
    pub master_server: nmc_slice_t,
    /// For programs that come from Mooncake Store: `etcd://`, `redis://` or `http://` and an address, a bare `host:port`, `P2PHANDSHAKE`, or
    /// empty. Its form is checked; it is not needed here and never contacted.
    pub metadata_server: nmc_slice_t,
    /// `tcp`, which is the default, or `rdma`: then NIXL moves the bytes of large values, by RDMA or what else there is, where client and node
    /// both have it; all else goes by tcp. Where NIXL is not installed a line in the log says so; docs/cluster.md says how it is
    /// found.
    pub protocol: nmc_slice_t,
    /// Names of network devices that NIXL uses, with commas between; empty for all. With neither a token nor certificates it uses the loopback device alone. Not used with `tcp`.
    pub device_names: nmc_slice_t,
    /// What masters, nodes and clients of the cluster know, and nobody else does. Without it, and without certificates, everything must be on the loopback
    /// device, or `nmc_client_open` returns `NMC_ERR_PERMISSION`; with another than the masters know, so does every call. Without certificates it
    /// is sent as it is: the network must be trusted.
    pub token: nmc_slice_t,
    /// Namespace of the client's keys: empty, or 1 to 64 bytes. It is the namespace of that name in the stores of the nodes.
    pub namespace_name: nmc_slice_t,
    /// How long a call may take, in ms; -1 for 5 s. It returns at most 2 s after that.
    pub timeout_ms: i64,
    /// Keys whose places are remembered; -1 for 65,536.
    pub cache_keys: i32,
    /// 0, or `NMC_CLIENT_*` flags.
    pub flags: u32,
    /// With `NMC_CLIENT_EXPIRE`: how long after it was first read a value goes, in ms, up to a day; -1 for 1 s.
    pub expire_ms: i64,
    /// With `rdma`: values of so many bytes and more are moved by NIXL; 0 for 256 KiB.
    pub rdma_bytes: u64,
    /// One of `NMC_READ_*`: which of several copies is read first.
    pub read_order: u32,
    /// Zero.
    pub reserved_order: u32,
    /// Values of more bytes are put in parts of about as many, at most 4,096 of them, which are on different segments where there are enough and move
    /// side by side; 0 for never, and not less than 64 KiB. Whoever reads needs nothing for it. A value of which one part is lost is lost.
    pub stripe_bytes: u64,
    /// File (PEM) with the certificate of this program, and those between it and the authority's. With it all connections but those to `unix:` are
    /// encrypted (TLS 1.3), and each end wants a certificate of the other that one in `tls_ca` has signed, whatever name is in it; then no token is
    /// needed to leave the loopback device. All three files or none. What NIXL moves is not encrypted. Files that are replaced while the program
    /// runs are read anew, for connections that begin after that.
    pub tls_cert: nmc_slice_t,
    /// File (PEM) with the key of `tls_cert`.
    pub tls_key: nmc_slice_t,
    /// File (PEM) with the certificates of the authority: whoever has one that it has signed may do everything.
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

/// Where a copy must be.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_location_t {
    /// Name of the segment, or of a node.
    pub segment: nmc_slice_t,
    /// `NMC_MEDIA_*`: if `segment` is the name of a node, which of its segments; else `NMC_MEDIA_ANY`.
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
    /// Copies in all, on as many nodes if there are enough; 1 to 16. Fewer are no error if there are fewer nodes.
    pub copies: u32,
    /// Copies on a medium, by `NMC_MEDIA_*`. If they are more than `copies` together, their sum counts.
    pub media_copies: [u32; 3],
    /// One of `NMC_RETAIN_*`.
    pub retain: u32,
    /// From 0 to 3: what is lower is evicted first.
    pub priority: u32,
    /// Where copies must be, in the order in which they are filled; NULL for anywhere.
    pub locations: *const nmc_location_t,
    /// How many.
    pub n_locations: usize,
    /// What is said about the value; up to `NMC_MAX_METADATA` bytes (256) that every copy has.
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

/// A copy of an object, as the leader lists it. What it points to is valid during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_replica_t {
    /// Size of this struct as the library knows it: what lies behind it is not there.
    pub struct_size: u32,
    /// `NMC_MEDIA_*`.
    pub media: u32,
    /// Bytes of the value.
    pub bytes: u64,
    /// Names the put that it came from: copies of one put have the same.
    pub put_id: u64,
    /// Address at which its owner listens.
    pub endpoint: nmc_slice_t,
}

/// Gets a copy. Returns 0 to end the list. Called on the calling thread; must not throw.
pub type nmc_replica_fn = Option<unsafe extern "C" fn(user: *mut c_void, replica: *const nmc_replica_t) -> i32>;

/// Gets a key, which is valid during the call. Returns 0 to end the list. Called on the calling thread; must not throw.
pub type nmc_key_fn = Option<unsafe extern "C" fn(user: *mut c_void, key: nmc_slice_t) -> i32>;

/// A segment of the cluster. What it points to is valid during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_segment_t {
    /// Size of this struct as the library knows it: what lies behind it is not there.
    pub struct_size: u32,
    /// `NMC_MEDIA_*`.
    pub media: u32,
    /// `NMC_SEGMENT_*`.
    pub state: u32,
    /// Of memory of the host the NUMA node where it begins, as `host` numbers them; of a GPU's the CUDA number of the device in the node's process. As it was when
    /// its node joined: -1 if it had no first page then (memory that is not populated gets pages when values come) and the machine has several NUMA nodes,
    /// if nobody had taken that rank of the store, and for disks.
    pub near: i32,
    /// Bytes in all.
    pub capacity: u64,
    /// Bytes in use, as its node said last.
    pub used: u64,
    /// Its name.
    pub name: nmc_slice_t,
    /// The machine that has it: the address by which others reach its node.
    pub host: nmc_slice_t,
    /// 1 if that is this client's machine: both have the same `local_hostname`, or names of the same address.
    pub here: u32,
    /// Zero.
    pub reserved: u32,
}

/// Gets a segment. Returns 0 to end the list. Called on the calling thread; must not throw.
pub type nmc_segment_fn = Option<unsafe extern "C" fn(user: *mut c_void, segment: *const nmc_segment_t) -> i32>;

/// What became of a call that was submitted.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nmc_client_completion_t {
    /// What the caller passed with it.
    pub token: u64,
    /// Of a get, the size of the value, also of one for which there was no room; of a batch, of all of them together. Else 0.
    pub bytes: u64,
    /// What the call would have returned that waits.
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
            Err(_) => crate::bail!(NMC_ERR_INVALID_ARG, "cache_keys {keys} is negative"),
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
