# subject: Version control
# tool: git
# version: 2.47
# job: branches, merges, tags and describes
# needs: git
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git config --global init.defaultBranch main
git init --quiet
echo one > file; git add file; git commit --quiet -m first
# job:
git switch --quiet -c topic
echo more > more; git add more; git commit --quiet -m more
git switch --quiet main
git merge --quiet --no-ff -m merged topic
git tag -a v1 -m 'version 1'
git describe
git branch --merged
git log --oneline --graph --format=%s
