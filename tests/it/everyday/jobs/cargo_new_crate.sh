# subject: Rust
# tool: cargo
# version: 1.95
# job: builds with a crate that is not in ~/.cargo yet, from a registry on this machine
# needs: cargo /usr/bin/python3 sha256sum
# flags: --allow localhost:$PORT
# before:
mkdir -p ../dep/src ../index/de/mo ../index/dl ~/.cargo/registry
printf '[package]\nname = "demo"\nversion = "1.0.0"\nedition = "2021"\ndescription = "x"\nlicense = "MIT"\n' > ../dep/Cargo.toml
echo 'pub const VALUE: u32 = 42;' > ../dep/src/lib.rs
mkdir ../demo-1.0.0; cp -r ../dep/. ../demo-1.0.0/
tar czf ../index/dl/demo -C .. demo-1.0.0
printf '{"name":"demo","vers":"1.0.0","deps":[],"cksum":"%s","features":{},"yanked":false}\n' "$(sha256sum < ../index/dl/demo | cut -d' ' -f1)" > ../index/de/mo/demo
printf '{"dl":"http://localhost:%s/dl/{crate}"}' $PORT > ../index/config.json
/usr/bin/python3 -m http.server -b 127.0.0.1 -d ../index $PORT >/dev/null 2>&1 & echo $! > ../pid
for _ in $(seq 100); do /usr/bin/python3 -c "import socket; socket.create_connection(('127.0.0.1', $PORT))" 2>/dev/null && break; sleep 0.1; done
mkdir src .cargo
printf '[package]\nname = "app"\nversion = "1.0.0"\nedition = "2021"\n[dependencies]\ndemo = { version = "1", registry = "local" }\n' > Cargo.toml
echo 'fn main() { println!("{}", demo::VALUE) }' > src/main.rs
printf '[registries.local]\nindex = "sparse+http://localhost:%s/"\n' $PORT > .cargo/config.toml
# job:
cargo run --quiet
cargo test --quiet 2>&1 | grep -c 'test result: ok'
# after:
kill "$(cat ../pid)"
