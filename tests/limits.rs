//! Shortage is a status, never a signal: each case runs in a child with the limit set, and must come back.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test reports by failing")]
#![allow(unsafe_code, reason = "sets resource limits")]

#[path = "common/cluster.rs"]
mod cluster;
mod common;

use nanomc::base::status::*;
use nanomc::cluster::facade::{Cluster, Got, Item};
use nanomc::world::World;
use std::process::{Command, Output};

/// Runs the case `name` of [`child`] in a process of its own.
fn run_case(name: &str) -> Output {
    Command::new(std::env::current_exe().expect("exe"))
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("NMC_CASE", name)
        .output()
        .expect("child")
}

fn expect_status(name: &str) {
    let out = run_case(name);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && text.contains("case passed"),
        "{name}: {:?}\n{text}\n{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
}

fn set_limit(which: libc::__rlimit_resource_t, value: u64) {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: a filled struct.
    assert_eq!(unsafe { libc::setrlimit(which, &raw const limit) }, 0);
}

fn local(heap_bytes: u64) -> Result<Vec<World>, nanomc::base::Error> {
    let mut c = common::config(std::path::Path::new("/unused"), None, 2);
    c.heap_bytes = heap_bytes;
    World::local(&c)
}

/// Not a test of its own: the other side of [`run_case`].
#[test]
fn child() {
    let Ok(case) = std::env::var("NMC_CASE") else { return };
    let mib = 1u64 << 20;
    match case.as_str() {
        "fsize" => {
            set_limit(libc::RLIMIT_FSIZE, mib);
            let error = local(8 * mib).err().expect("must fail");
            assert!(error.status == NMC_ERR_NO_MEMORY && error.message.contains("RLIMIT_FSIZE"), "{error}");
            // The kernel would end the process for huge pages as well.
            let mut huge = common::config(std::path::Path::new("/unused"), None, 2);
            (huge.heap_bytes, huge.huge_pages) = (8 * mib, true);
            let error = World::local(&huge).err().expect("must fail");
            assert!(error.status == NMC_ERR_NO_MEMORY && error.message.contains("RLIMIT_FSIZE"), "{error}");
        }
        "as" => {
            set_limit(libc::RLIMIT_AS, 512 * mib);
            assert_eq!(local(600 * mib).err().expect("must fail").status, NMC_ERR_NO_MEMORY);
            drop(local(mib).expect("a small one still works"));
        }
        "nofile" => {
            let dir = tempfile::tempdir().expect("dir");
            let open = std::fs::read_dir("/proc/self/fd").expect("fds").count() as u64;
            // Every number of free descriptors that is too few must fail cleanly; the first that is enough works.
            let mut worked = None;
            for spare in 0..60 {
                set_soft_nofile(open + spare);
                let joined = World::join_many((0..2).map(|r| quick(dir.path(), r)).collect());
                match joined {
                    Ok(worlds) => {
                        drop(worlds);
                        worked = Some(spare);
                        break;
                    }
                    Err(e) => assert!([NMC_ERR_LIMIT, NMC_ERR_TIMEOUT, NMC_ERR_OS].contains(&e.status), "{spare}: {e}"),
                }
            }
            println!("works with {worked:?} spare descriptors");
            assert!(worked.is_some_and(|n| n > 3), "the limit was felt: {worked:?}");
        }
        "client" => no_descriptor_for_a_client(),
        "cgroup" => {
            let group = std::path::PathBuf::from(std::env::var("NMC_GROUP").expect("group"));
            std::fs::write(group.join("cgroup.procs"), std::process::id().to_string()).expect("enter the group");
            let error = local(256 * mib).err().expect("must fail");
            assert!(error.status == NMC_ERR_NO_MEMORY && error.message.contains("memory cgroup"), "{error}");
            drop(local(4 * mib).expect("a small one still works"));
        }
        "huge" => {
            for bytes in [1 << 45, 1 << 46] {
                assert_eq!(local(bytes).err().expect("must fail").status, NMC_ERR_NO_MEMORY);
            }
            assert_eq!(local((1 << 46) + 1).err().expect("must fail").status, NMC_ERR_INVALID_ARG);
            assert_eq!(local(0).err().expect("must fail").status, NMC_ERR_INVALID_ARG);
        }
        "crowd" => {
            set_soft_nofile(256);
            let dir = std::path::PathBuf::from(std::env::var("NMC_DIR").expect("dir"));
            let rank = std::env::var("NMC_RANK").expect("rank").parse().expect("a number");
            let mut c = common::config(&dir, Some(rank), CROWD);
            c.heap_bytes = 4096;
            let world = World::join(c).expect("join");
            assert!((0..CROWD).all(|r| world.ptr(r, 0, 8).is_ok()), "{}", world.dump().expect("memory"));
            world.barrier(&nanomc::base::Deadline::after(common::PATIENCE)).expect("barrier");
        }
        other => panic!("no case {other}"),
    }
    println!("case passed");
}

/// Reads several values together.
fn get_all(client: &Cluster, keys: &[&str], bytes: usize) -> Vec<i32> {
    let mut into = vec![vec![0; bytes]; keys.len()];
    let slices: Vec<_> = into.iter_mut().map(|into| [cluster::slice_mut(into)]).collect();
    let items: Vec<_> = keys.iter().zip(&slices).map(|(key, slices)| Item::new(key.as_bytes(), slices)).collect();
    let status = |got: Got| got.result.err().map_or(NMC_OK, |error| error.status);
    client.get(&items).expect("a batch").into_iter().map(status).collect()
}

