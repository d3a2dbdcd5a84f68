//! Several processes at one store, and processes that are killed.

use std::{
    fs,
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use super::{
    fixtures::{Image, Images, Tar},
    puller::{Puller, puller},
    registry::{Content, Registry},
};
use crate::support::{ends, stdout, until};

/// A root file system that takes a while.
fn large() -> Vec<u8> {
    many(5_000)
}

fn many(files: usize) -> Vec<u8> {
    let tar = Tar::new().dir("etc/");
    (0..files).fold(tar, |tar, at| tar.file(&format!("etc/{at}"), format!("{at}"))).bytes()
}

#[test]
fn processes_that_import_the_same_at_once_all_succeed() {
    let Some(images) = Images::new() else { return };
    let image = Image::new(vec![large(), Tar::new().dir("etc/").file("etc/.wh.7", "").bytes()]);
    let file = images.file("it", image.oci_archive(Some("a:1")));
    let start = || {
        let mut command = images.command(&["import", &file]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..4).map(|_| start()).collect();
    for child in started {
        let output = child.wait_with_output().unwrap();
        assert_eq!(stdout(&output), format!("{}  a:1", image.digest()), "{output:?}");
    }
    assert_eq!(images.list(), [(image.digest(), "a:1".to_owned())]);
    assert_eq!(images.left(), Vec::<std::path::PathBuf>::new());
    assert_eq!(
        fs::read_dir(images.store().join("layers")).unwrap().count(),
        4,
        "two layers and their records"
    );
    assert_eq!(images.layers("a:1")[0].len(), 5_002);
}

/// Kills a process when the layer that it makes has this file in `etc`. False if it was faster.
fn is_killed_at(images: &Images, file: &str, child: &mut Child) -> bool {
    while images.left().iter().all(|path| !path.join("tree/etc").join(file).exists()) {
        if child.try_wait().unwrap().is_some() {
            break;
        }
    }
    child.kill().unwrap();
    ends("it is killed", child);
    !images.left().is_empty()
}

#[test]
fn what_a_killed_import_left_goes_with_the_next_command() {
    let Some(images) = Images::new() else { return };
    let file = images.file("it", large());
    let mut was_killed = false;
    for _ in 0..50 {
        let mut child =
            images.command(&["import", &file, "--name", "a:1"]).stdout(Stdio::null()).spawn().unwrap();
        was_killed = is_killed_at(&images, "9", &mut child);
        if was_killed {
            break;
        }
        images.run(&["remove", "a:1"]);
    }
    assert!(was_killed, "no import was killed in the middle of a layer");
    assert_eq!(images.list(), [], "half an image never counts");
    assert_eq!(images.ok(&["prune"]), "freed 0 layers, 0");
    assert_eq!(images.left(), Vec::<std::path::PathBuf>::new());
    assert_eq!(fs::read_dir(images.store().join("layers")).unwrap().count(), 0);
    images.ok(&["import", &file, "--name", "a:1"]);
    assert_eq!(images.layers("a:1")[0].len(), 5_002);
}

/// A layer that takes a while, and one above it.
fn slow() -> Image {
    Image::new(vec![many(1_000), Tar::new().dir("etc/").file("etc/.wh.7", "").bytes()])
}

fn starts(puller: &Puller, name: &str) -> Child {
    let mut command = puller.0.command(&["pull", name]);
    puller.prepare(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What is made in the store in this moment.
fn being_made(images: &Images) -> usize {
    // Listed before it is looked at: another one begins only after the one before has ended.
    images.left().iter().filter(|path| path.join("tree").exists()).count()
}

#[test]
fn of_two_that_pull_the_same_at_once_one_unpacks_a_layer_and_the_other_waits() {
    let image = slow();
    let (content, layers) = (Content::of(&image, "a", "1"), Arc::new(AtomicUsize::new(0)));
    let (config, asked) = (image.digest(), Arc::clone(&layers));
    let registry = Registry::start(move |request| {
        if request.is_blob() && !request.path.ends_with(&config) {
            asked.fetch_add(1, SeqCst);
            // Neither has anything yet when both ask for both layers.
            until("both pulls ask", || asked.load(SeqCst) == 4);
        }
        content.answer(request)
    });
    let puller = puller!(registry);
    let name = format!("{}/a:1", registry.host);
    let mut pulls = [starts(&puller, &name), starts(&puller, &name)];
    let mut most = 0;
    until("both end", || {
        most = most.max(being_made(&puller.0));
        pulls.iter_mut().all(|pull| pull.try_wait().unwrap().is_some())
    });
    for pull in pulls {
        let output = pull.wait_with_output().unwrap();
        assert_eq!(stdout(&output), format!("{}  {name}", image.digest()), "{output:?}");
    }
    assert!(most <= 1, "{most} layers were made at once");
    let requests = registry.requests();
    assert!(requests.iter().all(|it| it.earlier <= 1), "nothing is fetched again: {requests:?}");
    assert_eq!(puller.0.list(), [(image.digest(), name.clone())]);
    assert_eq!(puller.0.left(), Vec::<std::path::PathBuf>::new());
    assert_eq!(fs::read_dir(puller.0.store().join("layers")).unwrap().count(), 4);
    assert_eq!(puller.0.layers(&name)[0].len(), 1_002);
}

/// A registry that answers so many requests and no more. Layers come by halves at first.
struct Stalling {
    registry: Registry,
    has_stalled: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

impl Stalling {
    fn new(content: &Content, config: &str, answers: usize) -> Self {
        let (has_stalled, is_over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (stalled, over, asked) = (Arc::clone(&has_stalled), Arc::clone(&is_over), AtomicUsize::new(0));
        let (content, config) = (content.clone(), config.to_owned());
        let registry = Registry::start(move |request| {
            if asked.fetch_add(1, SeqCst) >= answers {
                stalled.store(true, SeqCst);
                until("who asks is killed", || over.load(SeqCst));
            }
            let is_layer = request.is_blob() && !request.path.ends_with(&config);
            let answer = content.answer(request);
            if is_layer && request.earlier == 0 { answer.cut_after(50) } else { answer }
        });
        Self { registry, has_stalled, is_over }
    }
}

#[test]
fn a_pull_that_is_killed_at_any_moment_leaves_nothing_that_counts() {
    let image = slow();
    let content = Content::of(&image, "a", "1");
    // The name, the manifest, the configuration, two layers by halves, and the rest of one.
    let stalling: Vec<_> = (0..=6).map(|answers| Stalling::new(&content, &image.digest(), answers)).collect();
    let whole = Registry::of(content);
    let registries = stalling.iter().map(|it| &it.registry).chain([&whole]).collect::<Vec<_>>();
    let Some(puller) = Puller::new(&registries) else { return };
    let images = &puller.0;
    for Stalling { registry, has_stalled, is_over } in &stalling {
        let mut pull = starts(&puller, &format!("{}/a:1", registry.host));
        until("it is in the middle", || has_stalled.load(SeqCst));
        pull.kill().unwrap();
        ends("it is killed", &mut pull);
        is_over.store(true, SeqCst);
        assert_eq!(images.list(), [], "half an image never counts");
    }
    // Now while the lower layer is unpacked: at its beginning, in its middle, near its end.
    let name = format!("{}/a:1", whole.host);
    for file in ["9", "500", "900"] {
        let mut was_killed = false;
        for _ in 0..50 {
            images.ok(&["prune"]);
            assert_eq!(images.left(), Vec::<std::path::PathBuf>::new());
            let mut pull = starts(&puller, &name);
            was_killed = is_killed_at(images, file, &mut pull);
            if was_killed {
                break;
            }
            images.run(&["remove", &name]);
        }
        assert!(was_killed, "no pull was killed when it had made {file}");
        assert_eq!(images.list(), [], "half an image never counts");
        for layer in fs::read_dir(images.store().join("layers")).unwrap().map(|it| it.unwrap().path()) {
            assert!(
                layer.is_file() && fs::metadata(&layer).unwrap().len() == 0,
                "no layer counts: {layer:?}"
            );
        }
    }
    puller.pull(&name);
    assert_eq!(images.list(), [(image.digest(), name.clone())]);
    assert_eq!(images.left(), Vec::<std::path::PathBuf>::new());
    assert_eq!(fs::read_dir(images.store().join("layers")).unwrap().count(), 4);
    assert_eq!(images.layers(&name)[0].len(), 1_002);
    images.ok(&["remove", &name]);
    assert_eq!(fs::read_dir(images.store().join("layers")).unwrap().count(), 0);
}
