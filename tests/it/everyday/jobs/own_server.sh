# subject: Python
# tool: python
# version: 3.11
# job: serves on all addresses and reads from there by name, number and 0.0.0.0
# needs: /usr/bin/python3 curl
# before:
echo served > file
# job:
/usr/bin/python3 -m http.server $PORT >/dev/null 2>&1 & pid=$!
for _ in 1 2 3 4 5 6 7 8 9 10; do curl -s http://localhost:$PORT/ >/dev/null && break; sleep 0.1; done
for host in localhost 127.0.0.1 0.0.0.0 "$(hostname)"; do curl -sS http://$host:$PORT/file; done
kill $pid
