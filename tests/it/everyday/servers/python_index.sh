# An index of Python packages on $PORT with one package.
mkdir -p ../index/simple/demo-everyday
/usr/bin/python3 - <<'END'
import zipfile
with zipfile.ZipFile('../index/simple/demo-everyday/demo_everyday-1.0-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('demo_everyday.py', 'value = 42\n')
    info = 'demo_everyday-1.0.dist-info/'
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\nName: demo-everyday\nVersion: 1.0\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    wheel.writestr(info + 'RECORD', 'demo_everyday.py,,\n%sMETADATA,,\n%sWHEEL,,\n%sRECORD,,\n' % (info, info, info))
END
echo '<a href="demo_everyday-1.0-py3-none-any.whl">demo_everyday-1.0-py3-none-any.whl</a>' > ../index/simple/demo-everyday/index.html
/usr/bin/python3 -m http.server -b 127.0.0.1 -d ../index $PORT >/dev/null 2>&1 & echo $! > ../pid
for _ in $(seq 100); do /usr/bin/python3 -c "import socket; socket.create_connection(('127.0.0.1', $PORT))" 2>/dev/null && break; sleep 0.1; done
