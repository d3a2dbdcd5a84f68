# subject: Version control
# tool: git
# version: 2.47
# job: commits where the repository is kept elsewhere (--separate-git-dir)
# needs: git
# flags: --rw ../store
# cwd: app
# note: the repository does not name the work tree, so it is not shown by itself
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git init --quiet --separate-git-dir "$PWD/store" app
# job:
echo one > file
git add file
git commit --quiet -m first
git log --format=%s
