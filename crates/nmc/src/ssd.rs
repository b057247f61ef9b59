//! `nmc ssd`: what lies in the directory of an SSD tier. It opens files for reading only, takes no lock, and looks at directories
//! that nobody owns: an owner changes what is there, and can be asked itself (`nmc_tier_scan`, `nmc_tier_verify`).

use crate::Outcome;
use crate::args::{Failure, Parsed};
use crate::term::{self, Progress};
use crate::{facts, sys};
use nanomc::base::{Error, Result};
use nanomc::tier::Backend;
use nanomc::tier::backend::{self, DATA_NAME, Storage};
use nanomc::tier::format::{
    self, Entry, Fingerprint, Head, Item, JOURNAL_RECORD, LOCK_NAME, SUPER_NAME, Shape, Space, bucket_name,
    journal_name, journal_number,
};
use nanomc::tier::io::{Buffer, Disk, Listed, Options, RealDisk};
use nanomc::tier::journal::{self, State};
use nanomc::tier::reader::check_record;
use nanomc::tier::recovery::{self, backend_of, read_head};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// What the command can be asked for.
pub const WHAT: &str = "<ls|stat|verify|dump> <directory>";
/// Bytes of a value that are read at a time.
const SCRATCH: usize = 4 << 20;
/// Text that is collected before it is written.
const PAGE: usize = 64 << 10;

/// Runs the command.
pub fn run(args: &Parsed) -> Outcome {
    let what = args.positional.as_deref().and_then(|what| what.to_str()).unwrap_or_default();
    let Some(path) = args.second.as_deref().filter(|path| !path.is_empty()).map(Path::new) else {
        return Err(Failure::usage(format!("nmc ssd needs {WHAT}")));
    };
    let act = match what {
        "ls" => ls,
        "stat" => stat,
        "verify" => verify,
        "dump" => dump,
        _ => return Err(Failure::usage(format!("nmc ssd cannot {what:?}; it needs {WHAT}"))),
    };
    act(&Directory::open(path)?, args)
}

/// What became of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// Its key leads to it.
    Live,
    /// It was removed or replaced.
    Removed,
    /// Its namespace was flushed, or is not known.
    Flushed,
    /// There is a newer record of the key.
    Older,
}

impl Fate {
    const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Removed => "removed",
            Self::Flushed => "flushed",
            Self::Older => "older",
        }
    }
}

/// A directory that nobody owns.
struct Directory {
    disk: Arc<dyn Disk>,
    head: Head,
    backend: Backend,
    storage: Box<dyn Storage>,
    /// Numbers of the journals; the last one counts.
    journals: Vec<u64>,
    /// Buckets that count, by number.
    buckets: Vec<u64>,
    /// Bytes of all files that are the tier's.
    file_bytes: u64,
    /// What does not count: name and why.
    others: Vec<(String, &'static str)>,
    state: Result<State>,
}

/// Bytes of these files, and of those in these folders.
fn bytes_of(disk: &dyn Disk, listed: &[Listed]) -> Result<u64> {
    let mut bytes = 0;
    for file in listed {
        bytes += match file.folder {
            true => {
                let folder = disk.folder(&file.name)?;
                bytes_of(&*folder, &folder.list()?)?
            }
            false => file.bytes,
        };
    }
    Ok(bytes)
}

impl Directory {
    fn open(path: &Path) -> std::result::Result<Self, Failure> {
        let disk = Arc::new(RealDisk::open(path, false, Options::default())?) as Arc<dyn Disk>;
        let lock = path.join(LOCK_NAME);
        let owner = sys::locked_by(&lock).map_err(|cause| Failure::new(format!("{}: {cause}", lock.display())))?;
        if let Some(owner) = owner {
            return Err(Failure::new(format!(
                "{} is owned by {owner}; nmc ssd looks at directories without an owner",
                path.display()
            )));
        }
        let mut listed = disk.list()?;
        if !listed.iter().any(|file| file.regular && file.name == SUPER_NAME) {
            return Err(Failure::new(format!(
                "{} is not the directory of a tier: it has no {SUPER_NAME}",
                path.display()
            )));
        }
        let head = read_head(&*disk)?;
        let backend = backend_of(&head)?;
        let storage = backend::storage(backend, &disk);
        let is_file = |file: &&Listed| file.regular;
        let mut journals: Vec<u64> =
            listed.iter().filter(is_file).filter_map(|file| journal_number(&file.name)).collect();
        journals.sort_unstable();
        let state = match journals.last() {
            Some(number) => journal::read(&*disk, head.tier_id, *number),
            None => Err(Error::new(nanomc::base::status::NMC_ERR_CORRUPT, "the directory has no journal")),
        };
        let known = state.as_ref().cloned().unwrap_or_default();
        let found = recovery::find(&*storage, listed.clone(), &known)?;
        let mut others = Vec::new();
        let mut because = |names: Vec<String>, why: &'static str| others.extend(names.into_iter().map(|n| (n, why)));
        let path_of = |(folder, name): (Option<String>, String)| match folder {
            Some(folder) => format!("{folder}/{name}"),
            None => name,
        };
        let temporary = |file: &&Listed| file.name.ends_with(".tmp") && !found.foreign.contains(&file.name);
        let mut begun: Vec<String> = listed.iter().filter(temporary).map(|file| file.name.clone()).collect();
        begun.extend(found.leftovers.into_iter().map(path_of));
        begun.sort_unstable();
        begun.dedup();
        listed.retain(|file| !found.foreign.contains(&file.name) && !begun.contains(&file.name));
        because(begun, "not completed");
        because(found.aside.into_iter().map(path_of).collect(), "damaged, and set aside");
        because(found.foreign, "not the tier's");
        let mut buckets = found.buckets;
        for (marked, why) in
            [(&known.gone, "given up: the next owner deletes it"), (&known.lost, "could not be read, and was given up")]
        {
            let is_marked = |id: &u64| marked.binary_search(id).is_ok();
            because(buckets.iter().copied().filter(is_marked).map(|id| format!("bucket {id}")).collect(), why);
            buckets.retain(|id| !is_marked(id));
        }
        let file_bytes = bytes_of(&*disk, &listed)?;
        Ok(Self { disk, head, backend, storage, journals, buckets, file_bytes, others, state })
    }

