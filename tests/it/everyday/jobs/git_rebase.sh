# subject: Version control
# tool: git
# version: 2.47
# job: rebases, squashes and resolves a conflict
# needs: git
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git config --global init.defaultBranch main
git init --quiet
for text in one two three; do echo $text > $text; git add $text; git commit --quiet -m $text; done
git checkout --quiet -b side HEAD~1
echo other > three; git add three; git commit --quiet -m other
# job:
git rebase main >out 2>&1 || grep -c CONFLICT out
echo both > three
git add three
GIT_EDITOR=true git rebase --continue >/dev/null 2>&1
GIT_SEQUENCE_EDITOR='sed -i 2,3s/pick/fixup/' git rebase --quiet -i HEAD~3
git log --format=%s
