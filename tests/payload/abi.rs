//! Calls by other conventions than the one a filter for x86_64 is written for.

use std::arch::asm;

use crate::{
    call::{address_of, raw},
    say,
};

/// `__X32_SYSCALL_BIT` of asm/unistd.h.
const X32_BIT: i64 = 0x4000_0000;

/// Makes the call with the number of the first argument, by the x32 convention.
pub(crate) fn x32(arguments: &[&str]) {
    let number: i64 = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(libc::SYS_getpid);
    say(raw(number | X32_BIT, [0; 6]));
}

/// The call numbered by the first argument, with zero arguments, by the gate of i386: the kernel reads the
/// number in another table.
pub(crate) fn int80(arguments: &[&str]) {
    let mut answer: i64 = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(20);
    // SAFETY: with zero arguments the call has no pointer to follow; rbx is put back because LLVM keeps it,
    // and the gate clobbers r8 to r11.
    unsafe {
        asm!("push rbx", "xor ebx, ebx", "int 0x80", "pop rbx", inout("rax") answer,
            inout("rcx") 0i64 => _, inout("rdx") 0i64 => _, inout("rsi") 0i64 => _, inout("rdi") 0i64 => _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    say(if answer < 0 { Err(i32::try_from(-answer).unwrap_or_default()) } else { Ok(answer) });
}

/// Installs a filter that allows everything on top of the others, and tries refused calls again.
pub(crate) fn allow_all(_: &[&str]) {
    // BPF_RET | BPF_K, SECCOMP_RET_ALLOW
    let program = [6u64 | 0x7fff_0000 << 32];
    let descriptor = [1, address_of(program.as_ptr())];
    let mode = libc::SECCOMP_SET_MODE_FILTER.into();
    say(raw(libc::SYS_seccomp, [mode, 0, address_of(descriptor.as_ptr()), 0, 0, 0]));
    say(raw(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0, 0, 0]));
    say(raw(libc::SYS_setns, [0; 6]));
}
