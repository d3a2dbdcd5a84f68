//! A full disk: the policy says whether a command may run if it cannot be logged.

use std::{fs, path::Path, time::Instant};

use super::*;
use crate::support::{is_alone, patient};

/// The test runs in namespaces of its own. The path to its program leads through /proc of processes in other
/// namespaces, so it opens the program first.
const SMALL: &str =
    "exec 7<\"$1\"; shift; exec unshare --user --map-root-user --mount /proc/self/fd/7 \"$@\"";

/// Mounts a small file system at `place`.
fn mount_small(place: &Path) {
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=16k", "none"])
        .arg(place)
        .status()
        .unwrap();
    assert!(mounted.success());
}

/// Uses up the remaining space.
fn fill(place: &Path) {
    let full = fs::write(place.join("ballast"), vec![0; 64 << 10]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(nix::libc::ENOSPC));
}

#[tokio::test]
async fn lost_records_are_counted_if_the_log_fails_open() {
    if !is_alone("audit::full::lost_records_are_counted_if_the_log_fails_open", SMALL) {
        return;
    }
    let (place, log) = (workspace(), Log::new());
    mount_small(log.place.path());
    let session = Session::prepare(&policy(place.path()).audit(log.plain())).await.unwrap();
    fs::write(log.path(), vec![b'\n'; 4096]).unwrap();
    fill(log.place.path());
    for lost in ["2", "4", "6"] {
        let outcome = session.command("true").status().await.unwrap();
        assert!(outcome.status.success());
        let told = format!("records that could not be written: {lost}: No space left on device");
        assert!(outcome.unaudited.as_deref().is_some_and(|words| words.contains(&told)), "{outcome:?}");
        let remarks = outcome.remarks(kennel::report::Wording::default());
        assert!(remarks.iter().any(|line| line.contains(&told)), "{remarks:?}");
    }
    fs::remove_file(log.place.path().join("ballast")).unwrap();
    session.command("true").status().await.unwrap();
    let text = fs::read_to_string(log.path()).unwrap();
    let lines: Vec<Value> =
        text.lines().filter(|line| !line.is_empty()).map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((&lines[0]["event"], &lines[0]["lost"]), (&"exec".into(), &6.into()), "{text}");
    assert_eq!((&lines[1]["event"], &lines[1]["lost"]), (&"exit".into(), &Value::Null));
}

#[tokio::test]
async fn nothing_runs_if_the_log_fails_closed() {
    if !is_alone("audit::full::nothing_runs_if_the_log_fails_closed", SMALL) {
        return;
    }
    let (place, log) = (workspace(), Log::new());
    mount_small(log.place.path());
    let audit = Audit { fail_closed: true, ..log.plain() };
    let policy = policy(place.path()).audit(audit);
    let session = Session::prepare(&policy).await.unwrap();
    session.command("true").status().await.unwrap();
    fs::write(log.path(), vec![b'\n'; 4096]).unwrap();
    fill(log.place.path());
    let refused = |error: kennel::Error| {
        let source = std::error::Error::source(&error).unwrap().downcast_ref::<std::io::Error>().unwrap();
        assert_eq!(source.raw_os_error(), Some(nix::libc::ENOSPC), "{error}");
        assert!(error.remedy().unwrap().to_string().contains("room"), "{error}");
        assert_eq!(error.failure().class, Class::RuntimeError);
    };
    let ran = place.path().join("ran");
    for _ in 0..2 {
        refused(session.command("touch").arg("ran").status().await.unwrap_err());
        assert!(!ran.exists());
    }
    // Nor does a session.
    refused(Session::prepare(&policy).await.unwrap_err());
    fs::remove_file(log.place.path().join("ballast")).unwrap();
    session.command("touch").arg("ran").status().await.unwrap();
    assert!(ran.exists());
}

#[tokio::test]
async fn half_a_line_is_not_read_as_a_record() {
    if !is_alone("audit::full::half_a_line_is_not_read_as_a_record", SMALL) {
        return;
    }
    for chain in [false, true] {
        let (place, log) = (workspace(), Log::new());
        mount_small(log.place.path());
        // There is room only for a part of a line.
        fs::write(log.path(), format!("{}\n", " ".repeat((12 << 10) - 101))).unwrap();
        fs::write(log.place.path().join("ballast"), [0]).unwrap();
        let session =
            Session::prepare(&policy(place.path()).audit(Audit { chain, ..log.plain() })).await.unwrap();
        let torn = fs::metadata(log.path()).unwrap().len();
        assert_eq!(torn == 12 << 10, !chain, "{torn}: a chain has no half links");
        fs::remove_file(log.place.path().join("ballast")).unwrap();
        session.command("true").status().await.unwrap();
        let text = fs::read_to_string(log.path()).unwrap();
        let whole: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        assert_eq!((whole.len(), &whole[0]["lost"]), (2, &1.into()), "{chain}: {text}");
        assert_eq!(text.lines().count(), if chain { 3 } else { 4 });
        session.shutdown().await;
    }
}

#[tokio::test]
async fn nothing_passes_the_proxy_if_the_log_fails_closed() {
    if !is_alone("audit::full::nothing_passes_the_proxy_if_the_log_fails_closed", SMALL) {
        return;
    }
    let (place, log) = (workspace(), Log::new());
    mount_small(log.place.path());
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    server.set_nonblocking(true).unwrap();
    let audit = Audit { fail_closed: true, ..log.plain() };
    let policy = policy(place.path()).allow(format!("127.0.0.1:{port}")).audit(audit);
    let session = Session::prepare(&policy).await.unwrap();
    let script = format!(
        "touch began; while ! test -e full; do sleep 0.01; done; curl -six $http_proxy --noproxy '' http://127.0.0.1:{port}/ 2>&1"
    );
    let mut child =
        session.command("sh").args(["-c", &script]).stdout(kennel::Stdio::piped()).spawn().await.unwrap();
    let begun = Instant::now();
    while !place.path().join("began").exists() {
        assert!(begun.elapsed() < patient(Duration::from_secs(10)));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    fs::write(log.path(), vec![b'\n'; 4096]).unwrap();
    fill(log.place.path());
    fs::write(place.path().join("full"), "").unwrap();
    let mut said = String::new();
    let mut stdout = child.stdout.take().unwrap();
    tokio::io::AsyncReadExt::read_to_string(&mut stdout, &mut said).await.unwrap();
    assert!(said.contains("503") && said.contains("x-kennel-deny: unrecorded"), "{said}");
    assert_eq!(server.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody was dialled");
    let outcome = child.wait().await.unwrap();
    assert!(outcome.denials.iter().any(|denial| denial.reason.contains("audit log")), "{outcome:?}");
}
