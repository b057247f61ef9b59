//! What a master is started with: flags, then the environment, then a file, then defaults. One table says what there is, and the
//! help is that table. Whatever is not understood is refused with exit code 2, the value, and where it came from.

use nanomc::cluster::directory::{Config, Strategy};
use nanomc::cluster::net::secure::Files;
use nanomc::cluster::run::Address;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Why the program ends early: a sentence for the user and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// Exit code of the process.
    pub code: u8,
    /// What was wrong and what to do.
    pub message: String,
}

impl Failure {
    /// Something went wrong.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// The options were not understood, or contradict each other.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }
}

impl From<nanomc::base::Error> for Failure {
    fn from(error: nanomc::base::Error) -> Self {
        Self::new(error.message)
    }
}

struct Opt {
    name: &'static str,
    value: &'static str,
    about: &'static str,
}

const fn opt(name: &'static str, value: &'static str, about: &'static str) -> Opt {
    Opt { name, value, about }
}

/// Every option, by sections of the help.
const SECTIONS: &[(&str, &[Opt])] = &[
    (
        "Where it listens",
        &[
            opt("port", "N", "port for gRPC and framed connections; 0 is any free one, off is none (default 50051)"),
            opt(
                "host",
                "IP",
                "address for that; other than loopback only with a token or client certificates (127.0.0.1)",
            ),
            opt("listen", "LIST", "more addresses for framed connections: IP:PORT or unix:/PATH, separated by commas"),
            opt(
                "metrics_port",
                "N",
                "port for /metrics, /health and the admin page; 0 is any free one, off is none (9003)",
            ),
            opt("metrics_host", "IP", "address for that; other than loopback only with a token (127.0.0.1)"),
        ],
    ),
    (
        "How it works",
        &[
            opt("max_threads", "N", "threads that serve gRPC and HTTP, 1 to 256; the directory itself has one (4)"),
            opt("strategy", "NAME", "where new objects go: random, least-loaded or topology (random)"),
            opt("seed", "N", "what chance begins with: the same seed places the same (default: by chance)"),
            opt("away_ms", "N", "a node that is silent for so long is out of lookups (10000)"),
            opt("gone_ms", "N", "a node that is silent for so long is no member any more (3600000)"),
            opt(
                "settle_ms",
                "N",
                "a new leader waits so long for silent members before it says NOT_FOUND, and lets new keys be put (3000)",
            ),
            opt("put_ms", "N", "a put that has not ended so long after its client's deadline is forgotten (30000)"),
            opt(
                "re_replicate",
                "N",
                "copies made again in a second, at most, of what is lost with nodes; 0 is none (0)",
            ),
        ],
    ),
    (
        "What outlives it",
        &[
            opt(
                "state",
                "DIR",
                "without etcd: directory for the term and the members, one at a time (~/.local/state/nanomc-master)",
            ),
            opt("etcd", "LIST", "etcd that elects one of several masters: URLs or HOST:PORT, separated by commas"),
            opt("etcd_prefix", "TEXT", "what its keys begin with: one for each cluster (/nanomc)"),
            opt("etcd_lease", "SECONDS", "a leader that etcd has not heard of for so long is replaced, 2 to 60 (5)"),
            opt("etcd_ca", "FILE", "certificates (PEM) that etcd's must be signed by, for https URLs"),
            opt("etcd_cert", "FILE", "certificate (PEM) for etcd, with etcd_key"),
            opt("etcd_key", "FILE", "key (PEM) of that"),
            opt("etcd_user", "NAME", "user of etcd; the password is in the file etcd_password"),
            opt("etcd_password", "FILE", "file with the password"),
            opt("advertise", "HOST:PORT", "how clients call this master in their lists (default: where it listens)"),
        ],
    ),
    (
        "Who may speak to it",
        &[
            opt("token_file", "FILE", "file with a token that everybody must give; at least 16 bytes"),
            opt("tls_cert", "FILE", "certificate chain (PEM), with tls_key; without tls_ca for gRPC alone"),
            opt("tls_key", "FILE", "key (PEM) of that"),
            opt("tls_ca", "FILE", "certificates (PEM) that those of all who connect must be signed by"),
        ],
    ),
    (
        "Other",
        &[opt(
            "config",
            "FILE",
            "file with lines `name = value`; names as here; a line that begins with # is a comment",
        )],
    ),
];

