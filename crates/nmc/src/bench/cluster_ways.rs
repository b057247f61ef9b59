//! The same values in other ways: in parts on several nodes, and under TLS, each against the same calls without it in the same run.

use super::cluster::{Directory, MIB, Parts, add, in_turn, line};
use super::cluster_library::{Client, Manner};
use super::crowd::{Rank, Scratch};
use super::ssd::Side;
use super::ssd_library::Buffers;
use super::store_library::Slices;
use super::{Better, Run};
use crate::args::Failure;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Names of what is measured of values in parts.
pub const STRIPED: &str = "cluster.striped";
/// The same of those under TLS.
pub const TLS: &str = "cluster.tls";

/// Family of the keys.
const FAMILY: u32 = 118;
/// Bytes of a value that is cut, and of its parts.
const LONG: usize = 64 * MIB;
/// See [`LONG`].
const PART: u64 = 16 << 20;

/// Certificates of a cluster, if its files are to lie beside what its processes keep.
#[derive(Debug)]
pub struct Certificates(PathBuf);

impl Certificates {
    /// Those beside this folder of a process, if there are any.
    pub fn beside(dir: &Path) -> Option<Self> {
        let folder = dir.parent()?.join("tls");
        folder.is_dir().then_some(Self(folder))
    }

    /// An authority, and one certificate for all; none if there is no `openssl` to make them with.
    fn make(within: &Path) -> Result<Option<Self>, Failure> {
        const STEPS: [&str; 3] = [
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=bench -keyout ca.key -out ca.pem",
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=all -keyout all.key -out all.csr",
            "x509 -req -days 2 -in all.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile all.ext -out all.pem",
        ];
        let folder = within.join("tls");
        let made = std::fs::create_dir(&folder);
        made.and_then(|()| {
            std::fs::write(folder.join("all.ext"), "extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=DNS:all\n")
        })
        .map_err(|e| Failure::os("making certificates", &e))?;
        for step in STEPS {
            let mut openssl = Command::new("openssl");
            openssl.args(step.split(' ')).current_dir(&folder).stdout(Stdio::null()).stderr(Stdio::null());
            match openssl.status() {
                Ok(status) if status.success() => {}
                Ok(status) => return Err(Failure::new(format!("openssl, making certificates: {status}"))),
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(Self(folder)))
    }

    /// The files, with what options of a client and of a master call them.
    pub fn files(&self) -> [(&'static str, String); 3] {
        [("tls_cert", "all.pem"), ("tls_key", "all.key"), ("tls_ca", "ca.pem")]
            .map(|(name, file)| (name, self.0.join(file).to_string_lossy().into_owned()))
    }
}

/// Puts and gets of values of one size by two clients in turn.
fn compare(
    run: &mut Run,
    [ours, plain]: [&Client; 2],
    [get, put]: [&'static str; 2],
    (bytes, sample, rounds): (usize, usize, usize),
    baseline: &'static str,
) -> Result<(), Failure> {
    let values = Slices::noise(1, bytes);
    let value = values.all().item(0);
    // What both have at a time, under keys of their own.
    let keys = [0, sample].map(|from| Slices::keys(FAMILY, from as u64..(from + sample) as u64));
    let mut to = Buffers::new(1, bytes)?;
    let of = |side| if side == Side::Ours { (ours, keys[0].all()) } else { (plain, keys[1].all()) };
    let put_all = |side| {
        let (client, keys) = of(side);
        keys.each().try_for_each(|key| client.check("nmc_client_put", client.put(key, value)))
    };
    let remove_all = |side| {
        let (client, keys) = of(side);
        client.remove(keys)
    };
    let gigabytes = |since: Instant| (sample * bytes) as f64 / since.elapsed().as_secs_f64() / 1e9;
    let rounds = run.reps(2, rounds);
    let write = in_turn(rounds, |side| {
        let start = Instant::now();
        put_all(side)?;
        let found = gigabytes(start);
        remove_all(side)?;
        Ok(found)
    })?;
    put_all(Side::Ours)?;
    put_all(Side::Plain)?;
    let read = in_turn(rounds, |side| {
        let ((client, keys), start) = (of(side), Instant::now());
        keys.each().try_for_each(|key| client.check("nmc_client_get", client.get(key, to.first())))?;
        let found = gigabytes(start);
        if to.first() != value.bytes() {
            return Err(Failure::new(format!("{get} has read other bytes than were put")));
        }
        to.first().fill(0);
        Ok(found)
    })?;
    remove_all(Side::Ours)?;
    remove_all(Side::Plain)?;
    add(run, get, "GB/s", Better::Higher, read, baseline);
    add(run, put, "GB/s", Better::Higher, write, baseline);
    Ok(())
}

/// Values in parts on two nodes, of which one is the one that all the others are on.
pub fn striped(run: &mut Run, parts: &Parts) -> Result<(), Failure> {
    if run.is_quick() {
        run.skip(STRIPED, "skipped: quick run");
        return Ok(());
    }
    let mut second = parts.master.owner(parts.scratch.path(), 1, 16 << 10, 256 * MIB)?;
    line(&mut second)?;
    let cutting = Client::with(&parts.master.address, -1, &Manner { stripe_bytes: PART, certificates: None })?;
    let names = ["cluster.striped.get.64MiB", "cluster.striped.put.64MiB"];
    compare(run, [&cutting, &parts.knowing], names, (LONG, 1, 40), "the same value in one piece, same processes")?;
    second.finish()
}

/// A cluster with certificates, against the one without.
pub fn tls(run: &mut Run, parts: &Parts) -> Result<(), Failure> {
    if run.is_quick() {
        run.skip(TLS, "skipped: quick run");
        return Ok(());
    }
    let scratch = Scratch::new()?;
    let Some(certificates) = Certificates::make(scratch.path())? else {
        run.skip(TLS, "there is no openssl to make certificates with");
        return Ok(());
    };
    let master = Directory::start(&scratch.path().join("master"), 0, 0, 1)?;
    let mut owner: Rank = master.owner(scratch.path(), 0, 16 << 10, 256 * MIB)?;
    line(&mut owner)?;
    let secure = Client::with(&master.address, -1, &Manner { stripe_bytes: 0, certificates: Some(certificates) })?;
    let sizes = [
        (["cluster.tls.get.1MiB", "cluster.tls.put.1MiB"], (MIB, 8, 200)),
        (["cluster.tls.get.64MiB", "cluster.tls.put.64MiB"], (LONG, 1, 40)),
    ];
    for (names, size) in sizes {
        compare(run, [&secure, &parts.knowing], names, size, "the same without TLS, in another cluster")?;
    }
    drop(secure);
    owner.finish()
}
