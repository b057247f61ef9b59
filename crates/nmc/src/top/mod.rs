//! `nmc top`: the admin page of a cluster's masters in a terminal. It only reads, and goes on asking whatever happens to the masters. Each
//! master has a thread that asks it, so that one that hangs holds up neither the others nor Ctrl-C.

mod cluster;
mod http;
mod screen;

use crate::Outcome;
use crate::args::{Failure, Parsed};
use crate::json::{self, Object};
use crate::sys::{self, Interrupts};
use crate::term::{self, Style};
use cluster::Master;
use http::Place;
use screen::{Asked, Room};
use std::io::IsTerminal as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Most masters.
const MAX_MASTERS: usize = 16;
/// How long a round waits for masters, and the only one. What takes longer, such as a name that cannot be looked up, is shown as it was before.
const PATIENCE: Duration = Duration::from_secs(4);
const ONLY_PATIENCE: Duration = Duration::from_secs(15);

/// How long an end in order may take.
const END: Duration = Duration::from_secs(1);

/// What the main thread waits for.
enum Event {
    /// A master has answered, or not.
    Said(usize, Box<Result<Master, String>>),
    Signal(i32),
}

/// How it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    Screen,
    Text,
    Json,
}

/// Runs the command.
pub fn run(args: &Parsed) -> Outcome {
    let places = places(args.text("--master")?.unwrap_or("127.0.0.1"))?;
    let token = args.path("--token_file").map(token).transpose()?;
    let interval = interval(args.text("--interval")?)?;
    let (once, terminal) = (args.has("--once"), std::io::stdout().is_terminal());
    let output = match (args.has("--json"), once || !terminal) {
        (true, _) => Output::Json,
        (false, true) => Output::Text,
        (false, false) => Output::Screen,
    };
    // Before any thread starts, so that all of them leave signals to the one that waits for them.
    let more: &[i32] = if output == Output::Screen { &[libc::SIGWINCH, libc::SIGTSTP] } else { &[] };
    let interrupts = Interrupts::hold_with(more);
    let (events, heard) = channel();
    let signals = events.clone();
    spawn(move || watch_signals(interrupts, &signals))?;
    let mut top = Top { asked: Vec::new(), orders: Vec::new(), waiting: Vec::new(), heard, output, screen: None };
    for (number, place) in places.into_iter().enumerate() {
        let order = watch(number, place.clone(), token.clone(), events.clone())?;
        top.asked.push(Asked { place, said: None, rates: Vec::new() });
        top.orders.push(order);
        top.waiting.push(false);
    }
    top.rounds(once, interval)
}

fn places(list: &str) -> Result<Vec<Place>, Failure> {
    let places = list.split(',').map(|text| Place::new(text.trim())).collect::<Result<Vec<_>, _>>()?;
    if places.len() > MAX_MASTERS {
        return Err(Failure::usage(format!("--master names {} masters; {MAX_MASTERS} are possible", places.len())));
    }
    Ok(places)
}

fn interval(text: Option<&str>) -> Result<Duration, Failure> {
    let seconds = text.unwrap_or("2").parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let refuse =
        || Failure::usage(format!("--interval {:?} is no number of seconds from 0.1 to 3600", text.unwrap_or("")));
    seconds.map(Duration::from_secs_f64).ok_or_else(refuse)
}

