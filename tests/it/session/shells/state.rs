//! What a snippet changes in the shell lasts, and nothing that it does wrong ends the shell.

use std::path::Path;

use kennel::report::ShellOrigin;

use super::{kinds, run, said, told};
use crate::support::only_once;

#[tokio::test]
async fn directory_variables_functions_aliases_and_options_last() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        let first = run(&shell, "mkdir -p 'a b/c'; cd 'a b/c'").await;
        assert_eq!((first.origin, first.has_ended), (ShellOrigin::First, false));
        let place = kind.path().canonicalize().unwrap().join("a b/c");
        assert_eq!(first.directory.as_deref(), Some(&*place));
        said(&shell, "export KEPT=exported; own=mine; f() { echo \"f $1 $own\"; }; alias hi='echo hello'")
            .await;
        said(&shell, "umask 027; set -f; set -- one 'two words'").await;
        let expected = format!("{}\nexported\nf x mine\nhello\n0027\n*\n2 two words\n", place.display());
        let snippet = "pwd; env | while read -r line; do case $line in KEPT=*) echo ${line#KEPT=};; esac; done; \
                       f x; hi; umask; echo *; echo $# \"$2\"";
        let said = said(&shell, snippet).await;
        assert_eq!(said, expected, "{}", kind.name);
        let last = run(&shell, "cd ..").await;
        assert_eq!((last.origin, last.directory.as_deref()), (ShellOrigin::Earlier, place.parent()));
    }
}

#[tokio::test]
async fn the_status_is_that_of_the_last_command_and_the_next_snippet_finds_it() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        assert_eq!(told(&shell, "true").await.0, 0);
        assert_eq!(told(&shell, "(exit 7)").await.0, 7);
        assert_eq!(told(&shell, "echo $?").await, (0, "7\n".into(), String::new()));
        assert_eq!(told(&shell, "echo $?").await.1, "0\n");
        assert_eq!(told(&shell, "false\n\n# the end").await.0, 1);
        assert_eq!(told(&shell, "return 9; echo not").await, (9, String::new(), String::new()));
        assert_eq!(told(&shell, "no-such-program").await.0, 127);
        assert_eq!(told(&shell, "sh -c 'kill -9 $$'").await.0, 137);
        assert_eq!(told(&shell, "").await, (0, String::new(), String::new()), "an empty snippet");
        assert_eq!(told(&shell, " \n\t\n").await.0, 0);
    }
}

/// In a script each of them would end the shell.
#[tokio::test]
async fn errors_end_the_snippet_and_not_the_shell() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        said(&shell, "kept=1").await;
        for (snippet, word) in [
            ("echo (", "yntax"),
            ("echo 'unbalanced", "nterminated|unexpected EOF"),
            ("echo \"$(", "nterminated|unexpected EOF|yntax"),
            ("if true; then echo x", "yntax"),
            ("cat <<END\nnever ended\n$(", "yntax|unexpected EOF"),
            ("echo ${no_such?not set here}", "not set here"),
            ("set -u; echo $no_such_variable", "no_such_variable"),
            ("set +u; . ./no-such-file", "no-such-file"),
            ("readonly fixed=1; fixed=2", "fixed"),
            ("cd /no/such/place", "/no/such/place"),
            ("exec 7</no/such/file", "/no/such/file"),
        ] {
            let (status, stdout, stderr) = told(&shell, snippet).await;
            assert!((1..=2).contains(&status), "{}: {snippet}: {status} {stderr}", kind.name);
            assert!(
                stdout.is_empty() && word.split('|').any(|word| stderr.contains(word)),
                "{snippet}: {stderr}"
            );
        }
        assert_eq!(told(&shell, "break; continue; echo on").await.1, "on\n");
        assert_eq!(said(&shell, "echo $kept").await, "1\n", "{}", kind.name);
    }
}

#[tokio::test]
async fn a_failure_under_set_e_ends_the_snippet_in_bash_and_the_shell_in_sh() {
    for kind in kinds().await {
        for (failing, status) in [
            ("set -e; echo before; false; echo after", 1),
            ("set -eu; f() { echo before; (exit 5); echo in; }; f; echo after", 5),
            ("set -e; echo before; for i in 1 2; do [ $i = 2 ]; echo after; done", 1),
            ("set -e; echo before; x=$(exit 4); echo after", 4),
            ("set -e; echo before; eval false; echo after", 1),
            ("set -e; echo before; return 6", 6),
        ] {
            let shell = kind.session.shell();
            said(&shell, "kept=1; cd /").await;
            let out = run(&shell, failing).await;
            assert_eq!(out.outcome.status.code(), Some(status), "{}: {failing}", kind.name);
            assert_eq!(String::from_utf8_lossy(&out.stdout), "before\n", "{}: {failing}", kind.name);
            assert_eq!(out.has_ended, !kind.is_bash(), "{}: {failing}", kind.name);
            let next = run(&shell, "echo \"<$kept>\"; false; echo on").await;
            let (kept, origin) = match kind.is_bash() {
                true => ("<1>\non\n", ShellOrigin::Earlier),
                false => ("<>\non\n", ShellOrigin::Replacement),
            };
            assert_eq!((&*String::from_utf8_lossy(&next.stdout), next.origin), (kept, origin), "{failing}");
        }
        let shell = kind.session.shell();
        let harmless = "set -e; if false; then :; fi; false || true; ! true; false && true; echo on";
        assert_eq!(said(&shell, harmless).await, "on\n", "{}", kind.name);
    }
}

