//! `read_file`, `write_file` and `list_dir`: contents, parts, and the walls of the view.

use std::{fs, os::unix::fs::symlink};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::Client;

#[test]
fn what_is_written_is_read() {
    let mut client = Client::start(&[]);
    let written = client.call("write_file", json!({"path": "a.txt", "content": "hä\n"}));
    assert_eq!((written.text(), written.data("bytes")), ("wrote 4 bytes".to_owned(), &json!(4)));
    assert_eq!(fs::read(client.path().join("a.txt")).unwrap(), "hä\n".as_bytes());
    let read = client.call("read_file", json!({"path": "a.txt"}));
    assert_eq!(read.items(), ["[kennel: bytes 0 to 4 of 4]", "hä\n"]);
    let expected = json!({"content": "hä\n", "encoding": "utf-8", "offset": 0, "bytes": 4, "size": 4, "next_offset": null});
    assert_eq!(read.0["structuredContent"], expected);
    let bytes: Vec<u8> = (0..=255).collect();
    let content = STANDARD.encode(&bytes);
    client.call("write_file", json!({"path": "b.bin", "content": content, "encoding": "base64"}));
    assert_eq!(fs::read(client.path().join("b.bin")).unwrap(), bytes);
    let refused = client.call("read_file", json!({"path": "b.bin"}));
    assert!(
        refused.refusal().contains("b.bin is no text there: it has 256 bytes; ask for `encoding` base64"),
        "{}",
        refused.0
    );
    let read = client.call("read_file", json!({"path": "b.bin", "encoding": "base64"}));
    assert_eq!((read.data("encoding"), read.data("content")), (&json!("base64"), &json!(content)));
    assert_eq!(read.items()[0], "[kennel: bytes 0 to 256 of 256 in base64]");
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
    let end =
        client.call("read_file", json!({"path": "sparse", "offset": (1u64 << 40) - 3, "encoding": "base64"}));
    assert_eq!((end.data("encoding"), end.data("bytes")), (&json!("base64"), &json!(3)), "{}", end.0);
    let most = client.call("read_file", json!({"path": "sparse", "limit": u64::MAX, "encoding": "base64"}));
    assert_eq!(most.data("bytes"), 1 << 20);
}

#[test]
fn a_file_is_read_by_lines() {
    let mut client = Client::start(&[]);
    let text: String = (1..=5000).map(|line| format!("line {line}\n")).collect();
    fs::write(client.path().join("t"), &text).unwrap();
    let some = client.call("read_file", json!({"path": "t", "line": 42, "lines": 2}));
    assert_eq!(
        some.items(),
        ["[kennel: lines 42 to 43, bytes 319 to 335 of 48893; go on with line 44]", "line 42\nline 43\n"]
    );
    assert_eq!(
        (some.data("offset"), some.data("next_offset"), some.data("next_line")),
        (&json!(319), &json!(335), &json!(44))
    );
    let first = client.call("read_file", json!({"path": "t", "lines": 1}));
    assert_eq!(first.data("content"), "line 1\n");
    // All of it, in parts that fit together.
    let (mut whole, mut next) = (String::new(), json!(1));
    while !next.is_null() {
        let part = client.call("read_file", json!({"path": "t", "line": next, "limit": 20_000}));
        whole += part.data("content").as_str().unwrap();
        next = part.data("next_line").clone();
    }
    assert_eq!(whole, text);
    let after = client.call("read_file", json!({"path": "t", "line": 9000}));
    assert_eq!(
        (after.items(), after.data("content")),
        (vec!["[kennel: bytes 48893 to 48893 of 48893]"], &json!(""))
    );
    // A line that does not fit.
    fs::write(client.path().join("long"), format!("{}\nend", "x".repeat(3000))).unwrap();
    let part = client.call("read_file", json!({"path": "long", "line": 1, "limit": 1000}));
    assert_eq!(
        (part.data("bytes"), part.data("next_offset"), part.data("next_line")),
        (&json!(1000), &json!(1000), &Value::Null)
    );
    let end = client.call("read_file", json!({"path": "long", "line": 2}));
    assert_eq!((end.data("content"), end.data("next_offset")), (&json!("end"), &Value::Null));
    for (arguments, why) in [
        (json!({"path": "t", "line": 0}), "the first `line` is 1"),
        (json!({"path": "t", "line": 1, "offset": 1}), "lines go with neither"),
        (json!({"path": "t", "lines": 1, "encoding": "base64"}), "lines go with neither"),
    ] {
        assert!(client.call("read_file", arguments).refusal().contains(why), "{why}");
    }
    fs::File::create(client.path().join("sparse")).unwrap().set_len(1 << 40).unwrap();
    let far = client.call("read_file", json!({"path": "sparse", "line": 2}));
    assert!(far.refusal().contains("not in the first 256 MiB"), "{}", far.0);
}

