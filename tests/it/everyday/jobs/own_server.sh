# subject: Python
# tool: python
# version: 3.11
# job: serves on all addresses and reads from there by name, number and 0.0.0.0
# needs: /usr/bin/python3 curl
# before:
echo served > file
# Some hosts do not resolve their own name.
getent hosts "$(hostname)" >/dev/null || hostname > unresolved
# job:
/usr/bin/python3 -m http.server $PORT >/dev/null 2>&1 & pid=$!
for _ in $(seq 100); do curl -s http://localhost:$PORT/ >/dev/null && break; sleep 0.1; done
own=$(hostname)
[ "$own" != "$(cat unresolved 2>/dev/null)" ] || own=localhost
for host in localhost 127.0.0.1 0.0.0.0 "$own"; do curl -sS http://$host:$PORT/file; done
kill $pid
