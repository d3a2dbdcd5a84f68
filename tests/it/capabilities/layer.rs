//! If the host cannot confine a command that must be confined, nothing runs.

use std::{fs, time::Duration};

use kennel::{
    Error,
    capabilities::{Capabilities, Layer, RunLimits, Wrapper},
};
use tokio::runtime::Builder;

use super::offline;
use crate::{
    serve::runtime,
    support::{has, is_alone, patient, require, workspace},
};

#[test]
fn without_namespaces_it_is_refused_with_a_remedy() {
    require!(has("unshare"), "unshare of util-linux");
    let exe = std::env::current_exe().unwrap();
    // Inside, the link in /proc cannot be followed.
    let enter = format!(
        "shift; exec unshare --user --map-root-user \
         sh -c 'echo 0 > /proc/sys/user/max_user_namespaces; exec \"$@\"' sh {} \"$@\"",
        exe.display()
    );
    if !is_alone("capabilities::layer::without_namespaces_it_is_refused_with_a_remedy", &enter) {
        return;
    }
    let (dir, runtime) = (workspace(), runtime());
    let wrapper = Wrapper::in_directory(runtime.path().join("w"));
    assert_eq!(wrapper.resolve_layer(&offline()), Layer::None);
    assert_eq!(wrapper.resolve_layer(&Capabilities::default()), Layer::Lightweight);
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let script = ["-c", "echo ran > ran"];
        let refused = [
            wrapper.wrap("sh", script, dir.path(), &offline()).await.map(drop).unwrap_err(),
            wrapper
                .run("sh", script, dir.path(), &offline(), &RunLimits::default())
                .await
                .map(drop)
                .unwrap_err(),
        ];
        for error in refused {
            assert!(matches!(error, Error::Step { .. } | Error::Unavailable { .. }), "{error:?}");
            let remedy = error.remedy().expect("a remedy").to_string();
            assert!(remedy.contains("max_user_namespaces"), "{remedy}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing ran");
        assert_eq!(fs::read_dir(runtime.path()).unwrap().count(), 0, "nothing is left");
        let (mut command, layer) =
            wrapper.wrap("sh", script, dir.path(), &Capabilities::default()).await.unwrap();
        assert!(command.status().await.unwrap().success() && layer == Layer::Lightweight);
    });
}

#[test]
fn it_can_be_asked_from_anywhere() {
    let wrapper = Wrapper::new();
    assert_eq!(wrapper.resolve_layer(&offline()), Layer::LinuxNamespaces);
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let fresh = Wrapper::new();
        assert_eq!(fresh.resolve_layer(&offline()), Layer::LinuxNamespaces);
        let begun = std::time::Instant::now();
        for _ in 0..10_000 {
            assert_eq!(fresh.resolve_layer(&offline()), Layer::LinuxNamespaces);
        }
        assert!(begun.elapsed() < patient(Duration::from_secs(2)), "it is remembered");
    });
}
