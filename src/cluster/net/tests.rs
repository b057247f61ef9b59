//! Two ends in one process, over real sockets.

use super::secure::Files;
use super::*;
use crate::base::status::{NMC_ERR_PERMISSION, NMC_OK};
use crate::cluster::types::{ObjectKey, PutId};
use crate::cluster::wire::{Fetched, Find, Metadata};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

struct Pair {
    near: Net,
    far: Net,
    /// The far end, as the near end calls it.
    peer: Peer,
}

fn loopback() -> Address {
    Address::Tcp((Ipv4Addr::LOCALHOST, 0).into())
}

fn listening(limits: Limits) -> (Net, Address) {
    let mut net = Net::new(limits).unwrap();
    let listener = Listener::bind(&loopback()).unwrap();
    let address = listener.address().unwrap();
    net.listen(listener).unwrap();
    (net, address)
}

/// An authority, and what it signs.
struct Authority(rcgen::Issuer<'static, rcgen::KeyPair>, String);

impl Authority {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        // Each has a name of its own.
        params.distinguished_name.push(rcgen::DnType::CommonName, format!("{:?}", key.public_key_raw()));
        let own = params.self_signed(&key).unwrap().pem();
        Self(rcgen::Issuer::new(params, key), own)
    }

    /// A certificate for a name that nobody asks for, valid until this year; and belief in these authorities.
    fn signs(&self, believes: &str, year: i32) -> Limits {
        let dir = tempfile::tempdir().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["elsewhere".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let files = Files {
            cert: write("cert", &params.signed_by(&key, &self.0).unwrap().pem()),
            key: write("key", &key.serialize_pem()),
            ca: write("ca", believes),
        };
        Limits { tls: Some(Identity::load(&files).unwrap()), ..Limits::default() }
    }

    fn knows_itself(&self) -> Limits {
        self.signs(&self.1, 2999)
    }
}

/// As it is, and with TLS.
fn both_ways() -> [Limits; 2] {
    [Limits::default(), Authority::new().knows_itself()]
}

fn pair(limits: &Limits) -> Pair {
    let (far, address) = listening(limits.clone());
    let mut near = Net::new(limits.clone()).unwrap();
    let peer = near.connect(&address).unwrap();
    Pair { near, far, peer }
}

fn turn(net: &mut Net) -> Option<Heard> {
    net.flush();
    let mut ready = Vec::new();
    let limit = if net.is_busy() { 0 } else { 1 };
    net.poller().wait(Duration::from_millis(limit), &mut ready);
    net.ready(&ready);
    net.hear()
}

/// Both ends go on until one of them hears something that is wanted.
fn until<T>(pair: &mut Pair, mut wanted: impl FnMut(&mut Net, bool, Heard) -> Option<T>) -> T {
    let late = Instant::now() + Duration::from_secs(60);
    loop {
        for far in [false, true] {
            let net = if far { &mut pair.far } else { &mut pair.near };
            if let Some(heard) = turn(net)
                && let Some(found) = wanted(net, far, heard)
            {
                return found;
            }
        }
        assert!(Instant::now() < late, "nothing came");
    }
}

fn spans(memory: &[u8], piece: usize) -> Spans {
    // Tests keep the memory until the connection is closed or the value is complete.
    Spans::new(memory.chunks(piece.max(1)).map(|part| Span::of_test(part.as_ptr() as usize, part.len())))
}

fn fetched(bytes: usize) -> Frame {
    let bytes = bytes as u64;
    let metadata = Metadata::default();
    Frame::answering(
        7,
        Fetched { status: NMC_OK, put: PutId(1), length: bytes, follows: bytes, sum: None, retain: 0, metadata },
    )
}

fn value(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| u8::try_from((i * 31 + i / 251) % 256).unwrap()).collect()
}

#[test]
fn values_of_every_size_arrive_whole_between_frames_and_in_pieces() {
    both_ways().iter().for_each(|limits| values_of_every_size(pair(limits)));
}

