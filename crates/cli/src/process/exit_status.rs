//! Exit statuses of `kennel`, which docs/cli.md lists, and how this process ends with one. What a command
//! returns passes as it is.

use std::process::ExitCode;

use nix::unistd::{Pid, getpid};
use signal_hook::low_level::emulate_default_handler;

use super::system;

/// Kennel killed the command when its time was up.
pub(crate) const TIMED_OUT: u8 = 124;

/// Kennel itself failed: the command did not run, or its end is unknown.
pub(crate) const FAILED: u8 = 125;

/// The command cannot be executed.
const NOT_EXECUTABLE: u8 = 126;

/// There is no such command.
const NOT_FOUND: u8 = 127;

/// Whether a status says that no command ran. It may be the command's own all the same.
pub(crate) fn is_error(code: u8) -> bool {
    matches!(code, FAILED | NOT_EXECUTABLE | NOT_FOUND)
}

/// The status for an end by a signal.
pub(crate) fn of_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(FAILED)
}

/// Ends this program as the command ended, so that a shell, make(1) or a supervisor sees the same: with
/// `code`, or by `signal` if that is what `code` stands for. Call it last: nothing is cleaned up after that.
pub(crate) fn end(code: u8, signal: Option<i32>) -> ExitCode {
    let is_meant = |number: &i32| of_signal(*number) == code;
    // The kernel sends PID 1 of a container no signal that would end it.
    if let Some(number) = signal.filter(is_meant).filter(|_| getpid() != Pid::from_raw(1)) {
        // If the command left a core file, one of this program would hide it.
        system::leave_no_core_file();
        // It knows no real-time signals. Those become a status.
        let _ = emulate_default_handler(number);
    }
    code.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_lists_each_status() {
        let page = include_str!("../../../../docs/cli.md");
        let table = page.split("\n## Exit status\n").nth(1).expect("a section");
        let rows =
            table.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
        let rows: Vec<&str> = rows.collect();
        for code in [TIMED_OUT, FAILED, NOT_EXECUTABLE, NOT_FOUND] {
            let begin = format!("| {code} | ");
            assert_eq!(rows.iter().filter(|row| row.starts_with(&begin)).count(), 1, "{code}: {rows:?}");
        }
    }
}