#[tokio::test]
async fn traps_stay_and_do_not_disturb_the_shell() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        said(&shell, "trap 'echo bye' EXIT; trap 'echo usr' USR1").await;
        assert_eq!(said(&shell, "kill -USR1 $$; true").await, "usr\n", "{}", kind.name);
        if kind.is_bash() {
            assert_eq!(
                said(&shell, "trap 'debugs=$((debugs+1))' DEBUG; trap 'echo failed $?' ERR").await,
                ""
            );
            assert_eq!(told(&shell, "false").await.1, "failed 1\n");
            assert_eq!(
                said(&shell, "trap - ERR DEBUG; [ $debugs -gt 1 ] && echo counted").await,
                "counted\n"
            );
            assert_eq!(said(&shell, "trap 'echo debug' DEBUG; echo x").await, "debug\nx\n");
            assert_eq!(said(&shell, "trap - DEBUG; echo x").await, "x\n");
        }
        let out = run(&shell, "exit 3").await;
        assert!(out.has_ended && out.outcome.status.code() == Some(3), "{out:?}");
    }
}

#[tokio::test]
async fn odd_options_and_names_do_not_disturb_the_shell() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        for snippet in [
            "IFS=0123456789/",
            "set -C",
            "set -x",
            "set -v",
            "set -a",
            "alias command=false printf=false pwd=false .=false",
            "PWD=/nonsense; OLDPWD=; unset HOME PATH",
            "PS1='prompt> '; PS2='more> '; PS4='trace> '",
            "exec 3>&1 4>&2; exec 3>&- 4>&-",
            "exec >/dev/null 2>&1 </dev/null",
            "exec 0<&- 1>&- 2>&-",
        ] {
            told(&shell, snippet).await;
            let (status, stdout, _) = told(&shell, "echo still").await;
            assert_eq!((status, &*stdout), (0, "still\n"), "{}: {snippet}", kind.name);
        }
        told(&shell, "set +xv").await;
        let out = run(&shell, "cd /usr").await;
        assert_eq!(out.directory.as_deref(), Some(Path::new("/usr")));
    }
}

/// Other descriptors than the three stay open.
#[tokio::test]
async fn descriptors_of_the_shell_last() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        said(&shell, "exec 5>out; echo one >&5").await;
        said(&shell, "echo two >&5").await;
        assert_eq!(said(&shell, "exec 5>&-; cat out").await, "one\ntwo\n");
        assert_eq!(said(&shell, "exec >redirected; echo into").await, "", "for the rest of its call");
        assert_eq!(said(&shell, "cat redirected").await, "into\n", "{}", kind.name);
    }
}

#[tokio::test]
async fn the_environment_of_a_snippet_is_that_of_a_command() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        let names = |text: &str| {
            let names = text.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name.to_owned());
            let of_the_shell = |name: &String| matches!(&**name, "_" | "PWD" | "OLDPWD" | "SHLVL");
            let mut names: Vec<String> = names.filter(|name| !of_the_shell(name)).collect();
            names.sort();
            names
        };
        let command = super::super::said(&mut kind.session.command("env")).await;
        assert_eq!(names(&said(&shell, "env").await), names(&command), "{}", kind.name);
        assert_eq!(told(&shell, "history").await.1, "", "no history of anybody");
    }
}

#[tokio::test]
async fn a_shell_with_a_name_is_found_again_and_others_are_apart() {
    let [kind, ..] = kinds().await;
    said(&kind.session.shell_with_id("one"), "mine=1").await;
    said(&kind.session.shell_with_id("two"), "mine=2").await;
    let again = kind.session.clone().shell_with_id("one");
    assert_eq!(said(&again, "echo $mine").await, "1\n");
    assert_eq!(said(&kind.session.shell(), "echo \"<$mine>\"").await, "<>\n");
    again.end().await;
    let out = run(&again, "echo \"<$mine>\"").await;
    assert_eq!((&*out.stdout, out.origin), (&b"<>\n"[..], ShellOrigin::Replacement));
}

#[tokio::test]
async fn a_virtual_environment_stays_active() {
    only_once!();
    let [kind, ..] = kinds().await;
    let shell = kind.session.shell();
    // What `python3 -m venv` writes, in short.
    std::fs::create_dir_all(kind.path().join("venv/bin")).unwrap();
    let activate = "deactivate() { PATH=$_OLD; PS1=$_PS1; unset VIRTUAL_ENV; unset -f deactivate; hash -r; }\n\
                    _OLD=$PATH; _PS1=${PS1-}; VIRTUAL_ENV=$PWD/venv; export VIRTUAL_ENV; PATH=$PWD/venv/bin:$PATH; \
                    export PATH; PS1=\"(venv) $_PS1\"; export PS1; hash -r 2>/dev/null\n";
    std::fs::write(kind.path().join("venv/bin/activate"), activate).unwrap();
    std::fs::write(kind.path().join("venv/bin/tool"), "#!/bin/sh\necho from the venv\n").unwrap();
    said(&shell, "chmod +x venv/bin/tool; source venv/bin/activate").await;
    assert_eq!(said(&shell, "cd /; tool; echo $VIRTUAL_ENV").await.lines().next(), Some("from the venv"));
    said(&shell, "deactivate").await;
    assert_eq!(told(&shell, "tool").await.0, 127);
}
