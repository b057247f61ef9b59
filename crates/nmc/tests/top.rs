//! `nmc top` beside real masters, which are killed and started again, and beside servers that are none. The master is the program's code in
//! a process of its own: this test program, started again.

#![allow(unsafe_code, reason = "a terminal is made, and signals are sent to processes")]
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may")]

#[path = "../../../tests/common/slices.rs"]
mod slices;

use nanomc::base::deadline::Deadline;
use nanomc::cluster::facade::{Cluster, Config, Item, PutOptions};
use nanomc::mem::HeapKind;
use nanomc::store::{self, Store};
use nanomc::world;
use nanomc_master::options::{self, Wanted};
use slices::slice;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Long enough for a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(60);
/// Set in the process of a master: its arguments, one in a line.
const MASTER: &str = "NMC_TEST_TOP_MASTER";

/// No test: the process of a master.
#[test]
fn a_master_runs_here_if_one_is_wanted() {
    let Ok(args) = std::env::var(MASTER) else { return };
    let read = options::read(args.lines().map(str::to_owned).collect(), |_| None);
    let Ok(Wanted::Master(options)) = read else { panic!("its options") };
    nanomc_master::run::run(*options).map_err(|failure| failure.message).unwrap();
}

/// A master that runs; it is killed at the end of the test.
struct Running {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    /// For clients.
    address: String,
    /// For `nmc top`.
    http: String,
}

impl Running {
    fn start(dir: &Path, args: &[&str]) -> Self {
        Self::at(dir, "0", "0", args)
    }

