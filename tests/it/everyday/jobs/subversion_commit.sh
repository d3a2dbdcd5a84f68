# subject: Version control
# tool: svn
# version: 1.14
# job: commits to a repository of the workspace
# needs: svn svnadmin
# by-hand: yes
# job:
svnadmin create repo
svn -q checkout "file://$PWD/repo" copy
cd copy
echo one > file
svn -q add file
svn -q commit -m first
svn -q update
svn log -q | grep -c '^r1'
