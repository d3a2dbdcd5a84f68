# subject: Version control
# tool: git
# version: 2.47
# job: bisects with a script
# needs: git
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
git init --quiet
for n in 1 2 3 4 5 6 7 8; do echo $n > file; git add file; git commit --quiet -m "commit $n"; done
# job:
git bisect start HEAD HEAD~7 >/dev/null
git bisect run sh -c 'test "$(cat file)" -lt 5' | grep -o "commit 5" | head -1
git bisect reset 2>/dev/null
