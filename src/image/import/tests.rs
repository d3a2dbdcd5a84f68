//! What a file or directory is taken for, without a store.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

use super::source::{Given, Spool, contents};
use super::{Contents, Found};
use crate::image::digest::Digest;
use crate::image::manifest::platform_here;
use crate::report::error::import::ImportError;

/// Members of an archive, in this order.
#[derive(Default)]
struct Files(Vec<(String, Vec<u8>)>);

impl Files {
    fn add(&mut self, name: &str, content: impl AsRef<[u8]>) -> &mut Self {
        self.0.push((name.to_owned(), content.as_ref().to_owned()));
        self
    }

    fn blob(&mut self, content: &[u8]) -> Digest {
        let digest = Digest::of(content);
        self.add(&format!("blobs/sha256/{}", digest.hex()), content);
        digest
    }

    fn tar(&self) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (name, content) in &self.0 {
            append(&mut builder, name, EntryType::Regular, content, None);
        }
        builder.into_inner().expect("in memory")
    }

    fn directory(&self) -> TempDir {
        let dir = TempDir::new().expect("a directory");
        for (name, content) in &self.0 {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, content).expect("written");
        }
        dir
    }
}

fn append(builder: &mut Builder<Vec<u8>>, name: &str, kind: EntryType, content: &[u8], link: Option<&str>) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    match link {
        Some(link) => builder.append_link(&mut header, name, link).expect("in memory"),
        None => builder.append_data(&mut header, name, content).expect("in memory"),
    }
}

/// A layer with one file.
fn layer(content: &str) -> Vec<u8> {
    let mut files = Files::default();
    files.add("etc/file", content);
    files.tar()
}

fn config(platform: &str, layers: &[&[u8]]) -> Vec<u8> {
    let (os, architecture) = platform.split_once('/').expect("a platform");
    let diff_ids: Vec<Digest> = layers.iter().map(|layer| Digest::of(layer)).collect();
    json!({ "os": os, "architecture": architecture, "rootfs": { "type": "layers", "diff_ids": diff_ids } })
        .to_string()
        .into_bytes()
}

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Adds a manifest, and answers its descriptor.
fn manifest(files: &mut Files, platform: &str, content: &str) -> Value {
    let layer = layer(content);
    let config = config(platform, &[&layer]);
    let (config, layer) = (files.blob(&config), files.blob(&layer));
    let manifest = json!({
        "schemaVersion": 2,
        "config": { "mediaType": CONFIG, "digest": config, "size": 1 },
        "layers": [{ "mediaType": LAYER, "digest": layer, "size": 1 }],
    });
    descriptor(files, &manifest)
}

fn descriptor(files: &mut Files, document: &Value) -> Value {
    let text = document.to_string();
    let digest = files.blob(text.as_bytes());
    json!({ "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": text.len() })
}

fn with(mut descriptor: Value, key: &str, value: Value) -> Value {
    descriptor[key] = value;
    descriptor
}

fn platform(descriptor: Value, platform: &str) -> Value {
    let (os, architecture) = platform.split_once('/').expect("a platform");
    with(descriptor, "platform", json!({ "os": os, "architecture": architecture }))
}

fn named(descriptor: Value, key: &str, name: &str) -> Value {
    with(descriptor, "annotations", json!({ key: name }))
}

fn index(files: &mut Files, manifests: &[Value]) {
    let index = json!({ "schemaVersion": 2, "manifests": manifests }).to_string();
    files.add("index.json", index).add("oci-layout", "{}");
}

const REF: &str = "org.opencontainers.image.ref.name";
const CONTAINERD: &str = "io.containerd.image.name";

fn at(path: &Path) -> Result<Contents, ImportError> {
    limited(path, 1 << 30)
}

fn limited(path: &Path, limit: u64) -> Result<Contents, ImportError> {
    let make = || tempfile::tempfile();
    contents(Given::Path(path), &Spool { make: &make, limit })
}

fn of(bytes: &[u8]) -> Result<Contents, ImportError> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("written");
    at(file.path())
}

