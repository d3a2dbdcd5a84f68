# subject: Version control
# tool: git
# version: 2.47
# job: commits from a subdirectory of the repository
# needs: git
# cwd: src
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git init --quiet
mkdir src; echo one > src/file; git add .; git commit --quiet -m first
# job:
echo two > file
echo top > ../top
git add file ../top
git commit --quiet -m second
git log --format=%s
git status --short
