//! Explanations of errors, on views that are made by hand.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::policy::network::NetworkMode;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::Wording;
use crate::view::paths::source::BindSource;

/// A view that shows a directory of the host writable at /rw and read-only at /deep/er/ro, with one entry of
/// every other kind.
fn explainer(host: &Path) -> Explainer {
    let mut view = View::default();
    let source = || BindSource::resolve(host).expect("a directory");
    let bind = |access| Node::Bind { source: source(), access };
    view.offer(PlaceKind::System, "/usr", bind(Access::Read));
    view.offer(PlaceKind::Link, "/bin", Node::Symlink { points_to: "usr/bin".into() });
    view.offer(PlaceKind::PrivateDirectory, "/tmp", Node::Private { mode: 0o1777 });
    view.offer(PlaceKind::Processes, "/proc", Node::Proc { is_writable: false });
    view.offer(PlaceKind::Directory, "/run", Node::Dir);
    view.offer(PlaceKind::File, "/etc/passwd", Node::File { contents: Vec::new(), mode: 0o644 });
    view.grant(PlaceKind::ReadWriteGrant, "/rw".into(), bind(Access::Write)).expect("granted");
    view.grant(PlaceKind::ReadOnlyGrant, "/deep/er/ro".into(), bind(Access::Read)).expect("granted");
    view.grant(
        PlaceKind::Tmpfs,
        "/scratch".into(),
        Node::Tmpfs { mode: 0o1777, size: TmpfsSize::from_bytes(4096) },
    )
    .expect("granted");
    view.wall(PlaceKind::Secret, Path::new("/rw/.ssh"), Node::Cover, Protection::Root);
    view.wall(PlaceKind::Secret, Path::new("/rw/.netrc"), Node::CoverFile, Protection::Root);
    view.wall(
        PlaceKind::ProtectedPath,
        Path::new("/rw/hooks"),
        bind(Access::Read),
        Protection::ProtectedPaths,
    );
    view.wall(
        PlaceKind::ObeyedByGit,
        Path::new("/rw/r/hooks"),
        bind(Access::Read),
        Protection::ProtectedPaths,
    );
    view.wall(PlaceKind::Pin, Path::new("/rw/r"), bind(Access::Write), Protection::ProtectedPaths);
    let facts = PolicyFacts {
        read_only_workspace: false,
        git: Git::Protect,
        private: TmpfsSize::from_bytes(2 << 20),
        network: NetworkMode::None,
        only_refuses: false,
        proxy_settings: Some(Vec::new()),
        ports: None,
        homes: vec!["/home/me".into()],
        home_outside: "/home/me".into(),
        home: "/home/me".into(),
        directory_outside: None,
    };
    Explainer { view: view.into(), policy: facts.into() }
}

fn reading(errno: Errno) -> Attempt {
    Attempt { errno, writes: false }
}

fn host() -> tempfile::TempDir {
    let host = tempfile::Builder::new().prefix("kennel-test-").tempdir_in("/tmp").expect("a directory");
    fs::create_dir(host.path().join("hooks")).expect("a directory");
    host
}

/// The subject, whether the reason is certain, and the recommended flag.
fn explain(explainer: &Explainer, path: &str, errno: Errno) -> Option<(String, bool, Option<String>)> {
    let denial = explainer.explain(Path::new(path), reading(errno), &[])?.worded(Wording::default());
    Some((denial.subject, denial.basis.is_certain(), denial.remedy.map(|remedy| remedy.to_string())))
}

/// `mkdir -p` and the like fail at the sandbox's own root. A directory that holds everything is never
/// advised.
#[test]
fn what_is_made_below_a_hidden_directory_names_that() {
    let host = host();
    let explainer = explainer(host.path());
    let flag = |path: &str| explain(&explainer, path, Errno::EROFS).expect(path).2;
    assert_eq!(flag("/srv/models/d/new").as_deref(), Some("rw /srv/models/d"));
    for path in ["/srv", "/srv/new", "/new", "/home/new", "/home/me/.ssh/new"] {
        assert_eq!(flag(path), None, "{path}");
    }
    let denial =
        explainer.explain(Path::new("/srv/models/new"), reading(Errno::EROFS), &[]).expect("explained");
    let would = "; rw /srv/models would allow it, if there is such a directory outside";
    let reason = denial.worded(Wording::default()).reason;
    assert!(reason.ends_with(would), "{reason}");
}

