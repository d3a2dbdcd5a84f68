# subject: Other languages
# tool: maven
# version: 3.8
# job: starts, with the settings in /etc/maven
# needs: mvn
# job:
mvn -B -v 2>/dev/null | sed 's/\x1b\[[0-9;]*m//g' | grep -E '^(Apache Maven|Maven home)'
