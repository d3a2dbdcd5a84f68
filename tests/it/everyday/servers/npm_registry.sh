# A registry of npm on $PORT with one package, and a project with a script that uses it.
mkdir -p ../pack; cd ../pack
printf '{"name": "demo-everyday", "version": "1.0.0", "main": "index.js"}' > package.json
echo 'module.exports = 42' > index.js
npm pack --silent >/dev/null
cat > ../registry.js <<'END'
const fs = require('fs'), [, , port] = process.argv;
require('http').createServer((request, answer) => {
  if (request.url.endsWith('.tgz')) return answer.end(fs.readFileSync('demo-everyday-1.0.0.tgz'));
  const shasum = require('crypto').createHash('sha1').update(fs.readFileSync('demo-everyday-1.0.0.tgz')).digest('hex');
  const dist = { shasum, tarball: `http://localhost:${port}/demo-everyday/-/demo-everyday-1.0.0.tgz` };
  answer.setHeader('content-type', 'application/json');
  answer.end(JSON.stringify({ name: 'demo-everyday', 'dist-tags': { latest: '1.0.0' }, versions: { '1.0.0': { name: 'demo-everyday', version: '1.0.0', main: 'index.js', dist } } }));
}).listen(port, '127.0.0.1');
END
node ../registry.js $PORT >../registry.log 2>&1 & echo $! > ../pid
cd ../work
cat > package.json <<'END'
{"name": "app", "version": "1.0.0", "scripts": {"start": "node -p \"require('demo-everyday')\""}}
END
for _ in 1 2 3 4 5 6 7 8 9 10; do curl -s http://localhost:$PORT/demo-everyday >/dev/null && break; sleep 0.1; done
