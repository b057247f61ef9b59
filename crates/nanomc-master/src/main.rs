//! `nanomc-master`: see the library beside this and `--help`.

use nanomc_master::options::{self, Wanted};
use nanomc_master::{print, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let ended = options::read(words, |name| std::env::var(name).ok()).and_then(|wanted| match wanted {
        Wanted::Help => {
            print::out(&options::help());
            Ok(())
        }
        Wanted::Version => {
            print::out(concat!("nanomc-master ", env!("CARGO_PKG_VERSION"), "\n"));
            Ok(())
        }
        Wanted::Master(options) => run::run(*options),
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            print::error(&format!("nanomc-master: {}\n", failure.message));
            ExitCode::from(failure.code)
        }
    }
}
