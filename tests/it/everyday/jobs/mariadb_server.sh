# subject: Databases and servers
# tool: mariadb
# version: 10.11
# job: runs a server of the job's own and queries it
# needs: mariadbd mariadb-install-db mariadb
# by-hand: yes
# job:
mariadb-install-db --no-defaults --datadir="$PWD/data" --auth-root-authentication-method=normal --user="$(id -un)" >/dev/null 2>&1
mariadbd --no-defaults --datadir="$PWD/data" --socket="$PWD/sock" --skip-networking --user="$(id -un)" --pid-file="$PWD/pid" >log 2>&1 &
for _ in $(seq 50); do mariadb --no-defaults -S sock -u root -e 'select 1' >/dev/null 2>&1 && break; sleep 0.1; done
mariadb --no-defaults -S sock -u root -Ne 'select 6 * 7'
mariadb-admin --no-defaults -S sock -u root shutdown
wait
