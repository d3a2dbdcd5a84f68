//! A limit on the size of files (RLIMIT_FSIZE) gives an error to the program that exceeds it, and does not
//! kill it. In a process of its own.

use std::{error::Error as _, fs, io};

use kennel::{
    Audit, Error, Overlay, Policy, Profile, Sandbox, Session,
    overlay::{Refusal, Refused},
    probe::{Host, Version},
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::{io::AsyncWriteExt, runtime::Builder};

use crate::support::{is_alone, workspace};

/// The errno of the last cause in the chain.
fn errno(error: &Error) -> Option<i32> {
    let mut cause = error.source()?;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.downcast_ref::<io::Error>()?.raw_os_error()
}

fn limit(size: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, size, hard).unwrap();
}

async fn is_an_error() {
    let dir = workspace();
    let policy = Policy::profile(Profile::NoNetwork, dir.path());
    // The first sandbox of a program writes the image of the init program, which the others share.
    limit(0);
    let of_start = Sandbox::new(&policy).unwrap_err();
    limit(libc::RLIM_INFINITY);
    let session = Session::prepare(&policy).await.unwrap();
    let sandbox = Sandbox::new(&policy).unwrap();
    sandbox.command("true").status().await.unwrap();
    let mut large = session.open_write("large").await.unwrap();
    let beside = workspace();
    fs::write(beside.path().join("from"), vec![1; 3 << 20]).unwrap();
    limit(0);
    let of_many = vec!["x".repeat(1000); 300];
    let of_request = session.command("true").args(&of_many).output().await.unwrap_err();
    let of_one_shot = sandbox.command("true").args(&of_many).output().await.unwrap_err();
    let of_write = session.write("file", "text").await.unwrap_err();
    let of_copy = session.copy_in(beside.path().join("from"), "file").await.unwrap_err();
    session.write("file", "").await.unwrap();
    for error in [of_start, of_request, of_one_shot, of_write, of_copy] {
        assert_eq!(errno(&error), Some(libc::EFBIG), "{error:?}");
    }
    limit(2 << 20);
    // The kernel may have written a part.
    let of_stream =
        async { large.write_all(&vec![1; 3 << 20]).await.and(large.flush().await) }.await.unwrap_err();
    assert_eq!(of_stream.raw_os_error(), Some(libc::EFBIG), "{of_stream:?}");
    limit(libc::RLIM_INFINITY);
    assert!(session.command("true").args(&of_many).status().await.unwrap().status.success());
    session.copy_in(beside.path().join("from"), "file").await.unwrap();
}

async fn is_an_error_of_a_log() {
    let (dir, beside) = (workspace(), workspace());
    let mut audit = Audit::new(beside.path().join("log"));
    audit.fail_closed = true;
    let policy = Policy::profile(Profile::NoNetwork, dir.path()).audit(audit);
    let session = Session::prepare(&policy).await.unwrap();
    limit(0);
    session.command("true").status().await.unwrap_err();
    limit(libc::RLIM_INFINITY);
    session.command("true").status().await.unwrap();
}

async fn is_an_error_of_a_commit() {
    let dir = workspace();
    let policy = Policy::profile(Profile::NoNetwork, dir.path()).overlay(Overlay::default());
    let session = Session::prepare(&policy).await.unwrap();
    let mut command = session.command("sh");
    command.args(["-c", "head -c 100000 /dev/zero >file"]);
    assert!(command.status().await.unwrap().status.success());
    limit(4096);
    let refused = session.commit().await.unwrap().refused;
    assert!(matches!(refused[..], [Refused { refusal: Refusal::Failed(libc::EFBIG), .. }]), "{refused:?}");
    limit(libc::RLIM_INFINITY);
    session.commit().await.unwrap();
    assert_eq!(fs::metadata(dir.path().join("file")).unwrap().len(), 100_000);
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error() {
    if !is_alone("embed::size::a_limit_on_the_size_of_files_is_an_error", "exec \"$@\"") {
        return;
    }
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        is_an_error().await;
        is_an_error_of_a_log().await;
        if Host::detect().kernel >= Version(6, 6) {
            is_an_error_of_a_commit().await;
        }
    });
}
