# subject: JavaScript
# tool: bun
# version: 1.4
# job: runs TypeScript, serves and fetches on loopback
# needs: bun
# by-hand: yes
# before:
echo 'const s = Bun.serve({ port: 0, fetch: () => new Response("served") }); console.log(await (await fetch(s.url)).text()); s.stop(true)' > a.ts
# job:
bun a.ts
