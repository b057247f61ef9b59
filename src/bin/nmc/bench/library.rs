//! `libnanomc.so` as a C program sees it: loaded at run time, its functions called through the addresses that the
//! dynamic linker gives. The CLI itself contains the same code, but calls into it would be inlined and measure nothing.
#![allow(unsafe_code, reason = "dlopen, and calls through the C ABI")]

use crate::args::Failure;
use nanomc::ffi::basic::NMC_ABI_VERSION;
use nanomc::ffi::world::nmc_world_t;
use nanomc::ffi::world_types::nmc_world_config_t;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// `nmc_status_t`.
pub(super) type Status = i32;

/// A loaded library. It is never unloaded, so its functions can be called at any time.
pub(super) struct Loaded(*mut c_void);

impl Loaded {
    fn open(file: &CStr) -> Result<Self, Failure> {
        // SAFETY: runs the constructors of the library; both that are opened here have none that matter.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() { Err(Failure::new(format!("loading {file:?}: {}", why()))) } else { Ok(Self(handle)) }
    }

    /// Address of a function.
    pub(super) fn symbol(&self, name: &CStr) -> Result<*mut c_void, Failure> {
        // SAFETY: the handle is open and the name NUL-terminated.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() { Err(Failure::new(format!("looking up {name:?}: {}", why()))) } else { Ok(address) }
    }
}

fn why() -> String {
    // SAFETY: dlerror returns NULL or text that is valid until the next call of this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() { "no reason given".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}

/// A struct `Functions` of more functions of the library.
macro_rules! functions {
    ($($field:ident = $symbol:literal ($($arg:ty),*);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($arg),*) -> Status,)*
        }

        impl Functions {
            fn of(loaded: &$crate::bench::library::Loaded) -> Result<Self, $crate::args::Failure> {
                // SAFETY: names and signatures are those of include/nanomc.h, of the version that `Nanomc` checked; the
                // library is never unloaded.
                unsafe {
                    Ok(Self {
                        $($field: std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($arg),*) -> Status>(
                            loaded.symbol($symbol)?,
                        ),)*
                    })
                }
            }
        }
    };
}
pub(super) use functions;

/// The functions that the benchmarks call.
pub struct Nanomc {
    abi_version: extern "C" fn() -> u32,
    create_local: unsafe extern "C" fn(*const nmc_world_config_t, *mut *mut nmc_world_t) -> Status,
    destroy: extern "C" fn(*mut nmc_world_t) -> Status,
    event_fd: unsafe extern "C" fn(*const nmc_world_t, *mut i32) -> Status,
    last_error: extern "C" fn() -> *const c_char,
}

/// A handle of the loaded library, alive or destroyed: the library checks it, so any value may be passed.
#[derive(Debug, Clone, Copy)]
pub struct Handle(*mut nmc_world_t);

impl Nanomc {
    /// Loads the library that was built together with this program.
    pub fn load() -> Result<Self, Failure> {
        Self::load_file().map(|(nanomc, _)| nanomc)
    }

