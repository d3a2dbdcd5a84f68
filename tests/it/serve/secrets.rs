//! Secrets that appear in a place where a session shows the caller's home.

use std::fs;

use super::Hosted;
use crate::support::{stdout, workspace};

#[test]
fn secrets_made_after_the_session_are_covered_for_the_next_command() {
    let home = workspace();
    fs::create_dir(home.path().join(".config")).unwrap();
    let path = home.path().to_str().unwrap().to_owned();
    for flag in ["--ro", "--rw"] {
        let session = Hosted::start_for(home.path(), &[flag, &path]);
        let script = format!("cat {path}/plain {path}/.netrc; ls -A {path}/.ssh {path}/.config/gh; echo $?");
        let missing = session.shell(&script);
        assert_eq!(stdout(&missing), "2", "{missing:?}");
        fs::write(home.path().join("plain"), "plain\n").unwrap();
        fs::write(home.path().join(".netrc"), "password\n").unwrap();
        for directory in [".ssh", ".config/gh"] {
            fs::create_dir(home.path().join(directory)).unwrap();
            fs::write(home.path().join(directory).join("key"), "key").unwrap();
        }
        // More commands than there were ready workers before the secret appeared.
        for _ in 0..3 {
            let output = session.shell(&script);
            assert_eq!(
                stdout(&output),
                format!("plain\n{path}/.config/gh:\n\n{path}/.ssh:\n0"),
                "{output:?}"
            );
        }
        for directory in [".ssh", ".config/gh"] {
            fs::remove_dir_all(home.path().join(directory)).unwrap();
        }
        for file in ["plain", ".netrc"] {
            fs::remove_file(home.path().join(file)).unwrap();
        }
    }
}

#[test]
fn secrets_of_the_command_itself_are_covered_after_it() {
    let home = workspace();
    let path = home.path().to_str().unwrap().to_owned();
    let session = Hosted::start_for(home.path(), &["--rw", &path]);
    assert!(session.shell(&format!("echo token > {path}/.npmrc && cat {path}/.npmrc")).status.success());
    let output = session.shell(&format!("cat {path}/.npmrc"));
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert_eq!(fs::read_to_string(home.path().join(".npmrc")).unwrap(), "token\n");
}
