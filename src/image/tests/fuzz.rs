//! Damage at random: archives whose bytes are changed, and descriptions of images whose JSON is. There is an
//! image or an error, never a panic, and nothing beside the store. PROPTEST_CASES=100000 makes it long.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::model::{archive, layer};
use super::*;
use crate::image::import::{Given, import};
use crate::image::manifest::platform_here;

/// Changes some bytes. A header whose checksum is wrong would be refused for that alone.
fn damage(archive: &mut Vec<u8>, changes: &[(usize, u8)], cut: Option<usize>) {
    for (at, byte) in changes {
        let at = at % archive.len();
        archive[at] = *byte;
        let start = at / 512 * 512;
        if let Some(block) = archive.get_mut(start..start + 512)
            && block.get(257..262) == Some(b"ustar")
        {
            let header: &mut [u8; 512] = block.try_into().expect("a block");
            let mut whole = Header::new_gnu();
            whole.as_mut_bytes().copy_from_slice(header);
            whole.set_cksum();
            header.copy_from_slice(whole.as_bytes());
        }
    }
    if let Some(cut) = cut {
        archive.truncate(cut % archive.len());
    }
}

/// The N-th value of a document, counted from its top.
fn nth<'v>(value: &'v mut Value, left: &mut usize) -> Option<&'v mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(values) => values.iter_mut().find_map(|value| nth(value, left)),
        Value::Object(values) => values.values_mut().find_map(|value| nth(value, left)),
        _ => None,
    }
}

/// Stands for what a [`Value`] cannot hold, and is replaced in the text.
const LITERAL: &str = "@literal@";

/// Texts that are no JSON, or more than a number or a parser holds.
fn literal() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("1e999".to_owned()),
        Just("-1e-999".to_owned()),
        Just("18446744073709551616".to_owned()),
        Just("9".repeat(5_000)),
        (1_usize..20_000).prop_map(|depth| "[".repeat(depth)),
        (1_usize..20_000).prop_map(|depth| "[".repeat(depth) + &"]".repeat(depth)),
        (1_usize..5_000).prop_map(|depth| "{\"a\":".repeat(depth) + "1" + &"}".repeat(depth)),
        Just("\"\\ud800\"".to_owned()),
        Just("NaN".to_owned()),
        Just(String::new()),
    ]
}

fn hostile() -> impl Strategy<Value = Value> {
    let digest = Digest::of(b"absent");
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        Just(json!(u64::MAX)),
        any::<f64>().prop_map(|number| json!(number)),
        ".{0,20}".prop_map(Value::from),
        prop::sample::select(vec![
            "../../../x",
            "/etc/passwd",
            "sha256:",
            "sha256:0",
            "SHA512:00",
            "a:1",
            "A",
            "\0",
            "blobs"
        ])
        .prop_map(Value::from),
        Just(json!(digest.to_string())),
        Just(json!("x".repeat(10_000))),
        Just(json!([])),
        Just(json!({})),
        Just(json!([{}, [], null, 1, "x"])),
        Just(json!({"digest": digest, "mediaType": 1, "size": -1, "urls": ["http://127.0.0.1:1"]})),
        Just(json!(LITERAL)),
    ]
}

/// Where and by what a document is changed; which text stands for [`LITERAL`].
type Edits = (Vec<(usize, Value)>, String);

fn edits() -> impl Strategy<Value = Edits> {
    (prop::collection::vec((0_usize..40, hostile()), 0..3), literal())
}

fn edited(mut document: Value, (edits, literal): &Edits) -> Vec<u8> {
    for (at, value) in edits {
        if let Some(place) = nth(&mut document, &mut at.clone()) {
            place.clone_from(value);
        }
    }
    document.to_string().replace(&format!("\"{LITERAL}\""), literal).into_bytes()
}

