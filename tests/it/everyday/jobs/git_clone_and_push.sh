# subject: Version control
# tool: git
# version: 2.47
# job: clones a repository of the workspace and pushes to it
# needs: git
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git config --global init.defaultBranch main
git init --quiet --bare origin.git
# job:
git clone --quiet origin.git copy 2>/dev/null
cd copy
echo one > file
git add file
git commit --quiet -m first
git push --quiet origin main
git -C ../origin.git log --format=%s main