#[test]
fn a_read_only_path_is_explained_with_certainty() {
    let host = host();
    let explainer = explainer(host.path());
    let source = host.path().canonicalize().expect("canonical").display().to_string();
    let certain = |path: &str| {
        let (subject, certain, flag) = explain(&explainer, path, Errno::EROFS).expect(path);
        assert!(certain, "{path}");
        (subject, flag)
    };
    assert_eq!(certain("/usr/x"), ("/usr/x".to_owned(), None));
    assert_eq!(certain("/bin/x"), ("/usr/bin/x".to_owned(), None));
    assert_eq!(certain("/x"), ("/x".to_owned(), None));
    assert_eq!(certain("/run/x/../y"), ("/run/y".to_owned(), None));
    assert_eq!(certain("/proc/sys/x"), ("/proc/sys/x".to_owned(), None));
    assert_eq!(certain("/etc/passwd"), ("/etc/passwd".to_owned(), None));
    assert_eq!(certain("/rw/.ssh/id"), ("/rw/.ssh/id".to_owned(), None));
    let rw = |target: &str| Some(format!("rw {source}:{target}"));
    assert_eq!(certain("/deep/er/ro/x"), ("/deep/er/ro/x".to_owned(), rw("/deep/er/ro")));
    assert_eq!(certain("/rw/hooks/x"), ("/rw/hooks/x".to_owned(), None));
}

#[test]
fn a_writable_path_is_not_explained() {
    let host = host();
    let explainer = explainer(host.path());
    for path in ["/rw/x", "/rw/../rw/x", "/tmp/x", "/scratch/x", "/etc/passwd/x", "x", ""] {
        assert_eq!(explain(&explainer, path, Errno::EROFS), None, "{path}");
    }
    for errno in [Errno::EACCES, Errno::EPERM, Errno::ENOTDIR, Errno::EXDEV] {
        assert_eq!(explain(&explainer, "/usr/x", errno), None, "the host answers {errno} as well");
    }
}

#[test]
fn a_hidden_path_is_a_possible_reason_and_a_shown_one_is_none() {
    let host = host();
    let explainer = explainer(host.path());
    for path in ["/srv/x", "/run/x", "/deep/x", "/tmp/x", "/scratch/x", "/rw/.ssh/id"] {
        let flag = Some(format!("ro {path}"));
        assert_eq!(explain(&explainer, path, Errno::ENOENT), Some((path.to_owned(), false, flag)), "{path}");
    }
    for path in ["/usr/x", "/rw/x", "/deep", "/deep/er", "/", "/proc/x", "/tmp", "/etc/passwd/x", "/rw/.ssh"]
    {
        assert_eq!(explain(&explainer, path, Errno::ENOENT), None, "{path}");
    }
}

#[test]
fn a_known_secret_is_called_one_and_what_is_to_be_made_needs_its_directory() {
    let host = host();
    let explainer = explainer(host.path());
    let denial = |path: &str, writes| {
        let attempt = Attempt { errno: Errno::ENOENT, writes };
        explainer.explain(Path::new(path), attempt, &[]).expect(path).worded(Wording::default())
    };
    let secret = denial("/home/me/.ssh/id", false);
    assert!(secret.reason.starts_with("it is a known place of secrets"), "{secret:?}");
    assert_eq!(denial("/srv/a/b", true).remedy, Some("rw /srv/a".into()));
    assert_eq!(denial("/srv", true).remedy, None, "no flag grants the root");
}

