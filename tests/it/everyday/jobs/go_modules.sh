# subject: Other languages
# tool: go
# version: 1.19
# job: downloads a module that is not in ~/go yet, from a proxy on this machine
# needs: go /usr/bin/python3 curl
# flags: --allow localhost:$PORT
# before:
mkdir -p ~/go/pkg/mod ../proxy/example.invalid/demo/@v
cd ../proxy/example.invalid/demo/@v
echo v1.0.0 > list; echo '{"Version":"v1.0.0"}' > v1.0.0.info; echo 'module example.invalid/demo' > v1.0.0.mod
/usr/bin/python3 - <<'END'
import zipfile
with zipfile.ZipFile('v1.0.0.zip', 'w') as z:
    z.writestr('example.invalid/demo@v1.0.0/go.mod', 'module example.invalid/demo\n')
    z.writestr('example.invalid/demo@v1.0.0/demo.go', 'package demo\n\nconst Value = 42\n')
END
cd ../../../../work
/usr/bin/python3 -m http.server -b 127.0.0.1 -d ../proxy $PORT >/dev/null 2>&1 & echo $! > ../pid
for _ in $(seq 100); do curl -s http://localhost:$PORT/ >/dev/null && break; sleep 0.1; done
printf 'module app\n\ngo 1.19\n' > go.mod
printf 'package main\n\nimport (\n\t"fmt"\n\n\t"example.invalid/demo"\n)\n\nfunc main() { fmt.Println(demo.Value) }\n' > main.go
# job:
export GOPROXY=http://localhost:$PORT GOFLAGS=-mod=mod GOSUMDB=off
go mod tidy
go run .
# after:
kill "$(cat ../pid)"