fn values_of_every_size(mut pair: Pair) {
    for (bytes, piece_out, piece_in) in [
        (1, 1, 1),
        (31, 7, 2),
        (4096, 100, 4096),
        (70_000, 70_000, 999),
        (3 << 20, 1 << 20, 65_537),
        (9 << 20, 77_777, 9 << 20),
    ] {
        for ticket in [None, Some(5)] {
            let (from, to) = (value(bytes), vec![0u8; bytes]);
            let (before, after) = (Frame::telling(Find { keys: vec![], missed: vec![] }), fetched(0));
            pair.near.send(pair.peer, &before).unwrap();
            pair.near.send_value(pair.peer, &fetched(bytes), spans(&from, piece_out), ticket).unwrap();
            pair.near.send(pair.peer, &after).unwrap();
            let (mut frames, mut taken, mut sent) = (Vec::new(), false, ticket.is_none());
            until(&mut pair, |net, _, heard| {
                match heard {
                    Heard::Frame(from, frame) => {
                        if frame.message.value() > 0 {
                            assert!(net.take(from, spans(&to, piece_in), 9));
                        }
                        frames.push(frame);
                    }
                    Heard::Taken(ticket) => {
                        assert_eq!(ticket, 9);
                        assert_eq!(frames.len(), 2, "the frame behind it comes behind it");
                        taken = true;
                    }
                    Heard::Sent(ticket) => {
                        assert_eq!(ticket, 5);
                        sent = true;
                    }
                    other => panic!("{other:?}"),
                }
                (frames.len() == 3 && taken && sent).then_some(())
            });
            assert_eq!(frames, [before, fetched(bytes), after]);
            assert_eq!(from, to, "{bytes} bytes");
        }
    }
}

#[test]
fn what_comes_with_another_checksum_is_told_as_that() {
    both_ways().iter().for_each(|limits| values_with_sums(pair(limits)));
}

fn values_with_sums(mut pair: Pair) {
    for (bytes, piece, ticket) in [(1, 1, None), (5000, 99, None), (70_000, 4097, None), (3 << 20, 65_537, Some(5))] {
        let (from, to) = (value(bytes), vec![0u8; bytes]);
        for right in [true, false] {
            let wanted = crate::base::crc::crc32c(&from) ^ u32::from(!right) << 7;
            pair.near.send_value(pair.peer, &fetched(bytes), spans(&from, bytes), ticket).unwrap();
            let told = until(&mut pair, |net, _, heard| match heard {
                Heard::Frame(peer, _) => {
                    assert!(net.take(peer, spans(&to, piece).wanting(Some(wanted)), 9));
                    None
                }
                Heard::Sent(5) => None,
                Heard::Taken(9) => Some(true),
                Heard::Torn(9) => Some(false),
                other => panic!("{other:?}"),
            });
            assert_eq!((told, from == to), (right, true), "{bytes} bytes");
        }
    }
}

#[test]
fn a_value_that_nobody_takes_is_passed_over_and_one_that_is_let_go_of_is_not_stored() {
    both_ways().iter().for_each(|limits| values_that_nobody_takes(pair(limits)));
}

fn values_that_nobody_takes(mut pair: Pair) {
    let (from, to) = (value(8 << 20), vec![0u8; 8 << 20]);
    let last = fetched(0);
    pair.near.send_value(pair.peer, &fetched(from.len()), spans(&from, from.len()), Some(1)).unwrap();
    pair.near.send_value(pair.peer, &fetched(from.len()), spans(&from, from.len()), Some(2)).unwrap();
    pair.near.send(pair.peer, &last).unwrap();
    let (mut values, mut stored) = (0, 0);
    until(&mut pair, |net, _, heard| match heard {
        Heard::Frame(_, frame) if frame == last => Some(()),
        Heard::Frame(from, _) => {
            values += 1;
            if values == 2 {
                // It is told where to go, and the first piece arrives; then it is let go of.
                assert!(net.take(from, spans(&to, 1 << 16), 3));
                net.abandon(from, 3);
                stored = to.iter().filter(|byte| **byte != 0).count();
            }
            None
        }
        Heard::Sent(1 | 2) => None,
        other => panic!("{other:?}"),
    });
    assert_eq!(to.iter().filter(|byte| **byte != 0).count(), stored, "nothing was stored after it was let go of");
}

#[test]
fn what_was_under_way_is_lost_with_its_connection_and_nothing_is_stored_after_it() {
    both_ways().iter().for_each(|limits| values_under_way(pair(limits)));
}

