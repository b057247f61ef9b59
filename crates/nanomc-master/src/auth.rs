//! Who may speak to a master: whoever has a certificate that was signed for it, or knows the token.

use crate::options::{Failure, Tls};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use nanomc::base::error::Error;
use nanomc::cluster::net::renewed::Renewed;
use nanomc::cluster::net::secure;
use std::sync::Arc;
use subtle::ConstantTimeEq as _;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ServerConfig, crypto};

/// What everybody must give; nothing if there is none.
#[derive(Clone, Default)]
pub struct Token(Option<Arc<str>>);

impl Token {
    /// This token, or none.
    #[must_use]
    pub fn new(token: Option<&str>) -> Self {
        Self(token.map(Arc::from))
    }

    /// Whether a request gives it. How long that takes depends on the length of what it gives, and on nothing else.
    #[must_use]
    pub fn allows(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.0 else { return true };
        let given = headers.get(AUTHORIZATION).map(http::HeaderValue::as_bytes).unwrap_or_default();
        let given = match given.split_at_checked(7) {
            Some((scheme, given)) if scheme.eq_ignore_ascii_case(b"bearer ") => given,
            _ => return false,
        };
        given.ct_eq(token.as_bytes()).into()
    }
}

/// What makes TLS of the connections of gRPC clients.
pub fn certificates(tls: &Tls) -> Result<Renewed<ServerConfig>, Failure> {
    let ca = tls.ca.as_deref().map(secure::lasting).transpose()?;
    let tls = Tls { cert: secure::lasting(&tls.cert)?, key: secure::lasting(&tls.key)?, ca };
    let paths = [Some(&tls.cert), Some(&tls.key), tls.ca.as_ref()].into_iter().flatten().cloned().collect();
    Ok(Renewed::new(paths, move || read(&tls))?)
}

fn read(tls: &Tls) -> Result<ServerConfig, Error> {
    let provider = Arc::new(crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| secure::failed(&tls.cert, &e))?;
    let builder = match &tls.ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(secure::authority(path)?, provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|e| secure::failed(path, &e))?)
        }
    };
    let (chain, key) = (secure::certificates(&tls.cert)?, secure::key(&tls.key)?);
    let mut config = builder.with_single_cert(chain, key).map_err(|e| secure::failed(&tls.cert, &e))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    secure::forget_sessions(&mut config);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_is_the_token() {
        let token = Token::new(Some("0123456789abcdef"));
        let allows = |given: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(given) = given {
                headers.insert(AUTHORIZATION, given.parse().unwrap());
            }
            token.allows(&headers)
        };
        assert!(allows(Some("Bearer 0123456789abcdef")) && allows(Some("bearer 0123456789abcdef")));
        for wrong in ["", "Bearer", "Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdefg", "0123456789abcdef"]
        {
            assert!(!allows(Some(wrong)), "{wrong:?}");
        }
        assert!(!allows(None));
        assert!(Token::new(None).allows(&HeaderMap::new()));
    }
}
