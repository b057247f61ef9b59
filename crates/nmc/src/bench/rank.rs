//! The other side of `crowd`: what a process of a benchmark does. It writes a byte when it is ready, obeys orders from
//! its standard input, leaves at its end, and dies with the process that started it.

use crate::args::Failure;
use crate::sys::{self, Cpus, Mapping};
use crate::{Outcome, term};
use nanomc::base::Deadline;
use nanomc::mem::HeapKind;
use nanomc::world::{Config, Hosting, World};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The hidden command.
pub const SUBCOMMAND: &str = "__bench-rank";
/// What a process writes when it is ready.
pub const READY: u8 = b'R';
/// Order: the next four bytes are a number of barriers to pass.
pub const BARRIERS: u8 = b'b';
/// Order: the next four bytes are a number of bytes to send back one by one.
pub const ECHO: u8 = b'e';
/// Order: the next four bytes are the number of the CPU to stay on.
pub const BIND: u8 = b'c';
/// How long a world of a benchmark may take to form.
const JOIN_LIMIT: Duration = Duration::from_secs(30);

/// What kind of process it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A rank of a world.
    World,
    /// The same without the library: a mapping, a socket, a byte to and fro.
    Plain,
    /// A client of a store, which it calls through the C ABI.
    Store,
    /// A node of a cluster, and a plain server.
    Owner,
    /// A plain server alone.
    Echo,
    /// The master of a cluster.
    Directory,
    /// A node to which NIXL moves bytes.
    Mover,
}

impl Role {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Role::World => "world",
            Role::Plain => "plain",
            Role::Store => "store",
            Role::Owner => "owner",
            Role::Echo => "echo",
            Role::Directory => "directory",
            Role::Mover => "mover",
        }
    }
}

/// The world of a benchmark, as one rank joins it.
pub fn config(dir: &Path, rank: u32, world_size: u32, heap_bytes: u64) -> Config {
    Config {
        name: "bench".to_owned(),
        dir: Some(dir.to_owned()),
        rank: Some(rank),
        world_size,
        min_ranks: 0,
        heap_kind: HeapKind::Host,
        heap_bytes,
        huge_pages: false,
        populate: false,
        import: None,
        device: None,
        device_rank: None,
        words_per_rank: nanomc::world::config::DEFAULT_WORDS,
        hosting: Hosting::Rank0,
        deadline: Deadline::after(JOIN_LIMIT),
        drain_ms: 0,
        service_cpu: None,
        give_up: std::sync::Arc::default(),
    }
}

/// Runs the hidden command.
pub fn run(words: &[OsString]) -> Outcome {
    let number = |at: usize| words.get(at).and_then(|w| w.to_str()).and_then(|w| w.parse::<u64>().ok());
    let small = |at: usize| number(at).and_then(|n| u32::try_from(n).ok());
    let (Some(role), Some(dir)) = (words.first(), words.get(1).map(PathBuf::from)) else {
        return Err(misuse());
    };
    let (Some(rank), Some(size), Some(bytes), Some(parent)) = (small(2), small(3), number(4), small(5)) else {
        return Err(misuse());
    };
    sys::Interrupts::release();
    if !sys::die_with_parent(parent) {
        return Ok(ExitCode::FAILURE);
    }
    match role.to_str() {
        Some("world") => in_world(&dir, rank, size, bytes)?,
        Some("store") => super::store_rank::serve(&dir, rank, size, bytes)?,
        Some("owner") => super::cluster_rank::owner(&dir, rank, size, bytes)?,
        Some("echo") => super::cluster_rank::echo(bytes)?,
        Some("directory") => super::cluster_rank::directory(&dir, rank, size, bytes)?,
        Some("mover") => super::cluster_nixl::owner(&dir, rank, bytes)?,
        Some("plain") => plain(&dir, rank, size, bytes).map_err(|e| Failure::os("a plain rank", &e))?,
        _ => return Err(misuse()),
    }
    Ok(ExitCode::SUCCESS)
}

fn misuse() -> Failure {
    Failure::usage(format!("{SUBCOMMAND} is for nmc bench alone"))
}

/// Standard input and output.
pub fn pipes() -> std::io::Result<(File, File)> {
    // Unbuffered, since every byte is a message.
    let input = std::io::stdin().as_fd().try_clone_to_owned()?;
    let output = std::io::stdout().as_fd().try_clone_to_owned()?;
    Ok((input.into(), output.into()))
}

fn in_world(dir: &Path, rank: u32, size: u32, bytes: u64) -> Result<(), Failure> {
    let world = World::join(config(dir, rank, size, bytes))?;
    obey(&world).map_err(|e| Failure::os(format!("rank {rank}"), &e))?;
    world.finalize()?;
    Ok(())
}

fn obey(world: &World) -> std::io::Result<()> {
    let (mut input, mut output) = pipes()?;
    output.write_all(&[READY])?;
    let mut order = [0u8; 5];
    loop {
        match input.read_exact(&mut order) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let [what, count @ ..] = order;
        let count = u32::from_le_bytes(count);
        if what == BIND {
            Cpus::one(count).bind()?;
            continue;
        }
        for _ in 0..count {
            if what == BARRIERS {
                world.barrier(&Deadline::after(JOIN_LIMIT)).map_err(std::io::Error::other)?;
            } else {
                let mut byte = [0];
                input.read_exact(&mut byte)?;
                output.write_all(&byte)?;
            }
        }
    }
}

/// Process 0 waits for a byte from everyone and then answers everyone; nobody is ready before all are there.
fn plain(dir: &Path, rank: u32, size: u32, bytes: u64) -> std::io::Result<()> {
    let bytes = usize::try_from(bytes).map_err(std::io::Error::other)?;
    let _memory = (bytes > 0).then(|| Mapping::shared(bytes)).transpose()?;
    let path = dir.join("sock");
    let mut byte = [READY];
    if rank == 0 {
        let listener = UnixListener::bind(&path)?;
        let mut peers = (1..size).map(|_| Ok(listener.accept()?.0)).collect::<std::io::Result<Vec<UnixStream>>>()?;
        peers.iter_mut().try_for_each(|peer| peer.read_exact(&mut byte))?;
        peers.iter_mut().try_for_each(|peer| peer.write_all(&byte))?;
    } else {
        let mut hub = connect(&path)?;
        hub.write_all(&byte)?;
        hub.read_exact(&mut byte)?;
    }
    let (mut input, mut output) = pipes()?;
    output.write_all(&byte)?;
    input.read_to_end(&mut Vec::new()).map(drop)
}

fn connect(path: &Path) -> std::io::Result<UnixStream> {
    let until = Instant::now() + JOIN_LIMIT;
    loop {
        match UnixStream::connect(path) {
            Err(cause) if Instant::now() > until => {
                term::print_error(&format!("{}: {cause}\n", path.display()));
                return Err(cause);
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
            connected => return connected,
        }
    }
}
