//! System calls of the keeper of a shell; it also looks at start times, as the common init does.

use super::*;

/// pipe2(2): the end to read from, which may block, and the end to write to, which never does.
pub(crate) fn input_pipe() -> Result<[Fd; 2], Errno> {
    let mut ends = [-1i32; 2];
    call!(nr::PIPE2, ends.as_mut_ptr(), O_CLOEXEC)?;
    let [reader, writer] = ends.map(Fd);
    call!(nr::FCNTL, writer.0, F_SETFL, O_WRONLY | O_NONBLOCK)?;
    Ok([reader, writer])
}

/// dup3(2) onto any number, without close-on-exec.
pub(crate) fn move_to(from: &Fd, number: u32) -> Result<(), Errno> {
    call!(nr::DUP3, from.0, number, 0).map(drop)
}

/// execve(2) with the environment of this program. `arguments` ends with a zero. Returns only on failure.
pub(crate) fn execute_here(program: &CStr, arguments: &[usize], own: &Arguments) -> Errno {
    let answer = call!(nr::EXECVE, program.as_ptr(), arguments.as_ptr(), own.environment());
    answer.err().unwrap_or(Errno(EINVAL))
}

/// read(2), once.
pub(crate) fn read<'b>(from: &Fd, buffer: &'b mut [u8]) -> Result<&'b [u8], Errno> {
    let count = call!(nr::READ, from.0, buffer.as_mut_ptr(), buffer.len())?;
    Ok(buffer.get(..count).unwrap_or_default())
}

/// clock_gettime(CLOCK_BOOTTIME) in hundredths of a second, as proc_pid_stat(5) tells start times.
pub(crate) fn boot_ticks() -> u64 {
    let mut time = [0u64; 2];
    // It cannot fail for this clock.
    let _ = call!(nr::CLOCK_GETTIME, CLOCK_BOOTTIME, time.as_mut_ptr());
    let [seconds, nanoseconds] = time;
    seconds.saturating_mul(100).saturating_add(nanoseconds / 10_000_000)
}
