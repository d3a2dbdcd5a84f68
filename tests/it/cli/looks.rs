//! What a person sees: colours, widths, help, and what takes long.

use std::{fs::File, io::Read, path::Path, process::Command};

use nix::pty::{Winsize, openpty};
use serde_json::Value;

use super::cli;
use crate::{
    support::runtime,
    support::{has, kennel_path, require, stderr, stdout, workspace},
};

/// The variables that decide about colours.
const DECIDING: [&str; 6] = ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM", "CI", "COLUMNS"];

/// Runs a command whose stdout and stderr are a terminal of that width. Returns its output with lines as in
/// files.
fn on_terminal(columns: u16, command: &mut Command) -> String {
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(Some(&size), None).unwrap();
    command.stdout(pty.slave.try_clone().unwrap()).stderr(pty.slave);
    let mut child = command.spawn().unwrap();
    // Only the child has the other side now.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let (mut master, mut output, mut buffer) = (File::from(pty.master), Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = master.read(&mut buffer) {
        output.extend_from_slice(&buffer[..count]);
    }
    child.wait().unwrap();
    String::from_utf8(output).unwrap().replace("\r\n", "\n")
}

/// `kennel` on a terminal that shows colours.
fn kennel(words: &[&str]) -> Command {
    let mut command = Command::new(kennel_path());
    for name in DECIDING {
        command.env_remove(name);
    }
    command.env("TERM", "xterm").args(words);
    command
}

/// A text without its escape codes.
fn plain(text: &str) -> String {
    let mut pieces = text.split("\x1b[");
    let first = pieces.next().unwrap_or_default().to_owned();
    first + &pieces.map(|piece| piece.split_once('m').unwrap_or_default().1).collect::<String>()
}

/// The words of every command, as help lists them.
fn commands(words: &[String]) -> Vec<Vec<String>> {
    let arguments: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
    let help = stdout(&cli(Path::new("/"), &arguments));
    let listed =
        help.split_once("Commands:\n").map_or("", |(_, after)| after.split("\n\n").next().unwrap_or(""));
    let names =
        listed.lines().filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let inner = names.flat_map(|name| commands(&[words, &[name.to_owned()]].concat()));
    std::iter::once(words.to_vec()).chain(inner.collect::<Vec<_>>()).collect()
}

#[test]
fn no_line_of_help_is_wider_than_the_terminal() {
    let all = commands(&[]);
    assert!(all.len() > 12 && all.contains(&vec!["policy".to_owned(), "show".to_owned()]), "{all:?}");
    for (words, columns) in all.iter().flat_map(|words| [(words, 80), (words, 50)]) {
        for flag in ["-h", "--help"] {
            let words: Vec<&str> = words.iter().map(String::as_str).chain([flag]).collect();
            let help = plain(&on_terminal(columns, &mut kennel(&words)));
            assert!(help.contains("Usage: kennel"), "{words:?}: {help}");
            let wide = help.lines().find(|line| line.chars().count() > columns.into());
            assert!(wide.is_none(), "{words:?} at {columns}: {wide:?}");
            assert!(help.lines().all(|line| line.trim_end() == line), "{words:?}: {help:?}");
        }
    }
}

#[test]
fn tables_are_no_wider_than_the_terminal() {
    let dir = workspace();
    let words = [
        &["probe"][..],
        &["policy", "check"],
        &["policy", "show"],
        &["policy", "show", "--diff", "repo-write", "read-only"],
    ];
    for (words, columns) in words.into_iter().flat_map(|words| [(words, 80), (words, 50)]) {
        let text = plain(&on_terminal(columns, kennel(words).current_dir(dir.path())));
        let wide = text.lines().find(|line| line.chars().count() > columns.into());
        assert!(text.lines().count() > 3 && wide.is_none(), "{words:?} at {columns}: {wide:?}\n{text}");
    }
}

/// People see the flags that they need at a glance.
#[test]
fn the_short_help_has_a_line_for_each_flag() {
    let help = plain(&on_terminal(80, &mut kennel(&["run", "-h"])));
    let options = help.split_once("Options:\n").unwrap().1.split("\n\n").next().unwrap();
    let flags: Vec<&str> = options.lines().collect();
    assert!((10..=18).contains(&flags.len()), "{help}");
    for line in flags {
        assert!(line.trim_start().starts_with('-'), "it takes two lines: {line:?} in {help}");
    }
    for shown in ["--profile", "--ro", "--rw", "--allow", "--explain", "--timeout"] {
        assert!(help.contains(shown), "{shown}: {help}");
    }
    let long = stdout(&cli(Path::new("/"), &["run", "--help"]));
    for left_out in ["--audit-chain", "--cpuset", "--name-server"] {
        assert!(!help.contains(left_out) && long.contains(left_out), "{left_out}");
    }
    for part in ["View:\n", "Network:\n", "Limits:\n", "Examples:\n", "Exit status:"] {
        assert!(long.contains(part), "{part}");
    }
}

