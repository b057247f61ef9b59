//! Who connects: gRPC and framed connections on one port, told apart by their first byte, and HTTP on another. How many there are
//! at a time, and how long one may take to say what it wants, is bounded.

use crate::auth::Token;
use crate::grpc::Grpc;
use crate::http::Admin;
use crate::meter::Meter;
use crate::proto::v1::master_service_server::MasterServiceServer;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use nanomc::cluster::run::master::Handle;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tonic::Status;
use tonic::codegen::Service as _;

/// Most connections of gRPC clients, and of those who have not shown yet what they are.
const MAX_CONNECTIONS: usize = 4096;
/// Most connections of HTTP clients.
const MAX_HTTP: usize = 64;
/// How long somebody may be silent before the first byte, or during a handshake or a head.
const SHY: Duration = Duration::from_secs(10);
/// How long calls that have begun may take when the master ends.
const LAST_CALLS: Duration = Duration::from_secs(5);
/// Most gRPC calls under way.
const MAX_CALLS: usize = 2048;
/// How long one may take, its request and whatever it waits for included.
const LONGEST_CALL: Duration = Duration::from_secs(75);
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

/// Takes whoever connects, while there is room, until it is over.
async fn accept(listener: &TcpListener, most: usize, mut over: Over, serve: impl Fn(TcpStream, OwnedSemaphorePermit)) {
    let room = Arc::new(Semaphore::new(most));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = until_over(&mut over) => return,
        };
        match (accepted, Arc::clone(&room).try_acquire_owned()) {
            (Ok((stream, _)), Ok(permit)) => {
                // Many small messages, each of which somebody waits for.
                let _ = stream.set_nodelay(true);
                serve(stream, permit);
            }
            // There is no room: whoever connected hears of an end.
            (Ok(_), Err(_)) => {}
            // No descriptors are left, most likely; some may be a little later.
            (Err(_), _) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// What gRPC connections are served with.
#[derive(Clone)]
pub struct Front {
    service: MasterServiceServer<Grpc>,
    handle: Handle,
    token: Token,
    tls: Option<TlsAcceptor>,
    meter: Arc<Meter>,
    calls: Arc<Semaphore>,
}

impl Front {
    /// Frames go to the directory behind a handle, gRPC to the service. With TLS nobody comes with frames here.
    #[must_use]
    pub fn new(grpc: Grpc, handle: Handle, token: Token, tls: Option<TlsAcceptor>, meter: Arc<Meter>) -> Self {
        let service = MasterServiceServer::new(grpc).max_decoding_message_size(MAX_MESSAGE);
        Self { service, handle, token, tls, meter, calls: Arc::new(Semaphore::new(MAX_CALLS)) }
    }

    /// Serves whoever connects until it is over; then calls that have begun are answered.
    pub async fn serve(self, listener: TcpListener, over: Over) {
        let all = GracefulShutdown::new();
        accept(&listener, MAX_CONNECTIONS, over.clone(), |stream, permit| {
            let (front, watcher, over) = (self.clone(), all.watcher(), over.clone());
            tokio::spawn(async move {
                front.meter.connected(1);
                front.clone().connection(stream, watcher, over).await;
                front.meter.connected(-1);
                drop(permit);
            });
        })
        .await;
        drop(listener);
        let _ = timeout(LAST_CALLS, all.shutdown()).await;
    }

    async fn connection(self, stream: TcpStream, watcher: Watcher, mut over: Over) {
        if let Some(tls) = &self.tls {
            // Whoever fails here is told so by TLS itself.
            if let Ok(Ok(stream)) = timeout(SHY, tls.accept(stream)).await {
                self.http2(stream, watcher).await;
            }
            return;
        }
        let mut first = [0];
        let peeked = tokio::select! {
            peeked = timeout(SHY, stream.peek(&mut first)) => peeked,
            () = until_over(&mut over) => return,
        };
        match peeked {
            Ok(Ok(1)) if first == [FRAMED] => {
                if let Ok(stream) = stream.into_std() {
                    self.handle.adopt(stream.into());
                }
            }
            Ok(Ok(1)) => self.http2(stream, watcher).await,
            _ => {}
        }
    }

    async fn http2(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, watcher: Watcher) {
        let serve = service_fn(move |request| self.clone().call(request));
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(Duration::from_secs(30)))
            .keep_alive_timeout(Duration::from_secs(20))
            .max_concurrent_streams(256)
            .max_header_list_size(16 << 10)
            .serve_connection(TokioIo::new(stream), serve);
        // It ends when the client goes, also in the middle of something.
        let _ = watcher.watch(connection).await;
    }

    async fn call(mut self, request: http::Request<Incoming>) -> Result<http::Response<tonic::body::Body>, Infallible> {
        if !self.token.allows(request.headers()) {
            let why = "this master wants a token: metadata `authorization: Bearer TOKEN`";
            return Ok(Status::unauthenticated(why).into_http());
        }
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
    let admin = Arc::new(admin);
    accept(&listener, MAX_HTTP, over, |stream, permit| {
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
            let _ = watcher.watch(connection).await;
            drop(permit);
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
