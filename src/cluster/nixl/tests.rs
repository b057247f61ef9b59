//! Two movers in one process, with the real library: where it is not installed these tests say so and do nothing. What needs no bytes to be moved is
//! tested with an agent that moves none.

use super::*;
use crate::cuda;
use std::sync::mpsc::{Receiver, channel};

fn settings() -> Settings {
    Settings { loopback: true, devices: String::new(), drain: Duration::from_millis(100), unfenced: false }
}

fn a_write(ticket: u64) -> Command {
    Command::Write(Write { ticket, from: Vec::new(), stage: None, to: 1, into: Vec::new() })
}

#[test]
fn a_renewal_waits_for_nothing_and_what_was_to_be_written_before_it_is_not() {
    let mut all = Commands::default();
    let register = Command::Register(3, Span::of_test(8, 8), Medium::Host, sync_channel(1).0);
    [register, a_write(1), Command::Part(5)].into_iter().for_each(|command| all.others.push(command));
    all.renew(1);
    all.others.push(a_write(2));
    all.renew(2);
    all.others.push(a_write(3));
    let mut order = Vec::new();
    while let Some(command) = all.next() {
        order.push(match command {
            Command::Renew(number) => format!("renew {number}"),
            Command::Write(write) => format!("write {}", write.ticket),
            Command::Register(number, ..) => format!("register {number}"),
            Command::Part(id) => format!("part {id}"),
            _ => panic!(),
        });
    }
    assert_eq!(order, ["renew 1", "renew 2", "register 3", "part 5", "write 3"]);
    assert!(all.is_empty() && !all.take_out(|_| true));
}

struct Rig {
    mover: Mover,
    news: Receiver<News>,
    memory: Vec<u8>,
}

impl Rig {
    fn new(bytes: usize, fill: u8) -> Option<Self> {
        let (to, news) = channel();
        let to = Mutex::new(to);
        let mover = match Mover::start(settings(), move |news| drop(to.lock().send(news))) {
            Ok(mover) => mover,
            Err(error) => {
                eprintln!("skipped: {}", error.message);
                return None;
            }
        };
        let rig = Self { mover, news, memory: vec![fill; bytes] };
        rig.mover.register(1, rig.span(), Medium::Host).unwrap();
        Some(rig)
    }

    fn span(&self) -> Span {
        Span::of_test(self.memory.as_ptr() as usize, self.memory.len())
    }

    fn said(&self) -> wire::Mover {
        self.mover.current().unwrap().said.clone()
    }

    fn wait<R>(&self, mut which: impl FnMut(News) -> Option<R>) -> R {
        loop {
            let news = self.news.recv_timeout(Duration::from_secs(20)).unwrap();
            if let Some(found) = which(news) {
                return found;
            }
        }
    }

    fn meet(&self, other: &Rig) -> bool {
        let said = other.said();
        let id = said.id;
        self.mover.meet(said);
        self.wait(|news| match news {
            News::Met(of, good) if of == id => Some(good),
            _ => None,
        })
    }

    fn write(&self, ticket: u64, to: u64, offset: u64, length: usize) -> How {
        let from = vec![self.span().up_to(length)];
        let into = vec![Extent { region: 1, offset, length: length as u64 }];
        self.mover.write(Write { ticket, from, stage: None, to, into });
        self.wait(|news| match news {
            News::Moved(of, how) if of == ticket => Some(how),
            _ => None,
        })
    }
}

#[test]
fn bytes_arrive_and_none_is_sent_where_they_may_not() {
    let (Some(a), Some(b)) = (Rig::new(1 << 20, 7), Rig::new(1 << 20, 0)) else { return };
    let id = b.said().id;
    assert_eq!(a.write(1, id, 0, 4096), How::Unsent, "nobody is known");
    assert!(a.meet(&b));
    assert_eq!(a.write(2, id, 4096, 1 << 19), How::Whole);
    assert!(b.memory[4096..4096 + (1 << 19)].iter().all(|byte| *byte == 7));
    assert!(
        b.memory[..4096].iter().all(|byte| *byte == 0) && b.memory[4096 + (1 << 19)..].iter().all(|byte| *byte == 0)
    );
    assert_eq!(a.write(3, id, 1 << 20, 4096), How::Unsent, "outside of the region");
    a.mover.part(id);
    assert_eq!(a.write(4, id, 0, 4096), How::Unsent, "it was said that nobody is there");
}

