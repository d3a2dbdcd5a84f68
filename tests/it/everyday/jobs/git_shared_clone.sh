# subject: Version control
# tool: git
# version: 2.47
# job: commits in a clone that shares the objects of another
# needs: git
# flags: --ro ../app/.git/objects
# cwd: copy
# note: the other repository is not shown by itself
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git init --quiet app; echo one > app/file; git -C app add file; git -C app commit --quiet -m first
git clone --quiet --shared app copy
# job:
git log --format=%s
echo two > file
git commit --quiet -am second
git log --format=%s
git fsck 2>/dev/null
