//! Compiles the freestanding programs with rustc alone: the inside and the client `kennel-exec`, each static
//! and a few kilobytes.
//!
//! Cargo's flags do not apply on purpose: the programs must be the same however the outside is built.

use std::{env, path::PathBuf, process::Command};

/// Name of the image, its source, and the `cfg` set for it.
const IMAGES: [(&str, &str, &[&str]); 2] = [
    ("inside", "src/inside/main.rs", &["--cfg=kennel_inside"]),
    ("kennel-exec", "src/client/main.rs", &["--cfg=kennel_inside", "--cfg=kennel_client"]),
];

fn main() {
    println!("cargo::rerun-if-changed=src");
    let os = env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    assert!(
        os == "linux" && arch == "x86_64",
        "kennel's inside exists for x86_64 Linux only, not for {arch} {os}: \
         its system calls and its start code (helper/src/inside/arch.rs) are per architecture"
    );
    for (name, source, flags) in IMAGES {
        compile(name, source, flags);
    }
}

fn compile(name: &str, source: &str, flags: &[&str]) {
    let image = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(name);
    let status = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"))
        .arg(format!("--crate-name={}", name.replace('-', "_")))
        .args(["--crate-type=bin", "--edition=2024"])
        .args(flags)
        .args(["--target=x86_64-unknown-linux-gnu", "-Copt-level=s", "-Cpanic=abort", "-Clto=fat"])
        .args(["-Ccodegen-units=1", "-Crelocation-model=static", "-Cforce-unwind-tables=no"])
        .args(["-Ctarget-feature=+crt-static", "-Clink-arg=-nostartfiles", "-Clink-arg=-nostdlib"])
        .args(["-Clink-arg=-static", "-Clink-arg=-Wl,--build-id=none", "-Clink-arg=-Wl,-z,norelro"])
        .args(["-Clink-arg=-Wl,-z,noseparate-code", "-Clink-arg=-Wl,--no-eh-frame-hdr", "-Cstrip=debuginfo"])
        .arg("-o")
        .arg(&image)
        .arg(source)
        .status()
        .expect("rustc could not be started");
    assert!(status.success(), "{source} does not compile: see rustc's messages above");
}
