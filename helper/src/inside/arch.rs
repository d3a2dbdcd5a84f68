//! x86_64: program start, the system call instruction, a vfork with its own stack, and the four memory
//! functions that the compiler calls. Another architecture needs only this file rewritten.
#![expect(unsafe_code, reason = "assembly and the memory functions under every other Rust line")]

use core::arch::{asm, global_asm};

global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {run}",
    "ud2",
    run = sym crate::run,
);

global_asm!(
    // vfork_call(flags: rdi, stack: rsi, entry: rdx, argument: rcx) -> pid or -errno
    ".globl vfork_call",
    "vfork_call:",
    "mov r8, rdx",
    "mov r9, rcx",
    "xor edx, edx",
    "xor r10d, r10d",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jnz 1f",
    "xor ebp, ebp",
    "mov rdi, r9",
    "call r8",
    "ud2",
    "1: ret",
);

unsafe extern "C" {
    /// clone(2) with `flags`; the child runs `entry(argument)` on `stack` and must not return.
    pub(crate) fn vfork_call(
        flags: usize,
        stack: *mut u8,
        entry: extern "C" fn(*mut u8) -> !,
        argument: *mut u8,
    ) -> isize;
}

/// One system call. Returns the kernel's result unchanged; errors are small negative numbers.
///
/// # Safety
/// The arguments must meet the obligations of system call `number`.
#[inline]
pub(crate) unsafe fn syscall(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: the instruction clobbers only rcx and r11. The caller is responsible for what the kernel does
    // with the arguments.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// memcpy(3).
///
/// # Safety
/// As in C: `count` bytes readable at `from`, writable at `to`, not overlapping.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller vouches for both ranges; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
    to
}

/// memmove(3).
///
/// # Safety
/// As in C: `count` bytes readable at `from`, writable at `to`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= count {
        // SAFETY: copying upwards reads each byte before overwriting it; the caller vouches for both ranges.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: copying downwards from the last byte, with the direction flag set and cleared again.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") count => _,
            inout("rdi") to.wrapping_add(count).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(count).wrapping_sub(1) => _, options(nostack));
    }
    to
}

/// memset(3).
///
/// # Safety
/// As in C: `count` bytes writable at `to`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller vouches for the range; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("al") byte as u8,
            options(nostack, preserves_flags));
    }
    to
}

/// memcmp(3).
///
/// # Safety
/// As in C: `count` bytes readable at `one` and `other`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    for at in 0..count {
        // SAFETY: `at` is below `count`. Volatile, so that the compiler does not turn this into a call of
        // memcmp.
        let a = unsafe { one.wrapping_add(at).read_volatile() };
        // SAFETY: as above.
        let b = unsafe { other.wrapping_add(at).read_volatile() };
        if a != b {
            return i32::from(a).wrapping_sub(i32::from(b));
        }
    }
    0
}

/// bcmp(3).
///
/// # Safety
/// As [`memcmp`].
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    // SAFETY: the caller vouches for the same.
    unsafe { memcmp(one, other, count) }
}

/// strlen(3), which the compiler may call for `CStr::from_ptr`.
///
/// # Safety
/// As in C: `string` ends with NUL.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(string: *const u8) -> usize {
    let mut length = 0usize;
    // SAFETY: the bytes up to the NUL are readable, and the loop ends there.
    while unsafe { string.wrapping_add(length).read_volatile() } != 0 {
        length = length.wrapping_add(1);
    }
    length
}