#[test]
fn a_renewed_mover_is_another_one() {
    let (Some(a), Some(b)) = (Rig::new(1 << 20, 7), Rig::new(1 << 20, 0)) else { return };
    let before = b.said().id;
    assert!(a.meet(&b));
    assert_eq!(a.write(1, before, 0, 4096), How::Whole);
    b.mover.renew(5);
    assert!(b.mover.current().is_none_or(|current| current.number == 5));
    b.wait(|news| (news == News::Renewed(5)).then_some(()));
    b.wait(|news| (news == News::Card).then_some(()));
    let current = b.mover.current().unwrap();
    assert!(current.number == 5 && current.said.id != before && current.said.regions.len() == 1);
    assert_ne!(a.write(2, before, 8192, 4096), How::Whole);
    assert!(a.meet(&b));
    assert_eq!(a.write(3, current.said.id, 8192, 4096), How::Whole);
    // It knows others as before.
    assert!(b.meet(&a));
    b.mover.renew(6);
    b.wait(|news| (news == News::Card).then_some(()));
    assert_eq!(b.write(4, a.said().id, 0, 4096), How::Whole);
}

#[test]
fn memory_that_is_registered_later_can_be_written_to() {
    let (Some(a), Some(b)) = (Rig::new(1 << 16, 7), Rig::new(1 << 16, 0)) else { return };
    assert!(a.meet(&b));
    let more = vec![0u8; 1 << 16];
    b.mover.register(2, Span::of_test(more.as_ptr() as usize, more.len()), Medium::Host).unwrap();
    assert!(a.meet(&b));
    let into = vec![Extent { region: 2, offset: 0, length: 1 << 16 }];
    a.mover.write(Write { ticket: 9, from: vec![a.span()], stage: None, to: b.said().id, into });
    assert_eq!(a.wait(|news| if let News::Moved(9, how) = news { Some(how) } else { None }), How::Whole);
    assert!(more.iter().all(|byte| *byte == 7));
    b.mover.unregister(2).unwrap();
    assert_eq!(b.said().regions.len(), 1);
}

#[test]
fn memory_of_a_gpu_needs_ways_that_end_with_their_agent() {
    for (tls, good) in [
        (None, true),
        (Some("^sm"), false),
        (Some("^sm,cuda_ipc"), true),
        (Some("tcp,cuda_copy"), true),
        (Some("tcp,cuda_ipc"), false),
        (Some("tcp,cuda"), false),
        (Some("^cuda,sm"), true),
    ] {
        let get = |name: &str| tls.filter(|_| name == "UCX_TLS").map(str::to_owned);
        assert_eq!(check_environment_for_gpus(get).is_ok(), good, "{tls:?}");
    }
}

#[test]
fn what_the_environment_says_to_ucx_must_not_open_what_is_closed_here() {
    let check = |tls: Option<&str>, devices: Option<&str>, loopback| {
        check_environment(loopback, |name| match name {
            "UCX_TLS" => tls.map(Into::into),
            _ => devices.map(Into::into),
        })
        .is_ok()
    };
    assert!(check(None, None, true) && check(Some("tcp"), Some("lo"), true) && check(Some("^sm,ib"), None, true));
    for bad in ["all", "tcp,cma", "sm", "tcp,shm", "^ib", "^cma", "xpmem,tcp"] {
        assert!(!check(Some(bad), None, false), "{bad}");
    }
    assert!(!check(None, Some("eth0"), true) && check(None, Some("eth0"), false));
}

/// A mover without a thread, and what it tells.
fn without_thread() -> (Mover, Receiver<News>) {
    let (to, news) = channel();
    let to = Mutex::new(to);
    let tell = Box::new(move |news| drop(to.lock().send(news)));
    let (queue, wake, current) = (Mutex::default(), Condvar::new(), Mutex::new(None));
    (Mover { shared: Arc::new(Shared { queue, wake, current, moved: AtomicU64::new(0), tell }), thread: None }, news)
}