/// Prefix of the options in the environment.
const ENVIRONMENT: &str = "NMC_MASTER_";

fn options() -> impl Iterator<Item = &'static Opt> {
    SECTIONS.iter().flat_map(|(_, options)| options.iter())
}

/// The help text.
#[must_use]
pub fn help() -> String {
    let mut text = String::from(
        "Usage: nanomc-master [options]\n\n\
         The master of a nanomc cluster: it knows which node has which object and where new ones go. Values do not pass\n\
         through it. SIGTERM or SIGINT ends it in order. Exit codes: 0 ended in order, 1 failed, 2 not understood.\n",
    );
    for (title, options) in SECTIONS {
        text.push_str(&format!("\n{title}:\n"));
        for option in *options {
            let left = format!("--{} {}", option.name, option.value);
            text.push_str(&format!("  {left:<24} {}\n", option.about));
        }
    }
    text.push_str(
        "\nEvery option can be given as an environment variable (NMC_MASTER_PORT=50052) or in the file too; a flag goes\n\
         before the environment, that before the file. --max-threads, --max_threads and -max_threads=8 are the same.\n\
         Several masters with the same --etcd and --etcd_prefix: one leads, the others wait.\n",
    );
    text
}

/// Files and keys for TLS, as they were named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Certificate chain.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who signs the certificates of clients; without it they need none.
    pub ca: Option<PathBuf>,
}

impl Tls {
    /// What framed connections need; nothing if they do not speak TLS.
    #[must_use]
    pub fn files(&self) -> Option<Files> {
        let (cert, key) = (self.cert.clone(), self.key.clone());
        self.ca.clone().map(|ca| Files { cert, key, ca })
    }
}

/// How etcd is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Etcd {
    /// URLs of its members.
    pub endpoints: Vec<String>,
    /// What keys begin with; no slash at the end.
    pub prefix: String,
    /// Seconds of a lease.
    pub lease_s: u32,
    /// Certificates that its own must be signed by.
    pub ca: Option<PathBuf>,
    /// Certificate and key to show.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// User, and the file with the password.
    pub user: Option<(String, PathBuf)>,
}

/// All options, checked.
#[derive(Debug)]
pub struct Options {
    /// Where gRPC and framed connections come in.
    pub address: Option<SocketAddr>,
    /// Where framed connections come in besides.
    pub listen: Vec<Address>,
    /// Where HTTP comes in.
    pub metrics: Option<SocketAddr>,
    /// Threads of the runtime.
    pub max_threads: usize,
    /// What the directory is set up with; its secret is not set.
    pub directory: Config,
    /// Directory for what must not be forgotten.
    pub state: PathBuf,
    /// Who elects, if anybody does.
    pub etcd: Option<Etcd>,
    /// How clients call this master.
    pub advertise: Option<String>,
    /// What everybody must give.
    pub token: Option<String>,
    /// TLS for gRPC, and for frames with the authority's certificates.
    pub tls: Option<Tls>,
}

/// What the user wants.
#[derive(Debug)]
pub enum Wanted {
    /// To be told what there is.
    Help,
    /// To be told the version.
    Version,
    /// A master.
    Master(Box<Options>),
}

/// Sorts the words of the command line, and what the environment and the file say.
pub fn read(words: Vec<String>, environment: impl Fn(&str) -> Option<String>) -> Result<Wanted, Failure> {
    let mut given = Given { values: BTreeMap::new() };
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" | "-help" => return Ok(Wanted::Help),
            "--version" | "-V" | "-version" => return Ok(Wanted::Version),
            _ => {}
        }
        let Some(flag) = word.strip_prefix("--").or(word.strip_prefix('-')) else {
            return Err(Failure::usage(format!("{word:?} is one argument too many; see nanomc-master --help")));
        };
        let (name, attached) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        let option = find(name)
            .ok_or_else(|| Failure::usage(format!("there is no option --{name}; see nanomc-master --help")))?;
        let value = match attached.map(str::to_owned).or_else(|| words.next()) {
            Some(value) => value,
            None => return Err(Failure::usage(format!("--{} needs a value ({})", option.name, option.value))),
        };
        // Of what was meant to be said nothing is there: a variable that is not set, in a script.
        if value.is_empty() {
            return Err(Failure::usage(format!("--{} is empty; without it the default counts", option.name)));
        }
        // The last one counts: a script can add its own behind those of others.
        given.values.insert(option.name, (value, format!("--{}", option.name)));
    }
    for option in options() {
        let variable = format!("{ENVIRONMENT}{}", option.name.to_uppercase());
        if let Some(value) = environment(&variable) {
            given.values.entry(option.name).or_insert((value, variable));
        }
    }
    if let Some((path, _)) = given.values.get("config").cloned() {
        given.read_file(Path::new(&path))?;
    }
    given.options(&environment).map(|options| Wanted::Master(Box::new(options)))
}

