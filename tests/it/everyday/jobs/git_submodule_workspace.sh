# subject: Version control
# tool: git
# version: 2.47
# job: commits in a submodule that is the workspace
# needs: git
# cwd: app/lib
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git config --global protocol.file.allow always
mkdir lib; git -C lib init --quiet; echo lib > lib/file; git -C lib add file; git -C lib commit --quiet -m lib
git init --quiet app; cd app; git submodule --quiet add ../lib lib; git commit --quiet -m 'with lib'
# job:
echo more > more
git add more
git commit --quiet -m more
git log --format=%s
