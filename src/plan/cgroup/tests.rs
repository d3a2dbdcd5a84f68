//! Which cgroups Kennel makes, on hosts other than the test's.

use std::path::Path;

use Controller::{Cpu, Cpuset, Io, Memory, Pids};
use kennel_helper::control::{LONGEST_ROLE, Role};
use kennel_helper::wire::Field;
use proptest::prelude::*;

use super::*;
use crate::host::cgroups::CgroupDirectory;
use crate::plan::cgroup::place::{CgroupPlace, MissingCgroup, delegated, named};
use crate::plan::cgroup::{SHORTEST_QUOTA, quota};
use crate::policy::cgroup::IoLimits;
use crate::policy::profile::Profile;
use crate::policy::units::Size;

const USUAL: [Controller; 4] = [Memory, Pids, Cpu, Io];

/// A cgroup that the caller fully controls and is alone in.
fn spot(path: &str) -> CgroupDirectory {
    CgroupDirectory {
        path: path.into(),
        offers: USUAL.to_vec(),
        gives: Vec::new(),
        writable: true,
        reachable: true,
        holds_us: true,
        ..CgroupDirectory::default()
    }
}

fn foreign(path: &str) -> CgroupDirectory {
    CgroupDirectory { writable: false, reachable: false, holds_us: false, ..spot(path) }
}

fn top() -> CgroupDirectory {
    CgroupDirectory { is_root: true, gives: USUAL.to_vec(), ..foreign("/sys/fs/cgroup") }
}

fn facts(own: CgroupDirectory, parent: CgroupDirectory) -> Cgroups {
    Cgroups { top: Some(top()), own: Some(own), parent: Some(parent), of_v1: Vec::new() }
}

fn found(facts: &Cgroups, is_root: bool) -> Result<CgroupPlace, MissingCgroup> {
    delegated(facts, is_root, &[Memory])
}

fn lack(facts: &Cgroups, is_root: bool) -> String {
    found(facts, is_root).expect_err("no place").reason
}

#[test]
fn a_scope_of_its_own_is_left_and_used() {
    let place = found(&facts(spot("/c/u/k.scope"), foreign("/c/u")), false).expect("delegated");
    assert_eq!((&*place.path, place.leave), (Path::new("/c/u/k.scope"), true));
    assert_eq!((&*place.enable, &*place.controllers), (&USUAL[..], &USUAL[..]));
    // A controller that is enabled already is not enabled again.
    let giving = CgroupDirectory { gives: vec![Memory, Pids], holds_us: false, ..spot("/c/u") };
    assert_eq!(found(&facts(giving, foreign("/c")), false).expect("delegated").enable, [Cpu, Io]);
}

#[test]
fn a_group_with_others_in_it_is_no_place_and_says_so() {
    let crowded = CgroupDirectory { others: 3, ..spot("/c/u/k.scope") };
    let reason = lack(&facts(crowded, foreign("/c/u")), false);
    assert_eq!(reason, "/c/u/k.scope holds 3 other processes, so it can give no limits to groups in it");
}

#[test]
fn the_group_above_is_taken_only_where_it_is_delegated() {
    let own = CgroupDirectory { others: 1, ..spot("/c/u/k.service/main") };
    let above =
        |marked, is_edge| CgroupDirectory { marked, is_edge, holds_us: false, ..spot("/c/u/k.service") };
    for (marked, is_edge, taken) in [(true, false, true), (false, true, true), (false, false, false)] {
        let place = found(&facts(own.clone(), above(marked, is_edge)), false);
        assert_eq!(place.as_ref().is_ok_and(|place| !place.leave), taken, "{marked} {is_edge} {place:?}");
    }
    // Real root can write everywhere, so only the mark of the service manager counts.
    let own = CgroupDirectory { writable: true, ..own };
    assert!(
        found(&facts(own.clone(), above(true, false)), true).expect("marked").path.ends_with("k.service")
    );
    // A cgroup that this program moved itself into counts like the one that it left.
    let host = spot("/c/u/k.scope/kennel-host");
    let scope = CgroupDirectory { holds_us: false, ..spot("/c/u/k.scope") };
    let place =
        found(&facts(CgroupDirectory { others: 1, ..host }, scope), false).expect("it was left before");
    assert_eq!(place.path, Path::new("/c/u/k.scope"));
}

