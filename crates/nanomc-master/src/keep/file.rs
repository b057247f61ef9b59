//! The state of a master without etcd: one small file in a directory that one master at a time holds by a lock. Every change is on
//! disk before anybody is told of it; the file is replaced whole, so a crash leaves the former or the new one.

use crate::options::Failure;
use nanomc::base::crc::crc32c;
use nanomc::base::id::random_u64;
use nanomc::cluster::directory::{Change, Elected, Event, Member};
use nanomc::cluster::run::master::Handle;
use nanomc::cluster::types::{Millis, Position, Term, terms_of};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Debug)]
pub struct State {
    directory: PathBuf,
    /// Locked for as long as this lives.
    _lock: File,
    term: Term,
    floor: Position,
    members: BTreeMap<String, Position>,
}

impl State {
    /// Takes the directory, which is made if there is none, and reads what is there.
    pub fn open(directory: &Path) -> Result<Self, Failure> {
        let failed = |what: &str, e: &dyn std::fmt::Display| {
            Failure::new(format!("the state directory {} {what}: {e}", directory.display()))
        };
        std::fs::create_dir_all(directory).map_err(|e| failed("can not be made", &e))?;
        let path = directory.join("lock");
        let mut lock = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|e| failed("can not be used", &e))?;
        if lock.try_lock().is_err() {
            let holder = std::fs::read_to_string(&path).unwrap_or_default();
            let holder = holder.lines().next().filter(|line| !line.is_empty()).unwrap_or("unknown").to_owned();
            return Err(Failure::new(format!(
                "the state directory {} belongs to a master that runs (pid {holder}): give this one another with --state",
                directory.display()
            )));
        }
        let named =
            lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()));
        named.map_err(|e| failed("can not be written", &e))?;
        let mut state = Self {
            directory: directory.to_owned(),
            _lock: lock,
            term: 0,
            floor: Position::default(),
            members: BTreeMap::new(),
        };
        match std::fs::read_to_string(state.path()) {
            Ok(text) => state.parse(&text).map_err(|why| failed("holds a file `state` that is damaged", &why))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                // A cluster that never was: no other one has its terms.
                let random = random_u64().map_err(|e| failed("can not be given a name", &e))?;
                state.term = terms_of(random);
            }
            Err(e) => return Err(failed("holds a file `state` that can not be read", &e)),
        }
        Ok(state)
    }

    fn path(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// Begins the next term.
    pub fn lead(&mut self) -> Result<Elected, Failure> {
        self.term += 1;
        self.write().map_err(|e| {
            Failure::new(format!("the state directory {} can not be written: {e}", self.directory.display()))
        })?;
        let member = |(name, since): (&String, &Position)| Member { name: name.clone(), since: *since };
        Ok(Elected {
            term: self.term,
            // Nobody else can lead while the lock is held.
            until: Millis::MAX,
            members: self.members.iter().map(member).collect(),
            log: Vec::new(),
            floor: self.floor,
        })
    }

    /// Writes changes down, all or none.
    pub fn record(&mut self, changes: Vec<Change>) -> std::io::Result<()> {
        let (members, floor) = (self.members.clone(), self.floor);
        for change in changes {
            match change {
                Change::Member(member) => drop(self.members.insert(member.name, member.since)),
                Change::Gone(name) => drop(self.members.remove(&name)),
                Change::Forget(_, floor) => self.floor = self.floor.max(floor),
                Change::Drop(_) => {
                    (self.members, self.floor) = (members, floor);
                    return Err(std::io::Error::other("a drop log is kept in etcd only"));
                }
            }
        }
        self.write().inspect_err(|_| (self.members, self.floor) = (members, floor))
    }

    /// Records whatever comes, until nobody can send any more. Waits for the disk: for a thread of its own.
    pub fn serve(mut self, mut changes: super::Changes, handle: &Handle) {
        while let Some((number, list)) = changes.blocking_recv() {
            let done = self.record(list);
            if let Err(error) = &done {
                crate::print::warn(&format!("{}: not written: {error}", self.path().display()));
            }
            handle.tell(Event::Recorded(number, done.is_ok()));
        }
    }

    fn write(&self) -> std::io::Result<()> {
        let new = self.directory.join("state.new");
        let mut file = File::create(&new)?;
        file.write_all(self.text().as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, self.path())?;
        File::open(&self.directory)?.sync_all()
    }

    fn text(&self) -> String {
        let mut text = format!(
            "# What nanomc-master must not forget. Not to be edited: the last line is a checksum.\nterm {}\nfloor {} {}\n",
            self.term, self.floor.term, self.floor.number
        );
        for (name, since) in &self.members {
            text.push_str(&format!("member {} {} {}\n", since.term, since.number, name.escape_default()));
        }
        text.push_str(&format!("crc32c {:08x}\n", crc32c(text.as_bytes())));
        text
    }

    fn parse(&mut self, text: &str) -> Result<(), String> {
        let end = text.rfind("crc32c ").ok_or("its checksum is missing")?;
        let (body, sum) = text.split_at(end);
        if sum.trim_end() != format!("crc32c {:08x}", crc32c(body.as_bytes())) {
            return Err("its checksum does not fit".into());
        }
        for line in body.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.splitn(4, ' ');
            let kind = words.next().unwrap_or_default();
            let mut number = || words.next()?.parse::<u64>().ok();
            let read = match kind {
                "term" => number().map(|term| self.term = term),
                "floor" => number().zip(number()).map(|(term, number)| self.floor = Position { term, number }),
                "member" => number().zip(number()).and_then(|(term, number)| {
                    let name = unescape(words.next()?)?;
                    self.members.insert(name, Position { term, number });
                    Some(())
                }),
                _ => None,
            };
            read.ok_or_else(|| format!("{line:?} is not understood"))?;
        }
        Ok(())
    }
}

