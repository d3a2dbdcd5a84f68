//! A store of a test, and archives of images, made by hand.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::support::{TempDir, kennel_path, skip, stderr, stdout};

/// Whether the file system of /tmp can hold layers.
pub(crate) fn can_hold_layers() -> bool {
    holds_layers(TempDir::new("kennel-images-", "/tmp").path())
}

/// Whether the file system of a directory can.
pub(super) fn holds_layers(place: &Path) -> bool {
    let probe = place.join("probe");
    let holds = mknod(&probe, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(0, 0)).is_ok()
        && xattr::set(place, "user.overlay.opaque", b"n").is_ok();
    let _ = fs::remove_file(&probe);
    holds
}

/// A store, and a directory for files beside it.
pub(super) struct Images {
    place: TempDir,
}

impl Images {
    /// `None`, with a word, where no file system can hold layers.
    pub(super) fn new() -> Option<Self> {
        let place = TempDir::new("kennel-images-", "/tmp");
        if !can_hold_layers() {
            assert!(
                std::env::var_os("KENNEL_MUST_RUN").is_none(),
                "required here, but missing: whiteouts in /tmp"
            );
            skip(module_path!(), "/tmp holds no whiteouts of overlayfs");
            return None;
        }
        Some(Self { place })
    }

    /// A path beside the store.
    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    pub(super) fn store(&self) -> PathBuf {
        self.at("store")
    }

    /// Writes a file beside the store, and answers its path.
    pub(super) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// `kennel image WORDS…`
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(kennel_path());
        command.arg("image").args(words).current_dir(self.place.path());
        command
            .env("KENNEL_IMAGES", self.store())
            .env("XDG_CONFIG_HOME", self.at("config"))
            .stdin(Stdio::null());
        command
    }

    pub(super) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// The same with this on stdin.
    pub(super) fn fed(&self, words: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It may end before it has read everything.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    /// What a successful command prints.
    pub(super) fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?}");
        stdout(&output)
    }

    pub(super) fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[words, &["--json"]].concat())).unwrap()
    }

    /// What a command says that is refused, of which nothing may be left.
    pub(super) fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(
            (output.status.code(), stdout(&output)),
            (Some(125), String::new()),
            "{words:?}: {output:?}"
        );
        assert_eq!(self.left(), Vec::<PathBuf>::new(), "{words:?}");
        let said = stderr(&output);
        assert!(said.starts_with("kennel: "), "{said}");
        said
    }

    /// What is in the store's directory for temporary files.
    pub(super) fn left(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.store().join("tmp")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// The digest and the names of all images.
    pub(super) fn list(&self) -> Vec<(String, String)> {
        let list = self.json(&["list"]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let names =
            |image: &Value| image["names"].as_array().unwrap().iter().map(text).collect::<Vec<_>>().join(" ");
        list.as_array().unwrap().iter().map(|image| (text(&image["digest"]), names(image))).collect()
    }

    /// The files of each layer of an image, lowest first.
    pub(super) fn layers(&self, image: &str) -> Vec<BTreeMap<String, String>> {
        let layers = self.json(&["inspect", image]);
        let layers = layers["layers"].as_array().unwrap().iter();
        layers.map(|layer| tree(layer["path"].as_str().unwrap().as_ref())).collect()
    }
}

/// The files below a directory: type, mode, and content or target.
pub(super) fn tree(top: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let mode = metadata.mode();
        let what = if metadata.is_symlink() {
            fs::read_link(&path).unwrap().to_str().unwrap().to_owned()
        } else if metadata.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            xattr::get(&path, "user.overlay.opaque").unwrap().map_or(String::new(), |_| "opaque".to_owned())
        } else if metadata.is_file() && metadata.permissions().mode() & 0o400 != 0 {
            String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned()
        } else {
            format!("device {}", metadata.rdev())
        };
        found.insert(name, format!("{mode:o} {what}"));
    }
    found
}

/// A tar archive by its entries.
pub(super) struct Tar(Builder<Vec<u8>>);

impl Tar {
    pub(super) fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    pub(super) fn entry(mut self, name: &str, kind: EntryType, mode: u32, content: impl AsRef<[u8]>) -> Self {
        let content = content.as_ref();
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(1_700_000_000);
        let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
        header.set_size(if is_link { 0 } else { content.len() as u64 });
        // The functions of `tar` refuse hostile names.
        let raw = header.as_ustar_mut().unwrap();
        raw.name[..name.len()].copy_from_slice(name.as_bytes());
        if is_link {
            raw.linkname[..content.len()].copy_from_slice(content);
        }
        header.set_cksum();
        self.0.append(&header, if is_link { &[] } else { content }).unwrap();
        self
    }

