# subject: Version control
# tool: git
# version: 2.47
# job: uses filters and ignores of ~/.config/git
# needs: git
# before:
git config --global user.name Ada
git config --global user.email ada@example.invalid
mkdir -p ~/.config/git; echo '*.log' > ~/.config/git/ignore
git config --global filter.upper.clean 'tr a-z A-Z'
git init --quiet; echo '*.up filter=upper' > .gitattributes
# job:
echo one > file.up; echo x > x.log
git add .
git show :file.up
git status --short
