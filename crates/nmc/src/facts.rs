//! Facts about the machine that more than one command tells: CPU, kernel, date, and sizes as people write them.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A small file of the kernel, trimmed; empty if it is not there.
pub fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Name of the CPU.
pub fn cpu_model() -> String {
    let info = read("/proc/cpuinfo");
    let named = ["model name", "Model", "cpu model", "CPU implementer"].iter().find_map(|key| {
        let line = info.lines().find(|l| l.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    named.unwrap_or_else(|| format!("unknown ({})", std::env::consts::ARCH))
}

/// CPUs that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Release of the kernel.
pub fn kernel() -> String {
    read("/proc/sys/kernel/osrelease")
}

/// Today in UTC, as 2025-12-31.
pub fn today() -> String {
    date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()))
}

/// The same for a time in seconds since 1970.
pub fn date(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The Gregorian date of a day counted from 1970-01-01: days are counted from 1 March, so that the leap day is the
/// last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// A size as people write it: 1.5 GiB.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let digits = usize::from(value < 10.0 && unit != "B");
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(11_017), (2000, 3, 1));
        assert_eq!(civil(20_453), (2025, 12, 31));
        assert_eq!(civil(47_541), (2100, 3, 1), "2100 is no leap year");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1 << 20), "1.0 MiB");
        assert_eq!(size(64 << 20), "64 MiB");
        assert_eq!(size((1 << 30) + (1 << 29)), "1.5 GiB");
    }
}
