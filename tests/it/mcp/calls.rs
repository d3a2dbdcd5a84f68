//! `run` and `shell`: how commands end, what they get, and how a client follows and stops them.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use super::Client;
use crate::support::{has, patient, require, require_ci_only, until};

/// The names of the tools, and of those that only read.
fn names(flags: &[&str]) -> (Vec<String>, Vec<String>) {
    let tools = Client::start(flags).tools();
    let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
    let reads = tools.iter().filter(|tool| tool["annotations"]["readOnlyHint"] == true);
    (tools.iter().map(name).collect(), reads.map(name).collect())
}

#[test]
fn the_tools_are_those_that_the_policy_allows_and_say_what_they_do() {
    let always = ["run", "shell", "read_file", "write_file", "edit_file", "list_dir"];
    let with = |more: &[&str]| always.iter().chain(more).map(|&name| name.to_owned()).collect::<Vec<_>>();
    let (all, reads) = names(&[]);
    assert_eq!((all, reads), (with(&["publish"]), vec!["read_file".to_owned(), "list_dir".to_owned()]));
    for (net, more) in [("none", &["publish"][..]), ("host", &[])] {
        if net == "none" || crate::support::has_scopes() {
            assert_eq!(names(&["--net", net]).0, with(more), "{net}");
        }
    }
    let mut client = Client::start(&["--net", "none"]);
    for tool in client.tools() {
        let hints = &tool["annotations"];
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
        assert_eq!(tool["outputSchema"]["type"], "object", "{tool}");
        assert!(tool["description"].as_str().unwrap().len() > 20, "{tool}");
        assert_eq!(hints["openWorldHint"], tool["name"] == "publish", "no network: {tool}");
        let writes = ["run", "shell", "write_file", "edit_file"].iter().any(|name| tool["name"] == *name);
        assert_eq!(hints["destructiveHint"] == true, writes, "{tool}");
        let text = tool.to_string();
        assert!(!text.contains("\"format\"") && !text.contains("$schema"), "{text}");
    }
    let missing = client.call("commit", json!({}));
    assert!(missing.refusal().contains("--overlay"), "{}", missing.0);
    let missing = client.call("changes", json!({}));
    assert!(missing.refusal().contains("--overlay"), "{}", missing.0);
}

