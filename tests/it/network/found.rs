//! Holes that reviews found and that are fixed: each attack in its original form.

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::{PermissionsExt, symlink},
    time::{Duration, Instant},
};

use kennel::{Session, Stdio};
use tokio::time::timeout;

use super::{
    Net, Origin, PROXY, Server, at,
    sessions::{allowing, get, output, said},
    stderr, stdout,
};
use crate::support::{has, kennel, patient, require, workspace};

#[test]
fn an_answer_whose_head_has_no_end_is_an_error_soon() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let server = Server::start(|mut stream, _| {
        let _ = stream.read(&mut [0; 1024]);
        let more = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
        while stream.write_all(&more).is_ok() {}
    });
    let to = at("one.test", server.port);
    let begun = Instant::now();
    let script = format!("curl -s -m 20 -o /dev/null -w '%{{http_code}}' -x http://{PROXY} http://{to}/");
    assert_eq!(net.says(&net.flags(&[&to], &[]), &script), "502");
    assert!(begun.elapsed() < patient(Duration::from_secs(10)), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_session_is_served_by_the_runtime_that_uses_it() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let policy = allowing(&net, &[&to]);
    let session = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.unwrap().block_on(Session::prepare(&policy)).unwrap()
    });
    // The runtime that prepared it ended with its thread.
    let session = session.join().unwrap();
    // No process inside can take the place of the proxy meanwhile.
    let taken = output({
        let mut command = session.command("python3");
        let script = "import socket\ntry:\n socket.create_server(('127.0.0.1', 3128))\n print('taken')\nexcept OSError as e: print(e.errno)";
        command.args(["-c", script]);
        command
    })
    .await;
    if has("python3") {
        assert_eq!(said(&taken).trim(), libc::EADDRINUSE.to_string());
    }
    let served = output(get(session.command("/payload"), &to)).await;
    assert!(said(&served).ends_with("one: /\n[end]\n"), "{served:?}");
    session.shutdown().await;
}

#[tokio::test]
async fn a_wait_in_small_steps_ends() {
    let net = Net::new();
    // It reads nothing, so the last bytes do not arrive.
    let silent = Server::start(|stream, _| {
        std::thread::sleep(Duration::from_secs(20));
        drop(stream);
    });
    let to = at("one.test", silent.port);
    let sandbox = kennel::Sandbox::new(&allowing(&net, &[&to])).unwrap();
    let connect = format!(">CONNECT {to} HTTP/1.1\\r\\n\\r\\n");
    let mut command = sandbox.command("/payload");
    command.args(["talk", PROXY, &connect, "#8000000"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().await.unwrap();
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_millis(500)).await;
    child.start_kill().unwrap();
    while timeout(Duration::from_millis(100), child.wait()).await.is_err() {
        assert!(begun.elapsed() < patient(Duration::from_secs(8)), "it never ends");
    }
}

#[tokio::test]
async fn a_denied_request_does_not_delay_others() {
    require!(has("python3") && has("getent"), "python3 and getent");
    let net = Net::new();
    let session = Session::prepare(&allowing(&net, &["one.test:80"])).await.unwrap();
    let flood = "import socket, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nend = time.time() + 4\nn = 0\nwhile time.time() < end:\n n += 1\n q = b'\\x00\\x01\\x01\\x00\\x00\\x01' + b'\\x00' * 6 + bytes([8]) + b'%08d' % n + b'\\x03bad\\x00\\x00\\x01\\x00\\x01'\n s.sendto(q, ('127.0.0.1', 53))\n time.sleep(0.001)";
    let mut command = session.command("python3");
    let mut flooder = command.args(["-c", flood]).spawn().await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    for _ in 0..4 {
        let mut command = session.command("getent");
        command.args(["hosts", "one.test"]);
        let found =
            timeout(patient(Duration::from_secs(3)), output(command)).await.expect("an answer in time");
        assert!(said(&found).starts_with("127.1."), "{found:?}");
    }
    flooder.kill().await.unwrap();
    session.shutdown().await;
}

#[test]
fn files_that_kennel_opens_outside_are_out_of_reach_of_commands() {
    let (dir, elsewhere) = (workspace(), workspace());
    let log = elsewhere.path().join("log");
    fs::create_dir(elsewhere.path().join("logs")).unwrap();
    // An earlier command made these.
    symlink(elsewhere.path().join("logs"), dir.path().join("logs")).unwrap();
    symlink("/var/run/docker.sock", dir.path().join("proxy.sock")).unwrap();
    for flags in [
        &["--allow", "a.test:1", "--audit", "logs/audit"][..],
        &["--allow", "a.test:1", "--audit", "audit"],
        &["--proxy-socket", "proxy.sock"],
    ] {
        let output = kennel(dir.path(), flags, &["true"]).current_dir(dir.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{flags:?}: {output:?}");
        assert!(stderr(&output).contains("reached through a writable grant"), "{flags:?}: {output:?}");
    }
    assert_eq!(fs::read_dir(elsewhere.path().join("logs")).unwrap().count(), 0);
    let flags = ["--allow", "a.test:1", "--audit", log.to_str().unwrap()];
    assert!(kennel(dir.path(), &flags, &["true"]).status().unwrap().success());
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_variable_shows_no_secret_as_a_certificate() {
    let (dir, elsewhere) = (workspace(), workspace());
    let secret = elsewhere.path().join("key");
    let bundle = elsewhere.path().join("bundle.pem");
    for (path, mode) in [(&secret, 0o600), (&bundle, 0o644)] {
        fs::write(path, "contents").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let see = |value: &str, flags: &[&str], path: &str| {
        let flags = [&["--allow", "a.test:1"], flags].concat();
        let script = format!("cat {path} 2>/dev/null; echo -n \"[$SSL_CERT_FILE]\"");
        let mut command = kennel(dir.path(), &flags, &["sh", "-c", &script]);
        stdout(&command.env("SSL_CERT_FILE", value).output().unwrap())
    };
    let (secret, bundle) = (secret.to_str().unwrap(), bundle.to_str().unwrap());
    assert_eq!(see(bundle, &[], bundle), format!("contents[{bundle}]"));
    assert_eq!(see(secret, &[], secret), "[]");
    assert_eq!(see("/proc/self/environ", &[], bundle), "[]");
    fs::create_dir(dir.path().join("md")).unwrap();
    let masked = dir.path().join("md/m.pem");
    fs::write(&masked, "contents").unwrap();
    let mask = dir.path().join("md");
    let masked = masked.to_str().unwrap();
    assert_eq!(see(masked, &["--mask", mask.to_str().unwrap()], masked), "[]");
}

#[test]
fn credentials_of_an_upstream_proxy_are_not_shown() {
    let dir = workspace();
    let output = std::process::Command::new(crate::support::kennel_path())
        .args([
            "policy",
            "show",
            "--as-file",
            "--allow",
            "a.test:1",
            "--upstream",
            "http://alice:s3cret@h.test:1",
        ])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success() && stdout(&output).contains("http://…@h.test:1"), "{output:?}");
    assert!(!stdout(&output).contains("s3cret"), "{output:?}");
}
