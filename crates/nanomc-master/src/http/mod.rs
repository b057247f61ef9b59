//! HTTP for people and for those who watch over a master: `/metrics`, `/health`, `/admin/*` in JSON and a page that shows it.
//! Nothing can be changed here.

mod json;
mod metrics;

use crate::auth::Token;
use crate::directory::Directory;
use crate::grpc::convert::shown_put;
use crate::meter::Meter;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use json::Json;
use nanomc::cluster::directory::{Figures, Gate, Master, MemberView, ReplicaView, Wanted};
use nanomc::cluster::run::times::Slow;
use nanomc::cluster::types::{Millis, ObjectKey, counted};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long the directory may take to let somebody look.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most keys of one page.
const MAX_PAGE: usize = 100;
const JSON: &str = "application/json";
/// The page brings everything with it, and fetches from nowhere else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// See the module.
pub struct Admin {
    directory: Directory,
    token: Token,
    meter: Arc<Meter>,
}

type Answer = Response<Full<Bytes>>;

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    answer
}

fn refuse(status: StatusCode, why: &str) -> Answer {
    answer(status, JSON, Json::Object(vec![("error", why.into())]).to_text())
}

fn said(value: Json) -> Answer {
    answer(StatusCode::OK, JSON, value.to_text())
}

/// What a look at a master found: how it stands, and what it leads.
struct Seen {
    follows: Option<(u64, String)>,
    figures: Option<Figures>,
}

impl Seen {
    fn of(master: &Master, now: Millis) -> Self {
        let follows = master.follows().map(|(term, leader)| (term, leader.to_owned()));
        Self { follows, figures: master.figures(now) }
    }

    fn role(&self) -> &'static str {
        match (&self.figures, &self.follows) {
            (Some(_), _) => "leader",
            (None, Some(_)) => "standby",
            (None, None) => "leader without a lease",
        }
    }
}

