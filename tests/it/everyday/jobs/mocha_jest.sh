# subject: JavaScript
# tool: mocha, jest
# version: 12.0, 30.5
# job: run tests in workers
# needs: mocha jest
# by-hand: yes
# before:
mkdir spec __tests__
echo "describe('a', () => it('adds', () => require('assert').equal(1 + 1, 2)))" > spec/a.js
for n in 1 2; do echo "test('adds', () => expect(1 + 1).toBe(2))" > __tests__/$n.test.js; done
echo '{}' > package.json
# job:
mocha --parallel --jobs 2 spec | grep -o '1 passing'
jest --maxWorkers 2 2>&1 | grep -o '2 passed, 2 total'
