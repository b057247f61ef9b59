//! NIXL's C library, which is loaded when somebody wants it: nothing here is needed to build or to load this one. Its functions are declared
//! here as far as they are used. One thread at a time calls an agent's.
#![allow(unsafe_code, reason = "a library that is loaded at run time")]

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::status::NMC_ERR_UNSUPPORTED;
use crate::cluster::net::Span;
use once_cell::sync::OnceCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// Something of the library's.
type Handle = *mut c_void;

/// What an agent is made with.
#[repr(C)]
struct AgentConfig {
    progress_thread: bool,
    listen_thread: bool,
    listen_port: c_int,
    thread_sync: c_int,
    workers: u32,
    progress_delay_us: u64,
    listen_delay_us: u64,
    telemetry: bool,
}

/// A call goes on.
const IN_PROGRESS: c_int = 1;
/// Memory of the host.
const DRAM: c_int = 0;
/// Memory of a GPU.
const VRAM: c_int = 1;
/// Bytes go from here to there.
const WRITE: c_int = 1;

macro_rules! functions {
    ($($name:ident: fn($($t:ty),*);)*) => {
        /// The functions that are used.
        struct Table { $($name: unsafe extern "C" fn($($t),*) -> c_int,)* }

        impl Table {
            fn find(library: Handle) -> Result<Self> {
                Ok(Self {
                    $($name: {
                        let symbol = find(library, concat!("nixl_capi_", stringify!($name), "\0"))?;
                        // SAFETY: the library's function of this name has this type, as its header says.
                        unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn($($t),*) -> c_int>(symbol) }
                    },)*
                })
            }
        }
    };
}

functions! {
    create_configured_agent: fn(*const c_char, *const AgentConfig, *mut Handle);
    destroy_agent: fn(Handle);
    create_params: fn(*mut Handle);
    params_add: fn(Handle, *const c_char, *const c_char);
    destroy_params: fn(Handle);
    create_backend: fn(Handle, *const c_char, Handle, *mut Handle);
    destroy_backend: fn(Handle);
    create_reg_dlist: fn(c_int, *mut Handle);
    reg_dlist_add_desc: fn(Handle, usize, usize, u64, *const c_void, usize);
    destroy_reg_dlist: fn(Handle);
    register_mem: fn(Handle, Handle, Handle);
    deregister_mem: fn(Handle, Handle, Handle);
    get_local_md: fn(Handle, *mut Handle, *mut usize);
    load_remote_md: fn(Handle, *const c_void, usize, *mut *mut c_char);
    invalidate_remote_md: fn(Handle, *const c_char);
    create_xfer_dlist: fn(c_int, *mut Handle);
    xfer_dlist_add_desc: fn(Handle, usize, usize, u64);
    destroy_xfer_dlist: fn(Handle);
    create_xfer_req: fn(Handle, c_int, Handle, Handle, *const c_char, *mut Handle, Handle);
    post_xfer_req: fn(Handle, Handle, Handle);
    get_xfer_status: fn(Handle, Handle);
    release_xfer_req: fn(Handle, Handle);
    destroy_xfer_req: fn(Handle);
}

fn find(library: Handle, name: &str) -> Result<Handle> {
    // SAFETY: the library is loaded and stays so, and the name ends with NUL.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
    if symbol.is_null() {
        crate::bail!(
            NMC_ERR_UNSUPPORTED,
            "NIXL's library has no {}: it is of another version",
            name.trim_end_matches('\0')
        );
    }
    Ok(symbol)
}

/// The library, which stays loaded.
pub struct Library(Table);

static LIBRARY: OnceCell<Result<Library>> = OnceCell::new();

impl Library {
    /// NIXL, or why it is not there. `NMC_NIXL` says where its `libnixl_capi.so` is, if not where libraries are.
    pub fn get() -> Result<&'static Library> {
        match LIBRARY.get_or_init(Self::load) {
            Ok(library) => Ok(library),
            Err(error) => Err(error.clone()),
        }
    }

    fn load() -> Result<Self> {
        let said = std::env::var("NMC_NIXL").ok().filter(|path| !path.is_empty());
        let names = match &said {
            Some(path) => vec![path.as_str()],
            None => vec!["libnixl_capi.so", "libnixl_capi.so.1"],
        };
        let loaded = names.iter().find_map(|name| {
            let name = CString::new(*name).ok()?;
            // SAFETY: the name ends with NUL. The library's constructors run here: that is what is asked for.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            (!library.is_null()).then_some(library)
        });
        let Some(library) = loaded else {
            crate::bail!(
                NMC_ERR_UNSUPPORTED,
                "{} cannot be loaded ({}): pip install nixl-cu12, and set NMC_NIXL to the file",
                names[0],
                last_error()
            );
        };
        let stub = find(library, "nixl_capi_is_stub\0")?;
        // SAFETY: takes nothing and gives a bool, as the library's header says.
        if unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn() -> bool>(stub)() } {
            crate::bail!(NMC_ERR_UNSUPPORTED, "{} is a stub: NIXL itself is not installed", names[0]);
        }
        Table::find(library).map(Self)
    }
}

