//! What a master says about itself and its cluster at `/admin/*`, as numbers and names. Only a leader knows of a cluster.

use super::http::{self, Place};
use crate::json::{self, Value};
use std::time::{Duration, Instant};

/// How long a master may take for one answer: its own limit is 2 s.
const LIMIT: Duration = Duration::from_secs(3);

/// A master as it stands.
#[derive(Debug, Clone)]
pub struct Master {
    /// leader, standby, or what else it says.
    pub role: String,
    /// Its version.
    pub version: String,
    /// Its term, or that of the leader that it follows.
    pub term: Option<u64>,
    /// Where the leader that it follows listens, for clients.
    pub follows: String,
    /// Calls that took long, the last first.
    pub slow: Vec<Slow>,
    /// What it leads.
    pub cluster: Option<Cluster>,
    /// Each document as it came, with its name.
    pub documents: Vec<(&'static str, String)>,
    /// When it was asked.
    pub asked: Instant,
}

/// What a leader knows.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Whether what is unknown does not exist.
    pub settled: bool,
    /// Numbers with their names.
    pub figures: Vec<(&'static str, u64)>,
    /// What came of lookups, by its name, since the master leads.
    pub lookups: Vec<(String, u64)>,
    /// All of them.
    pub segments: Vec<Segment>,
    /// All of them.
    pub members: Vec<Member>,
}

/// Memory that a node gives.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: String,
    /// How it stands.
    pub state: String,
    /// What it is made of.
    pub media: String,
    /// Bytes in use.
    pub used: u64,
    /// Bytes in all.
    pub capacity: u64,
}

/// A node.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// How it stands.
    pub state: String,
    /// Its machine.
    pub host: String,
    /// Where it listens.
    pub endpoint: String,
    /// How long it was silent.
    pub silent_ms: u64,
    /// Entries of the drop log that it has not confirmed.
    pub drops_owed: u64,
}

/// A call that took long.
#[derive(Debug, Clone)]
pub struct Slow {
    /// Which.
    pub method: String,
    /// How long.
    pub ms: u64,
    /// When it ended, in ms since 1970, by the master's clock.
    pub at_ms: u64,
}

/// Asks a master for everything; else what went wrong.
pub fn ask(place: &Place, token: Option<&str>) -> Result<Master, String> {
    let asked = Instant::now();
    let mut documents = Vec::new();
    let mut get = |name: &'static str| {
        let path = format!("/admin/{name}");
        let text = http::get(place, &path, token, LIMIT)?;
        let value = json::read(&text).map_err(|why| format!("{path} is no JSON: {why}"))?;
        // Between values only: there is none in a text.
        documents.push((name, text.trim().replace(['\n', '\r'], " ")));
        Ok::<_, String>(value)
    };
    let status = get("status")?;
    let role = need(&status, "role", "status")?;
    let text = |name: &str| status.text(name).unwrap_or_default().to_owned();
    let slow = rows(&get("slow")?, "slow", |row| {
        let (ms, at_ms) = (number(row, "ms", "slow")?, number(row, "at_ms", "slow")?);
        let (method, protocol) = (need(row, "method", "slow")?, need(row, "protocol", "slow")?);
        Ok(Slow { method: format!("{method} ({protocol})"), ms, at_ms })
    })?;
    // Only who leads has figures.
    let cluster = if status.field("objects").is_some() { Some(cluster(&status, &mut get)?) } else { None };
    let (version, term, follows) = (text("version"), status.whole("term"), text("leader"));
    Ok(Master { role, version, term, follows, slow, cluster, documents, asked })
}

fn cluster(status: &Value, get: &mut impl FnMut(&'static str) -> Result<Value, String>) -> Result<Cluster, String> {
    let figures = [
        ("objects", "objects"),
        ("puts under way", "puts"),
        ("removes waiting", "removes_waiting"),
        ("drop log", "drop_log_entries"),
        ("namespaces", "namespaces"),
        ("gRPC connections", "grpc_connections"),
    ];
    let figures = figures.into_iter().filter_map(|(shown, name)| Some((shown, status.whole(name)?))).collect();
    let lookups = match status.field("lookups") {
        Some(all @ Value::Object(fields)) => {
            fields.iter().filter_map(|(name, _)| Some((name.clone(), all.whole(name)?))).collect()
        }
        _ => Vec::new(),
    };
    let segments = rows(&get("segments")?, "segments", |row| {
        let [name, node, state, media] = ["name", "node", "state", "media"].map(|field| need(row, field, "segments"));
        let [used, capacity] = ["used", "capacity"].map(|field| number(row, field, "segments"));
        Ok(Segment { name: name?, node: node?, state: state?, media: media?, used: used?, capacity: capacity? })
    })?;
    let members = rows(&get("members")?, "members", |row| {
        let [name, state, host, endpoint] =
            ["name", "state", "host", "endpoint"].map(|field| need(row, field, "members"));
        let [silent, owed] = ["silent_ms", "drops_owed"].map(|field| number(row, field, "members"));
        let (silent_ms, drops_owed) = (silent?, owed?);
        Ok(Member { name: name?, state: state?, host: host?, endpoint: endpoint?, silent_ms, drops_owed })
    })?;
    let settled = status.field("settled") == Some(&Value::Bool(true));
    Ok(Cluster { settled, figures, lookups, segments, members })
}

fn rows<T>(list: &Value, what: &str, row: impl Fn(&Value) -> Result<T, String>) -> Result<Vec<T>, String> {
    let Value::List(items) = list else { return Err(format!("/admin/{what} is no list")) };
    items.iter().map(row).collect()
}

fn need(row: &Value, field: &str, what: &str) -> Result<String, String> {
    row.text(field).map(str::to_owned).ok_or_else(|| format!("/admin/{what} has no text {field:?}"))
}

fn number(row: &Value, field: &str, what: &str) -> Result<u64, String> {
    row.whole(field).ok_or_else(|| format!("/admin/{what} has no number {field:?}"))
}