    fn at(dir: &Path, port: &str, http: &str, args: &[&str]) -> Self {
        let state = dir.join("state");
        let mut all = vec!["--port", port, "--metrics_port", http, "--state", state.to_str().unwrap()];
        all.extend(args);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_master_runs_here_if_one_is_wanted", "--nocapture"])
            .env(MASTER, all.join("\n"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let (mut address, mut http) = (None, None);
        while http.is_none() {
            let mut line = String::new();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "it ended: {:?}", child.wait());
            let line = line.trim_end();
            address = address.or(line.strip_prefix("Master service listening on ").map(str::to_owned));
            http = line.strip_prefix("Metrics and admin page on http://").map(|at| at.trim_end_matches('/').to_owned());
        }
        Self { child, _stdout: stdout, address: address.unwrap(), http: http.unwrap() }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client(master: &Running) -> Cluster {
    let masters = vec![master.address.clone()];
    Cluster::open(Config { masters, patience: PATIENCE, ..Config::default() }).unwrap()
}

/// A node with a store of its own, in this process.
fn node(master: &Running, name: &str) -> (Cluster, Store) {
    let world = world::Config {
        name: "local".into(),
        dir: None,
        rank: None,
        world_size: 1,
        min_ranks: 0,
        heap_kind: HeapKind::Host,
        heap_bytes: 4 << 20,
        huge_pages: false,
        populate: false,
        import: None,
        device: None,
        device_rank: None,
        words_per_rank: 0,
        hosting: world::Hosting::Rank0,
        deadline: Deadline::after(PATIENCE),
        drain_ms: 0,
        service_cpu: None,
        give_up: Arc::default(),
    };
    let store = store::Config { page_bytes: 64 << 10, key_bytes: Some(1 << 20), ..store::Config::default() };
    let store = Store::embedded(&world, &store).unwrap();
    let cluster = client(master);
    cluster.mount(&store, Some(name), true).unwrap();
    (cluster, store)
}

fn nmc(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nmc"));
    command.arg("top").args(args).stdin(Stdio::null()).env_remove("NO_COLOR").env("TERM", "xterm");
    command
}

fn output(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = nmc(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Looks until what is seen is right.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) => assert!(start.elapsed() < PATIENCE, "{what}: not in time, but\n{seen}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A server that says the same to everybody who has asked; what it says depends on the path.
fn server(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut line = String::new();
            let mut request = BufReader::new(stream.try_clone().unwrap());
            let _ = request.read_line(&mut line);
            // All of it is read, so that hanging up tells nothing else than the end.
            while request.read_line(&mut String::new()).is_ok_and(|count| count > 2) {}
            let _ = stream.write_all(&answer(line.split(' ').nth(1).unwrap_or_default()));
        }
    });
    address
}

fn said(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[test]
fn one_look_shows_segments_lookups_and_members_of_a_real_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let master = Running::start(dir.path(), &[]);
    let (cluster, _store) = node(&master, "node-a");
    let (_other, _other_store) = node(&master, "node-b");
    let value = [7u8; 1000];
    let slices = [slice(&value)];
    let put = cluster.put(&[Item { key: b"k", slices: &slices, far: false }], &PutOptions::default()).unwrap();
    assert!(put.into_iter().all(|put| put.is_ok()));
    // Who has no node asks the master.
    let asks = client(&master);
    assert_eq!(asks.exists(&[b"k", b"no"]).unwrap(), [true, false]);
    let text = eventually("a settled leader with what was put", || {
        let (code, text, error) = output(&["--master", &master.http, "--once"]);
        assert_eq!((code, error.as_str()), (0, ""), "{text}");
        if text.contains("   settled   ") && text.contains("objects 1\n") { Ok(text) } else { Err(text) }
    });
    assert!(!text.contains('\x1b'), "no colour into a pipe: {text}");
    let head = format!("nanomc-master {}   {}   leader   term 1   settled", env!("CARGO_PKG_VERSION"), master.http);
    for part in [
        &head,
        "\nLookups\n  ram ",
        "\n  missing ",
        "\nSegments: 2, ",
        "node-a",
        "of 4.0 MiB",
        "\nMembers: 2 of 2 active\n",
        "\nSlow calls\n",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }

    let (code, json, _) = output(&["--master", &format!("http://{}/", master.http), "--once", "--json"]);
    assert_eq!((code, json.lines().count()), (0, 1), "{json}");
    for part in [
        &format!(
            "{{\"masters\":[{{\"address\":\"{0}\",\"role\":\"leader\",\"term\":1}}],\"leader\":\"{0}\",",
            master.http
        ),
        "\"status\":{\"role\":\"leader\",",
        "\"lookups\":{\"vram\":0,\"ram\":",
        "\"segments\":[{\"name\":",
        "{\"name\":\"node-a\",\"id\":\"",
        "\"slow\":[]",
    ] {
        assert!(json.contains(part), "{part}\nis not in\n{json}");
    }
}

#[test]
fn a_token_is_asked_for_checked_and_used() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode: u32| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (right, wrong) = (file("right", "0123456789abcdef\n", 0o600), file("wrong", "0123456789abcdeF\n", 0o600));
    let master = Running::start(dir.path(), &["--token_file", &right]);
    let look = |more: &[&str]| output(&[&["--master", &master.http, "--once"], more].concat());
    let (code, text, _) = look(&[]);
    assert!(code == 1 && text.contains("a token is wanted: --token_file FILE"), "{text}");
    let (code, text, _) = look(&["--token_file", &wrong]);
    assert!(code == 1 && text.contains("the token is not that of this master"), "{text}");
    let (code, text, _) = look(&["--token_file", &right]);
    assert!(code == 0 && text.contains("leader   term 1"), "{text}");
    for (path, part) in [
        (file("open", "0123456789abcdef\n", 0o644), "mode 644"),
        (file("short", "0123", 0o600), "a token of 4 bytes"),
        (file("lines", "0123456789abcdef\tX-Evil: 1\n", 0o600), "visible ASCII"),
        (dir.path().join("none").to_str().unwrap().to_owned(), "No such file"),
    ] {
        let (code, text, error) = look(&["--token_file", &path]);
        assert!(code == 2 && text.is_empty() && error.contains(part), "{error}");
    }
}

#[test]
fn what_is_not_understood_is_refused() {
    for (args, part) in [
        (["--master", "a:b"], "no HOST:PORT"),
        (["--master", ""], "no HOST:PORT"),
        (["--master", "a,,b"], "no HOST:PORT"),
        (["--interval", "0"], "0.1 to 3600"),
        (["--interval", "NaN"], "0.1 to 3600"),
        (["--interval", "x"], "0.1 to 3600"),
        (["--master", "a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a"], "16 are possible"),
    ] {
        let (code, text, error) = output(&args);
        assert!(
            code == 2 && text.is_empty() && error.contains(part) && error.lines().count() == 1,
            "{args:?}: {error}"
        );
    }
}

#[test]
fn whoever_answers_something_else_is_told_of_in_words() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let master = Running::start(dir.path(), &[]);
    let deep = format!("{}1", "[".repeat(1 << 20));
    let cases: Vec<(String, &str)> = vec![
        (nobody, "nobody listens there"),
        // The port for clients, which people mix up with the other one.
        (master.address.clone(), "(the port is that of --metrics_port, by default 9003)"),
        (server(|_| b"SSH-2.0-OpenSSH_9\r\n".to_vec()), "does not speak HTTP"),
        (server(|_| Vec::new()), "is no master"),
        (server(|_| vec![b'H'; 100_000]), "does not speak HTTP"),
        (server(|_| [&b"HTTP/1.1 200 OK\r\nx: "[..], &vec![b'x'; 1 << 20]].concat()), "does not speak HTTP"),
        (server(|_| said("<html>")), "/admin/status is no JSON: no value at byte 0"),
        (server(|_| said("{}")), "/admin/status has no text \"role\""),
        (server(|_| said(r#"{"role":7}"#)), "/admin/status has no text \"role\""),
        (server(move |_| said(&deep)), "/admin/status is no JSON: too much"),
        (server(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}".to_vec()), "ends in its middle"),
        (server(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n{}".to_vec()), "16777216 are possible"),
        (server(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n\xff\xff".to_vec()), "the answer is no text"),
        (server(|_| b"HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n".to_vec()), "status 500"),
        (server(|_| b"HTTP/1.1 503 no\r\ncontent-length: 15\r\n\r\n{\"error\":\"late\"}".to_vec()), "status 503"),
        (
            server(|_| b"HTTP/1.1 503 no\r\ncontent-length: 16\r\n\r\n{\"error\":\"late\"}".to_vec()),
            "late; it is asked again",
        ),
        (
            server(|path| said(if path == "/admin/status" { r#"{"role":"leader","objects":1}"# } else { "{}" })),
            "/admin/slow is no list",
        ),
        (
            server(|path| match path {
                "/admin/status" => said(r#"{"role":"leader","objects":1}"#),
                "/admin/segments" => said(r#"[{"name":"x"}]"#),
                _ => said("[]"),
            }),
            "/admin/segments has no",
        ),
    ];
    for (address, part) in cases {
        let (code, text, error) = output(&["--master", &address, "--once"]);
        assert!(code == 1 && error.is_empty() && text.contains(part), "{part}\nis not in\n{text}{error}");
        assert!(text.contains("no leader: nothing is known of the cluster") && text.contains(&address), "{text}");
        let (code, json, _) = output(&["--master", &address, "--once", "--json"]);
        assert!(code == 1 && json.contains("\"error\":\"") && json.contains("\"leader\":null"), "{json}");
    }
}

#[test]
fn one_that_never_answers_holds_up_nobody_else() {
    // Accepts nobody: connections wait in the queue of the listener.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = (silent.local_addr().unwrap().to_string(), silent);
    let dir = tempfile::tempdir().unwrap();
    let master = Running::start(dir.path(), &[]);
    let (code, text, _) = output(&["--master", &format!("{},{}", silent.0, master.http), "--once"]);
    assert!(
        code == 0 && text.contains(&format!("  {}  no answer within 3 s; it is asked again\n", silent.0)),
        "{text}"
    );
    assert!(text.contains(&format!("  {}  leader, term 1\n", master.http)), "{text}");
}

#[test]
fn of_several_masters_it_is_shown_who_leads() {
    let dir = tempfile::tempdir().unwrap();
    let master = Running::start(dir.path(), &[]);
    let (leads, status) = (master.address.clone(), r#"{"role":"standby","version":"1","term":1,"leader":""#);
    let standby = server(move |path| {
        said(&if path == "/admin/status" { format!("{status}{leads}\"}}") } else { "[]".to_owned() })
    });
    let list = format!("{standby}, {}", master.http);
    let (code, text, _) = output(&["--master", &list, "--once"]);
    assert_eq!(code, 0, "{text}");
    for part in [
        format!("   {}   leader   term 1   ", master.http),
        format!(
            "\nMasters\n  {standby}  standby, term 1, {} leads\n  {}  leader, term 1\n",
            master.address, master.http
        ),
    ] {
        assert!(text.contains(&part), "{part}\nis not in\n{text}");
    }
    let (code, text, _) = output(&["--master", &standby, "--once"]);
    assert!(code == 1 && text.contains("no leader") && text.contains("standby, term 1"), "{text}");
}

/// The lines of a running program.
struct Lines {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Lines {
    fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// Reads until a line has all of this in it.
    fn until(&mut self, parts: &[&str]) -> String {
        let start = Instant::now();
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "it ended before {parts:?}");
            if parts.iter().all(|part| line.contains(part)) {
                return line;
            }
            assert!(start.elapsed() < PATIENCE, "{parts:?} does not come, but {line}");
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_master_that_is_killed_and_started_again_is_seen_to_go_and_to_come() {
    let dir = tempfile::tempdir().unwrap();
    let mut master = Running::start(dir.path(), &[]);
    let http = master.http.clone();
    let mut json = Lines::of(nmc(&["--master", &http, "--interval", "0.1", "--json"]));
    let mut text = Lines::of(nmc(&["--master", &http, "--interval", "0.1"]));
    json.until(&["\"role\":\"leader\"", "\"term\":1"]);
    text.until(&["leader   term 1"]);
    master.kill();
    json.until(&["\"error\":\"nobody listens there\"", "\"leader\":null"]);
    text.until(&["nobody listens there; it is asked again"]);
    let (_, port) = http.rsplit_once(':').unwrap();
    let (_, clients) = master.address.rsplit_once(':').unwrap();
    let _second = Running::at(dir.path(), clients, port, &[]);
    json.until(&["\"role\":\"leader\"", "\"term\":2"]);
    text.until(&["leader   term 2"]);
    // Whoever does not read any more ends it.
    drop(std::mem::replace(&mut json.stdout, BufReader::new(closed())));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = json.child.try_wait().unwrap() {
            break status;
        }
        assert!(start.elapsed() < PATIENCE, "it writes to nobody");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(0));
}

/// The end of a pipe that nobody writes to.
fn closed() -> ChildStdout {
    Command::new("true").stdout(Stdio::piped()).spawn().unwrap().stdout.take().unwrap()
}

/// A terminal of a size: the end that a program gets, and the other one.
fn terminal(columns: u16, rows: u16) -> (OwnedFd, File) {
    let (mut this, mut other) = (-1, -1);
    let mut size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let none = std::ptr::null_mut();
    // SAFETY: both descriptors are written to locals, and belong to nobody else.
    unsafe {
        assert_eq!(libc::openpty(&raw mut this, &raw mut other, none, none.cast(), &raw mut size), 0);
        // What is started must not have this end too: it would never see that the terminal is gone.
        assert_eq!(libc::fcntl(this, libc::F_SETFD, libc::FD_CLOEXEC), 0);
        assert_eq!(libc::fcntl(other, libc::F_SETFD, libc::FD_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(other), File::from_raw_fd(this))
    }
}

/// A program on a terminal, which is killed at the end of the test.
struct Shown(Child);

impl Shown {
    fn code(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            match self.0.try_wait().unwrap() {
                Some(status) => return status.code(),
                None => assert!(start.elapsed() < PATIENCE, "it does not end"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.0.id()).unwrap();
        // SAFETY: a signal for a child that was not waited for yet.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program on a terminal that is its own, as a shell does.
fn on_terminal(mut command: Command, end: OwnedFd) -> Shown {
    let fd = end.as_raw_fd();
    command.stdout(Stdio::from(end.try_clone().unwrap())).stderr(Stdio::from(end.try_clone().unwrap()));
    // SAFETY: between fork and exec only system calls on integers are made.
    unsafe {
        command.pre_exec(move || {
            libc::setsid();
            if libc::ioctl(fd, libc::TIOCSCTTY, 0) == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    Shown(command.spawn().unwrap())
}

/// What a terminal was told, up to a part of it; all of it if the program ends before.
fn told(terminal: &mut File, until: &str) -> String {
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&all).contains(until) {
        let mut entry = libc::pollfd { fd: terminal.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd that lives during the call.
        let ready = unsafe { libc::poll(&raw mut entry, 1, i32::try_from(PATIENCE.as_millis()).unwrap()) };
        assert_eq!(ready, 1, "{until:?} does not come, but {:?}", String::from_utf8_lossy(&all));
        match terminal.read(&mut part) {
            Ok(count) if count > 0 => all.extend(&part[..count]),
            // A terminal that nobody has open any more.
            _ => break,
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn a_terminal_is_drawn_on_and_left_as_it_was() {
    const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
    const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
    let dir = tempfile::tempdir().unwrap();
    let master = Running::start(dir.path(), &[]);
    let _node = node(&master, "a-node-with-a-name-that-is-longer-than-the-terminal-is-wide");
    let (end, mut terminal) = terminal(40, 20);
    let args = ["--master", &master.http, "--interval", "0.1"];
    let mut child = on_terminal(nmc(&args), end);
    let first = told(&mut terminal, "Slow calls");
    assert!(first.starts_with(ENTER), "{first:?}");
    // Two whole screens later it is still drawn in place: no line is too long, none too many.
    let drawn = told(&mut terminal, "Slow calls") + &told(&mut terminal, "Slow calls");
    let screen = drawn.split("\x1b[H").nth(1).unwrap().split("\x1b[J").next().unwrap();
    let plain = screen.replace("\x1b[K", "").replace("\x1b[0m", "");
    let plain = ["1", "2", "31", "32", "33"].iter().fold(plain, |text, n| text.replace(&format!("\x1b[{n}m"), ""));
    assert!(!plain.contains('\x1b'), "{plain:?}");
    assert!(plain.lines().count() <= 20, "{plain}");
    assert!(plain.lines().all(|line| line.trim_end().chars().count() <= 40), "{plain}");
    assert!(plain.contains("a-node-with-a-name") && plain.contains('…'), "{plain}");
    assert!(screen.contains("\x1b[32mactive"), "{screen:?}");
    // Ctrl-C, as a person types it.
    terminal.write_all(b"\x03").unwrap();
    let last = told(&mut terminal, LEAVE);
    assert!(last.ends_with(LEAVE), "{last:?}");
    assert_eq!(child.code(), Some(0));
}

#[test]
fn a_terminal_that_is_resized_is_drawn_on_anew_and_one_that_is_needed_is_given_back() {
    let (end, mut terminal) = terminal(30, 10);
    // One round in an hour: whatever else is drawn is because of what happens to the terminal.
    let mut child = on_terminal(nmc(&["--master", "127.0.0.1:1", "--interval", "3600"]), end);
    let narrow = told(&mut terminal, "again");
    assert!(!narrow.contains("nobody listens there; it is asked again"), "{narrow:?}");
    let size = libc::winsize { ws_row: 10, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel reads the size.
    assert_eq!(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
    let plain = |text: &str| text.replace("\x1b[31m", "").replace("\x1b[0m", "");
    let mut wide = String::new();
    while !plain(&wide).contains("nobody listens there; it is asked again") {
        let more = told(&mut terminal, "\x1b[J");
        assert!(!more.is_empty(), "{wide:?}");
        wide.push_str(&more);
    }
    // Ctrl-Z: the terminal is the shell's, until the shell says otherwise.
    terminal.write_all(b"\x1a").unwrap();
    assert!(told(&mut terminal, "\x1b[?1049l").ends_with("\x1b[?1049l"));
    let stat = format!("/proc/{}/stat", child.0.id());
    eventually("it is stopped", || {
        let text = std::fs::read_to_string(&stat).unwrap();
        if text.contains(") T ") { Ok(()) } else { Err(text) }
    });
    child.signal(libc::SIGCONT);
    assert!(told(&mut terminal, "\x1b[J").contains("\x1b[?1049h"));
    child.signal(libc::SIGTERM);
    assert!(told(&mut terminal, "\x1b[?1049l").ends_with("\x1b[?1049l"));
    assert_eq!(child.code(), Some(0));
}

#[test]
fn control_a_program_that_is_killed_leaves_the_terminal_as_it_is() {
    // What the test above looks for is not there by itself.
    let (end, mut terminal) = terminal(40, 20);
    let mut child = on_terminal(nmc(&["--master", "127.0.0.1:1", "--interval", "0.1"]), end);
    told(&mut terminal, "no leader");
    child.signal(libc::SIGKILL);
    assert!(!told(&mut terminal, "\x1b[?1049l").contains("\x1b[?1049l"));
    assert_eq!(child.code(), None);
}

#[test]
fn a_terminal_that_is_gone_or_takes_nothing_keeps_nobody_alive() {
    let args = ["--master", "127.0.0.1:1", "--interval", "0.1"];
    let (end, mut first) = terminal(40, 20);
    let mut child = on_terminal(nmc(&args), end);
    told(&mut first, "no leader");
    drop(first);
    assert!(child.code().is_some());
    // Nobody reads what this one says, until there is no room for more.
    let (end, _second) = terminal(40, 20);
    let mut child = on_terminal(nmc(&args), end);
    let (call, mut seen) = (format!("/proc/{}/syscall", child.0.id()), 0);
    if std::fs::read_to_string(&call).is_err() {
        eprintln!("skipped: the kernel does not tell what a process waits for");
        return;
    }
    eventually("it can not write", || {
        let text = std::fs::read_to_string(&call).unwrap();
        let writes = text.starts_with(&format!("{} ", libc::SYS_write));
        seen = if writes { seen + 1 } else { 0 };
        if seen > 5 { Ok(()) } else { Err(text) }
    });
    child.signal(libc::SIGTERM);
    assert_eq!(child.code(), Some(128 + libc::SIGTERM));
}

#[test]
fn control_a_server_that_is_right_is_understood() {
    // The same server as those that are not understood, with answers that are.
    let good = server(|path| match path {
        "/admin/status" => said(
            r#"{"role":"leader","version":"9","term":5,"settled":true,"objects":1,"lookups":{"ram":3,"missing":1}}"#,
        ),
        "/admin/segments" => {
            said(r#"[{"name":"x\u001b[2J","node":"n","state":"draining","media":"ssd","used":1,"capacity":2}]"#)
        }
        "/admin/members" => {
            said(r#"[{"name":"n","state":"away","host":"h","endpoint":"e","silent_ms":1500,"drops_owed":2}]"#)
        }
        _ => said(r#"[{"method":"PutEnd","protocol":"framed","ms":153,"at_ms":0}]"#),
    });
    let (code, text, _) = output(&["--master", &good, "--once"]);
    assert_eq!(code, 0, "{text}");
    for part in [
        "  ram      75.0 %  3 keys  ###############.....\n  missing  25.0 %   1 key  #####...............\n",
        "  x?[2J  draining  1 B of 2 B  50.0 %  ##########..........  ssd  on n\n",
        "  n  away  heard 1.5 s ago  2 drops to confirm  h  e\n",
        "  PutEnd (framed)  153 ms  1970-01-01 00:00:00 UTC\n",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
    let mut silent = TcpStream::connect(&good).unwrap();
    silent.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
}
