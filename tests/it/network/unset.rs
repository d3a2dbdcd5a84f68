//! A policy without a rule: nothing leaves, every tool gets its answer at once, and one line says what would
//! allow it.

use std::{
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddr, UnixListener},
    },
    path::Path,
    process::Output,
    time::{Duration, Instant},
};

use kennel::{
    Policy, Profile, Sandbox, Session,
    report::{Setting, SettingKey},
};
use tokio::io::AsyncReadExt;

use super::PROXY;
use crate::support::{
    address_of_host, attempt, has, is_second_pass, patient, require, runs, shell, stderr, stdout, succeeds,
    workspace,
};

/// How long a tool may take until it has its answer.
const AT_ONCE: Duration = Duration::from_secs(2);

/// The flags of the profiles whose network is the proxy by default.
fn profiles() -> Vec<&'static [&'static str]> {
    let all: [&[&str]; 2] = [&[], &["--profile", "ci-only"]];
    all.into_iter().filter(|flags| flags.last().is_none_or(|profile| runs(profile))).collect()
}

#[test]
fn without_a_rule_nothing_leaves() {
    let ws = workspace();
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let datagrams = UdpSocket::bind("0.0.0.0:0").unwrap();
    datagrams.set_nonblocking(true).unwrap();
    let to_datagrams = format!("127.0.0.1:{}", datagrams.local_addr().unwrap().port());
    let name = format!("kennel-test-unset-{}", std::process::id());
    let unix = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name).unwrap()).unwrap();
    unix.set_nonblocking(true).unwrap();
    let local = ["127.0.0.1", "127.0.0.2", "127.1.0.1", "0.0.0.0", "[::1]"].map(|ip| format!("{ip}:{port}"));
    let local: Vec<&str> = local.iter().map(String::as_str).collect();
    for flags in profiles() {
        let tries = |kind: &str, to: &[&str]| attempt(ws.path(), flags, kind, to);
        let beyond = ["1.1.1.1:443", "169.254.169.254:80", "10.0.0.1:80", "[2606:4700:4700::1111]:443"];
        assert_eq!(tries("connect", &beyond), ["ENETUNREACH"; 4].join("\n"), "{flags:?}");
        assert_eq!(tries("connect", &local), ["ECONNREFUSED"; 5].join("\n"), "{flags:?}");
        if let Some(ip) = address_of_host() {
            assert_eq!(tries("connect", &[&std::net::SocketAddr::new(ip, port).to_string()]), "ENETUNREACH");
        }
        let beyond = ["8.8.8.8:53", "169.254.169.254:80", "224.0.0.251:5353", "[ff02::fb]:5353"];
        assert_eq!(tries("send", &beyond), ["ENETUNREACH"; 4].join("\n"), "{flags:?}");
        assert_eq!(tries("send", &[&to_datagrams]), "ok", "to the loopback of the sandbox");
        assert_eq!(tries("abstract", &[&name]), ["ECONNREFUSED"; 2].join("\n"), "{flags:?}");
    }
    assert!(listener.accept().is_err() && unix.accept().is_err(), "nobody came");
    assert!(datagrams.recv(&mut [0; 8]).is_err(), "nothing came");
}

/// What the proxy answers to each conversation.
fn talk(ws: &Path, conversations: &[&[&str]]) -> String {
    let words = conversations.iter().flat_map(|steps| [&["+", PROXY], *steps].concat());
    attempt(ws, &[], "talk", &words.skip(1).collect::<Vec<_>>())
}

