# subject: Files and data
# tool: nproc, lscpu, free, df, ss, id, ps
# version: 2.38
# job: say what the machine and the sandbox have
# needs: lscpu ss free
# job:
nproc
lscpu | grep -E '^(Architecture|CPU\(s\)|Model name)'
free -m | awk '/Mem/ { print $2 }'
df -P . | wc -l
ss -tln | wc -l >/dev/null
id -un
getconf _NPROCESSORS_ONLN
date +%Z
locale -a | grep -c C
