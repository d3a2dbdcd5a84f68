# subject: Version control
# tool: git
# version: 2.47
# job: git config is refused, and the message names the flag that allows it
# needs: git
# flags: --explain
# fails: --git trust would allow it
# before:
git init --quiet
# job:
git config core.autocrlf input
