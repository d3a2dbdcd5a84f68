//! The keeper of a shell: a command of a session, and the parent of one long-lived bash or sh.
//!
//! A shell cannot receive descriptors, but it can open those of its parent below `/proc/PID/fd`. So the
//! keeper receives the descriptors of each call from the outside and holds them. It writes the lines that the
//! outside sends to the shell's input, sends signals, and ends as the shell does. It reads nothing that the
//! shell writes.

use core::{ffi::CStr, mem::MaybeUninit};

use crate::{
    control::{LONGEST_SHELL_ORDER, MOST_SHELL_FILES, SHELL_FILES, ShellOrder},
    kernel::{self, ENOENT, PollFd, SIGCHLD, SIGINT, SIGKILL},
    processes::{self, Looks, Stat, stat},
    sys::{self, Arguments, Errno, Fd},
    wire::{Cursor, Field},
};

/// Stack for the few frames before execve(2).
const STACK: usize = 16 * 1024;

/// The lowest number of the control socket. The descriptors of a call are below.
const SOCKET: usize = 30;

/// Exit statuses if there is no shell, as a shell has them.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// How often to look for processes that are to be killed, once a millisecond.
const TRIES: u32 = 500;

/// How often to look for processes that are only counted. Others that come and go make a look uncertain.
const LOOKS: u32 = 10;

/// How many parents of a process are looked at.
const DEPTH: usize = 64;

/// Runs as `NAME shell PATH…`: the paths are tried in that order, and one that ends in `bash` is started as
/// bash. Descriptor 1 is the control socket.
pub(crate) fn run(arguments: &Arguments) -> ! {
    sys::exit(keep(arguments).unwrap_or(NOT_EXECUTABLE))
}

/// Starts the shell and serves the outside. Returns the exit status of the shell.
fn keep(arguments: &Arguments) -> Result<i32, Errno> {
    // A signal for the group is for the shell and what it started.
    sys::signal_mask(u64::MAX)?;
    // Its number is higher than those of the standard descriptors, which are all open.
    let null = sys::open_terminal(c"/dev/null")?;
    let socket = sys::fcntl(&Fd::adopt(1), kernel::F_DUPFD_CLOEXEC, SOCKET)?;
    (0..=2).try_for_each(|number| sys::duplicate_to(&null, number))?;
    let signals = sys::signal_fd(1u64 << SIGCHLD.wrapping_sub(1))?;
    let [reader, writer] = sys::input_pipe()?;
    let shell = start(&Start { arguments, input: &reader })?;
    drop((reader, null));
    sys::send(&socket, &mut (sys::own_pid() as u32).to_le_bytes(), None)?;
    let worker = stat(sys::own_pid() as i32).map_or(0, |own| own.parent);
    serve(&Keeper { shell, worker, socket, signals, input: writer })
}

/// What the shell starts with.
struct Start<'s> {
    arguments: &'s Arguments,
    input: &'s Fd,
}

fn start(start: &Start<'_>) -> Result<i32, Errno> {
    // Zeroing would touch pages that the few frames never reach.
    let mut stack = [MaybeUninit::uninit(); STACK];
    let mut start = start;
    sys::vfork(&mut stack, become_shell, &mut start)
}

/// The entry of the shell.
extern "C" fn become_shell(argument: *mut u8) -> ! {
    #[expect(unsafe_code, reason = "the other half of vfork")]
    // SAFETY: `start` passed its `&Start` to this very entry.
    let start: &mut &Start<'_> = unsafe { sys::vfork_argument(argument) };
    let Start { arguments, input } = **start;
    if sys::duplicate_to(input, 0).and_then(|()| sys::signal_mask(0)).is_err() {
        sys::exit(NOT_EXECUTABLE);
    }
    let mut status = NOT_FOUND;
    for path in (2..arguments.count()).map_while(|at| arguments.get(at)) {
        // `-i`: an error or SIGINT ends the snippet, not the shell. Without a terminal there is no job
        // control.
        let bash = [c"bash", c"--noprofile", c"--norc", c"--noediting", c"-i"];
        let sh = [c"sh", c"-i"];
        let is_bash = path.to_bytes().ends_with(b"/bash");
        let words: &[&CStr] = if is_bash { &bash } else { &sh };
        let mut vector = [0usize; 6];
        for (slot, word) in vector.iter_mut().zip(words) {
            *slot = word.as_ptr().expose_provenance();
        }
        if sys::execute_here(path, &vector, arguments) != Errno(ENOENT) && sys::access(path).is_ok() {
            status = NOT_EXECUTABLE;
        }
    }
    sys::exit(status)
}

/// The keeper and its shell.
struct Keeper {
    shell: i32,
    /// The parent of this process.
    worker: i32,
    socket: Fd,
    signals: Fd,
    /// The shell's input.
    input: Fd,
}

