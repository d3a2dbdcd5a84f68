# subject: Other languages
# tool: java
# version: 17
# job: compiles and runs a program and makes a JAR
# needs: javac java jar
# before:
mkdir src; echo 'public class Main { public static void main(String[] a) throws Exception { Thread t = new Thread(() -> System.out.println(6 * 7)); t.start(); t.join(); } }' > src/Main.java
# job:
javac -d out src/Main.java
jar cfe app.jar Main -C out .
java -jar app.jar
