# subject: Version control
# tool: git
# version: 2.47
# job: changes the repository's configuration, remotes and branch names
# needs: git
# flags: --git trust
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git config --global init.defaultBranch main
git init --quiet
echo one > file; git add file; git commit --quiet -m first
git init --quiet --bare ../home/origin.git
git clone --quiet --bare . origin.git
# job:
git config core.autocrlf input
git remote add origin ./origin.git
git branch -m trunk
git push --quiet -u origin trunk
git config --get branch.trunk.remote
git remote -v
git status --short --branch
