# subject: Rust
# tool: cargo
# version: 1.95
# job: makes a project, builds, tests, formats and lints it
# needs: cargo cargo-clippy rustfmt
# job:
cargo init --quiet --vcs none --name app
cargo run --quiet
cargo test --quiet 2>&1 | grep -c 'test result: ok'
cargo fmt --check
cargo clippy --quiet
