# subject: Network, keys and rights
# tool: dpkg
# version: 1.21
# job: asks what is installed, builds a package and unpacks it
# needs: dpkg-deb
# before:
mkdir -p pkg/DEBIAN pkg/opt; echo hello > pkg/opt/hello
printf 'Package: demo\nVersion: 1.0\nArchitecture: all\nMaintainer: Ada <ada@example.invalid>\nDescription: demo\n' > pkg/DEBIAN/control
# job:
dpkg-query -W -f '${Package} ${Status}\n' dpkg
dpkg-deb --build --root-owner-group pkg demo.deb >/dev/null
dpkg -x demo.deb out
cat out/opt/hello
