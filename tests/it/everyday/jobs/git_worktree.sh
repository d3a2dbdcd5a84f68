# subject: Version control
# tool: git
# version: 2.47
# job: adds a worktree, commits in it and removes it
# needs: git
# flags: --git trust
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git config --global init.defaultBranch main
git init --quiet
echo one > file; git add file; git commit --quiet -m first
# job:
git worktree add --quiet -b side tree
cd tree
echo two > file
git commit --quiet -am second
cd ..
git log --format=%s side
git worktree remove tree
git worktree list | wc -l
