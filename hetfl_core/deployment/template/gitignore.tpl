secrets/
state/
__pycache__/
nginx.*
!nginx.conf
*.fab