    /// The same, with the library itself, for those who need more of its functions.
    pub(super) fn load_file() -> Result<(Self, Loaded), Failure> {
        let file = find()?;
        let name = CString::new(file.as_os_str().as_bytes()).map_err(|_| Failure::new("a path with a NUL byte"))?;
        let loaded = Loaded::open(&name)?;
        // SAFETY: the names and signatures are those of include/nanomc.h, and the version is checked below before
        // anything that could differ is called. The library is never unloaded.
        let (nanomc, version) = unsafe {
            let version: extern "C" fn() -> *const c_char = std::mem::transmute(loaded.symbol(c"nmc_version")?);
            let nanomc = Self {
                abi_version: std::mem::transmute::<*mut c_void, extern "C" fn() -> u32>(
                    loaded.symbol(c"nmc_abi_version")?,
                ),
                create_local: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const nmc_world_config_t, *mut *mut nmc_world_t) -> Status,
                >(loaded.symbol(c"nmc_world_create_local")?),
                destroy: std::mem::transmute::<*mut c_void, extern "C" fn(*mut nmc_world_t) -> Status>(
                    loaded.symbol(c"nmc_world_destroy")?,
                ),
                event_fd: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const nmc_world_t, *mut i32) -> Status,
                >(loaded.symbol(c"nmc_world_event_fd")?),
                last_error: std::mem::transmute::<*mut c_void, extern "C" fn() -> *const c_char>(
                    loaded.symbol(c"nmc_last_error_message")?,
                ),
            };
            (nanomc, CStr::from_ptr(version()).to_string_lossy().into_owned())
        };
        if version != env!("CARGO_PKG_VERSION") || nanomc.abi_version() != NMC_ABI_VERSION {
            return Err(Failure::new(format!(
                "{} is version {version} (ABI {}), this program {} (ABI {NMC_ABI_VERSION}); build both together",
                file.display(),
                nanomc.abi_version(),
                env!("CARGO_PKG_VERSION")
            )));
        }
        Ok((nanomc, loaded))
    }

    /// Why the last call of this thread failed.
    pub(super) fn last_error(&self) -> String {
        // SAFETY: never NULL, and valid until the next failing call of this thread.
        unsafe { CStr::from_ptr((self.last_error)()) }.to_string_lossy().into_owned()
    }

    /// `nmc_abi_version()`.
    #[inline(always)]
    pub fn abi_version(&self) -> u32 {
        (self.abi_version)()
    }

    /// `nmc_world_event_fd()`: the call that does least besides looking its handle up.
    #[inline(always)]
    pub fn event_fd(&self, handle: Handle) -> Status {
        let mut fd = -1;
        // SAFETY: the library checks the handle; the out-pointer is a local.
        unsafe { (self.event_fd)(handle.0, &raw mut fd) }
    }

    /// A world of `N` ranks with heaps of one page inside this process.
    pub fn create_local<const N: usize>(&self) -> Result<[Handle; N], Failure> {
        let world_size = u32::try_from(N).map_err(|_| Failure::new(format!("{N} is too large")))?;
        let config = nmc_world_config_t { world_size, heap_bytes: 4096, ..Default::default() };
        let mut worlds = [std::ptr::null_mut(); N];
        // SAFETY: a complete config, and room for as many handles as it has ranks.
        let status = unsafe { (self.create_local)(&raw const config, worlds.as_mut_ptr()) };
        if status != 0 {
            return Err(Failure::new(format!("nmc_world_create_local: {}", self.last_error())));
        }
        Ok(worlds.map(Handle))
    }

    /// `nmc_world_destroy()`.
    pub fn destroy(&self, handle: Handle) {
        (self.destroy)(handle.0);
    }
}

/// The library that belongs to this program: beside it, or in the lib folder beside bin. Cargo keeps a second copy in
/// `deps`, and `cargo test` renews only that one, so the newest counts.
fn find() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().map_err(|e| Failure::os("finding this program", &e))?;
    let folder = program.parent().map(PathBuf::from).unwrap_or_default();
    let places = ["libnanomc.so", "deps/libnanomc.so", "../lib/libnanomc.so"].map(|place| folder.join(place));
    let age = |place: &PathBuf| place.metadata().and_then(|m| m.modified()).ok();
    match places.into_iter().filter(|p| p.is_file()).max_by_key(age) {
        Some(place) => Ok(place),
        None => Err(Failure::new(format!(
            "libnanomc.so is not in {} or ../lib; build it with: cargo build --release",
            folder.display()
        ))),
    }
}

/// A C function that does next to nothing, behind the same kind of address.
pub struct PlainC {
    abs: extern "C" fn(c_int) -> c_int,
}

impl PlainC {
    /// `abs` of the C library.
    pub fn load() -> Result<Self, Failure> {
        let address = Loaded::open(c"libc.so.6")?.symbol(c"abs")?;
        // SAFETY: `int abs(int)` is the signature in every C library.
        Ok(Self { abs: unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(c_int) -> c_int>(address) } })
    }

    /// `abs(value)`.
    #[inline(always)]
    pub fn abs(&self, value: c_int) -> c_int {
        (self.abs)(value)
    }
}
