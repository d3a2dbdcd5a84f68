//! The Landlock ABI of a kernel decides what Kennel gives on it. These tests assert that for each ABI and
//! skip none. `scripts/kernels` runs them on kernels from 5.10 to the newest, and says which ABI each has.

use std::{
    env, fs,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt,
        unix::{fs::PermissionsExt, net},
    },
};

use kennel::{Error, Policy, Profile, Sandbox, Session, probe::Host};
use serde_json::Value;

use crate::support::{
    attempt, has, keeps_changes_in_memory, kennel, kennel_path, other_root, protection, refused, report,
    require, skip, stderr, stdout, workspace, workspace_on_disk,
};

/// The reason to skip a test of this kernel's Landlock.
const TOO_OLD: &str = "everything is refused by a kernel as old as this one";

/// The ABI of this kernel. On a machine of `scripts/kernels`, the ABI that it must have.
fn abi() -> u32 {
    let found = Host::detect().landlock_abi;
    if let Ok(promised) = env::var("KENNEL_LANDLOCK_ABI") {
        assert_eq!(found.to_string(), promised, "scripts/kernels.d/table says so");
    }
    found
}

/// Whether the kernel is older than Kennel supports. Then Kennel refuses everything, which other tests check.
fn is_too_old() -> bool {
    (Host::detect().kernel.0, Host::detect().kernel.1) < (5, 12)
}

#[test]
fn landlock_is_what_the_table_of_kernels_says() {
    abi();
}

