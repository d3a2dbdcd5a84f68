//! Commands that four fields describe. Each rule is tested both ways, and nothing is left behind.

mod command;
mod confined;
mod kept;
mod layer;
mod run;

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use kennel::capabilities::{Capabilities, Layer, Wrapper};

use crate::{
    serve::runtime,
    support::{TempDir, copy_program, payload_path, workspace},
};

/// Longer than anything here takes, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A wrapper with a runtime directory of its own, and a directory for its commands.
struct Place {
    wrapper: Wrapper,
    runtime: TempDir,
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let runtime = runtime();
        Self { wrapper: Wrapper::in_directory(runtime.path().join("w")), runtime, dir: workspace() }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The files of its runtime directory, sorted.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.runtime.path().join("w")).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Runs a command in the directory. Messages are in English.
    async fn output(&self, caps: &Capabilities, program: &str, args: &[&str]) -> (Output, Layer) {
        let (mut command, layer) = self.wrapper.wrap(program, args, self.path(), caps).await.unwrap();
        let output = tokio::time::timeout(PATIENCE, command.env("LC_ALL", "C").output()).await;
        (output.expect("in time").unwrap(), layer)
    }

    /// The output of a shell script, stdout before stderr.
    async fn shell(&self, caps: &Capabilities, script: &str) -> String {
        let (output, _) = self.output(caps, "sh", &["-c", script]).await;
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8(said).unwrap().trim_end().to_owned()
    }

    /// Copies the payload into the directory and makes it run an attempt.
    async fn attempt(&self, caps: &Capabilities, arguments: &[&str]) -> String {
        let payload = self.path().join("payload");
        if !payload.exists() {
            copy_program(payload_path(), &payload);
        }
        let (output, layer) = self.output(caps, "./payload", arguments).await;
        assert_eq!(layer, Layer::LinuxNamespaces);
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }
}

/// Without the network.
fn offline() -> Capabilities {
    Capabilities { net: false, ..Capabilities::default() }
}

fn writing(paths: &[&dyn AsRef<OsStr>]) -> Capabilities {
    Capabilities { write_paths: list(paths), ..Capabilities::default() }
}

fn reading(paths: &[&dyn AsRef<OsStr>]) -> Capabilities {
    Capabilities { read_paths: list(paths), ..Capabilities::default() }
}

fn list(paths: &[&dyn AsRef<OsStr>]) -> Vec<PathBuf> {
    paths.iter().map(|path| path.as_ref().into()).collect()
}
