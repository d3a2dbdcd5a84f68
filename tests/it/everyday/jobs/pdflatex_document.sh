# subject: Browsers and documents
# tool: pdflatex
# version: TeX Live 2022
# job: typesets a document
# needs: pdflatex
# before:
printf '\\documentclass{article}\\begin{document}Hello $x^2$.\\tableofcontents\\section{One}\\end{document}\n' > doc.tex
# job:
pdflatex -interaction=batchmode doc >/dev/null
pdflatex -interaction=batchmode doc >/dev/null
head -c 5 doc.pdf; echo
