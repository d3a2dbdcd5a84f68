# subject: Terminals and editors
# tool: tmux
# version: 3.3a
# job: runs a command in a detached session and reads its screen
# needs: tmux
# job:
tmux -L job new-session -d -x 40 -y 5 'echo hello; exec sleep 5'
for _ in 1 2 3 4 5 6 7 8 9 10; do tmux -L job capture-pane -p | grep -q hello && break; sleep 0.1; done
tmux -L job capture-pane -p | head -1
tmux -L job kill-server