fn values_under_way(mut pair: Pair) {
    let (from, to) = (value(64 << 20), vec![0u8; 64 << 20]);
    pair.near.send_value(pair.peer, &fetched(from.len()), spans(&from, from.len()), Some(1)).unwrap();
    let at = until(&mut pair, |net, _, heard| match heard {
        Heard::Frame(peer, _) => {
            assert!(net.take(peer, spans(&to, to.len()), 2));
            Some(peer)
        }
        other => panic!("{other:?}"),
    });
    pair.far.close(at);
    let (mut lost, mut closed) = (Vec::new(), 0);
    let seen = to.clone();
    until(&mut pair, |_, _, heard| {
        match heard {
            Heard::Lost(ticket) => lost.push(ticket),
            Heard::Closed(_) => closed += 1,
            other => panic!("{other:?}"),
        }
        (lost.len() == 2 && closed == 2).then_some(())
    });
    lost.sort_unstable();
    assert_eq!((lost, seen == to), (vec![1, 2], true));
    // What is sent to who is gone is lost at once.
    pair.near.send_value(pair.peer, &fetched(from.len()), spans(&from, from.len()), Some(4)).unwrap();
    assert!(matches!(pair.near.hear(), Some(Heard::Lost(4))));
}

/// Carries so many bytes at most from one to the other, if there are any.
fn carry(mut from: &TcpStream, mut to: &TcpStream, most: usize) {
    let mut piece = vec![0; most];
    if let Ok(n) = from.read(&mut piece) {
        to.write_all(&piece[..n]).unwrap();
    }
}

#[test]
fn what_the_other_end_takes_is_seen_while_it_takes_the_last_of_it_too() {
    for limits in both_ways() {
        // A slow way, on which little is under way.
        let between = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (mut far, address) = listening(limits.clone());
        let mut near = Net::new(limits.clone()).unwrap();
        sys::keep_little(&between);
        let peer = near.connect(&Address::Tcp(between.local_addr().unwrap())).unwrap();
        sys::keep_little(&near.links[&peer.0].channel);
        let Address::Tcp(address) = address else { panic!() };
        let (here, there) = (between.accept().unwrap().0, TcpStream::connect(address).unwrap());
        [&here, &there].into_iter().for_each(|end| end.set_nonblocking(true).unwrap());
        let memory = value(1 << 20);
        near.send_value(peer, &fetched(memory.len()), spans(&memory, memory.len()), Some(1)).unwrap();
        let late = Instant::now() + Duration::from_secs(60);
        // How often it was seen that more had been taken since the last of it was given to be sent.
        let (mut sent, mut seen, mut steps) = (false, 0, 0);
        while !near.moved(peer).1 || !sent {
            assert!(Instant::now() < late);
            sent |= matches!(turn(&mut near), Some(Heard::Sent(1)));
            let moved = near.moved(peer).0;
            if sent && near.links[&peer.0].has_unsent() && moved > seen {
                (seen, steps) = (moved, steps + 1);
            }
            carry(&here, &there, 4 << 10);
            let _ = turn(&mut far);
            carry(&there, &here, 4 << 10);
        }
        assert!(near.moved(peer).0 >= 1 << 20);
        assert!(limits.tls.is_none() || steps > 3, "{steps} steps");
    }
}

#[test]
fn nobody_listens_there() {
    let address = Listener::bind(&loopback()).unwrap().address().unwrap();
    let (far, _) = listening(Limits::default());
    let mut near = Net::new(Limits::default()).unwrap();
    match near.connect(&address) {
        Ok(peer) => {
            near.send(peer, &fetched(0)).unwrap();
            let mut pair = Pair { near, far, peer };
            until(&mut pair, |_, _, heard| matches!(heard, Heard::Closed(p) if p == peer).then_some(()));
        }
        Err(error) => assert!(error.message.contains("connect"), "{error:?}"),
    }
}

#[test]
fn whoever_does_not_know_the_token_is_told_so_and_heard_no_further() {
    let limits = Limits { token: "open sesame".into(), ..Limits::default() };
    let mut good = pair(&limits);
    good.near.send(good.peer, &fetched(0)).unwrap();
    until(&mut good, |_, _, heard| matches!(heard, Heard::Frame(..)).then_some(()));
    for token in ["", "open sesamE", "open sesame!"] {
        let (far, address) = listening(limits.clone());
        let mut near = Net::new(Limits { token: token.into(), ..Limits::default() }).unwrap();
        let peer = near.connect(&address).unwrap();
        near.send(peer, &fetched(0)).unwrap();
        let mut pair = Pair { near, far, peer };
        let mut told = false;
        until(&mut pair, |_, far, heard| match heard {
            Heard::Frame(_, frame) if !far => {
                assert!(matches!(frame.message, Message::Answer(a) if a.status == NMC_ERR_PERMISSION));
                told = true;
                None
            }
            Heard::Frame(..) => panic!("somebody without the token was heard"),
            Heard::Closed(_) if !far => Some(()),
            _ => None,
        });
        assert!(told);
    }
}

