//! `libnanomc.so` as a C program gets it: loaded at run time, its functions called through the addresses that the dynamic
//! linker gives. The CLI itself contains the same code, but calls into it would be inlined and measure nothing.
//!
//! Nothing of the C API is declared here. Structs, constants, defaults and the type of every function are the library's own
//! definitions, those from which `include/nanomc.h` is generated; what is renamed or changed there does not compile here.
#![allow(unsafe_code, reason = "dlopen, and calls through the C ABI")]

use crate::args::Failure;
use c_api::{Config as _, NMC_ABI_VERSION, NMC_OK, nmc_status_t, nmc_world_config_t, nmc_world_t};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// The names of `include/nanomc.h`, side by side as they are there; what its `_INIT` macros store is `Config::defaults`.
pub(super) mod c_api {
    pub use nanomc::base::status::*;
    pub use nanomc::ffi::config::Config;
    pub use nanomc::ffi::{
        basic::*, blocks::*, client::*, client_remove::*, client_types::*, common::*, ep::*, ep_types::*, kv::*,
        kv_move::*, kv_seq::*, kv_state::*, kv_tables::*, kv_types::*, store::*, store_access::*, store_batch::*,
        store_service::*, store_types::*, tier::*, tier_types::*, world::*, world_types::*,
    };
}

/// A loaded library. It is never unloaded, so its functions can be called at any time.
struct Loaded(*mut c_void);

impl Loaded {
    fn open(file: &CStr) -> Result<Self, Failure> {
        // SAFETY: runs the constructors of the library; both that are opened here have none that matter.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() { Err(Failure::new(format!("loading {file:?}: {}", why()))) } else { Ok(Self(handle)) }
    }

    /// Address of a function.
    fn symbol(&self, name: &CStr) -> Result<*mut c_void, Failure> {
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

/// [`Nanomc`], with an address for each of these functions.
macro_rules! functions {
    ($($name:ident)*) => {
        /// The functions that the benchmarks call, to be used with [`call`] and [`try_call`].
        pub struct Nanomc {
            $(pub(super) $name: *mut c_void,)*
        }

        impl Nanomc {
            fn of(loaded: &Loaded) -> Result<Self, Failure> {
                let symbol = |name: &str| {
                    loaded.symbol(&CString::new(name).map_err(|_| Failure::new("a name with a NUL byte"))?)
                };
                Ok(Self { $($name: symbol(stringify!($name))?,)* })
            }
        }
    };
}

functions! {
    nmc_version nmc_abi_version nmc_last_error_message
    nmc_world_create_local nmc_world_join nmc_world_finalize nmc_world_destroy nmc_world_event_fd
    nmc_store_create nmc_store_destroy nmc_store_put nmc_store_put_batch nmc_store_get nmc_store_get_into
    nmc_store_exists nmc_store_exists_batch nmc_store_pin nmc_store_unpin nmc_store_remove_batch nmc_store_stats
    nmc_store_get_into_batch nmc_store_evict_until_below
    nmc_tier_open nmc_tier_close nmc_tier_offload nmc_tier_scan nmc_tier_stats
    nmc_ep_bytes_needed nmc_ep_create_ranks nmc_ep_destroy nmc_ep_recv_buffers nmc_ep_group_begin nmc_ep_group_end
    nmc_ep_dispatch nmc_ep_route_pack nmc_ep_scatter nmc_ep_combine
    nmc_blocks_create nmc_blocks_destroy nmc_blocks_allocate nmc_blocks_free nmc_blocks_allocate_scattered
    nmc_blocks_free_scattered
    nmc_kv_create nmc_kv_destroy nmc_kv_open nmc_kv_close nmc_kv_append nmc_kv_append_batch nmc_kv_truncate
    nmc_kv_table nmc_kv_hash nmc_kv_stats nmc_kv_clear nmc_kv_commit nmc_kv_attach_store nmc_kv_offload nmc_kv_onboard
    nmc_kv_transfer_wait
    nmc_client_open nmc_client_close nmc_client_attach_store nmc_client_put nmc_client_put_batch nmc_client_get
    nmc_client_get_batch nmc_client_exists_batch nmc_client_remove nmc_client_sync
}

/// `call!(nanomc, nmc_world_destroy(world))` calls that function of the loaded library, which is unsafe: what its C contract
/// asks for is the caller's to keep. The arguments are checked against the function's own definition.
macro_rules! call {
    ($nanomc:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        use $crate::bench::library::{c_api, typed};
        let defined: unsafe extern "C" fn($($crate::bench::library::call!(@type $arg)),*) -> _ = c_api::$name;
        typed(defined, $nanomc.$name)($($arg),*)
    }};
    (@type $arg:expr) => { _ };
}
pub(super) use call;

/// The same for functions that return a status; one that is not `NMC_OK` becomes a failure with the library's reason.
macro_rules! try_call {
    ($nanomc:expr, $name:ident($($arg:expr),* $(,)?)) => {
        $nanomc.check(stringify!($name), $crate::bench::library::call!($nanomc, $name($($arg),*)))
    };
}
pub(super) use try_call;

/// A struct that the library fills, as its `_INIT` macro makes it: zeros, and its size.
///
/// # Safety
/// The type begins with `struct_size: u32`, and zeros are a value of it.
pub(super) unsafe fn blank<T: Copy>() -> T {
    // SAFETY: by the caller's promise.
    unsafe {
        let mut made: T = std::mem::zeroed();
        (&raw mut made).cast::<u32>().write(u32::try_from(size_of::<T>()).unwrap_or(0));
        made
    }
}

/// `address` with the type of the function `_like`.
///
/// # Safety
/// A function of that type is there.
#[inline(always)]
pub(super) unsafe fn typed<F: Copy>(_like: F, address: *mut c_void) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "a pointer to a function") };
    // SAFETY: of the same size, and by the caller's promise a pointer to such a function.
    unsafe { std::mem::transmute_copy(&address) }
}

