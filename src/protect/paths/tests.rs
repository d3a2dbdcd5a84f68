//! Tests of `protect`, on directories made for them.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::host::fixtures;
use crate::policy::Policy;
use crate::policy::profile::Profile;
use crate::report::place_kind::PlaceKind;
use crate::sys::dirfd::MOST_LINKS;
use crate::view::inputs::{HomeNames, SandboxKind};

/// A directory with a workspace `w`, which has these directories, and links with these texts.
fn workspace(directories: &[&str], links: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::create_dir(dir.path().join("w")).expect("the workspace");
    for path in directories {
        fs::create_dir_all(dir.path().join("w").join(path)).expect("a directory");
    }
    for (path, to) in links {
        symlink(to, dir.path().join("w").join(path)).expect("a link");
    }
    dir
}

/// The result of `protect`. Paths are relative to the workspace.
struct Walls {
    base: PathBuf,
    read_only: Vec<String>,
    pinned: Vec<String>,
    watches: Vec<Watch>,
    gaps: Vec<Gap>,
}

impl Walls {
    fn watches_link(&self, path: &str, to: &str) -> bool {
        let expected = Expected::Link(to.into());
        self.watches.contains(&Watch::new(&self.base, Path::new(path), Path::new(path), expected))
    }

    fn watches_absent(&self, path: &str, first: &str) -> bool {
        let expected = Expected::Absent;
        self.watches.contains(&Watch::new(&self.base, Path::new(path), Path::new(first), expected))
    }
}

/// Protects `paths` in the workspace of `dir`.
fn walls(dir: &TempDir, paths: &[&str]) -> Walls {
    walls_beside(dir, &[], paths)
}

/// With covers that exist before.
fn walls_beside(dir: &TempDir, covers: &[&str], paths: &[&str]) -> Walls {
    let source = BindSource::resolve(&dir.path().join("w")).expect("the workspace");
    let base = source.path.clone();
    let mut policy = Policy::profile(Profile::RepoWrite, &base);
    policy.protect = paths.iter().map(PathBuf::from).collect();
    let host = fixtures::host();
    let caller = fixtures::caller(&base);
    let inputs = Inputs {
        policy: &policy,
        host: &host,
        caller: &caller,
        names: &HomeNames::default(),
        kind: SandboxKind::OneShot,
        subject: crate::view::inputs::Subject::Workspace,
        root: None,
        controllers: None,
    };
    let mut view = View::default();
    let node = Node::Bind { source: source.clone(), access: Access::Write };
    view.grant(PlaceKind::Workspace, base.clone(), node).expect("the first place");
    for path in covers {
        view.wall(PlaceKind::Secret, &base.join(path), Node::Cover, Protection::Root);
    }
    let protected = protect(&mut view, &inputs, Some(&source), &[]).expect("protected");
    let bound = |wanted: Access| -> Vec<String> {
        let below = |(target, place): (&Path, &ViewEntry)| match &place.node {
            Node::Bind { access, .. } if place.origin == Origin::Wall && *access == wanted => {
                Some(target.strip_prefix(&base).expect("below").display().to_string())
            }
            _ => None,
        };
        view.iter().filter_map(below).collect()
    };
    let (read_only, pinned) = (bound(Access::Read), bound(Access::Write));
    Walls { base, read_only, pinned, watches: protected.watches, gaps: protected.gaps }
}

#[test]
fn up_from_a_link_is_up_from_where_it_leads() {
    let dir = workspace(&["a/b", "a/y", "y", "d"], &[("d/p", "../x/../y"), ("x", "a/b")]);
    let walls = walls(&dir, &["d/p"]);
    assert_eq!(walls.read_only, ["a/y"], "and not y");
    assert_eq!(walls.pinned, ["a", "a/b", "d"]);
    assert!(walls.watches_link("d/p", "../x/../y") && walls.watches_link("x", "a/b"));
}

#[test]
fn up_from_a_link_in_a_protected_directory_is_up_from_where_it_leads() {
    let dir = workspace(&["a/b", "a/y", "y", "p"], &[("p/hook", "../x/../y"), ("x", "a/b")]);
    let walls = walls(&dir, &["p"]);
    assert_eq!(walls.read_only, ["a/y", "p"]);
    assert!(walls.watches_link("x", "a/b"));
}

#[test]
fn a_directory_before_a_step_up_is_pinned() {
    let dir = workspace(&["x", "y"], &[("p", "x/../y")]);
    let walls = walls(&dir, &["p"]);
    assert_eq!(walls.read_only, ["y"]);
    assert_eq!(walls.pinned, ["x"], "a link in its place would lead p elsewhere");
}

