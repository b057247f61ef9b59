//! What is shown of masters, without any.

use super::cluster::{Cluster, Member, Segment, Slow};
use super::*;
use crate::term::Style;

fn place(number: usize) -> Place {
    Place::new(&format!("10.0.0.{number}")).expect("a place")
}

fn cluster(nodes: usize) -> Cluster {
    let state = |n: usize| if n == 2 { "away" } else { "active" }.to_owned();
    let segment = |n: usize| Segment {
        name: format!("node-{n}/a segment with a long name"),
        node: format!("node-{n}"),
        state: state(n),
        media: "ram".into(),
        used: (n as u64) << 20,
        capacity: 1 << 30,
    };
    let member = |n: usize| Member {
        name: format!("node-{n}"),
        state: state(n),
        host: "節-1".into(),
        endpoint: "10.0.0.7:12300".into(),
        silent_ms: n as u64,
        drops_owed: 1234,
    };
    let lookups = [("ram", 900), ("ssd", 50), ("missing", 50), ("vram", 0)];
    Cluster {
        settled: true,
        figures: vec![("objects", 1_234_567), ("puts under way", 3)],
        lookups: lookups.map(|(name, count)| (name.to_owned(), count)).to_vec(),
        segments: (0..nodes).map(segment).collect(),
        members: (0..nodes).map(member).collect(),
    }
}

fn master(term: u64, cluster: Option<Cluster>) -> Master {
    let role = if cluster.is_some() { "leader" } else { "standby" }.to_owned();
    let follows = if cluster.is_some() { "" } else { "10.0.0.1:50051" }.to_owned();
    let slow = vec![Slow { method: "PutEnd".into(), ms: 1500, at_ms: 86_400_000 }];
    let (version, term, asked) = ("0.1.0".into(), Some(term), Instant::now());
    Master { role, version, term, follows, slow, cluster, documents: Vec::new(), asked }
}

fn asked(said: Vec<Option<Result<Master, String>>>) -> Vec<Asked> {
    let one = |(n, said)| Asked { place: place(n + 1), said, rates: vec![("ram".into(), 12.0)] };
    said.into_iter().enumerate().map(one).collect()
}

fn shown(asked: &[Asked], width: usize, height: Option<usize>) -> Vec<String> {
    screen::lines(asked, Room { width, height }, Style::plain())
}

#[test]
fn everything_is_shown_where_there_is_room() {
    let text = shown(&asked(vec![Some(Ok(master(7, Some(cluster(4)))))]), usize::MAX, None).join("\n");
    for part in [
        "nanomc-master 0.1.0   10.0.0.1:9003   leader   term 7   settled",
        "objects 1,234,567\nputs under way 3\n",
        "\n  ram      90.0 %  900 keys  ##################..  12/s\n",
        "\n  missing   5.0 %   50 keys  #...................\n",
        "\nSegments: 4, 6.0 MiB of 4.0 GiB\n  node-2/a segment with a long name  away    2.0 MiB of 1.0 GiB  0.2 %  ....................  ram  on node-2\n  node-3",
        "\nMembers: 3 of 4 active\n  node-2  away    heard 0.0 s ago  1,234 drops to confirm  節-1  10.0.0.7:12300\n  node-3  active",
        "\nSlow calls\n  PutEnd  1,500 ms  1970-01-02 00:00:00 UTC",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
    assert!(!text.contains("vram") && !text.contains("Masters"), "{text}");
}

#[test]
fn in_any_room_no_line_is_too_long_and_none_too_many() {
    let said =
        || vec![Some(Ok(master(7, Some(cluster(40))))), Some(Err("x".repeat(99))), None, Some(Ok(master(7, None)))];
    let alone = || vec![Some(Ok(master(7, Some(cluster(40)))))];
    for width in (1..50).chain([60, 79, 100, 139]) {
        for height in [1, 5, 24, 400] {
            for all in [asked(said()), asked(alone()), asked(vec![Some(Err("gone".into()))])] {
                let lines = shown(&all, width, Some(height));
                assert!(lines.len() <= height, "{} lines of {height}", lines.len());
                for line in &lines {
                    let columns: usize = line.chars().map(term::columns).sum();
                    assert!(columns <= width, "{columns} columns of {width}: {line:?}");
                }
            }
        }
    }
    // A usual terminal is filled, all lists have a part of it, and what is wrong is seen first.
    let lines = shown(&asked(alone()), 80, Some(24));
    assert_eq!(lines.len(), 24, "{lines:#?}");
    for part in ["  node-2/a segment with a long name   away", "  … 36 more", "  node-2   away", "PutEnd"] {
        assert!(lines.iter().any(|line| line.contains(part)), "{part}: {lines:#?}");
    }
    // A phone's, or a narrow pane: the name and the state of each.
    let lines = shown(&asked(alone()), 30, None);
    assert!(lines.contains(&"  node-2/a segment wi…  away".to_owned()), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("  node-2   away")), "{lines:#?}");
}

