//! A server of a test's own: the real one, which cargo builds beside the tests.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kennel_client::{Server, Session};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// A program of this build: cargo tells its path only to tests of its package.
fn program() -> PathBuf {
    if let Some(path) = env::var_os("KENNEL_SERVER") {
        return path.into();
    }
    let own = env::current_exe().unwrap();
    let path = own.parent().unwrap().parent().unwrap().join("kennel-server");
    let hint = "run cargo build --package kennel-server";
    assert!(path.exists(), "{} is missing: {hint}", path.display());
    path
}

/// Skips the test if something that it needs is missing. With `KENNEL_MUST_RUN=1` that is a failure.
#[macro_export]
macro_rules! require {
    ($condition:expr, $what:expr) => {
        if !$condition {
            assert!(std::env::var_os("KENNEL_MUST_RUN").is_none(), "required here, but missing: {}", $what);
            println!("SKIP: missing: {}", $what);
            return;
        }
    };
}

pub(crate) struct TestServer {
    process: Child,
    pub(crate) place: TempDir,
    pub(crate) url: String,
    pub(crate) key: String,
}

impl TestServer {
    /// At a port of its own.
    pub(crate) fn start(config: &str) -> Self {
        Self::listening("127.0.0.1:0", config)
    }

    pub(crate) fn listening(listen: &str, config: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let listen = listen.replace("PLACE", &place.path().display().to_string());
        let text = format!("listen = '{listen}'\nhosts = 1\norphan = '20s'\n{config}");
        fs::write(place.path().join("serve.toml"), text).unwrap();
        let (process, url, key) = begin(place.path(), None);
        Self { process, place, url, key }
    }

    /// A client that does not wait for a server that is away.
    pub(crate) fn client(&self) -> Server {
        Server::new(&self.url).unwrap().token(&self.key).patience(Duration::from_secs(1))
    }

    pub(crate) async fn session(&self) -> Session {
        self.client().sandbox().create().await.unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts another front at the same address.
    pub(crate) fn start_again(&mut self) {
        let address = self.url.split_once("://").unwrap().1.to_owned();
        self.process = begin(self.place.path(), Some(&address)).0;
    }

    /// The processes in which its sandboxes live.
    pub(crate) fn kill_hosts(&self) {
        let state = self.place.path().join("state").display().to_string();
        for entry in fs::read_dir("/proc").unwrap() {
            let Some(pid) = entry.unwrap().file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words);
            if words.contains("serve-host") && words.contains(&state) {
                kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            }
        }
    }

    /// How many sandboxes have files.
    pub(crate) fn sandboxes(&self) -> usize {
        fs::read_dir(self.place.path().join("state/sandboxes")).unwrap().count()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        for _ in 0..2 {
            let _ = kill(Pid::from_raw(self.process.id().cast_signed()), Signal::SIGTERM);
            sleep(Duration::from_millis(100));
        }
        let _ = self.process.wait();
    }
}

fn begin(place: &Path, address: Option<&str>) -> (Child, String, String) {
    let mut command = Command::new(program());
    command.arg("serve").arg("--config").arg(place.join("serve.toml"));
    command.arg("--state").arg(place.join("state"));
    address.into_iter().for_each(|address| {
        command.args(["--listen", address]);
    });
    let errors = fs::OpenOptions::new().create(true).append(true).open(place.join("errors")).unwrap();
    let mut process = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let said = || fs::read_to_string(place.join("errors")).unwrap();
    let mut next = || lines.next().unwrap_or_else(|| panic!("{}", said()));
    let url = next().strip_prefix("# Kennel serves at ").unwrap().to_owned();
    let key = [next(), next(), next()][2].split_once('=').unwrap().1.to_owned();
    (process, url, key)
}

/// Waits until something is so.
pub(crate) async fn wait_until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let end = Instant::now() + Duration::from_secs(15);
    while !is_so().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a process with this word in its arguments runs in the session.
pub(crate) async fn runs(session: &Session, word: &str) -> bool {
    let script = format!(
        "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q '^sleep {word}' && exit 0; done; exit 1"
    );
    session.command("sh").args(["-c", &script]).status().await.unwrap().status.success()
}
