# subject: Version control
# tool: git
# version: 2.47
# job: commits and branches in a repository of a group (--shared)
# needs: git
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git init --quiet --shared=group
echo one > file; git add file; git commit --quiet -m first
# job:
for file in a b c d; do echo $file > $file; done
git add . && git commit --quiet -m second
git checkout --quiet -b topic/one
echo two > file; git stash --quiet; git stash pop --quiet
git gc --quiet
git log --format=%s
find .git/refs .git/objects/info -type d ! -perm -2000
