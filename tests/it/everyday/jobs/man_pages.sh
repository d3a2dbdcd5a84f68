# subject: Browsers and documents
# tool: man
# version: 2.11
# job: shows a page
# needs: man
# by-hand: yes
# job:
man -P cat true 2>/dev/null | head -1 | wc -l
