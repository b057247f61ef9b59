//! Figures for the documentation: the part of a Markdown file between two markers is rewritten, the rest is left as it
//! is, and a plot per area is put into `plots` beside the file.

use super::{Better, Metric, Remark, short, svg};
use crate::args::Failure;
use std::path::Path;

const BEGIN: &str = "<!-- bench:begin -->";
const END: &str = "<!-- bench:end -->";

/// Refuses a file that cannot be rewritten, before minutes are spent on measuring.
pub fn check(file: &Path) -> Result<(), Failure> {
    splice(&read(file)?, "").map(drop).map_err(|why| Failure::usage(format!("{}: {why}", file.display())))
}

/// Rewrites the section of `file` and the plots beside it.
pub fn write(file: &Path, what: &str, metrics: &[Metric], remarks: &[Remark], machine: &str) -> Result<(), Failure> {
    let mut areas: Vec<&str> = metrics.iter().map(Metric::area).collect();
    areas.dedup();
    let folder = file.parent().unwrap_or(Path::new("")).join("plots");
    std::fs::create_dir_all(&folder).map_err(|e| Failure::os(format!("making {}", folder.display()), &e))?;
    let mut section = format!("Measured with `nmc bench {what}` on {machine}.\n");
    for area in areas {
        let measured: Vec<&Metric> = metrics.iter().filter(|m| m.area() == area).collect();
        section.push_str(&format!("\n### {area}\n\n{}\n", table(&measured)));
        let of_area = |r: &&Remark| r.name.split('.').next() == Some(area);
        let mut notes = remarks.iter().filter(of_area).peekable();
        if notes.peek().is_some() {
            notes.for_each(|r| section.push_str(&format!("- `{}`: {}\n", r.name, r.text)));
            section.push('\n');
        }
        section.push_str(&format!("![{area}: ours in units of the baseline](plots/{area}.svg)\n"));
        replace(&folder.join(format!("{area}.svg")), &svg::chart(area, &measured))?;
    }
    let text = splice(&read(file)?, &section).map_err(|why| Failure::new(format!("{}: {why}", file.display())))?;
    replace(file, &text)
}

fn read(file: &Path) -> Result<String, Failure> {
    match std::fs::read_to_string(file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        other => other.map_err(|e| Failure::os(format!("reading {}", file.display()), &e)),
    }
}

/// Writes beside the file and renames, so that an interrupted run leaves the old one.
fn replace(file: &Path, text: &str) -> Result<(), Failure> {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let written = std::fs::write(&name, text).and_then(|()| std::fs::rename(&name, file));
    written.map_err(|e| Failure::os(format!("writing {}", file.display()), &e))
}

fn table(metrics: &[&Metric]) -> String {
    let mut text =
        String::from("| metric | ours | baseline | ratio | good is | baseline is |\n|---|--:|--:|--:|---|---|\n");
    for m in metrics {
        let good = if m.better == Better::Lower { "lower" } else { "higher" };
        text.push_str(&format!(
            "| `{}` | {} {unit} | {} {unit} | {} | {good} | {} |\n",
            m.name,
            short(m.value),
            short(m.baseline),
            short(m.ratio()),
            // A bar would end the cell, and angle brackets would be HTML.
            m.baseline_name.replace('|', "\\|").replace('<', "&lt;").replace('>', "&gt;"),
            unit = m.unit
        ));
    }
    text
}

/// `text` with `section` between the markers, which are appended if there are none.
fn splice(text: &str, section: &str) -> Result<String, &'static str> {
    let (before, after) = match (text.find(BEGIN), text.find(END)) {
        (Some(begin), Some(end)) if begin < end => (&text[..begin], &text[end + END.len()..]),
        (None, None) => (text, ""),
        _ => return Err("one of the markers bench:begin and bench:end is missing, or they are in the wrong order"),
    };
    let gap = if after.is_empty() && !before.is_empty() && !before.ends_with("\n\n") {
        if before.ends_with('\n') { "\n" } else { "\n\n" }
    } else {
        ""
    };
    let last = if after.is_empty() { "\n" } else { "" };
    Ok(format!("{before}{gap}{BEGIN}\n{section}{END}{after}{last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let text = format!("# Title\n\n{BEGIN}\nold\n{END}\n\ntail\n");
        assert_eq!(splice(&text, "new\n"), Ok(format!("# Title\n\n{BEGIN}\nnew\n{END}\n\ntail\n")));
    }

    #[test]
    fn markers_are_appended_once_and_writing_again_changes_nothing() {
        let first = splice("# Title\n", "x\n");
        assert_eq!(first, Ok(format!("# Title\n\n{BEGIN}\nx\n{END}\n")));
        let again = first.clone().and_then(|text| splice(&text, "x\n"));
        assert_eq!(again, first);
        assert_eq!(splice("", "x\n"), Ok(format!("{BEGIN}\nx\n{END}\n")));
    }

    #[test]
    fn a_lone_marker_is_not_guessed_at() {
        assert!(splice(BEGIN, "x").is_err());
        assert!(splice(&format!("{END}{BEGIN}"), "x").is_err());
    }
}