fn images(contents: Result<Contents, ImportError>) -> Vec<Found> {
    match contents {
        Ok(Contents::Images(images)) => images,
        other => panic!("no images: {other:?}"),
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("in memory");
    encoder.finish().expect("in memory")
}

fn said(contents: Result<Contents, ImportError>) -> String {
    contents.expect_err("refused").to_string()
}

#[test]
fn a_layout_is_found_as_directory_archive_and_compressed_archive() {
    let mut files = Files::default();
    let entry = named(manifest(&mut files, &platform_here(), "1"), REF, "docker.io/library/a:1");
    index(&mut files, &[entry]);
    let (tar, dir) = (files.tar(), files.directory());
    let zstd = zstd::encode_all(&*tar, 1).expect("in memory");
    for found in [of(&tar), of(&gzip(&tar)), of(&zstd), at(dir.path())] {
        let [image] = &images(found)[..] else { panic!("one image") };
        assert_eq!(image.names, ["docker.io/library/a:1"]);
        let mut content = Vec::new();
        image.layers[0].part.clone().read_to_end(&mut content).expect("read");
        assert_eq!(content, layer("1"));
        assert_eq!(image.layers[0].digest, Some(Digest::of(&content)));
    }
}

#[test]
fn of_an_index_in_an_index_the_platform_of_this_machine_is_taken() {
    let mut files = Files::default();
    let here = platform_here();
    let other = if here == "linux/arm64" { "linux/amd64" } else { "linux/arm64" };
    let entries = [
        platform(manifest(&mut files, other, "other"), other),
        platform(json!({ "mediaType": "x", "digest": Digest::of(b"gone"), "size": 1 }), "unknown/unknown"),
        with(platform(manifest(&mut files, &here, "3"), &here), "platform", {
            let (os, architecture) = here.split_once('/').expect("a platform");
            json!({ "os": os, "architecture": architecture, "variant": "v3" })
        }),
        platform(manifest(&mut files, &here, "here"), &here),
    ];
    let inner = descriptor(&mut files, &json!({ "schemaVersion": 2, "manifests": entries }));
    let outer = descriptor(&mut files, &json!({ "schemaVersion": 2, "manifests": [inner] }));
    index(&mut files, &[named(outer, CONTAINERD, "docker.io/library/a:latest")]);
    let [image] = &images(of(&files.tar()))[..] else { panic!("one image") };
    assert_eq!(image.names, ["docker.io/library/a:latest"]);
    assert_eq!(image.config, config(&here, &[&layer("here")]), "the plain variant comes first");
}

#[test]
fn several_names_and_several_images_are_all_found() {
    let mut files = Files::default();
    let (one, two) =
        (manifest(&mut files, &platform_here(), "1"), manifest(&mut files, &platform_here(), "2"));
    let entries = [named(one.clone(), REF, "a:1"), named(two, REF, "b:1"), named(one, REF, "a:latest")];
    index(&mut files, &entries);
    let found = images(of(&files.tar()));
    let names: Vec<_> = found.iter().map(|image| image.names.join(" ")).collect();
    assert_eq!(names, ["a:1 a:latest", "b:1"]);
    // A tag alone is no name.
    let mut files = Files::default();
    let entry = named(manifest(&mut files, &platform_here(), "1"), REF, "latest");
    index(&mut files, &[entry]);
    assert!(images(of(&files.tar()))[0].names.is_empty());
}

/// The archive of docker 1.10 to 24: a layer that is there twice is a link.
#[test]
fn an_archive_of_docker_is_found_with_its_links() {
    let layer = layer("1");
    let config = config(&platform_here(), &[&layer, &layer]);
    let name = format!("{}.json", Digest::of(&config).hex());
    let list =
        json!([{ "Config": name, "RepoTags": ["a:1", "a:2"], "Layers": ["one/layer.tar", "two/layer.tar"] }]);
    let mut builder = Builder::new(Vec::new());
    append(&mut builder, &name, EntryType::Regular, &config, None);
    append(&mut builder, "one/layer.tar", EntryType::Regular, &layer, None);
    append(&mut builder, "two/layer.tar", EntryType::Symlink, &[], Some("../one/layer.tar"));
    append(&mut builder, "manifest.json", EntryType::Regular, list.to_string().as_bytes(), None);
    let tar = builder.into_inner().expect("in memory");
    for found in [of(&tar), of(&gzip(&tar))] {
        let [image] = &images(found)[..] else { panic!("one image") };
        assert_eq!(image.names, ["a:1", "a:2"]);
        assert_eq!(image.layers.len(), 2);
        assert_eq!(image.layers[1].part.len(), layer.len() as u64);
        assert_eq!(image.layers[1].digest, None, "the directory's name is no digest");
    }
}

#[test]
fn the_index_counts_where_docker_writes_both_and_names_come_from_either() {
    let mut files = Files::default();
    let entry = manifest(&mut files, &platform_here(), "1");
    index(&mut files, &[entry]);
    let config = Digest::of(&config(&platform_here(), &[&layer("1")]));
    let list =
        json!([{ "Config": format!("blobs/sha256/{}", config.hex()), "RepoTags": ["a:1"], "Layers": [] }]);
    files.add("manifest.json", list.to_string());
    let [image] = &images(of(&files.tar()))[..] else { panic!("one image") };
    assert_eq!((image.names.join(" "), image.layers.len()), ("a:1".to_owned(), 1));
}

#[test]
fn links_lead_nowhere_else() {
    for link in ["../../../etc/passwd", "/etc/passwd", "two/layer.tar", ""] {
        let list = json!([{ "Config": "c.json", "Layers": ["two/layer.tar"] }]);
        let mut builder = Builder::new(Vec::new());
        append(&mut builder, "c.json", EntryType::Regular, &config(&platform_here(), &[b""]), None);
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        builder
            .append_link(&mut header, "two/layer.tar", if link.is_empty() { "." } else { link })
            .expect("made");
        append(&mut builder, "manifest.json", EntryType::Regular, list.to_string().as_bytes(), None);
        let said = said(of(&builder.into_inner().expect("in memory")));
        assert_eq!(said, "manifest.json names two/layer.tar, which is not there", "{link}");
    }
}

#[test]
fn a_root_file_system_is_one_whatever_else_is_in_it() {
    let mut files = Files::default();
    files
        .add("./index.json", "{}")
        .add("./etc/passwd", "")
        .add("oci-layout", "{}")
        .add("manifest.json", "[]");
    let tar = files.tar();
    assert!(matches!(of(&tar), Ok(Contents::Files(part)) if part.len() == tar.len() as u64));
    let packed = gzip(&tar);
    assert!(
        matches!(of(&packed), Ok(Contents::Files(part)) if part.len() == packed.len() as u64),
        "it stays compressed"
    );
    assert!(matches!(at(files.directory().path()), Ok(Contents::Tree(_))));
    // One static program.
    let mut files = Files::default();
    files.add("hello", "program");
    assert!(matches!(of(&files.tar()), Ok(Contents::Files(_))));
    assert!(matches!(of(&gzip(&files.tar())), Ok(Contents::Files(_))));
    assert!(matches!(at(files.directory().path()), Ok(Contents::Tree(_))));
}

#[test]
fn what_is_no_image_is_named() {
    let mut layout = Files::default();
    layout.add("oci-layout", "{}").add("blobs/sha256/x", "");
    let mut old = Files::default();
    old.add("repositories", "{}").add("abc/layer.tar", "");
    let mut dir = Files::default();
    dir.add("manifest.json", "{}").add("version", "1.1");
    for (contents, words) in [
        (of(b""), "an empty file"),
        (of(&[0; 10_240]), "an empty archive"),
        (of(b"PK\x03\x04rest"), "a ZIP archive"),
        (of(b"hsqs"), "a squashfs"),
        (of(b"\xfd7zXZ\0rest"), "compressed with xz"),
        (of(b"BZh9"), "compressed with bzip2"),
        (of(b"\x7fELF"), "a program"),
        (of(b"hello"), "another format"),
        (of(&gzip(b"hello")), "another format"),
        (of(&gzip(b"\xfd7zXZ\0")), "compressed with xz"),
        (of(&gzip(b"")), "an empty archive"),
        (of(b"\x1f\x8bno gzip"), "read "),
        (of(b"\x28\xb5\x2f\xfdno zstd"), "read "),
        (at("/dev/zero".as_ref()), "a device"),
        (at("/absent".as_ref()), "read /absent"),
        (at(TempDir::new().expect("made").path()), "an empty directory"),
        (of(&layout.tar()), "oci-layout names index.json, which is not there"),
        (at(layout.directory().path()), "oci-layout names index.json, which is not there"),
        (of(&old.tar()), "before 1.10"),
        (at(dir.directory().path()), "transport dir:"),
    ] {
        let said = said(contents);
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// The documents that an index leads to.
#[test]
fn what_cannot_be_used_is_named() {
    let here = platform_here();
    let with_index = |entry: fn(&mut Files) -> Value| {
        let mut files = Files::default();
        let entry = entry(&mut files);
        index(&mut files, &[entry]);
        of(&files.tar())
    };
    let plain = |text: &str| {
        let mut files = Files::default();
        files.add("index.json", text).add("oci-layout", "{}");
        of(&files.tar())
    };
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (contents, words) in [
        (plain(""), "index.json: EOF"),
        (plain("[]"), "index.json: "),
        (plain("{\"manifests\":[]}"), "index.json: it names no image"),
        (plain(&format!("{{\"manifests\":{deep}}}")), "index.json: "),
        (plain(&format!("{{\"manifests\":[],\"x\":\"{}\"}}", "x".repeat(5 << 20))), "larger than 4 MiB"),
        (plain("{\"manifests\":[{\"digest\":\"sha512:00\"}]}"), "only sha256 digests"),
        (with_index(|_| json!({ "digest": Digest::of(b"gone") })), "which is not there"),
        (
            with_index(|files| {
                let digest = Digest::of(b"one");
                files.add(&format!("blobs/sha256/{}", digest.hex()), "two");
                json!({ "digest": digest })
            }),
            "the digest is sha256:",
        ),
        (with_index(|files| manifest(files, "linux/s390x", "1")), "only for linux/s390x"),
        (
            with_index(|files| platform(manifest(files, "windows/amd64", "1"), "windows/amd64")),
            "only for windows/amd64",
        ),
        (
            with_index(|files| descriptor(files, &json!({ "schemaVersion": 1, "fsLayers": [] }))),
            "Docker schema 1",
        ),
        (
            with_index(|files| {
                let config = files.blob(b"{}");
                let kind = "application/vnd.cncf.helm.config.v1+json";
                let config = json!({ "mediaType": kind, "digest": config });
                descriptor(files, &json!({ "schemaVersion": 2, "config": config, "layers": [] }))
            }),
            "an artifact of type application/vnd.cncf.helm.config.v1+json",
        ),
        (
            with_index(|files| descriptor(files, &json!({ "mediaType": "text/x" }))),
            "an artifact of type text/x",
        ),
        (
            with_index(|files| {
                let entry = manifest(files, "linux/amd64", "1");
                (0..5).fold(entry, |entry, _| descriptor(files, &json!({ "manifests": [entry] })))
            }),
            "more than 4 indexes",
        ),
        (
            with_index(|files| {
                let entry = descriptor(files, &json!({ "manifests": [] }));
                let many = vec![entry; 100];
                let many = vec![descriptor(files, &json!({ "manifests": many })); 100];
                descriptor(files, &json!({ "manifests": many }))
            }),
            "more than 1000 descriptions",
        ),
    ] {
        let said = said(contents);
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(said(with_index(|files| manifest(files, "linux/s390x", "1"))).contains(&here));
}

#[test]
fn a_list_of_docker_that_cannot_be_used_is_named() {
    let plain = |list: &str| {
        let mut files = Files::default();
        files.add("manifest.json", list).add("c.json", "{\"rootfs\":{}}").add("bad.json", "{");
        let wrong = Digest::of(b"another").hex();
        files.add(&format!("{wrong}.json"), "{}");
        of(&files.tar())
    };
    let wrong = Digest::of(b"another").hex();
    for (list, words) in [
        ("[]".to_owned(), "manifest.json: it names no image"),
        ("[{}]".to_owned(), "missing field `Config`"),
        ("[{\"Config\":\"gone\",\"Layers\":[]}]".to_owned(), "names gone, which is not there"),
        ("[{\"Config\":\"bad.json\",\"Layers\":[]}]".to_owned(), "bad.json: EOF"),
        ("[{\"Config\":\"c.json\",\"Layers\":[\"../x\"]}]".to_owned(), "names ../x, which is not there"),
        (format!("[{{\"Config\":\"{wrong}.json\",\"Layers\":[]}}]"), "the digest is sha256:"),
    ] {
        let said = said(plain(&list));
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn an_archive_that_is_cut_or_lies_about_sizes_is_refused() {
    let mut files = Files::default();
    files.add("x", vec![1; 2_000]).add("manifest.json", "[]");
    let tar = files.tar();
    for end in [513, 1_024, 2_000, 2_560 + 100] {
        let said = said(of(&tar[..end]));
        assert!(said.contains("read "), "{end}: {said}");
    }
    // A size of 8 EiB.
    let mut header = Header::new_gnu();
    header.set_path("blobs/x").expect("short");
    header.set_size(u64::MAX / 2);
    header.set_cksum();
    assert!(said(of(header.as_bytes())).contains("read "));
    // Names of 1 GiB.
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(1 << 30);
    header.set_cksum();
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), header.as_bytes()).expect("written");
    File::options().write(true).open(file.path()).expect("opened").set_len(2 << 30).expect("a hole");
    assert!(said(at(file.path())).contains("read "));
}

/// What would fill the disk ends at the limit.
#[test]
fn a_compressed_archive_is_decompressed_up_to_the_limit() {
    let mut files = Files::default();
    files.add("blobs/x", vec![0; 8 << 20]);
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), gzip(&files.tar())).expect("written");
    assert!(said(limited(file.path(), 4 << 20)).contains("larger than 4194304 bytes"));
    assert!(limited(file.path(), 9 << 20).is_ok());
}

#[test]
fn a_directory_of_a_layout_gives_regular_files_alone() {
    let mut files = Files::default();
    let entry = manifest(&mut files, &platform_here(), "1");
    index(&mut files, std::slice::from_ref(&entry));
    let dir = files.directory();
    let name = entry["digest"].as_str().expect("a digest").replace("sha256:", "blobs/sha256/");
    let path = dir.path().join(name);
    fs::remove_file(&path).expect("removed");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("made");
    assert!(said(at(dir.path())).contains("read "), "it waits for no writer");
    fs::remove_file(&path).expect("removed");
    symlink("/etc/hostname", &path).expect("made");
    assert!(at(dir.path()).is_err());
}
