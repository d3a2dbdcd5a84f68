# subject: Files and data
# tool: parallel, xargs
# version: 20221122
# job: runs jobs side by side
# needs: parallel
# by-hand: yes
# job:
seq 8 | parallel --will-cite -k -j4 'echo $(({} * {}))' | paste -sd' '
seq 8 | xargs -P4 -n1 echo | sort -n | paste -sd' '