#[test]
fn changes_of_another_root_are_kept_where_the_kernel_can() {
    if is_too_old() {
        return skip(module_path!(), TOO_OLD);
    }
    require!(has("ldd"), "ldd");
    let (root, dir, upper) = (other_root(), workspace(), workspace_on_disk());
    fs::set_permissions(upper.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let flags = ["--root", root.path().to_str().unwrap()];
    let changes =
        ["sh", "-c", "rm /etc/group && mkdir /etc/group && echo x > /etc/group/x && cat /etc/group/x"];
    if keeps_changes_in_memory() {
        let output = kennel(dir.path(), &flags, &changes).output().unwrap();
        assert_eq!(stdout(&output), "x", "{output:?}");
    } else {
        let said = refused(dir.path(), &flags);
        assert!(said.contains("cannot keep changes of another root in memory"), "{said}");
        assert!(said.contains("--image-upper disk"), "{said}");
    }
    let flags = [&flags[..], &["--image-upper", upper.path().to_str().unwrap()]].concat();
    let output = kennel(dir.path(), &flags, &changes).output().unwrap();
    assert_eq!(stdout(&output), "x", "{output:?}");
    assert!(root.path().join("etc/group").is_file());
}

#[test]
fn a_plain_run_has_what_the_abi_gives_and_reports_the_rest() {
    if is_too_old() {
        return skip(module_path!(), TOO_OLD);
    }
    let dir = workspace();
    let abi = abi();
    if abi == 0 {
        assert!(refused(dir.path(), &[]).contains("landlock: this kernel has no Landlock"));
        return;
    }
    let (output, report) = report(dir.path(), &[], &["true"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (state, detail) = protection(&report, "landlock");
    assert!(state == "enforced" && detail.starts_with(&format!("ABI {abi}, all ")), "{detail}");
    let scope = protection(&report, "landlock_scope");
    let level = &report["enforcement"]["level"];
    if abi >= 6 {
        assert_eq!((scope.0, level), ("enforced", &"full".into()));
        assert!(output.stderr.is_empty(), "{output:?}");
    } else {
        let reason = format!("ABI {abi} has no scopes: they came with Linux 6.12");
        assert_eq!((scope, level), (("off", reason.as_str()), &"partial".into()));
        // The namespaces replace the scopes, except with the host's network.
        assert!(output.stderr.is_empty(), "{output:?}");
        let output = kennel(dir.path(), &["--net", "host"], &["true"]).output().unwrap();
        assert_eq!(stderr(&output), format!("kennel: landlock_scope off: {reason}"));
    }
}

#[test]
fn ci_only_runs_only_with_scopes() {
    if is_too_old() {
        return skip(module_path!(), TOO_OLD);
    }
    let dir = workspace();
    let flags = ["--profile", "ci-only"];
    if abi() >= 6 {
        assert!(kennel(dir.path(), &flags, &["true"]).output().unwrap().status.success());
    } else {
        let said = refused(dir.path(), &flags);
        assert!(said.contains("landlock") && said.contains("kennel: hint: "), "{said}");
    }
}

#[test]
fn the_report_is_true_about_abstract_sockets_of_the_host() {
    if is_too_old() {
        return skip(module_path!(), TOO_OLD);
    }
    let dir = workspace();
    let name = format!("kennel-test-{}", std::process::id());
    let address = net::SocketAddr::from_abstract_name(&name).unwrap();
    let _stream = net::UnixListener::bind_addr(&address).unwrap();
    // Without any Landlock the policy must allow that it is missing.
    let degrade: &[&str] = if abi() == 0 { &["--on-unavailable", "degrade"] } else { &[] };
    // With a network namespace of its own the ABI does not matter.
    let own = attempt(dir.path(), &[&["-q"], degrade].concat(), "abstract", &[&name]);
    assert_eq!(own.lines().next(), Some("ECONNREFUSED"));
    let host = [&["-q", "--net", "host"], degrade].concat();
    let (_, report) = report(dir.path(), &host, &["true"]);
    let shared = attempt(dir.path(), &host, "abstract", &[&name]);
    let found = (protection(&report, "landlock_scope").0, shared.lines().next().unwrap_or_default());
    let expected = if abi() >= 6 { ("enforced", "EPERM") } else { ("off", "ok") };
    assert_eq!(found, expected);
}

#[test]
fn sockets_in_read_only_grants_are_out_of_reach_if_landlock_knows_them() {
    if is_too_old() || abi() == 0 {
        return skip(module_path!(), "this kernel has no Landlock");
    }
    let (dir, other) = (workspace(), workspace());
    let path = other.path().join("socket");
    let _listener = net::UnixListener::bind(&path).unwrap();
    let connect = |flag: &str, target: &str| {
        let grant = format!("{}:{target}", other.path().display());
        attempt(dir.path(), &["-q", flag, &grant], "unix", &[&format!("{target}/socket")])
    };
    assert_eq!(connect("--rw", "/srv/shown"), "ok");
    assert_eq!(connect("--ro", "/srv/shown"), if abi() >= 9 { "EACCES" } else { "ok" });
    // The rights of a writable directory hold for everything below it.
    assert_eq!(connect("--ro", "/tmp/shown"), "ok");
}

#[test]
fn ports_of_the_host_need_landlock_rules() {
    if is_too_old() {
        return skip(module_path!(), TOO_OLD);
    }
    let dir = workspace();
    let listeners = [TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap()];
    let [allowed, other] = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let rule = format!("*:{}", allowed.port());
    let flags = ["-q", "--net", "host", "--allow", &rule];
    let abi = abi();
    if abi >= 4 {
        let said = attempt(dir.path(), &flags, "connect", &[&allowed.to_string(), &other.to_string()]);
        assert_eq!(said, "ok\nEACCES");
    } else {
        let said = refused(dir.path(), &flags);
        let reason =
            format!("landlock_network: ABI {abi} has no rules for TCP ports: they came with Linux 6.7");
        assert!(abi == 0 || said.contains(&reason), "{said}");
        assert!(said.contains("kennel: hint: "), "{said}");
    }
}

#[test]
fn the_probe_reports_what_the_abi_gives() {
    let verdict = |profile: &str| {
        let mut probe = std::process::Command::new(kennel_path());
        let output = probe.args(["probe", "--json", "--profile", profile]).output().unwrap();
        let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(report["host"]["landlock_abi"], abi());
        (report["verdict"].as_str().unwrap().to_owned(), output.status.code())
    };
    let [full, partial, unavailable] = [("fully_enforced", 0), ("partial", 1), ("unavailable", 125)]
        .map(|(word, code)| (word.to_owned(), Some(code)));
    let plain = match abi() {
        _ if is_too_old() => &unavailable,
        // The probe tries what is there, like a policy that may degrade.
        0..6 => &partial,
        _ => &full,
    };
    assert_eq!(&verdict("repo-write"), plain);
    assert_eq!(verdict("ci-only"), if abi() >= 6 { full } else { unavailable });
}

/// A kernel that was built without Landlock, or booted with another lsm= list.
#[test]
fn without_landlock_nothing_runs_unless_the_policy_may_degrade() {
    if is_too_old() || abi() > 0 {
        return skip(module_path!(), "this kernel has Landlock, or is too old for anything");
    }
    let dir = workspace();
    let says = "kennel: landlock: this kernel has no Landlock\nkennel: hint: boot with landlock in the lsm= list \
                (CONFIG_SECURITY_LANDLOCK=y, Linux 5.13 or later), or set [require] landlock = \"if_available\"";
    for flags in [&[][..], &["--net", "host"], &["--net", "proxy", "--allow", "example.com:443"]] {
        assert_eq!(refused(dir.path(), flags), says, "{flags:?}");
    }
    let ci_only = ["--profile", "ci-only"];
    let said = refused(dir.path(), &ci_only);
    assert!(said.contains("landlock") && said.contains("boot with landlock in the lsm= list"), "{said}");
    let said = refused(dir.path(), &[&ci_only[..], &["--on-unavailable", "degrade"]].concat());
    assert!(said.contains("profile ci-only runs only when everything is enforced"), "{said}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    // The remedy is enough.
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    fs::write(file.path(), "[require]\nlandlock = \"if_available\"\n").unwrap();
    for flags in [["--on-unavailable", "degrade"], ["--policy", file.path().to_str().unwrap()]] {
        let (output, report) = report(dir.path(), &flags, &["true"]);
        assert_eq!(output.status.code(), Some(0), "{flags:?}: {output:?}");
        let said = stderr(&output);
        assert!(said.contains("kennel: landlock off: this kernel has no Landlock"), "{flags:?}: {said}");
        assert_eq!(report["enforcement"]["level"], "partial", "{flags:?}: {report}");
        for name in ["landlock", "landlock_scope"] {
            assert_eq!(protection(&report, name).0, "off", "{flags:?}: {report}");
        }
        for name in
            ["user_namespace", "mount_namespace", "network_namespace", "root", "capabilities", "seccomp"]
        {
            assert_eq!(protection(&report, name).0, "enforced", "{flags:?}: {report}");
        }
    }
}

#[tokio::test]
async fn a_kernel_that_is_too_old_is_refused_clearly() {
    if !is_too_old() {
        return skip(module_path!(), "this kernel is new enough");
    }
    let dir = workspace();
    let version = Host::detect().kernel;
    let reason = format!("root: Linux {version} cannot make mounts read-only as a tree");
    let remedy = "use Linux 5.12 or later (mount_setattr)";
    for flags in [&[][..], &["--on-unavailable", "degrade"], &["--profile", "ci-only"], &["--net", "host"]] {
        assert_eq!(refused(dir.path(), flags), format!("kennel: {reason}\nkennel: hint: {remedy}"));
    }
    let policy = Policy::profile(Profile::RepoWrite, dir.path());
    let prepared = Session::prepare(&policy).await.map(drop);
    for error in [Sandbox::new(&policy).map(drop).unwrap_err(), prepared.unwrap_err()] {
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert_eq!((error.to_string(), error.remedy()), (reason.clone(), Some(remedy.into())));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
}
