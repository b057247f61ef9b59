//! `nmc`, the command line beside the library: what the machine offers (`doctor`), what the library costs (`bench`),
//! a master of its own (`master`), and a look at a world from outside (`dump`), at the directory of an SSD tier (`ssd`) or at a cluster (`top`). Exit codes:
//! 0 done, 1 failed or "no", 2 not understood.

mod args;
mod bench;
mod doctor;
mod dump;
mod facts;
mod json;
mod master;
mod ssd;
mod sys;
mod term;
mod top;

use args::{Command, Failure, Opt, Parsed};
use std::ffi::OsString;
use std::process::ExitCode;

/// How a command ends when it ends in order.
type Outcome = Result<ExitCode, Failure>;

const JSON: Opt = Opt::flag("--json", "machine-readable output on stdout");
const DIR: Opt =
    Opt::value("--dir", "DIR", "directory in which the ranks meet (default: the user's runtime directory)");
const NAME: Opt = Opt::value("--name", "NAME", "name of the world");

const COMMANDS: &[Command] = &[
    Command {
        name: "doctor",
        positional: "",
        about: "what this machine offers, what is missing for which feature, and how to get it",
        options: &[JSON],
        run: doctor::run,
    },
    Command {
        name: "bench",
        positional: "<area|all>",
        about: "measures the library against a baseline in the same run; areas: ffi, world, store, ssd, cluster, ep, kv, python",
        options: &[
            JSON,
            Opt::flag("--quick", "fewer repetitions, under 40 s for all areas"),
            Opt::value("--only", "TEXT", "only measurements that have this in their names, such as ssd.get"),
            Opt::value("--gpu", "PROGRAM", "ep: take over what this program measures on a GPU (benches/gpu)"),
            Opt::value("--peers", "PROGRAM", "kv: compare with what this program measures (benches/, kv_peers)"),
            Opt::value("--report", "FILE", "rewrite the benchmark section of this Markdown file, with plots beside it"),
        ],
        run: bench::run,
    },
    Command {
        name: "master",
        positional: "",
        about: "serves a world as its external master until SIGTERM or SIGINT",
        options: &[
            NAME,
            Opt::value("--world-size", "N", "number of ranks"),
            Opt::value("--heap-bytes", "B", "bytes of every heap; KiB, MiB and GiB may follow the number"),
            DIR,
            Opt::value("--heap-kind", "KIND", "host (default) or cuda"),
            Opt::value("--words", "N", "control words per rank (default 64)"),
            Opt::value("--min-ranks", "N", "ranks that must be there for a join to complete (default all)"),
            Opt::value("--ssd", "DIR", "owns an SSD tier in this directory, for stores in host heaps"),
            Opt::value("--ssd-capacity", "B", "most bytes that its files take (default: what the file system has)"),
            Opt::value("--ssd-evict", "WHAT", "when it is full: never (default; offloading pauses), fifo or lru"),
            Opt::value("--ssd-backend", "NAME", "bucket (default), file-per-key or offset"),
            Opt::value("--ssd-max-objects", "N", "most values on disk (default 1,048,576, or twice what is there)"),
            Opt::value(
                "--ssd-write-rate",
                "B",
                "bytes in a second that are written ahead of eviction (default: no limit)",
            ),
            Opt::value("--ssd-bucket-bytes", "B", "bytes after which a bucket is complete (default 256 MiB)"),
            Opt::value("--ssd-bucket-keys", "N", "values after which it is, 4,096 at most (default 500)"),
            Opt::value(
                "--ssd-heartbeat-ms",
                "N",
                "longest time between two looks for something to write (default 10000)",
            ),
            Opt::value("--ssd-depth", "N", "requests in flight for one call, 1,024 at most (default 32)"),
            Opt::value(
                "--ssd-admit-reads",
                "N",
                "writes ahead only what was read in so many milliseconds (default 0: all)",
            ),
            Opt::value(
                "--ssd-admit-priority",
                "N",
                "writes ahead only what has this priority, 0 to 3, or a higher one",
            ),
            Opt::flag("--ssd-no-direct", "through the page cache"),
            Opt::flag("--ssd-no-uring", "without io_uring"),
            Opt::flag("--ssd-paused", "writes nothing ahead until a rank calls nmc_tier_resume"),
            Opt::flag("--ssd-meta", "writes the list of every bucket twice; for the backend bucket"),
            Opt::flag("--ssd-events", "keeps what is stored and evicted, for nmc_tier_events of the ranks"),
            Opt::flag("--ssd-delete-torn", "deletes buckets whose end is damaged, instead of renaming them"),
            Opt::flag("--ssd-write-through", "puts return when their values are on disk"),
            Opt::flag("--ssd-durable-remove", "removals return when they are safe from a power loss"),
            Opt::flag("--ssd-reset-if-damaged", "begins anew if the directory's own files are damaged"),
            Opt::flag("--ssd-other-directory", "takes another directory than the store had before"),
        ],
        run: master::run,
    },
    Command {
        name: "dump",
        positional: "",
        about: "what can be seen of a world without joining it; exit code 1 when no master serves it",
        options: &[NAME, DIR],
        run: dump::run,
    },
    Command {
        name: "ssd",
        positional: ssd::WHAT,
        about: "what lies in the directory of an SSD tier: ls (keys), stat (numbers), verify (reads everything and compares all \
                checksums; exit code 1 if something is wrong), dump (structures). Changes nothing; the directory must have no owner",
        options: &[Opt::value("--file", "NAME", "dump: this bucket or journal only")],
        run: ssd::run,
    },
    Command {
        name: "top",
        positional: "",
        about: "the masters of a cluster, as their admin page shows them: segments, hit rates, members, slow calls; live on a terminal \
                until Ctrl-C, else as text. With --once exit code 1 when no leader answers",
        options: &[
            Opt::value(
                "--master",
                "LIST",
                "HOST:PORT of the masters' --metrics_port, separated by commas (default 127.0.0.1:9003)",
            ),
            Opt::value("--token_file", "FILE", "file with the masters' token"),
            Opt::value("--interval", "S", "seconds between two looks (default 2)"),
            Opt::flag("--once", "one look"),
            Opt::flag("--json", "a line of JSON for each look: masters, leader, and the leader's admin documents"),
        ],
        run: top::run,
    },
    Command {
        name: "abi",
        positional: "",
        about: "sizes, offsets and defaults of the C structs",
        options: &[],
        run: abi,
    },
];

