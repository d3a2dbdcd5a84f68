//! Policies compiled for hosts other than the test's. A missing protection is refused if it is required, and
//! reported if it is optional. Every plan that compiles can be read by the inside.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kennel_helper::control::LONGEST_ROLE;
use kennel_helper::plan::{Step, entries};
use proptest::prelude::*;

use crate::caller::Caller;
use crate::host::fixtures::host;
use crate::host::{Host, Version, fixtures};
use crate::plan::PlannedStep;
use crate::plan::compile::{Compiled, begin, compile};
use crate::policy::Policy;
use crate::policy::mount::Mount;
use crate::policy::network::NetworkMode;
use crate::policy::overlay::Overlay;
use crate::policy::profile::{OnUnavailable, Profile, TmpLife};
use crate::policy::require::Requirement;
use crate::report::enforcement::{Level, Protection, State};
use crate::report::error::Error;
use crate::sys::birth::Users;
use crate::view::inputs::SandboxKind;
use crate::view::{Access, Node};

fn caller(home: &Path) -> Caller {
    Caller {
        home: home.to_owned(),
        homes: vec![home.to_owned()],
        environment: BTreeMap::from([("PATH".into(), "/usr/bin".into()), ("SECRET".into(), "x".into())]),
        ..fixtures::caller(home)
    }
}

/// A home directory with a workspace `repo`.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a temporary directory");
    fs::create_dir(home.path().join("repo")).expect("a directory");
    home
}

fn compiled(policy: &Policy, host: &Host, home: &Path) -> Result<Compiled, Error> {
    compile(policy, host, &caller(home), SandboxKind::OneShot)
}

fn steps(compiled: &Compiled) -> Vec<Step<'_>> {
    let sections =
        [&compiled.steps.namespaces, &compiled.steps.setup, &compiled.steps.worker, &compiled.steps.walls]
            .map(|section| &section.bytes);
    sections
        .into_iter()
        .flat_map(|bytes| entries(bytes))
        .map(|entry| entry.expect("a complete entry").step)
        .collect()
}