/// The token in a file, under the rules by which a master takes one from there.
fn token(path: &Path) -> Result<Arc<str>, Failure> {
    let refuse = |why: String| Failure::usage(format!("--token_file {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| refuse(e.to_string()))?;
    let mode = std::fs::metadata(path).map_err(|e| refuse(e.to_string()))?.permissions().mode();
    if mode & 0o027 != 0 {
        return Err(refuse(format!("it has mode {:03o}: others can read or change it. chmod 600 it", mode & 0o777)));
    }
    let token = text.lines().next().unwrap_or_default().trim();
    if !(16..=512).contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(refuse(format!(
            "a token of {} bytes; 16 to 512 visible ASCII characters are possible",
            token.len()
        )));
    }
    Ok(token.into())
}

fn spawn(body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = std::thread::Builder::new().name("nmc-top".into()).spawn(body);
    started.map(drop).map_err(|e| Failure::os("starting a thread", &e))
}

/// Passes signals on. Whoever writes to a terminal or a pipe that takes nothing more hears of none: then this ends the process.
fn watch_signals(interrupts: Interrupts, to: &Sender<Event>) {
    loop {
        let signal = interrupts.wait();
        let sent = to.send(Event::Signal(signal));
        if sent.is_err() || ![libc::SIGWINCH, libc::SIGTSTP].contains(&signal) {
            std::thread::sleep(END);
            std::process::exit(128 + signal);
        }
    }
}

/// Starts what asks a master each time that it is told to.
fn watch(number: usize, place: Place, token: Option<Arc<str>>, to: Sender<Event>) -> Result<Sender<()>, Failure> {
    let (order, orders) = channel();
    spawn(move || {
        for () in orders {
            if to.send(Event::Said(number, Box::new(cluster::ask(&place, token.as_deref())))).is_err() {
                return;
            }
        }
    })?;
    Ok(order)
}

struct Top {
    asked: Vec<Asked>,
    orders: Vec<Sender<()>>,
    /// Whose answer is still to come.
    waiting: Vec<bool>,
    heard: Receiver<Event>,
    output: Output,
    screen: Option<Screen>,
}

/// Why a wait ended.
enum Woken {
    Done,
    Ended,
}

impl Top {
    fn rounds(&mut self, once: bool, interval: Duration) -> Outcome {
        if self.output == Output::Screen {
            self.screen = Some(Screen::enter());
            self.show();
        }
        for round in 0.. {
            let start = Instant::now();
            self.ask();
            // Later on a master that hangs is no reason to show nothing of the others.
            let patience = match round {
                0 if once => ONLY_PATIENCE,
                0 => PATIENCE,
                _ => interval.min(PATIENCE),
            };
            if let Woken::Ended = self.wait(start + patience, |top| top.waiting.iter().any(|waits| *waits)) {
                break;
            }
            if self.output == Output::Text && round > 0 {
                term::print("\n");
            }
            if !self.show() {
                break;
            }
            if once {
                let leads = screen::leader(&self.asked).is_some();
                return Ok(if leads { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
            if let Woken::Ended = self.wait(start + interval, |_| true) {
                break;
            }
        }
        // Whoever wanted one look has not had it.
        Ok(if once { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Asks all masters that are not being asked already.
    fn ask(&mut self) {
        for (order, waits) in self.orders.iter().zip(&mut self.waiting) {
            if !*waits {
                *waits = order.send(()).is_ok();
            }
        }
    }

    /// Waits until a moment, as long as there is something to wait for.
    fn wait(&mut self, until: Instant, wanted: impl Fn(&Self) -> bool) -> Woken {
        while wanted(self) {
            match self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Said(number, said)) => self.said(number, *said),
                Ok(Event::Signal(libc::SIGWINCH)) => drop(self.show()),
                Ok(Event::Signal(libc::SIGTSTP)) => {
                    self.screen = None;
                    sys::stop_this_process();
                    self.screen = Some(Screen::enter());
                    self.show();
                }
                Ok(Event::Signal(_)) => return Woken::Ended,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Woken::Ended,
            }
        }
        Woken::Done
    }

    fn said(&mut self, number: usize, said: Result<Master, String>) {
        let (Some(asked), Some(waits)) = (self.asked.get_mut(number), self.waiting.get_mut(number)) else { return };
        *waits = false;
        asked.rates = match (&asked.said, &said) {
            (Some(Ok(before)), Ok(now)) => rates(before, now),
            _ => Vec::new(),
        };
        asked.said = Some(said);
    }

    /// False if nobody reads any more.
    fn show(&self) -> bool {
        let window = sys::window();
        match self.output {
            Output::Json => term::try_print(&format!("{}\n", document(&self.asked))),
            Output::Text => {
                let room = Room { width: window.map_or(usize::MAX, |(columns, _)| columns), height: None };
                term::try_print(&format!("{}\n", screen::lines(&self.asked, room, Style::stdout()).join("\n")))
            }
            Output::Screen => {
                let (width, height) = window.unwrap_or((80, 24));
                let room = Room { width, height: Some(height) };
                Screen::draw(&screen::lines(&self.asked, room, Style::stdout()))
            }
        }
    }
}

/// Lookups in a second between two answers of one leader.
fn rates(before: &Master, now: &Master) -> Vec<(String, f64)> {
    let (Some(was), Some(is)) = (&before.cluster, &now.cluster) else { return Vec::new() };
    let seconds = now.asked.saturating_duration_since(before.asked).as_secs_f64();
    if before.term != now.term || seconds <= 0.0 {
        return Vec::new();
    }
    let rate = |(name, count): &(String, u64)| {
        let earlier = was.lookups.iter().find(|(other, _)| other == name).map_or(0, |(_, count)| *count);
        (name.clone(), count.saturating_sub(earlier) as f64 / seconds)
    };
    is.lookups.iter().map(rate).collect()
}

/// A line of JSON: every master, and what the leader says, as it said it.
fn document(asked: &[Asked]) -> String {
    let master = |asked: &Asked| {
        let object = Object::new().text("address", &asked.place.to_string());
        match &asked.said {
            None => object.text("error", "no answer yet"),
            Some(Err(why)) => object.text("error", why),
            Some(Ok(master)) => {
                let object = object.text("role", &master.role);
                match master.term {
                    Some(term) => object.raw("term", &term.to_string()),
                    None => object,
                }
            }
        }
        .finish()
    };
    let mut object = Object::new().raw("masters", &json::array(asked.iter().map(master)));
    object = match screen::leader(asked) {
        None => object.raw("leader", "null"),
        Some((asked, master, _)) => {
            let leader = object.text("leader", &asked.place.to_string());
            master.documents.iter().fold(leader, |object, (name, text)| object.raw(name, text))
        }
    };
    object.finish()
}

/// A terminal with a screen of its own, which is given back whatever happens.
struct Screen;

impl Screen {
    fn enter() -> Self {
        // Another screen, no cursor, and nothing goes on in the next line.
        term::print("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J");
        Self
    }

    /// Writes over what is there, so that nothing flickers.
    fn draw(lines: &[String]) -> bool {
        let mut text = String::from("\x1b[H");
        for (at, line) in lines.iter().enumerate() {
            text.push_str(if at > 0 { "\r\n" } else { "" });
            text.push_str(line);
            text.push_str("\x1b[K");
        }
        text.push_str("\x1b[J");
        term::try_print(&text)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        term::print("\x1b[?7h\x1b[?25h\x1b[?1049l");
    }
}

#[cfg(test)]
mod tests;
