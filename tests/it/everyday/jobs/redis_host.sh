# subject: Databases and servers
# tool: redis-cli
# version: 7.0
# job: talks to a server of the host
# needs: redis-server redis-cli
# flags: --allow localhost:$PORT
# before:
redis-server --port $PORT --bind 127.0.0.1 --save '' --daemonize yes --pidfile "$PWD/../pid" --dir "$PWD/.." >/dev/null
for _ in $(seq 100); do redis-cli -p $PORT ping 2>/dev/null | grep -q PONG && break; sleep 0.1; done
# job:
redis-cli -p $PORT set key value
redis-cli -p $PORT get key
# after:
redis-cli -p $PORT shutdown nosave