#[test]
fn directories_above_a_new_file_are_made() {
    let mut client = Client::start_in(crate::support::repository(), &[]);
    client.call("write_file", json!({"path": "a/b/c/f", "content": "x"}));
    client.call("write_file", json!({"path": "a/b/d/../e/f", "content": "x"}));
    assert_eq!(
        client.succeeds("cat a/b/c/f a/b/e/f; find a -type d | sort"),
        "xxa\na/b\na/b/c\na/b/d\na/b/e\n"
    );
    for path in [".git/hooks/d/f", "/usr/d/f", "/no/such/f"] {
        let refused = client.call("write_file", json!({"path": path, "content": "x"}));
        assert!(refused.refusal().contains("Read-only file system"), "{path}: {}", refused.0);
        assert!(client.call("list_dir", json!({"path": path.strip_suffix("/f")})).is_error(), "{path}");
    }
}

#[test]
fn a_text_that_occurs_once_is_replaced() {
    let mut client = Client::start_in(crate::support::repository(), &[]);
    let file = client.path().join("f");
    fs::write(&file, "one\ntwo\nthree two\n").unwrap();
    let done = client.call("edit_file", json!({"path": "f", "old_text": "\ntwo\n", "new_text": "\n2\n2\n"}));
    assert_eq!(
        (done.text(), done.data("line"), done.data("bytes")),
        ("replaced the text in line 1".to_owned(), &json!(1), &json!(18))
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "one\n2\n2\nthree two\n");
    for (old, why) in [
        ("2", "occurs more than once, in line 2 and in line 3"),
        ("four", "does not occur"),
        ("", "`old_text` is empty"),
    ] {
        let refused = client.call("edit_file", json!({"path": "f", "old_text": old, "new_text": "x"}));
        assert!(refused.refusal().contains(why), "{old}: {}", refused.0);
    }
    fs::write(client.path().join("binary"), b"a\xff").unwrap();
    fs::File::create(client.path().join("large")).unwrap().set_len(5 << 20).unwrap();
    for (path, why) in [
        ("binary", "no UTF-8 text"),
        ("large", "more than 4 MiB"),
        ("none", "No such file"),
        (".git/config", "Read-only"),
    ] {
        let refused = client.call("edit_file", json!({"path": path, "old_text": if path == ".git/config" { "[core]" } else { "a" }, "new_text": "b"}));
        assert!(refused.refusal().contains(why), "{path}: {}", refused.0);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "one\n2\n2\nthree two\n");
}

#[test]
fn edits_of_one_file_at_the_same_time_are_all_kept() {
    let mut client = Client::start(&[]);
    let names: Vec<String> = (0..20).map(|number| format!("<{number}>")).collect();
    fs::write(client.path().join("f"), names.concat()).unwrap();
    let edit = |client: &mut Client, name: &String| {
        let arguments = json!({"path": "f", "old_text": name, "new_text": name.to_owned() + "!"});
        client.begin_call("edit_file", arguments)
    };
    let calls: Vec<u64> = names.iter().map(|name| edit(&mut client, name)).collect();
    for call in calls {
        assert!(!client.result(call).is_error());
    }
    let all: String = names.iter().map(|name| name.to_owned() + "!").collect();
    assert_eq!(fs::read_to_string(client.path().join("f")).unwrap(), all);
}

#[test]
fn a_directory_is_listed_in_parts() {
    let mut client = Client::start(&[]);
    assert_eq!(client.call("list_dir", json!({})).last(), "[kennel: the directory is empty]");
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
    fs::write(client.path().join("l"), "").unwrap();
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
            ("edit_file", json!({"path": path, "old_text": "secret", "new_text": "changed"})),
            ("list_dir", json!({"path": path})),
        ] {
            client.call(tool, arguments).refusal();
        }
        // The sandbox has a private /var/tmp.
        let written = client.call("write_file", json!({"path": path, "content": "changed"}));
        assert!(written.is_error() || path.ends_with("/secret"), "{path}: {}", written.0);
        client.succeeds("rm -rf /var/tmp/*");
        assert_eq!(fs::read(&secret).unwrap(), b"secret", "{path}");
    }
    for (path, why) in
        [("/etc/passwd", "Read-only file system"), ("l/x", "Not a directory"), ("", "No such file")]
    {
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
