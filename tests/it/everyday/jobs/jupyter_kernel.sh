# subject: Python
# tool: jupyter
# version: ipykernel 7.4, nbclient 0.11
# job: runs a notebook's cells in a kernel
# needs: /usr/local/lib/everyday/bin/python
# job:
/usr/local/lib/everyday/bin/python - <<'END'
import nbformat.v4 as v4
from nbclient import NotebookClient
book = v4.new_notebook(cells=[v4.new_code_cell('print(6 * 7)')])
NotebookClient(book, timeout=30, kernel_name='python3').execute()
print(book.cells[0].outputs[0].text, end='')
END
