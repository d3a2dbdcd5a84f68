# subject: Terminals and editors
# tool: screen
# version: 4.9
# job: runs a command in a detached session
# needs: screen
# by-hand: yes
# user: yes
# note: as root it gives its terminal to the group tty, which the sandbox does not have; without SCREENDIR it wants to write to /run/screen
# job:
mkdir -p -m 700 "${SCREENDIR:=/tmp/screen.$PORT}"; export SCREENDIR
screen -dmS job sh -c 'echo from screen > out; sleep 3'
for _ in 1 2 3 4 5 6 7 8 9 10; do test -s out && break; sleep 0.1; done
cat out
screen -S job -X quit
