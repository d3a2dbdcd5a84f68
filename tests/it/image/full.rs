//! A full disk: what does not fit is refused as a whole, nothing of it is left, and what is there can be
//! removed.
//!
//! The store of each test is a small file system, mounted where nobody else sees it.

use std::{
    fs,
    io::Write,
    ops::Deref,
    path::PathBuf,
    process::{Command, Output},
};

use nix::{errno::Errno, sys::statvfs::statvfs};

use super::{
    fixtures::{Image, Tar, gzip, holds_layers},
    puller::{Puller, layer},
    registry::{Content, Registry},
};
use crate::support::{has, is_alone, require, stderr, stdout};

/// Executes a process that may mount and has mounts of its own.
const APART: &str = r#"exec 7<"$1"; shift; set -- /proc/self/fd/7 "$@"
[ "$(id -u)" = 0 ] && exec unshare -m "$@"; exec unshare --user --map-root-user -m "$@""#;

/// Enough for what fits: 1 MiB with pages of 4 KiB.
const PAGES: u64 = 256;
const FILES: u64 = 300;

/// Ends the test if it ran in another process, or cannot run here.
macro_rules! apart {
    ($test:literal, $($registry:expr),*) => {{
        require!(has("unshare"), "unshare of util-linux");
        if !is_alone(concat!("image::full::", $test), APART) {
            return;
        }
        let Some(disk) = Disk::new(&[$(&$registry),*]) else { return };
        require!(holds_layers(&disk.store()), "attributes of users in a tmpfs, Linux 6.6");
        disk
    }};
}

/// A store on a disk of its own.
struct Disk {
    puller: Puller,
    page: u64,
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The mount ends with the test's process anyway, but its directory is removed before that.
        let _ = Command::new("umount").arg("-l").arg(self.store()).status();
    }
}

impl Deref for Disk {
    type Target = super::fixtures::Images;

    fn deref(&self) -> &Self::Target {
        &self.puller.0
    }
}

impl Disk {
    fn new(plain: &[&Registry]) -> Option<Self> {
        let puller = Puller::new(plain)?;
        let store = puller.0.store();
        fs::create_dir(&store).unwrap();
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).unwrap().unwrap();
        let page = u64::try_from(page).unwrap();
        let options = format!("size={},nr_inodes={FILES},mode=700", PAGES * page);
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(&store).status();
        assert!(mounted.unwrap().success());
        Some(Self { puller, page })
    }

    /// Takes all space but that of some pages and some files.
    fn fill(&self, pages: u64, files: u64) {
        let ballast = self.store().join("ballast");
        let _ = fs::remove_dir_all(&ballast);
        fs::create_dir(&ballast).unwrap();
        let mut space = fs::File::create(ballast.join("space")).unwrap();
        let mut made: Vec<PathBuf> = Vec::new();
        let full = loop {
            let path = ballast.join(made.len().to_string());
            match fs::File::create(&path) {
                Ok(_) => made.push(path),
                Err(error) => break error,
            }
        };
        assert_eq!(full.raw_os_error(), Some(Errno::ENOSPC as i32));
        let spare = usize::try_from(files).unwrap().min(made.len());
        made.iter().take(spare).for_each(|path| fs::remove_file(path).unwrap());
        let free = statvfs(&self.store()).unwrap().blocks_free().saturating_sub(pages);
        space.write_all(&vec![1; usize::try_from(free * self.page).unwrap()]).unwrap();
    }

    /// Makes room again.
    fn free(&self) {
        fs::remove_dir_all(self.store().join("ballast")).unwrap();
    }

    /// What is in the store's directories, also what does not count.
    fn kept(&self) -> Vec<PathBuf> {
        let of = |name: &str| fs::read_dir(self.store().join(name)).unwrap().map(|it| it.unwrap().path());
        ["tmp", "names", "images", "layers"].into_iter().flat_map(of).collect()
    }

    /// What a command says that does not fit, of which nothing may be left, neither now nor for the next
    /// writer.
    fn refuses(&self, output: &Output) -> String {
        let said = stderr(output);
        assert_eq!((output.status.code(), stdout(output)), (Some(125), String::new()), "{output:?}");
        assert!(said.contains("No space left on device") && said.contains("hint: make room"), "{said}");
        assert_eq!(said.lines().count(), 2, "{said}");
        assert_eq!((self.left(), self.list()), (vec![], vec![]), "{said}");
        self.ok(&["prune"]);
        assert_eq!(self.kept(), Vec::<PathBuf>::new(), "{said}");
        said
    }
}

/// A layer of more than the disk holds.
fn large(disk: &Disk) -> Vec<u8> {
    let content = vec![b'x'; usize::try_from(PAGES * disk.page).unwrap()];
    Tar::new().dir("etc/").file("etc/first", "1").file("etc/large", content).bytes()
}