#[test]
fn real_root_has_the_top_as_it_is() {
    let top = CgroupDirectory { writable: true, reachable: true, ..top() };
    let own = CgroupDirectory { others: 1, ..spot("/sys/fs/cgroup/system.slice/sshd.service") };
    let facts = Cgroups { top: Some(top.clone()), ..facts(own, foreign("/sys/fs/cgroup/system.slice")) };
    let place = found(&facts, true).expect("root");
    assert_eq!((&*place.path, &*place.enable), (Path::new("/sys/fs/cgroup"), &[][..]));
    // Kennel enables no further controller at the top.
    let poor = CgroupDirectory { gives: vec![Pids], ..top.clone() };
    let without = Cgroups { top: Some(poor), ..facts.clone() };
    assert!(lack(&without, true).contains("has no memory controller"));
    // The root of a container's cgroup namespace is an ordinary cgroup.
    let container = CgroupDirectory { is_root: false, ..spot("/sys/fs/cgroup") };
    let inside =
        Cgroups { top: Some(container.clone()), own: Some(container), parent: None, of_v1: Vec::new() };
    assert!(found(&inside, true).expect("writable").leave);
    // An ordinary user does not get it.
    assert!(
        lack(&facts, false).ends_with("others, so it can give no limits to groups in it")
            || found(&facts, false).is_err()
    );
}

#[test]
fn hosts_without_it_say_what_they_have() {
    assert_eq!(lack(&Cgroups::default(), true), "no cgroup v2 hierarchy is mounted here");
    let reason = lack(&facts(foreign("/c/user.slice/s.scope"), foreign("/c/user.slice")), false);
    assert_eq!(reason, "/c/user.slice/s.scope is not delegated to the caller");
    let bare = CgroupDirectory { is_root: true, offers: Vec::new(), ..spot("/c/unified") };
    let hybrid =
        Cgroups { top: Some(bare.clone()), own: Some(bare), parent: None, of_v1: vec![Memory, Pids] };
    let lack = found(&hybrid, true).expect_err("hybrid");
    assert_eq!(lack.reason, "cgroup v1 has memory, pids here, and cgroup v2 at /c/unified does not");
    assert!(lack.remedy.to_string().contains("systemd.unified_cgroup_hierarchy=1"));
    // Delegation would not help an ordinary user there.
    let bare = CgroupDirectory { writable: false, reachable: false, marked: false, ..spot("/c/unified") };
    let bare = CgroupDirectory { is_root: true, offers: Vec::new(), ..bare };
    let facts = Cgroups { top: Some(bare.clone()), own: Some(bare), parent: None, of_v1: vec![Memory, Pids] };
    let lack = delegated(&facts, false, &[Memory]).expect_err("nothing to limit with");
    assert!(lack.reason.starts_with("cgroup v1 has memory, pids here"), "{lack:?}");
    assert!(lack.remedy.to_string().contains("systemd.unified_cgroup_hierarchy=1"));
}

#[test]
fn a_named_group_must_be_usable_and_nothing_else() {
    assert!(named(&spot("/c/ci"), false).is_ok());
    let lack = |spot| named(&spot, false).expect_err("not usable").reason;
    assert_eq!(lack(CgroupDirectory { writable: false, ..spot("/c/ci") }), "/c/ci is not writable");
    assert!(
        lack(CgroupDirectory { reachable: false, ..spot("/c/ci") })
            .starts_with("processes cannot be moved to /c/ci")
    );
    assert!(lack(CgroupDirectory { others: 2, ..spot("/c/ci") }).contains("holds 2 other processes"));
}

fn groups_of(
    limits: Limits,
    kind: SandboxKind,
    controllers: &[Controller],
    disks: &[(u64, u64)],
) -> CgroupPlan {
    let policy = Policy { limits, ..Policy::profile(Profile::RepoWrite, "/w") };
    let place = CgroupPlace {
        path: "/c".into(),
        enable: Vec::new(),
        controllers: controllers.to_vec(),
        leave: false,
    };
    plan(&policy, &Host::detect(), place, kind, disks.to_vec())
}

fn contents(settings: &[CgroupSetting]) -> Vec<String> {
    settings.iter().map(|setting| format!("{} {}", setting.file, setting.value)).collect()
}

fn all() -> Limits {
    let io = IoLimits { read: Some(Size::from_bytes(1 << 20)), write_ops: Some(9), ..IoLimits::default() };
    Limits {
        memory: Some(Size::from_bytes(64 << 20)),
        pids: Some(20),
        cpus: Some(1.5),
        cpuset: Some("0-1".to_owned()),
        io: Some(io),
        ..Limits::default()
    }
}

#[test]
fn one_shots_have_all_limits_to_themselves() {
    let groups = groups_of(all(), SandboxKind::OneShot, &Controller::ALL, &[(8, 0), (259, 1)]);
    let plan = groups.plan.expect("a plan");
    assert!(plan.shared.is_empty());
    let expected = [
        "memory.oom.group 1",
        "memory.swap.max 0",
        "memory.max 67108864",
        "pids.max 21",
        "cpu.max 150000 100000",
        "cpuset.cpus 0-1",
        "io.max 8:0 rbps=1048576 wiops=9",
        "io.max 259:1 rbps=1048576 wiops=9",
    ];
    assert_eq!(contents(&plan.leaf), expected);
}

