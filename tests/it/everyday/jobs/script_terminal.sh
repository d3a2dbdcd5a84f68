# subject: Terminals and editors
# tool: script
# version: 2.38
# job: records a command that has a terminal
# needs: script
# job:
script -qec 'test -t 1 && stty size >/dev/null && echo terminal' log </dev/null | tr -d '\r'
grep -c terminal log
