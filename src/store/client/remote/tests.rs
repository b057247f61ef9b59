//! A client against a master that dies, is silent, leaves, or answers late.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use super::*;
use crate::mem::HeapKind;
use crate::store::client::{Store, Terms};
use crate::store::types::Opened;
use crate::store::wire::encode_reply;
use crate::world::{Config, Hosting, Master, World};
use std::sync::mpsc;

fn world(dir: &std::path::Path) -> (Master, World) {
    let config = || Config {
        name: "t".into(),
        dir: Some(dir.to_path_buf()),
        rank: Some(0),
        world_size: 1,
        min_ranks: 0,
        heap_kind: HeapKind::Host,
        heap_bytes: 1 << 20,
        huge_pages: false,
        populate: false,
        import: None,
        device: None,
        device_rank: None,
        words_per_rank: 8,
        hosting: Hosting::Elsewhere,
        deadline: Deadline::after(Duration::from_secs(60)),
        drain_ms: 0,
        service_cpu: None,
        give_up: Arc::default(),
    };
    let master = Master::open(&config()).unwrap();
    (master, World::join(config()).unwrap())
}

/// Of a store in such a world.
fn params() -> Params {
    let config = crate::store::config::Config { page_bytes: 4096, ..crate::store::config::Config::default() };
    config.params(1, 1 << 20).unwrap()
}

/// The next packet on a connection.
fn hear(link: &mut Link) -> Vec<u8> {
    let mut buffer = vec![0; MAX_PACKET];
    let wait = |link: &Link| {
        rpc::poll(&[link.as_fd()], Duration::from_secs(60));
        true
    };
    let heard = caller::next(link, &mut buffer, wait).unwrap();
    heard.map_or_else(Vec::new, |(len, _)| buffer[..len].to_vec())
}

/// Attaches to a master that enters the client, and dies before (`answers`: after) the client could name its store.
/// Gives whether the client is one, and the store that it names.
fn attach_to_one_who_dies(answers: bool) -> (bool, u64) {
    let dir = tempfile::tempdir().unwrap();
    let (_master, world) = world(dir.path());
    let (member, params) = (world.membership("test").unwrap(), params());
    let place = member.place("store");
    let lock = place.try_lock().unwrap().unwrap();
    let listener = lock.listen().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut link = loop {
                rpc::poll(&[listener.as_fd()], Duration::from_secs(60));
                if let Some(link) = listener.accept().unwrap() {
                    break link;
                }
            };
            assert!(!hear(&mut link).is_empty());
            let map = Map::create(&params, &Deadline::after(Duration::from_secs(60))).unwrap();
            let (control, words) = map.client_fds().unwrap();
            let mut reply = Vec::new();
            encode_reply(&[Item::ok([0, map.store_id(), 1])], &mut reply);
            link.send(&reply, &[control.as_fd(), words.as_fd()]).unwrap();
            if answers {
                assert!(!hear(&mut link).is_empty());
                encode_reply(&[Item::ok([0; 3])], &mut reply);
                link.send(&reply, &[]).unwrap();
                hear(&mut link);
            }
        });
        let deadline = Deadline::after(Duration::from_secs(60));
        let met =
            attach(&place, (&member, Role::Program), &params, || 0, &deadline, &mut Buffers::new().unwrap()).unwrap();
        (met.is_some(), member.store_of(0))
    })
}

/// A client that was entered by a master that died before the client had named its store is none: the next master finds
/// no name, and begins with empty heaps.
#[test]
fn who_has_not_named_its_store_before_the_master_died_is_no_client() {
    assert_eq!(attach_to_one_who_dies(false), (false, 0));
    let (is_client, named) = attach_to_one_who_dies(true);
    assert!(is_client && named != 0, "control: of one that lives on it is");
}

/// Which store others are clients of is asked when the master is known that will hear it, not before.
#[test]
fn what_is_said_to_a_master_is_not_older_than_the_master() {
    let dir = tempfile::tempdir().unwrap();
    let (_master, world) = world(dir.path());
    let (member, params) = (world.membership("test").unwrap(), params());
    let asked = Cell::new(false);
    let expected = || {
        asked.set(true);
        0
    };
    let deadline = Deadline::after(Duration::from_secs(60));
    let met = attach(
        &member.place("store"),
        (&member, Role::Program),
        &params,
        expected,
        &deadline,
        &mut Buffers::new().unwrap(),
    );
    assert!(met.unwrap().is_none() && !asked.get(), "nobody serves, so nobody was asked for");
}

/// What a master of the tests does with the calls on one connection.
#[derive(Clone, Copy)]
enum Manner {
    Answers,
    AnswersAfter(Duration),
    /// Says nothing until the connection is closed.
    IsSilent,
    /// Closes the connection when a call comes.
    Leaves,
}

