# subject: Files and data
# tool: ripgrep, fd, jq
# version: 13.0, 8.6, 1.6
# job: searches and filters
# needs: rg fdfind jq
# by-hand: yes
# before:
mkdir a; echo needle > a/file; echo '{"n": [1, 2]}' > b.json
# job:
rg needle
fdfind file
jq -c '.n | add' b.json
