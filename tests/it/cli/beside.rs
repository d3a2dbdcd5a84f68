//! `kennel mcp`, `kennel image` and `kennel connector` execute what is beside `kennel`, and nothing else.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use crate::support::{
    TempDir, copy_program, kennel_image_path, kennel_mcp_path, kennel_path, stderr, stdout, workspace,
    write_program,
};

/// A directory with `kennel`, and programs that say which they are, who they are and what they were given.
fn place(programs: &[&str]) -> TempDir {
    let place = TempDir::new("kennel-beside-", "/tmp");
    copy_program(kennel_path(), place.path().join("kennel"));
    for program in programs {
        said_by(&place.path().join(program));
    }
    place
}

fn said_by(program: &Path) {
    write_program(program, "#!/bin/sh\necho \"${0##*/} $$ $*\"; cat\nexit 7\n");
}

#[test]
fn the_program_is_the_same_process_with_the_same_words_and_streams() {
    let place = place(&["kennel-mcp", "kennel-image", "kennel-connector"]);
    for words in [
        &["mcp", "--net", "none"][..],
        &["--color", "never", "mcp", "-q"],
        &["image", "list"],
        &["connector", "check", "x.wasm", "--manifest", "m.toml"],
    ] {
        let mut command = Command::new(place.path().join("kennel"));
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let pid = child.id();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"input\n").unwrap();
        let output = child.wait_with_output().unwrap();
        let program = match words[0] {
            "connector" => "kennel-connector",
            "image" => "kennel-image",
            _ => "kennel-mcp",
        };
        let expected = format!("{program} {pid} {}\ninput", words.join(" "));
        assert_eq!((stdout(&output), stderr(&output)), (expected, String::new()));
        assert_eq!(output.status.code(), Some(7));
    }
}

#[test]
fn a_program_that_is_missing_is_named_with_its_package() {
    let place = place(&[]);
    // Another one is in reach.
    let other = TempDir::new("kennel-beside-", "/tmp");
    for program in ["kennel-mcp", "kennel-image", "kennel-connector"] {
        said_by(&other.path().join(program));
    }
    for (words, program, remedy) in [
        (&["mcp"][..], "kennel-mcp", "--path crates/cli"),
        (&["image", "df"], "kennel-image", "--path crates/cli"),
        (&["connector", "compile", "x.wasm"], "kennel-connector", "--path crates/cli --features wasm"),
    ] {
        let mut command = Command::new(place.path().join("kennel"));
        let output =
            command.args(words).current_dir(other.path()).env("PATH", other.path()).output().unwrap();
        let said = stderr(&output);
        let expected =
            format!("kennel: program {}/{program}: No such file or directory", place.path().display());
        assert!(said.starts_with(&expected) && said.ends_with(remedy), "{said}");
        assert!(said.contains("\nkennel: hint: the package kennel-cli puts it beside kennel"), "{said}");
        assert_eq!((output.status.code(), stdout(&output)), (Some(125), String::new()));
    }
}

#[test]
fn nothing_is_executed_where_everybody_may_put_a_program() {
    let place = place(&["kennel-mcp"]);
    fs::set_permissions(place.path(), Permissions::from_mode(0o1777)).unwrap();
    let output = Command::new(place.path().join("kennel")).arg("mcp").output().unwrap();
    let said = stderr(&output);
    assert!(
        said.contains("everybody may put a program there\nkennel: hint: move kennel and kennel-mcp"),
        "{said}"
    );
    assert_eq!((output.status.code(), stdout(&output)), (Some(125), String::new()));
}

#[test]
fn what_is_beside_kennel_does_nothing_else() {
    let dir = workspace();
    for (program, verb) in [(kennel_mcp_path(), "mcp"), (kennel_image_path(), "image")] {
        for words in [&["run", "true"][..], &["probe"]] {
            let output = Command::new(&program).args(words).current_dir(dir.path()).output().unwrap();
            let said = format!("kennel: program `kennel-{verb}`: `kennel {verb}` starts it");
            assert_eq!((output.status.code(), stderr(&output)), (Some(125), said));
        }
    }
}

/// Texts of the crates that read tar and gzip, and of those that speak with registries: reqwest, rustls,
/// docker_credential.
#[test]
fn kennel_carries_no_code_that_unpacks_archives_or_asks_registries() {
    // Searching a text is code of std, which is fast in a test, too.
    let content = |program: &Path| String::from_utf8_lossy(&fs::read(program).unwrap()).into_owned();
    let (kennel, mcp, image) =
        (content(&kennel_path()), content(&kennel_mcp_path()), content(&kennel_image_path()));
    let unpacking = ["invalid distance too far back", "numeric field was not a number"];
    let asking = ["error sending request", "invalid peer certificate", "docker-credential-"];
    for text in unpacking.into_iter().chain(asking) {
        assert!(image.contains(text), "kennel-image has it: {text}");
        assert!(!kennel.contains(text), "kennel has it: {text}");
        assert!(!mcp.contains(text), "kennel-mcp has it: {text}");
    }
}
