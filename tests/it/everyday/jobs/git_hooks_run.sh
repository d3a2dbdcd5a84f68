# subject: Version control
# tool: git
# version: 2.47
# job: runs the hooks that the repository has
# needs: git
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git init --quiet
printf '#!/bin/sh\necho checked\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
# job:
echo one > file
git add file
git commit --quiet -m first 2>&1
