# subject: Other languages
# tool: java
# version: 17
# job: reads from a server of the host
# needs: java curl /usr/bin/python3
# flags: --allow localhost:$PORT
# before:
mkdir ../www; echo served > ../www/file
/usr/bin/python3 -m http.server -b 127.0.0.1 -d ../www $PORT >/dev/null 2>&1 & echo $! > ../pid
for _ in $(seq 100); do curl -s http://localhost:$PORT/ >/dev/null && break; sleep 0.1; done
echo 'public class Get { public static void main(String[] a) throws Exception { System.out.print(new String(new java.net.URL(a[0]).openStream().readAllBytes())); } }' > Get.java
# job:
java Get.java http://localhost:$PORT/file 2>/dev/null
# after:
kill "$(cat ../pid)"