/// Serves a store as a master that treats its connections one after the other as told, the last way from then on, until it is
/// over. `said` hears which plans each of them began with.
fn serve(listener: &rpc::Listener, map: &Map, manners: &[Manner], over: &AtomicBool, said: &mpsc::Sender<Vec<u64>>) {
    let (mut reply, mut buffer) = (Vec::new(), vec![0; MAX_PACKET]);
    let mut served: Option<(Link, Manner)> = None;
    let last = *manners.last().unwrap();
    let mut manners = manners.iter().copied();
    while !over.load(SeqCst) {
        let fds = [Some(listener.as_fd()), served.as_ref().map(|(link, _)| link.as_fd())];
        rpc::poll(&fds.into_iter().flatten().collect::<Vec<_>>(), Duration::from_millis(20));
        if let Some(mut link) = listener.accept().unwrap() {
            let packet = hear(&mut link);
            if packet.is_empty() {
                // Somebody who only looked whether anybody serves.
                continue;
            }
            let Request::Hello(hello) = Request::decode(&packet).unwrap() else { panic!("no introduction") };
            let (control, words) = map.client_fds().unwrap();
            encode_reply(&[Item::ok([0, map.store_id(), 1])], &mut reply);
            link.send(&reply, &[control.as_fd(), words.as_fd()]).unwrap();
            if hello.holds {
                said.send(hello.kept).unwrap();
            } else {
                // The first client makes sure that it was entered.
                hear(&mut link);
                link.send(&reply, &[]).unwrap();
            }
            let manner = manners.next().unwrap_or(last);
            served = Some((link, manner));
        }
        let Some((link, manner)) = &mut served else { continue };
        match (link.receive(&mut buffer), *manner) {
            (Ok(rpc::Packet::Empty), _) | (Ok(rpc::Packet::Data(..)), Manner::IsSilent) => continue,
            (Ok(rpc::Packet::End) | Err(_), _) | (_, Manner::Leaves) => {
                served = None;
                continue;
            }
            (_, Manner::AnswersAfter(time)) => std::thread::sleep(time),
            (_, Manner::Answers) => {}
        }
        encode_reply(&[Item::ok([0; 3])], &mut reply);
        link.send(&reply, &[]).unwrap();
    }
}

fn new_map() -> Map {
    Map::create(&params(), &Deadline::after(Duration::from_secs(60))).unwrap()
}

/// A client of such a master. `body` gets the connection and a way to hear which plans each of them began with.
fn with_master(manners: &[Manner], body: impl FnOnce(&Remote, &Plans, &mpsc::Receiver<Vec<u64>>)) {
    let dir = tempfile::tempdir().unwrap();
    let (_master, world) = world(dir.path());
    let (member, params) = (world.membership("test").unwrap(), params());
    let place = member.place("store");
    let lock = place.try_lock().unwrap().unwrap();
    let listener = lock.listen().unwrap();
    let over = AtomicBool::new(false);
    let (said, heard) = mpsc::channel();
    std::thread::scope(|scope| {
        let over = &over;
        scope.spawn(move || serve(&listener, &new_map(), manners, over, &said));
        let deadline = Deadline::after(Duration::from_secs(60));
        let mut buffers = Buffers::new().unwrap();
        let (link, client, map) =
            attach(&place, (&member, Role::Program), &params, || 0, &deadline, &mut buffers).unwrap().unwrap();
        let plans = Arc::new(Plans::default());
        let limit = Duration::from_secs(60);
        let remote = Remote::new(
            link,
            buffers,
            place.clone(),
            (member.clone(), Role::Program),
            Arc::new(map),
            client,
            (Arc::clone(&plans), Arc::default()),
            limit,
        );
        let remote = remote.unwrap();
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&remote, &plans, &heard)));
        over.store(true, SeqCst);
        drop(remote);
        passed.unwrap();
    });
}

fn call(remote: &Remote, go_on: impl Fn() -> Result<()>) -> std::result::Result<(), i32> {
    remote.call_within(Duration::from_secs(60), &Request::Confirm, go_on, |_| ()).map(|_| ()).map_err(|e| e.status)
}

fn cancelled() -> Result<()> {
    Err(Error::new(NMC_ERR_CANCELLED, "enough"))
}

/// One call gives up, and with it the connection that all share: the others go on with the next one. Control: after the
/// master itself has closed it they hear that it is away.
#[test]
fn a_call_that_gives_up_fails_no_other() {
    for (first, status) in [(Manner::IsSilent, NMC_ERR_CANCELLED), (Manner::Leaves, NMC_ERR_UNAVAILABLE)] {
        with_master(&[first, Manner::Answers], |remote, _, _| {
            assert_eq!(call(remote, cancelled), Err(status));
            let next = call(remote, || Ok(()));
            assert!(next == Ok(()) || status == NMC_ERR_UNAVAILABLE, "{next:?}");
        });
    }
}