#[test]
fn whoever_has_no_certificate_of_the_authority_is_told_so_and_heard_no_further() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let both = format!("{}{}", ours.1, theirs.1);
    let plain = Limits::default();
    // The listener, who connects, and what that one hears.
    let cases = [
        (ours.knows_itself(), theirs.signs(&both, 2999), "refuses"),
        (ours.knows_itself(), ours.signs(&ours.1, 2020), "refuses"),
        (ours.knows_itself(), plain.clone(), "wants TLS"),
        (theirs.signs(&both, 2999), ours.knows_itself(), "UnknownIssuer"),
        (ours.signs(&ours.1, 2020), ours.knows_itself(), "expired"),
        (plain, ours.knows_itself(), "does not speak it"),
    ];
    for (there, here, why) in cases {
        let (far, address) = listening(there);
        let mut near = Net::new(here).unwrap();
        let peer = near.connect(&address).unwrap();
        near.send(peer, &fetched(0)).unwrap();
        let mut pair = Pair { near, far, peer };
        let mut told = None;
        until(&mut pair, |_, far, heard| match heard {
            Heard::Frame(_, Frame { message: Message::Answer(answer), .. }) if !far => {
                assert_eq!(answer.status, NMC_ERR_PERMISSION, "{}", answer.text);
                told = Some(answer.text);
                None
            }
            Heard::Frame(..) => panic!("somebody without a certificate was heard"),
            Heard::Closed(_) if !far => Some(()),
            _ => None,
        });
        assert!(told.as_ref().is_some_and(|told| told.contains(why)), "{told:?} instead of {why}");
    }
}

#[test]
fn with_tls_nobody_in_between_reads_a_value() {
    let [plain, secure] = both_ways();
    // Without TLS it is read: what is in between sees everything.
    for (limits, seen) in [(plain, true), (secure, false)] {
        let (far, address) = listening(limits.clone());
        let Address::Tcp(at) = address else { panic!() };
        let between = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = Net::new(limits).unwrap();
        let peer = near.connect(&Address::Tcp(between.local_addr().unwrap())).unwrap();
        let (mut one, mut other) = (between.accept().unwrap().0, TcpStream::connect(at).unwrap());
        let (mut back_from, mut back_to) = (other.try_clone().unwrap(), one.try_clone().unwrap());
        let back = std::thread::spawn(move || drop(std::io::copy(&mut back_from, &mut back_to)));
        let tap = std::thread::spawn(move || {
            let (mut all, mut piece) = (Vec::new(), [0; 4096]);
            while let Ok(n @ 1..) = one.read(&mut piece) {
                all.extend_from_slice(&piece[..n]);
                if other.write_all(&piece[..n]).is_err() {
                    break;
                }
            }
            all
        });
        let (from, to) = (value(100_000), vec![0u8; 100_000]);
        near.send_value(peer, &fetched(from.len()), spans(&from, from.len()), None).unwrap();
        let mut pair = Pair { near, far, peer };
        until(&mut pair, |net, _, heard| match heard {
            Heard::Frame(peer, _) => {
                assert!(net.take(peer, spans(&to, to.len()), 1));
                None
            }
            Heard::Taken(1) => Some(()),
            other => panic!("{other:?}"),
        });
        assert_eq!(from, to);
        drop(pair);
        let all = tap.join().unwrap();
        back.join().unwrap();
        assert!(all.len() > from.len());
        assert_eq!(all.windows(64).any(|bytes| bytes == &from[5_000..5_064]), seen);
    }
}

#[test]
fn what_is_said_before_a_handshake_has_ended_can_be_taken_back() {
    let secure = Authority::new().knows_itself();
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = Net::new(secure).unwrap();
    let peer = near.connect(&Address::Tcp(mute.local_addr().unwrap())).unwrap();
    near.send(peer, &fetched(0)).unwrap();
    // The first message of TLS itself has left when nobody waits to send more.
    while near.links[&peer.0].watched {
        turn(&mut near);
    }
    assert!(sys::has_bytes(mute.accept().unwrap().0.as_fd()));
    assert!(near.has_unsent(peer));
}