#[test]
fn the_instructions_say_what_holds() {
    let about = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let cases: [(&[&str], &[&str]); 4] = [
        (
            &["--allow", "a.example:443,@cargo"],
            &[
                "Writable: WORKSPACE.",
                "reach only: a.example:443, @cargo (index.crates.io:443, static.crates.io:443).",
                "--overlay",
            ],
        ),
        (&["--net", "none"], &["no network but", "secrets and most of the home directory cannot"]),
        (
            &["--profile", "read-only"],
            &[
                "Nothing of the machine is writable. Readable, because the user granted it: WORKSPACE.",
                "no network but",
            ],
        ),
        (
            &["--profile", "full-dev"],
            &["Other files of the machine can be read, known secrets cannot.", "no tool `publish`"],
        ),
    ];
    for (flags, expected) in cases {
        let mut client = Client::without_handshake(crate::support::workspace(), flags);
        let answer = client.request("initialize", about.clone());
        let workspace = client.path().display().to_string();
        let text = answer["result"]["instructions"].as_str().unwrap().replace(&workspace, "WORKSPACE");
        for words in
            expected.iter().chain(&["Commands start in WORKSPACE.", "You cannot change these rules."])
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}

#[test]
fn a_result_says_how_the_command_ended() {
    let mut client = Client::start(&[]);
    let done = client.call("run", json!({"command": "echo out; echo err >&2; exit 3"}));
    assert!(!done.is_error(), "a status is a result: {}", done.0);
    assert_eq!(done.text(), "out\n[kennel: stderr]\nerr\n[kennel: exit status 3]");
    assert_eq!((done.data("ended"), done.data("exit_code")), (&json!("exited"), &json!(3)));
    assert_eq!((done.data("stdout"), done.data("stderr")), (&json!("out\n"), &json!("err\n")));
    let done = client.call("run", json!({"argv": ["true"]}));
    assert_eq!((done.last(), done.data("exit_code")), ("[kennel: exit status 0, no output]", &json!(0)));
    let done = client.call("run", json!({"argv": ["sh", "-c", "kill -9 $$"]}));
    assert_eq!((done.data("ended"), done.data("signal")), (&json!("signaled"), &json!(9)), "{}", done.0);
    assert_eq!(done.text().lines().next(), Some("[kennel: ended by signal 9, no output]"));
    let done = client.call("run", json!({"argv": ["sleep", "1000"], "timeout_ms": 50}));
    assert_eq!(
        (done.data("ended"), done.data("exit_code")),
        (&json!("timed_out"), &json!(124)),
        "{}",
        done.0
    );
    assert!(done.text().starts_with("[kennel: timed out after ") && !done.is_error(), "{}", done.text());
    let failed = client.call("run", json!({"argv": ["no-such-program"]}));
    assert_eq!(
        (failed.data("ended"), failed.data("exit_code")),
        (&json!("failed"), &json!(127)),
        "{}",
        failed.0
    );
    assert!(failed.refusal().contains("no-such-program: not found in the sandbox"), "{}", failed.0);
}

#[test]
fn a_command_gets_what_the_call_says_and_nothing_of_the_server() {
    let mut client = Client::start(&[]);
    let here = client.path().display().to_string();
    fs::create_dir(client.path().join("sub")).unwrap();
    let done = client.call(
        "run",
        json!({"command": "cat; pwd; echo $A", "stdin": "typed\n", "cwd": "sub", "env": {"A": "b c"}}),
    );
    assert_eq!(done.data("stdout"), &json!(format!("typed\n{here}/sub\nb c\n")), "{}", done.0);
    let done = client.call("run", json!({"argv": ["printf", "%s|", "a b", "$X", "", "ä"]}));
    assert_eq!(done.data("stdout"), "a b|$X||ä|");
    // stdin is empty, and the descriptors are pipes of its own.
    let links =
        client.succeeds("cat; for n in 0 1 2; do readlink /proc/self/fd/$n; done; ls /proc/self/fd | wc -l");
    let links: Vec<&str> = links.lines().collect();
    assert!(
        links[0] == "/dev/null" && links[1].starts_with("pipe:") && links[2].starts_with("pipe:"),
        "{links:?}"
    );
    let server = client.server.id();
    let of_server = |n: u32| fs::read_link(format!("/proc/{server}/fd/{n}")).unwrap().display().to_string();
    assert!(!links.contains(&&*of_server(1)) && !links.contains(&&*of_server(0)), "{links:?}");
    assert_eq!(links[3], "4", "and the one that ls opens");
    let shell = client.call("shell", json!({"snippet": "cat; readlink /proc/$$/fd/0"}));
    assert_eq!(shell.data("exit_code"), 0, "{}", shell.0);
    assert!(!shell.data("stdout").as_str().unwrap().contains(&of_server(0)), "{}", shell.0);
}

#[test]
fn the_policy_holds_whatever_a_call_asks_for() {
    let mut client = Client::start(&["--timeout", "200ms", "--max-output", "20"]);
    let done = client.call("run", json!({"argv": ["sleep", "1000"], "timeout_ms": u64::MAX}));
    assert_eq!(done.data("ended"), "timed_out", "{}", done.0);
    let done = client.call("shell", json!({"snippet": "sleep 1000", "timeout_ms": u64::MAX}));
    assert_eq!(done.data("ended"), "timed_out", "{}", done.0);
    let done = client.call("run", json!({"command": "printf %0100d 1", "max_output_bytes": u64::MAX}));
    let stdout = done.data("stdout").as_str().unwrap();
    assert!(stdout == "0".repeat(20) && done.data("dropped_bytes") == 80, "{}", done.0);
    assert!(
        done.text().contains("[kennel: 80 bytes more were dropped: the policy keeps no more"),
        "{}",
        done.text()
    );
    let done = client.call("shell", json!({"snippet": "printf %0100d 1"}));
    assert!(done.data("stdout") == &"0".repeat(20) && done.data("dropped_bytes") == 80, "{}", done.0);
    for name in ["HOME", "TMPDIR", "https_proxy", "NO_PROXY"] {
        let refused = client.call("run", json!({"argv": ["env"], "env": {name: "/x"}}));
        assert!(refused.refusal().contains(&format!("--setenv {name}=VALUE")), "{}", refused.0);
        assert!(refused.refusal().contains("the sandbox keeps it as it is"), "{}", refused.0);
    }
    require_ci_only!();
    let mut client = Client::start(&["--profile", "ci-only", "--pass-env", "MINE"]);
    assert!(client.call("run", json!({"argv": ["env"], "env": {"OTHER": "x"}})).refusal().contains("OTHER"));
    let done = client.call("run", json!({"command": "echo $MINE", "env": {"MINE": "x"}}));
    assert_eq!(done.data("stdout"), "x\n");
}

#[test]
fn a_shell_keeps_its_state_and_each_name_is_another_one() {
    let mut client = Client::start(&[]);
    let first = client.call("shell", json!({"snippet": "cd /tmp; X=1; f() { echo called; }"}));
    assert_eq!(
        first.0["structuredContent"]["shell"],
        json!({"directory": "/tmp", "is_new": true, "has_ended": false})
    );
    let second = client.call("shell", json!({"snippet": "pwd; echo $X; f"}));
    assert_eq!(second.data("stdout"), "/tmp\n1\ncalled\n");
    assert_eq!(second.text(), "/tmp\n1\ncalled\n[kennel: exit status 0]\n[kennel: in /tmp]");
    assert_eq!(client.call("shell", json!({"snippet": "echo $X", "id": "b"})).data("stdout"), "\n");
    let ended = client.call("shell", json!({"snippet": "exit 4"}));
    assert!(ended.data("exit_code") == 4 && ended.data("shell")["has_ended"] == true, "{}", ended.0);
    assert!(ended.text().contains("the shell has ended"), "{}", ended.text());
    let new = client.call("shell", json!({"snippet": "echo $X"}));
    assert!(new.data("stdout") == "\n" && new.text().contains("a new shell"), "{}", new.0);
    let interrupted = client.call("shell", json!({"snippet": "Y=2; sleep 1000", "timeout_ms": 100}));
    assert_eq!(interrupted.data("ended"), "timed_out");
    assert_eq!(client.call("shell", json!({"snippet": "echo $Y"})).data("stdout"), "2\n", "the shell stays");
    for id in ["", &"x".repeat(65)] {
        assert!(client.call("shell", json!({"snippet": ":", "id": id})).refusal().contains("1 to 64 bytes"));
    }
}

#[test]
fn what_was_refused_is_named_with_the_flag_for_a_person() {
    let mut client = Client::start(&[]);
    let done = client.call("run", json!({"command": "LC_ALL=C touch /usr/x"}));
    let denial = &done.data("denials")[0];
    assert!(denial["subject"] == "/usr/x" && denial["is_certain"] == true, "{}", done.0);
    assert!(done.text().contains("kennel: denied: /usr/x"), "{}", done.text());
    require!(has("curl"), "curl");
    let done = client.call("run", json!({"argv": ["curl", "-sS", "http://nowhere.example/"]}));
    assert_eq!(done.data("denials")[0]["flag"], "--allow nowhere.example:80", "{}", done.0);
    let person = "start `kennel mcp` with --allow nowhere.example:80; you cannot";
    assert!(done.text().contains(person), "{}", done.text());
    let done = client.call("run", json!({"argv": ["curl", "-sSf", "http://pypi.org:443/"]}));
    assert!(done.text().contains("start `kennel mcp` with --allow @pypi; you cannot"), "{}", done.text());
    assert!(done.text().contains("or --allow pypi.org:443 that one host"), "{}", done.text());
}

#[test]
fn what_cannot_be_reached_is_explained() {
    require!(has("curl"), "curl");
    let closed = crate::network::ClosedPort::new();
    let to = format!("localhost:{}", closed.port);
    let mut client = Client::start(&["--allow", &to]);
    let curl = format!("curl -s http://{to}/");
    let done = client.call("run", json!({"command": curl}));
    let failure = &done.data("network_failures")[0];
    assert_eq!((&failure["destination"], &failure["cause"]), (&json!(to), &json!("refused")), "{}", done.0);
    let line = format!("kennel: hint: {to}: it cannot be reached: Connection refused");
    assert!(done.text().contains(&line), "{}", done.text());
}

#[test]
fn what_the_model_can_change_itself_is_not_said_to_a_person() {
    let mut client = Client::start(&["--timeout", "500ms"]);
    for (tool, key) in [("run", "command"), ("shell", "snippet")] {
        let own = client.call(tool, json!({key: "sleep 1000", "timeout_ms": 100}));
        assert!(own.last().contains("that is the `timeout_ms` of this call"), "{tool}: {}", own.text());
        assert!(!own.0.to_string().contains("--timeout"), "{tool}: {}", own.0);
        let of_policy = client.call(tool, json!({key: "sleep 1000", "timeout_ms": 100_000}));
        assert!(!of_policy.0.to_string().contains("timeout_ms"), "{tool}: {}", of_policy.0);
    }
    let of_policy = client.call("run", json!({"argv": ["sleep", "1000"]}));
    assert!(of_policy.last().contains("--timeout TIME raises it"), "{}", of_policy.text());
    let mut client = Client::start(&[]);
    let system = client.call("run", json!({"command": "sudo apt-get install -y hello || exit 100"}));
    assert!(
        system.last().contains("apt-get: the sandbox cannot change the system; install it outside"),
        "{}",
        system.0
    );
    assert!(
        !client
            .call("run", json!({"command": "apt-get --version; exit 1"}))
            .text()
            .contains("change the system")
    );
}

/// Whoever chooses the arguments must not learn which files the host has.
#[test]
fn no_remark_tells_what_exists_outside() {
    let outside = crate::support::workspace_in(std::path::Path::new("/var/tmp"));
    fs::write(outside.path().join("made"), "x").unwrap();
    let mut client = Client::start(&[]);
    for program in [&["cat"][..], &["test", "-e"], &["cp", "x"], &["rm"]] {
        let mut said = |name: &str| {
            let path = outside.path().join(name).display().to_string();
            let argv: Vec<&str> = program.iter().copied().chain([&*path]).collect();
            let done = client.call("run", json!({"argv": argv}));
            assert_eq!(done.data("exit_code"), 1, "{}", done.0);
            let mut data = done.0["structuredContent"].clone();
            data["duration_ms"] = Value::Null;
            format!("{}{data}", done.text()).replace(name, "NAME")
        };
        assert_eq!(said("made"), said("void"), "{program:?}");
    }
}

#[test]
fn progress_tells_how_a_command_goes() {
    let mut client = Client::start(&[]);
    let wait = "until [ -e go ]; do sleep 0.05; done";
    let call = json!({"name": "run", "arguments": {"command": format!("echo begun; {wait}; echo over")}, "_meta": {"progressToken": "p"}});
    let id = client.begin("tools/call", call);
    let mut before = 0.0;
    for _ in 0..2 {
        let told = client.wait("progress", |message| message["method"] == "notifications/progress");
        assert_eq!(told["params"]["progressToken"], "p", "{told}");
        let now = told["params"]["progress"].as_f64().unwrap();
        assert!(now > before, "{told}");
        before = now;
        assert!(told["params"]["message"].as_str().unwrap().contains(" bytes of output: begun"), "{told}");
    }
    fs::write(client.path().join("go"), "").unwrap();
    assert_eq!(client.result(id).data("stdout"), "begun\nover\n");
    // Meanwhile there is one of which nobody asked to be told.
    let silent = client.begin_call("run", json!({"argv": ["sleep", "1.5"]}));
    let call = json!({"name": "shell", "arguments": {"snippet": "sleep 1.5"}, "_meta": {"progressToken": 7}});
    let id = client.begin("tools/call", call);
    let told = client.wait("progress", |message| message["params"]["progressToken"] == 7);
    assert_eq!(told["params"]["message"], "1 s", "{told}");
    client.result(id);
    assert_eq!(client.result(silent).data("exit_code"), 0);
    assert_eq!(client.waiting.iter().find(|message| !message["params"]["progressToken"].is_string()), None);
}

#[test]
fn a_cancelled_call_ends_its_command_and_nothing_else() {
    let mut client = Client::start(&[]);
    for (tool, key) in [("run", "command"), ("shell", "snippet")] {
        let other =
            client.begin_call("run", json!({"command": "until [ -e go ]; do sleep 0.05; done; echo done"}));
        let line = format!("echo > {tool}; sleep 4321");
        let id = client.begin_call(tool, json!({key: line}));
        let began = client.path().join(tool);
        until("the command runs", || began.exists());
        client.send(
            &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}),
        );
        let server = client.server.id();
        let sleeps = move || {
            let all = crate::support::descendants(server);
            let line = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            all.into_iter().any(|pid| line(pid).starts_with(b"sleep\x004321"))
        };
        until("the command has ended", || !sleeps());
        fs::write(client.path().join("go"), "").unwrap();
        assert_eq!(client.result(other).data("stdout"), "done\n", "{tool}");
        fs::remove_file(client.path().join("go")).unwrap();
        assert_eq!(client.succeeds("echo still here"), "still here\n");
        assert!(client.waiting.iter().all(|message| message["id"] != id), "no answer: {:?}", client.waiting);
    }
    let unknown =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99999}});
    client.send(&unknown);
    assert_eq!(client.succeeds("echo still here"), "still here\n");
}

#[test]
fn calls_run_side_by_side() {
    let mut client = Client::start(&[]);
    let waits = |mine: &str, other: &str| json!({"command": format!("echo > {mine}; until [ -e {other} ]; do sleep 0.02; done")});
    let first = client.begin_call("run", waits("a", "b"));
    let second = client.begin_call("run", waits("b", "a"));
    for id in [second, first] {
        assert_eq!(client.result(id).data("exit_code"), 0);
    }
}

#[test]
fn what_a_command_leaves_behind_can_go_on_writing() {
    let mut client = Client::start(&[]);
    let left =
        "(while [ ! -e stop ]; do echo noise; echo noise >&2; sleep 0.02; done; echo > stopped) & echo begun";
    let start = std::time::Instant::now();
    let done = client.call("run", json!({"command": left}));
    assert!(done.data("stdout").as_str().unwrap().contains("begun\n"), "{}", done.0);
    assert!(start.elapsed() < patient(Duration::from_secs(20)), "it does not wait for what is left");
    client.succeeds("sleep 0.3");
    fs::write(client.path().join("stop"), "").unwrap();
    let stopped = client.path().join("stopped");
    until("it got no SIGPIPE", || stopped.exists());
}
