//! Who connects: gRPC and framed connections on one port, told apart by their first byte, and HTTP on another. How many there are
//! at a time, and how long one may take to say what it wants, is bounded. Those who have not shown that they may speak here have
//! room of their own, and so keep nobody away who has.

use crate::auth::Token;
use crate::door::{Door, Guest};
use crate::grpc::Grpc;
use crate::http::Admin;
use crate::meter::Meter;
use crate::proto::v1::master_service_server::MasterServiceServer;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use nanomc::cluster::net::most_files;
use nanomc::cluster::net::renewed::Renewed;
use nanomc::cluster::net::secure::{ALPN, Identity};
use nanomc::cluster::run::master::Handle;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;
use tonic::Status;
use tonic::codegen::Service as _;

/// Most connections of gRPC clients that have been let in.
const MAX_CONNECTIONS: usize = 4096;
/// From so many HTTP clients on the oldest connection ends when another comes.
const MANY_HTTP: usize = 64;
/// How long one of them may stay.
const LONGEST_VISIT: Duration = Duration::from_secs(3600);
/// How long somebody may be silent before the first byte, or during a handshake or a head, and be connected before the first request
/// that it may make.
const SHY: Duration = Duration::from_secs(10);
/// How long calls that have begun may take when the master ends.
const LAST_CALLS: Duration = Duration::from_secs(5);
/// Most gRPC calls under way.
const MAX_CALLS: usize = 2048;
/// How long one may take, its request and whatever it waits for included.
const LONGEST_CALL: Duration = Duration::from_secs(75);
/// Streams of a connection that were reset before they were seen here: as many calls may end by their deadline together.
const MAX_RESETS: usize = 1024;
/// Longest message of a gRPC client.
const MAX_MESSAGE: usize = 4 << 20;
/// What a framed connection begins with: the first byte of `nanomc::cluster::wire::MAGIC`. HTTP/2 begins with a P.
const FRAMED: u8 = b'N';

/// Says when it is over.
pub type Over = watch::Receiver<bool>;

/// Waits until it is over.
pub async fn until_over(over: &mut Over) {
    // Also when there is nobody left who could say so.
    let _ = over.wait_for(|over| *over).await;
}

