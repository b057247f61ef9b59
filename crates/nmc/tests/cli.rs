//! The command line as a user meets it: the real program, its output and its exit codes. No timing is asserted.

#![allow(unsafe_code, reason = "a signal is sent to a process")]
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may")]

#[path = "../../../tests/common/mod.rs"]
mod common;

use nanomc::world::{Config, Hosting, World};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn nmc(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nmc"));
    command.args(args).stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> Output {
    nmc(args).output().expect("nmc starts")
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8 on stdout")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A JSON value, as far as the tests look into one.
#[derive(Debug, Clone, PartialEq)]
enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    Array(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

/// Reads JSON strictly: what it does not know, it refuses.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn document(text: &'a str) -> Json {
        let mut reader = Self { rest: text };
        let value = reader.value();
        reader.space();
        assert!(reader.rest.is_empty(), "after the JSON value: {:?}", reader.rest);
        value
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, token: &str) -> bool {
        self.space();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn need(&mut self, token: &str) {
        assert!(self.take(token), "{token:?} expected at {:?}", self.rest);
    }

    fn value(&mut self) -> Json {
        for (token, value) in [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))] {
            if self.take(token) {
                return value;
            }
        }
        if self.take("{") {
            let mut fields = BTreeMap::new();
            while !self.take("}") {
                if !fields.is_empty() {
                    self.need(",");
                }
                let name = self.text();
                self.need(":");
                let value = self.value();
                assert!(fields.insert(name.clone(), value).is_none(), "{name:?} is there twice");
            }
            return Json::Object(fields);
        }
        if self.take("[") {
            let mut items = Vec::new();
            while !self.take("]") {
                if !items.is_empty() {
                    self.need(",");
                }
                items.push(self.value());
            }
            return Json::Array(items);
        }
        if self.rest.starts_with('"') {
            return Json::Text(self.text());
        }
        let end = self.rest.find(|c: char| !"+-.eE0123456789".contains(c)).unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(end);
        self.rest = rest;
        Json::Number(number.parse().unwrap_or_else(|_| panic!("{number:?} is no number")))
    }

    fn text(&mut self) -> String {
        self.need("\"");
        let mut text = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return text;
                }
                '\\' => match chars.next().expect("something after a backslash").1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'u' => {
                        let code: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
                        let code = u32::from_str_radix(&code, 16).expect("four hex digits");
                        text.push(char::from_u32(code).expect("a character"));
                    }
                    c @ ('"' | '\\' | '/') => text.push(c),
                    c => panic!("\\{c} is no escape"),
                },
                c => {
                    assert!(c >= ' ', "a raw control character in a string");
                    text.push(c);
                }
            }
        }
        panic!("a string without end")
    }
}

impl Json {
    fn field(&self, name: &str) -> &Json {
        match self {
            Json::Object(fields) => fields.get(name).unwrap_or_else(|| panic!("no {name:?} in {self:?}")),
            other => panic!("{other:?} is no object"),
        }
    }

    fn names(&self) -> Vec<&str> {
        match self {
            Json::Object(fields) => fields.keys().map(String::as_str).collect(),
            other => panic!("{other:?} is no object"),
        }
    }

    fn items(&self) -> &[Json] {
        match self {
            Json::Array(items) => items,
            other => panic!("{other:?} is no array"),
        }
    }

    fn text(&self) -> &str {
        match self {
            Json::Text(text) => text,
            other => panic!("{other:?} is no text"),
        }
    }

    fn number(&self) -> f64 {
        match self {
            Json::Number(number) => *number,
            other => panic!("{other:?} is no number"),
        }
    }
}

