# subject: Terminals and editors
# tool: vim
# version: 9.0
# job: edits a file in a terminal
# needs: vim script
# before:
echo one > file
# job:
TERM=xterm script -qec "vim -u NONE -n '+normal Atwo' '+wq' file" /dev/null </dev/null >/dev/null
cat file
