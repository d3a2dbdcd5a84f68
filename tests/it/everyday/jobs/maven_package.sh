# subject: Other languages
# tool: maven
# version: 3.8
# job: validates a project offline
# needs: mvn
# by-hand: yes
# before:
mkdir -p ~/.m2/repository
printf '<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>demo</artifactId><version>1</version><packaging>pom</packaging></project>' > pom.xml
# job:
mvn -B -q -o -Dstyle.color=never validate && echo validated
