//! `kennel fleet status`: the table, and the exit status.

use std::process::{Command, Output};

use serde_json::Value;

use crate::route::{Router, worker};
use crate::server::wait_until;

fn status(words: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_kennel-server"))
        .args(["fleet", "status"])
        .args(words)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&stderr), "");
    (status.code(), String::from_utf8_lossy(&stdout).into_owned())
}

#[test]
fn a_table_has_a_line_for_each_worker() {
    let (mut one, two) =
        (worker("one", "sandboxes = 7\n[template.base]\n[template.other]"), worker("two", ""));
    let router = Router::before(&[&one, &two]);
    let made = router.create_from(&serde_json::json!({ "templateID": "other" }));
    wait_until("the router knows", || router.workers()[0]["running"] == 1);
    let url = format!("http://{}", router.address);
    let (code, text) = status(&[&url]);
    let words: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        words[0],
        ["WORKER", "URL", "STATE", "VERSION", "ROOM", "RUNNING", "WAITING", "DRAINING", "TEMPLATES"]
    );
    let one_url = format!("http://{}", one.address);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(words[1], ["one", &one_url, "alive", version, "6", "1", "0", "no", "base,other"]);
    assert_eq!((words[2][0], words[2][4], words.len(), code), ("two", "1000", 3, Some(0)));
    assert!(!text.contains(&made.id));
    // The workers themselves, and as JSON.
    let (code, text) = status(&["--json", &one_url, &format!("http://{}", two.address)]);
    let seen: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &seen["workers"][0]["name"], &seen["workers"][1]["name"]),
        (Some(0), &"one".into(), &"two".into())
    );
    let hash = &seen["workers"][0]["tokens"];
    assert_eq!(hash.as_object().unwrap().values().collect::<Vec<_>>(), [1]);
    one.kill();
    router.wait_for(1, "silent");
    let (code, text) = status(&[&url]);
    assert_eq!(code, Some(1));
    assert!(text.lines().any(|line| line.starts_with("one") && line.contains("silent")), "{text}");
    assert!(text.contains(&format!("{one_url}: ")), "{text}");
    one.start_again();
}

#[test]
fn where_nothing_answers_it_says_so() {
    let (code, text) = status(&["http://127.0.0.1:1", "unix:/nowhere"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("http://127.0.0.1:1: ") && text.contains("Connection refused"), "{text}");
    assert!(text.contains("unix:/nowhere: No such file"), "{text}");
    let router = Router::start("dns+http://no-such-name.invalid:1", None, &[]);
    let (code, text) = status(&[&format!("http://{}", router.address)]);
    assert_eq!(code, Some(1));
    assert!(text.contains("dns+http://no-such-name.invalid:1: its addresses: "), "{text}");
}