fn no_descriptor_for_a_client() {
    let (small, large) = (cluster::value(1, 1000), cluster::value(2, 200_000));
    let directory = cluster::Directory::new();
    let (owner, store) = (directory.client(), cluster::a_store(64));
    owner.mount(&store, None, false).expect("mount");
    // Clients that have spoken to nobody, to the master alone, and to the node too; that one has a connection for large values.
    let [nobody, master, both] = [(); 3].map(|()| directory.client());
    assert_eq!(master.exists(&[b"none"]).expect("an answer"), [false]);
    cluster::put(&both, "small", &small, 1).expect("put");
    let all = ["a", "b", "c"];
    all.iter().for_each(|key| cluster::put(&both, key, &large, 1).expect("put"));

    set_soft_nofile(std::fs::read_dir("/proc/self/fd").expect("fds").count() as u64 + 10);
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    let error = nobody.exists(&[b"small"]).expect_err("nobody can be asked");
    assert!(error.status == NMC_ERR_LIMIT && error.message.contains("ulimit"), "{error}");
    assert_eq!(nobody.remove(b"small", true).map_err(|error| error.status), Err(NMC_ERR_LIMIT));
    for client in [&nobody, &master] {
        assert_eq!(cluster::put(client, "new", &small, 1), Err(NMC_ERR_LIMIT));
        assert_eq!(cluster::put(client, "new", &large, 1), Err(NMC_ERR_LIMIT));
        assert_eq!(cluster::get(client, "small", small.len()), Err(NMC_ERR_LIMIT));
        assert_eq!(get_all(client, &all, large.len()), [NMC_ERR_LIMIT; 3]);
    }
    // Who has connections goes on with those.
    assert_eq!(cluster::get(&both, "small", small.len()), Ok(small.clone()));
    assert_eq!(get_all(&both, &all, large.len()), [NMC_OK; 3]);
    cluster::put(&both, "another", &large, 1).expect("put");

    drop(taken);
    set_soft_nofile(1024);
    for client in [&nobody, &master] {
        assert_eq!(cluster::get(client, "small", small.len()), Ok(small.clone()));
        assert_eq!(get_all(client, &all, large.len()), [NMC_OK; 3]);
    }
    cluster::put(&nobody, "new", &large, 1).expect("put");
}

fn set_soft_nofile(value: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls use a struct of ours.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = value;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

fn quick(dir: &std::path::Path, rank: u32) -> nanomc::world::Config {
    let mut c = common::config(dir, Some(rank), 2);
    c.deadline = nanomc::base::Deadline::after(std::time::Duration::from_millis(150));
    c
}

#[test]
fn a_file_size_limit_is_a_status() {
    expect_status("fsize");
}

#[test]
fn an_address_space_limit_is_a_status() {
    expect_status("as");
}

#[test]
fn what_a_client_has_no_descriptor_for_is_a_status() {
    expect_status("client");
}

#[test]
fn a_descriptor_limit_is_a_status() {
    expect_status("nofile");
}

#[test]
fn more_than_the_machine_has_is_a_status() {
    expect_status("huge");
}

#[test]
fn a_memory_cgroup_is_a_status() {
    let (parent, limit_file) = if std::path::Path::new("/sys/fs/cgroup/memory").is_dir() {
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
    } else {
        ("/sys/fs/cgroup", "memory.max")
    };
    let group = std::path::Path::new(parent).join(format!("nanomc-test-{}", std::process::id()));
    if std::fs::create_dir(&group).is_err() || std::fs::write(group.join(limit_file), (128 << 20).to_string()).is_err()
    {
        let _ = std::fs::remove_dir(&group);
        eprintln!("skipped: no memory cgroup can be made here");
        return;
    }
    let out = Command::new(std::env::current_exe().expect("exe"))
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("NMC_CASE", "cgroup")
        .env("NMC_GROUP", &group)
        .output()
        .expect("child");
    assert!(common::eventually(|| std::fs::remove_dir(&group).is_ok()), "the group is left empty");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("case passed"), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
}

/// Ranks enough that their rosters together exceed the descriptors a user may have in flight (RLIMIT_NOFILE).
const CROWD: u32 = 24;

#[test]
fn a_crowd_with_few_descriptors_comes_together() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    let dir = tempfile::tempdir().expect("dir");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).expect("chmod");
    let mut ranks = Vec::new();
    for rank in 0..CROWD {
        let mut command = Command::new(std::env::current_exe().expect("exe"));
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        command.env("NMC_CASE", "crowd").env("NMC_DIR", dir.path()).env("NMC_RANK", rank.to_string());
        // SAFETY: always succeeds.
        if unsafe { libc::geteuid() } == 0 {
            command.uid(65534).gid(65534); // the kernel does not limit root
        }
        match command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn() {
            Ok(child) => ranks.push(child),
            Err(e) if rank == 0 && e.kind() == std::io::ErrorKind::PermissionDenied => {
                eprintln!("skipped: another user cannot reach this program");
                return;
            }
            Err(e) => panic!("{e}"),
        }
    }
    for (rank, child) in ranks.into_iter().enumerate() {
        let out = child.wait_with_output().expect("rank");
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "rank {rank}: {text}\n{}", String::from_utf8_lossy(&out.stderr));
    }
}