/// What gzip cannot make much smaller.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn an_import_that_does_not_fit_names_what_does_not_and_leaves_nothing() {
    let disk = apart!("an_import_that_does_not_fit_names_what_does_not_and_leaves_nothing",);
    let image = Image::new(vec![layer("lower"), large(&disk)]);
    let archive = image.oci_archive(Some("a:1"));
    let file = disk.file("it", &archive);
    disk.ok(&["prune"]);
    // The second layer is half unpacked.
    let said = disk.refuses(&disk.run(&["import", &file]));
    assert!(said.contains(", entry `etc/large`: No space left on device"), "{said}");
    // So is the copy of what comes through a pipe, or is compressed as a whole.
    let plain = Image::new(vec![noise(usize::try_from(PAGES * disk.page).unwrap())]).oci_archive(Some("a:1"));
    for given in [plain.clone(), gzip(&plain)] {
        let said = disk.refuses(&disk.fed(&["import", "-"], &given));
        assert!(said.contains("copy it to the image store: "), "{said}");
    }
    let said = disk.refuses(&disk.run(&["import", &disk.file("whole", gzip(&plain))]));
    assert!(said.contains("copy it to the image store: "), "{said}");
    // No more files are left, and some space is.
    let many = (0..FILES).fold(Tar::new(), |tar, at| tar.file(&format!("etc/{at}"), "")).bytes();
    let said = disk.refuses(&disk.run(&["import", "--name", "a:1", &disk.file("many", many)]));
    assert!(said.contains(", entry `etc/2"), "{said}");
}

#[test]
fn a_pull_that_does_not_fit_names_what_does_not_and_leaves_nothing() {
    let page = usize::try_from(nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).unwrap().unwrap());
    let length = usize::try_from(PAGES).unwrap() * page.unwrap();
    let of = |content: Vec<u8>| {
        let upper = Tar::new().dir("etc/").file("etc/large", content).bytes();
        Registry::of(Content::of(&Image::new(vec![layer("lower"), upper]), "a", "1"))
    };
    let (fetched, unpacked) = (of(noise(length)), of(vec![b'x'; length]));
    let disk = apart!("a_pull_that_does_not_fit_names_what_does_not_and_leaves_nothing", fetched, unpacked);
    for (registry, what) in
        [(&fetched, "write a layer to the image store: "), (&unpacked, "entry `etc/large`: ")]
    {
        let name = format!("{}/a:1", registry.host);
        let said = disk.refuses(&disk.puller.run(&["pull", &name]));
        assert!(said.contains(&format!("{what}No space left on device")), "{said}");
    }
}

/// With each amount of room from none on, until all fits: so the disk is full at every step, also when only
/// the record of a name is missing.
fn grows(disk: &Disk, expected: &str, run: impl Fn() -> Output) {
    disk.ok(&["prune"]);
    for of_files in [true, false] {
        let mut refusals = 0;
        loop {
            match of_files {
                true => disk.fill(PAGES, refusals),
                false => disk.fill(refusals, FILES),
            }
            let output = run();
            if output.status.success() {
                break;
            }
            disk.refuses(&output);
            refusals += 1;
            assert!(refusals < FILES, "it never fits: {output:?}");
        }
        assert!(refusals > 3, "it fits at once");
        assert_eq!(disk.list().len(), 1);
        // Now without any room.
        disk.fill(0, 0);
        let removed = disk.ok(&["remove", expected]);
        assert!(removed.starts_with(&format!("removed name {expected}\nremoved image sha256:")), "{removed}");
        assert_eq!(disk.kept(), Vec::<PathBuf>::new());
        disk.free();
    }
}

#[test]
fn an_import_to_a_disk_that_is_full_at_any_step_leaves_nothing() {
    let disk = apart!("an_import_to_a_disk_that_is_full_at_any_step_leaves_nothing",);
    let file = disk.file("it", Image::of_two_layers().oci_archive(Some("a:1")));
    grows(&disk, "a:1", || disk.run(&["import", &file]));
}

#[test]
fn a_pull_to_a_disk_that_is_full_at_any_step_leaves_nothing() {
    let registry = Registry::of(Content::of(&Image::of_two_layers(), "a", "1"));
    let disk = apart!("a_pull_to_a_disk_that_is_full_at_any_step_leaves_nothing", registry);
    let name = format!("{}/a:1", registry.host);
    grows(&disk, &name, || disk.puller.run(&["pull", &name]));
}

#[test]
fn images_are_removed_from_a_full_disk() {
    let disk = apart!("images_are_removed_from_a_full_disk",);
    let image = Image::of_two_layers();
    let other = Image::new(vec![layer("one"), image.layers[0].clone()]);
    for (name, image) in [("a:1", &image), ("b:1", &other)] {
        disk.ok(&["import", &disk.file("it", image.oci_archive(Some(name)))]);
    }
    disk.fill(0, 0);
    assert_eq!(disk.ok(&["remove", "a:1"]).lines().count(), 3);
    assert_eq!(disk.list(), [(other.digest(), "b:1".to_owned())], "the other one stays whole");
    assert_eq!(disk.layers("b:1").len(), 2);
    disk.fill(0, 0);
    disk.ok(&["remove", "b:1"]);
    assert_eq!(disk.kept(), Vec::<PathBuf>::new());
}
