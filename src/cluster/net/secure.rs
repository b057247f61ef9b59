//! Who may connect where certificates say so: TLS 1.3 on both ends, each with a certificate that the authority of the cluster has signed.
//! Which name it was signed for is not looked at: whoever has one may do everything, as with a token.

use super::renewed::Renewed;
use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::{NMC_ERR_INVALID_ARG, NMC_ERR_PERMISSION};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct,
    InvalidMessage, RootCertStore, ServerConfig, ServerConnection, SignatureScheme, crypto, version,
};
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What framed connections are called where a port takes others too (ALPN).
pub const ALPN: &[u8] = b"nanomc";

/// Bytes that wait encrypted for the other end to take them.
pub(super) const MOST_WAITING: usize = 128 << 10;

/// Bytes of the longest file that is read.
const MOST_PEM: usize = 1 << 20;
/// In the file of a key that somebody has a password for.
const ENCRYPTED: &[u8] = b"ENCRYPTED";

/// Files in PEM that say who somebody is, and whom it believes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// The certificate, and those between it and the authority's.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Certificates of the authority.
    pub ca: PathBuf,
}

/// What was read from them; read again when they have changed, for connections that begin after that.
#[derive(Debug)]
pub struct Identity(Renewed<Ends>);

/// How both ends of a connection begin.
#[derive(Debug)]
struct Ends {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// What a server is asked for, and does not look at.
    name: ServerName<'static>,
}

/// A file that is not what it should be.
pub fn failed(path: &Path, why: &dyn Display) -> Error {
    Error::new(NMC_ERR_INVALID_ARG, format!("{} can not be used for TLS: {why}", path.display()))
}

/// The same path, wherever the program goes (`chdir`).
pub fn lasting(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| failed(path, &e))
}

/// What a file holds, if it is one, and not longer than certificates and keys are.
fn text(path: &Path) -> Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(|e| failed(path, &e))?;
    if !file.metadata().map_err(|e| failed(path, &e))?.is_file() {
        return Err(failed(path, &"it is no regular file"));
    }
    let (mut text, most) = (memory::with_capacity(MOST_PEM + 1)?, MOST_PEM as u64 + 1);
    file.take(most).read_to_end(&mut text).map_err(|e| failed(path, &e))?;
    match text.len() <= MOST_PEM {
        true => Ok(text),
        false => Err(failed(path, &format!("it has more than {MOST_PEM} bytes"))),
    }
}

/// The certificates in a file.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = text(path)?;
    let list = CertificateDer::pem_slice_iter(&text).collect::<std::result::Result<Vec<_>, _>>();
    let list = list.map_err(|e| failed(path, &e))?;
    if list.is_empty() { Err(failed(path, &"it holds no certificate")) } else { Ok(list) }
}

/// The key in a file.
pub fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let text = text(path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|e| {
        match text.windows(ENCRYPTED.len()).any(|part| part == ENCRYPTED) {
            true => failed(path, &"the key is encrypted; `openssl pkey` writes one that is not"),
            false => failed(path, &e),
        }
    })
}

/// Certificates in a file, as those of an authority.
pub fn authority(path: &Path) -> Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| failed(path, &e))?;
    }
    Ok(Arc::new(roots))
}

impl Ends {
    fn load(files: &Files) -> Result<Self> {
        let chain = certificates(&files.cert)?;
        let (roots, provider) = (authority(&files.ca)?, Arc::new(crypto::ring::default_provider()));
        let versions = [&version::TLS13];
        let setup = |e: rustls::Error| Error::new(NMC_ERR_INVALID_ARG, format!("TLS can not be set up: {e}"));

        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(setup)?
            .with_client_cert_verifier(verifier.map_err(|e| failed(&files.ca, &e))?)
            .with_single_cert(chain.clone(), key(&files.key)?)
            .map_err(|e| failed(&files.cert, &e))?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        forget_sessions(&mut server);

        let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        let verifier = AnyName(verifier.map_err(|e| failed(&files.ca, &e))?);
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .map_err(setup)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(chain, key(&files.key)?)
            .map_err(|e| failed(&files.cert, &e))?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();

        let name = ServerName::try_from("nanomc").map_err(|e| Error::new(NMC_ERR_INVALID_ARG, e.to_string()))?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server), name })
    }
}

impl Identity {
    /// Reads the files.
    pub fn load(files: &Files) -> Result<Arc<Self>> {
        let files = Files { cert: lasting(&files.cert)?, key: lasting(&files.key)?, ca: lasting(&files.ca)? };
        let paths = vec![files.cert.clone(), files.key.clone(), files.ca.clone()];
        Renewed::new(paths, move || Ends::load(&files)).map(|ends| Arc::new(Self(ends)))
    }

    /// The beginning of a connection to somebody.
    pub(super) fn connecting(&self) -> Result<Box<Connection>> {
        let ends = self.0.current();
        let connection = ClientConnection::new(Arc::clone(&ends.client), ends.name.clone());
        connection.map(|connection| Box::new(connection.into())).map_err(|error| refused(&error))
    }

    /// The beginning of one with somebody who has connected.
    pub(super) fn accepting(&self) -> Result<Box<Connection>> {
        let connection = ServerConnection::new(self.server());
        connection.map(|connection| Box::new(connection.into())).map_err(|error| refused(&error))
    }

    /// With what others take those who have connected, before they hand them over.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.current().server)
    }
}

/// Who comes again shows its certificate again: it may have ended since.
pub fn forget_sessions(server: &mut ServerConfig) {
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
}

fn refused(error: &rustls::Error) -> Error {
    Error::new(NMC_ERR_PERMISSION, format!("TLS: {error}"))
}

/// Why the other end is not spoken to, or does not speak to this one, in words for whoever set it up. Nothing if a connection has ended for another
/// reason, also after its beginning, such as bytes that were damaged: the next may be better.
pub(super) fn why(error: &rustls::Error, begins: bool) -> Option<Error> {
    use AlertDescription as Alert;
    let text = match error {
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) if begins => {
            "TLS: the other end does not speak it".into()
        }
        rustls::Error::NoCertificatesPresented
        | rustls::Error::AlertReceived(Alert::CertificateRequired | Alert::HandshakeFailure) => {
            "TLS: a certificate is wanted here".into()
        }
        rustls::Error::AlertReceived(
            alert @ (Alert::AccessDenied
            | Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::DecryptError
            | Alert::NoApplicationProtocol
            | Alert::ProtocolVersion
            | Alert::UnknownCA
            | Alert::UnsupportedCertificate),
        ) => format!("TLS: the other end refuses this certificate or connection: {alert:?}"),
        rustls::Error::InvalidCertificate(_)
        | rustls::Error::NoApplicationProtocol
        | rustls::Error::PeerIncompatible(_) => return Some(refused(error)),
        _ => return None,
    };
    Some(Error::new(NMC_ERR_PERMISSION, text))
}

/// Believes whoever has a certificate of the authority, whatever name is in it.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let verified = self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The last thing that is looked at: who signed it, when, and for what, was right.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
