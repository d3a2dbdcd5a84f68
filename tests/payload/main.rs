//! The program that tries to get out. Tests start it inside a sandbox, and outside to see that the attempt
//! itself works. It prints one line for each attempt: `ok`, the name of the errno, or its finding. It judges
//! nothing.
//!
//! Static, so that it runs in a sandbox that shows no library; most attempts are raw system calls, because
//! libc would check arguments, translate calls or keep state.
#![expect(unsafe_code, reason = "attempts are raw system calls with wrong and hostile arguments")]
#![expect(clippy::print_stdout, reason = "the test reads what the attempt found")]

mod abi;
mod call;
mod detours;
mod files;
mod handed;
mod modes;
mod names;
mod network;
mod processes;
mod resources;
mod rob;
mod serve;
mod surroundings;
mod talk;

/// One kind of attempt.
type Attempt = fn(&[&str]);

const ATTEMPTS: &[(&str, Attempt)] = &[
    ("call", call::calls),
    ("read", files::read),
    ("list", files::list),
    ("descriptors", files::descriptors),
    ("hunt", files::hunt),
    ("flip", files::flip),
    ("walk-up", files::walk_up),
    ("spray-handles", files::spray_handles),
    ("x32", abi::x32),
    ("int80", abi::int80),
    ("allow-all", abi::allow_all),
    ("daemon", processes::daemon),
    ("daemon-and-wait", processes::daemon_and_wait),
    ("kill-everyone", processes::kill_everyone),
    ("fork-bomb", processes::fork_bomb),
    ("storm", processes::storm),
    ("chain", processes::chain),
    ("orphans", processes::orphans),
    ("hog", processes::hog),
    ("busy", processes::busy),
    ("subreaper", processes::subreaper),
    ("stubborn", processes::stubborn),
    ("stop-self", processes::stop_self),
    ("stop-and-leave", processes::stop_and_leave),
    ("hold", resources::hold),
    ("open-all", resources::open_all),
    ("in-flight", resources::in_flight),
    ("files", resources::files),
    ("depth", resources::depth),
    ("threads", resources::threads),
    ("zombies", resources::zombies),
    ("fork-tree", resources::fork_tree),
    ("stopped-tree", resources::stopped_tree),
    ("debug-child", processes::debug_child),
    ("connect", network::connect),
    ("detours", detours::detours),
    ("send", network::send),
    ("abstract", network::abstract_socket),
    ("unix", network::unix_socket),
    ("loopback", network::loopback),
    ("query", network::query),
    ("talk", talk::talk),
    ("crowd", talk::crowd),
    ("serve", serve::serve),
    ("refuse", surroundings::refuse),
    ("give-stdout", handed::give_stdout),
    ("hold-stdout", handed::hold_stdout),
    ("use-stdout", handed::use_stdout),
    ("race-modes", modes::race),
    ("crowd-modes", modes::crowd),
    ("rob", rob::rob),
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [_, name, rest @ ..] = arguments.as_slice() else {
        return println!("usage: payload ATTEMPT [ARG…]");
    };
    match ATTEMPTS.iter().find(|(known, _)| known == name) {
        Some((_, attempt)) => attempt(rest),
        None => println!("no attempt is called {name}"),
    }
}

/// Prints the result of a call: `ok` or the name of the errno.
fn say(result: Result<i64, i32>) {
    println!("{}", word(result));
}

/// Like `say`, for attempts that collect words first.
fn word(result: Result<i64, i32>) -> String {
    result.map_or_else(errno_name, |_| "ok".to_owned())
}

/// `EPERM` for 1.
fn errno_name(number: i32) -> String {
    format!("{:?}", nix::errno::Errno::from_raw(number))
}

/// The errno of an I/O error of std.
fn from_std<T>(result: std::io::Result<T>) -> Result<i64, i32> {
    result.map(|_| 0).map_err(|error| error.raw_os_error().unwrap_or_default())
}
