//! Standard descriptors are the caller's own: Kennel passes them on and collects nothing.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    process::Stdio,
    thread,
};

use crate::support::{kennel, patient, quiet, run, shell, stdout, succeeds, workspace};

#[test]
fn stdin_passes_through_from_file_and_null() {
    let dir = workspace();
    fs::write(dir.path().join("input"), "from file").unwrap();
    for flags in [&[][..], &["--max-output", "1M"]] {
        let input = File::open(dir.path().join("input")).unwrap();
        let output = kennel(dir.path(), flags, &["cat"]).stdin(input).output().unwrap();
        assert_eq!(stdout(&output), "from file");
        let output = kennel(dir.path(), flags, &["cat"]).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty());
    }
}

#[test]
fn output_goes_where_the_caller_s_goes() {
    let dir = workspace();
    let out = File::create(dir.path().join("out")).unwrap();
    let status = kennel(dir.path(), quiet(), &["sh", "-c", "echo out; echo err >&2"])
        .stderr(out.try_clone().unwrap())
        .stdout(out)
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(fs::read_to_string(dir.path().join("out")).unwrap(), "out\nerr\n");
    let output = shell(dir.path(), quiet(), "echo out; echo err >&2");
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
}

#[test]
fn large_streams_pass_whole_in_both_directions() {
    let dir = workspace();
    let bytes: Vec<u8> =
        (0..10u32 << 20).map(|index| index.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    for flags in [&[][..], &["--max-output", "1G"]] {
        let mut child =
            kennel(dir.path(), flags, &["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = bytes.clone();
        let writer = thread::spawn(move || stdin.write_all(&input).unwrap());
        let mut output = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
        writer.join().unwrap();
        assert!(child.wait().unwrap().success());
        assert!(output == bytes, "{} of {} bytes", output.len(), bytes.len());
    }
}

#[test]
fn output_is_live() {
    let dir = workspace();
    for flags in [&[][..], &["--max-output", "1M"]] {
        let script = "echo first; read answer; echo got $answer";
        let mut child = kennel(dir.path(), flags, &["sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "first", "before the command ends");
        child.stdin.take().unwrap().write_all(b"it\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "got it");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn end_of_input_arrives_while_the_command_runs() {
    let dir = workspace();
    let mut child = kennel(dir.path(), &[], &["sh", "-c", "cat; echo ended"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"x\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "x\nended");
}

#[test]
fn reader_that_closes_ends_the_writer_as_without_kennel() {
    let dir = workspace();
    let mut child = kennel(dir.path(), &[], &["yes"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(
        (line.as_str(), crate::support::shown(child.wait().unwrap())),
        ("y\n", Some(128 + 13)),
        "SIGPIPE"
    );
}

#[test]
fn background_process_that_holds_stdout_does_not_hold_up_the_end() {
    let dir = workspace();
    let start = std::time::Instant::now();
    for flags in [&[][..], &["--max-output", "1M"]] {
        let output = kennel(dir.path(), flags, &["sh", "-c", "sleep 60 & echo done"]).output().unwrap();
        assert_eq!(stdout(&output), "done");
    }
    assert!(start.elapsed() < patient(std::time::Duration::from_secs(30)));
}

#[test]
fn closed_descriptors_are_no_obstacle() {
    let dir = workspace();
    let kennel = crate::support::kennel_path();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let script =
            format!("'{}' run -- sh -c 'echo x > ran; exit 5' {closed}; echo $? > status", kennel.display());
        std::process::Command::new("sh").current_dir(dir.path()).args(["-c", &script]).status().unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("status")).unwrap(), "5\n", "{closed}");
        fs::remove_file(dir.path().join("ran")).unwrap();
    }
}

#[test]
fn command_has_three_descriptors_and_no_more() {
    let dir = workspace();
    let kennel = crate::support::kennel_path();
    let script = format!("exec 7< /dev/null 9< /etc/passwd; '{}' run -- ls /proc/self/fd", kennel.display());
    let output =
        std::process::Command::new("sh").current_dir(dir.path()).args(["-c", &script]).output().unwrap();
    assert_eq!(stdout(&output), "0\n1\n2\n3", "3 is the directory that ls reads");
    let links = succeeds(dir.path(), &[], "readlink /proc/self/fd/0");
    assert!(!links.contains("memfd"), "{links}");
}

#[test]
fn stdout_of_a_file_keeps_its_offset_and_mode() {
    let dir = workspace();
    let path = dir.path().join("log");
    fs::write(&path, "before\n").unwrap();
    let log = File::options().append(true).open(&path).unwrap();
    kennel(dir.path(), &[], &["echo", "appended"]).stdout(log).status().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "before\nappended\n");
    assert!(run(dir.path(), &[], &["true"]).stdout.is_empty());
}