#[test]
fn a_file_with_a_grant_of_its_own_cannot_be_replaced() {
    let host = host();
    let file = host.path().join("file");
    fs::write(&file, "").expect("a file");
    let mut explainer = explainer(host.path());
    let mut view = View::clone(&explainer.view);
    let node = || Node::Bind { source: BindSource::resolve(&file).expect("a file"), access: Access::Write };
    for place in ["/alone/file", "/rw/file", "/home/me/file"] {
        view.grant(PlaceKind::ReadWriteGrant, place.into(), node()).expect("granted");
    }
    explainer.view = view.into();
    let directory = host.path().canonicalize().expect("canonical").display().to_string();
    let flag = Some(format!("rw {directory}:/alone"));
    for (path, errno) in [
        ("/alone/file", Errno::EBUSY),
        ("/alone/file", Errno::EXDEV),
        ("/alone/other", Errno::EBUSY),
        ("/alone/other", Errno::EROFS),
    ] {
        let told = explain(&explainer, path, errno);
        assert_eq!(told, Some(("/alone/file".to_owned(), true, flag.clone())), "{path} {errno}");
    }
    // Its directory is writable anyway.
    assert_eq!(explain(&explainer, "/rw/file", Errno::EBUSY), Some(("/rw/file".to_owned(), true, None)));
    assert_eq!(explain(&explainer, "/rw/other", Errno::EBUSY), None);
    assert_eq!(explain(&explainer, "/alone/file", Errno::EROFS), None, "it is writable");
    assert_eq!(explain(&explainer, "/other/file", Errno::EXDEV), None);
    // No advice gives a whole HOME away.
    Arc::get_mut(&mut explainer.policy).expect("one owner").homes =
        vec![host.path().canonicalize().expect("canonical")];
    assert_eq!(
        explain(&explainer, "/alone/file", Errno::EBUSY),
        Some(("/alone/file".to_owned(), true, None))
    );
}

#[test]
fn a_flag_is_recommended_only_if_it_can_be_typed() {
    let host = host();
    let explainer = explainer(host.path());
    for path in ["/srv/a b", "/srv/$(x)", "/srv/a:b", "/srv/a'b", "/srv/a\nb"] {
        let (_, _, flag) = explain(&explainer, path, Errno::ENOENT).expect(path);
        assert_eq!(flag, None, "{path}");
    }
}

#[test]
fn mount_points_cannot_be_moved() {
    let host = host();
    let explainer = explainer(host.path());
    for path in ["/rw/hooks", "/rw/.ssh", "/tmp", "/usr"] {
        assert_eq!(explain(&explainer, path, Errno::EBUSY), Some((path.to_owned(), true, None)), "{path}");
    }
    for path in ["/rw/x", "/rw/hooks/x", "/run", "/bin"] {
        assert_eq!(explain(&explainer, path, Errno::EBUSY), None, "{path}");
    }
}

#[test]
fn a_full_file_system_is_explained_with_its_size() {
    let host = host();
    let explainer = explainer(host.path());
    let full = |path| {
        explainer
            .explain(Path::new(path), reading(Errno::ENOSPC), &[])
            .map(|denial| denial.worded(Wording::default()).reason)
    };
    let private = "full: private places hold 2M and 512 inodes together; limits.tmp_size 4M would give more";
    assert_eq!(full("/tmp/x").as_deref(), Some(private));
    assert_eq!(
        full("/scratch/x").as_deref(),
        Some("full: /scratch holds 4K and 64 inodes; tmpfs /scratch:8K would give more")
    );
    assert_eq!(full("/rw/x"), None, "the host's disk");
}

#[test]
fn links_are_followed_only_inside_the_view() {
    let host = host();
    symlink("/srv/x", host.path().join("out")).expect("a link");
    symlink("../usr", host.path().join("up")).expect("a link");
    symlink("loop", host.path().join("loop")).expect("a link");
    // Resolved inside: the same path on the host is another file.
    symlink(host.path().join("out"), host.path().join("host")).expect("a link");
    let explainer = explainer(host.path());
    let subject = |path, errno| explain(&explainer, path, errno).map(|(subject, ..)| subject);
    assert_eq!(subject("/rw/out", Errno::ENOENT).as_deref(), Some("/srv/x"));
    assert_eq!(subject("/rw/out/y", Errno::ENOENT).as_deref(), Some("/srv/x/y"));
    assert_eq!(subject("/rw/up/x", Errno::EROFS).as_deref(), Some("/usr/x"));
    assert_eq!(subject("/rw/loop", Errno::ENOENT), None);
    let inside = host.path().join("out").display().to_string();
    assert_eq!(subject("/rw/host", Errno::ENOENT), Some(inside));
    // Renaming and removing are about the link itself.
    assert_eq!(subject("/usr/out", Errno::EROFS).as_deref(), Some("/srv/x"));
    assert_eq!(subject("/usr/../rw/out", Errno::EBUSY), None);
}

