# subject: Other languages
# tool: R
# version: 4.2
# job: computes and plots to PDF
# needs: Rscript
# job:
Rscript -e 'cat(sum(1:10), "\n"); pdf("out.pdf"); plot(1:3); invisible(dev.off())'
head -c 5 out.pdf; echo