#[test]
fn a_path_may_end_in_a_step_up() {
    let dir = workspace(&["a/b", "y"], &[("p", "a/b/.."), ("q", "a/.."), ("l", "y")]);
    let walls = walls(&dir, &["p", "q"]);
    assert_eq!(walls.read_only, ["a", "a/b"], "the workspace itself stays writable");
    assert!(walls.pinned.is_empty(), "{:?}", walls.pinned);
}

#[test]
fn nothing_stays_writable_in_a_protected_directory() {
    let dir = workspace(&["ci/a/b/c"], &[]);
    let walls = walls(&dir, &["ci/a/b/c", "ci"]);
    assert_eq!(walls.read_only, ["ci", "ci/a", "ci/a/b", "ci/a/b/c"]);
    assert!(walls.pinned.is_empty(), "{:?}", walls.pinned);
}

#[test]
fn what_is_missing_before_a_step_up_must_not_appear() {
    let dir = workspace(&["y"], &[("p", "x/z/../y")]);
    let walls = walls(&dir, &["p"]);
    assert!(walls.read_only.is_empty(), "the link leads nowhere: {:?}", walls.read_only);
    assert!(walls.watches_absent("x/z", "x"), "{:?}", walls.watches);
}

#[test]
fn a_loop_of_links_leads_nowhere_and_is_watched() {
    let dir = workspace(&["d"], &[("p", "q"), ("q", "d/../p"), ("self", "./self")]);
    let walls = walls(&dir, &["p", "self"]);
    assert!(walls.read_only.is_empty(), "{:?}", walls.read_only);
    assert!(walls.watches_link("p", "q") && walls.watches_link("q", "d/../p"));
    assert!(walls.watches_link("self", "./self"));
}

#[test]
fn links_to_the_directory_they_lie_in_end() {
    let dir = workspace(&["p", "y"], &[("p/a", "."), ("p/b", "../p"), ("p/c", "../y"), ("y/d", "../p")]);
    assert_eq!(walls(&dir, &["p"]).read_only, ["p", "y"]);
}