fn main() -> ExitCode {
    match dispatch(std::env::args_os().skip(1).collect()) {
        Ok(code) => code,
        Err(failure) => {
            term::print_error(&format!("nmc: {}\n", failure.message));
            ExitCode::from(failure.code)
        }
    }
}

fn dispatch(mut words: Vec<OsString>) -> Outcome {
    if words.is_empty() {
        return Err(Failure::usage(format!("which command? One of: {}. See nmc --help", names())));
    }
    let first = words.remove(0);
    let Some(name) = first.to_str() else {
        return Err(Failure::usage(format!("{first:?} is not a command; see nmc --help")));
    };
    match name {
        "--help" | "-h" | "help" => {
            let topic = words.first().and_then(|w| w.to_str()).and_then(find);
            term::print(&topic.map_or_else(overview, Command::help));
            Ok(ExitCode::SUCCESS)
        }
        "--version" | "-V" => {
            term::print(concat!("nmc ", env!("CARGO_PKG_VERSION"), "\n"));
            Ok(ExitCode::SUCCESS)
        }
        // Not for people: one process of a benchmark.
        bench::rank::SUBCOMMAND => bench::rank::run(&words),
        _ => {
            let Some(command) = find(name) else {
                return Err(Failure::usage(format!(
                    "there is no command {name:?}; the commands are {}. See nmc --help",
                    names()
                )));
            };
            let parsed = command.parse(words)?;
            if parsed.help {
                term::print(&command.help());
                return Ok(ExitCode::SUCCESS);
            }
            (command.run)(&parsed)
        }
    }
}

fn find(name: &str) -> Option<&'static Command> {
    COMMANDS.iter().find(|c| c.name == name)
}

fn names() -> String {
    COMMANDS.iter().map(|c| c.name).collect::<Vec<_>>().join(", ")
}

fn overview() -> String {
    let mut text = String::from(concat!(
        "nmc ",
        env!("CARGO_PKG_VERSION"),
        ": tools for nanomc, the memory that LLM serving processes share\n\nUsage: nmc <command> [options]\n\nCommands:\n"
    ));
    for command in COMMANDS {
        text.push_str(&format!("  {:<8} {}\n", command.name, command.about));
    }
    text.push_str("\nnmc <command> --help explains a command. NO_COLOR=1 turns colours off.\n");
    text
}

fn abi(_: &Parsed) -> Outcome {
    term::print(&nanomc::ffi::abi::table());
    Ok(ExitCode::SUCCESS)
}