#[test]
fn memory_that_others_cannot_be_told_of_is_not_registered() {
    let (mover, news) = without_thread();
    let mut running = Running::new(Arc::clone(&mover.shared), settings());
    running.agent = Some(Agent::fake(Card::MAX / 3 + 1));
    let memory = [0u8; 64];
    let span = |n: usize| Span::of_test(memory.as_ptr() as usize + n, 1);
    for number in 0..2 {
        running.register(number, span(number as usize), Medium::Host).unwrap();
    }
    let before = mover.current().unwrap().said.clone();
    news.try_iter().for_each(drop);
    let error = running.register(2, span(2), Medium::Host).unwrap_err();
    assert_eq!(error.status, crate::base::status::NMC_ERR_LIMIT);
    // Nothing is left of it: else no agent could be made any more.
    assert_eq!(running.memory.keys().copied().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(running.agent.as_ref().map(Agent::known), Some(2));
    assert_eq!(mover.current().unwrap().said.regions, before.regions);
    assert!(running.memory.values().all(|memory| memory.registered.is_some()));
    // There is room for it when another has gone.
    running.unregister(0).unwrap();
    running.register(2, span(2), Medium::Host).unwrap();
    let regions: Vec<u32> = mover.current().unwrap().said.regions.iter().map(|region| region.number).collect();
    assert_eq!(regions, [1, 2]);
}

#[test]
fn what_nobody_waits_for_any_more_does_not_come_to_be_registered() {
    let (mover, _news) = without_thread();
    let memory = [0u8; 8];
    let span = Span::of_test(memory.as_ptr() as usize, memory.len());
    let waiting = |mover: &Mover| {
        let queue = mover.shared.queue.lock();
        let name = |command: &Command| match command {
            Command::Register(number, ..) => ("register", *number),
            Command::Unregister(number, _) => ("unregister", *number),
            _ => ("", 0),
        };
        queue.others.iter().map(name).collect::<Vec<_>>()
    };
    for number in 1..=3 {
        mover.say(Command::Register(number, span, Medium::Host, sync_channel(1).0));
    }
    mover.take_back(2);
    assert_eq!(waiting(&mover), [("register", 1), ("register", 3)]);
    // One that has begun is undone after it.
    mover.shared.queue.lock().others.pop();
    mover.take_back(1);
    assert_eq!(waiting(&mover), [("register", 3), ("unregister", 1)]);
}

/// Numbers that are a value in memory of a device.
fn numbers(seed: u64) -> Vec<u64> {
    (0..1 << 17).map(|n: u64| (n ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

#[test]
fn bytes_move_from_and_to_memory_of_a_gpu() {
    let device = match cuda::require().and_then(|()| cuda::Device::open(-1)) {
        Ok(device) => device,
        Err(error) => return eprintln!("skipped: {}", error.message),
    };
    let bytes = 1 << 20;
    let (Some(a), Some(b)) = (Rig::new(bytes, 7), Rig::new(bytes, 0)) else { return };
    let on_gpu = |rig: &Rig, seed| {
        let table = cuda::DeviceTable::new(&device, &numbers(seed)).unwrap();
        let span = Span::of_test(usize::try_from(table.ptr()).unwrap(), bytes);
        rig.mover.register(2, span, Medium::Device(u32::try_from(device.ordinal()).unwrap())).unwrap();
        (table, span)
    };
    let ((_kept, from), (into, _)) = (on_gpu(&a, 1), on_gpu(&b, 2));
    assert!(a.meet(&b));
    let write = |ticket, from: Span, region, length: usize| {
        let into = vec![Extent { region, offset: 0, length: length as u64 }];
        a.mover.write(Write { ticket, from: vec![from.up_to(length)], stage: None, to: b.said().id, into });
        a.wait(|news| match news {
            News::Moved(of, how) if of == ticket => Some(how),
            _ => None,
        })
    };
    let read = || into.read().unwrap();
    // From a GPU to the host, from there to a GPU, and from one memory of a GPU to another.
    assert_eq!(write(1, from, 1, bytes), How::Whole);
    let came: Vec<u64> = b.memory.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    assert!(came == numbers(1));
    assert_eq!(write(2, a.span(), 2, bytes / 2), How::Whole);
    let found = read();
    assert!(
        found[..bytes / 16].iter().all(|word| word.to_le_bytes() == [7; 8])
            && found[bytes / 16..] == numbers(2)[bytes / 16..]
    );
    assert_eq!(write(3, from, 2, bytes), How::Whole);
    assert!(read() == numbers(1));
}
