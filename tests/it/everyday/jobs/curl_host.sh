# subject: Network, keys and rights
# tool: curl, wget
# version: 7.88, 1.21
# job: read from a server of the host
# needs: curl wget /usr/bin/python3
# flags: --allow localhost:$PORT
# before:
mkdir ../www; echo served > ../www/file
/usr/bin/python3 -m http.server -b 127.0.0.1 -d ../www $PORT >/dev/null 2>&1 & echo $! > ../pid
for _ in $(seq 100); do curl -s http://localhost:$PORT/ >/dev/null && break; sleep 0.1; done
# job:
curl -sS http://localhost:$PORT/file
curl -sS http://127.0.0.1:$PORT/file
wget -q -O - http://localhost:$PORT/file
# after:
kill "$(cat ../pid)"
