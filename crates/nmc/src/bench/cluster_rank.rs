//! Processes of the cluster benchmarks besides the client: a node, a plain server, and the master. Each says in a line where it
//! listens, and then does as it is told.

use super::cluster_library::{Client, Manner};
use super::cluster_plain;
use super::cluster_ways::Certificates;
use super::rank::pipes;
use super::store_library::{Part, Shelf, Slices, Wanted};
use super::store_rank::Wire;
use crate::args::Failure;
use nanomc::cluster::directory::{Config, Elected, Event, Master, Member};
use nanomc::cluster::net::{Address, Limits, Listener};
use nanomc::cluster::run::master::Service;
use nanomc::cluster::types::Position;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Family of the keys that owners are told to store.
pub const FILLED: u32 = 128;
/// What precedes the address in the line of a master.
pub const LISTENS: &str = "Master service listening on ";
/// Bytes of memory that the plain server of an owner has.
pub const PLAIN_BYTES: usize = 128 << 20;

/// Name of a node.
pub fn node_name(number: usize) -> String {
    format!("node-{number}")
}

/// Says a line.
pub fn say(wire: &mut Wire, line: &str) -> Result<(), Failure> {
    wire.output.write_all(format!("{line}\n").as_bytes()).map_err(|e| Failure::os("a process of a cluster", &e))
}

/// By which this process is told what to do.
pub fn wire() -> Result<Wire, Failure> {
    let (input, output) = pipes().map_err(|e| Failure::os("a process of a cluster", &e))?;
    Ok(Wire { input, output })
}

fn order(wire: &mut Wire) -> Result<Option<Vec<u64>>, Failure> {
    let line = wire.line().map_err(|e| Failure::os("a process of a cluster", &e))?;
    Ok(line.map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect()))
}

/// A node named like `dir`, with a store of its own, and a plain server, whose port it says. If certificates lie beside `dir` it uses them. An order is a first number, a count
/// and a size: so many values are stored under keys from there on, and the master has heard of them when a line comes back.
pub fn owner(dir: &Path, master_port: u32, page_bytes: u32, heap_bytes: u64) -> Result<(), Failure> {
    let shelf = Shelf::embedded(&Wanted { heap_bytes, page_bytes, max_objects: 0, brim: true })?;
    if page_bytes > 4096 {
        // Nobody waits for pages of the heap later.
        let keys = Slices::keys(FILLED, 0..heap_bytes >> 20);
        shelf.fill(keys.all(), 1 << 20)?;
        for part in keys.all().0.chunks(256) {
            shelf.remove(Part(part))?;
        }
    }
    let manner = Manner { certificates: Certificates::beside(dir), ..Manner::default() };
    let client = Client::with(&format!("127.0.0.1:{master_port}"), -1, &manner)?;
    let name = dir.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    client.attach(&name, &shelf)?;
    let port = cluster_plain::start(if page_bytes > 4096 { PLAIN_BYTES } else { 4096 })?;
    let mut wire = wire()?;
    say(&mut wire, &port.to_string())?;
    while let Some(numbers) = order(&mut wire)? {
        let [first, count, bytes] = numbers[..] else {
            return Err(Failure::new(format!("{numbers:?} is no order")));
        };
        let bytes = usize::try_from(bytes).map_err(|_| Failure::new("a value that does not fit"))?;
        shelf.fill(Slices::keys(FILLED, first..first + count).all(), bytes)?;
        client.sync()?;
        say(&mut wire, "")?;
    }
    drop(client);
    shelf.close()
}

/// A plain server, whose port it says.
pub fn echo(memory_bytes: u64) -> Result<(), Failure> {
    let bytes = usize::try_from(memory_bytes).map_err(|_| Failure::new("too much memory"))?;
    let mut wire = wire()?;
    let port = cluster_plain::start(bytes)?;
    say(&mut wire, &port.to_string())?;
    while order(&mut wire)?.is_some() {}
    Ok(())
}

/// `nanomc-master`, if it lies beside this program and was built with it: what is older than the library may speak another protocol.
pub fn program() -> Option<PathBuf> {
    let folder = std::env::current_exe().ok()?.parent()?.to_owned();
    let (master, library) = (folder.join("nanomc-master"), super::library::find().ok()?);
    let made = |file: &Path| file.metadata().and_then(|about| about.modified()).ok();
    let built_here = library.starts_with(&folder);
    (master.is_file() && (!built_here || made(&master) >= made(&library))).then_some(master)
}

/// A master that keeps its state in `dir` and listens at this port, or any if that is 0. One that is not `nanomc-master` is told its
/// term, and that so many nodes are members.
pub fn directory(dir: &Path, port: u32, members: u32, term: u64) -> Result<(), Failure> {
    if let Some(program) = program() {
        let mut command = Command::new(&program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("NMC_MASTER_")) {
            command.env_remove(name);
        }
        command.args(["--port", &port.to_string(), "--metrics_port", "off", "--state"]).arg(dir).stderr(Stdio::null());
        for (name, file) in Certificates::beside(dir).iter().flat_map(Certificates::files) {
            command.arg(format!("--{name}")).arg(file);
        }
        return Err(Failure::os(format!("starting {}", program.display()), &command.exec()));
    }
    let listener = Listener::bind(&Address::literal(&format!("127.0.0.1:{port}"))?)?;
    let address = listener.address()?;
    let (tell, told) = std::sync::mpsc::channel();
    let record = Box::new(move |number, _| {
        let _ = tell.send(number);
    });
    let (_service, handle) = Service::start(Master::new(Config::default()), vec![listener], Limits::default(), record)?;
    let since = Position::default();
    let members = (0..members as usize).map(|n| Member { name: node_name(n), since }).collect();
    handle.tell(Event::Elected(Elected { term, until: u64::MAX, members, log: Vec::new(), floor: since }));
    say(&mut wire()?, &format!("{LISTENS}{address}"))?;
    // Until it is killed.
    told.into_iter().for_each(|number| handle.tell(Event::Recorded(number, true)));
    Ok(())
}