#[test]
fn a_long_path_to_a_directory_does_not_spoil_a_short_one() {
    let names: Vec<String> = (0..MOST_LINKS).map(|number| format!("l{number}")).collect();
    let mut links: Vec<(&str, &str)> =
        names.windows(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    links.extend([(names.last().expect("the last").as_str(), "d"), ("d/hook", "../y")]);
    let dir = workspace(&["d", "y"], &links);
    assert_eq!(walls(&dir, &["l0"]).read_only, ["d"], "the hook would be one link too many");
    assert_eq!(walls(&dir, &["l0", "d"]).read_only, ["d", "y"]);
}

#[test]
fn links_beyond_the_limit_of_a_directory_are_reported() {
    for (count, gaps) in [(MOST_FOLLOWED, vec![]), (MOST_FOLLOWED + 1, vec![GapReason::TooMany])] {
        let names: Vec<String> = (0..count).map(|number| format!("y{number}")).collect();
        let directories: Vec<&str> = names.iter().map(String::as_str).chain(["p"]).collect();
        let links: Vec<(String, String)> =
            names.iter().map(|name| (format!("p/{name}"), format!("../{name}"))).collect();
        let links: Vec<(&str, &str)> = links.iter().map(|(at, to)| (&**at, &**to)).collect();
        let walls = walls(&workspace(&directories, &links), &["p"]);
        assert_eq!(walls.read_only.len(), 1 + MOST_FOLLOWED);
        assert_eq!(walls.gaps.iter().map(|gap| gap.reason.clone()).collect::<Vec<_>>(), gaps);
    }
}

#[test]
fn covered_paths_need_no_other_wall() {
    let dir = workspace(&["s/x", "s/y"], &[("p", "s/x/../y")]);
    let walls = walls_beside(&dir, &["s"], &["p", "s/x", "s/later"]);
    assert!(walls.read_only.is_empty() && walls.pinned.is_empty());
    assert!(walls.watches_link("p", "s/x/../y") && !walls.watches_absent("s/later", "s/later"));
}

#[test]
fn a_path_above_the_workspace_may_lead_back() {
    let far_up = format!("{}w/y", "../".repeat(64));
    let dir = workspace(&["y", "z"], &[("p", "../w/y"), ("q", "../up/../w/z"), ("r", &far_up)]);
    symlink("w/y", dir.path().join("up")).expect("a link outside");
    // `..` after `up` is the parent of `w/y`, so `w`, which has no `w`. By its text alone, the path would
    // lead to `z`.
    let walls = walls(&dir, &["p", "q", "r"]);
    assert_eq!(walls.read_only, ["y"]);
    assert!(walls.watches_absent("w/z", "w"), "{:?}", walls.watches);
}

#[test]
fn a_link_outside_of_the_workspace_may_lead_back() {
    let dir = workspace(&["y"], &[("p", "../up/y")]);
    symlink("w", dir.path().join("up")).expect("a link outside");
    assert_eq!(walls(&dir, &["p"]).read_only, ["y"]);
}

#[test]
fn paths_outside_of_the_workspace_are_left_alone() {
    let dir = workspace(&[], &[("p", "../other"), ("q", "../missing/x"), ("r", "/"), ("s", "..")]);
    fs::create_dir(dir.path().join("other")).expect("a directory");
    let walls = walls(&dir, &["p", "q", "r", "s"]);
    assert!(walls.read_only.is_empty() && walls.pinned.is_empty());
    let without = self::walls(&dir, &[]).watches.len();
    assert_eq!(walls.watches.len(), without + 4, "the four links only: {:?}", walls.watches);
}

#[test]
fn as_many_links_are_followed_as_the_kernel_follows() {
    let names: Vec<String> = (0..=MOST_LINKS).map(|number| format!("l{number}")).collect();
    let mut links: Vec<(&str, &str)> =
        names.windows(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    links.push((names.last().expect("the last"), "y"));
    let dir = workspace(&["y"], &links);
    let leads = |name: &str| fs::metadata(dir.path().join("w").join(name)).map(|_| ());
    assert_eq!(leads("l0").map_err(|error| error.raw_os_error()), Err(Some(libc::ELOOP)));
    leads("l1").expect("one link fewer leads to the directory");
    assert_eq!(walls(&dir, &["l1"]).read_only, ["y"]);
    let refused = walls(&dir, &["l0"]);
    assert!(refused.read_only.is_empty());
    assert!(links.iter().all(|(path, to)| refused.watches_link(path, to)));
}

#[test]
fn links_below_a_cover_are_followed_and_not_watched() {
    let dir = workspace(
        &["s", "y", "z"],
        &[("p", "s/link"), ("s/link", "../y"), ("q", "s/l/../z"), ("s/l", "../y")],
    );
    let walls = walls_beside(&dir, &["s"], &["p", "q"]);
    assert_eq!(walls.read_only, ["y", "z"]);
    assert!(walls.watches_link("p", "s/link") && !walls.watches_link("s/link", "../y"));
}

#[test]
fn a_link_on_several_paths_is_watched_once() {
    let dir = workspace(&["d"], &[("l", "d")]);
    let walls = walls(&dir, &["l/a", "l/b"]);
    let link = Watch::new(&walls.base, Path::new("l"), Path::new("l"), Expected::Link("d".into()));
    assert_eq!(walls.watches.iter().filter(|watch| **watch == link).count(), 1);
}

#[test]
fn the_target_of_many_links_is_listed_once() {
    let links: Vec<(String, &str)> = (0..32).map(|number| (format!("p/{number}"), "../big")).collect();
    let links: Vec<(&str, &str)> = links.iter().map(|(at, to)| (&**at, *to)).collect();
    let dir = workspace(&["p", "big"], &links);
    for number in 0..2000 {
        fs::write(dir.path().join(format!("w/big/{number}")), "").expect("a file");
    }
    let walls = walls(&dir, &["p"]);
    assert_eq!(walls.read_only, ["big", "p"]);
    assert!(walls.gaps.is_empty(), "{:?}", walls.gaps);
}

#[test]
fn a_path_that_is_too_deep_ends_in_a_read_only_directory() {
    let deep = vec!["d"; 70].join("/");
    let dir = workspace(&[&deep, "p"], &[("p/hook", &format!("../{deep}"))]);
    let walls = walls(&dir, &["p"]);
    let end = vec!["d"; 64].join("/");
    assert_eq!(walls.read_only, [&end, "p"]);
    assert_eq!(walls.gaps.iter().map(|gap| gap.reason.clone()).collect::<Vec<_>>(), [GapReason::TooLong]);
}

#[test]
fn a_path_of_too_many_steps_is_reported() {
    let text = "../p/".repeat(600);
    let dir = workspace(&["p", "q"], &[("p/hook", &text), ("q/hook", "../p/hook")]);
    let walls = walls(&dir, &["p", "q"]);
    assert_eq!(walls.read_only, ["p", "q"]);
    assert!(
        walls.gaps.iter().all(|gap| gap.reason == GapReason::TooLong) && walls.gaps.len() == 2,
        "{:?}",
        walls.gaps
    );
}

#[test]
fn steps_behind_links_are_limited_in_all() {
    let texts: Vec<String> = (0..40).map(|number| format!("{}y{number}", "../p/".repeat(450))).collect();
    let names: Vec<String> = (0..40).map(|number| format!("p/l{number:02}")).collect();
    let links: Vec<(&str, &str)> = names.iter().zip(&texts).map(|(at, to)| (&**at, &**to)).collect();
    let walls = walls(&workspace(&["p"], &links), &["p"]);
    assert!(walls.gaps.iter().any(|gap| gap.reason == GapReason::TooMany), "{:?}", walls.gaps);
}
