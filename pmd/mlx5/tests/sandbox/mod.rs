//! What the data-path proofs need from the system: an allocator that counts, a child process, and
//! a filter under which the first system call is the last.
#![allow(unsafe_code)] // a global allocator, fork, and seccomp have no safe form

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;

thread_local! {
    /// Calls to the allocator by this thread. Constant, without destructor: counting itself
    /// allocates nothing.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting by thread.
pub struct Counting;

fn count() {
    // A thread that is going away has no counter any more, and is not measured.
    let _gone = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call goes to `System` with the same arguments; counting touches no memory but a
// thread-local integer.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        count();
        // SAFETY: as above.
        unsafe { System.dealloc(old, layout) }
    }
}

/// Calls to the allocator (freeing included) that this thread has made.
pub fn allocator_calls() -> u64 {
    CALLS.with(Cell::get)
}

/// How a child process ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    Exit(i32),
    Signal(i32),
}

/// Runs `work` in a forked child and waits for it. Its exit status is 0 when `work` said true, 1
/// when it said false, 101 when it panicked.
pub fn in_child(work: impl FnOnce() -> bool) -> io::Result<Ended> {
    // SAFETY: the child is a copy of this thread alone. It runs `work` and leaves by `_exit`,
    // without returning into the test harness. The C library makes its own locks usable in the
    // child; `work` takes no other lock that another thread may hold.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let status = match ended {
                Ok(true) => 0,
                Ok(false) => 1,
                Err(_) => 101,
            };
            // SAFETY: ends this process at once; nothing of the parent is touched.
            unsafe { libc::_exit(status) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `child` is ours and `status` is a place to write to.
            if unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
                return Err(io::Error::last_os_error());
            }
            Ok(if libc::WIFSIGNALED(status) {
                Ended::Signal(libc::WTERMSIG(status))
            } else {
                Ended::Exit(libc::WEXITSTATUS(status))
            })
        }
    }
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// From now on any system call of this thread, except the one that ends the process, kills the
/// process with SIGSYS.
pub fn forbid_system_calls() -> io::Result<()> {
    let architecture = ARCHITECTURE.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    // seccomp_data: the call's number at byte 0, the architecture at byte 4.
    let mut program = [
        step(load, 0, 0, 4),
        step(equal, 0, 3, architecture),
        step(load, 0, 0, 0),
        step(equal, 0, 1, libc::SYS_exit_group as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(answer, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: plain integers; gives up the right to gain privileges, which a filter requires.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `filter` describes `program`, and both live until the kernel has copied them.
    let refused = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const filter,
        )
    };
    if refused != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