/// Calls that wait for one that the master does not answer wait for the master, too.
#[test]
fn all_calls_that_a_silent_master_keeps_waiting_time_out() {
    with_master(&[Manner::IsSilent], |remote, _, _| {
        let limit = Duration::from_millis(200);
        let status = || remote.call_within(limit, &Request::Confirm, || Ok(()), |_| ()).unwrap_err().status;
        std::thread::scope(|scope| {
            let calls = [(); 4].map(|()| scope.spawn(status));
            assert_eq!(calls.map(|call| call.join().unwrap()), [NMC_ERR_TIMEOUT; 4]);
        });
    });
}

/// A call that is to give up still takes an answer that comes soon: nothing is done that nobody knows of.
#[test]
fn a_call_that_gives_up_takes_an_answer_that_comes_soon() {
    with_master(&[Manner::AnswersAfter(Duration::from_millis(30))], |remote, _, _| {
        // However late the answer is on a busy machine: the connection holds if it came in time, and only then.
        let [first, second] = [call(remote, cancelled), call(remote, || Ok(()))];
        assert!(first == Ok(()) || first == Err(NMC_ERR_CANCELLED), "{first:?}");
        assert_eq!(second, Ok(()));
    });
}

/// A master that may not have heard that a plan has ended hears which ones have not.
#[test]
fn the_master_hears_again_which_plans_are_open() {
    with_master(&[Manner::Answers], |remote, plans, heard| {
        for epoch in [7, 8] {
            let plan = Opened { index: 0, epoch, plan_id: epoch };
            assert!(plans.add(Terms { plan, key_hash: 0, bytes: 0, metadata: 0, trace: 0 }));
        }
        plans.remove(7);
        remote.renew();
        assert_eq!(heard.recv_timeout(Duration::from_secs(60)).unwrap(), [8]);
        assert_eq!(call(remote, || Ok(())), Ok(()));
    });
}

/// A whole client of a master that answers introductions only. `body` gets the store, and its memory as the master has it.
fn with_silent_owner(body: impl FnOnce(&Store, &Map)) {
    let dir = tempfile::tempdir().unwrap();
    let (_master, world) = world(dir.path());
    let member = world.membership("test").unwrap();
    let lock = member.place("store").try_lock().unwrap().unwrap();
    let (listener, map) = (lock.listen().unwrap(), new_map());
    map.view().heap(0).unwrap().id.store(member.heaps()[0].id, SeqCst);
    let over = AtomicBool::new(false);
    let (said, _heard) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&listener, &map, &[Manner::IsSilent], &over, &said));
        let config = crate::store::config::Config {
            page_bytes: 4096,
            call_ms: 60_000,
            ..crate::store::config::Config::default()
        };
        let store = Store::attach(&world, &config).unwrap();
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&store, &map)));
        drop(store);
        over.store(true, SeqCst);
        passed.unwrap();
    });
}

/// The tier is opened by an owner that does not answer from then on.
fn open_tier(map: &Map, id: u64) -> Instant {
    map.view().header().disk.store(id, SeqCst);
    Instant::now()
}

/// Far less than the time of a call, and than 50 waits of a read.
const SOON: Duration = Duration::from_secs(20);

/// A read waits a moment for the disk, and is the only one that does. Control: a call that asks the owner waits for its time.
#[test]
fn reads_do_not_wait_for_an_owner_that_does_not_answer() {
    with_silent_owner(|store, map| {
        let start = open_tier(map, 77);
        for _ in 0..50 {
            assert_eq!(store.exists(b"k").unwrap_err().status, NMC_ERR_UNAVAILABLE);
        }
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        let start = open_tier(map, 78);
        let patience = Deadline::after(Duration::from_millis(50));
        assert_eq!(store.wait_ready(b"k", None, false, &patience).unwrap_err().status, NMC_ERR_UNAVAILABLE);
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        let asked = std::thread::scope(|scope| {
            let call = scope.spawn(|| store.call_disk(0, [0; 2], &[]).unwrap_err().status);
            std::thread::sleep(Duration::from_secs(2));
            let waits = !call.is_finished();
            store.cancel();
            (waits, call.join().unwrap())
        });
        assert_eq!(asked, (true, NMC_ERR_CANCELLED));
    });
}

/// What ends a wait ends that of a read for the disk, too.
#[test]
fn a_read_that_waits_for_the_disk_can_be_ended() {
    for close in [false, true] {
        with_silent_owner(|store, map| {
            std::thread::scope(|scope| {
                let read = scope.spawn(|| {
                    open_tier(map, 77);
                    store.exists(b"k").unwrap_err().status
                });
                while !read.is_finished() {
                    if close {
                        store.close()
                    } else {
                        store.cancel()
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(read.join().unwrap(), NMC_ERR_CANCELLED);
            });
        });
    }
}
