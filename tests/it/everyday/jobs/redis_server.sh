# subject: Databases and servers
# tool: redis
# version: 7.0
# job: runs a server of the job's own and talks to it
# needs: redis-server redis-cli
# job:
redis-server --port 0 --unixsocket "$PWD/sock" --save '' --daemonize yes --pidfile "$PWD/pid" --logfile "$PWD/log" >/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do test -S sock && break; sleep 0.1; done
redis-cli -s sock set key value
redis-cli -s sock get key
redis-cli -s sock shutdown nosave
