# subject: Databases and servers
# tool: memcached
# version: 1.6
# job: serves on loopback
# needs: memcached python3
# by-hand: yes
# job:
memcached -l 127.0.0.1 -p $PORT -u "$(id -un)" & pid=$!
sleep 0.3
python3 -c 'import socket, sys; s = socket.create_connection(("127.0.0.1", int(sys.argv[1]))); s.sendall(b"set k 0 0 1\r\nv\r\nget k\r\nquit\r\n"); print(s.makefile().read().replace("\r", ""), end="")' $PORT
kill $pid
