# subject: Databases and servers
# tool: nginx
# version: 1.22
# job: serves the workspace on loopback
# needs: nginx curl
# by-hand: yes
# user: yes
# note: as root its workers change to another user, whom the sandbox does not have
# before:
mkdir www; echo served > www/index.html
printf 'pid nginx.pid;\nerror_log error.log;\nevents {}\nhttp { access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5; server { listen 127.0.0.1:%s; root www; } }\n' $PORT > nginx.conf
# job:
nginx -p "$PWD" -e error.log -c nginx.conf
curl -s http://localhost:$PORT/
nginx -p "$PWD" -e error.log -c nginx.conf -s stop