#[test]
fn of_several_masters_the_later_leader_counts_and_all_are_told_of() {
    let said = vec![
        Some(Ok(master(3, Some(cluster(1))))),
        Some(Ok(master(4, Some(cluster(2))))),
        Some(Ok(master(4, None))),
        Some(Err("nobody listens there".into())),
        None,
    ];
    let all = asked(said);
    assert_eq!(screen::leader(&all).map(|(asked, ..)| asked.place.clone()), Some(place(2)));
    let text = shown(&all, usize::MAX, None).join("\n");
    for part in [
        "10.0.0.2:9003   leader   term 4",
        "\n  10.0.0.1:9003  earlier leader, term 3\n",
        "\n  10.0.0.2:9003  leader, term 4\n",
        "\n  10.0.0.3:9003  standby, term 4, 10.0.0.1:50051 leads\n",
        "\n  10.0.0.4:9003  nobody listens there; it is asked again\n",
        "\n  10.0.0.5:9003  asked\n",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
    let nobody = shown(&asked(vec![Some(Ok(master(4, None)))]), 80, None).join("\n");
    assert!(nobody.contains("no leader: nothing is known of the cluster") && nobody.contains("standby"), "{nobody}");
}

#[test]
fn a_terminal_obeys_no_name_of_the_cluster() {
    let mut evil = cluster(1);
    evil.segments[0].name = "\x1b[2J\x1b]0;title\x07".into();
    evil.members[0].name = "a\nb\u{9b}1m".into();
    evil.lookups.push(("\x1b[H".into(), 1));
    let mut master = master(1, Some(evil));
    (master.version, master.role, master.slow[0].method) = ("\x1b[31m".into(), "\r".into(), "\x08".into());
    let said = vec![Some(Ok(master)), Some(Err("\x1b[2J".into()))];
    for line in shown(&asked(said), 100, None) {
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
}

#[test]
fn what_is_old_says_so() {
    let text = |age: u64| {
        let mut old = master(1, Some(cluster(0)));
        old.asked -= Duration::from_secs(age);
        shown(&asked(vec![Some(Ok(old))]), 80, None).join("\n")
    };
    assert!(text(60).contains("as of 60 s ago") && !text(0).contains("as of"), "{}", text(60));
}

#[test]
fn rates_are_of_one_term() {
    let (mut before, now) = (master(1, Some(cluster(0))), master(1, Some(cluster(0))));
    before.asked = now.asked - Duration::from_secs(2);
    if let Some(cluster) = &mut before.cluster {
        cluster.lookups = vec![("ram".into(), 800), ("ssd".into(), 50)];
    }
    let found = rates(&before, &now);
    assert_eq!(found[..3], [("ram".into(), 50.0), ("ssd".into(), 0.0), ("missing".into(), 25.0)]);
    before.term = Some(2);
    assert!(rates(&before, &now).is_empty());
}

#[test]
fn a_look_is_one_line_of_json() {
    let mut leader = master(4, Some(cluster(0)));
    leader.documents = vec![("status", r#"{"role":"leader"}"#.into()), ("members", "[ ]".into())];
    let text =
        document(&asked(vec![Some(Ok(leader)), Some(Err("a \"quote\"\n".into())), None, Some(Ok(master(4, None)))]));
    assert!(!text.contains('\n'), "{text}");
    let value = json::read(&text).expect("JSON");
    assert_eq!(value.text("leader"), Some("10.0.0.1:9003"));
    assert_eq!(value.field("status").and_then(|status| status.text("role")), Some("leader"));
    let Some(json::Value::List(masters)) = value.field("masters") else { panic!("{text}") };
    assert_eq!((masters[0].whole("term"), masters[1].text("error")), (Some(4), Some("a \"quote\"\n")));
    assert_eq!((masters[2].text("error"), masters[3].text("role")), (Some("no answer yet"), Some("standby")));
}
