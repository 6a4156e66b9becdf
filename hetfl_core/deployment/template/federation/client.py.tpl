"""What runs beside a client's data."""

from federation.data import load
from federation.methods import METHODS
from hetfl_core.deployment import client_app

app = client_app(METHODS, load)