impl Admin {
    /// For a directory.
    #[must_use]
    pub fn new(directory: Directory, token: Token, meter: Arc<Meter>) -> Self {
        Self { directory, token, meter }
    }

    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Master, Millis) -> T + Send + 'static,
    ) -> Result<T, Answer> {
        let looked = timeout(PATIENCE, self.directory.look(look)).await;
        let why = "the directory does not answer";
        looked.ok().flatten().ok_or_else(|| refuse(StatusCode::SERVICE_UNAVAILABLE, why))
    }

    /// Answers a request.
    pub async fn answer<B>(&self, request: &Request<B>) -> Answer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut no = refuse(StatusCode::METHOD_NOT_ALLOWED, "only GET is possible");
            no.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return no;
        }
        let path = request.uri().path();
        // The page holds nothing by itself, and a supervisor that asks for health has no token.
        if !matches!(path, "/" | "/health") && !self.token.allows(request.headers()) {
            let mut no = refuse(StatusCode::UNAUTHORIZED, "a token is wanted: Authorization: Bearer TOKEN");
            no.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return no;
        }
        let query = request.uri().query().unwrap_or_default();
        let answered = match path {
            "/" => Ok(page()),
            "/health" => self.health().await,
            "/metrics" => self.metrics().await,
            "/admin/status" => self.status().await,
            "/admin/members" => self.members().await,
            "/admin/segments" => self.segments().await,
            "/admin/key" => self.key(query).await,
            "/admin/keys" => self.keys(query).await,
            "/admin/slow" => Ok(self.slow()),
            _ => Err(refuse(
                StatusCode::NOT_FOUND,
                "there are /, /health, /metrics and /admin/{status,members,segments,key,keys,slow}",
            )),
        };
        answered.unwrap_or_else(|no| no)
    }

    /// Healthy is who answers: a standby too. Whether it leads stands beside it.
    async fn health(&self) -> Result<Answer, Answer> {
        let seen = self.look(Seen::of).await?;
        Ok(said(Json::Object(vec![("status", "ok".into()), ("role", seen.role().into())])))
    }

    async fn metrics(&self) -> Result<Answer, Answer> {
        let (figures, members) = self.look(|master, now| (master.figures(now), master.members(now))).await?;
        let text = metrics::text(figures.as_ref(), &members.unwrap_or_default(), &self.meter, self.directory.times());
        Ok(answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
    }

    async fn status(&self) -> Result<Answer, Answer> {
        let seen = self.look(Seen::of).await?;
        let mut fields = vec![("role", Json::from(seen.role())), ("version", env!("CARGO_PKG_VERSION").into())];
        if let Some((term, leader)) = seen.follows {
            fields.extend([("term", counted(term).into()), ("leader", leader.into())]);
        }
        if let Some(figures) = seen.figures {
            fields.extend([
                ("term", counted(figures.term).into()),
                ("settled", figures.settled.into()),
                ("objects", figures.objects.into()),
                ("puts", figures.puts.into()),
                ("removes_waiting", figures.calls.into()),
                ("drop_log_entries", figures.log.into()),
                ("namespaces", figures.spaces.into()),
                ("lookups", Json::Object(metrics::named(&figures.lookups).map(|(name, n)| (name, n.into())).collect())),
            ]);
        }
        let connections = u64::try_from(self.meter.connections()).unwrap_or(0);
        fields.push(("grpc_connections", connections.into()));
        Ok(said(Json::Object(fields)))
    }

    async fn all_members(&self) -> Result<Vec<MemberView>, Answer> {
        let members = self.look(|master, now| master.members(now)).await?;
        members.map_err(|error| refuse(StatusCode::SERVICE_UNAVAILABLE, &error.message))
    }

    async fn members(&self) -> Result<Answer, Answer> {
        let member = |member: MemberView| {
            Json::Object(vec![
                ("name", member.name.into()),
                ("id", hex(member.id.0)),
                ("state", member.state.name().into()),
                ("incarnation", hex(member.incarnation)),
                ("host", member.host.into()),
                ("endpoint", member.endpoint.into()),
                ("silent_ms", member.silent_ms.into()),
                ("drops_owed", member.owed.into()),
                ("segments", member.segments.len().into()),
            ])
        };
        Ok(said(Json::List(self.all_members().await?.into_iter().map(member).collect())))
    }

    async fn segments(&self) -> Result<Answer, Answer> {
        let of_member = |member: MemberView| {
            let MemberView { name, state, segments, .. } = member;
            segments.into_iter().map(move |(info, draining)| {
                Json::Object(vec![
                    ("name", info.name.into()),
                    ("node", name.clone().into()),
                    ("state", if draining { "draining" } else { state.name() }.into()),
                    ("media", metrics::media(info.media).into()),
                    ("capacity", info.capacity.into()),
                    ("used", info.used.into()),
                ])
            })
        };
        Ok(said(Json::List(self.all_members().await?.into_iter().flat_map(of_member).collect())))
    }

    async fn key(&self, query: &str) -> Result<Answer, Answer> {
        let given = parameters(query, ["space", "key"]);
        let [space, key] = given.map_err(|why| refuse(StatusCode::BAD_REQUEST, &why))?;
        let key = ObjectKey::new(&space.unwrap_or_default(), &key.unwrap_or_default());
        let key = key.map_err(|error| refuse(StatusCode::BAD_REQUEST, &error.message))?;
        let (seen, replicas) =
            self.look(move |master, now| (Seen::of(master, now), master.replicas(&key, now))).await?;
        let replicas = replicas.map_err(|error| refuse(StatusCode::SERVICE_UNAVAILABLE, &error.message))?;
        let Some(figures) = seen.figures else {
            return Err(refuse(StatusCode::SERVICE_UNAVAILABLE, "this master does not lead"));
        };
        let replica = |view: ReplicaView| {
            let put = hex(shown_put(&view));
            let state = match view.gate {
                Gate::Announced => "initialized",
                Gate::Closed => "processing",
                Gate::Open => "complete",
                Gate::Dropped => "removed",
            };
            Json::Object(vec![
                ("state", state.into()),
                ("reachable", view.reachable.into()),
                ("segment", view.segment_name.into()),
                ("media", metrics::media(view.media).into()),
                ("endpoint", view.endpoint.into()),
                ("length", view.length.into()),
                ("put", put),
                ("index", view.name.map_or(0, |name| u64::from(name.index)).into()),
                ("epoch", view.name.map_or(0, |name| name.epoch).into()),
            ])
        };
        let replicas = Json::List(replicas.into_iter().map(replica).collect());
        Ok(said(Json::Object(vec![("settled", figures.settled.into()), ("replicas", replicas)])))
    }

    async fn keys(&self, query: &str) -> Result<Answer, Answer> {
        let given = parameters(query, ["space", "prefix", "cursor"]);
        let [space, prefix, cursor] = given.map_err(|why| refuse(StatusCode::BAD_REQUEST, &why))?;
        let prefix = prefix.unwrap_or_default();
        let cursor = match cursor {
            None => 0,
            Some(text) => std::str::from_utf8(&text)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| refuse(StatusCode::BAD_REQUEST, "cursor is what the page before gave as next"))?,
        };
        let look = move |master: &Master, now: Millis| {
            let wanted = Wanted { space: space.as_deref(), prefix: &prefix, limit: MAX_PAGE };
            master.keys(cursor, wanted, now)
        };
        let (keys, next) =
            self.look(look).await?.map_err(|error| refuse(StatusCode::SERVICE_UNAVAILABLE, &error.message))?;
        let name = |bytes: &[u8]| Json::from(String::from_utf8_lossy(bytes).into_owned());
        let key = |key: &ObjectKey| Json::Object(vec![("space", name(key.space())), ("key", name(key.key()))]);
        let keys = Json::List(keys.iter().map(key).collect());
        Ok(said(Json::Object(vec![("keys", keys), ("next", u64::from(next).into())])))
    }

    fn slow(&self) -> Answer {
        let grpc = self.meter.slow().into_iter().map(|slow| (slow, "grpc"));
        let framed = self.directory.times().slow().into_iter().map(|slow| (slow, "framed"));
        let mut all: Vec<_> = grpc.chain(framed).collect();
        all.sort_by_key(|(slow, _)| std::cmp::Reverse(slow.at_ms));
        let slow = all.into_iter().map(|(Slow { method, ms, at_ms }, protocol)| {
            Json::Object(vec![
                ("method", method.into()),
                ("protocol", protocol.into()),
                ("ms", ms.into()),
                ("at_ms", at_ms.into()),
            ])
        });
        said(Json::List(slow.collect()))
    }
}

