//! Which NUMA node memory is on.
#![allow(unsafe_code, reason = "a system call")]

use std::fs;

/// The NUMA node of the page at this address, if there is one in this process; else that of the machine, if it has only one.
#[must_use]
pub fn node_of(address: u64) -> Option<u32> {
    page_at(address).or_else(|| only(&fs::read_to_string("/sys/devices/system/node/online").ok()?))
}

/// The node of a page that is there. Nothing is made there by asking.
fn page_at(address: u64) -> Option<u32> {
    let page = usize::try_from(address).ok()? & !0xfff;
    let (myself, one, stay) = (0, 1usize, std::ptr::null::<libc::c_int>());
    let mut node: libc::c_int = -1;
    // SAFETY: one address, which the kernel does not follow but looks up, and one word for what it finds. Without nodes nothing is moved.
    let done = unsafe { libc::syscall(libc::SYS_move_pages, myself, one, &raw const page, stay, &raw mut node, 0) };
    u32::try_from(node).ok().filter(|_| done == 0)
}

/// The node, if a list of them has only this one.
fn only(list: &str) -> Option<u32> {
    list.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_on_a_node_when_it_has_a_page() {
        let memory = vec![1u8; 1 << 16];
        let (here, alone) = (page_at(memory.as_ptr() as u64), node_of(8));
        // Where the kernel does not tell, or has one node alone, that is all that is known.
        assert_eq!(page_at(8), None, "nothing is there");
        match (here, alone) {
            (Some(here), Some(alone)) => assert_eq!(here, alone),
            (None, alone) => assert_eq!(node_of(memory.as_ptr() as u64), alone),
            (Some(here), None) => assert_eq!(node_of(memory.as_ptr() as u64), Some(here)),
        }
        assert_eq!(
            (only("0\n"), only("3"), only("0-1\n"), only("0,2"), only("")),
            (Some(0), Some(3), None, None, None)
        );
    }
}