#[test]
fn steps_come_in_the_order_that_the_kernel_needs() {
    let home = home();
    let policy = Policy::profile(Profile::RepoWrite, home.path().join("repo"));
    let compiled = compiled(&policy, &host(), home.path()).expect("compiles");
    let steps = steps(&compiled);
    let at = |wanted: fn(&Step<'_>) -> bool| steps.iter().position(wanted).expect("the step is there");
    let order = [
        at(|step| matches!(step, Step::Write { .. })),
        at(|step| matches!(step, Step::Unshare { .. })),
        at(|step| matches!(step, Step::NewRoot { .. })),
        at(|step| matches!(step, Step::PivotRoot {})),
        at(|step| matches!(step, Step::SetAttributes { .. })),
        at(|step| matches!(step, Step::LandlockRuleset { .. })),
        at(|step| matches!(step, Step::DropCapabilities { .. })),
        at(|step| matches!(step, Step::Seccomp { .. } | Step::SeccompAsking { .. })),
    ];
    assert!(order.is_sorted(), "{order:?}");
    assert!(
        matches!(steps.last(), Some(Step::Seccomp { .. } | Step::SeccompAsking { .. })),
        "the filter is the last step"
    );
    let restricted =
        entries(&compiled.steps.payload.bytes).flatten().any(|e| matches!(e.step, Step::LandlockRestrict {}));
    assert!(restricted, "the payload enters the Landlock domain");
}

#[test]
fn a_host_without_landlock_is_refused_or_reported() {
    let home = home();
    let bare = Host { landlock_abi: 0, ..host() };
    let policy = Policy::profile(Profile::RepoWrite, home.path().join("repo"));
    match compiled(&policy, &bare, home.path()) {
        Err(error @ Error::Unavailable { protection: Protection::Landlock, .. }) => {
            assert!(error.remedy().is_some_and(|remedy| remedy.to_string().contains("lsm=")), "{error:?}");
        }
        other => panic!("{other:?}"),
    }
    let policy = policy.require(Protection::Landlock, Requirement::IfAvailable);
    let compiled = compiled(&policy, &bare, home.path()).expect("optional");
    assert_eq!(compiled.enforcement.level(), Level::Partial);
    assert_eq!(compiled.enforcement.get(Protection::Landlock).map(|entry| entry.state), Some(State::Off));
    assert!(!steps(&compiled).iter().any(|step| matches!(step, Step::LandlockRuleset { .. })));
}

#[test]
fn degrade_makes_walls_optional_but_not_the_sandbox() {
    let home = home();
    let policy =
        Policy::profile(Profile::RepoWrite, home.path().join("repo")).on_unavailable(OnUnavailable::Degrade);
    let poor = Host { landlock_abi: 0, seccomp: false, ..host() };
    let compiled = compiled(&policy, &poor, home.path()).expect("degrades");
    assert_eq!(compiled.enforcement.get(Protection::Seccomp).map(|entry| entry.state), Some(State::Off));
    for entry in entries(&compiled.steps.setup.bytes).flatten() {
        if matches!(entry.step, Step::NewRoot { .. } | Step::PivotRoot {} | Step::DropCapabilities { .. }) {
            assert!(!entry.optional, "{:?}", entry.step);
        }
    }
}

#[test]
fn an_old_kernel_is_refused() {
    let home = home();
    let old = Host { kernel: Version(5, 10), landlock_abi: 0, ..host() };
    let policy = Policy::profile(Profile::RepoWrite, home.path().join("repo"));
    let error = compiled(&policy, &old, home.path()).expect_err("refused");
    assert_eq!(error.chain(), "root: Linux 5.10 cannot make mounts read-only as a tree");
    assert!(error.remedy().is_some_and(|remedy| remedy.to_string().contains("5.12")));
}

#[test]
fn only_root_may_lack_a_user_namespace_and_only_if_the_policy_allows_it() {
    let home = home();
    let refusing = Host { user_namespaces: false, ..host() };
    let degrade =
        Policy::profile(Profile::RepoWrite, home.path().join("repo")).on_unavailable(OnUnavailable::Degrade);
    let refuse = degrade.clone().on_unavailable(OnUnavailable::Refuse);
    let root = Caller { uid: 0, gid: 0, ..caller(home.path()) };
    let user = caller(home.path());
    for (policy, host, caller, without) in [
        (&degrade, &refusing, &root, true),
        (&degrade, &refusing, &user, false),
        (&degrade, &host(), &root, false),
        (&refuse, &refusing, &root, false),
    ] {
        for kind in [SandboxKind::OneShot, SandboxKind::Session { ready: 2 }] {
            let compiled = compile(policy, host, caller, kind).expect("compiles");
            let options = crate::view::inputs::spawn_options(policy, host, caller);
            assert_eq!(options.users == Users::Callers, without);
            // The outside writes root's maps, which have a second id.
            let by_outside = options.users == Users::Own && options.reader.is_some();
            assert_eq!(options.reader.is_some(), caller.uid == 0);
            let writes = steps(&compiled).iter().any(|step| matches!(step, Step::Write { .. }));
            assert!(!(writes && by_outside));
            let maps = writes || by_outside;
            let separate = steps(&compiled).iter().any(|step| matches!(step, Step::Separate {}));
            assert_eq!((maps, separate), (!without, without));
            let state = compiled.enforcement.get(Protection::UserNamespace).expect("reported").state;
            assert_eq!(state, if without { State::Off } else { State::Enforced });
        }
    }
}

#[test]
fn without_a_user_namespace_no_step_that_protects_the_host_is_optional() {
    let home = home();
    let refusing = Host { user_namespaces: false, ..host() };
    let root = Caller { uid: 0, gid: 0, ..caller(home.path()) };
    let policy =
        Policy::profile(Profile::RepoWrite, home.path().join("repo")).on_unavailable(OnUnavailable::Degrade);
    for kind in [SandboxKind::OneShot, SandboxKind::Session { ready: 2 }] {
        let compiled = compile(&policy, &refusing, &root, kind).expect("compiles");
        let sections = [
            &compiled.steps.namespaces,
            &compiled.steps.setup,
            &compiled.steps.worker,
            &compiled.steps.walls,
        ];
        for entry in sections.into_iter().flat_map(|section| entries(&section.bytes)).flatten() {
            let firm = matches!(
                entry.step,
                Step::Unshare { .. } | Step::Separate {} | Step::Seccomp { .. } | Step::SeccompAsking { .. }
            );
            assert!(!firm || !entry.optional, "{:?}", entry.step);
        }
        // Mounts stop to propagate before the first is made.
        let steps = steps(&compiled);
        let at = |wanted: fn(&Step<'_>) -> bool| steps.iter().position(wanted).expect("there");
        let separate = at(|step| matches!(step, Step::Separate {}));
        let mounts = libc::CLONE_NEWNS.cast_unsigned();
        assert!(matches!(steps[separate - 1], Step::Unshare { flags } if flags == mounts));
        assert!(separate < at(|step| matches!(step, Step::NewRoot { .. })));
    }
    let bare = Host { seccomp: false, ..refusing };
    let error = compile(&policy, &bare, &root, SandboxKind::OneShot).expect_err("no filter");
    assert!(matches!(error, Error::Unavailable { protection: Protection::Seccomp, .. }), "{error:?}");
    assert!(error.remedy().is_some_and(|remedy| remedy.to_string().contains("user namespaces")));
}

#[test]
fn landlock_handles_only_rights_of_the_abi() {
    let home = home();
    let policy = Policy::profile(Profile::RepoWrite, home.path().join("repo"));
    let rights = |abi: u32| {
        let compiled =
            compiled(&policy, &Host { landlock_abi: abi, ..host() }, home.path()).expect("compiles");
        steps(&compiled)
            .iter()
            .find_map(|step| match *step {
                Step::LandlockRuleset { fs, scoped, .. } => Some((fs, scoped)),
                _ => None,
            })
            .expect("a ruleset")
    };
    // include/uapi/linux/landlock.h: 13 rights at first, then REFER, TRUNCATE, IOCTL_DEV.
    assert_eq!(rights(1), (0x1fff, 0));
    assert_eq!(rights(2), (0x3fff, 0));
    assert_eq!(rights(3), (0x7fff, 0));
    assert_eq!(rights(5), (0xffff, 0));
    assert_eq!(rights(6), (0xffff, 3));
    assert_eq!(rights(7), (0xffff, 3));
}

#[test]
fn sockets_of_the_proxy_are_in_the_first_message() {
    let home = home();
    let mut policy = Policy::profile(Profile::RepoWrite, home.path().join("repo"))
        .allow("crates.io:443")
        .allow("git.example:22")
        .allow("db.example:5432");
    assert_eq!(policy.effective_network(), NetworkMode::Proxy);
    let listens = |policy: &Policy| -> Vec<(u32, u32)> {
        let compiled = compiled(policy, &host(), home.path()).expect("compiles");
        assert!(compiled.steps.namespaces.bytes.len() + 64 < LONGEST_ROLE);
        let listen = |index| match compiled.steps.namespaces.step(index) {
            Some(PlannedStep { step: Step::Listen { kind, port, .. }, .. }) => Some(Some((kind, port))),
            Some(PlannedStep { step: Step::ListenEverywhere { port }, .. }) => Some(Some((1, port))),
            Some(_) => Some(None),
            None => None,
        };
        (0..).map_while(listen).flatten().collect()
    };
    // A port above 1023 may belong to a server of the command.
    assert_eq!(listens(&policy), [(1, 3128), (2, 53), (1, 80), (1, 443), (1, 22)]);
    policy.network.transparent = Some(false);
    assert_eq!(listens(&policy), [(1, 3128)]);
    policy.network.transparent = None;
    policy.network.allow = (1..200).map(|port| format!("a.example:{port}")).collect();
    assert_eq!(listens(&policy).len(), 14);
    policy.network.allow.extend((1000..1200).map(|port| format!("localhost:{port}")));
    assert_eq!(listens(&policy).len(), 14 + 32);
    policy.network.allow.clear();
    assert_eq!(listens(&policy), [(1, 3128), (2, 53)], "nothing is allowed, so no name has an address");
    policy.network.mode = Some(NetworkMode::Proxy);
    assert_eq!(listens(&policy), [(1, 3128), (2, 53), (1, 80), (1, 443)], "a callback may allow something");
    policy.network.mode = Some(NetworkMode::None);
    assert!(listens(&policy).is_empty());
}

#[test]
fn a_proxy_requires_a_network_namespace() {
    let home = home();
    let mut policy =
        Policy::profile(Profile::RepoWrite, home.path().join("repo")).on_unavailable(OnUnavailable::Degrade);
    let optional = |policy: &Policy| {
        let compiled = compiled(policy, &host(), home.path()).expect("compiles");
        let mut namespaces = entries(&compiled.steps.namespaces.bytes).flatten();
        let wanted = |step: &Step<'_>| matches!(step, Step::Unshare { flags } if *flags == libc::CLONE_NEWNET.cast_unsigned());
        namespaces.find(|entry| wanted(&entry.step)).expect("a network namespace").optional
    };
    assert!(optional(&policy), "as the policy says");
    policy.network.allow.push("a.example:443".to_owned());
    assert!(!optional(&policy), "with a proxy the network namespace is required");
}

#[test]
fn ports_of_the_host_are_restricted_by_landlock_or_refused() {
    let home = home();
    let policy = Policy::profile(Profile::FullDev, home.path().join("repo")).allow("*:443");
    let ruleset = |abi| {
        let compiled = compiled(&policy, &Host { landlock_abi: abi, ..host() }, home.path())?;
        let ports: Vec<u64> = (0..)
            .map_while(|index| compiled.steps.walls.step(index))
            .filter_map(|it| if let Step::LandlockPort { port, .. } = it.step { Some(port) } else { None })
            .collect();
        Ok::<_, Error>((ports, compiled.enforcement.get(Protection::LandlockNetwork).cloned()))
    };
    let (ports, entry) = ruleset(7).expect("compiles");
    assert_eq!((ports, entry.map(|entry| entry.state)), (vec![443], Some(State::Enforced)));
    let error = ruleset(3).expect_err("ABI 3 knows no ports").to_string();
    assert!(error.contains("landlock_network") && error.contains("6.7"), "{error}");
}

#[test]
fn port_rules_need_seccomp() {
    let home = home();
    let mut policy = Policy::profile(Profile::FullDev, home.path().join("repo")).allow("*:443");
    policy.require.set(Protection::Seccomp, Requirement::IfAvailable);
    let of_filters = |policy: &Policy| {
        let compiled = compiled(policy, &host(), home.path()).expect("compiles");
        let sections = [compiled.steps.setup, compiled.steps.walls];
        let entries = sections.iter().flat_map(|section| entries(&section.bytes)).flatten();
        let filters =
            entries.filter(|entry| matches!(entry.step, Step::Seccomp { .. } | Step::SeccompAsking { .. }));
        filters.map(|entry| entry.optional).collect::<Vec<_>>()
    };
    let bare = Host { seccomp: false, ..host() };
    let error = compiled(&policy, &bare, home.path()).expect_err("required").to_string();
    assert!(error.contains("landlock_network") && error.contains("Fast Open"), "{error}");
    assert_eq!(of_filters(&policy), [false], "required port rules need the filter");
    policy.require.set(Protection::LandlockNetwork, Requirement::IfAvailable);
    let enforcement = compiled(&policy, &bare, home.path()).expect("compiles").enforcement;
    let entry = enforcement.get(Protection::LandlockNetwork).expect("there");
    assert!(entry.state == State::Degraded && entry.detail.contains("Fast Open"), "{entry:?}");
    assert_eq!(of_filters(&policy), [true]);
    // A filter that the kernel refuses counts like one that it lacks.
    let mut enforcement = compiled(&policy, &host(), home.path()).expect("compiles").enforcement;
    let filter = PlannedStep { protection: Protection::Seccomp, step: Step::Seccomp { program: &[] } };
    crate::launch::prepared::step_skipped(Some(filter), libc::EINVAL, &mut enforcement);
    let entry = enforcement.get(Protection::LandlockNetwork).expect("there");
    assert_eq!(entry.state, State::Degraded, "{entry:?}");
    // An entry that is off stays off.
    let older = Host { landlock_abi: 3, ..bare };
    let enforcement = compiled(&policy, &older, home.path()).expect("compiles").enforcement;
    assert_eq!(enforcement.get(Protection::LandlockNetwork).map(|entry| entry.state), Some(State::Off));
}

#[test]
fn a_toolchain_variable_cannot_show_secrets() {
    let home = home();
    for name in [".ssh", ".cargo"] {
        fs::create_dir(home.path().join(name)).expect("a directory");
    }
    let mut caller = caller(home.path());
    for (name, value) in [("NVM_DIR", home.path().join(".ssh")), ("ASDF_DATA_DIR", home.path().to_owned())] {
        caller.environment.insert(name.into(), value.into());
    }
    let policy = Policy::profile(Profile::RepoWrite, home.path().join("repo"));
    let compiled = compile(&policy, &host(), &caller, SandboxKind::OneShot).expect("compiles");
    for step in steps(&compiled) {
        if let Step::Bind { source, .. } = step {
            let source = source.to_string_lossy().into_owned();
            assert!(!source.ends_with("/.ssh") && Path::new(&source) != home.path(), "{source}");
        }
    }
}

#[test]
fn the_environment_is_scrubbed_by_default() {
    let home = home();
    let policy = Policy::profile(Profile::RepoWrite, home.path().join("repo"));
    let names = |policy: &Policy| -> Vec<String> {
        let compiled = compiled(policy, &host(), home.path()).expect("compiles");
        compiled.commands.environment.0.keys().map(|name| name.to_string_lossy().into_owned()).collect()
    };
    let proxy = ["http_proxy", "https_proxy", "no_proxy", "npm_config_fetch_retries"];
    let retries = ["CARGO_NET_RETRY", "PIP_RETRIES", "UV_HTTP_RETRIES", "YARN_HTTP_RETRY"];
    let git = ["GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_KEY_1"];
    let values = ["GIT_CONFIG_VALUE_0", "GIT_CONFIG_VALUE_1"];
    let mut expected = [&["HOME", "PATH", "PROC_ROOT"][..], &proxy, &retries, &git, &values].concat();
    expected.sort_unstable();
    assert_eq!(names(&policy), expected);
    assert!(names(&policy.pass_env("SECRET")).contains(&"SECRET".to_owned()));
}

fn targets() -> impl Strategy<Value = String> {
    proptest::collection::vec("[a-c]", 1..4).prop_map(|parts| format!("/{}", parts.join("/")))
}

fn mounts() -> impl Strategy<Value = Mount> {
    prop_oneof![
        targets().prop_map(|target| Mount::ReadOnly { source: "/usr".into(), target: Some(target.into()) }),
        targets()
            .prop_map(|target| Mount::ReadWrite { source: "/etc/hosts".into(), target: Some(target.into()) }),
        targets().prop_map(|target| Mount::Tmpfs { target: target.into(), size: None }),
        targets().prop_map(|path| Mount::Mask { path: path.into() }),
        targets().prop_map(|target| Mount::File {
            target: target.into(),
            contents: "x".into(),
            executable: false
        }),
        targets().prop_map(|target| Mount::Symlink { target: target.into(), points_to: "/tmp".into() }),
        targets().prop_map(|target| Mount::Proc { target: target.into() }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any combination of grants gives a plan that can be read, or an error that names a path.
    #[test]
    fn any_mounts_compile_or_are_refused(mounts in proptest::collection::vec(mounts(), 0..6)) {
        let home = home();
        let mut policy = Policy::profile(Profile::RepoWrite, home.path().join("repo"));
        policy.mounts = mounts;
        match compiled(&policy, &host(), home.path()) {
            Ok(compiled) => {
                let mut made = std::collections::BTreeSet::new();
                for step in steps(&compiled) {
                    if let Step::MakeDir { path, .. } | Step::MakeFile { path, .. } | Step::MakeMountPoint { path } = step {
                        prop_assert!(made.insert(path.to_owned()), "{path:?} is made twice");
                    }
                }
            }
            Err(error) => prop_assert!(error.chain().contains('/'), "{}", error.chain()),
        }
    }
}

fn of_session(policy: &Policy, home: &Path) -> Compiled {
    compile(policy, &host(), &caller(home), SandboxKind::Session { ready: 2 }).expect("compiles")
}

fn section(bytes: &[u8]) -> Vec<Step<'_>> {
    entries(bytes).map(|entry| entry.expect("a complete entry").step).collect()
}

#[test]
fn a_zygote_cannot_gain_privileges_and_keeps_those_that_workers_need() {
    let home = home();
    let policy = Policy::profile(Profile::RepoWrite, home.path().join("repo"));
    let compiled = of_session(&policy, home.path());
    let setup = section(&compiled.steps.setup.bytes);
    let at = |wanted: fn(&Step<'_>) -> bool| setup.iter().position(wanted).expect("the step is there");
    let order = [
        at(|step| matches!(step, Step::PivotRoot {})),
        at(|step| matches!(step, Step::DropBoundingSet {})),
        at(|step| matches!(step, Step::Seccomp { .. } | Step::SeccompAsking { .. })),
    ];
    assert!(order.is_sorted(), "{order:?}");
    assert!(
        !setup.iter().any(|step| matches!(step, Step::DropCapabilities { .. })),
        "workers need the capabilities"
    );
}

#[test]
fn a_worker_gets_its_own_directories_before_its_walls() {
    let home = home();
    let policy = Policy::profile(Profile::RepoWrite, home.path().join("repo"));
    let compiled = of_session(&policy, home.path());
    let worker = section(&compiled.steps.worker.bytes);
    assert!(
        matches!(worker.first(), Some(Step::SetEffective { has: 1, .. })),
        "others may close directories on its way"
    );
    assert!(matches!(worker.get(1), Some(Step::Unshare { .. })));
    assert!(
        matches!(worker.get(2), Some(Step::EnterRoot {})),
        "older descriptors refer to the old mount namespace"
    );
    let mounted = |wanted: &[u8]| {
        worker.iter().any(|step| matches!(step, Step::Mount { kind, .. } if kind.to_bytes() == wanted))
    };
    assert!(mounted(b"proc") && mounted(b"devpts") && mounted(b"tmpfs"));
    let walls = section(&compiled.steps.walls.bytes);
    assert!(
        matches!(walls.last(), Some(Step::Seccomp { .. } | Step::SeccompAsking { .. })),
        "the filter is the last step"
    );
    assert!(walls.iter().any(|step| matches!(step, Step::DropCapabilities { .. })));
    let one_shot = self::compiled(&policy, &host(), home.path()).expect("compiles");
    assert!(one_shot.steps.worker.bytes.is_empty(), "PID 1 of a one-shot needs no renewal");
}

#[test]
fn of_shared_directories_only_shared_memory_is_renewed() {
    let home = home();
    let policy = Policy::profile(Profile::RepoWrite, home.path().join("repo")).tmp(TmpLife::Session);
    let compiled = of_session(&policy, home.path());
    let bound: Vec<Vec<u8>> = section(&compiled.steps.worker.bytes)
        .iter()
        .filter_map(|step| match step {
            Step::BindOwn { target, .. } | Step::Move { to: target, .. } => Some(target.to_bytes().to_vec()),
            _ => None,
        })
        .filter(|target| !target.starts_with(b"proc/"))
        .collect();
    assert_eq!(bound, [b"dev/shm".to_vec()]);
}

#[test]
fn the_first_message_holds_every_first_step() {
    let home = home();
    let mut policy = Policy::profile(Profile::RepoWrite, home.path().join("repo"));
    policy.hostname = "h".repeat(64);
    let caller = Caller { uid: u32::MAX - 1, gid: u32::MAX - 1, ..caller(home.path()) };
    for kind in [SandboxKind::OneShot, SandboxKind::Session { ready: 2 }] {
        let first = begin(&policy, &host(), &caller, kind).expect("compiles").namespaces;
        assert!(first.bytes.len() + 16 <= kennel_helper::control::LONGEST_ROLE, "{}", first.bytes.len());
    }
}

#[test]
fn an_overlay_needs_a_kernel_that_can_keep_its_changes() {
    let home = home();
    let policy = Policy::profile(Profile::NoNetwork, home.path().join("repo")).overlay(Overlay::default());
    let old = Host { kernel: Version(6, 5), ..host() };
    let error = compiled(&policy, &old, home.path()).expect_err("refused");
    assert!(error.remedy().is_some_and(|remedy| remedy.to_string().contains("overlay.upper")), "{error:?}");
    compiled(&policy, &Host { kernel: Version(6, 6), ..host() }, home.path()).expect("compiles");
    let upper = tempfile::tempdir().expect("a temporary directory");
    std::fs::set_permissions(upper.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("set");
    let uid = nix::unistd::geteuid().as_raw();
    let own = Caller { uid, ..caller(home.path()) };
    let policy = policy.overlay(Overlay { upper: Some(upper.path().into()), ..Overlay::default() });
    compile(&policy, &old, &own, SandboxKind::OneShot).expect("compiles");
    let other = Caller { uid: uid + 1, ..own };
    let error = compile(&policy, &old, &other, SandboxKind::OneShot).expect_err("refused").chain();
    assert!(error.contains("belongs to another user"), "{error}");
}

#[test]
fn nothing_below_an_overlay_is_bound_from_the_host() {
    let home = home();
    let repo = home.path().canonicalize().expect("a directory").join("repo");
    fs::create_dir_all(repo.join(".git/hooks")).expect("a directory");
    fs::write(repo.join(".git/config"), "").expect("a file");
    let policy = Policy::profile(Profile::NoNetwork, &repo).overlay(Overlay::default()).protect("ci");
    let compiled =
        compile(&policy, &host(), &caller(home.path()), SandboxKind::Session { ready: 1 }).expect("compiles");
    let steps = steps(&compiled);
    let at = |path: &Path| crate::plan::relative(path);
    let position = |wanted: &dyn Fn(&Step<'_>) -> bool| steps.iter().position(wanted).expect("a step");
    let mounted = position(&|step| matches!(step, Step::Mount { kind, .. } if *kind == c"overlay"));
    let dropped = position(&|step| matches!(step, Step::DropCapability { capability: 1 }));
    let moved = position(&|step| matches!(step, Step::Move { to, .. } if *to == &*at(&repo)));
    let pinned =
        position(&|step| matches!(step, Step::Pin { target, .. } if *target == &*at(&repo.join(".git"))));
    assert!(mounted < dropped && dropped < moved && moved < pinned);
    for step in &steps {
        if let Step::Bind { target, .. } = step {
            assert!(!target.to_bytes().starts_with(at(&repo).to_bytes()), "{target:?}");
        }
    }
    let merged = compiled.overlay.expect("an overlay");
    assert!(merged.never.len() >= 5 && compiled.watches.is_empty(), "{:?}", merged.never);
}

#[test]
fn old_kernels_have_empty_caches_and_read_only_toolchains() {
    let home = home();
    for directory in [".cargo/registry", ".cargo/bin"] {
        fs::create_dir_all(home.path().join(directory)).expect("a directory");
    }
    let policy = Policy::profile(Profile::RepoWrite, home.path().join("repo"));
    let node = |kernel, directory: &str| {
        let compiled = compiled(&policy, &Host { kernel, ..host() }, home.path()).expect("a plan");
        let said: Vec<String> = compiled.enforcement.notes().iter().map(|note| note.text.clone()).collect();
        let place = compiled.view.get(&home.path().join(directory)).expect("a place");
        (place.node.clone(), said)
    };
    let (registry, said) = node(Version(6, 5), ".cargo/registry");
    assert!(matches!(registry, Node::Private { .. }), "{registry:?}");
    assert!(said.len() == 1 && said[0].contains("caches start empty"), "{said:?}");
    let (programs, _) = node(Version(6, 5), ".cargo/bin");
    assert!(matches!(programs, Node::Bind { access: Access::Read, .. }), "{programs:?}");
    for directory in [".cargo/registry", ".cargo/bin"] {
        let (node, said) = node(Version(6, 6), directory);
        assert!(matches!(node, Node::Layered { layer: 0, .. }) && said.is_empty(), "{node:?} {said:?}");
    }
}