    /// What a bucket is called.
    fn name(&self, id: u64) -> String {
        match self.backend {
            Backend::Bucket => bucket_name(id),
            Backend::Offset => format!("{DATA_NAME}, bucket {id}"),
            Backend::File | Backend::Noop => format!("bucket {id}"),
        }
    }

    /// What the journal says; its error, if it cannot be read.
    fn state(&self) -> Result<&State> {
        self.state.as_ref().map_err(Clone::clone)
    }

    /// The list of a bucket.
    fn bucket(&self, id: u64) -> Result<(format::Tail, Vec<u8>)> {
        let (tail, list) = self.storage.list(id)?;
        if tail.tier_id != self.head.tier_id {
            let text = format!("it says that it is of tier {:016x}", tail.tier_id);
            return Err(Error::new(nanomc::base::status::NMC_ERR_CORRUPT, text));
        }
        Ok((tail, list))
    }

    /// Fails if a record is not what the list of its bucket says.
    fn check(&self, bucket: u64, item: &Item<'_>, scratch: &mut Buffer) -> Result<()> {
        if self.head.fingerprint(item.space, item.key) != item.fingerprint {
            let text = "its fingerprint is not that of its key";
            return Err(Error::new(nanomc::base::status::NMC_ERR_CORRUPT, text));
        }
        let (file, block) = self.storage.locate(format::Spot { bucket, block: item.block });
        let file = self.storage.place(file).open(&*self.disk)?;
        check_record(&*file, block, item.key, item.put, item.value_bytes, scratch)
    }

    /// What became of the records, as far as the journal and newer ones tell.
    fn fates(&self, state: &State) -> Fates {
        let mut fates = Fates { state: state.clone(), newest: HashMap::new() };
        let progress = Progress::new();
        for (at, id) in self.buckets.iter().enumerate() {
            progress.bar(at as u64, self.buckets.len() as u64, "lists of buckets");
            // One that cannot be read has no say; whoever asked for it hears of it.
            let Ok((tail, list)) = self.bucket(*id) else { continue };
            for item in tail.items(&list).into_iter().flatten().map_while(Result::ok) {
                if fates.marked(*id, &item) == Fate::Live {
                    let newest = fates.newest.entry(item.fingerprint).or_insert((0, 0, 0));
                    *newest = (*newest).max((item.epoch, *id, item.block));
                }
            }
        }
        fates
    }

    fn name_of(&self, space: Space) -> String {
        let known = self.state.iter().flat_map(|state| &state.spaces).find(|(known, _)| known.number == space.number);
        known.map_or_else(|| format!("#{}", space.number), |(_, name)| name.escape_ascii().to_string())
    }
}

/// What became of every record.
struct Fates {
    state: State,
    /// The newest record of each key: epoch, bucket and block.
    newest: HashMap<Fingerprint, (u64, u64, u64)>,
}

impl Fates {
    /// By marks alone.
    fn marked(&self, bucket: u64, item: &Item<'_>) -> Fate {
        let known = self.state.spaces.iter().any(|(space, _)| *space == item.space);
        if self.state.is_dead(bucket, item.block) {
            Fate::Removed
        } else if known {
            Fate::Live
        } else {
            Fate::Flushed
        }
    }

