# subject: Version control
# tool: git
# version: 2.47
# job: blames, greps, archives, packs and checks
# needs: git tar
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git init --quiet
printf 'one\ntwo\n' > file; git add file; git commit --quiet -m first
# job:
git blame -s file | sed 's/^[^ ]* //'
git grep -n two
git archive HEAD | tar t
git gc --quiet
git fsck 2>/dev/null
git count-objects -v | grep packs
