# subject: Version control
# tool: git
# version: 2.47
# job: stashes changes and takes them back
# needs: git
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git init --quiet
echo one > file; git add file; git commit --quiet -m first
echo two > file
# job:
git stash --quiet
cat file
git stash list | sed 's/ [0-9a-f]* first//'
git stash pop --quiet
cat file
