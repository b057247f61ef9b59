//! A real master on real sockets, for what those take.

use crate::shelf::key;
use crate::sim::{Sim, framed};
use nanomc::cluster::directory::{Config, Elected, Event, Master};
use nanomc::cluster::net::{Address, Limits, Listener};
use nanomc::cluster::run::master::Service;
use nanomc::cluster::types::Position;
use nanomc::cluster::wire::{Find, HEAD, Head};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// CPU time that the thread of this name has had, in ns.
pub fn thread_ns(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is =
        |path: &std::path::PathBuf| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name);
    let found = tasks.filter(is).map(|path| std::fs::read_to_string(path.join("schedstat")).unwrap());
    found.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok()).sum()
}

/// What a message and its answer take of the master's thread besides what the directory does: a real master, with as many connections, of
/// which each asks for one key at a time. In µs.
pub fn sockets(connections: usize, rounds: usize) -> f64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills in `limit`, and reads it.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    let listener = Listener::bind(&Address::literal("127.0.0.1:0").unwrap()).unwrap();
    let address = listener.address().unwrap().to_string();
    let master = Master::new(Config::default());
    let (service, handle) = Service::start(master, vec![listener], Limits::default(), Box::new(|_, _| {})).unwrap();
    let elected =
        Elected { term: 1, until: u64::MAX, members: Vec::new(), log: Vec::new(), floor: Position::default() };
    handle.tell(Event::Elected(elected));
    let message = || Find { keys: vec![key(0, 0)], missed: Vec::new() };
    let (request, mut answer) = (framed(message(), 1), [0; 4096]);
    let mut receive = |stream: &mut TcpStream| {
        stream.read_exact(&mut answer[..HEAD]).unwrap();
        let head = Head::decode(answer.first_chunk::<HEAD>().unwrap()).unwrap();
        stream.read_exact(&mut answer[..head.len as usize]).unwrap();
    };
    // Each says something at once: who does not makes room for others.
    let connected = (0..connections).map(|_| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(&request).unwrap();
        receive(&mut stream);
        stream
    });
    let mut streams: Vec<TcpStream> = connected.collect();
    let mut round = || {
        streams.iter_mut().for_each(|stream| stream.write_all(&request).unwrap());
        streams.iter_mut().for_each(&mut receive);
    };
    (0..3).for_each(|_| round());
    let before = thread_ns("nmc-directory");
    (0..rounds).for_each(|_| round());
    let spent = thread_ns("nmc-directory") - before;
    handle.stop();
    service.join();
    let mut sim = Sim::new(1, 0);
    sim.elect(0, 1);
    let before = sim.cost;
    sim.ask(0, (0..1000).map(|_| message().into()).collect());
    let alone = sim.cost.since(before).us_per(1000);
    (spent as f64 / 1e3 / (rounds * connections) as f64 - alone).max(0.0)
}
