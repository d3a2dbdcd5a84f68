# subject: Browsers and documents
# tool: chromium
# version: 156
# job: shows a page of data without a window
# needs: chromium
# note: its own sandbox needs namespaces, which commands cannot make; hence --no-sandbox
# job:
chromium --headless --no-sandbox --disable-gpu --dump-dom 'data:text/html,<p>hello</p><script>document.body.append(6 * 7)</script>' 2>/dev/null