#[test]
fn every_request_is_refused_in_its_protocol() {
    let ws = workspace();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let hosts = ["localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "name.test"];
    let requests: Vec<String> = hosts
        .iter()
        .flat_map(|host| {
            [
                format!(">CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\n"),
                format!(">GET http://{host}:{port}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"),
            ]
        })
        .collect();
    let steps: Vec<[&str; 3]> = requests.iter().map(|request| [request.as_str(), "!", "<"]).collect();
    let steps: Vec<&[&str]> = steps.iter().map(<[&str; 3]>::as_slice).collect();
    let heard = talk(ws.path(), &steps);
    assert_eq!(heard.matches("HTTP/1.1 403 Forbidden").count(), requests.len(), "{heard}");
    assert_eq!(heard.matches("x-kennel-deny: not-allowed").count(), requests.len(), "{heard}");
    assert_eq!(heard.matches("kennel: the allow list is: nothing\n").count(), requests.len(), "{heard}");
    let flag = format!("run the sandbox with: --allow name.test:{port}\n");
    assert_eq!(heard.matches(&flag).count(), 2, "{heard}");
    // SOCKS5, by address and by name: a reply with the code for "not allowed".
    let socks = [
        ">\\x05\\x01\\x00\\x05\\x01\\x00\\x01\\x7f\\x00\\x00\\x01\\x00\\x50",
        ">\\x05\\x01\\x00\\x05\\x01\\x00\\x03\\x09name.test\\x00\\x50",
    ];
    for request in socks {
        let heard = talk(ws.path(), &[&[request, "!", "<"]]);
        assert!(heard.starts_with("\u{5}\u{0}\u{5}\u{2}"), "{heard:?}");
    }
    assert!(listener.accept().is_err(), "nobody came");
}

#[test]
fn no_name_exists_whatever_it_carries() {
    let ws = workspace();
    let names = ["crates.io", "c2VjcmV0.tunnel.test", "a.b.c.d.e.f.g.test", "kennel.local"];
    let questions = names.map(|name| format!("127.0.0.1:53/{name}"));
    let questions: Vec<&str> = questions.iter().map(String::as_str).collect();
    assert_eq!(attempt(ws.path(), &[], "query", &questions), ["code 3"; 4].join("\n"));
    assert_eq!(attempt(ws.path(), &[], "query", &["127.0.0.1:53/localhost"]), "127.0.0.1");
    // No other name server is reached.
    assert_eq!(attempt(ws.path(), &[], "query", &["8.8.8.8:53/crates.io"]), "ENETUNREACH");
}

/// A script in a workspace, what it needs, and a flag that Kennel's line must name.
struct Tool {
    needs: &'static str,
    script: &'static str,
    flag: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool { needs: "curl", script: "curl -sS https://one.example", flag: "--allow one.example:443" },
    Tool { needs: "curl", script: "curl -sSf http://one.example/x", flag: "--allow one.example:80" },
    Tool { needs: "curl", script: "curl -sS ftp://one.example/", flag: "--allow one.example:PORT" },
    Tool {
        needs: "curl",
        script: "curl -sS --noproxy '*' https://one.example",
        flag: "--allow one.example:PORT",
    },
    Tool { needs: "wget", script: "wget -q https://one.example/x", flag: "--allow one.example:443" },
    Tool { needs: "getent", script: "getent hosts one.example", flag: "--allow one.example:PORT" },
    Tool { needs: "git", script: "git clone https://one.example/x.git", flag: "--allow one.example:443" },
    Tool { needs: "git", script: "git ls-remote git://one.example/x.git", flag: "--allow one.example:PORT" },
    Tool { needs: "ssh", script: "ssh -o BatchMode=yes git@one.example", flag: "--allow one.example:PORT" },
    Tool {
        needs: "python3",
        script: "python3 -c 'import urllib.request as r; r.urlopen(\"https://one.example\")'",
        flag: "--allow one.example:443",
    },
    Tool {
        needs: "python3",
        script: "python3 -c 'import socket; socket.create_connection((\"one.example\", 5432))'",
        flag: "--allow one.example:PORT",
    },
    Tool {
        needs: "node",
        script: "node -e 'fetch(\"https://one.example\").catch(e => { console.error(e.cause); process.exit(1) })'",
        flag: "--allow one.example:PORT",
    },
    Tool {
        needs: "perl",
        script: "perl -MIO::Socket::INET -e 'IO::Socket::INET->new(\"one.example:80\") or die \"$@\"'",
        flag: "--allow one.example:PORT",
    },
    Tool {
        needs: "ruby",
        script: "ruby -rnet/http -e 'Net::HTTP.get(URI(\"http://one.example/\")).then { abort it if it.include?(\"kennel\") }'",
        flag: "--allow one.example:80",
    },
];

/// Runs a script that must fail by itself and at once.
fn fails_at_once(ws: &Path, script: &str, limit: Duration) -> Output {
    let begun = Instant::now();
    let output = shell(ws, &["--timeout", "60s"], script);
    let took = begun.elapsed();
    assert!(took < patient(limit), "{script}: {took:?}: {output:?}");
    assert!(output.status.code().is_some_and(|code| code > 0 && !(124..=127).contains(&code)), "{output:?}");
    output
}

#[test]
fn every_tool_ends_at_once_and_the_flag_is_named() {
    let ws = workspace();
    for Tool { needs, script, flag } in TOOLS.iter().filter(|tool| has(tool.needs)) {
        let output = fails_at_once(ws.path(), script, AT_ONCE);
        let said = stderr(&output);
        assert!(said.contains(&format!("; {flag} would allow it")), "{needs}: {script}: {said}");
    }
}

#[test]
fn package_managers_end_without_hanging_and_the_flag_is_named() {
    let jobs = [
        ("npm", "npm install left-pad", "--allow registry.npmjs.org:443"),
        ("npm", "npm view left-pad", "--allow registry.npmjs.org:443"),
        ("pip", "pip download --no-deps left-pad", "--allow pypi.org:443"),
        ("cargo", "cargo search left-pad", "--allow index.crates.io:443"),
        ("go", "GOFLAGS=-mod=mod go list -m example.com/x@latest", "--allow proxy.golang.org:443"),
    ];
    for (needs, script, flag) in jobs {
        if !has(needs) || is_second_pass() && ["pip", "cargo"].contains(&needs) {
            continue;
        }
        let ws = workspace();
        let output = fails_at_once(ws.path(), script, Duration::from_secs(10));
        assert!(stderr(&output).contains(flag), "{script}: {output:?}");
    }
}

#[test]
fn several_hosts_are_one_line_and_each_is_in_the_report() {
    require!(has("curl"), "curl");
    let ws = workspace();
    let script = "curl -s https://a.example https://b.example:8443 http://a.example https://a.example; getent hosts b.example c.example";
    let (output, report) = crate::support::report(ws.path(), &[], &["sh", "-c", script]);
    let said = stderr(&output);
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("kennel: ")).collect();
    let expected = "kennel: 3 hosts were refused: --allow b.example:8443 --allow a.example:80 --allow a.example:443 \
                    --allow c.example:PORT";
    assert_eq!(lines, [expected], "each once, in the order of its last denial");
    let subjects: Vec<&str> = report["denials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|denial| denial["subject"].as_str().unwrap())
        .collect();
    assert_eq!(subjects, ["b.example:8443", "a.example:80", "a.example:443", "b.example", "c.example"]);
    let script = "for n in 1 2 3 4 5 6 7; do curl -s https://n$n.example; done";
    let said = stderr(&shell(ws.path(), &[], script));
    assert!(said.starts_with("kennel: 7 hosts were refused: --allow n1.example:443 "), "{said}");
    assert!(said.ends_with(" --allow n5.example:443 and 2 more") && said.lines().count() == 1, "{said}");
    assert_eq!(stderr(&shell(ws.path(), &["-q"], script)), "");
}

#[test]
fn servers_of_the_sandbox_are_reached_without_the_proxy() {
    require!(has("python3") && has("curl"), "python3 and curl");
    let ws = workspace();
    let script = "echo mine > page; python3 -m http.server --bind :: 8000 > log 2>&1 & \
        n=0; while ! curl -s http://localhost:8000/page > first && [ $n -lt 200 ]; do sleep 0.05; n=$((n+1)); done; \
        for host in localhost 127.0.0.1 '[::1]' kennel 127.0.0.7; do curl -sg http://$host:8000/page || echo failed: $host; done; \
        python3 -c 'import urllib.request as r; print(r.urlopen(\"http://localhost:8000/page\").read().decode(), end=\"\")'";
    for flags in profiles() {
        assert_eq!(succeeds(ws.path(), flags, script), ["mine"; 6].join("\n"), "{flags:?}");
    }
}

#[test]
fn without_the_sockets_of_the_proxy_commands_run_as_before() {
    let ws = workspace();
    let refused = |call: &str, flags: &[&str]| {
        let payload = crate::support::payload_path();
        let mut command = std::process::Command::new(payload);
        command.args(["refuse", call, "--"]).arg(crate::support::kennel_path()).arg("run").args(flags);
        command.args(["--", "sh", "-c", "echo ran"]).current_dir(ws.path()).output().unwrap()
    };
    for call in ["listen=EPERM", "bind=EACCES"] {
        let output = refused(call, &[]);
        assert_eq!((stdout(&output), stderr(&output)), ("ran".into(), String::new()), "{call}");
        let output = refused(call, &["--net", "proxy"]);
        assert_eq!(output.status.code(), Some(125), "who asks for a proxy gets one or nothing: {output:?}");
    }
}

#[test]
fn where_the_network_namespace_may_be_missing_there_is_no_proxy() {
    let ws = workspace();
    let script = "env | grep -ci proxy; true";
    for flags in [
        &["--on-unavailable", "degrade"][..],
        &["--net", "none"],
        &["--profile", "no-network"],
        &["--profile", "read-only"],
    ] {
        assert_eq!(stdout(&shell(ws.path(), flags, script)), "0", "{flags:?}");
        assert_eq!(attempt(ws.path(), flags, "connect", &[PROXY]), "ECONNREFUSED", "{flags:?}");
        assert_eq!(
            attempt(ws.path(), flags, "query", &["127.0.0.1:53/a.example"]),
            "ECONNREFUSED",
            "{flags:?}"
        );
    }
    assert_eq!(stdout(&shell(ws.path(), &[], script)), "3");
}

#[tokio::test]
async fn the_library_has_the_same_default() {
    let ws = workspace();
    let policy = Policy::profile(Profile::RepoWrite, ws.path());
    let sandbox = Sandbox::new(&policy).unwrap();
    let session = Session::prepare(&policy).await.unwrap();
    for mut command in [sandbox.command("getent"), session.command("getent"), session.command("getent")] {
        let output = command.args(["hosts", "one.example"]).output().await.unwrap();
        assert_eq!(output.outcome.status.code(), Some(2), "{output:?}");
        let remedies: Vec<_> = output.outcome.denials.iter().flat_map(|denial| denial.advised()).collect();
        let [Setting { key: SettingKey::Allow, value: Some(value), .. }] = &*remedies else {
            panic!("{remedies:?}")
        };
        assert_eq!(value, "one.example:PORT");
    }
    session.shutdown().await;
}

/// A program may read the output first and wait afterwards.
#[tokio::test]
async fn answers_do_not_wait_for_who_waits_for_the_command() {
    let ws = workspace();
    let sandbox = Sandbox::new(&Policy::profile(Profile::RepoWrite, ws.path())).unwrap();
    let mut command = sandbox.command("sh");
    let mut child = command
        .args(["-c", "getent hosts one.example; echo $?"])
        .stdout(kennel::Stdio::piped())
        .spawn()
        .await
        .unwrap();
    let mut said = String::new();
    let mut reader = child.stdout.take().unwrap();
    tokio::time::timeout(patient(Duration::from_secs(20)), reader.read_to_string(&mut said))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(said, "2\n");
    assert_eq!(child.wait().await.unwrap().denials.len(), 1);
}

#[test]
fn commands_of_a_session_are_told_too() {
    require!(has("curl"), "curl");
    let (ws, runtime) = (workspace(), workspace());
    let call = |arguments: &[&str]| {
        let mut command = std::process::Command::new(crate::support::kennel_path());
        command
            .args(arguments)
            .current_dir(ws.path())
            .env("XDG_RUNTIME_DIR", runtime.path())
            .output()
            .unwrap()
    };
    assert!(call(&["session", "start", "--name", "s"]).status.success());
    let output = call(&["exec", "s", "--", "curl", "-s", "https://a.example", "https://b.example"]);
    let said = stderr(&output);
    assert!(
        said.ends_with(
            "kennel: 2 hosts were refused: start the session with --allow a.example:443 --allow b.example:443"
        ),
        "{said}"
    );
    assert_eq!(stderr(&call(&["exec", "s", "--", "true"])), "");
    assert!(call(&["session", "stop", "s"]).status.success());
}
