//! Asks a master for something over HTTP/1.1: one request, one connection. Whoever listens there may be anybody: time and bytes are limited,
//! and what is no answer is told in words.

use crate::args::Failure;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

/// Where masters listen if nobody says: `nanomc-master --metrics_port`.
const DEFAULT_PORT: u16 = 9003;
/// Longest head of an answer.
const MAX_HEAD: usize = 16 << 10;
/// Longest body: the segments of the largest cluster that is possible, of two each.
const MAX_BODY: usize = 16 << 20;
/// What people mix up.
const HINT: &str = "(the port is that of --metrics_port, by default 9003)";

/// Where a master listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    host: String,
    port: u16,
}

impl Place {
    /// `HOST`, `HOST:PORT`, `[IPv6]:PORT`, or what a master says itself when it starts, `http://HOST:PORT/`.
    pub fn new(text: &str) -> Result<Self, Failure> {
        let refuse = || Failure::usage(format!("--master {text:?} is no HOST:PORT"));
        let place = text.strip_prefix("http://").unwrap_or(text);
        let place = place.strip_suffix('/').unwrap_or(place);
        let bare_v6 = place.matches(':').count() > 1 && !place.starts_with('[');
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !bare_v6 && !place.ends_with(']') => (host, port.parse().map_err(|_| refuse())?),
            _ => (place, DEFAULT_PORT),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let good = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
        if host.is_empty() || !host.chars().all(good) || port == 0 {
            return Err(refuse());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// The body of what is at `path`; else what went wrong.
pub fn get(place: &Place, path: &str, token: Option<&str>, limit: Duration) -> Result<String, String> {
    let until = Instant::now() + limit;
    let late = || format!("no answer within {} s", limit.as_secs_f64());
    let said = |e: std::io::Error| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => late(),
        ErrorKind::ConnectionRefused => "nobody listens there".to_owned(),
        _ => e.to_string(),
    };
    let left = || Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero()).ok_or_else(late);
    let mut stream = connect(place, &left, &said)?;
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    let request = format!("GET {path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n{token}\r\n");
    stream.set_write_timeout(Some(left()?)).map_err(said)?;
    stream.write_all(request.as_bytes()).map_err(said)?;
    let (mut answer, mut part) = (Vec::new(), vec![0; 64 << 10]);
    let (mut head, mut end) = (None, usize::MAX);
    while answer.len() < end {
        stream.set_read_timeout(Some(left()?)).map_err(said)?;
        let count = match stream.read(&mut part) {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            // Who gets what it does not understand may hang up like this.
            Err(e) if e.kind() == ErrorKind::ConnectionReset => 0,
            count => count.map_err(said)?,
        };
        if count == 0 {
            break;
        }
        answer.extend_from_slice(part.get(..count).unwrap_or_default());
        if head.is_none() {
            head = Head::find(&answer)?;
            end = head.as_ref().map_or(usize::MAX, |head| head.bytes + head.length);
        }
    }
    let Some(head) = head else { return Err(format!("who listens there is no master {HINT}")) };
    let Some(body) = answer.get(head.bytes..end) else { return Err("the answer ends in its middle".to_owned()) };
    let body = std::str::from_utf8(body).map_err(|_| "the answer is no text")?;
    match head.status {
        200 => Ok(body.to_owned()),
        401 if token.is_empty() => Err("a token is wanted: --token_file FILE".to_owned()),
        401 => Err("the token is not that of this master".to_owned()),
        404 => Err(format!("there is no {path} {HINT}")),
        status => {
            let why = crate::json::read(body).ok().and_then(|value| Some(value.text("error")?.to_owned()));
            Err(why.unwrap_or_else(|| format!("the answer has status {status}")))
        }
    }
}

fn connect(
    place: &Place,
    left: &impl Fn() -> Result<Duration, String>,
    said: &impl Fn(std::io::Error) -> String,
) -> Result<TcpStream, String> {
    let found = (place.host.as_str(), place.port).to_socket_addrs();
    let found = found.map_err(|e| format!("{} is not known: {e}", place.host))?;
    let mut why = format!("{} has no address", place.host);
    for address in found {
        match TcpStream::connect_timeout(&address, left()?) {
            Ok(stream) => return Ok(stream),
            Err(e) => why = said(e),
        }
    }
    Err(why)
}

/// What precedes a body.
struct Head {
    /// Bytes of it.
    bytes: usize,
    status: u16,
    /// Bytes of the body.
    length: usize,
}

impl Head {
    /// The head that an answer begins with, once it is there whole.
    fn find(answer: &[u8]) -> Result<Option<Self>, String> {
        let stranger = || format!("who listens there does not speak HTTP {HINT}");
        let start = b"HTTP/1.";
        if !answer.starts_with(start.get(..answer.len().min(start.len())).unwrap_or_default()) {
            return Err(stranger());
        }
        let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
            return if answer.len() > MAX_HEAD { Err(stranger()) } else { Ok(None) };
        };
        let head = answer.get(..end).and_then(|head| std::str::from_utf8(head).ok()).ok_or_else(stranger)?;
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).ok_or_else(stranger)?;
        let header = |name: &str| {
            let mut fields = lines.clone().filter_map(|line| line.split_once(':'));
            fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
        };
        let length = header("content-length").and_then(|length| length.parse().ok());
        let Some(length) = length.filter(|_| header("transfer-encoding").is_none()) else {
            return Err(format!("the answer does not say how long it is {HINT}"));
        };
        if length > MAX_BODY {
            return Err(format!("the answer claims {length} bytes; {MAX_BODY} are possible"));
        }
        Ok(Some(Self { bytes: end + 4, status, length }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_understood_as_people_write_them() {
        for (text, shown) in [
            ("10.0.0.1", "10.0.0.1:9003"),
            ("master:80", "master:80"),
            ("http://127.0.0.1:9003/", "127.0.0.1:9003"),
            ("::1", "[::1]:9003"),
            ("[::1]", "[::1]:9003"),
            ("[fe80::1%eth0]:7", "[fe80::1%eth0]:7"),
        ] {
            assert_eq!(Place::new(text).map(|place| place.to_string()).ok().as_deref(), Some(shown), "{text}");
        }
        for wrong in ["", ":9003", "a:b", "a:0", "a:70000", "a/b", "a b", "http://a:1/admin", "a\r\nb", "[]:1"] {
            assert_eq!(Place::new(wrong).err().map(|f| f.code), Some(2), "{wrong}");
        }
    }

    #[test]
    fn only_an_answer_that_says_how_long_it_is_is_one() {
        let find = |text: &str| Head::find(text.as_bytes()).map(|head| head.map(|h| (h.bytes, h.status, h.length)));
        assert_eq!(find(""), Ok(None));
        assert_eq!(find("HTT"), Ok(None));
        assert_eq!(find("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"), Ok(None));
        assert_eq!(find("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"), Ok(Some((38, 200, 2))));
        for wrong in [
            "SSH-2.0",
            "HTTP/2 200",
            "HTTP/1.1\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
            &format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(MAX_HEAD)),
        ] {
            assert!(find(wrong).is_err(), "{wrong}");
        }
    }
}
