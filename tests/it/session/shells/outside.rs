//! Changes outside between two calls: the walls around a shell hold as they do around a new command.

use std::fs;

use kennel::{Error, Mount, Session, report::ShellOrigin};

use super::{kinds, run, said, told};
use crate::{
    session::git,
    support::{has, require, workspace},
};

/// A file that git replaced outside has lost its read-only mount in a shell with mounts of its own.
#[tokio::test]
async fn what_git_obeys_stays_protected_when_git_replaces_it_outside() {
    require!(has("git"), "git");
    for kind in kinds().await {
        git(kind.path(), &["init", "-q"]);
        let shell = kind.session.shell();
        said(&shell, "kept=1").await;
        // Mounts that commands share are mounted again under the shell.
        let is_shared = kind.name.contains("isolation session");
        let origin = if is_shared { ShellOrigin::Earlier } else { ShellOrigin::Replacement };
        for name in ["one", "two"] {
            let (status, _, stderr) = told(&shell, "echo x >> .git/config").await;
            assert!(status != 0 && stderr.contains("ead-only file system"), "{}: {stderr}", kind.name);
            git(kind.path(), &["config", "user.name", name]);
            let out = run(&shell, "echo x >> .git/config").await;
            assert!(!out.outcome.status.success(), "{}: {out:?}", kind.name);
            assert_eq!(out.origin, origin, "{}", kind.name);
        }
        let config = fs::read_to_string(kind.path().join(".git/config")).unwrap();
        assert!(!config.lines().any(|line| line == "x"), "{}: {config}", kind.name);
    }
}

/// Not only at the end of the shell.
#[tokio::test]
async fn what_appears_at_a_protected_path_is_taken_away_after_each_snippet() {
    require!(has("git"), "git");
    for kind in kinds().await {
        git(kind.path(), &["init", "-q"]);
        fs::remove_dir_all(kind.path().join(".git/hooks")).unwrap();
        let dir = kind.path().to_owned();
        let session = Session::prepare(&kind.policy()).await.unwrap();
        let shell = session.shell();
        let out = run(&shell, "mkdir -p .git/hooks && echo x >.git/hooks/pre-commit").await;
        assert!(!dir.join(".git/hooks/pre-commit").exists(), "{}: {out:?}", kind.name);
        let is_told = out.outcome.denials.iter().any(|denial| denial.subject.contains(".git/hooks"));
        assert!(is_told || !out.outcome.status.success(), "{}: {out:?}", kind.name);
    }
}

#[tokio::test]
async fn no_snippet_runs_while_a_grant_is_replaced_outside() {
    for kind in kinds().await {
        let granted = workspace();
        let file = granted.path().join("conf");
        fs::write(&file, "one").unwrap();
        let mount = Mount::ReadOnly { source: file.clone(), target: None };
        let session = Session::prepare(&kind.policy().mount(mount)).await.unwrap();
        let (shell, other) = (session.shell(), session.shell_with_id("other"));
        let cat = format!("cat {}", file.display());
        assert_eq!(said(&shell, &cat).await, "one", "{}", kind.name);
        fs::write(granted.path().join("new"), "two").unwrap();
        fs::rename(granted.path().join("new"), &file).unwrap();
        for shell in [&shell, &other] {
            let refused = shell.run("true").await;
            assert!(matches!(refused, Err(Error::Grant { .. })), "{}: {refused:?}", kind.name);
        }
    }
}
