//! Requests to etcd: one of its members answers, each request has its time, and a user a token.

use crate::options::{Etcd as Options, Failure, read_secret};
use crate::proto::etcd::auth_client::AuthClient;
use crate::proto::etcd::kv_client::KvClient;
use crate::proto::etcd::lease_client::LeaseClient;
use crate::proto::etcd::{
    AuthenticateRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, RangeRequest, RangeResponse,
    TxnRequest, TxnResponse,
};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

/// Speaks to one of the members of etcd; to the next, after one has failed.
pub(super) struct Client {
    /// How each is reached, and the connection to it.
    members: Vec<(Endpoint, Mutex<Channel>)>,
    at: AtomicUsize,
    patience: Duration,
    user: Option<(String, String)>,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

impl Client {
    pub(super) fn new(options: &Options) -> Result<Self, Failure> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|e| Failure::new(format!("{} can not be read: {e}", path.display())))
        };
        // Several tries fit into a lease.
        let patience = Duration::from_millis(u64::from(options.lease_s) * 250);
        let mut tls = ClientTlsConfig::new();
        if let Some(ca) = &options.ca {
            tls = tls.ca_certificate(Certificate::from_pem(read(ca)?));
        }
        if let Some((cert, key)) = &options.identity {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        let mut members = Vec::new();
        for url in &options.endpoints {
            let failed = |e: tonic::transport::Error| Failure::usage(format!("etcd can not be at {url:?}: {e}"));
            let mut endpoint = Endpoint::from_shared(url.clone()).map_err(failed)?;
            if url.starts_with("https://") {
                if options.ca.is_none() {
                    return Err(Failure::usage(format!("{url} needs --etcd_ca FILE: who signs etcd's certificate")));
                }
                endpoint = endpoint.tls_config(tls.clone()).map_err(failed)?;
            }
            let endpoint = endpoint.connect_timeout(patience);
            let channel = endpoint.connect_lazy();
            members.push((endpoint, Mutex::new(channel)));
        }
        let user = match &options.user {
            None => None,
            Some((name, file)) => {
                let password = read_secret(file);
                let password = password.map_err(|why| Failure::usage(format!("{} {why}", file.display())))?;
                Some((name.clone(), password))
            }
        };
        let (at, token) = (AtomicUsize::new(0), Mutex::new(None));
        Ok(Self { members, at, patience, user, token })
    }

    /// The member that is asked at the moment.
    pub(super) fn member(&self) -> Option<&(Endpoint, Mutex<Channel>)> {
        self.members.get(self.at.load(Relaxed) % self.members.len().max(1))
    }

    pub(super) fn channel(&self) -> Result<Channel, Status> {
        let channel = self.member().and_then(|(_, channel)| channel.lock().ok().map(|channel| channel.clone()));
        channel.ok_or_else(|| Status::unavailable("no etcd is named"))
    }

    /// The next request makes a connection of its own. One whose other end was cut off would be tried by the kernel less and less
    /// often, and be of no use for long after etcd can be reached again.
    pub(super) fn connect_anew(&self) {
        if let Some((endpoint, channel)) = self.member()
            && let Ok(mut channel) = channel.lock()
        {
            *channel = endpoint.connect_lazy();
        }
    }

    /// Waits for an answer, and for no longer than there is patience. If there is none the next one is asked the next time.
    pub(super) async fn ask<T>(
        &self,
        answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, Status> {
        let answer = timeout(self.patience, answer).await;
        let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")));
        answer.map(tonic::Response::into_inner).inspect_err(|status| match status.code() {
            Code::Unauthenticated => {
                if let Ok(mut token) = self.token.lock() {
                    *token = None;
                }
            }
            code => {
                if code == Code::DeadlineExceeded {
                    self.connect_anew();
                }
                self.at.fetch_add(1, Relaxed);
            }
        })
    }

    /// A request, with the token of the user if there is one.
    pub(super) async fn request<T>(&self, message: T) -> Result<Request<T>, Status> {
        let mut request = Request::new(message);
        let Some((name, password)) = self.user.clone() else { return Ok(request) };
        let known = self.token.lock().ok().and_then(|token| token.clone());
        let token = match known {
            Some(token) => token,
            None => {
                let mut client = AuthClient::new(self.channel()?);
                let given = self.ask(client.authenticate(AuthenticateRequest { name, password })).await?.token;
                let given: MetadataValue<Ascii> =
                    given.parse().map_err(|_| Status::internal("etcd gave a token that is none"))?;
                if let Ok(mut token) = self.token.lock() {
                    *token = Some(given.clone());
                }
                given
            }
        };
        request.metadata_mut().insert("token", token);
        Ok(request)
    }

    pub(super) async fn range(&self, range: RangeRequest) -> Result<RangeResponse, Status> {
        let request = self.request(range).await?;
        self.ask(KvClient::new(self.channel()?).range(request)).await
    }

    pub(super) async fn txn(&self, txn: TxnRequest) -> Result<TxnResponse, Status> {
        let request = self.request(txn).await?;
        self.ask(KvClient::new(self.channel()?).txn(request)).await
    }

    /// A new lease: its number, and its seconds.
    pub(super) async fn grant(&self, ttl_s: i64) -> Result<(i64, i64), Status> {
        let request = self.request(LeaseGrantRequest { ttl: ttl_s, id: 0 }).await?;
        let granted = self.ask(LeaseClient::new(self.channel()?).lease_grant(request)).await?;
        Ok((granted.id, granted.ttl))
    }

    pub(super) async fn revoke(&self, id: i64) -> Result<(), Status> {
        let request = self.request(LeaseRevokeRequest { id }).await?;
        self.ask(LeaseClient::new(self.channel()?).lease_revoke(request)).await.map(drop)
    }

    /// The seconds that a lease has from now on; 0 if it has ended.
    pub(super) async fn keep_alive(&self, id: i64) -> Result<i64, Status> {
        let once = tonic::codegen::tokio_stream::once(LeaseKeepAliveRequest { id });
        let request = self.request(once).await?;
        let mut client = LeaseClient::new(self.channel()?);
        let renewed = async {
            let mut answers = client.lease_keep_alive(request).await?.into_inner();
            let answer = answers.message().await?;
            Ok(tonic::Response::new(answer.map_or(0, |answer| answer.ttl)))
        };
        self.ask(renewed).await
    }
}
