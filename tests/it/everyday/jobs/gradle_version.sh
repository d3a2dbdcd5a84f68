# subject: Other languages
# tool: gradle
# version: 4.4
# job: runs a task
# needs: gradle
# by-hand: yes
# before:
printf 'task hello { doLast { println "hello" } }\n' > build.gradle
# job:
gradle --no-daemon --offline --console plain -q hello 2>/dev/null