#[test]
fn help_names_every_command_and_version_is_the_manifests() {
    let help = output(&["--help"]);
    assert!(help.status.success());
    for command in ["doctor", "bench", "master", "dump", "ssd", "top", "abi"] {
        assert!(stdout(&help).contains(&format!("\n  {command} ")), "{command}");
        let own = output(&[command, "--help"]);
        assert!(own.status.success());
        assert!(stdout(&own).starts_with(&format!("Usage: nmc {command}")));
    }
    assert_eq!(stdout(&output(&["--version"])), concat!("nmc ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn what_is_not_understood_ends_with_2_and_one_helpful_line() {
    let wrong: [&[&str]; 9] = [
        &[],
        &["docter"],
        &["doctor", "--jsno"],
        &["doctor", "now"],
        &["bench"],
        &["bench", "nothing"],
        &["master", "--name", "x"],
        &["master", "--name", "../x", "--world-size", "1", "--heap-bytes", "1MiB"],
        &["dump"],
    ];
    for args in wrong {
        let output = output(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
        assert_eq!(stderr(&output).lines().count(), 1, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).starts_with("nmc: "), "{args:?}");
    }
    let unknown = output(&["docter"]);
    assert!(stderr(&unknown).contains("doctor"), "the commands that exist are named: {}", stderr(&unknown));
}

#[test]
fn abi_prints_the_layout_of_the_structs() {
    let output = output(&["abi"]);
    assert!(output.status.success());
    assert_eq!(stdout(&output), nanomc::ffi::abi::table());
    assert!(stdout(&output).contains("nmc_world_config_t size "));
}

#[test]
fn doctor_tells_people_and_machines_the_same() {
    let report = output(&["doctor", "--json"]);
    assert!(report.status.success(), "host heaps work where the tests run: {}", stdout(&report));
    assert_eq!(stdout(&report).lines().count(), 1);
    let json = Reader::document(stdout(&report));
    let checks = json.field("checks").items();
    assert!(checks.len() > 15, "{}", checks.len());
    let mut names = Vec::new();
    for check in checks {
        assert_eq!(check.names(), ["name", "needed_for", "remedy", "status", "value"]);
        let (status, value) = (check.field("status").text(), check.field("value").text());
        assert!(["ok", "warn", "missing"].contains(&status), "{status}");
        assert!(!value.is_empty() && !check.field("needed_for").text().is_empty(), "{check:?}");
        let remedy = check.field("remedy").text();
        assert_eq!(status == "ok", remedy.is_empty(), "whatever is wrong has a remedy: {check:?}");
        names.push(check.field("name").text());
    }
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len(), "{names:?}");
    for expected in
        ["cpu.model", "kernel.io_uring", "memory.available", "limits.open_files", "world.trial", "cuda.library"]
    {
        assert!(names.contains(&expected), "{expected}");
    }
    let features = json.field("features").items();
    let host = features.iter().find(|f| f.field("name").text() == "host heaps").expect("the feature");
    assert_eq!(host.field("available"), &Json::Bool(true));

    let people = output(&["doctor"]);
    assert!(people.status.success());
    let text = stdout(&people);
    assert!(!text.contains('\x1b'), "no colour into a pipe");
    for name in names {
        let (group, fact) = name.split_once('.').expect("group.fact");
        assert!(text.lines().any(|l| l == group), "{group}");
        assert!(text.contains(&format!(" {fact} ")), "{fact}");
    }
    for feature in ["CUDA heaps:", "SSD tier:", "cluster:", "cluster over RDMA:"] {
        assert!(text.contains(feature), "{feature}");
    }
    let runs = |name: &str| text.lines().any(|line| line.contains(name) && line.contains(" yes"));
    assert!(runs("host heaps:") && runs("SSD tier:") && runs("cluster:"), "{text}");
}

#[test]
fn every_metric_has_its_baseline_and_the_ratio_is_theirs() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("BENCH.md");
    std::fs::write(&file, "# Kept\n\n<!-- bench:begin -->\nold figures\n<!-- bench:end -->\n\nkept, too\n")
        .expect("a file");
    let scratch = folder.path().join("tmp");
    std::fs::create_dir(&scratch).expect("a folder");
    let output = nmc(&["bench", "all", "--quick", "--json", "--report"])
        .arg(&file)
        .env("TMPDIR", &scratch)
        .output()
        .expect("nmc starts");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(output.stderr.is_empty(), "no progress into a pipe: {}", stderr(&output));
    let (mut names, mut skipped, mut noted) = (Vec::new(), Vec::new(), Vec::new());
    for line in stdout(&output).lines() {
        let metric = Reader::document(line);
        if metric.names() == ["name", "skipped"] {
            skipped.push(metric.field("name").text().to_owned());
            continue;
        }
        if metric.names() == ["name", "note"] {
            noted.push(metric.field("name").text().to_owned());
            continue;
        }
        assert_eq!(metric.names(), ["baseline", "baseline_name", "name", "ratio", "unit", "value"]);
        let (value, baseline) = (metric.field("value").number(), metric.field("baseline").number());
        assert!(value >= 0.0 && baseline > 0.0, "{line}");
        let ratio = metric.field("ratio").number();
        assert!((ratio - value / baseline).abs() <= 1e-9 * ratio.abs(), "{line}");
        assert!(!metric.field("unit").text().is_empty() && !metric.field("baseline_name").text().is_empty());
        names.push(metric.field("name").text().to_owned());
    }
    let expected = [
        "ffi.empty_call",
        "ffi.handle_lookup",
        "ffi.bad_handle",
        "world.join_8",
        "world.join_8.same_memory",
        "world.local_create_8",
        "world.write_peer.1MiB",
        "world.barrier_2",
        "world.death_seen",
        "store.get_into.64KiB",
        "store.get_into.256KiB",
        "store.get_into.1MiB",
        "store.get_into.8MiB",
        "store.pin_unpin",
        "store.get.1KiB",
        "store.exists",
        "store.readers_x2",
        "store.put.1KiB.remote",
        "store.put.1KiB.batch128",
        "store.put.1MiB.remote",
        "store.get_into.cold.64KiB",
        "store.get_into.cold.256KiB",
        "store.get_into.cold.1MiB",
        "store.get_into.cold.8MiB",
        "store.put.1KiB.inproc",
        "store.put.1MiB",
        "store.churn",
        "store.churn.p999",
        "ssd.get.256KiB",
        "ssd.get.batch16.256KiB",
        "ssd.get.1MiB",
        "ssd.get.batch16.1MiB",
        "ssd.cpu",
        "ssd.get.8MiB",
        "ssd.get.batch16.8MiB",
        "ssd.kv_onboard",
        "ssd.kv_onboard.by_layer",
        "ssd.offload",
        "ssd.recover.100k",
        "ssd.bytes_per_object",
        "ssd.miss",
        "ssd.get_beside_offload",
        "ssd.get_beside_offload.p99",
        "ssd.put_under_pressure",
        "cluster.get.1KiB",
        "cluster.get_cached.1KiB",
        "cluster.get.batch128.1KiB",
        "cluster.put.1KiB",
        "cluster.put.batch128.1KiB",
        "cluster.get.1MiB",
        "cluster.put.1MiB",
        "cluster.get.8MiB",
        "cluster.put.8MiB",
        "cluster.get.64MiB",
        "cluster.put.64MiB",
        "cluster.lookup.batch128",
        "cluster.put_start",
        "cluster.put_start.pipelined",
        "cluster.local_get",
        "cluster.local_put",
        "cluster.rebuild.1M",
        "ep.host.T32",
        "ep.host.full.T32",
        "kv.alloc_free.batch100",
        "kv.run_alloc.2k",
        "kv.run_alloc.128k",
        "kv.run_alloc.1M",
        "kv.match",
        "kv.match.idle",
        "kv.match.idle.128k",
        "kv.churn",
        "kv.churn.128k",
        "kv.append",
        "kv.append.tokens",
        "kv.append.hybrid",
        "kv.table.256x128",
        "kv.threads_x2",
        "kv.bytes_per_block",
        "kv.prompt4k.b16",
        "kv.prompt4k.b64",
        "kv.prompt4k.b256",
        "kv.hash.blake3",
        "kv.hash.sha256",
        "kv.hash.xxh3",
    ];
    assert_eq!(names, expected);
    // A quick run leaves out what takes gigabytes, and other people's stores.
    let left_out = [
        "store.lookup.1M",
        "store.lookup.1M.batch128",
        "store.bytes_per_object",
        "store.vs_mooncake",
        "ssd.recover.1M",
        "ssd.vs_mooncake.get.1MiB",
        "cluster.striped",
        "cluster.tls",
        "cluster.bytes_per_object",
        "cluster.lookup.1M",
        "cluster.nixl",
        "cluster.vs_mooncake",
        "ep.gpu",
        "kv.peers",
        "python",
    ];
    assert_eq!(skipped, left_out);
    assert_eq!(
        noted,
        ["ssd", "ssd.recover.100k", "ssd.miss", "cluster", "cluster.lookup.batch128", "cluster.rebuild.1M"]
    );

    let report = std::fs::read_to_string(&file).expect("the report");
    assert!(report.starts_with("# Kept\n") && report.ends_with("\nkept, too\n"), "{report}");
    assert!(!report.contains("old figures"));
    for name in names {
        assert!(report.contains(&format!("| `{name}` |")), "{name}");
    }
    for area in ["ffi", "world", "store", "ssd", "cluster", "ep", "kv"] {
        let plot = std::fs::read_to_string(folder.path().join(format!("plots/{area}.svg"))).expect("a plot");
        assert!(plot.starts_with("<svg") && plot.ends_with("</svg>\n"));
        assert!(report.contains(&format!("(plots/{area}.svg)")));
    }
    let left: Vec<_> = std::fs::read_dir(&scratch).expect("the folder").flatten().collect();
    assert!(left.is_empty(), "folders were left behind: {left:?}");
}