/// Takes whoever connects until it is over. Who is given no room hears of an end.
async fn accept(listener: &TcpListener, mut over: Over, serve: impl Fn(TcpStream)) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = until_over(&mut over) => return,
        };
        match accepted {
            Ok((stream, _)) => {
                // Many small messages, each of which somebody waits for.
                let _ = stream.set_nodelay(true);
                serve(stream);
            }
            // No descriptors are left, most likely; some may be a little later.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// With which certificates those who connect are spoken to: gRPC clients, and those who send frames, if that is with TLS.
pub struct Secured {
    /// Of gRPC.
    pub grpc: Renewed<ServerConfig>,
    /// Of frames.
    pub framed: Option<Arc<Identity>>,
}

/// What gRPC connections are served with.
#[derive(Clone)]
pub struct Front {
    service: MasterServiceServer<Grpc>,
    handle: Handle,
    token: Token,
    tls: Option<Arc<Secured>>,
    meter: Arc<Meter>,
    calls: Arc<Semaphore>,
    door: Arc<Door>,
}

impl Front {
    /// Frames go to the directory behind a handle, gRPC to the service.
    #[must_use]
    pub fn new(grpc: Grpc, handle: Handle, token: Token, tls: Option<Secured>, meter: Arc<Meter>) -> Self {
        let service = MasterServiceServer::new(grpc).max_decoding_message_size(MAX_MESSAGE);
        let (calls, door) = (Arc::new(Semaphore::new(MAX_CALLS)), Arc::new(Door::new(MAX_CONNECTIONS, most_files())));
        Self { service, handle, token, tls: tls.map(Arc::new), meter, calls, door }
    }

    /// Serves whoever connects until it is over; then calls that have begun are answered.
    pub async fn serve(self, listener: TcpListener, over: Over) {
        let all = GracefulShutdown::new();
        accept(&listener, over.clone(), |stream| {
            let Some(guest) = self.door.enter() else { return };
            let (front, watcher, over) = (self.clone(), all.watcher(), over.clone());
            tokio::spawn(async move {
                front.meter.connected(1);
                front.clone().connection(stream, watcher, over, guest).await;
                front.meter.connected(-1);
            });
        })
        .await;
        drop(listener);
        let _ = timeout(LAST_CALLS, all.shutdown()).await;
    }

    async fn connection(self, stream: TcpStream, watcher: Watcher, mut over: Over, mut guest: Guest) {
        let late = Instant::now() + SHY;
        if let Some(tls) = self.tls.clone() {
            let accepted = tokio::select! {
                accepted = self.secured(stream, &tls) => accepted,
                _ = guest.let_in_by(late) => return,
            };
            if let Some(stream) = accepted {
                self.http2(stream, watcher, guest, late).await;
            }
            return;
        }
        let mut first = [0];
        let peeked = tokio::select! {
            peeked = stream.peek(&mut first) => peeked,
            _ = guest.let_in_by(late) => return,
            () = until_over(&mut over) => return,
        };
        match peeked {
            Ok(1) if first == [FRAMED] => {
                if let Ok(stream) = stream.into_std() {
                    self.handle.adopt(stream.into(), None);
                }
            }
            Ok(1) => self.http2(stream, watcher, guest, late).await,
            _ => {}
        }
    }

    /// With TLS: the stream of a gRPC client, or nothing if it is the directory's from now on, or failed. Whoever fails is told so by TLS itself. Handshakes
    /// take long, and anybody can begin many: they are done here, and not where the directory is.
    async fn secured(&self, stream: TcpStream, tls: &Secured) -> Option<TlsStream<TcpStream>> {
        let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await.ok()?;
        let framed = begun.client_hello().alpn().is_some_and(|mut names| names.any(|name| name == ALPN));
        match tls.framed.as_ref().filter(|_| framed) {
            None => begun.into_stream(tls.grpc.current()).await.ok(),
            Some(identity) => {
                let (socket, connection) = begun.into_stream(identity.server()).await.ok()?.into_inner();
                self.handle.adopt(socket.into_std().ok()?.into(), Some(Box::new(connection)));
                None
            }
        }
    }

    async fn http2<S>(self, stream: S, watcher: Watcher, mut guest: Guest, late: Instant)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let number = guest.number();
        let serve = service_fn(move |request| self.clone().call(request, number));
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(Duration::from_secs(30)))
            .keep_alive_timeout(Duration::from_secs(20))
            .max_concurrent_streams(256)
            .max_pending_accept_reset_streams(MAX_RESETS)
            .max_header_list_size(16 << 10)
            .serve_connection(TokioIo::new(stream), serve);
        // It ends when the client goes, also in the middle of something, and when it was not let in: hyper itself would wait for ever for
        // the rest of a first line, or for a first request.
        let mut connection = pin!(watcher.watch(connection));
        let let_in = tokio::select! {
            _ = &mut connection => return,
            let_in = guest.let_in_by(late) => let_in,
        };
        if let Some(_room) = let_in {
            let _ = connection.await;
        }
    }

    async fn call(
        mut self,
        request: http::Request<Incoming>,
        guest: u64,
    ) -> Result<http::Response<tonic::body::Body>, Infallible> {
        if !self.token.allows(request.headers()) {
            let why = "this master wants a token: metadata `authorization: Bearer TOKEN`";
            return Ok(Status::unauthenticated(why).into_http());
        }
        self.door.let_in(guest);
        let (begun, path) = (Instant::now(), request.uri().path().to_owned());
        let Ok(_room) = self.calls.try_acquire() else {
            return Ok(
                Status::resource_exhausted(format!("{MAX_CALLS} calls are under way, the most possible")).into_http()
            );
        };
        let late = |_| Ok(Status::deadline_exceeded("the call took too long").into_http());
        let answer = timeout(LONGEST_CALL, self.service.call(request)).await.unwrap_or_else(late);
        let failed = answer.as_ref().is_ok_and(|answer| answer.headers().get("grpc-status").is_some_and(|s| s != "0"));
        self.meter.called(path.rsplit('/').next().unwrap_or_default(), begun.elapsed(), failed);
        answer
    }
}

/// Serves HTTP for people and for Prometheus until it is over.
pub async fn serve_http(admin: Admin, listener: TcpListener, over: Over) {
    let all = GracefulShutdown::new();
    let (admin, door) = (Arc::new(admin), Arc::new(Door::of_guests(MANY_HTTP)));
    accept(&listener, over, |stream| {
        let Some(mut guest) = door.enter() else { return };
        let (admin, watcher) = (Arc::clone(&admin), all.watcher());
        tokio::spawn(async move {
            let answer = service_fn(move |request: http::Request<Incoming>| {
                let admin = Arc::clone(&admin);
                async move { Ok::<_, Infallible>(admin.answer(&request).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(SHY)
                .max_buf_size(16 << 10)
                .serve_connection(TokioIo::new(stream), answer);
            tokio::select! {
                _ = watcher.watch(connection) => {}
                _ = guest.let_in_by(Instant::now() + LONGEST_VISIT) => {}
            }
        });
    })
    .await;
    drop(listener);
    let _ = timeout(LAST_CALLS, all.shutdown()).await;
}

#[cfg(test)]
mod tests {
    #[test]
    fn frames_begin_with_another_byte_than_http() {
        assert_eq!(nanomc::cluster::wire::MAGIC.to_le_bytes()[0], super::FRAMED);
    }
}