#[test]
fn commands_of_a_session_share_theirs_and_are_killed_one_by_one() {
    let groups = groups_of(all(), SandboxKind::Session { ready: 2 }, &[Memory, Pids], &[]);
    assert!(groups.enforces(Memory) && !groups.enforces(Io) && !groups.enforces(Cpuset));
    let plan = groups.plan.clone().expect("a plan");
    assert_eq!(contents(&plan.shared), ["memory.swap.max 0", "memory.max 67108864", "pids.max 28"]);
    assert_eq!(contents(&plan.leaf), ["memory.oom.group 1", "pids.max 21"]);
    let wanted = Limits {
        memory: Some(Size::from_bytes(1 << 20)),
        pids: Some(3),
        cpus: Some(1.0),
        ..Limits::default()
    };
    let tight = groups.for_command(&all(), &wanted);
    assert_eq!(contents(&tight), ["memory.swap.max 0", "memory.max 1048576", "pids.max 4"]);
    assert!(CgroupPlan::default().for_command(&all(), &wanted).is_empty());
}

#[test]
fn processors_are_held_by_those_who_asked_and_io_where_there_is_a_disk() {
    let limits = Limits { cpuset: None, ..all() };
    let groups = groups_of(limits, SandboxKind::OneShot, &Controller::ALL, &[]);
    assert!(!groups.enforces(Cpuset) && !groups.enforces(Io));
    assert!(groups.lack(Io).expect("a reason").reason.contains("block device"));
    assert!(groups.lack(Cpuset).expect("a reason").reason.contains("no cpuset controller"));
}

#[test]
fn a_reaper_is_told_all_in_one_message() {
    let mut message = Vec::new();
    let (steps, name) = (reaper(&Host { seccomp: true, ..Host::detect() }), c"kennel-0123456789abcdef");
    Role::Reaper { namespaces: &steps.bytes, name }.put(&mut message);
    assert!(message.len() <= LONGEST_ROLE, "{}", message.len());
}

#[test]
fn quotas_are_at_least_what_the_kernel_takes() {
    assert_eq!(quota(1.5), (150_000, 100_000));
    assert_eq!(quota(0.005), (5_000, 1_000_000));
    assert_eq!(quota(0.000_001), (1_000, 1_000_000));
    assert_eq!(quota(4096.0), (409_600_000, 100_000));
}

proptest! {
    #[test]
    fn no_quota_is_refused_by_the_kernel(cpus in 0.000_001f64..4096.0) {
        let (quota, period) = quota(cpus);
        prop_assert!(quota >= SHORTEST_QUOTA && (1_000..=1_000_000).contains(&period));
        prop_assert!((quota as f64 / period as f64 - cpus).abs() <= f64::max(0.001, cpus * 0.01));
    }

    /// On any host, cgroups are made only in a writable cgroup, and no other process is in the way.
    #[test]
    fn nothing_is_assumed(own in spots("/t/p/o"), parent in spots("/t/p"), top in spots("/t"), is_root: bool) {
        let facts = Cgroups { top: Some(top), own: Some(own), parent: Some(parent), of_v1: Vec::new() };
        if let Ok(place) = delegated(&facts, is_root, &[Memory, Pids]) {
            let all = [&facts.own, &facts.parent, &facts.top];
            let spot = all.into_iter().flatten().find(|spot| spot.path == place.path).expect("one of them");
            prop_assert!(spot.writable);
            prop_assert!(spot.is_root || spot.others == 0);
            prop_assert!(place.controllers.contains(&Memory) || place.controllers.contains(&Pids));
            prop_assert!(!spot.is_root || place.enable.is_empty());
        }
    }
}

fn spots(path: &'static str) -> impl Strategy<Value = CgroupDirectory> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let lists = (
        proptest::sample::subsequence(USUAL.to_vec(), 0..=4),
        proptest::sample::subsequence(USUAL.to_vec(), 0..=4),
    );
    (flags, lists, 0usize..2, "(/kennel-host)?").prop_map(move |(flags, (offers, gives), others, name)| {
        let path = format!("{path}{name}");
        let (writable, reachable, marked, is_root, is_edge, holds_us) = flags;
        CgroupDirectory {
            path: path.into(),
            offers,
            gives,
            writable,
            reachable,
            marked,
            is_root,
            is_edge,
            others,
            holds_us,
        }
    })
}