#[test]
fn colours_show_on_terminals_unless_somebody_forbids_them() {
    let dir = workspace();
    let lines = [
        &["--help"][..],
        &["run", "-h"],
        &["run", "--bogus", "true"],
        &["run", "absent-tool"],
        &["policy", "show"],
        &["policy", "check"],
    ];
    // Variables, flags, and whether a terminal and a pipe then show colours.
    let settings = [
        ("", "", true, false),
        ("NO_COLOR=1", "", false, false),
        ("CLICOLOR=0", "", false, false),
        ("TERM=dumb", "", false, false),
        ("CLICOLOR_FORCE=1", "", true, true),
        ("NO_COLOR=1 CLICOLOR_FORCE=1", "", false, false),
        ("", "--color=never", false, false),
        ("NO_COLOR=1", "--color=always", true, true),
        ("CLICOLOR_FORCE=1", "--color=auto", true, true),
    ];
    for line in lines {
        for (variables, flags, on_a_terminal, in_a_pipe) in settings {
            let make = || {
                let flags: Vec<&str> = flags.split_whitespace().collect();
                let mut command = kennel(&[&flags, line].concat());
                let variables = variables.split_whitespace().filter_map(|variable| variable.split_once('='));
                command.current_dir(dir.path()).envs(variables);
                command
            };
            let shown = on_terminal(80, &mut make());
            assert_eq!(shown.contains('\x1b'), on_a_terminal, "{line:?} {variables:?} {flags:?}: {shown:?}");
            let output = make().output().unwrap();
            let piped = stdout(&output) + &stderr(&output);
            assert_eq!(piped.contains('\x1b'), in_a_pipe, "{line:?} {variables:?} {flags:?}: {piped:?}");
            assert!(!piped.is_empty() && !shown.is_empty(), "{line:?}");
        }
    }
}

/// What a person reads after a failure: a denial, a hint, an error.
#[test]
fn messages_break_between_words_and_only_flags_are_bold() {
    let (dir, hidden) = (workspace(), workspace());
    std::fs::write(hidden.path().join("f"), "").unwrap();
    let file = hidden.path().join("f").display().to_string();
    let script = format!("cat {file}; touch /usr/x");
    for words in [
        &["run", "--explain", "sh", "-c", &script][..],
        &["run", "cat", &file],
        &["run", "absent-tool"],
        &["run", "--timeout=100ms", "sleep", "60"],
        &["run", "--ro", "/absent", "true"],
    ] {
        let shown = |columns| {
            let text = on_terminal(columns, kennel(words).current_dir(dir.path()));
            // The rest is the command's own.
            let from = text.find("\x1b").unwrap_or_else(|| panic!("no colours: {words:?}: {text}"));
            text[from..].to_owned()
        };
        let whole = plain(&shown(1000));
        for columns in [80, 50] {
            let text = shown(columns);
            let lines = plain(&text);
            let wide = lines.lines().find(|line| line.chars().count() > columns.into());
            assert!(wide.is_none() && lines.lines().count() > 1, "{columns}: {lines}");
            assert_eq!(lines.replace("\n  ", " "), whole, "{columns}: nothing is lost, and no word broken");
            assert!(!lines.lines().any(|line| line.ends_with("--ro")), "a flag keeps its value: {lines}");
            assert!(lines.lines().all(|line| line.trim_end() == line), "{lines:?}");
            let spans = text.split("\x1b[0m").filter_map(|span| span.rsplit_once("\x1b[")?.1.split_once('m'));
            for (_, styled) in spans {
                let is_flag = |text: &str| text.starts_with("--") && text.ends_with(char::is_alphanumeric);
                let is_kind = ["kennel:", "hint:", "note:"].contains(&styled);
                assert!(is_kind || is_flag(styled), "{styled:?} in {text:?}");
            }
        }
    }
}

/// Styles are added after everything else was escaped.
#[test]
fn a_name_with_escape_codes_colours_nothing() {
    let dir = workspace();
    let mut command = kennel(&["--color", "always", "run", "x\x1b[32my"]);
    let output = command.current_dir(dir.path()).output().unwrap();
    let said = stderr(&output);
    assert!(said.contains("x\\u{1b}[32my") && !said.contains("x\x1b"), "{said:?}");
}

