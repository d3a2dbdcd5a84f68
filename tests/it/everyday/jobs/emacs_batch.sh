# subject: Terminals and editors
# tool: emacs
# version: 28.2
# job: edits a file in batch mode
# needs: emacs
# by-hand: yes
# before:
echo one > file
# job:
emacs -Q --batch file --eval '(progn (goto-char (point-max)) (insert "two\n") (save-buffer))' 2>/dev/null
cat file
