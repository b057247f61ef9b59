//! A master from its start to its end: what must outlive it first, then who listens, then the directory, then everybody who
//! connects, until a signal comes.

use crate::auth::{self, Token};
use crate::directory::Directory;
use crate::grpc::Grpc;
use crate::http::Admin;
use crate::keep::etcd::Candidate;
use crate::keep::file::State;
use crate::meter::Meter;
use crate::options::{Failure, Options, Tls};
use crate::print::{self, Few};
use crate::serve::{Front, Secured, serve_http};
use crate::sys;
use nanomc::base::log;
use nanomc::cluster::directory::{Event, Master};
use nanomc::cluster::net::Limits;
use nanomc::cluster::net::secure::Identity;
use nanomc::cluster::net::sys::let_many_wait;
use nanomc::cluster::run::Listener;
use nanomc::cluster::run::master::Service;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

/// Runs a master until SIGTERM or SIGINT.
pub fn run(options: Options) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.max_threads)
        .thread_name("nmc-master")
        .enable_all()
        .build()
        .map_err(|e| Failure::new(format!("{} threads can not be started: {e}", options.max_threads)))?;
    runtime.block_on(serve(options))
}

/// Who says that this master leads, and keeps what it must not forget.
enum Keeper {
    File(State),
    Etcd(Box<Candidate>),
}

async fn serve(options: Options) -> Result<(), Failure> {
    // First of all, so that a signal that comes at once ends it in order.
    let mut signals = Signals::new()?;
    let few = Mutex::new(Few::default());
    let sink = move |_, text: &str| {
        if let Some(line) = few.lock().ok().and_then(|mut few| few.pass(text, Instant::now())) {
            print::warn(&line);
        }
    };
    log::set_sink(Some(Box::new(sink)), log::WARN);
    sys::raise_files();
    let tls = options.tls.as_ref().map(auth::certificates).transpose()?;
    let identity = options.tls.as_ref().and_then(Tls::files).map(|files| Identity::load(&files)).transpose()?;
    let tls = tls.map(|grpc| Secured { grpc, framed: identity.clone() });
    let state = if options.etcd.is_none() { Some(State::open(&options.state)?) } else { None };

    let grpc = match options.address {
        Some(address) => Some(bind(address, "port").await?),
        None => None,
    };
    let http = match options.metrics {
        Some(address) => Some(bind(address, "metrics_port").await?),
        None => None,
    };
    let listeners = options.listen.iter().map(Listener::bind).collect::<Result<Vec<_>, _>>()?;
    let mut framed = Vec::new();
    for listener in &listeners {
        framed.push(listener.address()?.to_string());
    }

    let keeper = match (state, &options.etcd) {
        (Some(state), _) => Keeper::File(state),
        (None, Some(etcd)) => {
            let own = grpc.as_ref().map(|(_, at)| at.to_string()).or_else(|| framed.first().cloned());
            let advertised = options.advertise.clone().or(own).unwrap_or_default();
            Keeper::Etcd(Box::new(Candidate::new(etcd, advertised)?))
        }
        (None, None) => return Err(Failure::new("there is neither a state directory nor etcd")),
    };

    let (recorder, changes) = mpsc::unbounded_channel();
    let limits = Limits { token: options.token.clone().unwrap_or_default(), tls: identity, ..Limits::default() };
    let mut config = options.directory.clone();
    config.secret = secret()?;
    let record = Box::new(move |number, list| drop(recorder.send((number, list))));
    let (service, handle) = Service::start(Master::new(config), listeners, limits, record)?;
    let (end, over) = watch::channel(false);
    // Who leads goes on leading until the last calls are answered.
    let (end_keeper, keeper_over) = watch::channel(false);

    // Ends by itself when the directory, which sends it changes, has ended.
    let keeping = match keeper {
        Keeper::File(mut state) => {
            handle.tell(Event::Elected(state.lead()?));
            let handle = handle.clone();
            tokio::task::spawn_blocking(move || state.serve(changes, &handle))
        }
        Keeper::Etcd(candidate) => tokio::spawn(candidate.run(changes, handle.clone(), keeper_over)),
    };

    let (directory, meter) = (Directory::new(handle.clone()), Arc::new(Meter::default()));
    let token = Token::new(options.token.as_deref());
    let mut lines = String::from("Starting Mooncake Master Service\n");
    let at = grpc.as_ref().map(|(_, at)| *at);
    at.iter().for_each(|at| lines.push_str(&format!("Port: {}\n", at.port())));
    lines.push_str(&format!("Max threads: {}\n", options.max_threads));
    at.iter().for_each(|at| lines.push_str(&format!("Master service listening on {at}\n")));
    let front = grpc.map(|(listener, _)| {
        let grpc = Grpc::new(directory.clone());
        let front = Front::new(grpc, handle.clone(), token.clone(), tls, Arc::clone(&meter));
        tokio::spawn(front.serve(listener, over.clone()))
    });
    framed.iter().for_each(|at| lines.push_str(&format!("Framed connections on {at}\n")));
    let http = http.map(|(listener, at)| {
        lines.push_str(&format!("Metrics and admin page on http://{at}/\n"));
        tokio::spawn(serve_http(Admin::new(directory, token, meter), listener, over))
    });
    print::out(&lines);

    let signal = signals.next().await;
    print::error(&format!("nanomc-master: {signal}: ending\n"));
    // Nobody new; then the calls that have begun; then the directory, and last what outlives it.
    let _ = end.send(true);
    if let Some(front) = front {
        let _ = front.await;
    }
    if let Some(http) = http {
        let _ = http.await;
    }
    handle.stop();
    let _ = tokio::task::spawn_blocking(move || service.join()).await;
    let _ = end_keeper.send(true);
    let _ = keeping.await;
    Ok(())
}

async fn bind(address: SocketAddr, option: &str) -> Result<(TcpListener, SocketAddr), Failure> {
    let failed = |e: std::io::Error| {
        Failure::new(format!("{address} can not be listened at: {e}. --{option} chooses another port, 0 any free one"))
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let_many_wait(&listener);
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// What put ids are made from, which nobody must be able to guess.
fn secret() -> Result<[u8; 32], Failure> {
    let mut secret = [0; 32];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut secret));
    read.map_err(|e| Failure::new(format!("/dev/urandom can not be read: {e}")))?;
    Ok(secret)
}

/// What ends a master in order.
struct Signals {
    term: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let watch = |kind| signal(kind).map_err(|e| Failure::new(format!("signals can not be watched: {e}")));
        Ok(Self { term: watch(SignalKind::terminate())?, int: watch(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}