#[test]
fn damaged_bytes_end_a_connection_and_are_no_refusal() {
    let secure = Authority::new().knows_itself();
    let (far, address) = listening(secure.clone());
    let Address::Tcp(at) = address else { panic!() };
    let between = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = Net::new(secure).unwrap();
    let peer = near.connect(&Address::Tcp(between.local_addr().unwrap())).unwrap();
    let (mut one, mut other) = (between.accept().unwrap().0, TcpStream::connect(at).unwrap());
    let (mut back_from, mut back_to) = (other.try_clone().unwrap(), one.try_clone().unwrap());
    let there = std::thread::spawn(move || drop(std::io::copy(&mut one, &mut other)));
    let damage = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let damages = Arc::clone(&damage);
    let back = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = back_from.read(&mut piece) {
            piece[n - 1] ^= u8::from(damages.load(std::sync::atomic::Ordering::SeqCst));
            if back_to.write_all(&piece[..n]).is_err() {
                break;
            }
        }
    });
    near.send(peer, &fetched(0)).unwrap();
    let mut pair = Pair { near, far, peer };
    until(&mut pair, |net, far, heard| match heard {
        Heard::Frame(peer, _) if far => {
            damage.store(true, std::sync::atomic::Ordering::SeqCst);
            net.send(peer, &fetched(0)).unwrap();
            None
        }
        Heard::Closed(_) if !far => Some(()),
        Heard::Frame(_, frame) => panic!("{frame:?}"),
        _ => None,
    });
    drop(pair);
    there.join().unwrap();
    back.join().unwrap();
}

#[test]
fn those_who_are_known_are_heard_before_those_who_are_not() {
    let (far, address) = listening(Limits::default());
    let mut known = Net::new(Limits::default()).unwrap();
    let peer = known.connect(&address).unwrap();
    known.send(peer, &fetched(0)).unwrap();
    let mut pair = Pair { near: known, far, peer };
    let first = until(&mut pair, |_, far, heard| match heard {
        Heard::Frame(peer, _) if far => Some(peer),
        _ => None,
    });
    // Many strangers say something, and then the one who is known does.
    let Address::Tcp(at) = address else { panic!() };
    let mut bytes = Vec::new();
    fetched(0).encode(&mut bytes).unwrap();
    let mut strangers: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(at).unwrap()).collect();
    while pair.far.links() < 21 {
        turn(&mut pair.far);
    }
    strangers.iter_mut().for_each(|stranger| stranger.write_all(&bytes).unwrap());
    pair.near.send(pair.peer, &fetched(0)).unwrap();
    pair.near.flush();
    std::thread::sleep(Duration::from_millis(50));
    assert!(matches!(turn(&mut pair.far), Some(Heard::Frame(peer, _)) if peer == first));
    let mut rest = 0;
    while rest < 20 {
        rest += usize::from(matches!(turn(&mut pair.far), Some(Heard::Frame(..))));
    }
}

#[test]
fn strangers_are_heard_while_those_who_are_known_never_stop() {
    let (far, address) = listening(Limits::default());
    let mut known = Net::new(Limits::default()).unwrap();
    let peer = known.connect(&address).unwrap();
    let mut pair = Pair { near: known, far, peer };
    (0..20_000).for_each(|_| pair.near.send(peer, &fetched(0)).unwrap());
    let first = until(&mut pair, |_, far, heard| match heard {
        Heard::Frame(peer, _) if far => Some(peer),
        _ => None,
    });
    let Address::Tcp(at) = address else { panic!() };
    let mut bytes = Vec::new();
    fetched(0).encode(&mut bytes).unwrap();
    TcpStream::connect(at).unwrap().write_all(&bytes).unwrap();
    let mut others = 0;
    until(&mut pair, |_, far, heard| {
        others += usize::from(far && matches!(heard, Heard::Frame(peer, _) if peer == first));
        matches!(heard, Heard::Frame(peer, _) if far && peer != first).then_some(())
    });
    assert!(others < 19_000, "{others} of those who are known came first");
}

