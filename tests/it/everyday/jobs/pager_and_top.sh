# subject: Terminals and editors
# tool: less, top
# version: 590, 4.0
# job: page and watch in a terminal
# needs: script less top
# by-hand: yes
# job:
TERM=xterm script -qec 'echo q | less -E /etc/hostname >/dev/null; top -b -n1 | grep -c PID' /dev/null </dev/null | tr -d '\r'