    pub(super) fn file(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        self.entry(name, EntryType::Regular, 0o644, content)
    }

    pub(super) fn dir(self, name: &str) -> Self {
        self.entry(name, EntryType::Directory, 0o755, "")
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

/// An image that is not stored yet.
pub(super) struct Image {
    pub(super) config: Vec<u8>,
    pub(super) layers: Vec<Vec<u8>>,
}

impl Image {
    /// An image for this machine.
    pub(super) fn new(layers: Vec<Vec<u8>>) -> Self {
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let diff_ids: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
        let config = json!({
            "os": "linux",
            "architecture": architecture,
            "config": { "Env": ["A=1"], "Entrypoint": ["/bin/sh"], "Cmd": ["-c", "id"], "User": "1" },
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        Self { config: config.to_string().into_bytes(), layers }
    }

    /// With this execution configuration.
    pub(super) fn executing(mut self, execution: Value) -> Self {
        let mut config: Value = serde_json::from_slice(&self.config).unwrap();
        config["config"] = execution;
        self.config = config.to_string().into_bytes();
        self
    }

    /// Two layers: the upper one removes a file of the lower one, hides a directory, and adds to both.
    pub(super) fn of_two_layers() -> Self {
        let lower = Tar::new()
            .dir("bin/")
            .entry("bin/run", EntryType::Regular, 0o755, "program")
            .dir("etc/")
            .file("etc/gone", "gone")
            .entry("etc/link", EntryType::Symlink, 0o777, "gone")
            .dir("var/")
            .file("var/old", "old");
        let upper = Tar::new()
            .dir("etc/")
            .file("etc/.wh.gone", "")
            .file("etc/new", "new")
            .dir("var/")
            .file("var/.wh..wh..opq", "")
            .file("var/new", "new")
            .entry("var/pipe", EntryType::Fifo, 0o600, "");
        Self::new(vec![lower.bytes(), upper.bytes()])
    }

    pub(super) fn digest(&self) -> String {
        digest(&self.config)
    }

    /// The files of an OCI image layout. Layers are compressed.
    pub(super) fn layout(&self, name: Option<&str>) -> Vec<(String, Vec<u8>)> {
        let blob = |bytes: &[u8]| (format!("blobs/sha256/{}", hex(bytes)), bytes.to_owned());
        let descriptor = |kind: &str, bytes: &[u8]| {
            let kind = format!("application/vnd.oci.image.{kind}");
            json!({ "mediaType": kind, "digest": digest(bytes), "size": bytes.len() })
        };
        let layers: Vec<Vec<u8>> = self.layers.iter().map(|layer| gzip(layer)).collect();
        let parts: Vec<Value> = layers.iter().map(|layer| descriptor("layer.v1.tar+gzip", layer)).collect();
        let config = descriptor("config.v1+json", &self.config);
        let manifest =
            json!({ "schemaVersion": 2, "config": config, "layers": parts }).to_string().into_bytes();
        let mut entry = descriptor("manifest.v1+json", &manifest);
        if let Some(name) = name {
            entry["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
        }
        let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string().into_bytes();
        let mut files = vec![("oci-layout".to_owned(), b"{}".to_vec()), ("index.json".to_owned(), index)];
        files.extend([blob(&self.config), blob(&manifest)]);
        files.extend(layers.iter().map(|layer| blob(layer)));
        files
    }

    /// An archive of the layout.
    pub(super) fn oci_archive(&self, name: Option<&str>) -> Vec<u8> {
        self.layout(name).iter().fold(Tar::new(), |tar, (name, content)| tar.file(name, content)).bytes()
    }

    /// What docker saved before version 25. A layer that comes again is a link.
    pub(super) fn docker_archive(&self, names: &[&str]) -> Vec<u8> {
        let config = format!("{}.json", hex(&self.config));
        let mut tar = Tar::new().file(&config, &self.config);
        let mut paths: Vec<String> = Vec::new();
        for (at, layer) in self.layers.iter().enumerate() {
            let path = format!("{at}/layer.tar");
            let known = self.layers.iter().position(|known| known == layer).unwrap();
            tar = match known < at {
                true => tar.entry(&path, EntryType::Symlink, 0o777, format!("../{known}/layer.tar")),
                false => tar.file(&path, layer),
            };
            paths.push(path);
        }
        let list = json!([{ "Config": config, "RepoTags": names, "Layers": paths }]).to_string();
        tar.file("manifest.json", list).bytes()
    }
}