#[test]
fn a_handshake_that_somebody_begins_and_leaves_ends_by_itself() {
    let limits = Limits { stall_ms: 50, ..Authority::new().knows_itself() };
    let (mut far, address) = listening(limits.clone());
    let Address::Tcp(at) = address else { panic!() };
    let mut silent = TcpStream::connect(at).unwrap();
    silent.write_all(&[22, 3, 1, 2, 0]).unwrap();
    let late = Instant::now() + Duration::from_secs(60);
    while !matches!(turn(&mut far), Some(Heard::Closed(_))) {
        assert!(Instant::now() < late);
        far.end_stalled();
    }
    // And who listens, takes the connection and says nothing.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = Net::new(limits).unwrap();
    let peer = near.connect(&Address::Tcp(mute.local_addr().unwrap())).unwrap();
    near.send(peer, &fetched(0)).unwrap();
    while !matches!(turn(&mut near), Some(Heard::Closed(_))) {
        assert!(Instant::now() < late);
        near.end_stalled();
    }
}

#[test]
fn who_takes_little_of_what_a_socket_holds_is_not_ended() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = Net::new(Limits { stall_ms: 1000, ..Limits::default() }).unwrap();
    let peer = near.connect(&Address::Tcp(listener.local_addr().unwrap())).unwrap();
    let from = value(12 << 20);
    near.send_value(peer, &fetched(from.len()), spans(&from, from.len()), Some(1)).unwrap();
    let mut slow = listener.accept().unwrap().0;
    slow.set_nonblocking(true).unwrap();
    let mut few = [0; 4 << 10];
    // The socket takes more when a third of what it holds has left: some hundred times as much, and after more than that second.
    let mut left = from.len();
    while left > 9 << 20 {
        left -= slow.read(&mut few).unwrap_or(0);
        std::thread::sleep(Duration::from_millis(4));
        assert!(!matches!(turn(&mut near), Some(Heard::Closed(_))), "{left} bytes are left");
        near.end_stalled();
    }
    // Who takes nothing is.
    let late = Instant::now() + Duration::from_secs(60);
    while !matches!(turn(&mut near), Some(Heard::Closed(_))) {
        assert!(Instant::now() < late);
        near.end_stalled();
    }
}

#[test]
fn garbage_ends_a_connection_and_no_other() {
    let (far, address) = listening(Limits::default());
    let Address::Tcp(at) = address.clone() else { panic!() };
    let mut near = Net::new(Limits::default()).unwrap();
    let peer = near.connect(&address).unwrap();
    let mut pair = Pair { near, far, peer };
    let mut long = fetched(0);
    let mut bytes = Vec::new();
    long.request = 1;
    long.encode(&mut bytes).unwrap();
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut version = bytes.clone();
    version[3] = 99;
    for bad in [b"GET / HTTP/1.1\r\nHost: example\r\n\r\n___________".to_vec(), vec![0; 64], bytes, version] {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(&bad).unwrap();
        until(&mut pair, |_, far, heard| matches!(heard, Heard::Closed(_) if far).then_some(()));
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() > 32, "it is said why");
    }
    pair.near.send(pair.peer, &fetched(0)).unwrap();
    until(&mut pair, |_, far, heard| matches!(heard, Heard::Frame(..) if far).then_some(()));
}

#[test]
fn half_a_message_and_a_reader_who_does_not_read_end_by_themselves() {
    let limits = Limits { stall_ms: 50, queued: 1 << 20, ..Limits::default() };
    let (far, address) = listening(limits.clone());
    let Address::Tcp(at) = address.clone() else { panic!() };
    let near = Net::new(limits).unwrap();
    let mut pair = Pair { near, far, peer: Peer(0) };
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(&[0x4e]).unwrap();
    let late = Instant::now() + Duration::from_secs(60);
    let mut closed = false;
    while !closed {
        assert!(Instant::now() < late);
        closed = matches!(turn(&mut pair.far), Some(Heard::Closed(_)));
        pair.far.end_stalled();
    }
    let peer = pair.near.connect(&address).unwrap();
    let from = value(64 << 10);
    let mut sent = 0;
    while pair.near.links() > 0 {
        pair.near.send_value(peer, &fetched(from.len()), spans(&from, from.len()), None).unwrap();
        turn(&mut pair.near);
        sent += 1;
        assert!(sent < 10_000, "it never ends");
    }
}

