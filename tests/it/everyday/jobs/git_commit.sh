# subject: Version control
# tool: git
# version: 2.47
# job: commits under the name in ~/.gitconfig
# needs: git
# before:
git config --global user.name 'Ada Lovelace'
git config --global user.email ada@example.invalid
git config --global init.defaultBranch main
# job:
git init --quiet
echo one > file
git add file
git commit --quiet -m first
git log --format='%an <%ae> %s'
git status --short --branch