#[test]
fn restrictions_of_a_command_explain_its_errors() {
    let host = host();
    let explainer = explainer(host.path());
    let restrictions = [Restriction::ReadOnly("/rw".into()), Restriction::Hide("/deep/er/ro".into())];
    let denied = |path: &str, errno| {
        let denial = explainer.explain(Path::new(path), reading(errno), &restrictions)?;
        Some((denial.reason, denial.basis, denial.remedy))
    };
    let writing = "the command was started without writing there".to_owned();
    assert_eq!(denied("/rw/x", Errno::EROFS), Some((writing, Basis::Derived, None)));
    let hidden = "the command was started without it".to_owned();
    assert_eq!(denied("/deep/er/ro/x", Errno::ENOENT), Some((hidden, Basis::Possible, None)));
    assert_eq!(denied("/rw/x", Errno::ENOENT), None);
}

#[test]
fn what_git_obeys_has_a_flag() {
    let host = host();
    let mut explainer = explainer(host.path());
    let flag =
        |explainer: &Explainer, path, errno| explain(explainer, path, errno).map(|(_, _, remedy)| remedy);
    let trust = Some(Some(trust_git().to_string()));
    for (path, errno, remedy) in [
        ("/rw/r/hooks/x", Errno::EROFS, trust.clone()),
        ("/rw/r/hooks", Errno::EBUSY, trust.clone()),
        ("/rw/r", Errno::EBUSY, trust.clone()),
        ("/rw/hooks/x", Errno::EROFS, Some(None)),
        ("/rw/hooks", Errno::EBUSY, Some(None)),
    ] {
        assert_eq!(flag(&explainer, path, errno), remedy, "{path} {errno}");
    }
    Arc::get_mut(&mut explainer.policy).expect("one owner").git = Git::ReadOnly;
    assert_eq!(flag(&explainer, "/rw/r/hooks/x", Errno::EROFS), trust);
}

#[test]
fn a_hint_needs_a_path_outside_and_a_flag_that_helps() {
    let host = host();
    let explainer = explainer(host.path());
    let hidden = tempfile::Builder::new().prefix("kennel-hint-").tempdir_in("/var/tmp").expect("a directory");
    fs::write(hidden.path().join("f"), "").expect("a file");
    let at = |name: &str| hidden.path().join(name);
    let flag = |path: &Path, used| {
        let remedy = explainer.hint(path, used)?.remedy?;
        let remedy = remedy.to_string();
        let mut words = remedy.split(' ');
        Some((words.next()?.to_owned(), words.next()?.into()))
    };
    let (ro, rw) =
        (|path: PathBuf| Some(("ro".to_owned(), path)), |path: PathBuf| Some(("rw".to_owned(), path)));
    for (path, used, expected) in [
        (at("f"), false, ro(at("f"))),
        (at("f"), true, rw(at("f"))),
        (at("new"), false, ro(hidden.path().into())),
        (at("new"), true, rw(hidden.path().into())),
        (at("x/new"), true, None),
        (hidden.path().into(), true, rw(hidden.path().into())),
        ("/deep/er/ro".into(), false, None),
        ("/deep/er/ro/x".into(), true, rw(format!("{}:/deep/er/ro", host.path().display()).into())),
        ("/rw/x".into(), true, None),
        ("/tmp/made".into(), true, None),
        ("/scratch/made".into(), true, None),
        ("/rw/r/hooks/x".into(), true, Some(("git".to_owned(), "trust".into()))),
        ("/usr/x".into(), true, None),
        ("/".into(), false, None),
        ("/home/me/nothing".into(), true, None),
    ] {
        assert_eq!(flag(&path, used), expected, "{path:?} {used:?}");
    }
    // Commands may have made the link, so its target is not named.
    symlink(at("f"), host.path().join("link")).expect("a link");
    assert_eq!(explainer.hint(Path::new("/rw/link"), false), None);
    assert_eq!(explainer.hint(&at("../../etc/passwd"), false), None);
}
