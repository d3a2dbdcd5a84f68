# subject: Version control
# tool: git
# version: 2.47
# job: adds a submodule and updates it
# needs: git
# flags: --git trust
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git config --global protocol.file.allow always
mkdir lib; git -C lib init --quiet; echo lib > lib/file; git -C lib add file; git -C lib commit --quiet -m lib
git init --quiet app
# job:
cd app
git submodule --quiet add ../lib lib
git commit --quiet -m 'with lib'
git submodule status | sed 's/^.[0-9a-f]*//; s/ (.*//'
cat lib/file
