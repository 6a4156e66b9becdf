[project]
name = "<name>"
version = "1.0.0"
description = "A federation of clients that do not share a feature space"
license = "LicenseRef-Proprietary"  # of the code in this folder
dependencies = []  # hetfl-core[deploy] is installed by who runs a node, not by who starts a run

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["federation"]

[tool.flwr.app]
publisher = "<name>"

[tool.flwr.app.components]
serverapp = "federation.server:app"
clientapp = "federation.client:app"

[tool.flwr.app.config]
classes = 2            # classes of the federation; 0 for a regression
clients = 2            # how many must be there before the first round; others may join later
rounds = 10
participation = 1.0    # share of the clients that train in a round
seed = 0
dtype = "float32"
task = "classification"
evaluate-every = 5     # rounds between evaluations, each of which takes one more exchange of messages
metric = ""            # metrics beside accuracy, such as "auc f1 log_loss"
patience = 600.0       # seconds for which a client's answer is waited for
secure = false         # true: the server learns sums of uploads only (SecAgg+), for methods that can
clipping-range = 8.0   # with secure: entries of uploads must lie within plus and minus this
folder = ""            # where the server writes its state and results, an absolute path; "" writes nothing