/// What `escape_default` made of a text.
fn unescape(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        out.push(match c {
            '\\' => match rest.next()? {
                't' => '\t',
                'r' => '\r',
                'n' => '\n',
                'u' => {
                    let code: String = rest.by_ref().skip(1).take_while(|c| *c != '}').collect();
                    char::from_u32(u32::from_str_radix(&code, 16).ok()?)?
                }
                c @ ('\'' | '"' | '\\') => c,
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nanomc::cluster::types::counted;

    fn member(name: &str, number: u64) -> Change {
        Change::Member(Member { name: name.into(), since: Position { term: 1, number } })
    }

    #[test]
    fn terms_rise_and_members_are_remembered_across_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let strange = "a b\n\"ü\\ member 1 2 x";
        let mut state = State::open(dir.path()).unwrap();
        let first = state.lead().unwrap().term;
        assert_eq!(counted(first), 1);
        state.record(vec![member("n1", 1), member(strange, 7), member("gone", 3)]).unwrap();
        state.record(vec![Change::Gone("gone".into()), Change::Forget(None, Position { term: 1, number: 9 })]).unwrap();
        drop(state);
        let elected = State::open(dir.path()).unwrap().lead().unwrap();
        assert_eq!((elected.term, elected.floor), (first + 1, Position { term: 1, number: 9 }));
        // Another cluster has others.
        let other = |_| {
            let dir = tempfile::tempdir().unwrap();
            State::open(dir.path()).unwrap().lead().unwrap().term
        };
        assert!((0..4).map(other).any(|term| term.abs_diff(first) > 1 << 39));
        let names: Vec<_> = elected.members.iter().map(|m| (m.name.as_str(), m.since.number)).collect();
        assert_eq!(names, [(strange, 7), ("n1", 1)]);
    }

    #[test]
    fn a_second_master_is_refused_by_the_pid_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let first = State::open(dir.path()).unwrap();
        let message = State::open(dir.path()).unwrap_err().message;
        assert!(message.contains(&format!("pid {}", std::process::id())), "{message}");
        drop(first);
        State::open(dir.path()).unwrap();
    }

    #[test]
    fn a_damaged_file_is_refused_and_not_taken_for_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = State::open(dir.path()).unwrap();
        state.lead().unwrap();
        drop(state);
        let path = dir.path().join("state");
        let text = std::fs::read_to_string(&path).unwrap();
        for damaged in [text.replace("term ", "term 1"), text[..text.len() / 2].to_owned(), String::new()] {
            std::fs::write(&path, damaged).unwrap();
            assert!(State::open(dir.path()).unwrap_err().message.contains("damaged"));
        }
    }

    #[test]
    fn what_can_not_be_kept_here_changes_nothing() {
        use nanomc::cluster::directory::{Entry, Recorded};
        use nanomc::cluster::wire::DropSpace;
        let dir = tempfile::tempdir().unwrap();
        let mut state = State::open(dir.path()).unwrap();
        let what = DropSpace { space: None }.into();
        let (position, targets, recorded) = (Position::default(), Vec::new(), Recorded::No);
        let entry = Entry { position, what, targets, call: 0, recorded };
        assert!(state.record(vec![member("n", 1), Change::Drop(entry)]).is_err());
        assert!(state.lead().unwrap().members.is_empty());
    }
}
