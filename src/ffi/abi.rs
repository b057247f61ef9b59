//! Sizes, offsets and defaults of the C structs as Rust sees them. `nmc abi` prints this table and ctest compares it
//! with what a C compiler makes of the header.

use super::basic::nmc_slice_t;
use super::config::Config as _;
use super::world_types::{nmc_memory_t, nmc_rank_info_t, nmc_world_config_t, nmc_world_info_t};
use std::fmt::Write as _;
use std::mem::offset_of;

macro_rules! describe {
    ($text:ident, $($name:ident { $($field:ident),* $(,)? })*) => {$(
        let _ = writeln!($text, "{} size {} align {}", stringify!($name), size_of::<$name>(), align_of::<$name>());
        $(let _ = writeln!($text, "{}.{} {}", stringify!($name), stringify!($field), offset_of!($name, $field));)*
    )*};
}

/// One line per struct and field, then the default config as bytes.
#[must_use]
pub fn table() -> String {
    let mut text = String::new();
    describe! { text,
        nmc_slice_t { ptr, len }
        nmc_memory_t { kind, fd, ptr }
        nmc_world_config_t {
            struct_size, abi_version, name, dir, rank, world_size, heap_bytes, heap_kind, heap_flags, heap_import,
            device, device_rank, words_per_rank, master, join_timeout_ms, drain_ms, service_cpu, reserved,
        }
        nmc_world_info_t {
            struct_size, rank, world_size, heap_kind, heap_bytes, world_id, heap_flags, words_per_rank, master_up,
            reserved,
        }
        nmc_rank_info_t { struct_size, state, generation, pid, device, heap_base, device_rank, reserved }
    }
    let config = nmc_world_config_t::defaults();
    // SAFETY: the config has no padding (trait contract of Config), so all of its bytes are initialised.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const config).cast::<u8>(), size_of_val(&config)) };
    text.push_str("NMC_WORLD_CONFIG_INIT");
    for byte in bytes {
        let _ = write!(text, " {byte:02x}");
    }
    text.push('\n');
    text
}