#[test]
fn a_report_that_cannot_be_rewritten_is_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("BENCH.md");
    std::fs::write(&file, "<!-- bench:begin -->\n").expect("a file");
    let output = nmc(&["bench", "all", "--quick", "--json", "--report"]).arg(&file).output().expect("nmc starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), "<!-- bench:begin -->\n");
}

#[test]
fn figures_of_a_gpu_program_are_taken_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).expect("a program");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o700)).expect("its mode");
        file
    };
    let run = |file: &Path| {
        let args = ["bench", "ep", "--quick", "--json", "--gpu"];
        nmc(&args).arg(file).output().expect("nmc starts")
    };
    let figure =
        r#"{"name":"ep.%s","value":6,"unit":"us/layer","baseline_name":"copy floor","baseline":4,"ratio":1.5}"#;
    let print = format!("echo '# a note'; printf '{figure}\\n' \"$(echo $* | tr -d ' ')\"");
    let fails = run(&program("fails", &format!("{print}; test \"$2\" != --procs")));
    assert_eq!(fails.status.code(), Some(1));
    let lines: Vec<Json> = stdout(&fails).lines().map(Reader::document).collect();
    let names: Vec<&str> = lines.iter().map(|line| line.field("name").text()).collect();
    let expected = ["ep.host.T32", "ep.host.full.T32", "ep.--json--quick", "ep.--json--procs--quick"];
    assert_eq!(names, expected, "what was measured before a failure counts");
    assert_eq!(lines[2].field("ratio").number(), 1.5);
    let why = stderr(&fails);
    assert!(why.contains("ep.gpu: ") && why.contains("fails --procs: exit status: 1"), "{why}");

    let no_gpu = run(&program("no_gpu", "echo 'skipped: no GPU'; exit 77"));
    assert!(no_gpu.status.success(), "{}", stderr(&no_gpu));
    assert!(stdout(&no_gpu).lines().last().is_some_and(|l| l.contains("\"skipped\"") && l.contains("finds no GPU")));
    assert_eq!(output(&["bench", "ffi", "--gpu", "x"]).status.code(), Some(2), "no other area has a use for it");
}