fn find(name: &str) -> Option<&'static Opt> {
    let name = name.replace('-', "_");
    options().find(|option| option.name == name)
}

/// What was given, each with where it stands.
struct Given {
    values: BTreeMap<&'static str, (String, String)>,
}

impl Given {
    /// One value a line and no more: whatever a section or a list of lists would say, the names of the options say already.
    fn read_file(&mut self, path: &Path) -> Result<(), Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Failure::usage(format!("the config file {} can not be read: {e}", path.display())))?;
        let mut of_file = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = format!("{}:{number}", path.display());
            let Some((name, value)) = line.split_once('=') else {
                return Err(Failure::usage(format!("{place}: {line:?} is not `name = value`")));
            };
            let option = find(name.trim()).filter(|option| option.name != "config");
            let Some(option) = option else {
                return Err(Failure::usage(format!("{place}: there is no option {:?}", name.trim())));
            };
            let value = (value.trim().to_owned(), format!("{place}: {}", option.name));
            if of_file.insert(option.name, value).is_some() {
                return Err(Failure::usage(format!("{place}: {} is there twice", option.name)));
            }
        }
        for (name, value) in of_file {
            self.values.entry(name).or_insert(value);
        }
        Ok(())
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(|(value, _)| value.as_str()).filter(|value| !value.is_empty())
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    /// The sentence that refuses a value.
    fn refuse(&self, name: &str, why: &str) -> Failure {
        match self.values.get(name) {
            Some((value, place)) => Failure::usage(format!("{place} {value:?} {why}")),
            None => Failure::usage(format!("--{name} {why}")),
        }
    }

    fn parse<T: std::str::FromStr>(&self, name: &str, default: T, what: &str) -> Result<T, Failure> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().map_err(|_| self.refuse(name, &format!("is not {what}")))
    }

    fn number(&self, name: &str, default: u64, least: u64, most: u64) -> Result<u64, Failure> {
        let what = format!("a whole number from {least} to {most}");
        let number = self.parse(name, default, &what)?;
        if (least..=most).contains(&number) { Ok(number) } else { Err(self.refuse(name, &format!("is not {what}"))) }
    }

    fn list(&self, name: &str) -> impl Iterator<Item = &str> {
        self.text(name).unwrap_or_default().split(',').map(str::trim).filter(|item| !item.is_empty())
    }

    fn options(&self, environment: &impl Fn(&str) -> Option<String>) -> Result<Options, Failure> {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let host = self.parse("host", loopback, "an IP address")?;
        let address = match self.text("port") {
            Some("off") => None,
            _ => Some(SocketAddr::new(host, self.parse("port", 50051, "a port, nor off")?)),
        };
        let metrics_host = self.parse("metrics_host", loopback, "an IP address")?;
        let metrics = match self.text("metrics_port") {
            Some("off") => None,
            _ => Some(SocketAddr::new(metrics_host, self.parse("metrics_port", 9003, "a port, nor off")?)),
        };
        let listen = self.list("listen").map(|item| {
            Address::literal(item).map_err(|error| self.refuse("listen", &format!("can not be: {}", error.message)))
        });
        let strategy = match self.text("strategy") {
            None | Some("random") => Strategy::Random,
            Some("least-loaded" | "least_loaded") => Strategy::LeastLoaded,
            Some("topology") => Strategy::Topology,
            Some(_) => return Err(self.refuse("strategy", "is none of random, least-loaded and topology")),
        };
        let seed = match self.text("seed") {
            None => nanomc::base::id::random_u64()?,
            Some(_) => self.parse("seed", 0, "a whole number below 2^64")?,
        };
        const DAY: u64 = 86_400_000;
        let default = Config::default();
        let directory = Config {
            sees_ends: true,
            strategy,
            seed,
            durable: self.text("etcd").is_some(),
            away_ms: self.number("away_ms", default.away_ms, 100, DAY)?,
            gone_ms: self.number("gone_ms", default.gone_ms, 100, 365 * DAY)?,
            settle_ms: self.number("settle_ms", default.settle_ms, 0, DAY)?,
            put_ms: self.number("put_ms", default.put_ms, 100, DAY)?,
            re_replicate: u32::try_from(self.number("re_replicate", 0, 0, 1_000_000)?).unwrap_or(0),
            ..default
        };
        if directory.gone_ms < directory.away_ms {
            let why = format!("is less than away_ms, {}: a node is away before it is gone", directory.away_ms);
            return Err(self.refuse("gone_ms", &why));
        }
        let options = Options {
            address,
            listen: listen.collect::<Result<_, _>>()?,
            metrics,
            max_threads: usize::try_from(self.number("max_threads", 4, 1, 256)?).unwrap_or(4),
            directory,
            state: self.path("state").unwrap_or_else(|| default_state(environment)),
            etcd: self.etcd()?,
            advertise: self.text("advertise").map(str::to_owned),
            token: self.token()?,
            tls: self.tls()?,
        };
        self.check_open(&options)?;
        Ok(options)
    }

    /// Whoever can be reached from elsewhere must know who comes.
    fn check_open(&self, options: &Options) -> Result<(), Failure> {
        let certificates = options.tls.as_ref().is_some_and(|tls| tls.ca.is_some());
        let refuse = |name, how| {
            let why = format!("is not loopback: anybody could read and remove everything. Give {how}");
            Err(self.refuse(name, &why))
        };
        if options.address.is_some_and(|at| !at.ip().is_loopback()) && options.token.is_none() && !certificates {
            return refuse("host", "--token_file, or --tls_cert, --tls_key and --tls_ca");
        }
        if options.listen.iter().any(|address| !address.is_local()) && options.token.is_none() && !certificates {
            return refuse("listen", "--token_file, or --tls_cert, --tls_key and --tls_ca");
        }
        if options.metrics.is_some_and(|address| !address.ip().is_loopback()) && options.token.is_none() {
            return refuse("metrics_host", "--token_file");
        }
        if options.address.is_none() && options.listen.is_empty() {
            return Err(
                self.refuse("port", "leaves nobody a way to come: say with --listen where framed connections do")
            );
        }
        let framed = options.listen.first().and_then(|address| match address {
            Address::Tcp(at) => Some(*at),
            Address::Unix(_) => None,
        });
        let anywhere = options.address.or(framed).is_some_and(|at| at.ip().is_unspecified());
        if options.etcd.is_some() && options.advertise.is_none() && anywhere {
            let why = "is every address of this machine: say with --advertise HOST:PORT how clients call this master";
            return Err(self.refuse("host", why));
        }
        Ok(())
    }

    fn token(&self) -> Result<Option<String>, Failure> {
        let Some(path) = self.path("token_file") else { return Ok(None) };
        let token = read_secret(&path).map_err(|why| self.refuse("token_file", &why))?;
        if !(16..=512).contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let why =
                format!("holds a token of {} bytes; 16 to 512 visible ASCII characters are possible", token.len());
            return Err(self.refuse("token_file", &why));
        }
        Ok(Some(token))
    }

    fn tls(&self) -> Result<Option<Tls>, Failure> {
        match (self.path("tls_cert"), self.path("tls_key"), self.path("tls_ca")) {
            (Some(cert), Some(key), ca) => Ok(Some(Tls { cert, key, ca })),
            (None, None, None) => Ok(None),
            (None, _, _) => Err(Failure::usage("tls_key and tls_ca are nothing without --tls_cert FILE")),
            (Some(_), None, _) => Err(self.refuse("tls_cert", "is nothing without --tls_key FILE")),
        }
    }

    fn etcd(&self) -> Result<Option<Etcd>, Failure> {
        let endpoints: Vec<String> = self
            .list("etcd")
            .map(|item| if item.contains("://") { item.to_owned() } else { format!("http://{item}") })
            .collect();
        if endpoints.is_empty() {
            let others = options().filter(|option| option.name.starts_with("etcd_") || option.name == "advertise");
            return match others.into_iter().find(|option| self.text(option.name).is_some()) {
                Some(option) => Err(self.refuse(option.name, "is nothing without --etcd LIST")),
                None => Ok(None),
            };
        }
        if self.text("state").is_some() {
            return Err(self.refuse("state", "is for a master without etcd, and --etcd is given"));
        }
        let prefix = self.text("etcd_prefix").unwrap_or("/nanomc").trim_end_matches('/').to_owned();
        if prefix.is_empty() {
            return Err(self.refuse("etcd_prefix", "leaves no name for the cluster's keys"));
        }
        let identity = match (self.path("etcd_cert"), self.path("etcd_key")) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(Failure::usage("etcd_cert and etcd_key belong together")),
        };
        let user = match (self.text("etcd_user"), self.path("etcd_password")) {
            (Some(name), Some(file)) => Some((name.to_owned(), file)),
            (None, None) => None,
            _ => return Err(Failure::usage("etcd_user and etcd_password belong together")),
        };
        let lease_s = u32::try_from(self.number("etcd_lease", 5, 2, 60)?).unwrap_or(5);
        Ok(Some(Etcd { endpoints, prefix, lease_s, ca: self.path("etcd_ca"), identity, user }))
    }
}