/// Serves until the shell has ended, and returns its exit status, or until the outside is gone.
fn serve(keeper: &Keeper) -> Result<i32, Errno> {
    let mut began = Began::default();
    loop {
        let ready = |fd: &Fd| PollFd { fd: fd.number().cast_signed(), events: kernel::POLLIN, answered: 0 };
        let mut fds = [ready(&keeper.signals), ready(&keeper.socket)];
        sys::poll(&mut fds, -1)?;
        let [ended, spoken] = fds.map(|fd| fd.answered != 0);
        if ended {
            sys::take_signal(&keeper.signals)?;
            while let Ok(Some(reaped)) = sys::reap(false) {
                if let Some(code) = exit_code(reaped.status).filter(|_| reaped.pid == keeper.shell) {
                    return Ok(code);
                }
            }
        }
        if spoken && !keeper.obey(&mut began)? {
            return Ok(0);
        }
    }
}

/// The exit status for one of wait(2); `None` for a stop.
fn exit_code(status: i32) -> Option<i32> {
    match status & 0x7f {
        0 => Some(status >> 8 & 0xff),
        0x7f => None,
        signal => Some(128i32.saturating_add(signal)),
    }
}

impl Keeper {
    fn answer(&self, count: u32) -> Result<(), Errno> {
        sys::send(&self.socket, &mut count.to_le_bytes(), None)
    }

    /// Carries out one order. Returns whether the outside is still there.
    fn obey(&self, began: &mut Began) -> Result<bool, Errno> {
        let mut buffer = [0u8; LONGEST_SHELL_ORDER];
        let (count, descriptors) = sys::receive(&self.socket, &mut buffer)?;
        if count == 0 {
            return Ok(false);
        }
        let descriptors = descriptors.map(|number| (number >= 0).then(|| Fd::adopt(number)));
        match ShellOrder::take(&mut Cursor::new(buffer.get(..count).unwrap_or_default())) {
            Some(ShellOrder::Write { lines }) => {
                if descriptors.iter().any(Option::is_some) {
                    *began = Began { ticks: sys::boot_ticks(), last_pid: processes::last_pid().unwrap_or(0) };
                }
                for (fd, number) in descriptors.iter().flatten().zip(SHELL_FILES..) {
                    sys::move_to(fd, number)?;
                }
                // If the shell reads nothing for long, the outside asks again or ends it. If it has closed
                // its input, it ends.
                let _ = sys::write_all(&self.input, lines);
            }
            Some(ShellOrder::Release {}) => {
                let last = SHELL_FILES.wrapping_add(MOST_SHELL_FILES as u32).wrapping_sub(1);
                sys::close_range(SHELL_FILES, last)?;
            }
            // Zero is the own group.
            Some(ShellOrder::Interrupt {}) => sys::kill(0, SIGINT)?,
            Some(ShellOrder::Kill {}) => self.answer(self.signal_started(began, SIGKILL, TRIES)?)?,
            Some(ShellOrder::Count {}) => self.answer(self.signal_started(began, 0, LOOKS)?)?,
            None => {}
        }
        Ok(true)
    }

    /// Sends a signal to what the call that began then has started, as often as there is any; 0 sends none.
    /// Returns how many are left.
    fn signal_started(&self, began: &Began, signal: u32, tries: u32) -> Result<u32, Errno> {
        let mut left = u32::MAX;
        for _ in 0..tries {
            left = self.started(began, signal)?;
            if left == 0 {
                break;
            }
            sys::sleep(1);
        }
        Ok(left)
    }

    /// Sends a signal to each process that the call has started. Returns how many have not ended: at least
    /// one if some may have been missed.
    fn started(&self, began: &Began, signal: u32) -> Result<u32, Errno> {
        let mut count = 0u32;
        let is_complete = Looks::default().look(|pid| {
            let is_there = match self.is_of_call(pid, began) {
                Some(false) => return true,
                Some(true) => sys::open_process(pid.unsigned_abs() as usize).is_ok_and(|process| {
                    !sys::has_ended(&process) && sys::signal_process(&process, signal).is_ok()
                }),
                None => false,
            };
            count = count.saturating_add(u32::from(is_there));
            is_there
        })?;
        Ok(count.max(u32::from(!is_complete)))
    }

    /// Whether the call has started a process: the process and its new ancestors are children of the shell,
    /// or of the worker, which adopts what has lost its parent. Children of an earlier job are not. `None` if
    /// one of them is gone.
    fn is_of_call(&self, pid: i32, began: &Began) -> Option<bool> {
        let mut pid = pid;
        for _ in 0..DEPTH {
            let of = stat(pid)?;
            if !began.is_before(&of, pid) {
                return Some(false);
            }
            if of.parent == self.shell || of.parent == self.worker {
                return Some(true);
            }
            pid = of.parent;
        }
        Some(false)
    }
}

/// When a call began. Several processes start in one hundredth of a second, and their PIDs tell which were
/// first.
#[derive(Default)]
struct Began {
    ticks: u64,
    last_pid: i32,
}

impl Began {
    fn is_before(&self, of: &Stat, pid: i32) -> bool {
        of.began > self.ticks || of.began == self.ticks && pid > self.last_pid
    }
}