fn last_error() -> String {
    // SAFETY: gives NULL or a text that is valid until the next such call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no such library".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn check(what: &str, status: c_int) -> Result<()> {
    if status < 0 {
        crate::bail!(NMC_ERR_UNSUPPORTED, "NIXL: {what} failed with {status}");
    }
    Ok(())
}

/// Memory of the host, or of a GPU with this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// The host's.
    Host,
    /// A GPU's.
    Device(u32),
}

impl Medium {
    /// The GPU, if it is one's.
    #[must_use]
    pub fn device(self) -> Option<u32> {
        match self {
            Self::Host => None,
            Self::Device(number) => Some(number),
        }
    }

    fn code(self) -> (c_int, u64) {
        match self {
            Self::Host => (DRAM, 0),
            Self::Device(number) => (VRAM, u64::from(number)),
        }
    }
}

/// How a transfer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Bytes are under way.
    Moving,
    /// All have arrived.
    Whole,
    /// No more are sent; what was may arrive.
    Failed,
}

/// An agent: what it has under way has ended when it is dropped, at both of its ends as far as they are here.
pub struct Agent {
    table: &'static Table,
    agent: Handle,
    backend: Handle,
    name: CString,
}

// SAFETY: the library ties nothing to the thread that made it, and one thread at a time uses it.
unsafe impl Send for Agent {}

/// Memory that an agent knows. It is given back by [`Agent::unregister`], or ends with its agent.
pub struct Registered(Handle);

// SAFETY: as for the agent.
unsafe impl Send for Registered {}

/// A transfer. It is given back by [`Agent::release`], or leaks a few bytes with its agent.
pub struct Request(Handle);

// SAFETY: as for the agent.
unsafe impl Send for Request {}

/// A list of memory, while a call is made.
struct List<'a>(&'a Table, Handle);

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: made by the library, and dropped once.
        unsafe { (self.0.destroy_xfer_dlist)(self.1) };
    }
}

