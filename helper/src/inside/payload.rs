//! The payload: between its birth and execve(2) it puts on the last walls, then becomes the command.
//!
//! It is born by a vfork, so it shares init's memory until then: that is how init learns what went wrong.

use crate::{
    Fault,
    channel::Channel,
    control::{Report, request, section},
    kernel::{EACCES, ENOENT, ENOTDIR},
    plan::Request,
    steps::{self, State},
    sys::{self, Errno, Fd, Vectors},
    terminal,
};

/// Room for the payload's few frames.
const STACK: usize = 16 * 1024;

/// What the payload needs, and where it leaves the reason when it fails.
struct Task<'t> {
    steps: &'t [u8],
    request: &'t Request<'static>,
    vectors: Vectors<'t>,
    terminal: Option<Fd>,
    state: State,
    file_mask: usize,
    channel: &'t Channel,
    fault: Option<Fault>,
}

/// Starts the command; answers its pid once execve(2) has succeeded.
pub(crate) fn start(
    steps: &[u8],
    request: &Request<'static>,
    scratch: &mut [usize],
    (state, file_mask): (State, usize),
    channel: &Channel,
) -> Result<i32, Fault> {
    let vectors = Vectors::lay_out(scratch, request.arguments, request.environment)
        .map_err(|errno| refused(request::EXEC, errno))?;
    let terminal = open_terminal(request, channel).map_err(|errno| refused(request::TERMINAL, errno))?;
    let fault = None;
    let mut task = Task { steps, request, vectors, terminal, state, file_mask, channel, fault };
    let mut stack = [0u8; STACK];
    let pid = sys::vfork(&mut stack, run, &mut task).map_err(Fault::init)?;
    if let Some(fault) = task.fault {
        return Err(fault);
    }
    // The command's copies are the only ones now: a pipe closes when the command closes it.
    sys::close_range(0, 2).map_err(Fault::init)?;
    Ok(pid)
}

fn refused(index: u32, errno: Errno) -> Fault {
    Fault { section: section::REQUEST, index, errno }
}

fn open_terminal(request: &Request<'_>, channel: &Channel) -> Result<Option<Fd>, Errno> {
    if request.terminal == 0 {
        return Ok(None);
    }
    let (master, peer) = terminal::open(request.window)?;
    channel.report_with(&Report::Terminal {}, Some(&master))?;
    Ok(Some(peer))
}

/// Where the payload's life begins.
extern "C" fn run(argument: *mut u8) -> ! {
    #[expect(unsafe_code, reason = "the other half of vfork")]
    // SAFETY: `start` passed its `Task` to this very entry.
    let task: &mut Task<'_> = unsafe { sys::vfork_argument(argument) };
    task.fault = become_command(task).err();
    sys::exit(127)
}

fn become_command(task: &mut Task<'_>) -> Result<(), Fault> {
    steps::carry_out(task.steps, section::PAYLOAD, &mut task.state, task.channel)?;
    match &task.terminal {
        Some(peer) => terminal::take(peer).map_err(|errno| refused(request::TERMINAL, errno))?,
        None => (0..=2).try_for_each(keep_standard).map_err(Fault::init)?,
    }
    sys::close_range(3, u32::MAX).map_err(Fault::init)?;
    sys::change_dir(task.request.cwd).map_err(|errno| refused(request::CWD, errno))?;
    sys::file_mask(task.file_mask);
    sys::signal_mask(0).map_err(Fault::init)?;
    Err(refused(request::EXEC, execute(task)))
}

/// Keeps a standard descriptor for the command; the host's null device is exchanged for the sandbox's own, whose
/// mode and owner nobody inside can change.
fn keep_standard(number: u32) -> Result<(), Errno> {
    if sys::is_null_device(number)? {
        return sys::duplicate_to(&sys::open_terminal(c"/dev/null")?, number as usize);
    }
    sys::keep_across_exec(number as usize)
}

/// Tries each place where the program could be, as execvpe(3) does: the first that is there decides, but one
/// that may not be executed does not hide a later one.
fn execute(task: &Task<'_>) -> Errno {
    let mut reason = Errno(ENOENT);
    for program in task.request.programs.iter() {
        match sys::execute(program, &task.vectors) {
            Errno(ENOENT | ENOTDIR) => {}
            Errno(EACCES) => reason = Errno(EACCES),
            errno => return errno,
        }
    }
    reason
}
