//! The compiled filter compared with two oracles: the rules read directly, and another compiler (`second`).

pub(crate) mod second;

use libc::c_long;
use proptest::prelude::*;

use crate::plan::seccomp::fake_root::FAKE_ROOT;
use crate::plan::seccomp::observed::OBSERVED;
use crate::plan::seccomp::rule::{FilterQuestion, FilterUser, FilterVerdict, SyscallRule, Test, Word};
use crate::plan::seccomp::rules::{OWN_GROUP, OWN_USER, RULES};
use crate::plan::seccomp::syscalls::{ALLOWED, REFUSED};
use crate::plan::seccomp::table::{CallDecision, Range};
use crate::plan::seccomp::tests::interpreter;
use crate::plan::seccomp::tests::interpreter::{Call, X86_64};
use crate::plan::seccomp::{Asks, Ids, for_worker, for_zygote, full, observing, program, table, tree};

/// Values that the rules compare with, and their neighbours.
const BOUNDARY_VALUES: &[u32] = &[
    0,
    1,
    2,
    3,
    6,
    8,
    10,
    16,
    17,
    33,
    40,
    58,
    132,
    255,
    256,
    262,
    263,
    0x40,
    0x41,
    0x80,
    0x100,
    0x200,
    0x5411,
    0x5412,
    0x5413,
    0x541c,
    0x541d,
    0x5423,
    0x890b,
    0x8914,
    0x8915,
    0x8946,
    0x894c,
    0x8993,
    0x89f1,
    0x8b01,
    0x8b1a,
    19,
    34,
    35,
    36,
    41,
    64,
    66,
    67,
    68,
    69,
    75,
    96,
    99,
    127,
    128,
    131,
    199,
    200,
    215,
    216,
    1087,
    1088,
    1152,
    1215,
    1216,
    0o2000,
    0o2755,
    0o4000,
    0o4755,
    0o6000,
    0o644,
    0o755,
    0o1777,
    0o20644,
    0o20_200_000,
    0o20_000_000,
    0o60644,
    0o10644,
    0o140_755,
    0o100_644,
    0x0002_0000,
    0x0002_0008,
    0x0004_0000,
    0x0010_0000,
    0x0200_0000,
    0x0400_0000,
    0x0800_0000,
    0x1000_0000,
    0x2000_0000,
    0x4000_0000,
    0x8000_0000,
    0xffff_ffff,
    4,
    31,
    0x4020_bc10,
    0x5000_9401,
    0x5000_9417,
    0x0008_0001,
    0x0008_0003,
    0x0008_0802,
    OWN_USER,
    OWN_GROUP,
    IDS.user,
    IDS.group,
];

const USERS: [FilterUser; 3] = [FilterUser::Ordinary, FilterUser::Root, FilterUser::FakeRoot];

/// Calls whose arguments are ids.
const TAKE_IDS: [c_long; 10] = [
    libc::SYS_chown,
    libc::SYS_fchown,
    libc::SYS_lchown,
    libc::SYS_fchownat,
    libc::SYS_setuid,
    libc::SYS_setreuid,
    libc::SYS_setresuid,
    libc::SYS_setgid,
    libc::SYS_setregid,
    libc::SYS_setresgid,
];

/// The ids of a command.
const IDS: Ids = Ids { user: 1000, group: 100 };

/// The verdict by the lists and rules, read in the simplest way.
fn expected(call: &Call, user: FilterUser) -> FilterVerdict {
    let listed = |calls: &[c_long]| calls.contains(&c_long::from(call.number));
    let of_root = FAKE_ROOT.iter().find(|rule| listed(rule.calls) && user == FilterUser::FakeRoot);
    match call.number {
        _ if call.arch != X86_64 => FilterVerdict::Kill,
        _ if of_root.is_some() => judge(of_root.expect("a rule"), call),
        u32::MAX => FilterVerdict::refuse(libc::ENOSYS),
        0x4000_0000.. => FilterVerdict::Kill,
        _ if ALLOWED.iter().any(|group| listed(group)) => FilterVerdict::Allow,
        _ if REFUSED.iter().any(|group| listed(group)) => FilterVerdict::refuse(libc::EPERM),
        _ => RULES
            .iter()
            .find(|rule| listed(rule.calls))
            .map_or(FilterVerdict::refuse(libc::ENOSYS), |rule| judge(rule, call)),
    }
}

