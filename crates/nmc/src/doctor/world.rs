//! What a world of host heaps needs, tried with the library itself: sealed shared memory, the directory in which ranks
//! meet, and a world of one rank from joining to leaving.

use super::Check;
use nanomc::base::{Deadline, Result};
use nanomc::mem::{HeapKind, Slab};
use nanomc::world::dir::Place;
use nanomc::world::{Config, Hosting, World};
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Checks without which host heaps cannot work.
pub const NEEDED: &[&str] = &["kernel.pidfd", "kernel.wipe_on_fork", "world.memfd", "world.directory", "world.trial"];

const HEAPS: &str = "host heaps";
const TRIAL_BYTES: u64 = 1 << 20;

/// All checks of this file.
pub fn checks() -> Vec<Check> {
    let memfd = match sealed_memory() {
        Ok(()) => Check::ok("world.memfd", "sealed shared memory works", HEAPS),
        Err(e) => Check::ok("world.memfd", e.message, HEAPS)
            .missing_if(true, "fix what the message names; memfd_create, fallocate and /proc/self/fd must work"),
    };
    let trial = match one_rank() {
        Ok(()) => Check::ok("world.trial", "a world of one rank was joined and left", HEAPS),
        Err(e) => Check::ok("world.trial", e.message, HEAPS).missing_if(true, "fix what the message names"),
    };
    vec![memfd, directory(), trial]
}

fn sealed_memory() -> Result<()> {
    let slab = Slab::create(c"nmc doctor", TRIAL_BYTES, false, &super::trial_deadline())?;
    Slab::open(slab.read_only_fd()?, TRIAL_BYTES, false).map(drop)
}

/// The directory in which worlds meet unless told otherwise. It is made and removed with them, so its parent counts.
fn directory() -> Check {
    let socket = Place::new(None, "doctor").socket();
    let base: PathBuf = socket.parent().and_then(Path::parent).map(Path::to_path_buf).unwrap_or_default();
    let probe = base.join(format!(".doctor-{}", std::process::id()));
    // As the library makes it: not its parents, and for this user alone, since a world may start to use it meanwhile.
    let made = match DirBuilder::new().mode(0o700).create(&base) {
        Err(cause) if cause.kind() != ErrorKind::AlreadyExists => Err(cause),
        _ => std::fs::create_dir(&probe),
    };
    let _ = std::fs::remove_dir(&probe);
    // Fails while a world is in it.
    let _ = std::fs::remove_dir(&base);
    match made {
        Ok(()) => Check::ok("world.directory", format!("{} is writable", base.display()), "ranks to meet"),
        Err(cause) => Check::ok("world.directory", format!("{}: {cause}", base.display()), "ranks to meet")
            .missing_if(true, "set XDG_RUNTIME_DIR, or config.dir, to a directory that this user can write"),
    }
}

fn one_rank() -> Result<()> {
    let config = Config {
        name: format!("doctor-{}", std::process::id()),
        dir: None,
        rank: Some(0),
        world_size: 1,
        min_ranks: 0,
        heap_kind: HeapKind::Host,
        heap_bytes: TRIAL_BYTES,
        huge_pages: false,
        populate: false,
        import: None,
        device: None,
        device_rank: None,
        words_per_rank: 1,
        hosting: Hosting::Rank0,
        deadline: Deadline::after(Duration::from_secs(5)),
        drain_ms: 0,
        service_cpu: None,
        give_up: std::sync::Arc::default(),
    };
    let world = World::join(config)?;
    world.selftest(1, &Deadline::after(Duration::from_secs(5)))?;
    world.finalize()
}