fn page() -> Answer {
    let mut page = answer(StatusCode::OK, "text/html; charset=utf-8", include_str!("page.html"));
    page.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    page
}

fn hex(number: u64) -> Json {
    format!("{number:016x}").into()
}

/// Parameters of a query, without their escapes; or what is wrong with one.
fn parameters<const N: usize>(query: &str, names: [&str; N]) -> Result<[Option<Vec<u8>>; N], String> {
    let mut found = [const { None }; N];
    for (name, to) in names.into_iter().zip(&mut found) {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        if let Some((_, value)) = pairs.find(|(given, _)| *given == name) {
            let plain = unescaped(value).ok_or_else(|| format!("{name}: after % there are two hexadecimal digits"))?;
            *to = Some(plain);
        }
    }
    Ok(found)
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                digit()? << 4 | digit()?
            }
            byte => byte,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_bytes_whatever_they_are() {
        let found = |query| parameters(query, ["key"]).map(|[key]| key);
        assert_eq!(found("a=1&key=x%00%ffy+z"), Ok(Some(b"x\0\xffy z".to_vec())));
        assert_eq!(found("key="), Ok(Some(Vec::new())));
        for none in ["", "key", "kex=1"] {
            assert_eq!(found(none), Ok(None), "{none}");
        }
        for bad in ["key=%", "key=%f", "key=%zz"] {
            assert!(found(bad).is_err(), "{bad}");
        }
    }
}