/// The archive of an image. Each description names the changed one below it.
fn image(documents: &[Edits; 3], is_docker: bool) -> Vec<u8> {
    let layer = Tar::new().file("etc/file", "content").end();
    let platform = platform_here();
    let (os, architecture) = platform.split_once('/').expect("a platform");
    let [config, manifest, index] = documents;
    let config = edited(
        json!({
            "os": os, "architecture": architecture, "created": "2026-01-02T03:04:05Z",
            "config": {
                "Env": ["A=1"], "Cmd": ["sh"], "Entrypoint": null, "User": "1", "WorkingDir": "/",
                "ExposedPorts": {"80/tcp": {}}, "Volumes": {"/v": {}}, "Labels": {"a": "b"}, "StopSignal": "TERM",
            },
            "history": [{"created_by": "x", "empty_layer": true}],
            "rootfs": {"type": "layers", "diff_ids": [Digest::of(&layer)]},
        }),
        config,
    );
    let blob = |content: &[u8]| format!("blobs/sha256/{}", Digest::of(content).hex());
    if is_docker {
        let list = json!([{ "Config": blob(&config), "RepoTags": ["a:1"], "Layers": [blob(&layer)] }]);
        let list = edited(list, manifest);
        return files(&[(&blob(&config), &config), (&blob(&layer), &layer), ("manifest.json", &list)]);
    }
    let descriptor = |kind: &str, content: &[u8]| {
        let kind = format!("application/vnd.oci.image.{kind}");
        json!({ "mediaType": kind, "digest": Digest::of(content), "size": content.len() })
    };
    let parts = json!({
        "schemaVersion": 2,
        "config": descriptor("config.v1+json", &config),
        "layers": [descriptor("layer.v1.tar", &layer)],
    });
    let manifest = edited(parts, manifest);
    let mut entry = descriptor("manifest.v1+json", &manifest);
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": "a:1" });
    entry["platform"] = json!({ "os": os, "architecture": architecture, "variant": null });
    let index = edited(json!({ "schemaVersion": 2, "manifests": [entry] }), index);
    let named = [(blob(&config), &config), (blob(&layer), &layer), (blob(&manifest), &manifest)];
    let mut all: Vec<(&str, &Vec<u8>)> = named.iter().map(|(name, content)| (&**name, *content)).collect();
    let mark = b"{}".to_vec();
    all.extend([("index.json", &index), ("oci-layout", &mark)]);
    files(&all)
}

fn files(files: &[(&str, &Vec<u8>)]) -> Vec<u8> {
    let add = |tar: Tar, (name, content): &(&str, &Vec<u8>)| {
        let mut header = Tar::header(EntryType::Regular, name.as_bytes(), 0o644);
        header.set_size(content.len() as u64);
        tar.raw(&mut header, content)
    };
    files.iter().fold(Tar::new(), add).end()
}

/// Imports an archive and checks what is left, whatever came of it.
fn imported(archive: &[u8]) -> Result<bool, TestCaseError> {
    let (store, place) = (TestStore::new(), tempfile::tempdir().expect("a directory"));
    let file = place.path().join("archive");
    fs::write(&file, archive).expect("written");
    let images = match import(&store.writer, Given::Path(&file), None) {
        Ok(images) => images,
        Err(error) => {
            let words = format!("{error} {:?} {:?}", error.remedy(), error.failure());
            prop_assert!(words.len() < 50_000, "{} bytes of words", words.len());
            Vec::new()
        }
    };
    prop_assert_eq!(store.store.images().expect("a list").len(), images.len());
    for image in &images {
        let found = store.store.find(&image.digest.to_string().parse().expect("a digest")).expect("readable");
        prop_assert!(found.is_some_and(|found| found.layers.iter().all(|layer| layer.is_dir())));
    }
    let is_image = !images.is_empty();
    for image in images {
        let digest = image.digest;
        drop(image);
        store.writer.remove(&digest.to_string().parse().expect("a digest")).expect("removed");
    }
    prop_assert!(store.is_tidy() && store.is_alone());
    store.store.writer().expect("a writer");
    prop_assert_eq!(store.stored_layers(), 0, "a layer that no image has");
    prop_assert_eq!(fs::read_dir(place.path()).expect("readable").count(), 1);
    Ok(is_image)
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn damaged_layers_are_refused_or_applied_and_leave_nothing(
        entries in layer(),
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..6),
        cut in prop::option::weighted(0.2, any::<usize>()),
    ) {
        let mut bytes = archive(&entries);
        damage(&mut bytes, &changes, cut);
        let store = TestStore::new();
        let limits = crate::image::ImageLimits { max_size: 1 << 20, max_files: 100 };
        let writer = store.writer.clone().with_limits(limits);
        if let Err(error) = writer.add_layer(LayerBlob::new(bytes.as_slice()), &[]) {
            prop_assert!(
                !matches!(error, ImageError::Io { .. } | ImageError::Damaged { .. }),
                "the store is at fault: {}", error
            );
        }
        prop_assert!(store.is_tidy() && store.is_alone());
        imported(&bytes)?;
    }

    #[test]
    fn hostile_descriptions_are_an_image_or_an_error(
        documents in prop::array::uniform3(edits()),
        is_docker in any::<bool>(),
    ) {
        imported(&image(&documents, is_docker))?;
    }
}

/// Else the other test proves nothing.
#[test]
fn descriptions_without_changes_are_an_image() {
    let none = || (Vec::new(), String::new());
    for is_docker in [true, false] {
        assert!(imported(&image(&[none(), none(), none()], is_docker)).expect("no fault"));
    }
}
