//! The payload: puts on the last walls, waits for its command, and becomes it.
//!
//! It is born by a vfork, so it shares init's memory until execve(2): that is how init learns what went wrong.

use core::mem::MaybeUninit;

use crate::{
    Fault,
    channel::{Channel, Range},
    control::{Report, request, section},
    kernel::{EACCES, ENOENT, ENOTDIR},
    plan::Request,
    steps::{self, State},
    sys::{self, Errno, Vectors},
    terminal,
};

/// Room for the payload's few frames.
const STACK: usize = 16 * 1024;

/// What the payload is born with.
pub(crate) struct Payload<'p> {
    pub(crate) state: State<'p>,
    pub(crate) file_mask: usize,
    /// When its worker began, where somebody wants to know that it waits for its command.
    pub(crate) begun: Option<u64>,
}

/// A command that runs.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    pub(crate) pid: i32,
    /// Whether processes that it leaves behind live on.
    pub(crate) background: bool,
}

/// What the payload needs, and where it leaves what init must know.
struct Task<'t> {
    steps: &'t [u8],
    channel: &'t Channel,
    payload: Payload<'t>,
    background: bool,
    /// Where the request lies.
    request: [Range; 2],
    end: Option<End>,
}

/// How a payload ended that did not become a command.
#[derive(Clone, Copy)]
enum End {
    /// The outside is gone, or somebody killed it, and there was no command.
    Unused,
    Failed(Fault),
}

/// Starts the payload. Answers once it has become its command; `None` when there was none.
pub(crate) fn start<'p>(
    steps: &'p [u8],
    payload: Payload<'p>,
    channel: &'p Channel,
) -> Result<Option<Running>, Fault> {
    let mut task =
        Task { steps, channel, payload, background: false, request: [(0, 0); 2], end: Some(End::Unused) };
    // Not zeroed: that would touch pages that few frames ever reach.
    let mut stack = [MaybeUninit::uninit(); STACK];
    let pid = sys::vfork(&mut stack, run, &mut task).map_err(Fault::clone)?;
    match task.end {
        None => {
            // Whoever referred to it has become the command; its environment, which may hold secrets, is not for init.
            task.request.into_iter().filter(|(_, length)| *length > 0).for_each(sys::unmap);
            Ok(Some(Running { pid, background: task.background }))
        }
        Some(End::Unused) => Ok(None),
        Some(End::Failed(fault)) => Err(fault),
    }
}

/// Where the payload's life begins.
extern "C" fn run(argument: *mut u8) -> ! {
    #[expect(unsafe_code, reason = "the other half of vfork")]
    // SAFETY: `start` passed its `Task` to this very entry.
    let task: &mut Task<'_> = unsafe { sys::vfork_argument(argument) };
    let end = become_command(task);
    task.end = Some(end);
    sys::exit(127)
}

fn become_command(task: &mut Task<'_>) -> End {
    match prepare(task) {
        Ok(Some((request, vectors))) => {
            // execve(2) does not return to say so.
            task.end = None;
            End::Failed(Fault::request(request::EXEC, execute(&request, &vectors)))
        }
        Ok(None) => End::Unused,
        Err(fault) => End::Failed(fault),
    }
}

/// Everything before execve(2): the walls that are the command's own, then, once it is known, what it asks for.
fn prepare(task: &mut Task<'_>) -> Result<Option<(Request<'static>, Vectors<'static>)>, Fault> {
    steps::carry_out(task.steps, section::PAYLOAD, &mut task.payload.state, task.channel)?;
    task.channel.close_others().map_err(Fault::init)?;
    if let Some(begun) = task.payload.begun {
        let took_us = sys::monotonic_us().saturating_sub(begun);
        task.channel.report(&Report::Ready { took_us }).map_err(Fault::init)?;
    }
    let Some((request, scratch, lies)) = task.channel.receive_command()? else { return Ok(None) };
    task.request = lies;
    task.background = request.background != 0;
    let vectors = Vectors::lay_out(scratch, request.arguments, request.environment)
        .map_err(|errno| Fault::request(request::EXEC, errno))?;
    connect(&request, task.channel)?;
    // Not before: one of them may be on descriptors, of which it takes some to get here.
    steps::carry_out(request.limits, section::LIMITS, &mut task.payload.state, task.channel)?;
    sys::close_range(3, u32::MAX).map_err(Fault::init)?;
    sys::change_dir(request.cwd).map_err(|errno| Fault::request(request::CWD, errno))?;
    sys::file_mask(task.payload.file_mask);
    sys::signal_mask(0).map_err(Fault::init)?;
    Ok(Some((request, vectors)))
}

/// Puts the standard descriptors in place: those that came, or a new pseudoterminal.
fn connect(request: &Request<'_>, channel: &Channel) -> Result<(), Fault> {
    if request.terminal == 0 {
        return (0..=2).try_for_each(keep_standard).map_err(Fault::init);
    }
    let give = || {
        let (master, peer) = terminal::open(request.window)?;
        channel.report_with(&Report::Terminal {}, Some(&master))?;
        terminal::take(&peer)
    };
    give().map_err(|errno| Fault::request(request::TERMINAL, errno))
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
fn execute(request: &Request<'_>, vectors: &Vectors<'_>) -> Errno {
    let mut reason = Errno(ENOENT);
    for program in request.programs.iter() {
        match sys::execute(program, vectors) {
            Errno(ENOENT | ENOTDIR) => {}
            Errno(EACCES) => reason = Errno(EACCES),
            errno => return errno,
        }
    }
    reason
}
