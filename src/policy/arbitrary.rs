//! Random policies for property tests: any value of each type, valid or not, that JSON can express. Tests of
//! the package `kennel-adapters` have this file too, so it imports only public names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use kennel::{
    Audit, Caches, Cgroup, Env, EnvBase, ForeignProxy, Git, ImageUpper, IoLimits, Isolation, Limits, Mount,
    Network, NetworkLimits, NetworkMode, OnUnavailable, Overlay, Policy, Profile, Requirement, Requirements,
    Size, Span, TmpLife, Toolchains,
    report::{Protection, Wording},
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Any policy.
pub(crate) fn policies() -> impl Strategy<Value = Policy> {
    let shown = (one_of(Toolchains::ALL), one_of(Caches::ALL));
    let choices = (
        one_of(Profile::ALL),
        shown,
        (one_of(TmpLife::ALL), option::of(one_of(Isolation::ALL)), warm()),
        one_of(OnUnavailable::ALL),
    );
    let paths = (path(), vec(path(), 0..3), option::of(path()), option::of(audit()), vec(mount(), 0..4));
    let upper = option::of(path().prop_map(ImageUpper::from));
    let root = ((option::of(path()), upper), option::of(".{0,8}"), option::of(".{0,8}"));
    let rest = (".{0,10}", any::<bool>(), option::of(overlay()), one_of(Git::ALL), root);
    let parts = (network(), env(), limits(), requirements(), rest);
    (choices, paths, parts).prop_map(|(choices, paths, parts)| {
        let (profile, (toolchains, caches), (tmp, isolation, warm), on_unavailable) = choices;
        let (workspace, protect, cwd, audit, mounts) = paths;
        let (
            network,
            env,
            limits,
            require,
            (hostname, explain, overlay, git, ((root, image_upper), user, image)),
        ) = parts;
        Policy {
            profile,
            workspace,
            image,
            root,
            user,
            image_upper,
            mounts,
            network,
            env,
            limits,
            toolchains,
            caches,
            tmp,
            isolation,
            warm,
            git,
            protect,
            require,
            on_unavailable,
            hostname,
            cwd,
            overlay,
            audit,
            explain,
            // The text of a policy has none of these.
            learn: false,
            files: Vec::new(),
            notes: Vec::new(),
            wording: Wording::default(),
        }
    })
}

fn one_of<T: Copy + std::fmt::Debug + 'static, const N: usize>(all: [T; N]) -> impl Strategy<Value = T> {
    select(all.to_vec())
}

fn warm() -> impl Strategy<Value = BTreeMap<String, Vec<String>>> {
    btree_map("python3|.{0,6}", vec("json|.{0,4}", 0..2), 0..2)
}

fn path() -> impl Strategy<Value = PathBuf> {
    prop_oneof!["(/[a-c.]{1,3}){1,3}", "/(proc|sys|dev)(/[a-c])?", ".{0,8}"].prop_map(PathBuf::from)
}

fn overlay() -> impl Strategy<Value = Overlay> {
    (option::of(path()), option::of(size())).prop_map(|(upper, size)| Overlay { upper, size, keeps: false })
}

fn audit() -> impl Strategy<Value = Audit> {
    (path(), any::<[bool; 3]>()).prop_map(|(path, [fail_closed, chain, arguments])| Audit {
        path,
        fail_closed,
        chain,
        arguments,
    })
}

fn mount() -> impl Strategy<Value = Mount> {
    let bind = || (path(), option::of(path()));
    prop_oneof![
        bind().prop_map(|(source, target)| Mount::ReadOnly { source, target }),
        bind().prop_map(|(source, target)| Mount::ReadWrite { source, target }),
        (path(), option::of(size())).prop_map(|(target, size)| Mount::Tmpfs { target, size }),
        path().prop_map(|path| Mount::Mask { path }),
        (path(), ".{0,20}", any::<bool>()).prop_map(|(target, contents, executable)| Mount::File {
            target,
            contents,
            executable
        }),
        (path(), path()).prop_map(|(target, points_to)| Mount::Symlink { target, points_to }),
        path().prop_map(|path| Mount::Device { path }),
        path().prop_map(|target| Mount::Proc { target }),
    ]
}

