# subject: Debuggers and tracers
# tool: perf
# version: 6.1
# job: says that it may not count
# needs: perf
# by-hand: yes
# fails: No permission to enable task-clock
# note: perf_event_open shows more than the sandbox, and its code in the kernel is large
# job:
perf stat -e task-clock:u true
