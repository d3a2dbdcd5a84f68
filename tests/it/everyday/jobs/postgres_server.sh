# subject: Databases and servers
# tool: postgres
# version: 15.18
# job: runs a server of the job's own and queries it over TCP and a socket
# needs: initdb pg_ctl psql
# user: yes
# job:
initdb -D data -A trust -U ada --no-sync --locale=C >/dev/null
pg_ctl -D data -w -o "-k $PWD -p $PORT -F" -l log start >/dev/null
psql -h localhost -p $PORT -U ada -Atc 'select 6 * 7' postgres
psql -h "$PWD" -p $PORT -U ada -Atc 'select sum(n) from generate_series(1, 10) n' postgres
pg_ctl -D data -m fast stop >/dev/null
