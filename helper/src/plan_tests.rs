//! Tests that encoded values decode to the same values, and that no bytes make the decoder panic.

use std::ffi::CString;

use proptest::prelude::*;

use super::*;
use crate::{
    control::{Handed, Handover, LONGEST, Order, Report, Role, ZygoteOrder},
    wire::ListBuf,
};

fn encode<'w>(value: &impl Field<'w>) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

fn c_string() -> impl Strategy<Value = CString> {
    proptest::collection::vec(1u8..=255, 0..40).prop_map(|bytes| CString::new(bytes).expect("no NUL"))
}

proptest! {
    #[test]
    fn steps_round_trip(path in c_string(), other in c_string(), bytes: Vec<u8>, a: u64, b: u64, c: u32, optional: bool) {
        let steps = [
            Step::Write { path: &path, bytes: &bytes },
            Step::Unshare { flags: c },
            Step::NewRoot { options: &other },
            Step::Symlink { path: &path, points_to: &other },
            Step::MakeFile { path: &path, mode: c, bytes: &bytes },
            Step::Bind { source: &path, device: a, inode: b, target: &other, within: Within::Granted, attributes: a },
            Step::Mount { kind: &path, target: &other, within: Within::Root, flags: b, options: &path },
            Step::Layer { lower: Inode { path: &path, identity: (a, b) }, kept: Inode::NONE, at: &other, layer: c },
            Step::ShowLayered {
                layer: c,
                below: &other,
                source: Inode { path: &path, identity: (b, a) },
                target: &path,
                within: Within::Granted,
                or_shows: 1,
            },
            Step::DetachLayers {},
            Step::PivotRoot {},
            Step::CheckTmpfs { path: &path },
            Step::Whiteout { path: &path },
            Step::Merge { target: &path, options: &other, reader: c },
            Step::Limit { resource: c, soft: a, hard: b },
            Step::Ordinary { policy: c, nice: 1, io: 0 },
            Step::Seccomp { program: &bytes },
            Step::SeccompAsking { program: &bytes, flags: 40, plain: &bytes, with_start: 1 },
        ];
        let written: Vec<Entry<'_>> = steps.map(|step| Entry { optional, step }).to_vec();
        let section: Vec<u8> = written.iter().flat_map(encode).collect();
        let read: Option<Vec<Entry<'_>>> = entries(&section).collect();
        prop_assert_eq!(read, Some(written));
    }

    #[test]
    fn requests_round_trip(cwd in c_string(), argv in proptest::collection::vec(c_string(), 0..20), terminal: u32) {
        let list: ListBuf = argv.iter().collect();
        let none = ListBuf::default();
        let request = Request {
            cwd: &cwd,
            programs: list.list(),
            arguments: list.list(),
            environment: none.list(),
            terminal,
            background: terminal,
            limits: b"steps",
        };
        let bytes = encode(&request);
        let read = Request::take(&mut Cursor::new(&bytes));
        prop_assert_eq!(read, Some(request));
        let strings: Vec<CString> = request.arguments.iter().map(Into::into).collect();
        prop_assert_eq!(strings, argv);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        for entry in entries(&bytes) {
            let _ = entry;
        }
        if let Some(request) = Request::take(&mut Cursor::new(&bytes)) {
            prop_assert!(request.arguments.iter().count() <= request.arguments.count());
        }
        let _ = (Plan::take(&mut Cursor::new(&bytes)), Report::take(&mut Cursor::new(&bytes)));
        let _ = (Order::take(&mut Cursor::new(&bytes)), Role::take(&mut Cursor::new(&bytes)));
        let _ = (Handed::take(&mut Cursor::new(&bytes)), Handover::take(&mut Cursor::new(&bytes)));
        let _ = ZygoteOrder::take(&mut Cursor::new(&bytes));
    }

    #[test]
    fn a_cut_plan_is_refused(bytes in proptest::collection::vec(any::<u8>(), 1..200), cut in 0usize..200) {
        let whole = encode(&Plan { setup: &bytes, worker: &bytes, walls: &bytes, payload: &bytes });
        let cut = cut.min(whole.len() - 1);
        prop_assert_eq!(Plan::take(&mut Cursor::new(&whole[..cut])), None);
    }
}

#[test]
fn the_longest_report_fits_a_message() {
    let ended =
        Report::Ended { status: -1, user_us: 1, system_us: 2, max_rss_kib: 3, killed: 4, left: 6, full: 5 };
    assert!(encode(&ended).len() <= LONGEST);
}

proptest! {
    #[test]
    fn what_is_full_is_read_back(room in 0..u32::try_from(MOST_TMPFS).expect("few"), lacks_inodes: bool) {
        let word = crate::control::full::word(room, lacks_inodes);
        prop_assert_ne!(word, crate::control::full::NONE);
        prop_assert_eq!(crate::control::full::read(word), Some((room as usize, lacks_inodes)));
    }
}

#[test]
fn nothing_full_is_no_room() {
    assert_eq!(crate::control::full::read(crate::control::full::NONE), None);
}
