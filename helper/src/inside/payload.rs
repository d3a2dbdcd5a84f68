//! The payload: applies the last restrictions, waits for its command, and becomes it.
//!
//! A vfork creates it, so it shares init's memory until execve(2). That is how init learns what failed.

use core::mem::MaybeUninit;

use crate::{
    Fault,
    channel::{Channel, Range, Received},
    control::{request, section},
    kernel::{EACCES, ELIBACC, ENOENT, ENOTDIR},
    plan::{IN_FOREGROUND, Request},
    steps::{self, State},
    sys::{self, Errno, Vectors},
    terminal::{Terminal, Wish},
};

/// Stack for the payload's few frames.
const STACK: usize = 16 * 1024;

/// What the payload starts with.
pub(crate) struct Payload<'p> {
    pub(crate) state: State<'p>,
    pub(crate) file_mask: usize,
    /// The start time of its worker, if the outside wants a report that the worker waits for its command.
    pub(crate) begun: Option<u64>,
}

/// A running command.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    pub(crate) pid: i32,
    /// Whether processes that it leaves behind stay alive.
    pub(crate) background: bool,
}

/// The payload's input, and its result for init.
struct Task<'t, 'p> {
    steps: &'p [u8],
    channel: &'t Channel,
    payload: &'t mut Payload<'p>,
    terminal: Option<&'t Terminal>,
    background: bool,
    /// The mappings of the request.
    request: [Range; 2],
    end: Option<End>,
}

/// Why a payload ended without becoming a command.
#[derive(Clone, Copy)]
enum End {
    /// The outside is gone, or a signal killed the payload, and there was no command.
    Unused,
    /// The command gets a terminal, which init has to open.
    Terminal(Wish),
    Failed(Fault),
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault)
    }
}

/// What became of a payload.
pub(crate) enum Started {
    /// There was no command.
    Nothing,
    /// Init opens a terminal and starts another payload.
    Terminal(Wish),
    Running(Running),
}

/// Starts the payload. Returns once it has become its command, or has none.
pub(crate) fn start<'p>(
    steps: &'p [u8],
    payload: &mut Payload<'p>,
    channel: &Channel,
    terminal: Option<&Terminal>,
) -> Result<Started, Fault> {
    let end = Some(End::Unused);
    let mut task = Task { steps, channel, payload, terminal, background: false, request: [(0, 0); 2], end };
    // Zeroing would touch pages that the few frames never reach.
    let mut stack = [MaybeUninit::uninit(); STACK];
    let pid = sys::vfork(&mut stack, run, &mut task).map_err(Fault::clone)?;
    match task.end {
        None => {
            // The process that used this mapping has become the command. Its environment may hold secrets,
            // which init must not keep.
            for (base, length) in task.request.into_iter().filter(|(_, length)| *length > 0) {
                sys::unmap(base, length);
            }
            Ok(Started::Running(Running { pid, background: task.background }))
        }
        Some(End::Unused) => Ok(Started::Nothing),
        Some(End::Terminal(wish)) => Ok(Started::Terminal(wish)),
        Some(End::Failed(fault)) => Err(fault),
    }
}

/// The entry of the payload.
extern "C" fn run(argument: *mut u8) -> ! {
    #[expect(unsafe_code, reason = "the other half of vfork")]
    // SAFETY: `start` passed its `Task` to this very entry.
    let task: &mut Task<'_, '_> = unsafe { sys::vfork_argument(argument) };
    let end = become_command(task);
    task.end = Some(end);
    sys::exit(127)
}

fn become_command(task: &mut Task<'_, '_>) -> End {
    match prepare(task) {
        Ok((request, vectors)) => {
            // execve(2) does not return on success, so record that before the call.
            task.end = None;
            End::Failed(Fault::request(request::EXEC, execute(&request, &vectors)))
        }
        Err(end) => end,
    }
}

/// Everything before execve(2): the command's own walls, then the setup for its request.
fn prepare(task: &mut Task<'_, '_>) -> Result<(Request<'static>, Vectors<'static>), End> {
    steps::carry_out(task.steps, section::PAYLOAD, &mut task.payload.state, task.channel)?;
    let closed = match task.terminal {
        Some(terminal) => task.channel.close_others_but(&terminal.peer),
        None => task.channel.close_others(),
    };
    closed.map_err(Fault::init)?;
    if let Some(begun) = task.payload.begun.take() {
        task.channel.ready(begun).map_err(Fault::init)?;
    }
    let (request, scratch, lies) = match task.channel.receive_command()? {
        Received::Command(command) => command,
        Received::Terminal(wish) => return Err(End::Terminal(wish)),
        Received::Nothing => return Err(End::Unused),
    };
    task.request = lies;
    task.background = request.background != 0;
    let vectors = Vectors::lay_out(scratch, request.arguments, request.environment)
        .map_err(|errno| Fault::request(request::EXEC, errno))?;
    connect(&request, task.terminal)?;
    // Only now: a limit may be on descriptors, and the steps above need some.
    steps::carry_out(request.limits, section::LIMITS, &mut task.payload.state, task.channel)?;
    sys::close_range(3, u32::MAX).map_err(Fault::init)?;
    sys::change_dir(request.cwd).map_err(|errno| Fault::request(request::CWD, errno))?;
    sys::file_mask(task.payload.file_mask);
    sys::signal_mask(0).map_err(Fault::init)?;
    Ok((request, vectors))
}

/// Sets up the standard descriptors: those that came with the request, or the terminal.
fn connect(request: &Request<'_>, terminal: Option<&Terminal>) -> Result<(), Fault> {
    let refused = |errno| Fault::request(request::TERMINAL, errno);
    for number in 0..=2u32 {
        match terminal {
            Some(terminal) if request.terminal >> number & 1 == 1 => {
                sys::duplicate_to(&terminal.peer, number as usize).map_err(refused)?;
            }
            _ => keep_standard(number).map_err(Fault::init)?,
        }
    }
    match terminal {
        Some(terminal) if request.terminal & IN_FOREGROUND != 0 => {
            sys::own_group().and_then(|group| sys::set_foreground(&terminal.peer, group)).map_err(refused)
        }
        _ => Ok(()),
    }
}

/// Keeps a standard descriptor for the command. Replaces the host's null device with the sandbox's own:
/// nobody inside can change the mode and the owner of that.
fn keep_standard(number: u32) -> Result<(), Errno> {
    if sys::is_null_device(number)? {
        return sys::duplicate_to(&sys::open_terminal(c"/dev/null")?, number as usize);
    }
    sys::keep_across_exec(number as usize)
}

/// Tries each path of the program, as execvpe(3) does. The first existing file decides, but one without
/// execute permission does not hide a later one. For a file whose interpreter or loader does not exist,
/// execve(2) answers ENOENT as if the file did not exist; the answer here is ELIBACC, which execve(2) does
/// not use.
fn execute(request: &Request<'_>, vectors: &Vectors<'_>) -> Errno {
    let mut reason = Errno(ENOENT);
    let mut has_tried = false;
    for program in request.programs.iter() {
        // Nothing is in most directories of PATH, and access(2) says so in a fifth of the time.
        if has_tried && matches!(sys::access(program), Err(Errno(ENOENT | ENOTDIR))) {
            continue;
        }
        has_tried = true;
        match sys::execute(program, vectors) {
            Errno(ENOENT) if reason.0 == ENOENT && sys::access(program).is_ok() => reason = Errno(ELIBACC),
            Errno(ENOENT | ENOTDIR) => {}
            Errno(EACCES) => reason = Errno(EACCES),
            errno => return errno,
        }
    }
    reason
}
