# subject: Terminals and editors
# tool: bash, zsh, fish
# version: 5.2, 5.9, 3.6
# job: job control, globs, process substitution, here documents
# needs: bash zsh fish
# by-hand: yes
# job:
bash -c 'diff <(echo a) <(echo a) && sleep 0.01 & wait; cat <<< here; echo {1..3}'
zsh -fc 'setopt extended_glob; echo a > x1; print -l x<1-3>; echo =(echo) | wc -l'
fish --no-config -c 'for n in 1 2; echo $n; end; echo (math 6 x 7)'