#[test]
fn all_together_hold_no_more_than_they_may_and_whoever_holds_most_is_let_go() {
    let limits = Limits { held: 8 << 20, ..Limits::default() };
    let (_far, address) = listening(Limits::default());
    let mut near = Net::new(limits).unwrap();
    let from = value(64 << 10);
    // None of them reads, and none of them alone is sent too much.
    let peers: Vec<Peer> = (0..8).map(|_| near.connect(&address).unwrap()).collect();
    let (mut closed, mut sent) = (Vec::new(), 0u64);
    while closed.is_empty() {
        for (n, peer) in peers.iter().enumerate() {
            for _ in 0..=usize::from(n == 3) {
                near.send_value(*peer, &fetched(from.len()), spans(&from, from.len()), None).unwrap();
            }
        }
        assert!(near.held <= 8 << 20, "{} bytes are held", near.held);
        while let Some(heard) = turn(&mut near) {
            if let Heard::Closed(peer) = heard {
                closed.push(peer);
            }
        }
        sent += 1;
        assert!(sent < 10_000, "nobody is let go");
    }
    assert_eq!(closed[0], peers[3], "it had been sent most");
    closed.iter().chain(&peers).for_each(|peer| near.close(*peer));
    assert_eq!(near.held, 0);
    // The same of halves of messages.
    let (mut far, address) = listening(Limits { held: 100_000, ..Limits::default() });
    let Address::Tcp(at) = address else { panic!() };
    let mut head = Vec::new();
    Frame::telling(Find { keys: vec![ObjectKey::new(b"", &[7; 200]).unwrap(); 200], missed: Vec::new() })
        .encode(&mut head)
        .unwrap();
    let late = Instant::now() + Duration::from_secs(60);
    let mut streams = Vec::new();
    let mut ended = false;
    while !ended {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(&head[..head.len() / 2]).unwrap();
        streams.push(stream);
        for _ in 0..4 {
            ended |= matches!(turn(&mut far), Some(Heard::Closed(_)));
            assert!(far.held <= 100_000 + (64 << 10), "{} bytes are held", far.held);
        }
        assert!(Instant::now() < late && streams.len() < 100, "nobody is let go");
    }
}

#[test]
fn no_more_connect_than_may() {
    let limits = Limits { links: 2, ..Limits::default() };
    let (mut far, address) = listening(limits);
    let Address::Tcp(at) = address else { panic!() };
    let streams: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(at).unwrap()).collect();
    let late = Instant::now() + Duration::from_secs(30);
    let mut ended = 0;
    for mut stream in &streams {
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut byte = [0];
        for _ in 0..20 {
            turn(&mut far);
        }
        if matches!(stream.read(&mut byte), Ok(0)) {
            ended += 1;
        }
        assert!(Instant::now() < late);
    }
    assert_eq!((ended, far.links()), (3, 2));
}

/// Goes on until nothing happens any more.
fn settle(net: &mut Net) {
    for _ in 0..20 {
        turn(net);
    }
}

fn is_over(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    matches!(stream.read(&mut [0; 64]), Ok(0))
}

#[test]
fn who_says_nothing_makes_room_for_others_and_who_has_said_something_stays() {
    let moment = Duration::from_millis(MOMENT + 50);
    for token in ["", "open sesame"] {
        let limits = Limits { strangers: 4, token: token.into(), ..Limits::default() };
        let mut pair = pair(&limits);
        let Address::Tcp(at) = pair.far.listeners[0].address().unwrap() else { panic!("a port") };
        pair.near.send(pair.peer, &fetched(0)).unwrap();
        until(&mut pair, |_, far, heard| matches!(heard, Heard::Frame(..) if far).then_some(()));
        assert!(pair.far.strangers.is_empty());
        let connect = |n: usize| (0..n).map(|_| TcpStream::connect(at).unwrap()).collect::<Vec<_>>();
        // More than that stay, if all of them have just come.
        let mut old = connect(6);
        settle(&mut pair.far);
        assert_eq!(pair.far.strangers.len(), 6);
        // Some begin to say something, and one has said it: nobody has looked at that yet.
        std::thread::sleep(moment);
        old[1].write_all(&[0x4e]).unwrap();
        settle(&mut pair.far);
        let (mut bytes, hello) = (Vec::new(), Hello { token: token.into() });
        Frame::telling(hello).encode(&mut bytes).unwrap();
        old[0].write_all(&bytes).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let new = connect(3);
        pair.far.now = now_ms();
        pair.far.accept(0);
        settle(&mut pair.far);
        let gone: Vec<bool> = old.iter().map(is_over).collect();
        assert_eq!(gone, [false, true, true, true, false, false], "the oldest");
        assert!(!new.iter().any(is_over));
        assert_eq!(pair.far.strangers.len(), 5, "one has said who it is");
        // Whoever connects among them and says something is heard, and those who had are still there.
        let peer = pair.near.connect(&Address::Tcp(at)).unwrap();
        for peer in [peer, pair.peer] {
            pair.near.send(peer, &fetched(0)).unwrap();
            until(&mut pair, |_, far, heard| matches!(heard, Heard::Frame(..) if far).then_some(()));
        }
        // Nothing is remembered of those who have gone.
        drop((old, new));
        let late = Instant::now() + Duration::from_secs(30);
        while pair.far.links() > 2 {
            turn(&mut pair.far);
            assert!(Instant::now() < late);
        }
        assert!(pair.far.strangers.is_empty());
    }
}

