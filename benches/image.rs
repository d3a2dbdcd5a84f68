//! Measures what an image costs: in the preparation of a session, in its commands and in memory, each beside
//! a session on the host's system; and unpacking, beside tar, and snapshots.
//!
//! `cargo bench --features image --bench image [PAIRS]`; `ONLY=…` picks one of prepare, exec, memory, unpack,
//! snapshot.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::{
    env,
    fs::{self, File},
    io::{Read, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use flate2::{Compression, write::GzEncoder};
use kennel::{
    ImageUpper, Isolation, Policy, Profile, Session,
    image::{LayerBlob, Reference, Store, StoreWriter, StoredLayer},
};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// A program without libraries, so that it runs in every root.
const PROGRAM: &str = "int main(void) { return 0; }";

/// Idle sessions at once.
const SESSIONS: usize = 200;

/// Files of the unpacked layer, and of a snapshot.
const FILES: usize = 6_700;
const CHANGED: usize = 10_000;

/// Bytes of a file of the unpacked layer: 280 MB in all.
const FILE_SIZE: usize = 42_000;

fn main() {
    let place = tempfile::tempdir().expect("a temporary directory");
    if env::var_os("KENNEL_IMAGES").is_none() {
        // The library takes the store that the environment names.
        let mut again = Command::new(env::current_exe().expect("this program"));
        again.args(env::args_os().skip(1)).env("KENNEL_IMAGES", place.path().join("store"));
        assert!(again.status().expect("this program").success());
        return;
    }
    let pairs = env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(300);
    let wanted = env::var("ONLY").ok();
    let is_wanted = |part: &str| wanted.as_deref().is_none_or(|wanted| wanted == part);
    let bench = Bench::new(place);
    if is_wanted("prepare") {
        bench.prepare(pairs);
    }
    if is_wanted("exec") {
        bench.exec(pairs);
    }
    if is_wanted("memory") {
        bench.memory();
    }
    if is_wanted("unpack") {
        bench.unpack();
    }
    if is_wanted("snapshot") {
        bench.snapshot();
    }
}

struct Bench {
    place: TempDir,
    writer: StoreWriter,
    runtime: Runtime,
}

impl Bench {
    /// Images of 10 and of 100 layers, each layer with a file of its own.
    fn new(place: TempDir) -> Self {
        let program = place.path().join("true");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-static", "-x", "c", "-", "-o"]).arg(&program).stdin(Stdio::piped());
        let mut compiler = compiler.spawn().expect("cc");
        compiler.stdin.take().expect("a pipe").write_all(PROGRAM.as_bytes()).expect("written");
        assert!(compiler.wait().expect("cc").success());
        let writer = Store::open_default().and_then(|store| store.writer()).expect("a store");
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let bench = Self { place, writer, runtime };
        let program = fs::read(program).expect("a program");
        for count in [10, 100] {
            let mut layers: Vec<StoredLayer> = Vec::new();
            for number in 0..count {
                let mut files = vec![(format!("etc/{number}"), b"x".to_vec())];
                if number == 0 {
                    files.push(("bin/true".to_owned(), program.clone()));
                }
                let blob = LayerBlob::new(std::io::Cursor::new(archive(&files)));
                layers.push(bench.writer.add_layer(blob, &layers).expect("a layer"));
            }
            bench.image(&format!("layers:{count}"), &layers);
        }
        bench
    }

    fn image(&self, name: &str, layers: &[StoredLayer]) {
        let diff_ids: Vec<String> = layers.iter().map(|layer| layer.diff_id().to_string()).collect();
        let config = serde_json::json!({
            "architecture": "amd64", "os": "linux", "config": {},
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let name: Reference = name.parse().expect("a name");
        self.writer.add_image(config.to_string().as_bytes(), layers, &[name]).expect("an image");
    }

    fn policy(&self, image: Option<&str>) -> Policy {
        let policy = Policy::profile(Profile::NoNetwork, self.place.path());
        match image {
            Some(image) => Policy { workspace: "".into(), ..policy }.image(image),
            None => policy,
        }
    }

    fn session(&self, policy: &Policy, ready: usize) -> Session {
        self.runtime.block_on(Session::builder(policy).ready_workers(ready).prepare()).expect("a session")
    }

    /// What an image adds to the preparation of a session.
    fn prepare(&self, pairs: usize) {
        println!("\n| Session::prepare | median ms | p10 to p90 | added |\n| --- | ---: | ---: | ---: |");
        let policies = [None, Some("layers:10"), Some("layers:100")].map(|image| (image, self.policy(image)));
        let mut samples = [const { Vec::new() }; 3];
        for _ in 0..pairs {
            for ((_, policy), samples) in policies.iter().zip(&mut samples) {
                let begun = Instant::now();
                let session = self.session(policy, 2);
                samples.push(begun.elapsed());
                drop(session);
                // The other processor tears it down.
                thread::sleep(Duration::from_millis(5));
            }
        }
        let plain = median(&mut samples[0]);
        for ((image, _), samples) in policies.iter().zip(&mut samples) {
            let (name, middle) = (image.unwrap_or("the host's system"), median(samples));
            println!("| {name} | {middle:.2} | {} | {:.2} |", spread(samples), middle - plain);
        }
    }

    /// A command of a session, to a bare spawn of the same program.
    fn exec(&self, pairs: usize) {
        println!("\n| exec | median ms | to a bare spawn |\n| --- | ---: | ---: |");
        let program = self.place.path().join("true");
        for isolation in [Isolation::Command, Isolation::Session] {
            for (image, path) in [(None, program.as_path()), (Some("layers:10"), Path::new("/bin/true"))] {
                let session = self.session(&self.policy(image).isolation(isolation), 8);
                let (mut ours, mut bare) = (Vec::new(), Vec::new());
                for _ in 0..pairs * 4 {
                    bare.push(timed(|| {
                        assert!(Command::new(&program).status().expect("a program").success())
                    }));
                    ours.push(timed(|| {
                        let run = async { session.command(path).stdin(kennel::Stdio::null()).status().await };
                        assert!(self.runtime.block_on(run).expect("an outcome").status.success());
                    }));
                }
                let (ours, bare) = (median(&mut ours), median(&mut bare));
                let root = image.unwrap_or("the host's system");
                println!("| {root}, isolation {isolation} | {ours:.3} | {:.2} |", ours / bare);
            }
        }
    }

    /// What the machine lacks while idle sessions are there.
    fn memory(&self) {
        println!("\n| {SESSIONS} idle sessions | KiB each |\n| --- | ---: |");
        for image in [None, Some("layers:10"), None, Some("layers:10")] {
            let policy = self.policy(image);
            let before = available();
            let sessions: Vec<Session> = (0..SESSIONS).map(|_| self.session(&policy, 1)).collect();
            thread::sleep(Duration::from_secs(1));
            let taken = before.saturating_sub(available()) / SESSIONS as u64;
            println!("| {} | {taken} |", image.unwrap_or("the host's system"));
            drop(sessions);
            thread::sleep(Duration::from_secs(1));
        }
    }

    /// A layer as gzip has it, to tar.
    fn unpack(&self) {
        let mut random = File::open("/dev/urandom").expect("random bytes");
        let mut noise = vec![0; FILE_SIZE];
        random.read_exact(&mut noise).expect("random bytes");
        // Half of it is text that can be compressed.
        noise.iter_mut().skip(1).step_by(2).for_each(|byte| *byte = b' ');
        let files: Vec<_> = (0..FILES)
            .map(|number| {
                noise.rotate_left(7);
                (format!("usr/{}/{number}", number % 97), noise.clone())
            })
            .collect();
        let path = self.place.path().join("layer.tar.gz");
        let mut encoder = GzEncoder::new(File::create(&path).expect("a file"), Compression::fast());
        encoder.write_all(&archive(&files)).and_then(|()| encoder.finish().map(drop)).expect("written");
        drop(files);
        println!("\n| unpack {FILES} files | median s | to tar |\n| --- | ---: | ---: |");
        let (mut ours, mut tar) = (Vec::new(), Vec::new());
        for number in 0..5 {
            let store = Store::open(self.place.path().join(format!("unpack-{number}"))).expect("a place");
            let writer = store.writer().expect("a store");
            ours.push(timed(|| {
                let blob = LayerBlob::new(File::open(&path).expect("the archive"));
                drop(writer.add_layer(blob, &[]).expect("a layer"));
            }));
            let to = self.place.path().join(format!("tar-{number}"));
            fs::create_dir(&to).expect("made");
            let mut command = Command::new("tar");
            command.arg("xzf").arg(&path).arg("-C").arg(&to);
            tar.push(timed(|| assert!(command.status().expect("tar").success())));
        }
        let (ours, tar) = (median(&mut ours) / 1e3, median(&mut tar) / 1e3);
        println!(
            "| tar xzf | {tar:.2} | 1.00 |\n| the store, with both digests | {ours:.2} | {:.2} |",
            ours / tar
        );
    }

    /// A snapshot of many small files.
    fn snapshot(&self) {
        println!("\n| snapshot of {CHANGED} files | median ms |\n| --- | ---: |");
        for (upper, name) in [(None, "from memory"), (Some(ImageUpper::Disk), "from a disk")] {
            let policy = Policy { image_upper: upper, ..self.policy(Some("layers:10")) };
            let session = self.session(&policy, 1);
            let mut samples = Vec::new();
            for round in 0..5 {
                // Other files each time, else the store has the layer.
                let write = async {
                    session.mkdir("/changed").await.or_else(|_| Ok::<(), kennel::Error>(()))?;
                    for number in 0..CHANGED {
                        let text = format!("{round} {number}");
                        session.write(format!("/changed/{number}"), text.as_bytes()).await?;
                    }
                    session.snapshot().await
                };
                let snapshot = self.runtime.block_on(write).expect("a snapshot");
                samples.push(timed(|| drop(snapshot.store(&self.writer, None).expect("stored"))));
            }
            println!("| {name} | {:.0} |", median(&mut samples));
        }
    }
}

fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for directory in ["bin", "etc", "usr"] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(0o755);
        header.set_size(0);
        archive.append_data(&mut header, directory, std::io::empty()).expect("appended");
    }
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o755);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, name, content.as_slice()).expect("appended");
    }
    archive.into_inner().expect("an archive")
}

fn timed(what: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    what();
    begun.elapsed()
}

/// In milliseconds. Sorts.
fn median(samples: &mut [Duration]) -> f64 {
    samples.sort();
    samples[samples.len() / 2].as_secs_f64() * 1e3
}

fn spread(sorted: &[Duration]) -> String {
    let at = |part: usize| sorted[(sorted.len() - 1) * part / 100].as_secs_f64() * 1e3;
    format!("{:.2} to {:.2}", at(10), at(90))
}

/// Memory that programs could get now, in KiB.
fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("procfs");
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("a line");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}