#[test]
fn what_takes_long_says_so_on_a_terminal_and_leaves_nothing_there() {
    require!(has("bash"), "bash");
    let (dir, place) = (workspace(), runtime());
    let script = "\"$0\" session start --name s --policy <(sleep 2; echo \"profile = 'repo-write'\"); \"$0\" session stop s";
    let start = || {
        let mut bash = Command::new("bash");
        bash.args(["-c", script]).arg(kennel_path()).current_dir(dir.path());
        bash.env("TERM", "xterm").env("XDG_RUNTIME_DIR", place.path());
        bash
    };
    let shown = on_terminal(80, &mut start());
    assert!(shown.contains(" preparing the session, 1 s"), "{shown:?}");
    let (_, after) = shown.rsplit_once("\x1b[K").unwrap();
    assert!(after.starts_with('/') && after.trim_end().ends_with("/kennel/s.sock"), "{shown:?}");
    let output = start().output().unwrap();
    assert!(output.stderr.is_empty() && !stdout(&output).contains("preparing"), "{output:?}");
}

#[test]
fn a_shown_policy_says_what_holds_and_where_it_comes_from() {
    let (dir, beside) = (workspace(), workspace());
    let file = beside.path().join("p.toml");
    std::fs::write(&file, "mounts = [{ type = 'ro', source = '/usr/share', target = '/shared' }]\n[limits]\ntimeout = '5m'\n[network]\nallow = ['a.example:443']\n")
        .unwrap();
    std::fs::create_dir(dir.path().join("hidden")).unwrap();
    let from = file.to_str().unwrap();
    let own = dir.path().to_str().unwrap();
    let flags = [
        "--policy",
        from,
        "--workspace",
        own,
        "--allow",
        "b.example:443",
        "--memory",
        "1G",
        "--mask",
        "hidden",
        "--setenv",
        "SECRET=hush",
    ];
    let output = cli(dir.path(), &[&["policy", "show"], &flags[..]].concat());
    let text = stdout(&output);
    assert!(output.status.success(), "{output:?}");
    let section = |title: &str| {
        let section = text.split("\n\n").find(|section| section.starts_with(title));
        section.unwrap_or_else(|| panic!("no {title}: {text}")).to_owned()
    };
    for (title, label, value, origin) in [
        ("Policy", "profile", "repo-write", "(default)"),
        ("Writable", "workspace", own, "(--workspace)"),
        ("Readable", "read-only grant", "/shared, which is /usr/share outside", from),
        ("Readable", "system", "/usr", "(profile)"),
        ("Private", "directories", "/tmp", "(profile)"),
        ("Hidden", "masked", "/hidden", "(--mask)"),
        ("Hidden", "the rest", "~/.ssh", "(always)"),
        ("Reachable", "allowed", "a.example:443", from),
        ("Reachable", "allowed", "b.example:443", "(--allow)"),
        ("Environment", "set", "SECRET", "(--setenv)"),
        ("Limits", "memory", "1G", "(--memory)"),
        ("Limits", "timeout", "300s", from),
        ("Limits", "private directories", "2G", "(default)"),
    ] {
        let section = section(title);
        let mut lines = section.lines().filter(|line| line.trim_start().starts_with(label));
        let has = |line: &str| line.contains(value) && line.contains(origin);
        assert!(lines.any(has), "{title}: {label} {value} {origin}: {section}");
    }
    assert!(!text.contains("hush"), "values may be secrets: {text}");
    let json = cli(dir.path(), &[&["policy", "show", "--json"], &flags[..]].concat());
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["origins"]["limits.memory"], "--memory");
    assert_eq!(json["origins"]["limits.timeout"], from);
    assert_eq!(
        (&json["network"], &json["policy"]["limits"]["memory"]),
        (&"proxy".into(), &(1u64 << 30).into())
    );
    let places = json["in_force"]["places"].as_array().unwrap();
    let place = places.iter().find(|place| place["path"] == "/shared").unwrap();
    assert_eq!((&place["host"], &place["access"]), (&"/usr/share".into(), &"read".into()));
}

#[test]
fn the_difference_of_two_policies_names_what_only_one_has() {
    let (dir, beside) = (workspace(), workspace());
    let file = beside.path().join("p.toml");
    std::fs::write(
        &file,
        format!("workspace = '{}'\n[network]\nallow = ['a.example:443']\n", dir.path().display()),
    )
    .unwrap();
    let workspace = dir.path().to_str().unwrap();
    let diff = |first: &str, second: &str| {
        let output = cli(dir.path(), &["policy", "show", "--workspace", workspace, "--diff", first, second]);
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    };
    let shown = diff("repo-write", file.to_str().unwrap());
    assert!(shown.contains("\n+ allowed: a.example:443") && !shown.contains("\n- allowed"), "{shown}");
    let shown = diff("repo-write", "read-only");
    let (lost, new) = (format!("- workspace: {workspace}"), format!("+ workspace: {workspace}"));
    let at = |line: &str| shown.find(line).unwrap_or_else(|| panic!("no {line}: {shown}"));
    assert!(at("Writable") < at(&lost) && at(&lost) < at("Readable") && at("Readable") < at(&new), "{shown}");
    assert_eq!(diff("ci-only", "ci-only"), "no difference on this host");
}
