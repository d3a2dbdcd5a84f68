//! finish CODE: ends the virtual machine, QEMU with status 2 * CODE + 1, by its device isa-debug-exit.
//! A program of its own, because the kernels tested have no /dev/port.

use std::{arch::asm, env, process::exit};

/// Where `scripts/kernels` puts the device.
const PORT: u16 = 0xf4;

unsafe extern "C" {
    fn ioperm(from: u64, num: u64, turn_on: i32) -> i32;
}

fn main() {
    let Some(code) = env::args().nth(1).and_then(|code| code.parse::<u8>().ok()) else { exit(2) };
    // SAFETY: touches no memory; allows this process to write to one port.
    if unsafe { ioperm(PORT.into(), 1, 1) } != 0 {
        exit(1);
    }
    // SAFETY: the port belongs to the device, or to nothing, which ignores the write.
    unsafe { asm!("out dx, al", in("dx") PORT, in("al") code) };
    exit(3);
}