#[test]
fn who_never_says_anything_is_not_kept() {
    let (mut far, address) = listening(Limits { stall_ms: 50, ..Limits::default() });
    let Address::Tcp(at) = address else { panic!("a port") };
    let _silent = TcpStream::connect(at).unwrap();
    let late = Instant::now() + Duration::from_secs(30);
    while !matches!(turn(&mut far), Some(Heard::Closed(_))) {
        far.end_stalled();
        assert!(Instant::now() < late);
    }
}

#[test]
fn who_has_connected_elsewhere_is_noticed_as_well_when_its_machine_is_gone() {
    let mut net = Net::new(Limits::default()).unwrap();
    let elsewhere = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let _near = TcpStream::connect(elsewhere.local_addr().unwrap()).unwrap();
    let (stream, _) = elsewhere.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    net.adopt_from(stream.into(), None);
    let link = net.links.values().next().unwrap();
    let get = |level, option| sys::get(&link.channel, level, option);
    assert_eq!(get(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
    assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), 10_000);
}

#[test]
fn a_forked_child_does_not_keep_the_port() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("socket"), dir.path().join("other"));
    for address in [loopback(), Address::Unix(path)] {
        let listener = Listener::bind(&address).unwrap();
        let at = listener.address().unwrap();
        let _child = sys::Child::fork();
        // As when the process has died: its path is still there.
        if let Address::Unix(path) = &at {
            std::fs::hard_link(path, &other).unwrap();
        }
        drop(listener);
        let connected = match &at {
            Address::Tcp(at) => TcpStream::connect_timeout(at, Duration::from_secs(10)).map(drop),
            Address::Unix(_) => std::os::unix::net::UnixStream::connect(&other).map(drop),
        };
        assert_eq!(connected.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused, "{at}");
    }
}

#[test]
fn a_key_is_what_it_was_also_over_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let dead = Address::Unix(dir.path().join("dead"));
    // A socket that was left behind is not in the way.
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("dead")).unwrap());
    let mut far = Net::new(Limits::default()).unwrap();
    far.listen(Listener::bind(&dead).unwrap()).unwrap();
    let mut near = Net::new(Limits::default()).unwrap();
    let peer = near.connect(&dead).unwrap();
    let find = Frame::telling(Find { keys: vec![ObjectKey::new(b"a", b"b").unwrap()], missed: vec![] });
    near.send(peer, &find).unwrap();
    let mut pair = Pair { near, far, peer };
    until(&mut pair, |_, _, heard| match heard {
        Heard::Frame(_, frame) => (frame == find).then_some(()),
        other => panic!("{other:?}"),
    });
}

#[test]
fn hundreds_connect_at_once_before_the_first_is_taken() {
    let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let n = 500.min(allowed.trim().parse().unwrap());
    let listener = Listener::bind(&loopback()).unwrap();
    let Address::Tcp(at) = listener.address().unwrap() else { panic!("a port") };
    // Who finds no room is not told so, and tries again for a minute and more.
    let all: Vec<_> = (0..n).map(|_| TcpStream::connect_timeout(&at, Duration::from_secs(30)).unwrap()).collect();
    let taken = (0..n).filter(|_| listener.accept().unwrap().is_some()).count();
    assert_eq!((all.len(), taken), (n, n));
}
