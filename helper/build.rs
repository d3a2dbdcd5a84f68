//! Compiles the freestanding programs with rustc alone: the inside and the client `kennel-exec`, each static
//! and a few kilobytes.
//!
//! Cargo's flags do not apply on purpose: the programs must be the same however the outside is built.

use std::{env, fs, path::PathBuf, process::Command};

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
    let linked = fs::read(&image).expect("rustc wrote the image");
    fs::write(image.with_extension("loaded"), loaded(linked)).expect("OUT_DIR can be written");
}

/// What the kernel loads of an ELF executable, without its names and its table of sections (elf(5)): each
/// start copies these bytes. `scripts/inside-is-freestanding` needs the names.
fn loaded(mut elf: Vec<u8>) -> Vec<u8> {
    let number = |at: usize, size: usize| {
        elf[at..at + size].iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte))
    };
    let (headers, size, count) = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
    let ends =
        (0..count).map(|index| headers + index * size).map(|at| number(at + 8, 8) + number(at + 32, 8));
    let end = ends.max().expect("an executable has segments");
    elf.truncate(end);
    // e_shoff, and e_shnum with e_shstrndx: there is no table of sections.
    elf[0x28..0x30].fill(0);
    elf[0x3c..0x40].fill(0);
    elf
}
