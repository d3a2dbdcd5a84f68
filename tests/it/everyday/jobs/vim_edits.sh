# subject: Terminals and editors
# tool: vim
# version: 9.0
# job: edits and saves a file, with a swap file and a backup
# needs: vim
# before:
printf 'one\ntwo\n' > file
# job:
vim -E -s -u NONE -c 'set backup' -c '%s/two/three/' -c 'wq' file
cat file
ls
