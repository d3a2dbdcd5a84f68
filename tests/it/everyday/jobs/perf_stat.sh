# subject: Debuggers and tracers
# tool: perf
# version: 6.1
# job: counts the task clock of a program
# needs: perf
# by-hand: yes
# job:
perf stat -e task-clock:u true 2>&1 | grep -o 'task-clock'
