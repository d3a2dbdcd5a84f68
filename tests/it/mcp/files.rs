//! `read_file`, `write_file` and `list_dir`: contents, parts, and the walls of the view.

use std::{fs, os::unix::fs::symlink};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::Client;

#[test]
fn what_is_written_is_read() {
    let mut client = Client::start(&[]);
    let written = client.call("write_file", json!({"path": "a.txt", "content": "hä\n"}));
    assert_eq!((written.text(), written.data("bytes")), ("wrote 4 bytes", &json!(4)));
    assert_eq!(fs::read(client.path().join("a.txt")).unwrap(), "hä\n".as_bytes());
    let read = client.call("read_file", json!({"path": "a.txt"}));
    assert_eq!(read.text(), "hä\n");
    let expected = json!({"content": "hä\n", "encoding": "utf-8", "offset": 0, "bytes": 4, "size": 4, "next_offset": null});
    assert_eq!(read.0["structuredContent"], expected);
    let bytes: Vec<u8> = (0..=255).collect();
    let content = STANDARD.encode(&bytes);
    client.call("write_file", json!({"path": "b.bin", "content": content, "encoding": "base64"}));
    assert_eq!(fs::read(client.path().join("b.bin")).unwrap(), bytes);
    let read = client.call("read_file", json!({"path": "b.bin"}));
    assert_eq!((read.data("encoding"), read.data("content")), (&json!("base64"), &json!(content)));
    assert!(read.text().ends_with("[kennel: bytes 0 to 256 of 256 in base64]"), "{}", read.text());
    // Commands and calls see the same private directories.
    client.call("write_file", json!({"path": "/tmp/x", "content": "private"}));
    assert_eq!(client.succeeds("cat /tmp/x"), "private");
    let refused = client.call("write_file", json!({"path": "c", "content": "%%", "encoding": "base64"}));
    assert!(refused.refusal().contains("no base64"), "{}", refused.0);
}

#[test]
fn a_large_file_is_read_in_parts_that_fit_together() {
    let mut client = Client::start(&[]);
    let text = "aä€𝄞".repeat(5000);
    fs::write(client.path().join("t"), &text).unwrap();
    for limit in [7, 1000, 65536] {
        let (mut whole, mut next, mut reads) = (String::new(), json!(49_000), 0);
        while !next.is_null() && reads < 20 {
            let part = client.call("read_file", json!({"path": "t", "offset": next, "limit": limit}));
            assert_eq!(part.data("encoding"), "utf-8", "{}", part.0);
            whole += part.data("content").as_str().unwrap();
            next = part.data("next_offset").clone();
            reads += 1;
        }
        assert!(
            text[49_000..].starts_with(&whole) && (next == Value::Null) == (limit > 7),
            "{limit}: {}",
            whole.len()
        );
    }
    let default = client.call("read_file", json!({"path": "t"}));
    assert_eq!((default.data("bytes"), default.data("size")), (&json!(50_000), &json!(50_000)));
    let none = client.call("read_file", json!({"path": "t", "offset": u64::MAX}));
    assert_eq!((none.data("content"), none.data("next_offset")), (&json!(""), &Value::Null));
    // Holes of a terabyte are skipped, not read.
    fs::File::create(client.path().join("sparse")).unwrap().set_len(1 << 40).unwrap();
    let end = client.call("read_file", json!({"path": "sparse", "offset": (1u64 << 40) - 3}));
    assert_eq!((end.data("encoding"), end.data("bytes")), (&json!("base64"), &json!(3)), "{}", end.0);
    let most = client.call("read_file", json!({"path": "sparse", "limit": u64::MAX}));
    assert_eq!(most.data("bytes"), 1 << 20);
}

#[test]
fn a_directory_is_listed_in_parts() {
    let mut client = Client::start(&[]);
    assert_eq!(client.call("list_dir", json!({})).text(), "[empty]");
    fs::create_dir(client.path().join("d")).unwrap();
    fs::write(client.path().join("a\nb"), "123").unwrap();
    symlink("/etc/shadow", client.path().join("l")).unwrap();
    let listed = client.call("list_dir", json!({}));
    assert_eq!(listed.text(), "a\\nb  3 bytes\nd/\nl  (link)");
    assert_eq!(listed.data("entries")[0], json!({"name": "a\nb", "kind": "file", "size": 3}));
    let part = client.call("list_dir", json!({"path": ".", "offset": 1, "limit": 1}));
    assert_eq!(part.text(), "d/\n[kennel: 1 of 3 entries; go on with offset 2]");
    assert_eq!((part.data("total"), part.data("entries").as_array().unwrap().len()), (&json!(3), 1));
}

#[test]
fn no_path_leads_out_of_the_view() {
    let outside = crate::support::workspace_in(std::path::Path::new("/var/tmp"));
    let secret = outside.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let mut client = Client::start(&[]);
    symlink(&secret, client.path().join("link")).unwrap();
    symlink("/", client.path().join("root")).unwrap();
    let up = format!("../../../../../../..{}", secret.display());
    let through = format!("root{}", secret.display());
    let by_proc = format!("/proc/1/root{}", secret.display());
    for path in [
        &*secret.display().to_string(),
        "link",
        &up,
        &through,
        &by_proc,
        "/proc/self/environ",
        "/proc/1/fd/0",
    ] {
        for (tool, arguments) in [
            ("read_file", json!({"path": path})),
            ("write_file", json!({"path": path, "content": "changed"})),
            ("list_dir", json!({"path": path})),
        ] {
            client.call(tool, arguments).refusal();
        }
        assert_eq!(fs::read(&secret).unwrap(), b"secret", "{path}");
    }
    for (path, why) in [
        ("/etc/passwd", "Read-only file system"),
        ("nowhere/x", "No such file or directory"),
        ("", "No such file"),
    ] {
        let refused = client.call("write_file", json!({"path": path, "content": "x"}));
        assert!(refused.refusal().contains(why), "{path}: {}", refused.0);
    }
    for path in ["a\0b", &"x".repeat(300), &"y/".repeat(5000)] {
        assert!(client.call("read_file", json!({"path": path})).is_error());
        assert!(client.call("list_dir", json!({"path": path})).is_error());
    }
    fs::create_dir_all(client.path().join(".git/hooks")).unwrap();
    let mut client = Client::start_in(crate::support::repository(), &[]);
    let refused = client.call("write_file", json!({"path": ".git/hooks/pre-commit", "content": "x"}));
    assert!(refused.refusal().contains("Read-only file system"), "{}", refused.0);
}