    fn of(&self, bucket: u64, item: &Item<'_>) -> Fate {
        match self.marked(bucket, item) {
            Fate::Live if self.newest.get(&item.fingerprint) != Some(&(item.epoch, bucket, item.block)) => Fate::Older,
            fate => fate,
        }
    }
}

/// Text that goes out in large pieces.
#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.0, "{line}");
        if self.0.len() >= PAGE {
            term::print(&std::mem::take(&mut self.0));
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        term::print(&self.0);
    }
}

/// Every key that would be found.
fn ls(directory: &Directory, _: &Parsed) -> Outcome {
    let fates = directory.fates(directory.state()?);
    let mut page = Page::default();
    page.line(format_args!("{:>14} {:>10} {:>8}  namespace/key", "bytes", "bucket", "block"));
    for id in &directory.buckets {
        let (tail, list) = directory.bucket(*id).map_err(|error| error.context(directory.name(*id)))?;
        for item in tail.items(&list)? {
            let item = item?;
            if fates.of(*id, &item) == Fate::Live {
                let (space, key) = (directory.name_of(item.space), item.key.escape_ascii());
                page.line(format_args!("{:>14} {id:>10} {:>8}  {space}/{key}", item.value_bytes, item.block));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Records and bytes of values.
#[derive(Default, Clone, Copy)]
struct Sum {
    records: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, item: &Item<'_>) {
        self.records += 1;
        self.bytes += item.value_bytes;
    }

    fn text(self) -> String {
        format!("{:>12}   {:>10}", self.records, facts::size(self.bytes))
    }
}

/// The directory in numbers.
fn stat(directory: &Directory, _: &Parsed) -> Outcome {
    let Directory { head, journals, buckets, others, .. } = directory;
    let state = directory.state()?;
    let fates = directory.fates(state);
    let (mut sums, mut spaces, mut torn) = ([Sum::default(); 4], BTreeMap::<String, Sum>::new(), Vec::new());
    for id in buckets {
        let (tail, list) = match directory.bucket(*id) {
            Ok(bucket) => bucket,
            Err(error) => {
                torn.push(format!("{}: {error}", directory.name(*id)));
                continue;
            }
        };
        for item in tail.items(&list)? {
            let item = item?;
            let fate = fates.of(*id, &item);
            sums[fate as usize].add(&item);
            if fate == Fate::Live {
                spaces.entry(directory.name_of(item.space)).or_default().add(&item);
            }
        }
    }
    let mut page = Page::default();
    page.line(format_args!(
        "tier         {:016x}, made on {}, format {}, backend {}",
        head.tier_id,
        facts::date(head.created),
        format::FORMAT,
        directory.backend.name()
    ));
    page.line(format_args!("files        {} buckets, {}", buckets.len(), facts::size(directory.file_bytes)));
    page.line(format_args!("{:<12} {:>12}   {:>10}", "records", "number", "bytes"));
    for fate in [Fate::Live, Fate::Removed, Fate::Flushed, Fate::Older] {
        page.line(format_args!("  {:<10} {}", fate.name(), sums[fate as usize].text()));
    }
    page.line(format_args!("namespaces   {}", state.spaces.len()));
    for (space, name) in &state.spaces {
        let sum = spaces.get(&directory.name_of(*space)).copied().unwrap_or_default();
        let name = if name.is_empty() { "(the first)".to_owned() } else { name.escape_ascii().to_string() };
        page.line(format_args!(
            "  {name:<10} {}   number {}, generation {}",
            sum.text(),
            space.number,
            space.generation
        ));
    }
    let number = journals.last().copied().unwrap_or_default();
    page.line(format_args!(
        "journal      {}: {} dead records, {} buckets given up, buckets up to {} may have been used",
        journal_name(number),
        state.dead.len(),
        state.gone.len(),
        state.high
    ));
    for line in torn.iter().cloned().chain(others.iter().map(|(name, why)| format!("{name}: {why}"))) {
        page.line(format_args!("besides      {line}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads everything that would be found and compares all sums.
fn verify(directory: &Directory, _: &Parsed) -> Outcome {
    let (mut good, mut wrong) = (Sum::default(), Vec::new());
    if let Err(error) = directory.state() {
        wrong.push(format!("journal: {error}"));
    }
    // Without a journal nothing is known to be dead: then every record is looked at.
    let fates = directory.state().ok().map(|state| directory.fates(state));
    let progress = Progress::new();
    let mut scratch = Buffer::new(SCRATCH)?;
    for (at, id) in directory.buckets.iter().enumerate() {
        let name = directory.name(*id);
        let (tail, list) = match directory.bucket(*id) {
            Ok(bucket) => bucket,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        for item in tail.items(&list)? {
            let item = item?;
            if fates.as_ref().is_some_and(|fates| fates.of(*id, &item) != Fate::Live) {
                continue;
            }
            progress.bar(at as u64, directory.buckets.len() as u64, &format!("{name}, {}", facts::size(good.bytes)));
            match directory.check(*id, &item, &mut scratch) {
                Ok(()) => good.add(&item),
                Err(error) => wrong.push(format!("{name}, block {}, {}: {error}", item.block, item.key.escape_ascii())),
            }
        }
    }
    drop(progress);
    let mut page = Page::default();
    for line in &wrong {
        page.line(format_args!("wrong  {line}"));
    }
    // Nothing of it is read, by an owner either; but who misses something may find here where it was.
    for (name, why) in &directory.others {
        page.line(format_args!("besides  {name}: {why}"));
    }
    page.line(format_args!(
        "{} values are right, {}; {} things are wrong",
        good.records,
        facts::size(good.bytes),
        wrong.len()
    ));
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The structures themselves, of one file or of all.
fn dump(directory: &Directory, args: &Parsed) -> Outcome {
    let Directory { head, journals, buckets, .. } = directory;
    let only = args.text("--file")?;
    let wanted = |name: &str| only.is_none_or(|only| only == name);
    let mut page = Page::default();
    let mut shown = 0;
    if wanted(SUPER_NAME) {
        shown += 1;
        page.line(format_args!("{SUPER_NAME}: {head:?}"));
    }
    for number in journals.iter().filter(|number| wanted(&journal_name(**number))) {
        shown += 1;
        dump_journal(directory, *number, &mut page)?;
    }
    let fates = directory.state().ok().map(|state| directory.fates(state));
    // A bucket that is not a file is shown by its number, too.
    for id in buckets.iter().filter(|id| wanted(&directory.name(**id)) || wanted(&id.to_string())) {
        shown += 1;
        let name = directory.name(*id);
        let (tail, list) = match directory.bucket(*id) {
            Ok(bucket) => bucket,
            Err(error) => {
                page.line(format_args!("{name}: {error}"));
                continue;
            }
        };
        page.line(format_args!(
            "{name}: {} records in {} blocks, list of {} bytes at {}, highest epoch {}",
            tail.count, tail.records_blocks, tail.list_bytes, tail.list_at, tail.max_epoch
        ));
        for item in tail.items(&list)? {
            let item = item?;
            let fate = fates.as_ref().map_or("?", |fates| fates.of(*id, &item).name());
            let Item { block, space, epoch, store_id, value_bytes, key, .. } = item;
            let Shape { header_blocks, inline, blocks, granules, .. } = Shape::of(key.len(), value_bytes);
            page.line(format_args!(
                "  block {block} + {blocks} ({header_blocks} header{}, {granules} sums)  {fate}  epoch {epoch} of store {store_id:016x}  \
                 namespace {}.{}  {value_bytes} bytes  {}",
                if inline { ", value in it" } else { "" },
                space.number,
                space.generation,
                key.escape_ascii()
            ));
        }
    }
    match (only, shown) {
        (Some(name), 0) => Err(Failure::new(format!("there is no bucket or journal {name:?} in the directory"))),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn dump_journal(directory: &Directory, number: u64, page: &mut Page) -> Result<()> {
    let file = directory.disk.open_buffered(&journal_name(number), false)?;
    let name = journal_name(number);
    match journal::replay(&*file, directory.head.tier_id) {
        Ok(replay) => {
            let room = file.bytes()? / JOURNAL_RECORD as u64;
            page.line(format_args!("{name}: {} records of {room}, {} lost", replay.next, replay.lost));
            for (number, entry) in &replay.entries {
                page.line(format_args!("  {number:>6} {}", told(entry)));
            }
        }
        Err(error) => page.line(format_args!("{name}: {error}")),
    }
    Ok(())
}

/// A record of the journal in words.
fn told(entry: &Entry) -> String {
    match entry {
        Entry::Start { tier_id, journal } => format!("start      journal {journal} of tier {tier_id:016x}"),
        Entry::Dead { bucket, block } => format!("dead       bucket {bucket}, block {block}"),
        Entry::Gone { bucket } => format!("gone       bucket {bucket}"),
        Entry::Namespace { name, space } => {
            format!(
                "namespace  {:?} is number {}, generation {}",
                name.escape_ascii().to_string(),
                space.number,
                space.generation
            )
        }
        Entry::Generation(space) => format!("flushed    namespace {}, generation {}", space.number, space.generation),
        Entry::High { bucket } => format!("high       buckets up to {bucket} may have been used"),
        Entry::Extent { bucket, first, blocks } => format!("extent     bucket {bucket}, blocks {first} + {blocks}"),
        Entry::Lost { bucket } => format!("lost       bucket {bucket}: it could not be read"),
        Entry::Position { term, number } => format!("position   {number} of term {term}"),
    }
}
