# subject: Debuggers and tracers
# tool: strace
# version: 6.1
# job: traces the calls of a program and its children
# needs: strace
# job:
strace -f -e trace=openat,execve -o log sh -c 'cat /etc/hostname >/dev/null; true' || echo failed
grep -c execve log
grep -o '/etc/hostname' log | sort -u
