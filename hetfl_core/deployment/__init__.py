"""The methods of the catalogue on Flower: one server, and clients whose data stay where they are."""

from hetfl_core.deployment.apps import client_app, load_model, serve, server_app, settings_of
from hetfl_core.deployment.coordinator import Coordinator, DeploymentError, Result, Roster, Settings, side_by_side
from hetfl_core.deployment.site import FileStore, Reply, Site, SiteError, Task

__all__ = [
    "Coordinator",
    "DeploymentError",
    "FileStore",
    "Reply",
    "Result",
    "Roster",
    "Settings",
    "Site",
    "SiteError",
    "Task",
    "client_app",
    "load_model",
    "serve",
    "server_app",
    "settings_of",
    "side_by_side",
]
