# subject: Databases and servers
# tool: sqlite3
# version: 3.40
# job: makes a database in WAL mode and queries it
# needs: sqlite3
# job:
sqlite3 db 'pragma journal_mode = wal; create table t (n); insert into t values (1), (2); select sum(n) from t;'
sqlite3 db '.schema'
