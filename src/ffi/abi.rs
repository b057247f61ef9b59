//! Sizes, offsets and defaults of the C structs as Rust sees them. `nmc abi` prints this table, and ctest compares it
//! with what a C compiler makes of the header. Both lists of structs come from `build/structs.rs`, which reads them in the
//! sources; so that a struct or a field is declared once.

use super::config::Config as _;
use std::fmt::Write as _;
use std::mem::offset_of;

/// The size of the field that `_field` returns. It is never called.
const fn size_behind<T, F>(_field: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! structs {
    ($($path:path as $name:ident { $($field:ident),* })*) => {
        /// One line for each struct and each field.
        fn layout(text: &mut String) {$({
            use $path as Struct;
            // Bytes of structs are copied and compared as a whole, so none of them may be padding.
            const _: () = assert!(
                size_of::<Struct>() == 0 $(+ size_behind(|of: &Struct| &of.$field))*,
                concat!(stringify!($name), " has padding: reorder its fields, or add one that is reserved")
            );
            let _ = writeln!(text, "{} size {} align {}", stringify!($name), size_of::<Struct>(), align_of::<Struct>());
            $(
                let (at, bytes) = (offset_of!(Struct, $field), size_behind(|of: &Struct| &of.$field));
                let _ = writeln!(text, "{}.{} at {at} bytes {bytes}", stringify!($name), stringify!($field));
            )*
        })*}
    };
}

macro_rules! initialisers {
    ($($name:ident = $value:expr;)*) => {
        /// One line for each struct with an `_INIT` macro: its bytes.
        fn defaults(text: &mut String) {
            $(initialiser(text, stringify!($name), &$value);)*
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/structs.rs"));

/// The whole table.
#[must_use]
pub fn table() -> String {
    let mut text = String::new();
    layout(&mut text);
    defaults(&mut text);
    text
}

/// What the `_INIT` macro of a struct stores that only the library fills.
fn zeros<T: Copy>() -> T {
    // SAFETY: structs of the ABI hold integers, floats, raw pointers and optional callbacks; all of them may be zero.
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: build/structs.rs asks this for structs that begin with `struct_size: u32`, and for no others.
    unsafe { (&raw mut value).cast::<u32>().write(u32::try_from(size_of::<T>()).unwrap_or(0)) };
    value
}

/// The bytes of a struct.
fn initialiser<T: Copy>(text: &mut String, name: &str, value: &T) {
    // SAFETY: the value is one of the structs above, which have no padding, so all of its bytes are initialised.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of_val(value)) };
    text.push_str(name);
    for byte in bytes {
        let _ = write!(text, " {byte:02x}");
    }
    text.push('\n');
}
