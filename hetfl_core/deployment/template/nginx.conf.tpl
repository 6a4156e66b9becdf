# The door of the federation, for nginx. From this folder, and without any rights but your own:
#     nginx -p "$PWD/" -c nginx.conf              and later: nginx -p "$PWD/" -c nginx.conf -s stop
# Clients call port 8443. Of what they ask only the ten things below reach Flower's SuperLink, which listens on port
# 8000 of this machine alone: all else that it can do is its owner's, and it asks nobody for a key.

pid nginx.pid;
error_log nginx.log;
events {}

http {
    access_log off;
    client_body_temp_path nginx.tmp;
    proxy_temp_path nginx.tmp;
    fastcgi_temp_path nginx.tmp;
    uwsgi_temp_path nginx.tmp;
    scgi_temp_path nginx.tmp;

    upstream superlink {
        server 127.0.0.1:8000;
        keepalive 16;
    }

    server {
        listen 8443 ssl;
        ssl_certificate secrets/server.pem;
        ssl_certificate_key secrets/server.key;
        ssl_protocols TLSv1.2 TLSv1.3;
        client_max_body_size 256m;
        proxy_request_buffering off;    # no message is written to the disk
        proxy_buffering off;
        proxy_next_upstream off;

        location / {
            return 403;
        }

        # What is forwarded is made of one of these words, and never of what else stands in a request's address.
        location ~ "^/v1/fleet/(activate-node|deactivate-node|send-node-heartbeat|pull-messages|push-messages|get-run|get-fab|push-object|pull-object|confirm-message-received)$" {
            limit_except POST { deny all; }
            proxy_pass https://superlink/v1/fleet/$1;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_ssl_trusted_certificate secrets/ca.crt;
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
        }
    }
}
