# <name>

A federation of clients that do not share a feature space. `federation/methods.py` says what is trained,
`federation/data.py` how each client reads its own data, `pyproject.toml` how many classes, clients and rounds there
are. Every machine needs `pip install "hetfl-core[deploy]"`; the code in this folder is sent to the clients by Flower.

## At the server

    hetfl deploy certificates --host server.example.org     # once: secrets/ca.crt is for the clients
    nginx -p "$PWD/" -c nginx.conf                          # the door for clients: port 8443, for what they need only
    hetfl deploy server --behind server.example.org:8443    # starts Flower's SuperLink, for this machine and the door

Who reaches the SuperLink itself can run code here and at every client, without a key. So it listens at 127.0.0.1, and
nobody else may have an account on this machine. Only clients whose keys were admitted come through the door.

## At each client

    hetfl deploy key berlin                                 # once: give secrets/berlin.pub to the server
    hetfl deploy client --server server.example.org:8443 --ca secrets/ca.crt --key secrets/berlin \
        --name berlin --data /data/berlin.csv --state state

## At the server, again

    hetfl deploy admit secrets/berlin.pub                   # for each client, once
    hetfl deploy start                                      # begins the rounds, or goes on where they ended

A client's samples never leave its machine; `secrets/` and `state/` belong in no repository. Read `federation/` before you
start a client: it is code that runs beside your data, and it says how much noise your messages get.