fn network() -> impl Strategy<Value = Network> {
    let rules = || vec(prop_oneof!["[a-z]{1,5}:[0-9]{1,5}", ".{0,10}"], 0..3);
    let publish = vec(prop_oneof!["[0-9]{1,5}(:[0-9]{1,5})?", ".{0,10}"], 0..3);
    let lists = (rules(), rules(), vec(".{0,10}", 0..2), vec(".{0,10}", 0..2), publish);
    let rest = (option::of(path()), option::of(".{0,10}"), option::of(any::<bool>()), network_limits());
    (option::of(one_of(NetworkMode::ALL)), lists, rest).prop_map(|(mode, lists, rest)| {
        let (allow, deny, allow_addresses, name_servers, publish) = lists;
        let (unix, upstream, transparent, limits) = rest;
        let proxy = unix.map(|unix| ForeignProxy { unix });
        Network {
            mode,
            allow,
            deny,
            allow_addresses,
            proxy,
            upstream,
            name_servers,
            transparent,
            publish,
            limits,
        }
    })
}

fn network_limits() -> impl Strategy<Value = NetworkLimits> {
    let sizes = (option::of(size()), option::of(size()), option::of(size()));
    (option::of(any::<u32>()), sizes, option::of(span()), option::of(span())).prop_map(
        |(connections, (header_size, bytes, rate), header_time, idle_time)| NetworkLimits {
            connections,
            header_size,
            header_time,
            idle_time,
            bytes,
            rate,
        },
    )
}

fn env() -> impl Strategy<Value = Env> {
    (one_of(EnvBase::ALL), vec(".{0,5}", 0..3), btree_map(".{0,5}", ".{0,5}", 0..3))
        .prop_map(|(base, pass, set)| Env { base, pass, set })
}

fn limits() -> impl Strategy<Value = Limits> {
    let sizes = (option::of(size()), option::of(size()), option::of(size()), option::of(size()));
    let counts =
        (option::of(any::<u64>()), option::of(any::<u64>()), option::of(any::<u64>()), any::<bool>());
    // Quarters only, because serde_json may round the last bit of other fractions.
    let cpus = option::of((-4_i32..20_000).prop_map(|quarters| f64::from(quarters) / 4.0));
    (sizes, counts, cpus, option::of(span()), option::of(span()), cgroup_limits()).prop_map(
        |(sizes, counts, cpus, cpu_time, timeout, (swap, cpuset, io, cgroup))| {
            let (memory, output, tmp_size, file_size) = sizes;
            let (pids, open_files, tmp_inodes, output_ends) = counts;
            Limits {
                memory,
                swap,
                pids,
                cpus,
                cpuset,
                io,
                cgroup,
                cpu_time,
                timeout,
                output,
                output_ends,
                tmp_size,
                tmp_inodes,
                open_files,
                file_size,
            }
        },
    )
}

/// The limits that need a cgroup.
fn cgroup_limits() -> impl Strategy<Value = (Option<Size>, Option<String>, Option<IoLimits>, Cgroup)> {
    let io = (option::of(size()), option::of(size()), option::of(any::<u64>()), option::of(any::<u64>()))
        .prop_map(|(read, write, read_ops, write_ops)| IoLimits { read, write, read_ops, write_ops });
    let cgroup = prop_oneof![
        Just(Cgroup::Auto),
        Just(Cgroup::Off),
        "/[a-z/ ]{0,9}".prop_map(|path| Cgroup::At(path.into()))
    ];
    (option::of(size()), option::of(".{0,9}"), option::of(io), cgroup)
}

fn requirements() -> impl Strategy<Value = Requirements> {
    vec((one_of(Protection::ALL), one_of(Requirement::ALL)), 0..5).prop_map(|pairs| {
        let mut requirements = Requirements::default();
        pairs.into_iter().for_each(|(protection, requirement)| requirements.set(protection, requirement));
        requirements
    })
}

fn size() -> impl Strategy<Value = Size> {
    (1_u64..).prop_map(Size::from_bytes)
}

fn span() -> impl Strategy<Value = Span> {
    (any::<u64>(), 1_u32..1_000_000_000).prop_map(|(seconds, nanos)| Duration::new(seconds, nanos).into())
}