fn judge(rule: &SyscallRule, call: &Call) -> FilterVerdict {
    let holds = |test: &Test| match *test {
        Test::OneOf(word, mask, values) => values.contains(&(read(word, call) & mask)),
        Test::NoneOf(word, mask, values) => !values.contains(&(read(word, call) & mask)),
        Test::AnyBit(word, mask) => read(word, call) & mask != 0,
    };
    let first = rule.clauses.iter().find(|clause| clause.when.iter().all(holds));
    first.map_or(rule.otherwise, |clause| clause.then)
}

fn read(word: Word, call: &Call) -> u32 {
    let argument = |index: u8| call.arguments[usize::from(index)];
    match word {
        Word::Number => call.number,
        Word::Arch => call.arch,
        Word::Low(index) => u32::try_from(argument(index) & 0xffff_ffff).expect("32 bits"),
        Word::High(index) => u32::try_from(argument(index) >> 32).expect("32 bits"),
    }
}

fn number() -> impl Strategy<Value = u32> {
    let ruled: Vec<u32> = RULES
        .iter()
        .chain(FAKE_ROOT)
        .flat_map(|rule| rule.calls)
        .map(|call| u32::try_from(*call).expect("small"))
        .collect();
    let edges =
        vec![0x3fff_ffff, 0x4000_0000, 0x4000_0010, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff];
    prop_oneof![
        4 => proptest::sample::select(ruled),
        3 => 0..=600_u32,
        1 => proptest::sample::select(edges),
        1 => any::<u32>(),
    ]
}

