# subject: Databases and servers
# tool: psql
# version: 15.18
# job: queries a server of the host
# needs: initdb pg_ctl psql
# user: yes
# flags: --allow localhost:$PORT
# before:
initdb -D ../data -A trust -U ada --no-sync --locale=C >/dev/null
pg_ctl -D ../data -w -o "-k $HOME -p $PORT -F" -l ../log start >/dev/null
# job:
psql -h localhost -p $PORT -U ada -Atc 'select 6 * 7' postgres
# after:
pg_ctl -D ../data -m immediate stop
