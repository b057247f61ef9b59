//! The error type of the library: a status for programs and a sentence for people.

use super::status::{self, nmc_status_t};

/// What went wrong: a status from the table, and a message that names the value, the limit and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", status::name(*.status).to_string_lossy())]
pub struct Error {
    /// A number of `base::status`, never 0.
    pub status: nmc_status_t,
    /// One sentence for a person.
    pub message: String,
}

/// `Result` with the library's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with the given status and message.
    pub fn new(status: nmc_status_t, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// A failed operating-system call, with the reason from `errno` and the status that fits it.
    pub fn last_os(call: &str) -> Self {
        Self::os(call, &std::io::Error::last_os_error())
    }

    /// A failed operating-system call.
    pub fn os(call: &str, cause: &std::io::Error) -> Self {
        let status = match cause.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => status::NMC_ERR_LIMIT,
            Some(libc::ENOMEM | libc::ENOSPC) => status::NMC_ERR_NO_MEMORY,
            Some(libc::EACCES | libc::EPERM) => status::NMC_ERR_PERMISSION,
            _ => status::NMC_ERR_OS,
        };
        let hint = if status == status::NMC_ERR_LIMIT { "; raise the limit of open files (ulimit -n)" } else { "" };
        Self::new(status, format!("{call}: {cause}{hint}"))
    }

    /// The same error with what was being done put in front of the message.
    #[must_use]
    pub fn context(mut self, what: impl std::fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

/// Returns early with an error: `bail!(NMC_ERR_INVALID_ARG, "rank {rank} is not below {size}")`.
#[macro_export]
#[doc(hidden)]
macro_rules! bail {
    ($status:ident, $($arg:tt)*) => {
        return Err($crate::base::error::Error::new($crate::base::status::$status, format!($($arg)*)))
    };
}