/// The first line of a file that not everybody can read.
pub fn read_secret(path: &Path) -> Result<String, String> {
    use std::os::unix::fs::PermissionsExt as _;
    let text = std::fs::read_to_string(path).map_err(|e| format!("can not be read: {e}"))?;
    let mode = std::fs::metadata(path).map_err(|e| format!("can not be looked at: {e}"))?.permissions().mode();
    // Its group may read it: so are files that systemd hands over (LoadCredential).
    if mode & 0o027 != 0 {
        return Err(format!("has mode {:03o}: others can read or change it. chmod 600 it", mode & 0o777));
    }
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Where the state is if nobody says: what systemd gives, else the user's place for such, else the machine's.
fn default_state(environment: &impl Fn(&str) -> Option<String>) -> PathBuf {
    let set = |name| environment(name).filter(|value| value.starts_with('/'));
    if let Some(given) = set("STATE_DIRECTORY") {
        return PathBuf::from(given);
    }
    let user = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| format!("{home}/.local/state")));
    user.map_or_else(|| PathBuf::from("/var/lib/nanomc-master"), |base| Path::new(&base).join("nanomc-master"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(words: &[&str], environment: &[(&str, &str)]) -> Result<Options, Failure> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let environment = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        match read(words, environment)? {
            Wanted::Master(options) => Ok(*options),
            other => panic!("{other:?}"),
        }
    }

    fn refusal(words: &[&str]) -> String {
        let failure = read_with(words, &[]).unwrap_err();
        assert_eq!(failure.code, 2);
        failure.message
    }

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        use std::os::unix::fs::PermissionsExt as _;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn defaults_are_those_of_the_seed_on_loopback() {
        let options = read_with(&[], &[("HOME", "/home/x")]).unwrap();
        assert_eq!(options.address.unwrap().to_string(), "127.0.0.1:50051");
        assert_eq!(options.metrics.unwrap().to_string(), "127.0.0.1:9003");
        assert_eq!((options.max_threads, options.directory.strategy), (4, Strategy::Random));
        assert_eq!(options.state, Path::new("/home/x/.local/state/nanomc-master"));
        assert!(options.etcd.is_none() && !options.directory.durable);
    }

    #[test]
    fn a_flag_goes_before_the_environment_and_that_before_the_file() {
        let config = file("# mine\nport = 1\nmax_threads = 2\nseed=3\nstrategy = topology\n", 0o644);
        let path = config.path().to_str().unwrap();
        let environment = [("NMC_MASTER_PORT", "10"), ("NMC_MASTER_MAX_THREADS", "20"), ("NMC_MASTER_CONFIG", path)];
        let options = read_with(&["-max-threads=30"], &environment).unwrap();
        assert_eq!((options.address.unwrap().port(), options.max_threads, options.directory.seed), (10, 30, 3));
        assert_eq!(options.directory.strategy, Strategy::Topology);
    }

    #[test]
    fn a_flag_that_is_empty_is_refused_and_of_several_the_last_counts() {
        for words in [&["--port="][..], &["--port", ""], &["-port="]] {
            assert!(refusal(words).starts_with("--port is empty"), "{words:?}");
        }
        // However it is spelled.
        assert_eq!(read_with(&["--max_threads", "2", "-max-threads=3"], &[]).unwrap().max_threads, 3);
        // Control: once, and not empty. An empty variable still says nothing, and so does an empty line of the file.
        let config = file("# port = 9\nstrategy =\nmax_threads = 7 # not a comment\n", 0o644);
        let path = config.path().to_str().unwrap();
        let options = read_with(&["--port=7", "--max_threads", "3", "--config", path], &[("NMC_MASTER_SEED", "")]);
        assert_eq!(options.unwrap().address.unwrap().port(), 7);
        assert!(refusal(&["--config", path]).contains(":3: max_threads \"7 # not a comment\""));
        assert!(help().contains("a line that begins with # is a comment"));
    }

    #[test]
    fn what_is_not_understood_is_named_with_its_value_and_place() {
        let config = file("port = many\n", 0o644);
        let path = config.path().to_str().unwrap();
        let cases: [(&[&str], &str); 13] = [
            (&["--prot", "1"], "no option --prot"),
            (&["x"], "\"x\" is one argument too many"),
            (&["--port"], "--port needs a value"),
            (&["--port", "70000"], "--port \"70000\" is not a port"),
            (&["--port", "off"], "leaves nobody a way to come"),
            (&["--config", path], ":1: port \"many\" is not a port"),
            (&["--config", "/nowhere"], "/nowhere can not be read"),
            (&["--max_threads", "0"], "from 1 to 256"),
            (&["--strategy", "best"], "\"best\" is none of random"),
            (&["--listen", "somewhere"], "\"somewhere\""),
            (&["--tls_cert", "x"], "nothing without --tls_key"),
            (&["--etcd_lease", "5"], "nothing without --etcd"),
            (&["--away_ms", "5000", "--gone_ms", "4000"], "less than away_ms, 5000"),
        ];
        for (words, part) in cases {
            let message = refusal(words);
            assert!(message.contains(part), "{words:?}: {message}");
        }
    }

    #[test]
    fn who_can_be_reached_from_elsewhere_must_know_who_comes() {
        for words in [["--host", "0.0.0.0"], ["--listen", "10.0.0.1:7"], ["--metrics_host", "::"]] {
            assert!(refusal(&words).contains("is not loopback"), "{words:?}");
        }
        // A certificate of its own tells a master nothing about who comes.
        assert!(refusal(&["--host", "0.0.0.0", "--tls_cert", "c", "--tls_key", "k"]).contains("is not loopback"));
        assert!(read_with(&["--host", "0.0.0.0", "--tls_cert", "c", "--tls_key", "k", "--tls_ca", "a"], &[]).is_ok());
        let token = file("0123456789abcdef\n", 0o600);
        let path = token.path().to_str().unwrap();
        assert!(read_with(&["--host", "::", "--metrics_host", "::", "--token_file", path], &[]).is_ok());
    }

    #[test]
    fn a_token_that_others_can_read_or_guess_is_none() {
        for (text, mode, part) in [("0123456789abcdef", 0o644, "mode 644"), ("short", 0o600, "token of 5 bytes")] {
            let token = file(text, mode);
            let message = refusal(&["--token_file", token.path().to_str().unwrap()]);
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn the_help_names_every_option_once() {
        let help = help();
        for option in options() {
            assert_eq!(help.matches(&format!("  --{} ", option.name)).count(), 1, "{}", option.name);
        }
        assert!(help.lines().all(|line| line.chars().count() <= 130), "lines fit a terminal");
    }
}
