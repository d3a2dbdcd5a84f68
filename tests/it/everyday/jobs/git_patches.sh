# subject: Version control
# tool: git
# version: 2.47
# job: formats patches and applies them, cherry-picks, reverts
# needs: git
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git init --quiet
for n in 1 2 3; do echo $n > file$n; git add .; git commit --quiet -m "commit $n"; done
# job:
git format-patch -q -1
git reset --quiet --hard HEAD~1
git am --quiet 0001-commit-3.patch
git revert --no-edit HEAD >/dev/null
git cherry-pick HEAD~1 >/dev/null
git log --format=%s
