//! One pointer and two numbers per thread, read in two instructions each. `thread_local!` in a shared library calls `__tls_get_addr`, which
//! costs more than the rest of a handle lookup; on x86-64 the slot is declared with the initial-exec model instead,
//! which stable Rust offers only through assembly. It takes 24 of the bytes that the loader keeps free for libraries
//! that are opened late.

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss.nmc_thread_slot,\"awT\",@nobits",
        ".globl nmc_thread_slot",
        ".hidden nmc_thread_slot",
        ".type nmc_thread_slot,@object",
        ".size nmc_thread_slot,8",
        ".p2align 3",
        "nmc_thread_slot:",
        ".zero 8",
        ".popsection",
        ".pushsection .tbss.nmc_thread_number,\"awT\",@nobits",
        ".globl nmc_thread_number",
        ".hidden nmc_thread_number",
        ".type nmc_thread_number,@object",
        ".size nmc_thread_number,8",
        ".p2align 3",
        "nmc_thread_number:",
        ".zero 8",
        ".popsection",
        ".pushsection .tbss.nmc_thread_depth,\"awT\",@nobits",
        ".globl nmc_thread_depth",
        ".hidden nmc_thread_depth",
        ".type nmc_thread_depth,@object",
        ".size nmc_thread_depth,8",
        ".p2align 3",
        "nmc_thread_depth:",
        ".zero 8",
        ".popsection",
    );

    /// What this thread stored last, or null.
    #[inline(always)]
    pub fn get() -> *mut () {
        let value: *mut ();
        // SAFETY: reads the calling thread's own 8 bytes, which exist as long as it runs code of this library.
        unsafe {
            asm!(
                "mov {value}, qword ptr [rip + nmc_thread_slot@GOTTPOFF]",
                "mov {value}, qword ptr fs:[{value}]",
                value = out(reg) value,
                options(nostack, preserves_flags, readonly),
            );
        }
        value
    }

    /// Stores this thread's pointer.
    pub fn set(value: *mut ()) {
        // SAFETY: writes the calling thread's own 8 bytes.
        unsafe {
            asm!(
                "mov {offset}, qword ptr [rip + nmc_thread_slot@GOTTPOFF]",
                "mov qword ptr fs:[{offset}], {value}",
                offset = out(reg) _,
                value = in(reg) value,
                options(nostack, preserves_flags),
            );
        }
    }

    /// The number that this thread stored last, or 0.
    #[inline(always)]
    pub fn number() -> usize {
        let value: usize;
        // SAFETY: as in `get`.
        unsafe {
            asm!(
                "mov {value}, qword ptr [rip + nmc_thread_number@GOTTPOFF]",
                "mov {value}, qword ptr fs:[{value}]",
                value = out(reg) value,
                options(nostack, preserves_flags, readonly),
            );
        }
        value
    }

    /// Stores this thread's number.
    pub fn set_number(value: usize) {
        // SAFETY: as in `set`.
        unsafe {
            asm!(
                "mov {offset}, qword ptr [rip + nmc_thread_number@GOTTPOFF]",
                "mov qword ptr fs:[{offset}], {value}",
                offset = out(reg) _,
                value = in(reg) value,
                options(nostack, preserves_flags),
            );
        }
    }

    /// The depth that this thread stored last, or 0.
    #[inline(always)]
    pub fn depth() -> usize {
        let value: usize;
        // SAFETY: as in `get`.
        unsafe {
            asm!(
                "mov {value}, qword ptr [rip + nmc_thread_depth@GOTTPOFF]",
                "mov {value}, qword ptr fs:[{value}]",
                value = out(reg) value,
                options(nostack, preserves_flags, readonly),
            );
        }
        value
    }

    /// Stores this thread's depth.
    #[inline(always)]
    pub fn set_depth(value: usize) {
        // SAFETY: as in `set`.
        unsafe {
            asm!(
                "mov {offset}, qword ptr [rip + nmc_thread_depth@GOTTPOFF]",
                "mov qword ptr fs:[{offset}], {value}",
                offset = out(reg) _,
                value = in(reg) value,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    use std::cell::Cell;

    thread_local! {
        static SLOT: Cell<*mut ()> = const { Cell::new(std::ptr::null_mut()) };
        static NUMBER: Cell<usize> = const { Cell::new(0) };
        static DEPTH: Cell<usize> = const { Cell::new(0) };
    }

    /// What this thread stored last, or null.
    #[inline(always)]
    pub fn get() -> *mut () {
        SLOT.get()
    }

    /// Stores this thread's pointer.
    pub fn set(value: *mut ()) {
        SLOT.set(value);
    }

    /// The number that this thread stored last, or 0.
    #[inline(always)]
    pub fn number() -> usize {
        NUMBER.get()
    }

    /// Stores this thread's number.
    pub fn set_number(value: usize) {
        NUMBER.set(value);
    }

    /// The depth that this thread stored last, or 0.
    #[inline(always)]
    pub fn depth() -> usize {
        DEPTH.get()
    }

    /// Stores this thread's depth.
    #[inline(always)]
    pub fn set_depth(value: usize) {
        DEPTH.set(value);
    }
}

pub use imp::{depth, get, number, set, set_depth, set_number};

#[cfg(test)]
mod tests {
    #[test]
    fn every_thread_has_its_own_slot_which_begins_empty() {
        let threads: Vec<_> = (1..5usize)
            .map(|i| {
                std::thread::spawn(move || {
                    assert!(super::get().is_null() && super::number() == 0 && super::depth() == 0);
                    super::set(i as *mut ());
                    super::set_number(i + 10);
                    super::set_depth(i + 20);
                    std::thread::yield_now();
                    assert_eq!((super::get() as usize, super::number(), super::depth()), (i, i + 10, i + 20));
                })
            })
            .collect();
        assert!(threads.into_iter().all(|t| t.join().is_ok()));
    }
}