impl Agent {
    /// An agent that moves bytes by UCX, with these settings for it.
    pub fn new(name: &str, settings: &[(&str, String)]) -> Result<Self> {
        let table = &Library::get()?.0;
        let text =
            |text: &str| CString::new(text).map_err(|_| Error::new(NMC_ERR_UNSUPPORTED, "a name has a zero byte"));
        let name = text(name)?;
        let config = AgentConfig {
            progress_thread: true,
            listen_thread: false,
            listen_port: 0,
            thread_sync: 0,
            workers: 1,
            // Its thread sleeps until something comes, so long at most. With 0 it would not sleep at all.
            progress_delay_us: 1_000,
            listen_delay_us: 0,
            telemetry: false,
        };
        let mut agent = null_mut();
        // SAFETY: the name ends with NUL, and all of it outlives the call.
        check("making an agent", unsafe {
            (table.create_configured_agent)(name.as_ptr(), &raw const config, &raw mut agent)
        })?;
        let mut made = Self { table, agent, backend: null_mut(), name };
        let mut params = null_mut();
        // SAFETY: as above.
        check("making settings", unsafe { (table.create_params)(&raw mut params) })?;
        let mut status = 0;
        for (key, value) in settings {
            let (key, value) = (text(key)?, text(value)?);
            // SAFETY: as above.
            status = status.min(unsafe { (table.params_add)(params, key.as_ptr(), value.as_ptr()) });
        }
        if status >= 0 {
            // SAFETY: as above; the settings are copied.
            status = unsafe { (table.create_backend)(agent, c"UCX".as_ptr(), params, &raw mut made.backend) };
        }
        // SAFETY: made above, and used no more.
        unsafe { (table.destroy_params)(params) };
        check("making a backend of UCX", status)?;
        Ok(made)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// From now on it moves bytes from and to this memory.
    pub fn register(&self, memory: Span, medium: Medium) -> Result<Registered> {
        let (kind, device) = medium.code();
        let mut list = null_mut();
        // SAFETY: plain calls with values that outlive them; the span is vouched for by whoever made it.
        unsafe {
            check("a list of memory", (self.table.create_reg_dlist)(kind, &raw mut list))?;
            let mut status = (self.table.reg_dlist_add_desc)(list, memory.first(), memory.len(), device, null(), 0);
            if status >= 0 {
                status = (self.table.register_mem)(self.agent, list, null_mut());
            }
            if status < 0 {
                (self.table.destroy_reg_dlist)(list);
            }
            check("registering memory", status)?;
        }
        Ok(Registered(list))
    }

    /// It knows that memory no more.
    pub fn unregister(&self, registered: Registered) {
        // SAFETY: registered with this agent, and used no more.
        unsafe {
            (self.table.deregister_mem)(self.agent, registered.0, null_mut());
            (self.table.destroy_reg_dlist)(registered.0);
        }
    }

    /// The memory of an agent that has ended.
    pub fn forget(table: &'static Library, registered: Registered) {
        // SAFETY: a list by itself, and used no more.
        unsafe { (table.0.destroy_reg_dlist)(registered.0) };
    }

    /// What others have to know to write to its memory.
    pub fn card(&self) -> Result<Vec<u8>> {
        let (mut data, mut len) = (null_mut(), 0usize);
        // SAFETY: both places are written by the call.
        check("saying how it is reached", unsafe {
            (self.table.get_local_md)(self.agent, &raw mut data, &raw mut len)
        })?;
        // SAFETY: the library has put so many bytes there, which are ours to free.
        let card = unsafe { memory::copy(std::slice::from_raw_parts(data.cast::<u8>(), len)) };
        // SAFETY: as above.
        unsafe { libc::free(data) };
        card
    }

    /// Gets to know another, by its card; again if its memory has changed. Gives its name.
    pub fn meet(&self, card: &[u8]) -> Result<CString> {
        let mut name = null_mut();
        // SAFETY: the card outlives the call.
        let status =
            unsafe { (self.table.load_remote_md)(self.agent, card.as_ptr().cast(), card.len(), &raw mut name) };
        check("reading how another is reached", status)?;
        if name.is_null() {
            crate::bail!(NMC_ERR_UNSUPPORTED, "NIXL: another agent has no name");
        }
        // SAFETY: a text that the library has made, and which is ours to free.
        let known = unsafe { CStr::from_ptr(name) }.to_owned();
        // SAFETY: as above.
        unsafe { libc::free(name.cast()) };
        Ok(known)
    }

    /// Knows another no more.
    pub fn part(&self, name: &CStr) {
        // SAFETY: the name ends with NUL.
        unsafe { (self.table.invalidate_remote_md)(self.agent, name.as_ptr()) };
    }

    fn list(&self, medium: Medium, pieces: impl Iterator<Item = (usize, usize)>) -> Result<List<'_>> {
        let (kind, device) = medium.code();
        let mut list = null_mut();
        // SAFETY: the place is written by the call.
        check("a list of pieces", unsafe { (self.table.create_xfer_dlist)(kind, &raw mut list) })?;
        let list = List(self.table, list);
        for (first, len) in pieces {
            // SAFETY: numbers only; nothing is read there now.
            check("a piece", unsafe { (self.table.xfer_dlist_add_desc)(list.1, first, len, device) })?;
        }
        Ok(list)
    }

    /// Begins to write pieces of memory to pieces of the same lengths elsewhere. If it fails nothing was sent.
    pub fn write(&self, pieces: &[(Span, usize)], from: Medium, to: (&CStr, Medium)) -> Result<Request> {
        let here = self.list(from, pieces.iter().map(|(span, _)| (span.first(), span.len())))?;
        let there = self.list(to.1, pieces.iter().map(|(span, address)| (*address, span.len())))?;
        let mut request = null_mut();
        // SAFETY: all of them outlive the call, which copies them. The pieces are vouched for until the request is final or the agent has
        // ended; the library itself checks that both sides are registered.
        let status = unsafe {
            (self.table.create_xfer_req)(
                self.agent,
                WRITE,
                here.1,
                there.1,
                to.0.as_ptr(),
                &raw mut request,
                null_mut(),
            )
        };
        check("a transfer", status)?;
        Ok(Request(request))
    }

    /// Sends what it is about. After an error something may have been sent.
    pub fn post(&self, request: &Request) -> Progress {
        // SAFETY: made by this agent, and not released.
        progress(unsafe { (self.table.post_xfer_req)(self.agent, request.0, null_mut()) })
    }

    /// How it goes.
    pub fn look(&self, request: &Request) -> Progress {
        // SAFETY: as above.
        progress(unsafe { (self.table.get_xfer_status)(self.agent, request.0) })
    }

