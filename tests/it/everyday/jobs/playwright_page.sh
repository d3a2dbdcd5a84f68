# subject: Browsers and documents
# tool: playwright
# version: 1.65
# job: drives Debian's chromium
# needs: chromium /usr/local/lib/everyday/bin/python
# by-hand: yes
# note: its own sandbox needs namespaces, which commands cannot make; hence --no-sandbox
# job:
/usr/local/lib/everyday/bin/python - <<'END'
from playwright.sync_api import sync_playwright
with sync_playwright() as p:
    browser = p.chromium.launch(executable_path='/usr/bin/chromium', args=['--no-sandbox'])
    page = browser.new_page()
    page.set_content('<button onclick="this.textContent = 6 * 7">press</button>')
    page.click('button')
    print(page.text_content('button'))
    browser.close()
END
