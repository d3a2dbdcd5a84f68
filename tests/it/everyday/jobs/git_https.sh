# subject: Version control
# tool: git
# version: 2.47
# job: clones from a server of the host
# needs: git curl /usr/bin/python3
# flags: --allow localhost:$PORT
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git init --quiet ../app; echo one > ../app/file; git -C ../app add file; git -C ../app commit --quiet -m first
git clone --quiet --bare ../app ../app.git; git -C ../app.git update-server-info
/usr/bin/python3 -m http.server -b 127.0.0.1 -d .. $PORT >/dev/null 2>&1 & echo $! > ../pid
for _ in $(seq 100); do curl -s http://localhost:$PORT/ >/dev/null && break; sleep 0.1; done
# job:
git clone --quiet http://localhost:$PORT/app.git copy
git -C copy log --format=%s
# after:
kill "$(cat ../pid)"
