secrets/
state/
__pycache__/
*.fab
