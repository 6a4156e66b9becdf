"""What runs at the server."""

from federation.methods import METHODS
from hetfl_core.deployment import server_app

app = server_app(METHODS)
