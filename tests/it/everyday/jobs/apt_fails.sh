# subject: Network, keys and rights
# tool: apt
# version: 2.6
# job: says that it cannot install into the system
# needs: apt-get dpkg-deb
# fails: /var/lib/dpkg/lock-frontend
# note: the system is read-only, also for root; install on the host, or unpack a package with `dpkg -x`
# before:
mkdir -p pkg/DEBIAN
printf 'Package: demo\nVersion: 1.0\nArchitecture: all\nMaintainer: Ada <ada@example.invalid>\nDescription: demo\n' > pkg/DEBIAN/control
dpkg-deb --build pkg demo.deb >/dev/null
# job:
apt-get install -y ./demo.deb