    /// It is not looked at any more. What is under way of it goes on.
    pub fn release(&self, request: Request) {
        // SAFETY: made by this agent, and used no more.
        unsafe {
            if (self.table.release_xfer_req)(self.agent, request.0) >= 0 {
                (self.table.destroy_xfer_req)(request.0);
            }
        }
    }
}

fn progress(status: c_int) -> Progress {
    match status {
        0 => Progress::Whole,
        IN_PROGRESS => Progress::Moving,
        _ => Progress::Failed,
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // SAFETY: made by the library, and dropped once. The backend's handle is only a wrapper; the backend ends with the agent.
        unsafe {
            (self.table.destroy_agent)(self.agent);
            if !self.backend.is_null() {
                (self.table.destroy_backend)(self.backend);
            }
        }
    }
}

/// An agent that moves nothing: its card has so many bytes for each memory that it knows.
#[cfg(test)]
pub mod fake {
    use super::*;

    /// What it is.
    pub struct Fake {
        /// Memory that it knows.
        pub known: usize,
        each: usize,
    }

    extern "C" fn make(place: *mut Handle) -> c_int {
        // SAFETY: the caller's place. What is made is an empty box that is never looked at.
        unsafe { *place = Box::into_raw(Box::new(0u8)).cast() };
        0
    }

    extern "C" fn make_list(_: c_int, place: *mut Handle) -> c_int {
        make(place)
    }

    extern "C" fn end(made: Handle) -> c_int {
        // SAFETY: made above, and ended once.
        drop(unsafe { Box::from_raw(made.cast::<u8>()) });
        0
    }

    extern "C" fn register(agent: Handle, _: Handle, _: Handle) -> c_int {
        // SAFETY: the agent is a fake, which lives.
        unsafe { (*agent.cast::<Fake>()).known += 1 };
        0
    }

    extern "C" fn deregister(agent: Handle, _: Handle, _: Handle) -> c_int {
        // SAFETY: as above.
        unsafe { (*agent.cast::<Fake>()).known -= 1 };
        0
    }

    extern "C" fn card(agent: Handle, data: *mut Handle, len: *mut usize) -> c_int {
        // SAFETY: as above; both places are the caller's, who frees the bytes.
        unsafe {
            let fake = &*agent.cast::<Fake>();
            *len = 1 + fake.known * fake.each;
            *data = libc::calloc(1, *len);
        }
        0
    }

    extern "C" fn end_agent(agent: Handle) -> c_int {
        // SAFETY: made by `Agent::fake`, and ended once.
        drop(unsafe { Box::from_raw(agent.cast::<Fake>()) });
        0
    }

    /// A function that does nothing, and says this.
    macro_rules! says {
        ($status:expr; $($t:ty),*) => {{
            extern "C" fn says($(_: $t),*) -> c_int {
                $status
            }
            says
        }};
    }

    static TABLE: Table = Table {
        create_configured_agent: says!(-1; *const c_char, *const AgentConfig, *mut Handle),
        destroy_agent: end_agent,
        create_params: make,
        params_add: says!(0; Handle, *const c_char, *const c_char),
        destroy_params: end,
        create_backend: says!(-1; Handle, *const c_char, Handle, *mut Handle),
        destroy_backend: end,
        create_reg_dlist: make_list,
        reg_dlist_add_desc: says!(0; Handle, usize, usize, u64, *const c_void, usize),
        destroy_reg_dlist: end,
        register_mem: register,
        deregister_mem: deregister,
        get_local_md: card,
        load_remote_md: says!(-1; Handle, *const c_void, usize, *mut *mut c_char),
        invalidate_remote_md: says!(0; Handle, *const c_char),
        create_xfer_dlist: make_list,
        xfer_dlist_add_desc: says!(0; Handle, usize, usize, u64),
        destroy_xfer_dlist: end,
        create_xfer_req: says!(-1; Handle, c_int, Handle, Handle, *const c_char, *mut Handle, Handle),
        post_xfer_req: says!(-1; Handle, Handle, Handle),
        get_xfer_status: says!(-1; Handle, Handle),
        release_xfer_req: says!(0; Handle, Handle),
        destroy_xfer_req: end,
    };

    impl Agent {
        /// One whose card has so many bytes for each memory.
        pub fn fake(each: usize) -> Self {
            let agent = Box::into_raw(Box::new(Fake { known: 0, each })).cast();
            Self { table: &TABLE, agent, backend: null_mut(), name: CString::default() }
        }

        /// Memory that a fake one knows.
        pub fn known(&self) -> usize {
            // SAFETY: only asked of a fake.
            unsafe { (*self.agent.cast::<Fake>()).known }
        }
    }
}