#[test]
fn figures_of_other_allocators_are_baselines() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("peers");
    let figure = r#"{"peer":"kvbm-logical","work":"alloc_free.batch100","ns":120.5}"#;
    std::fs::write(&file, format!("#!/bin/sh\necho '{figure}'\n")).expect("a program");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o700)).expect("its mode");
    let output_of = nmc(&["bench", "kv", "--quick", "--json", "--peers"]).arg(&file).output().expect("nmc starts");
    assert!(output_of.status.success(), "{}", stderr(&output_of));
    let lines: Vec<Json> = stdout(&output_of).lines().map(Reader::document).collect();
    assert_eq!(lines[0].field("baseline").number(), 120.5);
    assert!(lines[0].field("baseline_name").text().contains("kvbm"));
    assert!(lines[1].field("baseline_name").text().contains("not built"), "what it did not measure");
    assert_eq!(output(&["bench", "ep", "--peers", "x"]).status.code(), Some(2), "no other area has a use for it");
}

/// A master that is ended with the test, whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn rank_of(dir: &Path) -> Config {
    Config { name: "cli".to_owned(), hosting: Hosting::Elsewhere, ..common::config(dir, Some(0), 1) }
}

#[test]
fn a_rank_joins_through_a_master_that_ends_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().to_str().expect("UTF-8");
    let dump = || output(&["dump", "--name", "cli", "--dir", dir]);
    assert_eq!(dump().status.code(), Some(1), "nobody serves yet");

    let sizes = ["--world-size", "1", "--heap-bytes", "1MiB", "--words", "8"];
    let mut command = nmc(&["master", "--name", "cli", "--dir", dir]);
    let mut master = Running(command.args(sizes).stdout(Stdio::piped()).spawn().expect("nmc starts"));
    let mut line = String::new();
    BufReader::new(master.0.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
    assert!(line.contains("serving world \"cli\"") && line.contains(dir), "{line}");

    let world = World::join(rank_of(folder.path())).expect("joining through the master");
    assert!(world.master_up());
    let seen = dump();
    assert!(seen.status.success(), "{}", stdout(&seen));
    assert!(stdout(&seen).contains(&format!("process {} (nmc)", master.0.id())), "{}", stdout(&seen));
    assert!(stdout(&seen).contains("mode 0700"), "{}", stdout(&seen));
    let second = nmc(&["master", "--name", "cli", "--dir", dir]).args(sizes).output().expect("nmc starts");
    assert_eq!(second.status.code(), Some(1), "one name, one master");
    assert!(stderr(&second).contains("NMC_ERR_EXISTS"), "{}", stderr(&second));
    world.finalize().expect("leaving");
    drop(world);

    let pid = i32::try_from(master.0.id()).expect("a process id");
    // SAFETY: a signal to our own child, which has not been waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    let status = master.0.wait().expect("its end");
    assert!(status.success(), "{status}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0, "socket and directory are gone");
    assert_eq!(dump().status.code(), Some(1));
}
