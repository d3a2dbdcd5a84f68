# subject: Browsers and documents
# tool: imagemagick, ffmpeg, pandoc, dot
# version: 6.9, 5.1, 2.17, 2.43
# job: converts pictures, sound, documents and graphs
# needs: convert ffmpeg pandoc dot
# by-hand: yes
# job:
ffmpeg -v error -f lavfi -i sine=duration=1 out.wav
test -s out.wav && echo wav
echo '# Title' | pandoc -t html
echo 'digraph { a -> b }' | dot -Tplain | head -1 | cut -c1-5
