//! Compiles the inside with rustc alone: freestanding, static, a few kilobytes.
//!
//! Cargo's own flags do not apply on purpose: the inside must come out the same however the outside is built.

use std::{env, path::PathBuf, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=src");
    let os = env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    assert!(
        os == "linux" && arch == "x86_64",
        "kennel's inside exists for x86_64 Linux only, not for {arch} {os}: \
         its system calls and its start code (helper/src/inside/arch.rs) are per architecture"
    );
    let image = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("inside");
    let status = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"))
        .args(["--crate-name=inside", "--crate-type=bin", "--edition=2024", "--cfg=kennel_inside"])
        .args(["--target=x86_64-unknown-linux-gnu", "-Copt-level=s", "-Cpanic=abort", "-Clto=fat"])
        .args(["-Ccodegen-units=1", "-Crelocation-model=static", "-Cforce-unwind-tables=no"])
        .args(["-Ctarget-feature=+crt-static", "-Clink-arg=-nostartfiles", "-Clink-arg=-nostdlib"])
        .args(["-Clink-arg=-static", "-Clink-arg=-Wl,--build-id=none", "-Clink-arg=-Wl,-z,norelro"])
        .args(["-Clink-arg=-Wl,-z,noseparate-code", "-Cstrip=debuginfo"])
        .arg("-o")
        .arg(&image)
        .arg("src/inside/main.rs")
        .status()
        .expect("rustc could not be started");
    assert!(status.success(), "the inside does not compile: see rustc's messages above");
}
