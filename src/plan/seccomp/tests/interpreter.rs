//! A classic BPF interpreter for tests. It runs a filter as the kernel does, and refuses what the kernel's
//! checker refuses.

use libc::sock_filter;

pub(crate) const X86_64: u32 = 0xc000_003e;

/// `struct seccomp_data`, without the instruction pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: u32,
    pub(crate) arch: u32,
    pub(crate) arguments: [u64; 6],
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// What the filter returned, `SECCOMP_RET_*`.
    pub(crate) action: u32,
    /// Instructions executed.
    pub(crate) steps: usize,
    /// Whether the filter read an argument. If not, the kernel can skip the filter for an allowed call.
    pub(crate) saw_arguments: bool,
}

/// Runs the program; panics where the kernel would not have accepted it.
pub(crate) fn run(program: &[sock_filter], call: &Call) -> Run {
    let (mut at, mut accumulator, mut steps, mut saw_arguments) = (0_usize, 0_u32, 0, false);
    loop {
        let step = program.get(at).expect("runs off the end");
        let branch = |holds: bool| usize::from(if holds { step.jt } else { step.jf });
        steps += 1;
        at += 1;
        match step.code {
            0x20 => {
                accumulator = word(call, step.k);
                saw_arguments |= step.k >= 16;
            }
            0x54 => accumulator &= step.k,
            0x05 => at += usize::try_from(step.k).expect("64-bit host"),
            0x15 => at += branch(accumulator == step.k),
            0x25 => at += branch(accumulator > step.k),
            0x35 => at += branch(accumulator >= step.k),
            0x45 => at += branch(accumulator & step.k != 0),
            0x06 => return Run { action: step.k, steps, saw_arguments },
            other => panic!("instruction {other:#x} is not among those we write"),
        }
    }
}

/// Makes the kernel's checks of a program: its length, every jump inside, a return at the end.
pub(crate) fn check(program: &[sock_filter]) {
    assert!((1..=4096).contains(&program.len()), "{} instructions", program.len());
    for (at, step) in program.iter().enumerate() {
        let room = program.len() - at - 1;
        let furthest = match step.code {
            0x05 => usize::try_from(step.k).expect("64-bit host"),
            0x15 | 0x25 | 0x35 | 0x45 => usize::from(step.jt.max(step.jf)),
            0x06 => continue,
            _ => 0,
        };
        assert!(furthest < room, "instruction {at} leads out of the program");
    }
}

fn word(call: &Call, offset: u32) -> u32 {
    let half = |value: u64, high: bool| {
        u32::try_from(if high { value >> 32 } else { value & 0xffff_ffff }).expect("32 bits")
    };
    match offset {
        0 => call.number,
        4 => call.arch,
        16..64 if offset.is_multiple_of(4) => {
            let index = usize::try_from((offset - 16) / 8).expect("64-bit host");
            half(call.arguments[index], !offset.is_multiple_of(8))
        }
        _ => panic!("load from {offset}"),
    }
}
