//! The second oracle: the promises written once more, for the compiler of the crate seccompiler.

use std::collections::BTreeMap;

use proptest::prelude::*;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::plan::seccomp::full;
use crate::plan::seccomp::rule::FilterUser;
use crate::plan::seccomp::rules::{OWN_GROUP, OWN_USER};
use crate::plan::seccomp::syscalls::ALLOWED;
use crate::plan::seccomp::tests::interpreter;
use crate::plan::seccomp::tests::oracle::{call, cases};

/// The calls that are allowed, written from the promises and compiled by seccompiler.
fn second_opinion() -> BpfProgram {
    let is = |index, length, op, value| SeccompCondition::new(index, length, op, value).expect("condition");
    let low = |index, op, value| is(index, Len::Dword, op, value);
    let all = |conditions: Vec<SeccompCondition>| SeccompRule::new(conditions).expect("rule");
    let without = |index, mask| all(vec![low(index, Op::MaskedEq(mask), 0)]);

    let mut calls: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().flat_map(|group| group.iter()).map(|call| (*call, vec![])).collect();
    calls.insert(libc::SYS_clone, vec![without(0, 0x7e02_0000)]);
    calls.insert(libc::SYS_unshare, vec![all(vec![is(0, Len::Qword, Op::MaskedEq(!0x0005_0f00), 0)])]);
    let tricks = [0x5412, 0x541c, 0x541d, 0x5423, 0x4020_bc10, 0x5000_9401, 0x5000_9417];
    let settings = [
        0x890b, 0x890c, 0x8914, 0x8916, 0x8918, 0x891a, 0x891c, 0x891e, 0x8922, 0x8923, 0x8924, 0x8931,
        0x8932, 0x8934, 0x8936, 0x8937, 0x8940, 0x8941, 0x8943, 0x8946, 0x8949, 0x894a, 0x894c, 0x8953,
        0x8955, 0x8971, 0x8982, 0x8983, 0x89b0,
    ];
    let some = [0x8990, 0x89a0, 0x89e0, 0x89f0].into_iter().flat_map(|first| first..first + 16);
    let wireless = (0x8b00..0x8c00).step_by(2);
    let requests = tricks.into_iter().chain(settings).chain(some).chain(wireless);
    calls.insert(libc::SYS_ioctl, vec![all(requests.map(|request| low(1, Op::Ne, request)).collect())]);
    // Any other level, or one of these levels with any other option.
    let options = |levels: &[(u64, &[u64])]| {
        let others = all(levels.iter().map(|(level, _)| low(1, Op::Ne, *level)).collect());
        let of_level = |(level, options): &(u64, &[u64])| {
            all([low(1, Op::Eq, *level)]
                .into_iter()
                .chain(options.iter().map(|one| low(2, Op::Ne, *one)))
                .collect())
        };
        [others].into_iter().chain(levels.iter().map(of_level)).collect::<Vec<_>>()
    };
    let ip: Vec<u64> =
        [16..20, 64..72, 83..84, 96..100, 128..132, 200..216, 1088..1216].into_iter().flatten().collect();
    let ip6: Vec<u64> = [27, 28, 34, 35, 64, 65, 68, 69, 75].into_iter().chain(200..216).collect();
    for call in [libc::SYS_setsockopt, libc::SYS_getsockopt] {
        calls.insert(call, options(&[(1, &[32, 33, 36, 75]), (6, &[19, 31]), (0, &ip), (41, &ip6)]));
    }
    let domains = [0, 8, 0x20000, 0x20008, 0x40000, 0xffff_ffff];
    calls.insert(libc::SYS_sendmsg, vec![without(2, 0x2000_0000)]);
    for call in [libc::SYS_sendto, libc::SYS_sendmmsg] {
        calls.insert(call, vec![without(3, 0x2000_0000)]);
    }
    calls.insert(libc::SYS_personality, domains.map(|domain| all(vec![low(0, Op::Eq, domain)])).to_vec());
    calls.insert(libc::SYS_open, vec![without(1, 0o20_000_100), without(2, 0o6000)]);
    calls.insert(libc::SYS_openat, vec![without(2, 0o20_000_100), without(3, 0o6000)]);
    for call in [libc::SYS_creat, libc::SYS_chmod, libc::SYS_fchmod] {
        calls.insert(call, vec![without(1, 0o6000)]);
    }
    for call in [libc::SYS_fchmodat, libc::SYS_fchmodat2] {
        calls.insert(call, vec![without(2, 0o6000)]);
    }
    // The own user or none, and the own group or none.
    let owners = |first: u8| {
        let pairs = [OWN_USER, u32::MAX].into_iter().flat_map(|user| [(user, OWN_GROUP), (user, u32::MAX)]);
        let own = |(user, group): (u32, u32)| {
            all(vec![low(first, Op::Eq, user.into()), low(first + 1, Op::Eq, group.into())])
        };
        pairs.map(own).collect::<Vec<_>>()
    };
    for call in [libc::SYS_chown, libc::SYS_lchown, libc::SYS_fchown] {
        calls.insert(call, owners(1));
    }
    calls.insert(libc::SYS_fchownat, owners(2));
    calls.insert(libc::SYS_mq_open, vec![without(1, 0o100)]);
    calls.insert(libc::SYS_setrlimit, vec![all(vec![low(0, Op::Ne, 4), low(0, Op::Ne, 15)])]);
    let asks = vec![low(0, Op::Ne, 1), low(1, Op::Eq, 4), is(2, Len::Qword, Op::Eq, 0)];
    calls.insert(
        libc::SYS_prlimit64,
        vec![all(vec![low(0, Op::Ne, 1), low(1, Op::Ne, 4), low(1, Op::Ne, 15)]), all(asks)],
    );
    let of_pid = [
        libc::SYS_sched_setparam,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setattr,
    ];
    for call in of_pid {
        calls.insert(call, vec![all(vec![low(0, Op::Ne, 1)])]);
    }
    for (call, user) in [(libc::SYS_setpriority, 2), (libc::SYS_ioprio_set, 3)] {
        calls.insert(call, vec![all(vec![low(1, Op::Ne, 1), low(0, Op::Ne, user)])]);
    }
    calls.insert(libc::SYS_renameat2, vec![without(4, 4)]);
    calls.insert(libc::SYS_fcntl, vec![all(vec![low(1, Op::Ne, 1024), low(1, Op::Ne, 1040)])]);
    // All sixteen kinds of node except 2 (character device) and 6 (block device).
    let kinds = [0, 1, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|kind: u64| kind << 12);
    for (call, mode) in [(libc::SYS_mknod, 1), (libc::SYS_mknodat, 2)] {
        calls.insert(call, kinds.map(|kind| all(vec![low(mode, Op::MaskedEq(0o176_000), kind)])).to_vec());
    }
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        let mut rules = vec![all(vec![low(0, Op::Eq, 1)]), all(vec![low(0, Op::Eq, 16), low(2, Op::Eq, 0)])];
        for family in [2, 10] {
            for (kind, protocol) in [1, 2].into_iter().flat_map(|kind| [0, 1, 6, 17, 58].map(|p| (kind, p))) {
                let kind = low(1, Op::MaskedEq(15), kind);
                rules.push(all(vec![low(0, Op::Eq, family), kind, low(2, Op::Eq, protocol)]));
            }
        }
        calls.insert(call, rules);
    }
    let refused = SeccompAction::Errno(1);
    let filter =
        SeccompFilter::new(calls, refused, SeccompAction::Allow, TargetArch::x86_64).expect("filter");
    filter.try_into().expect("program")
}

#[test]
fn seccompiler_allows_the_same_calls() {
    let step = |step: seccompiler::sock_filter| {
        let seccompiler::sock_filter { code, jt, jf, k } = step;
        libc::sock_filter { code, jt, jf, k }
    };
    let other: Vec<_> = second_opinion().into_iter().map(step).collect();
    let outcome = proptest::test_runner::TestRunner::new(cases(5_000)).run(&call(), |call| {
        let allowed = |program: &[libc::sock_filter]| {
            interpreter::run(program, &call).action == libc::SECCOMP_RET_ALLOW
        };
        prop_assert_eq!(allowed(full(FilterUser::Ordinary)), allowed(&other));
        Ok(())
    });
    outcome.expect("agreement");
}
