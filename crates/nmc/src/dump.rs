//! `nmc dump`: what can be seen of a world without joining it. It connects to the socket and hangs up at once, which
//! a master takes for a visitor.

use crate::Outcome;
use crate::args::{Failure, Parsed};
use crate::{facts, sys, term};
use nanomc::world::dir::{Place, check_name};
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::process::ExitCode;

/// Runs the command.
pub fn run(args: &Parsed) -> Outcome {
    let name = args.required("--name")?;
    check_name(name.as_bytes()).map_err(|e| Failure::usage(e.message))?;
    let place = Place::new(args.path("--dir"), name);
    let socket = place.socket();
    let mut text = format!("world      {name}\n");
    if let Some(folder) = socket.parent() {
        text.push_str(&format!("directory  {}: {}\n", folder.display(), describe(std::fs::symlink_metadata(folder))));
    }
    text.push_str(&format!("socket     {}: {}\n", socket.display(), describe(std::fs::symlink_metadata(&socket))));
    if let Err(refused) = place.check() {
        text.push_str(&format!("refused    {}\n", refused.message));
    }
    let served = sys::who_listens(&socket);
    text.push_str(&match &served {
        Ok(who) => {
            let program = facts::read(format!("/proc/{}/comm", who.pid));
            format!("master     process {} ({program}) of user {} serves it\n", who.pid, who.uid)
        }
        Err(cause) => format!("master     none: {cause}\n"),
    });
    term::print(&text);
    Ok(if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn describe(found: std::io::Result<Metadata>) -> String {
    match found {
        Ok(meta) => {
            let kind = if meta.is_dir() {
                "directory"
            } else if meta.file_type().is_socket() {
                "socket"
            } else {
                "something else"
            };
            format!("{kind}, owner {}, mode {:04o}", meta.uid(), meta.mode() & 0o7777)
        }
        Err(cause) => format!("not there ({cause})"),
    }
}