fn argument() -> impl Strategy<Value = u64> {
    let high =
        prop_oneof![3 => Just(0_u64), 1 => Just(u64::from(u32::MAX)), 1 => any::<u32>().prop_map(u64::from)];
    let low = prop_oneof![4 => proptest::sample::select(BOUNDARY_VALUES), 1 => any::<u32>()];
    (high, low).prop_map(|(high, low)| high << 32 | u64::from(low))
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn call() -> impl Strategy<Value = Call> {
    let arch = prop_oneof![19 => Just(X86_64), 1 => any::<u32>()];
    (number(), arch, proptest::array::uniform6(argument())).prop_map(|(number, arch, arguments)| Call {
        number,
        arch,
        arguments,
    })
}

/// The result of a call under two filters, the zygote's and the worker's. Kill takes precedence over errno,
/// and errno over allow.
fn inherited_and_own(call: &Call, user: FilterUser) -> u32 {
    strictest([for_worker(user), for_zygote(user)].map(|program| interpreter::run(program, call).action))
}

/// What the kernel takes of the answers of two filters.
fn strictest(answers: [u32; 2]) -> u32 {
    let precedence = |action: &u32| (action & libc::SECCOMP_RET_ACTION_FULL).cast_signed();
    answers.into_iter().min_by_key(precedence).expect("two answers")
}

proptest! {
    #![proptest_config(cases(10_000))]

    #[test]
    fn any_call_gets_the_verdict_of_the_rules(call in call()) {
        for user in USERS {
            let expected = expected(&call, user).encode();
            prop_assert_eq!(interpreter::run(full(user), &call).action, expected);
            prop_assert_eq!(inherited_and_own(&call, user), expected);
        }
    }

    #[test]
    fn the_listener_answers_as_the_filter_would(call in call(), user in proptest::sample::select(&USERS)) {
        // The calls of a command have its own ids where the rules have a word for them.
        let takes_ids = TAKE_IDS.contains(&c_long::from(call.number));
        let arguments = if takes_ids { call.arguments.map(with_own_ids) } else { call.arguments };
        let own = Call { arguments, ..call };
        let run = |asks| interpreter::run(&program(full(user), asks, IDS, user), &own).action;
        let (plain, supervised, explained) = (run(Asks::Nothing), run(Asks::Questions), run(Asks::Refusals));
        let call_of = table::SystemCall { number: call.number, arguments: call.arguments };
        let judged = table::judge(&call_of, user);
        let verdict = expected(&call, user);
        prop_assert!(call.arch != X86_64 || verdict == FilterVerdict::Kill || judged.0 == verdict);
        match verdict {
            FilterVerdict::Ask(question) => {
                prop_assert_eq!(plain, question.unanswered(user).encode());
                prop_assert_eq!([supervised, explained], [libc::SECCOMP_RET_USER_NOTIF; 2]);
            }
            FilterVerdict::Refuse(errno) if errno != libc::ENOSYS.cast_unsigned() => {
                prop_assert_eq!([plain, supervised], [verdict.encode(); 2]);
                prop_assert_eq!(explained, libc::SECCOMP_RET_USER_NOTIF);
            }
            _ => prop_assert_eq!([plain, supervised, explained], [verdict.encode(); 3]),
        }
    }
}

/// An argument with the numbers of [`IDS`] in place of the words for them, and the other way round.
fn with_own_ids(argument: u64) -> u64 {
    let low = u32::try_from(argument & 0xffff_ffff).expect("32 bits");
    let pairs = [(OWN_USER, IDS.user), (IDS.user, OWN_USER), (OWN_GROUP, IDS.group), (IDS.group, OWN_GROUP)];
    let other = pairs.into_iter().find(|(from, _)| *from == low).map_or(low, |(_, to)| to);
    argument & !0xffff_ffff | u64::from(other)
}

#[test]
fn without_a_listener_root_is_told_that_owners_are_set() {
    let root = Ids { user: 0, group: 0 };
    let action = |number: c_long, arguments, ids: Ids| {
        let number = u32::try_from(number).expect("a number");
        let user = if ids.user == 0 { FilterUser::Root } else { FilterUser::Ordinary };
        let program = program(full(user), Asks::Nothing, ids, user);
        interpreter::run(&program, &Call { number, arch: X86_64, arguments }).action
    };
    let chown = |ids| action(libc::SYS_chown, [0, 33, 33, 0, 0, 0], ids);
    assert_eq!(
        [chown(IDS), chown(root)],
        [FilterVerdict::refuse(libc::EPERM), FilterVerdict::Pretend].map(FilterVerdict::encode)
    );
    let chmod = |ids| action(libc::SYS_chmod, [0, 0o2755, 0, 0, 0, 0], ids);
    assert_eq!([chmod(IDS), chmod(root)], [FilterVerdict::refuse(libc::EPERM).encode(); 2]);
    let own = |ids: Ids| action(libc::SYS_chown, [0, ids.user.into(), ids.group.into(), 0, 0, 0], ids);
    assert_eq!([own(IDS), own(root)], [FilterVerdict::Allow.encode(); 2]);
    assert_ne!(own(root), action(libc::SYS_chown, [0, 0, 0, 0, 0, 0], IDS), "those of another user");
}

#[test]
fn no_question_reaches_the_kernel() {
    for asks in [Asks::Nothing, Asks::Questions, Asks::Refusals] {
        for (user, filter) in USERS
            .into_iter()
            .flat_map(|user| [full(user), for_zygote(user), for_worker(user)].map(|it| (user, it)))
        {
            let program = program(filter, asks, IDS, user);
            interpreter::check(&program);
            let marks = [FilterQuestion::Mode, FilterQuestion::Owner]
                .map(|question| FilterVerdict::Ask(question).encode());
            assert!(program.iter().all(|step| ![OWN_USER, OWN_GROUP].contains(&step.k)));
            assert!(program.iter().all(|step| step.code != 0x06 || !marks.contains(&step.k)));
        }
    }
}

/// With `learn`, the kernel takes the strictest answer of the two filters.
#[test]
fn observing_asks_about_listed_calls_and_changes_no_refusal() {
    let observing = observing();
    interpreter::check(&observing);
    let listed = |number: u32| OBSERVED.iter().any(|call| call.number == i64::from(number));
    for number in (0..=600).chain([0x3fff_ffff, 0x4000_0000, 0x4000_0101, 0xffff_ffff]) {
        for value in BOUNDARY_VALUES {
            let call = Call { number, arch: X86_64, arguments: [u64::from(*value); 6] };
            let answer = interpreter::run(&observing, &call).action;
            let question =
                if listed(number) { libc::SECCOMP_RET_USER_NOTIF } else { libc::SECCOMP_RET_ALLOW };
            assert_eq!(answer, question, "{call:x?}");
            let both = strictest([answer, interpreter::run(full(FilterUser::Ordinary), &call).action]);
            let verdict = expected(&call, FilterUser::Ordinary).encode();
            let is_allowed = verdict == libc::SECCOMP_RET_ALLOW;
            assert_eq!(both, if is_allowed { question } else { verdict }, "{call:x?}");
        }
    }
    let allowed = OBSERVED.iter().all(|call| {
        let arguments = [0; 6];
        let number = u32::try_from(call.number).expect("a number");
        expected(&Call { number, arch: X86_64, arguments }, FilterUser::Ordinary) == FilterVerdict::Allow
    });
    assert!(allowed, "a call that is always refused needs no question");
}

#[test]
fn every_number_gets_the_verdict_of_the_rules() {
    let numbers = (0..=600)
        .chain([
            0x3fff_ffff,
            0x4000_0000,
            0x4000_0001,
            0x4000_0200,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_fffe,
            u32::MAX,
        ])
        .chain((0..u32::MAX).step_by(0x0010_0001));
    for number in numbers {
        for (turn, value) in BOUNDARY_VALUES.iter().enumerate() {
            // Neighbouring arguments get different values, and every second turn garbage above bit 31.
            let mut arguments = [0; 6];
            for (index, argument) in arguments.iter_mut().enumerate() {
                let other = BOUNDARY_VALUES[(turn * (index + 1) + index * 7) % BOUNDARY_VALUES.len()];
                *argument =
                    u64::from(if index == turn % 3 { *value } else { other }) | ((turn as u64 & 1) << 63);
            }
            let call = Call { number, arch: X86_64, arguments };
            for user in USERS {
                let expected = expected(&call, user).encode();
                assert_eq!(interpreter::run(full(user), &call).action, expected, "{call:x?}");
                assert_eq!(inherited_and_own(&call, user), expected, "{call:x?}");
            }
        }
    }
}

#[test]
fn programs_too_long_for_short_jumps_are_still_right() {
    let verdict = |number: u32| match number % 5 {
        0 => CallDecision::Rule(usize::try_from(number / 5).expect("small") % RULES.len()),
        n => CallDecision::Verdict(FilterVerdict::Refuse(number % 100 * 5 + n)),
    };
    let ranges: Vec<Range> = (0..1500).map(|n| Range { first: n * 3, decision: verdict(n) }).collect();
    let long = tree::compile(&ranges, RULES);
    interpreter::check(&long);
    assert!(long.iter().any(|step| step.code == 0x05), "no trampoline: the test is too small");
    for number in 0..4600 {
        for low in BOUNDARY_VALUES {
            let call = Call { number, arch: X86_64, arguments: [u64::from(*low); 6] };
            let expected = match verdict((number / 3).min(1499)) {
                CallDecision::Verdict(verdict) => verdict,
                CallDecision::Rule(index) => judge(&RULES[index], &call),
            };
            assert_eq!(interpreter::run(&long, &call).action, expected.encode(), "{call:x?}");
        }
    }
}
