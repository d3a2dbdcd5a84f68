//! What each profile shows, makes writable and lets reach.

use std::{env, fs, path::Path, sync::Arc};

use fluers_runtime::SandboxProfile::{self, CiOnly, FullDev, NoNetwork, ReadOnly, RepoWrite};
use kennel::Policy;
use kennel_adapters::fluers::KennelSandbox;

use super::{fails, harness, says, shell};
use crate::{
    origin::Origin,
    support::{has, is_alone, require, workspace},
};

const ALL: [SandboxProfile; 5] = [ReadOnly, RepoWrite, NoNetwork, FullDev, CiOnly];

#[tokio::test]
async fn workspace_is_writable_as_the_profile_says() {
    for profile in ALL {
        let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
        fs::write(dir.path().join("old"), "content").unwrap();
        let env = harness(&kennel, dir.path(), profile, &[]).await;
        assert_eq!(says(&env, "cat old").await, "content", "{profile:?}");
        if profile == ReadOnly {
            assert!(fails(&env, "touch new").await.contains("Read-only file system"));
            assert!(fails(&env, "echo x > old").await.contains("Read-only file system"));
        } else {
            says(&env, "touch new; echo more >> old").await;
        }
        assert_eq!(dir.path().join("new").exists(), profile != ReadOnly, "{profile:?}");
    }
}

#[tokio::test]
async fn system_is_read_only_and_tmp_private() {
    for profile in ALL {
        let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
        let outside = tempfile::NamedTempFile::new_in("/tmp").unwrap();
        let env = harness(&kennel, dir.path(), profile, &[]).await;
        for attempt in ["touch /usr/kennel-test", "touch /etc/kennel-test"] {
            let said = fails(&env, attempt).await;
            assert!(said.contains("Read-only file system"), "{profile:?}: {said}");
        }
        let script = format!("test ! -e {} && touch /tmp/kennel-test", outside.path().display());
        says(&env, &script).await;
        assert!(!Path::new("/tmp/kennel-test").exists(), "{profile:?}");
        says(&env, "test ! -e /tmp/kennel-test").await;
        let all = says(&env, "ls /").await;
        assert_eq!(all.lines().any(|name| name == "boot"), profile == FullDev && Path::new("/boot").exists());
    }
}

#[tokio::test]
async fn ci_only_has_a_fixed_environment_and_no_homes() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
    let env = harness(&kennel, dir.path(), CiOnly, &[]).await;
    let said = says(&env, "env | sort; ls -A /home /root 2>&1; true").await;
    assert!(said.contains("CI=true") && said.contains("HOME=/home/ci") && said.contains("USER=ci"), "{said}");
    assert!(!said.contains("CARGO_HOME") && !said.contains("LC_"), "{said}");
    assert!(said.contains("/home:\nci") || said.ends_with("ci"), "{said}");
    assert!(said.contains("cannot access '/root'"), "{said}");
}

/// The test has a home directory of its own, with secrets in it.
const AT_HOME: &str = "HOME=$(mktemp -d /tmp/kennel-home-XXXXXX) || exit; export HOME
    mkdir -p \"$HOME/.ssh\" \"$HOME/.aws\" \"$HOME/.gnupg\" \"$HOME/.config/gcloud\" \"$HOME/.docker\"
    for secret in .ssh/id .aws/key .gnupg/key .config/gcloud/key .docker/config.json .netrc
    do echo secret > \"$HOME/$secret\"; done
    echo none > \"$HOME/notes\"; \"$@\"; status=$?; rm -rf \"$HOME\"; exit $status";

const SECRETS: &str = "for secret in .ssh/id .aws/key .gnupg/key .config/gcloud/key .docker/config.json .netrc; \
                       do cat \"$AT/$secret\" 2>/dev/null; done; cat \"$AT/notes\" 2>/dev/null; true";

#[test]
fn secrets_are_invisible() {
    if !is_alone("fluers::profiles::secrets_are_invisible", AT_HOME) {
        return;
    }
    let home = env::var("HOME").unwrap();
    let script = SECRETS.replace("$AT", &home);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for profile in ALL {
            let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
            let env = harness(&kennel, dir.path(), profile, &[]).await;
            assert!(!says(&env, &script).await.contains("secret"), "{profile:?}");
            // The same if all of the home directory is granted.
            let policy = Policy::default().read_only(&home);
            let kennel = Arc::new(KennelSandbox::with_policy(policy));
            let env = harness(&kennel, dir.path(), profile, &[]).await;
            assert_eq!(says(&env, &script).await, "none", "{profile:?}");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_egress_list_can_be_reached() {
    require!(has("curl"), "curl");
    let (listed, unlisted) = (Origin::named("listed"), Origin::named("unlisted"));
    let get = |origin: &Origin| {
        let (port, form) = (origin.port(), "%{http_code}");
        format!("curl -sS -m 10 --noproxy '' -o body -w '{form}' http://127.0.0.1:{port}/")
    };
    for profile in [RepoWrite, CiOnly] {
        let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
        let entry = format!("127.0.0.1:{}", listed.port());
        let env = harness(&kennel, dir.path(), profile, &[&entry]).await;
        assert_eq!(says(&env, &get(&listed)).await, "200", "{profile:?}");
        assert_eq!(says(&env, "cat body").await, "listed: /");
        assert_eq!(says(&env, &get(&unlisted)).await, "403", "{profile:?}");
        // A program that asks no proxy reaches the listed port too, through the listener of its rule, and no
        // other.
        let past = |origin| get(origin).replace("--noproxy ''", "--noproxy '*'");
        assert_eq!(says(&env, &past(&listed)).await, "200", "{profile:?}");
        assert_ne!(shell(&env, &past(&unlisted)).await.exit_code, 0, "{profile:?}");
    }
    assert_eq!(unlisted.server.accepted(), 0);
    let before = listed.server.accepted();
    for profile in [ReadOnly, RepoWrite, NoNetwork, CiOnly] {
        let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
        let env = harness(&kennel, dir.path(), profile, &[]).await;
        let result = shell(&env, &get(&listed).replace("body", "/dev/null")).await;
        // Without a rule, the proxy refuses. Where there is none, nothing can be connected to.
        match profile {
            RepoWrite | CiOnly => assert_eq!(result.stdout, "403", "{profile:?}: {result:?}"),
            _ => {
                assert_eq!(result.exit_code, 7, "{profile:?}: {result:?}");
                assert_eq!(says(&env, "env | grep -i proxy; true").await, "", "{profile:?}");
            }
        }
    }
    assert_eq!(listed.server.accepted(), before, "nobody has reached it");
    for egress in [&[][..], &["*"]] {
        let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
        let env = harness(&kennel, dir.path(), FullDev, egress).await;
        assert_eq!(says(&env, &get(&listed)).await, "200");
    }
}
