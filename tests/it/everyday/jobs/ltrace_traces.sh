# subject: Debuggers and tracers
# tool: ltrace
# version: 0.7
# job: traces library calls
# needs: ltrace
# by-hand: yes
# job:
ltrace -e getenv -o log env >/dev/null
grep -c exited log
