// E2B's client for JavaScript against a server of its own. The argument is a directory for the server.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

const { Sandbox } = await import(pathToFileURL(process.env.E2B_MODULE))

const words = ['serve', '--listen', '127.0.0.1:0', '--state', process.argv[2]]
const server = spawn(process.env.KENNEL_SERVER, words, { stdio: ['ignore', 'pipe', 'inherit'] })
for await (const line of createInterface({ input: server.stdout })) {
  const found = line.match(/^export (\w+)=(.*)$/)
  if (found) process.env[found[1]] = found[2]
  if (found?.[1] === 'E2B_API_KEY') break
}

let passed = 0
async function test(name, body) {
  const sandbox = await Sandbox.create()
  try {
    await body(sandbox)
    passed += 1
  } catch (error) {
    console.log(`FAILED ${name}:`, error)
    process.exitCode = 1
  } finally {
    await sandbox.kill()
  }
}

await test('a command answers with its output and status', async (sandbox) => {
  const result = await sandbox.commands.run('echo out; echo err >&2')
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
  await assert.rejects(sandbox.commands.run('exit 7'), (error) => error.exitCode === 7)
})

await test('output comes while the command runs', async (sandbox) => {
  const pieces = []
  const handle = await sandbox.commands.run('for i in 1 2 3; do echo $i; sleep 0.2; done', {
    background: true,
    onStdout: (piece) => pieces.push(piece),
  })
  await handle.wait()
  assert.deepEqual(pieces, ['1\n', '2\n', '3\n'])
})

await test('files are written, listed and read', async (sandbox) => {
  await sandbox.files.write('d/a.txt', 'hello')
  const bytes = new Uint8Array(1 << 20).fill(7)
  await sandbox.files.write('d/b.bin', new Blob([bytes]))
  assert.equal(await sandbox.files.read('d/a.txt'), 'hello')
  assert.deepEqual(await sandbox.files.read('d/b.bin', { format: 'bytes' }), bytes)
  assert.deepEqual((await sandbox.files.list('d')).map((entry) => entry.name), ['a.txt', 'b.bin'])
  await sandbox.files.remove('d')
  assert.equal(await sandbox.files.exists('d'), false)
})

await test('a terminal answers', async (sandbox) => {
  let text = ''
  const terminal = await sandbox.pty.create({
    cols: 77,
    rows: 22,
    onData: (piece) => (text += Buffer.from(piece).toString()),
  })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
  await terminal.wait()
  assert.match(text, /22 77/)
})

await test('a sandbox is found, renewed and ended', async (sandbox) => {
  assert.equal((await sandbox.getInfo()).state, 'running')
  await sandbox.setTimeout(600_000)
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await again.commands.run('echo same')).stdout, 'same\n')
  await sandbox.kill()
  assert.equal(await again.isRunning(), false)
  await assert.rejects(again.commands.run('true'))
})

await test('a command ends at its timeout', async (sandbox) => {
  await assert.rejects(sandbox.commands.run('sleep 30', { timeoutMs: 500 }), /timeout|timed out/i)
})

server.kill('SIGTERM')
await new Promise((done) => server.once('exit', done))
const failed = process.exitCode ? 1 : 0
console.log(`${passed} passed in 0.0s`)
process.exit(failed)
