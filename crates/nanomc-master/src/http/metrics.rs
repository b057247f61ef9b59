//! What Prometheus is told, in its text format.

use crate::meter::Meter;
use nanomc::cluster::directory::{Figures, Lookups, MemberView, State};
use nanomc::cluster::run::times::{BUCKETS_US, Count, Times};
use nanomc::cluster::types::{Media, counted};
use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

/// Name of a medium.
#[must_use]
pub fn media(media: Media) -> &'static str {
    match media {
        Media::Vram => "vram",
        Media::Ram => "ram",
        Media::Ssd => "ssd",
    }
}

fn family(to: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(to, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn gauge(to: &mut String, name: &str, help: &str, value: u64) {
    family(to, name, "gauge", help);
    let _ = writeln!(to, "{name} {value}");
}

/// A label's value, in its quotes.
fn label(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// A time in µs, in seconds.
fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

/// All of it. Without figures this master does not lead, and says nothing about the cluster.
#[must_use]
pub fn text(figures: Option<&Figures>, members: &[MemberView], meter: &Meter, framed: &Times) -> String {
    let mut to = String::new();
    gauge(&mut to, "nanomc_master_leader", "1 if this master leads.", figures.is_some().into());
    if let Some(figures) = figures {
        gauge(&mut to, "nanomc_master_term", "Term of the leader.", counted(figures.term));
        let help = "1 if every member has reported, so that what is unknown does not exist.";
        gauge(&mut to, "nanomc_master_settled", help, figures.settled.into());
        gauge(&mut to, "nanomc_master_objects", "Keys in the directory.", figures.objects as u64);
        gauge(&mut to, "nanomc_master_puts", "Puts that have begun and not ended.", figures.puts as u64);
        gauge(&mut to, "nanomc_master_removes_waiting", "Removes that wait for owners.", figures.calls as u64);
        gauge(&mut to, "nanomc_master_drop_log_entries", "Entries of the drop log.", figures.log as u64);
        gauge(&mut to, "nanomc_master_namespaces", "Namespaces.", figures.spaces as u64);
        let name = "nanomc_master_re_replications_total";
        family(&mut to, name, "counter", "Copies asked for in the place of lost ones, since this master leads.");
        let _ = writeln!(to, "{name} {}", figures.re_replications);
        lookups(&mut to, &figures.lookups);
        cluster(&mut to, members);
    }
    let connections = u64::try_from(meter.connections()).unwrap_or(0);
    gauge(&mut to, "nanomc_master_grpc_connections", "Connections of gRPC clients.", connections);
    let help = ["Calls that ended with a gRPC status other than OK.", "Time of gRPC calls at the master."];
    calls(&mut to, "grpc", "method", help, || meter.methods());
    let help = [
        "Messages of framed clients, as those of the library are, that had no answer in time or that this master could not do.",
        "Time of messages of framed clients, as those of the library are, from when one was read until its answer was queued.",
    ];
    calls(&mut to, "framed", "message", help, || framed.counts());
    to
}

/// What came of lookups, with its name.
pub fn named(lookups: &Lookups) -> impl Iterator<Item = (&'static str, u64)> {
    let found = Media::ALL.into_iter().map(media).zip(lookups.found);
    found.chain([("missing", lookups.missing), ("unknown", lookups.unknown)])
}

fn lookups(to: &mut String, lookups: &Lookups) {
    let name = "nanomc_master_lookups_total";
    family(
        to,
        name,
        "counter",
        "Keys that were looked up, by the fastest medium that has them, since this master leads.",
    );
    for (result, count) in named(lookups) {
        let _ = writeln!(to, "{name}{{result=\"{result}\"}} {count}");
    }
}

fn cluster(to: &mut String, members: &[MemberView]) {
    let name = "nanomc_master_members";
    family(to, name, "gauge", "Members, by how they stand.");
    for state in State::ALL {
        let count = members.iter().filter(|member| member.state == state).count();
        let _ = writeln!(to, "{name}{{state=\"{}\"}} {count}", state.name());
    }
    let name = "nanomc_master_member_silent_seconds";
    family(to, name, "gauge", "How long a member was silent.");
    for member in members {
        let _ = writeln!(to, "{name}{{node={}}} {}", label(&member.name), seconds(member.silent_ms * 1000));
    }
    let name = "nanomc_master_member_drops_owed";
    family(to, name, "gauge", "Entries of the drop log that a member has not confirmed.");
    for member in members {
        let _ = writeln!(to, "{name}{{node={}}} {}", label(&member.name), member.owed);
    }
    let segments = || members.iter().flat_map(|member| member.segments.iter().map(move |(info, _)| (member, info)));
    for (name, help, capacity) in [
        ("nanomc_master_segment_capacity_bytes", "Bytes of a segment.", true),
        ("nanomc_master_segment_used_bytes", "Bytes in use of a segment, as its node said last.", false),
    ] {
        family(to, name, "gauge", help);
        for (member, info) in segments() {
            let value = if capacity { info.capacity } else { info.used };
            let (segment, node, media) = (label(&info.name), label(&member.name), media(info.media));
            let _ = writeln!(to, "{name}{{segment={segment},node={node},media=\"{media}\"}} {value}");
        }
    }
}

/// What came of calls by one protocol, and how long they took.
fn calls<'a, I: Iterator<Item = (&'static str, &'a Count)>>(
    to: &mut String,
    protocol: &str,
    what: &str,
    [failures, time]: [&str; 2],
    counts: impl Fn() -> I,
) {
    let called = || counts().filter(|(_, count)| count.buckets.iter().any(|bucket| bucket.load(Relaxed) > 0));
    let name = &format!("nanomc_master_{protocol}_failures_total");
    family(to, name, "counter", failures);
    for (which, count) in called() {
        let _ = writeln!(to, "{name}{{{what}=\"{which}\"}} {}", count.failed.load(Relaxed));
    }
    let name = &format!("nanomc_master_{protocol}_call_seconds");
    family(to, name, "histogram", time);
    for (which, count) in called() {
        let mut sum = 0;
        for (at, bucket) in count.buckets.iter().enumerate() {
            sum += bucket.load(Relaxed);
            let end = BUCKETS_US.get(at).map_or("+Inf".to_owned(), |end| seconds(*end));
            let _ = writeln!(to, "{name}_bucket{{{what}=\"{which}\",le=\"{end}\"}} {sum}");
        }
        let _ = writeln!(to, "{name}_sum{{{what}=\"{which}\"}} {}", seconds(count.total_us.load(Relaxed)));
        let _ = writeln!(to, "{name}_count{{{what}=\"{which}\"}} {sum}");
    }
}
