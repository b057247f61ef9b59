//! The same puts and gets of Mooncake Store, if it is installed: `scripts/bench_mooncake.sh` starts its master, a process that owns
//! the memory, and one that reads and writes without a copy when it is told. Its samples and ours take turns.

use super::cluster::{Size, family, in_turn};
use super::cluster_library::Client;
use super::ssd::Side;
use super::ssd_library::Buffers;
use super::ssd_mooncake::Mooncake;
use super::store_library::Slices;
use super::{Better, Metric, Run};
use crate::args::Failure;
use std::time::Instant;

/// What the metrics are called together.
pub const NAME: &str = "cluster.vs_mooncake";

const SIZES: [Size; 4] = [
    Size {
        bytes: 1 << 10,
        sample: 32,
        rounds: 200,
        get: "cluster.vs_mooncake.get.1KiB",
        put: "cluster.vs_mooncake.put.1KiB",
    },
    Size {
        bytes: 1 << 20,
        sample: 8,
        rounds: 120,
        get: "cluster.vs_mooncake.get.1MiB",
        put: "cluster.vs_mooncake.put.1MiB",
    },
    Size {
        bytes: 8 << 20,
        sample: 2,
        rounds: 80,
        get: "cluster.vs_mooncake.get.8MiB",
        put: "cluster.vs_mooncake.put.8MiB",
    },
    Size {
        bytes: 64 << 20,
        sample: 1,
        rounds: 30,
        get: "cluster.vs_mooncake.get.64MiB",
        put: "cluster.vs_mooncake.put.64MiB",
    },
];

/// Adds a row for each size that Mooncake can.
pub fn measure(run: &mut Run, master: &str) -> Result<(), Failure> {
    if run.is_quick() {
        run.skip(NAME, "skipped: quick run");
        return Ok(());
    }
    let mut mooncake = match Mooncake::with(&["--cluster".as_ref()])? {
        Ok(started) => started,
        Err(why) => {
            run.skip(NAME, why);
            return Ok(());
        }
    };
    // Mooncake asks its master for every get, so ours does too.
    let client = Client::open(master, 0)?;
    for size in &SIZES {
        compare(run, &client, &mut mooncake, size)?;
    }
    Ok(())
}

fn compare(run: &mut Run, client: &Client, mooncake: &mut Mooncake, size: &Size) -> Result<(), Failure> {
    let Size { bytes, sample, rounds, .. } = *size;
    let (keys, values) = (Slices::keys(family::PUT, 0..sample as u64), Slices::noise(1, bytes));
    let (keys, value) = (keys.all(), values.all().item(0));
    let mut to = Buffers::new(1, bytes)?;
    for (name, what) in [(size.put, "put"), (size.get, "get")] {
        // Both once: what Mooncake cannot is left out.
        let order = format!("{what} {bytes} {sample}");
        if let Err(why) = mooncake.order(&order, what)? {
            run.skip(name, why);
            continue;
        }
        if what == "get" {
            keys.each().try_for_each(|key| client.check("nmc_client_put", client.put(key, value)))?;
        }
        let pair = in_turn(rounds, |side| {
            if side == Side::Plain {
                return mooncake.order(&order, what)?.map_err(Failure::new);
            }
            let start = Instant::now();
            for key in keys.each() {
                match what {
                    "put" => client.check("nmc_client_put", client.put(key, value))?,
                    _ => client.check("nmc_client_get", client.get(key, to.first()))?,
                }
            }
            let us = start.elapsed().as_secs_f64() * 1e6 / sample as f64;
            if what == "put" {
                client.remove(keys)?;
            }
            Ok(us)
        })?;
        run.add(Metric {
            name,
            value: pair.0,
            unit: "µs",
            better: Better::Lower,
            baseline_name: "Mooncake Store over loopback TCP, same sizes in turn",
            baseline: pair.1,
        });
        if what == "get" {
            client.remove(keys)?;
        }
    }
    Ok(())
}