/// A handle of the loaded library, alive or destroyed: the library checks it, so any value may be passed.
#[derive(Debug, Clone, Copy)]
pub struct Handle(*mut nmc_world_t);

impl Nanomc {
    /// Loads the library that was built together with this program.
    pub fn load() -> Result<Self, Failure> {
        let file = find()?;
        let name = CString::new(file.as_os_str().as_bytes()).map_err(|_| Failure::new("a path with a NUL byte"))?;
        let nanomc = Self::of(&Loaded::open(&name)?)?;
        // SAFETY: no arguments; these two have been what they are since the first version.
        let (version, abi) = unsafe { (text(call!(nanomc, nmc_version())), call!(nanomc, nmc_abi_version())) };
        if version != env!("CARGO_PKG_VERSION") || abi != NMC_ABI_VERSION {
            return Err(Failure::new(format!(
                "{} is version {version} (ABI {abi}), this program {} (ABI {NMC_ABI_VERSION}); build both together",
                file.display(),
                env!("CARGO_PKG_VERSION")
            )));
        }
        Ok(nanomc)
    }

    /// Turns a status into a failure with its reason, which is that of the last call of this thread that failed.
    pub(super) fn check(&self, what: &str, status: nmc_status_t) -> Result<(), Failure> {
        if status == NMC_OK {
            return Ok(());
        }
        // SAFETY: no arguments; the text is copied before the next call.
        let why = unsafe { text(call!(self, nmc_last_error_message())) };
        Err(Failure::new(format!("{what}: {why}")))
    }

    /// `nmc_abi_version()`.
    #[inline(always)]
    pub fn abi_version(&self) -> u32 {
        // SAFETY: no arguments.
        unsafe { call!(self, nmc_abi_version()) }
    }

    /// `nmc_world_event_fd()`: the call that does least besides looking its handle up.
    #[inline(always)]
    pub fn event_fd(&self, handle: Handle) -> nmc_status_t {
        let mut fd = -1;
        // SAFETY: the library checks the handle; the out-pointer is a local.
        unsafe { call!(self, nmc_world_event_fd(handle.0, &raw mut fd)) }
    }

    /// A world of `N` ranks with heaps of one page inside this process.
    pub fn create_local<const N: usize>(&self) -> Result<[Handle; N], Failure> {
        let world_size = u32::try_from(N).map_err(|_| Failure::new(format!("{N} is too large")))?;
        let config = nmc_world_config_t { world_size, heap_bytes: 4096, ..nmc_world_config_t::defaults() };
        let mut worlds = [std::ptr::null_mut(); N];
        // SAFETY: a complete config, and room for as many handles as it has ranks.
        unsafe { try_call!(self, nmc_world_create_local(&raw const config, worlds.as_mut_ptr())) }?;
        Ok(worlds.map(Handle))
    }

    /// `nmc_world_destroy()`.
    pub fn destroy(&self, handle: Handle) {
        // SAFETY: the library checks the handle.
        unsafe { call!(self, nmc_world_destroy(handle.0)) };
    }
}

/// A text of the library's.
///
/// # Safety
/// NUL-terminated, and valid now.
unsafe fn text(from: *const c_char) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

/// The library that belongs to this program: beside it, or in the lib folder beside bin. Cargo keeps a second copy in
/// `deps`, and `cargo test` renews only that one, so the newest counts.
pub(super) fn find() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().map_err(|e| Failure::os("finding this program", &e))?;
    let folder = program.parent().map(PathBuf::from).unwrap_or_default();
    let places = ["libnanomc.so", "deps/libnanomc.so", "../lib/libnanomc.so"].map(|place| folder.join(place));
    let age = |place: &PathBuf| place.metadata().and_then(|m| m.modified()).ok();
    match places.into_iter().filter(|p| p.is_file()).max_by_key(age) {
        Some(place) => Ok(place),
        None => Err(Failure::new(format!(
            "libnanomc.so is not in {} or ../lib; build it with: cargo build --release --workspace",
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
